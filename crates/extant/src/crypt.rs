//! Encrypted inodes: the cipher of each, by the keys of the mount.
//!
//! # Rules
//!
//! - B1. Contents of an encrypted file are read and written through its stage, or not at all:
//!   [`View::stage`] is the one place that decides, for reads without a cache and for the page
//!   cache alike.
//! - B2. Names and link targets are shown without the key where it is not there, or cannot be used;
//!   changes need it.

use std::borrow::Cow;
use std::sync::Arc;

use extant_crypt::{
    CipherFault, ContentsCipher, Context, KeySpec, MasterKey, NAME_BYTES_MIN, NONCE_BYTES,
    NamesCipher, Place, Policy,
};
use extant_format::dir;
use extant_format::features::Compat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::xattr::NameIndex;
use extant_iomap::Stage;

use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::keyring::{Cipher, Ciphers, ContentsStage, KeyStatus};
use crate::limits::NAME_MAX;
use crate::node::Node;
use crate::txn::Txn;
use crate::view::View;
use crate::xattr;

/// The name of the attribute that holds the context.
pub(crate) const CONTEXT: (NameIndex, &[u8]) = (NameIndex::ENCRYPTION, b"c");

impl Fs {
    /// Adds a master key for encrypted files and directories. Returns its name in policies of
    /// version 2; policies of version 1 find it by the name that the usual tools give it, or by
    /// that of [`add_key_named`](Self::add_key_named).
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when there are too many keys.
    pub fn add_key(&self, key: MasterKey) -> Result<KeySpec> {
        let name = key.identifier();
        self.add_key_named(key.usual_descriptor(), key.clone())?;
        self.add_key_named(name, key)?;
        Ok(name)
    }

    /// Adds a master key under a name that the caller chooses, for policies of version 1.
    ///
    /// # Errors
    ///
    /// As [`add_key`](Self::add_key); [`FsError::InvalidArgument`] for an identifier that is not
    /// that of the key.
    pub fn add_key_named(&self, name: KeySpec, key: MasterKey) -> Result<()> {
        if matches!(name, KeySpec::Identifier(_)) && name != key.identifier() {
            let what = "key: its identifier is another one";
            return Err(FsError::InvalidArgument { what });
        }
        let added = self.volume().keys().add(name, key);
        added.map_err(|_| FsError::InvalidArgument { what: "keys: there are too many" })
    }

    /// Removes a master key; returns whether there was one. What was written before is written back
    /// first, so that nothing is lost. Afterwards files and directories of the key answer no new
    /// requests, but for [those in use](Inode::use_key), and contents and ciphers of inodes that
    /// nobody holds are gone from memory. Those of inodes that somebody holds go with them.
    ///
    /// Called again, it makes contents go of files that were in use before.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync): the key stays then.
    pub fn remove_key(&self, name: &KeySpec) -> Result<bool> {
        let keys = self.volume().keys();
        let was_there = keys.status(name) == KeyStatus::Present;
        if was_there {
            let synced = self.sync();
            // What has stopped may write nothing any more, and keys go all the same.
            if self.stopped_because().is_none() {
                synced?;
            }
        }
        let removed = keys.remove(name);
        // Their ciphers are behind locks; those of other keys are made again when they are needed.
        let is_encrypted = |node: &Arc<Node>| node.gist().flags.contains(InodeFlags::ENCRYPT);
        self.volume().nodes().drop_unused_if(is_encrypted);
        Ok(removed)
    }

    /// Returns whether a master key is there, or files are in use with it.
    pub fn key_status(&self, name: &KeySpec) -> KeyStatus {
        self.volume().keys().status(name)
    }
}

/// A file in use: its contents are read and written as before when its key is removed, until this is
/// dropped. Got by [`Inode::use_key`].
#[derive(Debug)]
pub struct KeyUse {
    inode: Inode,
    key: KeySpec,
}

impl Drop for KeyUse {
    fn drop(&mut self) {
        self.inode.volume().keys().end_use(&self.key, self.inode.node().ciphers());
    }
}

/// # Encryption
impl Inode {
    /// Returns how the inode is encrypted; `None` if it is not.
    ///
    /// # Errors
    ///
    /// Damage: the inode says that it is encrypted, and has no valid context.
    pub fn encryption_policy(&self) -> Result<Option<Policy>> {
        if !self.is_encrypted() {
            return Ok(None);
        }
        self.locked(|view| view.context()).map(|context| Some(context.policy))
    }

