//! A byte range of another device, as a device.

use std::collections::VecDeque;
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::device::{BlockDevice, check_range};
use crate::error::{DeviceError, OperationKind};
use crate::operation::{Completion, Operation, Pending};
use crate::queue::{Engine, EngineInfo, Finished, Queue, QueueOptions, Wait};
use crate::runs::{ReadRun, WriteRun};

/// Error of a window that does not lie on its device.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{device} has {device_bytes} bytes; {len} bytes at byte {offset} do not lie inside")]
pub struct WindowError {
    /// Name of the device.
    pub device: Arc<str>,
    /// Its size in bytes.
    pub device_bytes: u64,
    /// Start of the window, in bytes.
    pub offset: u64,
    /// Length of the window, in bytes.
    pub len: u64,
}

/// `len` bytes of another device from `offset` on: a partition, or an image inside a larger file.
///
/// Byte 0 of the window is byte `offset` of the device below. A range that ends past the window
/// is refused here and names the window; an error of the device below names that device and its
/// own offsets.
pub struct WindowDevice<D> {
    inner: D,
    name: Arc<str>,
    offset: u64,
    len: u64,
}

impl<D: BlockDevice> WindowDevice<D> {
    /// Creates a window on the `len` bytes of `inner` from `offset` on.
    ///
    /// # Errors
    ///
    /// [`WindowError`] unless `offset + len <= inner.size_bytes()`.
    pub fn new(inner: D, offset: u64, len: u64) -> Result<WindowDevice<D>, WindowError> {
        let name = format!("{} from byte {offset}", inner.describe());
        WindowDevice::named(inner, offset, len, &name)
    }

    /// Creates a window from `offset` to the end of `inner`.
    ///
    /// # Errors
    ///
    /// [`WindowError`] if `offset` is past the end.
    pub fn from_offset(inner: D, offset: u64) -> Result<WindowDevice<D>, WindowError> {
        let len = inner.size_bytes().saturating_sub(offset);
        WindowDevice::new(inner, offset, len)
    }

    /// Creates a window like [`new`](Self::new), with a name for messages.
    ///
    /// # Errors
    ///
    /// [`WindowError`] unless `offset + len <= inner.size_bytes()`.
    pub fn named(
        inner: D,
        offset: u64,
        len: u64,
        name: &str,
    ) -> Result<WindowDevice<D>, WindowError> {
        let device_bytes = inner.size_bytes();
        match offset.checked_add(len) {
            Some(end) if end <= device_bytes => {
                Ok(WindowDevice { inner, name: name.into(), offset, len })
            }
            _ => Err(WindowError { device: inner.describe(), device_bytes, offset, len }),
        }
    }

    /// Returns the start of the window on the device below, in bytes.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the device below.
    pub fn inner(&self) -> &D {
        &self.inner
    }

    /// Checks a range, so that adding `self.offset` to its start cannot overflow afterwards.
    fn check(&self, kind: OperationKind, offset: u64, len: u64) -> Result<u64, DeviceError> {
        check_range(self, kind, offset, len)?;
        Ok(self.offset + offset)
    }
}

/// Returns an operation with another offset.
fn moved(operation: Operation, by: impl Fn(u64) -> u64) -> Operation {
    match operation {
        Operation::Read { offset, buffer } => Operation::Read { offset: by(offset), buffer },
        Operation::Write { offset, buffer, fua } => {
            Operation::Write { offset: by(offset), buffer, fua }
        }
        Operation::Flush => Operation::Flush,
        Operation::Discard { offset, len } => Operation::Discard { offset: by(offset), len },
        Operation::WriteZeroes { offset, len } => {
            Operation::WriteZeroes { offset: by(offset), len }
        }
    }
}

