//! The draft of a repaired image: a device over another, whose changes stay in memory.

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
    changes: RwLock<Changes>,
}

impl Draft {
    pub(crate) fn over(base: SharedDevice) -> Draft {
        Draft { base, changes: RwLock::new(Rank::Device, Changes::default()) }
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

    pub(crate) fn base(&self) -> &SharedDevice {
        &self.base
    }

    fn check(&self, kind: OperationKind, offset: u64, len: usize) -> Result<(), DeviceError> {
        let fits = offset.checked_add(len as u64).is_some_and(|end| end <= self.base.size_bytes());
        if fits {
            return Ok(());
        }
        let size = self.base.size_bytes();
        let fault = DeviceFault::PastEnd { device_bytes: size };
        Err(DeviceError::new(self.base.describe(), kind, offset, len as u64, fault))
    }
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
        let run = |mut operation: Operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
                Operation::Write { offset, buffer, fua } => {
                    let written = self.write_at(*offset, buffer);
                    // Whoever asked for it counts on its being there before what comes next.
                    if *fua && !sabotage("repair.draft.fua-forgotten") {
                        self.seal();
                    }
                    written
                }
                Operation::Flush => self.flush(),
                Operation::Discard { .. } => Ok(()),
                Operation::WriteZeroes { offset, len } => self.write_zeroes(*offset, *len),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
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
        self.base.read_at(offset, out)?;
        let changes = self.changes.read();
        if changes.current.is_empty() && changes.sealed.is_empty() {
            return Ok(());
        }
        let mut rest = out;
        for (unit, within, len) in pieces(offset, rest.len()) {
            let (piece, tail) = rest.split_at_mut(len);
            rest = tail;
            if let Some(bytes) = changes.get(unit) {
                piece.copy_from_slice(&bytes[within..within + len]);
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check(OperationKind::Write, offset, bytes.len())?;
        let mut rest = bytes;
        for (unit, within, len) in pieces(offset, bytes.len()) {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            let mut whole = Box::new([0; UNIT]);
            if len != UNIT {
                let from = unit * UNIT as u64;
                let there = (self.base.size_bytes() - from).min(UNIT as u64) as usize;
                self.read_at(from, &mut whole[..there])?;
            }
            whole[within..within + len].copy_from_slice(piece);
            self.changes.write().current.insert(unit, whole);
        }
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.seal();
        Ok(())
    }

    fn discard(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let zeros = vec![0; 1 << 16];
        let mut at = 0;
        while at < len {
            let take = (len - at).min(zeros.len() as u64);
            self.write_at(offset + at, &zeros[..take as usize])?;
            at += take;
        }
        Ok(())
    }

    fn allocate(&self, _offset: u64, _len: u64) -> Result<(), DeviceError> {
        Ok(())
    }
}
