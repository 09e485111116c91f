//! Maps of files: extent trees and indirect blocks, claimed as they are walked.

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::extent::{self, ExtentState, Node, ROOT_RECORDS};
use extant_format::features::Incompat;
use extant_format::indirect;
use extant_format::inode::{FileKind, Inode, InodeFlags};

use crate::scan::Scan;
use crate::tables::Run;
use crate::{CheckError, Problem};

/// Result of a walk over one map.
#[derive(Debug)]
pub(crate) struct Map {
    pub(crate) ino: Ino,
    /// crc32c seed of its tree blocks.
    pub(crate) seed: u32,
    /// Whether the runs are needed later.
    pub(crate) keep: bool,
    /// Blocks of the map itself.
    pub(crate) tree_blocks: u64,
    /// Clusters of data.
    pub(crate) clusters: u64,
    /// One past the last mapped block.
    pub(crate) end: u64,
    /// One past the last block with data.
    pub(crate) written_end: u64,
    /// Some block is unwritten.
    pub(crate) has_unwritten: bool,
    /// Part of the map could not be followed.
    pub(crate) is_damaged: bool,
    /// Logical and physical cluster of the last block.
    last: Option<(u64, u64)>,
}

impl Map {
    pub(crate) fn new(ino: Ino, seed: u32, keep: bool) -> Map {
        Map {
            ino,
            seed,
            keep,
            tree_blocks: 0,
            clusters: 0,
            end: 0,
            written_end: 0,
            has_unwritten: false,
            is_damaged: false,
            last: None,
        }
    }
}

impl Scan<'_, '_> {
    /// Walks the map in `i_block`.
    pub(crate) fn walk_extents(
        &mut self,
        map: &mut Map,
        i_block: &[u8; 60],
    ) -> Result<(), CheckError> {
        match Node::decode_root(i_block) {
            Ok(node) => {
                self.extent_room(map, node.header().max, ROOT_RECORDS);
                self.walk_node(map, &node)
            }
            Err(source) => {
                map.is_damaged = true;
                self.problem(Problem::Extent { ino: map.ino, source });
                Ok(())
            }
        }
    }

    /// Returns whether an inode has an extent tree in the place of its map, and not the flag that says so. Read as
    /// pointers, the tree would be a map of other files' blocks; and pointers that read as a tree would lead to the
    /// blocks behind the superblock, where no file is.
    pub(crate) fn is_lost_tree(&self, inode: &Inode) -> bool {
        let may_have_one = match inode.kind() {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => !inode.is_fast_symlink(),
            _ => false,
        };
        let has_flag = inode.flags.intersects(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA);
        if !may_have_one || has_flag || !self.sb.features.has_incompat(Incompat::EXTENTS) {
            return false;
        }
        let Ok(root) = Node::decode_root(&inode.block) else { return false };
        let header = root.header();
        header.max == ROOT_RECORDS
            && (header.entries > 0 || inode.sectors == 0)
            && root.extents().all(|one| self.in_range(one.device_start.0, u64::from(one.len.0)))
            && root.children().all(|(index, _)| self.in_range(index.child.0, 1))
    }

    fn extent_room(&mut self, map: &Map, found: u16, wanted: u16) {
        // Old writers left out the last record or two.
        if found.saturating_add(2) < wanted {
            self.problem(Problem::ExtentRoom { ino: map.ino, found, wanted });
        }
    }

    fn walk_node(&mut self, map: &mut Map, node: &Node<'_>) -> Result<(), CheckError> {
        for extent in node.extents() {
            let written = extent.state == ExtentState::Written;
            let (start, len) = (extent.device_start.0, extent.len.0);
            self.map_run(map, u64::from(extent.file_start.0), start, len, written);
        }
        if node.depth() == 0 {
            return Ok(());
        }
        let mut bytes = Vec::new();
        for (index, expect) in node.children() {
            // A block that is in use already may be this very tree: not followed.
            if !self.claim(map.ino, index.child.0, 1) {
                map.is_damaged = true;
                continue;
            }
            map.tree_blocks += 1;
            if let Err(error) = self.read_block(index.child.0, &mut bytes) {
                map.is_damaged = true;
                let ino = map.ino;
                self.note_unreadable(error, || format!("the extents of inode {ino}"))?;
                continue;
            }
            match Node::decode_block(&bytes, expect) {
                Ok(child) => {
                    let max = extent::max_in_block(self.sb.block_size);
                    self.extent_room(map, child.header().max, max);
                    if child.header().entries == 0 {
                        self.problem(Problem::ExtentEmpty { ino: map.ino });
                    }
                    if self.dir_layout.checksum {
                        let result = extent::verify(map.seed, &bytes);
                        self.block_checksum(map.ino, index.child.0, result);
                    }
                    self.walk_node(map, &child)?;
                }
                Err(source) => {
                    map.is_damaged = true;
                    self.problem(Problem::Extent { ino: map.ino, source });
                }
            }
        }
        Ok(())
    }

