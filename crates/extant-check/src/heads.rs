//! The places of superblocks and descriptors, computed independently.
//!
//! `extant-layout` has the same rules for the crates that write images. The checker does not use
//! it: by a wrong rule there, an image with misplaced backups would seem clean.

use extant_base::{FsBlock, GroupIndex};
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::superblock::Superblock;

/// Returns whether `value` is a power of `base`, at least the first.
fn is_power_of(base: u32, value: u32) -> bool {
    let mut power = base;
    while power < value {
        let Some(next) = power.checked_mul(base) else { return false };
        power = next;
    }
    power == value
}

/// Returns whether `group` holds a superblock: group 0 always; else as `sparse_super2` or
/// `sparse_super` say; without either, every group.
fn has_superblock(superblock: &Superblock, group: GroupIndex) -> bool {
    if group.0 == 0 {
        return true;
    }
    if superblock.features.has_compat(Compat::SPARSE_SUPER2) {
        return superblock.backup_groups.contains(&group.0);
    }
    if group.0 == 1 || !superblock.features.has_ro_compat(RoCompat::SPARSE_SUPER) {
        return true;
    }
    [3, 5, 7].iter().any(|base| is_power_of(*base, group.0))
}

/// All groups with a superblock, in order, the primary included.
pub(crate) fn superblock_groups(superblock: &Superblock) -> impl Iterator<Item = GroupIndex> + '_ {
    (0..superblock.group_count).map(GroupIndex).filter(|group| has_superblock(superblock, *group))
}

/// Returns how many blocks at the start of `group` the superblock copy, the descriptors and the
/// blocks reserved for more of them take.
pub(crate) fn super_and_descriptor_blocks(superblock: &Superblock, group: GroupIndex) -> u32 {
    let copy = has_superblock(superblock, group);
    // The blocks before `first_data_block` belong to no group; with larger blocks the boot sector
    // shares block 0 with the superblock.
    let own = u32::from(copy);
    let per_block = superblock.descriptors_per_block();
    let meta_group = group.0.checked_div(per_block).unwrap_or(0);
    let meta_bg = superblock.features.has_incompat(Incompat::META_BG);
    if !meta_bg || meta_group < superblock.first_meta_bg {
        if !copy {
            return 0;
        }
        let table = if meta_bg {
            superblock.first_meta_bg.min(superblock.descriptor_blocks())
        } else {
            superblock.descriptor_blocks()
        };
        let reserved = if meta_bg { 0 } else { u32::from(superblock.reserved_gdt_blocks) };
        return own.saturating_add(table).saturating_add(reserved);
    }
    // One descriptor block in the first, second and last group of each meta group.
    let within = group.0.checked_rem(per_block).unwrap_or(0);
    let holds = within == 0 || within == 1 || within == per_block.saturating_sub(1);
    own.saturating_add(u32::from(holds))
}

/// The block that holds block `index` of the descriptor table (each holds
/// [`Superblock::descriptors_per_block`] descriptors), beside the primary superblock or, with
/// `meta_bg`, in the first group of its own; `None` past the table's end.
pub(crate) fn descriptor_block(superblock: &Superblock, index: u32) -> Option<FsBlock> {
    if index >= superblock.descriptor_blocks() {
        return None;
    }
    let meta_bg = superblock.features.has_incompat(Incompat::META_BG);
    if !meta_bg || index < superblock.first_meta_bg {
        let after_super = primary_superblock_block(superblock).checked_add(1)?;
        return after_super.checked_add(u64::from(index));
    }
    let home = GroupIndex(index.checked_mul(superblock.descriptors_per_block())?);
    let start = superblock.group_first_block(home)?;
    let at = if home.0 == 0 { primary_superblock_block(superblock) } else { start };
    at.checked_add(u64::from(has_superblock(superblock, home)))
}

/// The block with byte 1024 in it.
fn primary_superblock_block(superblock: &Superblock) -> FsBlock {
    FsBlock(u64::from(superblock.block_size.bytes() == 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparse_groups_are_powers_of_three_five_seven() {
        let groups: Vec<u32> =
            (2..3000).filter(|g| [3, 5, 7].iter().any(|base| is_power_of(*base, *g))).collect();
        assert_eq!(groups, [3, 5, 7, 9, 25, 27, 49, 81, 125, 243, 343, 625, 729, 2187, 2401]);
        assert!(!is_power_of(3, u32::MAX), "ends without overflow");
    }
}
