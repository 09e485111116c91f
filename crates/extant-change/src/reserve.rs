//! The resize inode, which owns the blocks reserved for descriptors.

use extant_base::{GroupIndex, Ino};
use extant_format::record::{Record, put, u32_at};

use crate::error::{ChangeError, Result};
use crate::image::Image;

/// The doubly indirect block of the resize inode; 0: none.
#[must_use]
pub fn double_of(record: &Record) -> u64 {
    u64::from(u32_at(&record.block_area(), 13 * 4))
}

/// Returns whether a block may be the doubly indirect one of the resize inode: each entry is the block of
/// descriptors that belongs to its place, counted from `first`, or there is none. Written over a block that it is
/// not, the list would destroy what a file has there.
fn is_list(bytes: &[u8], first: u64) -> bool {
    let per_block = bytes.len() as u64 / 4;
    let entries = (0..per_block).map(|slot| (slot, u64::from(u32_at(bytes, slot as usize * 4))));
    entries.filter(|(_, entry)| *entry != 0).all(|(slot, entry)| {
        entry.checked_sub(first).is_some_and(|number| number % per_block == slot)
    })
}

/// Writes the lists of the resize inode: its doubly indirect block lists the reserve, each block of the
/// reserve its copies.
///
/// # Errors
///
/// [`ChangeError`].
pub fn write_resize_inode(image: &Image) -> Result {
    let mut record = image.load(Ino::RESIZE)?;
    let double = double_of(&record);
    if !image.in_range(double, 1) {
        return Err(ChangeError::damaged("the resize inode has no list"));
    }
    let heads = image.heads();
    let (used, reserved) = (image.sb.descriptor_blocks(), image.sb.reserved_gdt_blocks);
    let reserve = heads.head(GroupIndex(0)).reserved_gdt;
    let first = reserve.start.saturating_sub(u64::from(used));
    if !is_list(&image.read_block(double)?, first) {
        return Err(ChangeError::damaged(format!(
            "block {double}, the list of the resize inode, has something else in it"
        )));
    }
    let per_block = image.sb.block_size.bytes() / 4;
    let backups: Vec<u32> = heads.superblock_groups().skip(1).map(|group| group.0).collect();
    let mut list = vec![0; image.block_bytes()];
    for (number, home) in reserve.enumerate() {
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
