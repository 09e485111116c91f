//! Recovery of orphans: they are deleted, or truncated to their size.
//!
//! Each orphan has transactions of its own and leaves the file or list in the last of them, so a
//! crash in the middle leaves the rest to the next mount.
//!
//! The end of a mount deletes those that still have handles, so that an image that is marked clean
//! has none.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, Ino};
use extant_format::group::GroupFlags;
use extant_format::inode::FileKind;
use rustc_hash::FxHashSet;

use crate::error::{Family, Fault, FsError, Result};
use crate::file;
use crate::fs::Fs;
use crate::map;
use crate::node::{Node, Settled};
use crate::orphan::{OrphanSummary, Orphans};
use crate::progress::{MountStage, Observer};
use crate::supers::SuperState;
use crate::txn::Txn;
use crate::writer::Writer;

/// Credits for leaving the list.
const CREDITS: u32 = 8;

/// Result of [`load_list`].
#[derive(Default)]
pub(crate) struct LoadedList {
    summary: OrphanSummary,
    /// Whether the list is unusable, so that the superblock must forget it.
    forget: bool,
}

/// Reads the list, before anything is changed: later orphans are added in front of it. Damage is
/// reported by [`recover`]: the list ends there, and the rest of it stays for e2fsck.
///
/// # Errors
///
/// Those of devices.
pub(super) fn load_list(fs: &Fs, orphans: &Orphans, supers: &SuperState) -> Result<LoadedList> {
    let mut loaded = LoadedList::default();
    let head = supers.with(|superblock| Ino(superblock.last_orphan));
    if !supers.was_sound() {
        // As in the kernel: only a check can tell what damage did to these inodes. Without a
        // journal it is unknown what else a crash left undone.
        loaded.summary.list_ignored = head.0 != 0;
        loaded.forget = head.0 != 0;
        return Ok(loaded);
    }
    let mut members: Vec<Arc<Node>> = Vec::new();
    let mut seen = FxHashSet::default();
    let mut next = head;
    // This is bounded: each number occurs once, and there are as many as inodes in use.
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

/// Deletes and truncates all orphans, on a writable mount, after the replay of the journal and
/// before the file system is shared.
///
/// Damage of an orphan is reported in the summary, and the others are processed.
///
/// # Errors
///
/// Those of devices and of the journal; full disks; [`FsError::OperationCancelled`] by the
/// observer.
pub(super) fn recover(
    fs: &Fs,
    orphans: &Orphans,
    supers: &SuperState,
    loaded: LoadedList,
    observer: &Observer,
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
    let total = found.len() as u64;
    for (done, node) in (0..).zip(found) {
        // The remaining ones stay orphans, for the next mount.
        observer.tell(MountStage::Orphans, done, total)?;
        if let Err(error) = settle(fs, &node, &mut summary) {
            summary.damage(error)?;
        }
    }
    Ok(summary)
}

/// Deletes files without names whose handles are still there, at the end of a mount: no other
/// thread is inside the gate for changes. What programs have mapped stays an orphan, for the next
/// mount, and so does what cannot be deleted.
pub(super) fn delete_held(fs: &Fs, writer: &Writer) {
    let orphans = writer.orphans();
    if orphans.len() == 0 {
        return;
    }
    // What has handles is in memory.
    let filed = orphans.filed().into_iter().filter_map(|ino| fs.volume().nodes().get(&ino));
    for node in filed.chain(orphans.listed()) {
        // Readers are waited for, and requests on their way to the device.
        let _content = node.content.write();
        if node.file_state().get().is_some_and(|file| file.is_mapped()) {
            continue;
        }
        let Some(dying) = Settled::new(&node).die_held() else { continue };
        if let Err(error) = fs.delete_orphan(dying)
            && error.family() == Family::Damage
            && writer.supers().report(&error, writer.now().seconds)
        {
            writer.abort(&error);
        }
    }
}

/// Deletes an orphan, or truncates it to its size.
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
    // It stays an orphan if this fails.
    node.is_shortened.store(true, Ordering::Release);
    if node.with(|data| data.kind == FileKind::Regular && map::has_blocks(data)) {
        file::finish_shrink(fs, node)?;
    }
    let mut txn = Txn::begin(fs.volume(), CREDITS)?;
    fs.end_shortening(&mut txn, node)?;
    summary.shortened += 1;
    Ok(())
}

impl Fs {
    /// Returns the node of an orphan: an ordinary inode in use, with or without links.
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
