//! Changes of maps.
//!
//! # Place
//!
//! Below: `extent_edit` and `indirect_edit` change the two forms, the allocator gives blocks.
//! Above: directories, attributes and sizes. The caller holds the inode's content lock exclusively
//! and an open transaction.
//!
//! # Invariants
//!
//! - M3. Without space or quota nothing changes: all blocks are taken before the first write.
//! - M4. A removal goes from the end of its range to the start, in steps; after each step the map
//!   is valid, and the transaction may end there.
//! - M5. With bigalloc, a cluster is freed with the last of its blocks in the file, and a block
//!   whose cluster the file has already is mapped into that cluster.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_format::extent::{self, Extent, ExtentState};
use extant_format::features::RoCompat;
use extant_format::indirect::{self, DIRECT};
use extant_format::inode::{FileKind, InodeFlags};

use super::extent_edit::Tree;
use super::indirect_edit::Pointers;
use super::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::alloc::{BlockAsk, Purpose, Run};
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::node::{InodeData, Node};
use crate::quota::Grow;
use crate::txn::Txn;
use crate::volume::{Volume, check_sectors, check_size};

/// Limit of the runs that one step of a removal frees.
const STEP_RUNS: usize = 16;

/// Credits of one step of a removal: the path from the root and the nodes it frees, the bitmap and
/// descriptor of each run, a further node where an extent is split, the inode.
pub(crate) const REMOVE_STEP_CREDITS: u32 = 16 + 2 * (5 + STEP_RUNS as u32) + 4;

/// Length of the longest extent of a file that counts as small: it lies in at most two groups.
const SMALL_RUN: u32 = 8192;

/// Returns whether the inode may have blocks in a map.
pub(crate) fn has_blocks(data: &InodeData) -> bool {
    let has_map = match data.kind {
        FileKind::Regular | FileKind::Directory => true,
        FileKind::Symlink => {
            let flags = data.record.flags;
            flags.contains(InodeFlags::EXTENTS) || data.record.sectors != 0
        }
        FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => false,
    };
    has_map && !data.record.flags.contains(InodeFlags::INLINE_DATA) && data.record.sectors != 0
}

/// Returns whether [`remove`] frees all blocks in one step of at most 20 credits: four short runs,
/// mapped by the inode itself.
pub(crate) fn is_small(data: &InodeData) -> bool {
    if !has_blocks(data) {
        return true;
    }
    let area = &data.record.block;
    if data.record.flags.contains(InodeFlags::EXTENTS) {
        return extent::Node::decode_root(area).is_ok_and(|root| {
            root.depth() == 0 && root.extents().all(|extent| extent.len.0 <= SMALL_RUN)
        });
    }
    let mut runs = 0;
    let mut slot = 0;
    while slot < DIRECT {
        let Some((first, len)) = indirect::run_at(area, slot) else { return false };
        runs += u32::from(first.is_some());
        slot += len;
    }
    let is_direct = indirect::blocks(area).skip(DIRECT as usize).all(|block| block.is_none());
    is_direct && runs <= 4
}

/// Adds a block at the end of a directory, or another inode with journaled contents, and raises its
/// size. The caller fills the block.
///
/// # Errors
///
/// No space, no quota, a size or a block count that the format cannot express, damage of the map;
/// nothing has changed then.
pub(crate) fn append_block(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
) -> Result<(FileBlock, FsBlock)> {
    let volume = txn.volume();
    let block_size = volume.block_size();
    let data = node.data();
    let at = block_size.blocks_for(data.record.size);
    let new_size = (at + 1) << block_size.log2(); // The size is below 2^63.
    check_size(volume, &data, new_size)?;
    drop(data);
    let too_large = FsError::TooLarge { ino: node.ino(), bytes: new_size, limit: u64::MAX };
    let file_start = u32::try_from(at).map(FileBlock).map_err(|_| too_large)?;
    let implied = implied_block(fs, node, file_start)?;
    let goal = goal_after(fs, node, file_start)?;
    let block = match implied {
        Some(block) => block,
        None => {
            check_sectors(volume, node)?;
            let ask =
                BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Metadata, continues: false };
            let into = file_start.0 & (volume.superblock().cluster_ratio().max(1) - 1);
            let run = txn.allocate(node, &ask)?;
            FsBlock(run.start.0 + u64::from(into))
        }
    };
    let run =
        Extent { file_start, device_start: block, len: BlockCount(1), state: ExtentState::Written };
    if let Err(error) = insert_near(txn, node, run, block) {
        if implied.is_none() {
            let given_back = super::extent_edit::release_block(txn, node, block);
            given_back.map_err(|broken| txn.fail(broken))?;
        }
        return Err(error);
    }
    txn.update(node, |data| data.record.size = new_size).map_err(|error| txn.fail(error))?;
    Ok((file_start, block))
}

