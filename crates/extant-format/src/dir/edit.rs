//! Changing a block in place. The caller seals it afterwards.

use super::scan::kept_bytes;
use super::write::put_entry;
use super::{
    DirEntry, DirFault, DirLayout, FileType, HEADER_BYTES, NewEntry, Records, TAIL_FILE_TYPE,
    encode_rec_len,
};
use crate::le;
use extant_base::Ino;

/// The entry of `name` in an area; names are compared byte by byte.
///
/// Stops at the entry it finds, so that a fault behind it stays unseen, as in the kernel.
pub fn find<'a>(
    area: &'a [u8],
    layout: DirLayout,
    name: &[u8],
) -> Result<Option<DirEntry<'a>>, DirFault> {
    for entry in Records::of_area(area, layout).used() {
        let entry = entry?;
        if entry.name == name {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

/// Adds an entry in the first room that is large enough: free space, or the unused end of another
/// entry. Returns where the entry now starts; `None`, and nothing changed, when there is no room.
///
/// `area` is a whole block with its tail, or an inline area. Whether the name is there already is
/// for the caller.
///
/// # Errors
///
/// A fault of the area (D1, D2), or an entry that may not be stored. `NoTail` for a whole block that
/// should end with a checksum and does not, such as a block of an index.
pub fn insert(
    area: &mut [u8],
    layout: DirLayout,
    entry: &NewEntry<'_>,
) -> Result<Option<u32>, DirFault> {
    entry.check(layout)?;
    let needs = entry.needs(layout);
    let mut slot = None;
    let mut has_tail = false;
    for old in Records::of_area(area, layout) {
        let old = old?;
        has_tail = is_tail(area, &old);
        if slot.is_some() || has_tail {
            continue;
        }
        let size = le::index(old.rec_len);
        let kept = if old.is_used() { kept_bytes(layout, &old) } else { 0 };
        if size.saturating_sub(kept) >= needs {
            slot = Some((le::index(old.offset), kept, size));
        }
    }
    // Without a tail of its own, sealing the block would write over its last entry.
    if layout.checksum && area.len() == layout.block_size.len() && !has_tail {
        return Err(DirFault::NoTail);
    }
    let Some((at, kept, size)) = slot else { return Ok(None) };
    let start = at.saturating_add(kept);
    let rec_len = size.saturating_sub(kept);
    if put_entry(area, start, rec_len, entry, layout).is_none() {
        return Ok(None);
    }
    if kept > 0 {
        set_rec_len(area, at, kept, layout);
    }
    Ok(Some(le::narrow(start)))
}

/// Removes the used entry that starts at byte `offset`: its room goes to the entry before it, or
/// becomes free space when it is the first. Name and hash are wiped.
///
/// # Errors
///
/// A fault of the area, or `NoEntry`.
pub fn remove(area: &mut [u8], layout: DirLayout, offset: u32) -> Result<(), DirFault> {
    let mut before = None;
    let mut found = None;
    for entry in Records::of_area(area, layout) {
        let entry = entry?;
        if entry.offset == offset && entry.is_used() {
            found = Some((before, le::index(entry.rec_len)));
        }
        before = Some((le::index(entry.offset), le::index(entry.rec_len)));
    }
    let (before, size) = found.ok_or(DirFault::NoEntry { offset })?;
    let at = le::index(offset);
    if let Some((before, before_size)) = before {
        if let Some(room) = area.get_mut(at..at.saturating_add(size)) {
            room.fill(0);
        }
        set_rec_len(area, before, before_size.saturating_add(size), layout);
    } else {
        // rec_len stays.
        if let Some(ino) = area.get_mut(at..at.saturating_add(4)) {
            ino.fill(0);
        }
        if let Some(room) = area.get_mut(at.saturating_add(6)..at.saturating_add(size)) {
            room.fill(0);
        }
    }
    Ok(())
}

/// Lets the used entry at byte `offset` name another inode, as a rename over it does.
pub fn set_target(
    area: &mut [u8],
    layout: DirLayout,
    offset: u32,
    ino: Ino,
    file_type: FileType,
) -> Result<(), DirFault> {
    if ino.0 == 0 {
        return Err(DirFault::NoInode);
    }
    let mut entries = Records::of_area(area, layout);
    let is_there = loop {
        match entries.next() {
            None => break false,
            Some(entry) => {
                let entry = entry?;
                if entry.offset == offset {
                    break entry.is_used();
                }
            }
        }
    };
    let at = le::index(offset);
    let place = area.get_mut(at..).and_then(|rest| rest.first_chunk_mut::<HEADER_BYTES>());
    let (true, Some(header)) = (is_there, place) else {
        return Err(DirFault::NoEntry { offset });
    };
    let [_, _, _, _, r0, r1, name_len, _] = *header;
    let [i0, i1, i2, i3] = ino.0.to_le_bytes();
    let kind = if layout.filetype { file_type.raw() } else { 0 };
    *header = [i0, i1, i2, i3, r0, r1, name_len, kind];
    Ok(())
}

/// Returns whether a free entry is the checksum tail at the end of a block.
fn is_tail(area: &[u8], entry: &DirEntry<'_>) -> bool {
    let kind_at = le::index(entry.offset).saturating_add(7);
    !entry.is_used()
        && entry.rec_len == 12
        && entry.name.is_empty()
        && area.get(kind_at) == Some(&TAIL_FILE_TYPE)
        && kind_at.saturating_add(5) == area.len()
}

fn set_rec_len(area: &mut [u8], at: usize, rec_len: usize, layout: DirLayout) {
    // The sum of two records inside one block: always encodes, always in the area.
    if let Some(raw) = encode_rec_len(le::narrow(rec_len), layout.block_size) {
        let _in_area = le::put(area, at.saturating_add(4), &raw.to_le_bytes());
    }
}
