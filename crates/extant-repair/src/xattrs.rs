//! Extended attributes: what is damaged is taken out, what follows from the rest is set.

use extant_base::{FsBlock, Ino};
use extant_check::Problem;
use extant_format::xattr;

use crate::error::Fixed;
use crate::state::State;
use extant_format::record::{Record, put, u16_at, u32_at};

/// Offset of the entries in a block.
const BLOCK_HEADER: usize = 32;
/// Offset of the entries in the space of an inode.
const INODE_HEADER: usize = 4;

/// An entry of a damaged area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct RawEntry {
    at: usize,
    len: usize,
    value_at: usize,
    value_len: usize,
    value_inode: u32,
    hash: u32,
}

/// The entry at `at`; `None`: the end, or none that could be followed. Offsets of values count from `base`.
fn entry(bytes: &[u8], at: usize) -> Option<RawEntry> {
    let first = u32_at(bytes, at);
    if at.saturating_add(16) > bytes.len() || first == 0 {
        return None;
    }
    let name_len = usize::from(*bytes.get(at)?);
    let len = (16 + name_len + 3) & !3;
    bytes.get(at..at + len)?;
    Some(RawEntry {
        at,
        len,
        value_at: usize::from(u16_at(bytes, at + 2)),
        value_inode: u32_at(bytes, at + 4),
        value_len: u32_at(bytes, at + 8) as usize,
        hash: u32_at(bytes, at + 12),
    })
}

/// Kind of an area, and values in inodes that must not be used.
struct Rules<'a> {
    /// Bytes before the first entry, from the area's start.
    start: usize,
    /// Base of the offsets of values.
    base: usize,
    is_block: bool,
    bad_values: &'a [Ino],
    has_ea_inode: bool,
    /// Offsets from `base`, and stored hashes, of entries with a wrong hash.
    bad_hashes: &'a [(u32, u32)],
}

/// Takes out the entries of an area that cannot be; whether any was.
fn clean(bytes: &mut [u8], rules: &Rules<'_>) -> bool {
    let mut changed = false;
    let mut at = rules.start;
    let mut taken: Vec<(usize, usize)> = Vec::new();
    let mut names: Vec<Vec<u8>> = Vec::new();
    let mut last = None;
    loop {
        let Some(one) = entry(bytes, at) else {
            // The end mark, or bytes that are no entry: the list ends here.
            if bytes.get(at..at + 4).is_some_and(|mark| mark != [0; 4]) {
                put(bytes, at, &[0; 4]);
                changed = true;
            } else if bytes.get(at..at + 4).is_none() {
                // No room for the mark: the last entry goes. Its value is elsewhere or empty, or it would have gone before.
                let Some(rest) = last.and_then(|last| bytes.get_mut(last..)) else { break };
                rest.fill(0);
                changed = true;
            }
            break;
        };
        // A value of no bytes may be said to lie anywhere in the area.
        if one.value_inode == 0
            && one.value_len == 0
            && rules.base.saturating_add(one.value_at) > bytes.len()
        {
            put(bytes, one.at + 2, &[0; 2]);
            changed = true;
        }
        if is_right(bytes, &one, rules, &taken, &names) {
            if one.value_inode == 0 && one.value_len > 0 {
                let from = rules.base + one.value_at;
                taken.push((from, from + ((one.value_len + 3) & !3)));
            }
            names.push(key(bytes, &one));
            last = Some(at);
            at += one.len;
            continue;
        }
        // The entries behind it move forward.
        let end = list_end(bytes, at + one.len);
        bytes.copy_within(at + one.len..end, at);
        if let Some(rest) = bytes.get_mut(end - one.len..end) {
            rest.fill(0);
        }
        changed = true;
    }
    changed
}

fn key(bytes: &[u8], one: &RawEntry) -> Vec<u8> {
    let name_len = bytes.get(one.at).copied().map_or(0, usize::from);
    let mut key = bytes.get(one.at + 1..one.at + 2).unwrap_or(&[]).to_vec();
    key.extend(bytes.get(one.at + 16..one.at + 16 + name_len).unwrap_or(&[]));
    key
}

