//! One pass over the entries of a block or area: a name, and room for another.
//!
//! This is the inner loop of every lookup, insertion and removal. It checks of each record what keeps
//! the walk inside the area (D1), and nothing twice.

use super::write::put_entry;
use super::{
    DirEntry, DirFault, DirLayout, FileType, HEADER_BYTES, NewEntry, RECORD_MIN, decode_entry,
    decode_rec_len, encode_rec_len, tail_checksum,
};
use crate::le;
use extant_base::{BlockSize, Ino};

/// A used entry, and the record before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// Where the entry starts.
    pub offset: u32,
    /// Where the record before it starts; `None` for the first.
    pub before: Option<u32>,
    /// The inode it names.
    pub ino: Ino,
    /// What it says about the inode.
    pub file_type: FileType,
}

/// Room for an entry: free space, or the unused end of a used entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Where the record starts that has the room.
    pub offset: u32,
    /// Bytes at its start that it needs for itself; 0 for free space.
    pub kept: u32,
    /// The length of the record, in bytes.
    pub rec_len: u32,
}

/// The result of [`scan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scan {
    /// The entry looked for. What lies behind it was not looked at.
    Hit(Hit),
    /// The entry is not there.
    Miss {
        /// The first room that is large enough.
        room: Option<Room>,
        /// Bytes that used entries need, without the gaps between them.
        used: u32,
    },
}

/// The bytes of a whole block that hold entries: all but its tail.
///
/// # Errors
///
/// `Length`; `NoTail` for a block that must end with a checksum and does not, such as a block of an
/// index.
pub fn entry_area(block: &[u8], layout: DirLayout) -> Result<&[u8], DirFault> {
    super::check_block(block, layout)?;
    if !layout.checksum {
        return Ok(block);
    }
    tail_checksum(block).ok_or(DirFault::NoTail)?;
    block.get(..layout.entry_bytes()).ok_or(DirFault::NoTail)
}

/// Looks for the entry whose name `matches`, and for room for `needs` bytes on the way.
///
/// `area` is an inline area, a whole block, or, where room is wanted, what [`entry_area`] gives. A
/// `needs` of `usize::MAX` looks for no room.
///
/// # Errors
///
/// The first record that breaks D1. Faults behind a hit stay unseen, as in the kernel.
#[inline]
pub fn scan(
    area: &[u8],
    layout: DirLayout,
    needs: usize,
    matches: impl FnMut(&[u8]) -> bool,
) -> Result<Scan, DirFault> {
    walk(area, layout, needs, false, matches)
}

/// [`scan`] for a name that is known to be missing: ends at the first room, and `used` counts what
/// lies before it.
///
/// # Errors
///
/// As [`scan`].
#[inline]
pub fn scan_for_room(area: &[u8], layout: DirLayout, needs: usize) -> Result<Scan, DirFault> {
    walk(area, layout, needs, true, |_| false)
}

#[inline(always)]
fn walk(
    area: &[u8],
    layout: DirLayout,
    needs: usize,
    ends_at_room: bool,
    mut matches: impl FnMut(&[u8]) -> bool,
) -> Result<Scan, DirFault> {
    // Everything but the usual shape of an entry goes through the decoder.
    let usual =
        layout.filetype && !layout.stored_hash && layout.block_size.bytes() != BlockSize::MAX_BYTES;
    let mut room = None;
    let mut used = 0usize;
    let mut before = None;
    let mut at = 0usize;
    while at < area.len() {
        let rest = area.get(at..).unwrap_or(&[]);
        let Some((header, body)) = rest.split_first_chunk::<HEADER_BYTES>() else {
            return Err(fault_at(area, at, layout));
        };
        let [i0, i1, i2, i3, r0, r1, name_len, kind] = *header;
        let ino = u32::from_le_bytes([i0, i1, i2, i3]);
        let (rec_len, name, kept);
        if usual {
            rec_len = usize::from(u16::from_le_bytes([r0, r1]));
            let name_len = usize::from(name_len);
            kept = DirLayout::dots_need(name_len).max(RECORD_MIN);
            let left = rest.len().wrapping_sub(rec_len);
            if rec_len < kept || rec_len & 3 != 0 || rec_len > rest.len() || (1..12).contains(&left)
            {
                return Err(fault_at(area, at, layout));
            }
            name = body.get(..name_len).unwrap_or(&[]);
        } else {
            let entry = decode_entry(area, at, layout)?;
            rec_len = le::index(decode_rec_len(u16::from_le_bytes([r0, r1]), layout.block_size));
            name = entry.name;
            kept = kept_bytes(layout, &entry);
        }
        if ino != 0 {
            if matches(name) {
                let file_type =
                    if layout.filetype { FileType::from_raw(kind) } else { FileType::Unknown };
                let hit = Hit { offset: le::narrow(at), before, ino: Ino(ino), file_type };
                return Ok(Scan::Hit(hit));
            }
            used = used.saturating_add(kept);
        }
        if room.is_none() {
            let kept = if ino != 0 { kept } else { 0 };
            if rec_len.saturating_sub(kept) >= needs {
                let (offset, kept) = (le::narrow(at), le::narrow(kept));
                room = Some(Room { offset, kept, rec_len: le::narrow(rec_len) });
                if ends_at_room {
                    break;
                }
            }
        }
        before = Some(le::narrow(at));
        at = at.saturating_add(rec_len);
    }
    Ok(Scan::Miss { room, used: le::narrow(used) })
}

