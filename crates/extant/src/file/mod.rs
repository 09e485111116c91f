//! Contents of regular files: reading and writing through the page cache, sizes, allocation.
//!
//! # Place
//!
//! Below: `extant-iomap` (the page cache), `map` and `alloc`. Above: the path layer and front ends.
//!
//! # Shape
//!
//! ```text
//! io       read, write, append           resize   truncate, both ways
//! flush    sync, the list of dirty files, limits
//! mapper   what is behind a range, where delayed data goes, how it gets into the map
//! state    both sizes, times to store    delayed  blocks without an address yet
//! ```

mod delayed;
mod flush;
mod io;
mod mapper;
mod resize;
mod state;

use std::ops::Range;

use crate::error::{FsError, Result};
use crate::inode::Inode;
pub(crate) use flush::DirtyFiles;
pub(crate) use mapper::FileMapper;
pub(crate) use resize::resize;
pub(crate) use state::{FileSlot, FileState};

/// What [`Inode::fallocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fallocate {
    /// Gives every hole space that reads as zeros.
    Allocate {
        /// The size stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// Takes the space away; the range reads as zeros. The size stays.
    PunchHole,
    /// The range reads as zeros and has space, which is unwritten.
    ZeroRange {
        /// The size stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// The range reads as zeros and has space that is written, so that later writes change data
    /// only.
    WriteZeroes,
    /// Takes the range out: what is behind it moves to its start. Whole blocks (clusters).
    CollapseRange,
    /// Puts a hole there: what was there and behind moves up. Whole blocks (clusters).
    InsertRange,
    /// Gives the range space of its own; nothing is ever shared, so all there is to do is done.
    Unshare,
}

/// One run of [`Inode::fiemap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FiemapExtent {
    /// First byte of the file.
    pub logical: u64,
    /// First byte of the device; 0 when there is none.
    pub physical: u64,
    /// Bytes.
    pub len: u64,
    /// Allocated and reads as zeros.
    pub is_unwritten: bool,
    /// In memory only, no address yet.
    pub is_delayed: bool,
    /// In the inode itself: `physical` is the byte of the device where the inode has it.
    pub is_inline: bool,
    /// Nothing comes after it.
    pub is_last: bool,
}

const NOT_YET: FsError = FsError::InvalidArgument { what: "not there yet" };

impl Inode {
    /// Changes how a range of bytes is allocated.
    ///
    /// # Errors
    ///
    /// [`FsError::Unsupported`] for files without extents; invalid ranges; no space.
    pub fn fallocate(&self, _mode: Fallocate, _range: Range<u64>) -> Result<()> {
        Err(NOT_YET)
    }

    /// The first byte from `offset` on that is not in a hole; `None` when the rest is one.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors.
    pub fn seek_data(&self, _offset: u64) -> Result<Option<u64>> {
        Err(NOT_YET)
    }

    /// The first byte from `offset` on that is in a hole; the size when there is none. `None` when
    /// `offset` is at or behind the end.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors.
    pub fn seek_hole(&self, _offset: u64) -> Result<Option<u64>> {
        Err(NOT_YET)
    }

    /// Copies up to `len` bytes from byte `offset` to byte `to_offset` of `to`, and returns how many
    /// there were.
    ///
    /// # Errors
    ///
    /// Overlapping ranges of one file; those of reading and writing.
    pub fn copy_range(&self, _offset: u64, _to: &Inode, _to_offset: u64, _len: u64) -> Result<u64> {
        Err(NOT_YET)
    }

    /// How the bytes of `range` are stored, at most `most` runs. `sync` writes everything first.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors.
    pub fn fiemap(
        &self,
        _range: Range<u64>,
        _most: usize,
        _sync: bool,
    ) -> Result<Vec<FiemapExtent>> {
        Err(NOT_YET)
    }
}
