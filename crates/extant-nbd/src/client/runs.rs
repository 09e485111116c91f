//! Several reads or writes of one caller, under way together.
//!
//! What a server acknowledged is kept until it is flushed. So the bytes of a write are copied once, from the caller's
//! memory, and that copy is the one that is kept.

use std::io::{self, IoSlice};

use extant_block::{
    AlignedBuffer, BlockDevice, DeviceError, Operation, OperationKind, ReadRun, WriteRun,
    check_range,
};
use extant_sync::check_may_wait;

use super::{NbdDevice, UNFLUSHED_MAX};
use crate::pipe::read_of;
use crate::unflushed::Buffers;

/// Bytes of the runs that are under way together, except that one run may be longer.
const TOGETHER: u64 = 8 << 20;

impl NbdDevice {
    /// Returns whether a request of `len` bytes at `offset` is one that the server takes as it is.
    fn is_plain(&self, kind: OperationKind, offset: u64, len: u64) -> bool {
        (1..=self.longest()).contains(&len) && check_range(self, kind, offset, len).is_ok()
    }

    /// Stores parts from `offset` on.
    pub(super) fn write_parts(
        &self,
        offset: u64,
        parts: &[IoSlice<'_>],
    ) -> Result<(), DeviceError> {
        self.write_together(&[WriteRun { offset, parts }]).into_iter().collect()
    }

    /// Stores runs, all of them under way at once. What is too long for one request, or cannot be, goes its own way.
    fn write_together(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let len: u64 = runs.iter().map(WriteRun::length).sum();
        let is_plain =
            |run: &WriteRun<'_>| self.is_plain(OperationKind::Write, run.offset, run.length());
        if !runs.iter().all(is_plain) {
            let alone = |run: &WriteRun<'_>| {
                let buffer = self.copy_of(run);
                self.one(Operation::Write { offset: run.offset, buffer, fua: false }).result
            };
            return runs.iter().map(alone).collect();
        }
        let failed = |error: io::Error| {
            let error = |run: &WriteRun<'_>| {
                let error = io::Error::new(error.kind(), error.to_string());
                Err(self.failed(OperationKind::Write, run.offset, run.length(), error))
            };
            runs.iter().map(error).collect()
        };
        if let Err(error) = self.check_lingering() {
            return failed(error);
        }
        if self.unflushed_bytes() + len > UNFLUSHED_MAX
            && let Err(error) = self.flush()
        {
            // With its kind: a full disk is told from one that fails.
            return failed(error.into());
        }
        let operation = |run: &WriteRun<'_>| Operation::Write {
            offset: run.offset,
            buffer: self.copy_of(run),
            fua: false,
        };
        let done = self.run(runs.iter().map(operation).collect(), Buffers::Left);
        let results = done.into_iter().zip(runs).map(|((_, result), run)| {
            result
                .map_err(|error| self.failed(OperationKind::Write, run.offset, run.length(), error))
        });
        results.collect()
    }

    /// The bytes of a run, in memory that a flush has given back if there is any.
    fn copy_of(&self, run: &WriteRun<'_>) -> AlignedBuffer {
        let len = run.length() as usize;
        let spare = self.unflushed.lock().spare(len);
        let mut buffer = spare.unwrap_or_else(|| AlignedBuffer::zeroed(len));
        let mut at = 0;
        for part in run.parts {
            if let Some(to) = buffer.get_mut(at..at + part.len()) {
                to.copy_from_slice(part);
            }
            at += part.len();
        }
        buffer
    }

    /// Stores all of `runs`; the result of each.
    pub(super) fn write_all(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        let mut results = Vec::with_capacity(runs.len());
        let mut rest = runs;
        while !rest.is_empty() {
            let (now, later) = rest.split_at(first_of(rest.iter().map(WriteRun::length)));
            results.extend(self.write_together(now));
            rest = later;
        }
        results
    }

    /// Fills all of `runs`; the result of each.
    pub(super) fn read_all(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let mut results = Vec::with_capacity(runs.len());
        let mut rest = runs;
        while !rest.is_empty() {
            let count = first_of(rest.iter().map(|run| run.out.len() as u64));
            let (now, later) = rest.split_at_mut(count);
            results.extend(self.read_together(now));
            rest = later;
        }
        results
    }

    fn read_together(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        let kind = OperationKind::Read;
        if runs.iter().any(|run| !self.is_plain(kind, run.offset, run.out.len() as u64)) {
            return runs.iter_mut().map(|run| self.read_at(run.offset, run.out)).collect();
        }
        let reads = runs.iter().map(|run| read_of(run.offset, run.out.len())).collect();
        let done = self.run(reads, Buffers::GivenBack).into_iter().zip(runs);
        let results = done.map(|((operation, result), run)| {
            let len = run.out.len() as u64;
            result.map_err(|error| self.failed(kind, run.offset, len, error))?;
            if let Operation::Read { buffer, .. } = &operation {
                run.out.copy_from_slice(buffer);
            }
            Ok(())
        });
        results.collect()
    }
}

/// How many of the first runs, at least one, are under way together.
fn first_of(lengths: impl Iterator<Item = u64>) -> usize {
    let mut sum = 0u64;
    let fitting = lengths.take_while(|len| {
        sum = sum.saturating_add(*len);
        sum <= TOGETHER
    });
    fitting.count().max(1)
}
