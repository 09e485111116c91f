//! Combinations of options that make no file system, each with the way out.

use std::fmt;

use extant_base::BlockSize;
use extant_format::superblock::OLD_INODE_SIZE;

use crate::readers::{Conflict, Trouble};

use super::{Encoding, ErrorsPolicy, Feature, Features, HashVersion, MkfsOptions, is_buildable};

/// Options that contradict each other or are out of range.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum OptionError {
    /// A feature that needs another one.
    Needs {
        /// Asked for.
        feature: Feature,
        /// Missing.
        needs: Feature,
    },
    /// Two features that exclude each other.
    Excludes {
        /// One.
        feature: Feature,
        /// The other.
        other: Feature,
    },
    /// A feature this crate does not build.
    NotBuildable {
        /// Which.
        feature: Feature,
    },
    /// A feature that was asked for, and that a reader cannot read.
    NotRead {
        /// Which of them.
        conflict: Conflict,
    },
    /// An option without effect unless a feature is on.
    OptionNeeds {
        /// The option.
        option: &'static str,
        /// Feature that it needs.
        needs: Feature,
    },
    /// A feature whose fields do not fit in 128-byte inodes.
    InodeTooSmall {
        /// The feature.
        feature: Feature,
    },
    /// A number out of its range.
    OutOfRange {
        /// The option.
        option: &'static str,
        /// As given.
        value: String,
        /// Allowed values.
        allowed: String,
    },
    /// A text too long for its field.
    TooLong {
        /// The option.
        option: &'static str,
        /// As given, in bytes.
        len: usize,
        /// Room, in bytes.
        max: usize,
    },
}

impl fmt::Display for OptionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Needs { feature, needs } => {
                write!(
                    f,
                    "feature {feature} needs {needs}: add {needs} or take {feature} away (^{feature})"
                )
            }
            Self::Excludes { feature, other } => write!(
                f,
                "features {feature} and {other} exclude each other: take one away (^{feature} or ^{other})"
            ),
            Self::NotBuildable { feature } => {
                write!(f, "feature {feature} cannot be given to a new file system by extant")
            }
            Self::NotRead { conflict } => {
                let Conflict { feature, reader, .. } = conflict;
                write!(f, "{conflict}: take it away (^{feature}), or leave out --for {reader}")
            }
            Self::OptionNeeds { option, needs } => {
                write!(f, "{option} needs feature {needs}: add {needs} or leave {option} out")
            }
            Self::InodeTooSmall { feature } => write!(
                f,
                "feature {feature} needs inodes over 128 bytes: use inode size 256 or take {feature} away (^{feature})"
            ),
            Self::OutOfRange { option, value, allowed } => {
                write!(f, "{option} {value} is out of range: {allowed}")
            }
            Self::TooLong { option, len, max } => {
                write!(f, "{option} has {len} bytes, at most {max} fit")
            }
        }
    }
}

impl std::error::Error for OptionError {}

/// Features and what each needs, in the order mke2fs complains, so that users see the familiar message first.
pub(super) const NEEDS: [(Feature, Feature); 10] = [
    (Feature::SIXTY_FOUR_BIT, Feature::EXTENTS),
    (Feature::BIGALLOC, Feature::EXTENTS),
    (Feature::VERITY, Feature::EXTENTS),
    (Feature::CSUM_SEED, Feature::METADATA_CSUM),
    (Feature::ORPHAN_FILE, Feature::HAS_JOURNAL),
    (Feature::FAST_COMMIT, Feature::HAS_JOURNAL),
    (Feature::RESIZE_INODE, Feature::SPARSE_SUPER),
    (Feature::LARGEDIR, Feature::DIR_INDEX),
    (Feature::INLINE_DATA, Feature::EXT_ATTR),
    (Feature::EA_INODE, Feature::EXT_ATTR),
];

/// Bytes per inode that mke2fs takes: one per smallest block to one per 1024 largest blocks.
const BYTES_PER_INODE: std::ops::RangeInclusive<u32> = 1024..=65536 * 1024;

/// Longest interval between heartbeats, seconds (`EXT4_MMP_MAX_UPDATE_INTERVAL`).
const MMP_INTERVAL_MAX: u16 = 300;

