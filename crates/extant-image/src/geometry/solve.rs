//! From a size to counts: blocks, groups, inodes, descriptors.
//!
//! The counts depend on each other: groups on the blocks, inodes on the groups, metadata on the
//! inodes, and whether the last group is kept (so: the blocks) on the metadata. mke2fs starts over
//! when a choice does not hold; so does [`solve`]. Each start has fewer blocks per group or fewer
//! blocks, so that it ends.

use extant_base::{BlockSize, GroupIndex, Ino};

use super::{EmptyFs, Geometry, GeometryError, SizeRequest, journal};
use crate::options::{Feature, Features, MkfsOptions};

/// First inode that is not reserved, and lost+found's.
const FIRST_INO: u32 = Ino::FIRST_ORDINARY.0;
/// Blocks that mke2fs wants for contents in the last group, beside its metadata.
const LAST_GROUP_SLACK: u64 = 50;
/// Bytes per cluster over bytes per block, unless given.
const DEFAULT_CLUSTER_BLOCKS: u32 = 16;
/// mke2fs rounds the size it finds down to whole pages.
const PAGE_BYTES: u64 = 4096;
const MIB: u64 = 1 << 20;

/// Defaults of a size class: mke2fs's usage types `floppy`, `small`, default, `big` and `huge`.
struct SizeClass {
    block_bytes: u32,
    bytes_per_inode: u32,
}

impl SizeClass {
    fn of(bytes: u64) -> SizeClass {
        let (block_bytes, bytes_per_inode) = match bytes / MIB {
            0..3 => (1024, 8192),
            3..512 => (1024, 4096),
            512..0x40_0000 => (4096, 16384),
            0x40_0000..0x100_0000 => (4096, 32768),
            _ => (4096, 65536),
        };
        SizeClass { block_bytes, bytes_per_inode }
    }
}

/// Values that are known before any count.
struct Frame {
    features: Features,
    block_size: BlockSize,
    cluster_blocks: u32,
    first_data_block: u32,
    inode_size: u16,
    desc_size: u16,
    /// Blocks asked for.
    asked_blocks: u64,
    /// Blocks asked for, whole clusters.
    blocks: u64,
    /// Inodes asked for; not 0.
    inodes: u64,
    reserved_percent: f64,
    /// Reserved descriptor blocks asked for with a resize limit.
    resize_gdt_blocks: Option<u32>,
    /// Keep the last group whenever it can hold its metadata.
    exact: bool,
    /// Never fewer inodes than asked for.
    inodes_needed: bool,
}

impl Frame {
    fn desc_per_block(&self) -> u32 {
        self.block_size.bytes() / u32::from(self.desc_size)
    }

    fn inodes_per_block(&self) -> u32 {
        self.block_size.bytes() / u32::from(self.inode_size)
    }

    /// Blocks for root only, of all that were asked for.
    fn reserved(&self) -> u64 {
        (self.reserved_percent * self.asked_blocks as f64 / 100.0) as u64
    }

    /// Blocks for root only when `blocks` are left: the same share as the whole number of
    /// [`Frame::reserved`] was, rounded down again.
    fn reserved_of(&self, blocks: u64) -> u64 {
        (self.reserved() as f64 / self.asked_blocks as f64 * blocks as f64) as u64
    }

    /// Block numbers in a block of a block map: the resize inode's only double-indirect block has
    /// one entry per reserved descriptor block.
    fn addresses_per_block(&self) -> u32 {
        self.block_size.bytes() / 4
    }
}

/// Computes everything in a [`Geometry`].
pub(super) fn solve(options: &MkfsOptions, size: SizeRequest) -> Result<Geometry, GeometryError> {
    let frame = frame(options, size)?;
    let mut geometry = counts(options, &frame)?;
    check_inode_count(&geometry)?;
    place_backups(options, &mut geometry);
    geometry.packed = geometry.has(Feature::FLEX_BG)
        && options.packed_meta_blocks.unwrap_or(options.profile.packs_metadata());
    journal::size_journal(options, &mut geometry)?;
    geometry.lost_found_blocks = lost_found_blocks(geometry.block_size);
    geometry.check_placement()?;
    check_room(options, &geometry)?;
    Ok(geometry)
}

