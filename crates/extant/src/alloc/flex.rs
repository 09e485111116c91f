//! Flexible groups: where the inode tables of their groups lie, and what is free in them together.
//!
//! Places of bitmaps and tables do not change during a mount, so they are looked up without a lock.
//!
//! # Invariants
//!
//! - F1. A flexible group is looked at before the first of its groups is loaded: its sums start from
//!   the stored counts and every change since is added.
//! - F2. Sums serve to choose between flexible groups. Nothing is promised by them.

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::GroupDescriptor;

use crate::error::Result;
use crate::volume::Volume;
use crate::zones::merge;

/// Elements of a [`Sparse`] that are made together.
const CHUNK: usize = 512;

/// A long array whose parts are made when first asked for.
pub(super) struct Sparse<T> {
    chunks: Vec<OnceLock<Box<[T]>>>,
    len: u32,
    make: fn(u32) -> T,
}

impl<T> Sparse<T> {
    /// `make` gets the index of the element.
    pub(super) fn new(len: u32, make: fn(u32) -> T) -> Sparse<T> {
        let chunks = (len as usize).div_ceil(CHUNK);
        Sparse { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), len, make }
    }

    pub(super) fn get(&self, at: u32) -> Option<&T> {
        let chunk = self.chunks.get(at as usize / CHUNK).filter(|_| at < self.len)?;
        let first = at - at % CHUNK as u32;
        let make =
            || (0..CHUNK as u32).map(|step| (self.make)(first.saturating_add(step))).collect();
        chunk.get_or_init(make).get(at as usize % CHUNK)
    }
}

/// One flexible group; without the feature, one group.
pub(super) struct Flex {
    first: u32,
    /// Inode tables of its groups; block 0 where the descriptor is not to be believed.
    tables: Vec<FsBlock>,
    pub(super) clusters: AtomicI64,
    pub(super) inodes: AtomicI64,
    pub(super) directories: AtomicI64,
}

impl Flex {
    /// Looks at the `len` groups from `first` on. Damaged ones count as empty.
    pub(super) fn load(volume: &Volume, first: u32, len: u32) -> Flex {
        let superblock = volume.superblock();
        let end = first.saturating_add(len).min(superblock.group_count);
        let mut flex = Flex {
            first,
            tables: Vec::with_capacity(end.saturating_sub(first) as usize),
            clusters: AtomicI64::new(0),
            inodes: AtomicI64::new(0),
            directories: AtomicI64::new(0),
        };
        for group in (first..end).map(GroupIndex) {
            let Ok(descriptor) = believed_group(volume, group) else {
                flex.tables.push(FsBlock(0));
                continue;
            };
            flex.tables.push(descriptor.inode_table);
            flex.add(&descriptor);
        }
        flex
    }

    fn add(&self, descriptor: &GroupDescriptor) {
        self.clusters.fetch_add(i64::from(descriptor.free_clusters), Ordering::Relaxed);
        self.inodes.fetch_add(i64::from(descriptor.free_inodes), Ordering::Relaxed);
        self.directories.fetch_add(i64::from(descriptor.directories), Ordering::Relaxed);
    }

    /// The inode table of one of its groups.
    pub(super) fn table(&self, group: GroupIndex) -> Option<FsBlock> {
        let table = self.tables.get(group.0.checked_sub(self.first)? as usize)?;
        Some(*table).filter(|table| table.0 != 0)
    }
}

/// The stored descriptor of a group, if what it says is possible.
pub(super) fn believed_group(volume: &Volume, group: GroupIndex) -> Result<GroupDescriptor> {
    use crate::error::{Fault, FsError};
    let descriptor = volume.stored_group(group)?;
    descriptor.check(group, volume.superblock()).map_err(|error| {
        let at = volume.descriptor_place(group).ok();
        FsError::corrupt("group descriptor", None, at, Fault::Decode(Box::new(error)))
    })?;
    Ok(descriptor)
}

/// The clusters of group `index` that hold the file system's own structures, sorted, apart.
pub(super) fn own_clusters(volume: &Volume, index: GroupIndex) -> Vec<Range<u32>> {
    let superblock = volume.superblock();
    let Some(first) = superblock.group_first_block(index) else { return Vec::new() };
    let end = first.0.saturating_add(u64::from(superblock.group_blocks(index)));
    let Some(zones) = volume.zones() else { return Vec::new() };
    let bits = superblock.cluster_bits();
    let mut clusters: Vec<_> = zones
        .within(&(first.0..end))
        .map(|part| (part.start - first.0) >> bits..((part.end - 1 - first.0) >> bits) + 1)
        .collect();
    merge(&mut clusters);
    // Inside the group: below 2^32.
    clusters.into_iter().map(|range| range.start as u32..range.end as u32).collect()
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

    #[test]
    fn a_sparse_array_ends_where_it_should() {
        let array = Sparse::new(513, |at| at * 2);
        assert_eq!(array.get(512), Some(&1024));
        assert_eq!((array.get(0), array.get(513)), (Some(&0), None));
        assert_eq!(Sparse::new(0, |at| at).get(0), None);
    }
}
