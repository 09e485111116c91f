//! Group descriptors and fixed metadata at the start; bitmaps and counts at the end.

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::bitmap::BitmapRef;
use extant_format::features::Incompat;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};

use crate::checker::Checker;
use crate::claims::compare;
use crate::{CheckError, Problem, heads};

impl Checker<'_> {
    /// Descriptors, and the claims of superblocks, descriptors, bitmaps and inode tables.
    pub(crate) fn read_groups(&mut self) -> Result<(), CheckError> {
        self.read_descriptors()?;
        for number in 0..self.sb.group_count {
            let index = GroupIndex(number);
            let Some(start) = self.sb.group_first_block(index) else { break };
            let mut len = u64::from(heads::super_and_descriptor_blocks(&self.sb, index));
            // Blocks of 1 KiB in clusters: group 0 starts with the boot block.
            if number == 0 && self.sb.first_data_block == 0 && self.sb.block_size.bytes() == 1024 {
                len += 1;
            }
            self.claim_fixed(index, "superblock and descriptors", start.0, len);
        }
        let flex = self.sb.features.has_incompat(Incompat::FLEX_BG);
        let table_len = u64::from(self.sb.inode_table_blocks());
        for number in 0..self.groups.len() {
            let Some(descriptor) = self.groups.get(number).copied() else { break };
            let index = GroupIndex(number as u32);
            let start = self.sb.group_first_block(index).map_or(0, |block| block.0);
            let end = start + u64::from(self.sb.group_blocks(index));
            for (what, block, len) in [
                ("block bitmap", descriptor.block_bitmap, 1),
                ("inode bitmap", descriptor.inode_bitmap, 1),
                ("inode table", descriptor.inode_table, table_len),
            ] {
                if !flex && (block.0 < start || block.0.saturating_add(len) > end) {
                    self.problem(Problem::OutsideGroup { group: index, what, block });
                }
                self.claim_fixed(index, what, block.0, len);
            }
        }
        if self.sb.features.has_incompat(Incompat::MMP) && self.sb.mmp_block.0 != 0 {
            self.claim_fixed(GroupIndex(0), "mmp block", self.sb.mmp_block.0, 1);
        }
        self.fixed = (0..self.sb.group_count).map(|group| self.claims.count(group)).collect();
        Ok(())
    }

    fn read_descriptors(&mut self) -> Result<(), CheckError> {
        let size = usize::from(self.sb.desc_size).max(32);
        let per_block = self.sb.descriptors_per_block();
        let mut bytes = Vec::new();
        for index in 0..self.sb.descriptor_blocks() {
            let Some(block) = heads::descriptor_block(&self.sb, index) else { break };
            if !self.in_range(block.0, 1) {
                break;
            }
            self.read_block(block.0, &mut bytes)?;
            for (within, raw) in bytes.chunks_exact(size).take(per_block as usize).enumerate() {
                let number = index.saturating_mul(per_block).saturating_add(within as u32);
                if number >= self.sb.group_count {
                    break;
                }
                let group = GroupIndex(number);
                if let Err(wrong) =
                    GroupDescriptor::verify_checksum(group, &self.group_checksum, raw)
                {
                    self.problem(Problem::Group(wrong));
                }
                let Ok(descriptor) = GroupDescriptor::decode(raw) else { break };
                if let Err(wrong) = descriptor.check(group, &self.sb) {
                    // Counts have a message of their own in the end.
                    if matches!(wrong, GroupError::OutOfRange { .. }) {
                        self.problem(Problem::Group(wrong));
                    }
                }
                let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                let has_sums = self.group_checksum != GroupChecksum::None;
                if !has_sums
                    && (descriptor.flags.intersects(uninit) || descriptor.itable_unused != 0)
                {
                    let flags = descriptor.flags.bits();
                    self.problem(Problem::GroupFlags { group, flags });
                }
                self.groups.push(descriptor);
            }
        }
        Ok(())
    }

    fn claim_fixed(&mut self, group: GroupIndex, what: &'static str, block: u64, len: u64) {
        let first = u64::from(self.sb.first_data_block);
        let exists =
            block >= first && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count);
        if len == 0 || !exists {
            return;
        }
        let (from, to) = (self.cluster(block), self.cluster(block + len - 1));
        let twice = self.claims.claim(from, to - from + 1);
        if let Some(twice) = twice
            && !self.sb.bigalloc()
        {
            let block = FsBlock(twice + first);
            self.problem(Problem::MetadataOverlap { group, what, block });
        }
    }

    fn is_uninit(&self, descriptor: &GroupDescriptor, flag: GroupFlags) -> bool {
        self.group_checksum != GroupChecksum::None && descriptor.flags.contains(flag)
    }

    /// Bitmaps, and the counts of groups and superblock.
    pub(crate) fn check_bitmaps(&mut self) -> Result<(), CheckError> {
        let mut bytes = Vec::new();
        let (mut free_clusters, mut free_inodes) = (0u64, 0u64);
        let directories = self.directories_by_group();
        let mut clusters_used = 0u64;
        for number in 0..self.groups.len() {
            let Some(descriptor) = self.groups.get(number).copied() else { break };
            let group = GroupIndex(number as u32);
            let clusters = self.sb.group_clusters(group);
            let inodes = self.sb.inodes_per_group;
            let claimed = self.claims.count(group.0).min(clusters);
            let used = self.used.get(number).and_then(Option::as_deref);
            let used = used.map_or(0, |words| words.iter().map(|w| w.count_ones()).sum::<u32>());
            self.check_block_bitmap(group, &descriptor, &mut bytes)?;
            self.check_inode_bitmap(group, &descriptor, used, &mut bytes)?;
            let free = (clusters - claimed, inodes.saturating_sub(used));
            let dirs = directories.get(number).copied().unwrap_or(0);
            for (what, stored, counted) in [
                ("free clusters", descriptor.free_clusters, free.0),
                ("free inodes", descriptor.free_inodes, free.1),
                ("directories", descriptor.directories, dirs),
            ] {
                if stored != counted {
                    self.problem(Problem::GroupCount { group, what, stored, counted });
                }
            }
            if descriptor.itable_unused > inodes && self.group_checksum != GroupChecksum::None {
                self.problem(Problem::GroupCount {
                    group,
                    what: "unused inodes",
                    stored: descriptor.itable_unused,
                    counted: inodes,
                });
            }
            free_clusters += u64::from(free.0);
            free_inodes += u64::from(free.1);
            clusters_used += u64::from(claimed);
            self.counts_mut().inodes += used;
        }
        self.counts_mut().blocks = clusters_used << self.sb.cluster_bits();
        if self.options.strict_totals {
            let free_blocks = free_clusters << self.sb.cluster_bits();
            for (what, stored, counted) in [
                ("free blocks", self.sb.free_blocks_count, free_blocks),
                ("free inodes", u64::from(self.sb.free_inodes_count), free_inodes),
            ] {
                if stored != counted {
                    self.problem(Problem::SuperblockCount { what, stored, counted });
                }
            }
        }
        Ok(())
    }

    fn check_block_bitmap(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
        bytes: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        if self.is_uninit(descriptor, GroupFlags::BLOCK_UNINIT) {
            let fixed = self.fixed.get(group.0 as usize).copied().unwrap_or(0);
            let found = self.claims.count(group.0).saturating_sub(fixed);
            if found != 0 {
                self.problem(Problem::UninitUsed { group, flag: "BLOCK_UNINIT", found });
            }
            return Ok(());
        }
        if !self.in_range(descriptor.block_bitmap.0, 1) {
            return Ok(());
        }
        self.read_block(descriptor.block_bitmap.0, bytes)?;
        let bits = self.sb.group_clusters(group);
        let wrong = compare(bytes, self.claims.words(group.0), bits);
        if let Some((bit, marked, differences)) = wrong {
            let first = self.sb.group_first_block(group).map_or(0, |block| block.0);
            let block = FsBlock(first + (u64::from(bit) << self.sb.cluster_bits()));
            self.problem(Problem::BlockBitmap { group, block, marked, differences });
        }
        let stored = descriptor.block_bitmap_checksum;
        let all = self.sb.clusters_per_group;
        self.check_bitmap(group, "block", bytes, (bits, all, stored));
        Ok(())
    }

    fn check_inode_bitmap(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
        used: u32,
        bytes: &mut Vec<u8>,
    ) -> Result<(), CheckError> {
        if self.is_uninit(descriptor, GroupFlags::INODE_UNINIT) {
            if used != 0 {
                self.problem(Problem::UninitUsed { group, flag: "INODE_UNINIT", found: used });
            }
            return Ok(());
        }
        if !self.in_range(descriptor.inode_bitmap.0, 1) {
            return Ok(());
        }
        self.read_block(descriptor.inode_bitmap.0, bytes)?;
        let bits = self.sb.inodes_per_group;
        let used = self.used.get(group.0 as usize).and_then(Option::as_deref);
        if let Some((bit, marked, differences)) = compare(bytes, used, bits) {
            let ino = Ino(group.0.saturating_mul(bits).saturating_add(bit).saturating_add(1));
            self.problem(Problem::InodeBitmap { group, ino, marked, differences });
        }
        let stored = descriptor.inode_bitmap_checksum;
        self.check_bitmap(group, "inode", bytes, (bits, bits, stored));
        Ok(())
    }

    /// Padding and checksum. `(used, covered, stored)`: bits in use, bits that the checksum covers,
    /// and its stored value.
    fn check_bitmap(
        &mut self,
        group: GroupIndex,
        what: &'static str,
        bytes: &[u8],
        (used, covered, stored): (u32, u32, u32),
    ) {
        let bitmap = BitmapRef::new(bytes);
        if !bitmap.is_padded(used) {
            self.problem(Problem::Padding { group, what });
        }
        if self.sb.features.metadata_csum() {
            let wide = self.sb.desc_size >= 64;
            let name = if what == "block" { "block bitmap" } else { "inode bitmap" };
            if let Err(source) = bitmap.verify_checksum(name, self.seed, covered, stored, wide) {
                self.problem(Problem::BitmapChecksum { group, source });
            }
        }
    }

    pub(crate) fn directories_by_group(&self) -> Vec<u32> {
        let mut counts = vec![0u32; self.groups.len()];
        for info in self.infos.iter().filter(|info| info.is_dir()) {
            let group = self.sb.group_of_inode(info.ino).map_or(0, |(group, _)| group.0);
            if let Some(count) = counts.get_mut(group as usize) {
                *count += 1;
            }
        }
        counts
    }
}
