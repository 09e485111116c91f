//! Operations and completions of a ring.

use std::fmt;
use std::ops::Range;
use std::time::Duration;

use extant_block::AlignedBuffer;

use super::order::Files;
use crate::error::{FsError, Result};
use crate::file::{DirectKind, DirectRequest, Fallocate};
use crate::inode::Inode;
use crate::namei::{NewInode, RenameFlags, SetAttributes};
use crate::node::Metadata;

/// An operation on the inode with which it is submitted. Its buffers belong to the ring until the
/// result returns them.
///
/// The result is 0 unless the variant says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Op {
    /// Reads like [`read_at`](Inode::read_at) into the whole buffer. The result is the number of
    /// bytes; it is less than the length of the buffer only at the end of the file.
    Read {
        /// Offset of the first byte.
        offset: u64,
        /// The buffer; its length is the number of bytes wanted, its contents are ignored.
        buffer: Vec<u8>,
    },
    /// Reads into several buffers, one after the other, which come back in [`Value::Buffers`]. Each
    /// buffer is read by a call of its own, so writes may come in between.
    ReadVectored {
        /// Offset of the first byte.
        offset: u64,
        /// The buffers; the sum of their lengths is the number of bytes wanted.
        buffers: Vec<Vec<u8>>,
    },
    /// Writes like [`write_at`](Inode::write_at). The result is the number of bytes; fewer than
    /// given only before an error.
    Write {
        /// Offset of the first byte.
        offset: u64,
        /// The bytes to be written.
        bytes: Vec<u8>,
    },
    /// Writes several buffers like [`write_vectored_at`](Inode::write_vectored_at). The result is
    /// the number of bytes, and the buffers come back in [`Value::Buffers`]. Readers may see a part
    /// of it.
    WriteVectored {
        /// Offset of the first byte.
        offset: u64,
        /// The buffers to be written, one after the other.
        buffers: Vec<Vec<u8>>,
    },
    /// Appends like [`append`](Inode::append). The result is the offset. After an error some of the
    /// bytes may be missing at the end: others may have appended in between.
    Append {
        /// The bytes to be written.
        bytes: Vec<u8>,
    },
    /// Reads like [`DirectFile::read_at`](crate::DirectFile::read_at), bypassing the page cache.
    /// The result is the number of bytes; the buffer comes back in [`Value::Direct`]. What is one
    /// device operation goes to the device at once, or, while that is busy, by the time somebody
    /// asks for results ([`Ring::engine`](super::Ring::engine)). Those that wait for workers go to
    /// the device's queue together.
    ReadDirect {
        /// Offset of the first byte, aligned as [`Inode::direct_alignment`] says.
        offset: u64,
        /// The buffer; its length is aligned as well.
        buffer: AlignedBuffer,
    },
    /// Writes like [`DirectFile::write_at`](crate::DirectFile::write_at), bypassing the page cache.
    /// It begins after every change of the file submitted before. Direct writes themselves are not
    /// ordered: as on Linux, those under way together happen in any order, and only a chain or a
    /// drain waits for them.
    WriteDirect {
        /// Offset of the first byte, aligned as [`Inode::direct_alignment`] says.
        offset: u64,
        /// The bytes to be written; their length is aligned as well.
        buffer: AlignedBuffer,
        /// Whether the bytes are durable when the operation is done (`O_DSYNC`).
        synced: bool,
    },
    /// Syncs like [`sync`](Inode::sync), including every change of the file submitted before.
    Sync,
    /// Syncs like [`sync_data`](Inode::sync_data), including every change of the file submitted
    /// before.
    SyncData,
    /// Sets the size like [`truncate`](Inode::truncate).
    Truncate {
        /// The new size in bytes.
        size: u64,
    },
    /// Changes a range like [`fallocate`](Inode::fallocate).
    Fallocate {
        /// The change of the range.
        mode: Fallocate,
        /// Bytes of the file.
        range: Range<u64>,
    },
    /// Sets attributes like [`set_attributes`](Inode::set_attributes).
    SetAttributes {
        /// The attributes to be set.
        changes: Box<SetAttributes>,
    },
    /// Gets the attributes like [`metadata`](Inode::metadata); they come in [`Value::Metadata`].
    Stat,
    /// Looks up a name in this directory like [`lookup`](Inode::lookup). The handle comes in
    /// [`Value::Inode`].
    Lookup {
        /// A name without `/`.
        name: Vec<u8>,
    },
    /// Resolves a path from the root of the file system like [`Fs::resolve`](crate::Fs::resolve).
    /// It is submitted with the root. The handle comes in [`Value::Inode`]; opening needs nothing
    /// more.
    Open {
        /// The path.
        path: Vec<u8>,
    },
    /// Drops a handle, of any file, after every change of that file submitted before. If it was the
    /// last handle of a file without links, the worker deletes the file.
    Close {
        /// The handle to be dropped.
        handle: Inode,
    },
    /// Creates a file in this directory like [`create`](Inode::create). The handle comes in
    /// [`Value::Inode`].
    Create {
        /// The name.
        name: Vec<u8>,
        /// Owner, mode and flags of the new file.
        new: NewInode,
    },
    /// Creates a directory in this directory like [`mkdir`](Inode::mkdir). The handle comes in
    /// [`Value::Inode`].
    Mkdir {
        /// The name.
        name: Vec<u8>,
        /// Owner, mode and flags of the new directory.
        new: NewInode,
    },
    /// Creates a symbolic link in this directory like [`symlink`](Inode::symlink). The handle comes
    /// in [`Value::Inode`].
    Symlink {
        /// The name.
        name: Vec<u8>,
        /// The target of the link.
        target: Vec<u8>,
        /// Owner, mode and flags of the new link.
        new: NewInode,
    },
    /// Adds a name in this directory like [`link`](Inode::link).
    Link {
        /// The name.
        name: Vec<u8>,
        /// The inode that gets the name.
        target: Inode,
    },
    /// Removes a name from this directory like [`unlink`](Inode::unlink).
    Unlink {
        /// The name.
        name: Vec<u8>,
    },
    /// Removes a directory from this directory like [`rmdir`](Inode::rmdir).
    Rmdir {
        /// The name.
        name: Vec<u8>,
    },
    /// Renames an entry of this directory like [`rename`](Inode::rename).
    Rename {
        /// The name.
        name: Vec<u8>,
        /// The directory that the entry moves to.
        to: Inode,
        /// The name in that directory.
        new_name: Vec<u8>,
        /// Options about an existing target.
        flags: RenameFlags,
    },
}

