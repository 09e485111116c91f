//! Zones: blocks that belong to the file system itself, and to no file.
//!
//! # Place
//!
//! Below: nothing. Above: the volume finds the zones (`volume::zones`), opening adds what inodes
//! own. All code that turns a block number in a map, a tree, or an inode into a place on the device
//! calls `Volume::check_file_blocks`, and the allocator never gives these blocks away.
//!
//! # Shape
//!
//! ```text
//! fixed   superblocks, descriptors and the room for more of them, bitmaps, inode tables
//! owned   blocks of the journal, of quota files, of the orphan file: each may use its own;
//!         the block of multi-mount protection
//! ```
//!
//! A bitmap or a table may lie anywhere, so only all descriptors together determine the owner of a
//! block. They are read once, when mounting, in large pieces, without caching: 8 MiB for 16 TiB.
//! The ranges are kept, joined: with flexible groups one to three for each of them.
//!
//! # Invariants
//!
//! - Z1. `fixed` and `owned` are each sorted and disjoint; neither changes during a mount, so there
//!   is no lock. Blocks that a quota file gets later are in [`Gained`], which is searched if there
//!   are any: no map of a sound image has them, because they were free.
//! - Z3. Each growth of the file system adds a [`Layer`] with the zones of what it added, before
//!   anybody can be told a block there. Layers follow one another on the device and never change.
//! - Z2. There are no zones only until the journal was read: before its replay descriptors may be
//!   outdated.

use std::fmt;
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupDescriptor;
use extant_format::superblock::Superblock;
use extant_sync::{Rank, RwLock};

use crate::sparse::Sparse;

/// Limit of the groups of an image: 1 PiB with blocks of 4 KiB. It bounds the time and the memory
/// for reading all descriptors.
pub(crate) const GROUPS_MAX: u32 = 1 << 23;

/// Purpose of a block that belongs to the file system itself.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Zone {
    /// A superblock, or the boot block before it.
    Superblock(GroupIndex),
    /// Group descriptors, or the blocks reserved for more of them.
    Descriptors(GroupIndex),
    /// The block bitmap of a group.
    BlockBitmap(GroupIndex),
    /// The inode bitmap of a group.
    InodeBitmap(GroupIndex),
    /// The inode table of a group.
    InodeTable(GroupIndex),
    /// The journal, in this inode.
    Journal(Ino),
    /// Pointers to the blocks reserved for more descriptors, in this inode.
    Resize(Ino),
    /// A quota file, with this inode.
    Quota(Ino),
    /// The orphan file, with this inode.
    OrphanFile(Ino),
    /// The block of multi-mount protection.
    MultiMount,
    /// A structure of a group whose descriptor is not valid any more.
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
    /// Returns the inode that may use these blocks.
    pub(crate) fn owner(self) -> Option<Ino> {
        match self {
            Zone::Journal(ino) | Zone::Resize(ino) | Zone::Quota(ino) | Zone::OrphanFile(ino) => {
                Some(ino)
            }
            _ => None,
        }
    }
}

/// Limit of the steps in which a file system grows during one mount: it bounds the memory for what
/// each leaves.
pub(crate) const STEPS_MAX: u32 = 4096;

/// Zones of the blocks that one step of growth added.
struct Layer {
    /// All blocks that were added.
    blocks: Range<u64>,
    /// Sorted, disjoint.
    fixed: Vec<Range<u64>>,
}

/// All zones of one open file system.
pub(crate) struct Zones {
    fixed: Vec<Range<u64>>,
    owned: Vec<(Range<u64>, Zone)>,
    /// What was added while the file system was mounted (Z3).
    layers: Sparse<OnceLock<Layer>>,
    /// Number of layers that count.
    layer_count: AtomicU32,
    /// The list of the resize inode, after it was freed; 0 before.
    freed_list: AtomicU64,
}

impl Zones {
    /// Creates the zones from ranges that belong to no inode; sorted, disjoint.
    pub(crate) fn of(fixed: Vec<Range<u64>>) -> Zones {
        Zones {
            fixed,
            owned: Vec::new(),
            layers: Sparse::new(STEPS_MAX, |_| OnceLock::new()),
            layer_count: AtomicU32::new(0),
            freed_list: AtomicU64::new(0),
        }
    }

    /// Adds the zones of blocks behind all others, as long as nobody knows of these blocks (Z3).
    /// Only one thread at a time may call this. Returns false when there are too many layers.
    pub(crate) fn add_layer(&self, blocks: Range<u64>, fixed: Vec<Range<u64>>) -> bool {
        let count = self.layer_count.load(Ordering::Acquire);
        let added = self.layers.get(count).is_some_and(|layer| {
            let _ = layer.set(Layer { blocks, fixed });
            true
        });
        if added {
            self.layer_count.store(count + 1, Ordering::Release);
        }
        added
    }

    /// Forgets that `block` is the list of the resize inode, because it was freed.
    pub(crate) fn free_list(&self, block: u64) {
        self.freed_list.store(block, Ordering::Release);
    }

    fn is_freed(&self, zone: &(Range<u64>, Zone)) -> bool {
        matches!(zone.1, Zone::Resize(_)) && zone.0.start == self.freed_list.load(Ordering::Acquire)
    }

    fn layer(&self, at: u32) -> Option<&Layer> {
        self.layers.get(at).and_then(OnceLock::get)
    }

