//! Lock ranks, and the check of the locking order.
//!
//! # Invariants
//!
//! For the locks that one thread holds at any moment, in the order it took them:
//!
//! - L1. Ranks do not fall.
//! - L2. Two neighbours of equal rank both have an order key, and the keys rise. A lock that was
//!   built without a key is never held together with another of its rank, nor twice.
//!
//! Threads that all keep L1 and L2 cannot deadlock on these locks.

#[cfg(debug_assertions)]
use std::cell::RefCell;
use std::marker::PhantomData;
#[cfg(debug_assertions)]
use std::sync::atomic::{AtomicUsize, Ordering};

/// The place of a lock in the order of acquisition: lower ranks first.
///
/// The meaning of each rank, and what two locks of one rank are ordered by, is the table in
/// `docs/locking.md`. Derived order is the order of acquisition.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Rank {
    /// The file system that a mount serves.
    Current = 1,
    /// The gate for changes; may wait for a thaw.
    Freeze = 2,
    /// The shape of the tree: renames across directories.
    Rename = 3,
    /// A range of one file that a direct writer gives blocks or first data.
    FileRange = 4,
    /// Size, data and directory entries of one inode.
    InodeContent = 5,
    /// Writeback of one file's data, or holding it off.
    Writeback = 6,
    /// One folio's bytes and state.
    Folio = 7,
    /// Log space of the journal. May wait for a commit.
    JournalHandle = 8,
    /// One file's delayed ranges and its tree of extents, for readers beside a publication.
    FileMap = 9,
    /// One inode in memory.
    InodeMap = 10,
    /// Bitmaps and counters of one block group.
    Group = 11,
    /// One block of metadata.
    MetadataBuffer = 12,
    /// Transaction lists of the journal.
    JournalState = 13,
    /// Order of operations inside a stacked device, held over calls to the device below it.
    Device = 14,
    /// Queues, tables, statistics. Nothing is taken inside.
    Leaf = 15,
}

impl Rank {
    /// All of them, in their order.
    pub(crate) const ALL: [Rank; 15] = [
        Rank::Current,
        Rank::Freeze,
        Rank::Rename,
        Rank::FileRange,
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

/// Proof that the rank of a lock was checked; it ends with the guard. It costs nothing in release
/// builds.
#[derive(Debug)]
pub(crate) struct RankToken {
    #[cfg(debug_assertions)]
    id: usize,
}

impl RankToken {
    /// Records that this thread is about to take a lock.
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

/// A resource held like a lock, such as an open handle of a journal. Debug builds check later locks
/// of the thread against its rank.
#[must_use = "it is held until it is dropped"]
#[derive(Debug)]
pub struct Hold {
    _token: RankToken,
    /// A hold belongs to its thread.
    _thread: PhantomData<*const ()>,
}

impl Hold {
    /// Records that this thread holds the resource.
    ///
    /// # Panics
    ///
    /// In debug builds, if the thread holds something of this rank or a higher one.
    #[track_caller]
    pub fn new(rank: Rank) -> Hold {
        #[cfg(debug_assertions)]
        let id = {
            static NEXT: AtomicUsize = AtomicUsize::new(0);
            // The id is odd, unlike the address of a lock.
            NEXT.fetch_add(2, Ordering::Relaxed) | 1
        };
        #[cfg(not(debug_assertions))]
        let id = 0;
        Hold { _token: RankToken::acquire(rank, None, id), _thread: PhantomData }
    }
}

impl From<RankToken> for Hold {
    fn from(token: RankToken) -> Hold {
        Hold { _token: token, _thread: PhantomData }
    }
}

/// Returns whether this thread has a [`Hold`] of this rank; locks do not count. Always `false` in release builds, which
/// keep no list.
pub fn holds(rank: Rank) -> bool {
    #[cfg(debug_assertions)]
    return HELD.with_borrow(|held| held.iter().any(|held| held.rank == rank && held.id & 1 == 1));
    #[cfg(not(debug_assertions))]
    {
        let _ = rank;
        false
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
