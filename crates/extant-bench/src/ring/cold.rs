//! How long a submitter is kept, and how much each file gets, while the device cannot keep up with its writers.
//!
//! One thread submits reads of what is not cached and writes, at random, through a ring; eight others write by the call that
//! waits, each to a file of its own, as fast as they may.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant::ring::Op;
use extant::{MountOptions, NewInode};
use extant_base::Prng;
use extant_block::{BlockDevice, DeviceError, MemoryDevice, Operation, Pending, SharedDevice};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};

use super::{SEED, WRITE};

/// Threads that write and wait.
const WRITERS: usize = 8;
/// Requests under way through the ring.
const DEPTH: usize = 32;
/// What the device writes in a second.
const BYTES_PER_SECOND: u64 = 200 << 20;
/// Memory for contents.
const CACHE_BYTES: u64 = 32 << 20;
/// Bytes of each file.
const FILE_BYTES: u64 = 32 << 20;

/// A device in memory that writes so much in a second and no more.
struct Narrow {
    below: Arc<MemoryDevice>,
    busy: Mutex<()>,
}

impl Narrow {
    fn pass(&self, bytes: u64) {
        if bytes > 0 {
            let _busy = self.busy.lock();
            SystemClock.sleep(Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND));
        }
    }
}

impl BlockDevice for Narrow {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let bytes = batch.iter().map(|operation| match operation {
            Operation::Write { buffer, .. } => buffer.len() as u64,
            _ => 0,
        });
        self.pass(bytes.sum());
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn write_vectored_at(
        &self,
        offset: u64,
        parts: &[std::io::IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.pass(parts.iter().map(|part| part.len() as u64).sum());
        self.below.write_vectored_at(offset, parts)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, out)
    }
}

/// What came of it.
pub(super) struct Outcome {
    /// Of a hundred calls of `submit`, 99 took no longer, in microseconds.
    pub(super) p99_micros: f64,
    pub(super) worst_micros: f64,
    /// Share of the calls that took less than 20 us, in per cent.
    pub(super) quick_percent: f64,
    /// What the file got that got least, of the mean of those that wanted more, in per cent.
    pub(super) least_percent: f64,
    /// Most bytes that were dirty at once, in MiB.
    pub(super) dirty_mib: f64,
}

/// Runs all of them for about `time`.
///
/// # Errors
///
/// Those of the file system.
pub(super) fn measure(memory: &Arc<MemoryDevice>, time: Duration) -> Result<Outcome> {
    let device = Narrow { below: Arc::clone(memory), busy: Mutex::new(Rank::Device, ()) };
    let device: SharedDevice = Arc::new(device);
    let options = MountOptions::new().read_only(false).data_cache_bytes(CACHE_BYTES);
    let fs = options.open_shared(device)?;
    let root = fs.root()?;
    let mut files = Vec::new();
    for number in 0..=WRITERS {
        let file = root.create(format!("cold{number}").as_str(), &NewInode::root(0o644))?;
        file.fallocate(extant::Fallocate::Allocate { keep_size: false }, 0..FILE_BYTES)?;
        files.push(file);
    }
    fs.sync()?;
    let (ends, most) = (AtomicBool::new(false), AtomicU64::new(0));
    let counts: Vec<AtomicU64> = files.iter().map(|_| AtomicU64::new(0)).collect();
    let result = threads::scope(|s| -> Result<Vec<f64>> {
        for (number, file) in files.iter().enumerate().take(WRITERS) {
            let (ends, count) = (&ends, &counts[number]);
            s.spawn("writer", move || {
                let (bytes, mut random) = (vec![1; 4 * WRITE], Prng::new(number as u64));
                while !ends.load(Ordering::Acquire) {
                    let at = random.below(FILE_BYTES / bytes.len() as u64) * bytes.len() as u64;
                    if file.write_at(&bytes, at).is_err() {
                        return;
                    }
                    count.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                }
            })?;
        }
        s.spawn("watcher", || {
            while !ends.load(Ordering::Acquire) {
                let dirty = fs.io_stats().map_or(0, |stats| stats.dirty_bytes);
                most.fetch_max(dirty, Ordering::Relaxed);
                SystemClock.sleep(Duration::from_millis(1));
            }
        })?;
        let submitted = submit(&fs, &files[WRITERS], &counts[WRITERS], time);
        ends.store(true, Ordering::Release);
        submitted
    });
    let mut took = result??;
    drop(files);
    for number in 0..=WRITERS {
        root.unlink(format!("cold{number}").as_str())?;
    }
    drop(root);
    fs.unmount()?;
    took.sort_unstable_by(f64::total_cmp);
    let at = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    let quick = took.iter().filter(|micros| **micros < 20.0).count();
    let counts: Vec<u64> = counts.into_iter().map(AtomicU64::into_inner).collect();
    // The ring reads as often as it writes, and may want less than its share.
    let mean = counts[..WRITERS].iter().sum::<u64>() as f64 / WRITERS as f64;
    let least = *counts.iter().min().context("there are files")? as f64;
    Ok(Outcome {
        p99_micros: at(0.99),
        worst_micros: at(1.0),
        quick_percent: quick as f64 / took.len() as f64 * 100.0,
        least_percent: least / mean * 100.0,
        dirty_mib: most.into_inner() as f64 / f64::from(1 << 20),
    })
}

/// Reads and writes at random through a ring; returns how long each submission took, in microseconds.
fn submit(
    fs: &extant::Fs,
    file: &extant::Inode,
    written: &AtomicU64,
    time: Duration,
) -> Result<Vec<f64>> {
    let ring = fs.ring(DEPTH)?;
    let mut random = Prng::new(SEED);
    let mut spare = vec![vec![2; 4 * WRITE]; DEPTH];
    let mut took = Vec::new();
    let start = SystemClock.monotonic();
    while SystemClock.monotonic() - start < time {
        while let Some(bytes) = spare.pop() {
            let offset = random.below(FILE_BYTES / bytes.len() as u64) * bytes.len() as u64;
            let writes = random.one_in(2);
            let op = match writes {
                true => Op::Write { offset, bytes },
                false => Op::Read { offset, buffer: bytes },
            };
            let before = SystemClock.monotonic();
            let done = ring.submit(u64::from(writes), file, op)?;
            took.push((SystemClock.monotonic() - before).as_nanos() as f64 / 1e3);
            if let Some(done) = done {
                written.fetch_add(done.tag * done.result?, Ordering::Relaxed);
                spare.push(done.buffer);
                if SystemClock.monotonic() - start >= time {
                    break;
                }
            }
        }
        if let Some(done) = ring.wait_for(Duration::from_millis(100)) {
            written.fetch_add(done.tag * done.result?, Ordering::Relaxed);
            spare.push(done.buffer);
        }
    }
    while let Some(done) = ring.wait() {
        ensure!(done.result.is_ok(), "{:?}", done.result);
    }
    Ok(took)
}
