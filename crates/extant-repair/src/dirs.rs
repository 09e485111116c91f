//! Directories: what can be read of their entries, written again.

use std::collections::{BTreeMap, BTreeSet};

use extant_base::{BlockCount, FileBlock, Ino};
use extant_check::Problem;
use extant_format::dir::{
    self, BlockWriter, DirFault, DirLayout, FileType, NewEntry, decode_entry,
};
use extant_format::extent::{Extent, ExtentState};
use extant_format::features::{Compat, EncodingFlags};
use extant_format::group::{GroupChecksum, GroupFlags};
use extant_format::hash::{HashSeed, HashVersion, NameHash, name_hash};
use extant_format::htree::{HtreeFault, HtreePlan, IndexOptions, PlannedEntry};
use extant_format::inline::{self, InlineFault};
use extant_format::inode::InodeFlags;

use crate::error::{Fixed, Trouble};
use crate::state::State;
use crate::xattrs;
use extant_change::end_of;
use extant_format::record::{self, Record, put, u32_at};

/// How full new leaves get, in percent.
const FILL_PERCENT: u8 = 80;
/// Shortest name that encryption makes.
const ENCRYPTED_NAME_MIN: usize = 16;
/// Encrypted names are filled up to a multiple of this, or more.
const ENCRYPTED_NAME_STEP: usize = 4;

impl From<DirFault> for Trouble {
    fn from(fault: DirFault) -> Trouble {
        Trouble::cannot(fault.to_string())
    }
}

impl From<HtreeFault> for Trouble {
    fn from(fault: HtreeFault) -> Trouble {
        Trouble::cannot(fault.to_string())
    }
}

impl From<InlineFault> for Trouble {
    fn from(fault: InlineFault) -> Trouble {
        Trouble::cannot(fault.to_string())
    }
}

/// An entry that stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Kept {
    pub(crate) ino: Ino,
    pub(crate) name: Vec<u8>,
    pub(crate) file_type: FileType,
    pub(crate) hash: Option<NameHash>,
}

impl Kept {
    fn of(entry: &dir::DirEntry<'_>) -> Kept {
        let (ino, file_type, hash) = (entry.ino, entry.file_type, entry.hash);
        Kept { ino, name: entry.name.to_vec(), file_type, hash }
    }

    fn as_new(&self) -> NewEntry<'_> {
        let hash = Some(self.hash.unwrap_or_default());
        NewEntry { ino: self.ino, name: &self.name, file_type: self.file_type, hash }
    }

    /// Returns whether the name is one of an encrypted directory, with bytes that no other name
    /// has.
    fn is_raw(&self) -> bool {
        self.name.iter().any(|byte| matches!(byte, 0 | b'/'))
    }

    /// Returns this entry under a name of the same length that may be stored.
    fn masked(&self) -> Kept {
        let mask = |byte: &u8| if matches!(byte, 0 | b'/') { b'x' } else { *byte };
        Kept { name: self.name.iter().map(mask).collect(), ..self.clone() }
    }
}

/// Restores the true names in a block whose entries were stored under masked ones, in order.
fn unmask<'k>(
    block: &mut [u8],
    layout: DirLayout,
    entries: &mut impl Iterator<Item = &'k Kept>,
    seed: Option<u32>,
) {
    let Ok(area) = dir::entry_area(block, layout) else { return };
    let mut places = Vec::new();
    let mut at = 0;
    while let Ok(entry) = decode_entry(area, at, layout) {
        if entry.is_used() && !entry.is_dots() {
            places.push(at);
        }
        at += (entry.rec_len as usize).max(4);
    }
    let mut is_changed = false;
    for at in places {
        let Some(entry) = entries.next() else { break };
        if entry.is_raw() {
            put(block, at + dir::HEADER_BYTES, &entry.name);
            is_changed = true;
        }
    }
    if let Some(seed) = seed.filter(|_| is_changed) {
        dir::seal(seed, block);
    }
}

/// Blocks of a file: the number in the file, and where it is.
pub(crate) type Places = Vec<(u32, u64)>;

