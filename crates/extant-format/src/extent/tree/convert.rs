//! Changing the state of mapped blocks: unwritten to written after a write, and back when a range
//! is to read as zeros.
//!
//! # Shape
//!
//! ```text
//! before   | unwritten, 100 blocks                    |
//! convert           40..60 to written
//! after    | unwritten 40 | written 20 | unwritten 40 |      at most two records more
//! ```
//!
//! A step looks at some neighbouring records of one leaf, writes them anew with the new state, and
//! joins what continues on the device. So no block is ever unmapped on the way, and the first block
//! of a leaf stays what it was.

use super::{TreeStore, Walk, collapse, cut, encode, join, replace, walk};
use crate::extent::{Extent, ExtentState, UNWRITTEN_LEN_MAX};
use alloc::vec::Vec;
use extant_base::FileBlock;

/// Records more than before that end a step: what one change of a leaf can take.
const GROWTH_MAX: usize = 2;

/// The result of one step of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Converted {
    /// Blocks whose state is another now.
    pub blocks: u64,
    /// File block where the part of the range starts that is still to be looked at.
    pub end: u64,
    /// Whether all mapped blocks of the range have the wanted state.
    pub done: bool,
}

/// Gives the first mapped blocks of `start..end` (file blocks) the state `to`, looking at no more
/// than `most` extents and all in one leaf. Holes, and blocks that have it already, stay. The
/// caller calls again with [`Converted::end`] until it is done; after every call the tree is whole.
///
/// # Errors
///
/// Those of the store, and damage. An extent that is cut may need node blocks, which are taken
/// first: without them the tree is as it was.
///
/// # Cost
///
/// Reads at most six nodes, writes one, or two for each level that is full.
pub fn convert_step<S: TreeStore>(
    store: &mut S,
    (start, end): (u64, u64),
    to: ExtentState,
    most: usize,
) -> Result<Converted, S::Error> {
    let end = end.min(u64::from(u32::MAX));
    let mut converted = Converted { blocks: 0, end, done: true };
    let (Ok(first), Ok(last)) = (u32::try_from(start), u32::try_from(end)) else {
        return Ok(converted);
    };
    if start >= end {
        return Ok(converted);
    }
    let (first, limit) = (FileBlock(first), FileBlock(last));
    let most = most.max(1);
    // One extent may cover the start; one more at each end may continue what changes.
    let walk = walk(store, first, 2, (most.saturating_add(1), limit))?;
    let old: Vec<Extent> = walk.before.iter().chain(&walk.after).copied().collect();
    let mut new: Vec<Extent> = Vec::with_capacity(old.len().saturating_add(GROWTH_MAX));
    let (mut looked_at, mut growth) = (0usize, 0usize);
    let mut seen_to = None;
    for extent in &old {
        let is_in_range = extent.file_end() > first && extent.file_start < limit;
        if !is_in_range || looked_at == most || growth >= GROWTH_MAX {
            // Behind the range, and before it: only a neighbour. Else left for the next step.
            if is_in_range {
                converted.done = false;
            }
            push_joined(&mut new, *extent);
            continue;
        }
        looked_at = looked_at.saturating_add(1);
        seen_to = Some(extent.file_end());
        if extent.state == to {
            push_joined(&mut new, *extent);
            continue;
        }
        let (pieces, blocks) = turned(*extent, (first, limit), to);
        converted.blocks = converted.blocks.saturating_add(u64::from(blocks));
        growth = growth.saturating_add(pieces.iter().flatten().count().saturating_sub(1));
        for piece in pieces.into_iter().flatten() {
            push_joined(&mut new, piece);
        }
    }
    let is_passed = walk.after.last().is_some_and(|last| last.file_start >= limit);
    let left_at = match (converted.done, is_passed, seen_to) {
        (false, _, Some(seen_to)) => seen_to,
        (true, true, _) => limit,
        // Nothing of the range is left in this leaf.
        _ => walk.limit,
    };
    converted.end = u64::from(left_at.min(limit).0);
    converted.done = left_at >= limit;
    if converted.blocks > 0 {
        rewrite(store, walk, &old, &new)?;
    }
    Ok(converted)
}

/// Replaces `old`, all that `walk` has found of its leaf, by `new`, where they differ.
pub(super) fn rewrite<S: TreeStore>(
    store: &mut S,
    walk: Walk,
    old: &[Extent],
    new: &[Extent],
) -> Result<(), S::Error> {
    let shrinks = new.len() < old.len();
    let same = old.iter().zip(new).take_while(|(old, new)| old == new).count();
    let tail = |list: &[Extent]| list.len().saturating_sub(same);
    let same_at_end = old.iter().rev().zip(new.iter().rev());
    let same_at_end = same_at_end.take_while(|(old, new)| old == new).count();
    let same_at_end = same_at_end.min(tail(old)).min(tail(new));
    let mut records = Vec::with_capacity(tail(new).saturating_sub(same_at_end));
    for extent in new.iter().skip(same).take(tail(new).saturating_sub(same_at_end)) {
        records.push(encode(store, *extent)?);
    }
    let pos = walk.levels.last().map_or(0, |level| level.pos);
    let at = pos.saturating_sub(walk.before.len()).saturating_add(same);
    replace(store, walk.levels, at, tail(old).saturating_sub(same_at_end), &records)?;
    if shrinks {
        collapse(store)?;
    }
    Ok(())
}

/// `extent` with the part in `range` in the state `to`: at most three pieces, and how many blocks
/// changed.
fn turned(
    extent: Extent,
    (first, limit): (FileBlock, FileBlock),
    to: ExtentState,
) -> ([Option<Extent>; 4], u32) {
    let (head, rest) = cut(extent, first);
    let Some(rest) = rest else { return ([head, None, None, None], 0) };
    let (middle, tail) = cut(rest, limit);
    let Some(middle) = middle else { return ([head, None, None, tail], 0) };
    let blocks = middle.len.0;
    let middle = Extent { state: to, ..middle };
    // The longest written extent is one block longer than the longest unwritten one. It has
    // neither head nor tail then.
    if to == ExtentState::Unwritten && blocks > UNWRITTEN_LEN_MAX {
        let at = FileBlock(middle.file_start.0.saturating_add(UNWRITTEN_LEN_MAX));
        let (long, rest) = cut(middle, at);
        return ([head, long, rest, tail], blocks);
    }
    ([head, Some(middle), None, tail], blocks)
}

/// Adds `next`, which comes behind all of `list`, joined with the last one if that is possible.
pub(super) fn push_joined(list: &mut Vec<Extent>, next: Extent) {
    if let Some(last) = list.last_mut()
        && let Some(both) = join(*last, next)
    {
        *last = both;
        return;
    }
    list.push(next);
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::{BlockCount, FsBlock};

    #[test]
    fn the_longest_written_extent_becomes_two_unwritten_ones() {
        let extent = Extent {
            file_start: FileBlock(5),
            device_start: FsBlock(9),
            len: BlockCount(crate::extent::WRITTEN_LEN_MAX),
            state: ExtentState::Written,
        };
        let whole = (FileBlock(0), FileBlock(u32::MAX));
        let (pieces, blocks) = turned(extent, whole, ExtentState::Unwritten);
        let lens: Vec<u32> = pieces.into_iter().flatten().map(|piece| piece.len.0).collect();
        assert_eq!((lens.as_slice(), blocks), ([32767, 1].as_slice(), 32768));
    }
}
