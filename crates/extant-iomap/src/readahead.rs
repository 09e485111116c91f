//! Fetching what readers are expected to want (`streams` says what that is), by the thread that the mapper asks to
//! come and by readers themselves.

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, MadeAhead};
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper};

/// The order for a folio that starts a window of `pages` pages.
pub(crate) fn order_for(pages: u64) -> u8 {
    pages.max(1).ilog2() as u8
}

/// How many pages hold `len` bytes from `at` on.
pub(crate) fn pages_of(at: u64, len: u64) -> u64 {
    (at.saturating_add(len)).div_ceil(1 << PAGE_LOG2) - (at >> PAGE_LOG2)
}

impl FileCache {
    /// Fetches one window that a reader is expected to want, if there is one: for the thread that
    /// [`Mapper::read_ahead`] asks to come. The caller holds the content lock, shared. False when
    /// there was none.
    ///
    /// Errors are for whoever reads what is missing then.
    pub fn fetch_next<M: Mapper>(&self, mapper: &M) -> bool
    where
        M::Error: From<CacheError>,
    {
        let Some(pages) = self.streams.begin() else { return false };
        self.cache.counters.ahead_fetched.add(1);
        self.fetch(mapper, pages, true);
        true
    }

    /// A reader has come to `page`, which belongs to what was fetched for it.
    pub(crate) fn arrive<M: Mapper>(&self, mapper: &M, page: u64) {
        if self.streams.arrive(page, mapper.size().div_ceil(1 << PAGE_LOG2)) {
            mapper.read_ahead();
        }
    }

    /// Locks a folio that a reader wants filled. While another thread fills it the reader fills what
    /// it will want next.
    pub(crate) fn lock_to_fill<'a, M: Mapper>(
        &'a self,
        mapper: &M,
        pin: &Pin<'a>,
    ) -> extant_sync::MutexGuard<'a, ()>
    where
        M::Error: From<CacheError>,
    {
        loop {
            if let Some(guard) = pin.try_lock() {
                return guard;
            }
            let Some(pages) = self.streams.begin_near(pin.start()) else { break };
            self.cache.counters.ahead_helped.add(1);
            self.fetch(mapper, pages, true);
        }
        self.cache.counters.fill_waits.add(1);
        pin.lock()
    }

    /// Makes and fills folios for what the device has of `pages` and the cache has not, as far as there
    /// is room and nothing fails.
    pub(crate) fn fetch<M: Mapper>(&self, mapper: &M, pages: std::ops::Range<u64>, ahead: bool)
    where
        M::Error: From<CacheError>,
    {
        let end = mapper.size().min(pages.end.saturating_mul(1 << PAGE_LOG2));
        let mut at = pages.start.saturating_mul(1 << PAGE_LOG2);
        while at < end {
            let page = at >> PAGE_LOG2;
            if let Some(cached) = self.cached_to(page) {
                at = cached << PAGE_LOG2;
                continue;
            }
            let Ok(mapping) = self.mapping(mapper, at..end, Intent::Read) else { return };
            let stop = mapping.end().min(end);
            if !matches!(mapping.kind, Kind::Mapped(_)) {
                at = stop;
                continue;
            }
            match self.make_ahead(page, order_for(pages_of(at, stop - at)), ahead) {
                MadeAhead::Taken => {}
                MadeAhead::NoRoom => return,
                MadeAhead::Made(pin, _locked) => {
                    let folio = self.bytes_of(&pin);
                    let part = folio.start..folio.end.min(end.max(folio.start + 1));
                    if self.fill_locked(mapper, &pin, part).is_err() {
                        return;
                    }
                    at = folio.end;
                }
            }
        }
    }
}
