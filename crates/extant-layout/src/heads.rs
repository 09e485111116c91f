//! Superblock, descriptors and their backups: which groups have them, and where.

use core::ops::Range;

use extant_base::{BlockSize, FsBlock, GroupIndex, sabotage};
use extant_format::features::{Feature, Features};
use extant_format::superblock::Superblock;

/// The blocks that a group has at its start, before any bitmap. Contiguous.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GroupHead {
    /// First block of the group, where the head starts.
    pub start: u64,
    /// The superblock or a backup of it.
    pub super_block: Option<u64>,
    /// Blocks with group descriptors; empty when none.
    pub gdt: Range<u64>,
    /// Blocks reserved for more descriptors; empty when none.
    pub reserved_gdt: Range<u64>,
}

impl GroupHead {
    /// All blocks of the head; empty for most groups. In group 0 of a file system with blocks of
    /// 1 KiB in clusters, the boot block is one of them.
    pub fn blocks(&self) -> Range<u64> {
        let after_super = self.super_block.map_or(self.start, |block| block.saturating_add(1));
        self.start..after_super.max(self.gdt.end).max(self.reserved_gdt.end)
    }
}

/// The starts of all groups of one file system.
///
/// The numbers may come from a hostile superblock that decoded: answers then are as wrong as they,
/// but nothing overflows, and nothing takes long. Small, and made in no time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heads {
    pub(crate) features: Features,
    pub(crate) block_size: BlockSize,
    pub(crate) blocks_count: u64,
    pub(crate) first_data_block: u32,
    pub(crate) blocks_per_group: u32,
    pub(crate) group_count: u32,
    pub(crate) desc_per_block: u32,
    pub(crate) gdt_blocks: u32,
    pub(crate) reserved_gdt_blocks: u32,
    pub(crate) first_meta_bg: u32,
    pub(crate) backup_groups: [u32; 2],
}

/// Returns whether `number` is a power of `base`, 1 included.
fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

impl Heads {
    /// Returns the heads of the groups of the file system that `superblock` describes.
    pub fn of(superblock: &Superblock) -> Heads {
        Heads {
            features: superblock.features,
            block_size: superblock.block_size,
            blocks_count: superblock.blocks_count,
            first_data_block: superblock.first_data_block,
            blocks_per_group: superblock.blocks_per_group,
            group_count: superblock.group_count,
            desc_per_block: superblock.descriptors_per_block().max(1),
            gdt_blocks: superblock.descriptor_blocks(),
            reserved_gdt_blocks: u32::from(superblock.reserved_gdt_blocks),
            first_meta_bg: superblock.first_meta_bg,
            backup_groups: superblock.backup_groups,
        }
    }

