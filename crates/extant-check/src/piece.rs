//! What one thread takes of the inode tables.

use std::ops::Range;

/// Some inode tables, or a part of one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) groups: Range<usize>,
    /// Of the table of each group.
    pub(crate) blocks: Range<u32>,
}
