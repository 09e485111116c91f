//! Writeback from the cache to the device: data first, then the metadata that points to it.
//!
//! # Rules
//!
//! - W1. One thread at a time writes back a file, in ascending order, so the stored size passes no
//!   block that was dirty when the pass began.
//! - W2. Units are under writeback from the moment they are taken until their placement is
//!   published; they do not change meanwhile.
//! - W3. After an error, units are dirty again, and their places given back. Nothing is lost, and
//!   the next pass tries again.
//! - W4. The writes of a batch are under way together, in any order; what is published is the part of
//!   the batch in front of the first one that failed.
//! - W5. Data of a file that is [logged](Mapper::is_logged) goes nowhere but into the transactions
//!   that publish it.

use std::ops::Range;

use extant_block::WriteRun;

use crate::cache::PAGE_LOG2;
use crate::file::FileCache;
use crate::frames::Pin;
use crate::mapping::{Done, Mapper, Placed, Placement};
use crate::states::State;
use extant_base::sabotage;

/// Limit of the bytes of one batch, which is under writeback and published in one handle.
const BATCH_BYTES: u64 = 64 << 20;
/// Limit of the runs of one batch.
const BATCH_RUNS: usize = 1024;
/// Limit of the pieces of one device write, that of `pwritev`.
const VECTOR: usize = 1024;

/// A run of dirty bytes in one folio, under writeback.
struct Segment<'a> {
    pin: Pin<'a>,
    file: Range<u64>,
    arena: u64,
}

/// A write of one placement, or of a part of one that has too many parts.
struct Request {
    /// Index of the placement.
    number: usize,
    file: Range<u64>,
    address: u64,
    parts: Range<usize>,
}

impl FileCache {
    /// Writes back the dirty data of `range`, and returns the number of bytes. When it returns, the
    /// data is on the device, though not durable, and the map and the stored size follow in a
    /// transaction.
    ///
    /// The caller holds no folio lock and no journal handle; it may hold content locks.
    ///
    /// # Errors
    ///
    /// Those of the mapper and the device. Data that was not written stays dirty.
    pub fn write_back<M: Mapper>(&self, mapper: &M, range: Range<u64>) -> Result<u64, M::Error> {
        self.write_back_some(mapper, range, u64::MAX)
    }

    /// Writes back about `most` bytes, like [`write_back`](Self::write_back).
    ///
    /// # Errors
    ///
    /// As [`write_back`](Self::write_back).
    pub fn write_back_some<M: Mapper>(
        &self,
        mapper: &M,
        range: Range<u64>,
        most: u64,
    ) -> Result<u64, M::Error> {
        let _one = self.writeback.lock();
        self.write_back_held(mapper, range, most)
    }

