//! Values in inodes of their own: creating, reference counting, deleting.
//!
//! Such an inode is charged to no owner; each inode with the attribute is charged for the value as
//! if it were its own (blocks and one inode), and counts its blocks.

use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, Ino};
use extant_format::extent::{Extent, ExtentState, empty_root};
use extant_format::features::Incompat;
use extant_format::inode::{FileKind, Inode as Record, InodeFlags};
use extant_format::time::Timestamp;
use extant_format::xattr::value_hash;

use crate::alloc::{BlockAsk, Purpose};
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::map;
use crate::node::{InodeData, Node, Settled};
use crate::slot::BlockKind;
use crate::txn::Txn;
use crate::volume::Volume;

/// Creates the inode of a value of `owner`, with one reference, and charges the owner. Returns its
/// number and the value's hash. Undone when it fails.
pub(super) fn create(
    txn: &mut Txn<'_>,
    fs: &Fs,
    owner: &Arc<Node>,
    value: &[u8],
) -> Result<(Ino, u32)> {
    let sectors = sectors_of(fs.volume(), value.len() as u64);
    charge(txn, owner, sectors)?;
    create_charged(txn, fs, owner, value).inspect_err(|_| uncharge(txn, owner, sectors))
}

fn create_charged(
    txn: &mut Txn<'_>,
    fs: &Fs,
    owner: &Arc<Node>,
    value: &[u8],
) -> Result<(Ino, u32)> {
    let volume = fs.volume();
    let writer = volume.writer()?;
    let parent = owner.data();
    let hash = value_hash(volume.checksum_seed(), value);
    let mut record = Record::empty(volume.inode_layout());
    record.extra_isize = volume.superblock().new_extra_isize();
    record.mode = FileKind::Regular.mode_bits() | 0o600;
    (record.uid, record.gid) = (parent.record.uid, parent.record.gid);
    record.links = 1;
    record.size = value.len() as u64;
    record.flags = InodeFlags::EA_INODE;
    record.generation = (writer.random() >> 32) as u32;
    let now = writer.now();
    record.mtime = now;
    record.crtime = record.crtime.map(|_| now);
    record.atime = word(hash);
    set_references(&mut record, 1);
    if volume.features().has_incompat(Incompat::EXTENTS) {
        record.flags |= InodeFlags::EXTENTS;
        record.block = empty_root();
    }
    let kind = FileKind::Regular;
    let ino = writer.alloc().allocate_inode(txn, &parent, kind, b"")?;
    drop(parent);
    let inode_bytes = usize::from(volume.superblock().inode_size);
    let data = InodeData::fresh(ino, kind, record, inode_bytes);
    let node = txn.create_node(ino, data).map_err(|error| txn.fail(error))?;
    match fill(txn, volume, &node, value) {
        Ok(()) => Ok((ino, hash)),
        Err(error) => {
            fs.undo_new(txn, &node).map_err(|broken| txn.fail(broken))?;
            Err(error)
        }
    }
}

/// Writes the value through the journal. After a failure, mapped blocks stay mapped.
fn fill(txn: &mut Txn<'_>, volume: &Volume, node: &Arc<Node>, value: &[u8]) -> Result<()> {
    let block_size = volume.block_size();
    let mut goal = volume.goal_of(node.ino())?;
    let mut chunks = value.chunks(block_size.len());
    let mut at = 0;
    while chunks.len() > 0 {
        // The value has at most 64 KiB.
        let left = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
        let ask =
            BlockAsk { goal, len: left, min: 1, purpose: Purpose::Metadata, continues: false };
        let run = txn.allocate(node, &ask)?;
        let len = run.len.min(left);
        let (file_start, state) = (FileBlock(at), ExtentState::Written);
        let extent = Extent { file_start, device_start: run.start, len: BlockCount(len), state };
        if let Err(error) = map::insert(txn, node, extent) {
            let given_back = txn.release(node, run, Purpose::Metadata);
            given_back.map_err(|broken| txn.fail(broken))?;
            return Err(error);
        }
        for (into, chunk) in chunks.by_ref().take(len as usize).enumerate() {
            let block = FsBlock(run.start.0 + into as u64);
            let put = |to: &mut [u8]| to[..chunk.len()].copy_from_slice(chunk);
            txn.create_block(block, BlockKind::Plain, put).map_err(|error| txn.fail(error))?;
        }
        at += len;
        goal = FsBlock(run.start.0 + u64::from(run.len));
    }
    Ok(())
}

/// Undoes [`create`].
pub(super) fn undo(
    txn: &mut Txn<'_>,
    fs: &Fs,
    owner: &Arc<Node>,
    ino: Ino,
    len: u32,
) -> Result<()> {
    let node = fs.node(ino)?;
    fs.undo_new(txn, &node)?;
    uncharge(txn, owner, sectors_of(fs.volume(), u64::from(len)));
    Ok(())
}

