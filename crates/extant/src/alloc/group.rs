//! The state of one block group: bitmaps and counters, in memory the truth.
//!
//! # Invariants
//!
//! - G1. `taken` is the stored bitmap together with what was freed by transactions that are not
//!   committed: a clear bit may be given away, a set one may not.
//! - G2. The descriptor's counts are those of the stored bitmaps.
//! - G3. A group whose bitmap is not believed gives and takes nothing until the next mount.

use std::ops::Range;
use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex};
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::group::{
    GroupChecksum, GroupDescriptor, GroupFlags, super_and_descriptor_blocks,
};
use extant_jbd2::Tid;

use crate::error::{Fault, FsError, Result};
use crate::slot::Slot;
use crate::volume::Volume;

/// Free runs looked at before the largest so far is taken.
const RUNS_MAX: usize = 200;

/// The state of one group.
pub(super) struct GroupState {
    pub(super) index: GroupIndex,
    pub(super) descriptor: GroupDescriptor,
    /// Loaded when first needed.
    pub(super) blocks: Option<Blocks>,
    pub(super) inodes: Option<Inodes>,
    /// What the running transaction will encode.
    pub(super) dirty: Dirty,
    /// The last transaction that freed something here; 0 for none.
    pub(super) waits_for: Tid,
    /// The bitmap was found damaged (G3).
    pub(super) bad: bool,
}

/// The clusters of a group.
pub(super) struct Blocks {
    /// As stored.
    pub(super) stored: Bitmap,
    /// G1.
    pub(super) taken: Bitmap,
    /// Freed, with the transaction that has to commit first.
    pub(super) freed: Vec<(Range<u32>, Tid)>,
    /// The group's own structures: never freed.
    pub(super) own: Vec<Range<u32>>,
    pub(super) len: u32,
}

/// The inodes of a group.
pub(super) struct Inodes {
    pub(super) stored: Bitmap,
    /// No clear bit before this one.
    pub(super) hint: u32,
}

/// Blocks that the running transaction has claimed for this group.
#[derive(Default)]
pub(super) struct Dirty {
    pub(super) descriptor: Option<Arc<Slot>>,
    pub(super) blocks: Option<Arc<Slot>>,
    pub(super) inodes: Option<Arc<Slot>>,
}

impl GroupState {
    pub(super) fn load(volume: &Volume, index: GroupIndex) -> Result<GroupState> {
        let descriptor = volume.stored_group(index)?;
        let checked = descriptor.check(index, volume.superblock());
        checked.map_err(|error| {
            FsError::corrupt("group descriptor", None, None, Fault::Decode(Box::new(error)))
        })?;
        let (blocks, inodes, dirty) = (None, None, Dirty::default());
        Ok(GroupState { index, descriptor, blocks, inodes, dirty, waits_for: 0, bad: false })
    }

    /// Whether it can leave memory.
    pub(super) fn is_clean(&self) -> bool {
        let idle = self.dirty.descriptor.is_none() && !self.bad;
        idle && self.blocks.as_ref().is_none_or(|blocks| blocks.freed.is_empty())
    }

    /// The clusters, loaded if need be.
    pub(super) fn blocks(&mut self, volume: &Volume) -> Result<&mut Blocks> {
        if self.blocks.is_none() {
            match self.load_blocks(volume) {
                Ok(blocks) => self.blocks = Some(blocks),
                Err(error) => {
                    self.bad = error.family() != crate::Family::Device;
                    return Err(error);
                }
            }
        }
        let index = self.index;
        self.blocks.as_mut().ok_or_else(|| damaged(index, "the bitmap is not loaded"))
    }

