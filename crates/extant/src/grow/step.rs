//! One step of growth: new groups, and the transaction that makes them part of the file system.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, sabotage};
use extant_block::{BlockDevice, DeviceError};
use extant_format::features::Feature;
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::superblock::Superblock;
use extant_layout::{Heads, NewGroups, Shape, share_of};

use super::reserve::Reserve;
use crate::error::{Fault, FsError, GrowRefused, Result};
use crate::fs::Fs;
use crate::slot::{BlockKind, Slot};
use crate::txn::Txn;
use crate::zones::{merge, structures};

/// Number of groups that one step adds at most, which bounds its memory: bitmaps of 8 MiB with
/// blocks of 4 KiB where each group has one from the start.
const STEP_GROUPS: u32 = 1024;

/// Blocks that each step changes: the superblock, and the bitmap and the descriptor of the last
/// group.
const CREDITS_BASE: u32 = 3;

/// What one step changes.
pub(super) struct Step {
    /// The file system before.
    old: Superblock,
    /// The superblock after the step, as far as its size matters.
    new: Superblock,
    groups: NewGroups,
    /// Blocks of descriptors in front of the old end, which go through the journal, by their index.
    tables: Vec<(u32, FsBlock)>,
    /// Blocks of descriptors behind the old end.
    fresh_tables: Vec<(u32, FsBlock)>,
    reserve: Reserve,
    credits: u32,
}

impl Step {
    /// Plans the next step on the way to `blocks`: as many groups as one transaction takes, whole
    /// flexible groups if there are more to come.
    ///
    /// # Errors
    ///
    /// [`GrowRefused::JournalTooSmall`]; damage of the resize inode; device errors.
    pub(super) fn plan(fs: &Fs, blocks: u64) -> Result<Step> {
        let old = fs.superblock().clone();
        let limit = fs.volume().writer()?.journal().credits_max();
        let flex = old.groups_per_flex().clamp(1, STEP_GROUPS);
        let mut groups = STEP_GROUPS;
        loop {
            let end = old.group_count.saturating_add(groups);
            let end = if groups > flex { end - end % flex } else { end };
            let cut =
                u64::from(old.first_data_block) + u64::from(end) * u64::from(old.blocks_per_group);
            let shape = Shape::rounded(&old, blocks.min(cut));
            let tables = tables_of(&old, &shape.sb)?;
            let reserve = Reserve::plan(fs, &old, &shape)?;
            let journaled = tables.iter().filter(|(_, at)| at.0 < old.blocks_count).count();
            let credits = CREDITS_BASE
                .saturating_add(u32::try_from(journaled).unwrap_or(u32::MAX))
                .saturating_add(reserve.credits());
            if credits > limit {
                if groups > 1 {
                    groups /= 2;
                    continue;
                }
                let why = GrowRefused::JournalTooSmall { wanted: credits, limit };
                return Err(FsError::CannotGrow(why));
            }
            let (fresh_tables, tables) =
                tables.into_iter().partition(|(_, at)| at.0 >= old.blocks_count);
            let groups = NewGroups::of(&shape.sb, old.group_count).map_err(|error| {
                FsError::corrupt("superblock", None, None, Fault::Decode(Box::new(error)))
            })?;
            let new = shape.sb;
            return Ok(Step { old, new, groups, tables, fresh_tables, reserve, credits });
        }
    }

    /// The runs of bytes that the new groups consist of, without their inode tables.
    fn new_blocks(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let size = u64::from(self.new.block_size.bytes());
        let mut writes = Vec::new();
        for group in &self.groups.groups {
            let descriptor = &group.descriptor;
            if let Some(bitmap) = &group.block_bitmap {
                writes.push((descriptor.block_bitmap.0 * size, bitmap.as_bytes().to_vec()));
            }
            if let Some(bitmap) = &self.groups.inode_bitmap {
                writes.push((descriptor.inode_bitmap.0 * size, bitmap.as_bytes().to_vec()));
            }
        }
        for (index, at) in &self.fresh_tables {
            let mut bytes = vec![0; self.new.block_size.len()];
            self.put_descriptors(*index, &mut bytes)?;
            writes.push((at.0 * size, bytes));
        }
        Ok(writes)
    }

