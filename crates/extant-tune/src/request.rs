//! What is asked for, and the order in which it is done.

use extant_format::features::{DefaultHash, Encoding, EncodingFlags, Feature};
use extant_format::superblock::Superblock;

use crate::error::{Result, refuse};

/// What is asked for. What is `None`, or not in the list, stays as it is.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// Features on or off.
    pub features: Vec<(Feature, bool)>,
    /// Size of the journal in bytes.
    pub journal_bytes: Option<u64>,
    /// Usage that is counted: by user, group, project.
    pub quota: [Option<bool>; 3],
    /// UUID.
    pub uuid: Option<[u8; 16]>,
    /// With `uuid`: checksums stay as they are, by the feature `metadata_csum_seed`.
    pub keep_checksums: bool,
    /// Bytes of an inode.
    pub inode_size: Option<u16>,
    /// Character set of directories that ignore case, with `casefold`.
    pub encoding: Option<Encoding>,
    /// Flags of the character set.
    pub encoding_flags: Option<EncodingFlags>,
    /// Hash of names in indexes that are made from now on.
    pub default_hash: Option<DefaultHash>,
    /// Mount options as text, at most 63 bytes.
    pub mount_options: Option<Vec<u8>>,
    /// Stride of a RAID in blocks.
    pub stride: Option<u16>,
    /// Stripe width of a RAID in blocks.
    pub stripe_width: Option<u32>,
    /// Seconds between two updates of the multi-mount block.
    pub mmp_interval: Option<u16>,
    /// Whether multi-mount protection forgets who has the file system: nobody does, on any host. Changes,
    /// checks and mounts that are cut off leave it said. Not kept for undoing.
    pub clear_mmp: bool,
    /// Seconds since 1970: the times of new files.
    pub now: i64,
}

/// One conversion. They are done in the order in which they stand here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Conversion {
    QuotaOff,
    OrphanFileOff,
    FastCommitOff,
    JournalOff,
    MmpOff,
    ChecksumsOff,
    GroupChecksumsOff,
    BitsOff,
    WideOff,
    InodeSize,
    Bits,
    WideOn,
    GroupChecksumsOn,
    ChecksumsOn,
    SeedOff,
    SeedOn,
    Uuid,
    MmpOn,
    JournalSize,
    JournalOn,
    FastCommitOn,
    OrphanFileOn,
    QuotaOn,
    Settings,
}

impl Request {
    /// Returns whether a feature is asked for, and how; the last word counts.
    pub(crate) fn wants(&self, feature: Feature) -> Option<bool> {
        self.features.iter().rev().find(|(one, _)| *one == feature).map(|(_, on)| *on)
    }

    /// The conversions of an image with this superblock, in order.
    pub(crate) fn conversions(&self, sb: &Superblock) -> Result<Vec<Conversion>> {
        use Conversion as C;
        let mut list = Vec::new();
        for (feature, on) in &self.features {
            if self.wants(*feature) != Some(*on) || sb.features.has(*feature) == *on {
                continue;
            }
            list.push(match (*feature, on) {
                (Feature::HAS_JOURNAL, true) => C::JournalOn,
                (Feature::HAS_JOURNAL, false) => C::JournalOff,
                (Feature::FAST_COMMIT, true) => C::FastCommitOn,
                (Feature::FAST_COMMIT, false) => C::FastCommitOff,
                (Feature::ORPHAN_FILE, true) => C::OrphanFileOn,
                (Feature::ORPHAN_FILE, false) => C::OrphanFileOff,
                (Feature::MMP, true) => C::MmpOn,
                (Feature::MMP, false) => C::MmpOff,
                (Feature::METADATA_CSUM, true) => C::ChecksumsOn,
                (Feature::METADATA_CSUM, false) => C::ChecksumsOff,
                (Feature::GDT_CSUM, true) => C::GroupChecksumsOn,
                (Feature::GDT_CSUM, false) => C::GroupChecksumsOff,
                (Feature::CSUM_SEED, true) => C::SeedOn,
                (Feature::CSUM_SEED, false) => C::SeedOff,
                (Feature::SIXTY_FOUR_BIT, true) => C::WideOn,
                (Feature::SIXTY_FOUR_BIT, false) => C::WideOff,
                (Feature::QUOTA | Feature::PROJECT, true) => C::QuotaOn,
                (Feature::QUOTA | Feature::PROJECT, false) => C::QuotaOff,
                (_, true) => C::Bits,
                (_, false) => C::BitsOff,
            });
        }
        let kinds = [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode];
        let has_quota = sb.features.has(Feature::QUOTA);
        for (wanted, ino) in self.quota.iter().zip(kinds) {
            let is_there = has_quota && ino.0 != 0;
            match wanted {
                Some(true) if !is_there => list.push(C::QuotaOn),
                Some(false) if is_there => list.push(C::QuotaOff),
                _ => {}
            }
        }
        if self.wants(Feature::HAS_JOURNAL) == Some(false) && self.journal_bytes.is_some() {
            return refuse("journal size", "has_journal is to be taken away");
        }
        if self.journal_bytes.is_some() && !list.contains(&C::JournalOn) {
            if !sb.features.has(Feature::HAS_JOURNAL) {
                return refuse("journal size", "there is no journal; -O has_journal makes one");
            }
            list.push(C::JournalSize);
        }
        if let Some(size) = self.inode_size
            && size != sb.inode_size
        {
            list.push(C::InodeSize);
        }
        if self.uuid.is_some_and(|uuid| uuid != sb.uuid) {
            list.push(C::Uuid);
        }
        let is_setting = self.default_hash.is_some()
            || self.mount_options.is_some()
            || self.stride.is_some()
            || self.stripe_width.is_some()
            || self.mmp_interval.is_some()
            || self.encoding_flags.is_some();
        if is_setting {
            list.push(C::Settings);
        }
        list.sort_unstable();
        list.dedup();
        Ok(list)
    }
}
