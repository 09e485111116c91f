//! Free clusters and inodes of a file system in order, by its bitmaps.

use extant_base::{BlockCount, FileBlock, FsBlock, GroupIndex, Ino};
use extant_change::{Image, Marks, cluster_of, first_of};
use extant_format::bitmap::Bitmap;
use extant_format::extent::{Extent, ExtentState, WRITTEN_LEN_MAX};

use crate::error::{Result, TuneError};

/// Free space at the beginning of a step. What becomes free in the step is not given again in it.
pub(crate) struct Space {
    groups: Vec<Option<Bitmap>>,
    marks: Marks,
    /// Group where the next search begins.
    next: u32,
}

impl Space {
    pub(crate) fn of(image: &Image) -> Space {
        Space { groups: vec![None; image.groups.len()], marks: Marks::default(), next: 0 }
    }

    /// Searches begin in that group.
    pub(crate) fn begin_at(&mut self, group: u32) {
        self.next = group;
    }

    /// Takes `len` clusters in a row of one group; the first of them.
    fn take_in(&mut self, image: &Image, group: u32, len: u32) -> Result<Option<u64>> {
        let at = group as usize;
        if image.group(group)?.free_clusters < len {
            return Ok(None);
        }
        let Some(slot) = self.groups.get_mut(at) else { return Ok(None) };
        let bitmap = match slot {
            Some(bitmap) => bitmap,
            None => slot.insert(image.block_bitmap(group)?),
        };
        let clusters = image.sb.group_clusters(GroupIndex(group));
        let Some(run) = bitmap.view().find_clear_run(0..clusters, len) else { return Ok(None) };
        let run = run.start..run.start.saturating_add(len);
        bitmap.set_range(run.clone());
        let first = u64::from(group) * u64::from(image.sb.clusters_per_group);
        for bit in run.clone() {
            self.marks.put(&image.sb, first + u64::from(bit), true);
        }
        Ok(Some(first + u64::from(run.start)))
    }

    /// Takes `len` clusters in a row of any group; the first of them.
    pub(crate) fn take(&mut self, image: &Image, len: u32) -> Result<Option<u64>> {
        let groups = image.sb.group_count;
        for step in 0..groups {
            let group = (self.next + step) % groups;
            if let Some(cluster) = self.take_in(image, group, len)? {
                self.next = group;
                return Ok(Some(cluster));
            }
        }
        Ok(None)
    }

    /// Takes `len` clusters in a row of one group.
    pub(crate) fn take_within(
        &mut self,
        image: &Image,
        group: u32,
        len: u32,
    ) -> Result<Option<u64>> {
        self.take_in(image, group, len)
    }

    /// A block of its own cluster.
    pub(crate) fn take_block(&mut self, image: &Image, what: &str) -> Result<u64> {
        match self.take(image, 1)? {
            Some(cluster) => Ok(first_of(&image.sb, cluster)),
            None => Err(TuneError::Full { what: what.to_owned(), wanted: "a block".to_owned() }),
        }
    }

    /// Blocks for the first `blocks` blocks of a file, in few pieces.
    pub(crate) fn take_file(
        &mut self,
        image: &Image,
        blocks: u32,
        what: &str,
    ) -> Result<Vec<Extent>> {
        let ratio = image.sb.cluster_ratio().max(1);
        let most = (WRITTEN_LEN_MAX / ratio).max(1).min(image.sb.clusters_per_group);
        let mut left = blocks.div_ceil(ratio);
        let mut want = left.min(most);
        let (mut pieces, mut at) = (Vec::new(), 0u32);
        while left > 0 {
            let take = want.min(left);
            let Some(cluster) = self.take(image, take)? else {
                if take <= 1 {
                    let wanted = format!("{blocks} blocks");
                    return Err(TuneError::Full { what: what.to_owned(), wanted });
                }
                want = take.div_ceil(2);
                continue;
            };
            let len = take.saturating_mul(ratio).min(blocks - at);
            pieces.push(Extent {
                file_start: FileBlock(at),
                device_start: FsBlock(first_of(&image.sb, cluster)),
                len: BlockCount(len),
                state: ExtentState::Written,
            });
            at += len;
            left -= take;
        }
        Ok(pieces)
    }

    /// Gives the clusters of blocks back, when the step is done.
    pub(crate) fn free_blocks(&mut self, image: &Image, start: u64, len: u64) {
        if len == 0 {
            return;
        }
        for cluster in cluster_of(&image.sb, start)..=cluster_of(&image.sb, start + len - 1) {
            self.marks.put(&image.sb, cluster, false);
        }
    }

    /// Takes back the clusters of heads, bitmaps and tables: with `bigalloc` what was given back may share a cluster with
    /// one of them. `image` has its new places.
    pub(crate) fn keep_fixed(&mut self, image: &Image) -> Result {
        if image.sb.cluster_ratio() <= 1 {
            return Ok(());
        }
        let (heads, len) = (image.heads(), u64::from(image.sb.inode_table_blocks()));
        for group in 0..image.sb.group_count {
            let (head, descriptor) = (heads.head(GroupIndex(group)).blocks(), image.group(group)?);
            for (start, len) in [
                (head.start, head.end.saturating_sub(head.start)),
                (descriptor.block_bitmap.0, 1),
                (descriptor.inode_bitmap.0, 1),
                (descriptor.inode_table.0, len),
            ] {
                if len == 0 {
                    continue;
                }
                for cluster in cluster_of(&image.sb, start)..=cluster_of(&image.sb, start + len - 1)
                {
                    self.marks.put(&image.sb, cluster, true);
                }
            }
        }
        Ok(())
    }

    /// Returns whether nothing was taken or given back.
    pub(crate) fn is_untouched(&self) -> bool {
        self.marks.groups() == 0
    }

    /// Marks what was taken and given back.
    pub(crate) fn apply(self, image: &mut Image) -> Result {
        Ok(self.marks.apply(image)?)
    }
}

/// The lowest free inode that is not reserved, behind what its group says was ever used or not.
pub(crate) fn free_inode(image: &Image, what: &str) -> Result<Ino> {
    let per = image.sb.inodes_per_group;
    for group in 0..image.sb.group_count {
        if image.group(group)?.free_inodes == 0 {
            continue;
        }
        let bitmap = image.inode_bitmap(group)?;
        let first = if group == 0 { image.sb.first_inode.0.saturating_sub(1) } else { 0 };
        if let Some(bit) = bitmap.view().first_clear(first..per) {
            return Ok(Ino(group * per + bit + 1));
        }
    }
    Err(TuneError::Full { what: what.to_owned(), wanted: "an inode".to_owned() })
}
