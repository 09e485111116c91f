//! The shape of a file system that gets another size, and what its new groups consist of.
//!
//! Those who resize an image that nobody uses and those who grow one that is mounted ask here, so
//! both come to the same file system.

use alloc::vec::Vec;
use core::ops::Range;

use extant_base::{FsBlock, GroupIndex};
use extant_format::bitmap::Bitmap;
use extant_format::features::{Feature, Incompat};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_format::superblock::Superblock;

use crate::geometry::NoRoomForTables;
use crate::heads::Heads;

/// A last group with fewer blocks for files is left out, as by mke2fs.
const LAST_GROUP_MIN: u64 = 50;

/// The shape that a file system has with a certain number of blocks.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The superblock with all numbers that follow from the size, and without the free counts.
    pub sb: Superblock,
    /// Whether the descriptors from the old end of the table on are spread over the groups
    /// (`meta_bg`), because the reserve of the resize inode is not enough.
    pub turns_meta_bg: bool,
}

/// Returns the number of blocks above which blocks or inodes would have no numbers.
pub fn blocks_max(sb: &Superblock) -> u64 {
    let numbers = match sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        true => 1u64 << 48,
        false => u64::from(u32::MAX),
    };
    let groups = u64::from(u32::MAX / sb.inodes_per_group.max(1));
    let by_groups = groups.saturating_mul(u64::from(sb.blocks_per_group));
    numbers.min(by_groups.saturating_add(u64::from(sb.first_data_block)))
}

impl Shape {
    /// Returns the shape with at most `blocks` blocks: whole clusters, and no last group that is
    /// too small for anything.
    pub fn rounded(sb: &Superblock, blocks: u64) -> Shape {
        let mut blocks = blocks >> sb.cluster_bits() << sb.cluster_bits();
        loop {
            let shape = Shape::of(sb, blocks);
            let new = &shape.sb;
            let last = GroupIndex(new.group_count.saturating_sub(1));
            let start = u64::from(new.first_data_block)
                + u64::from(last.0) * u64::from(new.blocks_per_group);
            let head = Heads::of(new).head(last).blocks();
            let needs = (head.end - head.start) + 2 + u64::from(new.inode_table_blocks());
            let has = blocks.saturating_sub(start);
            let is_whole = has == u64::from(new.blocks_per_group);
            // A group that exists already needs nothing more.
            let is_old = blocks >= sb.blocks_count && last.0 < sb.group_count;
            if last.0 == 0 || is_whole || is_old || has >= needs + LAST_GROUP_MIN {
                return shape;
            }
            blocks = start;
        }
    }

    /// Returns the shape with exactly `blocks` blocks.
    fn of(sb: &Superblock, blocks: u64) -> Shape {
        let mut new = sb.clone();
        let mut turns_meta_bg = false;
        new.blocks_count = blocks;
        let groups = blocks
            .saturating_sub(u64::from(sb.first_data_block))
            .div_ceil(u64::from(sb.blocks_per_group).max(1));
        new.group_count = u32::try_from(groups).unwrap_or(u32::MAX);
        new.inodes_count = new.group_count.saturating_mul(sb.inodes_per_group);
        if new.group_count < sb.group_count {
            give_back(sb, &mut new);
        } else if !sb.features.has(Feature::META_BG) {
            let more = new.descriptor_blocks().saturating_sub(sb.descriptor_blocks());
            let reserved = u32::from(sb.reserved_gdt_blocks);
            if more <= reserved {
                new.reserved_gdt_blocks = (reserved - more) as u16;
            } else {
                turns_meta_bg = true;
                new.first_meta_bg = sb.descriptor_blocks() + reserved;
                new.reserved_gdt_blocks = 0;
                new.features.remove(Feature::RESIZE_INODE);
                new.features.insert(Feature::META_BG);
            }
        }
        if sb.features.has(Feature::SPARSE_SUPER2) && new.group_count > sb.group_count {
            let last = new.group_count - 1;
            match sb.backup_groups {
                // With one group there was no place for any.
                [0, 0] if sb.group_count == 1 => {
                    new.backup_groups = [1, if last > 1 { last } else { 0 }];
                }
                [1, 0] if sb.group_count == 2 => new.backup_groups = [1, last],
                _ => {}
            }
        }
        new.reserved_blocks_count = share_of(sb.reserved_blocks_count, sb, blocks);
        Shape { sb: new, turns_meta_bg }
    }
}

