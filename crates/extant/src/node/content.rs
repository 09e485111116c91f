//! The content lock of an inode, together with direct operations under way, which do not hold it.
//!
//! # Place
//!
//! Below: `extant-sync`. Above: `node`, whose every inode has one; `file/direct` and its
//! neighbours, which begin and end such operations; `ring/lane`, which gives some to the device.
//!
//! # Rules
//!
//! - Y1. Direct I/O beside others begins under the lock, shared, and then counts instead of the
//!   guard, with its range. Whoever takes the lock exclusively waits for it, and none begins
//!   meanwhile. Who changes a part of the file only ([`Content::write_part`]) waits for those in
//!   that part.
//! - Y2. Whoever waits drives: it takes completions from the device itself, because the thread that
//!   would otherwise take them may be the one that waits (P40).
//! - Y3. A thread with an operation under way takes no content lock, except by trying: who has it
//!   may wait for that operation.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use extant_base::sabotage;
use extant_sync::{Hold, Mutex, Rank, RwLock, RwLockReadGuard, RwLockWriteGuard, check_may_wait};

use super::flights::Flights;
use super::spans::{self, Span};

/// Pages of the cache, in bytes.
const PAGE_BYTES: u64 = 4096;
/// Number of ranges that are listed at once, in 12 KiB.
const SPANS: usize = 512;

/// The ranges of direct operations in all files of a mount.
pub(crate) type Spans = spans::Spans<SPANS>;

/// Somebody who has operations at the device.
pub(crate) trait Drive: Send + Sync {
    /// Ends operations, waiting for the device, until `is_enough`, or none is left with the device:
    /// those left are then being ended by other threads. The caller holds no lock above the content
    /// locks.
    fn drive(&self, is_enough: &dyn Fn() -> bool);
}

/// The operations under way on something, and those who have them.
pub(crate) struct Airspace {
    flights: Flights,
    drivers: Mutex<Vec<Weak<dyn Drive>>>,
    /// Address of the driver that was enlisted last, which is in the list, so that no other one has
    /// that address.
    last: AtomicUsize,
    /// Number of operations that are not among the listed ranges.
    unlisted: AtomicUsize,
}

impl Airspace {
    pub(crate) fn new() -> Airspace {
        let drivers = Mutex::new(Rank::Leaf, Vec::new());
        let (last, unlisted) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Airspace { flights: Flights::new(), drivers, last, unlisted }
    }

    /// Makes a driver known, before an operation of it begins here.
    pub(crate) fn enlist(&self, driver: &Weak<dyn Drive>) {
        let address = driver.as_ptr().addr();
        if self.last.load(Ordering::Acquire) == address {
            return;
        }
        let mut drivers = self.drivers.lock();
        if !drivers.iter().any(|known| known.ptr_eq(driver)) {
            drivers.push(Weak::clone(driver));
        }
        self.last.store(address, Ordering::Release);
        // This comes last: addresses of drivers that are let go may be used again.
        drivers.retain(|known| known.strong_count() > 0);
    }

    /// Counts an operation; see [`Flights::begin`].
    pub(crate) fn begin(&self) {
        self.flights.begin();
    }

    /// Counts an operation down.
    pub(crate) fn end(&self) {
        self.flights.end();
    }

    /// Counts an operation on a range of a file, whose content lock the caller holds, shared.
    pub(crate) fn begin_at(&self, spans: &Spans, range: &Range<u64>) -> Option<Span> {
        let span = spans.list(self.owner(), range);
        if span.is_none() {
            self.unlisted.fetch_add(1, Ordering::Relaxed);
        }
        self.begin();
        span
    }

    /// Counts an operation down that [`begin_at`](Self::begin_at) has counted.
    pub(crate) fn end_at(&self, spans: &Spans, span: Option<Span>) {
        match span {
            Some(span) => spans.leave(span),
            None => {
                self.unlisted.fetch_sub(1, Ordering::Release);
            }
        }
        self.end();
    }

