//! The program that runs a machine, and the machine: memory, queues, and the kernel's side of the protocol.
// Each test program uses a part of it.
#![allow(dead_code)]

use std::cell::Cell;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{Ordering, fence};

use vhost::vhost_user::message::VhostUserProtocolFeatures as Protocol;
use vhost::vhost_user::{Frontend, VhostUserFrontend as _};
use vhost::{VhostBackend as _, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::GuestRegionMmap;
use vm_memory::mmap::MmapRegion;
use vm_memory::{
    Address as _, Bytes as _, FileOffset, GuestAddress, GuestMemoryRegion as _, MemoryRegionAddress,
};
use vmm_sys_util::epoll::{ControlOperation, Epoll, EpollEvent, EventSet};
use vmm_sys_util::eventfd::EventFd;

/// Numbers of requests.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
}

const QUEUES: usize = 3;
const LEN: u16 = 64;
const MEMORY: u64 = 32 << 20;
/// Tables of a queue, and the place for what its descriptors point to.
const TABLES: u64 = 0x1_0000;
const DATA: u64 = 0x10_0000;
const DATA_LEN: u64 = 8 << 20;
const AVAILABLE: u64 = 0x1000;
const USED: u64 = 0x2000;

/// One descriptor.
#[derive(Clone)]
pub(crate) struct Part {
    at: Option<u64>,
    bytes: Vec<u8>,
    len: u32,
    flags: u16,
}

impl Part {
    pub(crate) fn readable(bytes: &[u8]) -> Part {
        Part { at: None, bytes: bytes.to_vec(), len: bytes.len() as u32, flags: 0 }
    }

    pub(crate) fn writable(len: u32) -> Part {
        Part { at: None, bytes: vec![0; len as usize], len, flags: 2 }
    }

    pub(crate) fn with_len(self, len: u32) -> Part {
        Part { len, ..self }
    }

    pub(crate) fn at(self, at: u64) -> Part {
        Part { at: Some(at), ..self }
    }

    pub(crate) fn into_writable(self) -> Part {
        Part { flags: 2, ..self }
    }

    /// A table of descriptors.
    pub(crate) fn into_table(self) -> Part {
        Part { flags: 4, ..self }
    }
}

/// Descriptors that belong together.
pub(crate) struct Chain {
    parts: Vec<Part>,
    next: Vec<u16>,
}

impl Chain {
    pub(crate) fn of(parts: &[Part]) -> Chain {
        Chain { parts: parts.to_vec(), next: (1..=parts.len() as u16).collect() }
    }

    /// The part `at` goes on with `next`: one of them, or no descriptor at all.
    pub(crate) fn with_next(mut self, at: usize, next: u16) -> Chain {
        self.parts[at].flags |= 1;
        self.next[at] = next;
        self
    }
}

struct Queue {
    kick: EventFd,
    call: EventFd,
    calls: Epoll,
    put: Cell<u16>,
    free: Cell<u16>,
    data: Cell<u64>,
}

struct Inner {
    frontend: Frontend,
    memory: GuestRegionMmap,
    queues: Vec<Queue>,
    unique: Cell<u64>,
}

/// A machine, and the queue that is used.
#[derive(Clone)]
pub(crate) struct Machine(Rc<Inner>, usize);

type Answered = Result<Vec<u8>, i32>;