/// Changes of the entries of a directory.
#[derive(Default)]
struct Changes {
    /// Text of the name and inode of entries that go.
    drop: BTreeSet<(String, u32)>,
    /// Inodes whose entries go, whatever their name.
    forget: BTreeSet<u32>,
    /// Inodes whose entries get the type of the inode.
    retype: BTreeSet<u32>,
    /// Names that are there twice.
    twice: bool,
    rebuild: bool,
}

impl Changes {
    fn of(problems: &[Problem]) -> Changes {
        let mut changes = Changes::default();
        for problem in problems {
            match problem {
                Problem::EntryInode { name, ino, .. } | Problem::SecondParent { name, ino, .. } => {
                    changes.drop.insert((name.clone(), ino.0));
                }
                Problem::EntryType { ino, .. } => {
                    changes.retype.insert(ino.0);
                }
                Problem::DuplicateName { .. } => changes.twice = true,
                Problem::DirHole { .. }
                | Problem::Htree { .. }
                | Problem::HtreeReference { .. }
                | Problem::HtreeHash { .. }
                | Problem::HtreeRange { .. } => changes.rebuild = true,
                _ => {}
            }
        }
        changes
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

/// The layout of the blocks of one directory.
pub(crate) fn layout_of(state: &State, record: &Record) -> DirLayout {
    DirLayout {
        stored_hash: record.has(InodeFlags::ENCRYPT) && record.has(InodeFlags::CASEFOLD),
        encrypted: record.has(InodeFlags::ENCRYPT),
        ..state.dir_layout
    }
}

/// Returns the entries of an area, `.` and `..` included, and whether the area was valid. Behind an
/// invalid record it continues at the next place that looks like one; a record of which nothing but a length is wrong,
/// its own or that of its name, keeps its name.
pub(crate) fn salvage(state: &State, area: &[u8], layout: DirLayout) -> (Vec<Kept>, bool) {
    let inodes = state.sb.inodes_count;
    let mut found = Vec::new();
    let mut is_right = true;
    let mut at = 0;
    while at + dir::HEADER_BYTES <= area.len() {
        match decode_entry(area, at, layout) {
            Ok(entry) => {
                if entry.is_used() {
                    // A type where none is to be stored goes when the block is written again.
                    is_right &= layout.filetype || entry.stored_type == 0;
                    found.push(Kept::of(&entry));
                }
                // The record of `.` is never longer; one that is hides others.
                if at == 0 && entry.name == b"." && entry.rec_len != 12 && has_dots_at(area, 12) {
                    is_right = false;
                    at = 12;
                    continue;
                }
                at += (entry.rec_len as usize).max(4);
            }
            Err(_) => {
                is_right = false;
                let kept = within_record(state, area, at, layout)
                    .or_else(|| without_length(state, area, at, layout));
                match kept {
                    Some((kept, len)) => {
                        found.push(kept);
                        at += len;
                    }
                    None => at += 4,
                }
                while at + dir::HEADER_BYTES <= area.len()
                    && !is_plausible(area, at, layout, inodes)
                    && without_length(state, area, at, layout).is_none()
                {
                    at += 4;
                }
            }
        }
    }
    (found, is_right)
}

/// Returns whether a record of the name `..` begins there.
fn has_dots_at(area: &[u8], at: usize) -> bool {
    area.get(at + 6) == Some(&2) && area.get(at + 8..at + 10) == Some(b"..")
}

/// Returns the entry at `at` and the bytes of its record, where the record ends at another one, or with its area, and only
/// the length of the name does not fit into it: the name is what is there, to the first zero. One that is encrypted may
/// have zeros; it is as long as it can be, in steps of the shortest padding.
fn within_record(
    state: &State,
    area: &[u8],
    at: usize,
    layout: DirLayout,
) -> Option<(Kept, usize)> {
    let len = u16::from_le_bytes(area.get(at + 4..at + 6)?.try_into().ok()?);
    let len = dir::decode_rec_len(len, layout.block_size) as usize;
    let end = at.checked_add(len)?;
    let fits = |name_len: usize| DirLayout::dots_need(name_len) <= len;
    let name_len = usize::from(*area.get(at + 6)?);
    let is_next = end == area.len() || decode_entry(area, end, layout).is_ok();
    if !len.is_multiple_of(4) || !fits(1) || fits(name_len) || end > area.len() || !is_next {
        return None;
    }
    let room = area.get(at + dir::HEADER_BYTES..end)?;
    let room = room.get(..dir::NAME_MAX).unwrap_or(room);
    let plain = room.iter().position(|byte| *byte == 0).unwrap_or(room.len());
    let name_len = match plain {
        plain if !layout.encrypted || dir::is_dots(&room[..plain]) => plain,
        // The hash behind it says nothing of where it begins.
        _ if layout.stored_hash => return None,
        _ => room.len() - room.len() % ENCRYPTED_NAME_STEP,
    };
    let mut record = area.get(at..end)?.to_vec();
    put(&mut record, 6, &[u8::try_from(name_len).ok()?]);
    let kept = told(state, &record, layout)?;
    Some((kept, len))
}

/// Returns the entry of a record if it has a name that may be, and the type of the inode in use that it leads to.
fn told(state: &State, record: &[u8], layout: DirLayout) -> Option<Kept> {
    let entry = decode_entry(record, 0, layout).ok().filter(|entry| entry.is_used())?;
    let may_be = match layout.encrypted && !dir::is_dots(entry.name) {
        true => entry.name.len() >= ENCRYPTED_NAME_MIN,
        false => !entry.name.is_empty() && !entry.name.iter().any(|byte| matches!(byte, 0 | b'/')),
    };
    let view = state.view(entry.ino).filter(|_| may_be)?;
    let has_type = !layout.filetype || entry.file_type == FileType::from_mode(view.mode);
    has_type.then(|| Kept::of(&entry))
}

/// Returns the entry at `at` whatever its record says of its length, and the bytes that it needs: if it has a name that
/// may be, and the type of the inode in use that it leads to.
fn without_length(
    state: &State,
    area: &[u8],
    at: usize,
    layout: DirLayout,
) -> Option<(Kept, usize)> {
    let name_len = usize::from(*area.get(at + 6)?);
    let len = layout.needs(name_len);
    let needed = u32::try_from(len).ok()?;
    let mut record = area.get(at..at.checked_add(len)?)?.to_vec();
    put(&mut record, 4, &dir::encode_rec_len(needed, layout.block_size)?.to_le_bytes());
    Some((told(state, &record, layout)?, len))
}

fn is_plausible(area: &[u8], at: usize, layout: DirLayout, inodes: u32) -> bool {
    decode_entry(area, at, layout).is_ok_and(|entry| {
        entry.is_used()
            && entry.ino.0 <= inodes
            && !entry.name.is_empty()
            && !entry.name.iter().any(|byte| matches!(byte, 0 | b'/'))
            && (!layout.filetype || entry.file_type != FileType::Unknown)
    })
}

/// Sets one directory right.
pub(crate) fn fix(state: &mut State, dir: Ino, problems: &[Problem]) -> Fixed {
    let is_undone =
        revive(state, problems)? || unmark(state, problems)? || relink(state, problems)?;
    if is_undone {
        return Ok(());
    }
    change(state, dir, Changes::of(problems))
}

/// Where a directory has two names, and its `..` says that the second is its own: the directory of the first, and the
/// number of the one that has both. The directory of the first has a copy of a block of the other, as a rule.
pub(crate) fn misled(state: &State, problem: &Problem) -> Option<(Ino, Ino)> {
    let Problem::SecondParent { dir, ino, .. } = problem else { return None };
    let view = state.view(*ino)?;
    let is_own = view.dotdot == *dir && view.parent != *dir && view.parent.0 != 0;
    is_own.then_some((view.parent, *ino))
}

/// Takes the entries out of a directory that lead to some inodes.
pub(crate) fn forget(state: &mut State, dir: Ino, inodes: BTreeSet<u32>) -> Fixed {
    change(state, dir, Changes { forget: inodes, ..Changes::default() })
}

fn change(state: &mut State, dir: Ino, mut changes: Changes) -> Fixed {
    let mut record = state.load(dir)?;
    if record.has(InodeFlags::INLINE_DATA) {
        return fix_inline(state, record, &changes);
    }
    let layout = layout_of(state, &record);
    let map = state.read_map(&record)?;
    let mut blocks = Vec::new();
    for extent in &map.extents {
        changes.rebuild |= extent.state == ExtentState::Unwritten;
        if extent.state == ExtentState::Written {
            for at in 0..extent.len.0 {
                let place = extent.device_start.0 + u64::from(at);
                blocks.push((extent.file_start.0 + at, place));
            }
        }
    }
    let is_whole = blocks.iter().zip(0u32..).all(|((block, _), number)| *block == number);
    changes.rebuild |= !is_whole || blocks.is_empty();
    let is_indexed = record.has(InodeFlags::INDEX);
    let mut names = BTreeMap::new();
    let mut all = Vec::new();
    // Blocks to be written if nothing has to be rebuilt.
    let mut writes = Vec::new();
    for (number, place) in &blocks {
        let bytes = state.read_block(*place)?;
        let area = match dir::entry_area(&bytes, layout) {
            Ok(area) => area,
            Err(_) => bytes.as_slice(),
        };
        let (found, mut is_right) = salvage(state, area, layout);
        let before = found.clone();
        let kept = keep(state, dir, found, &changes, &mut names);
        let dots = before.iter().filter(|entry| dir::is_dots(&entry.name)).count();
        is_right &= without_dots(&before) == kept && dots == if *number == 0 { 2 } else { 0 };
        let is_sealed = !layout.checksum || dir::verify(state.seed_of(&record), &bytes).is_ok();
        if *number == 0 {
            is_right &= dots_are_right(state, dir, &bytes, layout, &before);
        }
        if !is_right || !is_sealed {
            // Blocks of the index are made anew with all the others.
            let is_node = is_indexed && (*number == 0 || kept.is_empty());
            changes.rebuild |=
                is_node && !(is_right && dir_index_fits(state, &record, *number, &bytes));
            writes.push((*number, *place, kept.clone()));
        }
        all.extend(kept);
    }
    let parent = parent_of(state, dir);
    if !changes.rebuild {
        let mut pending = Vec::new();
        for (number, place, kept) in &writes {
            if is_indexed && *number == 0 {
                continue;
            }
            let dots = (*number == 0).then_some((dir, parent));
            match block_of(state, &record, layout, dots, kept)? {
                Some(bytes) => pending.push((*place, bytes)),
                None => changes.rebuild = true,
            }
        }
        if !changes.rebuild {
            for (place, bytes) in pending {
                state.write_block(place, &bytes)?;
            }
            return Ok(());
        }
    }
    rebuild(state, &mut record, parent, all)
}

/// Returns whether an index block's checksum is right: it is no leaf then.
fn dir_index_fits(state: &State, record: &Record, number: u32, bytes: &[u8]) -> bool {
    use extant_format::htree::{NodePlace, verify};
    let place = if number == 0 { NodePlace::Root } else { NodePlace::Inner };
    !state.dir_layout.checksum || verify(state.seed_of(record), bytes, place).is_ok()
}

fn without_dots(entries: &[Kept]) -> Vec<Kept> {
    entries.iter().filter(|entry| !dir::is_dots(&entry.name)).cloned().collect()
}

/// The directory that `dir` is in, as far as that is known.
pub(crate) fn parent_of(state: &State, dir: Ino) -> Ino {
    if dir == Ino::ROOT {
        return Ino::ROOT;
    }
    match state.view(dir) {
        Some(view) if view.parent.0 != 0 => view.parent,
        Some(view) if view.dotdot.0 != 0 => view.dotdot,
        _ => Ino::ROOT,
    }
}

fn dots_are_right(
    state: &State,
    dir: Ino,
    bytes: &[u8],
    layout: DirLayout,
    found: &[Kept],
) -> bool {
    let (Some(dot), Some(dotdot)) = (found.first(), found.get(1)) else { return false };
    let is_typed = |entry: &Kept| !layout.filetype || entry.file_type == FileType::Directory;
    let is_ended = |at: usize| bytes.get(at) == Some(&0);
    dot.name == b"."
        && dot.ino == dir
        && u32_at(bytes, 4) & 0xffff == 12
        && is_ended(9)
        && dotdot.name == b".."
        && is_ended(22)
        && dotdot.ino == parent_of(state, dir)
        && is_typed(dot)
        && is_typed(dotdot)
}

/// Inodes that lie where a descriptor says that none are: their groups are looked at from now on.
fn revive(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let mut found = false;
    for problem in problems {
        let Problem::EntryInode { ino, why: "which is not in use", .. } = problem else { continue };
        let Some((group, at)) = state.sb.group_of_inode(*ino) else { continue };
        if state.group_checksum == GroupChecksum::None {
            continue;
        }
        let mut descriptor = state.group(group.0)?;
        let is_uninit = descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        let scanned = state.sb.inodes_per_group.saturating_sub(descriptor.itable_unused);
        // Another directory's names have led here in this round: what this one says of the group is
        // as old as what that one said.
        if state.revived.contains(&group) {
            found = true;
            continue;
        }
        if !is_uninit && at < scanned {
            continue;
        }
        let Ok(record) = state.load(*ino) else { continue };
        if record.links() == 0 || record.kind().is_none() {
            continue;
        }
        if is_uninit {
            state.write_block(descriptor.inode_bitmap.0, &vec![0; state.block_bytes()])?;
        }
        descriptor.flags.remove(GroupFlags::INODE_UNINIT);
        descriptor.itable_unused = 0;
        state.set_group(group.0, descriptor)?;
        state.revived.insert(group);
        found = true;
    }
    Ok(found)
}

/// Gives files links again that have a name and were never deleted: without the name they would be.
fn relink(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let mut found = false;
    for problem in problems {
        let Problem::EntryInode { ino, why: extant_check::NO_LINKS, .. } = problem else {
            continue;
        };
        let mut record = state.load(*ino)?;
        let is_whole = record.kind().is_some() && record.u32(record::DTIME) == 0;
        if record.links() != 0 || !is_whole || state.is_special(*ino) {
            continue;
        }
        // How many there are is counted later.
        record.put16(record::LINKS, if record.is_dir() { 2 } else { 1 });
        state.store(&record)?;
        found = true;
    }
    Ok(found)
}

/// Takes the mark of an attribute's value from files that have a name and that no attribute has: without the name
/// they would be deleted.
fn unmark(state: &mut State, problems: &[Problem]) -> Fixed<bool> {
    let mut found = false;
    for problem in problems {
        let Problem::EntryInode { ino, why: extant_check::HOLDS_VALUE, .. } = problem else {
            continue;
        };
        if state.exam.value_references(*ino) != 0 {
            continue;
        }
        let mut record = state.load(*ino)?;
        record.set_flag(InodeFlags::EA_INODE, false);
        state.store(&record)?;
        found = true;
    }
    Ok(found)
}

/// The entries that stay, `.` and `..` left out, with names and types as they should be.
fn keep(
    state: &State,
    dir: Ino,
    found: Vec<Kept>,
    changes: &Changes,
    names: &mut BTreeMap<Vec<u8>, Ino>,
) -> Vec<Kept> {
    let has = |flag| state.view(dir).is_some_and(|view| view.flags.contains(flag));
    let is_encrypted = has(InodeFlags::ENCRYPT);
    let is_strict =
        has(InodeFlags::CASEFOLD) && state.sb.encoding_flags.contains(EncodingFlags::STRICT);
    let mut kept = Vec::with_capacity(found.len());
    for mut entry in found {
        if dir::is_dots(&entry.name)
            || entry.name.is_empty()
            || changes.drop.contains(&(text(&entry.name), entry.ino.0))
            || changes.forget.contains(&entry.ino.0)
            || entry.ino.0 > state.sb.inodes_count
            || is_encrypted && entry.name.len() < ENCRYPTED_NAME_MIN
        {
            continue;
        }
        if !is_encrypted {
            for byte in &mut entry.name {
                if matches!(byte, 0 | b'/') {
                    *byte = b'.';
                }
            }
            if is_strict && std::str::from_utf8(&entry.name).is_err() {
                entry.name = utf8(&entry.name);
            }
            if dir::is_dots(&entry.name) {
                continue;
            }
        }
        if let Some(view) = state.view(entry.ino) {
            let wanted = FileType::from_mode(view.mode);
            if state.dir_layout.filetype
                && (changes.retype.contains(&entry.ino.0) || entry.file_type == FileType::Unknown)
            {
                entry.file_type = wanted;
            }
        }
        if changes.twice
            && let Some(ino) = names.get(&entry.name)
        {
            // One that says the same again, as an older copy of another block does, has nothing to
            // add: a second name would be a link that nobody made.
            let is_same = *ino == entry.ino;
            if is_same || is_encrypted || !rename(&mut entry.name, names) {
                continue;
            }
        }
        names.insert(entry.name.clone(), entry.ino);
        kept.push(entry);
    }
    kept
}

/// A name with points in place of what is no UTF-8.
fn utf8(name: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.extend_from_slice(chunk.valid().as_bytes());
        text.extend(std::iter::repeat_n(b'.', chunk.invalid().len()));
    }
    text
}

/// Gives a name an ending that makes it another than all others.
fn rename(name: &mut Vec<u8>, names: &BTreeMap<Vec<u8>, Ino>) -> bool {
    for number in 0..1000 {
        let end = format!("~{number}");
        let mut new = name.clone();
        new.truncate(dir::NAME_MAX - end.len());
        new.extend_from_slice(end.as_bytes());
        if !names.contains_key(&new) {
            *name = new;
            return true;
        }
    }
    false
}

/// A leaf with these entries; `None` when they do not fit.
fn block_of(
    state: &State,
    record: &Record,
    layout: DirLayout,
    dots: Option<(Ino, Ino)>,
    entries: &[Kept],
) -> Fixed<Option<Vec<u8>>> {
    let mut bytes = vec![0; state.block_bytes()];
    let mut writer = BlockWriter::new(&mut bytes, layout)?;
    if let Some((dir, parent)) = dots {
        for (ino, name) in [(dir, b".".as_slice()), (parent, b"..".as_slice())] {
            writer.push(&NewEntry { ino, name, file_type: FileType::Directory, hash: None })?;
        }
    }
    for entry in entries {
        if !writer.push(&entry.masked().as_new())? {
            return Ok(None);
        }
    }
    let seed = state.csum_seed_of(record);
    writer.finish(seed);
    unmask(&mut bytes, layout, &mut entries.iter(), seed);
    Ok(Some(bytes))
}

/// The hash of the index of a directory; `None`: it gets none.
fn hash_of(state: &State, record: &Record) -> Option<HashVersion> {
    if !state.sb.features.has_compat(Compat::DIR_INDEX) || record.has(InodeFlags::CASEFOLD) {
        return None;
    }
    let layout = state.index_layout(state.dir_layout);
    let raw = state.sb.default_hash.to_raw();
    HashVersion::from_disk(raw, layout.unsigned_hash)
        .or_else(|| HashVersion::from_disk(1, layout.unsigned_hash))
        .filter(|version| *version != HashVersion::SipHash)
}

/// Writes a directory anew, on blocks that nothing used. The record switches over.
pub(crate) fn rebuild(
    state: &mut State,
    record: &mut Record,
    parent: Ino,
    mut entries: Vec<Kept>,
) -> Fixed {
    let layout = layout_of(state, record);
    let hash = hash_of(state, record);
    if let Some(version) = hash {
        let seed = HashSeed::from_words(state.sb.hash_seed);
        for entry in &mut entries {
            entry.hash = name_hash(version, &seed, &entry.name);
        }
        entries.sort_by(|a, b| {
            let key = |one: &Kept| one.hash.unwrap_or_default();
            key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name))
        });
    }
    let index_layout = state.index_layout(layout);
    let options = IndexOptions { layout: index_layout, hash, fill_percent: FILL_PERCENT };
    let planned = entries.iter().map(|entry| PlannedEntry {
        name_len: entry.name.len() as u8,
        hash: entry.hash.unwrap_or_default(),
    });
    let plan = HtreePlan::new(options, planned)?;
    let count = plan.block_count();
    let extents = match state.take_file(count) {
        Ok(extents) => extents,
        // No room beside the old blocks: over them.
        Err(Trouble::Full(what)) => {
            let old = state.read_map(record)?.extents;
            let usable: Vec<Extent> = first_blocks(&old, count);
            let room: u32 = usable.iter().map(|extent| extent.len.0).sum();
            if room < count {
                return Err(Trouble::Full(what));
            }
            usable
        }
        Err(trouble) => return Err(trouble),
    };
    let seed = state.csum_seed_of(record);
    let dots = (record.ino, parent);
    let masked: Vec<Kept> = entries.iter().map(Kept::masked).collect();
    let news = masked.iter().map(Kept::as_new);
    let mut names = entries.iter();
    let has_raw = entries.iter().any(Kept::is_raw);
    plan.emit::<Trouble>(dots, seed, news, |block, bytes| {
        let place = place_of(&extents, block.0);
        let place = place.ok_or_else(|| Trouble::cannot("a block without a place"))?;
        if !has_raw {
            return state.write_block(place, bytes);
        }
        let mut bytes = bytes.to_vec();
        unmask(&mut bytes, layout, &mut names, seed);
        state.write_block(place, &bytes)
    })?;
    if record.has(InodeFlags::INLINE_DATA) {
        record.set_flag(InodeFlags::INLINE_DATA, false);
        record.set_flag(InodeFlags::EXTENTS, state.has_extents());
    }
    state.write_map(record, &extents)?;
    record.set_flag(InodeFlags::INDEX, plan.is_indexed());
    record.set_size(u64::from(count) * state.block_bytes() as u64);
    state.store(record)
}

