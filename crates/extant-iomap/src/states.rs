//! The state of every unit of the arena: four bits.
//!
//! # Place
//!
//! Beside the arena; numbers units, the smaller of a block and a page, from its start. The units of
//! a folio are neighbours, so every question about a folio is one about a range.
//!
//! # Shape
//!
//! One bitmap for each state, 64 units to a word. Everything costs words, not units: a folio of 2
//! MiB in units of 4 KiB is 8 of them.
//!
//! # Order of memory
//!
//! - O1. Setting a bit releases, seeing it set acquires: a thread that sees a unit uptodate sees
//!   the bytes written before. Clearing releases as well, and seeing a bit clear acquires: a thread
//!   that sees a unit out of writeback may change its bytes.
//! - O2. The words of one call change one after the other. Callers that need several units, or two
//!   states of one, to agree hold the folio's lock, under which all changes are made.
//! - O3. Without that lock, a unit that changes from dirty to writeback is always seen in at least
//!   one of the states: writeback is set first, then dirty is cleared; readers check dirty first.
//!   By O1, a thread that sees dirty cleared sees writeback set. That needs no sequential
//!   consistency: nothing depends on the order of changes by two threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// A bit of a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// The bytes of the unit are those of the file.
    Uptodate,
    /// The bytes of the unit are newer than the device's.
    Dirty,
    /// The bytes of the unit are being written to the device and must not change.
    Writeback,
    /// The bytes of the unit are being brought into memory, by one thread, and are nobody else's.
    Filling,
}

/// Bits of one word.
const BITS: u64 = u64::BITS as u64;

/// The states of all units of the arena.
pub(crate) struct States {
    units: u64,
    /// By state.
    words: [Box<[AtomicU64]>; 4],
}

impl States {
    /// All clear, for units `0..units`.
    pub(crate) fn new(units: u64) -> States {
        let words = || (0..units.div_ceil(BITS)).map(|_| AtomicU64::new(0)).collect();
        States { units, words: [words(), words(), words(), words()] }
    }

    /// Sets the bit of every unit in the range; returns how many were clear.
    pub(crate) fn set(&self, state: State, range: Range<u64>) -> u64 {
        let mut changed = 0;
        for (word, mask) in self.masks(state, range) {
            // Most often they are set already, and a look costs far less than a change.
            if word.load(Ordering::Acquire) & mask != mask {
                changed += u64::from((!word.fetch_or(mask, Ordering::AcqRel) & mask).count_ones());
            }
        }
        changed
    }

    /// Clears the bit of every unit in the range; returns how many were set.
    pub(crate) fn clear(&self, state: State, range: Range<u64>) -> u64 {
        let mut changed = 0;
        for (word, mask) in self.masks(state, range) {
            if word.load(Ordering::Acquire) & mask != 0 {
                changed += u64::from((word.fetch_and(!mask, Ordering::AcqRel) & mask).count_ones());
            }
        }
        changed
    }

    /// Returns whether the bit of every unit in the range is set; true for no units.
    #[inline]
    pub(crate) fn all(&self, state: State, range: Range<u64>) -> bool {
        self.masks(state, range).all(|(word, mask)| word.load(Ordering::Acquire) & mask == mask)
    }

    /// Returns whether the bit of any unit in the range is set.
    #[inline]
    pub(crate) fn any(&self, state: State, range: Range<u64>) -> bool {
        self.masks(state, range).any(|(word, mask)| word.load(Ordering::Acquire) & mask != 0)
    }

    #[cfg(test)]
    /// Returns how many bits are set in the range.
    pub(crate) fn count(&self, state: State, range: Range<u64>) -> u64 {
        self.masks(state, range)
            .map(|(word, mask)| u64::from((word.load(Ordering::Acquire) & mask).count_ones()))
            .sum()
    }

    /// Returns the first run of units with the bit, cut to the range.
    pub(crate) fn next_run(&self, state: State, range: Range<u64>) -> Option<Range<u64>> {
        self.run(state, range, 0)
    }

    /// Returns the first run of units without the bit, cut to the range.
    pub(crate) fn next_clear(&self, state: State, range: Range<u64>) -> Option<Range<u64>> {
        self.run(state, range, u64::MAX)
    }

    /// The first run of ones in the words, each after `flip` was applied.
    fn run(&self, state: State, range: Range<u64>, flip: u64) -> Option<Range<u64>> {
        let end = range.end;
        let start = self.first(state, range, flip)?;
        let stop = self.first(state, start..end, !flip).unwrap_or(end);
        Some(start..stop)
    }

    /// The first one in the words, each after `flip` was applied.
    fn first(&self, state: State, range: Range<u64>, flip: u64) -> Option<u64> {
        let mut base = range.start / BITS * BITS;
        for (word, mask) in self.masks(state, range) {
            let found = (word.load(Ordering::Acquire) ^ flip) & mask;
            if found != 0 {
                return Some(base + u64::from(found.trailing_zeros()));
            }
            base += BITS;
        }
        None
    }

