//! The work of one row, on any contender.
//!
//! # Contents
//!
//! Every 4 KiB of a file begin with a stamp, the *salt* of the pass that wrote it and the place,
//! and go on with the same pattern. So a block that is old, missing or elsewhere shows, and all
//! contenders pay the same few stores for it.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock};
use memmap2::{Advice, MmapMut};

use super::rows::{Kind, Row, Writeback};
use super::side::{Dir, Handle, Region, Volume};
use crate::stop;

/// Bytes with one stamp.
pub(super) const STAMPED: usize = 4096;
/// Bytes per call of what is not measured.
const CHUNK: usize = 1 << 20;
/// The place of the salt in a stamp.
const SALT_SHIFT: u32 = 40;
/// Passes over a cached file in one measurement.
const PASSES: u32 = 3;

/// A buffer of one block: the pattern, stamps left out.
pub(super) fn pattern(len: usize) -> Vec<u8> {
    let mut one = [0; STAMPED];
    Prng::new(0x10).fill(&mut one);
    one.iter().copied().cycle().take(len).collect()
}

pub(super) fn stamp(buffer: &mut [u8], at: u64, salt: u64) {
    let first = (salt << SALT_SHIFT) | (at / STAMPED as u64);
    for (word, block) in (first..).zip(buffer.chunks_exact_mut(STAMPED)) {
        block[..8].copy_from_slice(&word.to_le_bytes());
    }
}

/// Reads `len` bytes from the start.
fn read_pass(file: &mut impl Handle, len: u64, buffer: &mut [u8]) -> Result<Duration> {
    stop::check()?;
    let start = SystemClock.monotonic();
    let mut at = 0;
    while at < len {
        let got = file.read(at, buffer)?;
        ensure!(got == buffer.len(), "{got} of {} bytes read at {at}", buffer.len());
        black_box(&mut *buffer);
        at += got as u64;
    }
    Ok(SystemClock.monotonic().saturating_sub(start))
}

/// Writes `len` bytes from the start, and waits as `writeback` says.
pub(super) fn write_pass(
    file: &mut impl Handle,
    len: u64,
    buffer: &mut [u8],
    salt: u64,
    writeback: Writeback,
) -> Result<Duration> {
    stop::check()?;
    let start = SystemClock.monotonic();
    let mut at = 0;
    while at < len {
        stamp(buffer, at, salt);
        let put = file.write(at, black_box(buffer))?;
        ensure!(put == buffer.len(), "{put} of {} bytes written at {at}", buffer.len());
        at += put as u64;
        if writeback == Writeback::Each {
            file.sync()?;
        }
    }
    if writeback == Writeback::On {
        file.sync()?;
    }
    Ok(SystemClock.monotonic().saturating_sub(start))
}

/// Checks that the first `len` bytes are what one pass wrote, and returns its salt.
pub(super) fn verify(file: &mut impl Handle, len: u64) -> Result<u64> {
    let (mut buffer, mut wanted) = (vec![0; CHUNK], pattern(CHUNK));
    file.read(0, &mut buffer[..8])?;
    let first = buffer.first_chunk().copied().unwrap_or_default();
    let salt = u64::from_le_bytes(first) >> SALT_SHIFT;
    for at in (0..len).step_by(CHUNK) {
        stop::check()?;
        let now = usize::try_from((len - at).min(CHUNK as u64))?;
        let got = file.read(at, &mut buffer[..now])?;
        ensure!(got == now, "{got} of {now} bytes read at {at}");
        stamp(&mut wanted, at, salt);
        if buffer[..now] != wanted[..now] {
            let wrong = buffer.iter().zip(&wanted).position(|(a, b)| a != b);
            let byte = at + wrong.unwrap_or(0) as u64;
            anyhow::bail!("byte {byte} is not what pass {salt} wrote");
        }
    }
    Ok(salt)
}

fn verify_hole(file: &mut impl Handle, len: u64) -> Result<()> {
    let mut buffer = vec![0xa5; CHUNK];
    for at in (0..len).step_by(CHUNK) {
        file.read(at, &mut buffer)?;
        ensure!(buffer.iter().all(|byte| *byte == 0), "a hole is not zero at {at}");
    }
    Ok(())
}

/// Takes `bytes` of memory from the system, touches all of it and gives it back: once as huge pages
/// and once as small ones, because systems keep free memory of both kinds apart.
///
/// A virtual machine hands free pages back to its host, which takes long to provide them again;
/// whoever happened to get such pages would pay for it.
fn settle_memory(bytes: u64) -> Result<()> {
    for advice in [Advice::HugePage, Advice::Normal] {
        let mut memory = MmapMut::map_anon(usize::try_from(bytes)?)?;
        // Without huge pages in this system there is nothing to settle about them.
        drop(memory.advise(advice));
        for page in memory.chunks_mut(STAMPED) {
            page[0] = 1;
        }
        black_box(&mut memory);
    }
    Ok(())
}

