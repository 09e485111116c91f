//! Getting a mounted `/dev/fuse`, and unmounting.
//!
//! # Place
//!
//! Below: mount(2) for root, the set-user-ID program `fusermount3` for other users. Above: a
//! process that is not the server, so that unmounting can wait for the server. Requests are served
//! by `session`.
//!
//! # Invariants
//!
//! - M1. Every descriptor made here closes on exec.
//! - M2. The kernel checks permissions (`default_permissions`), for every mount.
//! - M3. A directory that was mounted by [`open_and_mount`] is known to [`unmount`] by its path
//!   only: the path must be absolute and without symbolic links when the working directory changes.

mod block;
mod helper;

use std::ffi::{CString, OsString};
use std::fmt::Write as _;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{getegid, geteuid};

pub use block::BlockMount;

/// The kind of file system that the kernel shows: `fuse.` and the subtype.
pub const FILE_SYSTEM_TYPE: &str = "fuse.extant";
/// The type of a mount whose block device the kernel claims.
pub const BLOCK_FILE_SYSTEM_TYPE: &str = "fuseblk.extant";
const SUBTYPE: &str = "extant";

/// The mount options that the kernel gets.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct KernelOptions {
    /// The device as shown in the list of mounts.
    pub source: OsString,
    /// No changes through this mount.
    pub read_only: bool,
    /// Whether other users than the mounting one may use the mount. Without root only where
    /// `/etc/fuse.conf` has `user_allow_other`.
    pub allow_other: bool,
    /// Set-user-ID and set-group-ID bits and file capabilities have no effect. Always so without root.
    pub nosuid: bool,
    /// Device files cannot be opened. Always so without root.
    pub nodev: bool,
    /// Programs cannot be executed.
    pub noexec: bool,
    /// Changes are durable when a call returns, for the list of mounts and for writes past the cache:
    /// the server sees to it.
    pub sync: bool,
    /// Changes of names are, for the list of mounts only.
    pub dirsync: bool,
    /// Rule of access times, for the list of mounts only: the server keeps them.
    pub atime: AtimeFlag,
    /// Whether access times of directories are not kept, for the list of mounts only.
    pub nodiratime: bool,
    /// Most bytes in one read request; the kernel's own limit when `None`.
    pub max_read: Option<u32>,
}

/// The rule of access times as the list of mounts shows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum AtimeFlag {
    /// `relatime`.
    #[default]
    Relative,
    /// `noatime`.
    Never,
    /// Neither: every read.
    Strict,
}

impl KernelOptions {
    /// Options for a mount that shows `source` as its device, and the defaults of mount(8).
    pub fn new(source: impl Into<OsString>) -> KernelOptions {
        KernelOptions { source: source.into(), ..KernelOptions::default() }
    }

    fn flags(&self) -> MountFlags {
        let mut flags = match self.atime {
            AtimeFlag::Relative => MountFlags::RELATIME,
            AtimeFlag::Never => MountFlags::NOATIME,
            AtimeFlag::Strict => MountFlags::STRICTATIME,
        };
        flags.set(MountFlags::RDONLY, self.read_only);
        flags.set(MountFlags::NOSUID, self.nosuid);
        flags.set(MountFlags::NODEV, self.nodev);
        flags.set(MountFlags::NOEXEC, self.noexec);
        flags.set(MountFlags::NODIRATIME, self.nodiratime);
        flags.set(MountFlags::SYNCHRONOUS, self.sync);
        flags.set(MountFlags::DIRSYNC, self.dirsync);
        flags
    }

    /// The options of the file system itself, for mount(2).
    fn data(&self, device: &OwnedFd) -> String {
        let mut data = format!(
            "fd={},rootmode=40000,user_id={},group_id={},default_permissions",
            device.as_raw_fd(),
            geteuid().as_raw(),
            getegid().as_raw(),
        );
        if self.allow_other {
            data.push_str(",allow_other");
        }
        if let Some(bytes) = self.max_read {
            // Writing to a string does not fail.
            let _ = write!(data, ",max_read={bytes}");
        }
        data
    }
}

