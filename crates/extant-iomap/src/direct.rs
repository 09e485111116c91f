//! Direct I/O: between the caller's memory and the device, without folios.
//!
//! For callers with a cache of their own, for data used once, and for programs that ask for it
//! (`O_DIRECT`). Any offset and length will do: whole blocks of a write bypass the cache, its ends
//! go through it.
//!
//! # Rules
//!
//! - R1. Cached data is as new as the device's or newer, so reads look in the cache first, and a
//!   write of a whole block drops it from the cache after the device has it.
//! - R2. Data first, as in writeback: the map and the stored size follow when the bytes are on the
//!   device.
//! - R3. Overwriting without the exclusive content lock ([`FileCache::overwrite_direct`]) is for
//!   blocks that are not cached. A reader may meanwhile fill a folio with the old contents; so the
//!   write checks again at its end, with the folio's lock, and if there is one, it is repeated with
//!   the exclusive content lock.
//! - R4. First data of whole unwritten blocks below the stored size is written in that way too:
//!   data, map, second check, in this order. A reader that asks before the map has changed makes a
//!   folio of zeros, which the check finds; one that asks afterwards reads the data.

use std::io::IoSlice;
use std::ops::Range;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::FileCache;
use crate::mapping::{Done, Intent, Kind, Mapper, Mapping, Placed, Placement};
use crate::read::len_inside;
use crate::states::State;
use extant_base::sabotage;

/// Number of bytes that one request to the mapper covers.
pub(crate) const ASK: u64 = 64 << 20;

impl FileCache {
    /// Reads like [`read`](Self::read) without making folios: data that is not cached comes from
    /// the device into `out`. The caller holds the content lock, shared.
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
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        if mapper.checked_unit().is_some() {
            return self.read(mapper, offset, out); // E4.
        }
        let wanted = len_inside(mapper, offset, out.len());
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

    /// Writes like [`write`](Self::write), with whole blocks going to the device at once. The
    /// caller holds the content lock exclusively, no folio lock and no journal handle, and the file
    /// has no maps.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write), and those of writeback for these blocks.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks, and one handle if any of them had no data before.
    /// Waits for writeback of the file.
    pub fn write_direct<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, M::Error>
    where
        M::Error: From<CacheError>,
    {
        let end = offset.saturating_add(bytes.len() as u64);
        let whole = self.whole_blocks(offset..end).filter(|_| !mapper.is_staged());
        let Some(whole) = whole else {
            return self.write(mapper, offset, bytes);
        };
        let head = (whole.start - offset) as usize;
        let middle = head..(whole.end - offset) as usize;
        let mut done = 0;
        if head > 0 {
            done = self.write(mapper, offset, &bytes[..head])?;
        } else if offset > mapper.size() {
            self.zero_tail(mapper, mapper.size())?;
        }
        if done < head {
            return Ok(done);
        }
        match self.write_blocks(mapper, whole.start, &bytes[middle.clone()]) {
            // There is no error, but no place for the data: the write through the cache finds the
            // reason.
            Ok(0) => {}
            Ok(written) => done += written,
            Err(error) if done == 0 => return Err(error),
            Err(_) => return Ok(done),
        }
        if done == head || (done == middle.end && done < bytes.len()) {
            match self.write(mapper, offset + done as u64, &bytes[done..]) {
                Ok(written) => done += written,
                Err(error) if done == 0 => return Err(error),
                Err(_) => {}
            }
        }
        Ok(done)
    }

    /// Returns the whole blocks inside a range.
    fn whole_blocks(&self, range: Range<u64>) -> Option<Range<u64>> {
        let block = 1u64 << self.cache.options.block_log2;
        let start = range.start.checked_next_multiple_of(block)?;
        let end = range.end & !(block - 1);
        (start < end).then_some(start..end)
    }

