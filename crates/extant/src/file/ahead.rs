//! The read-ahead thread.
//!
//! # Shape
//!
//! A queue of files, each at most once (`writer::ReadAhead`); the page cache knows which parts
//! (`extant-iomap`, `readahead`). The thread starts with the first file and ends with the mount.
//! Readers do not depend on it: they read for themselves what the thread has not read or failed to
//! read.
//!
//! # Invariants
//!
//! - A1. The thread holds the volume and a handle of the file only while it fills one window, so
//!   that it delays neither an unmount nor a deletion. It takes the content lock, shared, only if
//!   it need not wait.
//! - A2. A file's mark `FileState::awaits_thread` is set before it is queued, and cleared before
//!   the thread looks for windows: a later request queues the file again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::FileMapper;
use crate::fs::{Fs, Mount};
use crate::node::Node;

/// Empties the queue. Returns false when the mount has ended.
fn work(volume: &Weak<Mount>) -> bool {
    loop {
        let Some(volume) = volume.upgrade() else { return false };
        let Ok(writer) = volume.writer() else { return false };
        let ahead = writer.read_ahead();
        if !ahead.is_allowed() {
            return false;
        }
        let Some(node) = ahead.pop() else { return true };
        let fs = Fs::of(Arc::clone(&volume));
        if fetch(&fs, &node) {
            // The other files of the queue come first.
            let _ = fs.with_mapper(&node, |mapper| {
                mapper.queue_read_ahead();
                Ok(())
            });
        }
    }
}

/// Fetches one window of a file. Returns whether there may be more.
fn fetch(fs: &Fs, node: &Arc<Node>) -> bool {
    // The handle keeps the inode from being deleted meanwhile.
    let Ok(inode) = fs.handle(node) else { return false };
    let Some(file) = node.file_in_use() else { return false };
    file.awaits_thread.store(false, Ordering::Release);
    // A writer holds the lock for long and will take it again soon: do not compete with it.
    let Some(_content) = node.content.try_read() else { return false };
    if inode.check_contents().is_err() {
        return false;
    }
    file.cache.fetch_next(&FileMapper { fs, node, file })
}

impl FileMapper<'_> {
    /// Queues this file for the read-ahead thread.
    pub(super) fn queue_read_ahead(&self) {
        if let Ok(writer) = self.fs.volume().writer() {
            writer.read_ahead().push(self.node, self.file, || {
                let weak = Arc::downgrade(self.fs.volume());
                move || work(&weak)
            });
        }
    }
}
