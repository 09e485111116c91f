//! A descriptor that signals an event to `poll` and similar calls.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::no_wait::check_may_wait;

/// An event for `poll`, `epoll` and their like: the descriptor is readable from
/// [`raise`](Self::raise) until [`clear`](Self::clear). An `eventfd` on Linux, a pipe elsewhere.
///
/// ```
/// use extant_sync::Signal;
/// let signal = Signal::new()?;
/// signal.raise();
/// signal.raise();
/// signal.clear();
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Signal {
    read: OwnedFd,
    /// The writing end, where each direction has its own descriptor.
    write: Option<OwnedFd>,
    raised: AtomicBool,
    /// Whether the system raises it as well.
    lent: AtomicBool,
}

impl Signal {
    /// Creates a signal that is not raised.
    ///
    /// # Errors
    ///
    /// That of the system, when the process has too many descriptors.
    pub fn new() -> io::Result<Signal> {
        let (read, write) = descriptors()?;
        Ok(Signal { read, write, raised: AtomicBool::new(false), lent: AtomicBool::new(false) })
    }

    /// Raises the signal. Never waits; costs a system call if it was clear.
    pub fn raise(&self) {
        if self.raised.swap(true, Ordering::SeqCst) {
            return;
        }
        // The write cannot block: there is one write between two clears.
        let _ = rustix::io::write(self.write.as_ref().unwrap_or(&self.read), &1u64.to_ne_bytes());
    }

    /// Clears the signal. Never waits. A consumer clears first, and then looks for events.
    pub fn clear(&self) {
        if !self.raised.load(Ordering::SeqCst) && !self.lent.load(Ordering::SeqCst) {
            return;
        }
        let mut bytes = [0; 64];
        let _ = rustix::io::read(&self.read, &mut bytes);
        // The flag is cleared last: a raise in between finds it set, and the consumer looks for
        // events after this.
        self.raised.store(false, Ordering::SeqCst);
    }

    /// Returns the descriptor for a part of the system that raises the signal by adding to it. From
    /// then on each [`clear`](Self::clear) costs a system call.
    pub fn lend(&self) -> BorrowedFd<'_> {
        self.lent.store(true, Ordering::SeqCst);
        self.write.as_ref().unwrap_or(&self.read).as_fd()
    }

    /// Waits until the signal is raised, for no longer than `time` if that is given. May return
    /// early.
    ///
    /// # Panics
    ///
    /// In debug builds, within [`no_waiting`](crate::no_waiting).
    pub fn wait(&self, time: Option<Duration>) {
        check_may_wait("a signal");
        let time = time.map(|time| Timespec {
            tv_sec: time.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        });
        // Errors are those of an interruption; who waits looks again.
        let _ = poll(&mut [PollFd::new(self, PollFlags::IN)], time.as_ref());
    }
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn descriptors() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    use rustix::event::{EventfdFlags, eventfd};
    Ok((eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?, None))
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn descriptors() -> io::Result<(OwnedFd, Option<OwnedFd>)> {
    let (read, write) = io::pipe()?;
    let (read, write) = (OwnedFd::from(read), OwnedFd::from(write));
    for end in [&read, &write] {
        rustix::fs::fcntl_setfl(end, rustix::fs::OFlags::NONBLOCK)?;
    }
    Ok((read, Some(write)))
}

impl AsFd for Signal {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.read.as_fd()
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signal({})", self.raised.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_readable(signal: &Signal) -> bool {
        let mut fds = [PollFd::new(signal, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn it_is_readable_from_the_first_raise_to_the_clear() {
        let signal = Signal::new().unwrap();
        for _ in 0..3 {
            assert!(!is_readable(&signal));
            (0..1000).for_each(|_| signal.raise());
            assert!(is_readable(&signal) && is_readable(&signal));
            signal.clear();
        }
        signal.clear();
        assert!(!is_readable(&signal));
    }

    #[test]
    fn what_the_system_adds_is_cleared_as_well_and_waited_for() {
        let signal = Signal::new().unwrap();
        signal.wait(Some(Duration::from_millis(1)));
        for _ in 0..3 {
            rustix::io::write(signal.lend(), &1u64.to_ne_bytes()).unwrap();
            assert!(is_readable(&signal));
            signal.wait(None);
            signal.clear();
            assert!(!is_readable(&signal));
        }
    }
}
