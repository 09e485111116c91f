//! Options of a new file system: the choices of mke2fs's command line.
//!
//! # Place
//!
//! Filled by the command line or by a caller; [`crate::geometry`] turns it into numbers and
//! `superblock_template` into a superblock. This module does no I/O.

mod extended;
mod features;
mod validate;

use extant_base::BlockSize;

pub use extant_format::features::{DefaultMountOpts, Encoding, ErrorsPolicy, Feature, Features};
pub use extant_format::hash::HashVersion;
pub use extended::ExtendedOptionError;
pub use features::{FeatureEdit, FeatureEdits, FeatureNameError, is_buildable};
pub use validate::OptionError;

use crate::profile::Profile;
use crate::readers::{Conflict, Reader};

/// Size of the internal journal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JournalOption {
    /// By size of the file system; none below 2048 blocks. Only with `has_journal`.
    #[default]
    Auto,
    /// No journal, as `-O ^has_journal`.
    None,
    /// A size in bytes, rounded down to blocks; turns `has_journal` on.
    Bytes(u64),
    /// A number of blocks; turns `has_journal` on.
    Blocks(u32),
}

/// Blocks for fast commits after the journal, with `fast_commit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FastCommitSize {
    /// 1/64 of the default journal.
    #[default]
    Auto,
    /// A size in bytes, rounded down to blocks.
    Bytes(u64),
    /// A number of blocks.
    Blocks(u32),
}

/// A length given in bytes or in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SizeOption {
    /// Bytes, rounded up to blocks.
    Bytes(u64),
    /// Blocks.
    Blocks(u32),
}

impl SizeOption {
    /// In blocks of `block_size`.
    pub(crate) fn blocks(self, block_size: BlockSize) -> u64 {
        match self {
            SizeOption::Bytes(bytes) => block_size.blocks_for(bytes),
            SizeOption::Blocks(blocks) => u64::from(blocks),
        }
    }
}

/// Which quota files to make, with `quota`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct QuotaTypes {
    /// Inode 3.
    pub user: bool,
    /// Inode 4.
    pub group: bool,
    /// The first free inode; turns `project` on.
    pub project: bool,
}

impl QuotaTypes {
    /// Number of quota files.
    pub fn count(self) -> u32 {
        u32::from(self.user) + u32::from(self.group) + u32::from(self.project)
    }
}

