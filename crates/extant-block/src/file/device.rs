//! The operations of a device, over a file.

use std::io::{self, ErrorKind, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_sync::check_may_wait;
use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use super::FileDevice;
use crate::device::{BlockDevice, check_range, run_in_place};
use crate::discard;
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::length::check_length;
use crate::lent::Lent;
use crate::operation::{Completion, Operation, Pending};
use crate::queue::{EngineInfo, LastingQueue, Portable, Queue, QueueOptions};
use crate::runs::{ReadRun, WriteRun};
use crate::uring::Uring;

/// Limit of the parts of one vectored write, as set by the system.
const VECTOR_MAX: usize = 1024;

impl FileDevice {
    /// Does a batch of nothing but reads, or nothing but writes, as runs; `None` for others.
    fn run_together(&self, batch: &mut [Operation]) -> Option<Vec<Result<(), DeviceError>>> {
        let kind = batch.first()?.kind();
        let same = |operation: &Operation| {
            operation.kind() == kind && !matches!(operation, Operation::Write { fua: true, .. })
        };
        if batch.len() < 2 || !batch.iter().all(same) || self.rings.at_once(kind) < 2 {
            return None;
        }
        match kind {
            OperationKind::Write => {
                let parts: Vec<_> = batch.iter().filter_map(written).collect();
                let runs = parts.iter().map(|(offset, parts)| WriteRun { offset: *offset, parts });
                Some(self.write_runs(&runs.collect::<Vec<_>>()))
            }
            OperationKind::Read => {
                let mut runs: Vec<_> = batch.iter_mut().filter_map(wanted).collect();
                Some(self.read_runs(&mut runs))
            }
            _ => None,
        }
    }
}

/// Returns where a write goes, and its bytes.
fn written(operation: &Operation) -> Option<(u64, [IoSlice<'_>; 1])> {
    match operation {
        Operation::Write { offset, buffer, .. } => Some((*offset, [IoSlice::new(buffer)])),
        _ => None,
    }
}

/// Returns the run of a read.
fn wanted(operation: &mut Operation) -> Option<ReadRun<'_>> {
    match operation {
        Operation::Read { offset, buffer } => Some(ReadRun { offset: *offset, out: buffer }),
        _ => None,
    }
}

impl BlockDevice for FileDevice {
    /// Does the operations one after the other, unless all of them are plain reads, or all plain
    /// writes, and [`runs_at_once`](BlockDevice::runs_at_once) is more than one.
    fn submit(&self, mut batch: Vec<Operation>) -> Pending {
        check_may_wait("a device");
        let Some(results) = self.run_together(&mut batch) else {
            return run_in_place(self, batch);
        };
        let completion = |(operation, result)| Completion { operation, result };
        Pending::done(batch.into_iter().zip(results).map(completion).collect())
    }

    /// Creates an io_uring queue where the system offers one.
    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        if !options.portable
            && !self.rings.is_portable()
            && let Ok(ring) = Uring::new(self, &self.file, options)
        {
            return Box::new(ring);
        }
        Box::new(Portable::new(move |batch| self.submit(batch), options))
    }

    /// Creates an io_uring queue where the system offers one.
    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        if options.portable || self.rings.is_portable() {
            return None;
        }
        let again = self.unlocked_again().ok()?;
        // Without a lock, copies of the descriptor do no harm.
        let file = again.file.try_clone().ok()?;
        let ring = Uring::lasting(Box::new(again), file, options).ok()?;
        Some(Box::new(ring))
    }

    fn engine(&self) -> EngineInfo {
        self.rings.info(&self.file)
    }

    fn size_bytes(&self) -> u64 {
        self.size()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        check_may_wait("a device");
        if self.is_read_only {
            check_range(self, OperationKind::Allocate, size_bytes, 0)?;
        }
        let failed =
            |error| self.error(OperationKind::Allocate, size_bytes, 0, DeviceFault::Io(error));
        let found = match self.is_block_device {
            true => rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(io::Error::from),
            false => self.file.metadata().map(|metadata| metadata.len()),
        };
        let found = found.map_err(failed)?;
        if found < size_bytes && !self.is_block_device {
            self.file.set_len(size_bytes).map_err(failed)?;
        }
        let reached = if self.is_block_device { found } else { found.max(size_bytes) };
        if reached > self.size() && !self.is_block_device {
            // Before the new end is known: nobody writes there without asking for space.
            self.has_holes.store(true, Ordering::Release);
            self.room.note_hole(0..0);
        }
        self.size_bytes.fetch_max(reached, Ordering::AcqRel);
        check_range(self, OperationKind::Allocate, size_bytes, 0)?;
        Ok(self.size())
    }

    fn can_extend(&self) -> bool {
        !self.is_block_device && !self.is_read_only
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.logical_sector_bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn as_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.file.as_fd(), 0))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, wanted) = (OperationKind::Read, out.len() as u64);
        check_range(self, kind, offset, wanted)?;
        let mut got_bytes = 0;
        while let Some(rest) = out.get_mut(got_bytes..).filter(|rest| !rest.is_empty()) {
            let fault = match self.file.read_at(rest, offset + got_bytes as u64) {
                Ok(0) => DeviceFault::ShortRead { got_bytes: got_bytes as u64 },
                Ok(count) => {
                    got_bytes += count;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => DeviceFault::Io(error),
            };
            return Err(self.error(kind, offset, wanted, fault));
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, len) = (OperationKind::Write, bytes.len() as u64);
        self.check_write(kind, offset, len)?;
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }

    /// Writes with one request (`RWF_DSYNC`), or with a write and a flush where the host file
    /// system does not support that.
    fn write_fua_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, len) = (OperationKind::Write, bytes.len() as u64);
        self.check_write(kind, offset, len)?;
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let (at, parts) = (offset + done as u64, [IoSlice::new(rest)]);
            let stored = retry_on_intr(|| {
                rustix::io::pwritev2(&self.file, &parts, at, ReadWriteFlags::DSYNC)
            });
            let error = match stored {
                Ok(0) => io::Error::from(ErrorKind::WriteZero),
                Ok(stored) => {
                    done += stored;
                    continue;
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_at(at, rest)?;
                    return self.flush();
                }
                Err(errno) => errno.into(),
            };
            return Err(self.error(kind, offset, len, DeviceFault::Io(error)));
        }
        check_length(&self.file, self.size()).map_err(|fault| self.error(kind, offset, len, fault))
    }

    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        if let [one] = parts {
            return self.write_at(offset, one);
        }
        let (kind, len) = (OperationKind::Write, parts.iter().map(|part| part.len() as u64).sum());
        self.check_write(kind, offset, len)?;
        let mut parts = parts;
        let mut at = offset;
        // Number of bytes of the first part that are stored already.
        let mut skip = 0;
        while let Some((first, rest)) = parts.split_first() {
            let whole = skip == 0;
            let now = if whole { &parts[..parts.len().min(VECTOR_MAX)] } else { &[] };
            let stored = match whole {
                true => retry_on_intr(|| rustix::io::pwritev(&self.file, now, at)),
                false => retry_on_intr(|| rustix::io::pwrite(&self.file, &first[skip..], at)),
            };
            let mut stored = stored
                .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error.into())))?;
            if stored == 0 {
                let error = io::Error::from(io::ErrorKind::WriteZero);
                return Err(self.error(kind, offset, len, DeviceFault::Io(error)));
            }
            at += stored as u64;
            if !whole {
                skip += stored;
                if skip == first.len() {
                    (skip, parts) = (0, rest);
                }
                continue;
            }
            while let Some((first, rest)) = parts.split_first()
                && stored >= first.len()
            {
                stored -= first.len();
                parts = rest;
            }
            skip = stored;
        }
        Ok(())
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let kind = OperationKind::Write;
        if runs.len() < 2 || self.rings.at_once(kind) < 2 {
            return runs.iter().map(|run| self.write_vectored_at(run.offset, run.parts)).collect();
        }
        let checks = runs.iter().map(|run| self.check_write(kind, run.offset, run.length()));
        let checks: Vec<_> = checks.collect();
        let good = runs.iter().zip(&checks).filter(|(_, check)| check.is_ok());
        let mut lent: Vec<_> = good.map(|(run, _)| Lent::write(run.offset, run.parts)).collect();
        self.rings.run(&self.file, &mut lent);
        let mut lent = lent.into_iter();
        let result = |(run, check): (&WriteRun<'_>, Result<(), DeviceError>)| {
            check?;
            match lent.next().and_then(Lent::result) {
                Some(done) => {
                    done.map_err(|fault| self.error(kind, run.offset, run.length(), fault))
                }
                None => self.write_vectored_at(run.offset, run.parts),
            }
        };
        runs.iter().zip(checks).map(result).collect()
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let kind = OperationKind::Read;
        if runs.len() < 2 || self.rings.at_once(kind) < 2 {
            return runs.iter_mut().map(|run| self.read_at(run.offset, run.out)).collect();
        }
        let length = |run: &ReadRun<'_>| run.out.len() as u64;
        let checks: Vec<_> =
            runs.iter().map(|run| check_range(self, kind, run.offset, length(run))).collect();
        let good = runs.iter_mut().zip(&checks).filter(|(_, check)| check.is_ok());
        let mut lent: Vec<_> = good.map(|(run, _)| Lent::read(run.offset, run.out)).collect();
        self.rings.run(&self.file, &mut lent);
        let done: Vec<_> = lent.into_iter().map(Lent::result).collect();
        let mut done = done.into_iter();
        let result = |(run, check): (&mut ReadRun<'_>, Result<(), DeviceError>)| {
            check?;
            match done.next().flatten() {
                Some(done) => {
                    done.map_err(|fault| self.error(kind, run.offset, length(run), fault))
                }
                None => self.read_at(run.offset, run.out),
            }
        };
        runs.iter_mut().zip(checks).map(result).collect()
    }

    fn runs_at_once(&self, kind: OperationKind) -> usize {
        self.rings.at_once(kind)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        check_may_wait("a device");
        if self.is_read_only {
            return Ok(());
        }
        let done = self.file.sync_data().map_err(DeviceFault::Io);
        done.and_then(|()| check_length(&self.file, self.size()))
            .map_err(|fault| self.error(OperationKind::Flush, 0, 0, fault))
    }

    /// Punches a hole into a file, or discards the whole sectors of the range on a block device.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::Discard;
        check_range(self, kind, offset, len)?;
        let (start, end) = self.whole_sectors(offset, len);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.has_holes.store(true, Ordering::Relaxed);
        let done = match self.is_block_device {
            // A hole in a block device would read as zeros, which is more than was asked for and
            // than many devices support.
            true if start < end && self.discards => {
                discard::discard(&self.file, start, end - start)
            }
            true => Ok(self.discards),
            false => self.room.while_given(start..end, || self.fallocate(mode, start, end - start)),
        };
        let fault = match done {
            Ok(true) => return Ok(()),
            Ok(false) => DeviceFault::Unsupported,
            Err(error) => DeviceFault::Io(error),
        };
        Err(self.error(kind, offset, len, fault))
    }

    /// Punches a hole into a regular file, or uses the zeroing command of a block device; writes
    /// explicit zeros where neither works and for the parts of sectors at the ends.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::WriteZeroes;
        self.check_write(kind, offset, len)?;
        let mode = if self.is_block_device {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        };
        let (start, end) = self.whole_sectors(offset, len);
        self.has_holes.store(true, Ordering::Relaxed);
        let zero = || -> io::Result<()> {
            if start < end && self.fallocate(mode, start, end - start)? {
                self.write_explicit_zeros(offset, start - offset)?;
                self.write_explicit_zeros(end, offset + len - end)
            } else {
                self.write_explicit_zeros(offset, len)
            }
        };
        let zeroed = self.room.while_given(offset..offset + len, zero);
        zeroed.map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }

    /// Fills holes of a regular file, where the host file system tells where they are. Files that
    /// share blocks with others, or are compressed, may still need space for a write. The system is
    /// asked once for each part between two holes, and again after space was released.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::Allocate;
        self.check_write(kind, offset, len)?;
        if self.is_block_device || !self.has_holes.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.fill_holes(offset..offset + len)
            .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }
}

#[cfg(test)]
mod tests {
    use crate::buffer::AlignedBuffer;
    use crate::queue::DeviceEngine;

    use super::*;

    #[test]
    fn a_batch_with_something_that_is_to_be_durable_does_not_go_out_as_plain_writes() {
        let dir = tempfile::tempdir().unwrap();
        let device = FileDevice::create_new(dir.path().join("image"), 1 << 20).unwrap();
        let Ok(device) = device.with_engine(DeviceEngine::IoUring) else {
            println!("skipped: no io_uring");
            return;
        };
        let write = |offset, fua| {
            let buffer = AlignedBuffer::copy_of(&[7; 4096]);
            Operation::Write { offset, buffer, fua }
        };
        assert!(device.run_together(&mut [write(0, false), write(8192, false)]).is_some());
        for fua in [[true, false], [false, true], [true, true]] {
            let mut batch = [write(0, fua[0]), write(8192, fua[1])];
            assert!(device.run_together(&mut batch).is_none(), "{fua:?}");
        }
        assert!(device.run_together(&mut [write(0, false), Operation::Flush]).is_none());
    }
}
