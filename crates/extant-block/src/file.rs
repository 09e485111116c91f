//! Regular files and block devices, by positional I/O.

use std::fmt;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags, retry_on_intr};

use extant_sync::check_may_wait;

use crate::device::{BlockDevice, check_range, run_in_place};
use crate::discard;
use crate::error::{DeviceError, DeviceFault, OperationKind};
use crate::lent::Lent;
use crate::operation::{Completion, Operation, Pending};
use crate::queue::{DeviceEngine, EngineInfo, LastingQueue, Portable, Queue, QueueOptions};
use crate::rings::{self, Rings, reason};
use crate::room::Room;
use crate::runs::{ReadRun, WriteRun};
use crate::uring::Uring;

/// Length of the longest piece of explicit zeros, in bytes.
const ZERO_PIECE_BYTES: usize = 1 << 20;

/// Limit of the parts of one vectored write, as set by the system.
const VECTOR_MAX: usize = 1024;

/// Reason why a file could not be opened as a device.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The file cannot be opened, created, measured or set to its size.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The path leads to neither a regular file nor a block device.
    #[error("{} is a {what}, not a regular file or a block device", path.display())]
    NotADevice {
        /// The file.
        path: PathBuf,
        /// Kind of the file.
        what: &'static str,
    },
    /// Another process writes to the file, or has it open for writing.
    #[error("{} is in use by {}", path.display(), holder.as_deref().unwrap_or("another program"))]
    Locked {
        /// The file.
        path: PathBuf,
        /// Program and process number of the holder, where the system tells.
        holder: Option<String>,
    },
    /// io_uring was demanded, and the system does not give it.
    #[error("no io_uring for {}: {why}", path.display())]
    NoEngine {
        /// The file.
        path: PathBuf,
        /// Reason of the system.
        why: Arc<str>,
    },
    /// The block device is mounted, part of an array, or open exclusively elsewhere.
    #[error("{} is mounted or in use by the kernel", path.display())]
    Busy {
        /// The file.
        path: PathBuf,
    },
}