/// Every choice mke2fs offers for a new file system, with mke2fs's defaults.
#[derive(Clone, PartialEq, Debug)]
pub struct MkfsOptions {
    /// Defaults that the other fields edit.
    pub profile: Profile,
    /// Programs that are to read the file system: features of the profile that one of them does not know are left out.
    pub readers: Vec<Reader>,
    /// `-O`: features added to and taken from the profile's.
    pub features: FeatureEdits,
    /// `-b`; `None`: by size class, 1 KiB below 512 MiB, else 4 KiB.
    pub block_size: Option<BlockSize>,
    /// `-C`, bytes per cluster with `bigalloc`; `None`: 16 blocks.
    pub cluster_bytes: Option<u32>,
    /// `-I`; `None`: the profile's, 256.
    pub inode_size: Option<u16>,
    /// `-i`, bytes of device per inode; `None`: by size class.
    pub bytes_per_inode: Option<u32>,
    /// `-N`: total inodes.
    pub inodes: Option<u64>,
    /// `-m`: percent of blocks reserved for root, 0..=50; `None`: the profile's, 5 (microvm: 0).
    pub reserved_percent: Option<f64>,
    /// `-L`, at most 16 bytes.
    pub label: Vec<u8>,
    /// `-M`, where it was last mounted, at most 64 bytes.
    pub last_mounted: Vec<u8>,
    /// `-U`; `None`: the caller draws one (or derives it, for reproducible images).
    pub uuid: Option<[u8; 16]>,
    /// `-E hash_seed=`; `None`: the caller draws one.
    pub hash_seed: Option<[u8; 16]>,
    /// Hash of names in indexed directories, any but [`HashVersion::SipHash`]. Bytes of names count
    /// as signed unless changed, whatever the machine, so that images do not depend on it.
    pub hash: HashVersion,
    /// `-J`.
    pub journal: JournalOption,
    /// `-J fast_commit_size=`.
    pub fast_commit: FastCommitSize,
    /// `-G`, groups per flex group, a power of two; `None`: 16.
    pub flex_groups: Option<u32>,
    /// `-g`, blocks per group (clusters with `bigalloc`).
    pub blocks_per_group: Option<u32>,
    /// `-E stride=`, blocks; 0: unknown.
    pub stride: u32,
    /// `-E stripe_width=`, blocks; 0: unknown.
    pub stripe_width: u32,
    /// `-E resize=`: room to grow to that many blocks.
    pub resize_limit_blocks: Option<u64>,
    /// `-E root_owner=`: user and group of the root directory; `None`: the source's, else 0:0.
    pub root_owner: Option<(u32, u32)>,
    /// `-E root_perms=`: permission bits of the root directory; `None`: the source's, else 0755.
    pub root_perms: Option<u16>,
    /// `-e`: what the kernel does when it finds damage.
    pub errors: ErrorsPolicy,
    /// Mount options in force unless the mounter says otherwise; `user_xattr` and `acl` unless
    /// changed.
    pub default_mount_opts: DefaultMountOpts,
    /// `-E lazy_itable_init=`: leave inode tables of unused groups to the kernel.
    pub lazy_itable_init: bool,
    /// `-E lazy_journal_init=`: leave the journal's blocks as they are.
    pub lazy_journal_init: bool,
    /// `-E packed_meta_blocks=`; `None`: the profile's. Without effect unless `flex_bg`.
    pub packed_meta_blocks: Option<bool>,
    /// `-E num_backup_sb=`, 0..=2, with `sparse_super2`.
    pub backup_superblocks: u8,
    /// `-E quotatype=`; `None`: user and group, and project with that feature.
    pub quota: Option<QuotaTypes>,
    /// `-E encoding=`; turns `casefold` on.
    pub encoding: Option<Encoding>,
    /// `-E encoding_flags=strict`: names that are not valid UTF-8 are refused by the kernel.
    pub encoding_strict: bool,
    /// `-E mmp_update_interval=`, seconds, at most 300; 0: 5, mke2fs's choice.
    pub mmp_update_interval: u16,
    /// `-E orphan_file_size=`, in bytes or blocks; `None`: by size.
    pub orphan_file_size: Option<SizeOption>,
    /// `-E desc_size=`, with `64bit`.
    pub desc_size: Option<u16>,
    /// Creation time, seconds since 1970; `None`: the clock.
    pub created: Option<i64>,
    /// `-E test_fs`: marks a file system for code under development.
    pub test_fs: bool,
    /// `-E assume_storage_prezeroed=`: the device reads as zeroes.
    pub assume_zeroed: bool,
    /// `-E discard`/`nodiscard`: discard the device first.
    pub discard: bool,
    /// `-E no_copy_xattrs`: leave extended attributes of the source out.
    pub copy_xattrs: bool,
}

impl Default for MkfsOptions {
    fn default() -> MkfsOptions {
        MkfsOptions::new(Profile::Default)
    }
}

impl MkfsOptions {
    /// The defaults of `profile`.
    pub fn new(profile: Profile) -> MkfsOptions {
        MkfsOptions {
            profile,
            readers: Vec::new(),
            features: FeatureEdits::default(),
            block_size: None,
            cluster_bytes: None,
            inode_size: None,
            bytes_per_inode: None,
            inodes: None,
            reserved_percent: None,
            label: Vec::new(),
            last_mounted: Vec::new(),
            uuid: None,
            hash_seed: None,
            hash: HashVersion::HalfMd4,
            journal: JournalOption::Auto,
            fast_commit: FastCommitSize::Auto,
            flex_groups: None,
            blocks_per_group: None,
            stride: 0,
            stripe_width: 0,
            resize_limit_blocks: None,
            root_owner: None,
            root_perms: None,
            errors: ErrorsPolicy::Continue,
            default_mount_opts: DefaultMountOpts::XATTR_USER | DefaultMountOpts::ACL,
            lazy_itable_init: false,
            lazy_journal_init: false,
            packed_meta_blocks: None,
            backup_superblocks: 2,
            quota: None,
            encoding: None,
            encoding_strict: false,
            mmp_update_interval: 0,
            orphan_file_size: None,
            desc_size: None,
            created: None,
            test_fs: false,
            assume_zeroed: false,
            discard: false,
            copy_xattrs: true,
        }
    }

