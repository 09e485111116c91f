//! Flags (`chattr`) and project ids of files of the host.
//!
//! # Source
//!
//! Linux `include/uapi/linux/fs.h`, "Inode flags (FS_IOC_GETFLAGS / FS_IOC_SETFLAGS)".

use std::os::fd::BorrowedFd;

use extant_format::inode::InodeFlags;
use rustix::fs::ioctl_getflags;
use rustix::io::Errno;

use super::project::project_of;
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

/// Asks for flags; one per thread, since it remembers which file systems have none.
#[derive(Default)]
pub(super) struct FlagReader {
    /// The last device whose files have neither flags nor projects.
    without: Option<u64>,
}

impl FlagReader {
    /// Returns whether files of the device may have flags.
    pub(super) fn is_worth_asking(&self, device: u64) -> bool {
        self.without != Some(device)
    }

    /// The flags of an open file or directory of `device`.
    pub(super) fn read(&mut self, file: BorrowedFd<'_>, kind: Kind, device: u64) -> Kept {
        let flags = ioctl_getflags(file).map(|flags| flags.bits());
        let project = project_of(file);
        if is_unknown(&flags) && is_unknown(&project) {
            self.without = Some(device);
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

/// Returns whether the file system said that it does not know what it was asked for.
fn is_unknown<T>(answer: &Result<T, Errno>) -> bool {
    matches!(answer, Err(Errno::NOTTY | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL))
}

#[cfg(test)]
mod tests {
    use super::*;

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