/// A regular file or a block device.
///
/// A device open for writing holds an exclusive advisory lock (`flock`) for as long as it lives, so
/// that writers of this crate, and other programs that take this lock, exclude each other. A block
/// device is also opened with `O_EXCL`, which the kernel refuses while the device is mounted.
/// Readers take no lock: a reader next to a writer may see half of a change.
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

    /// Opens an existing file or block device for reading and writing, and locks it.
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
        let metadata = file.metadata().map_err(|source| io_error("examine", path, source))?;
        let is_block_device = metadata.file_type().is_block_device();
        if let Some(what) = not_a_device(&metadata) {
            return Err(OpenError::NotADevice { path: path.to_owned(), what });
        }
        if !is_read_only {
            lock(&file, &metadata, path)?;
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
            discards: !is_block_device || discard::is_offered(&metadata),
            rings: Box::new(Rings::new(is_in_memory, is_block_device)),
        };
        let device = device.with_engine(rings::default_engine())?;
        if !is_read_only && !is_block_device {
            let holes = device.next_hole(0..size_bytes);
            let has_holes = holes.map_err(|source| io_error("examine", path, source))?.is_some();
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
            rings: Box::new(self.rings.again()),
            ..*self
        })
    }

    fn error(&self, kind: OperationKind, offset: u64, len: u64, fault: DeviceFault) -> DeviceError {
        DeviceError::new(self.describe(), kind, offset, len, fault)
    }

    /// Returns the whole sectors inside a range: a block device refuses to zero anything else, and
    /// a file has no such limit.
    fn whole_sectors(&self, offset: u64, len: u64) -> (u64, u64) {
        if !self.is_block_device {
            return (offset, offset + len);
        }
        let sector = u64::from(self.logical_sector_bytes);
        let end = (offset + len) / sector * sector;
        let start = offset.div_ceil(sector).saturating_mul(sector).min(end);
        (start, end)
    }

    fn fallocate(&self, mode: FallocateFlags, offset: u64, len: u64) -> Result<bool, io::Error> {
        if len == 0 {
            return Ok(true);
        }
        loop {
            match rustix::fs::fallocate(&self.file, mode, offset, len) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => {}
                // These are the answers of file systems and disks without the operation.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL | Errno::NODEV) => {
                    return Ok(false);
                }
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Returns the first part without disk space from `range.start` on, as far as the host file
    /// system tells, if it starts in `range`; it may end behind it. Notes that the part in front
    /// has space.
    fn next_hole(&self, range: Range<u64>) -> io::Result<Option<Range<u64>>> {
        #[cfg(test)]
        self.asked.fetch_add(1, Ordering::Relaxed);
        // This does not depend on the position of the file.
        let seek = |to| retry_on_intr(|| rustix::fs::seek(&self.file, to));
        let asked = self.room.ask();
        let start = match seek(SeekFrom::Hole(range.start)) {
            Ok(start) => start,
            // The offset is behind the end, or the host file system does not tell.
            Err(Errno::NXIO | Errno::INVAL | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        };
        self.room.note(asked, range.start..start);
        if start >= range.end {
            return Ok(None);
        }
        let end = match seek(SeekFrom::Data(start)) {
            Ok(end) => end,
            Err(Errno::NXIO) => self.size(),
            Err(errno) => return Err(errno.into()),
        };
        Ok((start < end).then_some(start..end))
    }

    /// Allocates disk space for every hole of a range, and for more behind it where holes are
    /// filled one piece after the other.
    fn fill_holes(&self, range: Range<u64>) -> io::Result<()> {
        let mut at = range.start;
        loop {
            at = self.room.known_to(at);
            if at >= range.end {
                return Ok(());
            }
            let asked = self.room.ask();
            let remembered = self.room.hole_to(at);
            let hole = match remembered {
                Some(end) => at..end,
                None => match self.next_hole(at..range.end)? {
                    Some(hole) => hole,
                    None => return Ok(()),
                },
            };
            let needed = hole.start..hole.end.min(range.end);
            let ahead = self.room.stretch(&needed, hole.end);
            // What nobody asked for must not fail what was asked for.
            let end = match ahead > needed.end && matches!(self.fill(hole.start..ahead), Ok(true)) {
                true => ahead,
                false if self.fill(needed.clone())? => needed.end,
                // Zeros must not be written where there may be data since (R3).
                false if remembered.is_some() => {
                    self.room.note_hole(0..0);
                    continue;
                }
                false => {
                    self.write_explicit_zeros(needed.start, needed.end - needed.start)?;
                    self.room.note(asked, needed.clone());
                    at = needed.end;
                    continue;
                }
            };
            self.room.note_hole(end..hole.end);
            self.room.note_filled(hole.start..end);
            self.room.note(asked, hole.start..end);
            at = end;
        }
    }

    /// Asks the host file system for disk space; returns false if it cannot be asked.
    fn fill(&self, range: Range<u64>) -> io::Result<bool> {
        #[cfg(test)]
        self.filled.fetch_add(1, Ordering::Relaxed);
        self.fallocate(FallocateFlags::KEEP_SIZE, range.start, range.end - range.start)
    }

    /// Does a batch of nothing but reads, or nothing but writes, as runs; `None` for others.
    fn run_together(&self, batch: &mut [Operation]) -> Option<Vec<Result<(), DeviceError>>> {
        let kind = batch.first()?.kind();
        let same = |operation: &Operation| {
            operation.kind() == kind && !matches!(operation, Operation::Write { fua: true, .. })
        };
        if batch.len() < 2 || !batch.iter().all(same) || self.rings.at_once(kind) < 2 {
            return None;
        }
        match kind {
            OperationKind::Write => {
                let parts: Vec<_> = batch.iter().filter_map(written).collect();
                let runs = parts.iter().map(|(offset, parts)| WriteRun { offset: *offset, parts });
                Some(self.write_runs(&runs.collect::<Vec<_>>()))
            }
            OperationKind::Read => {
                let mut runs: Vec<_> = batch.iter_mut().filter_map(wanted).collect();
                Some(self.read_runs(&mut runs))
            }
            _ => None,
        }
    }

    fn write_explicit_zeros(&self, offset: u64, len: u64) -> io::Result<()> {
        let zeros = vec![0; (ZERO_PIECE_BYTES as u64).min(len) as usize];
        let (mut at, end) = (offset, offset + len);
        while at < end {
            let piece = (zeros.len() as u64).min(end - at) as usize;
            self.file.write_all_at(&zeros[..piece], at)?;
            at += piece as u64;
        }
        Ok(())
    }
}

/// Returns where a write goes, and its bytes.
fn written(operation: &Operation) -> Option<(u64, [IoSlice<'_>; 1])> {
    match operation {
        Operation::Write { offset, buffer, .. } => Some((*offset, [IoSlice::new(buffer)])),
        _ => None,
    }
}

/// Returns the run of a read.
fn wanted(operation: &mut Operation) -> Option<ReadRun<'_>> {
    match operation {
        Operation::Read { offset, buffer } => Some(ReadRun { offset: *offset, out: buffer }),
        _ => None,
    }
}

/// Opens a file for reading and writing, and locks it.
fn open_writable(path: &Path, flags: OFlags) -> Result<FileDevice, OpenError> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    match opened {
        Ok(file) => FileDevice::with_file(file, path, false),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            Err(OpenError::Busy { path: path.to_owned() })
        }
        Err(source) => Err(io_error("open", path, source)),
    }
}

