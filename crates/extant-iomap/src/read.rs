//! Reading through the cache.
//!
//! The caller holds the content lock, shared: no writer runs. So uptodate units do not change, and
//! are copied without a lock.

use std::ops::Range;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, Fit};
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper};
use crate::readahead::{order_for, pages_of};
use crate::states::State;
use extant_base::sabotage;

/// Number of bytes that one request to the mapper covers.
const ASK: u64 = 64 << 20;
/// Number of attempts to make room for a folio while other threads take it.
const ROUNDS: usize = 64;
/// Length in bytes up to which a read that continues the last one prefetches for the next.
const EXPECT_MAX: u64 = 8192;

/// Returns how many of `len` bytes from `offset` on are in front of the end of the file.
pub(crate) fn len_inside<M: Mapper>(mapper: &M, offset: u64, len: usize) -> usize {
    let left = mapper.size().saturating_sub(offset);
    usize::try_from(left).unwrap_or(usize::MAX).min(len)
}

impl FileCache {
    /// Fills `out` from byte `offset`; fewer only at the end of the file. Returns the number of
    /// bytes.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; `out` may be partly filled.
    ///
    /// # Cost
    ///
    /// One copy, and for each folio a pin and a check of the bits of the units read.
    pub fn read<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let wanted = len_inside(mapper, offset, out.len());
        let goes_on = wanted as u64 <= EXPECT_MAX && self.goes_on(offset, wanted as u64);
        let mut done = 0;
        while done < wanted {
            let at = offset + done as u64;
            let rest = &mut out[done..wanted];
            done += match self.find(at >> PAGE_LOG2) {
                Some(pin) => {
                    let len = self.read_folio(mapper, &pin, at, rest)?;
                    let behind = at + len as u64;
                    if goes_on && behind + len as u64 <= self.bytes_of(&pin).end {
                        self.cache.arena.expect_read(self.arena_at(&pin, behind), len as u64);
                    }
                    len
                }
                None => self.read_absent(mapper, at, rest)?,
            };
        }
        Ok(done)
    }

    /// Copies bytes of a folio, after filling it where needed.
    pub(crate) fn read_folio<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        at: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let folio = self.bytes_of(pin);
        let len = usize::try_from(folio.end - at).unwrap_or(usize::MAX).min(out.len());
        let range = at..at + len as u64;
        self.make_ready(mapper, pin, range)?;
        self.cache.arena.copy_out(self.arena_at(pin, at), &mut out[..len]);
        Ok(len)
    }

    /// Fills the missing parts of `range`, which is inside the folio, for a reader.
    #[inline]
    fn make_ready<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
    ) -> Result<(), M::Error>
    where
        M::Error: From<CacheError>,
    {
        if pin.is_ahead() && pin.take_ahead() {
            self.arrive(mapper, range.start >> PAGE_LOG2);
        }
        if !self.cache.states.all(State::Uptodate, self.units(pin, range.clone())) {
            self.fill_for_reader(mapper, pin, range)?;
        }
        Ok(())
    }

    /// Reads where there is no folio: holes read as zeros without one, device blocks get one.
    /// Returns the number of bytes of `out` filled, 0 when there is a folio now.
    pub(crate) fn read_absent<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        // This precedes the request to the mapper: bytes that are not cached now cannot become
        // contents until the answer, but dirty data can be written back and evicted meanwhile.
        let next = self.next_cached(at >> PAGE_LOG2).map(|page| page << PAGE_LOG2);
        let mapping = self.mapping(mapper, at..at.saturating_add(ASK), Intent::Read)?;
        let rest = usize::try_from(mapping.end() - at).unwrap_or(usize::MAX).min(out.len());
        let checked = mapper.checked_unit().is_some();
        match &mapping.kind {
            Kind::Hole | Kind::Delayed | Kind::Unwritten(_) if !checked => {
                // Folios in the range may hold data that is not written back yet.
                let next = next.filter(|_| !sabotage("iomap.read.hole-hides-dirty"));
                let free = next.map_or(u64::MAX, |next| next.saturating_sub(at));
                let len = usize::try_from(free).unwrap_or(usize::MAX).min(rest);
                out[..len].fill(0);
                Ok(len)
            }
            Kind::Inline(bytes) if !checked => {
                let from = usize::try_from(at - mapping.offset).unwrap_or(usize::MAX);
                let stored = bytes.get(from.min(bytes.len())..).unwrap_or(&[]);
                let stored = &stored[..stored.len().min(rest)];
                let (head, tail) = out[..rest].split_at_mut(stored.len());
                head.copy_from_slice(stored);
                tail.fill(0);
                Ok(rest)
            }
            _ => {
                let pin = self.read_window(mapper, at, out.len() as u64, mapping.end())?;
                // It stays pinned: a read makes progress however little room there is.
                pin.map_or(Ok(0), |pin| self.read_folio(mapper, &pin, at, out))
            }
        }
    }

    /// Reads blocks without a folio, up to byte `mapped` at least: the window of a reader that
    /// wants `len` bytes at `at`, before the end of the file. Returns the first folio.
    fn read_window<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        len: u64,
        mapped: u64,
    ) -> Result<Option<Pin<'_>>, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let page = at >> PAGE_LOG2;
        // A longer window would evict its own beginning.
        let most = mapper.size().min(at.saturating_add(self.cache.options.bytes / 4));
        let window = self.streams.miss(page, pages_of(at, len.min(most.saturating_sub(at))));
        if window.goes_on {
            self.arrive(mapper, page);
        }
        let end = window.pages.end.saturating_mul(1 << PAGE_LOG2).min(most);
        let pin = self.fill_absent(mapper, at..end.min(mapped).max(at + 1))?;
        if let Some(pin) = &pin {
            let rest = self.bytes_of(pin).end >> PAGE_LOG2..end.div_ceil(1 << PAGE_LOG2);
            self.fetch(mapper, rest, window.goes_on);
        }
        Ok(pin)
    }

    /// Makes a folio for the first bytes of `range` and fills it.
    fn fill_absent<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
    ) -> Result<Option<Pin<'_>>, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let page = range.start >> PAGE_LOG2;
        let order = order_for(pages_of(range.start, range.end - range.start));
        let Some(pin) = self.make_or_relieve(mapper, page, (order, Fit::From), true)? else {
            return Ok(None);
        };
        let folio = self.bytes_of(&pin);
        let part = folio.start..folio.end.min(range.end.max(folio.start + 1));
        self.fill(mapper, &pin, part)?;
        Ok(Some(pin))
    }

    /// Makes a folio; when there is no room, writes something back first. `None` when there is
    /// still no room and the folio is not `needed`.
    pub(crate) fn make_or_relieve<M: Mapper>(
        &self,
        mapper: &M,
        page: u64,
        (order, fit): (u8, Fit),
        needed: bool,
    ) -> Result<Option<Pin<'_>>, M::Error>
    where
        M::Error: From<CacheError>,
    {
        for _ in 0..ROUNDS {
            let ended = self.cache.batches_ended();
            if let Some(pin) = self.make(page, order, fit) {
                return Ok(Some(pin));
            }
            if !needed {
                return Ok(None);
            }
            // Data that other threads are writing back will soon be clean.
            if !mapper.relieve()? && !self.cache.wait_for_batch(ended) {
                // The room is pinned by other threads, or was taken by them.
                std::thread::yield_now();
            }
        }
        Err(self.cache.full().into())
    }

    /// Returns `range` rounded outward to blocks.
    pub(crate) fn block_of(&self, range: Range<u64>) -> Range<u64> {
        let block = 1u64 << self.cache.options.block_log2;
        range.start & !(block - 1)..range.end.div_ceil(block) * block
    }

    /// Calls `look` with the cached bytes of `range`, up to the end of the file, without a copy. A
    /// call shows at most a quarter of the cache: the first bytes of a longer range.
    ///
    /// # Errors
    ///
    /// Those of [`read`](Self::read).
    pub fn with_cached<M: Mapper, R>(
        &self,
        mapper: &M,
        range: Range<u64>,
        look: impl FnOnce(&[std::io::IoSlice<'_>]) -> R,
    ) -> Result<R, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let most = range.start.saturating_add(self.cache.options.bytes / 4);
        let end = range.end.min(mapper.size()).min(most);
        let mut at = range.start;
        let (mut pins, mut parts) = (Vec::new(), Vec::new());
        while at < end {
            let page = at >> PAGE_LOG2;
            let found = match self.find(page) {
                Some(pin) => Some(pin),
                None => {
                    let mapping = self.mapping(mapper, at..at.saturating_add(ASK), Intent::Read)?;
                    if pins.is_empty() && matches!(mapping.kind, Kind::Mapped(_)) {
                        self.read_window(mapper, at, end - at, mapping.end())?
                    } else {
                        let order = order_for(pages_of(at, end - at));
                        // The pins of this answer may be what takes the room.
                        let needed = pins.is_empty();
                        self.make_or_relieve(mapper, page, (order, Fit::From), needed)?
                    }
                }
            };
            let Some(pin) = found else { break };
            let part = at..self.bytes_of(&pin).end.min(end);
            self.make_ready(mapper, &pin, part.clone())?;
            parts.push((self.arena_at(&pin, at), part.end - at));
            at = part.end;
            pins.push(pin);
        }
        Ok(self.cache.arena.slices(&parts, look))
    }
}
