//! Pieces: how scattered files lie that grow side by side, and how fast they grow, in process against the
//! kernel's ext4 and XFS.
//!
//! - *appends*: each worker gives its file 8 KiB after 8 KiB by `fallocate`; no data is written.
//! - *synced*: each worker writes 64 KiB after 64 KiB, with an fsync after every 256 KiB.
//!
//! A piece is what lies in one run on the device and in the file, however the map has it. The time ends with
//! a sync of the directory; pieces are counted after it.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use extant::Inode;
use extant_sync::{Clock, SystemClock, threads};

use crate::alloc::make;
use crate::io::Target;
use crate::io::kernel::{self, Kernel, tool};
use crate::io::library::Library;
use crate::io::side::{Dir, Handle, Volume};
use crate::report::{Series, add, report};
use crate::stop;

/// The contender that asks one group after the other (`mb_optimize_scan=0`).
const LINEAR: &str = "extant, linear";
/// The directory of the files.
const DIR: &str = "grow";
/// Bytes of one call of *appends*.
const APPEND: u64 = 8 << 10;
/// Bytes of one write of *synced*.
const WRITE: u64 = 64 << 10;
/// Bytes between two fsyncs of *synced*.
const SYNCED: u64 = 256 << 10;
/// Cache of contents, enough for all that is written between fsyncs.
const CACHE_BYTES: u64 = 256 << 20;

/// What the workers do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Row {
    /// Space alone.
    Appends,
    /// Data, made durable in small steps.
    Synced,
}

impl Row {
    /// Both rows.
    pub const ALL: [Row; 2] = [Row::Appends, Row::Synced];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Row::Appends => "appends",
            Row::Synced => "synced",
        }
    }

    /// Pieces of a GiB, at most.
    fn bar(self) -> f64 {
        match self {
            Row::Appends => 600.0,
            Row::Synced => 200.0,
        }
    }
}

/// How much is measured.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often each contender has its turn.
    pub rounds: u32,
    /// Rows of the table.
    pub rows: Vec<Row>,
    /// Files that grow at once, each by a thread of its own.
    pub workers: usize,
    /// Bytes that a file gets by *appends*.
    pub append_bytes: u64,
    /// Bytes that a file gets by *synced*.
    pub synced_bytes: u64,
    /// Size of the images.
    pub image_bytes: u64,
    /// Only these contenders; all when empty.
    pub targets: Vec<String>,
}

impl Settings {
    fn bytes(&self, row: Row) -> u64 {
        match row {
            Row::Appends => self.append_bytes.next_multiple_of(APPEND),
            Row::Synced => self.synced_bytes.next_multiple_of(SYNCED),
        }
    }

    fn gib(&self, row: Row) -> f64 {
        (self.bytes(row) * self.workers as u64) as f64 / f64::from(1 << 30)
    }
}

fn name(number: usize) -> String {
    format!("w{number}")
}

/// Lets the files grow. Returns MiB per second of all workers together.
fn grow<V: Volume>(volume: &V, row: Row, settings: &Settings) -> Result<f64>
where
    V::Dir: Sync,
{
    let dir = volume.dir(DIR)?;
    for number in 0..settings.workers {
        drop(dir.create(&name(number))?);
    }
    dir.sync()?;
    let bytes = settings.bytes(row);
    let clock = SystemClock;
    let start = clock.monotonic();
    let work = |number: usize| -> Result<()> {
        let mut file = dir.open(&name(number))?;
        match row {
            Row::Appends => {
                for at in (0..bytes).step_by(APPEND as usize) {
                    stop::check()?;
                    file.allocate(at, APPEND)?;
                }
            }
            Row::Synced => {
                let data = vec![number as u8 | 1; WRITE as usize];
                for at in (0..bytes).step_by(WRITE as usize) {
                    stop::check()?;
                    ensure!(file.write(at, &data)? == data.len(), "a write got a part done");
                    if (at + WRITE).is_multiple_of(SYNCED) {
                        file.sync()?;
                    }
                }
            }
        }
        Ok(())
    };
    for done in threads::workers("grow", settings.workers, work)? {
        done?;
    }
    dir.sync()?;
    let elapsed = clock.monotonic().saturating_sub(start).as_secs_f64();
    Ok((bytes * settings.workers as u64) as f64 / f64::from(1 << 20) / elapsed)
}

/// Pieces of a file of extant.
pub(crate) fn pieces(file: &Inode) -> Result<usize> {
    let extents = file.fiemap(0..u64::MAX, usize::MAX, true)?;
    let joined = |pair: &&[extant::FiemapExtent]| {
        pair[0].physical + pair[0].len == pair[1].physical
            && pair[0].logical + pair[0].len == pair[1].logical
    };
    Ok(extents.len() - extents.windows(2).filter(joined).count())
}

/// Pieces of a file of the kernel, from what filefrag prints: `PATH: N extents found`.
fn told_pieces(line: &str) -> Result<usize> {
    let count = line.rsplit(": ").next().and_then(|rest| rest.split(' ').next());
    let count = count.with_context(|| format!("filefrag printed {line}"))?;
    count.parse().with_context(|| format!("filefrag printed {line}"))
}

