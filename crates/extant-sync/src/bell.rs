//! Waking many threads at once.
#![expect(clippy::disallowed_types, reason = "this module is what the ban points to")]

use std::fmt;
use std::sync::{Condvar, Mutex, MutexGuard as StdGuard, PoisonError};
use std::time::Duration;

use crate::MutexGuard;
use crate::no_wait::check_may_wait;

#[derive(Default)]
struct Rounds {
    /// Number of times it was rung.
    number: u64,
    asleep: u32,
}

/// A wakeup for many sleeping threads. Unlike with a [`Condvar`](crate::Condvar), they do not queue
/// up for a lock afterwards: one system call wakes them all, and they continue independently.
///
/// ```
/// use extant_sync::{Bell, Mutex, Rank, threads};
/// let (is_open, bell) = (Mutex::new(Rank::Leaf, false), Bell::default());
/// threads::workers("door", 3, |thread| {
///     if thread == 0 {
///         *is_open.lock() = true;
///         return bell.ring_all();
///     }
///     loop {
///         let guard = is_open.lock();
///         if *guard {
///             break;
///         }
///         bell.wait(guard, None);
///     }
/// })?;
/// # Ok::<(), extant_sync::threads::ThreadError>(())
/// ```
#[derive(Default)]
pub struct Bell {
    rounds: Mutex<Rounds>,
    rung: Condvar,
}

impl Bell {
    fn rounds(&self) -> StdGuard<'_, Rounds> {
        // Nothing that is called under it panics.
        self.rounds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Releases the lock and sleeps until the bell is rung, or for at most `time`. Returns whether
    /// it was rung. A ring that follows a change under the lock is not missed.
    ///
    /// # Panics
    ///
    /// In debug builds, within [`no_waiting`](crate::no_waiting).
    #[track_caller]
    pub fn wait<T: ?Sized>(&self, guard: MutexGuard<'_, T>, time: Option<Duration>) -> bool {
        check_may_wait("a bell");
        let mut rounds = self.rounds();
        let began = rounds.number;
        rounds.asleep += 1;
        drop(guard);
        let not_rung = |rounds: &mut Rounds| rounds.number == began;
        rounds = match time {
            None => self.rung.wait_while(rounds, not_rung).unwrap_or_else(PoisonError::into_inner),
            Some(time) => {
                let waited = self.rung.wait_timeout_while(rounds, time, not_rung);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        rounds.asleep -= 1;
        rounds.number != began
    }

    /// Wakes one sleeping thread, if there is any.
    pub fn ring_one(&self) {
        if self.ring() {
            self.rung.notify_one();
        }
    }

    /// Wakes all sleeping threads.
    pub fn ring_all(&self) {
        if self.ring() {
            self.rung.notify_all();
        }
    }

    /// Counts a ring; returns whether any thread sleeps.
    fn ring(&self) -> bool {
        let mut rounds = self.rounds();
        rounds.number += 1;
        rounds.asleep > 0
    }
}

impl fmt::Debug for Bell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bell")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Clock, Mutex, Rank, SystemClock, threads};

    #[test]
    fn a_ring_before_anybody_sleeps_is_no_ring_and_time_ends_a_sleep() {
        let (lock, bell) = (Mutex::new(Rank::Leaf, ()), Bell::default());
        bell.ring_all();
        assert!(!bell.wait(lock.lock(), Some(Duration::from_millis(1))));
        assert_eq!(bell.rounds().asleep, 0);
    }

    /// Whoever has the lock next may ring: the sleeper is counted by then.
    #[test]
    fn the_lock_is_let_go_by_who_is_asleep() {
        let (lock, bell) = (Mutex::new(Rank::Leaf, false), Bell::default());
        let rounds = bell.rounds();
        threads::scope(|scope| {
            let sleeper = scope.spawn("sleeper", || {
                let mut guard = lock.lock();
                *guard = true;
                bell.wait(guard, Some(Duration::from_secs(10)))
            });
            let sleeper = sleeper.unwrap();
            // It has the lock, and cannot be counted as long as this thread keeps it from that.
            for _ in 0..50 {
                SystemClock.sleep(Duration::from_millis(1));
                assert!(lock.try_lock().is_none_or(|began| !*began), "nobody would wake it");
            }
            drop(rounds);
            while !*lock.lock() {
                std::hint::spin_loop();
            }
            bell.ring_one();
            assert!(sleeper.join().unwrap(), "it slept through");
        })
        .unwrap();
    }

    #[test]
    fn nobody_sleeps_through_a_ring() {
        const ROUNDS: u32 = 3000;
        let (number, bells) = (Mutex::new(Rank::Leaf, 0), [Bell::default(), Bell::default()]);
        threads::workers("sleeper", 3, |thread| {
            let mut seen = 0;
            while seen < ROUNDS {
                let mut guard = number.lock();
                if *guard % 3 == thread as u32 {
                    *guard += 1;
                    drop(guard);
                    // The one whose turn it is sleeps there, beside the other or alone.
                    bells.iter().for_each(Bell::ring_all);
                } else if *guard < ROUNDS {
                    bells[thread % 2].wait(guard, None);
                } else {
                    drop(guard);
                }
                seen = *number.lock();
            }
        })
        .unwrap();
        assert!(*number.lock() >= ROUNDS);
    }

    #[test]
    fn one_ring_for_one_wakes_each_in_turn() {
        let (tokens, bell) = (Mutex::new(Rank::Leaf, 0), Bell::default());
        threads::workers("taker", 5, |thread| {
            if thread == 0 {
                for _ in 0..4 {
                    *tokens.lock() += 1;
                    bell.ring_one();
                }
                return;
            }
            loop {
                let mut guard = tokens.lock();
                if *guard > 0 {
                    *guard -= 1;
                    return;
                }
                bell.wait(guard, None);
            }
        })
        .unwrap();
        assert_eq!(tokens.into_inner(), 0);
    }
}
