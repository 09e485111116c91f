//! io_uring for files and disks.
//!
//! # Invariants
//!
//! - G1. The memory named in a request belongs to an operation in a slot, and the slot is not
//!   accessed from the submission of the request until its completion was taken out of the ring.
//! - G2. That memory is not freed before: dropping a queue waits, and if the system does not let it
//!   wait, leaks the memory.
//! - G3. Where the kernel supports restrictions, the ring is limited to reads, writes and syncs of
//!   the device's own file for its whole life, so that it cannot circumvent a filter of system
//!   calls.
//!
//! # Few system calls
//!
//! One system call submits the pushed requests, waits, and collects all completions
//! ([`Queue::advance`]). For queues of some depth the kernel keeps completions until the thread
//! asks for them (`IORING_SETUP_DEFER_TASKRUN`), so that they do not interrupt it.
#![expect(unsafe_code)]

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};

use extant_sync::check_may_wait;
use io_uring::register::Restriction;
use io_uring::{IoUring, opcode, squeue, types};
use rustix::fs::OFlags;
use rustix::io::ReadWriteFlags;

use crate::buffer::{AlignedBuffer, BUFFER_ALIGN};
use crate::device::{BlockDevice, check_range};
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::length::check_length;
use crate::operation::{Completion, Operation};
use crate::queue::{Engine, Finished, LastingQueue, Queue, QueueOptions, Wait};

/// Number of times the system may answer EAGAIN without progress of an operation.
const RETRIES_MAX: u32 = 100;

/// Indexes of registered files: through the page cache, and past it.
const PLAIN: RawFd = 0;
const DIRECT: RawFd = 1;

/// Depth from which on the kernel keeps completions until it is asked. With fewer requests under
/// way an interruption is cheaper than the sleep that it often saves.
const QUIET_DEPTH: usize = 4;

/// Code of the call that ends the registration of files (`IORING_UNREGISTER_FILES`).
const UNREGISTER_FILES: u8 = 3;
/// Code of the call that registers an eventfd (`IORING_REGISTER_EVENTFD`).
const REGISTER_EVENTFD: u8 = 4;

const EINTR: i32 = 4;
const EAGAIN: i32 = 11;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;

/// An operation in the queue.
struct Slot {
    tag: u64,
    operation: Operation,
    /// Number of bytes transferred.
    done: usize,
    retries: u32,
    /// Whether it bypasses the page cache.
    is_direct: bool,
    /// Whether the kernel may access its memory (G1).
    is_away: bool,
}

/// The device of a ring, and the file with its bytes.
enum Over<'d> {
    Lent(&'d dyn BlockDevice, &'d File),
    Own(Box<dyn BlockDevice>, File),
}

impl Over<'_> {
    fn device(&self) -> &dyn BlockDevice {
        match self {
            Over::Lent(device, _) => *device,
            Over::Own(device, _) => &**device,
        }
    }

    fn file(&self) -> &File {
        match self {
            Over::Lent(_, file) => file,
            Over::Own(_, file) => file,
        }
    }
}

/// When the kernel may post completions.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Posting {
    /// At any time: it interrupts the thread that submitted.
    Interrupting,
    /// When the one thread that uses the ring asks.
    Asked,
    /// When the thread that submitted enters the kernel for any reason. Any thread may ask.
    Entering,
}

/// A ring over a file.
pub(crate) struct Uring<'d> {
    over: Over<'d>,
    uring: IoUring,
    /// The slots, as many as the depth; the vector never grows, so it never moves.
    slots: Vec<Option<Slot>>,
    /// Slots without an operation.
    free: Vec<usize>,
    /// Slots that are not submitted yet.
    pushed: Vec<usize>,
    /// Slots whose next request is to be given to the kernel.
    ready: VecDeque<usize>,
    /// Operations that have ended and were not handed back, besides those still in the ring.
    finished: VecDeque<Finished>,
    /// Number of slots whose request is with the kernel.
    away: usize,
    len: usize,
    /// Whether the ring has failed; its completions then concern operations that were given up.
    is_broken: bool,
    transfer_max: usize,
    /// The same file opened with O_DIRECT, and the alignment of offsets and lengths there.
    direct: Option<(File, u64)>,
    /// Whether requests name files by [`PLAIN`] and [`DIRECT`] and not by descriptors.
    is_registered: bool,
    /// Whether the kernel may post completions while this thread runs, before it is asked.
    interrupts: bool,
}

