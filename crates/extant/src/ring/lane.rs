//! The lane of a ring: direct reads and overwrites that the submitter gives to the device.
//!
//! # Place
//!
//! Below: `file/direct_now`, which pins what an operation needs, and the device's lasting queue.
//! Above: `shared`, which tries the lane before it gives a direct operation to a worker.
//!
//! # Rules
//!
//! - N1. No thread of the ring is behind an operation of the lane. Whoever takes results takes it
//!   from the device; whoever must wait for it (for the content lock, a freeze, a drain, the end of
//!   the ring) does so as well, whichever thread has submitted it.
//! - N2. The lock of the lane is held over a wait for the device, by one thread. Submitters try it
//!   and go to a worker; nothing but leaves is locked under it. An operation ends after it.
//! - N3. An operation that the device refuses, or that a reader has got ahead of, becomes a task,
//!   before all others. It counts as under way until it is done, for drains and the end: it is
//!   counted as repeated before it is counted down as flying, and who waits looks in that order.
//! - N4. The device's queue owns the memory of an operation from its start to its end.
//!
//! # Few system calls
//!
//! An operation is started at once while the device is idle, or an event descriptor is in use.
//! Others are started together, by a quarter of the depth, or as soon as somebody asks for results.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use extant_base::sabotage;
use extant_block::{
    Completion as Ended, Engine, Finished, LastingQueue, Operation, QueueOptions, Wait,
};
use extant_sync::{Clock, Mutex, Rank, Signal, SystemClock};

use super::op::{Completion, Op, Value};
use super::queue::Patience;
use super::{Outcome, Shared, Task};
use crate::file::Departed;
use crate::fs::Fs;
use crate::inode::Inode;
use crate::node::{Drive, Flights};

/// Limit of the operations that are with the device; those of a deeper ring go to workers.
const FLYING_MAX: usize = 1024;
/// Time between two looks where the system gives no descriptor to wait for.
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Counts an operation that a worker repeats, until this is dropped (N3).
pub(super) struct Repeated(Arc<Flights>);

impl Drop for Repeated {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// An operation with the device.
struct Flight {
    tag: u64,
    departed: Departed,
}

/// The device's queue and what is in it.
struct Apron {
    queue: Box<dyn LastingQueue>,
    /// The operations, by their tags in the queue.
    flights: Vec<Option<Flight>>,
    /// Unused tags.
    free: Vec<usize>,
    /// Whether the queue signals.
    signals: bool,
}

/// The lane of a ring.
pub(super) struct Lane {
    /// Rank `Device`: held over waits for it.
    apron: Mutex<Apron>,
    driver: Weak<dyn Drive>,
    engine: Engine,
    /// Operations that were not landed yet.
    flying: Flights,
    /// Operations that workers repeat.
    repeated: Arc<Flights>,
    /// Number of takers that wait for the signal.
    sleepers: AtomicUsize,
}

/// An operation that the device has ended.
type Arrived = (Flight, Ended);

impl Apron {
    /// Takes what has ended out of the queue, and waits for it if asked to.
    fn next(&mut self, wait: Wait) -> Option<Arrived> {
        loop {
            let Finished { tag, completion } = self.reap(wait)?;
            // Every tag is an index, handed back once (U3).
            let Some(flight) = self.flights.get_mut(tag as usize).and_then(Option::take) else {
                continue;
            };
            self.free.push(tag as usize);
            return Some((flight, completion));
        }
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        if self.queue.unstarted() < self.batch()
            && let Some(finished) = self.queue.reap(Wait::Poll)
        {
            return Some(finished);
        }
        match wait {
            Wait::Block => self.queue.advance(),
            Wait::Poll => {
                self.queue.submit();
                self.queue.reap(Wait::Poll)
            }
        }
    }

    /// Returns the number of operations that are started together.
    fn batch(&self) -> usize {
        self.queue.depth().div_ceil(4)
    }

    /// Adds an operation, or returns it if the queue has no room.
    fn push(&mut self, flight: Flight, operation: Operation) -> Option<(Flight, Operation)> {
        let is_idle = self.queue.len() == self.queue.unstarted();
        let index = self.free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() - 1
        });
        if let Err(operation) = self.queue.push(index as u64, operation) {
            self.free.push(index);
            return Some((flight, operation));
        }
        self.flights[index] = Some(flight);
        if is_idle || self.signals || self.queue.unstarted() >= self.batch() {
            self.queue.submit();
        }
        None
    }
}

impl Lane {
    /// Makes the lane of a ring of this depth, which drives it; `None` where the mount or the device
    /// has no use for one.
    pub(super) fn open(fs: &Fs, depth: usize, driver: Weak<dyn Drive>) -> Option<Lane> {
        fs.volume().writer().ok()?;
        let options = QueueOptions::default().depth(depth.min(FLYING_MAX));
        let queue = fs.volume().device().lasting_queue(&options)?;
        let engine = queue.engine();
        let apron = Apron { queue, flights: Vec::new(), free: Vec::new(), signals: false };
        Some(Lane {
            apron: Mutex::new(Rank::Device, apron),
            driver,
            engine,
            flying: Flights::new(),
            repeated: Arc::new(Flights::new()),
            sleepers: AtomicUsize::new(0),
        })
    }

