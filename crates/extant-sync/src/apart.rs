//! Putting threads of one task on processors of their own.
//!
//! Linux may start a thread on the processor of its parent and leave both there for 10 ms and more, also when another
//! processor idles (seen on virtual machines with two of them). A task that takes 20 ms then gains nothing by its
//! threads. A thread that is allowed on one processor only for a moment moves there at once, but has to run first:
//! behind its parent it waits for a turn of 1 to 9 ms, so that the parent gives way.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};

/// The processor of a thread that starts others.
#[derive(Clone, Copy)]
pub(crate) struct Start {
    processor: usize,
}

impl Start {
    /// Returns the processor of the calling thread.
    pub(crate) fn here() -> Start {
        Start { processor: sched_getcpu() }
    }

    /// Moves the calling thread `distance` allowed processors on from the start. It may run on all that it was allowed
    /// before, and where the system does not let it move, it stays.
    pub(crate) fn move_on(self, distance: usize) {
        let Ok(allowed) = sched_getaffinity(None) else { return };
        let Some(processor) = self.target(&allowed, distance) else { return };
        let mut one = CpuSet::new();
        one.set(processor);
        // What fails here changes nothing but the time that the task takes.
        if sched_setaffinity(None, &one).is_ok() {
            let _ = sched_setaffinity(None, &allowed);
        }
    }

    /// Returns the processor to go to; `None` if there is no choice.
    fn target(self, allowed: &CpuSet, distance: usize) -> Option<usize> {
        let count = allowed.count() as usize;
        if count < 2 {
            return None;
        }
        let at =
            (0..self.processor.min(CpuSet::MAX_CPU)).filter(|&cpu| allowed.is_set(cpu)).count();
        let mut list = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
        list.nth(at.wrapping_add(distance) % count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(processors: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        processors.iter().for_each(|&cpu| set.set(cpu));
        set
    }

    #[test]
    fn threads_go_to_the_allowed_processors_in_turn() {
        let (start, allowed) = (Start { processor: 4 }, set(&[1, 4, 6]));
        let places: Vec<_> = (0..5).map(|at| start.target(&allowed, at)).collect();
        assert_eq!(places, [Some(4), Some(6), Some(1), Some(4), Some(6)]);
        assert_eq!(Start { processor: 5 }.target(&allowed, 1), Some(1), "not one of them");
        assert_eq!(start.target(&set(&[4]), 1), None, "no choice");
    }

    #[test]
    fn a_thread_runs_before_the_one_that_started_it_goes_on() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let allowed = sched_getaffinity(None).unwrap();
        // With one processor for both, it is the system's choice who goes on.
        sched_setaffinity(None, &set(&[sched_getcpu()])).unwrap();
        let begun = (0..20).filter(|_| {
            let has_begun = AtomicBool::new(false);
            crate::threads::scope(|scope| {
                let work = || has_begun.store(true, Ordering::Relaxed);
                let _other = scope.spawn_apart("other", 1, work).unwrap();
                has_begun.load(Ordering::Relaxed)
            })
            .unwrap()
        });
        let begun = begun.count();
        sched_setaffinity(None, &allowed).unwrap();
        assert!(begun > 10, "{begun} of 20");
    }

    #[test]
    fn a_thread_may_run_where_it_was_allowed_before() {
        let allowed = sched_getaffinity(None).unwrap();
        Start::here().move_on(1);
        assert_eq!(sched_getaffinity(None).unwrap(), allowed);
    }
}
