//! Changes of extended attributes.
//!
//! # Rules
//!
//! - Steps that may fail for want of space or quota (a block, a value's inode) are done before
//!   anything changes, and undone if a later step fails.
//! - A shared block is not changed: the inode leaves it for one of its own, or for another with the
//!   same contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use extant_base::{FsBlock, Ino};
use extant_format::features::Incompat;
use extant_format::xattr::{
    Attribute, AttributeSet, BLOCK_HEADER_BYTES, Home, NAME_MAX, NameIndex, Stored, XattrFault,
    decode_inode, entry_bytes, entry_hash_for_inode, value_bytes,
};

use super::{CAPABILITY, XattrMode, value};
use crate::alloc::{BlockAsk, Purpose, Run};
use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::node::{InodeData, Node};
use crate::shared_blocks::{self, read_block};
use crate::supers::Needed;
use crate::txn::Txn;
use crate::volume::Volume;

/// Longest value in bytes, the limit of Linux.
const VALUE_BYTES_MAX: usize = 65536;

/// Credits of a change besides the blocks of a value: the inode, two attribute blocks, and a
/// value's inode created and one freed, each with bitmap and descriptor, quotas.
const CREDITS: u32 = 48;

/// The current attributes of an inode.
struct Loaded {
    set: AttributeSet,
    /// Size in bytes of the space behind the fields.
    space: usize,
    block: Option<FsBlock>,
}

impl Loaded {
    fn read(fs: &Fs, node: &Arc<Node>) -> Result<Loaded> {
        let view = fs.view(node);
        let space = view.xattr_space();
        let at = view.xattr_block();
        let block = at.map(|at| read_block(fs.volume(), Some(node.ino()), at)).transpose()?;
        let set = AttributeSet::read(space, block.as_ref().map(|block| block.bytes()));
        let set = set.map_err(|fault| damaged(node, at, fault))?;
        Ok(Loaded { set, space: space.len(), block: at })
    }
}

fn damaged(node: &Arc<Node>, at: Option<FsBlock>, fault: XattrFault) -> FsError {
    FsError::corrupt("extended attributes", node.ino(), at, Fault::Decode(Box::new(fault)))
}

/// Sets attribute `index` + `name`, or removes it. The caller holds the content lock exclusively
/// and has changed nothing yet in the transaction.
///
/// Access control lists are in the form that programs use.
///
/// # Errors
///
/// Those of `mode`; names and values that are too long; space and quota; damage. Nothing has
/// changed after any of these.
pub(crate) fn set(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    index: NameIndex,
    name: &[u8],
    value: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    let blocks = value.map_or(0, |value| value.len().div_ceil(fs.volume().block_size().len()));
    if blocks > 0 {
        txn.ensure(CREDITS + u32::try_from(blocks).unwrap_or(u32::MAX).min(1024))?;
    }
    match index {
        NameIndex::ACL_ACCESS | NameIndex::ACL_DEFAULT => {
            super::acl::set_by_value(txn, fs, node, index, value, mode)
        }
        NameIndex::USER | NameIndex::TRUSTED | NameIndex::SECURITY | NameIndex::HURD => {
            put(txn, fs, node, (index, name), value, mode)
        }
        _ => {
            let what = "programs cannot change this attribute";
            Err(FsError::NotPermitted { ino: node.ino(), what })
        }
    }
}

/// Sets or removes the part of inline data that is an attribute. Errors as [`set`].
pub(crate) fn set_inline_data(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    value: Option<&[u8]>,
) -> Result<()> {
    put(txn, fs, node, (NameIndex::SYSTEM, b"data"), value, XattrMode::Any)
}

/// Sets the context of an inode that becomes encrypted. Errors as [`set`].
pub(crate) fn set_context(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    value: &[u8],
) -> Result<()> {
    put(txn, fs, node, (NameIndex::ENCRYPTION, b"c"), Some(value), XattrMode::Create)
}

