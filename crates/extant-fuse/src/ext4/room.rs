//! Space for dirty data in the kernel's cache.
//!
//! The kernel accepts writes of programs without asking whether there is space. It asks here before
//! a write only when its attributes of the file have expired. So attributes are valid for as long
//! as all data written meanwhile has space: without limit while there is more space than memory;
//! for a time that follows the remaining space; and not at all when little remains. With too
//! little, the kernel's dirty data of a file is taken before each write, which then gets the error
//! for data without space.
//!
//! The amount of dirty data is not known, but it is part of the dirty memory of the whole system.
//!
//! When little is left, what all files have in the kernel's cache is taken first (`Scarcity`): a
//! program that wrote before has a claim to what remains, also if it does not get to run meanwhile.
//! Writes that ask while that goes on wait for its end, or they would use the space up.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use extant_sync::{Mutex, Rank};

use crate::memory::read_counters;

/// Bytes that programs write in a second, at most.
const RATE: u64 = 16 << 30;
/// How far off the counters of the kernel may be, with what is written while they are looked at.
const MARGIN: u64 = 16 << 20;
/// With less than this to spare each write asks: the kernel counts time in steps of 1 to 10 ms.
const LENT_MIN: u64 = 128 << 20;
const LEASE_MIN: Duration = Duration::from_millis(1);
/// How long the kernel's counters are believed; [`MARGIN`] has room for it.
const FRESH: Duration = Duration::from_millis(1);
/// At least so much is written between two looks while there is plenty of room.
const LOOK_MIN: u64 = 64 << 20;

/// The time for which the kernel may keep attributes of a file, and with them collect writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lease {
    ForEver,
    For(Duration),
    /// Each write asks first; `scarce`: what is held back is taken in before.
    Never {
        scarce: bool,
    },
}

impl Lease {
    /// As attributes say it: `None` is for ever.
    pub(super) fn time(self) -> Option<Duration> {
        match self {
            Lease::ForEver => None,
            Lease::For(time) => Some(time),
            Lease::Never { .. } => Some(Duration::ZERO),
        }
    }
}

/// Returns how long writes may continue without asking, with `room` bytes free, of which at most
/// `held` are claimed, in a system with `memory` bytes.
fn lease(room: u64, held: u64, memory: u64) -> Lease {
    if room >= memory {
        return Lease::ForEver;
    }
    match room.saturating_sub(held.saturating_add(MARGIN)) {
        0 => Lease::Never { scarce: true },
        spare if spare < LENT_MIN => Lease::Never { scarce: false },
        spare => {
            // Half of it, for several may write.
            let nanos = u128::from(spare / 2) * 1_000_000_000 / u128::from(RATE);
            Lease::For(Duration::from_nanos(nanos as u64).max(LEASE_MIN))
        }
    }
}

/// Counters of the space and of the writes.
pub(super) struct Room {
    /// Whether the kernel collects no writes, or need not ask for other reasons.
    is_off: bool,
    memory: u64,
    /// Some attributes are not for ever.
    is_lent: AtomicBool,
    scarcity: Mutex<Scarcity>,
    /// Number of bytes that may be written until the next check, while attributes do not expire.
    until_look: AtomicI64,
    seen: Mutex<Seen>,
    /// How often something was freed.
    freed: AtomicU64,
}

/// What was done since little was left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scarcity {
    /// Enough was left at the last look.
    Plenty,
    /// The dirty data of all files is being taken.
    Collecting,
    /// It was taken.
    Collected,
}

/// What a write does that finds little left.
pub(super) enum Turn<'r> {
    /// It has the dirty data of all files taken.
    Collects(Collecting<'r>),
    /// It waits until another has done so.
    Waits,
    /// Only the data of its own file is to be taken.
    GoesOn,
}

/// The time in which the dirty data of all files is taken. It ends also by a panic.
pub(super) struct Collecting<'r> {
    room: &'r Room,
    is_done: bool,
}

impl Collecting<'_> {
    /// All of it was taken; otherwise the next write tries it.
    pub(super) fn done(mut self) {
        self.is_done = true;
    }
}

impl Drop for Collecting<'_> {
    fn drop(&mut self) {
        let next = if self.is_done { Scarcity::Collected } else { Scarcity::Plenty };
        *self.room.scarcity.lock() = next;
    }
}

#[derive(Clone, Copy)]
struct Seen {
    at: Option<Duration>,
    held: u64,
}

impl Room {
    /// `holds_writes_back`: the kernel collects writes.
    pub(super) fn new(holds_writes_back: bool) -> Room {
        Room {
            is_off: !holds_writes_back,
            // Without counters everything may be held.
            memory: read_counters().map_or(u64::MAX, |(memory, _)| memory),
            is_lent: AtomicBool::new(false),
            scarcity: Mutex::new(Rank::Leaf, Scarcity::Plenty),
            until_look: AtomicI64::new(0),
            seen: Mutex::new(Rank::Leaf, Seen { at: None, held: u64::MAX }),
            freed: AtomicU64::new(0),
        }
    }

    /// Returns whether attributes of files that are open for writing may be for less than ever.
    pub(super) fn is_lent(&self) -> bool {
        self.is_lent.load(Ordering::Acquire)
    }

