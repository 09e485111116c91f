//! The journal's superblock: first block of an internal journal, second of a journal device.

use core::mem::{offset_of, size_of};
use core::ops::Range;

use extant_base::{BlockSize, BlockSizeError};
use zerocopy::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::{JournalChecksum, JournalCompat, JournalIncompat, JournalRoCompat};
use super::header::{BlockHeader, BlockType, HeaderFault, JBD2_MAGIC, Tid};
use crate::checksum::{CRC32C_INIT, crc32c, crc32c_zeros};
use crate::error::{ChecksumError, LengthError};

/// File systems that one journal device can serve by the format. ext4 uses one.
pub const USERS_MAX: usize = 48;

/// A journal keeps at least this many blocks for its log, or it has no fast-commit area.
const LOG_BLOCKS_MIN: u32 = 1024;

/// Size of the fast-commit area when `s_num_fc_blks` is 0.
const FAST_COMMIT_BLOCKS_DEFAULT: u32 = 256;

/// `s_checksum_type` of crc32c, the only one in use.
const CHECKSUM_TYPE_CRC32C: u8 = 4;

/// Journal superblock, as stored: 1024 bytes, big-endian.
///
/// | offset  | bytes | field                 | meaning                                        |
/// |--------:|------:|-----------------------|------------------------------------------------|
/// |   `0x0` |    12 | `s_header`            | magic, type 3 or 4, sequence 0                 |
/// |   `0xC` |     4 | `s_blocksize`         | bytes of a block                               |
/// |  `0x10` |     4 | `s_maxlen`            | blocks of the journal, this one included       |
/// |  `0x14` |     4 | `s_first`             | first block of the log                         |
/// |  `0x18` |     4 | `s_sequence`          | first transaction expected in the log          |
/// |  `0x1C` |     4 | `s_start`             | where it starts; 0 when the log is empty       |
/// |  `0x20` |     4 | `s_errno`             | why the journal was aborted, as a signed errno |
/// |  `0x24` |     4 | `s_feature_compat`    | [`JournalCompat`]; from here on, version 2     |
/// |  `0x28` |     4 | `s_feature_incompat`  | [`JournalIncompat`]                            |
/// |  `0x2C` |     4 | `s_feature_ro_compat` | [`JournalRoCompat`]                            |
/// |  `0x30` |    16 | `s_uuid`              | of the journal; seed of its checksums          |
/// |  `0x40` |     4 | `s_nr_users`          | file systems that use the journal              |
/// |  `0x44` |     4 | `s_dynsuper`          | unused                                         |
/// |  `0x48` |     4 | `s_max_transaction`   | unused                                         |
/// |  `0x4C` |     4 | `s_max_trans_data`    | unused                                         |
/// |  `0x50` |     1 | `s_checksum_type`     | 4 = crc32c                                     |
/// |  `0x51` |     3 | `s_padding2`          |                                                |
/// |  `0x54` |     4 | `s_num_fc_blks`       | blocks of the fast-commit area; 0 means 256    |
/// |  `0x58` |     4 | `s_head`              | where the next transaction goes, when empty    |
/// |  `0x5C` |   160 | `s_padding`           |                                                |
/// |  `0xFC` |     4 | `s_checksum`          | crc32c of the 1024 bytes, this field as zero   |
/// | `0x100` |   768 | `s_users`             | UUIDs of the file systems                      |
///
/// Source: Linux `Documentation/filesystems/ext4/journal.rst`, "Super Block"; `s_num_fc_blks` and
/// `s_head` are in `include/linux/jbd2.h` only.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Debug)]
#[repr(C)]
struct RawJournalSuperblock {
    h_magic: U32,
    h_blocktype: U32,
    h_sequence: U32,
    s_blocksize: U32,
    s_maxlen: U32,
    s_first: U32,
    s_sequence: U32,
    s_start: U32,
    s_errno: U32,
    s_feature_compat: U32,
    s_feature_incompat: U32,
    s_feature_ro_compat: U32,
    s_uuid: [u8; 16],
    s_nr_users: U32,
    s_dynsuper: U32,
    s_max_transaction: U32,
    s_max_trans_data: U32,
    s_checksum_type: u8,
    s_padding2: [u8; 3],
    s_num_fc_blks: U32,
    s_head: U32,
    s_padding: [U32; 40],
    s_checksum: U32,
    s_users: [[u8; 16]; USERS_MAX],
}

