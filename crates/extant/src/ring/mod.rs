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
//! - R6. Reads continue while changes wait for a thaw or a limit: one worker is reserved for them.

#[cfg(test)]
mod model;
mod op;
mod order;
mod queue;
mod running;
mod work;

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_sync::threads::{Crew, ThreadError};
use extant_sync::{Clock, Signal, SystemClock, no_waiting};

use crate::attempt::WaitReason;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;

pub use op::{Busy, ChainBusy, Completion, Op, Request, Value};
use order::Place;
use queue::{Ended, Entry, Job, Patience, Queue};
pub use running::Running;
use running::{Room, Slot};
use work::Tried;

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

/// Counts of what a ring has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RingStats {
    /// Number of operations done on the submitter's thread.
    pub inline: u64,
    /// Number of operations sent to a worker because they would have had to wait, by
    /// [`WaitReason::ALL`].
    refused: [u64; WaitReason::ALL.len()],
    /// Number of operations sent to a worker because an earlier one of the same file was waiting.
    pub behind: u64,
    /// Number of operations sent to a worker because their kind may always wait: syncs, direct I/O,
    /// names, truncate, fallocate.
    pub by_kind: u64,
    /// Number of operations sent to a worker because the submitter [asked for
    /// it](Request::on_worker), or because they have a predecessor in their chain.
    pub by_request: u64,
    /// Number of attempts that did a part and left the rest to a worker.
    pub in_parts: u64,
    /// Number of operations that workers have begun.
    pub begun: u64,
    /// Number of operations that workers have done.
    pub completed: u64,
    /// Number of operations cancelled before they began.
    pub cancelled: u64,
    /// Number of operations or chains returned because the ring was full.
    pub busy: u64,
}

impl RingStats {
    /// Returns the number of operations sent to a worker because an attempt was refused for this
    /// reason.
    pub fn refused(&self, reason: WaitReason) -> u64 {
        self.refused[reason as usize]
    }

    /// Returns the number of operations sent to workers, for any reason.
    pub fn punted(&self) -> u64 {
        let others = self.behind + self.by_kind + self.by_request + self.in_parts;
        self.refused.iter().sum::<u64>() + others
    }
}

/// The counters behind [`RingStats`].
#[derive(Default)]
struct Counters {
    inline: AtomicU64,
    refused: [AtomicU64; WaitReason::ALL.len()],
    behind: AtomicU64,
    by_kind: AtomicU64,
    by_request: AtomicU64,
    in_parts: AtomicU64,
    begun: AtomicU64,
    completed: AtomicU64,
    cancelled: AtomicU64,
    busy: AtomicU64,
}

/// A result, or the panic of the operation.
type Outcome = std::result::Result<Completion, Box<dyn Any + Send>>;

/// An operation for a worker.
struct Task {
    tag: u64,
    inode: Inode,
    op: Op,
    /// Offset and number of the bytes done already.
    part: Option<(u64, usize)>,
    /// The slot of the future that awaits it; without one, the result is taken from the ring.
    to: Option<Arc<Slot>>,
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

/// Outcome of the submitter's attempt.
enum Looked {
    Done(Completion),
    Later { op: Op, part: Option<(u64, usize)>, why: Why },
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
    /// Number of operations with the workers or not taken yet (R3).
    under_way: AtomicUsize,
    room: Room,
    signal: OnceLock<Signal>,
    counters: Counters,
}

const ENDED: &str = "the ring has ended";
const BY_CALLER: &str = "who submitted it has thought better of it";
const TOO_LATE: &str = "its time was over";
const CHAIN: &str = "the operation before it in its chain failed, or did less than it was asked";

/// A queue of operations on an open file system. Any number of threads may submit and take; each
/// operation is done by the thread that submits it if nothing has to be waited for, and by a worker
/// otherwise.
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
        let shared = Arc::new(Shared {
            fs: self.clone(),
            depth,
            queue: Queue::new(workers),
            under_way: AtomicUsize::new(0),
            room: Room::default(),
            signal: OnceLock::new(),
            counters: Counters::default(),
        });
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
    fn new(request: Request, to: Option<&Arc<Slot>>) -> Task {
        let Request { tag, inode, op, .. } = request;
        Task { tag, inode, op, part: None, to: to.map(Arc::clone) }
    }
}

