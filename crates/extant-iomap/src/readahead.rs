//! Read-ahead of data that readers are expected to want (`streams` decides), by the mapper's thread
//! and by readers themselves.

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, MadeAhead};
use crate::mapping::{Intent, Kind, Mapper};

/// Returns the order for a folio that starts a window of `pages` pages.
pub(crate) fn order_for(pages: u64) -> u8 {
    pages.max(1).ilog2() as u8
}

/// Returns how many pages hold `len` bytes from `at` on.
pub(crate) fn pages_of(at: u64, len: u64) -> u64 {
    (at.saturating_add(len)).div_ceil(1 << PAGE_LOG2) - (at >> PAGE_LOG2)
}

/// Number of folios of one window that are filled together, where the device has several reads under
/// way at once: pieces of a file that lies in many places.
const TOGETHER_MAX: usize = 32;

impl FileCache {
    /// Fetches one window that a reader is expected to want, for the thread of
    /// [`Mapper::read_ahead`]. The caller holds the content lock, shared. Returns false when there
    /// was none.
    ///
    /// Errors are ignored: the reader of the missing data reports them.
    pub fn fetch_next<M: Mapper>(&self, mapper: &M) -> bool
    where
        M::Error: From<CacheError>,
    {
        let Some(pages) = self.streams.begin() else { return false };
        self.cache.counters.ahead_fetched.add(1);
        self.fetch(mapper, pages, true);
        true
    }

    /// Records that a reader has reached `page`, which was fetched for it.
    pub(crate) fn arrive<M: Mapper>(&self, mapper: &M, page: u64) {
        if self.streams.arrive(page, mapper.size().div_ceil(1 << PAGE_LOG2)) {
            mapper.read_ahead();
        }
    }

    /// Makes and fills folios for the stored parts of `pages` that are not cached, as far as there
    /// is room and nothing fails.
    pub(crate) fn fetch<M: Mapper>(&self, mapper: &M, pages: std::ops::Range<u64>, ahead: bool)
    where
        M::Error: From<CacheError>,
    {
        let reads_at_once = mapper.contents().is_ok_and(|contents| contents.reads_at_once());
        let most = if reads_at_once { TOGETHER_MAX } else { 1 };
        let end = mapper.size().min(pages.end.saturating_mul(1 << PAGE_LOG2));
        let mut at = pages.start.saturating_mul(1 << PAGE_LOG2);
        let mut claims = Vec::new();
        while at < end {
            if claims.len() == most
                && self.fill_claims(mapper, std::mem::take(&mut claims)).is_err()
            {
                return;
            }
            let page = at >> PAGE_LOG2;
            if let Some(cached) = self.cached_to(page) {
                at = cached << PAGE_LOG2;
                continue;
            }
            let Ok(mapping) = self.mapping(mapper, at..end, Intent::Read) else { break };
            let stop = mapping.end().min(end);
            if !matches!(mapping.kind, Kind::Mapped(_)) {
                at = stop;
                continue;
            }
            match self.make_ahead(page, order_for(pages_of(at, stop - at)), ahead) {
                MadeAhead::Taken => {}
                MadeAhead::NoRoom => break,
                MadeAhead::Made(pin, locked) => {
                    let folio = self.bytes_of(&pin);
                    let part = folio.start..folio.end.min(end.max(folio.start + 1));
                    claims.extend(self.claim_new(&pin, part));
                    drop(locked);
                    at = folio.end;
                }
            }
        }
        // Whoever misses something of it reports the error.
        let _ = self.fill_claims(mapper, claims);
    }
}
