//! Unreachable inodes: lost+found, created if it is missing, and link counts.

use extant_base::{BlockCount, FileBlock, FsBlock, Ino};
use extant_format::dir::{self, FileType, NewEntry};
use extant_format::extent::{Extent, ExtentState};
use extant_format::features::Feature;
use extant_format::inode::{FileKind, InodeFlags, LINKS_MAX};

use crate::dirs::{self, Kept, all_entries, inline_entries, layout_of};
use crate::error::{Fixed, Trouble};
use crate::inodes::looks_like_directory;
use crate::state::State;
use crate::xattrs;
use extant_format::record;

const NAME: &[u8] = b"lost+found";

/// The inode of lost+found, which is made if it is missing.
pub(crate) fn find_or_make(state: &mut State) -> Fixed<Ino> {
    let root = state.load(Ino::ROOT)?;
    if !root.is_dir() {
        return Err(Trouble::cannot("there is no root directory for lost+found"));
    }
    let layout = layout_of(state, &root);
    let entries = match root.has(InodeFlags::INLINE_DATA) {
        true => inline_entries(state, &root).1,
        false => all_entries(state, &root, layout)?.0,
    };
    if let Some(entry) = entries.iter().find(|entry| entry.name == NAME) {
        let found = state.load(entry.ino)?;
        if found.is_dir() && found.links() != 0 && !found.has(InodeFlags::ENCRYPT) {
            return Ok(entry.ino);
        }
        // Something else has its name: it finds its place in the new one.
        remove(state, Ino::ROOT, NAME)?;
    }
    let ino = state.take_inode(state.sb.first_inode)?;
    let mut record = state.load(ino)?;
    state.fill_new(&mut record);
    record.put16(record::MODE, FileKind::Directory.mode_bits() | 0o700);
    record.put16(record::LINKS, 2);
    let made = dirs::rebuild(state, &mut record, Ino::ROOT, Vec::new())
        .and_then(|()| add(state, Ino::ROOT, NAME, ino, FileType::Directory));
    if let Err(trouble) = made {
        state.clear_inode(&mut record)?;
        state.new_inodes.retain(|one| *one != ino);
        return Err(trouble);
    }
    let mut root = state.load(Ino::ROOT)?;
    let links = root.links().saturating_add(1);
    root.put16(record::LINKS, links);
    state.store(&root)?;
    Ok(ino)
}

/// Takes a name out of a directory.
fn remove(state: &mut State, dir: Ino, name: &[u8]) -> Fixed {
    let mut record = state.load(dir)?;
    let parent = dirs::parent_of(state, dir);
    let layout = layout_of(state, &record);
    if record.has(InodeFlags::INLINE_DATA) {
        let (_, mut entries) = inline_entries(state, &record);
        entries.retain(|entry| entry.name != name);
        return dirs::write_inline(state, &mut record, parent, entries);
    }
    let (mut entries, _) = all_entries(state, &record, layout)?;
    entries.retain(|entry| entry.name != name);
    dirs::rebuild(state, &mut record, parent, entries)
}

/// Gives an inode that nothing leads to a name in lost+found.
pub(crate) fn reconnect(state: &mut State, ino: Ino) -> Fixed {
    let mut found = state.load(ino)?;
    if found.has(InodeFlags::EA_INODE) {
        // A value that no attribute has is no file.
        return state.delete_inode(&mut found);
    }
    let is_empty = found.size() == 0 && found.u32(record::BLOCKS_LO) == 0;
    let has_attributes = found.file_acl(true).0 != 0 || xattrs::has_entries(&found);
    if is_empty && found.kind() == Some(FileKind::Regular) && !has_attributes {
        return state.delete_inode(&mut found);
    }
    let lost = match find_or_make(state) {
        // The root is there, and may have room for a name.
        Err(Trouble::Full(_)) => Ino::ROOT,
        lost => lost?,
    };
    let name = format!("#{ino}");
    let file_type = FileType::from_mode(found.mode());
    add(state, lost, name.as_bytes(), ino, file_type)?;
    if found.is_dir() {
        dirs::set_parent(state, ino, lost)?;
        let mut lost = state.load(lost)?;
        let links = lost.links().saturating_add(1);
        lost.put16(record::LINKS, links);
        state.store(&lost)?;
    } else {
        let mut found = state.load(ino)?;
        found.put16(record::LINKS, 1);
        state.store(&found)?;
    }
    Ok(())
}

