//! Journals on a device of their own.

use std::sync::Arc;

use extant_base::{BlockSize, BlockSizeError};
use extant_block::{BlockDevice, DeviceError, SharedDevice};
use extant_format::checksum::{CRC32C_INIT, crc32c};
use extant_format::error::ChecksumError;
use extant_format::jbd2::JournalSuperblock;

use crate::error::RecoveryError;
use crate::log::{MappedJournal, load_superblock};

/// A device that holds nothing but a journal, opened.
///
/// It begins with an ext4 superblock that has the feature `journal_dev` and, in the block after the
/// one that holds it, the journal superblock. The journal's blocks are counted from the start of
/// the device.
///
/// The caller checks that it belongs to the file system, whose `s_journal_uuid` must equal
/// [`uuid`](Self::uuid). An image names its journal device by number, but this crate never opens a
/// device because an image names it.
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "External Journal".
#[derive(Clone, Debug)]
pub struct ExternalJournal {
    /// UUID of the device, from its ext4 superblock.
    pub uuid: [u8; 16],
    /// Journal block of the journal superblock: 2 with blocks of 1 KiB, else 1.
    pub superblock_block: u32,
    /// The journal superblock.
    pub superblock: JournalSuperblock,
    /// Reader of the journal's blocks.
    pub log: Arc<MappedJournal>,
}

/// Error of opening a journal device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExternalJournalError {
    /// The device could not be read.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// No ext4 superblock.
    #[error("journal device has magic {found:#06x} at byte 1080, not 0xef53")]
    Magic {
        /// The value found.
        found: u16,
    },
    /// The device holds a file system.
    #[error("device is not a journal device: incompatible features {incompat:#x} lack 0x8")]
    NotAJournal {
        /// `s_feature_incompat`.
        incompat: u32,
    },
    /// The checksum of its ext4 superblock is wrong.
    #[error(transparent)]
    Checksum(#[from] ChecksumError),
    /// The block size is not possible.
    #[error("journal device: {0}")]
    BlockSize(BlockSizeError),
    /// The journal on the device is unusable.
    #[error("journal device")]
    Journal(#[from] RecoveryError),
}

/// Where the ext4 superblock is, in bytes.
const EXT4_SUPERBLOCK_OFFSET: u64 = 1024;
/// `s_feature_incompat`: the device is a journal.
const INCOMPAT_JOURNAL_DEV: u32 = 0x8;
/// `s_feature_ro_compat`: the superblock has a checksum.
const RO_COMPAT_METADATA_CSUM: u32 = 0x400;
/// Where it is; it covers what is before it.
const CHECKSUM_AT: usize = 0x3fc;

/// What a device says of itself that holds nothing but a journal, whatever the journal is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalDevice {
    /// UUID of the device, from its ext4 superblock.
    pub uuid: [u8; 16],
    /// Size of its blocks.
    pub block_size: BlockSize,
    /// Journal block of the journal superblock: 2 with blocks of 1 KiB, else 1.
    pub superblock_block: u32,
    /// Blocks that the device has, and no more than it says.
    pub blocks: u32,
}

impl JournalDevice {
    /// Recognises a journal device.
    ///
    /// # Errors
    ///
    /// [`ExternalJournalError`] says what it is instead; never [`ExternalJournalError::Journal`].
    pub fn recognize(device: &dyn BlockDevice) -> Result<JournalDevice, ExternalJournalError> {
        // Of the ext4 superblock only these fields have a meaning here: s_blocks_count_lo at 0x4,
        // s_log_block_size 0x18, s_magic 0x38, s_feature_incompat 0x60, s_feature_ro_compat 0x64,
        // s_uuid 0x68, s_checksum 0x3fc.
        let mut bytes = [0u8; 0x400];
        device.read_at(EXT4_SUPERBLOCK_OFFSET, &mut bytes)?;
        let le32 = |at: usize| {
            let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
            u32::from_le_bytes(field.copied().unwrap_or_default())
        };
        let found = u16::try_from(le32(0x38) & 0xffff).unwrap_or_default();
        if found != 0xef53 {
            return Err(ExternalJournalError::Magic { found });
        }
        let incompat = le32(0x60);
        if incompat & INCOMPAT_JOURNAL_DEV == 0 {
            return Err(ExternalJournalError::NotAJournal { incompat });
        }
        if le32(0x64) & RO_COMPAT_METADATA_CSUM != 0 {
            let (covered, _) = bytes.split_at(CHECKSUM_AT);
            let computed = crc32c(CRC32C_INIT, covered);
            ChecksumError::check("journal device's superblock", le32(CHECKSUM_AT), computed)?;
        }
        let block_size =
            BlockSize::from_log_kib(le32(0x18)).map_err(ExternalJournalError::BlockSize)?;
        let uuid = bytes.get(0x68..).and_then(|rest| rest.first_chunk::<16>());
        let uuid = uuid.copied().unwrap_or_default();
        let superblock_block = if block_size.bytes() == 1024 { 2 } else { 1 };
        let there = u32::try_from(device.size_bytes() >> block_size.log2()).unwrap_or(u32::MAX);
        let blocks = le32(0x4).min(there);
        Ok(JournalDevice { uuid, block_size, superblock_block, blocks })
    }
}

impl ExternalJournal {
    /// Recognises a journal device and loads the superblock of its journal.
    ///
    /// # Errors
    ///
    /// [`ExternalJournalError`] says what it is instead, or what is wrong with it.
    pub fn open(device: SharedDevice) -> Result<ExternalJournal, ExternalJournalError> {
        let JournalDevice { uuid, block_size, superblock_block, .. } =
            JournalDevice::recognize(&*device)?;
        let log = Arc::new(MappedJournal::whole_device(device, block_size));
        let superblock = load_superblock(&log, superblock_block)?;
        Ok(ExternalJournal { uuid, superblock_block, superblock, log })
    }
}
