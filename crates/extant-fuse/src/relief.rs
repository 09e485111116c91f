//! Threads that take over while every other one waits for a device.
//!
//! A request that memory can answer is answered by the thread that takes it, at once. One that needs
//! the device holds its thread for as long as the device likes; when all threads are held so, the
//! mount would stand still, for programs that ask for something else as well. Then one more thread
//! begins, and goes again when it is not needed.
//!
//! # Invariants
//!
//! - H1. While a thread is free to take requests, nobody watches: a request costs two additions.
//! - H2. While none is free, a thread begins for each [`STUCK`] in which no request was taken, up to
//!   [`SPARES`].
//! - H3. No wakeup is lost: who takes the last free place looks for a sleeping watcher afterwards,
//!   and the watcher says that it sleeps before it counts the free ones, under the lock.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use extant_sync::{Condvar, Mutex, Rank};

/// Limit of the threads that take over.
pub(crate) const SPARES: usize = 32;
/// Time without a new request after which all threads count as stuck.
const STUCK: Duration = Duration::from_millis(20);
/// Number of free threads from which one that took over goes, if there are as many.
const ENOUGH: usize = 2;

struct State {
    /// Number of threads that have not ended.
    running: usize,
    /// Numbers of threads that may begin.
    spare: Vec<usize>,
}

/// What the threads of a mount and their watcher share.
pub(crate) struct Relief {
    state: Mutex<State>,
    news: Condvar,
    /// Number of threads that are free to take a request.
    free: AtomicUsize,
    /// Number of requests taken.
    taken: AtomicU64,
    sleeps: AtomicBool,
    enough: usize,
}

impl Relief {
    /// For `threads` threads, numbered from 0, that are about to begin.
    pub(crate) fn new(threads: usize) -> Relief {
        let spare = (threads..threads + SPARES).rev().collect();
        Relief {
            state: Mutex::new(Rank::Leaf, State { running: threads, spare }),
            news: Condvar::new(),
            free: AtomicUsize::new(0),
            taken: AtomicU64::new(0),
            sleeps: AtomicBool::new(false),
            enough: threads.min(ENOUGH),
        }
    }

    /// The thread waits for requests from now on.
    pub(crate) fn waits(&self) {
        self.free.fetch_add(1, Ordering::SeqCst);
    }

    /// The thread has taken a request, or ends.
    pub(crate) fn took(&self) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if self.free.fetch_sub(1, Ordering::SeqCst) == 1 && self.sleeps.load(Ordering::SeqCst) {
            self.wake();
        }
    }

    /// Returns whether a thread that took over may go: others are free.
    pub(crate) fn has_enough(&self) -> bool {
        self.free.load(Ordering::Relaxed) >= self.enough
    }

    /// The thread has ended; `spare` is its number if it took over.
    pub(crate) fn ended(&self, spare: Option<usize>) {
        let mut state = self.state.lock();
        state.running -= 1;
        state.spare.extend(spare);
        drop(state);
        self.wake();
    }

    fn wake(&self) {
        drop(self.state.lock());
        self.news.notify_all();
    }

    /// Has `begin` start a thread of a number whenever all are stuck, until every thread has ended.
    /// `begin` returns whether there is one.
    pub(crate) fn watch(&self, mut begin: impl FnMut(usize) -> bool) {
        let mut seen = None;
        loop {
            let mut state = self.state.lock();
            if state.running == 0 {
                return;
            }
            self.sleeps.store(true, Ordering::SeqCst);
            if self.free.load(Ordering::SeqCst) > 0 {
                seen = None;
                self.news.wait(&mut state);
                self.sleeps.store(false, Ordering::SeqCst);
                continue;
            }
            self.sleeps.store(false, Ordering::SeqCst);
            let taken = self.taken.load(Ordering::Relaxed);
            if seen.replace(taken) != Some(taken) || state.spare.is_empty() {
                _ = self.news.wait_for(&mut state, STUCK);
                continue;
            }
            let Some(number) = state.spare.pop() else { continue };
            state.running += 1;
            drop(state);
            if !begin(number) {
                self.ended(Some(number));
            }
            seen = None;
            // It may take a while until it waits.
            _ = self.news.wait_for(&mut self.state.lock(), STUCK);
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_sync::threads;

    use super::*;

    #[test]
    fn a_thread_begins_only_while_all_are_stuck_and_the_watch_ends_with_the_last() {
        let relief = Relief::new(2);
        let begun = Mutex::new(Rank::Leaf, Vec::new());
        relief.waits();
        relief.waits();
        threads::scope(|s| {
            let watch = || {
                relief.watch(|number| {
                    begun.lock().push(number);
                    relief.waits();
                    true
                });
            };
            let watcher = s.spawn("watch", watch).unwrap();
            relief.took();
            assert!(!relief.has_enough());
            extant_sync::Clock::sleep(&extant_sync::SystemClock, STUCK * 4);
            assert!(begun.lock().is_empty(), "one was free");
            relief.took();
            let until = || !begun.lock().is_empty();
            while !until() {
                std::hint::spin_loop();
            }
            assert_eq!(*begun.lock(), [2]);
            relief.waits();
            assert!(relief.has_enough());
            relief.ended(Some(2));
            relief.ended(None);
            relief.ended(None);
            watcher.join().unwrap();
        })
        .unwrap();
        assert!(begun.lock().iter().all(|number| *number == 2 || *number == 3));
    }
}