/// Adds an entry to a directory.
fn add(state: &mut State, dir: Ino, name: &[u8], ino: Ino, file_type: FileType) -> Fixed {
    let mut record = state.load(dir)?;
    let layout = layout_of(state, &record);
    let parent = dirs::parent_of(state, dir);
    let entry = Kept { ino, name: name.to_vec(), file_type, hash: None };
    if record.has(InodeFlags::INLINE_DATA) {
        let (_, mut entries) = inline_entries(state, &record);
        entries.push(entry);
        return dirs::write_inline(state, &mut record, parent, entries);
    }
    let (mut entries, blocks) = match record.has(InodeFlags::INDEX) || layout.stored_hash {
        true => all_entries(state, &record, layout)?,
        false => (Vec::new(), blocks_of(state, &record)?),
    };
    if record.has(InodeFlags::INDEX) || layout.stored_hash {
        entries.push(entry);
        return dirs::rebuild(state, &mut record, parent, entries);
    }
    let new = NewEntry { ino, name, file_type, hash: None };
    // The last ones are those with room, as a rule.
    for (_, place) in blocks.iter().rev().take(4) {
        let mut bytes = state.read_block(*place)?;
        let len = dir::entry_area(&bytes, layout)?.len();
        let Some(area) = bytes.get_mut(..len) else { continue };
        if dir::insert(area, layout, &new)?.is_some() {
            if let Some(seed) = state.csum_seed_of(&record) {
                dir::seal(seed, &mut bytes);
            }
            return state.write_block(*place, &bytes);
        }
    }
    append(state, &mut record, &blocks, &new)
}

fn blocks_of(state: &State, record: &record::Record) -> Fixed<Vec<(u32, u64)>> {
    let map = state.read_map(record)?;
    let mut blocks = Vec::new();
    for extent in &map.extents {
        for at in 0..extent.len.0 {
            blocks.push((extent.file_start.0 + at, extent.device_start.0 + u64::from(at)));
        }
    }
    Ok(blocks)
}

/// A new block at the end of a linear directory, with one entry.
fn append(
    state: &mut State,
    record: &mut record::Record,
    blocks: &[(u32, u64)],
    new: &NewEntry<'_>,
) -> Fixed {
    let layout = layout_of(state, record);
    let at = blocks.last().map_or(0, |(number, _)| number + 1);
    let mask = state.sb.cluster_ratio().max(1) - 1;
    let place = match blocks.last() {
        // The rest of the last cluster is the directory's already.
        Some((_, last)) if at & mask != 0 => last + 1,
        _ => state.take_block()?,
    };
    let mut bytes = vec![0; state.block_bytes()];
    let mut writer = dir::BlockWriter::new(&mut bytes, layout)?;
    writer.push(new)?;
    writer.finish(state.csum_seed_of(record));
    state.write_block(place, &bytes)?;
    let mut extents = state.read_map(record)?.extents;
    extents.push(Extent {
        file_start: FileBlock(at),
        device_start: FsBlock(place),
        len: BlockCount(1),
        state: ExtentState::Written,
    });
    state.write_map(record, &extents)?;
    record.set_size(u64::from(at + 1) * state.block_bytes() as u64);
    state.store(record)
}

/// Takes the entry of a directory that is its own ancestor out of its parent: it is found again as one that
/// nothing leads to.
pub(crate) fn break_loop(state: &mut State, ino: Ino) -> Fixed {
    let parent = state.view(ino).map_or(Ino(0), |view| view.parent);
    if parent.0 == 0 {
        return Err(Trouble::cannot(format!("directory {ino} has no parent")));
    }
    let mut record = state.load(parent)?;
    let above = dirs::parent_of(state, parent);
    if record.has(InodeFlags::INLINE_DATA) {
        let (_, mut entries) = inline_entries(state, &record);
        entries.retain(|entry| entry.ino != ino);
        return dirs::write_inline(state, &mut record, above, entries);
    }
    let layout = layout_of(state, &record);
    let (mut entries, _) = all_entries(state, &record, layout)?;
    entries.retain(|entry| entry.ino != ino);
    dirs::rebuild(state, &mut record, above, entries)
}

/// Makes the root directory anew.
pub(crate) fn make_root(state: &mut State) -> Fixed {
    let mut record = state.load(Ino::ROOT)?;
    if record.kind().is_some() && looks_like_directory(state, &record)? {
        let mode = record.mode() & 0o7777;
        record.put16(record::MODE, mode | FileKind::Directory.mode_bits());
    }
    if record.is_dir() {
        record.put16(record::LINKS, record.links().max(2));
        record.put32(record::DTIME, 0);
        return state.store(&record);
    }
    state.fill_new(&mut record);
    record.put16(record::MODE, FileKind::Directory.mode_bits() | 0o755);
    record.put16(record::LINKS, 2);
    state.mark_inode(Ino::ROOT, true)?;
    dirs::rebuild(state, &mut record, Ino::ROOT, Vec::new())
}

/// Sets `i_links_count`.
pub(crate) fn set_links(state: &mut State, ino: Ino, counted: u32) -> Fixed {
    let mut record = state.load(ino)?;
    let mut links = u16::try_from(counted).unwrap_or(u16::MAX);
    if record.is_dir() && counted > LINKS_MAX {
        // Directories of more subdirectories count none.
        links = 1;
        state.add_feature(Feature::DIR_NLINK);
        state.write_superblock()?;
    }
    record.put16(record::LINKS, links);
    state.store(&record)
}
