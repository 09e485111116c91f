//! Options and results of a check.

use extant_block::DeviceError;
use extant_format::superblock::SuperblockError;

use crate::problem::Problem;

/// Options of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckOptions {
    /// Whether a journal that needs a replay is a problem. Transactions in the log are ignored: the
    /// image is checked as it is on the device.
    pub require_replayed: bool,
    /// Orphans on the list or in the file are a problem.
    pub require_no_orphans: bool,
    /// A state other than "unmounted cleanly, no errors" is a problem.
    pub require_clean_state: bool,
    /// The free counts of the superblock are exact. The kernel writes them only now and then, so
    /// after a crash they need not be.
    pub strict_totals: bool,
    /// How many problems are kept; the others are only counted.
    pub max_problems: usize,
    /// Threads that read and compare; `None`: as many as there are processors. What is reported, and
    /// in which order, is the same with any number.
    pub threads: Option<std::num::NonZeroUsize>,
    /// Blocks that the device cannot read are a problem ([`Problem::Unreadable`]) and the rest is
    /// checked without them; else the check ends with [`CheckError::Device`]. Counts that would
    /// need what is missing are not compared then.
    pub skip_unreadable: bool,
}

impl Default for CheckOptions {
    /// Everything is a problem; 100 are kept. As many threads as processors; a device that fails ends it.
    fn default() -> CheckOptions {
        CheckOptions {
            require_replayed: true,
            require_no_orphans: true,
            require_clean_state: true,
            strict_totals: true,
            max_problems: 100,
            threads: None,
            skip_unreadable: false,
        }
    }
}

/// Why an image cannot be checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The device failed, or is too small for a superblock.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// There is no superblock from which anything could be found.
    #[error(transparent)]
    Superblock(#[from] SuperblockError),
    /// Features that change structures in ways unknown here.
    #[error("unknown features: {names}")]
    Features {
        /// Their names.
        names: String,
    },
    /// There is no memory for a byte for each inode.
    #[error("there is no memory for {inodes} inodes")]
    Memory {
        /// How many inodes the superblock says there are.
        inodes: u32,
    },
    /// A thread ended before its time.
    #[error("a thread of the check: {0}")]
    Thread(String),
}

/// Counts of the objects of an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Inodes in use, reserved ones included.
    pub inodes: u32,
    /// Directories among them.
    pub directories: u32,
    /// Blocks in use, all metadata included; whole clusters with `bigalloc`.
    pub blocks: u64,
    /// Inodes that hold an attribute value.
    pub value_inodes: u32,
}

/// State recorded in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ImageState {
    /// The journal has transactions to replay.
    pub needs_recovery: bool,
    /// Whether it was unmounted cleanly.
    pub is_clean: bool,
    /// Errors were seen while it was mounted.
    pub has_errors: bool,
    /// Inodes on the orphan list and in the orphan file.
    pub orphans: u32,
}

/// The result of a check.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Broken rules, in the order found, at most [`CheckOptions::max_problems`].
    pub problems: Vec<Problem>,
    /// How many more there are than in `problems`.
    pub dropped: u64,
    /// Counts of its objects.
    pub counts: Counts,
    /// State recorded in the image.
    pub state: ImageState,
    /// Some blocks could not be read, or [`Meet::is_cancelled`](crate::Meet::is_cancelled) ended
    /// the check: what is not in `problems` may be wrong, too.
    pub is_partial: bool,
}

impl Report {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}
