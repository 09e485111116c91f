//! Asynchronous operations: done on the submitter's thread if they need not wait, and by a worker
//! otherwise.
//!
//! # Place
//!
//! Below: `file`, whose attempts tell whether an operation would wait. Above: programs. No other
//! module of this crate knows rings.
//!
//! # Shape
//!
//! ```text
//! mod      Ring: submit, take, cancel, close
//! op       operations and completions
//! shared   what submitters, takers and workers share
//! stats    counters
//! lane     direct operations that go to the device without a worker
//! order    dependencies: files, chains, drains
//! queue    workers, takers and the timer over that order
//! work     executing operations, singly or in direct batches
//! running  operations as futures
//! ```
//!
//! # Rules
//!
//! - R1. Changes of one file (writes, appends, truncate, fallocate) take effect in the order of
//!   their submission. A change submitted while another one of the file waits for a worker waits
//!   behind it.
//! - R2. A read or a sync sees every change of its file that was submitted before it. It does not
//!   delay later operations.
//! - R3. Operations that wait, are executed by a worker, or are done by one and not taken yet
//!   number at most the depth, plus one for each submitter whose operation had begun inline when
//!   others filled the ring. A full ring returns the operation unchanged.
//! - R4. Every accepted operation is done once, or cancelled before it began, even if the ring is
//!   dropped. The place of an append is decided once: bytes that an attempt has written are not
//!   written again, and the operation cannot be cancelled.
//! - R5. An operation of a chain begins after its predecessor has succeeded in full; otherwise it
//!   is cancelled.
//! - R7. A direct read or overwrite that the device can do in one operation is with no worker: the
//!   submitter gives it to the device, and whoever takes results, or has to wait for it, takes it
//!   from there. Drains and the end of the ring wait for those before them.
//! - R6. Reads continue while changes wait for a thaw or a limit: one worker is reserved for them.

mod lane;
#[cfg(test)]
mod model;
mod op;
mod order;
mod queue;
mod running;
mod shared;
mod stats;
mod work;

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use extant_block::Engine;
use extant_sync::threads::{Crew, ThreadError};
use extant_sync::{CachePadded, Clock, Signal, SystemClock, no_waiting};

use crate::attempt::WaitReason;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;

use lane::{Lane, Repeated};
pub use op::{Busy, ChainBusy, Completion, Op, Request, Value};
use order::Place;
use queue::{Entry, Patience, Queue};
pub use running::Running;
use running::{Room, Slot};
use stats::Counters;
pub use stats::RingStats;

/// The synchronisation primitives of the queue.
mod sync {
    pub(super) use std::sync::atomic::{AtomicUsize, Ordering};

    pub(super) use extant_sync::{Condvar, Mutex, MutexGuard};

    pub(super) fn queue_lock<T>(value: T) -> Mutex<T> {
        Mutex::new(extant_sync::Rank::Leaf, value)
    }
}

/// Limit of the workers of a ring, besides the one reserved for reads; never more than its depth.
const WORKERS_MAX: usize = 8;
/// Largest depth, because waiting operations hold memory of the caller.
const DEPTH_MAX: usize = 1 << 16;
/// Limit of the direct operations of one file that go to the device's queue together.
const DIRECT_BATCH: usize = 64;
/// Limit of the bytes of an operation that a worker tries with others behind it: copying more takes so long that another
/// worker should have the others.
const ALONG_MAX: u64 = 64 << 10;

/// A result, or the panic of the operation.
type Outcome = std::result::Result<Returned, Box<dyn Any + Send>>;

/// What goes from a worker to who asked for it.
struct Returned {
    completion: Completion,
    /// The handle of the operation. Who takes the result drops it, as a rule who submitted it: its counts are in the cache
    /// of that processor.
    inode: Option<Inode>,
}

impl From<Completion> for Returned {
    fn from(completion: Completion) -> Returned {
        Returned { completion, inode: None }
    }
}

/// An operation for a worker.
struct Task {
    tag: u64,
    inode: Inode,
    op: Op,
    /// Offset and number of the bytes done already.
    part: Option<(u64, usize)>,
    /// The slot of the future that awaits it; without one, the result is taken from the ring.
    to: Option<Arc<Slot>>,
    /// Whether it waits for everything before it.
    drains: bool,
    /// Present if the task repeats an operation that came back from the device.
    repeats: Option<Repeated>,
}

