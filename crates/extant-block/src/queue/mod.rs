//! Many operations of one thread under way at once, each finishing when it does.
//!
//! # Shape
//!
//! ```text
//! BlockDevice::queue   the best there is for a device: FileDevice has io_uring where the system does
//! portable             over BlockDevice::submit, for every device
//! ../uring.rs          io_uring, for files and disks
//! ```
//!
//! # Rules
//!
//! - U1. An operation belongs to the queue, with its buffer, from `push` until `reap` hands it back. Nobody
//!   sees or frees its bytes meanwhile, whatever becomes of the queue.
//! - U2. What was pushed and not reaped is at most [`QueueOptions::depth`].
//! - U3. Every operation that was pushed is handed back once, with a result of its own, in any order.
//! - U4. Short transfers are continued, and interrupted ones repeated, below: whoever reaps sees all or an error.
//! - U5. A queue that is dropped waits for what is under way. What was pushed and not submitted is never done.

mod portable;

use std::fmt;

use crate::operation::{Completion, Operation};

pub(crate) use portable::Portable;

/// Most operations that a queue can have.
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// How a queue is made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Operations that may be pushed and not reaped, 1 to [`QUEUE_DEPTH_MAX`]; what is outside becomes the
    /// nearest. 64 unless set.
    pub depth: usize,
    /// Only what every device has, and every system.
    pub portable: bool,
    /// Past the host's page cache, as far as the host can: operations that are aligned to 4096 bytes, or to a
    /// disk's logical sectors.
    pub direct: bool,
    /// Most bytes of one request to the system; longer operations become several. 1 GiB unless set.
    pub transfer_max: usize,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { depth: 64, portable: false, direct: false, transfer_max: 1 << 30 }
    }
}

impl QueueOptions {
    /// These options with another [`depth`](Self::depth).
    #[must_use]
    pub fn depth(self, depth: usize) -> QueueOptions {
        QueueOptions { depth: depth.clamp(1, QUEUE_DEPTH_MAX), ..self }
    }

    /// These options with [`portable`](Self::portable) as said.
    #[must_use]
    pub fn portable(self, portable: bool) -> QueueOptions {
        QueueOptions { portable, ..self }
    }

    /// These options with [`direct`](Self::direct) as said.
    #[must_use]
    pub fn direct(self, direct: bool) -> QueueOptions {
        QueueOptions { direct, ..self }
    }

    /// These options with another [`transfer_max`](Self::transfer_max).
    #[must_use]
    pub fn transfer_max(self, bytes: usize) -> QueueOptions {
        QueueOptions { transfer_max: bytes.clamp(1, 1 << 30), ..self }
    }
}

/// What moves the bytes of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// The device's own batches; with positional I/O, one operation after the other.
    Portable,
    /// The system's ring, through its page cache.
    Uring,
    /// The system's ring, past its page cache where operations are aligned.
    UringDirect,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Portable => "portable",
            Engine::Uring => "io_uring",
            Engine::UringDirect => "io_uring, direct",
        })
    }
}

/// Whether to wait for an operation to finish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Until one that was submitted has finished.
    Block,
    /// Not at all. A device that works only while somebody waits may never finish one then.
    Poll,
}

/// A finished operation and the tag that it was pushed with.
#[derive(Debug)]
pub struct Finished {
    /// Says which it is to whoever pushed it.
    pub tag: u64,
    /// What was asked for, with its buffer, and how it went.
    pub completion: Completion,
}

/// Operations of one thread on one device, from [`BlockDevice::queue`](crate::BlockDevice::queue).
///
/// ```
/// use extant_block::{AlignedBuffer, BlockDevice, MemoryDevice, Operation, QueueOptions, Wait};
/// let device = MemoryDevice::new(1 << 20);
/// let mut queue = device.queue(&QueueOptions::default().depth(8));
/// for tag in 0..8 {
///     let buffer = AlignedBuffer::copy_of(&[tag as u8; 4096]);
///     let write = Operation::Write { offset: tag * 4096, buffer, fua: false };
///     queue.push(tag, write).expect("eight fit");
/// }
/// queue.submit();
/// let mut done = 0;
/// while let Some(finished) = queue.reap(Wait::Block) {
///     finished.completion.into_buffer()?;
///     done += 1;
/// }
/// assert_eq!(done, 8);
/// # Ok::<(), extant_block::DeviceError>(())
/// ```
pub trait Queue {
    /// Takes an operation in, to be started by [`submit`](Self::submit). Gives it back when as many as
    /// [`depth`](Self::depth) wait to be reaped.
    ///
    /// # Errors
    ///
    /// The operation, untouched.
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation>;

    /// Starts everything that was pushed. An operation that cannot be started finishes with an error.
    fn submit(&mut self);

    /// One operation that has finished; `None` when none is under way, or none has finished and `wait`
    /// says not to wait.
    fn reap(&mut self, wait: Wait) -> Option<Finished>;

    /// How many were pushed and not reaped.
    fn len(&self) -> usize;

    /// Whether everything was reaped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The most that [`len`](Self::len) can be.
    fn depth(&self) -> usize;

    /// What moves the bytes.
    fn engine(&self) -> Engine;
}