const SUPERBLOCK_BYTES: usize = 1024;
const _: () = assert!(size_of::<RawJournalSuperblock>() == SUPERBLOCK_BYTES);
const _: () = assert!(offset_of!(RawJournalSuperblock, s_uuid) == 0x30);
const _: () = assert!(offset_of!(RawJournalSuperblock, s_num_fc_blks) == 0x54);
const CHECKSUM_OFFSET: usize = 0xfc;
const _: () = assert!(offset_of!(RawJournalSuperblock, s_checksum) == CHECKSUM_OFFSET);
const _: () = assert!(offset_of!(RawJournalSuperblock, s_users) == 0x100);

/// Which of the two formats a journal superblock has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum JournalVersion {
    /// ext3's first: no features, no UUID. What is behind `s_errno` has no meaning.
    V1,
    /// With features; all that is made today.
    V2,
}

/// The reason why a journal superblock cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalFault {
    /// Fewer than 1024 bytes.
    #[error(transparent)]
    Length(#[from] LengthError),
    /// No header, or an unknown one.
    #[error("not a journal superblock")]
    Header(#[source] HeaderFault),
    /// A block of the journal, but another kind of block.
    #[error("journal superblock has the block type {found:?}")]
    NotASuperblock {
        /// The kind found.
        found: BlockType,
    },
    /// `s_blocksize` is not a block size.
    #[error("journal superblock: {0}")]
    BlockSize(BlockSizeError),
    /// Features that must be known and are not.
    #[error("journal needs features this build does not know: {incompat}{ro_compat}")]
    UnknownFeatures {
        /// The unknown ones that forbid any use.
        incompat: JournalIncompat,
        /// The unknown ones that forbid writing; a replay writes.
        ro_compat: JournalRoCompat,
    },
    /// The features name more than one checksum version at once.
    #[error("journal claims several checksum versions at once: {compat} {incompat}")]
    ChecksumVersions {
        /// The features found.
        compat: JournalCompat,
        /// The features found.
        incompat: JournalIncompat,
    },
    /// Checksum version 2 or 3 with an algorithm other than crc32c.
    #[error("journal uses the unknown checksum type {found}, only 4 (crc32c) exists")]
    ChecksumType {
        /// `s_checksum_type` as found.
        found: u8,
    },
    /// The log would start outside the journal or on the superblock.
    #[error("journal log starts at block {first} of a journal of {len} blocks")]
    First {
        /// `s_first` as found.
        first: u32,
        /// `s_maxlen` as found.
        len: u32,
    },
    /// The first transaction is outside the log.
    #[error("first transaction at journal block {start}, outside the log {first}..{end}")]
    Start {
        /// `s_start` as found.
        start: u32,
        /// First block of the log.
        first: u32,
        /// Block after the last of the log.
        end: u32,
    },
    /// The journal has more users than the superblock has room for.
    #[error("journal has {found} users, more than {USERS_MAX}")]
    Users {
        /// `s_nr_users` as found.
        found: u32,
    },
}

/// The journal superblock, as a checked value.
///
/// Holding one means: the block size is one of ext4's; all features are known and at most one
/// checksum version is on; `1 <= first < len`; `start` is 0 or inside the log; at most 48 users.
/// It does not mean that the journal has `len` blocks: that needs the inode or device.
///
/// Encoding normalises padding to zero and, for version 1, everything behind `s_errno`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JournalSuperblock {
    /// Which format.
    pub version: JournalVersion,
    /// Size of a journal block; equal to the file system's.
    pub block_size: BlockSize,
    /// Blocks of the journal, its superblock included.
    pub len: u32,
    /// First block of the log: 1 inside a file system; on a journal device the block after the
    /// superblock, counted from the start of the device.
    pub first: u32,
    /// The first transaction expected in the log.
    pub sequence: Tid,
    /// Journal block where it starts; 0 when there is nothing to replay.
    pub start: u32,
    /// Why the journal was aborted; 0 when it was not. Negative, as the kernel counts errors.
    pub errno: i32,
    /// Features that may be ignored. Unknown bits are kept.
    pub compat: JournalCompat,
    /// Features that must be known.
    pub incompat: JournalIncompat,
    /// Features that must be known before writing.
    pub ro_compat: JournalRoCompat,
    /// UUID of the journal.
    pub uuid: [u8; 16],
    /// Number of file systems that use the journal, 0..=48.
    pub user_count: u32,
    /// `s_dynsuper`, unused by Linux.
    pub dynsuper: u32,
    /// `s_max_transaction`, unused by Linux.
    pub max_transaction: u32,
    /// `s_max_trans_data`, unused by Linux.
    pub max_trans_data: u32,
    /// `s_checksum_type`: 4 when the checksum version is 2 or 3.
    pub checksum_type: u8,
    /// Blocks of the fast-commit area as stored; 0 stands for the default of 256.
    pub fast_commit_blocks: u32,
    /// Where the next transaction goes; has a meaning only while `start` is 0.
    pub head: u32,
    /// UUIDs of the file systems; the first `user_count` count.
    pub users: [[u8; 16]; USERS_MAX],
}

