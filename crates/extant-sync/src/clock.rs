//! Time, as something that is passed in.

use std::fmt;
use std::time::Duration;

use crate::{Mutex, Rank};

/// Where the time comes from: the machine, or a test.
pub trait Clock: Send + Sync {
    /// The time of day: seconds since 1970-01-01 00:00 UTC, rounded down (so negative before
    /// it), and the nanoseconds `0..1_000_000_000` after that second.
    fn now(&self) -> (i64, u32);

    /// Time since some fixed moment; never goes back. For measuring, not for telling the date.
    fn monotonic(&self) -> Duration;

    /// Lets that much of [`monotonic`](Self::monotonic) time pass. For rules that are about real
    /// time, never for waiting until another thread has done something.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> (i64, u32) {
        // What Linux stamps files with, moved by its tick: times that the kernel keeps of a mounted
        // file and times that are given here must not come in another order than they were taken.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let id = rustix::time::ClockId::RealtimeCoarse;
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let id = rustix::time::ClockId::Realtime;
        let time = rustix::time::clock_gettime(id);
        // The kernel promises 0..10^9; anything else would be clamped rather than wrap.
        (time.tv_sec, u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999))
    }

    fn monotonic(&self) -> Duration {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        Duration::new(
            u64::try_from(time.tv_sec).unwrap_or(0),
            u32::try_from(time.tv_nsec).unwrap_or(0).min(999_999_999),
        )
    }

    #[expect(clippy::disallowed_methods, reason = "the wrapper that the ban points to")]
    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// A clock that stands still until it is moved: reproducible builds and tests.
///
/// ```
/// use extant_sync::{Clock, FixedClock};
/// use std::time::Duration;
/// let clock = FixedClock::at(1_000_000_000, 5);
/// clock.advance(Duration::from_millis(1500));
/// assert_eq!(clock.now(), (1_000_000_001, 500_000_005));
/// assert_eq!(clock.monotonic(), Duration::from_millis(1500));
/// ```
pub struct FixedClock {
    start_seconds: i64,
    start_nanoseconds: u32,
    elapsed: Mutex<Duration>,
}

impl FixedClock {
    /// A clock that shows `seconds` since 1970 and `nanoseconds`, which is cut to below 10^9.
    pub fn at(seconds: i64, nanoseconds: u32) -> FixedClock {
        FixedClock {
            start_seconds: seconds,
            start_nanoseconds: nanoseconds.min(999_999_999),
            elapsed: Mutex::new(Rank::Leaf, Duration::ZERO),
        }
    }

    /// Moves both times forward. Stops at the largest `Duration`.
    pub fn advance(&self, by: Duration) {
        let mut elapsed = self.elapsed.lock();
        *elapsed = elapsed.saturating_add(by);
    }
}

impl Clock for FixedClock {
    fn now(&self) -> (i64, u32) {
        let elapsed = self.monotonic();
        // Both parts are below 10^9, so the sum fits a u32.
        let nanoseconds = self.start_nanoseconds + elapsed.subsec_nanos();
        let carry = i64::from(nanoseconds >= 1_000_000_000);
        let seconds = i64::try_from(elapsed.as_secs()).unwrap_or(i64::MAX);
        let seconds = self.start_seconds.saturating_add(seconds).saturating_add(carry);
        (seconds, nanoseconds % 1_000_000_000)
    }

    fn monotonic(&self) -> Duration {
        *self.elapsed.lock()
    }

    /// Moves the clock forward; nobody waits.
    fn sleep(&self, time: Duration) {
        self.advance(time);
    }
}

impl fmt::Debug for FixedClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, nanoseconds) = self.now();
        write!(f, "FixedClock({seconds}.{nanoseconds:09})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_clock_does_not_go_back() {
        let clock = SystemClock;
        let (first, second) = (clock.monotonic(), clock.monotonic());
        assert!(first <= second);
        let (seconds, nanoseconds) = clock.now();
        assert!(seconds > 1_700_000_000, "{seconds}");
        assert!(nanoseconds < 1_000_000_000);
    }

    #[test]
    fn a_fixed_clock_carries_before_and_after_1970() {
        let clock = FixedClock::at(-1, 999_999_999);
        assert_eq!(clock.now(), (-1, 999_999_999));
        clock.advance(Duration::from_nanos(1));
        assert_eq!(clock.now(), (0, 0));
        clock.sleep(Duration::from_secs(1));
        assert_eq!(clock.now(), (1, 0));
        clock.advance(Duration::MAX);
        assert_eq!(clock.now().0, i64::MAX);
    }
}
