//! Blocks that two files have: one of them has contents of the other, and nothing says which.
//!
//! Before anything is handed on, the runs of all files and those of the file system itself are gathered and put in order.
//! What a file never wrote counts as well: its blocks are nobody else's. Attributes may be those of several inodes.

use std::collections::BTreeMap;
use std::ops::Range;

use extant_base::{GroupIndex, Ino};
use extant_format::features::{Incompat, RoCompat};
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::record::Record;
use extant_layout::Heads;

use crate::image::Image;
use crate::limits::{Budget, RUNS_MAX};
use crate::map::Piece;
use crate::report::{Reasons, Why};
use crate::tables::each_descriptor;

/// The file system itself, where others are inodes.
const SYSTEM: Ino = Ino(0);
/// The inode whose blocks are those that cannot be read, wherever they lie.
const BAD_BLOCKS: Ino = Ino(1);
/// Longest target of a symbolic link that has no blocks, in bytes.
const FAST_LINK_MAX: u64 = 59;

/// Files that have blocks of others.
pub(crate) struct SharedBlocks {
    /// For each of them, one of the others, and how many blocks.
    files: BTreeMap<Ino, (Ino, u64)>,
    /// All runs were compared.
    pub(crate) is_whole: bool,
}

impl SharedBlocks {
    /// Compares all files of an image.
    pub(crate) fn of(image: &Image) -> SharedBlocks {
        if image.sb.features.has_ro_compat(RoCompat::SHARED_BLOCKS) {
            // Here files may have the same blocks, as nobody may write.
            return SharedBlocks { files: BTreeMap::new(), is_whole: true };
        }
        let mut runs = Runs::up_to(RUNS_MAX);
        image.add_system(&mut runs);
        let mut budget = Budget::of(image.blocks);
        let mut values = BTreeMap::new();
        for group in 0..image.tables.len() as u32 {
            image.each_record(group, &mut |record| {
                let is_used = record.kind().is_some() && record.links() != 0;
                if !is_used || record.ino == BAD_BLOCKS || runs.is_full {
                    return;
                }
                let block = record.file_acl(image.is_wide()).0;
                if image.in_range(block, 1) && values.len() < runs.most {
                    values.entry(block).or_insert(record.ino);
                }
                image.add_file(&record, &mut budget, &mut runs);
            });
        }
        for (block, ino) in values {
            runs.add(ino, block..block.saturating_add(1));
        }
        let is_whole = !runs.is_full;
        SharedBlocks { files: runs.shared(), is_whole }
    }

    /// Adds a reason if a file has blocks of others.
    pub(crate) fn note(&self, ino: Ino, reasons: &mut Reasons) {
        if let Some((_, blocks)) = self.files.get(&ino) {
            reasons.insert(Why::Shared, *blocks);
        }
    }

    /// Returns one of those that have blocks of a file.
    pub(crate) fn with(&self, ino: Ino) -> Option<Ino> {
        self.files.get(&ino).map(|(other, _)| *other)
    }
}

impl Image {
    /// Adds the blocks of a file's contents and map.
    fn add_file(&self, record: &Record, budget: &mut Budget, runs: &mut Runs) {
        let has_map = match record.kind() {
            _ if self.is_inline(record) => false,
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => {
                record.has(InodeFlags::EXTENTS) || record.size() > FAST_LINK_MAX
            }
            _ => false,
        };
        if !has_map {
            return;
        }
        self.walk_map(record, budget, &mut |piece| {
            let (first, len) = match piece {
                Piece::Data { extent } => (extent.device_start.0, u64::from(extent.len.0)),
                Piece::Unwritten { first, len } => (first, u64::from(len)),
                Piece::Node { block } => (block, 1),
                Piece::Lost { .. } | Piece::Doubt { .. } => return true,
            };
            runs.add(record.ino, first..first.saturating_add(len).min(self.blocks));
            !runs.is_full
        });
    }

    /// Adds superblocks, descriptors, bitmaps and inode tables, as far as their places are known for sure.
    fn add_system(&self, runs: &mut Runs) {
        let (sb, blocks, groups) = (&self.sb, self.blocks, self.tables.len() as u32);
        let heads = Heads::of(sb);
        for group in heads.groups().take_while(|group| group.0 < groups) {
            let head = heads.head(GroupIndex(group.0));
            if let Some(block) = head.super_block {
                runs.add(SYSTEM, block..block.saturating_add(1));
            }
            runs.add(SYSTEM, head.gdt.start..head.gdt.end.min(blocks));
        }
        if sb.features.has_incompat(Incompat::MMP) && sb.mmp_block.0 != 0 {
            runs.add(SYSTEM, sb.mmp_block.0..sb.mmp_block.0.saturating_add(1));
        }
        let bytes = u64::from(sb.inodes_per_group).saturating_mul(u64::from(sb.inode_size));
        let table = bytes.div_ceil(self.block_bytes() as u64);
        each_descriptor(&*self.device, sb, (blocks, groups), &mut |group, descriptor| {
            let Some((descriptor, true)) = descriptor else { return };
            let found = self.tables.get(group as usize).map_or(0, |table| table.start);
            if found != 0 && found != descriptor.inode_table.0 {
                // It leads elsewhere, and nobody knows what else of it is wrong.
                return runs.add(SYSTEM, found..found.saturating_add(table).min(blocks));
            }
            for (start, len) in [
                (descriptor.block_bitmap.0, 1),
                (descriptor.inode_bitmap.0, 1),
                (descriptor.inode_table.0, table),
            ] {
                runs.add(SYSTEM, start..start.saturating_add(len).min(blocks));
            }
        });
    }
}

