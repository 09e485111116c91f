//! Writing, zeroing, discarding, and setting room aside.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::sabotage;

use crate::error::damage;
use crate::image::{Qcow2, State};
use crate::map::Place;
use crate::refcount::Refcounts;
use crate::table::{COPIED, OFFSET, Table, ZERO};

/// Parts of the disk in which one thread at a time allocates, as power of two; at least a cluster, at
/// most what a second table is for.
const REGION_BITS: u32 = 20;
/// Clusters that are remembered to have room.
const HAS_ROOM_MAX: usize = 1 << 20;
/// Longest piece of explicit zeros, in bytes.
const ZEROS_BYTES: u64 = 1 << 20;

/// Treatment of a range whose contents are not needed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Emptying {
    /// The range reads as zeros; its clusters may stay.
    Zero,
    /// The clusters of the range are freed.
    Discard,
}

impl State {
    pub(crate) fn counts(&mut self) -> io::Result<&mut Refcounts> {
        self.counts.as_mut().ok_or_else(|| io::ErrorKind::ReadOnlyFilesystem.into())
    }
}

impl Qcow2 {
    fn region_bits(&self) -> u32 {
        REGION_BITS.max(self.header.cluster_bits).min(self.header.l2_reach_bits())
    }

    /// Calls `each` for the parts of a range that lie in one region each: byte and length.
    fn regions(
        &self,
        offset: u64,
        len: u64,
        mut each: impl FnMut(u64, u64) -> io::Result<()>,
    ) -> io::Result<()> {
        self.check_health()?;
        let bits = self.region_bits();
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let until = (((at >> bits) + 1) << bits).min(end);
            each(at, until - at)?;
            at = until;
        }
        if self.tables.is_crowded() {
            self.flush_all()?;
            self.tables.shrink();
        }
        Ok(())
    }

    fn stripe(&self, at: u64) -> extant_sync::MutexGuard<'_, ()> {
        let number = (at >> self.region_bits()) % self.stripes.len() as u64;
        self.stripes[number as usize].lock()
    }

    /// Stores `bytes` at byte `offset` of the disk. The range lies on the disk.
    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.regions(offset, bytes.len() as u64, |at, len| {
            let bytes = &bytes[(at - offset) as usize..][..len as usize];
            let _inside = self.gate.read();
            if self.write_in_place(at, bytes)? {
                return Ok(());
            }
            let _stripe = self.stripe(at);
            self.write_allocating(at, bytes)
        })
    }

    /// Writes what lies in clusters of this image alone. False if there is any other: nothing is done then.
    fn write_in_place(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let bits = self.header.cluster_bits;
        let (l1, first) = self.indices(offset >> bits);
        let Some(table) = self.own_table_there(l1)? else { return Ok(false) };
        let end = offset + bytes.len() as u64;
        if (end - 1) >> bits == offset >> bits {
            let entry = table.get(first);
            let (Some(host), false) = (self.own_cluster(entry)?, entry & ZERO != 0) else {
                return Ok(false);
            };
            self.store.write_at(host + (offset & ((1 << bits) - 1)), bytes)?;
            return Ok(true);
        }
        let mut runs: Vec<(u64, u64, u64)> = Vec::new();
        for cluster in offset >> bits..end.div_ceil(1 << bits) {
            let index = first + (cluster - (offset >> bits)) as usize;
            let entry = table.get(index);
            let (Some(host), false) = (self.own_cluster(entry)?, entry & ZERO != 0) else {
                return Ok(false);
            };
            let (from, to) = ((cluster << bits).max(offset), ((cluster + 1) << bits).min(end));
            let host = host + (from - (cluster << bits));
            match runs.last_mut() {
                Some((at, since, until)) if *at + (*until - *since) == host => *until = to,
                _ => runs.push((host, from, to)),
            }
        }
        for (host, from, to) in runs {
            let bytes = &bytes[(from - offset) as usize..(to - offset) as usize];
            self.store.write_at(host, bytes)?;
        }
        Ok(true)
    }

    fn own_table_there(&self, l1: usize) -> io::Result<Option<Arc<Table>>> {
        let entry = self.l1.get(l1).map_or(0, |entry| entry.load(Ordering::Acquire));
        if entry & COPIED == 0 || entry & OFFSET == 0 {
            return Ok(None);
        }
        self.table(l1)
    }

    /// The second table of entry `l1` of the first one, made or copied if it is not this image's alone.
    fn own_table(&self, l1: usize) -> io::Result<Arc<Table>> {
        if let Some(table) = self.own_table_there(l1)? {
            return Ok(table);
        }
        let old = self.table(l1)?;
        let mut state = self.state.lock();
        // Somebody in another region of it may have been first.
        if self.l1[l1].load(Ordering::Acquire) & COPIED != 0
            && let Some(table) = self.own_table_there(l1)?
        {
            return Ok(table);
        }
        let (store, bits) = (&*self.store, self.header.cluster_bits);
        let (cluster, _) = state.counts()?.take(store, 1)?;
        let host = cluster << bits;
        // The table is written at a flush, which must not fail for want of space.
        if let Err(error) = store.allocate(host, 1 << bits) {
            state.counts()?.give_back(store, cluster)?;
            return Err(error);
        }
        let entries = match &old {
            Some(old) => (0..old.len()).map(|at| old.get(at)).collect(),
            None => vec![0; 1 << self.header.l2_bits()],
        };
        state.counts()?.note_metadata(cluster);
        state.new_tables.insert(host);
        state.l1_changed.insert(l1);
        if let Some(old) = old {
            state.leaving.push(old.host >> bits);
        }
        self.tables.forget(host);
        let table = Table::new(host, entries);
        table.touch();
        let table = self.tables.insert(table);
        self.l1[l1].store(host | COPIED, Ordering::Release);
        Ok(table)
    }

    /// The clusters of an entry that was replaced are used no more once that is durable.
    fn part_with(&self, state: &mut State, entry: u64) -> io::Result<()> {
        let clusters = self.clusters_of(entry);
        if sabotage("qcow2.write.freed-at-once") {
            for cluster in &clusters {
                state.counts()?.give_back(&*self.store, *cluster)?;
            }
            return Ok(());
        }
        state.leaving.extend(clusters);
        Ok(())
    }

    /// Returns whether a cluster that is not in this image reads as zeros.
    fn is_empty_at(&self, entry: u64, cluster: u64) -> io::Result<bool> {
        Ok(match self.place_of(entry)? {
            Place::Zeros => true,
            Place::Below => !self.lies_over_something(cluster),
            Place::Data(_) | Place::Packed(_) => false,
        })
    }

    fn lies_over_something(&self, cluster: u64) -> bool {
        let offset = cluster << self.header.cluster_bits;
        self.backing.as_ref().is_some_and(|below| offset < below.size_bytes())
    }

    /// Writes in one region, whose stripe is held: clusters that are not in this image are
    /// allocated.
    fn write_allocating(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        let (l1, _) = self.indices(offset >> bits);
        let table = self.own_table(l1)?;
        let end = offset + bytes.len() as u64;
        let mut at = offset;
        while at < end {
            let cluster = at >> bits;
            let index = self.indices(cluster).1;
            let entry = table.get(index);
            let upto = |clusters: u64| ((cluster + clusters) << bits).min(end);
            let part = |until: u64| &bytes[(at - offset) as usize..(until - offset) as usize];
            if let Some(host) = self.own_cluster(entry)? {
                let until = upto(1);
                if entry & ZERO == 0 {
                    self.store.write_at(host + (at - (cluster << bits)), part(until))?;
                } else {
                    self.fill(cluster, 1, host, at, part(until), false)?;
                    table.set(index, host | COPIED);
                }
                at = until;
                continue;
            }
            let last = (end - 1) >> bits;
            let mut wanted = 1;
            while cluster + wanted <= last
                && self.own_cluster(table.get(index + wanted as usize))?.is_none()
            {
                wanted += 1;
            }
            let (first, count) = self.state.lock().counts()?.take(&*self.store, wanted)?;
            let (host, until) = (first << bits, upto(count));
            // The file has zeros there, if it was never written there before.
            let is_fresh = self.store.grows_with_zeros() && host >= self.store.len()?;
            if let Err(error) = self.fill(cluster, count, host, at, part(until), is_fresh) {
                let mut state = self.state.lock();
                for cluster in first..first + count {
                    state.counts()?.give_back(&*self.store, cluster)?;
                }
                return Err(error);
            }
            let mut state = self.state.lock();
            for number in 0..count {
                let index = index + number as usize;
                let old = table.get(index);
                self.part_with(&mut state, old)?;
                table.set(index, (host + (number << bits)) | COPIED);
            }
            drop(state);
            at = until;
        }
        Ok(())
    }

    /// Writes `bytes`, which belong at byte `at` of the disk, to the `count` clusters of the file from
    /// `host` on, and around them what the disk has there now.
    fn fill(
        &self,
        cluster: u64,
        count: u64,
        host: u64,
        at: u64,
        bytes: &[u8],
        is_fresh: bool,
    ) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        let (start, stop) = (cluster << bits, (cluster + count) << bits);
        let end = at + bytes.len() as u64;
        if at == start && end == stop {
            return self.store.write_at(host, bytes);
        }
        let entry = |cluster: u64| -> io::Result<u64> {
            let (l1, index) = self.indices(cluster);
            Ok(self.table(l1)?.map_or(0, |table| table.get(index)))
        };
        if is_fresh
            && (at == start || self.is_empty_at(entry(cluster)?, cluster)?)
            && (end == stop
                || self.is_empty_at(entry(cluster + count - 1)?, cluster + count - 1)?)
        {
            return self.store.write_at(host + (at - start), bytes);
        }
        let mut whole = vec![0; (stop - start) as usize];
        let (head, rest) = whole.split_at_mut((at - start) as usize);
        let (middle, tail) = rest.split_at_mut(bytes.len());
        middle.copy_from_slice(bytes);
        if !sabotage("qcow2.write.rest-of-cluster-lost") {
            self.read_inside(start, head)?;
        }
        let there = self.header.size.min(stop).saturating_sub(end) as usize;
        self.read_inside(end, &mut tail[..there])?;
        self.store.write_at(host, &whole)
    }

    /// Makes a range read as zeros, or gives it up.
    pub(crate) fn empty(&self, offset: u64, len: u64, how: Emptying) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        let end = offset + len;
        // The last cluster of the disk may be a part.
        let whole_end = if end == self.header.size { end.div_ceil(1 << bits) } else { end >> bits };
        let first = offset.div_ceil(1 << bits);
        if first >= whole_end {
            return match how {
                Emptying::Zero => self.write_zeros(offset, len),
                Emptying::Discard => Ok(()),
            };
        }
        let (start, stop) = (first << bits, (whole_end << bits).min(self.header.size));
        if how == Emptying::Zero {
            self.write_zeros(offset, start - offset)?;
            self.write_zeros(stop.min(end), end.saturating_sub(stop))?;
        }
        let has_no_mark = self.header.version < 3;
        if has_no_mark && self.backing.is_some() {
            return match how {
                Emptying::Zero => self.write_zeros(start, stop - start),
                Emptying::Discard => Ok(()),
            };
        }
        self.regions(start, stop - start, |at, len| {
            let _inside = self.gate.read();
            let _stripe = self.stripe(at);
            self.empty_region(at >> bits, (at + len).div_ceil(1 << bits), how)
        })
    }

    /// Writes zeros where there is something else.
    fn write_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut bytes = vec![0; ZEROS_BYTES.min(len) as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece = (bytes.len() as u64).min(end - at) as usize;
            self.read(at, &mut bytes[..piece])?;
            if bytes[..piece].iter().any(|byte| *byte != 0) {
                bytes[..piece].fill(0);
                self.write(at, &bytes[..piece])?;
            }
            at += piece as u64;
        }
        Ok(())
    }

    /// Empties whole clusters of one region, whose stripe is held.
    fn empty_region(&self, first: u64, end: u64, how: Emptying) -> io::Result<()> {
        let (l1, start) = self.indices(first);
        let is_absent = self.table(l1)?.is_none();
        if is_absent && (first..end).all(|cluster| !self.lies_over_something(cluster)) {
            return Ok(());
        }
        let table = self.own_table(l1)?;
        for cluster in first..end {
            let index = start + (cluster - first) as usize;
            let entry = table.get(index);
            let nothing = if self.lies_over_something(cluster) { ZERO } else { 0 };
            let own = self.own_cluster(entry)?;
            let new = match (own, how) {
                (Some(host), Emptying::Zero) if self.header.version >= 3 => host | COPIED | ZERO,
                _ => nothing,
            };
            if new == entry {
                continue;
            }
            let mut state = self.state.lock();
            table.set(index, new);
            if new & OFFSET == 0 {
                self.part_with(&mut state, entry)?;
            }
        }
        Ok(())
    }

    /// Makes sure that later writes of a range find room: it gets clusters, and they get room.
    pub(crate) fn set_room_aside(&self, offset: u64, len: u64) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        self.regions(offset, len, |at, len| {
            let _inside = self.gate.read();
            let _stripe = self.stripe(at);
            for cluster in at >> bits..(at + len).div_ceil(1 << bits) {
                self.give_room(cluster)?;
            }
            Ok(())
        })
    }

    /// The stripe of the cluster's region is held.
    fn give_room(&self, cluster: u64) -> io::Result<()> {
        let bits = self.header.cluster_bits;
        let (l1, index) = self.indices(cluster);
        let entry = self.own_table(l1)?.get(index);
        if self.own_cluster(entry)?.is_none() {
            let start = cluster << bits;
            let there = (self.header.size - start).min(1 << bits);
            let mut bytes = vec![0; there as usize];
            self.read_inside(start, &mut bytes)?;
            self.write_allocating(start, &bytes)?;
        }
        let entry = self.own_table(l1)?.get(index);
        let Some(host) = self.own_cluster(entry)? else { return Err(damage("no cluster")) };
        if self.state.lock().has_room.contains(&(host >> bits)) {
            return Ok(());
        }
        self.store.allocate(host, 1 << bits)?;
        let mut state = self.state.lock();
        if state.has_room.len() >= HAS_ROOM_MAX {
            state.has_room.clear();
        }
        state.has_room.insert(host >> bits);
        Ok(())
    }
}
