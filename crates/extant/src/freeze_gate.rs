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
//! - Z4. Only who has the [turn](Stage) closes the gate: a freeze, or the end of the mount. So an
//!   end that has begun is never met by a freeze half way, and happens once.

use std::cell::Cell;
use std::ptr;

use extant_base::sabotage;
use extant_sync::{Condvar, Gate, Lane, Mutex, Rank, check_may_wait};

thread_local! {
    /// The gate that this thread has entered.
    static INSIDE: Cell<*const Gate> = const { Cell::new(ptr::null()) };
}

/// Whose turn it is to close the gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Nobody's: changes go on.
    Open,
    /// That of a freeze, until its thaw.
    Freeze,
    /// That of a thread that ends the mount.
    End,
    /// The mount has ended, and nothing may be written for it again: another one may have the
    /// device by now.
    Ended,
}

/// The gate that changes pass through.
pub(crate) struct FreezeGate {
    gate: Gate,
    stage: Mutex<Stage>,
    /// Signals that a thread that was to end the mount has done so, or failed.
    end_returned: Condvar,
    /// A lock with the rank of waiting for a thaw, taken only to check the order of locks.
    probe: Mutex<()>,
}

impl Default for FreezeGate {
    fn default() -> FreezeGate {
        FreezeGate {
            gate: Gate::default(),
            stage: Mutex::new(Rank::Leaf, Stage::Open),
            end_returned: Condvar::new(),
            probe: Mutex::new(Rank::Freeze, ()),
        }
    }
}

/// Obstacles to a freeze.
pub(crate) enum NotFrozen {
    /// Another freeze has the mount.
    Frozen,
    /// The mount has ended.
    Ended,
}

/// Refusal of an end: the mount is frozen.
pub(crate) struct NotEnded;

/// The turn of a thread that ends the mount. Without [`done`](Self::done) the mount goes on when
/// it is dropped.
#[must_use]
pub(crate) struct EndTurn<'w> {
    gate: &'w FreezeGate,
    becomes: Stage,
}

impl EndTurn<'_> {
    /// Closes the gate until this is dropped, waits until no thread is inside, and enters alone.
    /// The caller is not inside.
    pub(crate) fn close(&self) -> Inside<'_> {
        self.gate.close()
    }

    /// Says that the mount has ended.
    pub(crate) fn done(mut self) {
        self.becomes = Stage::Ended;
    }
}

impl Drop for EndTurn<'_> {
    fn drop(&mut self) {
        self.gate.gate.open();
        *self.gate.stage.lock() = self.becomes;
        self.gate.end_returned.notify_all();
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

    /// Takes the turn of a freeze, closes the gate until [`thaw`](Self::thaw), waits until no thread
    /// is inside, and enters alone. Waits for a thread that ends the mount. The caller is not inside.
    pub(crate) fn freeze(&self) -> Result<Inside<'_>, NotFrozen> {
        match self.take_turn(Stage::Freeze) {
            Stage::Open => Ok(self.close()),
            Stage::Ended => Err(NotFrozen::Ended),
            Stage::Freeze | Stage::End => Err(NotFrozen::Frozen),
        }
    }

    /// Opens the gate again, and gives the turn of a freeze back.
    pub(crate) fn thaw(&self) {
        self.gate.open();
        *self.stage.lock() = Stage::Open;
    }

    /// Takes the turn of the end of the mount, while the gate stays open. Waits for another thread
    /// that ends it. `None` when it has ended.
    ///
    /// # Errors
    ///
    /// [`NotEnded`] while the mount is frozen. The caller is not inside.
    pub(crate) fn begin_end(&self) -> Result<Option<EndTurn<'_>>, NotEnded> {
        match self.take_turn(Stage::End) {
            Stage::Open => Ok(Some(EndTurn { gate: self, becomes: Stage::Open })),
            Stage::Ended => Ok(None),
            Stage::Freeze | Stage::End => Err(NotEnded),
        }
    }

    /// Takes a turn if the stage is open, and returns what it was; waits while the mount ends.
    fn take_turn(&self, turn: Stage) -> Stage {
        let mut stage = self.stage.lock();
        if *stage == Stage::End {
            drop(stage);
            check_may_wait("who ends the mount");
            stage = self.stage.lock();
        }
        while *stage == Stage::End {
            self.end_returned.wait(&mut stage);
        }
        let was = *stage;
        if was == Stage::Open {
            *stage = turn;
        }
        was
    }

    /// Closes the gate for whose turn it is (Z4), waits until no thread is inside, and enters alone.
    fn close(&self) -> Inside<'_> {
        check_may_wait("those who change something");
        let closed = self.gate.try_close();
        debug_assert!(closed, "the gate was closed by somebody who did not have the turn");
        Inside::new(&self.gate, None)
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
