//! Ranges of a file that one writer at a time may give blocks or first data.
//!
//! # Invariants
//!
//! - G1. Ranges that are held do not overlap.
//! - G2. Who waits comes before all who ask later for anything that overlaps: a wide range is not
//!   starved by narrow ones. Ranges that overlap nothing pass each other.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use extant_sync::{Condvar, Hold, Mutex, Rank};

/// The ranges of one file that are held, and those who wait for one.
pub(crate) struct Ranges {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// Ends of the held ranges by their starts, disjoint.
    held: BTreeMap<u64, u64>,
    /// Numbers and ranges of those who wait, in the order in which they came.
    waiting: Vec<(u64, Range<u64>)>,
    /// Number of the next one who waits.
    next: u64,
}

/// A range of a file held by one direct writer, until it is dropped.
#[must_use = "others may have the range when it is dropped"]
pub struct RangeLock<'a> {
    ranges: &'a Ranges,
    start: u64,
    end: u64,
    /// Held by whoever has waited, or might have.
    _hold: Option<Hold>,
}

fn overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

impl State {
    fn is_held(&self, range: &Range<u64>) -> bool {
        self.held.range(..range.end).next_back().is_some_and(|(_, end)| *end > range.start)
    }

    /// Takes the range if nobody has a part of it or came before for one.
    fn take(&mut self, range: &Range<u64>, waiting: usize) -> bool {
        let is_free = !self.is_held(range)
            && !self.waiting[..waiting].iter().any(|(_, before)| overlap(before, range));
        if is_free {
            self.held.insert(range.start, range.end);
        }
        is_free
    }
}

impl Ranges {
    pub(crate) fn new() -> Ranges {
        Ranges { state: Mutex::new(Rank::Leaf, State::default()), ended: Condvar::new() }
    }

    /// Waits for a range, which is not empty. The thread holds no content lock, and no other range that
    /// it has waited for.
    #[track_caller]
    pub(crate) fn lock(&self, range: Range<u64>) -> RangeLock<'_> {
        let hold = Hold::new(Rank::FileRange);
        let (start, end) = (range.start, range.end);
        let mut state = self.state.lock();
        let before = state.waiting.len();
        if !state.take(&range, before) {
            let number = state.next;
            state.next += 1;
            state.waiting.push((number, range.clone()));
            loop {
                self.ended.wait(&mut state);
                let place = state.waiting.iter().position(|(other, _)| *other == number);
                // It stays in the list until this thread removes it.
                let place = place.unwrap_or_default();
                if state.take(&range, place) {
                    state.waiting.remove(place);
                    break;
                }
            }
        }
        RangeLock { ranges: self, start, end, _hold: Some(hold) }
    }

    /// Takes a range, which is not empty, if nobody has a part of it or waits for one.
    pub(crate) fn try_lock(&self, range: Range<u64>) -> Option<RangeLock<'_>> {
        let mut state = self.state.lock();
        let before = state.waiting.len();
        let is_taken = state.take(&range, before);
        is_taken.then(|| RangeLock {
            ranges: self,
            start: range.start,
            end: range.end,
            _hold: None,
        })
    }
}

impl Drop for RangeLock<'_> {
    fn drop(&mut self) {
        let mut state = self.ranges.state.lock();
        state.held.remove(&self.start);
        let waits = !state.waiting.is_empty();
        drop(state);
        if waits {
            self.ranges.ended.notify_all();
        }
    }
}

/// Ranges of one file held by one thread for many writes, which may overlap each other.
#[derive(Debug, Default)]
pub struct RangeLocks<'a>(BTreeMap<u64, RangeLock<'a>>);

impl<'a> RangeLocks<'a> {
    /// Creates an empty set.
    #[must_use]
    pub fn new() -> RangeLocks<'a> {
        RangeLocks::default()
    }

    /// Returns whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds the parts of a range that are not among them, if nobody else has any or waits for one.
    /// Otherwise returns false, and may have added some.
    pub(crate) fn try_add(&mut self, ranges: &'a Ranges, range: Range<u64>) -> bool {
        let mut at = range.start;
        while at < range.end {
            let before = self.0.range(..=at).next_back();
            if let Some(end) = before.map(|(_, lock)| lock.end).filter(|end| *end > at) {
                at = end;
                continue;
            }
            let next = self.0.range(at..range.end).next();
            let end = next.map_or(range.end, |(start, _)| *start);
            let Some(lock) = ranges.try_lock(at..end) else { return false };
            self.0.insert(at, lock);
            at = end;
        }
        true
    }
}

