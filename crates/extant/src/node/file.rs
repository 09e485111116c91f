//! The state in memory of a file in use: its two sizes, its delayed blocks, its cache.
//!
//! # Invariants
//!
//! - S1. `size` is the size that readers see. The record of the inode has the stored size, which
//!   remains after a crash. It is at most `size`, and does not pass a dirty block.
//! - S2. Promised clusters are those with a delayed block: `delayed` and the allocator's promises
//!   change together, under `map`.
//! - S3. The cookie counts every change of a mapping's kind or address, under `map` exclusively or
//!   by a thread that holds readers and writeback off.
//! - S4. A file with dirty data or times to store is on one of the writer's lists of dirty files,
//!   which keep its node in memory; with dirty data it is on the list that is written back soon.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::BlockSize;
use extant_format::inode::InodeFlags;
use extant_format::superblock::Superblock;
use extant_format::time::Timestamp;
use extant_iomap::{Cache, Cookie, FileCache, MappedPages};
use extant_sync::{Mutex, Rank, RwLock};

use super::delayed::Delayed;
use super::{InodeData, Metadata, Node};
use crate::run::Window;

/// A regular file in use on a writable mount.
pub(crate) struct FileState {
    size: AtomicU64,
    cookie: AtomicU64,
    /// The delayed ranges; the lock, of rank `FileMap`, also covers changes of the tree by
    /// publication.
    pub(crate) map: RwLock<Delayed>,
    pub(crate) cache: FileCache,
    /// The file block that was placed last plus one, and its device block: a hint for its
    /// neighbours.
    placed: (AtomicU64, AtomicU64),
    /// Held while blocks are chosen: what several threads add at once lies in one place.
    pub(crate) placing: Mutex<()>,
    /// End in bytes of the blocks that were placed, as far as it is not behind the size: some of them
    /// may not be in the map yet.
    placed_end: AtomicU64,
    /// Free clusters behind the end that other files leave alone.
    pub(crate) window: Mutex<Option<Window>>,
    /// Time of the last write, packed, if it is not stored yet; 0 otherwise.
    stamp: AtomicU64,
    /// Time of the last read, packed, if it is not stored yet; 0 otherwise.
    access: AtomicU64,
    /// Number of writes that the stored change counter does not include.
    changes: AtomicU64,
    /// Time at which the file was listed as dirty, in nanoseconds plus one; 0 when it is not
    /// listed. Changed under the lock of the list.
    listed: AtomicU64,
    /// Whether it is listed among the files with nothing but times to store. Changed as `listed`,
    /// before it.
    listed_lazily: AtomicBool,
    /// Whether the file is in the queue of the read-ahead thread.
    pub(crate) awaits_thread: AtomicBool,
    /// Parts that programs have mapped, and their number.
    pub(crate) maps: Mutex<Vec<Arc<MappedPages>>>,
    pub(crate) map_count: AtomicUsize,
}

impl FileState {
    fn new(cluster_bits: u32, cache: &Arc<Cache>, size: u64) -> FileState {
        let delayed = Delayed::new(cluster_bits);
        FileState {
            size: AtomicU64::new(size),
            cookie: AtomicU64::new(1),
            map: RwLock::new(Rank::FileMap, delayed),
            cache: FileCache::new(cache),
            placed: (AtomicU64::new(0), AtomicU64::new(0)),
            placed_end: AtomicU64::new(0),
            placing: Mutex::with_order(Rank::Writeback, 1, ()),
            window: Mutex::new(Rank::Leaf, None),
            stamp: AtomicU64::new(0),
            access: AtomicU64::new(0),
            changes: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            listed_lazily: AtomicBool::new(false),
            awaits_thread: AtomicBool::new(false),
            maps: Mutex::new(Rank::Leaf, Vec::new()),
            map_count: AtomicUsize::new(0),
        }
    }