/// Reason why an operation goes to a worker.
#[derive(Clone, Copy)]
enum Why {
    Behind,
    Kind,
    Request,
    Part,
    Refused(WaitReason),
}

/// The ways that are open to an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ways {
    /// An attempt, the lane, a worker.
    All,
    /// An attempt or a worker.
    Attempt,
    /// A worker.
    Worker,
}

/// Outcome of the submitter's attempt.
enum Looked {
    Done(Completion),
    /// The device has it.
    Away,
    Later {
        op: Op,
        part: Option<(u64, usize)>,
        why: Why,
    },
}

/// Outcome of a submission.
enum Started {
    Done(Completion),
    Queued(u64),
    Full(Request),
}

/// State shared by submitters and workers.
struct Shared {
    fs: Fs,
    depth: usize,
    queue: Queue<Task, Outcome>,
    /// `None` where the device has no queue that lasts.
    lane: Option<Lane>,
    /// Number of operations with the workers or not taken yet (R3).
    under_way: CachePadded<AtomicUsize>,
    room: Room,
    signal: OnceLock<Signal>,
    counters: Counters,
}

const CHAIN: &str = "the operation before it in its chain failed, or did less than it was asked";

/// A queue of operations on an open file system. Any number of threads may submit and take; each
/// operation is done by the thread that submits it if nothing has to be waited for, and by a worker
/// otherwise. Direct reads and overwrites can be with the device without a worker; whoever takes
/// results takes them from there.
///
/// Results are [polled](Self::poll) or [waited for](Self::wait); a [descriptor](Self::event_fd)
/// reports them to event loops; and [`run`](Self::run) makes an operation a future, for any
/// executor.
///
/// Dropping a ring waits until all accepted operations are done ([`cancel_all`](Self::cancel_all)
/// shortens that); results that were not taken are lost. Written data is in memory, as after
/// [`Inode::write_at`], and becomes durable by a sync.
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
    /// The worker threads, joined when the ring is dropped, after the queue was closed.
    crews: Vec<Crew>,
}

impl Fs {
    /// Creates a ring with room for `depth` operations, 1 to 65,536, that wait for workers, are
    /// executed, or are done by them and not taken yet. It has at most 10 threads, which sleep when
    /// there is nothing to do.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] for another depth; [`FsError::NoThread`]; no memory for the
    /// page cache.
    pub fn ring(&self, depth: usize) -> Result<Ring> {
        if !(1..=DEPTH_MAX).contains(&depth) {
            return Err(FsError::InvalidArgument { what: "a ring has a depth of 1 to 65536" });
        }
        if self.volume().is_writable() {
            // The page cache is created here; otherwise the first attempt on a mount would be
            // refused.
            self.volume().page_cache()?;
        }
        let workers = depth.min(WORKERS_MAX) + 1;
        let shared = Arc::new_cyclic(|shared: &Weak<Shared>| Shared {
            fs: self.clone(),
            depth,
            queue: Queue::new(workers),
            lane: Lane::open(self, depth, Weak::<Shared>::clone(shared)),
            under_way: CachePadded::new(AtomicUsize::new(0)),
            room: Room::default(),
            signal: OnceLock::new(),
            counters: Counters::default(),
        });
        if let Some(lane) = &shared.lane {
            lane.enlist(self);
        }
        let mut ring = Ring { shared, crews: Vec::new() };
        let no_thread = |error| FsError::NoThread { why: cause(&error).into() };
        for (name, count, work) in [
            ("extant-ring", workers, Shared::work as fn(&Shared)),
            ("extant-ring-timer", 1, Shared::watch),
        ] {
            let inside = Arc::clone(&ring.shared);
            let crew = Crew::start(name, count, move || work(&inside)).map_err(no_thread)?;
            ring.crews.push(crew);
        }
        Ok(ring)
    }
}

/// Returns the system's error message.
fn cause(error: &ThreadError) -> String {
    error.source().unwrap_or(error).to_string()
}