impl MkfsOptions {
    /// Checks the options that do not depend on the size of the device. `block_size` and
    /// `inode_size` are the values that will be used.
    pub(crate) fn validate(
        &self,
        features: &Features,
        block_size: BlockSize,
        inode_size: u16,
    ) -> Result<(), OptionError> {
        if let Some(feature) = features.iter().find(|&feature| !is_buildable(feature)) {
            return Err(OptionError::NotBuildable { feature });
        }
        let mut conflicts = self.readers.iter().flat_map(|reader| reader.conflicts(features));
        if let Some(conflict) = conflicts.find(|found| found.trouble == Trouble::NotRead) {
            return Err(OptionError::NotRead { conflict });
        }
        self.validate_features(features)?;
        self.validate_feature_options(features)?;
        self.validate_inodes(features, block_size, inode_size)?;
        self.validate_groups(features, block_size)?;
        self.validate_choices()?;
        self.validate_texts()
    }

    fn validate_features(&self, features: &Features) -> Result<(), OptionError> {
        use Feature as F;
        for (feature, needs) in NEEDS {
            if features.has(feature) && !features.has(needs) {
                return Err(OptionError::Needs { feature, needs });
            }
        }
        for (feature, other) in [(F::RESIZE_INODE, F::META_BG), (F::METADATA_CSUM, F::GDT_CSUM)] {
            if features.has(feature) && features.has(other) {
                return Err(OptionError::Excludes { feature, other });
            }
        }
        Ok(())
    }

    fn validate_feature_options(&self, features: &Features) -> Result<(), OptionError> {
        use Feature as F;
        let quota = self.quota.is_some_and(|types| types.user || types.group);
        let options = [
            (self.cluster_bytes.is_some(), "cluster size (-C)", F::BIGALLOC),
            (self.flex_groups.is_some(), "flex group size (-G)", F::FLEX_BG),
            (self.desc_size.is_some(), "desc_size", F::SIXTY_FOUR_BIT),
            (self.encoding_strict, "encoding_flags", F::CASEFOLD),
            (self.orphan_file_size.is_some(), "orphan_file_size", F::ORPHAN_FILE),
            (self.mmp_update_interval != 0, "mmp_update_interval", F::MMP),
            (self.fast_commit != Default::default(), "fast_commit_size", F::FAST_COMMIT),
            (quota, "quotatype", F::QUOTA),
            (self.backup_superblocks != 2, "num_backup_sb", F::SPARSE_SUPER2),
        ];
        for (given, option, needs) in options {
            if given && !features.has(needs) {
                return Err(OptionError::OptionNeeds { option, needs });
            }
        }
        Ok(())
    }

    fn validate_inodes(
        &self,
        features: &Features,
        block_size: BlockSize,
        inode_size: u16,
    ) -> Result<(), OptionError> {
        let max = block_size.bytes();
        if !inode_size.is_power_of_two()
            || inode_size < OLD_INODE_SIZE
            || u32::from(inode_size) > max
        {
            return Err(OptionError::OutOfRange {
                option: "inode size (-I)",
                value: inode_size.to_string(),
                allowed: format!(
                    "a power of two, {OLD_INODE_SIZE}..={max}, at most the block size"
                ),
            });
        }
        if inode_size == OLD_INODE_SIZE {
            for feature in [Feature::PROJECT, Feature::INLINE_DATA] {
                if features.has(feature) {
                    return Err(OptionError::InodeTooSmall { feature });
                }
            }
        }
        if let Some(ratio) = self.bytes_per_inode.filter(|ratio| !BYTES_PER_INODE.contains(ratio)) {
            return Err(OptionError::OutOfRange {
                option: "bytes per inode (-i)",
                value: ratio.to_string(),
                allowed: format!("{}..={}", BYTES_PER_INODE.start(), BYTES_PER_INODE.end()),
            });
        }
        if let Some(inodes) = self.inodes.filter(|&n| n == 0 || n > u64::from(u32::MAX)) {
            return Err(OptionError::OutOfRange {
                option: "inode count (-N)",
                value: inodes.to_string(),
                allowed: format!("1..={}", u32::MAX),
            });
        }
        Ok(())
    }

