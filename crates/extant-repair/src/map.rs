//! Maps of files, read as far as they can be believed and built anew.

use std::collections::BTreeSet;

use extant_base::{BlockCount, FileBlock, FsBlock, Ino};
use extant_format::extent::{self, Extent, ExtentFault, ExtentState};
use extant_format::features::{Incompat, RoCompat};
use extant_format::indirect::{self, IndirectFault};
use extant_format::inode::{FileKind, InodeFlags};

use crate::error::{Fixed, Trouble};
use crate::state::State;
use extant_format::record::{self, Record, u16_at, u32_at};

/// Deepest tree that is followed: one that e2fsck would rebuild may be deeper than the format allows.
const DEPTH_MAX: u16 = 12;

/// The valid part of a map.
#[derive(Clone, Debug, Default)]
pub(crate) struct FileMap {
    /// In order of file blocks, without overlaps.
    pub(crate) extents: Vec<Extent>,
    /// Blocks of the map itself, a parent before its children.
    pub(crate) nodes: Vec<u64>,
    /// Something was left out.
    pub(crate) is_damaged: bool,
    /// A block of the map itself could not be believed, so that what it mapped is lost.
    pub(crate) lost_nodes: u32,
}

impl From<ExtentFault> for Trouble {
    fn from(fault: ExtentFault) -> Trouble {
        Trouble::cannot(fault.to_string())
    }
}

impl From<IndirectFault> for Trouble {
    fn from(fault: IndirectFault) -> Trouble {
        Trouble::cannot(fault.to_string())
    }
}

/// State of a walk.
struct Walk {
    map: FileMap,
    seen: BTreeSet<u64>,
}

/// Returns whether `bytes` begin as a node of an extent tree.
pub(crate) fn is_extent_node(bytes: &[u8]) -> bool {
    u16_at(bytes, 0) == extent::MAGIC
}

impl State {
    /// Returns whether the inode has a map at all.
    pub(crate) fn has_map(&self, record: &Record) -> bool {
        if record.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        match record.kind() {
            Some(FileKind::Symlink) => !self.is_fast_symlink(record),
            Some(FileKind::Directory | FileKind::Regular) => true,
            None => self.is_special(record.ino),
            Some(_) => false,
        }
    }

    /// Returns whether a symbolic link has its target in its inode.
    pub(crate) fn is_fast_symlink(&self, record: &Record) -> bool {
        if record.has(InodeFlags::EXTENTS) && record.size() >= 60 {
            return false;
        }
        let block = (self.block_bytes() / 512) as u64;
        let ratio = u64::from(self.sb.cluster_ratio());
        let acl = if record.file_acl(self.is_wide()).0 == 0 { 0 } else { block * ratio };
        let sectors = u64::from(record.u32(record::BLOCKS_LO));
        record.size() < 60 && (sectors == acl || sectors == 0)
    }

    /// Reads the map of an inode; blocks that do not exist, nodes that are none and what overlaps is
    /// left out.
    pub(crate) fn read_map(&self, record: &Record) -> Fixed<FileMap> {
        let mut walk = Walk { map: FileMap::default(), seen: BTreeSet::new() };
        if !self.has_map(record) {
            return Ok(walk.map);
        }
        let area = record.block_area();
        if record.has(InodeFlags::EXTENTS) {
            if is_extent_node(&area) {
                let depth = u16_at(&area, 6);
                self.extent_node(&mut walk, &area, depth.min(DEPTH_MAX))?;
            } else {
                walk.map.is_damaged = true;
            }
        } else {
            self.pointers(&mut walk, area.get(..48).unwrap_or(&[]), 0);
            let mut start = u64::from(indirect::DIRECT);
            for depth in 1..=3u8 {
                let slot = 48 + 4 * (usize::from(depth) - 1);
                let block = u64::from(u32_at(&area, slot));
                if block != 0 {
                    self.pointer_block(&mut walk, block, depth, start)?;
                }
                start += indirect::span(depth, self.sb.block_size);
            }
        }
        if record.is_dir() && !self.sb.features.has_incompat(Incompat::LARGEDIR) {
            let blocks = (2u64 << 30) >> self.sb.block_size.log2();
            let before = walk.map.extents.len();
            walk.map.extents.retain(|extent| end_of(extent) <= blocks);
            walk.map.is_damaged |= walk.map.extents.len() != before;
        }
        Ok(self.in_order(walk.map))
    }

