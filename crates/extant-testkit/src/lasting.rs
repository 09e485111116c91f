//! A device with a queue that lasts, over any device, for what rings give to it without a worker.
//!
//! Operations of such a queue are done by threads of its own, in any order and after a while, also
//! while nobody asks, and are handed back in another order. Everything else goes to the device below
//! as it is.

use std::io::{self, IoSlice};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant_base::Prng;
use extant_block::{
    BlockDevice, DeviceError, Engine, Finished, LastingQueue, Operation, Pending, Queue,
    QueueOptions, Wait,
};
use extant_sync::threads::Crew;
use extant_sync::{Clock, Condvar, Mutex, Rank, SystemClock};

/// The device `below` with queues that last.
pub struct Lasting<D> {
    below: Arc<D>,
    /// Seed of the next queue.
    seed: AtomicU64,
}

impl<D: BlockDevice + 'static> Lasting<D> {
    /// Makes a device whose queues do what follows from a seed.
    pub fn over(below: Arc<D>, seed: u64) -> Lasting<D> {
        Lasting { below, seed: AtomicU64::new(seed) }
    }
}

impl<D: BlockDevice + 'static> BlockDevice for Lasting<D> {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        let state = State {
            random: Prng::new(self.seed.fetch_add(1, Ordering::Relaxed)),
            started: Vec::new(),
            ended: Vec::new(),
            event: None,
            is_closed: false,
        };
        let line = Arc::new(Line {
            state: Mutex::new(Rank::Leaf, state),
            work: Condvar::new(),
            done: Condvar::new(),
        });
        let (own, below) = (Arc::clone(&line), Arc::clone(&self.below));
        let threads = Crew::start("lasting", 2, move || own.work(&*below)).ok()?;
        let depth = options.depth;
        Some(Box::new(OfLine {
            line,
            depth,
            pushed: Vec::new(),
            flying: 0,
            threads: Some(threads),
        }))
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.below.logical_sector_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.below.is_read_only()
    }

    fn describe(&self) -> Arc<str> {
        self.below.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.below.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.below.write_at(offset, bytes)
    }

    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        self.below.write_vectored_at(offset, parts)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.below.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.below.discard(offset, len)
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.below.write_zeroes(offset, len)
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.below.allocate(offset, len)
    }
}

/// What a queue and its threads share.
struct Line {
    state: Mutex<State>,
    /// There is something to do, or nothing ever again.
    work: Condvar,
    /// Something has ended.
    done: Condvar,
}

struct State {
    random: Prng,
    started: Vec<(u64, Operation)>,
    /// Done, and nobody knows.
    ended: Vec<Finished>,
    event: Option<OwnedFd>,
    is_closed: bool,
}

impl State {
    fn tell(&self) {
        if let Some(event) = &self.event {
            // A counter at its limit is readable, too.
            _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }
}

impl Line {
    /// Does operations until the queue is dropped.
    fn work<D: BlockDevice>(&self, below: &D) {
        let mut state = self.state.lock();
        loop {
            let count = state.started.len() as u64;
            if count == 0 {
                if state.is_closed {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            }
            let at = state.random.below(count) as usize;
            let (tag, operation) = state.started.swap_remove(at);
            let delay = [0, 0, 30, 300][state.random.below(4) as usize];
            drop(state);
            if delay > 0 {
                SystemClock.sleep(Duration::from_micros(delay));
            }
            let completion = below.submit(vec![operation]).wait().pop().expect("one of one");
            state = self.state.lock();
            state.ended.push(Finished { tag, completion });
            state.tell();
            self.done.notify_all();
        }
    }
}

struct OfLine {
    line: Arc<Line>,
    depth: usize,
    pushed: Vec<(u64, Operation)>,
    /// Number of operations that were started and not reaped.
    flying: usize,
    threads: Option<Crew>,
}

impl Queue for OfLine {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len() >= self.depth {
            return Err(operation);
        }
        self.pushed.push((tag, operation));
        Ok(())
    }

    fn submit(&mut self) {
        self.flying += self.pushed.len();
        self.line.state.lock().started.append(&mut self.pushed);
        self.line.work.notify_all();
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        if self.flying == 0 {
            return None;
        }
        let mut state = self.line.state.lock();
        while state.ended.is_empty() {
            if wait == Wait::Poll {
                return None;
            }
            self.line.done.wait(&mut state);
        }
        let count = state.ended.len() as u64;
        let at = state.random.below(count) as usize;
        self.flying -= 1;
        Some(state.ended.swap_remove(at))
    }

    fn len(&self) -> usize {
        self.pushed.len() + self.flying
    }

    fn depth(&self) -> usize {
        self.depth
    }

    fn engine(&self) -> Engine {
        Engine::Portable
    }
}

impl LastingQueue for OfLine {
    fn unstarted(&self) -> usize {
        self.pushed.len()
    }

    fn signals(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        let mut state = self.line.state.lock();
        state.event = Some(event.try_clone_to_owned()?);
        state.tell();
        Ok(())
    }
}

impl Drop for OfLine {
    fn drop(&mut self) {
        self.line.state.lock().is_closed = true;
        self.line.work.notify_all();
        // It waits for what was started.
        self.threads = None;
        assert!(self.flying == 0 || std::thread::panicking(), "somebody is not waited for");
    }
}
