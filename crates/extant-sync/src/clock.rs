//! Time, passed in as a value.

use std::time::Duration;

/// A source of the time: the machine's clock, or one for tests.
pub trait Clock: Send + Sync {
    /// Returns the time of day: seconds since 1970-01-01 00:00 UTC, rounded down (so negative
    /// before it), and the nanoseconds `0..1_000_000_000` after that second.
    fn now(&self) -> (i64, u32);

    /// Returns the time since some fixed moment; never goes back. For measuring durations.
    fn monotonic(&self) -> Duration;

    /// Waits until `time` of [`monotonic`](Self::monotonic) has passed. For rules about real time,
    /// never for waiting until another thread has done something.
    fn sleep(&self, time: Duration);
}

/// The machine's clock.
#[derive(Clone, Copy, Default, Debug)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> (i64, u32) {
        // The coarse clock, with which Linux stamps files, advances with the kernel's tick: times
        // set by the kernel for a mounted file and times set here must be in the order in which
        // they were taken.
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
        crate::no_wait::check_may_wait("the clock");
        std::thread::sleep(time);
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
}
