//! A number that many threads change and few read.

use std::sync::atomic::{AtomicI64, Ordering};

use extant_sync::threads;

/// Lanes; a power of two.
const LANES: usize = 64;

/// A part of the number, alone on its cache lines.
#[repr(align(128))]
#[derive(Debug)]
struct Lane(AtomicI64);

/// The sum of its lanes. While others change it, a reader may see a later change and not an earlier one.
#[derive(Debug)]
pub(super) struct Sum {
    lanes: [Lane; LANES],
}

impl Sum {
    pub(super) fn new(value: i64) -> Sum {
        let lane = |at| Lane(AtomicI64::new(if at == 0 { value } else { 0 }));
        Sum { lanes: std::array::from_fn(lane) }
    }

    pub(super) fn add(&self, change: i64) {
        self.lanes[threads::number() % LANES].0.fetch_add(change, Ordering::Relaxed);
    }

    pub(super) fn total(&self) -> i64 {
        self.lanes.iter().map(|lane| lane.0.load(Ordering::Relaxed)).sum()
    }
}