    /// Sorts extents; of two that overlap, the one that was met first is kept.
    fn in_order(&self, mut map: FileMap) -> FileMap {
        let sorted = map.extents.windows(2).all(|pair| match pair {
            [a, b] => end_of(a) <= u64::from(b.file_start.0),
            _ => true,
        });
        if sorted {
            return map;
        }
        map.is_damaged = true;
        map.extents.sort_by_key(|extent| extent.file_start.0);
        let mut kept: Vec<Extent> = Vec::with_capacity(map.extents.len());
        for mut extent in map.extents.drain(..) {
            let from = kept.last().map_or(0, end_of);
            let cut = from.saturating_sub(u64::from(extent.file_start.0));
            if cut >= u64::from(extent.len.0) {
                continue;
            }
            extent.file_start.0 += cut as u32;
            extent.device_start.0 += cut;
            extent.len.0 -= cut as u32;
            kept.push(extent);
        }
        map.extents = kept;
        map
    }

    fn extent_node(&self, walk: &mut Walk, bytes: &[u8], depth: u16) -> Fixed {
        let room = bytes.len().saturating_sub(12) / 12;
        let entries = usize::from(u16_at(bytes, 2)).min(room);
        if entries < usize::from(u16_at(bytes, 2)) {
            walk.map.is_damaged = true;
        }
        for number in 1..=entries {
            let Some(raw) = bytes.get(number * 12..number * 12 + 12) else { break };
            if depth == 0 {
                self.extent_record(walk, raw);
                continue;
            }
            let child = u64::from(u32_at(raw, 4)) | (u64::from(u16_at(raw, 8)) << 32);
            if !self.in_range(child, 1) || !walk.seen.insert(child) {
                walk.map.is_damaged = true;
                walk.map.lost_nodes += 1;
                continue;
            }
            let node = self.read_block(child)?;
            let below = u16_at(&node, 6);
            if !is_extent_node(&node) || below >= depth {
                walk.map.is_damaged = true;
                walk.map.lost_nodes += 1;
                continue;
            }
            walk.map.nodes.push(child);
            self.extent_node(walk, &node, below)?;
        }
        Ok(())
    }

    fn extent_record(&self, walk: &mut Walk, raw: &[u8]) {
        let (start, len) = (u32_at(raw, 0), u32::from(u16_at(raw, 4)));
        let device = u64::from(u32_at(raw, 8)) | (u64::from(u16_at(raw, 6)) << 32);
        let (len, state) = match len {
            ..=0x8000 => (len, ExtentState::Written),
            _ => (len - 0x8000, ExtentState::Unwritten),
        };
        let mask = u64::from(self.sb.cluster_ratio().max(1)) - 1;
        let is_aligned = (device ^ u64::from(start)) & mask == 0;
        let fits = u64::from(start) + u64::from(len) < 1 << 32;
        if len == 0 || !fits || !is_aligned || !self.in_range(device, u64::from(len)) {
            walk.map.is_damaged = true;
            return;
        }
        walk.map.extents.push(Extent {
            file_start: FileBlock(start),
            device_start: FsBlock(device),
            len: BlockCount(len),
            state,
        });
    }

    fn pointer_block(&self, walk: &mut Walk, block: u64, depth: u8, start: u64) -> Fixed {
        if !self.in_range(block, 1) || !walk.seen.insert(block) {
            walk.map.is_damaged = true;
            walk.map.lost_nodes += 1;
            return Ok(());
        }
        walk.map.nodes.push(block);
        let bytes = self.read_block(block)?;
        if depth == 1 {
            self.pointers(walk, &bytes, start);
            return Ok(());
        }
        let span = indirect::span(depth - 1, self.sb.block_size);
        for (slot, child) in indirect::blocks(&bytes).enumerate() {
            if let Some(child) = child {
                let at = start.saturating_add(span.saturating_mul(slot as u64));
                self.pointer_block(walk, child.0, depth - 1, at)?;
            }
        }
        Ok(())
    }

    fn pointers(&self, walk: &mut Walk, bytes: &[u8], start: u64) {
        for (slot, block) in indirect::blocks(bytes).enumerate() {
            let Some(block) = block else { continue };
            let at = start + slot as u64;
            let mask = u64::from(self.sb.cluster_ratio().max(1)) - 1;
            let is_aligned = (block.0 ^ at) & mask == 0;
            if !self.in_range(block.0, 1) || at >= u64::from(u32::MAX) || !is_aligned {
                walk.map.is_damaged = true;
                continue;
            }
            if let Some(last) = walk.map.extents.last_mut()
                && end_of(last) == at
                && last.device_start.0 + u64::from(last.len.0) == block.0
                && last.len.0 < extent::WRITTEN_LEN_MAX
            {
                last.len.0 += 1;
                continue;
            }
            walk.map.extents.push(Extent {
                file_start: FileBlock(at as u32),
                device_start: block,
                len: BlockCount(1),
                state: ExtentState::Written,
            });
        }
    }