impl<'d> Uring<'d> {
    /// Creates a ring for the calling thread, if the system offers one, for a device whose bytes are
    /// those of `file`.
    pub(crate) fn new(
        device: &'d dyn BlockDevice,
        file: &'d File,
        options: &QueueOptions,
    ) -> io::Result<Uring<'d>> {
        let posting = match options.depth >= QUIET_DEPTH {
            true => Posting::Asked,
            false => Posting::Interrupting,
        };
        Uring::over(Over::Lent(device, file), options, posting)
    }

    fn over(over: Over<'d>, options: &QueueOptions, posting: Posting) -> io::Result<Uring<'d>> {
        let (device, file) = (over.device(), over.file());
        // Files are opened with O_NONBLOCK because of fifos. On host file systems that cannot try
        // without waiting (FUSE, some network ones), a ring would then answer EAGAIN for ever.
        let flags = rustix::fs::fcntl_getfl(file)?;
        rustix::fs::fcntl_setfl(file, flags - OFlags::NONBLOCK)?;
        let depth = options.depth;
        let entries = u32::try_from(depth.next_power_of_two()).unwrap_or(u32::MAX);
        let direct = if options.direct { past_the_cache(device, file) } else { None };
        let past = direct.as_ref().map_or(file, |(past, _)| past).as_raw_fd();
        let files = [file.as_raw_fd(), past];
        let codes = [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE];
        let (uring, is_registered) = match restricted(entries, posting, &files, &codes) {
            Ok(uring) => (uring, true),
            Err(_) => (IoUring::new(entries)?, false),
        };
        let mut slots = Vec::new();
        slots.resize_with(depth, || None);
        Ok(Uring {
            over,
            uring,
            slots,
            free: (0..depth).rev().collect(),
            pushed: Vec::with_capacity(depth),
            ready: VecDeque::new(),
            finished: VecDeque::new(),
            away: 0,
            len: 0,
            is_broken: false,
            transfer_max: options.transfer_max,
            direct,
            is_registered,
            interrupts: posting == Posting::Interrupting,
        })
    }

    /// Removes the operation of a slot, which is over, and frees the slot.
    fn ended(&mut self, index: usize, result: Result<(), DeviceFault>) -> Option<Finished> {
        let Slot { tag, operation, .. } = self.slots.get_mut(index).and_then(Option::take)?;
        self.free.push(index);
        let result = result.map_err(|fault| {
            let (offset, len) = (operation.offset(), operation.length());
            DeviceError::new(self.over.device().describe(), operation.kind(), offset, len, fault)
        });
        Some(Finished { tag, completion: Completion { operation, result } })
    }

    fn finish(&mut self, index: usize, result: Result<(), DeviceFault>) {
        let finished = self.ended(index, result);
        self.finished.extend(finished);
    }

    /// Does operations at once that have no request of their own; returns `None` for the others.
    fn run_at_once(&self, operation: &Operation) -> Option<Result<(), DeviceError>> {
        let (kind, offset, len) = (operation.kind(), operation.offset(), operation.length());
        if let Err(error) = check_range(self.over.device(), kind, offset, len) {
            return Some(Err(error));
        }
        // Only such a write makes a file long again that was cut off.
        if kind == OperationKind::Write
            && offset + len == self.over.device().size_bytes()
            && let Err(fault) = self.check_length()
        {
            let device = self.over.device().describe();
            return Some(Err(DeviceError::new(device, kind, offset, len, fault)));
        }
        match kind {
            OperationKind::Discard => Some(self.over.device().discard(offset, len)),
            OperationKind::WriteZeroes => Some(self.over.device().write_zeroes(offset, len)),
            OperationKind::Flush => self.over.device().is_read_only().then_some(Ok(())),
            _ => (len == 0).then_some(Ok(())),
        }
    }

    /// Checks that nobody has cut the file off: then what was written elsewhere is not there.
    fn check_length(&self) -> Result<(), DeviceFault> {
        check_length(self.over.file(), self.over.device().size_bytes())
    }

    fn can_be_direct(&self, operation: &Operation) -> bool {
        let Some((_, unit)) = &self.direct else { return false };
        let is_data = matches!(operation.kind(), OperationKind::Read | OperationKind::Write);
        is_data
            && operation.offset().is_multiple_of(*unit)
            && operation.length().is_multiple_of(*unit)
            && (self.transfer_max as u64).is_multiple_of(*unit)
    }

    /// Builds the next request of a slot, which counts as with the kernel from now on.
    fn request(&mut self, index: usize) -> Option<squeue::Entry> {
        let slot = self.slots.get_mut(index)?.as_mut()?;
        let past = self.direct.as_ref().filter(|_| slot.is_direct);
        let fd = types::Fd(match (past, self.is_registered) {
            (Some(_), true) => DIRECT,
            (None, true) => PLAIN,
            (Some((past, _)), false) => past.as_raw_fd(),
            (None, false) => self.over.file().as_raw_fd(),
        });
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
        let flags = match self.is_registered {
            true => squeue::Flags::FIXED_FILE,
            false => squeue::Flags::empty(),
        };
        Some(entry.flags(flags).user_data(index as u64))
    }

    fn enter(&mut self, wanted: usize) {
        match self.uring.submitter().submit_and_wait(wanted) {
            Ok(_) => {}
            // EBUSY: completions must be taken first.
            Err(error) if matches!(error.raw_os_error(), Some(EINTR | EAGAIN | EBUSY)) => {}
            Err(error) => self.give_up(&error),
        }
    }

    /// Gives the ring up after an error: every operation fails, and memory that the kernel may
    /// still write to is leaked (G2).
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

    /// Takes completions out of the ring, up to the first one that ends an operation; the slots of
    /// all of them may be accessed again.
    fn collect(&mut self) -> Option<Finished> {
        loop {
            let done = self.uring.completion().next()?;
            // Late completions concern operations that were given up.
            if self.is_broken {
                continue;
            }
            let index = done.user_data() as usize;
            let Some(slot) = self.slots.get_mut(index).and_then(Option::as_mut) else { continue };
            slot.is_away = false;
            self.away -= 1;
            match progress(slot, done.result()) {
                Some(result) => {
                    let is_durable = matches!(
                        slot.operation,
                        Operation::Flush | Operation::Write { fua: true, .. }
                    );
                    let result = match result {
                        Ok(()) if is_durable => self.check_length(),
                        other => other,
                    };
                    return self.ended(index, result);
                }
                None => self.ready.push_back(index),
            }
        }
    }

    /// Returns an operation that has ended, without a system call.
    fn next_ended(&mut self) -> Option<Finished> {
        let finished = self.finished.pop_front().or_else(|| self.collect())?;
        self.len -= 1;
        Some(finished)
    }

    /// Puts the ready requests into the ring, for the next system call.
    fn prepare(&mut self) {
        while let Some(index) = self.ready.pop_front() {
            let operation = self.slots[index].as_ref().map(|slot| &slot.operation);
            if let Some(result) = operation.and_then(|operation| self.run_at_once(operation)) {
                if let Some(Slot { tag, operation, .. }) = self.slots[index].take() {
                    self.free.push(index);
                    let completion = Completion { operation, result };
                    self.finished.push_back(Finished { tag, completion });
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
                // The ring is full: submit its requests first.
                if let Some(slot) = self.slots[index].as_mut() {
                    slot.is_away = false;
                }
                self.away -= 1;
                self.ready.push_front(index);
                self.enter(0);
            }
        }
    }

    /// Gives the kernel what is ready.
    fn start(&mut self) {
        self.prepare();
        if !self.uring.submission().is_empty() {
            self.enter(0);
        }
    }

    /// Waits for an operation to end; the system call that waits submits the ready requests too.
    fn wait(&mut self) -> Option<Finished> {
        loop {
            if let Some(finished) = self.next_ended() {
                return Some(finished);
            }
            self.prepare();
            if !self.finished.is_empty() {
                // The other requests must not wait for the next call of the owner.
                self.start();
                continue;
            }
            if self.interrupts {
                self.start();
                if let Some(finished) = self.next_ended() {
                    return Some(finished);
                }
            }
            if self.away == 0 {
                return None;
            }
            check_may_wait("a device");
            self.enter(1);
        }
    }
}

/// Returns the result of the operation after a completion; `None` when a further request is needed
/// (U4).
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
        // The rest may not be aligned.
        slot.is_direct &= slot.done.is_multiple_of(BUFFER_ALIGN);
        return None;
    }
    Some(Ok(()))
}

