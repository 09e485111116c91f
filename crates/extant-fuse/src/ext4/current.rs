//! The file system that is served, which is another one after a mount for reading has become writable.
//!
//! Opening for writing replays the journal, over which a mount for reading looks at the image, so
//! nothing may be under way in the old one meanwhile, and nobody may look at it afterwards.
//!
//! # Invariants
//!
//! - F1. While [`Current::take_turn`] is held, no request is being answered that did not say otherwise
//!   ([`Current::use_it`]).
//! - F2. What was served before stays in memory until the end: whoever borrowed it may go on.

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
    /// It was opened for writing.
    is_writable: AtomicBool,
    /// It may become another one.
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

    /// Whether it may become another one.
    pub(super) fn may_change(&self) -> bool {
        self.may_change.load(Ordering::Acquire)
    }

    /// For whoever answers a request, until it is answered: it stays the same one. Nothing where it cannot
    /// change.
    pub(super) fn use_it(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.may_change().then(|| self.turn.read())
    }

    /// Waits for whoever uses it, and keeps others out.
    pub(super) fn take_turn(&self) -> RwLockWriteGuard<'_, ()> {
        self.turn.write()
    }

    /// Whether [`replace`](Self::replace) can be called once more.
    pub(super) fn has_room(&self) -> bool {
        self.at.load(Ordering::Acquire) < self.later.len()
    }

    /// Serves `fs` from now on. For who has the turn.
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
