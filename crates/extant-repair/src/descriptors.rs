//! Group descriptors: from backups, as mke2fs places things, or by the inodes found, and other places for what lies where
//! it cannot.

use std::collections::BTreeSet;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_block::BlockDevice;
use extant_check::Problem;
use extant_format::features::Incompat;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};
use extant_format::inode::InodeFlags;
use extant_format::record::{Record, u32_at};
use extant_layout::{Geometry, mke2fs_geometry, table_score};

use crate::error::{Fixed, Trouble};
use crate::state::State;

/// Blocks of a table that are looked at for directories, and directories that are looked at.
const LOOKED_BLOCKS: u64 = 512;
const DIRECTORIES_MAX: u32 = 32;

/// One of the three places that a descriptor names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Piece {
    BlockBitmap,
    InodeBitmap,
    Table,
}

impl Piece {
    fn of(what: &str) -> Option<Piece> {
        match what {
            "block bitmap" => Some(Piece::BlockBitmap),
            "inode bitmap" => Some(Piece::InodeBitmap),
            "inode table" => Some(Piece::Table),
            _ => None,
        }
    }

    fn get(self, descriptor: &GroupDescriptor) -> u64 {
        match self {
            Piece::BlockBitmap => descriptor.block_bitmap.0,
            Piece::InodeBitmap => descriptor.inode_bitmap.0,
            Piece::Table => descriptor.inode_table.0,
        }
    }

    fn set(self, descriptor: &mut GroupDescriptor, block: u64) {
        match self {
            Piece::BlockBitmap => descriptor.block_bitmap = FsBlock(block),
            Piece::InodeBitmap => descriptor.inode_bitmap = FsBlock(block),
            Piece::Table => descriptor.inode_table = FsBlock(block),
        }
    }
}

/// The group whose places a problem is about.
pub(crate) fn misplaced(problem: &Problem) -> Option<u32> {
    match problem {
        Problem::Group(
            GroupError::Checksum { group, .. } | GroupError::OutOfRange { group, .. },
        )
        | Problem::OutsideGroup { group, .. }
        | Problem::MetadataOverlap { group, .. } => Some(group.0),
        _ => None,
    }
}

/// A descriptor with other places than a group has now.
struct Better {
    descriptor: GroupDescriptor,
    /// It was a backup; else nothing but the superblock and what lies there speaks for it.
    is_backup: bool,
}

/// Gives the groups that these problems are about the places that their backups name, or else those where mke2fs would
/// have put things and an inode table is, or else the table that is found by its inodes. Returns whether that changed any: then nothing else is to be moved before
/// everything was examined again. What is free was found out by the wrong places, and what overlaps too.
pub(crate) fn renew(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let named: BTreeSet<u32> = problems.iter().filter_map(misplaced).collect();
    let is_impossible =
        |problem: &Problem| matches!(problem, Problem::Group(GroupError::OutOfRange { .. }));
    // Without checksums nothing tells which of the others are right: what one says may be possible by chance.
    let are_all_doubtful =
        state.group_checksum == GroupChecksum::None && problems.iter().any(is_impossible);
    // Of two that name one place, the other may be the one that is wrong.
    let is_overlap = |problem: &Problem| matches!(problem, Problem::MetadataOverlap { .. });
    let overlaps = problems.iter().any(is_overlap);
    let groups: Box<dyn Iterator<Item = u32>> = match are_all_doubtful || overlaps {
        true => Box::new(0..state.sb.group_count),
        false => Box::new(named.iter().copied()),
    };
    let geometry = mke2fs_geometry(&state.sb);
    let mut any = false;
    for group in groups {
        // One that cannot be read is named when it is its turn.
        let Ok(descriptor) = state.group(group) else { continue };
        let Some(better) = better(state, group, geometry.as_ref())? else { continue };
        if has_places_of(&better.descriptor, &descriptor) {
            continue;
        }
        let is_doubtful = are_all_doubtful || named.contains(&group);
        if !is_doubtful && !is_at_least_as_good(state, group, &better, &descriptor) {
            continue;
        }
        move_to(state, group, Some(better))?;
        any = true;
    }
    Ok(any)
}

/// Returns whether a backup says of a group, about which there is no problem of its own, what the inodes there do not
/// contradict.
fn is_at_least_as_good(state: &State, group: u32, better: &Better, own: &GroupDescriptor) -> bool {
    better.is_backup
        && evidence(state, group, better.descriptor.inode_table.0)
            >= evidence(state, group, own.inode_table.0)
}

