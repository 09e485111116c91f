//! Whether to look for the next request for a moment before sleeping until it comes.
//!
//! A program that does one call after the other sends its next request a few microseconds after it got
//! its answer. To sleep meanwhile costs two turns of the scheduler and, on another processor, waking that
//! up: more than most requests. One thread at a time looks; others sleep. Who looks in vain too often
//! (nobody sends, or the program waits for this very processor) stops looking for a while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_sync::Clock;

/// How long to look: about what sleeping and waking costs.
const LOOK: Duration = Duration::from_micros(15);
/// A thread that gave way and was away for so long shares its processor with somebody.
const CROWDED: Duration = Duration::from_micros(3);
/// Credit at most; each look in vain takes [`VAIN`], each that finds something gives 1.
const CREDIT_MAX: u32 = 16;
const VAIN: u32 = 2;
/// Without credit, one of so many waits looks all the same.
const RETRY: u32 = 64;

/// What all threads of a mount share.
pub(crate) struct Patience {
    /// Somebody looks.
    looking: AtomicBool,
    /// Requests that others got while somebody looked.
    passed: AtomicU64,
    /// There is a processor to look with beside the one that a program runs on.
    has_room: bool,
}

/// One thread's experience.
#[derive(Default)]
pub(crate) struct Experience {
    credit: u32,
    skipped: u32,
}

impl Patience {
    pub(crate) fn new(processors: usize) -> Patience {
        Patience {
            looking: AtomicBool::new(false),
            passed: AtomicU64::new(0),
            has_room: processors > 1,
        }
    }

    /// Whether this thread is the one that looks from now on.
    fn begins(&self, own: &mut Experience) -> bool {
        self.has_room && own.wants() && !self.looking.swap(true, Ordering::Acquire)
    }

    /// After an answer, before the next request is waited for: asks `has_come` until it has.
    pub(crate) fn look(
        &self,
        own: &mut Experience,
        clock: &dyn Clock,
        mut has_come: impl FnMut() -> bool,
    ) {
        if !self.begins(own) {
            return;
        }
        let began = clock.monotonic();
        let found = loop {
            if has_come() {
                break true;
            }
            if clock.monotonic().saturating_sub(began) >= LOOK {
                break false;
            }
            std::hint::spin_loop();
        };
        self.looking.store(false, Ordering::Release);
        own.note(found);
    }

    /// A request came to a thread that may not be the one that looks.
    pub(crate) fn note_request(&self) {
        if self.looking.load(Ordering::Relaxed) {
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As [`look`](Patience::look), for a thread that stays on one processor and sees the requests of that one
    /// only. It looks as long as requests come anywhere, and gives way to whoever wants the processor: while it
    /// is not idle, the scheduler leaves the program that sends them where it is, beside its server.
    pub(crate) fn stay(
        &self,
        own: &mut Experience,
        clock: &dyn Clock,
        mut has_come: impl FnMut() -> bool,
    ) {
        if !self.begins(own) {
            return;
        }
        let (mut since, mut seen) = (clock.monotonic(), self.passed.load(Ordering::Relaxed));
        let mut was_useful = false;
        let found = loop {
            if has_come() {
                break true;
            }
            let now = clock.monotonic();
            let passed = self.passed.load(Ordering::Relaxed);
            if passed != seen {
                (since, seen, was_useful) = (now, passed, true);
            } else if now.saturating_sub(since) >= LOOK {
                break was_useful;
            }
            std::thread::yield_now();
            if clock.monotonic().saturating_sub(now) >= CROWDED {
                break has_come();
            }
        };
        self.looking.store(false, Ordering::Release);
        own.note(found);
    }
}

impl Experience {
    fn wants(&mut self) -> bool {
        if self.credit > 0 {
            return true;
        }
        self.skipped += 1;
        if self.skipped < RETRY {
            return false;
        }
        self.skipped = 0;
        true
    }

    fn note(&mut self, found: bool) {
        self.credit = match found {
            true => (self.credit + 1).min(CREDIT_MAX),
            false => self.credit.saturating_sub(VAIN),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_in_vain_become_rare_and_one_that_finds_something_brings_them_back() {
        let mut own = Experience::default();
        let looks = |own: &mut Experience, finds: bool, waits: u32| {
            let mut looks = 0;
            for _ in 0..waits {
                if own.wants() {
                    looks += 1;
                    own.note(finds);
                }
            }
            looks
        };
        assert_eq!(looks(&mut own, false, 640), 10, "one of 64");
        assert_eq!(looks(&mut own, true, 640), 640 - 63);
        assert_eq!(own.credit, CREDIT_MAX);
        let vain = looks(&mut own, false, 640);
        assert!((8..=18).contains(&vain), "{vain}");
    }
}
