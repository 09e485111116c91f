//! The cache shared by all files of a file system: budget, eviction, dirty limits.
//!
//! # Invariants
//!
//! - C1. A folio is in the index of exactly one file, or detached and pinned, or free.
//! - C2. A folio is evicted only without pins, without dirty and without writeback units, and while
//!   its file's index is locked: a folio found in the index can be pinned.
//! - C3. State bits of free memory are clear.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use extant_sync::{Condvar, Mutex, Rank};

use crate::arena::Arena;
use crate::buddy::Buddy;
use crate::frames::{Frames, Pin};
use crate::hints::Hints;
use crate::index::FileInner;
use crate::states::{State, States};
use crate::stats::{CacheStats, Counters};

/// Bytes of a page, as a power of two.
pub(crate) const PAGE_LOG2: u32 = 12;
/// Pages of the largest folio, as a power of two: 2 MiB.
pub(crate) const ORDER_MAX: u8 = 9;
/// Shards of the table of files.
const SHARDS: usize = 16;
/// Size of the smallest cache in bytes: below, a folio of each size would not fit.
const BYTES_MIN: u64 = 1 << 20;

/// Smallest number of the largest folios that fit in a cache.
const FOLIOS_MIN: u32 = 8;
/// Number of pages evicted at once, and examined for that, for callers that may not wait.
const EVICT_SHORT: u64 = 64;
const EVICT_SHORT_LOOK: u64 = 8192;

/// Options of a cache: its size, and how it behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheOptions {
    /// Bytes of file contents that may be in memory; rounded up to 2 MiB, at least that.
    pub bytes: u64,
    /// Size of a block of the file system, as a power of two: 10 to 16.
    pub block_log2: u32,
    /// Largest folio, in bytes, as a power of two: 12 to 21; less in a cache of less than 16 MiB.
    pub folio_max_log2: u32,
    /// Number of dirty bytes above which the background writer works; 0 for five eighths of
    /// `bytes`, or of `dirty_max` if that is given.
    pub dirty_background: u64,
    /// Number of dirty bytes above which writers write back themselves; 0 for four fifths of
    /// `bytes`, the maximum.
    pub dirty_max: u64,
    /// Whether zeroing writes dirty data back first, as kernels before 6.13 did; for tests.
    pub flush_before_zero: bool,
    /// Whether writeback publishes before it writes the data; for tests.
    pub publish_before_data: bool,
    /// Number of threads that encrypt and write one batch of writeback, the caller among them; 1 for no others, which
    /// keeps the order of writes.
    pub stage_threads: usize,
}

impl CacheOptions {
    /// Returns the options of a cache of `bytes` for blocks of `2^block_log2` bytes.
    pub fn new(bytes: u64, block_log2: u32) -> CacheOptions {
        CacheOptions {
            bytes,
            block_log2,
            folio_max_log2: PAGE_LOG2 + u32::from(ORDER_MAX),
            dirty_background: 0,
            dirty_max: 0,
            flush_before_zero: false,
            publish_before_data: false,
            stage_threads: 1,
        }
    }
}

/// Error of the cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The whole cache is pinned or dirty, and nothing could be written back.
    #[error(
        "no room in the page cache: {dirty} of {bytes} bytes are dirty; sync, or mount with a larger cache"
    )]
    Full {
        /// Size of the cache in bytes.
        bytes: u64,
        /// Number of dirty bytes.
        dirty: u64,
    },
    /// The system has no memory for the cache.
    #[error("no memory for a page cache of {bytes} bytes: {why}")]
    Memory {
        /// Size of the cache in bytes.
        bytes: u64,
        /// Message of the system.
        why: String,
    },
}

/// Batches of writeback of all files.
#[derive(Default)]
struct Batches {
    running: u32,
    ended: u64,
}

