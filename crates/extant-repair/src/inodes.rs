//! Inode records: fields that cannot be, and maps that cannot be followed.

use extant_base::{BlockCount, FileBlock, FsBlock, Ino};
use extant_check::Problem;
use extant_format::dir::{self, DirLayout, FileType};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::features::Feature;
use extant_format::inode::{FileKind, InodeError, InodeFlags};

use crate::error::{Fixed, Trouble};
use crate::state::State;
use crate::{dirs, twice, xattrs};
use extant_change::{FileMap, end_of, is_extent_node};
use extant_format::record::{self, Record, put, u16_at, u32_at};

/// What the checker says of a size with a high half where only the low one counts.
const HIGH_HALF: &str = "its high half has no meaning here";

/// Sets one inode right in all that `problems` say of it.
pub(crate) fn fix(state: &mut State, ino: Ino, problems: &[Problem]) -> Fixed {
    let mut record = state.load(ino)?;
    let mut wants_map = false;
    let is_directory =
        |problem: &Problem| matches!(problem, Problem::Special { why: "it is a directory", .. });
    if problems.iter().any(is_directory) {
        let mode = record.mode() & 0o7777;
        record.put16(record::MODE, mode | FileKind::Directory.mode_bits());
        return state.store(&record);
    }
    if restore_kind(state, &mut record, problems)? {
        return state.store(&record);
    }
    if is_short_link(&record) {
        // The target is in the place of the map, and the flag that says otherwise is wrong.
        record.set_flag(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA, false);
        return state.store(&record);
    }
    for problem in problems {
        match problem {
            Problem::Inode { source, .. } => fix_decoding(state, &mut record, source),
            Problem::Mode { .. } => {
                if looks_like_directory(state, &record)? {
                    let mode = record.mode() & 0o7777;
                    record.put16(record::MODE, mode | FileKind::Directory.mode_bits());
                } else if state.is_special(ino)
                    || ino == Ino::ROOT
                    || is_marked_as_value(state, &record)?
                {
                    record.put16(record::MODE, 0o100_600);
                } else {
                    return state.clear_inode(&mut record);
                }
            }
            Problem::Flags { with, .. } => wants_map |= fix_flags(state, &mut record, with)?,
            Problem::Dtime { links, .. } => {
                let time = if *links == 0 { state.now.max(1) } else { 0 };
                record.put32(record::DTIME, time);
            }
            Problem::Extent { .. }
            | Problem::ExtentRoom { .. }
            | Problem::ExtentEmpty { .. }
            | Problem::Cluster { .. }
            | Problem::FileBlock { .. }
            | Problem::BlockChecksum { .. } => wants_map = true,
            Problem::BlockRange { block, .. } => {
                // Without an attribute block the field is 0, and a map may lead to block 0.
                if block.0 != 0 && record.file_acl(state.is_wide()) == *block {
                    record.set_file_acl(0, true);
                } else if block.0 != 0 && state.translator(&record) == block.0 {
                    record.put32(record::TRANSLATOR, 0);
                } else {
                    wants_map = true;
                }
            }
            Problem::Reserved { field, .. } => match *field {
                "i_faddr" => record.put32(0x70, 0),
                "i_blocks_hi" => record.put16(record::BLOCKS_HIGH, 0),
                "i_file_acl_hi" => record.put16(record::FILE_ACL_HIGH, 0),
                // Where there are attributes, it is the feature that is missing.
                "i_file_acl" if xattrs::is_block(state, &record)? => {
                    state.add_feature(Feature::EXT_ATTR);
                    state.write_superblock()?;
                }
                _ => record.set_file_acl(0, true),
            },
            Problem::Unwritten { .. } => wants_map = true,
            Problem::Encryption { why, .. } => {
                if why.starts_with("and") {
                    return state.clear_inode(&mut record);
                }
                record.set_flag(InodeFlags::ENCRYPT, false);
            }
            Problem::Symlink { .. } if !wants_map => return fix_symlink(state, record),
            Problem::Special { .. } => fix_special(&mut record),
            Problem::Size { why: HIGH_HALF, .. } => record.put32(record::SIZE_HIGH, 0),
            Problem::Inline { .. } => return Err(Trouble::cannot("inline data is damaged")),
            _ => {}
        }
    }
    if wants_map {
        if record.is_dir() {
            number_extents(state, &mut record)?;
        }
        rebuild_map(state, &mut record)?;
    }
    // Fields that follow from the map, and from its kind, are set once the map is right.
    let is_settled = !wants_map
        && !problems.iter().any(|one| matches!(one, Problem::Flags { .. } | Problem::Inode { .. }));
    for problem in problems {
        match problem {
            Problem::Size { why, .. } if is_settled => fix_size(state, &mut record, why)?,
            Problem::Sectors { counted, .. } if is_settled => {
                state.set_sectors(&mut record, *counted);
            }
            _ => {}
        }
    }
    state.store(&record)
}

