//! The place of a log, and writes to it.

use std::sync::Arc;

use extant_base::BlockSize;
use extant_block::{AlignedBuffer, BlockDevice, DeviceError, Operation, SharedDevice};
use extant_format::jbd2::JournalSuperblock;

use crate::error::{JournalReadError, RecoveryError};
use crate::external::ExternalJournal;
use crate::log::{JournalReader, MappedJournal, load_superblock};

/// Limit of one write to the log or home, in bytes.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

/// A log that can be written: inside the file system or on a device of its own.
#[derive(Clone, Debug)]
pub struct LogStore {
    pub(crate) log: Arc<MappedJournal>,
    pub(crate) superblock: JournalSuperblock,
    superblock_block: u32,
    external: bool,
    /// Whether the log holds fast commits, and nothing before them is needed.
    pub(crate) resumed: bool,
}

impl LogStore {
    /// Opens the log in the blocks of the journal inode, on the file system's own device.
    ///
    /// # Errors
    ///
    /// As [`load_superblock`].
    pub fn internal(log: Arc<MappedJournal>) -> Result<LogStore, RecoveryError> {
        let superblock = load_superblock(&log, 0)?;
        Ok(LogStore { log, superblock, superblock_block: 0, external: false, resumed: false })
    }

    /// Opens the log on a device of its own.
    pub fn external(journal: ExternalJournal) -> LogStore {
        let ExternalJournal { superblock_block, superblock, log, .. } = journal;
        LogStore { log, superblock, superblock_block, external: true, resumed: false }
    }

    /// Returns the journal superblock as it is on the device.
    pub fn superblock(&self) -> &JournalSuperblock {
        &self.superblock
    }

    /// Returns true for a log on a device of its own.
    pub fn is_external(&self) -> bool {
        self.external
    }

    /// Returns the reader of the log's blocks.
    pub fn reader(&self) -> &Arc<MappedJournal> {
        &self.log
    }

    pub(crate) fn device(&self) -> &SharedDevice {
        self.log.device()
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.log.block_size()
    }

    /// Byte of a journal block on its device.
    pub(crate) fn offset_of(&self, block: u32) -> Option<u64> {
        self.log.locate(block).and_then(|place| self.log.block_size().offset_of(place))
    }

    /// Allocates device space for all blocks of the log with [`BlockDevice::allocate`], so that it
    /// can be written even if the disk under its device is full.
    ///
    /// # Errors
    ///
    /// The device's error. Nothing has changed.
    pub fn allocate(&self) -> Result<(), DeviceError> {
        let end = self.superblock.log().end;
        let mut block = self.superblock_block;
        self.allocate_from(block, block.saturating_add(1))?;
        block = self.superblock.log().start;
        self.allocate_from(block, end)
    }

    /// [`allocate`](Self::allocate) of some blocks of the journal, in large pieces.
    fn allocate_from(&self, start: u32, end: u32) -> Result<(), DeviceError> {
        let bytes = u64::from(self.block_size().bytes());
        let mut piece: Option<(u64, u64)> = None;
        // Missing blocks are found when the journal is opened.
        for offset in (start..end).filter_map(|block| self.offset_of(block)) {
            match &mut piece {
                Some((first, len)) if first.checked_add(*len) == Some(offset) => {
                    *len = len.saturating_add(bytes);
                }
                _ => {
                    if let Some((first, len)) = piece.replace((offset, bytes)) {
                        self.device().allocate(first, len)?;
                    }
                }
            }
        }
        piece.map_or(Ok(()), |(first, len)| self.device().allocate(first, len))
    }

    /// Writes the superblock with FUA, and remembers it if that worked.
    pub(crate) fn write_superblock(
        &mut self,
        superblock: JournalSuperblock,
    ) -> Result<(), JournalReadError> {
        let block = self.superblock_block;
        let offset = self.offset_of(block).ok_or(JournalReadError::Unmapped { block })?;
        let mut buffer = AlignedBuffer::zeroed(JournalSuperblock::BYTES);
        // The buffer has the length that encoding needs.
        let _ = superblock.encode(&mut buffer);
        let write = Operation::Write { offset, buffer, fua: true };
        self.device()
            .submit(vec![write])
            .wait_all()
            .map_err(|source| JournalReadError::Device { block, source })?;
        self.superblock = superblock;
        Ok(())
    }
}

/// Writes blocks in order of their number, merged into large writes of `device`, and waits.
///
/// `blocks` gives the device's byte offset and the bytes of each block.
pub(crate) fn write_merged<'a>(
    device: &dyn BlockDevice,
    blocks: impl Iterator<Item = (u64, &'a [u8])>,
) -> Result<(), DeviceError> {
    let mut run: Option<(u64, Vec<&'a [u8]>, usize)> = None;
    let mut batch = Vec::new();
    let mut batch_bytes = 0usize;
    let finish = |run: Option<(u64, Vec<&'a [u8]>, usize)>, batch: &mut Vec<Operation>| {
        let Some((offset, parts, bytes)) = run else { return };
        let mut buffer = AlignedBuffer::zeroed(bytes);
        let mut rest: &mut [u8] = &mut buffer;
        for part in parts {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(part.len());
            now.copy_from_slice(part);
            rest = later;
        }
        batch.push(Operation::Write { offset, buffer, fua: false });
    };
    for (offset, bytes) in blocks {
        match &mut run {
            Some((start, parts, len))
                if u64::try_from(*len).ok().and_then(|len| start.checked_add(len))
                    == Some(offset)
                    && len.saturating_add(bytes.len()) <= WRITE_BYTES_MAX =>
            {
                parts.push(bytes);
                *len = len.saturating_add(bytes.len());
            }
            _ => {
                finish(run.replace((offset, vec![bytes], bytes.len())), &mut batch);
            }
        }
        batch_bytes = batch_bytes.saturating_add(bytes.len());
        if batch_bytes >= WRITE_BYTES_MAX.saturating_mul(8) {
            finish(run.take(), &mut batch);
            device.submit(std::mem::take(&mut batch)).wait_all()?;
            batch_bytes = 0;
        }
    }
    finish(run, &mut batch);
    if batch.is_empty() {
        return Ok(());
    }
    device.submit(batch).wait_all().map(drop)
}
