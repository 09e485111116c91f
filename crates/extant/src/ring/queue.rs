//! The queue of a ring: tasks that wait for a worker, in their order, and results of workers.
//!
//! Tasks and results are type parameters, so this module does not know files, and the model checker
//! runs the same code over its own locks (`model`).
//!
//! # Invariants
//!
//! - Q1. A worker *looks* while it is neither asleep nor at a task that may wait. It sleeps only when no task is ready
//!   that it may take; and who leaves one behind wakes a worker where none looks, or where those who look have much to
//!   do. So workers wake each other when they begin to wait, and tasks that need no wait stay with one.
//! - Q2. At least one worker does not run tasks that may be held up, so reads continue during a
//!   freeze or over a limit.
//! - Q3. A result is stored before its operation counts as finished; `pending` counts the results
//!   to come for takers.
//! - Q4. A worker that has several tasks at once does them without waiting. Before it waits for one it reports those
//!   that are done and puts back those behind, so nothing is delayed by more than a few attempts, and what has not
//!   begun can be cancelled.

use std::collections::VecDeque;
use std::time::Duration;

use extant_base::sabotage;

use super::order::{Files, Order, Place};
use super::sync::{AtomicUsize, Condvar, Mutex, Ordering, queue_lock};

/// Number of tasks of one file that a worker runs before others have their turn.
const RUN_MAX: u32 = 32;

/// Number of ready tasks for each worker that looks, from which another one is woken.
const BACKLOG: usize = 8;

struct State<T, R> {
    order: Order<T>,
    done: VecDeque<R>,
    /// Number of results to come that are taken from the queue.
    pending: usize,
    /// Number of workers running tasks that may be held up.
    holding: usize,
    /// Number of workers that look (Q1), those included that were woken and are on their way.
    looking: usize,
    /// Number of sleeping workers that nobody has woken.
    asleep: usize,
    /// Number of workers that were woken and have not arrived.
    woken: usize,
    closed: bool,
}

/// A queue of tasks `T` with results `R`.
pub(super) struct Queue<T, R> {
    state: Mutex<State<T, R>>,
    /// Signalled when a task is ready, or the queue is closed.
    work: Condvar,
    /// Signalled when a result is stored, or none is pending.
    done: Condvar,
    /// Signalled when the next deadline has changed, or the queue is closed.
    timer: Condvar,
    /// Number of unfinished operations; while it is 0, submitters need not take the lock.
    unfinished: AtomicUsize,
    /// Number of results to come, for a look without the lock; stored under it.
    pending: AtomicUsize,
    /// Number of takers that wait, or are about to.
    takers: AtomicUsize,
    /// Limit of the workers running tasks that may be held up.
    holding_max: usize,
}

/// A task that a worker executes.
pub(super) struct Job<T> {
    pub(super) number: u64,
    pub(super) task: T,
    files: Files,
    may_be_held: bool,
    /// Number of tasks of these files that the worker has done in a row.
    run: u32,
}

/// Tasks of one file that a worker has at once.
pub(super) struct Run<T> {
    pub(super) first: Job<T>,
    /// Those to be done behind it, in this order; they were begun ahead of their turn.
    pub(super) behind: Vec<Job<T>>,
    /// Whether the first, too, is to be tried without waiting.
    pub(super) is_tried: bool,
}

/// A task to be accepted.
pub(super) struct Entry<T> {
    pub(super) place: Place,
    pub(super) task: T,
    /// Whether its result is [taken](Queue::take) from the queue.
    pub(super) is_taken: bool,
    /// Whether it waits for the entry in front of it in the same call.
    pub(super) is_link: bool,
}

/// How long a taker waits.
#[derive(Clone, Copy)]
pub(super) enum Patience {
    None,
    For(Duration),
    Endless,
}

/// Outcome of a task, for the queue.
pub(super) struct Ended<R> {
    pub(super) job: Job<()>,
    pub(super) went_well: bool,
    /// The result for takers; `None` when it goes elsewhere.
    pub(super) result: Option<R>,
}

impl<T, R> Queue<T, R> {
    /// Creates a queue for `workers` workers, two at least.
    pub(super) fn new(workers: usize) -> Queue<T, R> {
        let state = State {
            order: Order::default(),
            done: VecDeque::new(),
            pending: 0,
            holding: 0,
            looking: 0,
            asleep: 0,
            woken: 0,
            closed: false,
        };
        Queue {
            state: queue_lock(state),
            work: Condvar::new(),
            done: Condvar::new(),
            timer: Condvar::new(),
            unfinished: AtomicUsize::new(0),
            pending: AtomicUsize::new(0),
            takers: AtomicUsize::new(0),
            holding_max: workers.saturating_sub(1).max(1),
        }
    }

