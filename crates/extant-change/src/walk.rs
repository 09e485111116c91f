//! Reads maps of files as far as they can be believed.

use std::collections::BTreeSet;

use extant_base::{BlockCount, FileBlock, FsBlock};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::features::Incompat;
use extant_format::indirect;
use extant_format::inode::InodeFlags;
use extant_format::record::{Record, u16_at, u32_at};
use extant_format::superblock::Superblock;

/// Deepest tree that is followed: one that e2fsck would rebuild may be deeper than the format allows.
const DEPTH_MAX: u16 = 12;

/// Where a file's blocks are: the valid part of its map.
#[derive(Clone, Debug, Default)]
pub struct FileMap {
    /// In order of file blocks, without overlaps.
    pub extents: Vec<Extent>,
    /// Blocks of the map itself, a parent before its children.
    pub nodes: Vec<u64>,
    /// Something was left out.
    pub is_damaged: bool,
    /// A block of the map itself could not be believed, so that what it mapped is lost.
    pub lost_nodes: u32,
    /// The tree has other levels than the format allows, and can be read all the same.
    pub has_odd_levels: bool,
}

/// A walk over the map of one file.
struct Walk<'a, R> {
    sb: &'a Superblock,
    /// Reads a block.
    read: R,
    map: FileMap,
    /// A node that comes again would be walked for ever.
    seen: BTreeSet<u64>,
    /// Which extents reach behind the last block: they stay only if their length turns out to be what is wrong.
    beyond: Vec<usize>,
}

/// Returns whether `bytes` begin as a node of an extent tree.
#[must_use]
pub fn is_extent_node(bytes: &[u8]) -> bool {
    u16_at(bytes, 0) == extent::MAGIC
}

/// Reads the map of an inode that has one; blocks that do not exist, nodes that are none and what overlaps is
/// left out. `read` reads a block of the file system. The work is bounded by the blocks of the file system.
///
/// # Errors
///
/// Those of `read`.
pub fn walk<E>(
    sb: &Superblock,
    record: &Record,
    read: impl FnMut(u64) -> Result<Vec<u8>, E>,
) -> Result<FileMap, E> {
    let mut walk =
        Walk { sb, read, map: FileMap::default(), seen: BTreeSet::new(), beyond: Vec::new() };
    let area = record.block_area();
    if record.has(InodeFlags::EXTENTS) {
        if is_extent_node(&area) {
            let depth = u16_at(&area, 6);
            walk.map.has_odd_levels = depth > extent::DEPTH_MAX;
            walk.extent_node(&area, depth.min(DEPTH_MAX))?;
        } else {
            walk.map.is_damaged = true;
        }
    } else {
        walk.pointers(area.get(..48).unwrap_or(&[]), 0);
        let mut start = u64::from(indirect::DIRECT);
        for depth in 1..=3u8 {
            let slot = 48 + 4 * (usize::from(depth) - 1);
            let block = u64::from(u32_at(&area, slot));
            if block != 0 {
                walk.pointer_block(block, depth, start)?;
            }
            start += indirect::span(depth, sb.block_size);
        }
    }
    let mut map = std::mem::take(&mut walk.map);
    if !walk.beyond.is_empty() {
        cut_too_long(&mut map.extents);
        for at in std::mem::take(&mut walk.beyond) {
            let Some(extent) = map.extents.get_mut(at) else { continue };
            if !walk.in_range(extent.device_start.0, u64::from(extent.len.0)) {
                extent.len.0 = 0;
            }
        }
        map.extents.retain(|extent| extent.len.0 != 0);
    }
    if record.is_dir() && !sb.features.has_incompat(Incompat::LARGEDIR) {
        let blocks = (2u64 << 30) >> sb.block_size.log2();
        let before = map.extents.len();
        map.extents.retain(|extent| end_of(extent) <= blocks);
        map.is_damaged |= map.extents.len() != before;
    }
    Ok(in_order(map))
}

/// Shortens extents whose length is what is wrong: those that reach over several of the following ones, or over
/// blocks that one of these has on the device. What is left ends before both.
///
/// Of two that overlap in the file only, nothing tells which of them is wrong.
fn cut_too_long(extents: &mut [Extent]) {
    // Where blocks of the file begin on the device.
    let mut places: Option<Vec<u64>> = None;
    for at in 0..extents.len() {
        let Some((one, behind)) = extents.get(at..).and_then(<[Extent]>::split_first) else {
            break;
        };
        let Some(next) = behind.first() else { break };
        if end_of(one) <= u64::from(next.file_start.0) || next.file_start.0 <= one.file_start.0 {
            continue;
        }
        let from = one.device_start.0;
        let to = from + u64::from(one.len.0);
        let place = places.get_or_insert_with(|| {
            let mut all: Vec<u64> = extents.iter().map(|extent| extent.device_start.0).collect();
            all.sort_unstable();
            all
        });
        let first = place.partition_point(|start| *start <= from);
        let on_device = place.get(first).copied().filter(|start| *start < to);
        let reaches_on = behind.get(1).is_some_and(|second| {
            second.file_start.0 > next.file_start.0 && u64::from(second.file_start.0) < end_of(one)
        });
        if !reaches_on && on_device.is_none() {
            continue;
        }
        let in_file = u64::from(next.file_start.0 - one.file_start.0);
        let len = on_device.map_or(in_file, |start| in_file.min(start - from));
        if let Some(one) = extents.get_mut(at) {
            one.len.0 = len as u32;
        }
    }
}

