//! Changes of a file's size: what has to happen to its map and its last block.
//!
//! What lies in the last block behind the end must read as zeros if the file grows over it, here or
//! under another driver. Growth zeroes it before the new size can be seen; shrinking zeroes it after
//! the new size is durable, because a crash must not leave the old size over zeros.

use std::sync::Arc;

use extant_base::FsBlock;
use extant_format::extent;
use extant_format::features::Incompat;
use extant_format::inline::BLOCK_BYTES as INLINE_BYTES;
use extant_format::inode::InodeFlags;
use extant_format::xattr::NameIndex;

use super::edit::{REMOVE_STEP_CREDITS, insert_first, is_small, remove};
use super::{Cursor, FILE_BLOCKS_END, MappingKind};
use crate::alloc::{BlockAsk, Purpose};
use crate::error::{FsError, Result};
use crate::inode::InodeData;
use crate::mount::Fs;
use crate::node::Node;
use crate::supers::Needed;
use crate::txn::Txn;

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
        return set_size(&mut txn, node, size).map_err(|error| txn.fail(error));
    }
    // An inode without names is an orphan already, and stays one.
    let is_orphan = node.with(|data| data.record.links == 0);
    let mut txn = Txn::begin(volume, SIZE_CREDITS)?;
    if !is_orphan {
        fs.add_orphan(&mut txn, node)?;
    }
    set_size(&mut txn, node, size).map_err(|error| txn.fail(error))?;
    let tid = txn.tid();
    drop(txn);
    if tail.is_some() {
        volume.writer()?.journal().commit(tid).map_err(FsError::from_journal)?;
    }
    finish_shrink(fs, node)?;
    if !is_orphan {
        let mut txn = Txn::begin(volume, SIZE_CREDITS)?;
        fs.remove_orphan(&mut txn, node)?;
    }
    Ok(())
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
    let purpose = node.with(crate::namei::purpose_of);
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

/// Raises the size of a file whose data is in the inode: the inode has to hold exactly as much as
/// the size says, so beyond its fixed part the data moves to a block.
fn grow_inline(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let volume = fs.volume();
    let old = node.with(|data| data.record.size);
    let mut bytes = fs.view(node).inline_data()?;
    let mut txn = Txn::begin(volume, SIZE_CREDITS + REMOVE_STEP_CREDITS)?;
    if size <= INLINE_BYTES as u64 && bytes.len() == INLINE_BYTES {
        return set_size(&mut txn, node, size);
    }
    bytes.truncate(usize::try_from(old).unwrap_or(usize::MAX));
    let block = match bytes.iter().any(|byte| *byte != 0) {
        true => Some(move_out(&mut txn, node, bytes)?),
        false => None,
    };
    let finish = |txn: &mut Txn<'_>| {
        crate::xattr::set_inline_data(txn, fs, node, None)?;
        let extents = volume.features().has_incompat(Incompat::EXTENTS);
        txn.update(node, |data| {
            data.record.flags -= InodeFlags::INLINE_DATA;
            data.record.flags.set(InodeFlags::EXTENTS, extents);
            let empty = [0; extent::ROOT_BYTES];
            data.set_block_area(if extents { extent::empty_root() } else { empty });
        })?;
        if let Some(block) = block {
            insert_first(txn, node, block)?;
        }
        set_size(txn, node, size)
    };
    finish(&mut txn).map_err(|error| txn.fail(error))
}

/// Stores the data of a file in a new block, durably, before anything points there.
fn move_out(txn: &mut Txn<'_>, node: &Arc<Node>, mut bytes: Vec<u8>) -> Result<FsBlock> {
    let volume = txn.volume();
    let goal = volume.goal_of(node.ino())?;
    let ask = BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Data };
    let run = txn.allocate(node, &ask)?;
    bytes.resize(volume.block_size().len(), 0);
    let at = volume.block_size().offset_of(run.start);
    let written = at
        .ok_or(FsError::InvalidArgument { what: "block past the largest device" })
        .and_then(|at| {
            let device = volume.device();
            let written = device.write_at(at, &bytes).and_then(|()| device.flush());
            written.map_err(|error| volume.read_error(error))
        });
    match written {
        Ok(()) => Ok(run.start),
        Err(error) => {
            let given_back = txn.release(node, run, Purpose::Data);
            given_back.map_err(|broken| txn.fail(broken))?;
            Err(error)
        }
    }
}

/// Lowers the size of a file whose data is in the inode.
fn shrink_inline(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let value = fs.view(node).own_xattr(NameIndex::SYSTEM, b"data")?;
    let kept = usize::try_from(size).unwrap_or(usize::MAX);
    let mut txn = Txn::begin(fs.volume(), SIZE_CREDITS)?;
    if let Some(value) = value
        && let Some(shorter) = value.get(..kept.saturating_sub(INLINE_BYTES))
        && shorter.len() < value.len()
    {
        crate::xattr::set_inline_data(&mut txn, fs, node, Some(shorter))?;
    }
    let mut area = node.with(|data| data.record.block);
    area.get_mut(kept..).unwrap_or(&mut []).fill(0);
    txn.update(node, |data| data.set_block_area(area)).map_err(|error| txn.fail(error))?;
    set_size(&mut txn, node, size).map_err(|error| txn.fail(error))
}
