//! Bringing bytes into folios: a state of their units, with no lock held over the device.
//!
//! # Rules
//!
//! - L1. Whoever fills units has marked them as being filled, under the folio's lock, while they were
//!   neither uptodate nor marked. They are the thread's until it takes the mark away, again under the
//!   lock, and makes them uptodate with it if the fill has succeeded.
//! - L2. Their mapping is asked for, and the device read, after they were marked. So a thread that
//!   has changed the map or the device, and then sees no mark, knows that later fills meet the change.
//! - L3. Whoever needs units that another thread fills waits for the mark to go, without the folio's
//!   lock, and looks again: a fill that failed tells its own caller why, the next one tries itself.
//! - L4. A thread waits for no fill while it has units marked, of however many folios. While it fills
//!   them it counts as a holder of a folio's lock for the order of locks, so that debug builds refuse
//!   that.
//!
//! Units beside them can be read, written, brought to the device and filled by others meanwhile.

use std::ops::Range;

use extant_base::sabotage;
use extant_block::{DeviceError, ReadRun};
use extant_sync::{Hold, Rank};

use crate::cache::CacheError;
use crate::file::FileCache;
use crate::frames::Pin;
use crate::mapping::{Intent, Kind, Mapper, Mapping};
use crate::states::State;

/// Number of bytes that one request to the mapper covers.
const ASK: u64 = 64 << 20;

/// Longest part of a folio that is read with one request where several are under way at once.
const PART: u64 = 256 << 10;

/// Parts of a folio to be read from the device.
#[derive(Default)]
struct Reads {
    parts: Vec<PartRead>,
    /// Number of the claim for which parts are added.
    claim: usize,
}

/// A run of bytes to be read.
struct PartRead {
    /// Which of the claims that are filled together it belongs to.
    claim: usize,
    /// Offset in the arena.
    to: u64,
    /// Address on the device.
    from: u64,
    len: u64,
}

impl Reads {
    fn add(&mut self, to: u64, from: u64, len: u64) {
        for done in (0..len).step_by(PART as usize) {
            let len = PART.min(len - done);
            let from = from.saturating_add(done);
            self.parts.push(PartRead { claim: self.claim, to: to + done, from, len });
        }
    }
}

/// What became of a part, with the number of its claim.
type PartResult = (usize, Result<(), DeviceError>);

/// Units of a folio that this thread fills (L1). Dropping it ends the fill.
pub(crate) struct Claim<'a> {
    file: &'a FileCache,
    pin: Pin<'a>,
    /// Runs of units, in ascending order.
    runs: Vec<Range<u64>>,
    is_filled: bool,
}

/// Outcome of an attempt to claim the missing units of a range.
enum Claimed<'a> {
    /// No unit is missing.
    Nothing,
    /// The missing units that no other thread fills: at least one.
    Units(Claim<'a>),
    /// All that is missing is being filled by others.
    Others,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let states = &self.file.cache.states;
        let folio = self.pin.lock();
        for run in &self.runs {
            if self.is_filled {
                states.set(State::Uptodate, run.clone());
            }
            states.clear(State::Filling, run.clone());
        }
        drop(folio);
        self.file.end_pass();
    }
}

