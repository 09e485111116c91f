//! The gate that handles enter by: many pass at once without meeting, and it can be shut.
//!
//! # Invariants
//!
//! - G1. While the gate is shut and drained, nobody is inside: an entrant counts itself, then looks
//!   at `shut`; who shuts sets `shut`, then looks at the counters. In one total order of these four
//!   (all are `SeqCst`) at least one of the two sees the other.
//! - G2. Nobody sleeps through a change: both conditions are checked under `sleep`, and whoever makes
//!   one true takes `sleep` before it notifies.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use extant_sync::{Condvar, Mutex, Rank, threads};

/// Counters; a power of two. More threads than these share.
const LANES: usize = 16;

/// Bits of a lane that count who is inside; the bits above count who ever entered.
const INSIDE_BITS: u32 = 24;
const ENTERED: u64 = 1 << INSIDE_BITS;
const INSIDE: u64 = ENTERED - 1;

/// A counter alone on its cache lines (two: processors fetch pairs).
#[repr(align(128))]
#[derive(Default)]
struct Lane {
    count: AtomicU64,
    /// Credits charged to the transaction and not given to a handle.
    spare: AtomicU32,
}

#[derive(Default)]
pub(crate) struct Gate {
    lanes: [Lane; LANES],
    shut: AtomicBool,
    sleep: Sleep,
}

struct Sleep {
    lock: Mutex<()>,
    opened: Condvar,
    drained: Condvar,
}

impl Default for Sleep {
    fn default() -> Sleep {
        let lock = Mutex::new(Rank::Leaf, ());
        Sleep { lock, opened: Condvar::new(), drained: Condvar::new() }
    }
}

/// Which counter this thread uses.
fn lane_of_thread() -> usize {
    threads::number() & LANES.saturating_sub(1)
}

impl Gate {
    fn entry(&self, lane: usize) -> &Lane {
        // The mask keeps the index inside; `first` is never used.
        let [first, ..] = &self.lanes;
        self.lanes.get(lane).unwrap_or(first)
    }

    fn lane(&self, lane: usize) -> &AtomicU64 {
        &self.entry(lane).count
    }

    /// The spare credits of a lane; touched only by who is inside, or while the gate is shut.
    pub(crate) fn spare(&self, lane: usize) -> &AtomicU32 {
        &self.entry(lane).spare
    }

    /// No spare credits; the gate is shut and empty.
    pub(crate) fn forget_spares(&self) {
        for lane in &self.lanes {
            lane.spare.store(0, Ordering::Relaxed);
        }
    }

    /// Enters; `None` while the gate is shut. The answer is for [`leave`](Self::leave).
    pub(crate) fn try_enter(&self) -> Option<usize> {
        let lane = lane_of_thread();
        self.lane(lane).fetch_add(ENTERED | 1, Ordering::SeqCst);
        if !self.shut.load(Ordering::SeqCst) {
            return Some(lane);
        }
        self.lane(lane).fetch_sub(ENTERED, Ordering::SeqCst);
        self.leave(lane);
        None
    }

    /// Leaves; on any thread.
    pub(crate) fn leave(&self, lane: usize) {
        self.lane(lane).fetch_sub(1, Ordering::SeqCst);
        if self.shut.load(Ordering::SeqCst) {
            drop(self.sleep.lock.lock());
            self.sleep.drained.notify_all();
        }
    }

    /// Waits until the gate is open. It may be shut again by then.
    pub(crate) fn wait_open(&self) {
        let mut guard = self.sleep.lock.lock();
        while self.shut.load(Ordering::SeqCst) {
            self.sleep.opened.wait(&mut guard);
        }
    }

    /// Shuts the gate and waits until nobody is inside. One thread at a time.
    pub(crate) fn shut(&self) -> Shut<'_> {
        self.shut.store(true, Ordering::SeqCst);
        let shut = Shut { gate: self };
        let mut guard = self.sleep.lock.lock();
        for lane in &self.lanes {
            // Each lane needs to be seen empty only once: real entrants no longer come.
            while lane.count.load(Ordering::SeqCst) & INSIDE != 0 {
                self.sleep.drained.wait(&mut guard);
            }
        }
        drop(guard);
        shut
    }

    /// How many ever entered.
    pub(crate) fn entered(&self) -> u64 {
        let count = |lane: &Lane| lane.count.load(Ordering::Relaxed) >> INSIDE_BITS;
        self.lanes.iter().map(count).fold(0, u64::saturating_add)
    }
}

/// A gate that is shut, with nobody inside; opens when dropped.
#[must_use]
pub(crate) struct Shut<'a> {
    gate: &'a Gate,
}

impl Drop for Shut<'_> {
    fn drop(&mut self) {
        self.gate.shut.store(false, Ordering::SeqCst);
        drop(self.gate.sleep.lock.lock());
        self.gate.sleep.opened.notify_all();
    }
}
