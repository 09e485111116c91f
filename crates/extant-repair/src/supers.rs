//! The superblock: found, if need be as a backup, and set right.

use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_block::BlockDevice;
use extant_format::features::{Compat, DefaultHash, Features, Incompat};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::superblock::{
    MAGIC, OLD_FIRST_INO, OLD_INODE_SIZE, SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock,
    SuperblockError,
};
use extant_layout::Heads;
use extant_layout::support::CHECKABLE;

use crate::draft::Draft;
use crate::error::RepairError;
use crate::seed;
use extant_format::record::{put, u16_at, u32_at};

/// Bytes of the device that are searched for backups when none is where they usually are.
const SEARCH_BYTES: u64 = 1 << 30;
/// Bytes searched at once.
const SEARCH_CHUNK: usize = 1 << 20;

/// A superblock and what was done to have it.
pub(crate) struct FoundSuper {
    pub(crate) sb: Superblock,
    /// Faults of the primary superblock.
    pub(crate) notes: Vec<(&'static str, String)>,
    /// Backups are written anew: it is one itself, whose frequently changing fields are outdated, or a lasting field changed.
    pub(crate) renews_backups: bool,
}

/// Finds the superblock and writes it, if it is not as it should be, into the draft.
pub(crate) fn find(draft: &Arc<Draft>) -> Result<FoundSuper, RepairError> {
    let mut found = find_any(draft)?;
    let Some((seed, count)) = seed::other_seed(draft, &found.sb) else { return Ok(found) };
    if sabotage("repair.seed.every-checksum-made-anew") {
        return Ok(found);
    }
    let text = seed::set(&mut found.sb, seed, count, backup(draft)?.as_ref());
    draft.write_at(SUPERBLOCK_OFFSET, &found.sb.encode())?;
    found.notes.push(("checksum-seed", text));
    Ok(FoundSuper { sb: reread(draft)?, renews_backups: true, ..found })
}

fn find_any(draft: &Arc<Draft>) -> Result<FoundSuper, RepairError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if draft.size_bytes() < SUPERBLOCK_OFFSET + SUPERBLOCK_BYTES as u64 {
        return Err(RepairError::NoSuperblock);
    }
    draft.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    if let Some(sb) = Superblock::decode_in_change(&bytes) {
        return put_back(draft, sb);
    }
    let mut notes = Vec::new();
    let primary = patched(draft, &mut bytes, &mut notes)?;
    // The device was cut off, unless a backup says that the number of blocks is wrong.
    let too_large = primary.as_ref().ok().and_then(|sb| fits(draft, sb).err());
    if let Ok(sb) = &primary
        && too_large.is_none()
    {
        let unknown = sb.features.without(&CHECKABLE);
        if sb.verify_checksum().is_ok() || (unknown.is_empty() && is_consistent(draft, sb)?) {
            if !unknown.is_empty() {
                return Err(RepairError::Features { names: unknown.names().join(", ") });
            }
            if let Err(wrong) = sb.verify_checksum() {
                notes.push(("superblock-checksum", wrong.to_string()));
            }
            let sb = sb.clone();
            if !notes.is_empty() {
                draft.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
            }
            let sb = reread(draft)?;
            return Ok(FoundSuper { sb, notes, renews_backups: false });
        }
    }
    let why = match (&primary, &too_large) {
        (_, Some(error)) => error.to_string(),
        (Ok(sb), None) => {
            sb.verify_checksum().err().map_or_else(String::new, |wrong| wrong.to_string())
        }
        (Err(error), None) => error.to_string(),
    };
    if let Some(mut sb) = backup(draft)? {
        fits(draft, &sb)?;
        sb.block_group = 0;
        let text =
            format!("{why}: the backup in group {} takes its place", sb.raw.s_block_group_nr);
        notes.clear();
        notes.push(("superblock", text));
        draft.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
        return Ok(FoundSuper { sb: reread(draft)?, notes, renews_backups: true });
    }
    if let Some(error) = too_large {
        return Err(error);
    }
    match primary {
        // A wrong checksum, no backup, and nothing else that is wrong.
        Ok(sb) if sb.features.without(&CHECKABLE).is_empty() => {
            notes.push(("superblock-checksum", why));
            draft.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
            Ok(FoundSuper { sb: reread(draft)?, notes, renews_backups: false })
        }
        Ok(sb) => {
            let names = sb.features.without(&CHECKABLE).names().join(", ");
            Err(RepairError::Features { names })
        }
        Err(error) => Err(RepairError::BadSuperblock(error)),
    }
}

