//! The feature bits of a file system, by name, and the small enumerations of the superblock.
//!
//! # Shape
//!
//! Three 32-bit words say what a program must understand: `compat` (nothing, to read or write),
//! `incompat` (everything, to do anything at all) and `ro_compat` (everything, to write). Bits that
//! have no name are kept and print as `FEATURE_I31`: letter of the word, number of the bit.
//!
//! The names are those of `mke2fs -O` and `dumpe2fs`, which accept some aliases.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/super.rst`, tables "compatible", "incompatible" and
//! "read-only compatible features", "default hash", "mount options", "flags"; names and their order
//! as printed by `dumpe2fs -h` of e2fsprogs 1.47.

use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

bitflags::bitflags! {
    /// `s_feature_compat`: a program that does not know a bit may still read and write.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Compat: u32 {
        /// Directories get blocks ahead of need. Never implemented on Linux.
        const DIR_PREALLOC = 0x1;
        /// Inodes of AFS servers.
        const IMAGIC_INODES = 0x2;
        /// There is a journal, in an inode or on another device.
        const HAS_JOURNAL = 0x4;
        /// Extended attributes may exist.
        const EXT_ATTR = 0x8;
        /// Inode 7 holds descriptor blocks reserved for growth.
        const RESIZE_INODE = 0x10;
        /// Directories may be indexed by hash.
        const DIR_INDEX = 0x20;
        /// Early form of uninitialised groups.
        const LAZY_BG = 0x40;
        /// Legacy of a snapshot project.
        const EXCLUDE_INODE = 0x80;
        /// Snapshot exclusion bitmaps (`snapshot_bitmap`).
        const EXCLUDE_BITMAP = 0x100;
        /// Superblock backups in at most two groups, named by `s_backup_bgs`.
        const SPARSE_SUPER2 = 0x200;
        /// The journal may hold fast commits.
        const FAST_COMMIT = 0x400;
        /// Inode numbers and the UUID never change (encryption policies depend on them).
        const STABLE_INODES = 0x800;
        /// Orphans are listed in a file of their own.
        const ORPHAN_FILE = 0x1000;
        const _ = !0;
    }

    /// `s_feature_incompat`: a program that does not know a bit must not touch the file system.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct Incompat: u32 {
        /// Compressed files. Never merged on Linux.
        const COMPRESSION = 0x1;
        /// Directory entries carry the file type.
        const FILETYPE = 0x2;
        /// The journal holds transactions that must be replayed first.
        const RECOVER = 0x4;
        /// Not a file system but an external journal.
        const JOURNAL_DEV = 0x8;
        /// Descriptors lie in their own meta block group.
        const META_BG = 0x10;
        /// Files may be mapped by extents.
        const EXTENTS = 0x40;
        /// Block numbers and counts have high halves.
        const SIXTY_FOUR_BIT = 0x80;
        /// A block guards against mounting twice.
        const MMP = 0x100;
        /// Bitmaps and inode tables may lie outside their group.
        const FLEX_BG = 0x200;
        /// Large attribute values live in inodes of their own.
        const EA_INODE = 0x400;
        /// Directory entries may carry extra data (Lustre).
        const DIRDATA = 0x1000;
        /// The checksum seed is stored instead of derived from the UUID.
        const CSUM_SEED = 0x2000;
        /// Directories above 2 GiB and indexes three levels deep.
        const LARGEDIR = 0x4000;
        /// Small files and directories live inside the inode.
        const INLINE_DATA = 0x8000;
        /// Encrypted inodes may exist.
        const ENCRYPT = 0x1_0000;
        /// Directories may ignore case.
        const CASEFOLD = 0x2_0000;
        const _ = !0;
    }

    /// `s_feature_ro_compat`: a program that does not know a bit may only read.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct RoCompat: u32 {
        /// Superblock backups only in groups 0, 1 and powers of 3, 5 and 7.
        const SPARSE_SUPER = 0x1;
        /// A file may be 2 GiB or larger.
        const LARGE_FILE = 0x2;
        /// Reserved, never used.
        const BTREE_DIR = 0x4;
        /// Block counts of inodes have 48 bits and may count file-system blocks.
        const HUGE_FILE = 0x8;
        /// Descriptors have a crc16; groups may be uninitialised (`uninit_bg`).
        const GDT_CSUM = 0x10;
        /// A directory with a link count of 1 has "many" subdirectories.
        const DIR_NLINK = 0x20;
        /// Inodes have fields past byte 128.
        const EXTRA_ISIZE = 0x40;
        /// Legacy of a snapshot project.
        const HAS_SNAPSHOT = 0x80;
        /// Quotas are kept in hidden inodes.
        const QUOTA = 0x100;
        /// Space is allocated in clusters of blocks.
        const BIGALLOC = 0x200;
        /// Every metadata structure has a crc32c.
        const METADATA_CSUM = 0x400;
        /// Reserved, never used.
        const REPLICA = 0x800;
        /// Must never be written.
        const READONLY = 0x1000;
        /// Project quotas are kept.
        const PROJECT = 0x2000;
        /// Blocks may be shared between files, so nothing may be written (Android).
        const SHARED_BLOCKS = 0x4000;
        /// fs-verity files may exist.
        const VERITY = 0x8000;
        /// The orphan file may hold entries.
        const ORPHAN_PRESENT = 0x1_0000;
        const _ = !0;
    }

    /// `s_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct SuperFlags: u32 {
        /// Directory hashes treat name bytes as signed.
        const SIGNED_HASH = 0x1;
        /// Directory hashes treat name bytes as unsigned.
        const UNSIGNED_HASH = 0x2;
        /// May be mounted by code under development.
        const TEST_FILESYS = 0x4;
        const _ = !0;
    }

    /// `s_default_mount_opts`. The two `JMODE` bits form one number: see [`JournalMode`].
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct DefaultMountOpts: u32 {
        /// `debug`.
        const DEBUG = 0x1;
        /// `bsdgroups`: new files take the group of their directory.
        const BSDGROUPS = 0x2;
        /// `user_xattr`.
        const XATTR_USER = 0x4;
        /// `acl`.
        const ACL = 0x8;
        /// `uid16`: 16-bit owners only.
        const UID16 = 0x10;
        /// `journal_data` when alone; with [`Self::JMODE_ORDERED`]: `journal_data_writeback`.
        const JMODE_DATA = 0x20;
        /// `journal_data_ordered` when alone.
        const JMODE_ORDERED = 0x40;
        /// `nobarrier`.
        const NOBARRIER = 0x100;
        /// `block_validity`.
        const BLOCK_VALIDITY = 0x200;
        /// `discard`.
        const DISCARD = 0x400;
        /// `nodelalloc`.
        const NODELALLOC = 0x800;
        const _ = !0;
    }

    /// `s_state`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct State: u16 {
        /// Unmounted cleanly.
        const VALID = 0x1;
        /// Errors were seen.
        const ERROR = 0x2;
        /// Orphans are being processed.
        const ORPHAN = 0x4;
        /// A fast-commit replay is under way.
        const FC_REPLAY = 0x20;
        const _ = !0;
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

