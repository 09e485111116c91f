//! The free blocks of a group, for queries.

use std::ops::Range;

use extant_base::GroupIndex;

use super::blocks::run_of;
use super::group::{Blocks, GroupState};
use super::{Allocator, flex};
use crate::error::Result;
use crate::volume::Volume;

/// Runs of free blocks of a group of a mount that cannot be written to, in ascending order.
///
/// # Errors
///
/// Damage of the descriptor or the bitmap, device errors.
pub(crate) fn free_runs(volume: &Volume, group: GroupIndex) -> Result<Vec<Range<u64>>> {
    let state = GroupState::load(volume, group)?;
    let blocks = state.load_blocks(volume, flex::own_clusters(volume, group))?;
    in_blocks(volume, group, &blocks)
}

impl Allocator {
    /// Returns the free runs of a group on a writable mount, as they would be after a commit of the
    /// running transaction.
    pub(crate) fn free_runs(&self, volume: &Volume, group: GroupIndex) -> Result<Vec<Range<u64>>> {
        let mut locked = self.lock(volume, group)?;
        let (place, state) = locked.parts()?;
        in_blocks(volume, group, self.blocks_of(volume, place.0, state)?)
    }
}

fn in_blocks(volume: &Volume, group: GroupIndex, blocks: &Blocks) -> Result<Vec<Range<u64>>> {
    let runs = blocks.stored_runs().map(|range| {
        let run = run_of(volume, group, range)?;
        Ok(run.start.0..run.start.0 + u64::from(run.len))
    });
    runs.collect()
}
