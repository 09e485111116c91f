//! Group descriptors and bitmaps.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::bitmap::Bitmap;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};

use crate::geometry::GroupLayout;
use crate::options::Feature;
use crate::tree::Kind;
use crate::write::WriteError;
use crate::write::chunk::Worker;
use crate::write::image::Image;

impl Worker<'_> {
    /// Describes groups `range`, writes those bitmaps that are needed, and every copy of their
    /// descriptor blocks.
    pub(super) fn groups(&mut self, range: Range<u32>) -> Result<(), WriteError> {
        let image = self.image;
        let geometry = &image.plan.layout.geometry;
        let size = usize::from(geometry.desc_size);
        let bytes = (range.len() * size).next_multiple_of(image.block_bytes());
        let mut table = vec![0; bytes];
        let layouts = geometry.groups().skip(range.start as usize).take(range.len());
        for (layout, record) in layouts.zip(table.chunks_exact_mut(size)) {
            let descriptor = self.describe(&layout)?;
            descriptor
                .encode(layout.group, &image.group_checksum, record)
                .map_err(|e| WriteError::encode(format!("group {}", layout.group), e))?;
        }
        for copy in image.descriptor_copies(&range) {
            image.write(FsBlock(copy), &table, &mut self.written)?;
        }
        Ok(())
    }

    /// The descriptor of one group; writes its bitmaps and zeroes the rest of its inode table.
    fn describe(&mut self, layout: &GroupLayout) -> Result<GroupDescriptor, WriteError> {
        let image = self.image;
        let geometry = &image.plan.layout.geometry;
        let has_flags = image.group_checksum != GroupChecksum::None;
        let mut descriptor = GroupDescriptor {
            block_bitmap: FsBlock(layout.block_bitmap),
            inode_bitmap: FsBlock(layout.inode_bitmap),
            inode_table: FsBlock(layout.inode_table.start),
            ..GroupDescriptor::default()
        };

        let used = image.used_clusters(layout);
        let clusters = layout.block_count.div_ceil(geometry.cluster_blocks);
        let is_last = layout.group.0 + 1 == geometry.group_count;
        if has_flags && !used.has_data && !used.serves_others && !is_last {
            descriptor.flags |= GroupFlags::BLOCK_UNINIT;
            descriptor.free_clusters = clusters - used.fixed;
        } else {
            let mut bitmap = Bitmap::zeroed(image.block_bytes());
            used.ranges.iter().for_each(|range| bitmap.set_range(range.clone()));
            descriptor.free_clusters = clusters - bitmap.view().count_set(0..clusters);
            bitmap.pad(clusters);
            if let Some(seed) = image.seed {
                descriptor.block_bitmap_checksum =
                    bitmap.view().checksum(seed, geometry.clusters_per_group);
            }
            image.write(descriptor.block_bitmap, bitmap.as_bytes(), &mut self.written)?;
        }

        let per_group = geometry.inodes_per_group;
        let first = layout.group.0 * per_group;
        let inos = &image.plan.demand.inos;
        let range = first + 1..first.saturating_add(per_group).saturating_add(1);
        // All up to the last one that is used have been written.
        let inodes = inos.last_in(range.clone()).map_or(0, |ino| ino.0 - first);
        let mut bitmap = Bitmap::zeroed(image.block_bytes());
        inos.each_run(range, |run| bitmap.set_range(run.start - first - 1..run.end - first - 1));
        descriptor.free_inodes = per_group - bitmap.view().count_set(0..per_group);
        descriptor.directories = image.directories(first + 1..first + inodes + 1);
        if has_flags && inodes == 0 {
            descriptor.flags |= GroupFlags::INODE_UNINIT;
        } else {
            bitmap.pad(per_group);
            if let Some(seed) = image.seed {
                descriptor.inode_bitmap_checksum = bitmap.view().checksum(seed, per_group);
            }
            image.write(descriptor.inode_bitmap, bitmap.as_bytes(), &mut self.written)?;
        }
        if has_flags {
            descriptor.itable_unused = per_group - inodes;
        }
        if self.zero_table(layout, inodes, has_flags)? && has_flags {
            descriptor.flags |= GroupFlags::INODE_ZEROED;
        }
        Ok(descriptor)
    }

    /// Makes the part of the inode table that no inode job writes zero (W3); false when it is left
    /// to the kernel.
    fn zero_table(
        &self,
        layout: &GroupLayout,
        inodes: u32,
        has_flags: bool,
    ) -> Result<bool, WriteError> {
        let image = self.image;
        if image.options.target_is_zeroed {
            return Ok(true);
        }
        if has_flags && image.plan.options.lazy_itable_init {
            return Ok(false);
        }
        let per_block = image.plan.layout.geometry.inodes_per_block();
        let start = layout.inode_table.start + u64::from(inodes.div_ceil(per_block));
        image.zero(start, layout.inode_table.end.saturating_sub(start))?;
        Ok(true)
    }
}

