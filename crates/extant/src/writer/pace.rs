//! Pacing of writers while the device cannot keep up.
//!
//! # Rules
//!
//! - C1. Until more is dirty than half way between the background threshold and the limit, no
//!   writer is held up and nothing is counted. From then on writers are counted for [`CONTENDED`],
//!   and held up while so much is dirty that the background writer has work: a writer that got
//!   ahead when there was room waits later.
//! - C2. A writer whose file is more than a quantum ahead of the slowest file that the device holds
//!   up waits for it. A file is held up while a writer of it pauses or writes back first, and for
//!   [`ACTIVE`] after that or a refusal. A file whose writer wants less than its share is never held
//!   up: it keeps nobody waiting, and saves nothing up but a quantum.
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
/// Time for which a file counts as held up after a writer of it was.
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
    /// Time at which a writer was held up last; `None` if that is long ago, or never was.
    held_up: Option<Duration>,
    /// Number of writers that write back first, or have and are not done.
    inside: u32,
}

#[derive(Default)]
struct State {
    files: FxHashMap<Ino, Flow>,
    /// The files that are held up, by bytes written, slowest first.
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
            let lead = state.lead(ino, now, most);
            if lead <= most || goes_on {
                return self.go(state, ino, bytes);
            }
            state.hold_up(ino, now);
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
    fn go(&self, mut state: MutexGuard<'_, State>, ino: Ino, bytes: u64) {
        state.advance(ino, bytes);
        let others = state.pausing > 0;
        drop(state);
        if others {
            self.moved.notify_all();
        }
    }

    /// Returns whether a writer of this file would pause (C4), which holds it up.
    pub(crate) fn is_ahead(&self, ino: Ino, options: &CacheOptions, now: Duration) -> bool {
        let most = quantum(options);
        let mut state = self.state.lock();
        let is_ahead = state.lead(ino, now, most) > most;
        if is_ahead {
            state.hold_up(ino, now);
        }
        is_ahead
    }

    /// Counts the bytes of a writer that may not wait.
    pub(crate) fn count(&self, ino: Ino, bytes: u64, options: &CacheOptions, now: Duration) {
        let mut state = self.state.lock();
        state.lead(ino, now, quantum(options));
        if sabotage("extant.pace.who-wants-little-is-waited-for") {
            state.hold_up(ino, now);
        }
        self.go(state, ino, bytes);
    }

    /// Marks a file as held up until the returned value is dropped, and for [`ACTIVE`] from then on;
    /// others wait for it (C2).
    pub(crate) fn begin<'p>(
        &'p self,
        ino: Ino,
        options: &CacheOptions,
        clock: &'p dyn Clock,
    ) -> Turn<'p> {
        let now = clock.monotonic();
        let mut state = self.state.lock();
        state.lead(ino, now, quantum(options));
        state.hold_up(ino, now);
        if let Some(flow) = state.files.get_mut(&ino) {
            flow.inside += 1;
        }
        Turn { pace: self, ino, clock }
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

/// A writer that is held up, until this is dropped.
#[must_use]
pub(crate) struct Turn<'p> {
    pace: &'p Pace,
    ino: Ino,
    clock: &'p dyn Clock,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let now = self.clock.monotonic();
        let mut state = self.pace.state.lock();
        if let Some(flow) = state.files.get_mut(&self.ino) {
            flow.inside = flow.inside.saturating_sub(1);
        }
        state.hold_up(self.ino, now);
    }
}

impl Flow {
    fn is_held_up(&self, now: Duration) -> bool {
        self.inside > 0 || self.held_up.is_some_and(|at| now.saturating_sub(at) <= ACTIVE)
    }
}

impl State {
    /// Returns by how many bytes a file is ahead of the slowest one that is held up. The file is
    /// counted from now on, at most `most` bytes behind that one.
    fn lead(&mut self, ino: Ino, now: Duration, most: u64) -> u64 {
        // Each leaves the order once for each time that it was held up.
        while let Some((done, first)) = self.order.first().copied() {
            let flow = self.files.get_mut(&first);
            if flow.as_ref().is_some_and(|flow| flow.is_held_up(now)) {
                break;
            }
            self.order.remove(&(done, first));
            if let Some(flow) = flow {
                flow.held_up = None;
            }
        }
        if self.files.len() > FILES_MAX {
            self.files.clear();
            self.order.clear();
        }
        let slowest = self.order.first().map(|(done, _)| *done);
        let State { files, order, .. } = self;
        let flow = files.entry(ino).or_insert_with(|| Flow {
            done: slowest.unwrap_or(0),
            held_up: None,
            inside: 0,
        });
        let Some(slowest) = slowest else { return 0 };
        let least = slowest.saturating_sub(most);
        // Those in the order are not behind its first.
        if flow.done < least && flow.held_up.is_none() {
            flow.done = least;
        }
        debug_assert!(flow.held_up.is_none() || order.contains(&(flow.done, ino)));
        match sabotage("extant.pace.nobody-waits") {
            true => 0,
            false => flow.done.saturating_sub(slowest),
        }
    }

