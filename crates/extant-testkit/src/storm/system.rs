//! A directory of a mount under storm, by system calls.

use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags,
};
use rustix::io::Errno;

use super::{Answer, DIRS, Place, Renaming, Space, Target, Way};

/// A directory in which the storm's directories are.
pub struct System {
    root: PathBuf,
    /// Whether reads and writes pass the kernel's cache now and then, beside those that do not.
    mixes: bool,
}

fn answer<T>(result: Result<T, Errno>) -> Answer<T> {
    result.map_err(Errno::raw_os_error)
}

fn said<T>(result: io::Result<T>) -> Answer<T> {
    result.map_err(|error| error.raw_os_error().unwrap_or(super::book::EINVAL))
}

const READ_WRITE: OFlags = OFlags::RDWR.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl System {
    /// Makes the directories if they are not there. `mixes`: reads and writes pass the kernel's cache now
    /// and then.
    ///
    /// # Errors
    ///
    /// Those of making directories.
    pub fn new(root: &Path, mixes: bool) -> io::Result<System> {
        for dir in 0..DIRS {
            fs::create_dir_all(root.join(Place { dir, name: 0 }.dir_name()))?;
        }
        Ok(System { root: root.to_owned(), mixes })
    }

    fn path(&self, at: Place) -> PathBuf {
        self.root.join(at.dir_name()).join(at.file_name())
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> Answer<File> {
        let mode = Mode::from_raw_mode(0o644);
        let file: OwnedFd = answer(rustix::fs::openat(CWD, path, flags, mode))?;
        let file = File::from(file);
        if said(file.metadata())?.is_file() { Ok(file) } else { Err(super::book::EISDIR) }
    }

    /// The same file, opened again in another way.
    fn again(file: &File, flags: OFlags) -> Answer<File> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file: OwnedFd = answer(rustix::fs::openat(CWD, path, flags, Mode::empty()))?;
        Ok(File::from(file))
    }
}

impl Target for System {
    type File = File;

    fn is_atomic(&self) -> bool {
        false
    }

    fn create(&self, at: Place, exclusive: bool) -> Answer<File> {
        let exclusive = if exclusive { OFlags::EXCL } else { OFlags::empty() };
        self.open_with(&self.path(at), READ_WRITE | OFlags::CREATE | exclusive)
    }

    fn open(&self, at: Place) -> Answer<File> {
        self.open_with(&self.path(at), READ_WRITE)
    }

    fn tmpfile(&self, dir: u8) -> Answer<File> {
        let dir = self.root.join(Place { dir, name: 0 }.dir_name());
        self.open_with(&dir, OFlags::RDWR | OFlags::TMPFILE | OFlags::CLOEXEC)
    }