/// Sets any attribute like [`set`], in its stored form.
pub(super) fn put(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    (index, name): (NameIndex, &[u8]),
    value: Option<&[u8]>,
    mode: XattrMode,
) -> Result<()> {
    let ino = node.ino();
    if name.len() > NAME_MAX {
        return Err(FsError::InvalidName { what: "an attribute's name has at most 255 bytes" });
    }
    if name.contains(&0) {
        return Err(FsError::InvalidName { what: "it contains a zero byte" });
    }
    if let Some(value) = value
        && value.len() > VALUE_BYTES_MAX
    {
        let (bytes, limit) = (value.len() as u64, VALUE_BYTES_MAX as u64);
        return Err(FsError::AttributeTooLarge { ino, bytes, limit });
    }
    let old = Loaded::read(fs, node)?;
    let found = old.set.find(index, name);
    match (found, value, mode) {
        (None, _, XattrMode::Replace) => return Err(FsError::NoAttribute { ino }),
        (Some(_), _, XattrMode::Create) => return Err(FsError::AttributeExists { ino }),
        (None, None, _) => return Ok(()),
        (Some(Attribute { value: Stored::Here(now), .. }), Some(value), _) if now == value => {
            return Ok(());
        }
        _ => {}
    }
    // Linux tells of attributes in the inode as well, but for a part of a file's contents.
    if value.is_some() && index != NameIndex::SYSTEM {
        txn.writer().supers().require_feature(txn, Needed::ExtAttr)?;
    }
    let mut new = old.set.clone();
    if value.is_some() && (index, name) == CAPABILITY {
        node.set_may_have_capability(true);
    }
    let Some(value) = value else {
        new.remove(index, name);
        return store(txn, fs, node, &old, &new);
    };
    let volume = fs.volume();
    let sizes = (old.space, volume.block_size().len());
    let may_leave = volume.features().has_incompat(Incompat::EA_INODE)
        && index != NameIndex::SYSTEM
        && !value.is_empty();
    if !(may_leave && value_bytes(value.len()) > large_value(volume)) {
        match new.set(index, name, Stored::Here(value.to_vec()), sizes) {
            Ok(()) => return store(txn, fs, node, &old, &new),
            Err(XattrFault::NoRoom { .. }) if may_leave => {}
            Err(fault) => return Err(refused(node, volume, fault, value.len())),
        }
    }
    // The value goes to an inode of its own, after a check that its entry has room.
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    let no_inode = Stored::InInode { ino: Ino(0), len, hash: 0 };
    let fits = new.clone().set(index, name, no_inode, sizes);
    fits.map_err(|fault| refused(node, volume, fault, value.len()))?;
    let (holder, hash) = value::create(txn, fs, node, value)?;
    let hash = entry_hash_for_inode(name, hash);
    let stored = Stored::InInode { ino: holder, len, hash };
    let done = new
        .set(index, name, stored, sizes)
        .map_err(|fault| refused(node, volume, fault, value.len()))
        .and_then(|()| store_with(txn, fs, node, &old, &new, Some(holder)));
    if let Err(error) = done {
        value::undo(txn, fs, node, holder, len).map_err(|broken| txn.fail(broken))?;
        return Err(error);
    }
    Ok(())
}

/// Returns the size above which values go to inodes of their own, if the file system has them: they
/// would leave no room in a block for another short attribute.
fn large_value(volume: &Volume) -> usize {
    volume.block_size().len() - entry_bytes(3) - BLOCK_HEADER_BYTES - 4
}

fn refused(node: &Arc<Node>, volume: &Volume, fault: XattrFault, bytes: usize) -> FsError {
    match fault {
        XattrFault::NoRoom { wanted, inode, block } => {
            let limit = large_value(volume) as u64;
            if bytes as u64 > limit {
                let bytes = bytes as u64;
                return FsError::AttributeTooLarge { ino: node.ino(), bytes, limit };
            }
            let what = "bytes for all attributes of the inode";
            FsError::NoSpace { what, wanted, free: u64::from(inode) + u64::from(block) }
        }
        XattrFault::NameLength { .. } => {
            FsError::InvalidName { what: "an attribute's name has at most 255 bytes" }
        }
        XattrFault::Name { .. } => FsError::InvalidName { what: "it is empty" },
        other => damaged(node, None, other),
    }
}

