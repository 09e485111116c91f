//! Feature names of `-O`, and sets of them as the superblock stores them.

use std::fmt;

/// One of the superblock's three feature words; the word says who may use a file system whose
/// feature they do not know.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Word {
    /// Everyone may read and write.
    Compat,
    /// Nobody may mount.
    Incompat,
    /// Everyone may read.
    RoCompat,
}

macro_rules! features {
    ($($(#[$doc:meta])* $variant:ident = $word:ident $bit:literal $name:literal $(| $alias:literal)* : $support:ident;)*) => {
        /// A feature that mke2fs knows by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[non_exhaustive]
        pub enum Feature {
            $($(#[$doc])* $variant,)*
        }

        impl Feature {
            /// Every feature, in the order of the superblock's words and bits.
            pub const ALL: &'static [Feature] = &[$(Feature::$variant,)*];

            fn row(self) -> (Word, u32, &'static str, Support) {
                match self {
                    $(Feature::$variant => (Word::$word, $bit, $name, Support::$support),)*
                }
            }

            /// The feature of that name or alias, as `-O` spells it.
            pub fn by_name(name: &str) -> Option<Feature> {
                match name {
                    $($name $(| $alias)* => Some(Feature::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

/// Whether a new file system may have a feature.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Support {
    /// extant builds it.
    Yes,
    /// A state of a file system in use or a feature extant does not build.
    No,
}

features! {
    /// Blocks preallocated for directories; never implemented by Linux.
    DirPrealloc = Compat 0x1 "dir_prealloc": No;
    /// AFS server inodes.
    ImagicInodes = Compat 0x2 "imagic_inodes": No;
    /// A journal.
    HasJournal = Compat 0x4 "has_journal": Yes;
    /// Extended attributes.
    ExtAttr = Compat 0x8 "ext_attr": Yes;
    /// Descriptor blocks reserved for growth, mapped by inode 7.
    ResizeInode = Compat 0x10 "resize_inode": Yes;
    /// Indexed directories.
    DirIndex = Compat 0x20 "dir_index": Yes;
    /// Uninitialised groups without checksums; test code of long ago.
    LazyBg = Compat 0x40 "lazy_bg": No;
    /// Snapshot exclusion; never in Linux.
    ExcludeBitmap = Compat 0x100 "snapshot_bitmap": No;
    /// At most two backups of the superblock, in named groups.
    SparseSuper2 = Compat 0x200 "sparse_super2": Yes;
    /// Room for fast commits after the journal.
    FastCommit = Compat 0x400 "fast_commit": Yes;
    /// Inode numbers and the UUID never change (for encryption policies).
    StableInodes = Compat 0x800 "stable_inodes": Yes;
    /// Orphans listed in a file instead of a chain of inodes.
    OrphanFile = Compat 0x1000 "orphan_file": Yes;

    /// Compressed files; never in Linux.
    Compression = Incompat 0x1 "compression": No;
    /// File type in directory entries.
    Filetype = Incompat 0x2 "filetype": Yes;
    /// The journal must be replayed first.
    NeedsRecovery = Incompat 0x4 "needs_recovery": No;
    /// Not a file system but a journal for others.
    JournalDev = Incompat 0x8 "journal_dev": No;
    /// Descriptors spread over the device.
    MetaBg = Incompat 0x10 "meta_bg": Yes;
    /// Extent trees.
    Extent = Incompat 0x40 "extent" | "extents": Yes;
    /// Block numbers over 32 bits, descriptors of 64 bytes.
    SixtyFourBit = Incompat 0x80 "64bit": Yes;
    /// Multiple-mount protection.
    Mmp = Incompat 0x100 "mmp": Yes;
    /// Bitmaps and tables of several groups together.
    FlexBg = Incompat 0x200 "flex_bg": Yes;
    /// Large extended attributes in their own inodes.
    EaInode = Incompat 0x400 "ea_inode": Yes;
    /// Data in directory entries (Lustre).
    Dirdata = Incompat 0x1000 "dirdata": No;
    /// Checksum seed stored, so that the UUID can change.
    MetadataCsumSeed = Incompat 0x2000 "metadata_csum_seed": Yes;
    /// Directories over 2 GiB and three index levels.
    LargeDir = Incompat 0x4000 "large_dir": Yes;
    /// Small files inside their inodes.
    InlineData = Incompat 0x8000 "inline_data": Yes;
    /// Encrypted files.
    Encrypt = Incompat 0x10000 "encrypt": Yes;
    /// Directories that ignore case.
    Casefold = Incompat 0x20000 "casefold": Yes;

    /// Backups only in groups 0, 1 and powers of 3, 5 and 7.
    SparseSuper = RoCompat 0x1 "sparse_super": Yes;
    /// Files over 2 GiB.
    LargeFile = RoCompat 0x2 "large_file": Yes;
    /// Directories as B-trees; never in Linux.
    BtreeDir = RoCompat 0x4 "btree_dir": No;
    /// Files over 2 TiB.
    HugeFile = RoCompat 0x8 "huge_file": Yes;
    /// Group descriptors with crc16 checksums, uninitialised groups.
    UninitBg = RoCompat 0x10 "uninit_bg" | "uninit_groups" | "gdt_csum": Yes;
    /// More than 65,000 subdirectories.
    DirNlink = RoCompat 0x20 "dir_nlink": Yes;
    /// Inode fields after the first 128 bytes.
    ExtraIsize = RoCompat 0x40 "extra_isize": Yes;
    /// Snapshots; never in Linux.
    HasSnapshot = RoCompat 0x80 "has_snapshot" | "snapshot": No;
    /// Quota files in hidden inodes.
    Quota = RoCompat 0x100 "quota": Yes;
    /// Allocation in clusters of blocks.
    Bigalloc = RoCompat 0x200 "bigalloc": Yes;
    /// crc32c checksums of all metadata.
    MetadataCsum = RoCompat 0x400 "metadata_csum": Yes;
    /// Replicated metadata; never in Linux.
    Replica = RoCompat 0x800 "replica": No;
    /// Never to be mounted for writing.
    ReadOnly = RoCompat 0x1000 "read-only": No;
    /// Project identifiers and their quota.
    Project = RoCompat 0x2000 "project": Yes;
    /// Blocks shared by files (Android).
    SharedBlocks = RoCompat 0x4000 "shared_blocks": No;
    /// Read-only files with Merkle trees.
    Verity = RoCompat 0x8000 "verity": Yes;
    /// The orphan file may have entries.
    OrphanPresent = RoCompat 0x10000 "orphan_present": No;
}

impl Feature {
    /// Name as mke2fs and dumpe2fs spell it.
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// Whether [`crate`] builds file systems with it. The others are refused by name.
    pub fn is_buildable(self) -> bool {
        self.row().3 == Support::Yes
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of features, as the three words of the superblock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct FeatureSet {
    /// `s_feature_compat`.
    pub compat: u32,
    /// `s_feature_incompat`.
    pub incompat: u32,
    /// `s_feature_ro_compat`.
    pub ro_compat: u32,
}

impl FeatureSet {
    /// No feature.
    pub const EMPTY: FeatureSet = FeatureSet { compat: 0, incompat: 0, ro_compat: 0 };

    /// The set of these features.
    pub fn of(features: &[Feature]) -> FeatureSet {
        let mut set = FeatureSet::EMPTY;
        for &feature in features {
            set.insert(feature);
        }
        set
    }

    fn word(&mut self, word: Word) -> &mut u32 {
        match word {
            Word::Compat => &mut self.compat,
            Word::Incompat => &mut self.incompat,
            Word::RoCompat => &mut self.ro_compat,
        }
    }

    /// Whether the set has `feature`.
    pub fn has(&self, feature: Feature) -> bool {
        let (word, bit, ..) = feature.row();
        let bits = match word {
            Word::Compat => self.compat,
            Word::Incompat => self.incompat,
            Word::RoCompat => self.ro_compat,
        };
        bits & bit != 0
    }

    /// Adds `feature`.
    pub fn insert(&mut self, feature: Feature) {
        let (word, bit, ..) = feature.row();
        *self.word(word) |= bit;
    }

    /// Takes `feature` away.
    pub fn remove(&mut self, feature: Feature) {
        let (word, bit, ..) = feature.row();
        *self.word(word) &= !bit;
    }

    /// The features of the set, in the order of [`Feature::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = Feature> {
        let set = *self;
        Feature::ALL.iter().copied().filter(move |&feature| set.has(feature))
    }
}

impl fmt::Display for FeatureSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == FeatureSet::EMPTY {
            return f.write_str("none");
        }
        for (i, feature) in self.iter().enumerate() {
            let space = if i == 0 { "" } else { " " };
            write!(f, "{space}{feature}")?;
        }
        Ok(())
    }
}

/// One element of a `-O` list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FeatureEdit {
    /// `name` or `+name`.
    Add(Feature),
    /// `^name` or `-name`.
    Remove(Feature),
    /// `none`: forget all features up to here.
    Clear,
}

/// A list of edits to a profile's features, applied in order.
///
/// ```
/// use extant_image::options::{Feature, FeatureEdits, FeatureSet};
/// let edits = FeatureEdits::parse("none,extents,^quota").unwrap();
/// let base = FeatureSet::of(&[Feature::Quota, Feature::DirIndex]);
/// assert_eq!(edits.apply(base), FeatureSet::of(&[Feature::Extent]));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FeatureEdits(pub Vec<FeatureEdit>);

/// A `-O` list that names no feature, or one that cannot be built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FeatureNameError {
    /// Not the name of a feature.
    Unknown {
        /// As given.
        name: String,
    },
    /// A feature of ext4 that [`crate`] does not build.
    NotBuildable {
        /// Which.
        feature: Feature,
    },
}

impl fmt::Display for FeatureNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => {
                write!(f, "no feature is called {name:?}; known:")?;
                for feature in Feature::ALL.iter().filter(|feature| feature.is_buildable()) {
                    write!(f, " {feature}")?;
                }
                f.write_str(" (^name takes one away, none takes all)")
            }
            Self::NotBuildable { feature } => {
                write!(f, "feature {feature} cannot be given to a new file system by extant")
            }
        }
    }
}

impl std::error::Error for FeatureNameError {}

impl FeatureEdits {
    /// Parses a list as `-O` takes it: names with commas or spaces between them.
    pub fn parse(list: &str) -> Result<FeatureEdits, FeatureNameError> {
        let words = list.split(|c: char| c == ',' || c.is_ascii_whitespace());
        let mut edits = Vec::new();
        for word in words.filter(|word| !word.is_empty()) {
            let known = |name: &str| {
                Feature::by_name(name).ok_or(FeatureNameError::Unknown { name: name.to_owned() })
            };
            edits.push(if word == "none" || word == "clear" {
                FeatureEdit::Clear
            } else if let Some(name) = word.strip_prefix(['^', '-']) {
                FeatureEdit::Remove(known(name)?)
            } else {
                let feature = known(word.strip_prefix('+').unwrap_or(word))?;
                if !feature.is_buildable() {
                    return Err(FeatureNameError::NotBuildable { feature });
                }
                FeatureEdit::Add(feature)
            });
        }
        Ok(FeatureEdits(edits))
    }

    /// `base` after all edits.
    pub fn apply(&self, base: FeatureSet) -> FeatureSet {
        self.0.iter().fold(base, |mut set, edit| {
            match *edit {
                FeatureEdit::Add(feature) => set.insert(feature),
                FeatureEdit::Remove(feature) => set.remove(feature),
                FeatureEdit::Clear => set = FeatureSet::EMPTY,
            }
            set
        })
    }

    /// Whether the list itself adds `feature` (and does not take it away later).
    pub fn adds(&self, feature: Feature) -> bool {
        self.apply(FeatureSet::EMPTY).has(feature)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_feature_has_its_own_bit_and_name() {
        for (i, &a) in Feature::ALL.iter().enumerate() {
            assert_eq!(Feature::by_name(a.name()), Some(a));
            assert_eq!(FeatureSet::of(&[a]).iter().collect::<Vec<_>>(), [a]);
            for &b in &Feature::ALL[i + 1..] {
                assert_ne!(a.name(), b.name());
            }
        }
    }

    #[test]
    fn edits_apply_in_order() {
        let base = FeatureSet::of(&[Feature::Quota]);
        let edit = |list: &str| FeatureEdits::parse(list).unwrap().apply(base);
        assert_eq!(edit("quota,^quota"), FeatureSet::EMPTY);
        assert_eq!(edit("^quota,quota"), base);
        assert_eq!(edit("mmp none uninit_groups"), FeatureSet::of(&[Feature::UninitBg]));
        assert_eq!(edit("-quota,+mmp"), FeatureSet::of(&[Feature::Mmp]));
        assert_eq!(edit(""), base);
    }

    #[test]
    fn unknown_and_unbuildable_names_are_refused_by_name() {
        let error = FeatureEdits::parse("extents,speed").unwrap_err().to_string();
        assert!(error.contains("\"speed\"") && error.contains("metadata_csum"), "{error}");
        assert!(!error.contains("journal_dev"), "{error}");
        for feature in Feature::ALL.iter().filter(|feature| !feature.is_buildable()) {
            assert_eq!(
                FeatureEdits::parse(feature.name()),
                Err(FeatureNameError::NotBuildable { feature: *feature })
            );
            assert!(FeatureEdits::parse(&format!("^{feature}")).is_ok());
        }
    }
}
