//! A device that fails, delays and reorders operations as a seed decides.
//!
//! # Invariants
//!
//! - Q1. Equal seeds and equal calls in equal order give equal faults.
//! - Q2. A write that fails may have stored some of its leading sectors.
//! - Q3. A batch whose completion is not awaited is done at some later moment, or never if the
//!   device is dropped first; the operations of a batch are done in any order. The trait promises
//!   no more.

use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use extant_sync::threads::{Sender, channel};
use extant_sync::{Mutex, Rank};

use crate::device::BlockDevice;
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::operation::{Completion, Operation, Pending};
use crate::run_batch::{read_runs_as_batch, write_runs_as_batch};
use crate::runs::{ReadRun, WriteRun};

/// Limit of the delayed batches; the oldest is done before another one is accepted.
const QUEUE_MAX: usize = 32;

/// Linux errno of an I/O error.
const EIO: i32 = 5;

/// The choice of operations that fail, and of delays. The default is a device without faults.
#[derive(Clone, Debug, Default)]
pub struct FaultPlan {
    /// Seed of all random choices.
    pub seed: u64,
    /// One read in this many fails; 0 for none.
    pub read_one_in: u64,
    /// One write (or discard, or write of zeros) in this many fails; 0 for none.
    pub write_one_in: u64,
    /// One flush in this many fails; 0 for none.
    pub flush_one_in: u64,
    /// Limit of the operations of one kind that fail directly after a failed one.
    pub streak_max: u64,
    /// Operations that fail in any case, as `(kind, first, count)`, counted from 0 for each kind.
    pub exactly: Vec<(OperationKind, u64, u64)>,
    /// Whether batches are delayed and the operations within one are reordered.
    pub reorder: bool,
    /// Linux errno of the faults; 0 for `EIO`.
    pub errno: i32,
    /// A failed write that touches this range of bytes stores nothing, instead of a part.
    pub whole: Range<u64>,
}

/// Counts for one kind of operation.
#[derive(Default)]
struct Counter {
    seen: u64,
    /// Number of further operations that fail.
    streak: u64,
}

struct State {
    plan: FaultPlan,
    random: u64,
    counters: [Counter; 4],
    failed: u64,
    enabled: bool,
    queue: Vec<Job>,
    next_job: u64,
}

impl State {
    /// SplitMix64, as in `extant-base`, which this crate does not depend on.
    fn next(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Returns whether the next operation of this kind fails.
    fn fails(&mut self, kind: OperationKind) -> bool {
        let (slot, one_in) = match kind {
            OperationKind::Read => (0, self.plan.read_one_in),
            OperationKind::Flush => (2, self.plan.flush_one_in),
            OperationKind::Allocate => (3, 0),
            _ => (1, self.plan.write_one_in),
        };
        let number = self.counters[slot].seen;
        self.counters[slot].seen += 1;
        if !self.enabled {
            return false;
        }
        let listed = self
            .plan
            .exactly
            .iter()
            .any(|(of, first, count)| *of == kind && (*first..first + count).contains(&number));
        let fails = if self.counters[slot].streak > 0 {
            self.counters[slot].streak -= 1;
            true
        } else if one_in != 0 && self.below(one_in) == 0 {
            self.counters[slot].streak = self.below(self.plan.streak_max + 1);
            true
        } else {
            listed
        };
        self.failed += u64::from(fails);
        fails
    }
}

/// The function that waits for a started batch.
type Started = Box<dyn FnOnce() -> Vec<Completion> + Send>;

/// A batch that was not started yet. The thread that takes it out of the queue starts it, and sends
/// the function that waits for it to its owner.
struct Job {
    number: u64,
    batch: Vec<Operation>,
    to: Sender<Started>,
}

/// Called with every flush that fails, after which the unflushed writes stay in doubt.
type FlushHook = Box<dyn Fn() + Send + Sync>;

/// The device `inner` with faults.
pub struct FaultDevice<D> {
    inner: Arc<D>,
    state: Arc<Mutex<State>>,
    on_failed_flush: Option<Arc<FlushHook>>,
}

impl<D: BlockDevice + 'static> FaultDevice<D> {
    /// Returns a device that does the operations of `inner` with the faults of `plan`.
    pub fn new(inner: Arc<D>, plan: FaultPlan) -> FaultDevice<D> {
        let state = State {
            random: plan.seed,
            plan,
            counters: Default::default(),
            failed: 0,
            enabled: true,
            queue: Vec::new(),
            next_job: 0,
        };
        let state = Arc::new(Mutex::new(Rank::Leaf, state));
        FaultDevice { inner, state, on_failed_flush: None }
    }

    /// Sets a hook that is called with every flush that fails, so that a recording device below can
    /// note it.
    #[must_use]
    pub fn on_failed_flush(mut self, hook: impl Fn() + Send + Sync + 'static) -> FaultDevice<D> {
        self.on_failed_flush = Some(Arc::new(Box::new(hook)));
        self
    }

    /// Returns the device below.
    pub fn inner(&self) -> &Arc<D> {
        &self.inner
    }

    /// Switches the faults on or off; delays stay.
    pub fn set_enabled(&self, enabled: bool) {
        self.state.lock().enabled = enabled;
    }

