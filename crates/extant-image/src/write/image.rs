//! State shared by all workers: the plan, with derived values computed once.

use extant_base::{FsBlock, Ino};
use extant_block::BlockDevice;
use extant_format::checksum::inode_seed;
use extant_format::group::GroupChecksum;
use extant_format::inode::InodeLayout;
use extant_format::superblock::Superblock;
use extant_format::xattr;

use crate::options::Feature;
use crate::plan::{Plan, QUOTA_KINDS, quota_file};
use crate::superblock_template::{Identity, superblock};
use crate::tree::Tree;
use crate::write::copying::Copies;
use crate::write::{WriteError, WriteOptions, Written};

/// The plan and its derived constants.
pub(super) struct Image<'a> {
    pub(super) plan: &'a Plan,
    pub(super) tree: &'a Tree,
    pub(super) device: &'a dyn BlockDevice,
    /// Where contents may be copied to by the system.
    pub(super) copies: Option<Copies<'a>>,
    pub(super) options: &'a WriteOptions<'a>,
    pub(super) superblock: Superblock,
    pub(super) inode_layout: InodeLayout,
    /// Seed of all metadata checksums; `None` without `metadata_csum`.
    pub(super) seed: Option<u32>,
    pub(super) group_checksum: GroupChecksum,
    /// The bytes of the quota files: user, group, project; empty for those there are not.
    pub(super) quota: [Vec<u8>; 3],
    /// Hashes of large attribute values.
    pub(super) value_hashes: Vec<u32>,
    /// Groups with a copy of the superblock, the first included.
    pub(super) super_groups: Vec<u32>,
}

impl<'a> Image<'a> {
    pub(super) fn new(
        plan: &'a Plan,
        tree: &'a Tree,
        device: &'a dyn BlockDevice,
        options: &'a WriteOptions<'a>,
    ) -> Result<Image<'a>, WriteError> {
        let identity = Identity {
            uuid: plan.ids.uuid,
            hash_seed: plan.ids.hash_seed,
            created: plan.ids.created.sec,
        };
        let geometry = &plan.layout.geometry;
        let superblock = superblock(&plan.options, geometry, &identity);
        let inode_layout = InodeLayout::of(&superblock);
        let fs_seed = superblock.checksum_seed();
        let value_hashes = (0..plan.demand.attrs.value_count() as u32)
            .map(|value| xattr::value_hash(fs_seed, plan.demand.attrs.value(value)))
            .collect();
        Ok(Image {
            quota: quota_files(plan, tree)?,
            group_checksum: GroupChecksum::of(&superblock),
            seed: inode_layout.checksum_seed,
            plan,
            tree,
            device,
            copies: Copies::to(device),
            options,
            inode_layout,
            value_hashes,
            super_groups: (0..geometry.group_count)
                .filter(|&g| geometry.has_super(extant_base::GroupIndex(g)))
                .collect(),
            superblock,
        })
    }

    pub(super) fn block_bytes(&self) -> usize {
        self.plan.layout.geometry.block_size.len()
    }

    /// Byte offset of a block.
    pub(super) fn offset(&self, block: u64) -> u64 {
        block << self.plan.layout.geometry.block_size.log2()
    }

    /// Seed of checksums of what belongs to an inode; all inodes here have generation 0.
    pub(super) fn inode_seed(&self, ino: Ino) -> Option<u32> {
        self.seed.map(|seed| inode_seed(seed, ino, 0))
    }

    /// Inode and hash of a large attribute value.
    pub(super) fn value_ino(&self, value: u32) -> (Ino, u32) {
        (self.plan.demand.inos.value_ino(value), self.value_hashes[value as usize])
    }

    /// Writes whole blocks and counts.
    pub(super) fn write(
        &self,
        block: FsBlock,
        bytes: &[u8],
        written: &mut Written,
    ) -> Result<(), WriteError> {
        self.device.write_at(self.offset(block.0), bytes)?;
        written.bytes += bytes.len() as u64;
        written.calls += 1;
        Ok(())
    }

    /// Makes blocks zero that no job writes, unless the target reads as zeros already (W3).
    pub(super) fn zero(&self, block: u64, blocks: u64) -> Result<(), WriteError> {
        if self.options.target_is_zeroed || blocks == 0 {
            return Ok(());
        }
        self.device.write_zeroes(self.offset(block), self.offset(blocks))?;
        Ok(())
    }

    pub(super) fn has(&self, feature: Feature) -> bool {
        self.plan.layout.geometry.has(feature)
    }
}

/// The bytes of the quota files that the plan has room for.
fn quota_files(plan: &Plan, tree: &Tree) -> Result<[Vec<u8>; 3], WriteError> {
    let layout = &plan.layout;
    let mut files = [Vec::new(), Vec::new(), Vec::new()];
    for ((kind, place), file) in QUOTA_KINDS.iter().zip(&layout.own.quota).zip(&mut files) {
        if place.data.count == 0 {
            continue;
        }
        let usage_of = |id| {
            let space = plan.node_blocks(id) << layout.geometry.block_size.log2();
            (space, 1 + plan.demand.attrs.values_of(id).count() as u64)
        };
        *file =
            quota_file(*kind, tree, usage_of).map_err(|e| WriteError::encode("a quota file", e))?;
    }
    Ok(files)
}
