//! Runs as batches of owned operations, for devices whose batches are under way together.

use crate::buffer::AlignedBuffer;
use crate::device::BlockDevice;
use crate::error::DeviceError;
use crate::operation::{Completion, Operation};
use crate::runs::{ReadRun, WriteRun};

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
    let take = |(completion, run): (Completion, &mut ReadRun<'_>)| {
        run.out.copy_from_slice(&completion.into_buffer()?);
        Ok(())
    };
    done.into_iter().zip(runs).map(take).collect()
}
