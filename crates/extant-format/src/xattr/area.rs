//! Reading an area of attributes.

use super::hash::checksum;
use super::{ENTRY_BYTES, MAGIC, NameIndex, VALUE_MAX, XattrFault, entry_bytes, value_bytes};
use crate::error::ChecksumError;
use crate::le;
use alloc::vec::Vec;
use extant_base::{FsBlock, Ino};

/// Bytes of a block's header.
pub const BLOCK_HEADER_BYTES: usize = 32;
/// Bytes of the magic before an inode's entries.
pub const INODE_HEADER_BYTES: usize = 4;
/// Where `h_checksum` is.
pub(super) const CHECKSUM_AT: usize = 16;

/// The header of a block, decoded from its 32 bytes.
///
/// | offset | bytes | field        | meaning                                              |
/// |-------:|------:|--------------|------------------------------------------------------|
/// |  `0x0` |     4 | `h_magic`    | 0xEA020000                                           |
/// |  `0x4` |     4 | `h_refcount` | inodes that use the block                            |
/// |  `0x8` |     4 | `h_blocks`   | 1                                                    |
/// |  `0xC` |     4 | `h_hash`     | hash of the entries; 0 when not to be shared         |
/// | `0x10` |     4 | `h_checksum` | crc32c of block number and block                     |
/// | `0x14` |    12 | `h_reserved` | 0                                                    |
///
/// Source: Linux `Documentation/filesystems/ext4/attributes.rst`, `struct ext4_xattr_header`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockHeader {
    /// Inodes that use the block.
    pub references: u32,
    /// `h_hash`.
    pub hash: u32,
    /// `h_checksum`.
    pub checksum: u32,
}

/// The place of a value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// In the area.
    Here(&'a [u8]),
    /// In an inode of its own, not checked.
    InInode {
        /// The inode.
        ino: Ino,
        /// Bytes of the value, at most 16 MiB.
        len: u32,
    },
}

/// One attribute, borrowed from its area.
///
/// | offset | bytes | field          | meaning                                            |
/// |-------:|------:|----------------|----------------------------------------------------|
/// |  `0x0` |     1 | `e_name_len`   | bytes of the name                                  |
/// |  `0x1` |     1 | `e_name_index` | which prefix                                       |
/// |  `0x2` |     2 | `e_value_offs` | where the value is; 0 when in an inode             |
/// |  `0x4` |     4 | `e_value_inum` | the value's inode, or 0                            |
/// |  `0x8` |     4 | `e_value_size` | bytes of the value                                 |
/// |  `0xC` |     4 | `e_hash`       | hash of name and value; 0 in an inode, mostly      |
/// | `0x10` |       | `e_name`       | the name, filled up to 4 bytes                     |
///
/// Source: Linux `Documentation/filesystems/ext4/attributes.rst`, `struct ext4_xattr_entry`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct XattrEntry<'a> {
    /// Which prefix.
    pub index: NameIndex,
    /// The name behind the prefix.
    pub name: &'a [u8],
    /// The value.
    pub value: Value<'a>,
    /// `e_hash`.
    pub hash: u32,
    /// Where the entry starts, from the start of the area.
    pub offset: u32,
}

/// A list of attributes that obeys V1 to V3, borrowed from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct XattrArea<'a> {
    /// What offsets of values count from.
    base: &'a [u8],
    /// Where entries start in `base`.
    start: usize,
    /// Where the end mark is in `base`.
    end: usize,
}

/// Decodes the attribute space of an inode: the bytes behind the extra fields up to its end.
///
/// `None` when there are no attributes: the space is too short for any, or has no magic, as after
/// mke2fs without attributes.
pub fn decode_inode(space: &[u8]) -> Result<Option<XattrArea<'_>>, XattrFault> {
    if le::u32_at(space, 0) != Some(MAGIC) {
        return Ok(None);
    }
    let base = space.get(INODE_HEADER_BYTES..).unwrap_or(&[]);
    XattrArea::decode(base, 0).map(Some)
}

/// Decodes an attribute block. Does not look at the checksum: see [`verify_block`].
pub fn decode_block(block: &[u8]) -> Result<(BlockHeader, XattrArea<'_>), XattrFault> {
    let header = block.first_chunk::<BLOCK_HEADER_BYTES>();
    let wanted = BLOCK_HEADER_BYTES;
    let header = header.ok_or(XattrFault::Length { found: block.len(), wanted })?;
    let field = |at| le::u32_at(header, at).unwrap_or(0);
    if field(0) != MAGIC {
        return Err(XattrFault::Magic { found: field(0) });
    }
    if field(8) != 1 {
        return Err(XattrFault::Blocks { found: field(8) });
    }
    let area = XattrArea::decode(block, BLOCK_HEADER_BYTES)?;
    let header =
        BlockHeader { references: field(4), hash: field(12), checksum: field(CHECKSUM_AT) };
    Ok((header, area))
}

