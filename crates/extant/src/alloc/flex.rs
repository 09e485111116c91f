//! Flexible groups: sums of the free blocks and inodes of their groups.
//!
//! # Invariants
//!
//! - F1. A flexible group is looked at before the first of its groups is loaded: its sums start
//!   from the stored counts and every change since is added.
//! - F2. Sums serve to choose between flexible groups. Nothing is promised by them.

use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};

use extant_base::GroupIndex;
use extant_format::group::GroupDescriptor;

use crate::volume::Volume;
use crate::zones::merge;

/// One flexible group, or one block group without the feature `flex_bg`.
pub(super) struct Flex {
    pub(super) clusters: AtomicI64,
    pub(super) inodes: AtomicI64,
    pub(super) directories: AtomicI64,
}

impl Flex {
    /// Adds up the `len` groups from `first` on. Damaged groups count as empty.
    pub(super) fn load(volume: &Volume, first: u32, len: u32) -> Flex {
        let superblock = volume.superblock();
        let end = first.saturating_add(len).min(superblock.group_count);
        let flex = Flex {
            clusters: AtomicI64::new(0),
            inodes: AtomicI64::new(0),
            directories: AtomicI64::new(0),
        };
        for group in (first..end).map(GroupIndex) {
            if let Ok(descriptor) = volume.believed_group(group) {
                flex.add(&descriptor);
            }
        }
        flex
    }

    pub(super) fn add(&self, descriptor: &GroupDescriptor) {
        self.clusters.fetch_add(i64::from(descriptor.free_clusters), Ordering::Relaxed);
        self.inodes.fetch_add(i64::from(descriptor.free_inodes), Ordering::Relaxed);
        self.directories.fetch_add(i64::from(descriptor.directories), Ordering::Relaxed);
    }
}

/// Returns the clusters of group `index` that hold the file system's own structures, sorted and
/// disjoint.
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
    // Offsets inside a group are below 2^32.
    clusters.into_iter().map(|range| range.start as u32..range.end as u32).collect()
}
