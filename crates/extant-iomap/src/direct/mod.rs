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
//! - R3. Writing without the exclusive content lock ([`FileCache::write_direct_shared`]) is for
//!   blocks that are not cached. A reader may meanwhile fill a folio with the old contents; so the
//!   write checks again at its end, with the folio's lock, and if there is one, it is repeated with
//!   the exclusive content lock.
//! - R4. First data of whole unwritten blocks below the stored size is written in that way too:
//!   data, map, second check, in this order. A reader that asks before the map has changed makes a
//!   folio of zeros, which the check finds; one that asks afterwards reads the data.
//! - R5. Whoever gives blocks of a file their first data beside others, adds blocks or moves the end
//!   has locked the [range](crate::RangeLocks) of these blocks: a block gets one place, and the zeros around
//!   a part of one are on the device before others may write there. The order is place, data, map
//!   and size, second check. Nobody waits for a range with the content lock: who has the range may
//!   need it, and so may those whom neither concerns.
//! - R6. A write beside others that the file system refuses something (space, a place) takes back
//!   what it has begun. The exclusive writer does all of it again, and finds the reason.
//! - R7. Reads of one run and writes beside others need the content lock, shared, until their places
//!   are known; afterwards it is enough that nobody moves or frees these blocks, writes to them
//!   through the cache, or moves the end of the file over them. The map changes as by writeback,
//!   which whoever changes another part of the file keeps out. What R3 says of a reader that fills a
//!   folio holds there, too.

use std::ops::Range;

use crate::cache::PAGE_LOG2;
use crate::file::FileCache;
use crate::mapping::{Intent, Mapper, Mapping, Placement};
use crate::states::State;

mod alone;
mod batch;
mod fill;
mod over;
mod read;

pub use batch::QueuedFill;
pub use over::{OverwritePart, OverwritePlan, Queued};

/// Number of bytes that one request to the mapper covers.
pub(crate) const ASK: u64 = 64 << 20;

impl FileCache {
    /// Returns the whole blocks inside a range.
    fn whole_blocks(&self, range: Range<u64>) -> Option<Range<u64>> {
        let block = 1u64 << self.cache.options.block_log2;
        let start = range.start.checked_next_multiple_of(block)?;
        let end = range.end & !(block - 1);
        (start < end).then_some(start..end)
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
            Alone::Refused => &counters.direct_alone_refused,
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
            let bytes = self.bytes_of(&pin);
            at = bytes.end >> PAGE_LOG2;
            let part = range.start.max(bytes.start)..range.end.min(bytes.end);
            let folio = match look {
                Look::Passing => None,
                Look::Last => Some(pin.lock()),
                Look::Now => pin.try_lock(),
            };
            if look == Look::Now && folio.is_none() {
                return true;
            }
            let units = self.units(&pin, part);
            if look != Look::Passing && self.cache.states.any(State::Filling, units.clone()) {
                if look == Look::Now {
                    return true;
                }
                // Whoever fills it may have read the device before the write.
                drop(folio);
                self.wait_while(State::Filling, units.clone());
            }
            if self.cache.states.any(State::Uptodate, units) {
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

    /// Returns reservations that were not used.
    fn end_all<M: Mapper>(&self, mapper: &M, stored: &Progress<M::Ticket>) {
        for mapping in &stored.new {
            let used = stored.at.saturating_sub(mapping.offset).min(mapping.len);
            mapper.end(mapping, used, Intent::Write);
        }
    }
}

/// Options of [`FileCache::write_direct_shared`].
#[derive(Clone, Copy, Debug)]
pub struct DirectOptions {
    /// Alignment of offsets and lengths in bytes: a block, or less where the device allows it.
    pub unit: u64,
    /// Whether overwritten data is durable when the call returns.
    pub durable: bool,
}

/// Outcome of [`FileCache::write_direct_shared`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DirectOutcome {
    /// The bytes are on the device, and durable where `durable` says so.
    Done {
        /// Number of bytes: fewer than there were only before an error of the device, which the next
        /// call meets.
        written: usize,
        /// Every byte is on stable storage, and the map needed no change.
        durable: bool,
    },
    /// The write has to be done with the content lock held exclusively.
    Alone(Alone),
    /// Another writer gives a part of the range its place or its first data, or waits to do so. Nothing
    /// was done.
    Taken,
}

/// Reason why a direct write is exclusive, or, of [`FileCache::plan_overwrite`], why it is no
/// overwrite.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alone {
    /// A part of the range is cached, or was cached meanwhile; or all of it has to be, because the
    /// device has other bytes.
    Cached,
    /// A part of the range has no blocks yet. Exclusive where the file system adds blocks for one
    /// writer at a time.
    Hole,
    /// The write ends behind the end of the file, or behind its stored size. Exclusive if it begins
    /// behind an end that lies in a block, or ends behind the largest size.
    Extends,
    /// The write covers a part of a block without data, or a part of the unit of alignment.
    /// Exclusive in the second case.
    Parts,
    /// Programs have parts of the file mapped.
    Mapped,
    /// The data lies in the inode.
    Inline,
    /// The write removes privileges from the file, or the file is append-only.
    Rights,
    /// The file system refused a part of it: there is no space, or the map cannot be read.
    Refused,
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
#[derive(Debug)]
struct Progress<T> {
    /// First byte that is not on the device.
    at: u64,
    placements: Vec<Placement<T>>,
    /// Index of the mapping with the last ticket.
    ticket: Option<usize>,
    /// Mappings to be ended.
    new: Vec<Mapping>,
}

impl<T> Progress<T> {
    fn new(at: u64) -> Progress<T> {
        Progress { at, placements: Vec::new(), ticket: None, new: Vec::new() }
    }

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
