//! A queue whose operations are all under way at once.

use std::sync::Arc;

use extant_block::{Engine, Finished, Operation, Queue, QueueOptions, Wait};

use crate::runner::Runner;
use crate::shared::Shared;

/// The operations of one thread.
pub(crate) struct RbdQueue {
    runner: Runner,
    depth: usize,
    /// Those that are not started; they are never done if the queue ends.
    pushed: Vec<(u64, Operation)>,
    /// Tags by the names that the runner knows.
    tags: Vec<u64>,
    free: Vec<usize>,
    len: usize,
}

impl RbdQueue {
    pub(crate) fn new(shared: &Arc<Shared>, options: &QueueOptions) -> RbdQueue {
        let runner = Runner::new(shared);
        let (pushed, tags, free) = (Vec::new(), Vec::new(), Vec::new());
        RbdQueue { runner, depth: options.depth, pushed, tags, free, len: 0 }
    }
}

impl Queue for RbdQueue {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len >= self.depth {
            return Err(operation);
        }
        self.len += 1;
        self.pushed.push((tag, operation));
        Ok(())
    }

    fn submit(&mut self) {
        for (tag, operation) in std::mem::take(&mut self.pushed) {
            let name = self.free.pop().unwrap_or_else(|| {
                self.tags.push(0);
                self.tags.len() - 1
            });
            self.tags[name] = tag;
            self.runner.take(name as u64, operation);
        }
        self.runner.start(Wait::Poll);
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        let (name, completion) = self.runner.next(wait)?;
        self.free.push(name as usize);
        self.len -= 1;
        Some(Finished { tag: self.tags[name as usize], completion })
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

impl Drop for RbdQueue {
    fn drop(&mut self) {
        while self.runner.next(Wait::Block).is_some() {}
    }
}
