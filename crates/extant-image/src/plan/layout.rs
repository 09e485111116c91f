//! A tree's demand placed into a file system of one size.

use std::ops::Range;

use extant_base::{BlockCount, BlockSize, FileBlock, FsBlock};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::indirect;

use crate::geometry::Geometry;
use crate::options::Feature;
use crate::plan::demand::{Demand, Form};
use crate::plan::pieces::{Object, Own, PieceRange, Pieces};
use crate::plan::space::{FixedRuns, Space};
use crate::tree::{Kind, NodeId, Tree};

/// Places of one node's blocks.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodePlace {
    /// Contents.
    pub(crate) data: PieceRange,
    /// Extent tree or indirect blocks.
    pub(crate) map: PieceRange,
}

/// Places of the file system's own files; an empty range for one that does not exist.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct OwnPlan {
    pub(crate) journal: NodePlace,
    pub(crate) orphan_file: NodePlace,
    pub(crate) quota: [NodePlace; 3],
    pub(crate) resize_map: PieceRange,
    pub(crate) mmp: PieceRange,
}

impl OwnPlan {
    /// Notes where one of them is.
    pub(super) fn put(&mut self, own: Own, place: NodePlace) {
        match own {
            Own::Journal => self.journal = place,
            Own::OrphanFile => self.orphan_file = place,
            Own::Quota(kind) => self.quota[usize::from(kind)] = place,
            Own::ResizeMap => self.resize_map = place.data,
            Own::Mmp => self.mmp = place.data,
        }
    }
}

/// Every block of the image has its place.
#[derive(Debug)]
pub(crate) struct Layout {
    pub(crate) geometry: Geometry,
    pub(crate) fixed: FixedRuns,
    pub(crate) pieces: Pieces,
    pub(crate) nodes: Vec<NodePlace>,
    pub(crate) own: OwnPlan,
    /// Block of each shared attribute block, in the order of the attribute plan.
    pub(crate) xattr_blocks: PieceRange,
    /// Place of each large attribute value.
    pub(crate) values: Vec<NodePlace>,
    /// Blocks in use, sorted; ranges do not touch, and may cover fixed metadata. All others, but for fixed metadata,
    /// are free.
    pub(crate) used: Vec<Range<u64>>,
    /// Blocks that did not fit.
    pub(crate) missing_blocks: u64,
    /// Free blocks of the file system.
    pub(crate) free_blocks: u64,
    /// Blocks that are where a base has them.
    pub(crate) kept_blocks: Option<u64>,
}

impl Layout {
    /// Places everything. Time follows the number of nodes and pieces; the size of the file
    /// system counts only by its groups.
    pub(crate) fn place(tree: &Tree, demand: &Demand, geometry: Geometry) -> Layout {
        if let Some(base) = &demand.base {
            return Layout::place_onto(tree, demand, geometry, base);
        }
        let fixed = FixedRuns::of(&geometry);
        let mut space = Space::new(&geometry, &fixed);
        let mut placer = Placer { demand, pieces: Pieces::default(), space: &mut space };
        let mut nodes = vec![NodePlace::default(); tree.nodes().len()];

        for ((id, _), &(blocks, _)) in tree.dirs().zip(&demand.dir_blocks) {
            if demand.forms[id.index()] == Form::Blocks {
                nodes[id.index()] =
                    placer.mapped(Object::Data(id), Object::Map(id), [(0, u64::from(blocks))]);
            }
        }
        let own = placer.own_files(&geometry);
        let xattr_start = placer.pieces.list().len() as u32;
        for block in 0..demand.attrs.block_count() {
            placer.one(Object::XattrBlock(block));
        }
        let xattr_blocks = PieceRange { start: xattr_start, count: demand.attrs.block_count() };
        for (kind, with) in [(Kind::Symlink, Form::Blocks), (Kind::File, Form::Blocks)] {
            for (index, node) in tree.nodes().iter().enumerate() {
                if node.kind != kind || demand.forms[index] != with {
                    continue;
                }
                let id = NodeId(index as u32);
                let (data, map) = (Object::Data(id), Object::Map(id));
                nodes[index] = match kind {
                    Kind::Symlink => placer.mapped(data, map, [(0, 1)]),
                    _ => placer.file(id, demand.data_runs(tree, node), demand.seal_run(node)),
                };
            }
        }
        let values = (0..demand.attrs.value_count() as u32)
            .map(|value| {
                let blocks = demand.block_size.blocks_for(demand.attrs.value_len(value));
                let (data, map) = (Object::XattrInode(value), Object::XattrInodeMap(value));
                placer.mapped(data, map, [(0, blocks)])
            })
            .collect();
        let pieces = placer.pieces;
        let used = std::iter::once(0..space.cursor()).collect();
        let (missing_blocks, free_blocks) = (space.missing(), space.free_blocks());
        Layout {
            geometry,
            fixed,
            pieces,
            nodes,
            own,
            xattr_blocks,
            values,
            used,
            missing_blocks,
            free_blocks,
            kept_blocks: None,
        }
    }

    /// Device block of attribute block `index`.
    pub(crate) fn xattr_block(&self, index: u32) -> u64 {
        self.pieces.of(self.xattr_blocks)[index as usize].block
    }

