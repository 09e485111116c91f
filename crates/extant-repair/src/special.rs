//! Files whose contents are metadata: orphans, resize inode, quota; and inodes that a field names.

use extant_base::{FsBlock, Ino};
use extant_check::Problem;
use extant_format::extent::{Extent, ExtentState};
use extant_format::features::Feature;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::orphan::OrphanBlock;
use extant_format::quota::{QuotaEntry, QuotaFile, QuotaKind};
use extant_format::superblock::{OLD_FIRST_INO, Superblock};

use crate::error::{Fixed, Trouble};
use crate::state::State;
use crate::{inodes, journal, lost};
use extant_change::end_of;
use extant_format::record::{self, put, u32_at};

/// What the checker says of an orphan file whose blocks are not those of its size.
pub(crate) const ORPHAN_SIZE: &str = "the orphan file has other blocks";
/// What the checker says of a quota file that is longer than its blocks.
pub(crate) const QUOTA_SIZE: &str = "it is no quota file of this size";
/// Largest quota file that is read.
const QUOTA_MAX_BYTES: u64 = 256 << 20;
/// Reserved inode of what the boot loader begins with.
const BOOT_LOADER: Ino = Ino(5);
/// Blocks of a new orphan file.
const ORPHAN_BLOCKS: u32 = 32;

/// Finishes what was begun with inodes on the list of orphans and in their file, and empties both.
pub(crate) fn finish_orphans(state: &mut State) -> Fixed {
    let orphans: Vec<Ino> =
        state.exam.inodes().filter(|view| view.is_orphan).map(|view| view.ino).collect();
    for ino in orphans {
        let mut record = state.load(ino)?;
        if record.links() == 0 {
            state.delete_inode(&mut record)?;
        } else {
            shorten(state, &mut record)?;
            record.put32(record::DTIME, 0);
            state.store(&record)?;
        }
    }
    forget_orphans(state)
}

/// Cuts a file off where it ends.
fn shorten(state: &mut State, record: &mut record::Record) -> Fixed {
    if record.kind() != Some(FileKind::Regular) || !state.has_map(record) {
        return Ok(());
    }
    let map = state.read_map(record)?;
    if map.is_damaged {
        return Ok(());
    }
    let blocks = record.size().div_ceil(state.block_bytes() as u64);
    if map.extents.iter().all(|extent| end_of(extent) <= blocks) {
        return Ok(());
    }
    let mut extents: Vec<Extent> = Vec::new();
    for mut extent in map.extents {
        let start = u64::from(extent.file_start.0);
        if start >= blocks {
            break;
        }
        extent.len.0 = u64::from(extent.len.0).min(blocks - start) as u32;
        extents.push(extent);
    }
    state.write_map(record, &extents)
}

/// Empties the list of orphans and their file.
pub(crate) fn forget_orphans(state: &mut State) -> Fixed {
    state.sb.last_orphan = 0;
    if state.sb.features.has(Feature::ORPHAN_FILE) {
        empty_orphan_file(state)?;
        state.sb.features.remove(Feature::ORPHAN_PRESENT);
    }
    state.write_superblock()
}

fn empty_orphan_file(state: &mut State) -> Fixed {
    let ino = state.sb.orphan_file_inode;
    let record = state.load(ino)?;
    if record.kind() != Some(FileKind::Regular) || is_someones(state, ino)? {
        return Ok(());
    }
    let map = state.read_map(&record)?;
    for extent in &map.extents {
        for at in 0..u64::from(extent.len.0) {
            write_orphan_block(state, &record, extent.device_start.0 + at)?;
        }
    }
    Ok(())
}

fn write_orphan_block(state: &State, record: &record::Record, block: u64) -> Fixed {
    let size = state.sb.block_size;
    let mut bytes = vec![0; size.len()];
    OrphanBlock::empty(size)
        .encode(size, FsBlock(block), state.csum_seed_of(record), &mut bytes)
        .map_err(|error| Trouble::cannot(error.to_string()))?;
    state.write_block(block, &bytes)
}

