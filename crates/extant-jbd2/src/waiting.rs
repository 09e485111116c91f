//! Who waits for a commit.
//!
//! # Shape
//!
//! At any moment at most two transactions are waited for: the one that is being committed and the
//! running one. Those who wait for the first are all woken when it is durable; of those who wait for
//! the second, one is woken when the role is free, and commits for all of them. Nobody is woken to find
//! that it is too early.
//!
//! # Invariants
//!
//! - W1. Whoever makes a condition true wakes under the lock of the state, or after it was held since, so
//!   that nobody falls asleep in between.
//! - W2. Whoever has the role and gives it back wakes one of those who wait for the running transaction.
//!   It takes the role, or somebody else has it and will do the same.
//! - W3. Whoever stops the journal, for an error or for good, wakes all: who finds it stopped takes no role,
//!   and wakes nobody.

#[cfg(test)]
use std::sync::atomic::{AtomicU64, Ordering};

use extant_sync::{Condvar, MutexGuard};

use crate::client::Tid;
use crate::journal::State;

/// Those who wait, by whether the number of their transaction is odd.
#[derive(Default)]
pub(crate) struct Waiting {
    asleep: [Condvar; 2],
    /// How often somebody was woken.
    #[cfg(test)]
    pub(crate) woken: AtomicU64,
    /// How often somebody fell asleep.
    #[cfg(test)]
    pub(crate) slept: AtomicU64,
}

impl Waiting {
    fn half(&self, tid: Tid) -> &Condvar {
        let [even, odd] = &self.asleep;
        if tid & 1 == 0 { even } else { odd }
    }

    /// `tid` is durable: all who wait for it go on.
    pub(crate) fn publish(&self, state: &mut State, tid: Tid) {
        state.durable = tid;
        self.half(tid).notify_all();
    }

    /// The role is free: one of those who wait for the running transaction takes it.
    pub(crate) fn wake_one(&self, running: Tid) {
        self.half(running).notify_one();
    }

    /// The journal has stopped.
    pub(crate) fn wake_all(&self) {
        self.asleep.iter().for_each(Condvar::notify_all);
    }

    /// Sleeps until something changed that concerns `tid`.
    pub(crate) fn sleep(&self, state: &mut MutexGuard<'_, State>, tid: Tid) {
        #[cfg(test)]
        self.slept.fetch_add(1, Ordering::Relaxed);
        self.half(tid).wait(state);
        #[cfg(test)]
        self.woken.fetch_add(1, Ordering::Relaxed);
    }
}
