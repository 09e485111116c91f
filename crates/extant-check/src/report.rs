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
}

impl Default for CheckOptions {
    /// Everything is a problem; 100 are kept.
    fn default() -> CheckOptions {
        CheckOptions {
            require_replayed: true,
            require_no_orphans: true,
            require_clean_state: true,
            strict_totals: true,
            max_problems: 100,
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
}

impl Report {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty()
    }
}
