//! Lets changes pass, or holds them back while the file system is frozen.
//!
//! A request that is held back is kept as received, here or by its receiver, and occupies no
//! thread: the order to thaw must find one. Their number is bounded by the kernel: one for each
//! waiting thread of a program, and the writes that it sends in the background.
//!
//! # Invariants
//!
//! - G1. A freeze waits for threads inside (`extant_sync::Gate`).
//! - G2. `held` is empty unless the file system is frozen, or a thread is about to answer its
//!   contents. A request is put off only while another thread waits, which reports when it has
//!   done.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::sabotage;
use extant_fuse_ring::Bell;
use extant_sync::{Lane, Mutex, Rank};

/// See the head of this module.
pub struct Gate {
    gate: extant_sync::Gate,
    has_released: AtomicBool,
    held: Mutex<Held>,
    /// A value dropped before any change passes again.
    kept: Mutex<Option<Box<dyn Send>>>,
}

impl Default for Gate {
    fn default() -> Gate {
        Gate {
            gate: extant_sync::Gate::default(),
            has_released: AtomicBool::new(false),
            held: Mutex::new(Rank::Leaf, Held::default()),
            kept: Mutex::new(Rank::Leaf, None),
        }
    }
}

#[derive(Default)]
struct Held {
    waiting: Vec<Vec<u8>>,
    /// Requests that wait, not for a thaw, but until a thread is free to wait for what they need.
    put_off: Vec<Vec<u8>>,
    /// Bells of the threads that keep requests.
    keepers: Vec<Arc<Bell>>,
    released: Vec<Vec<u8>>,
}

impl Gate {
    /// Enters to do what `request` asks for; `None` when that must not be done now, and the request
    /// is kept for later. Each entry ends with [`leave`](Self::leave).
    pub(crate) fn enter(&self, request: &[u8]) -> Option<Lane> {
        self.enter_or(|held| held.waiting.push(request.to_vec()))
    }

    /// Enters like [`Gate::enter`], for a thread that keeps the request itself and tries again when
    /// `bell` rings.
    pub(crate) fn enter_or_keep(&self, bell: &Arc<Bell>) -> Option<Lane> {
        self.enter_or(|held| held.keepers.push(Arc::clone(bell)))
    }

    fn enter_or(&self, hold: impl FnOnce(&mut Held)) -> Option<Lane> {
        loop {
            if let Some(lane) = self.gate.try_enter() {
                return Some(lane);
            }
            let mut held = self.held.lock();
            // Whoever opens it looks at what is held afterwards.
            if self.gate.is_shut() {
                hold(&mut held);
                return None;
            }
        }
    }

    /// Leaves the gate by this lane.
    pub(crate) fn leave(&self, lane: Lane) {
        self.gate.leave(lane);
    }

    /// Shuts the gate and waits for those inside; `false` when it is shut already. The caller is not
    /// inside.
    pub(crate) fn freeze(&self) -> bool {
        self.gate.try_close()
    }

    /// Keeps something for as long as the gate is shut.
    pub(crate) fn keep(&self, kept: Box<dyn Send>) {
        *self.kept.lock() = Some(kept);
    }

    /// Opens the gate; what was held back is to be answered now. `false` when it is open already.
    pub(crate) fn thaw(&self) -> bool {
        let kept = self.kept.lock().take();
        drop(kept);
        if !self.gate.open() {
            return false;
        }
        let mut held = self.held.lock();
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

    /// Releases the requests that were put off.
    pub(crate) fn try_again(&self) {
        let mut held = self.held.lock();
        let put_off = std::mem::take(&mut held.put_off);
        held.released.extend(put_off);
        self.has_released.store(!held.released.is_empty(), Ordering::Release);
    }

    /// Returns whether changes are held back.
    pub(crate) fn is_frozen(&self) -> bool {
        self.gate.is_shut()
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

    #[test]
    fn what_comes_while_frozen_is_answered_after_the_thaw_in_order() {
        let gate = Gate::default();
        gate.leave(gate.enter(b"a").unwrap());
        assert!(gate.freeze() && !gate.freeze());
        assert!(gate.enter(b"b").is_none() && gate.enter(b"c").is_none());
        assert_eq!(gate.take_released(), None);
        assert!(gate.thaw() && !gate.thaw());
        assert_eq!(gate.take_released().as_deref(), Some(&b"b"[..]));
        assert_eq!(gate.take_released().as_deref(), Some(&b"c"[..]));
        assert_eq!(gate.take_released(), None);
        assert!(gate.enter(b"d").is_some());
    }

    #[test]
    fn what_is_put_off_comes_back_when_somebody_says_so_frozen_or_not() {
        let gate = Gate::default();
        gate.put_off(b"a");
        assert_eq!(gate.take_released(), None);
        assert!(gate.freeze());
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
    fn a_freeze_waits_for_who_is_inside_and_a_thaw_lets_go_first() {
        use std::sync::atomic::AtomicU32;

        struct Kept(Arc<Gate>, Arc<AtomicU32>);

        impl Drop for Kept {
            fn drop(&mut self) {
                let is_shut = self.0.is_frozen();
                self.1.store(if is_shut { 8 } else { 9 }, Ordering::SeqCst);
            }
        }

        let (gate, state) = (Arc::new(Gate::default()), Arc::new(AtomicU32::new(0)));
        let lane = gate.enter(b"a").unwrap();
        extant_sync::threads::scope(|s| {
            let frozen = s.spawn("freeze", || {
                gate.freeze();
                state.load(Ordering::SeqCst)
            });
            while !gate.is_frozen() {
                std::hint::spin_loop();
            }
            state.store(7, Ordering::SeqCst);
            gate.leave(lane);
            assert_eq!(frozen.unwrap().join().unwrap(), 7);
        })
        .unwrap();
        gate.keep(Box::new(Kept(Arc::clone(&gate), Arc::clone(&state))));
        assert!(gate.thaw());
        assert_eq!(state.load(Ordering::SeqCst), 8);
    }
}
