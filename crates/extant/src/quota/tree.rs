//! The tree of one quota file, in place: finding the record of an id, and adding one.
//!
//! A quota file has blocks of 1 KiB whatever the block size of the file system: a "quota block" is
//! one of those, a "block" one of the file system. Records are never removed: an id without usage
//! keeps its record, for its limits.

use std::sync::Arc;

use extant_base::{BlockSize, FsBlock, Ino};
use extant_format::quota::{
    LEAF_RECORDS, LEVELS, QUOTA_BLOCK_BYTES, QuotaEntry, QuotaHeader, QuotaKind, QuotaLeaf,
    RECORD_BYTES, ROOT_BLOCK, record_offset, tree_slot,
};

use super::{Grow, StoredFile, Usage};
use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};
use crate::node::Node;
use crate::slot::BlockKind;
use crate::volume::Volume;

/// Contiguous blocks of the file.
#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) file_start: u64,
    pub(crate) device_start: FsBlock,
    pub(crate) len: u64,
}

pub(super) struct Tree {
    ino: Ino,
    node: Arc<Node>,
    block_size: BlockSize,
    header: QuotaHeader,
    /// The file's blocks, in order and without gaps.
    extents: Vec<Extent>,
}

/// The end of a search for an id.
enum Found {
    Record(Usage),
    /// The tree block of this level has no entry for the id.
    Nothing {
        level: usize,
        at: u32,
    },
}

impl Tree {
    pub(super) fn open(
        volume: &Volume,
        stored: StoredFile,
        kind: QuotaKind,
    ) -> Result<(Tree, QuotaHeader)> {
        let StoredFile { node, size, extents } = stored;
        let ino = node.ino();
        let fail = |fault| FsError::corrupt("quota file", ino, None, fault);
        let block_size = volume.block_size();
        let Some(first) = extents.first() else {
            return Err(fail(Fault::Rule("it is empty")));
        };
        let bytes = volume.read_block(first.device_start)?;
        let header = QuotaHeader::decode(bytes.bytes())
            .map_err(|error| fail(Fault::Decode(Box::new(error))))?;
        if header.kind != kind {
            return Err(fail(Fault::Rule("it counts another kind than the superblock says")));
        }
        let needed = u64::from(header.blocks) * QUOTA_BLOCK_BYTES as u64;
        if needed > size {
            let rule = "it is shorter than its header says";
            return Err(fail(Fault::Field { rule, value: needed, limit: size }));
        }
        Ok((Tree { ino, node, block_size, header, extents }, header))
    }

    fn corrupt(&self, quota_block: u32, rule: &'static str) -> FsError {
        let fault = Fault::Field {
            rule,
            value: u64::from(quota_block),
            limit: u64::from(self.header.blocks),
        };
        FsError::corrupt("quota file", self.ino, None, fault)
    }

    /// Returns the block of a quota block, and the offset in it.
    fn place(&self, quota_block: u32) -> Result<(FsBlock, usize)> {
        let byte = u64::from(quota_block) * QUOTA_BLOCK_BYTES as u64;
        let index = byte >> self.block_size.log2();
        let at = self.extents.partition_point(|extent| extent.file_start <= index);
        let extent = at.checked_sub(1).and_then(|at| self.extents.get(at));
        let block = extent.and_then(|extent| {
            let within = index - extent.file_start;
            (within < extent.len).then(|| FsBlock(extent.device_start.0.saturating_add(within)))
        });
        let block = block.ok_or_else(|| self.corrupt(quota_block, "block outside the file"))?;
        // Below the block size, so it fits.
        Ok((block, (byte & u64::from(self.block_size.bytes() - 1)) as usize))
    }

    fn read<R>(
        &self,
        volume: &Volume,
        quota_block: u32,
        look: impl FnOnce(&[u8]) -> R,
    ) -> Result<R> {
        let (block, offset) = self.place(quota_block)?;
        let bytes = volume.read_block(block)?;
        let part = bytes.bytes().get(offset..offset.saturating_add(QUOTA_BLOCK_BYTES));
        Ok(look(part.unwrap_or(&[])))
    }

    fn write<R>(
        &self,
        txn: &mut Editor<'_>,
        quota_block: u32,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let (block, offset) = self.place(quota_block)?;
        txn.edit_block(block, BlockKind::Plain, |bytes| {
            let part = bytes.get_mut(offset..offset.saturating_add(QUOTA_BLOCK_BYTES));
            change(part.unwrap_or(&mut []))
        })
    }

