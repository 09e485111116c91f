//! One inode as its bytes, for those who read or mend what is damaged.
//!
//! [`crate::inode::Inode`] is the decoded value and obeys rules; a record of which some are broken has fields all the
//! same. Nothing is checked here, and nothing is sealed: whoever changes a record computes its checksum.
//!
//! # Source
//!
//! As [`crate::inode`].

use alloc::vec::Vec;

use extant_base::{FsBlock, Ino};

use crate::inode::{FileKind, InodeFlags};

/// Where `i_mode` is, in bytes.
pub const MODE: usize = 0;
/// Where `i_size_lo` is, in bytes.
pub const SIZE_LO: usize = 4;
/// Where `i_atime` is, in bytes.
pub const ATIME: usize = 8;
/// Where `i_ctime` is, in bytes.
pub const CTIME: usize = 0xc;
/// Where `i_mtime` is, in bytes.
pub const MTIME: usize = 0x10;
/// Where `i_dtime` is, in bytes.
pub const DTIME: usize = 0x14;
/// Where `i_links_count` is, in bytes.
pub const LINKS: usize = 0x1a;
/// Where `i_blocks_lo` is, in bytes.
pub const BLOCKS_LO: usize = 0x1c;
/// Where `i_flags` is, in bytes.
pub const FLAGS: usize = 0x20;
/// Where the Hurd has the block of a translator, in bytes, and others `i_version`.
pub const TRANSLATOR: usize = 0x24;
/// Where `i_block` is, in bytes.
pub const BLOCK: usize = 0x28;
/// Where `i_generation` is, in bytes.
pub const GENERATION: usize = 0x64;
/// Where `i_file_acl_lo` is, in bytes.
pub const FILE_ACL_LO: usize = 0x68;
/// Where `i_size_high` is, in bytes.
pub const SIZE_HIGH: usize = 0x6c;
/// Where `i_blocks_high` is, in bytes.
pub const BLOCKS_HIGH: usize = 0x74;
/// Where `i_file_acl_high` is, in bytes.
pub const FILE_ACL_HIGH: usize = 0x76;
/// Where `i_extra_isize` is, in bytes.
pub const EXTRA: usize = 0x80;

/// Returns a little-endian field; 0 past the end.
pub fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u16::from_le_bytes(*raw))
}

/// Returns a little-endian field; 0 past the end.
pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

/// Puts bytes at a place; nothing past the end.
pub fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(value.len())) {
        place.copy_from_slice(value);
    }
}

/// An inode record.
#[derive(Clone, Debug)]
pub struct Record {
    /// Its number.
    pub ino: Ino,
    /// As stored, `inode_size` of them.
    pub bytes: Vec<u8>,
}

impl Record {
    /// The field at byte `at`; 0 past the end.
    pub fn u16(&self, at: usize) -> u16 {
        u16_at(&self.bytes, at)
    }

    /// The field at byte `at`; 0 past the end.
    pub fn u32(&self, at: usize) -> u32 {
        u32_at(&self.bytes, at)
    }

    /// Sets the field at byte `at`.
    pub fn put16(&mut self, at: usize, value: u16) {
        put(&mut self.bytes, at, &value.to_le_bytes());
    }

    /// Sets the field at byte `at`.
    pub fn put32(&mut self, at: usize, value: u32) {
        put(&mut self.bytes, at, &value.to_le_bytes());
    }

    /// `i_mode`.
    pub fn mode(&self) -> u16 {
        self.u16(MODE)
    }

    /// The type; `None` for one that does not exist.
    pub fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode())
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == Some(FileKind::Directory)
    }

    /// `i_links_count`.
    pub fn links(&self) -> u16 {
        self.u16(LINKS)
    }

    /// `i_flags`.
    pub fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.u32(FLAGS))
    }

    /// Sets or clears a flag.
    pub fn set_flag(&mut self, flag: InodeFlags, on: bool) {
        let mut flags = self.flags();
        flags.set(flag, on);
        self.put32(FLAGS, flags.bits());
    }

    /// Returns whether a flag is set.
    pub fn has(&self, flag: InodeFlags) -> bool {
        self.flags().contains(flag)
    }

    /// Both halves of the size, whatever the type.
    pub fn size(&self) -> u64 {
        u64::from(self.u32(SIZE_LO)) | (u64::from(self.u32(SIZE_HIGH)) << 32)
    }

    /// Sets both halves of the size.
    pub fn set_size(&mut self, size: u64) {
        let [a, b, c, d, e, f, g, h] = size.to_le_bytes();
        put(&mut self.bytes, SIZE_LO, &[a, b, c, d]);
        put(&mut self.bytes, SIZE_HIGH, &[e, f, g, h]);
    }

    /// `i_block`.
    pub fn block_area(&self) -> [u8; 60] {
        let mut area = [0; 60];
        if let Some(bytes) = self.bytes.get(BLOCK..).and_then(|rest| rest.first_chunk::<60>()) {
            area.copy_from_slice(bytes);
        }
        area
    }

    /// Sets `i_block`.
    pub fn set_block_area(&mut self, area: &[u8; 60]) {
        put(&mut self.bytes, BLOCK, area);
    }

    /// `i_generation`.
    pub fn generation(&self) -> u32 {
        self.u32(GENERATION)
    }

    /// The attribute block; `wide`: the file system has `64bit`.
    pub fn file_acl(&self, wide: bool) -> FsBlock {
        let high = if wide { u64::from(self.u16(FILE_ACL_HIGH)) << 32 } else { 0 };
        FsBlock(u64::from(self.u32(FILE_ACL_LO)) | high)
    }

    /// Sets the attribute block; `wide` as above.
    pub fn set_file_acl(&mut self, block: u64, wide: bool) {
        let [a, b, c, d, e, f, ..] = block.to_le_bytes();
        put(&mut self.bytes, FILE_ACL_LO, &[a, b, c, d]);
        if wide {
            put(&mut self.bytes, FILE_ACL_HIGH, &[e, f]);
        }
    }

    /// Returns where the attribute space begins; the record's end when there is none.
    pub fn xattr_at(&self) -> usize {
        match self.bytes.len() {
            ..=128 => self.bytes.len(),
            len => usize::from(self.u16(EXTRA)).saturating_add(128).min(len),
        }
    }

    /// Makes all of it zeros.
    pub fn clear(&mut self) {
        self.bytes.fill(0);
    }
}
