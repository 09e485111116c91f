//! The device of one machine, as the owner of the machine sees it.

use std::io;
use std::sync::Arc;

use extant_sync::threads;
use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;
use vhost_user_backend::{VhostUserBackend, VringRwLock, VringT as _};
use virtio_queue::QueueT as _;
use vm_memory::{GuestAddressSpace as _, GuestMemoryAtomic, GuestMemoryMmap};
use vmm_sys_util::epoll::EventSet;
use vmm_sys_util::event::new_event_consumer_and_notifier;
use vmm_sys_util::event::{EventConsumer, EventFlag, EventNotifier};

use crate::pool::{Gone, Job, UnderWay};

/// The longest queue, in descriptors. A request of the largest size needs about 260.
pub const QUEUE_LEN_MAX: usize = 1024;

/// Bits of virtio: version 1, tables of descriptors apart, notifications by position.
const VERSION_1: u64 = 1 << 32;
const INDIRECT: u64 = 1 << 28;
const EVENT_IDX: u64 = 1 << 29;
/// The owner may ask for features of the protocol of the socket.
const PROTOCOL: u64 = 1 << 30;

/// See the head of this module.
pub(crate) struct Device {
    memory: GuestMemoryAtomic<GuestMemoryMmap>,
    jobs: threads::Sender<Job>,
    under_way: Vec<Arc<UnderWay>>,
    gone: Arc<Gone>,
}

impl Device {
    /// A device with `queues` queues, the first of which is for urgent requests. Requests go to `jobs`.
    pub(crate) fn new(
        memory: GuestMemoryAtomic<GuestMemoryMmap>,
        queues: usize,
        jobs: threads::Sender<Job>,
    ) -> Device {
        let under_way = (0..queues).map(|_| Arc::new(UnderWay::new())).collect();
        Device { memory, jobs, under_way, gone: Arc::default() }
    }

    /// The machine is gone: no more requests are taken.
    pub(crate) fn stop(&self) {
        self.gone.set();
    }

    /// Waits for the requests that were taken.
    pub(crate) fn finish(&self) {
        self.under_way.iter().for_each(|queue| queue.wait());
    }

    /// Takes what is in a queue. Returns when it is empty, or makes no sense (V1).
    fn drain(&self, number: usize, queue: &VringRwLock) {
        let Some(under_way) = self.under_way.get(number) else { return };
        let mut was_empty = false;
        while !self.gone.is_set() {
            let _ = queue.disable_notification();
            let mut taken = 0usize;
            while !self.gone.is_set() {
                // Counted before it is taken, so that nobody thinks there is none (V4).
                let ticket = under_way.enter();
                let memory = self.memory.memory();
                let Some(chain) = queue.get_mut().get_queue_mut().pop_descriptor_chain(memory)
                else {
                    break;
                };
                taken += 1;
                let job = Job { chain, queue: queue.clone(), ticket };
                if self.jobs.send(job).is_err() {
                    return; // The end of serving.
                }
            }
            // What came while notifications were off is told by nobody, so it is looked for once more, even after
            // nothing was found. A position from which nothing can be taken says "more" for ever: once is enough.
            match queue.enable_notification() {
                Ok(true) if taken > 0 || !was_empty => was_empty = taken == 0,
                _ => return,
            }
        }
    }
}

impl VhostUserBackend for Device {
    type Bitmap = ();
    type Vring = VringRwLock;

    fn num_queues(&self) -> usize {
        self.under_way.len()
    }

    fn max_queue_size(&self) -> usize {
        QUEUE_LEN_MAX
    }

    fn features(&self) -> u64 {
        VERSION_1 | INDIRECT | EVENT_IDX | PROTOCOL
    }

    fn protocol_features(&self) -> Protocol {
        Protocol::MQ | Protocol::REPLY_ACK | Protocol::CONFIGURE_MEM_SLOTS
    }

    fn set_event_idx(&self, _: bool) {} // The queues know.

    fn update_memory(&self, _: GuestMemoryAtomic<GuestMemoryMmap>) -> io::Result<()> {
        Ok(()) // The same cell, which has it already.
    }

    /// One thread for all: it only takes. Each leaves a descriptor open for as long as the process lives.
    fn queues_per_thread(&self) -> Vec<u64> {
        vec![u64::MAX]
    }

    fn exit_event(&self, _: usize) -> Option<(EventConsumer, EventNotifier)> {
        new_event_consumer_and_notifier(EventFlag::NONBLOCK | EventFlag::CLOEXEC).ok()
    }

    fn stop_vring(&self, queue: u32) -> io::Result<()> {
        if let Some(under_way) = self.under_way.get(queue as usize) {
            under_way.wait();
        }
        Ok(())
    }

    fn handle_event(
        &self,
        event: u16,
        _: EventSet,
        queues: &[VringRwLock],
        _: usize,
    ) -> io::Result<()> {
        // An error would end the thread, and with it the queues.
        if let Some(queue) = queues.get(usize::from(event)) {
            self.drain(usize::from(event), queue);
        }
        Ok(())
    }
}
