//! Runs of blocks.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex};

/// Contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// First block.
    pub(crate) start: FsBlock,
    /// Number of blocks.
    pub(crate) len: u32,
}

/// Free clusters kept for a growing file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The group of the clusters.
    pub(crate) group: GroupIndex,
    /// Range of clusters in the group.
    pub(crate) clusters: Range<u32>,
}
