//! FITRIM: telling the device which parts of it hold nothing.

use std::ops::Range;

use extant_base::FsBlock;

use crate::error::{FsError, Result};
use crate::mount::Fs;

impl Fs {
    /// Discards free space: every run of free blocks of at least `min_len` bytes that lies in
    /// `range`, in bytes of the device; the range is cut at the end of the file system, and only
    /// whole blocks inside it count. Returns how many bytes were discarded. What was freed and is
    /// not committed stays: [`sync`](Self::sync) first to have that as well.
    ///
    /// Everything else goes on meanwhile. A run never lies in two block groups, so what is longer
    /// than a group is discarded in pieces.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`]: the range starts behind the file system or is shorter than a
    /// block, or `min_len` is more than a block group has. [`FsError::ReadOnly`]. Device errors;
    /// one that says "unsupported" when the device cannot discard.
    pub fn trim(&self, range: Range<u64>, min_len: u64) -> Result<u64> {
        let volume = self.volume();
        let writer = volume.writer()?;
        writer.supers().check_writable()?;
        let superblock = volume.superblock();
        let (log2, block_bytes) = (volume.block_size().log2(), volume.block_size().len() as u64);
        let group_blocks = u64::from(superblock.clusters_per_group) << superblock.cluster_bits();
        let refuse = |what| Err(FsError::InvalidArgument { what });
        if range.end.saturating_sub(range.start) < block_bytes {
            return refuse("range: shorter than a block");
        }
        if range.start >> log2 >= superblock.blocks_count {
            return refuse("range: starts behind the file system");
        }
        let min_blocks = min_len.div_ceil(block_bytes);
        if min_blocks > group_blocks {
            return refuse("min_len: more than a block group has");
        }
        let blocks = range.start.div_ceil(block_bytes)..range.end >> log2;
        let mut discard = |start: FsBlock, len: u64| {
            let past = FsError::InvalidArgument { what: "block past the largest device" };
            let at = volume.block_size().offset_of(start).ok_or(past)?;
            // At most a group.
            volume.device().discard(at, len << log2).map_err(|error| volume.read_error(error))
        };
        let trimmed = writer.alloc().trim(volume, blocks, min_blocks, &mut discard)?;
        Ok(trimmed << log2)
    }
}
