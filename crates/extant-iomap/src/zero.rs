//! Zeroing through the cache, without a flush.
//!
//! The action for each block depends on its mapping and on its state in the cache:
//!
//! | stored | in the cache | action |
//! | --- | --- | --- |
//! | any | dirty | zeroed in memory, stays dirty |
//! | any | under writeback | waited for, then looked at again |
//! | mapped | clean or absent | zeroed in the cache, dirty |
//! | hole, delayed, unwritten | clean or absent | nothing: it reads as zeros |
//!
//! Only blocks that are dirty or under writeback change their mapping without the content lock, and
//! nothing becomes dirty or goes under writeback while the folio is locked. So the state is checked
//! first: a block that is clean then keeps the mapping that is looked up afterwards. In the other
//! order, a block could be written, converted and evicted in between.

use std::ops::Range;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, Fit, KeptOut};
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper};
use crate::states::State;
use extant_base::sabotage;

/// Number of bytes that one request to the mapper covers.
const ASK: u64 = 1 << 40;

impl FileCache {
    /// Makes bytes `range` read as zeros. Neither the size nor the allocation changes. The caller
    /// holds the content lock exclusively.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; a part of the range may be zeroed.
    ///
    /// # Cost
    ///
    /// Proportional to the folios and mappings of the range, and to the bytes of mapped blocks; not
    /// to its length.
    pub fn zero<M: Mapper>(&self, mapper: &M, range: Range<u64>) -> Result<(), M::Error>
    where
        M::Error: From<CacheError>,
    {
        self.cache.counters.zero_calls.add(1);
        if self.cache.options.flush_before_zero && self.is_dirty() {
            let before = self.cache.stats().device_writes;
            self.write_back(mapper, 0..u64::MAX >> 1)?;
            self.cache.counters.zero_flushes.add(self.cache.stats().device_writes - before);
        }
        let mut at = range.start;
        while at < range.end {
            at = match self.find(at >> PAGE_LOG2) {
                Some(pin) => {
                    let end = self.bytes_of(&pin).end.min(range.end);
                    self.zero_folio(mapper, &pin, at..end)?
                }
                None => self.zero_absent(mapper, at..range.end)?,
            };
        }
        Ok(())
    }

    /// Zeroes the bytes behind byte `size` in its block, before the file grows over them.
    pub fn zero_tail<M: Mapper>(&self, mapper: &M, size: u64) -> Result<(), M::Error>
    where
        M::Error: From<CacheError>,
    {
        let block = 1u64 << self.cache.options.block_log2;
        let end = size.div_ceil(block).saturating_mul(block);
        if size < end { self.zero(mapper, size..end) } else { Ok(()) }
    }

    /// Zeroes the allocated blocks of `range`, in bytes and whole blocks, on the device. The caller
    /// holds the content lock exclusively, and has [dropped](Self::forget) the range from the cache
    /// since it holds writeback off. The caller then converts the blocks if needed.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; a part of the range may be zeroed.
    ///
    /// # Cost
    ///
    /// Proportional to the mappings, if the device has a zeroing command; otherwise to the bytes.
    pub fn write_zeroes<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        _kept_out: &KeptOut<'_>,
    ) -> Result<(), M::Error> {
        let mut at = range.start;
        while at < range.end {
            let mapping = self.mapping(mapper, at..range.end, Intent::Report)?;
            let end = mapping.end().min(range.end);
            if let Some(address) = mapping.address_of(at) {
                mapper.contents()?.write_zeroes(at, address, end - at)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Zeroes a range without a folio. Returns the end of the zeroed part.
    fn zero_absent<M: Mapper>(&self, mapper: &M, range: Range<u64>) -> Result<u64, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let at = range.start;
        let next = self.next_cached(at >> PAGE_LOG2).map(|page| page << PAGE_LOG2);
        let ask = at..range.end.max(at.saturating_add(ASK));
        let mapping = self.mapping(mapper, ask, Intent::Zero)?;
        let end = mapping.end().min(range.end);
        if matches!(mapping.kind, Kind::Mapped(_) | Kind::Inline(_)) {
            let order = crate::readahead::order_for(crate::readahead::pages_of(at, end - at));
            // The next round finds the folio and zeroes it.
            self.make_or_relieve(mapper, at >> PAGE_LOG2, (order, Fit::From), true)?;
            return Ok(at);
        }
        if sabotage("iomap.zero.dirty-behind-hole-kept") {
            return Ok(end);
        }
        Ok(next.map_or(end, |next| next.max(at).min(end)))
    }

    /// Zeroes a range in a folio. Returns the end of the zeroed part, before that of the range when
    /// the rest must be looked up again.
    fn zero_folio<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
    ) -> Result<u64, M::Error> {
        let cache = &*self.cache;
        let mut folio = pin.lock();
        if pin.is_detached() {
            return Ok(range.start);
        }
        let mut at = range.start;
        while at < range.end {
            let block = self.block_of(at..at + 1);
            let units = self.units(pin, block.clone());
            if cache.states.any(State::Writeback, units.clone()) {
                drop(folio);
                self.wait_for_writeback(units);
                return Ok(at);
            }
            let end = block.end.min(range.end);
            let (to, len) = (self.arena_at(pin, at), end - at);
            if cache.states.all(State::Dirty, units.clone()) {
                cache.arena.zero(to, len);
                at = end;
                continue;
            }
            let rest = self.units(pin, at..range.end);
            let base = rest.start;
            let next = [State::Dirty, State::Writeback]
                .into_iter()
                .filter_map(|state| cache.states.next_run(state, rest.clone()))
                .map(|run| run.start)
                .min();
            let ask = at..range.end.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Zero)?;
            if matches!(mapping.kind, Kind::Mapped(_) | Kind::Inline(_)) {
                let is_part = at > block.start || end < block.end;
                if is_part && !cache.states.all(State::Uptodate, units.clone()) {
                    // The pin keeps what is filled; the rest is looked at again.
                    drop(folio);
                    self.fill(mapper, pin, block)?;
                    folio = pin.lock();
                    continue;
                }
                cache.arena.zero(to, len);
                cache.states.set(State::Uptodate, units.clone());
                self.set_dirty(pin, units);
                at = end;
                continue;
            }
            // Nothing to do up to the next dirty or busy unit, as far as this mapping goes.
            let clean_end = mapping.end().min(range.end);
            let unit = cache.unit_log2;
            let first = at >> unit << unit;
            let next = next.map(|next| (first + ((next - base) << unit)).max(at));
            at = next.map_or(clean_end, |next| next.min(clean_end));
        }
        Ok(range.end)
    }
}
