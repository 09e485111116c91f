//! Commit blocks, which make a transaction count.

use core::fmt;
use core::mem::{offset_of, size_of};

use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{BlockHeader, BlockType, JBD2_MAGIC, Tid};
use super::superblock::LogFormat;
use super::{JournalChecksum, be32_at};
use crate::checksum::{crc32c, crc32c_zeros};
use crate::error::{ChecksumError, LengthError};

/// Commit block, as stored: 60 bytes, big-endian; the rest of the block is zero.
///
/// | offset | bytes | field           | meaning                                              |
/// |-------:|------:|-----------------|------------------------------------------------------|
/// |  `0x0` |    12 | header          | magic, type 2, transaction                           |
/// |  `0xC` |     1 | `h_chksum_type` | version 1: 1 = crc32; else 0                         |
/// |  `0xD` |     1 | `h_chksum_size` | version 1: 4; else 0                                 |
/// |  `0xE` |     2 | `h_padding`     |                                                      |
/// | `0x10` |    32 | `h_chksum`      | first word: v1 of the transaction; v2, v3 of this    |
/// |        |       |                 | block with the word as zero                          |
/// | `0x30` |     8 | `h_commit_sec`  | time of the commit, seconds since 1970               |
/// | `0x38` |     4 | `h_commit_nsec` | and nanoseconds                                      |
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Commit Block".
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy, Debug)]
#[repr(C)]
struct RawCommit {
    h_magic: U32,
    h_blocktype: U32,
    h_sequence: U32,
    h_chksum_type: u8,
    h_chksum_size: u8,
    h_padding: [u8; 2],
    h_chksum: [U32; 8],
    h_commit_sec: U64,
    h_commit_nsec: U32,
}

const COMMIT_BYTES: usize = 60;
const _: () = assert!(size_of::<RawCommit>() == COMMIT_BYTES);
const CHECKSUM_OFFSET: usize = 0x10;
const _: () = assert!(offset_of!(RawCommit, h_chksum) == CHECKSUM_OFFSET);
const _: () = assert!(offset_of!(RawCommit, h_commit_sec) == 0x30);

/// `h_chksum_type` and `h_chksum_size` of a version-1 checksum.
const CRC32_TYPE: u8 = 1;
const CRC32_SIZE: u8 = 4;

/// A commit block, as a checked value. Any bytes after a good header are one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitBlock {
    /// The transaction it commits.
    pub tid: Tid,
    /// Seconds since 1970. Unsigned in the format; jbd2 compares it as such.
    pub commit_sec: u64,
    /// Nanoseconds as stored; not checked, because nothing depends on it.
    pub commit_nsec: u32,
    /// The version-1 checksum of the transaction: `(type, size, value)` as stored.
    pub checksum_v1: (u8, u8, u32),
}

impl CommitBlock {
    /// Decodes a block whose header was found to be a commit's.
    ///
    /// # Errors
    ///
    /// A block shorter than 60 bytes.
    pub fn decode(block: &[u8]) -> Result<CommitBlock, LengthError> {
        let found = block.len();
        let (raw, _) = RawCommit::read_from_prefix(block).map_err(|_| LengthError {
            structure: "commit block",
            wanted: COMMIT_BYTES,
            found,
        })?;
        let [sum, ..] = raw.h_chksum;
        Ok(CommitBlock {
            tid: Tid(raw.h_sequence.get()),
            commit_sec: raw.h_commit_sec.get(),
            commit_nsec: raw.h_commit_nsec.get(),
            checksum_v1: (raw.h_chksum_type, raw.h_chksum_size, sum.get()),
        })
    }

    /// Checks the checksum of version 2 or 3; `Ok` for the others.
    ///
    /// What lies behind the 60 bytes may be anything: every writer leaves zeros there, and of a block
    /// that power failed in, only the first sectors may be new.
    ///
    /// # Errors
    ///
    /// Both values when they differ.
    pub fn verify(format: &LogFormat, block: &[u8]) -> Result<(), ChecksumError> {
        if !format.checksum.covers_blocks() {
            return Ok(());
        }
        let stored = be32_at(block, CHECKSUM_OFFSET).unwrap_or(0);
        let whole = ChecksumError::check("commit block", stored, checksum(format, block));
        whole.or_else(|error| {
            let (header, rest) = block.split_at_checked(COMMIT_BYTES).ok_or(error)?;
            let sum = crc32c_zeros(checksum(format, header), rest.len());
            if sum == stored { Ok(()) } else { Err(error) }
        })
    }

    /// True when a transaction with version-1 checksums is whole: the sum agrees, or none was
    /// stored, which writers without the feature do.
    pub fn matches_v1(&self, sum: &TransactionChecksum) -> bool {
        self.checksum_v1 == (CRC32_TYPE, CRC32_SIZE, sum.value()) || self.checksum_v1 == (0, 0, 0)
    }

