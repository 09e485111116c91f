//! The gate for changes, which a freeze closes.
//!
//! # Place
//!
//! Below: `extant-sync`. Above: `writer`, which owns it; `freeze` closes it; every operation that
//! changes something or writes changes back [enters](FreezeGate::enter) first, before its locks;
//! functions that it calls may enter again.
//!
//! # Rules
//!
//! - Z1. A frozen mount writes nothing to the device, except for the block of multi-mount
//!   protection, and the superblock when a failure aborts the mount.
//! - Z2. A thread that waits for a thaw holds no lock: threads inside may need it, and the freezing
//!   thread waits for them.
//! - Z3. A sync on a frozen mount need not wait: everything written before is durable. Only stores
//!   through maps continue, in memory; a sync that finds some waits for the thaw.

use std::cell::Cell;
use std::ptr;

use extant_base::sabotage;
use extant_sync::{Gate, Lane, Mutex, Rank, check_may_wait};

thread_local! {
    /// The gate that this thread has entered.
    static INSIDE: Cell<*const Gate> = const { Cell::new(ptr::null()) };
}

/// The gate that changes pass through.
pub(crate) struct FreezeGate {
    gate: Gate,
    /// A lock with the rank of waiting for a thaw, taken only to check the order of locks.
    probe: Mutex<()>,
}

impl Default for FreezeGate {
    fn default() -> FreezeGate {
        FreezeGate { gate: Gate::default(), probe: Mutex::new(Rank::Freeze, ()) }
    }
}

/// A thread inside the gate: no freeze completes until this is dropped.
#[must_use]
pub(crate) struct Inside<'w> {
    gate: &'w Gate,
    /// `None` if the thread was inside already.
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
    /// Enters to change something, or to write changes back; waits while the mount is frozen.
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

    /// Enters like [`enter`](Self::enter) without waiting: `None` while the mount is frozen.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        if self.is_inside() || sabotage("extant.freeze.others-go-on") {
            return Some(Inside::new(&self.gate, None));
        }
        self.gate.try_enter().map(|lane| Inside::new(&self.gate, Some(lane)))
    }

    /// Enters for a sync: `None` while the mount is frozen and there is nothing to write (Z3).
    pub(crate) fn enter_to_sync(&self, is_clean: impl Fn() -> bool) -> Option<Inside<'_>> {
        match self.try_enter() {
            None if is_clean() => None,
            None => Some(self.enter()),
            inside => inside,
        }
    }

    /// Closes the gate, waits until no thread is inside, and enters alone. `None` when it is closed
    /// already. The caller is not inside.
    pub(crate) fn try_close(&self) -> Option<Inside<'_>> {
        check_may_wait("those who change something");
        self.gate.try_close().then(|| Inside::new(&self.gate, None))
    }

    /// Opens the gate again.
    pub(crate) fn open(&self) {
        self.gate.open();
    }

    /// Returns whether this thread has entered.
    fn is_inside(&self) -> bool {
        ptr::eq(INSIDE.get(), &self.gate)
    }

    /// Returns whether the gate is closed, or about to be.
    pub(crate) fn is_closed(&self) -> bool {
        self.gate.is_shut()
    }

    /// Returns whether this thread may change something now, for assertions (Z1).
    pub(crate) fn may_change(&self) -> bool {
        self.is_inside() || !self.is_closed()
    }
}
