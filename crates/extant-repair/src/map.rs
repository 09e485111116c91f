//! Maps of files, read as far as they can be believed and built anew.

use extant_base::{FsBlock, Ino};
use extant_change::{FileMap, end_of, is_extent_node, joined, set_sectors, walk};
use extant_format::extent::{self, Extent, ExtentFault, ExtentState};
use extant_format::indirect::{self, IndirectFault};
use extant_format::inode::{FileKind, InodeFlags};

use crate::error::{Fixed, Trouble};
use crate::state::State;
use extant_format::record::{self, Record, u16_at};

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
        if !self.has_map(record) {
            return Ok(FileMap::default());
        }
        walk(&self.sb, record, |block| self.read_block(block))
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
        set_sectors(&self.sb, record, sectors);
    }
}
