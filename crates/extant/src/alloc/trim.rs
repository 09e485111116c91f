//! Discarding free blocks (`fstrim`).
//!
//! # Rules
//!
//! - D1. Runs are taken in memory while the device discards them, so that no allocation gets blocks
//!   that the discard may still erase. No lock is held meanwhile.
//! - D2. Such runs count as free. An allocation that finds no room because of them waits until they
//!   are returned, which needs no lock that the waiter may hold. Until it has ended, no further runs
//!   are taken: a discard that goes round and round would otherwise have them again each time.
//! - D3. Runs of one group are taken at a time. Pinned blocks and those that wait for a commit are
//!   left alone.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, sabotage};
use extant_sync::{Condvar, Mutex, Rank};

use super::blocks::run_of;
use super::entry::Needs;
use super::{Allocator, Half};
use crate::error::{Family, Result};
use crate::volume::Volume;

/// Number of runs that are taken together.
const BATCH: usize = 64;

/// Who has batches of free blocks at the device, and who waits for them.
pub(super) struct Held {
    counts: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Default)]
struct Counts {
    /// Number of batches at the device.
    batches: u32,
    /// Number of allocations that found no room.
    hungry: u32,
}

/// An allocation that found no room: while it lives no batch begins (D2).
pub(super) struct Hungry<'h> {
    held: &'h Held,
}

impl Held {
    pub(super) fn new() -> Held {
        Held { counts: Mutex::new(Rank::Leaf, Counts::default()), changed: Condvar::new() }
    }

    pub(super) fn hunger(&self) -> Hungry<'_> {
        self.counts.lock().hungry += 1;
        Hungry { held: self }
    }

    #[cfg(test)]
    pub(super) fn is_anyone_hungry(&self) -> bool {
        self.counts.lock().hungry > 0
    }

    /// Waits until nobody looks for room.
    fn give_way(&self) {
        let mut counts = self.counts.lock();
        while counts.hungry > 0 {
            self.changed.wait(&mut counts);
        }
    }

    fn begin(&self) {
        self.counts.lock().batches += 1;
    }

    fn end(&self) {
        self.counts.lock().batches -= 1;
        self.changed.notify_all();
    }
}

impl Hungry<'_> {
    /// Waits until no batch is being discarded. Returns false if there was none.
    pub(super) fn wait(&self) -> bool {
        let mut counts = self.held.counts.lock();
        let waits = counts.batches > 0;
        while counts.batches > 0 {
            self.held.changed.wait(&mut counts);
        }
        waits
    }
}

impl Drop for Hungry<'_> {
    fn drop(&mut self) {
        self.held.counts.lock().hungry -= 1;
        self.held.changed.notify_all();
    }
}

impl Allocator {
    /// Calls `discard` with the first block and the length of every free run of at least `min_len`
    /// blocks inside `range`; with `bigalloc`, of whole clusters. A run that continues in the next
    /// group counts as two. Returns the number of blocks discarded.
    ///
    /// No handle is open, and none is opened. Damaged groups are passed over.
    ///
    /// # Errors
    ///
    /// Those of `discard`, which end the call, and device errors.
    pub(crate) fn trim(
        &self,
        volume: &Volume,
        range: Range<u64>,
        min_len: u64,
        discard: &mut dyn FnMut(FsBlock, u64) -> Result<()>,
    ) -> Result<u64> {
        let superblock = volume.superblock();
        let first = u64::from(superblock.first_data_block).max(range.start);
        let end = superblock.blocks_count.min(range.end);
        let bits = superblock.cluster_bits();
        let min_len = min_len.div_ceil(1 << bits).max(1);
        let mut trimmed = 0;
        let (Some((from, _)), Ok(min_len)) =
            (superblock.group_of_block(FsBlock(first)), u32::try_from(min_len))
        else {
            return Ok(0);
        };
        for group in (from.0..superblock.group_count).map(GroupIndex) {
            let Some(start) = superblock.group_first_block(group) else { break };
            if start.0 >= end || first >= end {
                break;
            }
            // Offsets in the group, which has fewer than 2^32 blocks. Only whole clusters count;
            // the last one of the file system may be short.
            let blocks = u64::from(superblock.group_blocks(group));
            let low = (first.saturating_sub(start.0)).div_ceil(1 << bits) as u32;
            let high = end - start.0;
            let high = match high >= blocks {
                true => superblock.group_clusters(group),
                false => (high >> bits) as u32,
            };
            trimmed += self.trim_group(volume, group, low..high, min_len, discard)?;
        }
        Ok(trimmed)
    }

    pub(super) fn trim_group(
        &self,
        volume: &Volume,
        group: GroupIndex,
        mut clusters: Range<u32>,
        min_len: u32,
        discard: &mut dyn FnMut(FsBlock, u64) -> Result<()>,
    ) -> Result<u64> {
        let cell = self.cell(group)?;
        let mut trimmed = 0;
        while clusters.start < clusters.end {
            if !sabotage("extant.alloc.discard-gives-no-way") {
                self.held.give_way();
            }
            if cell.is_bad(Half::Blocks) || cell.longest.load(Ordering::Acquire) < min_len {
                break;
            }
            let held = match self.hold(volume, group, &mut clusters, min_len) {
                Err(error) if error.family() == Family::Damage => break,
                held => held?,
            };
            if held.is_empty() {
                break;
            }
            let mut result = Ok(());
            for range in &held {
                result = run_of(volume, group, range.clone()).and_then(|run| {
                    discard(run.start, u64::from(run.len))?;
                    trimmed += u64::from(run.len);
                    Ok(())
                });
                if result.is_err() {
                    break;
                }
            }
            self.let_go(volume, group, held);
            result?;
        }
        Ok(trimmed)
    }

    /// Takes the next free runs of `clusters` in memory and moves the start of `clusters` behind
    /// them.
    fn hold(
        &self,
        volume: &Volume,
        group: GroupIndex,
        clusters: &mut Range<u32>,
        min_len: u32,
    ) -> Result<Vec<Range<u32>>> {
        let mut locked = self.enter(volume, group, Needs::BLOCKS)?;
        let blocks = locked.state()?.blocks_mut()?;
        let runs = blocks.clear_runs(clusters.clone());
        let held: Vec<_> = runs.filter(|run| run.end - run.start >= min_len).take(BATCH).collect();
        clusters.start = held.last().map_or(clusters.end, |run| run.end);
        if !held.is_empty() {
            self.held.begin();
        }
        for run in &held {
            blocks.held += run.end - run.start;
            blocks.hide(run.clone());
        }
        Ok(held)
    }

    /// Returns the runs that [`hold`](Self::hold) took.
    fn let_go(&self, volume: &Volume, group: GroupIndex, held: Vec<Range<u32>>) {
        // The group is loaded, so locking it cannot fail.
        let done = self.enter(volume, group, Needs::BLOCKS).and_then(|mut locked| {
            let (place, state) = locked.parts()?;
            let blocks = state.blocks_mut()?;
            for run in held {
                blocks.held = blocks.held.saturating_sub(run.end - run.start);
                blocks.show(run);
            }
            place.0.forget_longest();
            Ok(())
        });
        self.returns.fetch_add(1, Ordering::AcqRel); // S4
        self.held.end();
        debug_assert!(done.is_ok(), "{done:?}");
    }
}