/// Gives an inode the type that its names have for it, where it cannot be what its mode says: a link without a target,
/// a pipe with contents, or nothing that exists. Returns whether it did.
fn restore_kind(state: &State, record: &mut Record, problems: &[Problem]) -> Fixed<bool> {
    let Some(said) = state.said.get(&record.ino) else { return Ok(false) };
    let is_none = problems.iter().any(|one| matches!(one, Problem::Mode { .. }));
    let is_no_other = problems.iter().any(|one| {
        let is_special = |with: &str| with.starts_with("a special file");
        matches!(one, Problem::Symlink { .. } | Problem::Special { .. })
            || matches!(one, Problem::Flags { with, .. } if is_special(with))
    });
    let kind = match said {
        FileType::Regular if (is_none || is_no_other) && is_whole(state, record)? => {
            FileKind::Regular
        }
        // It is one, or not, by what it has.
        FileType::Directory if is_none && looks_like_directory(state, record)? => {
            FileKind::Directory
        }
        FileType::Symlink if is_none => FileKind::Symlink,
        FileType::CharDevice if is_none => FileKind::CharDevice,
        FileType::BlockDevice if is_none => FileKind::BlockDevice,
        FileType::Fifo if is_none => FileKind::Fifo,
        FileType::Socket if is_none => FileKind::Socket,
        _ => return Ok(false),
    };
    let mode = record.mode() & 0o7777;
    record.put16(record::MODE, mode | kind.mode_bits());
    Ok(true)
}

/// Returns whether a record is that of an attribute's value but for its type: the mark is there, and a whole map.
fn is_marked_as_value(state: &State, record: &Record) -> Fixed<bool> {
    let is_marked = record.has(InodeFlags::EA_INODE) && state.sb.features.has(Feature::EA_INODE);
    Ok(is_marked && record.links() == 1 && is_whole(state, record)?)
}

/// Returns whether nothing of what a record says of a file's blocks is impossible: in one that was written over, the map
/// names blocks of others.
pub(crate) fn is_whole(state: &State, record: &Record) -> Fixed<bool> {
    let mut file = record.clone();
    file.put16(record::MODE, record.mode() & 0o7777 | FileKind::Regular.mode_bits());
    let needs_tree = state.sb.cluster_ratio() > 1 && !record.has(InodeFlags::INLINE_DATA);
    if needs_tree && !record.has(InodeFlags::EXTENTS) {
        return Ok(false);
    }
    if record.has(InodeFlags::INLINE_DATA) {
        return Ok(true);
    }
    let map = state.read_map(&file)?;
    Ok(!map.is_damaged && map.lost_nodes == 0)
}

/// Gives directories their type again that have that of a file, and files that have that of a link: their names say it,
/// and so does what they hold, or that not everybody may do everything with them, as with a link.
pub(crate) fn restore(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let mut found = false;
    for problem in problems {
        let Problem::EntryType { ino, .. } = problem else { continue };
        let Some(said) = state.said.get(ino).copied() else { continue };
        let mut record = state.load(*ino)?;
        let kind = match (said, record.kind()) {
            (FileType::Directory, Some(FileKind::Regular))
                if looks_like_directory(state, &record)? =>
            {
                FileKind::Directory
            }
            (FileType::Regular, Some(FileKind::Symlink))
                if record.mode() & 0o777 != 0o777 && state.has_map(&record) =>
            {
                FileKind::Regular
            }
            _ => continue,
        };
        let mode = record.mode() & 0o7777;
        record.put16(record::MODE, mode | kind.mode_bits());
        state.store(&record)?;
        found = true;
    }
    Ok(found)
}