    /// Writes whole blocks; returns the number of bytes, fewer only before an error.
    fn write_blocks<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, M::Error> {
        let end = offset + bytes.len() as u64;
        let kept_out = self.keep_writeback_out();
        if end > mapper.stored_size() && !sabotage("iomap.direct.size-passes-dirty") {
            // The stored size has to follow what is added here, and may not pass what is dirty before it.
            self.write_back_kept_out(mapper, 0..offset, &kept_out)?;
        }
        let mut stored =
            Stored { at: offset, placements: Vec::new(), ticket: None, new: Vec::new() };
        let failed = self.store(mapper, end, bytes, offset, &mut stored).err();
        if stored.at > offset {
            let size = mapper.size();
            mapper.set_size(size.max(stored.at));
            let placements = std::mem::take(&mut stored.placements);
            let published = mapper.publish(Done { placements, size_to: stored.at });
            if published.is_err() {
                mapper.set_size(size);
                stored.at = offset;
            }
            self.end_all(mapper, &stored);
            published?;
            if !sabotage("iomap.direct.old-folio-kept") {
                self.forget(offset..stored.at, &kept_out); // R1.
            }
        } else {
            self.end_all(mapper, &stored);
        }
        if failed.is_some() {
            // The device may have some of the bytes of the write that failed, and readers see what it
            // has. What is dirty there is older than this write, and goes to the device first.
            let touched = stored.at..end;
            if self.write_back_kept_out(mapper, touched.clone(), &kept_out).is_ok() {
                self.forget(touched, &kept_out);
            }
        }
        match failed {
            Some(error) if stored.at == offset => Err(error),
            _ => Ok((stored.at - offset) as usize),
        }
    }

    /// Returns reservations that were not used.
    fn end_all<M: Mapper>(&self, mapper: &M, stored: &Stored<M::Ticket>) {
        for mapping in &stored.new {
            let used = stored.at.saturating_sub(mapping.offset).min(mapping.len);
            mapper.end(mapping, used, Intent::Write);
        }
    }

    /// Writes the bytes to the device, at places of the mapper, up to an error, or to a block for
    /// which the file system has no place, whose reason the write through the cache finds.
    fn store<M: Mapper>(
        &self,
        mapper: &M,
        end: u64,
        bytes: &[u8],
        offset: u64,
        stored: &mut Stored<M::Ticket>,
    ) -> Result<(), M::Error> {
        while stored.at < end {
            let mapping = mapper.map(stored.at..end, Intent::Write)?;
            let mapped_to = mapping.end().min(end);
            stored.new.push(mapping);
            while stored.at < mapped_to {
                let placement = mapper.place(stored.at..mapped_to, stored.last_ticket())?;
                if matches!(placement.placed, Placed::Nowhere) {
                    return Ok(());
                }
                let part =
                    (placement.offset - offset) as usize..(placement.end() - offset) as usize;
                let (offset, address) = (placement.offset, placement.address);
                let written = mapper.contents().and_then(|contents| {
                    contents.write_at(offset, address, &bytes[part]).map_err(M::Error::from)
                });
                if let Err(error) = written {
                    if !sabotage("iomap.direct.place-kept-on-error") {
                        mapper.give_back(placement);
                    }
                    return Err(error);
                }
                self.cache.counters.direct_writes.add(1);
                self.cache.counters.bytes_written_direct.add(placement.len);
                stored.push(placement);
            }
        }
        Ok(())
    }

