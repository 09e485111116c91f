//! Blocks one after the other.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex};

/// Contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many.
    pub(crate) len: u32,
}

/// Free clusters that are left to a file that grows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// The group they are in.
    pub(crate) group: GroupIndex,
    /// Which ones of the group.
    pub(crate) clusters: Range<u32>,
}
