//! The work of one session, on a directory of any contender.

use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock, threads};
use rustix::fs::OFlags;

use super::rows::{DIRECT_BYTES, Until};
use crate::stop;

/// Bytes that one client writes into a file, in as many calls.
const CLIENT_BYTES: [usize; 3] = [1000, 4096, 12000];
/// Calls of one round of a client: each is an operation.
const CLIENT_CALLS: u64 = 9;
/// Names of one client at a time.
const CLIENT_NAMES: u64 = 50;

/// Seconds that `work` takes.
///
/// # Errors
///
/// Those of `work`.
pub fn timed(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    stop::check()?;
    let start = SystemClock.monotonic();
    work()?;
    Ok(SystemClock.monotonic().saturating_sub(start).as_secs_f64())
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Writes a new file of `bytes` and returns MiB/s.
///
/// # Errors
///
/// Those of the calls.
pub fn write(path: &Path, bytes: u64, block_bytes: usize, until: Until) -> Result<f64> {
    let mut buffer = vec![0; block_bytes];
    Prng::new(1).fill(&mut buffer);
    let mut kept = None;
    let seconds = timed(|| {
        let mut file = File::create_new(path)?;
        let mut at = 0_u64;
        while at < bytes {
            buffer[..8].copy_from_slice(&at.to_le_bytes());
            file.write_all(&buffer)?;
            at += block_bytes as u64;
        }
        match until {
            Until::Written => kept = Some(file),
            Until::Closed => drop(file),
            Until::Synced => file.sync_all()?,
        }
        Ok(())
    })?;
    drop(kept);
    ensure!(std::fs::metadata(path)?.len() == bytes, "{} is not complete", path.display());
    Ok(mib(bytes) / seconds)
}

/// Reads a file that [`write()`] made and returns MiB/s.
///
/// # Errors
///
/// Those of the calls; contents that are not what was written.
pub fn read(path: &Path, block_bytes: usize, written_bytes: usize) -> Result<f64> {
    let mut buffer = vec![0; block_bytes];
    let bytes = std::fs::metadata(path)?.len();
    let seconds = timed(|| {
        let mut file = File::open(path)?;
        let mut at = 0_u64;
        while at < bytes {
            file.read_exact(&mut buffer)?;
            for (start, block) in (at..).step_by(written_bytes).zip(buffer.chunks(written_bytes)) {
                // What was read of a block that was written in one piece begins with its place.
                if start.is_multiple_of(written_bytes as u64) {
                    ensure!(block.starts_with(&start.to_le_bytes()), "other contents at {start}");
                }
            }
            black_box(&buffer);
            at += block_bytes as u64;
        }
        Ok(())
    })?;
    Ok(mib(bytes) / seconds)
}

/// A buffer whose part from the returned place on is aligned as direct I/O wants it.
fn aligned() -> (Vec<u8>, usize) {
    let buffer = vec![0; 2 * DIRECT_BYTES];
    let at = buffer.as_ptr().align_offset(DIRECT_BYTES).min(DIRECT_BYTES);
    (buffer, at)
}

/// Reads or writes blocks at random places past the kernel's cache; operations per second of all
/// threads together. Each block keeps the place at its beginning that [`write()`] put there.
///
/// # Errors
///
/// Those of the calls; contents that are not what was written.
pub fn direct(path: &Path, is_write: bool, count: usize, length: Duration) -> Result<f64> {
    let blocks = std::fs::metadata(path)?.len() / DIRECT_BYTES as u64;
    let flags = OFlags::DIRECT.bits().cast_signed();
    let open = || OpenOptions::new().read(true).write(is_write).custom_flags(flags).open(path);
    run_threads(count, length, |thread, is_over| {
        let file = open().context("opened for direct I/O")?;
        let (mut buffer, at) = aligned();
        let block = &mut buffer[at..at + DIRECT_BYTES];
        let mut random = Prng::new(thread as u64 + 1);
        random.fill(block);
        let mut done = 0;
        while !is_over() {
            for _ in 0..16 {
                let place = random.below(blocks) * DIRECT_BYTES as u64;
                if is_write {
                    block[..8].copy_from_slice(&place.to_le_bytes());
                    file.write_all_at(block, place)?;
                } else {
                    file.read_exact_at(block, place)?;
                    ensure!(block.starts_with(&place.to_le_bytes()), "other contents at {place}");
                }
                done += 1;
            }
        }
        Ok(done)
    })
}

/// Clients in directories of their own: each makes files, writes, looks at, reads, renames and
/// removes them. System calls per second, but for open and close, of all clients together.
///
/// # Errors
///
/// Those of the calls; contents that are not what was written.
pub fn clients(root: &Path, count: usize, length: Duration) -> Result<f64> {
    for client in 0..count {
        std::fs::create_dir(root.join(format!("client-{client}")))?;
    }
    let rate = run_threads(count, length, |client, is_over| {
        let dir = root.join(format!("client-{client}"));
        let mut data = vec![0; CLIENT_BYTES.iter().sum()];
        Prng::new(client as u64).fill(&mut data);
        let mut out = vec![0; data.len()];
        let mut done = 0;
        // Once at least: a client may get to run only when it is over.
        while done == 0 || !is_over() {
            for name in 0..CLIENT_NAMES {
                let (path, other) = (dir.join(format!("a-{name}")), dir.join(format!("b-{name}")));
                let mut file = File::create_new(&path)?;
                let mut at = 0;
                for bytes in CLIENT_BYTES {
                    file.write_all(&data[at..at + bytes])?;
                    at += bytes;
                }
                drop(file);
                ensure!(std::fs::metadata(&path)?.len() == data.len() as u64, "another size");
                File::open(&path)?.read_exact(&mut out)?;
                ensure!(out == data, "other contents in {}", path.display());
                std::fs::rename(&path, &other)?;
            }
            for name in 0..CLIENT_NAMES {
                std::fs::metadata(dir.join(format!("b-{name}")))?;
                std::fs::remove_file(dir.join(format!("b-{name}")))?;
            }
            done += CLIENT_NAMES * CLIENT_CALLS;
        }
        Ok(done)
    })?;
    for client in 0..count {
        std::fs::remove_dir(root.join(format!("client-{client}")))?;
    }
    Ok(rate)
}

/// Runs `work` in so many threads until it is over; the sum of what they did, per second.
fn run_threads(
    count: usize,
    length: Duration,
    work: impl Fn(usize, &dyn Fn() -> bool) -> Result<u64> + Sync,
) -> Result<f64> {
    let start = SystemClock.monotonic();
    let work = &work;
    let done = threads::scope(|scope| -> Result<u64> {
        let mut handles = Vec::new();
        for thread in 0..count {
            let run = move || {
                let is_over =
                    || SystemClock.monotonic().saturating_sub(start) >= length || stop::requested();
                work(thread, &is_over)
            };
            handles.push(scope.spawn(&format!("client-{thread}"), run)?);
        }
        let mut sum = 0;
        for handle in handles {
            sum += handle.join()??;
        }
        Ok(sum)
    })??;
    stop::check()?;
    Ok(done as f64 / SystemClock.monotonic().saturating_sub(start).as_secs_f64())
}

/// Runs a program to its end, in a group of its own, and returns the number of lines it printed.
///
/// # Errors
///
/// When it fails; with what it said.
pub fn program(name: &str, args: &[&std::ffi::OsStr]) -> Result<u64> {
    use std::os::unix::process::CommandExt;
    let mut child = Command::new(name)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("cannot run {name}"))?;
    let mut lines = 0;
    let mut buffer = vec![0; 64 << 10];
    let mut out = child.stdout.take().context("a pipe")?;
    loop {
        let got = out.read(&mut buffer)?;
        if got == 0 {
            break;
        }
        lines += buffer[..got].iter().filter(|byte| **byte == b'\n').count() as u64;
    }
    let status = child.wait()?;
    ensure!(status.success(), "{name} ended with {status}");
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 2 << 20;

    #[test]
    fn what_was_written_is_read_and_other_contents_are_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(write(&path, LEN, 4096, Until::Synced).unwrap() > 0.0);
        assert!(write(&path, LEN, 4096, Until::Synced).is_err(), "the file is there");
        for block_bytes in [4096, 1 << 20] {
            assert!(read(&path, block_bytes, 4096).unwrap() > 0.0);
        }
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        file.write_all_at(&[0; 8], 40960).unwrap();
        assert!(read(&path, 1 << 20, 4096).is_err());
    }

    #[test]
    fn clients_leave_nothing_and_count_what_they_did() {
        let dir = tempfile::tempdir().unwrap();
        assert!(clients(dir.path(), 3, Duration::from_millis(1)).unwrap() > 0.0);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn lines_of_a_program_are_counted() {
        let args = ["-c", "printf '1\\n2\\n'"].map(std::ffi::OsStr::new);
        assert_eq!(program("sh", &args).unwrap(), 2);
        assert!(program("false", &[]).is_err());
    }
}
