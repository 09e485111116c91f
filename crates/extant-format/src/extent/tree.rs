//! Changing a whole tree: putting extents in, taking ranges out, turning unwritten blocks into
//! written ones and back (`convert`), moving everything behind a place (`shift`), giving blocks other
//! places on the device (`remap`), filling half-empty nodes (`pack`).
//!
//! # Shape
//!
//! A change walks from the root to one leaf and replaces a few neighbouring records there. When
//! they do not fit, the leaf is split and its parent gets one record more, and so on up; a full
//! root moves into a block of its own and the tree grows by one level. When a node runs empty it is
//! freed and its parent loses a record; a root with one small child takes that child's place.
//!
//! # Invariants
//!
//! - X5. All node blocks that a change needs are taken before its first write: without space, the
//!   tree stays as it was.
//! - X6. After each call the tree obeys X1 to X4, and each node but the root has a record.
//! - X7. Every node is checked when it is read, as [`Node::decode_block`] does, so a damaged tree
//!   ends a change before it starts.

mod convert;
mod pack;
mod remap;
mod shift;

pub use convert::{Converted, convert_step};
pub use pack::{Packed, pack_step};
pub use remap::{Remapped, remap_step};
pub use shift::{Shifted, shift_down_step, shift_up_step, split_at};

use super::edit::{first_of, init_node, node_first, raw_records, set_first, splice};
use super::{
    BlockCount, DEPTH_MAX, Expect, Extent, ExtentFault, ExtentState, Index, Node, ROOT_BYTES,
    ROOT_RECORDS, RecordBytes, UNWRITTEN_LEN_MAX, WRITTEN_LEN_MAX,
};
use crate::le;
use alloc::vec::Vec;
use extant_base::{FileBlock, FsBlock};
use zerocopy::IntoBytes;

/// What a new node has room for, at least: splits rely on it.
pub const NODE_MAX_MIN: u16 = 8;

/// The place of the nodes of one file's tree.
pub trait TreeStore {
    /// The error of the store's operations.
    type Error;
    /// A node block, borrowed or shared.
    type Bytes: AsRef<[u8]>;

