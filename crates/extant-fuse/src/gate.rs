//! Lets changes pass, or holds them back while the file system is frozen.
//!
//! A held-back request is kept as it came, here or by the one who received it, and takes no thread: the order
//! to go on must find one.
//! How many there are is bounded by the kernel: one for each thread of a program that waits, and the
//! writes that it sends in the background.
//!
//! # Invariants
//!
//! - G1. A thread that sees `frozen` does not change anything: it has said before looking that it is in,
//!   and takes that back. Whoever freezes looks in the opposite order.
//! - G2. `held` is empty unless it is frozen, or somebody is about to answer what is in it. What is put off is so
//!   while another thread waits, which says when it has done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::sabotage;
use extant_ring::Bell;
use extant_sync::{Clock, Mutex, Rank};

/// See the head of this module.
pub struct Gate {
    frozen: AtomicBool,
    has_released: AtomicBool,
    inside: Vec<Inside>,
    held: Mutex<Held>,
}

/// On a line of its own: each thread changes its own.
#[repr(align(128))]
#[derive(Default)]
struct Inside(AtomicBool);

#[derive(Default)]
struct Held {
    waiting: Vec<Vec<u8>>,
    /// Not for a freeze: until a thread is free to wait for what they need.
    put_off: Vec<Vec<u8>>,
    /// Of those who keep what they received.
    keepers: Vec<Arc<Bell>>,
    released: Vec<Vec<u8>>,
}

impl Gate {
    /// For that many threads; open.
    pub fn new(threads: usize) -> Gate {
        Gate {
            frozen: AtomicBool::new(false),
            has_released: AtomicBool::new(false),
            inside: (0..threads.max(1)).map(|_| Inside::default()).collect(),
            held: Mutex::new(Rank::Leaf, Held::default()),
        }
    }

    /// Thread `index` is about to do what `request` asks for; `false` when it must not, and the request
    /// is kept for later.
    pub(crate) fn enter(&self, index: usize, request: &[u8]) -> bool {
        self.enter_or(index, |held| held.waiting.push(request.to_vec()))
    }

    /// As [`Gate::enter`], for who keeps the request itself and tries again when `bell` is rung.
    pub(crate) fn enter_or_keep(&self, index: usize, bell: &Arc<Bell>) -> bool {
        self.enter_or(index, |held| held.keepers.push(Arc::clone(bell)))
    }

    fn enter_or(&self, index: usize, hold: impl FnOnce(&mut Held)) -> bool {
        let inside = &self.inside[index % self.inside.len()].0;
        loop {
            // SeqCst on both sides: of two stores and two loads, one side sees the other (G1).
            inside.store(true, Ordering::SeqCst);
            if !self.frozen.load(Ordering::SeqCst) {
                return true;
            }
            inside.store(false, Ordering::SeqCst);
            let mut held = self.held.lock();
            if self.frozen.load(Ordering::SeqCst) {
                hold(&mut held);
                return false;
            }
        }
    }

    /// Thread `index` is done.
    pub(crate) fn leave(&self, index: usize) {
        self.inside[index % self.inside.len()].0.store(false, Ordering::SeqCst);
    }

    /// Shuts the gate and waits for those inside; `false` when it is shut already. The caller is not
    /// inside.
    pub(crate) fn freeze(&self, clock: &dyn Clock) -> bool {
        {
            let _held = self.held.lock();
            if self.frozen.swap(true, Ordering::SeqCst) {
                return false;
            }
        }
        while !sabotage("fuse.gate.freeze-does-not-wait")
            && self.inside.iter().any(|inside| inside.0.load(Ordering::SeqCst))
        {
            clock.sleep(std::time::Duration::from_micros(200));
        }
        true
    }

    /// Opens the gate; what was held back is to be answered now. `false` when it is open already.
    pub(crate) fn thaw(&self) -> bool {
        let mut held = self.held.lock();
        if !self.frozen.swap(false, Ordering::SeqCst) {
            return false;
        }
        let waiting = std::mem::take(&mut held.waiting);
        held.released.extend(waiting);
        held.keepers.drain(..).for_each(|bell| bell.ring());
        if !sabotage("fuse.gate.last-comes-first") {
            held.released.reverse(); // Taken from the end: in the order in which they came.
        }
        self.has_released.store(!held.released.is_empty(), Ordering::Release);
        true
    }

    /// Keeps a request until [`try_again`](Gate::try_again).
    pub(crate) fn put_off(&self, request: &[u8]) {
        self.held.lock().put_off.push(request.to_vec());
    }

    /// What was put off is to be answered now.
    pub(crate) fn try_again(&self) {
        let mut held = self.held.lock();
        let put_off = std::mem::take(&mut held.put_off);
        held.released.extend(put_off);
        self.has_released.store(!held.released.is_empty(), Ordering::Release);
    }

    /// Whether changes are held back.
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen.load(Ordering::SeqCst)
    }

    /// A request that was held back and may be answered.
    pub(crate) fn take_released(&self) -> Option<Vec<u8>> {
        if !self.has_released.load(Ordering::Acquire) {
            return None;
        }
        let mut held = self.held.lock();
        let taken = held.released.pop();
        self.has_released.store(!held.released.is_empty(), Ordering::Release);
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_sync::FixedClock;

    #[test]
    fn what_comes_while_frozen_is_answered_after_the_thaw_in_order() {
        let gate = Gate::new(2);
        let clock = FixedClock::at(0, 0);
        assert!(gate.enter(0, b"a"));
        gate.leave(0);
        assert!(gate.freeze(&clock) && !gate.freeze(&clock));
        assert!(!gate.enter(0, b"b") && !gate.enter(1, b"c"));
        assert_eq!(gate.take_released(), None);
        assert!(gate.thaw() && !gate.thaw());
        assert_eq!(gate.take_released().as_deref(), Some(&b"b"[..]));
        assert_eq!(gate.take_released().as_deref(), Some(&b"c"[..]));
        assert_eq!(gate.take_released(), None);
        assert!(gate.enter(1, b"d"));
    }

    #[test]
    fn what_is_put_off_comes_back_when_somebody_says_so_frozen_or_not() {
        let gate = Gate::new(1);
        gate.put_off(b"a");
        assert_eq!(gate.take_released(), None);
        assert!(gate.freeze(&FixedClock::at(0, 0)));
        gate.try_again();
        assert_eq!(gate.take_released().as_deref(), Some(&b"a"[..]));
        gate.put_off(b"b");
        assert!(gate.thaw());
        assert_eq!(gate.take_released(), None, "whoever waits has not done");
        gate.try_again();
        assert_eq!(gate.take_released().as_deref(), Some(&b"b"[..]));
        assert_eq!(gate.take_released(), None);
    }

    #[test]
    fn a_freeze_waits_for_who_is_inside() {
        use std::sync::atomic::AtomicU32;
        let gate = Gate::new(2);
        let state = AtomicU32::new(0);
        assert!(gate.enter(0, b"a"));
        extant_sync::threads::scope(|s| {
            let frozen = s.spawn("freeze", || {
                gate.freeze(&extant_sync::SystemClock);
                state.load(Ordering::SeqCst)
            });
            while !gate.is_frozen() {
                std::hint::spin_loop();
            }
            state.store(7, Ordering::SeqCst);
            gate.leave(0);
            assert_eq!(frozen.unwrap().join().unwrap(), 7);
        })
        .unwrap();
    }
}
