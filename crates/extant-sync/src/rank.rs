//! Which lock may be taken under which, and the check that it is so.
//!
//! # Invariants
//!
//! For the locks that one thread holds at any moment, in the order it took them:
//!
//! - L1. Ranks do not fall.
//! - L2. Two neighbours of equal rank both have an order key, and the keys rise. A lock that was
//!   built without a key is never held together with another of its rank, nor twice.
//!
//! Threads that all keep L1 and L2 cannot wait for each other in a circle.

#[cfg(debug_assertions)]
use std::cell::RefCell;

/// The place of a lock in the order of acquisition: lower ranks first.
///
/// The meaning of each rank, and what two locks of one rank are ordered by, is the table in
/// `docs/locking.md`. Derived order is the order of acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Rank {
    /// Which file system a mount serves.
    Current = 1,
    /// The way in for changes; may wait for a thaw.
    Freeze = 2,
    /// The shape of the tree: renames across directories.
    Rename = 3,
    /// Size, data and directory entries of one inode.
    InodeContent = 4,
    /// Writeback of one file's data, or keeping it out.
    Writeback = 5,
    /// One folio's bytes and state.
    Folio = 6,
    /// Log space of the journal. May wait for a commit.
    JournalHandle = 7,
    /// One file's delayed ranges and its tree of extents, for readers beside a publication.
    FileMap = 8,
    /// One inode in memory.
    InodeMap = 9,
    /// Bitmaps and counters of one block group.
    Group = 10,
    /// One block of metadata.
    MetadataBuffer = 11,
    /// Transaction lists of the journal.
    JournalState = 12,
    /// Order of operations inside a stacked device, held over calls to the device below it.
    Device = 13,
    /// Queues, tables, statistics. Nothing is taken inside.
    Leaf = 14,
}

impl Rank {
    /// All of them, in their order.
    pub(crate) const ALL: [Rank; 14] = [
        Rank::Current,
        Rank::Freeze,
        Rank::Rename,
        Rank::InodeContent,
        Rank::Writeback,
        Rank::Folio,
        Rank::JournalHandle,
        Rank::FileMap,
        Rank::InodeMap,
        Rank::Group,
        Rank::MetadataBuffer,
        Rank::JournalState,
        Rank::Device,
        Rank::Leaf,
    ];
}

/// A held lock, as the check sees it.
#[cfg(debug_assertions)]
#[derive(Clone, Copy, Debug)]
struct Held {
    rank: Rank,
    order: Option<u64>,
    /// Address of the lock, to tell guards apart when they are dropped out of order.
    id: usize,
}

#[cfg(debug_assertions)]
thread_local! {
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
}

/// Proof that the rank of a lock was checked; ends with the guard. Costs nothing in release
/// builds.
#[derive(Debug)]
pub(crate) struct RankToken {
    #[cfg(debug_assertions)]
    id: usize,
}

impl RankToken {
    /// Notes that this thread is about to take a lock.
    ///
    /// # Panics
    ///
    /// In debug builds, if that breaks L1 or L2: the order is wrong even if nothing blocks today.
    #[track_caller]
    pub(crate) fn acquire(rank: Rank, order: Option<u64>, id: usize) -> RankToken {
        #[cfg(debug_assertions)]
        {
            HELD.with_borrow_mut(|held| {
                // L1 makes the last one the highest, as long as guards end in any order: removing
                // from a rising sequence leaves a rising sequence.
                if let Some(last) = held.last() {
                    assert!(
                        last.rank <= rank,
                        "L1: lock of rank {rank:?} taken under {:?}; see docs/locking.md",
                        last.rank
                    );
                    assert!(
                        last.rank < rank
                            || matches!((last.order, order), (Some(a), Some(b)) if a < b),
                        "L2: second lock of rank {rank:?} (order {order:?}) taken under one with \
                         order {:?}; see docs/locking.md",
                        last.order
                    );
                }
                held.push(Held { rank, order, id });
            });
            RankToken { id }
        }
        #[cfg(not(debug_assertions))]
        {
            let _ = (rank, order, id);
            RankToken {}
        }
    }
}

#[cfg(debug_assertions)]
impl Drop for RankToken {
    fn drop(&mut self) {
        // A guard may die while its thread's locals are being torn down; nothing to keep then.
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            if let Some(at) = held.iter().rposition(|h| h.id == self.id) {
                held.remove(at);
            }
        });
    }
}