/// The properties of a journal that the decoders of its blocks need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogFormat {
    /// Size of every block.
    pub block_size: BlockSize,
    /// How blocks are protected.
    pub checksum: JournalChecksum,
    /// Block numbers have 64 bits.
    pub blocks_64bit: bool,
    /// Where crc32c chains of versions 2 and 3 start: crc32c of the journal's UUID.
    pub seed: u32,
    /// UUID of the journal, stored with the first tag of each descriptor block.
    pub uuid: [u8; 16],
}

impl LogFormat {
    /// Bytes of one tag, without the UUID that may follow it: 8, 10, 12, 14 or 16.
    ///
    /// Version 2 adds two unused bytes: its structure grew by a field that then found room
    /// elsewhere, and the size stayed. That is why version 3 exists.
    pub fn tag_bytes(&self) -> usize {
        match (self.checksum, self.blocks_64bit) {
            (JournalChecksum::V3, _) => 16,
            (JournalChecksum::V2, true) => 14,
            (JournalChecksum::V2, false) => 10,
            (_, true) => 12,
            (_, false) => 8,
        }
    }

    /// Bytes of the checksum at the end of descriptor and revoke blocks: 4 or 0.
    pub fn tail_bytes(&self) -> usize {
        if self.checksum.covers_blocks() { super::TAIL_BYTES } else { 0 }
    }

    /// Bytes of one block number in a revoke block: 8 or 4.
    pub fn revoke_bytes(&self) -> usize {
        if self.blocks_64bit { 8 } else { 4 }
    }

    /// The checksum of a data block as its tag stores it: chained over the transaction's number
    /// and the block as it is in the log (that is, escaped).
    pub fn data_checksum(&self, tid: Tid, logged: &[u8]) -> u32 {
        crc32c(crc32c(self.seed, &tid.0.to_be_bytes()), logged)
    }
}

