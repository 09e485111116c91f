//! Taking and freeing inodes.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_format::group::GroupFlags;
use extant_format::inode::FileKind;

use super::entry::{Locked, Needs, with_space};
use super::group::GroupState;
use super::{Allocator, Half};
use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::node::InodeData;
use crate::slot::{BlockKind, Slot};
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
        let group_count = volume.superblock().group_count;
        for group in self.inode_groups(group_count, goal, is_dir) {
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
        let mut tables = Tables::default();
        // A repetition means that the table blocks of the free inode were not in memory, or that
        // another thread took it meanwhile.
        loop {
            let mut locked = match self.enter(volume, group, Needs::NEW_INODE) {
                Ok(locked) => locked,
                Err(error) => {
                    obstacle.get_or_insert(error);
                    return Ok(None);
                }
            };
            let (place, state) = locked.parts()?;
            if state.descriptor.free_inodes == 0 {
                return Ok(None);
            }
            let Some(bit) = state.inodes_mut()?.find(reserved) else { return Ok(None) };
            // The value is at most the number of inodes, which fits.
            let ino = Ino(group.0 * superblock.inodes_per_group + bit + 1);
            let is_alive = volume.nodes().look(&ino, |earlier| !earlier.life().is_gone());
            if is_alive == Some(true) {
                let fault = Fault::Rule("an inode that is in use is free there");
                let at = state.descriptor.inode_bitmap;
                let error = FsError::corrupt("inode bitmap", ino, at, fault);
                obstacle.get_or_insert(self.report(place.0, Half::Inodes as u8, error));
                return Ok(None);
            }
            let wanted = self.take_inode(txn, &mut locked, bit, is_dir, &tables)?;
            drop(locked);
            let Some(wanted) = wanted else { return Ok(Some(ino)) };
            tables = Tables::bring(volume, wanted)?;
        }
    }

    /// Takes inode `bit` of a group that was entered for a new inode; the inode is free. If
    /// `tables` are not the blocks of the inode table that it needs, nothing is changed, and those
    /// are returned.
    pub(super) fn take_inode(
        &self,
        txn: &mut Editor<'_>,
        locked: &mut Locked<'_>,
        bit: u32,
        is_dir: bool,
        tables: &Tables,
    ) -> Result<Option<TableBlocks>> {
        let volume = txn.volume();
        let per_group = volume.superblock().inodes_per_group;
        let (_, state) = locked.parts()?;
        let used = state.inodes_ever_used(volume, per_group);
        let wanted = TableBlocks::of(volume, state, used, bit);
        let at_hand;
        let tables = match &tables.of {
            Some(of) if *of == wanted => tables,
            _ => match Tables::at_hand(volume, &wanted) {
                Some(tables) => {
                    at_hand = tables;
                    &at_hand
                }
                None => return Ok(Some(wanted)),
            },
        };
        self.touch(txn, state, Half::Inodes)?;
        let is_new = state.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
        if volume.has_uninit_groups() && is_new {
            // A group with inodes in use must not have the flag BLOCK_UNINIT.
            self.touch(txn, state, Half::Blocks)?;
        }
        for slot in &tables.new {
            txn.claim_slot(slot)?;
            // Somebody who looks at the block is waited for without the group's lock.
            if !slot.try_blank(BlockKind::Plain, volume.block_size().len()) {
                return Ok(Some(wanted));
            }
        }
        // The caller changes the inode next and must not fail then, so its block is claimed here.
        if let Some(slot) = &tables.table {
            txn.claim_slot(slot)?;
        }
        state.inodes_mut()?.take(bit);
        let descriptor = &mut state.descriptor;
        descriptor.free_inodes = descriptor.free_inodes.saturating_sub(1);
        descriptor.directories += u32::from(is_dir);
        if volume.has_uninit_groups() {
            descriptor.flags.remove(GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT);
            let end = bit + u32::from(!sabotage("extant.alloc.last-inode-unused"));
            descriptor.itable_unused = per_group.saturating_sub(used.max(end));
        }
        self.count_inode(locked, -1, i64::from(is_dir));
        Ok(None)
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
        if self.cell(group)?.is_bad(Half::Inodes) {
            return Ok(());
        }
        let mut locked = match self.enter(volume, group, Needs::CHANGED_INODES) {
            Ok(locked) => locked,
            Err(error) => return lost(error),
        };
        if locked.cell.is_bad(Half::Inodes) {
            return Ok(());
        }
        let (place, state) = locked.parts()?;
        if !state.inodes_mut()?.is_used(bit) {
            let error = fail("an inode is freed that is free");
            self.report(place.0, Half::Inodes as u8, error);
            return Ok(());
        }
        self.touch(txn, state, Half::Inodes)?;
        state.inodes_mut()?.free(bit);
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

/// The blocks of the inode table that are needed to take one inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TableBlocks {
    /// The block that holds the inode.
    table: FsBlock,
    /// The blocks that have not held an inode yet; `table` is one of them if it has not either.
    new: Range<u64>,
}

impl TableBlocks {
    /// Returns those for inode `bit`; the first `used` inodes of the table were used before. Blocks that
    /// lazy initialisation zeroed meanwhile count as new.
    pub(super) fn of(volume: &Volume, state: &GroupState, used: u32, bit: u32) -> TableBlocks {
        let inode_bytes = u32::from(volume.superblock().inode_size).max(1);
        let per_block = (volume.block_size().bytes() / inode_bytes).max(1);
        let table = state.descriptor.inode_table.0;
        let at = |block: u32| table.saturating_add(u64::from(block));
        // Inodes of a group are used in order, so this is one block at most.
        let new = at(used.div_ceil(per_block))..at(bit / per_block + 1);
        TableBlocks { table: FsBlock(at(bit / per_block)), new: new.start..new.end.max(new.start) }
    }
}

/// The slots of [`TableBlocks`], in memory and with space on the device.
#[derive(Default)]
pub(super) struct Tables {
    of: Option<TableBlocks>,
    new: Vec<Arc<Slot>>,
    /// The block with the inode, unless it is new.
    table: Option<Arc<Slot>>,
}

impl Tables {
    /// Returns the slots if they are in memory already, which is so for most inodes: the block was
    /// needed for the one before. It waits for nobody.
    fn at_hand(volume: &Volume, wanted: &TableBlocks) -> Option<Tables> {
        if !wanted.new.is_empty() {
            return None;
        }
        let table = Some(volume.slot_at_hand(wanted.table)?);
        Some(Tables { of: Some(wanted.clone()), new: Vec::new(), table })
    }

    /// Brings the blocks into memory. A new block that is not there appears as zeros, which is what
    /// it will be: nobody else can have filled it and lost it again, because the caller has held a
    /// handle since it found out that the block is new.
    pub(super) fn bring(volume: &Volume, wanted: TableBlocks) -> Result<Tables> {
        let mut tables = Tables::default();
        for block in wanted.new.clone().map(FsBlock) {
            let slot = with_space(volume, block)?;
            slot.get(|| Ok(vec![0; volume.block_size().len()].into()))?;
            tables.new.push(slot);
        }
        if !wanted.new.contains(&wanted.table.0) {
            let slot = with_space(volume, wanted.table)?;
            slot.get(|| volume.load_block(wanted.table))?;
            tables.table = Some(slot);
        }
        tables.of = Some(wanted);
        Ok(tables)
    }
}
