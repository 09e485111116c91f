//! Requests to devices, and their completions.

use std::fmt;

use crate::buffer::AlignedBuffer;
use crate::error::{DeviceError, OperationKind};

/// A request to a device. Offsets and lengths are in bytes from the start of the device and need no
/// alignment, except where a back-end says so.
#[derive(Debug)]
pub enum Operation {
    /// Fills `buffer` from `offset`, as a whole or with an error.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// The buffer; its length is the length of the read.
        buffer: AlignedBuffer,
    },
    /// Stores `buffer` at `offset`.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes to be written.
        buffer: AlignedBuffer,
        /// Whether the request completes only when these bytes are on stable storage ("force unit
        /// access"). Other writes do not become durable by it.
        fua: bool,
    },
    /// Makes every write that had completed before this request was submitted durable.
    Flush,
    /// Gives up the contents of a range, which reads as old bytes or as zeros afterwards.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// Makes a range read as zeros, with a zeroing command where the device has one.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Operation {
    /// Returns the kind of the request.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::Flush => OperationKind::Flush,
            Self::Discard { .. } => OperationKind::Discard,
            Self::WriteZeroes { .. } => OperationKind::WriteZeroes,
        }
    }

    /// Returns the first byte of the range; 0 for a flush.
    pub fn offset(&self) -> u64 {
        match *self {
            Self::Read { offset, .. }
            | Self::Write { offset, .. }
            | Self::Discard { offset, .. }
            | Self::WriteZeroes { offset, .. } => offset,
            Self::Flush => 0,
        }
    }

    /// Returns the length of the range, in bytes; 0 for a flush.
    pub fn length(&self) -> u64 {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => buffer.len() as u64,
            Self::Discard { len, .. } | Self::WriteZeroes { len, .. } => *len,
            Self::Flush => 0,
        }
    }
}

/// A completed request, with its buffer and its result.
#[derive(Debug)]
pub struct Completion {
    /// The operation as submitted. The buffer of a read holds the bytes if `result` is `Ok`, and
    /// undefined contents otherwise.
    pub operation: Operation,
    /// The result.
    pub result: Result<(), DeviceError>,
}

impl Completion {
    /// Returns the buffer of a successful read or write, and an empty one for the other kinds.
    ///
    /// # Errors
    ///
    /// The operation's own error.
    pub fn into_buffer(self) -> Result<AlignedBuffer, DeviceError> {
        self.result?;
        Ok(match self.operation {
            Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => buffer,
            _ => AlignedBuffer::default(),
        })
    }
}

/// A submitted batch. Dropping it does not cancel the operations; only their results are lost.
#[must_use = "errors of the batch are in its completions"]
pub struct Pending(State);

enum State {
    Done(Vec<Completion>),
    Waiting(Box<dyn FnOnce() -> Vec<Completion> + Send>),
}

impl Pending {
    /// Creates a batch that is finished already, with completions in the order of submission.
    pub fn done(completions: Vec<Completion>) -> Pending {
        Pending(State::Done(completions))
    }

    /// Creates a batch that is still running; `wait` blocks for it and returns the completions in
    /// the order of submission.
    pub fn waiting(wait: impl FnOnce() -> Vec<Completion> + Send + 'static) -> Pending {
        Pending(State::Waiting(Box::new(wait)))
    }

    /// Waits for all operations. Completion `i` belongs to operation `i` of the batch.
    pub fn wait(self) -> Vec<Completion> {
        match self.0 {
            State::Done(completions) => completions,
            State::Waiting(wait) => wait(),
        }
    }

    /// Returns the completions, if that needs no wait.
    pub(crate) fn try_done(self) -> Result<Vec<Completion>, Pending> {
        match self.0 {
            State::Done(completions) => Ok(completions),
            waiting @ State::Waiting(_) => Err(Pending(waiting)),
        }
    }

    /// Returns the same batch with its completions changed by `change`, at once or when it is done.
    pub(crate) fn map(
        self,
        change: impl FnOnce(Vec<Completion>) -> Vec<Completion> + Send + 'static,
    ) -> Pending {
        match self.0 {
            State::Done(completions) => Pending::done(change(completions)),
            State::Waiting(wait) => Pending::waiting(move || change(wait())),
        }
    }

    /// Waits, and returns the buffers of a batch that succeeded as a whole.
    ///
    /// # Errors
    ///
    /// The first error in the order of submission. All operations have finished either way.
    pub fn wait_all(self) -> Result<Vec<AlignedBuffer>, DeviceError> {
        self.wait().into_iter().map(Completion::into_buffer).collect()
    }
}

impl fmt::Debug for Pending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            State::Done(completions) => write!(f, "Pending({} done)", completions.len()),
            State::Waiting(_) => f.write_str("Pending(running)"),
        }
    }
}
