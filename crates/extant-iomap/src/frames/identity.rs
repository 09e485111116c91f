//! Who a frame is, and how many hold it to that.
//!
//! Compiled twice: over the atomics of the machine, and in tests over those of a model checker
//! that tries every order (`model.rs`).
//!
//! # Invariants
//!
//! - P1. The count moves from 0 or 1 to dead by one compare-and-exchange, so nobody has a pin
//!   then but, at 1, the one who gives it up. All else about it is addition: a looker with an old
//!   number may add at any moment, also to a dead frame, and subtracts what it added.
//! - P2. The identity changes only while the frame is dead, by whoever has its pages. So it does
//!   not change under a pin.
//! - P3. A pin is had by adding first and looking afterwards.
//!
//! # Order of memory
//!
//! - Publishing releases, adding acquires: who adds to a live frame sees its identity, and all that
//!   was done to its pages before.
//! - Subtracting releases, killing acquires: what a holder did with the pages is done before they
//!   are given to another.
//! - Nothing here is about two frames, so no order over all threads is needed.

use super::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// In the count: nobody may pin, the pages are free or somebody's who makes a folio of them.
const DEAD: u32 = 1 << 31;
/// No file.
const NONE: u64 = u64::MAX;

/// Looked at since the eviction's hand came by.
pub(super) const USED: u8 = 1;
/// No longer part of its file.
pub(super) const DETACHED: u8 = 2;
/// On its file's list of dirty folios.
pub(super) const LISTED: u8 = 4;
/// Made for a reader that has not come yet.
pub(super) const AHEAD: u8 = 8;

/// The part of a frame that lookers race for.
pub(super) struct Identity {
    refs: AtomicU32,
    order: AtomicU8,
    flags: AtomicU8,
    file: AtomicU64,
    start: AtomicU64,
}

impl Identity {
    /// Dead.
    pub(super) fn new() -> Identity {
        Identity {
            refs: AtomicU32::new(DEAD),
            order: AtomicU8::new(0),
            flags: AtomicU8::new(0),
            file: AtomicU64::new(NONE),
            start: AtomicU64::new(NONE),
        }
    }

    /// Makes a dead frame live, with one pin.
    ///
    /// # Panics
    ///
    /// When it is not dead: somebody else has these pages.
    #[track_caller]
    pub(super) fn publish(&self, file: u64, start: u64, order: u8) {
        // Before the stores, or they would change a live folio. Nobody else ends its death.
        assert!(self.refs.load(Ordering::Relaxed) & DEAD != 0, "a live frame published again");
        self.file.store(file, Ordering::Relaxed);
        self.start.store(start, Ordering::Relaxed);
        self.order.store(order, Ordering::Relaxed);
        self.flags.store(0, Ordering::Relaxed);
        // The addition carries out of the dead bit: passing lookers stay counted.
        self.refs.fetch_add(DEAD + 1, Ordering::Release);
    }

    /// A pin, if this is the folio of that page of that file, and part of the file.
    #[inline]
    pub(super) fn pin(&self, file: u64, page: u64) -> bool {
        // Most wrong guesses end here, without a write that others would feel. A frame that is
        // right is not missed: who was told of it sees what was published before.
        if !self.is(file, page) || !self.pin_any() {
            return false;
        }
        if self.is(file, page) {
            return true;
        }
        self.unpin();
        false
    }

    /// A pin, if it is live, whatever it is.
    #[inline]
    pub(super) fn pin_any(&self) -> bool {
        // Again without a write, for what is seen to be dead.
        if self.refs.load(Ordering::Relaxed) & DEAD != 0 {
            return false;
        }
        if self.refs.fetch_add(1, Ordering::Acquire) & DEAD == 0 {
            return true;
        }
        // Nothing was looked at, so nothing is released.
        self.refs.fetch_sub(1, Ordering::Relaxed);
        false
    }

    /// One more pin, for somebody who has one.
    #[inline]
    pub(super) fn pin_again(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives up a pin.
    #[inline]
    pub(super) fn unpin(&self) {
        self.refs.fetch_sub(1, Ordering::Release);
    }

    /// From no pins to dead; false when there is a pin, or it is dead already.
    pub(super) fn kill(&self) -> bool {
        self.kill_at(0)
    }

    /// From the caller's pin to dead; false when there are others: the caller keeps its own.
    pub(super) fn kill_pinned(&self) -> bool {
        self.kill_at(1)
    }

    fn kill_at(&self, pins: u32) -> bool {
        let killed = self.refs.compare_exchange(pins, DEAD, Ordering::Acquire, Ordering::Relaxed);
        if killed.is_ok() {
            self.file.store(NONE, Ordering::Relaxed);
            self.start.store(NONE, Ordering::Relaxed);
        }
        killed.is_ok()
    }

    /// How many pins there are, those of passing lookers included.
    pub(super) fn pins(&self) -> u32 {
        self.refs.load(Ordering::Relaxed) & !DEAD
    }

    #[inline]
    fn is(&self, file: u64, page: u64) -> bool {
        self.file() == file
            && page.checked_sub(self.start()).is_some_and(|behind| behind < 1 << self.order())
            && !self.has(DETACHED)
    }

    #[inline]
    pub(super) fn file(&self) -> u64 {
        self.file.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn start(&self) -> u64 {
        self.start.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn order(&self) -> u8 {
        self.order.load(Ordering::Relaxed)
    }

    /// Whether a flag is set.
    #[inline]
    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flag != 0
    }

    /// Sets a flag, by a holder of a pin; returns whether it was clear. Writes only then.
    #[inline]
    pub(super) fn set(&self, flag: u8) -> bool {
        !self.has(flag) && self.flags.fetch_or(flag, Ordering::AcqRel) & flag == 0
    }

    /// Clears a flag, by a holder of a pin; returns whether it was set. Writes only then.
    #[inline]
    pub(super) fn take(&self, flag: u8) -> bool {
        self.has(flag) && self.flags.fetch_and(!flag, Ordering::AcqRel) & flag != 0
    }
}
