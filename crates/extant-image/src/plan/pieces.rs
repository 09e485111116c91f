//! Pieces: which run of blocks holds which part of which object.

use std::ops::Range;

use crate::plan::space::Space;
use crate::tree::NodeId;

/// Owner of a piece.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Object {
    /// Contents of a file, directory or symlink of the tree.
    Data(NodeId),
    /// Blocks of the extent tree, or indirect blocks, of a file of the tree. The piece's
    /// `file_block` counts these blocks from 0.
    Map(NodeId),
    /// A block of extended attributes, by index into the plan's list.
    XattrBlock(u32),
    /// Contents of an inode that holds one large attribute value, by index into the plan's list.
    XattrInode(u32),
    /// Map blocks of such an inode.
    XattrInodeMap(u32),
    /// Something the file system keeps for itself.
    Own(Own),
    /// Map blocks of such a thing.
    OwnMap(Own),
}

/// Files and blocks the file system keeps for itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Own {
    /// The internal journal.
    Journal,
    /// The double-indirect block of the resize inode.
    ResizeMap,
    /// The orphan file.
    OrphanFile,
    /// The multi-mount protection block.
    Mmp,
    /// A quota file: 0 user, 1 group, 2 project.
    Quota(u8),
}

/// A run of blocks of one object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    /// First block in the file system.
    pub(crate) block: u64,
    /// First block in the object.
    pub(crate) file_block: u32,
    /// Length in blocks, at least 1.
    pub(crate) len: u32,
    /// Whose.
    pub(crate) object: Object,
}

impl Piece {
    /// Blocks of the file system.
    pub(crate) fn blocks(&self) -> Range<u64> {
        self.block..self.block + u64::from(self.len)
    }
}

/// Range of pieces of one object in the plan's list.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PieceRange {
    /// Index of the first.
    pub(crate) start: u32,
    /// How many.
    pub(crate) count: u32,
}

impl PieceRange {
    /// As a range of indices.
    pub(crate) fn indices(self) -> Range<usize> {
        self.start as usize..self.start as usize + self.count as usize
    }
}

/// All pieces, in ascending order of blocks (the order in which [`Space`] gave them out).
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    list: Vec<Piece>,
}

impl Pieces {
    /// The pieces.
    pub(crate) fn list(&self) -> &[Piece] {
        &self.list
    }

    /// Pieces of one object.
    pub(crate) fn of(&self, range: PieceRange) -> &[Piece] {
        &self.list[range.indices()]
    }

    /// Takes space for `runs` (object block, length) and records their places.
    ///
    /// The result is invalid when space ran out; [`Space::missing`] tells.
    pub(crate) fn place(
        &mut self,
        space: &mut Space<'_>,
        object: Object,
        runs: impl IntoIterator<Item = (u32, u64)>,
    ) -> PieceRange {
        let start = self.list.len();
        for (first, blocks) in runs {
            let mut file_block = first;
            space.take(blocks, |run| {
                let len = (run.end - run.start) as u32;
                // Two runs of one object that turn out adjacent in both spaces become one.
                match self.list.get_mut(start..).and_then(<[Piece]>::last_mut) {
                    Some(last)
                        if last.blocks().end == run.start
                            && last.file_block + last.len == file_block
                            && last.len.checked_add(len).is_some() =>
                    {
                        last.len += len;
                    }
                    _ => self.list.push(Piece { block: run.start, file_block, len, object }),
                }
                file_block += len;
            });
        }
        PieceRange { start: start as u32, count: (self.list.len() - start) as u32 }
    }
}
