//! Which group a new inode goes to; taking and freeing inodes.
//!
//! Directories spread, what is in them stays together: Orlov's way, as ext4 has it. A directory in
//! the root (or in one marked as the top of a hierarchy) goes to a group of its own liking, other
//! directories near their parent unless it is crowded there, files to their directory's group.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/allocators.rst`; the limits are those of Linux ext4.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupFlags;
use extant_format::hash::{HashVersion, name_hash};
use extant_format::inode::{FileKind, InodeFlags};

use super::group::damaged;
use super::{Allocator, Touch};
use crate::error::{Fault, FsError, Result};
use crate::inode::InodeData;
use crate::slot::BlockKind;
use crate::txn::Txn;
use crate::volume::Volume;

/// Flexible groups that are looked at for the best place of a directory, before any place will do.
const ORLOV_LOOKS: u32 = 64;

impl Allocator {
    /// Takes a free inode number for a new inode of `kind` in directory `parent`.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: nothing has changed.
    pub(crate) fn allocate_inode(
        &self,
        txn: &mut Txn<'_>,
        parent: &InodeData,
        kind: FileKind,
        name: &[u8],
    ) -> Result<Ino> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let no_space = FsError::NoSpace { what: "inodes", wanted: 1, free: 0 };
        if self.free_inodes.load(Ordering::Relaxed) <= 0 {
            return Err(no_space);
        }
        let is_dir = kind == FileKind::Directory;
        let parent_group = superblock.group_of_inode(parent.ino).map_or(0, |(group, _)| group.0);
        let goal = match is_dir {
            true => self.directory_goal(txn, parent, parent_group, name)?,
            false => parent_group,
        };
        let groups = superblock.group_count;
        let mut first_error = None;
        // Near the goal by growing steps first, so that crowded neighbours are passed quickly; then
        // every group in order.
        let mut quadratic = Vec::with_capacity(34);
        quadratic.push(goal);
        if !is_dir {
            let (mut at, mut step) = (goal, 1u32);
            while step < groups {
                at = (at + step) % groups;
                quadratic.push(at);
                step <<= 1;
            }
        }
        let linear = (0..groups).map(|step| (goal + step) % groups);
        for group in quadratic.into_iter().chain(linear) {
            match self.try_inode(txn, volume, GroupIndex(group), is_dir) {
                Ok(Some(ino)) => return Ok(ino),
                Ok(None) => {}
                Err(error @ (FsError::Corrupt { .. } | FsError::CutShort { .. })) => {
                    first_error.get_or_insert(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(first_error.unwrap_or(no_space))
    }

    fn try_inode(
        &self,
        txn: &mut Txn<'_>,
        volume: &Volume,
        group: GroupIndex,
        is_dir: bool,
    ) -> Result<Option<Ino>> {
        if self.cell(group)?.free_inodes_hint.load(Ordering::Relaxed) == 0 {
            return Ok(None);
        }
        let superblock = volume.superblock();
        let per_group = superblock.inodes_per_group;
        let reserved = match group.0 {
            0 => superblock.first_inode.0.saturating_sub(1),
            _ => 0,
        };
        let virgin;
        let ino;
        {
            let mut locked = self.lock(volume, group)?;
            let state = locked.state()?;
            if state.bad || state.descriptor.free_inodes == 0 {
                return Ok(None);
            }
            let inodes = state.inodes(volume)?;
            let from = inodes.hint.max(reserved);
            let Some(bit) = inodes.stored.view().first_clear(from..per_group) else {
                return Ok(None);
            };
            self.touch(txn, state, Touch::Inodes)?;
            let inodes = state.inodes(volume)?;
            inodes.stored.set(bit);
            inodes.hint = bit + 1;
            let descriptor = &mut state.descriptor;
            descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
            descriptor.directories += u32::from(is_dir);
            let used_before = match volume.has_uninit_groups() {
                true => per_group.saturating_sub(descriptor.itable_unused),
                false => per_group,
            };
            virgin = self.virgin_block(volume, descriptor, bit, used_before);
            if volume.has_uninit_groups() {
                descriptor.flags.remove(GroupFlags::INODE_UNINIT);
                let unused = per_group - bit - 1;
                descriptor.itable_unused = descriptor.itable_unused.min(unused);
            }
            // Below the number of inodes, which fits.
            ino = Ino(group.0 * per_group + bit + 1);
        }
        self.free_inodes.fetch_sub(1, Ordering::Relaxed);
        self.directories.fetch_add(i64::from(is_dir), Ordering::Relaxed);
        if let Some(block) = virgin {
            // Never written: what is there now is not inodes (P62).
            txn.create_block(block, BlockKind::Plain, |_| ())?;
        }
        Ok(Some(ino))
    }

    /// The table block of inode `bit`, if no inode in it was ever used and nobody zeroed it.
    fn virgin_block(
        &self,
        volume: &Volume,
        descriptor: &extant_format::group::GroupDescriptor,
        bit: u32,
        used_before: u32,
    ) -> Option<FsBlock> {
        let superblock = volume.superblock();
        if !volume.has_uninit_groups() || descriptor.flags.contains(GroupFlags::INODE_ZEROED) {
            return None;
        }
        let per_block = volume.block_size().bytes() / u32::from(superblock.inode_size).max(1);
        let first = bit - bit % per_block.max(1);
        if first < used_before {
            return None;
        }
        descriptor.inode_table.checked_add(u64::from(first / per_block.max(1)))
    }

    /// Gives an inode number back. Its record has been changed to "deleted" by the caller.
    ///
    /// # Errors
    ///
    /// Damage: the inode is free already, or reserved.
    pub(crate) fn free_inode(&self, txn: &mut Txn<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let fail = |rule| FsError::corrupt("inode bitmap", ino, None, Fault::Rule(rule));
        let place = superblock.group_of_inode(ino).filter(|_| ino >= superblock.first_inode);
        let (group, bit) = place.ok_or_else(|| fail("a reserved inode is freed"))?;
        let mut locked = self.lock(volume, group)?;
        let state = locked.state()?;
        if !state.inodes(volume)?.stored.view().get(bit) {
            return Err(fail("an inode is freed that is free"));
        }
        self.touch(txn, state, Touch::Inodes)?;
        let inodes = state.inodes(volume)?;
        inodes.stored.clear(bit);
        inodes.hint = inodes.hint.min(bit);
        state.descriptor.free_inodes += 1;
        if is_dir {
            state.descriptor.directories = state.descriptor.directories.saturating_sub(1);
        }
        self.free_inodes.fetch_add(1, Ordering::Relaxed);
        self.directories.fetch_sub(i64::from(is_dir), Ordering::Relaxed);
        Ok(())
    }

    /// The group where a new directory would best be.
    fn directory_goal(
        &self,
        txn: &Txn<'_>,
        parent: &InodeData,
        parent_group: u32,
        name: &[u8],
    ) -> Result<u32> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let groups = superblock.group_count.max(1);
        let flex = superblock.groups_per_flex().clamp(1, groups);
        let flex_count = groups.div_ceil(flex);
        let flex_of = |at: u32| at % flex_count;
        let count = i64::from(flex_count);
        let average_inodes = self.free_inodes.load(Ordering::Relaxed) / count;
        let average_clusters = self.free_clusters.load(Ordering::Relaxed) / count;
        let average_dirs = self.directories.load(Ordering::Relaxed).max(0) / count;
        let is_top = parent.ino == Ino::ROOT || parent.record.flags.contains(InodeFlags::TOPDIR);
        let first_of = |at: u32| flex_of(at) * flex;
        if is_top {
            let start = self.top_start(txn, volume, name) % flex_count;
            let mut best: Option<(u64, u32)> = None;
            for step in 0..flex_count.min(ORLOV_LOOKS) {
                let at = flex_of(start + step);
                let sum = self.sum(volume, first_of(at), flex)?;
                if sum.inodes == 0
                    || (sum.inodes as i64) < average_inodes
                    || (sum.clusters as i64) < average_clusters
                {
                    continue;
                }
                if best.is_none_or(|(dirs, _)| sum.directories < dirs) {
                    best = Some((sum.directories, first_of(at)));
                }
            }
            return Ok(best.map_or(parent_group, |(_, group)| group));
        }
        let per_flex_inodes = i64::from(superblock.inodes_per_group) * i64::from(flex);
        let per_flex_clusters = i64::from(superblock.clusters_per_group) * i64::from(flex);
        let most_dirs = average_dirs + per_flex_inodes / 16;
        let least_inodes = (average_inodes - per_flex_inodes / 4).max(1);
        let least_clusters = average_clusters - per_flex_clusters / 4;
        for step in 0..flex_count.min(ORLOV_LOOKS) {
            let at = flex_of(parent_group / flex + step);
            let sum = self.sum(volume, first_of(at), flex)?;
            if (sum.directories as i64) < most_dirs
                && (sum.inodes as i64) >= least_inodes
                && (sum.clusters as i64) >= least_clusters
            {
                // Within the flexible group, the parent's own group if it is that one.
                let same = at == parent_group / flex;
                return Ok(if same { parent_group } else { first_of(at) });
            }
        }
        Ok(parent_group)
    }

    /// Where the search for the place of a top directory starts: by its name, so that the same tree
    /// is laid out the same way.
    fn top_start(&self, txn: &Txn<'_>, volume: &Volume, name: &[u8]) -> u32 {
        match name_hash(HashVersion::HalfMd4, &volume.hash_seed(), name) {
            Some(hash) if !name.is_empty() => hash.major,
            _ => (txn.writer().random() >> 32) as u32,
        }
    }

    fn sum(&self, volume: &Volume, first: u32, len: u32) -> Result<Sum> {
        let mut sum = Sum::default();
        for group in first..first.saturating_add(len).min(self.group_count) {
            let cell = self.cell(GroupIndex(group))?;
            if cell.free_hint.load(Ordering::Relaxed) == u32::MAX {
                drop(self.lock(volume, GroupIndex(group))?);
            }
            sum.clusters += u64::from(cell.free_hint.load(Ordering::Relaxed));
            sum.inodes += u64::from(cell.free_inodes_hint.load(Ordering::Relaxed));
            sum.directories += u64::from(cell.directories_hint.load(Ordering::Relaxed));
        }
        Ok(sum)
    }

    /// The first block of the inode table of `group`.
    pub(crate) fn inode_table(&self, volume: &Volume, group: GroupIndex) -> Result<FsBlock> {
        let mut locked = self.lock(volume, group)?;
        let table = locked.state()?.descriptor.inode_table;
        if table.0 == 0 {
            return Err(damaged(group, "the inode table is at block 0"));
        }
        Ok(table)
    }
}

/// What a flexible group has.
#[derive(Clone, Copy, Default)]
struct Sum {
    clusters: u64,
    inodes: u64,
    directories: u64,
}
