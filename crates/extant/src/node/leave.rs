//! Leaving the cache of nodes beside somebody who finds the node by a name.
//!
//! The cache lets a node go when it has the only reference. It asks under the lock of the node's shard, but
//! the cache of names gets references without: from a weak one. So the node is marked first and the
//! references are counted then, while who gets one from a name gets it first and then looks for the mark.
//! Between the two steps of each is a fence: one of them sees the other.
//!
//! Compiled twice, as `life`.
//!
//! # Invariants
//!
//! - V1. A node that has left is used by nobody who did not have it before.

use super::atomic::{AtomicBool, Ordering, fence};

/// Whether a node is in the cache, or on its way out.
#[derive(Debug)]
pub(crate) struct Leave(AtomicBool);

impl Leave {
    pub(crate) fn new() -> Leave {
        Leave(AtomicBool::new(false))
    }

    /// Under the lock of its shard: it leaves if `is_alone`, which counts references. Whether it does.
    pub(crate) fn try_leave(&self, is_alone: impl FnOnce() -> bool) -> bool {
        self.0.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let leaves = is_alone();
        if leaves {
            // What those did who let go is seen from here on.
            fence(Ordering::Acquire);
        } else {
            self.0.store(false, Ordering::Release);
        }
        leaves
    }

    /// Notes that the object was taken out of the cache, whoever has a reference.
    pub(crate) fn leave(&self) {
        self.0.store(true, Ordering::Release);
    }

    /// For who has just got a reference, but not from the cache: whether it may be used. If not, the
    /// cache knows.
    pub(crate) fn is_here(&self) -> bool {
        fence(Ordering::SeqCst);
        !self.0.load(Ordering::Acquire)
    }
}
