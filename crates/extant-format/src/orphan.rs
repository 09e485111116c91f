//! The orphan file: inodes that are unlinked but still open, or being truncated.
//!
//! # Shape
//!
//! Each block of the file is an array of inode numbers, 0 meaning free, and a tail:
//!
//! ```text
//! 0                                        block - 8      block - 4
//! +------------+------------+-- ... ------+--------------+----------+
//! | le32 inode | le32 inode |             | 0x0b10ca04   | checksum |
//! +------------+------------+-- ... ------+--------------+----------+
//! ```
//!
//! The checksum covers the block's own number on the device (le64) and the array, seeded like
//! everything that belongs to the orphan file's inode. Entries may stand anywhere.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/orphan.rst`.

use alloc::vec::Vec;

use extant_base::{BlockSize, FsBlock, Ino};

use crate::checksum::crc32c;
use crate::error::{ChecksumError, LengthError};
use crate::le::{put, u32_at};

/// `ob_magic`.
pub const ORPHAN_MAGIC: u32 = 0x0b10_ca04;
/// Bytes of magic and checksum.
pub const TAIL_BYTES: usize = 8;

/// The reason why a block is not a block of the orphan file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OrphanError {
    /// The slice is not a whole block.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// The tail does not start with the magic.
    #[error("orphan file block {block}: magic is {found:#010x}, not 0x0b10ca04")]
    Magic {
        /// The block.
        block: FsBlock,
        /// The value found.
        found: u32,
    },
    /// There are more orphans than a block has room for.
    #[error("{found} orphans do not fit a block of {room}")]
    Full {
        /// How many there are.
        found: usize,
        /// How many fit.
        room: usize,
    },
    /// The checksum does not match.
    #[error("block {block}: {source}")]
    Checksum {
        /// The block.
        block: FsBlock,
        /// Both values.
        source: ChecksumError,
    },
}

/// Returns how many inode numbers one block holds.
pub fn orphans_per_block(block_size: BlockSize) -> usize {
    block_size.len().saturating_sub(TAIL_BYTES) >> 2
}

/// One block of the orphan file: every slot, free ones as inode 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OrphanBlock {
    slots: Vec<Ino>,
}

impl OrphanBlock {
    /// All slots free.
    pub fn empty(block_size: BlockSize) -> OrphanBlock {
        OrphanBlock { slots: alloc::vec![Ino(0); orphans_per_block(block_size)] }
    }

    /// Decodes one block; `block` is where it lies on the device, `seed` the orphan inode's
    /// ([`crate::checksum::inode_seed`]), `None` without `metadata_csum`.
    ///
    /// Whether the numbers are inodes is for the caller.
    ///
    /// # Errors
    ///
    /// [`OrphanError`], checksum last.
    pub fn decode(
        block_size: BlockSize,
        block: FsBlock,
        seed: Option<u32>,
        bytes: &[u8],
    ) -> Result<OrphanBlock, OrphanError> {
        let bytes = LengthError::prefix("orphan file block", bytes, block_size.len())?;
        let short = LengthError {
            structure: "orphan file block",
            wanted: block_size.len(),
            found: bytes.len(),
        };
        let (array, tail) =
            bytes.split_at_checked(block_size.len().saturating_sub(TAIL_BYTES)).ok_or(short)?;
        let found = u32_at(tail, 0).ok_or(short)?;
        if found != ORPHAN_MAGIC {
            return Err(OrphanError::Magic { block, found });
        }
        if let Some(seed) = seed {
            let stored = u32_at(tail, 4).ok_or(short)?;
            ChecksumError::check("orphan file block", stored, checksum(seed, block, array))
                .map_err(|source| OrphanError::Checksum { block, source })?;
        }
        let slots = array.chunks_exact(4).map(|slot| Ino(u32_at(slot, 0).unwrap_or(0)));
        Ok(OrphanBlock { slots: slots.collect() })
    }

    /// Checks a block that decodes, of a file system without checksums: the field of one is 0.
    ///
    /// # Errors
    ///
    /// [`OrphanError::Checksum`], [`OrphanError::Length`].
    pub fn check_unsummed(
        block_size: BlockSize,
        block: FsBlock,
        bytes: &[u8],
    ) -> Result<(), OrphanError> {
        let bytes = LengthError::prefix("orphan file block", bytes, block_size.len())?;
        let stored = u32_at(bytes, block_size.len().saturating_sub(4)).unwrap_or(0);
        ChecksumError::check("orphan file block", stored, 0)
            .map_err(|source| OrphanError::Checksum { block, source })
    }

