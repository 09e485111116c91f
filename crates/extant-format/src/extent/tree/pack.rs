//! Filling the nodes of a tree, so that there are as few of them as its extents need.
//!
//! A change splits full nodes, and removals leave nodes half empty: a tree that has seen both has up to twice the
//! nodes it needs, and more where ranges were taken out. One step moves records from a node to the one
//! in front of it.

use super::{Level, RecordBytes, TreeStore, collapse};
use crate::extent::edit::{first_of, raw_records, set_first, splice};
use crate::extent::{ExtentFault, Node};
use alloc::vec::Vec;
use extant_base::{FileBlock, FsBlock};

/// Where packing goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packed {
    /// File block of the next node to look at.
    pub at: u64,
    /// Levels above the leaves of the nodes whose children are packed; at least 1.
    pub height: u16,
    /// Node blocks that were given back.
    pub freed: u32,
    /// Whether all was looked at.
    pub done: bool,
}

impl Packed {
    /// Where packing begins.
    #[must_use]
    pub fn start() -> Packed {
        Packed { at: 0, height: 1, freed: 0, done: false }
    }
}

/// Moves records between two neighbours below one node, if its children could be fewer; goes on from `from`, which was
/// [`Packed::start`] or what the last step returned. After every call the tree is whole. A node that becomes empty is
/// given back, and a root with one small child takes its place.
///
/// # Errors
///
/// Those of the store, and damage. No space is ever needed.
///
/// # Cost
///
/// Reads the way to one node and its children; writes it and two of them, or none.
pub fn pack_step<S: TreeStore>(store: &mut S, from: Packed) -> Result<Packed, S::Error> {
    let done = Packed { freed: 0, done: true, ..from };
    let at = FileBlock(u32::try_from(from.at).unwrap_or(u32::MAX));
    let Some(parent) = go_to(store, at, usize::from(from.height))? else { return Ok(done) };
    let Parent { level, children, limit } = parent;
    let next = |freed| match limit {
        limit if limit < super::LAST => {
            Packed { at: u64::from(limit.0), freed, done: false, ..from }
        }
        _ => Packed { at: 0, height: from.height.saturating_add(1), freed, done: false },
    };
    let max = children.iter().map(|child| child.max).min().unwrap_or(0);
    let all: usize = children.iter().map(|child| child.records.len()).sum();
    if all.div_ceil(max.max(1)) >= children.len() {
        return Ok(next(0));
    }
    // There is one in front of another, or they would be as many as they have to be.
    let found = children
        .windows(2)
        .position(|pair| pair.first().is_some_and(|child| child.records.len() < max));
    let Some(place) = found else { return Ok(next(0)) };
    let (Some(front), Some(back)) = (children.get(place), children.get(place.saturating_add(1)))
    else {
        return Ok(next(0));
    };
    let room = max.saturating_sub(front.records.len());
    let count = room.min(back.records.len());
    let (moved, rest) = back.records.split_at(count);
    store.edit(front.at, |bytes| splice(bytes, front.records.len(), 0, moved))?;
    let slot = place.saturating_add(1);
    let freed = match rest.first() {
        Some(first) => {
            store.edit(back.at, |bytes| splice(bytes, 0, count, &[]))?;
            let first = first_of(first);
            change(store, &level, |bytes| set_first(bytes, slot, first))?;
            0
        }
        None => {
            change(store, &level, |bytes| splice(bytes, slot, 1, &[]))?;
            store.free(back.at)?;
            collapse(store)?;
            1
        }
    };
    // Here again, until its children are as few as they can be.
    Ok(Packed { freed, done: false, ..from })
}

/// A node and what is below it.
struct Parent {
    level: Level,
    children: Vec<Child>,
    /// First file block that it cannot map.
    limit: FileBlock,
}

struct Child {
    at: FsBlock,
    /// Records that it has room for.
    max: usize,
    records: Vec<RecordBytes>,
}

/// The node `height` levels above the leaf for `block`; `None` when the tree is not so high.
fn go_to<S: TreeStore>(
    store: &mut S,
    block: FileBlock,
    height: usize,
) -> Result<Option<Parent>, S::Error> {
    let mut next = None;
    // Each child's depth is one less than its parent's, and the root's at most 5.
    loop {
        let at: Option<(FsBlock, crate::extent::Expect)> = next;
        let (root, bytes);
        let decoded = match at {
            None => {
                root = store.root()?;
                Node::decode_root(&root)
            }
            Some((at, expect)) => {
                bytes = store.read(at)?;
                Node::decode_block(bytes.as_ref(), expect)
            }
        };
        let place = at.map(|(at, _)| at);
        let node = decoded.map_err(|fault| store.fault(place, fault))?;
        let depth = usize::from(node.depth());
        if depth < height {
            return Ok(None);
        }
        let empty = ExtentFault::EmptyIndex { depth: node.depth() };
        if depth > height {
            let child = node.child(node.find_child(block).unwrap_or(0));
            let (index, expect) = child.ok_or_else(|| store.fault(place, empty))?;
            next = Some((index.child, expect));
            continue;
        }
        let header = node.header();
        let below: Vec<_> =
            (0..usize::from(header.entries)).filter_map(|at| node.child(at)).collect();
        let level = Level {
            at: place,
            entries: usize::from(header.entries),
            max: usize::from(header.max),
            pos: 0,
        };
        let limit = at.map_or(super::LAST, |(_, expect)| expect.file_limit);
        let mut children = Vec::with_capacity(below.len());
        for (index, expect) in below {
            let bytes = store.read(index.child)?;
            let child = Node::decode_block(bytes.as_ref(), expect);
            let child = child.map_err(|fault| store.fault(Some(index.child), fault))?;
            let max = usize::from(child.header().max);
            children.push(Child { at: index.child, max, records: raw_records(bytes.as_ref()) });
        }
        return Ok(Some(Parent { level, children, limit }));
    }
}

/// Changes a node, or the root.
fn change<S: TreeStore>(
    store: &mut S,
    level: &Level,
    change: impl FnOnce(&mut [u8]) -> Result<(), ExtentFault>,
) -> Result<(), S::Error> {
    match level.at {
        Some(block) => store.edit(block, change),
        None => {
            let mut root = store.root()?;
            change(&mut root).map_err(|fault| store.fault(None, fault))?;
            store.set_root(&root)
        }
    }
}
