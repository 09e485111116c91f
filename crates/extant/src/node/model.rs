//! The end of an inode under a model checker: every order of steps that the memory model allows.
//!
//! Two cells stand for what may be torn: the blocks of the file, which writeback and deletion
//! change, and the inode, which holders look at and deletion changes. The checker fails when two
//! threads meet at one of them.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::sync::{Mutex, MutexGuard};
use loom::thread;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
}

mod locks {
    /// A mutex, and a condition that takes its guard as that of the program does.
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    /// `None` only during a wait.
    pub(super) struct MutexGuard<'a, T>(Option<loom::sync::MutexGuard<'a, T>>);

    impl<T> Mutex<T> {
        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().unwrap()))
        }
    }

    pub(super) fn leaf<T>(value: T) -> Mutex<T> {
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

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[path = "flights.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other locks is the point")]
mod flights;

#[path = "spans.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
mod spans;

#[path = "leave.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
#[expect(dead_code, reason = "the model needs only a part")]
mod leave;

#[path = "life.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
#[expect(dead_code, reason = "the model needs only a part")]
mod life;

use atomic::Ordering::{Acquire, Relaxed, Release};
use life::{Life, Stage};

/// A step left out or done wrong, to see that the model notices.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// Deleting keeps writeback out only if it finds nobody deleting: itself.
    AsksAfterwards,
    /// Contents that came into use late are not looked for.
    NoSecondLook,
    /// What is taken from the queue is deleted if it has no handles, whatever became of it.
    TrustsQueue,
    /// An inode counts as an orphan before it is listed as one.
    ListsLate,
}

/// A node, with as much of its file as matters.
struct Model {
    life: Life,
    mistake: Mistake,
    /// Whether the file has been used.
    is_used: AtomicBool,
    /// The writeback lock; whether the file has ended.
    writeback: Mutex<bool>,
    blocks: UnsafeCell<()>,
    inode: UnsafeCell<()>,
    /// How often it is in the queue, and how often it was deleted.
    queue: Mutex<(u32, u32)>,
    /// On the list of orphans.
    listed: Mutex<bool>,
}

impl Model {
    #[expect(clippy::arc_with_non_send_sync, reason = "the checker looks after the cells")]
    fn new(stage: Stage, handles: u32, is_used: bool, mistake: Mistake) -> Arc<Model> {
        let life = Life::new(stage);
        assert!((0..handles).all(|_| life.hold()));
        Arc::new(Model {
            life,
            mistake,
            is_used: AtomicBool::new(is_used),
            writeback: Mutex::new(false),
            blocks: UnsafeCell::new(()),
            inode: UnsafeCell::new(()),
            queue: Mutex::new((0, 0)),
            listed: Mutex::new(stage == Stage::Orphan),
        })
    }

    fn push(&self) {
        self.queue.lock().unwrap().0 += 1;
    }

    fn let_go(&self) {
        if self.life.let_go() {
            self.push();
        }
    }

    /// A program with a handle: looks at the inode, brings contents, lets go.
    fn program(&self) {
        self.inode.with(|_| ());
        self.is_used.store(true, Release);
        self.let_go();
    }

    /// Lets go of the last handle, and deletes what that leaves.
    fn leave(&self) {
        self.let_go();
        self.reclaim();
    }

    /// Somebody finds the inode by its number.
    fn visitor(&self) {
        if self.life.hold() {
            self.program();
        }
    }

    /// The background.
    fn flusher(&self) {
        if self.is_used.load(Acquire) {
            let ended = self.writeback.lock().unwrap();
            if !*ended {
                self.blocks.with_mut(|_| ());
            }
        }
    }

