//! Directory blocks as lists of entries: read, search, build, change in place.
//!
//! # Shape
//!
//! ```text
//! +--------------------+---------------------------+---------+------------------+
//! | ino 12, 12, "."    | ino 2, 12, ".."           | ...     | 0, 12, 0, 0xDE,  |
//! |                    |                           |         | checksum         |
//! +--------------------+---------------------------+---------+------------------+
//! ```
//!
//! Entries fill the block from its first to its last byte: each says how long it is (`rec_len`),
//! the last one of them takes what is left. An entry of inode 0 is free space. With
//! `metadata_csum`, the last 12 bytes look like a free entry of type 0xDE and hold a checksum.
//! Directories that are encrypted and ignore case store the hash of each name behind the name.
//!
//! The blocks of an index ([`crate::htree`]) are disguised as blocks of free space, so everything
//! here may be used on them too, and finds nothing.
//!
//! # Invariants
//!
//! - D1. Every `rec_len` is a multiple of 4, holds its own header and name (12 bytes at least), and
//!   ends within the block.
//! - D2. No two entries share a byte, and the entries fill the block.
//!
//! [`Records`] checks both as it goes and stops at the first record that breaks them; changing a
//! block ([`insert`], [`remove`]) checks the whole block first.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/directory.rst`, "Linear (Classic) Directories". Rules for
//! 64 KiB blocks: `rec_len` 0 and 65535 both stand for the whole block.

mod edit;
mod scan;
mod write;

pub use edit::{find, insert, remove, set_target};
pub use scan::{
    Hit, Room, Scan, entry_area, insert_at, remove_at, same_name, scan, scan_for_name,
    scan_for_room, set_target_at,
};
pub use write::{BlockWriter, NewEntry, first_block};

use crate::checksum::crc32c;
use crate::error::ChecksumError;
use crate::hash::NameHash;
use crate::le;
use extant_base::{BlockSize, Ino};

/// Longest name, in bytes.
pub const NAME_MAX: usize = 255;
/// Bytes of an entry before its name.
pub const HEADER_BYTES: usize = 8;
/// Shortest entry, in bytes.
pub const RECORD_MIN: usize = 12;
/// Bytes of the checksum tail.
pub const TAIL_BYTES: usize = 12;
/// Bytes of the hash behind a name, in directories that are encrypted and ignore case.
pub const HASH_BYTES: usize = 8;
/// File type of the checksum tail.
pub const TAIL_FILE_TYPE: u8 = 0xde;

/// The kind of inode that an entry names. The discriminants are those on disk.
///
/// Only a hint: the inode's mode decides.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum FileType {
    /// The kind is not known, or the file system does not have the `filetype` feature.
    #[default]
    Unknown = 0,
    /// Regular file.
    Regular = 1,
    /// Directory.
    Directory = 2,
    /// Character device.
    CharDevice = 3,
    /// Block device.
    BlockDevice = 4,
    /// Named pipe.
    Fifo = 5,
    /// Socket.
    Socket = 6,
    /// Symbolic link.
    Symlink = 7,
}

impl FileType {
    /// Every type, by its number on disk.
    pub const ALL: [FileType; 8] = [
        FileType::Unknown,
        FileType::Regular,
        FileType::Directory,
        FileType::CharDevice,
        FileType::BlockDevice,
        FileType::Fifo,
        FileType::Socket,
        FileType::Symlink,
    ];

    /// The type with the number `raw`; `Unknown` above 7, as the kernel takes it.
    #[must_use]
    pub fn from_raw(raw: u8) -> FileType {
        Self::ALL.get(usize::from(raw)).copied().unwrap_or_default()
    }

    /// The number on disk.
    #[expect(clippy::as_conversions, reason = "the discriminants are u8")]
    #[must_use]
    pub fn raw(self) -> u8 {
        self as u8
    }

    /// The type in the upper four bits of `i_mode`; `Unknown` for a mode that has none.
    #[must_use]
    pub fn from_mode(mode: u16) -> FileType {
        match mode >> 12 {
            0o01 => FileType::Fifo,
            0o02 => FileType::CharDevice,
            0o04 => FileType::Directory,
            0o06 => FileType::BlockDevice,
            0o10 => FileType::Regular,
            0o12 => FileType::Symlink,
            0o14 => FileType::Socket,
            _ => FileType::Unknown,
        }
    }
}

