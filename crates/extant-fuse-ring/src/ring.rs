//! A ring, and the memory that the kernel copies requests to. This module has the only unsafe code
//! of the crate.
//!
//! # Shape
//!
//! A slot is memory for one request: a page with its headers, and its payload. The kernel owns a
//! slot from the submission of the command that offers it ([`Ring::offer`], [`Ring::commit`]) until
//! the completion of that command, which brings a request or reports that the mount is gone. In
//! between the kernel may write to it at any time, from inside system calls of this thread.
//!
//! # Invariants
//!
//! - R1. A slot's memory is accessed only while this side owns it, and only through a borrow of the
//!   ring, so that it cannot be offered meanwhile.
//! - R2. Memory that the kernel may still write to is never unmapped: a slot that did not come back
//!   is leaked.
//! - R3. A command points only into its slot, so no other memory has to outlive it.
//! - R4. A slot is committed by the number that the kernel gave its request, by which the kernel
//!   finds the slot. No two requests have the same number; requests that the server makes the
//!   kernel send, with numbers of its own, must have distinct numbers too.
//! - R5. The ring is restricted to commands to the FUSE device and to waiting for its bell, which
//!   the kernel enforces for its whole life. So it cannot circumvent a filter of system calls.
#![expect(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use io_uring::register::Restriction;
use io_uring::squeue::Entry128;
use io_uring::{IoUring, cqueue, opcode, types};
use rustix::mm::{MapFlags, ProtFlags};

use crate::bell::Bell;

/// Size of the header of a request, and of its answer, in bytes.
pub const HEADER_BYTES: usize = 128;
/// Size of the fixed part of a request, in bytes.
pub const OP_BYTES: usize = 128;
/// Offset of the kernel's entry with the length of the payload and the commit number.
const ENTRY_AT: usize = HEADER_BYTES + OP_BYTES;
const COMMIT_ID_AT: usize = ENTRY_AT + 8;
const PAYLOAD_LEN_AT: usize = ENTRY_AT + 16;
/// Size of the headers that the kernel knows, in bytes.
const HEADERS: usize = ENTRY_AT + 32;
/// Offset, behind the headers, of the description of the two ranges of a registration.
const RANGES_AT: usize = 512;
/// Bytes of a slot before its payload, which begins on a page.
const PAGE: usize = 4096;
/// `FUSE_IO_URING_CMD_REGISTER` and `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;
/// Number of commands that can wait for their submission.
const DEPTH: u32 = 8;
/// User data of the bell's completions.
const BELL: u64 = u64::MAX;
/// Offset of `len` in a submission, which `UringCmd80` cannot set.
const SQE_LEN_AT: usize = 24;

/// Identifies a slot of one ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SlotId(usize);

/// Event for which a ring woke.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A request is in the slot, which belongs to this side until it is committed.
    Request(SlotId),
    /// The slot came back without a request, with this Linux error number, and the kernel has
    /// forgotten it.
    Ended(SlotId, i32),
    /// The bell was rung.
    Bell,
}

/// A request in its slot.
#[derive(Debug)]
pub struct Message<'a> {
    /// The header of the request, to be replaced by the header of the answer.
    pub header: &'a mut [u8; HEADER_BYTES],
    /// The fixed part of the request.
    pub op: &'a [u8; OP_BYTES],
    /// The rest of the request in the first [`payload_len`](Message::payload_len) bytes, to be
    /// replaced by the answer.
    pub payload: &'a mut [u8],
    /// Number of bytes that the kernel put into `payload`, at most its length.
    pub payload_len: usize,
}