fn place_of(extents: &[Extent], block: u32) -> Option<u64> {
    let extent = extents
        .iter()
        .find(|extent| extent.file_start.0 <= block && u64::from(block) < end_of(extent))?;
    Some(extent.device_start.0 + u64::from(block - extent.file_start.0))
}

/// The first `count` blocks of a file, one after the other as blocks from 0 on.
fn first_blocks(extents: &[Extent], count: u32) -> Vec<Extent> {
    let mut list = Vec::new();
    let mut at = 0;
    for extent in extents {
        let len = extent.len.0.min(count - at);
        if len == 0 {
            break;
        }
        let (file_start, state) = (FileBlock(at), ExtentState::Written);
        list.push(Extent { file_start, len: BlockCount(len), state, ..*extent });
        at += len;
    }
    list
}

/// Lets `..` of a directory lead to `parent`.
pub(crate) fn set_parent(state: &mut State, dir: Ino, parent: Ino) -> Fixed {
    let mut record = state.load(dir)?;
    if record.has(InodeFlags::INLINE_DATA) {
        put(&mut record.bytes, record::BLOCK, &parent.0.to_le_bytes());
        return state.store(&record);
    }
    let layout = layout_of(state, &record);
    let map = state.read_map(&record)?;
    let Some(place) = place_of(&map.extents, 0) else {
        return rebuild(state, &mut record, parent, Vec::new());
    };
    let mut bytes = state.read_block(place)?;
    let is_plain = u32_at(&bytes, 0) == dir.0
        && u32_at(&bytes, 4) & 0xffff == 12
        && bytes.get(18) == Some(&2)
        && bytes.get(20..22) == Some(b"..");
    if !is_plain {
        let (entries, _) = all_entries(state, &record, layout)?;
        return rebuild(state, &mut record, parent, entries);
    }
    put(&mut bytes, 12, &parent.0.to_le_bytes());
    if layout.filetype {
        put(&mut bytes, 19, &[FileType::Directory.raw()]);
    }
    if layout.checksum {
        let seed = state.seed_of(&record);
        if record.has(InodeFlags::INDEX) {
            use extant_format::htree::{NodePlace, seal};
            seal(seed, &mut bytes, NodePlace::Root);
        } else {
            dir::seal(seed, &mut bytes);
        }
    }
    state.write_block(place, &bytes)
}

