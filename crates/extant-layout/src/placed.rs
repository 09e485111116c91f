//! Where the groups of a file system would be if mke2fs had placed them, and whether a place looks like an inode table.
//!
//! For who has lost the descriptors of a group and all their backups: the superblock alone says where mke2fs puts
//! bitmaps and tables. A file system that was made otherwise, or grew, may have them elsewhere, so that what is found
//! there has to be looked at before it is believed.

use alloc::vec;
use alloc::vec::Vec;

use extant_base::{GroupIndex, Ino};
use extant_format::features::{Feature, Incompat};
use extant_format::inode::{FileKind, Inode, InodeLayout, LINKS_MAX};
use extant_format::record::Record;
use extant_format::superblock::Superblock;

use crate::Geometry;

/// Most groups of a flex group whose places are computed.
const FLEX_MAX: u32 = 1024;
/// Blocks with something in them after which a table has been seen.
const SEEN_BLOCKS: u32 = 4;
/// Most blocks that are looked at for those.
const LOOKED_MAX: u32 = 4096;

/// The layout that mke2fs gives a file system with this superblock; `None` where it would give none, and for flex groups
/// of more than 1024 groups.
pub fn mke2fs_geometry(sb: &Superblock) -> Option<Geometry> {
    let flex = match sb.features.has_incompat(Incompat::FLEX_BG) {
        true => 1u32.checked_shl(u32::from(sb.log_groups_per_flex)).unwrap_or(1),
        false => 1,
    };
    if flex > FLEX_MAX {
        return None;
    }
    let geometry = Geometry {
        features: sb.features,
        block_size: sb.block_size,
        cluster_blocks: sb.cluster_ratio().max(1),
        blocks_count: sb.blocks_count,
        first_data_block: sb.first_data_block,
        blocks_per_group: sb.blocks_per_group,
        clusters_per_group: sb.clusters_per_group,
        group_count: sb.group_count,
        inode_size: sb.inode_size,
        inodes_per_group: sb.inodes_per_group,
        inode_table_blocks: sb.inode_table_blocks(),
        inodes_count: sb.inodes_count,
        first_ino: sb.first_inode.0,
        desc_size: sb.desc_size.max(32),
        gdt_blocks: sb.descriptor_blocks(),
        reserved_gdt_blocks: sb.reserved_gdt_blocks,
        flex_groups: flex,
        backup_groups: sb.backup_groups,
        reserved_blocks: sb.reserved_blocks_count,
        stride: u32::from(sb.raid_stride),
        packed: false,
        journal: None,
        orphan_file_blocks: 0,
        lost_found_blocks: 0,
    };
    // With fewer, a head could be all of a group, for which nothing has a place.
    let head = geometry.gdt_blocks.saturating_add(u32::from(sb.reserved_gdt_blocks));
    let is_roomy = u64::from(sb.blocks_per_group) > u64::from(head) + 8;
    if !is_roomy || geometry.has(Feature::META_BG) && sb.first_meta_bg != 0 {
        return None;
    }
    geometry.check_placement().ok()?;
    Some(geometry)
}

/// How much the blocks from `start` on look like the inode table of `group`: its records that are inodes (by their
/// checksums, where there are any), less those that are none, of the first blocks that hold anything; 0 for zeros only.
///
/// `read` fills its buffer with a block and says whether that went well; one that it cannot read counts as one record
/// that is none. It is asked until four blocks were not all zeros, at most for 4096 blocks.
pub fn table_score(
    sb: &Superblock,
    group: GroupIndex,
    start: u64,
    read: &mut dyn FnMut(u64, &mut [u8]) -> bool,
) -> i64 {
    let layout = InodeLayout::of(sb);
    let size = usize::from(sb.inode_size).max(128);
    let first = group.0.wrapping_mul(sb.inodes_per_group).wrapping_add(1);
    let mut bytes: Vec<u8> = vec![0; sb.block_size.len()];
    let per_block = (bytes.len() / size) as u32;
    let (mut score, mut seen) = (0, 0);
    for block in 0..sb.inode_table_blocks().min(LOOKED_MAX) {
        if seen == SEEN_BLOCKS {
            break;
        }
        if !read(start.saturating_add(u64::from(block)), &mut bytes) {
            score -= 1;
            seen += 1;
            continue;
        }
        if bytes.iter().all(|byte| *byte == 0) {
            continue;
        }
        seen += 1;
        let before = first.wrapping_add(block.wrapping_mul(per_block));
        for (slot, raw) in bytes.chunks_exact(size).enumerate() {
            if raw.iter().all(|byte| *byte == 0) {
                continue;
            }
            let ino = Ino(before.wrapping_add(slot as u32));
            let record = Record { ino, bytes: raw.to_vec() };
            let is_inode = match layout.checksum_seed {
                Some(_) => Inode::verify_checksum(&layout, ino, raw).is_ok(),
                None => {
                    record.kind().is_some() && u32::from(record.links()) <= LINKS_MAX
                        || (record.mode() == 0 && record.links() == 0)
                }
            };
            let is_root = ino == Ino::ROOT && record.kind() == Some(FileKind::Directory);
            score += if is_inode { 1 + i64::from(is_root) } else { -1 };
        }
    }
    score
}
