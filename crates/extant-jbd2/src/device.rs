//! The file system as after a replay, without writing.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use extant_base::{BlockSize, FsBlock};
use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind, Pending,
    SharedDevice,
};

use crate::error::JournalReadError;
use crate::log::JournalReader;
use crate::overlay::{Overlay, read_copy};

/// A read-only device: blocks with a copy in the log are read from the log, all others from the
/// device below.
///
/// Reads of any range and alignment. Fast commits are not part of it; they change inodes and
/// directories, not blocks.
#[derive(Clone)]
pub struct ReplayedDevice {
    below: SharedDevice,
    log: Arc<dyn JournalReader>,
    overlay: Arc<Overlay>,
}

impl ReplayedDevice {
    /// Shows `overlay` over `below`. The size of a block is the log's.
    pub fn new(
        below: SharedDevice,
        log: Arc<dyn JournalReader>,
        overlay: Arc<Overlay>,
    ) -> ReplayedDevice {
        ReplayedDevice { below, log, overlay }
    }

    /// The blocks that come from the log.
    pub fn overlay(&self) -> &Overlay {
        &self.overlay
    }

    /// Converts an error of the log into one of this device.
    fn log_error(&self, offset: u64, length: u64, error: JournalReadError) -> DeviceError {
        let fault = DeviceFault::Io(std::io::Error::other(error));
        DeviceError::new(self.describe(), OperationKind::Read, offset, length, fault)
    }

    /// Copies the part of a block's copy that `out`, at byte `offset` of the device, asks for.
    fn read_from_log(
        &self,
        block_size: BlockSize,
        block: FsBlock,
        offset: u64,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<(), DeviceError> {
        let length = u64::try_from(out.len()).unwrap_or(u64::MAX);
        let Some(location) = self.overlay.get(block) else {
            return self.below.read_at(offset, out);
        };
        scratch.resize(block_size.len(), 0);
        read_copy(&self.log, location, scratch)
            .map_err(|error| self.log_error(offset, length, error))?;
        let start = block_size.offset_of(block).and_then(|start| offset.checked_sub(start));
        let part = start
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| scratch.get(start..))
            .and_then(|part| part.get(..out.len()));
        match part {
            Some(part) => {
                out.copy_from_slice(part);
                Ok(())
            }
            // The caller cuts at block ends, so the part is inside the block.
            None => self.below.read_at(offset, out),
        }
    }

    fn refuse(&self, operation: &Operation) -> DeviceError {
        let (kind, offset, length) = (operation.kind(), operation.offset(), operation.length());
        DeviceError::new(self.describe(), kind, offset, length, DeviceFault::ReadOnly)
    }
}

impl fmt::Debug for ReplayedDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReplayedDevice({}, {} blocks)", self.below.describe(), self.overlay.len())
    }
}

impl BlockDevice for ReplayedDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |mut operation: Operation| {
            let result = match &mut operation {
                Operation::Read { offset, buffer } => self.read_at(*offset, buffer),
                Operation::Flush => Ok(()),
                other => Err(self.refuse(other)),
            };
            Completion { operation, result }
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.below.logical_sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        true
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let length = u64::try_from(out.len()).unwrap_or(u64::MAX);
        let device_bytes = self.size_bytes();
        if offset.checked_add(length).is_none_or(|end| end > device_bytes) {
            let fault = DeviceFault::PastEnd { device_bytes };
            let kind = OperationKind::Read;
            return Err(DeviceError::new(self.describe(), kind, offset, length, fault));
        }
        let block_size = self.log.block_size();
        let (mut at, mut rest, mut scratch) = (offset, out, Vec::new());
        while !rest.is_empty() {
            let block = FsBlock(at >> block_size.log2());
            let next = self.overlay.next_from(block);
            let in_log = next.is_some_and(|(entry, _)| entry == block);
            // The read ends at the end of this block, or at the next block in the log.
            let cut = if in_log { block.checked_add(1) } else { next.map(|(entry, _)| entry) };
            let cut = cut.and_then(|cut| block_size.offset_of(cut)).unwrap_or(u64::MAX);
            let len = usize::try_from(cut.saturating_sub(at)).unwrap_or(usize::MAX).min(rest.len());
            let (now, later) = rest.split_at_mut(len);
            if in_log {
                self.read_from_log(block_size, block, at, now, &mut scratch)?;
            } else {
                self.below.read_at(at, now)?;
            }
            at = at.saturating_add(u64::try_from(len).unwrap_or(u64::MAX));
            rest = later;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let length = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let kind = OperationKind::Write;
        Err(DeviceError::new(self.describe(), kind, offset, length, DeviceFault::ReadOnly))
    }

    fn near_bytes(&self) -> u64 {
        self.below.near_bytes()
    }

    fn bring_near(&self, ranges: &[Range<u64>]) {
        // Blocks that come from the log are few, and in memory of the device below as often as not.
        self.below.bring_near(ranges);
    }

    fn flush(&self) -> Result<(), DeviceError> {
        Ok(())
    }
}
