//! Changes of an inode that may not be durable yet, also after its node left memory.
//!
//! A node may leave as soon as its record is in the block that the journal commits, or its contents
//! are in the device's cache. A later handle of the inode whose user syncs it must still wait for
//! that: each shard of the cache keeps the latest changes of the nodes that left it, and a new node
//! inherits them. For most nodes that is more than needed, but soon durable.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use extant_jbd2::{Round, Tid, tid_geq};

/// Changes that a sync of the inode waits for.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    /// The last round of a transaction that changed the inode or its entries; 0 for none.
    pub(crate) changed_by: AtomicU32,
    /// The transaction that moved blocks within the file; 0 when it is durable. Until then a crash
    /// restores the old mapping, so the blocks must not be overwritten.
    pub(crate) moved_by: AtomicU32,
    /// Number of the last write in place, counted over all files; 0 for none.
    pub(crate) in_place: AtomicU64,
}

/// Changes of the nodes that left a shard of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Departed {
    /// Number of changed nodes that left: a record that was read before one of them left may be
    /// older than the one it stored.
    changed: u64,
    changed_by: Round,
    moved_by: Tid,
    in_place: u64,
}

/// Returns the later of two transactions or rounds, of which 0 is none.
fn later(one: Tid, other: Tid) -> Tid {
    match (one, other) {
        (0, tid) | (tid, 0) => tid,
        _ if tid_geq(one, other) => one,
        _ => other,
    }
}

impl Unsynced {
    /// Creates the state of a node in a shard that others have left.
    pub(super) fn after(departed: &Departed) -> Unsynced {
        Unsynced {
            changed_by: AtomicU32::new(departed.changed_by),
            moved_by: AtomicU32::new(departed.moved_by),
            in_place: AtomicU64::new(departed.in_place),
        }
    }

    /// Records that the node leaves. The caller has the only reference.
    pub(super) fn depart(&self, is_changed: bool, departed: &mut Departed) {
        departed.changed += u64::from(is_changed);
        departed.changed_by = later(departed.changed_by, self.changed_by.load(Ordering::Acquire));
        departed.moved_by = later(departed.moved_by, self.moved_by.load(Ordering::Acquire));
        departed.in_place = departed.in_place.max(self.in_place.load(Ordering::Acquire));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_waits_for_the_latest_of_what_left() {
        let mut departed = Departed::default();
        for (changed_by, moved_by, in_place) in [(0, 0, 7), (u32::MAX, 5, 0), (2, 3, 4)] {
            let unsynced = Unsynced::default();
            unsynced.changed_by.store(changed_by, Ordering::Relaxed);
            unsynced.moved_by.store(moved_by, Ordering::Relaxed);
            unsynced.in_place.store(in_place, Ordering::Relaxed);
            unsynced.depart(changed_by != 0, &mut departed);
        }
        // Numbers of transactions go round.
        assert_eq!(departed, Departed { changed: 2, changed_by: 2, moved_by: 5, in_place: 7 });
        let mut again = Departed::default();
        Unsynced::after(&departed).depart(false, &mut again);
        assert_eq!(again, Departed { changed: 0, ..departed });
    }
}
