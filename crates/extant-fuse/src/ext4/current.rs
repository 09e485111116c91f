//! The file system that is served, which is replaced when a read-only mount becomes writable.
//!
//! Opening for writing replays the journal, through which a read-only mount reads the image, so no
//! request may be under way in the old one meanwhile, and none may use it afterwards.
//!
//! # Invariants
//!
//! - F1. While [`Current::take_turn`] is held, no request is being answered, except those that do
//!   not use the file system ([`Current::use_it`]).
//! - F2. The earlier file system stays in memory until the end, for threads that borrowed it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use extant::Fs;
use extant_sync::{Rank, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// File systems that one mount may serve, one after the other. Each try that got as far as the image takes
/// one, and then it must be mounted again.
const SERVED_MAX: usize = 8;

/// See the head of this module.
pub(super) struct Current {
    first: Fs,
    later: [OnceLock<Fs>; SERVED_MAX - 1],
    /// How many later ones there are.
    at: AtomicUsize,
    /// The file system was opened for writing.
    is_writable: AtomicBool,
    /// The file system may become another one.
    may_change: AtomicBool,
    turn: RwLock<()>,
}

impl Current {
    /// `may_change`: it may be replaced by one that is opened for writing.
    pub(super) fn new(fs: Fs, may_change: bool) -> Current {
        let is_writable = fs.writer_stats().is_some();
        Current {
            first: fs,
            later: Default::default(),
            at: AtomicUsize::new(0),
            is_writable: AtomicBool::new(is_writable),
            may_change: AtomicBool::new(may_change && !is_writable),
            turn: RwLock::new(Rank::Current, ()),
        }
    }

    /// The file system as it is served now.
    pub(super) fn get(&self) -> &Fs {
        let last = self.at.load(Ordering::Acquire).checked_sub(1);
        last.and_then(|last| self.later.get(last)?.get()).unwrap_or(&self.first)
    }

    pub(super) fn is_writable(&self) -> bool {
        self.is_writable.load(Ordering::Acquire)
    }

    /// Returns whether it may become another one.
    pub(super) fn may_change(&self) -> bool {
        self.may_change.load(Ordering::Acquire)
    }

    /// Keeps the file system in place for a thread that answers a request, until the guard is
    /// dropped. `None` where it cannot change.
    pub(super) fn use_it(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.may_change().then(|| self.turn.read())
    }

    /// Waits for the users of the file system, and keeps others out.
    pub(super) fn take_turn(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write()
    }

    /// Returns whether [`replace`](Self::replace) can be called once more.
    pub(super) fn has_room(&self) -> bool {
        self.at.load(Ordering::Acquire) < self.later.len()
    }

    /// Serves `fs` from now on. The caller has the turn.
    pub(super) fn replace(&self, fs: Fs) {
        let at = self.at.load(Ordering::Acquire);
        let is_writable = fs.writer_stats().is_some();
        let Some(place) = self.later.get(at) else { return };
        let _ = place.set(fs);
        self.at.store(at + 1, Ordering::Release);
        self.is_writable.store(is_writable, Ordering::Release);
        if is_writable {
            self.may_change.store(false, Ordering::Release);
        }
    }
}
