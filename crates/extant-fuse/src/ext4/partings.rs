//! Removed inodes that the kernel is about to forget.
//!
//! Linux gives back what a removed file took before `unlink`, or the last `close` of it, returns.
//! Here it is given back when the kernel forgets the inode, and the kernel says that later, beside
//! the next requests of programs. So who finds no room just after something was removed waits for a
//! moment until it is forgotten, and tries again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use extant_base::sabotage;
use extant_sync::{Clock, Condvar, Mutex, Rank};

/// How long after a removal its inode is waited for. What programs still have open stays longer.
const WAIT: Duration = Duration::from_millis(100);
/// How long anything is waited for that was removed before and is not forgotten: a program may just have
/// closed it, which the kernel says beside its next request.
const CLOSING: Duration = Duration::from_millis(20);

/// How often inodes without a name were forgotten, and when the last one lost its name. Changes that
/// find room, removals and the kernel's forgetting take no lock.
pub(super) struct Partings {
    /// When a last name was taken, in nanoseconds of the clock that counts on; 0 for never.
    began: AtomicU64,
    /// How many were forgotten.
    count: AtomicU64,
    /// How many have lost their last name and are not forgotten, at least.
    there: AtomicU64,
    /// Threads that wait for the next one.
    waiting: AtomicU32,
    sleep: Mutex<()>,
    ended: Condvar,
}

impl Partings {
    pub(super) fn new() -> Partings {
        Partings {
            began: AtomicU64::new(0),
            count: AtomicU64::new(0),
            there: AtomicU64::new(0),
            waiting: AtomicU32::new(0),
            sleep: Mutex::new(Rank::Leaf, ()),
            ended: Condvar::new(),
        }
    }

    /// An inode has lost its last name, and the kernel knows it.
    pub(super) fn began(&self, now: Duration) {
        let nanos = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.began.store(nanos.max(1), Ordering::Relaxed);
        self.there.fetch_add(1, Ordering::Relaxed);
    }

    /// The kernel has forgotten an inode without a name.
    pub(super) fn ended(&self) {
        // Either the waiter that comes now sees the new count, or it is seen here.
        self.count.fetch_add(1, Ordering::SeqCst);
        // Some never had a name.
        let less = |there: u64| there.checked_sub(1);
        let _ = self.there.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // Who looked at the count before is asleep once the lock is free.
            drop(self.sleep.lock());
            self.ended.notify_all();
        }
    }

    /// How many were forgotten so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// Waits until more than `count` are forgotten. Returns false when nothing was removed within
    /// the last tenth of a second, and nothing that was removed before is closed within a fiftieth;
    /// takes no longer than that.
    pub(super) fn wait(&self, count: u64, clock: &dyn Clock) -> bool {
        if sabotage("fuse.partings.not-waited-for") {
            return false;
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let has_ended = self.sleep_until_more_than(count, clock);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        has_ended
    }

    fn sleep_until_more_than(&self, count: u64, clock: &dyn Clock) -> bool {
        let closed = match self.there.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            _ => clock.monotonic().saturating_add(CLOSING),
        };
        let mut guard = self.sleep.lock();
        while self.count() == count {
            let began = self.began.load(Ordering::Relaxed);
            let until = match began {
                0 => closed,
                _ => Duration::from_nanos(began).saturating_add(WAIT).max(closed),
            };
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return false;
            }
            self.ended.wait_for(&mut guard, left);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::{SystemClock, threads};

    #[test]
    fn only_what_was_removed_a_moment_ago_is_waited_for() {
        let (partings, clock) = (Partings::new(), SystemClock);
        assert!(!partings.wait(0, &clock), "nothing was removed");
        partings.began(clock.monotonic());
        let before = clock.monotonic();
        assert!(!partings.wait(0, &clock), "it is still in use");
        assert!(clock.monotonic().saturating_sub(before) >= WAIT / 2);
        let before = clock.monotonic();
        assert!(!partings.wait(0, &clock), "and is waited for shortly from then on");
        assert!(clock.monotonic().saturating_sub(before) >= CLOSING);
        partings.ended();
        assert!(partings.wait(0, &clock), "it was forgotten before");
        partings.began(clock.monotonic());
        threads::scope(|scope| {
            let waiter = scope.spawn("waiter", || partings.wait(1, &SystemClock)).unwrap();
            partings.ended();
            assert!(waiter.join().unwrap());
        })
        .unwrap();
        assert_eq!(partings.count(), 2);
    }
}