/// Returns whether the file lies in memory, as far as the system tells.
fn is_in_memory(file: &File) -> bool {
    use rustix::fs::FsWord;
    const IN_MEMORY: [FsWord; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    rustix::fs::fstatfs(file).is_ok_and(|stat| IN_MEMORY.contains(&stat.f_type))
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { action, path: path.to_owned(), source }
}

/// Returns the kind of a file that cannot be a device.
fn not_a_device(metadata: &Metadata) -> Option<&'static str> {
    let kind = metadata.file_type();
    if kind.is_file() || kind.is_block_device() {
        None
    } else if kind.is_dir() {
        Some("directory")
    } else if kind.is_char_device() {
        Some("character device")
    } else if kind.is_fifo() {
        Some("fifo")
    } else {
        Some("special file")
    }
}

fn lock(file: &File, metadata: &Metadata, path: &Path) -> Result<(), OpenError> {
    judge_lock(file.try_lock(), metadata, path)
}

fn judge_lock(
    result: Result<(), TryLockError>,
    metadata: &Metadata,
    path: &Path,
) -> Result<(), OpenError> {
    match result {
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => {
            Err(OpenError::Locked { path: path.to_owned(), holder: holder_of(metadata) })
        }
        // Some network file systems have no locks at all, which must not forbid writing there.
        Err(TryLockError::Error(error)) if error.kind() == ErrorKind::Unsupported => Ok(()),
        Err(TryLockError::Error(source)) => Err(io_error("lock", path, source)),
    }
}

/// Returns the holder of a file's advisory lock (`flock`), as `extant (process 4711)`; `None` when
/// the lock is free, or the system does not tell.
pub fn lock_holder(path: impl AsRef<Path>) -> Option<String> {
    holder_of(&std::fs::metadata(path).ok()?)
}

/// Looks the holder of a `flock` up in `/proc/locks`, whose lines read
/// `1: FLOCK  ADVISORY  WRITE 4711 08:02:1234 0 EOF` (process, device, inode number).
fn holder_of(metadata: &Metadata) -> Option<String> {
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let device = metadata.dev();
    let wanted = format!(
        "{:02x}:{:02x}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device),
        metadata.ino()
    );
    let pid = locks.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (kind, pid, file) = (words.next()?, words.nth(2)?, words.next()?);
        (kind == "FLOCK" && file == wanted).then(|| pid.to_owned())
    })?;
    let program = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(format!("{} (process {pid})", program.trim_end()))
}

impl BlockDevice for FileDevice {
    /// Does the operations one after the other, unless all of them are plain reads, or all plain
    /// writes, and [`runs_at_once`](BlockDevice::runs_at_once) is more than one.
    fn submit(&self, mut batch: Vec<Operation>) -> Pending {
        check_may_wait("a device");
        let Some(results) = self.run_together(&mut batch) else {
            return run_in_place(self, batch);
        };
        let completion = |(operation, result)| Completion { operation, result };
        Pending::done(batch.into_iter().zip(results).map(completion).collect())
    }

