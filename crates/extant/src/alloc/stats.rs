//! Counters of the allocator.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_sync::{CachePadded, threads};

use super::criteria::Criterion;

/// Number of lanes of counters, a power of two.
const LANES: usize = 64;

/// The events counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counter {
    Extended,
    Ahead,
    Whole,
    Least,
    Any,
    OnStripe,
    Missed,
    Clusters,
    GoalHits,
    Visited,
    Searched,
    Busy,
    ReadAhead,
}

impl Counter {
    /// Returns the counter of requests that were served by a criterion.
    pub(super) fn of(criterion: Criterion) -> Counter {
        match criterion {
            Criterion::Ahead => Counter::Ahead,
            Criterion::Whole => Counter::Whole,
            Criterion::Least => Counter::Least,
            Criterion::Any => Counter::Any,
        }
    }
}

const COUNTERS: usize = Counter::ReadAhead as usize + 1;

/// Counters that few threads share.
type Lane = CachePadded<[AtomicU64; COUNTERS]>;

pub(super) struct Tally {
    lanes: [Lane; LANES],
}

impl Default for Tally {
    fn default() -> Tally {
        Tally { lanes: std::array::from_fn(|_| Lane::default()) }
    }
}

impl Tally {
    pub(super) fn add(&self, counter: Counter, count: u64) {
        let lane = &self.lanes[threads::number() % LANES];
        lane[counter as usize].fetch_add(count, Ordering::Relaxed);
    }

    fn sum(&self, counter: Counter) -> u64 {
        self.lanes.iter().map(|lane| lane[counter as usize].load(Ordering::Relaxed)).sum()
    }

    pub(super) fn stats(&self) -> AllocatorStats {
        AllocatorStats {
            extended: self.sum(Counter::Extended),
            found_ahead: self.sum(Counter::Ahead),
            found_whole: self.sum(Counter::Whole),
            found_least: self.sum(Counter::Least),
            found_any: self.sum(Counter::Any),
            found_on_stripe: self.sum(Counter::OnStripe),
            clusters_asked: self.sum(Counter::Clusters) + self.sum(Counter::Missed),
            clusters: self.sum(Counter::Clusters),
            goal_hits: self.sum(Counter::GoalHits),
            groups_visited: self.sum(Counter::Visited),
            groups_searched: self.sum(Counter::Searched),
            groups_busy: self.sum(Counter::Busy),
            bitmaps_read_ahead: self.sum(Counter::ReadAhead),
        }
    }
}

/// Counts of how blocks were found since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct AllocatorStats {
    /// Requests served by the blocks directly behind the file's last, without a search.
    pub extended: u64,
    /// Requests that found the full length and a window behind it.
    pub found_ahead: u64,
    /// Requests that found the full length.
    pub found_whole: u64,
    /// Requests that found less than the full length.
    pub found_least: u64,
    /// Requests that found room only in windows of other files.
    pub found_any: u64,
    /// Requests of a RAID stripe or more that found the full length and start on a multiple of the
    /// stripe; they are counted in [`found_ahead`](Self::found_ahead) or
    /// [`found_whole`](Self::found_whole) too.
    pub found_on_stripe: u64,
    /// Clusters that all of these requests asked for; divided by the number of requests, the average
    /// length wanted.
    pub clusters_asked: u64,
    /// Clusters given to all of these requests; divided by the number of requests, the average
    /// extent.
    pub clusters: u64,
    /// Requests that were given the block at their goal.
    pub goal_hits: u64,
    /// Groups that searches considered.
    pub groups_visited: u64,
    /// Bitmaps that searches examined.
    pub groups_searched: u64,
    /// Groups whose lock was taken by another thread, whether the search passed over or waited.
    pub groups_busy: u64,
    /// Bitmaps that searches read together with others, before they came to their groups.
    pub bitmaps_read_ahead: u64,
}

impl AllocatorStats {
    /// Returns every counter with its name, for display.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        vec![
            ("space_criterion_extended", self.extended),
            ("space_criterion_ahead", self.found_ahead),
            ("space_criterion_whole", self.found_whole),
            ("space_criterion_least", self.found_least),
            ("space_criterion_any", self.found_any),
            ("space_criterion_on_stripe", self.found_on_stripe),
            ("space_clusters_asked", self.clusters_asked),
            ("space_clusters", self.clusters),
            ("space_goal_hits", self.goal_hits),
            ("space_groups_visited", self.groups_visited),
            ("space_groups_searched", self.groups_searched),
            ("space_groups_busy", self.groups_busy),
            ("space_bitmaps_read_ahead", self.bitmaps_read_ahead),
        ]
    }
}
