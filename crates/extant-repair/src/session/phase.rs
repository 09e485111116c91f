//! The order in which problems are taken up.

use extant_check::Problem;

use crate::special;

/// In which order problems are taken up: what others follow from comes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Phase {
    Super,
    Groups,
    Log,
    Inodes,
    Journal,
    Twice,
    Special,
    Orphans,
    Dirs,
    Dots,
    Loops,
    Lost,
    Links,
    Counts,
    Quota,
    Bitmaps,
    Totals,
    State,
    Unknown,
}

pub(super) fn phase(problem: &Problem) -> Phase {
    use Problem as P;
    match problem {
        P::DeviceTooSmall { .. }
        | P::SuperblockChecksum(..)
        | P::ExtraSize { .. }
        | P::Feature { .. }
        | P::FeatureAlone { .. }
        | P::FieldAlone { .. }
        | P::ReservedBlocks { .. }
        | P::Mmp(..)
        | P::SpecialInode { field: extant_check::FIRST_INODE, .. } => Phase::Super,
        P::Group(..)
        | P::OutsideGroup { .. }
        | P::MetadataOverlap { .. }
        | P::TableUnused { .. }
        | P::GroupFlags { .. } => Phase::Groups,
        P::NeedsRecovery => Phase::Log,
        P::SpecialInode { field: "the list of bad blocks" | "a reserved inode", .. } => {
            Phase::Inodes
        }
        P::Size { why: special::ORPHAN_SIZE, .. } => Phase::Orphans,
        P::Size { why: special::QUOTA_SIZE, .. } => Phase::Quota,
        P::BlockChecksum { source, .. } if !is_node(source.structure) => Phase::Dirs,
        P::Inode { .. }
        | P::Mode { .. }
        | P::Flags { .. }
        | P::Reserved { .. }
        | P::Unwritten { .. }
        | P::Encryption { .. }
        | P::Size { .. }
        | P::Extent { .. }
        | P::ExtentRoom { .. }
        | P::ExtentEmpty { .. }
        | P::BlockChecksum { .. }
        | P::Cluster { .. }
        | P::BlockRange { .. }
        | P::FileBlock { .. }
        | P::Inline { .. }
        | P::Symlink { .. }
        | P::Special { .. }
        | P::Xattr { .. }
        | P::XattrChecksum { .. }
        | P::XattrName { .. }
        | P::XattrEntryHash { .. }
        | P::XattrBlockHash { .. } => Phase::Inodes,
        P::XattrInode { why, .. } if *why != extant_check::VALUE_COUNT => Phase::Inodes,
        P::SpecialInode { field: "s_journal_inum", .. }
        | P::Journal(..)
        | P::JournalChecksum(..)
        | P::JournalState { .. } => Phase::Journal,
        P::ClaimedTwice { .. } | P::ClusterSplit { .. } => Phase::Twice,
        P::ResizeInode { .. } | P::SpecialInode { .. } => Phase::Special,
        P::Orphans { .. } | P::Orphan { .. } | P::OrphanFile(..) | P::Dtime { .. } => {
            Phase::Orphans
        }
        P::Dir { .. }
        | P::DirHole { .. }
        | P::DotsEnd { .. }
        | P::Name { .. }
        | P::DuplicateName { .. }
        | P::EntryInode { .. }
        | P::EntryType { .. }
        | P::SecondParent { .. }
        | P::Htree { .. }
        | P::HtreeReference { .. }
        | P::HtreeHash { .. }
        | P::HtreeRange { .. } => Phase::Dirs,
        P::Dots { .. } => Phase::Dots,
        P::Loop { .. } => Phase::Loops,
        P::Unreachable { .. } | P::NotOrphan { .. } => Phase::Lost,
        P::Links { .. } => Phase::Links,
        P::XattrReferences { .. } | P::XattrInode { .. } | P::Sectors { .. } => Phase::Counts,
        P::Quota { .. } | P::QuotaKind { .. } | P::QuotaUsage { .. } => Phase::Quota,
        P::BitmapChecksum { .. }
        | P::Padding { .. }
        | P::BlockBitmap { .. }
        | P::InodeBitmap { .. }
        | P::UninitUsed { .. }
        | P::UninitLast { .. }
        | P::GroupCount { .. } => Phase::Bitmaps,
        P::SuperblockCount { .. } => Phase::Totals,
        P::State { .. } => Phase::State,
        _ => Phase::Unknown,
    }
}

/// Returns whether a checksum is that of a node of a map.
fn is_node(structure: &str) -> bool {
    structure.contains("extent")
}
