//! Making files on the host, in directories that are open, without following links.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use extant::{FileKind, Timestamp};
use extant_base::sabotage;
use rustix::fs::{
    self, AtFlags, CWD, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::node::About;
use super::{Trouble, host};
use crate::exit::{Failure, Result};
use crate::fault::io_exit;
use crate::output::complain;
use crate::text::counted;

/// Allows as many open files as the system does: deep trees keep a directory open for each level.
pub(crate) fn raise_file_limit() {
    let limits = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limits.maximum, ..limits };
    // Only very deep trees notice if this is refused, and say so.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Nofile, raised);
}

/// Opens a directory that the user named.
pub(crate) fn open_dir(dest: &Path) -> Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    fs::openat(CWD, dest, flags, Mode::empty()).map_err(|errno| {
        let error = std::io::Error::from(errno);
        Failure::caused(io_exit(&error), &format!("cannot open {}", dest.display()), &error)
    })
}

/// Opens a directory in `dir`; a symbolic link of that name is refused.
pub(crate) fn open_below(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Errno> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, Mode::empty())
}

/// A directory in `dir`, new or there already, opened.
pub(crate) fn make_dir(dir: &OwnedFd, name: &[u8]) -> Result<OwnedFd, Trouble> {
    match fs::mkdirat(dir, name, Mode::from(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Trouble::Host("create", errno)),
    }
    open_below(dir, name).map_err(host("open the directory just made"))
}

/// Makes a file that was not there, open for writing.
pub(crate) fn create(dir: &OwnedFd, name: &[u8], mode: Mode) -> Result<OwnedFd, Trouble> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    fs::openat(dir, name, flags, mode).map_err(host("create"))
}

/// Makes a device, a pipe or a socket.
pub(crate) fn make_special(
    dir: &OwnedFd,
    name: &[u8],
    kind: FileKind,
    rdev: Option<(u32, u32)>,
    mode: Mode,
) -> Result<(), Trouble> {
    let kind = match kind {
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Socket => FileType::Socket,
        _ => FileType::Fifo,
    };
    let (major, minor) = rdev.unwrap_or((0, 0));
    fs::mknodat(dir, name, kind, mode, fs::makedev(major, minor)).map_err(host("create"))
}

/// Another name in `dir` for what the names `first` lead to below `root`.
pub(crate) fn link(
    root: &OwnedFd,
    first: &[Vec<u8>],
    dir: &OwnedFd,
    name: &[u8],
) -> Result<(), Trouble> {
    let Some((last, above)) = first.split_last() else { return Ok(()) };
    let mut at = root.try_clone().map_err(|_| Trouble::Host("link", Errno::MFILE))?;
    for part in above {
        at = open_below(&at, part).map_err(host("open the directory of its first name"))?;
    }
    fs::linkat(&at, last, dir, name, AtFlags::empty()).map_err(host("link"))
}

/// What was made: an open file or directory; or what is not opened: links, devices, pipes, sockets.
pub(crate) enum Made<'a> {
    Open(BorrowedFd<'a>),
    Named(&'a OwnedFd, &'a [u8], FileKind),
}

impl Made<'_> {
    pub(crate) fn set_owner(&self, about: &About) -> Result<(), Trouble> {
        let (uid, gid) = (Some(Uid::from_raw(about.uid)), Some(Gid::from_raw(about.gid)));
        match self {
            Made::Open(file) => fs::fchown(file, uid, gid),
            Made::Named(dir, name, _) => {
                fs::chownat(dir, *name, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
        .map_err(host("set the owner"))
    }

    /// Links have no mode of their own.
    pub(crate) fn set_mode(&self, permissions: u16) -> Result<(), Trouble> {
        let mode = Mode::from(u32::from(permissions));
        match self {
            Made::Open(file) => fs::fchmod(file, mode),
            Made::Named(_, _, FileKind::Symlink) => Ok(()),
            // It was created just now, exclusively, by this process.
            Made::Named(dir, name, _) => fs::chmodat(dir, *name, mode, AtFlags::empty()),
        }
        .map_err(host("set the mode"))
    }

    pub(crate) fn set_times(&self, about: &About) -> Result<(), Trouble> {
        let time = |time: Timestamp| Timespec {
            tv_sec: time.seconds,
            tv_nsec: i64::from(time.nanos_clamped()),
        };
        let times =
            Timestamps { last_access: time(about.atime), last_modification: time(about.mtime) };
        match self {
            Made::Open(file) => fs::futimens(file, &times),
            Made::Named(dir, name, _) => {
                fs::utimensat(dir, *name, &times, AtFlags::SYMLINK_NOFOLLOW)
            }
        }
        .map_err(host("set the times"))
    }

    pub(crate) fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<(), Errno> {
        match self {
            Made::Open(file) => fs::fsetxattr(file, name, value, XattrFlags::empty()),
            Made::Named(dir, at, _) => {
                fs::lsetxattr(in_open_dir(dir, at), name, value, XattrFlags::empty())
            }
        }
    }

    pub(crate) fn remove_xattr(&self, name: &[u8]) -> Result<(), Errno> {
        match self {
            Made::Open(file) => fs::fremovexattr(file, name),
            Made::Named(dir, at, _) => fs::lremovexattr(in_open_dir(dir, at), name),
        }
    }
}

/// A path to `name` in `dir`, for what the kernel offers by path only: the directory is named by
/// its descriptor.
fn in_open_dir(dir: &OwnedFd, name: &[u8]) -> OsString {
    let mut path = OsString::from(format!("/proc/self/fd/{}/", dir.as_fd().as_raw_fd()));
    path.push(OsStr::from_bytes(name));
    path
}

/// Returns whether everybody may set the extended attribute `name` of their own files.
pub(crate) fn is_open_to_all(name: &[u8]) -> bool {
    name.starts_with(b"user.") || name.starts_with(b"system.posix_acl")
}

/// Returns whether an ordinary user may set the extended attribute `name` only where the mode lets him write: it comes
/// before the mode.
pub(crate) fn wants_write(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !sabotage("cli.copying.mode-before-attributes")
}

/// Permissions as far as they may be given: without the owner, set-id bits would hand the file's
/// powers to somebody else.
pub(crate) fn allowed_mode(permissions: u16, privileged: bool) -> u16 {
    permissions & if privileged { 0o7777 } else { 0o1777 }
}

/// What was left out on purpose, for the note at the end.
#[derive(Default, Debug)]
pub(crate) struct Omitted {
    pub(crate) owners: u64,
    pub(crate) devices: u64,
    pub(crate) xattrs: u64,
}

impl Omitted {
    /// Counts an owner that was not set, if it is somebody else.
    pub(crate) fn owner(&mut self, about: &About) {
        let own = rustix::process::geteuid().as_raw() == about.uid
            && rustix::process::getegid().as_raw() == about.gid;
        self.owners += u64::from(!own);
    }

    /// Adds what another one counted.
    pub(crate) fn add(&mut self, other: &Omitted) {
        self.owners += other.owners;
        self.devices += other.devices;
        self.xattrs += other.xattrs;
    }

    /// Says what was left out.
    pub(crate) fn note(&self) {
        let parts = [
            (self.owners, "owner", " (and set-id bits)"),
            (self.devices, "device", ""),
            (self.xattrs, "privileged extended attribute", ""),
        ];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(count, ..)| *count > 0)
            .map(|(count, noun, rest)| format!("{}{rest}", counted(*count, noun)))
            .collect();
        if !parts.is_empty() {
            complain(&format!("note: not restored, which needs root: {}", parts.join(", ")));
        }
    }
}
