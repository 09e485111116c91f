//! Clusters and inodes by number, and marks in the bitmaps of their groups.

use std::collections::BTreeMap;

use extant_base::Ino;
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::group::GroupFlags;
use extant_format::superblock::Superblock;

use crate::error::{ChangeError, Result};
use crate::image::{BitmapPlace, Image};

/// The first block of a cluster.
#[must_use]
pub fn first_of(sb: &Superblock, cluster: u64) -> u64 {
    (cluster << sb.cluster_bits()) + u64::from(sb.first_data_block)
}

/// The cluster of a block.
#[must_use]
pub fn cluster_of(sb: &Superblock, block: u64) -> u64 {
    block.saturating_sub(u64::from(sb.first_data_block)) >> sb.cluster_bits()
}

/// Clusters to be marked in the bitmaps of their groups.
#[derive(Clone, Debug, Default)]
pub struct Marks(BTreeMap<u32, Vec<(u32, bool)>>);

impl Marks {
    /// Marks a cluster.
    pub fn put(&mut self, sb: &Superblock, cluster: u64, used: bool) {
        let per = u64::from(sb.clusters_per_group);
        let list = self.0.entry((cluster / per) as u32).or_default();
        list.push(((cluster % per) as u32, used));
    }

    /// How many groups it touches.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.0.len()
    }

    /// Changes bitmaps, descriptors and counts in the draft of `image`.
    ///
    /// # Errors
    ///
    /// [`ChangeError`](crate::ChangeError).
    pub fn apply(self, image: &mut Image) -> Result {
        for (group, list) in self.0 {
            let mut bitmap = image.block_bitmap(group)?;
            for (bit, used) in list {
                match used {
                    true => bitmap.set(bit),
                    false => bitmap.clear(bit),
                };
            }
            image.set_block_bitmap(group, bitmap)?;
            image.write_descriptors(group..group + 1)?;
        }
        image.count();
        image.write_superblock()
    }
}

impl Image {
    /// The inode bitmap of a group, as it is or as its flag says.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: its checksum is wrong, too.
    pub fn inode_bitmap(&self, group: u32) -> Result<Bitmap> {
        if self.is_uninit(group, GroupFlags::INODE_UNINIT)? {
            let bits = self.sb.inodes_per_group;
            return Ok(Bitmap::of_uninit_group(self.block_bytes(), bits, []));
        }
        let descriptor = self.group(group)?;
        self.read_bitmap(&BitmapPlace {
            structure: "inode bitmap",
            group,
            block: descriptor.inode_bitmap.0,
            checksum: descriptor.inode_bitmap_checksum,
            bits: self.sb.inodes_per_group,
        })
    }

    /// Marks an inode in the draft, with the counts of its group. `is_dir`: it counts as a directory.
    ///
    /// Of a group's inodes that were never used, the next one is to be marked first: records up to the last
    /// one in use are looked at.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn mark_inode(&mut self, ino: Ino, used: bool, is_dir: bool) -> Result {
        let none = || ChangeError::damaged(format!("there is no inode {ino}"));
        let (group, at) = self.sb.group_of_inode(ino).ok_or_else(none)?;
        let mut bitmap = self.inode_bitmap(group.0)?;
        let mut descriptor = self.group(group.0)?;
        let _was_so = if used { bitmap.set(at) } else { bitmap.clear(at) };
        let per = self.sb.inodes_per_group;
        descriptor.free_inodes = bitmap.view().count_clear(0..per);
        if is_dir {
            descriptor.directories = match used {
                true => descriptor.directories.saturating_add(1),
                false => descriptor.directories.saturating_sub(1),
            };
        }
        if self.has_flags() {
            descriptor.flags.remove(GroupFlags::INODE_UNINIT);
            if used && at >= per.saturating_sub(descriptor.itable_unused) {
                descriptor.itable_unused = per - at - 1;
            }
        }
        if self.sb.features.metadata_csum() {
            descriptor.inode_bitmap_checksum =
                BitmapRef::new(bitmap.as_bytes()).checksum(self.sb.checksum_seed(), per);
        }
        self.write_block(descriptor.inode_bitmap.0, bitmap.as_bytes())?;
        if let Some(slot) = self.groups.get_mut(group.0 as usize) {
            *slot = descriptor;
        }
        self.count();
        self.write_descriptors(group.0..group.0 + 1)
    }
}