    /// Encodes the new descriptors that lie in block `index` of the table.
    fn put_descriptors(&self, index: u32, block: &mut [u8]) -> Result<()> {
        let kind = GroupChecksum::of(&self.new);
        let (per_block, size) =
            (self.new.descriptors_per_block(), usize::from(self.new.desc_size).max(32));
        let first = index.saturating_mul(per_block);
        for (raw, group) in block.chunks_exact_mut(size).zip(first..self.new.group_count) {
            let Some(at) = group.checked_sub(self.old.group_count) else { continue };
            let Some(new) = self.groups.groups.get(at as usize) else { break };
            new.descriptor.encode(GroupIndex(group), &kind, raw).map_err(|error| {
                FsError::corrupt("group descriptor", None, None, Fault::Decode(Box::new(error)))
            })?;
        }
        Ok(())
    }

    /// The bytes at the starts of new groups, where backups will be written.
    fn heads(&self) -> impl Iterator<Item = Range<u64>> {
        let heads = Heads::of(&self.new);
        let size = u64::from(self.new.block_size.bytes());
        let all = std::iter::successors(heads.next(GroupIndex(self.old.group_count)), move |at| {
            heads.next(GroupIndex(at.0.checked_add(1)?))
        });
        all.map(move |group| {
            let head = heads.head(group);
            head.start * size..head.gdt.end.max(head.start) * size
        })
    }

    /// Writes what the new groups consist of, durably (E1). Nothing refers to it yet.
    ///
    /// # Errors
    ///
    /// Device errors, [`FsError::DeviceFull`].
    pub(super) fn write_new_groups(&self, fs: &Fs) -> Result<()> {
        let device = fs.device();
        let size = u64::from(self.new.block_size.bytes());
        let write = || -> Result<(), DeviceError> {
            for table in &self.groups.tables {
                device.write_zeroes(table.start * size, (table.end - table.start) * size)?;
            }
            for head in self.heads() {
                device.allocate(head.start, head.end - head.start)?;
            }
            Ok(())
        };
        write().map_err(FsError::from)?;
        for (offset, bytes) in self.new_blocks()? {
            device.write_at(offset, &bytes).map_err(FsError::from)?;
        }
        if sabotage("extant.grow.groups-not-flushed") {
            return Ok(());
        }
        device.flush().map_err(FsError::from)
    }

    /// Gives back what was written before an error, so that a full disk is no fuller.
    pub(super) fn forget_new_groups(&self, fs: &Fs) {
        let size = u64::from(self.new.block_size.bytes());
        let blocks = self.new_blocks().unwrap_or_default().into_iter();
        let blocks = blocks.map(|(offset, bytes)| offset..offset + bytes.len() as u64);
        for run in blocks.chain(self.heads()) {
            // Where the device cannot, what was written stays: nothing refers to it.
            let _ = fs.device().discard(run.start, run.end - run.start);
        }
        for table in &self.groups.tables {
            let _ = fs.device().discard(table.start * size, (table.end - table.start) * size);
        }
    }

    /// Makes the new groups part of the file system, durably (E2).
    ///
    /// # Errors
    ///
    /// Damage of the last group and device errors, with nothing changed; those of a commit.
    pub(super) fn commit(self, fs: &Fs) -> Result<()> {
        let mount = fs.volume();
        let writer = mount.writer()?;
        let alloc = writer.alloc();
        alloc.make_room_for(mount, self.new.group_count)?;
        let mut encoded = Vec::with_capacity(self.tables.len());
        for (index, at) in &self.tables {
            let mut bytes = vec![0; self.new.block_size.len()];
            self.put_descriptors(*index, &mut bytes)?;
            encoded.push((*index, *at, bytes));
        }
        let mut txn = Txn::begin(mount, self.credits)?;
        txn.never_restart();
        let tid = txn.tid();
        // All that can fail, before anything changes.
        alloc.ready_to_grow(&mut txn)?;
        let mut slots: Vec<Arc<Slot>> = Vec::with_capacity(encoded.len());
        for (index, at, _) in &encoded {
            let slot = mount.slot(*at);
            if self.is_old(*index) {
                slot.get(|| mount.load_block(*at))?;
            }
            txn.claim_slot(&slot)?;
            slots.push(slot);
        }
        writer.supers().change(&mut txn, |_| ())?;
        self.reserve.ready(fs, &mut txn)?;
        let changed = self.change(fs, &mut txn, &slots, &encoded);
        let changed = changed.map_err(|error| txn.fail(error));
        drop(txn);
        changed?;
        writer.journal().commit(tid).map_err(FsError::from_journal)
    }

    /// Returns whether block `index` of the table was one before.
    fn is_old(&self, index: u32) -> bool {
        index < self.old.descriptor_blocks()
    }