/// [`scan`] for these very bytes as a name, without looking for room: the shortest way to an entry.
///
/// # Errors
///
/// As [`scan`].
pub fn scan_for_name(area: &[u8], layout: DirLayout, name: &[u8]) -> Result<Scan, DirFault> {
    let usual =
        layout.filetype && !layout.stored_hash && layout.block_size.bytes() != BlockSize::MAX_BYTES;
    if !usual {
        return scan(area, layout, usize::MAX, same_name(name));
    }
    let matches = same_name(name);
    let (mut before, mut at) = (None, 0usize);
    while at < area.len() {
        let header = area.get(at..).and_then(|rest| rest.first_chunk::<HEADER_BYTES>());
        let Some(header) = header else { return Err(fault_at(area, at, layout)) };
        let [i0, i1, i2, i3, r0, r1, name_len, kind] = *header;
        let rec_len = usize::from(u16::from_le_bytes([r0, r1]));
        let name_bytes = usize::from(name_len);
        let next = at.saturating_add(rec_len);
        // What `decode_entry` asks of a record, in the order that fails seldom.
        let left = area.len().wrapping_sub(next);
        if rec_len < RECORD_MIN
            || rec_len & 3 != 0
            || next > area.len()
            || (1..12).contains(&left)
            || name_bytes.saturating_add(HEADER_BYTES) > rec_len
        {
            return Err(fault_at(area, at, layout));
        }
        if name_bytes == name.len() {
            let start = at.saturating_add(HEADER_BYTES);
            let stored = area.get(start..start.saturating_add(name_bytes)).unwrap_or(&[]);
            let ino = u32::from_le_bytes([i0, i1, i2, i3]);
            if ino != 0 && matches(stored) {
                let file_type = FileType::from_raw(kind);
                let hit = Hit { offset: le::narrow(at), before, ino: Ino(ino), file_type };
                return Ok(Scan::Hit(hit));
            }
        }
        before = Some(le::narrow(at));
        at = next;
    }
    Ok(Scan::Miss { room: None, used: 0 })
}

/// A matcher for [`scan`]: the same bytes. Names of one directory often begin alike, so the ends are
/// compared first.
#[inline]
pub fn same_name(wanted: &[u8]) -> impl Fn(&[u8]) -> bool + '_ {
    let end = wanted.last_chunk::<8>().copied().map(u64::from_le_bytes);
    move |stored| {
        stored.len() == wanted.len()
            && stored.last_chunk::<8>().copied().map(u64::from_le_bytes) == end
            && stored == wanted
    }
}

/// The fault of the record at byte `at`, as the decoder words it.
#[cold]
fn fault_at(area: &[u8], at: usize, layout: DirLayout) -> DirFault {
    let (offset, block) = (le::narrow(at), le::narrow(area.len()));
    let past = DirFault::PastBlock { offset, rec_len: 0, block };
    decode_entry(area, at, layout).err().unwrap_or(past)
}

/// Bytes that a used entry needs for itself. A hostile one may have no name, and still needs 12.
pub(super) fn kept_bytes(layout: DirLayout, entry: &DirEntry<'_>) -> usize {
    let needs = if entry.is_dots() {
        DirLayout::dots_need(entry.name.len())
    } else {
        layout.needs(entry.name.len())
    };
    needs.max(RECORD_MIN)
}

