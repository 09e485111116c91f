//! The trait every back-end implements.

use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::buffer::AlignedBuffer;
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::operation::{Completion, Operation, Pending};
use crate::queue::{Engine, EngineInfo, LastingQueue, Portable, Queue, QueueOptions};
use crate::runs::{ReadRun, WriteRun};

/// A device that several owners use from several threads.
pub type SharedDevice = Arc<dyn BlockDevice>;

/// A run of bytes that can be read and, unless read-only, written at any offset.
///
/// # Order and durability
///
/// The operations of one batch, and batches in flight together, happen in any order: an earlier
/// write is ordered before a later one only if its completion was received before the later one was
/// submitted. A write is on stable storage after a flush that was submitted after the write
/// completed, or at its own completion if it had the FUA flag. `docs/crash-model.md` defines the
/// possible contents after a power failure.
///
/// # Limits
///
/// Operations of 0 bytes succeed and do nothing if `offset <= size_bytes()`. A range that ends past
/// the device fails as a whole with [`DeviceFault::PastEnd`].
pub trait BlockDevice: Send + Sync {
    /// Starts a batch of operations. Never fails as a whole; each operation has its own result.
    fn submit(&self, batch: Vec<Operation>) -> Pending;

    /// Creates a queue for one thread, on which many operations are under way at once and complete
    /// in any order. The device chooses its best engine; [`Queue::engine`] tells which.
    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        Box::new(Portable::new(move |batch| self.submit(batch), options))
    }

    /// Creates a queue that may be used by any thread, one at a time, and kept for longer than the
    /// device is borrowed. `None` where the device has no engine that works while no thread waits.
    /// A lock that the device holds on its file ends with the device and not with the queue, so a
    /// queue is kept no longer than the device.
    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        let _ = options;
        None
    }

    /// Returns the engine that moves bytes for batches and runs, and why not a better one. To find out
    /// may cost a system call.
    fn engine(&self) -> EngineInfo {
        EngineInfo { engine: Engine::Portable, refused: None }
    }

    /// Returns the size in bytes: a whole number of sectors for a disk, but any number for a
    /// regular file. While the device is open it changes by [`extend`](Self::extend) only, and
    /// never becomes less.
    fn size_bytes(&self) -> u64;

    /// Makes the device at least `size_bytes` long, and returns its size. A regular file is made
    /// longer, by a hole. Files and disks are measured again first, because they may have become
    /// larger since they were opened; with 0, that is all.
    ///
    /// # Errors
    ///
    /// [`DeviceFault::ReadOnly`]; [`DeviceFault::PastEnd`] with the size that the device has, when
    /// that is less than wanted and cannot be changed; the system's error.
    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        check_range(self, OperationKind::Allocate, size_bytes, 0)?;
        Ok(self.size_bytes())
    }

    /// Returns whether [`extend`](Self::extend) can make the device longer: true for regular files
    /// and memory.
    fn can_extend(&self) -> bool {
        false
    }

    /// Returns the smallest unit, in bytes, that the device writes without reading first: 512 or
    /// 4096 for disks. A power of two. `docs/crash-model.md` tells what a power failure can tear.
    fn logical_sector_bytes(&self) -> u32 {
        512
    }

    /// Returns true if every operation but reads and flushes fails with [`DeviceFault::ReadOnly`].
    fn is_read_only(&self) -> bool;

    /// Returns the name of the device for messages, such as its path.
    fn describe(&self) -> Arc<str>;

    /// Returns whether the device lies over another, which no operation on this one changes: what is written goes
    /// elsewhere, as it does to an image over another. A window of such a device may say that it does not.
    fn is_overlay(&self) -> bool {
        false
    }

    /// Returns the file descriptor behind the device and the offset of the device's first byte in
    /// it, for callers that let the system copy bytes between files; `None` without one. The
    /// descriptor gives the same bytes as [`read_at`](Self::read_at).
    fn as_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        None
    }

    /// Fills `out` from byte `offset`, as a whole or with an error. Waits for the device.
    ///
    /// # Errors
    ///
    /// [`DeviceFault::PastEnd`] when the range ends past the device; otherwise the device's error.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let buffer = AlignedBuffer::zeroed(out.len());
        let done = run_one(self, Operation::Read { offset, buffer })?;
        out.copy_from_slice(&done);
        Ok(())
    }

    /// Stores `bytes` at byte `offset`, waiting for the device to accept them. Not durable before
    /// [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// [`DeviceFault::ReadOnly`], [`DeviceFault::PastEnd`], or the device's error.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = AlignedBuffer::copy_of(bytes);
        run_one(self, Operation::Write { offset, buffer, fua: false }).map(drop)
    }

    /// Stores `bytes` at byte `offset` and waits until they are on stable storage ("force unit
    /// access"). Other writes do not become durable.
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at), and those of a flush; the bytes may be stored then.
    fn write_fua_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let buffer = AlignedBuffer::copy_of(bytes);
        run_one(self, Operation::Write { offset, buffer, fua: true }).map(drop)
    }

    /// Stores the bytes of `parts` one after the other from byte `offset` on, waiting for the
    /// device to accept them: as one request if the back-end can, else as one for each part. Not
    /// durable before [`flush`](Self::flush).
    ///
    /// # Errors
    ///
    /// As [`write_at`](Self::write_at); some of the parts may be stored then.
    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        let mut at = offset;
        for part in parts {
            self.write_at(at, part)?;
            at = at.saturating_add(part.len() as u64);
        }
        Ok(())
    }

    /// Stores several runs that do not overlap, in any order, and waits until the device has let go
    /// of all their memory. Returns the result of each run. Not durable before
    /// [`flush`](Self::flush).
    ///
    /// How many are under way at once is the device's choice ([`runs_at_once`](Self::runs_at_once)).
    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        runs.iter().map(|run| self.write_vectored_at(run.offset, run.parts)).collect()
    }

    /// Fills several runs, in any order, and waits for all of them. Returns the result of each run.
    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        runs.iter_mut().map(|run| self.read_at(run.offset, run.out)).collect()
    }

    /// Returns how many runs of one call are under way at once: of
    /// [`read_runs`](Self::read_runs) for [`OperationKind::Read`], else of
    /// [`write_runs`](Self::write_runs). 1 where one call after the other is as good, so that the
    /// caller need not collect.
    fn runs_at_once(&self, kind: OperationKind) -> usize {
        let _ = kind;
        1
    }

    /// Returns how many bytes a device that is far away keeps of what [`bring_near`](Self::bring_near) fetched, until
    /// they are read; 0 where bringing bytes near is of no use, as for files of this host.
    fn near_bytes(&self) -> u64 {
        0
    }

    /// Fetches `ranges`, in bytes, in as few requests as the device can make of them and several at a time, so that
    /// reads that follow need not wait for a server each. Returns when they are here, or will not be: what goes wrong
    /// is left to the reads. What lies behind the end of the device, and what is more than
    /// [`near_bytes`](Self::near_bytes) together, may be left out.
    fn bring_near(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }

    /// Makes every completed write durable. Succeeds on a read-only device, which has none.
    fn flush(&self) -> Result<(), DeviceError> {
        run_one(self, Operation::Flush).map(drop)
    }

    /// Tells the device that `len` bytes at `offset` are no longer needed; they read as the old
    /// bytes or as zeros afterwards.
    ///
    /// # Errors
    ///
    /// [`DeviceFault::Unsupported`] if the device has no such operation; most callers ignore that
    /// error ([`DeviceError::is_unsupported`]).
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        run_one(self, Operation::Discard { offset, len }).map(drop)
    }

    /// Makes `len` bytes at `offset` read as zeros, waiting for it.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        run_one(self, Operation::WriteZeroes { offset, len }).map(drop)
    }

    /// Makes sure that later writes of `len` bytes at `offset` do not fail for want of space on the
    /// file system that holds the image: its holes are allocated, and no byte changes. No other
    /// thread may write the range meanwhile, and a later discard or write of zeros of the range may
    /// release the space again.
    ///
    /// Does nothing on devices whose space is always allocated or unknown.
    ///
    /// # Errors
    ///
    /// [`DeviceFault::ReadOnly`], [`DeviceFault::PastEnd`], or the device's error:
    /// [`DeviceError::is_full`] when there is no space.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(self, OperationKind::Allocate, offset, len)
    }
}