/// The layout of the directory blocks of one directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirLayout {
    /// Size of a block.
    pub block_size: BlockSize,
    /// Feature `filetype`: byte 7 of an entry is a type, and nothing without it.
    pub filetype: bool,
    /// Feature `metadata_csum`: blocks end with a checksum.
    pub checksum: bool,
    /// The directory is encrypted and ignores case: the hash of a name follows it.
    pub stored_hash: bool,
    /// The directory is encrypted: names may have any bytes.
    pub encrypted: bool,
}

impl DirLayout {
    /// Bytes that an entry of a name of `name_len` bytes needs, a multiple of 4.
    ///
    /// `.` and `..` never store a hash: see [`DirLayout::dots_need`].
    #[must_use]
    pub fn needs(&self, name_len: usize) -> usize {
        let hash = if self.stored_hash { HASH_BYTES } else { 0 };
        Self::dots_need(name_len).saturating_add(hash)
    }

    /// Bytes that an entry without a stored hash needs, a multiple of 4.
    #[must_use]
    pub fn dots_need(name_len: usize) -> usize {
        HEADER_BYTES.saturating_add(name_len).saturating_add(3) & !3
    }

    /// Bytes of a block that hold entries: all of it but the checksum tail.
    #[must_use]
    pub fn entry_bytes(&self) -> usize {
        let tail = if self.checksum { TAIL_BYTES } else { 0 };
        self.block_size.len().saturating_sub(tail)
    }
}

/// One entry, borrowed from its block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirEntry<'a> {
    /// The inode; 0 when the entry is free space. Not checked against the inode count.
    pub ino: Ino,
    /// The name as stored; any bytes. Free space may still show an old name.
    pub name: &'a [u8],
    /// What the entry says about the inode; [`FileType::Unknown`] without the feature `filetype`.
    pub file_type: FileType,
    /// Byte 7 as stored. Without the feature `filetype` it is 0, or a type from when the file
    /// system had the feature.
    pub stored_type: u8,
    /// Bytes of the entry, with the unused room behind its name.
    pub rec_len: u32,
    /// Where the entry starts, from the start of the block (or of the inline area).
    pub offset: u32,
    /// The stored hash, when the directory stores hashes and the entry is not `.` or `..`.
    pub hash: Option<NameHash>,
}

impl DirEntry<'_> {
    /// Returns whether the entry names something.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.ino.0 != 0
    }

    /// Returns whether the entry is `.` or `..`.
    #[must_use]
    pub fn is_dots(&self) -> bool {
        is_dots(self.name)
    }
}

/// A fault in a directory block, or in what should go into one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DirFault {
    /// The slice is not a whole block.
    #[error("directory block of {found} bytes, the block size is {wanted}")]
    Length {
        /// Bytes given.
        found: usize,
        /// The block size.
        wanted: usize,
    },
    /// `rec_len` is not a multiple of 4, or is too short for a header, or for the name.
    #[error("directory entry at byte {offset}: rec_len {rec_len}, {wanted} needed")]
    RecordLength {
        /// Where the entry starts.
        offset: u32,
        /// Decoded `rec_len`.
        rec_len: u32,
        /// The shortest that would do.
        wanted: u32,
    },
    /// The entry ends after the block, or so near its end that no entry fits behind.
    #[error("directory entry at byte {offset}: rec_len {rec_len} does not fit {block} bytes")]
    PastBlock {
        /// Where the entry starts.
        offset: u32,
        /// Decoded `rec_len`.
        rec_len: u32,
        /// Bytes of the block or area.
        block: u32,
    },
    /// A name longer than 255 bytes.
    #[error("directory entry at byte {offset}: name of {name_len} bytes, at most 255 allowed")]
    NameLength {
        /// Where the entry starts; 0 when encoding.
        offset: u32,
        /// The length.
        name_len: u32,
    },
    /// A name that may not be stored: empty, or with `/` or NUL in it. Only when encoding.
    #[error("a directory entry's name is empty or contains '/' or NUL")]
    Name,
    /// An entry of inode 0. Only when encoding.
    #[error("a directory entry needs an inode")]
    NoInode,
    /// The directory stores hashes and the new entry brings none. Only when encoding.
    #[error("this directory stores the hash of each name, and the entry has none")]
    NoHash,
    /// The block has no checksum tail where it must have one.
    #[error("directory block has no checksum tail")]
    NoTail,
    /// There is no used entry at this offset.
    #[error("no directory entry starts at byte {offset}")]
    NoEntry {
        /// The offset asked for.
        offset: u32,
    },
}

