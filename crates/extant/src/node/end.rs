//! The end of an inode: the thread that deletes it holds off its writeback first.
//!
//! ```text
//! Node::settle    before a transaction   writeback of the contents is held off
//! Settled::die    inside                 the right to delete, if nobody holds the inode
//! Dying::end      inside                 the inode is free
//! ```
//!
//! A [`Dying`] can be obtained only so, and an inode is freed only through one. It holds the file's
//! writeback lock to the end: later writeback finds that the file has ended, never a half of it.

use std::sync::Arc;

use extant_iomap::KeptOut;

use super::Node;

/// Holds off writeback of the inode's contents, if they were in use when this was made. It is no
/// proof that the inode can be deleted: see [`die`](Settled::die).
#[must_use = "writeback goes on when it is dropped"]
pub(crate) struct Settled<'n> {
    node: &'n Arc<Node>,
    kept_out: Option<KeptOut<'n>>,
}

impl<'n> Settled<'n> {
    /// Holds off writeback. Called before a transaction is opened; content locks may be held.
    pub(crate) fn new(node: &'n Arc<Node>) -> Settled<'n> {
        let kept_out = node.file_state().get().map(|file| file.cache.keep_writeback_out());
        Settled { node, kept_out }
    }

    /// Creates the state for an inode without contents yet.
    pub(crate) fn without_contents(node: &'n Arc<Node>) -> Settled<'n> {
        Settled { node, kept_out: None }
    }

    /// Returns the right to delete like [`die`](Self::die), for an inode that loses its last link
    /// in the caller's transaction and is not listed as an orphan.
    pub(crate) fn die_nameless(self) -> Option<Dying<'n>> {
        let Settled { node, kept_out } = self;
        let is_quiet = || kept_out.is_some() || node.file_state().get().is_none();
        node.life.die_nameless(is_quiet).then_some(Dying { node, kept_out })
    }

    /// Returns the right to delete the inode; `None` when it has names or handles, or contents came
    /// into use whose writeback is not held off. The caller [queues](super::Life::queue) it then,
    /// if needed.
    pub(crate) fn die(self) -> Option<Dying<'n>> {
        let Settled { node, kept_out } = self;
        let is_quiet = || kept_out.is_some() || node.file_state().get().is_none();
        node.life.die(is_quiet).then_some(Dying { node, kept_out })
    }

    /// Returns the right to delete like [`die`](Self::die), also from handles: see
    /// [`die_held`](super::Life::die_held). The caller holds the content lock exclusively.
    pub(crate) fn die_held(self) -> Option<Dying<'n>> {
        let Settled { node, kept_out } = self;
        let is_quiet = || kept_out.is_some() || node.file_state().get().is_none();
        node.life.die_held(is_quiet).then_some(Dying { node, kept_out })
    }
}

/// The right and the duty to delete an inode: dropped without [`end`](Dying::end), the inode is an
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

    /// Returns the proof that writeback is held off; `None` when the inode has no contents in use.
    pub(crate) fn kept_out(&self) -> Option<&KeptOut<'n>> {
        self.kept_out.as_ref()
    }

    /// Records that the inode is free.
    pub(crate) fn end(self) {
        self.node.life.end();
    }
}

impl Drop for Dying<'_> {
    fn drop(&mut self) {
        // This does nothing after `end`.
        self.node.life.fail();
    }
}

impl Node {
    /// Holds off writeback of a file that will probably be deleted with its next name, so that it
    /// can be freed in the same transaction. Called before a transaction is opened.
    pub(crate) fn settle(self: &Arc<Node>) -> Settled<'_> {
        let goes = self.life.is_unheld() && self.with(|data| data.record.links <= 1);
        if goes { Settled::new(self) } else { Settled::without_contents(self) }
    }
}
