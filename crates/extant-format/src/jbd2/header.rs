//! The 12 bytes that start every block which the journal writes for itself.

use core::fmt;

use super::{be32_at, put_be32};

/// First four bytes of every block of the journal's own. Data that happens to begin with it is
/// stored escaped; see [`TagFlags::ESCAPE`](super::TagFlags::ESCAPE).
pub const JBD2_MAGIC: u32 = 0xc03b_3998;

/// Bytes of the header.
pub const HEADER_BYTES: usize = 12;

/// Number of a transaction. Counts up by one and wraps past 2^32 - 1.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Tid(pub u32);

impl Tid {
    /// The next transaction.
    #[must_use]
    pub fn next(self) -> Tid {
        Tid(self.0.wrapping_add(1))
    }

    /// The transaction before.
    #[must_use]
    pub fn previous(self) -> Tid {
        Tid(self.0.wrapping_sub(1))
    }

    /// Returns how many transactions `self` comes after `start`, going round.
    pub fn since(self, start: Tid) -> u32 {
        self.0.wrapping_sub(start.0)
    }

    /// True when `self` is younger than `other`: less than half the number space after it.
    pub fn is_after(self, other: Tid) -> bool {
        let ahead = self.since(other);
        ahead != 0 && ahead < 1 << 31
    }
}

impl fmt::Display for Tid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// The kind of contents that a block of the journal has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockType {
    /// Names the data blocks that follow it.
    Descriptor,
    /// Ends a transaction and makes it count.
    Commit,
    /// Superblock of the first format: no features.
    SuperblockV1,
    /// Superblock with features.
    SuperblockV2,
    /// Names blocks whose older copies in the log must not be replayed.
    Revoke,
}

impl BlockType {
    /// From `h_blocktype`; `None` for a number that has no meaning.
    pub fn from_raw(raw: u32) -> Option<BlockType> {
        Some(match raw {
            1 => Self::Descriptor,
            2 => Self::Commit,
            3 => Self::SuperblockV1,
            4 => Self::SuperblockV2,
            5 => Self::Revoke,
            _ => return None,
        })
    }

    /// As stored in `h_blocktype`.
    pub fn raw(self) -> u32 {
        match self {
            Self::Descriptor => 1,
            Self::Commit => 2,
            Self::SuperblockV1 => 3,
            Self::SuperblockV2 => 4,
            Self::Revoke => 5,
        }
    }
}

/// The common header, as a checked value.
///
/// | offset | bytes | field         | meaning                       |
/// |-------:|------:|---------------|-------------------------------|
/// |  `0x0` |     4 | `h_magic`     | [`JBD2_MAGIC`]                |
/// |  `0x4` |     4 | `h_blocktype` | [`BlockType`]                 |
/// |  `0x8` |     4 | `h_sequence`  | the transaction it belongs to |
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Block Header".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// What the block holds.
    pub block_type: BlockType,
    /// The transaction it belongs to. Superblocks store 0.
    pub tid: Tid,
}

/// The reason why bytes are not a block of the journal's own. Ordinary: the log ends at the first such block.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum HeaderFault {
    /// Fewer than 12 bytes.
    #[error("journal block of {found} bytes has no room for a header")]
    Short {
        /// Bytes given.
        found: usize,
    },
    /// The block does not begin with the journal's magic number.
    #[error(
        "journal block starts with {found:#010x}, not with the magic number {JBD2_MAGIC:#010x}"
    )]
    NoMagic {
        /// The number found.
        found: u32,
    },
    /// A block type that has no meaning.
    #[error("journal block has the unknown type {found}")]
    UnknownType {
        /// The number found.
        found: u32,
    },
}

impl BlockHeader {
    /// Decodes the first 12 bytes of a block.
    ///
    /// # Errors
    ///
    /// [`HeaderFault`], which also is how the end of a log looks.
    pub fn decode(block: &[u8]) -> Result<BlockHeader, HeaderFault> {
        let short = HeaderFault::Short { found: block.len() };
        let magic = be32_at(block, 0).ok_or(short)?;
        let raw_type = be32_at(block, 4).ok_or(short)?;
        let tid = Tid(be32_at(block, 8).ok_or(short)?);
        if magic != JBD2_MAGIC {
            return Err(HeaderFault::NoMagic { found: magic });
        }
        let block_type =
            BlockType::from_raw(raw_type).ok_or(HeaderFault::UnknownType { found: raw_type })?;
        Ok(BlockHeader { block_type, tid })
    }

    /// Writes the header into the first 12 bytes of `block`; false when it is shorter than that.
    #[must_use]
    pub fn encode(&self, block: &mut [u8]) -> bool {
        block.len() >= HEADER_BYTES
            && put_be32(block, 0, JBD2_MAGIC).is_some()
            && put_be32(block, 4, self.block_type.raw()).is_some()
            && put_be32(block, 8, self.tid.0).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_small_type_number_has_one_meaning() {
        for raw in 0..=300u32 {
            match BlockType::from_raw(raw) {
                Some(block_type) => assert_eq!(block_type.raw(), raw),
                None => assert!(!(1..=5).contains(&raw), "{raw}"),
            }
        }
    }

    #[test]
    fn tids_compare_round_the_end() {
        let table = [
            (1, 0, true),
            (0, 0, false),
            (0, 1, false),
            (0, u32::MAX, true),
            (u32::MAX, 0, false),
            (0x8000_0000, 0, false),
            (0x7fff_ffff, 0, true),
            (5, 0xffff_fff0, true),
        ];
        for (a, b, after) in table {
            assert_eq!(Tid(a).is_after(Tid(b)), after, "{a:#x} after {b:#x}");
        }
        assert_eq!(Tid(u32::MAX).next(), Tid(0));
        assert_eq!(Tid(0).previous(), Tid(u32::MAX));
        assert_eq!(Tid(3).since(Tid(u32::MAX)), 4);
    }

    #[test]
    fn headers_round_trip_and_faults_say_what_is_wrong() {
        let mut block = [0u8; 16];
        let header = BlockHeader { block_type: BlockType::Commit, tid: Tid(0x0102_0304) };
        assert!(header.encode(&mut block));
        assert_eq!(block[..12], [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2, 1, 2, 3, 4]);
        assert_eq!(BlockHeader::decode(&block), Ok(header));
        for short in 0..12 {
            assert_eq!(
                BlockHeader::decode(&block[..short]),
                Err(HeaderFault::Short { found: short })
            );
            assert!(!header.encode(&mut [0u8; 16][..short]));
        }
        block[7] = 9;
        assert_eq!(BlockHeader::decode(&block), Err(HeaderFault::UnknownType { found: 9 }));
        block[0] = 0;
        assert_eq!(BlockHeader::decode(&block), Err(HeaderFault::NoMagic { found: 0x003b_3998 }));
    }
}
