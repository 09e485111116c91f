//! Operations that are submitted and looked after later: done on the submitter's thread when nothing has to be waited
//! for, by a worker when something has.
//!
//! # Place
//!
//! Below: `file`, whose attempts say whether something has to be waited for. Above: programs. Nothing else in this crate
//! knows of rings.
//!
//! # Shape
//!
//! ```text
//! mod      Ring: submit, poll, wait, the end
//! op       what can be submitted, and what comes back
//! queue    what waits: in which order, for which file, how much at most
//! work     doing one operation: at once, or waiting
//! ```
//!
//! # Rules
//!
//! - R1. Changes of one file (writes, appends, truncate, fallocate) take effect in the order of their submission. One that is
//!   submitted while another of that file waits for a worker waits behind it, however soon it could be done.
//! - R2. A read or a sync sees every change of its file that was submitted before it. It does not hold up those behind it.
//! - R3. What waits, is worked on, or is done by a worker and not taken yet, is at most the depth; beside other submitters, one
//!   more for each whose operation was begun inline when they filled the ring. A full ring gives the operation back
//!   untouched.
//! - R4. Everything that was accepted is done, once, whatever becomes of the ring. The place of an append is decided once:
//!   what an attempt has written is not written again.

mod op;
mod queue;
mod work;

use std::error::Error;
use std::fmt;
use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use extant_sync::no_waiting;
use extant_sync::threads::{Crew, ThreadError};

use crate::attempt::WaitReason;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;

pub use op::{Busy, Completion, Op};
use queue::{Queue, Task};
use work::Tried;

/// Workers of a ring at most; no more than its depth.
const WORKERS_MAX: usize = 8;
/// Deeper rings are of no use: what waits holds memory of the caller.
const DEPTH_MAX: usize = 1 << 16;

/// What a ring did so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RingStats {
    /// Operations that were done on the submitter's thread.
    pub inline: u64,
    /// Operations that a worker got because they would have had to wait, by [`WaitReason::ALL`].
    refused: [u64; WaitReason::ALL.len()],
    /// Operations that a worker got because one for the same file was waiting already.
    pub behind: u64,
    /// Operations that a worker got because their kind always may wait: syncs, truncate, fallocate.
    pub by_kind: u64,
    /// Attempts that got a part done, the rest of which went to a worker.
    pub in_parts: u64,
    /// Operations that workers have done.
    pub completed: u64,
    /// Operations that were given back because the ring was full.
    pub busy: u64,
}

impl RingStats {
    /// Operations that went to a worker because an attempt was refused for this reason.
    pub fn refused(&self, reason: WaitReason) -> u64 {
        self.refused[reason as usize]
    }

    /// Operations that went to workers, for whatever reason.
    pub fn punted(&self) -> u64 {
        self.refused.iter().sum::<u64>() + self.behind + self.by_kind + self.in_parts
    }
}

/// What submitters and workers share.
struct Shared {
    queue: Queue,
    /// Operations with the workers or not taken: R3.
    under_way: AtomicUsize,
    /// Operations that wait for a worker or are worked on: a look at it spares who finds none the lock of the queue.
    with_workers: AtomicUsize,
    inline: AtomicU64,
    busy: AtomicU64,
}

/// A queue of operations on an open file system. Any number of threads may submit and take; each operation is done by the
/// thread that submits it if nothing has to be waited for, and by a worker otherwise.
///
/// Dropping it waits until everything that was accepted is done; results that nobody took are lost with it. What was
/// written is in memory then, as after [`Inode::write_at`]: durable by a sync.
///
/// # Example
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use extant::ring::Op;
/// # let device = extant_block::FileDevice::open_read_write("disk.img")?;
/// # let fs = extant::MountOptions::new().read_only(false).open(device)?;
/// let log = fs.resolve("/var/log/messages")?;
/// let ring = fs.ring(32)?;
/// let mut buffer = Vec::new();
/// for number in 0..1000 {
///     buffer.extend_from_slice(b"one more line\n");
///     // Done already, as nearly always; else its result comes later.
///     let done = match ring.submit(number, &log, Op::Append { bytes: buffer }) {
///         Ok(done) => done,
///         Err(busy) => {
///             // The ring is full: takes a result first, and here gives the line up.
///             buffer = busy.op.into_buffer();
///             buffer.clear();
///             ring.wait();
///             continue;
///         }
///     };
///     buffer = done.map_or(Vec::new(), |done| done.buffer);
///     buffer.clear();
/// }
/// ring.submit(1000, &log, Op::SyncData).map_err(|_| "full")?;
/// while let Some(done) = ring.wait() {
///     done.result?;
/// }
/// # Ok(())
/// # }
/// ```
#[must_use = "dropping it waits for its operations"]
pub struct Ring {
    shared: Arc<Shared>,
    fs: Fs,
    depth: usize,
    /// Joined when it is dropped, after the queue was closed.
    crew: Option<Crew>,
}