/// Outcomes of awaited operations, kept until no lock is held.
#[derive(Default)]
struct Awaited(Vec<(Arc<Slot>, Outcome)>);

impl Awaited {
    /// Cancels a task; returns its outcome if it is to be taken from the ring.
    fn cancel(&mut self, task: Task, why: &'static str, shared: &Shared) -> Option<Outcome> {
        shared.counters.cancelled.fetch_add(1, Ordering::Relaxed);
        let Task { tag, op, to, .. } = task;
        self.put(to, Ok(Completion::cancelled(tag, op, why)))
    }

    fn put(&mut self, to: Option<Arc<Slot>>, outcome: Outcome) -> Option<Outcome> {
        match to {
            None => Some(outcome),
            Some(slot) => {
                self.0.push((slot, outcome));
                None
            }
        }
    }
}

impl Shared {
    /// Runs tasks until the queue is closed and empty.
    fn work(&self) {
        let mut next = None;
        while let Some(job) = next.take().or_else(|| self.queue.next()) {
            let (mut task, job) = self.open(job);
            if task.op.is_direct() {
                self.work_direct(task, job);
                continue;
            }
            let to = task.to.take();
            let (outcome, went_well) = work::finish(task);
            next = self.settle(job, to, outcome, went_well, true);
        }
    }

    fn open(&self, job: Job<Task>) -> (Task, Job<()>) {
        self.counters.begun.fetch_add(1, Ordering::Relaxed);
        job.open()
    }

    fn work_direct(&self, task: Task, job: Job<()>) {
        let (ino, may_be_held) = (task.inode.ino(), task.op.may_be_held());
        let more = |is_new: bool| {
            let fits = |task: &Task| task.inode.ino() == ino && task.op.is_direct();
            let most = DIRECT_BATCH - usize::from(!is_new);
            let jobs = self.queue.more(may_be_held, is_new, most, fits);
            jobs.into_iter().map(|job| self.open(job)).map(|(task, job)| (job, task)).collect()
        };
        work::finish_direct((job, task), more, |job, to, outcome, went_well| {
            self.settle(job, to, outcome, went_well, false);
        });
    }

    fn settle(
        &self,
        job: Job<()>,
        to: Option<Arc<Slot>>,
        outcome: Outcome,
        went_well: bool,
        continues: bool,
    ) -> Option<Job<Task>> {
        let mut awaited = Awaited::default();
        let result = awaited.put(to, outcome);
        let ended = Ended { job, went_well, result };
        self.counters.completed.fetch_add(1, Ordering::Relaxed);
        let next = self.queue.settle(ended, continues, |task| awaited.cancel(task, CHAIN, self));
        self.tell(awaited);
        next
    }

    /// Delivers outcomes to futures and signals the descriptor. The caller holds no lock.
    fn tell(&self, awaited: Awaited) {
        if let Some(signal) = self.signal.get() {
            signal.raise();
        }
        for (slot, outcome) in awaited.0 {
            self.leave();
            slot.fill(outcome);
        }
    }

    /// Counts one operation less under way.
    fn leave(&self) {
        self.under_way.fetch_sub(1, Ordering::AcqRel);
        self.room.wake_one();
    }

    /// Cancels tasks whose deadline has passed.
    fn watch(&self) {
        let awaited = std::cell::RefCell::new(Awaited::default());
        self.queue.watch(
            || SystemClock.monotonic(),
            |task| awaited.borrow_mut().cancel(task, TOO_LATE, self),
            || self.tell(awaited.take()),
        );
    }