    /// Notes that a writer of a file that is counted is held up.
    fn hold_up(&mut self, ino: Ino, now: Duration) {
        if let Some(flow) = self.files.get_mut(&ino) {
            if flow.held_up.is_none() {
                self.order.insert((flow.done, ino));
            }
            flow.held_up = Some(now);
        }
    }

    fn advance(&mut self, ino: Ino, bytes: u64) {
        if let Some(flow) = self.files.get_mut(&ino) {
            let before = flow.done;
            flow.done = flow.done.saturating_add(bytes);
            if flow.held_up.is_some() {
                self.order.remove(&(before, ino));
                self.order.insert((flow.done, ino));
            }
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
    fn a_file_is_ahead_only_of_those_that_are_held_up() {
        let (pace, options, clock) = (Pace::default(), options(), FixedClock::at(0, 0));
        let is_ahead = |ino| pace.is_ahead(ino, &options, clock.monotonic());
        let count = |ino, bytes| pace.count(ino, bytes, &options, clock.monotonic());
        let (slow, fast) = (Ino(12), Ino(13));
        assert!(!is_ahead(fast), "alone");
        count(slow, 1000);
        count(fast, 10 * MIB);
        assert!(!is_ahead(fast), "the other one gets all that it wants");
        let turn = pace.begin(slow, &options, &clock);
        assert!(is_ahead(fast) && !is_ahead(slow));
        count(slow, 10 * MIB - 1000 - MIB);
        assert!(!is_ahead(fast), "a quantum");
        count(fast, 1);
        assert!(is_ahead(fast) && !is_ahead(slow));
        // One that comes is no reason to wait longer than for the slowest, and has nothing to catch up.
        assert!(!is_ahead(Ino(14)));
        // One that writes back is waited for as long as that takes.
        clock.advance(Duration::from_millis(500));
        assert!(is_ahead(fast));
        drop(turn);
        clock.advance(ACTIVE);
        assert!(is_ahead(fast));
        // It was not held up since, whatever it writes.
        count(slow, 1);
        clock.advance(Duration::from_nanos(1));
        assert!(!is_ahead(fast));
        // Who wanted little for long has a quantum to catch up, and not everything.
        count(Ino(15), 1);
        count(fast, 100 * MIB);
        drop(pace.begin(fast, &options, &clock));
        count(Ino(15), 2 * MIB);
        assert!(!is_ahead(Ino(15)), "behind, and a quantum ahead then");
        count(Ino(15), 1);
        assert!(is_ahead(Ino(15)));
        for ino in 0..5000 {
            count(Ino(ino), 1);
        }
        assert!(pace.state.lock().files.len() <= FILES_MAX + 1);
    }

    #[test]
    fn a_pause_ends_when_less_is_dirty_and_after_some_time() {
        let (pace, options, clock) = (Pace::default(), options(), FixedClock::at(0, 0));
        pace.count(Ino(12), 1, &options, Duration::ZERO);
        pace.pause(Ino(13), 8 * MIB, (&options, &clock), || true);
        // The other one is held up for ever.
        let _turn = pace.begin(Ino(12), &options, &clock);
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
            let ino = Ino(12 + at as u32);
            match parks {
                true => std::mem::forget(self.pace.begin(ino, &options(), &self.clock)),
                false => drop(Turn { pace: &self.pace, ino, clock: &self.clock }),
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
                            self.pace.count(ino, piece, &options, now);
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
        let mut some = Simulation::new(&[most, little, most, little, most]);
        some.run(1000, drains, 0);
        let before: Vec<u64> = some.files.iter().map(|(_, got)| *got).collect();
        some.run(10_000, drains, 2);
        let got: Vec<u64> = some.files.iter().zip(before).map(|(file, was)| file.1 - was).collect();
        for at in [1, 3] {
            assert!(got[at] >= 10_000 * little / 10 * 9, "{got:?} of {}", 10_000 * little);
        }
        // The rest is shared by those, whoever comes first: who wants little is not waited for.
        let mean = (got[0] + got[2] + got[4]) / 3;
        assert!([0, 2, 4].iter().all(|at| got[*at] >= mean / 2 && got[*at] <= mean * 2), "{got:?}");
        assert!(got.iter().sum::<u64>() >= 10_000 * drains / 100 * 97, "{got:?}");
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
