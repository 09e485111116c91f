//! What became of those who may not wait: the reasons why an attempt is refused, and counters.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_iomap::Obstacle;

use crate::error::Result;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// What somebody who may not wait would have had to wait for.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[non_exhaustive]
        pub enum WaitReason {
            $($(#[$doc])* $name,)*
        }

        impl WaitReason {
            /// All of them.
            pub const ALL: [WaitReason; [$($text),*].len()] = [$(WaitReason::$name),*];

            /// A word for it, as counters are called.
            pub const fn name(self) -> &'static str {
                match self { $(WaitReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// Somebody else reads, writes or changes the file.
    Contents = "contents",
    /// Somebody changes the inode.
    Inode = "inode",
    /// Where the blocks of the file are is not in memory, or somebody changes it.
    Map = "map",
    /// Somebody has the part of the cache locked.
    Folio = "folio",
    /// A block that is to be changed is on its way to the device.
    Writeback = "writeback",
    /// The bytes, or those beside them in their block, are not in memory.
    Device = "device",
    /// No memory of the page cache is free or can be freed at once.
    Memory = "memory",
    /// Too much is dirty.
    Throttle = "throttle",
    /// Set-id bits or capabilities may have to be taken from the file.
    Privileges = "privileges",
    /// No space is left to promise without a commit; or quotas, or the clusters of the file, have to be asked.
    Space = "space",
    /// The data is in the inode, or may become so.
    InlineData = "inline_data",
    /// Between the end of the file and the offset there is something to zero.
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

/// An attempt was refused: it would have had to wait, and has changed nothing. Not an error of the file system: the
/// same call without "try" does it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WouldWait {
    /// For what.
    pub reason: WaitReason,
}

impl fmt::Display for WouldWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "would have to wait ({})", self.reason.name())
    }
}

impl std::error::Error for WouldWait {}

/// The answer of an attempt: what the operation says if it was done, or why it was not.
pub type Attempt<T> = std::result::Result<Result<T>, WouldWait>;

/// What became of attempts since the mount.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct AttemptStats {
    /// Those that were answered, with an error or without.
    pub answered: u64,
    refused: [u64; WaitReason::ALL.len()],
}

impl AttemptStats {
    /// How many were refused for this reason.
    pub fn refused(&self, reason: WaitReason) -> u64 {
        self.refused[reason as usize]
    }

    /// How many were refused.
    pub fn refused_in_all(&self) -> u64 {
        self.refused.iter().sum()
    }

    /// Every counter with its name, for whoever shows them.
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
