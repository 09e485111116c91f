//! The journal of a writable mount, with the state that every change updates: the inodes that the
//! running transaction has to encode, the time, and whether changes are still possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use extant_base::{Ino, Prng};
use extant_format::time::Timestamp;
use extant_jbd2::{AbortReason, Journal};
use extant_sync::{CachePadded, Clock, Mutex, Rank};

use crate::error::{FsError, Result};
use crate::fast::FastLog;
use crate::logged::Logged;
use crate::node::Node;
use crate::slot::Slot;

/// Shards of the dirty list; a power of two.
const SHARDS: usize = 16;

/// Number of counters of one kind; a power of two.
const LANES: usize = 16;

/// A node that a transaction changed, with the place of its record.
pub(crate) struct DirtyNode {
    pub(crate) node: Arc<Node>,
    pub(crate) slot: Arc<Slot>,
    /// Offset of the record in its block.
    pub(crate) offset: usize,
}

/// The nodes that the running transaction changed, each once.
pub(crate) struct DirtyNodes {
    shards: Vec<Mutex<Vec<DirtyNode>>>,
}

impl DirtyNodes {
    pub(crate) fn new() -> DirtyNodes {
        DirtyNodes { shards: (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, Vec::new())).collect() }
    }

    pub(crate) fn push(&self, dirty: DirtyNode) {
        let mut shard = self.shard(dirty.node.ino()).lock();
        // More entries than that do not fit into memory; `replace` finds none there.
        let at = u32::try_from(shard.len()).unwrap_or(u32::MAX);
        dirty.node.dirty_at.store(at, Ordering::Release);
        shard.push(dirty);
    }

    /// Puts `node` into the place of `earlier`, a node of a deleted inode that had the same number
    /// and was changed by the running transaction. Returns whether `earlier` was on the list.
    pub(crate) fn replace(&self, earlier: &Arc<Node>, node: &Arc<Node>) -> bool {
        let mut shard = self.shard(node.ino()).lock();
        let at = earlier.dirty_at.load(Ordering::Acquire);
        let dirty = shard.get_mut(at as usize);
        let Some(dirty) = dirty.filter(|dirty| Arc::ptr_eq(&dirty.node, earlier)) else {
            return false;
        };
        node.dirty_at.store(at, Ordering::Release);
        dirty.node = Arc::clone(node);
        true
    }

    fn shard(&self, ino: Ino) -> &Mutex<Vec<DirtyNode>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Takes all nodes off the list.
    pub(crate) fn take(&self) -> impl Iterator<Item = DirtyNode> + '_ {
        self.shards.iter().flat_map(|shard| std::mem::take(&mut *shard.lock()))
    }
}

/// The journal and what goes with it.
pub(crate) struct Log {
    journal: Arc<Journal>,
    dirty: DirtyNodes,
    fast: FastLog,
    logged: Logged,
    clock: Arc<dyn Clock>,
    /// State of the random numbers; each number advances it.
    random: AtomicU64,
    /// Whether the mount has ended.
    closed: AtomicBool,
    /// Whether the mount was ended abruptly: see [`Fs::shutdown`](crate::Fs::shutdown).
    shut_down: AtomicBool,
    inode_updates: [CachePadded<AtomicU64>; LANES],
}

impl Log {
    /// Creates the log; `seed` is the start of the random numbers.
    pub(crate) fn new(
        journal: Arc<Journal>,
        logged: Logged,
        clock: Arc<dyn Clock>,
        seed: u64,
    ) -> Log {
        Log {
            fast: FastLog::new(journal.makes_fast_commits()),
            journal,
            logged,
            dirty: DirtyNodes::new(),
            clock,
            random: AtomicU64::new(seed),
            closed: AtomicBool::new(false),
            shut_down: AtomicBool::new(false),
            inode_updates: Default::default(),
        }
    }

    pub(crate) fn journal(&self) -> &Journal {
        &self.journal
    }

    pub(crate) fn clock(&self) -> &dyn Clock {
        &*self.clock
    }

    pub(crate) fn dirty_nodes(&self) -> &DirtyNodes {
        &self.dirty
    }

    /// Returns the changes that a fast commit would describe.
    pub(crate) fn fast(&self) -> &FastLog {
        &self.fast
    }

    /// Returns the contents of files that are in the journal.
    pub(crate) fn logged(&self) -> &Logged {
        &self.logged
    }

    /// Returns the time of day for time stamps.
    pub(crate) fn now(&self) -> Timestamp {
        let (seconds, nanos) = self.clock.now();
        Timestamp { seconds, nanos }
    }

    /// Returns random bits, for generation numbers and the spread of directories; reproducible from
    /// the mount's seed.
    pub(crate) fn random(&self) -> u64 {
        // Each number has a generator of its own: no lock, and equal results for equal seeds.
        Prng::new(self.random.fetch_add(1, Ordering::Relaxed)).next_u64()
    }

    /// Ends the mount: no change begins from now on. What has begun and is counted, the caller sees
    /// afterwards.
    pub(crate) fn close(&self) {
        self.closed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    pub(crate) fn count_update(&self, ino: Ino) {
        let lane = &self.inode_updates[ino.0 as usize % LANES];
        lane.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes of inodes so far.
    pub(crate) fn inode_updates(&self) -> u64 {
        self.inode_updates.iter().map(|lane| lane.load(Ordering::Relaxed)).sum()
    }

    /// Aborts the journal: nothing of the open transaction reaches the device.
    pub(crate) fn abort(&self, error: &FsError) {
        self.journal.abort(error.errno(), &error.with_causes());
    }

    /// Ends all writing like a power cut.
    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, Ordering::Release);
        self.journal.cut("the file system was shut down");
    }

    /// Ends all writing like a power cut, because another host has the file system: not even the error
    /// is stored, in what is that host's now.
    pub(crate) fn leave_to_other(&self, error: &FsError) {
        self.shut_down.store(true, Ordering::Release);
        self.journal.cut(&error.with_causes());
    }

    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(Ordering::Acquire)
    }

    /// Fails after the end of the mount.
    pub(crate) fn check_open(&self) -> Result<()> {
        if self.is_closed() { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Fails after an abort.
    pub(crate) fn check_running(&self) -> Result<()> {
        match self.journal.abort_reason() {
            None => Ok(()),
            Some(reason) => {
                let AbortReason { errno, why } = reason;
                Err(FsError::Aborted { errno: *errno, why: why.as_str().into() })
            }
        }
    }
}
