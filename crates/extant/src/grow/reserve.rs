//! The resize inode while a file system grows: which blocks are reserved for descriptors, and where
//! their copies lie.
//!
//! The reserve follows the descriptors. The doubly indirect block of the resize inode, its *list*,
//! names each reserved block; each of these names its copies in the groups with backups.

use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, Ino, sabotage};
use extant_format::features::Feature;
use extant_format::record::{put, u32_at};
use extant_format::superblock::Superblock;
use extant_layout::{Heads, Shape};

use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::node::Node;
use crate::slot::BlockKind;
use crate::txn::Txn;

/// Place of the pointer to the list in the map of an inode.
const LIST: usize = 13 * 4;

/// What a step changes about the resize inode.
pub(super) enum Reserve {
    /// There is none, or no group is added.
    Stays,
    /// The reserve is used up, and the list is freed.
    Goes { node: Arc<Node>, list: FsBlock },
    /// Reserved blocks hold descriptors now, or have more copies.
    Changes {
        node: Arc<Node>,
        list: FsBlock,
        /// Slots of the list whose blocks are reserved no more.
        used: Vec<usize>,
        /// Reserved blocks whose copies change, with the numbers of the copies.
        homes: Vec<(FsBlock, Vec<u32>)>,
        /// Blocks that the inode has afterwards, list included.
        blocks: u64,
    },
}

fn damaged(rule: &'static str) -> FsError {
    FsError::corrupt("resize inode", Ino::RESIZE, None, Fault::Rule(rule))
}

fn backups(superblock: &Superblock) -> Vec<u32> {
    Heads::of(superblock).superblock_groups().skip(1).map(|group| group.0).collect()
}

impl Reserve {
    /// Plans what becomes of the resize inode, after looking whether it is what it must be.
    ///
    /// # Errors
    ///
    /// Damage of the resize inode, device errors.
    pub(super) fn plan(fs: &Fs, old: &Superblock, shape: &Shape) -> Result<Reserve> {
        let new = &shape.sb;
        if !old.features.has(Feature::RESIZE_INODE) || new.group_count == old.group_count {
            return Ok(Reserve::Stays);
        }
        let node = fs.node(Ino::RESIZE).map_err(|error| match error {
            FsError::NoSuchInode { .. } => damaged("it is not in use"),
            other => other,
        })?;
        let list = FsBlock(u64::from(node.with(|data| u32_at(&data.record.block, LIST))));
        fs.volume().check_file_blocks("resize inode", Ino::RESIZE, None, list, 1)?;
        // Whoever has the list for himself would be overwritten.
        let zones = fs.volume().zones();
        if zones.is_some_and(|zones| zones.within(&(list.0..list.0 + 1)).count() != 1) {
            return Err(damaged("its list lies in another structure"));
        }
        check_list(fs, old, list)?;
        if shape.turns_meta_bg {
            return Ok(Reserve::Goes { node, list });
        }
        let per_block = old.block_size.len() / 4;
        let taken = old.descriptor_blocks()..new.descriptor_blocks();
        let used = taken.map(|index| index as usize % per_block).collect();
        let (before, after) = (backups(old), backups(new));
        let mut homes = Vec::new();
        if before != after {
            for home in Heads::of(new).head(GroupIndex(0)).reserved_gdt {
                let copy = |group: &u32| home + u64::from(*group) * u64::from(old.blocks_per_group);
                // With a resize inode, blocks that matter here have numbers of 32 bits.
                let copies = after.iter().take(per_block).map(|group| copy(group) as u32);
                homes.push((FsBlock(home), copies.collect()));
            }
        }
        let reserved = u64::from(new.reserved_gdt_blocks);
        let blocks = 1 + reserved * (1 + after.len() as u64);
        Ok(Reserve::Changes { node, list, used, homes, blocks })
    }