    /// Returns the record of `id`, if it has one.
    pub(super) fn find(&self, volume: &Volume, id: u32) -> Result<Option<Usage>> {
        match self.search(volume, id)? {
            Found::Record(usage) => Ok(Some(usage)),
            Found::Nothing { .. } => Ok(None),
        }
    }

    fn search(&self, volume: &Volume, id: u32) -> Result<Found> {
        let mut at = ROOT_BLOCK;
        for level in 0..LEVELS {
            let next = self.read(volume, at, |bytes| number_at(bytes, tree_slot(id, level)))?;
            if next == 0 {
                return Ok(Found::Nothing { level, at });
            }
            if next <= ROOT_BLOCK || next >= self.header.blocks {
                return Err(self.corrupt(next, "the tree points outside the file"));
            }
            at = next;
        }
        let found = self.read(volume, at, |bytes| QuotaLeaf::find(bytes, id))?;
        let (index, entry) =
            found.ok_or_else(|| self.corrupt(at, "the leaf has no record of its id"))?;
        self.usage(at, index, entry).map(Found::Record)
    }

    fn usage(&self, leaf: u32, index: usize, entry: QuotaEntry) -> Result<Usage> {
        let (block, offset) = self.place(leaf)?;
        let offset = offset.saturating_add(record_offset(index));
        Ok(Usage { entry, block, offset, dirty: 0 })
    }

