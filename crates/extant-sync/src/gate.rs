//! A gate that many operations pass at once without contention, and that can be shut.
//!
//! # Invariants
//!
//! - G1. While the gate is shut and drained, no thread is inside: an entrant counts itself, then
//!   reads `shut`; the closer sets `shut`, then reads the counters. In one total order of these
//!   four (all are `SeqCst`) at least one of the two sees the other.
//! - G2. No wakeup is lost: both conditions are checked under `sleep`, and a thread that makes one
//!   true takes `sleep` before it notifies.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::{Condvar, Mutex, Rank, threads};

/// Number of lanes of a gate, a power of two. With more threads, some share a lane.
const LANES: usize = 16;

/// Number of bits of a lane that count threads inside; the bits above count all entries.
const INSIDE_BITS: u32 = 24;
const ENTERED: u64 = 1 << INSIDE_BITS;
const INSIDE: u64 = ENTERED - 1;

/// A lane, on cache lines of its own (two: processors fetch pairs).
#[repr(align(128))]
#[derive(Default)]
struct Slot<L> {
    count: AtomicU64,
    with: L,
}

/// The lane of a [`Gate`] by which a thread entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lane(usize);

/// A gate: any number of threads [enter](Self::try_enter) and [leave](Self::leave) at the cost of
/// one atomic operation each on a cache line that few share; a thread that [shuts](Self::shut) it
/// waits until all have left, and keeps others out. `L` is further data of each lane.
///
/// ```
/// use extant_sync::Gate;
/// let gate = Gate::<()>::default();
/// let lane = gate.try_enter().expect("it is open");
/// gate.leave(lane);
/// let shut = gate.shut();
/// assert!(gate.try_enter().is_none());
/// drop(shut);
/// assert_eq!((gate.try_enter().is_some(), gate.entered()), (true, 2));
/// ```
#[derive(Default)]
pub struct Gate<L = ()> {
    lanes: [Slot<L>; LANES],
    shut: AtomicBool,
    sleep: Sleep,
}

struct Sleep {
    lock: Mutex<()>,
    opened: Condvar,
    drained: Condvar,
}

impl Default for Sleep {
    fn default() -> Sleep {
        let lock = Mutex::new(Rank::Leaf, ());
        Sleep { lock, opened: Condvar::new(), drained: Condvar::new() }
    }
}

/// Returns the lane of this thread.
fn lane_of_thread() -> Lane {
    Lane(threads::number() & LANES.saturating_sub(1))
}

impl<L> Gate<L> {
    fn slot(&self, lane: Lane) -> &Slot<L> {
        // The mask keeps the index inside; `first` is never used.
        let [first, ..] = &self.lanes;
        self.lanes.get(lane.0).unwrap_or(first)
    }

    /// Returns the data of a lane; for threads inside by it, or while the gate is shut.
    pub fn of(&self, lane: Lane) -> &L {
        &self.slot(lane).with
    }

    /// Returns the data of all lanes.
    pub fn all(&self) -> impl Iterator<Item = &L> {
        self.lanes.iter().map(|slot| &slot.with)
    }

    /// Enters the gate; `None` while it is shut. The lane is for [`leave`](Self::leave), on any
    /// thread.
    pub fn try_enter(&self) -> Option<Lane> {
        let lane = lane_of_thread();
        self.slot(lane).count.fetch_add(ENTERED | 1, Ordering::SeqCst);
        if !self.shut.load(Ordering::SeqCst) {
            return Some(lane);
        }
        self.slot(lane).count.fetch_sub(ENTERED, Ordering::SeqCst);
        self.leave(lane);
        None
    }

    /// Leaves the gate; to be called once for each entry.
    pub fn leave(&self, lane: Lane) {
        self.slot(lane).count.fetch_sub(1, Ordering::SeqCst);
        if self.shut.load(Ordering::SeqCst) {
            drop(self.sleep.lock.lock());
            self.sleep.drained.notify_all();
        }
    }

    /// Waits until the gate is open. It may be shut again by then.
    pub fn wait_open(&self) {
        let mut guard = self.sleep.lock.lock();
        while self.shut.load(Ordering::SeqCst) {
            self.sleep.opened.wait(&mut guard);
        }
    }

    /// Returns whether the gate is shut, or a thread is about to shut it.
    pub fn is_shut(&self) -> bool {
        self.shut.load(Ordering::SeqCst)
    }