impl Machine {
    /// Connects, and sets up everything.
    pub(crate) fn start(socket: &Path) -> Machine {
        let stream = UnixStream::connect(socket).unwrap();
        let mut frontend = Frontend::from_stream(stream, QUEUES as u64);
        frontend.set_owner().unwrap();
        let features = frontend.get_features().unwrap();
        let wanted = 1 << 32 | 1 << 30 | 1 << 28;
        assert_eq!(features & wanted, wanted);
        frontend.set_features(wanted).unwrap();
        let protocol = frontend.get_protocol_features().unwrap();
        assert!(protocol.contains(Protocol::MQ | Protocol::REPLY_ACK));
        frontend.set_protocol_features(Protocol::MQ | Protocol::REPLY_ACK).unwrap();
        frontend.set_hdr_flags(vhost::vhost_user::message::VhostUserHeaderFlag::NEED_REPLY);
        assert!(frontend.get_queue_num().unwrap() >= QUEUES as u64);
        let file = rustix::fs::memfd_create("guest", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let file = File::from(file);
        file.set_len(MEMORY).unwrap();
        let region = MmapRegion::from_file(FileOffset::new(file, 0), MEMORY as usize).unwrap();
        let memory = GuestRegionMmap::new(region, GuestAddress(0)).unwrap();
        let told = VhostUserMemoryRegionInfo::from_guest_region(&memory).unwrap();
        frontend.set_mem_table(&[told]).unwrap();
        let queue = |number: usize| {
            let (kick, call) = (EventFd::new(0x800).unwrap(), EventFd::new(0x800).unwrap());
            let at = told.userspace_addr + number as u64 * TABLES;
            frontend.set_vring_num(number, LEN).unwrap();
            frontend.set_vring_base(number, 0).unwrap();
            let addresses = VringConfigData {
                queue_max_size: LEN,
                queue_size: LEN,
                desc_table_addr: at,
                avail_ring_addr: at + AVAILABLE,
                used_ring_addr: at + USED,
                ..VringConfigData::default()
            };
            frontend.set_vring_addr(number, &addresses).unwrap();
            frontend.set_vring_call(number, &call).unwrap();
            frontend.set_vring_kick(number, &kick).unwrap();
            frontend.set_vring_enable(number, true).unwrap();
            let calls = Epoll::new().unwrap();
            let event = EpollEvent::new(EventSet::IN, 0);
            calls.ctl(ControlOperation::Add, call.as_raw_fd(), event).unwrap();
            Queue { kick, call, calls, put: Cell::new(0), free: Cell::new(0), data: Cell::new(0) }
        };
        let queues = (0..QUEUES).map(queue).collect();
        Machine(Rc::new(Inner { frontend, memory, queues, unique: Cell::new(2) }), 1)
    }

    /// The same machine, on another queue.
    pub(crate) fn on(&self, queue: usize) -> Machine {
        Machine(Rc::clone(&self.0), queue)
    }

    /// The end of its memory.
    pub(crate) fn end(&self) -> u64 {
        self.0.memory.start_addr().raw_value() + MEMORY
    }

    fn queue(&self) -> &Queue {
        &self.0.queues[self.1]
    }

    fn set<T: vm_memory::ByteValued>(&self, at: u64, value: T) {
        self.0.memory.write_obj(value, MemoryRegionAddress(at)).unwrap();
    }

    fn table(&self, at: u64) -> u64 {
        self.1 as u64 * TABLES + at
    }

    /// How many requests came back.
    pub(crate) fn used(&self) -> u16 {
        let at = MemoryRegionAddress(self.table(USED + 2));
        self.0.memory.load(at, Ordering::Acquire).unwrap()
    }

    /// How many requests there were.
    pub(crate) fn put_so_far(&self) -> u16 {
        self.queue().put.get()
    }

    fn publish(&self, put: u16) {
        let at = MemoryRegionAddress(self.table(AVAILABLE + 2));
        self.0.memory.store(put, at, Ordering::Release).unwrap();
        fence(Ordering::SeqCst);
        // As kernels do: who says that it is looking anyway is not told.
        let flags = MemoryRegionAddress(self.table(USED));
        if self.0.memory.load::<u16>(flags, Ordering::Relaxed).unwrap() & 1 == 0 {
            self.kick();
        }
    }

    /// Says that there is something, whether there is or not.
    pub(crate) fn kick(&self) {
        self.queue().kick.write(1).unwrap();
    }

    /// Says that there are many more requests.
    pub(crate) fn skip(&self, count: u16) {
        self.publish(self.put_so_far().wrapping_add(count));
    }

    /// Puts a chain in the queue, and returns where its parts lie.
    pub(crate) fn put_and_leave(&self, chain: Chain) -> Vec<u64> {
        let queue = self.queue();
        if self.used() == queue.put.get() {
            queue.free.set(0);
            queue.data.set(0);
        }
        let head = queue.free.get();
        let count = chain.parts.len() as u16;
        assert!(head + count <= LEN);
        queue.free.set(head + count);
        let mut places = Vec::new();
        for (index, part) in chain.parts.iter().enumerate() {
            let own = DATA + self.1 as u64 * DATA_LEN + queue.data.get();
            queue.data.set(queue.data.get() + (part.bytes.len() as u64).next_multiple_of(16));
            assert!(queue.data.get() <= DATA_LEN);
            self.0.memory.write_slice(&part.bytes, MemoryRegionAddress(own)).unwrap();
            let descriptor = self.table(u64::from(head + index as u16) * 16);
            let has_next = u16::from(index + 1 < chain.parts.len());
            let next = match chain.next[index] {
                inside if inside <= count => head + inside,
                outside => outside,
            };
            self.set(descriptor, part.at.unwrap_or(own));
            self.set(descriptor + 8, part.len);
            self.set(descriptor + 12, part.flags | has_next);
            self.set(descriptor + 14, next);
            places.push(own);
        }
        let put = queue.put.get();
        self.set(self.table(AVAILABLE + 4 + u64::from(put % LEN) * 2), head);
        queue.put.set(put.wrapping_add(1));
        self.publish(put.wrapping_add(1));
        places
    }

    /// Waits until all that was put came back.
    fn wait(&self) {
        while self.used() != self.put_so_far() {
            let mut events = [EpollEvent::default()];
            let came = self.queue().calls.wait(30_000, &mut events);
            assert_eq!(came.unwrap(), 1, "no notification");
            let _ = self.queue().call.read();
        }
    }

    /// Puts a chain and waits; the length of its answer, of a chain that came back.
    pub(crate) fn put(&self, chain: Chain) -> Option<u32> {
        self.put_and_leave(chain);
        self.wait();
        self.last_len()
    }

    fn last_len(&self) -> Option<u32> {
        let last = u64::from(self.used().wrapping_sub(1) % LEN);
        self.0.memory.read_obj(MemoryRegionAddress(self.table(USED + 4 + last * 8 + 4))).ok()
    }

    /// The queue is stopped, as when a machine is suspended; how many requests were taken from it.
    pub(crate) fn take_back_queue(&self) -> u32 {
        self.0.frontend.get_vring_base(self.1).unwrap()
    }

    /// A request of the protocol.
    pub(crate) fn request(&self, opcode: u32, node: u64, body: &[&[u8]]) -> Vec<u8> {
        let unique = self.0.unique.get();
        self.0.unique.set(unique + 2);
        let body = body.concat();
        let mut bytes = Vec::new();
        bytes.extend_from_slice(&(40 + body.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&opcode.to_ne_bytes());
        bytes.extend_from_slice(&unique.to_ne_bytes());
        bytes.extend_from_slice(&node.to_ne_bytes());
        // User, group, thread, extensions.
        bytes.extend_from_slice(&[[0; 4], [0; 4], 1u32.to_ne_bytes(), [0; 4]].concat());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// Asks, with room for so many bytes of an answer.
    pub(crate) fn ask(&self, opcode: u32, node: u64, body: &[&[u8]], room: u32) -> Answered {
        let bytes = self.request(opcode, node, body);
        let chain = Chain::of(&[Part::readable(&bytes), Part::writable(16 + room)]);
        let place = self.put_and_leave(chain)[1];
        self.wait();
        let len = self.last_len().unwrap();
        assert!(len >= 16, "no answer to {opcode}");
        let mut answer = vec![0; len as usize];
        self.0.memory.read_slice(&mut answer, MemoryRegionAddress(place)).unwrap();
        assert_eq!(answer[..4], len.to_ne_bytes());
        assert_eq!(answer[8..16], bytes[8..16]);
        match i32::from_ne_bytes(answer[4..8].try_into().unwrap()) {
            0 => Ok(answer.split_off(16)),
            error => Err(-error),
        }
    }

    /// A request that has no answer.
    pub(crate) fn ask_silently(&self, opcode: u32, node: u64, body: &[&[u8]]) {
        let bytes = self.request(opcode, node, body);
        assert_eq!(self.put(Chain::of(&[Part::readable(&bytes)])), Some(0));
    }

    /// The first request: everything that a kernel could offer.
    pub(crate) fn init(&self) -> Vec<u8> {
        let words = [7u32, 38, 1 << 17, u32::MAX].map(u32::to_ne_bytes).concat();
        self.ask(op::INIT, 0, &[&words, &[0; 48]], 64).unwrap()
    }

    pub(crate) fn create(&self, dir: u64, name: &str) -> (u64, u64) {
        let words = [0o102u32, 0o100_644, 0o22, 0].map(u32::to_ne_bytes).concat();
        let made = self.ask(op::CREATE, dir, &[&words, name.as_bytes(), b"\0"], 144).unwrap();
        (word(&made, 0), word(&made, 128))
    }

    /// The node and the size.
    pub(crate) fn lookup(&self, dir: u64, name: &str) -> Result<(u64, u64), i32> {
        let entry = self.ask(op::LOOKUP, dir, &[name.as_bytes(), b"\0"], 128)?;
        match word(&entry, 0) {
            0 => Err(2),
            node => Ok((node, word(&entry, 48))),
        }
    }

    pub(crate) fn open(&self, node: u64, flags: u32) -> Result<u64, i32> {
        let words = [flags, 0].map(u32::to_ne_bytes).concat();
        self.ask(op::OPEN, node, &[&words], 16).map(|out| word(&out, 0))
    }

    pub(crate) fn read_in(&self, file: u64, offset: u64, len: u32) -> Vec<u8> {
        let size = u64::from(len).to_ne_bytes();
        [&file.to_ne_bytes()[..], &offset.to_ne_bytes(), &size, &[0; 16]].concat()
    }

    pub(crate) fn read(&self, node: u64, file: u64, offset: u64, len: u32) -> Answered {
        self.ask(op::READ, node, &[&self.read_in(file, offset, len)], len)
    }

    pub(crate) fn write_in(&self, file: u64, offset: u64, len: u32) -> Vec<u8> {
        self.read_in(file, offset, len)
    }

    pub(crate) fn write(
        &self,
        node: u64,
        file: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<u32, i32> {
        let head = self.write_in(file, offset, bytes.len() as u32);
        let out = self.ask(op::WRITE, node, &[&head, bytes], 8)?;
        Ok(u32::from_ne_bytes(out[..4].try_into().unwrap()))
    }

    /// Sets the permissions; returns for how many seconds attributes may be kept.
    pub(crate) fn set_mode(&self, node: u64, mode: u32) -> u64 {
        let mut body = [0u8; 88];
        body[0] = 1;
        body[68..72].copy_from_slice(&(0o100_000 | mode).to_ne_bytes());
        word(&self.ask(op::SETATTR, node, &[&body], 104).unwrap(), 0)
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}