fn store(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    old: &Loaded,
    new: &AttributeSet,
) -> Result<()> {
    store_with(txn, fs, node, old, new, None)
}

/// Change of an inode's attribute block.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    /// The block stays, or there is none before and after.
    Same,
    /// The block has new contents.
    Rewritten,
    /// The inode now uses a new block of its own.
    Own(FsBlock),
    /// The inode now uses a block shared with others.
    Joined(FsBlock),
    /// The inode has no block any more.
    None,
}

/// Stores `new` in the inode and its block. `fresh` is a new value inode with the reference that
/// `new` has to it.
fn store_with(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    old: &Loaded,
    new: &AttributeSet,
    fresh: Option<Ino>,
) -> Result<()> {
    let mut space = vec![0; old.space];
    new.encode_inode(&mut space).map_err(|fault| damaged(node, None, fault))?;
    let block = place_block(txn, fs, node, old, new)?;
    // Nothing fails from here on but the journal.
    let finish = |txn: &mut Txn<'_>| -> Result<()> {
        let file_acl = match block {
            Block::Same | Block::Rewritten => old.block.unwrap_or(FsBlock(0)),
            Block::Own(block) | Block::Joined(block) => block,
            Block::None => FsBlock(0),
        };
        txn.update(node, |data| {
            data.xattr_space_mut().copy_from_slice(&space);
            data.record.file_acl = file_acl;
        })?;
        let moved = !matches!(block, Block::Same | Block::Rewritten);
        let mut freed = false;
        if moved && let Some(old_block) = old.block {
            freed = leave_block(txn, fs, node, old_block)?;
        }
        let counts = References { old, new, fresh, block, freed }.changes();
        for (ino, more) in counts {
            value::add_references(txn, fs, ino, more)?;
        }
        for gone in inodes_of(old.set.attributes()) {
            if !inodes_of(new.attributes()).any(|kept| kept == gone) {
                value::uncharge_value(txn, node, gone.1);
            }
        }
        Ok(())
    };
    finish(txn).map_err(|error| txn.fail(error))
}

/// Returns the inodes of values, and the lengths of the values.
fn inodes_of(attributes: &[Attribute]) -> impl Iterator<Item = (Ino, u32)> + '_ {
    attributes.iter().filter_map(|one| match one.value {
        Stored::InInode { ino, len, .. } => Some((ino, len)),
        Stored::Here(_) => None,
    })
}

/// Returns the number of the inode's values that are in inodes of their own.
pub(super) fn count_values(fs: &Fs, node: &Arc<Node>) -> Result<usize> {
    if !fs.volume().features().has_incompat(Incompat::EA_INODE) {
        return Ok(0);
    }
    Ok(inodes_of(Loaded::read(fs, node)?.set.attributes()).count())
}

/// Changes of the reference counts of value inodes: entries in an inode count for it, entries in a
/// block count once for the block.
struct References<'a> {
    old: &'a Loaded,
    new: &'a AttributeSet,
    fresh: Option<Ino>,
    block: Block,
    /// Whether the old block is freed.
    freed: bool,
}

impl References<'_> {
    fn changes(&self) -> BTreeMap<Ino, i64> {
        let mut counts = BTreeMap::new();
        let mut add = |set: &AttributeSet, home: Home, more: i64| {
            for one in set.of(home) {
                if let Stored::InInode { ino, .. } = one.value {
                    *counts.entry(ino).or_insert(0) += more;
                }
            }
        };
        add(&self.old.set, Home::Inode, -1);
        add(self.new, Home::Inode, 1);
        if self.freed || self.block == Block::Rewritten {
            add(&self.old.set, Home::Block, -1);
        }
        if matches!(self.block, Block::Own(_) | Block::Rewritten) {
            add(self.new, Home::Block, 1);
        }
        if let Some(fresh) = self.fresh {
            // The value inode was created with its first reference.
            *counts.entry(fresh).or_insert(0) -= 1;
        }
        counts.retain(|_, more| *more != 0);
        counts
    }
}

