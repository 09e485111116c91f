//! The Python package against the library and the command that it is made of: what `make bench-python` measures.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use extant::{Fs, MountOptions};
use extant_sync::{Clock, SystemClock};

use crate::report::{Series, add};
use crate::run::run;

/// The other side of each row.
const SCRIPT: &str = include_str!("python.py");
/// Bytes that are read and written at once.
const BLOCK: usize = 1 << 20;
/// Bytes of the file that is read and written.
const BIG_BYTES: u64 = 256 << 20;
/// The cache of each mount: it holds the file.
const CACHE_BYTES: u64 = 512 << 20;
/// Passes over the file; the fastest counts.
const PASSES: u32 = 8;

/// What is measured, and where.
#[derive(Debug)]
pub struct Plan {
    /// The command.
    pub extant: String,
    /// An interpreter that has the package.
    pub python: String,
    /// The tree that is built.
    pub source: String,
    /// How many rounds.
    pub rounds: u32,
    /// Files of the image that is listed.
    pub files: u32,
}

/// Makes the images in `dir` and measures all rows, round by round.
///
/// # Errors
///
/// When an image cannot be made, or the interpreter does not have the package.
pub fn measure(plan: &Plan, dir: &Path) -> Result<Vec<Series>> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let (tar, files, big, built) = (at("tar"), at("files"), at("big"), at("built"));
    crate::check::write_tar(Path::new(&tar), plan.files)?;
    run(&plan.extant, &["build", &files, "--from", &tar, "-q"])?;
    std::fs::remove_file(&tar)?;
    run(&plan.extant, &["mkfs", &big, "512M", "-q"])?;
    write_big(Path::new(&big))?;
    let mut all = Vec::new();
    for round in 0..plan.rounds {
        let mut count = 0;
        let library = |all: &mut Vec<Series>, count: &mut u64| -> Result<()> {
            let (read, write) = contents(Path::new(&big))?;
            add(all, "read 1 MiB", "extant", "MiB/s", read);
            add(all, "write 1 MiB", "extant", "MiB/s", write);
            let (seconds, entries) = walk(Path::new(&files))?;
            // It has the attributes in any case.
            for row in ["walk", "walk with attributes"] {
                add(all, row, "extant", "s", seconds);
            }
            *count = entries;
            let seconds =
                run(&plan.extant, &["build", &built, "--from", &plan.source, "-F", "-q"])?.seconds;
            add(all, "build", "extant", "s", seconds);
            Ok(())
        };
        // Each is first in every other round.
        if round % 2 == 0 {
            library(&mut all, &mut count)?;
        }
        let said = python(plan, &[&files, &big, &plan.source, &built])?;
        if round % 2 == 1 {
            library(&mut all, &mut count)?;
        }
        for line in said.lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            match *fields.as_slice() {
                ["entries", entries] => {
                    ensure!(
                        entries.parse() == Ok(count),
                        "{entries} entries in Python, {count} in Rust"
                    );
                }
                [row, target, value] => {
                    let value: f64 =
                        value.parse().with_context(|| format!("not a number: {line}"))?;
                    let (unit, value) = match row.ends_with("MiB") {
                        true => ("MiB/s", value / f64::from(1 << 20)),
                        false => ("s", value),
                    };
                    let target = if target == "python" { "python" } else { "python, read()" };
                    add(&mut all, row, target, unit, value);
                }
                _ => bail!("Python said: {line}"),
            }
        }
    }
    Ok(all)
}

/// Runs the script; what it printed.
fn python(plan: &Plan, images: &[&str]) -> Result<String> {
    let output = Command::new(&plan.python)
        .args(["-c", SCRIPT])
        .args(images)
        .args([PASSES.to_string(), CACHE_BYTES.to_string()])
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {}", plan.python))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}: {}\n{said}", plan.python, output.status);
    Ok(String::from_utf8(output.stdout)?)
}

fn open_big(image: &Path) -> Result<(Fs, extant::File)> {
    let fs = MountOptions::new().read_only(false).data_cache_bytes(CACHE_BYTES).open_path(image)?;
    let file = fs.open_options().read(true).write(true).create(true).open("/big")?;
    Ok((fs, file))
}

fn write_big(image: &Path) -> Result<()> {
    let (fs, file) = open_big(image)?;
    let block = vec![0xa5; BLOCK];
    for offset in (0..BIG_BYTES).step_by(BLOCK) {
        ensure!(file.write_at(&block, offset)? == BLOCK, "a short write at {offset}");
    }
    drop(file);
    Ok(fs.unmount()?)
}

/// MiB in each second of reads and of overwrites in the cache: the fastest pass of each.
fn contents(image: &Path) -> Result<(f64, f64)> {
    let (fs, file) = open_big(image)?;
    let mut block = vec![0xa5; BLOCK];
    let mut pass = |step: &mut dyn FnMut(&mut [u8], u64) -> Result<usize>| -> Result<f64> {
        let start = SystemClock.monotonic();
        for offset in (0..BIG_BYTES).step_by(BLOCK) {
            ensure!(step(&mut block, offset)? == BLOCK, "a short pass at {offset}");
        }
        let mib = BIG_BYTES as f64 / f64::from(1 << 20);
        Ok(mib / seconds_since(start))
    };
    let mut best = |step: &mut dyn FnMut(&mut [u8], u64) -> Result<usize>| -> Result<f64> {
        let passes = (0..PASSES).map(|_| pass(step));
        passes.into_iter().try_fold(0.0, |best: f64, rate| Ok(best.max(rate?)))
    };
    let read = |out: &mut [u8], offset: u64| Ok(file.read_at(out, offset)?);
    let write = |bytes: &mut [u8], offset: u64| Ok(file.write_at(bytes, offset)?);
    let rates = (best(&mut { read })?, best(&mut { write })?);
    drop(file);
    fs.unmount()?;
    Ok(rates)
}

/// Seconds of a walk over a fresh mount, and the entries below the root.
fn walk(image: &Path) -> Result<(f64, u64)> {
    let fs = MountOptions::new().open_path(image)?;
    let start = SystemClock.monotonic();
    let (mut entries, mut bytes) = (0, 0);
    for entry in fs.walk("/")? {
        bytes += entry?.inode().size();
        entries += 1;
    }
    let seconds = seconds_since(start);
    ensure!(entries > 1 && bytes > 0, "{entries} entries with {bytes} bytes");
    Ok((seconds, entries - 1))
}

fn seconds_since(start: std::time::Duration) -> f64 {
    SystemClock.monotonic().saturating_sub(start).as_secs_f64()
}
