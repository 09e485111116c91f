//! Group descriptors, and the claims of fixed metadata.

use std::collections::BTreeMap;

use extant_base::{FsBlock, GroupIndex};
use extant_format::features::Incompat;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};

use crate::checker::Checker;
use crate::claims::Claims;
use crate::{CheckError, Problem, heads};

impl Checker<'_> {
    /// Descriptors, and the claims of superblocks, descriptors, bitmaps and inode tables.
    pub(crate) fn read_groups(&mut self) -> Result<(), CheckError> {
        self.read_descriptors()?;
        self.claim_all_fixed(true);
        let groups = self.base.sb.group_count;
        self.base.fixed = (0..groups).map(|group| self.base.claims.count(group)).collect();
        let tables = (0..self.base.groups.len()).map(|group| self.base.table_bytes(group));
        let bytes = tables.fold(0, u64::saturating_add);
        self.findings.meet.begins(bytes);
        Ok(())
    }

    /// Forgets all claims but those of fixed metadata.
    pub(crate) fn claim_fixed_again(&mut self) {
        let sb = &self.base.sb;
        self.base.claims = Claims::new(sb.group_count, sb.clusters_per_group);
        self.claim_all_fixed(false);
    }

    fn claim_all_fixed(&mut self, tell: bool) {
        let mut placed = Placed::default();
        for number in 0..self.base.sb.group_count {
            let index = GroupIndex(number);
            let Some(start) = self.base.sb.group_first_block(index) else { break };
            let mut len = u64::from(heads::super_and_descriptor_blocks(&self.base.sb, index));
            // Blocks of 1 KiB in clusters: group 0 starts with the boot block.
            if number == 0
                && self.base.sb.first_data_block == 0
                && self.base.sb.block_size.bytes() == 1024
            {
                len += 1;
            }
            let told = tell.then_some(&mut placed);
            self.claim_fixed(index, "superblock and descriptors", (start.0, len), told);
        }
        let flex = self.base.sb.features.has_incompat(Incompat::FLEX_BG);
        let table_len = u64::from(self.base.sb.inode_table_blocks());
        for number in 0..self.base.groups.len() {
            let Some(descriptor) = self.base.groups.get(number).copied() else { break };
            let index = GroupIndex(number as u32);
            let start = self.base.sb.group_first_block(index).map_or(0, |block| block.0);
            let end = start + u64::from(self.base.sb.group_blocks(index));
            for (what, block, len) in [
                ("block bitmap", descriptor.block_bitmap, 1),
                ("inode bitmap", descriptor.inode_bitmap, 1),
                ("inode table", descriptor.inode_table, table_len),
            ] {
                if tell && !flex && (block.0 < start || block.0.saturating_add(len) > end) {
                    self.problem(Problem::OutsideGroup { group: index, what, block });
                }
                self.claim_fixed(index, what, (block.0, len), tell.then_some(&mut placed));
            }
        }
        if self.base.sb.features.has_incompat(Incompat::MMP) && self.base.sb.mmp_block.0 != 0 {
            let block = self.base.sb.mmp_block.0;
            let told = tell.then_some(&mut placed);
            self.claim_fixed(GroupIndex(0), "mmp block", (block, 1), told);
        }
    }

    fn read_descriptors(&mut self) -> Result<(), CheckError> {
        let size = usize::from(self.base.sb.desc_size).max(32);
        let per_block = self.base.sb.descriptors_per_block();
        let mut bytes = Vec::new();
        for index in 0..self.base.sb.descriptor_blocks() {
            let Some(block) = heads::descriptor_block(&self.base.sb, index) else { break };
            if !self.base.in_range(block.0, 1) {
                break;
            }
            // Without descriptors nothing of their groups can be found, nor of those behind.
            self.base.read_block(block.0, &mut bytes)?;
            for (within, raw) in bytes.chunks_exact(size).take(per_block as usize).enumerate() {
                let number = index.saturating_mul(per_block).saturating_add(within as u32);
                if number >= self.base.sb.group_count {
                    break;
                }
                let group = GroupIndex(number);
                if let Err(wrong) =
                    GroupDescriptor::verify_checksum(group, &self.base.group_checksum, raw)
                {
                    self.problem(Problem::Group(wrong));
                }
                let Ok(descriptor) = GroupDescriptor::decode(raw) else { break };
                if let Err(wrong) = descriptor.check(group, &self.base.sb) {
                    // Counts have a message of their own in the end.
                    if matches!(wrong, GroupError::OutOfRange { .. }) {
                        self.problem(Problem::Group(wrong));
                    }
                }
                let uninit = GroupFlags::BLOCK_UNINIT | GroupFlags::INODE_UNINIT;
                let has_sums = self.base.group_checksum != GroupChecksum::None;
                if !has_sums
                    && (descriptor.flags.intersects(uninit) || descriptor.itable_unused != 0)
                {
                    let flags = descriptor.flags.bits();
                    self.problem(Problem::GroupFlags { group, flags });
                }
                self.base.groups.push(descriptor);
            }
        }
        Ok(())
    }

    fn claim_fixed(
        &mut self,
        group: GroupIndex,
        what: &'static str,
        (block, len): (u64, u64),
        told: Option<&mut Placed>,
    ) {
        let first = u64::from(self.base.sb.first_data_block);
        let exists = block >= first
            && block.checked_add(len).is_some_and(|end| end <= self.base.sb.blocks_count);
        if len == 0 || !exists {
            return;
        }
        let (from, to) = (self.base.cluster(block), self.base.cluster(block + len - 1));
        let twice = self.base.claims.claim(from, to - from + 1);
        let Some(placed) = told else { return };
        // Pieces may share a cluster, but no block.
        let twice = match self.base.sb.bigalloc() {
            true => placed.take(block, len),
            false => twice.map(|twice| twice + first),
        };
        if let Some(block) = twice {
            self.problem(Problem::MetadataOverlap { group, what, block: FsBlock(block) });
        }
    }
}

/// Where fixed metadata lies, in blocks: one past the last of each piece, by its first. No two of them overlap.
#[derive(Default)]
struct Placed(BTreeMap<u64, u64>);

impl Placed {
    /// Takes `len` blocks from `start` on; the first of them that something else has.
    fn take(&mut self, start: u64, len: u64) -> Option<u64> {
        let end = start + len;
        let (_, last) = self.0.range(..=start).next_back().unwrap_or((&0, &0));
        let twice = match *last > start {
            true => Some(start),
            false => self.0.range(start..end).next().map(|(first, _)| *first),
        };
        if twice.is_none() {
            self.0.insert(start, end);
        }
        twice
    }
}
