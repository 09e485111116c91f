//! Adding and removing orphans, as part of the changes that make and end them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Txn;
use crate::error::Result;
use crate::fs::Fs;
use crate::node::Node;

impl Fs {
    /// Makes an inode an orphan, in the transaction that removes its last name or begins to
    /// truncate it. Does nothing when it is one. Two credits.
    pub(crate) fn add_orphan(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        let writer = txn.writer();
        writer.orphans().add(writer.supers(), txn, node)
    }

    /// Makes an inode an orphan until [`end_shortening`](Self::end_shortening). Two credits.
    pub(crate) fn begin_shortening(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        node.is_shortened.store(true, Ordering::Release);
        self.add_orphan(txn, node)
    }

    /// Ends a truncation: the inode is no orphan any more, unless it has no links. Five credits.
    pub(crate) fn end_shortening(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        let has_links = || node.with(|data| data.record.links > 0);
        node.is_shortened.store(false, Ordering::Release);
        if !has_links() {
            return Ok(());
        }
        self.remove_orphan(txn, node)?;
        // A thread that removed the last link meanwhile may have found it an orphan already.
        if has_links() { Ok(()) } else { self.add_orphan(txn, node) }
    }

    /// Ends a truncation like [`end_shortening`](Self::end_shortening), if an earlier attempt left
    /// the inode an orphan. Five credits.
    pub(crate) fn end_failed_shortening(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        match node.is_shortened.load(Ordering::Acquire) {
            true => self.end_shortening(txn, node),
            false => Ok(()),
        }
    }

    /// Records the first link of an inode: it is no orphan any more, unless it is being truncated.
    /// Five credits.
    pub(crate) fn end_namelessness(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        if node.is_shortened.load(Ordering::Acquire) {
            return Ok(());
        }
        self.remove_orphan(txn, node)?;
        // A thread that began to truncate it meanwhile may have found it an orphan already.
        if node.is_shortened.load(Ordering::Acquire) { self.add_orphan(txn, node) } else { Ok(()) }
    }

    /// Removes an inode from the orphans, if it is one. Three credits.
    pub(crate) fn remove_orphan(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        let writer = txn.writer();
        writer.orphans().remove(writer.supers(), txn, node)
    }
}