/// The page cache of one file system.
pub struct Cache {
    pub(crate) arena: Arena,
    pub(crate) buddy: Buddy,
    pub(crate) states: States,
    pub(crate) frames: Frames,
    pub(crate) hints: Hints,
    pub(crate) options: CacheOptions,
    pub(crate) unit_log2: u32,
    /// Smallest folio: a block.
    pub(crate) order_min: u8,
    pub(crate) order_max: u8,
    pages: u32,
    dirty: AtomicU64,
    /// Pages that programs have mapped.
    mapped: AtomicU64,
    next_file: AtomicU64,
    files: Vec<Mutex<HashMap<u64, Weak<FileInner>>>>,
    /// Folios that left their file while pinned.
    limbo: Mutex<Vec<(u32, u8)>>,
    limbo_len: AtomicU32,
    hand: AtomicU32,
    batches: Mutex<Batches>,
    batch_ended: Condvar,
    pub(crate) counters: Counters,
}

impl Cache {
    /// Creates an empty cache. Memory is taken from the system as it fills.
    ///
    /// # Errors
    ///
    /// [`CacheError::Memory`].
    pub fn new(options: CacheOptions) -> Result<Arc<Cache>, CacheError> {
        let memory = |why: String| CacheError::Memory { bytes: options.bytes, why };
        let bytes = options.bytes.max(BYTES_MIN);
        let arena = Arena::new(bytes).map_err(|error| memory(error.to_string()))?;
        let pages = u32::try_from(arena.len() >> PAGE_LOG2)
            .map_err(|_| memory("more than 16 TiB".to_owned()))?;
        let block_log2 = options.block_log2.clamp(10, 16);
        let unit_log2 = block_log2.min(PAGE_LOG2);
        let order_min = block_log2.saturating_sub(PAGE_LOG2) as u8;
        let order_max = options.folio_max_log2.clamp(PAGE_LOG2, PAGE_LOG2 + u32::from(ORDER_MAX));
        // With only a few folios in the whole cache, one pinned folio would stop all other users.
        let share = (pages / FOLIOS_MIN).max(1).ilog2() as u8;
        let order_max = ((order_max - PAGE_LOG2) as u8).min(share).max(order_min);
        let mut options = CacheOptions { bytes: arena.len(), block_log2, ..options };
        // A kernel allows a fifth of all memory to be dirty; this cache is all the memory for
        // contents. The rest is for readers, and for whole folios.
        let most = options.bytes / 5 * 4;
        if options.dirty_background == 0 {
            let of = if options.dirty_max == 0 { options.bytes } else { options.dirty_max };
            options.dirty_background = of / 8 * 5;
        }
        if options.dirty_max == 0 {
            options.dirty_max = most;
        }
        options.dirty_max = options.dirty_max.min(most);
        options.dirty_background = options.dirty_background.min(options.dirty_max);
        Ok(Arc::new(Cache {
            buddy: Buddy::new(pages),
            states: States::new(u64::from(pages) << (PAGE_LOG2 - unit_log2)),
            frames: Frames::new(pages),
            hints: Hints::new(pages),
            arena,
            options,
            unit_log2,
            order_min,
            order_max,
            pages,
            dirty: AtomicU64::new(0),
            mapped: AtomicU64::new(0),
            next_file: AtomicU64::new(1),
            files: (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, HashMap::new())).collect(),
            limbo: Mutex::new(Rank::Leaf, Vec::new()),
            limbo_len: AtomicU32::new(0),
            hand: AtomicU32::new(0),
            batches: Mutex::new(Rank::Leaf, Batches::default()),
            batch_ended: Condvar::new(),
            counters: Counters::default(),
        }))
    }

    /// Returns the counters and the current state of the cache.
    pub fn stats(&self) -> CacheStats {
        let free = u64::from(self.buddy.free_pages());
        let mut stats = CacheStats {
            dirty_bytes: self.dirty_bytes(),
            used_bytes: (u64::from(self.pages) - free) << PAGE_LOG2,
            ..self.counters.read()
        };
        let prepared = self.arena.prepared();
        (stats.chunks_huge, stats.chunks_plain) = (prepared.collapsed, prepared.failures);
        for shard in &self.files {
            for file in shard.lock().values().filter_map(Weak::upgrade) {
                stats.units_touched += file.units_touched.get();
                stats.bytes_copied += file.bytes_copied.get();
            }
        }
        stats
    }

    /// Returns the options of the cache, as they are after rounding.
    pub fn options(&self) -> &CacheOptions {
        &self.options
    }

    /// Returns the number of dirty bytes.
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Returns whether the background writer should work.
    pub fn wants_writeback(&self) -> bool {
        self.dirty_bytes() > self.options.dirty_background
    }

    /// Returns whether the background writer, once it works, should continue: it goes below the
    /// threshold, so that it starts again only with much to write.
    pub fn wants_more_writeback(&self) -> bool {
        self.dirty_bytes() > self.options.dirty_background / 2
    }

    /// Returns whether writers have to write back before they dirty more.
    pub fn is_over_limit(&self) -> bool {
        self.dirty_bytes() > self.options.dirty_max
    }

    pub(crate) fn add_dirty(&self, units: u64) {
        self.dirty.fetch_add(units << self.unit_log2, Ordering::Relaxed);
    }

    pub(crate) fn sub_dirty(&self, units: u64) {
        self.dirty.fetch_sub(units << self.unit_log2, Ordering::Relaxed);
    }

    /// Counts pages that a program maps; returns false when more than half of the cache would be
    /// mapped.
    pub(crate) fn map(&self, pages: u64) -> bool {
        let most = u64::from(self.pages) / 2;
        let more = |mapped: u64| mapped.checked_add(pages).filter(|mapped| *mapped <= most);
        self.mapped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Counts pages that are mapped no more; their pins are gone.
    pub(crate) fn unmap(&self, pages: u64) {
        self.mapped.fetch_sub(pages, Ordering::Relaxed);
        self.sweep_limbo();
    }

    /// A number for a file's cache, never used twice.
    pub(crate) fn next_file(&self) -> u64 {
        self.next_file.fetch_add(1, Ordering::Relaxed)
    }

    pub(crate) fn register(&self, file: &Arc<FileInner>) {
        self.shard(file.id).lock().insert(file.id, Arc::downgrade(file));
    }

    pub(crate) fn unregister(&self, file: &FileInner) {
        self.shard(file.id).lock().remove(&file.id);
        self.counters.units_touched.add(file.units_touched.get());
        self.counters.bytes_copied.add(file.bytes_copied.get());
    }

    fn shard(&self, id: u64) -> &Mutex<HashMap<u64, Weak<FileInner>>> {
        &self.files[id as usize % SHARDS]
    }

    /// Returns the units of the arena's pages `page..page + 2^order`.
    pub(crate) fn units_of(&self, page: u32, order: u8) -> std::ops::Range<u64> {
        let per_page = PAGE_LOG2 - self.unit_log2;
        let start = u64::from(page) << per_page;
        start..start + (1 << (u32::from(order) + per_page))
    }

    /// Allocates memory for a folio of at most `2^order` pages: fewer when there is no such block,
    /// after evicting folios when there is none at all.
    pub(crate) fn allocate(&self, order: u8, shard: u64) -> Option<(u32, u8)> {
        let (page, order, fresh) = self.allocate_raw(order, shard)?;
        self.prepare(page, order, fresh);
        Some((page, order))
    }

    /// Makes the first use of memory cheap, if it is from a `fresh` chunk and large.
    pub(crate) fn prepare(&self, page: u32, order: u8, fresh: bool) {
        if fresh && order >= 4 {
            self.arena.prepare(page >> ORDER_MAX);
        }
    }

    /// Allocates like [`allocate`](Self::allocate) without [`prepare`](Self::prepare), which takes
    /// long; also returns whether the chunk is fresh.
    pub(crate) fn allocate_raw(&self, order: u8, shard: u64) -> Option<(u32, u8, bool)> {
        let shard = shard as usize;
        let order = order.clamp(self.order_min, self.order_max);
        for attempt in 0..4 {
            let mut smaller = order;
            loop {
                if let Some((page, fresh)) = self.buddy.alloc(smaller, shard) {
                    return Some((page, smaller, fresh));
                }
                // A smaller one at once only if room cannot be made, or was made already.
                if smaller == self.order_min || attempt == 0 {
                    break;
                }
                smaller -= 1;
            }
            if attempt == 0 {
                self.evict(1 << order);
            } else if self.evict(64.max(1 << order)) == 0 && attempt > 1 {
                return None;
            }
        }
        None
    }

    /// Allocates like [`allocate`](Self::allocate) without waiting: evicts only what a short look
    /// finds, and accepts fewer pages.
    pub(crate) fn try_allocate(&self, order: u8, shard: u64) -> Option<(u32, u8)> {
        let order = order.clamp(self.order_min, self.order_max);
        for attempt in 0..2 {
            for smaller in (self.order_min..=order).rev() {
                if let Some((page, fresh)) = self.buddy.alloc(smaller, shard as usize) {
                    self.prepare(page, smaller, fresh);
                    return Some((page, smaller));
                }
                // A smaller one only if room was made already.
                if attempt == 0 {
                    break;
                }
            }
            if attempt == 0 {
                self.evict_within(EVICT_SHORT.max(1 << order), EVICT_SHORT_LOOK);
            }
        }
        None
    }

    /// Frees memory that is in no index and has no pins.
    pub(crate) fn release(&self, page: u32, order: u8) {
        let units = self.units_of(page, order);
        self.states.clear(State::Uptodate, units.clone());
        let dirty = self.states.clear(State::Dirty, units);
        self.sub_dirty(dirty);
        self.buddy.free(page, order);
    }

    /// Queues a folio that left its file while pinned, to be freed later.
    pub(crate) fn release_later(&self, page: u32, order: u8) {
        self.limbo.lock().push((page, order));
        self.limbo_len.fetch_add(1, Ordering::Relaxed);
    }

    /// Frees detached folios that are not pinned any more.
    pub(crate) fn sweep_limbo(&self) -> u64 {
        if self.limbo_len.load(Ordering::Relaxed) == 0 {
            return 0;
        }
        let mut free = Vec::new();
        self.limbo.lock().retain(|&(page, order)| {
            let killed = self.frames.kill(page);
            if killed {
                free.push((page, order));
            }
            !killed
        });
        let mut pages = 0;
        for (page, order) in free {
            self.limbo_len.fetch_sub(1, Ordering::Relaxed);
            self.release(page, order);
            pages += 1 << order;
        }
        pages
    }

    /// Evicts unused folios, at least `pages` pages if there are as many; goes around the arena, so
    /// that neighbours become free together. Returns the number of pages freed.
    ///
    /// A folio that was used since the hand came by last time is passed over once: pages read or
    /// written only once go first.
    pub(crate) fn evict(&self, pages: u64) -> u64 {
        self.evict_within(pages, u64::from(self.pages) * 2)
    }

    /// Evicts like [`evict`](Self::evict), looking at `left` pages at most.
    fn evict_within(&self, pages: u64, mut left: u64) -> u64 {
        let mut freed = self.sweep_limbo();
        while freed < pages && left > 0 {
            let at = self.hand.fetch_add(1, Ordering::Relaxed) % self.pages;
            left -= 1;
            let Some(pin) = self.frames.pin_any(at) else { continue };
            let skip = (1u32 << pin.order()) - 1;
            if skip > 0 {
                self.hand.fetch_add(skip, Ordering::Relaxed);
                left = left.saturating_sub(u64::from(skip));
            }
            if pin.take_used() {
                continue;
            }
            freed += self.give_up(pin);
        }
        freed
    }

    /// Evicts every folio that is neither dirty, nor under writeback, nor in use; returns the
    /// number of bytes freed. Later reads go to the device.
    pub fn drop_clean(&self) -> u64 {
        let mut pages = self.sweep_limbo();
        for at in 0..self.pages {
            if let Some(pin) = self.frames.pin_any(at) {
                pages += self.give_up(pin);
            }
        }
        pages << PAGE_LOG2
    }

    /// Evicts a folio that is marked as used once, if possible. Returns whether it is gone.
    pub(crate) fn give_up_once(&self, pin: Pin<'_>) -> bool {
        pin.is_once() && self.give_up(pin) > 0
    }

    /// Evicts one folio if possible (C2). Returns its pages.
    fn give_up(&self, pin: Pin<'_>) -> u64 {
        let (page, order, start, file) = (pin.id(), pin.order(), pin.start(), pin.file());
        let units = self.units_of(page, order);
        let is_busy = || {
            self.states.any(State::Dirty, units.clone())
                || self.states.any(State::Writeback, units.clone())
        };
        if is_busy() || pin.is_detached() {
            return 0;
        }
        let Some(file) = self.shard(file).lock().get(&file).and_then(Weak::upgrade) else {
            return 0;
        };
        let mut index = file.index.write();
        // A thread that dirties it has it pinned until it is on the list of dirty folios (F2), and
        // writeback has it pinned: so neither happens after this check, or the kill fails.
        if index.folios.get(&start) != Some(&(page, order)) || index.dirty.contains(&start) {
            return 0;
        }
        if pin.kill().is_err() {
            return 0;
        }
        debug_assert!(!is_busy(), "a dirty folio of pages {start}+2^{order} was given up");
        index.folios.remove(&start);
        drop(index);
        self.counters.folios_evicted.add(1);
        self.release(page, order);
        1 << order
    }

    /// Starts a batch of writeback: until [`end_batch`](Self::end_batch), folios may be under writeback,
    /// neither dirty nor free.
    pub(crate) fn begin_batch(&self) {
        self.batches.lock().running += 1;
    }

    /// Ends a batch of writeback. `was_any`: at least one folio left that state, so threads that wait for
    /// room look again.
    pub(crate) fn end_batch(&self, was_any: bool) {
        let mut batches = self.batches.lock();
        batches.running -= 1;
        batches.ended += u64::from(was_any);
        self.batch_ended.notify_all();
    }

    /// Returns how many batches of writeback have ended, for
    /// [`wait_for_batch`](Self::wait_for_batch).
    pub(crate) fn batches_ended(&self) -> u64 {
        self.batches.lock().ended
    }

    /// Waits until more than `seen` batches have ended. Returns false when none is running. The
    /// caller holds no folio lock, and no pins that another needs room for.
    pub(crate) fn wait_for_batch(&self, seen: u64) -> bool {
        let mut batches = self.batches.lock();
        while batches.ended == seen {
            if batches.running == 0 {
                return false;
            }
            self.batch_ended.wait(&mut batches);
        }
        true
    }

    /// Returns the error for a cache without room.
    pub(crate) fn full(&self) -> CacheError {
        CacheError::Full { bytes: self.options.bytes, dirty: self.dirty_bytes() }
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_left_its_file_while_it_was_pinned_is_freed_once_and_not_before_it_is_let_go() {
        let cache = Cache::new(CacheOptions::new(4 << 20, 12)).unwrap();
        let free = cache.buddy.free_pages();
        let leave = |file| {
            let (page, order) = cache.try_allocate(1, 0).unwrap();
            let pin = cache.frames.publish(page, file, 0, order);
            assert!(pin.detach() && !cache.frames.kill(page), "it is pinned");
            cache.release_later(page, order);
            pin
        };
        assert_eq!(cache.sweep_limbo(), 0, "nothing waits");
        let (one, other) = (leave(7), leave(8));
        assert_eq!((one.order(), other.order()), (1, 1));
        assert_eq!((cache.sweep_limbo(), cache.buddy.free_pages()), (0, free - 4));
        assert!(cache.frames.pin_any(one.id()).is_some(), "whoever has it pinned still does");
        drop(one);
        assert_eq!((cache.sweep_limbo(), cache.buddy.free_pages()), (2, free - 2));
        assert_eq!((cache.sweep_limbo(), cache.buddy.free_pages()), (0, free - 2));
        drop(other);
        assert_eq!((cache.sweep_limbo(), cache.buddy.free_pages()), (2, free));
        assert_eq!((cache.sweep_limbo(), cache.limbo_len.load(Ordering::Relaxed)), (0, 0));
    }
}
