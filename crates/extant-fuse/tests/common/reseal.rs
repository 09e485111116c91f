//! Checksums that fit a damage: a mutant that only the rules of the format can find.

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, MemoryDevice};
use extant_format::bitmap::BitmapRef;
use extant_format::checksum::{CRC32C_INIT, crc32c, inode_seed};
use extant_format::group::{GroupChecksum, GroupDescriptor};
use extant_format::htree::{self, NodePlace};
use extant_format::inode::{Inode, InodeError, InodeLayout};
use extant_format::superblock::Superblock;
use extant_format::{dir, extent, xattr};
use extant_layout::Heads;

use crate::damage::Place;

fn read(device: &MemoryDevice, at: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    device.read_at(at, &mut bytes).unwrap();
    bytes
}

/// Lets the checksums of what `place` is a part of fit its contents. Of the other structures, those of
/// `whole` are true.
pub(crate) fn reseal(device: &MemoryDevice, whole: &MemoryDevice, place: &Place) {
    let superblock = Superblock::decode(&read(whole, 1024, 1024)).unwrap();
    let bits = superblock.block_size.log2();
    let block = FsBlock(place.at >> bits);
    let block_at = block.0 << bits;
    let len = superblock.block_size.len();
    let group = GroupIndex(0);
    let table = Heads::of(&superblock).descriptor_block(0).unwrap();
    let descriptor_at = table.0 << bits;
    let descriptor_len = usize::from(superblock.desc_size);
    let stored = GroupDescriptor::decode(&read(device, descriptor_at, descriptor_len)).unwrap();
    let seal_group = |descriptor: GroupDescriptor| {
        let mut bytes = read(device, descriptor_at, descriptor_len);
        descriptor.encode(group, &GroupChecksum::of(&superblock), &mut bytes).unwrap();
        device.write_at(descriptor_at, &bytes).unwrap();
    };
    if !superblock.features.metadata_csum() {
        if place.what == "group descriptors" {
            seal_group(stored);
        }
        return;
    }
    let fs_seed = superblock.checksum_seed();
    let layout = InodeLayout::of(&superblock);
    let inode_len = usize::from(superblock.inode_size);
    let true_group = GroupDescriptor::decode(&read(whole, descriptor_at, descriptor_len)).unwrap();
    let inode_at = |ino: u32| {
        (true_group.inode_table.0 << bits) + u64::from(ino.max(1) - 1) * inode_len as u64
    };
    let seed = || {
        let record = Inode::decode(&layout, &read(whole, inode_at(place.ino), inode_len)).unwrap();
        inode_seed(fs_seed, Ino(place.ino), record.generation)
    };
    let change = |seal: &dyn Fn(&mut [u8])| {
        let mut bytes = read(device, block_at, len);
        seal(&mut bytes);
        device.write_at(block_at, &bytes).unwrap();
    };
    match place.what {
        "superblock" | "first orphan" => {
            let bytes = read(device, 1024, 1020);
            device.write_at(1024 + 1020, &crc32c(CRC32C_INIT, &bytes).to_le_bytes()).unwrap();
        }
        "group descriptors" => seal_group(stored),
        "block bitmap" | "inode bitmap" => {
            let bytes = read(device, block_at, len);
            let bitmap = BitmapRef::new(&bytes);
            let mut descriptor = stored;
            if place.what == "block bitmap" {
                let sum = bitmap.checksum(fs_seed, superblock.clusters_per_group);
                descriptor.block_bitmap_checksum = sum;
            } else {
                let sum = bitmap.checksum(fs_seed, superblock.inodes_per_group);
                descriptor.inode_bitmap_checksum = sum;
            }
            seal_group(descriptor);
        }
        "inode"
        | "inode flags"
        | "map in an inode"
        | "attributes in an inode"
        | "orphan"
        | "orphan link" => {
            let mut bytes = read(device, inode_at(place.ino), inode_len);
            let verified = Inode::verify_checksum(&layout, Ino(place.ino), &bytes);
            if let Err(InodeError::Checksum(error)) = verified {
                let [a, b, c, d] = error.computed.to_le_bytes();
                bytes[0x7c..0x7e].copy_from_slice(&[a, b]);
                if c != 0 || d != 0 {
                    bytes[0x82..0x84].copy_from_slice(&[c, d]);
                }
                device.write_at(inode_at(place.ino), &bytes).unwrap();
            }
        }
        "directory" | "directory head" => {
            let seed = seed();
            change(&|bytes| {
                if dir::tail_checksum(bytes).is_some() {
                    dir::seal(seed, bytes);
                } else if htree::checksum(seed, bytes, NodePlace::Root).is_some() {
                    htree::seal(seed, bytes, NodePlace::Root);
                } else {
                    htree::seal(seed, bytes, NodePlace::Inner);
                }
            });
        }
        "extents" | "extent header" => {
            let seed = seed();
            change(&|bytes| extent::seal(seed, bytes));
        }
        "attribute block" | "attribute header" | "attribute entry" => {
            change(&|bytes| xattr::seal(fs_seed, block, bytes));
        }
        // The journal's have their own, and mean nothing while it is empty.
        _ => {}
    }
}