/// Checks that everything in an empty file system has room.
fn check_room(options: &MkfsOptions, geometry: &Geometry) -> Result<(), GeometryError> {
    let ratio = u64::from(geometry.cluster_blocks);
    let blocks = geometry.blocks_count - u64::from(geometry.first_data_block);
    let used =
        geometry.fixed_metadata_clusters() + EmptyFs::of(geometry, options).clusters(geometry);
    if used > blocks / ratio {
        return Err(GeometryError::TooSmall {
            blocks: geometry.blocks_count,
            metadata: used * ratio,
            block_bytes: geometry.block_size.bytes(),
        });
    }
    Ok(())
}

fn frame(options: &MkfsOptions, size: SizeRequest) -> Result<Frame, GeometryError> {
    let mut features = options.requested_features();
    let block_size_for = |bytes| {
        let bytes = options.profile.block_bytes().unwrap_or(SizeClass::of(bytes).block_bytes);
        options.block_size.or(BlockSize::new(u64::from(bytes)).ok())
    };
    // Only the size class needs bytes; a count of blocks without a block size means 4 KiB blocks.
    let four_kib = 4096;
    let (block_size, blocks) = match size {
        SizeRequest::Device { bytes } => {
            let bytes = bytes - bytes % PAGE_BYTES;
            let block_size = block_size_for(bytes);
            (block_size, block_size.map_or(0, |size| bytes >> size.log2()))
        }
        SizeRequest::Blocks { blocks } | SizeRequest::Exact { blocks, .. } => {
            (options.block_size.or(BlockSize::new(four_kib).ok()), blocks)
        }
    };
    let block_size = block_size.expect("the built-in block sizes are valid");
    let inode_size = options.inode_size.unwrap_or(256);
    options.validate(&features, block_size, inode_size)?;

    let bigalloc = features.has(Feature::BIGALLOC);
    let cluster_blocks = match options.cluster_bytes {
        Some(bytes) if bigalloc => bytes / block_size.bytes(),
        _ if bigalloc => DEFAULT_CLUSTER_BLOCKS,
        _ => 1,
    };
    let asked_blocks = blocks;
    let blocks = blocks - blocks % u64::from(cluster_blocks);
    // The last number itself stays free: on disk all ones often means "none".
    let max = if features.has(Feature::SIXTY_FOUR_BIT) { 1 << 48 } else { u64::from(u32::MAX) };
    let too_many = |max, needs_64bit| GeometryError::TooManyBlocks {
        blocks,
        max,
        block_bytes: block_size.bytes(),
        needs_64bit,
    };
    if blocks > max {
        return Err(too_many(max, !features.has(Feature::SIXTY_FOUR_BIT)));
    }
    // The resize inode is a block map, whose block numbers have 32 bits.
    if blocks > u64::from(u32::MAX) {
        features.remove(Feature::RESIZE_INODE);
    }
    if bigalloc && cluster_blocks.checked_mul(block_size.bytes() * 8).is_none() {
        // Blocks per group are a 32-bit field.
        return Err(too_many(u64::from(u32::MAX), false));
    }

    let bytes = blocks << block_size.log2();
    let (inodes, inodes_needed) = wanted_inodes(options, size, block_size, cluster_blocks, bytes);
    let too_many_inodes = GeometryError::TooManyInodes { inodes, inode_size, blocks };
    let inodes = if inodes <= u64::from(u32::MAX) {
        inodes
    } else if features.has(Feature::SIXTY_FOUR_BIT) && !inodes_needed {
        u64::from(u32::MAX)
    } else {
        return Err(too_many_inodes);
    };
    if inodes * u64::from(inode_size) >= bytes && bytes != 0 {
        return Err(too_many_inodes);
    }

    let desc_size = match features.has(Feature::SIXTY_FOUR_BIT) {
        true => options.desc_size.unwrap_or(64),
        false => 32,
    };
    let reserved_percent = options.reserved_percent.unwrap_or(options.profile.reserved_percent());
    let mut frame = Frame {
        features,
        block_size,
        cluster_blocks,
        first_data_block: u32::from(block_size.bytes() == 1024 && !bigalloc),
        inode_size,
        desc_size,
        asked_blocks,
        blocks,
        inodes,
        reserved_percent,
        resize_gdt_blocks: None,
        exact: matches!(size, SizeRequest::Exact { .. }),
        inodes_needed,
    };
    if let Some(limit) = options.resize_limit_blocks {
        frame.resize_gdt_blocks = resize_gdt_blocks(options, &frame, limit)?;
    }
    Ok(frame)
}