    fn validate_groups(
        &self,
        features: &Features,
        block_size: BlockSize,
    ) -> Result<(), OptionError> {
        let out_of_range = |option, value: String, allowed: &str| {
            Err(OptionError::OutOfRange { option, value, allowed: allowed.to_owned() })
        };
        if let Some(percent) = self.reserved_percent.filter(|p| !(0.0..=50.0).contains(p)) {
            return out_of_range("reserved percent (-m)", percent.to_string(), "0..=50");
        }
        if let Some(flex) = self.flex_groups.filter(|flex| !flex.is_power_of_two()) {
            let allowed = "a power of two";
            return out_of_range("flex group size (-G)", flex.to_string(), allowed);
        }
        let bits = 8 * block_size.bytes();
        if let Some(blocks) = self.blocks_per_group.filter(|&b| b % 8 != 0 || b < 256 || b > bits) {
            let allowed = format!("a multiple of 8, 256..={bits}, one bitmap block's worth");
            return out_of_range("blocks per group (-g)", blocks.to_string(), &allowed);
        }
        if let Some(bytes) = self.cluster_bytes.filter(|_| features.has(Feature::BIGALLOC)) {
            let min = 2 * block_size.bytes();
            if !bytes.is_power_of_two() || bytes < min || bytes > 1 << 29 {
                let allowed = format!("a power of two, {min} (two blocks) ..= {}", 1 << 29);
                return out_of_range("cluster size (-C)", bytes.to_string(), &allowed);
            }
        }
        if let Some(size) = self.desc_size
            && !(size.is_power_of_two() && (64..=1024).contains(&size))
        {
            return out_of_range("desc_size", size.to_string(), "a power of two, 64..=1024");
        }
        if self.mmp_update_interval > MMP_INTERVAL_MAX {
            let allowed = "0..=300 seconds";
            let value = self.mmp_update_interval.to_string();
            return out_of_range("mmp_update_interval", value, allowed);
        }
        if self.stride > u32::from(u16::MAX) {
            return out_of_range("stride", self.stride.to_string(), "0..=65535 blocks");
        }
        if self.backup_superblocks > 2 {
            return out_of_range("num_backup_sb", self.backup_superblocks.to_string(), "0..=2");
        }
        if let Some(perms) = self.root_perms.filter(|perms| perms & !0o7777 != 0) {
            return out_of_range("root_perms", format!("{perms:o}"), "0..=7777, octal");
        }
        Ok(())
    }

    /// Values that a superblock found on a device may have, but no new one should.
    fn validate_choices(&self) -> Result<(), OptionError> {
        let refuse = |option, value, allowed: &str| {
            Err(OptionError::OutOfRange { option, value, allowed: allowed.to_owned() })
        };
        if let ErrorsPolicy::Unknown(raw) = self.errors {
            return refuse("errors behaviour (-e)", raw.to_string(), "1..=3");
        }
        if let Some(Encoding::Unknown(raw)) = self.encoding {
            return refuse("encoding", raw.to_string(), "1, which is UTF-8 of Unicode 12.1");
        }
        if self.hash == HashVersion::SipHash {
            let allowed = "legacy, half_md4 or tea; siphash is for encrypted directories";
            return refuse("directory hash", "siphash".to_owned(), allowed);
        }
        Ok(())
    }

