//! Setting the map of a file to that of a fast commit, whose blocks are given.

use std::ops::Range;
use std::sync::Arc;

use extant_format::extent::{self, Extent};
use extant_format::indirect;

use super::FILE_BLOCKS_END;
use super::edit::uses_extents;
use super::extent_edit::Tree;
use super::indirect_edit::Pointers;
use crate::error::Result;
use crate::fast::Refusal;
use crate::node::Node;
use crate::txn::Txn;

/// Limit of the runs that one step removes.
const STEP_RUNS: usize = 16;

/// Unmaps a range without freeing its device blocks, which are returned.
pub(crate) fn unmap(txn: &mut Txn<'_>, node: &Arc<Node>, range: Range<u64>) -> Result<Vec<Extent>> {
    txn.refuse(Refusal::Blocks);
    let goal = txn.volume().goal_of(node.ino())?;
    let extents = uses_extents(txn.volume(), node)?;
    let (start, mut end) = (range.start, range.end.min(FILE_BLOCKS_END));
    let mut all = Vec::new();
    while start < end {
        let removed = if extents {
            extent::remove_step(&mut Tree::new(txn, node, goal), (start, end), STEP_RUNS)?
        } else {
            indirect::remove_step(&mut Pointers::new(txn, node, goal), (start, end), STEP_RUNS)?
        };
        all.extend(removed.extents);
        if removed.done || removed.end >= end {
            break;
        }
        end = removed.end;
    }
    Ok(all)
}