    fn load_blocks(&self, volume: &Volume) -> Result<Blocks> {
        let superblock = volume.superblock();
        let len = superblock.group_clusters(self.index);
        let own = own_structures(volume, self.index, &self.descriptor)?;
        let uninit =
            volume.has_uninit_groups() && self.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        let block_bytes = volume.block_size().len();
        let stored = if uninit {
            Bitmap::of_uninit_group(block_bytes, len, own.iter().cloned())
        } else {
            let at = self.descriptor.block_bitmap;
            let block = volume.read_block(at)?;
            if volume.verifies_metadata() {
                let (seed, bits) = (volume.checksum_seed(), superblock.clusters_per_group);
                let stored = self.descriptor.block_bitmap_checksum;
                verify(block.bytes(), seed, bits, stored, superblock.desc_size)
                    .map_err(|fault| FsError::corrupt("block bitmap", None, at, fault))?;
            }
            let bitmap = BitmapRef::new(block.bytes());
            for range in &own {
                if bitmap.count_clear(range.clone()) > 0 {
                    let fault = Fault::Rule("the group's own structures are marked free");
                    return Err(FsError::corrupt("block bitmap", None, at, fault));
                }
            }
            decode(block.bytes(), block_bytes)?
        };
        let free = stored.view().count_clear(0..len);
        if free != self.descriptor.free_clusters {
            let fault = Fault::Field {
                rule: "the free count of the descriptor is not the bitmap's",
                value: u64::from(self.descriptor.free_clusters),
                limit: u64::from(free),
            };
            return Err(FsError::corrupt(
                "block bitmap",
                None,
                self.descriptor.block_bitmap,
                fault,
            ));
        }
        Ok(Blocks { taken: stored.clone(), stored, freed: Vec::new(), own, len })
    }

    /// The inodes, loaded if need be.
    pub(super) fn inodes(&mut self, volume: &Volume) -> Result<&mut Inodes> {
        if self.inodes.is_none() {
            match self.load_inodes(volume) {
                Ok(inodes) => self.inodes = Some(inodes),
                Err(error) => {
                    self.bad = error.family() != crate::Family::Device;
                    return Err(error);
                }
            }
        }
        let index = self.index;
        self.inodes.as_mut().ok_or_else(|| damaged(index, "the bitmap is not loaded"))
    }

    fn load_inodes(&self, volume: &Volume) -> Result<Inodes> {
        let superblock = volume.superblock();
        let len = superblock.inodes_per_group;
        let uninit =
            volume.has_uninit_groups() && self.descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        let block_bytes = volume.block_size().len();
        let stored = if uninit {
            Bitmap::of_uninit_group(block_bytes, len, [])
        } else {
            let at = self.descriptor.inode_bitmap;
            let block = volume.read_block(at)?;
            if volume.verifies_metadata() {
                let stored = self.descriptor.inode_bitmap_checksum;
                verify(block.bytes(), volume.checksum_seed(), len, stored, superblock.desc_size)
                    .map_err(|fault| FsError::corrupt("inode bitmap", None, at, fault))?;
            }
            decode(block.bytes(), block_bytes)?
        };
        let free = stored.view().count_clear(0..len);
        if free != self.descriptor.free_inodes {
            let fault = Fault::Field {
                rule: "the free count of the descriptor is not the bitmap's",
                value: u64::from(self.descriptor.free_inodes),
                limit: u64::from(free),
            };
            return Err(FsError::corrupt(
                "inode bitmap",
                None,
                self.descriptor.inode_bitmap,
                fault,
            ));
        }
        Ok(Inodes { stored, hint: 0 })
    }

    /// Brings the state into the blocks that were claimed for it.
    pub(super) fn encode(&mut self, volume: &Volume) -> Result<()> {
        let dirty = std::mem::take(&mut self.dirty);
        let seed = volume.has_metadata_csum().then(|| volume.checksum_seed());
        let superblock = volume.superblock();
        let plain = crate::slot::BlockKind::Plain;
        if let (Some(slot), Some(blocks)) = (&dirty.blocks, &self.blocks) {
            if let Some(seed) = seed {
                let bits = superblock.clusters_per_group;
                self.descriptor.block_bitmap_checksum = blocks.stored.view().checksum(seed, bits);
            }
            slot.replace(plain, volume.block_size().len(), |block| {
                block.copy_from_slice(blocks.stored.as_bytes());
            });
        }
        if let (Some(slot), Some(inodes)) = (&dirty.inodes, &self.inodes) {
            if let Some(seed) = seed {
                let bits = superblock.inodes_per_group;
                self.descriptor.inode_bitmap_checksum = inodes.stored.view().checksum(seed, bits);
            }
            slot.replace(plain, volume.block_size().len(), |block| {
                block.copy_from_slice(inodes.stored.as_bytes());
            });
        }
        let Some(slot) = &dirty.descriptor else { return Ok(()) };
        let desc_bytes = usize::from(superblock.desc_size);
        let at = (self.index.0 % superblock.descriptors_per_block()) as usize * desc_bytes;
        let checksum = GroupChecksum::of(superblock);
        slot.change(
            plain,
            || volume.load_block(slot.number()),
            |block| {
                let place = block.get_mut(at..at + desc_bytes)?;
                self.descriptor.encode(self.index, &checksum, place).ok()
            },
        )?
        .ok_or_else(|| damaged(self.index, "the descriptor ends after its block"))
    }
}

