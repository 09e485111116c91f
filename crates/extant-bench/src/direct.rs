//! Direct I/O of one thread with many requests under way: extant, the kernel's ext4, and the bytes below.
//!
//! All go through the same queue (`extant_block::Queue`, io_uring past the page cache), so what differs is the
//! file system: *raw* is a plain file beside the images, *ext4* a file on a loop device over an image, *extant* a file
//! in an image of the same kind, in process. Each block has its offset in its first bytes, which reads check.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use extant::{
    AlignedBuffer, DirectDone, DirectFile, DirectKind, DirectRequest, Engine, Fs, MountOptions,
    NewInode, QueueOptions,
};
use extant_base::Prng;
use extant_block::{BlockDevice, FileDevice, Operation, Wait};
use extant_sync::{Clock, SystemClock};

use crate::io::kernel::{self, Kernel};
use crate::report::{Series, add, report};
use crate::stop;

/// Bytes of a request.
const BLOCK: usize = 4096;
/// Requests that extant is given at once.
const BATCH: usize = 4096;
/// Bytes of one write while files are made.
const PIECE: u64 = 1 << 20;

/// How much is measured where.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How often each contender has its turn.
    pub rounds: u32,
    /// Size of the file.
    pub file_bytes: u64,
    /// Requests in one turn.
    pub requests: u64,
    /// Directories and their names in the table.
    pub places: Vec<(String, PathBuf)>,
}

/// Somebody who reads and writes blocks.
enum Side {
    Device(FileDevice),
    Extant(Fs, DirectFile),
}

fn block(offset: u64) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(BLOCK);
    buffer[..8].copy_from_slice(&offset.to_le_bytes());
    buffer
}

fn check(offset: u64, buffer: &[u8]) -> Result<()> {
    ensure!(buffer.get(..8) == Some(&offset.to_le_bytes()[..]), "byte {offset} is another one's");
    Ok(())
}

impl Side {
    /// Gives every block its contents, durable.
    fn fill(&self, bytes: u64) -> Result<()> {
        for start in (0..bytes).step_by(PIECE as usize) {
            let mut piece = AlignedBuffer::zeroed(PIECE as usize);
            for (number, block) in piece.chunks_mut(BLOCK).enumerate() {
                let offset = start + (number * BLOCK) as u64;
                block[..8].copy_from_slice(&offset.to_le_bytes());
            }
            match self {
                Side::Device(device) => device.write_at(start, &piece)?,
                Side::Extant(_, file) => _ = file.write_at(start, &piece)?,
            }
        }
        match self {
            Side::Device(device) => device.flush()?,
            Side::Extant(fs, _) => fs.sync()?,
        }
        Ok(())
    }

    fn engine(&self, options: &QueueOptions) -> Engine {
        match self {
            Side::Device(device) => device.queue(options).engine(),
            Side::Extant(_, file) => file.queue(options).engine(),
        }
    }

    /// Reads or writes the blocks at `offsets`; returns requests per second.
    fn run(&self, options: &QueueOptions, writes: bool, offsets: &[u64]) -> Result<f64> {
        let clock = SystemClock;
        let spent = match self {
            Side::Device(device) => {
                let mut queue = device.queue(options);
                let start = clock.monotonic();
                let mut spare: Vec<AlignedBuffer> = Vec::new();
                let mut next = offsets.iter();
                loop {
                    while queue.len() < queue.depth()
                        && let Some(&offset) = next.next()
                    {
                        let mut buffer = spare.pop().unwrap_or_else(|| block(offset));
                        buffer[..8].copy_from_slice(&offset.to_le_bytes());
                        let operation = match writes {
                            true => Operation::Write { offset, buffer, fua: false },
                            false => Operation::Read { offset, buffer },
                        };
                        let _full = queue.push(offset, operation);
                    }
                    queue.submit();
                    let Some(first) = queue.reap(Wait::Block) else { break };
                    let mut reaped = Some(first);
                    while let Some(finished) = reaped {
                        let buffer = finished.completion.into_buffer()?;
                        check(finished.tag, &buffer)?;
                        spare.push(buffer);
                        reaped = queue.reap(Wait::Poll);
                    }
                }
                clock.monotonic().saturating_sub(start)
            }
            Side::Extant(_, file) => {
                let mut queue = file.queue(options);
                let start = clock.monotonic();
                let mut spare: Vec<AlignedBuffer> = Vec::new();
                let kind = match writes {
                    true => DirectKind::Write { synced: false },
                    false => DirectKind::Read,
                };
                for offsets in offsets.chunks(BATCH) {
                    let request = |&offset: &u64| {
                        let mut buffer = spare.pop().unwrap_or_else(|| block(offset));
                        buffer[..8].copy_from_slice(&offset.to_le_bytes());
                        DirectRequest { kind, offset, buffer }
                    };
                    let requests = offsets.iter().map(request).collect();
                    for DirectDone { request, result } in queue.run(requests) {
                        ensure!(result? == BLOCK, "a request was short");
                        check(request.offset, &request.buffer)?;
                        spare.push(request.buffer);
                    }
                }
                clock.monotonic().saturating_sub(start)
            }
        };
        Ok(offsets.len() as f64 / spent.as_secs_f64())
    }
}

