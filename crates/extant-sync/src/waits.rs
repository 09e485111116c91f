//! Counts of the waits for locks.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::clock::{Clock, SystemClock};
use crate::rank::Rank;

struct Count {
    waits: AtomicU64,
    nanos: AtomicU64,
}

/// Counts of the whole process: locks of one rank are counted together, for all file systems.
static COUNTS: [Count; Rank::ALL.len() + 1] =
    [const { Count { waits: AtomicU64::new(0), nanos: AtomicU64::new(0) } }; Rank::ALL.len() + 1];

/// Waits for locks of one rank since the process began.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockWaits {
    /// The rank.
    pub rank: Rank,
    /// Number of times that a lock was not free at once.
    pub waits: u64,
    /// Total time of these waits.
    pub time: Duration,
}

/// Returns the waits for locks of this process, by rank. Taking a free lock is not counted and
/// costs nothing.
///
/// ```
/// use extant_sync::{Mutex, Rank, lock_waits};
/// let lock = Mutex::new(Rank::Group, ());
/// let _free = lock.lock();
/// assert_eq!(lock_waits().len(), 15);
/// ```
pub fn lock_waits() -> Vec<LockWaits> {
    let of = |rank: &Rank| {
        let count = &COUNTS[*rank as usize];
        LockWaits {
            rank: *rank,
            waits: count.waits.load(Ordering::Relaxed),
            time: Duration::from_nanos(count.nanos.load(Ordering::Relaxed)),
        }
    };
    Rank::ALL.iter().map(of).collect()
}

/// Counts and times the wait in `lock`.
#[cold]
pub(crate) fn waited<G>(rank: Rank, lock: impl FnOnce() -> G) -> G {
    let began = SystemClock.monotonic();
    let guard = lock();
    let nanos = SystemClock.monotonic().saturating_sub(began).as_nanos();
    let count = &COUNTS[rank as usize];
    count.waits.fetch_add(1, Ordering::Relaxed);
    count.nanos.fetch_add(u64::try_from(nanos).unwrap_or(u64::MAX), Ordering::Relaxed);
    guard
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Mutex, threads};

    fn waits_of(rank: Rank) -> u64 {
        lock_waits().iter().find(|one| one.rank == rank).unwrap().waits
    }

    #[test]
    fn every_rank_has_a_place() {
        for (at, rank) in Rank::ALL.iter().enumerate() {
            assert_eq!(*rank as usize, at + 1);
        }
    }

    #[test]
    fn a_wait_is_counted_and_a_free_lock_is_not() {
        // A rank that no other test of this crate waits for.
        let lock = Mutex::new(Rank::FileMap, ());
        let before = waits_of(Rank::FileMap);
        drop(lock.lock());
        assert_eq!(waits_of(Rank::FileMap), before);
        // A busy machine may let the thread come to the lock only when it is free again.
        let has_waited = (0..100).any(|_| {
            let held = lock.lock();
            threads::scope(|s| {
                let waiter = s.spawn("waiter", || drop(lock.lock())).unwrap();
                SystemClock.sleep(Duration::from_millis(50));
                drop(held);
                waiter.join().unwrap();
            })
            .unwrap();
            waits_of(Rank::FileMap) > before
        });
        assert!(has_waited);
        assert_eq!(waits_of(Rank::FileMap), before + 1);
    }
}
