//! Where the inode table of each group is: by its descriptor, a backup of it, or as mke2fs would have placed it.

use extant_base::GroupIndex;
use extant_block::BlockDevice;
use extant_format::features::{Feature, Incompat};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};
use extant_format::inode::{FileKind, Inode, InodeLayout};
use extant_format::record::Record;
use extant_format::superblock::Superblock;
use extant_layout::{Geometry, Heads};

/// Backups of descriptors that are looked at.
const BACKUPS: usize = 3;
/// Most groups of a flex group whose places are computed.
const FLEX_MAX: u32 = 1024;
/// Blocks of a table that are looked at to tell whether it is one.
const SAMPLE_BLOCKS: u64 = 4;

/// The inode table of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Table {
    /// Its first block; 0: not known.
    pub(crate) start: u64,
    /// Inodes to look at, from the first one on.
    pub(crate) inodes: u32,
}

struct Finder<'a> {
    device: &'a dyn BlockDevice,
    sb: &'a Superblock,
    heads: Heads,
    sums: GroupChecksum,
    layout: InodeLayout,
    blocks: u64,
}

/// Finds the tables of the groups that begin before the device's end.
pub(crate) fn find_tables(device: &dyn BlockDevice, sb: &Superblock, blocks: u64) -> Vec<Table> {
    let finder = Finder {
        device,
        sb,
        heads: Heads::of(sb),
        sums: GroupChecksum::of(sb),
        layout: InodeLayout::of(sb),
        blocks,
    };
    let per_group = u64::from(sb.blocks_per_group).max(1);
    let from_first = blocks.saturating_sub(u64::from(sb.first_data_block));
    let reached = u32::try_from(from_first.div_ceil(per_group)).unwrap_or(u32::MAX);
    let groups = sb.group_count.min(reached);
    let mut tables = Vec::with_capacity(groups as usize);
    let mut doubtful = Vec::new();
    let mut cache: Option<(u64, Option<Vec<u8>>)> = None;
    for group in 0..groups {
        let own = finder.descriptor(group, GroupIndex(0), &mut cache);
        match own.filter(|own| own.is_sealed).map(|own| finder.trusted(&own.descriptor)) {
            Some(table) => tables.push(table),
            None => {
                tables.push(Table::default());
                doubtful.push(group);
            }
        }
    }
    if doubtful.is_empty() {
        return tables;
    }
    let computed = computed(sb, groups);
    let backups: Vec<GroupIndex> = finder.heads.superblock_groups().skip(1).take(BACKUPS).collect();
    for group in doubtful {
        let mut candidates = Vec::new();
        for from in std::iter::once(GroupIndex(0)).chain(backups.iter().copied()) {
            if let Some(copy) = finder.descriptor(group, from, &mut None) {
                candidates.push((copy.descriptor.inode_table.0, copy.is_sealed));
            }
        }
        if let Some(start) = computed.as_ref().and_then(|all| all.get(group as usize)) {
            candidates.push((*start, false));
        }
        if let Some(slot) = tables.get_mut(group as usize) {
            *slot = finder.best(group, &candidates);
        }
    }
    tables
}

/// Calls `each` with every group's own descriptor if its places are possible, and whether it has a right checksum, or none
/// that could be wrong.
pub(crate) fn each_descriptor(
    device: &dyn BlockDevice,
    sb: &Superblock,
    (blocks, groups): (u64, u32),
    each: &mut dyn FnMut(u32, Option<(GroupDescriptor, bool)>),
) {
    let finder = Finder {
        device,
        sb,
        heads: Heads::of(sb),
        sums: GroupChecksum::of(sb),
        layout: InodeLayout::of(sb),
        blocks,
    };
    let is_open = finder.sums == GroupChecksum::None;
    let mut cache = None;
    for group in 0..groups {
        let own = finder.descriptor(group, GroupIndex(0), &mut cache);
        each(group, own.map(|own| (own.descriptor, own.is_sealed || is_open)));
    }
}

struct Copy {
    descriptor: GroupDescriptor,
    /// The checksum is there and right.
    is_sealed: bool,
}

