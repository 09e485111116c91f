//! Questions about files of the host that no crate asks: `FS_IOC_FSGETXATTR` and `file_getattr`.
//!
//! # Source
//!
//! Linux `include/uapi/linux/fs.h`, `struct fsxattr` and `struct file_attr`; the number of the system call from
//! `include/uapi/asm-generic/unistd.h`.
#![expect(unsafe_code)]

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd};

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

/// `struct file_attr`: flags (`FS_XFLAG_...`), two numbers about extents, the project, and one more about extents.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct FileAttr {
    pub(super) xflags: u64,
    extents: [u32; 2],
    pub(super) project: u32,
    cow_extent: u32,
}

/// Number of `file_getattr` where it is the same for every process of an architecture.
const FILE_GETATTR: Option<libc::c_long> = if cfg!(any(
    all(target_arch = "x86_64", target_pointer_width = "64"),
    target_arch = "aarch64",
    target_arch = "riscv64",
)) {
    Some(468)
} else {
    None
};

/// Flags and project id of the file `name` in `dir`, which is not opened, and not followed if it is a symlink.
///
/// # Errors
///
/// `ENOSYS` before Linux 6.17, `EOPNOTSUPP` where the file system has none.
pub(super) fn attr_of(dir: BorrowedFd<'_>, name: &CStr) -> Result<FileAttr, Errno> {
    let number = FILE_GETATTR.ok_or(Errno::NOSYS)?;
    let mut found = FileAttr::default();
    // SAFETY: the name ends with a NUL and lives as long as the call, and the kernel writes at most the size that it is
    // told, which is that of `found`; every bit pattern is a value of it.
    let answer = unsafe {
        libc::syscall(
            number,
            dir.as_raw_fd(),
            name.as_ptr(),
            &raw mut found,
            size_of::<FileAttr>(),
            libc::AT_SYMLINK_NOFOLLOW,
        )
    };
    match answer {
        0 => Ok(found),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}
