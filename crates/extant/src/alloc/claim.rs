//! Taking blocks and inodes that somebody else has chosen: what a fast commit says is in use.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupFlags;

use super::group::damaged;
use super::{Allocator, Run, Touch};
use crate::error::{Fault, FsError, Result};
use crate::slot::BlockKind;
use crate::txn::Txn;

impl Allocator {
    /// Marks blocks as used, whether they were free or not; with clusters, all that the run
    /// touches.
    ///
    /// # Errors
    ///
    /// Damage: blocks outside the file system or in its own structures.
    pub(crate) fn claim_blocks(&self, txn: &mut Txn<'_>, run: Run) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        volume.check_blocks("blocks of a fast commit", None, run.start, u64::from(run.len))?;
        let bits = superblock.cluster_bits();
        let (mut at, end) = (run.start.0, run.start.0 + u64::from(run.len));
        while at < end {
            let outside = || damaged(GroupIndex(0), "claimed blocks lie in no group");
            let (group, offset) = superblock.group_of_block(FsBlock(at)).ok_or_else(outside)?;
            let here = u64::from(superblock.group_blocks(group) - offset).min(end - at);
            // Below the size of a group: fits.
            let range = (offset >> bits)..((offset + here as u32 - 1) >> bits) + 1;
            let mut locked = self.lock(volume, group)?;
            let state = locked.state()?;
            let blocks = state.blocks(volume)?;
            if blocks.own.iter().any(|own| own.start < range.end && range.start < own.end) {
                let rule = "a fast commit claims the file system's own structures";
                return Err(FsError::corrupt("block bitmap", None, FsBlock(at), Fault::Rule(rule)));
            }
            let free = blocks.stored.view().count_clear(range.clone());
            if free > 0 {
                self.touch(txn, state, Touch::Blocks)?;
                let blocks = state.blocks(volume)?;
                blocks.stored.set_range(range.clone());
                blocks.taken.set_range(range);
                state.descriptor.free_clusters =
                    state.descriptor.free_clusters.saturating_sub(free);
                state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
                self.free_clusters.fetch_sub(i64::from(free), Ordering::Relaxed);
            }
            at += here;
        }
        Ok(())
    }

    /// Marks an inode as used; false when it was already.
    ///
    /// # Errors
    ///
    /// Damage: no ordinary inode has that number.
    pub(crate) fn claim_inode(&self, txn: &mut Txn<'_>, ino: Ino, is_dir: bool) -> Result<bool> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let fail = |rule| FsError::corrupt("inode bitmap", ino, None, Fault::Rule(rule));
        let place = superblock.group_of_inode(ino).filter(|_| ino >= superblock.first_inode);
        let (group, bit) = place.ok_or_else(|| fail("a fast commit makes a reserved inode"))?;
        let per_group = superblock.inodes_per_group;
        let virgin = {
            let mut locked = self.lock(volume, group)?;
            let state = locked.state()?;
            if state.inodes(volume)?.stored.view().get(bit) {
                return Ok(false);
            }
            self.touch(txn, state, Touch::Inodes)?;
            state.inodes(volume)?.stored.set(bit);
            let descriptor = &mut state.descriptor;
            descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
            descriptor.directories += u32::from(is_dir);
            let mut virgin = Vec::new();
            if volume.has_uninit_groups() {
                let used_before = per_group.saturating_sub(descriptor.itable_unused);
                descriptor.flags.remove(GroupFlags::INODE_UNINIT);
                let unused = per_group - bit - 1;
                descriptor.itable_unused = descriptor.itable_unused.min(unused);
                // Inodes that are passed over become "used before" as well, so their blocks must
                // not hold what was there.
                let per_block =
                    volume.block_size().bytes() / u32::from(superblock.inode_size).max(1);
                for at in (used_before..=bit).step_by(per_block.max(1) as usize).chain([bit]) {
                    virgin.extend(self.virgin_block(volume, &state.descriptor, at, used_before));
                }
                virgin.sort_unstable();
                virgin.dedup();
            }
            virgin
        };
        self.free_inodes.fetch_sub(1, Ordering::Relaxed);
        self.directories.fetch_add(i64::from(is_dir), Ordering::Relaxed);
        for block in virgin {
            txn.create_block(block, BlockKind::Plain, |_| ())?;
        }
        Ok(true)
    }

    /// Whether an inode number is in use.
    pub(crate) fn has_inode(&self, txn: &Txn<'_>, ino: Ino) -> Result<bool> {
        let volume = txn.volume();
        let Some((group, bit)) = volume.superblock().group_of_inode(ino) else { return Ok(false) };
        let mut locked = self.lock(volume, group)?;
        Ok(locked.state()?.inodes(volume)?.stored.view().get(bit))
    }
}
