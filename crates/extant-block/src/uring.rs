//! io_uring for files and disks.
//!
//! # Invariants
//!
//! - G1. The memory that a request names belongs to an operation in a slot, and the slot is not looked at from
//!   the submission of the request until its completion was taken out of the ring.
//! - G2. That memory is not freed before: a queue that is dropped waits, and if the system does not let it wait,
//!   leaves the memory to the end of the process.
//! - G3. The ring can read, write and sync and nothing else can be added, where the kernel knows such
//!   restrictions: it is no way around a filter of system calls.
#![expect(unsafe_code)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use extant_sync::check_may_wait;
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

use crate::buffer::{AlignedBuffer, BUFFER_ALIGN};
use crate::device::{BlockDevice, check_range};
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::operation::{Completion, Operation};
use crate::queue::{Engine, Finished, Queue, QueueOptions, Wait};

/// How often the system may say "again" without any progress of an operation.
const RETRIES_MAX: u32 = 100;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// An operation that the queue has.
struct Slot {
    tag: u64,
    operation: Operation,
    /// Bytes that were moved.
    done: usize,
    retries: u32,
    /// Past the page cache.
    is_direct: bool,
    /// The kernel may touch its memory (G1).
    is_away: bool,
}

/// One thread's ring over a file.
pub(crate) struct Uring<'d> {
    device: &'d dyn BlockDevice,
    /// Its bytes.
    file: &'d File,
    uring: IoUring,
    /// As many as the depth; never longer, so it never moves.
    slots: Vec<Option<Slot>>,
    /// Slots without an operation.
    free: Vec<usize>,
    /// Slots that nobody has submitted yet.
    pushed: Vec<usize>,
    /// Slots whose next request is to be given to the kernel.
    ready: VecDeque<usize>,
    finished: VecDeque<Finished>,
    /// Slots that are away.
    away: usize,
    len: usize,
    /// The system takes nothing any more, and what it may still say is about operations that were given up.
    is_broken: bool,
    transfer_max: usize,
    /// The same file past the page cache, and what offsets and lengths have to be aligned to there.
    direct: Option<(File, u64)>,
}

