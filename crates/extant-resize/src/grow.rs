//! A file system becomes larger: what its layout allows, where the metadata of new groups lies, and the
//! change itself.

use std::ops::Range;

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use extant_format::bitmap::Bitmap;
use extant_format::features::{Feature, Incompat};
use extant_format::group::{GroupDescriptor, GroupFlags};
use extant_format::superblock::Superblock;
use extant_layout::Heads;

use crate::error::{ResizeError, Result};
use crate::image::Image;
use extant_format::record::{Record, put, u32_at};

/// A last group with fewer blocks for files is left out, as mke2fs does.
const LAST_GROUP_MIN: u64 = 50;

/// The shape that a file system has with a certain number of blocks.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    /// The superblock with all numbers that follow from the size, and without the free counts.
    pub(crate) sb: Superblock,
    /// The descriptors from the old end of the table on are spread over the groups.
    pub(crate) turns_meta_bg: bool,
}

/// The number of blocks above which nothing can be numbered.
pub(crate) fn blocks_max(sb: &Superblock) -> u64 {
    let numbers = match sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
        true => 1u64 << 48,
        false => u64::from(u32::MAX),
    };
    let groups = u64::from(u32::MAX / sb.inodes_per_group.max(1));
    let by_groups = groups.saturating_mul(u64::from(sb.blocks_per_group));
    numbers.min(by_groups.saturating_add(u64::from(sb.first_data_block)))
}

/// Whole clusters, and no last group that is too small for anything.
pub(crate) fn rounded(sb: &Superblock, blocks: u64) -> Shape {
    let mut blocks = blocks >> sb.cluster_bits() << sb.cluster_bits();
    loop {
        let shape = shape_of(sb, blocks);
        let new = &shape.sb;
        let last = GroupIndex(new.group_count.saturating_sub(1));
        let start =
            u64::from(new.first_data_block) + u64::from(last.0) * u64::from(new.blocks_per_group);
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

/// The superblock of a file system that has grown to `blocks`.
fn shape_of(sb: &Superblock, blocks: u64) -> Shape {
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
    let share = u128::from(sb.reserved_blocks_count) * u128::from(blocks);
    let share = share / u128::from(sb.blocks_count.max(1));
    new.reserved_blocks_count = u64::try_from(share).unwrap_or(0).min(blocks / 2);
    Shape { sb: new, turns_meta_bg }
}

/// Sets what follows from fewer groups than `sb` has: blocks of descriptors go back to the reserve, and
/// backups go with their groups.
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

/// The shape of the file system with at most `blocks` blocks.
///
/// # Errors
///
/// [`ResizeError::TooLarge`] with the largest size there is for this layout.
pub(crate) fn shape(sb: &Superblock, blocks: u64) -> Result<Shape> {
    let most = blocks_max(sb);
    if blocks > most {
        let why = match sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT) {
            true => "there are no more than 2^32 inodes, and each group has its share".to_owned(),
            false => {
                "without the feature 64bit, blocks and inodes have numbers of 32 bits".to_owned()
            }
        };
        let largest = rounded(sb, most).sb.blocks_count * u64::from(sb.block_size.bytes());
        return Err(ResizeError::TooLarge { why, largest });
    }
    Ok(rounded(sb, blocks))
}

/// The place of the bitmaps and the inode table of a new group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Place {
    block_bitmap: u64,
    inode_bitmap: u64,
    table: u64,
}

/// Places the pieces of new groups that lie together, each behind the one before and not on the head of a
/// group; `None`: there is no room.
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
    let count = unit.end - unit.start;
    for _ in 0..count {
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

/// The places of all new groups.
fn places(sb: &Superblock, old_groups: u32) -> Result<Vec<Place>> {
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
        all.extend(found.ok_or_else(|| {
            ResizeError::damaged(format!("group {from} has no room for its own inode table"))
        })?);
        from = end;
    }
    Ok(all)
}

