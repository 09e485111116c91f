//! What devices are asked to do, and how it went.

use std::fmt;

use crate::buffer::AlignedBuffer;
use crate::error::{DeviceError, OperationKind};

/// One request to a device. Offsets and lengths are in bytes from the start of the device and
/// need no alignment, except where a back-end says so.
#[derive(Debug)]
pub enum Operation {
    /// Fill `buffer` from `offset`. All of it, or an error.
    Read {
        /// First byte to read.
        offset: u64,
        /// Receives the bytes; its length is the length of the read.
        buffer: AlignedBuffer,
    },
    /// Store `buffer` at `offset`.
    Write {
        /// First byte to write.
        offset: u64,
        /// The bytes.
        buffer: AlignedBuffer,
        /// "Force unit access": complete only when these bytes are on stable storage. Says
        /// nothing about other writes.
        fua: bool,
    },
    /// Complete when every write that had completed before this was submitted is on stable
    /// storage.
    Flush,
    /// The range is no longer needed. Reads of it may return old bytes or zeros afterwards.
    Discard {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The range reads as zeros afterwards. Cheaper than writing zeros where the device can.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Length in bytes.
        len: u64,
    },
}

impl Operation {
    /// Which kind this is.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Read { .. } => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::Flush => OperationKind::Flush,
            Self::Discard { .. } => OperationKind::Discard,
            Self::WriteZeroes { .. } => OperationKind::WriteZeroes,
        }
    }

    /// First byte of the range; 0 for a flush.
    pub fn offset(&self) -> u64 {
        match *self {
            Self::Read { offset, .. }
            | Self::Write { offset, .. }
            | Self::Discard { offset, .. }
            | Self::WriteZeroes { offset, .. } => offset,
            Self::Flush => 0,
        }
    }

    /// Length of the range, in bytes; 0 for a flush.
    pub fn length(&self) -> u64 {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => buffer.len() as u64,
            Self::Discard { len, .. } | Self::WriteZeroes { len, .. } => *len,
            Self::Flush => 0,
        }
    }
}

/// One finished operation: what was asked for, with its buffer, and how it went.
#[derive(Debug)]
pub struct Completion {
    /// The operation as submitted. The buffer of a read holds the bytes if `result` is `Ok`,
    /// and anything at all if it is not.
    pub operation: Operation,
    /// How it went.
    pub result: Result<(), DeviceError>,
}

impl Completion {
    /// The buffer of a successful read or write; empty for the other kinds.
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

/// A submitted batch. Dropping it does not cancel the operations; it only gives up their results.
#[must_use = "errors of the batch are in its completions"]
pub struct Pending(State);

enum State {
    Done(Vec<Completion>),
    Waiting(Box<dyn FnOnce() -> Vec<Completion> + Send>),
}

impl Pending {
    /// A batch that is finished already, in the order of submission.
    pub fn done(completions: Vec<Completion>) -> Pending {
        Pending(State::Done(completions))
    }

    /// A batch that is still running; `wait` blocks for it and answers in the order of
    /// submission.
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

    /// The completions, if that needs no waiting.
    pub(crate) fn try_done(self) -> Result<Vec<Completion>, Pending> {
        match self.0 {
            State::Done(completions) => Ok(completions),
            waiting @ State::Waiting(_) => Err(Pending(waiting)),
        }
    }

    /// The same batch with its completions changed by `change`, at once or when it is done.
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