impl fmt::Debug for RangeLock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RangeLock({}..{})", self.start, self.end)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
    use std::time::Duration;

    use extant_base::Prng;
    use extant_sync::threads::{scope, workers};
    use extant_sync::{Clock, SystemClock};

    use super::*;

    #[test]
    fn what_overlaps_is_refused_and_neighbours_are_not() {
        let ranges = Ranges::new();
        let middle = ranges.try_lock(10..20).unwrap();
        for overlapping in [10..20, 0..11, 19..30, 12..13, 0..30] {
            assert!(ranges.try_lock(overlapping.clone()).is_none(), "{overlapping:?}");
        }
        let beside = [ranges.try_lock(0..10), ranges.try_lock(20..21)];
        assert!(beside.iter().all(Option::is_some));
        drop(middle);
        assert!(ranges.try_lock(9..11).is_none());
        assert!(ranges.try_lock(10..20).is_some());
    }

    #[test]
    fn one_thread_may_have_ranges_that_overlap_and_no_other_thread_any_of_them() {
        let ranges = Ranges::new();
        let mut own = RangeLocks::new();
        let foreign = ranges.try_lock(30..31);
        for range in [10..12, 11..14, 5..20, 5..6, 19..20] {
            assert!(own.try_add(&ranges, range.clone()), "{range:?}");
        }
        assert!(!own.try_add(&ranges, 18..32), "a part of it is another one's");
        for (range, is_free) in [(4..5, true), (5..6, false), (13..14, false), (31..32, true)] {
            assert_eq!(ranges.try_lock(range.clone()).is_some(), is_free, "{range:?}");
        }
        drop(foreign);
        assert!(own.try_add(&ranges, 18..32));
        drop(own);
        assert!(ranges.try_lock(0..100).is_some());
    }

    #[test]
    fn who_waits_for_much_is_not_overtaken_by_who_wants_a_part() {
        let ranges = Ranges::new();
        let order = AtomicUsize::new(0);
        let first = ranges.lock(0..1);
        scope(|threads| {
            let wide = threads.spawn("wide", || {
                let _all = ranges.lock(0..100);
                order.fetch_add(1, Ordering::SeqCst)
            });
            let wide = wide.unwrap();
            while ranges.state.lock().waiting.is_empty() {
                SystemClock.sleep(Duration::from_millis(1));
            }
            // Nobody holds it, but somebody waits for it.
            assert!(ranges.try_lock(50..51).is_none());
            assert!(ranges.try_lock(100..101).is_some());
            let narrow = threads.spawn("narrow", || {
                let _part = ranges.lock(50..51);
                order.fetch_add(1, Ordering::SeqCst)
            });
            let narrow = narrow.unwrap();
            while ranges.state.lock().waiting.len() < 2 {
                SystemClock.sleep(Duration::from_millis(1));
            }
            drop(first);
            assert_eq!((wide.join().unwrap(), narrow.join().unwrap()), (0, 1));
        })
        .unwrap();
    }

    #[test]
    fn no_two_threads_ever_have_one_unit() {
        const UNITS: usize = 40;
        let ranges = Ranges::new();
        let owners: Vec<AtomicU32> = (0..UNITS).map(|_| AtomicU32::new(0)).collect();
        workers("writer", 4, |number| {
            let mut random = Prng::new(number as u64);
            let mine = number as u32 + 1;
            for _ in 0..2000 {
                let start = random.below(UNITS as u64);
                let end = (start + 1 + random.below(12)).min(UNITS as u64);
                let lock = match random.one_in(3) {
                    true => ranges.try_lock(start..end),
                    false => Some(ranges.lock(start..end)),
                };
                if lock.is_none() {
                    continue;
                }
                let units = &owners[start as usize..end as usize];
                for unit in units {
                    assert_eq!(unit.swap(mine, Ordering::Relaxed), 0);
                }
                units.iter().for_each(|unit| unit.store(0, Ordering::Relaxed));
            }
        })
        .unwrap();
        assert!(ranges.state.lock().held.is_empty());
    }
}