    pub(super) fn engine(&self) -> Engine {
        self.engine
    }

    /// Makes the lane known to those who wait for all overwrites, once its driver exists.
    pub(super) fn enlist(&self, fs: &Fs) {
        if let Ok(writer) = fs.volume().writer() {
            writer.overwrites().enlist(&self.driver);
        }
    }

    /// Returns whether operations are with the device, or being landed.
    pub(super) fn is_flying(&self) -> bool {
        !self.flying.is_empty()
    }

    /// Has the queue raise this signal, too.
    ///
    /// # Errors
    ///
    /// That of the system.
    pub(super) fn signal(&self, signal: &Signal) -> io::Result<()> {
        self.apron.lock().signal(signal)
    }

    /// Gives an operation to the device. Otherwise it has its buffer again.
    fn launch(&self, tag: u64, departed: Departed, op: &mut Op) -> bool {
        let Some(mut apron) = self.apron.try_lock() else { return false };
        let Some(request) = op.take_direct() else { return false };
        let (offset, buffer) = (departed.address(), request.buffer);
        let operation = match departed.writes() {
            true => Operation::Write { offset, buffer, fua: false },
            false => Operation::Read { offset, buffer },
        };
        self.flying.begin();
        let Some((flight, operation)) = apron.push(Flight { tag, departed }, operation) else {
            return true;
        };
        drop(apron);
        self.flying.end();
        *op = op_of(&flight.departed, operation);
        false
    }

    /// Counts an operation down whose outcome can be taken, or has been.
    fn landed(&self, signal: Option<&Signal>) {
        self.flying.end();
        if self.sleepers.load(Ordering::SeqCst) > 0
            && let Some(signal) = signal
        {
            signal.raise();
        }
    }
}

impl Apron {
    fn signal(&mut self, signal: &Signal) -> io::Result<()> {
        if !self.signals {
            self.queue.signals(signal.lend())?;
            self.signals = true;
            // What was waiting for company might wait for ever: nobody asks before a signal.
            self.queue.submit();
        }
        Ok(())
    }
}

/// Returns the operation of the ring that was given to the device.
fn op_of(departed: &Departed, operation: Operation) -> Op {
    op_at(departed.writes(), departed.offset(), operation)
}

fn op_at(writes: bool, offset: u64, operation: Operation) -> Op {
    let buffer = match operation {
        Operation::Write { buffer, .. } | Operation::Read { buffer, .. } => buffer,
        // Nothing else is given to the device.
        _ => return Op::Stat,
    };
    match writes {
        true => Op::WriteDirect { offset, buffer, synced: false },
        false => Op::ReadDirect { offset, buffer },
    }
}

impl Shared {
    /// Returns whether operations of the lane are under way, or being repeated.
    pub(super) fn is_flying(&self) -> bool {
        self.lane.as_ref().is_some_and(|lane| lane.is_flying() || !lane.repeated.is_empty())
    }

    /// Gives a direct operation to the device without waiting. Otherwise nothing has happened.
    pub(super) fn fly(&self, lane: &Lane, tag: u64, inode: &Inode, op: &mut Op) -> bool {
        let (writes, offset, buffer) = match op {
            Op::ReadDirect { offset, buffer } => (false, *offset, buffer),
            Op::WriteDirect { offset, buffer, synced: false } => (true, *offset, buffer),
            _ => return false,
        };
        let Some(departed) = inode.depart(writes, offset, buffer, &lane.driver) else {
            return false;
        };
        if !self.claim(1, false) {
            return false;
        }
        if !lane.launch(tag, departed, op) {
            self.leave();
            return false;
        }
        // Who waits for a worker takes from the device, too.
        if !sabotage("extant.ring.takers-not-nudged") {
            self.queue.nudge();
        }
        true
    }

    /// Ends an operation that came back from the device. `None` if a worker repeats it; else it
    /// counts as flying until its outcome can be taken.
    fn land(&self, lane: &Lane, (flight, ended): Arrived) -> Option<Completion> {
        let Flight { tag, departed } = flight;
        let offset = departed.offset();
        let writes = departed.writes();
        match departed.land(ended.result.is_ok()) {
            Ok(()) => {
                self.counters.submitted.lane.fetch_add(1, Ordering::Relaxed);
                let (len, value) = match ended.operation {
                    Operation::Read { buffer, .. } | Operation::Write { buffer, .. } => {
                        (buffer.len() as u64, Value::Direct(buffer))
                    }
                    // Nothing else is given to the device.
                    _ => (0, Value::Nothing),
                };
                let (result, buffer) = (Ok(len), Vec::new());
                Some(Completion { tag, result, buffer, value, is_inline: false })
            }
            Err(inode) => {
                self.counters.submitted.lane_repeated.fetch_add(1, Ordering::Relaxed);
                lane.repeated.begin();
                let repeats = Some(Repeated(Arc::clone(&lane.repeated)));
                let op = op_at(writes, offset, ended.operation);
                let place = Shared::place(&inode, &op, false, None);
                let task = Task { tag, inode, op, part: None, to: None, drains: false, repeats };
                self.queue.push_begun(place, task);
                None
            }
        }
    }