    /// The written extents of an object.
    pub(crate) fn extents(&self, data: PieceRange) -> Vec<Extent> {
        extents_of(&self.pieces, data).collect()
    }

    /// Blocks an object takes, contents and map, in whole clusters: what `i_blocks` counts.
    pub(crate) fn blocks_of(&self, place: &NodePlace) -> u64 {
        let cluster = u64::from(self.geometry.cluster_blocks);
        let data = self.pieces.of(place.data).iter();
        let data: u64 = data.map(|p| u64::from(p.len).next_multiple_of(cluster)).sum();
        let map: u64 = self.pieces.of(place.map).iter().map(|p| u64::from(p.len)).sum();
        data + map * cluster
    }

    /// Device blocks of a map, in order.
    pub(crate) fn map_blocks(&self, map: PieceRange) -> impl Iterator<Item = FsBlock> + '_ {
        self.pieces.of(map).iter().flat_map(|p| p.blocks()).map(FsBlock)
    }
}

/// Written extents of a list of pieces: at most 32768 blocks each.
pub(crate) fn extents_of(
    pieces: &Pieces,
    data: PieceRange,
) -> impl Iterator<Item = Extent> + Clone + '_ {
    const STEP: u32 = extent::WRITTEN_LEN_MAX;
    pieces.of(data).iter().flat_map(|piece| {
        (0..piece.len).step_by(STEP as usize).map(|into| Extent {
            file_start: FileBlock(piece.file_block + into),
            device_start: FsBlock(piece.block + u64::from(into)),
            len: BlockCount((piece.len - into).min(STEP)),
            state: ExtentState::Written,
        })
    })
}

/// Blocks that the map of contents in these pieces takes.
pub(super) fn map_blocks_needed(demand: &Demand, pieces: &Pieces, data: PieceRange) -> u64 {
    let size: BlockSize = demand.block_size;
    if demand.extents {
        let extents = extents_of(pieces, data).count() as u64;
        extent::tree_blocks(extents, size).unwrap_or(0)
    } else {
        let pieces = pieces.of(data).iter();
        let runs = pieces.map(|p| (FileBlock(p.file_block), u64::from(p.len)));
        // Sorted and within reach: `Demand` refused larger files.
        indirect::map_blocks(runs, size).unwrap_or(0)
    }
}

struct Placer<'p, 's, 'f> {
    demand: &'p Demand,
    pieces: Pieces,
    space: &'s mut Space<'f>,
}

impl Placer<'_, '_, '_> {
    /// Places contents, then the map blocks that the runs turned out to need.
    fn mapped(
        &mut self,
        data: Object,
        map: Object,
        runs: impl IntoIterator<Item = (u32, u64)>,
    ) -> NodePlace {
        let data = self.pieces.place(self.space, data, runs);
        self.with_map(data, map)
    }

    /// Places contents of a file and its seal, in pieces of their own, and their map.
    fn file(
        &mut self,
        id: NodeId,
        data: impl IntoIterator<Item = (u32, u64)>,
        seal: Option<(u32, u64)>,
    ) -> NodePlace {
        let mut place = self.pieces.place(self.space, Object::Data(id), data);
        if seal.is_some() {
            place.count += self.pieces.place(self.space, Object::Data(id), seal).count;
        }
        self.with_map(place, Object::Map(id))
    }

    fn with_map(&mut self, data: PieceRange, map: Object) -> NodePlace {
        let blocks = map_blocks_needed(self.demand, &self.pieces, data);
        // Each map block takes a cluster of its own, as the kernel allocates them.
        let start = self.pieces.list().len() as u32;
        for index in 0..blocks {
            self.pieces.place(self.space, map, [(index as u32, 1)]);
        }
        let count = self.pieces.list().len() as u32 - start;
        NodePlace { data, map: PieceRange { start, count } }
    }

    fn one(&mut self, object: Object) -> PieceRange {
        self.pieces.place(self.space, object, [(0, 1)])
    }

    fn own_files(&mut self, geometry: &Geometry) -> OwnPlan {
        let mut own = OwnPlan::default();
        // Also when no descriptor blocks are reserved: mke2fs gives the inode its block all the same.
        if geometry.features.has(Feature::RESIZE_INODE) {
            own.resize_map = self.one(Object::Own(Own::ResizeMap));
        }
        if geometry.features.has(Feature::MMP) {
            own.mmp = self.one(Object::Own(Own::Mmp));
        }
        for kind in 0..3u8 {
            let blocks = self.demand.quota_blocks(kind);
            if blocks > 0 {
                own.quota[usize::from(kind)] = self.mapped(
                    Object::Own(Own::Quota(kind)),
                    Object::OwnMap(Own::Quota(kind)),
                    [(0, blocks)],
                );
            }
        }
        if geometry.orphan_file_blocks > 0 {
            own.orphan_file = self.mapped(
                Object::Own(Own::OrphanFile),
                Object::OwnMap(Own::OrphanFile),
                [(0, u64::from(geometry.orphan_file_blocks))],
            );
        }
        if let Some(journal) = &geometry.journal {
            own.journal = self.mapped(
                Object::Own(Own::Journal),
                Object::OwnMap(Own::Journal),
                [(0, u64::from(journal.total_blocks()))],
            );
        }
        own
    }
}
