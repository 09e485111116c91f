//! Truncating and extending regular files.
//!
//! # Rules
//!
//! - C2. The bytes behind the end in its block are zeroed, in the cache, before the size grows over
//!   them.
//! - C3. The stored size passes that block only after the zeroes are on the device: writeback is in
//!   ascending order, and growth over dirty data leaves it to writeback to store the size.
//! - C6. Shrinking makes the new size durable before it zeroes the rest of the last block on the
//!   device: a crash leaves the old file or the new one. Until the zeroes are there the inode is an
//!   orphan, so the next mount writes them if this one does not.

use std::sync::Arc;

use super::FileMapper;
use crate::alloc::Purpose;
use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::fs::Fs;
use crate::inline;
use crate::map::{self, FILE_BLOCKS_END, MappingKind, REMOVE_STEP_CREDITS};
use crate::node::Node;
use crate::txn::Txn;
use extant_base::sabotage;
use extant_iomap::Mapper;

/// Credits: the inode, an orphan's place, and the superblock.
const SIZE_CREDITS: u32 = 8;

/// Sets the size of a regular file. The caller holds its content lock exclusively and no handle.
///
/// # Errors
///
/// Damage of the map, device errors, no space for inline data that has to move. After an error of a
/// shrinking file the new size may be set and some blocks not freed: the inode is an orphan then,
/// and the next mount continues.
pub(crate) fn resize(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let file = fs.file(node)?;
    let mapper = FileMapper { fs, node, file };
    let old = file.size();
    if inline::is_inline(node) {
        let stays = match size > old {
            true => inline::grow(fs, node, size)?,
            false => inline::shrink(fs, node, size).map(|()| true)?,
        };
        if stays {
            file.set_size(size);
            file.drop_stamp();
            file.mapping_changed();
            return Ok(());
        }
        mapper.move_out()?;
    }
    mapper.absorb()?;
    let resized = if size > old { grow(&mapper, size) } else { shrink(&mapper, size) };
    let shown = mapper.refresh();
    resized.and(shown)
}

fn grow(mapper: &FileMapper<'_>, size: u64) -> Result<()> {
    let (fs, node, file) = (mapper.fs, mapper.node, mapper.file);
    if !sabotage("extant.file.old-tail-shows") {
        file.cache.zero_tail(mapper, file.size())?; // C2
    }
    let kept_out = file.cache.keep_writeback_out();
    if file.cache.is_dirty() && !sabotage("extant.file.growth-passes-dirty") {
        // Rule C3: the writeback of the dirty data in front stores the size.
        file.set_size(size);
        file.touch(fs.volume().writer()?.now());
        drop(kept_out);
        fs.note_dirty(node, file);
        return Ok(());
    }
    let mut txn = Txn::begin_refused(fs.volume(), SIZE_CREDITS, Refusal::Blocks)?;
    file.set_size(size);
    file.touch(txn.writer().now());
    mapper.store_size(&mut txn, size)
}

/// Completes a truncation that a crash interrupted: frees the blocks behind the stored size of a
/// regular file, and zeroes the rest of its last block. The file has no other users. Opens
/// transactions of its own.
///
/// # Errors
///
/// Damage of the map, device errors.
pub(crate) fn finish_shrink(fs: &Fs, node: &Arc<Node>) -> Result<()> {
    let mapper = FileMapper { fs, node, file: fs.file(node)? };
    let size = node.with(|data| data.record.size);
    let blocks = fs.volume().block_size().blocks_for(size);
    {
        let mut txn = Txn::begin_refused(fs.volume(), REMOVE_STEP_CREDITS, Refusal::Blocks)?;
        map::remove(&mut txn, fs, node, blocks..FILE_BLOCKS_END, Purpose::Data)?;
        mapper.file.mapping_changed();
    }
    // Without the key nobody can tell what the zeros would be. Nor does a size change then, so what
    // is behind the end stays behind it until somebody has the key, and zeroes it (C2).
    if mapper.is_staged() && mapper.contents().is_err() {
        return Ok(());
    }
    zero_tail(&mapper, size)
}

/// Zeroes the rest of the block that holds byte `size`, on the device.
fn zero_tail(mapper: &FileMapper<'_>, size: u64) -> Result<()> {
    let block = u64::from(mapper.fs.volume().block_size().bytes());
    mapper.file.cache.zero_tail(mapper, size)?;
    let start = size - size % block;
    mapper.file.cache.write_back(mapper, start..start.saturating_add(block)).map(drop)
}

fn shrink(mapper: &FileMapper<'_>, size: u64) -> Result<()> {
    let (fs, node, file) = (mapper.fs, mapper.node, mapper.file);
    let volume = fs.volume();
    let block_size = volume.block_size();
    let end_block = block_size.blocks_for(size);
    let kept_out = file.cache.keep_writeback_out();
    let stored = node.with(|data| data.record.size);
    let tail = stored > size
        && !size.is_multiple_of(u64::from(block_size.bytes()))
        && matches!(map::lookup(fs, node, end_block - 1, end_block)?.kind, MappingKind::Mapped(_));
    let is_small = node.with(map::is_small);
    let set_size = |txn: &mut Txn<'_>| {
        let now = txn.writer().now();
        file.drop_stamp();
        txn.update(node, |data| {
            data.record.size = stored.min(size);
            data.record.mtime = now;
            data.record.ctime = now;
        })
    };
    // The file has a new end, and may not grow any more.
    volume.writer()?.alloc().give_back_window(node);
    let drop_delayed = || {
        file.drop_delayed(volume, node, end_block..u64::MAX);
        file.mapping_changed();
    };
    // No handle is open, because folios are locked here. No other thread reads or writes back
    // meanwhile.
    let forget = || {
        file.cache.forget(end_block << block_size.log2()..u64::MAX >> 1, &kept_out);
        file.mapping_changed();
    };
    let remove = |txn: &mut Txn<'_>| {
        map::remove(txn, fs, node, end_block..FILE_BLOCKS_END, Purpose::Data)?;
        file.mapping_changed();
        Ok::<_, FsError>(())
    };
    if !tail && is_small {
        let mut txn =
            Txn::begin_refused(volume, SIZE_CREDITS + REMOVE_STEP_CREDITS, Refusal::Blocks)?;
        file.set_size(size);
        drop_delayed();
        let shortened = remove(&mut txn).and_then(|()| {
            set_size(&mut txn).map_err(|error| txn.fail(error))?;
            fs.end_failed_shortening(&mut txn, node)
        });
        drop(txn);
        forget();
        return shortened;
    }
    let mut txn = Txn::begin_refused(volume, SIZE_CREDITS, Refusal::Blocks)?;
    fs.begin_shortening(&mut txn, node)?;
    set_size(&mut txn).map_err(|error| txn.fail(error))?;
    file.set_size(size);
    drop_delayed();
    let tid = txn.tid();
    drop(txn);
    forget();
    if tail && !sabotage("extant.file.zeroes-before-size") {
        volume.writer()?.journal().commit(tid).map_err(FsError::from_journal)?;
    }
    {
        let mut txn = Txn::begin_refused(volume, REMOVE_STEP_CREDITS, Refusal::Blocks)?;
        remove(&mut txn)?;
    }
    drop(kept_out);
    if tail {
        zero_tail(mapper, size)?;
    }
    if sabotage("extant.orphan.stays-after-truncate") {
        return Ok(());
    }
    let mut txn = Txn::begin_refused(volume, SIZE_CREDITS, Refusal::Blocks)?;
    fs.end_shortening(&mut txn, node)
}
