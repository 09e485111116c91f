//! Memory maps: parts of files at addresses of their own.
//!
//! # Place
//!
//! Beside reading and writing: the pages are the cache's, so a store shows to readers at once and a
//! write shows in the map. The program's stores are not observed, so a file system calls
//! [`FileCache::absorb`] before it changes the file, or brings it to the device; and
//! [`FileCache::refresh`] after a change that took blocks out of the cache.
//!
//! # Invariants
//!
//! - Y1. The folios of a map stay pinned, so they are neither evicted nor used for anything else
//!   until the map is dropped; [`FileCache::forget`] empties them and leaves them where they are.
//! - Y2. Their units are uptodate whenever no change of the file is going on.
//! - Y3. Bytes behind the end of the file are zeroed before the file grows over them.
//! - Y4. At most half of the cache is mapped: the rest goes on working.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::arena::SharedMap;
use crate::cache::{Cache, CacheError, PAGE_LOG2};
use crate::file::{FileCache, Fit};
use crate::frames::{FrameId, Pin};
use crate::mapping::{Intent, Kind, Mapper};
use crate::readahead::order_for;
use crate::states::State;

/// Bytes of a page.
const PAGE: u64 = 1 << PAGE_LOG2;

/// A part of a file mapped into memory, made by [`FileCache::map_pages`].
pub struct MappedPages {
    cache: Arc<Cache>,
    /// Bytes of the file: whole pages.
    range: Range<u64>,
    /// The folios with these bytes, in order, each with a pin owned by the map.
    held: Vec<Held>,
    map: SharedMap,
    writable: bool,
}

/// A folio, and the bytes of the file that the map shows of it.
struct Held {
    frame: FrameId,
    bytes: Range<u64>,
}

/// Pins collected for a map.
struct Pins<'a> {
    cache: &'a Arc<Cache>,
    pages: u64,
    held: Vec<Held>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        let_go(self.cache, &self.held, self.pages);
    }
}

fn let_go(cache: &Cache, held: &[Held], pages: u64) {
    for one in held {
        cache.frames.let_go(one.frame);
    }
    if pages > 0 {
        cache.unmap(pages);
    }
}

impl MappedPages {
    /// Returns the bytes of the file that the map shows: whole pages.
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Returns whether stores change the file.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Returns the address of the first byte, valid until this is dropped; other threads change the
    /// bytes at any time.
    pub fn as_ptr(&self) -> *mut u8 {
        self.map.as_ptr()
    }

    /// Copies bytes out, from byte `at` of the map.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub fn read(&self, at: u64, out: &mut [u8]) {
        self.map.read(at, out);
    }

    /// Copies bytes in, like any store.
    ///
    /// # Panics
    ///
    /// When the range is not inside.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.map.write(at, bytes);
    }
}

impl Drop for MappedPages {
    fn drop(&mut self) {
        let_go(&self.cache, &self.held, (self.range.end - self.range.start) >> PAGE_LOG2);
    }
}

impl fmt::Debug for MappedPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let folios = self.held.len();
        write!(f, "MappedPages({:?}, {folios} folios, writable: {})", self.range, self.writable)
    }
}