/// Undoes a change of inode tables that was cut off: nothing but superblock, descriptors and bitmaps can have
/// changed, and copies of the first two are of before (C4 of `extant-change`).
fn put_back(draft: &Arc<Draft>, sb: Superblock) -> Result<FoundSuper, RepairError> {
    fits(draft, &sb)?;
    let found = match sb.group_count {
        1 => spare_descriptor(draft, &sb)?,
        _ => copied_descriptors(draft, &sb)?,
    };
    let Some(blocks) = found else {
        let error = SuperblockError::InodeSizeInChange { old: sb.inode_size };
        return Err(RepairError::BadSuperblock(error));
    };
    for (block, bytes) in blocks {
        draft.write_at(block.saturating_mul(u64::from(sb.block_size.bytes())), &bytes)?;
    }
    draft.write_at(SUPERBLOCK_OFFSET, &sb.encode())?;
    let text = format!(
        "a change of the size of its inodes was cut off: inodes of {} bytes are put back",
        sb.inode_size
    );
    Ok(FoundSuper { sb: reread(draft)?, notes: vec![("superblock", text)], renews_backups: true })
}

/// Blocks of the descriptor table, by number.
type TableBlocks = Vec<(u64, Vec<u8>)>;

/// The descriptors that the copies next to one backup of the superblock have.
fn copied_descriptors(draft: &Draft, sb: &Superblock) -> Result<Option<TableBlocks>, RepairError> {
    let heads = Heads::of(sb);
    let size = u64::from(sb.block_size.bytes());
    for backup in heads.superblock_groups().skip(1) {
        let Some(place) = heads.head(backup).super_block else { continue };
        let found = candidate(draft, place.saturating_mul(size))?;
        if !found.is_some_and(|found| same_shape(&found, sb)) {
            continue;
        }
        let mut blocks = Vec::new();
        for index in 0..sb.descriptor_blocks() {
            let is_spread =
                sb.features.has_incompat(Incompat::META_BG) && index >= sb.first_meta_bg;
            let from = if is_spread { GroupIndex(1) } else { backup };
            let (Some(home), Some(copy)) =
                (heads.descriptor_block(index), heads.descriptor_block_copy(index, from))
            else {
                break;
            };
            if copy.0 >= sb.blocks_count || home.0 >= sb.blocks_count {
                break;
            }
            let mut bytes = vec![0; sb.block_size.len()];
            draft.read_at(copy.0.saturating_mul(size), &mut bytes)?;
            if !are_descriptors(sb, index, &bytes) {
                break;
            }
            blocks.push((home.0, bytes));
        }
        if blocks.len() == sb.descriptor_blocks() as usize {
            return Ok(Some(blocks));
        }
    }
    Ok(None)
}

/// The descriptor of the only group, by the copy behind it.
fn spare_descriptor(draft: &Draft, sb: &Superblock) -> Result<Option<TableBlocks>, RepairError> {
    let size = usize::from(sb.desc_size).max(32);
    let Some(home) = Heads::of(sb).descriptor_block(0) else { return Ok(None) };
    let mut bytes = vec![0; sb.block_size.len()];
    if home.0 >= sb.blocks_count || 2 * size > bytes.len() {
        return Ok(None);
    }
    draft.read_at(home.0.saturating_mul(u64::from(sb.block_size.bytes())), &mut bytes)?;
    bytes.copy_within(size..2 * size, 0);
    bytes[size..2 * size].fill(0);
    Ok(are_descriptors(sb, 0, &bytes).then(|| vec![(home.0, bytes)]))
}

/// Returns whether a block of the table has descriptors that can be, with right checksums.
fn are_descriptors(sb: &Superblock, index: u32, bytes: &[u8]) -> bool {
    let size = usize::from(sb.desc_size).max(32);
    let kind = GroupChecksum::of(sb);
    let first = index.saturating_mul(sb.descriptors_per_block());
    bytes.chunks_exact(size).zip(first..sb.group_count).all(|(raw, group)| {
        let group = GroupIndex(group);
        GroupDescriptor::verify_checksum(group, &kind, raw).is_ok()
            && GroupDescriptor::decode(raw)
                .is_ok_and(|descriptor| descriptor.check(group, sb).is_ok())
    })
}

/// The superblock as the draft has it.
pub(crate) fn reread(draft: &Draft) -> Result<Superblock, RepairError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    draft.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    Superblock::decode_unverified(&bytes).map_err(|error| RepairError::Check(error.to_string()))
}

