//! More groups, and a last group that becomes longer, while the file system is mounted.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::{GroupDescriptor, GroupFlags};
use extant_format::superblock::Superblock;

use super::entry::Needs;
use super::group::damaged;
use super::{Allocator, Half, Purpose};
use crate::editor::Editor;
use crate::error::Result;
use crate::run::Run;
use crate::volume::Volume;

impl Allocator {
    /// Makes room for groups up to number `groups`, and looks at the last flexible group that there
    /// is, whose sums get those of new groups (F1). Nothing else changes.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`](crate::FsError::InvalidArgument) past the largest number.
    pub(crate) fn make_room_for(&self, volume: &Volume, groups: u32) -> Result<()> {
        let most = volume.groups_max();
        self.flex(volume, GroupIndex(volume.superblock().group_count.saturating_sub(1)))?;
        self.cells.grow(groups, most);
        self.flexes.grow(groups.div_ceil(self.groups_per_flex), most);
        self.index.grow(groups, most);
        self.cell(GroupIndex(groups.saturating_sub(1))).map(drop)
    }

    /// Makes sure that [`grow`](Self::grow) will not fail: the last group is in memory, and part of
    /// the transaction. Two credits.
    ///
    /// # Errors
    ///
    /// Damage of the last group and device errors: nothing has changed.
    pub(crate) fn ready_to_grow(&self, txn: &mut Editor<'_>) -> Result<()> {
        let volume = txn.volume();
        let last = GroupIndex(volume.superblock().group_count.saturating_sub(1));
        let mut locked = self.enter(volume, last, Needs::CHANGED_BLOCKS)?;
        let ((cell, _), state) = locked.parts()?;
        if cell.is_bad(Half::Blocks) {
            return Err(damaged(last, "its block bitmap cannot be used"));
        }
        self.touch(txn, state, Half::Blocks)
    }

    /// Gives the last group so many `clusters`, lets `publish` make the new size known, and adds
    /// the groups of `new` to all sums. Their blocks are ready, and their descriptors are part of
    /// the transaction, as is the [last group](Self::ready_to_grow).
    ///
    /// # Errors
    ///
    /// None after [`ready_to_grow`](Self::ready_to_grow) in the same transaction; if there is one,
    /// nothing was published.
    pub(crate) fn grow(
        &self,
        volume: &Volume,
        superblock: &Superblock,
        clusters: u32,
        new: &[GroupDescriptor],
        publish: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let before = volume.superblock().group_count;
        let last = GroupIndex(before.saturating_sub(1));
        let mut locked = self.enter(volume, last, Needs::CHANGED_BLOCKS)?;
        let ((cell, flex), state) = locked.parts()?;
        // Whoever loads the group from now on finds its new length as well: the lock is held.
        let blocks = state.blocks_mut()?;
        publish()?;
        let added = blocks.lengthen(clusters);
        state.descriptor.free_clusters += added;
        if added > 0 && volume.has_uninit_groups() {
            state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        }
        flex.clusters.fetch_add(i64::from(added), Ordering::Relaxed);
        cell.forget_longest();
        let (mut free, mut inodes) = (u64::from(added), 0);
        for (group, descriptor) in (before..).map(GroupIndex).zip(new) {
            free += u64::from(descriptor.free_clusters);
            inodes += i64::from(descriptor.free_inodes);
            // Flexible groups that were not looked at yet find the new groups themselves.
            if group.0 / self.groups_per_flex == last.0 / self.groups_per_flex {
                flex.add(descriptor);
            }
        }
        drop(locked);
        self.streams.grow(superblock.group_count);
        self.free_inodes.fetch_add(inodes, Ordering::Relaxed);
        self.returns.fetch_add(1, Ordering::AcqRel); // S4
        self.space.grow(superblock, free);
        self.set_reserve(volume, superblock.reserved_blocks_count);
        Ok(())
    }

    /// Frees a block that was the file system's own, and is in no zone any more.
    ///
    /// # Errors
    ///
    /// As [`free`](Self::free).
    pub(crate) fn free_own(&self, txn: &mut Editor<'_>, block: FsBlock) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        if let Some((group, within)) = superblock.group_of_block(block) {
            let mut locked = self.enter(volume, group, Needs::CHANGED_BLOCKS)?;
            locked.state()?.blocks_mut()?.disown(within >> superblock.cluster_bits());
        }
        let len = superblock.cluster_ratio();
        self.free(txn, Run { start: block, len }, Purpose::Metadata)
    }
}
