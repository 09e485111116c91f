//! Direct I/O of one thread with many requests under way: extant, the kernel's ext4, and the bytes below.
//!
//! *fio raw* is fio's io_uring on a disk (a loop device over memory) or a file of one; *ring* the queue that extant has
//! for devices, on the same target, so what it costs is known apart; *extant* a file on a file system on another such
//! target, in process; *fs ring* the same file through a ring of the file system (`Fs::ring`), which goes through the host's
//! cache, and *ring cached* extant's queue on the raw target in that way, its floor; *ext4* a file on the kernel's, which fio uses by io_uring and by libaio. On extant, each block has
//! its offset in its first bytes, which reads check.
//!
//! Time of processors is that of the whole machine, threads of the kernel among it, for each request.

mod busy;
mod fio;
mod place;
mod several;
mod side;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant::QueueOptions;
use extant_base::Prng;

use crate::report::{Series, add, report};
use crate::stop;
pub use place::Below;
use place::Place;
use side::Side;

/// What extant must reach of fio's io_uring on the raw target.
const OF_RAW: f64 = 0.98;
/// How many times ext4's rate several writers that add blocks to one file must reach.
const OF_KERNEL: f64 = 2.0;

/// How much is measured where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often each contender has its turn.
    pub rounds: u32,
    /// Size of the file.
    pub file_bytes: u64,
    /// Length of one turn.
    pub time: Duration,
    /// Names in the table, directories, and what is made of the files there.
    pub places: Vec<(String, PathBuf, Below)>,
    /// Only rows whose name has one of these in it; all when empty.
    pub rows: Vec<String>,
}

/// One row of a place.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Of a request.
    bytes: usize,
    writes: bool,
    depth: usize,
}

/// What somebody reached.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// Requests per second.
    rate: f64,
    /// Time of processors for a request, in microseconds.
    cpu_micros: f64,
}

impl Cell {
    fn all() -> impl Iterator<Item = Cell> {
        let depths = [1, 64].into_iter();
        depths.flat_map(|depth| {
            [4096, 16_384].into_iter().flat_map(move |bytes| {
                [false, true].into_iter().map(move |writes| Cell { bytes, writes, depth })
            })
        })
    }

    fn name(&self, place: &str) -> String {
        let what = if self.writes { "write" } else { "read" };
        format!("{place} {what} {}K, depth {}", self.bytes >> 10, self.depth)
    }
}

/// Runs the table in each place, prints it, and writes `target/bench/direct.json`.
///
/// # Errors
///
/// Errors of a contender; contents that are not what was written; a signal.
pub fn direct(settings: &Settings) -> Result<()> {
    let mut all = Vec::new();
    for (name, dir, below) in &settings.places {
        several::measure(settings, name, *below, dir, &mut all)?;
        let cells: Vec<Cell> = Cell::all().filter(|cell| settings.has(&cell.name(name))).collect();
        if cells.is_empty() {
            continue;
        }
        let dir = tempfile::tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        let place = Place::make(*below, dir.path(), settings.file_bytes)?;
        let measured = measure(settings, name, &cells, &place, &mut all);
        let ended = place.end();
        measured?;
        ended?;
    }
    report("direct", "fio raw", &all)?;
    judge(&all);
    several::judge(&all);
    Ok(())
}

impl Settings {
    fn has(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| row.contains(wanted.as_str()))
    }
}

