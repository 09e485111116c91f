//! Doing one operation: at once, or waiting.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::op::{Completion, Op};
use super::queue::Task;
use crate::attempt::WaitReason;
use crate::error::Result;
use crate::inode::Inode;

/// What became of an attempt.
pub(super) enum Tried {
    Done(Result<u64>, Op),
    /// Nothing has happened; others come first, or it is of a kind that may always wait.
    Behind(Op),
    /// Nothing has happened.
    Refused(Op, WaitReason),
    /// From this offset on so many bytes are written.
    Part(Op, u64, usize),
}

/// Does it if nothing has to be waited for.
pub(super) fn attempt(inode: &Inode, mut op: Op) -> Tried {
    match &mut op {
        Op::Read { offset, buffer } => match attempt_read(inode, *offset, buffer) {
            Ok(result) => Tried::Done(result, op),
            Err(reason) => Tried::Refused(op, reason),
        },
        Op::Write { offset, bytes } => match inode.try_write_at(*offset, bytes) {
            Ok(Ok(written)) if written < bytes.len() => {
                let offset = *offset;
                Tried::Part(op, offset, written)
            }
            Ok(result) => Tried::Done(result.map(|written| written as u64), op),
            Err(would_wait) => Tried::Refused(op, would_wait.reason),
        },
        Op::Append { bytes } => match inode.try_append(bytes) {
            Ok(Ok((at, written))) if written < bytes.len() => Tried::Part(op, at, written),
            Ok(result) => Tried::Done(result.map(|(at, _)| at), op),
            Err(would_wait) => Tried::Refused(op, would_wait.reason),
        },
        Op::Sync | Op::SyncData | Op::Truncate { .. } | Op::Fallocate { .. } => Tried::Behind(op),
    }
}

/// Reads all there is from memory, or nothing: less than all is all there is, or is read again as a whole.
pub(super) fn attempt_read(
    inode: &Inode,
    offset: u64,
    out: &mut [u8],
) -> std::result::Result<Result<u64>, WaitReason> {
    let len = out.len();
    match inode.try_read_at(offset, out) {
        Ok(Ok(read)) if read < len && offset + (read as u64) < inode.node().size() => {
            Err(WaitReason::Device)
        }
        Ok(result) => Ok(result.map(|read| read as u64)),
        Err(would_wait) => Err(would_wait.reason),
    }
}

/// Does it, or the rest of it, however long that takes. A panic is for whoever takes the result.
pub(super) fn finish(task: Task) -> std::result::Result<Completion, Box<dyn Any + Send>> {
    let Task { tag, inode, mut op, part } = task;
    // What it was changing is this crate's, whose locks are not poisoned: as for any caller that catches one.
    let result = catch_unwind(AssertUnwindSafe(|| waiting(&inode, &mut op, part)))?;
    Ok(Completion { tag, result, buffer: op.into_buffer(), is_inline: false })
}

fn waiting(inode: &Inode, op: &mut Op, part: Option<(u64, usize)>) -> Result<u64> {
    match op {
        Op::Read { offset, buffer } => inode.read_at(*offset, buffer).map(|read| read as u64),
        Op::Write { offset, bytes } => {
            let done = part.map_or(0, |(_, done)| done);
            match inode.write_at(*offset + done as u64, &bytes[done..]) {
                Ok(more) => Ok((done + more) as u64),
                // The next one will meet it again.
                Err(_) if done > 0 => Ok(done as u64),
                Err(error) => Err(error),
            }
        }
        Op::Append { bytes } => match part {
            // Its place is decided. Where somebody else has appended since, the rest goes behind that, not over it.
            Some((at, done)) => inode.append(&bytes[done..]).map(|_| at),
            None => inode.append(bytes),
        },
        Op::Sync => inode.sync().map(|()| 0),
        Op::SyncData => inode.sync_data().map(|()| 0),
        Op::Truncate { size } => inode.truncate(*size).map(|()| 0),
        Op::Fallocate { mode, range } => inode.fallocate(*mode, range.clone()).map(|()| 0),
    }
}