    /// Returns whether `group` has the superblock or a backup of it: group 0 always, the others as
    /// `sparse_super2` or `sparse_super` say; without either, every group.
    pub fn has_superblock(&self, group: GroupIndex) -> bool {
        let group = group.0;
        if group == 0 {
            return true;
        }
        if self.features.has(Feature::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group);
        }
        if group == 1 || !self.features.has(Feature::SPARSE_SUPER) {
            return true;
        }
        if sabotage("layout.heads.multiples-of-7") && group.is_multiple_of(7) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
    }

    /// The head of `group`; empty ranges where it has nothing. Of a group that does not exist,
    /// everything is empty.
    pub fn head(&self, group: GroupIndex) -> GroupHead {
        let start = self.first_block(group);
        if group.0 >= self.group_count {
            return GroupHead {
                start,
                super_block: None,
                gdt: start..start,
                reserved_gdt: start..start,
            };
        }
        let end = start.saturating_add(u64::from(self.blocks_per_group)).min(self.blocks_count);
        let super_block = self.has_superblock(group).then_some(self.super_place(start));
        let after_super = super_block.map_or(start, |block| block.saturating_add(1));
        let run =
            |from: u64, blocks: u32| from.min(end)..from.saturating_add(u64::from(blocks)).min(end);
        let (gdt, reserved) = self.table_blocks(group, super_block.is_some());
        let gdt = run(after_super, gdt);
        let reserved_gdt = run(gdt.end, reserved);
        GroupHead { start, super_block, gdt, reserved_gdt }
    }

    /// The groups with a superblock, in order; group 0, with the primary one, is the first.
    pub fn superblock_groups(&self) -> impl Iterator<Item = GroupIndex> + use<> {
        let heads = *self;
        self.groups().filter(move |group| heads.has_superblock(*group))
    }

    /// The groups with anything at their start, in order. Costs no time for the groups between
    /// them.
    pub fn groups(&self) -> impl Iterator<Item = GroupIndex> + use<> {
        let heads = *self;
        let mut from = Some(GroupIndex(0));
        core::iter::from_fn(move || {
            let group = heads.next(from?)?;
            from = group.0.checked_add(1).map(GroupIndex);
            Some(group)
        })
    }

    /// The next group from `from` on that has anything at its start; `None`: no more.
    pub fn next(&self, from: GroupIndex) -> Option<GroupIndex> {
        let from = from.0;
        let mut next: Option<u32> = None;
        let mut offer = |group: u64| {
            if group >= u64::from(from) && group < u64::from(self.group_count) {
                let group = group as u32;
                next = Some(next.map_or(group, |best| best.min(group)));
            }
        };
        offer(0);
        if self.features.has(Feature::META_BG) {
            // Groups 0, 1 and the last of each stretch whose descriptors fit in one block.
            let stretch = u64::from(self.desc_per_block);
            let spread = u64::from(self.first_meta_bg).saturating_mul(stretch);
            let start = (u64::from(from) / stretch * stretch).max(spread);
            [start, start + 1, start + stretch - 1, start + stretch]
                .into_iter()
                .for_each(&mut offer);
        }
        if self.features.has(Feature::SPARSE_SUPER2) {
            let backups = self.backup_groups.iter().filter(|group| **group != 0);
            backups.for_each(|&group| offer(u64::from(group)));
        } else if !self.features.has(Feature::SPARSE_SUPER) {
            offer(u64::from(from));
        } else {
            offer(1);
            for base in [3u64, 5, 7] {
                let mut power = base;
                while power < u64::from(from) {
                    power *= base;
                }
                offer(power);
            }
        }
        next.map(GroupIndex)
    }

    /// The block that holds block `index` of the descriptor table (each holds
    /// [`Superblock::descriptors_per_block`] descriptors); `None` past the table's end.
    pub fn descriptor_block(&self, index: u32) -> Option<FsBlock> {
        self.descriptor_block_copy(index, GroupIndex(0))
    }

    /// The copy of block `index` of the descriptor table that goes with the superblock in `group`;
    /// `None` past the table's end or when there is no such copy.
    ///
    /// With `meta_bg` the table blocks from `s_first_meta_bg` on have three copies each, in their
    /// own meta group; for these `group` 0 gives the first copy, and any other group the second. The
    /// blocks before have copies in groups in front of those meta groups only: behind a superblock further
    /// on lies something else.
    pub fn descriptor_block_copy(&self, index: u32, group: GroupIndex) -> Option<FsBlock> {
        if index >= self.gdt_blocks {
            return None;
        }
        let is_spread = self.features.has(Feature::META_BG) && index >= self.first_meta_bg;
        let (home, at) = if is_spread {
            let first = index.checked_mul(self.desc_per_block)?;
            (GroupIndex(first.checked_add(u32::from(group.0 != 0))?), 0)
        } else if self.has_superblock(group) && !self.is_in_meta_group(group) {
            (group, index)
        } else {
            return None;
        };
        if home.0 >= self.group_count {
            return None;
        }
        let start = self.first_block(home);
        let after_super =
            self.super_place(start).checked_add(u64::from(self.has_superblock(home)))?;
        Some(FsBlock(after_super.checked_add(u64::from(at))?))
    }

    fn first_block(&self, group: GroupIndex) -> u64 {
        let before = u64::from(group.0) * u64::from(self.blocks_per_group);
        u64::from(self.first_data_block).saturating_add(before)
    }

    /// The block with the superblock of a group that has one and starts at `start`.
    ///
    /// With clusters, groups of 1 KiB blocks start at the boot block, and block 1 is the first that
    /// can hold a superblock.
    fn super_place(&self, start: u64) -> u64 {
        start.saturating_add(u64::from(start == 0 && self.block_size.bytes() == 1024))
    }

    /// Returns whether `group` is one of those whose descriptors are spread over the groups.
    fn is_in_meta_group(&self, group: GroupIndex) -> bool {
        let meta_bg = self.features.has(Feature::META_BG);
        meta_bg && group.0 / self.desc_per_block >= self.first_meta_bg
    }

    /// Returns how many blocks of descriptors `group` has, and of the reserve for more.
    fn table_blocks(&self, group: GroupIndex, has_superblock: bool) -> (u32, u32) {
        if self.is_in_meta_group(group) {
            let place = group.0 % self.desc_per_block;
            let holds = place <= 1 || place == self.desc_per_block - 1;
            return (u32::from(holds), 0);
        }
        match (has_superblock, self.features.has(Feature::META_BG)) {
            (false, _) => (0, 0),
            (true, true) => (self.first_meta_bg.min(self.gdt_blocks), 0),
            (true, false) => (self.gdt_blocks, self.reserved_gdt_blocks),
        }
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn powers() {
        let powers = |base| (0..3000u32).filter(|&n| is_power_of(n, base)).collect::<Vec<_>>();
        assert_eq!(powers(3), [1, 3, 9, 27, 81, 243, 729, 2187]);
        assert_eq!(powers(5), [1, 5, 25, 125, 625]);
        assert_eq!(powers(7), [1, 7, 49, 343, 2401]);
    }

    /// The walk over groups with a head meets all that have one and no other, whichever features
    /// decide, also where a file system was grown into `meta_bg` later.
    #[test]
    fn the_walk_meets_every_head() {
        let sets: [&[Feature]; 6] = [
            &[],
            &[Feature::SPARSE_SUPER],
            &[Feature::SPARSE_SUPER2],
            &[Feature::META_BG],
            &[Feature::META_BG, Feature::SPARSE_SUPER],
            &[Feature::META_BG, Feature::SPARSE_SUPER2],
        ];
        for (set, first_meta_bg) in sets.iter().flat_map(|set| [0, 1, 3, 900].map(|n| (set, n))) {
            let heads = Heads {
                features: Features::of(set),
                block_size: BlockSize::new(4096).unwrap(),
                blocks_count: 3000 * 32768,
                first_data_block: 0,
                blocks_per_group: 32768,
                group_count: 3000,
                desc_per_block: 64,
                gdt_blocks: 47,
                reserved_gdt_blocks: 0,
                first_meta_bg,
                backup_groups: [1, 2999],
            };
            let all = (0..3000).map(GroupIndex);
            let full: Vec<_> =
                all.filter(|&group| !heads.head(group).blocks().is_empty()).collect();
            assert_eq!(heads.groups().collect::<Vec<_>>(), full, "{set:?} {first_meta_bg}");
            // Every block of the table is in the head of a group.
            for index in 0..47 {
                let block = heads.descriptor_block(index).unwrap().0;
                assert!(full.iter().any(|&group| heads.head(group).gdt.contains(&block)));
            }
            // And so is every copy of one: what else lies there would be overwritten.
            for (index, group) in (0..47).flat_map(|index| full.iter().map(move |g| (index, *g))) {
                let Some(copy) = heads.descriptor_block_copy(index, group) else { continue };
                let owner = GroupIndex((copy.0 / 32768) as u32);
                let gdt = heads.head(owner).gdt;
                assert!(gdt.contains(&copy.0), "{set:?} {first_meta_bg} {index} {group:?}");
            }
        }
    }

    #[test]
    fn numbers_of_a_hostile_superblock_do_not_overflow() {
        let heads = Heads {
            features: Features::of(&[Feature::META_BG, Feature::SPARSE_SUPER]),
            block_size: BlockSize::new(1024).unwrap(),
            blocks_count: u64::MAX,
            first_data_block: u32::MAX,
            blocks_per_group: u32::MAX,
            group_count: u32::MAX,
            desc_per_block: 1,
            gdt_blocks: u32::MAX,
            reserved_gdt_blocks: u32::MAX,
            first_meta_bg: u32::MAX,
            backup_groups: [u32::MAX; 2],
        };
        for group in [0, 1, 2, u32::MAX - 1, u32::MAX].map(GroupIndex) {
            let _ = (heads.head(group).blocks(), heads.next(group));
            let _ = heads.descriptor_block_copy(u32::MAX - 1, group);
            let spread = Heads { first_meta_bg: 0, ..heads };
            let _ =
                (spread.head(group).blocks(), spread.descriptor_block_copy(u32::MAX - 1, group));
        }
        assert_eq!(heads.groups().take(5).count(), 5);
    }
}
