//! Bitmaps and counts, from what the checker found in use.

use std::collections::BTreeSet;

use extant_base::GroupIndex;
use extant_check::Problem;
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::group::{GroupChecksum, GroupFlags};

use crate::error::{Fixed, Trouble};
use crate::state::State;

/// The groups that problems of bitmaps and counts are about.
pub(crate) fn groups_of(problems: &[Problem]) -> BTreeSet<u32> {
    problems.iter().filter_map(|problem| problem.objects().group).map(|group| group.0).collect()
}

/// Writes the bitmaps and counts of a group anew.
pub(crate) fn fix_group(state: &mut State, group: u32) -> Fixed {
    let mut descriptor = state.group(group)?;
    let index = GroupIndex(group);
    let has_sums = state.group_checksum != GroupChecksum::None;
    let clusters = state.sb.group_clusters(index);
    let inodes = state.sb.inodes_per_group;
    let claimed = state.exam.clusters_in_use(group).map(<[u64]>::to_vec).unwrap_or_default();
    let used = state.exam.inodes_in_use(group).map(<[u64]>::to_vec).unwrap_or_default();
    let count = |words: &[u64]| words.iter().map(|word| word.count_ones()).sum::<u32>();

    // A group marked as having no bitmap gets one: other checks decide what is in use.
    descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
    let bytes = bitmap(state, &claimed, clusters);
    if state.sb.features.metadata_csum() {
        let bits = state.sb.clusters_per_group;
        descriptor.block_bitmap_checksum = BitmapRef::new(&bytes).checksum(state.seed, bits);
    }
    place(state, descriptor.block_bitmap.0, group)?;
    state.write_block(descriptor.block_bitmap.0, &bytes)?;

    let in_use = count(&used);
    let is_uninit = has_sums && descriptor.flags.contains(GroupFlags::INODE_UNINIT);
    if !is_uninit || in_use != 0 {
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        let bytes = bitmap(state, &used, inodes);
        if state.sb.features.metadata_csum() {
            descriptor.inode_bitmap_checksum = BitmapRef::new(&bytes).checksum(state.seed, inodes);
        }
        place(state, descriptor.inode_bitmap.0, group)?;
        state.write_block(descriptor.inode_bitmap.0, &bytes)?;
    }
    if has_sums {
        let last = (0..inodes).rev().find(|bit| {
            let word = used.get(*bit as usize / 64).copied().unwrap_or(0);
            word >> (bit % 64) & 1 == 1
        });
        let most = last.map_or(inodes, |last| inodes - last - 1);
        descriptor.itable_unused = descriptor.itable_unused.min(most);
    }
    descriptor.free_clusters = clusters.saturating_sub(count(&claimed));
    descriptor.free_inodes = inodes.saturating_sub(in_use);
    descriptor.directories = state.exam.directories(group);
    state.set_group(group, descriptor)
}

fn place(state: &State, block: u64, group: u32) -> Fixed {
    if state.in_range(block, 1) {
        return Ok(());
    }
    Err(Trouble::cannot(format!("a bitmap of group {group} has no place")))
}

/// The bytes of a bitmap, padded with ones behind `bits`.
fn bitmap(state: &State, words: &[u64], bits: u32) -> Vec<u8> {
    let mut bitmap = Bitmap::zeroed(state.block_bytes());
    for (number, word) in words.iter().enumerate() {
        let mut rest = *word;
        while rest != 0 {
            let bit = number as u32 * 64 + rest.trailing_zeros();
            if bit < bits {
                bitmap.set(bit);
            }
            rest &= rest - 1;
        }
    }
    bitmap.pad(bits);
    bitmap.into_bytes()
}

/// Sets the totals of the superblock.
pub(crate) fn fix_totals(state: &mut State) -> Fixed {
    let (mut clusters, mut inodes) = (0u64, 0u64);
    for group in &state.groups {
        clusters += u64::from(group.free_clusters);
        inodes += u64::from(group.free_inodes);
    }
    state.sb.free_blocks_count = clusters << state.sb.cluster_bits();
    state.sb.free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX);
    state.write_superblock()
}
