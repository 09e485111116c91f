//! Blocks one after the other.

use extant_base::FsBlock;

/// Contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many.
    pub(crate) len: u32,
}
