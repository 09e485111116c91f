//! Attempts, operations that never wait: the reasons for which one is refused, and their counters.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_iomap::Obstacle;

use crate::error::Result;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// The reason why an attempt would have to wait.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum WaitReason {
            $($(#[$doc])* $name,)*
        }

        impl WaitReason {
            /// Every reason.
            pub const ALL: [WaitReason; [$($text),*].len()] = [$(WaitReason::$name),*];

            /// Returns the name of the reason, as in the names of counters.
            pub const fn name(self) -> &'static str {
                match self { $(WaitReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Another thread reads, writes or changes the file.
    Contents = "contents",
    /// Another thread changes the inode.
    Inode = "inode",
    /// The map of the file is not in memory, or another thread changes it.
    Map = "map",
    /// Another thread holds the lock of the folio.
    Folio = "folio",
    /// A block to be changed is being written to the device.
    Writeback = "writeback",
    /// The bytes, or their neighbours in the same block, are not in memory.
    Device = "device",
    /// The page cache has no free memory and cannot free any at once.
    Memory = "memory",
    /// Too much is dirty.
    Throttle = "throttle",
    /// Set-id bits or capabilities may have to be removed from the file.
    Privileges = "privileges",
    /// There is no space to promise without a commit; or quotas, or the clusters of the file, have
    /// to be looked up.
    Space = "space",
    /// The data is in the inode, or may move there.
    InlineData = "inline_data",
    /// Bytes between the end of the file and the offset have to be zeroed.
    Tail = "tail",
    /// The mount is frozen.
    Frozen = "frozen",
}

impl From<Obstacle> for WaitReason {
    fn from(obstacle: Obstacle) -> WaitReason {
        match obstacle {
            Obstacle::Folio => WaitReason::Folio,
            Obstacle::Writeback => WaitReason::Writeback,
            Obstacle::Device => WaitReason::Device,
            Obstacle::Memory => WaitReason::Memory,
            Obstacle::Map => WaitReason::Map,
            Obstacle::Space => WaitReason::Space,
        }
    }
}

/// The refusal of an attempt that would have had to wait; nothing has changed. It is no error of
/// the file system: the same operation without "try" waits and completes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WouldWait {
    /// The reason for which it would wait.
    pub reason: WaitReason,
}

impl fmt::Display for WouldWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "would have to wait ({})", self.reason.name())
    }
}

impl std::error::Error for WouldWait {}

/// The result of an attempt: the operation's result if it was done, or the reason why it was not.
pub type Attempt<T> = std::result::Result<Result<T>, WouldWait>;

/// Counts of attempts since the mount.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AttemptStats {
    /// Number of attempts that were answered, with an error or without.
    pub answered: u64,
    refused: [u64; WaitReason::ALL.len()],
}

impl AttemptStats {
    /// Returns the number of attempts refused for this reason.
    pub fn refused(&self, reason: WaitReason) -> u64 {
        self.refused[reason as usize]
    }

    /// Returns the number of refused attempts.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Returns every counter with its name, for display.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let refused = WaitReason::ALL.map(|reason| (reason.name(), self.refused(reason)));
        std::iter::once(("answered", self.answered)).chain(refused).collect()
    }
}

impl fmt::Debug for AttemptStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.named()).finish()
    }
}

/// The counters behind [`AttemptStats`].
#[derive(Default)]
pub(crate) struct AttemptCounters {
    answered: AtomicU64,
    refused: [AtomicU64; WaitReason::ALL.len()],
}

impl AttemptCounters {
    pub(crate) fn count<T>(&self, tried: std::result::Result<Result<T>, WaitReason>) -> Attempt<T> {
        match tried {
            Ok(answer) => {
                self.answered.fetch_add(1, Ordering::Relaxed);
                Ok(answer)
            }
            Err(reason) => {
                self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
                Err(WouldWait { reason })
            }
        }
    }

    pub(crate) fn read(&self) -> AttemptStats {
        AttemptStats {
            answered: self.answered.load(Ordering::Relaxed),
            refused: std::array::from_fn(|at| self.refused[at].load(Ordering::Relaxed)),
        }
    }
}
