//! Writers that are faster than the device: who waits, who does not, and who gets how much.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant::ring::Op;
use extant::{Fs, Inode, MountOptions, WaitReason};
use extant_block::{BlockDevice, DeviceError, MemoryDevice, Operation, Pending, SharedDevice};
use extant_sync::{Clock, Mutex, Rank, SystemClock, threads};
use extant_testkit::{Ends, require};

use crate::support::{BLOCK, file, finish, made, until};

const MIB: u64 = 1 << 20;
/// Memory for contents of files.
const CACHE: u64 = 8 * MIB;
/// One write.
const WRITE: usize = 4 * BLOCK;

/// A device that writes so many bytes in a second, one write after the other.
struct Slow {
    below: Arc<MemoryDevice>,
    bytes_per_ms: u64,
    busy: Mutex<()>,
}

impl Slow {
    fn pass(&self, bytes: u64) {
        let _busy = self.busy.lock();
        SystemClock.sleep(Duration::from_micros(1000 * bytes / self.bytes_per_ms));
    }
}

impl BlockDevice for Slow {
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

fn slow(memory: &Arc<MemoryDevice>, mib_per_second: u64) -> Fs {
    let bytes_per_ms = mib_per_second * MIB / 1000;
    let busy = Mutex::new(Rank::Device, ());
    let device = Arc::new(Slow { below: Arc::clone(memory), bytes_per_ms, busy });
    let options = MountOptions::new().read_only(false).seed(1).data_cache_bytes(CACHE);
    options.open_shared(device as SharedDevice).unwrap()
}

/// What each file got, by writers that wait and through a ring, while the device cannot keep up.
/// Writers that wait write `sizes` of bytes each time; beside a `steady` one, which writes a block
/// from time to time and is not among those files.
fn shares_of(fs: &Fs, sizes: &[usize], through_ring: usize, total: u64, steady: bool) -> Vec<u64> {
    let blocking = sizes.len();
    let count = blocking + through_ring;
    let files: Vec<Inode> = (0..count).map(|n| file(fs, &format!("f{n}"))).collect();
    let counts: Vec<AtomicU64> = (0..count).map(|_| AtomicU64::new(0)).collect();
    let ends = AtomicBool::new(false);
    let sum = || counts.iter().map(|count| count.load(Ordering::Relaxed)).sum::<u64>();
    // Over the same MiB again and again, more than there is memory for: space is no matter here.
    let offset = |n: u64| n * WRITE as u64 % (12 * MIB);
    threads::scope(|s| {
        let has_ended = Ends(&ends);
        for ((file, count), size) in files.iter().zip(&counts).zip(sizes) {
            let ends = &ends;
            let write = move || {
                let bytes = vec![1; *size];
                while !ends.load(Ordering::Acquire) {
                    let at = offset(count.load(Ordering::Relaxed) / WRITE as u64);
                    assert_eq!(file.write_at(&bytes, at).unwrap(), *size);
                    count.fetch_add(*size as u64, Ordering::Relaxed);
                }
            };
            s.spawn("writer", write).unwrap();
        }
        if steady {
            let steady = file(fs, "steady");
            let ends = &ends;
            let write = move || {
                while !ends.load(Ordering::Acquire) {
                    steady.write_at(&[3; BLOCK], 0).unwrap();
                    SystemClock.sleep(Duration::from_millis(10));
                }
            };
            s.spawn("steady", write).unwrap();
        }
        let watch = || {
            let mut most = 0;
            while !ends.load(Ordering::Acquire) {
                let stats = fs.io_stats();
                most = most.max(stats.map_or(0, |stats| stats.dirty_bytes));
                SystemClock.sleep(Duration::from_millis(1));
            }
            most
        };
        let watcher = s.spawn("watcher", watch).unwrap();
        let submit = || {
            let ring = fs.ring(2 * through_ring.max(1)).unwrap();
            let mut idle: Vec<usize> = (blocking..count).chain(blocking..count).collect();
            while !ends.load(Ordering::Acquire) {
                while let Some(at) = idle.pop() {
                    let n = counts[at].fetch_add(WRITE as u64, Ordering::Relaxed) / WRITE as u64;
                    let op = Op::Write { offset: offset(n), bytes: vec![2; WRITE] };
                    // In debug builds this panics if it would wait for anything.
                    match ring.submit(at as u64, &files[at], op).unwrap() {
                        Some(done) => idle.insert(0, done.tag as usize),
                        None => continue,
                    }
                    if idle.len() == 2 * through_ring {
                        // Each had its turn.
                        break;
                    }
                }
                idle.extend(std::iter::from_fn(|| ring.poll()).map(|done| done.tag as usize));
                if idle.is_empty() {
                    idle.extend(ring.wait().map(|done| done.tag as usize));
                }
            }
            let stats = ring.stats();
            while ring.wait().is_some_and(|done| done.result.is_ok()) {}
            stats
        };
        let submitter = (through_ring > 0).then(|| s.spawn("submitter", submit).unwrap());
        until("so much is written", || sum() >= total);
        drop(has_ended);
        // Each write is checked before it begins: the limit, and one write of each writer; two of
        // each file of the ring.
        let begun = sizes.iter().sum::<usize>() + 2 * through_ring * WRITE;
        let limit = CACHE / 5 * 4 + (begun + usize::from(steady) * BLOCK) as u64;
        let most = watcher.join().unwrap();
        assert!(most <= limit, "{most} bytes were dirty, more than {limit}");
        if let Some(submitter) = submitter {
            let stats = submitter.join().unwrap();
            assert!(stats.refused(WaitReason::Throttle) > 0, "{stats:?}");
        }
    })
    .unwrap();
    counts.into_iter().map(AtomicU64::into_inner).collect()
}

fn shares(fs: &Fs, blocking: usize, through_ring: usize, total: u64) -> Vec<u64> {
    shares_of(fs, &vec![WRITE; blocking], through_ring, total, false)
}

/// Number of times that shares are looked at.
const LOOKS: usize = 4;

/// Asserts that no file gets less than half of the mean. A machine that is busy with something else
/// may keep a thread from running for longer than it counts as a writer, so one of several looks has
/// to be fair. These shares are fair here without pacing too, because writers over the limit write
/// back themselves; what pacing adds is shown by the tests of `writer::pace`, on a clock of their own.
fn assert_fair(memory: &Arc<MemoryDevice>, shares: impl Fn(&Fs) -> Vec<u64>) {
    let mut unfair = Vec::new();
    for _look in 0..LOOKS {
        let memory = Arc::new(memory.snapshot());
        let fs = slow(&memory, 100);
        let shares = shares(&fs);
        finish(fs, &memory);
        let mean = shares.iter().sum::<u64>() / shares.len() as u64;
        if *shares.iter().min().unwrap() >= mean / 2 {
            return;
        }
        unfair.push(shares);
    }
    panic!("never fair: {unfair:?}");
}

#[test]
fn no_file_gets_less_than_half_its_share_of_a_device_that_cannot_keep_up() {
    let memory = require!(made("128M"));
    assert_fair(&memory, |fs| shares(fs, 4, 4, 100 * MIB));
}

#[test]
fn blocking_writers_share_a_device_that_cannot_keep_up() {
    let memory = require!(made("128M"));
    assert_fair(&memory, |fs| shares(fs, 6, 0, 100 * MIB));
}

#[test]
fn who_writes_a_little_now_and_then_does_not_decide_what_others_get() {
    let memory = require!(made("128M"));
    let sizes = [16 * WRITE, WRITE, 16 * WRITE, WRITE];
    assert_fair(&memory, |fs| shares_of(fs, &sizes, 0, 100 * MIB, true));
}