impl Fs {
    /// A ring with room for `depth` operations, 1 to 65,536, that wait for workers, are worked on, or are done by them and not
    /// taken yet; and with at most 8 threads, which sleep when there is nothing for them.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] for another depth; [`FsError::NoThread`]; no memory for the page cache.
    pub fn ring(&self, depth: usize) -> Result<Ring> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(FsError::InvalidArgument { what: "a ring has a depth of 1 to 65536" });
        }
        if self.volume().is_writable() {
            // Or the first attempt on a mount would be refused.
            self.volume().page_cache()?;
        }
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            under_way: AtomicUsize::new(0),
            with_workers: AtomicUsize::new(0),
            inline: AtomicU64::new(0),
            busy: AtomicU64::new(0),
        });
        let inside = Arc::clone(&shared);
        let crew = Crew::start("extant-ring", depth.min(WORKERS_MAX), move || inside.work())
            .map_err(|error| FsError::NoThread { why: cause(&error).into() })?;
        Ok(Ring { shared, fs: self.clone(), depth, crew: Some(crew) })
    }
}

/// What the system said.
fn cause(error: &ThreadError) -> String {
    error.source().unwrap_or(error).to_string()
}

impl Shared {
    /// What each worker does until the queue is closed and empty.
    fn work(&self) {
        while let Some(task) = self.queue.next() {
            let (ino, is_change) = (task.inode.ino(), task.op.is_change());
            let outcome = work::finish(task);
            self.queue.settle(ino, is_change, outcome);
            // Afterwards: until then whoever submits asks the queue.
            self.with_workers.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

impl Ring {
    /// Submits an operation on `inode`. `tag` comes back with the result, which is
    /// [`FsError::OtherFileSystem`] for an inode of another mount than [`fs`](Self::fs).
    ///
    /// `Some` when it is done already, on this thread. `None` when a worker has it: its result is
    /// [taken](Self::poll) later. This thread waits for nothing but memory and locks that are held for a few instructions.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the operation: as many as the ring is deep are under way or not taken. Take one and try
    /// again.
    pub fn submit(
        &self,
        tag: u64,
        inode: &Inode,
        op: Op,
    ) -> std::result::Result<Option<Completion>, Busy> {
        let _scope = no_waiting();
        if let Err(error) = inode.check_of(&self.fs) {
            let (result, buffer) = (Err(error), op.into_buffer());
            return Ok(Some(Completion { tag, result, buffer, is_inline: true }));
        }
        if self.is_full() {
            return Err(Busy { op });
        }
        let tried = match self.is_behind(inode) {
            true => Tried::Behind(op),
            false => work::attempt(inode, op),
        };
        let (task, why) = match tried {
            Tried::Done(result, op) => {
                self.shared.inline.fetch_add(1, Ordering::Relaxed);
                let buffer = op.into_buffer();
                return Ok(Some(Completion { tag, result, buffer, is_inline: true }));
            }
            Tried::Behind(op) => (Task::new(tag, inode, op), None),
            Tried::Refused(op, reason) => (Task::new(tag, inode, op), Some(reason)),
            Tried::Part(op, at, done) => {
                (Task { part: Some((at, done)), ..Task::new(tag, inode, op) }, None)
            }
        };
        self.accept(task, why).map(|()| None)
    }

    /// [`submit`](Self::submit) of a [`Op::Read`] into memory that stays the caller's: `Some` when `out` is filled, with how
    /// many bytes of it. `None` when a worker reads: what it reads comes in the buffer of the completion, and `out`
    /// may hold anything.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the operation that comes back has a buffer of its own.
    pub fn submit_read(
        &self,
        tag: u64,
        inode: &Inode,
        offset: u64,
        out: &mut [u8],
    ) -> std::result::Result<Option<Result<u64>>, Busy> {
        let _scope = no_waiting();
        if let Err(error) = inode.check_of(&self.fs) {
            return Ok(Some(Err(error)));
        }
        let op = |len| Op::Read { offset, buffer: vec![0; len] };
        if self.is_full() {
            return Err(Busy { op: op(out.len()) });
        }
        let mut why = None;
        if !self.is_behind(inode) {
            match work::attempt_read(inode, offset, out) {
                Ok(result) => {
                    self.shared.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result));
                }
                Err(reason) => why = Some(reason),
            }
        }
        self.accept(Task::new(tag, inode, op(out.len())), why).map(|()| None)
    }

    /// [`submit`](Self::submit) of a [`Op::Write`] of bytes that stay the caller's: copied only if a worker writes
    /// them. `Some` when they are written, with how many.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the operation that comes back has a copy of the bytes.
    pub fn submit_write(
        &self,
        tag: u64,
        inode: &Inode,
        offset: u64,
        bytes: &[u8],
    ) -> std::result::Result<Option<Result<u64>>, Busy> {
        let _scope = no_waiting();
        if let Err(error) = inode.check_of(&self.fs) {
            return Ok(Some(Err(error)));
        }
        let op = || Op::Write { offset, bytes: bytes.to_vec() };
        if self.is_full() {
            return Err(Busy { op: op() });
        }
        let (mut part, mut why) = (None, None);
        if !self.is_behind(inode) {
            match inode.try_write_at(offset, bytes) {
                Ok(Ok(written)) if written < bytes.len() => part = Some((offset, written)),
                Ok(result) => {
                    self.shared.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result.map(|written| written as u64)));
                }
                Err(would_wait) => why = Some(would_wait.reason),
            }
        }
        self.accept(Task { part, ..Task::new(tag, inode, op()) }, why).map(|()| None)
    }

    /// Whether the ring is full, which is counted. Claimed only for what goes to a worker: what is done inline is never under
    /// way.
    fn is_full(&self) -> bool {
        let is_full = self.shared.under_way.load(Ordering::Acquire) >= self.depth;
        if is_full {
            self.shared.busy.fetch_add(1, Ordering::Relaxed);
        }
        is_full
    }

    /// Gives a task to the workers.
    fn accept(&self, task: Task, why: Option<WaitReason>) -> std::result::Result<(), Busy> {
        let shared = &*self.shared;
        // What has begun cannot be given back, even if others have filled the ring meanwhile.
        let has_begun = task.part.is_some();
        let claim = |count: usize| (has_begun || count < self.depth).then_some(count + 1);
        if shared.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).is_err() {
            shared.busy.fetch_add(1, Ordering::Relaxed);
            return Err(Busy { op: task.op });
        }
        shared.with_workers.fetch_add(1, Ordering::AcqRel);
        shared.queue.push(task, why);
        Ok(())
    }

    /// Whether something of this file is with the workers that has to come first.
    fn is_behind(&self, inode: &Inode) -> bool {
        self.shared.with_workers.load(Ordering::Acquire) > 0
            && self.shared.queue.has_changes(inode.ino())
    }

    /// Takes the result of an operation that a worker has done, if there is one.
    ///
    /// # Panics
    ///
    /// If that operation did: a bug of this crate, shown to whoever asks for what became of it.
    pub fn poll(&self) -> Option<Completion> {
        self.take(false)
    }

    /// Takes the result of an operation that a worker has done; waits for the next one if there is none. `None` when
    /// nothing is with the workers.
    ///
    /// # Panics
    ///
    /// As [`poll`](Self::poll).
    pub fn wait(&self) -> Option<Completion> {
        self.take(true)
    }

    fn take(&self, waits: bool) -> Option<Completion> {
        let taken = self.shared.queue.take(waits)?;
        self.shared.under_way.fetch_sub(1, Ordering::AcqRel);
        match taken {
            Ok(completion) => Some(completion),
            Err(panic) => resume_unwind(panic),
        }
    }

    /// The file system that it belongs to.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// How many operations may be under way.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// What it did so far.
    pub fn stats(&self) -> RingStats {
        let inline = self.shared.inline.load(Ordering::Relaxed);
        let busy = self.shared.busy.load(Ordering::Relaxed);
        RingStats { inline, busy, ..self.shared.queue.stats() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.shared.queue.close();
        // Waits until they have done all that was accepted.
        drop(self.crew.take());
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth).field("stats", &self.stats()).finish()
    }
}
