//! Reading what is on a device now, whatever of it this host has in memory.
//!
//! A host keeps blocks of a disk in its page cache. Where several hosts share the disk, what is kept says
//! nothing of what another one has written since: a heartbeat that is read twice from the cache never
//! moves.

use std::num::NonZeroU64;

use rustix::fs::Advice;

use crate::device::BlockDevice;
use crate::error::DeviceError;

/// Size of a page at least, in bytes: parts of pages are not let go.
const PAGE: u64 = 64 << 10;

/// Fills `out` from byte `offset`, as [`read_at`](BlockDevice::read_at) does, after the host has let go of
/// what it keeps of it in memory. What this host has written and not [flushed](BlockDevice::flush) is written
/// first by the system.
///
/// Devices without a file are read as they are: none of them keeps what another host may change.
///
/// # Errors
///
/// As [`read_at`](BlockDevice::read_at).
pub fn read_fresh_at(
    device: &dyn BlockDevice,
    offset: u64,
    out: &mut [u8],
) -> Result<(), DeviceError> {
    if let Some((file, base)) = device.as_file() {
        let at = base.saturating_add(offset);
        let start = at - at % PAGE;
        let len = at.saturating_add(out.len() as u64).next_multiple_of(PAGE) - start;
        // Where there is no such thing, nothing is kept either.
        let _ = rustix::fs::fadvise(file, start, NonZeroU64::new(len), Advice::DontNeed);
    }
    device.read_at(offset, out)
}