impl JournalSuperblock {
    /// The superblock of a new journal of `len` blocks inside a file system: an empty log, no features.
    #[must_use]
    pub fn empty(block_size: BlockSize, len: u32) -> JournalSuperblock {
        JournalSuperblock {
            version: JournalVersion::V2,
            block_size,
            len,
            first: 1,
            sequence: Tid(1),
            start: 0,
            errno: 0,
            compat: JournalCompat::empty(),
            incompat: JournalIncompat::empty(),
            ro_compat: JournalRoCompat::empty(),
            uuid: [0; 16],
            user_count: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 0,
            fast_commit_blocks: 0,
            head: 0,
            users: [[0; 16]; USERS_MAX],
        }
    }

    /// Bytes that [`decode`](Self::decode) reads and [`encode`](Self::encode) writes.
    pub const BYTES: usize = SUPERBLOCK_BYTES;

    /// Decodes and checks a superblock. Its checksum is [`verify_checksum`](Self::verify_checksum).
    ///
    /// # Errors
    ///
    /// [`JournalFault`], with the numbers found.
    pub fn decode(bytes: &[u8]) -> Result<JournalSuperblock, JournalFault> {
        let header = BlockHeader::decode(bytes).map_err(JournalFault::Header)?;
        let version = match header.block_type {
            BlockType::SuperblockV1 => JournalVersion::V1,
            BlockType::SuperblockV2 => JournalVersion::V2,
            found => return Err(JournalFault::NotASuperblock { found }),
        };
        let bytes = LengthError::prefix("journal superblock", bytes, SUPERBLOCK_BYTES)?;
        let mut raw = RawJournalSuperblock::read_from_bytes(bytes).map_err(|_| LengthError {
            structure: "journal superblock",
            wanted: SUPERBLOCK_BYTES,
            found: bytes.len(),
        })?;
        if version == JournalVersion::V1 {
            // Whatever is there was never written on purpose.
            if let Some(unused) = raw.as_mut_bytes().get_mut(0x24..) {
                unused.fill(0);
            }
        }
        let decoded = JournalSuperblock {
            version,
            block_size: BlockSize::new(u64::from(raw.s_blocksize.get()))
                .map_err(JournalFault::BlockSize)?,
            len: raw.s_maxlen.get(),
            first: raw.s_first.get(),
            sequence: Tid(raw.s_sequence.get()),
            start: raw.s_start.get(),
            errno: i32::from_be_bytes(raw.s_errno.to_bytes()),
            compat: JournalCompat::from_bits_retain(raw.s_feature_compat.get()),
            incompat: JournalIncompat::from_bits_retain(raw.s_feature_incompat.get()),
            ro_compat: JournalRoCompat::from_bits_retain(raw.s_feature_ro_compat.get()),
            uuid: raw.s_uuid,
            user_count: raw.s_nr_users.get(),
            dynsuper: raw.s_dynsuper.get(),
            max_transaction: raw.s_max_transaction.get(),
            max_trans_data: raw.s_max_trans_data.get(),
            checksum_type: raw.s_checksum_type,
            fast_commit_blocks: raw.s_num_fc_blks.get(),
            head: raw.s_head.get(),
            users: raw.s_users,
        };
        decoded.check()?;
        Ok(decoded)
    }

    /// The rules that a decoded value obeys; see the type.
    fn check(&self) -> Result<(), JournalFault> {
        let incompat = self.incompat.difference(JournalIncompat::all());
        let ro_compat = self.ro_compat.difference(JournalRoCompat::all());
        if !incompat.is_empty() || !ro_compat.is_empty() {
            return Err(JournalFault::UnknownFeatures { incompat, ro_compat });
        }
        let versions = [
            self.compat.contains(JournalCompat::CHECKSUM),
            self.incompat.contains(JournalIncompat::CSUM_V2),
            self.incompat.contains(JournalIncompat::CSUM_V3),
        ];
        if versions.iter().filter(|on| **on).count() > 1 {
            return Err(JournalFault::ChecksumVersions {
                compat: self.compat,
                incompat: self.incompat,
            });
        }
        if self.checksum().covers_blocks() && self.checksum_type != CHECKSUM_TYPE_CRC32C {
            return Err(JournalFault::ChecksumType { found: self.checksum_type });
        }
        if self.first == 0 || self.first >= self.len {
            return Err(JournalFault::First { first: self.first, len: self.len });
        }
        let log = self.log();
        if log.is_empty() {
            return Err(JournalFault::First { first: self.first, len: log.end });
        }
        if self.start != 0 && !log.contains(&self.start) {
            return Err(JournalFault::Start { start: self.start, first: log.start, end: log.end });
        }
        if usize::try_from(self.user_count).is_ok_and(|count| count <= USERS_MAX) {
            Ok(())
        } else {
            Err(JournalFault::Users { found: self.user_count })
        }
    }

