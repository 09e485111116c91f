//! Giving the mapped blocks of a range other device blocks, whose contents are the same.
//!
//! # Shape
//!
//! ```text
//! before   | 10 blocks at 700 | 6 at 90 | hole | 4 unwritten at 300 |
//! remap               0..20 to 5000
//! after    | 16 blocks at 5000          | hole | 4 unwritten at 5016 |
//! ```
//!
//! No record is added, so no step needs a block for a node: once its ends are extents' ends
//! ([`split_at`](super::split_at)), a range is moved as a whole.

use super::convert::{push_joined, rewrite};
use super::{TreeStore, walk};
use crate::extent::{Extent, ExtentFault};
use alloc::vec::Vec;
use extant_base::{FileBlock, FsBlock};

/// How far a move has got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Remapped {
    /// File block where the part of the range starts that is still to be looked at.
    pub end: u64,
    /// Whether all mapped blocks of the range have their new places.
    pub done: bool,
}

/// Maps each mapped block of `start..end` (file blocks) to a block as far behind `to` as the file block is behind
/// `base`, looking at no more than `most` extents and all in one leaf. Holes stay, and so do states. The caller calls
/// again with [`Remapped::end`] until it is done; after every call the tree is whole.
///
/// # Errors
///
/// Those of the store, and damage; `Overlap` when an extent reaches over an end of the range, and a place that no
/// extent can name: and then nothing has changed.
///
/// # Cost
///
/// Reads at most six nodes, writes one and those above it.
pub fn remap_step<S: TreeStore>(
    store: &mut S,
    (start, end): (u64, u64),
    (base, to): (u64, FsBlock),
    most: usize,
) -> Result<Remapped, S::Error> {
    let end = end.min(u64::from(u32::MAX));
    let (Ok(first), Ok(last)) = (u32::try_from(start), u32::try_from(end)) else {
        return Ok(Remapped { end, done: true });
    };
    if start >= end {
        return Ok(Remapped { end, done: true });
    }
    let (first, limit) = (FileBlock(first), FileBlock(last));
    let most = most.max(1);
    // Neighbours may be continued by what gets another place.
    let walk = walk(store, first, 2, (most.saturating_add(1), limit))?;
    let old: Vec<Extent> = walk.before.iter().chain(&walk.after).copied().collect();
    let mut new: Vec<Extent> = Vec::with_capacity(old.len());
    let (mut looked_at, mut seen_to, mut is_whole) = (0usize, None, true);
    let mut joins = false;
    for extent in &old {
        let is_in_range = extent.file_end() > first && extent.file_start < limit;
        if !is_in_range || looked_at == most {
            is_whole &= !is_in_range;
            // What the caller has cut for the rest of the range stays so.
            if joins {
                push_joined(&mut new, *extent);
            } else {
                new.push(*extent);
            }
            joins = false;
            continue;
        }
        if extent.file_start < first || extent.file_end() > limit {
            let Extent { file_start, len, .. } = *extent;
            return Err(store.fault(None, ExtentFault::Overlap { file_start, len }));
        }
        looked_at = looked_at.saturating_add(1);
        seen_to = Some(extent.file_end());
        let behind = u64::from(extent.file_start.0).saturating_sub(base);
        let device_start = FsBlock(to.0.saturating_add(behind));
        push_joined(&mut new, Extent { device_start, ..*extent });
        joins = true;
    }
    let is_passed = walk.after.last().is_some_and(|last| last.file_start >= limit);
    let left_at = match (is_whole, is_passed, seen_to) {
        (false, _, Some(seen_to)) => seen_to,
        (true, true, _) => limit,
        // Nothing of the range is left in this leaf.
        _ => walk.limit,
    };
    if old != new {
        rewrite(store, walk, &old, &new)?;
    }
    Ok(Remapped { end: u64::from(left_at.min(limit).0), done: left_at >= limit })
}