/// What a growth does to the image; the changes are in its draft.
pub(crate) struct Grown {
    /// Inode tables of the new groups, in bytes, which must be zeros before the image refers to them.
    pub(crate) zeroes: Vec<Range<u64>>,
}

/// Changes the draft of `image` so that it has `shape`.
pub(crate) fn grow(image: &mut Image, shape: &Shape) -> Result<Grown> {
    let old = image.sb.clone();
    let new = &shape.sb;
    let (old_groups, groups) = (old.group_count, new.group_count);
    let places = places(new, old_groups)?;
    let last = old_groups.saturating_sub(1);
    if shape.turns_meta_bg && image.has(Feature::RESIZE_INODE) {
        drop_resize_inode(image)?;
    }
    let is_written = !image.is_uninit(last, GroupFlags::BLOCK_UNINIT)?;
    // The bitmap of the last group as long as it is the last.
    let before = image.block_bitmap(last)?;
    let old_clusters = old.group_clusters(GroupIndex(last));
    image.sb = new.clone();
    let clusters = image.sb.group_clusters(GroupIndex(last));
    if clusters > old_clusters {
        if is_written {
            let mut bitmap = before;
            bitmap.clear_range(old_clusters..clusters);
            image.set_block_bitmap(last, bitmap)?;
        } else {
            image.groups[last as usize].free_clusters += clusters - old_clusters;
        }
    }
    let zeroes = add_groups(image, old_groups, &places)?;
    let per_block = u64::from(image.sb.block_size.bytes());
    if image.has(Feature::RESIZE_INODE) && groups > old_groups {
        write_resize_inode(image)?;
    }
    image.count();
    // Blocks that were reserved hold other things: blocks of descriptors are written whole.
    image.write_descriptors(last..groups.max(last + 1))?;
    image.write_superblock()?;
    let bytes = |run: Range<u64>| run.start * per_block..run.end * per_block;
    Ok(Grown { zeroes: zeroes.into_iter().map(bytes).collect() })
}

/// Adds the descriptors and bitmaps of new groups; returns their inode tables.
fn add_groups(image: &mut Image, old_groups: u32, places: &[Place]) -> Result<Vec<Range<u64>>> {
    let has_flags = image.has_flags();
    let table_blocks = u64::from(image.sb.inode_table_blocks());
    let per_group = image.sb.inodes_per_group;
    let mut foreign = vec![Vec::new(); places.len()];
    let mut tables: Vec<Range<u64>> = Vec::new();
    for (at, place) in places.iter().enumerate() {
        let group = old_groups + at as u32;
        let runs = [
            place.block_bitmap..place.block_bitmap + 1,
            place.inode_bitmap..place.inode_bitmap + 1,
            place.table..place.table + table_blocks,
        ];
        for run in runs {
            let mut from = run.start;
            while from < run.end {
                let Some((home, _)) = image.sb.group_of_block(FsBlock(from)) else { break };
                let first = image.sb.group_first_block(home).map_or(from, |block| block.0);
                let to = (first + u64::from(image.sb.blocks_per_group)).min(run.end);
                if home.0 != group
                    && let Some(list) = foreign.get_mut((home.0 - old_groups) as usize)
                {
                    list.push(from..to);
                }
                from = to;
            }
        }
        let table = place.table..place.table + table_blocks;
        match tables.last_mut() {
            Some(last) if last.end == table.start => last.end = table.end,
            _ => tables.push(table),
        }
        let mut flags = GroupFlags::empty();
        if has_flags {
            flags = GroupFlags::INODE_UNINIT | GroupFlags::INODE_ZEROED;
        }
        image.groups.push(GroupDescriptor {
            block_bitmap: FsBlock(place.block_bitmap),
            inode_bitmap: FsBlock(place.inode_bitmap),
            inode_table: FsBlock(place.table),
            free_inodes: per_group,
            itable_unused: if has_flags { per_group } else { 0 },
            flags,
            ..GroupDescriptor::default()
        });
    }
    let mut overhead = 0;
    for (at, foreign) in foreign.into_iter().enumerate() {
        let group = old_groups + at as u32;
        let clusters = image.sb.group_clusters(GroupIndex(group));
        let own = image.own_metadata(group)?;
        let others = foreign.iter().filter_map(|run| image.clusters_in(group, run.clone()));
        let used: Vec<Range<u32>> = own.into_iter().chain(others).collect();
        let bitmap = Bitmap::of_uninit_group(image.block_bytes(), clusters, used);
        overhead += clusters - bitmap.view().count_clear(0..clusters);
        let is_last = group + 1 == image.sb.group_count;
        if has_flags && foreign.is_empty() && !is_last {
            let descriptor = &mut image.groups[group as usize];
            descriptor.free_clusters = bitmap.view().count_clear(0..clusters);
            descriptor.flags |= GroupFlags::BLOCK_UNINIT;
        } else {
            image.set_block_bitmap(group, bitmap)?;
        }
        if !has_flags {
            let empty = Bitmap::of_uninit_group(image.block_bytes(), per_group, []);
            image.set_inode_bitmap(group, &empty)?;
        }
    }
    if image.sb.overhead_clusters != 0 {
        image.sb.overhead_clusters = image.sb.overhead_clusters.saturating_add(overhead);
    }
    Ok(tables)
}

