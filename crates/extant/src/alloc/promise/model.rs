//! Promises and pins under a model checker: every order of steps that the memory model allows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use extant_base::Ino;
use extant_format::bitmap::Bitmap;
use loom::sync::Mutex;
use loom::thread;

use super::super::group::Blocks;
use super::super::window::Look;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
    use loom::sync::{Mutex, MutexGuard};

    #[derive(Debug)]
    pub(super) struct Moving(Mutex<()>);

    impl Moving {
        pub(super) fn new() -> Moving {
            Moving(Mutex::new(()))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
            self.0.lock().unwrap()
        }

        pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
            self.0.try_lock().ok()
        }
    }
}

#[path = "counts.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
mod counts;

#[path = "spare.rs"]
#[expect(clippy::duplicate_mod, reason = "as above")]
mod spare;

use counts::Counts;
use spare::Spare;

/// What one writer does with promises of its own, so many times.
fn write(counts: &Counts, clusters: u32, rounds: u32) {
    for _ in 0..rounds {
        counts.promise(u64::from(clusters));
        // As every allocation does, it looks before it claims.
        let unpinned = counts.unpinned();
        assert!(unpinned >= u64::from(clusters), "{unpinned} of {clusters} promised to me");
        assert_eq!(counts.pin(clusters, clusters), Some(clusters), "promised, and refused");
        counts.unpin(clusters);
        assert_eq!(counts.end(u64::from(clusters)), u64::from(clusters));
    }
}

fn check(preemptions: usize, writers: &'static [(u32, u32)]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(move || {
        let counts = Arc::new(Counts::new());
        let run = |(clusters, rounds): &(u32, u32)| {
            let (counts, clusters, rounds) = (Arc::clone(&counts), *clusters, *rounds);
            thread::spawn(move || write(&counts, clusters, rounds))
        };
        let running: Vec<_> = writers.iter().map(run).collect();
        for thread in running {
            thread.join().unwrap();
        }
        assert_eq!((counts.promised(), counts.unpinned()), (0, 0));
    });
}

#[test]
fn what_is_promised_can_be_pinned_whatever_others_do_meanwhile() {
    check(3, &[(1, 2), (1, 1)]);
    check(2, &[(1, 1), (3, 1)]);
}

/// Clusters of the group in the model.
const CLUSTERS: u32 = 4;

/// Promises, and a group with its windows.
struct Space {
    counts: Counts,
    group: Mutex<Blocks>,
}

impl Space {
    fn new() -> Space {
        let blocks = Blocks::new(Bitmap::of_uninit_group(128, CLUSTERS, []), Vec::new(), CLUSTERS);
        Space { counts: Counts::new(), group: Mutex::new(blocks) }
    }

    /// Searches as the allocator does, once, with the lock let go between two looks.
    fn pin(&self, looks: &[Look]) -> bool {
        looks.iter().any(|look| {
            let mut group = self.group.lock().unwrap();
            let Some(run) = group.find(*look, 0, 1, 1).run else { return false };
            assert_eq!(self.counts.pin(1, 1), Some(1), "promised, and refused");
            group.hide(run);
            true
        })
    }
}

/// Two writers have all clusters, and pin them while a third opens windows over what is left and closes them.
fn check_windows(looks: &'static [Look]) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let space = Arc::new(Space::new());
        space.counts.promise(u64::from(CLUSTERS));
        let grower = {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                for start in [0, CLUSTERS / 2] {
                    let opened = space.group.lock().unwrap().open_window(Ino(12), start, CLUSTERS);
                    if let Some(window) = opened {
                        space.group.lock().unwrap().close_window(Ino(12), &window);
                    }
                }
            })
        };
        let writer = || {
            let space = Arc::clone(&space);
            thread::spawn(move || {
                for _ in 0..CLUSTERS / 2 {
                    assert!(space.pin(looks), "refused for the sake of a window");
                }
            })
        };
        for thread in [writer(), writer(), grower] {
            thread.join().unwrap();
        }
        assert_eq!(space.counts.unpinned(), 0);
        assert_eq!(space.group.lock().unwrap().in_windows(), 0);
    });
}

#[test]
fn nobody_is_refused_for_the_sake_of_a_window() {
    check_windows(&[Look::Open, Look::All]);
}

#[test]
fn the_model_notices_a_search_that_leaves_windows_alone() {
    let check = || check_windows(&[Look::Open]);
    assert!(catch_unwind(AssertUnwindSafe(check)).is_err());
}

/// Two threads with lanes of their own want all there is, a cluster at a time, and one takes the rest at once. `rounds`
/// of each take one.
fn check_lanes(clusters: i64, handful: (i64, i64), rounds: usize) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let spare = Arc::new(Spare::new(clusters + 1, 2, handful));
        spare.sub(2);
        spare.add(1);
        let takers: Vec<_> = (0..2)
            .map(|lane| {
                let spare = Arc::clone(&spare);
                thread::spawn(move || {
                    for _ in 0..rounds {
                        assert_eq!(spare.claim(lane, 0, 1, 1), Some(1), "there, and refused");
                    }
                })
            })
            .collect();
        for thread in takers {
            thread.join().unwrap();
        }
        let left = clusters - 2 * rounds as i64;
        assert_eq!(spare.total(), left);
        assert_eq!(spare.claim_all(0, left as u64), Ok(()), "what lies in lanes is refused");
        assert_eq!((spare.total(), spare.claim(0, 0, 1, 1)), (0, None));
    });
}

#[test]
fn nobody_is_refused_for_what_others_have_at_hand() {
    check_lanes(4, (2, 1), 2);
    check_lanes(5, (2, 2), 2);
    check_lanes(2, (2, 0), 1);
}
