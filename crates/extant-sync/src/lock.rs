//! Locks with a rank, over `parking_lot`.
#![expect(clippy::disallowed_types, reason = "this module is what the ban points to")]

use std::fmt;
use std::ops::{Deref, DerefMut};

use crate::no_wait::check_may_wait_for_lock;
use crate::rank::{Hold, Rank, RankToken};
use crate::waits::waited;

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $inner:ident $(, $mutable:ident)?) => {
        $(#[$doc])*
        ///
        /// It is not `Send`: the rank check belongs to the thread that took the lock.
        #[must_use = "the lock is released when the guard is dropped"]
        pub struct $name<'a, T: ?Sized> {
            // Field order is drop order: the lock goes first, then the note that it is held.
            guard: parking_lot::$inner<'a, T>,
            _token: RankToken,
        }

        impl<T: ?Sized> Deref for $name<'_, T> {
            type Target = T;

            fn deref(&self) -> &T {
                &self.guard
            }
        }

        $(impl<T: ?Sized> DerefMut for $name<'_, T> {
            fn $mutable(&mut self) -> &mut T {
                &mut self.guard
            }
        })?

        impl<T: ?Sized + fmt::Debug> fmt::Debug for $name<'_, T> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                (**self).fmt(f)
            }
        }
    };
}

guard! {
    /// Exclusive access to what a [`Mutex`] protects.
    MutexGuard, MutexGuard, deref_mut
}
guard! {
    /// Shared access to what an [`RwLock`] protects.
    RwLockReadGuard, RwLockReadGuard
}
guard! {
    /// Exclusive access to what an [`RwLock`] protects.
    RwLockWriteGuard, RwLockWriteGuard, deref_mut
}

impl<T: ?Sized> MutexGuard<'_, T> {
    /// Calls `f` while others may take the lock. Its rank stays taken.
    pub(crate) fn unlocked<R>(&mut self, f: impl FnOnce() -> R) -> R {
        parking_lot::MutexGuard::unlocked(&mut self.guard, f)
    }
}

/// The position of a lock among those of its rank. Only debug builds keep it, because release
/// builds have millions of locks.
#[derive(Clone, Copy)]
struct Order {
    #[cfg(debug_assertions)]
    key: Option<u64>,
}

impl Order {
    const NONE: Order = Order {
        #[cfg(debug_assertions)]
        key: None,
    };

    #[cfg_attr(not(debug_assertions), expect(unused_variables, reason = "not kept"))]
    const fn key(key: u64) -> Order {
        Order {
            #[cfg(debug_assertions)]
            key: Some(key),
        }
    }

    const fn get(self) -> Option<u64> {
        #[cfg(debug_assertions)]
        return self.key;
        #[cfg(not(debug_assertions))]
        None
    }
}

/// A mutex with a rank. It has no poisoning: a panic in a critical section is a bug, and the panic
/// itself is reported.
///
/// ```
/// use extant_sync::{Mutex, Rank};
/// let count = Mutex::new(Rank::Leaf, 1);
/// *count.lock() += 1;
/// assert_eq!(count.into_inner(), 2);
/// ```
pub struct Mutex<T: ?Sized> {
    rank: Rank,
    order: Order,
    inner: parking_lot::Mutex<T>,
}

impl<T> Mutex<T> {
    /// Creates a lock that is never held together with another of its rank.
    pub const fn new(rank: Rank, value: T) -> Mutex<T> {
        Mutex { rank, order: Order::NONE, inner: parking_lot::Mutex::new(value) }
    }

    /// Creates a lock that may be held together with others of its rank, taken in ascending
    /// `order`.
    pub const fn with_order(rank: Rank, order: u64, value: T) -> Mutex<T> {
        Mutex { rank, order: Order::key(order), inner: parking_lot::Mutex::new(value) }
    }

