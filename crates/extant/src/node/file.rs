//! What a file has in memory while it is used: its two sizes, its delayed blocks, its cache.
//!
//! # Invariants
//!
//! - S1. `size` is what readers see. The record of the inode has the stored size: what a crash
//!   leaves. Stored is at most `size`, and passes no block that was dirty before it.
//! - S2. Promised clusters are those with a delayed block: `delayed` and the allocator's promises
//!   change together, under `map`.
//! - S3. The cookie counts every change of a mapping's kind or address, under `map` exclusively or
//!   by whoever keeps readers and writeback out.
//! - S4. A file with dirty data or times to store is on the writer's list of dirty files, which keeps
//!   its node in memory.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_base::BlockSize;
use extant_format::superblock::Superblock;
use extant_format::time::Timestamp;
use extant_iomap::{Cache, Cookie, FileCache, MappedPages};
use extant_sync::{Mutex, Rank, RwLock};

use super::delayed::Delayed;
use super::{InodeData, Metadata, Node};
use crate::run::{Run, Window};

/// Blocks that writeback has taken in memory for a range that starts at some file block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pinned {
    /// What was pinned; `None` when the blocks belong to a cluster that the file has already.
    pub(crate) run: Option<Run>,
    /// First file block behind it, and the device block of its cluster.
    pub(crate) last: (u64, u64),
}

/// A regular file in use on a writable mount.
pub(crate) struct FileState {
    size: AtomicU64,
    cookie: AtomicU64,
    /// Rank `FileMap`: delayed ranges, and the tree while a publication changes it.
    pub(crate) map: RwLock<Delayed>,
    /// Placements of the batch under writeback, by first file block.
    pub(crate) pins: Mutex<BTreeMap<u64, Pinned>>,
    pub(crate) cache: FileCache,
    /// The file block that was placed last, and one more; and where. A hint for its neighbours.
    placed: (AtomicU64, AtomicU64),
    /// Free clusters behind them that others leave to this file.
    pub(crate) window: Mutex<Option<Window>>,
    /// When it was written to, as far as that is not stored: packed; 0 for not at all.
    stamp: AtomicU64,
    /// Since when it is on the list of dirty files, in nanoseconds and one more; 0 when it is not.
    /// Changed under the lock of the list.
    listed: AtomicU64,
    /// Whether the file is in the queue of the thread that reads ahead.
    pub(crate) awaits_thread: AtomicBool,
    /// Parts that programs have mapped, and how many.
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
            pins: Mutex::new(Rank::Leaf, BTreeMap::new()),
            cache: FileCache::new(cache),
            placed: (AtomicU64::new(0), AtomicU64::new(0)),
            window: Mutex::new(Rank::Leaf, None),
            stamp: AtomicU64::new(0),
            listed: AtomicU64::new(0),
            awaits_thread: AtomicBool::new(false),
            maps: Mutex::new(Rank::Leaf, Vec::new()),
            map_count: AtomicUsize::new(0),
        }
    }

    /// The size that readers see.
    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Sets the size that readers see; the content lock is held exclusively.
    pub(crate) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    pub(crate) fn cookie(&self) -> Cookie {
        Cookie(self.cookie.load(Ordering::Acquire))
    }

    /// A mapping has changed (S3).
    pub(crate) fn mapping_changed(&self) {
        self.cookie.fetch_add(1, Ordering::AcqRel);
    }

    /// Blocks of the file from `at` on have been given a place.
    pub(crate) fn note_placed(&self, at: u64, device: u64) {
        self.placed.1.store(device, Ordering::Relaxed);
        self.placed.0.store(at + 1, Ordering::Relaxed);
    }

    /// A file block and where it is, as far as known: a hint.
    pub(crate) fn placed_last(&self) -> Option<(u64, u64)> {
        let at = self.placed.0.load(Ordering::Relaxed).checked_sub(1)?;
        Some((at, self.placed.1.load(Ordering::Relaxed)))
    }

    /// Since when it is on the list of dirty files.
    pub(crate) fn listed_since(&self) -> Option<Duration> {
        let listed = self.listed.load(Ordering::Acquire);
        listed.checked_sub(1).map(Duration::from_nanos)
    }

    /// Only for whoever holds the lock of the list.
    pub(crate) fn set_listed_since(&self, since: Option<Duration>) {
        let nanos = |since: Duration| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX - 1);
        self.listed.store(since.map_or(0, |since| nanos(since) + 1), Ordering::Release);
    }

    /// Whether something of the file is only in memory.
    pub(crate) fn has_to_store(&self) -> bool {
        self.cache.is_dirty() || self.stamp().is_some() || self.is_mapped_writable()
    }

    /// Notes that the file was written to at this time, which will be stored with the inode's next change.
    pub(crate) fn touch(&self, now: Timestamp) {
        self.stamp.store(pack(now), Ordering::Release);
    }

    /// When it was written to, if that is not stored yet.
    pub(crate) fn stamp(&self) -> Option<Timestamp> {
        unpack(self.stamp.load(Ordering::Acquire))
    }

    /// Puts times that are not stored yet into the inode that is about to be.
    pub(crate) fn store_stamp(&self, data: &mut InodeData) {
        if let Some(now) = unpack(self.stamp.swap(0, Ordering::AcqRel)) {
            data.record.mtime = now;
            data.record.ctime = now;
        }
    }

    /// Times were set by other means: those not stored yet do not count any more.
    pub(crate) fn drop_stamp(&self) {
        self.stamp.store(0, Ordering::Release);
    }
}

