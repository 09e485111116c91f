//! Taking the clusters directly behind those that a file has, without a search.

use std::sync::atomic::Ordering;

use extant_base::sabotage;
use extant_format::group::GroupFlags;

use super::group::Dirty;
use super::promise::Claimant;
use super::{Allocator, Counter, Half, Purpose, Right, Run};
use crate::editor::Editor;
use crate::error::Result;

/// The outcome of [`Allocator::extend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Extended {
    /// The clusters are taken.
    Yes,
    /// Nothing is taken: the clusters are not all free, lie in a window, are kept from this caller,
    /// or their group is not in memory.
    No,
    /// Nothing is taken: another thread has the lock of their group.
    Busy,
}

impl Allocator {
    /// Takes exactly these blocks, whole clusters, for data of a file, within the limits of
    /// `right`.
    ///
    /// The cost grows with the number of clusters. `waits` says whether to wait for the lock of
    /// their group.
    ///
    /// # Errors
    ///
    /// Those of the journal.
    pub(crate) fn extend(
        &self,
        txn: &mut Editor<'_>,
        run: Run,
        right: Right,
        waits: bool,
    ) -> Result<Extended> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let Some((group, offset)) = superblock.group_of_block(run.start) else {
            return Ok(Extended::No);
        };
        let bits = superblock.cluster_bits();
        let (first, count) = (offset >> bits, run.len >> bits);
        let cell = self.cell(group)?;
        if cell.is_bad(Half::Blocks) || count << bits != run.len {
            return Ok(Extended::No);
        }
        // Only groups in memory are extended into; a search loads the others.
        let flex = self.flex(volume, group)?;
        let mut ready = Dirty::default();
        let (mut locked, here) = loop {
            let guard = match cell.try_lock() {
                Some(guard) => guard,
                None => {
                    self.tally.add(Counter::Busy, 1);
                    if !waits {
                        return Ok(Extended::Busy);
                    }
                    cell.lock()
                }
            };
            let mut locked = self.locked(cell, flex, guard);
            let Some(state) = locked.guard.as_deref_mut() else { return Ok(Extended::No) };
            let Some(blocks) = &state.blocks else { return Ok(Extended::No) };
            let mut here = blocks.open_run(first, count);
            if sabotage("extant.alloc.extends-into-others") {
                here = first..first.saturating_add(count).min(blocks.len());
            }
            if here.end - here.start < count {
                return Ok(Extended::No);
            }
            if state.is_claimed(Half::Blocks) {
                break (locked, here);
            }
            if ready.has(Half::Blocks) {
                state.ready = ready;
                break (locked, here);
            }
            // The first change of the group in this transaction.
            let bitmap = state.descriptor.block_bitmap;
            drop(locked);
            match self.ready_blocks(volume, group, bitmap) {
                Ok(brought) => ready = brought,
                // The search that follows meets the error, and looks elsewhere.
                Err(_) => return Ok(Extended::No),
            }
        };
        let state = locked.state()?;
        let claimant = Claimant::Purpose(Purpose::Data, right);
        if self.space.claim(claimant, count, count).is_none() {
            return Ok(Extended::No);
        }
        if let Err(error) = self.touch(txn, state, Half::Blocks) {
            self.space.unclaim(count);
            return Err(error);
        }
        let Some(blocks) = &mut state.blocks else { return Ok(Extended::No) };
        blocks.take(here);
        self.space.take(count);
        state.descriptor.free_clusters = state.descriptor.free_clusters.saturating_sub(count);
        state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        flex.clusters.fetch_sub(i64::from(count), Ordering::Relaxed);
        self.tally.add(Counter::Extended, 1);
        self.tally.add(Counter::Clusters, u64::from(count));
        Ok(Extended::Yes)
    }
}
