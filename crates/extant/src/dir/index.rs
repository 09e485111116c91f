//! Walking an index: from the root to the leaf of a hash, and on to the next leaf.

use std::sync::Arc;

use extant_base::{FileBlock, FsBlock, Ino};
use extant_format::dir::Records;
use extant_format::hash::{HashVersion, name_hash};
use extant_format::htree::{
    HtreeFault, Index, IndexLayout, LEVELS_MAX_LARGE_DIR, NodePlace, Record, Root,
};

use super::damage;
use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::map::Cursor;
use crate::slot::MetaBlock;
use crate::view::View;

/// Largest number of index blocks on the way to a leaf: the root and the inner nodes.
const DEPTH_MAX: usize = LEVELS_MAX_LARGE_DIR as usize + 1;

/// Limit of the inner nodes that a check examines.
const NODES_MAX: usize = 8192;

/// Number of leaves examined for names, to verify that they are where the index says.
const SAMPLED_MAX: usize = 4;

/// Number of leaves with names that are compared with the index.
const LEAVES_COMPARED: usize = 2;

/// Number of misplaced names from which the index counts as wrong, instead of the names.
const ASTRAY_MIN: usize = 2;

/// An index block on the way, and the record that was followed.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frame {
    pub(super) at: FileBlock,
    pub(super) device: FsBlock,
    pub(super) position: usize,
    pub(super) is_full: bool,
}

impl Frame {
    pub(super) fn place(&self) -> NodePlace {
        if self.at.0 == 0 { NodePlace::Root } else { NodePlace::Inner }
    }
}

/// A leaf, and the index blocks on the way to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Descent {
    frames: [Frame; DEPTH_MAX],
    depth: usize,
    pub(super) leaf: FileBlock,
    /// Hash at which the leaf's names begin.
    pub(super) start: u32,
    /// Hash at which the next leaf's names begin; `None` for the last leaf.
    pub(super) next: Option<Record>,
}

impl Descent {
    /// Returns the index blocks from the root down.
    pub(super) fn frames(&self) -> &[Frame] {
        &self.frames[..self.depth]
    }

    /// Returns whether names of major hash `hash` may be in the next leaf too.
    pub(super) fn goes_on(&self, hash: u32) -> bool {
        self.next.is_some_and(|next| next.continued && next.hash == hash & !1)
    }
}

/// A walk through the index of one version of a directory. The caller works around its errors, or
/// reports them as damage.
pub(super) struct IndexWalk<'a> {
    view: &'a View<'a>,
    layout: IndexLayout,
    blocks: u32,
    root: Arc<MetaBlock>,
    pub(super) hash: HashVersion,
    pub(super) parent: Ino,
    levels: u8,
}

/// Checks a block of the index: decodes it when it is first seen, and briefly afterwards.
fn check(
    view: &View<'_>,
    block: &MetaBlock,
    decode: impl FnOnce(&[u8]) -> Result<(), HtreeFault>,
) -> Result<()> {
    block.check_index_once(decode).map_err(|fault| broken(view, block.number(), fault))
}

fn broken(view: &View<'_>, block: FsBlock, fault: HtreeFault) -> FsError {
    damage(view, block, Fault::Decode(Box::new(fault)))
}

