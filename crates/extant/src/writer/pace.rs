//! Pacing of writers while the device cannot keep up.
//!
//! # Rules
//!
//! - C1. Until more is dirty than half way between the background threshold and the limit, no
//!   writer is held up and nothing is counted. From then on writers are counted for [`CONTENDED`],
//!   and held up while so much is dirty that the background writer has work: a writer that got
//!   ahead when there was room waits later.
//! - C2. A writer whose file is more than a quantum ahead of the slowest active file waits for it.
//! - C3. Every pause ends: when the others have caught up or stopped writing, when less is dirty,
//!   and after [`PAUSES_MAX`] at the latest. During a pause there is much to write, so pauses never
//!   leave the device idle.
//! - C4. A writer that may not wait is refused where another would pause.
//! - C5. Over the limit, a writer writes back first, at once no more than the device was measured
//!   to write in [`DUTY`], so that the dirty data of others does not delay it for long.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_base::{Ino, sabotage};
use extant_iomap::CacheOptions;
use extant_sync::{Clock, Condvar, Mutex, MutexGuard, Rank};
use rustc_hash::FxHashMap;

/// Time for which writers are counted after the device could not keep up.
const CONTENDED: Duration = Duration::from_secs(1);
/// Time after its last write for which a writer counts as active.
const ACTIVE: Duration = Duration::from_millis(50);
/// Longest sleep before a paused writer checks again.
const PAUSE: Duration = Duration::from_millis(2);
/// Limit of the pauses of one write.
const PAUSES_MAX: u32 = 100;
/// Approximate time for which a writer over the limit writes back at once.
const DUTY: Duration = Duration::from_millis(100);
/// Limit of the files counted at once; beyond it, counting starts anew.
const FILES_MAX: usize = 1024;
/// Smallest writeback, in bytes, that is used to measure the device's rate.
const SAMPLE_MIN: u64 = 256 << 10;
const MIB: u64 = 1 << 20;

/// The bytes written to one file since counting started.
struct Flow {
    done: u64,
    last: Duration,
    /// Number of writers inside a write to the file: pausing, writing back first, waiting for
    /// memory, or copying.
    inside: u32,
}

#[derive(Default)]
struct State {
    files: FxHashMap<Ino, Flow>,
    /// The files by bytes written, slowest first.
    order: BTreeSet<(u64, Ino)>,
    pausing: u32,
}

/// Pacing of the writers of one mount.
pub(crate) struct Pace {
    state: Mutex<State>,
    /// Signalled when a writer has moved on.
    moved: Condvar,
    /// Time until which writers are counted (C1), in nanoseconds of the monotonic clock; 0 when
    /// they are not.
    contended: AtomicU64,
    /// Measured rate of writeback in bytes per millisecond; 0 before the first measurement.
    rate: AtomicU64,
}

impl Default for Pace {
    fn default() -> Pace {
        let state = Mutex::new(Rank::Leaf, State::default());
        Pace { state, moved: Condvar::new(), contended: AtomicU64::new(0), rate: AtomicU64::new(0) }
    }
}

/// How much is dirty, as writers need to know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Load {
    /// Writers need not be counted.
    Light,
    /// Writers are counted, and none pauses.
    Counted,
    /// Writers that are ahead of others pause.
    Paced,
}

/// Returns the bytes by which a file may be ahead of another.
fn quantum(options: &CacheOptions) -> u64 {
    (options.dirty_max / 64).max(64 << 10)
}

impl Pace {
    /// Returns the load of `dirty` bytes (C1).
    pub(crate) fn load(&self, dirty: u64, options: &CacheOptions, clock: &dyn Clock) -> Load {
        let until = self.contended.load(Ordering::Relaxed);
        let is_much = dirty > options.dirty_background.midpoint(options.dirty_max);
        if until == 0 && !is_much {
            return Load::Light;
        }
        let now = clock.monotonic();
        if is_much {
            let until = now.saturating_add(CONTENDED).as_nanos();
            self.contended.store(u64::try_from(until).unwrap_or(u64::MAX), Ordering::Relaxed);
        } else if now >= Duration::from_nanos(until) {
            self.contended.store(0, Ordering::Relaxed);
            return Load::Light;
        }
        // Writers are paced while the background writer has work.
        if dirty > options.dirty_background / 2 { Load::Paced } else { Load::Counted }
    }

    /// Returns whether writers are counted.
    pub(crate) fn is_contended(&self) -> bool {
        self.contended.load(Ordering::Relaxed) != 0
    }

