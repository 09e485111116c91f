//! Looking up the mapping of a range for the I/O path.
//!
//! # Shape
//!
//! The root is searched in place, under the node's lock; each node below comes from the cache of
//! decoded nodes as one counted reference. No memory is allocated, and no handle is made.
//!
//! # Concurrency
//!
//! The caller keeps the map from changing: it holds the file's map lock, or the content lock
//! exclusively while it holds writeback off, which publishes under the map lock only. Otherwise
//! root and nodes may be of different versions, and look damaged.

use std::sync::Arc;

use extant_base::{FileBlock, Ino};
use extant_format::extent::{Expect, Extent, ExtentState, Index};
use extant_format::inode::{FileKind, InodeFlags};

use super::extents::{load, load_in_memory};
use super::indirect::IndirectCursor;
use super::{Cursor, FILE_BLOCKS_END, MERGE_MAX, Mapping, MappingKind};
use crate::error::{FsError, Result};
use crate::extent_node::{ExtentNode, Records};
use crate::fs::{Fs, Mount};
use crate::node::{InodeData, Node};

/// Result of a search in the root of a map.
enum Root {
    Found(Piece),
    Below { step: Step, generation: u32 },
    Pointers([u8; extant_format::indirect::ROOT_BYTES]),
}

/// A child to descend to, and the file blocks that only it can map.
struct Step {
    child: Index,
    expect: Expect,
    end: u64,
}

/// A run that starts at the given block, and whether the next leaf may continue it.
struct Piece {
    len: u64,
    kind: MappingKind,
    is_cut: bool,
}

enum Search {
    Found(Piece),
    Below(Step),
}

/// Returns the mapping of file block `at`, with its length, up to file block `end`. Neighbours that
/// are contiguous in the file and on the device are one run.
///
/// # Errors
///
/// Damage of the map on the way to `at`; device errors.
///
/// # Cost
///
/// A search in each node on the way, without allocation, if the nodes are decoded already.
pub(crate) fn lookup(fs: &Fs, node: &Arc<Node>, at: u64, end: u64) -> Result<Mapping> {
    let volume = fs.volume();
    if volume.fast_commit().is_some() {
        // The mount is read-only, with ranges of a fast commit over the map.
        let view = fs.view(node);
        return Cursor::new(&view).run(&view, at, end);
    }
    let first = file_block(at)?;
    let end = end.clamp(at + 1, FILE_BLOCKS_END);
    let piece = piece(fs, volume, node, at, end)?;
    let mut run = Mapping { file_start: first, len: piece.len, kind: piece.kind };
    let mut is_cut = piece.is_cut;
    for _ in 0..MERGE_MAX {
        let next_at = run.file_end();
        if !is_cut || next_at >= end {
            break;
        }
        // The next call reports damage further on.
        let Ok(next) = self::piece(fs, volume, node, next_at, end) else { break };
        let mapping = Mapping { file_start: file_block(next_at)?, len: next.len, kind: next.kind };
        if !run.continues_with(&mapping) {
            break;
        }
        run.len += next.len;
        is_cut = next.is_cut;
    }
    run.len = run.len.min(end - at);
    if let MappingKind::Mapped(start) | MappingKind::Unwritten(start) = run.kind {
        volume.check_file_blocks("file mapping", node.ino(), first, start, run.len)?;
    }
    Ok(run)
}

/// Looks up a mapping like [`lookup`], in memory only: `None` where nodes are missing or damaged,
/// and for files that are mapped by pointers. Never waits.
pub(crate) fn lookup_in_memory(volume: &Mount, node: &Node, at: u64, end: u64) -> Option<Mapping> {
    if volume.fast_commit().is_some() {
        return None;
    }
    let first = file_block(at).ok()?;
    let end = end.clamp(at + 1, FILE_BLOCKS_END);
    let (mut step, generation) = match node.try_with(|data| in_root(data, at, end))?.ok()?? {
        Root::Found(piece) => return checked(volume, node, first, piece, end),
        Root::Below { step, generation } => (step, generation),
        Root::Pointers(_) => return None,
    };
    loop {
        let child = load_in_memory(volume, node.ino(), generation, step.child.child, step.expect)?;
        match search(&child, step.end, at, end) {
            Search::Found(piece) => return checked(volume, node, first, piece, end),
            Search::Below(next) => step = next,
        }
    }
}

/// Returns the mapping in a piece, if it is valid.
fn checked(
    volume: &Mount,
    node: &Node,
    first: FileBlock,
    piece: Piece,
    end: u64,
) -> Option<Mapping> {
    let len = piece.len.min(end - u64::from(first.0));
    if let MappingKind::Mapped(start) | MappingKind::Unwritten(start) = piece.kind {
        // Who may wait says what is wrong.
        volume.may_be_file_blocks(node.ino(), start, len).then_some(())?;
    }
    Some(Mapping { file_start: first, len, kind: piece.kind })
}

