//! Flags (`chattr`) and project ids of files of the host.
//!
//! # Source
//!
//! Linux `include/uapi/linux/fs.h`, "Inode flags (FS_IOC_GETFLAGS / FS_IOC_SETFLAGS)".

use std::ffi::CStr;
use std::os::fd::BorrowedFd;

use extant_format::inode::InodeFlags;
use rustix::fs::{fstatfs, ioctl_getflags};
use rustix::io::Errno;

use super::project::{attr_of, project_of};
use crate::tree::Kind;

/// Flags of regular files that have a meaning in ext4.
const FILE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DAX)
    .union(InodeFlags::VERITY);

/// Flags of directories that have a meaning in ext4.
const DIR: InodeFlags = FILE
    .difference(InodeFlags::VERITY)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

/// Flags that say how the source's file system stores the file. (Bit 22 is obsolete.)
const STORED_HOW: InodeFlags = InodeFlags::EXTENTS
    .union(InodeFlags::INDEX)
    .union(InodeFlags::INLINE_DATA)
    .union(InodeFlags::HUGE_FILE)
    .union(InodeFlags::EOFBLOCKS)
    .union(InodeFlags::DIRTY)
    .union(InodeFlags::COMPRBLK);

/// Flags that are lost, with their letter and meaning.
const LOST: [(u32, &str); 4] = [
    (InodeFlags::COMPR.bits(), "flag c (compressed)"),
    (InodeFlags::NOCOMPR.bits(), "flag m (not compressed)"),
    (InodeFlags::ENCRYPT.bits(), "flag E (encrypted)"),
    (0x80_0000, "flag C (no copy on write)"),
];

/// Flags of one file, as far as an image can have them, and names of those that it cannot.
#[derive(Debug, Default)]
pub(in crate::source) struct Kept {
    pub(in crate::source) flags: u32,
    pub(in crate::source) project: u32,
    pub(in crate::source) lost: Vec<Box<str>>,
}

/// Sorts `flags`, numbers of [`InodeFlags`], of a file of kind `kind`.
pub(in crate::source) fn sort(kind: Kind, flags: u32) -> Kept {
    let kept = match kind {
        Kind::File => FILE,
        Kind::Dir => DIR,
        // The kernel sets none on others, and e2fsck asks about some.
        _ => InodeFlags::empty(),
    };
    let mut rest = flags & !kept.union(STORED_HOW).bits();
    let mut lost: Vec<Box<str>> = Vec::new();
    for (flag, name) in LOST {
        if rest & flag != 0 {
            lost.push(name.into());
            rest &= !flag;
        }
    }
    if rest != 0 {
        lost.push(format!("flags {rest:#x}").into());
    }
    Kept { flags: flags & kept.bits(), project: 0, lost }
}

/// File systems all of whose flags of files are among [`XFLAGS`] or say how they are stored: tmpfs and XFS, by
/// `f_type` (`include/uapi/linux/magic.h`).
const TOLD_BY_NAME: [u64; 2] = [0x0102_1994, 0x5846_5342];

/// Flags of files as `file_getattr` tells them (`FS_XFLAG_...`), and as inodes have them. The other flags of the call say
/// how XFS stores a file, or are those of directories.
const XFLAGS: [(u64, InodeFlags); 6] = [
    (0x8, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x20, InodeFlags::SYNC),
    (0x40, InodeFlags::NOATIME),
    (0x80, InodeFlags::NODUMP),
    (0x8000, InodeFlags::DAX),
];

/// Way to learn the flags of the files of a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// They have neither flags nor projects.
    Without,
    /// By name, which costs a third of opening each.
    ByName,
    /// A file has to be opened.
    Opened,
}

/// Asks for flags; one per thread, since it remembers how the file systems can be asked.
#[derive(Default)]
pub(super) struct FlagReader {
    /// The last device, and what is known of it.
    last: Option<(u64, Way)>,
}

impl FlagReader {
    /// Returns whether files of the device may have flags.
    pub(super) fn is_worth_asking(&self, device: u64) -> bool {
        self.last != Some((device, Way::Without))
    }

    /// The flags of the regular file `name` in `dir`, both of `device`, if they can be had without opening it.
    pub(super) fn read_by_name(
        &mut self,
        dir: BorrowedFd<'_>,
        name: &CStr,
        device: u64,
    ) -> Option<Kept> {
        let way = match self.last {
            Some((last, way)) if last == device => way,
            _ => Way::of(dir),
        };
        self.last = Some((device, way));
        if way != Way::ByName {
            return None;
        }
        match attr_of(dir, name) {
            Ok(attr) => {
                let told = XFLAGS.iter().filter(|(xflag, _)| attr.xflags & xflag != 0);
                let flags = told.fold(InodeFlags::empty(), |flags, (_, flag)| flags.union(*flag));
                Some(Kept { project: attr.project, ..sort(Kind::File, flags.bits()) })
            }
            // Also where a container does not let the call through.
            Err(_) => {
                self.last = Some((device, Way::Opened));
                None
            }
        }
    }

