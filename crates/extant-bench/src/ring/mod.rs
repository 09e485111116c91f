//! Small buffered writes through a ring at depth 1, against the call that waits and against the kernel's ext4.
//!
//! The kernel's side is `pwrite`, one call each, and io_uring at depth 1 as fio drives it, where fio is installed. Contenders
//! take turns; each cell begins with a fresh mount.

mod cold;
mod lane;
mod punts;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant::ring::{Op, Ring};
use extant::{Fs, MountOptions, NewInode};
use extant_base::Prng;
use extant_block::FileDevice;
use extant_sync::{Clock, SystemClock};

use crate::io::kernel::{self, Kernel, KernelFile};
use crate::io::side::{Dir, Handle, Volume};
use crate::report::{self, Series, add};
use crate::run::find;
use crate::stop;

/// Bytes of one write.
const WRITE: usize = 4096;
/// What the ring must reach of the call that waits.
const OF_BLOCKING: f64 = 0.95;
/// The share of operations that the submitter's thread must have done.
const INLINE: f64 = 0.999;
/// What 99 of 100 submissions take at most while writers wait for the device, in microseconds.
const P99_MICROS: f64 = 20.0;
const UNIT: &str = "writes/s";
const SEED: u64 = 14;

/// Where the writes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    /// A new file, from its start.
    Sequence,
    /// All over a file that is in memory.
    Random,
}

impl Order {
    const ALL: [Order; 2] = [Order::Sequence, Order::Random];

    fn name(self) -> &'static str {
        match self {
            Order::Sequence => "write sequence 4K",
            Order::Random => "write random 4K",
        }
    }

    /// Calls `write` for each of the `count` blocks of a file; returns how often per second.
    fn run(self, count: u64, mut write: impl FnMut(u64) -> Result<()>) -> Result<f64> {
        let mut random = Prng::new(SEED);
        let start = SystemClock.monotonic();
        for at in 0..count {
            let at = if self == Order::Random { random.below(count) } else { at };
            write(at * WRITE as u64)?;
        }
        let time = SystemClock.monotonic() - start;
        Ok(count as f64 / time.as_secs_f64())
    }

    /// Makes a file what this begins with, and memory in which others wrote before: fresh memory of the system costs
    /// more than what is measured, and how much depends on who had it last.
    fn prepare(
        self,
        count: u64,
        mut write: impl FnMut(u64, &[u8]) -> Result<usize>,
        empty: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let bytes = vec![0xA5; WRITE];
        for at in 0..count {
            ensure!(write(at * WRITE as u64, &bytes)? == WRITE, "a short write");
        }
        if self == Order::Sequence { empty() } else { Ok(()) }
    }
}

/// Settings from the environment.
pub struct Settings {
    /// Rounds of all cells.
    pub rounds: u32,
    /// Bytes of the file.
    pub file_bytes: u64,
    /// Only groups of rows with one of these names: `inline`, `lane`, `punts`, `cold`. Empty: all.
    pub rows: Vec<String>,
}

impl Settings {
    fn count(&self) -> u64 {
        self.file_bytes / WRITE as u64
    }

    fn has(&self, group: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| wanted == group)
    }
}

/// Writes through a ring, and how many it did on this thread.
struct Submitter {
    ring: Ring,
    inode: extant::Inode,
    buffer: Vec<u8>,
}

impl Submitter {
    fn write(&mut self, offset: u64) -> Result<()> {
        let op = Op::Write { offset, bytes: std::mem::take(&mut self.buffer) };
        let done = self.ring.submit(offset, &self.inode, op)?;
        let done = done.or_else(|| self.ring.wait()).context("an operation was lost")?;
        ensure!(done.result? == WRITE as u64, "a short write at {offset}");
        self.buffer = done.buffer;
        Ok(())
    }
}

