//! Where requests arrive, and how many are under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use extant_block::AlignedBuffer;
use extant_sync::{Clock, Condvar, Mutex, Rank, SystemClock};

use crate::ffi::Landing;

/// Most requests of an image under way at once.
pub const FLIGHTS_MAX: usize = 256;
/// Most bytes of requests of an image under way at once; one request may be longer if it is alone.
pub const FLIGHT_BYTES_MAX: u64 = 64 << 20;

/// Waits until `ready` says something, for at most `limit`.
fn wait_until<T, R>(
    lock: &Mutex<T>,
    changed: &Condvar,
    limit: Option<Duration>,
    mut ready: impl FnMut(&mut T) -> Option<R>,
) -> Option<R> {
    let clock = SystemClock;
    let started = clock.monotonic();
    let mut state = lock.lock();
    loop {
        if let Some(found) = ready(&mut state) {
            return Some(found);
        }
        match limit {
            None => changed.wait(&mut state),
            Some(limit) => {
                let left = limit.saturating_sub(clock.monotonic().saturating_sub(started));
                if left.is_zero() {
                    return None;
                }
                changed.wait_for(&mut state, left);
            }
        }
    }
}

#[derive(Default)]
struct Aloft {
    count: usize,
    bytes: u64,
}

/// The requests of an image that the library has, those that nobody waits for included.
pub(crate) struct Flights {
    aloft: Mutex<Aloft>,
    landed: Condvar,
}

impl Flights {
    pub(crate) fn new() -> Flights {
        Flights { aloft: Mutex::new(Rank::Leaf, Aloft::default()), landed: Condvar::new() }
    }

    fn enter(aloft: &mut Aloft, bytes: u64) -> Option<()> {
        let fits =
            aloft.count < FLIGHTS_MAX && aloft.bytes.saturating_add(bytes) <= FLIGHT_BYTES_MAX;
        if aloft.count > 0 && !fits {
            return None;
        }
        aloft.count += 1;
        aloft.bytes = aloft.bytes.saturating_add(bytes);
        Some(())
    }

    /// Makes room for a request of that many bytes, if there is some.
    pub(crate) fn try_enter(&self, bytes: u64) -> bool {
        Flights::enter(&mut self.aloft.lock(), bytes).is_some()
    }

    /// As [`try_enter`](Self::try_enter), and waits for room.
    pub(crate) fn wait_enter(&self, bytes: u64, limit: Option<Duration>) -> bool {
        wait_until(&self.aloft, &self.landed, limit, |aloft| Flights::enter(aloft, bytes)).is_some()
    }

    pub(crate) fn leave(&self, bytes: u64) {
        let mut aloft = self.aloft.lock();
        aloft.count = aloft.count.saturating_sub(1);
        aloft.bytes = aloft.bytes.saturating_sub(bytes);
        drop(aloft);
        self.landed.notify_all();
    }

    /// Waits until none is under way.
    pub(crate) fn wait_none(&self, limit: Option<Duration>) -> bool {
        let none = |aloft: &mut Aloft| (aloft.count == 0).then_some(());
        wait_until(&self.aloft, &self.landed, limit, none).is_some()
    }

    pub(crate) fn count(&self) -> usize {
        self.aloft.lock().count
    }
}

/// A request that was completed.
pub(crate) struct Arrival {
    pub(crate) cookie: u64,
    pub(crate) memory: AlignedBuffer,
    pub(crate) result: i64,
}

/// Where the requests of one runner arrive.
pub(crate) struct Board {
    arrivals: Mutex<VecDeque<Arrival>>,
    arrived: Condvar,
    flights: Arc<Flights>,
}

impl Board {
    pub(crate) fn new(flights: &Arc<Flights>) -> Arc<Board> {
        Arc::new(Board {
            arrivals: Mutex::new(Rank::Leaf, VecDeque::new()),
            arrived: Condvar::new(),
            flights: Arc::clone(flights),
        })
    }

    /// What has arrived, if something has.
    pub(crate) fn poll(&self) -> Option<Arrival> {
        self.arrivals.lock().pop_front()
    }

    /// The next arrival; `None` when there was none for as long as `limit`.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> Option<Arrival> {
        wait_until(&self.arrivals, &self.arrived, limit, VecDeque::pop_front)
    }
}

impl Landing for Board {
    fn landed(&self, cookie: u64, memory: AlignedBuffer, result: i64) {
        self.flights.leave(memory.len() as u64);
        self.arrivals.lock().push_back(Arrival { cookie, memory, result });
        self.arrived.notify_one();
    }
}
