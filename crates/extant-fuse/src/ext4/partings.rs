//! Removed inodes that the kernel is about to forget.
//!
//! Linux gives back what a removed file took before `unlink`, or the last `close` of it, returns.
//! Here it is given back when the kernel forgets the inode, and the kernel says that later, beside
//! the next requests of programs. So who finds no room just after something was removed waits for a
//! moment until it is forgotten, and tries again.

use std::time::Duration;

use extant_base::sabotage;
use extant_sync::{Clock, Condvar, Mutex, Rank};

/// How long after a removal its inode is waited for. What programs still have open stays longer.
const WAIT: Duration = Duration::from_millis(100);

/// How often the last name of an inode was taken, and how often such an inode was forgotten.
pub(super) struct Partings {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// When a last name was taken, by the clock that counts on.
    began: Option<Duration>,
    /// How many were forgotten.
    count: u64,
}

impl Partings {
    pub(super) fn new() -> Partings {
        Partings { state: Mutex::new(Rank::Leaf, State::default()), ended: Condvar::new() }
    }

    /// An inode has lost its last name, and the kernel knows it.
    pub(super) fn began(&self, now: Duration) {
        self.state.lock().began = Some(now);
    }

    /// The kernel has forgotten an inode without a name.
    pub(super) fn ended(&self) {
        self.state.lock().count += 1;
        self.ended.notify_all();
    }

    /// How many were forgotten so far.
    pub(super) fn count(&self) -> u64 {
        self.state.lock().count
    }

    /// Waits until more than `count` are forgotten. Returns false when nothing was removed within
    /// the last tenth of a second; takes no longer than that.
    pub(super) fn wait(&self, count: u64, clock: &dyn Clock) -> bool {
        if sabotage("fuse.partings.not-waited-for") {
            return false;
        }
        let mut state = self.state.lock();
        while state.count == count {
            let until = state.began.map_or(Duration::ZERO, |began| began.saturating_add(WAIT));
            let left = until.saturating_sub(clock.monotonic());
            if left.is_zero() {
                return false;
            }
            self.ended.wait_for(&mut state, left);
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
        assert!(!partings.wait(0, &clock), "and nobody waits for it again");
        assert!(clock.monotonic().saturating_sub(before) < WAIT / 2);
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
