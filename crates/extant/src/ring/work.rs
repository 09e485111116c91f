//! Executing operations, without waiting or with.

use std::io::IoSlice;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use extant_block::QueueOptions;

use super::op::{Completion, Op, Value};
use super::running::Slot;
use super::{DIRECT_BATCH, Outcome, Returned, Task};
use crate::attempt::WaitReason;
use crate::error::Result;
use crate::file::{DirectKind, DirectRequest};
use crate::inode::Inode;

/// Outcome of an attempt.
pub(super) enum Tried {
    Done(Result<u64>, Op, Value),
    /// Nothing has happened; operations of this kind may always wait.
    Never(Op),
    /// Nothing has happened.
    Refused(Op, WaitReason),
    /// The bytes written so far: their offset and their number.
    Part(Op, u64, usize),
}

/// Does an operation if that needs no wait.
pub(super) fn attempt(inode: &Inode, mut op: Op) -> Tried {
    match &mut op {
        Op::Read { offset, buffer } => match attempt_read(inode, *offset, buffer) {
            Ok(result) => Tried::Done(result, op, Value::Nothing),
            Err(reason) => Tried::Refused(op, reason),
        },
        Op::ReadVectored { offset, buffers } => {
            match read_each(*offset, buffers, |at, out| attempt_read(inode, at, out)) {
                Ok(result) => Tried::Done(result, op, Value::Nothing),
                Err(reason) => Tried::Refused(op, reason),
            }
        }
        Op::Write { offset, bytes } => match inode.try_write_at(bytes, *offset) {
            Ok(Ok(written)) if written < bytes.len() => {
                let offset = *offset;
                Tried::Part(op, offset, written)
            }
            Ok(result) => Tried::Done(result.map(|written| written as u64), op, Value::Nothing),
            Err(would_wait) => Tried::Refused(op, would_wait.reason),
        },
        Op::WriteVectored { offset, buffers } => match attempt_parts(inode, *offset, buffers) {
            Ok((result, true)) => Tried::Done(result, op, Value::Nothing),
            Ok((result, false)) => {
                let offset = *offset;
                Tried::Part(op, offset, result.map_or(0, |done| done as usize))
            }
            Err(reason) => Tried::Refused(op, reason),
        },
        Op::Append { bytes } => match inode.try_append(bytes) {
            Ok(Ok((at, written))) if written < bytes.len() => Tried::Part(op, at, written),
            Ok(result) => Tried::Done(result.map(|(at, _)| at), op, Value::Nothing),
            Err(would_wait) => Tried::Refused(op, would_wait.reason),
        },
        Op::Stat => match inode.node().try_metadata(inode.volume().block_size()) {
            Some(metadata) => Tried::Done(Ok(0), op, Value::Metadata(Box::new(metadata))),
            None => Tried::Refused(op, WaitReason::Inode),
        },
        Op::Lookup { name } => match inode.try_lookup(name) {
            Some(Ok(found)) => Tried::Done(Ok(0), op, Value::Inode(found)),
            Some(Err(error)) => Tried::Done(Err(error), op, Value::Nothing),
            None => Tried::Refused(op, WaitReason::Contents),
        },
        _ => Tried::Never(op),
    }
}

/// Reads the whole range from memory, or refuses: a short read that is not the end of the file is
/// repeated as a whole.
pub(super) fn attempt_read(
    inode: &Inode,
    offset: u64,
    out: &mut [u8],
) -> std::result::Result<Result<u64>, WaitReason> {
    let len = out.len();
    match inode.try_read_at(out, offset) {
        Ok(Ok(read)) if read < len && offset + (read as u64) < inode.node().size() => {
            Err(WaitReason::Device)
        }
        Ok(result) => Ok(result.map(|read| read as u64)),
        Err(would_wait) => Err(would_wait.reason),
    }
}

/// Fills the buffers one after the other until one is not filled.
fn read_each<E>(
    offset: u64,
    buffers: &mut [Vec<u8>],
    read: impl Fn(u64, &mut [u8]) -> std::result::Result<Result<u64>, E>,
) -> std::result::Result<Result<u64>, E> {
    let mut done = 0;
    for buffer in buffers {
        match read(offset.saturating_add(done), buffer)? {
            Ok(some) => {
                done += some;
                if some < buffer.len() as u64 {
                    break;
                }
            }
            // The next read returns the error.
            Err(_) if done > 0 => break,
            Err(error) => return Ok(Err(error)),
        }
    }
    Ok(Ok(done))
}