impl Task {
    /// Returns the task of an operation that is submitted without options.
    fn of(tag: u64, inode: &Inode, op: Op, part: Option<(u64, usize)>) -> Task {
        Task { tag, inode: inode.clone(), op, part, to: None, drains: false, repeats: None }
    }

    fn new(request: Request, to: Option<&Arc<Slot>>) -> Task {
        let Request { tag, inode, op, drains, .. } = request;
        Task { tag, inode, op, part: None, to: to.map(Arc::clone), drains, repeats: None }
    }

    /// Returns whether a worker may do it in one go with others of its file, as far as it need not wait.
    fn goes_along(&self) -> bool {
        let is_whole = self.part.is_none() && self.repeats.is_none();
        let bytes = match &self.op {
            Op::Append { bytes } => bytes.len() as u64,
            op => op.len().unwrap_or(0),
        };
        is_whole && !self.drains && self.op.may_be_inline() && bytes <= ALONG_MAX
    }
}

impl Ring {
    /// Submits an operation on `inode`. `tag` comes back with the result, which is
    /// [`FsError::OtherFileSystem`] for an inode of another mount than [`fs`](Self::fs).
    ///
    /// Returns `Some` when the operation is done already, on this thread, and `None` when a worker
    /// has it: its result is [taken](Self::poll) later, and until then the ring has a handle of the
    /// inode. The call waits for nothing but memory and locks that are held for a few instructions.
    ///
    /// # Errors
    ///
    /// [`Busy`], with the operation, when the ring is full. Take a result and try again.
    pub fn submit(
        &self,
        tag: u64,
        inode: &Inode,
        op: Op,
    ) -> std::result::Result<Option<Completion>, Busy> {
        let shared = &*self.shared;
        let scope = no_waiting();
        if shared.is_full() {
            return Err(Busy { op });
        }
        let place = Shared::place(inode, &op, false, None);
        let (op, part, why) = match shared.look(tag, inode, op, &place, Ways::All) {
            Looked::Done(completion) => return Ok(Some(completion)),
            Looked::Away => return Ok(None),
            Looked::Later { op, part, why } => (op, part, why),
        };
        drop(scope);
        let task = Task::of(tag, inode, op, part);
        self.accept(task, place, why).map(|()| None)
    }

    /// Submits a [`Request`], an operation with options, like [`submit`](Self::submit).
    ///
    /// # Errors
    ///
    /// [`ChainBusy`], with the request, when the ring is full.
    pub fn submit_request(
        &self,
        request: Request,
    ) -> std::result::Result<Option<Completion>, ChainBusy> {
        match self.shared.start(request, None) {
            Started::Done(completion) => Ok(Some(completion)),
            Started::Queued(_) => Ok(None),
            Started::Full(request) => {
                Err(ChainBusy { requests: vec![request], depth: self.shared.depth })
            }
        }
    }

    /// Submits a chain: each operation begins when its predecessor has succeeded in full; a short
    /// read or write ends the chain. When one fails, those behind it are
    /// [cancelled](FsError::OperationCancelled).
    ///
    /// Returns the operations that are done already, on this thread; the results of the others are
    /// [taken](Self::poll) later. Every operation has one result.
    ///
    /// # Errors
    ///
    /// [`ChainBusy`], with the unchanged chain: a chain is accepted as a whole or not at all.
    pub fn submit_chain(
        &self,
        requests: Vec<Request>,
    ) -> std::result::Result<Vec<Completion>, ChainBusy> {
        let shared = &*self.shared;
        let scope = no_waiting();
        if !shared.claim(requests.len(), false) {
            return Err(ChainBusy { requests, depth: shared.depth });
        }
        let (mut done, mut entries) = (Vec::new(), Vec::new());
        let mut is_broken = false;
        for mut request in requests {
            let Request { tag, ref inode, drains, timeout, to_worker, .. } = request;
            let op = std::mem::replace(&mut request.op, Op::Stat);
            if is_broken {
                shared.counters.submitted.cancelled.fetch_add(1, Ordering::Relaxed);
                let mut completion = Completion::cancelled(tag, op, CHAIN);
                completion.is_inline = true;
                done.push(completion);
                continue;
            }
            let mut place = Shared::place(inode, &op, drains, timeout);
            let is_link = !entries.is_empty();
            let wanted = op.len();
            let ways = if to_worker || is_link { Ways::Worker } else { Ways::Attempt };
            match shared.look(tag, inode, op, &place, ways) {
                Looked::Away => {}
                Looked::Done(completion) => {
                    is_broken = !op::is_whole(wanted, &completion.result);
                    done.push(completion);
                }
                Looked::Later { op, part, why } => {
                    request.op = op;
                    shared.count(why);
                    place.has_begun = part.is_some();
                    let task = Task { part, ..Task::new(request, None) };
                    entries.push(Entry { place, task, is_taken: true, is_link });
                }
            }
        }
        drop(scope);
        (0..done.len()).for_each(|_| shared.leave());
        if !entries.is_empty() {
            // Only the owner closes the queue.
            _ = shared.queue.push(entries);
        }
        Ok(done)
    }