    /// Pauses a writer whose file is ahead of others, and counts the bytes it is about to write.
    /// `is_much` returns whether much is still dirty. The caller holds no lock.
    pub(crate) fn pause(
        &self,
        ino: Ino,
        bytes: u64,
        (options, clock): (&CacheOptions, &dyn Clock),
        is_much: impl Fn() -> bool,
    ) {
        let most = quantum(options);
        let (mut pauses, mut goes_on) = (0, false);
        loop {
            // The clock is read before the lock is taken, because it may have a lock of its own.
            let now = clock.monotonic();
            let mut state = self.state.lock();
            if state.lead(ino, now) <= most || goes_on {
                return self.go(state, ino, bytes, now);
            }
            drop(state);
            goes_on = pauses >= PAUSES_MAX || !is_much();
            if !goes_on {
                let mut state = self.state.lock();
                state.pausing += 1;
                // A wakeup missed in between costs one [`PAUSE`] at most.
                pauses += u32::from(self.moved.wait_for(&mut state, PAUSE));
                state.pausing -= 1;
            }
        }
    }

    /// Counts a write and wakes the writers that wait for it.
    fn go(&self, mut state: MutexGuard<'_, State>, ino: Ino, bytes: u64, now: Duration) {
        state.advance(ino, bytes, now);
        let others = state.pausing > 0;
        drop(state);
        if others {
            self.moved.notify_all();
        }
    }

    /// Returns whether a writer of this file would pause (C4).
    pub(crate) fn is_ahead(&self, ino: Ino, options: &CacheOptions, now: Duration) -> bool {
        self.state.lock().lead(ino, now) > quantum(options)
    }

    /// Counts the bytes of a writer that may not wait.
    pub(crate) fn count(&self, ino: Ino, bytes: u64, now: Duration) {
        let mut state = self.state.lock();
        state.lead(ino, now);
        self.go(state, ino, bytes, now);
    }

    /// Marks a writer of this file as active until the returned value is dropped; others wait for
    /// it (C2).
    pub(crate) fn begin(&self, ino: Ino, now: Duration) -> Turn<'_> {
        let mut state = self.state.lock();
        state.lead(ino, now);
        if let Some(flow) = state.files.get_mut(&ino) {
            flow.inside += 1;
        }
        Turn { pace: self, ino }
    }

    /// Records the duration of a writeback of `bytes`.
    pub(crate) fn measure(&self, bytes: u64, time: Duration) {
        let Some(sample) = u128::from(bytes * 1000).checked_div(time.as_micros()) else { return };
        if bytes < SAMPLE_MIN {
            return;
        }
        let sample = u64::try_from(sample).unwrap_or(u64::MAX);
        let rate = match self.rate.load(Ordering::Relaxed) {
            0 => sample,
            before => before - before / 4 + sample / 4,
        };
        self.rate.store(rate.max(1), Ordering::Relaxed);
    }

    /// Returns the bytes that a writer writes back at once, at most `most` (C5).
    pub(crate) fn duty(&self, most: u64) -> u64 {
        match self.rate.load(Ordering::Relaxed) {
            0 => most,
            rate => rate.saturating_mul(DUTY.as_millis() as u64).clamp(MIB.min(most), most),
        }
    }
}

/// An active writer of a file, until it is dropped.
#[must_use]
pub(crate) struct Turn<'p> {
    pace: &'p Pace,
    ino: Ino,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if let Some(flow) = self.pace.state.lock().files.get_mut(&self.ino) {
            flow.inside = flow.inside.saturating_sub(1);
        }
    }
}

impl State {
    /// Returns by how many bytes a file is ahead of the slowest active one.
    fn lead(&mut self, ino: Ino, now: Duration) -> u64 {
        while let Some((_, first)) = self.order.first().copied() {
            let is_active = first == ino
                || self
                    .files
                    .get(&first)
                    .is_some_and(|flow| flow.inside > 0 || now.saturating_sub(flow.last) <= ACTIVE);
            if is_active {
                break;
            }
            self.order.pop_first();
            self.files.remove(&first);
        }
        if self.files.len() > FILES_MAX {
            self.files.clear();
            self.order.clear();
        }
        let least = self.order.first().map_or(0, |(done, _)| *done);
        match self.files.get(&ino) {
            Some(flow) if !sabotage("extant.pace.nobody-waits") => flow.done - least,
            Some(_) => 0,
            None => {
                self.files.insert(ino, Flow { done: least, last: now, inside: 0 });
                self.order.insert((least, ino));
                0
            }
        }
    }