    /// Writes back like [`write_back_some`](Self::write_back_some), for a caller that holds other
    /// writeback off.
    ///
    /// # Errors
    ///
    /// As [`write_back`](Self::write_back).
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
        // Blocks behind the stored size raise it, and it must not pass dirty data: then everything
        // in front is written with them.
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
            // The order matters: a writer dirties before it raises the size, so the data in front
            // of this size was dirty before the check for the rest.
            let size = mapper.size();
            let first_left = self.inner.index.read().dirty.first().map(|page| page << PAGE_LOG2);
            let size_to = match first_left {
                None => size,
                Some(_) => last.file.end.min(size),
            };
            let once = batch.iter().filter(|segment| segment.pin.is_once());
            let once: Vec<u64> = once.map(|segment| segment.pin.start()).collect();
            let outcome = self.write_batch(mapper, &batch, size_to);
            drop(batch);
            for pin in once.into_iter().filter_map(|page| self.find_for_once(page)) {
                self.drop_once(pin); // O3.
            }
            match outcome {
                Ok(bytes) => written += bytes,
                Err(error) => {
                    self.note_error();
                    return Err(error);
                }
            }
        }
        Ok(written)
    }

    /// Collects dirty runs of `range`, in order, and puts them under writeback.
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
            // Not a use of its own.
            let Some(pin) = self.find_for_once(start) else {
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
            // Stores behind the end through a memory map are no contents.
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
        let (mut placements, mut failed) = self.place_all(mapper, batch);
        let is_logged = mapper.is_logged();
        if !is_logged && !self.cache.options.publish_before_data {
            let sent = self.send_all(mapper, batch, &placements);
            if let Err((first, error)) = sent {
                // What lies behind it may be on the device, but nothing leads there. So the size
                // passes no block that is missing.
                let behind = placements.split_off(first);
                if !sabotage("iomap.writeback.place-kept-on-error") {
                    behind.into_iter().for_each(|placement| mapper.give_back(placement));
                }
                failed = Some(error);
            }
        }
        let good_to = match (&failed, placements.last()) {
            (None, _) => u64::MAX,
            (Some(_), Some(last)) => last.end(),
            (Some(_), None) => 0,
        };
        let mut done = Done { placements, size_to: size_to.min(good_to), grows: false };
        if sabotage("iomap.writeback.size-passes-failure") {
            done.size_to = size_to;
        }
        let late: Vec<Placement<()>> = match self.cache.options.publish_before_data {
            true if !is_logged => done.placements.iter().map(without_ticket).collect(),
            _ => Vec::new(),
        };
        let published = match is_logged {
            _ if good_to == 0 => Ok(()),
            true => mapper.publish_logged(done, &|at, out| self.copy_batch(batch, at, out)),
            false => mapper.publish(done),
        };
        self.send_all(mapper, batch, &late).map_err(|(_, error)| error)?;
        let good_to = if published.is_ok() { good_to } else { 0 };
        self.finish(batch, good_to);
        match (published, failed) {
            (Err(error), _) | (Ok(()), Some(error)) => Err(error),
            (Ok(()), None) => Ok(batch.iter().map(|run| run.file.end - run.file.start).sum()),
        }
    }

    /// Copies bytes of a batch from `at` on, which do not change while they are under writeback.
    fn copy_batch(&self, batch: &[Segment<'_>], mut at: u64, mut out: &mut [u8]) {
        let mut index = batch.partition_point(|segment| segment.file.end <= at);
        while let Some(segment) = batch.get(index).filter(|_| !out.is_empty()) {
            debug_assert!(segment.file.start <= at, "bytes that are not in the batch");
            let left = segment.file.end.saturating_sub(at);
            let count = out.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let (now, later) = out.split_at_mut(count);
            self.cache.arena.copy_out(segment.arena + (at - segment.file.start), now);
            (at, out, index) = (at + count as u64, later, index + 1);
        }
    }

    /// Asks for a place for every byte of a batch; up to the first error.
    fn place_all<M: Mapper>(
        &self,
        mapper: &M,
        batch: &[Segment<'_>],
    ) -> (Vec<Placement<M::Ticket>>, Option<M::Error>) {
        let mut placements: Vec<Placement<M::Ticket>> = Vec::new();
        // Index of the placement with the last ticket.
        let mut ticket = None;
        let mut first = 0;
        while first < batch.len() {
            // Segments that are contiguous in the file.
            let mut end = first + 1;
            while end < batch.len() && batch[end].file.start == batch[end - 1].file.end {
                end += 1;
            }
            let run = batch[first].file.start..batch[end - 1].file.end;
            let mut at = run.start;
            while at < run.end {
                let before = ticket.and_then(|last: usize| placements.get(last)?.ticket());
                match mapper.place(at..run.end, before) {
                    Ok(placement) => {
                        at = placement.end();
                        if placement.ticket().is_some() {
                            ticket = Some(placements.len());
                        }
                        placements.push(placement);
                    }
                    Err(error) => return (placements, Some(error)),
                }
            }
            first = end;
        }
        (placements, None)
    }

    /// Writes the bytes of placements, in ascending order, from the segments that have them, as many
    /// at once as the device likes.
    ///
    /// # Errors
    ///
    /// That of the first placement that was not written as a whole, with its index. Those behind it
    /// may be written or not.
    fn send_all<M: Mapper, T>(
        &self,
        mapper: &M,
        segments: &[Segment<'_>],
        placements: &[Placement<T>],
    ) -> Result<(), (usize, M::Error)> {
        let cache = &*self.cache;
        // The parts of all requests, one request after the other.
        let mut parts: Vec<(u64, u64)> = Vec::new();
        let mut requests: Vec<Request> = Vec::new();
        let mut index = 0;
        for (number, placement) in placements.iter().enumerate() {
            if matches!(placement.placed, Placed::Nowhere) {
                continue;
            }
            let (mut at, end) = (placement.offset, placement.end());
            while segments.get(index).is_some_and(|segment| segment.file.end <= at) {
                index += 1;
            }
            while at < end {
                let (start, first) = (at, parts.len());
                while at < end && parts.len() - first < VECTOR {
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
                let address = placement.address + (start - placement.offset);
                let parts = first..parts.len();
                requests.push(Request { number, file: start..at, address, parts });
            }
        }
        let Some(first) = requests.first() else { return Ok(()) };
        let contents = mapper.contents().map_err(|error| (first.number, error))?;
        let results = cache.arena.slices(&parts, |slices| {
            let run = |request: &Request| {
                let parts = &slices[request.parts.clone()];
                (request.file.start, WriteRun { offset: request.address, parts })
            };
            let runs = requests.iter().map(run).collect::<Vec<_>>();
            contents.write_runs(&runs, cache.options.stage_threads)
        });
        let mut failed = None;
        for (request, result) in requests.iter().zip(results) {
            match result {
                Ok(()) => {
                    cache.counters.device_writes.add(1);
                    cache.counters.bytes_written.add(request.file.end - request.file.start);
                }
                Err(error) if failed.is_none() => {
                    failed = Some((request.number, error.into()));
                }
                Err(_) => {}
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Ends the writeback of a batch: units before byte `good_to` of the file become clean, the
    /// rest dirty again (W3).
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

/// Returns a placement without its ticket, for callers that do not own the blocks.
fn without_ticket<T>(placement: &Placement<T>) -> Placement<()> {
    let placed = match placement.placed {
        Placed::Over => Placed::Over,
        Placed::Convert => Placed::Convert,
        Placed::Pinned(_) => Placed::Pinned(()),
        Placed::Nowhere => Placed::Nowhere,
    };
    Placement { offset: placement.offset, len: placement.len, address: placement.address, placed }
}
