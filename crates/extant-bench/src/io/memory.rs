//! Memory of a process that reads, writes and truncates more data than its cache holds.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use extant_base::Prng;
use extant_sync::{Clock, SystemClock, threads};

use super::library::Library;
use super::side::{Dir, Handle, Volume};
use crate::stop;

/// What a version of a block covers.
const BLOCK: usize = 4096;
/// Files of each thread.
const FILES: usize = 4;
/// Threads, each with its own files.
const THREADS: usize = 2;
/// Blocks of the largest operation.
const MOST_BLOCKS: u64 = 256;
/// How much data there is for each byte of the cache.
pub const DATA_PER_CACHE: u64 = 4;
/// What the process may have besides its cache, in bytes.
pub const BESIDES: u64 = 64 << 20;

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// The most memory that the process had, in bytes: resident pages of every kind.
    pub peak_bytes: u64,
    /// Operations done.
    pub operations: u64,
    /// Bytes read and written.
    pub bytes: u64,
}

/// The most resident memory of this process so far, in bytes.
///
/// # Errors
///
/// Where the system does not tell.
pub fn peak_bytes() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kib = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok())
        .context("/proc/self/status does not tell VmHWM")?;
    Ok(kib * 1024)
}

/// A file and the version of each of its blocks; 0 for one that reads as zeros.
struct Known<F> {
    file: F,
    id: u64,
    versions: Vec<u32>,
}

/// The contents of a block of a version.
fn fill(out: &mut [u8], id: u64, block: u64, version: u32) {
    if version == 0 {
        return out.fill(0);
    }
    let word = (id << 56) ^ (block << 32) ^ u64::from(version);
    for (index, bytes) in out.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word.wrapping_add(index as u64).to_le_bytes());
    }
}

impl<F: Handle> Known<F> {
    /// One random operation; returns the bytes moved. `most` is the largest size in blocks.
    fn step(
        &mut self,
        random: &mut Prng,
        most: u64,
        buffer: &mut [u8],
        wanted: &mut [u8],
    ) -> Result<u64> {
        let longest = if random.one_in(4) { MOST_BLOCKS } else { 4 };
        let count = 1 + random.below(longest);
        let kind = random.below(1000);
        let size = self.versions.len() as u64;
        match kind {
            0 => {
                let size = random.below(most);
                self.file.set_len(size * BLOCK as u64)?;
                self.versions.resize(usize::try_from(size)?, 0);
                Ok(0)
            }
            1..=4 => self.file.sync_data().map(|()| 0),
            5..=499 => {
                let from = random.below(most - MOST_BLOCKS);
                let now = usize::try_from(count)? * BLOCK;
                let end = usize::try_from(from + count)?;
                if self.versions.len() < end {
                    self.versions.resize(end, 0);
                }
                for (index, out) in buffer[..now].chunks_exact_mut(BLOCK).enumerate() {
                    let block = from + index as u64;
                    let version = &mut self.versions[usize::try_from(block)?];
                    *version = version.wrapping_add(1).max(1);
                    fill(out, self.id, block, *version);
                }
                let put = self.file.write(from * BLOCK as u64, &buffer[..now])?;
                ensure!(put == now, "{put} of {now} bytes written");
                Ok(now as u64)
            }
            _ if size == 0 => Ok(0),
            _ => {
                let from = random.below(size);
                let now = usize::try_from(count.min(size - from))? * BLOCK;
                let got = self.file.read(from * BLOCK as u64, &mut buffer[..now])?;
                ensure!(got == now, "{got} of {now} bytes read at block {from}");
                for (index, out) in wanted[..now].chunks_exact_mut(BLOCK).enumerate() {
                    let block = from + index as u64;
                    fill(out, self.id, block, self.versions[usize::try_from(block)?]);
                }
                if buffer[..now] != wanted[..now] {
                    let wrong = (0..now / BLOCK).find(|index| {
                        let range = index * BLOCK..(index + 1) * BLOCK;
                        buffer[range.clone()] != wanted[range]
                    });
                    bail!(
                        "file {}, block {}: old or foreign",
                        self.id,
                        from + wrong.unwrap_or(0) as u64
                    );
                }
                Ok(now as u64)
            }
        }
    }
}

/// Reads, writes, syncs and truncates files of together `DATA_PER_CACHE` times `cache_bytes` on
/// `image` for `length`, checking what is read.
///
/// # Errors
///
/// Errors of the library; contents that are not what was written.
pub fn run(image: &Path, cache_bytes: u64, length: Duration, seed: u64) -> Result<Outcome> {
    let volume = Library::mount(image, cache_bytes, true)?;
    let dir = volume.dir("memory")?;
    let blocks = cache_bytes * DATA_PER_CACHE / BLOCK as u64 / (FILES * THREADS) as u64;
    ensure!(blocks > 2 * MOST_BLOCKS, "the cache is too small: {cache_bytes} bytes");
    let clock = SystemClock;
    let start = clock.monotonic();
    let worker = |thread: usize| -> Result<(u64, u64)> {
        let mut random = Prng::new(seed ^ ((thread as u64) << 32));
        let mut buffer = vec![0; usize::try_from(MOST_BLOCKS)? * BLOCK];
        let mut wanted = buffer.clone();
        let mut files = Vec::new();
        for index in 0..FILES {
            let id = (thread * FILES + index) as u64;
            let file = dir.create(&format!("f{id}"))?;
            files.push(Known { file, id, versions: Vec::new() });
        }
        let (mut operations, mut bytes) = (0, 0);
        while clock.monotonic().saturating_sub(start) < length {
            stop::check()?;
            let known = &mut files[random.below(FILES as u64) as usize];
            bytes += known.step(&mut random, blocks, &mut buffer, &mut wanted)?;
            operations += 1;
        }
        Ok((operations, bytes))
    };
    let (mut operations, mut bytes) = (0, 0);
    let results = threads::workers("mixed", THREADS, worker)?;
    for result in results {
        let (more_operations, more_bytes) = result?;
        operations += more_operations;
        bytes += more_bytes;
    }
    drop(dir);
    volume.close()?;
    Ok(Outcome { peak_bytes: peak_bytes()?, operations, bytes })
}
