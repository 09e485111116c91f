//! What a crash left: orphans are deleted, or shortened to their size.
//!
//! Each orphan takes transactions of its own and leaves file or list in the last of them, so a
//! crash in the middle leaves the rest to the next mount.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, Ino};
use extant_format::group::GroupFlags;
use extant_format::inode::FileKind;
use rustc_hash::FxHashSet;

use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::map;
use crate::node::{Node, Settled};
use crate::orphan::{OrphanSummary, Orphans};
use crate::size;
use crate::supers::SuperState;
use crate::txn::Txn;

/// Blocks that leaving the list changes.
const CREDITS: u32 = 8;

/// What [`load_list`] found.
#[derive(Default)]
pub(crate) struct LoadedList {
    summary: OrphanSummary,
    /// Nothing of the list can be used: the superblock is to forget it.
    forget: bool,
}

/// Reads the list, before anything is changed: whatever becomes an orphan from now on goes in
/// front of it. Damage is told by [`recover`]: the list ends there, and what it
/// would have named stays for e2fsck.
///
/// # Errors
///
/// Those of devices.
pub(super) fn load_list(fs: &Fs, orphans: &Orphans, supers: &SuperState) -> Result<LoadedList> {
    let mut loaded = LoadedList::default();
    let head = supers.with(|superblock| Ino(superblock.last_orphan));
    if !supers.was_sound() {
        // As the kernel: what damage made of these inodes, only a check can tell. And without a
        // log nobody knows what else a crash left undone.
        loaded.summary.list_ignored = head.0 != 0;
        loaded.forget = head.0 != 0;
        return Ok(loaded);
    }
    let mut members: Vec<Arc<Node>> = Vec::new();
    let mut seen = FxHashSet::default();
    let mut next = head;
    // Bounded: each number once, and there are as many as inodes in use.
    while next.0 != 0 {
        let fail = |rule| FsError::corrupt("orphan list", next, None, Fault::Rule(rule));
        let node = if !seen.insert(next) || orphans.contains(next) {
            Err(fail("the inode is an orphan already"))
        } else {
            fs.orphan_node(next)
        };
        match node {
            Ok(node) => {
                next = Ino(node.with(|data| data.record.dtime));
                members.push(node);
            }
            Err(error) => {
                loaded.summary.damage(error)?;
                loaded.forget = members.is_empty();
                break;
            }
        }
    }
    orphans.adopt_list(&members);
    Ok(loaded)
}

/// Deletes and shortens all orphans. At a writable mount, after the journal was replayed and
/// before anybody else has the file system.
///
/// Damage of an orphan is told in the summary, and the others are gone through.
///
/// # Errors
///
/// Those of devices and of the journal; full disks.
pub(super) fn recover(
    fs: &Fs,
    orphans: &Orphans,
    supers: &SuperState,
    loaded: LoadedList,
) -> Result<OrphanSummary> {
    let mut summary = loaded.summary;
    if loaded.forget && orphans.listed().is_empty() {
        let mut txn = Txn::begin(fs.volume(), 1)?;
        supers.change(&mut txn, |superblock| superblock.last_orphan = 0)?;
    }
    if summary.list_ignored {
        return Ok(summary);
    }
    let mut found = Vec::new();
    for ino in orphans.filed() {
        match fs.orphan_node(ino) {
            Ok(node) => found.push(node),
            Err(error) => {
                summary.damage(error)?;
                let mut txn = Txn::begin(fs.volume(), 1)?;
                orphans.drop_from_file(&mut txn, ino)?;
            }
        }
    }
    found.extend(orphans.listed());
    for node in found {
        if let Err(error) = settle(fs, &node, &mut summary) {
            summary.damage(error)?;
        }
    }
    Ok(summary)
}

/// Deletes an orphan, or cuts it to its size.
fn settle(fs: &Fs, node: &Arc<Node>, summary: &mut OrphanSummary) -> Result<()> {
    if node.with(|data| data.record.links == 0) {
        let Some(dying) = Settled::new(node).die() else {
            let rule = "the inode is in use by the file system itself";
            return Err(FsError::corrupt("orphan", node.ino(), None, Fault::Rule(rule)));
        };
        fs.delete_orphan(dying)?;
        summary.deleted += 1;
        return Ok(());
    }
    // It stays one if this fails.
    node.is_shortened.store(true, Ordering::Release);
    if node.with(|data| data.kind == FileKind::Regular && map::has_blocks(data)) {
        size::finish_shrink(fs, node)?;
    }
    let mut txn = Txn::begin(fs.volume(), CREDITS)?;
    fs.end_shortening(&mut txn, node)?;
    summary.shortened += 1;
    Ok(())
}

impl Fs {
    /// The node of an orphan: an ordinary inode that is in use, with or without links.
    fn orphan_node(&self, ino: Ino) -> Result<Arc<Node>> {
        let volume = self.volume();
        let superblock = self.superblock();
        let fail = |rule| FsError::corrupt("orphan", ino, None, Fault::Rule(rule));
        if ino < superblock.first_inode || ino.0 > superblock.inodes_count {
            return Err(fail("there is no ordinary inode of that number"));
        }
        let own = [
            superblock.orphan_file_inode,
            superblock.project_quota_inode,
            superblock.user_quota_inode,
            superblock.group_quota_inode,
            superblock.journal_inode,
        ];
        if own.contains(&ino) {
            return Err(fail("the inode is in use by the file system itself"));
        }
        let missing = FsError::NoSuchInode { ino, inode_count: superblock.inodes_count };
        let Some((group, index)) = superblock.group_of_inode(ino) else { return Err(missing) };
        let descriptor = volume.group(group)?;
        let bitmap: FsBlock = descriptor.inode_bitmap;
        let is_used = !descriptor.flags.contains(GroupFlags::INODE_UNINIT) && {
            volume.check_blocks("inode bitmap", None, bitmap, 1)?;
            let block = volume.read_block(bitmap)?;
            let byte = block.bytes().get(index as usize / 8).copied().unwrap_or(0);
            byte & (1 << (index % 8)) != 0
        };
        if !is_used {
            return Err(fail("the inode is not in use"));
        }
        self.node_by(ino, || self.load_inode_or_orphan(ino))
    }
}