/// Decodes a superblock after correcting fields whose value follows from others.
fn patched(
    draft: &Draft,
    bytes: &mut [u8; SUPERBLOCK_BYTES],
    notes: &mut Vec<(&'static str, String)>,
) -> Result<Result<Superblock, SuperblockError>, RepairError> {
    if let Some(later) = of_a_later_revision(bytes) {
        *bytes = later;
        let text = "revision 0 has neither a first inode nor a size of inodes, and both are there";
        notes.push(("superblock", text.to_owned()));
    }
    for _attempt in 0..8 {
        let error = match Superblock::decode_unverified(bytes) {
            Ok(sb) => {
                let is_inside = sb.features.has_compat(Compat::HAS_JOURNAL)
                    && sb.journal_inode == Ino::JOURNAL
                    && (sb.journal_uuid != [0; 16] || sb.journal_device != 0);
                if !is_inside {
                    return Ok(Ok(sb));
                }
                // Linux mounts nothing that has both, and e2fsck looks for the other device.
                put(bytes, 0xd0, &[0; 16]);
                put(bytes, 0xe4, &[0; 4]);
                let text = "the journal is inode 8, and a device with another is named";
                notes.push(("superblock", text.to_owned()));
                continue;
            }
            Err(error) => error,
        };
        match &error {
            SuperblockError::InodeCount { found, groups, per_group, .. }
                if !per_group.is_multiple_of(8)
                    && u64::from(*found).is_multiple_of(groups.saturating_mul(8)) =>
            {
                // Bitmaps of inodes are whole bytes: what groups have each is wrong, and not the sum.
                let right = u32::try_from(u64::from(*found) / groups).unwrap_or(0);
                put(bytes, 0x28, &right.to_le_bytes());
            }
            SuperblockError::InodeCount { found, expected, .. } => {
                // It is not the count that is wrong, and all tables would be read with another length.
                if backup(draft)?.is_some_and(|other| other.inodes_count == *found) {
                    return Ok(Err(error));
                }
                let Ok(right) = u32::try_from(*expected) else { return Ok(Err(error)) };
                put(bytes, 0, &right.to_le_bytes());
            }
            SuperblockError::FirstDataBlock { expected, .. } => {
                put(bytes, 0x14, &expected.to_le_bytes());
            }
            SuperblockError::TooLarge { field, .. } => {
                let at = match *field {
                    "s_r_blocks_count" => 0x8,
                    "s_free_blocks_count" => 0xc,
                    "s_free_inodes_count" => 0x10,
                    "s_first_meta_bg" => 0x104,
                    "s_reserved_gdt_blocks" => 0xce,
                    "s_min_extra_isize" => 0x15c,
                    "s_want_extra_isize" => 0x15e,
                    "s_log_groups_per_flex" => {
                        // Nothing follows from it but where new things go: what mke2fs chooses.
                        put(bytes, 0x174, &[4]);
                        notes.push(("superblock", error.to_string()));
                        continue;
                    }
                    "s_def_hash_version" => {
                        // Directories that have an index say which hash it has: what mke2fs chooses.
                        put(bytes, 0xfc, &[DefaultHash::HalfMd4.to_raw()]);
                        notes.push(("superblock", error.to_string()));
                        continue;
                    }
                    "s_first_ino" => {
                        put(bytes, 0x54, &OLD_FIRST_INO.to_le_bytes());
                        notes.push(("superblock", error.to_string()));
                        continue;
                    }
                    _ => return Ok(Err(error)),
                };
                let width = if matches!(at, 0xce | 0x15c | 0x15e) { 2 } else { 4 };
                put(bytes, at, &[0; 4][..width]);
                let high = match at {
                    0x8 => 0x154,
                    0xc => 0x158,
                    _ => 0,
                };
                if high != 0 {
                    put(bytes, high, &[0; 4]);
                }
            }
            SuperblockError::PerGroup { field: "s_first_ino", .. } => {
                put(bytes, 0x54, &OLD_FIRST_INO.to_le_bytes());
            }
            SuperblockError::ChecksumType { .. } => put(bytes, 0x175, &[1]),
            SuperblockError::FeatureConflict { one, other } => {
                // The one that others do not build on.
                let (at, bit) = match (*one, *other) {
                    ("resize_inode", _) | (_, "resize_inode") => (0x5c, 0x10u32),
                    ("uninit_bg", _) | (_, "uninit_bg") => (0x64, 0x10),
                    _ => return Ok(Err(error)),
                };
                let word = u32_at(bytes, at) & !bit;
                put(bytes, at, &word.to_le_bytes());
                if at == 0x5c {
                    put(bytes, 0xce, &[0; 2]);
                }
            }
            _ => return Ok(Err(error)),
        }
        notes.push(("superblock", error.to_string()));
    }
    Ok(Superblock::decode_unverified(bytes))
}

/// Returns a superblock of revision 0 as one of revision 1, if it has what only that has: with revision 0, all features
/// would be off, and inodes be read as if they were small. Sizes that revision 0 has anyway, which mke2fs writes down for
/// it, too, say nothing.
fn of_a_later_revision(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<[u8; SUPERBLOCK_BYTES]> {
    let (first_inode, inode_size) = (u32_at(bytes, 0x54), u16_at(bytes, 0x58));
    let has_sizes = first_inode >= OLD_FIRST_INO && inode_size != 0;
    let has_features = [0x5c, 0x60, 0x64].iter().any(|at| u32_at(bytes, *at) != 0);
    let is_usual = first_inode == OLD_FIRST_INO && inode_size == OLD_INODE_SIZE;
    if u32_at(bytes, 0x4c) != 0 || !has_sizes || is_usual && !has_features {
        return None;
    }
    let mut later = *bytes;
    put(&mut later, 0x4c, &1u32.to_le_bytes());
    Superblock::decode_unverified(&later).is_ok().then_some(later)
}

/// Refuses a file system that is larger than its device.
fn fits(draft: &Draft, sb: &Superblock) -> Result<(), RepairError> {
    let wanted = sb.blocks_count.saturating_mul(u64::from(sb.block_size.bytes()));
    let found = draft.size_bytes();
    if wanted > found {
        return Err(RepairError::DeviceTooSmall { wanted, found });
    }
    Ok(())
}

/// Returns whether a superblock with a wrong checksum is otherwise believable: its own backup says the same of what
/// does not change, or it fits the device and its descriptors.
fn is_consistent(draft: &Draft, sb: &Superblock) -> Result<bool, RepairError> {
    let wanted = sb.blocks_count.saturating_mul(u64::from(sb.block_size.bytes()));
    if wanted > draft.size_bytes() {
        return Ok(false);
    }
    let Some(other) = backup(draft)? else { return Ok(false) };
    Ok(same_shape(sb, &other))
}

fn same_shape(a: &Superblock, b: &Superblock) -> bool {
    let shape = |sb: &Superblock| {
        let numbers = [
            u64::from(sb.inodes_count),
            sb.blocks_count,
            u64::from(sb.block_size.bytes()),
            u64::from(sb.blocks_per_group),
            u64::from(sb.inodes_per_group),
            u64::from(sb.inode_size),
            u64::from(sb.first_inode.0),
            u64::from(sb.desc_size),
            u64::from(sb.first_meta_bg),
            u64::from(sb.reserved_gdt_blocks),
        ];
        // Bits that change while a file system is in use.
        let often = Features::from_words(0, 0x4, 0x1_0000 | 0x2);
        (numbers, sb.features.without(&often), sb.uuid, sb.hash_seed)
    };
    shape(a) == shape(b)
}

/// A backup: where they usually are for each block size, else wherever there is one.
pub(crate) fn backup(draft: &Draft) -> Result<Option<Superblock>, RepairError> {
    for log in 0..=6u32 {
        let size = 1024u64 << log;
        let first = u64::from(log == 0);
        for group in [1u64, 3, 5, 7, 9, 25, 27, 49] {
            let at = (first + group * size * 8).saturating_mul(size);
            if let Some(sb) = candidate(draft, at)? {
                return Ok(Some(sb));
            }
        }
    }
    let end = draft.size_bytes().min(SEARCH_BYTES);
    let mut chunk = vec![0; SEARCH_CHUNK];
    let mut at = 0;
    while at < end {
        let take = (end - at).min(SEARCH_CHUNK as u64) as usize;
        let Some(bytes) = chunk.get_mut(..take) else { break };
        draft.read_at(at, bytes)?;
        for within in (0..take).step_by(1024) {
            let place = at + within as u64;
            if place > SUPERBLOCK_OFFSET
                && u16_at(bytes, within + 0x38) == MAGIC
                && let Some(sb) = candidate(draft, place)?
            {
                return Ok(Some(sb));
            }
        }
        at += take as u64;
    }
    Ok(None)
}

/// The superblock at byte `at`, if it is a backup that belongs there.
fn candidate(draft: &Draft, at: u64) -> Result<Option<Superblock>, RepairError> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    if at.saturating_add(SUPERBLOCK_BYTES as u64) > draft.size_bytes() {
        return Ok(None);
    }
    draft.read_at(at, &mut bytes)?;
    if u16_at(&bytes, 0x38) != MAGIC || u32_at(&bytes, 4) == 0 {
        return Ok(None);
    }
    let Ok(sb) = Superblock::decode(&bytes) else { return Ok(None) };
    let fits =
        sb.blocks_count.saturating_mul(u64::from(sb.block_size.bytes())) <= draft.size_bytes();
    // Old programs did not write the number of the group into copies.
    let block = at / u64::from(sb.block_size.bytes());
    let found = sb.group_of_block(FsBlock(block)).filter(|(_, within)| *within == 0);
    let group = found.map_or(GroupIndex(0), |(group, _)| group);
    let is_home =
        at.is_multiple_of(u64::from(sb.block_size.bytes())) && Heads::of(&sb).has_superblock(group);
    let known = sb.features.without(&CHECKABLE).is_empty();
    Ok((group.0 != 0 && fits && known && is_home).then_some(sb))
}