    /// Shuts the gate and waits until no thread is inside. One thread at a time may do this;
    /// threads with rivals use [`try_close`](Self::try_close).
    pub fn shut(&self) -> Shut<'_, L> {
        self.shut.store(true, Ordering::SeqCst);
        let shut = Shut { gate: self };
        self.drain();
        shut
    }

    /// Shuts the gate for longer than a guard lives, until [`open`](Self::open), and waits until no
    /// thread is inside. Returns false, without waiting, when it is shut already. The caller is not
    /// inside.
    pub fn try_close(&self) -> bool {
        if self.shut.swap(true, Ordering::SeqCst) {
            return false;
        }
        self.drain();
        true
    }

    /// Opens a gate that was [closed](Self::try_close). Returns false when it was open.
    pub fn open(&self) -> bool {
        let was_shut = self.shut.swap(false, Ordering::SeqCst);
        drop(self.sleep.lock.lock());
        self.sleep.opened.notify_all();
        was_shut
    }

    fn drain(&self) {
        let mut guard = self.sleep.lock.lock();
        for slot in &self.lanes {
            // Each lane needs to be seen empty only once: no entries succeed any more.
            while slot.count.load(Ordering::SeqCst) & INSIDE != 0 {
                self.sleep.drained.wait(&mut guard);
            }
        }
    }

    /// Returns the number of entries ever made.
    pub fn entered(&self) -> u64 {
        let count = |slot: &Slot<L>| slot.count.load(Ordering::Relaxed) >> INSIDE_BITS;
        self.lanes.iter().map(count).fold(0, u64::saturating_add)
    }
}

/// A gate that is shut, with no thread inside; it opens when this is dropped.
#[must_use]
pub struct Shut<'a, L = ()> {
    gate: &'a Gate<L>,
}

impl<L> Drop for Shut<'_, L> {
    fn drop(&mut self) {
        self.gate.open();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;
    use crate::{Clock, SystemClock};

    #[test]
    fn who_closes_waits_for_who_is_inside_and_keeps_others_out() {
        let gate = Gate::<()>::default();
        let state = AtomicU32::new(0);
        let lane = gate.try_enter().unwrap();
        threads::scope(|s| {
            let closed = s.spawn("close", || {
                assert!(gate.try_close());
                state.load(Ordering::SeqCst)
            });
            while !gate.is_shut() {
                std::hint::spin_loop();
            }
            assert!(gate.try_enter().is_none() && !gate.try_close());
            state.store(7, Ordering::SeqCst);
            gate.leave(lane);
            assert_eq!(closed.unwrap().join().unwrap(), 7);
            let waits = s.spawn("wait", || gate.wait_open());
            assert!(gate.open() && !gate.open());
            waits.unwrap().join().unwrap();
        })
        .unwrap();
        assert!(gate.try_enter().is_some());
        assert_eq!(gate.entered(), 2, "who was refused never entered");
    }

    /// Or a thread that has looked, and is about to wait, would not be told (G2).
    #[test]
    fn who_makes_a_condition_true_tells_it_under_the_lock() {
        let gate = Gate::<()>::default();
        let lane = gate.try_enter().unwrap();
        gate.shut.store(true, Ordering::SeqCst);
        let change: [&(dyn Fn() + Sync); 2] = [&|| gate.leave(lane), &|| assert!(gate.open())];
        for change in change {
            let done = AtomicBool::new(false);
            let looking = gate.sleep.lock.lock();
            threads::scope(|s| {
                let changes = s.spawn("change", || {
                    change();
                    done.store(true, Ordering::SeqCst);
                });
                SystemClock.sleep(Duration::from_millis(50));
                assert!(!done.load(Ordering::SeqCst), "nobody hears of it");
                drop(looking);
                changes.unwrap().join().unwrap();
            })
            .unwrap();
        }
    }

    /// Who is refused has been counted for a moment, and whoever shuts the gate may have begun to wait for that. Each
    /// turn waits for all the others: one who sleeps on after a gate was opened ends the test by its time.
    #[test]
    fn nobody_waits_for_who_is_gone_and_nobody_is_inside_while_it_is_shut() {
        const TURNS: u32 = 1500;
        let (gate, inside, turns) = (Gate::<()>::default(), AtomicU32::new(0), AtomicU32::new(0));
        let entered = [(); 3].map(|()| AtomicU32::new(0));
        let seen = || entered.each_ref().map(|count| count.load(Ordering::SeqCst));
        threads::workers("gate", 4, |number| {
            let Some(mine) = number.checked_sub(1).map(|number| &entered[number]) else {
                while turns.load(Ordering::SeqCst) < TURNS {
                    let shut = gate.shut();
                    assert_eq!(inside.load(Ordering::SeqCst), 0, "shut, and somebody is inside");
                    let before = seen();
                    drop(shut);
                    while seen().iter().zip(before).any(|(now, before)| *now == before) {
                        std::thread::yield_now();
                    }
                    turns.fetch_add(1, Ordering::SeqCst);
                }
                return;
            };
            while turns.load(Ordering::SeqCst) < TURNS {
                let Some(lane) = gate.try_enter() else {
                    gate.wait_open();
                    continue;
                };
                inside.fetch_add(1, Ordering::SeqCst);
                mine.fetch_add(1, Ordering::SeqCst);
                std::thread::yield_now();
                inside.fetch_sub(1, Ordering::SeqCst);
                gate.leave(lane);
            }
        })
        .unwrap();
        assert_eq!(gate.entered(), seen().into_iter().map(u64::from).sum::<u64>());
    }
}