    /// Writes over allocated blocks, written or not, that are not cached; any number of callers at
    /// once. The caller holds the content lock, shared, no journal handle, and the file has no
    /// maps. Returns [`Overwritten::Alone`] when the write must be exclusive, or must be repeated
    /// so: [`write_direct`](Self::write_direct) then does all of it.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; the blocks hold the old bytes or the new ones.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks, and one handle when any of them had no data before.
    pub fn overwrite_direct<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
        how: Overwrite,
    ) -> Result<Overwritten, M::Error> {
        let plan = match self.plan_overwrite(
            mapper,
            offset..offset.saturating_add(bytes.len() as u64),
            how.unit,
        )? {
            Ok(plan) => plan,
            Err(alone) => return Ok(Overwritten::Alone(alone)),
        };
        let contents = mapper.contents()?;
        mapper.begin_overwrite()?;
        let mut durable = how.durable;
        let mut written = Ok(());
        for part in &plan.parts {
            let from = (part.offset - offset) as usize;
            let bytes = &bytes[from..from + part.len as usize];
            written = match how.durable && !part.is_new {
                true => contents.write_fua_at(part.offset, part.address, bytes),
                false => contents.write_at(part.offset, part.address, bytes),
            };
            durable &= !part.is_new && written.is_ok();
            if written.is_err() {
                break;
            }
            self.cache.counters.direct_writes.add(1);
            self.cache.counters.bytes_written_direct.add(part.len);
        }
        mapper.end_overwrite(durable);
        written?;
        self.end_overwrite_direct(mapper, plan, durable)
    }

    /// Returns the places of an overwrite of `range`, in steps of `unit` bytes, or the reason why
    /// it must be exclusive. The caller holds the content lock, shared, until the bytes are on the
    /// device, or keeps exclusive holders waiting in another way.
    ///
    /// # Errors
    ///
    /// Those of the mapper.
    pub fn plan_overwrite<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        unit: u64,
    ) -> Result<Result<OverwritePlan, Alone>, M::Error> {
        if range.end > mapper.size() {
            return Ok(Err(Alone::Extends));
        }
        if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) || range.is_empty()
        {
            return Ok(Err(Alone::Parts));
        }
        if mapper.is_staged() || self.has_any(range.clone(), Look::Passing) {
            return Ok(Err(Alone::Cached));
        }
        let is_whole = self.whole_blocks(range.clone()).as_ref() == Some(&range);
        let mut plan = OverwritePlan { range: range.clone(), parts: Vec::new() };
        let mut at = range.start;
        while at < range.end {
            let ask = at..range.end.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Read)?;
            let is_new = match mapping.kind {
                Kind::Mapped(_) => false,
                Kind::Unwritten(_) if !is_whole => return Ok(Err(Alone::Parts)),
                // Data behind the stored size has to raise it, which an exclusive writer does.
                Kind::Unwritten(_) if range.end > mapper.stored_size() => {
                    return Ok(Err(Alone::Extends));
                }
                Kind::Unwritten(_) => true,
                Kind::Hole | Kind::Delayed => return Ok(Err(Alone::Hole)),
                Kind::Inline(_) => return Ok(Err(Alone::Inline)),
            };
            let Some(address) = mapping.address_of(at) else { return Ok(Err(Alone::Hole)) };
            let end = mapping.end().min(range.end);
            plan.parts.push(OverwritePart { offset: at, len: end - at, address, is_new });
            at = end;
        }
        Ok(Ok(plan))
    }

    /// Ends an overwrite whose bytes are on the device: publishes first data.
    ///
    /// # Errors
    ///
    /// Those of [`Mapper::publish`].
    fn end_overwrite_direct<M: Mapper>(
        &self,
        mapper: &M,
        plan: OverwritePlan,
        durable: bool,
    ) -> Result<Overwritten, M::Error> {
        let converts = !plan.is_plain();
        if converts {
            let new = plan.parts.into_iter().filter(|part| part.is_new);
            let placements = new.map(|part| {
                let OverwritePart { offset, len, address, .. } = part;
                Placement { offset, len, address, placed: Placed::Convert }
            });
            let done = Done { placements: placements.collect(), size_to: 0 };
            let _kept_out = self.keep_writeback_out(); // M5.
            mapper.publish(done)?;
        }
        if self.has_any(plan.range, Look::Last) && !sabotage("iomap.direct.not-looked-again") {
            return Ok(Overwritten::Alone(Alone::Cached)); // R3, R4.
        }
        match converts {
            true => self.cache.counters.direct_conversions.add(1),
            false => self.cache.counters.direct_overwrites.add(1),
        }
        Ok(Overwritten::Done { durable })
    }

    /// Publishes first data that queued writes stored in unwritten blocks, in as few handles as
    /// possible. `new` are the parts of plans that are [new](OverwritePart::is_new), in any order;
    /// they may overlap. The caller has held the content lock, shared, since the plans, and calls
    /// [`end_queued`](Self::end_queued) for each write afterwards.
    ///
    /// # Errors
    ///
    /// Those of [`Mapper::publish`]: some of the blocks may still be unwritten and read as zeros.
    pub fn publish_queued<M: Mapper>(
        &self,
        mapper: &M,
        new: Vec<OverwritePart>,
    ) -> Result<(), M::Error> {
        let placements = ascending(new).into_iter().map(|part| {
            let OverwritePart { offset, len, address, .. } = part;
            Placement { offset, len, address, placed: Placed::Convert }
        });
        let done = Done { placements: placements.collect(), size_to: 0 };
        let _kept_out = self.keep_writeback_out(); // M5.
        mapper.publish(done)
    }

    /// Ends a device operation on blocks from [`plan_overwrite`](Self::plan_overwrite) or
    /// [`stored_at`](Self::stored_at) that has succeeded and, if needed, was published. Returns
    /// false for a write of `range` that a reader has cached meanwhile: it must be repeated
    /// exclusively (R3). The caller has held the content lock, shared, since then.
    pub fn end_queued(&self, range: Range<u64>, what: Queued) -> bool {
        self.end_looking(range, what, Look::Last)
    }

    /// Ends a device operation like [`end_queued`](Self::end_queued), without waiting: a folio that
    /// another thread is filling counts as cached. Instead of the content lock, something else may
    /// have kept exclusive holders waiting.
    pub fn end_queued_now(&self, range: Range<u64>, what: Queued) -> bool {
        self.end_looking(range, what, Look::Now)
    }

    fn end_looking(&self, range: Range<u64>, what: Queued, look: Look) -> bool {
        let (counters, len) = (&self.cache.counters, range.end - range.start);
        if what == Queued::Read {
            counters.direct_reads.add(1);
            counters.bytes_read_direct.add(len);
        } else {
            counters.direct_writes.add(1);
            counters.bytes_written_direct.add(len);
            if self.has_any(range, look) && !sabotage("iomap.direct.not-looked-again") {
                return false;
            }
            match what {
                Queued::First => counters.direct_conversions.add(1),
                _ => counters.direct_overwrites.add(1),
            }
        }
        counters.direct_queued.add(1);
        true
    }

    /// Counts a direct write that holds the content lock exclusively, by its reason.
    pub fn count_alone(&self, alone: Alone) {
        let counters = &self.cache.counters;
        let counter = match alone {
            Alone::Cached => &counters.direct_alone_cached,
            Alone::Hole => &counters.direct_alone_hole,
            Alone::Extends => &counters.direct_alone_extends,
            Alone::Parts => &counters.direct_alone_parts,
            Alone::Mapped => &counters.direct_alone_mapped,
            Alone::Inline => &counters.direct_alone_inline,
            Alone::Rights => &counters.direct_alone_rights,
        };
        counter.add(1);
    }

    /// Returns whether the cache has contents for any byte of the range. The [last](Look::Last)
    /// check waits for threads that are filling a folio, perhaps with old contents; threads that
    /// fill one later read the new contents.
    pub(crate) fn has_any(&self, range: Range<u64>, look: Look) -> bool {
        let end = range.end.div_ceil(1 << PAGE_LOG2);
        let mut at = range.start >> PAGE_LOG2;
        while let Some(page) = self.next_cached(at).filter(|page| *page < end) {
            let Some(pin) = self.find(page) else {
                at = page + 1;
                continue;
            };
            let folio = self.bytes_of(&pin);
            at = folio.end >> PAGE_LOG2;
            let part = range.start.max(folio.start)..range.end.min(folio.end);
            let filled = match look {
                Look::Passing => None,
                Look::Last => Some(pin.lock()),
                Look::Now => pin.try_lock(),
            };
            if look == Look::Now && filled.is_none() {
                return true;
            }
            if self.cache.states.any(State::Uptodate, self.units(&pin, part)) {
                return true;
            }
        }
        false
    }

    /// Returns whether no folio has any byte of the range.
    pub(crate) fn is_free(&self, range: Range<u64>) -> bool {
        let next = self.next_cached(range.start >> PAGE_LOG2);
        next.is_none_or(|page| page << PAGE_LOG2 >= range.end)
    }
}