    fn settle(&self) -> Option<MutexGuard<'_, bool>> {
        self.is_used.load(Acquire).then(|| self.writeback.lock().unwrap())
    }

    /// As `Settled::die`, and all that follows.
    fn die(&self, kept_out: Option<MutexGuard<'_, bool>>) -> bool {
        let skips = self.mistake == Mistake::NoSecondLook;
        if !self.life.die(|| skips || kept_out.is_some() || !self.is_used.load(Acquire)) {
            return false;
        }
        *self.listed.lock().unwrap() = false;
        self.delete(kept_out);
        self.life.end();
        true
    }

    fn delete(&self, kept_out: Option<MutexGuard<'_, bool>>) {
        self.blocks.with_mut(|_| ());
        self.inode.with_mut(|_| ());
        if let Some(mut ended) = kept_out {
            *ended = true;
        }
        self.queue.lock().unwrap().1 += 1;
    }

    /// Takes the last name, as `unlink` does.
    fn unlink(&self) {
        let kept_out = if self.life.is_unheld() { self.settle() } else { None };
        let skips = self.mistake == Mistake::NoSecondLook;
        let is_quiet = || skips || kept_out.is_some() || !self.is_used.load(Acquire);
        if self.life.die_nameless(is_quiet) {
            self.delete(kept_out);
            self.life.end();
            return;
        }
        drop(kept_out);
        if self.mistake == Mistake::ListsLate {
            self.life.lose_names();
        }
        *self.listed.lock().unwrap() = true;
        self.life.lose_names();
        if self.life.queue() {
            self.push();
        }
    }

    /// Deletes what is in the queue.
    fn reclaim(&self) {
        loop {
            {
                let mut queue = self.queue.lock().unwrap();
                if queue.0 == 0 {
                    return;
                }
                queue.0 -= 1;
            }
            self.life.unqueue();
            match self.mistake {
                Mistake::AsksAfterwards => {
                    let dies = self.life.die(|| true);
                    let kept_out = if self.life.is_gone() { None } else { self.settle() };
                    if dies {
                        self.delete(kept_out);
                        self.life.end();
                    }
                }
                Mistake::TrustsQueue if self.life.is_unheld() => self.delete(self.settle()),
                _ => {
                    let kept_out = self.settle();
                    if !self.die(kept_out) && self.life.queue() {
                        self.push();
                    }
                }
            }
        }
    }
}

/// All orders with at most so many moments at which a running thread is stopped for another; in the
/// end the inode was deleted once.
fn check(
    preemptions: usize,
    mistake: Mistake,
    (stage, handles, is_used): (Stage, u32, bool),
    threads: &'static [fn(&Model)],
) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        let model = Model::new(stage, handles, is_used, mistake);
        let run = |work: &fn(&Model)| {
            let (model, work) = (Arc::clone(&model), *work);
            thread::spawn(move || work(&model))
        };
        let running: Vec<_> = threads.iter().map(run).collect();
        for thread in running {
            thread.join().unwrap();
        }
        model.reclaim();
        let (left, deleted) = *model.queue.lock().unwrap();
        assert_eq!((left, deleted), (0, 1), "left in the queue, deleted");
        assert!(!model.life.hold(), "a handle of a dead inode");
        assert!(!*model.listed.lock().unwrap(), "a dead inode is on the list");
    });
}

const NAMED: (Stage, u32, bool) = (Stage::Named, 0, true);
const OPEN: (Stage, u32, bool) = (Stage::Named, 1, true);

#[test]
fn an_unlink_does_not_meet_writeback() {
    check(3, Mistake::None, NAMED, &[Model::unlink, Model::flusher]);
}

#[test]
fn the_last_handle_does_not_meet_unlink_and_writeback() {
    check(2, Mistake::None, OPEN, &[Model::unlink, Model::program, Model::flusher]);
}

#[test]
fn two_handles_and_two_who_delete() {
    let two = (Stage::Orphan, 2, true);
    check(2, Mistake::None, two, &[Model::program, Model::program, Model::reclaim]);
}

#[test]
fn what_is_deleted_does_not_meet_writeback() {
    check(3, Mistake::None, (Stage::Orphan, 1, true), &[Model::leave, Model::flusher]);
}

#[test]
fn contents_that_come_late_are_not_missed() {
    let unused = (Stage::Named, 0, false);
    check(2, Mistake::None, unused, &[Model::unlink, Model::visitor, Model::flusher]);
}

#[test]
fn a_visitor_of_an_orphan_has_it_or_not() {
    let orphan = (Stage::Orphan, 1, true);
    check(2, Mistake::None, orphan, &[Model::program, Model::visitor, Model::reclaim]);
}

#[test]
#[should_panic]
fn the_model_finds_deletion_beside_writeback() {
    check(3, Mistake::AsksAfterwards, (Stage::Orphan, 1, true), &[Model::leave, Model::flusher]);
}

#[test]
#[should_panic]
fn the_model_finds_contents_that_nobody_kept_out() {
    let unused = (Stage::Named, 0, false);
    check(2, Mistake::NoSecondLook, unused, &[Model::unlink, Model::visitor, Model::flusher]);
}

#[test]
#[should_panic(expected = "on the list")]
fn the_model_finds_what_is_listed_when_it_is_dead() {
    check(3, Mistake::ListsLate, OPEN, &[Model::unlink, Model::leave]);
}

#[test]
fn what_loses_its_name_and_its_handle_at_once_is_on_no_list_when_it_is_dead() {
    check(3, Mistake::None, OPEN, &[Model::unlink, Model::leave]);
}

