//! Inline data: small regular files whose data is in their inode.
//!
//! # Place
//!
//! Below: `xattr`, because a part of the data is an attribute. Above: `file`, which moves the data
//! to a block when it grows, and inline directories.
//!
//! # Shape
//!
//! The first 60 bytes of the data are in `i_block`, the rest in the value of `system.data` in the
//! inode's attribute space. The page cache holds none of it: a write changes the inode, in a
//! transaction like a change of an attribute.
//!
//! # Invariants
//!
//! - N1. An inline file has the attribute, even if it is empty, and stores every byte below its
//!   size.
//! - N2. Bytes of the first 60 behind the size are zero.

use std::sync::Arc;

use extant_format::extent;
use extant_format::features::Incompat;
use extant_format::inline::BLOCK_BYTES as INLINE_BYTES;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::xattr::{AttributeSet, NameIndex, Stored, XattrFault};

use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::node::{InodeData, Node};
use crate::txn::Txn;
use crate::volume::Volume;

/// Credits of [`write_inline`]: the inode, and the superblock.
pub(crate) const INLINE_CREDITS: u32 = 8;
/// Credits of [`leave`]: the inode, and its attributes outside of it.
pub(crate) const LEAVE_CREDITS: u32 = 16;

const NAME: &[u8] = b"data";

/// Returns whether [`write_inline`] could put data into the inode: it has inline data, or it is an
/// empty file without a map on a file system with the feature. As in Linux, a file becomes inline
/// with its first write, not when it is created.
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

/// Writes `bytes` at byte `offset` into the inode and raises the size, if there is room. Returns
/// false, with nothing changed, when there is no room or the file [cannot be
/// inline](may_be_inline): the caller then moves the data to a block. The caller holds the content
/// lock exclusively, has [`INLINE_CREDITS`], and the file has no delayed data.
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

/// Returns the bytes that an inline or empty file stores below its size, at most the size of an
/// inode.
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

/// Returns the attributes in the inode.
fn attributes(data: &InodeData) -> Result<AttributeSet> {
    AttributeSet::read(data.xattr_space(), None).map_err(|fault| damaged(data, fault))
}

fn damaged(data: &InodeData, fault: XattrFault) -> FsError {
    FsError::corrupt("extended attributes", data.ino, None, Fault::Decode(Box::new(fault)))
}

/// Sets the value of `system.data`. Returns false, with nothing changed, when the inode has no room
/// for it: other attributes are not moved.
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

/// Returns whether the data of the file is in its inode.
pub(crate) fn is_inline(node: &Node) -> bool {
    node.with(|data| {
        data.kind == FileKind::Regular && data.record.flags.contains(InodeFlags::INLINE_DATA)
    })
}

/// Returns the bytes in the inode below the size.
///
/// # Errors
///
/// Damage of the attributes in the inode.
pub(crate) fn stored(node: &Node) -> Result<Vec<u8>> {
    node.with(contents)
}

/// Raises the size of an inline file. Returns false, with nothing changed, when the data has to
/// move to a block: the inode stores exactly as many bytes as the size says, so only the fixed part
/// can grow so. The caller holds the content lock exclusively.
///
/// # Errors
///
/// Damage of the attributes in the inode; those of the journal.
pub(crate) fn grow(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<bool> {
    if size > INLINE_BYTES as u64 || stored(node)?.len() > INLINE_BYTES {
        return Ok(false);
    }
    let mut txn = Txn::begin(fs.volume(), INLINE_CREDITS)?;
    set_size(&mut txn, node, size)?;
    Ok(true)
}

/// Removes the inline data and sets an empty map. The caller has the data elsewhere, and maps it
/// within the same transaction, which has [`LEAVE_CREDITS`]. After an error the transaction must
/// fail.
///
/// # Errors
///
/// Damage of the attributes, device errors.
pub(crate) fn leave(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>) -> Result<()> {
    crate::xattr::set_inline_data(txn, fs, node, None)?;
    let extents = txn.volume().features().has_incompat(Incompat::EXTENTS);
    txn.update(node, |data| {
        data.record.flags -= InodeFlags::INLINE_DATA;
        data.record.flags.set(InodeFlags::EXTENTS, extents);
        let empty = [0; extent::ROOT_BYTES];
        data.set_block_area(if extents { extent::empty_root() } else { empty });
    })
}

/// Lowers the size of an inline file. The caller holds the content lock exclusively.
///
/// # Errors
///
/// Damage of the attributes in the inode; those of the journal.
pub(crate) fn shrink(fs: &Fs, node: &Arc<Node>, size: u64) -> Result<()> {
    let value = fs.view(node).own_xattr(NameIndex::SYSTEM, b"data")?;
    let kept = usize::try_from(size).unwrap_or(usize::MAX);
    let mut txn = Txn::begin(fs.volume(), INLINE_CREDITS)?;
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

fn set_size(txn: &mut Txn<'_>, node: &Arc<Node>, size: u64) -> Result<()> {
    let now = txn.writer().now();
    txn.update(node, |data| {
        data.record.size = size;
        data.record.mtime = now;
        data.record.ctime = now;
    })
}

#[cfg(test)]
mod tests;