    /// The flags of an open file or directory of `device`.
    pub(super) fn read(&mut self, file: BorrowedFd<'_>, kind: Kind, device: u64) -> Kept {
        let flags = ioctl_getflags(file).map(|flags| flags.bits());
        let project = project_of(file);
        if is_unknown(&flags) && is_unknown(&project) {
            self.last = Some((device, Way::Without));
            return Kept::default();
        }
        let mut kept = match &flags {
            Ok(flags) => sort(kind, *flags),
            Err(_) => Kept::default(),
        };
        match flags {
            Err(errno) if !is_unknown::<u32>(&Err(errno)) => {
                kept.lost.push(format!("flags that cannot be asked for ({errno})").into());
            }
            _ => {}
        }
        match project {
            Ok(project) => kept.project = project,
            Err(errno) if !is_unknown(&project) => {
                kept.lost.push(format!("project id that cannot be asked for ({errno})").into());
            }
            Err(_) => {}
        }
        kept
    }
}

impl Way {
    /// The way for files of a directory's file system, before any was asked.
    fn of(dir: BorrowedFd<'_>) -> Way {
        match fstatfs(dir).map(|found| found.f_type as u64) {
            Ok(kind) if TOLD_BY_NAME.contains(&kind) => Way::ByName,
            _ => Way::Opened,
        }
    }
}

/// Returns whether the file system said that it does not know what it was asked for.
fn is_unknown<T>(answer: &Result<T, Errno>) -> bool {
    matches!(answer, Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each flag of a file in memory, by name and by opening it.
    #[test]
    fn flags_by_name_are_those_of_the_opened_file() {
        use rustix::fs::{IFlags, Mode, OFlags, ioctl_setflags, openat};
        use std::os::fd::AsFd;
        let Ok(dir) = tempfile::tempdir_in("/dev/shm") else {
            return eprintln!("skipped: no directory can be made in /dev/shm");
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let dir_fd = openat(rustix::fs::CWD, dir.path(), flags, Mode::empty()).unwrap();
        std::fs::write(dir.path().join("f"), "f").unwrap();
        if let Err(why) = attr_of(dir_fd.as_fd(), c"f") {
            return eprintln!("skipped: this kernel does not tell flags by name ({why})");
        }
        assert_eq!(Way::of(dir_fd.as_fd()), Way::ByName);
        let file = openat(&dir_fd, c"f", OFlags::RDONLY, Mode::empty()).unwrap();
        let (mut reader, mut asked) = (FlagReader::default(), 0);
        for flag in [IFlags::empty(), IFlags::NODUMP, IFlags::NOATIME, IFlags::APPEND] {
            // Some need root.
            if ioctl_setflags(&file, flag).is_err() {
                continue;
            }
            let by_name = reader.read_by_name(dir_fd.as_fd(), c"f", 7).unwrap();
            let opened = FlagReader::default().read(file.as_fd(), Kind::File, 7);
            assert_eq!((by_name.flags, by_name.project), (opened.flags, opened.project));
            assert_eq!(by_name.flags, flag.bits());
            asked += 1;
        }
        ioctl_setflags(&file, IFlags::empty()).unwrap();
        assert!(asked >= 3, "{asked} flags could be set");
        // What has no such name is for the caller to meet when it opens it, and from then on files are opened.
        assert!(reader.read_by_name(dir_fd.as_fd(), c"nothing", 7).is_none());
        assert_eq!(reader.last, Some((7, Way::Opened)));
    }

    #[test]
    fn each_flag_is_kept_or_named_or_says_how_a_file_is_stored() {
        for bit in 0..32 {
            let flag = 1u32 << bit;
            for kind in [Kind::File, Kind::Dir] {
                let kept = sort(kind, flag);
                let is_stored_how = STORED_HOW.bits() & flag != 0;
                let ways = [kept.flags == flag, !kept.lost.is_empty(), is_stored_how];
                assert_eq!(ways.iter().filter(|way| **way).count(), 1, "{kind:?} {flag:#x}");
            }
        }
        assert_eq!(&*sort(Kind::Dir, 0x80_0004).lost[1], "flag C (no copy on write)");
        assert_eq!(&*sort(Kind::Symlink, 0x10).lost[0], "flags 0x10");
    }
}
