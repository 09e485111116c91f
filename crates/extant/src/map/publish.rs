//! Publishing written data in a file's map: inserting new runs, and converting unwritten blocks.
//!
//! # Place
//!
//! Writeback calls this when the data is on the device, and holds the file's map lock, so nothing
//! here restarts the handle: the caller asks for [`publish_credits`] when it opens the handle.
//!
//! # Invariants
//!
//! - M6. A failure leaves the blocks concerned unchanged: a run is mapped as a whole or not at all,
//!   and an unwritten block stays unwritten.
//! - M7. Blocks that the map itself needs for stored data may come from the pool that promises
//!   leave alone, and may exceed the owner's quota (P7): a refusal would lose the data. Such a
//!   handle [publishes](Txn::publishes).

use std::ops::Range;
use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_format::extent::{
    self, Extent, ExtentState, ROOT_RECORDS, UNWRITTEN_LEN_MAX, WRITTEN_LEN_MAX,
};
use extant_format::indirect;
use extant_format::inode::InodeFlags;

use super::FILE_BLOCKS_END;
use super::edit::uses_extents;
use super::extent_edit::Tree;
use super::indirect_edit::Pointers;
use crate::error::{FsError, Result};
use crate::node::Node;
use crate::txn::Txn;
use crate::volume::Volume;

/// Number of extents that one step of a conversion looks at.
const STEP_EXTENTS: usize = 128;

/// Credits of one step of a conversion: the inode and the path from the root, two nodes split and
/// their new halves with bitmaps and descriptors, and the nodes freed when the tree gets lower. A
/// split of more levels extends the handle.
pub(crate) const CONVERT_STEP_CREDITS: u32 = 2 + 5 + 2 * 4 + 2 * 5;

/// Progress of a change of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Progress {
    /// File block where the rest of the range starts.
    pub(crate) end: u64,
    /// Whether the whole range is done.
    pub(crate) done: bool,
}

/// Maps an allocated run of any length to file blocks that are not mapped.
///
/// # Errors
///
/// No space for the map's own blocks, damage; nothing has changed then (M6).
pub(crate) fn insert_run(txn: &mut Txn<'_>, node: &Arc<Node>, run: Extent) -> Result<()> {
    let (len, longest) = match run.state {
        ExtentState::Written => (run.len.0, WRITTEN_LEN_MAX),
        ExtentState::Unwritten => (run.len.0, UNWRITTEN_LEN_MAX),
    };
    let mut done = 0;
    while done < len {
        let step = (len - done).min(longest);
        let part = Extent {
            file_start: FileBlock(run.file_start.0.saturating_add(done)),
            device_start: FsBlock(run.device_start.0.saturating_add(u64::from(done))),
            len: BlockCount(step),
            state: run.state,
        };
        if let Err(error) = insert_part(txn, node, part) {
            if done > 0 {
                // This takes no space: the records existed before.
                let start = u64::from(run.file_start.0);
                let unmapped = super::unmap(txn, node, start..start + u64::from(done));
                unmapped.map_err(|broken| txn.fail(broken))?;
            }
            return Err(error);
        }
        done += step;
    }
    Ok(())
}

fn insert_part(txn: &mut Txn<'_>, node: &Arc<Node>, part: Extent) -> Result<()> {
    let goal = part.device_start;
    let (result, changed) = if uses_extents(txn.volume(), node)? {
        let mut tree = Tree::new(txn, node, goal);
        (extent::insert(&mut tree, part), tree.changed)
    } else {
        let mut map = Pointers::new(txn, node, goal);
        (indirect::insert(&mut map, part), map.changed)
    };
    result.map_err(|error| if changed { txn.fail(error) } else { error })
}

/// Changes the state of the mapped blocks of a range to `to`; holes and blocks in that state stay.
/// Continues while the transaction has room and never restarts it: the caller checks
/// [`Progress::done`], and continues in another transaction with [`CONVERT_STEP_CREDITS`].
///
/// # Errors
///
/// No space for a node of the map, damage, device errors. Blocks converted before stay so. A file
/// without an extent tree has no unwritten blocks.
pub(crate) fn convert_range(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    blocks: Range<u64>,
    to: ExtentState,
) -> Result<Progress> {
    let end = blocks.end.min(FILE_BLOCKS_END);
    let done = Progress { end, done: true };
    if !uses_extents(txn.volume(), node)? {
        return match to {
            ExtentState::Written => Ok(done),
            ExtentState::Unwritten => {
                let what = "a file mapped by block pointers has no unwritten blocks";
                Err(FsError::InvalidArgument { what })
            }
        };
    }
    if to == ExtentState::Written {
        txn.publishes();
    }
    let goal = txn.volume().goal_of(node.ino())?;
    let mut at = blocks.start;
    while at < end {
        if !txn.has_room(CONVERT_STEP_CREDITS) {
            return Ok(Progress { end: at, done: false });
        }
        let (result, changed) = txn.rescue(|txn| {
            let mut tree = Tree::new(txn, node, goal);
            (extent::convert_step(&mut tree, (at, end), to, STEP_EXTENTS), tree.changed)
        });
        let step = result.map_err(|error| if changed { txn.fail(error) } else { error })?;
        if step.done || step.end <= at {
            break;
        }
        at = step.end;
    }
    Ok(done)
}

/// Returns the credits for mapping or converting `extents` runs with `blocks` blocks together in
/// one handle without a restart: the map's nodes, with bitmaps and descriptors of new ones, and the
/// inode. The bitmaps and descriptors of the runs themselves are not included.
pub(crate) fn publish_credits(
    volume: &Volume,
    node: &Arc<Node>,
    extents: usize,
    blocks: u64,
) -> u32 {
    let mut extents = u32::try_from(extents).unwrap_or(u32::MAX).min(1 << 20);
    if sabotage("extant.map.credits-of-one-run") {
        extents = 1;
    }
    let is_tree = node.with(|data| data.record.flags.contains(InodeFlags::EXTENTS));
    if !is_tree {
        // Each run lies in the pointer blocks that it fills and one more at each end; the levels
        // above grow much less.
        let per = u64::from(indirect::pointers(volume.block_size()));
        let full = u32::try_from(blocks / per).unwrap_or(u32::MAX).min(1 << 20);
        let lowest = full + 2 * extents;
        return 2 + 4 * (lowest + lowest / 8 + 4);
    }
    let root = node.with(|data| data.record.block);
    let root = extent::Node::decode_root(&root).map(|root| root.header());
    let (depth, entries) = root.map_or((0, 0), |root| (u32::from(root.depth), root.entries));
    // A full leaf is split once for many records, and a conversion turns one record into up to
    // three.
    let half = u32::from(extent::max_in_block(volume.block_size()) / 2).max(1);
    let leaves = match depth {
        0 => 1,
        1 => u32::from(entries.min(ROOT_RECORDS)),
        _ => extents,
    };
    let touched = extents.min(leaves);
    let leaf_splits = touched + 2 * extents / half + 1;
    // Levels above: those on the way, and one split for many below.
    let splits = leaf_splits + leaf_splits / half + depth + 1;
    // A split: the old node, the new one, its bitmap and descriptor. Each touched leaf has a parent.
    2 + 4 * splits + 2 * touched + depth + CONVERT_STEP_CREDITS
}
