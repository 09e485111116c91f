//! The superblocks of a file system that grows while it is mounted.
//!
//! # Rules
//!
//! - G1. What a reader got from one superblock stays valid with each later one: groups, blocks and
//!   inodes are added, and those that there were stay where they are.
//! - G2. Everything that may be asked about what a step adds is there before the step is published,
//!   by one store. A reader of the number sees all of it, and needs no lock.
//! - G3. Only one thread publishes at a time: the one that [grows](crate::Fs::grow).

use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_format::superblock::Superblock;
use extant_layout::blocks_max;

use super::Volume;
use crate::error::{FsError, Result};
use crate::sparse::Sparse;
use crate::zones::{GROUPS_MAX, STEPS_MAX};

/// The superblocks since the mount.
pub(super) struct Grown {
    /// Number of steps that were published.
    count: AtomicU32,
    superblocks: Sparse<OnceLock<Box<Superblock>>>,
}

impl Grown {
    pub(super) fn new() -> Grown {
        let superblocks = Sparse::new(STEPS_MAX, |_| OnceLock::new());
        Grown { count: AtomicU32::new(0), superblocks }
    }

    /// Returns the superblock of the latest step; `None` before the first.
    pub(super) fn superblock(&self) -> Option<&Superblock> {
        match self.count.load(Ordering::Acquire) {
            0 => None,
            count => self.of_step(count),
        }
    }

    #[cold]
    fn of_step(&self, count: u32) -> Option<&Superblock> {
        Some(self.superblocks.get(count - 1)?.get()?)
    }
}

impl Volume {
    /// Makes `superblock` the state of the file system for everybody: a step that adds groups with
    /// metadata in `fixed` (G2). Waits for nothing.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] after [`STEPS_MAX`] steps; nothing has changed then.
    pub(crate) fn publish(&self, superblock: Superblock, fixed: &[Range<u64>]) -> Result<()> {
        let what = "growth: too many steps during one mount; mount the file system anew";
        let number = self.grown.count.load(Ordering::Acquire);
        let place = self.grown.superblocks.get(number);
        let place = place.ok_or(FsError::InvalidArgument { what })?;
        let blocks = self.block_count()..superblock.blocks_count;
        self.tables.grow(superblock.group_count, self.groups_max());
        if let Some(zones) = self.zones() {
            zones.add_layer(blocks, fixed.to_vec());
        }
        let _ = place.set(Box::new(superblock));
        self.grown.count.store(number + 1, Ordering::Release);
        Ok(())
    }

    /// Returns the largest number of groups that the file system can ever have.
    pub(crate) fn groups_max(&self) -> u32 {
        let superblock = &self.superblock;
        let groups = blocks_max(superblock) / u64::from(superblock.blocks_per_group).max(1);
        u32::try_from(groups.saturating_add(1)).unwrap_or(u32::MAX).min(GROUPS_MAX)
    }
}
