//! A file system in memory that behaves as XFS does where that matters to the cache.
//!
//! Blocks behind the end are promised ahead when a file grows; zeroing behind the end turns such
//! promises into unwritten blocks. Writeback either turns all of a promise into unwritten blocks,
//! of which those that were written are converted afterwards, or pins blocks and inserts them
//! written, as ext4's side of this project does.
//!
//! The free blocks are full of garbage, and reading or writing them is an error.

mod device;
mod file;
mod mapper;

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use extant_block::DeviceError;
use extant_iomap::{Cache, CacheError, CacheOptions};
use extant_sync::{Condvar, Mutex, Rank};

pub(crate) use device::{Fault, GARBAGE, Hooks, Point, TestDevice};
pub(crate) use file::{Stored, TestFile};

/// How writeback finds places for delayed blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alloc {
    /// Pinned in memory, inserted written.
    Pinned,
    /// Unwritten at once, all of the promise, converted afterwards.
    Unwritten,
}

/// What kind of file system.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    pub(crate) block_log2: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) folio_max_log2: u32,
    pub(crate) device_bytes: u64,
    pub(crate) alloc: Alloc,
    /// Longest run that the allocator gives, in blocks.
    pub(crate) run_max: u64,
    /// Whether growing files get promises behind their end.
    pub(crate) ahead: bool,
    pub(crate) flush_before_zero: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            block_log2: 12,
            cache_bytes: 16 << 20,
            folio_max_log2: 21,
            device_bytes: 64 << 20,
            alloc: Alloc::Unwritten,
            run_max: u64::MAX,
            ahead: true,
            flush_before_zero: false,
        }
    }
}

/// What operations of the test file system fail with.
#[derive(Debug)]
#[expect(dead_code, reason = "shown by a test that fails")]
pub(crate) enum Error {
    NoSpace,
    Injected(&'static str),
    Device(DeviceError),
    Cache(CacheError),
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Error {
        Error::Device(error)
    }
}

impl From<CacheError> for Error {
    fn from(error: CacheError) -> Error {
        Error::Cache(error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Faults of the file system; those of the device are with it.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) map: Fault,
    pub(crate) place: Fault,
    pub(crate) publish: Fault,
}

/// What happened, for tests that ask.
#[derive(Default)]
pub(crate) struct Seen {
    /// Dirty blocks that had no place: a bug, but for stores through mappings.
    pub(crate) nowhere: AtomicU64,
    pub(crate) overwrites: AtomicU64,
    /// Placements by kind.
    pub(crate) converted: AtomicU64,
    pub(crate) pinned: AtomicU64,
    pub(crate) over: AtomicU64,
    /// Placements that were published.
    pub(crate) published: AtomicU64,
    /// Times that a reader wanted windows fetched ahead.
    pub(crate) asked: AtomicU64,
    /// Promises behind an end that zeroing made unwritten.
    pub(crate) zeroed_ahead: AtomicU64,
}

impl Seen {
    pub(crate) fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// The file system.
pub(crate) struct Fs {
    pub(crate) options: Options,
    pub(crate) cache: Arc<Cache>,
    pub(crate) device: TestDevice,
    pub(crate) hooks: Arc<Hooks>,
    pub(crate) faults: Faults,
    pub(crate) seen: Seen,
    /// Blocks promised and not taken.
    promised: Mutex<u64>,
    files: Mutex<Vec<Weak<TestFile>>>,
}

impl Fs {
    pub(crate) fn new(options: Options) -> Arc<Fs> {
        let cache = CacheOptions {
            folio_max_log2: options.folio_max_log2,
            flush_before_zero: options.flush_before_zero,
            ..CacheOptions::new(options.cache_bytes, options.block_log2)
        };
        let hooks = Arc::new(Hooks::new());
        Arc::new(Fs {
            options,
            cache: Cache::new(cache).unwrap(),
            device: TestDevice::new(options.device_bytes, options.block_log2, Arc::clone(&hooks)),
            hooks,
            faults: Faults::default(),
            seen: Seen::default(),
            promised: Mutex::new(Rank::InodeMap, 0),
            files: Mutex::new(Rank::Leaf, Vec::new()),
        })
    }

    pub(crate) fn file(self: &Arc<Fs>) -> Arc<TestFile> {
        let file = Arc::new(TestFile::new(self));
        self.files.lock().push(Arc::downgrade(&file));
        file
    }

    /// Blocks that are promised.
    pub(crate) fn promised(&self) -> u64 {
        *self.promised.lock()
    }

    /// Promises up to `count` blocks, returns how many.
    fn promise(&self, count: u64) -> u64 {
        let mut promised = self.promised.lock();
        let left = self.device.space.lock().free() - *promised;
        let given = count.min(left);
        *promised += given;
        given
    }

    /// A promise was kept or given up, or, with a negative number, made again.
    fn keep_promise(&self, count: i64) {
        let mut promised = self.promised.lock();
        *promised = promised.checked_add_signed(-count).expect("more kept than promised");
    }

    fn relieve(&self) -> Result<bool, Error> {
        let files: Vec<_> = self.files.lock().iter().filter_map(Weak::upgrade).collect();
        for file in files {
            if file.data.is_dirty() && file.write_back(0..u64::MAX >> 1)? > 0 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Every file is gone: so is everything that was theirs.
    pub(crate) fn check_empty(&self) {
        let files = self.files.lock().iter().filter(|file| file.strong_count() > 0).count();
        assert_eq!(files, 0, "files are still open");
        self.cache.drop_clean();
        let stats = self.cache.stats();
        assert_eq!((stats.dirty_bytes, stats.used_bytes), (0, 0));
        assert_eq!(self.promised(), 0, "promises nobody gave back");
        let blocks = self.options.device_bytes >> self.options.block_log2;
        assert_eq!(self.device.space.lock().free(), blocks, "blocks nobody gave back");
        assert_eq!(self.seen.nowhere.load(Ordering::Relaxed), 0, "dirty blocks without a place");
    }
}

/// Two threads wait for each other at a place that a test knows.
pub(crate) struct Gate(Mutex<bool>, Condvar);

impl Gate {
    pub(crate) fn new() -> Arc<Gate> {
        Arc::new(Gate(Mutex::new(Rank::Leaf, false), Condvar::new()))
    }

    pub(crate) fn open(&self) {
        *self.0.lock() = true;
        self.1.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut open = self.0.lock();
        while !*open {
            self.1.wait(&mut open);
        }
    }
}
