//! One inode as its bytes: a damaged one need not decode.

use extant_base::{FsBlock, Ino};
use extant_format::inode::{FileKind, InodeFlags};

pub(crate) const MODE: usize = 0;
pub(crate) const SIZE_LO: usize = 4;
pub(crate) const BLOCKS_LO: usize = 0x1c;
pub(crate) const FLAGS: usize = 0x20;
pub(crate) const BLOCK: usize = 0x28;
pub(crate) const GENERATION: usize = 0x64;
pub(crate) const FILE_ACL_LO: usize = 0x68;
pub(crate) const SIZE_HIGH: usize = 0x6c;
pub(crate) const BLOCKS_HIGH: usize = 0x74;
pub(crate) const FILE_ACL_HIGH: usize = 0x76;

/// A little-endian field; 0 past the end.
pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u16::from_le_bytes(*raw))
}

/// A little-endian field; 0 past the end.
pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |raw| u32::from_le_bytes(*raw))
}

/// Puts bytes at a place; nothing past the end.
pub(crate) fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(place) = bytes.get_mut(at..at.saturating_add(value.len())) {
        place.copy_from_slice(value);
    }
}

/// An inode record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub(crate) ino: Ino,
    pub(crate) bytes: Vec<u8>,
}

impl Record {
    pub(crate) fn u16(&self, at: usize) -> u16 {
        u16_at(&self.bytes, at)
    }

    pub(crate) fn u32(&self, at: usize) -> u32 {
        u32_at(&self.bytes, at)
    }

    pub(crate) fn put16(&mut self, at: usize, value: u16) {
        put(&mut self.bytes, at, &value.to_le_bytes());
    }

    pub(crate) fn put32(&mut self, at: usize, value: u32) {
        put(&mut self.bytes, at, &value.to_le_bytes());
    }

    pub(crate) fn mode(&self) -> u16 {
        self.u16(MODE)
    }

    pub(crate) fn kind(&self) -> Option<FileKind> {
        FileKind::from_mode(self.mode())
    }

    pub(crate) fn flags(&self) -> InodeFlags {
        InodeFlags::from_bits_retain(self.u32(FLAGS))
    }

    pub(crate) fn set_flag(&mut self, flag: InodeFlags, on: bool) {
        let mut flags = self.flags();
        flags.set(flag, on);
        self.put32(FLAGS, flags.bits());
    }

    pub(crate) fn has(&self, flag: InodeFlags) -> bool {
        self.flags().contains(flag)
    }

    pub(crate) fn size(&self) -> u64 {
        u64::from(self.u32(SIZE_LO)) | (u64::from(self.u32(SIZE_HIGH)) << 32)
    }

    pub(crate) fn block_area(&self) -> [u8; 60] {
        let mut area = [0; 60];
        if let Some(bytes) = self.bytes.get(BLOCK..BLOCK + 60) {
            area.copy_from_slice(bytes);
        }
        area
    }

    pub(crate) fn set_block_area(&mut self, area: &[u8; 60]) {
        put(&mut self.bytes, BLOCK, area);
    }

    pub(crate) fn generation(&self) -> u32 {
        self.u32(GENERATION)
    }

    /// The attribute block; `wide`: the file system has `64bit`.
    pub(crate) fn file_acl(&self, wide: bool) -> FsBlock {
        let high = if wide { u64::from(self.u16(FILE_ACL_HIGH)) << 32 } else { 0 };
        FsBlock(u64::from(self.u32(FILE_ACL_LO)) | high)
    }

    pub(crate) fn set_file_acl(&mut self, block: u64, wide: bool) {
        self.put32(FILE_ACL_LO, block as u32);
        if wide {
            self.put16(FILE_ACL_HIGH, (block >> 32) as u16);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.fill(0);
    }
}
