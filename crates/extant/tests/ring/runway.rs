//! A device in memory with a queue that lasts, which can stall and fail.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Engine, Finished, LastingQueue,
    MemoryDevice, Operation, OperationKind, Pending, Queue, QueueOptions, Wait,
};
use extant_sync::{Mutex, Rank};

use crate::support::until;

/// What is shared by the device and its queues.
pub(crate) struct Runway {
    below: Arc<MemoryDevice>,
    /// Operations of queues do not end.
    stalls: AtomicBool,
    /// Calls that wait for an operation to end while the device stalls, ever.
    pub(crate) waiters: AtomicU64,
    /// So many operations of queues fail.
    pub(crate) failures: AtomicU64,
    /// Every other operation fails too.
    pub(crate) is_broken: AtomicBool,
    /// Operations of queues that have ended.
    pub(crate) ended: AtomicU64,
    events: Mutex<Vec<OwnedFd>>,
}

impl Runway {
    pub(crate) fn new(below: &Arc<MemoryDevice>) -> Arc<Runway> {
        Arc::new(Runway {
            below: Arc::clone(below),
            stalls: AtomicBool::new(false),
            waiters: AtomicU64::new(0),
            failures: AtomicU64::new(0),
            is_broken: AtomicBool::new(false),
            ended: AtomicU64::new(0),
            events: Mutex::new(Rank::Leaf, Vec::new()),
        })
    }

    /// Until what is returned is dropped, also by a test that fails.
    pub(crate) fn stall(self: &Arc<Self>) -> Standstill {
        self.stalls.store(true, Ordering::SeqCst);
        Standstill(Arc::clone(self))
    }

    /// The device of a mount.
    pub(crate) fn device(self: &Arc<Self>) -> Arc<OnRunway> {
        Arc::new(OnRunway(Arc::clone(self)))
    }

    fn tell(&self) {
        for event in &*self.events.lock() {
            rustix::io::write(event, &1u64.to_ne_bytes()).unwrap();
        }
    }

    fn check(&self, kind: OperationKind, offset: u64) -> Result<(), DeviceError> {
        match self.is_broken.load(Ordering::SeqCst) {
            true => Err(self.error(kind, offset)),
            false => Ok(()),
        }
    }

    fn error(&self, kind: OperationKind, offset: u64) -> DeviceError {
        let fault = DeviceFault::Io(io::Error::from_raw_os_error(5));
        DeviceError::new(self.below.describe(), kind, offset, 0, fault)
    }
}

#[must_use]
pub(crate) struct Standstill(Arc<Runway>);

impl Drop for Standstill {
    fn drop(&mut self) {
        self.0.stalls.store(false, Ordering::SeqCst);
        self.0.tell();
    }
}

pub(crate) struct OnRunway(Arc<Runway>);

impl BlockDevice for OnRunway {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let is_broken = self.0.is_broken.load(Ordering::SeqCst);
        if !is_broken {
            return self.0.below.submit(batch);
        }
        let failed = batch.into_iter().map(|operation| {
            let result = Err(self.0.error(operation.kind(), operation.offset()));
            Completion { operation, result }
        });
        Pending::done(failed.collect())
    }

    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        Some(Box::new(OfRunway {
            runway: Arc::clone(&self.0),
            depth: options.depth,
            pushed: VecDeque::new(),
            started: VecDeque::new(),
        }))
    }

    fn size_bytes(&self) -> u64 {
        self.0.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.0.below.describe()
    }

    fn write_vectored_at(&self, offset: u64, parts: &[io::IoSlice<'_>]) -> Result<(), DeviceError> {
        self.0.check(OperationKind::Write, offset)?;
        self.0.below.write_vectored_at(offset, parts)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.0.check(OperationKind::Read, offset)?;
        self.0.below.read_at(offset, out)
    }
}

struct OfRunway {
    runway: Arc<Runway>,
    depth: usize,
    pushed: VecDeque<(u64, Operation)>,
    started: VecDeque<(u64, Operation)>,
}

impl OfRunway {
    fn end(&mut self) -> Option<Finished> {
        let (tag, operation) = self.started.pop_front()?;
        self.runway.ended.fetch_add(1, Ordering::SeqCst);
        let less = |left: u64| left.checked_sub(1);
        if self.runway.failures.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
            let result = Err(self.runway.error(operation.kind(), operation.offset()));
            return Some(Finished { tag, completion: Completion { operation, result } });
        }
        let completion = self.runway.below.submit(vec![operation]).wait().pop()?;
        Some(Finished { tag, completion })
    }
}

impl Queue for OfRunway {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len() >= self.depth {
            return Err(operation);
        }
        self.pushed.push_back((tag, operation));
        Ok(())
    }

    fn submit(&mut self) {
        let is_any = !self.pushed.is_empty();
        self.started.append(&mut self.pushed);
        if is_any && !self.runway.stalls.load(Ordering::SeqCst) {
            self.runway.tell();
        }
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        if self.started.is_empty() {
            return None;
        }
        if self.runway.stalls.load(Ordering::SeqCst) {
            if wait == Wait::Poll {
                return None;
            }
            self.runway.waiters.fetch_add(1, Ordering::SeqCst);
            until("the runway is free", || !self.runway.stalls.load(Ordering::SeqCst));
        }
        self.end()
    }

    fn len(&self) -> usize {
        self.pushed.len() + self.started.len()
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn engine(&self) -> Engine {
        Engine::Portable
    }
}

impl LastingQueue for OfRunway {
    fn unstarted(&self) -> usize {
        self.pushed.len()
    }

    fn signals(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.runway.events.lock().push(event.try_clone_to_owned()?);
        self.runway.tell();
        Ok(())
    }
}
