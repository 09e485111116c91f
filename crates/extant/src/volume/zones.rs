//! Determining the blocks that are the file system's own, and keeping files from them.

use std::ops::Range;

use extant_base::{FileBlock, FsBlock, GroupIndex, Ino};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_layout::Heads;

use super::Volume;
use crate::error::{Fault, FsError, Result};
use crate::zones::{Joiner, Zone, Zones, is_inside, structures};

/// Number of bytes of descriptors read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Calls `each` with every valid descriptor, as it is stored.
fn each_descriptor(
    volume: &Volume,
    writing: bool,
    mut each: impl FnMut(GroupIndex, &GroupDescriptor),
) -> Result<()> {
    let superblock = volume.superblock();
    let checksum = GroupChecksum::of(superblock);
    let verifies = writing && volume.verifies_checksums();
    let believed = |group, bytes: &[u8]| {
        let descriptor = GroupDescriptor::decode(bytes).ok()?;
        let has_sum =
            !verifies || GroupDescriptor::verify_checksum(group, &checksum, bytes).is_ok();
        let inside = |range: &Range<u64>| is_inside(superblock, range);
        let fits = structures(superblock, &descriptor).iter().all(inside)
            && (!writing || descriptor.check(group, superblock).is_ok());
        (has_sum && fits).then_some(descriptor)
    };
    let per_block = superblock.descriptors_per_block().max(1);
    let count = superblock.group_count;
    let table_blocks = count.div_ceil(per_block);
    let block_len = volume.block_size().len();
    let desc_bytes = usize::from(superblock.desc_size);
    let most = u32::try_from(PIECE_BYTES / block_len).unwrap_or(1).max(1);
    let place = |at: u32| volume.descriptor_place(GroupIndex(at.saturating_mul(per_block)));
    let mut piece_max = most;
    let mut bytes = Vec::new();
    let mut at = 0;
    while at < table_blocks {
        let start = place(at)?;
        let mut len = 1;
        while len < piece_max.min(table_blocks - at)
            && start.checked_add(u64::from(len)) == Some(place(at + len)?)
        {
            len += 1;
        }
        bytes.resize(block_len * len as usize, 0);
        let inside = volume.check_blocks("group descriptor", None, start, u64::from(len));
        match inside.and_then(|()| volume.read_bytes(start, 0, &mut bytes)) {
            Ok(()) => {}
            Err(error) if writing => return Err(error),
            // A block may be readable without the others of its piece.
            Err(_) if len > 1 => {
                piece_max = 1;
                continue;
            }
            Err(_) => bytes.fill(0),
        }
        for (step, block) in (at..).zip(bytes.chunks_exact(block_len)) {
            let first = step.saturating_mul(per_block);
            for (group, bytes) in (first..count).zip(block.chunks_exact(desc_bytes)) {
                if let Some(descriptor) = believed(GroupIndex(group), bytes) {
                    each(GroupIndex(group), &descriptor);
                }
            }
        }
        at += len;
    }
    Ok(())
}

/// Returns an error that names two overlapping structures.
fn name_overlap(volume: &Volume) -> FsError {
    let superblock = volume.superblock();
    let mut all: Vec<(Range<u64>, Zone)> = Vec::new();
    let heads = Heads::of(superblock);
    all.extend(heads.groups().map(|group| (heads.head(group).blocks(), Zone::Descriptors(group))));
    let named = each_descriptor(volume, true, |group, descriptor| {
        let names: [fn(GroupIndex) -> Zone; 3] =
            [Zone::BlockBitmap, Zone::InodeBitmap, Zone::InodeTable];
        let ranges = structures(superblock, descriptor).into_iter();
        all.extend(ranges.zip(names).map(|(range, name)| (range, name(group))));
    });
    if let Err(error) = named {
        return error;
    }
    all.retain(|(range, _)| !range.is_empty());
    all.sort_by_key(|(range, _)| range.start);
    let mut last: Option<(Range<u64>, Zone)> = None;
    for (range, zone) in all {
        if let Some((before, holder)) = &last
            && range.start < before.end
        {
            let text = format!("{zone} lies in {holder}: the image needs a repair").into();
            let block = FsBlock(range.start);
            return FsError::corrupt("block group", None, block, Fault::Decode(text));
        }
        last = Some((range, zone));
    }
    let rule = "structures of groups overlap: the image needs a repair";
    FsError::corrupt("block group", None, None, Fault::Rule(rule))
}