/// Returns where the list of entries ends, its mark included, as far as entries can be followed.
fn list_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while let Some(one) = entry(bytes, at) {
        at += one.len;
    }
    (at + 4).min(bytes.len())
}

fn is_right(
    bytes: &[u8],
    one: &RawEntry,
    rules: &Rules<'_>,
    taken: &[(usize, usize)],
    names: &[Vec<u8>],
) -> bool {
    let name_len = bytes.get(one.at).copied().map_or(0, usize::from);
    let index = bytes.get(one.at + 1).copied().unwrap_or(0);
    let name = bytes.get(one.at + 16..one.at + 16 + name_len).unwrap_or(&[]);
    if name.contains(&0) || (name.is_empty() && !matches!(index, 2 | 3)) {
        return false;
    }
    if rules.is_block && index == 0 {
        return false;
    }
    if names.contains(&key(bytes, one)) {
        return false;
    }
    let offset = u32::try_from(one.at.saturating_sub(rules.base)).unwrap_or(u32::MAX);
    // Its place before others were removed is unknown; hashes rarely repeat.
    if rules.bad_hashes.iter().any(|(at, hash)| *hash == one.hash && offset <= *at)
        && one.value_inode != 0
    {
        return false;
    }
    if one.value_inode != 0 {
        return rules.has_ea_inode && !rules.bad_values.contains(&Ino(one.value_inode));
    }
    if one.value_len == 0 {
        return !rules.is_block && one.hash == 0 || xattr::entry_hash_matches(one.hash, name, &[]);
    }
    let from = rules.base.saturating_add(one.value_at);
    let to = from.saturating_add((one.value_len.saturating_add(3)) & !3);
    if to > bytes.len() || from < list_end(bytes, one.at) || one.value_len > 1 << 24 {
        return false;
    }
    if taken.iter().any(|(start, end)| from < *end && *start < to) {
        return false;
    }
    let value = bytes.get(from..from + one.value_len).unwrap_or(&[]);
    let matters = rules.is_block || one.hash != 0;
    !matters || xattr::entry_hash_matches(one.hash, name, value)
}

/// Returns whether there are attributes in the space of an inode.
pub(crate) fn has_entries(record: &Record) -> bool {
    let space = record.bytes.get(record.xattr_at()..).unwrap_or(&[]);
    u32_at(space, 0) == xattr::MAGIC && entry(space, INODE_HEADER).is_some()
}

/// Returns whether the inode leads to a block of attributes.
pub(crate) fn is_block(state: &State, record: &Record) -> Fixed<bool> {
    let block = record.file_acl(state.is_wide()).0;
    if !state.in_range(block, 1) {
        return Ok(false);
    }
    let bytes = state.read_block(block)?;
    Ok(u32_at(&bytes, 0) == xattr::MAGIC && u32_at(&bytes, 8) == 1)
}

/// Sets the attributes of one inode right.
pub(crate) fn fix(state: &mut State, ino: Ino, problems: &[Problem]) -> Fixed {
    let bad: Vec<Ino> = problems
        .iter()
        .filter_map(|problem| match problem {
            Problem::XattrInode { why: extant_check::VALUE_COUNT, .. } => None,
            Problem::XattrInode { value, .. } => Some(*value),
            _ => None,
        })
        .collect();
    let bad_hashes: Vec<(u32, u32)> = problems
        .iter()
        .filter_map(|problem| match problem {
            Problem::XattrEntryHash { offset, stored, .. } => Some((*offset, *stored)),
            _ => None,
        })
        .collect();
    let has_ea_inode = state.sb.features.has(extant_format::features::Feature::EA_INODE);
    let mut record = state.load(ino)?;
    let at = record.xattr_at();
    let mut changed = false;
    if let Some(space) = record.bytes.get_mut(at..)
        && u32_at(space, 0) == xattr::MAGIC
    {
        let rules = Rules {
            start: INODE_HEADER,
            base: INODE_HEADER,
            is_block: false,
            bad_values: &bad,
            has_ea_inode,
            bad_hashes: &bad_hashes,
        };
        changed |= clean(space, &rules);
    }
    let block = record.file_acl(state.is_wide()).0;
    if block != 0 && state.in_range(block, 1) {
        let mut bytes = state.read_block(block)?;
        if u32_at(&bytes, 0) != xattr::MAGIC || u32_at(&bytes, 8) != 1 {
            record.set_file_acl(0, true);
            changed = true;
        } else {
            let rules = Rules {
                start: BLOCK_HEADER,
                base: 0,
                is_block: true,
                bad_values: &bad,
                has_ea_inode,
                bad_hashes: &bad_hashes,
            };
            clean(&mut bytes, &rules);
            if entry(&bytes, BLOCK_HEADER).is_none() {
                record.set_file_acl(0, true);
                changed = true;
            }
            store_block(state, block, &mut bytes)?;
        }
    }
    if changed {
        state.store(&record)?;
    }
    Ok(())
}

