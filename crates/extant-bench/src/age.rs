//! Ageing: a file system that is filled and then churned, in process against the kernel's ext4.
//!
//! One thread does the same operations on both, drawn from a seed: files of 4 KiB to 8 MiB until so many
//! per cent of the room are full, then for each step files are removed until there is room for another, which
//! is made, or an old file gets longer. Each 16th step ends with an fsync. Pieces of files and runs of free
//! blocks are counted on both images by the same code afterwards.

use std::path::Path;

use anyhow::{Result, ensure};
use extant::MountOptions;
use extant_base::{GroupIndex, Prng};
use extant_block::FileDevice;
use extant_sync::{Clock, SystemClock};

use crate::alloc::make;
use crate::io::Target;
use crate::io::kernel::{self, Kernel};
use crate::io::library::Library;
use crate::io::side::{Dir, Handle, Volume};
use crate::pieces::pieces;
use crate::report::{Series, add, report};
use crate::stop;

/// The directory of the files.
const DIR: &str = "aged";
/// Smallest file, and the unit of sizes.
const LEAST: u64 = 4 << 10;
/// Largest file is this many times the smallest, as a power of two.
const SIZES_LOG2: u64 = 11;
/// Bytes of one write.
const WRITE: u64 = 64 << 10;
/// Steps between two fsyncs.
const SYNC_EACH: u64 = 16;
/// Of so many steps, one makes an old file longer.
const LONGER_ONE_IN: u64 = 4;
/// Longest file by being made longer.
const LONGEST: u64 = 4 * (LEAST << SIZES_LOG2);
/// Cache of contents.
const CACHE_BYTES: u64 = 256 << 20;
/// What a journal of 256 MiB, 65,536 inodes and the rest of the structures take.
const STRUCTURES: u64 = 300 << 20;
/// A long run of free blocks, in bytes.
const LONG_RUN: u64 = 1 << 20;

/// How much is done.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often each contender has its turn.
    pub rounds: u32,
    /// How full the file system is made and kept, in per cent of the room for contents.
    pub full: u64,
    /// Bytes written by the churn, as a multiple of what is full.
    pub times: u64,
    /// Size of the images.
    pub image_bytes: u64,
    /// Where the operations begin.
    pub seed: u64,
    /// Only these contenders; all when empty.
    pub targets: Vec<String>,
}

/// The files that exist, and the numbers of what comes next.
struct Workload {
    random: Prng,
    /// Name and bytes of each file.
    files: Vec<(u64, u64)>,
    /// Bytes of all files.
    used: u64,
    named: u64,
    steps: u64,
}

impl Workload {
    fn new(seed: u64) -> Workload {
        Workload { random: Prng::new(seed), files: Vec::new(), used: 0, named: 0, steps: 0 }
    }

    /// A size between 4 KiB and 8 MiB: small ones as often as large ones.
    fn size(&mut self) -> u64 {
        let least = LEAST << self.random.below(SIZES_LOG2);
        (least + self.random.below(least)).next_multiple_of(LEAST)
    }

    /// Makes a file, or an old one longer; returns the bytes written.
    fn step<D: Dir>(&mut self, dir: &D, limit: u64, data: &[u8]) -> Result<u64> {
        stop::check()?;
        let size = self.size();
        while self.used + size > limit && !self.files.is_empty() {
            let at = self.random.below(self.files.len() as u64) as usize;
            let (name, len) = self.files.swap_remove(at);
            dir.unlink(&name.to_string())?;
            self.used -= len;
        }
        let longer = self.random.one_in(LONGER_ONE_IN) && !self.files.is_empty();
        let at = match longer {
            true => self.random.below(self.files.len() as u64) as usize,
            false => self.files.len(),
        };
        let (mut file, from) =
            match self.files.get(at).copied().filter(|(_, len)| len + size <= LONGEST) {
                Some((name, len)) => (dir.open(&name.to_string())?, len),
                None => {
                    let name = self.named;
                    self.named += 1;
                    self.files.push((name, 0));
                    (dir.create(&name.to_string())?, 0)
                }
            };
        let mut done = 0;
        while done < size {
            let len = (size - done).min(WRITE) as usize;
            ensure!(file.write(from + done, &data[..len])? == len, "a write got a part done");
            done += len as u64;
        }
        self.steps += 1;
        if self.steps.is_multiple_of(SYNC_EACH) {
            file.sync()?;
        }
        let at = if from == 0 { self.files.len() - 1 } else { at };
        self.files[at].1 += size;
        self.used += size;
        Ok(size)
    }
}

/// MiB per second of filling and of the churn.
fn age<V: Volume>(volume: &V, settings: &Settings) -> Result<(f64, f64)> {
    let dir = volume.dir(DIR)?;
    let room = settings.image_bytes.saturating_sub(STRUCTURES);
    let limit = room / 100 * settings.full;
    ensure!(limit > LONGEST, "the images are too small");
    let data = vec![0xa5; WRITE as usize];
    let mut work = Workload::new(settings.seed);
    let clock = SystemClock;
    let mut phase = |bytes: u64| -> Result<f64> {
        let (start, mut written) = (clock.monotonic(), 0);
        while written < bytes {
            written += work.step(&dir, limit, &data)?;
        }
        dir.sync()?;
        let seconds = clock.monotonic().saturating_sub(start).as_secs_f64();
        Ok(written as f64 / f64::from(1 << 20) / seconds)
    };
    Ok((phase(limit)?, phase(limit.saturating_mul(settings.times))?))
}