/// Submits one operation, waits, and returns its buffer.
fn run_one<D: BlockDevice + ?Sized>(
    device: &D,
    operation: Operation,
) -> Result<AlignedBuffer, DeviceError> {
    let mut completions = device.submit(vec![operation]).wait();
    // A back-end that loses an operation breaks the trait's contract: a bug of extant, not of the
    // device.
    completions.pop().expect("one completion per operation").into_buffer()
}

/// Does the checks that come first in every back-end: the range lies on the device, and a read-only
/// device is not changed. `offset` and `len` are in bytes.
///
/// # Errors
///
/// [`DeviceFault::PastEnd`], [`DeviceFault::ReadOnly`].
pub fn check_range<D: BlockDevice + ?Sized>(
    device: &D,
    kind: OperationKind,
    offset: u64,
    len: u64,
) -> Result<(), DeviceError> {
    let fail = |fault| DeviceError::new(device.describe(), kind, offset, len, fault);
    let changes = !matches!(kind, OperationKind::Read | OperationKind::Flush);
    if changes && device.is_read_only() {
        return Err(fail(DeviceFault::ReadOnly));
    }
    let device_bytes = device.size_bytes();
    match offset.checked_add(len) {
        Some(end) if end <= device_bytes => Ok(()),
        _ => Err(fail(DeviceFault::PastEnd { device_bytes })),
    }
}

