//! The protocol of pins under a model checker: every order of steps that the memory model allows.
//!
//! A cell stands for the pages of the frame: the checker fails when a holder of a pin looks at
//! it while its next owner writes it, or without having seen what the last one wrote.

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::thread;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}

#[path = "identity.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
#[expect(dead_code, reason = "the model needs only a part")]
mod identity;

use identity::{DETACHED, Identity};

struct Frame {
    identity: Identity,
    pages: UnsafeCell<()>,
}

impl Frame {
    #[expect(clippy::arc_with_non_send_sync, reason = "the checker looks after the cell")]
    fn dead() -> Arc<Frame> {
        Arc::new(Frame { identity: Identity::new(), pages: UnsafeCell::new(()) })
    }

    /// Live, without a pin.
    fn live(file: u64, start: u64, order: u8) -> Arc<Frame> {
        let frame = Frame::dead();
        frame.make(file, start, order);
        frame.identity.unpin();
        frame
    }

    /// Writes the pages and publishes them.
    fn make(&self, file: u64, start: u64, order: u8) {
        self.pages.with_mut(|_| ());
        self.identity.publish(file, start, order);
    }

    /// Pins, looks, lets go. Says whether it was there.
    fn look(&self, file: u64, page: u64, start: u64, order: u8) -> bool {
        if !self.identity.pin(file, page) {
            return false;
        }
        self.pages.with(|_| ());
        let seen = (self.identity.file(), self.identity.start(), self.identity.order());
        assert_eq!(seen, (file, start, order), "changed under a pin");
        self.identity.unpin();
        true
    }

    /// Gives it to another if nobody has it.
    fn reuse(&self, file: u64, start: u64, order: u8) -> bool {
        let killed = self.identity.kill();
        if killed {
            self.make(file, start, order);
            self.identity.unpin();
        }
        killed
    }
}

/// All orders with at most so many moments at which a running thread is stopped for another.
fn check(preemptions: usize, run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(run);
}

/// The pages 8 to 15 of file 1 become page 9 of file 2, while others look for either.
fn reused(preemptions: usize, lookers: &'static [(u64, u64, u64, u8)]) {
    check(preemptions, || {
        let frame = Frame::live(1, 8, 3);
        let lookers: Vec<_> = lookers
            .iter()
            .map(|&(file, page, start, order)| {
                let frame = Arc::clone(&frame);
                thread::spawn(move || frame.look(file, page, start, order))
            })
            .collect();
        let reused = frame.reuse(2, 9, 0);
        for looker in lookers {
            looker.join().unwrap();
        }
        assert_eq!(frame.identity.pins(), 0, "lookers took back what they added");
        let (file, page, start, order) = if reused { (2, 9, 9, 0) } else { (1, 8, 8, 3) };
        assert!(frame.look(file, page, start, order));
    });
}

const OLD: (u64, u64, u64, u8) = (1, 15, 8, 3);
const NEW: (u64, u64, u64, u8) = (2, 9, 9, 0);

#[test]
fn a_pinned_frame_stays_the_folio_that_was_asked_for() {
    reused(3, &[OLD]);
}

#[test]
fn a_pinned_frame_has_become_the_folio_that_was_asked_for() {
    reused(3, &[NEW]);
}

#[test]
fn lookers_for_old_and_new_do_not_disturb_each_other() {
    reused(1, &[OLD, NEW]);
}

#[test]
fn a_frame_reused_for_the_same_place_is_whole_again() {
    check(3, || {
        let frame = Frame::live(1, 8, 0);
        let looker = thread::spawn({
            let frame = Arc::clone(&frame);
            // Old or new, the pages are not being written.
            move || frame.look(1, 8, 8, 0)
        });
        frame.reuse(1, 8, 0);
        looker.join().unwrap();
        assert!(frame.look(1, 8, 8, 0));
    });
}

#[test]
fn publishing_keeps_the_count_of_those_who_look_at_a_dead_frame() {
    check(3, || {
        let frame = Frame::dead();
        let lookers = [0, 1].map(|_| {
            let frame = Arc::clone(&frame);
            // Like the hand of eviction, without asking who it is.
            thread::spawn(move || {
                if frame.identity.pin_any() {
                    assert_eq!((frame.identity.file(), frame.identity.start()), (1, 5));
                    frame.pages.with(|_| ());
                    frame.identity.unpin();
                }
            })
        });
        frame.make(1, 5, 0);
        assert!(frame.identity.pins() >= 1);
        assert!(!frame.identity.kill(), "the publisher has a pin");
        for looker in lookers {
            looker.join().unwrap();
        }
        assert_eq!(frame.identity.pins(), 1);
        assert!(frame.identity.kill_pinned());
        assert!(!frame.identity.pin_any());
    });
}

#[test]
fn one_of_several_gets_the_pages() {
    check(3, || {
        let frame = Frame::live(1, 0, 0);
        // One with a pin of its own, one without, one who looks.
        assert!(frame.identity.pin_any());
        let looker = thread::spawn({
            let frame = Arc::clone(&frame);
            move || frame.look(1, 0, 0, 0)
        });
        let killer = thread::spawn({
            let frame = Arc::clone(&frame);
            move || {
                let killed = frame.identity.kill();
                if killed {
                    frame.pages.with_mut(|_| ());
                }
                killed
            }
        });
        let mine = frame.identity.kill_pinned();
        if mine {
            frame.pages.with_mut(|_| ());
        } else {
            frame.identity.unpin();
        }
        looker.join().unwrap();
        let other = killer.join().unwrap();
        assert!(!(mine && other), "two have the pages");
        assert!(mine || other || frame.identity.kill(), "nobody can ever have them");
    });
}

#[test]
fn a_detached_folio_is_not_found_by_who_comes_later() {
    check(3, || {
        let frame = Frame::live(1, 0, 0);
        let looker = thread::spawn({
            let frame = Arc::clone(&frame);
            move || frame.look(1, 0, 0, 0)
        });
        assert!(frame.identity.pin(1, 0));
        assert!(frame.identity.set(DETACHED));
        assert!(!frame.identity.pin(1, 0));
        looker.join().unwrap();
        assert!(!frame.look(1, 0, 0, 0));
        assert!(frame.identity.kill_pinned());
        frame.make(1, 0, 0);
        assert!(frame.look(1, 0, 0, 0), "the next folio begins attached");
    });
}