    /// Encodes a commit block over all of `block`. Stores `sum` with version 1 and computes the
    /// block's own checksum with versions 2 and 3; `checksum_v1` of `self` is not used.
    ///
    /// # Errors
    ///
    /// When `block` is shorter than a journal block.
    pub fn encode(
        &self,
        format: &LogFormat,
        sum: &TransactionChecksum,
        block: &mut [u8],
    ) -> Result<(), LengthError> {
        let block = LengthError::prefix_mut("commit block", block, format.block_size.len())?;
        block.fill(0);
        let zero = U32::new(0);
        let mut raw = RawCommit {
            h_magic: U32::new(JBD2_MAGIC),
            h_blocktype: U32::new(BlockType::Commit.raw()),
            h_sequence: U32::new(self.tid.0),
            h_chksum_type: 0,
            h_chksum_size: 0,
            h_padding: [0; 2],
            h_chksum: [zero; 8],
            h_commit_sec: U64::new(self.commit_sec),
            h_commit_nsec: U32::new(self.commit_nsec),
        };
        if format.checksum == JournalChecksum::V1 {
            raw.h_chksum_type = CRC32_TYPE;
            raw.h_chksum_size = CRC32_SIZE;
            raw.h_chksum = [U32::new(sum.value()), zero, zero, zero, zero, zero, zero, zero];
        }
        let place = LengthError::prefix_mut("commit block", block, COMMIT_BYTES)?;
        place.copy_from_slice(raw.as_bytes());
        if format.checksum.covers_blocks() {
            let sum = checksum(format, block);
            let _ = super::put_be32(block, CHECKSUM_OFFSET, sum);
        }
        Ok(())
    }

    /// The header this block has.
    pub fn header(&self) -> BlockHeader {
        BlockHeader { block_type: BlockType::Commit, tid: self.tid }
    }
}

/// crc32c of a commit block with its checksum word as zero.
fn checksum(format: &LogFormat, block: &[u8]) -> u32 {
    let before = block.get(..CHECKSUM_OFFSET).unwrap_or(block);
    let behind = block.get(CHECKSUM_OFFSET.saturating_add(4)..).unwrap_or(&[]);
    crc32c(crc32c_zeros(crc32c(format.seed, before), 4), behind)
}

/// The running crc32 of a transaction under checksum version 1.
///
/// Covers its descriptor and data blocks (not its revoke blocks), in the order of the log. The
/// polynomial is crc32's, most significant bit first, from all ones, without final inversion.
#[derive(Clone)]
pub struct TransactionChecksum(crc::Digest<'static, u32>);

static CRC32_BE: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_MPEG_2);

impl TransactionChecksum {
    /// Of no blocks yet.
    pub fn new() -> TransactionChecksum {
        TransactionChecksum(CRC32_BE.digest())
    }

    /// Adds a block as it is in the log.
    pub fn update(&mut self, logged: &[u8]) {
        self.0.update(logged);
    }

    /// The sum so far.
    pub fn value(&self) -> u32 {
        self.0.clone().finalize()
    }
}

impl Default for TransactionChecksum {
    fn default() -> TransactionChecksum {
        TransactionChecksum::new()
    }
}

impl fmt::Debug for TransactionChecksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TransactionChecksum({:#010x})", self.value())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::BlockSize;
    use std::vec;

    fn format(checksum: JournalChecksum) -> LogFormat {
        LogFormat {
            block_size: BlockSize::new(1024).unwrap(),
            checksum,
            blocks_64bit: false,
            seed: 77,
            uuid: [1; 16],
        }
    }

    fn sample() -> CommitBlock {
        CommitBlock {
            tid: Tid(5),
            commit_sec: 0x0102_0304_0506_0708,
            commit_nsec: 999_999_999,
            checksum_v1: (0, 0, 0),
        }
    }

    #[test]
    fn version_1_sums_most_significant_bit_first() {
        let mut sum = TransactionChecksum::new();
        assert_eq!(sum.value(), !0);
        sum.update(b"12345");
        sum.update(b"6789");
        // The catalogue's check value of CRC-32/MPEG-2.
        assert_eq!(sum.value(), 0x0376_e6e7);
    }

    #[test]
    fn version_1_stores_the_sum_or_nothing() {
        let mut sum = TransactionChecksum::new();
        sum.update(&[1; 1024]);
        let mut block = vec![0xaa; 1024];
        sample().encode(&format(JournalChecksum::V1), &sum, &mut block).unwrap();
        assert_eq!(block[0xc..0x10], [1, 4, 0, 0]);
        let read = CommitBlock::decode(&block).unwrap();
        assert!(read.matches_v1(&sum));
        assert!(!read.matches_v1(&TransactionChecksum::new()));
        sample().encode(&format(JournalChecksum::None), &sum, &mut block).unwrap();
        assert!(CommitBlock::decode(&block).unwrap().matches_v1(&sum));
        block[0xc] = 1; // A type without a size.
        assert!(!CommitBlock::decode(&block).unwrap().matches_v1(&sum));
    }

    #[test]
    fn versions_2_and_3_cover_every_bit_of_the_header_and_nothing_behind_it() {
        for version in [JournalChecksum::V2, JournalChecksum::V3] {
            let format = format(version);
            let mut block = vec![0xaa; 1024];
            sample().encode(&format, &TransactionChecksum::new(), &mut block).unwrap();
            CommitBlock::verify(&format, &block).unwrap();
            assert_eq!(CommitBlock::decode(&block).unwrap().commit_sec, sample().commit_sec);
            assert_eq!(BlockHeader::decode(&block), Ok(sample().header()));
            for byte in 0..1024 {
                block[byte] ^= 0x10;
                let is_whole = CommitBlock::verify(&format, &block).is_ok();
                assert_eq!(is_whole, byte >= COMMIT_BYTES, "byte {byte}");
                block[byte] ^= 0x10;
            }
        }
        let mut block = vec![0xaa; 1024];
        block[3] = 1;
        CommitBlock::verify(&format(JournalChecksum::None), &block).unwrap();
    }

    #[test]
    fn a_short_block_is_an_error() {
        for len in 0..60 {
            assert!(CommitBlock::decode(&vec![0; len]).is_err());
            assert!(CommitBlock::verify(&format(JournalChecksum::V3), &vec![0; len]).is_err());
        }
        let none = TransactionChecksum::new();
        assert!(sample().encode(&format(JournalChecksum::V3), &none, &mut vec![0; 1023]).is_err());
    }
}