/// `rec_len` as stored, decoded. Blocks of 64 KiB need a value one too large for 16 bits.
#[must_use]
pub fn decode_rec_len(raw: u16, size: BlockSize) -> u32 {
    if size.bytes() == BlockSize::MAX_BYTES && (raw == 0 || raw == u16::MAX) {
        size.bytes()
    } else {
        u32::from(raw)
    }
}

/// `rec_len` as stored. `None` above 65535, except for the whole of a 64 KiB block.
#[must_use]
pub fn encode_rec_len(len: u32, size: BlockSize) -> Option<u16> {
    match u16::try_from(len) {
        Ok(raw) => Some(raw),
        Err(_) if len == BlockSize::MAX_BYTES && size.bytes() == len => Some(u16::MAX),
        Err(_) => None,
    }
}

/// The records of a block or inline area, used and free, in order.
///
/// Ends after the first fault. Always ends: every step is at least 12 bytes.
#[derive(Clone, Debug)]
pub struct Records<'a> {
    area: &'a [u8],
    layout: DirLayout,
    at: usize,
}

impl<'a> Records<'a> {
    /// The records of `block`, which must be a whole block.
    pub fn of_block(block: &'a [u8], layout: DirLayout) -> Result<Records<'a>, DirFault> {
        check_block(block, layout)?;
        Ok(Self::of_area(block, layout))
    }

    /// The records of an area of any length, as in inline directories.
    #[must_use]
    pub fn of_area(area: &'a [u8], layout: DirLayout) -> Records<'a> {
        Records { area, layout, at: 0 }
    }

    /// Only the records that name something.
    pub fn used(self) -> impl Iterator<Item = Result<DirEntry<'a>, DirFault>> {
        self.filter(|entry| entry.as_ref().map_or(true, DirEntry::is_used))
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = Result<DirEntry<'a>, DirFault>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.area.len() {
            return None;
        }
        let entry = decode_entry(self.area, self.at, self.layout);
        self.at = match &entry {
            Ok(entry) => self.at.saturating_add(le::index(entry.rec_len)),
            Err(_) => self.area.len(),
        };
        Some(entry)
    }
}

/// The entry at byte `at` of an area, with D1 checked.
pub fn decode_entry(area: &[u8], at: usize, layout: DirLayout) -> Result<DirEntry<'_>, DirFault> {
    let offset = le::narrow(at);
    let block = le::narrow(area.len());
    let rest = area.get(at..).unwrap_or(&[]);
    let Some(header) = rest.first_chunk::<HEADER_BYTES>() else {
        let rec_len = le::narrow(rest.len());
        return Err(DirFault::PastBlock { offset, rec_len, block });
    };
    let [i0, i1, i2, i3, r0, r1, name_len, kind] = *header;
    let rec_len = decode_rec_len(u16::from_le_bytes([r0, r1]), layout.block_size);
    // Of eight bits with `filetype` and without: what is above them without it is passed over by
    // Linux, and there where the feature was taken from a file system that had it.
    let name_len = usize::from(name_len);
    let size = le::index(rec_len);
    let ino = Ino(u32::from_le_bytes([i0, i1, i2, i3]));
    let used_by_name = DirLayout::dots_need(name_len);
    let name_end = HEADER_BYTES.saturating_add(name_len);
    if size < RECORD_MIN.max(used_by_name) || !size.is_multiple_of(4) {
        let wanted = le::narrow(RECORD_MIN.max(used_by_name));
        return Err(DirFault::RecordLength { offset, rec_len, wanted });
    }
    let past = DirFault::PastBlock { offset, rec_len, block };
    let left = rest.len().checked_sub(size).ok_or(past)?;
    if left != 0 && left < RECORD_MIN {
        return Err(past);
    }
    let name = rest.get(HEADER_BYTES..name_end).ok_or(past)?;
    let mut hash = None;
    if layout.stored_hash && ino.0 != 0 && !is_dots(name) {
        if size < used_by_name.saturating_add(HASH_BYTES) {
            let wanted = le::narrow(layout.needs(name_len));
            return Err(DirFault::RecordLength { offset, rec_len, wanted });
        }
        let major = le::u32_at(rest, used_by_name).ok_or(past)?;
        let minor = le::u32_at(rest, used_by_name.saturating_add(4)).ok_or(past)?;
        hash = Some(NameHash { major, minor });
    }
    let file_type = if layout.filetype { FileType::from_raw(kind) } else { FileType::Unknown };
    Ok(DirEntry { ino, name, file_type, stored_type: kind, rec_len, offset, hash })
}

