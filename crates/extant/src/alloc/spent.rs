//! Clusters that were freed for good and that the device has not been told of.
//!
//! # Rules
//!
//! - E1. A run comes here when the transaction that freed it is durable, at the same moment as it can
//!   be given away again (B1). So a crash after the discard never brings an owner back.
//! - E2. When its turn comes, only what is free then is discarded, and kept from everybody meanwhile
//!   (D1): what was taken again is not touched.
//! - E3. The list is bounded: beyond [`RUNS_MAX`] runs it remembers one stretch for each group.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_sync::{Mutex, Rank};

use super::Allocator;
use crate::error::{FsError, Result};
use crate::volume::Volume;

/// Runs that are remembered one by one: 1 MiB of them.
const RUNS_MAX: usize = 1 << 16;

type Runs = Vec<(GroupIndex, Range<u32>)>;

/// What was freed and is to be discarded.
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

    /// Whether anything is remembered from now on.
    pub(super) fn keep(&self, keep: bool) {
        self.is_kept.store(keep, Ordering::Release);
    }

    /// Blocks discarded so far.
    pub(crate) fn discarded(&self) -> u64 {
        self.discarded.load(Ordering::Relaxed)
    }

    /// Runs that the device did not discard.
    pub(crate) fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Clusters of a group can be given away since now (E1).
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

/// Sorted, and without borders inside of what is one run.
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

/// Joined; if they are still many, one stretch for each group (E3), which E2 makes harmless.
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
    /// Calls `discard` for what was freed and is still free, by first block and length, as long as
    /// `goes_on` says so; the rest is left for the next call. A failure costs the run only; a device
    /// that cannot discard at all is not asked again.
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