/// Returns whether a symbolic link is marked as having an extent tree or inline data, and has its target in the
/// place of the map: that of a short link has neither.
fn is_short_link(record: &Record) -> bool {
    let area = record.block_area();
    let size = record.size() as usize;
    record.kind() == Some(FileKind::Symlink)
        && (record.has(InodeFlags::EXTENTS) || record.has(InodeFlags::INLINE_DATA))
        && !record.has(InodeFlags::ENCRYPT)
        && (1..60).contains(&size)
        && area.iter().position(|byte| *byte == 0) == Some(size)
}

fn fix_decoding(state: &State, record: &mut Record, source: &InodeError) {
    match source {
        InodeError::ExtraSize { .. } => {
            let extra = state.sb.new_extra_isize();
            record.put16(record::EXTRA, extra);
        }
        InodeError::Size { .. } => record.put32(record::SIZE_HIGH, 0),
        _ => {}
    }
}

/// Returns whether the first block of a file begins like a directory: `.` refers to the inode
/// itself.
pub(crate) fn looks_like_directory(state: &State, record: &Record) -> Fixed<bool> {
    let area = record.block_area();
    if record.has(InodeFlags::INLINE_DATA) {
        return Ok(looks_like_inline_directory(state, record));
    }
    let first = if record.has(InodeFlags::EXTENTS) && is_extent_node(&area) {
        let mut copy = record.clone();
        copy.put16(record::MODE, FileKind::Directory.mode_bits());
        state.read_map(&copy)?.extents.first().map(|extent| extent.device_start.0)
    } else {
        Some(u64::from(u32_at(&area, 0)))
    };
    let Some(first) = first.filter(|block| state.in_range(*block, 1)) else { return Ok(false) };
    let bytes = state.read_block(first)?;
    let is_dot = u32_at(&bytes, 0) == record.ino.0 && bytes.get(6) == Some(&1);
    Ok(is_dot && bytes.get(8) == Some(&b'.') && u16_at(&bytes, 4) == 12)
}

/// Returns whether inline data begins like a directory: its parent is a directory, and entries
/// follow.
fn looks_like_inline_directory(state: &State, record: &Record) -> bool {
    let (parent, entries) = crate::dirs::inline_entries(state, record);
    let has_parent = state.view(parent).is_some_and(|view| view.is_dir());
    has_parent && entries.iter().any(|entry| state.view(entry.ino).is_some())
}

/// Fixes flags; returns whether the map has to be read again.
fn fix_flags(state: &mut State, record: &mut Record, with: &str) -> Fixed<bool> {
    let area = record.block_area();
    match with {
        "a file system without extents" => {
            if is_extent_node(&area) && u16_at(&area, 2) <= 4 {
                state.sb.features.insert(Feature::EXTENTS);
                state.write_superblock()?;
            } else {
                record.set_flag(InodeFlags::EXTENTS, false);
                return Ok(true);
            }
        }
        "a file system without inline_data" => {
            if xattrs::has_inline_value(record) && record.bytes.len() > 128 {
                state.sb.features.insert(Feature::INLINE_DATA);
                state.write_superblock()?;
            } else {
                record.set_flag(InodeFlags::INLINE_DATA, false);
                return Ok(true);
            }
        }
        "the extent tree that it has" => record.set_flag(InodeFlags::EXTENTS, true),
        "a file system with bigalloc" => {
            // The same blocks in a tree, as far as they fit clusters.
            let map = state.read_map(record)?;
            record.set_flag(InodeFlags::EXTENTS, true);
            state.write_map(record, &map.extents)?;
        }
        "each other: both extents and inline data" => {
            let is_tree = is_extent_node(&area);
            let room = record.bytes.len().saturating_sub(record.xattr_at()) as u64;
            // Too large to be inline: pointers, if they lead somewhere.
            let is_map = !is_tree && record.size() >= room + 60 && is_block_map(state, record)?;
            record.set_flag(InodeFlags::INLINE_DATA, !is_tree && !is_map);
            record.set_flag(InodeFlags::EXTENTS, is_tree);
        }
        "a special file" => {
            record.set_flag(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA, false);
        }
        "a special file or symbolic link" => {
            record.set_flag(InodeFlags::IMMUTABLE | InodeFlags::APPEND, false);
        }
        // One whose type was wrong, and is right now.
        "what an inode of a value may be"
            if record.kind() == Some(FileKind::Regular)
                && !state.is_special(record.ino)
                && state.sb.features.has(Feature::EA_INODE) => {}
        "what an inode of a value may be" => record.set_flag(InodeFlags::EA_INODE, false),
        "a file system without imagic_inodes" => record.set_flag(InodeFlags::IMAGIC, false),
        "a file that is no directory" => {
            record.set_flag(InodeFlags::INDEX | InodeFlags::CASEFOLD, false);
        }
        "a directory in its inode" | "a file system without dir_index" => {
            record.set_flag(InodeFlags::INDEX, false);
        }
        "a file system without huge_file" => record.set_flag(InodeFlags::HUGE_FILE, false),
        "a file system without verity" => record.set_flag(InodeFlags::VERITY, false),
        "a file system without casefold" => record.set_flag(InodeFlags::CASEFOLD, false),
        "a file system without encrypt" => record.set_flag(InodeFlags::ENCRYPT, false),
        other => return Err(Trouble::cannot(format!("flags contradict {other}"))),
    }
    Ok(false)
}

