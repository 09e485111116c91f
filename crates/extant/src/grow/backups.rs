//! Copies of the superblock and the descriptors, after growth.
//!
//! Nobody reads them unless the primary ones are gone, so they are written past the journal, and
//! after it: a cut leaves copies that describe the smaller file system.

use extant_base::{FsBlock, GroupIndex};
use extant_block::BlockDevice;
use extant_format::features::Feature;
use extant_format::superblock::Superblock;
use extant_layout::Heads;

use crate::error::{FsError, Result};
use crate::fs::Fs;

impl Fs {
    /// Writes the copies that growth from `before` changed: all superblocks, the descriptors of new
    /// groups in all groups that have copies, and all descriptors in groups that are new.
    ///
    /// # Errors
    ///
    /// Device errors: the copies that were not written are old.
    pub(super) fn write_backups(&self, before: &Superblock) -> Result<()> {
        let mount = self.volume();
        let writer = mount.writer()?;
        writer.check_open()?;
        let superblock = writer.supers().for_backups();
        let heads = Heads::of(&superblock);
        let size = u64::from(superblock.block_size.bytes());
        let device = self.device();
        for group in heads.superblock_groups().skip(1) {
            if let Some(block) = heads.head(group).super_block {
                let copy = superblock.encode_backup(group);
                device.write_at(block * size, &copy).map_err(FsError::from)?;
            }
        }
        let per_block = superblock.descriptors_per_block();
        let first_changed = before.group_count / per_block;
        for index in 0..superblock.descriptor_blocks() {
            let Some(home) = heads.descriptor_block(index) else { continue };
            let places = copies(&superblock, &heads, index);
            let is_due = |place: &FsBlock| index >= first_changed || place.0 >= before.blocks_count;
            let due: Vec<FsBlock> = places.into_iter().filter(is_due).collect();
            if due.is_empty() {
                continue;
            }
            let block = mount.read_block(home)?;
            for place in due {
                device.write_at(place.0 * size, block.bytes()).map_err(FsError::from)?;
            }
        }
        device.flush().map_err(FsError::from)
    }
}

/// The places of the copies of block `index` of the table.
fn copies(superblock: &Superblock, heads: &Heads, index: u32) -> Vec<FsBlock> {
    let per_block = superblock.descriptors_per_block();
    let is_spread = superblock.features.has(Feature::META_BG) && index >= superblock.first_meta_bg;
    if !is_spread {
        let groups = heads.superblock_groups().skip(1);
        return groups.filter_map(|group| heads.descriptor_block_copy(index, group)).collect();
    }
    // In the second and the last group of those that the block describes.
    let mut places: Vec<FsBlock> =
        heads.descriptor_block_copy(index, GroupIndex(1)).into_iter().collect();
    let last = u64::from(index) * u64::from(per_block) + u64::from(per_block) - 1;
    if let Ok(last) = u32::try_from(last)
        && per_block > 2
        && last < superblock.group_count
    {
        let gdt = heads.head(GroupIndex(last)).gdt;
        places.extend((!gdt.is_empty()).then_some(FsBlock(gdt.start)));
    }
    places
}