    /// Encodes into the first 1024 bytes of `out`, with the checksum if the version has one.
    ///
    /// # Errors
    ///
    /// When `out` is shorter.
    pub fn encode(&self, out: &mut [u8]) -> Result<(), LengthError> {
        let out = LengthError::prefix_mut("journal superblock", out, SUPERBLOCK_BYTES)?;
        let block_type = match self.version {
            JournalVersion::V1 => BlockType::SuperblockV1,
            JournalVersion::V2 => BlockType::SuperblockV2,
        };
        let mut raw = RawJournalSuperblock {
            h_magic: U32::new(JBD2_MAGIC),
            h_blocktype: U32::new(block_type.raw()),
            h_sequence: U32::new(0),
            s_blocksize: U32::new(self.block_size.bytes()),
            s_maxlen: U32::new(self.len),
            s_first: U32::new(self.first),
            s_sequence: U32::new(self.sequence.0),
            s_start: U32::new(self.start),
            s_errno: U32::from_bytes(self.errno.to_be_bytes()),
            s_feature_compat: U32::new(self.compat.bits()),
            s_feature_incompat: U32::new(self.incompat.bits()),
            s_feature_ro_compat: U32::new(self.ro_compat.bits()),
            s_uuid: self.uuid,
            s_nr_users: U32::new(self.user_count),
            s_dynsuper: U32::new(self.dynsuper),
            s_max_transaction: U32::new(self.max_transaction),
            s_max_trans_data: U32::new(self.max_trans_data),
            s_checksum_type: self.checksum_type,
            s_padding2: [0; 3],
            s_num_fc_blks: U32::new(self.fast_commit_blocks),
            s_head: U32::new(self.head),
            s_padding: [U32::new(0); 40],
            s_checksum: U32::new(0),
            s_users: self.users,
        };
        if self.version == JournalVersion::V1 {
            if let Some(unused) = raw.as_mut_bytes().get_mut(0x24..) {
                unused.fill(0);
            }
        } else if self.checksum().covers_blocks() {
            raw.s_checksum = U32::new(crc32c(CRC32C_INIT, raw.as_bytes()));
        }
        out.copy_from_slice(raw.as_bytes());
        Ok(())
    }

    /// Checks `s_checksum` of a superblock with checksum version 2 or 3; `Ok` for the others.
    ///
    /// `bytes` are the bytes that `self` was decoded from.
    ///
    /// # Errors
    ///
    /// Both values when they differ.
    pub fn verify_checksum(&self, bytes: &[u8]) -> Result<(), ChecksumError> {
        if !self.checksum().covers_blocks() {
            return Ok(());
        }
        let stored = super::be32_at(bytes, CHECKSUM_OFFSET).unwrap_or(0);
        let before = bytes.get(..CHECKSUM_OFFSET).unwrap_or(bytes);
        let behind = bytes.get(0x100..SUPERBLOCK_BYTES).unwrap_or(&[]);
        let computed = crc32c(crc32c_zeros(crc32c(CRC32C_INIT, before), 4), behind);
        ChecksumError::check("journal superblock", stored, computed)
    }