impl<'v> Grow<'v> for Txn<'v> {
    fn append_block(&mut self, node: &Arc<Node>) -> Result<(FileBlock, FsBlock)> {
        let fs = self.volume().fs().ok_or(FsError::ReadOnly)?;
        append_block(self, &fs, node)
    }
}

/// Maps file block 0 of an empty file to `block`.
pub(crate) fn insert_first(txn: &mut Txn<'_>, node: &Arc<Node>, block: FsBlock) -> Result<()> {
    let (file_start, len) = (FileBlock(0), BlockCount(1));
    let run = Extent { file_start, device_start: block, len, state: ExtentState::Written };
    insert_near(txn, node, run, block)
}

/// Maps an allocated run to file blocks that are not mapped.
///
/// # Errors
///
/// No space or quota for the map's own blocks, damage; nothing has changed then.
pub(crate) fn insert(txn: &mut Txn<'_>, node: &Arc<Node>, run: Extent) -> Result<()> {
    insert_near(txn, node, run, run.device_start)
}

/// Maps a run like [`insert`], with a goal for the map's own blocks.
fn insert_near(txn: &mut Txn<'_>, node: &Arc<Node>, run: Extent, goal: FsBlock) -> Result<()> {
    let (result, changed) = if uses_extents(txn.volume(), node)? {
        let mut tree = Tree::new(txn, node, goal);
        (extent::insert(&mut tree, run), tree.changed)
    } else {
        let mut map = Pointers::new(txn, node, goal);
        (indirect::insert(&mut map, run), map.changed)
    };
    result.map_err(|error| if changed { txn.fail(error) } else { error })
}

/// Returns whether the inode has an extent tree.
pub(super) fn uses_extents(volume: &Volume, node: &Arc<Node>) -> Result<bool> {
    let flags = node.with(|data| data.record.flags);
    if flags.contains(InodeFlags::INLINE_DATA) {
        let rule = "its data is in the inode, and it has no map to change";
        return Err(FsError::corrupt("inode", node.ino(), None, Fault::Rule(rule)));
    }
    let extents = flags.contains(InodeFlags::EXTENTS);
    if !extents && volume.features().has_ro_compat(RoCompat::BIGALLOC) {
        let rule = "block pointers in a file system with clusters";
        return Err(FsError::corrupt("inode", node.ino(), None, Fault::Rule(rule)));
    }
    Ok(extents)
}

/// Unmaps the file blocks of a range and frees their device blocks; `was` is their purpose.
///
/// Works in steps of [`REMOVE_STEP_CREDITS`]: the caller has that many, or those of [`is_small`].
/// Between steps the transaction may be closed and another opened, so a range of more than one step
/// is only for inodes that a crash finds again (orphans).
///
/// # Errors
///
/// Damage and device errors; space, where an extent is split. Blocks removed before stay removed,
/// and the map is valid, or the journal is aborted.
pub(crate) fn remove(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    blocks: Range<u64>,
    was: Purpose,
) -> Result<()> {
    if !fs.view(node).has_block_map() || !node.with(has_blocks) {
        return Ok(());
    }
    txn.rescue(|txn| remove_steps(txn, fs, node, blocks, was))
}

fn remove_steps(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    blocks: Range<u64>,
    was: Purpose,
) -> Result<()> {
    let start = blocks.start;
    let mut end = blocks.end.min(FILE_BLOCKS_END);
    let extents = uses_extents(txn.volume(), node)?;
    let goal = txn.volume().goal_of(node.ino())?;
    let mut is_first = true;
    while start < end {
        if !is_first {
            txn.ensure(REMOVE_STEP_CREDITS)?;
        }
        is_first = false;
        let (result, changed) = node.change_map(|| {
            if extents {
                let mut tree = Tree::new(txn, node, goal);
                (extent::remove_step(&mut tree, (start, end), STEP_RUNS), tree.changed)
            } else {
                let mut map = Pointers::new(txn, node, goal);
                (indirect::remove_step(&mut map, (start, end), STEP_RUNS), map.changed)
            }
        });
        let removed = result.map_err(|error| if changed { txn.fail(error) } else { error })?;
        release_extents(txn, fs, node, &removed.extents, was).map_err(|error| txn.fail(error))?;
        if removed.done || removed.end >= end {
            break;
        }
        end = removed.end;
    }
    Ok(())
}

