//! Superblock, descriptors and their backups: which groups have them, and where.

use std::ops::Range;

use extant_base::{GroupIndex, sabotage};

use super::Geometry;
use crate::options::Feature;

/// What a group holds at its start, before any bitmap. Contiguous.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct GroupHead {
    /// First block of the group, also where the head starts.
    pub(super) start: u64,
    pub(super) super_block: Option<u64>,
    pub(super) gdt: Range<u64>,
    pub(super) reserved_gdt: Range<u64>,
}

impl GroupHead {
    /// All blocks of the head; empty for most groups.
    pub(super) fn blocks(&self) -> Range<u64> {
        let after_super = self.super_block.map_or(self.start, |block| block + 1);
        self.start..after_super.max(self.gdt.end).max(self.reserved_gdt.end)
    }
}

/// Whether `number` is a power of `base`, 1 included.
fn is_power_of(mut number: u32, base: u32) -> bool {
    while number > 1 && number.is_multiple_of(base) {
        number /= base;
    }
    number == 1
}

/// Whether the group has the superblock or a backup.
pub(super) fn has_super(geometry: &Geometry, group: GroupIndex) -> bool {
    let group = group.0;
    if group == 0 {
        return true;
    }
    if geometry.has(Feature::SPARSE_SUPER2) {
        return geometry.backup_groups.contains(&group);
    }
    if group == 1 || !geometry.has(Feature::SPARSE_SUPER) {
        return true;
    }
    if sabotage("image.geometry.multiples-of-7") && group.is_multiple_of(7) {
        return true;
    }
    [3, 5, 7].into_iter().any(|base| is_power_of(group, base))
}

/// The next group from `from` on that has anything at its start; `None`: no more.
pub(super) fn next_head(geometry: &Geometry, from: u32) -> Option<u32> {
    let mut next: Option<u32> = None;
    let mut offer = |group: u64| {
        if group >= u64::from(from) && group < u64::from(geometry.group_count) {
            let group = group as u32;
            next = Some(next.map_or(group, |best| best.min(group)));
        }
    };
    offer(0);
    if geometry.has(Feature::META_BG) {
        // Groups 0, 1 and the last of each stretch whose descriptors fit in one block.
        let stretch = u64::from(geometry.desc_per_block());
        let start = u64::from(from) / stretch * stretch;
        [start, start + 1, start + stretch - 1, start + stretch].into_iter().for_each(&mut offer);
    }
    if geometry.has(Feature::SPARSE_SUPER2) {
        geometry
            .backup_groups
            .iter()
            .filter(|group| **group != 0)
            .for_each(|&g| offer(u64::from(g)));
    } else if !geometry.has(Feature::SPARSE_SUPER) {
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
    next
}

/// The head of `group`; empty ranges where it has nothing.
pub(super) fn head(geometry: &Geometry, group: GroupIndex) -> GroupHead {
    let start = geometry.group_first_block(group);
    // With clusters, groups of 1 KiB blocks start at the boot block, and block 1 is the first that
    // can hold a superblock.
    let boot = u64::from(start == 0 && geometry.block_size.bytes() == 1024);
    let has_super = has_super(geometry, group);
    let super_block = has_super.then_some(start + boot);
    let after_super = super_block.map_or(start, |block| block + 1);
    let end = geometry.blocks_count;
    let run = |from: u64, blocks: u64| from.min(end)..(from + blocks).min(end);
    let (gdt, reserved) = if geometry.has(Feature::META_BG) {
        let stretch = geometry.desc_per_block();
        let place = group.0 % stretch;
        let holds = place <= 1 || place == stretch - 1;
        (u64::from(holds), 0)
    } else if has_super {
        (u64::from(geometry.gdt_blocks), u64::from(geometry.reserved_gdt_blocks))
    } else {
        (0, 0)
    };
    let gdt = run(after_super, gdt);
    let reserved_gdt = run(gdt.end, reserved);
    GroupHead { start, super_block, gdt, reserved_gdt }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers() {
        let powers = |base| (0..3000u32).filter(|&n| is_power_of(n, base)).collect::<Vec<_>>();
        assert_eq!(powers(3), [1, 3, 9, 27, 81, 243, 729, 2187]);
        assert_eq!(powers(5), [1, 5, 25, 125, 625]);
        assert_eq!(powers(7), [1, 7, 49, 343, 2401]);
    }
}
