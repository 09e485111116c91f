//! Allocation: workers that give a file of their own 8 KiB after 8 KiB, in process against the kernel's
//! ext4 and XFS.
//!
//! What `fallocate2` of will-it-scale does: append by `fallocate` up to 1 MiB, truncate to nothing, again.
//! A worker is a thread with a file of its own in one directory. The time ends with a sync of the
//! file system, because what one contender does in each call another may put off until then.
//!
//! All images are sparse files on the same tmpfs, large enough that what is freed and waits for a commit
//! is never missing, and are made anew for each round. No data is written.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use extant_sync::{Clock, SystemClock, threads};

use crate::io::Target;
use crate::io::kernel::{self, Kernel, tool};
use crate::io::library::Library;
use crate::io::side::{Dir, Handle, Volume};
use crate::report::{Series, add, report};
use crate::stop;

/// The contender that asks one group after the other (`mb_optimize_scan=0`).
const LINEAR: &str = "extant, linear";
/// Two workers on an image each: what they have in common is the machine alone, so nothing can scale better.
const APART: &str = "extant, apart";
/// Bytes of one call.
const STEP: u64 = 8 << 10;
/// Where a file is cut off.
const FILE_BYTES: u64 = 1 << 20;
/// Cache of contents; there are none.
const CACHE_BYTES: u64 = 64 << 20;
/// Times the kernel's ext4, with any number of workers.
const TIMES_EXT4: f64 = 4.0;
/// How far the search without an index of groups may be from the one with it.
const MODES_APART: f64 = 0.05;
/// Of 1000 calls, how many may find a group that somebody else is at.
const BUSY_MOST: f64 = 10.0;
/// Times its own rate with one worker.
const TIMES_ONE: f64 = 1.8;

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often each contender has its turn with each number of workers.
    pub rounds: u32,
    /// Numbers of workers.
    pub workers: Vec<usize>,
    /// Seconds of one turn.
    pub seconds: f64,
    /// Calls of one worker, instead of seconds; 0 for seconds.
    pub calls: u64,
    /// Size of the images.
    pub image_bytes: u64,
    /// Only these contenders; all when empty.
    pub targets: Vec<String>,
}

impl Settings {
    fn has(&self, target: Target) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|wanted| wanted == target.name())
    }
}

/// Calls per second of all workers together.
fn measure<V: Volume>(volume: &V, workers: usize, settings: &Settings) -> Result<f64>
where
    V::Dir: Sync,
{
    let dir = volume.dir("workers")?;
    let name = |number: usize| format!("w{number}");
    for number in 0..workers {
        drop(dir.create(&name(number))?);
    }
    dir.sync()?;
    let clock = SystemClock;
    let start = clock.monotonic();
    let elapsed = || clock.monotonic().saturating_sub(start).as_secs_f64();
    let goes_on = |done| match settings.calls {
        0 => elapsed() < settings.seconds,
        calls => done < calls,
    };
    let work = |number: usize| -> Result<u64> {
        let mut file = dir.open(&name(number))?;
        let mut done = 0;
        while goes_on(done) {
            stop::check()?;
            for at in (0..FILE_BYTES).step_by(STEP as usize) {
                file.allocate(at, STEP)?;
            }
            file.set_len(0)?;
            done += FILE_BYTES / STEP;
        }
        Ok(done)
    };
    let counts = threads::workers("allocator", workers, work)?;
    dir.sync()?;
    let elapsed = elapsed();
    let mut done = 0;
    for count in counts {
        done += count?;
    }
    for number in 0..workers {
        dir.unlink(&name(number))?;
    }
    Ok(done as f64 / elapsed)
}

/// The image of a contender in `dir`, made anew.
pub(crate) fn make(dir: &Path, target: Target, bytes: u64) -> Result<PathBuf> {
    let path = dir.join(format!("{}.img", target.name()));
    let file = std::fs::File::create(&path).with_context(|| path.display().to_string())?;
    file.set_len(bytes)?;
    let name = path.to_string_lossy();
    match target {
        Target::Xfs => tool("mkfs.xfs", &["-q", "-f", "-K", &name])?,
        // Few inodes, whose tables are there: nothing fills them in the background.
        _ => {
            let options = "lazy_itable_init=0,lazy_journal_init=1,nodiscard";
            let inodes = ["-N", "65536", "-J", "size=256"];
            let args = ["-q", "-F", "-t", "ext4", "-E", options];
            tool("mke2fs", &[&args[..], &inodes[..], &[&*name]].concat())?
        }
    };
    Ok(path)
}

/// One turn of a contender.
fn cell(
    dir: &Path,
    target: Target,
    workers: usize,
    settings: &Settings,
    by_index: bool,
) -> Result<(f64, f64)> {
    let mut busy = 0.0;
    let image = make(dir, target, settings.image_bytes)?;
    let rate = match target {
        Target::Extant => {
            let library = Library::mount_by_default(&image, CACHE_BYTES)?;
            library.fs().set_optimize_scan(by_index)?;
            let rate = measure(&library, workers, settings)?;
            if let Some(stats) = library.fs().writer_stats() {
                let stats = stats.allocator;
                let searches =
                    stats.found_ahead + stats.found_whole + stats.found_least + stats.found_any;
                let calls = (stats.extended + searches).max(1) as f64;
                let each = |count: u64| count as f64 / calls * 1000.0;
                busy = each(stats.groups_busy);
                let searches = each(searches);
                print!("  [of 1000: {searches:.1} searches, {busy:.2} groups busy]");
            }
            library.close()?;
            rate
        }
        _ => {
            let kernel = Kernel::mount(&image, target.name())?;
            let rate = measure(&kernel, workers, settings)?;
            kernel.close()?;
            rate
        }
    };
    if target != Target::Xfs {
        kernel::check_ext4(&image)?;
    }
    std::fs::remove_file(&image)?;
    Ok((rate, busy))
}