/// Returns whether `i_block` is a map of pointers that are all valid.
fn is_block_map(state: &State, record: &Record) -> Fixed<bool> {
    let mut plain = record.clone();
    plain.set_flag(InodeFlags::EXTENTS | InodeFlags::INLINE_DATA, false);
    let map = state.read_map(&plain)?;
    Ok(!map.is_damaged && !map.extents.is_empty())
}

fn fix_special(record: &mut Record) {
    let is_device = matches!(record.kind(), Some(FileKind::BlockDevice | FileKind::CharDevice));
    record.set_size(0);
    let mut area = record.block_area();
    let from = if is_device { 12 } else { 0 };
    if let Some(rest) = area.get_mut(from..)
        && is_device
    {
        rest.fill(0);
    }
    record.set_block_area(&area);
}

/// Reads what can be read of a map, and writes a map of that.
fn rebuild_map(state: &mut State, record: &mut Record) -> Fixed {
    let area = record.block_area();
    let is_file = matches!(record.kind(), Some(FileKind::Regular | FileKind::Directory));
    // An extent tree whose flag is missing.
    if is_file
        && state.has_extents()
        && !record.has(InodeFlags::EXTENTS)
        && is_extent_node(&area)
        && u16_at(&area, 4) == 4
        && u16_at(&area, 2) <= 4
    {
        record.set_flag(InodeFlags::EXTENTS, true);
    }
    if record.has(InodeFlags::EXTENTS) && !is_extent_node(&area) {
        // A block map with a wrong flag: each pointer must be valid.
        let mut plain = record.clone();
        plain.set_flag(InodeFlags::EXTENTS, false);
        let map = state.read_map(&plain)?;
        if !map.is_damaged && !map.extents.is_empty() {
            *record = plain;
            return Ok(());
        }
        record.set_block_area(&extent::empty_root());
    }
    let mut map = state.read_map(record)?;
    if record.is_dir() {
        for extent in &mut map.extents {
            extent.state = ExtentState::Written;
        }
    }
    state.write_map(record, &map.extents)
}

/// Gives the extents of a directory the numbers that they have, one behind the other, if they are as long as the directory
/// is; and the first, if it leads to the block that begins with `.`, in any case.
fn number_extents(state: &State, record: &mut Record) -> Fixed {
    let mut area = record.block_area();
    // A root with records of extents: of 12 bytes each, the number first, and the length behind it.
    let is_leaf = record.has(InodeFlags::EXTENTS) && is_extent_node(&area) && u16_at(&area, 6) == 0;
    let count = usize::from(u16_at(&area, 2));
    if !is_leaf || !(1..=4).contains(&count) {
        return Ok(());
    }
    let block = (u64::from(u16_at(&area, 18)) << 32) | u64::from(u32_at(&area, 20));
    if !state.in_range(block, 1) {
        return Ok(());
    }
    let bytes = state.read_block(block)?;
    let is_dot = bytes.get(6) == Some(&1) && bytes.get(8) == Some(&b'.');
    if !is_dot || u32_at(&bytes, 0) != record.ino.0 {
        return Ok(());
    }
    let lengths: Vec<u32> =
        (0..count).map(|slot| u32::from(u16_at(&area, 16 + 12 * slot))).collect();
    let blocks = lengths.iter().map(|len| u64::from(*len)).sum::<u64>();
    let is_all = blocks * state.block_bytes() as u64 == record.size();
    let mut next = 0u32;
    for (slot, len) in lengths.iter().enumerate().take(if is_all { count } else { 1 }) {
        put(&mut area, 12 + 12 * slot, &next.to_le_bytes());
        next += len;
    }
    record.set_block_area(&area);
    Ok(())
}

