//! Reads and writes that never wait.
//!
//! # Rules
//!
//! - T1. All checks come before the first visible side effect: the lock of the folio, its state,
//!   its mapping, and last the promise of space. After a promise nothing is refused.
//! - T2. An attempt is refused only before its first byte; afterwards it ends and returns how far
//!   it got. Nothing done is undone.
//! - T3. A folio that was made for an attempt that is refused stays, clean and empty: the next one
//!   finds it.
//!
//! [`no_waiting`](extant_sync::no_waiting) defines what counts as waiting, and checks it in debug
//! builds.

use std::ops::Range;

use crate::cache::PAGE_LOG2;
use crate::direct::{ASK, Look};
use crate::file::FileCache;
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper, Mapping, Obstacle};
use crate::read::len_inside;
use crate::states::State;

/// Number of times a mapping is requested that is changing at this moment.
const LOOKS: usize = 4;

impl FileCache {
    /// Writes like [`write`](Self::write), as far as no wait is needed. The caller holds the
    /// content lock exclusively; `offset` is not behind the end, or the end is that of a block.
    ///
    /// # Errors
    ///
    /// The obstacle in front of the first byte: nothing has changed.
    ///
    /// # Cost
    ///
    /// As [`write`](Self::write).
    pub fn try_write<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Obstacle> {
        let mut done = 0;
        while done < bytes.len() {
            match self.try_write_some(mapper, offset + done as u64, &bytes[done..]) {
                Ok(written) => done += written,
                Err(_) if done > 0 => break,
                Err(obstacle) => return Err(obstacle),
            }
        }
        Ok(done)
    }

