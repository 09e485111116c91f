//! The path layer: what `std::fs` offers, for the inside of an image.
//!
//! # Place
//!
//! Everything here is a short way to say something with [`Inode`](crate::Inode) handles. Nothing
//! in it touches the format.
//!
//! # Paths
//!
//! A path is bytes, so that names that are not UTF-8 can be given; every function takes anything
//! that is an [`ImagePath`](crate::ImagePath): `"/etc/passwd"`, `b"/caf\xe9"`, a `std::path::Path`. Paths are separated
//! by `/` and start at the root of the image with or without a leading one. `.` and `..` mean
//! what they mean on Linux; `..` of the root is the root. An absolute symbolic link starts again at
//! the root *of the image*: no path leads out of it.

mod edit;
mod file;
mod resolve;
mod walk;

pub use file::{File, OpenOptions, SyncMode};
pub use walk::{DEPTH_MAX, Walk, WalkEntry, WalkError};

use crate::access::{Access, Credentials};
use crate::dir::ReadDir;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::Metadata;
use resolve::{Last, resolve};

/// # Paths
impl Fs {
    /// The inode that `path` means, after following every symbolic link.
    ///
    /// # Errors
    ///
    /// - [`FsError::NotFound`]: a name on the way, or the last one, does not exist. Also for an
    ///   empty path.
    /// - [`FsError::NotADirectory`]: a name on the way is not a directory, or the path ends in `/`
    ///   and the last name is not one.
    /// - [`FsError::SymlinkLoop`]: more than [`SYMLINKS_MAX`](crate::SYMLINKS_MAX) links.
    /// - [`FsError::NameTooLong`], damage and device errors of the directories on the way.
    pub fn resolve(&self, path: impl ImagePath) -> Result<Inode> {
        resolve(self, path.image_bytes(), Last::Follow).map(|found| found.inode)
    }

    /// Like [`resolve`](Self::resolve), but a symbolic link in the last place is the answer and is
    /// not followed (unless the path ends in `/`).
    pub fn resolve_link(&self, path: impl ImagePath) -> Result<Inode> {
        resolve(self, path.image_bytes(), Last::Keep).map(|found| found.inode)
    }

    /// [`resolve`](Self::resolve), asking `may_search` of each directory on the way.
    pub(crate) fn resolve_checked(
        &self,
        path: &[u8],
        may_search: impl Fn(&Inode) -> Result<()>,
    ) -> Result<Inode> {
        resolve::resolve_checked(self, path, Last::Follow, may_search).map(|found| found.inode)
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve); [`FsError::IsADirectory`], [`FsError::NotARegularFile`];
    /// [`FsError::Encrypted`].
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::io::{Read, Seek, SeekFrom};
    /// let device = extant_block::FileDevice::open_read_only("disk.img")?;
    /// let fs = extant::MountOptions::new().open(device)?;
    /// let mut file = fs.open("/var/log/syslog")?;
    /// file.seek(SeekFrom::End(-80))?;
    /// let mut tail = String::new();
    /// file.read_to_string(&mut tail)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn open(&self, path: impl ImagePath) -> Result<File> {
        File::new(self.resolve(path)?)
    }

    /// Options for opening a file, also for writing.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions::new(self.clone())
    }

    /// Makes `bytes` the contents of a file, which is made if there is none (root's, 0644). Not
    /// durable before [`sync`](Self::sync).
    ///
    /// # Errors
    ///
    /// Those of [`OpenOptions::open`] and [`Inode::write_at`]; the file may be empty or hold a part.
    pub fn write(&self, path: impl ImagePath, bytes: impl AsRef<[u8]>) -> Result<()> {
        let mut file = self.open_options().write(true).create(true).truncate(true).open(path)?;
        let mut bytes = bytes.as_ref();
        while !bytes.is_empty() {
            let written = file.write_next(bytes)?;
            bytes = bytes.get(written..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// The whole contents of a regular file.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`File::read_at`]; [`FsError::TooLarge`] above the mount's
    /// [`read_limit`](crate::MountOptions::read_limit), because the size is the image's word and
    /// a hole costs nothing to store.
    pub fn read(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        self.open(path)?.inode().read_all()
    }

    /// The whole contents of a regular file, as a string.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read); [`FsError::NotUtf8`].
    pub fn read_to_string(&self, path: impl ImagePath) -> Result<String> {
        let inode = self.open(path)?.into_inode();
        String::from_utf8(inode.read_all()?).map_err(|error| FsError::NotUtf8 {
            ino: inode.ino(),
            valid_up_to: error.utf8_error().valid_up_to(),
        })
    }

    /// The entries of a directory without `.` and `..`, in the order they are stored.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve); [`FsError::NotADirectory`]. Damage of one directory
    /// block is an item of the iterator, which then goes on with the next block.
    pub fn read_dir(&self, path: impl ImagePath) -> Result<ReadDir> {
        self.resolve(path)?.read_dir()
    }

    /// Attributes of the inode that `path` means, links followed.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn metadata(&self, path: impl ImagePath) -> Result<Metadata> {
        Ok(self.resolve(path)?.metadata())
    }

    /// Attributes of the inode that `path` names; of the link itself if it is one.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn symlink_metadata(&self, path: impl ImagePath) -> Result<Metadata> {
        Ok(self.resolve_link(path)?.metadata())
    }

    /// The target of a symbolic link, as stored.
    ///
    /// # Errors
    ///
    /// Those of [`resolve_link`](Self::resolve_link); [`FsError::NotASymlink`];
    /// [`FsError::Encrypted`].
    pub fn read_link(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        self.resolve_link(path)?.read_link()
    }

    /// Whether `path` leads to something, links followed. A dangling link does not.
    ///
    /// # Errors
    ///
    /// Damage and device errors on the way: they leave the question open.
    pub fn exists(&self, path: impl ImagePath) -> Result<bool> {
        match self.resolve(path) {
            Ok(_) => Ok(true),
            Err(error) if error.family() == crate::Family::Refusal => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The absolute path of what `path` means: no symbolic links, no `.` or `..`.
    ///
    /// In a case-folding directory the spelling is the one given, not the one stored.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn canonicalize(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        resolve(self, path.image_bytes(), Last::Follow).map(|found| found.path())
    }

    /// Walks the tree below `path` (a last symbolic link is not followed, nor is any inside),
    /// starting with `path` itself at depth 0, every directory before its contents.
    ///
    /// # Errors
    ///
    /// Those of [`resolve_link`](Self::resolve_link) for the start. Whatever goes wrong further down
    /// is an item of the walk.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let device = extant_block::FileDevice::open_read_only("disk.img")?;
    /// let fs = extant::MountOptions::new().open(device)?;
    /// for entry in fs.walk("/usr")?.sorted(true) {
    ///     match entry {
    ///         Ok(entry) => println!("{}", String::from_utf8_lossy(entry.path())),
    ///         Err(error) => eprintln!("{error}"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn walk(&self, path: impl ImagePath) -> Result<Walk> {
        let path = path.image_bytes();
        let start = self.resolve_link(path)?;
        Ok(Walk::new(path, start))
    }
}

/// # Permissions
impl Fs {
    /// The inode at `path`, symbolic links followed, if `who` may look names up in every directory
    /// on the way.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve); [`FsError::AccessDenied`] names the directory that does not
    /// let pass.
    pub fn resolve_for(&self, who: &Credentials, path: impl ImagePath) -> Result<Inode> {
        self.resolve_checked(path.image_bytes(), |dir| dir.check_access(who, Access::EXECUTE))
    }
}
