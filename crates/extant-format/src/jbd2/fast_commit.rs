//! Records of fast commits: outcomes of operations, logged between two full commits.
//!
//! # Shape
//!
//! The area at the end of the journal holds fast commits one after the other, each from the start
//! of a block:
//!
//! ```text
//! | head | inode | create | ... | pad || ... | tail    | head? no: only the first has one
//!   tag and length (2 + 2 bytes), value        \ takes the rest of its block
//! ```
//!
//! Unlike the rest of the journal, records are little-endian. No record crosses the end of a block;
//! a pad fills what is left. A tail ends a fast commit and carries the crc32c, from 0 and without
//! inversion, of all its records, tags and lengths included, up to the tail's own checksum field.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/journal.rst`, "Fast commits"; the values' layout is in
//! `fs/ext4/fast_commit.h`.

use alloc::vec::Vec;

use extant_base::{BlockCount, BlockSize, FileBlock, Ino};
use zerocopy::{FromBytes, IntoBytes};

use super::header::Tid;
use crate::checksum::crc32c;
use crate::extent::{Extent, ExtentFault, RawExtent};

/// Bytes of a record's tag and length.
const LEAD_BYTES: usize = 4;
/// Longest name of a directory entry.
const NAME_BYTES_MAX: usize = 255;
/// Shortest raw inode.
const INODE_BYTES_MIN: usize = 128;

/// The kinds of records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FcTag {
    /// File blocks are mapped to an extent.
    AddRange,
    /// File blocks are not mapped.
    DelRange,
    /// A name of a new inode exists.
    Create,
    /// A further name of an inode exists.
    Link,
    /// A name does not exist.
    Unlink,
    /// An inode's raw image.
    Inode,
    /// Nothing; fills a block.
    Pad,
    /// End of one fast commit.
    Tail,
    /// Start of the area.
    Head,
}

impl FcTag {
    /// From the stored number; `None` for a number that has no meaning.
    pub fn from_raw(raw: u16) -> Option<FcTag> {
        Some(match raw {
            1 => Self::AddRange,
            2 => Self::DelRange,
            3 => Self::Create,
            4 => Self::Link,
            5 => Self::Unlink,
            6 => Self::Inode,
            7 => Self::Pad,
            8 => Self::Tail,
            9 => Self::Head,
            _ => return None,
        })
    }

    /// The number as stored.
    pub fn raw(self) -> u16 {
        match self {
            Self::AddRange => 1,
            Self::DelRange => 2,
            Self::Create => 3,
            Self::Link => 4,
            Self::Unlink => 5,
            Self::Inode => 6,
            Self::Pad => 7,
            Self::Tail => 8,
            Self::Head => 9,
        }
    }
}

/// A directory entry that exists, or no longer does.
///
/// | offset | bytes  | field           | meaning                 |
/// |-------:|-------:|-----------------|-------------------------|
/// |  `0x0` |      4 | `fc_parent_ino` | the directory           |
/// |  `0x4` |      4 | `fc_ino`        | the inode               |
/// |  `0x8` | 1..255 | `fc_dname`      | the name, no terminator |
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FcDentry<'a> {
    /// The directory.
    pub parent: Ino,
    /// The inode the name stands for.
    pub ino: Ino,
    /// The name, 1..=255 bytes.
    pub name: &'a [u8],
}

/// The end of one fast commit.
///
/// | offset | bytes | field    | meaning                                    |
/// |-------:|------:|----------|--------------------------------------------|
/// |  `0x0` |     4 | `fc_tid` | the running transaction it belongs to      |
/// |  `0x4` |     4 | `fc_crc` | of this fast commit, up to this field      |
///
/// The value's length goes up to the end of the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FcTail {
    /// The transaction that the next full commit would have had.
    pub tid: Tid,
    /// The stored checksum.
    pub checksum: u32,
}