/// What an aged image looks like.
#[derive(Debug)]
struct Look {
    pieces_per_file: f64,
    /// Pieces of all files, for each GiB in them.
    pieces_per_gib: f64,
    free_run_kib: f64,
    /// Of what is free, per cent in runs of 1 MiB or more.
    long: f64,
}

fn look(image: &Path) -> Result<Look> {
    let fs = MountOptions::new().open(FileDevice::open_read_only(image)?)?;
    let block = fs.block_size().len() as u64;
    let (mut files, mut count, mut bytes) = (0u64, 0usize, 0);
    let dir = fs.root()?.lookup(DIR)?;
    for entry in dir.read_dir()? {
        let entry = entry?;
        if let Ok(name) = std::str::from_utf8(entry.name())
            && name.parse::<u64>().is_ok()
        {
            let file = dir.lookup(name)?;
            files += 1;
            count += pieces(&file)?;
            bytes += file.metadata().size;
        }
    }
    let (mut runs, mut free, mut long) = (0u64, 0, 0);
    for group in 0..fs.superblock().group_count {
        for run in fs.free_runs(GroupIndex(group))? {
            let len = (run.end - run.start) * block;
            runs += 1;
            free += len;
            long += if len >= LONG_RUN { len } else { 0 };
        }
    }
    Ok(Look {
        pieces_per_file: count as f64 / files.max(1) as f64,
        pieces_per_gib: count as f64 / (bytes as f64 / f64::from(1 << 30)),
        free_run_kib: free as f64 / 1024.0 / runs.max(1) as f64,
        long: long as f64 * 100.0 / (free as f64).max(1.0),
    })
}

/// One turn of a contender.
fn cell(dir: &Path, target: Target, settings: &Settings) -> Result<((f64, f64), Look)> {
    let image = make(dir, target, settings.image_bytes)?;
    let rates = match target {
        Target::Extant => {
            let library = Library::mount_by_default(&image, CACHE_BYTES)?;
            let rates = age(&library, settings)?;
            library.close()?;
            rates
        }
        _ => {
            let kernel = Kernel::mount(&image, target.name())?;
            let rates = age(&kernel, settings)?;
            kernel.close()?;
            rates
        }
    };
    kernel::check_ext4(&image)?;
    let look = look(&image)?;
    std::fs::remove_file(&image)?;
    Ok((rates, look))
}

/// Runs the table, prints it, and writes `target/bench/age.json`.
///
/// # Errors
///
/// Errors of extant; faults that e2fsck finds; a signal. The kernel is left out when it cannot run, with the
/// reason.
pub fn run(dir: &Path, settings: &Settings) -> Result<()> {
    ensure!((1..=98).contains(&settings.full), "FULL is a number of per cent up to 98");
    let of = |target: &Target| {
        settings.targets.is_empty() || settings.targets.iter().any(|name| name == target.name())
    };
    let mut targets: Vec<Target> = [Target::Extant, Target::Ext4].into_iter().filter(of).collect();
    let mut all: Vec<Series> = Vec::new();
    for round in 0..settings.rounds {
        let turn: Vec<Target> = crate::io::turn(&targets, round).collect();
        for target in turn {
            stop::check()?;
            match cell(dir, target, settings) {
                Ok(((fill, churn), look)) => {
                    println!(
                        "round {}, {}: {fill:.0}, {churn:.0}, {look:?}",
                        round + 1,
                        target.name()
                    );
                    let mut note =
                        |row, unit, value| add(&mut all, row, target.name(), unit, value);
                    note("fill", "MiB/s", fill);
                    note("churn", "MiB/s", churn);
                    note("pieces of a file", "", look.pieces_per_file);
                    note("pieces", "per GiB", look.pieces_per_gib);
                    note("free run", "KiB", look.free_run_kib);
                    note("free in runs of 1 MiB", "%", look.long);
                }
                Err(why) if target == Target::Extant => return Err(why),
                Err(why) => {
                    println!("{} is left out: {why:#}", target.name());
                    targets.retain(|other| *other != target);
                }
            }
        }
    }
    report("age", "extant", &all)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::kernel::Plain;

    /// Names and sizes of what a workload left.
    fn left(seed: u64) -> Vec<(String, u64)> {
        let volume = Plain(tempfile::tempdir().unwrap());
        let dir = volume.dir(DIR).unwrap();
        let mut work = Workload::new(seed);
        let data = vec![1; WRITE as usize];
        let limit = 3 * LONGEST;
        let mut written = 0;
        while written < 2 * limit {
            written += work.step(&dir, limit, &data).unwrap();
            assert!(work.used <= limit);
        }
        let entries = std::fs::read_dir(volume.0.path().join(DIR)).unwrap();
        let mut files: Vec<(String, u64)> = entries
            .map(|entry| entry.unwrap())
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), entry.metadata().unwrap().len())
            })
            .collect();
        files.sort();
        let mut known: Vec<(String, u64)> =
            work.files.iter().map(|(name, len)| (name.to_string(), *len)).collect();
        known.sort();
        assert_eq!(files, known);
        assert_eq!(known.iter().map(|(_, len)| len).sum::<u64>(), work.used);
        files
    }

    #[test]
    fn the_same_seed_leaves_the_same_files_and_another_others() {
        assert_eq!(left(1), left(1));
        assert_ne!(left(1), left(2));
    }
}
