//! What can be submitted, and what comes back.

use std::fmt;
use std::ops::Range;

use crate::error::Result;
use crate::file::Fallocate;

/// One operation on a regular file. Its buffer is the ring's until the result brings it back.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Op {
    /// [`read_at`](crate::Inode::read_at) into the whole buffer. The result is how many bytes; fewer than the buffer
    /// has only at the end of the file.
    Read {
        /// First byte of the file.
        offset: u64,
        /// As long as what is wanted; what is in it does not matter.
        buffer: Vec<u8>,
    },
    /// [`write_at`](crate::Inode::write_at). The result is how many bytes; fewer only when an error came in the way.
    Write {
        /// First byte of the file.
        offset: u64,
        /// What is written.
        bytes: Vec<u8>,
    },
    /// [`append`](crate::Inode::append). The result is the offset. When an error comes in the way of a part of it, the
    /// rest is at the end of the file or nowhere: others may have appended in between.
    Append {
        /// What is written.
        bytes: Vec<u8>,
    },
    /// [`sync`](crate::Inode::sync), with every change of the file that was submitted before. The result is 0.
    Sync,
    /// [`sync_data`](crate::Inode::sync_data), likewise.
    SyncData,
    /// [`truncate`](crate::Inode::truncate). The result is 0.
    Truncate {
        /// The new size in bytes.
        size: u64,
    },
    /// [`fallocate`](crate::Inode::fallocate). The result is 0.
    Fallocate {
        /// What happens to the range.
        mode: Fallocate,
        /// Bytes of the file.
        range: Range<u64>,
    },
}

impl Op {
    /// Whether it changes the file, and so has a place among others that do.
    pub(super) fn is_change(&self) -> bool {
        !matches!(self, Op::Read { .. } | Op::Sync | Op::SyncData)
    }

    /// Whether it always goes to a worker.
    pub(super) fn always_waits(&self) -> bool {
        !matches!(self, Op::Read { .. } | Op::Write { .. } | Op::Append { .. })
    }

    /// The buffer; empty for operations without one.
    pub fn into_buffer(self) -> Vec<u8> {
        match self {
            Op::Read { buffer: bytes, .. } | Op::Write { bytes, .. } | Op::Append { bytes } => {
                bytes
            }
            Op::Sync | Op::SyncData | Op::Truncate { .. } | Op::Fallocate { .. } => Vec::new(),
        }
    }
}

/// What became of an operation.
#[derive(Debug)]
#[non_exhaustive]
pub struct Completion {
    /// What the operation was submitted with.
    pub tag: u64,
    /// As the variant of [`Op`] says.
    pub result: Result<u64>,
    /// The buffer of the operation; of a read, what was read in front.
    pub buffer: Vec<u8>,
    /// Whether the submitter's thread has done it.
    pub is_inline: bool,
}

/// The ring is full. Nothing has happened to the operation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Busy {
    /// It, to be submitted again.
    pub op: Op,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("as many operations as the ring is deep are under way: take a result, then submit again")
    }
}

impl std::error::Error for Busy {}