/// Checks the checksum of the attribute block `block` at `at`.
pub fn verify_block(fs_seed: u32, at: FsBlock, block: &[u8]) -> Result<(), ChecksumError> {
    let computed = checksum(fs_seed, at, block);
    // A block too short for a checksum cannot have a right one.
    let stored = le::u32_at(block, CHECKSUM_AT).unwrap_or(!computed);
    ChecksumError::check("attribute block", stored, computed)
}

impl<'a> XattrArea<'a> {
    fn decode(base: &'a [u8], start: usize) -> Result<XattrArea<'a>, XattrFault> {
        let area = le::narrow(base.len());
        // The names first: values must lie behind the end mark.
        let mut at = start;
        loop {
            let past = XattrFault::PastArea { offset: le::narrow(at), area };
            if le::u32_at(base, at).ok_or(past)? == 0 {
                break;
            }
            let name_len = usize::from(*base.get(at).ok_or(past)?);
            let name_at = at.saturating_add(ENTRY_BYTES);
            let name = base.get(name_at..name_at.saturating_add(name_len)).ok_or(past)?;
            if name.contains(&0) {
                return Err(XattrFault::Name { offset: le::narrow(at) });
            }
            at = at.saturating_add(entry_bytes(name_len));
        }
        let list = XattrArea { base, start, end: at };
        let first_value = at.saturating_add(4);
        let mut spans = Vec::new();
        for (offset, _) in list.positions() {
            let (at, len, inode) = list.value_fields(offset).unwrap_or_default();
            if len > VALUE_MAX {
                return Err(XattrFault::ValueLength { len: u64::from(len) });
            }
            if inode != 0 || len == 0 {
                continue;
            }
            let fault = XattrFault::Value { offset: le::narrow(offset), at, len };
            let from = le::index(at);
            let to = from.checked_add(value_bytes(le::index(len))).ok_or(fault)?;
            if from < first_value || to > base.len() {
                return Err(fault);
            }
            spans.push((from, to));
        }
        spans.sort_unstable();
        for (one, next) in spans.iter().zip(spans.iter().skip(1)) {
            if one.1 > next.0 {
                let (first, second) = (le::narrow(one.0), le::narrow(next.0));
                return Err(XattrFault::Overlap { first, second });
            }
        }
        Ok(list)
    }

    /// Returns where each entry starts, and the length of its name.
    fn positions(&self) -> impl Iterator<Item = (usize, usize)> + use<'a> {
        let XattrArea { base, start, end } = *self;
        let mut at = start;
        core::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let name_len = usize::from(*base.get(at)?);
            let here = at;
            at = at.saturating_add(entry_bytes(name_len));
            Some((here, name_len))
        })
    }

    /// Offset, length and inode of the value of the entry at `offset`.
    fn value_fields(&self, offset: usize) -> Option<(u32, u32, u32)> {
        let at = le::u16_at(self.base, offset.checked_add(2)?)?;
        let inode = le::u32_at(self.base, offset.checked_add(4)?)?;
        let len = le::u32_at(self.base, offset.checked_add(8)?)?;
        Some((u32::from(at), len, inode))
    }

    /// The attributes, in the order stored.
    pub fn entries(&self) -> impl Iterator<Item = XattrEntry<'a>> + use<'a> {
        let list = *self;
        // Every entry was checked by `decode`, so nothing is dropped here.
        self.positions().filter_map(move |(offset, name_len)| list.entry(offset, name_len))
    }

    fn entry(&self, offset: usize, name_len: usize) -> Option<XattrEntry<'a>> {
        let index = NameIndex(*self.base.get(offset.checked_add(1)?)?);
        let name_at = offset.checked_add(ENTRY_BYTES)?;
        let name = self.base.get(name_at..name_at.checked_add(name_len)?)?;
        let hash = le::u32_at(self.base, offset.checked_add(12)?)?;
        let value = match self.value_fields(offset)? {
            (_, len, ino) if ino != 0 => Value::InInode { ino: Ino(ino), len },
            (_, 0, _) => Value::Here(&[]),
            (at, len, _) => {
                let at = le::index(at);
                Value::Here(self.base.get(at..at.checked_add(le::index(len))?)?)
            }
        };
        Some(XattrEntry { index, name, value, hash, offset: le::narrow(offset) })
    }

    /// The attribute with this name.
    #[must_use]
    pub fn find(&self, index: NameIndex, name: &[u8]) -> Option<XattrEntry<'a>> {
        self.entries().find(|entry| entry.index == index && entry.name == name)
    }
}
