//! Blocks that are the file system's own, and of no file.
//!
//! # Place
//!
//! Below: the superblock, and descriptors as they are stored. Above: whatever turns a number in a
//! map, a tree, or an inode into a place on the device asks [`Volume::check_file_blocks`], and the
//! allocator never gives these blocks away.
//!
//! # Shape
//!
//! ```text
//! fixed   superblocks, descriptors and the room for more of them, bitmaps, inode tables
//! owned   blocks of the journal, of quota files, of the orphan file: each may use its own;
//!         the block of multi-mount protection
//! ```
//!
//! A bitmap or a table may lie anywhere, so nothing less than all descriptors says whose a block
//! is. They are read once, when mounting, in large pieces, past the cache: 8 MiB for 16 TiB. What is
//! kept are the ranges, joined: with flexible groups one to three for each of them.
//!
//! # Invariants
//!
//! - Z1. `fixed` and `owned` are each sorted and apart; neither changes during a mount, so there is
//!   no lock. Blocks that a quota file gets later are in [`Gained`], which is looked at when there are any: no map
//!   of a sound image has them, for they were free.
//! - Z2. Only while the journal is looked for there are no zones: descriptors may be of any age
//!   before it is replayed.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::{FileBlock, FsBlock, GroupIndex, Ino};
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::group::{
    GroupChecksum, GroupDescriptor, has_superblock, super_and_descriptor_blocks,
};
use extant_format::superblock::Superblock;
use extant_sync::{Rank, RwLock};

use crate::error::{Family, Fault, FsError, Result};
use crate::map::MappingKind;
use crate::mount::Fs;
use crate::volume::Volume;

/// Bytes of descriptors that are read at a time.
const PIECE_BYTES: usize = 1 << 20;

/// Most groups that an image can have here: 1 PiB with blocks of 4 KiB. It bounds the time and the
/// memory of the look at all descriptors.
pub(crate) const GROUPS_MAX: u32 = 1 << 23;

/// What a block is for that belongs to the file system itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Zone {
    /// A superblock, or the boot block before it.
    Superblock(GroupIndex),
    /// Group descriptors, or the blocks kept for more of them.
    Descriptors(GroupIndex),
    /// The block bitmap of a group.
    BlockBitmap(GroupIndex),
    /// The inode bitmap of a group.
    InodeBitmap(GroupIndex),
    /// The inode table of a group.
    InodeTable(GroupIndex),
    /// The journal, of this inode.
    Journal(Ino),
    /// The pointers to the blocks kept for more descriptors, of this inode.
    Resize(Ino),
    /// A quota file, this inode.
    Quota(Ino),
    /// The orphan file, this inode.
    OrphanFile(Ino),
    /// The block of multi-mount protection.
    MultiMount,
    /// A structure of a group that no descriptor tells any more.
    Unknown,
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Zone::Superblock(group) => write!(f, "the superblock of group {group}"),
            Zone::Descriptors(group) => write!(f, "the group descriptors in group {group}"),
            Zone::BlockBitmap(group) => write!(f, "the block bitmap of group {group}"),
            Zone::InodeBitmap(group) => write!(f, "the inode bitmap of group {group}"),
            Zone::InodeTable(group) => write!(f, "the inode table of group {group}"),
            Zone::Journal(ino) => write!(f, "the journal (inode {ino})"),
            Zone::Resize(ino) => write!(f, "the resize inode ({ino})"),
            Zone::Quota(ino) => write!(f, "the quota file (inode {ino})"),
            Zone::OrphanFile(ino) => write!(f, "the orphan file (inode {ino})"),
            Zone::MultiMount => f.write_str("the block of multi-mount protection"),
            Zone::Unknown => f.write_str("a structure of the file system"),
        }
    }
}

impl Zone {
    /// The inode that may use these blocks.
    fn owner(self) -> Option<Ino> {
        match self {
            Zone::Journal(ino) | Zone::Resize(ino) | Zone::Quota(ino) | Zone::OrphanFile(ino) => {
                Some(ino)
            }
            _ => None,
        }
    }
}

/// All zones of one open file system.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    fixed: Vec<Range<u64>>,
    owned: Vec<(Range<u64>, Zone)>,
}

