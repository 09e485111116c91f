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

/// All pieces; those of one object follow each other, in the order of its blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pieces {
    list: Vec<Piece>,
    /// Indices in ascending order of blocks; empty when that is the order of the list, as [`Space`] gives blocks out.
    order: Vec<u32>,
}

impl Pieces {
    /// The pieces.
    pub(crate) fn list(&self) -> &[Piece] {
        &self.list
    }

    /// The pieces in ascending order of blocks.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = &Piece> {
        (0..self.list.len() as u32).map(|at| self.nth(at))
    }

    /// Number `at` in the order of blocks.
    pub(crate) fn nth(&self, at: u32) -> &Piece {
        let at = at as usize;
        &self.list[self.order.get(at).map_or(at, |index| *index as usize)]
    }

    /// Finds the order of blocks, for pieces that were pushed in another one.
    pub(crate) fn sort(&mut self) {
        self.order = (0..self.list.len() as u32).collect();
        self.order.sort_unstable_by_key(|at| self.list[*at as usize].block);
    }

    /// Adds a piece whose place is known.
    pub(crate) fn push(&mut self, piece: Piece) {
        self.list.push(piece);
    }

    /// The last piece, if it is not before number `start` of the list.
    pub(crate) fn last_from(&mut self, start: usize) -> Option<&mut Piece> {
        self.list.get_mut(start..)?.last_mut()
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
