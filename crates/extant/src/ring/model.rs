//! The queue under a model checker: every order of steps that the memory model allows, over the
//! same code.
//!
//! Files are cells that a task changes or reads. The checker fails when two conflicting accesses
//! meet, when a task is lost, done twice or done after its cancellation, and when a sleeping thread
//! is never woken (a deadlock).

use std::sync::Arc;

use extant_base::Ino;
use loom::cell::UnsafeCell;
use loom::thread;

mod sync {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub(super) use loom::sync::atomic::{AtomicUsize, Ordering};

    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    /// The guard is `None` only during a wait.
    pub(super) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().unwrap()
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().unwrap()
        }
    }

    pub(super) fn queue_lock<T>(value: T) -> Mutex<T> {
        Mutex(loom::sync::Mutex::new(value))
    }

    pub(super) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(super) fn new() -> Condvar {
            Condvar(loom::sync::Condvar::new())
        }

        pub(super) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            guard.0 = Some(self.0.wait(guard.0.take().unwrap()).unwrap());
        }

        pub(super) fn wait_for<T>(&self, _: &mut MutexGuard<'_, T>, _: Duration) -> bool {
            unreachable!("the model has no time")
        }

        pub(super) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[path = "order.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other locks is the point")]
mod order;

#[path = "queue.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other locks is the point")]
#[expect(dead_code, reason = "the model needs only a part")]
mod queue;

use order::{Files, Place};
use queue::{Ended, Entry, Job, Patience, Queue, Run};

/// A deliberate bug that the model must notice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A worker ends as soon as the queue is closed.
    EndsAtOnce,
    /// A worker looks for more before it reports what it has done.
    Forgets,
    /// A worker that has to wait keeps the tasks behind.
    Keeps,
    /// An inline operation does not check whether another is in front of it.
    Overtakes,
}

/// What a task does: changes a file or reads it, and how it ends.
#[derive(Clone, Copy)]
struct Step {
    tag: u32,
    file: usize,
    is_change: bool,
    went_well: bool,
    /// Whether it would wait for something.
    waits: bool,
}

struct Model {
    queue: Queue<Step, (u32, bool)>,
    files: [UnsafeCell<()>; 2],
    mistake: Mistake,
}

fn place(step: Step) -> Place {
    let files = Files::one(Ino(step.file as u32));
    let Step { is_change, .. } = step;
    Place {
        files,
        is_change,
        may_be_held: is_change,
        drains: false,
        has_begun: false,
        deadline: None,
    }
}

fn change(tag: u32, file: usize) -> Step {
    Step { tag, file, is_change: true, went_well: true, waits: false }
}

fn look(tag: u32, file: usize) -> Step {
    Step { is_change: false, ..change(tag, file) }
}

impl Model {
    #[expect(clippy::arc_with_non_send_sync, reason = "the checker looks after the cells")]
    fn new(workers: usize, mistake: Mistake) -> Arc<Model> {
        let files = [UnsafeCell::new(()), UnsafeCell::new(())];
        Arc::new(Model { queue: Queue::new(workers), files, mistake })
    }

    fn push(&self, steps: &[Step], is_chain: bool) {
        let entry = |(at, step): (usize, &Step)| Entry {
            place: place(*step),
            task: *step,
            is_taken: true,
            is_link: is_chain && at > 0,
        };
        let pushed = self.queue.push(steps.iter().enumerate().map(entry).collect());
        assert!(pushed.is_ok(), "it is not closed");
    }

    fn act(&self, step: Step) {
        match step.is_change {
            // The checker finds conflicting accesses here.
            true => self.files[step.file].with_mut(|_| ()),
            false => self.files[step.file].with(|_| ()),
        }
    }

