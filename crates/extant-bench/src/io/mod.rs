//! Contents of files, against the kernel's ext4 and XFS and against plain copies.
//!
//! Three tables: sequential reading and writing by one thread, one call at a time, row by row as
//! [`rows`] has them; [`load`], what databases do, with the limits of everybody; and [`metamix`], many
//! small files by many threads. [`memory`] is a third
//! measurement, of a process of its own.
//!
//! The kernel works on loop devices over tmpfs, extant on a file in the same tmpfs, both on images
//! whose pages were all there before. How much faster than ext4 a copy alone is (`ceiling`) bounds
//! what anybody who copies can reach. Each cell begins with a fresh mount, so that what is cached
//! is what the row says. Contenders take turns within each row of each round.

pub mod kernel;
pub mod library;
pub mod load;
pub mod memory;
pub mod metamix;
pub mod rows;
pub mod side;
pub mod work;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use extant::MountOptions;

use self::kernel::{Dirty, Kernel};
use self::library::Library;
use self::load::Load;
use self::rows::{Bar, Row, Writeback};
use self::side::Volume;
use crate::report::{self, Series, add};
use crate::stop;

/// Instances of metamix.
const INSTANCES: [usize; 3] = [1, 2, 8];
/// What metamix must reach, against each file system of the kernel.
const METAMIX_TIMES: f64 = 8.0;
/// Room on an image besides two files: the rows that sync, journals, metadata.
const ROOM_BYTES: u64 = 800 << 20;
/// With writeback on, everybody begins to write at this many dirty bytes.
const BACKGROUND_BYTES: u64 = 32 << 20;
/// Seed of everything random.
const SEED: u64 = 4;

/// A contender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target {
    /// In process.
    Extant,
    /// In process, without fast commits: what logs cost then, with the feature.
    Full,
    /// The kernel's.
    Ext4,
    /// The kernel's.
    Xfs,
    /// Copies between two buffers.
    Memcpy,
    /// The system's own calls on a file beside the images.
    Device,
}

impl Target {
    const ALL: [Target; 6] =
        [Target::Extant, Target::Full, Target::Ext4, Target::Xfs, Target::Memcpy, Target::Device];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Target::Extant => "extant",
            Target::Full => "full",
            Target::Ext4 => "ext4",
            Target::Xfs => "xfs",
            Target::Memcpy => "memcpy",
            Target::Device => "device",
        }
    }
}

/// What is run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Rounds of the table.
    pub rounds: u32,
    /// Rounds of metamix.
    pub metamix_rounds: u32,
    /// Bytes of a file: a multiple of 1 MiB.
    pub file_bytes: u64,
    /// Seconds of one run of metamix.
    pub seconds: f64,
    /// Only rows whose name has one of these in it; all when empty.
    pub rows: Vec<String>,
    /// Only these contenders; all when empty.
    pub targets: Vec<String>,
    /// Features of ext4 images beside those that mke2fs gives them, as for `-O`.
    pub features: String,
}

impl Settings {
    fn has_row(&self, name: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|wanted| name.contains(wanted.as_str()))
    }

    fn has_target(&self, target: Target) -> bool {
        let is_there = target != Target::Full || self.features.contains("fast_commit");
        let is_wanted =
            self.targets.is_empty() || self.targets.iter().any(|wanted| wanted == target.name());
        is_there && is_wanted
    }
}

/// The images of all contenders, in one directory.
struct Images<'a> {
    dir: &'a Path,
    settings: &'a Settings,
}