    /// The 60 bytes of the root.
    fn root(&mut self) -> Result<[u8; ROOT_BYTES], Self::Error>;
    /// Replaces the root.
    fn set_root(&mut self, root: &[u8; ROOT_BYTES]) -> Result<(), Self::Error>;
    /// A node block, its checksum checked.
    fn read(&mut self, block: FsBlock) -> Result<Self::Bytes, Self::Error>;
    /// Changes a node block that was read before.
    fn edit(
        &mut self,
        block: FsBlock,
        change: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<(), Self::Error>;
    /// Fills a node block that [`reserve`](Self::reserve) gave.
    fn create(
        &mut self,
        block: FsBlock,
        fill: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
    ) -> Result<(), Self::Error>;
    /// Takes `count` blocks for new nodes: all of them or none.
    fn reserve(&mut self, count: usize) -> Result<Vec<FsBlock>, Self::Error>;
    /// Gives the block of a node back.
    fn free(&mut self, block: FsBlock) -> Result<(), Self::Error>;
    /// Records of a new node: [`max_in_block`](super::max_in_block), at least [`NODE_MAX_MIN`].
    fn node_max(&self) -> u16;
    /// The error for what is wrong with the node at `block`, `None` for the root.
    fn fault(&self, block: Option<FsBlock>, fault: ExtentFault) -> Self::Error;
}

/// The place behind every extent.
const LAST: FileBlock = FileBlock(u32::MAX);

/// One node on the way from the root to a leaf.
struct Level {
    /// `None` for the root.
    at: Option<FsBlock>,
    entries: usize,
    max: usize,
    /// The record that the way goes on through; in a leaf, the place for a new one.
    pos: usize,
}

/// The way to the place of a file block, and what is around it.
struct Walk {
    levels: Vec<Level>,
    /// The last extents of the leaf that start at or before the block, in order.
    before: Vec<Extent>,
    /// The first extents of the leaf that start after it.
    after: Vec<Extent>,
    /// First file block that the leaf cannot map.
    limit: FileBlock,
}

/// Goes to the leaf for `block` and collects up to `take` extents before it, and those after it: up
/// to `ahead`, and none behind the first that starts at `until` or later.
fn walk<S: TreeStore>(
    store: &mut S,
    block: FileBlock,
    take: usize,
    (ahead, until): (usize, FileBlock),
) -> Result<Walk, S::Error> {
    let mut levels = Vec::new();
    let mut next: Option<(FsBlock, Expect)> = None;
    // Each child's depth is one less than its parent's, and the root's at most 5.
    loop {
        let at = next.map(|(at, _)| at);
        let root;
        let bytes;
        let decoded = match next {
            None => {
                root = store.root()?;
                Node::decode_root(&root)
            }
            Some((at, expect)) => {
                bytes = store.read(at)?;
                Node::decode_block(bytes.as_ref(), expect)
            }
        };
        let node = decoded.map_err(|fault| store.fault(at, fault))?;
        let header = node.header();
        let mut level = Level {
            at,
            entries: usize::from(header.entries),
            max: usize::from(header.max),
            pos: 0,
        };
        if header.depth == 0 {
            let extents = node.extents();
            let pos = extents.clone().take_while(|extent| extent.file_start <= block).count();
            level.pos = pos;
            levels.push(level);
            let skip = pos.saturating_sub(take);
            let mut after = Vec::new();
            for extent in extents.clone().skip(pos).take(ahead) {
                after.push(extent);
                if extent.file_start >= until {
                    break;
                }
            }
            return Ok(Walk {
                levels,
                before: extents.take(pos).skip(skip).collect(),
                after,
                limit: next.map_or(FileBlock(u32::MAX), |(_, expect)| expect.file_limit),
            });
        }
        level.pos = node.find_child(block).unwrap_or(0);
        let child = node.child(level.pos);
        let empty = ExtentFault::EmptyIndex { depth: header.depth };
        let (index, expect) = child.ok_or_else(|| store.fault(at, empty))?;
        levels.push(level);
        next = Some((index.child, expect));
    }
}

/// Maps `extent`, which must not overlap what is mapped. Joins it with the extents right before
/// and after it when they continue it on the device in the same state.
///
/// # Errors
///
/// Those of the store; `Overlap`; a fault of [`Extent::encode`]; damage of the nodes on the way.
/// The tree is then as it was, unless the store fails to write.
///
/// # Cost
///
/// Reads at most six nodes and writes one, or two for each level that is full.
pub fn insert<S: TreeStore>(store: &mut S, extent: Extent) -> Result<(), S::Error> {
    let record = encode(store, extent)?;
    let walk = walk(store, extent.file_start, 1, (1, LAST))?;
    let leaf = walk.levels.last().and_then(|level| level.at);
    let before = walk.before.last().copied();
    let after = walk.after.first().copied();
    let overlaps = before.is_some_and(|before| before.file_end() > extent.file_start)
        || after.is_some_and(|after| after.file_start < extent.file_end())
        || walk.limit < extent.file_end();
    if overlaps {
        let Extent { file_start, len, .. } = extent;
        return Err(store.fault(leaf, ExtentFault::Overlap { file_start, len }));
    }
    let pos = walk.levels.last().map_or(0, |level| level.pos);
    let left = before.and_then(|before| join(before, extent));
    let whole = left.unwrap_or(extent);
    let right = after.and_then(|after| join(whole, after));
    let (at, drop, record) = match (left, right) {
        (None, None) => (pos, 0, record),
        (Some(left), None) => (pos.saturating_sub(1), 1, encode(store, left)?),
        (None, Some(right)) => (pos, 1, encode(store, right)?),
        (Some(_), Some(both)) => (pos.saturating_sub(1), 2, encode(store, both)?),
    };
    replace(store, walk.levels, at, drop, &[record])
}

/// `one` with `next` behind it, if one record can say both.
fn join(one: Extent, next: Extent) -> Option<Extent> {
    let len = one.len.0.checked_add(next.len.0)?;
    let longest = match one.state {
        ExtentState::Written => WRITTEN_LEN_MAX,
        ExtentState::Unwritten => UNWRITTEN_LEN_MAX,
    };
    let continues = one.file_end() == next.file_start
        && one.device_start.checked_add(u64::from(one.len.0)) == Some(next.device_start)
        && one.state == next.state;
    (continues && len <= longest).then_some(Extent { len: BlockCount(len), ..one })
}

fn encode<S: TreeStore>(store: &S, extent: Extent) -> Result<RecordBytes, S::Error> {
    let raw = extent.encode().map_err(|fault| store.fault(None, fault))?;
    let mut record = RecordBytes::default();
    record.copy_from_slice(raw.as_bytes());
    Ok(record)
}

/// The extents that one step of a removal took out.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Removed {
    /// The parts of extents that are no longer mapped, the last one of the file first.
    pub extents: Vec<Extent>,
    /// File block where the part of the range ends that is still to be looked at.
    pub end: u64,
    /// Whether nothing of the range is mapped any more.
    pub done: bool,
}

