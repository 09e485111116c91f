//! Counting operations that are under way at the device without a thread, and waiting for them.
//!
//! An operation begins under a lock that is held shared, and does not keep it: it belongs to no
//! thread. Whoever has the lock exclusively waits here for those that began before.
//!
//! Compiled twice, as `life`.
//!
//! # Invariants
//!
//! - F1. No operation begins while the lock is held exclusively, so a count that has been seen to
//!   be zero under it stays zero.
//! - F2. No wakeup is lost: who ends the last operation looks for waiters after counting down, and
//!   a waiter makes itself known before it looks at the count.

use super::atomic::{AtomicUsize, Ordering};
use super::locks::{Condvar, Mutex, leaf};

/// The operations under way.
pub(crate) struct Flights {
    count: AtomicUsize,
    /// Number of threads that wait, or are about to.
    waiting: AtomicUsize,
    lock: Mutex<()>,
    landed: Condvar,
}

impl Flights {
    pub(crate) fn new() -> Flights {
        Flights {
            count: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            lock: leaf(()),
            landed: Condvar::new(),
        }
    }

    /// Counts one more. The caller holds the lock shared (F1).
    pub(crate) fn begin(&self) {
        // Sequentially consistent, for who looks at something else next that others change before
        // they look at the count.
        self.count.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts one less; its effects are visible to whoever waited.
    pub(crate) fn end(&self) {
        // Both are changes, so who waits either was there before, or sees the count.
        if self.count.fetch_sub(1, Ordering::SeqCst) == 1
            && self.waiting.fetch_add(0, Ordering::AcqRel) > 0
        {
            drop(self.lock.lock());
            self.landed.notify_all();
        }
    }

    /// Returns whether none is under way. The caller holds the lock exclusively if the answer is to
    /// stay true.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// Waits until none is under way. The caller holds the lock exclusively, or something else that
    /// keeps new ones from beginning.
    pub(crate) fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut guard = self.lock.lock();
        while !self.is_empty() {
            self.landed.wait(&mut guard);
        }
        drop(guard);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}