/// All entries of a directory of blocks but `.` and `..`, and its blocks.
pub(crate) fn all_entries(
    state: &State,
    record: &Record,
    layout: DirLayout,
) -> Fixed<(Vec<Kept>, Places)> {
    let map = state.read_map(record)?;
    let (mut entries, mut blocks) = (Vec::new(), Vec::new());
    for extent in map.extents.iter().filter(|extent| extent.state == ExtentState::Written) {
        for at in 0..extent.len.0 {
            let place = extent.device_start.0 + u64::from(at);
            let bytes = state.read_block(place)?;
            let area = dir::entry_area(&bytes, layout).unwrap_or(&bytes);
            let (found, _) = salvage(state, area, layout);
            entries.extend(found.into_iter().filter(|entry| !dir::is_dots(&entry.name)));
            blocks.push((extent.file_start.0 + at, place));
        }
    }
    Ok((entries, blocks))
}

/// The entries of an inline directory, and how many bytes each of its two areas has.
pub(crate) fn inline_entries(state: &State, record: &Record) -> (Ino, Vec<Kept>) {
    let layout = layout_of(state, record);
    let area = record.block_area();
    let parent = Ino(u32_at(&area, 0));
    let (mut entries, _) = salvage(state, area.get(4..).unwrap_or(&[]), layout);
    if let Some(range) = xattrs::inline_value(record) {
        let value = record.bytes.get(range).unwrap_or(&[]);
        entries.extend(salvage(state, value, layout).0);
    }
    entries.retain(|entry| !dir::is_dots(&entry.name));
    (parent, entries)
}

