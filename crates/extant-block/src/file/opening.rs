//! Opening a file as a device: what it may be, and who has it already.

use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use extant_sync::{Clock, SystemClock};
use rustix::fs::OFlags;

use super::FileDevice;

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
    /// Another process writes to the file, or has it open for writing; or the kernel has it as a loop device.
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

/// Opens a file for reading and writing, and locks it. One that is replaced while its lock is waited for is opened anew: what
/// is written to a file without a name is lost.
pub(super) fn open_writable(path: &Path, flags: OFlags) -> Result<FileDevice, OpenError> {
    for _ in 0..LOCK_TRIES {
        let device = open_once(path, flags)?;
        if !is_replaced(&device, path) {
            return Ok(device);
        }
    }
    open_once(path, flags)
}

/// Returns whether the name leads to another file now than the one that was opened.
fn is_replaced(device: &FileDevice, path: &Path) -> bool {
    let (Ok(ours), Ok(named)) = (device.file.metadata(), std::fs::metadata(path)) else {
        return false;
    };
    (ours.dev(), ours.ino()) != (named.dev(), named.ino())
}

fn open_once(path: &Path, flags: OFlags) -> Result<FileDevice, OpenError> {
    let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags.bits().cast_signed())
        .open(path);
    match opened {
        Ok(file) if takes_no_writes(&file) => {
            Err(io_error("open", path, rustix::io::Errno::ROFS.into()))
        }
        Ok(file) => FileDevice::with_file(file, path, false),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            Err(OpenError::Busy { path: path.to_owned() })
        }
        Err(source) => Err(io_error("open", path, source)),
    }
}

/// Returns whether a file is a disk that is write-protected, as far as the system tells: it may be opened for writing, and
/// the first write fails.
fn takes_no_writes(file: &File) -> bool {
    let metadata = file.metadata().ok().filter(|file| file.file_type().is_block_device());
    let number = metadata.map(|file| file.rdev());
    number.is_some_and(|number| {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let told = std::fs::read(format!("/sys/dev/block/{major}:{minor}/ro"));
        told.is_ok_and(|told| told.starts_with(b"1"))
    })
}

/// Returns whether the file lies in memory, as far as the system tells.
pub(super) fn is_in_memory(file: &File) -> bool {
    use rustix::fs::FsWord;
    const IN_MEMORY: [FsWord; 3] = [0x0102_1994, 0x8584_58f6, 0x9584_58f6]; // tmpfs, ramfs, hugetlbfs
    rustix::fs::fstatfs(file).is_ok_and(|stat| IN_MEMORY.contains(&stat.f_type))
}

pub(super) fn io_error(action: &'static str, path: &Path, source: io::Error) -> OpenError {
    OpenError::Io { action, path: path.to_owned(), source }
}

/// Returns the kind of a file that cannot be a device.
pub(super) fn not_a_device(metadata: &Metadata) -> Option<&'static str> {
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

/// How often a lock is tried for, and the pause in between. A process that makes another one has its locks twice, until the
/// other one runs its own program: who lets go of an image in one thread while another thread starts a program would
/// find it locked by itself.
const LOCK_TRIES: u32 = 10;
const LOCK_PAUSE: Duration = Duration::from_millis(10);

pub(super) fn lock(file: &File, metadata: &Metadata, path: &Path) -> Result<(), OpenError> {
    let mut locked = file.try_lock();
    for _ in 0..LOCK_TRIES {
        if !matches!(locked, Err(TryLockError::WouldBlock)) {
            break;
        }
        SystemClock.sleep(LOCK_PAUSE);
        locked = file.try_lock();
    }
    judge_lock(locked, metadata, path)
}

pub(super) fn judge_lock(
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

/// Returns the loop device that the kernel has over a regular file, such as `/dev/loop0`. Nothing locks the file for it, and
/// what it keeps in memory would be written over the changes of others.
pub fn loop_device_over(path: impl AsRef<Path>) -> Option<String> {
    loop_device_of(&std::fs::metadata(path).ok()?)
}

fn loop_device_of(ours: &Metadata) -> Option<String> {
    if !ours.is_file() {
        return None;
    }
    for device in std::fs::read_dir("/sys/block").ok()?.flatten() {
        let Ok(backing) = std::fs::read(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let Ok(theirs) = std::fs::metadata(Path::new(OsStr::from_bytes(backing))) else { continue };
        if (theirs.dev(), theirs.ino()) == (ours.dev(), ours.ino()) {
            return Some(format!("/dev/{}", device.file_name().display()));
        }
    }
    None
}

impl FileDevice {
    /// Refuses a file that the kernel has as a loop device. Opening does not, because it takes a moment after an unmount until
    /// the kernel lets go of one, and looks at all devices of the host.
    ///
    /// # Errors
    ///
    /// [`OpenError::Locked`]; [`OpenError::Io`] where the file cannot be examined.
    pub fn refuse_loop_device(&self) -> Result<(), OpenError> {
        let path = Path::new(&*self.name);
        let metadata = self.file.metadata().map_err(|source| io_error("examine", path, source))?;
        match loop_device_of(&metadata) {
            None => Ok(()),
            Some(device) => {
                let holder = Some(format!("the kernel as {device}"));
                Err(OpenError::Locked { path: path.to_owned(), holder })
            }
        }
    }
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
