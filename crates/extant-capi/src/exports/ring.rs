//! Rings: operations that are submitted and looked after later.
#![expect(unsafe_code, reason = "registered in docs/unsafe.md")]

use std::ffi::c_int;
use std::os::fd::AsRawFd as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant::SyncMode;
use extant::ring::{Completion, Op, Value};
use extant_block::AlignedBuffer;

use super::file::{fallocate_mode, range};
use super::int;
use crate::caller::{Caller, enter, wrong};
use crate::error::{EXTANT_E_BAD_HANDLE, EXTANT_E_RING_FULL, Error, Result};
use crate::object::{FileObject, Object, Opened, RingObject, Waiting};
use crate::types::{
    EXTANT_DONE_INLINE, EXTANT_OP_APPEND, EXTANT_OP_DATASYNC, EXTANT_OP_FALLOCATE, EXTANT_OP_READ,
    EXTANT_OP_SYNC, EXTANT_OP_TRUNCATE, EXTANT_OP_WRITE, extant_completion, extant_fs, extant_op,
    extant_ring,
};

/// Linux's errno for a process that has no more descriptors.
const EMFILE: c_int = 24;

fn full() -> Error {
    Error::new(EXTANT_E_RING_FULL, "the ring is full: take a result, then submit again")
}

fn completion(tag: u64, result: extant::Result<u64>, flags: u32) -> extant_completion {
    match result {
        Ok(result) => {
            let result = i64::try_from(result).unwrap_or(i64::MAX);
            extant_completion { tag, result, code: 0, flags }
        }
        Err(error) => {
            let error = Error::from(error);
            let result = -i64::from(error.errno);
            extant_completion { tag, result, code: error.code, flags }
        }
    }
}

/// Submits an operation. `Some` if it is done already.
fn submit(caller: &Caller, ring: &RingObject, op: &extant_op) -> Result<Option<extant_completion>> {
    let file = caller.file(op.file)?;
    if !Arc::ptr_eq(file.opened.fs(), ring.opened.fs()) {
        let message = "the file belongs to another file system than the ring";
        return Err(Error::new(EXTANT_E_BAD_HANDLE, message));
    }
    let length = usize::try_from(op.length).unwrap_or(usize::MAX);
    let inode = file.file.inode();
    let reads = op.kind == EXTANT_OP_READ;
    let is_sync = matches!(op.kind, EXTANT_OP_SYNC | EXTANT_OP_DATASYNC);
    if !(if reads { file.reads } else { file.writes || is_sync }) {
        let message = "the file was not opened for that";
        return Err(Error::argument(message).with_errno(9)); // EBADF
    }
    check_sync(&file, op.kind)?;
    let appends = op.kind == EXTANT_OP_WRITE && file.appends;
    let number = ring.next.fetch_add(1, Ordering::Relaxed);
    let to = reads.then(|| caller.destination(op.data, length));
    let waiting = Waiting { tag: op.tag, to, appended: appends.then_some(op.length) };
    // Before it is submitted: a worker may be done before this thread is.
    ring.waiting.lock().insert(number, waiting);
    let is_direct = file.direct.is_some();
    let done = match op.kind {
        EXTANT_OP_READ if !is_direct => {
            let out = caller.buffer(op.data, length, "data");
            out.map(|out| ring.ring.submit_read(number, inode, out, op.offset))
        }
        EXTANT_OP_WRITE if !is_direct && !appends => {
            let bytes = caller.bytes(op.data, length, "data");
            bytes.map(|bytes| ring.ring.submit_write(number, inode, bytes, op.offset))
        }
        _ => other(caller, &file, op, length).map(|op| {
            let done = ring.ring.submit(number, inode, op);
            done.map(|done| {
                done.map(|done| {
                    bring(caller, &waiting, &done);
                    waiting.result(done.result)
                })
            })
        }),
    };
    let done = match done {
        Ok(Ok(None)) => return Ok(None),
        other => other,
    };
    ring.waiting.lock().remove(&number);
    match done? {
        Ok(done) => Ok(done.map(|result| completion(op.tag, result, EXTANT_DONE_INLINE))),
        Err(_) => Err(full()),
    }
}

/// Refuses a write that would have to be durable when it is done, which a ring does for direct ones alone.
fn check_sync(file: &FileObject, kind: u32) -> Result<()> {
    let writes = matches!(kind, EXTANT_OP_WRITE | EXTANT_OP_APPEND);
    let can = match file.sync {
        SyncMode::Later => true,
        SyncMode::Data => file.direct.is_some(),
        SyncMode::Full => false,
    };
    if writes && !can {
        let message = "ring: the file was opened with SYNC or DSYNC, or has the flag S, so each write is durable when it \
                       is done, which a ring cannot promise: open it without, and submit EXTANT_OP_SYNC or \
                       EXTANT_OP_DATASYNC behind the write";
        return Err(Error::argument(message));
    }
    Ok(())
}

/// Operations that are no plain reads and writes.
fn other(caller: &Caller, file: &FileObject, op: &extant_op, length: usize) -> Result<Op> {
    Ok(match op.kind {
        EXTANT_OP_READ => {
            // Before it is submitted: it is memory.
            let buffer = AlignedBuffer::zeroed(caller.buffer(op.data, length, "data")?.len());
            Op::ReadDirect { offset: op.offset, buffer }
        }
        EXTANT_OP_WRITE if file.appends => {
            Op::Append { bytes: caller.bytes(op.data, length, "data")?.to_vec() }
        }
        EXTANT_OP_WRITE => Op::WriteDirect {
            offset: op.offset,
            buffer: AlignedBuffer::copy_of(caller.bytes(op.data, length, "data")?),
            synced: file.sync != SyncMode::Later,
        },
        EXTANT_OP_APPEND => Op::Append { bytes: caller.bytes(op.data, length, "data")?.to_vec() },
        EXTANT_OP_SYNC => Op::Sync,
        EXTANT_OP_DATASYNC => Op::SyncData,
        EXTANT_OP_TRUNCATE => Op::Truncate { size: op.length },
        EXTANT_OP_FALLOCATE => {
            Op::Fallocate { mode: fallocate_mode(op.mode)?, range: range(op.offset, op.length)? }
        }
        kind => return Err(Error::argument(format!("ring: unknown kind of operation {kind}"))),
    })
}