fn fix_inline(state: &mut State, mut record: Record, changes: &Changes) -> Fixed {
    let (_, entries) = inline_entries(state, &record);
    let mut names = BTreeMap::new();
    let kept = keep(state, record.ino, entries, changes, &mut names);
    let parent = parent_of(state, record.ino);
    write_inline(state, &mut record, parent, kept)
}

/// Writes an inline directory in the room that it has, else as blocks.
pub(crate) fn write_inline(
    state: &mut State,
    record: &mut Record,
    parent: Ino,
    entries: Vec<Kept>,
) -> Fixed {
    let layout = layout_of(state, record);
    let value = xattrs::inline_value(record);
    let room = value.as_ref().map_or(0, |range| range.len());
    let news = entries.iter().map(Kept::as_new);
    if let Ok((area, rest)) = inline::build_dir(parent, news, layout, 60 + room)
        && value.is_some()
    {
        record.set_block_area(&area);
        if let Some(range) = value
            && let Some(place) = record.bytes.get_mut(range)
        {
            place.fill(0);
            // Free space behind the last entry belongs to it.
            let mut padded = vec![0; room];
            put(&mut padded, 0, &rest);
            stretch(&mut padded, rest.len(), layout);
            place.copy_from_slice(&padded);
        }
        record.set_size(60 + room as u64);
        return state.store(record);
    }
    rebuild(state, record, parent, entries)
}

/// Lets the last record of the first `used` bytes reach the end of the area.
fn stretch(area: &mut [u8], used: usize, layout: DirLayout) {
    let mut last = 0;
    let mut at = 0;
    while at < used {
        let Ok(entry) = decode_entry(area.get(..used).unwrap_or(&[]), at, layout) else { break };
        last = at;
        at += (entry.rec_len as usize).max(4);
    }
    let len = u32::try_from(area.len() - last).unwrap_or(0);
    if let Some(raw) = dir::encode_rec_len(len, layout.block_size) {
        put(area, last + 4, &raw.to_le_bytes());
    }
}
