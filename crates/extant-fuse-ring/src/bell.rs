//! Wakeups for a thread that waits in its ring.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{EventfdFlags, eventfd};

/// A wakeup for the thread of one [`Ring`](crate::Ring). Several rings before the thread wakes
/// count as one.
#[derive(Debug)]
pub struct Bell {
    event: OwnedFd,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { event })
    }

    /// Wakes the thread. Never blocks.
    pub fn ring(&self) {
        // The write fails only when the count would reach 2^64 - 1.
        let _ = rustix::io::write(&self.event, &1u64.to_ne_bytes());
    }

    /// Clears the count.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.event, &mut count);
    }

    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
