//! The small enumerations and flag words of the superblock that are no features.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/super.rst`, tables "default hash", "mount options",
//! "flags", "state" and "errors".

use alloc::vec::Vec;
use core::fmt;

bitflags::bitflags! {
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

/// The rule for the kernel when it finds damage: `s_errors`.
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

/// The way in which file data is ordered against the journal by default.
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