/// A run of blocks that somebody has.
#[derive(Clone, Copy, Debug)]
struct Run {
    start: u64,
    len: u32,
    ino: Ino,
}

impl Run {
    fn end(&self) -> u64 {
        self.start.saturating_add(u64::from(self.len))
    }
}

/// Runs of blocks, up to a number.
struct Runs {
    all: Vec<Run>,
    most: usize,
    /// There were more.
    is_full: bool,
}

impl Runs {
    fn up_to(most: usize) -> Runs {
        Runs { all: Vec::new(), most, is_full: false }
    }

    fn add(&mut self, ino: Ino, blocks: Range<u64>) {
        let mut start = blocks.start;
        while start < blocks.end {
            let len = u32::try_from(blocks.end - start).unwrap_or(u32::MAX);
            start = start.saturating_add(u64::from(len));
            let first = start.saturating_sub(u64::from(len));
            if let Some(last) = self.all.last_mut()
                && (last.ino, last.end()) == (ino, first)
                && let Some(both) = last.len.checked_add(len)
            {
                last.len = both;
            } else if self.all.len() < self.most {
                self.all.push(Run { start: first, len, ino });
            } else {
                self.is_full = true;
                return;
            }
        }
    }

    /// Returns everybody who has blocks of somebody else: one of the others, and how many blocks, each counted as often
    /// as it was met.
    fn shared(mut self) -> BTreeMap<Ino, (Ino, u64)> {
        self.all.sort_unstable_by_key(|run| (run.start, run.ino));
        let mut files = BTreeMap::new();
        // Of the runs so far the one that reaches farthest, and the one of those of others than that.
        let (mut farthest, mut second): (Option<Run>, Option<Run>) = (None, None);
        for run in &self.all {
            let other = [farthest, second].into_iter().flatten().find(|one| one.ino != run.ino);
            if let Some(other) = other.filter(|other| other.end() > run.start) {
                let blocks = other.end().min(run.end()).saturating_sub(run.start);
                for (one, with) in [(run.ino, other.ino), (other.ino, run.ino)] {
                    let (_, sum) = files.entry(one).or_insert((with, 0u64));
                    *sum = sum.saturating_add(blocks);
                }
            }
            match farthest {
                Some(first) if first.ino == run.ino => {
                    if run.end() > first.end() {
                        farthest = Some(*run);
                    }
                }
                Some(first) if run.end() > first.end() => {
                    (farthest, second) = (Some(*run), Some(first));
                }
                Some(_) => {
                    if second.is_none_or(|second| run.end() > second.end()) {
                        second = Some(*run);
                    }
                }
                None => farthest = Some(*run),
            }
        }
        files
    }
}

#[cfg(test)]
mod tests {
    use extant_base::Prng;

    use super::*;

    #[test]
    fn whoever_shares_a_block_is_named_and_nobody_else() {
        let mut random = Prng::new(1);
        for _ in 0..2000 {
            let mut runs = Runs::up_to(100);
            let mut blocks: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
            for _ in 0..random.below(12) {
                let (ino, start) = (random.below(5) as u32, random.below(60));
                let end = start + random.below(20);
                runs.add(Ino(ino), start..end);
                (start..end).for_each(|block| blocks.entry(block).or_default().push(ino));
            }
            let mut wanted = Vec::new();
            for inos in blocks.values_mut() {
                inos.dedup();
                inos.sort_unstable();
                inos.dedup();
                wanted.extend(inos.iter().filter(|_| inos.len() > 1));
            }
            wanted.sort_unstable();
            wanted.dedup();
            let shared = runs.shared();
            let named: Vec<u32> = shared.keys().map(|ino| ino.0).collect();
            assert_eq!(named, wanted, "{blocks:?}");
            for (ino, (with, count)) in &shared {
                let meet = |inos: &Vec<u32>| inos.contains(&ino.0) && inos.contains(&with.0);
                assert!(ino != with && *count > 0 && blocks.values().any(meet), "{blocks:?}");
            }
        }
    }

    #[test]
    fn runs_in_a_row_are_one_and_more_than_there_may_be_is_said() {
        let mut runs = Runs::up_to(2);
        runs.add(Ino(12), 5..9);
        runs.add(Ino(12), 9..12);
        runs.add(Ino(13), 12..13);
        assert_eq!((runs.all.len(), runs.is_full), (2, false));
        runs.add(Ino(14), 5..6);
        assert!(runs.is_full);
        assert!(runs.shared().is_empty());
        let mut long = Runs::up_to(6);
        long.add(Ino(12), 0..1 << 34);
        long.add(Ino(13), (1 << 34) - 1..1 << 34);
        assert_eq!(long.shared()[&Ino(13)], (Ino(12), 1));
    }
}
