//! A number that many threads change and few read.

use std::sync::atomic::{AtomicI64, Ordering};

use extant_sync::{CachePadded, threads};

/// Lanes; a power of two.
const LANES: usize = 64;

/// The sum of its lanes. While others change it, a reader may see a later change and not an earlier one.
#[derive(Debug)]
pub(super) struct Sum {
    lanes: [CachePadded<AtomicI64>; LANES],
}

impl Sum {
    pub(super) fn new(value: i64) -> Sum {
        let lane = |at| CachePadded::new(AtomicI64::new(if at == 0 { value } else { 0 }));
        Sum { lanes: std::array::from_fn(lane) }
    }

    pub(super) fn add(&self, change: i64) {
        self.lanes[threads::number() % LANES].fetch_add(change, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> i64 {
        self.lanes.iter().map(|lane| lane.load(Ordering::Relaxed)).sum()
    }
}
