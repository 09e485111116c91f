//! Regular files and block devices, by positional I/O.

mod device;
mod opening;
mod space;

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{OFlags, SeekFrom};

pub use self::opening::{OpenError, lock_holder, loop_device_over};
use self::opening::{io_error, is_in_memory, judge_lock, lock, not_a_device, open_writable};
use crate::device::{BlockDevice, check_range};
use crate::discard;
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::length::check_length;
use crate::queue::DeviceEngine;
use crate::rings::{self, Rings, reason};
use crate::room::Room;

/// Bytes of a block of `st_blocks`.
const STAT_BLOCK_BYTES: u64 = 512;

/// A regular file or a block device.
///
/// A device open for writing holds an exclusive advisory lock (`flock`) for as long as it lives, so
/// that writers of this crate, and other programs that take this lock, exclude each other. A block
/// device is also opened with `O_EXCL`, which the kernel refuses while the device is mounted.
/// That the kernel has a file as a loop device, only [`refuse_loop_device`](Self::refuse_loop_device) sees.
/// Readers take no lock: a reader next to a writer may see half of a change.
///
/// A regular file that somebody else makes shorter fails at the next flush, with [`DeviceFault::Shorter`].
///
/// Operations need no alignment. FUA writes of a batch are a write and a flush.
pub struct FileDevice {
    file: File,
    name: Arc<str>,
    /// The size, shared with queues, which have the file open again.
    size_bytes: Arc<AtomicU64>,
    logical_sector_bytes: u32,
    is_read_only: bool,
    is_block_device: bool,
    /// Whether parts of the file may lack disk space, so that writes there must allocate it.
    has_holes: AtomicBool,
    /// The parts of the file that have disk space.
    room: Room,
    /// Number of times the system was asked for a hole.
    #[cfg(test)]
    asked: std::sync::atomic::AtomicU64,
    /// Number of times the system was asked for space.
    #[cfg(test)]
    filled: std::sync::atomic::AtomicU64,
    /// Whether it is as on a file system that tells of holes and cannot fill them.
    #[cfg(test)]
    cannot_fill: AtomicBool,
    /// Whether discards are tried: on any file, and on a block device that reports them.
    discards: bool,
    /// Rings for runs, and whether they are used.
    rings: Box<Rings>,
}

