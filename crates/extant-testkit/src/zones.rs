//! Which parts of an image belong to the file system itself, found without the code that is tested.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::group::GroupDescriptor;
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::Heads;

/// Bytes of the device with superblocks, descriptors, bitmaps and inode tables, and what each of them
/// is. The journal is not among them.
///
/// # Panics
///
/// On damaged images.
pub fn zones(device: &MemoryDevice) -> Vec<(Range<u64>, String)> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes).expect("a superblock");
    let superblock = Superblock::decode(&bytes).expect("a sound superblock");
    let bits = superblock.block_size.log2();
    let heads = Heads::of(&superblock);
    let mut found = Vec::new();
    let mut add = |start: FsBlock, blocks: u32, name: String| {
        if blocks > 0 {
            found.push((start.0 << bits..(start.0 + u64::from(blocks)) << bits, name));
        }
    };
    for group in (0..superblock.group_count).map(GroupIndex) {
        let head = heads.head(group).blocks();
        let len = (head.end - head.start) as u32;
        add(FsBlock(head.start), len, format!("superblock and descriptors of group {group}"));
        let per_block = superblock.descriptors_per_block();
        let table = heads.descriptor_block(group.0 / per_block).expect("a table");
        let size = usize::from(superblock.desc_size);
        let mut bytes = vec![0; size];
        let at = (table.0 << bits) + u64::from(group.0 % per_block) * size as u64;
        device.read_at(at, &mut bytes).expect("a descriptor");
        let descriptor = GroupDescriptor::decode(&bytes).expect("a descriptor");
        add(descriptor.block_bitmap, 1, format!("block bitmap of group {group}"));
        add(descriptor.inode_bitmap, 1, format!("inode bitmap of group {group}"));
        let blocks = superblock.inode_table_blocks();
        add(descriptor.inode_table, blocks, format!("inode table of group {group}"));
    }
    found
}