fn measure(
    settings: &Settings,
    name: &str,
    cells: &[Cell],
    place: &Place,
    all: &mut Vec<Series>,
) -> Result<()> {
    let (bytes, time) = (settings.file_bytes, settings.time);
    let options = QueueOptions::default().direct(true);
    println!("{name}: extant by {}", place.extant.engine(&options));
    let mut contenders = vec!["ring", "extant", "ring cached", "fs ring"];
    if fio::is_here() {
        contenders.insert(0, "fio raw");
        if place.on_ext4.is_some() {
            contenders.extend(["ext4 uring", "ext4 aio"]);
        }
    } else {
        println!("fio is not installed: raw and ext4 are left out");
    }
    let mut random = Prng::new(1);
    let mut requests = 0;
    for round in 0..settings.rounds as usize {
        for cell in cells {
            let row = cell.name(name);
            // Each begins once.
            for turn in 0..contenders.len() {
                stop::check()?;
                let contender = contenders[(turn + round) % contenders.len()];
                let on_ext4 = || place.on_ext4.as_deref().context("ext4 is not mounted");
                let Measured { rate, cpu_micros } = match contender {
                    "fio raw" => fio::run(&place.raw, "io_uring", cell, bytes, time)?,
                    "ring" => place.ring.run(cell, bytes, time, &mut random, true)?.0,
                    "ring cached" => place.ring.run(cell, bytes, time, &mut random, false)?.0,
                    "fs ring" => {
                        let (measured, count, by_workers) =
                            place.extant.run_ring(cell, bytes, time, &mut random)?;
                        if by_workers > 0 {
                            println!("{by_workers} of {count} went to workers");
                        }
                        requests += count;
                        measured
                    }
                    "extant" => {
                        let (measured, count) =
                            place.extant.run(cell, bytes, time, &mut random, true)?;
                        requests += count;
                        measured
                    }
                    "ext4 uring" => fio::run(on_ext4()?, "io_uring", cell, bytes, time)?,
                    _ => fio::run(on_ext4()?, "libaio", cell, bytes, time)?,
                };
                let rate = rate / 1e3;
                println!(
                    "run {}: {row:<28} {contender:<10} {rate:>9.1} k/s {cpu_micros:>8.2} us",
                    round + 1
                );
                add(all, &row, contender, "k/s", rate);
                add(all, &format!("{row}, cpu"), contender, "us", cpu_micros);
            }
        }
    }
    if let Side::Extant(fs, _) = &place.extant {
        let stats = fs.io_stats().context("no counters")?;
        // Those that lie in two places of the disk, as few as there are runs of blocks.
        let beside = requests.saturating_sub(stats.direct_queued);
        ensure!(beside <= requests / 1000, "{beside} requests were done one by one: {stats:?}");
    }
    Ok(())
}

/// Says which bars are met.
fn judge(all: &[Series]) {
    let median = |row: &str, target: &str| {
        all.iter().find(|series| series.row == row && series.target == target).map(Series::median)
    };
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    println!();
    for series in all.iter().filter(|series| series.target == "fs ring" && series.unit == "k/s") {
        if let Some(floor) = median(&series.row, "ring cached") {
            let of_floor = series.median() / floor;
            let row = &series.row;
            println!(
                "{row}, a ring: {of_floor:.2} of its queue, bar {OF_RAW}: {}",
                verdict(of_floor >= OF_RAW)
            );
        }
    }
    let is_queue = |series: &&Series| series.row.contains(", depth ") && series.unit == "k/s";
    for series in all.iter().filter(is_queue).filter(|series| series.target == "extant") {
        let (row, rate) = (&series.row, series.median());
        for (other, least) in [("fio raw", OF_RAW), ("ext4 uring", 1.0), ("ext4 aio", 1.0)] {
            if let Some(of) = median(row, other).map(|other| rate / other) {
                println!("{row}: {of:.2} of {other}, bar {least}: {}", verdict(of >= least));
            }
        }
        let cpu = format!("{row}, cpu");
        let of_ext4 = ["ext4 uring", "ext4 aio"].map(|other| median(&cpu, other));
        let of_ext4 = of_ext4.into_iter().flatten().reduce(f64::min);
        if let (Some(own), Some(other)) = (median(&cpu, "extant"), of_ext4) {
            println!(
                "{row}: {own:.1} us of processors, at most ext4's {other:.1}: {}",
                verdict(own <= other)
            );
        }
    }
}