    /// Keeps an encrypted inode in use, as an open file is: it goes on when its key is
    /// [removed](Fs::remove_key). `None` if it is not encrypted.
    ///
    /// # Errors
    ///
    /// [`FsError::Encrypted`] without the key; [`FsError::NotSupported`] for modes that are not
    /// supported; damage of the context.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
    /// let key = fs.add_key(extant::MasterKey::from_file(&std::fs::read("key")?)?)?;
    /// let file = fs.resolve("/private/file")?;
    /// let in_use = file.use_key()?;
    /// fs.remove_key(&key)?;
    /// file.append(b"still here")?;
    /// drop(in_use);
    /// assert!(file.append(b"gone").is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn use_key(&self) -> Result<Option<KeyUse>> {
        if !self.is_encrypted() {
            return Ok(None);
        }
        let view = self.fs().view(self.node());
        let what = "contents";
        let key = view.require(what)?.policy.key;
        match self.volume().keys().begin_use(&key, self.node().ciphers()) {
            true => Ok(Some(KeyUse { inode: self.clone(), key })),
            false => Err(FsError::Encrypted { ino: self.ino(), what, key: Some(key) }),
        }
    }

    /// Returns the nonce of an encrypted inode, which is no secret; `None` if it is not encrypted.
    ///
    /// # Errors
    ///
    /// As [`encryption_policy`](Self::encryption_policy).
    pub fn encryption_nonce(&self) -> Result<Option<[u8; 16]>> {
        if !self.is_encrypted() {
            return Ok(None);
        }
        self.locked(|view| view.context()).map(|context| Some(context.nonce))
    }

    /// Returns whether the cipher of an encrypted inode is in memory and may be used, so that
    /// nothing has to be read to make it.
    pub(crate) fn has_cipher(&self) -> bool {
        self.node().ciphers().is_current(self.volume().keys())
    }

    /// Checks that contents, names or the target can be read: they are not encrypted, or their key
    /// is there.
    ///
    /// # Errors
    ///
    /// [`FsError::Encrypted`]; [`FsError::NotSupported`] for modes that are not supported; damage of
    /// the context.
    pub fn check_key(&self) -> Result<()> {
        if !self.is_encrypted() || self.has_cipher() {
            return Ok(());
        }
        let view = self.fs().view(self.node());
        match view.kind() {
            FileKind::Regular => view.require("contents").map(drop),
            FileKind::Directory => view.require("directory entry names").map(drop),
            FileKind::Symlink => view.require("link target").map(drop),
            _ => Ok(()),
        }
    }
}