/// The doubly indirect block of the resize inode; 0: none.
fn double_of(record: &Record) -> u64 {
    u64::from(u32_at(&record.block_area(), 13 * 4))
}

/// Takes the resize inode away: its list is free, and what it reserved holds descriptors.
fn drop_resize_inode(image: &mut Image) -> Result {
    let mut record = image.load(Ino::RESIZE)?;
    let double = double_of(&record);
    record.clear();
    image.store(&record)?;
    let Some((group, within)) = image.sb.group_of_block(FsBlock(double)).filter(|_| double != 0)
    else {
        return Ok(());
    };
    let mut bitmap = image.block_bitmap(group.0)?;
    bitmap.clear(within >> image.sb.cluster_bits());
    image.set_block_bitmap(group.0, bitmap)?;
    image.write_descriptors(group.0..group.0 + 1)
}

/// Writes the lists of the resize inode: its doubly indirect block lists the reserve, each block of the
/// reserve its copies.
pub(crate) fn write_resize_inode(image: &Image) -> Result {
    let mut record = image.load(Ino::RESIZE)?;
    let double = double_of(&record);
    if !image.in_range(double, 1) {
        return Err(ResizeError::damaged("the resize inode has no list"));
    }
    let heads = image.heads();
    let (used, reserved) = (image.sb.descriptor_blocks(), image.sb.reserved_gdt_blocks);
    let per_block = image.sb.block_size.bytes() / 4;
    let backups: Vec<u32> = heads.superblock_groups().skip(1).map(|group| group.0).collect();
    let mut list = vec![0; image.block_bytes()];
    for (number, home) in heads.head(GroupIndex(0)).reserved_gdt.enumerate() {
        let slot = (used as usize + number) % per_block as usize;
        put(&mut list, slot * 4, &(home as u32).to_le_bytes());
        let mut copies = vec![0; image.block_bytes()];
        for (slot, backup) in backups.iter().take(per_block as usize).enumerate() {
            let copy = home + u64::from(*backup) * u64::from(image.sb.blocks_per_group);
            put(&mut copies, slot * 4, &(copy as u32).to_le_bytes());
        }
        image.write_block(home, &copies)?;
    }
    image.write_block(double, &list)?;
    let blocks = 1 + u64::from(reserved) * (1 + backups.len() as u64);
    image.set_clusters(&mut record, blocks);
    image.store(&record)
}

/// Blocks as bytes.
pub(crate) fn bytes_of(size: BlockSize, blocks: u64) -> u64 {
    blocks.saturating_mul(u64::from(size.bytes()))
}