impl Images<'_> {
    fn path(&self, target: Target) -> PathBuf {
        self.dir.join(format!("{}.img", target.name()))
    }

    fn make(&self, target: Target) -> Result<()> {
        let path = self.path(target);
        if !path.exists() {
            let file_bytes = self.settings.file_bytes;
            let bytes =
                if target == Target::Device { file_bytes } else { 2 * file_bytes + ROOM_BYTES };
            kernel::zeros(&path, bytes)?;
        }
        match target {
            Target::Extant | Target::Full | Target::Ext4 => {
                kernel::make_ext4_with(&path, &self.settings.features)
            }
            Target::Xfs => kernel::make_xfs(&path),
            Target::Memcpy | Target::Device => Ok(()),
        }
    }

    /// Does `work` on extant's image, mounted for it. Where nothing is to be written back nobody
    /// asks for it, and the cache is so large that its limit is far.
    fn library<T>(
        &self,
        writeback: Writeback,
        background: bool,
        work: impl FnOnce(&Library) -> Result<T>,
    ) -> Result<T> {
        let off = writeback == Writeback::Off;
        let cache_bytes = self.settings.file_bytes * if off { 4 } else { 2 };
        let library = Library::mount(&self.path(Target::Extant), cache_bytes, background)?;
        let result = work(&library)?;
        library.close()?;
        Ok(result)
    }

    /// Does `work` on the image of one of the kernel's file systems, mounted for it.
    fn kernel<T>(&self, target: Target, work: impl FnOnce(&Kernel) -> Result<T>) -> Result<T> {
        let kernel = Kernel::mount(&self.path(target), target.name())?;
        let result = work(&kernel)?;
        kernel.close()?;
        Ok(result)
    }

    /// One cell of the table, in MiB/s; `None` where a contender has nothing to compare with.
    fn cell(&self, target: Target, row: Row) -> Result<Option<f64>> {
        let bytes = self.settings.file_bytes;
        let writeback = row.kind.writeback();
        let rate = match target {
            Target::Extant => {
                let background = row.kind.appends().is_none() || writeback != Writeback::Off;
                self.library(writeback, background, |volume| work::run(volume, row, bytes))?
            }
            Target::Ext4 | Target::Xfs => {
                if writeback == Writeback::Off && row.kind.appends().is_some() {
                    kernel::ensure_no_writeback(bytes)?;
                }
                let _limit = match writeback {
                    Writeback::On => Some(Dirty::background(BACKGROUND_BYTES)?),
                    Writeback::Off | Writeback::Each => None,
                };
                self.kernel(target, |volume| work::run(volume, row, bytes))?
            }
            Target::Full => return Ok(None),
            Target::Memcpy if writeback == Writeback::Each => return Ok(None),
            Target::Memcpy => work::run_copy(row, bytes)?,
            Target::Device => return work::run_device(row, bytes, &self.path(target)),
        };
        Ok(Some(rate))
    }

    /// One cell of the table of loads; `None` where a contender has nothing to compare with.
    fn load(&self, target: Target, load: Load) -> Result<Option<f64>> {
        let bytes = self.settings.file_bytes;
        Ok(match target {
            Target::Full if !matches!(load, Load::Log { .. }) => None,
            Target::Extant | Target::Full => {
                let options = match target {
                    Target::Full => MountOptions::new().fast_commits(false),
                    _ => MountOptions::new(),
                };
                let library = Library::mount_with(&self.path(target), options, 2 * bytes)?;
                let rate = load::run(&library, load, bytes)?;
                library.close()?;
                Some(rate)
            }
            Target::Ext4 | Target::Xfs => {
                Some(self.kernel(target, |volume| load::run(volume, load, bytes))?)
            }
            Target::Memcpy => load::run_copy(load, bytes)?,
            Target::Device => None,
        })
    }

    /// One run of metamix: files per second, and writes that zeroing waited for where counted.
    fn metamix(&self, target: Target, instances: usize) -> Result<Option<(f64, Option<u64>)>> {
        fn on(volume: &impl Volume, count: usize, seconds: f64) -> Result<(f64, Option<u64>)> {
            let rate = metamix::run(volume, count, seconds, SEED)?;
            Ok((rate, volume.zeroing_flushes()))
        }
        let seconds = self.settings.seconds;
        Ok(match target {
            Target::Extant => {
                Some(self.library(Writeback::On, true, |volume| on(volume, instances, seconds))?)
            }
            Target::Ext4 | Target::Xfs => {
                Some(self.kernel(target, |volume| on(volume, instances, seconds))?)
            }
            Target::Full | Target::Memcpy | Target::Device => None,
        })
    }
}

/// Which contenders can run here; says why the others cannot.
fn contenders(images: &Images<'_>) -> Result<Vec<Target>> {
    let mut here = Vec::new();
    for target in Target::ALL.into_iter().filter(|target| images.settings.has_target(*target)) {
        let usable = match target {
            Target::Ext4 | Target::Xfs => {
                let made = extant_testkit::oracle::root("mounts an image through a loop device")
                    .map_err(anyhow::Error::msg)
                    .and_then(|()| images.make(target));
                made.and_then(|()| images.kernel(target, |_| Ok(())))
            }
            Target::Extant | Target::Full => images.make(target),
            Target::Memcpy => Ok(()),
            Target::Device => images.make(target),
        };
        match usable {
            Ok(()) => here.push(target),
            Err(why) if target == Target::Extant => return Err(why),
            Err(why) => {
                println!("{} is left out: {why:#}", target.name());
                let _ = std::fs::remove_file(images.path(target));
            }
        }
    }
    Ok(here)
}

/// Contenders in the order of a round: each begins once.
pub(crate) fn turn(targets: &[Target], round: u32) -> impl Iterator<Item = Target> + '_ {
    let from = round as usize % targets.len().max(1);
    targets.iter().copied().cycle().skip(from).take(targets.len())
}

/// A row that was measured, its unit and its bars.
struct Line {
    name: String,
    unit: &'static str,
    bars: Vec<Bar>,
}