/// Calls per second of two workers together, each on an image of its own.
fn apart(dir: &Path, settings: &Settings) -> Result<f64> {
    let one = |number: usize| -> Result<f64> {
        let dir = dir.join(format!("apart-{number}"));
        std::fs::create_dir(&dir)?;
        let (rate, _) = cell(&dir, Target::Extant, 1, settings, true)?;
        std::fs::remove_dir(&dir)?;
        Ok(rate)
    };
    threads::workers("apart", 2, one)?.into_iter().sum()
}

/// Runs the table, prints it and how the bars were met, and writes `target/bench/alloc.json`.
///
/// # Errors
///
/// Errors of extant; faults that e2fsck finds; a signal. A contender of the kernel that cannot run is left out, with
/// the reason.
pub fn run(dir: &Path, settings: &Settings) -> Result<()> {
    ensure!(
        !settings.workers.contains(&0),
        "no worker does nothing: WORKERS is a list of numbers from 1 on"
    );
    let mut targets: Vec<Target> = [Target::Extant, Target::Ext4, Target::Xfs]
        .into_iter()
        .filter(|of| settings.has(*of))
        .collect();
    let mut all: Vec<Series> = Vec::new();
    for round in 0..settings.rounds {
        for workers in &settings.workers {
            let row = format!("fallocate2, {workers}");
            print!("round {}, {row:<16}", round + 1);
            let turn: Vec<Target> = crate::io::turn(&targets, round).collect();
            for target in turn {
                stop::check()?;
                match cell(dir, target, *workers, settings, true) {
                    Ok((rate, busy)) => {
                        print!("  {} {rate:.0}", target.name());
                        add(&mut all, &row, target.name(), "calls/s", rate);
                        if target == Target::Extant {
                            add(&mut all, &format!("{row}, busy"), target.name(), "of 1000", busy);
                        }
                    }
                    Err(why) if target == Target::Extant => return Err(why),
                    Err(why) => {
                        println!("  {} is left out: {why:#}", target.name());
                        targets.retain(|other| *other != target);
                    }
                }
            }
            if settings.has(Target::Extant) {
                let (rate, _) = cell(dir, Target::Extant, *workers, settings, false)?;
                print!("  without the index {rate:.0}");
                add(&mut all, &row, LINEAR, "calls/s", rate);
                if *workers == 2 {
                    let rate = apart(dir, settings)?;
                    print!("  apart {rate:.0}");
                    add(&mut all, &row, APART, "calls/s", rate);
                }
            }
            println!();
        }
    }
    report("alloc", "extant", &all)?;
    print_bars(&all, settings);
    Ok(())
}

fn print_bars(all: &[Series], settings: &Settings) {
    let of = |row: &str, target: &str| {
        let found = all.iter().find(|series| series.row == row && series.target == target);
        found.map(Series::median)
    };
    let median =
        |target: Target, workers: usize| of(&format!("fallocate2, {workers}"), target.name());
    let verdict = |ratio: f64, bar: f64| if ratio >= bar { "met" } else { "MISSED" };
    for workers in &settings.workers {
        let Some(own) = median(Target::Extant, *workers) else { continue };
        if let Some(ext4) = median(Target::Ext4, *workers) {
            let ratio = own / ext4;
            println!(
                "{workers:>3} workers: ext4 x {ratio:.2} (bar {TIMES_EXT4}): {}",
                verdict(ratio, TIMES_EXT4)
            );
        }
        if let Some(one) = median(Target::Extant, 1).filter(|_| *workers > 1) {
            let ratio = own / one;
            println!(
                "{workers:>3} workers: one x {ratio:.2} (bar {TIMES_ONE}): {}",
                verdict(ratio, TIMES_ONE)
            );
        }
        let row = format!("fallocate2, {workers}");
        if let Some(apart) = of(&row, APART) {
            println!("{workers:>3} workers: {:.2} of as many on an image each", own / apart);
        }
        if let Some(linear) = of(&row, LINEAR) {
            let apart = (linear / own - 1.0).abs();
            println!(
                "{workers:>3} workers: modes {:.1} % apart (bar {:.0} %): {}",
                apart * 100.0,
                MODES_APART * 100.0,
                verdict(MODES_APART, apart)
            );
        }
        if let Some(busy) = of(&format!("{row}, busy"), Target::Extant.name()) {
            println!(
                "{workers:>3} workers: {busy:.2} busy groups of 1000 calls (bar {BUSY_MOST}): {}",
                verdict(BUSY_MOST, busy)
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::kernel::Plain;

    #[test]
    fn calls_are_counted_and_files_removed() {
        let dir = tempfile::tempdir().unwrap();
        let volume = Plain(dir);
        let settings = Settings {
            rounds: 1,
            workers: vec![2],
            seconds: 0.0,
            calls: FILE_BYTES / STEP,
            image_bytes: 0,
            targets: Vec::new(),
        };
        assert!(measure(&volume, 2, &settings).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(volume.0.path().join("workers")).unwrap().count(), 0);
    }
}
