//! The file that an image lies in: unlike a device, it grows.

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{BlockDevice, DeviceError, FileDevice, SharedDevice};
use rustix::fs::FallocateFlags;
use rustix::io::Errno;

/// Bytes that a file can get at once when it is asked for room and has to be written for it.
const PIECE_BYTES: u64 = 1 << 20;

/// The storage of an image. Offsets and lengths are in bytes.
pub trait Store: Send + Sync {
    /// Returns the number of bytes. Reads behind them return zeros.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether the store has no bytes.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Fills `out` from byte `offset`, with zeros behind the end.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;

    /// Stores `bytes` at byte `offset`; the store grows as needed.
    ///
    /// # Errors
    ///
    /// Those of the system; some of the bytes may be stored then.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes everything that was written durable.
    ///
    /// # Errors
    ///
    /// Those of the system: writes since the last success are in doubt then.
    fn sync(&self) -> io::Result<()>;

    /// Releases the disk space of a range, if possible. Its contents are undefined afterwards.
    fn punch(&self, offset: u64, len: u64);

    /// Allocates disk space for a range; its contents stay.
    ///
    /// # Errors
    ///
    /// Those of the system.
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()>;

    /// Returns whether the bytes behind [`len`](Self::len) are known to be zeros once the store
    /// grows over them.
    fn grows_with_zeros(&self) -> bool;

    /// As [`BlockDevice::near_bytes`].
    fn near_bytes(&self) -> u64 {
        0
    }

    /// As [`BlockDevice::bring_near`].
    fn bring_near(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }
}

/// A file or block device of the host, open and, for writing, locked.
pub struct FileStore {
    device: FileDevice,
    len: AtomicU64,
}

impl FileStore {
    /// The store in what `device` has open.
    pub fn new(device: FileDevice) -> FileStore {
        let len = AtomicU64::new(device.size_bytes());
        FileStore { device, len }
    }
}

impl Store for FileStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.len.load(Ordering::Acquire))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < out.len() {
            match self.device.file().read_at(&mut out[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        out[done..].fill(0);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.device.file().write_all_at(bytes, offset)?;
        self.len.fetch_max(offset + bytes.len() as u64, Ordering::AcqRel);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.device.file().sync_data()
    }

    fn punch(&self, offset: u64, len: u64) {
        let end = (offset + len).min(self.len.load(Ordering::Acquire));
        if offset < end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // A wish: file systems that cannot do it keep the room.
            let _ = rustix::fs::fallocate(self.device.file(), flags, offset, end - offset);
        }
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        let given = loop {
            match rustix::fs::fallocate(self.device.file(), FallocateFlags::empty(), offset, len) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match given {
            Ok(()) => {
                self.len.fetch_max(offset + len, Ordering::AcqRel);
                Ok(())
            }
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
                rewrite(self, offset, len)
            }
            Err(errno) => Err(errno.into()),
        }
    }

    fn grows_with_zeros(&self) -> bool {
        !self.device.is_block_device()
    }
}

/// Gives a range room by writing what it holds.
fn rewrite(store: &impl Store, offset: u64, len: u64) -> io::Result<()> {
    let mut at = offset;
    while at < offset + len {
        let mut bytes = vec![0; PIECE_BYTES.min(offset + len - at) as usize];
        store.read_at(at, &mut bytes)?;
        store.write_at(at, &bytes)?;
        at += bytes.len() as u64;
    }
    Ok(())
}

/// A device of a fixed size that holds an image: a disk, or one behind a network.
pub struct DeviceStore(SharedDevice);

impl DeviceStore {
    /// The store in `device`.
    pub fn new(device: SharedDevice) -> DeviceStore {
        DeviceStore(device)
    }
}

fn from_device(error: DeviceError) -> io::Error {
    error.into()
}

impl Store for DeviceStore {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.size_bytes())
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = self.0.size_bytes().saturating_sub(offset).min(out.len() as u64) as usize;
        let (inside, behind) = out.split_at_mut(there);
        behind.fill(0);
        if inside.is_empty() {
            return Ok(());
        }
        self.0.read_at(offset, inside).map_err(from_device)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        if offset.saturating_add(bytes.len() as u64) > self.0.size_bytes() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.0.write_at(offset, bytes).map_err(from_device)
    }

    fn near_bytes(&self) -> u64 {
        self.0.near_bytes()
    }

    fn bring_near(&self, ranges: &[Range<u64>]) {
        self.0.bring_near(ranges);
    }

    fn sync(&self) -> io::Result<()> {
        self.0.flush().map_err(from_device)
    }

    fn punch(&self, offset: u64, len: u64) {
        // A wish.
        let _ = self.0.discard(offset, len);
    }

    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        self.0.allocate(offset, len).map_err(from_device)
    }

    fn grows_with_zeros(&self) -> bool {
        false
    }
}

impl<S: Store + ?Sized> Store for Arc<S> {
    fn len(&self) -> io::Result<u64> {
        (**self).len()
    }
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, out)
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        (**self).write_at(offset, bytes)
    }
    fn sync(&self) -> io::Result<()> {
        (**self).sync()
    }
    fn punch(&self, offset: u64, len: u64) {
        (**self).punch(offset, len);
    }
    fn allocate(&self, offset: u64, len: u64) -> io::Result<()> {
        (**self).allocate(offset, len)
    }
    fn grows_with_zeros(&self) -> bool {
        (**self).grows_with_zeros()
    }
}
