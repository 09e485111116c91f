//! extant in process.

use std::path::Path;

use anyhow::Result;
use extant::{Fallocate, Fs, FsError, Inode, MountOptions, NewInode};
use extant_block::FileDevice;

use super::BACKGROUND_BYTES;
use super::side::{Dir, Handle, Volume};

/// A mounted image.
pub struct Library {
    fs: Fs,
}

impl Library {
    /// Mounts `image` for reading and writing, with `cache_bytes` for the contents of files, and with
    /// threads in the `background` or none.
    ///
    /// # Errors
    ///
    /// Those of opening and mounting.
    pub fn mount(image: &Path, cache_bytes: u64, background: bool) -> Result<Library> {
        let device = FileDevice::open_read_write(image)?;
        Ok(Library {
            fs: MountOptions::new()
                .read_only(false)
                .data_cache_bytes(cache_bytes)
                .background(background)
                .dirty_background_bytes(if background { BACKGROUND_BYTES } else { u64::MAX })
                .open(device)?,
        })
    }

    /// Mounts `image` as everybody does, but for the size of the cache.
    ///
    /// # Errors
    ///
    /// As [`mount`](Self::mount).
    pub fn mount_by_default(image: &Path, cache_bytes: u64) -> Result<Library> {
        Library::mount_with(image, MountOptions::new(), cache_bytes)
    }

    /// Mounts `image` with `options`, and a cache of some size.
    ///
    /// # Errors
    ///
    /// As [`mount`](Self::mount).
    pub fn mount_with(image: &Path, options: MountOptions, cache_bytes: u64) -> Result<Library> {
        let device = FileDevice::open_read_write(image)?;
        let options = options.read_only(false).data_cache_bytes(cache_bytes);
        Ok(Library { fs: options.open(device)? })
    }

    /// The file system.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }
}

impl Volume for Library {
    type Dir = LibraryDir;

    fn dir(&self, name: &str) -> Result<LibraryDir> {
        let root = self.fs.root()?;
        match root.mkdir(name, &NewInode::root(0o755)) {
            Ok(dir) => Ok(LibraryDir(dir)),
            Err(FsError::Exists { .. }) => Ok(LibraryDir(root.lookup(name)?)),
            Err(error) => Err(error.into()),
        }
    }

    fn zeroing_flushes(&self) -> Option<u64> {
        self.fs.io_stats().map(|stats| stats.zero_flushes)
    }

    fn close(self) -> Result<()> {
        Ok(self.fs.unmount()?)
    }
}

/// A directory.
pub struct LibraryDir(Inode);

impl Dir for LibraryDir {
    type File = LibraryFile;

    fn create(&self, name: &str) -> Result<LibraryFile> {
        Ok(LibraryFile(self.0.create(name, &NewInode::root(0o644))?))
    }

    fn open(&self, name: &str) -> Result<LibraryFile> {
        Ok(LibraryFile(self.0.lookup(name)?))
    }

    fn open_direct(&self, name: &str) -> Result<LibraryFile> {
        self.open(name)
    }

    fn open_to_read(&self, name: &str) -> Result<LibraryFile> {
        self.open(name)
    }

    fn size(&self, name: &str) -> Result<Option<u64>> {
        match self.0.stat(name) {
            Ok(metadata) => Ok(Some(metadata.size)),
            Err(FsError::NotFound { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn unlink(&self, name: &str) -> Result<()> {
        Ok(self.0.unlink(name)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(self.0.sync()?)
    }
}

/// A file.
pub struct LibraryFile(Inode);

impl Handle for LibraryFile {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
        Ok(self.0.read_at(out, at)?)
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        Ok(self.0.write_at(bytes, at)?)
    }

    fn write_direct(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        Ok(self.0.write_direct_at(bytes, at)?)
    }

    fn set_len(&mut self, len: u64) -> Result<()> {
        Ok(self.0.truncate(len)?)
    }

    fn allocate(&mut self, at: u64, len: u64) -> Result<()> {
        Ok(self.0.fallocate(Fallocate::Allocate { keep_size: false }, at..at + len)?)
    }

    fn forget(&mut self) -> Result<()> {
        self.0.fs().drop_cached();
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(self.0.sync()?)
    }

    fn sync_data(&mut self) -> Result<()> {
        Ok(self.0.sync_data()?)
    }
}