/// Bits of a packed time for nanoseconds, which are below 10^9.
const NANOS_BITS: u32 = 30;
/// Added to seconds, so that those before 1970 are positive; what inodes can say fits in 34 bits.
const EPOCH_SHIFT: i64 = 1 << 31;

/// A time in one word, never 0.
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
    /// The state of a regular file on a writable mount, made when it is first needed.
    pub(crate) fn file(&self, superblock: &Superblock, cache: &Arc<Cache>) -> &FileState {
        let make = || {
            let size = self.with(|data| data.record.size);
            Box::new(FileState::new(superblock.cluster_bits(), cache, size))
        };
        self.file_state().get_or_init(make)
    }

    /// [`file`](Self::file) for who may not wait, and holds the content lock.
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

    /// The state of a regular file in use.
    pub(crate) fn file_in_use(&self) -> Option<&FileState> {
        self.file_state().get().map(|file| &**file)
    }

    /// Changes the map, while nobody looks at it: whoever decodes a part of the tree keeps it for others,
    /// and must not keep what was there before. The caller holds the content lock exclusively and
    /// keeps writeback out, and the transaction does not end within.
    pub(crate) fn change_map<R>(&self, change: impl FnOnce() -> R) -> R {
        let Some(file) = self.file_in_use() else { return change() };
        let _map = file.map.write();
        let result = change();
        file.mapping_changed();
        result
    }

    /// The size that readers see.
    pub(crate) fn size(&self) -> u64 {
        match self.file_in_use() {
            Some(file) => file.size(),
            None => self.with(|data| data.record.size),
        }
    }

    /// The current version as callers are to see it: with what is only in memory.
    pub(crate) fn seen(&self) -> Arc<InodeData> {
        let mut data = self.data();
        let Some(file) = self.file_in_use() else { return data };
        let (size, stamp) = (file.size(), file.stamp());
        if size != data.record.size || stamp.is_some() {
            let changed = Arc::make_mut(&mut data);
            changed.record.size = size;
            if let Some(now) = stamp {
                changed.record.mtime = now;
                changed.record.ctime = now;
            }
        }
        data
    }

    /// Attributes with what is only in memory.
    pub(crate) fn metadata(&self, block_size: BlockSize) -> Metadata {
        let mut metadata = self.with(Metadata::of);
        let Some(file) = self.file_in_use() else { return metadata };
        metadata.size = file.size();
        if let Some(now) = file.stamp() {
            metadata.mtime = now;
            metadata.ctime = now;
        }
        let delayed = file.map.read().blocks();
        let sectors = delayed << (block_size.log2() - 9);
        metadata.blocks = metadata.blocks.saturating_add(sectors);
        metadata
    }
}

impl FileState {
    /// Whether programs have parts of the file mapped.
    pub(crate) fn is_mapped(&self) -> bool {
        self.map_count.load(Ordering::Acquire) > 0
    }

    /// Whether stores may come at any time.
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
