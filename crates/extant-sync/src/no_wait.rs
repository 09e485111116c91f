//! Scopes in which a thread may not wait: debug builds panic where it would.
//!
//! # Place
//!
//! The promise "this does not block" depends on many independent places. A test opens a scope and
//! runs the operation; every place that could wait calls [`check_may_wait`], and the first one that
//! the operation reaches panics with its own line.
//!
//! # Waiting
//!
//! These count as waiting: a condition, a bell or the clock; a lock that another thread has; an
//! operation of a device; the start of a journal handle. Taking a lock that happens to be free is
//! allowed, because the operations that may not wait try such locks and give up.
//!
//! A lock of rank [`Leaf`](Rank::Leaf) does not count as waiting even when it is taken: no other
//! lock is taken inside of one, so it is held for a few instructions only.

#[cfg(debug_assertions)]
use std::cell::Cell;
use std::marker::PhantomData;

use crate::Rank;

#[cfg(debug_assertions)]
thread_local! {
    static SCOPES: Cell<u32> = const { Cell::new(0) };
}

/// A scope in which this thread may not wait; it ends when this is dropped. Scopes may be nested.
/// Release builds check nothing.
///
/// It is not `Send`, because it concerns the thread that opened it.
#[must_use = "the scope ends when this is dropped"]
#[derive(Debug)]
pub struct NoWaiting(PhantomData<*const ()>);

/// Begins a scope in which waiting panics, in debug builds.
///
/// ```
/// use extant_sync::{Mutex, Rank, no_waiting};
/// let lock = Mutex::new(Rank::Leaf, 1);
/// let scope = no_waiting();
/// assert_eq!(*lock.lock(), 1); // It is free.
/// drop(scope);
/// ```
pub fn no_waiting() -> NoWaiting {
    #[cfg(debug_assertions)]
    SCOPES.set(SCOPES.get() + 1);
    NoWaiting(PhantomData)
}

impl Drop for NoWaiting {
    fn drop(&mut self) {
        #[cfg(debug_assertions)]
        SCOPES.set(SCOPES.get().saturating_sub(1));
    }
}

/// Declares that the caller may wait here, for `what`. Release builds do nothing.
///
/// # Panics
///
/// In debug builds, within [`no_waiting`].
#[track_caller]
#[inline]
pub fn check_may_wait(what: &str) {
    #[cfg(debug_assertions)]
    if SCOPES.get() > 0 && !std::thread::panicking() {
        panic!("this thread may not wait, and would for {what}");
    }
    #[cfg(not(debug_assertions))]
    let _ = what;
}

/// Declares that a lock of this rank is not free.
#[track_caller]
#[inline]
pub(crate) fn check_may_wait_for_lock(rank: Rank) {
    if rank != Rank::Leaf {
        check_may_wait("a lock that somebody has");
    }
}

#[cfg(test)]
#[cfg_attr(not(debug_assertions), allow(unused_imports, dead_code))]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::time::Duration;

    use super::*;
    use crate::{Bell, Clock, Condvar, Mutex, RwLock, SystemClock, threads};

    fn refused(act: impl FnOnce()) -> bool {
        let _scope = no_waiting();
        catch_unwind(AssertUnwindSafe(act)).is_err()
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "checked in debug builds only")]
    fn whatever_could_wait_is_refused_inside_and_only_there() {
        let (lock, shared) = (Mutex::new(Rank::FileMap, ()), RwLock::new(Rank::Group, ()));
        let (condition, bell) = (Condvar::new(), Bell::default());
        let brief = Duration::from_millis(1);
        let waits: [&dyn Fn(); 4] = [
            &|| _ = condition.wait_for(&mut lock.lock(), brief),
            &|| _ = bell.wait(lock.lock(), Some(brief)),
            &|| SystemClock.sleep(brief),
            &|| check_may_wait("a test"),
        ];
        for wait in waits {
            wait();
            assert!(refused(wait));
            wait();
        }
        // What is free is taken; what somebody has is not waited for.
        assert!(!refused(|| drop((lock.lock(), shared.read()))));
        let held = (lock.lock(), shared.write());
        threads::scope(|s| {
            let other = || {
                assert!(refused(|| drop(lock.lock())));
                assert!(refused(|| drop(shared.read())));
                assert!(refused(|| drop(shared.write())));
                assert!(!refused(|| assert!(lock.try_lock().is_none())));
            };
            s.spawn("other", other).unwrap().join().unwrap();
        })
        .unwrap();
        drop(held);
        // What is held for a few instructions is no wait.
        let leaf = Mutex::new(Rank::Leaf, ());
        threads::scope(|s| {
            let held = leaf.lock();
            let other = s.spawn("other", || assert!(!refused(|| drop(leaf.lock())))).unwrap();
            SystemClock.sleep(Duration::from_millis(20));
            drop(held);
            other.join().unwrap();
        })
        .unwrap();
        // Scopes within each other, and the end of a panic.
        let outer = no_waiting();
        drop(no_waiting());
        assert!(catch_unwind(|| check_may_wait("a test")).is_err());
        drop(outer);
        check_may_wait("a test");
    }
}