/// Clusters of one group that are in use.
struct Used {
    /// In clusters from the group's start; may overlap.
    ranges: Vec<Range<u32>>,
    /// How many the fixed metadata of any group takes here.
    fixed: u32,
    /// Something that is not fixed metadata lies here.
    has_data: bool,
    /// Whether bitmaps or tables of other groups lie here, which cannot be computed from this group
    /// alone.
    serves_others: bool,
}

impl Image<'_> {
    fn used_clusters(&self, layout: &GroupLayout) -> Used {
        let plan = &self.plan.layout;
        let ratio = u64::from(plan.geometry.cluster_blocks);
        // Bits count from the group's start, which is a cluster limit.
        let base = layout.first_block;
        let blocks = base..base + u64::from(layout.block_count);
        let mut ranges = Vec::new();
        let mut fixed = 0;
        let mut fixed_blocks = 0;
        let mut counted = 0u32;
        for run in plan.fixed.within(blocks.clone()) {
            fixed_blocks += run.end - run.start;
            let range =
                ((run.start - base) / ratio) as u32..(run.end - base).div_ceil(ratio) as u32;
            // Two runs can share a cluster.
            fixed += range.end - range.start.max(counted).min(range.end);
            counted = range.end;
            ranges.push(range);
        }
        let (mut data, mut fixed_below) = (0, 0);
        let first = plan.used.partition_point(|run| run.end <= blocks.start);
        for run in plan.used[first..].iter().take_while(|run| run.start < blocks.end) {
            let start = (run.start.max(base) - base) / ratio;
            let end = (run.end.min(blocks.end) - base).div_ceil(ratio);
            data += end - start;
            fixed_below += plan
                .fixed
                .within(base + start * ratio..(base + end * ratio).min(blocks.end))
                .map(|run| (run.end - base).div_ceil(ratio) - (run.start - base) / ratio)
                .sum::<u64>();
            ranges.push(start as u32..end as u32);
        }
        let mut own = u64::from(layout.has_super())
            + (layout.gdt.end - layout.gdt.start)
            + (layout.reserved_gdt.end - layout.reserved_gdt.start);
        own += u64::from(blocks.contains(&layout.block_bitmap));
        own += u64::from(blocks.contains(&layout.inode_bitmap));
        if blocks.contains(&layout.inode_table.start) {
            own += layout.inode_table.end.min(blocks.end) - layout.inode_table.start;
        }
        Used { ranges, fixed, has_data: data > fixed_below, serves_others: fixed_blocks != own }
    }

    /// Returns how many of a range of inodes are directories.
    fn directories(&self, range: Range<u32>) -> u32 {
        let inos = &self.plan.demand.inos;
        let nodes = range.filter_map(|ino| inos.node(Ino(ino)));
        nodes.filter(|&node| self.tree.node(node).kind == Kind::Dir).count() as u32
    }

    /// First blocks of all copies of the descriptors of `range`, which fills whole blocks.
    fn descriptor_copies(&self, range: &Range<u32>) -> Vec<u64> {
        let geometry = &self.plan.layout.geometry;
        let per_block = geometry.desc_per_block();
        if geometry.has(Feature::META_BG) {
            // Copies lie in the first, the second and the last group that the block describes.
            let last = range.start + per_block - 1;
            let mut groups = vec![range.start, range.start + 1, last];
            groups.dedup();
            return groups
                .into_iter()
                .filter(|&group| group < geometry.group_count)
                .map(|group| geometry.group(GroupIndex(group)).gdt)
                .filter(|gdt| !gdt.is_empty())
                .map(|gdt| gdt.start)
                .collect();
        }
        let skip = u64::from(range.start / per_block);
        let copies = self.super_groups.iter().map(|&group| geometry.group(GroupIndex(group)).gdt);
        copies.filter(|gdt| !gdt.is_empty()).map(|gdt| gdt.start + skip).collect()
    }
}
