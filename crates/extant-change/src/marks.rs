//! Clusters by number, and marks in the bitmaps of their groups.

use std::collections::BTreeMap;

use extant_format::superblock::Superblock;

use crate::error::Result;
use crate::image::Image;

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
