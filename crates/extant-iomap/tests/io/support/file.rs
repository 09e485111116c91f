//! Files: operations under the content lock, as a caller of the cache does them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_iomap::{DirectOptions, DirectOutcome, FileCache, Obstacle, RangeLock};
use extant_sync::{Rank, RwLock};

use super::{Error, Fs};

/// How a block of a file is stored. Holes are not in the map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stored {
    Delayed,
    /// Delayed, and a block was taken that goes into the map with the data.
    Pinned(u64),
    Unwritten(u64),
    Written(u64),
}

/// One file's blocks.
#[derive(Default)]
pub(super) struct Map {
    pub(super) blocks: BTreeMap<u64, Stored>,
    pub(super) cookie: u64,
}

pub(crate) struct TestFile {
    pub(super) fs: Arc<Fs>,
    pub(crate) data: FileCache,
    pub(super) content: RwLock<()>,
    pub(super) map: RwLock<Map>,
    pub(super) size: AtomicU64,
    pub(super) stored: AtomicU64,
}

impl TestFile {
    pub(super) fn new(fs: &Arc<Fs>) -> TestFile {
        TestFile {
            fs: Arc::clone(fs),
            data: FileCache::new(&fs.cache),
            content: RwLock::new(Rank::InodeContent, ()),
            map: RwLock::new(Rank::FileMap, Map::default()),
            size: AtomicU64::new(0),
            stored: AtomicU64::new(0),
        }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    pub(crate) fn stored_size(&self) -> u64 {
        self.stored.load(Ordering::SeqCst)
    }

    pub(super) fn log2(&self) -> u32 {
        self.fs.options.block_log2
    }

    fn block(&self) -> u64 {
        1 << self.log2()
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let _content = self.content.read();
        // What a read leaves untouched must show.
        let mut out = vec![0x5B; len];
        let got = self.data.read(self, at, &mut out)?;
        out.truncate(got);
        Ok(out)
    }

    /// Reads what is not needed again.
    pub(crate) fn read_once(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let _content = self.content.read();
        let mut out = vec![0x5B; len];
        let got = self.data.read_once(self, at, &mut out)?;
        out.truncate(got);
        Ok(out)
    }

    /// Writes what is not needed again.
    pub(crate) fn write_once(&self, at: u64, bytes: &[u8]) -> Result<usize, Error> {
        let _content = self.content.write();
        self.data.write_once(self, at, bytes)
    }

    /// Does something with the content lock, shared.
    pub(crate) fn held<R>(&self, work: impl FnOnce(&FileCache) -> R) -> R {
        let _content = self.content.read();
        work(&self.data)
    }

    /// What a thread that reads ahead does.
    pub(crate) fn fetch_next(&self) -> bool {
        let _content = self.content.read();
        self.data.fetch_next(self)
    }

    /// Lets `look` see bytes in place.
    pub(crate) fn look<R>(
        &self,
        at: u64,
        len: usize,
        look: impl FnOnce(&[std::io::IoSlice<'_>]) -> R,
    ) -> R {
        let _content = self.content.read();
        self.data.with_cached(self, at..at + len as u64, look).unwrap()
    }

    pub(crate) fn read_all(&self) -> Result<Vec<u8>, Error> {
        self.read(0, self.size() as usize)
    }

    /// Tries to write without waiting.
    pub(crate) fn try_write(&self, at: u64, bytes: &[u8]) -> Result<usize, Obstacle> {
        let _content = self.content.write();
        self.data.try_write(self, at, bytes)
    }

    /// Tries to read without waiting.
    pub(crate) fn try_read(&self, at: u64, len: usize) -> Result<Vec<u8>, Obstacle> {
        let _content = self.content.read();
        let mut out = vec![0x5B; len];
        let got = self.data.try_read(self, at, &mut out)?;
        out.truncate(got);
        Ok(out)
    }

    /// As XFS: what is between the end and the write is zeroed first, size kept.
    pub(crate) fn write(&self, at: u64, bytes: &[u8]) -> Result<usize, Error> {
        let _content = self.content.write();
        self.write_held(at, bytes)
    }

    /// Past the cache and beside others, or not at all.
    pub(crate) fn write_direct_beside(
        &self,
        at: u64,
        bytes: &[u8],
        how: DirectOptions,
    ) -> Result<DirectOutcome, Error> {
        let try_with = |own: Option<&RangeLock<'_>>| {
            let _content = self.content.read();
            self.data.write_direct_shared(self, at, bytes, how, own, || ())
        };
        match try_with(None)? {
            DirectOutcome::Taken => {
                let own = self.data.lock_range(at..at + bytes.len() as u64);
                try_with(Some(&own))
            }
            outcome => Ok(outcome),
        }
    }

    /// Past the cache: beside others, if that does, else with the lock for itself.
    pub(crate) fn write_direct(&self, at: u64, bytes: &[u8]) -> Result<usize, Error> {
        let how = DirectOptions { unit: self.block(), durable: false };
        match self.write_direct_beside(at, bytes, how)? {
            DirectOutcome::Done { written, .. } => return Ok(written),
            DirectOutcome::Alone(why) => self.data.count_alone(why),
            DirectOutcome::Taken => unreachable!("it has waited for the range"),
        }
        let _content = self.content.write();
        if at > self.size() && self.fs.options.ahead {
            self.data.zero(self, self.size()..at)?;
        }
        self.data.write_direct(self, at, bytes)
    }

    pub(crate) fn read_direct(&self, at: u64, len: usize) -> Result<Vec<u8>, Error> {
        let _content = self.content.read();
        let mut out = vec![0x5B; len];
        let got = self.data.read_direct(self, at, &mut out, || ())?;
        out.truncate(got);
        Ok(out)
    }

    pub(crate) fn append(&self, bytes: &[u8]) -> Result<usize, Error> {
        let _content = self.content.write();
        self.write_held(self.size(), bytes)
    }

    fn write_held(&self, at: u64, bytes: &[u8]) -> Result<usize, Error> {
        // Without promises ahead there is nothing to be zeroed but the tail, which the cache does.
        if at > self.size() && self.fs.options.ahead {
            self.data.zero(self, self.size()..at)?;
        }
        self.data.write(self, at, bytes)
    }

    pub(crate) fn write_back(&self, range: Range<u64>) -> Result<u64, Error> {
        self.data.write_back(self, range)
    }

    /// All that is dirty, and the size: what fsync does.
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.write_back(0..u64::MAX >> 1)?;
        let _kept_out = self.data.keep_writeback_out();
        // In this order, as the writers dirty first.
        let size = self.size();
        if !self.data.is_dirty() {
            self.stored.fetch_max(size, Ordering::SeqCst);
        }
        Ok(())
    }

    pub(crate) fn truncate(&self, size: u64) -> Result<(), Error> {
        let _content = self.content.write();
        let old = self.size();
        if size >= old {
            return self.grow(size);
        }
        let end = size.div_ceil(self.block());
        // C6: the new tail is zero on the device before the size is less.
        let block_end = end << self.log2();
        self.data.zero(self, size..block_end.min(old))?;
        self.write_back(0..block_end)?;
        let kept_out = self.data.keep_writeback_out();
        self.size.store(size, Ordering::SeqCst);
        self.stored.fetch_min(size, Ordering::SeqCst);
        self.data.forget(block_end..u64::MAX >> 1, &kept_out);
        self.remove(end..u64::MAX);
        Ok(())
    }

    fn grow(&self, size: u64) -> Result<(), Error> {
        self.data.zero_tail(self, self.size())?;
        self.size.store(size, Ordering::SeqCst);
        Ok(())
    }

    /// The range reads as zeros, through the cache alone.
    pub(crate) fn zero_in_cache(&self, range: Range<u64>) -> Result<(), Error> {
        let _content = self.content.write();
        self.data.zero(self, range)
    }

    /// Compares the contents.
    #[track_caller]
    pub(crate) fn same(self: Arc<TestFile>, wanted: &[u8]) -> Arc<TestFile> {
        assert!(self.read_all().unwrap() == wanted);
        self
    }

    /// The range reads as zeros and has no blocks, as far as it has whole ones.
    pub(crate) fn punch(&self, range: Range<u64>) -> Result<(), Error> {
        self.clear(range, |file, blocks| file.remove(blocks))
    }

    /// The range reads as zeros; its blocks become unwritten.
    pub(crate) fn zero_range(&self, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        self.clear(range.clone(), |file, blocks| {
            let mut map = file.map.write();
            for (_, stored) in map.blocks.range_mut(blocks) {
                if let Stored::Written(block) = *stored {
                    *stored = Stored::Unwritten(block);
                }
            }
            map.cookie += 1;
        })?;
        let _content = self.content.write();
        if !keep_size && range.end > self.size() { self.grow(range.end) } else { Ok(()) }
    }

    fn clear(&self, range: Range<u64>, whole: impl Fn(&TestFile, Range<u64>)) -> Result<(), Error> {
        let _content = self.content.write();
        let range = range.start..range.end.min(self.size());
        if range.start >= range.end {
            return Ok(());
        }
        let first = range.start.div_ceil(self.block());
        let mut end = range.end >> self.log2();
        if range.end == self.size() {
            end = range.end.div_ceil(self.block());
        }
        if first >= end {
            return self.data.zero(self, range);
        }
        let bytes = first << self.log2()..end << self.log2();
        self.data.zero(self, range.start..bytes.start)?;
        self.data.zero(self, bytes.end.min(range.end)..range.end)?;
        let kept_out = self.data.keep_writeback_out();
        self.data.forget(bytes, &kept_out);
        whole(self, first..end);
        Ok(())
    }

    /// Blocks for the holes of a range, also behind the end.
    pub(crate) fn allocate(&self, range: Range<u64>, keep_size: bool) -> Result<(), Error> {
        let _content = self.content.write();
        {
            let kept_out = self.data.keep_writeback_out();
            let mut map = self.map.write();
            for block in range.start >> self.log2()..range.end.div_ceil(self.block()) {
                let is_hole = !map.blocks.contains_key(&block);
                if is_hole {
                    if self.fs.promise(1) == 0 {
                        return Err(Error::NoSpace);
                    }
                    let (taken, _) = self.take(1);
                    self.fs.keep_promise(1);
                    map.blocks.insert(block, Stored::Unwritten(taken));
                    map.cookie += 1;
                }
            }
            drop(kept_out);
        }
        if !keep_size && range.end > self.size() { self.grow(range.end) } else { Ok(()) }
    }

    /// What a last close does: promises behind the end go.
    pub(crate) fn trim(&self) {
        let _content = self.content.write();
        let _kept_out = self.data.keep_writeback_out();
        self.remove(self.size().div_ceil(self.block())..u64::MAX);
    }

    /// Blocks of the free space, which has some: they were promised.
    pub(super) fn take(&self, most: u64) -> (u64, u64) {
        let most = most.min(self.fs.options.run_max);
        let mut space = self.fs.device.space.lock();
        space.take(most).expect("a promise that cannot be kept")
    }

    /// Takes blocks out of the map.
    fn remove(&self, blocks: Range<u64>) {
        let mut map = self.map.write();
        let gone: Vec<_> = map.blocks.range(blocks).map(|(at, stored)| (*at, *stored)).collect();
        for (at, stored) in gone {
            map.blocks.remove(&at);
            self.drop_block(stored);
        }
        map.cookie += 1;
    }

    pub(super) fn drop_block(&self, stored: Stored) {
        match stored {
            Stored::Delayed => self.fs.keep_promise(1),
            Stored::Pinned(_) => panic!("a block under writeback was removed"),
            Stored::Unwritten(block) | Stored::Written(block) => self.fs.device.free(block),
        }
    }

    /// How block `at` is stored.
    pub(crate) fn stored(&self, at: u64) -> Option<Stored> {
        self.map.read().blocks.get(&at).copied()
    }

    /// Contents as they are after a cut of power: stored size, written blocks.
    pub(crate) fn after_a_crash(&self) -> Vec<u8> {
        let map = self.map.read();
        let size = self.stored_size();
        let mut out = vec![0; size as usize];
        for (&at, &stored) in &map.blocks {
            let from = at << self.log2();
            if let Stored::Written(block) = stored
                && from < size
            {
                let end = (from + self.block()).min(size);
                let part = &mut out[from as usize..end as usize];
                self.fs.device.peek(block << self.log2(), part);
            }
        }
        out
    }

    /// Counts promises of this file.
    pub(crate) fn delayed(&self) -> usize {
        self.map.read().blocks.values().filter(|stored| **stored == Stored::Delayed).count()
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let blocks = std::mem::take(&mut self.map.get_mut().blocks);
        // A second panic would hide the first.
        if !std::thread::panicking() {
            blocks.into_values().for_each(|stored| self.drop_block(stored));
        }
    }
}