    /// Returns the value, consuming the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Waits for the lock.
    ///
    /// # Panics
    ///
    /// In debug builds, when this thread holds a lock that must come later; within
    /// [`no_waiting`](crate::no_waiting), when the lock is taken, unless it is a leaf.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        let guard = match self.inner.try_lock() {
            Some(guard) => guard,
            None => {
                check_may_wait_for_lock(self.rank);
                waited(self.rank, || self.inner.lock())
            }
        };
        MutexGuard { guard, _token: token }
    }

    /// Takes the lock if it is free. The rank is checked as by [`lock`](Self::lock), although this
    /// call never waits, so that the check does not depend on timing.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        self.inner.try_lock().map(|guard| MutexGuard { guard, _token: token })
    }

    /// Returns the value without locking: an exclusive borrow proves that no other thread has
    /// access.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn id(&self) -> usize {
        (&raw const self.inner).addr()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mutex").field("rank", &self.rank).field("inner", &&self.inner).finish()
    }
}

/// A readers-writer lock with a rank. A thread must not read-lock twice: a waiting writer between
/// the two would block it for ever, so the check refuses that too.
pub struct RwLock<T: ?Sized> {
    rank: Rank,
    order: Order,
    inner: parking_lot::RwLock<T>,
}

impl<T> RwLock<T> {
    /// Creates a lock that is never held together with another of its rank.
    pub const fn new(rank: Rank, value: T) -> RwLock<T> {
        RwLock { rank, order: Order::NONE, inner: parking_lot::RwLock::new(value) }
    }

    /// Creates a lock that may be held together with others of its rank, taken in ascending
    /// `order`.
    pub const fn with_order(rank: Rank, order: u64, value: T) -> RwLock<T> {
        RwLock { rank, order: Order::key(order), inner: parking_lot::RwLock::new(value) }
    }

    /// Returns the value, consuming the lock.
    pub fn into_inner(self) -> T {
        self.inner.into_inner()
    }
}