    /// Returns the size that readers see.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size that readers see. The caller holds the content lock exclusively, or shared and
    /// keeps writeback out.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
        if size < self.placed_end() {
            self.placed_end.fetch_min(size, Ordering::Relaxed);
        }
    }

    pub(crate) fn cookie(&self) -> Cookie {
        Cookie(self.cookie.load(Ordering::Acquire))
    }

    /// Records that a mapping has changed (S3).
    pub(crate) fn mapping_changed(&self) {
        self.cookie.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the end in bytes of the blocks that were placed, as a hint.
    pub(crate) fn placed_end(&self) -> u64 {
        self.placed_end.load(Ordering::Relaxed)
    }

    /// Records that blocks of the file from `at` on have been placed at `device`, and that they are to
    /// hold its bytes up to `end`; 0 for blocks that are only kept ready.
    pub(crate) fn note_placed(&self, at: u64, end: u64, device: u64) {
        self.placed_end.fetch_max(end, Ordering::Relaxed);
        self.placed.1.store(device, Ordering::Relaxed);
        self.placed.0.store(at + 1, Ordering::Relaxed);
    }

    /// Returns the file block that was placed last and its device block, as a hint.
    pub(crate) fn placed_last(&self) -> Option<(u64, u64)> {
        let at = self.placed.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some((at, self.placed.1.load(Ordering::Relaxed)))
    }

    /// Returns the time at which the file was listed as dirty.
    pub(crate) fn listed_since(&self) -> Option<Duration> {
        let listed = self.listed.load(Ordering::Acquire);
        listed.checked_sub(1).map(Duration::from_nanos)
    }

    /// Returns whether the file is listed with nothing but times to store.
    pub(crate) fn is_listed_lazily(&self) -> bool {
        self.listed_lazily.load(Ordering::Acquire)
    }

    /// Sets the time at which the file was listed, and whether for its times alone. The caller
    /// holds the lock of the list.
    pub(crate) fn set_listed_since(&self, since: Option<Duration>, lazily: bool) {
        self.listed_lazily.store(lazily, Ordering::Release);
        let nanos = |since: Duration| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1);
        self.listed.store(since.map_or(0, |since| nanos(since) + 1), Ordering::Release);
    }

    /// Returns whether data or times of the file are only in memory.
    pub(crate) fn has_to_store(&self) -> bool {
        self.has_contents_to_store() || self.has_times()
    }

    /// Returns whether data of the file is only in memory, or may be at any time.
    pub(crate) fn has_contents_to_store(&self) -> bool {
        self.cache.is_dirty() || self.is_mapped_writable()
    }

    /// Records the time of a write, which is stored with the inode's next change.
    pub(crate) fn touch(&self, now: Timestamp) {
        self.changes.fetch_add(1, Ordering::AcqRel);
        self.stamp.store(pack(now), Ordering::Release);
    }

    /// Records the time of a read, which is stored with the inode's next change.
    pub(crate) fn note_access(&self, now: Timestamp) {
        self.access.store(pack(now), Ordering::Release);
    }

    /// Returns the time of the last read, if it is not stored yet.
    pub(crate) fn access(&self) -> Option<Timestamp> {
        unpack(self.access.load(Ordering::Acquire))
    }

    /// Returns whether times are only in memory.
    pub(crate) fn has_times(&self) -> bool {
        self.stamp().is_some() || self.access().is_some()
    }

    /// Returns the time of the last write, if it is not stored yet.
    pub(crate) fn stamp(&self) -> Option<Timestamp> {
        unpack(self.stamp.load(Ordering::Acquire))
    }

    /// Puts times that are not stored yet into the inode, which is about to be stored.
    pub(crate) fn store_stamp(&self, data: &mut InodeData) {
        let changes = self.changes.swap(0, Ordering::AcqRel);
        if !data.record.flags.contains(InodeFlags::EA_INODE) {
            data.record.version = data.record.version.wrapping_add(changes);
        }
        if let Some(now) = unpack(self.access.swap(0, Ordering::AcqRel)) {
            data.record.atime = now;
        }
        if let Some(now) = unpack(self.stamp.swap(0, Ordering::AcqRel)) {
            data.record.mtime = now;
            data.record.ctime = now;
        }
    }

    /// Drops times that are not stored yet, because times were set explicitly.
    pub(crate) fn drop_stamp(&self) {
        self.stamp.store(0, Ordering::Release);
    }
}

/// Times of a file that are only in memory.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Times {
    stamp: Option<Timestamp>,
    access: Option<Timestamp>,
    changes: u64,
}

/// Number of bits for nanoseconds in a packed time; they are below 10^9.
const NANOS_BITS: u32 = 30;
/// Offset added to seconds, so that times before 1970 are positive; the range of inodes fits in 34
/// bits.
const EPOCH_SHIFT: i64 = 1 << 31;

/// Packs a time into one word, which is never 0.
fn pack(time: Timestamp) -> u64 {
    let seconds = time.seconds.clamp(-EPOCH_SHIFT, (1 << 34) - EPOCH_SHIFT - 1) + EPOCH_SHIFT;
    ((seconds as u64) << NANOS_BITS | u64::from(time.nanos)).max(1)
}

fn unpack(word: u64) -> Option<Timestamp> {
    let nanos = (word & ((1 << NANOS_BITS) - 1)) as u32;
    let seconds = (word >> NANOS_BITS) as i64 - EPOCH_SHIFT;
    (word != 0).then_some(Timestamp { seconds, nanos })
}

impl Node {
    /// Returns the state of a regular file on a writable mount, made when it is first needed.
    pub(crate) fn file(&self, superblock: &Superblock, cache: &Arc<Cache>) -> &FileState {
        let make = || {
            let size = self.with(|data| data.record.size);
            Box::new(FileState::new(superblock.cluster_bits(), cache, size))
        };
        self.file_state().get_or_init(make)
    }

    /// Returns the [`file`](Self::file) state without waiting. The caller holds the content lock.
    pub(crate) fn try_file(
        &self,
        superblock: &Superblock,
        cache: &Arc<Cache>,
    ) -> Option<&FileState> {
        if let Some(file) = self.file_in_use() {
            return Some(file);
        }
        let size = self.try_with(|data| data.record.size)?;
        let make = || Box::new(FileState::new(superblock.cluster_bits(), cache, size));
        Some(self.file_state().get_or_init(make))
    }

