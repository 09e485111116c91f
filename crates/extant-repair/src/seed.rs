//! The seed of all checksums, by what it sealed.
//!
//! One wrong field of the superblock (`s_checksum_seed`, or `s_uuid` where the seed is made of it) makes every
//! checksum of the file system look wrong, and no structure is. A checksum is linear in its seed, so the seed that
//! made it can be computed from it; what many inodes agree on is the seed.

use std::collections::BTreeMap;

use extant_base::{GroupIndex, Ino};
use extant_block::BlockDevice;
use extant_format::checksum::{crc32c, fs_seed_from_uuid};
use extant_format::features::Feature;
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::inode::{Inode, InodeError, InodeLayout};
use extant_format::superblock::Superblock;
use extant_layout::Heads;

use crate::draft::Draft;

/// Groups whose tables are looked at.
const GROUPS_MAX: u32 = 16;
/// Records of a table that are looked at: those that Linux keeps for itself are among them.
const RECORDS_MAX: u32 = 16;
/// Inodes that have to agree. Three numbers of 32 bits do not by chance.
const AGREE_MIN: usize = 3;

/// The state of a raw crc32c before `zeros` bytes of zero led to `state`.
fn unwound(mut state: u32, zeros: usize) -> u32 {
    let mut forward = [0u32; 256];
    // The first byte of each entry is another one.
    let mut by_first = [0u8; 256];
    for byte in 0..=u8::MAX {
        let entry = crc32c(u32::from(byte), &[0]);
        if let (Some(slot), Some(back)) =
            (forward.get_mut(usize::from(byte)), by_first.get_mut(entry.to_be_bytes()[0] as usize))
        {
            (*slot, *back) = (entry, byte);
        }
    }
    for _ in 0..zeros {
        let byte = by_first.get(state.to_be_bytes()[0] as usize).copied().unwrap_or(0);
        let entry = forward.get(usize::from(byte)).copied().unwrap_or(0);
        state = ((state ^ entry) << 8) | u32::from(byte);
    }
    state
}

/// The seed with which the checksum of a record was made, if the record has all 32 bits of it.
fn implied(layout: &InodeLayout, ino: Ino, record: &[u8]) -> Option<u32> {
    let extra = record.get(128..130).and_then(|two| two.try_into().ok()).map(u16::from_le_bytes);
    // `i_checksum_hi` is the first field behind `i_extra_isize`.
    if record.iter().all(|byte| *byte == 0) || extra? < 4 {
        return None;
    }
    let layout = InodeLayout { checksum_seed: Some(0), ..*layout };
    match Inode::verify_checksum(&layout, ino, record) {
        Ok(()) => Some(0),
        // Number and generation come before the record.
        Err(InodeError::Checksum(sums)) => {
            Some(unwound(sums.stored ^ sums.computed, 8 + record.len()))
        }
        Err(_) => None,
    }
}

/// Returns the seed that the inodes of the first groups agree on, if it is another one than that of `sb`, which made none
/// of their checksums; and how many they are.
///
/// What cannot be read says nothing.
pub(crate) fn other_seed(draft: &Draft, sb: &Superblock) -> Option<(u32, usize)> {
    if !sb.features.metadata_csum() || sb.inode_size <= 128 {
        return None;
    }
    let (layout, heads) = (InodeLayout::of(sb), Heads::of(sb));
    let (size, desc) = (u64::from(sb.block_size.bytes()), usize::from(sb.desc_size).max(32));
    let mut votes: BTreeMap<u32, usize> = BTreeMap::new();
    for group in 0..sb.group_count.min(GROUPS_MAX) {
        let per_block = sb.descriptors_per_block().max(1);
        let Some(table) = heads.descriptor_block(group / per_block) else { continue };
        if table.0 >= sb.blocks_count {
            continue;
        }
        let mut raw = vec![0; desc];
        let at = table.0.saturating_mul(size) + u64::from(group % per_block) * desc as u64;
        if draft.read_at(at, &mut raw).is_err() {
            continue;
        }
        // One that is right says that the seed is. The numbers of inodes are next to it in their checksums: those of a
        // table that is read for another group's agree on another seed, too.
        if GroupDescriptor::verify_checksum(GroupIndex(group), &GroupChecksum::of(sb), &raw).is_ok()
        {
            return None;
        }
        let Ok(descriptor) = GroupDescriptor::decode(&raw) else { continue };
        let last = descriptor.inode_table.0.saturating_add(u64::from(sb.inode_table_blocks()));
        if last > sb.blocks_count {
            continue;
        }
        let record = usize::from(sb.inode_size);
        let mut table = vec![0; sb.inodes_per_group.min(RECORDS_MAX) as usize * record];
        if draft.read_at(descriptor.inode_table.0.saturating_mul(size), &mut table).is_err() {
            continue;
        }
        for (ino, record) in (group * sb.inodes_per_group + 1..).zip(table.chunks_exact(record)) {
            if let Some(seed) = implied(&layout, Ino(ino), record) {
                *votes.entry(seed).or_default() += 1;
            }
        }
    }
    if votes.contains_key(&sb.checksum_seed()) {
        return None;
    }
    let most = votes.into_iter().max_by_key(|(_, count)| *count);
    most.filter(|(_, count)| *count >= AGREE_MIN)
}

/// Gives the superblock the seed with which the checksums were made: with the UUID of a backup, if it is made of that, or
/// as a number of its own. Returns what is to be said about it.
pub(crate) fn set(
    sb: &mut Superblock,
    seed: u32,
    count: usize,
    backup: Option<&Superblock>,
) -> String {
    let found = format!("the checksums of {count} inodes were made with the seed {seed:#010x}");
    if sb.features.has(Feature::CSUM_SEED) {
        let was = sb.stored_checksum_seed;
        sb.stored_checksum_seed = seed;
        return format!("{found}, and s_checksum_seed is {was:#010x}");
    }
    if let Some(other) = backup.filter(|other| fs_seed_from_uuid(&other.uuid) == seed) {
        sb.uuid = other.uuid;
        return format!(
            "{found}: that of the UUID of a backup, and the superblock has another UUID"
        );
    }
    sb.features.insert(Feature::CSUM_SEED);
    sb.stored_checksum_seed = seed;
    format!(
        "{found}, which is not that of the UUID: it is stored as s_checksum_seed, and the feature metadata_csum_seed says so"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_taken_back() {
        for (state, zeros) in [(0, 1), (1, 7), (0x1234_5678, 264), (u32::MAX, 1000)] {
            let after = crc32c(state, &vec![0; zeros]);
            assert_eq!(unwound(after, zeros), state);
        }
    }
}