    fn advance(&mut self, ino: Ino, bytes: u64, now: Duration) {
        if let Some(flow) = self.files.get_mut(&ino) {
            self.order.remove(&(flow.done, ino));
            flow.done = flow.done.saturating_add(bytes);
            flow.last = now;
            self.order.insert((flow.done, ino));
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_sync::FixedClock;

    use super::*;

    fn options() -> CacheOptions {
        CacheOptions {
            dirty_max: 64 * MIB,
            dirty_background: 32 * MIB,
            ..CacheOptions::new(80 * MIB, 12)
        }
    }

    #[test]
    fn a_file_is_ahead_only_of_those_that_are_written_to() {
        let (pace, options) = (Pace::default(), options());
        let at = Duration::from_millis;
        let (slow, fast) = (Ino(12), Ino(13));
        assert!(!pace.is_ahead(fast, &options, at(0)), "alone");
        pace.count(slow, 1000, at(0));
        pace.count(fast, MIB + 1000, at(1));
        assert!(!pace.is_ahead(fast, &options, at(2)), "a quantum");
        pace.count(fast, 1, at(2));
        assert!(pace.is_ahead(fast, &options, at(3)) && !pace.is_ahead(slow, &options, at(3)));
        // One that comes is no reason to wait longer than for the slowest, and has nothing to catch up.
        assert!(!pace.is_ahead(Ino(14), &options, at(3)));
        pace.count(slow, 2, at(4));
        pace.count(Ino(14), 10, at(4));
        assert!(!pace.is_ahead(fast, &options, at(5)));
        pace.count(fast, MIB, at(5));
        assert!(pace.is_ahead(fast, &options, at(54)));
        // Those have stopped; but one that writes back has not.
        let turn = pace.begin(slow, at(54));
        assert!(pace.is_ahead(fast, &options, at(500)));
        drop(turn);
        assert!(!pace.is_ahead(fast, &options, at(501)));
        for ino in 0..5000 {
            pace.count(Ino(ino), 1, at(502));
        }
        assert!(pace.state.lock().files.len() <= FILES_MAX + 1);
    }

    #[test]
    fn a_pause_ends_when_less_is_dirty_and_after_some_time() {
        let (pace, options, clock) = (Pace::default(), options(), FixedClock::at(0, 0));
        pace.count(Ino(12), 1, Duration::ZERO);
        pace.pause(Ino(13), 8 * MIB, (&options, &clock), || true);
        // Its clock stands still, so the other counts as writing for ever.
        let looks = std::cell::Cell::new(0);
        let is_much = || looks.replace(looks.get() + 1) < 3;
        pace.pause(Ino(13), 1, (&options, &clock), is_much);
        assert_eq!(looks.get(), 4);
        looks.set(0);
        pace.pause(Ino(13), 1, (&options, &clock), || looks.replace(looks.get() + 1) < 1_000_000);
        assert_eq!(looks.get(), PAUSES_MAX);
    }

    /// A device of a given bandwidth and writers that want different amounts, in steps of a
    /// millisecond of a clock that stands still in between.
    struct Simulation {
        pace: Pace,
        clock: FixedClock,
        dirty: u64,
        /// What each file wants to write in a step, and what it has got.
        files: Vec<(u64, u64)>,
        /// Whether a request of the file is with a worker that waits.
        parked: Vec<bool>,
    }

    impl Simulation {
        fn new(wants: &[u64]) -> Simulation {
            let files = wants.iter().map(|want| (*want, 0)).collect();
            let (pace, parked) = (Pace::default(), vec![false; wants.len()]);
            Simulation { pace, clock: FixedClock::at(0, 0), dirty: 0, files, parked }
        }

        /// A request is parked with a worker, or goes on.
        fn park(&mut self, at: usize, parks: bool) {
            if std::mem::replace(&mut self.parked[at], parks) == parks {
                return;
            }
            let turn = self.pace.begin(Ino(12 + at as u32), self.clock.monotonic());
            match parks {
                true => std::mem::forget(turn),
                false => {
                    drop(turn);
                    drop(Turn { pace: &self.pace, ino: Ino(12 + at as u32) });
                }
            }
        }

        /// Runs for so many steps in which the device writes `drains` bytes each; `first` has the
        /// processor first, as who runs on one of its own.
        /// What a file could not write in a step waits, as a request with a worker.
        fn run(&mut self, steps: u64, drains: u64, first: usize) {
            let options = options();
            for _ in 0..steps {
                self.clock.advance(Duration::from_millis(1));
                let now = self.clock.monotonic();
                self.dirty = self.dirty.saturating_sub(drains);
                for turn in 0..self.files.len() {
                    let at = (turn + first) % self.files.len();
                    let (want, got) = &mut self.files[at];
                    let ino = Ino(12 + at as u32);
                    let mut left = *want;
                    // Pieces of 64 KiB, each of which asks as a writer that may not wait.
                    while left > 0 && self.dirty < options.dirty_max {
                        let load = self.pace.load(self.dirty, &options, &self.clock);
                        if load == Load::Paced && self.pace.is_ahead(ino, &options, now) {
                            break;
                        }
                        let piece = left.min(64 << 10);
                        (left, self.dirty) = (left - piece, self.dirty + piece);
                        *got += piece;
                        if load != Load::Light {
                            self.pace.count(ino, piece, now);
                        }
                    }
                    let waits = left > 0;
                    self.park(at, waits);
                    assert!(self.dirty < options.dirty_max + (64 << 10), "the limit holds");
                }
            }
        }
    }

    #[test]
    fn files_that_want_all_of_a_device_get_as_much_each_and_who_wants_less_gets_that() {
        // 100 MiB/s; whoever comes first could take everything.
        let drains = 100 * MIB / 1000;
        let most = 4 * MIB;
        let mut all = Simulation::new(&[most, most, most, most, 64 << 10, most, most, most]);
        all.run(1000, drains, 0);
        let before: Vec<u64> = all.files.iter().map(|(_, got)| *got).collect();
        all.run(20_000, drains, 3);
        let got: Vec<u64> = all.files.iter().zip(before).map(|(file, was)| file.1 - was).collect();
        let mean = got.iter().sum::<u64>() / got.len() as u64;
        assert!(got.iter().all(|got| *got >= mean / 2 && *got <= mean * 2), "{got:?}");
        // The device was never idle.
        assert!(got.iter().sum::<u64>() >= 20_000 * drains / 100 * 97, "{got:?}");
        // Two that want little get all of it beside those that want everything.
        let little = drains / 100;
        let mut some = Simulation::new(&[most, little, most, little]);
        some.run(1000, drains, 0);
        let before = [some.files[1].1, some.files[3].1];
        some.run(10_000, drains, 2);
        for (at, before) in [1, 3].into_iter().zip(before) {
            let got = some.files[at].1 - before;
            assert!(got >= 10_000 * little / 10 * 9, "{got} of {}", 10_000 * little);
        }
    }

    #[test]
    fn a_device_that_stalls_stops_writers_at_the_limit_and_they_go_on_with_it() {
        let drains = 100 * MIB / 1000;
        let mut all = Simulation::new(&[4 * MIB, 4 * MIB, 4 * MIB]);
        all.run(2000, drains, 1);
        // 500 ms.
        let before: u64 = all.files.iter().map(|(_, got)| got).sum();
        all.run(500, 0, 1);
        let during: u64 = all.files.iter().map(|(_, got)| got).sum::<u64>() - before;
        assert!(during <= options().dirty_max, "{during}");
        all.run(2000, drains, 1);
        let after: u64 = all.files.iter().map(|(_, got)| got).sum::<u64>() - before;
        assert!(after >= 2000 * drains / 100 * 95, "{after}");
    }

    #[test]
    fn who_writes_back_for_others_does_so_for_about_a_tenth_of_a_second() {
        let pace = Pace::default();
        assert_eq!(pace.duty(16 * MIB), 16 * MIB, "nothing is known");
        pace.measure(1000, Duration::from_secs(1));
        assert_eq!(pace.duty(16 * MIB), 16 * MIB, "too little to know");
        pace.measure(10 * MIB, Duration::from_millis(200));
        assert_eq!(pace.duty(16 * MIB), 5_242_800);
        for _ in 0..64 {
            pace.measure(MIB, Duration::from_secs(1));
        }
        assert_eq!(pace.duty(16 * MIB), MIB, "never less");
        for _ in 0..64 {
            pace.measure(100 * MIB, Duration::from_millis(10));
        }
        assert_eq!(pace.duty(16 * MIB), 16 * MIB);
        pace.measure(100 * MIB, Duration::ZERO);
    }
}
