//! What is known of inodes in use: a few bytes for each, and more for directories and other files
//! whose contents are metadata.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::Ino;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::superblock::Superblock;

/// Names are counted up to here.
const NAMES_MAX: u32 = u32::MAX / 2;

/// Blocks of one file that lie side by side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) file_start: u32,
    pub(crate) start: u64,
    pub(crate) len: u32,
}

/// An inode in use: 20 bytes.
#[derive(Debug)]
pub(crate) struct Info {
    pub(crate) ino: Ino,
    pub(crate) flags: InodeFlags,
    pub(crate) mode: u16,
    pub(crate) links: u16,
    /// Names found, `.` and `..` of others not counted.
    pub(crate) names: AtomicU32,
    /// Index into the details, plus 1; 0: there are none.
    pub(crate) detail: u32,
}

impl Info {
    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    pub(crate) fn is_value(&self) -> bool {
        self.flags.contains(InodeFlags::EA_INODE)
    }

    /// Notes one more name.
    pub(crate) fn add_name(&self) {
        if self.names.load(Ordering::Relaxed) < NAMES_MAX {
            self.names.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn names(&self) -> u32 {
        self.names.load(Ordering::Relaxed)
    }
}

/// `i_block`, and `system.data`.
pub(crate) type Inline = Box<([u8; 60], Vec<u8>)>;

/// More about a directory or a file with metadata in it.
#[derive(Debug)]
pub(crate) struct Detail {
    /// Index into the inodes.
    pub(crate) place: u32,
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

/// Bits of the inodes of one group.
pub(crate) type Bits = Box<[u64]>;

/// Which inodes of a group have a place, and how many come before each 64 of them.
#[derive(Debug)]
struct Known {
    bits: Bits,
    ranks: Box<[u32]>,
}

/// All inodes in use.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// In order of inode number.
    pub(crate) infos: Vec<Info>,
    /// Size in bytes and sectors of each, for a repair.
    pub(crate) sizes: Vec<(u64, u64)>,
    pub(crate) details: Vec<Detail>,
    pub(crate) runs: Vec<Run>,
    /// How encrypted inodes are encrypted, without what is random.
    pub(crate) policies: BTreeMap<u32, Vec<u8>>,
    known: Vec<Option<Known>>,
}

impl Tables {
    pub(crate) fn new(groups: usize, inodes: usize) -> Tables {
        let mut known = Vec::new();
        known.resize_with(groups, || None);
        Tables { infos: Vec::with_capacity(inodes), known, ..Tables::default() }
    }

    /// Notes where the inodes of a group begin. Called once for each group, in order.
    pub(crate) fn know(&mut self, group: u32, bits: Bits, mut place: u32) {
        let rank = |word: &u64| {
            let before = place;
            place = place.saturating_add(word.count_ones());
            before
        };
        let ranks = bits.iter().map(rank).collect();
        if let Some(slot) = self.known.get_mut(group as usize) {
            *slot = Some(Known { bits, ranks });
        }
    }

    /// Index into `infos`.
    pub(crate) fn place(&self, sb: &Superblock, ino: Ino) -> Option<usize> {
        let (group, at) = sb.group_of_inode(ino)?;
        let known = self.known.get(group.0 as usize)?.as_ref()?;
        let (number, bit) = (at as usize / 64, at % 64);
        let word = *known.bits.get(number)?;
        let mask = 1u64 << bit;
        if word & mask == 0 {
            return None;
        }
        let before = (word & (mask - 1)).count_ones();
        Some((*known.ranks.get(number)? + before) as usize)
    }

    pub(crate) fn info(&self, sb: &Superblock, ino: Ino) -> Option<&Info> {
        self.infos.get(self.place(sb, ino)?)
    }

    pub(crate) fn detail_of(&self, info: &Info) -> Option<&Detail> {
        self.details.get((info.detail as usize).checked_sub(1)?)
    }

    /// The saved runs of an inode.
    pub(crate) fn runs_of(&self, detail: &Detail) -> &[Run] {
        let (from, to) = detail.runs;
        self.runs.get(from as usize..to as usize).unwrap_or(&[])
    }

    /// Forgets what directories said.
    pub(crate) fn forget_names(&mut self) {
        for info in &mut self.infos {
            *info.names.get_mut() = 0;
        }
        for detail in &mut self.details {
            *detail.children.get_mut() = 0;
            *detail.parent.get_mut() = 0;
            *detail.dotdot.get_mut() = 0;
        }
    }
}