    fn validate_texts(&self) -> Result<(), OptionError> {
        // `s_volume_name` and `s_last_mounted` are that long and end early at a zero byte.
        for (option, text, max) in
            [("label (-L)", &self.label, 16), ("last-mounted path (-M)", &self.last_mounted, 64)]
        {
            if text.len() > max {
                return Err(OptionError::TooLong { option, len: text.len(), max });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::QuotaTypes;

    fn check(options: &MkfsOptions) -> Result<(), OptionError> {
        let block_size = options.block_size.unwrap_or(BlockSize::new(4096).unwrap());
        let inode_size = options.inode_size.unwrap_or(256);
        options.validate(&options.requested_features(), block_size, inode_size)
    }

    fn features(list: &str) -> MkfsOptions {
        MkfsOptions::default().with_features(list).unwrap()
    }

    #[test]
    fn every_refused_combination_says_what_to_change() {
        let with = |change: &dyn Fn(&mut MkfsOptions)| {
            let mut options = MkfsOptions::default();
            change(&mut options);
            options
        };
        let cases = [
            (features("^extent"), "64bit needs extent"),
            (features("^64bit,bigalloc,^extent"), "bigalloc needs extent"),
            (features("^64bit,verity,^extent"), "verity needs extent"),
            (features("^metadata_csum"), "metadata_csum_seed needs metadata_csum"),
            (features("orphan_file,^has_journal"), "orphan_file needs has_journal"),
            (features("meta_bg"), "resize_inode and meta_bg exclude"),
            (features("^sparse_super"), "resize_inode needs sparse_super"),
            (features("large_dir,^dir_index"), "large_dir needs dir_index"),
            (features("inline_data,^ext_attr"), "inline_data needs ext_attr"),
            (with(&|o| o.cluster_bytes = Some(65536)), "needs feature bigalloc"),
            (with(&|o| o.inode_size = Some(200)), "inode size (-I) 200"),
            (with(&|o| o.inode_size = Some(8192)), "at most the block size"),
            (with(&|o| o.bytes_per_inode = Some(1023)), "1024..=67108864"),
            (with(&|o| o.inodes = Some(1 << 32)), "1..=4294967295"),
            (with(&|o| o.reserved_percent = Some(50.1)), "0..=50"),
            (with(&|o| o.reserved_percent = Some(f64::NAN)), "0..=50"),
            (with(&|o| o.flex_groups = Some(3)), "power of two"),
            (with(&|o| o.blocks_per_group = Some(257)), "multiple of 8"),
            (with(&|o| o.blocks_per_group = Some(32776)), "256..=32768"),
            (with(&|o| o.desc_size = Some(100)), "64..=1024"),
            (with(&|o| o.mmp_update_interval = 3), "needs feature mmp"),
            (with(&|o| o.backup_superblocks = 1), "needs feature sparse_super2"),
            (
                MkfsOptions { backup_superblocks: 3, ..features("sparse_super2") },
                "num_backup_sb 3 is out of range: 0..=2",
            ),
            (with(&|o| o.stride = 1 << 16), "0..=65535"),
            (with(&|o| o.root_perms = Some(0o10000)), "7777"),
            (with(&|o| o.encoding_strict = true), "needs feature casefold"),
            (with(&|o| o.errors = ErrorsPolicy::Unknown(4)), "-e) 4 is out of range"),
            (with(&|o| o.encoding = Some(Encoding::Unknown(2))), "encoding 2 is out of range"),
            (with(&|o| o.hash = HashVersion::SipHash), "siphash is for encrypted"),
            (with(&|o| o.label = vec![b'x'; 17]), "17 bytes"),
            (
                with(&|o| o.quota = Some(QuotaTypes { user: true, ..QuotaTypes::default() })),
                "needs feature quota",
            ),
        ];
        for (options, part) in cases {
            let text = check(&options).expect_err(part).to_string();
            assert!(text.contains(part), "{text:?} lacks {part:?}");
        }
        for feature in ["project", "inline_data"] {
            let small = MkfsOptions { inode_size: Some(128), ..features(feature) };
            let text = check(&small).unwrap_err().to_string();
            assert!(text.contains(feature) && text.contains("256"), "{text}");
        }
    }

    #[test]
    fn options_turn_their_features_on() {
        let options = MkfsOptions {
            encoding: Some(Encoding::Utf8V12_1),
            encoding_strict: true,
            quota: Some(QuotaTypes { project: true, ..QuotaTypes::default() }),
            resize_limit_blocks: Some(1 << 30),
            ..features("quota,^resize_inode,uninit_bg")
        };
        assert_eq!(check(&options), Ok(()));
        let set = options.requested_features();
        for feature in [Feature::CASEFOLD, Feature::PROJECT, Feature::RESIZE_INODE] {
            assert!(set.has(feature), "{feature}");
        }
        assert!(!set.has(Feature::GDT_CSUM));
        assert_eq!(options.quota_types().count(), 1);
    }
}
