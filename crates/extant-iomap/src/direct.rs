//! Past the cache: between the caller's memory and the device, with one copy and no folio.
//!
//! For callers that have a cache of their own, for what is used once, and for programs that ask for it
//! (`O_DIRECT`). Any offset and length will do: the blocks that a write covers whole go past the cache,
//! its ends through it.
//!
//! # Rules
//!
//! - R1. What is cached is newer than the device or the same, so reads look there first, and a write
//!   of a whole block makes the cache forget it, after the device has it.
//! - R2. Data first, as in writeback: the map and the stored size follow when the bytes are on the device.
//! - R3. Overwriting without the content lock held exclusively ([`FileCache::overwrite_direct`]) is for
//!   blocks that no folio has contents of. A reader may fill one meanwhile with what was there before; so
//!   the write looks again at its end, with the folio's lock, and whoever finds one writes once more
//!   with the content lock.
//! - R4. Unwritten blocks get their first data that way too, whole and below the stored size: data, map, look
//!   again, in this order. A reader that asks before the map has changed makes a folio of zeros, which the
//!   look finds; one that asks afterwards reads the data.

use std::io::IoSlice;
use std::ops::Range;

use crate::cache::{CacheError, PAGE_LOG2};
use crate::file::FileCache;
use crate::mapping::{Done, Intent, Kind, Mapper, Mapping, Placed, Placement};
use crate::read::len_inside;
use crate::states::State;
use extant_base::sabotage;

/// How much of a file one question to the mapper is about, in bytes.
const ASK: u64 = 64 << 20;