impl View<'_> {
    /// Returns the context of an encrypted inode.
    pub(crate) fn context(&self) -> Result<Context> {
        let fail = |fault| FsError::corrupt("encryption context", self.ino(), None, fault);
        let Some(value) = self.any_xattr(CONTEXT.0, CONTEXT.1)? else {
            return Err(fail(Fault::Rule("the inode is encrypted and has none")));
        };
        Context::decode(&value).map_err(|fault| fail(Fault::Decode(Box::new(fault))))
    }

    /// Returns the cipher of an encrypted inode; `None` without its key.
    fn ciphers(&self) -> Result<Option<Ciphers>> {
        let keys = self.volume().keys();
        let slot = self.node().ciphers();
        if let Some(known) = slot.current(keys) {
            return Ok(Some(known));
        }
        if keys.is_empty() {
            return Ok(None);
        }
        let context = self.context()?;
        let made = keys.with(&context.policy.key, |master, removals| {
            let cipher = self.make_cipher(master, &context)?;
            Ok(Ciphers { policy: context.policy, cipher, removals })
        });
        made.map(|made| made.map(|made| slot.keep(made))).transpose()
    }

    fn make_cipher(&self, master: &MasterKey, context: &Context) -> Result<Cipher> {
        let superblock = self.volume().superblock();
        let place = Place {
            ino: self.ino().0,
            uuid: superblock.uuid,
            is_stable: self.volume().features().has_compat(Compat::STABLE_INODES),
            block_log2: self.volume().block_size().log2() as u8,
        };
        let ino = self.ino();
        let made = match self.kind() {
            FileKind::Regular if self.is_inline() => {
                let fault = Fault::Rule("the inode is encrypted, and its data is in the inode");
                return Err(FsError::corrupt("encryption context", ino, None, fault));
            }
            FileKind::Regular => ContentsCipher::new(master, context, &place)
                .map(|cipher| Cipher::Contents(Arc::new(ContentsStage(cipher)))),
            _ => NamesCipher::new(master, context, &place)
                .map(|cipher| Cipher::Names(Arc::new(cipher))),
        };
        made.map_err(|fault| {
            let what = match fault {
                // The one family that is known by name and not there.
                CipherFault::Mode(_) => "encryption with SM4",
                CipherFault::ShortKey { .. } => "encryption with a key that is too short",
                CipherFault::NeedsStableInodes => {
                    "encryption by inode number without the feature stable_inodes"
                }
                CipherFault::DataUnit => "encryption in units larger than a block",
            };
            FsError::NotSupported { ino, what }
        })
    }

    /// Returns the cipher of an encrypted inode, which a change or contents need.
    ///
    /// # Errors
    ///
    /// [`FsError::Encrypted`] with `what` without its key; policies that are not supported; damage
    /// of the context.
    pub(crate) fn require(&self, what: &'static str) -> Result<Ciphers> {
        if let Some(ciphers) = self.ciphers()? {
            return Ok(ciphers);
        }
        let key = self.context().ok().map(|context| context.policy.key);
        Err(FsError::Encrypted { ino: self.ino(), what, key })
    }

    /// Returns what contents of the regular file go through; `None` for what is stored as it is.
    /// A cipher that was used stays in use, for data that is in the cache (Y1).
    ///
    /// # Errors
    ///
    /// As [`require`](Self::require).
    pub(crate) fn stage(&self) -> Result<Option<Arc<dyn Stage>>> {
        if !self.is_encrypted() || self.kind() != FileKind::Regular {
            return Ok(None);
        }
        let ciphers = match self.node().ciphers().get() {
            Some(ciphers) => ciphers,
            None => self.require("contents")?,
        };
        match ciphers.cipher {
            Cipher::Contents(stage) => Ok(Some(stage)),
            Cipher::Names(_) => {
                Err(FsError::Encrypted { ino: self.ino(), what: "contents", key: None })
            }
        }
    }

    /// Returns the cipher of names or of the target, if it is there and can be used (B2).
    pub(crate) fn names(&self) -> Option<Arc<NamesCipher>> {
        if !self.is_encrypted() {
            return None;
        }
        match self.ciphers().ok()??.cipher {
            Cipher::Names(names) => Some(names),
            Cipher::Contents(_) => None,
        }
    }

    /// Returns a name as this directory stores it, for a change that [`check_names`] allowed.
    ///
    /// # Errors
    ///
    /// As [`require`](Self::require); [`FsError::NameTooLong`].
    pub(crate) fn stored_name<'n>(&self, name: &'n [u8]) -> Result<Cow<'n, [u8]>> {
        if !self.is_encrypted() || dir::is_dots(name) {
            return Ok(Cow::Borrowed(name));
        }
        let stored = self.names_of_change()?.encrypt(name, NAME_MAX);
        stored.map(Cow::Owned).map_err(|_| FsError::NameTooLong { len: name.len() })
    }

    /// Returns the cipher of names for a change that [`check_names`] allowed: a key that is removed
    /// half-way through it does not stop it (Y1).
    fn names_of_change(&self) -> Result<Arc<NamesCipher>> {
        let what = "directory entry names";
        let ciphers = match self.node().ciphers().get() {
            Some(ciphers) => ciphers,
            None => self.require(what)?,
        };
        match ciphers.cipher {
            Cipher::Names(names) => Ok(names),
            Cipher::Contents(_) => Err(FsError::Encrypted { ino: self.ino(), what, key: None }),
        }
    }

    /// Returns what entries of this directory are compared with for a name and its
    /// [stored form](Self::stored_name).
    ///
    /// # Errors
    ///
    /// As [`require`](Self::require).
    pub(crate) fn wanted<'n>(&self, name: &'n [u8], stored: &'n [u8]) -> Result<Wanted<'n>> {
        match self.is_encrypted() && self.is_casefold() {
            true => Ok(Wanted::hidden(name, self.names_of_change()?)),
            false => Ok(Wanted::new(stored, self.is_casefold())),
        }
    }
}

/// Checks that names in a directory can be changed: it is not encrypted, or its key is there.
/// Without it names can be removed, as they are shown.
///
/// # Errors
///
/// As [`View::require`].
pub(crate) fn check_names(fs: &Fs, dir: &Arc<Node>, removing: bool) -> Result<()> {
    if !dir.gist().flags.contains(InodeFlags::ENCRYPT) {
        return Ok(());
    }
    let view = fs.view(dir);
    match view.require("directory entry names") {
        Err(FsError::Encrypted { .. }) if removing => Ok(()),
        other => other.map(drop),
    }
}

