//! Choice of the group for a new inode.
//!
//! The Orlov allocator of ext4: directories are spread, and their contents stay together. A
//! directory in the root, or in one marked as the top of a hierarchy, goes to any flexible group
//! with much free space; other directories stay near their parent unless it is crowded there; files
//! go to their directory's group.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/allocators.rst`; the limits are those of Linux ext4.

use std::sync::atomic::Ordering;

use extant_base::{GroupIndex, Ino};
use extant_format::hash::{HashVersion, name_hash};
use extant_format::inode::InodeFlags;

use super::Allocator;
use crate::editor::Editor;
use crate::error::Result;
use crate::node::InodeData;

/// Number of flexible groups examined for the best place of a directory.
const ORLOV_LOOKS: u32 = 128;

/// Free space and inodes of a flexible group, or the limits that one must meet.
#[derive(Clone, Copy)]
struct Sum {
    clusters: i64,
    inodes: i64,
    directories: i64,
}

impl Allocator {
    /// Returns all of `group_count` groups in the order in which to look for an inode, best first; some appear
    /// twice.
    pub(super) fn inode_groups(
        &self,
        group_count: u32,
        goal: GroupIndex,
        is_dir: bool,
    ) -> impl Iterator<Item = GroupIndex> + use<> {
        let groups = u64::from(group_count.max(1));
        let goal = u64::from(goal.0);
        let flex = u64::from(self.groups_per_flex);
        let flex_first = goal - goal % flex;
        // First the goal and its flexible group; then by growing steps, so that crowded neighbours
        // are passed quickly; then all in order.
        let near = (flex_first..(flex_first + flex).min(groups)).filter(move |at| *at != goal);
        let steps = if is_dir { 0 } else { 32 };
        let far = (0..steps).map(|step| (1u64 << step) * 2 - 1).take_while(move |at| *at < groups);
        let far = far.chain(0..groups).map(move |step| (goal + step) % groups);
        // Below the number of groups.
        std::iter::once(goal).chain(near).chain(far).map(|at| GroupIndex(at as u32))
    }

    /// Returns the best group for a new directory.
    pub(super) fn directory_goal(
        &self,
        txn: &Editor<'_>,
        parent: &InodeData,
        home: GroupIndex,
        name: &[u8],
    ) -> Result<GroupIndex> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let flex = self.groups_per_flex;
        let count = superblock.group_count.div_ceil(flex).max(1);
        let first_of = |at: u32| GroupIndex(at.saturating_mul(flex));
        let average = Sum {
            clusters: self.space.free() as i64 / i64::from(count),
            inodes: self.free_inodes.load(Ordering::Relaxed) / i64::from(count),
            directories: self.directories.load(Ordering::Relaxed).max(0) / i64::from(count),
        };
        // Below the number of flexible groups.
        let at = |start: u32, step: u32| {
            ((u64::from(start) + u64::from(step)) % u64::from(count)) as u32
        };
        let looks = count.min(ORLOV_LOOKS);
        let is_top = parent.ino == Ino::ROOT || parent.record.flags.contains(InodeFlags::TOPDIR);
        if is_top {
            // The start depends on the name, so that the same tree is laid out in the same way.
            let start = match name_hash(HashVersion::HalfMd4, &volume.hash_seed(), name) {
                Some(hash) if !name.is_empty() => hash.major,
                _ => (txn.log().random() >> 32) as u32,
            };
            let mut best: Option<(i64, u32)> = None;
            for at in (0..looks).map(|step| at(start % count, step)) {
                let sum = self.sum(txn, at)?;
                let roomy = sum.inodes > 0
                    && sum.inodes >= average.inodes
                    && sum.clusters >= average.clusters;
                if roomy && best.is_none_or(|(least, _)| sum.directories < least) {
                    best = Some((sum.directories, at));
                    if sum.directories <= 0 {
                        break;
                    }
                }
            }
            return Ok(best.map_or(home, |(_, at)| first_of(at)));
        }
        let whole = |per_group: u32| i64::from(per_group) * i64::from(flex);
        let bounds = Sum {
            clusters: average.clusters - whole(superblock.clusters_per_group) / 4,
            inodes: (average.inodes - whole(superblock.inodes_per_group) / 4).max(1),
            directories: average.directories + (whole(superblock.inodes_per_group) / 16).max(1),
        };
        let own = home.0 / flex;
        for at in (0..looks).map(|step| at(own, step)) {
            let sum = self.sum(txn, at)?;
            if sum.directories < bounds.directories
                && sum.inodes >= bounds.inodes
                && sum.clusters >= bounds.clusters
            {
                // Try the parent's flexible group, its own group first.
                return Ok(if at == own { home } else { first_of(at) });
            }
        }
        // Every place is crowded: take a group with at least the average number of free inodes.
        for at in (0..looks).map(|step| at(own, step)) {
            let sum = self.sum(txn, at)?;
            if sum.inodes > 0 && sum.inodes >= average.inodes {
                return Ok(if at == own { home } else { first_of(at) });
            }
        }
        Ok(home)
    }

    fn sum(&self, txn: &Editor<'_>, at: u32) -> Result<Sum> {
        let flex = self.flex_at(txn.volume(), at)?;
        Ok(Sum {
            clusters: flex.clusters.load(Ordering::Relaxed),
            inodes: flex.inodes.load(Ordering::Relaxed),
            directories: flex.directories.load(Ordering::Relaxed),
        })
    }
}