/// A rate in MiB/s.
pub(super) fn rate(bytes: u64, times: u32, elapsed: Duration) -> f64 {
    (bytes * u64::from(times)) as f64 / f64::from(1 << 20) / elapsed.as_secs_f64()
}

/// A file of `len` bytes with data in all of it, cached if it was written now.
pub(super) fn data_file<D: Dir>(dir: &D, name: &str, len: u64) -> Result<D::File> {
    match dir.size(name)? {
        Some(size) if size == len => return dir.open(name),
        Some(_) => dir.unlink(name)?,
        None => {}
    }
    let mut file = dir.create(name)?;
    write_pass(&mut file, len, &mut pattern(CHUNK), 1, Writeback::On)?;
    Ok(file)
}

/// Besides contents, a pass may take this much memory.
const BESIDES: u64 = 64 << 20;

/// Runs a row on a volume that was mounted just now, with files of `file_bytes`; the result is in
/// MiB/s. Contents are checked, outside of the time.
///
/// # Errors
///
/// Errors of the contender; contents that are not what was written.
pub fn run(volume: &impl Volume, row: Row, file_bytes: u64) -> Result<f64> {
    let dir = volume.dir("io")?;
    let len = row.bytes(file_bytes);
    let mut buffer = pattern(row.block_bytes);
    match row.kind {
        Kind::ReadHole => {
            let mut file = match dir.size("hole")? {
                Some(_) => dir.open("hole")?,
                None => dir.create("hole")?,
            };
            file.set_len(len)?;
            settle_memory(len + BESIDES)?;
            let elapsed = read_pass(&mut file, len, &mut buffer)?;
            verify_hole(&mut file, len)?;
            Ok(rate(len, 1, elapsed))
        }
        Kind::ReadDisk => {
            let mut file = dir.open_to_read("data")?;
            settle_memory(len + BESIDES)?;
            let elapsed = read_pass(&mut file, len, &mut buffer)?;
            verify(&mut file, len)?;
            Ok(rate(len, 1, elapsed))
        }
        Kind::ReadWarm => {
            let mut file = dir.open_to_read("data")?;
            verify(&mut file, len)?;
            file.forget()?;
            let elapsed = read_pass(&mut file, len, &mut buffer)?;
            verify(&mut file, len)?;
            Ok(rate(len, 1, elapsed))
        }
        Kind::ReadMemory => {
            let mut file = data_file(&dir, "data", len)?;
            verify(&mut file, len)?;
            let mut elapsed = Duration::ZERO;
            for _ in 0..PASSES {
                elapsed += read_pass(&mut file, len, &mut buffer)?;
            }
            verify(&mut file, len)?;
            Ok(rate(len, PASSES, elapsed))
        }
        Kind::AppendCache | Kind::AppendWriteback | Kind::AppendFsync => {
            // A round that was stopped may have left it.
            if dir.size("new")?.is_some() {
                dir.unlink("new")?;
            }
            let mut file = dir.create("new")?;
            let writeback = row.kind.writeback();
            settle_memory(len + BESIDES)?;
            let elapsed = write_pass(&mut file, len, &mut buffer, 2, writeback)?;
            ensure!(dir.size("new")? == Some(len), "the new file has another size");
            ensure!(verify(&mut file, len)? == 2, "the new file is an old one");
            drop(file);
            dir.unlink("new")?;
            Ok(rate(len, 1, elapsed))
        }
        Kind::OverwriteCache | Kind::OverwriteWriteback | Kind::OverwriteFsync => {
            let name = if len == file_bytes { "data" } else { "small" };
            let mut file = data_file(&dir, name, len)?;
            let mut salt = verify(&mut file, len)?;
            let mut elapsed = Duration::ZERO;
            // Waiting for the device takes long enough.
            let passes = if row.kind == Kind::OverwriteCache { PASSES } else { 1 };
            for _ in 0..passes {
                salt = (salt + 1) & 0xffff;
                elapsed += write_pass(&mut file, len, &mut buffer, salt, row.kind.writeback())?;
                ensure!(verify(&mut file, len)? == salt, "pass {salt} left no trace");
                file.sync()?;
            }
            Ok(rate(len, passes, elapsed))
        }
    }
}

/// The files that rows only read.
///
/// # Errors
///
/// As [`run`].
pub fn prepare(volume: &impl Volume, file_bytes: u64) -> Result<()> {
    let dir = volume.dir("io")?;
    drop(data_file(&dir, "data", file_bytes)?);
    dir.sync()
}

