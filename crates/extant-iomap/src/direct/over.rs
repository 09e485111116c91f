//! Direct writes over blocks that the file has: plans of them, for one call or for a queue.

use std::ops::Range;

use super::{ASK, Alone, DirectOptions, DirectOutcome, Look};
use crate::file::FileCache;
use crate::mapping::{Done, Intent, Kind, Mapper, Placed, Placement};
use crate::ranges::RangeLock;
use extant_base::sabotage;

impl FileCache {
    /// Writes beside others: any number of callers at once, with readers. The caller holds the
    /// content lock, shared, no journal handle, and the file has no maps. Returns
    /// [`DirectOutcome::Alone`] when the write must be exclusive, or must be repeated so:
    /// [`write_direct`](Self::write_direct) then does all of it. Returns [`DirectOutcome::Taken`]
    /// when another writer has a part of the range: the caller lets the content lock go,
    /// [waits](Self::lock_range) for the range, takes the content lock again and comes with the range
    /// as its `own`.
    ///
    /// `depart` is called before anything goes to the device: instead of the content lock, the caller
    /// may then keep waiting who would change these blocks' places or contents, or the end of the
    /// file where the write lies behind it.
    ///
    /// # Errors
    ///
    /// Those of the mapper, and of the device while it writes over data; the blocks hold the old
    /// bytes or the new ones.
    ///
    /// # Cost
    ///
    /// One device write for each run of blocks, and one handle when any of them had no data before
    /// or the file grows. Waits for writeback of the file while the map changes.
    pub fn write_direct_shared<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        bytes: &[u8],
        how: DirectOptions,
        own: Option<&RangeLock<'_>>,
        depart: impl FnOnce(),
    ) -> Result<DirectOutcome, M::Error> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        match self.plan_overwrite(mapper, range, how.unit)? {
            Ok(plan) if plan.is_plain() => {
                depart();
                self.overwrite(mapper, plan, bytes, how)
            }
            Ok(_) | Err(Alone::Hole | Alone::Extends | Alone::Parts) => {
                self.fill_shared(mapper, offset, bytes, how.unit, own, depart)
            }
            Err(alone) => Ok(DirectOutcome::Alone(alone)),
        }
    }

    /// Writes over blocks that all have data.
    fn overwrite<M: Mapper>(
        &self,
        mapper: &M,
        plan: OverwritePlan,
        bytes: &[u8],
        how: DirectOptions,
    ) -> Result<DirectOutcome, M::Error> {
        let contents = mapper.contents()?;
        mapper.begin_overwrite()?;
        let mut written = Ok(());
        for part in &plan.parts {
            let from = (part.offset - plan.range.start) as usize;
            let bytes = &bytes[from..from + part.len as usize];
            written = match how.durable {
                true => contents.write_fua_at(part.offset, part.address, bytes),
                false => contents.write_at(part.offset, part.address, bytes),
            };
            if written.is_err() {
                break;
            }
            self.cache.counters.direct_writes.add(1);
            self.cache.counters.bytes_written_direct.add(part.len);
        }
        let durable = how.durable && written.is_ok();
        mapper.end_overwrite(durable);
        written?;
        if self.has_any(plan.range, Look::Last) && !sabotage("iomap.direct.not-looked-again") {
            return Ok(DirectOutcome::Alone(Alone::Cached)); // R3.
        }
        self.cache.counters.direct_overwrites.add(1);
        Ok(DirectOutcome::Done { written: bytes.len(), durable })
    }

    /// Returns the places of an overwrite of `range`, in steps of `unit` bytes, or the reason why a
    /// write there is more than that. The caller holds the content lock, shared, until the bytes are on the
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
                // Data behind the stored size has to raise it.
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

    /// Publishes first data that queued writes stored in unwritten blocks, in as few handles as
    /// possible. `new` are the parts of plans that are [new](OverwritePart::is_new), in any order;
    /// they may overlap. The caller has held the content lock, shared, or what stands for it (R7), since
    /// the plans, and calls
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
        let done = Done { placements: placements.collect(), size_to: 0, grows: false };
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
                Queued::Fill => counters.direct_fills.add(1),
                _ => counters.direct_overwrites.add(1),
            }
        }
        counters.direct_queued.add(1);
        true
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
    /// A write to blocks that the file did not have, published by [`FileCache::end_fills`].
    Fill,
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
