//! Content locks of several inodes at once.
//!
//! The order is that of inode numbers (rank `InodeContent`). Which inodes an operation needs is only
//! known after names were looked up, and they may change until the locks are held: the caller looks
//! up, locks with [`lock_all`], looks up again, and starts over when the answer changed.

use std::sync::Arc;

use extant_sync::RwLockWriteGuard;

use crate::node::Node;

/// The most that one operation locks: two directories and two inodes that move.
const MOST: usize = 4;

/// Locks held until dropped.
pub(super) struct Locks<'n> {
    // In rising order; dropped in any.
    _held: [Option<RwLockWriteGuard<'n, ()>>; MOST],
}

/// Locks up to four nodes exclusively, each once, whatever the order and the repetitions.
pub(super) fn lock_all<'n>(nodes: [Option<&'n Arc<Node>>; MOST]) -> Locks<'n> {
    let mut sorted = nodes;
    sorted.sort_unstable_by_key(|node| node.map_or(u32::MAX, |node| node.ino().0));
    let mut held = [const { None }; MOST];
    let mut last = None;
    for (place, node) in held.iter_mut().zip(sorted) {
        if let Some(node) = node
            && last != Some(node.ino())
        {
            last = Some(node.ino());
            *place = Some(node.content.write());
        }
    }
    Locks { _held: held }
}