/// The same calls on plain memory: the copy alone.
///
/// # Errors
///
/// None but signals to stop.
pub fn run_copy(row: Row, file_bytes: u64) -> Result<f64> {
    let len = row.bytes(file_bytes);
    let mut buffer = pattern(row.block_bytes);
    let memory = || -> Result<Region> { Ok(Region::untouched(usize::try_from(len)?)) };
    let rate = match row.kind.appends() {
        None if row.kind == Kind::ReadHole => {
            rate(len, 1, read_pass(&mut Region::hole(), len, &mut buffer)?)
        }
        None => {
            let mut region = memory()?;
            write_pass(&mut region, len, &mut pattern(CHUNK), 1, Writeback::Off)?;
            let mut elapsed = Duration::ZERO;
            for _ in 0..PASSES {
                elapsed += read_pass(&mut region, len, &mut buffer)?;
            }
            rate(len, PASSES, elapsed)
        }
        Some(true) => {
            settle_memory(len + BESIDES)?;
            let mut region = memory()?;
            let elapsed = write_pass(&mut region, len, &mut buffer, 2, Writeback::Off)?;
            rate(len, 1, elapsed)
        }
        Some(false) => {
            let mut region = memory()?;
            write_pass(&mut region, len, &mut pattern(CHUNK), 1, Writeback::Off)?;
            let mut elapsed = Duration::ZERO;
            for _ in 0..PASSES {
                elapsed += write_pass(&mut region, len, &mut buffer, 2, Writeback::Off)?;
            }
            rate(len, PASSES, elapsed)
        }
    };
    Ok(rate)
}

/// What a file system in this process cannot go below where data comes from the image or goes there while it is measured: the
/// system's own calls, by one thread, on a file beside the images. `None` for other rows.
///
/// # Errors
///
/// Errors of the file.
pub fn run_device(row: Row, file_bytes: u64, path: &Path) -> Result<Option<f64>> {
    let len = row.bytes(file_bytes);
    let reads = match row.kind {
        Kind::ReadDisk | Kind::ReadWarm => true,
        Kind::AppendWriteback | Kind::OverwriteWriteback => false,
        _ => return Ok(None),
    };
    let file = File::options().read(true).write(true).open(path)?;
    let mut memory = vec![1; usize::try_from(len)?];
    // The first pass gives the file and the memory their pages.
    let mut elapsed = Duration::ZERO;
    for pass in 0..=PASSES {
        let start = SystemClock.monotonic();
        for (at, chunk) in (0..).step_by(CHUNK).zip(memory.chunks_mut(CHUNK)) {
            if reads && pass > 0 {
                file.read_exact_at(chunk, at)?;
            } else {
                file.write_all_at(chunk, at)?;
            }
        }
        if pass > 0 {
            elapsed += SystemClock.monotonic() - start;
        }
        stop::check()?;
    }
    Ok(Some(rate(len, PASSES, elapsed)))
}

#[cfg(test)]
mod tests {
    use super::super::kernel::Plain;
    use super::*;

    const LEN: u64 = 4 << 20;

    fn written(salt: u64) -> Region {
        let mut region = Region::untouched(LEN as usize);
        let mut buffer = pattern(64 << 10);
        write_pass(&mut region, LEN, &mut buffer, salt, Writeback::Off).unwrap();
        region
    }

    #[test]
    fn what_a_pass_wrote_is_recognised() {
        assert_eq!(verify(&mut written(7), LEN).unwrap(), 7);
    }

    #[test]
    fn old_missing_and_misplaced_blocks_are_found() {
        let mut old = written(8);
        let mut block = vec![0; STAMPED];
        written(7).read(3 << 20, &mut block).unwrap();
        old.write(3 << 20, &block).unwrap();
        assert!(verify(&mut old, LEN).is_err());
        let mut missing = written(8);
        missing.write(STAMPED as u64, &vec![0; STAMPED]).unwrap();
        assert!(verify(&mut missing, LEN).is_err());
        let mut misplaced = written(8);
        misplaced.read(0, &mut block).unwrap();
        misplaced.write(STAMPED as u64, &block).unwrap();
        assert!(verify(&mut misplaced, LEN).is_err());
        let mut tail = written(8);
        tail.write(LEN - 1, &[0]).unwrap();
        assert!(verify(&mut tail, LEN).is_err());
    }

    #[test]
    fn every_row_runs_and_leaves_the_file_to_read() {
        // Small: some rows sync each block.
        let len = 1 << 20;
        let volume = Plain(tempfile::tempdir().unwrap());
        prepare(&volume, len).unwrap();
        for row in Row::all() {
            assert!(run(&volume, row, len).unwrap() > 0.0, "{row}");
            assert!(run_copy(row, len).unwrap() > 0.0, "{row}");
        }
        let dir = volume.dir("io").unwrap();
        verify(&mut dir.open("data").unwrap(), len).unwrap();
        assert_eq!(dir.size("new").unwrap(), None);
    }
}
