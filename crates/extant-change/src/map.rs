//! Maps of files: read whole, and built anew.

use std::collections::BTreeSet;

use extant_base::{BlockCount, FileBlock, FsBlock};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::features::RoCompat;
use extant_format::indirect;
use extant_format::inode::{FileKind, InodeFlags};

use crate::error::{ChangeError, Result};
use crate::image::Image;
use extant_format::record::{self, Record, u16_at, u32_at};

/// Where a file's blocks are.
#[derive(Clone, Debug, Default)]
pub struct FileMap {
    /// In order of file blocks.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself.
    pub nodes: Vec<u64>,
    /// The same in order: a node that comes again would be walked for ever.
    seen: BTreeSet<u64>,
}

fn broken(record: &Record) -> ChangeError {
    ChangeError::damaged(format!("the map of inode {} cannot be read", record.ino))
}

impl Image {
    /// Returns whether the inode has a map.
    pub fn has_map(&self, record: &Record) -> bool {
        if record.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        match record.kind() {
            Some(FileKind::Symlink) => {
                let is_short = record.size() < 60 && !record.has(InodeFlags::EXTENTS);
                let acl = record.file_acl(self.is_wide()).0 != 0;
                let own = if acl { self.sectors_of(1) } else { 0 };
                !(is_short && u64::from(record.u32(record::BLOCKS_LO)) <= own)
            }
            Some(FileKind::Directory | FileKind::Regular) => true,
            // The reserved inodes have no mode when they are empty.
            None => record.ino.0 < self.sb.first_inode.0,
            Some(_) => false,
        }
    }

    /// Units of 512 bytes in clusters.
    fn sectors_of(&self, clusters: u64) -> u64 {
        (clusters << self.sb.cluster_bits()) * (self.block_bytes() as u64 / 512)
    }

    /// Reads the map of an inode of a file system that is in order.
    pub fn read_map(&self, record: &Record) -> Result<FileMap> {
        let mut map = FileMap::default();
        if !self.has_map(record) {
            return Ok(map);
        }
        let area = record.block_area();
        if record.has(InodeFlags::EXTENTS) {
            let depth = u16_at(&area, 6);
            if u16_at(&area, 0) != extent::MAGIC || depth > extent::DEPTH_MAX {
                return Err(broken(record));
            }
            self.extent_node(record, &mut map, &area, depth)?;
        } else {
            self.pointers(&mut map, area.get(..48).unwrap_or(&[]), 0);
            let mut start = u64::from(indirect::DIRECT);
            for depth in 1..=3u8 {
                let block = u64::from(u32_at(&area, 48 + 4 * (usize::from(depth) - 1)));
                if block != 0 {
                    self.pointer_block(record, &mut map, block, depth, start)?;
                }
                start += indirect::span(depth, self.sb.block_size);
            }
        }
        let is_right = map.extents.iter().all(|extent| {
            self.in_range(extent.device_start.0, u64::from(extent.len.0)) && extent.len.0 > 0
        });
        let in_order = map
            .extents
            .windows(2)
            .all(|pair| matches!(pair, [a, b] if end_of(a) <= u64::from(b.file_start.0)));
        if !is_right || !in_order {
            return Err(broken(record));
        }
        Ok(map)
    }

    fn extent_node(&self, record: &Record, map: &mut FileMap, bytes: &[u8], depth: u16) -> Result {
        let entries = usize::from(u16_at(bytes, 2));
        for number in 1..=entries {
            let raw = bytes.get(number * 12..number * 12 + 12).ok_or_else(|| broken(record))?;
            if depth == 0 {
                let device = u64::from(u32_at(raw, 8)) | (u64::from(u16_at(raw, 6)) << 32);
                let (len, state) = match u32::from(u16_at(raw, 4)) {
                    len @ ..=0x8000 => (len, ExtentState::Written),
                    len => (len - 0x8000, ExtentState::Unwritten),
                };
                map.extents.push(Extent {
                    file_start: FileBlock(u32_at(raw, 0)),
                    device_start: FsBlock(device),
                    len: BlockCount(len),
                    state,
                });
                continue;
            }
            let child = u64::from(u32_at(raw, 4)) | (u64::from(u16_at(raw, 8)) << 32);
            if !self.in_range(child, 1) || !map.seen.insert(child) {
                return Err(broken(record));
            }
            let node = self.read_block(child)?;
            if u16_at(&node, 0) != extent::MAGIC || u16_at(&node, 6) != depth - 1 {
                return Err(broken(record));
            }
            map.nodes.push(child);
            self.extent_node(record, map, &node, depth - 1)?;
        }
        Ok(())
    }

    fn pointer_block(
        &self,
        record: &Record,
        map: &mut FileMap,
        block: u64,
        depth: u8,
        start: u64,
    ) -> Result {
        if !self.in_range(block, 1) || !map.seen.insert(block) {
            return Err(broken(record));
        }
        map.nodes.push(block);
        let bytes = self.read_block(block)?;
        if depth == 1 {
            self.pointers(map, &bytes, start);
            return Ok(());
        }
        let span = indirect::span(depth - 1, self.sb.block_size);
        for (slot, child) in indirect::blocks(&bytes).enumerate() {
            if let Some(child) = child {
                let at = start.saturating_add(span.saturating_mul(slot as u64));
                self.pointer_block(record, map, child.0, depth - 1, at)?;
            }
        }
        Ok(())
    }

