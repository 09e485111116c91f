//! Changing an index in place. The caller seals the blocks afterwards.

use super::node::{BLOCK_MASK, INFO_AT, check_length};
use super::{HtreeFault, Index, IndexLayout, NodePlace, RECORD_BYTES, Record, Root};
use crate::le;
use alloc::vec::Vec;
use extant_base::{FileBlock, Ino};

/// Where the first of a root's two entries keeps the parent's number.
const PARENT_AT: usize = 12;

fn peek<'a>(
    block: &'a [u8],
    layout: &IndexLayout,
    place: NodePlace,
) -> Result<Index<'a>, HtreeFault> {
    match place {
        NodePlace::Root => Root::peek(block, layout).map(|root| root.index),
        NodePlace::Inner => Index::peek_inner(block, layout),
    }
}

/// Puts `record` at `position`, before the one that is there; never before the first.
///
/// # Errors
///
/// A fault of the block; `Count` when it is full or has no such position. Nothing is changed then.
pub fn insert_record(
    block: &mut [u8],
    layout: &IndexLayout,
    place: NodePlace,
    position: usize,
    record: Record,
) -> Result<(), HtreeFault> {
    let index = peek(block, layout, place)?;
    let (count, is_full) = (index.len(), index.is_full());
    let limit = layout.limit(place);
    let new_count = u16::try_from(count.saturating_add(1)).unwrap_or(u16::MAX);
    if is_full || position == 0 || position > count {
        return Err(HtreeFault::Count { count: new_count, limit });
    }
    let records = block.get_mut(place.records_at()..).unwrap_or(&mut []);
    let records = records.as_chunks_mut::<RECORD_BYTES>().0;
    if let Some(moved) = records.get_mut(position..=count) {
        moved.rotate_right(1);
        if let Some(first) = moved.first_mut() {
            *first = raw(record);
        }
    }
    put_count(block, place, new_count);
    Ok(())
}

/// Moves the upper half of the inner node `lower` into `upper`, a fresh block of the directory at
/// `upper_at`. The answer is the record for `upper`, to be put behind that of `lower`.
///
/// # Errors
///
/// A fault of the block; `Count` when it has one record only. Nothing is changed then.
pub fn split_node(
    lower: &mut [u8],
    upper: &mut [u8],
    upper_at: FileBlock,
    layout: &IndexLayout,
) -> Result<Record, HtreeFault> {
    let index = Index::peek_inner(lower, layout)?;
    let limit = layout.limit(NodePlace::Inner);
    let kept = index.len() / 2;
    let moved: Vec<Record> = index.iter().skip(kept).collect();
    let (true, Some(first)) = (kept > 0, moved.first()) else {
        return Err(HtreeFault::Count { count: 1, limit });
    };
    let record = Record { block: upper_at, ..*first };
    Index::encode_inner(upper, layout, moved.iter().copied(), None)?;
    // What follows the last record counts for no checksum, and is wiped all the same.
    let rest = NodePlace::Inner.records_at().saturating_add(kept.saturating_mul(RECORD_BYTES));
    let records = usize::from(limit).saturating_mul(RECORD_BYTES);
    let end = NodePlace::Inner.records_at().saturating_add(records);
    if let Some(rest) = lower.get_mut(rest..end) {
        rest.fill(0);
    }
    put_count(lower, NodePlace::Inner, u16::try_from(kept).unwrap_or(1));
    Ok(record)
}

/// Adds a level: all records of the root move into `node`, a fresh block of the directory at
/// `node_at`, and the root points there.
///
/// # Errors
///
/// A fault of the root; `Levels` when there may be no more. Nothing is changed then.
pub fn grow_root(
    root: &mut [u8],
    node: &mut [u8],
    node_at: FileBlock,
    layout: &IndexLayout,
) -> Result<(), HtreeFault> {
    check_length(node, layout)?;
    let decoded = Root::peek(root, layout)?;
    let levels = decoded.levels.saturating_add(1);
    let allowed = layout.levels_max();
    if levels > allowed {
        return Err(HtreeFault::Levels { levels, allowed });
    }
    let records: Vec<Record> = decoded.index.iter().collect();
    Index::encode_inner(node, layout, records.iter().copied(), None)?;
    let at = NodePlace::Root.records_at();
    let bytes = usize::from(layout.limit(NodePlace::Root)).saturating_mul(RECORD_BYTES);
    if let Some(places) = root.get_mut(at.saturating_add(4)..at.saturating_add(bytes)) {
        places.fill(0);
        let _room_for_a_record = le::put(places, 0, &(node_at.0 & BLOCK_MASK).to_le_bytes());
    }
    put_count(root, NodePlace::Root, 1);
    let _in_the_info = le::put(root, INFO_AT.saturating_add(6), &[levels]);
    Ok(())
}

/// Lets `..` of a root say `parent`.
pub fn set_root_parent(
    root: &mut [u8],
    layout: &IndexLayout,
    parent: Ino,
) -> Result<(), HtreeFault> {
    Root::peek(root, layout)?;
    let _in_the_root = le::put(root, PARENT_AT, &parent.0.to_le_bytes());
    Ok(())
}

fn raw(record: Record) -> [u8; RECORD_BYTES] {
    let [h0, h1, h2, h3] = record.raw_hash().to_le_bytes();
    let [b0, b1, b2, b3] = (record.block.0 & BLOCK_MASK).to_le_bytes();
    [h0, h1, h2, h3, b0, b1, b2, b3]
}

fn put_count(block: &mut [u8], place: NodePlace, count: u16) {
    let at = place.records_at().saturating_add(2);
    let _checked_by_peek = le::put(block, at, &count.to_le_bytes());
}

#[cfg(test)]
mod tests;