    fn change(
        &self,
        fs: &Fs,
        txn: &mut Txn<'_>,
        slots: &[Arc<Slot>],
        encoded: &[(u32, FsBlock, Vec<u8>)],
    ) -> Result<()> {
        let mount = fs.volume();
        let writer = mount.writer()?;
        self.reserve.change(fs, txn)?;
        let desc_bytes = usize::from(self.new.desc_size).max(32);
        for (slot, (index, at, bytes)) in slots.iter().zip(encoded) {
            if !self.is_old(*index) {
                txn.create_block(*at, BlockKind::Plain, |block| block.copy_from_slice(bytes))?;
                continue;
            }
            // Those of groups that there are stay as they are.
            let first = index.saturating_mul(self.new.descriptors_per_block());
            let from = self.old.group_count.saturating_sub(first) as usize * desc_bytes;
            txn.edit(slot, BlockKind::Plain, |block| {
                if let (Some(to), Some(from)) = (block.get_mut(from..), bytes.get(from..)) {
                    to.copy_from_slice(from);
                }
            })?;
        }
        let size = (&self.old, &self.new, self.groups.overhead);
        let current = writer.supers().change(txn, |superblock| {
            resize(superblock, size);
            superblock.clone()
        })?;
        let descriptors: Vec<GroupDescriptor> =
            self.groups.groups.iter().map(|group| group.descriptor).collect();
        let mut grown = self.old.clone();
        grown.reserved_blocks_count = current.reserved_blocks_count;
        grown.overhead_clusters = current.overhead_clusters;
        resize_shape(&mut grown, &self.new);
        let zones = self.zones(&descriptors);
        let last = GroupIndex(self.old.group_count.saturating_sub(1));
        let clusters = self.new.group_clusters(last);
        alloc_grow(fs, &grown, clusters, &descriptors, &zones)
    }

    /// Blocks of the new groups that are the file system's own, sorted and joined.
    fn zones(&self, descriptors: &[GroupDescriptor]) -> Vec<Range<u64>> {
        let heads = Heads::of(&self.new);
        let new = std::iter::successors(heads.next(GroupIndex(self.old.group_count)), |at| {
            heads.next(GroupIndex(at.0.checked_add(1)?))
        });
        let mut zones: Vec<Range<u64>> = new.map(|group| heads.head(group).blocks()).collect();
        zones.extend(descriptors.iter().flat_map(|group| structures(&self.new, group)));
        zones.retain(|zone| !zone.is_empty());
        merge(&mut zones);
        zones.shrink_to_fit();
        zones
    }
}

fn alloc_grow(
    fs: &Fs,
    grown: &Superblock,
    clusters: u32,
    descriptors: &[GroupDescriptor],
    zones: &[Range<u64>],
) -> Result<()> {
    let mount = fs.volume();
    let publish = || mount.publish(grown.clone(), zones);
    mount.writer()?.alloc().grow(mount, grown, clusters, descriptors, publish)
}

/// The blocks of the table that hold descriptors of new groups, with their places.
fn tables_of(old: &Superblock, new: &Superblock) -> Result<Vec<(u32, FsBlock)>> {
    if new.group_count <= old.group_count {
        return Ok(Vec::new());
    }
    let heads = Heads::of(new);
    let first = old.group_count / new.descriptors_per_block();
    let places = (first..new.descriptor_blocks()).map(|index| {
        let missing = || {
            let rule = "a group has no place for its descriptor";
            FsError::corrupt("superblock", None, None, Fault::Rule(rule))
        };
        heads.descriptor_block(index).map(|at| (index, at)).ok_or_else(missing)
    });
    places.collect()
}

/// Sets the numbers that follow from the size.
fn resize_shape(superblock: &mut Superblock, new: &Superblock) {
    superblock.blocks_count = new.blocks_count;
    superblock.group_count = new.group_count;
    superblock.inodes_count = new.inodes_count;
    superblock.reserved_gdt_blocks = new.reserved_gdt_blocks;
    superblock.first_meta_bg = new.first_meta_bg;
    superblock.backup_groups = new.backup_groups;
    for feature in [Feature::RESIZE_INODE, Feature::META_BG] {
        superblock.features.set(feature, new.features.has(feature));
    }
}

/// Gives the current superblock its new size; settings that were changed meanwhile stay.
fn resize(superblock: &mut Superblock, (old, new, overhead): (&Superblock, &Superblock, u32)) {
    resize_shape(superblock, new);
    superblock.reserved_blocks_count =
        share_of(superblock.reserved_blocks_count, old, new.blocks_count);
    if superblock.overhead_clusters != 0 {
        superblock.overhead_clusters = superblock.overhead_clusters.saturating_add(overhead);
    }
}