/// Frees the device blocks of `extents`, which are in descending order and not in the map any more.
fn release_extents(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    extents: &[Extent],
    was: Purpose,
) -> Result<()> {
    let volume = txn.volume();
    let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
    let mut freed_from = None;
    for extent in extents {
        let (start, len) = (extent.device_start, u64::from(extent.len.0));
        let checked =
            volume.check_file_blocks("file mapping", node.ino(), extent.file_start, start, len);
        if let Err(error) = checked {
            // These blocks were never the file's: they are unmapped but not freed. A refusal would
            // make it impossible to remove the file, or an orphan.
            txn.writer().alloc().note_damage(error);
            continue;
        }
        if ratio == 1 {
            txn.release(node, Run { start, len: extent.len.0 }, was)?;
            continue;
        }
        // Rule M5: free the whole clusters between the first and the last one, and those two if
        // none of their blocks is mapped any more and they were not freed just now.
        let first = u64::from(extent.file_start.0);
        let end = first + len;
        let (mut low, mut high) = (first / ratio, end.div_ceil(ratio));
        if start.0 % ratio != first % ratio {
            let rule = "offset in its cluster differs from the file block's";
            let fault = Fault::Field { rule, value: start.0, limit: first };
            return Err(FsError::corrupt("file mapping", node.ino(), None, fault));
        }
        let aligned = start.0 - first % ratio;
        let ends_inside = end % ratio != 0;
        let starts_inside = first % ratio != 0;
        let single = high - low == 1;
        let keeps = |cluster: u64| -> Result<bool> {
            Ok(freed_from == Some(cluster)
                || mapped_in(fs, node, cluster * ratio..(cluster + 1) * ratio)?.is_some())
        };
        if ends_inside && !sabotage("extant.map.shared-cluster-freed") && keeps(high - 1)? {
            high -= 1;
        }
        if starts_inside && low < high && !(single && ends_inside) && keeps(low)? {
            low += 1;
        }
        if low >= high {
            continue;
        }
        freed_from = Some(low);
        let start = FsBlock(aligned + (low - first / ratio) * ratio);
        // An extent is at most 32768 blocks long, a cluster at most as many.
        let blocks = u32::try_from((high - low) * ratio).unwrap_or(u32::MAX);
        txn.release(node, Run { start, len: blocks }, was)?;
    }
    Ok(())
}

/// Returns the first mapped file block in the range, and its device block.
fn mapped_in(
    fs: &Fs,
    node: &Arc<Node>,
    blocks: Range<u64>,
) -> Result<Option<(FileBlock, FsBlock)>> {
    let view = fs.view(node);
    let mut cursor = Cursor::new(&view);
    let mut at = blocks.start;
    while at < blocks.end.min(FILE_BLOCKS_END) {
        let piece = cursor.piece(&view, at)?;
        if let MappingKind::Mapped(block) | MappingKind::Unwritten(block) = piece.kind {
            return Ok(Some((piece.file_start, block)));
        }
        at = piece.file_end();
    }
    Ok(None)
}

/// With `bigalloc`, returns the device block of file block `at` if the file has other blocks of the
/// same cluster.
pub(crate) fn implied_block(fs: &Fs, node: &Arc<Node>, at: FileBlock) -> Result<Option<FsBlock>> {
    let ratio = u64::from(fs.volume().superblock().cluster_ratio().max(1));
    if ratio == 1 {
        return Ok(None);
    }
    let into = u64::from(at.0) % ratio;
    let first = u64::from(at.0) - into;
    let Some((found, block)) = mapped_in(fs, node, first..first + ratio)? else { return Ok(None) };
    Ok(Some(FsBlock(block.0 - block.0 % ratio + into)).filter(|_| {
        // Otherwise the map is damaged; a new cluster does no further harm.
        block.0 % ratio == u64::from(found.0) % ratio
    }))
}

/// Returns the best place for file block `at`: after the block before it, or near the inode.
fn goal_after(fs: &Fs, node: &Arc<Node>, at: FileBlock) -> Result<FsBlock> {
    if let Some(before) = at.0.checked_sub(1) {
        let view = fs.view(node);
        let piece = Cursor::new(&view).piece(&view, u64::from(before))?;
        if let MappingKind::Mapped(block) | MappingKind::Unwritten(block) = piece.kind {
            return Ok(FsBlock(block.0 + 1));
        }
    }
    fs.volume().goal_of(node.ino())
}

#[cfg(test)]
pub(super) mod tests;
