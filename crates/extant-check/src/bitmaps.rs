//! Bitmaps and counts against what is claimed, in pieces of some groups.

use std::ops::{ControlFlow, Range};

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::bitmap::BitmapRef;
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};

use crate::base::Base;
use crate::checker::Checker;
use crate::claims::compare;
use crate::{CheckError, Problem, crew};

/// Groups in one piece.
const PIECE_GROUPS: u64 = 64;
/// Bitmaps read at once, if they lie side by side: 256 KiB of blocks of 4 KiB.
const AHEAD: u32 = 64;

/// Sums over groups.
#[derive(Clone, Copy, Default)]
struct Sums {
    free_clusters: u64,
    free_inodes: u64,
    clusters: u64,
    inodes: u32,
}

/// Blocks that were read at once.
#[derive(Default)]
struct Ahead {
    first: u64,
    bytes: Vec<u8>,
}

/// One piece.
struct Piece<'s, 'a> {
    base: &'s Base<'a>,
    directories: &'s [u32],
    problems: Vec<Problem>,
    sums: Sums,
    words: Vec<u64>,
    /// Inodes in use of the group at hand.
    used: Vec<u64>,
    ahead: [Ahead; 2],
}

impl Checker<'_> {
    /// Bitmaps, and the counts of groups and superblock.
    pub(crate) fn check_bitmaps(&mut self) -> Result<(), CheckError> {
        let base = &self.base;
        let directories = self.found.counted_directories(base);
        let groups = base.groups.len();
        let bytes = (groups as u64 * 2).saturating_mul(u64::from(base.sb.block_size.bytes()));
        let threads = base.threads(bytes);
        let pieces = crew::share(threads, groups, PIECE_GROUPS, |_| 1);
        let work = |number: usize| -> Result<(Vec<Problem>, Sums), CheckError> {
            let mut piece = Piece {
                base,
                directories: &directories,
                problems: Vec::new(),
                sums: Sums::default(),
                words: Vec::new(),
                used: Vec::new(),
                ahead: Default::default(),
            };
            piece.check(pieces.get(number).cloned().unwrap_or_default())?;
            Ok((piece.problems, piece.sums))
        };
        let (mut sums, mut failed) = (Sums::default(), None);
        let findings = &mut self.findings;
        let take = |result| match result {
            Ok((problems, some)) => {
                let some: Sums = some;
                sums.free_clusters += some.free_clusters;
                sums.free_inodes += some.free_inodes;
                sums.clusters += some.clusters;
                sums.inodes = sums.inodes.saturating_add(some.inodes);
                let problems: Vec<Problem> = problems;
                problems.into_iter().for_each(|problem| findings.problem(problem));
                findings.did(0);
                if findings.is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        };
        crew::in_order((threads, crew::PIECES_AHEAD), pieces.len(), work, take)?;
        if let Some(error) = failed {
            return Err(error);
        }
        let bits = self.base.sb.cluster_bits();
        let (directories, value_inodes) = (self.found.directories, self.found.value_inodes);
        let counts = self.counts_mut();
        counts.inodes = sums.inodes;
        counts.directories = directories;
        counts.value_inodes = value_inodes;
        counts.blocks = sums.clusters << bits;
        if self.base.options.strict_totals && !self.base.is_partial() {
            for (what, stored, counted) in [
                ("free blocks", self.base.sb.free_blocks_count, sums.free_clusters << bits),
                ("free inodes", u64::from(self.base.sb.free_inodes_count), sums.free_inodes),
            ] {
                if stored != counted {
                    self.problem(Problem::SuperblockCount { what, stored, counted });
                }
            }
        }
        Ok(())
    }
}