impl FileCache {
    /// Brings the blocks of `range`, which is inside the folio, into the cache. Device blocks are
    /// read, everything else is zeros; so are the bytes behind the end of the file. The caller holds
    /// the content lock and no folio lock.
    pub(crate) fn fill<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
    ) -> Result<(), M::Error> {
        self.fill_while(mapper, pin, range, || false)
    }

    /// Fills like [`fill`](Self::fill). While other threads fill what is missing, the reader fetches
    /// its next window.
    pub(crate) fn fill_for_reader<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
    ) -> Result<(), M::Error>
    where
        M::Error: From<CacheError>,
    {
        self.fill_while(mapper, pin, range, || {
            let Some(pages) = self.streams.begin_near(pin.start()) else { return false };
            self.cache.counters.ahead_helped.add(1);
            self.fetch(mapper, pages, true);
            true
        })
    }

    /// Fills like [`fill`](Self::fill). Instead of waiting for other threads it calls `meanwhile`, as
    /// long as that has something to do.
    fn fill_while<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        mut meanwhile: impl FnMut() -> bool,
    ) -> Result<(), M::Error> {
        let units = self.units(pin, self.block_of(range));
        loop {
            let folio = pin.lock();
            let claimed = self.claim(pin, units.clone());
            drop(folio);
            match claimed {
                Claimed::Nothing => return Ok(()),
                Claimed::Units(claim) => self.fill_claims(mapper, vec![claim])?,
                Claimed::Others if meanwhile() => {}
                Claimed::Others => {
                    self.cache.counters.fill_waits.add(1);
                    self.wait_while(State::Filling, units.clone());
                }
            }
        }
    }

    /// Claims the units of `range`, in bytes, of a folio that nobody else could find so far. The
    /// folio is locked.
    pub(crate) fn claim_new<'a>(&'a self, pin: &Pin<'a>, range: Range<u64>) -> Option<Claim<'a>> {
        match self.claim(pin, self.units(pin, self.block_of(range))) {
            Claimed::Units(claim) => Some(claim),
            Claimed::Nothing | Claimed::Others => None,
        }
    }

    /// Claims those of the units that are neither uptodate nor being filled. The folio is locked.
    fn claim<'a>(&'a self, pin: &Pin<'a>, units: Range<u64>) -> Claimed<'a> {
        let states = &self.cache.states;
        let mut runs = Vec::new();
        let mut is_missing = false;
        let mut next = units.start;
        while let Some(missing) = states.next_clear(State::Uptodate, next..units.end) {
            is_missing = true;
            let Some(free) = states.next_clear(State::Filling, missing.clone()) else {
                next = missing.end;
                continue;
            };
            next = free.end;
            states.set(State::Filling, free.clone());
            runs.push(free);
        }
        match (runs.is_empty(), is_missing) {
            (false, _) => {
                Claimed::Units(Claim { file: self, pin: pin.clone(), runs, is_filled: false })
            }
            (true, true) => Claimed::Others,
            (true, false) => Claimed::Nothing,
        }
    }

    /// Fills what was claimed, of one folio or several, with the reads of all of them under way at
    /// once. No folio is locked.
    ///
    /// # Errors
    ///
    /// The first one. Folios of which all was read are uptodate all the same.
    pub(crate) fn fill_claims<M: Mapper>(
        &self,
        mapper: &M,
        mut claims: Vec<Claim<'_>>,
    ) -> Result<(), M::Error> {
        // Ends before the claims do, which take the locks of their folios.
        let rank = Hold::new(Rank::Folio);
        let mut reads = Reads::default();
        for (number, claim) in claims.iter().enumerate() {
            reads.claim = number;
            self.fill_or_note(mapper, claim, &mut reads)?;
        }
        let read = self.read_together(mapper, reads)?;
        drop(rank);
        claims.iter_mut().for_each(|claim| claim.is_filled = true);
        let mut first = Ok(());
        for (number, error) in
            read.into_iter().filter_map(|(number, result)| Some((number, result.err()?)))
        {
            claims[number].is_filled = false;
            first = first.and(Err(error));
        }
        Ok(first?)
    }

    /// Fills what was claimed of one folio, or notes what has to be read for it.
    fn fill_or_note<M: Mapper>(
        &self,
        mapper: &M,
        claim: &Claim<'_>,
        reads: &mut Reads,
    ) -> Result<(), M::Error> {
        let pin = &claim.pin;
        for run in &claim.runs {
            let missing = self.bytes_of_units(pin, run);
            let mut at = missing.start;
            let before = reads.parts.len();
            while at < missing.end {
                let ask = at..missing.end.saturating_add(ASK);
                let mapping = self.mapping(mapper, ask, Intent::Read)?;
                let end = mapping.end().min(missing.end);
                self.fill_part(mapper, pin, at..end, &mapping, reads)?;
                at = end;
            }
            if reads.parts.len() == before
                && let Some(unit) = mapper.checked_unit()
            {
                self.check_filled(mapper, pin, missing, unit)?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of the file that units of a folio hold.
    fn bytes_of_units(&self, pin: &Pin<'_>, units: &Range<u64>) -> Range<u64> {
        let folio = self.bytes_of(pin).start;
        let first = self.units(pin, folio..folio + 1).start;
        let unit = self.cache.unit_log2;
        folio + ((units.start - first) << unit)..folio + ((units.end - first) << unit)
    }

    /// Reads parts of folios with several requests under way at once.
    fn read_together<M: Mapper>(
        &self,
        mapper: &M,
        mut reads: Reads,
    ) -> Result<Vec<PartResult>, M::Error> {
        if reads.parts.is_empty() {
            return Ok(Vec::new());
        }
        reads.parts.sort_unstable_by_key(|part| part.to);
        let cache = &*self.cache;
        let contents = mapper.contents()?;
        let places: Vec<(u64, u64)> = reads.parts.iter().map(|part| (part.to, part.len)).collect();
        let results = cache.arena.fill_many(&places, |memory| {
            let runs = memory.into_iter().zip(&reads.parts);
            let mut runs: Vec<_> =
                runs.map(|(out, part)| ReadRun { offset: part.from, out }).collect();
            contents.read_runs(&mut runs)
        });
        let parts = reads.parts.iter().zip(results);
        let read = parts.map(|(part, result)| {
            if result.is_ok() {
                cache.counters.device_reads.add(1);
                cache.counters.bytes_filled.add(part.len);
            }
            (part.claim, result)
        });
        Ok(read.collect())
    }

    /// Checks bytes that were filled and are not uptodate yet (E4), and zeroes those behind the end
    /// of the file.
    fn check_filled<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        unit: u64,
    ) -> Result<(), M::Error> {
        let arena = &self.cache.arena;
        let size = mapper.size();
        // Units outside of the range in the same block are uptodate already.
        let start = range.start - range.start % unit;
        let end = range.end.next_multiple_of(unit).min(size.next_multiple_of(unit));
        if start < end && !sabotage("iomap.read.contents-not-checked") {
            let part = [(self.arena_at(pin, start), end - start)];
            arena.slices(&part, |slices| {
                slices.iter().try_for_each(|bytes| mapper.check(start, bytes))
            })?;
        }
        let behind = range.start.max(size);
        if behind < range.end {
            arena.zero(self.arena_at(pin, behind), range.end - behind);
        }
        Ok(())
    }

    fn fill_part<M: Mapper>(
        &self,
        mapper: &M,
        pin: &Pin<'_>,
        range: Range<u64>,
        mapping: &Mapping,
        reads: &mut Reads,
    ) -> Result<(), M::Error> {
        let cache = &*self.cache;
        let to = self.arena_at(pin, range.start);
        let len = range.end - range.start;
        // Bytes behind the end are no contents, whatever the device has there.
        let size = mapper.size();
        let inside = size.saturating_sub(range.start).min(len);
        match &mapping.kind {
            Kind::Mapped(_) if inside > 0 => {
                let from = mapping.address_of(range.start).unwrap_or(u64::MAX);
                let contents = mapper.contents()?;
                // Devices may end in the middle of a block; files do not.
                let read = contents.to_read(inside);
                // What is checked is all that the device has of a unit.
                let unit = mapper.checked_unit();
                if unit.is_none() && contents.reads_at_once() {
                    reads.add(to, from, inside);
                    cache.arena.zero(to + inside, len - inside);
                    return Ok(());
                }
                let read = unit.map_or(read, |unit| read.next_multiple_of(unit)).min(len);
                cache.arena.fill(to, read, |out| contents.read_at(range.start, from, out))?;
                let kept = if unit.is_some() { read } else { inside };
                cache.arena.zero(to + kept, len - kept);
                cache.counters.device_reads.add(1);
                cache.counters.bytes_filled.add(inside);
            }
            Kind::Inline(bytes) => {
                let from = usize::try_from(range.start - mapping.offset).unwrap_or(usize::MAX);
                let stored = bytes.get(from.min(bytes.len())..).unwrap_or(&[]);
                let stored = &stored[..stored.len().min(inside as usize)];
                cache.arena.copy_in(to, stored);
                cache.arena.zero(to + stored.len() as u64, len - stored.len() as u64);
            }
            _ => cache.arena.zero(to, len),
        }
        Ok(())
    }
}