impl<'d> Uring<'d> {
    /// A ring, if the system gives one, for a device whose bytes are those of `file`.
    pub(crate) fn new(
        device: &'d dyn BlockDevice,
        file: &'d File,
        options: &QueueOptions,
    ) -> io::Result<Uring<'d>> {
        // Files are opened so that a fifo cannot keep anybody waiting. Where the host's file system cannot try
        // without waiting (FUSE, some network ones), a ring would answer "again" for ever.
        let flags = rustix::fs::fcntl_getfl(file)?;
        rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK)?;
        let depth = options.depth;
        let entries = u32::try_from(depth.next_power_of_two()).unwrap_or(u32::MAX);
        let uring = restricted(entries).or_else(|_| IoUring::new(entries))?;
        let mut slots = Vec::new();
        slots.resize_with(depth, || None);
        Ok(Uring {
            device,
            file,
            uring,
            slots,
            free: (0..depth).rev().collect(),
            pushed: Vec::new(),
            ready: VecDeque::new(),
            finished: VecDeque::new(),
            away: 0,
            len: 0,
            is_broken: false,
            transfer_max: options.transfer_max,
            direct: if options.direct { past_the_cache(device, file) } else { None },
        })
    }

    /// The operation of a slot has ended; the slot is free.
    fn finish(&mut self, index: usize, result: Result<(), DeviceFault>) {
        let Some(Slot { tag, operation, .. }) = self.slots.get_mut(index).and_then(Option::take)
        else {
            return;
        };
        self.free.push(index);
        let result = result.map_err(|fault| {
            let (offset, len) = (operation.offset(), operation.length());
            DeviceError::new(self.device.describe(), operation.kind(), offset, len, fault)
        });
        self.hand_back(tag, operation, result);
    }

    fn hand_back(&mut self, tag: u64, operation: Operation, result: Result<(), DeviceError>) {
        self.finished.push_back(Finished { tag, completion: Completion { operation, result } });
    }

    /// What has no request of its own is done at once. Else the operation comes back.
    fn run_at_once(&self, operation: &Operation) -> Option<Result<(), DeviceError>> {
        let (kind, offset, len) = (operation.kind(), operation.offset(), operation.length());
        if let Err(error) = check_range(self.device, kind, offset, len) {
            return Some(Err(error));
        }
        match kind {
            OperationKind::Discard => Some(self.device.discard(offset, len)),
            OperationKind::WriteZeroes => Some(self.device.write_zeroes(offset, len)),
            OperationKind::Flush => self.device.is_read_only().then_some(Ok(())),
            _ => (len == 0).then_some(Ok(())),
        }
    }

    fn can_be_direct(&self, operation: &Operation) -> bool {
        let Some((_, unit)) = &self.direct else { return false };
        let is_data = matches!(operation.kind(), OperationKind::Read | OperationKind::Write);
        is_data
            && operation.offset().is_multiple_of(*unit)
            && operation.length().is_multiple_of(*unit)
            && (self.transfer_max as u64).is_multiple_of(*unit)
    }

    /// The request that brings a slot on, which is away from now on.
    fn request(&mut self, index: usize) -> Option<squeue::Entry> {
        let file = self.file.as_raw_fd();
        let past = self.direct.as_ref().map(|(file, _)| file.as_raw_fd());
        let slot = self.slots.get_mut(index)?.as_mut()?;
        let fd = types::Fd(past.filter(|_| slot.is_direct).unwrap_or(file) as RawFd);
        let (done, most) = (slot.done, self.transfer_max);
        let part = |len: usize| u32::try_from((len - done).min(most)).unwrap_or(1 << 30);
        let entry = match &mut slot.operation {
            Operation::Read { offset, buffer } => {
                let len = part(buffer.len());
                let bytes = buffer[done..].as_mut_ptr();
                opcode::Read::new(fd, bytes, len).offset(*offset + done as u64).build()
            }
            Operation::Write { offset, buffer, fua } => {
                let len = part(buffer.len());
                let flags = if *fua { ReadWriteFlags::DSYNC.bits().cast_signed() } else { 0 };
                let write = opcode::Write::new(fd, buffer[done..].as_ptr(), len);
                write.offset(*offset + done as u64).rw_flags(flags).build()
            }
            _ => opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build(),
        };
        slot.is_away = true;
        self.away += 1;
        Some(entry.user_data(index as u64))
    }

    fn enter(&mut self, wanted: usize) {
        match self.uring.submitter().submit_and_wait(wanted) {
            Ok(_) => {}
            // EBUSY: completions must be taken first.
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY)) => {}
            Err(error) => self.give_up(&error),
        }
    }

    /// The system does not take or give anything any more: everything has failed, and memory that it may
    /// still write to is left to it (G2).
    fn give_up(&mut self, error: &io::Error) {
        self.is_broken = true;
        self.ready.clear();
        self.pushed.clear();
        for index in 0..self.slots.len() {
            let fault = DeviceFault::Io(match error.raw_os_error() {
                Some(errno) => io::Error::from_raw_os_error(errno),
                None => io::Error::from(error.kind()),
            });
            let slot = self.slots[index].as_mut();
            if let Some(slot) = slot.filter(|slot| slot.is_away) {
                leave(&mut slot.operation);
            }
            self.finish(index, Err(fault));
        }
        self.away = 0;
    }

    /// Takes completions out of the ring: from here on their slots are ours.
    fn collect(&mut self) {
        let done: Vec<(u64, i32)> =
            self.uring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (index, result) in done {
            let index = index as usize;
            if self.is_broken {
                continue;
            }
            let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else { continue };
            slot.is_away = false;
            self.away -= 1;
            let Some(result) = progress(slot, result) else {
                self.ready.push_back(index);
                continue;
            };
            self.finish(index, result);
        }
        self.start();
    }

    /// Gives the kernel what is ready.
    fn start(&mut self) {
        while let Some(index) = self.ready.pop_front() {
            let operation = self.slots[index].as_ref().map(|slot| &slot.operation);
            if let Some(result) = operation.and_then(|operation| self.run_at_once(operation)) {
                if let Some(slot) = self.slots[index].take() {
                    self.free.push(index);
                    self.hand_back(slot.tag, slot.operation, result);
                }
                continue;
            }
            if self.is_broken {
                let stopped = io::Error::other("io_uring stopped");
                self.finish(index, Err(DeviceFault::Io(stopped)));
                continue;
            }
            let Some(request) = self.request(index) else { continue };
            // SAFETY: the file is open as long as the queue, which borrows the device or owns it; the memory
            // belongs to the operation in the slot, which is away from now on: nobody touches, moves or frees
            // it until its completion was taken out of the ring (G1, G2).
            let pushed = unsafe { self.uring.submission().push(&request) };
            if pushed.is_err() {
                // No room: as many as fit are started first.
                if let Some(slot) = self.slots[index].as_mut() {
                    slot.is_away = false;
                }
                self.away -= 1;
                self.ready.push_front(index);
                self.enter(0);
            }
        }
        if !self.uring.submission().is_empty() {
            self.enter(0);
        }
    }
}