/// Checks that `dir` may get a name of `child`: what is in an encrypted directory is encrypted in
/// the same way.
///
/// # Errors
///
/// [`FsError::OtherPolicy`]; damage of the contexts.
pub(crate) fn check_policy(fs: &Fs, dir: &Arc<Node>, child: &Arc<Node>) -> Result<()> {
    let is_encrypted = |node: &Node| node.gist().flags.contains(InodeFlags::ENCRYPT);
    let has_policy =
        matches!(child.kind(), FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if !is_encrypted(dir) || !has_policy {
        return Ok(());
    }
    let other = FsError::OtherPolicy { ino: child.ino() };
    if !is_encrypted(child) {
        return Err(other);
    }
    let policy = |node| fs.view(node).context().map(|context| context.policy);
    match policy(dir)? == policy(child)? {
        true => Ok(()),
        false => Err(other),
    }
}

/// Returns the context of a new inode of `kind` in `dir`; `None` if it is not encrypted.
///
/// # Errors
///
/// As [`View::require`]; no random numbers.
pub(crate) fn inherited_context(dir: &View<'_>, kind: FileKind) -> Result<Option<Context>> {
    let has_policy = matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
    if !dir.is_encrypted() || !has_policy {
        return Ok(None);
    }
    let policy = dir.require("directory entry names")?.policy;
    Ok(Some(Context { policy, nonce: new_nonce()? }))
}

/// Returns the context with which a directory gets a policy, if that can be used here.
///
/// # Errors
///
/// As [`View::require`]; no random numbers.
pub(crate) fn new_context(dir: &View<'_>, policy: Policy) -> Result<Context> {
    let context = Context { policy, nonce: new_nonce()? };
    let keys = dir.volume().keys();
    match keys.with(&policy.key, |master, _| dir.make_cipher(master, &context)) {
        Some(made) => made.map(|_| context),
        // Nothing about the key follows from the name of one of version 1; Linux asks for none.
        None if matches!(policy.key, KeySpec::Descriptor(_)) => Ok(context),
        None => {
            let what = "directory entry names";
            Err(FsError::Encrypted { ino: dir.ino(), what, key: Some(policy.key) })
        }
    }
}

/// Draws a nonce, always from the system: images that are made alike from one seed must not use one
/// key for different contents.
fn new_nonce() -> Result<[u8; NONCE_BYTES]> {
    let mut nonce = [0; NONCE_BYTES];
    let what = "encryption: the system gives no random numbers";
    extant_sync::os_random(&mut nonce).map_err(|_| FsError::InvalidArgument { what })?;
    Ok(nonce)
}

/// Stores the context of an inode and marks it encrypted. The caller has changed nothing else of
/// its attributes yet.
///
/// # Errors
///
/// Space and quota; damage of the attributes. Nothing has changed then.
pub(crate) fn set_context(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    context: &Context,
) -> Result<()> {
    xattr::set_context(txn, fs, node, &context.encode())?;
    txn.update(node, |data| data.record.flags |= InodeFlags::ENCRYPT)
}

/// Returns the bytes that a link of a new policy stores for its target: length and ciphertext.
///
/// # Errors
///
/// [`FsError::TargetTooLong`]; as [`View::require`].
pub(crate) fn stored_target(fs: &Fs, node: &Arc<Node>, target: &[u8]) -> Result<Vec<u8>> {
    let view = fs.view(node);
    let what = "link target";
    let Cipher::Names(names) = view.require(what)?.cipher else {
        return Err(FsError::Encrypted { ino: node.ino(), what, key: None });
    };
    let most = target_bytes_max(&view);
    let too_long = FsError::TargetTooLong { len: target.len(), most };
    let cipher = names.encrypt(target, most).map_err(|_| too_long)?;
    let len = u16::try_from(cipher.len()).unwrap_or(u16::MAX);
    Ok([&len.to_le_bytes()[..], &cipher].concat())
}

/// Returns the number of bytes that [`stored_target`] returns in a directory with this policy.
pub(crate) fn stored_target_len(dir: &View<'_>, policy: &Policy, target: &[u8]) -> usize {
    let padded = target.len().max(NAME_BYTES_MIN).next_multiple_of(policy.padding.max(1).into());
    2 + padded.min(target_bytes_max(dir))
}

/// Returns the size of the largest encrypted target: a block without its length and, as Linux
/// counts, a zero byte.
fn target_bytes_max(view: &View<'_>) -> usize {
    view.volume().block_size().len() - 3
}
