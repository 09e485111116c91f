//! The queue of files to be read ahead, and its thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_sync::{Background, Mutex, Rank};

use crate::node::{FileState, Node};

/// Limit of the queued files; readers of other files fetch for themselves.
const QUEUE_MOST: usize = 64;
/// Longest sleep of an idle thread, which is woken when there is work.
const PERIOD: Duration = Duration::from_secs(3600);

/// The queue and the thread.
pub(crate) struct ReadAhead {
    /// Whether a thread may run.
    allowed: AtomicBool,
    queue: Mutex<VecDeque<Arc<Node>>>,
    thread: Mutex<Option<Arc<Background>>>,
}

impl ReadAhead {
    /// Creates an empty queue; no thread may start.
    pub(crate) fn new() -> ReadAhead {
        ReadAhead {
            allowed: AtomicBool::new(false),
            queue: Mutex::new(Rank::Leaf, VecDeque::new()),
            thread: Mutex::new(Rank::Leaf, None),
        }
    }

    /// Allows the thread to start.
    pub(crate) fn allow(&self) {
        self.allowed.store(true, Ordering::Release);
    }

    /// Ends the thread, after the window it is filling. The caller holds no lock.
    pub(crate) fn stop(&self) {
        self.allowed.store(false, Ordering::Release);
        // This may drop the last reference to the thread, which ends it.
        let thread = self.thread.lock().take();
        drop(thread);
        let queue = std::mem::take(&mut *self.queue.lock());
        drop(queue);
    }

    /// Returns whether there is a thread, or may be one.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// Queues a file, unless it is queued already or the queue is full, and wakes the thread, which
    /// is started to run `work` if there is none. Never waits.
    pub(crate) fn push<W>(&self, node: &Arc<Node>, file: &FileState, work: impl FnOnce() -> W)
    where
        W: FnMut() -> bool + Send + 'static,
    {
        if !self.is_allowed() || file.awaits_thread.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut queue = self.queue.lock();
            if queue.len() >= QUEUE_MOST {
                file.awaits_thread.store(false, Ordering::Release);
                return;
            }
            queue.push_back(Arc::clone(node));
        }
        if let Some(thread) = self.thread(work) {
            thread.wake();
        }
    }

    /// Takes the file that has waited longest off the queue.
    pub(crate) fn pop(&self) -> Option<Arc<Node>> {
        self.queue.lock().pop_front()
    }

    /// Returns the thread, started if needed. `None` if none can be started.
    fn thread<W>(&self, work: impl FnOnce() -> W) -> Option<Arc<Background>>
    where
        W: FnMut() -> bool + Send + 'static,
    {
        let mut thread = self.thread.lock();
        // This is done under the lock that `stop` takes after it has forbidden threads.
        if thread.is_none() && self.is_allowed() {
            match Background::start("extant-ahead", PERIOD, work()) {
                Ok(started) => *thread = Some(Arc::new(started)),
                Err(_) => self.allowed.store(false, Ordering::Release),
            }
        }
        thread.clone()
    }
}
