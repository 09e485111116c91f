//! Writing into the cache.
//!
//! The caller holds the content lock exclusively: no reader and no other writer runs, but writeback
//! may.

use std::ops::Range;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::{FileCache, Fit};
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper, Mapping};
use crate::readahead::{order_for, pages_of};
use crate::states::State;
use extant_base::sabotage;

/// Length in bytes up to which a write prefetches for the next one behind it.
const EXPECT_MAX: u64 = 8192;
/// Largest gap, in bytes, behind the end at which a write counts as an append: NFS servers and some
/// linkers write with gaps.
const APPEND_GAP: u64 = 64 << 10;
/// Largest folio of an append as a share of the contents before it, as a power of two.
const APPEND_SHARE_LOG2: u32 = 3;

impl FileCache {
    /// Writes `bytes` at byte `offset` and returns the number of bytes written: fewer only before
    /// an error, which the next call returns.
    ///
    /// # Errors
    ///
    /// Those of the mapper (no space) and of the device (a block that is written in part is read
    /// first), when they come before the first byte. The size has grown over exactly the bytes
    /// written.
    ///
    /// # Cost
    ///
    /// One copy; state in proportion to the bytes. Waits for the device only for blocks that are
    /// under writeback or that are written in part and not cached.
    pub fn write<M: Mapper>(&self, mapper: &M, offset: u64, bytes: &[u8]) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let size = mapper.size();
        if offset > size && !bytes.is_empty() && !sabotage("iomap.write.old-tail-shows") {
            self.zero_tail(mapper, size)?;
        }
        let mut done = 0;
        while done < bytes.len() {
            match self.write_some(mapper, offset + done as u64, &bytes[done..]) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Writes into one folio; returns 0 when something changed meanwhile and the write must be
    /// repeated.
    fn write_some<M: Mapper>(&self, mapper: &M, at: u64, bytes: &[u8]) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let page = at >> PAGE_LOG2;
        let found = self.find(page);
        let pin = match found {
            Some(pin) => pin,
            None => {
                let place = self.place_for_write(mapper, at, bytes.len() as u64);
                match self.make_or_relieve(mapper, page, place, true)? {
                    Some(pin) => pin,
                    None => return Ok(0),
                }
            }
        };
        let folio = self.bytes_of(&pin);
        let mut len = (bytes.len() as u64).min(folio.end - at);
        let is_dirty = |len: u64| {
            let units = self.units(&pin, self.block_of(at..at + len));
            self.cache.states.all(State::Dirty, units)
        };
        let was_dirty = is_dirty(len);
        let mut mapping = None;
        if !was_dirty {
            let answer = self.mapping(mapper, self.block_of(at..at + len), Intent::Write)?;
            len = len.min(answer.end() - at);
            mapping = Some(answer);
        }
        let put = self.put(mapper, &pin, at, &bytes[..len as usize], mapping.as_ref());
        if let Some(mapping) = &mapping {
            let used = if matches!(put, Ok(true)) {
                mapping.len.min(at + len - mapping.offset)
            } else {
                0
            };
            mapper.end(mapping, used, Intent::Write);
        }
        Ok(if put? { len as usize } else { 0 })
    }

