//! Byte ranges of direct operations under way, so that whoever changes a part of a file waits for
//! those in that part only.
//!
//! The table has one size, whatever is under way. An operation that finds no place in it is counted
//! by its file instead, and whoever waits there waits for all of these.
//!
//! Compiled twice, as `life`.
//!
//! # Invariants
//!
//! - P1. An operation is listed while the content lock of its file is held, shared, and before that
//!   lock is released. Under that lock, exclusively, ranges of the file only leave the table.
//! - P2. A range leaves before its operation is counted down as ended (F2).

use std::ops::Range;

use super::atomic::{AtomicU64, Ordering};

/// Limit of the places that are tried.
const TRIES: usize = 16;

/// The ranges under way in all files of a mount.
pub(crate) struct Spans<const SLOTS: usize> {
    slots: Box<[Slot; SLOTS]>,
}

struct Slot {
    /// Address of what stands for the file; 0 if the place is free.
    owner: AtomicU64,
    start: AtomicU64,
    end: AtomicU64,
}

/// A place in the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span(usize);

impl<const SLOTS: usize> Spans<SLOTS> {
    pub(crate) fn new() -> Spans<SLOTS> {
        let free =
            || Slot { owner: AtomicU64::new(0), start: AtomicU64::new(0), end: AtomicU64::new(0) };
        Spans { slots: Box::new(std::array::from_fn(|_| free())) }
    }

    /// Lists a range of the file for which `owner`, which is not 0, stands. `None` if all places
    /// that are tried are taken.
    pub(crate) fn list(&self, owner: u64, range: &Range<u64>) -> Option<Span> {
        // Neighbours in a file come to other places, and so do equal ranges of two files.
        let hash = (owner ^ range.start >> 9).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let first = (hash >> 32) as usize;
        for place in (0..TRIES.min(SLOTS)).map(|next| first.wrapping_add(next) % SLOTS) {
            let slot = &self.slots[place];
            let taken = slot.owner.compare_exchange(0, owner, Ordering::Acquire, Ordering::Relaxed);
            if taken.is_ok() {
                // Who looks for this one has the content lock after this thread (P1). Who looks for the
                // one before it in this place, and finds this one's range, sees what that one did.
                slot.start.store(range.start, Ordering::Release);
                slot.end.store(range.end, Ordering::Release);
                return Some(Span(place));
            }
        }
        None
    }

    /// Frees a place; what its operation has done is visible to who finds it free.
    pub(crate) fn leave(&self, span: Span) {
        self.slots[span.0].owner.store(0, Ordering::Release);
    }

    /// Returns whether any operation in a part of `range` of that file is listed. The caller keeps
    /// new ones from beginning (P1).
    pub(crate) fn has_any(&self, owner: u64, range: &Range<u64>) -> bool {
        self.slots.iter().any(|slot| {
            slot.owner.load(Ordering::Acquire) == owner
                && slot.start.load(Ordering::Acquire) < range.end
                && slot.end.load(Ordering::Acquire) > range.start
        })
    }
}
