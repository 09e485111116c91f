//! The superblock of a writable mount: its current state, and all writes of it.
//!
//! # Place
//!
//! Below: the device, and the slot of the block that holds the superblock. Above: mounting and
//! unmounting, orphans (the head of their list), features that come into use, settings of `tune`,
//! and the record of damage.
//!
//! # Rules
//!
//! - U1. A change inside a transaction is part of it: [`SuperState::change`].
//! - U2. Before the first transaction and after the last checkpoint there is no transaction: the
//!   superblock is written directly, and flushed, by [`SuperState::mounted`] and
//!   [`SuperState::unmounted`]; and between two, by [`SuperState::rest`] and [`SuperState::wake`].
//! - U3. "Needs recovery" is on the device before the first block goes into the log (J11), and is
//!   removed after the log is empty.
//! - U4. A record of damage goes with the next transaction, or with unmounting. After an abort
//!   there is no next one: the record is then added to the superblock on the device, without
//!   uncommitted changes.
//! - U5. As in the kernel, backups are not updated, except for features, the identity and the size of
//!   the file system.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};

use extant_base::{FsBlock, Ino, sabotage};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::{Compat, ErrorsPolicy, Incompat, RoCompat, State};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_jbd2::EncodeSink;
use extant_sync::{Mutex, Rank};

use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::fast::Refusal;
use crate::slot::BlockKind;
use crate::volume::Volume;

mod tune;

pub use tune::{Reserve, Tune};

/// Limit of the damage records kept until the next transaction; further ones are dropped.
const RECORDS_MAX: usize = 64;

/// Reaction of a writable mount to damage.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum MountErrors {
    /// Record it and continue; the operation fails.
    #[default]
    Continue,
    /// Record it and refuse further changes.
    RemountReadOnly,
    /// Record it and abort the journal: uncommitted changes are lost. This stands for the kernel's
    /// panic.
    Stop,
}

impl MountErrors {
    /// Returns the policy in the superblock.
    pub(crate) fn of(policy: ErrorsPolicy) -> MountErrors {
        match policy {
            ErrorsPolicy::Continue | ErrorsPolicy::Unknown(_) => MountErrors::Continue,
            ErrorsPolicy::RemountReadOnly => MountErrors::RemountReadOnly,
            ErrorsPolicy::Panic => MountErrors::Stop,
        }
    }
}

/// Features that are set with the first object that needs them, as in the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Needed {
    /// A file of 2 GiB or more.
    LargeFile,
    /// An extended attribute.
    ExtAttr,
}

impl Needed {
    fn bit(self) -> u8 {
        1 << (self as u8)
    }

    fn is_on(self, superblock: &Superblock) -> bool {
        let features = &superblock.features;
        match self {
            Needed::LargeFile => features.has_ro_compat(RoCompat::LARGE_FILE),
            Needed::ExtAttr => features.has_compat(Compat::EXT_ATTR),
        }
    }

    fn set(self, superblock: &mut Superblock) {
        let features = &mut superblock.features;
        match self {
            Needed::LargeFile => features.ro_compat |= RoCompat::LARGE_FILE,
            Needed::ExtAttr => features.compat |= Compat::EXT_ATTR,
        }
        // A file system of revision 0 has no feature words.
        superblock.revision = superblock.revision.max(1);
    }

    const ALL: [Needed; 2] = [Needed::LargeFile, Needed::ExtAttr];
}

/// Totals of free blocks and inodes, as counted by the allocator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Totals {
    /// Number of free blocks: with `bigalloc` all blocks of free clusters.
    pub(crate) free_blocks: u64,
    /// Number of free inodes.
    pub(crate) free_inodes: u32,
}

/// State at the end of a mount, for [`SuperState::unmounted`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ending {
    /// Totals of free blocks and inodes.
    pub(crate) totals: Totals,
    /// Whether the log is empty, or there is none.
    pub(crate) log_is_empty: bool,
    /// Whether no orphan is left, neither in the orphan file nor in the list.
    pub(crate) no_orphans: bool,
    /// Number of KiB that this mount wrote, as far as known.
    pub(crate) kbytes_written: u64,
}

