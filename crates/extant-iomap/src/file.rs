//! The cached part of one file: its folios, its dirty list, its errors.
//!
//! # Invariants
//!
//! - F1. Folios of a file do not overlap, and each starts at a multiple of its size.
//! - F2. A folio is on the list of dirty ones exactly while its frame says "listed"; both change
//!   under the folio's lock. Every folio with a dirty unit is listed.
//! - F3. Units are dirty only where the file has space or a promise of space.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};

use extant_base::sabotage;
use extant_sync::{Condvar, Mutex, MutexGuard, Rank, RwLock};

use crate::cache::{Cache, PAGE_LOG2};
use crate::frames::Pin;
use crate::hints::Home;
use crate::index::{FileInner, Index};
use crate::known::Known;
use crate::mapping::{Intent, Kind, Mapper, Mapping};
use crate::ranges::Ranges;
use crate::states::State;
use crate::stats::LoneCounter;
use crate::streams::Streams;

/// No frame has this number.
pub(crate) const NO_FRAME: u32 = u32::MAX;

/// The part of a [`Cache`] that belongs to one file. Dropping it drops its contents, dirty or not.
pub struct FileCache {
    pub(crate) cache: Arc<Cache>,
    pub(crate) inner: Arc<FileInner>,
    /// Where its hints are.
    home: Home,
    /// Orders of the folios that this file has or had, as a bit set.
    orders: AtomicU16,
    /// The frame used last.
    pub(crate) last: AtomicU32,
    /// Offset at which the last small read ended.
    read_end: AtomicU64,
    /// Recent mappings, valid while their cookie is current.
    pub(crate) known: Known,
    pub(crate) streams: Streams,
    pub(crate) writeback: Mutex<()>,
    /// What direct writers that hold the content lock shared give blocks or first data.
    pub(crate) ranges: Ranges,
    /// Number of finished passes: batches of writeback, and fills. Threads wait for its change.
    passes: Mutex<u64>,
    pass_ended: Condvar,
    errors: AtomicU64,
    /// Bytes written by `write_once` and not yet counted by `take_once`.
    pub(crate) once_bytes: AtomicU64,
    ended: AtomicBool,
}

/// Rule for the beginning of a new folio.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fit {
    /// At the given page, rounded down to whole blocks.
    From,
    /// Anywhere before it, because the pages around it will be needed.
    Around,
}

/// Outcome of making a folio ahead of its reader.
pub(crate) enum MadeAhead<'a> {
    /// A new, locked folio.
    Made(Pin<'a>, MutexGuard<'a, ()>),
    /// Another thread made one there.
    Taken,
    /// No memory for a new folio.
    NoRoom,
}

/// Proof that nothing of the file is under writeback and that none begins, until it is dropped.
#[must_use = "writeback goes on when it is dropped"]
pub struct KeptOut<'a> {
    _guard: MutexGuard<'a, ()>,
}

/// Outcome of an attempt to make a folio.
enum Made<'a> {
    Folio(Pin<'a>),
    /// There is, or was, a folio at that place.
    Taken,
    /// There is no memory for it.
    NoRoom,
}

impl FileCache {
    /// Creates the empty cache of a file.
    pub fn new(cache: &Arc<Cache>) -> FileCache {
        let index = RwLock::new(Rank::Leaf, Index::default());
        let inner = Arc::new(FileInner {
            id: cache.next_file(),
            index,
            units_touched: LoneCounter::default(),
            bytes_copied: LoneCounter::default(),
        });
        cache.register(&inner);
        FileCache {
            cache: Arc::clone(cache),
            home: Home::of(inner.id),
            inner,
            orders: AtomicU16::new(0),
            last: AtomicU32::new(NO_FRAME),
            read_end: AtomicU64::new(u64::MAX),
            known: Known::new(),
            streams: Streams::new(cache.options.bytes >> PAGE_LOG2),
            writeback: Mutex::with_order(Rank::Writeback, 0, ()),
            ranges: Ranges::new(),
            passes: Mutex::new(Rank::Leaf, 0),
            pass_ended: Condvar::new(),
            errors: AtomicU64::new(0),
            once_bytes: AtomicU64::new(0),
            ended: AtomicBool::new(false),
        }
    }

    /// Returns the cache of which this is a part.
    pub fn cache(&self) -> &Arc<Cache> {
        &self.cache
    }

    /// Returns whether the file has dirty data. Data under writeback does not count.
    pub fn is_dirty(&self) -> bool {
        !self.inner.index.read().dirty.is_empty()
    }

    /// Returns the number of the file's folios.
    pub fn folio_count(&self) -> usize {
        self.inner.index.read().folios.len()
    }

