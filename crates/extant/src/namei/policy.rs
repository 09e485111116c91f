//! Encrypting directories.

use extant_crypt::{KeySpec, Policy};
use extant_format::features::Incompat;

use super::check_directory;
use super::create::touch;
use crate::crypt;
use crate::dir::edit as dir_edit;
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::txn::Txn;
use crate::view::View;

/// Credits for the context, and for a directory that leaves its inode.
const CREDITS: u32 = dir_edit::INSERT_CREDITS + 48;

impl Inode {
    /// Gives this empty directory an encryption policy: files, directories and links that are
    /// created in it from now on, and below, are encrypted. The key of a policy of version 2 has been
    /// [added](crate::Fs::add_key). A directory that has this policy already stays as it is.
    ///
    /// # Errors
    ///
    /// - [`FsError::NotADirectory`], [`FsError::NotEmpty`], [`FsError::AttributeExists`] for a
    ///   directory with another policy, [`FsError::NotPermitted`] for the root and by its flags.
    /// - [`FsError::Encrypted`] without the key; [`FsError::NotSupported`] for what the file system
    ///   or extant cannot do.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`], [`FsError::ReadOnly`],
    ///   [`FsError::Aborted`]; damage and device errors. After an error nothing has changed.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
    /// let key = fs.add_key(extant::MasterKey::from_file(&std::fs::read("key")?)?)?;
    /// let dir = fs.root()?.mkdir("private", &extant::NewInode::root(0o700))?;
    /// dir.set_encryption_policy(&extant::EncryptionPolicy::new(key))?;
    /// fs.write("/private/file", "not for everybody")?;
    /// drop(dir);
    /// fs.unmount()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn set_encryption_policy(&self, policy: &Policy) -> Result<()> {
        self.fs().change(|| self.set_policy_once(policy))
    }

    fn set_policy_once(&self, policy: &Policy) -> Result<()> {
        let (fs, volume, dir) = (self.fs(), self.volume(), self.node());
        let writer = volume.writer()?;
        let _content = dir.content.write();
        check_directory(fs, dir, false)?;
        let view = fs.view(dir);
        let ino = view.ino();
        if view.is_encrypted() {
            return match view.context()?.policy == *policy {
                true => Ok(()),
                false => Err(FsError::AttributeExists { ino }),
            };
        }
        let refuse = |what| Err(FsError::NotSupported { ino, what });
        if !volume.features().has_incompat(Incompat::ENCRYPT) {
            return refuse("encryption on a file system without the feature encrypt");
        }
        if !policy.is_supported() {
            return refuse("encryption with this policy");
        }
        if view.is_casefold() {
            let is_v1 = matches!(policy.key, KeySpec::Descriptor(_));
            if let Some(what) = no_stored_hashes(&view, is_v1) {
                return refuse(what);
            }
        }
        if ino == extant_base::Ino::ROOT {
            let what = "the root is never encrypted, since e2fsck needs lost+found";
            return Err(FsError::NotPermitted { ino, what });
        }
        let context = crypt::new_context(&view, *policy)?;
        if !dir_edit::is_empty(fs, dir)? {
            return Err(FsError::NotEmpty { ino });
        }
        drop(view);
        let mut txn = Txn::begin(volume, CREDITS)?;
        dir_edit::leave_inode(&mut txn, fs, dir)?;
        crypt::set_context(&mut txn, fs, dir, &context)?;
        let now = writer.now();
        txn.update(dir, |data| touch(data, now))
    }
}

/// Returns why a directory cannot begin to be encrypted and ignore case at once; `None` if it can.
/// It is empty.
pub(super) fn no_stored_hashes(view: &View<'_>, is_v1: bool) -> Option<&'static str> {
    if is_v1 {
        return Some("ignoring case with an encryption policy of version 1");
    }
    // Its index has hashes of another kind.
    view.is_indexed().then_some("ignoring case, encrypted, in a directory that had many names")
}