    /// Creates an io_uring queue where the system offers one.
    fn queue(&self, options: &QueueOptions) -> Box<dyn Queue + '_> {
        if !options.portable
            && !self.rings.is_portable()
            && let Ok(ring) = Uring::new(self, &self.file, options)
        {
            return Box::new(ring);
        }
        Box::new(Portable::new(move |batch| self.submit(batch), options))
    }

    /// Creates an io_uring queue where the system offers one.
    fn lasting_queue(&self, options: &QueueOptions) -> Option<Box<dyn LastingQueue>> {
        if options.portable || self.rings.is_portable() {
            return None;
        }
        let again = self.unlocked_again().ok()?;
        // Without a lock, copies of the descriptor do no harm.
        let file = again.file.try_clone().ok()?;
        let ring = Uring::lasting(Box::new(again), file, options).ok()?;
        Some(Box::new(ring))
    }

    fn engine(&self) -> EngineInfo {
        self.rings.info(&self.file)
    }

    fn size_bytes(&self) -> u64 {
        self.size()
    }

    fn extend(&self, size_bytes: u64) -> Result<u64, DeviceError> {
        check_may_wait("a device");
        if self.is_read_only {
            check_range(self, OperationKind::Allocate, size_bytes, 0)?;
        }
        let failed =
            |error| self.error(OperationKind::Allocate, size_bytes, 0, DeviceFault::Io(error));
        let found = match self.is_block_device {
            true => rustix::fs::seek(&self.file, SeekFrom::End(0)).map_err(io::Error::from),
            false => self.file.metadata().map(|metadata| metadata.len()),
        };
        let found = found.map_err(failed)?;
        if found < size_bytes && !self.is_block_device {
            self.file.set_len(size_bytes).map_err(failed)?;
        }
        let reached = if self.is_block_device { found } else { found.max(size_bytes) };
        if reached > self.size() && !self.is_block_device {
            // Before the new end is known: nobody writes there without asking for space.
            self.has_holes.store(true, Ordering::Release);
            self.room.note_hole(0..0);
        }
        self.size_bytes.fetch_max(reached, Ordering::AcqRel);
        check_range(self, OperationKind::Allocate, size_bytes, 0)?;
        Ok(self.size())
    }

    fn can_extend(&self) -> bool {
        !self.is_block_device && !self.is_read_only
    }

    fn logical_sector_bytes(&self) -> u32 {
        self.logical_sector_bytes
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn describe(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn as_file(&self) -> Option<(BorrowedFd<'_>, u64)> {
        Some((self.file.as_fd(), 0))
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, wanted) = (OperationKind::Read, out.len() as u64);
        check_range(self, kind, offset, wanted)?;
        let mut got_bytes = 0;
        while let Some(rest) = out.get_mut(got_bytes..).filter(|rest| !rest.is_empty()) {
            let fault = match self.file.read_at(rest, offset + got_bytes as u64) {
                Ok(0) => DeviceFault::ShortRead { got_bytes: got_bytes as u64 },
                Ok(count) => {
                    got_bytes += count;
                    continue;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => DeviceFault::Io(error),
            };
            return Err(self.error(kind, offset, wanted, fault));
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, len) = (OperationKind::Write, bytes.len() as u64);
        check_range(self, kind, offset, len)?;
        self.file
            .write_all_at(bytes, offset)
            .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }

    /// Writes with one request (`RWF_DSYNC`), or with a write and a flush where the host file
    /// system does not support that.
    fn write_fua_at(&self, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let (kind, len) = (OperationKind::Write, bytes.len() as u64);
        check_range(self, kind, offset, len)?;
        let mut done = 0;
        while let Some(rest) = bytes.get(done..).filter(|rest| !rest.is_empty()) {
            let (at, parts) = (offset + done as u64, [IoSlice::new(rest)]);
            let stored = retry_on_intr(|| {
                rustix::io::pwritev2(&self.file, &parts, at, ReadWriteFlags::DSYNC)
            });
            let error = match stored {
                Ok(0) => io::Error::from(ErrorKind::WriteZero),
                Ok(stored) => {
                    done += stored;
                    continue;
                }
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                    self.write_at(at, rest)?;
                    return self.flush();
                }
                Err(errno) => errno.into(),
            };
            return Err(self.error(kind, offset, len, DeviceFault::Io(error)));
        }
        Ok(())
    }

    fn write_vectored_at(&self, offset: u64, parts: &[IoSlice<'_>]) -> Result<(), DeviceError> {
        check_may_wait("a device");
        if let [one] = parts {
            return self.write_at(offset, one);
        }
        let (kind, len) = (OperationKind::Write, parts.iter().map(|part| part.len() as u64).sum());
        check_range(self, kind, offset, len)?;
        let mut parts = parts;
        let mut at = offset;
        // Number of bytes of the first part that are stored already.
        let mut skip = 0;
        while let Some((first, rest)) = parts.split_first() {
            let whole = skip == 0;
            let now = if whole { &parts[..parts.len().min(VECTOR_MAX)] } else { &[] };
            let stored = match whole {
                true => retry_on_intr(|| rustix::io::pwritev(&self.file, now, at)),
                false => retry_on_intr(|| rustix::io::pwrite(&self.file, &first[skip..], at)),
            };
            let mut stored = stored
                .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error.into())))?;
            if stored == 0 {
                let error = io::Error::from(io::ErrorKind::WriteZero);
                return Err(self.error(kind, offset, len, DeviceFault::Io(error)));
            }
            at += stored as u64;
            if !whole {
                skip += stored;
                if skip == first.len() {
                    (skip, parts) = (0, rest);
                }
                continue;
            }
            while let Some((first, rest)) = parts.split_first()
                && stored >= first.len()
            {
                stored -= first.len();
                parts = rest;
            }
            skip = stored;
        }
        Ok(())
    }

    fn write_runs(&self, runs: &[WriteRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let kind = OperationKind::Write;
        if runs.len() < 2 || self.rings.at_once(kind) < 2 {
            return runs.iter().map(|run| self.write_vectored_at(run.offset, run.parts)).collect();
        }
        let checks = runs.iter().map(|run| check_range(self, kind, run.offset, run.length()));
        let checks: Vec<_> = checks.collect();
        let good = runs.iter().zip(&checks).filter(|(_, check)| check.is_ok());
        let mut lent: Vec<_> = good.map(|(run, _)| Lent::write(run.offset, run.parts)).collect();
        self.rings.run(&self.file, &mut lent);
        let mut lent = lent.into_iter();
        let result = |(run, check): (&WriteRun<'_>, Result<(), DeviceError>)| {
            check?;
            match lent.next().and_then(Lent::result) {
                Some(done) => {
                    done.map_err(|fault| self.error(kind, run.offset, run.length(), fault))
                }
                None => self.write_vectored_at(run.offset, run.parts),
            }
        };
        runs.iter().zip(checks).map(result).collect()
    }

    fn read_runs(&self, runs: &mut [ReadRun<'_>]) -> Vec<Result<(), DeviceError>> {
        check_may_wait("a device");
        let kind = OperationKind::Read;
        if runs.len() < 2 || self.rings.at_once(kind) < 2 {
            return runs.iter_mut().map(|run| self.read_at(run.offset, run.out)).collect();
        }
        let length = |run: &ReadRun<'_>| run.out.len() as u64;
        let checks: Vec<_> =
            runs.iter().map(|run| check_range(self, kind, run.offset, length(run))).collect();
        let good = runs.iter_mut().zip(&checks).filter(|(_, check)| check.is_ok());
        let mut lent: Vec<_> = good.map(|(run, _)| Lent::read(run.offset, run.out)).collect();
        self.rings.run(&self.file, &mut lent);
        let done: Vec<_> = lent.into_iter().map(Lent::result).collect();
        let mut done = done.into_iter();
        let result = |(run, check): (&mut ReadRun<'_>, Result<(), DeviceError>)| {
            check?;
            match done.next().flatten() {
                Some(done) => {
                    done.map_err(|fault| self.error(kind, run.offset, length(run), fault))
                }
                None => self.read_at(run.offset, run.out),
            }
        };
        runs.iter_mut().zip(checks).map(result).collect()
    }

    fn runs_at_once(&self, kind: OperationKind) -> usize {
        self.rings.at_once(kind)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        check_may_wait("a device");
        if self.is_read_only {
            return Ok(());
        }
        self.file
            .sync_data()
            .map_err(|error| self.error(OperationKind::Flush, 0, 0, DeviceFault::Io(error)))
    }

    /// Punches a hole into a file, or discards the whole sectors of the range on a block device.
    fn discard(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::Discard;
        check_range(self, kind, offset, len)?;
        let (start, end) = self.whole_sectors(offset, len);
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        self.has_holes.store(true, Ordering::Relaxed);
        let done = match self.is_block_device {
            // A hole in a block device would read as zeros, which is more than was asked for and
            // than many devices support.
            true if start < end && self.discards => {
                discard::discard(&self.file, start, end - start)
            }
            true => Ok(self.discards),
            false => self.room.while_given(start..end, || self.fallocate(mode, start, end - start)),
        };
        let fault = match done {
            Ok(true) => return Ok(()),
            Ok(false) => DeviceFault::Unsupported,
            Err(error) => DeviceFault::Io(error),
        };
        Err(self.error(kind, offset, len, fault))
    }

    /// Punches a hole into a regular file, or uses the zeroing command of a block device; writes
    /// explicit zeros where neither works and for the parts of sectors at the ends.
    fn write_zeroes(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::WriteZeroes;
        check_range(self, kind, offset, len)?;
        let mode = if self.is_block_device {
            FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE
        } else {
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE
        };
        let (start, end) = self.whole_sectors(offset, len);
        self.has_holes.store(true, Ordering::Relaxed);
        let zero = || -> io::Result<()> {
            if start < end && self.fallocate(mode, start, end - start)? {
                self.write_explicit_zeros(offset, start - offset)?;
                self.write_explicit_zeros(end, offset + len - end)
            } else {
                self.write_explicit_zeros(offset, len)
            }
        };
        let zeroed = self.room.while_given(offset..offset + len, zero);
        zeroed.map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }

    /// Fills holes of a regular file, where the host file system tells where they are. Files that
    /// share blocks with others, or are compressed, may still need space for a write. The system is
    /// asked once for each part between two holes, and again after space was released.
    fn allocate(&self, offset: u64, len: u64) -> Result<(), DeviceError> {
        check_may_wait("a device");
        let kind = OperationKind::Allocate;
        check_range(self, kind, offset, len)?;
        if self.is_block_device || !self.has_holes.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.fill_holes(offset..offset + len)
            .map_err(|error| self.error(kind, offset, len, DeviceFault::Io(error)))
    }
}

impl fmt::Debug for FileDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FileDevice({}, {} bytes)", self.name, self.size())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 4 << 20;

    /// A file with a hole at its start, one in the middle, and data besides.
    fn holey(dir: &Path) -> FileDevice {
        let path = dir.join("image");
        std::fs::write(&path, vec![7; SIZE as usize]).unwrap();
        let device = FileDevice::open_read_write(&path).unwrap();
        device.discard(0, 65_536).unwrap();
        device.discard(2 << 20, 65_536).unwrap();
        // Opened anew, it knows nothing.
        drop(device);
        FileDevice::open_read_write(path).unwrap()
    }

    fn asked(device: &FileDevice) -> u64 {
        device.asked.swap(0, Ordering::Relaxed)
    }

    /// Bytes in holes, as the system tells. Nothing is noted.
    fn holes_bytes(device: &FileDevice) -> u64 {
        let (mut at, mut bytes) = (0, 0);
        while let Ok(hole) = rustix::fs::seek(&device.file, SeekFrom::Hole(at)) {
            at = rustix::fs::seek(&device.file, SeekFrom::Data(hole)).unwrap_or(SIZE);
            bytes += at - hole;
        }
        bytes
    }

    #[test]
    fn the_system_is_asked_once_for_each_part_between_holes() {
        let dir = tempfile::tempdir().unwrap();
        let device = holey(dir.path());
        if holes_bytes(&device) != 2 * 65_536 {
            println!("skipped: the file system of {} has no holes", dir.path().display());
            return;
        }
        asked(&device);
        for at in (0..SIZE).step_by(4096) {
            device.allocate(at, 4096).unwrap();
        }
        assert_eq!(holes_bytes(&device), 0);
        // Once for each hole and once for what follows; a hole of sixteen blocks is filled by 1, 2,
        // 4, 8 and the last one.
        assert_eq!((asked(&device), device.filled.swap(0, Ordering::Relaxed)), (4, 2 * 5));
        for at in (0..SIZE).step_by(4096) {
            device.allocate(at, 8192.min(SIZE - at)).unwrap();
        }
        assert_eq!(asked(&device), 0);
        // What has been given away since gets room again, and the rest is still known.
        device.discard(3 << 20, 8192).unwrap();
        device.write_zeroes(1 << 20, 4096).unwrap();
        assert_eq!(holes_bytes(&device), 12_288);
        device.allocate(0, 1 << 20).unwrap();
        assert_eq!(asked(&device), 0);
        device.allocate(0, SIZE).unwrap();
        assert_eq!((asked(&device), holes_bytes(&device)), (2, 0));
        let mut bytes = [0];
        device.read_at(1 << 20, &mut bytes).unwrap();
        assert_eq!(bytes, [0]);
        device.read_at((1 << 20) + 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [7]);
    }
}
