//! Files whose data is in their inode: writing there, and moving out.
//!
//! # Shape
//!
//! The first 60 bytes of the data are in the map's place, the rest in the value of `system.data` in
//! the inode's attribute space. Nothing of it is in the page cache's care: a write changes the inode,
//! in a transaction like any attribute.
//!
//! # Invariants
//!
//! - N1. An inline file has the attribute, be it empty, and stores every byte below its size.
//! - N2. Bytes of the first 60 behind the size are zero.
//! - N3. What moves to a block is on its way to the device before the transaction that points there
//!   can commit: a commit flushes first, and without a log this code does.

use std::sync::Arc;

use extant_base::FsBlock;
use extant_format::extent;
use extant_format::features::{Compat, Incompat};
use extant_format::inline::BLOCK_BYTES as INLINE_BYTES;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::xattr::{AttributeSet, NameIndex, Stored, XattrFault};

use super::{SIZE_CREDITS, set_size};
use crate::alloc::{BlockAsk, Purpose};
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::map::{REMOVE_STEP_CREDITS, insert_first};
use crate::node::{InodeData, Node};
use crate::txn::Txn;
use crate::volume::Volume;

/// Credits of [`write_inline`]: the inode, and the superblock.
pub(crate) const INLINE_CREDITS: u32 = SIZE_CREDITS;

const NAME: &[u8] = b"data";

/// Whether [`write_inline`] could put data into the inode: it has some there, or it is an empty file
/// without a map on a file system that allows it. As with Linux, a new file starts so with its first
/// write, not when it is made.
pub(crate) fn may_be_inline(volume: &Volume, data: &InodeData) -> bool {
    let flags = data.record.flags;
    if flags.contains(InodeFlags::INLINE_DATA) {
        return data.kind == FileKind::Regular;
    }
    let elsewhere = InodeFlags::ENCRYPT | InodeFlags::VERITY | InodeFlags::DAX;
    data.kind == FileKind::Regular
        && volume.features().has_incompat(Incompat::INLINE_DATA)
        && data.record.size == 0
        && !flags.intersects(elsewhere)
        && has_no_map(data)
}

fn has_no_map(data: &InodeData) -> bool {
    let area = &data.record.block;
    if data.record.flags.contains(InodeFlags::EXTENTS) {
        let root = extent::Node::decode_root(area).map(|root| root.header());
        return root.is_ok_and(|root| root.depth == 0 && root.entries == 0);
    }
    area.iter().all(|byte| *byte == 0)
}

/// Writes `bytes` at byte `offset` into the inode and raises the size, if there is room. `false`, and
/// nothing changed, when there is none or the file is [no such file](may_be_inline): see
/// [`uninline`]. The caller holds the content lock exclusively, has [`INLINE_CREDITS`], and has
/// nothing of the file in memory only.
///
/// # Errors
///
/// Damage of the attributes in the inode.
pub(crate) fn write_inline(
    txn: &mut Txn<'_>,
    node: &Arc<Node>,
    offset: u64,
    bytes: &[u8],
) -> Result<bool> {
    let volume = txn.volume();
    let may_fit = |data: &InodeData| {
        let end = offset.saturating_add(bytes.len() as u64).max(data.record.size);
        let room = (INLINE_BYTES + data.xattr_space().len()) as u64;
        (end <= room && may_be_inline(volume, data)).then_some(end as usize)
    };
    let Some(size) = node.with(may_fit) else { return Ok(false) };
    let now = txn.writer().now();
    txn.update(node, |data| -> Result<bool> {
        let mut contents = contents(data)?;
        contents.resize(size, 0);
        // Both ends are at most `size`.
        let place = contents.get_mut(offset as usize..).and_then(|to| to.get_mut(..bytes.len()));
        place.unwrap_or(&mut []).copy_from_slice(bytes);
        let mut area = [0; INLINE_BYTES];
        let value = contents.split_off(contents.len().min(INLINE_BYTES));
        area.get_mut(..contents.len()).unwrap_or(&mut []).copy_from_slice(&contents);
        if !store_value(data, value)? {
            return Ok(false);
        }
        data.set_block_area(area);
        data.record.flags = (data.record.flags | InodeFlags::INLINE_DATA) - InodeFlags::EXTENTS;
        data.record.size = size as u64;
        (data.record.mtime, data.record.ctime) = (now, now);
        Ok(true)
    })?
}