/// Runs the operations of a batch one by one through the convenience calls; for back-ends without a
/// queue.
///
/// A FUA write becomes a write and a flush, which promises more than was asked.
pub fn run_in_place<D: BlockDevice + ?Sized>(device: &D, batch: Vec<Operation>) -> Pending {
    let run = |mut operation: Operation| {
        let result = match &mut operation {
            Operation::Read { offset, buffer } => device.read_at(*offset, buffer),
            Operation::Write { offset, buffer, fua } => {
                let written = device.write_at(*offset, buffer);
                if *fua { written.and_then(|()| device.flush()) } else { written }
            }
            Operation::Flush => device.flush(),
            Operation::Discard { offset, len } => device.discard(*offset, *len),
            Operation::WriteZeroes { offset, len } => device.write_zeroes(*offset, *len),
        };
        Completion { operation, result }
    };
    Pending::done(batch.into_iter().map(run).collect())
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<D: BlockDevice + ?Sized> BlockDevice for $pointer {
            fn submit(&self, batch: Vec<Operation>) -> Pending {
                (**self).submit(batch)
            }
            fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
                (**self).queue(options)
            }
            fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
                (**self).lasting_queue(options)
            }
            fn engine(&self) -> EngineInfo {
                (**self).engine()
            }
            fn size_bytes(&self) -> u64 {
                (**self).size_bytes()
            }
            fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
                (**self).extend(size_bytes)
            }
            fn can_extend(&self) -> bool {
                (**self).can_extend()
            }
            fn logical_sector_bytes(&self) -> u32 {
                (**self).logical_sector_bytes()
            }
            fn is_read_only(&self) -> bool {
                (**self).is_read_only()
            }
            fn describe(&self) -> Arc<str> {
                (**self).describe()
            }
            fn is_overlay(&self) -> bool {
                (**self).is_overlay()
            }
            fn as_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
                (**self).as_file()
            }
            fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
                (**self).read_at(offset, out)
            }
            fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
                (**self).write_at(offset, bytes)
            }
            fn write_fua_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
                (**self).write_fua_at(offset, bytes)
            }
            fn write_vectored_at(
                &self,
                offset: u64,
                parts: &[IoSlice<'_>],
            ) -> Result<(), DeviceError> {
                (**self).write_vectored_at(offset, parts)
            }
            fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
                (**self).write_runs(runs)
            }
            fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
                (**self).read_runs(runs)
            }
            fn runs_at_once(&self, kind: OperationKind) -> usize {
                (**self).runs_at_once(kind)
            }
            fn near_bytes(&self) -> u64 {
                (**self).near_bytes()
            }
            fn bring_near(&self, ranges: &[Range<u64>]) {
                (**self).bring_near(ranges);
            }
            fn flush(&self) -> Result<(), DeviceError> {
                (**self).flush()
            }
            fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
                (**self).discard(offset, len)
            }
            fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
                (**self).write_zeroes(offset, len)
            }
            fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
                (**self).allocate(offset, len)
            }
        }
    )*};
}

forward!(&D, Box<D>, Arc<D>);
