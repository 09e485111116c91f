//! A clock for tests and reproducible builds.

use std::fmt;
use std::time::Duration;

use crate::clock::Clock;
use crate::lock::Mutex;
use crate::rank::Rank;

/// A clock that stands still until it is advanced.
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
    /// Creates a clock that shows `seconds` since 1970 and `nanoseconds`, which is limited to below
    /// 10^9.
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

    /// Advances the clock; no thread waits.
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
