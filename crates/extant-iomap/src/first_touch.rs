//! Which pages a chunk of the cache's memory gets at its first use: one huge page, or small ones.
//!
//! # Purpose
//!
//! One huge page is made in half the time of 512 small ones, if its memory is at hand. A virtual
//! machine that gives free memory back to its host gives huge pages back first. Making one then
//! takes ten to twenty times as long, because the host provides it anew, page after page, while
//! small pages that were free lately are still there.
//!
//! So each attempt is timed. After one that took long, some chunks get small pages before the next
//! attempt: few at first, and twice as many each time, up to [`PAUSE_MOST`].
//!
//! # Invariants
//!
//! - H1. While huge pages take long and small ones do not, at most one chunk of [`PAUSE_FIRST`]
//!   gets a huge page, and one of [`PAUSE_MOST`] in the long run.
//! - H2. After [`PATIENCE`] refusals in a row there is no further attempt.
//!
//! Threads do not agree on a decision: the counters are hints, and a race costs one attempt more.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Number of successive refusals after which the system is not asked for huge pages any more.
const PATIENCE: u32 = 4;

/// Time for one chunk over which huge pages are not worth it: small pages take about half of it.
const SLOW: Duration = Duration::from_millis(1);

/// Number of chunks that get small pages after the first slow attempt.
const PAUSE_FIRST: u32 = 4;

/// Most chunks that get small pages between two attempts.
const PAUSE_MOST: u32 = 64;

/// Decides, and learns from what it cost.
#[derive(Default)]
pub(crate) struct FirstTouch {
    /// Refusals since the last success.
    refused: AtomicU32,
    /// Chunks that get small pages until the next attempt.
    left: AtomicU32,
    /// Length of the last pause; 0 after an attempt that was fast.
    pause: AtomicU32,
    /// Nanoseconds that the last slow attempt took.
    slow_nanos: AtomicU64,
}

impl FirstTouch {
    /// Returns whether the next chunk is to get one huge page.
    pub(crate) fn wants_huge(&self) -> bool {
        if self.refused.load(Ordering::Relaxed) >= PATIENCE {
            return false;
        }
        let less = |left: u32| left.checked_sub(1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err()
    }

    /// Notes that the system refused a huge page.
    pub(crate) fn note_refused(&self) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes how long one huge page took.
    pub(crate) fn note_huge(&self, took: Duration) {
        self.refused.store(0, Ordering::Relaxed);
        if took <= SLOW {
            self.pause.store(0, Ordering::Relaxed);
            return;
        }
        let pause = (2 * self.pause.load(Ordering::Relaxed)).clamp(PAUSE_FIRST, PAUSE_MOST);
        self.pause.store(pause, Ordering::Relaxed);
        self.left.store(pause, Ordering::Relaxed);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.slow_nanos.store(nanos, Ordering::Relaxed);
    }

    /// Notes how long the small pages of one chunk took. Where they take as long as a huge one,
    /// nothing is gained by a pause.
    pub(crate) fn note_small(&self, took: Duration) {
        let slow = self.slow_nanos.load(Ordering::Relaxed);
        if took.as_nanos() >= u128::from(slow) {
            self.left.store(0, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAST: Duration = Duration::from_micros(250);
    const LONG: Duration = Duration::from_millis(4);
    const SMALL: Duration = Duration::from_micros(450);

    /// The kinds of the next chunks, `h`uge and `s`mall, which take as long as said.
    fn run(first: &FirstTouch, chunks: usize, huge: Duration, small: Duration) -> String {
        let one = |_| match first.wants_huge() {
            true => {
                first.note_huge(huge);
                'h'
            }
            false => {
                first.note_small(small);
                's'
            }
        };
        (0..chunks).map(one).collect()
    }

    #[test]
    fn fast_huge_pages_are_always_taken() {
        assert_eq!(run(&FirstTouch::default(), 10, FAST, SMALL), "hhhhhhhhhh");
        assert_eq!(run(&FirstTouch::default(), 3, SLOW, SMALL), "hhh");
    }

    #[test]
    fn slow_ones_are_tried_ever_more_rarely_and_taken_again_when_they_are_fast() {
        let first = FirstTouch::default();
        assert_eq!(run(&first, 16, LONG, SMALL), "hsssshsssssssshs");
        let many = run(&first, 1000, LONG, SMALL);
        assert_eq!(many.matches('h').count(), 1 + (1000 - 15 - 33) / (PAUSE_MOST as usize + 1) + 1);
        let rest = run(&first, PAUSE_MOST as usize + 10, FAST, SMALL);
        assert!(rest.ends_with("hhhhhhhhhh"), "{rest}");
        // A slow one among fast ones costs a short pause.
        assert_eq!(run(&first, 1, LONG, SMALL), "h");
        assert_eq!(run(&first, 6, FAST, SMALL), "sssshh");
    }

    #[test]
    fn small_pages_that_take_as_long_end_the_pause() {
        assert_eq!(run(&FirstTouch::default(), 7, LONG, LONG), "hshshsh");
    }

    #[test]
    fn refusals_in_a_row_are_the_end_of_it() {
        let first = FirstTouch::default();
        for _ in 0..PATIENCE - 1 {
            assert!(first.wants_huge());
            first.note_refused();
        }
        first.note_huge(FAST);
        for _ in 0..PATIENCE {
            assert!(first.wants_huge());
            first.note_refused();
        }
        assert!(!first.wants_huge());
    }
}