fn fix_size(state: &mut State, record: &mut Record, why: &str) -> Fixed {
    let block = state.block_bytes() as u64;
    match why {
        // It was cleared before.
        HIGH_HALF => {}
        "the inline data has no value"
            if state.has_extents() && is_extent_node(&record.block_area()) =>
        {
            // The flag is wrong: this is the root of a tree, which leads to the contents.
            record.set_flag(InodeFlags::INLINE_DATA, false);
            record.set_flag(InodeFlags::EXTENTS, true);
        }
        "the inline data has no value" => {
            // 60 bytes are in the inode, whatever else there was.
            let size = record.size().min(60);
            record.set_size(size);
            let is_old = record.bytes.len() > 128 && record.u16(record::EXTRA) == 0;
            if is_old {
                record.put16(record::EXTRA, state.sb.new_extra_isize());
            }
            if !xattrs::add_empty_inline_value(record) {
                move_out(state, record)?;
            }
        }
        // Also where it is longer than any file: what is stored of it is whole.
        _ if why == "another amount of it is inline" || record.has(InodeFlags::INLINE_DATA) => {
            let stored = 60 + xattrs::inline_value_len(record).unwrap_or(0) as u64;
            record.set_size(stored);
        }
        _ => {
            let mut map = state.read_map(record)?;
            let is_dir = record.is_dir();
            if is_dir && let Some(end) = reaches_too_far(state, record, &map)? {
                map.extents = cut_at(&map.extents, end);
                state.write_map(record, &map.extents)?;
            }
            let counts = |extent: &&Extent| is_dir || extent.state == ExtentState::Written;
            let end = map.extents.iter().filter(counts).map(end_of).max().unwrap_or(0);
            record.set_size(end.saturating_mul(block));
        }
    }
    Ok(())
}

/// Cuts off what a directory has behind its size, if that is none of it. Returns whether it was.
pub(crate) fn shorten(state: &mut State, ino: Ino) -> Fixed<bool> {
    let mut record = state.load(ino)?;
    if !record.is_dir() || record.has(InodeFlags::INLINE_DATA) {
        return Ok(false);
    }
    let map = state.read_map(&record)?;
    let Some(end) = reaches_too_far(state, &record, &map)? else { return Ok(false) };
    state.write_map(&mut record, &cut_at(&map.extents, end))?;
    state.store(&record)?;
    Ok(true)
}

/// Returns the first block that a directory does not have, by its size, if its map goes on over what is none of it:
/// blocks that something else has as well, or that are no blocks of a directory. The size is what is right then.
fn reaches_too_far(state: &mut State, record: &Record, map: &FileMap) -> Fixed<Option<u64>> {
    let block = state.block_bytes() as u64;
    let end = record.size() / block;
    if end == 0 || !record.size().is_multiple_of(block) || map.lost_nodes != 0 {
        return Ok(None);
    }
    let behind = cut_before(&map.extents, end);
    // One that ends before, or right where it says, has something else that is wrong.
    let has_end = map.extents.iter().any(|extent| {
        extent.state == ExtentState::Written
            && (u64::from(extent.file_start.0)..end_of(extent)).contains(&(end - 1))
    });
    let Some(first) = behind.first().filter(|_| has_end) else { return Ok(None) };
    let bytes = state.read_block(first.device_start.0)?;
    if !is_directory_block(&bytes, dirs::layout_of(state, record)) {
        return Ok(Some(end));
    }
    if state.shared.is_none() {
        state.shared = Some(twice::shared(state)?);
    }
    let Some(shared) = &state.shared else { return Ok(None) };
    let is_shared = behind.iter().any(|extent| {
        let start = extent.device_start.0;
        let last = start + u64::from(extent.len.0.max(1)) - 1;
        (state.cluster(start)..=state.cluster(last)).any(|cluster| shared.get(cluster))
    });
    Ok(is_shared.then_some(end))
}

/// Returns whether the records of a block reach to its end, and it is not the first of a directory.
fn is_directory_block(bytes: &[u8], layout: DirLayout) -> bool {
    let layout = DirLayout { checksum: false, ..layout };
    let begins = bytes.get(6) == Some(&1) && bytes.get(8) == Some(&b'.');
    !begins && dir::check(bytes, layout).is_ok()
}