/// Leaks the memory of an operation.
fn leave(operation: &mut Operation) {
    if let Operation::Read { buffer, .. } | Operation::Write { buffer, .. } = operation {
        std::mem::forget::<AlignedBuffer>(std::mem::take(buffer));
    }
}

/// Creates a ring restricted to the operations with these codes, on these files (G3); one that posts
/// when it is asked is for the calling thread.
pub(crate) fn restricted(
    entries: u32,
    posting: Posting,
    files: &[RawFd],
    codes: &[u8],
) -> io::Result<IoUring> {
    let plain = || IoUring::builder().setup_r_disabled().build(entries);
    let mut quiet = IoUring::builder();
    quiet.setup_taskrun_flag().setup_submit_all().setup_r_disabled();
    // Linux 6.1 and 5.19; before, completions may interrupt the thread.
    let uring = match posting {
        Posting::Interrupting => plain()?,
        Posting::Asked => {
            quiet.setup_single_issuer().setup_defer_taskrun();
            quiet.build(entries).or_else(|_| plain())?
        }
        Posting::Entering => quiet.setup_coop_taskrun().build(entries).or_else(|_| plain())?,
    };
    uring.submitter().register_files(files)?;
    let mut allowed: Vec<_> = codes.iter().map(|code| Restriction::sqe_op(*code)).collect();
    allowed.extend([
        Restriction::sqe_flags_required(squeue::Flags::FIXED_FILE.bits()),
        Restriction::register_op(UNREGISTER_FILES),
        Restriction::register_op(REGISTER_EVENTFD),
    ]);
    uring.submitter().register_restrictions(&mut allowed)?;
    uring.submitter().register_enable_rings()?;
    Ok(uring)
}

