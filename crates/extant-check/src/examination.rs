//! Results of a check for a repair.

use std::collections::{BTreeMap, BTreeSet};

use extant_base::Ino;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::superblock::Superblock;

use crate::checker::Checker;
use crate::states::States;
use crate::tables::{Detail, Tables, Whole};
use crate::{Problem, Report};

/// An inode in use, as the check saw it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeView {
    /// Number of the inode.
    pub ino: Ino,
    /// `i_mode`.
    pub mode: u16,
    /// `i_links_count`.
    pub links: u16,
    /// `i_flags`.
    pub flags: InodeFlags,
    /// `i_size`, in bytes.
    pub size: u64,
    /// Space that it has, in units of 512 bytes.
    pub sectors: u64,
    /// Names that lead to it, `.` and `..` not counted.
    pub names: u32,
    /// Subdirectories of a directory.
    pub children: u32,
    /// The directory with its first name; 0: none.
    pub parent: Ino,
    /// The inode of a directory's `..`.
    pub dotdot: Ino,
    /// Whether it is on the list of orphans or in their file.
    pub is_orphan: bool,
}

impl InodeView {
    fn of(inode: &Whole, from: &Examination) -> InodeView {
        let ino = inode.ino;
        let detail = from.tables.detail(ino);
        InodeView {
            ino,
            mode: inode.mode,
            links: inode.links,
            flags: inode.flags,
            size: inode.size,
            sectors: inode.sectors,
            names: from.states.names(ino),
            children: detail.map_or(0, Detail::children),
            parent: detail.map_or(Ino(0), Detail::parent),
            dotdot: detail.map_or(Ino(0), Detail::dotdot),
            is_orphan: from.orphans.contains(&ino.0),
        }
    }

    /// The type of file; `None` when the mode has none.
    #[must_use]
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode)
    }

    /// Returns whether it is a directory.
    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }
}

/// The result of [`examine`](crate::examine).
#[derive(Debug, Default)]
pub struct Examination {
    /// The report that [`check`](crate::check) would have returned.
    pub report: Report,
    /// The problems to which the answer was to fix them, in the order found.
    pub wanted: Vec<Problem>,
    superblock: Option<Superblock>,
    claimed: Vec<Option<Box<[u64]>>>,
    used: Vec<Option<Box<[u64]>>>,
    tables: Tables,
    states: States,
    orphans: BTreeSet<u32>,
    directories: Vec<u32>,
    usage: [BTreeMap<u32, (u64, u64)>; 3],
    value_counts: BTreeMap<u32, u64>,
}

/// The bits of all groups; `None` for those where no inode is in use.
fn used(states: &States, sb: &Superblock) -> Vec<Option<Box<[u64]>>> {
    let of = |group: u32| {
        let first = Ino(group.saturating_mul(sb.inodes_per_group).saturating_add(1));
        let mut words = Vec::new();
        let count = states.used(first, sb.inodes_per_group, &mut words);
        (count != 0).then(|| words.into_boxed_slice())
    };
    (0..sb.group_count).map(of).collect()
}

impl Examination {
    pub(crate) fn of_nothing(report: Report) -> Examination {
        Examination { report, ..Examination::default() }
    }

    pub(crate) fn of(checker: Checker<'_>) -> Examination {
        let Checker { base, findings, found } = checker;
        Examination {
            directories: found.counted_directories(&base),
            report: findings.report,
            wanted: findings.wanted,
            value_counts: found.value_counts,
            claimed: base.claims.to_groups(base.sb.group_count),
            used: used(&base.states, &base.sb),
            states: base.states,
            tables: found.tables,
            orphans: found.orphans,
            superblock: Some(base.sb),
            usage: found.usage,
        }
    }

    /// The superblock by which all was read; `None` where the device is smaller than the file system.
    #[must_use]
    pub fn superblock(&self) -> Option<&Superblock> {
        self.superblock.as_ref()
    }

    /// The clusters of a group that something uses, a bit for each; `None`: none of them.
    #[must_use]
    pub fn clusters_in_use(&self, group: u32) -> Option<&[u64]> {
        self.claimed.get(group as usize)?.as_deref()
    }

    /// The inodes of a group that are in use, a bit for each; `None`: none of them.
    #[must_use]
    pub fn inodes_in_use(&self, group: u32) -> Option<&[u64]> {
        self.used.get(group as usize)?.as_deref()
    }

    /// Returns how many of the inodes of a group are directories.
    #[must_use]
    pub fn directories(&self, group: u32) -> u32 {
        self.directories.get(group as usize).copied().unwrap_or(0)
    }

    /// All inodes in use that could be decoded, in order of their number.
    pub fn inodes(&self) -> impl Iterator<Item = InodeView> + '_ {
        self.tables.all.iter().map(|inode| InodeView::of(inode, self))
    }

    /// An inode in use that could be decoded.
    #[must_use]
    pub fn inode(&self, ino: Ino) -> Option<InodeView> {
        let at = self.tables.all.binary_search_by_key(&ino, |inode| inode.ino).ok()?;
        self.tables.all.get(at).map(|inode| InodeView::of(inode, self))
    }

    /// Returns how many attributes have their value in an inode.
    #[must_use]
    pub fn value_references(&self, value: Ino) -> u64 {
        self.value_counts.get(&value.0).copied().unwrap_or(0)
    }

    /// Bytes and inodes in use by each user (0), group (1) or project (2).
    #[must_use]
    pub fn usage(&self, owner: usize) -> Option<&BTreeMap<u32, (u64, u64)>> {
        self.usage.get(owner)
    }
}