/// Writes the buffers one after the other while that needs no wait. Returns whether the write is
/// complete.
fn attempt_parts(
    inode: &Inode,
    offset: u64,
    buffers: &[Vec<u8>],
) -> std::result::Result<(Result<u64>, bool), WaitReason> {
    let mut done = 0;
    for buffer in buffers {
        match inode.try_write_at(buffer, offset.saturating_add(done)) {
            Ok(Ok(written)) => {
                done += written as u64;
                if written < buffer.len() {
                    return Ok((Ok(done), false));
                }
            }
            Ok(Err(_)) if done > 0 => return Ok((Ok(done), true)),
            Ok(Err(error)) => return Ok((Err(error), true)),
            Err(_) if done > 0 => return Ok((Ok(done), false)),
            Err(would_wait) => return Err(would_wait.reason),
        }
    }
    Ok((Ok(done), true))
}

/// What came of a task that was not to wait.
pub(super) enum AtOnce {
    /// Its outcome, and whether its chain continues.
    Done(Outcome, bool),
    /// It has to wait; a part may be done.
    Waits(Task),
}

/// Does an operation if that needs no wait.
pub(super) fn at_once(task: Task) -> AtOnce {
    let Task { tag, inode, op, part, to, drains, repeats } = task;
    let tried = match catch_unwind(AssertUnwindSafe(|| attempt(&inode, op))) {
        Ok(tried) => tried,
        Err(panic) => return AtOnce::Done(Err(panic), false),
    };
    let (op, part) = match tried {
        Tried::Done(result, op, value) => {
            let went_well = op.went_well(&result);
            let completion = completion(tag, result, op, value);
            return AtOnce::Done(Ok(Returned { completion, inode: Some(inode) }), went_well);
        }
        Tried::Never(op) | Tried::Refused(op, _) => (op, part),
        Tried::Part(op, at, done) => (op, Some((at, done))),
    };
    AtOnce::Waits(Task { tag, inode, op, part, to, drains, repeats })
}

/// The completion of an operation that a worker has done.
fn completion(tag: u64, result: Result<u64>, op: Op, value: Value) -> Completion {
    let mut completion = Completion::of(tag, result, op, false);
    if value != Value::Nothing {
        completion.value = value;
    }
    completion
}

/// Does an operation, or the rest of it, and waits as long as needed. A panic is passed to the
/// taker of the result. Returns whether its chain continues.
pub(super) fn finish(Task { tag, inode, op, part, .. }: Task) -> (Outcome, bool) {
    // Locks of this crate are not poisoned, so its state is as for any caller that catches a panic.
    let (result, op, inode) = match op {
        Op::Close { handle } => {
            let fs = inode.fs().clone();
            let close = || {
                drop((inode, handle));
                fs.reclaim();
                Ok((0, Value::Nothing))
            };
            (catch_unwind(AssertUnwindSafe(close)), Op::Stat, None)
        }
        mut op => {
            let result = catch_unwind(AssertUnwindSafe(|| waiting(&inode, &mut op, part)));
            (result, op, Some(inode))
        }
    };
    let result = match result {
        Ok(result) => result,
        Err(panic) => return (Err(panic), false),
    };
    let (result, value) = match result {
        Ok((done, value)) => (Ok(done), value),
        Err(error) => (Err(error), Value::Nothing),
    };
    let went_well = op.went_well(&result);
    let completion = completion(tag, result, op, value);
    (Ok(Returned { completion, inode }), went_well)
}

