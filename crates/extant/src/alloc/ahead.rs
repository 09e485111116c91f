//! Reading bitmaps ahead of a search that moves on from group to group.
//!
//! A search that found nothing in a group goes on to others. When it comes to one whose bitmap has
//! to be read, the bitmaps of the next such groups are read with it, in one batch: each would cost a
//! wait of its own otherwise.
//!
//! # Rules
//!
//! - H1. A batch has at most [`GROUPS_MAX`] bitmaps, and [`VISITS_MAX`] groups are considered for
//!   it. The first group of a search is read alone: most searches end there.
//! - H2. Only what the search would read is read: no bitmap that was never written
//!   (`BLOCK_UNINIT`), none of a group that is known to have too little, none whose descriptor is
//!   not in memory.
//! - H3. It is a hint. Errors are met, and reported, by whoever needs the bitmap; what another
//!   thread reads at the time is left to it.

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::GroupFlags;

use super::stats::Counter;
use super::window::Look;
use super::{Allocator, Half};
use crate::volume::Volume;

/// Largest number of bitmaps read together.
pub(super) const GROUPS_MAX: usize = 16;

/// Number of groups that are considered for a batch.
const VISITS_MAX: usize = 64;

impl Allocator {
    /// Reads the bitmap of the group that a search comes to, the first of `visits`, and those of the
    /// next groups that may have `needed` clusters for `look`, unless the first one needs no reading.
    pub(super) fn read_ahead(
        &self,
        volume: &Volume,
        visits: impl Iterator<Item = u32>,
        needed: u32,
        look: Look,
    ) {
        let mut visits = visits.take(VISITS_MAX).map(GroupIndex);
        let to_read = |group| self.bitmap_to_read(volume, group, needed, look);
        let first = visits.next().and_then(to_read);
        let Some(first) = first.filter(|bitmap| volume.slot(*bitmap).is_unread()) else { return };
        let others = visits.filter_map(to_read);
        let bitmaps: Vec<FsBlock> = std::iter::once(first).chain(others).take(GROUPS_MAX).collect();
        let count = volume.read_ahead(bitmaps);
        self.tally.add(Counter::ReadAhead, count);
    }

    /// Returns the bitmap of a group that has to be read to search the group (H2).
    fn bitmap_to_read(
        &self,
        volume: &Volume,
        group: GroupIndex,
        needed: u32,
        look: Look,
    ) -> Option<FsBlock> {
        let cell = self.cell(group).ok()?;
        let (free, longest) = cell.hints(look);
        if cell.is_bad(Half::Blocks) || free.min(longest) < needed {
            return None;
        }
        let known = {
            let guard = cell.try_lock()?;
            match guard.as_deref() {
                Some(state) if state.blocks.is_some() => return None,
                state => state.map(|state| state.descriptor),
            }
        };
        let descriptor = match known {
            Some(descriptor) => descriptor,
            None => {
                volume.block_in_memory(volume.descriptor_place(group).ok()?)?;
                volume.believed_group(group).ok()?
            }
        };
        let is_stored =
            !(volume.has_uninit_groups() && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT));
        (is_stored && descriptor.free_clusters >= needed).then_some(descriptor.block_bitmap)
    }
}
