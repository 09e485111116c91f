//! How much is promised, and how much of that is pinned.
//!
//! # Invariants
//!
//! - C1. Whoever was promised clusters and has not pinned them finds at least so many that can be pinned,
//!   whatever others do at that moment. So what is not pinned is one number: the difference of two that
//!   are read one after the other can be less, when somebody is promised some and pins them in between.
//!
//! Compiled twice: over the atomics of the machine, and in tests over those of a model checker that
//! tries every order (`model.rs`).

use super::atomic::{AtomicI64, AtomicU64, Ordering};

#[derive(Debug)]
pub(super) struct Counts {
    promised: AtomicU64,
    /// Promised and not pinned.
    unpinned: AtomicI64,
}

impl Counts {
    pub(super) fn new() -> Counts {
        Counts { promised: AtomicU64::new(0), unpinned: AtomicI64::new(0) }
    }

    /// Returns what is promised, pinned or not.
    pub(super) fn promised(&self) -> u64 {
        self.promised.load(Ordering::Acquire)
    }

    /// Returns what can be pinned now.
    pub(super) fn unpinned(&self) -> u64 {
        u64::try_from(self.unpinned.load(Ordering::Acquire)).unwrap_or(0)
    }

    pub(super) fn promise(&self, clusters: u64) {
        self.promised.fetch_add(clusters, Ordering::AcqRel);
        self.unpinned.fetch_add(signed(clusters), Ordering::AcqRel);
    }

    /// Promises end; what was pinned for them is not any more. How many did: never more than there are.
    pub(super) fn end(&self, promises: u64) -> u64 {
        let lower = |promised: u64| Some(promised.saturating_sub(promises));
        let before = self.promised.fetch_update(Ordering::AcqRel, Ordering::Acquire, lower);
        let before = before.unwrap_or_else(|promised| promised);
        debug_assert!(before >= promises, "{promises} promises end of {before}");
        let ended = promises.min(before);
        self.unpinned.fetch_sub(signed(ended), Ordering::AcqRel);
        ended
    }

    /// Pins `most` clusters, or as many as can be, but at least `least`.
    pub(super) fn pin(&self, least: u32, most: u32) -> Option<u32> {
        let size = |unpinned: i64| {
            let left = unpinned.max(0).min(i64::from(most));
            u32::try_from(left).ok().filter(|size| *size >= least)
        };
        let pin = |unpinned: i64| size(unpinned).map(|size| unpinned - i64::from(size));
        let before = self.unpinned.fetch_update(Ordering::AcqRel, Ordering::Acquire, pin).ok()?;
        size(before)
    }

    pub(super) fn unpin(&self, clusters: u32) {
        self.unpinned.fetch_add(i64::from(clusters), Ordering::AcqRel);
    }
}

fn signed(clusters: u64) -> i64 {
    i64::try_from(clusters).unwrap_or(i64::MAX)
}