/// Inodes to make, and whether that is a minimum.
fn wanted_inodes(
    options: &MkfsOptions,
    size: SizeRequest,
    block_size: BlockSize,
    cluster_blocks: u32,
    bytes: u64,
) -> (u64, bool) {
    if let SizeRequest::Exact { inodes: Some(inodes), .. } = size {
        return (inodes, true);
    }
    if let Some(inodes) = options.inodes {
        return (inodes, false);
    }
    // No sense in more inodes than files can have data.
    let smallest_file = block_size.bytes() * cluster_blocks;
    let ratio = options
        .bytes_per_inode
        .unwrap_or_else(|| SizeClass::of(bytes).bytes_per_inode.max(smallest_file));
    match bytes / u64::from(ratio) {
        // A ratio above the size says nothing; one inode per 4 KiB or per larger block.
        0 => (bytes / u64::from(block_size.bytes().max(4096)), false),
        inodes => (inodes, false),
    }
}

/// Reserved descriptor blocks for growth to `limit` blocks; `None`: that needs none, and the
/// default is used.
fn resize_gdt_blocks(
    options: &MkfsOptions,
    frame: &Frame,
    limit: u64,
) -> Result<Option<u32>, GeometryError> {
    if limit <= frame.blocks {
        return Err(GeometryError::ResizeLimit { limit, blocks: frame.blocks });
    }
    let blocks_per_group =
        u64::from(options.blocks_per_group.unwrap_or(frame.block_size.bytes() * 8));
    let desc_blocks =
        |blocks: u64| blocks.div_ceil(blocks_per_group).div_ceil(u64::from(frame.desc_per_block()));
    let more = desc_blocks(limit) - desc_blocks(frame.blocks);
    let capped = more.min(u64::from(frame.addresses_per_block()));
    Ok(u32::try_from(capped).ok().filter(|&blocks| blocks != 0))
}

/// Blocks per group to start with, from `-g` and the room in a bitmap block.
fn first_blocks_per_group(options: &MkfsOptions, frame: &Frame) -> u32 {
    let bitmap_bits = frame.block_size.bytes() * 8;
    // Counts of free clusters have 16 bits in the short descriptor, and some room to spare.
    let most = (1 << 16) - 8;
    options.blocks_per_group.unwrap_or(bitmap_bits).min(most) * frame.cluster_blocks
}

