//! Giving blocks of a file other places on the device, and a tree fewer nodes.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FileBlock, FsBlock};
use extant_format::{extent, indirect};

use super::edit::uses_extents;
use super::extent_edit::Tree;
use super::indirect_edit::Pointers;
use crate::error::{FsError, Result};
use crate::node::Node;
use crate::txn::Txn;
use crate::volume::Volume;

pub(crate) use extant_format::extent::Packed;

/// Extents that one step looks at.
const STEP_EXTENTS: usize = 64;

/// Credits of one step of packing: the inode, two nodes and the one above them; the bitmap and the descriptor of the
/// node that is given back, and of those that a tree that gets lower gives back.
pub(crate) const PACK_STEP_CREDITS: u32 = 2 + 3 + 2 + 2 * 5;

/// Blocks of a file that go elsewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Relocation {
    /// They are mapped, and follow each other on the device.
    pub(crate) file: Range<u64>,
    /// The new place of the first of them.
    pub(crate) to: FsBlock,
}

/// Credits for [`remap`] of so many runs with so many blocks together.
pub(crate) fn remap_credits(volume: &Volume, runs: usize, blocks: u64) -> u32 {
    let runs = u32::try_from(runs).unwrap_or(u32::MAX).min(1 << 16);
    let per = u64::from(indirect::pointers(volume.block_size()));
    let full = u32::try_from(blocks / per).unwrap_or(u32::MAX).min(1 << 16);
    // The inode; each run in a node of its own and the nodes above, or in one pointer block more than it
    // fills; both ends cut, which may split the nodes on the way; a tree that gets lower.
    2 + 2 * runs + full + 2 * super::CONVERT_STEP_CREDITS + 5
}

/// Maps blocks to other places, all of them or none. The caller has copied what they hold, takes the new places and
/// frees the old ones, in this handle, which does not end within.
///
/// # Errors
///
/// No space for a node where the map has to be cut, a place that a pointer cannot name, damage: and then every block is
/// where it was.
pub(crate) fn remap(txn: &mut Txn<'_>, node: &Arc<Node>, moves: &[Relocation]) -> Result<()> {
    let goal = txn.volume().goal_of(node.ino())?;
    if !uses_extents(txn.volume(), node)? {
        for (count, Relocation { file, to }) in moves.iter().enumerate() {
            let mut map = Pointers::new(txn, node, goal);
            let result = indirect::remap(&mut map, (file.start, file.end), *to);
            let changed = map.changed || count > 0;
            result.map_err(|error| if changed { txn.fail(error) } else { error })?;
        }
        return Ok(());
    }
    // Only this takes space, and leaves a map that says the same.
    for at in moves.iter().flat_map(|moved| [moved.file.start, moved.file.end]) {
        if let Ok(at) = u32::try_from(at) {
            change(txn, node, goal, |tree| extent::split_at(tree, FileBlock(at)))?;
        }
    }
    for (count, Relocation { file, to }) in moves.iter().enumerate() {
        let mut at = file.start;
        loop {
            let way = (file.start, *to);
            let step = change(txn, node, goal, |tree| {
                extent::remap_step(tree, (at, file.end), way, STEP_EXTENTS)
            });
            let step = match step {
                Err(error) if count > 0 || at > file.start => return Err(txn.fail(error)),
                other => other?,
            };
            if step.done || step.end <= at {
                break;
            }
            at = step.end;
        }
    }
    Ok(())
}

/// One step of filling half-empty nodes, which never takes space; see [`extent::pack_step`]. Only trees have some.
///
/// # Errors
///
/// Damage, device errors.
pub(crate) fn pack(txn: &mut Txn<'_>, node: &Arc<Node>, from: Packed) -> Result<Packed> {
    if !uses_extents(txn.volume(), node)? {
        return Ok(Packed { done: true, freed: 0, ..from });
    }
    let goal = txn.volume().goal_of(node.ino())?;
    change(txn, node, goal, |tree| extent::pack_step(tree, from))
}

fn change<'v, R>(
    txn: &mut Txn<'v>,
    node: &Arc<Node>,
    goal: FsBlock,
    change: impl FnOnce(&mut Tree<'_, 'v>) -> Result<R, FsError>,
) -> Result<R> {
    let mut tree = Tree::new(txn, node, goal);
    let (result, changed) = (change(&mut tree), tree.changed);
    result.map_err(|error| if changed { txn.fail(error) } else { error })
}
