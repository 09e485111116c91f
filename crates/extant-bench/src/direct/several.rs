//! Direct writes of several threads to one file that add blocks to it: behind its end, and in its holes.
//!
//! Nothing is allocated before. Each block has its offset in its first bytes, which is read back after the time.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use extant::{AlignedBuffer, DirectFile, Fs, MountOptions, NewInode};
use extant_sync::threads::workers;
use extant_sync::{Clock, SystemClock};

use super::place::{Below, Loop};
use super::side::{check, mark};
use super::{OF_KERNEL, Settings};
use crate::io::kernel::{self, Kernel};
use crate::report::{Series, add};
use crate::stop;

/// Writers of one file.
const WRITERS: usize = 4;
/// Requests of a turn at most, so that small ones do not take longer than large ones.
const REQUESTS_MOST: u64 = 1 << 14;

/// One row of a place.
#[derive(Clone, Copy, Debug)]
struct Cell {
    /// Of a request.
    bytes: usize,
    /// Whether the blocks lie in a hole, in an order that jumps; otherwise behind the end, one after the other.
    fills: bool,
}

impl Cell {
    fn all() -> impl Iterator<Item = Cell> {
        let sizes = [4096, 65_536].into_iter();
        sizes.flat_map(|bytes| [false, true].into_iter().map(move |fills| Cell { bytes, fills }))
    }

    fn name(&self, place: &str) -> String {
        let what = if self.fills { "fill" } else { "append" };
        format!("{place} {what} {}K, {WRITERS} writers", self.bytes >> 10)
    }

    /// Where request `number` of `count` goes.
    fn offset(&self, number: u64, count: u64) -> u64 {
        // The step is odd and the count a power of two, so each place has its turn.
        let place = if self.fills { number.wrapping_mul(0x9e37_79b1) % count } else { number };
        place * self.bytes as u64
    }
}

/// A file of somebody.
enum Target {
    Extant(DirectFile),
    Kernel(File),
}

impl Target {
    fn write(&self, bytes: &[u8], offset: u64) -> Result<()> {
        match self {
            Target::Extant(file) => {
                ensure!(file.write_at(bytes, offset)? == bytes.len(), "a write was short");
            }
            Target::Kernel(file) => file.write_all_at(bytes, offset)?,
        }
        Ok(())
    }

    fn read(&self, bytes: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Target::Extant(file) => {
                ensure!(file.read_at(bytes, offset)? == bytes.len(), "a read was short");
            }
            Target::Kernel(file) => file.read_exact_at(bytes, offset)?,
        }
        Ok(())
    }

    /// Has all writers write `count` requests together; returns the seconds that took.
    fn run(&self, cell: &Cell, count: u64) -> Result<f64> {
        let next = AtomicU64::new(0);
        let start = SystemClock.monotonic();
        let ended = workers("writer", WRITERS, |_| {
            let mut buffer = AlignedBuffer::zeroed(cell.bytes);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= count {
                    return anyhow::Ok(());
                }
                let offset = cell.offset(number, count);
                mark(offset, &mut buffer);
                self.write(&buffer, offset)?;
            }
        })?;
        ended.into_iter().collect::<Result<()>>()?;
        Ok(SystemClock.monotonic().saturating_sub(start).as_secs_f64())
    }

    fn verify(&self, cell: &Cell, count: u64) -> Result<()> {
        let mut buffer = AlignedBuffer::zeroed(cell.bytes);
        (0..count).try_for_each(|number| {
            let offset = cell.offset(number, count);
            self.read(&mut buffer, offset)?;
            check(offset, &buffer)
        })
    }
}

/// A file system of somebody.
enum Home {
    Extant(Fs),
    Kernel(Kernel),
}

