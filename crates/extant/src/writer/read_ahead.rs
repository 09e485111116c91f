//! The queue of files of which something is to be read ahead, and its thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_sync::{Background, Mutex, Rank};

use crate::node::{FileState, Node};

/// Files that wait at most; readers of others fetch for themselves.
const QUEUE_MOST: usize = 64;
/// It is woken; this only bounds how long a thread without work sleeps at once.
const PERIOD: Duration = Duration::from_secs(3600);

/// The queue and the thread.
pub(crate) struct ReadAhead {
    /// Whether a thread may run.
    allowed: AtomicBool,
    queue: Mutex<VecDeque<Arc<Node>>>,
    thread: Mutex<Option<Arc<Background>>>,
}

impl ReadAhead {
    /// Without a thread, and none will start.
    pub(crate) fn new() -> ReadAhead {
        ReadAhead {
            allowed: AtomicBool::new(false),
            queue: Mutex::new(Rank::Leaf, VecDeque::new()),
            thread: Mutex::new(Rank::Leaf, None),
        }
    }

    /// The thread may start.
    pub(crate) fn allow(&self) {
        self.allowed.store(true, Ordering::Release);
    }

    /// Ends the thread, after the window it is filling. No lock is held.
    pub(crate) fn stop(&self) {
        self.allowed.store(false, Ordering::Release);
        // It may be this thread's last reference, and with it the end of the thread.
        let thread = self.thread.lock().take();
        drop(thread);
        let queue = std::mem::take(&mut *self.queue.lock());
        drop(queue);
    }

    /// Whether there is a thread, or may be one.
    pub(crate) fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// Puts a file into the queue, unless it is there or the queue is full, and wakes the thread, which is
    /// started to do `work` if there is none. Waits for nothing.
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

    /// The file that has waited longest.
    pub(crate) fn pop(&self) -> Option<Arc<Node>> {
        self.queue.lock().pop_front()
    }

    /// The thread, started if need be. `None` when there is none to be had.
    fn thread<W>(&self, work: impl FnOnce() -> W) -> Option<Arc<Background>>
    where
        W: FnMut() -> bool + Send + 'static,
    {
        let mut thread = self.thread.lock();
        // Under the lock that `stop` takes after it forbade this.
        if thread.is_none() && self.is_allowed() {
            match Background::start("extant-ahead", PERIOD, work()) {
                Ok(started) => *thread = Some(Arc::new(started)),
                Err(_) => self.allowed.store(false, Ordering::Release),
            }
        }
        thread.clone()
    }
}
