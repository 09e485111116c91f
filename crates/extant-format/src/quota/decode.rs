//! From the bytes of a quota file to its entries.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;
use core::mem::size_of;

use zerocopy::FromBytes;

use super::{
    DEPTH, QUOTA_BLOCK_BYTES, QuotaEntry, QuotaError, QuotaFile, QuotaKind, RECORDS, ROOT,
    RawHeader, RawLeafHeader, RawQuota,
};
use crate::le::{index, u32_at};

impl RawQuota {
    /// Returns whether the record is free.
    fn is_free(&self) -> bool {
        *self == RawQuota::default()
    }

    pub(super) fn decode(&self) -> QuotaEntry {
        // The one record that would look free: see the module.
        let marked = RawQuota { dqb_itime: 1.into(), ..RawQuota::default() };
        let inode_grace_end = if *self == marked { 0 } else { self.dqb_itime.get() };
        QuotaEntry {
            id: self.dqb_id.get(),
            space_bytes: self.dqb_curspace.get(),
            inodes: self.dqb_curinodes.get(),
            space_hard_limit: self.dqb_bhardlimit.get(),
            space_soft_limit: self.dqb_bsoftlimit.get(),
            inode_hard_limit: self.dqb_ihardlimit.get(),
            inode_soft_limit: self.dqb_isoftlimit.get(),
            space_grace_end: self.dqb_btime.get(),
            inode_grace_end,
        }
    }
}

struct Walk<'a> {
    bytes: &'a [u8],
    blocks: u32,
    /// Tree blocks seen, one bit each.
    seen: Vec<u64>,
    /// Leaves, and which of their records an id leads to, one bit each.
    leaves: BTreeMap<u32, u16>,
    entries: Vec<QuotaEntry>,
}

impl<'a> Walk<'a> {
    fn block(&self, block: u32) -> Option<&'a [u8]> {
        let start = index(block).checked_mul(QUOTA_BLOCK_BYTES)?;
        self.bytes.get(start..start.checked_add(QUOTA_BLOCK_BYTES)?)
    }

    /// Marks a tree block; an error the second time.
    fn enter(&mut self, block: u32) -> Result<(), QuotaError> {
        let Some(word) = self.seen.get_mut(index(block >> 6)) else {
            return Err(QuotaError::OutOfRange { block, to: block, blocks: self.blocks });
        };
        let bit = 1u64 << (block & 63);
        if *word & bit != 0 {
            return Err(QuotaError::Loop { block });
        }
        *word |= bit;
        Ok(())
    }

    /// Visits the tree below `block`; `prefix` are the bytes of the id so far. At most [`DEPTH`]
    /// calls deep.
    fn tree(&mut self, block: u32, depth: usize, prefix: u32) -> Result<(), QuotaError> {
        self.enter(block)?;
        let out_of_range = |to| QuotaError::OutOfRange { block, to, blocks: self.blocks };
        let bytes = self.block(block).ok_or(out_of_range(block))?;
        for (slot, low) in bytes.chunks_exact(4).zip(0u32..) {
            let to = u32_at(slot, 0).unwrap_or(0);
            if to == 0 {
                continue;
            }
            if to <= ROOT || to >= self.blocks {
                return Err(QuotaError::OutOfRange { block, to, blocks: self.blocks });
            }
            let id = (prefix << 8) | low;
            if depth.saturating_add(1) < DEPTH {
                self.tree(to, depth.saturating_add(1), id)?;
            } else {
                let (number, entry) = self.find(to, id)?;
                *self.leaves.entry(to).or_default() |= 1 << number;
                self.entries.push(entry);
            }
        }
        Ok(())
    }

    /// The records of a leaf that are not free, with their numbers.
    fn records(&self, leaf: u32) -> impl Iterator<Item = (usize, RawQuota)> + use<'a> {
        let bytes = self.block(leaf).and_then(|bytes| bytes.get(size_of::<RawLeafHeader>()..));
        let records = bytes.unwrap_or(&[]).chunks_exact(size_of::<RawQuota>()).take(RECORDS);
        records
            .enumerate()
            .filter_map(|(number, raw)| Some((number, RawQuota::read_from_bytes(raw).ok()?)))
            .filter(|(_, record)| !record.is_free())
    }

    /// The record of `id` in a leaf, and its number.
    fn find(&self, leaf: u32, id: u32) -> Result<(usize, QuotaEntry), QuotaError> {
        self.records(leaf)
            .find(|(_, record)| record.dqb_id.get() == id)
            .map(|(number, record)| (number, record.decode()))
            .ok_or(QuotaError::Missing { block: leaf, id })
    }
}

