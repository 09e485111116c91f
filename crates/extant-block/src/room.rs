//! The parts of an image file that are known to have disk space.
//!
//! # Purpose
//!
//! The system is asked where the next hole is, and some file systems scan every page up to it to
//! answer: tens of milliseconds for an image of a gigabyte without holes. An answer is remembered
//! for the whole part in front of the hole, until space is released.
//!
//! Inside a hole, space is often asked for block by block: new directories, tables that fill. Who
//! goes on where an earlier request ended gets twice as much as that request did, up to
//! [`AHEAD_MOST`], so that the system is asked for space rarely.
//!
//! # Invariants
//!
//! - R1. A remembered part has disk space. A thread that releases space forgets the part first.
//! - R2. An answer is remembered only if no space was being released from before the question until
//!   the answer is noted: it might be older than a hole in it.
//! - R3. The remembered hole is a hint: asking for space where there is some already changes
//!   nothing.
//! - R4. Space that nobody asked for is at most as much as was asked for in a row in front of it.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_sync::{Mutex, Rank};

/// Limit of the remembered parts. Each needs a hole behind it, so there are few; beyond the limit
/// all are forgotten, and asked for again.
const PARTS_MOST: usize = 4096;

/// Limit in bytes of what is filled at once when only a part of it was asked for.
pub(crate) const AHEAD_MOST: u64 = 256 << 10;

/// Number of places that are remembered as ends of filled parts: threads that fill holes in turn.
const STREAMS: usize = 8;

/// The remembered parts.
pub(crate) struct Room {
    state: Mutex<State>,
}

struct State {
    /// Ends by starts; parts are neither empty nor adjacent.
    parts: BTreeMap<u64, u64>,
    /// Number of threads that are releasing space.
    giving: u32,
    /// Number of releases that ever began.
    gave: u64,
    /// A part without space, as the system told last.
    hole: Range<u64>,
    /// Filled parts that may go on, [`STREAMS`] of them.
    streams: Vec<Range<u64>>,
    /// The stream that is replaced next.
    oldest: usize,
}

/// The moment of a question to the system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Asked(u64);

impl Default for Room {
    fn default() -> Room {
        let state = State {
            parts: BTreeMap::new(),
            giving: 0,
            gave: 0,
            hole: 0..0,
            streams: vec![0..0; STREAMS],
            oldest: 0,
        };
        Room { state: Mutex::new(Rank::Leaf, state) }
    }
}

impl Room {
    /// Returns the end of the known space from `at` on: `at` itself when nothing is known.
    pub(crate) fn known_to(&self, at: u64) -> u64 {
        let state = self.state.lock();
        state.parts.range(..=at).next_back().map_or(at, |(_, end)| (*end).max(at))
    }

    /// Begins a question to the system; `None` when its answer must not be remembered.
    pub(crate) fn ask(&self) -> Option<Asked> {
        let state = self.state.lock();
        (state.giving == 0).then_some(Asked(state.gave))
    }

    /// Remembers the answer that all of `range` has space.
    pub(crate) fn note(&self, asked: Option<Asked>, range: Range<u64>) {
        let mut state = self.state.lock();
        if range.is_empty() || asked != Some(Asked(state.gave)) {
            return;
        }
        if state.parts.len() >= PARTS_MOST {
            state.parts.clear();
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((at, to)) = state.parts.range(..=end).next_back().map(|(at, to)| (*at, *to))
            && to >= start
        {
            state.parts.remove(&at);
            (start, end) = (start.min(at), end.max(to));
        }
        state.parts.insert(start, end);
    }

    /// Remembers a part that has no space.
    pub(crate) fn note_hole(&self, hole: Range<u64>) {
        self.state.lock().hole = hole;
    }

    /// Returns the end of the remembered hole that `at` lies in (R3).
    pub(crate) fn hole_to(&self, at: u64) -> Option<u64> {
        let state = self.state.lock();
        state.hole.contains(&at).then_some(state.hole.end)
    }

    /// Returns how far to fill a hole that ends at `hole_end`, when space is needed for `range`.
    pub(crate) fn stretch(&self, range: &Range<u64>, hole_end: u64) -> u64 {
        let state = self.state.lock();
        let earlier = state.streams.iter().find(|stream| stream.end == range.start);
        let len = earlier.map_or(0, |stream| 2 * (stream.end - stream.start)).min(AHEAD_MOST);
        range.end.max(range.start.saturating_add(len)).min(hole_end.max(range.end))
    }

    /// Remembers that `range` was filled now.
    pub(crate) fn note_filled(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        let goes_on = state.streams.iter().position(|stream| stream.end == range.start);
        let at = goes_on.unwrap_or_else(|| {
            state.oldest = (state.oldest + 1) % STREAMS;
            state.oldest
        });
        state.streams[at] = range;
    }

    /// Runs `give`, which may release the space of `range`.
    pub(crate) fn while_given<R>(&self, range: Range<u64>, give: impl FnOnce() -> R) -> R {
        let _giving = self.begin_giving(range);
        give()
    }

    fn begin_giving(&self, range: Range<u64>) -> Giving<'_> {
        let mut state = self.state.lock();
        state.giving += 1;
        state.gave += 1;
        while let Some((at, to)) =
            state.parts.range(..range.end).next_back().map(|(at, to)| (*at, *to))
            && to > range.start
        {
            state.parts.remove(&at);
            if range.end < to {
                state.parts.insert(range.end, to);
            }
            if at < range.start {
                state.parts.insert(at, range.start);
            }
        }
        Giving(self)
    }
}