/// A page-aligned mapping of anonymous memory.
#[derive(Debug)]
struct Area {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an area is the only owner of its mapping.
unsafe impl Send for Area {}

impl Area {
    fn new(len: usize) -> io::Result<Area> {
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: no address is asked for, so nothing that exists is replaced.
        let start = unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), len, rights, flags)? };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Area { start, len })
    }

    /// # Safety
    ///
    /// No other code accesses the memory during the life of the result.
    unsafe fn bytes(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` bytes, zeroed at first and for reading and writing, until drop; that
        // nobody else touches them is the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Area {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length and owned by nobody else; slots that the kernel has do
        // not get here (R2).
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[derive(Debug)]
struct Slot {
    area: Area,
    queue: u16,
    /// Whether the kernel may write to it (R1, R2).
    is_away: bool,
}

/// The ring of one thread. Any thread may create it; the thread that called [`Ring::open`] uses it.
pub struct Ring {
    uring: IoUring<Entry128, cqueue::Entry>,
    /// The slots; the vector only grows, because a `SlotId` is an index.
    slots: Vec<Slot>,
    device: Option<OwnedFd>,
    payload_bytes: usize,
    bell: Arc<Bell>,
    /// Events of completions that were taken out of the ring.
    come: VecDeque<Event>,
}

impl Ring {
    /// Creates a ring whose slots will have at least `payload_bytes` of payload. It cannot be used
    /// before [`Ring::open`]; besides creating it, only that call and waiting need system calls
    /// that a sandbox may forbid.
    ///
    /// # Errors
    ///
    /// The system has no rings for this process, or none of this kind (Linux 6.1).
    pub fn new(payload_bytes: usize) -> io::Result<Ring> {
        let uring = IoUring::<Entry128, cqueue::Entry>::builder()
            .dontfork()
            .setup_r_disabled()
            .setup_single_issuer()
            // Not `DEFER_TASKRUN`: what comes for a thread that was killed would wait for the ring to
            // be closed, which the last thread does, which may wait for that.
            .setup_coop_taskrun()
            .setup_taskrun_flag()
            .setup_submit_all()
            .build(DEPTH)?;
        uring.submitter().register_restrictions(&mut [
            Restriction::sqe_op(opcode::UringCmd80::CODE),
            Restriction::sqe_op(opcode::PollAdd::CODE),
        ])?;
        Ok(Ring {
            uring,
            slots: Vec::new(),
            device: None,
            payload_bytes: payload_bytes.next_multiple_of(PAGE),
            bell: Arc::new(Bell::new()?),
            come: VecDeque::new(),
        })
    }

    /// Opens the ring for the calling thread alone, for requests of the mount of `device`.
    ///
    /// # Errors
    ///
    /// The ring is open already, or the system refuses.
    pub fn open(&mut self, device: OwnedFd) -> io::Result<()> {
        self.uring.submitter().register_enable_rings()?;
        self.device = Some(device);
        self.listen()
    }

    /// Returns the bell that wakes the thread waiting in this ring.
    pub fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Adds a slot for requests of queue `queue` and offers it to the kernel, at the next
    /// submission.
    ///
    /// # Errors
    ///
    /// No memory, or the ring is not open.
    pub fn offer(&mut self, queue: u16) -> io::Result<SlotId> {
        let id = SlotId(self.slots.len());
        let mut area = Area::new(PAGE + self.payload_bytes)?;
        let start = area.start.as_ptr() as u64;
        // Addresses and lengths of the two ranges (R3).
        let ranges =
            [start, HEADERS as u64, start.saturating_add(PAGE as u64), self.payload_bytes as u64];
        let mut described = [0; 32];
        for (to, word) in described.chunks_exact_mut(8).zip(ranges) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        // SAFETY: the kernel does not know the area yet.
        let bytes = unsafe { area.bytes() };
        bytes[RANGES_AT..RANGES_AT + 32].copy_from_slice(&described);
        self.slots.push(Slot { area, queue, is_away: false });
        let ranges_at = start.saturating_add(RANGES_AT as u64);
        self.give(id, REGISTER, 0, ranges_at)?;
        Ok(id)
    }

    /// Commits a slot with the answer that was put into it, `payload_len` bytes of payload, and
    /// asks for the next request, at the next submission.
    ///
    /// # Errors
    ///
    /// The slot belongs to the kernel, or has less payload.
    pub fn commit(&mut self, id: SlotId, payload_len: usize) -> io::Result<()> {
        let slot = self.slots.get_mut(id.0).filter(|slot| !slot.is_away);
        let slot = slot.ok_or(io::ErrorKind::InvalidInput)?;
        if payload_len > slot.area.len - PAGE {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: it is ours (R1).
        let bytes = unsafe { slot.area.bytes() };
        let len = (payload_len as u32).to_ne_bytes();
        bytes[PAYLOAD_LEN_AT..PAYLOAD_LEN_AT + 4].copy_from_slice(&len);
        let commit_id = word(bytes, COMMIT_ID_AT);
        self.give(id, COMMIT_AND_FETCH, commit_id, 0)
    }

    /// Returns the request in a slot; `None` while the kernel owns the slot.
    pub fn message(&mut self, id: SlotId) -> Option<Message<'_>> {
        let slot = self.slots.get_mut(id.0).filter(|slot| !slot.is_away)?;
        // SAFETY: it is ours, and stays so while this borrow of the ring lasts (R1).
        let (head, payload) = unsafe { slot.area.bytes() }.split_at_mut_checked(PAGE)?;
        let (header, rest) = head.split_first_chunk_mut::<HEADER_BYTES>()?;
        let (op, rest) = rest.split_first_chunk_mut::<OP_BYTES>()?;
        let said = rest.get(16..20)?.try_into().ok().map(u32::from_ne_bytes)?;
        let payload_len = (said as usize).min(payload.len());
        Some(Message { header, op, payload, payload_len })
    }

    /// Returns the queue that a slot serves.
    pub fn queue(&self, id: SlotId) -> Option<u16> {
        self.slots.get(id.0).map(|slot| slot.queue)
    }

    /// Returns the number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Returns the number of slots that the kernel owns: with none, no request will come.
    pub fn away(&self) -> usize {
        self.slots.iter().filter(|slot| slot.is_away).count()
    }

    /// Submits the commands so far, without waiting.
    ///
    /// # Errors
    ///
    /// The system's error; the ring is unusable then.
    pub fn submit(&mut self) -> io::Result<()> {
        self.enter(0)
    }

    /// Returns whether [`Ring::wait`] would return at once. Makes no system call, and ignores
    /// commands that were not submitted.
    pub fn has_event(&mut self) -> bool {
        !self.come.is_empty()
            || self.uring.submission().taskrun()
            || !self.uring.completion().is_empty()
    }

    /// Submits the commands so far and waits for an event.
    ///
    /// # Errors
    ///
    /// The system's error; the ring is unusable then.
    pub fn wait(&mut self) -> io::Result<Event> {
        loop {
            if let Some(event) = self.come.pop_front() {
                // The commands are submitted now, so that they do not wait until this event is
                // handled.
                if !self.uring.submission().is_empty() {
                    self.enter(0)?;
                }
                return Ok(event);
            }
            self.collect()?;
            if self.come.is_empty() {
                self.enter(1)?;
                self.collect()?;
            }
        }
    }

    fn enter(&self, wanted: usize) -> io::Result<()> {
        match self.uring.submitter().submit_and_wait(wanted) {
            Ok(_) => Ok(()),
            // EBUSY: completions must be taken first.
            Err(error) => match error.raw_os_error() {
                Some(libc::EINTR | libc::EAGAIN | libc::EBUSY) => Ok(()),
                _ => Err(error),
            },
        }
    }

    /// Takes completions out of the ring; their slots belong to this side again.
    fn collect(&mut self) -> io::Result<()> {
        let mut rang = false;
        for done in self.uring.completion() {
            if done.user_data() == BELL {
                rang = true;
                continue;
            }
            let index = done.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index) else { continue };
            slot.is_away = false;
            self.come.push_back(match done.result() {
                0.. => Event::Request(SlotId(index)),
                error => Event::Ended(SlotId(index), error.saturating_neg()),
            });
        }
        if rang {
            self.bell.hush();
            self.come.push_back(Event::Bell);
            self.listen()?;
        }
        Ok(())
    }

    /// Asks for one completion when the bell rings.
    fn listen(&mut self) -> io::Result<()> {
        let bell = types::Fd(self.bell.as_fd().as_raw_fd());
        let poll = opcode::PollAdd::new(bell, u32::from(libc::POLLIN.cast_unsigned())).build();
        // SAFETY: the command has no memory, and the bell is open as long as the ring is.
        unsafe { self.push(&Entry128::from(poll.user_data(BELL))) }
    }

    /// Offers a slot to the kernel.
    fn give(&mut self, id: SlotId, what: u32, commit_id: u64, ranges: u64) -> io::Result<()> {
        let device = self.device.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let device = types::Fd(device.as_raw_fd());
        let slot = self.slots.get_mut(id.0).ok_or(io::ErrorKind::InvalidInput)?;
        let mut command = [0; 80];
        command[8..16].copy_from_slice(&commit_id.to_ne_bytes());
        command[16..18].copy_from_slice(&slot.queue.to_ne_bytes());
        let entry = opcode::UringCmd80::new(device, what).cmd(command).addr(Some(ranges)).build();
        let mut entry = entry.user_data(id.0 as u64);
        if what == REGISTER {
            // SAFETY: a submission is 128 bytes of integers (asserted below), of which `len` are four.
            unsafe {
                let len = (&raw mut entry).cast::<u8>().add(SQE_LEN_AT).cast::<u32>();
                len.write_unaligned(2);
            }
        }
        slot.is_away = true;
        // SAFETY: the memory that the command points to, and that the kernel writes to until the
        // completion, is the slot's, which is away from now on and stays mapped (R2, R3).
        let pushed = unsafe { self.push(&entry) };
        if pushed.is_err()
            && let Some(slot) = self.slots.get_mut(id.0)
        {
            slot.is_away = false;
        }
        pushed
    }

    /// # Safety
    ///
    /// As for [`io_uring::SubmissionQueue::push`]: the memory that the command points to stays
    /// valid until it completes.
    unsafe fn push(&mut self, entry: &Entry128) -> io::Result<()> {
        // SAFETY: the caller's promise.
        if unsafe { self.uring.submission().push(entry) }.is_ok() {
            return Ok(());
        }
        self.enter(0)?;
        // SAFETY: the caller's promise.
        unsafe { self.uring.submission().push(entry) }
            .map_err(|_| io::ErrorKind::OutOfMemory.into())
    }
}

const _: () = assert!(size_of::<Entry128>() == 128);
const _: () = assert!(HEADERS == 288 && HEADERS <= RANGES_AT && RANGES_AT + 32 <= PAGE);

impl Drop for Ring {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            if slot.is_away {
                std::mem::forget(slot); // R2
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let part = bytes.get(at..at + 8).and_then(|part| part.try_into().ok());
    part.map_or(0, u64::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Option<Ring> {
        Ring::new(8192).inspect_err(|error| println!("skipped: no rings here: {error}")).ok()
    }

    #[test]
    fn a_bell_wakes_who_waits_once() {
        let Some(mut ring) = ring() else { return };
        ring.open(std::fs::File::open("/dev/null").unwrap().into()).unwrap();
        let bell = ring.bell();
        for _ in 0..3 {
            bell.ring();
            bell.ring();
            assert_eq!(ring.wait().unwrap(), Event::Bell);
        }
        assert!(!ring.has_event());
        assert_eq!(ring.away(), 0);
    }

    #[test]
    fn what_is_no_fuse_device_gives_the_slot_back() {
        let Some(mut ring) = ring() else { return };
        ring.open(tempfile()).unwrap();
        let slot = ring.offer(0).unwrap();
        assert!(ring.message(slot).is_none(), "it is the kernel's");
        assert!(ring.commit(slot, 0).is_err());
        assert_eq!(ring.away(), 1);
        let Event::Ended(back, errno) = ring.wait().unwrap() else { panic!("a request?") };
        assert_eq!(back, slot);
        assert!(errno > 0, "{errno}");
        assert_eq!(ring.away(), 0);
        let message = ring.message(slot).unwrap();
        assert_eq!((message.payload.len(), message.payload_len), (8192, 0));
        assert_eq!(message.payload.as_ptr().addr() % PAGE, 0);
        message.payload.fill(7);
        assert!(ring.commit(slot, 8193).is_err(), "more than there is");
        assert_eq!(ring.queue(slot), Some(0));
    }

    #[test]
    fn nothing_can_be_done_before_it_is_open() {
        let Some(mut ring) = ring() else { return };
        assert!(ring.offer(0).is_err());
        assert_eq!(ring.away(), 0);
        assert!(ring.wait().is_err());
    }

    fn tempfile() -> OwnedFd {
        let name = c"ring";
        rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC).unwrap()
    }
}