/// Canonical names. `RO_COMPAT_BTREE_DIR`, `HAS_SNAPSHOT` and `COMPAT_EXCLUDE_INODE` have none:
/// e2fsprogs prints them by number too.
const NAMES: &[(FeatureWord, u8, &str)] = &[
    (C, 0, "dir_prealloc"),
    (C, 1, "imagic_inodes"),
    (C, 2, "has_journal"),
    (C, 3, "ext_attr"),
    (C, 4, "resize_inode"),
    (C, 5, "dir_index"),
    (C, 6, "lazy_bg"),
    (C, 8, "snapshot_bitmap"),
    (C, 9, "sparse_super2"),
    (C, 10, "fast_commit"),
    (C, 11, "stable_inodes"),
    (C, 12, "orphan_file"),
    (I, 0, "compression"),
    (I, 1, "filetype"),
    (I, 2, "needs_recovery"),
    (I, 3, "journal_dev"),
    (I, 4, "meta_bg"),
    (I, 6, "extent"),
    (I, 7, "64bit"),
    (I, 8, "mmp"),
    (I, 9, "flex_bg"),
    (I, 10, "ea_inode"),
    (I, 12, "dirdata"),
    (I, 13, "metadata_csum_seed"),
    (I, 14, "large_dir"),
    (I, 15, "inline_data"),
    (I, 16, "encrypt"),
    (I, 17, "casefold"),
    (R, 0, "sparse_super"),
    (R, 1, "large_file"),
    (R, 3, "huge_file"),
    (R, 4, "uninit_bg"),
    (R, 5, "dir_nlink"),
    (R, 6, "extra_isize"),
    (R, 8, "quota"),
    (R, 9, "bigalloc"),
    (R, 10, "metadata_csum"),
    (R, 11, "replica"),
    (R, 12, "read-only"),
    (R, 13, "project"),
    (R, 14, "shared_blocks"),
    (R, 15, "verity"),
    (R, 16, "orphan_present"),
];