/// The superblock of a writable mount.
pub(crate) struct SuperState {
    device: SharedDevice,
    /// The block that holds the superblock, and the offset in it.
    block: FsBlock,
    offset: usize,
    has_log: bool,
    current: Mutex<Current>,
    /// The last transaction whose handle claimed the block.
    claimed: AtomicU32,
    /// [`Needed::bit`]s of the features that are on.
    needed: AtomicU8,
    errors: MountErrors,
    /// Whether changes are refused after damage, with [`MountErrors::RemountReadOnly`].
    read_only: AtomicBool,
    /// Whether the file system is marked clean, and nothing was committed since.
    at_rest: AtomicBool,
    /// Number of damage reports.
    reports: AtomicU64,
}

struct Current {
    superblock: Superblock,
    /// Whether it changed since it was last encoded.
    dirty: bool,
    /// Value of `s_state` for a clean unmount: as before the mount, plus errors met since.
    state: State,
    /// Errors met since the last transaction was encoded.
    records: Vec<ErrorRecord>,
}

impl SuperState {
    /// Creates the state. `device` is the file system's own, without a journal over it. `errors`
    /// overrides the superblock's policy.
    pub(crate) fn new(
        device: SharedDevice,
        superblock: Superblock,
        errors: Option<MountErrors>,
    ) -> SuperState {
        let block_size = superblock.block_size;
        let block = FsBlock(SUPERBLOCK_OFFSET >> block_size.log2());
        // Below the block size, so it fits.
        let offset = (SUPERBLOCK_OFFSET % u64::from(block_size.bytes())) as usize;
        let on = Needed::ALL.into_iter().filter(|needed| needed.is_on(&superblock));
        let needed = AtomicU8::new(on.fold(0, |bits, needed| bits | needed.bit()));
        SuperState {
            device,
            block,
            offset,
            has_log: superblock.features.has_compat(Compat::HAS_JOURNAL),
            claimed: AtomicU32::new(0),
            needed,
            errors: errors.unwrap_or(MountErrors::of(superblock.errors)),
            read_only: AtomicBool::new(false),
            at_rest: AtomicBool::new(false),
            reports: AtomicU64::new(0),
            current: Mutex::new(
                Rank::Leaf,
                Current { dirty: false, state: superblock.state, superblock, records: Vec::new() },
            ),
        }
    }

    /// Calls `look` with the current superblock; `look` must not take locks.
    pub(crate) fn with<R>(&self, look: impl FnOnce(&Superblock) -> R) -> R {
        look(&self.current.lock().superblock)
    }

    /// Changes the superblock as part of a transaction (U1). One credit.
    pub(crate) fn change<R>(
        &self,
        txn: &mut Editor<'_>,
        change: impl FnOnce(&mut Superblock) -> R,
    ) -> Result<R> {
        txn.refuse(Refusal::Other);
        let tid = txn.tid();
        if self.claimed.load(Ordering::Acquire) != tid {
            txn.edit_block(self.block, BlockKind::Plain, |_| ())?;
            self.claimed.store(tid, Ordering::Release);
        }
        let mut current = self.current.lock();
        current.dirty = true;
        Ok(change(&mut current.superblock))
    }

    /// Returns the superblock as a backup has it: as after an unmount.
    pub(crate) fn for_backups(&self) -> Superblock {
        let current = self.current.lock();
        let mut superblock = current.superblock.clone();
        superblock.state = current.state;
        superblock.features.incompat -= Incompat::RECOVER;
        superblock.features.ro_compat -= RoCompat::ORPHAN_PRESENT;
        superblock
    }

    /// Encodes the superblock into its block, if it changed. No handle is open.
    pub(crate) fn encode(
        &self,
        volume: &Volume,
        totals: Totals,
        sink: &mut EncodeSink<'_>,
    ) -> Result<()> {
        let bytes = {
            let mut current = self.current.lock();
            if !std::mem::take(&mut current.dirty) {
                return Ok(());
            }
            count(&mut current.superblock, totals);
            current.records.clear();
            current.superblock.encode()
        };
        let slot = volume.slot(self.block);
        let load = || volume.load_block(self.block);
        slot.change(BlockKind::Plain, load, |block| {
            if let Some(place) = block.get_mut(self.offset..self.offset + SUPERBLOCK_BYTES) {
                place.copy_from_slice(&bytes);
            }
        })?;
        sink.claim(slot);
        Ok(())
    }

    /// Sets a feature if it is not set, as part of a transaction. One credit; none when it is set.
    pub(crate) fn require_feature(&self, txn: &mut Editor<'_>, needed: Needed) -> Result<()> {
        if self.needed.load(Ordering::Acquire) & needed.bit() != 0 {
            return Ok(());
        }
        self.change(txn, |superblock| needed.set(superblock))?;
        self.needed.fetch_or(needed.bit(), Ordering::AcqRel);
        Ok(())
    }