impl Op {
    /// Returns whether the operation is a change, which is ordered with other changes of its files.
    pub(super) fn is_change(&self) -> bool {
        !matches!(
            self,
            Op::Read { .. }
                | Op::ReadVectored { .. }
                | Op::ReadDirect { .. }
                | Op::WriteDirect { .. }
                | Op::Sync
                | Op::SyncData
                | Op::Stat
                | Op::Lookup { .. }
                | Op::Open { .. }
                | Op::Close { .. }
        )
    }

    /// Returns whether the operation may have to wait for a thaw or a limit.
    pub(super) fn may_be_held(&self) -> bool {
        self.is_change() || matches!(self, Op::WriteDirect { .. } | Op::Sync | Op::SyncData)
    }

    /// Returns whether an attempt can do the operation at all.
    pub(super) fn may_be_inline(&self) -> bool {
        matches!(
            self,
            Op::Read { .. }
                | Op::ReadVectored { .. }
                | Op::Write { .. }
                | Op::WriteVectored { .. }
                | Op::Append { .. }
                | Op::Stat
                | Op::Lookup { .. }
        )
    }

    /// Returns whether the operation goes to the device's queue, with others of its file.
    pub(super) fn is_direct(&self) -> bool {
        matches!(self, Op::ReadDirect { .. } | Op::WriteDirect { .. })
    }

    /// Returns the request for the device's queue, with the buffer. `None` for operations that are
    /// not direct.
    pub(super) fn take_direct(&mut self) -> Option<DirectRequest> {
        let (kind, offset, buffer) = match self {
            Op::ReadDirect { offset, buffer } => (DirectKind::Read, *offset, buffer),
            Op::WriteDirect { offset, buffer, synced } => {
                (DirectKind::Write { synced: *synced }, *offset, buffer)
            }
            _ => return None,
        };
        Some(DirectRequest { kind, offset, buffer: std::mem::take(buffer) })
    }

    /// Returns the files concerned when the operation is submitted with `inode`.
    pub(super) fn files(&self, inode: &Inode) -> Files {
        match self {
            Op::Close { handle } => Files::one(handle.ino()),
            Op::Rename { to, .. } => Files::two(inode.ino(), to.ino()),
            Op::Link { target, .. } => Files::two(inode.ino(), target.ino()),
            _ => Files::one(inode.ino()),
        }
    }

    /// Returns the number of bytes that the operation reads or writes; a shorter result ends a
    /// chain.
    pub(super) fn len(&self) -> Option<u64> {
        let sum = |buffers: &[Vec<u8>]| buffers.iter().map(|buffer| buffer.len() as u64).sum();
        match self {
            Op::Read { buffer: bytes, .. } | Op::Write { bytes, .. } => Some(bytes.len() as u64),
            Op::ReadVectored { buffers, .. } | Op::WriteVectored { buffers, .. } => {
                Some(sum(buffers))
            }
            Op::ReadDirect { buffer, .. } | Op::WriteDirect { buffer, .. } => {
                Some(buffer.len() as u64)
            }
            _ => None,
        }
    }

    /// Returns whether a chain continues after this result.
    pub(super) fn went_well(&self, result: &Result<u64>) -> bool {
        is_whole(self.len(), result)
    }

    /// Returns the buffer; an empty one for operations without one, or with several.
    pub fn into_buffer(self) -> Vec<u8> {
        self.into_memory().0
    }