/// Other names that mean a feature of [`NAMES`].
const ALIASES: &[(FeatureWord, u8, &str)] = &[(R, 4, "uninit_groups"), (I, 6, "extents")];

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
        let named = NAMES.iter().chain(ALIASES).find(|entry| entry.2.eq_ignore_ascii_case(name));
        if let Some((word, bit, _)) = named {
            return Ok(Feature { word: *word, bit: *bit });
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
        NAMES.iter().find(|(word, bit, _)| (*word, *bit) == (self.word, self.bit)).map(|e| e.2)
    }

    /// The bit as a mask of its word.
    pub fn mask(self) -> u32 {
        1u32.checked_shl(u32::from(self.bit)).unwrap_or(0)
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
/// compatible, each from the lowest bit.
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

    /// From the three words as stored; unknown bits are kept.
    pub fn from_words(compat: u32, incompat: u32, ro_compat: u32) -> Features {
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

    /// Whether `feature` is on.
    pub fn contains(&self, feature: Feature) -> bool {
        self.word(feature.word) & feature.mask() != 0
    }

    /// Whether a compatible feature is on.
    pub fn has_compat(&self, bits: Compat) -> bool {
        self.compat.contains(bits)
    }

    /// Whether an incompatible feature is on.
    pub fn has_incompat(&self, bits: Incompat) -> bool {
        self.incompat.contains(bits)
    }

    /// Whether a read-only compatible feature is on.
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

    /// Whether crc32c protects the metadata.
    pub fn metadata_csum(&self) -> bool {
        self.has_ro_compat(RoCompat::METADATA_CSUM)
    }

    /// Whether group descriptors carry a checksum of either kind, so that groups may be
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

    /// Whether no feature is on.
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
        for (index, feature) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            write!(f, "{feature}")?;
        }
        Ok(())
    }
}

/// What the kernel does when it finds damage: `s_errors`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ErrorsPolicy {
    /// 1: note it and go on.
    #[default]
    Continue,
    /// 2: refuse further writes.
    RemountReadOnly,
    /// 3: stop the machine.
    Panic,
    /// Any other value; the kernel treats it like [`Self::Continue`].
    Unknown(u16),
}

impl ErrorsPolicy {
    /// From `s_errors`.
    pub fn from_raw(raw: u16) -> ErrorsPolicy {
        match raw {
            1 => Self::Continue,
            2 => Self::RemountReadOnly,
            3 => Self::Panic,
            other => Self::Unknown(other),
        }
    }

    /// To `s_errors`.
    pub fn to_raw(self) -> u16 {
        match self {
            Self::Continue => 1,
            Self::RemountReadOnly => 2,
            Self::Panic => 3,
            Self::Unknown(other) => other,
        }
    }
}