/// Returns the parts in ascending order and disjoint, as [`Done`] requires.
fn ascending(mut parts: Vec<OverwritePart>) -> Vec<OverwritePart> {
    parts.sort_by_key(|part| part.offset);
    let mut apart: Vec<OverwritePart> = Vec::new();
    for mut next in parts {
        if let Some(last) = apart.last_mut() {
            let end = last.offset + last.len;
            // A block of a file has one place, so parts that overlap in the file overlap on the
            // device too.
            let known = end.saturating_sub(next.offset).min(next.len);
            next.offset += known;
            next.address += known;
            next.len -= known;
            if next.len == 0 {
                continue;
            }
            if end == next.offset && last.address + last.len == next.address {
                last.len += next.len;
                continue;
            }
        }
        apart.push(next);
    }
    apart
}

/// Kind of a queued operation, for [`FileCache::end_queued`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Queued {
    /// A read.
    Read,
    /// A write over data.
    Over,
    /// A first write to unwritten blocks, published by [`FileCache::publish_queued`].
    First,
}

/// Options of [`FileCache::overwrite_direct`].
#[derive(Clone, Copy, Debug)]
pub struct Overwrite {
    /// Alignment of offsets and lengths in bytes: a block, or less where the device allows it.
    pub unit: u64,
    /// Whether overwritten data is durable when the call returns.
    pub durable: bool,
}

