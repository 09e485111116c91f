//! Where the blocks of a hash tree lie.

use crate::hash::Algorithm;

/// Smallest size of a block, as a power of two.
pub const BLOCK_LOG2_MIN: u32 = 10;
/// Limit of the levels of a tree.
pub const LEVELS_MAX: usize = 8;

/// The tree over so many bytes would have more than [`LEVELS_MAX`] levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the hash tree over {bytes} bytes would have more than {LEVELS_MAX} levels")]
pub struct TooDeep {
    /// Number of bytes of data.
    pub bytes: u64,
}

/// One level of a tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Level {
    /// Number of blocks, at least 1.
    pub blocks: u64,
    /// Number of blocks of the tree before it: those of the levels above it.
    pub start: u64,
}

/// The places of the blocks of a tree. Level 0 has the hashes of the data; the highest level is one
/// block, whose hash is the root. Higher levels lie before lower ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    block_log2: u32,
    digest_log2: u32,
    data_bytes: u64,
    count: usize,
    levels: [Level; LEVELS_MAX],
}

impl Shape {
    /// Returns the shape of the tree over `data_bytes` bytes, in blocks of `1 << block_log2` bytes.
    /// Sizes of blocks are limited to 10 to 16.
    ///
    /// # Errors
    ///
    /// [`TooDeep`].
    pub fn new(data_bytes: u64, block_log2: u32, algorithm: Algorithm) -> Result<Shape, TooDeep> {
        let block_log2 = block_log2.clamp(BLOCK_LOG2_MIN, 16);
        let digest_log2 = algorithm.digest_log2();
        let arity_log2 = block_log2 - digest_log2;
        let (mut levels, mut count) = ([Level::default(); LEVELS_MAX], 0);
        let mut blocks = data_bytes.div_ceil(1 << block_log2);
        while blocks > 1 {
            blocks = blocks.div_ceil(1 << arity_log2);
            let level = levels.get_mut(count).ok_or(TooDeep { bytes: data_bytes })?;
            level.blocks = blocks;
            count += 1;
        }
        let mut start = 0;
        for level in levels[..count].iter_mut().rev() {
            level.start = start;
            // The sum is below the number of blocks of data, or 1.
            start += level.blocks;
        }
        Ok(Shape { block_log2, digest_log2, data_bytes, count, levels })
    }

    /// Returns the size of a block of data, and of the tree, in bytes.
    pub fn block_bytes(&self) -> usize {
        1 << self.block_log2
    }

    /// Returns the size of a block as a power of two.
    pub fn block_log2(&self) -> u32 {
        self.block_log2
    }

    /// Returns the number of bytes of data.
    pub fn data_bytes(&self) -> u64 {
        self.data_bytes
    }

    /// Returns the number of blocks of data, counting a part of a block as one.
    pub fn data_blocks(&self) -> u64 {
        self.data_bytes.div_ceil(1 << self.block_log2)
    }

    /// Returns the levels, those of the data's hashes first.
    pub fn levels(&self) -> &[Level] {
        &self.levels[..self.count]
    }

    /// Returns the number of blocks of the tree.
    pub fn blocks(&self) -> u64 {
        self.levels().first().map_or(0, |lowest| lowest.start + lowest.blocks)
    }

    /// Returns the size of the tree in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks() << self.block_log2
    }

    /// Returns where the hash of block `index` of the level below `level` is: the block of that
    /// level, and the place of the hash in it in bytes. The data is below level 0.
    pub fn place(&self, index: u64) -> (u64, usize) {
        let arity_log2 = self.block_log2 - self.digest_log2;
        let into = (index & ((1 << arity_log2) - 1)) as usize;
        (index >> arity_log2, into << self.digest_log2)
    }

    /// Returns the size of a hash in bytes.
    pub fn digest_bytes(&self) -> usize {
        1 << self.digest_log2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn levels(bytes: u64, block_log2: u32, algorithm: Algorithm) -> Vec<(u64, u64)> {
        let shape = Shape::new(bytes, block_log2, algorithm).unwrap();
        shape.levels().iter().map(|level| (level.blocks, level.start)).collect()
    }

    #[test]
    fn levels_lie_from_the_top_down() {
        let sha256 = |bytes| levels(bytes, 12, Algorithm::Sha256);
        assert_eq!(sha256(0), []);
        assert_eq!(sha256(1), []);
        assert_eq!(sha256(4096), []);
        assert_eq!(sha256(4097), [(1, 0)]);
        assert_eq!(sha256(128 << 12), [(1, 0)]);
        assert_eq!(sha256((128 << 12) + 1), [(2, 1), (1, 0)]);
        assert_eq!(sha256((128 * 128 + 1) << 12), [(129, 3), (2, 1), (1, 0)]);
        assert_eq!(levels(17 << 10, 10, Algorithm::Sha512), [(2, 1), (1, 0)]);
        assert_eq!(Shape::new((128 << 12) + 1, 12, Algorithm::Sha256).unwrap().bytes(), 3 << 12);
    }

    #[test]
    fn no_size_is_too_large_to_be_refused() {
        for log2 in 0..64 {
            for bytes in [1 << log2, (1u64 << log2) - 1, u64::MAX] {
                for block_log2 in [0, 10, 12, 16, 99] {
                    for algorithm in [Algorithm::Sha256, Algorithm::Sha512] {
                        let Ok(shape) = Shape::new(bytes, block_log2, algorithm) else { continue };
                        assert!(shape.blocks() <= bytes.div_ceil(1024).max(1));
                    }
                }
            }
        }
        assert_eq!(Shape::new(u64::MAX, 10, Algorithm::Sha512), Err(TooDeep { bytes: u64::MAX }));
        assert_eq!(Shape::new(u64::MAX, 16, Algorithm::Sha256).unwrap().levels().len(), 5);
    }
}
