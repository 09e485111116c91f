//! Telling the device which parts of it hold nothing: on request (FITRIM), and what was freed.

use std::ops::Range;
use std::time::Duration;

use extant_base::FsBlock;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::volume::Volume;

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

    /// Discards what was freed and is durably free, if the mount is to do that; for at most about
    /// `most`. What fails is counted and left.
    pub(crate) fn discard_freed(&self, most: Option<Duration>) {
        let volume = self.volume();
        let Ok(writer) = volume.writer() else { return };
        let clock = writer.clock();
        let until = most.map(|most| clock.monotonic().saturating_add(most));
        // Nothing is written after a cut, nor when it is not known what is durable.
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

/// Discards blocks: at most a group.
fn discard(volume: &Volume, start: FsBlock, len: u64) -> Result<()> {
    let past = FsError::InvalidArgument { what: "block past the largest device" };
    let at = volume.block_size().offset_of(start).ok_or(past)?;
    let bytes = len << volume.block_size().log2();
    volume.device().discard(at, bytes).map_err(|error| volume.read_error(error))
}
