//! Properties of a problem besides its text: its severity and its objects.

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::superblock::OLD_FIRST_INO;

use crate::Problem;

/// How bad a problem is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// A number that can be computed from others: counts, checksums, bitmaps. Correcting it loses
    /// nothing and needs no decision.
    Count,
    /// One file or directory is not as it should be. Setting it right may take something from it.
    File,
    /// Structures that all files need: superblock, descriptors, journal.
    FileSystem,
}

impl Severity {
    /// One word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Severity::Count => "count",
            Severity::File => "file",
            Severity::FileSystem => "file-system",
        }
    }
}

/// The objects of a problem.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Objects {
    /// The inode, or the directory of an entry.
    pub ino: Option<Ino>,
    /// The inode that an entry or an attribute leads to.
    pub target: Option<Ino>,
    /// The block of the device.
    pub block: Option<FsBlock>,
    /// The group.
    pub group: Option<GroupIndex>,
}

impl Problem {
    /// Returns how bad it is.
    #[must_use]
    pub fn severity(&self) -> Severity {
        use Problem as P;
        match self {
            P::DeviceTooSmall { .. }
            | P::Unreadable { .. }
            | P::Group(..)
            | P::OutsideGroup { .. }
            | P::MetadataOverlap { .. }
            | P::SpecialInode { .. }
            | P::Journal(..)
            | P::JournalState { .. }
            | P::OrphanFile(..)
            | P::ResizeInode { .. } => Severity::FileSystem,
            P::SuperblockChecksum(..)
            | P::NeedsRecovery
            | P::State { .. }
            | P::ExtraSize { .. }
            | P::Feature { .. }
            | P::FeatureAlone { .. }
            | P::FieldAlone { .. }
            | P::ReservedBlocks { .. }
            | P::Mmp(..)
            | P::GroupFlags { .. }
            | P::Reserved { .. }
            | P::Unwritten { .. }
            | P::SuperblockCount { .. }
            | P::BitmapChecksum { .. }
            | P::Padding { .. }
            | P::BlockBitmap { .. }
            | P::InodeBitmap { .. }
            | P::UninitUsed { .. }
            | P::UninitLast { .. }
            | P::TableUnused { .. }
            | P::GroupCount { .. }
            | P::Sectors { .. }
            | P::ExtentRoom { .. }
            | P::XattrBlockHash { .. }
            | P::XattrReferences { .. }
            | P::XattrChecksum { .. }
            | P::Links { .. }
            | P::Orphans { .. }
            | P::Orphan { .. }
            | P::NotOrphan { .. }
            | P::Dtime { .. }
            | P::JournalChecksum(..)
            | P::EntryType { .. }
            | P::DotsEnd { .. }
            | P::Htree { .. }
            | P::HtreeReference { .. }
            | P::HtreeHash { .. }
            | P::HtreeRange { .. }
            | P::Quota { .. }
            | P::QuotaKind { .. }
            | P::QuotaUsage { .. } => Severity::Count,
            _ => Severity::File,
        }
    }

    /// Returns what it is about, as far as the problem says.
    #[must_use]
    pub fn objects(&self) -> Objects {
        use Problem as P;
        let ino = |ino: &Ino| Objects { ino: Some(*ino), ..Objects::default() };
        let group = |group: &GroupIndex| Objects { group: Some(*group), ..Objects::default() };
        match self {
            P::OutsideGroup { group: g, block, .. }
            | P::MetadataOverlap { group: g, block, .. } => {
                Objects { block: Some(*block), ..group(g) }
            }
            P::BlockBitmap { group: g, block, .. } => Objects { block: Some(*block), ..group(g) },
            P::BitmapChecksum { group: g, .. }
            | P::Padding { group: g, .. }
            | P::UninitUsed { group: g, .. }
            | P::UninitLast { group: g }
            | P::GroupCount { group: g, .. }
            | P::GroupFlags { group: g, .. } => group(g),
            P::InodeBitmap { group: g, ino, .. } | P::TableUnused { group: g, ino, .. } => {
                Objects { ino: Some(*ino), ..group(g) }
            }
            P::Inode { ino: i, .. }
            | P::Reserved { ino: i, .. }
            | P::Unwritten { ino: i }
            | P::Encryption { ino: i, .. }
            | P::Mode { ino: i, .. }
            | P::Flags { ino: i, .. }
            | P::Dtime { ino: i, .. }
            | P::Size { ino: i, .. }
            | P::Sectors { ino: i, .. }
            | P::Extent { ino: i, .. }
            | P::ExtentRoom { ino: i, .. }
            | P::ExtentEmpty { ino: i }
            | P::FileBlock { ino: i, .. }
            | P::Inline { ino: i, .. }
            | P::Symlink { ino: i, .. }
            | P::Special { ino: i, .. }
            | P::SpecialInode { ino: i, .. }
            | P::Xattr { ino: i, .. }
            | P::XattrName { ino: i, .. }
            | P::XattrEntryHash { ino: i, .. }
            | P::Unreachable { ino: i }
            | P::Loop { ino: i }
            | P::Links { ino: i, .. }
            | P::Orphan { ino: i, .. }
            | P::NotOrphan { ino: i } => ino(i),
            P::BlockChecksum { ino: i, block, .. }
            | P::Cluster { ino: i, block, .. }
            | P::ClusterSplit { ino: i, block, .. }
            | P::BlockRange { ino: i, block, .. }
            | P::ClaimedTwice { ino: i, block }
            | P::XattrChecksum { ino: i, block, .. } => Objects { block: Some(*block), ..ino(i) },
            P::Unreadable { block, .. }
            | P::XattrBlockHash { block, .. }
            | P::XattrReferences { block, .. } => {
                Objects { block: Some(*block), ..Objects::default() }
            }
            P::XattrInode { ino: i, value, .. } => Objects { target: Some(*value), ..ino(i) },
            P::EntryInode { dir, ino: target, .. }
            | P::EntryType { dir, ino: target, .. }
            | P::SecondParent { dir, ino: target, .. } => {
                Objects { target: Some(*target), ..ino(dir) }
            }
            P::Dir { dir, .. }
            | P::DirHole { dir, .. }
            | P::Dots { dir, .. }
            | P::DotsEnd { dir, .. }
            | P::Name { dir, .. }
            | P::DuplicateName { dir, .. }
            | P::Htree { dir, .. }
            | P::HtreeReference { dir, .. }
            | P::HtreeHash { dir, .. }
            | P::HtreeRange { dir, .. } => ino(dir),
            _ => Objects::default(),
        }
    }

