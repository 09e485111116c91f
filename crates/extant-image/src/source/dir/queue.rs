//! Work shared by threads, until none is left.

use extant_sync::threads::{Receiver, Sender, channel};
use extant_sync::{Mutex, Rank};

/// A stack of jobs that workers take from and add to; it ends when it is empty and no worker is
/// busy, or when a worker failed.
pub(super) struct Queue<J, E> {
    state: Mutex<State<J, E>>,
    wake: Sender<()>,
    woken: Receiver<()>,
    workers: usize,
}

struct State<J, E> {
    /// Last in, first out: depth-first, which keeps the stack short.
    jobs: Vec<J>,
    busy: usize,
    over: bool,
    failure: Option<E>,
}

impl<J, E> Queue<J, E> {
    /// A queue for `workers` threads that holds one job.
    pub(super) fn new(workers: usize, first: J) -> Queue<J, E> {
        // One wake-up per worker is enough: if the channel is full, every sleeper is about to look
        // at the stack.
        let (wake, woken) = channel(workers);
        let state = State { jobs: vec![first], busy: 0, over: false, failure: None };
        Queue { state: Mutex::new(Rank::Leaf, state), wake, woken, workers }
    }

    /// Adds jobs.
    pub(super) fn push(&self, jobs: impl ExactSizeIterator<Item = J>) {
        let count = jobs.len().min(self.workers);
        self.state.lock().jobs.extend(jobs);
        self.wake(count);
    }

    /// Runs `work` on jobs until there are none; the first error ends all workers.
    pub(super) fn run(&self, mut work: impl FnMut(J) -> Result<(), E>) {
        while let Some(job) = self.take() {
            // Counts this worker as idle again, also when `work` panics: the others would wait
            // for it for ever.
            let mut busy = Busy { queue: self, outcome: None };
            let outcome = work(job);
            busy.outcome = Some(outcome);
        }
    }

    /// The first failure, once all workers have returned.
    pub(super) fn into_failure(self) -> Option<E> {
        self.state.into_inner().failure
    }

    fn take(&self) -> Option<J> {
        loop {
            {
                let mut state = self.state.lock();
                if state.over {
                    return None;
                }
                if let Some(job) = state.jobs.pop() {
                    state.busy += 1;
                    return Some(job);
                }
            }
            // Cannot fail: this queue holds a sender.
            let _ = self.woken.recv();
        }
    }

    fn wake(&self, count: usize) {
        for _ in 0..count {
            if self.wake.try_send(()).is_err() {
                break;
            }
        }
    }
}

struct Busy<'a, J, E> {
    queue: &'a Queue<J, E>,
    /// `None` while the work runs, and so after a panic.
    outcome: Option<Result<(), E>>,
}

impl<J, E> Drop for Busy<'_, J, E> {
    fn drop(&mut self) {
        let mut state = self.queue.state.lock();
        state.busy -= 1;
        match self.outcome.take() {
            Some(Ok(())) => state.over |= state.busy == 0 && state.jobs.is_empty(),
            Some(Err(error)) => {
                state.over = true;
                state.failure.get_or_insert(error);
            }
            None => state.over = true,
        }
        let over = state.over;
        drop(state);
        if over {
            self.queue.wake(self.queue.workers);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::threads;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Each job `n` adds jobs `n - 1` and `n - 2`: counts a Fibonacci tree.
    #[test]
    fn every_job_is_done_once_by_any_number_of_workers() {
        for workers in 1..=8 {
            let queue = Queue::<u32, ()>::new(workers, 15);
            let done = AtomicU32::new(0);
            threads::workers("test", workers, |_| {
                queue.run(|n| {
                    done.fetch_add(1, Ordering::Relaxed);
                    if n >= 2 {
                        queue.push([n - 1, n - 2].into_iter());
                    }
                    Ok(())
                })
            })
            .unwrap();
            assert_eq!(done.into_inner(), 1973, "{workers} workers");
            assert_eq!(queue.into_failure(), None);
        }
    }

    #[test]
    fn a_failure_or_a_panic_ends_all_workers() {
        for panics in [false, true] {
            let queue = Queue::<u32, &str>::new(3, 0);
            let result = threads::workers("test", 3, |_| {
                queue.run(|n| {
                    if n == 1000 {
                        assert!(!panics, "the work panics");
                        return Err("stop");
                    }
                    queue.push([n + 1].into_iter());
                    Ok(())
                })
            });
            assert_eq!(result.is_err(), panics);
            assert_eq!(queue.into_failure(), (!panics).then_some("stop"));
        }
    }
}