/// One turn of a contender: MiB per second, and pieces of all files together.
fn cell(
    dir: &Path,
    target: Target,
    row: Row,
    settings: &Settings,
    by_index: bool,
) -> Result<(f64, usize)> {
    let image = make(dir, target, settings.image_bytes)?;
    let outcome = match target {
        Target::Extant => {
            let library = Library::mount_by_default(&image, CACHE_BYTES)?;
            library.fs().set_optimize_scan(by_index)?;
            let rate = grow(&library, row, settings)?;
            let files = library.fs().root()?.lookup(DIR)?;
            let mut count = 0;
            for number in 0..settings.workers {
                count += pieces(&files.lookup(name(number))?)?;
            }
            drop(files);
            library.close()?;
            (rate, count)
        }
        _ => {
            let kernel = Kernel::mount(&image, target.name())?;
            let rate = grow(&kernel, row, settings)?;
            let files = kernel.path()?.join(DIR);
            let mut count = 0;
            for number in 0..settings.workers {
                let path = files.join(name(number));
                count += told_pieces(&tool("filefrag", &[&path.to_string_lossy()])?)?;
            }
            kernel.close()?;
            (rate, count)
        }
    };
    if target != Target::Xfs {
        kernel::check_ext4(&image)?;
    }
    std::fs::remove_file(&image)?;
    Ok(outcome)
}

/// Runs the table, prints it and how the bars were met, and writes `target/bench/pieces.json`.
///
/// # Errors
///
/// Errors of extant; faults that e2fsck finds; a signal. A contender of the kernel that cannot run is left
/// out, with the reason.
pub fn run(dir: &Path, settings: &Settings) -> Result<()> {
    ensure!(settings.workers > 0, "no worker does nothing");
    let of = |target: &Target| {
        settings.targets.is_empty() || settings.targets.iter().any(|name| name == target.name())
    };
    let mut targets: Vec<Target> =
        [Target::Extant, Target::Ext4, Target::Xfs].into_iter().filter(of).collect();
    let mut all: Vec<Series> = Vec::new();
    for round in 0..settings.rounds {
        for row in &settings.rows {
            print!("round {}, {}, {} files:", round + 1, row.name(), settings.workers);
            let gib = settings.gib(*row);
            let mut note = |who: &str, (rate, count): (f64, usize)| {
                let per_gib = count as f64 / gib;
                print!("  {who} {rate:.0} MiB/s, {per_gib:.0} pieces per GiB");
                add(&mut all, row.name(), who, "MiB/s", rate);
                add(&mut all, &format!("{}, pieces", row.name()), who, "per GiB", per_gib);
            };
            let turn: Vec<Target> = crate::io::turn(&targets, round).collect();
            for target in turn {
                stop::check()?;
                match cell(dir, target, *row, settings, true) {
                    Ok(outcome) => note(target.name(), outcome),
                    Err(why) if target == Target::Extant => return Err(why),
                    Err(why) => {
                        println!("  {} is left out: {why:#}", target.name());
                        targets.retain(|other| *other != target);
                    }
                }
                if target == Target::Extant && *row == Row::Appends {
                    note(LINEAR, cell(dir, target, *row, settings, false)?);
                }
            }
            println!();
        }
    }
    report("pieces", "extant", &all)?;
    print_bars(&all, &settings.rows);
    Ok(())
}

fn print_bars(all: &[Series], rows: &[Row]) {
    let verdict = |is_met: bool| if is_met { "met" } else { "MISSED" };
    for row in rows {
        let pieces = format!("{}, pieces", row.name());
        for series in all.iter().filter(|series| series.row == pieces) {
            if series.target.starts_with(Target::Extant.name()) {
                let (count, bar) = (series.median(), row.bar());
                println!(
                    "{}, {}: {count:.0} pieces per GiB (bar {bar}): {}",
                    row.name(),
                    series.target,
                    verdict(count <= bar)
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::kernel::Plain;

    #[test]
    fn files_grow_to_their_size_in_both_rows() {
        for row in Row::ALL {
            let volume = Plain(tempfile::tempdir().unwrap());
            let settings = Settings {
                rounds: 1,
                rows: vec![row],
                workers: 2,
                append_bytes: 3 * APPEND - 1,
                synced_bytes: SYNCED + 1,
                image_bytes: 0,
                targets: Vec::new(),
            };
            assert!(grow(&volume, row, &settings).unwrap() > 0.0);
            let len = std::fs::metadata(volume.0.path().join(DIR).join("w1")).unwrap().len();
            assert_eq!(len, settings.bytes(row));
            assert_eq!(len, if row == Row::Appends { 3 * APPEND } else { 2 * SYNCED });
        }
    }

    #[test]
    fn what_filefrag_prints_is_read() {
        assert_eq!(told_pieces("/tmp/x: y/w3: 17 extents found").unwrap(), 17);
        assert_eq!(told_pieces("/w0: 1 extent found").unwrap(), 1);
        assert!(told_pieces("w0: FIBMAP unsupported").is_err());
        assert!(told_pieces("").is_err());
    }
}
