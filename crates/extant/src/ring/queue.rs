//! What waits for a worker, in its order, and what workers have done.
//!
//! # Invariants
//!
//! - Q1. A file has an entry exactly while one of its changes waits or is worked on. At most one is ready or worked on at a
//!   time; those behind it, of whatever kind, are in the entry, in the order of their submission.
//! - Q2. What is ready needs nobody before it: any worker may do it, beside all others.

use std::any::Any;
use std::collections::{HashMap, VecDeque};

use extant_base::Ino;
use extant_sync::{Condvar, Mutex, Rank};

use super::RingStats;
use super::op::{Completion, Op};
use crate::attempt::WaitReason;
use crate::inode::Inode;

/// An operation for a worker.
pub(super) struct Task {
    pub(super) tag: u64,
    pub(super) inode: Inode,
    pub(super) op: Op,
    /// Where it begins, and how many bytes are done.
    pub(super) part: Option<(u64, usize)>,
}

impl Task {
    pub(super) fn new(tag: u64, inode: &Inode, op: Op) -> Task {
        Task { tag, inode: inode.clone(), op, part: None }
    }
}

/// A result, or the panic of the operation.
type Outcome = Result<Completion, Box<dyn Any + Send>>;

struct State {
    /// Tasks behind a change of a file.
    files: HashMap<Ino, VecDeque<Task>>,
    ready: VecDeque<Task>,
    done: VecDeque<Outcome>,
    /// Accepted and not taken.
    pending: usize,
    closed: bool,
    stats: RingStats,
}

pub(super) struct Queue {
    state: Mutex<State>,
    /// Something is ready, or the queue is closed.
    work: Condvar,
    /// Something is done, or nothing is pending.
    done: Condvar,
}

impl Default for Queue {
    fn default() -> Queue {
        let state = State {
            files: HashMap::new(),
            ready: VecDeque::new(),
            done: VecDeque::new(),
            pending: 0,
            closed: false,
            stats: RingStats::default(),
        };
        let state = Mutex::new(Rank::Leaf, state);
        Queue { state, work: Condvar::new(), done: Condvar::new() }
    }
}

impl Queue {
    /// Whether a change of this file waits or is worked on.
    pub(super) fn has_changes(&self, ino: Ino) -> bool {
        self.state.lock().files.contains_key(&ino)
    }

    /// Accepts a task: behind those of its file, if there are any (R1, R2).
    pub(super) fn push(&self, task: Task, refused: Option<WaitReason>) {
        let mut state = self.state.lock();
        state.stats.count(&task, refused);
        state.pending += 1;
        let ino = task.inode.ino();
        if let Some(behind) = state.files.get_mut(&ino) {
            behind.push_back(task);
            return;
        }
        if task.op.is_change() {
            state.files.insert(ino, VecDeque::new());
        }
        state.ready.push_back(task);
        drop(state);
        self.work.notify_one();
    }

    /// The next task for this worker; waits for one. `None` when the queue is closed and nothing is ready: what becomes
    /// ready after that is for the worker that makes it so.
    pub(super) fn next(&self) -> Option<Task> {
        let mut state = self.state.lock();
        loop {
            if let Some(task) = state.ready.pop_front() {
                return Some(task);
            }
            if state.closed {
                return None;
            }
            self.work.wait(&mut state);
        }
    }

    /// A task on file `ino` has been done: its result can be taken, and those that were behind it are ready, up to the
    /// next change.
    pub(super) fn settle(&self, ino: Ino, is_change: bool, outcome: Outcome) {
        let mut state = self.state.lock();
        let State { files, ready, done, stats, .. } = &mut *state;
        done.push_back(outcome);
        stats.completed += 1;
        let before = ready.len();
        if is_change && let Some(behind) = files.get_mut(&ino) {
            let mut next_change = false;
            while !next_change && let Some(task) = behind.pop_front() {
                next_change = task.op.is_change();
                ready.push_back(task);
            }
            if !next_change {
                files.remove(&ino);
            }
        }
        // One of them is for this thread.
        let others = (ready.len() - before).saturating_sub(1);
        drop(state);
        (0..others).for_each(|_| self.work.notify_one());
        self.done.notify_all();
    }

    /// Takes a result; with `waits`, waits for one as long as one is to come.
    pub(super) fn take(&self, waits: bool) -> Option<Outcome> {
        let mut state = self.state.lock();
        loop {
            if let Some(outcome) = state.done.pop_front() {
                state.pending -= 1;
                if state.pending == 0 {
                    // Others wait for nothing.
                    self.done.notify_all();
                }
                return Some(outcome);
            }
            if !waits || state.pending == 0 {
                return None;
            }
            self.done.wait(&mut state);
        }
    }

    /// Workers end when nothing is left.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    pub(super) fn stats(&self) -> RingStats {
        self.state.lock().stats
    }
}

impl RingStats {
    fn count(&mut self, task: &Task, refused: Option<WaitReason>) {
        match refused {
            Some(reason) => self.refused[reason as usize] += 1,
            None if task.part.is_some() => self.in_parts += 1,
            None if task.op.always_waits() => self.by_kind += 1,
            None => self.behind += 1,
        }
    }
}