/// Runs all cells on images in `dir`, prints the table, and writes `target/bench/async.json`.
///
/// # Errors
///
/// Errors of a contender; an image that is not clean; a signal.
pub fn run(dir: &Path, settings: &Settings) -> Result<()> {
    let mut all = Vec::new();
    let mut least = None;
    if settings.has("inline") {
        least = Some(inline(dir, settings, &mut all)?);
    }
    if settings.has("lane") {
        lanes(dir, settings, &mut all)?;
    }
    if settings.has("punts") {
        forced(dir, settings, &mut all)?;
    }
    if settings.has("cold") {
        mixed(dir, settings, &mut all)?;
    }
    report::report("async", "blocking", &all)?;
    if let Some(least) = least {
        judge(&all, least);
    }
    Ok(())
}

/// What a lane adds to each direct request.
fn lanes(dir: &Path, settings: &Settings, all: &mut Vec<Series>) -> Result<()> {
    let memory = lane::device(dir)?;
    for round in 0..settings.rounds {
        for (row, writes) in [("lane read 4K", false), ("lane write 4K", true)] {
            stop::check()?;
            let lane::Costs { queue, ring } = lane::measure(&memory, writes)?;
            let more = ring - queue;
            println!(
                "round {}, {row:<18}  queue {queue:.0}  ring {ring:.0}  {more:.0} more",
                round + 1
            );
            add(all, row, "queue", "ns", queue);
            add(all, row, "ring", "ns", ring);
            add(all, row, "ring - queue", "ns", more);
        }
    }
    Ok(())
}

/// Writes that workers do although they need not.
fn forced(dir: &Path, settings: &Settings, all: &mut Vec<Series>) -> Result<()> {
    let image = dir.join("punts.img");
    kernel::zeros(&image, settings.file_bytes * 2 + (256 << 20))?;
    kernel::make_ext4(&image)?;
    let count = settings.file_bytes / WRITE as u64;
    for round in 0..settings.rounds {
        for files in punts::FILES {
            stop::check()?;
            let inline = punts::measure(&image, files, count, false)?;
            let punted = punts::measure(&image, files, count, true)?;
            let row = format!("punted write 4K, {files} files");
            let (rate, cpu) =
                (punted.per_second / inline.per_second, punted.cpu_micros / inline.cpu_micros);
            println!(
                "round {}, {row}: inline {:.0}, punted {:.0} ({rate:.2}, bar 0.5); cpu {:.2} and {:.2} us ({cpu:.2}, bar 2)",
                round + 1,
                inline.per_second,
                punted.per_second,
                inline.cpu_micros,
                punted.cpu_micros,
            );
            add(all, &row, "inline", UNIT, inline.per_second);
            add(all, &row, "ring", UNIT, punted.per_second);
            add(all, &format!("{row}, cpu"), "inline", "us", inline.cpu_micros);
            add(all, &format!("{row}, cpu"), "ring", "us", punted.cpu_micros);
        }
    }
    kernel::check_ext4(&image)?;
    std::fs::remove_file(&image)?;
    Ok(())
}

/// A submitter beside writers that the device cannot keep up with.
fn mixed(dir: &Path, settings: &Settings, all: &mut Vec<Series>) -> Result<()> {
    let memory = lane::device(dir)?;
    let row = "cold read and write 16K, depth 32";
    for round in 0..settings.rounds {
        stop::check()?;
        let outcome = cold::measure(&memory, Duration::from_secs(3))?;
        println!(
            "round {}, {row}: p99 of submit {:.1} us (bar {P99_MICROS}), worst {:.0}, {:.2} % below; least share {:.0} % (bar 50); {:.1} MiB dirty at most",
            round + 1,
            outcome.p99_micros,
            outcome.worst_micros,
            outcome.quick_percent,
            outcome.least_percent,
            outcome.dirty_mib,
        );
        add(all, row, "p99 of submit", "us", outcome.p99_micros);
        add(all, row, "worst submit", "us", outcome.worst_micros);
        add(all, row, "least share", "%", outcome.least_percent);
        add(all, row, "most dirty", "MiB", outcome.dirty_mib);
    }
    Ok(())
}