    /// Builds the map of an inode anew, its own blocks on free ones: the inode's record, stored later, is
    /// what switches from the old map to the new.
    pub(crate) fn write_map(&mut self, record: &mut Record, extents: &[Extent]) -> Fixed {
        let size = self.sb.block_size;
        let seed = self.csum_seed_of(record);
        let extents = joined(extents);
        let (root, blocks) = if record.has(InodeFlags::EXTENTS) {
            let built = extent::build(&extents, size, seed, || self.take_block().map(FsBlock))?;
            (built.root, built.blocks)
        } else {
            let written: Vec<Extent> = extents
                .iter()
                .copied()
                .filter(|extent| extent.state == ExtentState::Written)
                .collect();
            let built = indirect::build(&written, size, || self.take_block().map(FsBlock))?;
            (built.root, built.blocks)
        };
        let tree_blocks = blocks.len() as u64;
        for (block, bytes) in blocks {
            self.write_block(block.0, &bytes)?;
        }
        record.set_block_area(&root);
        let bits = self.sb.cluster_bits();
        let mut clusters = tree_blocks;
        let mut last = None;
        for extent in &extents {
            let (from, to) = (u64::from(extent.file_start.0) >> bits, (end_of(extent) - 1) >> bits);
            clusters += to - from + 1 - u64::from(last == Some(from));
            last = Some(to);
        }
        if record.file_acl(self.is_wide()).0 != 0 {
            clusters += 1;
        }
        let sectors = (clusters << bits) * (self.block_bytes() as u64 / 512);
        self.set_sectors(record, sectors);
        Ok(())
    }

    /// Returns the inodes whose extent tree has a third more nodes than it needs, or a level too
    /// many, with the actual and the needed number of nodes.
    pub(crate) fn loose_trees(&self) -> Fixed<Vec<(Ino, u64, u64)>> {
        let mut list = Vec::new();
        for view in self.exam.inodes() {
            if !view.flags.contains(InodeFlags::EXTENTS) || view.sectors == 0 {
                continue;
            }
            let record = self.load(view.ino)?;
            let area = record.block_area();
            let depth = u16_at(&area, 6);
            if depth == 0 || !is_extent_node(&area) {
                continue;
            }
            let map = self.read_map(&record)?;
            let count = joined(&map.extents).len() as u64;
            let needed = extent::tree_blocks(count, self.sb.block_size).unwrap_or(u64::MAX);
            let nodes = map.nodes.len() as u64;
            let is_deep = depth > self.depth_of(count);
            let is_loose = nodes.saturating_mul(3) >= needed.saturating_mul(4);
            if !map.is_damaged && nodes > needed && (is_deep || is_loose) {
                list.push((view.ino, nodes, needed));
            }
        }
        Ok(list)
    }

    /// Levels of a tree with full nodes.
    fn depth_of(&self, extents: u64) -> u16 {
        let per_block = u64::from(extent::max_in_block(self.sb.block_size)).max(2);
        let (mut depth, mut records) = (0, extents);
        while records > u64::from(extent::ROOT_RECORDS) && depth < extent::DEPTH_MAX {
            records = records.div_ceil(per_block);
            depth += 1;
        }
        depth
    }

    /// Writes the tree of an inode anew, with full nodes.
    pub(crate) fn join_tree(&mut self, ino: Ino) -> Fixed {
        let mut record = self.load(ino)?;
        let map = self.read_map(&record)?;
        self.write_map(&mut record, &map.extents)?;
        self.store(&record)
    }

    /// Sets `i_blocks`, in units of 512 bytes.
    pub(crate) fn set_sectors(&self, record: &mut Record, sectors: u64) {
        let has_huge = self.sb.features.has_ro_compat(RoCompat::HUGE_FILE);
        let per_block = self.block_bytes() as u64 / 512;
        let is_huge = has_huge && sectors >= 1 << 48;
        record.set_flag(InodeFlags::HUGE_FILE, is_huge);
        let stored = if is_huge { sectors / per_block } else { sectors };
        record.put32(record::BLOCKS_LO, stored as u32);
        if has_huge {
            record.put16(record::BLOCKS_HIGH, (stored >> 32) as u16);
        }
    }
}

/// One past the last file block.
pub(crate) fn end_of(extent: &Extent) -> u64 {
    u64::from(extent.file_start.0) + u64::from(extent.len.0)
}

/// Neighbours that can be one record are.
fn joined(extents: &[Extent]) -> Vec<Extent> {
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
