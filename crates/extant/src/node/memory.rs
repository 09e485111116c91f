//! How many inodes are in memory, and about what they take.

use super::{FileState, InodeData, Node};

/// Counters beside an `Arc`, the place in a table, and what an allocator adds to four pieces.
const AROUND: usize = 128;

/// Inodes in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct NodeStats {
    /// How many are in memory.
    pub count: usize,
    /// How many may be that nobody uses: no handle, nothing to be stored.
    pub max: usize,
    /// About what one takes, in bytes, of a file that was read or written; without its cached contents
    /// and the list of its extents.
    pub bytes_each: usize,
}

impl NodeStats {
    /// Of a cache of nodes with records of so many bytes.
    pub(crate) fn new((count, max): (usize, usize), record: u16) -> NodeStats {
        let parts = size_of::<Node>() + size_of::<InodeData>() + size_of::<FileState>();
        NodeStats { count, max, bytes_each: parts + usize::from(record) + AROUND }
    }
}
