//! The parts of a quota file one by one, for changing it in place.
//!
//! A program that adds an id walks [`LEVELS`] tree blocks from [`ROOT_BLOCK`], each by
//! [`tree_slot`], and takes missing blocks from the header's list of free ones or from the end. The
//! record goes into the first leaf of the header's list of leaves with room.

use core::mem::size_of;

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, IntoBytes};

use super::{
    DEPTH, QuotaEntry, QuotaError, QuotaKind, RECORDS, ROOT, RawHeader, RawLeafHeader, RawQuota,
};
use crate::le::put;

/// Tree blocks on the way to a leaf.
pub const LEVELS: usize = DEPTH;
/// Block of the file that is the root of the tree.
pub const ROOT_BLOCK: u32 = ROOT;
/// Records of a leaf.
pub const LEAF_RECORDS: usize = RECORDS;
/// Bytes of a record.
pub const RECORD_BYTES: usize = size_of::<RawQuota>();
/// Bytes of the header of the file, at byte 0.
pub const HEADER_BYTES: usize = size_of::<RawHeader>();

/// Byte in a tree block of `level` (0 is the root) of the block number for `id`. The number is
/// little-endian, 0 for none. Levels past the last count as the last.
pub fn tree_slot(id: u32, level: usize) -> usize {
    let [a, b, c, d] = id.to_be_bytes();
    let digit = match level {
        0 => a,
        1 => b,
        2 => c,
        _ => d,
    };
    usize::from(digit).saturating_mul(4)
}

/// Byte in a leaf of record `index`, `0..LEAF_RECORDS`.
pub fn record_offset(index: usize) -> usize {
    index.saturating_mul(RECORD_BYTES).saturating_add(size_of::<RawLeafHeader>())
}

/// Header of a quota file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuotaHeader {
    /// Whose usage the file counts.
    pub kind: QuotaKind,
    /// Seconds an id may stay above its soft space limit.
    pub space_grace: u32,
    /// Seconds an id may stay above its soft inode limit.
    pub inode_grace: u32,
    /// `dqi_flags`.
    pub flags: u32,
    /// Blocks of the file that are in use or on the list of free ones, at least 2.
    pub blocks: u32,
    /// First free block, which starts with the number of the next; 0: none.
    pub free_block: u32,
    /// First leaf with a free record; 0: none.
    pub free_leaf: u32,
}

impl QuotaHeader {
    /// Decodes the first bytes of a quota file.
    ///
    /// # Errors
    ///
    /// [`QuotaError::Short`], [`QuotaError::Magic`], [`QuotaError::Version`], and
    /// [`QuotaError::OutOfRange`] when a list starts outside the file.
    pub fn decode(bytes: &[u8]) -> Result<QuotaHeader, QuotaError> {
        let found = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let wanted = u64::try_from(HEADER_BYTES).unwrap_or(u64::MAX);
        let header = RawHeader::read_from_prefix(bytes);
        let (header, _) = header.map_err(|_| QuotaError::Short { wanted, found })?;
        let magic = header.dqh_magic.get();
        let kind = QuotaKind::from_magic(magic).ok_or(QuotaError::Magic { found: magic })?;
        if header.dqh_version.get() != 1 {
            return Err(QuotaError::Version { found: header.dqh_version.get() });
        }
        let blocks = header.dqi_blocks.get();
        for to in [header.dqi_free_blk.get(), header.dqi_free_entry.get()] {
            if to >= blocks.max(2) || to == ROOT {
                return Err(QuotaError::OutOfRange { block: 0, to, blocks });
            }
        }
        Ok(QuotaHeader {
            kind,
            space_grace: header.dqi_bgrace.get(),
            inode_grace: header.dqi_igrace.get(),
            flags: header.dqi_flags.get(),
            blocks: blocks.max(2),
            free_block: header.dqi_free_blk.get(),
            free_leaf: header.dqi_free_entry.get(),
        })
    }

    /// The bytes to store at byte 0 of the file.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let header = RawHeader {
            dqh_magic: U32::new(self.kind.magic()),
            dqh_version: U32::new(1),
            dqi_bgrace: U32::new(self.space_grace),
            dqi_igrace: U32::new(self.inode_grace),
            dqi_flags: U32::new(self.flags),
            dqi_blocks: U32::new(self.blocks),
            dqi_free_blk: U32::new(self.free_block),
            dqi_free_entry: U32::new(self.free_leaf),
        };
        let mut bytes = [0; HEADER_BYTES];
        bytes.copy_from_slice(header.as_bytes());
        bytes
    }
}

/// Start of a leaf.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaLeaf {
    /// The next leaf with a free record; 0: none, or this leaf is full.
    pub next_free: u32,
    /// The one before.
    pub prev_free: u32,
    /// Records in use, as stored; may be more than a leaf holds in a damaged file.
    pub entries: u16,
}

impl QuotaLeaf {
    /// From the bytes of a leaf; `None` when there are fewer than 16.
    pub fn decode(bytes: &[u8]) -> Option<QuotaLeaf> {
        let (raw, _) = RawLeafHeader::read_from_prefix(bytes).ok()?;
        Some(QuotaLeaf {
            next_free: raw.dqdh_next_free.get(),
            prev_free: raw.dqdh_prev_free.get(),
            entries: raw.dqdh_entries.get(),
        })
    }

    /// Writes the header over the start of a leaf; false when it does not fit.
    #[must_use]
    pub fn encode(&self, bytes: &mut [u8]) -> bool {
        let raw = RawLeafHeader {
            dqdh_next_free: U32::new(self.next_free),
            dqdh_prev_free: U32::new(self.prev_free),
            dqdh_entries: U16::new(self.entries),
            ..RawLeafHeader::default()
        };
        put(bytes, 0, raw.as_bytes()).is_some()
    }

    /// The index of the first free record of the leaf `bytes`.
    pub fn free_record(bytes: &[u8]) -> Option<usize> {
        let records = bytes.get(size_of::<RawLeafHeader>()..)?;
        let mut records = records.chunks_exact(RECORD_BYTES).take(RECORDS);
        records.position(|record| record.iter().all(|byte| *byte == 0))
    }

    /// The index of the record of `id` in the leaf `bytes`, and the record.
    pub fn find(bytes: &[u8], id: u32) -> Option<(usize, QuotaEntry)> {
        let records = bytes.get(size_of::<RawLeafHeader>()..)?;
        let mut records = records.chunks_exact(RECORD_BYTES).take(RECORDS).map(QuotaEntry::decode);
        let index = records.position(|entry| entry.is_some_and(|entry| entry.id == id))?;
        let start = record_offset(index);
        let entry = QuotaEntry::decode(bytes.get(start..)?)?;
        Some((index, entry))
    }
}

impl QuotaEntry {
    /// From the bytes of a record; `None` when it is free or cut short.
    pub fn decode(record: &[u8]) -> Option<QuotaEntry> {
        let (raw, _) = RawQuota::read_from_prefix(record).ok()?;
        (raw != RawQuota::default()).then(|| raw.decode())
    }

    /// The bytes of the record.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut bytes = [0; RECORD_BYTES];
        bytes.copy_from_slice(self.to_raw().as_bytes());
        bytes
    }
}