/// Finishes the orphans and gives the file back that listed them: without a journal nothing writes it.
fn remove_orphan_file(state: &mut State) -> Fixed {
    finish_orphans(state)?;
    give_orphan_file_back(state)
}

fn give_orphan_file_back(state: &mut State) -> Fixed {
    let (ino, size) = (state.sb.orphan_file_inode, state.sb.block_size);
    if ino.0 >= state.sb.first_inode.0 && ino.0 <= state.sb.inodes_count {
        give_back(state, ino, |block, bytes| {
            OrphanBlock::decode(size, FsBlock(block), None, bytes).is_ok()
        })?;
    }
    without_orphan_file(state)
}

/// Returns whether an inode in use is another's than the orphan file's, whatever the superblock says: not one of its blocks
/// is one of an orphan file.
fn is_someones(state: &State, ino: Ino) -> Fixed<bool> {
    let record = state.load(ino)?;
    if record.kind().is_none() || record.links() == 0 {
        return Ok(false);
    }
    if record.kind() != Some(FileKind::Regular) || !state.has_map(&record) {
        return Ok(true);
    }
    let size = state.sb.block_size;
    for extent in &state.read_map(&record)?.extents {
        for at in 0..u64::from(extent.len.0).min(u64::from(ORPHAN_BLOCKS)) {
            let block = extent.device_start.0 + at;
            let bytes = state.read_block(block)?;
            if OrphanBlock::decode(size, FsBlock(block), None, &bytes).is_ok() {
                return Ok(false);
            }
        }
    }
    Ok(true)
}

/// Returns whether a file begins with a number.
fn begins_with(state: &State, ino: Ino, magic: u32) -> Fixed<bool> {
    let record = state.load(ino)?;
    if record.kind() != Some(FileKind::Regular) || !state.has_map(&record) {
        return Ok(false);
    }
    let first = state.read_map(&record)?.extents.first().map(|extent| extent.device_start.0);
    let Some(block) = first else { return Ok(false) };
    Ok(u32_at(&state.read_block(block)?, 0) == magic)
}

/// Gives a file back that the superblock names without the feature. One that begins in another way stays: a number in
/// the superblock does not make it nobody's.
fn give_back(state: &mut State, ino: Ino, is_one: impl Fn(u64, &[u8]) -> bool) -> Fixed {
    let mut record = state.load(ino)?;
    if record.kind() != Some(FileKind::Regular) || !state.has_map(&record) {
        return Ok(());
    }
    let first = state.read_map(&record)?.extents.first().map(|extent| extent.device_start.0);
    let Some(block) = first else { return Ok(()) };
    let bytes = state.read_block(block)?;
    if is_one(block, &bytes) {
        state.delete_inode(&mut record)?;
    }
    Ok(())
}

fn without_orphan_file(state: &mut State) -> Fixed {
    state.sb.orphan_file_inode = Ino(0);
    state.sb.features.remove(Feature::ORPHAN_FILE);
    state.sb.features.remove(Feature::ORPHAN_PRESENT);
    state.write_superblock()
}

/// Makes the orphan file anew; without room, the feature is taken away.
fn make_orphan_file(state: &mut State) -> Fixed {
    let ino = match state.sb.orphan_file_inode {
        ino if (state.sb.first_inode..=Ino(state.sb.inodes_count)).contains(&ino)
            && !is_someones(state, ino)? =>
        {
            ino
        }
        _ => state.take_inode(state.sb.first_inode)?,
    };
    let extents = match state.take_file(ORPHAN_BLOCKS) {
        Ok(extents) => extents,
        Err(Trouble::Full(_)) => return without_orphan_file(state),
        Err(trouble) => return Err(trouble),
    };
    let mut record = state.load(ino)?;
    state.fill_new(&mut record);
    record.put16(record::MODE, 0o100_600);
    record.put16(record::LINKS, 1);
    record.set_size(u64::from(ORPHAN_BLOCKS) * state.block_bytes() as u64);
    for extent in &extents {
        for at in 0..u64::from(extent.len.0) {
            write_orphan_block(state, &record, extent.device_start.0 + at)?;
        }
    }
    plain_map(state, &mut record);
    state.write_map(&mut record, &extents)?;
    state.store(&record)?;
    state.mark_inode(ino, true)?;
    state.sb.orphan_file_inode = ino;
    state.write_superblock()
}