    /// Returns how the journal protects its blocks.
    pub fn checksum(&self) -> JournalChecksum {
        if self.incompat.contains(JournalIncompat::CSUM_V3) {
            JournalChecksum::V3
        } else if self.incompat.contains(JournalIncompat::CSUM_V2) {
            JournalChecksum::V2
        } else if self.compat.contains(JournalCompat::CHECKSUM) {
            JournalChecksum::V1
        } else {
            JournalChecksum::None
        }
    }

    /// Returns what the decoders of log blocks need.
    pub fn log_format(&self) -> LogFormat {
        LogFormat {
            block_size: self.block_size,
            checksum: self.checksum(),
            blocks_64bit: self.incompat.contains(JournalIncompat::BLOCKS_64BIT),
            seed: crc32c(CRC32C_INIT, &self.uuid),
            uuid: self.uuid,
        }
    }

    /// Blocks at the end of the journal set aside for fast commits; 0 when the feature is off or
    /// fewer than 1024 blocks would stay for the log.
    fn area_blocks(&self) -> u32 {
        if !self.incompat.contains(JournalIncompat::FAST_COMMIT) {
            return 0;
        }
        let wanted = match self.fast_commit_blocks {
            0 => FAST_COMMIT_BLOCKS_DEFAULT,
            stored => stored,
        };
        match self.len.checked_sub(wanted) {
            Some(log_end) if log_end >= LOG_BLOCKS_MIN => wanted,
            _ => 0,
        }
    }

    /// True unless the journal is said to have fast commits, and their blocks leave too little room for the log: Linux and e2fsck
    /// call such a journal corrupt.
    pub fn fast_commits_fit(&self) -> bool {
        !self.incompat.contains(JournalIncompat::FAST_COMMIT) || self.area_blocks() != 0
    }

    /// The blocks of the circular log.
    pub fn log(&self) -> Range<u32> {
        self.first..self.len.saturating_sub(self.area_blocks())
    }

    /// The blocks of the fast-commit area; empty when there is none. The block between log and
    /// area stays unused.
    pub fn fast_commit_area(&self) -> Range<u32> {
        match self.area_blocks() {
            0 => self.len..self.len,
            blocks => self.len.saturating_sub(blocks).saturating_add(1)..self.len,
        }
    }

    /// True when a transaction that reaches the end of the log may go on at its beginning. With
    /// fast commits it must not: e2fsck 1.47.0 and Linux of that time go on in the area of fast
    /// commits when they replay such a log, and lose what comes then.
    pub fn goes_round(&self) -> bool {
        !self.incompat.contains(JournalIncompat::FAST_COMMIT)
    }

