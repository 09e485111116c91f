//! Changing one node in place.
//!
//! Leaf and index records have the same size and start with their first file block, so that moving
//! them about needs no decoding.

use super::{Extent, ExtentFault, MAGIC, RECORD_BYTES, RawExtent, RawIndex};
use crate::le;
use alloc::vec::Vec;
use extant_base::{BlockCount, FileBlock, FsBlock};
use zerocopy::{FromBytes, IntoBytes};

/// A leaf or index record, as stored.
pub type RecordBytes = [u8; RECORD_BYTES];

/// Where `eh_entries` is.
const ENTRIES_AT: usize = 2;
/// Where `eh_max` is.
const MAX_AT: usize = 4;
/// Where `eh_depth` is.
const DEPTH_AT: usize = 6;

/// Makes `bytes` a node with `records`, and zeroes the rest. Depth, room and order are not checked
/// beyond what the bytes can hold.
///
/// # Errors
///
/// `Short`, `Max` or `TooMany`, and then `bytes` means nothing.
pub fn init_node(
    bytes: &mut [u8],
    depth: u16,
    max: u16,
    records: &[RecordBytes],
) -> Result<(), ExtentFault> {
    let short = ExtentFault::Short { found: bytes.len() };
    bytes.fill(0);
    le::put(bytes, 0, &MAGIC.to_le_bytes()).ok_or(short)?;
    le::put(bytes, MAX_AT, &max.to_le_bytes()).ok_or(short)?;
    le::put(bytes, DEPTH_AT, &depth.to_le_bytes()).ok_or(short)?;
    splice(bytes, 0, 0, records)
}

/// Replaces `drop` records from number `at` on by `new`. What the node no longer uses becomes
/// zero.
///
/// # Errors
///
/// `TooMany` when the node has no room, `Entries` when it has no such records, `Short` when it is
/// not as long as its header says. Nothing is changed then.
pub fn splice(
    bytes: &mut [u8],
    at: usize,
    drop: usize,
    new: &[RecordBytes],
) -> Result<(), ExtentFault> {
    let short = ExtentFault::Short { found: bytes.len() };
    let entries = le::u16_at(bytes, ENTRIES_AT).ok_or(short)?;
    let max = le::u16_at(bytes, MAX_AT).ok_or(short)?;
    let count = usize::from(entries);
    let kept = at.checked_add(drop).filter(|end| *end <= count);
    let rest = kept.ok_or(ExtentFault::Entries { entries: u16::MAX, max: entries })?;
    let wanted = count.saturating_sub(drop).saturating_add(new.len());
    let now = u16::try_from(wanted).ok().filter(|now| *now <= max);
    let now = now.ok_or(ExtentFault::TooMany {
        records: u64::from(le::narrow(wanted)),
        capacity: u64::from(max),
    })?;
    // Nothing may fail from here on: the highest byte used before or after exists.
    let used = place(count.max(wanted));
    if bytes.len() < used {
        return Err(short);
    }
    bytes.copy_within(place(rest)..place(count), place(at.saturating_add(new.len())));
    for (number, record) in new.iter().enumerate() {
        le::put(bytes, place(at.saturating_add(number)), record).ok_or(short)?;
    }
    if let Some(left_over) = bytes.get_mut(place(wanted)..used) {
        left_over.fill(0);
    }
    le::put(bytes, ENTRIES_AT, &now.to_le_bytes()).ok_or(short)
}

/// Returns where record `number` is.
fn place(number: usize) -> usize {
    number.saturating_add(1).saturating_mul(RECORD_BYTES)
}

/// Changes the first file block of record `at`.
///
/// # Errors
///
/// `Short` when there is no such place.
pub fn set_first(bytes: &mut [u8], at: usize, first: FileBlock) -> Result<(), ExtentFault> {
    let found = bytes.len();
    le::put(bytes, place(at), &first.0.to_le_bytes()).ok_or(ExtentFault::Short { found })
}

/// The bytes of a node's last record.
fn last_record(bytes: &[u8], is_leaf: bool) -> Option<&[u8]> {
    let entries = le::u16_at(bytes, ENTRIES_AT)?;
    let depth = le::u16_at(bytes, DEPTH_AT)?;
    let last = usize::from(entries).checked_sub(1).filter(|_| (depth == 0) == is_leaf)?;
    bytes.get(place(last)..)?.get(..RECORD_BYTES)
}

/// The last extent of a leaf; `None` of an empty one, and of what is none. Nothing else of the node is looked
/// at: for nodes that were decoded before.
#[must_use]
pub fn last_extent(bytes: &[u8]) -> Option<Extent> {
    RawExtent::read_from_bytes(last_record(bytes, true)?).ok()?.decode().ok()
}

/// Returns where the last child of an index node is; `None` of a leaf. As [`last_extent`].
#[must_use]
pub fn last_child(bytes: &[u8]) -> Option<FsBlock> {
    let raw = RawIndex::read_from_bytes(last_record(bytes, false)?).ok()?;
    Some(raw.decode().child)
}

/// Makes the last extent of a leaf `by` blocks longer. The caller knows that nothing is mapped there.
///
/// # Errors
///
/// `Short` when it has no last extent; a fault of [`Extent::encode`]. Nothing is changed then.
pub fn lengthen_last(bytes: &mut [u8], by: BlockCount) -> Result<(), ExtentFault> {
    let short = ExtentFault::Short { found: bytes.len() };
    let last = last_extent(bytes).ok_or(short)?;
    let raw = Extent { len: BlockCount(last.len.0.saturating_add(by.0)), ..last }.encode()?;
    let entries = le::u16_at(bytes, ENTRIES_AT).ok_or(short)?;
    le::put(bytes, place(usize::from(entries).saturating_sub(1)), raw.as_bytes()).ok_or(short)
}

/// The records in use, as stored.
pub(super) fn raw_records(bytes: &[u8]) -> Vec<RecordBytes> {
    let entries = usize::from(le::u16_at(bytes, ENTRIES_AT).unwrap_or(0));
    let records = bytes.as_chunks::<RECORD_BYTES>().0;
    records.iter().skip(1).take(entries).copied().collect()
}

/// The first file block of a node's first record.
pub(super) fn node_first(bytes: &[u8]) -> FileBlock {
    FileBlock(le::u32_at(bytes, RECORD_BYTES).unwrap_or(0))
}

/// The first file block of a record.
pub(super) fn first_of(record: &RecordBytes) -> FileBlock {
    FileBlock(le::u32_at(record, 0).unwrap_or(0))
}
