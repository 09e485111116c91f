//! A condition variable, over a futex.
//!
//! `parking_lot`, whose locks this crate has, keeps all threads of a process that wait in one table. A fork of the
//! process has the table but not the threads: its entries lead to memory that the fork gives to threads of its own.
//! Threads that have nothing to do wait for conditions, and are many when a process forks; those that wait for a lock
//! do so for moments. So conditions have no table.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{Timespec, futex};

use crate::clock::{Clock, SystemClock};
use crate::lock::MutexGuard;
use crate::no_wait::check_may_wait;

/// A condition variable for the state in one [`Mutex`](crate::Mutex).
///
/// A waiting thread keeps its other locks, so the thread that changes the state must need none of
/// them; the rank of the mutex, taken last, ensures that except for holders of a lower rank.
#[derive(Default)]
pub struct Condvar {
    /// Number of notifications, modulo 2^32: a thread sleeps only as long as it is the one that it saw under the lock.
    notified: AtomicU32,
    /// Number of threads that sleep or are about to. It changes under the lock when it grows, so whoever changed the
    /// state under the lock sees those who did not see that.
    waiting: AtomicU32,
}

impl Condvar {
    /// Creates a condition without waiters.
    pub const fn new() -> Condvar {
        Condvar { notified: AtomicU32::new(0), waiting: AtomicU32::new(0) }
    }

    /// Releases the lock, waits for a notification, and takes the lock again. The caller checks the
    /// state afterwards: the notification may be for another waiter, or there was none.
    ///
    /// # Panics
    ///
    /// In debug builds, within [`no_waiting`](crate::no_waiting).
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>) {
        check_may_wait("a condition");
        self.sleep(guard, None);
    }

    /// Waits like [`wait`](Self::wait) for at most `time`. Returns whether that has passed.
    #[track_caller]
    pub fn wait_for<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Duration) -> bool {
        check_may_wait("a condition");
        self.sleep(guard, Some(time))
    }

    fn sleep<T: ?Sized>(&self, guard: &mut MutexGuard<'_, T>, time: Option<Duration>) -> bool {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let seen = self.notified.load(Ordering::Relaxed);
        guard.unlocked(|| {
            let has_passed = self.sleep_while(seen, time);
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            has_passed
        })
    }

    /// Sleeps while the number of notifications is the one that was seen, and at most for `time`, however often
    /// signals come. Returns whether that has passed.
    fn sleep_while(&self, seen: u32, time: Option<Duration>) -> bool {
        let began = time.map(|_| SystemClock.monotonic());
        loop {
            let passed = began.map(|began| SystemClock.monotonic().saturating_sub(began));
            let left = time.map(|time| time.saturating_sub(passed.unwrap_or_default()));
            let left = left.map(|left| Timespec {
                tv_sec: left.as_secs().min(u64::from(u32::MAX)) as i64,
                tv_nsec: i64::from(left.subsec_nanos()),
            });
            match futex::wait(&self.notified, futex::Flags::PRIVATE, seen, left.as_ref()) {
                Err(Errno::INTR) => {}
                slept => return slept == Err(Errno::TIMEDOUT),
            }
        }
    }

    /// Wakes one waiting thread, if there is any.
    pub fn notify_one(&self) {
        self.notify(1);
    }

    /// Wakes all waiting threads.
    pub fn notify_all(&self) {
        // The system takes the number as one with a sign.
        self.notify(i32::MAX as u32);
    }

    fn notify(&self, threads: u32) {
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.notified.fetch_add(1, Ordering::Relaxed);
        // It fails only for an address that is none.
        let _ = futex::wake(&self.notified, futex::Flags::PRIVATE, threads);
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::scope;
    use crate::{Mutex, Rank};

    #[test]
    fn a_waiting_thread_lets_its_lock_go() {
        let (turn, changed) = (Mutex::new(Rank::Leaf, 0), Condvar::new());
        scope(|s| {
            s.spawn("waits", || {
                let mut turn = turn.lock();
                while *turn == 0 {
                    changed.wait(&mut turn);
                }
                *turn = 2;
                changed.notify_all();
            })
            .unwrap();
            let mut turn = turn.lock();
            *turn = 1;
            changed.notify_all();
            while *turn != 2 {
                changed.wait(&mut turn);
            }
        })
        .unwrap();
        assert_eq!(turn.into_inner(), 2);
    }

    #[test]
    fn every_thing_that_is_handed_over_is_taken_and_nobody_sleeps_beside_it() {
        const THINGS: u32 = 20_000;
        let (things, has_some, is_empty) =
            (Mutex::new(Rank::Leaf, 0u32), Condvar::new(), Condvar::new());
        let taken = AtomicU32::new(0);
        scope(|s| {
            for _ in 0..3 {
                s.spawn("takes", || {
                    while taken.load(Ordering::Relaxed) < THINGS {
                        let mut things = things.lock();
                        while *things == 0 {
                            if taken.load(Ordering::Relaxed) == THINGS {
                                return;
                            }
                            has_some.wait(&mut things);
                        }
                        *things -= 1;
                        if taken.fetch_add(1, Ordering::Relaxed) + 1 == THINGS {
                            has_some.notify_all();
                        }
                        is_empty.notify_one();
                    }
                })
                .unwrap();
            }
            for _ in 0..2 {
                s.spawn("gives", || {
                    for _ in 0..THINGS / 2 {
                        let mut things = things.lock();
                        while *things > 2 {
                            is_empty.wait(&mut things);
                        }
                        *things += 1;
                        has_some.notify_one();
                    }
                })
                .unwrap();
            }
        })
        .unwrap();
        assert_eq!((things.into_inner(), taken.into_inner()), (0, THINGS));
        let waiting = [&has_some, &is_empty].map(|one| one.waiting.load(Ordering::Relaxed));
        assert_eq!(waiting, [0, 0]);
    }

    #[test]
    fn a_time_passes_or_a_notification_comes_first() {
        let (lock, condition) = (Mutex::new(Rank::Leaf, false), Condvar::new());
        let mut guard = lock.lock();
        let began = SystemClock.monotonic();
        assert!(condition.wait_for(&mut guard, Duration::from_millis(30)));
        assert!(SystemClock.monotonic() - began >= Duration::from_millis(30));
        *guard = false;
        drop(guard);
        scope(|s| {
            s.spawn("notifies", || {
                *lock.lock() = true;
                condition.notify_all();
            })
            .unwrap();
            let mut guard = lock.lock();
            while !*guard {
                let has_passed = condition.wait_for(&mut guard, Duration::MAX);
                assert!(!has_passed);
            }
        })
        .unwrap();
    }
}
