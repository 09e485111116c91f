//! Numbers of a plan, for people and programs.

use crate::plan::Plan;

/// Summary of an image before it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlanSummary {
    /// Size of the image in bytes.
    pub size_bytes: u64,
    /// Block size in bytes.
    pub block_bytes: u32,
    /// Blocks of the file system.
    pub blocks: u64,
    /// Blocks in use: fixed metadata, the file system's own files, contents.
    pub used_blocks: u64,
    /// Blocks not in use.
    pub free_blocks: u64,
    /// Blocks of the free ones that only root may use.
    pub reserved_blocks: u64,
    /// All inodes.
    pub inodes: u32,
    /// Inodes in use, reserved ones included.
    pub used_inodes: u32,
    /// Bytes of an inode.
    pub inode_bytes: u16,
    /// Block groups.
    pub groups: u32,
    /// Blocks of the journal; 0 without.
    pub journal_blocks: u32,
    /// Inodes of the source: files, directories and the rest, the root and lost+found included.
    pub files: u64,
    /// Directories among them.
    pub directories: u64,
    /// Directories with an index.
    pub indexed_directories: u64,
    /// Bytes of regular files that are stored (holes not counted).
    pub data_bytes: u64,
    /// Over a base: blocks of files, directories and the file system's own files that are where they were.
    pub kept_blocks: Option<u64>,
}

impl PlanSummary {
    pub(super) fn of(plan: &Plan) -> PlanSummary {
        let geometry = &plan.layout.geometry;
        PlanSummary {
            size_bytes: plan.image_bytes(),
            block_bytes: geometry.block_size.bytes(),
            blocks: geometry.blocks_count,
            used_blocks: geometry.blocks_count - plan.layout.free_blocks.min(geometry.blocks_count),
            free_blocks: plan.layout.free_blocks,
            reserved_blocks: geometry.reserved_blocks,
            inodes: geometry.inodes_count,
            used_inodes: plan.demand.inos.used(),
            inode_bytes: geometry.inode_size,
            groups: geometry.group_count,
            journal_blocks: geometry.journal.map_or(0, |j| j.total_blocks()),
            files: plan.demand.forms.len() as u64,
            directories: plan.demand.dir_blocks.len() as u64,
            indexed_directories: plan.demand.dir_blocks.iter().filter(|(_, i)| *i).count() as u64,
            data_bytes: plan.demand.data_bytes,
            kept_blocks: plan.layout.kept_blocks,
        }
    }
}