    /// Returns the state of a regular file, if it is in use.
    pub(crate) fn file_in_use(&self) -> Option<&FileState> {
        self.file_state().get().map(|file| &**file)
    }

    /// Changes the map, while no thread reads it: a thread that decodes a part of the tree caches
    /// it, and must not cache an earlier version. The caller holds the content lock exclusively and
    /// holds writeback off, and the transaction does not end meanwhile.
    pub(crate) fn change_map<R>(&self, change: impl FnOnce() -> R) -> R {
        let Some(file) = self.file_in_use() else { return change() };
        let _map = file.map.write();
        let result = change();
        file.mapping_changed();
        result
    }

    /// Returns the size that readers see.
    pub(crate) fn size(&self) -> u64 {
        match self.file_in_use() {
            Some(file) => file.size(),
            None => self.with(|data| data.record.size),
        }
    }

    /// Returns the current version for callers, including changes that are only in memory.
    pub(crate) fn seen(&self) -> Arc<InodeData> {
        let (mut data, times) = {
            let data = self.data.read();
            (Arc::clone(&data), self.times())
        };
        let Some(file) = self.file_in_use() else { return data };
        let size = file.size();
        if size != data.record.size || times != Times::default() {
            let record = &mut Arc::make_mut(&mut data).record;
            record.size = size;
            record.mtime = times.stamp.unwrap_or(record.mtime);
            record.ctime = times.stamp.unwrap_or(record.ctime);
            record.atime = times.access.unwrap_or(record.atime);
            record.version = record.version.wrapping_add(times.changes);
        }
        data
    }

    /// Returns times and changes that are only in memory. A caller that combines them with the
    /// inode holds its lock, under which they are stored, so that none is counted twice or missed.
    fn times(&self) -> Times {
        self.file_in_use().map_or(Times::default(), |file| Times {
            stamp: file.stamp(),
            access: file.access(),
            changes: file.changes.load(Ordering::Acquire),
        })
    }

    /// Returns the attributes, including changes that are only in memory.
    pub(crate) fn metadata(&self, block_size: BlockSize) -> Metadata {
        if self.file_in_use().is_none() {
            return self.with(Metadata::of);
        }
        let (metadata, times) = self.with(|data| (Metadata::of(data), self.times()));
        let delayed = || self.file_in_use().map_or(0, |file| file.map.read().blocks());
        self.metadata_with(metadata, times, delayed(), block_size)
    }

    /// Returns the [`metadata`](Self::metadata), unless another thread is changing the inode or its
    /// map.
    pub(crate) fn try_metadata(&self, block_size: BlockSize) -> Option<Metadata> {
        let (metadata, times) = self.try_with(|data| (Metadata::of(data), self.times()))?;
        let delayed = match self.file_in_use() {
            Some(file) => file.map.try_read()?.blocks(),
            None => 0,
        };
        Some(self.metadata_with(metadata, times, delayed, block_size))
    }

    fn metadata_with(
        &self,
        mut metadata: Metadata,
        times: Times,
        delayed: u64,
        block_size: BlockSize,
    ) -> Metadata {
        let Some(file) = self.file_in_use() else { return metadata };
        metadata.size = file.size();
        metadata.mtime = times.stamp.unwrap_or(metadata.mtime);
        metadata.ctime = times.stamp.unwrap_or(metadata.ctime);
        metadata.atime = times.access.unwrap_or(metadata.atime);
        metadata.version = metadata.version.wrapping_add(times.changes);
        let sectors = delayed << (block_size.log2() - 9);
        metadata.blocks = metadata.blocks.saturating_add(sectors);
        metadata
    }
}

impl FileState {
    /// Returns whether programs have parts of the file mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.map_count.load(Ordering::Acquire) > 0
    }

    /// Returns whether stores through a map may come at any time.
    pub(crate) fn is_mapped_writable(&self) -> bool {
        self.is_mapped() && self.maps.lock().iter().any(|pages| pages.is_writable())
    }

    pub(crate) fn mapped(&self) -> Vec<Arc<MappedPages>> {
        if self.is_mapped() { self.maps.lock().clone() } else { Vec::new() }
    }

    pub(crate) fn add_map(&self, pages: &Arc<MappedPages>) {
        self.maps.lock().push(Arc::clone(pages));
        self.map_count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn remove_map(&self, pages: &Arc<MappedPages>) {
        self.maps.lock().retain(|other| !Arc::ptr_eq(other, pages));
        self.map_count.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The place of a file's state in its node.
pub(crate) type FileSlot = OnceLock<Box<FileState>>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_that_inodes_can_say_survive_packing() {
        for seconds in [-(1 << 31), -1, 0, 1, 1_795_274_585, (1 << 34) - (1 << 31) - 1] {
            for nanos in [0, 1, 999_999_999] {
                let time = Timestamp { seconds, nanos };
                if pack(time) > 1 {
                    assert_eq!(unpack(pack(time)), Some(time));
                }
            }
        }
        assert_eq!(unpack(0), None);
    }
}
