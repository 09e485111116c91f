//! The path layer: the counterpart of `std::fs` inside an image.
//!
//! # Place
//!
//! Everything here is a shorthand for operations on [`Inode`](crate::Inode) handles. This module
//! does not know the format.
//!
//! # Paths
//!
//! A path is bytes, so that names need not be UTF-8; every function takes an
//! [`ImagePath`](crate::ImagePath): `"/etc/passwd"`, `b"/caf\xe9"`, a `std::path::Path`. Paths are
//! separated by `/` and start at the root of the image with or without a leading one. `.` and `..`
//! work as on Linux; `..` of the root is the root. An absolute symbolic link starts at the root *of
//! the image*: no path leads out of it.

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
    /// Returns the inode at `path`, following every symbolic link.
    ///
    /// # Errors
    ///
    /// - [`FsError::NotFound`]: a name of the path does not exist. Also for an empty path.
    /// - [`FsError::NotADirectory`]: a name before the last is not a directory, or the path ends in
    ///   `/` and its last name is not one.
    /// - [`FsError::SymlinkLoop`]: more than [`SYMLINKS_MAX`](crate::SYMLINKS_MAX) symbolic links.
    /// - [`FsError::NameTooLong`], damage and device errors of the directories on the way.
    pub fn resolve(&self, path: impl ImagePath) -> Result<Inode> {
        resolve(self, path.image_bytes(), Last::Follow).map(|found| found.inode)
    }

    /// Returns the inode at `path` like [`resolve`](Self::resolve), but does not follow a symbolic
    /// link in the last place (unless the path ends in `/`).
    pub fn resolve_link(&self, path: impl ImagePath) -> Result<Inode> {
        resolve(self, path.image_bytes(), Last::Keep).map(|found| found.inode)
    }

    /// Resolves a path like [`resolve`](Self::resolve), calling `may_search` for each directory on
    /// the way.
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
        let file = File::new(self.resolve(path)?)?;
        file.inode().check_seal()?;
        Ok(file)
    }

    /// Returns options for opening a file, also for writing.
    pub fn open_options(&self) -> OpenOptions {
        OpenOptions::new(self.clone())
    }

    /// Replaces the contents of a file with `bytes`, creating the file if needed (owned by root,
    /// 0644). Not durable before [`sync`](Self::sync).
    ///
    /// # Errors
    ///
    /// Those of [`OpenOptions::open`] and [`Inode::write_at`]; the file may be empty or hold a part
    /// of the bytes then.
    pub fn write(&self, path: impl ImagePath, bytes: impl AsRef<[u8]>) -> Result<()> {
        let mut file = self.open_options().write(true).create(true).truncate(true).open(path)?;
        let mut bytes = bytes.as_ref();
        while !bytes.is_empty() {
            let written = file.write_next(bytes)?;
            bytes = bytes.get(written..).unwrap_or(&[]);
        }
        Ok(())
    }

    /// Reads the whole contents of a regular file.
    ///
    /// # Errors
    ///
    /// Those of [`open`](Self::open) and [`File::read_at`]; [`FsError::TooLarge`] above the mount's
    /// [`read_limit`](crate::MountOptions::read_limit), because a hostile image can claim any size
    /// and holes cost it nothing.
    pub fn read(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        self.open(path)?.inode().read_all()
    }

    /// Reads the whole contents of a regular file as a string.
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

    /// Returns an iterator over the entries of a directory without `.` and `..`, in stored order.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve); [`FsError::NotADirectory`]. Damage of one directory
    /// block is an item of the iterator, which then continues with the next block.
    pub fn read_dir(&self, path: impl ImagePath) -> Result<ReadDir> {
        let dir = self.resolve(path)?;
        let entries = dir.read_dir()?;
        dir.was_read();
        Ok(entries)
    }

    /// Returns the attributes of the inode at `path`, following symbolic links.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn metadata(&self, path: impl ImagePath) -> Result<Metadata> {
        Ok(self.resolve(path)?.metadata())
    }

    /// Returns the attributes of the inode at `path`, without following a symbolic link in the last
    /// place.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn symlink_metadata(&self, path: impl ImagePath) -> Result<Metadata> {
        Ok(self.resolve_link(path)?.metadata())
    }

    /// Returns the target of a symbolic link, as stored.
    ///
    /// # Errors
    ///
    /// Those of [`resolve_link`](Self::resolve_link); [`FsError::NotASymlink`];
    /// [`FsError::Encrypted`].
    pub fn read_link(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        let link = self.resolve_link(path)?;
        let target = link.read_link()?;
        link.was_read();
        Ok(target)
    }

    /// Returns whether `path` leads to an inode, following symbolic links. A dangling link does
    /// not.
    ///
    /// # Errors
    ///
    /// Damage and device errors on the way, which leave the question open.
    pub fn exists(&self, path: impl ImagePath) -> Result<bool> {
        match self.resolve(path) {
            Ok(_) => Ok(true),
            Err(error) if error.family() == crate::Family::Refusal => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Returns the absolute path of the inode at `path`, without symbolic links, `.` or `..`.
    ///
    /// In a case-folding directory the spelling is the given one, not the stored one.
    ///
    /// # Errors
    ///
    /// Those of [`resolve`](Self::resolve).
    pub fn canonicalize(&self, path: impl ImagePath) -> Result<Vec<u8>> {
        resolve(self, path.image_bytes(), Last::Follow).map(|found| found.path())
    }

    /// Walks the tree below `path`, starting with `path` itself at depth 0, every directory before
    /// its contents. Symbolic links are not followed.
    ///
    /// # Errors
    ///
    /// Those of [`resolve_link`](Self::resolve_link) for the start. Errors further down are items
    /// of the walk.
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
    /// Returns the inode at `path`, following symbolic links, if `who` may search every directory
    /// on the way.
    ///
    /// # Errors
    ///
    /// As [`resolve`](Self::resolve); [`FsError::AccessDenied`] names the directory that denies the
    /// search.
    pub fn resolve_for(&self, who: &Credentials, path: impl ImagePath) -> Result<Inode> {
        self.resolve_checked(path.image_bytes(), |dir| dir.check_access(who, Access::EXECUTE))
    }
}
