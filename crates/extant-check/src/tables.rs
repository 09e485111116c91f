//! What is known of directories and other files whose contents are metadata, and of files with another
//! number of links than 1. What there is to know of all others has room in a byte: `states`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::Ino;
use extant_format::inode::{FileKind, InodeFlags};

/// Blocks of one file that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) file_start: u32,
    pub(crate) start: u64,
    pub(crate) len: u32,
}

/// What a repair wants to know of an inode in use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whole {
    pub(crate) ino: Ino,
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) flags: InodeFlags,
    /// In bytes.
    pub(crate) size: u64,
    pub(crate) sectors: u64,
}

/// `i_block`, and `system.data`.
pub(crate) type Inline = Box<([u8; 60], Vec<u8>)>;

/// More about a directory or a file with metadata in it.
#[derive(Debug)]
pub(crate) struct Detail {
    pub(crate) ino: Ino,
    pub(crate) mode: u16,
    pub(crate) links: u16,
    pub(crate) flags: InodeFlags,
    /// crc32c seed of its blocks.
    pub(crate) seed: u32,
    pub(crate) size: u64,
    /// Blocks up to the last mapped one.
    pub(crate) blocks: u64,
    /// Range of its blocks in the runs.
    pub(crate) runs: (u32, u32),
    /// Contents of a directory in its inode.
    pub(crate) inline: Option<Inline>,
    /// Subdirectories, for directories.
    pub(crate) children: AtomicU32,
    /// The directory with its first name; 0: none.
    pub(crate) parent: AtomicU32,
    /// The inode of `..`.
    pub(crate) dotdot: AtomicU32,
}

impl Detail {
    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    pub(crate) fn parent(&self) -> Ino {
        Ino(self.parent.load(Ordering::Relaxed))
    }

    pub(crate) fn dotdot(&self) -> Ino {
        Ino(self.dotdot.load(Ordering::Relaxed))
    }

    pub(crate) fn children(&self) -> u32 {
        self.children.load(Ordering::Relaxed)
    }
}

/// All inodes in use that have more than a type and one link, each list in order of inode number.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// Every inode, for a repair.
    pub(crate) all: Vec<Whole>,
    pub(crate) details: Vec<Detail>,
    pub(crate) runs: Vec<Run>,
    /// Link counts that are not 1, of inodes without details.
    pub(crate) links: Vec<(u32, u16)>,
    /// Inodes whose link count is 0.
    pub(crate) unlinked: Vec<u32>,
    /// How encrypted inodes are encrypted, without what is random; empty where that is not known.
    pub(crate) policies: BTreeMap<u32, Vec<u8>>,
}

impl Tables {
    /// Index of an inode's details.
    pub(crate) fn place(&self, ino: Ino) -> Option<usize> {
        self.details.binary_search_by_key(&ino, |detail| detail.ino).ok()
    }

    pub(crate) fn detail(&self, ino: Ino) -> Option<&Detail> {
        self.details.get(self.place(ino)?)
    }

    /// The saved runs of an inode.
    pub(crate) fn runs_of(&self, detail: &Detail) -> &[Run] {
        let (from, to) = detail.runs;
        self.runs.get(from as usize..to as usize).unwrap_or(&[])
    }

    /// Returns whether the link count of an inode in use is 0.
    pub(crate) fn is_unlinked(&self, ino: Ino) -> bool {
        self.unlinked.binary_search(&ino.0).is_ok()
    }

    /// Forgets what directories said.
    pub(crate) fn forget_names(&mut self) {
        for detail in &mut self.details {
            *detail.children.get_mut() = 0;
            *detail.parent.get_mut() = 0;
            *detail.dotdot.get_mut() = 0;
        }
    }
}
