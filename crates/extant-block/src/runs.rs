//! Several runs of bytes from and to memory that the caller lends for one call.
//!
//! Owned buffers ([`Operation`]) suit whoever has none yet. A page cache has its bytes in place and
//! must not copy them, so it lends them: the call returns when the device has let go of all of them.

use std::fmt;
use std::io::IoSlice;

use crate::buffer::AlignedBuffer;
use crate::device::BlockDevice;
use crate::error::DeviceError;
use crate::operation::Operation;

/// Bytes to be stored in one contiguous range of a device, gathered from several places.
#[derive(Clone, Copy)]
pub struct WriteRun<'a> {
    /// Offset of the first byte on the device.
    pub offset: u64,
    /// The bytes, one part after the other.
    pub parts: &'a [IoSlice<'a>],
}

impl WriteRun<'_> {
    /// Returns the length of the run in bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

impl fmt::Debug for WriteRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteRun({} bytes at {})", self.length(), self.offset)
    }
}

/// Memory to be filled from one contiguous range of a device.
pub struct ReadRun<'a> {
    /// Offset of the first byte on the device.
    pub offset: u64,
    /// The memory; undefined contents after an error.
    pub out: &'a mut [u8],
}

impl fmt::Debug for ReadRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRun({} bytes at {})", self.out.len(), self.offset)
    }
}

/// Stores runs as one batch of the device, from copies: for back-ends whose batches are under way
/// together and for which a copy is cheap beside the rest, and for devices that test what batches do.
pub fn write_runs_as_batch<D: BlockDevice + ?Sized>(
    device: &D,
    runs: &[WriteRun<'_>],
) -> Vec<Result<(), DeviceError>> {
    let operation = |run: &WriteRun<'_>| {
        let mut buffer = AlignedBuffer::zeroed(usize::try_from(run.length()).unwrap_or(usize::MAX));
        let mut rest: &mut [u8] = &mut buffer;
        for part in run.parts {
            let (now, later) = std::mem::take(&mut rest).split_at_mut(part.len());
            now.copy_from_slice(part);
            rest = later;
        }
        Operation::Write { offset: run.offset, buffer, fua: false }
    };
    let done = device.submit(runs.iter().map(operation).collect()).wait();
    done.into_iter().map(|completion| completion.result).collect()
}

/// Fills runs by one batch of the device, over buffers of its own, like [`write_runs_as_batch`].
pub fn read_runs_as_batch<D: BlockDevice + ?Sized>(
    device: &D,
    runs: &mut [ReadRun<'_>],
) -> Vec<Result<(), DeviceError>> {
    let operation = |run: &ReadRun<'_>| Operation::Read {
        offset: run.offset,
        buffer: AlignedBuffer::zeroed(run.out.len()),
    };
    let done = device.submit(runs.iter().map(operation).collect()).wait();
    let take = |(completion, run): (crate::Completion, &mut ReadRun<'_>)| {
        run.out.copy_from_slice(&completion.into_buffer()?);
        Ok(())
    };
    done.into_iter().zip(runs).map(take).collect()
}
