//! Why a repair ends early, and why one fix does.

use extant_block::DeviceError;
use extant_change::ChangeError;
use extant_check::CheckError;
use extant_format::superblock::SuperblockError;

/// Why an image cannot be repaired at all. Nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no superblock, and no backup of one where backups are.
    #[error("no superblock of ext2, ext3 or ext4, and no backup of one was found")]
    NoSuperblock,
    /// The superblock cannot be, and no backup was found.
    #[error("{0}; and no backup was found")]
    BadSuperblock(SuperblockError),
    /// The device ends before the file system does: what is missing cannot be told from what is damaged.
    #[error("the file system has {wanted} bytes, its device {found}")]
    DeviceTooSmall {
        /// Bytes of the file system.
        wanted: u64,
        /// Bytes of the device.
        found: u64,
    },
    /// Features that change structures in ways unknown here.
    #[error("unknown features: {names}")]
    Features {
        /// Their names.
        names: String,
    },
    /// Somebody has the file system, or did not end having it.
    #[error("multi-mount protection says that it is in use: {why}")]
    InUse {
        /// What says so.
        why: String,
    },
    /// The journal is on another device, and what it holds was not brought in: it would be lost.
    #[error("{why}")]
    JournalDevice {
        /// Which journal it is.
        why: String,
    },
    /// The device that was given is not that of the journal.
    #[error("{why}")]
    OtherJournal {
        /// What it is instead.
        why: String,
    },
    /// The system gives this process no memory, or no temporary file. Nothing is known to be wrong with the image.
    #[error("{0}")]
    System(String),
    /// The checker gave up.
    #[error("{0}")]
    Check(String),
}

impl From<CheckError> for RepairError {
    fn from(error: CheckError) -> RepairError {
        match error {
            CheckError::Device(source) => RepairError::Device(source),
            CheckError::Features { names } => RepairError::Features { names },
            CheckError::Memory { .. } => RepairError::System(error.to_string()),
            other => RepairError::Check(other.to_string()),
        }
    }
}

impl From<ChangeError> for RepairError {
    fn from(error: ChangeError) -> RepairError {
        match error {
            ChangeError::Device(source) => RepairError::Device(source),
            ChangeError::InUse { why } => RepairError::InUse { why },
            ChangeError::JournalDevice { why } => RepairError::JournalDevice { why },
            ChangeError::DeviceTooSmall { wanted, found } => {
                RepairError::DeviceTooSmall { wanted, found }
            }
            ChangeError::System(why) => RepairError::System(why),
            ChangeError::Scratch(error) => RepairError::System(error.to_string()),
            other => RepairError::Check(other.to_string()),
        }
    }
}

/// Why one fix was not made.
#[derive(Debug)]
pub(crate) enum Trouble {
    Device(DeviceError),
    /// No free block, or no free inode.
    Full(&'static str),
    /// The repair cannot be decided, or is not implemented.
    Cannot(String),
}

impl From<DeviceError> for Trouble {
    fn from(error: DeviceError) -> Trouble {
        Trouble::Device(error)
    }
}

impl Trouble {
    pub(crate) fn cannot(why: impl Into<String>) -> Trouble {
        Trouble::Cannot(why.into())
    }
}

pub(crate) type Fixed<T = ()> = Result<T, Trouble>;