impl FileCache {
    /// [`read`](Self::read) that makes no folios: what is not cached comes from the device into `out`. The
    /// caller holds the content lock, shared.
    ///
    /// # Errors
    ///
    /// As there.
    ///
    /// # Cost
    ///
    /// One device read for each run of blocks, a copy of what is cached.
    pub fn read_direct<M: Mapper>(
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
            done += match self.find(at >> PAGE_LOG2) {
                Some(pin) => self.read_folio(mapper, &pin, at, rest)?,
                None => self.read_around(mapper, at, rest)?,
            };
        }
        Ok(done)
    }

    /// Where on the device `range` is, which is in front of the end of the file: bytes and their number, one
    /// run behind the other. `None` when a part of it is elsewhere, or in more than `most` runs. True as
    /// long as the caller holds the content lock, shared, for contents that nobody writes past the cache.
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
        if !self.is_free(range.clone()) {
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

    /// Counts what somebody has read from where [`stored_at`](Self::stored_at) says it is.
    pub fn count_read(&self, runs: &[(u64, u64)]) {
        self.cache.counters.direct_reads.add(runs.len() as u64);
        self.cache.counters.bytes_read_direct.add(runs.iter().map(|(_, len)| len).sum());
    }

    /// Calls `look` with the bytes of `range`, which is in front of the end of the file, if all of them are
    /// in the cache, in at most a quarter of it. The caller holds the content lock, shared.
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

    /// Reads where no folio is, up to where one is; returns how many bytes.
    fn read_around<M: Mapper>(
        &self,
        mapper: &M,
        at: u64,
        out: &mut [u8],
    ) -> Result<usize, M::Error> {
        // Before the question, as every reader does it: see `read_absent`.
        let next = self.next_cached(at >> PAGE_LOG2).map(|page| page << PAGE_LOG2);
        let mapping = self.mapping(mapper, at..at.saturating_add(ASK), Intent::Read)?;
        let end = mapping.end().min(next.unwrap_or(u64::MAX)).max(at);
        let len = usize::try_from(end - at).unwrap_or(usize::MAX).min(out.len());
        let out = &mut out[..len];
        match &mapping.kind {
            Kind::Mapped(_) => {
                let from = mapping.address_of(at).unwrap_or(u64::MAX);
                mapper.device().read_at(from, out)?;
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

    /// [`write`](Self::write) whose whole blocks go to the device at once. The caller holds the content
    /// lock exclusively, no folio lock and no journal handle, and the file has no maps.
    ///
    /// # Errors
    ///
    /// As there, and those of writeback for these blocks.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks, and one handle if any of them had no data before. Waits
    /// for writeback of the file.
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
        let Some(whole) = self.whole_blocks(offset..end) else {
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
            // Nothing is wrong, but there is no place for it: the cache has to find out.
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

    /// The blocks that are inside a range whole.
    fn whole_blocks(&self, range: Range<u64>) -> Option<Range<u64>> {
        let block = 1u64 << self.cache.options.block_log2;
        let start = range.start.checked_next_multiple_of(block)?;
        let end = range.end & !(block - 1);
        (start < end).then_some(start..end)
    }

    /// Writes whole blocks; how many bytes, fewer only when an error came in the way.
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
        let mut stored = Stored { at: offset, placements: Vec::new(), new: Vec::new() };
        let failed = self.store(mapper, end, bytes, offset, &mut stored).err();
        if stored.at > offset {
            let size = mapper.size();
            mapper.set_size(size.max(stored.at));
            let placements = std::mem::take(&mut stored.placements);
            let published = mapper.publish(&Done { placements, size_to: stored.at });
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
        match failed {
            Some(error) if stored.at == offset => Err(error),
            _ => Ok((stored.at - offset) as usize),
        }
    }

    /// What nothing was stored to was reserved for nothing.
    fn end_all<M: Mapper>(&self, mapper: &M, stored: &Stored) {
        for mapping in &stored.new {
            let used = stored.at.saturating_sub(mapping.offset).min(mapping.len);
            mapper.end(mapping, used, Intent::Write);
        }
    }

    /// Brings the bytes to the device, with places for them, as far as it goes: up to an error, or to where
    /// the file system has no place, which the cache has to find out.
    fn store<M: Mapper>(
        &self,
        mapper: &M,
        end: u64,
        bytes: &[u8],
        offset: u64,
        stored: &mut Stored,
    ) -> Result<(), M::Error> {
        while stored.at < end {
            let mapping = mapper.map(stored.at..end, Intent::Write)?;
            let mapped_to = mapping.end().min(end);
            stored.new.push(mapping);
            while stored.at < mapped_to {
                let placement = mapper.place(stored.at..mapped_to)?;
                if placement.placed == Placed::Nowhere {
                    return Ok(());
                }
                let part = (placement.offset - offset) as usize
                    ..(placement.offset + placement.len - offset) as usize;
                if let Err(error) = mapper.device().write_at(placement.address, &bytes[part]) {
                    if !sabotage("iomap.direct.place-kept-on-error") {
                        mapper.give_back(&[placement]);
                    }
                    return Err(error.into());
                }
                self.cache.counters.direct_writes.add(1);
                self.cache.counters.bytes_written_direct.add(placement.len);
                stored.at = placement.offset + placement.len;
                stored.placements.push(placement);
            }
        }
        Ok(())
    }

    /// Writes over blocks that the file has, written or not, and that are not cached; any number of callers at
    /// once. The caller holds the content lock, shared, no journal handle, and the file has no maps.
    /// [`Overwritten::Alone`] when it is not that simple, or was not in the end:
    /// [`write_direct`](Self::write_direct) has to do it, all of it.
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
        mapper.begin_overwrite()?;
        let mut durable = how.durable;
        let mut written = Ok(());
        for part in &plan.parts {
            let from = (part.offset - offset) as usize;
            let bytes = &bytes[from..from + part.len as usize];
            written = match how.durable && part.placed == Placed::Over {
                true => mapper.device().write_fua_at(part.address, bytes),
                false => mapper.device().write_at(part.address, bytes),
            };
            durable &= part.placed == Placed::Over && written.is_ok();
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

    /// Where the bytes of `range` go that are to be written over, in steps of `unit` bytes, or why that has
    /// to be done alone. The caller holds the content lock, shared, until what it writes there is on the
    /// device, or keeps those that hold it exclusively waiting otherwise.
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
        if self.has_any(range.clone(), Look::Passing) {
            return Ok(Err(Alone::Cached));
        }
        let is_whole = self.whole_blocks(range.clone()).as_ref() == Some(&range);
        let mut plan = OverwritePlan { range: range.clone(), parts: Vec::new() };
        let mut at = range.start;
        while at < range.end {
            let ask = at..range.end.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Read)?;
            let placed = match mapping.kind {
                Kind::Mapped(_) => Placed::Over,
                Kind::Unwritten(_) if !is_whole => return Ok(Err(Alone::Parts)),
                // What is stored behind the stored size has to move it, which a single writer does.
                Kind::Unwritten(_) if range.end > mapper.stored_size() => {
                    return Ok(Err(Alone::Extends));
                }
                Kind::Unwritten(_) => Placed::Convert,
                Kind::Hole | Kind::Delayed => return Ok(Err(Alone::Hole)),
                Kind::Inline(_) => return Ok(Err(Alone::Inline)),
            };
            let Some(address) = mapping.address_of(at) else { return Ok(Err(Alone::Hole)) };
            let end = mapping.end().min(range.end);
            plan.parts.push(Placement { offset: at, len: end - at, address, placed });
            at = end;
        }
        Ok(Ok(plan))
    }

    /// The bytes of a plan are on the device: the map follows, if it has to.
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
            let new = plan.parts.into_iter().filter(|part| part.placed == Placed::Convert);
            let done = Done { placements: new.collect(), size_to: 0 };
            let _kept_out = self.keep_writeback_out(); // M5.
            mapper.publish(&done)?;
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

    /// A device operation on blocks that [`plan_overwrite`](Self::plan_overwrite) or
    /// [`stored_at`](Self::stored_at) told of has succeeded. `false` for a write of `range` that a reader has
    /// cached meanwhile: it has to be done again, alone (R3). The caller holds the content lock, shared, since
    /// then.
    pub fn end_queued(&self, range: Range<u64>, is_write: bool) -> bool {
        let (counters, len) = (&self.cache.counters, range.end - range.start);
        if !is_write {
            counters.direct_reads.add(1);
            counters.bytes_read_direct.add(len);
        } else {
            counters.direct_writes.add(1);
            counters.bytes_written_direct.add(len);
            if self.has_any(range, Look::Last) && !sabotage("iomap.direct.not-looked-again") {
                return false;
            }
            counters.direct_overwrites.add(1);
        }
        counters.direct_queued.add(1);
        true
    }

    /// A write past the cache holds the content lock exclusively, for this reason.
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

    /// Whether the cache has contents for any byte of the range. The [last](Look::Last) look waits for those who
    /// fill a folio at this moment, perhaps with what they have read before; who fills one later reads
    /// what is there now.
    fn has_any(&self, range: Range<u64>, look: Look) -> bool {
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
            let _filled = (look == Look::Last).then(|| pin.lock());
            if self.cache.states.any(State::Uptodate, self.units(&pin, part)) {
                return true;
            }
        }
        false
    }

    /// Whether no folio has any byte of the range.
    fn is_free(&self, range: Range<u64>) -> bool {
        let next = self.next_cached(range.start >> PAGE_LOG2);
        next.is_none_or(|page| page << PAGE_LOG2 >= range.end)
    }
}

/// How [`FileCache::overwrite_direct`] writes.
#[derive(Clone, Copy, Debug)]
pub struct Overwrite {
    /// Ranges begin and end at multiples of it, in bytes: a block, or less where the device takes less.
    pub unit: u64,
    /// What goes over data is to be durable when it is done.
    pub durable: bool,
}

/// What became of a write over blocks that there are.
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

/// Why a write past the cache is alone with its file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// Some of the range is in the cache, or got there meanwhile.
    Cached,
    /// Some of it has no blocks yet.
    Hole,
    /// It ends behind the end of the file, or behind what is stored of it.
    Extends,
    /// It covers a part of a block that has no data yet, or of what the caller takes for the least.
    Parts,
    /// Programs have parts of the file mapped.
    Mapped,
    /// The data lies in the inode.
    Inline,
    /// It takes rights from the file, or the file can only be appended to.
    Rights,
}

/// Where a write over blocks goes, from [`FileCache::plan_overwrite`].
#[derive(Clone, Debug)]
pub struct OverwritePlan {
    range: Range<u64>,
    parts: Vec<Placement>,
}

impl OverwritePlan {
    /// Whether all of it has data already, so that the map stays as it is.
    pub fn is_plain(&self) -> bool {
        self.parts.iter().all(|part| part.placed == Placed::Over)
    }

    /// The places, in the order of the file, apart.
    pub fn parts(&self) -> &[Placement] {
        &self.parts
    }
}

/// When [`FileCache::has_any`] looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Look {
    /// Before the bytes are written: there will be another look.
    Passing,
    /// When they are there.
    Last,
}

/// How far a write has come.
struct Stored {
    /// First byte that is not on the device.
    at: u64,
    placements: Vec<Placement>,
    /// Answers to be ended.
    new: Vec<Mapping>,
}