impl Home {
    /// Writes a new file and removes it. Returns the seconds that the writers took.
    fn turn(&self, cell: &Cell, count: u64) -> Result<f64> {
        let size = count * cell.bytes as u64;
        let target = match self {
            Home::Extant(fs) => {
                let file = fs.root()?.create("several", &NewInode::root(0o644))?;
                if cell.fills {
                    file.truncate(size)?;
                }
                Target::Extant(file.direct()?)
            }
            Home::Kernel(kernel) => {
                let direct = rustix::fs::OFlags::DIRECT.bits();
                let mut options = OpenOptions::new();
                options.read(true).write(true).create_new(true);
                options.custom_flags(i32::try_from(direct)?);
                let file = options.open(kernel.path()?.join("several"))?;
                if cell.fills {
                    file.set_len(size)?;
                }
                Target::Kernel(file)
            }
        };
        let seconds = target.run(cell, count)?;
        target.verify(cell, count)?;
        drop(target);
        match self {
            Home::Extant(fs) => {
                fs.root()?.unlink("several")?;
                fs.sync()?;
            }
            Home::Kernel(kernel) => {
                std::fs::remove_file(kernel.path()?.join("several"))?;
                File::open(kernel.path()?)?.sync_all()?;
            }
        }
        Ok(seconds)
    }
}

/// Measures the rows of one place.
pub(super) fn measure(
    settings: &Settings,
    name: &str,
    below: Below,
    dir: &Path,
    all: &mut Vec<Series>,
) -> Result<()> {
    let cells: Vec<Cell> = Cell::all().filter(|cell| settings.has(&cell.name(name))).collect();
    if cells.is_empty() {
        return Ok(());
    }
    let dir = tempfile::tempdir_in(dir)
        .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
    let image = |name: &str| -> Result<PathBuf> {
        let path = dir.path().join(name);
        kernel::zeros(&path, settings.file_bytes + settings.file_bytes / 8 + (64 << 20))?;
        Ok(path)
    };
    let own = image("extant.img")?;
    kernel::make_ext4(&own)?;
    let on_loop = (below == Below::Loop).then(|| Loop::over(&own)).transpose()?;
    let device = on_loop.as_ref().map_or(own.as_path(), Loop::path);
    let fs = MountOptions::new().read_only(false).open_path(device)?;
    let mut homes = vec![("extant", Home::Extant(fs))];
    let mut images = vec![own.clone()];
    for kind in ["ext4", "xfs"] {
        let path = image(&format!("{kind}.img"))?;
        let mounted = extant_testkit::oracle::root("mounts an image through a loop device")
            .map_err(anyhow::Error::msg)
            .and_then(|()| match kind {
                "ext4" => kernel::make_ext4(&path),
                _ => kernel::make_xfs(&path),
            })
            .and_then(|()| Kernel::mount(&path, kind));
        match mounted {
            Ok(mounted) => homes.push((kind, Home::Kernel(mounted))),
            Err(why) => {
                println!("{kind} is left out in {}: {why:#}", dir.path().display());
                continue;
            }
        }
        if kind == "ext4" {
            images.push(path);
        }
    }
    for round in 0..settings.rounds as usize {
        for cell in &cells {
            let row = cell.name(name);
            let most = settings.file_bytes / cell.bytes as u64;
            let count = (most.min(REQUESTS_MOST) + 1).next_power_of_two() / 2;
            for turn in 0..homes.len() {
                stop::check()?;
                let (who, home) = &homes[(turn + round) % homes.len()];
                let rate = count as f64 / home.turn(cell, count)? / 1e3;
                println!("run {}: {row:<28} {who:<10} {rate:>9.1} k/s", round + 1);
                add(all, &row, who, "k/s", rate);
            }
        }
    }
    for (_, home) in homes {
        if let Home::Extant(fs) = home {
            fs.unmount()?;
        }
    }
    drop(on_loop);
    images.iter().try_for_each(|image| kernel::check_ext4(image))
}

/// Says which bars are met.
pub(super) fn judge(all: &[Series]) {
    let of = |row: &str, target: &str| {
        all.iter().find(|series| series.row == row && series.target == target).map(Series::median)
    };
    for series in all.iter().filter(|series| series.row.ends_with("writers")) {
        if series.target != "extant" {
            continue;
        }
        for (other, bar) in [("ext4", Some(OF_KERNEL)), ("xfs", None)] {
            let Some(ratio) = of(&series.row, other).map(|rate| series.median() / rate) else {
                continue;
            };
            let verdict = match bar {
                Some(bar) if ratio >= bar => format!(", bar {bar}: met"),
                Some(bar) => format!(", bar {bar}: MISSED"),
                None => String::new(),
            };
            println!("{}: {ratio:.2} of {other}{verdict}", series.row);
        }
    }
}
