//! What databases do: writing over a cached file in random order, write-ahead logs, direct writes.
//!
//! All with the limits that everybody has by default, extant with a cache of twice the file. Each
//! contender does the same operations in the same order. A write-ahead log is a file of its own for each
//! writer, which appends 4 KiB and waits for `fdatasync`, again and again. Direct writes go past the
//! cache into files that are written already, one for each thread, 4 KiB at a time.

use std::fmt;
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock, threads};

use super::rows::{Bar, Writeback};
use super::side::{Dir, Handle, Region, Volume};
use super::work::{STAMPED, data_file, pattern, rate, stamp, verify, write_pass};
use crate::stop;

/// Records that all writers of logs write together.
const RECORDS: u64 = 32_768;
/// Direct writes that all threads make together.
const DIRECT_WRITES: u64 = 65_536;
/// Bytes of a file that is written to directly.
const DIRECT_BYTES: u64 = 4 << 20;
/// Passes over a cached file in one measurement.
const PASSES: u32 = 3;
/// Seed of everything random.
const SEED: u64 = 9;

/// One row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Load {
    /// A cached file is written over, block after block in random order.
    Random {
        /// Bytes per call.
        block_bytes: usize,
    },
    /// So many append to a log each.
    Log {
        /// Threads.
        writers: usize,
    },
    /// So many write past the cache.
    Direct {
        /// Threads.
        writers: usize,
    },
}

impl Load {
    /// All rows, in the order of the table.
    pub fn all() -> Vec<Load> {
        let random = [4 << 10, 64 << 10, 1 << 20].map(|block_bytes| Load::Random { block_bytes });
        let logs = [1, 4, 16].map(|writers| Load::Log { writers });
        let direct = [1, 8, 32].map(|writers| Load::Direct { writers });
        [random, logs, direct].concat()
    }

    /// The unit of what [`run`] returns.
    pub fn unit(self) -> &'static str {
        match self {
            Load::Random { .. } => "MiB/s",
            Load::Log { .. } | Load::Direct { .. } => "writes/s",
        }
    }

    /// Returns what the row must reach.
    pub fn bars(self) -> Vec<Bar> {
        match self {
            Load::Random { block_bytes: 4096 } => {
                vec![Bar::new("ext4", 1.0), Bar::new("xfs", 1.5)]
            }
            Load::Random { .. } => {
                vec![Bar::new("ext4", 1.0), Bar::new("xfs", 1.0), Bar::new("memcpy", 0.85)]
            }
            Load::Log { writers: 1 } => vec![Bar::new("ext4", 5.0)],
            Load::Log { writers: 4 } => vec![Bar::new("ext4", 4.0), Bar::new("full", 1.5)],
            Load::Log { .. } => vec![Bar::new("ext4", 4.0)],
            Load::Direct { .. } => vec![Bar::new("ext4", 1.0), Bar::new("xfs", 1.0)],
        }
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Load::Random { block_bytes: 0x10_0000 } => f.write_str("random overwrite 1M"),
            Load::Random { block_bytes } => write!(f, "random overwrite {}K", block_bytes >> 10),
            Load::Log { writers } => write!(f, "log {writers}"),
            Load::Direct { writers } => write!(f, "direct write {writers}"),
        }
    }
}

/// The numbers `0..count` in random order.
fn shuffled(count: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..count).collect();
    let mut random = Prng::new(SEED);
    for index in (1..all.len()).rev() {
        all.swap(index, random.below(index as u64 + 1) as usize);
    }
    all
}

/// Writes each block of a file once.
fn random_pass(
    file: &mut impl Handle,
    order: &[u64],
    buffer: &mut [u8],
    salt: u64,
) -> Result<Duration> {
    stop::check()?;
    let start = SystemClock.monotonic();
    for block in order {
        let at = block * buffer.len() as u64;
        stamp(buffer, at, salt);
        let put = file.write(at, black_box(buffer))?;
        ensure!(put == buffer.len(), "{put} of {} bytes written at {at}", buffer.len());
    }
    Ok(SystemClock.monotonic().saturating_sub(start))
}