    /// True when the log holds transactions to replay.
    pub fn is_dirty(&self) -> bool {
        self.start != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;
    use std::vec;

    pub(crate) fn sample() -> JournalSuperblock {
        JournalSuperblock {
            version: JournalVersion::V2,
            block_size: BlockSize::new(4096).unwrap(),
            len: 4096,
            first: 1,
            sequence: Tid(7),
            start: 33,
            errno: -5,
            compat: JournalCompat::empty(),
            incompat: JournalIncompat::REVOKE
                | JournalIncompat::BLOCKS_64BIT
                | JournalIncompat::CSUM_V3,
            ro_compat: JournalRoCompat::empty(),
            uuid: [0x5a; 16],
            user_count: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 4,
            fast_commit_blocks: 0,
            head: 9,
            users: [[3; 16]; USERS_MAX],
        }
    }

    fn bytes(sb: &JournalSuperblock) -> [u8; 1024] {
        let mut out = [0; 1024];
        sb.encode(&mut out).unwrap();
        out
    }

    #[test]
    fn fields_sit_where_the_documentation_says() {
        let out = bytes(&sample());
        let at = |offset: usize| u32::from_be_bytes(out[offset..offset + 4].try_into().unwrap());
        assert_eq!((at(0), at(4), at(8)), (JBD2_MAGIC, 4, 0));
        assert_eq!((at(0xc), at(0x10), at(0x14)), (4096, 4096, 1));
        assert_eq!((at(0x18), at(0x1c), at(0x20)), (7, 33, 0xffff_fffb));
        assert_eq!((at(0x24), at(0x28), at(0x2c)), (0, 0x13, 0));
        assert_eq!((out[0x30], at(0x40), out[0x50], at(0x58)), (0x5a, 1, 4, 9));
        assert_eq!(out[0x100..0x110], [3; 16]);
        sample().verify_checksum(&out).unwrap();
        assert_eq!(JournalSuperblock::decode(&out).unwrap(), sample());
    }

    #[test]
    fn any_changed_bit_breaks_the_checksum() {
        let good = bytes(&sample());
        for byte in 0..1024 {
            for bit in 0..8 {
                let mut bad = good;
                bad[byte] ^= 1 << bit;
                assert!(sample().verify_checksum(&bad).is_err(), "byte {byte} bit {bit}");
            }
        }
    }

    #[test]
    fn version_1_ignores_and_clears_what_it_does_not_have() {
        let mut out = bytes(&sample());
        out[7] = 3;
        out[0x24..].fill(0xff);
        let sb = JournalSuperblock::decode(&out).unwrap();
        assert_eq!((sb.version, sb.incompat.bits(), sb.user_count), (JournalVersion::V1, 0, 0));
        assert_eq!(sb.checksum(), JournalChecksum::None);
        sb.verify_checksum(&out).unwrap();
        assert!(bytes(&sb)[0x24..].iter().all(|byte| *byte == 0));
        assert_eq!(JournalSuperblock::decode(&bytes(&sb)).unwrap(), sb);
        let old = JournalSuperblock { version: JournalVersion::V1, ..sample() };
        assert!(bytes(&old)[0x24..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn without_a_checksum_of_blocks_its_field_is_zero() {
        for (compat, incompat) in [(0, 0), (1, 0), (0, 0x12)] {
            let compat = JournalCompat::from_bits_retain(compat);
            let incompat = JournalIncompat::from_bits_retain(incompat);
            let sb = JournalSuperblock { compat, incompat, ..sample() };
            assert_eq!(sb.checksum().covers_blocks(), incompat.bits() & 0x10 != 0);
            let is_zero = bytes(&sb)[0xfc..0x100] == [0; 4];
            assert_eq!(is_zero, !sb.checksum().covers_blocks(), "{:?}", sb.checksum());
        }
    }

    #[test]
    fn every_incompat_bit_is_known_or_refused_by_name() {
        for bit in 0..32 {
            let mut sb = sample();
            sb.incompat = JournalIncompat::from_bits_retain(1 << bit);
            sb.start = 1;
            let decoded = JournalSuperblock::decode(&bytes(&sb));
            if bit < 6 {
                assert_eq!(decoded.unwrap(), sb, "bit {bit}");
            } else {
                let message = decoded.unwrap_err().to_string();
                assert!(message.ends_with(&std::format!("FEATURE_I{bit}")), "{message}");
            }
            let mut sb = sample();
            sb.ro_compat = JournalRoCompat::from_bits_retain(1 << bit);
            let message = JournalSuperblock::decode(&bytes(&sb)).unwrap_err().to_string();
            assert!(message.ends_with(&std::format!("FEATURE_R{bit}")), "{message}");
            let mut sb = sample();
            sb.compat = JournalCompat::from_bits_retain(1 << bit);
            assert_eq!(JournalSuperblock::decode(&bytes(&sb)).is_ok(), bit != 0, "compat {bit}");
        }
    }

    #[test]
    fn at_most_one_checksum_version() {
        for bits in 0..8u32 {
            let mut sb = sample();
            sb.compat = JournalCompat::from_bits_retain(bits & 1);
            sb.incompat = JournalIncompat::from_bits_retain((bits & 6) << 2);
            let decoded = JournalSuperblock::decode(&bytes(&sb));
            if bits.count_ones() > 1 {
                assert!(matches!(decoded, Err(JournalFault::ChecksumVersions { .. })), "{bits}");
            } else {
                let wanted = match bits {
                    0 => JournalChecksum::None,
                    1 => JournalChecksum::V1,
                    2 => JournalChecksum::V2,
                    _ => JournalChecksum::V3,
                };
                assert_eq!(decoded.unwrap().checksum(), wanted);
            }
        }
    }

    #[test]
    fn the_log_and_its_start_stay_inside_the_journal() {
        let table = [
            // first, start, len, accepted
            (1, 0, 2, true),
            (1, 1, 2, true),
            (1, 2, 2, false),
            (0, 0, 2, false),
            (2, 0, 2, false),
            (5, 4, 100, false),
            (5, 5, 100, true),
            (5, 99, 100, true),
            (5, 100, 100, false),
            (1, u32::MAX, u32::MAX, false),
            (1, u32::MAX - 1, u32::MAX, true),
            (1, 0, 0, false),
        ];
        for (first, start, len, accepted) in table {
            let sb = JournalSuperblock { first, start, len, ..sample() };
            let decoded = JournalSuperblock::decode(&bytes(&sb));
            assert_eq!(decoded.is_ok(), accepted, "{first} {start} {len}: {decoded:?}");
        }
    }

    #[test]
    fn the_fast_commit_area_takes_the_end_of_long_journals() {
        let with = |len, fast_commit_blocks| JournalSuperblock {
            len,
            fast_commit_blocks,
            incompat: JournalIncompat::FAST_COMMIT,
            start: 0,
            ..sample()
        };
        let table = [
            (1279, 0, 1..1279, 1279..1279),
            (1280, 0, 1..1024, 1025..1280),
            (4096, 0, 1..3840, 3841..4096),
            (4096, 100, 1..3996, 3997..4096),
            (4096, 4096, 1..4096, 4096..4096),
            (4096, u32::MAX, 1..4096, 4096..4096),
        ];
        for (len, blocks, log, area) in table {
            let sb = with(len, blocks);
            assert_eq!(sb.fast_commits_fit(), !area.is_empty(), "{len} {blocks}");
            assert_eq!((sb.log(), sb.fast_commit_area()), (log, area), "{len} {blocks}");
        }
        assert!(with(4096, 1).fast_commits_fit(), "which is an empty area all the same");
        let off = JournalSuperblock { incompat: JournalIncompat::empty(), ..with(4096, 100) };
        assert_eq!((off.log(), off.fast_commit_area()), (1..4096, 4096..4096));
        assert!(off.fast_commits_fit());
        assert!(off.goes_round() && !with(4096, 100).goes_round());
        // A log that starts behind its own end.
        let sb = JournalSuperblock { first: 4000, ..with(4096, 0) };
        assert!(JournalSuperblock::decode(&bytes(&sb)).is_err());
    }

    #[test]
    fn other_faults_name_what_they_found() {
        let patch = |offset: usize, value: u32| {
            let mut out = bytes(&sample());
            out[offset..offset + 4].copy_from_slice(&value.to_be_bytes());
            JournalSuperblock::decode(&out).unwrap_err().to_string()
        };
        assert_eq!(patch(0, 1), "not a journal superblock");
        assert_eq!(patch(4, 2), "journal superblock has the block type Commit");
        assert!(patch(0xc, 3000).contains("block size 3000"));
        let full = JournalSuperblock { user_count: 48, ..sample() };
        assert_eq!(JournalSuperblock::decode(&bytes(&full)).unwrap(), full);
        assert_eq!(patch(0x40, 49), "journal has 49 users, more than 48");
        assert!(patch(0x50, 0x0100_0000).contains("checksum type 1"));
        let short = JournalSuperblock::decode(&bytes(&sample())[..1023]).unwrap_err();
        assert_eq!(short.to_string(), "journal superblock: 1023 bytes given, 1024 needed");
        assert!(sample().encode(&mut vec![0; 1023]).is_err());
    }
}
