//! Space behind the last blocks of a file, a little at a time: what programs do that allocate as they go.
//!
//! One record of the map gets longer, without a search in the tree or in a bitmap. What is not so simple
//! is left to the general way.

use std::ops::Range;

use extant_base::{BlockCount, FsBlock};
use extant_format::extent::{ExtentState, UNWRITTEN_LEN_MAX};

use super::fallocate::Change;
use crate::alloc::{Extended, Run};
use crate::error::Result;
use crate::map;

/// The inode, its quotas and the superblock; bitmap and descriptor of one group; the leaf.
const CREDITS: u32 = 8 + 2 + 1;

/// A file with so many blocks stays where it is.
const SETTLED: u64 = 16;

impl Change<'_> {
    /// Gives `blocks` space by making the last extent of the file longer, and raises the size to `grow_to`.
    /// `false`, and nothing has changed: that is not how it can be done. The caller keeps writeback out.
    pub(super) fn append(&self, blocks: &Range<u64>, grow_to: Option<u64>) -> Result<bool> {
        if self.ratio() != 1 {
            return Ok(false);
        }
        let Some(tail) = map::tail(self.volume(), self.node()) else { return Ok(false) };
        let (start, end) =
            (u64::from(tail.extent.file_start.0), u64::from(tail.extent.file_end().0));
        let longest = start + u64::from(UNWRITTEN_LEN_MAX);
        let is_behind = (start..=end).contains(&blocks.start) && blocks.end > end;
        if !is_behind || blocks.end > longest || tail.extent.state != ExtentState::Unwritten {
            return Ok(false);
        }
        // Space is promised for them.
        if self.file().map.read().next(end).is_some() {
            return Ok(false);
        }
        if crate::volume::blocks_left(self.volume(), self.node())? < blocks.end - end {
            return Ok(false);
        }
        // At most as long as an extent.
        let by = (blocks.end - end) as u32;
        let device_end = tail.extent.device_start.0 + u64::from(tail.extent.len.0);
        let mut txn = self.begin(CREDITS)?;
        let run = Run { start: FsBlock(device_end), len: by };
        // A small file can go on elsewhere; a larger one would be cut into pieces.
        match txn.extend_here(self.node(), run, blocks.start >= SETTLED)? {
            Extended::Yes => {}
            Extended::No => return Ok(false),
            Extended::Busy => {
                self.is_crowded.set(true);
                return Ok(false);
            }
        }
        let sectors = txn.sectors_of(run);
        let reached = (blocks.end << self.bits()).min(grow_to.unwrap_or(0));
        if reached > self.file().size() {
            self.file().set_size(reached);
        }
        let stored = self.storable_size();
        self.mapper.prepare_size(&mut txn, stored).map_err(|error| txn.fail(error))?;
        self.node().change_map(|| {
            map::lengthen(&mut txn, self.node(), &tail, BlockCount(by), |data| {
                data.record.sectors += sectors;
                data.record.size = data.record.size.max(stored);
            })
        })?;
        Ok(true)
    }
}