/// The kernel's ext4 and a file on it.
fn kernel_side(image: &Path, bytes: u64) -> Result<(Kernel, Side)> {
    extant_testkit::oracle::root("mounts an image through a loop device")
        .map_err(anyhow::Error::msg)?;
    kernel::make_ext4(image)?;
    let mounted = Kernel::mount(image, "ext4")?;
    let at = mounted.path()?.join("file");
    let side = Side::Device(FileDevice::create_new(at, bytes)?);
    Ok((mounted, side))
}

/// Runs the table in each place, prints it, and writes `target/bench/direct.json`.
///
/// # Errors
///
/// Errors of a contender; contents that are not what was written; a signal.
pub fn direct(settings: &Settings) -> Result<()> {
    let mut all = Vec::new();
    for (place, dir) in &settings.places {
        let dir = tempfile::tempdir_in(dir)
            .with_context(|| format!("cannot make a directory in {}", dir.display()))?;
        measure(settings, place, dir.path(), &mut all)?;
    }
    report("direct", "raw", &all)
}

fn measure(settings: &Settings, place: &str, dir: &Path, all: &mut Vec<Series>) -> Result<()> {
    let bytes = settings.file_bytes;
    let at = |name: &str| dir.join(name);
    let room = bytes + bytes / 8 + (64 << 20);
    let (own, others) = (at("extant.img"), at("ext4.img"));
    kernel::zeros(&own, room)?;
    kernel::zeros(&others, room)?;
    kernel::make_ext4(&own)?;
    let fs = MountOptions::new().read_only(false).open_path(&own)?;
    // mke2fs takes 1 KiB below 512 MiB, and blocks that are not aligned to pages go through the host's cache.
    let block_bytes = fs.block_size().bytes();
    ensure!(
        block_bytes as usize == BLOCK,
        "blocks of {block_bytes} bytes: SIZE has to be 512M or more"
    );
    let file = fs.root()?.create("file", &NewInode::root(0o644))?.direct()?;
    let raw = Side::Device(FileDevice::create_new(at("raw"), bytes)?);
    let mut sides = vec![("raw", raw), ("extant", Side::Extant(fs, file))];
    let mounted = match kernel_side(&others, bytes) {
        Ok((mounted, side)) => {
            sides.push(("ext4", side));
            Some(mounted)
        }
        Err(why) => {
            println!("ext4 is left out in {place}: {why:#}");
            None
        }
    };
    for (name, side) in &sides {
        side.fill(bytes)?;
        println!("{place}: {name} by {}", side.engine(&QueueOptions::default().direct(true)));
    }
    let mut random = Prng::new(1);
    let mut offsets = Vec::new();
    for round in 0..settings.rounds {
        for depth in [1, 64] {
            for writes in [false, true] {
                let row =
                    format!("{place} {} 4K, depth {depth}", ["read", "write"][usize::from(writes)]);
                let blocks = bytes / BLOCK as u64;
                offsets.clear();
                offsets.extend((0..settings.requests).map(|_| random.below(blocks) * BLOCK as u64));
                let options = QueueOptions::default().depth(depth).direct(true);
                // Each begins once.
                for turn in 0..sides.len() {
                    stop::check()?;
                    let (name, side) = &sides[(turn + round as usize) % sides.len()];
                    let rate = side.run(&options, writes, &offsets)?;
                    println!("run {}: {row:<28} {name:<8} {:>9.1} k/s", round + 1, rate / 1e3);
                    add(all, &row, name, "k/s", rate / 1e3);
                }
            }
        }
    }
    for (_, side) in &sides {
        if let Side::Extant(fs, _) = side {
            let stats = fs.io_stats().context("no counters")?;
            let requests = 4 * u64::from(settings.rounds) * settings.requests;
            ensure!(
                stats.direct_queued == requests,
                "some requests were done one by one: {stats:?}"
            );
        }
    }
    for (_, side) in sides {
        if let Side::Extant(fs, file) = side {
            drop(file);
            fs.unmount()?;
        }
    }
    kernel::check_ext4(&own)?;
    if mounted.is_some() {
        drop(mounted);
        kernel::check_ext4(&others)?;
    }
    Ok(())
}