    /// Marks the file system as mounted (U2, U3); durable when this returns. `now` in seconds since
    /// 1970.
    pub(crate) fn mounted(&self, now: i64) -> Result<()> {
        self.write_now(|current, has_log| {
            let superblock = &mut current.superblock;
            superblock.mount_time = now;
            superblock.write_time = now;
            superblock.mount_count = superblock.mount_count.saturating_add(1);
            mark(superblock, has_log);
        })
    }

    /// Marks the file system as unmounted (U2, U3), as far as [`Ending`] confirms it: other marks
    /// stay.
    pub(crate) fn unmounted(&self, now: i64, ending: Ending) -> Result<()> {
        self.write_now(|current, _| {
            let (superblock, state) = (&mut current.superblock, current.state);
            count(superblock, ending.totals);
            superblock.write_time = now;
            superblock.kbytes_written =
                superblock.kbytes_written.saturating_add(ending.kbytes_written);
            if ending.log_is_empty {
                superblock.features.incompat -= Incompat::RECOVER;
                superblock.state = state;
                if ending.no_orphans {
                    superblock.features.ro_compat -= RoCompat::ORPHAN_PRESENT;
                }
            }
        })
    }

    /// Marks the file system as [unmounted](Self::unmounted) until [`wake`](Self::wake). No handle
    /// is open, the log is empty, and all blocks are at their places.
    pub(crate) fn rest(&self, now: i64, ending: Ending) -> Result<()> {
        self.unmounted(now, ending)?;
        self.at_rest.store(true, Ordering::Release);
        Ok(())
    }

    /// Marks the file system as mounted before the first commit after a rest, based on the
    /// superblock on the device, and without the changes about to be committed (U3).
    pub(crate) fn wake(&self) -> Result<()> {
        if !self.at_rest.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let mut stored = Superblock::decode(&bytes).map_err(|error| {
            FsError::corrupt("superblock", None, None, Fault::Decode(Box::new(error)))
        })?;
        mark(&mut stored, self.has_log);
        mark(&mut self.current.lock().superblock, self.has_log);
        if !sabotage("extant.supers.wakes-unmarked") {
            self.device.write_at(SUPERBLOCK_OFFSET, &stored.encode())?;
            self.device.flush()?;
        }
        self.at_rest.store(false, Ordering::Release);
        Ok(())
    }

    fn write_now(&self, change: impl FnOnce(&mut Current, bool)) -> Result<()> {
        let bytes = {
            let mut current = self.current.lock();
            change(&mut current, self.has_log);
            current.superblock.encode()
        };
        self.device.write_at(SUPERBLOCK_OFFSET, &bytes)?;
        Ok(self.device.flush()?)
    }

    /// Returns whether the file system was reliable when it was mounted: without errors, and,
    /// without a journal, unmounted.
    pub(crate) fn was_sound(&self) -> bool {
        let state = self.current.lock().state;
        !state.contains(State::ERROR) && (self.has_log || state.contains(State::VALID))
    }

