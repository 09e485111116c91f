//! Content locks of several inodes at once.
//!
//! The order is that of inode numbers (rank `InodeContent`). The inodes of an operation are known
//! only after its names were looked up, and names may change until the locks are held: the caller
//! looks up, locks with [`lock_all`], looks up again, and starts over when the answer changed.

use std::sync::Arc;

use extant_sync::RwLockWriteGuard;

use crate::node::Node;

/// Limit of the inodes that one operation locks: two directories and two inodes that move.
const MOST: usize = 4;

/// Locks that are held until dropped.
pub(super) struct Locks<'n> {
    // The locks, taken in ascending order; the order of release does not matter.
    _held: [Option<RwLockWriteGuard<'n, ()>>; MOST],
}

/// Locks up to four nodes exclusively, each once, in any order and with repetitions.
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