/// Sorts extents; of two that overlap, the one that was met first is kept.
fn in_order(mut map: FileMap) -> FileMap {
    let sorted = map.extents.windows(2).all(|pair| match pair {
        [a, b] => end_of(a) <= u64::from(b.file_start.0),
        _ => true,
    });
    if sorted {
        return map;
    }
    map.is_damaged = true;
    cut_too_long(&mut map.extents);
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

impl<E, R: FnMut(u64) -> Result<Vec<u8>, E>> Walk<'_, R> {
    /// Returns whether blocks belong to groups.
    fn in_range(&self, block: u64, len: u64) -> bool {
        block >= u64::from(self.sb.first_data_block)
            && block != 0
            && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count)
    }

    fn extent_node(&mut self, bytes: &[u8], depth: u16) -> Result<(), E> {
        let room = bytes.len().saturating_sub(12) / 12;
        let entries = usize::from(u16_at(bytes, 2)).min(room);
        if entries < usize::from(u16_at(bytes, 2)) {
            self.map.is_damaged = true;
        }
        for number in 1..=entries {
            let Some(raw) = bytes.get(number * 12..number * 12 + 12) else { break };
            if depth == 0 {
                self.extent_record(raw);
                continue;
            }
            let child = u64::from(u32_at(raw, 4)) | (u64::from(u16_at(raw, 8)) << 32);
            if !self.in_range(child, 1) || !self.seen.insert(child) {
                self.map.is_damaged = true;
                self.map.lost_nodes += 1;
                continue;
            }
            let node = (self.read)(child)?;
            let below = u16_at(&node, 6);
            if !is_extent_node(&node) || below >= depth {
                self.map.is_damaged = true;
                self.map.lost_nodes += 1;
                continue;
            }
            self.map.has_odd_levels |= below + 1 != depth;
            self.map.nodes.push(child);
            self.extent_node(&node, below)?;
        }
        Ok(())
    }

    fn extent_record(&mut self, raw: &[u8]) {
        let (start, len) = (u32_at(raw, 0), u32::from(u16_at(raw, 4)));
        let device = u64::from(u32_at(raw, 8)) | (u64::from(u16_at(raw, 6)) << 32);
        let (len, state) = match len {
            ..=0x8000 => (len, ExtentState::Written),
            _ => (len - 0x8000, ExtentState::Unwritten),
        };
        let mask = u64::from(self.sb.cluster_ratio().max(1)) - 1;
        let is_aligned = (device ^ u64::from(start)) & mask == 0;
        let fits = u64::from(start) + u64::from(len) < 1 << 32;
        if len == 0 || !fits || !is_aligned || !self.in_range(device, 1) {
            self.map.is_damaged = true;
            return;
        }
        if !self.in_range(device, u64::from(len)) {
            self.map.is_damaged = true;
            self.beyond.push(self.map.extents.len());
        }
        self.map.extents.push(Extent {
            file_start: FileBlock(start),
            device_start: FsBlock(device),
            len: BlockCount(len),
            state,
        });
    }

    fn pointer_block(&mut self, block: u64, depth: u8, start: u64) -> Result<(), E> {
        if !self.in_range(block, 1) || !self.seen.insert(block) {
            self.map.is_damaged = true;
            self.map.lost_nodes += 1;
            return Ok(());
        }
        self.map.nodes.push(block);
        let bytes = (self.read)(block)?;
        if depth == 1 {
            self.pointers(&bytes, start);
            return Ok(());
        }
        let span = indirect::span(depth - 1, self.sb.block_size);
        for (slot, child) in indirect::blocks(&bytes).enumerate() {
            if let Some(child) = child {
                let at = start.saturating_add(span.saturating_mul(slot as u64));
                self.pointer_block(child.0, depth - 1, at)?;
            }
        }
        Ok(())
    }

    fn pointers(&mut self, bytes: &[u8], start: u64) {
        for (slot, block) in indirect::blocks(bytes).enumerate() {
            let Some(block) = block else { continue };
            let at = start + slot as u64;
            let mask = u64::from(self.sb.cluster_ratio().max(1)) - 1;
            let is_aligned = (block.0 ^ at) & mask == 0;
            if !self.in_range(block.0, 1) || at >= u64::from(u32::MAX) || !is_aligned {
                self.map.is_damaged = true;
                continue;
            }
            if let Some(last) = self.map.extents.last_mut()
                && end_of(last) == at
                && last.device_start.0 + u64::from(last.len.0) == block.0
                && last.len.0 < extent::WRITTEN_LEN_MAX
            {
                last.len.0 += 1;
                continue;
            }
            self.map.extents.push(Extent {
                file_start: FileBlock(at as u32),
                device_start: block,
                len: BlockCount(1),
                state: ExtentState::Written,
            });
        }
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