impl Blocks {
    /// A free run of `len` clusters from `start` on, or the largest of at least `min`.
    pub(super) fn find(&self, start: u32, len: u32, min: u32) -> Option<Range<u32>> {
        let taken = self.taken.view();
        if len == 1 {
            let bit = taken.first_clear(start..self.len)?;
            return Some(bit..bit + 1);
        }
        let mut best: Option<Range<u32>> = None;
        for run in taken.clear_runs(start..self.len).take(RUNS_MAX) {
            let run_len = run.end - run.start;
            if run_len >= len {
                return Some(run.start..run.start + len);
            }
            if run_len >= min && best.as_ref().is_none_or(|best| run_len > best.end - best.start) {
                best = Some(run);
            }
        }
        best
    }
}

fn decode(bytes: &[u8], block_bytes: usize) -> Result<Bitmap> {
    Bitmap::decode(bytes, block_bytes)
        .map_err(|error| FsError::corrupt("bitmap", None, None, Fault::Decode(Box::new(error))))
}

fn verify(bytes: &[u8], seed: u32, bits: u32, stored: u32, desc_size: u16) -> Result<(), Fault> {
    // Both halves of the checksum are stored in descriptors of 64 bytes.
    let wide = desc_size >= 64;
    BitmapRef::new(bytes).verify_checksum("bitmap", seed, bits, stored, wide).map_err(Fault::from)
}

pub(super) fn damaged(group: GroupIndex, rule: &'static str) -> FsError {
    let fault = Fault::Field { rule, value: u64::from(group.0), limit: u64::from(u32::MAX) };
    FsError::corrupt("block group", None, None, fault)
}

/// The clusters of group `index` that hold the file system's own structures: its superblock and
/// descriptors, and bitmaps and tables of every group of its flexible group that lie here.
fn own_structures(
    volume: &Volume,
    index: GroupIndex,
    descriptor: &GroupDescriptor,
) -> Result<Vec<Range<u32>>> {
    let superblock = volume.superblock();
    let Some(first) = superblock.group_first_block(index) else { return Ok(Vec::new()) };
    let end = FsBlock(first.0 + u64::from(superblock.group_blocks(index)));
    let bits = superblock.cluster_bits();
    let mut own = Vec::new();
    let mut add = |start: FsBlock, len: u64| {
        let (from, to) = (start.0.max(first.0), start.0.saturating_add(len).min(end.0));
        if from < to {
            // Inside the group: below 2^32 blocks.
            let from = ((from - first.0) >> bits) as u32;
            let to = (((to - 1 - first.0) >> bits) + 1) as u32;
            own.push(from..to);
        }
    };
    add(first, u64::from(super_and_descriptor_blocks(superblock, index)));
    let table = u64::from(superblock.inode_table_blocks());
    let per_flex = superblock.groups_per_flex().max(1);
    let from = index.0 - index.0 % per_flex;
    let to = from.saturating_add(per_flex).min(superblock.group_count);
    for other in from..to {
        let other = match GroupIndex(other) == index {
            true => *descriptor,
            false => volume.stored_group(GroupIndex(other))?,
        };
        add(other.block_bitmap, 1);
        add(other.inode_bitmap, 1);
        add(other.inode_table, table);
    }
    Ok(own)
}
