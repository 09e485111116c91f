//! Fast path for allocating a few blocks behind the last ones of a file, as programs do that
//! preallocate while they write.
//!
//! The last extent is made longer, without a search in the tree or in a bitmap. Everything else is
//! left to the general path.

use std::ops::Range;

use extant_base::{BlockCount, FsBlock};
use extant_format::extent::{ExtentState, UNWRITTEN_LEN_MAX};

use super::fallocate::Change;
use crate::alloc::{Extended, Run};
use crate::error::Result;
use crate::map;

/// Credits: the inode, its quotas and the superblock; bitmap and descriptor of one group; the leaf.
const CREDITS: u32 = 8 + 2 + 1;

/// Size in blocks from which a file does not move to another group when its own is busy.
const SETTLED: u64 = 16;

impl Change<'_> {
    /// Allocates `blocks` by making the last extent of the file longer, and raises the size to
    /// `grow_to`. Returns false, with nothing changed, if the general path is needed. The caller
    /// holds writeback of the file off.
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
        // These blocks are delayed: space is promised for them.
        if self.file().map.read().next(end).is_some() {
            return Ok(false);
        }
        if crate::volume::blocks_left(self.volume(), self.node())? < blocks.end - end {
            return Ok(false);
        }
        // The length is at most that of an extent.
        let by = (blocks.end - end) as u32;
        let device_end = tail.extent.device_start.0 + u64::from(tail.extent.len.0);
        let mut txn = self.begin(CREDITS)?;
        let run = Run { start: FsBlock(device_end), len: by };
        // A small file can continue in another group; a larger one would be fragmented.
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