    /// Edits features as `-O` does.
    pub fn with_features(mut self, list: &str) -> Result<MkfsOptions, FeatureNameError> {
        self.features.0.extend(FeatureEdits::parse(list)?.0);
        Ok(self)
    }

    /// Sets the block size.
    pub fn with_block_size(mut self, block_size: BlockSize) -> MkfsOptions {
        self.block_size = Some(block_size);
        self
    }

    /// Features asked for: the profile's, the edits, and what other options turn on or off
    /// (a journal size, a resize limit, an encoding, project quota).
    ///
    /// What a file system of a given size ends up with is [`crate::geometry::Geometry::features`].
    pub fn requested_features(&self) -> Features {
        let mut set = self.features.apply(self.profile.features());
        match self.journal {
            JournalOption::Auto => {}
            JournalOption::None => set.remove(Feature::HAS_JOURNAL),
            JournalOption::Bytes(_) | JournalOption::Blocks(_) => set.insert(Feature::HAS_JOURNAL),
        }
        // The profile's orphan file goes with its journal; one asked for by name is an error.
        if !set.has(Feature::HAS_JOURNAL) && !self.features.adds(Feature::ORPHAN_FILE) {
            set.remove(Feature::ORPHAN_FILE);
        }
        if self.resize_limit_blocks.is_some() {
            set.insert(Feature::RESIZE_INODE);
        }
        if self.encoding.is_some() {
            set.insert(Feature::CASEFOLD);
        }
        if self.quota.is_some_and(|types| types.project) {
            set.insert(Feature::PROJECT);
        }
        self.leave_out(&mut set);
        // Both say how descriptors are checked; the stronger one wins, as in mke2fs.
        if set.has(Feature::METADATA_CSUM) {
            set.remove(Feature::GDT_CSUM);
        }
        set
    }

    /// Takes from `set` what a reader does not know and nobody asked for, and what needs that.
    fn leave_out(&self, set: &mut Features) {
        let had_checksums = set.has(Feature::METADATA_CSUM);
        let knows = |feature| self.readers.iter().all(|reader| reader.trouble(feature).is_none());
        for feature in set.iter().filter(|feature| !knows(*feature) && !self.asks_for(*feature)) {
            set.remove(feature);
        }
        if self.readers.is_empty() {
            return;
        }
        if had_checksums && !set.has(Feature::METADATA_CSUM) && knows(Feature::GDT_CSUM) {
            set.insert(Feature::GDT_CSUM);
        }
        for (feature, needs) in validate::NEEDS {
            if !set.has(needs) && !knows(needs) && !self.asks_for(feature) {
                set.remove(feature);
            }
        }
    }

    /// Returns whether the options name `feature`, or something that is nothing without it.
    fn asks_for(&self, feature: Feature) -> bool {
        let sized = matches!(self.journal, JournalOption::Bytes(_) | JournalOption::Blocks(_));
        let by_option = match feature {
            Feature::HAS_JOURNAL => sized,
            Feature::RESIZE_INODE => self.resize_limit_blocks.is_some(),
            Feature::CASEFOLD => self.encoding.is_some(),
            Feature::PROJECT => self.quota.is_some_and(|types| types.project),
            _ => false,
        };
        by_option || self.features.adds(feature)
    }

    /// Features that were asked for and that one of the [`readers`](Self::readers) does not know.
    pub fn conflicts(&self) -> Vec<Conflict> {
        let features = self.requested_features();
        self.readers.iter().flat_map(|reader| reader.conflicts(&features)).collect()
    }

    /// The quota files to make; none without the `quota` feature.
    pub fn quota_types(&self) -> QuotaTypes {
        let features = self.requested_features();
        if !features.has(Feature::QUOTA) {
            return QuotaTypes::default();
        }
        let project = features.has(Feature::PROJECT);
        match self.quota {
            Some(types) => QuotaTypes { project, ..types },
            None => QuotaTypes { user: true, group: true, project },
        }
    }
}