impl<D: BlockDevice> BlockDevice for WindowDevice<D> {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        // Operations outside the window stay here; `slots` remembers the place of each completion.
        let mut inside = Vec::with_capacity(batch.len());
        let mut slots = Vec::with_capacity(batch.len());
        for operation in batch {
            let check = match operation.kind() {
                OperationKind::Flush => Ok(0),
                kind => self.check(kind, operation.offset(), operation.length()),
            };
            match check {
                Ok(_) => {
                    inside.push(moved(operation, |at| at + self.offset));
                    slots.push(None);
                }
                Err(error) => slots.push(Some(Completion { operation, result: Err(error) })),
            }
        }
        let start = self.offset;
        self.inner.submit(inside).map(move |completions| {
            let mut done = completions.into_iter().map(|completion| Completion {
                operation: moved(completion.operation, |at| at - start),
                result: completion.result,
            });
            // A missing completion would be the inner device's bug; the caller then sees fewer
            // completions than operations, as from the inner device itself.
            slots.into_iter().filter_map(|slot| slot.or_else(|| done.next())).collect()
        })
    }

    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        let inner = self.inner.queue(options);
        Box::new(WindowQueue {
            window: self,
            inner,
            missed: VecDeque::new(),
            failed: VecDeque::new(),
        })
    }

    fn engine(&self) -> EngineInfo {
        self.inner.engine()
    }

    fn size_bytes(&self) -> u64 {
        self.len
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.inner.logical_sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn as_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        let (file, start) = self.inner.as_file()?;
        Some((file, start.checked_add(self.offset)?))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::Read, offset, out.len() as u64)?;
        self.inner.read_at(at, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::Write, offset, bytes.len() as u64)?;
        self.inner.write_at(at, bytes)
    }

    fn write_fua_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::Write, offset, bytes.len() as u64)?;
        self.inner.write_fua_at(at, bytes)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        let len = parts.iter().map(|part| part.len() as u64).sum();
        let at = self.check(OperationKind::Write, offset, len)?;
        self.inner.write_vectored_at(at, parts)
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        let checks: Vec<_> = runs
            .iter()
            .map(|run| self.check(OperationKind::Write, run.offset, run.length()))
            .collect();
        let inside: Vec<_> = runs
            .iter()
            .zip(&checks)
            .filter_map(|(run, at)| Some(WriteRun { offset: *at.as_ref().ok()?, ..*run }))
            .collect();
        let mut done = self.inner.write_runs(&inside).into_iter();
        // A missing result would be the inner device's bug, as in `submit`.
        checks
            .into_iter()
            .filter_map(|at| at.map_or_else(|e| Some(Err(e)), |_| done.next()))
            .collect()
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        let checks: Vec<_> = runs
            .iter()
            .map(|run| self.check(OperationKind::Read, run.offset, run.out.len() as u64))
            .collect();
        let mut inside: Vec<_> = runs
            .iter_mut()
            .zip(&checks)
            .filter_map(|(run, at)| Some(ReadRun { offset: *at.as_ref().ok()?, out: run.out }))
            .collect();
        let mut done = self.inner.read_runs(&mut inside).into_iter();
        checks
            .into_iter()
            .filter_map(|at| at.map_or_else(|e| Some(Err(e)), |_| done.next()))
            .collect()
    }

    fn runs_at_once(&self, kind: OperationKind) -> usize {
        self.inner.runs_at_once(kind)
    }

    fn near_bytes(&self) -> u64 {
        self.inner.near_bytes()
    }

    fn bring_near(&self, ranges: &[Range<u64>]) {
        let inside = ranges.iter().map(|range| range.start.min(self.len)..range.end.min(self.len));
        let moved: Vec<Range<u64>> =
            inside.map(|range| self.offset + range.start..self.offset + range.end).collect();
        self.inner.bring_near(&moved);
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::Discard, offset, len)?;
        self.inner.discard(at, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::WriteZeroes, offset, len)?;
        self.inner.write_zeroes(at, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        let at = self.check(OperationKind::Allocate, offset, len)?;
        self.inner.allocate(at, len)
    }
}

/// The queue of a window over the queue of the device below.
struct WindowQueue<'d, D> {
    window: &'d WindowDevice<D>,
    inner: Box<dyn Queue + 'd>,
    /// Submitted and pushed operations outside of the window.
    missed: VecDeque<Finished>,
    failed: VecDeque<Finished>,
}

impl<D> WindowQueue<'_, D> {
    /// What the device below has finished, at its place in the window.
    fn of_window(&self, Finished { tag, completion }: Finished) -> Finished {
        let Completion { operation, result } = completion;
        let operation = moved(operation, |at| at - self.window.offset);
        Finished { tag, completion: Completion { operation, result } }
    }
}

impl<D: BlockDevice> Queue for WindowQueue<'_, D> {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len() >= self.depth() {
            return Err(operation);
        }
        let (kind, start) = (operation.kind(), self.window.offset);
        let check = match kind {
            OperationKind::Flush => Ok(0),
            kind => self.window.check(kind, operation.offset(), operation.length()),
        };
        match check {
            Ok(_) => self
                .inner
                .push(tag, moved(operation, |at| at + start))
                .map_err(|operation| moved(operation, |at| at - start)),
            Err(error) => {
                let completion = Completion { operation, result: Err(error) };
                self.missed.push_back(Finished { tag, completion });
                Ok(())
            }
        }
    }

    fn submit(&mut self) {
        self.failed.append(&mut self.missed);
        self.inner.submit();
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        if let Some(failed) = self.failed.pop_front() {
            return Some(failed);
        }
        self.inner.reap(wait).map(|finished| self.of_window(finished))
    }

    fn advance(&mut self) -> Option<Finished> {
        self.failed.append(&mut self.missed);
        match self.failed.pop_front() {
            Some(failed) => {
                self.inner.submit();
                Some(failed)
            }
            None => self.inner.advance().map(|finished| self.of_window(finished)),
        }
    }

    fn len(&self) -> usize {
        self.inner.len() + self.missed.len() + self.failed.len()
    }

    fn depth(&self) -> usize {
        self.inner.depth()
    }

    fn engine(&self) -> Engine {
        self.inner.engine()
    }
}

impl<D> fmt::Debug for WindowDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WindowDevice({}, {} bytes)", self.name, self.len)
    }
}
