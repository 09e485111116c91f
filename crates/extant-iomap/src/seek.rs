//! Finding data and holes, including data that is only in the cache.

use std::ops::Range;

use crate::cache::PAGE_LOG2;
use crate::file::FileCache;
use crate::mapping::{Intent, Kind, Mapper};
use crate::states::State;
use extant_base::sabotage;

/// Number of bytes that one request to the mapper covers.
const ASK: u64 = 1 << 40;

impl FileCache {
    /// Returns the first byte from `offset` on that is data; `None` when only holes follow. The
    /// caller holds the content lock.
    ///
    /// Delayed blocks are data; unwritten ones are data where the cache has dirty data for them.
    ///
    /// # Errors
    ///
    /// Those of the mapper.
    pub fn seek_data<M: Mapper>(&self, mapper: &M, offset: u64) -> Result<Option<u64>, M::Error> {
        self.seek(mapper, offset, true)
    }

    /// Returns the first byte from `offset` on that is in a hole, at most the size.
    ///
    /// # Errors
    ///
    /// Those of the mapper.
    pub fn seek_hole<M: Mapper>(&self, mapper: &M, offset: u64) -> Result<u64, M::Error> {
        Ok(self.seek(mapper, offset, false)?.unwrap_or_else(|| mapper.size()))
    }

    fn seek<M: Mapper>(
        &self,
        mapper: &M,
        offset: u64,
        data: bool,
    ) -> Result<Option<u64>, M::Error> {
        let size = mapper.size();
        let mut at = offset;
        while at < size {
            let ask = at..size.max(at.saturating_add(ASK));
            let mapping = self.mapping(mapper, ask, Intent::Report)?;
            let end = mapping.end().min(size);
            let found = match mapping.kind {
                Kind::Mapped(_) | Kind::Inline(_) | Kind::Delayed => data.then_some(at),
                Kind::Hole => (!data).then_some(at),
                Kind::Unwritten(_) => {
                    let found = self.next_pending(at..end, data);
                    // Dirty data may have been written back, and be clean when it was checked.
                    if !mapper.is_current(mapping.cookie) {
                        continue;
                    }
                    found
                }
            };
            if found.is_some() {
                return Ok(found);
            }
            at = end;
        }
        Ok(None)
    }

    /// Returns the first byte of `range` whose unit is, or is not, dirty or under writeback.
    fn next_pending(&self, range: Range<u64>, pending: bool) -> Option<u64> {
        let states = &self.cache.states;
        let unit = self.cache.unit_log2;
        let mut at = range.start;
        while at < range.end {
            let Some(pin) = self.find(at >> PAGE_LOG2) else {
                if !pending {
                    return Some(at);
                }
                at = self.next_cached(at >> PAGE_LOG2)? << PAGE_LOG2;
                continue;
            };
            let end = self.bytes_of(&pin).end.min(range.end);
            while at < end {
                let units = self.units(&pin, at..at + 1);
                let waits = states.any(State::Dirty, units.clone())
                    || (states.any(State::Writeback, units)
                        && !sabotage("iomap.seek.under-writeback-is-hole"));
                if waits == pending {
                    return Some(at);
                }
                at = ((at >> unit) + 1) << unit;
            }
        }
        None
    }
}
