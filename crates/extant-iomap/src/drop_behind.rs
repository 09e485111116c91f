//! Contents that are used once: folios that leave the cache when their reader has passed, or when
//! their data is on the device.
//!
//! # Rules
//!
//! - O1. Only folios that such a read or write made, or that were fetched ahead for such a reader, are
//!   marked ([`Pin::set_once`]). Folios that others have in the cache stay there.
//! - O2. Whoever uses a marked folio in the ordinary way takes the mark away: it stays, too.
//! - O3. A marked folio leaves when its reader has reached its end, or the end of the file, and when
//!   a batch of writeback of it has ended. One that is dirty, under writeback or in use elsewhere
//!   stays until then, and is evicted like others.

use std::sync::atomic::Ordering;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, NO_FRAME};
use crate::frames::Pin;
use crate::mapping::Mapper;
use crate::read::len_inside;

impl FileCache {
    /// Reads like [`read`](Self::read), for contents that are not needed again: what the cache did
    /// not have before leaves it again. The caller holds the content lock, shared.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn read_once<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let wanted = len_inside(mapper, offset, out.len());
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let rest = &mut out[done..wanted];
            let page = at >> PAGE_LOG2;
            let Some(pin) = self.find_for_once(page) else {
                let others = self.next_cached(page).unwrap_or(u64::MAX);
                let got = self.read_absent(mapper, at, rest)?;
                // The window belongs to no other reader yet, unless one has come in between.
                self.mark_once(page, others);
                if let Some(pin) = self.find_for_once(page) {
                    self.drop_if_passed(mapper, pin, at + got as u64);
                }
                done += got;
                continue;
            };
            let is_first = pin.is_ahead();
            let got = self.read_folio(mapper, &pin, at, rest)?;
            if is_first {
                pin.set_once();
            }
            self.drop_if_passed(mapper, pin, at + got as u64);
            done += got;
        }
        self.forget_last();
        Ok(done)
    }

    /// Writes like [`write`](Self::write), for contents that are not needed again: what the cache
    /// did not have before leaves it when it is on the device. The caller holds the content lock
    /// exclusively.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn write_once<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let end = offset.saturating_add(bytes.len() as u64);
        let mut at = offset;
        while at < end {
            let page = at >> PAGE_LOG2;
            let was_there = self.cached_to(page);
            let was_once = self.find_for_once(page).is_some_and(|pin| pin.is_once());
            // To the end of the folio that is there, or of the gap in front of the next one.
            let stop = match was_there {
                Some(folio_end) => folio_end,
                None => self.next_cached(page).unwrap_or(u64::MAX >> PAGE_LOG2),
            };
            let stop = (stop << PAGE_LOG2).min(end).max(at + 1);
            let part = &bytes[(at - offset) as usize..(stop - offset) as usize];
            let written = match self.write(mapper, at, part) {
                Ok(written) => written as u64,
                Err(_) if at > offset => break,
                Err(error) => return Err(error),
            };
            // The write itself is an ordinary use (O2).
            if was_there.is_none() || was_once {
                self.mark_once(page, (at + written).div_ceil(1 << PAGE_LOG2));
            }
            at += written;
            if at < stop {
                break;
            }
        }
        self.forget_last();
        let written = at - offset;
        self.once_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(written as usize)
    }

    /// Returns how many bytes were written by [`write_once`](Self::write_once) since the last call
    /// that answered `most` or more, which begins anew: it is time to write them back.
    pub fn take_once(&self, most: u64) -> bool {
        let bytes = self.once_bytes.load(Ordering::Relaxed);
        bytes >= most && self.once_bytes.swap(0, Ordering::Relaxed) >= most
    }

    /// Marks the folios from `page` on, as far as there is one after the other, up to page `end`.
    fn mark_once(&self, mut page: u64, end: u64) {
        while page < end
            && let Some(pin) = self.find_for_once(page)
        {
            pin.set_once();
            page = self.bytes_of(&pin).end >> PAGE_LOG2;
        }
    }

    /// Finds a folio without counting that as a use.
    pub(crate) fn find_for_once(&self, page: u64) -> Option<Pin<'_>> {
        let index = self.inner.index.read();
        let (_, frame, _) = index.at(page)?;
        self.cache.frames.pin(frame, self.inner.id, page)
    }

    /// Drops a marked folio that its reader, who has come to byte `to`, has passed.
    fn drop_if_passed<M: Mapper>(&self, mapper: &M, pin: Pin<'_>, to: u64) {
        if pin.is_once() && to >= self.bytes_of(&pin).end.min(mapper.size()) {
            self.drop_once(pin);
        }
    }

    /// Drops a marked folio, if nobody uses it and it is clean.
    pub(crate) fn drop_once(&self, pin: Pin<'_>) {
        if self.cache.give_up_once(pin) {
            self.cache.counters.dropped_behind.add(1);
        }
    }

    /// The last folio is found without a look at its mark.
    fn forget_last(&self) {
        self.last.store(NO_FRAME, Ordering::Relaxed);
    }
}
