//! The feature bits of a file system, by name, and (in `settings`) the small enumerations of the
//! superblock.
//!
//! # Shape
//!
//! Three 32-bit words say what a program must understand: `compat` (nothing, to read or write),
//! `incompat` (everything, to do anything at all) and `ro_compat` (everything, to write). Bits that
//! have no name are kept and print as `FEATURE_I31`: letter of the word, number of the bit.
//!
//! A [`Feature`] is one bit, [`Features`] is the three words. [`Compat`], [`Incompat`] and
//! [`RoCompat`] are the words one by one, for code that checks several bits of a word at once. The
//! names are those of `mke2fs -O` and `dumpe2fs`, which accept some aliases.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/super.rst`, tables "compatible", "incompatible" and
//! "read-only compatible features"; names and their order as printed by `dumpe2fs -h` of
//! e2fsprogs 1.47.

mod settings;

pub use settings::{
    DefaultHash, DefaultMountOpts, Encoding, EncodingFlags, ErrorsPolicy, JournalMode, State,
    SuperFlags,
};

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// Makes three things of each line: a flag of its word, a [`Feature`], and a row of [`NAMES`].
/// A line is a constant, the number of its bit, the name that e2fsprogs prints and other names for
/// it; a bit without a name is printed by number.
macro_rules! feature_words {
    ($(
        $(#[$word_doc:meta])*
        $word:ident {
            $($(#[$($doc:tt)*])* $flag:ident = $bit:literal $($name:literal)*;)*
        }
    )*) => {
        bitflags::bitflags! {
            $(
                $(#[$word_doc])*
                #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
                pub struct $word: u32 {
                    $($(#[$($doc)*])* const $flag = 1 << $bit;)*
                    const _ = !0;
                }
            )*
        }

        impl Feature {
            $($(
                $(#[$($doc)*])*
                pub const $flag: Feature = Feature { word: FeatureWord::$word, bit: $bit };
            )*)*
        }

        /// Names of each feature, the one to print first.
        const NAMES: &[(Feature, &[&str])] = &[$($((Feature::$flag, &[$($name),*]),)*)*];
    };
}

feature_words! {
    /// `s_feature_compat`: a program that does not know a bit may still read and write.
    Compat {
        /// Directories get blocks ahead of need. Never implemented on Linux.
        DIR_PREALLOC = 0 "dir_prealloc";
        /// Inodes of AFS servers.
        IMAGIC_INODES = 1 "imagic_inodes";
        /// There is a journal, in an inode or on another device.
        HAS_JOURNAL = 2 "has_journal";
        /// Extended attributes may exist.
        EXT_ATTR = 3 "ext_attr";
        /// Inode 7 holds descriptor blocks reserved for growth.
        RESIZE_INODE = 4 "resize_inode";
        /// Directories may be indexed by hash.
        DIR_INDEX = 5 "dir_index";
        /// Early form of uninitialised groups.
        LAZY_BG = 6 "lazy_bg";
        /// Legacy of a snapshot project.
        EXCLUDE_INODE = 7;
        /// Snapshot exclusion bitmaps (`snapshot_bitmap`).
        EXCLUDE_BITMAP = 8 "snapshot_bitmap";
        /// Superblock backups in at most two groups, named by `s_backup_bgs`.
        SPARSE_SUPER2 = 9 "sparse_super2";
        /// The journal may hold fast commits.
        FAST_COMMIT = 10 "fast_commit";
        /// Inode numbers and the UUID never change (encryption policies depend on them).
        STABLE_INODES = 11 "stable_inodes";
        /// Orphans are listed in a file of their own.
        ORPHAN_FILE = 12 "orphan_file";
    }

    /// `s_feature_incompat`: a program that does not know a bit must not touch the file system.
    Incompat {
        /// Compressed files. Never merged on Linux.
        COMPRESSION = 0 "compression";
        /// Directory entries carry the file type.
        FILETYPE = 1 "filetype";
        /// The journal holds transactions that must be replayed first.
        RECOVER = 2 "needs_recovery";
        /// Not a file system but an external journal.
        JOURNAL_DEV = 3 "journal_dev";
        /// Descriptors lie in their own meta block group.
        META_BG = 4 "meta_bg";
        /// Files may be mapped by extents.
        EXTENTS = 6 "extent" "extents";
        /// Block numbers and counts have high halves.
        SIXTY_FOUR_BIT = 7 "64bit";
        /// A block guards against mounting twice.
        MMP = 8 "mmp";
        /// Bitmaps and inode tables may lie outside their group.
        FLEX_BG = 9 "flex_bg";
        /// Large attribute values live in inodes of their own.
        EA_INODE = 10 "ea_inode";
        /// Directory entries may carry extra data (Lustre).
        DIRDATA = 12 "dirdata";
        /// The checksum seed is stored instead of derived from the UUID.
        CSUM_SEED = 13 "metadata_csum_seed";
        /// Directories above 2 GiB and indexes three levels deep.
        LARGEDIR = 14 "large_dir";
        /// Small files and directories live inside the inode.
        INLINE_DATA = 15 "inline_data";
        /// Encrypted inodes may exist.
        ENCRYPT = 16 "encrypt";
        /// Directories may ignore case.
        CASEFOLD = 17 "casefold";
    }

    /// `s_feature_ro_compat`: a program that does not know a bit may only read.
    RoCompat {
        /// Superblock backups only in groups 0, 1 and powers of 3, 5 and 7.
        SPARSE_SUPER = 0 "sparse_super";
        /// A file may be 2 GiB or larger.
        LARGE_FILE = 1 "large_file";
        /// Reserved, never used.
        BTREE_DIR = 2;
        /// Block counts of inodes have 48 bits and may count file-system blocks.
        HUGE_FILE = 3 "huge_file";
        /// Descriptors have a crc16; groups may be uninitialised (`uninit_bg`).
        GDT_CSUM = 4 "uninit_bg" "uninit_groups" "gdt_csum";
        /// A directory with a link count of 1 has "many" subdirectories.
        DIR_NLINK = 5 "dir_nlink";
        /// Inodes have fields past byte 128.
        EXTRA_ISIZE = 6 "extra_isize";
        /// Legacy of a snapshot project.
        HAS_SNAPSHOT = 7;
        /// Quotas are kept in hidden inodes.
        QUOTA = 8 "quota";
        /// Space is allocated in clusters of blocks.
        BIGALLOC = 9 "bigalloc";
        /// Every metadata structure has a crc32c.
        METADATA_CSUM = 10 "metadata_csum";
        /// Reserved, never used.
        REPLICA = 11 "replica";
        /// Must never be written.
        READONLY = 12 "read-only";
        /// Project quotas are kept.
        PROJECT = 13 "project";
        /// Blocks may be shared between files, so nothing may be written (Android).
        SHARED_BLOCKS = 14 "shared_blocks";
        /// fs-verity files may exist.
        VERITY = 15 "verity";
        /// The orphan file may hold entries.
        ORPHAN_PRESENT = 16 "orphan_present";
    }
}

/// Which of the three words a feature belongs to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum FeatureWord {
    /// `s_feature_compat`.
    Compat,
    /// `s_feature_incompat`.
    Incompat,
    /// `s_feature_ro_compat`.
    RoCompat,
}

/// One feature: a word and one bit of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Feature {
    /// The word.
    pub word: FeatureWord,
    /// The number of the bit, 0..=31.
    pub bit: u8,
}

use FeatureWord::{Compat as C, Incompat as I, RoCompat as R};

/// A name that is no feature.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{name}` is not the name of an ext4 feature")]
pub struct UnknownFeatureName {
    /// The name as given.
    pub name: String,
}

impl Feature {
    /// The feature with this name, an alias of it, or `FEATURE_<C|I|R><bit>`; case is ignored.
    ///
    /// ```
    /// use extant_format::features::{Feature, FeatureWord};
    /// let quota = Feature::from_name("quota").unwrap();
    /// assert_eq!((quota.word, quota.bit), (FeatureWord::RoCompat, 8));
    /// assert_eq!(Feature::from_name("extents"), Feature::from_name("extent"));
    /// assert_eq!(Feature::from_name("FEATURE_I31").unwrap().to_string(), "FEATURE_I31");
    /// assert!(Feature::from_name("speed").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`UnknownFeatureName`] with the name.
    pub fn from_name(name: &str) -> Result<Feature, UnknownFeatureName> {
        let called = |names: &[&str]| names.iter().any(|known| known.eq_ignore_ascii_case(name));
        if let Some((feature, _)) = NAMES.iter().find(|(_, names)| called(names)) {
            return Ok(*feature);
        }
        Feature::from_number(name).ok_or_else(|| UnknownFeatureName { name: name.to_string() })
    }

    /// `FEATURE_I31` and the like.
    fn from_number(name: &str) -> Option<Feature> {
        let (prefix, rest) = name.split_at_checked(8)?;
        if !prefix.eq_ignore_ascii_case("FEATURE_") {
            return None;
        }
        let word = match rest.chars().next()? {
            'c' | 'C' => C,
            'i' | 'I' => I,
            'r' | 'R' => R,
            _ => return None,
        };
        let digits = rest.get(1..)?;
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        let bit = digits.parse::<u8>().ok().filter(|bit| *bit < 32)?;
        Some(Feature { word, bit })
    }

    /// The name e2fsprogs prints; `None` for a bit that has none.
    pub fn name(self) -> Option<&'static str> {
        let (_, names) = NAMES.iter().find(|(feature, _)| *feature == self)?;
        names.first().copied()
    }

    /// The bit as a mask of its word; 0 for a bit number over 31.
    pub const fn mask(self) -> u32 {
        match self.bit {
            0..=31 => 1 << self.bit,
            _ => 0,
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.word) {
            (Some(name), _) => f.write_str(name),
            (None, C) => write!(f, "FEATURE_C{}", self.bit),
            (None, I) => write!(f, "FEATURE_I{}", self.bit),
            (None, R) => write!(f, "FEATURE_R{}", self.bit),
        }
    }
}

/// The three feature words together.
///
/// Prints like the line "Filesystem features" of `dumpe2fs`: compatible, incompatible, read-only
/// compatible, each from the lowest bit; `none` when there are none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Features {
    /// `s_feature_compat`.
    pub compat: Compat,
    /// `s_feature_incompat`.
    pub incompat: Incompat,
    /// `s_feature_ro_compat`.
    pub ro_compat: RoCompat,
}

impl Features {
    /// No feature at all.
    pub const NONE: Features = Features {
        compat: Compat::empty(),
        incompat: Incompat::empty(),
        ro_compat: RoCompat::empty(),
    };

    /// The set of these features.
    ///
    /// ```
    /// use extant_format::features::{Feature, Features};
    /// let set = Features::of(&[Feature::EXTENTS, Feature::DIR_INDEX]);
    /// assert_eq!(set.to_string(), "dir_index extent");
    /// ```
    pub const fn of(features: &[Feature]) -> Features {
        let mut set = Features::NONE;
        let mut rest = features;
        while let [feature, others @ ..] = rest {
            set = set.with(*feature);
            rest = others;
        }
        set
    }

    /// The set with `feature` in it as well.
    pub const fn with(self, feature: Feature) -> Features {
        let (compat, incompat, ro_compat) =
            (self.compat.bits(), self.incompat.bits(), self.ro_compat.bits());
        match feature.word {
            C => Features::from_words(compat | feature.mask(), incompat, ro_compat),
            I => Features::from_words(compat, incompat | feature.mask(), ro_compat),
            R => Features::from_words(compat, incompat, ro_compat | feature.mask()),
        }
    }

    /// From the three words as stored; unknown bits are kept.
    pub const fn from_words(compat: u32, incompat: u32, ro_compat: u32) -> Features {
        Features {
            compat: Compat::from_bits_retain(compat),
            incompat: Incompat::from_bits_retain(incompat),
            ro_compat: RoCompat::from_bits_retain(ro_compat),
        }
    }

    /// The bits of one word.
    pub fn word(&self, word: FeatureWord) -> u32 {
        match word {
            C => self.compat.bits(),
            I => self.incompat.bits(),
            R => self.ro_compat.bits(),
        }
    }

    /// Returns whether `feature` is on.
    pub fn has(&self, feature: Feature) -> bool {
        self.word(feature.word) & feature.mask() != 0
    }

    /// Returns whether a compatible feature is on.
    pub fn has_compat(&self, bits: Compat) -> bool {
        self.compat.contains(bits)
    }

    /// Returns whether an incompatible feature is on.
    pub fn has_incompat(&self, bits: Incompat) -> bool {
        self.incompat.contains(bits)
    }

    /// Returns whether a read-only compatible feature is on.
    pub fn has_ro_compat(&self, bits: RoCompat) -> bool {
        self.ro_compat.contains(bits)
    }

    /// Turns one feature on or off.
    pub fn set(&mut self, feature: Feature, on: bool) {
        let mask = feature.mask();
        match feature.word {
            C => self.compat.set(Compat::from_bits_retain(mask), on),
            I => self.incompat.set(Incompat::from_bits_retain(mask), on),
            R => self.ro_compat.set(RoCompat::from_bits_retain(mask), on),
        }
    }

    /// Turns one feature on.
    pub fn insert(&mut self, feature: Feature) {
        self.set(feature, true);
    }

    /// Turns one feature off.
    pub fn remove(&mut self, feature: Feature) {
        self.set(feature, false);
    }

    /// Returns whether crc32c protects the metadata.
    pub fn metadata_csum(&self) -> bool {
        self.has_ro_compat(RoCompat::METADATA_CSUM)
    }

    /// Returns whether group descriptors carry a checksum of either kind, so that groups may be
    /// uninitialised.
    pub fn group_checksums(&self) -> bool {
        self.ro_compat.intersects(RoCompat::METADATA_CSUM | RoCompat::GDT_CSUM)
    }

    /// Every feature that is on, in the order of `dumpe2fs`.
    pub fn iter(&self) -> impl Iterator<Item = Feature> + use<> {
        let words = [(C, self.word(C)), (I, self.word(I)), (R, self.word(R))];
        words.into_iter().flat_map(|(word, bits)| {
            (0..32u8).map(move |bit| Feature { word, bit }).filter(move |f| bits & f.mask() != 0)
        })
    }

    /// The features of `self` that `supported` lacks.
    pub fn without(&self, supported: &Features) -> Features {
        Features {
            compat: self.compat.difference(supported.compat),
            incompat: self.incompat.difference(supported.incompat),
            ro_compat: self.ro_compat.difference(supported.ro_compat),
        }
    }

    /// Returns whether no feature is on.
    pub fn is_empty(&self) -> bool {
        *self == Features::NONE
    }

    /// The names of all features that are on.
    pub fn names(&self) -> Vec<String> {
        self.iter().map(|feature| feature.to_string()).collect()
    }

    /// The features that forbid reading for a program that knows `supported`; empty when it may.
    pub fn unsupported_for_reading(&self, supported: &Features) -> Features {
        Features { incompat: self.incompat.difference(supported.incompat), ..Features::NONE }
    }

    /// The features that forbid writing for a program that knows `supported`; empty when it may.
    ///
    /// `read-only` and `shared_blocks` forbid it to everybody.
    pub fn unsupported_for_writing(&self, supported: &Features) -> Features {
        let never = RoCompat::READONLY | RoCompat::SHARED_BLOCKS;
        let known = supported.ro_compat.difference(never);
        Features {
            incompat: self.incompat.difference(supported.incompat),
            ro_compat: self.ro_compat.difference(known),
            ..Features::NONE
        }
    }
}

impl fmt::Display for Features {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, feature) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{feature}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::format;

    #[test]
    fn every_bit_has_one_name_that_reads_back() {
        for word in [C, I, R] {
            for bit in 0..32 {
                let feature = Feature { word, bit };
                let name = feature.to_string();
                assert_eq!(Feature::from_name(&name), Ok(feature), "{name}");
                assert_eq!(Feature::from_name(&name.to_uppercase()), Ok(feature), "{name}");
                let mut set = Features::NONE;
                set.set(feature, true);
                assert_eq!(format!("{set}"), name);
                assert!(set.has(feature));
                assert_eq!(Features::of(&[feature]), set);
                set.set(feature, false);
                assert!(set.is_empty());
                assert_eq!(set.to_string(), "none");
            }
        }
    }

    #[test]
    fn names_that_are_none_are_refused() {
        for bad in
            ["", "FEATURE_", "FEATURE_I", "FEATURE_I32", "FEATURE_X1", "FEATURE_I+1", "ü€ü€ü"]
        {
            assert!(Feature::from_name(bad).is_err(), "{bad}");
        }
        for (alias, name) in
            [("uninit_groups", "uninit_bg"), ("gdt_csum", "uninit_bg"), ("extents", "extent")]
        {
            assert_eq!(Feature::from_name(alias).unwrap().to_string(), name);
        }
    }

    #[test]
    fn names_mean_the_bits_of_their_words() {
        // Both columns from the kernel's documentation, not from the table above.
        let pairs: &[(u32, FeatureWord, &str)] = &[
            (0x4, C, "has_journal"),
            (0x80, C, "FEATURE_C7"),
            (0x100, C, "snapshot_bitmap"),
            (0x1000, C, "orphan_file"),
            (0x4, I, "needs_recovery"),
            (0x40, I, "extent"),
            (0x80, I, "64bit"),
            (0x2000, I, "metadata_csum_seed"),
            (0x4000, I, "large_dir"),
            (0x2_0000, I, "casefold"),
            (0x4, R, "FEATURE_R2"),
            (0x10, R, "uninit_bg"),
            (0x80, R, "FEATURE_R7"),
            (0x400, R, "metadata_csum"),
            (0x1000, R, "read-only"),
            (0x1_0000, R, "orphan_present"),
        ];
        for (bits, word, name) in pairs {
            let feature = Feature::from_name(name).unwrap();
            assert_eq!((feature.mask(), feature.word), (*bits, *word), "{name}");
            assert_eq!(feature.to_string(), *name);
        }
        let all = Features::from_words(!0, !0, !0);
        assert!(NAMES.iter().map(|row| row.0).is_sorted(), "rows are in the order of dumpe2fs");
        assert!(all.iter().is_sorted() && all.iter().count() == 96);
        assert_eq!(Compat::HAS_JOURNAL.bits(), Feature::HAS_JOURNAL.mask());
        assert_eq!(Incompat::CASEFOLD.bits(), Feature::CASEFOLD.mask());
        assert_eq!(RoCompat::ORPHAN_PRESENT.bits(), Feature::ORPHAN_PRESENT.mask());
    }

    #[test]
    fn gates_name_what_is_missing() {
        let set = Features::from_words(0x8000_0000, 0x8000_0042, 0x1001);
        let known = Features::from_words(0, 0x42, 0x1001);
        assert_eq!(set.unsupported_for_reading(&known).names(), ["FEATURE_I31"]);
        assert_eq!(set.unsupported_for_writing(&known).names(), ["FEATURE_I31", "read-only"]);
        assert_eq!(set.without(&known).names(), ["FEATURE_C31", "FEATURE_I31"]);
    }
}