impl<'s> Piece<'s, '_> {
    fn check(&mut self, groups: Range<usize>) -> Result<(), CheckError> {
        for number in groups {
            let Some(descriptor) = self.base.groups.get(number) else { break };
            let group = GroupIndex(number as u32);
            let clusters = self.base.sb.group_clusters(group);
            let claimed = self.base.claims.count(group.0).min(clusters);
            let per_group = self.base.sb.inodes_per_group;
            let first = Ino(group.0.saturating_mul(per_group).saturating_add(1));
            let used = self.base.states.used(first, per_group, &mut self.used);
            self.check_block_bitmap(group, descriptor)?;
            self.check_inode_bitmap(group, descriptor, used)?;
            let free = (clusters - claimed, self.base.sb.inodes_per_group.saturating_sub(used));
            if !self.base.is_partial() {
                self.check_counts(group, descriptor, free);
            }
            self.sums.free_clusters += u64::from(free.0);
            self.sums.free_inodes += u64::from(free.1);
            self.sums.clusters += u64::from(claimed);
            self.sums.inodes = self.sums.inodes.saturating_add(used);
        }
        Ok(())
    }

    fn check_counts(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
        (clusters, inodes): (u32, u32),
    ) {
        let dirs = self.directories.get(group.0 as usize).copied().unwrap_or(0);
        for (what, stored, counted) in [
            ("free clusters", descriptor.free_clusters, clusters),
            ("free inodes", descriptor.free_inodes, inodes),
            ("directories", descriptor.directories, dirs),
        ] {
            if stored != counted {
                self.problems.push(Problem::GroupCount { group, what, stored, counted });
            }
        }
        let all = self.base.sb.inodes_per_group;
        if descriptor.itable_unused > all && self.base.group_checksum != GroupChecksum::None {
            self.problems.push(Problem::GroupCount {
                group,
                what: "unused inodes",
                stored: descriptor.itable_unused,
                counted: all,
            });
        }
    }

    fn is_uninit(&self, descriptor: &GroupDescriptor, flag: GroupFlags) -> bool {
        self.base.group_checksum != GroupChecksum::None && descriptor.flags.contains(flag)
    }

    /// Reads a bitmap, and those behind it that belong to the next groups. `None`: it cannot be read, and
    /// that was told.
    fn read(
        &mut self,
        group: GroupIndex,
        block: u64,
        what: &'static str,
    ) -> Result<Option<Vec<u8>>, CheckError> {
        let base = self.base;
        let size = base.sb.block_size.len();
        let (slot, flag) = match what {
            "block" => (0, GroupFlags::BLOCK_UNINIT),
            _ => (1, GroupFlags::INODE_UNINIT),
        };
        let mut len = 1u32;
        while len < AHEAD {
            let Some(next) = base.groups.get((group.0 + len) as usize) else { break };
            let at = if slot == 0 { next.block_bitmap } else { next.inode_bitmap };
            let is_next = at.0 == block + u64::from(len) && base.in_range(at.0, 1);
            if !is_next || self.is_uninit(next, flag) {
                break;
            }
            len += 1;
        }
        let [blocks, inodes] = &mut self.ahead;
        let ahead = if slot == 0 { blocks } else { inodes };
        let within = |ahead: &Ahead| {
            let at = usize::try_from(block.checked_sub(ahead.first)?).ok()?.checked_mul(size)?;
            ahead.bytes.get(at..at.checked_add(size)?).map(<[u8]>::to_vec)
        };
        if let Some(found) = within(ahead) {
            return Ok(Some(found));
        }
        let mut result = base.read_blocks(block, len, &mut ahead.bytes);
        if result.is_err() && len > 1 {
            result = base.read_block(block, &mut ahead.bytes);
        }
        ahead.first = block;
        if let Err(error) = result {
            ahead.bytes.clear();
            let of = || format!("the {what} bitmap of group {group}");
            self.problems.push(base.unreadable(error, of)?);
            return Ok(None);
        }
        Ok(within(ahead))
    }

    fn check_block_bitmap(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
    ) -> Result<(), CheckError> {
        let base = self.base;
        if self.is_uninit(descriptor, GroupFlags::BLOCK_UNINIT) {
            let fixed = base.fixed.get(group.0 as usize).copied().unwrap_or(0);
            let found = base.claims.count(group.0).saturating_sub(fixed);
            if found != 0 {
                self.problems.push(Problem::UninitUsed { group, flag: "BLOCK_UNINIT", found });
            } else if group.0.checked_add(1) == Some(base.sb.group_count) {
                self.problems.push(Problem::UninitLast { group });
            }
            return Ok(());
        }
        if !base.in_range(descriptor.block_bitmap.0, 1) {
            return Ok(());
        }
        let Some(bytes) = self.read(group, descriptor.block_bitmap.0, "block")? else {
            return Ok(());
        };
        let bits = base.sb.group_clusters(group);
        base.claims.words(group.0, &mut self.words);
        let wrong = compare(&bytes, Some(&self.words), bits);
        if let Some((bit, marked, differences)) = wrong.filter(|_| !base.is_partial()) {
            let first = base.sb.group_first_block(group).map_or(0, |block| block.0);
            let block = FsBlock(first + (u64::from(bit) << base.sb.cluster_bits()));
            self.problems.push(Problem::BlockBitmap { group, block, marked, differences });
        }
        let stored = descriptor.block_bitmap_checksum;
        let all = base.sb.clusters_per_group;
        self.check_bitmap(group, "block", &bytes, (bits, all, stored));
        Ok(())
    }

    fn check_inode_bitmap(
        &mut self,
        group: GroupIndex,
        descriptor: &GroupDescriptor,
        used: u32,
    ) -> Result<(), CheckError> {
        let base = self.base;
        if self.is_uninit(descriptor, GroupFlags::INODE_UNINIT) {
            if used != 0 {
                let flag = "INODE_UNINIT";
                self.problems.push(Problem::UninitUsed { group, flag, found: used });
            }
            return Ok(());
        }
        if !base.in_range(descriptor.inode_bitmap.0, 1) {
            return Ok(());
        }
        let Some(bytes) = self.read(group, descriptor.inode_bitmap.0, "inode")? else {
            return Ok(());
        };
        let bits = base.sb.inodes_per_group;
        let wrong = compare(&bytes, Some(&self.used), bits);
        if let Some((bit, marked, differences)) = wrong.filter(|_| !base.is_partial()) {
            let ino = Ino(group.0.saturating_mul(bits).saturating_add(bit).saturating_add(1));
            self.problems.push(Problem::InodeBitmap { group, ino, marked, differences });
        }
        let stored = descriptor.inode_bitmap_checksum;
        self.check_bitmap(group, "inode", &bytes, (bits, bits, stored));
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
            self.problems.push(Problem::Padding { group, what });
        }
        if self.base.sb.features.metadata_csum() {
            let wide = self.base.sb.desc_size >= 64;
            let name = if what == "block" { "block bitmap" } else { "inode bitmap" };
            let seed = self.base.seed;
            if let Err(source) = bitmap.verify_checksum(name, seed, covered, stored, wide) {
                self.problems.push(Problem::BitmapChecksum { group, source });
            }
        }
    }
}
