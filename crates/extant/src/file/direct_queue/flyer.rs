//! What becomes of the requests of a batch: their places, and what is due when they have ended.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::sabotage;
use extant_block::DeviceError;
use extant_iomap::{Alone, DirectOptions, Mapper, OverwritePart, Queued, QueuedFill, RangeLocks};
use extant_sync::{Hold, Rank, RwLockReadGuard};

use super::drive::{Batch, Flight, Fly, Plan, Target, is_late};
use super::{DirectKind, DirectRequest};
use crate::error::Result;
use crate::file::direct_file::DirectFile;
use crate::file::{FileMapper, Ticket, WriteBy, check_changeable};
use crate::node::{Content, Spans, UnderWay};

/// Reads on a read-only mount, where maps do not change.
pub(super) struct Unchanging<'f>(pub(super) &'f DirectFile);

impl Fly for Unchanging<'_> {
    fn plan(&mut self, _number: usize, request: &DirectRequest) -> Plan {
        let file = self.0;
        let place = |range| {
            let inode = file.inode();
            inode.fs().view(inode.node()).stored_range(range).ok()?
        };
        let at = file.range_of_read(request).and_then(place);
        at.map_or(Plan::Alone, |address| Plan::Go(Target::read(address)))
    }

    fn rest(&mut self) {}

    fn end(
        &mut self,
        _number: usize,
        request: &DirectRequest,
        _target: Target,
        result: std::result::Result<(), DeviceError>,
    ) -> Option<Result<usize>> {
        let error = |error| self.0.inode().volume().read_error(error);
        Some(result.map(|()| request.buffer.len()).map_err(error))
    }

    fn refused(&mut self, _number: usize) {}
}

/// The content lock, or what stands for it while operations are under way (J1).
enum Keep<'n> {
    Lock(RwLockReadGuard<'n, ()>),
    Hold(Hold),
    /// Between the two.
    Nothing,
}

/// Requests on a writable mount. What is declared last is let go last, also when the caller's code
/// panics.
pub(super) struct Flyer<'a, 'm> {
    handle: &'a DirectFile,
    mapper: &'a FileMapper<'m>,
    spans: &'m Spans,
    may_write: bool,
    wrote: bool,
    ends: EndsOverwrite<'a, 'm>,
    /// First data that the device has.
    first: Vec<OverwritePart>,
    fills: Fills<'a, 'm>,
    /// Ranges without data, until the first data in them is published (J4).
    ranges: RangeLocks<'m>,
    /// What the device has, by its numbers.
    under_way: Vec<Option<UnderWay<'m>>>,
    /// First data that it has had, until that is published.
    arrived: Vec<UnderWay<'m>>,
    content: Keep<'m>,
}

impl<'a, 'm> Flyer<'a, 'm> {
    pub(super) fn new(
        handle: &'a DirectFile,
        mapper: &'a FileMapper<'m>,
        spans: &'m Spans,
        may_write: bool,
        content: RwLockReadGuard<'m, ()>,
    ) -> Flyer<'a, 'm> {
        Flyer {
            handle,
            mapper,
            spans,
            may_write,
            wrote: false,
            ends: EndsOverwrite { mapper: may_write.then_some(mapper), durable: true },
            first: Vec::new(),
            fills: Fills { mapper, taken: BTreeMap::new() },
            ranges: RangeLocks::new(),
            under_way: Vec::new(),
            arrived: Vec::new(),
            content: Keep::Lock(content),
        }
    }

