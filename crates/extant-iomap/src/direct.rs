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
//!   blocks that no folio has. A reader may make one meanwhile and fill it with what was there before; so
//!   the write looks again at its end, and whoever finds one writes once more with the lock.

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

    /// Writes whole blocks that hold data of the file already and that no folio has; any number of callers
    /// at once. The caller holds the content lock, shared, and the file has no maps. `false` when it is
    /// not that simple, or was not in the end: [`write_direct`](Self::write_direct) has to do it, all
    /// of it.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device; the blocks hold the old bytes or the new ones.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks.
    pub fn overwrite_direct<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<bool, M::Error> {
        let end = offset.saturating_add(bytes.len() as u64);
        if self.whole_blocks(offset..end) != Some(offset..end)
            || end > mapper.size()
            || !self.is_free(offset..end)
        {
            return Ok(false);
        }
        let mut parts = Vec::new();
        let mut at = offset;
        while at < end {
            let mapping =
                self.mapping(mapper, at..end.max(at.saturating_add(ASK)), Intent::Read)?;
            let (Kind::Mapped(_), Some(to)) = (&mapping.kind, mapping.address_of(at)) else {
                return Ok(false);
            };
            let next = mapping.end().min(end);
            parts.push((to, (at - offset) as usize..(next - offset) as usize));
            at = next;
        }
        mapper.begin_overwrite()?;
        let mut written = Ok(());
        for (to, part) in parts {
            let len = part.len() as u64;
            written = mapper.device().write_at(to, &bytes[part]);
            if written.is_err() {
                break;
            }
            self.cache.counters.direct_writes.add(1);
            self.cache.counters.bytes_written_direct.add(len);
        }
        mapper.end_overwrite();
        written?;
        Ok(self.is_free(offset..end) || sabotage("iomap.direct.not-looked-again")) // R3.
    }

    /// Whether no folio has any byte of the range.
    fn is_free(&self, range: Range<u64>) -> bool {
        let next = self.next_cached(range.start >> PAGE_LOG2);
        next.is_none_or(|page| page << PAGE_LOG2 >= range.end)
    }
}

/// How far a write has come.
struct Stored {
    /// First byte that is not on the device.
    at: u64,
    placements: Vec<Placement>,
    /// Answers to be ended.
    new: Vec<Mapping>,
}
