//! A sparse device in memory.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustc_hash::FxHashMap;

use extant_sync::{Rank, RwLock, check_may_wait};

use crate::device::{BlockDevice, check_range, run_in_place};
use crate::error::{DeviceError, OperationKind};
use crate::operation::{Operation, Pending};

/// Bytes per page, the unit of storage and of atomicity.
const PAGE_BYTES: usize = 4096;
/// Number of locks over the pages. Neighbouring pages have different locks.
const SHARD_COUNT: usize = 64;

/// A page, shared with the snapshots taken since its last write.
type Page = Arc<[u8; PAGE_BYTES]>;
type Shard = RwLock<FxHashMap<u64, Page>>;

/// Sparse memory: 16 TiB cost nothing until pages are written.
///
/// Parallel operations take one of 64 locks per page of 4 KiB, one at a time; operations that
/// overlap within a page happen one after the other, across pages in any mixture.
///
/// ```
/// use extant_block::{BlockDevice, MemoryDevice};
/// let device = MemoryDevice::new(1 << 44);
/// device.write_at((1 << 44) - 3, b"end")?;
/// let mut bytes = [0xff; 4];
/// device.read_at((1 << 44) - 4, &mut bytes)?;
/// assert_eq!(&bytes, b"\0end");
/// assert_eq!(device.stored_bytes(), 4096);
/// # Ok::<(), extant_block::DeviceError>(())
/// ```
pub struct MemoryDevice {
    name: Arc<str>,
    size_bytes: AtomicU64,
    /// Value of bytes that were never written.
    fill: u8,
    shards: Box<[Shard]>,
}

impl MemoryDevice {
    /// Creates a device of `size_bytes` zeros.
    pub fn new(size_bytes: u64) -> MemoryDevice {
        MemoryDevice::filled_with(0, size_bytes)
    }

    /// Creates a device where every byte reads as `fill` until it is written, so that tests notice
    /// reads of bytes that were never written.
    pub fn filled_with(fill: u8, size_bytes: u64) -> MemoryDevice {
        let shards = (0..SHARD_COUNT).map(|_| RwLock::new(Rank::Leaf, FxHashMap::default()));
        MemoryDevice {
            name: "memory".into(),
            size_bytes: AtomicU64::new(size_bytes),
            fill,
            shards: shards.collect(),
        }
    }

