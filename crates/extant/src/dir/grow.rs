//! Making room in directories: gaps closed, blocks added, indexes made, leaves and nodes split,
//! levels added.
//!
//! All blocks of a step are allocated before anything is changed, and freed if one of them is not
//! available. A later failure aborts the journal.

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock};
use extant_format::dir::{DirEntry, Records, entry_area, is_dots};
use extant_format::hash::HashVersion;
use extant_format::htree::{
    self, HtreeFault, Index, IndexLayout, LeafSplit, NodePlace, Record, split_leaf,
};
use extant_format::inode::InodeFlags;

use super::damage;
use super::edit::{Shape, dir_damage, hash_of};
use super::index::{Descent, Frame};
use crate::alloc::Purpose;
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::map::{self, Cursor};
use crate::node::Node;
use crate::txn::Txn;
use crate::view::View;

/// New blocks at the end of the directory, not in use yet.
#[derive(Debug, Default)]
pub(super) struct Pool(Vec<(FileBlock, FsBlock)>);

impl Pool {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn take(&mut self, view: &View<'_>) -> Result<(FileBlock, FsBlock)> {
        let missing = || damage(view, None, Fault::Rule("its index changed while it was split"));
        self.0.pop().ok_or_else(missing)
    }
}

fn corrupt(dir: &Node, block: impl Into<Option<FsBlock>>, fault: HtreeFault) -> FsError {
    FsError::corrupt("directory", dir.ino(), block, Fault::Decode(Box::new(fault)))
}

/// Adds a block at the end of the directory; the caller fills it.
pub(super) fn append(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>) -> Result<(FileBlock, FsBlock)> {
    let volume = fs.volume();
    let size = dir.with(|data| data.record.size);
    let end = size.saturating_add(u64::from(volume.block_size().bytes()));
    // Without the feature, directory sizes have 32 bits.
    if !volume.has_large_dir() && end > u64::from(u32::MAX) {
        let blocks = volume.block_size().blocks_for(size);
        return Err(FsError::NoSpace {
            what: "blocks of the directory",
            wanted: blocks + 1,
            free: blocks,
        });
    }
    map::append_block(txn, fs, dir)
}

/// Adds `count` blocks, or none.
fn append_all(txn: &mut Txn<'_>, fs: &Fs, dir: &Arc<Node>, count: usize) -> Result<Pool> {
    let (size, blocks) =
        dir.with(|data| (data.record.size, fs.volume().block_size().blocks_for(data.record.size)));
    let mut pool = Pool::default();
    for _ in 0..count {
        match append(txn, fs, dir) {
            Ok(block) => pool.0.push(block),
            Err(error) if pool.is_empty() => return Err(error),
            Err(error) => {
                let end = blocks + pool.0.len() as u64;
                map::remove(txn, fs, dir, blocks..end, Purpose::Metadata)
                    .and_then(|()| txn.update(dir, |data| data.record.size = size))
                    .map_err(|broken| txn.fail(broken))?;
                return Err(error);
            }
        }
    }
    // Blocks are taken from the end, so the first one must be last.
    pool.0.reverse();
    Ok(pool)
}

/// Closes the gaps of a leaf or linear block.
pub(super) fn compact(
    txn: &mut Txn<'_>,
    view: &View<'_>,
    cursor: &mut Cursor,
    at: FileBlock,
) -> Result<FsBlock> {
    let shape = Shape::of(view);
    let block = view.dir_block(cursor, at)?;
    let device = block.number();
    let packed = htree::compact(block.bytes(), shape.layout);
    let packed = packed.map_err(|fault| dir_damage(view, device, fault))?;
    drop(block);
    txn.edit_block(device, shape.leaf(), |bytes| bytes.copy_from_slice(&packed))?;
    Ok(device)
}