/// What a completion means for its operation; `None` when a further request is needed (U4).
fn progress(slot: &mut Slot, result: i32) -> Option<Result<(), DeviceFault>> {
    let kind = slot.operation.kind();
    let Ok(moved) = usize::try_from(result) else {
        slot.retries += 1;
        return match -result {
            EINTR | EAGAIN if slot.retries <= RETRIES_MAX => None,
            EINVAL if slot.is_direct => {
                slot.is_direct = false; // Aligned otherwise than the host wants.
                None
            }
            errno => Some(Err(DeviceFault::Io(io::Error::from_raw_os_error(errno)))),
        };
    };
    if kind == OperationKind::Flush {
        return Some(Ok(()));
    }
    if moved == 0 {
        let got_bytes = slot.done as u64;
        return Some(Err(match kind {
            OperationKind::Read => DeviceFault::ShortRead { got_bytes },
            _ => DeviceFault::Io(io::ErrorKind::WriteZero.into()),
        }));
    }
    slot.done += moved;
    slot.retries = 0;
    if (slot.done as u64) < slot.operation.length() {
        // What is left may not be aligned.
        slot.is_direct &= slot.done.is_multiple_of(BUFFER_ALIGN);
        return None;
    }
    Some(Ok(()))
}

/// Leaves the memory of an operation to the end of the process.
fn leave(operation: &mut Operation) {
    if let Operation::Read { buffer, .. } | Operation::Write { buffer, .. } = operation {
        std::mem::forget::<AlignedBuffer>(std::mem::take(buffer));
    }
}

/// A ring that can do what is needed and no more (G3).
fn restricted(entries: u32) -> io::Result<IoUring> {
    let uring = IoUring::builder().setup_r_disabled().build(entries)?;
    let mut allowed = [
        Restriction::sqe_op(opcode::Read::CODE),
        Restriction::sqe_op(opcode::Write::CODE),
        Restriction::sqe_op(opcode::Fsync::CODE),
    ];
    uring.submitter().register_restrictions(&mut allowed)?;
    uring.submitter().register_enable_rings()?;
    Ok(uring)
}

/// The device's file once more, past the page cache, where the host can.
fn past_the_cache(device: &dyn BlockDevice, file: &File) -> Option<(File, u64)> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = OFlags::DIRECT | OFlags::CLOEXEC;
    let file = OpenOptions::new()
        .read(true)
        .write(!device.is_read_only())
        .custom_flags(flags.bits().cast_signed())
        .open(path)
        .ok()?;
    let unit = match file.metadata().ok()?.file_type().is_block_device() {
        true => u64::from(device.logical_sector_bytes()),
        false => BUFFER_ALIGN as u64,
    };
    Some((file, unit))
}

impl Queue for Uring<'_> {
    fn push(&mut self, tag: u64, operation: Operation) -> Result<(), Operation> {
        if self.len >= self.slots.len() {
            return Err(operation);
        }
        // There are fewer operations than slots.
        let Some(index) = self.free.pop() else { return Err(operation) };
        self.len += 1;
        let is_direct = self.can_be_direct(&operation);
        let slot = Slot { tag, operation, done: 0, retries: 0, is_direct, is_away: false };
        self.slots[index] = Some(slot);
        self.pushed.push(index);
        Ok(())
    }

    fn submit(&mut self) {
        self.ready.extend(self.pushed.drain(..));
        self.start();
    }

    fn reap(&mut self, wait: Wait) -> Option<Finished> {
        loop {
            if let Some(finished) = self.finished.pop_front() {
                self.len -= 1;
                return Some(finished);
            }
            self.collect();
            if !self.finished.is_empty() {
                continue;
            }
            if self.away == 0 || wait == Wait::Poll {
                return None;
            }
            check_may_wait("a device");
            self.enter(1);
        }
    }

    fn len(&self) -> usize {
        self.len
    }

    fn depth(&self) -> usize {
        self.slots.len()
    }

    fn engine(&self) -> Engine {
        if self.direct.is_some() { Engine::UringDirect } else { Engine::Uring }
    }
}

impl Drop for Uring<'_> {
    fn drop(&mut self) {
        // U5, G2.
        while self.away > 0 {
            self.enter(1);
            self.collect();
        }
    }
}