    /// Returns whether a task in this place would have to wait for others.
    pub(super) fn is_behind(&self, place: &Place) -> bool {
        self.unfinished.load(Ordering::Acquire) > 0 && self.state.lock().order.is_behind(place)
    }

    /// Accepts tasks, each behind those of its files; returns their numbers. Returns the tasks when
    /// the queue is closed.
    pub(super) fn push(&self, entries: Vec<Entry<T>>) -> Result<Vec<u64>, Vec<Entry<T>>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(entries);
        }
        let deadline = state.order.next_deadline();
        let mut numbers = Vec::with_capacity(entries.len());
        for entry in entries {
            let after = numbers.last().copied().filter(|_| entry.is_link);
            numbers.push(state.accept(entry, after));
        }
        self.leave_pushed(state, deadline);
        Ok(numbers)
    }

    /// Accepts one task like [`push`](Self::push), without memory for lists.
    pub(super) fn push_one(&self, entry: Entry<T>) -> Result<u64, Entry<T>> {
        let mut state = self.state.lock();
        if state.closed {
            return Err(entry);
        }
        let deadline = state.order.next_deadline();
        let number = state.accept(entry, None);
        self.leave_pushed(state, deadline);
        Ok(number)
    }

    /// Releases the lock after tasks were accepted; before that, `deadline` was the next one.
    fn leave_pushed(
        &self,
        state: super::sync::MutexGuard<'_, State<T, R>>,
        deadline: Option<(Duration, u64)>,
    ) {
        let sooner = state.order.next_deadline() != deadline;
        self.leave(state);
        if sooner {
            self.timer.notify_one();
        }
    }

    /// Accepts a task that has begun already: it waits for nothing, and for no worker that others
    /// hold up. Its result is taken from the queue, also when the queue is closed.
    pub(super) fn push_begun(&self, place: Place, task: T) {
        let mut state = self.state.lock();
        state.pending += 1;
        state.order.accept_begun(Place { may_be_held: false, has_begun: true, ..place }, task);
        self.leave(state);
    }

    /// Stores a result of somebody else than a worker, to be taken.
    pub(super) fn put(&self, result: R) {
        let mut state = self.state.lock();
        state.pending += 1;
        self.pending.store(state.pending, Ordering::SeqCst);
        state.done.push_back(result);
        drop(state);
        self.done.notify_all();
    }

    /// Returns whether there are results to take, now or later.
    pub(super) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::SeqCst) > 0
    }

    /// Releases the lock, and wakes workers for what is ready (Q1).
    fn leave(&self, mut state: super::sync::MutexGuard<'_, State<T, R>>) {
        self.unfinished.store(state.order.len(), Ordering::Release);
        self.pending.store(state.pending, Ordering::SeqCst);
        let mut wake = 0;
        while state.asleep > 0
            && state.order.is_ready(self.takes_any(&state))
            && (state.looking == 0 || state.order.ready() >= BACKLOG * state.looking)
        {
            state.asleep -= 1;
            state.looking += 1;
            state.woken += 1;
            wake += 1;
        }
        let ends = state.closed && state.order.len() == 0;
        drop(state);
        if ends {
            self.timer.notify_one();
        }
        (0..wake).for_each(|_| self.work.notify_one());
    }

    /// Returns whether one more worker may run tasks that may be held up (Q2).
    fn takes_any(&self, state: &State<T, R>) -> bool {
        state.holding < self.holding_max || sabotage("extant.ring.all-are-held")
    }

    /// Returns the next task for this worker, with those of its file that can be done right behind it if all `fit`;
    /// waits for one. `None` when the queue is closed and no task is ready: a task that becomes ready after that is
    /// run by the worker that makes it ready. `is_back` says that the worker did not look until now.
    pub(super) fn next(&self, is_back: bool, fits: impl Fn(&T) -> bool) -> Option<Run<T>> {
        let mut state = self.state.lock();
        state.looking += usize::from(is_back);
        loop {
            let any = self.takes_any(&state);
            if let Some(begun) = state.order.begin(any) {
                let run = state.run(begun, 0, fits);
                self.leave(state);
                return Some(run);
            }
            state.looking -= 1;
            if state.closed {
                return None;
            }
            state.asleep += 1;
            loop {
                self.work.wait(&mut state);
                if state.woken > 0 {
                    // Who called has counted this worker.
                    state.woken -= 1;
                    break;
                }
                if state.closed {
                    state.asleep -= 1;
                    state.looking += 1;
                    break;
                }
            }
        }
    }

    /// Returns up to `most` more ready tasks, while the next one `fits`. `is_new` says that this
    /// worker runs nothing else that counts as held up.
    pub(super) fn more(
        &self,
        may_be_held: bool,
        is_new: bool,
        most: usize,
        fits: impl Fn(&T) -> bool,
    ) -> Vec<Job<T>> {
        let mut state = self.state.lock();
        let mut jobs = Vec::new();
        if may_be_held && is_new && state.holding >= self.holding_max {
            return jobs;
        }
        while jobs.len() < most
            && let Some((number, place, task)) = state.order.begin_like(may_be_held, &fits)
        {
            // The worker counts once.
            let counts = may_be_held && is_new && jobs.is_empty();
            let place = Place { may_be_held: counts, ..place };
            jobs.push(state.job(number, place, task, 0));
        }
        jobs
    }

    /// Settles a task: its result can be taken, and tasks behind it become ready. `cancelled`
    /// returns the result of each task cancelled with it, or keeps it elsewhere. A worker that
    /// `continues` gets the [next](Self::next) tasks at once, if they are of the same file and it is
    /// not the turn of others.
    pub(super) fn settle(
        &self,
        ended: Ended<R>,
        continues: bool,
        fits: impl Fn(&T) -> bool,
        mut cancelled: impl FnMut(T) -> Option<R>,
    ) -> Option<Run<T>> {
        let Ended { job: Job { number, files, may_be_held, run, .. }, went_well, result } = ended;
        let mut state = self.state.lock();
        let State { order, done, holding, .. } = &mut *state;
        let taken = done.len();
        done.extend(result);
        *holding -= usize::from(may_be_held);
        order.finish(number, went_well, &mut |task| done.extend(cancelled(task)));
        let has_results = done.len() > taken;
        state.looking += usize::from(continues);
        let order = &mut state.order;
        let mut next = None;
        if continues && may_be_held && run + 1 < RUN_MAX {
            next = order.begin_next(files);
        }
        let next = next.map(|begun| state.run(begun, run + 1, fits));
        self.leave(state);
        if has_results {
            self.done.notify_all();
        }
        next
    }

    /// Settles the tasks of a [`Run`] that are done, in their order, and puts back the `rest`, behind the one that this
    /// worker is `stuck` at, if there is one.
    pub(super) fn settle_run(
        &self,
        ended: Vec<Ended<R>>,
        rest: Vec<Job<T>>,
        stuck: Option<&mut Job<()>>,
        mut cancelled: impl FnMut(T) -> Option<R>,
    ) {
        let mut state = self.state.lock();
        let State { order, done, holding, .. } = &mut *state;
        let taken = done.len();
        // The worker counts once, by the first task.
        let mut counts = false;
        for Ended { job, went_well, result } in ended {
            counts |= job.may_be_held;
            done.extend(result);
            order.finish(job.number, went_well, &mut |task| done.extend(cancelled(task)));
        }
        for Job { number, task, .. } in rest {
            order.put_back(number, task);
        }
        let has_results = done.len() > taken;
        match stuck {
            Some(stuck) => {
                stuck.may_be_held |= counts;
                state.looking -= 1;
            }
            None => *holding -= usize::from(counts),
        }
        self.leave(state);
        if has_results {
            self.done.notify_all();
        }
    }

    /// Cancels the tasks that have not begun and that `fits`, and their chains behind them. Returns
    /// their number.
    pub(super) fn cancel(
        &self,
        fits: impl Fn(&T) -> bool,
        cancelled: impl FnMut(T) -> Option<R>,
    ) -> usize {
        let state = self.state.lock();
        let numbers = state.order.find(fits);
        self.cancel_these(state, numbers, cancelled)
    }

    /// Cancels one task, if it has not begun.
    pub(super) fn cancel_one(&self, number: u64, cancelled: impl FnMut(T) -> Option<R>) -> bool {
        self.cancel_these(self.state.lock(), vec![number], cancelled) > 0
    }

    fn cancel_these(
        &self,
        mut state: super::sync::MutexGuard<'_, State<T, R>>,
        numbers: Vec<u64>,
        mut cancelled: impl FnMut(T) -> Option<R>,
    ) -> usize {
        let State { order, done, .. } = &mut *state;
        let mut count = 0;
        let mut note = |task| {
            count += 1;
            done.extend(cancelled(task));
        };
        for number in numbers {
            order.cancel(number, &mut note);
        }
        self.leave(state);
        if count > 0 {
            self.done.notify_all();
        }
        count
    }

    /// Takes a result; waits for one while any is pending, as `patience` says, which is asked again
    /// after each [`nudge`](Self::nudge).
    pub(super) fn take(&self, patience: impl Fn() -> Patience) -> Option<R> {
        let mut state = self.state.lock();
        loop {
            if let Some(result) = state.done.pop_front() {
                state.pending -= 1;
                self.pending.store(state.pending, Ordering::SeqCst);
                if state.pending == 0 {
                    // Nothing is pending any more, so other takers must not wait.
                    self.done.notify_all();
                }
                return Some(result);
            }
            if state.pending == 0 {
                return None;
            }
            // This comes before the question: see `nudge`.
            self.takers.fetch_add(1, Ordering::SeqCst);
            let gives_up = match patience() {
                Patience::None => true,
                Patience::Endless => {
                    self.done.wait(&mut state);
                    false
                }
                Patience::For(time) => {
                    _ = self.done.wait_for(&mut state, time);
                    false
                }
            };
            self.takers.fetch_sub(1, Ordering::SeqCst);
            if gives_up {
                return None;
            }
        }
    }

    /// Has every taker that waits look again how long it is to wait. The caller has changed the
    /// answer, by a sequentially consistent operation.
    pub(super) fn nudge(&self) {
        if self.takers.load(Ordering::SeqCst) > 0 {
            // Who has asked before the change is asleep once the lock is free.
            drop(self.state.lock());
            self.done.notify_all();
        }
    }

    /// Closes the queue: workers end when no task is left.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
        self.timer.notify_all();
    }

    /// Cancels tasks whose deadline has passed, until the queue is closed and empty. `now` is the
    /// time since some fixed moment.
    pub(super) fn watch(
        &self,
        now: impl Fn() -> Duration,
        mut cancelled: impl FnMut(T) -> Option<R>,
        mut afterwards: impl FnMut(),
    ) {
        let mut state = self.state.lock();
        loop {
            if state.closed && state.order.len() == 0 {
                return;
            }
            match state.order.next_deadline() {
                None if state.closed => return,
                None => self.timer.wait(&mut state),
                Some((deadline, number)) => match deadline.checked_sub(now()) {
                    Some(left) if !left.is_zero() => _ = self.timer.wait_for(&mut state, left),
                    _ => {
                        self.cancel_these(state, vec![number], &mut cancelled);
                        afterwards();
                        state = self.state.lock();
                    }
                },
            }
        }
    }
}