    fn cancel(&self, fits: impl Fn(&Task) -> bool) -> usize {
        let mut awaited = Awaited::default();
        let count = self.queue.cancel(fits, |task| awaited.cancel(task, BY_CALLER, self));
        self.tell(awaited);
        count
    }

    /// Cancels one awaited operation.
    fn cancel_one(&self, number: u64) -> bool {
        let mut awaited = Awaited::default();
        let done = self.queue.cancel_one(number, |task| awaited.cancel(task, BY_CALLER, self));
        self.tell(awaited);
        done
    }

    fn place(inode: &Inode, op: &Op, drains: bool, timeout: Option<Duration>) -> Place {
        let (files, is_change, may_be_held) = (op.files(inode), op.is_change(), op.may_be_held());
        let deadline = timeout.map(|time| SystemClock.monotonic().saturating_add(time));
        Place { files, is_change, may_be_held, drains, has_begun: false, deadline }
    }

    /// Does an operation if that needs no wait.
    fn look(&self, tag: u64, inode: &Inode, op: Op, place: &Place, to_worker: bool) -> Looked {
        if let Err(error) = inode.check_of(&self.fs) {
            return Looked::Done(Completion::of(tag, Err(error), op, true));
        }
        let later = |op, why| Looked::Later { op, part: None, why };
        if to_worker {
            return later(op, Why::Request);
        }
        if !op.may_be_inline() {
            return later(op, Why::Kind);
        }
        if self.queue.is_behind(place) {
            return later(op, Why::Behind);
        }
        match work::attempt(inode, op) {
            Tried::Done(result, op, value) => {
                self.counters.inline.fetch_add(1, Ordering::Relaxed);
                let mut completion = Completion::of(tag, result, op, true);
                if value != Value::Nothing {
                    completion.value = value;
                }
                Looked::Done(completion)
            }
            Tried::Never(op) => later(op, Why::Kind),
            Tried::Refused(op, reason) => later(op, Why::Refused(reason)),
            Tried::Part(op, at, done) => {
                Looked::Later { op, part: Some((at, done)), why: Why::Part }
            }
        }
    }

    /// Submits a request; its outcome goes to `slot` if it is not done here.
    fn start(&self, mut request: Request, slot: Option<&Arc<Slot>>) -> Started {
        let _scope = no_waiting();
        if self.is_full() {
            return Started::Full(request);
        }
        let Request { tag, ref inode, drains, timeout, to_worker, .. } = request;
        let mut place = Shared::place(inode, &request.op, drains, timeout);
        let op = std::mem::replace(&mut request.op, Op::Stat);
        match self.look(tag, inode, op, &place, to_worker) {
            Looked::Done(completion) => Started::Done(completion),
            Looked::Later { op, part, why } => {
                request.op = op;
                // A begun operation cannot be returned, even if others have filled the ring
                // meanwhile.
                if !self.claim(1, part.is_some()) {
                    return Started::Full(request);
                }
                place.has_begun = part.is_some();
                let task = Task { part, ..Task::new(request, slot) };
                let is_taken = slot.is_none();
                self.count(why);
                match self.queue.push(vec![Entry { place, task, is_taken, is_link: false }]) {
                    Ok(numbers) => Started::Queued(numbers.first().copied().unwrap_or(0)),
                    Err(entries) => self.refuse(entries),
                }
            }
        }
    }

    /// Refuses an operation submitted to a closed ring, by a future that outlived it.
    fn refuse(&self, entries: Vec<Entry<Task>>) -> Started {
        self.leave();
        let task = entries.into_iter().next().map(|entry| entry.task);
        let Some(Task { tag, op, part, .. }) = task else {
            return Started::Done(Completion::cancelled(0, Op::Stat, ENDED));
        };
        Started::Done(match (part, &op) {
            (None, _) => Completion::cancelled(tag, op, ENDED),
            // The completion tells how much was done.
            (Some((at, _)), Op::Append { .. }) => Completion::of(tag, Ok(at), op, true),
            (Some((_, done)), _) => Completion::of(tag, Ok(done as u64), op, true),
        })
    }