/// Writes that need not wait; returns the least share that the submitter did.
fn inline(dir: &Path, settings: &Settings, all: &mut Vec<Series>) -> Result<f64> {
    let count = settings.file_bytes / WRITE as u64;
    ensure!(count > 0, "the size of the file is at least {WRITE}");
    let image = |name: &str| dir.join(format!("{name}.img"));
    for name in ["extant", "ext4"] {
        kernel::zeros(&image(name), settings.file_bytes * 2 + (256 << 20))?;
        kernel::make_ext4(&image(name))?;
    }
    let has_kernel = match Kernel::mount(&image("ext4"), "ext4").and_then(Volume::close) {
        Ok(()) => true,
        Err(why) => {
            println!("ext4 is left out: {why:#}");
            false
        }
    };
    let mut targets = vec!["blocking", "ring", "ring lazytime"];
    targets.extend(has_kernel.then_some("ext4"));
    match find("fio").filter(|_| has_kernel) {
        Some(_) => {
            targets.push("ext4 uring");
            kernel::zeros(&image("xfs"), settings.file_bytes * 2 + (512 << 20))?;
            let made = kernel::make_xfs(&image("xfs"));
            match made.and_then(|()| Kernel::mount(&image("xfs"), "xfs")).and_then(Volume::close) {
                Ok(()) => targets.push("xfs uring"),
                Err(why) => println!("xfs uring is left out: {why:#}"),
            }
        }
        None => println!("ext4 uring is left out: needs fio, and to mount"),
    }
    let mut least = 1.0f64;
    for round in 0..settings.rounds {
        for order in Order::ALL {
            print!("round {}, {:<18}", round + 1, order.name());
            let first = round as usize % targets.len();
            for target in targets.iter().cycle().skip(first).take(targets.len()) {
                stop::check()?;
                let rate = match *target {
                    "ext4 uring" => on_uring(&image("ext4"), "ext4", order, count)?,
                    "ext4" => on_kernel(&image("ext4"), "ext4", order, count)?,
                    "xfs uring" => on_uring(&image("xfs"), "xfs", order, count)?,
                    "ring" | "ring lazytime" => {
                        let lazy = *target == "ring lazytime";
                        let (rate, share) = on_ring(&image("extant"), order, settings, lazy)?;
                        least = least.min(share);
                        rate
                    }
                    _ => on_library(&image("extant"), order, settings)?,
                };
                print!("  {target} {rate:.0}");
                add(all, order.name(), target, UNIT, rate);
            }
            println!();
        }
    }
    kernel::check_ext4(&image("extant"))?;
    Ok(least)
}

fn judge(all: &[Series], least: f64) {
    let median = |row: &str, target: &str| {
        all.iter().find(|series| series.row == row && series.target == target).map(Series::median)
    };
    let verdict = |met: bool| if met { "met" } else { "MISSED" };
    for order in Order::ALL {
        let (Some(ring), Some(blocking)) =
            (median(order.name(), "ring"), median(order.name(), "blocking"))
        else {
            continue;
        };
        let of = ring / blocking;
        println!(
            "{}: ring / blocking {of:.3}, bar {OF_BLOCKING}: {}",
            order.name(),
            verdict(of >= OF_BLOCKING)
        );
        for (target, bar) in [("ext4", 1.0), ("ext4 uring", 10.0), ("xfs uring", 3.0)] {
            if let Some(other) = median(order.name(), target) {
                let of = ring / other;
                println!(
                    "{}: ring / {target} {of:.2}, bar {bar}: {}",
                    order.name(),
                    verdict(of >= bar)
                );
            }
        }
    }
    println!(
        "done by the submitter: {:.3} %, bar {} %: {}",
        least * 100.0,
        INLINE * 100.0,
        verdict(least >= INLINE)
    );
}