    /// Writes the block with magic and checksum; without a seed the checksum is 0.
    ///
    /// # Errors
    ///
    /// [`OrphanError::Length`] below a block, [`OrphanError::Full`] when the block has another
    /// size than this value was made for.
    pub fn encode(
        &self,
        block_size: BlockSize,
        block: FsBlock,
        seed: Option<u32>,
        bytes: &mut [u8],
    ) -> Result<(), OrphanError> {
        let room = orphans_per_block(block_size);
        if self.slots.len() != room {
            return Err(OrphanError::Full { found: self.slots.len(), room });
        }
        let bytes = LengthError::prefix_mut("orphan file block", bytes, block_size.len())?;
        for (slot, ino) in bytes.chunks_exact_mut(4).zip(&self.slots) {
            slot.copy_from_slice(&ino.0.to_le_bytes());
        }
        let at = block_size.len().saturating_sub(TAIL_BYTES);
        let sum = seed.map_or(0, |seed| checksum(seed, block, bytes.get(..at).unwrap_or(&[])));
        let short = LengthError {
            structure: "orphan file block",
            wanted: block_size.len(),
            found: bytes.len(),
        };
        put(bytes, at, &ORPHAN_MAGIC.to_le_bytes()).ok_or(short)?;
        put(bytes, at.saturating_add(4), &sum.to_le_bytes()).ok_or(short)?;
        Ok(())
    }

    /// Every slot in order; inode 0 in free ones.
    pub fn slots(&self) -> &[Ino] {
        &self.slots
    }

    /// The orphans of this block, in slot order.
    pub fn orphans(&self) -> impl Iterator<Item = Ino> + '_ {
        self.slots.iter().copied().filter(|ino| ino.0 != 0)
    }

    /// Puts an orphan into the first free slot; false when there is none.
    pub fn insert(&mut self, ino: Ino) -> bool {
        match self.slots.iter_mut().find(|slot| slot.0 == 0) {
            Some(slot) => {
                *slot = ino;
                true
            }
            None => false,
        }
    }

    /// Frees the slot of an orphan; false when it is not here.
    pub fn remove(&mut self, ino: Ino) -> bool {
        match self.slots.iter_mut().find(|slot| **slot == ino && ino.0 != 0) {
            Some(slot) => {
                *slot = Ino(0);
                true
            }
            None => false,
        }
    }
}

/// Puts the right checksum into a block that was changed in place. `seed` as for
/// [`OrphanBlock::decode`]. A slice too short for a tail stays as it is.
pub fn seal(seed: u32, block: FsBlock, bytes: &mut [u8]) {
    let at = bytes.len().saturating_sub(TAIL_BYTES);
    let sum = checksum(seed, block, bytes.get(..at).unwrap_or(&[]));
    // No room: nothing to seal.
    let _ = put(bytes, at.saturating_add(4), &sum.to_le_bytes());
}

/// crc32c over the block's number and its array.
fn checksum(seed: u32, block: FsBlock, array: &[u8]) -> u32 {
    crc32c(crc32c(seed, &block.0.to_le_bytes()), array)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn every_block_size_round_trips_and_notices_flips_and_moves() {
        for log in 0..=6 {
            let size = BlockSize::from_log_kib(log).unwrap();
            let mut block = OrphanBlock::empty(size);
            for ino in 1..=orphans_per_block(size) as u32 {
                assert!(block.insert(Ino(ino + 11)));
            }
            assert!(!block.insert(Ino(5)), "full");
            assert!(block.remove(Ino(12)) && !block.remove(Ino(12)) && !block.remove(Ino(0)));
            let mut bytes = vec![0xff; size.len()];
            block.encode(size, FsBlock(1 << 33), Some(9), &mut bytes).unwrap();
            let decode =
                |at, seed, bytes: &[u8]| OrphanBlock::decode(size, FsBlock(at), seed, bytes);
            assert_eq!(decode(1 << 33, Some(9), &bytes).as_ref(), Ok(&block));
            assert_eq!(block.orphans().count(), orphans_per_block(size) - 1);
            assert!(matches!(decode(1, Some(9), &bytes), Err(OrphanError::Checksum { .. })));
            let encoded = bytes.clone();
            bytes[size.len() - 4..].fill(0x55);
            seal(9, FsBlock(1 << 33), &mut bytes);
            assert_eq!(bytes, encoded, "sealing in place");
            assert!(decode(1, None, &bytes).is_ok());
            for byte in (0..size.len()).step_by(61).chain([size.len() - 8, size.len() - 1]) {
                bytes[byte] ^= 0x10;
                assert!(decode(1 << 33, Some(9), &bytes).is_err(), "byte {byte}");
                bytes[byte] ^= 0x10;
            }
            assert!(decode(1, None, &bytes[1..]).is_err());
        }
        let small = OrphanBlock::empty(BlockSize::new(1024).unwrap());
        let other = BlockSize::new(2048).unwrap();
        assert!(small.encode(other, FsBlock(1), None, &mut [0; 2048]).is_err());
    }
}