/// Finds a block for the attributes that do not fit the inode. A failure changes nothing.
fn place_block(
    txn: &mut Txn<'_>,
    fs: &Fs,
    node: &Arc<Node>,
    old: &Loaded,
    new: &AttributeSet,
) -> Result<Block> {
    let volume = fs.volume();
    let mut entries: Vec<&Attribute> = new.of(Home::Block).collect();
    let mut before: Vec<&Attribute> = old.set.of(Home::Block).collect();
    for list in [&mut entries, &mut before] {
        list.sort_by_key(|one| (one.index, &one.name));
    }
    if entries.is_empty() {
        return Ok(if old.block.is_some() { Block::None } else { Block::Same });
    }
    if entries == before {
        return Ok(Block::Same);
    }
    let mut bytes = vec![0; volume.block_size().len()];
    new.encode_block(&mut bytes, 1).map_err(|fault| damaged(node, None, fault))?;
    let shared = volume.writer()?.shared_blocks();
    let sectors = volume.superblock().cluster_bytes() / 512;
    if let Some(block) = shared.join(txn, &bytes)? {
        if let Err(error) = txn.charge_blocks(node, sectors) {
            shared.leave(txn, block).map_err(|broken| txn.fail(broken))?;
            return Err(error);
        }
        let more = txn.update(node, |data| data.record.sectors += sectors);
        more.map_err(|error| txn.fail(error))?;
        return Ok(Block::Joined(block));
    }
    if let Some(block) = old.block
        && shared.rewrite(txn, block, &bytes)?
    {
        return Ok(Block::Rewritten);
    }
    let goal = volume.goal_of(node.ino())?;
    txn.writer().supers().require_feature(txn, Needed::ExtAttr)?;
    let run = txn.allocate(
        node,
        &BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Metadata, continues: false },
    )?;
    let kind = shared_blocks::kind(volume);
    let created = txn.create_block(run.start, kind, |to| to.copy_from_slice(&bytes));
    created.map_err(|error| txn.fail(error))?;
    shared.note(run.start, &bytes);
    Ok(Block::Own(run.start))
}

/// Removes the inode's reference to a block; returns true when it was the last one and the block is
/// freed.
fn leave_block(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>, block: FsBlock) -> Result<bool> {
    let volume = fs.volume();
    let cluster = volume.superblock().cluster_ratio().max(1);
    if volume.writer()?.shared_blocks().leave(txn, block)? {
        let start = FsBlock(block.0 & !(u64::from(cluster) - 1));
        txn.release(node, Run { start, len: cluster }, Purpose::Metadata)?;
        return Ok(true);
    }
    let sectors = volume.superblock().cluster_bytes() / 512;
    txn.uncharge_blocks(node, sectors);
    txn.update(node, |data| {
        data.record.sectors = data.record.sectors.saturating_sub(sectors);
    })?;
    Ok(false)
}

/// Returns whether [`release_all`] needs only a few credits: no value is in an inode of its own, as
/// far as the inode itself tells.
pub(crate) fn releases_at_once(data: &InodeData) -> bool {
    let has_value_inodes = |space: &[u8]| match decode_inode(space) {
        Ok(Some(area)) => area
            .entries()
            .any(|entry| matches!(entry.value, extant_format::xattr::Value::InInode { .. })),
        _ => false,
    };
    !has_value_inodes(data.xattr_space())
}

/// Releases everything that the attributes of an inode hold, because the inode is being freed.
///
/// # Errors
///
/// Damage of the attributes, device errors; the journal is aborted after the first change.
pub(crate) fn release_all(txn: &mut Txn<'_>, fs: &Fs, node: &Arc<Node>) -> Result<()> {
    let is_bare = node.with(|data| data.record.file_acl.0 == 0 && releases_at_once(data));
    if is_bare {
        return Ok(());
    }
    let old = Loaded::read(fs, node)?;
    let values = inodes_of(old.set.attributes()).count();
    // Each value inode may become an orphan, to be deleted later.
    let credits = 8 + 4 * u32::try_from(values).unwrap_or(u32::MAX).min(1024);
    if values > 0 && !txn.extend(credits) {
        let (what, wanted) = ("journal blocks for one change", u64::from(credits));
        return Err(FsError::NoSpace { what, wanted, free: 0 });
    }
    store(txn, fs, node, &old, &AttributeSet::default())
}
