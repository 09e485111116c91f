//! Discarding: all free space on request (FITRIM), and freed blocks.

use std::ops::Range;
use std::time::Duration;

use extant_base::FsBlock;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::volume::Volume;

impl Fs {
    /// Discards free space: every run of free blocks of at least `min_len` bytes that lies in
    /// `range`, in bytes of the device; the range is cut at the end of the file system, and only
    /// whole blocks inside it count. Returns the number of bytes discarded. Blocks whose freeing is
    /// not committed are left out: [`sync`](Self::sync) first to include them.
    ///
    /// Other operations continue meanwhile. Runs are discarded by block group, so a longer one is
    /// discarded in pieces.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`]: the range starts behind the file system or is shorter than a block, or `min_len` is more than a block group has. [`FsError::ReadOnly`]. Device errors; one of kind "unsupported" when the device has no discards.
    pub fn trim(&self, range: Range<u64>, min_len: u64) -> Result<u64> {
        let volume = self.volume();
        let writer = volume.writer()?;
        let _inside = writer.enter();
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
        let mut discard = |start, len| discard(volume, start, len);
        let trimmed = writer.alloc().trim(volume, blocks, min_blocks, &mut discard)?;
        Ok(trimmed << log2)
    }

    /// Discards freed blocks whose freeing is durable, if the mount has the option `discard`; for
    /// at most about `most`. Failures are counted and not repeated.
    pub(crate) fn discard_freed(&self, most: Option<Duration>) {
        let volume = self.volume();
        let Ok(writer) = volume.writer() else { return };
        let clock = writer.clock();
        let until = most.map(|most| clock.monotonic().saturating_add(most));
        // Nothing is written after a shutdown, nor when the durable state is unknown.
        let goes_on = || {
            !writer.is_shut_down()
                && writer.check_running().is_ok()
                && until.is_none_or(|until| clock.monotonic() <= until)
        };
        writer
            .alloc()
            .discard_spent(volume, goes_on, &mut |start, len| discard(volume, start, len));
    }
}

/// Discards a run of blocks, at most a group.
fn discard(volume: &Volume, start: FsBlock, len: u64) -> Result<()> {
    let past = FsError::InvalidArgument { what: "block past the largest device" };
    let at = volume.block_size().offset_of(start).ok_or(past)?;
    let bytes = len << volume.block_size().log2();
    volume.device().discard(at, bytes).map_err(|error| volume.read_error(error))
}