/// Runs both tables on images in `dir`, prints them, and writes `target/bench/io.json`.
///
/// # Errors
///
/// Errors of a contender; contents that are not what was written; a signal.
pub fn io(dir: &Path, settings: &Settings) -> Result<()> {
    ensure!(
        settings.file_bytes > 0 && settings.file_bytes.is_multiple_of(1 << 20),
        "the size of a file is a multiple of 1 MiB, not {}",
        settings.file_bytes
    );
    let images = Images { dir, settings };
    let targets = contenders(&images)?;
    let (mut all, mut lines) = (Vec::new(), Vec::new());
    let rows: Vec<Row> =
        Row::all().into_iter().filter(|row| settings.has_row(&row.to_string())).collect();
    for row in &rows {
        lines.push(Line { name: row.to_string(), unit: "MiB/s", bars: row.bars() });
    }
    if !rows.is_empty() {
        for target in &targets {
            prepare(&images, *target)?;
        }
        for round in 0..settings.rounds {
            for row in &rows {
                print!("round {}, {row:<22}", round + 1);
                for target in turn(&targets, round) {
                    stop::check()?;
                    let name = target.name();
                    let rate =
                        images.cell(target, *row).with_context(|| format!("{name}, {row}"))?;
                    let Some(rate) = rate else { continue };
                    print!("  {name} {rate:.0}");
                    add(&mut all, &row.to_string(), target.name(), "MiB/s", rate);
                }
                println!();
            }
        }
        for target in targets.iter().filter(|t| matches!(t, Target::Extant | Target::Ext4)) {
            kernel::check_ext4(&images.path(*target))?;
        }
    }
    load_rounds(&images, &targets, &mut all, &mut lines)?;
    let flushes = metamix_rounds(&images, &targets, &mut all, &mut lines)?;
    let missed = print_table(&all, &lines);
    for (name, count) in flushes {
        println!("{name}: {count} writes that zeroing waited for (bar: 0)");
    }
    println!("{missed} bars missed");
    report::write("io", &all)
}

/// Writes the file that is read, on one contender's image.
fn prepare(images: &Images<'_>, target: Target) -> Result<()> {
    let bytes = images.settings.file_bytes;
    match target {
        Target::Extant => {
            images.library(Writeback::On, true, |volume| work::prepare(volume, bytes))
        }
        Target::Ext4 | Target::Xfs => images.kernel(target, |volume| work::prepare(volume, bytes)),
        Target::Full | Target::Memcpy | Target::Device => Ok(()),
    }
    .with_context(|| format!("{}: writing the file to read", target.name()))
}

/// Runs what databases do.
fn load_rounds(
    images: &Images<'_>,
    targets: &[Target],
    all: &mut Vec<Series>,
    lines: &mut Vec<Line>,
) -> Result<()> {
    let settings = images.settings;
    let loads: Vec<Load> =
        Load::all().into_iter().filter(|load| settings.has_row(&load.to_string())).collect();
    if loads.is_empty() {
        return Ok(());
    }
    for load in &loads {
        lines.push(Line { name: load.to_string(), unit: load.unit(), bars: load.bars() });
    }
    for target in targets {
        images.make(*target)?;
        prepare(images, *target)?;
    }
    for round in 0..settings.rounds {
        for load in &loads {
            let name = load.to_string();
            print!("round {}, {name:<22}", round + 1);
            for target in turn(targets, round) {
                stop::check()?;
                let ran = images.load(target, *load);
                let Some(rate) = ran.with_context(|| format!("{}, {name}", target.name()))? else {
                    continue;
                };
                print!("  {} {rate:.0}", target.name());
                add(all, &name, target.name(), load.unit(), rate);
            }
            println!();
        }
    }
    for target in targets.iter().filter(|t| matches!(t, Target::Extant | Target::Ext4)) {
        kernel::check_ext4(&images.path(*target))?;
    }
    Ok(())
}