/// What speaks for an inode table: directories that say by their name `.` which inode they are, less those that say
/// another one; then how much it looks like a table, which one that is shifted by a few blocks does as well.
fn evidence(state: &State, group: u32, start: u64) -> (i64, i64) {
    (named_directories(state, group, start), score(state, group, start))
}

fn named_directories(state: &State, group: u32, start: u64) -> i64 {
    let len = u64::from(state.sb.inode_table_blocks());
    if !state.in_range(start, len) {
        return i64::MIN;
    }
    let size = state.record_bytes();
    let per_block = (state.block_bytes() / size.max(1)) as u32;
    let first = group.wrapping_mul(state.sb.inodes_per_group).wrapping_add(1);
    let (mut count, mut seen) = (0, 0);
    for block in 0..len.min(LOOKED_BLOCKS) {
        let Ok(bytes) = state.read_block(start + block) else { continue };
        for (raw, slot) in bytes.chunks_exact(size).zip(0u32..) {
            let ino =
                Ino(first.wrapping_add((block as u32).wrapping_mul(per_block)).wrapping_add(slot));
            let record = Record { ino, bytes: raw.to_vec() };
            if !record.is_dir() || record.links() == 0 || record.has(InodeFlags::INLINE_DATA) {
                continue;
            }
            let Ok(map) = state.read_map(&record) else { continue };
            let Some(extent) = map.extents.first() else { continue };
            let Ok(entries) = state.read_block(extent.device_start.0) else { continue };
            // A name of one byte, which is a dot.
            let is_dot = entries.get(6) == Some(&1) && entries.get(8) == Some(&b'.');
            count += if is_dot && u32_at(&entries, 0) == ino.0 { 1 } else { -1 };
            seen += 1;
            if seen == DIRECTORIES_MAX {
                return count;
            }
        }
    }
    count
}

/// Groups whose backup names another table than they do, and there, rather than where they say, are inodes of this
/// group; with what is to be said of each.
pub(crate) fn contradicted(state: &State) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    let Some(backup) = state.heads.superblock_groups().nth(1) else { return found };
    let per_block = state.sb.descriptors_per_block().max(1);
    let size = usize::from(state.sb.desc_size).max(32);
    for index in 0..state.sb.descriptor_blocks() {
        let copy = state.heads.descriptor_block_copy(index, backup);
        let Some(block) = copy.filter(|block| state.in_range(block.0, 1)) else { continue };
        let Ok(bytes) = state.read_block(block.0) else { continue };
        let first = index.saturating_mul(per_block);
        for (raw, group) in bytes.chunks_exact(size).zip(first..state.sb.group_count) {
            let Some(own) = state.groups.get(group as usize) else { break };
            let Ok(other) = GroupDescriptor::decode(raw) else { continue };
            let (at, instead) = (own.inode_table.0, other.inode_table.0);
            if at == instead || evidence(state, group, instead) <= evidence(state, group, at) {
                continue;
            }
            if matches!(from_backup(state, group), Ok(Some(better)) if better.inode_table.0 == instead)
            {
                found.push((group, format!(
                    "group {group}: its inode table is said to be at block {at}; its inodes are at block {instead}, as a copy says"
                )));
            }
        }
    }
    found
}

/// Gives a group the places that its backup names.
pub(crate) fn take_copy(state: &mut State, group: u32) -> Fixed {
    let better = from_backup(state, group)?;
    move_to(state, group, better.map(|descriptor| Better { descriptor, is_backup: true }))
}

/// Has the group with the journal's inode read as by a better descriptor, if there is one: what waits in the log may be
/// what sets the descriptor right. Nothing is written.
pub(crate) fn renew_for_journal(state: &mut State) -> Fixed {
    let group = state.sb.journal_inode.0.saturating_sub(1) / state.sb.inodes_per_group.max(1);
    let Ok(descriptor) = state.group(group) else { return Ok(()) };
    let geometry = mke2fs_geometry(&state.sb);
    let Some(better) = better(state, group, geometry.as_ref())? else { return Ok(()) };
    let own = evidence(state, group, descriptor.inode_table.0);
    let is_better = evidence(state, group, better.descriptor.inode_table.0) > own;
    if is_better && let Some(slot) = state.groups.get_mut(group as usize) {
        *slot = better.descriptor;
    }
    Ok(())
}

fn has_places_of(one: &GroupDescriptor, other: &GroupDescriptor) -> bool {
    let pieces = [Piece::BlockBitmap, Piece::InodeBitmap, Piece::Table];
    pieces.iter().all(|piece| piece.get(one) == piece.get(other))
}

