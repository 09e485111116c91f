//! Changes of single fields in images, with checksums that fit.
#![allow(dead_code, reason = "each test binary uses a part")]

use std::sync::Arc;

use extant::{FsBlock, GroupIndex, MountOptions};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::inode::{Inode as Record, InodeFlags, InodeLayout};
use extant_format::superblock::Superblock;
use extant_layout::Heads;

fn superblock(device: &MemoryDevice) -> Superblock {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    Superblock::decode(&bytes).unwrap()
}

fn place_of(superblock: &Superblock, group: GroupIndex) -> u64 {
    let per_block = superblock.descriptors_per_block();
    let table = Heads::of(superblock).descriptor_block(group.0 / per_block).unwrap();
    superblock.block_size.offset_of(table).unwrap()
        + u64::from(group.0 % per_block) * u64::from(superblock.desc_size)
}

/// Changes the inode that a path leads to; where it lies.
pub(crate) fn patch_inode(
    device: &MemoryDevice,
    path: &str,
    change: impl FnOnce(&mut Record),
) -> u64 {
    let fs = MountOptions::new().open_shared(Arc::new(device.snapshot())).unwrap();
    let ino = fs.resolve_link(path).unwrap().ino();
    let superblock = superblock(device);
    let layout = InodeLayout::of(&superblock);
    let (group, index) = superblock.group_of_inode(ino).unwrap();
    let table = superblock.block_size.offset_of(fs.group(group).unwrap().inode_table).unwrap();
    let at = table + u64::from(index) * u64::from(superblock.inode_size);
    let mut bytes = vec![0; usize::from(superblock.inode_size)];
    device.read_at(at, &mut bytes).unwrap();
    let mut record = Record::decode(&layout, &bytes).unwrap();
    change(&mut record);
    record.encode(&layout, ino, &mut bytes).unwrap();
    device.write_at(at, &bytes).unwrap();
    at
}

/// Changes a group's descriptor.
pub(crate) fn patch_group(
    device: &MemoryDevice,
    group: GroupIndex,
    change: impl FnOnce(&mut GroupDescriptor),
) {
    let superblock = superblock(device);
    let at = place_of(&superblock, group);
    let mut bytes = vec![0; usize::from(superblock.desc_size)];
    device.read_at(at, &mut bytes).unwrap();
    let mut descriptor = GroupDescriptor::decode(&bytes).unwrap();
    change(&mut descriptor);
    descriptor.encode(group, &GroupChecksum::of(&superblock), &mut bytes).unwrap();
    device.write_at(at, &bytes).unwrap();
}

fn put(record: &mut Record, at: usize, bytes: &[u8]) {
    record.block[at..at + bytes.len()].copy_from_slice(bytes);
}

/// Lets the first block of a file be `block`.
pub(crate) fn point_first(record: &mut Record, block: FsBlock) {
    let low = u32::try_from(block.0).unwrap().to_le_bytes();
    let extents = record.flags.contains(InodeFlags::EXTENTS);
    // The first extent, or the first pointer.
    put(record, if extents { 12 + 8 } else { 0 }, &low);
}

/// Lets what maps the blocks from the twelfth on be in `block`.
pub(crate) fn point_below(record: &mut Record, block: FsBlock) {
    let low = u32::try_from(block.0).unwrap().to_le_bytes();
    if !record.flags.contains(InodeFlags::EXTENTS) {
        put(record, 12 * 4, &low);
        return;
    }
    // One index entry: magic, entries, most, depth, generation; first file block, child, high half.
    let mut root = [0; 60];
    root[..8].copy_from_slice(&[0x0a, 0xf3, 1, 0, 4, 0, 1, 0]);
    root[16..20].copy_from_slice(&low);
    record.block = root;
}

/// Makes the superblock's checksum fit what is there, and those of the descriptors if they depend on it.
pub(crate) fn reseal(device: &MemoryDevice) {
    let mut bytes = [0; 1024];
    device.read_at(1024, &mut bytes).unwrap();
    let sum = extant_format::checksum::crc32c(extant_format::checksum::CRC32C_INIT, &bytes[..1020]);
    device.write_at(1024 + 1020, &sum.to_le_bytes()).unwrap();
}