fn counts(options: &MkfsOptions, frame: &Frame) -> Result<Geometry, GeometryError> {
    let mut features = frame.features;
    let mut blocks = frame.blocks;
    let mut blocks_per_group = first_blocks_per_group(options, frame);
    // Follows the last group when that is dropped, but does not come back with it when groups
    // shrink afterwards; so mke2fs has it.
    let mut reserved_blocks = frame.reserved();
    loop {
        let group_count = group_count(frame, blocks, blocks_per_group)?;
        let gdt_blocks = group_count.div_ceil(frame.desc_per_block());

        let wanted = frame.inodes.max(u64::from(FIRST_INO) + 1);
        let per_group = wanted.div_ceil(u64::from(group_count));
        let too_many_inodes =
            GeometryError::TooManyInodes { inodes: wanted, inode_size: frame.inode_size, blocks };
        if per_group > u64::from(frame.block_size.bytes()) * 8 {
            // Smaller groups are more groups, each with its own inode bitmap.
            if frame.cluster_blocks > 1 || blocks_per_group < 256 {
                return Err(too_many_inodes);
            }
            blocks_per_group -= 8;
            blocks = frame.blocks;
            continue;
        }
        let (inodes_per_group, inode_table_blocks) =
            inodes_per_group(frame, group_count, per_group as u32)
                .ok_or(too_many_inodes.clone())?;

        let mut reserved_gdt_blocks = match features.has(Feature::RESIZE_INODE) {
            true => frame
                .resize_gdt_blocks
                .unwrap_or_else(|| growth_gdt_blocks(frame, blocks, blocks_per_group, gdt_blocks)),
            false => 0,
        };
        // Descriptors that would fill most of a group are spread over the groups instead.
        if u64::from(reserved_gdt_blocks) + u64::from(gdt_blocks)
            > u64::from(blocks_per_group) * 3 / 4
        {
            features.insert(Feature::META_BG);
            features.remove(Feature::RESIZE_INODE);
            reserved_gdt_blocks = 0;
        }

        let table = u64::from(inode_table_blocks);
        let copy = 1 + u64::from(gdt_blocks) + u64::from(reserved_gdt_blocks);
        let first_group = 2 + table + if features.has(Feature::META_BG) { 2 } else { copy };
        if first_group > u64::from(blocks_per_group) {
            return Err(too_many_inodes);
        }

        let geometry = Geometry {
            features,
            block_size: frame.block_size,
            cluster_blocks: frame.cluster_blocks,
            blocks_count: blocks,
            first_data_block: frame.first_data_block,
            blocks_per_group,
            clusters_per_group: blocks_per_group / frame.cluster_blocks,
            group_count,
            inode_size: frame.inode_size,
            inodes_per_group,
            inode_table_blocks,
            inodes_count: inodes_per_group * group_count,
            first_ino: FIRST_INO,
            desc_size: frame.desc_size,
            gdt_blocks,
            // At most one per address in a block: 65536 / 4.
            reserved_gdt_blocks: reserved_gdt_blocks as u16,
            flex_groups: flex_groups(options, &features),
            backup_groups: [0; 2],
            reserved_blocks,
            stride: options.stride,
            packed: false,
            journal: None,
            orphan_file_blocks: 0,
            lost_found_blocks: 0,
        };
        let last_blocks =
            (blocks - u64::from(frame.first_data_block)) % u64::from(blocks_per_group);
        let last_needs = last_group_metadata(options, &geometry, table, copy);
        if last_blocks == 0 {
            return Ok(geometry);
        }
        if group_count == 1 && last_blocks < last_needs {
            return Err(GeometryError::TooSmall {
                blocks,
                metadata: first_group,
                block_bytes: frame.block_size.bytes(),
            });
        }
        let kept = if frame.exact {
            last_blocks >= exact_last_group_min(&geometry, last_needs, copy)
        } else {
            last_blocks >= last_needs + LAST_GROUP_SLACK
        };
        if kept {
            return Ok(geometry);
        }
        if group_count == 1 {
            return Err(GeometryError::TooSmall {
                blocks,
                metadata: last_needs + LAST_GROUP_SLACK,
                block_bytes: frame.block_size.bytes(),
            });
        }
        blocks -= last_blocks;
        reserved_blocks = frame.reserved_of(blocks);
    }
}

fn group_count(frame: &Frame, blocks: u64, blocks_per_group: u32) -> Result<u32, GeometryError> {
    let first = u64::from(frame.first_data_block);
    let groups = blocks.saturating_sub(first).div_ceil(u64::from(blocks_per_group));
    if groups == 0 {
        let block_bytes = frame.block_size.bytes();
        return Err(GeometryError::TooSmall { blocks, metadata: 6, block_bytes });
    }
    u32::try_from(groups).map_err(|_| GeometryError::TooManyBlocks {
        blocks,
        max: u64::from(u32::MAX) * u64::from(blocks_per_group),
        block_bytes: frame.block_size.bytes(),
        needs_64bit: false,
    })
}