fn better(state: &State, group: u32, geometry: Option<&Geometry>) -> Fixed<Option<Better>> {
    if let Some(descriptor) = from_backup(state, group)? {
        return Ok(Some(Better { descriptor, is_backup: true }));
    }
    let found = match computed(state, group, geometry)? {
        Some(descriptor) => Some(descriptor),
        None => searched(state, group)?,
    };
    Ok(found.map(|descriptor| Better { descriptor, is_backup: false }))
}

/// Returns the descriptor of a group with the place where its inodes were found, if there are none where the group has
/// its table now. Bitmaps stay where they are: they are computed, and moved if they lie over something.
fn searched(state: &State, group: u32) -> Fixed<Option<GroupDescriptor>> {
    let own = state.group(group)?;
    if score(state, group, own.inode_table.0) > 0 || sabotage("repair.descriptors.not-searched") {
        return Ok(None);
    }
    let found =
        state.tables.borrow_mut().find(&state.sb, GroupIndex(group), &mut |block, bytes| {
            state.draft.read_at(block.saturating_mul(bytes.len() as u64), bytes).is_ok()
        });
    Ok(found.map(|start| {
        let mut descriptor = own;
        descriptor.inode_table = FsBlock(start);
        descriptor
    }))
}

/// Returns the descriptor of a group with the places that mke2fs gives it, if there is an inode table rather than
/// where the group has it now.
fn computed(
    state: &State,
    group: u32,
    geometry: Option<&Geometry>,
) -> Fixed<Option<GroupDescriptor>> {
    let Some(geometry) = geometry.filter(|geometry| group < geometry.group_count) else {
        return Ok(None);
    };
    let own = state.group(group)?;
    let places = geometry.group(GroupIndex(group));
    let table = places.inode_table;
    if !state.in_range(table.start, table.end.saturating_sub(table.start))
        || sabotage("repair.descriptors.not-computed")
    {
        return Ok(None);
    }
    // Zeros only are a table that was never written; the one of zeros that would be made else is no better.
    let found = score(state, group, table.start);
    if found < 0 || found <= score(state, group, own.inode_table.0) {
        return Ok(None);
    }
    let mut descriptor = own;
    descriptor.block_bitmap = FsBlock(places.block_bitmap);
    descriptor.inode_bitmap = FsBlock(places.inode_bitmap);
    descriptor.inode_table = FsBlock(table.start);
    Ok(can_be(state, group, &descriptor).then_some(descriptor))
}

/// Says that the inode table of a group is nowhere, if that is so: neither where the group has it, nor where a backup or
/// the way of mke2fs says, nor elsewhere in its flex group. Then the group gets an empty one.
pub(crate) fn lost_table(state: &State, group: u32) -> Option<String> {
    let own = state.group(group).ok()?;
    if score(state, group, own.inode_table.0) >= 0 {
        return None;
    }
    let geometry = mke2fs_geometry(&state.sb);
    better(state, group, geometry.as_ref()).ok()?.is_none().then(|| {
        format!(
            "the inode table of group {group} is neither where a backup says, nor where mke2fs puts it, nor \
             elsewhere in its group: the group gets an empty one, and what leads to its {} inodes is taken out; extant salvage, before that, copies \
             what can be read, and names what cannot",
            state.sb.inodes_per_group
        )
    })
}

/// How much the blocks from `start` on look like the inode table of a group; least for those that it cannot have.
fn score(state: &State, group: u32, start: u64) -> i64 {
    let len = u64::from(state.sb.inode_table_blocks());
    if !state.in_range(start, len) {
        return i64::MIN;
    }
    table_score(&state.sb, GroupIndex(group), start, &mut |block, bytes| {
        state.draft.read_at(block.saturating_mul(bytes.len() as u64), bytes).is_ok()
    })
}

/// Sets one descriptor right.
pub(crate) fn fix(state: &mut State, problem: &Problem) -> Fixed {
    match problem {
        Problem::Group(GroupError::Checksum { group, .. }) => move_to(state, group.0, None),
        Problem::Group(GroupError::OutOfRange { group, what, .. })
        | Problem::OutsideGroup { group, what, .. } => fix_place(state, group.0, what, false),
        Problem::MetadataOverlap { group, what, .. } => fix_place(state, group.0, what, true),
        _ => Err(Trouble::cannot("no rule for this")),
    }
}

