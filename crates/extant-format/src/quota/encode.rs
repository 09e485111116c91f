//! From entries to the bytes of a quota file.

use alloc::vec::Vec;
use core::mem::size_of;

use zerocopy::IntoBytes;
use zerocopy::little_endian::{U16, U32, U64};

use super::{
    DEFAULT_GRACE, DEPTH, QUOTA_BLOCK_BYTES, QuotaEntry, QuotaError, QuotaFile, QuotaHeader,
    QuotaKind, RECORDS, ROOT, RawLeafHeader, RawQuota,
};
use crate::le::{index, put};

impl QuotaEntry {
    pub(super) fn to_raw(self) -> RawQuota {
        let mut raw = RawQuota {
            dqb_id: U32::new(self.id),
            dqb_pad: U32::ZERO,
            dqb_ihardlimit: U64::new(self.inode_hard_limit),
            dqb_isoftlimit: U64::new(self.inode_soft_limit),
            dqb_curinodes: U64::new(self.inodes),
            dqb_bhardlimit: U64::new(self.space_hard_limit),
            dqb_bsoftlimit: U64::new(self.space_soft_limit),
            dqb_curspace: U64::new(self.space_bytes),
            dqb_btime: U64::new(self.space_grace_end),
            dqb_itime: U64::new(self.inode_grace_end),
        };
        if raw == RawQuota::default() {
            raw.dqb_itime = U64::new(1);
        }
        raw
    }
}

/// A file that grows block by block.
struct Writer {
    bytes: Vec<u8>,
    blocks: u32,
    /// The tree blocks on the way to the last id, root first; 0: none yet.
    path: [u32; DEPTH],
    last: Option<u32>,
    /// The leaf that takes the next record, and how many it has; 0: none.
    leaf: u32,
    in_leaf: usize,
}

impl Writer {
    fn new() -> Writer {
        Writer {
            bytes: alloc::vec![0; 2 * QUOTA_BLOCK_BYTES],
            blocks: 2,
            path: [ROOT, 0, 0, 0],
            last: None,
            leaf: 0,
            in_leaf: 0,
        }
    }

    fn append(&mut self) -> Result<u32, QuotaError> {
        let block = self.blocks;
        self.blocks = block.checked_add(1).ok_or(QuotaError::TooMany)?;
        let len = self.bytes.len().checked_add(QUOTA_BLOCK_BYTES).ok_or(QuotaError::TooMany)?;
        self.bytes.resize(len, 0);
        Ok(block)
    }

    fn put(&mut self, block: u32, at: usize, value: &[u8]) -> Result<(), QuotaError> {
        let start = index(block).checked_mul(QUOTA_BLOCK_BYTES).ok_or(QuotaError::TooMany)?;
        let at = start.checked_add(at).ok_or(QuotaError::TooMany)?;
        put(&mut self.bytes, at, value).ok_or(QuotaError::TooMany)
    }

    /// Adds one record. Blocks are taken in the order in which e2fsprogs takes them: the tree from
    /// the root down, then the leaf.
    fn add(&mut self, entry: &QuotaEntry) -> Result<(), QuotaError> {
        let digits = entry.id.to_be_bytes();
        if let Some(last) = self.last {
            if entry.id <= last {
                return Err(QuotaError::Order { id: entry.id, after: last });
            }
            // Blocks below the first differing byte belong to the id before.
            let common =
                digits.iter().zip(last.to_be_bytes()).take_while(|(a, b)| **a == *b).count();
            for block in self.path.iter_mut().skip(common.saturating_add(1)) {
                *block = 0;
            }
        }
        let mut missing: Vec<usize> = Vec::new();
        for depth in 1..DEPTH {
            if self.path.get(depth).is_some_and(|block| *block == 0) {
                missing.push(depth);
            }
        }
        for depth in missing {
            let block = self.append()?;
            if let Some(slot) = self.path.get_mut(depth) {
                *slot = block;
            }
            self.link(depth.saturating_sub(1), &digits, block)?;
        }
        if self.leaf == 0 {
            self.leaf = self.append()?;
            self.in_leaf = 0;
        }
        let leaf = self.leaf;
        let at = self
            .in_leaf
            .saturating_mul(size_of::<RawQuota>())
            .saturating_add(size_of::<RawLeafHeader>());
        self.put(leaf, at, entry.to_raw().as_bytes())?;
        self.in_leaf = self.in_leaf.saturating_add(1);
        let count = u16::try_from(self.in_leaf).map_err(|_| QuotaError::TooMany)?;
        let header = RawLeafHeader { dqdh_entries: U16::new(count), ..RawLeafHeader::default() };
        self.put(leaf, 0, header.as_bytes())?;
        self.link(DEPTH.saturating_sub(1), &digits, leaf)?;
        if self.in_leaf == RECORDS {
            self.leaf = 0;
        }
        self.last = Some(entry.id);
        Ok(())
    }

    /// Points the tree block at `depth` on the current path to `to`.
    fn link(&mut self, depth: usize, digits: &[u8; 4], to: u32) -> Result<(), QuotaError> {
        let block = self.path.get(depth).copied().unwrap_or(ROOT);
        let digit = usize::from(digits.get(depth).copied().unwrap_or(0));
        self.put(block, digit.saturating_mul(4), &to.to_le_bytes())
    }
}

impl QuotaFile {
    /// A file without entries, as mke2fs starts one: a week of grace for both.
    pub fn empty(kind: QuotaKind) -> QuotaFile {
        QuotaFile {
            kind,
            space_grace: DEFAULT_GRACE,
            inode_grace: DEFAULT_GRACE,
            flags: 0,
            entries: Vec::new(),
        }
    }

    /// The whole file, a multiple of [`QUOTA_BLOCK_BYTES`] long, blocks in the order of e2fsprogs.
    ///
    /// # Errors
    ///
    /// [`QuotaError::Order`] when ids do not ascend strictly, [`QuotaError::TooMany`] past 2^32
    /// blocks.
    pub fn encode(&self) -> Result<Vec<u8>, QuotaError> {
        let mut writer = Writer::new();
        for entry in &self.entries {
            writer.add(entry)?;
        }
        let header = QuotaHeader {
            kind: self.kind,
            space_grace: self.space_grace,
            inode_grace: self.inode_grace,
            flags: self.flags,
            blocks: writer.blocks,
            free_block: 0,
            free_leaf: writer.leaf,
        };
        writer.put(0, 0, &header.encode())?;
        Ok(writer.bytes)
    }
}
