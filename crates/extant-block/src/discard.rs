//! Discards on block devices: `BLKDISCARD`.
//!
//! The contents of a discarded range are undefined.
#![expect(unsafe_code)]

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::io::Errno;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

/// The request `BLKDISCARD` of `linux/fs.h`, which takes a start and a length, both in bytes and of
/// 64 bits.
const BLKDISCARD: Opcode = opcode::none(0x12, 119);

/// Returns whether a block device reports that it supports discards; true where the system does not
/// tell.
pub(crate) fn is_offered(device: &Metadata) -> bool {
    let (major, minor) = (rustix::fs::major(device.rdev()), rustix::fs::minor(device.rdev()));
    let of_device = format!("/sys/dev/block/{major}:{minor}");
    // The limits of a partition are those of its disk.
    let limits = ["queue", "../queue"].map(|dir| Path::new(&of_device).join(dir));
    let limit =
        limits.iter().find_map(|dir| std::fs::read_to_string(dir.join("discard_max_bytes")).ok());
    limit.is_none_or(|limit| limit.trim() != "0")
}

/// Discards whole sectors of a block device that is open for writing. Returns false if the device
/// has no such operation.
pub(crate) fn discard(device: &File, start: u64, len: u64) -> io::Result<bool> {
    loop {
        let file = device.as_fd();
        // SAFETY: the number is that of an operation of all block devices, and `file` is one; it reads two
        // words of 64 bits, which are what `Setter` points to, and writes nothing.
        let done = unsafe { ioctl(file, Setter::<BLKDISCARD, [u64; 2]>::new([start, len])) };
        match done {
            Ok(()) => return Ok(true),
            Err(Errno::INTR) => {}
            Err(Errno::OPNOTSUPP | Errno::NOTTY | Errno::NOSYS) => return Ok(false),
            Err(errno) => return Err(errno.into()),
        }
    }
}
