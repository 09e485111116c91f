//! Reads an image through the library: what `make bench-read` measures.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use extant::{Fs, MappingKind, MountOptions};
use extant_base::Prng;
use extant_block::FileDevice;
use extant_sync::{Clock, SystemClock};

/// Bytes of the file that is read.
const BIG_BYTES: u64 = 512 << 20;
/// Random reads of 4 KiB in one measurement.
const RANDOM_READS: u64 = 200_000;

/// Writes a tar archive of a directory `d` of `entries` empty files and a file `big`.
///
/// # Errors
///
/// When the file cannot be written.
pub fn write_tar(path: &Path, entries: u32) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    out.write_all(&header("d/", b'5', 0)?)?;
    for index in 0..entries {
        out.write_all(&header(&format!("d/file-{index:07}"), b'0', 0)?)?;
    }
    out.write_all(&header("big", b'0', BIG_BYTES)?)?;
    let mut random = Prng::new(1);
    // No zero blocks: those would become holes.
    for _ in 0..BIG_BYTES / 8 {
        out.write_all(&(random.below(u64::MAX) | 1).to_le_bytes())?;
    }
    out.write_all(&[0; 1024])?;
    Ok(out.flush()?)
}

/// A ustar header.
pub(crate) fn header(name: &str, kind: u8, size: u64) -> Result<[u8; 512]> {
    let mut block = [0; 512];
    let mut put = |at: usize, bytes: &[u8]| {
        block[at..at + bytes.len()].copy_from_slice(bytes);
    };
    ensure!(name.len() < 100, "{name} does not fit a header");
    put(0, name.as_bytes());
    put(100, if kind == b'5' { b"0000755\0" } else { b"0000644\0" });
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

fn open(image: &Path) -> Result<Fs> {
    let device = FileDevice::open_read_only(image)?;
    Ok(MountOptions::new().open(device)?)
}

/// Row, unit, contender, value.
pub type Row = (&'static str, &'static str, &'static str, f64);

/// Reads of `big` against the same reads of the image file.
///
/// # Errors
///
/// When the image cannot be read, or does not hold `entries` entries.
pub fn measure(image: &Path, entries: u64) -> Result<Vec<Row>> {
    let fs = open(image)?;
    let inode = fs.resolve("/big")?;
    ensure!(inode.size() == BIG_BYTES, "big has {} bytes", inode.size());
    // Where each run of the file is in the image file: `pread` is told and need not look.
    let block_bytes = u64::from(fs.superblock().block_size.bytes());
    let mut runs = Vec::new();
    for run in inode.map(0..inode.block_len()) {
        let run = run?;
        let MappingKind::Mapped(start) = run.kind else { bail!("big has a hole") };
        let file_start = u64::from(run.file_start.0) * block_bytes;
        runs.push((file_start, start.0 * block_bytes, run.len * block_bytes));
    }
    let file = File::open(image)?;
    let plain = |offset: u64, out: &mut [u8]| -> Result<()> {
        let index = runs.partition_point(|run| run.0 <= offset);
        let (start, at, len) = runs.get(index.wrapping_sub(1)).copied().context("no run")?;
        let into = offset - start;
        let now = usize::try_from(len - into)?.min(out.len());
        file.read_exact_at(&mut out[..now], at + into)?;
        if now < out.len() {
            let next = runs.get(index).context("no next run")?;
            file.read_exact_at(&mut out[now..], next.1)?;
        }
        Ok(())
    };
    let library = |offset: u64, out: &mut [u8]| -> Result<()> {
        let read = inode.read_at(out, offset)?;
        ensure!(read == out.len(), "{read} bytes at {offset}");
        Ok(())
    };
    let mib = BIG_BYTES as f64 / f64::from(1 << 20);
    let mut rows = Vec::new();
    // The first pass fills the page cache and is not counted.
    sequential(&plain)?;
    let row = "sequential, 1 MiB";
    rows.push((row, "MiB/s", "extant", mib / sequential(&library)?));
    rows.push((row, "MiB/s", "pread", mib / sequential(&plain)?));
    let row = "random, 4 KiB";
    let each = |seconds: f64| seconds * 1e9 / RANDOM_READS as f64;
    rows.push((row, "ns", "extant", each(random(&library)?)));
    rows.push((row, "ns", "pread", each(random(&plain)?)));
    let fresh = open(image)?;
    let clock = SystemClock;
    let start = clock.monotonic();
    let listed = list(&fresh)?;
    rows.push(("list", "s", "extant", seconds_since(start)));
    ensure!(listed == entries, "{listed} entries listed, {entries} written");
    let fresh = open(image)?;
    let start = clock.monotonic();
    let walked = walk(&fresh)?;
    rows.push(("walk", "s", "extant", seconds_since(start)));
    ensure!(walked > entries, "{walked} inodes walked, {entries} written");
    Ok(rows)
}

fn seconds_since(start: std::time::Duration) -> f64 {
    SystemClock.monotonic().saturating_sub(start).as_secs_f64()
}

fn sequential(read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Result<f64> {
    let mut buffer = vec![0; 1 << 20];
    let start = SystemClock.monotonic();
    for offset in (0..BIG_BYTES).step_by(buffer.len()) {
        read(offset, &mut buffer)?;
    }
    Ok(seconds_since(start))
}

fn random(read: &dyn Fn(u64, &mut [u8]) -> Result<()>) -> Result<f64> {
    let mut buffer = [0; 4096];
    let mut random = Prng::new(7);
    let start = SystemClock.monotonic();
    for _ in 0..RANDOM_READS {
        read(random.below(BIG_BYTES / 4096) * 4096, &mut buffer)?;
    }
    Ok(seconds_since(start))
}

fn list(fs: &Fs) -> Result<u64> {
    let mut count = 0;
    for entry in fs.read_dir("/d")? {
        count += u64::from(!matches!(entry?.name(), b"." | b".."));
    }
    Ok(count)
}

fn walk(fs: &Fs) -> Result<u64> {
    let mut count = 0;
    for entry in fs.walk("/")? {
        entry?;
        count += 1;
    }
    Ok(count)
}

/// `list`, `walk` or `open`, for the memory of a process that does nothing else.
///
/// # Errors
///
/// When the image cannot be read, or `what` is none of these.
pub fn one(what: &str, image: &Path) -> Result<()> {
    let fs = open(image)?;
    match what {
        "list" => drop(list(&fs)?),
        "walk" => drop(walk(&fs)?),
        "open" => drop(fs.root()?),
        _ => bail!("list, walk or open, not {what}"),
    }
    Ok(())
}