impl<'a> IndexWalk<'a> {
    pub(super) fn new(view: &'a View<'a>, cursor: &mut Cursor) -> Result<IndexWalk<'a>> {
        let volume = view.volume();
        let layout = view.index_layout();
        let blocks = volume.block_size().blocks_for(view.size());
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let root = view.dir_block(cursor, FileBlock(0))?;
        let walk = |root: &Arc<MetaBlock>| {
            let decoded = Root::peek(root.bytes(), &layout);
            let decoded = decoded.map_err(|fault| broken(view, root.number(), fault))?;
            let (hash, parent, levels) = (decoded.hash, decoded.parent, decoded.levels);
            let root = Arc::clone(root);
            Ok(IndexWalk { view, layout, blocks, root, hash, parent, levels })
        };
        root.check_index_once(|bytes| -> Result<()> {
            Root::decode(bytes, &layout, blocks)
                .map_err(|fault| broken(view, root.number(), fault))?;
            walk(&root)?.check_hashes(cursor)
        })?;
        walk(&root)
    }

    /// Fails if the names have other hashes than the index says: it uses another function, or was
    /// made with another seed. A few such names are damage of the names, not of the index.
    fn check_hashes(&self, cursor: &mut Cursor) -> Result<()> {
        if self.view.is_encrypted() {
            return Ok(());
        }
        let seed = self.view.volume().hash_seed();
        // Unreadable blocks are reported by the lookup that needs them.
        let Ok(mut descent) = self.descend(cursor, 0) else { return Ok(()) };
        // The hashes of similar names may lie so close together that all belong to one leaf: then only the others show it.
        let mut leaves = 0;
        for _ in 0..SAMPLED_MAX {
            let Ok(block) = self.view.dir_block(cursor, descent.leaf) else { return Ok(()) };
            let (mut names, mut astray) = (0, 0);
            let entries = Records::of_area(block.bytes(), self.layout.dir).used();
            for entry in entries.map_while(std::result::Result::ok).filter(|one| !one.is_dots()) {
                let hashed = Wanted::new(entry.name, self.view.is_casefold());
                let Some(hash) = name_hash(self.hash, &seed, hashed.hashed()) else {
                    return Ok(());
                };
                names += 1;
                let hash = hash.major & !1;
                let fits = descent.next.is_none_or(|next| {
                    hash < next.hash & !1 || (hash == next.hash & !1 && next.continued)
                });
                astray += usize::from(!fits || hash < descent.start & !1);
            }
            if astray >= ASTRAY_MIN && astray * 4 >= names {
                let rule = "its index orders names by other hashes than theirs";
                return Err(damage(self.view, self.root.number(), Fault::Rule(rule)));
            }
            leaves += usize::from(names > 0);
            if leaves == LEAVES_COMPARED || !self.advance(cursor, &mut descent).unwrap_or(false) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Descends to the first leaf that may hold names of major hash `hash`.
    pub(super) fn descend(&self, cursor: &mut Cursor, hash: u32) -> Result<Descent> {
        let mut descent = Descent {
            frames: [Frame::default(); DEPTH_MAX],
            depth: 0,
            leaf: FileBlock(0),
            start: 0,
            next: None,
        };
        self.go_down(cursor, &mut descent, FileBlock(0), |index| index.find(hash))?;
        Ok(descent)
    }

    /// Advances to the next leaf; returns false at the end.
    pub(super) fn advance(&self, cursor: &mut Cursor, descent: &mut Descent) -> Result<bool> {
        while let Some(depth) = descent.depth.checked_sub(1) {
            let Some(frame) = descent.frames.get(depth).copied() else { break };
            descent.depth = depth;
            let block = self.node(cursor, frame.at)?;
            let index = self.peek(&block, frame.at)?;
            if frame.position + 1 < index.len() {
                // The record behind this subtree is found again on the way up from it.
                descent.next = self.next_above(cursor, descent)?;
                let mut first = Some(frame.position + 1);
                let choose = |_: &Index<'_>| first.take().unwrap_or(0);
                self.go_down(cursor, descent, frame.at, choose)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Decodes the inner nodes, the first [`NODES_MAX`] of them.
    pub(super) fn check_nodes(&self, cursor: &mut Cursor) -> Result<()> {
        let mut level = vec![FileBlock(0)];
        let mut budget = NODES_MAX;
        for _ in 0..self.levels {
            let mut below = Vec::new();
            for at in level {
                let block = self.node(cursor, at)?;
                let index = self.peek(&block, at)?;
                let children = index.iter().map(|record| record.block).take(budget);
                budget = budget.saturating_sub(index.len());
                below.extend(children);
            }
            for at in &below {
                self.node(cursor, *at)?;
            }
            level = below;
        }
        Ok(())
    }

    /// Returns the record behind the current path.
    fn next_above(&self, cursor: &mut Cursor, descent: &Descent) -> Result<Option<Record>> {
        for frame in descent.frames().iter().rev() {
            let block = self.node(cursor, frame.at)?;
            let index = self.peek(&block, frame.at)?;
            if let Some(next) = index.get(frame.position + 1) {
                return Ok(Some(next));
            }
        }
        Ok(None)
    }

    fn go_down(
        &self,
        cursor: &mut Cursor,
        descent: &mut Descent,
        from: FileBlock,
        mut choose: impl FnMut(&Index<'_>) -> usize,
    ) -> Result<()> {
        let mut at = from;
        while descent.depth <= usize::from(self.levels) {
            let block = self.node(cursor, at)?;
            let index = self.peek(&block, at)?;
            let position = choose(&index);
            let Some(child) = index.get(position) else { break };
            if position > 0 {
                descent.start = child.hash;
            }
            if let Some(next) = index.get(position + 1) {
                descent.next = Some(next);
            }
            let Some(frame) = descent.frames.get_mut(descent.depth) else { break };
            *frame = Frame { at, device: block.number(), position, is_full: index.is_full() };
            descent.depth += 1;
            // The decoder has checked this; the rest is a block that was decoded for a larger
            // directory.
            if child.block.0 == 0 || child.block.0 >= self.blocks {
                let (value, limit) = (u64::from(child.block.0), u64::from(self.blocks));
                let rule = "the index points outside the directory";
                return Err(damage(self.view, block.number(), Fault::Field { rule, value, limit }));
            }
            at = child.block;
        }
        descent.leaf = at;
        Ok(())
    }

    fn node(&self, cursor: &mut Cursor, at: FileBlock) -> Result<Arc<MetaBlock>> {
        if at.0 == 0 {
            return Ok(Arc::clone(&self.root));
        }
        let block = self.view.dir_block(cursor, at)?;
        let decode = |bytes: &[u8]| Index::decode_inner(bytes, &self.layout, self.blocks).map(drop);
        check(self.view, &block, decode)?;
        Ok(block)
    }

    fn peek<'b>(&self, block: &'b MetaBlock, at: FileBlock) -> Result<Index<'b>> {
        let index = if at.0 == 0 {
            Root::peek(block.bytes(), &self.layout).map(|root| root.index)
        } else {
            Index::peek_inner(block.bytes(), &self.layout)
        };
        index.map_err(|fault| broken(self.view, block.number(), fault))
    }
}

impl View<'_> {
    /// Returns whether the directory is searched by hash.
    pub(super) fn has_index(&self) -> bool {
        self.is_indexed() && self.volume().has_dir_index()
    }

    /// Returns how the blocks of this directory's index are laid out.
    pub(super) fn index_layout(&self) -> IndexLayout {
        let volume = self.volume();
        IndexLayout {
            dir: self.dir_layout(),
            large_dir: volume.has_large_dir(),
            unsigned_hash: volume.unsigned_hash(),
        }
    }
}
