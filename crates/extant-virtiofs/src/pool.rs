//! Requests that were taken from queues, and the threads that answer them.

use std::io::{self, IoSlice, Read as _, Write as _};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_fuse::{Answer, Exchange};
use extant_sync::{Condvar, Mutex, Rank, threads};
use vhost_user_backend::{VringRwLock, VringT};
use virtio_queue::{DescriptorChain, Writer};
use vm_memory::{GuestMemoryLoadGuard, GuestMemoryMmap};

/// How many requests of one queue are under way.
pub(crate) struct UnderWay {
    count: Mutex<usize>,
    none: Condvar,
}

impl UnderWay {
    pub(crate) fn new() -> UnderWay {
        UnderWay { count: Mutex::new(Rank::Leaf, 0), none: Condvar::new() }
    }

    /// Counts one more until the result is dropped.
    pub(crate) fn enter(self: &Arc<UnderWay>) -> Ticket {
        *self.count.lock() += 1;
        Ticket(Arc::clone(self))
    }

    /// Waits until there are none.
    pub(crate) fn wait(&self) {
        let mut count = self.count.lock();
        while *count != 0 {
            self.none.wait(&mut count);
        }
    }
}

/// One request under way.
pub(crate) struct Ticket(Arc<UnderWay>);

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut count = self.0.count.lock();
        *count -= 1;
        if *count == 0 {
            self.0.none.notify_all();
        }
    }
}

/// A request that was taken from a queue.
pub(crate) struct Job {
    pub(crate) chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>,
    pub(crate) queue: VringRwLock,
    pub(crate) ticket: Ticket,
}

/// Answers requests until no queue is left that could bring any.
pub(crate) fn work(index: usize, jobs: &threads::Receiver<Job>, exchange: &Exchange<'_>) {
    let mut buffer = vec![0; exchange.request_bytes_max()];
    for job in jobs {
        let Job { chain, queue, ticket } = job;
        let head = chain.head_index();
        // A bug must not end the thread, and with it one day the last.
        let answered = || run(index, chain, &mut buffer, exchange);
        let written = catch_unwind(AssertUnwindSafe(answered)).unwrap_or(0);
        // Queues that were taken back, or lie outside of the memory: nobody waits.
        let _ = queue.add_used(head, written);
        if queue.needs_notification().unwrap_or(true) {
            let _ = queue.signal_used_queue();
        }
        drop(ticket);
    }
}

/// Answers one request; returns how many bytes of answer there are.
fn run(
    index: usize,
    chain: DescriptorChain<GuestMemoryLoadGuard<GuestMemoryMmap>>,
    buffer: &mut [u8],
    exchange: &Exchange<'_>,
) -> u32 {
    let memory = chain.memory();
    let parts = (chain.clone().reader(memory), chain.clone().writer(memory));
    let (Ok(mut request), Ok(writer)) = parts else { return 0 }; // Not in the memory (V1).
    let len = request.available_bytes().min(buffer.len());
    let Some(bytes) = buffer.get_mut(..len) else { return 0 };
    if request.read_exact(bytes).is_err() {
        return 0;
    }
    let mut answer = Room { writer, written: 0 };
    // One that was cut off because it is too long has less than it says, and is refused for that.
    exchange.answer(index, bytes, &mut answer);
    answer.written
}

/// The part of a request that is for its answer.
struct Room<'a> {
    writer: Writer<'a>,
    written: u32,
}

impl Answer for Room<'_> {
    fn put(&mut self, parts: &[IoSlice<'_>]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).fold(0, usize::saturating_add);
        if len > self.writer.available_bytes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        parts.iter().try_for_each(|part| self.writer.write_all(part))?;
        self.written = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        Ok(())
    }
}

/// Tells the threads of queues that their machine is gone.
#[derive(Default)]
pub(crate) struct Gone(AtomicBool);

impl Gone {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
