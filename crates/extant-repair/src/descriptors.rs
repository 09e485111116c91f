//! Group descriptors: from backups, and other places for what lies where it cannot.

use std::collections::BTreeSet;

use extant_base::{FsBlock, GroupIndex};
use extant_check::Problem;
use extant_format::features::Incompat;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};

use crate::error::{Fixed, Trouble};
use crate::state::State;

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
fn misplaced(problem: &Problem) -> Option<u32> {
    match problem {
        Problem::Group(
            GroupError::Checksum { group, .. } | GroupError::OutOfRange { group, .. },
        )
        | Problem::OutsideGroup { group, .. }
        | Problem::MetadataOverlap { group, .. } => Some(group.0),
        _ => None,
    }
}

/// Gives the groups that these problems are about the places that their backups name. Returns whether that
/// changed any: then nothing else is to be moved before everything was examined again. What is free was
/// found out by the wrong places, and what overlaps too.
pub(crate) fn renew(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let named: BTreeSet<u32> = problems.iter().filter_map(misplaced).collect();
    let is_impossible =
        |problem: &Problem| matches!(problem, Problem::Group(GroupError::OutOfRange { .. }));
    // Without checksums nothing tells which of the others are right: what one says may be possible by chance.
    let are_all_doubtful =
        state.group_checksum == GroupChecksum::None && problems.iter().any(is_impossible);
    let groups: Box<dyn Iterator<Item = u32>> = match are_all_doubtful {
        true => Box::new(0..state.sb.group_count),
        false => Box::new(named.into_iter()),
    };
    let mut any = false;
    for group in groups {
        // One that cannot be read is named when it is its turn.
        let Ok(descriptor) = state.group(group) else { continue };
        let Some(backup) = from_backup(state, group)? else { continue };
        let pieces = [Piece::BlockBitmap, Piece::InodeBitmap, Piece::Table];
        if pieces.iter().all(|piece| piece.get(&backup) == piece.get(&descriptor)) {
            continue;
        }
        fix_checksum(state, group)?;
        any = true;
    }
    Ok(any)
}

/// Sets one descriptor right.
pub(crate) fn fix(state: &mut State, problem: &Problem) -> Fixed {
    match problem {
        Problem::Group(GroupError::Checksum { group, .. }) => fix_checksum(state, group.0),
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

fn fix_checksum(state: &mut State, group: u32) -> Fixed {
    let mut descriptor = state.group(group)?;
    if let Some(backup) = from_backup(state, group)? {
        for piece in [Piece::BlockBitmap, Piece::InodeBitmap, Piece::Table] {
            piece.set(&mut descriptor, piece.get(&backup));
        }
    }
    // A table that was never written is one of zeros only where its flag may still be believed; e2fsck
    // reads all of it, too.
    let was_uninit = descriptor.flags.contains(GroupFlags::INODE_UNINIT);
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