/// Returns whether `name` is `.` or `..`.
#[must_use]
pub fn is_dots(name: &[u8]) -> bool {
    name == b"." || name == b".."
}

/// Checks D1 and D2 of a whole block.
pub fn check(block: &[u8], layout: DirLayout) -> Result<(), DirFault> {
    for entry in Records::of_block(block, layout)? {
        entry?;
    }
    Ok(())
}

fn check_block(block: &[u8], layout: DirLayout) -> Result<(), DirFault> {
    let wanted = layout.block_size.len();
    if block.len() == wanted {
        Ok(())
    } else {
        Err(DirFault::Length { found: block.len(), wanted })
    }
}

/// The checksum stored in a block's tail; `None` when its last 12 bytes are not a tail.
///
/// | offset from the end | bytes | field            | meaning                    |
/// |--------------------:|------:|------------------|----------------------------|
/// |                 -12 |     4 | `det_reserved_zero1` | 0, where an inode would be |
/// |                  -8 |     2 | `det_rec_len`    | 12                         |
/// |                  -6 |     1 | `det_reserved_zero2` | 0, where a name length would be |
/// |                  -5 |     1 | `det_reserved_ft` | 0xDE                      |
/// |                  -4 |     4 | `det_checksum`   | crc32c of all before the tail |
///
/// Source: Linux `Documentation/filesystems/ext4/directory.rst`, `struct ext4_dir_entry_tail`.
#[must_use]
pub fn tail_checksum(block: &[u8]) -> Option<u32> {
    let tail = block.last_chunk::<TAIL_BYTES>()?;
    let (head, stored) = tail.split_first_chunk::<8>()?;
    let stored = stored.first_chunk::<4>()?;
    (*head == TAIL_HEAD).then(|| u32::from_le_bytes(*stored))
}

/// The first eight bytes of a tail.
const TAIL_HEAD: [u8; 8] = [0, 0, 0, 0, 12, 0, 0, TAIL_FILE_TYPE];

/// The checksum that the tail of `block` should have; `seed` is the directory inode's seed.
#[must_use]
pub fn checksum(seed: u32, block: &[u8]) -> u32 {
    let covered = block.len().saturating_sub(TAIL_BYTES);
    crc32c(seed, block.get(..covered).unwrap_or(&[]))
}

/// Checks the tail of a linear block or leaf. A block without a tail fails: with `metadata_csum`,
/// every block has one, or is part of an index ([`crate::htree::verify`]).
pub fn verify(seed: u32, block: &[u8]) -> Result<(), ChecksumError> {
    let computed = checksum(seed, block);
    // Without a tail there is no stored value; show one that is certainly not right.
    let stored = tail_checksum(block).unwrap_or(!computed);
    ChecksumError::check("directory block", stored, computed)
}

/// Writes the tail of a linear block or leaf, whole, over its last 12 bytes.
pub fn seal(seed: u32, block: &mut [u8]) {
    let computed = checksum(seed, block);
    if let Some(tail) = block.last_chunk_mut::<TAIL_BYTES>() {
        let (head, rest) = tail.split_at_mut(8);
        head.copy_from_slice(&TAIL_HEAD);
        rest.copy_from_slice(&computed.to_le_bytes());
    }
}

#[cfg(test)]
mod scan_tests;
#[cfg(test)]
mod tests;
