//! Group descriptors of 64 bytes and of 32: the feature `64bit`.

use extant_change::Image;
use extant_format::features::Feature;

use crate::error::{Result, TuneError, refuse};
use crate::work::Work;

/// Longest map of the reserve that a resize inode has, in entries of 4 bytes.
fn reserve_max(image: &Image) -> u32 {
    image.sb.block_size.bytes() / 4
}

/// Descriptors of `size` bytes, in blocks next to the superblocks.
fn convert(work: &mut Work<'_>, size: u16, on: bool) -> Result {
    let what = if on { "64bit" } else { "^64bit" };
    if work.has(Feature::META_BG) {
        return refuse(
            what,
            "with meta_bg, descriptors lie in all groups, where others have no room",
        );
    }
    let old = work.image.sb.clone();
    let before = old.descriptor_blocks();
    work.image.sb.desc_size = size;
    work.image.sb.features.set(Feature::SIXTY_FOUR_BIT, on);
    let after = work.image.sb.descriptor_blocks();
    let reserved = u32::from(old.reserved_gdt_blocks);
    let has_reserve = work.has(Feature::RESIZE_INODE);
    if after > before {
        let more = after - before;
        if more > reserved {
            return refuse(
                what,
                format!(
                    "descriptors need {more} more blocks behind each superblock, and {reserved} are reserved; \
                     resize2fs -b moves what lies there"
                ),
            );
        }
        work.image.sb.reserved_gdt_blocks = (reserved - more) as u16;
    } else {
        let less = before - after;
        let kept = match has_reserve {
            true => (reserved + less).min(reserve_max(&work.image)),
            false => reserved,
        };
        work.image.sb.reserved_gdt_blocks = kept as u16;
    }
    if has_reserve {
        extant_change::write_resize_inode(&work.image).map_err(TuneError::from)?;
    }
    let (heads, new) = (extant_layout::Heads::of(&old), work.image.heads());
    for group in heads.superblock_groups() {
        let (from, to) = (heads.head(group).blocks(), new.head(group).blocks());
        if to.end < from.end {
            work.space.free_blocks(&work.image, to.end, from.end - to.end);
            let freed = u32::try_from(from.end - to.end).unwrap_or(0) >> old.cluster_bits();
            let sb = &mut work.image.sb;
            sb.overhead_clusters = sb.overhead_clusters.saturating_sub(freed);
        }
    }
    let groups = work.image.sb.group_count;
    if old.features.metadata_csum() {
        bitmap_checksums(work)?;
    }
    work.image.write_descriptors(0..groups)?;
    work.image.write_superblock()?;
    work.to_check = true;
    // The journal is found by the descriptors, and how large those are says the superblock: with one of them
    // brought home and the other not, nobody finds the log.
    work.may_journal = false;
    Ok(())
}

/// Descriptors of 64 bytes have all 32 bits of the checksums of bitmaps.
fn bitmap_checksums(work: &mut Work<'_>) -> Result {
    use extant_format::bitmap::BitmapRef;
    use extant_format::group::GroupFlags;
    let seed = work.image.sb.checksum_seed();
    let (clusters, per) = (work.image.sb.clusters_per_group, work.image.sb.inodes_per_group);
    for group in 0..work.image.sb.group_count {
        let mut descriptor = work.image.group(group)?;
        if !descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let bytes = work.image.read_block(descriptor.block_bitmap.0)?;
            descriptor.block_bitmap_checksum = BitmapRef::new(&bytes).checksum(seed, clusters);
        }
        if !descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            let bytes = work.image.read_block(descriptor.inode_bitmap.0)?;
            descriptor.inode_bitmap_checksum = BitmapRef::new(&bytes).checksum(seed, per);
        }
        work.image.groups[group as usize] = descriptor;
    }
    Ok(())
}

/// Numbers of blocks of 64 bits.
pub(crate) fn on(work: &mut Work<'_>) -> Result {
    if !work.has(Feature::EXTENTS) {
        return refuse("64bit", "maps of blocks have numbers of 32 bits; -O extent first");
    }
    convert(work, 64, true)
}

/// Numbers of blocks of 32 bits.
pub(crate) fn off(work: &mut Work<'_>) -> Result {
    if work.image.sb.blocks_count > u64::from(u32::MAX) {
        return refuse("^64bit", format!("there are {} blocks", work.image.sb.blocks_count));
    }
    work.image.sb.raw.s_desc_size = Default::default();
    convert(work, 32, false)
}