/// What an inline file, or an empty one, stores below its size. At most an inode full.
fn contents(data: &InodeData) -> Result<Vec<u8>> {
    if !data.record.flags.contains(InodeFlags::INLINE_DATA) {
        return Ok(Vec::new());
    }
    let set = attributes(data)?;
    let mut contents = data.record.block.to_vec();
    match set.find(NameIndex::SYSTEM, NAME).map(|found| &found.value) {
        Some(Stored::Here(value)) => contents.extend(value),
        _ => {
            let fault = Fault::Rule("it is inline, and has no inline value");
            return Err(FsError::corrupt("file", data.ino, None, fault));
        }
    }
    contents.truncate(usize::try_from(data.record.size).unwrap_or(usize::MAX));
    Ok(contents)
}

/// The attributes in the inode.
fn attributes(data: &InodeData) -> Result<AttributeSet> {
    AttributeSet::read(data.xattr_space(), None).map_err(|fault| damaged(data, fault))
}

fn damaged(data: &InodeData, fault: XattrFault) -> FsError {
    FsError::corrupt("extended attributes", data.ino, None, Fault::Decode(Box::new(fault)))
}

/// Gives `system.data` a value. `false`, and nothing changed, when the inode has no room for it:
/// other attributes do not make way.
pub(crate) fn store_value(data: &mut InodeData, value: Vec<u8>) -> Result<bool> {
    let mut set = attributes(data)?;
    let mut space = vec![0; data.xattr_space().len()];
    match set.set(NameIndex::SYSTEM, NAME, Stored::Here(value), (space.len(), 0)) {
        Ok(()) => {}
        Err(XattrFault::NoRoom { .. }) => return Ok(false),
        Err(fault) => return Err(damaged(data, fault)),
    }
    set.encode_inode(&mut space).map_err(|fault| damaged(data, fault))?;
    data.xattr_space_mut().copy_from_slice(&space);
    Ok(true)
}

/// Moves the data of a regular file from its inode to a block, whatever its size; nothing to do for
/// others. The caller holds the content lock exclusively and no transaction.
///
/// # Errors
///
/// Damage, device errors, no space or quota for the block: nothing has changed then.
pub(crate) fn uninline(fs: &Fs, node: &Arc<Node>) -> Result<()> {
    let is_inline = |data: &InodeData| {
        data.kind == FileKind::Regular && data.record.flags.contains(InodeFlags::INLINE_DATA)
    };
    if !node.with(is_inline) {
        return Ok(());
    }
    let mut txn = Txn::begin(fs.volume(), SIZE_CREDITS + REMOVE_STEP_CREDITS)?;
    move_out(&mut txn, fs, node, None)
}

/// Raises the size of a file whose data is in the inode: the inode has to hold exactly as much as
/// the size says, so beyond its fixed part the data moves to a block.
pub(super) fn grow_inline(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let has_value = fs.view(node).inline_data()?.len() > INLINE_BYTES;
    let mut txn = Txn::begin(fs.volume(), SIZE_CREDITS + REMOVE_STEP_CREDITS)?;
    if size <= INLINE_BYTES as u64 && !has_value {
        return set_size(&mut txn, node, size);
    }
    move_out(&mut txn, fs, node, Some(size))
}

/// Moves the data to a block, and sets the size if one is given. Zeros need no block.
fn move_out(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, size: Option<u64>) -> Result<()> {
    let volume = fs.volume();
    let mut bytes = fs.view(node).inline_data()?;
    let stored = node.with(|data| data.record.size);
    bytes.truncate(usize::try_from(stored).unwrap_or(usize::MAX));
    let block = match bytes.iter().any(|byte| *byte != 0) {
        true => Some(store_in_block(txn, node, bytes)?),
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
        size.map_or(Ok(()), |size| set_size(txn, node, size))
    };
    finish(txn).map_err(|error| txn.fail(error))
}

/// Stores the data of a file in a new block, before anything points there (N3).
fn store_in_block(txn: &mut Txn<'_>, node: &Arc<Node>, mut bytes: Vec<u8>) -> Result<FsBlock> {
    let volume = txn.volume();
    let goal = volume.goal_of(node.ino())?;
    let ask = BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Data };
    let run = txn.allocate(node, &ask)?;
    bytes.resize(volume.block_size().len(), 0);
    let at = volume.block_size().offset_of(run.start);
    let has_log = volume.features().has_compat(Compat::HAS_JOURNAL);
    let written = at
        .ok_or(FsError::InvalidArgument { what: "block past the largest device" })
        .and_then(|at| {
            let written = volume.device().write_at(at, &bytes);
            written.map_err(|error| volume.read_error(error))?;
            if has_log { Ok(()) } else { volume.flush_in_place(u64::MAX) }
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
pub(super) fn shrink_inline(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
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

#[cfg(test)]
mod tests;
