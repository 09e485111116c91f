//! The reasons why a mounted file system does not grow.

use std::fmt;

use super::errno;

/// The reason why a mounted file system does not get the size asked for. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum GrowRefused {
    /// Another thread makes it grow at the moment (`EBUSY`).
    Busy,
    /// The size is less than it has (`EINVAL`).
    Smaller {
        /// Size asked for, in bytes.
        wanted: u64,
        /// Size of the file system in bytes.
        has: u64,
    },
    /// The size is more than the device has (`ENOSPC`).
    PastDevice {
        /// Size asked for, in bytes.
        wanted: u64,
        /// Size of the device in bytes.
        device: u64,
    },
    /// Blocks or inodes would have no numbers (`EFBIG`).
    NoNumbers {
        /// Size asked for, in bytes.
        wanted: u64,
        /// The largest size in bytes.
        largest: u64,
        /// Whether more blocks could be numbered with the feature `64bit`.
        lacks_64bit: bool,
    },
    /// One transaction of the journal does not hold the change (`ENOSPC`).
    JournalTooSmall {
        /// Number of blocks that change together.
        wanted: u32,
        /// Number of blocks that one change may have.
        limit: u32,
    },
    /// The layout does not allow it while it is mounted (`EOPNOTSUPP`).
    Layout {
        /// What is in the way.
        what: &'static str,
    },
}

impl GrowRefused {
    pub(super) fn errno(self) -> i32 {
        match self {
            Self::Busy => errno::EBUSY,
            Self::Smaller { .. } => errno::EINVAL,
            Self::PastDevice { .. } | Self::JournalTooSmall { .. } => errno::ENOSPC,
            Self::NoNumbers { .. } => errno::EFBIG,
            Self::Layout { .. } => errno::EOPNOTSUPP,
        }
    }
}

impl fmt::Display for GrowRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Busy => f.write_str("the file system grows already: wait until that is done"),
            Self::Smaller { wanted, has } => write!(
                f,
                "{wanted} bytes are less than the {has} that the file system has: it becomes \
                 smaller only while it is not mounted (extant resize IMAGE SIZE)"
            ),
            Self::PastDevice { wanted, device } => write!(
                f,
                "{wanted} bytes are more than the {device} of the device: make that larger first"
            ),
            Self::NoNumbers { wanted, largest, lacks_64bit } => {
                let why = match lacks_64bit {
                    true => "without the feature 64bit, blocks have numbers of 32 bits",
                    false => "there are no more than 2^32 inodes, and each group has its share",
                };
                write!(f, "{wanted} bytes cannot be reached: {why}; at most {largest} bytes")
            }
            Self::JournalTooSmall { wanted, limit } => write!(
                f,
                "{wanted} blocks change together, and the journal takes {limit} at once: resize \
                 the file system while it is not mounted, or give it a larger journal"
            ),
            Self::Layout { what } => write!(f, "it cannot grow while it is mounted: {what}"),
        }
    }
}