#[test]
#[should_panic]
fn the_model_finds_what_is_deleted_twice() {
    let two = (Stage::Orphan, 2, true);
    check(2, Mistake::TrustsQueue, two, &[Model::program, Model::visitor, Model::reclaim]);
}

/// The cache lets a node go while somebody finds it by a name; `looks`: and looks whether it has left.
fn leaving(looks: bool) {
    loom::model(move || {
        let references = Arc::new(AtomicUsize::new(1));
        let leave = Arc::new(leave::Leave::new());
        let finder = {
            let (references, leave) = (Arc::clone(&references), Arc::clone(&leave));
            thread::spawn(move || {
                references.fetch_add(1, Relaxed);
                let is_here = leave.is_here() || !looks;
                if !is_here {
                    references.fetch_sub(1, Release);
                }
                is_here
            })
        };
        let has_left = leave.try_leave(|| references.load(Relaxed) == 1);
        let is_found = finder.join().unwrap();
        assert!(!(has_left && is_found), "it has left, and is in use");
    });
}

#[test]
fn a_node_that_is_found_by_a_name_stays_and_one_that_leaves_is_not_found() {
    leaving(true);
}

#[test]
#[should_panic(expected = "it has left, and is in use")]
fn who_does_not_look_uses_what_has_left() {
    leaving(false);
}

/// Two operations begin under the lock, shared, change their halves of the blocks without it, and are counted down by
/// others; somebody takes the lock alone, `waits`, and has the blocks for himself.
fn flying(waits: bool) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let content = Arc::new(loom::sync::RwLock::new(()));
        let flights = Arc::new(flights::Flights::new());
        #[expect(clippy::arc_with_non_send_sync, reason = "the checker looks after the cells")]
        let blocks = Arc::new([UnsafeCell::new(()), UnsafeCell::new(())]);
        let lanes: Vec<_> = (0..2)
            .map(|own: usize| {
                let (content, flights) = (Arc::clone(&content), Arc::clone(&flights));
                let blocks = Arc::clone(&blocks);
                thread::spawn(move || {
                    {
                        let _shared = content.read().unwrap();
                        flights.begin();
                    }
                    blocks[own].with_mut(|_| ());
                    flights.end();
                })
            })
            .collect();
        {
            let _alone = content.write().unwrap();
            if waits {
                flights.wait();
                assert!(flights.is_empty());
            }
            blocks.iter().for_each(|block| block.with_mut(|_| ()));
        }
        for lane in lanes {
            lane.join().unwrap();
        }
        assert!(flights.is_empty());
    });
}

#[test]
fn whoever_has_the_lock_alone_meets_nothing_under_way_and_is_woken() {
    flying(true);
}

#[test]
#[should_panic]
fn the_model_finds_who_does_not_wait_for_what_is_under_way() {
    flying(false);
}

/// Two operations on neighbouring blocks begin under the lock, shared, and change them without it; somebody who has
/// the lock alone waits for the one in `part`, and has that block for himself.
fn flying_in(part: std::ops::Range<u64>) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(move || {
        let content = Arc::new(loom::sync::RwLock::new(()));
        let flights = Arc::new(flights::Flights::new());
        let spans = Arc::new(spans::Spans::<2>::new());
        #[expect(clippy::arc_with_non_send_sync, reason = "the checker looks after the cells")]
        let blocks = Arc::new([UnsafeCell::new(()), UnsafeCell::new(())]);
        let threads: Vec<_> = (0..2)
            .map(|own: usize| {
                let (content, flights) = (Arc::clone(&content), Arc::clone(&flights));
                let (spans, blocks) = (Arc::clone(&spans), Arc::clone(&blocks));
                thread::spawn(move || {
                    let span = {
                        let _shared = content.read().unwrap();
                        flights.begin();
                        spans.list(1, &(own as u64..own as u64 + 1)).unwrap()
                    };
                    blocks[own].with_mut(|_| ());
                    spans.leave(span);
                    flights.end();
                })
            })
            .collect();
        {
            let _alone = content.write().unwrap();
            flights.wait_for(|| spans.has_any(1, &part));
            blocks[0].with_mut(|_| ());
        }
        for thread in threads {
            thread.join().unwrap();
        }
        assert!(flights.is_empty() && !spans.has_any(1, &(0..2)));
    });
}

#[test]
fn whoever_changes_a_part_meets_nothing_under_way_in_it_and_is_woken() {
    flying_in(0..1);
}

#[test]
#[should_panic]
fn the_model_finds_who_waits_for_another_part() {
    flying_in(1..2);
}