    /// Waits until the file is not under writeback and holds writeback off. The caller holds the
    /// content lock, no folio lock and no journal handle.
    pub fn keep_writeback_out(&self) -> KeptOut<'_> {
        KeptOut { _guard: self.writeback.lock() }
    }

    /// Returns the number of passes of writeback that have failed, for comparison with an earlier
    /// value.
    pub fn error_count(&self) -> u64 {
        self.errors.load(Ordering::Acquire)
    }

    pub(crate) fn note_error(&self) {
        if !sabotage("iomap.file.error-swallowed") {
            self.errors.fetch_add(1, Ordering::AcqRel);
        }
        self.cache.counters.writeback_errors.add(1);
    }

    /// Returns the folio with `page`, pinned.
    pub(crate) fn find(&self, page: u64) -> Option<Pin<'_>> {
        let cache = &*self.cache;
        let (frames, id) = (&cache.frames, self.inner.id);
        let last = self.last.load(Ordering::Relaxed);
        if last != NO_FRAME
            && let Some(pin) = frames.pin(last, id, page)
        {
            return Some(pin);
        }
        let mut orders = self.orders.load(Ordering::Relaxed);
        while orders != 0 {
            let order = orders.trailing_zeros() as u8;
            orders &= orders - 1;
            let hint = cache.hints.get(self.home, page >> order << order, order);
            if let Some(pin) = frames.pin(hint, id, page) {
                self.note_use(&pin);
                return Some(pin);
            }
        }
        if self.orders.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let index = self.inner.index.read();
        let (start, frame, order) = index.at(page)?;
        // It cannot leave the index now, so it can be pinned.
        let pin = frames.pin(frame, id, page)?;
        drop(index);
        cache.hints.set(self.home, start, order, frame);
        self.note_use(&pin);
        cache.counters.index_finds.add(1);
        Some(pin)
    }

    /// Returns whether a read of `len` bytes at `offset` probably continues the last one.
    #[inline]
    pub(crate) fn goes_on(&self, offset: u64, len: u64) -> bool {
        let goes_on = self.read_end.load(Ordering::Relaxed) == offset;
        self.read_end.store(offset + len, Ordering::Relaxed);
        goes_on
    }

    /// Records that a folio was used again, so that eviction passes it over once.
    fn note_use(&self, pin: &Pin<'_>) {
        if !pin.is_ahead() {
            pin.mark_used();
        }
        if pin.is_once() {
            pin.clear_once();
        }
        self.last.store(pin.id(), Ordering::Relaxed);
    }

    /// Makes a folio for `page`, of at most `2^order` pages, or returns the one that another thread
    /// has just made. `None` when there is no room.
    pub(crate) fn make(&self, page: u64, order: u8, fit: Fit) -> Option<Pin<'_>> {
        // A round fails only if another reader made a folio meanwhile, here or beside, or one was
        // evicted again.
        loop {
            match self.make_once(page, order, fit, Cache::allocate) {
                Made::Folio(pin) => return Some(pin),
                Made::NoRoom => return None,
                Made::Taken => {}
            }
            if let Some(pin) = self.find(page) {
                return Some(pin);
            }
        }
    }

    /// Makes a folio like [`make`](Self::make) without waiting, of memory that is free or nearly
    /// so.
    pub(crate) fn try_make(&self, page: u64, order: u8, fit: Fit) -> Option<Pin<'_>> {
        match self.make_once(page, order, fit, Cache::try_allocate) {
            Made::Folio(pin) => Some(pin),
            Made::NoRoom => None,
            Made::Taken => self.find(page),
        }
    }

    /// Makes one attempt of [`make`](Self::make).
    fn make_once(
        &self,
        page: u64,
        order: u8,
        fit: Fit,
        allocate: impl FnOnce(&Cache, u8, u64) -> Option<(u32, u8)>,
    ) -> Made<'_> {
        let cache = &*self.cache;
        let order = self.order_at(page, order, fit);
        let Some((frame, order)) = allocate(cache, order, self.inner.id) else {
            return Made::NoRoom;
        };
        match self.insert(frame, page >> order << order, order, false) {
            Some(pin) => {
                self.last.store(frame, Ordering::Relaxed);
                Made::Folio(pin)
            }
            None => {
                cache.release(frame, order);
                Made::Taken
            }
        }
    }

    /// Returns the largest order up to `order` that a folio for `page` may have without overlapping
    /// others.
    fn order_at(&self, page: u64, order: u8, fit: Fit) -> u8 {
        let min = self.cache.order_min;
        let aligned = match fit {
            Fit::From => u8::try_from(page.trailing_zeros()).unwrap_or(64),
            Fit::Around => u8::MAX,
        };
        let mut order = order.min(aligned).clamp(min, self.cache.order_max);
        let index = self.inner.index.read();
        while order > min {
            let start = page >> order << order;
            let free = index.at(start).is_none()
                && index.folios.range(start..start + (1 << order)).next().is_none();
            if free {
                break;
            }
            order -= 1;
        }
        order
    }

    /// Makes a folio for `page` ahead of its reader, of at most `2^order` pages, and locks it
    /// before it can be found: nobody else fills it until the caller has claimed it.
    pub(crate) fn make_ahead(&self, page: u64, order: u8, ahead: bool) -> MadeAhead<'_> {
        let cache = &*self.cache;
        let order = self.order_at(page, order, Fit::From);
        let Some((frame, order, fresh)) = cache.allocate_raw(order, self.inner.id) else {
            return MadeAhead::NoRoom;
        };
        let guard = cache.frames.lock(frame);
        let Some(pin) = self.insert(frame, page >> order << order, order, ahead) else {
            drop(guard);
            cache.release(frame, order);
            return MadeAhead::Taken;
        };
        cache.prepare(frame, order, fresh);
        MadeAhead::Made(pin, guard)
    }

    /// Puts a new folio into the index; `None` when there is one already.
    fn insert(&self, frame: u32, start: u64, order: u8, ahead: bool) -> Option<Pin<'_>> {
        let cache = &*self.cache;
        let mut index = self.inner.index.write();
        let end = start + (1 << order);
        if index.at(start).is_some() || index.folios.range(start..end).next().is_some() {
            return None;
        }
        // It is published only once it is known to be the only one: an old hint can find it from
        // here on.
        let pin = cache.frames.publish(frame, self.inner.id, start, order);
        if ahead {
            pin.set_ahead();
        }
        // The bit is set first: otherwise a concurrent reader would take the file for empty.
        self.orders.fetch_or(1 << order, Ordering::Relaxed);
        index.folios.insert(start, (frame, order));
        drop(index);
        cache.hints.set(self.home, start, order, frame);
        cache.counters.folios_made.add(1);
        Some(pin)
    }

    /// Frees a folio that is in no index; later, if it is pinned for a moment.
    pub(crate) fn give_away(&self, frame: u32, order: u8) {
        if self.cache.frames.kill(frame) {
            self.cache.release(frame, order);
        } else {
            self.cache.release_later(frame, order);
        }
    }

    /// Returns the first cached page at or behind `page`.
    pub(crate) fn next_cached(&self, page: u64) -> Option<u64> {
        let index = self.inner.index.read();
        if index.at(page).is_some() {
            return Some(page);
        }
        index.folios.range(page..).next().map(|(&start, _)| start)
    }

    /// Returns the end of the folio with `page`, if there is one.
    pub(crate) fn cached_to(&self, page: u64) -> Option<u64> {
        let index = self.inner.index.read();
        index.at(page).map(|(start, _, order)| start + (1 << order))
    }

    /// Returns the units of bytes `range` of the file in a folio, rounded outward.
    pub(crate) fn units(&self, pin: &Pin<'_>, range: Range<u64>) -> Range<u64> {
        let unit = self.cache.unit_log2;
        let base = u64::from(pin.id()) << (PAGE_LOG2 - unit);
        let start = pin.start() << PAGE_LOG2;
        let first = (range.start - start) >> unit;
        let end = (range.end - start + (1 << unit) - 1) >> unit;
        base + first..base + end
    }

    /// Returns the offset in the arena of byte `at` of the file.
    pub(crate) fn arena_at(&self, pin: &Pin<'_>, at: u64) -> u64 {
        (u64::from(pin.id()) << PAGE_LOG2) + (at - (pin.start() << PAGE_LOG2))
    }

    /// Returns the bytes of the file in a folio.
    pub(crate) fn bytes_of(&self, pin: &Pin<'_>) -> Range<u64> {
        let start = pin.start() << PAGE_LOG2;
        start..start + (u64::from(pin.pages()) << PAGE_LOG2)
    }

    /// Marks units dirty. The folio is locked, the units are uptodate.
    pub(crate) fn set_dirty(&self, pin: &Pin<'_>, units: Range<u64>) {
        let newly = self.cache.states.set(State::Dirty, units);
        if newly > 0 {
            self.cache.add_dirty(newly);
        }
        if !pin.set_listed(true) {
            self.inner.index.write().dirty.insert(pin.start());
        }
    }

    /// Marks units clean. The folio is locked.
    pub(crate) fn clear_dirty(&self, pin: &Pin<'_>, units: Range<u64>) {
        let cleared = self.cache.states.clear(State::Dirty, units);
        if cleared > 0 {
            self.cache.sub_dirty(cleared);
        }
        self.unlist_if_clean(pin);
    }

    /// Takes a clean folio off the dirty list (F2).
    pub(crate) fn unlist_if_clean(&self, pin: &Pin<'_>) {
        let all = self.cache.units_of(pin.id(), pin.order());
        if !self.cache.states.any(State::Dirty, all) && pin.set_listed(false) {
            self.inner.index.write().dirty.remove(&pin.start());
        }
    }

    /// Waits until none of these units is under writeback. The caller holds no folio lock.
    pub(crate) fn wait_for_writeback(&self, units: Range<u64>) {
        self.cache.counters.writeback_waits.add(1);
        self.wait_while(State::Writeback, units);
    }

    /// Waits until none of these units is in that state, which ends with a pass. The caller holds no
    /// folio lock.
    pub(crate) fn wait_while(&self, state: State, units: Range<u64>) {
        let mut passes = self.passes.lock();
        while self.cache.states.any(state, units.clone()) {
            self.pass_ended.wait(&mut passes);
        }
    }

    /// Marks units as no longer under writeback, and wakes the waiters.
    pub(crate) fn end_writeback(&self, units: impl Iterator<Item = Range<u64>>) {
        for range in units {
            self.cache.states.clear(State::Writeback, range);
        }
        self.end_pass();
    }

    /// Wakes those who wait for units of which this thread has just taken a state away.
    pub(crate) fn end_pass(&self) {
        *self.passes.lock() += 1;
        self.pass_ended.notify_all();
    }

    /// Returns the mapping of the first bytes of `range`: a recent one if it is still valid, else
    /// the mapper's.
    pub(crate) fn mapping<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        intent: Intent,
    ) -> Result<Mapping, M::Error> {
        if let Some(last) = self.known.about(range.start)
            && mapper.is_current(last.cookie)
            && (intent != Intent::Write || !matches!(last.kind, Kind::Hole | Kind::Inline(_)))
        {
            return Ok(last);
        }
        self.cache.counters.mappings.add(1);
        let mapping = mapper.map(range, intent)?;
        self.known.note(&mapping);
        Ok(mapping)
    }

    /// Drops the cached bytes of `range`, dirty or not: whole blocks, or up to any end. The caller
    /// holds writers and writeback off.
    pub fn forget(&self, range: Range<u64>, _kept_out: &KeptOut<'_>) {
        let (first, end) = (range.start >> PAGE_LOG2, range.end.div_ceil(1 << PAGE_LOG2));
        let mut at = first;
        while let Some(page) = self.next_cached(at).filter(|page| *page < end) {
            let Some(pin) = self.find(page) else {
                at = page + 1;
                continue;
            };
            let folio = self.bytes_of(&pin);
            at = folio.end >> PAGE_LOG2;
            let guard = pin.lock();
            let part = range.start.max(folio.start)..range.end.min(folio.end);
            // A mapped folio keeps its place and becomes empty (Y1 of `mmap`).
            if part == folio && pin.pins() == 1 {
                self.clear_dirty(&pin, self.units(&pin, folio));
                pin.detach();
                self.inner.index.write().folios.remove(&pin.start());
                drop(guard);
                let (frame, order) = (pin.id(), pin.order());
                drop(pin);
                self.give_away(frame, order);
                continue;
            }
            let units = self.units(&pin, part);
            self.clear_dirty(&pin, units.clone());
            if !sabotage("iomap.file.forgotten-still-read") {
                self.cache.states.clear(State::Uptodate, units);
            }
        }
    }

    /// Drops everything of a file that is being deleted, dirty or not; later writeback finds
    /// nothing. No thread reads or writes the file. Takes only leaf locks.
    pub fn end(&self, _kept_out: &KeptOut<'_>) {
        self.ended.store(true, Ordering::Release);
        self.forget_all();
    }

    /// Returns whether the file has [ended](Self::end). The answer does not change while the caller
    /// holds writeback off.
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn forget_all(&self) {
        let index = std::mem::take(&mut *self.inner.index.write());
        for (frame, order) in index.folios.into_values() {
            // A thread that follows an old hint may have it pinned for a moment.
            if let Some(pin) = self.cache.frames.pin_any(frame) {
                pin.detach();
            }
            self.give_away(frame, order);
        }
        self.known.forget();
    }
}

impl Drop for FileCache {
    fn drop(&mut self) {
        self.forget_all();
        self.cache.unregister(&self.inner);
    }
}

impl fmt::Debug for FileCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FileCache").field("id", &self.inner.id).finish_non_exhaustive()
    }
}