    /// Adds an empty record for `id`, which has none.
    ///
    /// # Errors
    ///
    /// Full disks and limits of the map, damage found before anything was changed. After the first
    /// change an error aborts the journal.
    pub(super) fn add<'v>(&mut self, txn: &mut impl Grow<'v>, id: u32) -> Result<Usage> {
        let volume = txn.volume();
        let (level, parent) = match self.search(volume, id)? {
            Found::Record(usage) => return Ok(usage),
            Found::Nothing { level, at } => (level, at),
        };
        let leaf = self.leaf_with_room(volume)?;
        // Tree blocks of the levels below, and a leaf.
        let missing = (LEVELS - 1).saturating_sub(level) + usize::from(leaf.is_none());
        let free = self.free_blocks(volume, missing)?;
        let from_end = u32::try_from(missing - free.len()).unwrap_or(u32::MAX);
        self.make_room(txn, from_end)?;
        let added = self.add_in_room(txn, volume, id, level, parent, &free);
        added.map_err(|error| txn.fail(error))
    }

    /// Returns the first leaf with room, checked.
    fn leaf_with_room(&self, volume: &Volume) -> Result<Option<u32>> {
        let at = self.header.free_leaf;
        if at == 0 {
            return Ok(None);
        }
        let (leaf, index) = self
            .read(volume, at, |bytes| (QuotaLeaf::decode(bytes), QuotaLeaf::free_record(bytes)))?;
        let sound = leaf.is_some_and(|leaf| {
            usize::from(leaf.entries) < LEAF_RECORDS && leaf.next_free < self.header.blocks
        });
        if !sound || index.is_none() {
            return Err(self.corrupt(at, "a leaf on the list of those with room has none"));
        }
        Ok(Some(at))
    }

    /// Returns up to `wanted` quota blocks of the list of free ones.
    fn free_blocks(&self, volume: &Volume, wanted: usize) -> Result<Vec<u32>> {
        let mut free = Vec::new();
        let mut next = self.header.free_block;
        while next != 0 && free.len() < wanted {
            if next <= ROOT_BLOCK || next >= self.header.blocks || free.contains(&next) {
                return Err(self.corrupt(next, "the list of free blocks leads astray"));
            }
            free.push(next);
            next = self.read(volume, next, |bytes| number_at(bytes, 0))?;
        }
        Ok(free)
    }

    /// Adds `more` quota blocks at the end of the file; they are not in use yet.
    fn make_room<'v>(&mut self, txn: &mut impl Grow<'v>, more: u32) -> Result<()> {
        let full = || FsError::NoSpace { what: "quota blocks", wanted: u64::from(more), free: 0 };
        let blocks = self.header.blocks.checked_add(more).ok_or_else(full)?;
        let bytes = u64::from(blocks) * QUOTA_BLOCK_BYTES as u64;
        let wanted = self.block_size.blocks_for(bytes);
        // At most `more` rounds.
        loop {
            let have = self.extents.last().map_or(0, |last| last.file_start + last.len);
            if have >= wanted {
                break;
            }
            let (file_block, block) = txn.append_block(&self.node)?;
            if u64::from(file_block.0) != have {
                let rule = "it grows at another place than its end";
                let error = FsError::corrupt("quota file", self.ino, None, Fault::Rule(rule));
                return Err(txn.fail(error));
            }
            txn.create_block(block, BlockKind::Plain, |_| ()).map_err(|error| txn.fail(error))?;
            txn.volume().gain_quota_block(block, self.ino);
            match self.extents.last_mut() {
                Some(last) if last.device_start.0 + last.len == block.0 => last.len += 1,
                _ => self.extents.push(Extent { file_start: have, device_start: block, len: 1 }),
            }
        }
        Ok(())
    }

    fn add_in_room(
        &mut self,
        txn: &mut Editor<'_>,
        volume: &Volume,
        id: u32,
        level: usize,
        parent: u32,
        free: &[u32],
    ) -> Result<Usage> {
        let mut free = free.iter().copied();
        let leaf_at = match self.header.free_leaf {
            0 => {
                let at = self.take_block(txn, volume, &mut free)?;
                self.header.free_leaf = at;
                at
            }
            at => at,
        };
        // The tree is built from the leaf up, so that a tree block never points to nothing.
        let mut below = leaf_at;
        for level in (level + 1..LEVELS).rev() {
            let at = self.take_block(txn, volume, &mut free)?;
            self.write(txn, at, |bytes| put_number(bytes, tree_slot(id, level), below))?;
            below = at;
        }
        self.write(txn, parent, |bytes| put_number(bytes, tree_slot(id, level), below))?;
        let entry = QuotaEntry { id, ..QuotaEntry::default() };
        let (leaf, index) = self.write(txn, leaf_at, |bytes| {
            let mut leaf = QuotaLeaf::decode(bytes).unwrap_or_default();
            let index = QuotaLeaf::free_record(bytes).unwrap_or(0);
            let start = record_offset(index);
            if let Some(place) = bytes.get_mut(start..start + RECORD_BYTES) {
                place.copy_from_slice(&entry.encode());
            }
            leaf.entries = leaf.entries.saturating_add(1);
            let before = leaf;
            if usize::from(leaf.entries) >= LEAF_RECORDS {
                (leaf.next_free, leaf.prev_free) = (0, 0);
            }
            let _ = leaf.encode(bytes);
            (before, index)
        })?;
        if usize::from(leaf.entries) >= LEAF_RECORDS {
            self.header.free_leaf = leaf.next_free;
            if leaf.next_free > ROOT_BLOCK {
                self.write(txn, leaf.next_free, |bytes| {
                    let mut next = QuotaLeaf::decode(bytes).unwrap_or_default();
                    next.prev_free = 0;
                    let _ = next.encode(bytes);
                })?;
            }
        }
        let header = self.header.encode();
        self.write(txn, 0, |bytes| {
            if let Some(place) = bytes.get_mut(..header.len()) {
                place.copy_from_slice(&header);
            }
        })?;
        let size = u64::from(self.header.blocks) * QUOTA_BLOCK_BYTES as u64;
        if self.node.with(|data| data.record.size < size) {
            txn.update(&self.node, |data| data.record.size = size)?;
        }
        self.usage(leaf_at, index, entry)
    }

    /// Returns a zeroed quota block: a free one, or the one after the last.
    fn take_block(
        &mut self,
        txn: &mut Editor<'_>,
        volume: &Volume,
        free: &mut impl Iterator<Item = u32>,
    ) -> Result<u32> {
        let at = match free.next() {
            Some(at) => {
                self.header.free_block = self.read(volume, at, |bytes| number_at(bytes, 0))?;
                at
            }
            None => {
                let at = self.header.blocks;
                self.header.blocks = at.saturating_add(1);
                at
            }
        };
        self.write(txn, at, |bytes| bytes.fill(0))?;
        Ok(at)
    }
}

/// Returns the little-endian number at byte `at`; 0 past the end.
fn number_at(bytes: &[u8], at: usize) -> u32 {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<4>());
    u32::from_le_bytes(field.copied().unwrap_or_default())
}

fn put_number(bytes: &mut [u8], at: usize, number: u32) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<4>()) {
        *place = number.to_le_bytes();
    }
}
