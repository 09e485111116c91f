//! Queues: many device operations of one thread under way at once, completing in any order.
//!
//! # Shape
//!
//! ```text
//! BlockDevice::queue   the best engine for a device: io_uring for FileDevice where the system has it
//! lasting_queue        the same for longer than a borrow and for any thread; io_uring only
//! portable             over BlockDevice::submit, for every device
//! ../uring.rs          io_uring, for files and disks
//! ```
//!
//! # Rules
//!
//! - U1. An operation belongs to the queue, with its buffer, from `push` until `reap` returns it.
//!   Its bytes are not accessed or freed meanwhile, even if the queue is dropped.
//! - U2. Operations that were pushed and not reaped number at most [`QueueOptions::depth`].
//! - U3. Every operation that was pushed is reaped once, with a result of its own, in any order.
//! - U4. Short transfers are continued, and interrupted ones repeated, inside the queue: an
//!   operation succeeds as a whole or fails.
//! - U5. Dropping a queue waits for the operations under way. Operations that were not submitted
//!   are never done.

mod portable;

use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::str::FromStr;
use std::sync::Arc;

use crate::operation::{Completion, Operation};

pub(crate) use portable::Portable;

/// Largest depth of a queue.
pub const QUEUE_DEPTH_MAX: usize = 4096;

/// Options of a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct QueueOptions {
    /// Limit of the operations that are pushed and not reaped, 1 to [`QUEUE_DEPTH_MAX`]; values
    /// outside are clamped. Default: 64.
    pub depth: usize,
    /// Whether to use only the engine that every device and every system has.
    pub portable: bool,
    /// Whether to bypass the host's page cache where the host can, for operations aligned to 4096
    /// bytes, or to a disk's logical sectors.
    pub direct: bool,
    /// Limit of one request to the system, in bytes; longer operations are split. Default: 1 GiB.
    pub transfer_max: usize,
}

impl Default for QueueOptions {
    fn default() -> QueueOptions {
        QueueOptions { depth: 64, portable: false, direct: false, transfer_max: 1 << 30 }
    }
}

impl QueueOptions {
    /// Returns these options with another [`depth`](Self::depth).
    #[must_use]
    pub fn depth(self, depth: usize) -> QueueOptions {
        QueueOptions { depth: depth.clamp(1, QUEUE_DEPTH_MAX), ..self }
    }

    /// Returns these options with another value of [`portable`](Self::portable).
    #[must_use]
    pub fn portable(self, portable: bool) -> QueueOptions {
        QueueOptions { portable, ..self }
    }

    /// Returns these options with another value of [`direct`](Self::direct).
    #[must_use]
    pub fn direct(self, direct: bool) -> QueueOptions {
        QueueOptions { direct, ..self }
    }

    /// Returns these options with another [`transfer_max`](Self::transfer_max).
    #[must_use]
    pub fn transfer_max(self, bytes: usize) -> QueueOptions {
        QueueOptions { transfer_max: bytes.clamp(1, 1 << 30), ..self }
    }
}

/// The mechanism by which a queue transfers bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Engine {
    /// Batches of the device; for positional I/O, one operation after the other.
    Portable,
    /// io_uring, through the system's page cache.
    Uring,
    /// io_uring, bypassing the system's page cache where operations are aligned.
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

/// Which engines a device may use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum DeviceEngine {
    /// The best that the system gives, where it pays.
    #[default]
    Auto,
    /// io_uring for everything that it can do; opening the device fails without it.
    IoUring,
    /// Calls that every system has.
    Portable,
}

impl DeviceEngine {
    /// All values, by the names that [`FromStr`] knows.
    pub const NAMES: [(&'static str, DeviceEngine); 3] = [
        ("auto", DeviceEngine::Auto),
        ("io_uring", DeviceEngine::IoUring),
        ("portable", DeviceEngine::Portable),
    ];
}

/// A name that is none of [`DeviceEngine::NAMES`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is not a device engine: auto, io_uring or portable")]
pub struct UnknownEngine(pub String);

impl FromStr for DeviceEngine {
    type Err = UnknownEngine;

    fn from_str(name: &str) -> Result<DeviceEngine, UnknownEngine> {
        let found = DeviceEngine::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, engine)| *engine).ok_or_else(|| UnknownEngine(name.to_owned()))
    }
}

/// The engine that a device uses, from [`BlockDevice::engine`](crate::BlockDevice::engine).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EngineInfo {
    /// The engine.
    pub engine: Engine,
    /// Why a better one is not used, where the system refused it.
    pub refused: Option<Arc<str>>,
}

/// Whether [`Queue::reap`] waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wait {
    /// Wait until a submitted operation has finished.
    Block,
    /// Do not wait. On a device that works only inside waits, operations may then never finish.
    Poll,
}

/// A finished operation and its tag.
#[derive(Debug)]
pub struct Finished {
    /// The tag that the operation was pushed with.
    pub tag: u64,
    /// The operation, with its buffer, and its result.
    pub completion: Completion,
}

/// A queue of operations of one thread on one device, from
/// [`BlockDevice::queue`](crate::BlockDevice::queue).
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
    /// Adds an operation, to be started by [`submit`](Self::submit).
    ///
    /// # Errors
    ///
    /// The operation, unchanged, when [`depth`](Self::depth) operations are waiting to be reaped.
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation>;

    /// Starts every pushed operation. An operation that cannot be started finishes with an error.
    fn submit(&mut self);

    /// Returns a finished operation; `None` when none is under way, or none has finished and `wait`
    /// is [`Wait::Poll`].
    fn reap(&mut self, wait: Wait) -> Option<Finished>;

    /// Does [`submit`](Self::submit) and a waiting [`reap`](Self::reap), for a caller that keeps
    /// the queue full: push while there is room, advance, handle the finished operation. While
    /// finished operations remain to be handed back, pushed ones may be started later, together
    /// with those pushed next, to save system calls.
    fn advance(&mut self) -> Option<Finished> {
        self.submit();
        self.reap(Wait::Block)
    }

    /// Returns the number of operations pushed and not reaped.
    fn len(&self) -> usize;

    /// Returns whether all operations were reaped.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the limit of [`len`](Self::len).
    fn depth(&self) -> usize;

    /// Returns the engine that transfers the bytes.
    fn engine(&self) -> Engine;
}

/// A queue that needs nothing of its device but what it keeps itself, from
/// [`BlockDevice::lasting_queue`](crate::BlockDevice::lasting_queue). Any thread may use it, one at
/// a time; operations go on while no thread does.
///
/// The system may end the operations of a thread that ends before they have finished; they fail
/// then, and can be repeated.
pub trait LastingQueue: Queue + Send {
    /// Returns the number of operations that were pushed and not [submitted](Queue::submit), or
    /// wait to be continued.
    fn unstarted(&self) -> usize;

    /// Adds to this `eventfd` whenever an operation has finished, from now on. To be called once.
    ///
    /// # Errors
    ///
    /// That of the system; operations are not concerned.
    fn signals(&mut self, event: BorrowedFd<'_>) -> io::Result<()>;
}
