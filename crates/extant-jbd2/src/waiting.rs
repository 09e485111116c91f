//! Who waits for a commit, and for how long a commit waits for more who want one.
//!
//! # Shape
//!
//! At any moment at most two transactions are waited for: the one that is being committed and the
//! running one. Those who wait for the first are all woken at once when it is durable, and see without a lock
//! that it is. One of those who wait for the second commits it for all of them.
//!
//! Threads that sync again and again make one commit each when the processors are few: whoever runs never
//! sleeps, and the others never run. So a commit is put off, for a moment, until as many have come as are
//! *expected*: those who had part in the last one and those who came while it was written. The last
//! one to come commits, so nobody is woken for that. Who comes first looks at the clock, and commits with those who
//! are there when the time is over. One thread that syncs expects nobody, and never waits.
//!
//! # Invariants
//!
//! - W1. Whoever makes a condition true wakes under the lock of the state, or after it was held since, so
//!   that nobody falls asleep in between.
//! - W2. Whoever has the role and gives it back wakes one of those who wait for the running transaction,
//!   unless one of them looks at the clock: that one wakes by itself. It takes the role, or somebody else has it
//!   and will do the same.
//! - W3. Whoever stops the journal, for an error or for good, wakes all: who finds it stopped takes no role,
//!   and wakes nobody.
//! - W4. Counts of who came and of who is expected decide when a commit begins, never what it means.

use std::ops::RangeInclusive;
#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use extant_sync::{Bell, MutexGuard, threads};

use crate::client::{Tid, tid_geq, tid_next};

/// How often somebody looks whether the commit is durable before sleeping: about twenty microseconds.
const SPINS: u32 = 400;
/// Commits that take longer are slept for.
const SPIN_MOST: Duration = Duration::from_micros(50);

/// Who is at work, and how far the log is.
pub(crate) struct State {
    pub(crate) busy: bool,
    /// The last transaction that is durable.
    pub(crate) durable: Tid,
    /// When the running transaction was begun, or last seen without a handle.
    pub(crate) born: Duration,
    pub(crate) closed: bool,
    pub(crate) gathering: Gathering,
    /// How many want the role whatever is committed.
    pub(crate) wanted: u32,
    /// How long the last commit took.
    pub(crate) took: Duration,
}

/// Those who wait, by whether the number of their transaction is odd.
pub(crate) struct Waiting {
    asleep: [Bell; 2],
    /// Those who want the role whatever is committed.
    role: Bell,
    /// The last transaction that is durable, for those who look without the lock.
    durable: AtomicU32,
    /// Threads that run at once.
    processors: u32,
    /// How often somebody was woken.
    #[cfg(test)]
    pub(crate) woken: AtomicU64,
    /// How many fell asleep, each once for what it waits for.
    #[cfg(test)]
    pub(crate) slept: AtomicU64,
}

impl Waiting {
    pub(crate) fn new(durable: Tid) -> Waiting {
        Waiting {
            asleep: Default::default(),
            role: Bell::default(),
            durable: AtomicU32::new(durable),
            processors: u32::try_from(threads::available()).unwrap_or(u32::MAX),
            #[cfg(test)]
            woken: AtomicU64::new(0),
            #[cfg(test)]
            slept: AtomicU64::new(0),
        }
    }

    fn half(&self, tid: Tid) -> &Bell {
        let [even, odd] = &self.asleep;
        if is_odd(tid) { odd } else { even }
    }

