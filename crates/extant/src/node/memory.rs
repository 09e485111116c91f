//! Number and size of the inodes in memory.

use super::{FileState, InodeData, Node};

/// Overhead of a node in bytes: counters of its `Arc`, its place in a table, and allocator overhead
/// of four pieces.
const AROUND: usize = 128;

/// Counts of the inodes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NodeStats {
    /// Number of inodes in memory.
    pub count: usize,
    /// Limit of the unused inodes: those without a handle and without pending changes.
    pub max: usize,
    /// Approximate size of one in bytes, for a file that was read or written; without its cached
    /// contents and the list of its extents.
    pub bytes_each: usize,
}

impl NodeStats {
    /// Creates the counts for a cache of nodes with records of `record` bytes.
    pub(crate) fn new((count, max): (usize, usize), record: u16) -> NodeStats {
        let parts = size_of::<Node>() + size_of::<InodeData>() + size_of::<FileState>();
        NodeStats { count, max, bytes_each: parts + usize::from(record) + AROUND }
    }
}