    /// Checks that [`try_write`](Self::try_write) of `len` bytes would not end early for want of
    /// memory, or because of writeback, locks, or unknown parts of the map, for a write that must
    /// be whole or not happen at all. The folios for it exist afterwards, and stay while the
    /// returned value is kept. Only space may still be missing.
    ///
    /// # Errors
    ///
    /// The first obstacle.
    pub fn prepare_whole<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        len: u64,
    ) -> Result<impl Sized, Obstacle> {
        let mut pins = Vec::new();
        let mut at = offset;
        while at < offset + len {
            let pin = self.pin_to_write(mapper, at, offset + len - at)?;
            let end = self.bytes_of(&pin).end.min(offset + len);
            let units = self.units(&pin, self.block_of(at..end));
            if self.cache.states.any(State::Writeback, units.clone()) {
                return Err(Obstacle::Writeback);
            }
            if self.cache.states.any(State::Filling, units) || pin.try_lock().is_none() {
                return Err(Obstacle::Folio);
            }
            pins.push(pin);
            let mut asked = at;
            while asked < end {
                asked = mapper.try_map(asked..end, Intent::Read)?.end();
            }
            at = end;
        }
        Ok(pins)
    }

    /// Returns the folio for a write at `at`, existing or new.
    fn pin_to_write<M: Mapper>(&self, mapper: &M, at: u64, len: u64) -> Result<Pin<'_>, Obstacle> {
        let page = at >> PAGE_LOG2;
        if let Some(pin) = self.find(page) {
            return Ok(pin);
        }
        let (order, fit) = self.place_for_write(mapper, at, len);
        self.try_make(page, order, fit).ok_or(Obstacle::Memory)
    }

    /// Writes into one folio, up to its end or that of the mapping.
    fn try_write_some<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        bytes: &[u8],
    ) -> Result<usize, Obstacle> {
        let pin = self.pin_to_write(mapper, at, bytes.len() as u64)?;
        let states = &self.cache.states;
        let mut end = self.bytes_of(&pin).end.min(at + bytes.len() as u64);
        let _folio = pin.try_lock().ok_or(Obstacle::Folio)?;
        if pin.is_detached() {
            return Err(Obstacle::Folio);
        }
        let mut units = self.units(&pin, self.block_of(at..end));
        if states.any(State::Writeback, units.clone()) {
            return Err(Obstacle::Writeback);
        }
        self.inner.units_touched.add_alone(units.end - units.start);
        if !states.all(State::Dirty, units.clone()) {
            // What is dirty is not being filled.
            if states.any(State::Filling, units) {
                return Err(Obstacle::Folio);
            }
            // This is done under the lock of the folio, which the waiting path takes afterwards: so
            // no promise has to be given back.
            let mapping = self.try_mapping(mapper, &pin, at..end, Intent::Write)?;
            end = end.min(mapping.end());
            let blocks = self.block_of(at..end);
            units = self.units(&pin, blocks.clone());
            if self.prepare_edges(mapper, &pin, at..end, blocks, &mapping).is_some() {
                return Err(Obstacle::Device);
            }
        }
        let len = (end - at) as usize;
        self.copy_locked(mapper, &pin, at, &bytes[..len], units);
        Ok(len)
    }

    /// Returns the mapping of the first bytes of `range`, valid while the folio is locked; for a
    /// write that needs no read.
    fn try_mapping<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        intent: Intent,
    ) -> Result<Mapping, Obstacle> {
        let known = self.known.about(range.start).filter(|known| {
            mapper.is_current(known.cookie) && !matches!(known.kind, Kind::Hole | Kind::Inline(_))
        });
        if let Some(known) = known {
            self.needs_no_device(mapper, pin, range, &known)?;
            return Ok(known);
        }
        for _ in 0..LOOKS {
            self.cache.counters.mappings.add(1);
            let mapping = mapper.try_map(self.block_of(range.clone()), intent)?;
            self.known.note(&mapping);
            // No other thread can change the former hole: content lock and folio lock are held.
            if mapping.flags.is_new {
                return Ok(mapping);
            }
            self.needs_no_device(mapper, pin, range.clone(), &mapping)?;
            if mapper.is_current(mapping.cookie) {
                return Ok(mapping);
            }
            self.cache.counters.stale_mappings.add(1);
        }
        Err(Obstacle::Map)
    }

    /// Checks that the partly written blocks at the ends of `range` need no read.
    fn needs_no_device<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        mapping: &Mapping,
    ) -> Result<(), Obstacle> {
        let range = range.start..range.end.min(mapping.end());
        let blocks = self.block_of(range.clone());
        let block = 1u64 << self.cache.options.block_log2;
        let is_missing = |start: u64, is_part: bool| {
            is_part
                && matches!(mapping.kind, Kind::Mapped(_) | Kind::Inline(_))
                && start < mapper.size()
                && !self.cache.states.all(State::Uptodate, self.units(pin, start..start + block))
        };
        let (first, last) = (blocks.start, blocks.end - block);
        if is_missing(first, range.start > first || range.end < first + block)
            || is_missing(last, range.end < blocks.end)
        {
            return Err(Obstacle::Device);
        }
        Ok(())
    }

    /// Reads like [`read`](Self::read), as far as no wait is needed. The caller holds the content
    /// lock, shared.
    ///
    /// # Errors
    ///
    /// The obstacle in front of the first byte.
    ///
    /// # Cost
    ///
    /// As [`read`](Self::read).
    pub fn try_read<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        out: &mut [u8],
    ) -> Result<usize, Obstacle> {
        let wanted = len_inside(mapper, offset, out.len());
        let mut done = 0;
        while done < wanted {
            match self.try_read_some(mapper, offset + done as u64, &mut out[done..wanted]) {
                Ok(read) => done += read,
                Err(_) if done > 0 => break,
                Err(obstacle) => return Err(obstacle),
            }
        }
        Ok(done)
    }

    /// Returns the device address of `range`, which is not empty and inside the file, if one device
    /// operation reads it, or overwrites it if it `writes`: it is data in one run and not cached.
    /// The caller holds the content lock, shared, until the operation has ended, or keeps exclusive
    /// holders waiting in another way.
    ///
    /// # Errors
    ///
    /// The obstacle. [`Obstacle::Device`] for what is not data in one run,
    /// [`Obstacle::Folio`] for what is cached.
    pub fn try_place<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        writes: bool,
    ) -> Result<u64, Obstacle> {
        let is_cached = match writes {
            true => self.has_any(range.clone(), Look::Passing),
            false => !self.is_free(range.clone()),
        };
        if is_cached {
            return Err(Obstacle::Folio);
        }
        if mapper.is_staged() {
            return Err(Obstacle::Device);
        }
        let known = self.known.about(range.start);
        let mapping = match known.filter(|known| mapper.is_current(known.cookie)) {
            Some(known) => known,
            None => {
                self.cache.counters.mappings.add(1);
                let ask = range.start..range.end.max(range.start.saturating_add(ASK));
                let mapping = mapper.try_map(ask, Intent::Read)?;
                self.known.note(&mapping);
                mapping
            }
        };
        match (&mapping.kind, mapping.address_of(range.start)) {
            (Kind::Mapped(_), Some(address)) if mapping.end() >= range.end => Ok(address),
            _ => Err(Obstacle::Device),
        }
    }

    fn try_read_some<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        out: &mut [u8],
    ) -> Result<usize, Obstacle> {
        if let Some(pin) = self.find(at >> PAGE_LOG2) {
            let end = self.bytes_of(&pin).end.min(at + out.len() as u64);
            let units = self.units(&pin, at..end);
            if !self.cache.states.all(State::Uptodate, units) {
                return Err(Obstacle::Device);
            }
            if pin.is_ahead() && pin.take_ahead() {
                self.arrive(mapper, at >> PAGE_LOG2);
            }
            let len = (end - at) as usize;
            self.cache.arena.copy_out(self.arena_at(&pin, at), &mut out[..len]);
            return Ok(len);
        }
        // This precedes the request to the mapper, as in reads that may wait: see `read_absent`.
        let next = self.next_cached(at >> PAGE_LOG2).map_or(u64::MAX, |page| page << PAGE_LOG2);
        let known = self.known.about(at).filter(|known| mapper.is_current(known.cookie));
        let mapping = match known {
            Some(known) => known,
            None => mapper.try_map(at..at + out.len() as u64, Intent::Read)?,
        };
        match mapping.kind {
            // Zeros are checked as well (E4).
            _ if mapper.checked_unit().is_some() => Err(Obstacle::Device),
            Kind::Hole | Kind::Delayed | Kind::Unwritten(_) => {
                let end = mapping.end().min(next).min(at + out.len() as u64);
                if end <= at {
                    // A folio was made meanwhile.
                    return Err(Obstacle::Folio);
                }
                out[..(end - at) as usize].fill(0);
                Ok((end - at) as usize)
            }
            Kind::Mapped(_) | Kind::Inline(_) => Err(Obstacle::Device),
        }
    }
}