/// Runs a row on a volume that was mounted just now. Contents are checked, outside of the time.
///
/// # Errors
///
/// Errors of the contender; contents that are not what was written.
pub fn run(volume: &impl Volume, load: Load, file_bytes: u64) -> Result<f64> {
    let dir = volume.dir("io")?;
    match load {
        Load::Random { block_bytes } => {
            let mut file = data_file(&dir, "data", file_bytes)?;
            let mut salt = verify(&mut file, file_bytes)?;
            let order = shuffled(file_bytes / block_bytes as u64);
            let (mut buffer, mut elapsed) = (pattern(block_bytes), Duration::ZERO);
            for _ in 0..PASSES {
                salt = (salt + 1) & 0xffff;
                elapsed += random_pass(&mut file, &order, &mut buffer, salt)?;
                ensure!(verify(&mut file, file_bytes)? == salt, "pass {salt} left no trace");
                file.sync()?;
            }
            Ok(rate(file_bytes, PASSES, elapsed))
        }
        Load::Log { writers } => {
            let each = RECORDS / writers as u64;
            side_by_side(writers, each, |index, start| {
                let name = format!("log {index}");
                // A round that was stopped may have left it.
                if dir.size(&name)?.is_some() {
                    dir.unlink(&name)?;
                }
                let mut file = dir.create(&name)?;
                dir.sync()?;
                let mut buffer = pattern(STAMPED);
                let began = start.wait();
                for record in 0..each {
                    let at = record * STAMPED as u64;
                    stamp(&mut buffer, at, 3);
                    ensure!(file.write(at, &buffer)? == STAMPED, "a part of record {record}");
                    file.sync_data()?;
                }
                let ended = SystemClock.monotonic();
                let len = each * STAMPED as u64;
                ensure!(dir.size(&name)? == Some(len), "{name} has another size");
                ensure!(verify(&mut file, len)? == 3, "{name} is not what was written");
                drop(file);
                dir.unlink(&name)?;
                Ok((began, ended))
            })
        }
        Load::Direct { writers } => {
            let each = DIRECT_WRITES / writers as u64;
            let order = shuffled(DIRECT_BYTES / STAMPED as u64);
            side_by_side(writers, each, |index, start| {
                let name = format!("direct {index}");
                let mut file = data_file(&dir, &name, DIRECT_BYTES)?;
                let salt = (verify(&mut file, DIRECT_BYTES)? + 1) & 0xffff;
                drop(file);
                let mut file = dir.open_direct(&name)?;
                let mut room = vec![0; 2 * STAMPED];
                let first = room.as_ptr().align_offset(STAMPED);
                let buffer = &mut room[first..first + STAMPED];
                buffer.copy_from_slice(&pattern(STAMPED));
                let began = start.wait();
                for block in order.iter().cycle().take(each as usize) {
                    let at = block * STAMPED as u64;
                    stamp(buffer, at, salt);
                    ensure!(file.write_direct(at, buffer)? == STAMPED, "a part of {block}");
                }
                let ended = SystemClock.monotonic();
                drop(file);
                let mut file = dir.open(&name)?;
                ensure!(verify(&mut file, DIRECT_BYTES)? == salt, "{name}: salt {salt} is missing");
                Ok((began, ended))
            })
        }
    }
}

/// Lets threads begin at the same time, when all have made ready.
struct Start {
    ready: AtomicUsize,
    wanted: usize,
}

impl Start {
    /// The time when all were ready.
    fn wait(&self) -> Duration {
        self.ready.fetch_add(1, Ordering::SeqCst);
        while self.ready.load(Ordering::SeqCst) < self.wanted {
            threads::give_way();
        }
        SystemClock.monotonic()
    }
}

/// Keeps others from waiting for one that has failed.
struct Arrived<'a>(&'a Start);

impl Drop for Arrived<'_> {
    fn drop(&mut self) {
        self.0.ready.fetch_add(self.0.wanted, Ordering::SeqCst);
    }
}

/// Operations per second of threads that make `each` of them, from the first one's begin to the last
/// one's end.
fn side_by_side(
    count: usize,
    each: u64,
    work: impl Fn(usize, &Start) -> Result<(Duration, Duration)> + Sync,
) -> Result<f64> {
    stop::check()?;
    let start = Start { ready: AtomicUsize::new(0), wanted: count };
    let times = threads::workers("load", count, |index| {
        let arrived = Arrived(&start);
        let times = work(index, &start);
        drop(arrived);
        times
    })?;
    let times = times.into_iter().collect::<Result<Vec<_>>>()?;
    let began = times.iter().map(|(began, _)| *began).min().unwrap_or_default();
    let ended = times.iter().map(|(_, ended)| *ended).max().unwrap_or_default();
    let elapsed = ended.saturating_sub(began);
    Ok((each * count as u64) as f64 / elapsed.as_secs_f64())
}

/// The same calls on plain memory; `None` where there is nothing to compare with.
///
/// # Errors
///
/// None but signals to stop.
pub fn run_copy(load: Load, file_bytes: u64) -> Result<Option<f64>> {
    let Load::Random { block_bytes } = load else { return Ok(None) };
    let mut region = Region::untouched(usize::try_from(file_bytes)?);
    write_pass(&mut region, file_bytes, &mut pattern(1 << 20), 1, Writeback::Off)?;
    let order = shuffled(file_bytes / block_bytes as u64);
    let (mut buffer, mut elapsed) = (pattern(block_bytes), Duration::ZERO);
    for _ in 0..PASSES {
        elapsed += random_pass(&mut region, &order, &mut buffer, 2)?;
    }
    Ok(Some(rate(file_bytes, PASSES, elapsed)))
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Plain;
    use super::*;

    #[test]
    fn every_row_runs_and_has_a_name_of_its_own() {
        let len = 4 << 20;
        let volume = Plain(tempfile::tempdir_in(".").unwrap());
        let mut names = Vec::new();
        for load in Load::all() {
            let ran = run(&volume, load, len);
            // Not every file system takes direct writes.
            if !matches!(load, Load::Direct { .. }) {
                assert!(ran.unwrap() > 0.0, "{load}");
            }
            assert_eq!(run_copy(load, len).unwrap().is_some(), load.unit() == "MiB/s");
            names.push(load.to_string());
        }
        assert_eq!(names[2], "random overwrite 1M");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 9);
    }

    #[test]
    fn each_block_has_its_turn_once() {
        let mut order = shuffled(1000);
        assert!(order.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 10);
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<_>>());
    }
}
