//! The thread that fetches what readers will want next.
//!
//! # Shape
//!
//! A queue of files, each at most once; the page cache knows which parts (`extant-iomap`,
//! `readahead`). The thread starts with the first file and ends with the mount. Readers never need
//! it: what it is late for, or fails at, they do themselves.
//!
//! # Invariants
//!
//! - A1. It holds the volume and a handle of the file only while it works on one window, so that it
//!   keeps neither; and the content lock, shared, if it can have it without waiting.
//! - A2. A file's mark [`FileState::awaits_thread`] is set before it is queued, and cleared before
//!   its windows are looked for: what is wanted later queues it again.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_sync::{Background, Mutex, Rank};

use super::FileMapper;
use crate::mount::Fs;
use crate::node::Node;
use crate::volume::Volume;

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

    fn is_allowed(&self) -> bool {
        self.allowed.load(Ordering::Acquire)
    }

    /// Lets the thread come to a file. Waits for nothing.
    fn push(&self, volume: &Arc<Volume>, mapper: &FileMapper<'_>) {
        if !self.is_allowed() || mapper.file.awaits_thread.swap(true, Ordering::AcqRel) {
            return;
        }
        {
            let mut queue = self.queue.lock();
            if queue.len() >= QUEUE_MOST {
                mapper.file.awaits_thread.store(false, Ordering::Release);
                return;
            }
            queue.push_back(Arc::clone(mapper.node));
        }
        if let Some(thread) = self.thread(volume) {
            thread.wake();
        }
    }

    /// The thread, started if need be. `None` when there is none to be had.
    fn thread(&self, volume: &Arc<Volume>) -> Option<Arc<Background>> {
        let mut thread = self.thread.lock();
        // Under the lock that `stop` takes after it forbade this.
        if thread.is_none() && self.is_allowed() {
            let weak = Arc::downgrade(volume);
            let started = Background::start("extant-ahead", PERIOD, move || work(&weak));
            match started {
                Ok(started) => *thread = Some(Arc::new(started)),
                Err(_) => self.allowed.store(false, Ordering::Release),
            }
        }
        thread.clone()
    }
}

/// Empties the queue; false when the mount has ended.
fn work(volume: &Weak<Volume>) -> bool {
    loop {
        let Some(volume) = volume.upgrade() else { return false };
        let Ok(writer) = volume.writer() else { return false };
        let ahead = writer.read_ahead();
        if !ahead.is_allowed() {
            return false;
        }
        let Some(node) = ahead.queue.lock().pop_front() else { return true };
        let fs = Fs::of(Arc::clone(&volume));
        if fetch(&fs, &node) {
            // Others have their turn first.
            let _ = fs.with_mapper(&node, |mapper| {
                ahead.push(&volume, mapper);
                Ok(())
            });
        }
    }
}

/// Fetches one window of a file. Whether there may be more.
fn fetch(fs: &Fs, node: &Arc<Node>) -> bool {
    // So that nobody deletes the inode meanwhile.
    let Ok(inode) = fs.handle(node) else { return false };
    let Some(file) = node.file_in_use() else { return false };
    file.awaits_thread.store(false, Ordering::Release);
    // Who writes has it for long, and wants it soon again.
    let Some(_content) = node.content.try_read() else { return false };
    if inode.check_contents().is_err() {
        return false;
    }
    file.cache.fetch_next(&FileMapper { fs, node, file })
}

impl FileMapper<'_> {
    /// Lets the thread fetch what readers of this file will want.
    pub(super) fn queue_read_ahead(&self) {
        if let Ok(writer) = self.fs.volume().writer() {
            writer.read_ahead().push(self.fs.volume(), self);
        }
    }
}
