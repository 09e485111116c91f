//! Deleting inodes that lost their last name.
//!
//! An inode without handles and with few blocks is deleted in the transaction that removed the
//! name. Otherwise it becomes an orphan, which is found after a crash and deleted when the last
//! handle is dropped.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::sabotage;
use extant_format::inode::FileKind;

use crate::alloc::Purpose;
use crate::error::{Family, Result};
use crate::fast::Refusal;
use crate::fs::Fs;
use crate::map::{self, FILE_BLOCKS_END};
use crate::node::{Dying, Node, Settled};
use crate::txn::Txn;
use crate::xattr;

/// Credits for deleting an inode at once: its bitmap, descriptor and table block, four extents'
/// bitmaps and descriptors, an attribute block likewise, quotas, an orphan's place.
pub(crate) const CREDITS: u32 = 32;

/// Number of rounds of removals in one call, enough for some thousand inodes.
pub(crate) const REMOVALS_MAX: usize = 256;

impl Fs {
    /// Handles an inode whose link count became 0 in `txn`: deletes it now if that is little work
    /// and it has no handles, otherwise makes it an orphan.
    pub(crate) fn bury(
        &self,
        txn: &mut Txn<'_>,
        node: &Arc<Node>,
        settled: Settled<'_>,
    ) -> Result<()> {
        let small = node.with(|data| map::is_small(data) && xattr::releases_at_once(data));
        // An inode whose truncation failed is an orphan already.
        let is_listed = node.is_shortened.load(Ordering::Acquire);
        if small
            && !is_listed
            && let Some(dying) = settled.die_nameless()
        {
            return self.delete_now(txn, dying);
        }
        self.orphan(txn, node)
    }

    /// Makes an inode without links, which may have handles, an orphan.
    fn orphan(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        if sabotage("extant.delete.dies-before-it-is-listed") {
            node.life().lose_names();
        }
        // The inode is listed first: from then on the thread that drops its last handle may delete
        // it and take it off the list.
        self.add_orphan(txn, node)?;
        node.life().lose_names();
        // All handles may have been dropped before.
        self.queue_orphan(node)
    }

    /// Queues an orphan without handles for deletion.
    fn queue_orphan(&self, node: &Arc<Node>) -> Result<()> {
        if node.life().queue() {
            self.volume().writer()?.reclaim_later(Arc::clone(node));
        }
        Ok(())
    }

    /// Deletes inodes without names and handles, so that their space shows as free. Otherwise that
    /// happens with the next change, or by [`tick`](Fs::tick). If there are many, some may be left
    /// for the next call.
    pub fn finish_removals(&self) {
        for _ in 0..REMOVALS_MAX {
            if !self.reclaim() {
                break;
            }
        }
    }

    /// Deletes some of the inodes whose last handle was dropped; returns false when there were
    /// none.
    ///
    /// Inodes that could not be deleted stay orphans, for the next mount.
    pub(crate) fn reclaim(&self) -> bool {
        let Ok(writer) = self.volume().writer() else { return false };
        if !writer.has_reclaimable() {
            return false;
        }
        let Some(_inside) = writer.try_enter() else { return false };
        let nodes = writer.take_reclaimable();
        let any = !nodes.is_empty();
        for node in nodes {
            node.life().unqueue();
            match Settled::new(&node).die() {
                Some(dying) => {
                    // The name is gone, and there is no caller to report damage to: it is recorded
                    // in the superblock. After other errors the next mount continues.
                    if let Err(error) = self.delete_orphan(dying)
                        && error.family() == Family::Damage
                        && writer.supers().report(&error, writer.now().seconds)
                    {
                        writer.abort(&error);
                    }
                }
                None => _ = self.queue_orphan(&node),
            }
        }
        any
    }

    /// Deletes an orphan that can no longer be reached.
    ///
    /// # Errors
    ///
    /// Damage, device errors, an aborted journal. The inode stays an orphan then, without the
    /// contents freed so far, and the next mount continues.
    pub(crate) fn delete_orphan(&self, dying: Dying<'_>) -> Result<()> {
        let mut txn = Txn::begin_refused(self.volume(), CREDITS, Refusal::Names)?;
        self.delete_in(&mut txn, dying, true)
    }

    /// Deletes an inode that is no orphan, in the transaction that removed its last name.
    pub(crate) fn delete_now(&self, txn: &mut Txn<'_>, dying: Dying<'_>) -> Result<()> {
        self.delete_in(txn, dying, false)
    }

    fn delete_in(&self, txn: &mut Txn<'_>, dying: Dying<'_>, is_orphan: bool) -> Result<()> {
        let node = dying.node();
        let purpose = node.with(Purpose::of);
        dying.drop_contents(self.volume());
        if node.with(map::has_blocks) {
            map::remove(txn, self, node, 0..FILE_BLOCKS_END, purpose)?;
            // An inode that is no orphan is freed in a single transaction, which removed its last
            // name.
            if is_orphan {
                txn.ensure(CREDITS)?;
            }
        }
        xattr::release_all(txn, self, node)?;
        if is_orphan {
            self.remove_orphan(txn, node)?;
        }
        self.free_node(txn, node)?;
        dying.end();
        Ok(())
    }

    /// Undoes the creation of an inode that has no name yet.
    pub(crate) fn undo_new(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        if let Some(dying) = Settled::without_contents(node).die_nameless() {
            return self.delete_now(txn, dying);
        }
        // Another thread has a handle, found by the inode number.
        txn.update(node, |data| data.record.links = 0)?;
        self.orphan(txn, node)
    }

    fn free_node(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        let writer = self.volume().writer()?;
        let seconds = writer.now().seconds;
        let (record, is_dir) = txn.update(node, |data| {
            data.record.links = 0;
            // Zero would mean "in use" to e2fsck.
            data.record.dtime = (seconds as u32).max(1);
            if sabotage("extant.delete.dtime-zero") {
                data.record.dtime = 0;
            }
            (data.record.clone(), data.kind == FileKind::Directory)
        })?;
        txn.uncharge_inode(&record);
        writer.alloc().free_inode(txn, node.ino(), is_dir)
    }
}
