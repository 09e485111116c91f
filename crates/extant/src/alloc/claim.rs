//! Taking blocks and inodes at given places: those that a fast commit says are in use.

use std::sync::atomic::Ordering;

use extant_base::Ino;
use extant_format::group::GroupFlags;

use super::blocks::each_group;
use super::entry::Needs;
use super::inodes::Tables;
use super::{Allocator, Half, Run};
use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};

impl Allocator {
    /// Marks blocks as used, whether they were free or not; with `bigalloc`, all clusters that the
    /// run touches.
    ///
    /// # Errors
    ///
    /// Damage: blocks outside the file system or in its own structures, or blocks that are pinned.
    pub(crate) fn claim_blocks(&self, txn: &mut Editor<'_>, run: Run) -> Result<()> {
        let volume = txn.volume();
        volume.check_blocks("blocks of a fast commit", None, run.start, u64::from(run.len))?;
        each_group(volume, run, |group, range| {
            let mut locked = self.enter(volume, group, Needs::CHANGED_BLOCKS)?;
            let (place, state) = locked.parts()?;
            let blocks = state.blocks_mut()?;
            if blocks.holds_own(range.clone()) {
                let rule = "a fast commit claims the file system's own structures";
                let fault = Fault::Rule(rule);
                return Err(FsError::corrupt("block bitmap", None, run.start, fault));
            }
            if blocks.count_pinned(range.clone()) > 0 {
                let rule = "blocks are claimed that hold data on its way to a file";
                return Err(FsError::corrupt("block bitmap", None, run.start, Fault::Rule(rule)));
            }
            let free = blocks.count_free(range.clone());
            if free > 0 {
                self.touch(txn, state, Half::Blocks)?;
                let blocks = state.blocks_mut()?;
                // A later commit would otherwise release these clusters as free.
                let waiting = blocks.unfree(&range);
                blocks.take(range);
                let descriptor = &mut state.descriptor;
                descriptor.free_clusters = descriptor.free_clusters.saturating_sub(free);
                descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
                self.space.seize(free, waiting);
                place.1.clusters.fetch_sub(i64::from(free), Ordering::Relaxed);
            }
            Ok(())
        })
    }

    /// Marks an inode as used; the inode may be used already.
    ///
    /// # Errors
    ///
    /// Damage: no ordinary inode has that number.
    pub(crate) fn claim_inode(&self, txn: &mut Editor<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let fail = |rule| FsError::corrupt("inode bitmap", ino, None, Fault::Rule(rule));
        let place = superblock.group_of_inode(ino).filter(|_| ino >= superblock.first_inode);
        let (group, bit) = place.ok_or_else(|| fail("a fast commit makes a reserved inode"))?;
        if self.has_inode(txn, ino)? {
            return Ok(());
        }
        let mut tables = Tables::default();
        loop {
            let mut locked = self.enter(volume, group, Needs::NEW_INODE)?;
            let wanted = self.take_inode(txn, &mut locked, bit, is_dir, &tables)?;
            drop(locked);
            let Some(wanted) = wanted else { return Ok(()) };
            tables = Tables::bring(volume, wanted)?;
        }
    }

    /// Returns whether an inode number is in use.
    pub(crate) fn has_inode(&self, txn: &Editor<'_>, ino: Ino) -> Result<bool> {
        let volume = txn.volume();
        let Some((group, bit)) = volume.superblock().group_of_inode(ino) else { return Ok(false) };
        let mut locked = self.enter(volume, group, Needs::INODES)?;
        Ok(locked.state()?.inodes_mut()?.is_used(bit))
    }
}
