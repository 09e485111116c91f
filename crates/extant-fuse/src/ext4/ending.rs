//! The end of a file system, which may be requested several times: by the kernel when the mount is
//! gone, by a signal, by the end of the connection.
//!
//! # Invariants
//!
//! - D1. It is ended once, by the first request; the others wait until that is done.

use extant_sync::{Condvar, Mutex, Rank};

/// See the head of this module.
pub(super) struct Ending {
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Open,
    Going,
    /// With the result, until it is taken.
    Over(Option<extant::Result<()>>),
}

impl Ending {
    pub(super) fn new() -> Ending {
        Ending { state: Mutex::new(Rank::Leaf, State::Open), changed: Condvar::new() }
    }

    /// Runs `end` if no thread has, or waits until it has run.
    pub(super) fn reach(&self, end: impl FnOnce() -> extant::Result<()>) {
        let mut state = self.state.lock();
        if !matches!(*state, State::Open) {
            while matches!(*state, State::Going) {
                self.changed.wait(&mut state);
            }
            return;
        }
        *state = State::Going;
        drop(state);
        // This also runs when `end` panics: no thread may wait for ever.
        let mut over = Over { ending: self, result: None };
        over.result = Some(end());
    }

    /// Returns the result of the end, to the first caller after it.
    pub(super) fn take(&self) -> Option<extant::Result<()>> {
        match &mut *self.state.lock() {
            State::Over(result) => result.take(),
            State::Open | State::Going => None,
        }
    }
}

struct Over<'a> {
    ending: &'a Ending,
    result: Option<extant::Result<()>>,
}

impl Drop for Over<'_> {
    fn drop(&mut self) {
        *self.ending.state.lock() = State::Over(self.result.take());
        self.ending.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use extant_sync::threads;

    use super::*;

    #[test]
    fn it_comes_once_and_everybody_waits_for_it() {
        let (ending, ends) = (Ending::new(), AtomicU32::new(0));
        assert!(ending.take().is_none());
        threads::workers("end", 4, |_| {
            ending.reach(|| {
                ends.fetch_add(1, Ordering::SeqCst);
                Ok(())
            });
            assert_eq!(ends.load(Ordering::SeqCst), 1, "it is over");
        })
        .unwrap();
        assert!(matches!(ending.take(), Some(Ok(()))) && ending.take().is_none());
    }

    #[test]
    fn a_panic_leaves_nobody_waiting() {
        let ending = Ending::new();
        let failed = threads::workers("end", 1, |_| ending.reach(|| panic!("as it must")));
        assert!(failed.is_err());
        ending.reach(|| unreachable!("it is over"));
        assert!(ending.take().is_none());
    }
}