/// Splits a leaf into halves.
fn halves(
    view: &View<'_>,
    device: FsBlock,
    bytes: &[u8],
    version: HashVersion,
) -> Result<LeafSplit> {
    let hash = |entry: &DirEntry<'_>| -> Result<_, Failure> {
        // Where computing it needs a key, it is stored.
        if let Some(hash) = entry.hash {
            return Ok(hash);
        }
        let wanted = Wanted::new(entry.name, view.is_casefold());
        Ok(hash_of(view, version, &wanted)?)
    };
    match split_leaf(bytes, view.dir_layout(), hash) {
        Ok(Some(split)) => Ok(split),
        Ok(None) => Err(damage(view, device, Fault::Rule("a full leaf has fewer than two names"))),
        Err(Failure::Dir(fault)) => Err(dir_damage(view, device, fault)),
        Err(Failure::Fs(error)) => Err(error),
    }
}

enum Failure {
    Dir(extant_format::dir::DirFault),
    Fs(FsError),
}

impl From<extant_format::dir::DirFault> for Failure {
    fn from(fault: extant_format::dir::DirFault) -> Failure {
        Failure::Dir(fault)
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Failure {
        Failure::Fs(error)
    }
}

/// Turns a directory of one full block into one with an index and two leaves.
pub(super) fn make_index(
    txn: &mut Txn<'_>,
    fs: &Fs,
    dir: &Arc<Node>,
    view: View<'_>,
) -> Result<()> {
    let shape = Shape::of(&view);
    let layout = view.index_layout();
    let version = match shape.layout.stored_hash {
        true => HashVersion::SipHash,
        false => fs.volume().new_index_hash(),
    };
    let mut cursor = Cursor::new(&view);
    let block = view.dir_block(&mut cursor, FileBlock(0))?;
    let root_at = block.number();
    // The root begins with `.` and `..`.
    let mut entries = entry_area(block.bytes(), shape.layout)
        .map(|area| Records::of_area(area, shape.layout))
        .map_err(|fault| dir_damage(&view, root_at, fault))?;
    let mut dots = [b".".as_slice(), b"..".as_slice()].map(|dots| match entries.next() {
        Some(Ok(entry)) if entry.name == dots && entry.is_used() => Some(entry.ino),
        _ => None,
    });
    let [Some(own), Some(parent)] = dots.each_mut().map(|dots| dots.take()) else {
        let rule = "its first block does not begin with `.` and `..`";
        return Err(damage(&view, root_at, Fault::Rule(rule)));
    };
    let others =
        entries.filter(|entry| entry.as_ref().is_ok_and(|e| e.is_used() && is_dots(e.name)));
    if others.count() > 0 {
        return Err(damage(&view, root_at, Fault::Rule("it has `.` or `..` twice")));
    }
    let split = halves(&view, root_at, block.bytes(), version)?;
    drop((block, cursor, view));
    let pool = append_all(txn, fs, dir, 2)?;
    let [upper, lower] = pool.0[..] else {
        return Err(txn.fail(FsError::InvalidArgument { what: "two blocks were asked for" }));
    };
    let records = [
        Record { hash: 0, continued: false, block: lower.0 },
        Record { hash: split.hash, continued: split.continued, block: upper.0 },
    ];
    let mut change = || -> Result<()> {
        txn.create_block(lower.1, shape.leaf(), |bytes| bytes.copy_from_slice(&split.lower))?;
        txn.create_block(upper.1, shape.leaf(), |bytes| bytes.copy_from_slice(&split.upper))?;
        let root = |bytes: &mut [u8]| {
            let dots = (own, parent);
            Index::encode_root(bytes, &layout, dots, version, 0, records.into_iter(), None)
        };
        let made = txn.edit_block(root_at, shape.index(NodePlace::Root), root)?;
        made.map_err(|fault| corrupt(dir, root_at, fault))?;
        txn.update(dir, |data| data.record.flags |= InodeFlags::INDEX)
    };
    change().map_err(|error| txn.fail(error))
}

/// Does one step towards room in the leaf of `descent`: adds a level, splits a node, or splits the
/// leaf. The first step allocates the blocks for all.
pub(super) fn grow<'g>(
    txn: &mut Txn<'_>,
    fs: &'g Fs,
    dir: &'g Arc<Node>,
    mut view: View<'g>,
    version: HashVersion,
    descent: &Descent,
    pool: &mut Pool,
) -> Result<View<'g>> {
    let layout = view.index_layout();
    let frames = descent.frames();
    let full = frames.iter().rev().take_while(|frame| frame.is_full).count();
    if full == frames.len() && frames.len() > usize::from(layout.levels_max()) {
        let levels = u64::from(layout.levels_max());
        let what = "index levels of the directory";
        return Err(FsError::NoSpace { what, wanted: levels + 1, free: levels });
    }
    // This is read before anything is changed.
    let shape = Shape::of(&view);
    let mut cursor = Cursor::new(&view);
    let leaf = view.dir_block(&mut cursor, descent.leaf)?;
    let leaf_at = leaf.number();
    let split = halves(&view, leaf_at, leaf.bytes(), version)?;
    drop((leaf, cursor));
    let started = !pool.is_empty();
    if !started {
        drop(view);
        *pool = append_all(txn, fs, dir, full + 1)?;
        view = fs.view(dir);
    }
    let fresh = pool.take(&view);
    drop(view);
    let step = match (fresh, frames) {
        (Err(error), _) => Err(error),
        (Ok(fresh), [.., parent]) if full == 0 => {
            split_a_leaf(txn, dir, shape, &layout, (parent, leaf_at), &split, fresh)
        }
        (Ok(fresh), [root, ..]) if full == frames.len() => {
            add_level(txn, dir, shape, &layout, root, fresh)
        }
        (Ok(fresh), frames) => match frames.get(frames.len() - full - 1..) {
            Some([parent, node, ..]) => {
                split_a_node(txn, dir, shape, &layout, (parent, node), fresh)
            }
            _ => Err(FsError::InvalidArgument { what: "an index without a root" }),
        },
    };
    step.map_err(|error| txn.fail(error))?;
    Ok(fs.view(dir))
}

