//! Taking and freeing inodes.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_format::group::GroupFlags;
use extant_format::inode::FileKind;

use super::group::GroupState;
use super::{Allocator, Half, Locked};
use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::node::InodeData;
use crate::slot::BlockKind;
use crate::volume::Volume;

impl Allocator {
    /// Takes a free inode number for a new inode of `kind` in directory `parent`. A number that
    /// this transaction freed may be reused at once: both states go through the same journal, in
    /// order.
    ///
    /// A block of the inode table that never held an inode is filled with zeros here, because its
    /// contents on the device are undefined (P62).
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: nothing has changed. Damage and device errors of groups do not count
    /// while other groups have inodes.
    pub(crate) fn allocate_inode(
        &self,
        txn: &mut Editor<'_>,
        parent: &InodeData,
        kind: FileKind,
        name: &[u8],
    ) -> Result<Ino> {
        let volume = txn.volume();
        let no_space = FsError::NoSpace { what: "inodes", wanted: 1, free: 0 };
        if self.free_inodes.load(Ordering::Relaxed) <= 0 {
            return Err(no_space);
        }
        let is_dir = kind == FileKind::Directory;
        let home = volume.superblock().group_of_inode(parent.ino);
        let home = home.map_or(GroupIndex(0), |(group, _)| group);
        let goal = if is_dir { self.directory_goal(txn, parent, home, name)? } else { home };
        let mut obstacle = None;
        for group in self.inode_groups(goal, is_dir) {
            if let Some(ino) = self.try_inode(txn, volume, group, is_dir, &mut obstacle)? {
                return Ok(ino);
            }
        }
        Err(obstacle.unwrap_or(no_space))
    }

    /// Takes an inode of this group if one is free. The errors are those of the journal.
    fn try_inode(
        &self,
        txn: &mut Editor<'_>,
        volume: &Volume,
        group: GroupIndex,
        is_dir: bool,
        obstacle: &mut Option<FsError>,
    ) -> Result<Option<Ino>> {
        let cell = self.cell(group)?;
        if cell.free_inodes.load(Ordering::Relaxed) == 0 || cell.is_bad(Half::Inodes) {
            return Ok(None);
        }
        let superblock = volume.superblock();
        let reserved = match group.0 {
            0 => superblock.first_inode.0.saturating_sub(1),
            _ => 0,
        };
        let mut locked = match self.lock(volume, group) {
            Ok(locked) => locked,
            Err(error) => {
                obstacle.get_or_insert(error);
                return Ok(None);
            }
        };
        let Some(bit) = self.find_inode(volume, &mut locked, reserved, obstacle)? else {
            return Ok(None);
        };
        // The value is at most the number of inodes, which fits.
        let ino = Ino(group.0 * superblock.inodes_per_group + bit + 1);
        let earlier = volume.nodes().get(&ino);
        if earlier.is_some_and(|earlier| !earlier.life().is_gone()) {
            let (place, state) = locked.parts()?;
            let fault = Fault::Rule("an inode that is in use is free there");
            let error = FsError::corrupt("inode bitmap", ino, state.descriptor.inode_bitmap, fault);
            obstacle.get_or_insert(self.report(place.0, Half::Inodes as u8, error));
            return Ok(None);
        }
        self.take_inode(txn, &mut locked, bit, is_dir)?;
        Ok(Some(ino))
    }

