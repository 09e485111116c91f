//! Whether to look for the next request for a moment before sleeping until it comes.
//!
//! A program that does one call after the other sends its next request a few microseconds after it got
//! its answer. To sleep meanwhile costs two turns of the scheduler and, on another processor, waking that
//! up: more than most requests. One thread at a time looks; others sleep. Who looks in vain too often
//! (nobody sends, or the program waits for this very processor) stops looking for a while.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_sync::Clock;

use crate::connection::Connection;

/// How long to look: about what sleeping and waking costs.
const LOOK: Duration = Duration::from_micros(15);
/// Credit at most; each look in vain takes [`VAIN`], each that finds something gives 1.
const CREDIT_MAX: u32 = 16;
const VAIN: u32 = 2;
/// Without credit, one of so many waits looks all the same.
const RETRY: u32 = 64;

/// What all threads of a mount share.
pub(crate) struct Patience {
    /// Somebody looks.
    looking: AtomicBool,
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
        Patience { looking: AtomicBool::new(false), has_room: processors > 1 }
    }

    /// After an answer, before the next request is waited for.
    pub(crate) fn look(&self, own: &mut Experience, clock: &dyn Clock, from: &Connection) {
        if !self.has_room || !own.wants() || self.looking.swap(true, Ordering::Acquire) {
            return;
        }
        let began = clock.monotonic();
        let found = loop {
            if from.has_request() {
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