impl Zones {
    /// Looks at every descriptor. Those that are not believed say nothing: their groups are not used.
    ///
    /// # Errors
    ///
    /// For `writing`: device errors, and damage when one structure lies in another. Else what cannot
    /// be read is passed over.
    fn scan(volume: &Volume, writing: bool) -> Result<Zones> {
        let superblock = volume.superblock();
        let (mut fixed, mut sum) = (Joiner::default(), 0u64);
        let mut add = |kind, range: Range<u64>| {
            sum = sum.saturating_add(range.end - range.start);
            fixed.add(kind, range);
        };
        for group in (0..superblock.group_count).map(GroupIndex) {
            add(0, head(superblock, group));
        }
        each_descriptor(volume, writing, |_, descriptor| {
            for (kind, range) in structures(superblock, descriptor).into_iter().enumerate() {
                add(kind + 1, range);
            }
        })?;
        let fixed = fixed.finish();
        let apart: u64 = fixed.iter().map(|range| range.end - range.start).sum();
        match writing && apart != sum {
            true => Err(name_overlap(volume)),
            false => Ok(Zones { fixed, owned: Vec::new() }),
        }
    }

    /// The first of `blocks` that `ino` must not use.
    fn hit(&self, blocks: &Range<u64>, ino: Option<Ino>) -> Option<u64> {
        let at = self.fixed.partition_point(|zone| zone.end <= blocks.start);
        let fixed = self.fixed.get(at).filter(|zone| zone.start < blocks.end);
        // The resize inode maps the descriptor blocks that it keeps free.
        let fixed =
            fixed.filter(|_| ino != Some(Ino::RESIZE)).map(|zone| zone.start.max(blocks.start));
        let at = self.owned.partition_point(|(zone, _)| zone.end <= blocks.start);
        let owned = self.owned.get(at..).unwrap_or_default().iter();
        let owned = owned
            .take_while(|(zone, _)| zone.start < blocks.end)
            .find(|(_, zone)| zone.owner().is_none() || zone.owner() != ino)
            .map(|(zone, _)| zone.start.max(blocks.start));
        match (fixed, owned) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        }
    }

    /// The parts of `blocks` that are zones, not sorted.
    pub(crate) fn within(&self, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
        let (start, end) = (blocks.start, blocks.end);
        let at = self.fixed.partition_point(|zone| zone.end <= start);
        let fixed = self.fixed.get(at..).unwrap_or_default().iter();
        let at = self.owned.partition_point(|(zone, _)| zone.end <= start);
        let owned = self.owned.get(at..).unwrap_or_default().iter().map(|(zone, _)| zone);
        fixed
            .take_while(move |zone| zone.start < end)
            .chain(owned.take_while(move |zone| zone.start < end))
            .map(move |zone| zone.start.max(start)..zone.end.min(end))
    }

    /// Adds what inodes of the file system own.
    fn own(&mut self, mut owned: Vec<(Range<u64>, Zone)>) {
        owned.sort_by_key(|(range, _)| range.start);
        // Two owners of one block: it is the first one's (Z1), and damage for the other.
        let mut end = 0;
        owned.retain_mut(|(range, _)| {
            range.start = range.start.max(end);
            end = end.max(range.end);
            range.start < range.end
        });
        self.owned = owned;
    }
}

/// Blocks that inodes of the file system got during a mount.
pub(crate) struct Gained {
    any: AtomicBool,
    /// In the order in which they came; those that go on where the last ones ended are joined with them.
    runs: RwLock<Vec<(Range<u64>, Zone)>>,
}

impl Gained {
    pub(crate) fn new() -> Gained {
        Gained { any: AtomicBool::new(false), runs: RwLock::new(Rank::Leaf, Vec::new()) }
    }

    fn add(&self, block: u64, zone: Zone) {
        let mut runs = self.runs.write();
        match runs.last_mut() {
            Some((run, of)) if run.end == block && *of == zone => run.end += 1,
            _ => runs.push((block..block.saturating_add(1), zone)),
        }
        self.any.store(true, Ordering::Release);
    }