/// Adds to the references of a value's inode, or removes some; without references it is deleted.
pub(super) fn add_references(txn: &mut Txn<'_>, fs: &Fs, ino: Ino, more: i64) -> Result<()> {
    let node = fs.node(ino).map_err(|error| match error {
        FsError::NoSuchInode { .. } => {
            let rule = "an attribute names this inode, which is not in use";
            FsError::corrupt("extended attribute value", ino, None, Fault::Rule(rule))
        }
        other => other,
    })?;
    let rule = match node.with(|data| data.record.flags.contains(InodeFlags::EA_INODE)) {
        true => None,
        false => Some("it does not hold an attribute value"),
    };
    if let Some(rule) = rule {
        return Err(FsError::corrupt("extended attribute value", ino, None, Fault::Rule(rule)));
    }
    let left = txn.update(&node, |data| {
        let left = references(&data.record).saturating_add_signed(more);
        set_references(&mut data.record, left);
        if left == 0 {
            data.record.links = 0;
        }
        left
    })?;
    if left == 0 { fs.bury(txn, &node, Settled::without_contents(&node)) } else { Ok(()) }
}

/// Charges an owner for a value.
fn charge(txn: &mut Txn<'_>, owner: &Arc<Node>, sectors: u64) -> Result<()> {
    let record = owner.with(|data| data.record.clone());
    txn.charge_inode(&record)?;
    if let Err(error) = txn.charge_blocks(owner, sectors) {
        txn.uncharge_inode(&record);
        return Err(error);
    }
    txn.update(owner, |data| data.record.sectors = data.record.sectors.saturating_add(sectors))
}

/// Ends the charge of an owner for a value of `len` bytes.
pub(super) fn uncharge_value(txn: &mut Txn<'_>, owner: &Arc<Node>, len: u32) {
    let sectors = sectors_of(txn.volume(), u64::from(len));
    uncharge(txn, owner, sectors);
}

fn uncharge(txn: &mut Txn<'_>, owner: &Arc<Node>, sectors: u64) {
    let record = owner.with(|data| data.record.clone());
    txn.uncharge_inode(&record);
    txn.uncharge_blocks(owner, sectors);
    let lowered = txn.update(owner, |data| {
        data.record.sectors = data.record.sectors.saturating_sub(sectors);
    });
    if let Err(error) = lowered {
        txn.fail(error);
    }
}

/// Moves the charges of an inode, and of its values in inodes of their own, to the owners in `to`.
/// The inode still has its old owners.
///
/// # Errors
///
/// [`FsError::QuotaExceeded`], damage, device errors: nothing has changed then.
pub(crate) fn transfer_quota(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    to: &Record,
) -> Result<()> {
    let from = node.with(|data| data.record.clone());
    if (from.uid, from.gid, from.project) == (to.uid, to.gid, to.project) {
        return Ok(());
    }
    let values = super::edit::count_values(fs, node)?;
    txn.transfer_quota(&from, to)?;
    // Charges are moved one by one, given back before taken, so that owners that stay the same are
    // not charged twice in between.
    for done in 0..values {
        txn.uncharge_inode(&from);
        if let Err(error) = txn.charge_inode(to) {
            for _ in 0..done {
                txn.uncharge_inode(to);
            }
            for _ in 0..=done {
                txn.charge_inode(&from).map_err(|broken| txn.fail(broken))?;
            }
            txn.transfer_quota_back(&from, to);
            return Err(error);
        }
    }
    Ok(())
}

/// Undoes [`transfer_quota`].
pub(crate) fn transfer_quota_back(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, to: &Record) {
    let from = node.with(|data| data.record.clone());
    if (from.uid, from.gid, from.project) == (to.uid, to.gid, to.project) {
        return;
    }
    txn.transfer_quota_back(&from, to);
    for _ in 0..super::edit::count_values(fs, node).unwrap_or(0) {
        txn.uncharge_inode(to);
        if let Err(error) = txn.charge_inode(&from) {
            txn.fail(error);
        }
    }
}

/// Returns the charge of a value of `len` bytes, in units of 512 bytes: whole clusters.
fn sectors_of(volume: &Volume, len: u64) -> u64 {
    let cluster = volume.superblock().cluster_bytes().max(512);
    len.div_ceil(cluster) * (cluster / 512)
}

/// Returns the reference count, which is stored in two halves, in the fields of change time and
/// version.
fn references(record: &Record) -> u64 {
    (u64::from(record.ctime.seconds as u32) << 32) | (record.version & u64::from(u32::MAX))
}

fn set_references(record: &mut Record, count: u64) {
    record.ctime = word((count >> 32) as u32);
    record.version = count & u64::from(u32::MAX);
}

/// Returns a time stamp whose lower 32 bits are `raw`, and the rest 0.
fn word(raw: u32) -> Timestamp {
    Timestamp { seconds: i64::from(raw.cast_signed()), nanos: 0 }
}