/// One record, as a checked value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FcRecord<'a> {
    /// `fc_ino` (4 bytes), then a leaf record of an extent tree (12 bytes).
    AddRange {
        /// The file.
        ino: Ino,
        /// The mapping that exists.
        extent: Extent,
    },
    /// `fc_ino`, `fc_lblk`, `fc_len`, 4 bytes each.
    DelRange {
        /// The file.
        ino: Ino,
        /// First file block without a mapping.
        start: FileBlock,
        /// How many. The end may lie past the last possible file block.
        len: BlockCount,
    },
    /// The name exists, and its inode is new.
    Create(FcDentry<'a>),
    /// The name exists.
    Link(FcDentry<'a>),
    /// The name does not exist.
    Unlink(FcDentry<'a>),
    /// `fc_ino` (4 bytes), then at least the first 128 bytes of the inode.
    Inode {
        /// Which inode.
        ino: Ino,
        /// The raw bytes of the inode; an `i_checksum` in them is out of date.
        raw: &'a [u8],
    },
    /// Fill bytes.
    Pad,
    /// End of a fast commit.
    Tail(FcTail),
    /// `fc_features` and `fc_tid`, 4 bytes each.
    Head {
        /// Feature bits; none are defined.
        features: u32,
        /// The transaction that the area belongs to.
        tid: Tid,
    },
}

/// The reason why a record cannot be used. In an area that was used before, the ordinary end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FcFault {
    /// A tag without meaning.
    #[error("fast-commit record at byte {offset} has the unknown tag {found}")]
    UnknownTag {
        /// Offset of the record in its block.
        offset: usize,
        /// The tag found.
        found: u16,
    },
    /// A length that the tag cannot have, or past the end of the block.
    #[error("fast-commit record {tag:?} at byte {offset} has length {len} with {room} bytes left")]
    Length {
        /// Offset of the record in its block.
        offset: usize,
        /// The kind of the record.
        tag: FcTag,
        /// The length found.
        len: usize,
        /// Bytes left in the block.
        room: usize,
    },
    /// An added range with an impossible extent.
    #[error("fast-commit record at byte {offset}: {fault}")]
    Extent {
        /// Offset of the record in its block.
        offset: usize,
        /// What is wrong with the extent.
        fault: ExtentFault,
    },
}

/// The records of one block of the area, in order, each with the bytes its checksum covers.
///
/// Ends after the first fault and where no further record fits.
#[derive(Clone, Debug)]
pub struct FcRecords<'a> {
    block: &'a [u8],
    offset: usize,
}

impl<'a> FcRecords<'a> {
    /// The records of `block`, one whole journal block.
    pub fn new(block: &'a [u8]) -> FcRecords<'a> {
        FcRecords { block, offset: 0 }
    }

    fn decode_next(&mut self) -> Option<Result<(FcRecord<'a>, &'a [u8]), FcFault>> {
        let offset = self.offset;
        let rest = self.block.get(offset..)?;
        let (lead, behind) = rest.split_at_checked(LEAD_BYTES)?;
        let found = le16_at(lead, 0)?;
        let len = usize::from(le16_at(lead, 2)?);
        let Some(tag) = FcTag::from_raw(found) else {
            return Some(Err(FcFault::UnknownTag { offset, found }));
        };
        let fault = FcFault::Length { offset, tag, len, room: behind.len() };
        let Some(value) = behind.get(..len) else {
            return Some(Err(fault));
        };
        let whole = LEAD_BYTES.checked_add(len)?;
        self.offset = offset.checked_add(whole)?;
        // A tail's checksum cannot cover itself, nor the rest of the block behind it.
        let covered = if tag == FcTag::Tail { LEAD_BYTES.saturating_add(4) } else { whole };
        match decode_value(tag, value) {
            Value::Good(record) => Some(Ok((record, rest.get(..covered)?))),
            Value::Length => Some(Err(fault)),
            Value::Extent(fault) => Some(Err(FcFault::Extent { offset, fault })),
        }
    }
}

impl<'a> Iterator for FcRecords<'a> {
    type Item = Result<(FcRecord<'a>, &'a [u8]), FcFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let next = self.decode_next();
        if !matches!(next, Some(Ok(_))) {
            self.offset = self.block.len();
        }
        next
    }
}

/// The result of [`decode_value`].
enum Value<'a> {
    Good(FcRecord<'a>),
    Length,
    Extent(ExtentFault),
}

/// Decodes a value whose bytes are all there.
fn decode_value(tag: FcTag, value: &[u8]) -> Value<'_> {
    decode_fields(tag, value).unwrap_or(Value::Length)
}

