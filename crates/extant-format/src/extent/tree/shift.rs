//! Moving everything behind a place of the file down over a hole, or up to make one.
//!
//! # Shape
//!
//! ```text
//! down by 3     | a |  hole  | b |   | c |      left to right: | a | b |   | c |
//! up by 3       | a | b |   | c |               right to left: | a |  hole  | b |   | c |
//! ```
//!
//! A step moves the extents of one leaf. Moving down goes from the front and moving up from the
//! end, so after every step the extents are in order and the keys of the index nodes right, and
//! nothing but the place where to go on has to be remembered.

use super::{LAST, TreeStore, collapse, encode, join, replace, walk};
use crate::extent::{Extent, ExtentFault, RecordBytes};
use alloc::vec::Vec;
use extant_base::{BlockCount, FileBlock};

/// The distance by which extents were moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shifted {
    /// Where to go on: the next step's place, in file blocks as they were before the move.
    pub at: u64,
    /// Whether everything has moved.
    pub done: bool,
}

/// Makes an extent begin at `at` if one goes across it. Returns whether one did.
///
/// # Errors
///
/// Those of the store, and damage. The blocks that are needed are taken first.
pub fn split_at<S: TreeStore>(store: &mut S, at: FileBlock) -> Result<bool, S::Error> {
    let walk = walk(store, at, 1, (0, LAST))?;
    let Some(extent) = walk.before.last().filter(|extent| extent.file_end() > at) else {
        return Ok(false);
    };
    let (Some(head), Some(tail)) = super::cut(*extent, at) else { return Ok(false) };
    let records = [encode(store, head)?, encode(store, tail)?];
    let pos = walk.levels.last().map_or(0, |level| level.pos);
    replace(store, walk.levels, pos.saturating_sub(1), 1, &records)?;
    Ok(true)
}

/// Moves the extents from file block `at` on that are in one leaf down by `by` blocks. The `by`
/// blocks before `at` are a hole: the first call's `at` is the end of the hole, the next calls'
/// is [`Shifted::at`]. The first extent that moves is joined with the one in front of it if it
/// continues that.
///
/// # Errors
///
/// Those of the store and damage; `Overlap` when the hole is none. Needs no space.
///
/// # Cost
///
/// Reads at most six nodes; writes a leaf, and those of its parents that name its first block.
pub fn shift_down_step<S: TreeStore>(
    store: &mut S,
    at: u64,
    by: BlockCount,
) -> Result<Shifted, S::Error> {
    let end = u64::from(u32::MAX);
    let Ok(block) = u32::try_from(at) else { return Ok(Shifted { at: end, done: true }) };
    if by.0 == 0 {
        return Ok(Shifted { at: end, done: true });
    }
    let walk = walk(store, FileBlock(block), 2, (usize::MAX, LAST))?;
    let leaf = walk.levels.last().and_then(|level| level.at);
    let next = Shifted { at: u64::from(walk.limit.0), done: walk.limit.0 == u32::MAX };
    let starts_at = walk.before.last().filter(|extent| extent.file_start.0 == block);
    let mut moving = starts_at.into_iter().chain(&walk.after).peekable();
    let Some(first) = moving.peek().copied().copied() else { return Ok(next) };
    // What must end before the place that the first one goes to.
    let known = walk.before.len().saturating_sub(usize::from(starts_at.is_some()));
    let before = known.checked_sub(1).and_then(|last| walk.before.get(last)).copied();
    let overlap = ExtentFault::Overlap { file_start: first.file_start, len: by };
    let target = first.file_start.0.checked_sub(by.0);
    let room_from = before.map_or(0, |before| before.file_end().0);
    if target.is_none_or(|target| target < room_from) {
        return Err(store.fault(leaf, overlap));
    }
    let pos = walk.levels.last().map_or(0, |level| level.pos);
    let mut from = pos.saturating_sub(usize::from(starts_at.is_some()));
    let mut records: Vec<RecordBytes> = Vec::with_capacity(walk.after.len().saturating_add(1));
    let mut dropped = 0usize;
    let mut joins = false;
    for extent in moving {
        let start = extent.file_start.0.checked_sub(by.0);
        let start = start.ok_or_else(|| store.fault(leaf, overlap))?;
        let mut moved = Extent { file_start: FileBlock(start), ..*extent };
        if dropped == 0
            && let Some(both) = before.and_then(|before| join(before, moved))
        {
            from = from.saturating_sub(1);
            dropped = 1;
            joins = true;
            moved = both;
        }
        dropped = dropped.saturating_add(1);
        records.push(encode(store, moved)?);
    }
    replace(store, walk.levels, from, dropped, &records)?;
    if joins {
        collapse(store)?;
    }
    Ok(next)
}

/// Moves the last extents of `from..end` (file blocks) that are in one leaf up by `by` blocks. No
/// extent goes across `from`: see [`split_at`]. The first call's `end` is 2^32, the next calls' is
/// [`Shifted::at`].
///
/// # Errors
///
/// Those of the store and damage; `PastLastFileBlock` when the last extent cannot go there, which
/// the first call finds out before anything has moved; `Overlap` when an extent goes across `from`.
/// Needs no space.
///
/// # Cost
///
/// As [`shift_down_step`].
pub fn shift_up_step<S: TreeStore>(
    store: &mut S,
    (from, end): (u64, u64),
    by: BlockCount,
) -> Result<Shifted, S::Error> {
    let end = end.min(u64::from(u32::MAX));
    let done = Shifted { at: from, done: true };
    let last = end.checked_sub(1).and_then(|last| u32::try_from(last).ok());
    let (Some(last), Ok(from)) = (last, u32::try_from(from)) else { return Ok(done) };
    if u64::from(from) >= end || by.0 == 0 {
        return Ok(done);
    }
    let from = FileBlock(from);
    let walk = walk(store, FileBlock(last), usize::MAX, (0, LAST))?;
    let leaf = walk.levels.last().and_then(|level| level.at);
    let stays = walk.before.partition_point(|extent| extent.file_start < from);
    let moving = walk.before.get(stays..).unwrap_or(&[]);
    let across = stays.checked_sub(1).and_then(|last| walk.before.get(last));
    if let Some(across) = across.filter(|extent| extent.file_end() > from) {
        let fault = ExtentFault::Overlap { file_start: from, len: across.len };
        return Err(store.fault(leaf, fault));
    }
    let Some(lowest) = moving.first().map(|extent| extent.file_start) else { return Ok(done) };
    let mut records: Vec<RecordBytes> = Vec::with_capacity(moving.len());
    for extent in moving {
        let Extent { file_start, len, .. } = *extent;
        let past = ExtentFault::PastLastFileBlock { file_start, len };
        let start = file_start.checked_add(by).ok_or_else(|| store.fault(leaf, past))?;
        records.push(encode(store, Extent { file_start: start, ..*extent })?);
    }
    let is_first_of_all = |above: &[super::Level]| above.iter().all(|level| level.pos == 0);
    let above = walk.levels.split_last().map_or([].as_slice(), |(_, above)| above);
    let is_done = stays > 0 || lowest == from || is_first_of_all(above);
    replace(store, walk.levels, stays, records.len(), &records)?;
    Ok(Shifted { at: u64::from(lowest.0), done: is_done })
}
