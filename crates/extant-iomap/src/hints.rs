//! Hints: the probable frames of folios.
//!
//! # Place
//!
//! Before a file's index, for hits: one load instead of a lock and a search. Shared by all files.
//!
//! # Shape
//!
//! As many slots as the arena has pages, each the number of a frame. Later notes overwrite earlier
//! ones, and none is ever removed. So an answer may be outdated, wrong or no frame at all; the
//! frame itself (`frames`) is checked.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::frames::FrameId;

/// No frame: pins of it fail.
const NOTHING: FrameId = u32::MAX;

/// The slot before which the hints of a file begin, in a table of 2^64 slots. It is made once for each file, as
/// a hash costs as much as the rest of a look.
#[derive(Clone, Copy)]
pub(crate) struct Home(u64);

impl Home {
    /// Returns the home of the file with that number.
    pub(crate) fn of(file: u64) -> Home {
        // The finalizer of a common hash: every bit of the number reaches every bit.
        let key = (file ^ (file >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        let key = (key ^ (key >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93);
        Home(key ^ (key >> 32))
    }
}

/// The table.
pub(crate) struct Hints {
    /// A power of two of them.
    slots: Box<[AtomicU32]>,
}

impl Hints {
    /// An empty table for an arena of so many pages; 4 bytes for each.
    pub(crate) fn new(pages: u32) -> Hints {
        let slots = u64::from(pages).max(1).next_power_of_two();
        Hints { slots: (0..slots).map(|_| AtomicU32::new(NOTHING)).collect() }
    }

    /// Returns the frame last noted for a folio of 2^order pages that begins at page `start` of the
    /// file, or any other number.
    #[inline]
    pub(crate) fn get(&self, home: Home, start: u64, order: u8) -> FrameId {
        // Relaxed, because a number proves nothing: pinning the frame acquires its contents.
        self.slot(home, start, order).load(Ordering::Relaxed)
    }

    /// Notes a frame.
    #[inline]
    pub(crate) fn set(&self, home: Home, start: u64, order: u8, id: FrameId) {
        self.slot(home, start, order).store(id, Ordering::Relaxed);
    }

    /// Neighbours of one file and size are neighbours here, so that reading on stays in a line of
    /// the processor's cache; where a file begins is scattered.
    #[inline]
    fn slot(&self, home: Home, start: u64, order: u8) -> &AtomicU32 {
        // Sizes of one file are a sixteenth of the table apart; there are fewer.
        let sizes = (self.slots.len() as u64 >> 4).wrapping_mul(order.into());
        let within = start.checked_shr(order.into()).unwrap_or(0);
        let place = home.0.wrapping_add(sizes).wrapping_add(within);
        &self.slots[place as usize & (self.slots.len() - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::Frames;

    #[test]
    fn what_was_noted_last_is_found() {
        for pages in [0, 1, 512, 1000] {
            let hints = Hints::new(pages);
            assert_eq!(hints.get(Home::of(5), 64, 6), NOTHING);
            hints.set(Home::of(5), 64, 6, 3);
            assert_eq!(hints.get(Home::of(5), 64, 6), 3);
            hints.set(Home::of(5), 64, 6, 4);
            assert_eq!(hints.get(Home::of(5), 64, 6), 4);
            // Anything may be asked.
            hints.get(Home::of(u64::MAX), u64::MAX, u8::MAX);
        }
    }

    #[test]
    fn an_answer_is_only_a_guess_and_the_frame_decides() {
        let (hints, frames) = (Hints::new(1), Frames::new(4));
        let pin = frames.publish(2, 7, 0, 0);
        hints.set(Home::of(7), 0, 0, pin.id());
        assert!(frames.pin(hints.get(Home::of(7), 0, 0), 7, 0).is_some());
        // One slot: every other question gets the same answer.
        assert!(frames.pin(hints.get(Home::of(8), 0, 0), 8, 0).is_none());
        pin.kill().unwrap();
        assert!(frames.pin(hints.get(Home::of(7), 0, 0), 7, 0).is_none());
        assert!(frames.pin(NOTHING, 7, 0).is_none());
    }

    #[test]
    fn folios_of_one_file_do_not_meet_and_small_files_are_scattered() {
        let hints = Hints::new(1024);
        for start in 0..1024 {
            hints.set(Home::of(9), start, 0, start as u32);
        }
        assert!((0..1024).all(|start| hints.get(Home::of(9), start, 0) == start as u32));
        // 512 files with one folio each, numbered in a row, over 1024 slots: at random about
        // 403 slots are taken.
        let hints = Hints::new(1024);
        (0..512).for_each(|file| hints.set(Home::of(file), 0, 0, file as u32));
        let kept = (0..512).filter(|file| hints.get(Home::of(*file), 0, 0) == *file as u32).count();
        assert!((360..450).contains(&kept), "{kept}");
    }
}
