//! Project ids of files: `FS_IOC_FSGETXATTR`.
#![expect(unsafe_code)]

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// `struct fsxattr` of `linux/fs.h`: flags, two numbers about extents, the project, and what is of no use here.
#[repr(C)]
#[derive(Clone, Copy)]
struct FsXattr {
    words: [u32; 5],
    pad: [u8; 8],
}

/// Place of the project among the words.
const PROJECT: usize = 3;

const FSGETXATTR: Opcode = opcode::read::<FsXattr>(b'X', 31);

/// The project id of an open file or directory.
///
/// # Errors
///
/// `ENOTTY` and others where the file system has none.
pub(super) fn project_of(file: BorrowedFd<'_>) -> Result<u32, Errno> {
    // SAFETY: whatever the file is, a system call with this number writes at most the structure of this size, which is
    // what `Getter` points to, and every bit pattern is a value of it.
    let found = unsafe { ioctl(file, Getter::<FSGETXATTR, FsXattr>::new()) };
    found.map(|found| found.words[PROJECT])
}
