//! The draft of a repaired image: a device over another, whose changes stay in memory.
//!
//! A file system whose journal is on another device has both in one draft, so that changes of both are in one order:
//! those of the journal device have numbers of their own, behind all of the image.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::sabotage;
use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind, Pending,
    SharedDevice,
};
use extant_sync::{Rank, RwLock};

/// Bytes of a unit of change: the smallest block.
pub(crate) const UNIT: usize = 1024;

/// Number of the first unit of the journal device. No device has as many.
pub(crate) const JOURNAL_UNIT: u64 = 1 << 60;

/// Changed units by number.
pub(crate) type Units = BTreeMap<u64, Box<[u8; UNIT]>>;

#[derive(Default)]
struct Changes {
    /// Stages that are complete, in order.
    sealed: Vec<Units>,
    current: Units,
}

impl Changes {
    fn get(&self, unit: u64) -> Option<&[u8; UNIT]> {
        self.current
            .get(&unit)
            .or_else(|| self.sealed.iter().rev().find_map(|stage| stage.get(&unit)))
            .map(|bytes| &**bytes)
    }
}

/// A device that can be written without changing the one below.
pub(crate) struct Draft {
    base: SharedDevice,
    /// Device of the journal, where that is another one and was given.
    journal: Option<SharedDevice>,
    changes: RwLock<Changes>,
}

/// A device of a draft, and the number of its first unit.
#[derive(Clone, Copy)]
struct Side<'d> {
    base: &'d SharedDevice,
    first: u64,
}

impl Draft {
    pub(crate) fn over(base: SharedDevice) -> Draft {
        Draft::over_both(base, None)
    }

    pub(crate) fn over_both(base: SharedDevice, journal: Option<SharedDevice>) -> Draft {
        Draft { base, journal, changes: RwLock::new(Rank::Device, Changes::default()) }
    }

    /// Another draft over this one.
    pub(crate) fn above(self: &Arc<Draft>) -> Draft {
        let journal = self.journal().map(|journal| Arc::new(journal) as SharedDevice);
        Draft::over_both(Arc::clone(self) as SharedDevice, journal)
    }

    /// The device of the journal, where that is another one and was given.
    pub(crate) fn journal(self: &Arc<Draft>) -> Option<JournalDraft> {
        self.journal.as_ref().map(|_| JournalDraft { draft: Arc::clone(self) })
    }

    fn home(&self) -> Side<'_> {
        Side { base: &self.base, first: 0 }
    }

    /// Takes changes of a draft above over, in their order.
    pub(crate) fn absorb(&self, stages: Vec<Units>) {
        for stage in stages {
            self.changes.write().current.extend(stage);
            self.seal();
        }
    }

    /// Ends a stage: all changes so far are written before later ones.
    pub(crate) fn seal(&self) {
        let mut changes = self.changes.write();
        if !changes.current.is_empty() {
            let stage = std::mem::take(&mut changes.current);
            changes.sealed.push(stage);
        }
    }

    /// Forgets what was changed since the last stage was complete.
    pub(crate) fn drop_current(&self) {
        self.changes.write().current.clear();
    }

    /// Ends a stage, and returns whether nothing was changed in any.
    pub(crate) fn is_unchanged(&self) -> bool {
        self.seal();
        self.changes.read().sealed.is_empty()
    }

    /// Takes all stages out, in order; the draft shows the device below then.
    pub(crate) fn take_stages(&self) -> Vec<Units> {
        self.seal();
        std::mem::take(&mut self.changes.write().sealed)
    }

    /// What lies below a unit, zeros behind the end of its device.
    pub(crate) fn read_below(&self, unit: u64, out: &mut [u8; UNIT]) -> Result<(), DeviceError> {
        out.fill(0);
        let (base, unit) = match (&self.journal, unit.checked_sub(JOURNAL_UNIT)) {
            (Some(journal), Some(unit)) => (journal, unit),
            _ => (&self.base, unit),
        };
        let offset = unit.saturating_mul(UNIT as u64);
        let inside = base.size_bytes().saturating_sub(offset).min(UNIT as u64) as usize;
        base.read_at(offset, &mut out[..inside])
    }

    fn read_side(&self, side: Side<'_>, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        side.base.read_at(offset, out)?;
        let changes = self.changes.read();
        if changes.current.is_empty() && changes.sealed.is_empty() {
            return Ok(());
        }
        let mut rest = out;
        for (unit, within, len) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at_mut(len);
            rest = tail;
            if let Some(bytes) = changes.get(side.first + unit) {
                piece.copy_from_slice(&bytes[within..within + len]);
            }
        }
        Ok(())
    }

    fn write_side(&self, side: Side<'_>, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let size = side.base.size_bytes();
        if offset.checked_add(bytes.len() as u64).is_none_or(|end| end > size) {
            let fault = DeviceFault::PastEnd { device_bytes: size };
            let (kind, len) = (OperationKind::Write, bytes.len() as u64);
            return Err(DeviceError::new(side.base.describe(), kind, offset, len, fault));
        }
        let mut rest = bytes;
        for (unit, within, len) in pieces(offset, bytes.len()) {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            let mut whole = Box::new([0; UNIT]);
            if len != UNIT {
                let from = unit * UNIT as u64;
                let there = (size - from).min(UNIT as u64) as usize;
                self.read_side(side, from, &mut whole[..there])?;
            }
            whole[within..within + len].copy_from_slice(piece);
            self.changes.write().current.insert(side.first + unit, whole);
        }
        Ok(())
    }

    /// Does a batch of operations with `device`, which is this draft or its journal.
    fn run(&self, device: &dyn BlockDevice, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => device.read_at(*offset, buffer),
                Operation::Write { offset, buffer, fua } => {
                    let written = device.write_at(*offset, buffer);
                    // Whoever asked for it counts on its being there before what comes next.
                    if *fua && !sabotage("repair.draft.fua-forgotten") {
                        self.seal();
                    }
                    written
                }
                Operation::Flush => device.flush(),
                Operation::Discard { .. } => Ok(()),
                Operation::WriteZeroes { offset, len } => device.write_zeroes(*offset, *len),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }
}

/// Writes zeros.
fn zero(device: &dyn BlockDevice, offset: u64, len: u64) -> Result<(), DeviceError> {
    let zeros = vec![0; 1 << 16];
    let mut at = 0;
    while at < len {
        let take = (len - at).min(zeros.len() as u64);
        device.write_at(offset + at, &zeros[..take as usize])?;
        at += take;
    }
    Ok(())
}

/// Cuts a range into units: number, offset within it, length.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset.saturating_add(len as u64));
    std::iter::from_fn(move || {
        let within = (at % UNIT as u64) as usize;
        let take = ((UNIT - within) as u64).min(end - at) as usize;
        let piece = (at / UNIT as u64, within, take);
        at += take as u64;
        (take > 0).then_some(piece)
    })
}

impl BlockDevice for Draft {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.run(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.base.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.base.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.read_side(self.home(), offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.write_side(self.home(), offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.seal();
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        zero(self, offset, len)
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The journal device of a draft that has one.
pub(crate) struct JournalDraft {
    draft: Arc<Draft>,
}

impl JournalDraft {
    fn side(&self) -> Side<'_> {
        let base = self.draft.journal.as_ref().unwrap_or(&self.draft.base);
        Side { base, first: JOURNAL_UNIT }
    }
}

impl BlockDevice for JournalDraft {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.draft.run(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.side().base.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.side().base.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.draft.read_side(self.side(), offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.draft.write_side(self.side(), offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.draft.flush()
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        zero(self, offset, len)
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}