    /// Returns the number of operations that failed so far.
    pub fn failed(&self) -> u64 {
        self.state.lock().failed
    }

    /// Returns the number of operations so far: reads; writes, discards and writes of zeros;
    /// flushes; reservations of space.
    pub fn seen(&self) -> [u64; 4] {
        let state = self.state.lock();
        [0, 1, 2, 3].map(|slot| state.counters[slot].seen)
    }

    fn error(&self, kind: OperationKind, offset: u64, length: u64) -> DeviceError {
        let errno = match self.state.lock().plan.errno {
            0 => EIO,
            errno => errno,
        };
        let fault = DeviceFault::Io(io::Error::from_raw_os_error(errno));
        DeviceError::new(self.inner.describe(), kind, offset, length, fault)
    }

    /// Starts a batch on the device below, without the operations that fail. The completions come
    /// in the order of the batch.
    fn start(&self, batch: Vec<Operation>) -> Started {
        let count = batch.len();
        let mut slots: Vec<Option<Completion>> = Vec::new();
        slots.resize_with(count, || None);
        let mut passed = Vec::new();
        let mut numbers = Vec::new();
        for (number, operation) in batch.into_iter().enumerate() {
            let fails = self.state.lock().fails(operation.kind());
            if !fails {
                passed.push(operation);
                numbers.push(number);
                continue;
            }
            match &operation {
                Operation::Write { offset, buffer, .. } => {
                    let sectors = buffer.len() as u64 / 512;
                    let mut state = self.state.lock();
                    let mut kept = state.below(sectors + 1) * 512;
                    let whole = &state.plan.whole;
                    if *offset < whole.end && whole.start < offset + buffer.len() as u64 {
                        kept = 0;
                    }
                    drop(state);
                    // Rule Q2; the result of the stored part does not matter to a failed write.
                    let _ = self.inner.write_at(*offset, &buffer[..kept as usize]);
                }
                Operation::Flush => {
                    if let Some(hook) = &self.on_failed_flush {
                        hook();
                    }
                }
                _ => {}
            }
            let (kind, offset, length) = (operation.kind(), operation.offset(), operation.length());
            let result = Err(self.error(kind, offset, length));
            slots[number] = Some(Completion { operation, result });
        }
        if self.state.lock().plan.reorder {
            for at in (1..passed.len()).rev() {
                let other = self.state.lock().below(at as u64 + 1) as usize;
                passed.swap(at, other);
                numbers.swap(at, other);
            }
        }
        let pending = self.inner.submit(passed);
        Box::new(move || {
            for (number, completion) in numbers.into_iter().zip(pending.wait()) {
                slots[number] = Some(completion);
            }
            slots.into_iter().flatten().collect()
        })
    }

    /// Starts a batch for its owner, which may have dropped its end of the channel.
    fn release(&self, job: Job) {
        let started = self.start(job.batch);
        let _ = job.to.send(started);
    }

    /// Starts a random part of the delayed batches, in random order, and enough to keep the limit.
    fn stir(&self) {
        loop {
            let job = {
                let mut state = self.state.lock();
                let len = state.queue.len() as u64;
                if len == 0 || (len < QUEUE_MAX as u64 && state.below(3) != 0) {
                    return;
                }
                let at = state.below(len) as usize;
                state.queue.swap_remove(at)
            };
            self.release(job);
        }
    }

    fn handle(&self) -> FaultDevice<D> {
        FaultDevice {
            inner: Arc::clone(&self.inner),
            state: Arc::clone(&self.state),
            on_failed_flush: self.on_failed_flush.clone(),
        }
    }
}

impl<D: BlockDevice + 'static> BlockDevice for FaultDevice<D> {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        if !self.state.lock().plan.reorder {
            return Pending::waiting(self.start(batch));
        }
        let (to, from) = channel(1);
        let number = {
            let mut state = self.state.lock();
            state.next_job += 1;
            let number = state.next_job;
            state.queue.push(Job { number, batch, to });
            number
        };
        self.stir();
        let device = self.handle();
        Pending::waiting(move || {
            device.stir();
            let own = {
                let mut state = device.state.lock();
                let at = state.queue.iter().position(|job| job.number == number);
                at.map(|at| state.queue.swap_remove(at))
            };
            if let Some(job) = own {
                device.release(job);
            }
            // The batch was started, or another thread is starting it; a receive error means that
            // the other thread panicked there.
            from.recv().map_or_else(|_| Vec::new(), |wait| wait())
        })
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        write_runs_as_batch(self, runs)
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        read_runs_as_batch(self, runs)
    }

    /// As many as there are: a batch is reordered as a whole.
    fn runs_at_once(&self, _: OperationKind) -> usize {
        usize::MAX
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        self.inner.extend(size_bytes)
    }

    fn can_extend(&self) -> bool {
        self.inner.can_extend()
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.inner.logical_sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.inner.describe()
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        if self.state.lock().fails(OperationKind::Allocate) {
            return Err(self.error(OperationKind::Allocate, offset, len));
        }
        self.inner.allocate(offset, len)
    }
}

impl<D> fmt::Debug for FaultDevice<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultDevice").field("plan", &self.state.lock().plan).finish_non_exhaustive()
    }
}
