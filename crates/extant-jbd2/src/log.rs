//! The blocks of a journal and their places.

use std::sync::Arc;

use extant_base::{BlockSize, FsBlock};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::jbd2::JournalSuperblock;

use crate::error::{JournalReadError, RecoveryError};

/// A reader of the blocks of one journal, numbered as in its superblock.
pub trait JournalReader: Send + Sync {
    /// Returns the size of a journal block.
    fn block_size(&self) -> BlockSize;

    /// Returns the number of blocks, which may be more than the journal's superblock says.
    fn block_count(&self) -> u64;

    /// Fills `out`, which has the size of a block, with block `block` of the journal.
    ///
    /// # Errors
    ///
    /// [`JournalReadError`], naming the block.
    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError>;
}

/// Decodes the superblock in block `block` of a journal and verifies its checksum: block 0 inside
/// a file system; [`ExternalJournal::superblock_block`](crate::ExternalJournal) on a device of its
/// own.
///
/// # Errors
///
/// [`RecoveryError`]: not readable, not a superblock, features this build does not know, a wrong
/// checksum, or a journal that is longer than its reader.
pub fn load_superblock(
    log: &dyn JournalReader,
    block: u32,
) -> Result<JournalSuperblock, RecoveryError> {
    let mut bytes = vec![0; log.block_size().len()];
    log.read_block(block, &mut bytes)?;
    let superblock = JournalSuperblock::decode(&bytes)?;
    superblock.verify_checksum(&bytes).map_err(RecoveryError::SuperblockChecksum)?;
    check_fits(log, &superblock)?;
    Ok(superblock)
}

/// Checks that the journal fits its reader.
pub(crate) fn check_fits(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
) -> Result<(), RecoveryError> {
    if superblock.block_size != log.block_size() {
        return Err(RecoveryError::BlockSize {
            journal: superblock.block_size.bytes(),
            fs: log.block_size().bytes(),
        });
    }
    let available = log.block_count();
    if u64::from(superblock.len) > available {
        return Err(RecoveryError::TooShort { claimed: superblock.len, available });
    }
    Ok(())
}

/// Consecutive blocks of a journal on consecutive blocks of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalRun {
    /// First block of the run, in the journal.
    pub journal_start: u32,
    /// First block of the run, on the device.
    pub device_start: FsBlock,
    /// Blocks in the run.
    pub len: u32,
}

impl JournalRun {
    /// The block after the last, in the journal.
    fn journal_end(&self) -> u64 {
        u64::from(self.journal_start).saturating_add(u64::from(self.len))
    }
}

/// A journal on blocks of a device: those of the journal inode, or all of a journal device.
#[derive(Clone)]
pub struct MappedJournal {
    device: SharedDevice,
    block_size: BlockSize,
    /// In order of `journal_start`.
    runs: Vec<JournalRun>,
}

impl MappedJournal {
    /// Creates the journal that an inode maps by `runs`, in any order. Where runs overlap, the one
    /// that starts last wins.
    pub fn new(
        device: SharedDevice,
        block_size: BlockSize,
        runs: Vec<JournalRun>,
    ) -> MappedJournal {
        let mut runs = runs;
        runs.sort_by_key(|run| run.journal_start);
        MappedJournal { device, block_size, runs }
    }

    /// Creates the journal of a journal device: block `n` of the journal is block `n` of the
    /// device.
    pub fn whole_device(device: SharedDevice, block_size: BlockSize) -> MappedJournal {
        let blocks = device.size_bytes() >> block_size.log2();
        let len = u32::try_from(blocks).unwrap_or(u32::MAX);
        let run = JournalRun { journal_start: 0, device_start: FsBlock(0), len };
        MappedJournal { device, block_size, runs: vec![run] }
    }

    /// Returns the device block of a journal block; `None` when the journal has no such block.
    pub fn locate(&self, block: u32) -> Option<FsBlock> {
        let after = self.runs.partition_point(|run| run.journal_start <= block);
        let run = self.runs.get(after.checked_sub(1)?)?;
        let into = block.checked_sub(run.journal_start).filter(|into| *into < run.len)?;
        run.device_start.checked_add(u64::from(into))
    }

    /// Returns the runs of the journal's blocks, in order.
    pub fn runs(&self) -> &[JournalRun] {
        &self.runs
    }

    /// Returns the device of the journal.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }
}

impl std::fmt::Debug for MappedJournal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MappedJournal")
            .field("device", &self.device.describe())
            .field("runs", &self.runs)
            .finish_non_exhaustive()
    }
}

impl JournalReader for MappedJournal {
    fn block_size(&self) -> BlockSize {
        self.block_size
    }

    fn block_count(&self) -> u64 {
        self.runs.last().map_or(0, JournalRun::journal_end)
    }

    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError> {
        let place = self.locate(block).and_then(|place| self.block_size.offset_of(place));
        let offset = place.ok_or(JournalReadError::Unmapped { block })?;
        self.device
            .read_at(offset, out)
            .map_err(|source| JournalReadError::Device { block, source })
    }
}

impl<R: JournalReader + ?Sized> JournalReader for Arc<R> {
    fn block_size(&self) -> BlockSize {
        (**self).block_size()
    }

    fn block_count(&self) -> u64 {
        (**self).block_count()
    }

    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError> {
        (**self).read_block(block, out)
    }
}
