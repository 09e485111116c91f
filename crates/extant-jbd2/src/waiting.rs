//! Waiting for a commit, and delaying a commit for more threads.
//!
//! # Shape
//!
//! Commits make *rounds* durable: a full commit ends the transaction and its last round, a fast
//! commit only ends a round. At any moment at most two rounds are waited for: the one that is being
//! committed and the current one. Waiters for the first are all woken when it is durable, and check
//! that without a lock. One of the waiters for the second commits it for all of them.
//!
//! On few processors, threads that sync repeatedly would make one commit each: the running thread
//! never sleeps, and the others never run. So a commit is delayed for a moment until the *expected*
//! number of threads has come: those that took part in the last one and those that came while it
//! was written. The last one to come commits, so no wakeup is needed for that. The first one waits
//! with a time limit, and commits for those that have come when the time is over. A single thread
//! that syncs expects no others, and never waits.
//!
//! # Invariants
//!
//! - W1. A thread that makes a condition true wakes the waiters under the lock of the state, or
//!   after taking it once, so that no thread falls asleep in between.
//! - W2. A thread that gives the role back wakes one waiter for the running transaction, unless one
//!   of them has a time limit and wakes by itself. That waiter takes the role, or another thread
//!   has it and will do the same.
//! - W3. A thread that aborts or closes the journal wakes all: threads that find it stopped take no
//!   role, and wake no others.
//! - W4. The counts of threads decide only when a commit begins, never its contents.

use std::ops::RangeInclusive;
#[cfg(test)]
use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use extant_sync::{Bell, MutexGuard, threads};

use crate::client::{Tid, tid_geq, tid_next};

/// Number of a round: of what one commit makes durable, a full one or a fast one. A transaction
/// consists of one or more rounds. Rounds are counted and compared like transactions.
pub type Round = Tid;

/// Number of checks whether the commit is durable before sleeping: about twenty microseconds.
const SPINS: u32 = 400;
/// Duration above which a thread sleeps for a commit instead of spinning.
const SPIN_MOST: Duration = Duration::from_micros(50);

/// State of the committing thread, and progress of the log.
pub(crate) struct State {
    pub(crate) busy: bool,
    /// The last round that is durable.
    pub(crate) durable: Round,
    /// The last transaction that is durable as a whole.
    pub(crate) durable_tid: Tid,
    /// The round that the last full commit ended.
    pub(crate) sealed: Round,
    /// The round that must end with a full commit.
    pub(crate) full: Option<Round>,
    /// When the running transaction was begun, or last seen without a handle.
    pub(crate) born: Duration,
    pub(crate) closed: bool,
    pub(crate) gathering: Gathering,
    /// Number of threads that want the role whatever is committed.
    pub(crate) wanted: u32,
    /// How long the last commit took.
    pub(crate) took: Duration,
}

/// Waiting threads, by the parity of their round's number.
pub(crate) struct Waiting {
    asleep: [Bell; 2],
    /// The threads that want the role whatever is committed.
    role: Bell,
    /// The last durable round, readable without the lock.
    durable: AtomicU32,
    /// Number of processors.
    processors: u32,
    /// Number of wakeups.
    #[cfg(test)]
    pub(crate) woken: AtomicU64,
    /// Number of threads that went to sleep.
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

    /// Returns whether `tid` is durable; without the lock the answer may lag behind.
    pub(crate) fn is_durable(&self, tid: Tid) -> bool {
        tid_geq(self.durable.load(Ordering::Acquire), tid)
    }

    /// Publishes that `tid` is durable: all its waiters continue.
    pub(crate) fn publish(&self, mut state: MutexGuard<'_, State>, tid: Round) {
        state.durable = tid;
        state.gathering.committed(tid);
        self.durable.store(tid, Ordering::Release);
        drop(state);
        self.half(tid).ring_all();
    }

    /// Passes the free role on: a waiter for the running transaction takes it.
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

    /// Wakes all threads, because the journal has stopped.
    pub(crate) fn wake_all(&self) {
        self.asleep.iter().chain([&self.role]).for_each(Bell::ring_all);
    }

    /// Spins for a moment until `tid` becomes durable, if all expected threads can run at once:
    /// then sleeping would take longer. `took` is the duration of the last commit.
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

    /// Sleeps until something changed that concerns `tid`, or for `time`. Returns whether it was
    /// woken.
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

/// Counts of the threads that came for the awaited transactions, and of those expected.
#[derive(Default)]
pub(crate) struct Gathering {
    /// Number of threads that came, for even and for odd transactions.
    came: [u32; 2],
    /// Number of threads that took part in the last commit, or came while it was written.
    expected: u32,
    /// The transaction for which a thread waits with a time limit.
    watched: Option<Tid>,
    /// The transaction that is not delayed any more.
    due: Option<Tid>,
}

impl Gathering {
    fn came(&mut self, tid: Tid) -> &mut u32 {
        let [even, odd] = &mut self.came;
        if is_odd(tid) { odd } else { even }
    }

    /// Counts a thread that came for `tid`.
    pub(crate) fn join(&mut self, tid: Tid) {
        let came = self.came(tid);
        *came = came.saturating_add(1);
    }

    /// Uncounts a thread, because there was nothing to commit.
    pub(crate) fn leave(&mut self, tid: Tid) {
        let came = self.came(tid);
        *came = came.saturating_sub(1);
    }

    /// Returns whether all expected threads have come.
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

    /// Makes the caller the thread with the time limit for `tid`, if there is none.
    pub(crate) fn watch(&mut self, tid: Tid) -> bool {
        let first = self.watched != Some(tid) && self.due != Some(tid);
        if first {
            self.watched = Some(tid);
        }
        first
    }

    /// Ends the caller's time limit.
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

/// Returns the time that a commit waits for the expected threads: twice the duration of the last
/// one, since the first thread may come when that one has just begun.
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
        // A commit ends the time limit.
        assert!(gathering.watch(8));
        gathering.committed(8);
        assert!(!gathering.is_watched(8));
    }

    #[test]
    fn a_commit_waits_about_as_long_as_one_takes() {
        let micros = Duration::from_micros;
        let limits = micros(100)..=micros(10_000);
        let times = [0, 30, 400, 4000, 1_000_000].map(|last| batch_time(micros(last), &limits));
        assert_eq!(times, [100, 100, 800, 8000, 10_000].map(micros));
    }
}
