//! Direct writes beside others that change the map: into holes, over blocks without data, behind
//! the end (R5, R6).

use std::ops::Range;

use extant_base::sabotage;
use extant_block::{AlignedBuffer, DeviceError};

use super::{ASK, Alone, DirectOutcome, Look, Progress};
use crate::contents::Contents;
use crate::file::FileCache;
use crate::mapping::{Intent, Kind, Mapper, Placed, Placement};
use crate::ranges::{RangeLock, RangeLocks};

/// Why a write beside others goes no further.
enum Stop {
    /// It has to be alone.
    Alone(Alone),
    /// The device has failed.
    Failed(DeviceError),
}

/// Whatever it is, the exclusive writer meets it again (R6).
fn refused<E>(_error: E) -> Stop {
    Stop::Alone(Alone::Refused)
}

/// A part of a write: where the device gets it.
enum Step {
    /// Over data, from this offset to that one, at this address.
    Over(Range<u64>, u64),
    /// Whole blocks without data: this placement of the write's progress.
    First(usize),
}

/// A write of `bytes` at `range`, of which some lie in blocks without data.
struct Fill<'a> {
    range: Range<u64>,
    bytes: &'a [u8],
    contents: Contents<'a>,
    block: u64,
}

impl FileCache {
    /// Waits for the blocks of a range, which is not empty, and locks them for a writer that may give
    /// them data. The caller does not hold the content lock, and nothing else that a writer needs who
    /// has a part of the range: it asks for the content lock afterwards.
    pub fn lock_range(&self, range: Range<u64>) -> RangeLock<'_> {
        self.ranges.lock(self.block_of(range))
    }

    /// Adds the blocks of a range, which is not empty, to those that a thread has locked. Returns
    /// false if another thread has some of them or waits for them. Writers that give blocks their
    /// first data by a queue hold them until that is [published](Self::publish_queued).
    pub fn try_lock_range<'a>(&'a self, range: Range<u64>, own: &mut RangeLocks<'a>) -> bool {
        own.try_add(&self.ranges, self.block_of(range))
    }

    /// Writes beside others, also where there is no data yet. Calls `depart` when all places are
    /// known (R7).
    pub(super) fn fill_shared<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
        unit: u64,
        own: Option<&RangeLock<'_>>,
        depart: impl FnOnce(),
    ) -> Result<DirectOutcome, M::Error> {
        let Some(end) = offset.checked_add(bytes.len() as u64) else {
            return Ok(DirectOutcome::Alone(Alone::Extends));
        };
        let mut range = offset..end;
        if bytes.is_empty() || !offset.is_multiple_of(unit) || !end.is_multiple_of(unit) {
            return Ok(DirectOutcome::Alone(Alone::Parts));
        }
        let lock = match own {
            Some(_) => None,
            None => self.ranges.try_lock(self.block_of(range.clone())),
        };
        if own.is_none() && lock.is_none() && !sabotage("iomap.direct.range-not-awaited") {
            return Ok(DirectOutcome::Taken);
        }
        if let Some(alone) = self.keeps_from_filling(mapper, &range) {
            return Ok(DirectOutcome::Alone(alone));
        }
        let contents = mapper.contents()?;
        mapper.begin_overwrite()?;
        let block = 1 << self.cache.options.block_log2;
        let fill = Fill { range: range.clone(), bytes, contents, block };
        let mut progress = Progress::new(offset);
        let mut steps = Vec::new();
        let mut filled = self.take_places(mapper, &fill, &mut progress, &mut steps);
        if filled.is_ok() {
            depart();
            filled = self.write_steps(mapper, &fill, &mut progress, &steps);
        }
        mapper.end_overwrite(false);
        match filled {
            Ok(()) => {}
            Err(Stop::Alone(alone)) => {
                self.take_back(mapper, progress);
                return Ok(DirectOutcome::Alone(alone));
            }
            Err(Stop::Failed(error)) => {
                // What is there before it is kept, and the next call meets the error.
                range.end = progress.at.min(end);
                if range.end <= offset {
                    self.take_back(mapper, progress);
                    return Err(error.into());
                }
            }
        }
        let adds = !progress.new.is_empty();
        let converts = !progress.placements.is_empty();
        let grows = self.publish_progress(mapper, &range, progress)?;
        let written_to = range.end;
        if self.has_any(range, Look::Last) && !sabotage("iomap.direct.not-looked-again") {
            return Ok(DirectOutcome::Alone(Alone::Cached)); // R3, R4.
        }
        let counters = &self.cache.counters;
        match (adds || grows, converts) {
            (true, _) => counters.direct_fills.add(1),
            (false, true) => counters.direct_conversions.add(1),
            // Another writer gave the blocks their data first.
            (false, false) => counters.direct_overwrites.add(1),
        }
        let written = (written_to - offset) as usize;
        Ok(DirectOutcome::Done { written, durable: false })
    }

    /// Returns why a write that changes the map has to be alone, as far as is known before it.
    pub(super) fn keeps_from_filling<M: Mapper>(
        &self,
        mapper: &M,
        range: &Range<u64>,
    ) -> Option<Alone> {
        let size = mapper.size();
        let is_inside_block = !size.is_multiple_of(1 << self.cache.options.block_log2);
        if mapper.is_staged() || self.has_any(self.block_of(range.clone()), Look::Passing) {
            Some(Alone::Cached)
        } else if range.start > size && is_inside_block {
            // What lies between the end and the write in the last block has to become zeros.
            Some(Alone::Extends)
        } else {
            None
        }
    }

    /// Takes places for all of a write: its steps, in ascending order.
    fn take_places<M: Mapper>(
        &self,
        mapper: &M,
        fill: &Fill<'_>,
        progress: &mut Progress<M::Ticket>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Stop> {
        let blocks = self.block_of(fill.range.clone());
        let mut at = blocks.start;
        while at < blocks.end {
            let ask = at..blocks.end.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Read).map_err(refused)?;
            let end = mapping.end().min(blocks.end);
            match (&mapping.kind, mapping.address_of(at)) {
                (Kind::Mapped(_), Some(address)) => {
                    let part = at.max(fill.range.start)..end.min(fill.range.end);
                    steps.push(Step::Over(part.clone(), address + (part.start - at)));
                }
                (Kind::Unwritten(_), Some(address)) => {
                    let (offset, len) = (at, end - at);
                    steps.push(Step::First(progress.placements.len()));
                    progress.push(Placement { offset, len, address, placed: Placed::Convert });
                }
                (Kind::Hole, _) => self.take_hole(mapper, at..end, progress, steps)?,
                (Kind::Inline(_), _) => return Err(Stop::Alone(Alone::Inline)),
                // Delayed blocks are dirty in the cache, or were promised for others.
                _ => return Err(Stop::Alone(Alone::Cached)),
            }
            at = end;
        }
        Ok(())
    }

    /// Takes blocks for a hole.
    fn take_hole<M: Mapper>(
        &self,
        mapper: &M,
        hole: Range<u64>,
        progress: &mut Progress<M::Ticket>,
        steps: &mut Vec<Step>,
    ) -> Result<(), Stop> {
        if mapper.adds_alone() {
            return Err(Stop::Alone(Alone::Hole));
        }
        let mut at = hole.start;
        while at < hole.end {
            let mapping = mapper.map(at..hole.end, Intent::Write).map_err(refused)?;
            let mapped_to = mapping.end().min(hole.end);
            let is_new = mapping.flags.is_new && mapping.kind == Kind::Delayed;
            progress.new.push(mapping);
            if !is_new {
                return Err(Stop::Alone(Alone::Cached));
            }
            while at < mapped_to {
                let placement = mapper.place(at..mapped_to, progress.last_ticket());
                let placement = placement.map_err(refused)?;
                if matches!(placement.placed, Placed::Nowhere) {
                    return Err(Stop::Alone(Alone::Refused));
                }
                at = placement.end();
                steps.push(Step::First(progress.placements.len()));
                progress.push(placement);
            }
        }
        Ok(())
    }

    /// Writes the bytes to their places, with zeros around them in blocks that have no data. After an
    /// error the progress ends before the step that failed, and the places behind are given back.
    fn write_steps<M: Mapper>(
        &self,
        mapper: &M,
        fill: &Fill<'_>,
        progress: &mut Progress<M::Ticket>,
        steps: &[Step],
    ) -> Result<(), Stop> {
        progress.at = fill.range.start;
        for step in steps {
            let (from, end, written) = match step {
                Step::Over(part, address) => {
                    (part.start, part.end, self.write_part(fill, part.clone(), *address))
                }
                Step::First(index) => {
                    let Some(placement) = progress.placements.get(*index) else { continue };
                    let (from, end) = (placement.offset, placement.end());
                    (from, end, self.write_padded(fill, from..end, placement.address))
                }
            };
            if let Err(stop) = written {
                let kept = progress.placements.partition_point(|one| one.offset < from);
                progress.placements.drain(kept..).for_each(|placement| mapper.give_back(placement));
                return Err(stop);
            }
            progress.at = end;
        }
        Ok(())
    }

    /// Writes the bytes of a part of the range.
    fn write_part(&self, fill: &Fill<'_>, part: Range<u64>, address: u64) -> Result<(), Stop> {
        let from = (part.start - fill.range.start) as usize;
        let len = part.end - part.start;
        let bytes = &fill.bytes[from..from + len as usize];
        fill.contents.write_at(part.start, address, bytes).map_err(Stop::Failed)?;
        self.cache.counters.direct_writes.add(1);
        self.cache.counters.bytes_written_direct.add(len);
        Ok(())
    }

    /// Writes whole blocks without data: the bytes of the range in them, and zeros in the rest.
    fn write_padded(&self, fill: &Fill<'_>, blocks: Range<u64>, address: u64) -> Result<(), Stop> {
        let mut at = blocks.start;
        while at < blocks.end {
            let part = at.max(fill.range.start)..blocks.end.min(fill.range.end);
            let whole_end = part.end & !(fill.block - 1);
            let to = address + (at - blocks.start);
            if part.start == at && whole_end > at {
                self.write_part(fill, at..whole_end, to)?;
                at = whole_end;
                continue;
            }
            let part = part.start..part.end.min(at + fill.block);
            if sabotage("iomap.direct.fill-not-padded") {
                self.write_part(fill, part.clone(), to + (part.start - at))?;
                at += fill.block;
                continue;
            }
            let mut padded = AlignedBuffer::zeroed(fill.block as usize);
            let from = (part.start - fill.range.start) as usize;
            let bytes = &fill.bytes[from..from + (part.end - part.start) as usize];
            padded[(part.start - at) as usize..][..bytes.len()].copy_from_slice(bytes);
            fill.contents.write_at(at, to, &padded).map_err(Stop::Failed)?;
            self.cache.counters.direct_writes.add(1);
            self.cache.counters.bytes_written_direct.add(fill.block);
            at += fill.block;
        }
        Ok(())
    }

    /// Gives everything back that a write has taken, and that is not in the map.
    pub(super) fn take_back<M: Mapper>(&self, mapper: &M, mut progress: Progress<M::Ticket>) {
        for placement in std::mem::take(&mut progress.placements) {
            mapper.give_back(placement);
        }
        progress.at = 0;
        self.end_all(mapper, &progress);
    }
}
