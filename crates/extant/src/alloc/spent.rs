//! Freed clusters that the device has not been told of: the queue of the `discard` option.
//!
//! # Rules
//!
//! - E1. A run is added when the transaction that freed it is durable, at the same moment as it
//!   becomes available again (B1). So a crash after the discard never restores an owner of
//!   discarded blocks.
//! - E2. Only clusters that are free when their turn comes are discarded, and they are unavailable
//!   meanwhile (D1): clusters that were allocated again are not touched.
//! - E3. The list is bounded: beyond [`RUNS_MAX`] runs it remembers one range for each group.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_sync::{Mutex, Rank};

use super::Allocator;
use crate::error::{FsError, Result};
use crate::volume::Volume;

/// Limit of the runs remembered one by one; they take 1 MiB.
const RUNS_MAX: usize = 1 << 16;

type Runs = Vec<(GroupIndex, Range<u32>)>;

/// The queue of freed clusters to be discarded, and counts of the discards.
pub(crate) struct Spent {
    is_kept: AtomicBool,
    runs: Mutex<Runs>,
    discarded: AtomicU64,
    failed: AtomicU64,
}

impl Spent {
    pub(super) fn new() -> Spent {
        Spent {
            is_kept: AtomicBool::new(false),
            runs: Mutex::new(Rank::Leaf, Vec::new()),
            discarded: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }
    }

    /// Sets whether freed clusters are remembered.
    pub(super) fn keep(&self, keep: bool) {
        self.is_kept.store(keep, Ordering::Release);
    }

    /// Number of blocks discarded so far.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Number of runs that the device failed to discard.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Adds clusters of a group that became available (E1).
    pub(super) fn add(&self, group: GroupIndex, ranges: Vec<Range<u32>>) {
        if !self.is_kept.load(Ordering::Acquire) {
            return;
        }
        let mut runs = self.runs.lock();
        runs.extend(ranges.into_iter().map(|range| (group, range)));
        if runs.len() > RUNS_MAX {
            *runs = shortened(std::mem::take(&mut *runs));
        }
    }

    fn take(&self) -> Runs {
        let runs = std::mem::take(&mut *self.runs.lock());
        joined(runs)
    }

    fn put_back(&self, rest: impl Iterator<Item = (GroupIndex, Range<u32>)>) {
        self.runs.lock().extend(rest);
    }
}

/// Sorts the runs and joins adjacent ones.
fn joined(mut runs: Runs) -> Runs {
    runs.sort_unstable_by_key(|(group, range)| (*group, range.start));
    runs.dedup_by(|(group, range), (last_group, last)| {
        let goes_on = *group == *last_group && range.start <= last.end;
        if goes_on {
            last.end = last.end.max(range.end);
        }
        goes_on
    });
    runs
}

/// Joins the runs; if there are still many, keeps one range for each group (E3), which E2 makes
/// harmless.
fn shortened(runs: Runs) -> Runs {
    let runs = joined(runs);
    if runs.len() <= RUNS_MAX / 2 {
        return runs;
    }
    let mut groups: BTreeMap<GroupIndex, Range<u32>> = BTreeMap::new();
    for (group, range) in runs {
        let all = groups.entry(group).or_insert_with(|| range.clone());
        *all = all.start.min(range.start)..all.end.max(range.end);
    }
    groups.into_iter().collect()
}

impl Allocator {
    /// Calls `discard` with the first block and the length of every queued run that is still free,
    /// while `goes_on` returns true; the rest is kept for the next call. A failure drops that run
    /// only; a device that does not support discard is not asked again.
    ///
    /// No handle is open, and none is opened.
    pub(crate) fn discard_spent(
        &self,
        volume: &Volume,
        mut goes_on: impl FnMut() -> bool,
        discard: &mut dyn FnMut(FsBlock, u64) -> Result<()>,
    ) {
        let mut runs = self.spent.take().into_iter();
        while goes_on() {
            let Some((group, range)) = runs.next() else { return };
            match self.trim_group(volume, group, range, 1, discard) {
                Ok(blocks) => drop(self.spent.discarded.fetch_add(blocks, Ordering::Relaxed)),
                Err(error) => {
                    self.spent.failed.fetch_add(1, Ordering::Relaxed);
                    if matches!(&error, FsError::Device(error) if error.is_unsupported()) {
                        self.spent.keep(false);
                        return;
                    }
                }
            }
        }
        self.spent.put_back(runs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(group: u32, range: Range<u32>) -> (GroupIndex, Range<u32>) {
        (GroupIndex(group), range)
    }

    #[test]
    fn runs_are_joined_in_their_group() {
        let runs = vec![run(1, 5..9), run(0, 9..12), run(0, 0..4), run(1, 9..10), run(0, 4..6)];
        assert_eq!(joined(runs), [run(0, 0..6), run(0, 9..12), run(1, 5..10)]);
    }

    #[test]
    fn the_list_is_bounded_and_forgets_nothing() {
        let spent = Spent::new();
        spent.add(GroupIndex(0), vec![Range { start: 0, end: 5 }]);
        assert!(spent.take().is_empty(), "nothing is kept unless it is asked for");
        spent.keep(true);
        let all = RUNS_MAX as u32 * 2;
        for at in 0..all {
            spent.add(GroupIndex(at % 3), vec![Range { start: at * 2, end: at * 2 + 1 }]);
        }
        assert!(spent.runs.lock().len() <= RUNS_MAX);
        let runs = spent.take();
        for at in (0..all).step_by(997) {
            let holds =
                |run: &(GroupIndex, Range<u32>)| run.0.0 == at % 3 && run.1.contains(&(at * 2));
            assert!(runs.iter().any(holds), "{at}");
        }
    }
}
