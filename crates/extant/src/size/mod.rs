//! Changes of a file's size: what has to happen to its map and its last block; and small files whose data is in
//! the inode (`inline`).
//!
//! # Place
//!
//! Below: `map`, and `xattr`, because a part of data in the inode is an attribute. Above: `file`, directories inside
//! their inodes, and recovery.
//!
//! # Zeros
//!
//! What lies in the last block behind the end must read as zeros if the file grows over it, here or
//! under another driver. Growth zeroes it before the new size can be seen; shrinking zeroes it after
//! the new size is durable, because a crash must not leave the old size over zeros.

mod inline;

use std::sync::Arc;

use extant_base::FsBlock;
use extant_format::inode::InodeFlags;

use crate::alloc::Purpose;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::map::{Cursor, FILE_BLOCKS_END, MappingKind, REMOVE_STEP_CREDITS, is_small, remove};
use crate::node::{InodeData, Node};
use crate::supers::Needed;
use crate::txn::Txn;

pub(crate) use inline::{INLINE_CREDITS, may_be_inline, store_value, uninline, write_inline};
use inline::{grow_inline, shrink_inline};

/// Longer files need a feature.
const SIZE_OF_OLD_FILES_MAX: u64 = (1 << 31) - 1;

/// The inode, an orphan's place, and the superblock.
const SIZE_CREDITS: u32 = 8;

/// Raises the size of a regular file. The caller holds its content lock exclusively.
///
/// # Errors
///
/// Damage of the map near the old end, device errors, no space for what no longer fits into the
/// inode; nothing has changed then.
pub(crate) fn grow(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let (old, flags) = node.with(|data| (data.record.size, data.record.flags));
    if flags.contains(InodeFlags::INLINE_DATA) {
        return grow_inline(fs, node, size);
    }
    zero_after(fs, node, old)?;
    let mut txn = Txn::begin(fs.volume(), SIZE_CREDITS)?;
    set_size(&mut txn, node, size)
}

/// Lowers the size of a regular file and frees the blocks behind it. The caller holds its content
/// lock exclusively and no transaction.
///
/// # Errors
///
/// Damage of the map, device errors. The new size may be set then and some of the blocks not freed:
/// the inode is an orphan, and the next mount tries again.
///
/// # Cost
///
/// With a size within a mapped block, waits for one commit.
pub(crate) fn shrink(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let volume = fs.volume();
    if node.with(|data| data.record.flags.contains(InodeFlags::INLINE_DATA)) {
        return shrink_inline(fs, node, size);
    }
    let tail = tail_after(fs, node, size)?;
    if tail.is_none() && node.with(is_small) {
        let mut txn = Txn::begin(volume, SIZE_CREDITS + REMOVE_STEP_CREDITS)?;
        remove_after(&mut txn, fs, node, size)?;
        set_size(&mut txn, node, size).map_err(|error| txn.fail(error))?;
        return fs.end_failed_shortening(&mut txn, node);
    }
    let mut txn = Txn::begin(volume, SIZE_CREDITS)?;
    fs.begin_shortening(&mut txn, node)?;
    set_size(&mut txn, node, size).map_err(|error| txn.fail(error))?;
    let tid = txn.tid();
    drop(txn);
    if tail.is_some() {
        volume.writer()?.journal().commit(tid).map_err(FsError::from_journal)?;
    }
    finish_shrink(fs, node)?;
    let mut txn = Txn::begin(volume, SIZE_CREDITS)?;
    fs.end_shortening(&mut txn, node)
}

/// Frees what lies behind the size of an inode and zeroes the rest of its last block: the end of a
/// [`shrink`], or of one that a crash cut off. Opens transactions of its own.
pub(crate) fn finish_shrink(fs: &Fs, node: &Arc<Node>) -> Result<()> {
    let size = node.with(|data| data.record.size);
    zero_after(fs, node, size)?;
    let mut txn = Txn::begin(fs.volume(), REMOVE_STEP_CREDITS)?;
    remove_after(&mut txn, fs, node, size)
}

fn remove_after(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let purpose = node.with(Purpose::of);
    let start = fs.volume().block_size().blocks_for(size);
    remove(txn, fs, node, start..FILE_BLOCKS_END, purpose)
}

fn set_size(txn: &mut Txn<'_>, node: &Arc<Node>, size: u64) -> Result<()> {
    if size > SIZE_OF_OLD_FILES_MAX {
        txn.writer().supers().require_feature(txn, Needed::LargeFile)?;
    }
    let now = txn.writer().now();
    txn.update(node, |data: &mut InodeData| {
        data.record.size = size;
        data.record.mtime = now;
        data.record.ctime = now;
    })
}

/// Where the rest of the block that `size` ends in is stored, if it is: its block, and the first
/// byte behind the end.
fn tail_after(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<Option<(FsBlock, usize)>> {
    let view = fs.view(node);
    let block_size = fs.volume().block_size();
    let into = (size & u64::from(block_size.bytes() - 1)) as usize;
    if into == 0 || view.is_inline() || !view.has_block_map() {
        return Ok(None);
    }
    let at = size >> block_size.log2();
    if at >= FILE_BLOCKS_END {
        return Ok(None);
    }
    match Cursor::new(&view).piece(&view, at)?.kind {
        MappingKind::Mapped(block) => Ok(Some((block, into))),
        _ => Ok(None),
    }
}

/// Zeroes what lies behind byte `size` in its block.
fn zero_after(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let Some((block, into)) = tail_after(fs, node, size)? else { return Ok(()) };
    let volume = fs.volume();
    let mut bytes = volume.read_block_uncached(block)?;
    let tail = bytes.get_mut(into..).unwrap_or(&mut []);
    if tail.iter().all(|byte| *byte == 0) {
        return Ok(());
    }
    tail.fill(0);
    let at = volume.block_size().offset_of(block);
    let at = at.ok_or(FsError::InvalidArgument { what: "block past the largest device" })?;
    volume.device().write_at(at, &bytes).map_err(|error| volume.read_error(error))
}