/// Inodes per group and blocks of their table, from the inodes wanted per group.
///
/// The table's last block is filled, then the count is cut to a multiple of 8 (whole bytes of the
/// bitmap). `None`: that many groups have no room for as many inodes as are needed.
fn inodes_per_group(frame: &Frame, group_count: u32, wanted: u32) -> Option<(u32, u32)> {
    let per_block = frame.inodes_per_block();
    // Counts of free inodes have 16 bits in the short descriptor.
    let most = (1 << 16) - per_block;
    let needed = frame.inodes.max(u64::from(FIRST_INO) + 1);
    let mut wanted = wanted.min(most);
    loop {
        let filled = wanted.div_ceil(per_block) * per_block;
        let per_group = (filled & !7).max(8);
        let total = u64::from(per_group) * u64::from(group_count);
        if total > u64::from(u32::MAX) {
            // mke2fs tries one fewer; the answer changes with the next multiple of 8 down.
            wanted = filled.min(wanted).checked_sub(1)?;
            if wanted == 0 || frame.inodes_needed {
                return None;
            }
            continue;
        }
        if frame.inodes_needed && total < needed {
            wanted = filled + 1;
            if wanted > most.min(frame.block_size.bytes() * 8) {
                return None;
            }
            continue;
        }
        return Some((per_group, per_group.div_ceil(per_block)));
    }
}

/// Reserved descriptor blocks for growth to 1024 times the size, at most to 2^32 - 1 blocks.
fn growth_gdt_blocks(frame: &Frame, blocks: u64, blocks_per_group: u32, gdt_blocks: u32) -> u32 {
    let max_blocks = u64::from(u32::MAX);
    let limit = if blocks < max_blocks / 1024 { blocks * 1024 } else { max_blocks };
    let groups = (limit - u64::from(frame.first_data_block)).div_ceil(u64::from(blocks_per_group));
    let blocks = (groups as u32).div_ceil(frame.desc_per_block());
    let most = frame.addresses_per_block();
    blocks.saturating_sub(gdt_blocks).min(most)
}

fn flex_groups(options: &MkfsOptions, features: &Features) -> u32 {
    if features.has(Feature::FLEX_BG) { options.flex_groups.unwrap_or(16) } else { 1 }
}

/// Blocks of metadata that the last group would hold on its own.
fn last_group_metadata(options: &MkfsOptions, geometry: &Geometry, table: u64, copy: u64) -> u64 {
    let last = geometry.group_count - 1;
    let has_backup = if geometry.has(Feature::SPARSE_SUPER2) {
        // The second backup goes to the last group; of two groups, the last is group 1.
        options.backup_superblocks >= if geometry.group_count == 2 { 1 } else { 2 }
    } else {
        geometry.has_super(GroupIndex(last))
    };
    2 + table + if has_backup { copy } else { 0 }
}

/// Fewest blocks of a last group for a builder: where bitmaps and tables lie elsewhere, what
/// its backup takes and one block.
fn exact_last_group_min(geometry: &Geometry, last_needs: u64, copy: u64) -> u64 {
    let last = geometry.group_count - 1;
    if last.is_multiple_of(geometry.flex_groups) {
        return last_needs;
    }
    let backup = last_needs - 2 - u64::from(geometry.inode_table_blocks);
    // A copy of the descriptors includes what `meta_bg` may put there.
    if backup == 0 && !geometry.has(Feature::META_BG) { 1 } else { copy.min(last_needs) + 1 }
}

fn check_inode_count(geometry: &Geometry) -> Result<(), GeometryError> {
    let needed = FIRST_INO;
    if geometry.inodes_count < needed {
        return Err(GeometryError::TooFewInodes { inodes: geometry.inodes_count, needed });
    }
    Ok(())
}

/// Groups of the two backups of `sparse_super2`: 1 and the last.
fn place_backups(options: &MkfsOptions, geometry: &mut Geometry) {
    if !geometry.has(Feature::SPARSE_SUPER2) {
        return;
    }
    let last = geometry.group_count - 1;
    let first = if options.backup_superblocks >= 1 { last.min(1) } else { 0 };
    let second = if options.backup_superblocks >= 2 { last } else { 0 };
    geometry.backup_groups = [first, if second == first { 0 } else { second }];
}

/// lost+found is grown until it has 16 KiB and two blocks, within its direct blocks.
fn lost_found_blocks(block_size: BlockSize) -> u32 {
    ((16 << 10) / block_size.bytes()).clamp(2, 12)
}
