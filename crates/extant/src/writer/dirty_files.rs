//! The list of dirty files, and writes in place that are not flushed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
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

/// The files of a shard.
#[derive(Default)]
struct Shard {
    /// Those with data to write, or all.
    soon: BTreeMap<Place, Arc<Node>>,
    /// Those that have only times to store, where these may wait (`lazytime`).
    late: BTreeMap<Place, Arc<Node>>,
}

impl Shard {
    fn list(&mut self, lazily: bool) -> &mut BTreeMap<Place, Arc<Node>> {
        if lazily { &mut self.late } else { &mut self.soon }
    }
}

/// Files with something to store, by the time at which they became dirty.
pub(crate) struct DirtyFiles {
    /// Age at which dirty data is written back unasked.
    expire: Duration,
    /// Whether times alone may wait.
    lazy: bool,
    /// The lists, chosen by inode number.
    shards: Vec<Mutex<Shard>>,
    /// Number of files that have only times to store.
    late: AtomicUsize,
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
    pub(crate) fn new(expire: Duration, lazy: bool) -> DirtyFiles {
        let shard = |_| Mutex::new(Rank::Leaf, Shard::default());
        DirtyFiles {
            expire,
            lazy,
            late: AtomicUsize::new(0),
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

    /// Returns whether times alone are kept in memory.
    pub(crate) fn is_lazy(&self) -> bool {
        self.lazy
    }

    /// Returns the number of files that have only times to store.
    pub(crate) fn times_count(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }

    /// Returns some of the files that have had only times to store since `before`, the oldest of
    /// each shard among them, oldest first.
    pub(crate) fn times_of(&self, before: Duration) -> Vec<Arc<Node>> {
        self.some(before, |shard| &shard.late)
    }

    /// Returns the number of the last write of data in place.
    pub(crate) fn last_in_place(&self) -> u64 {
        self.in_place.load(Ordering::Acquire)
    }

    fn shard(&self, ino: Ino) -> &Mutex<Shard> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// Lists a file; `lazily` says that it had nothing but times to store, and that these may wait.
    /// A file that is listed so and has more to store comes to the others: who makes it dirty looks
    /// afterwards whether and how it is listed.
    pub(crate) fn insert(&self, node: &Arc<Node>, file: &FileState, since: Duration, lazily: bool) {
        let mut shard = self.shard(node.ino()).lock();
        // This is decided under the lock: a file is listed once, and not after its deletion has
        // begun.
        if file.cache.has_ended() {
            return;
        }
        match file.listed_since() {
            None => {}
            Some(before) if file.is_listed_lazily() && !lazily => {
                shard.late.remove(&(before, node.ino()));
                self.late.fetch_sub(1, Ordering::Relaxed);
            }
            Some(_) => return,
        }
        file.set_listed_since(Some(since), lazily);
        shard.list(lazily).insert((since, node.ino()), Arc::clone(node));
        self.late.fetch_add(usize::from(lazily), Ordering::Relaxed);
    }

    /// Takes a file off the list.
    pub(crate) fn remove(&self, node: &Node, file: &FileState) {
        let mut shard = self.shard(node.ino()).lock();
        let (since, lazily) = (file.listed_since(), file.is_listed_lazily());
        file.set_listed_since(None, false);
        let taken = since.and_then(|since| shard.list(lazily).remove(&(since, node.ino())));
        self.late.fetch_sub(usize::from(lazily && taken.is_some()), Ordering::Relaxed);
        drop(shard);
        // This may be the last reference, which frees the file's cache.
        drop(taken);
    }

    /// Returns the file that has been dirty longest, if it is dirty since `before`. The file stays
    /// on the list. Files that have only times to store, which may wait, are not looked at.
    pub(crate) fn oldest(&self, before: Duration) -> Option<Arc<Node>> {
        let first = |shard: &Mutex<Shard>| {
            shard.lock().soon.first_key_value().map(|(place, node)| (*place, Arc::clone(node)))
        };
        let oldest = self.shards.iter().filter_map(first).min_by_key(|(place, _)| *place)?;
        (oldest.0.0 <= before).then_some(oldest.1)
    }

    /// Returns some of the files that are dirty since `before`, the oldest of each shard among
    /// them, oldest first. The cost does not depend on the number of dirty files. Files that have
    /// only times to store, which may wait, are left out.
    pub(crate) fn oldest_some(&self, before: Duration) -> Vec<Arc<Node>> {
        self.some(before, |shard| &shard.soon)
    }

    fn some(
        &self,
        before: Duration,
        list: impl Fn(&Shard) -> &BTreeMap<Place, Arc<Node>>,
    ) -> Vec<Arc<Node>> {
        let mut some = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let old = list(&shard).iter().take(FEW).take_while(|((since, _), _)| *since <= before);
            some.extend(old.map(|(place, node)| (*place, Arc::clone(node))));
        }
        some.sort_unstable_by_key(|(place, _)| *place);
        some.into_iter().map(|(_, node)| node).collect()
    }

    /// Returns whether the list is empty.
    pub(crate) fn is_empty(&self) -> bool {
        let is_empty = |shard: &Shard| shard.soon.is_empty() && shard.late.is_empty();
        self.shards.iter().all(|shard| is_empty(&shard.lock()))
    }

    /// Returns all dirty files, oldest first, also those that have only times to store.
    pub(crate) fn all(&self) -> Vec<Arc<Node>> {
        let mut all = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            let files = shard.soon.iter().chain(&shard.late);
            all.extend(files.map(|(place, node)| (*place, Arc::clone(node))));
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