/// Returns how many of `blocks` are reserved, if `reserved` of those of `sb` were.
pub fn share_of(reserved: u64, sb: &Superblock, blocks: u64) -> u64 {
    let share = u128::from(reserved) * u128::from(blocks) / u128::from(sb.blocks_count.max(1));
    u64::try_from(share).unwrap_or(0).min(blocks / 2)
}

/// Sets what follows from fewer groups than `sb` has: blocks of descriptors go back to the reserve,
/// and backups go with their groups.
fn give_back(sb: &Superblock, new: &mut Superblock) {
    let left = new.descriptor_blocks();
    if sb.features.has(Feature::META_BG) {
        new.first_meta_bg = sb.first_meta_bg.min(left);
    } else if sb.features.has(Feature::RESIZE_INODE) {
        let reserve = u32::from(sb.reserved_gdt_blocks) + (sb.descriptor_blocks() - left);
        new.reserved_gdt_blocks = reserve.min(sb.block_size.bytes() / 4) as u16;
    }
    if sb.features.has(Feature::SPARSE_SUPER2) {
        for group in &mut new.backup_groups {
            if *group >= new.group_count {
                *group = 0;
            }
        }
    }
}

/// The place of the bitmaps and the inode table of a new group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    block_bitmap: u64,
    inode_bitmap: u64,
    table: u64,
}

/// Places the pieces of new groups that lie together, each behind the one before and not on the
/// head of a group; `None`: there is no room.
fn place(sb: &Superblock, heads: &Heads, unit: Range<u32>) -> Option<Vec<Place>> {
    let start = sb.group_first_block(GroupIndex(unit.start))?.0;
    let last = GroupIndex(unit.end - 1);
    let end = sb.group_first_block(last)?.0 + u64::from(sb.group_blocks(last));
    let mut at = start;
    let mut take = |len: u64| loop {
        let (group, _) = sb.group_of_block(FsBlock(at))?;
        let mut next = heads.next(group);
        let mut obstacle = None;
        while let Some(found) = next {
            let blocks = heads.head(found).blocks();
            if blocks.start >= at + len {
                break;
            }
            if blocks.end > at {
                obstacle = Some(blocks.end);
                break;
            }
            next = heads.next(GroupIndex(found.0.checked_add(1)?));
        }
        match obstacle {
            Some(behind) => at = behind,
            None if at + len > end => return None,
            None => {
                at += len;
                return Some(at - len);
            }
        }
    };
    let table_blocks = u64::from(sb.inode_table_blocks());
    let mut places = Vec::new();
    for _ in unit {
        places.push(Place { block_bitmap: take(1)?, inode_bitmap: 0, table: 0 });
    }
    for place in &mut places {
        place.inode_bitmap = take(1)?;
    }
    for place in &mut places {
        place.table = take(table_blocks)?;
    }
    Some(places)
}

/// Returns the places of all new groups.
fn places(sb: &Superblock, old_groups: u32) -> Result<Vec<Place>, NoRoomForTables> {
    let heads = Heads::of(sb);
    let flex = u64::from(sb.groups_per_flex().max(1));
    let mut all = Vec::new();
    let mut from = old_groups;
    while from < sb.group_count {
        let end = (u64::from(from) / flex + 1).saturating_mul(flex);
        let end = end.min(u64::from(sb.group_count)) as u32;
        // Where a short end leaves no room for all of them together, each has its own.
        let found = place(sb, &heads, from..end).or_else(|| {
            let alone = (from..end).map(|group| place(sb, &heads, group..group + 1));
            alone.collect::<Option<Vec<_>>>().map(|lists| lists.concat())
        });
        let inode_table_blocks = sb.inode_table_blocks();
        all.extend(found.ok_or(NoRoomForTables { group: from, inode_table_blocks })?);
        from = end;
    }
    Ok(all)
}

/// What a new group consists of.
#[derive(Clone, Debug)]
pub struct NewGroup {
    /// The descriptor, complete but for its own checksum.
    pub descriptor: GroupDescriptor,
    /// The block bitmap; `None` for a group whose flags say that it follows from the layout.
    pub block_bitmap: Option<Bitmap>,
}

/// What all new groups consist of.
#[derive(Clone, Debug)]
pub struct NewGroups {
    /// The groups from the old end on, in order.
    pub groups: Vec<NewGroup>,
    /// The inode bitmap of each of them; `None` where flags say that it is empty.
    pub inode_bitmap: Option<Bitmap>,
    /// Blocks of their inode tables, which must be zeros.
    pub tables: Vec<Range<u64>>,
    /// Clusters that their own metadata takes.
    pub overhead: u32,
}

