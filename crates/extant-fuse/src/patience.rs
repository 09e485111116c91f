//! Polling for the next request for a moment before sleeping.
//!
//! A program that makes one call after the other sends its next request a few microseconds after
//! its answer. Sleeping meanwhile costs two context switches and, on another processor, waking that
//! up: more than most requests. One thread at a time polls; others sleep. A thread that polls in
//! vain too often (no requests come, or the program waits for this processor) stops polling for a
//! while.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_sync::Clock;

/// How long to look: about what sleeping and waking costs.
const LOOK: Duration = Duration::from_micros(15);
/// Absence after a yield from which a thread's processor counts as shared with another.
const CROWDED: Duration = Duration::from_micros(3);
/// Credit at most; each look in vain takes [`VAIN`], each that finds something gives 1.
const CREDIT_MAX: u32 = 16;
const VAIN: u32 = 2;
/// Without credit, one of [`RETRY`] waits polls all the same.
const RETRY: u32 = 64;

/// The knowledge of waiting that all threads of a mount share.
pub(crate) struct Patience {
    /// Somebody looks.
    looking: AtomicBool,
    /// Number of requests that other threads got during a poll.
    passed: AtomicU64,
    /// Whether there is a processor for polling besides the one that a program runs on.
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

    /// Returns whether this thread polls from now on.
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

    /// Counts a request that came to a thread which may not be the polling one.
    pub(crate) fn note_request(&self) {
        if self.looking.load(Ordering::Relaxed) {
            self.passed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Polls like [`look`](Patience::look), for a thread that stays on one processor and sees only
    /// the requests of that one. It polls while requests come anywhere, and yields to other threads
    /// on the processor: while the processor is not idle, the scheduler leaves the requesting
    /// program there, beside its server.
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