/// The reason why a directory could not be mounted on or unmounted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open /dev/fuse")]
    Device(#[source] io::Error),
    /// The kernel refuses.
    #[error("cannot {action} {}", dir.display())]
    System {
        /// The action that failed, as a verb.
        action: &'static str,
        /// The directory.
        dir: PathBuf,
        /// Error of the kernel.
        #[source]
        source: io::Error,
    },
    /// `fusermount3` cannot be run.
    #[error("cannot run fusermount3, which mounts for ordinary users")]
    NoHelper(#[source] io::Error),
    /// `fusermount3` refuses.
    #[error("{said}")]
    Helper {
        /// Its message, on one line.
        said: String,
    },
    /// `fusermount3` ended well and gave no descriptor.
    #[error("fusermount3 mounted {} and did not hand over the connection", dir.display())]
    NoDescriptor {
        /// The directory.
        dir: PathBuf,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
}

impl MountError {
    /// Returns whether the directory cannot be unmounted because something in it is in use.
    pub fn is_busy(&self) -> bool {
        match self {
            MountError::System { source, .. } => source.kind() == io::ErrorKind::ResourceBusy,
            MountError::Helper { said } => said.contains("busy"),
            _ => false,
        }
    }

    /// Returns whether the directory is not there or not mounted.
    pub fn is_not_mounted(&self) -> bool {
        match self {
            MountError::System { source, .. } => {
                matches!(source.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound)
            }
            MountError::Helper { said } => {
                said.contains("not found in") || said.contains("Invalid argument")
            }
            _ => false,
        }
    }
}

/// Mounts on the directory `dir` and returns the connection, on which no request was received yet.
/// Dropping all of its copies leaves a dead mount, which [`unmount`] removes.
///
/// # Errors
///
/// [`MountError`]. Nothing is mounted then.
pub fn open_and_mount(dir: &Path, options: &KernelOptions) -> Result<OwnedFd, MountError> {
    if !geteuid().is_root() {
        return helper::mount(dir, options);
    }
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())
        .map_err(|errno| MountError::Device(errno.into()))?;
    let data = CString::new(options.data(&device)).unwrap_or_default();
    rustix::mount::mount(
        options.source.as_bytes(),
        dir,
        FILE_SYSTEM_TYPE,
        options.flags(),
        data.as_c_str(),
    )
    .map_err(|errno| system("mount on", dir, errno))?;
    Ok(device)
}

/// Unmounts `dir`. With `lazy`, also when the mount is in use: it continues for the programs that
/// use it, and ends with the last of them.
///
/// # Errors
///
/// [`MountError`]; [`MountError::is_busy`] tells whether `lazy` would help.
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), MountError> {
    if !geteuid().is_root() {
        return helper::unmount(dir, lazy);
    }
    let mut flags = UnmountFlags::NOFOLLOW;
    flags.set(UnmountFlags::DETACH, lazy);
    rustix::mount::unmount(dir, flags).map_err(|errno| system("unmount", dir, errno))
}

/// Switches the kernel's side of the mount at `dir` to read-only or back, with the other values of
/// `options`. Earlier writes of programs are sent to the server first. Needs root.
///
/// # Errors
///
/// [`MountError::System`]: `EBUSY` while files are open for writing.
pub fn remount(dir: &Path, options: &KernelOptions) -> Result<(), MountError> {
    rustix::mount::mount_remount(dir, options.flags(), c"")
        .map_err(|errno| system("remount", dir, errno))
}

/// Shows the mount at `from` at the directory `dir` too, with what `options` say of reading only, set-user-ID
/// bits, devices, programs and access times. Needs root.
///
/// # Errors
///
/// [`MountError::System`]. Nothing is mounted then.
pub fn bind(from: &Path, dir: &Path, options: &KernelOptions) -> Result<(), MountError> {
    rustix::mount::mount_bind(from, dir).map_err(|errno| system("mount on", dir, errno))?;
    // The rest is of the file system, and the first mount's.
    let own = options.flags() - MountFlags::SYNCHRONOUS - MountFlags::DIRSYNC;
    rustix::mount::mount_remount(dir, own | MountFlags::BIND, c"").map_err(|errno| {
        let _ = rustix::mount::unmount(dir, UnmountFlags::DETACH);
        system("mount on", dir, errno)
    })
}

/// Hands what programs have written to the mount at `dir`, and the kernel still keeps, to the server.
///
/// # Errors
///
/// [`MountError::System`] when a write failed, or the directory cannot be opened.
pub fn hand_over_writes(dir: &Path) -> Result<(), MountError> {
    let failed = |source| MountError::System { action: "sync", dir: dir.to_owned(), source };
    let file = File::open(dir).map_err(failed)?;
    // A program that was killed while the kernel stored a time for it leaves EINTR behind, which is told
    // once, to whoever asks next: no write has failed, and another error would be told instead.
    let told = match rustix::fs::syncfs(&file) {
        Err(Errno::INTR) => rustix::fs::syncfs(&file),
        told => told,
    };
    told.map_err(|errno| failed(errno.into()))
}