fn file_block(at: u64) -> Result<FileBlock> {
    let none = FsError::InvalidArgument { what: "a file has no block from 2^32 on" };
    u32::try_from(at).map(FileBlock).map_err(|_| none)
}

/// Returns the piece in one leaf.
fn piece(fs: &Fs, volume: &Mount, node: &Arc<Node>, at: u64, end: u64) -> Result<Piece> {
    match node.with(|data| in_root(data, at, end))? {
        Some(Root::Found(piece)) => Ok(piece),
        Some(Root::Below { step, generation }) => {
            below(volume, node.ino(), generation, step, at, end)
        }
        Some(Root::Pointers(root)) => {
            let found =
                IndirectCursor::default().piece(volume, node.ino(), &root, file_block(at)?)?;
            Ok(Piece { len: found.len, kind: found.kind, is_cut: true })
        }
        None => {
            let view = fs.view(node);
            let found = Cursor::new(&view).piece(&view, at)?;
            Ok(Piece { len: found.len, kind: found.kind, is_cut: false })
        }
    }
}

/// Searches the root; `None` for inodes with inline data and those that are no files, which take
/// the general path.
fn in_root(data: &InodeData, at: u64, end: u64) -> Result<Option<Root>> {
    let flags = data.record.flags;
    if flags.contains(InodeFlags::INLINE_DATA)
        || !matches!(data.kind, FileKind::Regular | FileKind::Directory)
    {
        return Ok(None);
    }
    if !flags.contains(InodeFlags::EXTENTS) {
        return Ok(Some(Root::Pointers(data.record.block)));
    }
    let root = data.extent_root()?;
    Ok(Some(match search(root, FILE_BLOCKS_END, at, end) {
        Search::Found(piece) => Root::Found(piece),
        Search::Below(step) => Root::Below { step, generation: data.record.generation },
    }))
}

/// Descends to the leaf: at most five nodes, each one's depth one less than its parent's.
fn below(
    volume: &Mount,
    ino: Ino,
    generation: u32,
    mut step: Step,
    at: u64,
    end: u64,
) -> Result<Piece> {
    loop {
        let node = load(volume, ino, generation, step.child.child, step.expect)?;
        match search(&node, step.end, at, end) {
            Search::Found(piece) => return Ok(piece),
            Search::Below(next) => step = next,
        }
    }
}

/// Searches for block `at` in a node that maps blocks below `limit`.
fn search(node: &ExtentNode, limit: u64, at: u64, end: u64) -> Search {
    match &node.records {
        Records::Leaf(extents) => Search::Found(in_leaf(extents, limit, at, end)),
        Records::Index(children) => {
            let start = |index: &Index| u64::from(index.file_start.0);
            let after = children.partition_point(|(index, _)| start(index) <= at);
            let Some((child, expect)) = after.checked_sub(1).and_then(|last| children.get(last))
            else {
                let first = children.first().map_or(limit, |(index, _)| start(index));
                return Search::Found(hole(at, first.min(limit), false));
            };
            // The last child of a node extends to the node's own limit.
            let end = match children.get(after) {
                Some((next, _)) => limit.min(start(next)),
                None => limit,
            };
            Search::Below(Step { child: *child, expect: *expect, end })
        }
    }
}

fn hole(at: u64, end: u64, is_cut: bool) -> Piece {
    Piece { len: end.saturating_sub(at).max(1), kind: MappingKind::Hole, is_cut }
}

fn in_leaf(extents: &[Extent], limit: u64, at: u64, end: u64) -> Piece {
    let after = extents.partition_point(|extent| u64::from(extent.file_start.0) <= at);
    let found = after.checked_sub(1).and_then(|last| extents.get(last));
    let found = found.filter(|extent| u64::from(extent.file_end().0) > at);
    let Some(extent) = found else {
        return match extents.get(after) {
            Some(next) => hole(at, u64::from(next.file_start.0).min(limit), false),
            None => hole(at, limit, limit < FILE_BLOCKS_END),
        };
    };
    let into = at - u64::from(extent.file_start.0);
    let mut len = u64::from(extent.len.0) - into;
    // Below 2^48 and decoded: no overflow.
    let device = extant_base::FsBlock(extent.device_start.0.saturating_add(into));
    let mut rest = extents.iter().skip(after);
    let is_cut = loop {
        if at + len >= end {
            break false;
        }
        let Some(next) = rest.next() else { break at + len >= limit };
        let continues = u64::from(next.file_start.0) == at + len
            && next.device_start.0 == device.0.saturating_add(len)
            && next.state == extent.state;
        if !continues {
            break false;
        }
        len += u64::from(next.len.0);
    };
    let kind = match extent.state {
        ExtentState::Written => MappingKind::Mapped(device),
        ExtentState::Unwritten => MappingKind::Unwritten(device),
    };
    Piece { len: len.min(limit.saturating_sub(at)).max(1), kind, is_cut }
}