fn split_a_leaf(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    shape: Shape,
    layout: &IndexLayout,
    (parent, leaf): (&Frame, FsBlock),
    split: &LeafSplit,
    (at, device): (FileBlock, FsBlock),
) -> Result<()> {
    txn.create_block(device, shape.leaf(), |bytes| bytes.copy_from_slice(&split.upper))?;
    txn.edit_block(leaf, shape.leaf(), |bytes| bytes.copy_from_slice(&split.lower))?;
    let record = Record { hash: split.hash, continued: split.continued, block: at };
    add_record(txn, dir, shape, layout, parent, record)
}

/// Inserts `record` behind the record that was followed in `frame`.
fn add_record(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    shape: Shape,
    layout: &IndexLayout,
    frame: &Frame,
    record: Record,
) -> Result<()> {
    let place = frame.place();
    let insert =
        |bytes: &mut [u8]| htree::insert_record(bytes, layout, place, frame.position + 1, record);
    let done = txn.edit_block(frame.device, shape.index(place), insert)?;
    done.map_err(|fault| corrupt(dir, frame.device, fault))
}

fn split_a_node(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    shape: Shape,
    layout: &IndexLayout,
    (parent, node): (&Frame, &Frame),
    (at, device): (FileBlock, FsBlock),
) -> Result<()> {
    let kind = shape.index(NodePlace::Inner);
    let mut upper = vec![0; shape.layout.block_size.len()];
    let halve = |bytes: &mut [u8]| htree::split_node(bytes, &mut upper, at, layout);
    let done = txn.edit_block(node.device, kind, halve)?;
    let record = done.map_err(|fault| corrupt(dir, node.device, fault))?;
    txn.create_block(device, kind, |bytes| bytes.copy_from_slice(&upper))?;
    add_record(txn, dir, shape, layout, parent, record)
}

fn add_level(
    txn: &mut Txn<'_>,
    dir: &Arc<Node>,
    shape: Shape,
    layout: &IndexLayout,
    root: &Frame,
    (at, device): (FileBlock, FsBlock),
) -> Result<()> {
    let mut node = vec![0; shape.layout.block_size.len()];
    let lift = |bytes: &mut [u8]| htree::grow_root(bytes, &mut node, at, layout);
    let done = txn.edit_block(root.device, shape.index(NodePlace::Root), lift)?;
    done.map_err(|fault| corrupt(dir, root.device, fault))?;
    let kind = shape.index(NodePlace::Inner);
    txn.create_block(device, kind, |bytes| bytes.copy_from_slice(&node))
}