fn waiting(inode: &Inode, op: &mut Op, part: Option<(u64, usize)>) -> Result<(u64, Value)> {
    let done = part.map_or(0, |(_, done)| done);
    let found = |inode| Ok((0, Value::Inode(inode)));
    let result = match op {
        Op::Read { offset, buffer } => inode.read_at(buffer, *offset).map(|read| read as u64),
        Op::ReadVectored { offset, buffers } => {
            let read = |at, out: &mut [u8]| Ok(inode.read_at(out, at).map(|read| read as u64));
            let result: std::result::Result<_, std::convert::Infallible> =
                read_each(*offset, buffers, read);
            let Ok(result) = result;
            result
        }
        Op::Write { offset, bytes } => {
            after(done, inode.write_at(&bytes[done..], *offset + done as u64))
        }
        Op::WriteVectored { offset, buffers } => {
            let mut skip = done;
            let rest = buffers.iter().filter_map(|buffer| {
                let from = skip.min(buffer.len());
                skip -= from;
                (from < buffer.len()).then(|| IoSlice::new(&buffer[from..]))
            });
            let rest: Vec<IoSlice<'_>> = rest.collect();
            after(done, inode.write_vectored_at(&rest, *offset + done as u64))
        }
        Op::Append { bytes } => match part {
            // The place of the append is decided. If others have appended since, the rest goes
            // behind theirs, not over it.
            Some((at, done)) => inode.append(&bytes[done..]).map(|_| at),
            None => inode.append(bytes),
        },
        Op::ReadDirect { offset, buffer } => {
            inode.direct()?.read_at(buffer, *offset).map(|read| read as u64)
        }
        Op::WriteDirect { offset, buffer, synced } => {
            let file = inode.direct()?;
            let written = match *synced {
                true => file.write_synced_at(buffer, *offset),
                false => file.write_at(buffer, *offset),
            };
            written.map(|written| written as u64)
        }
        Op::Sync => inode.sync().map(|()| 0),
        Op::SyncData => inode.sync_data().map(|()| 0),
        Op::Truncate { size } => inode.truncate(*size).map(|()| 0),
        Op::Fallocate { mode, range } => inode.fallocate(*mode, range.clone()).map(|()| 0),
        Op::SetAttributes { changes } => inode.set_attributes(changes).map(|()| 0),
        Op::Stat => return Ok((0, Value::Metadata(Box::new(inode.metadata())))),
        Op::Lookup { name } => return inode.lookup(&*name).and_then(found),
        Op::Open { path } => return inode.fs().resolve(&*path).and_then(found),
        Op::Create { name, new } => return inode.create(&*name, new).and_then(found),
        Op::Mkdir { name, new } => return inode.mkdir(&*name, new).and_then(found),
        Op::Symlink { name, target, new } => {
            return inode.symlink(&*name, &*target, new).and_then(found);
        }
        Op::Link { name, target } => inode.link(&*name, target).map(|()| 0),
        Op::Unlink { name } => inode.unlink(&*name).map(|()| 0),
        Op::Rmdir { name } => inode.rmdir(&*name).map(|()| 0),
        Op::Rename { name, to, new_name, flags } => {
            inode.rename(&*name, to, &*new_name, *flags).map(|()| 0)
        }
        // The handle is dropped when this returns.
        Op::Close { .. } => Ok(0),
    };
    result.map(|result| (result, Value::Nothing))
}

/// Returns the result of a write that began with `done` bytes.
fn after(done: usize, more: Result<usize>) -> Result<u64> {
    match more {
        Ok(more) => Ok((done + more) as u64),
        // The next write returns the error.
        Err(_) if done > 0 => Ok(done as u64),
        Err(error) => Err(error),
    }
}

/// Does direct operations of one file, as deep as the device's queue is, and then those that `more`
/// returns, until it returns none; its argument tells whether the batch begins with them. `settle`
/// gets each outcome, and whether its chain continues.
pub(super) fn finish_direct<J>(
    first: (J, Task),
    more: impl Fn(bool) -> Vec<(J, Task)>,
    mut settle: impl FnMut(J, Option<Arc<Slot>>, Outcome, bool),
) {
    let Ok(file) = first.1.inode.direct() else {
        let (job, mut task) = first;
        let to = task.to.take();
        // The operation is done singly and returns its error.
        let (outcome, went_well) = finish(task);
        return settle(job, to, outcome, went_well);
    };
    let mut queue = file.queue(&QueueOptions::default().depth(DIRECT_BATCH));
    let mut batch = vec![first];
    loop {
        let is_new = batch.is_empty();
        batch.extend(more(is_new));
        if batch.is_empty() {
            return;
        }
        let requests = batch.iter_mut().filter_map(|(_, task)| task.op.take_direct()).collect();
        let done = match catch_unwind(AssertUnwindSafe(|| queue.run(requests))) {
            Ok(done) => done,
            Err(panic) => {
                // One of them gets the panic, and the others are finished as well.
                let mut panic = Some(panic);
                for (job, task) in batch {
                    let beside = || Box::new("another one of its batch panicked") as Box<_>;
                    settle(job, task.to, Err(panic.take().unwrap_or_else(beside)), false);
                }
                return;
            }
        };
        for ((job, task), done) in batch.drain(..).zip(done) {
            let DirectRequest { kind, offset, buffer } = done.request;
            let op = match kind {
                DirectKind::Read => Op::ReadDirect { offset, buffer },
                DirectKind::Write { synced } => Op::WriteDirect { offset, buffer, synced },
            };
            let result = done.result.map(|len| len as u64);
            let went_well = op.went_well(&result);
            let completion = Completion::of(task.tag, result, op, false);
            let returned = Returned { completion, inode: Some(task.inode) };
            settle(job, task.to, Ok(returned), went_well);
        }
    }
}