impl<T: ?Sized> RwLockReadGuard<'_, T> {
    /// Gives up access and goes on to count as a holder for the check of ranks: until the result is
    /// dropped, the thread may take what it might have taken with the lock, and not the lock itself.
    pub fn into_hold(guard: Self) -> Hold {
        let RwLockReadGuard { guard, _token: token } = guard;
        drop(guard);
        Hold::from(token)
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Waits for shared access.
    ///
    /// # Panics
    ///
    /// In debug builds, when this thread holds a lock that must come later; within
    /// [`no_waiting`](crate::no_waiting), when the lock is taken, unless it is a leaf.
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        let guard = match self.inner.try_read() {
            Some(guard) => guard,
            None => {
                check_may_wait_for_lock(self.rank);
                waited(self.rank, || self.inner.read())
            }
        };
        RwLockReadGuard { guard, _token: token }
    }

    /// Waits for exclusive access.
    ///
    /// # Panics
    ///
    /// In debug builds, when this thread holds a lock that must come later; within
    /// [`no_waiting`](crate::no_waiting), when the lock is taken, unless it is a leaf.
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        let guard = match self.inner.try_write() {
            Some(guard) => guard,
            None => {
                check_may_wait_for_lock(self.rank);
                waited(self.rank, || self.inner.write())
            }
        };
        RwLockWriteGuard { guard, _token: token }
    }

    /// Takes shared access if it is free now; the rank is checked as by [`read`](Self::read).
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        self.inner.try_read().map(|guard| RwLockReadGuard { guard, _token: token })
    }

    /// Takes exclusive access if it is free now; the rank is checked as by [`write`](Self::write).
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let token = RankToken::acquire(self.rank, self.order.get(), self.id());
        self.inner.try_write().map(|guard| RwLockWriteGuard { guard, _token: token })
    }

    /// Returns whether a thread has exclusive access, or waits for it while others have shared access.
    pub fn is_wanted_exclusively(&self) -> bool {
        self.inner.is_locked_exclusive()
    }

    /// Returns the value without locking: an exclusive borrow proves that no other thread has
    /// access.
    pub fn get_mut(&mut self) -> &mut T {
        self.inner.get_mut()
    }

    fn id(&self) -> usize {
        (&raw const self.inner).addr()
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for RwLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("rank", &self.rank).field("inner", &&self.inner).finish()
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a bare thread is the shortest test")]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panics(f: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(f)).is_err()
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "ranks are checked in debug builds only")]
    fn every_pair_of_ranks_is_allowed_only_upwards() {
        for first in Rank::ALL {
            for second in Rank::ALL {
                let (a, b) = (Mutex::new(first, ()), RwLock::new(second, ()));
                let wrong = panics(|| {
                    let _a = a.lock();
                    let _b = b.read();
                });
                assert_eq!(wrong, second <= first, "{second:?} under {first:?}");
                // The failed attempt left nothing behind.
                drop(b.write());
                drop(a.lock());
            }
        }
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "ranks are checked in debug builds only")]
    fn equal_ranks_need_rising_keys() {
        let key = |order| Mutex::with_order(Rank::Group, order, ());
        let (one, two, bare) = (key(1), key(2), Mutex::new(Rank::Group, ()));
        assert!(!panics(|| {
            let _a = one.lock();
            let _b = two.lock();
        }));
        for (first, second) in [(&two, &one), (&one, &one), (&one, &bare), (&bare, &one)] {
            assert!(panics(|| {
                let _a = first.lock();
                let _b = second.try_lock();
            }));
        }
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "ranks are checked in debug builds only")]
    fn who_gave_a_guard_up_for_a_hold_still_counts_as_its_holder() {
        let (lock, above) = (RwLock::new(Rank::InodeContent, ()), Mutex::new(Rank::Folio, ()));
        let (guard, folio) = (lock.read(), above.lock());
        let hold = RwLockReadGuard::into_hold(guard);
        drop(folio);
        // Nobody has the lock, but this thread may not take it.
        std::thread::scope(|scope| scope.spawn(|| drop(lock.write())).join().unwrap());
        assert!(panics(|| drop(lock.read())) && !panics(|| drop(above.lock())));
        drop(hold);
        drop(lock.write());
    }

    #[test]
    fn a_holder_with_others_sees_that_somebody_wants_to_be_alone() {
        let lock = RwLock::new(Rank::Leaf, ());
        let shared = lock.read();
        assert!(!lock.is_wanted_exclusively());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(lock.write()));
            while !lock.is_wanted_exclusively() {
                std::thread::yield_now();
            }
            drop(shared);
            waiter.join().unwrap();
        });
        assert!(!lock.is_wanted_exclusively());
    }

    #[test]
    #[cfg_attr(not(debug_assertions), ignore = "ranks are checked in debug builds only")]
    fn guards_may_end_in_any_order() {
        let (low, high, leaf) = (
            Mutex::new(Rank::Rename, ()),
            RwLock::new(Rank::Group, ()),
            Mutex::new(Rank::Leaf, ()),
        );
        let a = low.lock();
        let b = high.write();
        drop(a);
        assert!(panics(|| drop(low.lock())), "Rename under Group");
        let c = leaf.lock();
        drop(b);
        drop(c);
        drop(low.lock());
    }

    #[test]
    fn try_locks_do_not_wait() {
        let lock = RwLock::new(Rank::Leaf, 5);
        let mutex = Mutex::new(Rank::Leaf, 6);
        std::thread::scope(|s| {
            let guard = lock.read();
            s.spawn(|| {
                assert!(lock.try_write().is_none());
                assert_eq!(lock.try_read().as_deref(), Some(&5));
            })
            .join()
            .unwrap();
            drop(guard);
            let guard = mutex.lock();
            s.spawn(|| assert!(mutex.try_lock().is_none())).join().unwrap();
            drop(guard);
        });
        *lock.try_write().unwrap() = 7;
        assert_eq!((lock.into_inner(), mutex.into_inner()), (7, 6));
    }
}
