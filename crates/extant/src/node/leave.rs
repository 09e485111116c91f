//! Leaving the cache of nodes while other threads find the node by a name.
//!
//! The cache evicts a node when it has the only reference. It checks that under the lock of the
//! node's shard, but the cache of names makes references without that lock, from a weak one. So the
//! cache first marks the node and then counts the references, while a thread with a name first
//! takes its reference and then looks for the mark. A fence between the two steps of each makes one
//! of them see the other.
//!
//! Compiled twice, as `life`.
//!
//! # Invariants
//!
//! - V1. A node that has left gets no new users.

use super::atomic::{AtomicBool, Ordering, fence};

/// Whether a node has left the cache, or is leaving.
#[derive(Debug)]
pub(crate) struct Leave(AtomicBool);

impl Leave {
    pub(crate) fn new() -> Leave {
        Leave(AtomicBool::new(false))
    }

    /// Lets the node leave if `is_alone`, which counts references; called under the lock of its
    /// shard. Returns whether it leaves.
    pub(crate) fn try_leave(&self, is_alone: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let leaves = is_alone();
        if leaves {
            // This makes changes by threads that dropped their references visible.
            fence(Ordering::Acquire);
        } else {
            self.0.store(false, Ordering::Release);
        }
        leaves
    }

    /// Records that the node was taken out of the cache, whatever references exist.
    pub(crate) fn leave(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// Returns whether a node may be used by a thread that has just got a reference from outside
    /// the cache. If not, the cache has the current node.
    pub(crate) fn is_here(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.0.load(Ordering::Acquire)
    }
}
