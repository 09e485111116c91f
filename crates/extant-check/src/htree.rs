//! The index of a directory: its nodes, and what each of its leaves may hold.

use std::collections::HashMap;

use extant_base::{FileBlock, Ino};
use extant_format::dir::DirLayout;
use extant_format::features::{Incompat, SuperFlags};
use extant_format::hash::HashVersion;
use extant_format::htree::{self, Index, IndexLayout, NodePlace, Root};

use crate::dir_scan::DirScan;
use crate::tables::Run;
use crate::{CheckError, Problem};

/// References of the index to one block of the directory.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Slot {
    /// How often a record points to it, up to 255.
    pub(crate) times: u8,
    /// Root or inner node.
    pub(crate) is_node: bool,
    /// Smallest and largest hash of a leaf's names.
    pub(crate) from: u32,
    pub(crate) to: u32,
}

/// An index that could be read.
pub(crate) struct HashIndex {
    pub(crate) hash: HashVersion,
    slots: HashMap<u32, Slot>,
}

impl HashIndex {
    /// What the index says of a block of the directory.
    pub(crate) fn slot(&self, block: u32) -> Slot {
        self.slots.get(&block).copied().unwrap_or_default()
    }
}

struct Walk<'a> {
    dir: Ino,
    runs: &'a [Run],
    layout: IndexLayout,
    /// Blocks of the directory.
    blocks: u32,
    /// Of blocks to which a record points: a directory may say that it has 2^32 of them.
    slots: HashMap<u32, Slot>,
}

/// Returns where block `block` of a file is.
pub(crate) fn find(runs: &[Run], block: u32) -> Option<u64> {
    let after = runs.partition_point(|run| run.file_start <= block);
    let run = runs.get(after.checked_sub(1)?)?;
    let within = block - run.file_start;
    (within < run.len).then(|| run.start + u64::from(within))
}

impl DirScan<'_, '_> {
    /// Reads all nodes of an index. `None`, and a problem, when its root is none.
    pub(crate) fn read_index(
        &mut self,
        dir: Ino,
        runs: &[Run],
        blocks: u32,
        dir_layout: DirLayout,
    ) -> Result<Option<HashIndex>, CheckError> {
        let Some(at) = find(runs, 0) else { return Ok(None) };
        let layout = IndexLayout {
            dir: dir_layout,
            large_dir: self.sb.features.has_incompat(Incompat::LARGEDIR),
            unsigned_hash: self.sb.flags.contains(SuperFlags::UNSIGNED_HASH),
        };
        let mut bytes = Vec::new();
        self.read_block(at, &mut bytes)?;
        let root = match Root::decode(&bytes, &layout, blocks) {
            Ok(root) => root,
            Err(source) => {
                self.problem(Problem::Htree { dir, block: FileBlock(0), source });
                return Ok(None);
            }
        };
        let slots = HashMap::from([(0, Slot { times: 1, is_node: true, ..Slot::default() })]);
        let mut walk = Walk { dir, runs, layout, blocks, slots };
        self.walk_index(&mut walk, &root.index, root.levels, (0, u32::MAX))?;
        Ok(Some(HashIndex { hash: root.hash, slots: walk.slots }))
    }

    /// Follows the records of a node that holds hashes from `from` to `to`.
    fn walk_index(
        &mut self,
        walk: &mut Walk<'_>,
        index: &Index<'_>,
        levels: u8,
        (from, to): (u32, u32),
    ) -> Result<(), CheckError> {
        for (position, record) in index.iter().enumerate() {
            let low = if position == 0 { from } else { record.hash };
            let high = match index.get(position + 1) {
                Some(next) if next.continued => next.hash,
                Some(next) => next.hash.saturating_sub(1),
                None => to,
            };
            if low < from || high > to {
                let hash = if low < from { low } else { high };
                self.problem(Problem::HtreeRange { dir: walk.dir, block: record.block, hash });
            }
            if record.block.0 >= walk.blocks {
                continue;
            }
            let slot = walk.slots.entry(record.block.0).or_default();
            slot.times = slot.times.saturating_add(1);
            if slot.times > 1 {
                continue;
            }
            (slot.from, slot.to) = (low, high);
            if levels > 0 {
                slot.is_node = true;
                self.walk_inner(walk, record.block, levels - 1, (low, high))?;
            }
        }
        Ok(())
    }

    fn walk_inner(
        &mut self,
        walk: &mut Walk<'_>,
        block: FileBlock,
        levels: u8,
        range: (u32, u32),
    ) -> Result<(), CheckError> {
        let Some(at) = find(walk.runs, block.0) else { return Ok(()) };
        let mut bytes = Vec::new();
        self.read_block(at, &mut bytes)?;
        match Index::decode_inner(&bytes, &walk.layout, walk.blocks) {
            Ok(index) => self.walk_index(walk, &index, levels, range),
            Err(source) => {
                self.problem(Problem::Htree { dir: walk.dir, block, source });
                Ok(())
            }
        }
    }

    /// The checksum of a node.
    pub(crate) fn check_node_checksum(
        &mut self,
        dir: Ino,
        seed: u32,
        block: (u32, u64),
        bytes: &[u8],
    ) {
        let place = if block.0 == 0 { NodePlace::Root } else { NodePlace::Inner };
        self.block_checksum(dir, block.1, htree::verify(seed, bytes, place));
    }
}