/// Writes an attribute block with its hash and checksum.
fn store_block(state: &State, block: u64, bytes: &mut [u8]) -> Fixed {
    let mut hashes = Vec::new();
    let mut at = BLOCK_HEADER;
    while let Some(one) = entry(bytes, at) {
        hashes.push(one.hash);
        at += one.len;
    }
    let hash = xattr::block_hash(hashes);
    put(bytes, 12, &hash.to_le_bytes());
    if state.sb.features.metadata_csum() {
        xattr::seal(state.seed, FsBlock(block), bytes);
    }
    state.write_block(block, bytes)
}

/// Sets the number of references of an attribute block.
pub(crate) fn set_references(state: &mut State, block: u64, counted: u32) -> Fixed {
    let mut bytes = state.read_block(block)?;
    put(&mut bytes, 4, &counted.to_le_bytes());
    store_block(state, block, &mut bytes)
}

/// Returns where the entry of `system.data` is in the space of an inode.
fn inline_entry(space: &[u8]) -> Option<RawEntry> {
    if u32_at(space, 0) != xattr::MAGIC {
        return None;
    }
    let mut at = INODE_HEADER;
    while let Some(one) = entry(space, at) {
        let name = space.get(at + 16..at + 20);
        if space.get(at) == Some(&4) && space.get(at + 1) == Some(&7) && name == Some(b"data") {
            return Some(one);
        }
        at += one.len;
    }
    None
}

/// Returns whether the inode has a value of inline data.
pub(crate) fn has_inline_value(record: &Record) -> bool {
    inline_value_len(record).is_some()
}

/// Bytes of the value of inline data.
pub(crate) fn inline_value_len(record: &Record) -> Option<usize> {
    let space = record.bytes.get(record.xattr_at()..)?;
    inline_entry(space).map(|one| one.value_len)
}

/// The place of the value of inline data in the record.
pub(crate) fn inline_value(record: &Record) -> Option<std::ops::Range<usize>> {
    let at = record.xattr_at();
    let space = record.bytes.get(at..)?;
    let one = inline_entry(space)?;
    let from = at + INODE_HEADER + one.value_at;
    let range = from..from + one.value_len;
    record.bytes.get(range.clone())?;
    Some(range)
}

/// Adds `system.data` with an empty value; false when there is no room before the values of the others.
/// What else lies there is debris: no entry leads to it.
pub(crate) fn add_empty_inline_value(record: &mut Record) -> bool {
    let at = record.xattr_at();
    let Some(space) = record.bytes.get_mut(at..) else { return false };
    let mut end = INODE_HEADER;
    let mut lowest = space.len();
    if u32_at(space, 0) == xattr::MAGIC {
        while let Some(one) = entry(space, end) {
            if one.value_inode == 0 && one.value_len > 0 {
                lowest = lowest.min(INODE_HEADER.saturating_add(one.value_at));
            }
            end += one.len;
        }
    } else {
        space.fill(0);
    }
    // The entry, and the mark of the end.
    let Some(room) = space.get_mut(end..end + 24).filter(|_| end + 24 <= lowest) else {
        return false;
    };
    room.fill(0);
    put(space, 0, &xattr::MAGIC.to_le_bytes());
    put(space, end, &[4, 7, 0, 0]);
    put(space, end + 16, b"data");
    true
}