impl<T, R> State<T, R> {
    fn accept(&mut self, Entry { place, task, is_taken, .. }: Entry<T>, after: Option<u64>) -> u64 {
        self.pending += usize::from(is_taken);
        self.order.accept(place, task, after)
    }

    /// Returns a task that has begun, and those that can be done behind it, for a worker that looks and has done `run`
    /// already. Where the first one is not to be tried, the worker does not look any more.
    fn run(
        &mut self,
        (number, place, task): (u64, Place, T),
        run: u32,
        fits: impl Fn(&T) -> bool,
    ) -> Run<T> {
        let most = RUN_MAX.saturating_sub(run + 1) as usize;
        let is_tried = fits(&task);
        let ahead = match is_tried {
            true => self.order.begin_ahead(number, most, fits),
            false => Vec::new(),
        };
        self.looking -= usize::from(!is_tried);
        let first = self.job(number, place, task, run);
        let follow = |(number, place, task)| {
            self.job(number, Place { may_be_held: false, ..place }, task, run)
        };
        Run { first, behind: ahead.into_iter().map(follow).collect(), is_tried }
    }

    fn job(&mut self, number: u64, place: Place, task: T, run: u32) -> Job<T> {
        let Place { files, may_be_held, .. } = place;
        self.holding += usize::from(may_be_held);
        Job { number, task, files, may_be_held, run }
    }
}

impl<T> Job<T> {
    /// Splits a job into the task and the rest.
    pub(super) fn open(self) -> (T, Job<()>) {
        let Job { number, task, files, may_be_held, run } = self;
        (task, Job { number, task: (), files, may_be_held, run })
    }
}