    /// Waits until nothing that was given to the device is under way, or being repeated.
    pub(super) fn settle_lane(&self) {
        if let Some(lane) = &self.lane
            && self.is_flying()
        {
            self.drive(&|| false);
            // In this order (N3).
            lane.flying.wait();
            lane.repeated.wait();
        }
    }

    /// Takes a result of the workers or of the lane, in which operations are under way.
    pub(super) fn take_of_both(
        &self,
        lane: &Lane,
        patience: impl Fn() -> Patience,
    ) -> Option<Completion> {
        let mut sleeping = None;
        let mut is_armed = false;
        loop {
            // In this order: what is landed for others is put into the queue first.
            let is_flying = lane.is_flying();
            let is_pending = self.queue.is_pending();
            if is_pending && let Some(outcome) = self.queue.take(|| Patience::None) {
                return Some(self.taken(outcome));
            }
            if !is_flying {
                let taken = is_pending.then(|| self.take_of_workers(lane, &patience)).flatten();
                if taken.is_none() && lane.is_flying() {
                    continue;
                }
                return taken;
            }
            let waits = matches!(patience(), Patience::Endless) && !is_pending;
            let arrived = match waits {
                true => lane.apron.try_lock().and_then(|mut apron| apron.next(Wait::Block)),
                false => lane.apron.try_lock().and_then(|mut apron| apron.next(Wait::Poll)),
            };
            if let Some(arrived) = arrived {
                let landed = self.land(lane, arrived);
                lane.landed(self.signal.get());
                if let Some(completion) = landed {
                    return Some(self.taken(Ok(completion.into())));
                }
                continue;
            }
            if !is_armed {
                // As for results of workers: cleared first, then looked again.
                sleeping.get_or_insert_with(|| Sleeping::new(&lane.sleepers));
                if let Some(signal) = self.signal.get() {
                    signal.clear();
                }
                is_armed = true;
                continue;
            }
            is_armed = false;
            match patience() {
                Patience::None => return None,
                Patience::For(time) => self.sleep(lane, Some(time)),
                Patience::Endless => self.sleep(lane, None),
            }
        }
    }

    /// Takes a result of the workers; waits only while nothing is with the device.
    pub(super) fn take_of_workers(
        &self,
        lane: &Lane,
        patience: impl Fn() -> Patience,
    ) -> Option<Completion> {
        self.take_of_queue(|| if lane.is_flying() { Patience::None } else { patience() })
    }

    /// Waits until there may be a result, or for `time`; may return early.
    fn sleep(&self, lane: &Lane, time: Option<Duration>) {
        let is_new = self.signal.get().is_none();
        if is_new && let Ok(made) = Signal::new() {
            // What ended before the queue knows of it has to be looked for once more.
            made.raise();
            // Another thread may have made one first.
            _ = self.signal.set(made);
        }
        let told = |signal: &&Signal| {
            lane.apron.try_lock().is_some_and(|mut apron| match apron.signals {
                true => true,
                false => {
                    signal.raise();
                    apron.signal(signal).is_ok()
                }
            })
        };
        match self.signal.get().filter(told) {
            Some(signal) => signal.wait(time),
            // Another thread uses the lane at the moment, or the system has no descriptors.
            None => SystemClock.sleep(time.map_or(LOOK_AGAIN, |time| time.min(LOOK_AGAIN))),
        }
    }

    /// Makes an outcome that a thread got from the device for others available.
    fn deliver(&self, lane: &Lane, arrived: Arrived) {
        if let Some(completion) = self.land(lane, arrived) {
            self.queue.put(Ok(completion.into()) as Outcome);
        }
        lane.landed(None);
        if let Some(signal) = self.signal.get() {
            signal.raise();
        }
    }
}

impl Drive for Shared {
    fn drive(&self, is_enough: &dyn Fn() -> bool) {
        let Some(lane) = &self.lane else { return };
        while !is_enough() {
            let arrived = lane.apron.lock().next(Wait::Block);
            let Some(arrived) = arrived else { return };
            self.deliver(lane, arrived);
        }
    }
}

/// A taker that waits for the signal.
struct Sleeping<'a>(&'a AtomicUsize);

impl<'a> Sleeping<'a> {
    fn new(sleepers: &'a AtomicUsize) -> Sleeping<'a> {
        sleepers.fetch_add(1, Ordering::SeqCst);
        Sleeping(sleepers)
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