    /// Runs tasks like `Shared::work`.
    fn work(&self) {
        let (mut next, mut is_back) = (None, true);
        while let Some(Run { first, behind, is_tried }) =
            next.take().or_else(|| self.queue.next(is_back, |step| step.is_change))
        {
            is_back = false;
            let one = match is_tried {
                true => self.work_at_once(first, behind),
                false => Some(first.open()),
            };
            let Some((step, job)) = one else {
                match self.mistake {
                    Mistake::EndsAtOnce => return,
                    _ => continue,
                }
            };
            self.act(step);
            let Step { tag, went_well, .. } = step;
            if self.mistake == Mistake::Forgets {
                continue;
            }
            let ended = Ended { job, went_well, result: Some((tag, true)) };
            let gone = |step: Step| Some((step.tag, false));
            next = self.queue.settle(ended, true, |step| step.is_change, gone);
            if self.mistake == Mistake::EndsAtOnce && next.is_none() {
                return;
            }
        }
    }

    /// Runs tasks like `Shared::work_at_once`.
    fn work_at_once(&self, first: Job<Step>, behind: Vec<Job<Step>>) -> Option<(Step, Job<()>)> {
        let (mut ended, mut stuck) = (Vec::new(), None);
        let mut jobs = std::iter::once(first).chain(behind);
        while stuck.is_none()
            && let Some(job) = jobs.next()
        {
            let (step, job) = job.open();
            if step.waits {
                stuck = Some((step, job));
                continue;
            }
            self.act(step);
            let Step { tag, went_well, .. } = step;
            ended.push(Ended { job, went_well, result: Some((tag, true)) });
        }
        if self.mistake == Mistake::Forgets {
            return None;
        }
        let rest = if self.mistake == Mistake::Keeps { Vec::new() } else { jobs.collect() };
        let at = stuck.as_mut().map(|(_, job)| job);
        self.queue.settle_run(ended, rest, at, |step: Step| Some((step.tag, false)));
        stuck
    }

    /// Submits a step like `Ring::submit` does with an operation that can be done at once.
    fn submit(&self, step: Step) {
        if self.mistake != Mistake::Overtakes && self.queue.is_behind(&place(step)) {
            self.push(&[step], false);
        } else {
            self.act(step);
        }
    }

    /// Takes all results: the tags of the tasks that were done, in order, and of those that were
    /// cancelled.
    fn take(&self) -> (Vec<u32>, Vec<u32>) {
        let all: Vec<_> = std::iter::from_fn(|| self.queue.take(|| Patience::Endless)).collect();
        let some = |done| all.iter().filter(|one| one.1 == done).map(|one| one.0).collect();
        (some(true), some(false))
    }
}

fn check(
    workers: usize,
    preemptions: usize,
    mistake: Mistake,
    run: impl Fn(&Arc<Model>) + Send + Sync + 'static,
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new(workers, mistake);
        let start = |_| {
            let model = Arc::clone(&model);
            thread::spawn(move || model.work())
        };
        let running: Vec<_> = (0..workers).map(start).collect();
        run(&model);
        model.queue.close();
        running.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(model.queue.take(|| Patience::None).is_none(), "a result that nobody took");
    });
}

#[test]
fn changes_of_a_file_are_done_one_by_one_and_looks_beside_each_other() {
    check(2, 2, Mistake::None, |model| {
        model.push(&[change(1, 0), change(2, 0), look(3, 0)], false);
        let (done, gone) = model.take();
        let place = |tag| done.iter().position(|done| *done == tag).unwrap();
        assert!(place(1) < place(2) && place(2) < place(3) && gone.is_empty(), "{done:?}");
    });
}

#[test]
fn who_submits_does_not_overtake_what_is_with_the_workers() {
    check(2, 2, Mistake::None, |model| {
        model.push(&[change(1, 0)], false);
        model.submit(change(2, 0));
        model.submit(look(3, 0));
        assert!(model.take().1.is_empty());
    });
}

#[test]
fn a_queue_that_is_closed_has_done_all_that_it_took() {
    check(2, 2, Mistake::None, |model| {
        model.push(&[change(1, 0), look(2, 0), change(3, 1)], false);
        model.queue.close();
        let (mut done, gone) = model.take();
        done.sort_unstable();
        assert_eq!((done, gone), (vec![1, 2, 3], vec![]));
    });
}