    /// Publishes first data (J5), when nothing is under way any more; returns whether anything was
    /// written.
    pub(super) fn end(self, batch: &mut Batch<'_>) -> bool {
        let Flyer { mapper, wrote, ends, first, mut fills, .. } = self;
        let (ranges, under_way) = (self.ranges, (self.under_way, self.arrived));
        drop(ends);
        let cache = &mapper.file.cache;
        let has_first = first.is_empty() || cache.publish_queued(mapper, first).is_ok();
        let has_fills = fills.end().is_ok();
        let is_published = |what| if what == Queued::First { has_first } else { has_fills };
        for (_, Flight { request, target, result }) in &mut batch.later {
            let Some(what) = target.map(|target| target.what).filter(|what| is_late(*what)) else {
                continue;
            };
            if matches!(result, Some(Ok(_)))
                && !(is_published(what) && cache.end_queued(request.range(), what))
            {
                // The request is repeated alone: it gets its own error, or writes through the cache.
                *result = None;
            }
        }
        drop((fills, ranges, under_way));
        wrote
    }

    /// Takes the content lock again, if it is free and nobody waits for it.
    fn return_to_lock(&mut self) -> bool {
        let content = &self.mapper.node.content;
        if content.is_wanted_exclusively() && !self.under_way.is_empty() {
            return false;
        }
        if !matches!(self.content, Keep::Lock(_)) {
            self.content = Keep::Nothing;
            self.content = match content.try_read() {
                Some(guard) => Keep::Lock(guard),
                None => Keep::Nothing,
            };
        }
        matches!(self.content, Keep::Lock(_))
    }
}

impl Fly for Flyer<'_, '_> {
    fn plan(&mut self, number: usize, request: &DirectRequest) -> Plan {
        let node = self.mapper.node;
        if !self.return_to_lock() {
            return Plan::Pause;
        }
        // Its flags may have changed since the batch began.
        let may_write = request.kind != DirectKind::Read
            && self.may_write
            && check_changeable(node.ino(), node.gist().flags).is_ok();
        if may_write && node.unsynced().moved_by.load(Ordering::Acquire) != 0 {
            // Blocks were moved meanwhile, and are not overwritten before that is durable.
            return Plan::Pause;
        }
        let (ranges, fills) = (&mut self.ranges, &mut self.fills);
        let Some(target) = self.handle.plan(self.mapper, request, may_write, ranges, fills) else {
            return Plan::Alone;
        };
        self.under_way.resize_with(self.under_way.len().max(number + 1), || None);
        self.under_way[number] = Some(node.content.under_way(self.spans, &request.range()));
        Plan::Go(target)
    }

    fn rest(&mut self) {
        self.content = match std::mem::replace(&mut self.content, Keep::Nothing) {
            Keep::Lock(guard) => Keep::Hold(Content::stand_in(guard)),
            Keep::Hold(hold) => Keep::Hold(hold),
            Keep::Nothing => Keep::Hold(Hold::new(Rank::InodeContent)),
        };
    }

    fn end(
        &mut self,
        number: usize,
        request: &DirectRequest,
        target: Target,
        result: std::result::Result<(), DeviceError>,
    ) -> Option<Result<usize>> {
        let len = request.buffer.len();
        if request.kind == (DirectKind::Write { synced: false }) {
            self.ends.durable = false;
        }
        self.wrote |= target.what != Queued::Read && result.is_ok();
        let ended = match result {
            // Blocks whose write failed stay unwritten, and new ones are given back (J5).
            Err(error)
                if target.what != Queued::First
                    || !sabotage("extant.direct.first-data-that-failed") =>
            {
                Some(Err(error.into()))
            }
            _ if target.what == Queued::Fill => {
                self.fills.store(request.offset);
                Some(Ok(len))
            }
            _ if target.what == Queued::First => {
                let (offset, address) = (request.offset, target.address);
                let part = OverwritePart { offset, len: len as u64, address, is_new: true };
                self.first.push(part);
                Some(Ok(len))
            }
            _ => {
                let cache = &self.mapper.file.cache;
                cache.end_queued(request.range(), target.what).then_some(Ok(len))
            }
        };
        let landed = self.under_way[number].take();
        if is_late(target.what) {
            self.arrived.extend(landed);
        }
        ended
    }

    fn refused(&mut self, number: usize) {
        self.under_way[number] = None;
    }
}

/// Tells the mapper that overwriting has ended, also when the caller's code panics.
struct EndsOverwrite<'a, 'm> {
    mapper: Option<&'a FileMapper<'m>>,
    durable: bool,
}