    fn held(&self, now: Duration) -> u64 {
        let mut seen = self.seen.lock();
        if seen.at.is_none_or(|at| now.saturating_sub(at) > FRESH) {
            let held = read_counters().map_or(u64::MAX, |(_, held)| held);
            *seen = Seen { at: Some(now), held };
        }
        seen.held
    }

    /// Returns how long writes may continue without asking, and whether attributes without a time
    /// limit must be dropped now.
    pub(super) fn lease(&self, room: u64, now: Duration) -> (Lease, bool) {
        if self.is_off {
            return (Lease::ForEver, false);
        }
        let held = if room >= self.memory { 0 } else { self.held(now) };
        let lease = lease(room, held, self.memory);
        if lease != Lease::ForEver {
            return (lease, !self.is_lent.swap(true, Ordering::AcqRel));
        }
        let spare = (room - self.memory) / 2;
        let until = i64::try_from(spare.max(LOOK_MIN)).unwrap_or(i64::MAX);
        self.until_look.store(until, Ordering::Relaxed);
        // Leases stay limited until there is spare space, or each write would switch.
        if spare > self.memory / 8 {
            self.is_lent.store(false, Ordering::Release);
        }
        (lease, false)
    }

    /// Counts bytes that found room, and returns whether it is time to look how much is left.
    pub(super) fn used(&self, bytes: u64) -> bool {
        if self.is_off || self.is_lent() {
            return false;
        }
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        self.until_look.fetch_sub(bytes, Ordering::Relaxed) <= bytes
    }

    /// Something was freed, or may have been.
    pub(super) fn note_freed(&self) {
        self.freed.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn freed(&self) -> u64 {
        self.freed.load(Ordering::Acquire)
    }

    /// Enough is left.
    pub(super) fn note_plenty(&self) {
        let mut scarcity = self.scarcity.lock();
        if *scarcity == Scarcity::Collected {
            *scarcity = Scarcity::Plenty;
        }
    }

    /// Little is left: what the write that found that does about it.
    pub(super) fn note_scarce(&self) -> Turn<'_> {
        let mut scarcity = self.scarcity.lock();
        match *scarcity {
            Scarcity::Plenty => {
                *scarcity = Scarcity::Collecting;
                Turn::Collects(Collecting { room: self, is_done: false })
            }
            Scarcity::Collecting => Turn::Waits,
            Scarcity::Collected => Turn::GoesOn,
        }
    }

    /// Returns whether the dirty data of all files is being taken.
    pub(super) fn is_collecting(&self) -> bool {
        *self.scarcity.lock() == Scarcity::Collecting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    #[test]
    fn what_can_be_written_during_a_lease_has_room() {
        let memory = 16 * GIB;
        assert_eq!(lease(16 * GIB, GIB, memory), Lease::ForEver);
        assert_eq!(lease(100 * MIB, 100 * MIB, memory), Lease::Never { scarce: true });
        assert_eq!(lease(100 * MIB, 84 * MIB, memory), Lease::Never { scarce: true });
        assert_eq!(lease(100 * MIB, 83 * MIB, memory), Lease::Never { scarce: false });
        assert_eq!(lease(GIB, u64::MAX, memory), Lease::Never { scarce: true });
        for room in [150 * MIB, GIB, 8 * GIB] {
            let Lease::For(time) = lease(room, MIB, memory) else { panic!("{room}") };
            let written = u128::from(RATE) * time.as_nanos() / 1_000_000_000;
            assert!(time == LEASE_MIN || written <= u128::from(room) / 2, "{room}: {time:?}");
        }
    }

    #[test]
    fn attributes_that_are_for_ever_are_taken_back_once() {
        let room = Room { memory: GIB, ..Room::new(true) };
        let now = Duration::from_secs(1);
        assert!(room.used(1), "nobody has looked yet");
        assert_eq!(room.lease(4 * GIB, now), (Lease::ForEver, false));
        assert!(!room.used(GIB) && room.used(GIB));
        let (lent, is_news) = room.lease(GIB / 2, now);
        assert!(lent != Lease::ForEver && is_news && room.is_lent());
        assert!(!room.lease(GIB / 2, now).1 && !room.used(GIB));
        assert_eq!(room.lease(4 * GIB, now), (Lease::ForEver, false));
        assert!(!room.is_lent());
        let off = Room::new(false);
        assert_eq!(off.lease(0, now), (Lease::ForEver, false));
        assert!(!off.used(u64::MAX));
    }

    #[test]
    fn one_write_takes_what_all_files_have_and_the_others_wait_for_that() {
        let room = Room::new(true);
        let Turn::Collects(collecting) = room.note_scarce() else { panic!("nobody did") };
        assert!(matches!(room.note_scarce(), Turn::Waits));
        room.note_plenty();
        assert!(room.is_collecting(), "whoever collects says when it ends");
        // Too many threads wait: nothing was taken, and so it is not forgotten.
        drop(collecting);
        let Turn::Collects(collecting) = room.note_scarce() else { panic!("nobody did") };
        collecting.done();
        assert!(!room.is_collecting() && matches!(room.note_scarce(), Turn::GoesOn));
        room.note_plenty();
        assert!(matches!(room.note_scarce(), Turn::Collects(_)));
    }

    #[test]
    fn the_counters_of_this_system_can_be_read() {
        let (memory, held) = read_counters().unwrap();
        assert!(memory > 16 * MIB && held < memory, "{memory} {held}");
    }
}