/// Outcome of an overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overwritten {
    /// The bytes are on the device, and durable where `durable` says so.
    Done {
        /// Every byte is on stable storage, and the map needed no change.
        durable: bool,
    },
    /// The write has to be done with the content lock held exclusively.
    Alone(Alone),
}

/// Reason why a direct write is exclusive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// A part of the range is cached, or was cached meanwhile; or all of it has to be, because the
    /// device has other bytes.
    Cached,
    /// A part of the range has no blocks yet.
    Hole,
    /// The write ends behind the end of the file, or behind its stored size.
    Extends,
    /// The write covers a part of a block without data, or of the unit of alignment.
    Parts,
    /// Programs have parts of the file mapped.
    Mapped,
    /// The data lies in the inode.
    Inline,
    /// The write removes privileges from the file, or the file is append-only.
    Rights,
}

/// The places of a write over blocks, from [`FileCache::plan_overwrite`].
#[derive(Clone, Debug)]
pub struct OverwritePlan {
    range: Range<u64>,
    parts: Vec<OverwritePart>,
}

impl OverwritePlan {
    /// Returns whether all blocks have data already, so that the map does not change.
    pub fn is_plain(&self) -> bool {
        !self.parts.iter().any(|part| part.is_new)
    }

    /// Returns the places, in the order of the file, disjoint.
    pub fn parts(&self) -> &[OverwritePart] {
        &self.parts
    }
}

/// A run of blocks of an [`OverwritePlan`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverwritePart {
    /// Offset of the first byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Address of the first byte on the device.
    pub address: u64,
    /// Whether the blocks are unwritten, so that they must be published afterwards.
    pub is_new: bool,
}

/// The time of a check by [`FileCache::has_any`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// Before the bytes are written: there will be another check.
    Passing,
    /// After the bytes are written.
    Last,
    /// After the bytes are written, by a thread that may not wait: what is being filled has
    /// contents.
    Now,
}

/// The progress of a write.
struct Stored<T> {
    /// First byte that is not on the device.
    at: u64,
    placements: Vec<Placement<T>>,
    /// Index of the mapping with the last ticket.
    ticket: Option<usize>,
    /// Mappings to be ended.
    new: Vec<Mapping>,
}

impl<T> Stored<T> {
    fn push(&mut self, placement: Placement<T>) {
        self.at = placement.end();
        if placement.ticket().is_some() {
            self.ticket = Some(self.placements.len());
        }
        self.placements.push(placement);
    }

    fn last_ticket(&self) -> Option<&T> {
        self.placements.get(self.ticket?)?.ticket()
    }
}