/// Takes the last extents of `start..end` (file blocks) out, at most `most` of them and all from
/// one leaf. The caller frees what they mapped, and calls again until it is done: after every call
/// the tree is whole, and the range that is left ends at [`Removed::end`].
///
/// # Errors
///
/// Those of the store and damage. An extent that is cut in two may need blocks, which are taken
/// first.
pub fn remove_step<S: TreeStore>(
    store: &mut S,
    (start, end): (u64, u64),
    most: usize,
) -> Result<Removed, S::Error> {
    let end = end.min(u64::from(u32::MAX));
    let done = Removed { extents: Vec::new(), end: start, done: true };
    let (Some(last), Ok(first)) = (end.checked_sub(1), u32::try_from(start)) else {
        return Ok(done);
    };
    if start >= end {
        return Ok(done);
    }
    let first = FileBlock(first);
    let last = FileBlock(u32::try_from(last).unwrap_or(u32::MAX));
    let end = FileBlock(u32::try_from(end).unwrap_or(u32::MAX));
    let walk = walk(store, last, most.max(1), (0, LAST))?;
    let mut removed = done;
    // What stays of the records that are dropped: at most one piece at each end.
    let (mut left, mut right) = (None, None);
    for extent in walk.before.iter().rev() {
        if extent.file_end() <= first {
            break;
        }
        let (head, rest) = cut(*extent, first);
        let Some(rest) = rest else { break };
        let (middle, tail) = cut(rest, end);
        left = head;
        right = right.or(tail);
        removed.extents.extend(middle);
    }
    let drop = removed.extents.len();
    if drop == 0 {
        return Ok(removed);
    }
    let pos = walk.levels.last().map_or(0, |level| level.pos);
    let above = walk.levels.split_last().map_or([].as_slice(), |(_, above)| above);
    let first_of_all = pos == drop && above.iter().all(|level| level.pos == 0);
    let lowest = removed.extents.last().map_or(first, |lowest| lowest.file_start);
    removed.end = u64::from(lowest.0);
    // Else the next call finds out.
    removed.done = lowest == first || first_of_all;
    let mut records = Vec::new();
    for extent in [left, right].into_iter().flatten() {
        records.push(encode(store, extent)?);
    }
    replace(store, walk.levels, pos.saturating_sub(drop), drop, &records)?;
    collapse(store)?;
    Ok(removed)
}

/// The parts of `extent` before and from `at` on.
fn cut(extent: Extent, at: FileBlock) -> (Option<Extent>, Option<Extent>) {
    let Some(into) = at.0.checked_sub(extent.file_start.0).filter(|into| *into > 0) else {
        return (None, Some(extent));
    };
    let Some(rest) = extent.len.0.checked_sub(into).filter(|rest| *rest > 0) else {
        return (Some(extent), None);
    };
    // The device blocks were checked when the extent was decoded.
    let device = FsBlock(extent.device_start.0.saturating_add(u64::from(into)));
    let head = Extent { len: BlockCount(into), ..extent };
    let tail = Extent { file_start: at, device_start: device, len: BlockCount(rest), ..extent };
    (Some(head), Some(tail))
}

