//! What the allocator counts, for whoever wants to know how well it does.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_sync::threads;

/// Lanes of counters; a power of two.
const LANES: usize = 16;

/// What was counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counter {
    Extended,
    Ahead,
    Whole,
    Least,
    Any,
    Clusters,
    GoalHits,
    Visited,
    Searched,
    Busy,
}

const COUNTERS: usize = Counter::Busy as usize + 1;

/// Counters that few threads share: alone on their cache lines.
#[repr(align(128))]
#[derive(Default)]
struct Lane([AtomicU64; COUNTERS]);

#[derive(Default)]
pub(super) struct Tally {
    lanes: [Lane; LANES],
}

impl Tally {
    pub(super) fn add(&self, counter: Counter, count: u64) {
        let lane = &self.lanes[threads::number() % LANES];
        lane.0[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.lanes.iter().map(|lane| lane.0[counter as usize].load(Ordering::Relaxed)).sum()
    }

    pub(super) fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            extended: self.sum(Counter::Extended),
            found_ahead: self.sum(Counter::Ahead),
            found_whole: self.sum(Counter::Whole),
            found_least: self.sum(Counter::Least),
            found_any: self.sum(Counter::Any),
            clusters: self.sum(Counter::Clusters),
            goal_hits: self.sum(Counter::GoalHits),
            groups_visited: self.sum(Counter::Visited),
            groups_searched: self.sum(Counter::Searched),
            groups_busy: self.sum(Counter::Busy),
        }
    }
}

/// How blocks were found since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocatorStats {
    /// Requests for the very blocks behind a file's last, which were free: no search.
    pub extended: u64,
    /// Requests that found as much as was wanted, and room behind it.
    pub found_ahead: u64,
    /// Requests that found as much as was wanted.
    pub found_whole: u64,
    /// Requests that found less.
    pub found_least: u64,
    /// Requests that found something only in room that is left to other files.
    pub found_any: u64,
    /// Clusters that all of these were given: divided by their number, the average extent.
    pub clusters: u64,
    /// Requests that were given the very block they would best have.
    pub goal_hits: u64,
    /// Groups that searches asked what they have.
    pub groups_visited: u64,
    /// Bitmaps that were searched.
    pub groups_searched: u64,
    /// Groups that somebody else was at, whether they were passed over or waited for.
    pub groups_busy: u64,
}

impl AllocatorStats {
    /// Every counter with its name, for whoever shows them.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("space_extended", self.extended),
            ("space_found_ahead", self.found_ahead),
            ("space_found_whole", self.found_whole),
            ("space_found_least", self.found_least),
            ("space_found_any", self.found_any),
            ("space_clusters", self.clusters),
            ("space_goal_hits", self.goal_hits),
            ("space_groups_visited", self.groups_visited),
            ("space_groups_searched", self.groups_searched),
            ("space_groups_busy", self.groups_busy),
        ]
    }
}