    /// Returns what stands for this in the table of ranges.
    fn owner(&self) -> u64 {
        std::ptr::from_ref(self).addr() as u64
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flights.is_empty()
    }

    /// Waits until no operation is under way, and drives those that are (Y2). The caller keeps new
    /// ones from beginning.
    pub(crate) fn settle(&self) {
        self.settle_those(|| !self.is_empty());
    }

    /// Waits like [`settle`](Self::settle), for operations in a part of the range only.
    fn settle_in(&self, spans: &Spans, range: &Range<u64>) {
        if sabotage("extant.content.part-not-awaited") {
            return;
        }
        self.settle_those(|| {
            self.unlisted.load(Ordering::Acquire) > 0 || spans.has_any(self.owner(), range)
        });
    }

    fn settle_those(&self, concerns: impl Fn() -> bool) {
        if self.is_empty() || !concerns() || sabotage("extant.content.flights-not-awaited") {
            return;
        }
        check_may_wait("direct operations under way");
        let drivers: Vec<Arc<dyn Drive>> =
            self.drivers.lock().iter().filter_map(Weak::upgrade).collect();
        for driver in drivers {
            driver.drive(&|| !concerns());
        }
        self.flights.wait_for(concerns);
    }
}

/// A direct operation of this thread under way; it counts until this is dropped (Y1). The thread
/// takes no content lock meanwhile (Y3).
#[must_use = "it is over when this is dropped"]
pub(crate) struct UnderWay<'a> {
    airspace: &'a Airspace,
    spans: &'a Spans,
    span: Option<Span>,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.airspace.end_at(self.spans, self.span);
    }
}

/// The content lock: entries, size, data and attributes of an inode. Rank `InodeContent`, by
/// number.
pub(crate) struct Content {
    lock: RwLock<()>,
    /// Made when the first lane uses the file, because there are many inodes and few such files.
    airspace: OnceLock<Box<Airspace>>,
}

impl Content {
    pub(crate) fn new(order: u64) -> Content {
        let lock = RwLock::with_order(Rank::InodeContent, order, ());
        Content { lock, airspace: OnceLock::new() }
    }