    /// Returns what a repair does about it, for people.
    #[must_use]
    pub fn fix(&self) -> &'static str {
        use Problem as P;
        match self {
            P::DeviceTooSmall { .. } => "none: make the device as large as the file system",
            P::Unreadable { .. } => "none: save what can be read with extant salvage",
            P::NeedsRecovery => "replay the journal",
            P::State { .. } => "mark the file system clean",
            P::Group(..) | P::OutsideGroup { .. } | P::MetadataOverlap { .. } => {
                "take the descriptor from a backup, or find another place"
            }
            P::ResizeInode { .. } => "make the resize inode anew",
            P::BlockBitmap { .. }
            | P::InodeBitmap { .. }
            | P::Padding { .. }
            | P::UninitUsed { .. }
            | P::UninitLast { .. }
            | P::TableUnused { .. } => "write the bitmaps of the group anew",
            P::Mode { .. } => "clear the inode",
            P::ClusterSplit { .. } => "bring the blocks together",
            P::ClaimedTwice { .. } => "give the file a copy of the block",
            P::Extent { .. }
            | P::ExtentEmpty { .. }
            | P::Cluster { .. }
            | P::BlockRange { .. }
            | P::FileBlock { .. } => "make the map anew from what can be read",
            P::Xattr { .. }
            | P::XattrName { .. }
            | P::XattrEntryHash { .. }
            | P::XattrInode { .. } => "take out what is damaged of the attributes",
            P::EntryInode { why: crate::HOLDS_VALUE, .. } => {
                "take out the entry or, where no attribute has it, the mark of a value"
            }
            P::EntryInode { why: crate::NO_LINKS, .. } => {
                "give the file its links again or, if it was deleted, take out the entry"
            }
            P::Dir { .. } => "write the entries that can be read anew",
            P::Name { .. } | P::EntryInode { .. } | P::SecondParent { .. } => "take out the entry",
            P::DuplicateName { .. } => "rename one of the entries",
            P::DirHole { .. }
            | P::Htree { .. }
            | P::HtreeReference { .. }
            | P::HtreeHash { .. }
            | P::HtreeRange { .. } => "write the directory anew",
            P::Unreachable { .. } | P::Loop { .. } => "give it a name in lost+found",
            P::Orphans { .. } | P::Orphan { .. } | P::NotOrphan { .. } => {
                "finish what was begun: delete or shorten"
            }
            P::SpecialInode { field: crate::FIRST_INODE, .. } => "set the number of the first",
            P::SpecialInode { field: "a reserved inode", ino, .. } => match ino.0 < OLD_FIRST_INO {
                true => "clear it",
                false => "set the number of the first",
            },
            P::SpecialInode { .. }
            | P::Journal(..)
            | P::JournalState { .. }
            | P::OrphanFile(..) => "make the file anew",
            P::Quota { .. } | P::QuotaKind { .. } | P::QuotaUsage { .. } => {
                "write the quota file anew, with the limits that can be read"
            }
            P::Symlink { .. } => "set its length, or clear it",
            _ => "write what it should be",
        }
    }
}