/// Opens the device's file again with O_DIRECT, if the host supports it.
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

impl Uring<'static> {
    /// Creates a ring for any thread, one at a time, if the system offers all that. The ring owns
    /// the device and the file with its bytes.
    pub(crate) fn lasting(
        device: Box<dyn BlockDevice>,
        file: File,
        options: &QueueOptions,
    ) -> io::Result<Uring<'static>> {
        Uring::over(Over::Own(device, file), options, Posting::Entering)
    }
}

impl LastingQueue for Uring<'_> {
    fn unstarted(&self) -> usize {
        self.pushed.len() + self.ready.len()
    }

    fn signals(&mut self, event: BorrowedFd<'_>) -> io::Result<()> {
        self.uring.submitter().register_eventfd(event.as_raw_fd())
    }
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
        if wait == Wait::Block {
            return self.wait();
        }
        if let Some(finished) = self.next_ended() {
            return Some(finished);
        }
        self.start();
        if self.uring.submission().taskrun() {
            self.enter(0);
        }
        self.next_ended()
    }

    fn advance(&mut self) -> Option<Finished> {
        // While operations can be handed back, pushed ones are collected, up to a quarter.
        if self.pushed.len() < self.slots.len().div_ceil(4)
            && let Some(finished) = self.next_ended()
        {
            return Some(finished);
        }
        self.ready.extend(self.pushed.drain(..));
        match self.next_ended() {
            Some(finished) => {
                self.start();
                Some(finished)
            }
            None => self.wait(),
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
            while self.collect().is_some() {}
            self.start();
            if self.away > 0 {
                self.enter(1);
            }
        }
        if self.is_registered {
            // The kernel closes a ring later, and would keep the file, and its lock, until then.
            let _ = self.uring.submitter().unregister_files();
        }
    }
}
