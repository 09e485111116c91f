//! The files of an empty file system besides its fixed metadata.

use extant_format::{extent, indirect};

use super::Geometry;
use crate::options::{Feature, MkfsOptions};

/// Bytes of a quota file with one user: header, four levels of tree, one leaf, of 1 KiB each.
const QUOTA_FILE_BYTES: u64 = 6 << 10;

/// Blocks of each thing in an empty file system that is not fixed metadata, as mke2fs makes them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct EmptyFs {
    /// Root directory; 0 when it is inside its inode.
    pub root: u64,
    /// lost+found.
    pub lost_found: u64,
    /// The double-indirect block of the resize inode, whose other blocks are reserved descriptors.
    pub resize_map: u64,
    /// The journal.
    pub journal: u64,
    /// Blocks that map the journal, when it lies in as few extents as its length allows.
    pub journal_map: u64,
    /// The orphan file.
    pub orphan_file: u64,
    /// Blocks that map the orphan file.
    pub orphan_map: u64,
    /// One quota file; times [`EmptyFs::quota_files`].
    pub quota_file: u64,
    /// Number of quota files.
    pub quota_files: u64,
    /// The multiple-mount protection block.
    pub mmp: u64,
}

impl EmptyFs {
    /// Returns what an empty file system of that geometry holds. `options` are those that the
    /// geometry was computed from.
    pub fn of(geometry: &Geometry, options: &MkfsOptions) -> EmptyFs {
        let journal = geometry.journal.map_or(0, |journal| u64::from(journal.total_blocks()));
        let orphan_file = u64::from(geometry.orphan_file_blocks);
        let block_size = geometry.block_size;
        EmptyFs {
            root: u64::from(!geometry.has(Feature::INLINE_DATA)),
            lost_found: u64::from(geometry.lost_found_blocks),
            resize_map: u64::from(geometry.has(Feature::RESIZE_INODE)),
            journal,
            journal_map: map_blocks(geometry, journal),
            orphan_file,
            orphan_map: map_blocks(geometry, orphan_file),
            quota_file: block_size.blocks_for(QUOTA_FILE_BYTES),
            quota_files: u64::from(options.quota_types().count()),
            mmp: u64::from(geometry.has(Feature::MMP)),
        }
    }

    /// Free blocks of the empty file system with all its hidden files.
    pub fn free_blocks(&self, geometry: &Geometry) -> u64 {
        let blocks = geometry.blocks_count - u64::from(geometry.first_data_block);
        let clusters = blocks / u64::from(geometry.cluster_blocks);
        let used = geometry.fixed_metadata_clusters() + self.clusters(geometry);
        clusters.saturating_sub(used) * u64::from(geometry.cluster_blocks)
    }

    /// All clusters taken; each thing starts its own.
    pub fn clusters(&self, geometry: &Geometry) -> u64 {
        let clusters = |blocks: u64| blocks.div_ceil(u64::from(geometry.cluster_blocks));
        clusters(self.root)
            + clusters(self.lost_found)
            + clusters(self.resize_map)
            + clusters(self.journal)
            + clusters(self.journal_map)
            + clusters(self.orphan_file)
            + clusters(self.orphan_map)
            + self.quota_files * clusters(self.quota_file)
            + clusters(self.mmp)
    }
}

/// Blocks that map a file of `blocks` contiguous blocks, those in the inode not counted.
fn map_blocks(geometry: &Geometry, blocks: u64) -> u64 {
    if geometry.has(Feature::EXTENTS) {
        // The longest journal has 313 extents of 16 bytes: one leaf of 4 KiB, 4 of 1 KiB.
        let extents = blocks.div_ceil(u64::from(extent::WRITTEN_LEN_MAX));
        let per_leaf = (u64::from(geometry.block_size.bytes()) - 16) / 12;
        return if extents <= u64::from(extent::ROOT_RECORDS) {
            0
        } else {
            extents.div_ceil(per_leaf)
        };
    }
    let per_block = u64::from(geometry.block_size.bytes() / 4);
    let mut left = blocks.saturating_sub(u64::from(indirect::DIRECT));
    if left == 0 {
        return 0;
    }
    left = left.saturating_sub(per_block);
    let mut map = 1;
    // Double-indirect, then triple-indirect trees; a journal never fills the latter.
    let double = left.min(per_block * per_block);
    if double > 0 {
        map += 1 + double.div_ceil(per_block);
    }
    let triple = left - double;
    if triple > 0 {
        map += 1 + triple.div_ceil(per_block * per_block) + triple.div_ceil(per_block);
    }
    map
}