impl FileDevice {
    /// Opens a file for reading only (`O_RDONLY`). No operation on the device changes a byte.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`], [`OpenError::NotADevice`].
    pub fn open_read_only(path: impl AsRef<Path>) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        // Without O_NONBLOCK, opening a fifo would wait for its other end. The flag has no effect
        // on other files.
        let flags = OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(flags.bits().cast_signed())
            .open(path)
            .map_err(|source| io_error("open", path, source))?;
        FileDevice::with_file(file, path, true)
    }

    /// Opens an existing file or block device for reading and writing, and locks it. A lock that another process has is
    /// waited for, a tenth of a second at most.
    ///
    /// # Errors
    ///
    /// Any [`OpenError`].
    pub fn open_read_write(path: impl AsRef<Path>) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        let metadata = std::fs::metadata(path).map_err(|source| io_error("open", path, source))?;
        let is_block_device = metadata.file_type().is_block_device();
        let flags = if is_block_device { OFlags::EXCL } else { OFlags::empty() };
        open_writable(path, flags)
    }

    /// Opens a block device like [`open_read_write`](Self::open_read_write), but not exclusively,
    /// because the kernel holds it for a mount that the caller serves.
    ///
    /// # Errors
    ///
    /// Any [`OpenError`]; [`OpenError::Busy`] where the kernel does not allow writes to a device
    /// that it holds.
    pub fn open_claimed(path: impl AsRef<Path>) -> Result<FileDevice, OpenError> {
        open_writable(path.as_ref(), OFlags::empty())
    }

    /// Creates a regular file of `size_bytes` zeros, all of it a hole, and locks it.
    ///
    /// # Errors
    ///
    /// [`OpenError::Io`]; of kind `AlreadyExists` if `path` exists. A file that could not get its
    /// size is removed again.
    pub fn create_new(path: impl AsRef<Path>, size_bytes: u64) -> Result<FileDevice, OpenError> {
        let path = path.as_ref();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(|source| io_error("create", path, source))?;
        let device = file
            .set_len(size_bytes)
            .map_err(|source| io_error("set the size of", path, source))
            .and_then(|()| FileDevice::with_file(file, path, false));
        if device.is_err() {
            // The first error is reported.
            let _ = std::fs::remove_file(path);
        }
        device
    }

    /// Uses a file that is open already, such as a temporary one. `path` is its name in messages;
    /// it is not opened. Unless `is_read_only`, the file is locked and can be written to.
    ///
    /// # Errors
    ///
    /// [`OpenError::NotADevice`], [`OpenError::Locked`], [`OpenError::Io`].
    pub fn with_file(file: File, path: &Path, is_read_only: bool) -> Result<FileDevice, OpenError> {
        let examine = || file.metadata().map_err(|source| io_error("examine", path, source));
        let mut metadata = examine()?;
        let is_block_device = metadata.file_type().is_block_device();
        if let Some(what) = not_a_device(&metadata) {
            return Err(OpenError::NotADevice { path: path.to_owned(), what });
        }
        if !is_read_only {
            lock(&file, &metadata, path)?;
            // Who had the lock may have made it longer or shorter.
            metadata = examine()?;
        }
        let (size_bytes, logical_sector_bytes) = if is_block_device {
            let measure = rustix::fs::seek(&file, SeekFrom::End(0))
                .and_then(|bytes| Ok((bytes, rustix::fs::ioctl_blksszget(&file)?)));
            measure.map_err(|errno| io_error("measure", path, errno.into()))?
        } else {
            (metadata.len(), 512)
        };
        let name = path.display().to_string().into();
        let is_in_memory = !is_block_device && is_in_memory(&file);
        let device = FileDevice {
            file,
            name,
            size_bytes: Arc::new(AtomicU64::new(size_bytes)),
            logical_sector_bytes,
            is_read_only,
            is_block_device,
            has_holes: AtomicBool::new(false),
            room: Room::default(),
            #[cfg(test)]
            asked: std::sync::atomic::AtomicU64::new(0),
            #[cfg(test)]
            filled: std::sync::atomic::AtomicU64::new(0),
            #[cfg(test)]
            cannot_fill: AtomicBool::new(false),
            discards: !is_block_device || discard::is_offered(&metadata),
            rings: Box::new(Rings::new(is_in_memory, is_block_device)),
        };
        let device = device.with_engine(rings::default_engine())?;
        if !is_read_only && !is_block_device {
            // Where memory holds the file, to look for a hole is to look at every page, and the count is exact.
            let space = metadata.blocks().saturating_mul(STAT_BLOCK_BYTES);
            let has_holes = match space < size_bytes {
                true => true,
                false if is_in_memory => false,
                false => {
                    let holes = device.next_hole(0..size_bytes);
                    holes.map_err(|source| io_error("examine", path, source))?.is_some()
                }
            };
            device.has_holes.store(has_holes, Ordering::Relaxed);
        }
        Ok(device)
    }

    /// Locks out writers of this crate, and other programs that take the same lock, from a file
    /// that is open for reading, for the life of this device. Other readers may do the same.
    ///
    /// # Errors
    ///
    /// [`OpenError::Locked`] while another process has the file open for writing;
    /// [`OpenError::Io`].
    pub fn exclude_writers(&self) -> Result<(), OpenError> {
        if !self.is_read_only {
            return Ok(());
        }
        let path = Path::new(&*self.name);
        let failed = |source| io_error("lock", path, source);
        judge_lock(self.file.try_lock_shared(), &self.file.metadata().map_err(failed)?, path)
    }

    /// Chooses the engine; otherwise it is that of
    /// [`set_default_engine`](crate::set_default_engine).
    ///
    /// # Errors
    ///
    /// [`OpenError::NoEngine`].
    pub fn with_engine(mut self, engine: DeviceEngine) -> Result<FileDevice, OpenError> {
        let path = PathBuf::from(&*self.name);
        let chosen = self.rings.choose(engine, &self.file);
        chosen.map_err(|error| OpenError::NoEngine { path, why: reason(&error) })?;
        Ok(self)
    }

    /// Makes what the engine needs for `threads` threads (4 at most), for a process that is about to
    /// give up the right to make it.
    pub fn prepare_engine(&self, threads: usize) {
        self.rings.prepare(&self.file, threads);
    }

    /// Returns whether the file is a block device, not a regular file.
    pub fn is_block_device(&self) -> bool {
        self.is_block_device
    }

    fn size(&self) -> u64 {
        self.size_bytes.load(Ordering::Acquire)
    }

    /// Returns the file underneath, for operations that devices do not have: `sync`, times, links.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Opens the file again, without its lock: the kernel may keep a descriptor for a moment after a
    /// ring has ended, and a copy of this one would keep the lock with it.
    fn unlocked_again(&self) -> io::Result<FileDevice> {
        let file = OpenOptions::new()
            .read(true)
            .write(!self.is_read_only)
            .custom_flags(OFlags::CLOEXEC.bits().cast_signed())
            .open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        Ok(FileDevice {
            file,
            name: Arc::clone(&self.name),
            size_bytes: Arc::clone(&self.size_bytes),
            has_holes: AtomicBool::new(self.has_holes.load(Ordering::Relaxed)),
            room: Room::default(),
            #[cfg(test)]
            asked: std::sync::atomic::AtomicU64::new(0),
            #[cfg(test)]
            filled: std::sync::atomic::AtomicU64::new(0),
            #[cfg(test)]
            cannot_fill: AtomicBool::new(false),
            rings: Box::new(self.rings.again()),
            ..*self
        })
    }

    /// Checks a write before it is done: its range, and the length of the file if it reaches the end of the
    /// device, where it would make a file long again that somebody has cut off.
    fn check_write(&self, kind: OperationKind, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_range(self, kind, offset, len)?;
        let size_bytes = self.size();
        if offset + len < size_bytes || self.is_block_device {
            return Ok(());
        }
        check_length(&self.file, size_bytes).map_err(|fault| self.error(kind, offset, len, fault))
    }

    fn error(&self, kind: OperationKind, offset: u64, len: u64, fault: DeviceFault) -> DeviceError {
        DeviceError::new(self.describe(), kind, offset, len, fault)
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDevice({}, {} bytes)", self.name, self.size())
    }
}