impl Volume {
    /// Reads every descriptor. Invalid ones are ignored: their groups are not used.
    ///
    /// # Errors
    ///
    /// For `writing`: device errors, and damage when structures overlap. Otherwise unreadable
    /// blocks are passed over.
    pub(crate) fn scan_zones(&self, writing: bool) -> Result<Zones> {
        let volume = self;
        let superblock = volume.superblock();
        let (mut fixed, mut sum) = (Joiner::default(), 0u64);
        let mut add = |kind, range: Range<u64>| {
            sum = sum.saturating_add(range.end - range.start);
            fixed.add(kind, range);
        };
        let heads = Heads::of(superblock);
        heads.groups().for_each(|group| add(0, heads.head(group).blocks()));
        each_descriptor(volume, writing, |_, descriptor| {
            for (kind, range) in structures(superblock, descriptor).into_iter().enumerate() {
                add(kind + 1, range);
            }
        })?;
        let fixed = fixed.finish();
        let apart: u64 = fixed.iter().map(|range| range.end - range.start).sum();
        match writing && apart != sum {
            true => Err(name_overlap(volume)),
            false => Ok(Zones::of(fixed)),
        }
    }

    /// Checks that `len` blocks from `start` on may be blocks of `ino`: inside the file system, and
    /// not its own. `structure` names the structure that points there, `file_block` the first one's
    /// place in the file, if it is a block of its contents.
    ///
    /// # Cost
    ///
    /// A binary search in some thousands of ranges; no lock.
    pub(crate) fn check_file_blocks(
        &self,
        structure: &'static str,
        ino: impl Into<Option<Ino>>,
        file_block: impl Into<Option<FileBlock>>,
        start: FsBlock,
        len: u64,
    ) -> Result<()> {
        let ino = ino.into();
        self.check_blocks(structure, ino, start, len)?;
        let Some(zones) = self.zones() else { return Ok(()) };
        // Inside the file system: no overflow.
        let blocks = start.0..start.0 + len;
        let (block, zone) = match (zones.hit(&blocks, ino), self.gained().hit(&blocks, ino)) {
            (Some(block), _) => (block, self.zone_of(FsBlock(block)).unwrap_or(Zone::Unknown)),
            (None, Some(hit)) => hit,
            (None, None) => return Ok(()),
        };
        let file_block = file_block.into().map(|first| u64::from(first.0) + (block - start.0));
        Err(FsError::corrupt(structure, ino, FsBlock(block), Fault::Zone { file_block, zone }))
    }

    /// Returns whether [`check_file_blocks`](Self::check_file_blocks) finds nothing. It does not
    /// wait, as naming what is wrong may.
    pub(crate) fn may_be_file_blocks(&self, ino: Ino, start: FsBlock, len: u64) -> bool {
        let ino = Some(ino);
        if self.check_blocks("file mapping", ino, start, len).is_err() {
            return false;
        }
        let Some(zones) = self.zones() else { return true };
        // Inside the file system: no overflow.
        let blocks = start.0..start.0 + len;
        zones.hit(&blocks, ino).is_none() && self.gained().hit(&blocks, ino).is_none()
    }

    /// Records that `block` belongs to the quota file `ino` from now on.
    pub(crate) fn gain_quota_block(&self, block: FsBlock, ino: Ino) {
        self.gained().add(block.0, Zone::Quota(ino));
    }

    /// Returns the purpose of a block of the file system's own; `None` for all others, and until
    /// the journal was read.
    ///
    /// # Cost
    ///
    /// A pass over all descriptors: for messages only.
    pub(crate) fn zone_of(&self, block: FsBlock) -> Option<Zone> {
        let zones = self.zones()?;
        let here = block.0..block.0.saturating_add(1);
        let owned = zones.owned().iter().find(|(range, _)| range.contains(&block.0));
        if let Some((_, zone)) = owned {
            return Some(*zone);
        }
        if let Some((_, zone)) = self.gained().hit(&here, None) {
            return Some(zone);
        }
        zones.within(&here).next()?;
        let superblock = self.superblock();
        if let Some((group, offset)) = superblock.group_of_block(block)
            && let heads = Heads::of(superblock)
            && heads.head(group).blocks().contains(&block.0)
        {
            let is_super = offset == 0 && heads.has_superblock(group);
            return Some(if is_super { Zone::Superblock(group) } else { Zone::Descriptors(group) });
        }
        let mut found = Zone::Unknown;
        // Zones that cannot be read now stay unknown.
        let _ = each_descriptor(self, false, |group, descriptor| {
            let [blocks, inodes, table] = structures(superblock, descriptor);
            if blocks.contains(&block.0) {
                found = Zone::BlockBitmap(group);
            } else if inodes.contains(&block.0) {
                found = Zone::InodeBitmap(group);
            } else if table.contains(&block.0) {
                found = Zone::InodeTable(group);
            }
        });
        Some(found)
    }
}