impl FileCache {
    /// Brings bytes `range`, rounded outward to pages, into the cache and maps them at addresses of
    /// their own. With `writable`, bytes below the end of the file get space or a promise of it
    /// now, and are dirty. The caller holds the content lock exclusively, and the file has no
    /// inline data.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; [`CacheError::Full`] when half of the cache would be
    /// mapped, [`CacheError::Memory`] when the system has no addresses, or its pages are larger
    /// than 4 KiB and do not fit.
    pub fn map_pages<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        writable: bool,
    ) -> Result<MappedPages, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let start = range.start >> PAGE_LOG2 << PAGE_LOG2;
        let end = range.end.div_ceil(PAGE).saturating_mul(PAGE);
        let pages = end.saturating_sub(start) >> PAGE_LOG2;
        if !self.cache.map(pages) {
            return Err(self.cache.full().into());
        }
        let mut pins = Pins { cache: &self.cache, pages, held: Vec::new() };
        let mut pieces: Vec<(u64, u64)> = Vec::new();
        let mut at = start;
        while at < end {
            let page = at >> PAGE_LOG2;
            let pin = match self.find(page) {
                Some(pin) => pin,
                None => {
                    let order = order_for((end - at) >> PAGE_LOG2);
                    match self.make_or_relieve(mapper, page, (order, Fit::From), true)? {
                        Some(pin) => pin,
                        None => continue,
                    }
                }
            };
            let bytes = at..self.bytes_of(&pin).end.min(end);
            self.fill(mapper, &pin, bytes.clone())?;
            let piece = (self.arena_at(&pin, at), bytes.end - at);
            at = bytes.end;
            match pieces.last_mut() {
                Some(last) if last.0 + last.1 == piece.0 => last.1 += piece.1,
                _ => pieces.push(piece),
            }
            pins.held.push(Held { frame: pin.keep(), bytes });
        }
        let map = self.cache.arena.map_range(&pieces).map_err(|error| CacheError::Memory {
            bytes: end.saturating_sub(start),
            why: error.to_string(),
        })?;
        let held = std::mem::take(&mut pins.held);
        // The map gives the pins up from here on.
        pins.pages = 0;
        let mapped =
            MappedPages { cache: Arc::clone(&self.cache), range: start..end, held, map, writable };
        self.absorb(mapper, &mapped, start..end)?;
        Ok(mapped)
    }

    /// Returns the folio of a part of the map, if it is still the file's.
    fn mapped_pin(&self, held: &Held) -> Option<Pin<'_>> {
        self.find(held.bytes.start >> PAGE_LOG2).filter(|pin| pin.id() == held.frame)
    }

    /// Collects the program's stores: bytes of `range` below the end of the file become dirty, with
    /// space or a promise of it, and all behind the end become zeros. The caller holds the content
    /// lock exclusively, no folio lock and no journal handle.
    ///
    /// # Errors
    ///
    /// Those of the mapper: no space where a hole was made under the map. Blocks before are dirty
    /// then.
    ///
    /// # Cost
    ///
    /// Proportional to the folios of the map and the runs of its blocks; no bytes are read.
    pub fn absorb<M: Mapper>(
        &self,
        mapper: &M,
        mapped: &MappedPages,
        range: Range<u64>,
    ) -> Result<(), M::Error> {
        let size = mapper.size();
        let end = self.block_of(0..size).end;
        let first = mapped.held.partition_point(|held| held.bytes.end <= range.start);
        for held in mapped.held.iter().skip(first) {
            let Some(pin) = self.mapped_pin(held) else { continue };
            if size < held.bytes.end {
                self.zero_behind(&pin, held.bytes.start.max(size)..held.bytes.end);
            }
            let wanted = held.bytes.start.max(range.start)..held.bytes.end.min(range.end).min(end);
            if mapped.writable && wanted.start < wanted.end {
                self.dirty_stored(mapper, &pin, self.block_of(wanted))?;
            }
        }
        Ok(())
    }

    /// Zeroes bytes behind the end of the file (Y3).
    fn zero_behind(&self, pin: &Pin<'_>, bytes: Range<u64>) {
        let units = self.units(pin, bytes.clone());
        loop {
            let folio = pin.lock();
            if !self.cache.states.any(State::Writeback, units.clone()) {
                self.cache.arena.zero(self.arena_at(pin, bytes.start), bytes.end - bytes.start);
                return;
            }
            drop(folio);
            self.wait_for_writeback(units.clone());
        }
    }

    fn dirty_stored<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        blocks: Range<u64>,
    ) -> Result<(), M::Error> {
        let mut at = blocks.start;
        while at < blocks.end {
            let mapping = self.mapping(mapper, at..blocks.end, Intent::Write)?;
            let end = mapping.end().min(blocks.end);
            mapper.end(&mapping, end - mapping.offset.min(end), Intent::Write);
            if !matches!(mapping.kind, Kind::Hole | Kind::Inline(_)) {
                let _folio = pin.lock();
                let units = self.units(pin, at..end);
                let mut next = units.start;
                // What is not uptodate waits for `refresh`.
                while let Some(run) = self.cache.states.next_run(State::Uptodate, next..units.end) {
                    next = run.end;
                    self.set_dirty(pin, run);
                }
            }
            at = end.max(at + 1);
        }
        Ok(())
    }

    /// Fills parts of the map whose blocks a change removed from the cache (Y2). The caller holds
    /// the content lock exclusively, and no journal handle.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device. Parts that could not be read keep their bytes, and
    /// stores there do not change the file until they are read.
    pub fn refresh<M: Mapper>(&self, mapper: &M, mapped: &MappedPages) -> Result<(), M::Error> {
        for held in &mapped.held {
            if let Some(pin) = self.mapped_pin(held) {
                self.fill(mapper, &pin, held.bytes.clone())?;
            }
        }
        Ok(())
    }
}