/// `None` where the length does not fit the tag.
fn decode_fields(tag: FcTag, value: &[u8]) -> Option<Value<'_>> {
    let exactly = |len: usize| (value.len() == len).then_some(());
    let dentry = || {
        let name = value.get(8..)?;
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return None;
        }
        Some(FcDentry { parent: Ino(le32_at(value, 0)?), ino: Ino(le32_at(value, 4)?), name })
    };
    Some(Value::Good(match tag {
        FcTag::AddRange => {
            exactly(16)?;
            let raw = RawExtent::read_from_bytes(value.get(4..)?).ok()?;
            match raw.decode() {
                Ok(extent) => FcRecord::AddRange { ino: Ino(le32_at(value, 0)?), extent },
                Err(fault) => return Some(Value::Extent(fault)),
            }
        }
        FcTag::DelRange => {
            exactly(12)?;
            FcRecord::DelRange {
                ino: Ino(le32_at(value, 0)?),
                start: FileBlock(le32_at(value, 4)?),
                len: BlockCount(le32_at(value, 8)?),
            }
        }
        FcTag::Create => FcRecord::Create(dentry()?),
        FcTag::Link => FcRecord::Link(dentry()?),
        FcTag::Unlink => FcRecord::Unlink(dentry()?),
        FcTag::Inode => {
            let raw = value.get(4..).filter(|raw| raw.len() >= INODE_BYTES_MIN)?;
            FcRecord::Inode { ino: Ino(le32_at(value, 0)?), raw }
        }
        FcTag::Pad => FcRecord::Pad,
        FcTag::Tail => {
            FcRecord::Tail(FcTail { tid: Tid(le32_at(value, 0)?), checksum: le32_at(value, 4)? })
        }
        FcTag::Head => {
            exactly(8)?;
            FcRecord::Head { features: le32_at(value, 0)?, tid: Tid(le32_at(value, 4)?) }
        }
    }))
}

fn le16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(offset..)?.first_chunk::<2>()?))
}

fn le32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(offset..)?.first_chunk::<4>()?))
}

/// The checksum of a fast commit while its records go by.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FcRunningChecksum(u32);

impl FcRunningChecksum {
    /// Adds the covered bytes of one record, tails included.
    pub fn update(&mut self, covered: &[u8]) {
        self.0 = crc32c(self.0, covered);
    }

    /// The value so far; starts again from nothing, as the next fast commit does.
    pub fn take(&mut self) -> u32 {
        core::mem::take(&mut self.0)
    }
}

/// Lays out records in blocks, as many as it takes.
#[derive(Clone, Debug)]
pub struct FcWriter {
    block_bytes: usize,
    bytes: Vec<u8>,
    checksum: FcRunningChecksum,
}

impl FcWriter {
    /// Starts a fast commit at the start of a block.
    pub fn new(block_size: BlockSize) -> FcWriter {
        FcWriter {
            block_bytes: block_size.len(),
            bytes: Vec::new(),
            checksum: FcRunningChecksum::default(),
        }
    }

    /// Bytes left in the current block, less what the lead of a pad needs.
    fn room(&self) -> usize {
        let used = self.bytes.len().checked_rem(self.block_bytes).unwrap_or(0);
        self.block_bytes.saturating_sub(used).saturating_sub(LEAD_BYTES)
    }

    /// Adds a record, in a new block if need be. Pads and tails are not records of the caller's.
    ///
    /// False, and nothing changed, when the value breaks a rule of its kind (a name of 0 or more
    /// than 255 bytes, an inode shorter than 128, an extent that no record holds) or is too long
    /// for a block.
    #[must_use]
    pub fn push(&mut self, record: &FcRecord<'_>) -> bool {
        let Some(bytes) = encode_record(record) else {
            return false;
        };
        if bytes.len() > self.block_bytes.saturating_sub(LEAD_BYTES) {
            return false;
        }
        if bytes.len() > self.room() {
            let fill = self.room();
            self.append(&lead(FcTag::Pad, fill));
            self.append(&alloc::vec![0; fill]);
        }
        self.append(&bytes);
        true
    }

    /// Appends covered bytes.
    fn append(&mut self, bytes: &[u8]) {
        self.checksum.update(bytes);
        self.bytes.extend_from_slice(bytes);
    }

