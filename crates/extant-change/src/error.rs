//! The reasons why a file system is not changed.

use extant_block::DeviceError;
use extant_format::superblock::SuperblockError;

/// The reason why a file system is not changed.
///
/// Unless the device or a temporary file failed, nothing was written, except that a journal may have been replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChangeError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no usable superblock.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// Features that change structures in ways unknown here, or that forbid it.
    #[error("a file system with {names} cannot be changed so")]
    Features {
        /// Their names.
        names: String,
    },
    /// The file system is not in order.
    #[error("the file system is not in order: {why}")]
    Damaged {
        /// What is wrong.
        why: String,
    },
    /// The device ends before the file system does.
    #[error("the file system has {wanted} bytes, its device {found}")]
    DeviceTooSmall {
        /// Bytes of the file system.
        wanted: u64,
        /// Bytes of the device.
        found: u64,
    },
    /// Another host uses the file system, or did not end its use.
    #[error("multi-mount protection says that it is in use: {why}")]
    InUse {
        /// The state found.
        why: String,
    },
    /// The journal is on another device, and what it holds was not brought in.
    #[error("{why}")]
    JournalDevice {
        /// Which journal it is.
        why: String,
    },
    /// The journal could not be replayed.
    #[error("the journal cannot be replayed: {0}")]
    Replay(String),
    /// The journal failed.
    #[error("the journal failed: {0}")]
    Journal(String),
    /// The journal failed because its device, or the disk under it, is full.
    #[error("the journal failed: {0}")]
    JournalFull(String),
    /// The system gives this process no memory for it. Nothing is known to be wrong with the file system.
    #[error("{0}")]
    System(String),
    /// What is planned cannot be kept in a temporary file, or read from it again.
    #[error(transparent)]
    Scratch(#[from] std::io::Error),
}

impl ChangeError {
    /// Something that breaks a rule of the format.
    pub fn damaged(why: impl Into<String>) -> ChangeError {
        ChangeError::Damaged { why: why.into() }
    }
}

/// The result of a part of a change.
pub type Result<T = ()> = std::result::Result<T, ChangeError>;