fn plain_map(state: &State, record: &mut record::Record) {
    if !state.has_extents() {
        record.set_flag(InodeFlags::EXTENTS, false);
        record.set_block_area(&[0; 60]);
    }
}

/// Sets an inode right that a field of the superblock names, or the field.
pub(crate) fn fix_named(state: &mut State, field: &str, ino: Ino) -> Fixed {
    match field {
        "the root" => lost::make_root(state),
        "the list of bad blocks" => {
            let mut record = state.load(ino)?;
            for at in [0, 2, 0x18, 0x1a, 0x68, 0x6a] {
                record.put16(at, 0);
            }
            record.set_flag(InodeFlags::INLINE_DATA, false);
            state.store(&record)
        }
        // None of these was ever reserved: it is the number of the first one that is wrong.
        "a reserved inode" if ino.0 >= OLD_FIRST_INO => {
            state.sb.first_inode = Ino(OLD_FIRST_INO);
            state.write_superblock()
        }
        "a reserved inode" => {
            if ino == Ino::JOURNAL && journal::claim(state)? {
                return Ok(());
            }
            let mut record = state.load(ino)?;
            // Of the boot loader's, only the type is wrong, if that.
            match ino == BOOT_LOADER && record.links() != 0 && inodes::is_whole(state, &record)? {
                true => record.put16(record::MODE, 0o100_600),
                false => record.clear(),
            }
            state.store(&record)
        }
        "s_journal_inum" => journal::fix(state, true),
        "s_orphan_file_inum" if !state.sb.features.has(Feature::ORPHAN_FILE) => {
            give_orphan_file_back(state)
        }
        "s_orphan_file_inum" if !state.sb.features.has(Feature::HAS_JOURNAL) => {
            remove_orphan_file(state)
        }
        "s_orphan_file_inum" => make_orphan_file(state),
        "s_usr_quota_inum" if !state.sb.features.has(Feature::QUOTA) => {
            state.sb.user_quota_inode = Ino(0);
            state.write_superblock()
        }
        "s_grp_quota_inum" if !state.sb.features.has(Feature::QUOTA) => {
            state.sb.group_quota_inode = Ino(0);
            state.write_superblock()
        }
        "s_usr_quota_inum" => write_quota(state, QuotaKind::User, true),
        "s_grp_quota_inum" => write_quota(state, QuotaKind::Group, true),
        "s_prj_quota_inum" if !state.sb.features.has(Feature::QUOTA) => {
            let magic = QuotaKind::Project.magic();
            give_back(state, ino, |_, bytes| u32_at(bytes, 0) == magic)?;
            state.sb.project_quota_inode = Ino(0);
            state.write_superblock()
        }
        "s_prj_quota_inum" if !state.sb.features.has(Feature::PROJECT) => {
            state.sb.project_quota_inode = Ino(0);
            state.write_superblock()
        }
        "s_prj_quota_inum" => write_quota(state, QuotaKind::Project, true),
        _ => Err(Trouble::cannot(format!("{field} leads to inode {ino}"))),
    }
}

/// Sets a block of the orphan file right: all of it is made anew, after its orphans were finished.
pub(crate) fn fix_orphan_file(state: &mut State) -> Fixed {
    if is_someones(state, state.sb.orphan_file_inode)? {
        return make_orphan_file(state);
    }
    let record = state.load(state.sb.orphan_file_inode)?;
    let map = state.read_map(&record)?;
    let is_whole = !map.is_damaged
        && map.extents.iter().all(|extent| extent.state == ExtentState::Written)
        && map.extents.iter().map(|extent| u64::from(extent.len.0)).sum::<u64>()
            == map.extents.last().map_or(0, end_of)
        && map.extents.last().map(end_of).unwrap_or(0) * state.block_bytes() as u64
            == record.size()
        && record.size() > 0;
    if is_whole { finish_orphans(state) } else { make_orphan_file(state) }
}

