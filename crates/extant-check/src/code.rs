//! Names of broken rules that programs can rely on.

use crate::problem::Problem;

impl Problem {
    /// Returns the name of the broken rule, for programs: lower case, words with hyphens between.
    /// It does not change between versions, unlike the text.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Problem::SuperblockChecksum(..) => "superblock-checksum",
            Problem::DeviceTooSmall { .. } => "device-too-small",
            Problem::Unreadable { .. } => "unreadable",
            Problem::NeedsRecovery => "needs-recovery",
            Problem::State { .. } => "state",
            Problem::ExtraSize { .. } => "extra-size",
            Problem::Feature { .. } => "feature",
            Problem::FeatureAlone { .. } => "feature-alone",
            Problem::FieldAlone { .. } => "field-alone",
            Problem::ReservedBlocks { .. } => "reserved-blocks",
            Problem::Mmp(..) => "mmp",
            Problem::SuperblockCount { .. } => "superblock-count",
            Problem::ResizeInode { .. } => "resize-inode",
            Problem::Group(..) => "group",
            Problem::OutsideGroup { .. } => "outside-group",
            Problem::MetadataOverlap { .. } => "metadata-overlap",
            Problem::BitmapChecksum { .. } => "bitmap-checksum",
            Problem::Padding { .. } => "padding",
            Problem::BlockBitmap { .. } => "block-bitmap",
            Problem::InodeBitmap { .. } => "inode-bitmap",
            Problem::UninitUsed { .. } => "uninit-used",
            Problem::UninitLast { .. } => "uninit-last",
            Problem::TableUnused { .. } => "table-unused",
            Problem::GroupCount { .. } => "group-count",
            Problem::GroupFlags { .. } => "group-flags",
            Problem::Reserved { .. } => "reserved",
            Problem::Unwritten { .. } => "unwritten",
            Problem::Encryption { .. } => "encryption",
            Problem::Inode { .. } => "inode",
            Problem::Mode { .. } => "mode",
            Problem::Flags { .. } => "flags",
            Problem::Dtime { .. } => "dtime",
            Problem::Size { .. } => "size",
            Problem::Sectors { .. } => "sectors",
            Problem::Extent { .. } => "extent",
            Problem::ExtentRoom { .. } => "extent-room",
            Problem::ExtentEmpty { .. } => "extent-empty",
            Problem::BlockChecksum { .. } => "block-checksum",
            Problem::Cluster { .. } => "cluster",
            Problem::ClusterSplit { .. } => "cluster-split",
            Problem::BlockRange { .. } => "block-range",
            Problem::ClaimedTwice { .. } => "claimed-twice",
            Problem::FileBlock { .. } => "file-block",
            Problem::Inline { .. } => "inline",
            Problem::Symlink { .. } => "symlink",
            Problem::Special { .. } => "special",
            Problem::SpecialInode { .. } => "special-inode",
            Problem::Xattr { .. } => "xattr",
            Problem::XattrChecksum { .. } => "xattr-checksum",
            Problem::XattrName { .. } => "xattr-name",
            Problem::XattrEntryHash { .. } => "xattr-entry-hash",
            Problem::XattrBlockHash { .. } => "xattr-block-hash",
            Problem::XattrReferences { .. } => "xattr-references",
            Problem::XattrInode { .. } => "xattr-inode",
            Problem::Dir { .. } => "dir",
            Problem::DirHole { .. } => "dir-hole",
            Problem::Dots { .. } => "dots",
            Problem::DotsEnd { .. } => "dots-end",
            Problem::Name { .. } => "name",
            Problem::DuplicateName { .. } => "duplicate-name",
            Problem::EntryInode { .. } => "entry-inode",
            Problem::EntryType { .. } => "entry-type",
            Problem::SecondParent { .. } => "second-parent",
            Problem::Htree { .. } => "htree",
            Problem::HtreeReference { .. } => "htree-reference",
            Problem::HtreeHash { .. } => "htree-hash",
            Problem::HtreeRange { .. } => "htree-range",
            Problem::Unreachable { .. } => "unreachable",
            Problem::Loop { .. } => "loop",
            Problem::Links { .. } => "links",
            Problem::Orphans { .. } => "orphans",
            Problem::Orphan { .. } => "orphan",
            Problem::NotOrphan { .. } => "not-orphan",
            Problem::OrphanFile(..) => "orphan-file",
            Problem::Journal(..) => "journal",
            Problem::JournalChecksum(..) => "journal-checksum",
            Problem::JournalState { .. } => "journal-state",
            Problem::Quota { .. } => "quota",
            Problem::QuotaKind { .. } => "quota-kind",
            Problem::QuotaUsage { .. } => "quota-usage",
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Ino;

    use super::*;

    #[test]
    fn the_code_of_a_rule_is_the_name_of_its_variant() {
        let problems = [
            Problem::NeedsRecovery,
            Problem::Dtime { ino: Ino(12), dtime: 0, links: 0 },
            Problem::SuperblockCount { what: "free blocks", stored: 1, counted: 2 },
        ];
        for problem in problems {
            let name = format!("{problem:?}");
            let name = name.split(' ').next().unwrap_or("").to_lowercase();
            assert_eq!(problem.code().replace('-', ""), name);
        }
    }
}
