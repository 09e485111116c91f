//! Holding every change back, so that the device stands still: for a snapshot of it by other means.
//!
//! # Place
//!
//! Below: `writer`, which has the gate. Above: every operation that changes something or writes what was changed
//! [enters](Writer::enter) first, in front of its locks; what it calls may enter again.
//!
//! # Rules
//!
//! - Z1. Nothing of this mount reaches the device while it is frozen, but the beats of multi-mount protection, and the
//!   superblock when a failure stops the mount.
//! - Z2. Who waits for a thaw has no lock: those inside may need it, and whoever freezes waits for them.
//! - Z3. A sync has nothing to wait for while it is frozen: what was written before is durable. Only stores through maps
//!   go on, in memory; a sync that finds some waits for the thaw.

use std::cell::Cell;
use std::fmt;
use std::ptr;

use extant_base::sabotage;
use extant_sync::{Gate, Lane, Mutex, Rank, check_may_wait};

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::writer::Writer;

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

impl Writer {
    /// Goes in to change something, or to write what was changed; waits while the mount is frozen.
    pub(crate) fn enter(&self) -> Inside<'_> {
        let FreezeGate { gate, probe } = self.freeze_gate();
        loop {
            if cfg!(debug_assertions) && !self.is_inside() {
                drop(probe.try_lock()); // Z2.
            }
            if let Some(inside) = self.try_enter() {
                return inside;
            }
            gate.wait_open();
        }
    }

    /// [`enter`](Self::enter) of who does not wait: `None` while the mount is frozen.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        let gate = &self.freeze_gate().gate;
        if self.is_inside() || sabotage("extant.freeze.others-go-on") {
            return Some(Inside::new(gate, None));
        }
        gate.try_enter().map(|lane| Inside::new(gate, Some(lane)))
    }

    /// [`enter`](Self::enter) of a sync: `None` while the mount is frozen, if there is nothing to write (Z3).
    pub(crate) fn enter_to_sync(&self, is_clean: impl Fn() -> bool) -> Option<Inside<'_>> {
        match self.try_enter() {
            None if is_clean() => None,
            None => Some(self.enter()),
            inside => inside,
        }
    }

    /// Whether this thread has entered.
    fn is_inside(&self) -> bool {
        ptr::eq(INSIDE.get(), &self.freeze_gate().gate)
    }

    /// Whether it is frozen, or about to be.
    pub(crate) fn is_frozen(&self) -> bool {
        self.freeze_gate().gate.is_shut()
    }

    /// Whether this thread may change something now: a check of this crate's own (Z1).
    pub(crate) fn may_change(&self) -> bool {
        self.is_inside() || !self.is_frozen()
    }
}

/// A mount that stands still, from [`Fs::freeze`]. It goes on when this is dropped.
#[must_use = "the mount goes on when this is dropped"]
pub struct Frozen {
    fs: Fs,
}

impl Frozen {
    /// The mount goes on: those who wait to change something do.
    pub fn thaw(self) {}

    /// The file system, to be read.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Ok(writer) = self.fs.volume().writer() {
            writer.freeze_gate().gate.open();
        }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({:?})", self.fs)
    }
}

impl Fs {
    /// Makes this mount stand still until the result is dropped: waits for the changes that are under way, makes
    /// everything durable, empties the journal and marks the image clean, as unmounting does. Until then nothing
    /// is written to the device, so that a copy of it is an image that was unmounted. Files that were removed and are
    /// still open are orphans there, which the next mount deletes.
    ///
    /// Meanwhile reads go on, and whoever changes something waits, in any thread: also in the one that has frozen it,
    /// for ever. Attempts are refused ([`WaitReason::Frozen`](crate::WaitReason::Frozen)), access times are not noted,
    /// a sync returns at once because there is nothing to write. What programs store through maps
    /// ([`MappedFile`](crate::MappedFile)) stays in memory until the thaw. What goes on writing are the beats of
    /// multi-mount protection.
    ///
    /// # Errors
    ///
    /// [`FsError::Frozen`] (`EBUSY`) while it is frozen already. Those of [`sync`](Self::sync): it goes on then as
    /// before. A mount for reading stands still anyway.
    ///
    /// # Cost
    ///
    /// That of [`rest`](Self::rest). A change that need not wait pays two atomic operations on a line of its
    /// thread.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
    /// let frozen = fs.freeze()?;
    /// std::fs::copy("disk.img", "snapshot.img")?;
    /// frozen.thaw();
    /// # Ok(())
    /// # }
    /// ```
    pub fn freeze(&self) -> Result<Frozen> {
        let Ok(writer) = self.volume().writer() else { return Ok(Frozen { fs: self.clone() }) };
        writer.check_running()?;
        check_may_wait("those who change something");
        let gate = &writer.freeze_gate().gate;
        if !gate.try_close() {
            return Err(FsError::Frozen);
        }
        // From here on a failure opens it again.
        let frozen = Frozen { fs: self.clone() };
        let _inside = Inside::new(gate, None);
        match self.rest()? {
            true => Ok(frozen),
            // Nobody is inside, so nobody can come in between.
            false => Err(FsError::Frozen),
        }
    }

    /// Whether [`freeze`](Self::freeze) holds changes back at the moment.
    pub fn is_frozen(&self) -> bool {
        self.volume().writer().is_ok_and(Writer::is_frozen)
    }
}