impl Waiting {
    /// Returns the result as the header describes it.
    fn result(&self, result: extant::Result<u64>) -> extant::Result<u64> {
        result.map(|result| self.appended.unwrap_or(result))
    }
}

/// Brings what was read to where its submitter wanted it.
fn bring(caller: &Caller, waiting: &Waiting, done: &Completion) {
    if let (Some(to), Ok(read)) = (waiting.to, &done.result) {
        let buffer = match &done.value {
            Value::Direct(buffer) => &buffer[..],
            _ => &done.buffer[..],
        };
        let read = usize::try_from(*read).unwrap_or(usize::MAX).min(buffer.len());
        caller.deliver(to, &buffer[..read]);
    }
}

/// Converts the completion of an operation done by a worker, for its submitter.
fn settle(caller: &Caller, ring: &RingObject, done: Completion) -> extant_completion {
    let waiting = ring.waiting.lock().remove(&done.tag);
    let waiting = waiting.unwrap_or(Waiting { tag: done.tag, to: None, appended: None });
    bring(caller, &waiting, &done);
    completion(waiting.tag, waiting.result(done.result), 0)
}

/// Opens a ring with room for `depth` operations, 1 to 65536, that wait for workers, are worked on, or are done by them and not
/// taken yet. Returns 0 and sets `*ring`, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ring_open(
    fs: *mut extant_fs,
    depth: u32,
    ring: *mut *mut extant_ring,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(ring, "ring")?;
            let fs = caller.fs(fs)?;
            let opened = Opened::new(&fs)?;
            let made = fs.fs.ring(usize::try_from(depth).unwrap_or(usize::MAX))?;
            let object = Object::Ring(Arc::new(RingObject::new(made, opened)));
            place.put(caller.open(object)?);
            Ok(0)
        })
    })
}

/// Submits an operation. This thread waits for nothing but memory.
///
/// Returns 1 when it is done already: `*done` has the result. 0 when a worker has it: its result is taken later. -EAGAIN when the
/// ring is full and nothing has happened (EXTANT_E_RING_FULL): take a result first. Other negative errnos for what is no
/// operation. Changes of one file take effect in the order of their submission.
///
/// What the file was opened with holds: with EXTANT_O_APPEND a write is at the end, wherever `offset` is, and with EXTANT_O_DIRECT
/// reads and writes go past the cache. Writes that EXTANT_O_SYNC or EXTANT_O_DSYNC would make durable are refused
/// (EXTANT_E_BAD_ARGUMENT), but for direct ones with EXTANT_O_DSYNC.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ring_submit(
    ring: *mut extant_ring,
    op: *const extant_op,
    done: *mut extant_completion,
) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let place = caller.place(done, "done")?;
            let ring = caller.ring(ring)?;
            let op = caller.options(op, "operation")?;
            let Some(done) = submit(caller, &ring, &op)? else { return Ok(0) };
            place.put(done);
            Ok(1)
        })
    })
}

/// Takes up to `most` results of operations that workers have done, and waits until there are `least` of them or nothing is
/// under way any more; with `least` 0 it does not wait. Returns how many were stored, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ring_reap(
    ring: *mut extant_ring,
    done: *mut extant_completion,
    most: usize,
    least: usize,
) -> i64 {
    // SAFETY: the header asks of the caller what `enter` does.
    unsafe {
        enter(|caller| {
            let ring = caller.ring(ring)?;
            let mut places = caller.completions(done, most)?.iter_mut();
            let mut taken = 0;
            while taken < most {
                let next = if taken < least { ring.ring.wait() } else { ring.ring.poll() };
                let Some(next) = next else { break };
                if let Some(place) = places.next() {
                    place.write(settle(caller, &ring, next));
                }
                taken += 1;
            }
            Ok(taken as u64)
        })
    }
}

/// Descriptor for poll(2), epoll(7) and their like: it is readable when there may be results to take, until
/// extant_ring_reap() with `least` 0 returned fewer than `most`. Take the results that exist already before waiting for it
/// the first time. It is the ring's: it must not be read or closed, and ends with the ring. Returns it, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ring_event_fd(ring: *mut extant_ring) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let ring = caller.ring(ring)?;
            let descriptor = ring.ring.event_fd().map_err(|error| {
                let errno = error.raw_os_error().unwrap_or(EMFILE);
                Error::argument(format!("ring: a descriptor: {error}")).with_errno(errno)
            })?;
            Ok(u64::from(descriptor.as_raw_fd().unsigned_abs()))
        })
    })
}

/// Closes a ring: waits until all accepted operations are done, and until calls of it in other threads have returned.
/// Results that were not taken are lost; memory to read into is not written any more. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn extant_ring_close(ring: *mut extant_ring) -> c_int {
    // SAFETY: the header asks of the caller what `enter` does.
    int(unsafe {
        enter(|caller| {
            let closed = caller.close(ring, "ring", |object| match object {
                Object::Ring(_) => Ok(()),
                _ => Err(wrong("a ring")),
            })?;
            if let Object::Ring(ring) = closed {
                caller.note(ring.opened.fs());
                ring.wait_for_end();
            }
            Ok(0)
        })
    })
}