    /// Waits for shared access.
    #[track_caller]
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.read()
    }

    /// Takes shared access if it is free now.
    #[track_caller]
    pub(crate) fn try_read(&self) -> Option<RwLockReadGuard<'_, ()>> {
        self.lock.try_read()
    }

    /// Waits for exclusive access, and for the direct operations under way (Y1).
    #[track_caller]
    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, ()> {
        let guard = self.lock.write();
        if let Some(airspace) = self.airspace.get() {
            airspace.settle();
        }
        guard
    }

    /// Waits for exclusive access, and for the direct operations under way in the blocks of the range
    /// that `part` returns when the lock is held (Y1). The caller changes nothing of the file's
    /// contents and their places outside of these blocks.
    #[track_caller]
    pub(crate) fn write_part(
        &self,
        spans: &Spans,
        block_bytes: u64,
        part: impl FnOnce() -> Range<u64>,
    ) -> RwLockWriteGuard<'_, ()> {
        let guard = self.lock.write();
        if let Some(airspace) = self.airspace.get() {
            // What is zeroed at the ends, in the cache, may be whole pages.
            let (part, unit) = (part(), block_bytes.max(PAGE_BYTES));
            let end = part.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX);
            airspace.settle_in(spans, &(part.start / unit * unit..end));
        }
        guard
    }

    /// Begins a direct operation of this thread on `range` (Y1). The caller holds the lock, shared, and
    /// may give it up for a [`stand_in`](Self::stand_in).
    pub(crate) fn under_way<'a>(&'a self, spans: &'a Spans, range: &Range<u64>) -> UnderWay<'a> {
        let airspace = self.airspace();
        UnderWay { airspace, spans, span: airspace.begin_at(spans, range) }
    }

    /// Gives up shared access, and keeps this thread from taking the lock again until the result is
    /// dropped (Y3).
    pub(crate) fn stand_in(guard: RwLockReadGuard<'_, ()>) -> Hold {
        RwLockReadGuard::into_hold(guard)
    }

    /// Returns whether a thread waits for exclusive access, or has it.
    pub(crate) fn is_wanted_exclusively(&self) -> bool {
        self.lock.is_wanted_exclusively()
    }

    /// Takes exclusive access if it is free now and no direct operation is under way.
    #[track_caller]
    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, ()>> {
        let guard = self.lock.try_write()?;
        let is_free = self.airspace.get().is_none_or(|airspace| airspace.is_empty());
        (is_free || sabotage("extant.content.attempts-beside-flights")).then_some(guard)
    }

    /// Returns the operations under way; made if there were none before.
    pub(crate) fn airspace(&self) -> &Airspace {
        self.airspace.get_or_init(|| Box::new(Airspace::new()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use extant_sync::threads::scope;
    use extant_sync::{Clock, SystemClock};

    use super::*;

    #[test]
    fn what_finds_no_place_in_the_table_is_waited_for_wherever_it_is() {
        let (content, spans) = (Content::new(1), Spans::new());
        let begin = |at: u64| content.under_way(&spans, &(at..at + 1));
        let guard = content.read();
        // More than the table has places.
        let many: Vec<UnderWay<'_>> = (0..SPANS as u64 + 1).map(|at| begin(at << 9)).collect();
        drop(guard);
        let airspace = content.airspace();
        assert!(airspace.unlisted.load(Ordering::Relaxed) > 0);
        assert!(!airspace.is_empty());
        drop(many);
        assert!(airspace.is_empty() && airspace.unlisted.load(Ordering::Relaxed) == 0);
        // All places are free again: this waits for nothing.
        let guard = content.read();
        let far = begin(100);
        drop(guard);
        assert!(far.span.is_some());
        drop(content.write_part(&spans, 1024, || 0x1_0000..0x1_0001));
        let others = Content::new(2);
        drop(others.write());
        let guard = others.read();
        let same = others.under_way(&spans, &(100..101));
        drop(guard);
        drop(far);
        // A range of one file is none of another.
        drop(content.write_part(&spans, 1024, || 0..u64::MAX));
        drop(same);
    }

    #[test]
    fn whole_pages_at_the_ends_of_a_part_belong_to_it() {
        let (content, spans) = (Content::new(1), Spans::new());
        // Returns whether a change of the part goes on in spite of the operation. `soon`: so it should.
        let goes_on = |part: Range<u64>, block: u64, soon: bool| {
            let guard = content.read();
            let operation = content.under_way(&spans, &(8192..8704));
            drop(guard);
            let has_ended = AtomicBool::new(false);
            let went_on = scope(|threads| {
                let change = threads.spawn("change", || {
                    drop(content.write_part(&spans, block, || part));
                    has_ended.store(true, Ordering::SeqCst);
                });
                let change = change.unwrap();
                // A busy machine may let it begin much later.
                for _ in 0..if soon { 10_000 } else { 20 } {
                    SystemClock.sleep(Duration::from_millis(1));
                    if has_ended.load(Ordering::SeqCst) {
                        break;
                    }
                }
                let went_on = has_ended.load(Ordering::SeqCst);
                drop(operation);
                change.join().unwrap();
                went_on
            });
            went_on.unwrap()
        };
        let waits = |part, block| !goes_on(part, block, false);
        let passes = |part, block| goes_on(part, block, true);
        // Blocks of 1 KiB lie in pages of 4, larger ones are units of their own.
        assert!(waits(12287..20000, 1024) && waits(0..8193, 1024));
        assert!(passes(12288..20000, 1024) && passes(0..8192, 1024));
        assert!(waits(65535..65536, 65536) && passes(65536..65537, 65536));
    }
}
