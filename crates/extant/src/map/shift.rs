//! Moving the extents behind an offset of a file: collapse range, insert range.

use std::sync::Arc;

use extant_base::{BlockCount, FileBlock};
use extant_format::extent;

use super::FILE_BLOCKS_END;
use super::edit::uses_extents;
use super::extent_edit::Tree;
use super::publish::Progress;
use crate::error::{FsError, Result};
use crate::node::Node;
use crate::txn::Txn;

/// Credits of one step of a move: the inode, a leaf and the nodes above it, and the nodes freed
/// when the tree gets lower.
pub(crate) const SHIFT_STEP_CREDITS: u32 = 2 + 6 + 2 * 5;

/// Splits an extent that crosses file block `at`, so that [`shift_up`] can move from there. One
/// step of [`CONVERT_STEP_CREDITS`](super::CONVERT_STEP_CREDITS).
///
/// # Errors
///
/// No space or quota for a node of the map, damage; nothing has changed then.
pub(crate) fn split_at(txn: &mut Txn<'_>, node: &Arc<Node>, at: FileBlock) -> Result<()> {
    check_tree(txn, node)?;
    txn.rescue(|txn| change(txn, node, |tree| extent::split_at(tree, at)).map(|_| ()))
}

/// Moves everything from file block `at` on down by `by` blocks, over the hole in front of it,
/// while the transaction has room; at least one step of [`SHIFT_STEP_CREDITS`]. The next call's
/// `at` is [`Progress::end`]. The map is valid after each call. With `bigalloc`, `by` is a multiple
/// of the blocks of a cluster.
///
/// # Errors
///
/// Damage, device errors; mapped blocks in front of `at`, where a hole is required.
pub(crate) fn shift_down(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    at: u64,
    by: BlockCount,
) -> Result<Progress> {
    check_tree(txn, node)?;
    let mut end = at;
    loop {
        let step = change(txn, node, |tree| extent::shift_down_step(tree, end, by))?;
        if step.done || step.at <= end {
            return Ok(Progress { end: FILE_BLOCKS_END, done: true });
        }
        end = step.at;
        if !txn.has_room(SHIFT_STEP_CREDITS) {
            return Ok(Progress { end, done: false });
        }
    }
}

/// Moves everything between file blocks `from` and `end` up by `by` blocks, from the last extent
/// down and while the transaction has room; at least one step of [`SHIFT_STEP_CREDITS`]. The first
/// call's `end` is [`FILE_BLOCKS_END`], that of the next calls is [`Progress::end`]. The map is
/// valid after each call. With `bigalloc`, `by` is a multiple of the blocks of a cluster.
///
/// # Errors
///
/// Damage, device errors; an extent that would go past the last file block, with nothing moved.
pub(crate) fn shift_up(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    (from, end): (u64, u64),
    by: BlockCount,
) -> Result<Progress> {
    check_tree(txn, node)?;
    let mut end = end;
    loop {
        let step = change(txn, node, |tree| extent::shift_up_step(tree, (from, end), by))?;
        if step.done || step.at >= end {
            return Ok(Progress { end: from, done: true });
        }
        end = step.at;
        if !txn.has_room(SHIFT_STEP_CREDITS) {
            return Ok(Progress { end, done: false });
        }
    }
}

fn check_tree(txn: &Txn<'_>, node: &Arc<Node>) -> Result<()> {
    if uses_extents(txn.volume(), node)? {
        return Ok(());
    }
    let what = "only files with an extent tree can have ranges moved";
    Err(FsError::InvalidArgument { what })
}

fn change<'v, R>(
    txn: &mut Txn<'v>,
    node: &Arc<Node>,
    change: impl FnOnce(&mut Tree<'_, 'v>) -> Result<R>,
) -> Result<R> {
    let goal = txn.volume().goal_of(node.ino())?;
    let (result, changed) = node.change_map(|| {
        let mut tree = Tree::new(txn, node, goal);
        (change(&mut tree), tree.changed)
    });
    result.map_err(|error| if changed { txn.fail(error) } else { error })
}