    /// The first one of `blocks` that `ino` may not use, and what it is for.
    fn hit(&self, blocks: &Range<u64>, ino: Option<Ino>) -> Option<(u64, Zone)> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let runs = self.runs.read();
        let others = runs.iter().filter(|(run, zone)| {
            run.start < blocks.end && blocks.start < run.end && zone.owner() != ino
        });
        others.map(|(run, zone)| (run.start.max(blocks.start), *zone)).min_by_key(|hit| hit.0)
    }
}

/// Collects ranges of several kinds, each of which mostly goes on where its last one ended.
#[derive(Default)]
struct Joiner {
    open: [Range<u64>; 4],
    done: Vec<Range<u64>>,
}

impl Joiner {
    fn add(&mut self, kind: usize, range: Range<u64>) {
        let Some(open) = self.open.get_mut(kind).filter(|_| !range.is_empty()) else { return };
        if open.end == range.start {
            open.end = range.end;
            return;
        }
        let before = std::mem::replace(open, range);
        if !before.is_empty() {
            self.done.push(before);
        }
    }

    fn finish(mut self) -> Vec<Range<u64>> {
        self.done.extend(self.open.into_iter().filter(|range| !range.is_empty()));
        merge(&mut self.done);
        self.done.shrink_to_fit();
        self.done
    }
}

/// Sorts ranges and joins those that touch.
pub(crate) fn merge(ranges: &mut Vec<Range<u64>>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let joins = next.start <= last.end;
        if joins {
            last.end = last.end.max(next.end);
        }
        joins
    });
}

/// Superblock, descriptors, and the room for more of them, at the start of a group.
fn head(superblock: &Superblock, group: GroupIndex) -> Range<u64> {
    let len = super_and_descriptor_blocks(superblock, group);
    let Some(first) = superblock.group_first_block(group).filter(|_| len > 0) else { return 0..0 };
    let mut end = first.0.saturating_add(u64::from(len));
    if group.0 == 0 && first.0 == 0 && superblock.block_size.bytes() == 1024 {
        end += 1; // The boot block, before the superblock.
    }
    let group_end = first.0.saturating_add(u64::from(superblock.group_blocks(group)));
    first.0..end.min(group_end)
}

/// Blocks with the block bitmap, the inode bitmap and the table that a descriptor names.
fn structures(superblock: &Superblock, descriptor: &GroupDescriptor) -> [Range<u64>; 3] {
    let run = |start: FsBlock, len: u32| start.0..start.0.saturating_add(u64::from(len));
    [
        run(descriptor.block_bitmap, 1),
        run(descriptor.inode_bitmap, 1),
        run(descriptor.inode_table, superblock.inode_table_blocks()),
    ]
}

fn is_inside(superblock: &Superblock, range: &Range<u64>) -> bool {
    range.start > u64::from(superblock.first_data_block) && range.end <= superblock.blocks_count
}

/// Calls `each` with every descriptor that is believed, as it is stored.
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
            // Without the others of its piece it may be readable.
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

