//! Promises and pins under a model checker: every order of steps that the memory model allows.

use std::sync::Arc;

use loom::thread;

mod atomic {
    pub(super) use loom::sync::atomic::{AtomicI64, AtomicU64, Ordering};
}

#[path = "counts.rs"]
#[expect(clippy::duplicate_mod, reason = "the same code over other atomics is the point")]
mod counts;

use counts::Counts;

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