/// Replaces `drop` records from `at` on in the last of `levels` by `new`, at most two more than
/// are dropped.
fn replace<S: TreeStore>(
    store: &mut S,
    mut levels: Vec<Level>,
    mut at: usize,
    mut drop: usize,
    new: &[RecordBytes],
) -> Result<(), S::Error> {
    let mut spare = store.reserve(nodes_needed(store, &levels, drop, new.len())?)?;
    let depth_of_root = u16::try_from(levels.len().saturating_sub(1)).unwrap_or(u16::MAX);
    let mut new: Vec<RecordBytes> = new.to_vec();
    while let Some(level) = levels.pop() {
        let Level { at: place, entries, max, .. } = level;
        let wanted = entries.saturating_sub(drop).saturating_add(new.len());
        let depth = depth_of_root.saturating_sub(u16::try_from(levels.len()).unwrap_or(u16::MAX));
        if wanted == 0 && place.is_none() {
            // The last record of all is gone.
            let mut root = [0; ROOT_BYTES];
            init(store, &mut root, 0, &[])?;
            return store.set_root(&root);
        }
        if let (0, Some(block)) = (wanted, place) {
            store.free(block)?;
            at = levels.last().map_or(0, |parent| parent.pos);
            (drop, new) = (1, Vec::new());
            continue;
        }
        if wanted <= max {
            let Some(block) = place else {
                let mut root = store.root()?;
                splice(&mut root, at, drop, &new).map_err(|fault| store.fault(None, fault))?;
                return store.set_root(&root);
            };
            let mut first = FileBlock(0);
            store.edit(block, |bytes| {
                splice(bytes, at, drop, &new)?;
                first = node_first(bytes);
                Ok(())
            })?;
            return if at == 0 { set_parents(store, &levels, first) } else { Ok(()) };
        }
        let beyond = ExtentFault::TooMany {
            records: u64::from(le::narrow(wanted)),
            capacity: u64::from(le::narrow(max)),
        };
        let Some(block) = spare.pop() else { return Err(store.fault(place, beyond)) };
        let Some(full) = place else {
            grow(store, (at, drop, &new), depth, block)?;
            return Ok(());
        };
        let index = split(store, (full, block), depth, &level, (at, drop, &new), &levels)?;
        at = levels.last().map_or(0, |parent| parent.pos.saturating_add(1));
        (drop, new) = (0, [index].to_vec());
    }
    Ok(())
}

/// Returns how many blocks [`replace`] will take.
fn nodes_needed<S: TreeStore>(
    store: &S,
    levels: &[Level],
    mut drop: usize,
    mut new: usize,
) -> Result<usize, S::Error> {
    let mut needed = 0usize;
    for level in levels.iter().rev() {
        let wanted = level.entries.saturating_sub(drop).saturating_add(new);
        if wanted <= level.max {
            return Ok(needed);
        }
        needed = needed.saturating_add(1);
        (drop, new) = (0, 1);
    }
    // The root is full too: one level more.
    if levels.len() > usize::from(DEPTH_MAX) {
        let capacity = u64::from(ROOT_RECORDS);
        return Err(store.fault(None, ExtentFault::TooMany { records: capacity, capacity }));
    }
    Ok(needed)
}

/// Puts the records of a full root, changed, into `block`, and leaves one index record.
fn grow<S: TreeStore>(
    store: &mut S,
    (at, drop, new): (usize, usize, &[RecordBytes]),
    depth: u16,
    block: FsBlock,
) -> Result<(), S::Error> {
    let records = spliced(raw_records(&store.root()?), at, drop, new);
    let max = store.node_max().max(NODE_MAX_MIN);
    store.create(block, |bytes| init_node(bytes, depth, max, &records))?;
    let index = index_record(store, &records, block)?;
    let mut root = [0; ROOT_BYTES];
    init(store, &mut root, depth.saturating_add(1), &[index])?;
    store.set_root(&root)
}