    /// Returns an operation as a future, which is submitted when it is first polled and waits for
    /// room in the ring. Its result goes to the future, and not to [`poll`](Self::poll) and
    /// [`wait`](Self::wait).
    pub fn run(&self, inode: &Inode, op: Op) -> Running {
        self.run_request(Request::new(0, inode, op))
    }

    /// Returns a [`Request`] as a future, like [`run`](Self::run).
    pub fn run_request(&self, request: Request) -> Running {
        Running::new(Arc::clone(&self.shared), request)
    }

    /// Submits a [`Op::Read`] into memory of the caller, like [`submit`](Self::submit). `Some` when
    /// `out` is filled, with the number of bytes read. `None` when a worker reads: its bytes come
    /// in the buffer of the completion, and the contents of `out` are undefined.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the returned operation has a buffer of its own.
    pub fn submit_read(
        &self,
        tag: u64,
        inode: &Inode,
        out: &mut [u8],
        offset: u64,
    ) -> std::result::Result<Option<Result<u64>>, Busy> {
        let _scope = no_waiting();
        if let Err(error) = inode.check_of(self.fs()) {
            return Ok(Some(Err(error)));
        }
        let op = |len| Op::Read { offset, buffer: vec![0; len] };
        if self.shared.is_full() {
            return Err(Busy { op: op(out.len()) });
        }
        let place = Shared::place(inode, &op(0), false, None);
        let mut why = Why::Behind;
        if !self.shared.queue.is_behind(&place) {
            match work::attempt_read(inode, offset, out) {
                Ok(result) => {
                    self.shared.counters.submitted.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result));
                }
                Err(reason) => why = Why::Refused(reason),
            }
        }
        let task = Task::of(tag, inode, op(out.len()), None);
        self.accept(task, place, why).map(|()| None)
    }

    /// Submits a [`Op::Write`] of borrowed bytes, like [`submit`](Self::submit): they are copied
    /// only if a worker writes them. `Some` when they are written, with their number.
    ///
    /// # Errors
    ///
    /// As [`submit`](Self::submit); the returned operation has a copy of the bytes.
    pub fn submit_write(
        &self,
        tag: u64,
        inode: &Inode,
        bytes: &[u8],
        offset: u64,
    ) -> std::result::Result<Option<Result<u64>>, Busy> {
        let _scope = no_waiting();
        if let Err(error) = inode.check_of(self.fs()) {
            return Ok(Some(Err(error)));
        }
        let op = |bytes: &[u8]| Op::Write { offset, bytes: bytes.to_vec() };
        if self.shared.is_full() {
            return Err(Busy { op: op(bytes) });
        }
        let place = Shared::place(inode, &op(&[]), false, None);
        let (mut part, mut why) = (None, Why::Behind);
        if !self.shared.queue.is_behind(&place) {
            match inode.try_write_at(bytes, offset) {
                Ok(Ok(written)) if written < bytes.len() => {
                    (part, why) = (Some((offset, written)), Why::Part);
                }
                Ok(result) => {
                    self.shared.counters.submitted.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result.map(|written| written as u64)));
                }
                Err(would_wait) => why = Why::Refused(would_wait.reason),
            }
        }
        let task = Task::of(tag, inode, op(bytes), part);
        self.accept(task, place, why).map(|()| None)
    }

    /// Gives a task to the workers.
    fn accept(&self, task: Task, mut place: Place, why: Why) -> std::result::Result<(), Busy> {
        // A begun operation cannot be returned, even if others have filled the ring meanwhile.
        if !self.shared.claim(1, task.part.is_some()) {
            return Err(Busy { op: task.op });
        }
        self.shared.count(why);
        place.has_begun = task.part.is_some();
        // Only the owner closes the queue.
        _ = self.shared.queue.push_one(Entry { place, task, is_taken: true, is_link: false });
        Ok(())
    }

    /// Cancels the operations with this tag that have not begun, and those behind them in their
    /// chains; their results are [`FsError::OperationCancelled`]. Returns the number of cancelled
    /// operations. Operations that have begun complete.
    pub fn cancel(&self, tag: u64) -> usize {
        self.shared.cancel(|task| task.tag == tag)
    }

    /// Cancels every operation that has not begun. Returns the number of cancelled operations.
    pub fn cancel_all(&self) -> usize {
        self.shared.cancel(|_| true)
    }

    /// Takes the result of an operation that a worker has done, if there is one.
    ///
    /// # Panics
    ///
    /// If the operation panicked, which is a bug of this crate: the panic is passed on.
    pub fn poll(&self) -> Option<Completion> {
        self.shared.take(|| Patience::None)
    }

    /// Takes the result of an operation that a worker has done; waits for the next one if there is
    /// none. Returns `None` when no operation is with the workers.
    ///
    /// # Panics
    ///
    /// As [`poll`](Self::poll).
    pub fn wait(&self) -> Option<Completion> {
        self.shared.take(|| Patience::Endless)
    }

    /// Takes a result like [`wait`](Self::wait), but waits no longer than `time`.
    ///
    /// # Panics
    ///
    /// As [`poll`](Self::poll).
    pub fn wait_for(&self, time: Duration) -> Option<Completion> {
        let end = SystemClock.monotonic().saturating_add(time);
        self.shared.take(|| match end.checked_sub(SystemClock.monotonic()) {
            Some(left) if !left.is_zero() => Patience::For(left),
            _ => Patience::None,
        })
    }

    /// Returns a descriptor for `poll`, `epoll` and their like, an `eventfd` on Linux: it is
    /// readable when there may be results to take, until [`poll`](Self::poll) has found none. Take
    /// the results that exist already before waiting for it for the first time.
    ///
    /// # Errors
    ///
    /// That of the system when it has no more descriptors.
    pub fn event_fd(&self) -> io::Result<BorrowedFd<'_>> {
        let signal = &self.shared.signal;
        if signal.get().is_none() {
            let made = Signal::new()?;
            made.raise();
            // Another thread may have made one first.
            _ = signal.set(made);
        }
        let made = signal.get().ok_or_else(|| io::Error::from(io::ErrorKind::Other))?;
        if let Some(lane) = &self.shared.lane {
            lane.signal(made)?;
        }
        Ok(made.as_fd())
    }

    /// Returns the file system of the ring.
    pub fn fs(&self) -> &Fs {
        &self.shared.fs
    }

    /// Returns the limit of the operations under way.
    pub fn depth(&self) -> usize {
        self.shared.depth
    }

    /// Returns how the ring gives direct operations to the device without a worker; `None` if it
    /// cannot: the mount is read-only, or neither the device nor the system has a queue for that.
    pub fn engine(&self) -> Option<Engine> {
        self.shared.lane.as_ref().map(Lane::engine)
    }

    /// Returns the counts of what the ring has done.
    pub fn stats(&self) -> RingStats {
        self.shared.counters.read()
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // Workers may be needed to repeat some, so this comes before they end.
        self.shared.settle_lane();
        self.shared.queue.close();
        // This waits until the workers have done all accepted operations.
        self.crews.clear();
        // Futures that wait for room learn that the ring is closed.
        self.shared.room.wake_all();
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring").field("depth", &self.depth()).field("stats", &self.stats()).finish()
    }
}
