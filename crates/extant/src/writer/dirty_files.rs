//! The list of dirty files, and writes in place that are not flushed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_base::Ino;
use extant_block::{BlockDevice, SharedDevice};
use extant_sync::{Mutex, Rank};

use super::Writer;
use crate::error::{FsError, Result};
use crate::node::{FileState, Node};

/// Default age at which [`Fs::tick`](crate::Fs::tick) writes back dirty data.
pub(crate) const EXPIRE: Duration = Duration::from_secs(30);
/// Number of files of each shard that the background writer takes before it looks for the oldest
/// again.
const FEW: usize = 64;

/// Number of shards of the list of dirty files.
const SHARDS: usize = 16;

/// The time at which a file became dirty, by the mount's clock, and its inode number.
type Place = (Duration, Ino);

/// Files with something to store, by the time at which they became dirty.
pub(crate) struct DirtyFiles {
    /// Age at which dirty data is written back unasked.
    expire: Duration,
    /// The lists, chosen by inode number.
    shards: Vec<Mutex<BTreeMap<Place, Arc<Node>>>>,
    /// Number of the last write of data in place, which no commit need ever follow.
    in_place: AtomicU64,
    /// Held over a flush: a thread that comes meanwhile waits, and may find that its data was
    /// covered.
    flushed: Mutex<Flushed>,
}

struct Flushed {
    /// Number of the last write in place that is durable.
    upto: u64,
    /// Whether a flush failed. Data written before it is in doubt, which no later flush changes.
    failed: bool,
}

impl DirtyFiles {
    pub(crate) fn new(expire: Duration) -> DirtyFiles {
        let shard = |_| Mutex::new(Rank::Leaf, BTreeMap::new());
        DirtyFiles {
            expire,
            shards: (0..SHARDS).map(shard).collect(),
            in_place: AtomicU64::new(0),
            flushed: Mutex::new(Rank::JournalState, Flushed { upto: 0, failed: false }),
        }
    }

    /// Records that data of the file was written in place.
    pub(crate) fn wrote_in_place(&self, node: &Node) {
        let number = self.in_place.fetch_add(1, Ordering::AcqRel) + 1;
        node.unsynced().in_place.fetch_max(number, Ordering::AcqRel);
    }

    /// Records that a commit which began after write `number` is durable, and that write with it.
    pub(crate) fn note_flushed(&self, number: u64) {
        let mut flushed = self.flushed.lock();
        flushed.upto = flushed.upto.max(number);
    }

    /// Returns the age at which dirty data is written back unasked.
    pub(crate) fn expire(&self) -> Duration {
        self.expire
    }

    /// Returns the number of the last write of data in place.
    pub(crate) fn last_in_place(&self) -> u64 {
        self.in_place.load(Ordering::Acquire)
    }

    fn shard(&self, ino: Ino) -> &Mutex<BTreeMap<Place, Arc<Node>>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub(crate) fn insert(&self, node: &Arc<Node>, file: &FileState, since: Duration) {
        let mut shard = self.shard(node.ino()).lock();
        // This is decided under the lock: a file is listed once, and not after its deletion has
        // begun.
        if file.listed_since().is_none() && !file.cache.has_ended() {
            file.set_listed_since(Some(since));
            shard.insert((since, node.ino()), Arc::clone(node));
        }
    }

    /// Takes a file off the list.
    pub(crate) fn remove(&self, node: &Node, file: &FileState) {
        let mut shard = self.shard(node.ino()).lock();
        let since = file.listed_since();
        file.set_listed_since(None);
        let taken = since.and_then(|since| shard.remove(&(since, node.ino())));
        drop(shard);
        // This may be the last reference, which frees the file's cache.
        drop(taken);
    }

    /// Returns the file that has been dirty longest, if it is dirty since `before`. The file stays
    /// on the list.
    pub(crate) fn oldest(&self, before: Duration) -> Option<Arc<Node>> {
        let first = |shard: &Mutex<BTreeMap<Place, Arc<Node>>>| {
            shard.lock().first_key_value().map(|(place, node)| (*place, Arc::clone(node)))
        };
        let oldest = self.shards.iter().filter_map(first).min_by_key(|(place, _)| *place)?;
        (oldest.0.0 <= before).then_some(oldest.1)
    }

    /// Returns some of the files that are dirty since `before`, the oldest of each shard among
    /// them, oldest first. The cost does not depend on the number of dirty files.
    pub(crate) fn oldest_some(&self, before: Duration) -> Vec<Arc<Node>> {
        let mut some = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let old = shard.iter().take(FEW).take_while(|((since, _), _)| *since <= before);
            some.extend(old.map(|(place, node)| (*place, Arc::clone(node))));
        }
        some.sort_unstable_by_key(|(place, _)| *place);
        some.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        self.shards.iter().all(|shard| shard.lock().is_empty())
    }

    /// Returns all dirty files, oldest first.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            all.extend(shard.iter().map(|(place, node)| (*place, Arc::clone(node))));
        }
        all.sort_unstable_by_key(|(place, _)| *place);
        all.into_iter().map(|(_, node)| node).collect()
    }
}

impl Writer {
    /// Makes the writes in place up to number `upto` durable, and perhaps later ones. If the device
    /// fails, the mount aborts for writers: its data is in doubt, and a later flush that succeeds
    /// would hide that.
    pub(crate) fn flush_in_place(&self, device: &SharedDevice, upto: u64) -> Result<()> {
        let files = self.dirty_files();
        let mut flushed = files.flushed.lock();
        if flushed.upto >= upto {
            return Ok(());
        }
        if flushed.failed {
            return Err(FsError::Aborted { errno: 5, why: "a flush of data failed before".into() });
        }
        let now = files.in_place.load(Ordering::Acquire);
        match device.flush() {
            Ok(()) => flushed.upto = now,
            Err(error) => {
                flushed.failed = true;
                drop(flushed);
                let error = FsError::from(error);
                self.abort(&error);
                return Err(error);
            }
        }
        drop(flushed);
        // A commit may have met a failing flush just before this one.
        self.check_running()
    }
}