/// Divides the records of the node `full`, changed, between it and the new node `block`. Returns
/// the index record of the new one.
fn split<S: TreeStore>(
    store: &mut S,
    (full, block): (FsBlock, FsBlock),
    depth: u16,
    level: &Level,
    (at, drop, new): (usize, usize, &[RecordBytes]),
    parents: &[Level],
) -> Result<RecordBytes, S::Error> {
    let old = raw_records(store.read(full)?.as_ref());
    let appends = at == old.len();
    let all = spliced(old, at, drop, new);
    // Files mostly grow at their end: leave full nodes behind then.
    let half = all.len() >> 1;
    let kept = if appends { at } else { half }.min(level.max).max(1);
    let (left, right) = all.split_at(kept.min(all.len()));
    let max = store.node_max().max(NODE_MAX_MIN);
    store.create(block, |bytes| init_node(bytes, depth, max, right))?;
    store.edit(full, |bytes| splice(bytes, 0, level.entries, left))?;
    if at == 0
        && let Some(first) = left.first()
    {
        set_parents(store, parents, first_of(first))?;
    }
    index_record(store, right, block)
}

fn spliced(
    mut records: Vec<RecordBytes>,
    at: usize,
    drop: usize,
    new: &[RecordBytes],
) -> Vec<RecordBytes> {
    let at = at.min(records.len());
    let end = at.saturating_add(drop).min(records.len());
    records.splice(at..end, new.iter().copied());
    records
}

/// The index record of a node at `block` that holds `records`.
fn index_record<S: TreeStore>(
    store: &S,
    records: &[RecordBytes],
    block: FsBlock,
) -> Result<RecordBytes, S::Error> {
    let file_start = records.first().map_or(FileBlock(0), first_of);
    let index = Index { file_start, child: block };
    let raw = index.encode().map_err(|fault| store.fault(None, fault))?;
    let mut record = RecordBytes::default();
    record.copy_from_slice(raw.as_bytes());
    Ok(record)
}

fn init<S: TreeStore>(
    store: &S,
    root: &mut [u8; ROOT_BYTES],
    depth: u16,
    records: &[RecordBytes],
) -> Result<(), S::Error> {
    init_node(root, depth, ROOT_RECORDS, records).map_err(|fault| store.fault(None, fault))
}

/// The first file block of the node below the last of `parents` has changed.
fn set_parents<S: TreeStore>(
    store: &mut S,
    parents: &[Level],
    first: FileBlock,
) -> Result<(), S::Error> {
    for parent in parents.iter().rev() {
        match parent.at {
            Some(block) => store.edit(block, |bytes| set_first(bytes, parent.pos, first))?,
            None => {
                let mut root = store.root()?;
                let set = set_first(&mut root, parent.pos, first);
                set.map_err(|fault| store.fault(None, fault))?;
                store.set_root(&root)?;
            }
        }
        if parent.pos > 0 {
            break;
        }
    }
    Ok(())
}

/// While the root has one child with few records, it takes that child's place.
fn collapse<S: TreeStore>(store: &mut S) -> Result<(), S::Error> {
    for _level in 0..DEPTH_MAX {
        let root = store.root()?;
        let node = Node::decode_root(&root).map_err(|fault| store.fault(None, fault))?;
        if node.depth() == 0 || node.header().entries != 1 {
            return Ok(());
        }
        let Some((index, expect)) = node.child(0) else { return Ok(()) };
        let bytes = store.read(index.child)?;
        let child = Node::decode_block(bytes.as_ref(), expect);
        let child = child.map_err(|fault| store.fault(Some(index.child), fault))?;
        if child.header().entries > ROOT_RECORDS {
            return Ok(());
        }
        let records = raw_records(bytes.as_ref());
        let depth = child.depth();
        drop(bytes);
        let mut root = [0; ROOT_BYTES];
        init(store, &mut root, depth, &records)?;
        store.set_root(&root)?;
        store.free(index.child)?;
    }
    Ok(())
}

#[cfg(test)]
mod range_tests;
#[cfg(test)]
mod remap_tests;
#[cfg(test)]
mod tests;