    /// Creates a device that holds a copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> MemoryDevice {
        let device = MemoryDevice::new(bytes.len() as u64);
        device.put(0, bytes);
        device
    }

    /// Returns the same device under another name in messages.
    #[must_use]
    pub fn named(self, name: &str) -> MemoryDevice {
        MemoryDevice { name: name.into(), ..self }
    }

    /// Returns the number of bytes in the pages of this device, including shared ones, without the
    /// tables.
    pub fn stored_bytes(&self) -> u64 {
        let pages: usize = self.shards.iter().map(|shard| shard.read().len()).sum();
        (pages * PAGE_BYTES) as u64
    }

    /// Returns an independent copy, which shares every page until one side writes it; the cost is
    /// that of the page tables. The copy is consistent only without concurrent writes.
    #[must_use]
    pub fn snapshot(&self) -> MemoryDevice {
        let copy = |shard: &Shard| RwLock::new(Rank::Leaf, shard.read().clone());
        MemoryDevice {
            name: Arc::clone(&self.name),
            size_bytes: AtomicU64::new(self.size_bytes()),
            fill: self.fill,
            shards: self.shards.iter().map(copy).collect(),
        }
    }

    /// Calls `each` with every stored page in order: its offset in bytes, and its bytes, which the
    /// device's end may cut short. Pages left out read as the fill byte.
    ///
    /// # Errors
    ///
    /// The first error of `each`.
    pub fn for_each_page<E>(
        &self,
        mut each: impl FnMut(u64, &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut indexes: Vec<u64> =
            self.shards.iter().flat_map(|s| s.read().keys().copied().collect::<Vec<_>>()).collect();
        indexes.sort_unstable();
        for index in indexes {
            let offset = index * PAGE_BYTES as u64;
            let len = (self.size_bytes() - offset).min(PAGE_BYTES as u64) as usize;
            // The page is cloned, so that `each` may use the device.
            let page = self.shard(index).read().get(&index).cloned();
            if let Some(page) = page {
                each(offset, &page[..len])?;
            }
        }
        Ok(())
    }

    fn shard(&self, page_index: u64) -> &Shard {
        &self.shards[(page_index % SHARD_COUNT as u64) as usize]
    }

    /// Stores bytes that were checked to lie on the device.
    fn put(&self, offset: u64, bytes: &[u8]) {
        let mut rest = bytes;
        for (index, within, len) in pieces(offset, bytes.len() as u64) {
            let (piece, tail) = rest.split_at(len);
            rest = tail;
            let mut pages = self.shard(index).write();
            if let Some(page) = pages.get_mut(&index) {
                Arc::make_mut(page)[within..within + len].copy_from_slice(piece);
            } else if piece.iter().any(|byte| *byte != self.fill) {
                let mut page = [self.fill; PAGE_BYTES];
                page[within..within + len].copy_from_slice(piece);
                pages.insert(index, Arc::new(page));
            }
        }
    }

    /// Makes a checked range read as `byte`.
    fn set(&self, offset: u64, len: u64, byte: u8) {
        // Only stored pages matter when `byte` is the fill anyway: a discard of 16 TiB must not
        // visit four thousand million absent pages.
        if byte == self.fill && len > 1 << 20 {
            let end = offset + len;
            let whole = offset.div_ceil(PAGE_BYTES as u64)..end / PAGE_BYTES as u64;
            for shard in &self.shards {
                shard.write().retain(|index, _| !whole.contains(index));
            }
            let head = whole.start * PAGE_BYTES as u64;
            let tail = whole.end * PAGE_BYTES as u64;
            self.set_pages(offset, head - offset, byte);
            self.set_pages(tail, end - tail, byte);
        } else {
            self.set_pages(offset, len, byte);
        }
    }

    fn set_pages(&self, offset: u64, len: u64, byte: u8) {
        for (index, within, len) in pieces(offset, len) {
            let mut pages = self.shard(index).write();
            if byte == self.fill && len == PAGE_BYTES {
                pages.remove(&index);
            } else if let Some(page) = pages.get_mut(&index) {
                Arc::make_mut(page)[within..within + len].fill(byte);
            } else if byte != self.fill {
                let mut page = [self.fill; PAGE_BYTES];
                page[within..within + len].fill(byte);
                pages.insert(index, Arc::new(page));
            }
        }
    }
}

/// Cuts a range of bytes at page limits into page index, offset within the page, and length. The
/// caller has checked that `offset + len` does not overflow.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut at, end) = (offset, offset + len);
    std::iter::from_fn(move || {
        let within = at % PAGE_BYTES as u64;
        let len = (PAGE_BYTES as u64 - within).min(end - at);
        let piece = (at / PAGE_BYTES as u64, within as usize, len as usize);
        at += len;
        (len > 0).then_some(piece)
    })
}

impl BlockDevice for MemoryDevice {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        check_may_wait("a device");
        run_in_place(self, batch)
    }

    fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Adds bytes of the fill.
    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        self.size_bytes.fetch_max(size_bytes, Ordering::AcqRel);
        Ok(self.size_bytes())
    }

    fn can_extend(&self) -> bool {
        true
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        check_range(self, OperationKind::Read, offset, out.len() as u64)?;
        let mut rest = out;
        for (index, within, len) in pieces(offset, rest.len() as u64) {
            let (piece, tail) = rest.split_at_mut(len);
            rest = tail;
            match self.shard(index).read().get(&index) {
                Some(page) => piece.copy_from_slice(&page[within..within + len]),
                None => piece.fill(self.fill),
            }
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        check_range(self, OperationKind::Write, offset, bytes.len() as u64)?;
        self.put(offset, bytes);
        Ok(())
    }

    fn flush(&self) -> Result<(), DeviceError> {
        check_may_wait("a device");
        Ok(())
    }

    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        check_range(self, OperationKind::Discard, offset, len)?;
        self.set(offset, len, self.fill);
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        check_range(self, OperationKind::WriteZeroes, offset, len)?;
        self.set(offset, len, 0);
        Ok(())
    }
}

impl fmt::Debug for MemoryDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryDevice({}, {} bytes)", self.name, self.size_bytes())
    }
}
