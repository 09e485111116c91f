//! From the cache to the device: data first, then what points to it.
//!
//! # Rules
//!
//! - W1. One thread at a time writes back a file, in ascending order, so the stored size passes
//!   no block that was dirty when the pass began.
//! - W2. Units are under writeback from the moment they are taken until their placement is
//!   published; they do not change meanwhile.
//! - W3. After an error, units are dirty again, and their places given back. Nothing is lost, and the next pass
//!   tries again.

use std::io::IoSlice;
use std::ops::Range;

use crate::cache::PAGE_LOG2;
use crate::file::FileCache;
use crate::frames::Pin;
use crate::mapping::{Done, Mapper, Placed, Placement};
use crate::states::State;
use extant_base::sabotage;

/// Most bytes of one batch: what is under writeback, and in one handle.
const BATCH_BYTES: u64 = 64 << 20;
/// Most runs of one batch.
const BATCH_RUNS: usize = 1024;
/// Most pieces of one device write: what `pwritev` takes.
const VECTOR: usize = 1024;

/// A run of dirty bytes in one folio, under writeback.
struct Segment<'a> {
    pin: Pin<'a>,
    file: Range<u64>,
    arena: u64,
}

impl FileCache {
    /// Writes back what is dirty in `range` now, and returns how many bytes that was. When it
    /// returns, the data is on the device, though not durable, and the map and the stored size
    /// follow in a transaction.
    ///
    /// The caller holds no folio lock and no journal handle; it may hold content locks.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device. What was not written stays dirty.
    pub fn write_back<M: Mapper>(&self, mapper: &M, range: Range<u64>) -> Result<u64, M::Error> {
        self.write_back_some(mapper, range, u64::MAX)
    }

