//! A queue whose reads are all under way at once.

use std::collections::VecDeque;

use extant_block::{
    BlockDevice, Completion, Engine, Finished, Operation, Queue, QueueOptions, Wait, check_range,
};
use rustc_hash::FxHashMap;

use crate::pipe::Pipe;

/// Reads go out on a connection of its own; everything else is done by the device, at submission.
pub(crate) struct Reads<'a> {
    device: &'a dyn BlockDevice,
    /// The connection; `None` if none could be made, or it was lost. Reads then go through the
    /// device.
    pipe: Option<Pipe>,
    depth: usize,
    /// Longest read that goes out as it is, in bytes.
    longest: u64,
    pushed: Vec<(u64, Operation)>,
    /// Tags by cookie.
    running: FxHashMap<u64, u64>,
    finished: VecDeque<Finished>,
}

impl<'a> Reads<'a> {
    pub(crate) fn new(
        device: &'a dyn BlockDevice,
        pipe: Option<Pipe>,
        longest: u64,
        options: &QueueOptions,
    ) -> Reads<'a> {
        Reads {
            device,
            pipe,
            depth: options.depth,
            longest: longest.min(1 << 20),
            pushed: Vec::new(),
            running: FxHashMap::default(),
            finished: VecDeque::new(),
        }
    }

    fn by_device(&mut self, tag: u64, operation: Operation) {
        let done = self.device.submit(vec![operation]).wait();
        self.finished.extend(done.into_iter().map(|completion| Finished { tag, completion }));
    }

    /// The connection is of no use any more: what was under way is read by the device, which makes another
    /// one.
    fn lost(&mut self) {
        let Some(mut pipe) = self.pipe.take() else { return };
        for (cookie, operation) in pipe.take_waiting() {
            if let Some(tag) = self.running.remove(&cookie) {
                self.by_device(tag, operation);
            }
        }
    }
}

impl Queue for Reads<'_> {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len() >= self.depth {
            return Err(operation);
        }
        self.pushed.push((tag, operation));
        Ok(())
    }

    fn submit(&mut self) {
        for (tag, operation) in std::mem::take(&mut self.pushed) {
            let len = operation.length();
            let is_plain = matches!(operation, Operation::Read { .. })
                && (1..=self.longest).contains(&len)
                && check_range(self.device, operation.kind(), operation.offset(), len).is_ok();
            match self.pipe.as_mut().filter(|_| is_plain) {
                None => self.by_device(tag, operation),
                Some(pipe) => match pipe.send(operation) {
                    Ok(cookie) => drop(self.running.insert(cookie, tag)),
                    Err((_, operation)) => {
                        self.lost();
                        self.by_device(tag, operation);
                    }
                },
            }
        }
        if self.pipe.as_mut().is_some_and(|pipe| pipe.send_all().is_err()) {
            self.lost();
        }
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        if let Some(finished) = self.finished.pop_front() {
            return Some(finished);
        }
        // Polling finds what has come already; bytes on the way are waited for.
        let has_come = || self.pipe.as_ref().is_none_or(Pipe::has_answer);
        if self.running.is_empty() || (wait == Wait::Poll && !has_come()) {
            return None;
        }
        match self.pipe.as_mut().map(Pipe::receive) {
            Some(Ok(answer)) => {
                let tag = self.running.remove(&answer.cookie)?;
                // The device reports an error of the server, after asking again.
                if answer.errno != 0 {
                    self.by_device(tag, answer.operation);
                    return self.finished.pop_front();
                }
                let completion = Completion { operation: answer.operation, result: Ok(()) };
                Some(Finished { tag, completion })
            }
            _ => {
                self.lost();
                self.finished.pop_front()
            }
        }
    }

    fn len(&self) -> usize {
        self.pushed.len() + self.running.len() + self.finished.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn engine(&self) -> Engine {
        Engine::Portable
    }
}

impl Drop for Reads<'_> {
    fn drop(&mut self) {
        // Nobody has the memory of what is under way but the connection, which ends; but nbdkit 1.32 does not survive
        // an end in the middle of its answers.
        if let Some(mut pipe) = self.pipe.take() {
            while pipe.len() > 0 && pipe.receive().is_ok() {}
            pipe.close();
        }
    }
}
