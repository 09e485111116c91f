//! A queue over `BlockDevice::submit`, for every device.

use std::collections::VecDeque;

use super::{Engine, Finished, Queue, QueueOptions, Wait};
use crate::operation::{Completion, Operation, Pending};

/// A queue that submits the pushed operations as one batch.
pub(crate) struct Portable<F> {
    /// Starts a batch.
    start: F,
    depth: usize,
    pushed: Vec<(u64, Operation)>,
    running: VecDeque<(Vec<u64>, Pending)>,
    finished: VecDeque<Finished>,
    len: usize,
}

impl<F: Fn(Vec<Operation>) -> Pending> Portable<F> {
    pub(crate) fn new(start: F, options: &QueueOptions) -> Portable<F> {
        Portable {
            start,
            depth: options.depth,
            pushed: Vec::new(),
            running: VecDeque::new(),
            finished: VecDeque::new(),
            len: 0,
        }
    }

    fn finish(&mut self, tags: Vec<u64>, completions: Vec<Completion>) {
        // A back-end that loses an operation breaks the trait's contract: a bug of extant, not of
        // the device.
        assert_eq!(tags.len(), completions.len(), "one completion per operation");
        let pairs = tags.into_iter().zip(completions);
        self.finished.extend(pairs.map(|(tag, completion)| Finished { tag, completion }));
    }
}

impl<F: Fn(Vec<Operation>) -> Pending> Queue for Portable<F> {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len >= self.depth {
            return Err(operation);
        }
        self.len += 1;
        self.pushed.push((tag, operation));
        Ok(())
    }

    fn submit(&mut self) {
        if self.pushed.is_empty() {
            return;
        }
        let (tags, batch) = std::mem::take(&mut self.pushed).into_iter().unzip();
        self.running.push_back((tags, (self.start)(batch)));
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        // Batches are reported in the order of their submission.
        while self.finished.is_empty() {
            let (tags, pending) = self.running.pop_front()?;
            match pending.try_done() {
                Ok(completions) => self.finish(tags, completions),
                Err(pending) if wait == Wait::Block => self.finish(tags, pending.wait()),
                Err(pending) => {
                    self.running.push_front((tags, pending));
                    return None;
                }
            }
        }
        let finished = self.finished.pop_front()?;
        self.len -= 1;
        Some(finished)
    }

    fn len(&self) -> usize {
        self.len
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn engine(&self) -> Engine {
        Engine::Portable
    }
}

impl<F> Drop for Portable<F> {
    fn drop(&mut self) {
        for (_, pending) in self.running.drain(..) {
            drop(pending.wait()); // U5
        }
    }
}
