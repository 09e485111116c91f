//! The free blocks of a group, for queries.

use std::ops::Range;

use extant_base::GroupIndex;

use super::blocks::run_of;
use super::entry::Needs;
use super::group::{Blocks, GroupState, damaged};
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
    match state.load_blocks(volume, flex::own_clusters(volume, group), true)? {
        Some(blocks) => in_blocks(volume, group, &blocks),
        None => Err(damaged(group, "its bitmap is busy")),
    }
}

impl Allocator {
    /// Returns the free runs of a group on a writable mount, as they would be after a commit of the
    /// running transaction.
    pub(crate) fn free_runs(&self, volume: &Volume, group: GroupIndex) -> Result<Vec<Range<u64>>> {
        let mut locked = self.enter(volume, group, Needs::BLOCKS)?;
        in_blocks(volume, group, locked.state()?.blocks_mut()?)
    }
}

fn in_blocks(volume: &Volume, group: GroupIndex, blocks: &Blocks) -> Result<Vec<Range<u64>>> {
    let runs = blocks.stored_runs().map(|range| {
        let run = run_of(volume, group, range)?;
        Ok(run.start.0..run.start.0 + u64::from(run.len))
    });
    runs.collect()
}