/// Writes the usage of one kind of quota anew, with the limits that can be read.
pub(crate) fn write_quota(state: &mut State, kind: QuotaKind, is_gone: bool) -> Fixed {
    let (owner, field) = match kind {
        QuotaKind::User => (0, state.sb.user_quota_inode),
        QuotaKind::Group => (1, state.sb.group_quota_inode),
        QuotaKind::Project => (2, state.sb.project_quota_inode),
    };
    let mut ino = field;
    let mut old = QuotaFile::empty(kind);
    // A wrong number may lead to somebody's file; the other two have inodes that are nobody's.
    let is_gone = is_gone || kind == QuotaKind::Project && !begins_with(state, ino, kind.magic())?;
    if is_gone {
        ino = match kind {
            QuotaKind::User => Ino::USER_QUOTA,
            QuotaKind::Group => Ino::GROUP_QUOTA,
            QuotaKind::Project => state.take_inode(state.sb.first_inode)?,
        };
    } else if let Some(file) = read_quota(state, ino)?
        && file.kind == kind
    {
        old = file;
    }
    let mut entries: std::collections::BTreeMap<u32, QuotaEntry> = old
        .entries
        .iter()
        .map(|entry| (entry.id, QuotaEntry { space_bytes: 0, inodes: 0, ..*entry }))
        .collect();
    for (id, (bytes, inodes)) in state.exam.usage(owner).cloned().unwrap_or_default() {
        let entry = entries.entry(id).or_insert(QuotaEntry { id, ..QuotaEntry::default() });
        (entry.space_bytes, entry.inodes) = (bytes, inodes);
    }
    entries.retain(|_, entry| *entry != QuotaEntry { id: entry.id, ..QuotaEntry::default() });
    let file = QuotaFile { entries: entries.into_values().collect(), ..old };
    let bytes = file.encode().map_err(|error| Trouble::cannot(error.to_string()))?;

    let mut record = state.load(ino)?;
    if is_gone || record.has(InodeFlags::INLINE_DATA) {
        state.fill_new(&mut record);
        record.put16(record::MODE, 0o100_600);
        record.put16(record::LINKS, 1);
        plain_map(state, &mut record);
    }
    let block = state.block_bytes();
    let blocks = u32::try_from(bytes.len().div_ceil(block)).unwrap_or(u32::MAX);
    let extents = state.take_file(blocks)?;
    for extent in &extents {
        for at in 0..extent.len.0 {
            let from = (extent.file_start.0 + at) as usize * block;
            let mut piece = vec![0; block];
            let to = bytes.len().min(from + block);
            put(&mut piece, 0, bytes.get(from..to).unwrap_or(&[]));
            state.write_block(extent.device_start.0 + u64::from(at), &piece)?;
        }
    }
    state.write_map(&mut record, &extents)?;
    record.set_size(bytes.len() as u64);
    state.store(&record)?;
    if is_gone {
        state.mark_inode(ino, true)?;
        match kind {
            QuotaKind::User => state.sb.user_quota_inode = ino,
            QuotaKind::Group => state.sb.group_quota_inode = ino,
            QuotaKind::Project => state.sb.project_quota_inode = ino,
        }
        state.write_superblock()?;
    }
    Ok(())
}

fn read_quota(state: &State, ino: Ino) -> Fixed<Option<QuotaFile>> {
    let record = state.load(ino)?;
    let size = record.size();
    if size > QUOTA_MAX_BYTES {
        return Ok(None);
    }
    let block = state.block_bytes();
    let mut bytes = vec![0; (size as usize).next_multiple_of(block)];
    for extent in state.read_map(&record)?.extents {
        for at in 0..extent.len.0 {
            let to = (extent.file_start.0 + at) as usize * block;
            if to + block > bytes.len() {
                break;
            }
            put(&mut bytes, to, &state.read_block(extent.device_start.0 + u64::from(at))?);
        }
    }
    bytes.truncate(size as usize);
    Ok(QuotaFile::decode(&bytes).ok())
}

