//! A file system becomes larger: what its layout allows, and the change itself.

use std::ops::Range;

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use extant_change::{Image, double_of, write_resize_inode};
use extant_format::features::{Feature, Incompat};
use extant_format::group::GroupFlags;
use extant_format::superblock::Superblock;
use extant_layout::{NewGroups, Shape, blocks_max};

use crate::error::{ResizeError, Result};

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
        let largest = Shape::rounded(sb, most).sb.blocks_count * u64::from(sb.block_size.bytes());
        return Err(ResizeError::TooLarge { why, largest });
    }
    Ok(Shape::rounded(sb, blocks))
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
    let zeroes = add_groups(image, old_groups)?;
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
fn add_groups(image: &mut Image, old_groups: u32) -> Result<Vec<Range<u64>>> {
    let new = NewGroups::of(&image.sb, old_groups)
        .map_err(|error| ResizeError::damaged(error.to_string()))?;
    for group in new.groups {
        let descriptor = group.descriptor;
        if let Some(bitmap) = group.block_bitmap {
            image.write_block(descriptor.block_bitmap.0, bitmap.as_bytes())?;
        }
        if let Some(bitmap) = &new.inode_bitmap {
            image.write_block(descriptor.inode_bitmap.0, bitmap.as_bytes())?;
        }
        image.groups.push(descriptor);
    }
    if image.sb.overhead_clusters != 0 {
        image.sb.overhead_clusters = image.sb.overhead_clusters.saturating_add(new.overhead);
    }
    Ok(new.tables)
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
    Ok(image.write_descriptors(group.0..group.0 + 1)?)
}

/// Blocks as bytes.
pub(crate) fn bytes_of(size: BlockSize, blocks: u64) -> u64 {
    blocks.saturating_mul(u64::from(size.bytes()))
}