/// Follows the tree of a whole quota file.
fn walk(bytes: &[u8]) -> Result<(QuotaKind, RawHeader, Walk<'_>), QuotaError> {
    let found = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
    let header = RawHeader::read_from_prefix(bytes);
    let (header, _) = header.map_err(|_| QuotaError::Short { wanted: 2048, found })?;
    let magic = header.dqh_magic.get();
    let kind = QuotaKind::from_magic(magic).ok_or(QuotaError::Magic { found: magic })?;
    if header.dqh_version.get() != 1 {
        return Err(QuotaError::Version { found: header.dqh_version.get() });
    }
    let blocks = header.dqi_blocks.get();
    let wanted = u64::from(blocks.max(2)).saturating_mul(1024);
    if found < wanted || blocks < 2 {
        return Err(QuotaError::Short { wanted, found });
    }
    // One bit per block, and the blocks are there: an eighth of a thousandth of the input.
    let seen = alloc::vec![0; index(blocks >> 6).saturating_add(1)];
    let mut walk = Walk { bytes, blocks, seen, leaves: BTreeMap::new(), entries: Vec::new() };
    walk.tree(ROOT, 0, 0)?;
    Ok((kind, header, walk))
}

impl QuotaFile {
    /// Decodes a whole quota file.
    ///
    /// Free lists are not looked at: they only matter to whoever adds records in place, and to
    /// [`check_free_lists`](QuotaFile::check_free_lists).
    ///
    /// # Errors
    ///
    /// [`QuotaError`].
    pub fn decode(bytes: &[u8]) -> Result<QuotaFile, QuotaError> {
        let (kind, header, walk) = walk(bytes)?;
        Ok(QuotaFile {
            kind,
            space_grace: header.dqi_bgrace.get(),
            inode_grace: header.dqi_igrace.get(),
            flags: header.dqi_flags.get(),
            entries: walk.entries,
        })
    }

    /// Checks that an id leads to each record that is not free. The kernel looks at no others; e2fsprogs
    /// takes all that are in a leaf.
    ///
    /// # Errors
    ///
    /// [`QuotaError::Stray`], and those of [`decode`](QuotaFile::decode).
    pub fn check_records(bytes: &[u8]) -> Result<(), QuotaError> {
        let (_, _, walk) = walk(bytes)?;
        for (block, led_to) in &walk.leaves {
            let mut records = walk.records(*block);
            if let Some((_, record)) = records.find(|(number, _)| led_to >> number & 1 == 0) {
                return Err(QuotaError::Stray { block: *block, id: record.dqb_id.get() });
            }
        }
        Ok(())
    }

    /// Checks that the lists of free blocks and of leaves with room begin within the file.
    ///
    /// # Errors
    ///
    /// [`QuotaError::Short`] and [`QuotaError::FreeList`].
    pub fn check_free_lists(bytes: &[u8]) -> Result<(), QuotaError> {
        let found = u64::try_from(bytes.len()).unwrap_or(u64::MAX);
        let header = RawHeader::read_from_prefix(bytes);
        let (header, _) = header.map_err(|_| QuotaError::Short { wanted: 2048, found })?;
        let blocks = header.dqi_blocks.get();
        for (what, head) in [("blocks", header.dqi_free_blk), ("leaves", header.dqi_free_entry)] {
            let head = head.get();
            if head != 0 && (head <= ROOT || head >= blocks) {
                return Err(QuotaError::FreeList { what, head, blocks });
            }
        }
        Ok(())
    }
}
