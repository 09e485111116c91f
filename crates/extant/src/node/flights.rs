//! Counting operations that are under way at the device without a lock, and waiting for them.
//!
//! An operation begins under a lock that is held shared, and does not keep it. Whoever has the lock
//! exclusively waits here for those that began before.
//!
//! Compiled twice, as `life`.
//!
//! # Invariants
//!
//! - F1. No operation begins while the lock is held exclusively, so a count that has been seen to
//!   be zero under it stays zero.
//! - F2. No wakeup is lost: operations and waiters are counted in one word, so who ends an operation
//!   either is known to a waiter before it looks, or sees that there is one.

use super::atomic::{AtomicU64, Ordering};
use super::locks::{Condvar, Mutex, leaf};

/// One waiter in the word, above the operations.
const WAITER: u64 = 1 << 32;

/// The operations under way.
pub(crate) struct Flights {
    /// Number of operations, plus [`WAITER`] for each thread that waits, or is about to.
    counts: AtomicU64,
    lock: Mutex<()>,
    landed: Condvar,
}

impl Flights {
    pub(crate) fn new() -> Flights {
        Flights { counts: AtomicU64::new(0), lock: leaf(()), landed: Condvar::new() }
    }

    /// Counts one more. The caller holds the lock shared (F1).
    pub(crate) fn begin(&self) {
        // Sequentially consistent, for who looks at something else next that others change before
        // they look at the count.
        self.counts.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one less; its effects are visible to whoever waited.
    pub(crate) fn end(&self) {
        if self.counts.fetch_sub(1, Ordering::SeqCst) >= WAITER {
            drop(self.lock.lock());
            self.landed.notify_all();
        }
    }

    /// Returns whether none is under way. The caller holds the lock exclusively if the answer is to
    /// stay true.
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.load(Ordering::SeqCst).is_multiple_of(WAITER)
    }

    /// Waits until no operation is under way that `concerns` the caller, which operations stop to do
    /// before they are counted down. The caller holds the lock exclusively, or something else that
    /// keeps new ones from beginning.
    pub(crate) fn wait_for(&self, concerns: impl Fn() -> bool) {
        self.counts.fetch_add(WAITER, Ordering::SeqCst);
        let mut guard = self.lock.lock();
        while concerns() {
            self.landed.wait(&mut guard);
        }
        drop(guard);
        self.counts.fetch_sub(WAITER, Ordering::SeqCst);
    }

    /// Waits until none is under way; see [`wait_for`](Self::wait_for).
    pub(crate) fn wait(&self) {
        self.wait_for(|| !self.is_empty());
    }
}
