//! Programs that are to read an image, and the features that each of them can read.
//!
//! # Place
//!
//! Beside `profile`: a profile says what a file system has unless it is asked otherwise, a reader takes from that what
//! it cannot read. What the user asks for by name is never taken away: it is an error, or something to warn of.
//!
//! # Source
//!
//! `docs/compatibility.md`, "Readers", has the source of each row.

use std::fmt;
use std::str::FromStr;

use extant_base::sabotage;
use extant_format::features::{Feature, FeatureWord, Features};

/// A program that is to read an image.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Reader {
    /// GRUB 2.06 and later.
    Grub,
    /// GRUB 2.12 and later.
    Grub212,
    /// U-Boot of 2016.11 and later, which reads.
    UBoot,
    /// The guests that Firecracker supports, of which Linux 5.10 is the oldest.
    Firecracker,
    /// Linux of this version, major and minor, and later, with e2fsprogs of its time.
    Linux(u16, u16),
}

/// What a reader makes of a file system with a feature that it does not know.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Trouble {
    /// It refuses to read, or reads something else.
    NotRead,
    /// It reads, and refuses to write.
    NotWritten,
    /// It reads and writes, and the checkers of its time refuse to check.
    NotChecked,
}

/// A feature of a file system that a reader does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The reader.
    pub reader: Reader,
    /// The feature.
    pub feature: Feature,
    /// What comes of it.
    pub trouble: Trouble,
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Conflict { reader, feature, trouble } = self;
        match trouble {
            Trouble::NotRead => {
                write!(f, "{reader} cannot read a file system with feature {feature}")
            }
            Trouble::NotWritten => {
                write!(f, "{reader} mounts a file system with feature {feature} for reading only")
            }
            Trouble::NotChecked => write!(
                f,
                "{reader} does not know feature {feature}, and e2fsck of its time refuses to check it"
            ),
        }
    }
}

/// What all of them read.
const ALWAYS: [Feature; 5] = [
    Feature::FILETYPE,
    Feature::EXTENTS,
    Feature::SIXTY_FOUR_BIT,
    Feature::FLEX_BG,
    Feature::RECOVER,
];

/// What GRUB 2.06 reads beside that. Of encrypted files it shows no contents.
const GRUB: [Feature; 2] = [Feature::META_BG, Feature::ENCRYPT];

/// What GRUB 2.12 reads beside that.
const GRUB_212: [Feature; 3] = [Feature::MMP, Feature::CSUM_SEED, Feature::LARGEDIR];

/// The version of Linux in which ext4 left its development, with all features that are not in [`LINUX`].
const EXT4: (u16, u16) = (2, 6);

/// The first version of Linux that knows a feature.
const LINUX: [(Feature, (u16, u16)); 19] = [
    (Feature::MMP, (3, 0)),
    (Feature::BIGALLOC, (3, 2)),
    (Feature::METADATA_CSUM, (3, 5)),
    (Feature::QUOTA, (3, 6)),
    (Feature::INLINE_DATA, (3, 8)),
    (Feature::SPARSE_SUPER2, (3, 16)),
    (Feature::READONLY, (4, 0)),
    (Feature::ENCRYPT, (4, 1)),
    (Feature::CSUM_SEED, (4, 4)),
    (Feature::PROJECT, (4, 5)),
    (Feature::EA_INODE, (4, 13)),
    (Feature::LARGEDIR, (4, 13)),
    (Feature::CASEFOLD, (5, 2)),
    (Feature::VERITY, (5, 4)),
    (Feature::STABLE_INODES, (5, 5)),
    (Feature::FAST_COMMIT, (5, 10)),
    (Feature::ORPHAN_FILE, (5, 15)),
    (Feature::ORPHAN_PRESENT, (5, 15)),
    (Feature::SHARED_BLOCKS, (u16::MAX, 0)),
];