    /// Returns the memory that goes back to the submitter.
    pub(super) fn into_memory(self) -> (Vec<u8>, Value) {
        match self {
            Op::Read { buffer: bytes, .. } | Op::Write { bytes, .. } | Op::Append { bytes } => {
                (bytes, Value::Nothing)
            }
            Op::ReadVectored { buffers, .. } | Op::WriteVectored { buffers, .. } => {
                (Vec::new(), Value::Buffers(buffers))
            }
            Op::ReadDirect { buffer, .. } | Op::WriteDirect { buffer, .. } => {
                (Vec::new(), Value::Direct(buffer))
            }
            _ => (Vec::new(), Value::Nothing),
        }
    }
}

/// Returns whether the operation was done in full: `len` bytes, if it has a length.
pub(super) fn is_whole(len: Option<u64>, result: &Result<u64>) -> bool {
    result.as_ref().is_ok_and(|done| len.is_none_or(|len| *done == len))
}

/// An operation with its options: order, deadline and place of execution.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use extant::ring::{Op, Request};
/// use std::time::Duration;
/// # let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
/// # let (file, root) = (fs.resolve("/new")?, fs.root()?);
/// let ring = fs.ring(32)?;
/// // Written, durable, and only then in the place of the old one.
/// let rename = Op::Rename {
///     name: b"new".to_vec(),
///     to: root.clone(),
///     new_name: b"old".to_vec(),
///     flags: Default::default(),
/// };
/// let done = ring.submit_chain(vec![
///     Request::new(1, &file, Op::Write { offset: 0, bytes: b"contents".to_vec() }),
///     Request::new(2, &file, Op::Sync),
///     Request::new(3, &root, rename).timeout(Duration::from_secs(10)),
/// ])?;
/// for done in done.into_iter().chain(std::iter::from_fn(|| ring.wait())) {
///     done.result?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use = "it is done when it is submitted"]
pub struct Request {
    pub(super) tag: u64,
    pub(super) inode: Inode,
    pub(super) op: Op,
    pub(super) drains: bool,
    pub(super) timeout: Option<Duration>,
    pub(super) to_worker: bool,
}

impl Request {
    /// Creates a request for `op` on `inode`; `tag` comes back with the result.
    pub fn new(tag: u64, inode: &Inode, op: Op) -> Request {
        let inode = inode.clone();
        Request { tag, inode, op, drains: false, timeout: None, to_worker: false }
    }

    /// Makes the request a drain: it begins when everything submitted before is done, and nothing
    /// submitted later begins before it is done.
    pub fn drain(mut self) -> Request {
        self.drains = true;
        self
    }

    /// Cancels the operation ([`FsError::OperationCancelled`]) if it has not begun after `time`. An
    /// operation that has begun completes.
    pub fn timeout(mut self, time: Duration) -> Request {
        self.timeout = Some(time);
        self
    }

    /// Sends the operation to a worker even if it could be done at once, to spare the submitter's
    /// thread.
    pub fn on_worker(mut self) -> Request {
        self.to_worker = true;
        self
    }

    /// Returns the operation.
    pub fn into_op(self) -> Op {
        self.op
    }
}

/// A value that an operation returns besides its result.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Value {
    /// No value.
    #[default]
    Nothing,
    /// The buffers of a vectored operation.
    Buffers(Vec<Vec<u8>>),
    /// The buffer of a direct operation.
    Direct(AlignedBuffer),
    /// The inode found or created.
    Inode(Inode),
    /// The attributes.
    Metadata(Box<Metadata>),
}

/// Outcome of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// The tag given at submission.
    pub tag: u64,
    /// The result, as the variant of [`Op`] describes.
    pub result: Result<u64>,
    /// The buffer of the operation; after a read it begins with the bytes read.
    pub buffer: Vec<u8>,
    /// The value besides the result.
    pub value: Value,
    /// Whether the submitter's thread has done the operation.
    pub is_inline: bool,
}

impl Completion {
    /// Makes the completion of a finished operation, whose value is its memory.
    pub(super) fn of(tag: u64, result: Result<u64>, op: Op, is_inline: bool) -> Completion {
        let (buffer, value) = op.into_memory();
        Completion { tag, result, buffer, value, is_inline }
    }

    /// Makes the completion of an operation that never began.
    pub(super) fn cancelled(tag: u64, op: Op, why: &'static str) -> Completion {
        Completion::of(tag, Err(FsError::OperationCancelled { why }), op, false)
    }
}

/// The ring is full, and the operation was not accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// The operation, to be submitted again.
    pub op: Op,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many operations as the ring is deep are under way: take a result, then submit again")
    }
}

impl std::error::Error for Busy {}

/// The ring has no room for a whole chain, and none of it was accepted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChainBusy {
    /// The chain, to be submitted again.
    pub requests: Vec<Request>,
    /// The depth of the ring: a longer chain never fits.
    pub depth: usize,
}

impl fmt::Display for ChainBusy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (len, depth) = (self.requests.len(), self.depth);
        match len > depth {
            true => write!(
                f,
                "a chain of {len} operations never fits a ring of depth {depth}: open a deeper one"
            ),
            false => write!(
                f,
                "the ring has no room for {len} more operations: take results, then submit again"
            ),
        }
    }
}

impl std::error::Error for ChainBusy {}
