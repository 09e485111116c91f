//! Plain files, which nearly every inode is: recognised by their bytes, before anything of them is decoded.
//!
//! What is recognised has nothing that one of the rules could be broken by, but for blocks that something else has, too.
//! Everything else is looked at field by field (`inodes`), and with the same outcome: that is what makes a problem of it,
//! never this.

use extant_base::Ino;
use extant_format::extent::{MAGIC, ROOT_RECORDS};
use extant_format::features::Incompat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::record::{self, u16_at, u32_at};
use extant_format::superblock::Superblock;

/// Bytes of the part that every inode has.
const BASE_BYTES: usize = 128;
/// Bytes of extra fields that Linux and all tools write.
const EXTRA_BYTES: u16 = 32;
/// Longest run of one record that is written.
const RUN_MAX: u16 = 1 << 15;
/// Size from which on a file system says that it has such files.
const LARGE_FROM: u32 = 1 << 31;

/// What an image makes of plain files.
#[derive(Clone, Copy)]
pub(crate) struct Plain {
    /// Inodes that a field of the superblock names.
    named: [Ino; 5],
    /// The first that is neither reserved nor the root.
    first: Ino,
    sectors_per_block: u32,
    block_bits: u32,
    needs_sums: bool,
}

/// What a file has, each run with its first block on the device and its length.
pub(crate) struct Runs {
    list: [(u64, u64); ROOT_RECORDS as usize],
    count: usize,
}

impl Runs {
    pub(crate) fn list(&self) -> &[(u64, u64)] {
        self.list.get(..self.count).unwrap_or(&[])
    }
}

impl Plain {
    /// `None` for an image with rules about blocks that plain files can break, too.
    pub(crate) fn of(sb: &Superblock) -> Option<Plain> {
        if sb.bigalloc() || !sb.features.has_incompat(Incompat::EXTENTS) {
            return None;
        }
        Some(Plain {
            named: [
                sb.user_quota_inode,
                sb.group_quota_inode,
                sb.project_quota_inode,
                sb.orphan_file_inode,
                sb.journal_inode,
            ],
            first: sb.first_inode.max(Ino(Ino::ROOT.0 + 1)),
            sectors_per_block: sb.block_size.bytes() / 512,
            block_bits: sb.block_size.log2(),
            needs_sums: sb.features.metadata_csum(),
        })
    }

    /// The runs of a plain file; `None` for another inode. `is_sound`: the checksum was verified.
    pub(crate) fn runs(&self, ino: Ino, bytes: &[u8], is_sound: bool) -> Option<Runs> {
        let base: &[u8; BASE_BYTES] = bytes.first_chunk()?;
        let is_file = u16_at(base, record::MODE) & 0xf000 == FileKind::Regular.mode_bits();
        let is_named_once = u16_at(base, record::LINKS) == 1;
        let is_extents = u32_at(base, record::FLAGS) == InodeFlags::EXTENTS.bits();
        let size = u32_at(base, record::SIZE_LO);
        // The time of deletion, the block of attributes, the size's upper half, the fragment, and what is above 32 bits of
        // sectors and of that block.
        let odd = u32_at(base, record::DTIME)
            | u32_at(base, record::FILE_ACL_LO)
            | u32_at(base, record::SIZE_HIGH)
            | u32_at(base, 0x70)
            | u32_at(base, 0x74);
        if !(is_file && is_named_once && is_extents && odd == 0 && size < LARGE_FROM)
            || self.needs_sums && !is_sound
        {
            return None;
        }
        if let Some(rest) = bytes.get(BASE_BYTES..).filter(|rest| !rest.is_empty()) {
            let behind = u32_at(rest, usize::from(EXTRA_BYTES));
            if u16_at(rest, 0) != EXTRA_BYTES || behind == extant_format::xattr::MAGIC {
                return None;
            }
        }
        let map: &[u8; 60] = base.get(record::BLOCK..)?.first_chunk()?;
        let count = u16_at(map, 2);
        let is_root = u16_at(map, 0) == MAGIC && u16_at(map, 4) == ROOT_RECORDS;
        // A leaf, so that the map has no block of its own.
        if !is_root || u16_at(map, 6) != 0 || count > ROOT_RECORDS {
            return None;
        }
        let records = map.get(12..)?.as_chunks::<12>().0;
        let (mut list, mut next, mut blocks) = ([(0, 0); ROOT_RECORDS as usize], 0u32, 0u32);
        for (run, raw) in list.iter_mut().zip(records).take(usize::from(count)) {
            let (start, len) = (u32_at(raw, 0), u16_at(raw, 4));
            if !(1..=RUN_MAX).contains(&len) || start < next {
                return None;
            }
            next = start.checked_add(u32::from(len))?;
            blocks = blocks.checked_add(u32::from(len))?;
            let place = u64::from(u32_at(raw, 8)) | u64::from(u16_at(raw, 6)) << 32;
            *run = (place, u64::from(len));
        }
        let last = u64::from(next.saturating_sub(1)) << self.block_bits;
        let is_long_enough = next == 0 || u64::from(size) >= last;
        let sectors = blocks.checked_mul(self.sectors_per_block)?;
        let is_ours = ino >= self.first && !self.named.contains(&ino);
        let is_plain = is_long_enough && is_ours && u32_at(base, record::BLOCKS_LO) == sectors;
        is_plain.then_some(Runs { list, count: usize::from(count) })
    }
}

#[cfg(test)]
mod tests;