/// Which kinds of quota problems are about.
pub(crate) fn quota_kinds(sb: &Superblock, problems: &[Problem]) -> Vec<QuotaKind> {
    let kind_of = |ino: Ino| match ino {
        _ if ino == sb.user_quota_inode => Some(QuotaKind::User),
        _ if ino == sb.group_quota_inode => Some(QuotaKind::Group),
        _ if ino == sb.project_quota_inode => Some(QuotaKind::Project),
        _ => None,
    };
    let mut kinds = Vec::new();
    for problem in problems {
        let kind = match problem {
            Problem::Quota { kind, .. }
            | Problem::QuotaKind { kind, .. }
            | Problem::QuotaUsage { kind, .. } => Some(*kind),
            Problem::Size { ino, .. } => kind_of(*ino),
            _ => None,
        };
        let Some(kind) = kind else { continue };
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    kinds
}

/// Makes the resize inode anew: its doubly indirect block lists the reserve, and each block of the reserve
/// lists its copies.
pub(crate) fn fix_resize(state: &mut State) -> Fixed {
    let mut record = state.load(Ino::RESIZE)?;
    let generation = record.generation();
    if !state.sb.features.has(Feature::RESIZE_INODE) {
        record.clear();
        state.store(&record)?;
        state.sb.reserved_gdt_blocks = 0;
        return state.write_superblock();
    }
    let old = u64::from(record::u32_at(&record.block_area(), 13 * 4));
    let reserved = u32::from(state.sb.reserved_gdt_blocks);
    let own = state.heads.head(extant_base::GroupIndex(0)).reserved_gdt;
    let per_block = state.sb.block_size.bytes() / 4;
    let used = state.sb.descriptor_blocks();
    // The old block, if only this inode can have it: it was claimed without a complaint.
    let is_own = state.in_range(old, 1) && !own.contains(&old) && state.view(Ino::RESIZE).is_some();
    let double = if is_own { old } else { state.take_block()? };
    let backups: Vec<u32> = state.heads.superblock_groups().skip(1).map(|group| group.0).collect();
    let mut list = vec![0; state.block_bytes()];
    for (number, home) in own.clone().enumerate() {
        let slot = (used as usize + number) % per_block as usize;
        put(&mut list, slot * 4, &(home as u32).to_le_bytes());
        let mut copies = vec![0; state.block_bytes()];
        for (slot, backup) in backups.iter().take(per_block as usize).enumerate() {
            let copy = home + u64::from(*backup) * u64::from(state.sb.blocks_per_group);
            put(&mut copies, slot * 4, &(copy as u32).to_le_bytes());
        }
        state.write_block(home, &copies)?;
    }
    state.write_block(double, &list)?;
    let size = indirect_reach(state);
    record.clear();
    record.put32(record::GENERATION, generation);
    for at in [8, record::CTIME, 0x10] {
        record.put32(at, state.now);
    }
    if record.bytes.len() > 128 {
        record.put16(record::EXTRA, state.sb.new_extra_isize());
    }
    record.put16(record::MODE, 0o100_600);
    record.put16(record::LINKS, 1);
    record.set_size(size);
    let mut area = [0; 60];
    put(&mut area, 13 * 4, &(double as u32).to_le_bytes());
    record.set_block_area(&area);
    let blocks = 1 + u64::from(reserved) * (1 + backups.len() as u64);
    let clusters = blocks << state.sb.cluster_bits();
    state.set_sectors(&mut record, clusters * (state.block_bytes() as u64 / 512));
    state.store(&record)
}

/// The size that mke2fs gives the resize inode: all that a doubly indirect map reaches.
fn indirect_reach(state: &State) -> u64 {
    let per = u64::from(state.sb.block_size.bytes() / 4);
    (12 + per + per * per) * u64::from(state.sb.block_size.bytes())
}