    /// Claims one run of data.
    fn map_run(&mut self, map: &mut Map, file_start: u64, start: u64, len: u32, written: bool) {
        if len == 0 {
            return;
        }
        let end = file_start + u64::from(len);
        map.end = map.end.max(end);
        if written {
            map.written_end = map.written_end.max(end);
        } else {
            map.has_unwritten = true;
        }
        if !self.in_range(start, u64::from(len)) {
            let len = u64::from(len);
            self.problem(Problem::BlockRange { ino: map.ino, block: FsBlock(start), len });
            map.is_damaged = true;
            return;
        }
        let kept = map.keep.then(|| {
            let file_start = u32::try_from(file_start).unwrap_or(u32::MAX);
            Run { file_start, start, len }
        });
        let bits = self.sb.cluster_bits();
        let mask = (1u64 << bits) - 1;
        let (mut block, mut left, mut logical) = (start, u64::from(len), file_start);
        if bits != 0 {
            if (start ^ file_start) & mask != 0 {
                let file_block = FileBlock(u32::try_from(file_start).unwrap_or(u32::MAX));
                let block = FsBlock(start);
                self.problem(Problem::Cluster { ino: map.ino, file_block, block });
                map.is_damaged = true;
            }
            if map.last.is_some_and(|(of_file, of_device)| {
                of_file == file_start >> bits && of_device != start >> bits
            }) {
                let file_block = FileBlock(u32::try_from(file_start).unwrap_or(u32::MAX));
                let block = FsBlock(start);
                self.problem(Problem::ClusterSplit { ino: map.ino, file_block, block });
                map.is_damaged = true;
            }
            if map.last == Some((file_start >> bits, start >> bits)) {
                // The rest of a cluster that the run before began.
                let rest = (mask + 1 - (start & mask)).min(left);
                block += rest;
                logical += rest;
                left -= rest;
            }
        }
        map.last = Some(((end - 1) >> bits, (start + u64::from(len) - 1) >> bits));
        let mut is_alone = true;
        if left != 0 {
            map.clusters += ((logical + left - 1) >> bits) - (logical >> bits) + 1;
            is_alone = self.claim(map.ino, block, left);
        }
        map.is_damaged |= !is_alone;
        if let Some(run) = kept
            && (is_alone || self.may_be_read_twice(&run))
        {
            self.part.runs.push(run);
        }
    }

    /// Returns whether blocks that something else has, too, are read once more as those of this
    /// file. All files together may have as many of them as the file system has blocks: a few
    /// inodes can say of the same blocks that they are theirs a thousand times.
    fn may_be_read_twice(&mut self, run: &Run) -> bool {
        let twice = self.part.twice.saturating_add(u64::from(run.len));
        if twice > self.sb.blocks_count {
            return false;
        }
        self.part.twice = twice;
        true
    }

    /// Walks the block map in `i_block`.
    pub(crate) fn walk_indirect(
        &mut self,
        map: &mut Map,
        i_block: &[u8; 60],
    ) -> Result<(), CheckError> {
        let size = self.sb.block_size;
        self.pointers(map, i_block.get(..48).unwrap_or(&[]), 0);
        let mut file_start = u64::from(indirect::DIRECT);
        for depth in 1..=3u8 {
            let slot = indirect::DIRECT + u32::from(depth) - 1;
            if let indirect::Slot::Block(block) = indirect::block_at(i_block, slot) {
                self.walk_pointers(map, block.0, depth, file_start)?;
            }
            file_start += indirect::span(depth, size);
        }
        Ok(())
    }

    fn walk_pointers(
        &mut self,
        map: &mut Map,
        block: u64,
        depth: u8,
        file_start: u64,
    ) -> Result<(), CheckError> {
        if !self.claim(map.ino, block, 1) {
            map.is_damaged = true;
            return Ok(());
        }
        map.tree_blocks += 1;
        let size = self.sb.block_size;
        let mut bytes = Vec::new();
        if let Err(error) = self.read_block(block, &mut bytes) {
            map.is_damaged = true;
            let ino = map.ino;
            return self.note_unreadable(error, || format!("the block map of inode {ino}"));
        }
        if depth == 1 {
            self.pointers(map, &bytes, file_start);
            return Ok(());
        }
        let span = indirect::span(depth - 1, size);
        for (slot, child) in indirect::blocks(&bytes).enumerate() {
            if let Some(child) = child {
                let start = file_start.saturating_add(span.saturating_mul(slot as u64));
                self.walk_pointers(map, child.0, depth - 1, start)?;
            }
        }
        Ok(())
    }

    fn pointers(&mut self, map: &mut Map, bytes: &[u8], file_start: u64) {
        let mut slot = 0;
        while let Some((start, len)) = indirect::run_at(bytes, slot) {
            if let Some(start) = start {
                let at = file_start + u64::from(slot);
                if at + u64::from(len) > 1 << 32 {
                    self.problem(Problem::FileBlock { ino: map.ino, block: at });
                    map.is_damaged = true;
                    return;
                }
                self.map_run(map, at, start.0, len, true);
            }
            slot += len.max(1);
        }
    }
}
