//! The place and size of all fixed metadata of a file system.
//!
//! # Shape
//!
//! `placement` finds bitmaps and tables, `runs` walks over groups and over what is placed.
//! Locations are computed when asked for: a [`Geometry`] of 16 TiB is as small as one of 1 MiB.

mod placement;
mod runs;

use core::fmt;
use core::ops::Range;

use extant_base::{BlockSize, GroupIndex};
use extant_format::features::{Feature, Features};

pub use runs::{FixedRuns, Groups};

use crate::heads::{GroupHead, Heads};

/// Everything about an ext4 file system that is fixed before the first file is written.
///
/// Memory does not depend on the number of groups. The fields are public for reading; locations are
/// valid only for values that `extant_image::geometry::compute` made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Geometry {
    /// Features after mke2fs's own adjustments (a journal dropped because the device is small,
    /// `meta_bg` because descriptors would fill a group).
    pub features: Features,
    /// Block size.
    pub block_size: BlockSize,
    /// Blocks per cluster; 1 without `bigalloc`.
    pub cluster_blocks: u32,
    /// Total blocks, those before `first_data_block` included.
    pub blocks_count: u64,
    /// 1 for 1 KiB blocks without `bigalloc`, else 0.
    pub first_data_block: u32,
    /// Blocks per group.
    pub blocks_per_group: u32,
    /// Clusters per group.
    pub clusters_per_group: u32,
    /// Number of groups.
    pub group_count: u32,
    /// Bytes of one inode.
    pub inode_size: u16,
    /// Inodes per group, a multiple of 8.
    pub inodes_per_group: u32,
    /// Blocks of one group's inode table.
    pub inode_table_blocks: u32,
    /// All inodes: `inodes_per_group * group_count`.
    pub inodes_count: u32,
    /// First inode that is not reserved.
    pub first_ino: u32,
    /// Bytes of one group descriptor: 32, or 64 and more with `64bit`.
    pub desc_size: u16,
    /// Blocks that hold all descriptors once.
    pub gdt_blocks: u32,
    /// Blocks kept after each copy of the descriptors for growth (`resize_inode`).
    pub reserved_gdt_blocks: u16,
    /// Groups per flex group; 1: bitmaps and tables stay in their own group.
    pub flex_groups: u32,
    /// Groups with backups under `sparse_super2`; 0: none.
    pub backup_groups: [u32; 2],
    /// Blocks reserved for root.
    pub reserved_blocks: u64,
    /// RAID stride in blocks, 0: unknown.
    pub stride: u32,
    /// Whether bitmaps and tables of all groups are at the front of the device.
    pub packed: bool,
    /// The internal journal, `None` without.
    pub journal: Option<JournalGeometry>,
    /// Blocks of the orphan file; 0 without.
    pub orphan_file_blocks: u32,
    /// Blocks of an empty lost+found.
    pub lost_found_blocks: u32,
}

/// Size of the internal journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalGeometry {
    /// Blocks of the ordinary log, its superblock included.
    pub log_blocks: u32,
    /// Blocks after it for fast commits; 0 without `fast_commit`.
    pub fast_commit_blocks: u32,
}

impl JournalGeometry {
    /// Length of the journal file, in blocks.
    pub fn total_blocks(&self) -> u32 {
        self.log_blocks + self.fast_commit_blocks
    }
}

/// The place of the fixed metadata of one group.
///
/// With `flex_bg` the bitmaps and the table of a group may lie in another group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupLayout {
    /// Number of the group.
    pub group: GroupIndex,
    /// First block of the group.
    pub first_block: u64,
    /// Blocks in the group; fewer than the others only in the last group.
    pub block_count: u32,
    /// Block with the superblock or a backup of it.
    pub super_block: Option<u64>,
    /// Blocks of group descriptors in this group; empty when none.
    pub gdt: Range<u64>,
    /// Blocks reserved for more descriptors; empty when none.
    pub reserved_gdt: Range<u64>,
    /// The block bitmap.
    pub block_bitmap: u64,
    /// The inode bitmap.
    pub inode_bitmap: u64,
    /// The inode table.
    pub inode_table: Range<u64>,
}

impl GroupLayout {
    /// Returns whether the group has the superblock or a backup of it.
    pub fn has_super(&self) -> bool {
        self.super_block.is_some()
    }
}

