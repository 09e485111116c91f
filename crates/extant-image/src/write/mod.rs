//! Writes a planned image: many readers, large contiguous writes, every block once.
//!
//! # Place
//!
//! [`crate::plan`] has decided where everything goes. This module only fills buffers and writes
//! them; it reads nothing back and keeps no more than one buffer per worker, whatever the image's
//! size. Hash trees of sealed files are the exception: their contents are read back once.
//!
//! # Invariants
//!
//! - W1. The jobs touch disjoint blocks, so the image does not depend on the number of workers.
//! - W2. The superblock is written last, after everything else is durable: what an interrupted run
//!   leaves on a disk is not taken for a file system.
//! - W3. On a target that does not read as zeros, every block that must be zero is made so.

mod chunk;
mod copying;
mod error;
mod groups;
mod image;
mod inodes;
mod job;
mod own;
mod seal;
mod supers;

pub use error::WriteError;

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use extant_block::BlockDevice;
use extant_sync::threads;

use crate::plan::Plan;
use crate::source::Contents;
use crate::tree::Tree;
use chunk::Worker;
use image::Image;
use job::jobs;

/// How to write.
pub struct WriteOptions<'a> {
    /// Workers; 0 counts as 1. More than the machine's cores helps only when the source waits for
    /// a disk.
    pub threads: usize,
    /// Every byte of the target reads as zero: a fresh sparse file.
    pub target_is_zeroed: bool,
    /// Told as bytes are written.
    pub progress: &'a dyn Progress,
    /// Set by anyone to stop early.
    pub cancel: &'a AtomicBool,
}

/// Learns how far the writing is.
pub trait Progress: Sync {
    /// Reports that `bytes` more of the plan's [`write_bytes`] were written.
    fn add(&self, bytes: u64);

    /// Reports the approximate total of bytes: called once by [`Build`](crate::Build), before the
    /// first write. Holes that are found while reading reduce it.
    fn expect(&self, _bytes: u64) {}
}

/// An observer that ignores progress.
pub struct NoProgress;

impl Progress for NoProgress {
    fn add(&self, _bytes: u64) {}
}

/// Summary of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteReport {
    /// Bytes handed to the device.
    pub bytes_written: u64,
    /// Write calls.
    pub writes: u64,
}

/// Bytes that [`Progress`] will hear of, roughly: contents and metadata that are written out.
pub fn write_bytes(plan: &Plan) -> u64 {
    let pieces = plan.layout.pieces.list().iter();
    let blocks: u64 = pieces
        .filter(|p| p.object != crate::plan::Object::Own(crate::plan::Own::Journal))
        .map(|p| u64::from(p.len))
        .sum();
    blocks * u64::from(plan.layout.geometry.block_size.bytes())
}

/// Writes the image of `plan`, made from `tree`, to `device`, and makes it durable.
///
/// # Errors
///
/// [`WriteError`]. The device then holds no file system, but what was there may be gone.
pub fn write_image(
    plan: &Plan,
    tree: &Tree,
    contents: &dyn Contents,
    device: &dyn BlockDevice,
    options: &WriteOptions<'_>,
) -> Result<WriteReport, WriteError> {
    let WriteOptions { threads, progress, cancel, .. } = *options;
    let target_is_zeroed = options.target_is_zeroed || plan.options.assume_zeroed;
    if plan.options.discard && !options.target_is_zeroed {
        match device.discard(0, plan.image_bytes().min(device.size_bytes())) {
            // A discarded range has undefined contents: it must not be taken for zeros.
            Err(error) if !error.is_unsupported() => return Err(error.into()),
            _ => {}
        }
    }
    let options = &WriteOptions { threads, target_is_zeroed, progress, cancel };
    let image = Image::new(plan, tree, device, options)?;
    if !options.target_is_zeroed {
        image.wipe_old_superblocks()?;
    }
    let jobs = jobs(plan, tree);
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let bytes = AtomicU64::new(0);
    let writes = AtomicU64::new(0);
    let work = |_: usize| -> Result<(), WriteError> {
        let mut worker = Worker::new(&image, contents.reader());
        let result = (|| {
            loop {
                if options.cancel.load(Ordering::Relaxed) {
                    return Err(WriteError::Interrupted);
                }
                let job = jobs.get(next.fetch_add(1, Ordering::Relaxed));
                let Some(job) = job.filter(|_| !failed.load(Ordering::Relaxed)) else {
                    return worker.finish();
                };
                worker.run(job)?;
            }
        })();
        // The others stop at their next job; the first error is the one to report.
        failed.fetch_or(result.is_err(), Ordering::Relaxed);
        bytes.fetch_add(worker.written.bytes, Ordering::Relaxed);
        writes.fetch_add(worker.written.calls, Ordering::Relaxed);
        result
    };
    let count = options.threads.max(1).min(jobs.len().max(1));
    threads::workers("extant-write", count, work)?.into_iter().collect::<Result<(), _>>()?;

    let sealed = seal::seal_files(&image, options.threads)?;
    bytes.fetch_add(sealed.bytes, Ordering::Relaxed);
    writes.fetch_add(sealed.calls, Ordering::Relaxed);
    device.flush()?;
    let supers = image.write_superblocks(bytes.load(Ordering::Relaxed))?;
    device.flush()?;
    Ok(WriteReport {
        bytes_written: bytes.load(Ordering::Relaxed) + supers.bytes,
        writes: writes.load(Ordering::Relaxed) + supers.calls,
    })
}

/// Bytes and calls of a worker.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Written {
    pub(super) bytes: u64,
    pub(super) calls: u64,
}
