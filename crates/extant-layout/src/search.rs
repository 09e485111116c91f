//! Where an inode table is that lies neither where a descriptor says nor where mke2fs puts it.
//!
//! A conversion to larger inodes, a resize and `-E packed_meta_blocks` place tables otherwise. The inodes themselves say
//! which blocks of a table they are in: by their checksums, in which their number is, or, without checksums, by the name
//! `.` of directories, which has the number of its inode.

use alloc::vec;
use alloc::vec::Vec;
use core::ops::Range;

use extant_base::{FileBlock, GroupIndex, Ino};
use extant_format::features::Incompat;
use extant_format::inode::{Inode, InodeFlags, InodeLayout, LINKS_MAX};
use extant_format::record::{self, Record};
use extant_format::superblock::Superblock;

use crate::table_score;

/// Most blocks that one search reads for a group and its flex group: 4 GiB of 4 KiB.
const RANGE_MAX: u64 = 1 << 20;
/// Most blocks that a search reads in all: 64 GiB of 4 KiB.
const READ_MAX: u64 = 1 << 24;
/// Most blocks that are remembered as looking like a part of a table.
const KEPT_MAX: usize = 1 << 20;
/// Most checksums that are computed, and blocks that are read again, for one group: some seconds.
const TRIES_MAX: u64 = 1 << 24;
/// The same for a search in all. An image made for it has many groups that need many.
const TRIES_ALL: u64 = 1 << 27;
/// Most places that are compared for one group.
const PLACES_MAX: usize = 16;

/// Looks for inode tables in the blocks of a group, then of its flex group. Remembers which blocks look like parts of
/// tables, so that the groups of a flex group, one after the other, cost one pass over its blocks.
#[derive(Clone, Debug, Default)]
pub struct TableSearch {
    /// The blocks that were read last, and those of them that look like a part of a table.
    last: Option<(Range<u64>, Vec<u64>)>,
    read: u64,
    /// Checksums that were computed.
    tried: u64,
}