#[test]
fn what_is_cancelled_is_done_or_gone_and_those_behind_it_come() {
    check(2, 2, Mistake::None, |model| {
        model.push(&[change(1, 0), change(2, 0), change(3, 0)], false);
        let gone = |step: Step| Some((step.tag, false));
        let count = model.queue.cancel(|step| step.tag == 2, gone);
        let (done, gone) = model.take();
        assert_eq!(gone.len(), count);
        assert_eq!(done, if count == 1 { vec![1, 3] } else { vec![1, 2, 3] });
    });
}

#[test]
fn what_is_behind_a_task_that_waits_is_put_back_and_can_be_cancelled() {
    check(2, 2, Mistake::None, |model| {
        let waits = |tag| Step { waits: true, ..change(tag, 0) };
        model.push(&[change(1, 0), waits(2), change(3, 0)], false);
        let gone = |step: Step| Some((step.tag, false));
        let count = model.queue.cancel(|step| step.tag == 3, gone);
        model.push(&[waits(4), look(5, 0)], false);
        let (done, gone) = model.take();
        assert_eq!(gone.len(), count);
        assert_eq!(done, if count == 1 { vec![1, 2, 4, 5] } else { vec![1, 2, 3, 4, 5] });
    });
}

#[test]
fn what_waits_holds_up_no_other_file() {
    check(2, 2, Mistake::None, |model| {
        let waits = |tag| Step { waits: true, ..change(tag, 0) };
        model.push(&[waits(1), change(2, 0)], false);
        model.push(&[change(3, 1)], false);
        model.submit(change(4, 1));
        let (mut done, gone) = model.take();
        let place = |tag| done.iter().position(|done| *done == tag).unwrap();
        assert!(place(1) < place(2) && gone.is_empty(), "{done:?}");
        done.retain(|tag| *tag != 4);
        done.sort_unstable();
        assert_eq!(done, [1, 2, 3]);
    });
}

#[test]
fn a_chain_that_fails_ends_and_frees_the_files_of_what_is_left() {
    check(2, 2, Mistake::None, |model| {
        let fails = Step { went_well: false, ..change(1, 0) };
        model.push(&[fails, change(2, 1)], true);
        model.push(&[change(3, 1)], false);
        assert_eq!(model.take(), (vec![1, 3], vec![2]));
    });
}

#[test]
fn cancelling_beside_the_end_loses_nothing() {
    check(2, 2, Mistake::None, |model| {
        model.push(&[change(1, 0), change(2, 0)], false);
        let other = {
            let model = Arc::clone(model);
            let gone = |step: Step| Some((step.tag, false));
            thread::spawn(move || model.queue.cancel(|step| step.tag == 1, gone))
        };
        model.queue.close();
        let count = other.join().unwrap();
        let (done, gone) = model.take();
        assert_eq!((done.len(), gone.len()), (2 - count, count));
    });
}

#[test]
#[should_panic]
fn the_model_finds_workers_that_end_too_early() {
    check(2, 2, Mistake::EndsAtOnce, |model| {
        model.push(&[change(1, 0), change(2, 0), look(3, 0), look(4, 0)], false);
        assert_eq!(model.take().0.len(), 4);
    });
}

#[test]
#[should_panic]
fn the_model_finds_what_is_not_said() {
    check(2, 1, Mistake::Forgets, |model| {
        model.push(&[change(1, 0), change(2, 0)], false);
        assert_eq!(model.take().0.len(), 2);
    });
}

#[test]
#[should_panic]
fn the_model_finds_who_keeps_what_it_does_not_do() {
    check(2, 1, Mistake::Keeps, |model| {
        let waits = Step { waits: true, ..change(1, 0) };
        model.push(&[waits, change(2, 0)], false);
        assert_eq!(model.take().0.len(), 2);
    });
}

#[test]
#[should_panic]
fn the_model_finds_who_overtakes() {
    check(2, 2, Mistake::Overtakes, |model| {
        model.push(&[change(1, 0)], false);
        model.submit(change(2, 0));
        assert!(model.take().1.is_empty());
    });
}