    /// [`write_back`](Self::write_back) of about `most` bytes.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_back_some<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        most: u64,
    ) -> Result<u64, M::Error> {
        let _one = self.writeback.lock();
        self.write_back_held(mapper, range, most)
    }

    /// [`write_back_some`](Self::write_back_some) for a caller that has kept writeback out and is
    /// the writeback now.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn write_back_kept_out<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        _kept_out: &crate::file::KeptOut<'_>,
    ) -> Result<u64, M::Error> {
        self.write_back_held(mapper, range, u64::MAX)
    }

    fn write_back_held<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        most: u64,
    ) -> Result<u64, M::Error> {
        // Blocks behind the stored size bring it along, and it must pass nothing that is dirty: then all in front
        // goes with the part.
        let passes = range.end > self.block_of(0..mapper.stored_size()).end;
        let range = match passes && !sabotage("iomap.writeback.size-passes-dirty") {
            true => 0..range.end,
            false => range,
        };
        let mut at = range.start;
        let mut written = 0;
        while written < most && !self.has_ended() {
            self.cache.begin_batch();
            let batch = self.collect(mapper, at..range.end);
            let Some(last) = batch.last() else {
                self.cache.end_batch(false);
                break;
            };
            at = last.file.end;
            // In this order: a writer dirties before it raises the size, so what is in front of this
            // size was dirty before the look at what is left.
            let size = mapper.size();
            let first_left = self.inner.index.read().dirty.first().map(|page| page << PAGE_LOG2);
            let size_to = match first_left {
                None => size,
                Some(_) => last.file.end.min(size),
            };
            match self.write_batch(mapper, &batch, size_to) {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    self.note_error();
                    return Err(error);
                }
            }
        }
        Ok(written)
    }

    /// Takes dirty runs of `range`, in order, and puts them under writeback.
    fn collect<M: Mapper>(&self, mapper: &M, range: Range<u64>) -> Vec<Segment<'_>> {
        let mut batch: Vec<Segment<'_>> = Vec::new();
        let mut bytes = 0;
        let mut from = range.start >> PAGE_LOG2;
        while bytes < BATCH_BYTES && batch.len() < BATCH_RUNS {
            let next = {
                let index = self.inner.index.read();
                let inside = index.at(from).map(|(start, ..)| start);
                let inside = inside.filter(|start| index.dirty.contains(start));
                inside.or_else(|| index.dirty.range(from..).next().copied())
            };
            let Some(start) = next.filter(|start| start << PAGE_LOG2 < range.end) else { break };
            let Some(pin) = self.find(start) else {
                from = start + 1;
                continue;
            };
            from = start + u64::from(pin.pages());
            bytes += self.collect_folio(mapper, pin, &range, &mut batch);
        }
        batch
    }

    fn collect_folio<'a, M: Mapper>(
        &'a self,
        mapper: &M,
        pin: Pin<'a>,
        range: &Range<u64>,
        batch: &mut Vec<Segment<'a>>,
    ) -> u64 {
        let cache = &*self.cache;
        let folio = self.bytes_of(&pin);
        let guard = pin.lock();
        if pin.is_detached() {
            return 0;
        }
        let size = mapper.size();
        let end = self.block_of(0..size).end;
        let base = cache.units_of(pin.id(), pin.order());
        if end < folio.end {
            // Stores behind the end through a mapping are not contents.
            let behind = self.units(&pin, end.max(folio.start)..folio.end);
            let dropped = cache.states.clear(State::Dirty, behind);
            cache.sub_dirty(dropped);
        }
        if size < folio.end && size > folio.start && size < end {
            let units = self.units(&pin, size..size + 1);
            if cache.states.all(State::Dirty, units) {
                cache.arena.zero(self.arena_at(&pin, size), end.min(folio.end) - size);
            }
        }
        let wanted = self.block_of(range.start.max(folio.start)..range.end.min(folio.end));
        let units = self.units(&pin, wanted);
        let unit = cache.unit_log2;
        let (mut bytes, mut next) = (0, units.start);
        while let Some(run) = cache.states.next_run(State::Dirty, next..units.end) {
            next = run.end;
            cache.states.set(State::Writeback, run.clone());
            cache.sub_dirty(cache.states.clear(State::Dirty, run.clone()));
            let file = folio.start + ((run.start - base.start) << unit)
                ..folio.start + ((run.end - base.start) << unit);
            bytes += file.end - file.start;
            let arena = self.arena_at(&pin, file.start);
            batch.push(Segment { pin: pin.clone(), file, arena });
        }
        self.unlist_if_clean(&pin);
        drop(guard);
        bytes
    }

    /// Writes a batch and publishes it. Ends the writeback of its units in any case.
    fn write_batch<M: Mapper>(
        &self,
        mapper: &M,
        batch: &[Segment<'_>],
        size_to: u64,
    ) -> Result<u64, M::Error> {
        let mut done = Done { placements: Vec::new(), size_to };
        let mut failed = None;
        let mut first = 0;
        'runs: while first < batch.len() {
            // Segments that follow each other in the file.
            let mut end = first + 1;
            while end < batch.len() && batch[end].file.start == batch[end - 1].file.end {
                end += 1;
            }
            let run = batch[first].file.start..batch[end - 1].file.end;
            let mut at = run.start;
            while at < run.end {
                let placement = match mapper.place(at..run.end) {
                    Ok(placement) => placement,
                    Err(error) => {
                        failed = Some(error);
                        break 'runs;
                    }
                };
                if !self.cache.options.publish_before_data
                    && let Err(error) = self.send(mapper, &batch[first..end], &placement)
                {
                    if !sabotage("iomap.writeback.place-kept-on-error") {
                        mapper.give_back(&[placement]);
                    }
                    failed = Some(error);
                    break 'runs;
                }
                at = placement.offset + placement.len;
                done.placements.push(placement);
            }
            first = end;
        }
        let good_to = match (&failed, done.placements.last()) {
            (None, _) => u64::MAX,
            (Some(_), Some(last)) => last.offset + last.len,
            (Some(_), None) => 0,
        };
        done.size_to = size_to.min(good_to);
        if sabotage("iomap.writeback.size-passes-failure") {
            done.size_to = size_to;
        }
        let published = if good_to == 0 { Ok(()) } else { mapper.publish(&done) };
        if self.cache.options.publish_before_data {
            for placement in &done.placements {
                self.send(mapper, batch, placement)?;
            }
        }
        let good_to = if published.is_ok() { good_to } else { 0 };
        self.finish(batch, good_to);
        match (published, failed) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(batch.iter().map(|run| run.file.end - run.file.start).sum()),
        }
    }

    /// Writes the bytes of one placement, from the segments that have them.
    fn send<M: Mapper>(
        &self,
        mapper: &M,
        segments: &[Segment<'_>],
        placement: &Placement,
    ) -> Result<(), M::Error> {
        if placement.placed == Placed::Nowhere {
            return Ok(());
        }
        let cache = &*self.cache;
        let end = placement.offset + placement.len;
        let mut index = segments.partition_point(|segment| segment.file.end <= placement.offset);
        let mut at = placement.offset;
        let mut parts: Vec<(u64, u64)> = Vec::new();
        while at < end {
            let start = at;
            parts.clear();
            while at < end && parts.len() < VECTOR {
                let Some(segment) = segments.get(index) else { break };
                let part_end = segment.file.end.min(end);
                parts.push((segment.arena + (at - segment.file.start), part_end - at));
                at = part_end;
                if at == segment.file.end {
                    index += 1;
                }
            }
            if at == start {
                break;
            }
            let to = placement.address + (start - placement.offset);
            let device = mapper.device();
            cache
                .arena
                .slices(&parts, |slices: &[IoSlice<'_>]| device.write_vectored_at(to, slices))?;
            cache.counters.device_writes.add(1);
            cache.counters.bytes_written.add(at - start);
        }
        Ok(())
    }

    /// Ends the writeback of a batch: what is before byte `good_to` of the file is clean, the rest is
    /// dirty again (W3).
    fn finish(&self, batch: &[Segment<'_>], good_to: u64) {
        for segment in batch.iter().filter(|segment| segment.file.end > good_to) {
            let _folio = segment.pin.lock();
            if !segment.pin.is_detached() && !sabotage("iomap.writeback.clean-after-error") {
                let bad = segment.file.start.max(good_to)..segment.file.end;
                self.set_dirty(&segment.pin, self.units(&segment.pin, bad));
            }
        }
        self.end_writeback(
            batch.iter().map(|segment| self.units(&segment.pin, segment.file.clone())),
        );
        self.cache.end_batch(true);
    }
}
