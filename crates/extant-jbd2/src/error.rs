//! Errors of recovery.

use extant_base::FsBlock;
use extant_block::DeviceError;
use extant_format::error::ChecksumError;
use extant_format::jbd2::{JournalFault, RevokeFault, Tid};

/// A block of the journal that could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalReadError {
    /// The device failed.
    #[error("journal block {block}")]
    Device {
        /// The block of the journal.
        block: u32,
        /// Error of the device.
        #[source]
        source: DeviceError,
    },
    /// The journal has no such block: past its end, or a hole in its inode.
    #[error("journal block {block} is not mapped to any block of the device")]
    Unmapped {
        /// The block of the journal.
        block: u32,
    },
}

/// Error of recovering a journal. The file system is as the crash left it, and reading it without
/// its journal shows a state that never existed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecoveryError {
    /// A block of the journal could not be read.
    #[error(transparent)]
    Read(#[from] JournalReadError),
    /// A device refused a write or a flush of the replay; the log is unchanged.
    #[error("writing what the journal holds")]
    Write(#[source] DeviceError),
    /// The observer stopped the replay; the log is unchanged.
    #[error("the replay of the journal was stopped")]
    Stopped,
    /// The journal superblock is unusable.
    #[error(transparent)]
    Superblock(#[from] JournalFault),
    /// The journal superblock's checksum is wrong.
    #[error(transparent)]
    SuperblockChecksum(ChecksumError),
    /// The journal's block size differs from the file system's.
    #[error("journal has blocks of {journal} bytes, its file system of {fs}")]
    BlockSize {
        /// Of the journal, in bytes.
        journal: u32,
        /// Of the file system, in bytes.
        fs: u32,
    },
    /// The inode or device of the journal is shorter than its superblock says.
    #[error("journal claims {claimed} blocks, only {available} exist")]
    TooShort {
        /// `s_maxlen`.
        claimed: u32,
        /// Number of blocks available.
        available: u64,
    },
    /// A descriptor or revoke block with a wrong checksum, in a transaction that was committed
    /// after its predecessor and so is no leftover of an older journal.
    #[error("journal transaction {tid} is damaged: wrong checksum in journal block {block}")]
    BlockChecksum {
        /// Number of the transaction.
        tid: Tid,
        /// The block of the journal.
        block: u32,
    },
    /// A commit block with a wrong checksum, in a log whose commit blocks are written last. As for the
    /// kernel, only the feature `async_commit` makes it the mark of a transaction cut short.
    #[error("journal transaction {tid} is damaged: wrong checksum in its commit block")]
    CommitChecksum {
        /// Number of the transaction.
        tid: Tid,
    },
    /// A transaction that cannot be found, though others follow: its own blocks are damaged. Found
    /// only where damage is skipped; a mount takes this for the end of the log, as the kernel does.
    #[error(
        "journal transaction {tid} is damaged: transaction {found} follows, and it is not there"
    )]
    Gap {
        /// Number of the transaction.
        tid: Tid,
        /// Number of one that follows.
        found: Tid,
    },
    /// A committed data block whose contents do not match its tag.
    #[error(
        "journal transaction {tid} is damaged: wrong checksum of the copy of block {fs_block} in \
         journal block {block}"
    )]
    DataChecksum {
        /// The transaction.
        tid: Tid,
        /// Block to which the copy belongs.
        fs_block: FsBlock,
        /// The block of the journal.
        block: u32,
    },
    /// A revoke block that cannot be read.
    #[error("journal transaction {tid}, journal block {block}: {fault}")]
    Revoke {
        /// The transaction.
        tid: Tid,
        /// The block of the journal.
        block: u32,
        /// The rule that it breaks.
        fault: RevokeFault,
    },
    /// A committed copy of a block that the file system does not have.
    #[error(
        "journal transaction {tid} holds block {fs_block}, the file system has {fs_blocks} blocks"
    )]
    OutsideFs {
        /// The transaction.
        tid: Tid,
        /// Block to which the copy would belong.
        fs_block: FsBlock,
        /// Number of blocks of the file system.
        fs_blocks: u64,
    },
    /// There are more blocks to replay than this build keeps track of.
    #[error("journal holds more than {limit} blocks to replay")]
    TooManyBlocks {
        /// The limit.
        limit: u64,
    },
    /// Fast commits with features that this build does not know.
    #[error("fast commits need unknown features {features:#x}")]
    FastCommitFeatures {
        /// The bits found.
        features: u32,
    },
    /// There are more fast-commit bytes than this build keeps.
    #[error("fast commits take more than {limit} bytes")]
    FastCommitBytes {
        /// The limit.
        limit: u64,
    },
}