/// Mounts, makes a file, and does `work` with it.
fn with_file<T>(
    image: &Path,
    order: Order,
    settings: &Settings,
    lazy: bool,
    work: impl FnOnce(&Fs, &extant::Inode) -> Result<T>,
) -> Result<T> {
    let device = FileDevice::open_read_write(image)?;
    let fs = MountOptions::new()
        .read_only(false)
        .data_cache_bytes(settings.file_bytes * 4)
        .background(false)
        .dirty_background_bytes(u64::MAX)
        .lazytime(lazy)
        .open(device)?;
    let root = fs.root()?;
    let file = root.create("written", &NewInode::root(0o644))?;
    let count = settings.count();
    order.prepare(count, |at, bytes| Ok(file.write_at(bytes, at)?), || Ok(file.truncate(0)?))?;
    let result = work(&fs, &file);
    drop(file);
    root.unlink("written")?;
    drop(root);
    fs.unmount()?;
    result
}

fn on_library(image: &Path, order: Order, settings: &Settings) -> Result<f64> {
    with_file(image, order, settings, false, |_, file| {
        let bytes = vec![0x5A; WRITE];
        order.run(settings.count(), |at| {
            ensure!(file.write_at(&bytes, at)? == WRITE, "a short write at {at}");
            Ok(())
        })
    })
}

fn on_ring(image: &Path, order: Order, settings: &Settings, lazy: bool) -> Result<(f64, f64)> {
    with_file(image, order, settings, lazy, |fs, file| {
        let ring = fs.ring(1)?;
        let mut submitter = Submitter { ring, inode: file.clone(), buffer: vec![0x5A; WRITE] };
        let rate = order.run(settings.count(), |at| submitter.write(at))?;
        let stats = submitter.ring.stats();
        Ok((rate, stats.inline as f64 / (stats.inline + stats.completed) as f64))
    })
}

/// Mounts, makes a file, and does `work` with it and its path.
fn with_kernel(
    image: &Path,
    kind: &str,
    order: Order,
    count: u64,
    work: impl FnOnce(&mut KernelFile, &Path) -> Result<f64>,
) -> Result<f64> {
    let kernel = Kernel::mount(image, kind)?;
    let dir = kernel.dir("files")?;
    let mut file = dir.create("written")?;
    let mut other = dir.open("written")?;
    order.prepare(count, |at, bytes| file.write(at, bytes), || other.set_len(0))?;
    let rate = work(&mut file, &kernel.path()?.join("files/written"));
    drop((file, other));
    dir.unlink("written")?;
    drop(dir);
    kernel.close()?;
    rate
}

fn on_kernel(image: &Path, kind: &str, order: Order, count: u64) -> Result<f64> {
    let bytes = vec![0x5A; WRITE];
    with_kernel(image, kind, order, count, |file, _| {
        order.run(count, |at| {
            ensure!(file.write(at, &bytes)? == WRITE, "a short write at {at}");
            Ok(())
        })
    })
}

fn on_uring(image: &Path, kind: &str, order: Order, count: u64) -> Result<f64> {
    with_kernel(image, kind, order, count, |_, path| fio(path, order, count))
}

/// Writes per second, as fio says.
fn fio(path: &Path, order: Order, count: u64) -> Result<f64> {
    let kind = if order == Order::Random { "randwrite" } else { "write" };
    let output = Command::new("fio")
        .args(["--name=write", "--ioengine=io_uring", "--iodepth=1", "--fallocate=none"])
        .args(["--norandommap", "--output-format=json", "--thread"])
        .arg(format!("--bs={WRITE}"))
        .arg(format!("--size={}", count * WRITE as u64))
        .arg(format!("--rw={kind}"))
        .arg(format!("--filename={}", path.display()))
        .output()?;
    ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
    let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    said.pointer("/jobs/0/write/iops")
        .and_then(serde_json::Value::as_f64)
        .context("fio says no iops")
}
