//! A device on a disk that fills up: pages need disk space when they are first written.
//!
//! # Invariants
//!
//! - N1. The pages with space never exceed the limit; lowering the limit takes none away.
//! - N2. A write that does not find space for its whole range stores nothing.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use extant_sync::{Mutex, Rank};

use crate::device::{BlockDevice, check_range, run_in_place};
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::memory::MemoryDevice;
use crate::operation::{Operation, Pending};

/// Bytes of a page, the unit of allocation.
const PAGE_BYTES: u64 = 4096;
/// Linux errno of "no space left on device".
const ENOSPC: i32 = 28;

/// The pages that have space, and their limit.
struct Room {
    pages: BTreeSet<u64>,
    limit: u64,
}

/// A memory device that behaves as a sparse file on a disk that others fill: a write to a page
/// without space allocates some, and fails with `ENOSPC` when there is none. Discards release the
/// space of whole pages.
pub struct ThinDevice {
    inner: MemoryDevice,
    room: Mutex<Room>,
}

impl ThinDevice {
    /// Creates a device over `inner`, whose stored pages have space, with `spare_bytes` more on the
    /// disk.
    pub fn new(inner: MemoryDevice, spare_bytes: u64) -> ThinDevice {
        let mut pages = BTreeSet::new();
        let stored: Result<(), ()> = inner.for_each_page(|offset, bytes| {
            // Pages of zeros are holes, as after a copy by a tool that keeps files sparse.
            if bytes.iter().any(|byte| *byte != 0) {
                pages.insert(offset / PAGE_BYTES);
            }
            Ok(())
        });
        debug_assert!(stored.is_ok(), "nothing fails there");
        let limit = pages.len() as u64 + spare_bytes / PAGE_BYTES;
        ThinDevice { inner, room: Mutex::new(Rank::Device, Room { pages, limit }) }
    }

    /// Frees `bytes` of the disk.
    pub fn add_spare(&self, bytes: u64) {
        self.room.lock().limit += bytes / PAGE_BYTES;
    }

    /// Fills the disk except for `bytes`.
    pub fn leave_spare(&self, bytes: u64) {
        let mut room = self.room.lock();
        room.limit = room.pages.len() as u64 + bytes / PAGE_BYTES;
    }

    /// Returns the number of free bytes on the disk.
    pub fn spare(&self) -> u64 {
        let room = self.room.lock();
        (room.limit - room.pages.len() as u64) * PAGE_BYTES
    }

    /// Returns a copy of the contents; see [`MemoryDevice::snapshot`].
    #[must_use]
    pub fn snapshot(&self) -> MemoryDevice {
        self.inner.snapshot()
    }

    /// Allocates space for a range, or fails and allocates none.
    fn take(&self, kind: OperationKind, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(self, kind, offset, len)?;
        let mut room = self.room.lock();
        let missing: Vec<u64> =
            pages(offset, len).filter(|page| !room.pages.contains(page)).collect();
        if (room.pages.len() + missing.len()) as u64 > room.limit {
            let fault = DeviceFault::Io(io::Error::from_raw_os_error(ENOSPC));
            return Err(DeviceError::new(self.describe(), kind, offset, len, fault));
        }
        room.pages.extend(missing);
        Ok(())
    }

    /// Releases the space of the whole pages of a range.
    fn give_back(&self, offset: u64, len: u64) {
        let whole = offset.div_ceil(PAGE_BYTES)..(offset + len) / PAGE_BYTES;
        let mut room = self.room.lock();
        for page in whole {
            room.pages.remove(&page);
        }
    }
}

/// Returns the pages that a range touches.
fn pages(offset: u64, len: u64) -> Range<u64> {
    offset / PAGE_BYTES..if len == 0 {
        offset / PAGE_BYTES
    } else {
        (offset + len).div_ceil(PAGE_BYTES)
    }
}

impl BlockDevice for ThinDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        self.inner.extend(size_bytes)
    }

    fn can_extend(&self) -> bool {
        self.inner.can_extend()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.inner.describe()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        self.inner.read_at(offset, out)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        self.take(OperationKind::Write, offset, bytes.len() as u64)?;
        self.inner.write_at(offset, bytes)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.write_zeroes(offset, len)?;
        self.give_back(offset, len);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.inner.write_zeroes(offset, len)?;
        self.give_back(offset, len);
        Ok(())
    }

    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        self.take(OperationKind::Allocate, offset, len)
    }
}

impl fmt::Debug for ThinDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ThinDevice({:?}, {} bytes left)", self.inner, self.spare())
    }
}
