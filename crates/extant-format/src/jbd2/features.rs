//! Features of a journal, by the names that dumpe2fs prints.

use core::fmt;

bitflags::bitflags! {
    /// Features an implementation may ignore and still use the journal.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct JournalCompat: u32 {
        /// Checksum version 1: the commit block holds a crc32 of the whole transaction.
        const CHECKSUM = 0x1;
    }
}

bitflags::bitflags! {
    /// Features an implementation must know, or leave the journal alone.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct JournalIncompat: u32 {
        /// Revoke blocks occur.
        const REVOKE = 0x1;
        /// Block numbers have 64 bits.
        const BLOCKS_64BIT = 0x2;
        /// A commit block may reach the disk before the rest of its transaction.
        const ASYNC_COMMIT = 0x4;
        /// Checksum version 2: crc32c of every block, 16 bits of it for data blocks.
        const CSUM_V2 = 0x8;
        /// Checksum version 3: crc32c of every block, in tags of 16 bytes.
        const CSUM_V3 = 0x10;
        /// The end of the journal is an area of fast commits.
        const FAST_COMMIT = 0x20;
    }
}

bitflags::bitflags! {
    /// Features an implementation must know before it writes. None are defined.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct JournalRoCompat: u32 {}
}

/// Writes the names of the bits of `raw`, separated by spaces. A bit without a name reads
/// `FEATURE_I7`: its class and its number.
fn write_names(
    f: &mut fmt::Formatter<'_>,
    raw: u32,
    class: char,
    names: &[(u32, &str)],
) -> fmt::Result {
    let mut separator = "";
    for bit in 0..u32::BITS {
        let mask = 1u32.checked_shl(bit).unwrap_or(0);
        if raw & mask == 0 {
            continue;
        }
        f.write_str(separator)?;
        separator = " ";
        match names.iter().find(|(value, _)| *value == mask) {
            Some((_, name)) => f.write_str(name)?,
            None => write!(f, "FEATURE_{class}{bit}")?,
        }
    }
    Ok(())
}

impl fmt::Display for JournalCompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.bits(), 'C', &[(Self::CHECKSUM.bits(), "journal_checksum")])
    }
}

impl fmt::Display for JournalIncompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            (Self::REVOKE.bits(), "journal_incompat_revoke"),
            (Self::BLOCKS_64BIT.bits(), "journal_64bit"),
            (Self::ASYNC_COMMIT.bits(), "journal_async_commit"),
            (Self::CSUM_V2.bits(), "journal_checksum_v2"),
            (Self::CSUM_V3.bits(), "journal_checksum_v3"),
            (Self::FAST_COMMIT.bits(), "fast_commit"),
        ];
        write_names(f, self.bits(), 'I', &names)
    }
}

impl fmt::Display for JournalRoCompat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_names(f, self.bits(), 'R', &[])
    }
}

/// The way in which a journal protects its blocks. The versions exclude each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum JournalChecksum {
    /// The journal does not protect its blocks.
    #[default]
    None,
    /// One crc32 over the descriptor and data blocks of a transaction, in its commit block.
    V1,
    /// crc32c in every block; the lower 16 bits of a data block's in its tag.
    V2,
    /// crc32c in every block and all of a data block's in its tag.
    V3,
}

impl JournalChecksum {
    /// True for versions 2 and 3: blocks of the journal's own carry checksums, and so do tags.
    pub fn covers_blocks(self) -> bool {
        matches!(self, Self::V2 | Self::V3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn names_are_those_of_dumpe2fs_and_unknown_bits_show() {
        assert_eq!(
            JournalIncompat::all().to_string(),
            "journal_incompat_revoke journal_64bit journal_async_commit journal_checksum_v2 \
             journal_checksum_v3 fast_commit"
        );
        assert_eq!(JournalCompat::all().to_string(), "journal_checksum");
        assert_eq!(
            JournalIncompat::from_bits_retain(0x8000_0041).to_string(),
            "journal_incompat_revoke FEATURE_I6 FEATURE_I31"
        );
        assert_eq!(JournalRoCompat::from_bits_retain(2).to_string(), "FEATURE_R1");
        assert_eq!(JournalCompat::empty().to_string(), "");
    }
}
