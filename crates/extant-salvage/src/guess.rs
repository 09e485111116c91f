//! The numbers of a file system that has no superblock any more, from its group descriptors.
//!
//! Descriptors stand behind each superblock. They name the bitmaps and the inode table of each group, an inode bitmap is
//! filled with ones behind its last inode, and the record of the root, which is that of a directory, tells how long
//! records are. Checksums and features cannot be guessed: nothing is verified then.

use extant_base::{BlockSize, FsBlock};
use extant_block::BlockDevice;
use extant_format::features::{Compat, Feature, Features};
use extant_format::group::GroupDescriptor;
use extant_format::record::{put, u16_at};
use extant_format::superblock::{MAGIC, SUPERBLOCK_BYTES, Superblock};

/// Descriptors that must be possible: all of them, up to that many.
const SAMPLE: u64 = 64;

/// Returns a superblock that fits the descriptors of the device. Tries all block sizes, or the one asked for.
pub(crate) fn guess(device: &dyn BlockDevice, block_size: Option<BlockSize>) -> Option<Superblock> {
    let all = [4096u64, 1024, 2048, 8192, 16_384, 32_768, 65_536];
    let sizes = all.into_iter().filter_map(|bytes| BlockSize::new(bytes).ok());
    sizes
        .filter(|size| block_size.is_none_or(|wanted| wanted == *size))
        .find_map(|size| [64u16, 32].into_iter().find_map(|desc| try_shape(device, size, desc)))
}

fn read(device: &dyn BlockDevice, block: u64, size: BlockSize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; size.len()];
    device.read_at(block.checked_mul(bytes.len() as u64)?, &mut bytes).ok()?;
    Some(bytes)
}

fn try_shape(device: &dyn BlockDevice, size: BlockSize, desc_size: u16) -> Option<Superblock> {
    let first = u64::from(size.bytes() == 1024);
    let per_group = u64::from(size.bytes()) * 8;
    let blocks = device.size_bytes() / u64::from(size.bytes());
    let groups = blocks.checked_sub(first)?.div_ceil(per_group);
    // The descriptors behind the primary superblock, or behind the backup in group 1.
    [first, first + per_group]
        .into_iter()
        .filter_map(|place| read(device, place.checked_add(1)?, size))
        .find_map(|table| of_table(device, size, desc_size, blocks, groups, &table))
}

fn of_table(
    device: &dyn BlockDevice,
    size: BlockSize,
    desc_size: u16,
    blocks: u64,
    groups: u64,
    table: &[u8],
) -> Option<Superblock> {
    let first = u64::from(size.bytes() == 1024);
    let in_range = |block: FsBlock| block.0 > first && block.0 < blocks;
    let wanted = groups.min(SAMPLE).min(table.len() as u64 / u64::from(desc_size)) as usize;
    let mut descriptors = Vec::new();
    for raw in table.chunks_exact(usize::from(desc_size)).take(wanted) {
        let one = GroupDescriptor::decode(raw).ok()?;
        let places = [one.block_bitmap, one.inode_bitmap, one.inode_table];
        let is_possible = places.iter().all(|block| in_range(*block))
            && places[0] != places[1]
            && places[1] != places[2]
            && places[0] != places[2];
        if !is_possible {
            // The last group of a device that is longer than its file system is none.
            break;
        }
        descriptors.push(one);
    }
    let head = descriptors.first()?;
    // A table of one group, with a device of several, is of something else.
    let is_enough =
        descriptors.len() == wanted || descriptors.len() as u64 + 1 >= groups.min(SAMPLE);
    let bitmap = read(device, head.inode_bitmap.0, size)?;
    let ones = bitmap.iter().rev().take_while(|byte| **byte == 0xff).count();
    let inodes = (bitmap.len().checked_sub(ones)? as u32).checked_mul(8)?;
    if !is_enough || inodes == 0 {
        return None;
    }
    let inode_size = [256u16, 128, 512, 1024]
        .into_iter()
        .filter(|bytes| u32::from(*bytes) <= size.bytes())
        .find(|bytes| is_root(device, size, head, *bytes))?;
    // Inodes fill whole blocks of their table, and the last ones may all be in use.
    let per_block = size.bytes() / u32::from(inode_size);
    let mut inodes = inodes.next_multiple_of(per_block.max(8));
    if let [a, b, ..] = descriptors.as_slice()
        && let Some(between) = b.inode_table.0.checked_sub(a.inode_table.0)
        && between.saturating_mul(u64::from(per_block)) <= u64::from(size.bytes()) * 8
    {
        inodes = inodes.max((between as u32).saturating_mul(per_block));
    }
    let inodes = inodes.min(size.bytes() * 8);
    let total = u64::from(inodes).checked_mul(groups)?;
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let mut features = Features::NONE
        .with(Feature::FILETYPE)
        .with(Feature::EXTENTS)
        .with(Feature::FLEX_BG)
        .with(Feature::INLINE_DATA)
        .with(Feature::HUGE_FILE)
        .with(Feature::LARGE_FILE);
    if desc_size == 64 {
        features.insert(Feature::SIXTY_FOUR_BIT);
    }
    debug_assert!(!features.has_compat(Compat::HAS_JOURNAL), "its log cannot be believed");
    use extant_format::features::FeatureWord;
    let log = size.log2() - 10;
    put(&mut bytes, 0x0, &u32::try_from(total).ok()?.to_le_bytes());
    put(&mut bytes, 0x4, &(blocks as u32).to_le_bytes());
    put(&mut bytes, 0x14, &(first as u32).to_le_bytes());
    put(&mut bytes, 0x18, &log.to_le_bytes());
    put(&mut bytes, 0x1c, &log.to_le_bytes());
    put(&mut bytes, 0x20, &(size.bytes() * 8).to_le_bytes());
    put(&mut bytes, 0x24, &(size.bytes() * 8).to_le_bytes());
    put(&mut bytes, 0x28, &inodes.to_le_bytes());
    put(&mut bytes, 0x38, &MAGIC.to_le_bytes());
    put(&mut bytes, 0x4c, &1u32.to_le_bytes());
    put(&mut bytes, 0x54, &11u32.to_le_bytes());
    put(&mut bytes, 0x58, &inode_size.to_le_bytes());
    put(&mut bytes, 0x5c, &features.word(FeatureWord::Compat).to_le_bytes());
    put(&mut bytes, 0x60, &features.word(FeatureWord::Incompat).to_le_bytes());
    put(&mut bytes, 0x64, &features.word(FeatureWord::RoCompat).to_le_bytes());
    put(&mut bytes, 0xfe, &desc_size.to_le_bytes());
    put(&mut bytes, 0x150, &((blocks >> 32) as u32).to_le_bytes());
    Superblock::decode_unverified(&bytes).ok()
}

/// Returns whether inode 2 is a directory, if records are that long.
fn is_root(
    device: &dyn BlockDevice,
    size: BlockSize,
    head: &GroupDescriptor,
    inode_size: u16,
) -> bool {
    let Some(table) = read(device, head.inode_table.0, size) else { return false };
    let at = usize::from(inode_size);
    let links = u16_at(&table, at + 0x1a);
    u16_at(&table, at) >> 12 == 4 && (2..=65_000).contains(&links) && u16_at(&table, at + 0x14) == 0
}