    /// Whether `tid` is durable; without the lock it may be so without being seen yet.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        tid_geq(self.durable.load(Ordering::Acquire), tid)
    }

    /// `tid` is durable: all who wait for it go on.
    pub(crate) fn publish(&self, mut state: MutexGuard<'_, State>, tid: Tid) {
        state.durable = tid;
        state.gathering.committed(tid);
        self.durable.store(tid, Ordering::Release);
        drop(state);
        self.half(tid).ring_all();
    }

    /// The role is free: one of those who wait for the running transaction takes it.
    pub(crate) fn pass_on(&self, state: MutexGuard<'_, State>, running: Tid) {
        let (wanted, is_watched) = (state.wanted, state.gathering.is_watched(running));
        drop(state);
        if wanted > 0 {
            self.role.ring_one();
        }
        if !is_watched {
            self.half(running).ring_one();
        }
    }

    /// The journal has stopped.
    pub(crate) fn wake_all(&self) {
        self.asleep.iter().chain([&self.role]).for_each(Bell::ring_all);
    }

    /// Looks for a moment whether `tid` becomes durable, if all who are expected can run at once: then
    /// sleeping would take longer. `took` is how long the last commit did.
    pub(crate) fn spin(
        &self,
        expected: u32,
        took: Duration,
        tid: Tid,
        is_stopped: impl Fn() -> bool,
    ) {
        if expected > self.processors || self.processors == 1 || took > SPIN_MOST {
            return;
        }
        for _ in 0..SPINS {
            if self.is_durable(tid) || is_stopped() {
                return;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until something changed that concerns `tid`, or for `time`. Whether it was woken.
    pub(crate) fn sleep(
        &self,
        state: MutexGuard<'_, State>,
        tid: Tid,
        time: Option<Duration>,
    ) -> bool {
        let woken = self.half(tid).wait(state, time);
        #[cfg(test)]
        self.woken.fetch_add(u64::from(woken), Ordering::Relaxed);
        woken
    }

    /// Sleeps until the role may be free.
    pub(crate) fn sleep_for_role(&self, state: MutexGuard<'_, State>) {
        self.role.wait(state, None);
    }
}

fn is_odd(tid: Tid) -> bool {
    tid & 1 != 0
}

/// Who came for the transactions that are waited for, and who is expected.
#[derive(Default)]
pub(crate) struct Gathering {
    /// Who came, for even and for odd transactions.
    came: [u32; 2],
    /// Who had part in the last commit, or came while it was written.
    expected: u32,
    /// For this transaction somebody looks at the clock.
    watched: Option<Tid>,
    /// This transaction waits for nobody any more.
    due: Option<Tid>,
}

impl Gathering {
    fn came(&mut self, tid: Tid) -> &mut u32 {
        let [even, odd] = &mut self.came;
        if is_odd(tid) { odd } else { even }
    }

    /// Somebody came for `tid`.
    pub(crate) fn join(&mut self, tid: Tid) {
        let came = self.came(tid);
        *came = came.saturating_add(1);
    }

    /// Somebody came for nothing: there was nothing to commit.
    pub(crate) fn leave(&mut self, tid: Tid) {
        let came = self.came(tid);
        *came = came.saturating_sub(1);
    }

    /// Whether there is nobody to wait for.
    pub(crate) fn is_complete(&mut self, tid: Tid) -> bool {
        self.due == Some(tid) || *self.came(tid) >= self.expected
    }

    pub(crate) fn expected(&self) -> u32 {
        self.expected
    }

    #[cfg(test)]
    pub(crate) fn expect(&mut self, count: u32) {
        self.expected = count;
    }

    fn is_watched(&self, tid: Tid) -> bool {
        self.watched == Some(tid)
    }

    /// The caller looks at the clock for `tid`, if nobody does.
    pub(crate) fn watch(&mut self, tid: Tid) -> bool {
        let first = self.watched != Some(tid) && self.due != Some(tid);
        if first {
            self.watched = Some(tid);
        }
        first
    }

    /// The one who looked at the clock does not any more.
    pub(crate) fn unwatch(&mut self, tid: Tid, is_over: bool) {
        if self.watched == Some(tid) {
            self.watched = None;
        }
        if is_over {
            self.due = Some(tid);
        }
    }

    fn committed(&mut self, tid: Tid) {
        let had_part = std::mem::take(self.came(tid));
        self.expected = had_part.saturating_add(*self.came(tid_next(tid)));
        if self.watched == Some(tid) {
            self.watched = None;
        }
        if self.due == Some(tid) {
            self.due = None;
        }
    }
}

/// How long a commit waits for those who are expected: the time that the last one took, twice, since
/// the first who comes may come when that one has just begun.
pub(crate) fn batch_time(last: Duration, limits: &RangeInclusive<Duration>) -> Duration {
    last.saturating_mul(2).min(*limits.end()).max(*limits.start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_had_part_and_who_came_meanwhile_are_expected_next_time() {
        let mut gathering = Gathering::default();
        // One thread, again and again, expects nobody else.
        for tid in 1..4 {
            gathering.join(tid);
            assert!(gathering.is_complete(tid));
            gathering.committed(tid);
            assert_eq!(gathering.expected(), 1);
        }
        gathering.join(4);
        gathering.join(5);
        gathering.join(5);
        gathering.committed(4);
        assert!(!gathering.is_complete(5));
        gathering.join(5);
        assert!(gathering.is_complete(5));
        gathering.committed(5);
        assert_eq!(gathering.expected(), 3);
        // Two of them do not come any more.
        gathering.join(6);
        assert!(gathering.watch(6) && !gathering.watch(6) && gathering.is_watched(6));
        assert!(!gathering.is_complete(6));
        gathering.unwatch(6, true);
        assert!(gathering.is_complete(6) && !gathering.watch(6) && !gathering.is_watched(6));
        gathering.committed(6);
        gathering.join(7);
        assert!(gathering.is_complete(7));
        // Who came for nothing is not expected.
        gathering.join(7);
        gathering.leave(7);
        gathering.committed(7);
        assert_eq!(gathering.expected(), 1);
    }

    #[test]
    fn a_commit_waits_about_as_long_as_one_takes() {
        let micros = Duration::from_micros;
        let limits = micros(100)..=micros(10_000);
        let times = [0, 30, 400, 4000, 1_000_000].map(|last| batch_time(micros(last), &limits));
        assert_eq!(times, [100, 100, 800, 8000, 10_000].map(micros));
    }
}
