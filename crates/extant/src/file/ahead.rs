//! The thread that fetches what readers will want next.
//!
//! # Shape
//!
//! A queue of files, each at most once (`writer::ReadAhead`); the page cache knows which parts (`extant-iomap`,
//! `readahead`). The thread starts with the first file and ends with the mount. Readers never need
//! it: what it is late for, or fails at, they do themselves.
//!
//! # Invariants
//!
//! - A1. It holds the volume and a handle of the file only while it works on one window, so that it
//!   keeps neither; and the content lock, shared, if it can have it without waiting.
//! - A2. A file's mark `FileState::awaits_thread` is set before it is queued, and cleared before
//!   its windows are looked for: what is wanted later queues it again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use super::FileMapper;
use crate::fs::{Fs, Mount};
use crate::node::Node;

/// Empties the queue; false when the mount has ended.
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
            // Others have their turn first.
            let _ = fs.with_mapper(&node, |mapper| {
                mapper.queue_read_ahead();
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
            writer.read_ahead().push(self.node, self.file, || {
                let weak = Arc::downgrade(self.fs.volume());
                move || work(&weak)
            });
        }
    }
}