impl Geometry {
    /// Returns whether the file system has `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        self.features.has(feature)
    }

    /// Descriptors per block.
    pub fn desc_per_block(&self) -> u32 {
        self.block_size.bytes() / u32::from(self.desc_size)
    }

    /// Inodes per block of an inode table.
    pub fn inodes_per_block(&self) -> u32 {
        self.block_size.bytes() / u32::from(self.inode_size)
    }

    /// Returns the group of `block`, which must be below `blocks_count`. The boot block counts as
    /// part of group 0.
    pub fn group_of(&self, block: u64) -> GroupIndex {
        let from_first = block.saturating_sub(u64::from(self.first_data_block));
        // Below `group_count`, which has 32 bits.
        GroupIndex((from_first / u64::from(self.blocks_per_group)) as u32)
    }

    /// Returns the first block of `group`.
    pub fn group_first_block(&self, group: GroupIndex) -> u64 {
        u64::from(self.first_data_block) + u64::from(group.0) * u64::from(self.blocks_per_group)
    }

    /// Returns the block after the last one of `group`.
    pub fn group_end(&self, group: GroupIndex) -> u64 {
        let end = self.group_first_block(group) + u64::from(self.blocks_per_group);
        end.min(self.blocks_count)
    }

    /// Returns whether `group` has the superblock or a backup of it.
    pub fn has_super(&self, group: GroupIndex) -> bool {
        self.heads().has_superblock(group)
    }

    /// Returns the heads of all groups. Descriptors are spread over the groups from the first one
    /// on, if at all: a new file system was not grown yet.
    pub fn heads(&self) -> Heads {
        Heads {
            features: self.features,
            block_size: self.block_size,
            blocks_count: self.blocks_count,
            first_data_block: self.first_data_block,
            blocks_per_group: self.blocks_per_group,
            group_count: self.group_count,
            desc_per_block: self.desc_per_block(),
            gdt_blocks: self.gdt_blocks,
            reserved_gdt_blocks: u32::from(self.reserved_gdt_blocks),
            first_meta_bg: 0,
            backup_groups: self.backup_groups,
        }
    }

    /// Returns the places of the fixed metadata of `group`.
    ///
    /// Works out the flex group (with packed metadata, all groups) each time; [`Geometry::groups`]
    /// does that once for neighbours.
    ///
    /// # Panics
    ///
    /// When there is no such group.
    pub fn group(&self, group: GroupIndex) -> GroupLayout {
        assert!(group.0 < self.group_count, "group {group} of {}", self.group_count);
        self.group_in(group, &self.placement(group))
    }

    /// Returns all groups in order.
    pub fn groups(&self) -> Groups<'_> {
        Groups::new(self)
    }

    /// Returns all blocks of superblocks, descriptors, reserved descriptors, bitmaps and inode
    /// tables as sorted, merged runs. The boot block before `first_data_block` is not included.
    pub fn fixed_runs(&self) -> FixedRuns<'_> {
        FixedRuns::new(self)
    }

    /// Returns the runs of fixed metadata that lie among the blocks of `group`, whichever group they serve, cut at its
    /// ends.
    pub fn fixed_runs_in(&self, group: GroupIndex) -> impl Iterator<Item = Range<u64>> + use<> {
        runs::in_group(self, group).into_iter()
    }

    /// Returns the number of blocks in [`Geometry::fixed_runs`].
    pub fn fixed_metadata_blocks(&self) -> u64 {
        let per_group = 2 + u64::from(self.inode_table_blocks);
        self.head_blocks() + u64::from(self.group_count) * per_group
    }

    /// Returns the number of clusters of fixed metadata, each counted once.
    pub fn fixed_metadata_clusters(&self) -> u64 {
        if self.cluster_blocks == 1 {
            return self.fixed_metadata_blocks();
        }
        let ratio = u64::from(self.cluster_blocks);
        let mut counted_to = 0;
        self.fixed_runs().fold(0, |clusters, run| {
            let first = (run.start / ratio).max(counted_to);
            counted_to = run.end.div_ceil(ratio);
            clusters + counted_to.saturating_sub(first)
        })
    }

    /// Returns `s_overhead_clusters`: clusters that are never free, including the journal and the
    /// boot block.
    pub fn overhead_clusters(&self) -> u64 {
        let journal = self.journal.map_or(0, |journal| journal.total_blocks());
        u64::from(self.first_data_block)
            + self.fixed_metadata_clusters()
            + u64::from(journal.div_ceil(self.cluster_blocks))
    }

    /// Returns the number of blocks of superblocks, descriptors and their reserve, in all groups.
    pub fn head_blocks(&self) -> u64 {
        let heads = self.heads();
        let blocks = heads.groups().map(|group| heads.head(group).blocks());
        blocks.map(|blocks| blocks.end - blocks.start).sum()
    }

    /// Checks that every unit can hold its bitmaps and tables, on which [`Geometry::group`] relies:
    /// places every unit with obstacles, and the short last one.
    ///
    /// # Errors
    ///
    /// The first unit that cannot hold its bitmaps and tables.
    pub fn check_placement(&self) -> Result<(), NoRoomForTables> {
        let heads = self.heads();
        let mut from = GroupIndex(0);
        while let Some(group) = heads.next(from) {
            let unit = placement::unit_of(self, group);
            from = GroupIndex(unit.end);
            placement::place(self, unit)?;
        }
        let last = GroupIndex(self.group_count - 1);
        placement::place(self, placement::unit_of(self, last)).map(|_| ())
    }

    /// Returns where the groups placed together with `group` have their bitmaps and tables.
    fn placement(&self, group: GroupIndex) -> placement::Placement {
        placement::place(self, placement::unit_of(self, group))
            .expect("check_placement placed every group that has obstacles, and the last")
    }

    fn group_in(&self, group: GroupIndex, placement: &placement::Placement) -> GroupLayout {
        let (block_bitmap, inode_bitmap, table) = placement.of(group);
        let GroupHead { start, super_block, gdt, reserved_gdt } = self.heads().head(group);
        GroupLayout {
            group,
            first_block: start,
            // At most `blocks_per_group`.
            block_count: (self.group_end(group) - start) as u32,
            super_block,
            gdt,
            reserved_gdt,
            block_bitmap,
            inode_bitmap,
            inode_table: table..table + u64::from(self.inode_table_blocks),
        }
    }
}

/// Error of groups that have no room for their bitmaps and inode tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoRoomForTables {
    /// The first of the groups that are placed together.
    pub group: u32,
    /// Blocks of one inode table.
    pub inode_table_blocks: u32,
}

impl fmt::Display for NoRoomForTables {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let NoRoomForTables { group, inode_table_blocks } = self;
        write!(f, "inode tables of {inode_table_blocks} blocks have no room from group {group} on")
    }
}

impl core::error::Error for NoRoomForTables {}