impl Reader {
    /// Returns what comes of `feature`; `None` if the reader knows it.
    pub fn trouble(self, feature: Feature) -> Option<Trouble> {
        let one_of = |known: &[Feature]| known.contains(&feature);
        let only_reads = |known: bool| {
            let is_known = known || feature.word != FeatureWord::Incompat || one_of(&ALWAYS);
            (!is_known).then_some(Trouble::NotRead)
        };
        match self {
            Reader::Grub if sabotage("image.readers.grub-reads-all") => None,
            Reader::Grub => only_reads(one_of(&GRUB)),
            Reader::Grub212 => only_reads(one_of(&GRUB) || one_of(&GRUB_212)),
            Reader::UBoot => only_reads(false),
            Reader::Firecracker => Reader::Linux(5, 10).trouble(feature),
            Reader::Linux(major, minor) => {
                let row = LINUX.iter().find(|(known, _)| *known == feature);
                let since = row.map_or(EXT4, |(_, since)| *since);
                if (major, minor) >= since {
                    return None;
                }
                Some(match feature.word {
                    FeatureWord::Incompat => Trouble::NotRead,
                    FeatureWord::RoCompat => Trouble::NotWritten,
                    FeatureWord::Compat => Trouble::NotChecked,
                })
            }
        }
    }

    /// The features of `features` that the reader does not know.
    pub fn conflicts(self, features: &Features) -> impl Iterator<Item = Conflict> + use<> {
        features.iter().filter_map(move |feature| {
            let trouble = self.trouble(feature)?;
            Some(Conflict { reader: self, feature, trouble })
        })
    }
}

impl fmt::Display for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reader::Grub => f.write_str("grub"),
            Reader::Grub212 => f.write_str("grub-2.12"),
            Reader::UBoot => f.write_str("u-boot"),
            Reader::Firecracker => f.write_str("firecracker"),
            Reader::Linux(major, minor) => write!(f, "linux-{major}.{minor}"),
        }
    }
}

/// A name that is no reader's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownReader {
    /// As given.
    pub name: String,
}

impl fmt::Display for UnknownReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "what {:?} can read is not known; known: grub, grub-2.12, u-boot, firecracker and linux-VERSION \
             from linux-2.6 on",
            self.name
        )
    }
}

impl std::error::Error for UnknownReader {}

impl FromStr for Reader {
    type Err = UnknownReader;

    fn from_str(name: &str) -> Result<Reader, UnknownReader> {
        let linux = || {
            let mut numbers = name.strip_prefix("linux-")?.split('.');
            let mut number = || {
                let text = numbers.next()?;
                let is_number = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
                text.parse().ok().filter(|_| is_number)
            };
            let (major, minor): (u16, u16) = (number()?, number()?);
            // Releases of a version differ in no feature.
            let is_whole = numbers.all(|part| part.bytes().all(|b| b.is_ascii_digit()));
            let is_one = is_whole && (major, minor) >= EXT4 && major < 1000;
            is_one.then_some(Reader::Linux(major, minor))
        };
        let reader = match name {
            "grub" | "grub-2.06" => Some(Reader::Grub),
            "grub-2.12" => Some(Reader::Grub212),
            "u-boot" => Some(Reader::UBoot),
            "firecracker" => Some(Reader::Firecracker),
            _ => linux(),
        };
        reader.ok_or_else(|| UnknownReader { name: name.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_back() {
        for name in ["grub", "grub-2.12", "u-boot", "firecracker", "linux-4.14", "linux-2.6"] {
            assert_eq!(name.parse::<Reader>().unwrap().to_string(), name);
        }
        assert_eq!("linux-6.1.3".parse(), Ok(Reader::Linux(6, 1)));
        for bad in
            ["", "lilo", "linux", "linux-", "linux-4", "linux-4.x", "linux-+4.1", "linux-2.4"]
        {
            let error = bad.parse::<Reader>().unwrap_err().to_string();
            assert!(error.contains("u-boot") && error.contains(bad), "{error}");
        }
    }

    #[test]
    fn trouble_depends_on_the_word_of_the_feature() {
        let old = Reader::Linux(3, 4);
        assert_eq!(old.trouble(Feature::ENCRYPT), Some(Trouble::NotRead));
        assert_eq!(old.trouble(Feature::METADATA_CSUM), Some(Trouble::NotWritten));
        assert_eq!(old.trouble(Feature::ORPHAN_FILE), Some(Trouble::NotChecked));
        assert_eq!(old.trouble(Feature::EXTENTS), None);
        // Who only reads need not know what a writer has to.
        assert_eq!(Reader::Grub.trouble(Feature::METADATA_CSUM), None);
        assert_eq!(Reader::Grub.trouble(Feature::INLINE_DATA), Some(Trouble::NotRead));
        assert_eq!(Reader::UBoot.trouble(Feature::META_BG), Some(Trouble::NotRead));
    }
}