/// Runs metamix; returns what was counted, by row.
fn metamix_rounds(
    images: &Images<'_>,
    targets: &[Target],
    all: &mut Vec<Series>,
    lines: &mut Vec<Line>,
) -> Result<Vec<(String, u64)>> {
    let settings = images.settings;
    let rows: Vec<(String, usize)> = INSTANCES
        .map(|count| (format!("metamix {count}"), count))
        .into_iter()
        .filter(|(name, _)| settings.has_row(name))
        .collect();
    let mut flushes: Vec<(String, u64)> = Vec::new();
    if rows.is_empty() {
        return Ok(flushes);
    }
    for (name, _) in &rows {
        let bars = ["ext4", "xfs"].map(|of| Bar::new(of, METAMIX_TIMES)).to_vec();
        lines.push(Line { name: name.clone(), unit: "files/s", bars });
    }
    for target in targets {
        images.make(*target)?;
    }
    for round in 0..settings.metamix_rounds {
        for (row, instances) in &rows {
            print!("round {}, {row:<22}", round + 1);
            for target in turn(targets, round) {
                stop::check()?;
                let name = target.name();
                let run = images.metamix(target, *instances);
                let Some((rate, counted)) = run.with_context(|| format!("{name}, {row}"))? else {
                    continue;
                };
                print!("  {name} {rate:.0}");
                add(all, row, target.name(), "files/s", rate);
                if let Some(count) = counted {
                    match flushes.iter_mut().find(|(of, _)| of == row) {
                        Some((_, sum)) => *sum += count,
                        None => flushes.push((row.clone(), count)),
                    }
                }
            }
            println!();
        }
    }
    for target in targets.iter().filter(|t| matches!(t, Target::Extant | Target::Ext4)) {
        kernel::check_ext4(&images.path(*target))?;
    }
    Ok(flushes)
}

/// Prints medians, ratios and bars; returns how many bars were missed.
fn print_table(all: &[Series], lines: &[Line]) -> u32 {
    let of = |row: &str, target: &str| {
        all.iter().find(|series| series.row == row && series.target == target)
    };
    print!("\n{:<22} {:<8}", "row", "unit");
    for target in Target::ALL {
        print!(" {:>9} {:>13}", target.name(), "min-max");
    }
    println!(
        " {:>7} {:>7} {:>7} {:>7} {:>7}  bars",
        "/ext4", "/xfs", "/memcpy", "/device", "ceiling"
    );
    let mut missed = 0;
    for line in lines {
        print!("{:<22} {:<8}", line.name, line.unit);
        for target in Target::ALL {
            match of(&line.name, target.name()) {
                Some(series) => {
                    let (min, max) = series.spread();
                    print!(" {:>9.0} {:>13}", series.median(), format!("{min:.0}-{max:.0}"));
                }
                None => print!(" {:>9} {:>13}", "-", "-"),
            }
        }
        let own = of(&line.name, "extant").map(Series::median);
        let ratio = |target: &str| Some(own? / of(&line.name, target)?.median());
        for target in ["ext4", "xfs", "memcpy", "device"] {
            match ratio(target) {
                Some(ratio) => print!(" {ratio:>7.2}"),
                None => print!(" {:>7}", "-"),
            }
        }
        let copy = of(&line.name, "memcpy").map(Series::median);
        match copy.zip(of(&line.name, "ext4")) {
            Some((copy, ext4)) => print!(" {:>7.2} ", copy / ext4.median()),
            None => print!(" {:>7} ", "-"),
        }
        for bar in &line.bars {
            let verdict = match ratio(bar.of) {
                None => "not measured",
                Some(ratio) if ratio >= bar.times => "met",
                Some(_) => {
                    missed += 1;
                    "MISSED"
                }
            };
            print!(" {} x{}: {verdict}", bar.of, bar.times);
        }
        println!();
    }
    missed
}

/// One row on extant alone (or on the contenders asked for), for a profiler.
///
/// # Errors
///
/// Those of [`io`]; no row of this name.
pub fn one(dir: &Path, settings: &Settings, wanted: &str) -> Result<()> {
    let images = Images { dir, settings };
    let row = Row::all().into_iter().find(|row| row.to_string() == wanted);
    let instances = INSTANCES.into_iter().find(|count| format!("metamix {count}") == wanted);
    let load = Load::all().into_iter().find(|load| load.to_string() == wanted);
    let is_known = row.is_some() || instances.is_some() || load.is_some();
    ensure!(is_known, "no row is called {wanted}");
    for target in contenders(&images)? {
        if row.is_some() || load.is_some() {
            prepare(&images, target)?;
        }
        for _ in 0..settings.rounds {
            stop::check()?;
            if let Some(row) = row
                && let Some(rate) = images.cell(target, row)?
            {
                println!("{:<8} {rate:.1} MiB/s", target.name());
            }
            if let Some(load) = load
                && let Some(rate) = images.load(target, load)?
            {
                println!("{:<8} {rate:.1} {}", target.name(), load.unit());
            }
            if let Some(instances) = instances
                && let Some((rate, _)) = images.metamix(target, instances)?
            {
                println!("{:<8} {rate:.1} files/s", target.name());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_contender_begins_a_round() {
        let names = |round| turn(&Target::ALL, round).map(Target::name).collect::<Vec<_>>();
        assert_eq!(names(0), ["extant", "full", "ext4", "xfs", "memcpy", "device"]);
        assert_eq!(names(7), ["full", "ext4", "xfs", "memcpy", "device", "extant"]);
        assert_eq!(turn(&[], 1).count(), 0);
    }
}