impl NewGroups {
    /// Returns the groups of `sb` from number `old_groups` on, as they are while nothing uses them.
    ///
    /// Memory: a descriptor for each group, and a bitmap for those that need one.
    ///
    /// # Errors
    ///
    /// [`NoRoomForTables`] when a group is too small for its own metadata.
    pub fn of(sb: &Superblock, old_groups: u32) -> Result<NewGroups, NoRoomForTables> {
        let places = places(sb, old_groups)?;
        let heads = Heads::of(sb);
        let has_flags = GroupChecksum::of(sb) != GroupChecksum::None;
        let (per_group, bytes) = (sb.inodes_per_group, sb.block_size.len());
        let table_blocks = u64::from(sb.inode_table_blocks());
        let mut tables: Vec<Range<u64>> = Vec::new();
        // Runs of each group that hold metadata, its own and that of others.
        let mut used = alloc::vec![Vec::new(); places.len()];
        let mut has_foreign = alloc::vec![false; places.len()];
        for (group, place) in (old_groups..).zip(&places) {
            let table = place.table..place.table + table_blocks;
            let runs = [
                place.block_bitmap..place.block_bitmap + 1,
                place.inode_bitmap..place.inode_bitmap + 1,
                table.clone(),
            ];
            for run in runs {
                let mut from = run.start;
                while from < run.end {
                    let Some((home, _)) = sb.group_of_block(FsBlock(from)) else { break };
                    let first = sb.group_first_block(home).map_or(from, |block| block.0);
                    let to = (first + u64::from(sb.blocks_per_group)).min(run.end);
                    let at = home.0.wrapping_sub(old_groups) as usize;
                    if let (Some(list), Some(foreign)) = (used.get_mut(at), has_foreign.get_mut(at))
                    {
                        list.extend(clusters_in(sb, home, &(from..to)));
                        *foreign |= home.0 != group;
                    }
                    from = to;
                }
            }
            match tables.last_mut() {
                Some(last) if last.end == table.start => last.end = table.end,
                _ => tables.push(table),
            }
        }
        let (mut groups, mut overhead) = (Vec::with_capacity(places.len()), 0u32);
        for (at, (place, mut used)) in places.into_iter().zip(used).enumerate() {
            let group = GroupIndex(old_groups + at as u32);
            used.extend(clusters_in(sb, group, &heads.head(group).blocks()));
            let clusters = sb.group_clusters(group);
            let mut bitmap = Bitmap::of_uninit_group(bytes, clusters, used);
            bitmap.pad(clusters);
            let free_clusters = bitmap.view().count_clear(0..clusters);
            overhead = overhead.saturating_add(clusters - free_clusters);
            let mut descriptor = GroupDescriptor {
                block_bitmap: FsBlock(place.block_bitmap),
                inode_bitmap: FsBlock(place.inode_bitmap),
                inode_table: FsBlock(place.table),
                free_clusters,
                free_inodes: per_group,
                ..GroupDescriptor::default()
            };
            if has_flags {
                descriptor.itable_unused = per_group;
                descriptor.flags = GroupFlags::INODE_UNINIT | GroupFlags::INODE_ZEROED;
            }
            let is_last = group.0 + 1 == sb.group_count;
            let follows = has_flags && !has_foreign.get(at).copied().unwrap_or(true) && !is_last;
            let block_bitmap = match follows {
                true => {
                    descriptor.flags |= GroupFlags::BLOCK_UNINIT;
                    None
                }
                false => Some(bitmap),
            };
            if let Some(bitmap) = block_bitmap.as_ref().filter(|_| sb.features.metadata_csum()) {
                descriptor.block_bitmap_checksum =
                    bitmap.view().checksum(sb.checksum_seed(), sb.clusters_per_group);
            }
            groups.push(NewGroup { descriptor, block_bitmap });
        }
        let inode_bitmap = (!has_flags).then(|| Bitmap::of_uninit_group(bytes, per_group, []));
        Ok(NewGroups { groups, inode_bitmap, tables, overhead })
    }
}

/// Returns the part of a run of blocks that lies in a group, in clusters from its start.
fn clusters_in(sb: &Superblock, group: GroupIndex, run: &Range<u64>) -> Option<Range<u32>> {
    let first = sb.group_first_block(group)?.0;
    let end = first + u64::from(sb.group_blocks(group));
    let (from, to) = (run.start.max(first), run.end.min(end));
    let (bits, ratio) = (sb.cluster_bits(), u64::from(sb.cluster_ratio()));
    (from < to).then(|| ((from - first) >> bits) as u32..(to - first).div_ceil(ratio) as u32)
}