    /// Ends the fast commit; the bytes are whole blocks.
    #[must_use]
    pub fn finish(mut self, tid: Tid) -> Vec<u8> {
        const TAIL: usize = 8;
        if self.room() < LEAD_BYTES.saturating_add(TAIL) {
            let fill = self.room();
            self.append(&lead(FcTag::Pad, fill));
            self.append(&alloc::vec![0; fill]);
        }
        // The value takes the rest of the block: the room, which already leaves out the lead.
        let len = self.room();
        self.append(&lead(FcTag::Tail, len));
        self.append(&tid.0.to_le_bytes());
        let checksum = self.checksum.take();
        self.bytes.extend_from_slice(&checksum.to_le_bytes());
        self.bytes.resize(self.bytes.len().next_multiple_of(self.block_bytes.max(1)), 0);
        self.bytes
    }
}

/// Tag and length. `len` is below a block's size less 4, so it fits 16 bits.
fn lead(tag: FcTag, len: usize) -> [u8; LEAD_BYTES] {
    let [a, b] = tag.raw().to_le_bytes();
    let [c, d] = u16::try_from(len).unwrap_or(u16::MAX).to_le_bytes();
    [a, b, c, d]
}

/// The bytes of a record with its lead; `None` when the value breaks a rule, or for pad and tail.
fn encode_record(record: &FcRecord<'_>) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let mut put = |number: u32| value.extend_from_slice(&number.to_le_bytes());
    let tag = match record {
        FcRecord::AddRange { ino, extent } => {
            put(ino.0);
            value.extend_from_slice(extent.encode().ok()?.as_bytes());
            FcTag::AddRange
        }
        FcRecord::DelRange { ino, start, len } => {
            [ino.0, start.0, len.0].into_iter().for_each(put);
            FcTag::DelRange
        }
        FcRecord::Create(dentry) | FcRecord::Link(dentry) | FcRecord::Unlink(dentry) => {
            if dentry.name.is_empty() || dentry.name.len() > NAME_BYTES_MAX {
                return None;
            }
            put(dentry.parent.0);
            put(dentry.ino.0);
            value.extend_from_slice(dentry.name);
            match record {
                FcRecord::Create(_) => FcTag::Create,
                FcRecord::Link(_) => FcTag::Link,
                _ => FcTag::Unlink,
            }
        }
        FcRecord::Inode { ino, raw } => {
            if raw.len() < INODE_BYTES_MIN {
                return None;
            }
            put(ino.0);
            value.extend_from_slice(raw);
            FcTag::Inode
        }
        FcRecord::Head { features, tid } => {
            put(*features);
            put(tid.0);
            FcTag::Head
        }
        FcRecord::Pad | FcRecord::Tail(_) => return None,
    };
    u16::try_from(value.len()).ok()?;
    let mut bytes = lead(tag, value.len()).to_vec();
    bytes.append(&mut value);
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::extent::ExtentState;
    use extant_base::{FsBlock, Prng};
    use std::vec;

    fn samples() -> Vec<FcRecord<'static>> {
        let dentry = FcDentry { parent: Ino(2), ino: Ino(12), name: b"name" };
        vec![
            FcRecord::Head { features: 0, tid: Tid(7) },
            FcRecord::AddRange {
                ino: Ino(12),
                extent: Extent {
                    file_start: FileBlock(1),
                    device_start: FsBlock(0x1_0000_0002),
                    len: BlockCount(3),
                    state: ExtentState::Unwritten,
                },
            },
            FcRecord::DelRange { ino: Ino(12), start: FileBlock(9), len: BlockCount(u32::MAX) },
            FcRecord::Create(dentry),
            FcRecord::Link(dentry),
            FcRecord::Unlink(FcDentry { name: &[0xff; 255], ..dentry }),
            FcRecord::Inode { ino: Ino(12), raw: &[0xab; 160] },
        ]
    }

    /// Reads back as the kernel does; the records up to the last good tail.
    fn read(bytes: &[u8], block_bytes: usize) -> Result<Vec<FcRecord<'_>>, FcFault> {
        let mut checksum = FcRunningChecksum::default();
        let mut records = Vec::new();
        for block in bytes.chunks(block_bytes) {
            for record in FcRecords::new(block) {
                let (record, covered) = record?;
                checksum.update(covered);
                if let FcRecord::Tail(tail) = record {
                    assert_eq!(tail.checksum, checksum.take());
                }
                records.push(record);
            }
        }
        Ok(records)
    }

    #[test]
    fn every_small_tag_number_has_one_meaning() {
        for raw in 0..=u16::MAX {
            match FcTag::from_raw(raw) {
                Some(tag) => assert_eq!(tag.raw(), raw),
                None => assert!(!(1..=9).contains(&raw)),
            }
        }
    }

    #[test]
    fn records_round_trip_over_block_ends() {
        for repeat in 1..40 {
            let mut writer = FcWriter::new(BlockSize::new(1024).unwrap());
            let mut wanted = Vec::new();
            for _ in 0..repeat {
                for record in samples() {
                    assert!(writer.push(&record), "{record:?}");
                    wanted.push(record);
                }
            }
            let bytes = writer.finish(Tid(7));
            assert_eq!(bytes.len() % 1024, 0);
            let mut found = read(&bytes, 1024).unwrap();
            assert!(matches!(found.pop(), Some(FcRecord::Tail(FcTail { tid: Tid(7), .. }))));
            found.retain(|record| *record != FcRecord::Pad);
            assert_eq!(found, wanted);
        }
    }

    #[test]
    fn tails_fit_however_full_the_block_is() {
        for len in 128..1100 {
            let raw = vec![1; len];
            let mut writer = FcWriter::new(BlockSize::new(1024).unwrap());
            let fits = writer.push(&FcRecord::Inode { ino: Ino(5), raw: &raw });
            assert_eq!(fits, len <= 1024 - 4 - 4 - 4, "{len}");
            let bytes = writer.finish(Tid(1));
            let found = read(&bytes, 1024).unwrap();
            assert!(matches!(found.last(), Some(FcRecord::Tail(_))));
        }
    }

    #[test]
    fn values_that_break_a_rule_are_not_written() {
        let mut writer = FcWriter::new(BlockSize::new(1024).unwrap());
        let dentry = |name| FcRecord::Link(FcDentry { parent: Ino(2), ino: Ino(3), name });
        assert!(!writer.push(&dentry(b"")));
        assert!(!writer.push(&dentry(&[1; 256])));
        assert!(!writer.push(&FcRecord::Inode { ino: Ino(3), raw: &[0; 127] }));
        assert!(!writer.push(&FcRecord::Pad));
        assert!(!writer.push(&FcRecord::Tail(FcTail { tid: Tid(1), checksum: 0 })));
        assert_eq!(read(&writer.finish(Tid(2)), 1024).unwrap().len(), 1);
    }

    #[test]
    fn every_length_of_every_tag_is_read_or_refused() {
        for raw in 1..=9u16 {
            let tag = FcTag::from_raw(raw).unwrap();
            for len in 0..400usize {
                let mut block = vec![1u8; 304];
                block[..2].copy_from_slice(&raw.to_le_bytes());
                block[2..4].copy_from_slice(&(len as u16).to_le_bytes());
                let accepted = match tag {
                    FcTag::AddRange => len == 16,
                    FcTag::DelRange => len == 12,
                    FcTag::Create | FcTag::Link | FcTag::Unlink => (9..=263).contains(&len),
                    FcTag::Inode => len >= 132,
                    FcTag::Pad => true,
                    FcTag::Tail => len >= 8,
                    FcTag::Head => len == 8,
                } && len <= 300;
                let first = FcRecords::new(&block).next().unwrap();
                assert_eq!(first.is_ok(), accepted, "{tag:?} {len}: {first:?}");
                if !accepted {
                    assert_eq!(FcRecords::new(&block).count(), 1, "ends after a fault");
                }
            }
        }
    }

    #[test]
    fn any_bytes_end() {
        let mut random = Prng::new(5);
        for len in [0usize, 1, 3, 4, 5, 1024] {
            for _ in 0..200 {
                let mut block = vec![0; len];
                random.fill(&mut block);
                for lead in block.chunks_mut(8) {
                    lead[0] %= 10; // Likely tags, likely short.
                    lead.iter_mut().skip(1).step_by(2).for_each(|byte| *byte = 0);
                }
                assert!(FcRecords::new(&block).count() <= len / 4 + 1);
            }
        }
        // Zeros are no record: tag 0 is unknown.
        let first = FcRecords::new(&[0; 1024]).next();
        assert_eq!(first, Some(Err(FcFault::UnknownTag { offset: 0, found: 0 })));
    }
}
