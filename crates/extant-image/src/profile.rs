//! Named sets of defaults, each equal to what one mke2fs makes.

use std::fmt;
use std::str::FromStr;

use extant_format::features::{Feature, Features};

/// Source of the defaults.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Profile {
    /// `mke2fs -t ext4` 1.47.4 with upstream's configuration.
    #[default]
    Default,
    /// `mke2fs -t ext4` of Debian 12 (1.47.0): without `metadata_csum_seed` and `orphan_file`,
    /// of which Linux before 5.15 and e2fsprogs before 1.47 do not know the latter.
    Debian12,
    /// `mke2fs -t ext3`: journal and block maps.
    Ext3,
    /// `mke2fs -t ext2`: no journal.
    Ext2,
    /// Small images that are copied, mapped and snapshotted: 4 KiB blocks at any size, all
    /// bitmaps and tables at the front (`packed_meta_blocks`), at most two backups of the
    /// superblock (`sparse_super2`), no blocks reserved for root or for growth, nothing left for
    /// the kernel to initialise after the first mount.
    Microvm,
}

/// Features of every `mke2fs` file system of these years (`base_features`).
const BASE: [Feature; 6] = [
    Feature::SPARSE_SUPER,
    Feature::LARGE_FILE,
    Feature::FILETYPE,
    Feature::RESIZE_INODE,
    Feature::DIR_INDEX,
    Feature::EXT_ATTR,
];

/// Features that `ext4` of mke2fs 1.47.0 adds to [`BASE`].
const EXT4: [Feature; 8] = [
    Feature::HAS_JOURNAL,
    Feature::EXTENTS,
    Feature::HUGE_FILE,
    Feature::FLEX_BG,
    Feature::METADATA_CSUM,
    Feature::SIXTY_FOUR_BIT,
    Feature::DIR_NLINK,
    Feature::EXTRA_ISIZE,
];

impl Profile {
    /// Every profile.
    pub const ALL: [Profile; 5] =
        [Profile::Default, Profile::Debian12, Profile::Ext3, Profile::Ext2, Profile::Microvm];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Default => "default",
            Profile::Debian12 => "debian12",
            Profile::Ext3 => "ext3",
            Profile::Ext2 => "ext2",
            Profile::Microvm => "microvm",
        }
    }

    /// Features before `-O`.
    pub fn features(self) -> Features {
        let mut set = Features::of(&BASE);
        let mut add = |features: &[Feature]| features.iter().for_each(|&f| set.insert(f));
        match self {
            Profile::Ext2 => {}
            Profile::Ext3 => add(&[Feature::HAS_JOURNAL]),
            Profile::Debian12 => add(&EXT4),
            Profile::Default => {
                add(&EXT4);
                add(&[Feature::CSUM_SEED, Feature::ORPHAN_FILE]);
            }
            Profile::Microvm => {
                add(&EXT4);
                add(&[Feature::CSUM_SEED, Feature::SPARSE_SUPER2]);
                set.remove(Feature::RESIZE_INODE);
            }
        }
        set
    }

    /// Percent of blocks reserved for root.
    pub(crate) fn reserved_percent(self) -> f64 {
        if self == Profile::Microvm { 0.0 } else { 5.0 }
    }

    /// Returns whether bitmaps and tables of all groups go to the front.
    pub(crate) fn packs_metadata(self) -> bool {
        self == Profile::Microvm
    }

    /// Block size for a device of any size; `None`: by size class.
    pub(crate) fn block_bytes(self) -> Option<u32> {
        (self == Profile::Microvm).then_some(4096)
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is no profile's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownProfile {
    /// As given.
    pub name: String,
}

impl fmt::Display for UnknownProfile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no profile is called {:?}; known: ", self.name)?;
        for (i, profile) in Profile::ALL.iter().enumerate() {
            write!(f, "{}{profile}", if i == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}

impl std::error::Error for UnknownProfile {}

impl FromStr for Profile {
    type Err = UnknownProfile;

    fn from_str(name: &str) -> Result<Profile, UnknownProfile> {
        // mke2fs calls its default "ext4".
        let name = if name == "ext4" { Profile::Default.name() } else { name };
        let known = Profile::ALL.into_iter().find(|profile| profile.name() == name);
        known.ok_or_else(|| UnknownProfile { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for profile in Profile::ALL {
            assert_eq!(profile.name().parse(), Ok(profile));
        }
        assert_eq!("ext4".parse(), Ok(Profile::Default));
        let error = "ext5".parse::<Profile>().unwrap_err().to_string();
        assert!(error.contains("\"ext5\"") && error.contains("microvm"), "{error}");
    }
}
