//! The place of a log, and writes to it.

use std::io::IoSlice;
use std::sync::Arc;

use extant_base::BlockSize;
use extant_block::{AlignedBuffer, BlockDevice, DeviceError, Operation, SharedDevice, WriteRun};
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
        // With the area of fast commits.
        let end = self.superblock.len;
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

/// Writes blocks in order of their number, merged into large writes of `device`, several of which are
/// under way at once, and waits. The blocks are not copied.
///
/// `blocks` gives the device's byte offset and the bytes of each block.
pub(crate) fn write_merged<'a>(
    device: &dyn BlockDevice,
    blocks: impl Iterator<Item = (u64, &'a [u8])>,
) -> Result<(), DeviceError> {
    let mut wave = Wave::default();
    for (offset, bytes) in blocks {
        wave.add(offset, bytes);
        if wave.bytes >= WRITE_BYTES_MAX.saturating_mul(8) {
            std::mem::take(&mut wave).write(device)?;
        }
    }
    wave.write(device)
}

/// Blocks that are written together.
#[derive(Default)]
struct Wave<'a> {
    parts: Vec<IoSlice<'a>>,
    /// Of each run: its offset, its length in bytes, and the number of parts up to its end.
    runs: Vec<(u64, usize, usize)>,
    bytes: usize,
}

impl<'a> Wave<'a> {
    fn add(&mut self, offset: u64, bytes: &'a [u8]) {
        self.parts.push(IoSlice::new(bytes));
        self.bytes = self.bytes.saturating_add(bytes.len());
        let count = self.parts.len();
        if let Some((start, len, end)) = self.runs.last_mut()
            && u64::try_from(*len).ok().and_then(|len| start.checked_add(len)) == Some(offset)
            && len.saturating_add(bytes.len()) <= WRITE_BYTES_MAX
        {
            *len = len.saturating_add(bytes.len());
            *end = count;
            return;
        }
        self.runs.push((offset, bytes.len(), count));
    }

    fn write(self, device: &dyn BlockDevice) -> Result<(), DeviceError> {
        let mut first = 0;
        let run = |&(offset, _, end): &(u64, usize, usize)| {
            let parts = self.parts.get(first..end).unwrap_or(&[]);
            first = end;
            WriteRun { offset, parts }
        };
        let runs: Vec<_> = self.runs.iter().map(run).collect();
        device.write_runs(&runs).into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run_up_to_the_limit() {
        let (block, most) = ([7; 4096], WRITE_BYTES_MAX / 4096);
        let mut wave = Wave::default();
        for number in [3, 4, 5, 9, 11, 12] {
            wave.add(number * 4096, &block);
        }
        let runs = [(3 * 4096, 3 * 4096, 3), (9 * 4096, 4096, 4), (11 * 4096, 2 * 4096, 6)];
        assert_eq!(wave.runs, runs);
        let mut wave = Wave::default();
        (0..most as u64 + 1).for_each(|number| wave.add(number * 4096, &block));
        assert_eq!(
            wave.runs,
            [(0, WRITE_BYTES_MAX, most), (WRITE_BYTES_MAX as u64, 4096, most + 1)]
        );
        let device = extant_block::MemoryDevice::new(2 * WRITE_BYTES_MAX as u64);
        wave.write(&device).unwrap();
        let mut last = [0; 4096];
        device.read_at(WRITE_BYTES_MAX as u64, &mut last).unwrap();
        assert_eq!(last, block);
    }
}