/// Ends the connection of the mount at `dir`, whose device number in the list of mounts is `device`, such
/// as `0:42`: all requests under way, and all later ones, are errors, and the directory stays a mount
/// without server. For a mount whose server is gone and cannot end: one of its threads waits in the
/// kernel for writes that the others would have taken, and keeps the connection open.
///
/// Goes by the kernel's files about connections, which belong to whoever has mounted, and, as root, by a
/// forced unmount.
///
/// # Errors
///
/// [`MountError::System`] where neither can be done.
pub fn abort(dir: &Path, device: &str) -> Result<(), MountError> {
    let number = connection_number(device);
    let written = number
        .ok_or(io::ErrorKind::NotFound.into())
        .and_then(|number| std::fs::write(format!("/sys/fs/fuse/connections/{number}/abort"), "1"));
    let Err(source) = written else { return Ok(()) };
    if !geteuid().is_root() {
        return Err(MountError::System { action: "end", dir: dir.to_owned(), source });
    }
    match rustix::mount::unmount(dir, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW) {
        // The connection has ended before the kernel looks who is in there.
        Ok(()) | Err(Errno::BUSY) => Ok(()),
        Err(errno) => Err(system("end", dir, errno)),
    }
}

/// Returns the number by which the kernel names the connection of a mount: that of its device, as the
/// kernel packs it.
fn connection_number(device: &str) -> Option<u32> {
    let (major, minor) = device.split_once(':')?;
    let (major, minor): (u32, u32) = (major.parse().ok()?, minor.parse().ok()?);
    Some(major.checked_shl(20)? | minor)
}

/// Makes the kernel cache as much of a mount as of its own file systems: `device` is the mount's
/// device number in the list of mounts, such as `0:42`. By default the kernel lets programs dirty
/// only a hundredth of the limit before they wait for the server, and reads ahead less than one
/// request holds. Needs root; without, or where the kernel is too old, nothing changes.
pub fn cache_freely(device: &str) {
    // Entries of a block device have the device's number with a suffix.
    let all = Path::new("/sys/class/bdi");
    let settings = Some(all.join(format!("{device}-fuseblk"))).filter(|path| path.exists());
    let settings = settings.unwrap_or_else(|| all.join(device));
    for (name, value) in [("strict_limit", "0"), ("max_ratio", "100"), ("read_ahead_kb", "512")] {
        let _ = std::fs::write(settings.join(name), value);
    }
}

fn system(action: &'static str, dir: &Path, errno: Errno) -> MountError {
    MountError::System { action, dir: dir.to_owned(), source: errno.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_named_by_the_device_as_the_kernel_packs_it() {
        assert_eq!(connection_number("0:42"), Some(42));
        assert_eq!(connection_number("7:3"), Some(7 << 20 | 3));
        for other in ["42", "0:", "a:b", ""] {
            assert_eq!(connection_number(other), None);
        }
    }

    #[test]
    fn the_kernel_is_told_all_that_was_asked_for() {
        let device: OwnedFd = File::open("/dev/null").unwrap().into();
        let mut options = KernelOptions::new("/a,b.img");
        let fd = device.as_raw_fd();
        let plain = options.data(&device);
        assert!(plain.starts_with(&format!("fd={fd},rootmode=40000,user_id=")), "{plain}");
        assert!(plain.ends_with(",default_permissions"), "{plain}");
        assert_eq!(options.flags(), MountFlags::RELATIME);
        options.allow_other = true;
        options.max_read = Some(131_072);
        options.read_only = true;
        options.atime = AtimeFlag::Never;
        options.nosuid = true;
        let full = options.data(&device);
        assert!(full.ends_with(",default_permissions,allow_other,max_read=131072"), "{full}");
        let flags = MountFlags::RDONLY | MountFlags::NOATIME | MountFlags::NOSUID;
        assert_eq!(options.flags(), flags);
    }

    #[test]
    fn what_is_not_mounted_is_told_from_what_is_busy() {
        let dir = Path::new("/");
        assert!(system("unmount", dir, Errno::BUSY).is_busy());
        assert!(!system("unmount", dir, Errno::BUSY).is_not_mounted());
        assert!(system("unmount", dir, Errno::INVAL).is_not_mounted());
        let said = "fusermount3: failed to unmount /m: Device or resource busy".to_owned();
        assert!(MountError::Helper { said }.is_busy());
        let said = "fusermount3: entry for /m not found in /etc/mtab".to_owned();
        assert!(MountError::Helper { said }.is_not_mounted());
    }
}