    /// Copies into a folio. Returns false when the folio, its state or the mapping has changed
    /// since the caller looked. Without a mapping, all blocks must be dirty.
    fn put<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        at: u64,
        bytes: &[u8],
        mapping: Option<&Mapping>,
    ) -> Result<bool, M::Error> {
        let cache = &*self.cache;
        let range = at..at + bytes.len() as u64;
        let blocks = self.block_of(range.clone());
        let units = self.units(pin, blocks.clone());
        // The content lock makes this thread the only one that counts here.
        self.inner.units_touched.add_alone(units.end - units.start);
        loop {
            let folio = pin.lock();
            if pin.is_detached() {
                return Ok(false);
            }
            if cache.states.any(State::Writeback, units.clone())
                && !sabotage("iomap.write.under-writeback")
            {
                drop(folio);
                self.wait_for_writeback(units);
                return Ok(false);
            }
            match mapping {
                Some(mapping) => {
                    if !mapper.is_current(mapping.cookie) && !sabotage("iomap.write.stale-mapping")
                    {
                        cache.counters.stale_mappings.add(1);
                        return Ok(false);
                    }
                    let missing =
                        self.prepare_edges(mapper, pin, range.clone(), blocks.clone(), mapping);
                    if let Some(block) = missing {
                        // The pin keeps what is filled; the rest is looked at again.
                        drop(folio);
                        self.fill(mapper, pin, block)?;
                        continue;
                    }
                }
                None if !cache.states.all(State::Dirty, units.clone()) => return Ok(false),
                None => {}
            }
            self.copy_locked(mapper, pin, at, bytes, units);
            return Ok(true);
        }
    }

    /// Copies into the `units` of a locked folio, whose other bytes are valid.
    pub(crate) fn copy_locked<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        at: u64,
        bytes: &[u8],
        units: Range<u64>,
    ) {
        let cache = &*self.cache;
        debug_assert!(!cache.states.any(State::Filling, units.clone()), "a fill beside a writer");
        // The bits are set first: changing a word after the copy would wait until the copy is in
        // memory.
        cache.states.set(State::Uptodate, units.clone());
        self.set_dirty(pin, units);
        let to = self.arena_at(pin, at);
        cache.arena.copy_in(to, bytes);
        let len = bytes.len() as u64;
        let end = at + len;
        if len <= EXPECT_MAX && end + len <= self.bytes_of(pin).end {
            cache.arena.expect_write(to + len, len);
        }
        self.inner.bytes_copied.add_alone(bytes.len() as u64);
        if end > mapper.size() {
            mapper.set_size(end);
        }
    }

    /// Makes the blocks at both ends of `range` valid that the write covers only in part. Returns the
    /// first that has contents which are not in the cache: it has to be filled before, and the caller
    /// looks again. The folio is locked.
    pub(crate) fn prepare_edges<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        blocks: Range<u64>,
        mapping: &Mapping,
    ) -> Option<Range<u64>> {
        let block = 1u64 << self.cache.options.block_log2;
        let first = blocks.start..blocks.start + block;
        let last = blocks.end - block..blocks.end;
        if (range.start > first.start || range.end < first.end)
            && !self.prepare_block(mapper, pin, &first, &range, mapping)
        {
            return Some(first);
        }
        if last.start != first.start
            && range.end < last.end
            && !sabotage("iomap.write.last-block-not-read")
            && !self.prepare_block(mapper, pin, &last, &range, mapping)
        {
            return Some(last);
        }
        None
    }

    /// Makes the part of a block outside `written` valid, if that takes no fill. Returns whether it
    /// is.
    fn prepare_block<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        block: &Range<u64>,
        written: &Range<u64>,
        mapping: &Mapping,
    ) -> bool {
        let cache = &*self.cache;
        if cache.states.all(State::Uptodate, self.units(pin, block.clone())) {
            return true;
        }
        let has_data = matches!(mapping.kind, Kind::Mapped(_) | Kind::Inline(_))
            && block.start < mapper.size();
        if has_data {
            return false;
        }
        let head = block.start..written.start.max(block.start);
        let tail = written.end.min(block.end)..block.end;
        for part in [head, tail] {
            if part.start < part.end {
                cache.arena.zero(self.arena_at(pin, part.start), part.end - part.start);
            }
        }
        true
    }

    /// Returns the size and the place of a folio for a write: as large as the write; for an append
    /// also a share of the file's contents, so that small appends share folios and waste little.
    pub(crate) fn place_for_write<M: Mapper>(&self, mapper: &M, at: u64, len: u64) -> (u8, Fit) {
        let wanted = order_for(pages_of(at, len));
        let size = mapper.size();
        let shared = order_for(at >> PAGE_LOG2 >> APPEND_SHARE_LOG2);
        if at < size || at - size > APPEND_GAP || shared <= wanted {
            return (wanted, Fit::From);
        }
        (shared, Fit::Around)
    }
}