    /// Fails if changes are refused after damage.
    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.read_only.load(Ordering::Acquire) { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Reports damage that an operation met while changing the file system, and reacts by the
    /// policy: afterwards [`check_writable`](Self::check_writable) may fail. Returns true when the
    /// journal is to be aborted. Errors that are no damage have no effect. `now` in seconds since
    /// 1970.
    ///
    /// No I/O, but a call of the logger. May be called with any lock held but one of rank `Leaf`.
    pub(crate) fn report(&self, error: &FsError, now: i64) -> bool {
        let Some(record) = ErrorRecord::of(error, now) else { return false };
        let mut current = self.current.lock();
        record.put(&mut current.superblock);
        current.state |= State::ERROR;
        current.dirty = true;
        if current.records.len() < RECORDS_MAX {
            current.records.push(record);
        }
        drop(current);
        let reports = self.reports.fetch_add(1, Ordering::Relaxed) + 1;
        // An image may have any number of faults, so the log gets only some.
        if reports.is_power_of_two() {
            let device = self.device.describe();
            log::error!("{device}: damage, report {reports} of this mount: {error}");
        }
        if self.errors != MountErrors::Continue && !self.read_only.swap(true, Ordering::AcqRel) {
            log::error!(
                "{}: nothing is changed any more until the next mount",
                self.device.describe()
            );
        }
        self.errors == MountErrors::Stop
    }

    /// Records reported damage that could not be committed, or the abort itself, on the device
    /// after the journal was aborted (U4). Nothing else writes to the device any more.
    ///
    /// # Errors
    ///
    /// Damage of the superblock on the device, and device errors: then there is no record.
    pub(crate) fn stopped(&self, now: i64) -> Result<()> {
        let mut records = {
            let mut current = self.current.lock();
            current.state |= State::ERROR;
            std::mem::take(&mut current.records)
        };
        self.read_only.store(true, Ordering::Release);
        if records.is_empty() {
            records.push(ErrorRecord::new(now, "journal", code::EIO));
        }
        let mut bytes = [0; SUPERBLOCK_BYTES];
        self.device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
        let mut stored = Superblock::decode(&bytes).map_err(|error| {
            FsError::corrupt("superblock", None, None, Fault::Decode(Box::new(error)))
        })?;
        for record in &records {
            record.put(&mut stored);
        }
        self.device.write_at(SUPERBLOCK_OFFSET, &stored.encode())?;
        Ok(self.device.flush()?)
    }
}

/// Marks a file system as mounted.
fn mark(superblock: &mut Superblock, has_log: bool) {
    let features = &mut superblock.features;
    if has_log {
        features.incompat |= Incompat::RECOVER;
        if features.has_compat(Compat::ORPHAN_FILE) {
            features.ro_compat |= RoCompat::ORPHAN_PRESENT;
        }
    } else {
        superblock.state -= State::VALID;
    }
}

fn count(superblock: &mut Superblock, totals: Totals) {
    superblock.free_blocks_count = totals.free_blocks;
    superblock.free_inodes_count = totals.free_inodes;
}

/// An error as recorded in the superblock.
struct ErrorRecord {
    time: i64,
    ino: u32,
    block: u64,
    /// The damaged structure, in the field where the kernel stores the name of a function.
    what: [u8; 32],
    code: u8,
}

/// Values of `s_last_error_errcode`: Linux's own numbering of causes, the same on every machine.
mod code {
    pub(super) const EIO: u8 = 2;
    pub(super) const EFSBADCRC: u8 = 4;
    pub(super) const EFSCORRUPTED: u8 = 5;
}

impl ErrorRecord {
    fn new(time: i64, what: &str, code: u8) -> ErrorRecord {
        let mut text = [0; 32];
        for (to, from) in text.iter_mut().zip(what.bytes()) {
            *to = from;
        }
        ErrorRecord { time, ino: 0, block: 0, what: text, code }
    }

    fn of(error: &FsError, time: i64) -> Option<ErrorRecord> {
        let code = match (error.family(), error) {
            // A full disk below is no damage: what was asked for was refused, or waits for room.
            (Family::Refusal, _) | (_, FsError::Aborted { .. } | FsError::DeviceFull(_)) => {
                return None;
            }
            (Family::Device, _) => code::EIO,
            (_, FsError::Corrupt { fault: Fault::Checksum { .. }, .. }) => code::EFSBADCRC,
            _ => code::EFSCORRUPTED,
        };
        let mut record = ErrorRecord::new(time, "device", code);
        if let FsError::Corrupt { structure, ino, block, .. } = error {
            record = ErrorRecord::new(time, structure, code);
            record.ino = ino.unwrap_or(Ino(0)).0;
            record.block = block.unwrap_or(FsBlock(0)).0;
        }
        Some(record)
    }

    fn put(&self, superblock: &mut Superblock) {
        superblock.state |= State::ERROR;
        superblock.last_error_time = self.time;
        let raw = &mut superblock.raw;
        raw.s_last_error_ino = self.ino.into();
        raw.s_last_error_block = self.block.into();
        raw.s_last_error_func = self.what;
        raw.s_last_error_line = 0.into();
        raw.s_last_error_errcode = self.code;
        if superblock.error_count == 0 {
            superblock.first_error_time = self.time;
            raw.s_first_error_ino = self.ino.into();
            raw.s_first_error_block = self.block.into();
            raw.s_first_error_func = self.what;
            raw.s_first_error_line = 0.into();
            raw.s_first_error_errcode = self.code;
        }
        superblock.error_count = superblock.error_count.saturating_add(1);
    }
}

impl fmt::Debug for SuperState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SuperState").field("block", &self.block).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
