//! The way in for changes, which can be closed.
//!
//! # Place
//!
//! Below: `extant-sync`. Above: `writer`, which has it; `freeze` closes it; every operation that changes something or
//! writes what was changed [enters](FreezeGate::enter) first, in front of its locks; what it calls may enter again.
//!
//! # Rules
//!
//! - Z1. Nothing of this mount reaches the device while it is frozen, but the beats of multi-mount protection, and the
//!   superblock when a failure stops the mount.
//! - Z2. Who waits for a thaw has no lock: those inside may need it, and whoever freezes waits for them.
//! - Z3. A sync has nothing to wait for while it is frozen: what was written before is durable. Only stores through maps
//!   go on, in memory; a sync that finds some waits for the thaw.

use std::cell::Cell;
use std::ptr;

use extant_base::sabotage;
use extant_sync::{Gate, Lane, Mutex, Rank, check_may_wait};

thread_local! {
    /// The gate that this thread is inside of.
    static INSIDE: Cell<*const Gate> = const { Cell::new(ptr::null()) };
}

/// What changes pass by.
pub(crate) struct FreezeGate {
    gate: Gate,
    /// Carries the rank of who may have to wait for a thaw; held for no time.
    probe: Mutex<()>,
}

impl Default for FreezeGate {
    fn default() -> FreezeGate {
        FreezeGate { gate: Gate::default(), probe: Mutex::new(Rank::Freeze, ()) }
    }
}

/// A thread is inside: nobody freezes until this is dropped.
#[must_use]
pub(crate) struct Inside<'w> {
    gate: &'w Gate,
    /// `None` for who was inside already.
    lane: Option<Lane>,
    before: *const Gate,
}

impl<'w> Inside<'w> {
    fn new(gate: &'w Gate, lane: Option<Lane>) -> Inside<'w> {
        Inside { gate, lane, before: INSIDE.replace(ptr::from_ref(gate)) }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        INSIDE.set(self.before);
        if let Some(lane) = self.lane.take() {
            self.gate.leave(lane);
        }
    }
}

impl FreezeGate {
    /// Goes in to change something, or to write what was changed; waits while the mount is frozen.
    pub(crate) fn enter(&self) -> Inside<'_> {
        loop {
            if cfg!(debug_assertions) && !self.is_inside() {
                drop(self.probe.try_lock()); // Z2.
            }
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            self.gate.wait_open();
        }
    }

    /// [`enter`](Self::enter) of who does not wait: `None` while the mount is frozen.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        if self.is_inside() || sabotage("extant.freeze.others-go-on") {
            return Some(Inside::new(&self.gate, None));
        }
        self.gate.try_enter().map(|lane| Inside::new(&self.gate, Some(lane)))
    }

    /// [`enter`](Self::enter) of a sync: `None` while the mount is frozen, if there is nothing to write (Z3).
    pub(crate) fn enter_to_sync(&self, is_clean: impl Fn() -> bool) -> Option<Inside<'_>> {
        match self.try_enter() {
            None if is_clean() => None,
            None => Some(self.enter()),
            inside => inside,
        }
    }

    /// Closes the way in, waits until nobody is inside, and is inside then, alone. `None` when it is closed already. The
    /// caller is not inside.
    pub(crate) fn try_close(&self) -> Option<Inside<'_>> {
        check_may_wait("those who change something");
        self.gate.try_close().then(|| Inside::new(&self.gate, None))
    }

    /// Opens it again.
    pub(crate) fn open(&self) {
        self.gate.open();
    }

    /// Whether this thread has entered.
    fn is_inside(&self) -> bool {
        ptr::eq(INSIDE.get(), &self.gate)
    }

    /// Whether the gate is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.is_shut()
    }

    /// Whether this thread may change something now: a check of this crate's own (Z1).
    pub(crate) fn may_change(&self) -> bool {
        self.is_inside() || !self.is_closed()
    }
}