/// Marks that space is being released, until it is dropped.
struct Giving<'a>(&'a Room);

impl Drop for Giving<'_> {
    fn drop(&mut self) {
        self.0.state.lock().giving -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(room: &Room) -> Vec<(u64, u64)> {
        room.state.lock().parts.iter().map(|(start, end)| (*start, *end)).collect()
    }

    fn note(room: &Room, range: Range<u64>) {
        room.note(room.ask(), range);
    }

    #[test]
    fn parts_that_meet_are_one_and_given_ones_are_gone() {
        let room = Room::default();
        for range in [10..20, 30..40, 50..60, 20..30, 35..55, 70..70] {
            note(&room, range);
        }
        assert_eq!(parts(&room), [(10, 60)]);
        assert_eq!((room.known_to(9), room.known_to(10), room.known_to(59)), (9, 60, 60));
        assert_eq!(room.known_to(60), 60);
        room.while_given(20..30, || assert_eq!(parts(&room), [(10, 20), (30, 60)]));
        room.while_given(15..35, || ());
        assert_eq!(parts(&room), [(10, 15), (35, 60)]);
        room.while_given(0..100, || ());
        assert_eq!(parts(&room), []);
    }

    #[test]
    fn who_goes_on_gets_twice_as_much_up_to_a_limit_and_to_the_end_of_the_hole() {
        let room = Room::default();
        let end = 1 << 40;
        // Two that take turns, each a block at a time.
        let mut filled = [(0, 0), (1 << 30, 1 << 30)];
        for step in 0..12_u32 {
            for (from, to) in &mut filled {
                let upto = room.stretch(&(*to..*to + 4096), end);
                let len = upto - *to;
                assert_eq!(len, (4096 << step).min(AHEAD_MOST));
                assert!(len <= 4096.max(2 * (*to - *from)));
                room.note_filled(*to..upto);
                *to = upto;
            }
        }
        let at = filled[0].1;
        assert_eq!(room.stretch(&(at..at + 4096), at + 8192), at + 8192);
        // What is needed is always filled, and who does not go on gets nothing more.
        assert_eq!(room.stretch(&(at..at + (1 << 20)), at + 8192), at + (1 << 20));
        assert_eq!(room.stretch(&(at + 1..at + 5), end), at + 5);
    }

    #[test]
    fn the_hole_that_was_told_last_is_remembered() {
        let room = Room::default();
        assert_eq!(room.hole_to(0), None);
        room.note_hole(10..20);
        assert_eq!(
            (room.hole_to(9), room.hole_to(10), room.hole_to(19)),
            (None, Some(20), Some(20))
        );
        assert_eq!(room.hole_to(20), None);
    }

    #[test]
    fn an_answer_that_may_be_older_than_a_hole_does_not_count() {
        let room = Room::default();
        let asked = room.ask();
        // Asked before room was given away, and answered meanwhile or afterwards.
        room.while_given(10..20, || room.note(asked, 0..100));
        room.note(asked, 0..100);
        assert_eq!(parts(&room), []);
        // Asked meanwhile.
        let asked = room.while_given(10..20, || {
            assert_eq!(room.ask(), None);
            room.ask()
        });
        room.note(asked, 0..100);
        assert_eq!(parts(&room), []);
        note(&room, 0..100);
        assert_eq!(parts(&room), [(0, 100)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let room = Room::default();
        for at in 0..3 * PARTS_MOST as u64 {
            note(&room, 2 * at..2 * at + 1);
        }
        assert!(parts(&room).len() <= PARTS_MOST);
        assert_eq!(room.known_to(6 * PARTS_MOST as u64 - 2), 6 * PARTS_MOST as u64 - 1);
    }
}
