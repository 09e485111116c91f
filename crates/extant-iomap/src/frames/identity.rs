//! The identity of a frame, and the count of its pins.
//!
//! Compiled twice: over the atomics of the machine, and in tests over those of a model checker that
//! tries every order (`model.rs`).
//!
//! # Invariants
//!
//! - P1. The count moves from 0 or 1 to dead by one compare-and-exchange, so there is no pin then
//!   except, at 1, the caller's own. All other changes are additions: a thread with an old number
//!   may add at any moment, also to a dead frame, and subtracts what it added.
//! - P2. The identity changes only while the frame is dead, by the owner of its pages. So it does
//!   not change under a pin.
//! - P3. Pinning adds first and checks afterwards.
//!
//! # Order of memory
//!
//! - Publishing releases, adding acquires: a thread that adds to a live frame sees its identity,
//!   and all earlier changes of its pages.
//! - Subtracting releases, killing acquires: accesses by a holder happen before the pages get
//!   another owner.
//! - Nothing here is about two frames, so no order over all threads is needed.

use super::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

/// Bit of the count: pinning is not allowed; the pages are free, or owned by a thread that makes a
/// folio of them.
const DEAD: u32 = 1 << 31;
/// No file.
const NONE: u64 = u64::MAX;

/// The folio was used since the hand of eviction came by.
pub(super) const USED: u8 = 1;
/// The folio is no longer part of its file.
pub(super) const DETACHED: u8 = 2;
/// The folio is on its file's list of dirty folios.
pub(super) const LISTED: u8 = 4;
/// The folio was made ahead of its reader.
pub(super) const AHEAD: u8 = 8;
/// The folio is to leave the cache after its first use.
pub(super) const ONCE: u8 = 16;

/// The part of a frame that concurrent threads access.
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

    /// Pins the folio if it has that page of that file and is attached. Returns whether it did.
    #[inline]
    pub(super) fn pin(&self, file: u64, page: u64) -> bool {
        // Most wrong guesses end here, without a write to a shared cache line. The right frame is
        // not missed: a thread that knows its number sees what was published before.
        if !self.is(file, page) || !self.pin_any() {
            return false;
        }
        if self.is(file, page) {
            return true;
        }
        self.unpin();
        false
    }

    /// Pins the folio if it is live. Returns whether it did.
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

    /// Adds a pin, for a holder of one.
    #[inline]
    pub(super) fn pin_again(&self) {
        self.refs.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives up a pin.
    #[inline]
    pub(super) fn unpin(&self) {
        self.refs.fetch_sub(1, Ordering::Release);
    }

    /// Ends a folio without pins; returns false when there is a pin, or it is dead already.
    pub(super) fn kill(&self) -> bool {
        self.kill_at(0)
    }

    /// Ends a folio with the caller's pin only; returns false when there are others: the caller
    /// keeps its own.
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

    /// Returns the number of pins, including momentary ones.
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

    /// Returns whether a flag is set.
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