    /// Number of blocks that change.
    pub(super) fn credits(&self) -> u32 {
        match self {
            Reserve::Stays => 0,
            // The inode; the bitmap and the descriptor of the list's group.
            Reserve::Goes { .. } => 3,
            Reserve::Changes { homes, .. } => {
                2u32.saturating_add(u32::try_from(homes.len()).unwrap_or(u32::MAX))
            }
        }
    }

    /// Claims what [`change`](Self::change) changes; nothing has changed when this fails.
    pub(super) fn ready(&self, fs: &Fs, txn: &mut Txn<'_>) -> Result<()> {
        let mount = fs.volume();
        let list = match self {
            Reserve::Stays => return Ok(()),
            Reserve::Goes { node, list } => {
                txn.update(node, |_| ())?;
                return free_list(fs, txn, *list);
            }
            Reserve::Changes { node, list, homes, .. } => {
                txn.update(node, |_| ())?;
                for (home, _) in homes {
                    txn.claim_slot(&mount.slot(*home))?;
                }
                list
            }
        };
        let slot = mount.slot(*list);
        slot.get(|| mount.load_block(*list))?;
        txn.claim_slot(&slot)
    }

    /// Changes the resize inode and its lists.
    pub(super) fn change(&self, fs: &Fs, txn: &mut Txn<'_>) -> Result<()> {
        let layout = fs.volume().inode_layout();
        match self {
            Reserve::Stays => Ok(()),
            Reserve::Goes { node, .. } => txn.update(node, |data| {
                data.record.block = [0; 60];
                data.record.size = 0;
                data.record.sectors = 0;
            }),
            Reserve::Changes { node, list, used, homes, blocks } => {
                let slot = fs.volume().slot(*list);
                txn.edit(&slot, BlockKind::Plain, |block| {
                    if !sabotage("extant.grow.list-keeps-used") {
                        used.iter().for_each(|slot| put(block, slot * 4, &[0; 4]));
                    }
                })?;
                for (home, copies) in homes {
                    txn.create_block(*home, BlockKind::Plain, |block| {
                        for (slot, copy) in copies.iter().enumerate() {
                            put(block, slot * 4, &copy.to_le_bytes());
                        }
                    })?;
                }
                let sectors = blocks * (fs.superblock().cluster_bytes() / 512);
                let set = txn.update(node, |data| data.record.set_sectors(layout, sectors))?;
                set.map_err(|_| damaged("it has more blocks than an inode can count"))
            }
        }
    }
}

/// Checks that the list names the blocks that the superblock reserves, and no others.
fn check_list(fs: &Fs, old: &Superblock, list: FsBlock) -> Result<()> {
    let per_block = old.block_size.len() / 4;
    let reserved = usize::from(old.reserved_gdt_blocks);
    let homes = Heads::of(old).head(GroupIndex(0)).reserved_gdt;
    let has_room = reserved <= per_block && homes.end - homes.start == reserved as u64;
    if !has_room {
        return Err(damaged("the superblock reserves more descriptors than group 0 has room for"));
    }
    let block = fs.volume().read_block(list)?;
    let mut wanted = vec![0; per_block];
    for (number, home) in homes.enumerate() {
        let slot = (old.descriptor_blocks() as usize + number) % per_block;
        if let (Some(place), Ok(home)) = (wanted.get_mut(slot), u32::try_from(home)) {
            *place = home;
        }
    }
    let found = (0..per_block).map(|slot| u32_at(block.bytes(), slot * 4));
    match found.eq(wanted) {
        true => Ok(()),
        false => Err(damaged("its list does not name the blocks that the superblock reserves")),
    }
}

/// Frees the list; nothing has changed when this fails.
fn free_list(fs: &Fs, txn: &mut Txn<'_>, list: FsBlock) -> Result<()> {
    let mount = fs.volume();
    let Some(zones) = mount.zones() else { return Ok(()) };
    zones.free_list(list.0);
    let alloc = mount.writer()?.alloc();
    let freed = alloc.free_own(txn, list);
    if freed.is_err() {
        zones.free_list(0);
    }
    freed
}