    fn pointers(&self, map: &mut FileMap, bytes: &[u8], start: u64) {
        for (slot, block) in indirect::blocks(bytes).enumerate() {
            let Some(block) = block else { continue };
            let at = start + slot as u64;
            if let Some(last) = map.extents.last_mut()
                && end_of(last) == at
                && last.device_start.0 + u64::from(last.len.0) == block.0
                && last.len.0 < extent::WRITTEN_LEN_MAX
            {
                last.len.0 += 1;
                continue;
            }
            map.extents.push(Extent {
                file_start: FileBlock(u32::try_from(at).unwrap_or(u32::MAX)),
                device_start: block,
                len: BlockCount(1),
                state: ExtentState::Written,
            });
        }
    }

    /// Builds the map of an inode anew, its nodes on unused blocks that `take` gives, which are written at
    /// once. The record is not stored.
    pub fn build_map(
        &self,
        record: &mut Record,
        extents: &[Extent],
        mut take: impl FnMut() -> Result<u64>,
    ) -> Result<Vec<u64>> {
        let size = self.sb.block_size;
        let extents = joined(extents);
        let (root, blocks) = if record.has(InodeFlags::EXTENTS) {
            let seed = self.seed_of(record);
            let built = extent::build::<Fault>(&extents, size, seed, || Ok(FsBlock(take()?)))?;
            (built.root, built.blocks)
        } else {
            let built = indirect::build::<Fault>(&extents, size, || Ok(FsBlock(take()?)))?;
            (built.root, built.blocks)
        };
        let nodes = blocks.iter().map(|(block, _)| block.0).collect();
        for (block, bytes) in &blocks {
            self.write_fresh(block.0, bytes)?;
        }
        record.set_block_area(&root);
        Ok(nodes)
    }

    /// Adds clusters to `i_blocks`, or takes them away.
    pub fn add_clusters(&self, record: &mut Record, more: i64) {
        let has_huge = self.sb.features.has_ro_compat(RoCompat::HUGE_FILE);
        let per_block = self.block_bytes() as u64 / 512;
        let mut stored = u64::from(record.u32(record::BLOCKS_LO));
        if has_huge {
            stored |= u64::from(record.u16(record::BLOCKS_HIGH)) << 32;
        }
        let is_huge = has_huge && record.has(InodeFlags::HUGE_FILE);
        let sectors = if is_huge { stored.saturating_mul(per_block) } else { stored };
        let change = self.sectors_of(more.unsigned_abs());
        let sectors = match more {
            ..0 => sectors.saturating_sub(change),
            0.. => sectors.saturating_add(change),
        };
        self.set_sectors(record, sectors);
    }

    /// Sets `i_blocks` in clusters.
    pub fn set_clusters(&self, record: &mut Record, clusters: u64) {
        self.set_sectors(record, self.sectors_of(clusters));
    }

    fn set_sectors(&self, record: &mut Record, sectors: u64) {
        let has_huge = self.sb.features.has_ro_compat(RoCompat::HUGE_FILE);
        let is_huge = has_huge && sectors >= 1 << 48;
        let per_block = self.block_bytes() as u64 / 512;
        let stored = if is_huge { sectors / per_block } else { sectors };
        record.set_flag(InodeFlags::HUGE_FILE, is_huge);
        record.put32(record::BLOCKS_LO, stored as u32);
        if has_huge {
            record.put16(record::BLOCKS_HIGH, (stored >> 32) as u16);
        }
    }
}

/// Why a map cannot be built.
struct Fault(ChangeError);

impl From<ChangeError> for Fault {
    fn from(error: ChangeError) -> Fault {
        Fault(error)
    }
}

impl From<Fault> for ChangeError {
    fn from(fault: Fault) -> ChangeError {
        fault.0
    }
}

impl From<extent::ExtentFault> for Fault {
    fn from(fault: extent::ExtentFault) -> Fault {
        Fault(ChangeError::damaged(fault.to_string()))
    }
}

impl From<indirect::IndirectFault> for Fault {
    fn from(fault: indirect::IndirectFault) -> Fault {
        Fault(ChangeError::damaged(fault.to_string()))
    }
}

/// One past the last file block.
pub fn end_of(extent: &Extent) -> u64 {
    u64::from(extent.file_start.0) + u64::from(extent.len.0)
}

/// Neighbours that can be one record are.
pub fn joined(extents: &[Extent]) -> Vec<Extent> {
    let mut list: Vec<Extent> = Vec::with_capacity(extents.len());
    for extent in extents {
        if let Some(last) = list.last_mut()
            && last.state == extent.state
            && end_of(last) == u64::from(extent.file_start.0)
            && last.device_start.0 + u64::from(last.len.0) == extent.device_start.0
            && last.len.0 + extent.len.0 <= extent::UNWRITTEN_LEN_MAX
        {
            last.len.0 += extent.len.0;
            continue;
        }
        list.push(*extent);
    }
    list
}