impl Finder<'_> {
    /// Returns the descriptor of a group by the table that goes with the superblock in group `from`, if its places are
    /// possible.
    fn descriptor(
        &self,
        group: u32,
        from: GroupIndex,
        cache: &mut Option<(u64, Option<Vec<u8>>)>,
    ) -> Option<Copy> {
        let per_block = self.sb.descriptors_per_block().max(1);
        let size = usize::from(self.sb.desc_size).max(32);
        let block = self.heads.descriptor_block_copy(group / per_block, from)?.0;
        if cache.as_ref().is_none_or(|(cached, _)| *cached != block) {
            let mut bytes = vec![0; self.sb.block_size.len()];
            let at = block.checked_mul(bytes.len() as u64)?;
            let read = block < self.blocks && self.device.read_at(at, &mut bytes).is_ok();
            *cache = Some((block, read.then_some(bytes)));
        }
        let bytes = cache.as_ref().and_then(|(_, bytes)| bytes.as_ref())?;
        let at = (group % per_block) as usize * size;
        let raw = bytes.get(at..at + size)?;
        let descriptor = GroupDescriptor::decode(raw).ok()?;
        let is_placed = !matches!(
            descriptor.check(GroupIndex(group), self.sb),
            Err(GroupError::OutOfRange { .. })
        );
        let is_sealed = self.sums != GroupChecksum::None
            && GroupDescriptor::verify_checksum(GroupIndex(group), &self.sums, raw).is_ok();
        is_placed.then_some(Copy { descriptor, is_sealed })
    }

    /// The table that a descriptor with a right checksum names.
    fn trusted(&self, descriptor: &GroupDescriptor) -> Table {
        let all = self.sb.inodes_per_group;
        let inodes = match descriptor.flags.contains(GroupFlags::INODE_UNINIT) {
            true => 0,
            false => all.saturating_sub(descriptor.itable_unused),
        };
        Table { start: descriptor.inode_table.0, inodes }
    }

    /// Of several places, the one that looks most like a table; of those alike, the first with a right checksum, or
    /// the first.
    fn best(&self, group: u32, candidates: &[(u64, bool)]) -> Table {
        let mut best: Option<(i64, u64)> = None;
        let mut seen: Vec<u64> = Vec::new();
        for (start, is_sealed) in candidates {
            if seen.contains(start) || *start == 0 {
                continue;
            }
            seen.push(*start);
            let score = self.score(group, *start) * 2 + i64::from(*is_sealed);
            if best.is_none_or(|(most, _)| score > most) {
                best = Some((score, *start));
            }
        }
        let start = best.map_or(0, |(_, start)| start);
        Table { start, inodes: self.sb.inodes_per_group }
    }

    /// Records at the start of a table that are inodes, less those that are none.
    fn score(&self, group: u32, start: u64) -> i64 {
        let size = usize::from(self.sb.inode_size).max(128);
        let mut score = 0;
        let mut bytes = vec![0; self.sb.block_size.len()];
        let first = group.wrapping_mul(self.sb.inodes_per_group).wrapping_add(1);
        let sample = SAMPLE_BLOCKS.min(u64::from(self.sb.inode_table_blocks()));
        for block in 0..sample {
            let at = start.saturating_add(block).saturating_mul(bytes.len() as u64);
            if self.device.read_at(at, &mut bytes).is_err() {
                score -= 1;
                continue;
            }
            let before = block as u32 * (bytes.len() / size) as u32;
            for (slot, raw) in bytes.chunks_exact(size).enumerate() {
                if raw.iter().all(|byte| *byte == 0) {
                    continue;
                }
                let ino = extant_base::Ino(first.wrapping_add(before).wrapping_add(slot as u32));
                let record = Record { ino, bytes: raw.to_vec() };
                let is_inode = match self.layout.checksum_seed {
                    Some(_) => Inode::verify_checksum(&self.layout, ino, raw).is_ok(),
                    None => {
                        record.kind().is_some() && record.links() <= 65_000
                            || (record.mode() == 0 && record.links() == 0)
                    }
                };
                let is_root = ino.0 == 2 && record.kind() == Some(FileKind::Directory);
                score += if is_inode { 1 + i64::from(is_root) } else { -1 };
            }
        }
        score
    }
}

/// The first blocks of all inode tables as mke2fs places them; `None` where it would not.
fn computed(sb: &Superblock, groups: u32) -> Option<Vec<u64>> {
    let flex = match sb.features.has_incompat(Incompat::FLEX_BG) {
        true => 1u32.checked_shl(u32::from(sb.log_groups_per_flex)).unwrap_or(1),
        false => 1,
    };
    if flex > FLEX_MAX {
        return None;
    }
    let geometry = Geometry {
        features: sb.features,
        block_size: sb.block_size,
        cluster_blocks: sb.cluster_ratio().max(1),
        blocks_count: sb.blocks_count,
        first_data_block: sb.first_data_block,
        blocks_per_group: sb.blocks_per_group,
        clusters_per_group: sb.clusters_per_group,
        group_count: sb.group_count,
        inode_size: sb.inode_size,
        inodes_per_group: sb.inodes_per_group,
        inode_table_blocks: sb.inode_table_blocks(),
        inodes_count: sb.inodes_count,
        first_ino: sb.first_inode.0,
        desc_size: sb.desc_size.max(32),
        gdt_blocks: sb.descriptor_blocks(),
        reserved_gdt_blocks: sb.reserved_gdt_blocks,
        flex_groups: flex,
        backup_groups: sb.backup_groups,
        reserved_blocks: sb.reserved_blocks_count,
        stride: u32::from(sb.raid_stride),
        packed: false,
        journal: None,
        orphan_file_blocks: 0,
        lost_found_blocks: 0,
    };
    // With fewer, a head could be all of a group, for which nothing has a place.
    let head = geometry.gdt_blocks.saturating_add(u32::from(sb.reserved_gdt_blocks));
    let is_roomy = u64::from(sb.blocks_per_group) > u64::from(head) + 8;
    if !is_roomy || geometry.has(Feature::META_BG) && sb.first_meta_bg != 0 {
        return None;
    }
    geometry.check_placement().ok()?;
    Some(geometry.groups().take(groups as usize).map(|group| group.inode_table.start).collect())
}