/// Which structure lies in which other one.
fn name_overlap(volume: &Volume) -> FsError {
    let superblock = volume.superblock();
    let mut all: Vec<(Range<u64>, Zone)> = Vec::new();
    for group in (0..superblock.group_count).map(GroupIndex) {
        all.push((head(superblock, group), Zone::Descriptors(group)));
    }
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

impl Fs {
    /// Finds out which blocks are the file system's own. Once, before anybody else has the file
    /// system, and after the journal was looked through.
    ///
    /// # Errors
    ///
    /// For `writing`: device errors; damage when structures overlap each other or the journal. A
    /// mount for reading takes what it can find.
    pub(crate) fn find_zones(&self, writing: bool) -> Result<()> {
        let volume = self.volume();
        let mut zones = Zones::scan(volume, writing)?;
        let owned = self.owned_zones(writing)?;
        let journal = owned.iter().filter(|(_, zone)| matches!(zone, Zone::Journal(_)));
        let lost = |(range, _): &&(Range<u64>, Zone)| zones.hit(range, None).is_some();
        if writing && let Some((range, zone)) = journal.clone().find(lost) {
            let rule = "its blocks lie in other structures of the file system";
            let block = zones.hit(range, None).map(FsBlock);
            return Err(FsError::corrupt("journal", zone.owner(), block, Fault::Rule(rule)));
        }
        zones.own(owned);
        volume.set_zones(zones);
        Ok(())
    }

    /// Blocks of the inodes that belong to the file system. Their maps are read without zones.
    fn owned_zones(&self, writing: bool) -> Result<Vec<(Range<u64>, Zone)>> {
        let (superblock, features) = (self.superblock(), self.features());
        let journal = features.has_compat(Compat::HAS_JOURNAL).then_some(superblock.journal_inode);
        let orphans =
            features.has_compat(Compat::ORPHAN_FILE).then_some(superblock.orphan_file_inode);
        let mut owners = Vec::new();
        owners.extend(journal.map(Zone::Journal));
        owners.extend(orphans.map(Zone::OrphanFile));
        if features.has_ro_compat(RoCompat::QUOTA) {
            owners.push(Zone::Quota(superblock.user_quota_inode));
            owners.push(Zone::Quota(superblock.group_quota_inode));
            owners.push(Zone::Quota(superblock.project_quota_inode));
        }
        let mut owned = Vec::new();
        for zone in owners {
            let Some(ino) = zone.owner().filter(|ino| ino.0 != 0) else { continue };
            match self.blocks_of(ino) {
                Ok(runs) => owned.extend(runs.into_iter().map(|run| (run, zone))),
                // Whoever needs that inode says so.
                Err(error) if !writing || error.family() != Family::Device => {}
                Err(error) => return Err(error),
            }
        }
        let mut single = |block: u64, zone| {
            if is_inside(superblock, &(block..block.saturating_add(1))) {
                owned.push((block..block + 1, zone));
            }
        };
        if features.has_incompat(Incompat::MMP) {
            single(superblock.mmp_block.0, Zone::MultiMount);
        }
        if features.has_compat(Compat::RESIZE_INODE)
            && let Ok(inode) = self.load_inode_or_orphan(Ino::RESIZE)
            && let Some(pointer) = inode.record.block.get(13 * 4..14 * 4)
            && let Ok(pointer) = <[u8; 4]>::try_from(pointer)
        {
            single(u64::from(u32::from_le_bytes(pointer)), Zone::Resize(Ino::RESIZE));
        }
        Ok(owned)
    }

    fn blocks_of(&self, ino: Ino) -> Result<Vec<Range<u64>>> {
        let inode = self.inode(ino)?;
        let superblock = self.superblock();
        let blocks = superblock.block_size.blocks_for(inode.size()).min(superblock.blocks_count);
        let mut runs = Vec::new();
        for run in inode.map(0..blocks) {
            let run = run?;
            if let MappingKind::Mapped(start) | MappingKind::Unwritten(start) = run.kind {
                runs.push(start.0..start.0.saturating_add(run.len));
            }
        }
        Ok(runs)
    }
}

impl Volume {
    /// Whether `len` blocks from `start` on may be blocks of `ino`: inside the file system, and
    /// none of its own. `structure` names who points there, `file_block` which block of the file
    /// the first one is, if it is a block of its contents.
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

    /// `block` is a block of the quota file `ino` from now on.
    pub(crate) fn gain_quota_block(&self, block: FsBlock, ino: Ino) {
        self.gained().add(block.0, Zone::Quota(ino));
    }

    /// What a block of the file system's own is for; `None` for all others, and while the journal
    /// is looked through.
    ///
    /// # Cost
    ///
    /// A look at all descriptors: for messages.
    pub(crate) fn zone_of(&self, block: FsBlock) -> Option<Zone> {
        let zones = self.zones()?;
        let here = block.0..block.0.saturating_add(1);
        let owned = zones.owned.iter().find(|(range, _)| range.contains(&block.0));
        if let Some((_, zone)) = owned {
            return Some(*zone);
        }
        if let Some((_, zone)) = self.gained().hit(&here, None) {
            return Some(zone);
        }
        zones.within(&here).next()?;
        let superblock = self.superblock();
        if let Some((group, offset)) = superblock.group_of_block(block)
            && head(superblock, group).contains(&block.0)
        {
            let is_super = offset == 0 && has_superblock(superblock, group);
            return Some(if is_super { Zone::Superblock(group) } else { Zone::Descriptors(group) });
        }
        let mut found = Zone::Unknown;
        // What cannot be read now stays unknown.
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
