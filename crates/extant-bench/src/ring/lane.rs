//! What a ring's lane adds to the device's queue.
//!
//! The device's queue moves no bytes and ends an operation when it is pushed: neither system calls nor copies hide what the ring
//! itself does for each request.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use extant::ring::{Op, Value};
use extant::{AlignedBuffer, Engine, MountOptions, NewInode, QueueOptions};
use extant_base::Prng;
use extant_block::{
    BlockDevice, Completion, DeviceError, Finished, LastingQueue, MemoryDevice, Operation, Pending,
    Queue, SharedDevice, Wait,
};
use extant_sync::{Clock, SystemClock};
use extant_testkit::image;

use super::SEED;
use crate::io::kernel;

/// Bytes of one request.
const BYTES: usize = 4096;
/// Requests under way.
const DEPTH: usize = 64;
/// Bytes of the file.
const FILE_BYTES: u64 = 32 << 20;
/// Bytes of the image.
const IMAGE_BYTES: u64 = 640 << 20;
/// Requests of one cell.
const COUNT: u64 = 1_000_000;

/// A device in memory with a queue that needs no system.
struct AtOnce(Arc<MemoryDevice>);

impl BlockDevice for AtOnce {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.0.submit(batch)
    }

    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        Some(Box::new(Idle { depth: options.depth, unstarted: 0, done: VecDeque::new() }))
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.0.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.0.write_at(offset, bytes)
    }
}

/// A queue in which nothing happens.
struct Idle {
    depth: usize,
    unstarted: usize,
    done: VecDeque<Finished>,
}

impl Queue for Idle {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.done.len() >= self.depth {
            return Err(operation);
        }
        self.unstarted += 1;
        self.done.push_back(Finished { tag, completion: Completion { operation, result: Ok(()) } });
        Ok(())
    }

    fn submit(&mut self) {
        self.unstarted = 0;
    }

    fn reap(&mut self, _: Wait) -> Option<Finished> {
        self.unstarted = self.unstarted.min(self.done.len().saturating_sub(1));
        self.done.pop_front()
    }

    fn len(&self) -> usize {
        self.done.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn engine(&self) -> Engine {
        Engine::Portable
    }
}

impl LastingQueue for Idle {
    fn unstarted(&self) -> usize {
        self.unstarted
    }

    fn signals(&mut self, _: BorrowedFd<'_>) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Nanoseconds for a request.
pub(super) struct Costs {
    pub(super) queue: f64,
    pub(super) ring: f64,
}

/// An image in memory with a file of written blocks.
pub(super) fn device(dir: &Path) -> Result<Arc<MemoryDevice>> {
    let path = dir.join("lane.img");
    // From 512 MiB on mke2fs makes blocks of 4 KiB.
    std::fs::File::create(&path)?.set_len(IMAGE_BYTES)?;
    kernel::make_ext4(&path)?;
    let memory = Arc::new(image::load(&path));
    std::fs::remove_file(&path)?;
    Ok(memory)
}

/// Measures requests at random on a file and on the device's queue alone.
///
/// # Errors
///
/// Those of the file system; a request that a worker did.
pub(super) fn measure(memory: &Arc<MemoryDevice>, writes: bool) -> Result<Costs> {
    Ok(Costs { queue: on_queue(memory, writes)?, ring: on_ring(memory, writes)? })
}

fn nanos(start: std::time::Duration) -> f64 {
    (SystemClock.monotonic().saturating_sub(start)).as_nanos() as f64 / COUNT as f64
}

fn on_queue(memory: &Arc<MemoryDevice>, writes: bool) -> Result<f64> {
    let device = AtOnce(Arc::clone(memory));
    let queue = device.lasting_queue(&QueueOptions::default().depth(DEPTH));
    let mut queue = queue.context("the device has no queue")?;
    let mut random = Prng::new(SEED);
    let mut spare: Vec<AlignedBuffer> = (0..DEPTH).map(|_| AlignedBuffer::zeroed(BYTES)).collect();
    let places = FILE_BYTES / BYTES as u64;
    let start = SystemClock.monotonic();
    let (mut begun, mut ended) = (0, 0);
    while ended < COUNT {
        while begun < COUNT && queue.len() < DEPTH {
            let offset = random.below(places) * BYTES as u64;
            let mut buffer = spare.pop().context("a buffer was lost")?;
            buffer[..8].copy_from_slice(&offset.to_le_bytes());
            let operation = match writes {
                true => Operation::Write { offset, buffer, fua: false },
                false => Operation::Read { offset, buffer },
            };
            ensure!(queue.push(offset, operation).is_ok(), "a queue with room has none");
            begun += 1;
        }
        let finished = queue.advance().context("an operation was lost")?;
        spare.push(finished.completion.into_buffer()?);
        ended += 1;
    }
    Ok(nanos(start))
}

fn on_ring(memory: &Arc<MemoryDevice>, writes: bool) -> Result<f64> {
    let device: SharedDevice = Arc::new(AtOnce(Arc::clone(memory)));
    let fs = MountOptions::new().read_only(false).background(false).open_shared(device)?;
    let root = fs.root()?;
    let file = root.create("file", &NewInode::root(0o644))?;
    file.direct()?.write_at(&AlignedBuffer::zeroed(FILE_BYTES as usize), 0)?;
    fs.sync()?;
    let ring = fs.ring(DEPTH)?;
    let mut random = Prng::new(SEED);
    let mut spare: Vec<AlignedBuffer> = (0..DEPTH).map(|_| AlignedBuffer::zeroed(BYTES)).collect();
    let places = FILE_BYTES / BYTES as u64;
    let start = SystemClock.monotonic();
    let (mut begun, mut ended) = (0, 0);
    while ended < COUNT {
        while begun < COUNT && begun - ended < DEPTH as u64 {
            let offset = random.below(places) * BYTES as u64;
            let mut buffer = spare.pop().context("a buffer was lost")?;
            buffer[..8].copy_from_slice(&offset.to_le_bytes());
            let op = match writes {
                true => Op::WriteDirect { offset, buffer, synced: false },
                false => Op::ReadDirect { offset, buffer },
            };
            ensure!(ring.submit(offset, &file, op)?.is_none(), "done at once");
            begun += 1;
        }
        let done = ring.wait().context("an operation was lost")?;
        ensure!(done.result? == BYTES as u64, "a request was short");
        let Value::Direct(buffer) = done.value else { bail!("a buffer was lost") };
        spare.push(buffer);
        ended += 1;
    }
    let nanos = nanos(start);
    let stats = ring.stats();
    ensure!(stats.completed == 0, "{} requests went to workers", stats.completed);
    drop((ring, file));
    root.unlink("file")?;
    drop(root);
    fs.unmount()?;
    Ok(nanos)
}