    /// Returns the words of a range, each with a mask of the bits in the range.
    ///
    /// # Panics
    ///
    /// When the range is not inside: a bug of this crate.
    #[inline]
    #[track_caller]
    fn masks(
        &self,
        state: State,
        range: Range<u64>,
    ) -> impl Iterator<Item = (&AtomicU64, u64)> + use<'_> {
        let Range { start, end } = range;
        assert!(start <= end && end <= self.units, "units {start}..{end} of {}", self.units);
        let (first, after) = (start / BITS, end.div_ceil(BITS));
        let words = if start == end {
            &[][..]
        } else {
            // Both fit: they are places in a slice.
            &self.words[state as usize][first as usize..after as usize]
        };
        words.iter().zip(first..).map(move |(word, number)| {
            let base = number * BITS;
            let low = u64::MAX << start.saturating_sub(base);
            let high = u64::MAX >> (base + BITS).saturating_sub(end);
            (word, low & high)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;
    use extant_sync::threads;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    const STATES: [State; 4] = [State::Uptodate, State::Dirty, State::Writeback, State::Filling];

    fn model_run(bits: &[bool], range: &Range<u64>, wanted: bool) -> Option<Range<u64>> {
        let start = range.clone().find(|unit| bits[*unit as usize] == wanted)?;
        let stop = (start..range.end).find(|unit| bits[*unit as usize] != wanted);
        Some(start..stop.unwrap_or(range.end))
    }

    fn same(states: &States, state: State, bits: &[bool], range: &Range<u64>) {
        let part = &bits[range.start as usize..range.end as usize];
        let got = |name: &str| format!("{name} of {state:?} {range:?}");
        assert_eq!(states.all(state, range.clone()), part.iter().all(|bit| *bit), "{}", got("all"));
        assert_eq!(states.any(state, range.clone()), part.iter().any(|bit| *bit), "{}", got("any"));
        let count = part.iter().filter(|bit| **bit).count() as u64;
        assert_eq!(states.count(state, range.clone()), count, "{}", got("count"));
        let run = states.next_run(state, range.clone());
        assert_eq!(run, model_run(bits, range, true), "{}", got("run"));
        let clear = states.next_clear(state, range.clone());
        assert_eq!(clear, model_run(bits, range, false), "{}", got("clear run"));
    }

    #[test]
    fn every_alignment_and_length_changes_exactly_its_units() {
        let step = if cfg!(miri) { 23 } else { 1 };
        for units in [130, 192] {
            for start in (0..units).step_by(step) {
                for end in (start..=units).step_by(step) {
                    let states = States::new(units);
                    let mut bits = vec![false; units as usize];
                    bits[start as usize..end as usize].fill(true);
                    assert_eq!(states.set(State::Dirty, start..end), end - start);
                    same(&states, State::Dirty, &bits, &(0..units));
                    assert!(!states.any(State::Uptodate, 0..units), "other states are others");
                    assert!(!states.any(State::Writeback, 0..units));

                    // The other way round: a hole in a full map.
                    assert_eq!(states.set(State::Dirty, 0..units), units - (end - start));
                    assert_eq!(states.clear(State::Dirty, start..end), end - start);
                    bits.iter_mut().for_each(|bit| *bit = !*bit);
                    same(&states, State::Dirty, &bits, &(0..units));
                }
            }
        }
    }

    #[test]
    fn any_history_equals_a_list_of_flags() {
        let rounds = if cfg!(miri) { 200 } else { 60_000 };
        for seed in 0..3 {
            let mut prng = Prng::new(seed);
            let units = 64 * 9 + seed * 21;
            let states = States::new(units);
            let mut model = STATES.map(|_| vec![false; units as usize]);
            for _ in 0..rounds {
                let which = prng.below(4) as usize;
                let start = prng.below(units + 1);
                let limit = if prng.one_in(3) { units - start } else { (units - start).min(70) };
                let range = start..start + prng.below(limit + 1);
                let value = prng.one_in(2);
                let part = &mut model[which][range.start as usize..range.end as usize];
                let differ = part.iter().filter(|bit| **bit != value).count() as u64;
                part.fill(value);
                let changed = if value {
                    states.set(STATES[which], range)
                } else {
                    states.clear(STATES[which], range)
                };
                assert_eq!(changed, differ);
                let start = prng.below(units + 1);
                let range = start..start + prng.below(units - start + 1);
                let which = prng.below(4) as usize;
                same(&states, STATES[which], &model[which], &range);
            }
        }
    }

    #[test]
    fn ranges_outside_are_refused() {
        let states = States::new(100);
        assert_eq!(states.set(State::Dirty, 100..100), 0);
        assert!(states.all(State::Dirty, 0..0));
        #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
        for range in [0..101, 100..101, 5..4, u64::MAX..u64::MAX] {
            let outside = AssertUnwindSafe(|| states.set(State::Dirty, range.clone()));
            assert!(catch_unwind(outside).is_err(), "{range:?}");
        }
        assert!(!states.any(State::Dirty, 0..100));
    }

    #[test]
    fn threads_in_one_word_lose_no_bits() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let states = States::new(256);
        threads::workers("bits", 4, |thread| {
            // Units of the four are interleaved in runs of 3, over borders of words.
            let mine =
                (0..256).skip(3 * thread).step_by(12).map(|start| start..(start + 3).min(256));
            let mine: Vec<_> = mine.collect();
            for round in 0..rounds {
                let range = mine[round % mine.len()].clone();
                let len = range.end - range.start;
                assert_eq!(states.set(State::Writeback, range.clone()), len);
                assert!(states.all(State::Writeback, range.clone()));
                assert_eq!(states.clear(State::Writeback, range.clone()), len);
                assert!(!states.any(State::Writeback, range));
            }
        })
        .unwrap();
        assert_eq!(states.next_run(State::Writeback, 0..256), None);
        assert_eq!(states.next_clear(State::Writeback, 0..256), Some(0..256));
    }
}
