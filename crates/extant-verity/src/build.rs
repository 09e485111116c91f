//! A tree and its root from contents, as a stream.

use crate::hash::{Hash, Hasher};
use crate::shape::Shape;

/// The contents had another size than the shape says.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{given} blocks of data were given, and the file has {wanted}")]
pub struct Unfinished {
    /// Number of blocks that were given.
    pub given: u64,
    /// Number of blocks that the shape has.
    pub wanted: u64,
}

/// Makes a tree from blocks of data that are given in order. Memory: one block for each level.
#[derive(Debug)]
pub struct Builder {
    shape: Shape,
    hasher: Hasher,
    /// For each level the block that is being filled, and the number of those before it.
    open: Vec<(Vec<u8>, u64)>,
    given: u64,
    root: Hash,
}

impl Builder {
    /// Creates a builder for contents of the size that `shape` says.
    pub fn new(shape: Shape, hasher: Hasher) -> Builder {
        let open = vec![(Vec::new(), 0); shape.levels().len()];
        let root = Hash::zero(hasher.algorithm());
        Builder { shape, hasher, open, given: 0, root }
    }

    /// Adds blocks of data: whole ones, but the last one of the file, behind whose end zeros are
    /// assumed. `write` gets each finished block of the tree and its offset in the tree.
    ///
    /// # Errors
    ///
    /// Those of `write`.
    pub fn push<E>(
        &mut self,
        data: &[u8],
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let len = self.shape.block_bytes();
        for block in data.chunks(len) {
            let hash = self.hasher.hash_padded(block, len);
            self.given += 1;
            self.add(0, hash, write)?;
        }
        Ok(())
    }

    /// Adds a hash to a level, and finishes the block that is full with it.
    fn add<E>(
        &mut self,
        mut level: usize,
        mut hash: Hash,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        loop {
            let Some((block, _)) = self.open.get_mut(level) else {
                self.root = hash;
                return Ok(());
            };
            block.extend_from_slice(hash.as_bytes());
            if block.len() < self.shape.block_bytes() {
                return Ok(());
            }
            hash = self.finish_block(level, write)?;
            level += 1;
        }
    }

    /// Gives out the open block of a level, filled up with zeros. Returns its hash.
    fn finish_block<E>(
        &mut self,
        level: usize,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Hash, E> {
        let len = self.shape.block_bytes();
        let start = self.shape.levels().get(level).map_or(0, |level| level.start);
        let Some((block, done)) = self.open.get_mut(level) else { return Ok(self.root) };
        block.resize(len, 0);
        write((start + *done) << self.shape.block_log2(), block)?;
        *done += 1;
        let hash = self.hasher.hash(block);
        block.clear();
        Ok(hash)
    }

    /// Finishes the tree, and returns its root hash.
    ///
    /// # Errors
    ///
    /// Those of `write`; [`Unfinished`] inside when contents are missing, or there were too many.
    pub fn finish<E>(
        mut self,
        write: &mut impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<Result<Hash, Unfinished>, E> {
        let wanted = self.shape.data_blocks();
        if self.given != wanted {
            return Ok(Err(Unfinished { given: self.given, wanted }));
        }
        for level in 0..self.open.len() {
            if self.open.get(level).is_some_and(|(block, _)| !block.is_empty()) {
                let hash = self.finish_block(level, write)?;
                self.add(level + 1, hash, write)?;
            }
        }
        Ok(Ok(self.root))
    }
}