impl fmt::Display for ErrorsPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continue => f.write_str("Continue"),
            Self::RemountReadOnly => f.write_str("Remount read-only"),
            Self::Panic => f.write_str("Panic"),
            Self::Unknown(_) => f.write_str("Unknown (continue)"),
        }
    }
}

/// How file data is ordered against the journal by default.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum JournalMode {
    /// Data goes through the journal.
    Data,
    /// Data is on the device before the transaction that refers to it.
    Ordered,
    /// No order.
    Writeback,
}

impl DefaultMountOpts {
    /// The journal mode these options ask for; `None`: the mounter's own default.
    pub fn journal_mode(self) -> Option<JournalMode> {
        match (self.contains(Self::JMODE_DATA), self.contains(Self::JMODE_ORDERED)) {
            (true, true) => Some(JournalMode::Writeback),
            (true, false) => Some(JournalMode::Data),
            (false, true) => Some(JournalMode::Ordered),
            (false, false) => None,
        }
    }

    /// The options by their `tune2fs -o` names, lowest bit first.
    pub fn names(self) -> Vec<&'static str> {
        let mode = match self.journal_mode() {
            Some(JournalMode::Data) => Some("journal_data"),
            Some(JournalMode::Ordered) => Some("journal_data_ordered"),
            Some(JournalMode::Writeback) => Some("journal_data_writeback"),
            None => None,
        };
        let before = [
            (Self::DEBUG, "debug"),
            (Self::BSDGROUPS, "bsdgroups"),
            (Self::XATTR_USER, "user_xattr"),
            (Self::ACL, "acl"),
            (Self::UID16, "uid16"),
        ];
        let after = [
            (Self::NOBARRIER, "nobarrier"),
            (Self::BLOCK_VALIDITY, "block_validity"),
            (Self::DISCARD, "discard"),
            (Self::NODELALLOC, "nodelalloc"),
        ];
        let on = |(flag, name): &(Self, &'static str)| self.contains(*flag).then_some(*name);
        before.iter().filter_map(on).chain(mode).chain(after.iter().filter_map(on)).collect()
    }
}

/// `s_def_hash_version`: the hash of new indexed directories. Whether name bytes are signed is
/// said by [`SuperFlags`], not here, for the first three.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DefaultHash {
    /// 0.
    Legacy,
    /// 1.
    HalfMd4,
    /// 2.
    Tea,
    /// 3.
    LegacyUnsigned,
    /// 4.
    HalfMd4Unsigned,
    /// 5.
    TeaUnsigned,
    /// 6, for directories that are encrypted and ignore case.
    SipHash,
    /// Any other value.
    Unknown(u8),
}

impl DefaultHash {
    /// From `s_def_hash_version`.
    pub fn from_raw(raw: u8) -> DefaultHash {
        match raw {
            0 => Self::Legacy,
            1 => Self::HalfMd4,
            2 => Self::Tea,
            3 => Self::LegacyUnsigned,
            4 => Self::HalfMd4Unsigned,
            5 => Self::TeaUnsigned,
            6 => Self::SipHash,
            other => Self::Unknown(other),
        }
    }

    /// To `s_def_hash_version`.
    pub fn to_raw(self) -> u8 {
        match self {
            Self::Legacy => 0,
            Self::HalfMd4 => 1,
            Self::Tea => 2,
            Self::LegacyUnsigned => 3,
            Self::HalfMd4Unsigned => 4,
            Self::TeaUnsigned => 5,
            Self::SipHash => 6,
            Self::Unknown(other) => other,
        }
    }
}

impl fmt::Display for DefaultHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Legacy => f.write_str("legacy"),
            Self::HalfMd4 => f.write_str("half_md4"),
            Self::Tea => f.write_str("tea"),
            Self::LegacyUnsigned => f.write_str("legacy_unsigned"),
            Self::HalfMd4Unsigned => f.write_str("half_md4_unsigned"),
            Self::TeaUnsigned => f.write_str("tea_unsigned"),
            Self::SipHash => f.write_str("siphash"),
            Self::Unknown(other) => write!(f, "HASHALG_{other}"),
        }
    }
}