    /// Returns the later zones that `blocks` meet.
    fn later(&self, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let count = self.layer_count.load(Ordering::Acquire);
        let (mut from, mut to) = (0, count);
        while from < to {
            let middle = from + (to - from) / 2;
            match self.layer(middle).is_some_and(|layer| layer.blocks.end <= blocks.start) {
                true => from = middle + 1,
                false => to = middle,
            }
        }
        let (start, end) = (blocks.start, blocks.end);
        let layers = (from..count).filter_map(|at| self.layer(at));
        layers.take_while(move |layer| layer.blocks.start < end).flat_map(move |layer| {
            let at = layer.fixed.partition_point(|zone| zone.end <= start);
            let zones = layer.fixed.get(at..).unwrap_or_default().iter();
            zones.take_while(move |zone| zone.start < end).cloned()
        })
    }

    /// Returns the ranges owned by inodes, with their owners.
    pub(crate) fn owned(&self) -> &[(Range<u64>, Zone)] {
        &self.owned
    }

    /// Returns the first of `blocks` that `ino` must not use.
    pub(crate) fn hit(&self, blocks: &Range<u64>, ino: Option<Ino>) -> Option<u64> {
        let at = self.fixed.partition_point(|zone| zone.end <= blocks.start);
        let fixed = self.fixed.get(at).filter(|zone| zone.start < blocks.end);
        // The resize inode maps the descriptor blocks that it reserves.
        let fixed =
            fixed.filter(|_| ino != Some(Ino::RESIZE)).map(|zone| zone.start.max(blocks.start));
        let at = self.owned.partition_point(|(zone, _)| zone.end <= blocks.start);
        let owned = self.owned.get(at..).unwrap_or_default().iter();
        let owned = owned
            .take_while(|(zone, _)| zone.start < blocks.end)
            .find(|&zone| {
                (zone.1.owner().is_none() || zone.1.owner() != ino) && !self.is_freed(zone)
            })
            .map(|(zone, _)| zone.start.max(blocks.start));
        let hit = match (fixed, owned) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        // Later zones lie behind all others.
        match hit.is_none() && self.layer_count.load(Ordering::Acquire) != 0 {
            true if ino != Some(Ino::RESIZE) => {
                self.later(blocks).next().map(|zone| zone.start.max(blocks.start))
            }
            _ => hit,
        }
    }

    /// Returns the parts of `blocks` that are zones, unsorted.
    pub(crate) fn within(&self, blocks: &Range<u64>) -> impl Iterator<Item = Range<u64>> + use<'_> {
        let (start, end) = (blocks.start, blocks.end);
        let at = self.fixed.partition_point(|zone| zone.end <= start);
        let fixed = self.fixed.get(at..).unwrap_or_default().iter();
        let at = self.owned.partition_point(|(zone, _)| zone.end <= start);
        let owned = self.owned.get(at..).unwrap_or_default().iter();
        let owned = owned.filter(|zone| !self.is_freed(zone)).map(|(zone, _)| zone);
        fixed
            .take_while(move |zone| zone.start < end)
            .chain(owned.take_while(move |zone| zone.start < end))
            .cloned()
            .chain(self.later(blocks))
            .map(move |zone| zone.start.max(start)..zone.end.min(end))
    }

    /// Adds ranges owned by inodes of the file system.
    pub(crate) fn own(&mut self, mut owned: Vec<(Range<u64>, Zone)>) {
        owned.sort_by_key(|(range, _)| range.start);
        // A block with two owners belongs to the first one (Z1), and is damage for the other.
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
    /// Ranges in the order of their addition; adjacent ones are joined.
    runs: RwLock<Vec<(Range<u64>, Zone)>>,
}

impl Gained {
    pub(crate) fn new() -> Gained {
        Gained { any: AtomicBool::new(false), runs: RwLock::new(Rank::Leaf, Vec::new()) }
    }

    pub(crate) fn add(&self, block: u64, zone: Zone) {
        let mut runs = self.runs.write();
        match runs.last_mut() {
            Some((run, of)) if run.end == block && *of == zone => run.end += 1,
            _ => runs.push((block..block.saturating_add(1), zone)),
        }
        self.any.store(true, Ordering::Release);
    }

    /// Returns the first of `blocks` that `ino` may not use, and its purpose.
    pub(crate) fn hit(&self, blocks: &Range<u64>, ino: Option<Ino>) -> Option<(u64, Zone)> {
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

/// Collects ranges of several kinds, each of which mostly continues its predecessor.
#[derive(Default)]
pub(crate) struct Joiner {
    open: [Range<u64>; 4],
    done: Vec<Range<u64>>,
}

impl Joiner {
    pub(crate) fn add(&mut self, kind: usize, range: Range<u64>) {
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

    pub(crate) fn finish(mut self) -> Vec<Range<u64>> {
        self.done.extend(self.open.into_iter().filter(|range| !range.is_empty()));
        merge(&mut self.done);
        self.done.shrink_to_fit();
        self.done
    }
}

/// Sorts ranges and joins adjacent ones.
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

/// Returns the blocks of the block bitmap, the inode bitmap and the table in a descriptor.
pub(crate) fn structures(superblock: &Superblock, descriptor: &GroupDescriptor) -> [Range<u64>; 3] {
    let run = |start: FsBlock, len: u32| start.0..start.0.saturating_add(u64::from(len));
    [
        run(descriptor.block_bitmap, 1),
        run(descriptor.inode_bitmap, 1),
        run(descriptor.inode_table, superblock.inode_table_blocks()),
    ]
}

pub(crate) fn is_inside(superblock: &Superblock, range: &Range<u64>) -> bool {
    range.start > u64::from(superblock.first_data_block) && range.end <= superblock.blocks_count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_touch_are_joined() {
        let mut ranges = vec![7..9, 0..3, 3..4, 8..8, 8..12, 20..21, 1..2];
        merge(&mut ranges);
        assert_eq!(ranges, [0..4, 7..12, 20..21]);
    }
}
