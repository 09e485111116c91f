//! The length of a regular file, which whoever may write to it can change under a device.
//!
//! A write behind the end of a file makes it longer again, with zeros where there was something: no write
//! fails for that. What is said to be durable is so only if the file still has the length that it had, so
//! each flush looks; and so does each write that reaches the end of the device, since no other makes the
//! file as long as it was before the next flush looks.

use std::fs::File;

use rustix::fs::FileType;

use crate::error::DeviceFault;

/// Fails if `file`, a regular one, is shorter than a device of `size_bytes` over it. One call of the system
/// that reads nothing.
pub(crate) fn check_length(file: &File, size_bytes: u64) -> Result<(), DeviceFault> {
    let found = rustix::fs::fstat(file).map_err(|errno| DeviceFault::Io(errno.into()))?;
    let found_bytes = u64::try_from(found.st_size).unwrap_or(0);
    let is_regular = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if is_regular && found_bytes < size_bytes {
        return Err(DeviceFault::Shorter { was_bytes: size_bytes, found_bytes });
    }
    Ok(())
}
