//! Direct writes of a queue into holes and behind the end: blocks are taken when a write begins, and
//! go into the map together when the device has all of a batch (R5).

use std::ops::Range;

use super::{Alone, Progress};
use crate::file::FileCache;
use crate::mapping::{Done, Intent, Kind, Mapper};
use crate::ranges::RangeLocks;

/// Blocks taken for a write of a queue, from [`FileCache::begin_fill`]. Each one goes to
/// [`FileCache::end_fills`], or its blocks and promises are lost.
#[must_use = "the blocks have to be put into the map or given back"]
#[derive(Debug)]
pub struct QueuedFill<T> {
    range: Range<u64>,
    address: u64,
    progress: Progress<T>,
    /// Whether the device has the bytes.
    pub is_stored: bool,
}

impl<T> QueuedFill<T> {
    /// Returns the address of the first byte on the device.
    pub fn address(&self) -> u64 {
        self.address
    }
}

impl FileCache {
    /// Takes blocks for a write of `range`, if that is whole blocks of one hole, nothing speaks
    /// against writing there beside others, and the new blocks lie together. Otherwise returns
    /// `None`, and has taken none. `own` are the ranges that the thread holds, to which this one is
    /// added; the thread holds them, and the content lock, shared, or what stands for it (R7), until
    /// [`end_fills`](Self::end_fills) has returned.
    pub fn begin_fill<'a, M: Mapper>(
        &'a self,
        mapper: &M,
        range: Range<u64>,
        own: &mut RangeLocks<'a>,
    ) -> Option<QueuedFill<M::Ticket>> {
        if mapper.adds_alone()
            || self.whole_blocks(range.clone()).as_ref() != Some(&range)
            || !self.try_lock_range(range.clone(), own)
            || self.keeps_from_filling(mapper, &range).is_some()
        {
            return None;
        }
        let found = self.mapping(mapper, range.clone(), Intent::Read).ok()?;
        if found.kind != Kind::Hole || found.end() < range.end {
            return None;
        }
        let mut progress = Progress::new(range.start);
        match self.take_whole(mapper, &range, &mut progress) {
            Ok(address) => Some(QueuedFill { range, address, progress, is_stored: false }),
            Err(_) => {
                self.take_back(mapper, progress);
                None
            }
        }
    }

    /// Takes blocks that lie together for all of a hole; returns their address.
    fn take_whole<M: Mapper>(
        &self,
        mapper: &M,
        range: &Range<u64>,
        progress: &mut Progress<M::Ticket>,
    ) -> Result<u64, Alone> {
        let mapping = mapper.map(range.clone(), Intent::Write).map_err(|_| Alone::Refused)?;
        let is_whole = mapping.kind == Kind::Delayed
            && mapping.flags.is_new
            && mapping.offset == range.start
            && mapping.end() >= range.end;
        progress.new.push(mapping);
        if !is_whole {
            return Err(Alone::Hole);
        }
        let placement = mapper.place(range.clone(), None).map_err(|_| Alone::Refused)?;
        let (address, end) = (placement.address, placement.end());
        progress.push(placement);
        if end < range.end { Err(Alone::Hole) } else { Ok(address) }
    }

    /// Puts the blocks of the writes that [are stored](QueuedFill::is_stored) into the map, in as
    /// few handles as possible, and gives those of the others back. The file ends behind the last of
    /// them, if it ended before.
    ///
    /// # Errors
    ///
    /// As [`Mapper::publish`], and those of writing back what is dirty in front of a new end. None of
    /// the writes has to be in the map then.
    pub fn end_fills<M: Mapper>(
        &self,
        mapper: &M,
        fills: Vec<QueuedFill<M::Ticket>>,
    ) -> Result<(), M::Error> {
        let (mut stored, lost): (Vec<_>, Vec<_>) =
            fills.into_iter().partition(|fill| fill.is_stored);
        lost.into_iter().for_each(|fill| self.take_back(mapper, fill.progress));
        stored.sort_by_key(|fill| fill.range.start);
        let Some(end) = stored.iter().map(|fill| fill.range.end).max() else { return Ok(()) };
        let first = stored.first().map_or(0, |fill| fill.range.start);
        let mut all = Progress::new(first);
        for mut fill in stored {
            for placement in fill.progress.placements.drain(..) {
                all.push(placement);
            }
            all.new.append(&mut fill.progress.new);
        }
        self.publish_progress(mapper, &(first..end), all).map(drop)
    }

    /// Puts what a write, or those of a batch, have stored into the map, and moves the end of the
    /// file to the end of the range if it lies before that. Returns whether it does. After an error
    /// everything is given back that is not in the map.
    pub(super) fn publish_progress<M: Mapper>(
        &self,
        mapper: &M,
        range: &Range<u64>,
        mut progress: Progress<M::Ticket>,
    ) -> Result<bool, M::Error> {
        let kept_out = self.keep_writeback_out(); // M5; and one writer at a time moves the end.
        let mut size_to = 0;
        if range.end > mapper.stored_size() {
            // The stored size passes nothing that is dirty before it.
            let before = match extant_base::sabotage("iomap.direct.size-passes-dirty") {
                true => Ok(0),
                false => self.write_back_kept_out(mapper, 0..range.end, &kept_out),
            };
            if let Err(error) = before {
                drop(kept_out);
                self.take_back(mapper, progress);
                return Err(error);
            }
            size_to = range.end;
        }
        let size = mapper.size();
        let grows = range.end > size;
        let placements = std::mem::take(&mut progress.placements);
        let published = mapper.publish(Done { placements, size_to, grows });
        if published.is_err() && mapper.size() > size {
            mapper.set_size(size);
        }
        for mapping in &progress.new {
            // None of it counts as used after an error: what is in the map already is not delayed any
            // more. A promise may be longer than the range.
            let used = match published {
                Ok(()) => self.block_of(range.clone()).end.saturating_sub(mapping.offset),
                Err(_) => 0,
            };
            mapper.end(mapping, used.min(mapping.len), Intent::Write);
        }
        drop(kept_out);
        published.map(|()| grows)
    }
}
