//! What submitters, takers and workers of a ring share.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant_sync::{Clock, SystemClock, no_waiting};

use super::op::{Completion, Op, Request, Value};
use super::order::Place;
use super::queue::{Ended, Entry, Job, Patience, Run};
use super::running::Slot;
use super::work::{self, AtOnce, Tried};
use super::{CHAIN, DIRECT_BATCH, Looked, Outcome, Returned, Shared, Started, Task, Ways, Why};
use crate::inode::Inode;

const ENDED: &str = "the ring has ended";
const BY_CALLER: &str = "who submitted it has thought better of it";
const TOO_LATE: &str = "its time was over";

/// Outcomes of awaited operations, kept until no lock is held.
#[derive(Default)]
pub(super) struct Awaited(Vec<(Arc<Slot>, Outcome)>);

impl Awaited {
    /// Cancels a task; returns its outcome if it is to be taken from the ring.
    fn cancel(&mut self, task: Task, why: &'static str, shared: &Shared) -> Option<Outcome> {
        shared.counters.submitted.cancelled.fetch_add(1, Ordering::Relaxed);
        let Task { tag, op, to, .. } = task;
        self.put(to, Ok(Completion::cancelled(tag, op, why).into()))
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
    pub(super) fn work(&self) {
        let (mut next, mut is_back) = (None, true);
        while let Some(Run { first, behind, is_tried }) =
            next.take().or_else(|| self.queue.next(is_back, Task::goes_along))
        {
            is_back = false;
            let one = match is_tried {
                true => self.work_at_once(first, behind),
                false => Some(self.open(first)),
            };
            let Some((mut task, job)) = one else { continue };
            // What is repeated has no part in the count of those that may be held up.
            if task.op.is_direct() && task.repeats.is_none() {
                self.work_direct(task, job);
                is_back = true;
                continue;
            }
            let (to, repeats) = (task.to.take(), task.repeats.take());
            let (outcome, went_well) = work::finish(task);
            next = self.settle(job, to, outcome, went_well, true);
            // Its result is there before it counts as done.
            drop(repeats);
        }
    }

    fn open(&self, job: Job<Task>) -> (Task, Job<()>) {
        self.counters.worked.begun.fetch_add(1, Ordering::Relaxed);
        self.open_uncounted(job)
    }

    fn open_uncounted(&self, job: Job<Task>) -> (Task, Job<()>) {
        let (task, job) = job.open();
        if task.drains {
            // What went before and is not among the tasks.
            self.settle_lane();
        }
        (task, job)
    }

    /// Does tasks of one file, one after the other, and reports them together; returns the first one that has to wait.
    fn work_at_once(&self, first: Job<Task>, behind: Vec<Job<Task>>) -> Option<(Task, Job<()>)> {
        let mut awaited = Awaited::default();
        let mut ended = Vec::with_capacity(1 + behind.len());
        let mut jobs = std::iter::once(first).chain(behind);
        let mut stuck = None;
        while stuck.is_none()
            && let Some(job) = jobs.next()
        {
            let (mut task, job) = self.open_uncounted(job);
            let to = task.to.take();
            match work::at_once(task) {
                AtOnce::Done(outcome, went_well) => {
                    let result = awaited.put(to, outcome);
                    ended.push(Ended { job, went_well, result });
                }
                AtOnce::Waits(task) => stuck = Some((Task { to, ..task }, job)),
            }
        }
        let has_ended = !ended.is_empty();
        let (done, one_more) = (ended.len() as u64, u64::from(stuck.is_some()));
        self.counters.worked.begun.fetch_add(done + one_more, Ordering::Relaxed);
        self.counters.worked.completed.fetch_add(done, Ordering::Relaxed);
        let at = stuck.as_mut().map(|(_, job)| job);
        let cancel = |task| awaited.cancel(task, CHAIN, self);
        self.queue.settle_run(ended, jobs.collect(), at, cancel);
        if has_ended {
            self.tell(awaited);
        }
        stuck
    }

    pub(super) fn work_direct(&self, task: Task, job: Job<()>) {
        let (ino, may_be_held) = (task.inode.ino(), task.op.may_be_held());
        let more = |is_new: bool| {
            let fits = |task: &Task| {
                task.inode.ino() == ino && task.op.is_direct() && task.repeats.is_none()
            };
            let most = DIRECT_BATCH - usize::from(!is_new);
            let jobs = self.queue.more(may_be_held, is_new, most, fits);
            jobs.into_iter().map(|job| self.open(job)).map(|(task, job)| (job, task)).collect()
        };
        work::finish_direct((job, task), more, |job, to, outcome, went_well| {
            self.settle(job, to, outcome, went_well, false);
        });
    }

    pub(super) fn settle(
        &self,
        job: Job<()>,
        to: Option<Arc<Slot>>,
        outcome: Outcome,
        went_well: bool,
        continues: bool,
    ) -> Option<Run<Task>> {
        let mut awaited = Awaited::default();
        let result = awaited.put(to, outcome);
        let ended = Ended { job, went_well, result };
        self.counters.worked.completed.fetch_add(1, Ordering::Relaxed);
        let cancel = |task| awaited.cancel(task, CHAIN, self);
        let next = self.queue.settle(ended, continues, Task::goes_along, cancel);
        self.tell(awaited);
        next
    }

    /// Delivers outcomes to futures and signals the descriptor. The caller holds no lock.
    pub(super) fn tell(&self, awaited: Awaited) {
        if let Some(signal) = self.signal.get() {
            signal.raise();
        }
        for (slot, outcome) in awaited.0 {
            self.leave();
            slot.fill(outcome);
        }
    }

    /// Counts one operation less under way.
    pub(super) fn leave(&self) {
        // Ordered with the look of `wake_one`, as futures order their entry with theirs at the room.
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        self.room.wake_one();
    }

    /// Cancels tasks whose deadline has passed.
    pub(super) fn watch(&self) {
        let awaited = std::cell::RefCell::new(Awaited::default());
        self.queue.watch(
            || SystemClock.monotonic(),
            |task| awaited.borrow_mut().cancel(task, TOO_LATE, self),
            || self.tell(awaited.take()),
        );
    }

    pub(super) fn cancel(&self, fits: impl Fn(&Task) -> bool) -> usize {
        let mut awaited = Awaited::default();
        let count = self.queue.cancel(fits, |task| awaited.cancel(task, BY_CALLER, self));
        self.tell(awaited);
        count
    }

    /// Cancels one awaited operation.
    pub(super) fn cancel_one(&self, number: u64) -> bool {
        let mut awaited = Awaited::default();
        let done = self.queue.cancel_one(number, |task| awaited.cancel(task, BY_CALLER, self));
        self.tell(awaited);
        done
    }

    pub(super) fn place(inode: &Inode, op: &Op, drains: bool, timeout: Option<Duration>) -> Place {
        let (files, is_change, may_be_held) = (op.files(inode), op.is_change(), op.may_be_held());
        let deadline = timeout.map(|time| SystemClock.monotonic().saturating_add(time));
        Place { files, is_change, may_be_held, drains, has_begun: false, deadline }
    }

    /// Does an operation, or gives it to the device, if that needs no wait.
    pub(super) fn look(
        &self,
        tag: u64,
        inode: &Inode,
        mut op: Op,
        place: &Place,
        ways: Ways,
    ) -> Looked {
        if let Err(error) = inode.check_of(&self.fs) {
            return Looked::Done(Completion::of(tag, Err(error), op, true));
        }
        let later = |op, why| Looked::Later { op, part: None, why };
        if ways == Ways::Worker {
            return later(op, Why::Request);
        }
        if !op.may_be_inline() {
            let may_fly = ways == Ways::All && !place.drains && op.is_direct();
            let Some(lane) = self.lane.as_ref().filter(|_| may_fly) else {
                return later(op, Why::Kind);
            };
            if self.queue.is_behind(place) {
                return later(op, Why::Behind);
            }
            return match self.fly(lane, tag, inode, &mut op) {
                true => Looked::Away,
                false => later(op, Why::Kind),
            };
        }
        if self.queue.is_behind(place) || (place.drains && self.is_flying()) {
            return later(op, Why::Behind);
        }
        match work::attempt(inode, op) {
            Tried::Done(result, op, value) => {
                self.counters.submitted.inline.fetch_add(1, Ordering::Relaxed);
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
    pub(super) fn start(&self, mut request: Request, slot: Option<&Arc<Slot>>) -> Started {
        let _scope = no_waiting();
        if self.is_full() {
            return Started::Full(request);
        }
        let Request { tag, ref inode, drains, timeout, to_worker, .. } = request;
        let mut place = Shared::place(inode, &request.op, drains, timeout);
        let op = std::mem::replace(&mut request.op, Op::Stat);
        let ways = match (to_worker, slot) {
            (true, _) => Ways::Worker,
            // Nobody asks the device for a future.
            (false, Some(_)) => Ways::Attempt,
            (false, None) => Ways::All,
        };
        match self.look(tag, inode, op, &place, ways) {
            Looked::Done(completion) => Started::Done(completion),
            Looked::Away => Started::Queued(0),
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
                match self.queue.push_one(Entry { place, task, is_taken, is_link: false }) {
                    Ok(number) => Started::Queued(number),
                    Err(entry) => self.refuse(entry.task),
                }
            }
        }
    }

    /// Refuses an operation submitted to a closed ring, by a future that outlived it.
    pub(super) fn refuse(&self, Task { tag, op, part, .. }: Task) -> Started {
        self.leave();
        Started::Done(match (part, &op) {
            (None, _) => Completion::cancelled(tag, op, ENDED),
            // The completion tells how much was done.
            (Some((at, _)), Op::Append { .. }) => Completion::of(tag, Ok(at), op, true),
            (Some((_, done)), _) => Completion::of(tag, Ok(done as u64), op, true),
        })
    }

    /// Returns whether the ring is full, and counts that. Room is claimed only for operations that
    /// go to a worker: inline ones are never under way.
    pub(super) fn is_full(&self) -> bool {
        let is_full = self.under_way.load(Ordering::Acquire) >= self.depth;
        if is_full {
            self.counters.submitted.busy.fetch_add(1, Ordering::Relaxed);
        }
        is_full
    }

    /// Claims room for `count` operations, unless there is too little and `anyhow` is false.
    pub(super) fn claim(&self, count: usize, anyhow: bool) -> bool {
        let claim = |held: usize| {
            (anyhow || held.saturating_add(count) <= self.depth).then_some(held + count)
        };
        let claimed = self.under_way.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim);
        if claimed.is_err() {
            self.counters.submitted.busy.fetch_add(1, Ordering::Relaxed);
        }
        claimed.is_ok()
    }

    pub(super) fn count(&self, why: Why) {
        let counters = &self.counters.submitted;
        let counter = match why {
            Why::Behind => &counters.behind,
            Why::Kind => &counters.by_kind,
            Why::Request => &counters.by_request,
            Why::Part => &counters.in_parts,
            Why::Refused(reason) => &counters.refused[reason as usize],
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn take(&self, patience: impl Fn() -> Patience) -> Option<Completion> {
        let Some(lane) = &self.lane else { return self.take_of_queue(patience) };
        if !lane.is_flying() {
            let taken = self.take_of_workers(lane, &patience);
            if taken.is_some() || !lane.is_flying() {
                return taken;
            }
        }
        self.take_of_both(lane, patience)
    }

    /// Takes a result of the workers.
    pub(super) fn take_of_queue(&self, patience: impl Fn() -> Patience) -> Option<Completion> {
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
        Some(self.taken(taken))
    }

    pub(super) fn taken(&self, taken: Outcome) -> Completion {
        self.leave();
        match taken {
            Ok(Returned { completion, inode }) => {
                drop(inode);
                completion
            }
            Err(panic) => resume_unwind(panic),
        }
    }
}