    /// Returns whether the ring is full, and counts that. Room is claimed only for operations that
    /// go to a worker: inline ones are never under way.
    fn is_full(&self) -> bool {
        let is_full = self.under_way.load(Ordering::Acquire) >= self.depth;
        if is_full {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
        }
        is_full
    }

    /// Claims room for `count` operations, unless there is too little and `anyhow` is false.
    fn claim(&self, count: usize, anyhow: bool) -> bool {
        let claim = |held: usize| {
            (anyhow || held.saturating_add(count) <= self.depth).then_some(held + count)
        };
        let claimed = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim);
        if claimed.is_err() {
            self.counters.busy.fetch_add(1, Ordering::Relaxed);
        }
        claimed.is_ok()
    }

    fn count(&self, why: Why) {
        let counters = &self.counters;
        let counter = match why {
            Why::Behind => &counters.behind,
            Why::Kind => &counters.by_kind,
            Why::Request => &counters.by_request,
            Why::Part => &counters.in_parts,
            Why::Refused(reason) => &counters.refused[reason as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn take(&self, patience: impl Fn() -> Patience) -> Option<Completion> {
        let taken = match (self.queue.take(|| Patience::None), self.signal.get()) {
            (Some(taken), _) => taken,
            (None, signal) => {
                // This comes before the check, so that results in between raise the signal again.
                if let Some(signal) = signal {
                    signal.clear();
                }
                self.queue.take(patience)?
            }
        };
        self.leave();
        match taken {
            Ok(completion) => Some(completion),
            Err(panic) => resume_unwind(panic),
        }
    }
}

impl Ring {
    /// Submits an operation on `inode`. `tag` comes back with the result, which is
    /// [`FsError::OtherFileSystem`] for an inode of another mount than [`fs`](Self::fs).
    ///
    /// Returns `Some` when the operation is done already, on this thread, and `None` when a worker
    /// has it: its result is [taken](Self::poll) later. The call waits for nothing but memory and
    /// locks that are held for a few instructions.
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
        let (op, part, why) = match shared.look(tag, inode, op, &place, false) {
            Looked::Done(completion) => return Ok(Some(completion)),
            Looked::Later { op, part, why } => (op, part, why),
        };
        drop(scope);
        let task = Task { tag, inode: inode.clone(), op, part, to: None };
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
                shared.counters.cancelled.fetch_add(1, Ordering::Relaxed);
                let mut completion = Completion::cancelled(tag, op, CHAIN);
                completion.is_inline = true;
                done.push(completion);
                continue;
            }
            let mut place = Shared::place(inode, &op, drains, timeout);
            let is_link = !entries.is_empty();
            let wanted = op.len();
            match shared.look(tag, inode, op, &place, to_worker || is_link) {
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
                    self.shared.counters.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result));
                }
                Err(reason) => why = Why::Refused(reason),
            }
        }
        let task = Task { tag, inode: inode.clone(), op: op(out.len()), part: None, to: None };
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
                    self.shared.counters.inline.fetch_add(1, Ordering::Relaxed);
                    return Ok(Some(result.map(|written| written as u64)));
                }
                Err(would_wait) => why = Why::Refused(would_wait.reason),
            }
        }
        let task = Task { tag, inode: inode.clone(), op: op(bytes), part, to: None };
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
        _ = self.shared.queue.push(vec![Entry { place, task, is_taken: true, is_link: false }]);
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

    /// Returns the counts of what the ring has done.
    pub fn stats(&self) -> RingStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &self.shared.counters;
        RingStats {
            inline: read(&counters.inline),
            refused: std::array::from_fn(|at| read(&counters.refused[at])),
            behind: read(&counters.behind),
            by_kind: read(&counters.by_kind),
            by_request: read(&counters.by_request),
            in_parts: read(&counters.in_parts),
            begun: read(&counters.begun),
            completed: read(&counters.completed),
            cancelled: read(&counters.cancelled),
            busy: read(&counters.busy),
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
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
