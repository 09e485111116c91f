//! Where the inode table of each group is: by its descriptor, a backup of it, as mke2fs would have placed it, or by the
//! inodes found.

use extant_base::GroupIndex;
use extant_block::BlockDevice;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};
use extant_format::superblock::Superblock;
use extant_layout::{Heads, TableSearch, mke2fs_geometry, table_score};

/// Backups of descriptors that are looked at.
const BACKUPS: usize = 3;

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
    blocks: u64,
}

/// Finds the tables of the groups that begin before the device's end.
pub(crate) fn find_tables(device: &dyn BlockDevice, sb: &Superblock, blocks: u64) -> Vec<Table> {
    let finder = Finder { device, sb, heads: Heads::of(sb), sums: GroupChecksum::of(sb), blocks };
    let per_group = u64::from(sb.blocks_per_group).max(1);
    let from_first = blocks.saturating_sub(u64::from(sb.first_data_block));
    let reached = u32::try_from(from_first.div_ceil(per_group)).unwrap_or(u32::MAX);
    let groups = sb.group_count.min(reached);
    let mut tables = Vec::with_capacity(groups as usize);
    let mut doubtful = Vec::new();
    let mut cache: Option<(u64, Option<Vec<u8>>)> = None;
    let backups: Vec<GroupIndex> = finder.heads.superblock_groups().skip(1).take(BACKUPS).collect();
    let mut copies = None;
    for group in 0..groups {
        let own = finder.descriptor(group, GroupIndex(0), &mut cache);
        // A right checksum says that the descriptor is one, not where the table is: a copy may say something else.
        let copy = backups.first().and_then(|from| finder.descriptor(group, *from, &mut copies));
        let is_uncontested = |own: &Copy| {
            let start = own.descriptor.inode_table;
            copy.is_none_or(|copy| copy.descriptor.inode_table == start)
                && (group != 0 || finder.score(group, start.0) > 0)
        };
        let trusted = own.filter(|own| own.is_sealed && is_uncontested(own));
        match trusted.map(|own| finder.trusted(&own.descriptor)) {
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
    // The first blocks of all tables as mke2fs places them.
    let computed: Option<Vec<u64>> = mke2fs_geometry(sb).map(|geometry| {
        let groups = geometry.groups().take(groups as usize);
        groups.map(|group| group.inode_table.start).collect()
    });
    let mut search = TableSearch::default();
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
            *slot = finder.best(group, &candidates, &mut search);
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
    let finder = Finder { device, sb, heads: Heads::of(sb), sums: GroupChecksum::of(sb), blocks };
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
    /// the first. Where none looks like one, that which is found by its inodes.
    fn best(&self, group: u32, candidates: &[(u64, bool)], search: &mut TableSearch) -> Table {
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
        let mut start = best.map_or(0, |(_, start)| start);
        // A right checksum alone is a score of 1.
        if best.is_none_or(|(score, _)| score <= 1) {
            let mut read = |block: u64, bytes: &mut [u8]| self.read(block, bytes);
            start = search.find(self.sb, GroupIndex(group), &mut read).unwrap_or(start);
        }
        Table { start, inodes: self.sb.inodes_per_group }
    }

    fn score(&self, group: u32, start: u64) -> i64 {
        table_score(self.sb, GroupIndex(group), start, &mut |block, bytes| self.read(block, bytes))
    }

    fn read(&self, block: u64, bytes: &mut [u8]) -> bool {
        self.device.read_at(block.saturating_mul(bytes.len() as u64), bytes).is_ok()
    }
}