    fn identity(&self, file: &File) -> Answer<u64> {
        let mask = StatxFlags::INO | StatxFlags::BTIME;
        let stat = answer(rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, mask))?;
        let born = ((stat.stx_btime.tv_sec as u64) << 30) | u64::from(stat.stx_btime.tv_nsec);
        // Few inodes, and no two of one number in a nanosecond.
        Ok((stat.stx_ino << 56) | (born & ((1 << 56) - 1)))
    }

    fn read(&self, file: &File, at: u64, out: &mut [u8], way: Way) -> Answer<usize> {
        match way {
            Way::Direct if self.mixes => {
                let file = System::again(file, OFlags::RDONLY | OFlags::DIRECT)?;
                said(file.read_at(out, at))
            }
            _ => said(file.read_at(out, at)),
        }
    }

    fn write(&self, file: &File, at: u64, bytes: &[u8], way: Way) -> Answer<()> {
        match way {
            Way::Direct if self.mixes => {
                let file = System::again(file, OFlags::WRONLY | OFlags::DIRECT)?;
                said(file.write_all_at(bytes, at))
            }
            _ => said(file.write_all_at(bytes, at)),
        }
    }

    fn append(&self, file: &File, bytes: &[u8]) -> Answer<u64> {
        let file = System::again(file, OFlags::WRONLY | OFlags::APPEND)?;
        let written = answer(rustix::io::write(&file, bytes))?;
        if written < bytes.len() {
            return Err(Errno::NOSPC.raw_os_error());
        }
        let end = answer(rustix::fs::seek(&file, SeekFrom::Current(0)))?;
        Ok(end - bytes.len() as u64)
    }

    fn size(&self, file: &File) -> Answer<u64> {
        Ok(said(file.metadata())?.len())
    }

    fn truncate(&self, file: &File, size: u64) -> Answer<()> {
        said(file.set_len(size))
    }

    fn space(&self, file: &File, what: Space, range: Range<u64>) -> Answer<()> {
        let keep = |keep: bool| match keep {
            true => FallocateFlags::KEEP_SIZE,
            false => FallocateFlags::empty(),
        };
        let flags = match what {
            Space::Allocate { keep_size } => keep(keep_size),
            Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            Space::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(keep_size),
            Space::Collapse => FallocateFlags::COLLAPSE_RANGE,
            Space::Insert => FallocateFlags::INSERT_RANGE,
        };
        answer(rustix::fs::fallocate(file, flags, range.start, range.end - range.start))
    }

    fn copy(&self, from: &File, at: u64, to: &File, to_at: u64, len: u64) -> Answer<u64> {
        let (mut at, mut to_at) = (at, to_at);
        let copied =
            rustix::fs::copy_file_range(from, Some(&mut at), to, Some(&mut to_at), len as usize);
        answer(copied).map(|bytes| bytes as u64)
    }

    fn sync(&self, file: &File, data_only: bool) -> Answer<()> {
        said(if data_only { file.sync_data() } else { file.sync_all() })
    }

    fn sync_all(&self) -> Answer<()> {
        let root = said(File::open(&self.root))?;
        answer(rustix::fs::syncfs(&root))
    }

    fn link(&self, file: &File, to: Place) -> Answer<()> {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        answer(rustix::fs::linkat(CWD, path, CWD, self.path(to), AtFlags::SYMLINK_FOLLOW))
    }

    fn unlink(&self, at: Place) -> Answer<()> {
        said(fs::remove_file(self.path(at)))
    }

    fn rename(&self, from: Place, to: Place, how: Renaming) -> Answer<()> {
        let flags = match how {
            Renaming::Over => RenameFlags::empty(),
            Renaming::NoReplace => RenameFlags::NOREPLACE,
            Renaming::Exchange => RenameFlags::EXCHANGE,
        };
        answer(rustix::fs::renameat_with(CWD, self.path(from), CWD, self.path(to), flags))
    }

    fn symlink(&self, at: Place, target: &str) -> Answer<()> {
        said(std::os::unix::fs::symlink(target, self.path(at)))
    }

    fn mkdir(&self, at: Place) -> Answer<()> {
        said(fs::create_dir(self.path(at)))
    }

    fn rmdir(&self, at: Place) -> Answer<()> {
        said(fs::remove_dir(self.path(at)))
    }

    fn set_xattr(&self, file: &File, name: &str, value: &[u8]) -> Answer<()> {
        answer(rustix::fs::fsetxattr(file, name, value, XattrFlags::empty()))
    }

    fn remove_xattr(&self, file: &File, name: &str) -> Answer<()> {
        answer(rustix::fs::fremovexattr(file, name))
    }

    fn attributes(&self, file: &File, mode: u16) -> Answer<()> {
        answer(rustix::fs::fchmod(file, Mode::from_raw_mode(mode.into())))
    }

    fn look(&self, at: Place) -> Answer<()> {
        for entry in said(fs::read_dir(self.root.join(at.dir_name())))? {
            said(entry)?;
        }
        said(fs::symlink_metadata(self.path(at))).map(drop)
    }

    fn disturb(&self, random: u64) -> Answer<()> {
        let _ = answer(rustix::fs::statfs(&self.root));
        if random.is_multiple_of(4) { self.sync_all() } else { Ok(()) }
    }
}
