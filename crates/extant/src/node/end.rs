//! The end of an inode: writeback is kept out first, and whoever does that may delete.
//!
//! ```text
//! Node::settle    before a transaction   nothing of the contents is under writeback, and stays so
//! Settled::die    inside                 the right to delete, if nobody holds the inode
//! Dying::end      inside                 the inode is free
//! ```
//!
//! There is no other way to a [`Dying`], and the inode is freed through nothing else. It holds the
//! file's writeback lock until it is over: who comes late to write back finds that the file has
//! ended, not half of it.

use std::sync::Arc;

use extant_iomap::KeptOut;

use super::Node;

/// Nothing of the inode's contents is under writeback while this exists, if there was something to
/// keep out when it was made; who wants to write back waits. No proof that the inode can go: see
/// [`die`](Settled::die).
#[must_use = "writeback goes on when it is dropped"]
pub(crate) struct Settled<'n> {
    node: &'n Arc<Node>,
    kept_out: Option<KeptOut<'n>>,
}

impl<'n> Settled<'n> {
    /// Keeps writeback out. Before a transaction is opened; content locks may be held.
    pub(crate) fn new(node: &'n Arc<Node>) -> Settled<'n> {
        let kept_out = node.file_state().get().map(|file| file.cache.keep_writeback_out());
        Settled { node, kept_out }
    }

    /// Keeps nothing out, for what has no contents yet.
    pub(crate) fn without_contents(node: &'n Arc<Node>) -> Settled<'n> {
        Settled { node, kept_out: None }
    }

    /// [`die`](Self::die) of an inode that loses its last link in the caller's transaction and is on no list
    /// of orphans.
    pub(crate) fn die_nameless(self) -> Option<Dying<'n>> {
        let Settled { node, kept_out } = self;
        let is_quiet = || kept_out.is_some() || node.file_state().get().is_none();
        node.life.die_nameless(is_quiet).then_some(Dying { node, kept_out })
    }

    /// The right to delete the inode; `None` when it has names or handles, or contents came into use
    /// that this does not keep out. The caller [queues](super::Life::queue) it then, if need be.
    pub(crate) fn die(self) -> Option<Dying<'n>> {
        let Settled { node, kept_out } = self;
        let is_quiet = || kept_out.is_some() || node.file_state().get().is_none();
        node.life.die(is_quiet).then_some(Dying { node, kept_out })
    }
}

/// The right to delete an inode, and the duty: dropped without [`end`](Dying::end), the inode is an
/// orphan that only the next mount deletes.
#[must_use = "an inode that is not deleted now stays for the next mount"]
pub(crate) struct Dying<'n> {
    node: &'n Arc<Node>,
    kept_out: Option<KeptOut<'n>>,
}

impl<'n> Dying<'n> {
    pub(crate) fn node(&self) -> &'n Arc<Node> {
        self.node
    }

    /// Proof that writeback is kept out; `None` when the inode has no contents in use.
    pub(crate) fn kept_out(&self) -> Option<&KeptOut<'n>> {
        self.kept_out.as_ref()
    }

    /// The inode is free.
    pub(crate) fn end(self) {
        self.node.life.end();
    }
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        // Nothing after `end`.
        self.node.life.fail();
    }
}

impl Node {
    /// Keeps writeback out of a file that probably goes with its next name, so that it can go in the
    /// same transaction. Before a transaction is opened.
    pub(crate) fn settle(self: &Arc<Node>) -> Settled<'_> {
        let goes = self.life.is_unheld() && self.with(|data| data.record.links <= 1);
        if goes { Settled::new(self) } else { Settled::without_contents(self) }
    }
}
