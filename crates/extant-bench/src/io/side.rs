//! What every contender can do: files in a directory of a mounted file system.
//!
//! The loops that are measured are generic over these traits, so that no contender pays for a
//! call through a pointer.

use anyhow::{Context, Result, ensure};

/// An open file.
pub trait Handle {
    /// Reads at a byte offset; fewer bytes than asked for only at the end of the file.
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize>;
    /// Writes at a byte offset and returns how much was written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize>;
    /// Writes past the cache, whole blocks of 4 KiB from memory at a multiple of that.
    fn write_direct(&mut self, at: u64, bytes: &[u8]) -> Result<usize>;
    /// Sets the size in bytes.
    fn set_len(&mut self, len: u64) -> Result<()>;
    /// Gives a range space and raises the size over it (`fallocate`).
    fn allocate(&mut self, at: u64, len: u64) -> Result<()>;
    /// Its contents, all clean, leave the cache. Where the cache has memory of its own it keeps that.
    fn forget(&mut self) -> Result<()>;
    /// Makes contents and attributes durable (`fsync`).
    fn sync(&mut self) -> Result<()>;
    /// Makes the contents durable (`fdatasync`).
    fn sync_data(&mut self) -> Result<()>;
}

/// An open directory.
pub trait Dir: Sync {
    /// Its files.
    type File: Handle;
    /// Makes a file that must not exist, open for reading and writing.
    fn create(&self, name: &str) -> Result<Self::File>;
    /// Opens a file for reading and writing.
    fn open(&self, name: &str) -> Result<Self::File>;
    /// Opens a file for writing past the cache.
    fn open_direct(&self, name: &str) -> Result<Self::File>;
    /// Opens a file for reading only, where there is a difference.
    fn open_to_read(&self, name: &str) -> Result<Self::File>;
    /// Size of a file in bytes, by name; `None` where there is none.
    fn size(&self, name: &str) -> Result<Option<u64>>;
    /// Removes a file.
    fn unlink(&self, name: &str) -> Result<()>;
    /// Makes the names durable.
    fn sync(&self) -> Result<()>;
}

/// A mounted file system.
pub trait Volume {
    /// Its directories.
    type Dir: Dir;
    /// Opens a directory below the root, made if it is missing.
    fn dir(&self, name: &str) -> Result<Self::Dir>;
    /// Writes that zeroing had to wait for, where that is counted.
    fn zeroing_flushes(&self) -> Option<u64>;
    /// Unmounts. Directories and files are gone by then.
    fn close(self) -> Result<()>;
}

/// Plain memory in the place of a file: the copy that no cache can avoid.
///
/// Untouched memory is as cold as the pages of a new file: the system provides it at the first
/// write.
pub struct Region {
    bytes: Vec<u8>,
    /// A hole: reading is filling with zeros.
    is_hole: bool,
}

impl Region {
    /// Memory of `len` bytes that nobody has touched.
    pub fn untouched(len: usize) -> Region {
        Region { bytes: vec![0; len], is_hole: false }
    }

    /// A hole of any length.
    pub fn hole() -> Region {
        Region { bytes: Vec::new(), is_hole: true }
    }

    fn range(&self, at: u64, len: usize) -> Result<std::ops::Range<usize>> {
        let start = usize::try_from(at)?;
        let end = start.checked_add(len).context("beyond memory")?;
        ensure!(end <= self.bytes.len(), "{start}..{end} of {} bytes", self.bytes.len());
        Ok(start..end)
    }
}

impl Handle for Region {
    fn read(&mut self, at: u64, out: &mut [u8]) -> Result<usize> {
        if self.is_hole {
            out.fill(0);
        } else {
            let range = self.range(at, out.len())?;
            out.copy_from_slice(&self.bytes[range]);
        }
        Ok(out.len())
    }

    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<usize> {
        let range = self.range(at, bytes.len())?;
        self.bytes[range].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn write_direct(&mut self, _at: u64, _bytes: &[u8]) -> Result<usize> {
        anyhow::bail!("memory has no cache")
    }

    fn set_len(&mut self, _len: u64) -> Result<()> {
        anyhow::bail!("memory keeps its size")
    }

    fn allocate(&mut self, _at: u64, _len: u64) -> Result<()> {
        anyhow::bail!("memory keeps its size")
    }

    fn forget(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Ok(())
    }

    fn sync_data(&mut self) -> Result<()> {
        Ok(())
    }
}
