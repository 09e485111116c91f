//! Taking blocks and inodes that somebody else has chosen: what a fast commit says is in use.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupFlags;

use super::group::damaged;
use super::inodes::new_table_blocks;
use super::{Allocator, Half, Run};
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
            let (place, state) = locked.parts()?;
            let blocks = self.blocks_of(volume, place, state)?;
            if blocks.holds_own(range.clone()) {
                let rule = "a fast commit claims the file system's own structures";
                return Err(FsError::corrupt("block bitmap", None, FsBlock(at), Fault::Rule(rule)));
            }
            let free = blocks.count_free(range.clone());
            if free > 0 {
                self.touch(txn, state, Half::Blocks)?;
                self.blocks_of(volume, place, state)?.take(range);
                let descriptor = &mut state.descriptor;
                descriptor.free_clusters = descriptor.free_clusters.saturating_sub(free);
                descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
                self.free_clusters.fetch_sub(i64::from(free), Ordering::Relaxed);
                place.1.clusters.fetch_sub(i64::from(free), Ordering::Relaxed);
            }
            at += here;
        }
        Ok(())
    }

    /// Marks an inode as used, which may be used already.
    ///
    /// # Errors
    ///
    /// Damage: no ordinary inode has that number.
    pub(crate) fn claim_inode(&self, txn: &mut Txn<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let fail = |rule| FsError::corrupt("inode bitmap", ino, None, Fault::Rule(rule));
        let place = superblock.group_of_inode(ino).filter(|_| ino >= superblock.first_inode);
        let (group, bit) = place.ok_or_else(|| fail("a fast commit makes a reserved inode"))?;
        let per_group = superblock.inodes_per_group;
        let mut locked = self.lock(volume, group)?;
        let (place, state) = locked.parts()?;
        if self.inodes_of(volume, place.0, state)?.is_used(bit) {
            return Ok(());
        }
        self.touch(txn, state, Half::Inodes)?;
        if volume.has_uninit_groups() && state.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            self.blocks_of(volume, place, state)?;
            self.touch(txn, state, Half::Blocks)?;
            state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        }
        let used = state.inodes_ever_used(volume, per_group);
        for block in new_table_blocks(volume, state, used, bit) {
            txn.create_block(block, BlockKind::Plain, |_| ())?;
        }
        self.inodes_of(volume, place.0, state)?.take(bit);
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
        descriptor.directories += u32::from(is_dir);
        if volume.has_uninit_groups() {
            descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            descriptor.itable_unused = per_group.saturating_sub(used.max(bit + 1));
        }
        self.count_inode(&locked, -1, i64::from(is_dir));
        Ok(())
    }

    /// Whether an inode number is in use.
    pub(crate) fn has_inode(&self, txn: &Txn<'_>, ino: Ino) -> Result<bool> {
        let volume = txn.volume();
        let Some((group, bit)) = volume.superblock().group_of_inode(ino) else { return Ok(false) };
        let mut locked = self.lock(volume, group)?;
        let (place, state) = locked.parts()?;
        Ok(self.inodes_of(volume, place.0, state)?.is_used(bit))
    }
}