/// Stores an entry in the room that [`scan`] found in the same area, which did not change since.
///
/// # Errors
///
/// An entry that may not be stored; `NoEntry` when there is no such room.
pub fn insert_at(
    area: &mut [u8],
    layout: DirLayout,
    room: Room,
    entry: &NewEntry<'_>,
) -> Result<(), DirFault> {
    entry.check(layout)?;
    let no_room = DirFault::NoEntry { offset: room.offset };
    let (at, kept) = (le::index(room.offset), le::index(room.kept));
    let size = le::index(room.rec_len).checked_sub(kept).ok_or(no_room)?;
    let stored = rec_len_at(area, at, layout).ok_or(no_room)?;
    if size < entry.needs(layout) || stored != room.rec_len {
        return Err(no_room);
    }
    put_entry(area, at.saturating_add(kept), size, entry, layout).ok_or(no_room)?;
    if kept > 0 {
        put_rec_len(area, at, kept, layout).ok_or(no_room)?;
    }
    Ok(())
}

/// Removes the entry that [`scan`] hit in the same area, which did not change since: its room goes to
/// the record before it, or becomes free space when it is the first. The name is wiped.
///
/// # Errors
///
/// `NoEntry` when it is not there.
pub fn remove_at(area: &mut [u8], layout: DirLayout, hit: &Hit) -> Result<(), DirFault> {
    let no_entry = DirFault::NoEntry { offset: hit.offset };
    let at = le::index(hit.offset);
    let size = le::index(check_hit(area, layout, hit)?);
    let end = at.saturating_add(size);
    let Some(before) = hit.before.map(le::index) else {
        let whole = area.get_mut(at..end).ok_or(no_entry)?;
        let (header, body) = whole.split_first_chunk_mut::<HEADER_BYTES>().ok_or(no_entry)?;
        let [_, _, _, _, r0, r1, _, _] = *header;
        *header = [0, 0, 0, 0, r0, r1, 0, 0];
        body.fill(0);
        return Ok(());
    };
    let before_size = le::index(rec_len_at(area, before, layout).ok_or(no_entry)?);
    if before.saturating_add(before_size) != at || area.get(at..end).is_none() {
        return Err(no_entry);
    }
    put_rec_len(area, before, before_size.saturating_add(size), layout).ok_or(no_entry)?;
    area.get_mut(at..end).ok_or(no_entry)?.fill(0);
    Ok(())
}

/// Lets the entry that [`scan`] hit name another inode.
///
/// # Errors
///
/// `NoInode`; `NoEntry` when it is not there.
pub fn set_target_at(
    area: &mut [u8],
    layout: DirLayout,
    hit: &Hit,
    ino: Ino,
    file_type: FileType,
) -> Result<(), DirFault> {
    if ino.0 == 0 {
        return Err(DirFault::NoInode);
    }
    check_hit(area, layout, hit)?;
    let no_entry = DirFault::NoEntry { offset: hit.offset };
    let at = le::index(hit.offset);
    le::put(area, at, &ino.0.to_le_bytes()).ok_or(no_entry)?;
    let kind = if layout.filetype { file_type.raw() } else { 0 };
    le::put(area, at.saturating_add(7), &[kind]).ok_or(no_entry)
}

/// The length of the record of a hit that is still there.
fn check_hit(area: &[u8], layout: DirLayout, hit: &Hit) -> Result<u32, DirFault> {
    let no_entry = DirFault::NoEntry { offset: hit.offset };
    let at = le::index(hit.offset);
    if hit.ino.0 == 0 || le::u32_at(area, at) != Some(hit.ino.0) {
        return Err(no_entry);
    }
    rec_len_at(area, at, layout).ok_or(no_entry)
}

fn rec_len_at(area: &[u8], at: usize, layout: DirLayout) -> Option<u32> {
    let raw = le::u16_at(area, at.checked_add(4)?)?;
    Some(decode_rec_len(raw, layout.block_size))
}

fn put_rec_len(area: &mut [u8], at: usize, rec_len: usize, layout: DirLayout) -> Option<()> {
    let raw = encode_rec_len(le::narrow(rec_len), layout.block_size)?;
    le::put(area, at.checked_add(4)?, &raw.to_le_bytes())
}
