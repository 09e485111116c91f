//! Who waits for a commit, and for how long a commit waits for others.
//!
//! # Shape
//!
//! At any moment at most two transactions are waited for: the one that is being committed and the
//! running one. Those who wait for the first are all woken when it is durable; of those who wait for
//! the second, one is woken when the role is free, and commits for all of them. Nobody is woken to find
//! that it is too early.
//!
//! A commit to a fast device takes less time than going to sleep and being woken, so whoever has to
//! wait polls for a moment, giving way to others, and whoever commits waits as briefly for those who
//! committed beside it the last time: what they are doing goes into the same commit.
//!
//! # Invariants
//!
//! - W1. What is polled (`durable`, `busy`) is changed under the lock of the state that it mirrors, and
//!   nothing is concluded from it but that it is worth looking at that.
//! - W2. Whoever makes a condition true wakes under that lock, or after it was held since, so that
//!   nobody falls asleep in between.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use extant_sync::{Condvar, MutexGuard, threads};

use crate::client::{Tid, tid_geq};
use crate::journal::State;

/// How often somebody who waits looks before it goes to sleep.
const POLLS: u32 = 64;
/// A commit that took longer is not polled for.
const QUICK: Duration = Duration::from_micros(200);
/// Looks without a newcomer until a commit goes ahead.
const LONELY_LOOKS: u32 = 12;

/// Those who wait, by whether the number of their transaction is odd.
pub(crate) struct Waiting {
    asleep: [Condvar; 2],
    durable: AtomicU32,
    busy: AtomicBool,
    /// Callers that asked for each of the two transactions.
    callers: [AtomicU32; 2],
    /// As many asked for the last one that became durable.
    together: AtomicU32,
    /// How long the last commit took, in nanoseconds.
    took: AtomicU64,
    /// How often somebody was woken.
    #[cfg(test)]
    pub(crate) woken: AtomicU64,
}

/// Which of two.
fn half<T>(of: &[T; 2], tid: Tid) -> &T {
    let [even, odd] = of;
    if tid & 1 == 0 { even } else { odd }
}

impl Waiting {
    pub(crate) fn new(first: Tid) -> Waiting {
        Waiting {
            asleep: [Condvar::new(), Condvar::new()],
            durable: AtomicU32::new(first.wrapping_sub(1)),
            busy: AtomicBool::new(false),
            callers: [AtomicU32::new(0), AtomicU32::new(0)],
            together: AtomicU32::new(0),
            took: AtomicU64::new(0),
            #[cfg(test)]
            woken: AtomicU64::new(0),
        }
    }

    /// The role is taken or given back.
    pub(crate) fn set_busy(&self, state: &mut State, busy: bool) {
        state.busy = busy;
        self.busy.store(busy, Ordering::Release);
    }

    /// `tid` is durable: all who wait for it go on.
    pub(crate) fn publish(&self, state: &mut State, tid: Tid) {
        state.durable = tid;
        self.durable.store(tid, Ordering::Release);
        let callers = half(&self.callers, tid).swap(0, Ordering::Relaxed);
        self.together.store(callers, Ordering::Relaxed);
        half(&self.asleep, tid).notify_all();
    }

    /// The role is free: one of those who wait for the running transaction takes it.
    pub(crate) fn wake_one(&self, running: Tid) {
        half(&self.asleep, running).notify_one();
    }

    /// The journal has stopped.
    pub(crate) fn wake_all(&self) {
        self.asleep.iter().for_each(Condvar::notify_all);
    }

    /// Sleeps until something changed that concerns `tid`.
    pub(crate) fn sleep(&self, state: &mut MutexGuard<'_, State>, tid: Tid) {
        half(&self.asleep, tid).wait(state);
        #[cfg(test)]
        self.woken.fetch_add(1, Ordering::Relaxed);
    }

    /// Somebody wants `tid` to be durable.
    pub(crate) fn came(&self, tid: Tid) {
        half(&self.callers, tid).fetch_add(1, Ordering::Relaxed);
    }

    /// A commit took so long.
    pub(crate) fn note_time(&self, took: Duration) {
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.took.store(nanos, Ordering::Relaxed);
    }

    fn is_quick(&self) -> bool {
        Duration::from_nanos(self.took.load(Ordering::Relaxed)) <= QUICK
    }

    /// Waits a moment for `tid` or for the role, if that is likely to be worth it.
    pub(crate) fn poll(&self, tid: Tid) {
        if !self.is_quick() {
            return;
        }
        for _ in 0..POLLS {
            if tid_geq(self.durable.load(Ordering::Acquire), tid)
                || !self.busy.load(Ordering::Acquire)
            {
                return;
            }
            threads::give_way();
        }
    }

    /// Waits a moment for as many callers as came the last time, if there were several.
    pub(crate) fn gather(&self, tid: Tid) {
        let together = self.together.load(Ordering::Relaxed);
        if together < 2 || !self.is_quick() {
            return;
        }
        let callers = half(&self.callers, tid);
        let (mut seen, mut lonely) = (0, 0);
        while lonely < LONELY_LOOKS {
            let now = callers.load(Ordering::Relaxed);
            if now >= together {
                return;
            }
            lonely = if now > seen { 0 } else { lonely.saturating_add(1) };
            seen = now;
            threads::give_way();
        }
    }
}