/// The extents before a block of the file.
fn cut_at(extents: &[Extent], end: u64) -> Vec<Extent> {
    let before = extents.iter().filter(|extent| u64::from(extent.file_start.0) < end);
    let short = |extent: &Extent| {
        let len = (end - u64::from(extent.file_start.0)).min(u64::from(extent.len.0));
        Extent { len: BlockCount(u32::try_from(len).unwrap_or(u32::MAX)), ..*extent }
    };
    before.map(short).collect()
}

/// The extents from a block of the file on.
fn cut_before(extents: &[Extent], from: u64) -> Vec<Extent> {
    let behind = extents.iter().filter(|extent| end_of(extent) > from);
    let short = |extent: &Extent| {
        let less = from.saturating_sub(u64::from(extent.file_start.0)) as u32;
        Extent {
            file_start: FileBlock(extent.file_start.0 + less),
            device_start: FsBlock(extent.device_start.0 + u64::from(less)),
            len: BlockCount(extent.len.0 - less),
            state: extent.state,
        }
    };
    behind.map(short).collect()
}

/// Contents that are in the inode, and may not stay there, get a block.
fn move_out(state: &mut State, record: &mut Record) -> Fixed {
    let area = record.block_area();
    let size = record.size().min(60) as usize;
    let is_link = record.kind() == Some(FileKind::Symlink);
    if record.is_dir() {
        let (parent, entries) = dirs::inline_entries(state, record);
        return dirs::rebuild(state, record, parent, entries);
    }
    record.set_flag(InodeFlags::INLINE_DATA, false);
    if is_link && size < 60 {
        return Ok(());
    }
    record.set_flag(InodeFlags::EXTENTS, state.has_extents());
    record.set_block_area(&[0; 60]);
    let mut extents = Vec::new();
    if size > 0 {
        let block = state.take_block()?;
        let mut bytes = vec![0; state.block_bytes()];
        put(&mut bytes, 0, area.get(..size).unwrap_or(&[]));
        state.write_block(block, &bytes)?;
        extents.push(Extent {
            file_start: FileBlock(0),
            device_start: FsBlock(block),
            len: BlockCount(1),
            state: ExtentState::Written,
        });
    }
    state.write_map(record, &extents)
}

/// Sets the size of a symbolic link to the length of a readable target; clears another link.
fn fix_symlink(state: &mut State, mut record: Record) -> Fixed {
    let until_nul = |bytes: &[u8]| bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    if record.has(InodeFlags::ENCRYPT) {
        return state.clear_inode(&mut record);
    }
    let map = state.read_map(&record)?;
    let area = record.block_area();
    let block = state.block_bytes();
    let first = map.extents.first().filter(|extent| extent.file_start.0 == 0);
    let is_tree = record.has(InodeFlags::EXTENTS) && is_extent_node(&area);
    match first {
        Some(first) => {
            let bytes = state.read_block(first.device_start.0)?;
            let len = until_nul(&bytes);
            if len == 0 || len >= block {
                return state.clear_inode(&mut record);
            }
            record.set_size(len as u64);
            if len < 60 {
                // A target of this length is in the inode.
                let mut area = [0; 60];
                put(&mut area, 0, bytes.get(..len).unwrap_or(&[]));
                record.set_flag(InodeFlags::EXTENTS, false);
                record.set_block_area(&area);
                let acl = record.file_acl(state.is_wide()).0 != 0;
                let cluster =
                    state.block_bytes() as u64 / 512 * u64::from(state.sb.cluster_ratio());
                state.set_sectors(&mut record, if acl { cluster } else { 0 });
                return state.store(&record);
            }
            let only = Extent {
                file_start: FileBlock(0),
                device_start: FsBlock(first.device_start.0),
                len: BlockCount(1),
                state: ExtentState::Written,
            };
            state.write_map(&mut record, &[only])?;
        }
        None => {
            let len = until_nul(&area);
            if is_tree || len == 0 || len >= 60 || record.size() >= block as u64 {
                return state.clear_inode(&mut record);
            }
            record.set_flag(InodeFlags::EXTENTS, false);
            record.set_size(len as u64);
            let mut clean = area;
            if let Some(rest) = clean.get_mut(len..) {
                rest.fill(0);
            }
            put(&mut record.bytes, record::BLOCK, &clean);
        }
    }
    state.store(&record)
}