/// Returns the descriptor of a group from a backup, if its places are possible and its checksum, if
/// there is one, matches.
fn from_backup(state: &State, group: u32) -> Fixed<Option<GroupDescriptor>> {
    let per_block = state.sb.descriptors_per_block().max(1);
    let size = usize::from(state.sb.desc_size).max(32);
    let backups: Vec<GroupIndex> = state.heads.superblock_groups().skip(1).take(3).collect();
    for backup in backups {
        let Some(block) = state.heads.descriptor_block_copy(group / per_block, backup) else {
            continue;
        };
        if !state.in_range(block.0, 1) {
            continue;
        }
        let bytes = state.read_block(block.0)?;
        let at = (group % per_block) as usize * size;
        let Some(raw) = bytes.get(at..at + size) else { continue };
        let sums = &state.group_checksum;
        let is_right = GroupDescriptor::verify_checksum(GroupIndex(group), sums, raw).is_ok();
        if let Ok(descriptor) = GroupDescriptor::decode(raw)
            && is_right
            && can_be(state, group, &descriptor)
        {
            return Ok(Some(descriptor));
        }
    }
    Ok(None)
}

fn can_be(state: &State, group: u32, descriptor: &GroupDescriptor) -> bool {
    !matches!(
        descriptor.check(GroupIndex(group), &state.sb),
        Err(GroupError::OutOfRange { .. } | GroupError::Checksum { .. })
    )
}

/// Clears the marks of unused parts, which are not trusted any more.
fn distrust(descriptor: &mut GroupDescriptor) {
    descriptor.flags.remove(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
    descriptor.itable_unused = 0;
}

/// Writes the descriptor anew, with better places if there are any.
fn move_to(state: &mut State, group: u32, better: Option<Better>) -> Fixed {
    let mut descriptor = state.group(group)?;
    let is_believed = better.as_ref().is_none_or(|better| better.is_backup);
    if let Some(better) = better {
        for piece in [Piece::BlockBitmap, Piece::InodeBitmap, Piece::Table] {
            piece.set(&mut descriptor, piece.get(&better.descriptor));
        }
    }
    // A table that was never written is one of zeros only where its flag may still be believed; e2fsck
    // reads all of it, too.
    let was_uninit = descriptor.flags.contains(GroupFlags::INODE_UNINIT) && is_believed;
    distrust(&mut descriptor);
    if was_uninit && state.group_checksum != GroupChecksum::None {
        clear_unwritten_table(state, group, &descriptor)?;
    }
    state.set_group(group, descriptor)
}

/// The bitmap of a group that had none is one of zeros.
fn clear_unwritten_table(state: &State, _group: u32, descriptor: &GroupDescriptor) -> Fixed {
    if state.in_range(descriptor.inode_bitmap.0, 1) {
        state.write_block(descriptor.inode_bitmap.0, &vec![0; state.block_bytes()])?;
    }
    Ok(())
}

fn fix_place(state: &mut State, group: u32, what: &str, overlaps: bool) -> Fixed {
    let Some(piece) = Piece::of(what) else {
        return Err(Trouble::cannot(format!("{what} of group {group} cannot be moved")));
    };
    let mut descriptor = state.group(group)?;
    let old = piece.get(&descriptor);
    let len = match piece {
        Piece::Table => u64::from(state.sb.inode_table_blocks()),
        _ => 1,
    };
    let new = take_near(state, group, len)?;
    let bytes = state.block_bytes();
    if piece == Piece::Table && (overlaps || state.in_range(old, len)) && state.in_range(old, len) {
        for block in 0..len {
            let copy = state.read_block(old + block)?;
            state.write_block(new + block, &copy)?;
        }
    } else {
        for block in 0..len {
            state.write_block(new + block, &vec![0; bytes])?;
        }
    }
    piece.set(&mut descriptor, new);
    match piece {
        Piece::BlockBitmap => descriptor.flags.remove(GroupFlags::BLOCK_UNINIT),
        Piece::InodeBitmap => descriptor.flags.remove(GroupFlags::INODE_UNINIT),
        Piece::Table => {}
    }
    state.set_group(group, descriptor)
}

/// Free blocks in a row: in the group, or with `flex_bg` anywhere.
fn take_near(state: &mut State, group: u32, len: u64) -> Fixed<u64> {
    let bits = state.sb.cluster_bits();
    let clusters = len.div_ceil(1 << bits);
    let start = state.sb.group_first_block(GroupIndex(group)).map_or(0, |block| block.0);
    let from = state.cluster(start);
    let to = from + u64::from(state.sb.group_clusters(GroupIndex(group)));
    let anywhere = state.sb.features.has_incompat(Incompat::FLEX_BG);
    let found = state
        .space
        .take_within(clusters, from..to)
        .or_else(|| if anywhere { state.space.take(clusters) } else { None })
        .ok_or(Trouble::Full("block"))?;
    Ok((found << bits) + u64::from(state.sb.first_data_block))
}