    /// Takes inode `bit` of a locked group; the inode is free.
    pub(super) fn take_inode(
        &self,
        txn: &mut Editor<'_>,
        locked: &mut Locked<'_>,
        bit: u32,
        is_dir: bool,
    ) -> Result<()> {
        let volume = txn.volume();
        let per_group = volume.superblock().inodes_per_group;
        let (place, state) = locked.parts()?;
        self.touch(txn, state, Half::Inodes)?;
        if volume.has_uninit_groups() && state.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            // A group with inodes in use must not have the flag BLOCK_UNINIT.
            self.blocks_of(volume, place.0, state)?;
            self.touch(txn, state, Half::Blocks)?;
            state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        }
        let used = state.inodes_ever_used(volume, per_group);
        for block in new_table_blocks(volume, state, used, bit) {
            txn.create_block(block, BlockKind::Plain, |_| ())?;
        }
        // The caller changes the inode next and must not fail then, so its block is loaded and
        // claimed here.
        let at = table_block(volume, state, bit);
        let slot = volume.slot(at);
        slot.get(|| volume.load_block(at))?;
        txn.claim_slot(&slot)?;
        self.inodes_of(volume, place.0, state)?.take(bit);
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
        descriptor.directories += u32::from(is_dir);
        if volume.has_uninit_groups() {
            descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            let end = bit + u32::from(!sabotage("extant.alloc.last-inode-unused"));
            descriptor.itable_unused = per_group.saturating_sub(used.max(end));
        }
        self.count_inode(locked, -1, i64::from(is_dir));
        Ok(())
    }

    /// Returns a free inode of a locked group, from bit `from` on, with everything loaded that
    /// taking it needs.
    fn find_inode(
        &self,
        volume: &Volume,
        locked: &mut Locked<'_>,
        from: u32,
        obstacle: &mut Option<FsError>,
    ) -> Result<Option<u32>> {
        let (place, state) = locked.parts()?;
        if state.descriptor.free_inodes == 0 {
            return Ok(None);
        }
        let found = self.inodes_of(volume, place.0, state).map(|inodes| inodes.find(from));
        let found = found.and_then(|bit| {
            let flags = state.descriptor.flags;
            if volume.has_uninit_groups() && flags.contains(GroupFlags::BLOCK_UNINIT) {
                self.blocks_of(volume, place.0, state)?;
            }
            Ok(bit)
        });
        Ok(found.unwrap_or_else(|error| {
            obstacle.get_or_insert(error);
            None
        }))
    }

    /// Frees an inode number. The caller has changed the inode's record to "deleted" before.
    ///
    /// # Errors
    ///
    /// Damage, with nothing changed: the inode is reserved. An inode that is free already is damage
    /// of the bitmap: it is reported, and the group gives no inodes any more (B5).
    pub(crate) fn free_inode(&self, txn: &mut Editor<'_>, ino: Ino, is_dir: bool) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let fail = |rule| FsError::corrupt("inode bitmap", ino, None, Fault::Rule(rule));
        let place = superblock.group_of_inode(ino).filter(|_| ino >= superblock.first_inode);
        let (group, bit) = place.ok_or_else(|| fail("a reserved inode is freed"))?;
        let lost = |error: FsError| match error.family() {
            Family::Damage => Ok(()), // B5
            _ => Err(error),
        };
        let mut locked = match self.lock(volume, group) {
            Ok(locked) => locked,
            Err(error) => return lost(error),
        };
        if locked.cell.is_bad(Half::Inodes) {
            return Ok(());
        }
        let (place, state) = locked.parts()?;
        match self.inodes_of(volume, place.0, state) {
            Ok(inodes) if inodes.is_used(bit) => {}
            Ok(_) => {
                let error = fail("an inode is freed that is free");
                self.report(place.0, Half::Inodes as u8, error);
                return Ok(());
            }
            Err(error) => return lost(error),
        }
        self.touch(txn, state, Half::Inodes)?;
        self.inodes_of(volume, place.0, state)?.free(bit);
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes += 1;
        let gone = u32::from(is_dir && !sabotage("extant.alloc.directories-not-counted-down"));
        descriptor.directories = descriptor.directories.saturating_sub(gone);
        self.count_inode(&locked, 1, -i64::from(is_dir));
        Ok(())
    }

    pub(super) fn count_inode(&self, locked: &Locked<'_>, free: i64, directories: i64) {
        self.free_inodes.fetch_add(free, Ordering::Relaxed);
        locked.flex.inodes.fetch_add(free, Ordering::Relaxed);
        if directories != 0 {
            self.directories.fetch_add(directories, Ordering::Relaxed);
            locked.flex.directories.fetch_add(directories, Ordering::Relaxed);
        }
    }
}

/// Returns the block of the inode table that holds inode `bit`.
fn table_block(volume: &Volume, state: &GroupState, bit: u32) -> FsBlock {
    let inode_bytes = u32::from(volume.superblock().inode_size).max(1);
    let per_block = (volume.block_size().bytes() / inode_bytes).max(1);
    FsBlock(state.descriptor.inode_table.0.saturating_add(u64::from(bit / per_block)))
}

/// Returns the blocks of the inode table that have not held an inode yet and will when inode `bit`
/// is in use; the first `used` inodes of the table were used before. Blocks that lazy
/// initialisation zeroed meanwhile are included.
pub(super) fn new_table_blocks(
    volume: &Volume,
    state: &GroupState,
    used: u32,
    bit: u32,
) -> impl Iterator<Item = FsBlock> + use<> {
    let inode_bytes = u32::from(volume.superblock().inode_size).max(1);
    let per_block = (volume.block_size().bytes() / inode_bytes).max(1);
    let table = state.descriptor.inode_table;
    // Inodes of a group are used in order, so this is one block at most.
    let blocks = used.div_ceil(per_block)..bit / per_block + 1;
    blocks.filter_map(move |at| table.checked_add(u64::from(at)))
}
