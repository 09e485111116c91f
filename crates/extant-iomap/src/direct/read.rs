//! Reading past the cache.

use std::io::IoSlice;
use std::ops::Range;

use super::ASK;
use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::FileCache;
use crate::mapping::{Intent, Kind, Mapper};
use crate::read::len_inside;
use crate::states::State;

impl FileCache {
    /// Reads like [`read`](Self::read) without making folios: data that is not cached comes from
    /// the device into `out`. The caller holds the content lock, shared.
    ///
    /// `depart` is called before a range that lies on the device in one run is read: instead of the
    /// content lock, the caller may then keep waiting who would change these blocks' places or
    /// contents.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    ///
    /// # Cost
    ///
    /// One device read for each run of blocks, and a copy of cached data.
    pub fn read_direct<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        out: &mut [u8],
        depart: impl FnOnce(),
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        if mapper.checked_unit().is_some() {
            return self.read(mapper, offset, out); // E4.
        }
        let wanted = len_inside(mapper, offset, out.len());
        let range = offset..offset + wanted as u64;
        if wanted > 0
            && let Some(from) = self.stored_in_one(mapper, range)?
        {
            let contents = mapper.contents()?;
            depart();
            contents.read_at(offset, from, &mut out[..wanted])?;
            self.cache.counters.direct_reads.add(1);
            self.cache.counters.bytes_read_direct.add(wanted as u64);
            return Ok(wanted);
        }
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let rest = &mut out[done..wanted];
            done += match self.find(at >> PAGE_LOG2) {
                Some(pin) => self.read_folio(mapper, &pin, at, rest)?,
                None => self.read_around(mapper, at, rest)?,
            };
        }
        Ok(done)
    }

    /// Returns the device addresses and lengths in bytes of the runs of `range`, which lies before
    /// the end of the file, in order. `None` when a part of it is stored otherwise, or in more than
    /// `most` runs. The answer is valid while the caller holds the content lock, shared, unless
    /// direct writes change the contents.
    ///
    /// # Errors
    ///
    /// Those of the mapper.
    pub fn stored_at<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        most: usize,
    ) -> Result<Option<Vec<(u64, u64)>>, M::Error> {
        if mapper.is_staged() || !self.is_free(range.clone()) {
            return Ok(None);
        }
        let mut runs = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let ask = at..range.end.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Read)?;
            let (Kind::Mapped(_), Some(address)) = (&mapping.kind, mapping.address_of(at)) else {
                return Ok(None);
            };
            if runs.len() == most {
                return Ok(None);
            }
            let end = mapping.end().min(range.end);
            runs.push((address, end - at));
            at = end;
        }
        Ok(Some(runs))
    }

    /// Returns the device address of `range`, if it lies there in one run and no folio has any of it.
    fn stored_in_one<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
    ) -> Result<Option<u64>, M::Error> {
        // This precedes the request to the mapper, as in every reader: see `read_absent`.
        if !self.is_free(range.clone()) {
            return Ok(None);
        }
        let ask = range.start..range.end.max(range.start.saturating_add(ASK));
        let mapping = self.mapping(mapper, ask, Intent::Read)?;
        let is_whole = matches!(mapping.kind, Kind::Mapped(_)) && mapping.end() >= range.end;
        Ok(mapping.address_of(range.start).filter(|_| is_whole))
    }

    /// Counts a read of runs returned by [`stored_at`](Self::stored_at).
    pub fn count_read(&self, runs: &[(u64, u64)]) {
        self.cache.counters.direct_reads.add(runs.len() as u64);
        self.cache.counters.bytes_read_direct.add(runs.iter().map(|(_, len)| len).sum());
    }

    /// Calls `look` with the bytes of `range`, which lies before the end of the file, if all of
    /// them are cached, in at most a quarter of the cache. The caller holds the content lock,
    /// shared.
    pub fn with_resident<R>(
        &self,
        range: Range<u64>,
        look: impl FnOnce(&[IoSlice<'_>]) -> R,
    ) -> Option<R> {
        if range.end.saturating_sub(range.start) > self.cache.options.bytes / 4 {
            return None;
        }
        let (mut pins, mut parts) = (Vec::new(), Vec::new());
        let mut at = range.start;
        while at < range.end {
            let pin = self.find(at >> PAGE_LOG2)?;
            let part = at..self.bytes_of(&pin).end.min(range.end);
            if !self.cache.states.all(State::Uptodate, self.units(&pin, part.clone())) {
                return None;
            }
            parts.push((self.arena_at(&pin, at), part.end - at));
            at = part.end;
            pins.push(pin);
        }
        Some(self.cache.arena.slices(&parts, look))
    }

    /// Reads up to the next folio, where there is none; returns the number of bytes.
    fn read_around<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error> {
        // This precedes the request to the mapper, as in every reader: see `read_absent`.
        let next = self.next_cached(at >> PAGE_LOG2).map(|page| page << PAGE_LOG2);
        let mapping = self.mapping(mapper, at..at.saturating_add(ASK), Intent::Read)?;
        let end = mapping.end().min(next.unwrap_or(u64::MAX)).max(at);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..len];
        match &mapping.kind {
            Kind::Mapped(_) => {
                let from = mapping.address_of(at).unwrap_or(u64::MAX);
                mapper.contents()?.read_at(at, from, out)?;
                self.cache.counters.direct_reads.add(1);
                self.cache.counters.bytes_read_direct.add(len as u64);
            }
            Kind::Inline(bytes) => {
                let from = usize::try_from(at - mapping.offset).unwrap_or(usize::MAX);
                let stored = bytes.get(from.min(bytes.len())..).unwrap_or(&[]);
                let (head, tail) = out.split_at_mut(stored.len().min(len));
                head.copy_from_slice(&stored[..head.len()]);
                tail.fill(0);
            }
            Kind::Hole | Kind::Delayed | Kind::Unwritten(_) => out.fill(0),
        }
        Ok(len)
    }
}
