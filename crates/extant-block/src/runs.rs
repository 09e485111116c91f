//! Several runs of bytes from and to memory that the caller lends for one call.
//!
//! Owned buffers ([`Operation`](crate::Operation)) suit whoever has none yet. A page cache has its bytes in place and
//! must not copy them, so it lends them: the call returns when the device has let go of all of them.

use std::fmt;
use std::io::IoSlice;

/// Bytes to be stored in one contiguous range of a device, gathered from several places.
#[derive(Clone, Copy)]
pub struct WriteRun<'a> {
    /// Offset of the first byte on the device.
    pub offset: u64,
    /// The bytes, one part after the other.
    pub parts: &'a [IoSlice<'a>],
}

impl WriteRun<'_> {
    /// Returns the length of the run in bytes.
    pub fn length(&self) -> u64 {
        self.parts.iter().map(|part| part.len() as u64).sum()
    }
}

impl fmt::Debug for WriteRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteRun({} bytes at {})", self.length(), self.offset)
    }
}

/// Memory to be filled from one contiguous range of a device.
pub struct ReadRun<'a> {
    /// Offset of the first byte on the device.
    pub offset: u64,
    /// The memory; undefined contents after an error.
    pub out: &'a mut [u8],
}

impl fmt::Debug for ReadRun<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRun({} bytes at {})", self.out.len(), self.offset)
    }
}