/// `s_encoding`: the character set of directories that ignore case.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Encoding {
    /// 1: Unicode 12.1, `utf8-12.1`.
    Utf8V12_1,
    /// Any other value.
    Unknown(u16),
}

impl Encoding {
    /// From `s_encoding`, when the `casefold` feature is on.
    pub fn from_raw(raw: u16) -> Encoding {
        if raw == 1 { Self::Utf8V12_1 } else { Self::Unknown(raw) }
    }

    /// To `s_encoding`.
    pub fn to_raw(self) -> u16 {
        match self {
            Self::Utf8V12_1 => 1,
            Self::Unknown(raw) => raw,
        }
    }
}

bitflags::bitflags! {
    /// `s_encoding_flags`.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
    pub struct EncodingFlags: u16 {
        /// Names that are not valid in the encoding are refused.
        const STRICT = 0x1;
        /// No linear search when the hash of a name is not found.
        const NO_COMPAT_FALLBACK = 0x2;
        const _ = !0;
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
                assert!(set.contains(feature));
                set.set(feature, false);
                assert!(set.is_empty());
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
        for (alias, name) in [("uninit_groups", "uninit_bg"), ("extents", "extent")] {
            assert_eq!(Feature::from_name(alias).unwrap().to_string(), name);
        }
    }

    #[test]
    fn constants_agree_with_the_name_table() {
        let pairs: &[(u32, FeatureWord, &str)] = &[
            (Compat::HAS_JOURNAL.bits(), C, "has_journal"),
            (Compat::EXCLUDE_BITMAP.bits(), C, "snapshot_bitmap"),
            (Compat::ORPHAN_FILE.bits(), C, "orphan_file"),
            (Incompat::RECOVER.bits(), I, "needs_recovery"),
            (Incompat::EXTENTS.bits(), I, "extent"),
            (Incompat::SIXTY_FOUR_BIT.bits(), I, "64bit"),
            (Incompat::CSUM_SEED.bits(), I, "metadata_csum_seed"),
            (Incompat::LARGEDIR.bits(), I, "large_dir"),
            (Incompat::CASEFOLD.bits(), I, "casefold"),
            (RoCompat::GDT_CSUM.bits(), R, "uninit_bg"),
            (RoCompat::METADATA_CSUM.bits(), R, "metadata_csum"),
            (RoCompat::READONLY.bits(), R, "read-only"),
            (RoCompat::ORPHAN_PRESENT.bits(), R, "orphan_present"),
        ];
        for (bits, word, name) in pairs {
            let feature = Feature::from_name(name).unwrap();
            assert_eq!((feature.mask(), feature.word), (*bits, *word), "{name}");
        }
    }

    #[test]
    fn gates_name_what_is_missing() {
        let set = Features::from_words(0x8000_0000, 0x8000_0042, 0x1001);
        let known = Features::from_words(0, 0x42, 0x1001);
        assert_eq!(set.unsupported_for_reading(&known).names(), ["FEATURE_I31"]);
        assert_eq!(set.unsupported_for_writing(&known).names(), ["FEATURE_I31", "read-only"]);
        assert_eq!(set.without(&known).names(), ["FEATURE_C31", "FEATURE_I31"]);
    }

    #[test]
    fn small_enumerations_keep_every_value() {
        for raw in 0..=u16::MAX {
            assert_eq!(ErrorsPolicy::from_raw(raw).to_raw(), raw);
            assert_eq!(Encoding::from_raw(raw).to_raw(), raw);
        }
        for raw in 0..=u8::MAX {
            assert_eq!(DefaultHash::from_raw(raw).to_raw(), raw);
        }
        let wb = DefaultMountOpts::from_bits_retain(0x6c);
        assert_eq!(wb.names(), ["user_xattr", "acl", "journal_data_writeback"]);
    }
}