impl TableSearch {
    /// The first block of the table of `group`, if some of its inodes are found; of several places the one where
    /// [`table_score`] is most.
    ///
    /// `read` fills its buffer with a block and says whether that went well. It is asked for at most 2^20 blocks more
    /// than were remembered, and for 2^24 in all of a search's life, in which at most 2^27 checksums are computed and blocks read again; then
    /// nothing is found.
    pub fn find(
        &mut self,
        sb: &Superblock,
        group: GroupIndex,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<u64> {
        let own = blocks_of(sb, group, 1);
        if let Some(start) = self.find_in(sb, group, own.clone(), read) {
            return Some(start);
        }
        let flex = match sb.features.has_incompat(Incompat::FLEX_BG) {
            true => 1u32.checked_shl(u32::from(sb.log_groups_per_flex)).unwrap_or(u32::MAX),
            false => 1,
        };
        let around = blocks_of(sb, GroupIndex(group.0 - group.0 % flex.max(1)), flex);
        if flex <= 1 || around == own { None } else { self.find_in(sb, group, around, read) }
    }

    fn find_in(
        &mut self,
        sb: &Superblock,
        group: GroupIndex,
        range: Range<u64>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<u64> {
        let is_known = |(known, _): &&(Range<u64>, Vec<u64>)| {
            known.start <= range.start && range.end <= known.end
        };
        if self.last.as_ref().filter(is_known).is_none() {
            self.last = Some((range.clone(), self.scan(sb, range, read)?));
        }
        let (_, likely) = self.last.as_ref()?;
        let allowed = TRIES_MAX.min(TRIES_ALL.saturating_sub(self.tried));
        let mut tries = allowed;
        let place = best_place(sb, group, likely, &mut tries, read);
        self.tried = self.tried.saturating_add(allowed.saturating_sub(tries));
        place
    }

    /// The blocks of a range that look like a part of a table; `None` when all has been read that may be.
    fn scan(
        &mut self,
        sb: &Superblock,
        range: Range<u64>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
    ) -> Option<Vec<u64>> {
        self.read = self.read.saturating_add(range.end.saturating_sub(range.start));
        if self.read > READ_MAX {
            return None;
        }
        let mut bytes = vec![0; sb.block_size.len()];
        let mut likely = Vec::new();
        for block in range {
            if likely.len() < KEPT_MAX
                && read(block, &mut bytes)
                && live(sb, &bytes).is_some_and(|slots| !slots.is_empty())
            {
                likely.push(block);
            }
        }
        Some(likely)
    }
}

/// The blocks of `count` groups, cut off at what one search reads.
fn blocks_of(sb: &Superblock, first: GroupIndex, count: u32) -> Range<u64> {
    let per_group = u64::from(sb.blocks_per_group);
    let start = u64::from(first.0)
        .saturating_mul(per_group)
        .saturating_add(u64::from(sb.first_data_block))
        .min(sb.blocks_count);
    let end = start.saturating_add(per_group.saturating_mul(u64::from(count)));
    start..end.min(sb.blocks_count).min(start.saturating_add(RANGE_MAX))
}

/// The slots of a block that hold inodes in use; `None` where half of what is there can be no inode.
fn live(sb: &Superblock, bytes: &[u8]) -> Option<Vec<usize>> {
    let size = usize::from(sb.inode_size).max(128);
    let (mut slots, mut others) = (Vec::new(), 0);
    for (slot, raw) in bytes.chunks_exact(size).enumerate() {
        if raw.iter().all(|byte| *byte == 0) {
            continue;
        }
        let record = Record { ino: Ino(0), bytes: raw.to_vec() };
        let links = u32::from(record.links());
        if record.kind().is_some() && (1..=LINKS_MAX).contains(&links) {
            slots.push(slot);
        } else if record.mode() != 0 && record.kind().is_none() {
            others += 1;
        }
    }
    (others < slots.len()).then_some(slots)
}

/// Of the places that the inodes in `likely` blocks speak for, the one that looks most like the table of a group.
fn best_place(
    sb: &Superblock,
    group: GroupIndex,
    likely: &[u64],
    tries: &mut u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> Option<u64> {
    let len = u64::from(sb.inode_table_blocks());
    let mut bytes = vec![0; sb.block_size.len()];
    let mut places: Vec<(u64, i64)> = Vec::new();
    for block in likely {
        if places.iter().any(|(start, _)| (*start..start.saturating_add(len)).contains(block)) {
            continue;
        }
        if places.len() == PLACES_MAX || *tries == 0 {
            break;
        }
        *tries -= 1;
        if !read(*block, &mut bytes) {
            continue;
        }
        let Some(index) = index_in_table(sb, group, &bytes, tries, read) else { continue };
        let Some(start) = block.checked_sub(index) else { continue };
        if start < u64::from(sb.first_data_block).max(1)
            || start.saturating_add(len) > sb.blocks_count
        {
            continue;
        }
        let score = table_score(sb, group, start, read);
        if score > 0 {
            places.push((start, score));
        }
    }
    // Of equals, the first.
    places.into_iter().rev().max_by_key(|(_, score)| *score).map(|(start, _)| start)
}

/// Which block of the group's table this is, if one of its inodes says so.
fn index_in_table(
    sb: &Superblock,
    group: GroupIndex,
    bytes: &[u8],
    tries: &mut u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> Option<u64> {
    let layout = InodeLayout::of(sb);
    let size = usize::from(sb.inode_size).max(128);
    let per_block = (bytes.len() / size) as u32;
    let first = group.0.wrapping_mul(sb.inodes_per_group).wrapping_add(1);
    let slots = live(sb, bytes)?;
    // Two, for one of them may be what is damaged.
    for slot in slots.iter().copied().take(2).filter(|_| layout.checksum_seed.is_some()) {
        let raw = bytes.get(slot * size..(slot + 1) * size)?;
        for index in 0..sb.inode_table_blocks() {
            if *tries == 0 {
                return None;
            }
            *tries -= 1;
            let ino = first.wrapping_add(index.wrapping_mul(per_block)).wrapping_add(slot as u32);
            if Inode::verify_checksum(&layout, Ino(ino), raw).is_ok() {
                return Some(u64::from(index));
            }
        }
    }
    if layout.checksum_seed.is_some() {
        return None;
    }
    let mut dir = vec![0; bytes.len()];
    for slot in slots {
        let raw = bytes.get(slot * size..(slot + 1) * size)?;
        let record = Record { ino: Ino(0), bytes: raw.to_vec() };
        let Some(block) = record.is_dir().then(|| first_of(&record)).flatten() else { continue };
        if *tries == 0 || block >= sb.blocks_count || !read(block, &mut dir) {
            continue;
        }
        *tries -= 1;
        let Some(ino) = own_number(&dir) else { continue };
        let Some(offset) = ino.checked_sub(first).and_then(|at| at.checked_sub(slot as u32)) else {
            continue;
        };
        if offset % per_block.max(1) == 0 && offset / per_block.max(1) < sb.inode_table_blocks() {
            return Some(u64::from(offset / per_block.max(1)));
        }
    }
    None
}

/// The first block of a file that has one and a map that is all in its inode.
fn first_of(record: &Record) -> Option<u64> {
    let area = record.block_area();
    if record.has(InodeFlags::INLINE_DATA) {
        return None;
    }
    if !record.has(InodeFlags::EXTENTS) {
        return Some(u64::from(record::u32_at(&area, 0))).filter(|block| *block != 0);
    }
    let extent = extant_format::extent::Node::decode_root(&area).ok()?.find(FileBlock(0))?;
    extent.device_block(FileBlock(0)).map(|block| block.0)
}

/// The number that the entry `.` at the start of a directory has: 12 bytes, of them one of name.
fn own_number(dir: &[u8]) -> Option<u32> {
    let is_dot =
        record::u16_at(dir, 4) == 12 && dir.get(6) == Some(&1) && dir.get(8) == Some(&b'.');
    is_dot.then(|| record::u32_at(dir, 0))
}