impl Drop for EndsOverwrite<'_, '_> {
    fn drop(&mut self) {
        if let Some(mapper) = self.mapper {
            mapper.end_overwrite(self.durable);
        }
    }
}

/// Blocks that were taken for writes of a batch, by the first byte of each in the file; given back
/// if they do not come into the map, also when the caller's code panics.
struct Fills<'a, 'm> {
    mapper: &'a FileMapper<'m>,
    taken: BTreeMap<u64, QueuedFill<Ticket>>,
}

impl Fills<'_, '_> {
    /// Records that the device has the bytes of a write.
    fn store(&mut self, offset: u64) {
        if let Some(fill) = self.taken.get_mut(&offset) {
            fill.is_stored = true;
        }
    }

    /// Puts what is stored into the map.
    fn end(&mut self) -> Result<()> {
        let taken = std::mem::take(&mut self.taken);
        self.mapper.file.cache.end_fills(self.mapper, taken.into_values().collect())
    }
}

impl Drop for Fills<'_, '_> {
    fn drop(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        taken.values_mut().for_each(|fill| fill.is_stored = false);
        // Nothing is published, so nothing fails.
        let _ = self.mapper.file.cache.end_fills(self.mapper, taken.into_values().collect());
    }
}

impl DirectFile {
    /// Returns the byte range of an aligned read that is not empty; `None` for other requests.
    fn range_of_read(&self, request: &DirectRequest) -> Option<Range<u64>> {
        let DirectRequest { kind, offset, ref buffer } = *request;
        let is_read = kind == DirectKind::Read && !buffer.is_empty();
        (is_read && self.check(offset, buffer).is_ok()).then_some(())?;
        Some(offset..offset.checked_add(buffer.len() as u64)?)
    }

    /// Returns the device operation of a request, if it is a single one. The caller holds the
    /// content lock, shared.
    fn plan<'a>(
        &self,
        mapper: &FileMapper<'a>,
        request: &DirectRequest,
        may_write: bool,
        ranges: &mut RangeLocks<'a>,
        fills: &mut Fills<'_, '_>,
    ) -> Option<Target> {
        let file = mapper.file;
        // The call that does the request afterwards reports the error.
        let DirectKind::Write { synced } = request.kind else {
            let range = self.range_of_read(request)?;
            (range.end <= file.size()).then_some(())?;
            let runs = file.cache.stored_at(mapper, range, 1).ok()??;
            return runs.first().map(|(address, _)| Target::read(*address));
        };
        let DirectRequest { offset, ref buffer, .. } = *request;
        let len = buffer.len() as u64;
        let is_aligned = !buffer.is_empty() && self.check(offset, buffer).is_ok();
        let range = offset..offset.checked_add(len)?;
        let by = WriteBy::Program;
        if !may_write
            || !is_aligned
            || self.inode().keeps_from_sharing(file, by, range.end).is_some()
        {
            return None;
        }
        let DirectOptions { unit, .. } = self.options(synced);
        let mut plan = match file.cache.plan_overwrite(mapper, range.clone(), unit).ok()? {
            Ok(plan) => plan,
            Err(Alone::Hole | Alone::Extends) => {
                let fill = file.cache.begin_fill(mapper, range, ranges)?;
                let address = fill.address();
                fills.taken.insert(offset, fill);
                return Some(Target { address, what: Queued::Fill, fua: false });
            }
            Err(_) => return None,
        };
        if !plan.is_plain() {
            if !file.cache.try_lock_range(range.clone(), ranges) {
                return None;
            }
            // Whoever had it before may have given the blocks their first data.
            plan = file.cache.plan_overwrite(mapper, range, unit).ok()?.ok()?;
        }
        let [place] = plan.parts() else { return None };
        let what = if plan.is_plain() { Queued::Over } else { Queued::First };
        Some(Target { address: place.address, what, fua: synced })
    }
}
