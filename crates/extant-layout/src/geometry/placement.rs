//! Places of bitmaps and inode tables, as chosen by mke2fs.
//!
//! # Shape
//!
//! Groups are placed in units: the groups of one flex group, a single group without `flex_bg`, all
//! groups when metadata is packed. In a unit come all block bitmaps, then all inode bitmaps, then
//! all tables, each as near to the one before as the heads of groups (superblock, descriptors) and
//! the pieces already placed allow:
//!
//! ```text
//! | head of group 0 | bbbb | iiii | table 0 | table 1 | ... | head of group 1 | table n | ...
//! ```
//!
//! A placement is kept as runs: `index` of the first group of the run and where its piece is; those
//! of the next groups follow without a gap until the next run. A run ends at a head, so there are
//! about as many runs as heads in the way, however many groups there are.

use alloc::vec::Vec;
use core::ops::Range;

use extant_base::GroupIndex;

use super::{Geometry, NoRoomForTables};
use crate::heads::Heads;

/// Pieces of one kind of consecutive groups that lie side by side.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Run {
    /// First group of the run, counted from the first group of the unit.
    index: u32,
    /// First block of that group's piece.
    start: u64,
}

/// All pieces of one kind in a unit.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Pieces {
    runs: Vec<Run>,
    /// The block after the last piece; 0 before there is one.
    end: u64,
    /// Groups in the unit.
    count: u32,
    /// Blocks of one piece.
    piece_blocks: u32,
}

impl Pieces {
    /// First block of the piece of the unit's group `index`.
    fn start(&self, index: u32) -> u64 {
        let run = self.runs[self.runs.partition_point(|run| run.index <= index) - 1];
        run.start + u64::from(index - run.index) * u64::from(self.piece_blocks)
    }

    fn blocks(&self) -> impl Iterator<Item = Range<u64>> {
        self.runs.iter().enumerate().map(|(i, run)| {
            let next = self.runs.get(i + 1).map_or(self.count, |run| run.index);
            let pieces = u64::from(next - run.index);
            run.start..run.start + pieces * u64::from(self.piece_blocks)
        })
    }
}

/// The place of the bitmaps and tables of the groups of one unit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Placement {
    /// Groups of the unit.
    pub(super) groups: Range<u32>,
    block_bitmaps: Pieces,
    inode_bitmaps: Pieces,
    inode_tables: Pieces,
}

impl Placement {
    /// Block bitmap, inode bitmap and first block of the table of a group of the unit.
    pub(super) fn of(&self, group: GroupIndex) -> (u64, u64, u64) {
        let index = group.0 - self.groups.start;
        let pieces = [&self.block_bitmaps, &self.inode_bitmaps, &self.inode_tables];
        let [block_bitmap, inode_bitmap, table] = pieces.map(|pieces| pieces.start(index));
        (block_bitmap, inode_bitmap, table)
    }

    /// All blocks placed, sorted.
    pub(super) fn sorted_blocks(&self) -> Vec<Range<u64>> {
        let kinds = [&self.block_bitmaps, &self.inode_bitmaps, &self.inode_tables];
        let mut blocks: Vec<_> = kinds.into_iter().flat_map(Pieces::blocks).collect();
        blocks.sort_unstable_by_key(|run| run.start);
        blocks
    }
}

/// The groups placed together with `group`.
pub(super) fn unit_of(geometry: &Geometry, group: GroupIndex) -> Range<u32> {
    if geometry.packed {
        return 0..geometry.group_count;
    }
    let first = group.0 - group.0 % geometry.flex_groups;
    first..first.saturating_add(geometry.flex_groups).min(geometry.group_count)
}

/// Places the groups of one unit.
pub(super) fn place(geometry: &Geometry, unit: Range<u32>) -> Result<Placement, NoRoomForTables> {
    let heads = geometry.heads();
    let placer = Placer { geometry, heads, unit: unit.clone(), placed: Vec::new() };
    let placement = if geometry.packed {
        placer.packed()
    } else if geometry.flex_groups > 1 {
        placer.flex()
    } else {
        placer.single()
    };
    let inode_table_blocks = geometry.inode_table_blocks;
    placement.ok_or(NoRoomForTables { group: unit.start, inode_table_blocks })
}

struct Placer<'g> {
    geometry: &'g Geometry,
    heads: Heads,
    unit: Range<u32>,
    placed: Vec<Range<u64>>,
}

impl Placer<'_> {
    fn first_block(&self, group: u32) -> u64 {
        self.geometry.group_first_block(GroupIndex(group))
    }

    /// The last block of the unit; searches start before it.
    fn last_block(&self) -> u64 {
        self.geometry.group_end(GroupIndex(self.unit.end - 1)) - 1
    }

    /// Returns the end of an obstacle within `blocks`.
    fn obstacle_end(&self, blocks: &Range<u64>) -> Option<u64> {
        let mut from = self.geometry.group_of(blocks.start);
        while let Some(group) = self.heads.next(from) {
            if self.first_block(group.0) >= blocks.end {
                break;
            }
            let head = self.heads.head(group).blocks();
            if head.start < blocks.end && blocks.start < head.end {
                return Some(head.end);
            }
            from = GroupIndex(group.0 + 1);
        }
        let overlaps = |run: &&Range<u64>| run.start < blocks.end && blocks.start < run.end;
        self.placed.iter().find(overlaps).map(|run| run.end)
    }

    /// Returns the first free run of `len` blocks that starts in `from..finish`.
    fn first_fit(&self, from: u64, finish: u64, len: u64) -> Option<u64> {
        let mut start = from.max(u64::from(self.geometry.first_data_block));
        loop {
            let end = start.checked_add(len).filter(|end| *end <= self.geometry.blocks_count)?;
            match self.obstacle_end(&(start..end)) {
                None => return Some(start),
                Some(next) if next < finish => start = next,
                Some(_) => return None,
            }
        }
    }

    /// Returns the number of free blocks from `start` on, of `wanted`; `start` follows a used
    /// block.
    fn free_len(&self, start: u64, wanted: u64) -> u64 {
        let mut end = self.geometry.blocks_count.min(start.saturating_add(wanted));
        let next = GroupIndex(self.geometry.group_of(start - 1).0 + 1);
        if let Some(head) = self.heads.next(next).map(|group| self.heads.head(group).blocks()) {
            end = end.min(head.start);
        }
        let in_the_way = self.placed.iter().map(|run| run.start).filter(|run| *run >= start);
        in_the_way.fold(end, u64::min).saturating_sub(start)
    }

    /// Places pieces of these `kinds`, given by the blocks of one, for all groups of the unit:
    /// all kinds of one group, then those of the next. `find` gives the place of the next piece:
    /// of which kind, for how many groups one is still to be placed, and what is placed so far.
    fn pieces<const KINDS: usize>(
        &mut self,
        kinds: [u32; KINDS],
        find: impl Fn(&Self, usize, u32, &[Pieces; KINDS]) -> Option<u64>,
    ) -> Option<[Pieces; KINDS]> {
        let count = self.unit.end - self.unit.start;
        let mut pieces =
            kinds.map(|piece_blocks| Pieces { runs: Vec::new(), end: 0, count, piece_blocks });
        let mut index = 0;
        while index < count {
            let left = count - index;
            for kind in 0..KINDS {
                let start = find(self, kind, left, &pieces)?;
                let end = start + u64::from(kinds[kind]);
                let kind = &mut pieces[kind];
                if kind.runs.is_empty() || kind.end != start {
                    kind.runs.push(Run { index, start });
                }
                kind.end = end;
                self.placed.push(start..end);
            }
            // The groups that follow find their places free at once, until a kind meets something.
            let mut more = left - 1;
            for kind in &pieces {
                let piece = u64::from(kind.piece_blocks);
                let fit = self.free_len(kind.end, u64::from(more) * piece) / piece;
                more = more.min(u32::try_from(fit).ok()?);
            }
            let first = self.placed.len() - KINDS;
            for (kind, placed) in pieces.iter_mut().zip(&mut self.placed[first..]) {
                kind.end += u64::from(more) * u64::from(kind.piece_blocks);
                placed.end = kind.end;
            }
            index += 1 + more;
        }
        Some(pieces)
    }

    /// Kind after kind, one place after another from the front of the device on.
    fn packed(mut self) -> Option<Placement> {
        let (end, table) = (self.geometry.blocks_count, self.geometry.inode_table_blocks);
        let mut goal = 0;
        let mut next_kind = |piece_blocks: u32| {
            let len = u64::from(piece_blocks);
            let [pieces] = self.pieces([piece_blocks], |placer, _, _, [pieces]| {
                placer.first_fit(goal.max(pieces.end), end, len)
            })?;
            goal = pieces.end;
            Some(pieces)
        };
        let kinds = [next_kind(1)?, next_kind(1)?, next_kind(table)?];
        self.finish(kinds)
    }

    /// From the start of the flex group on, each kind in its own place.
    fn flex(mut self) -> Option<Placement> {
        let count = self.unit.end - self.unit.start;
        // Room is left for the bitmaps of all groups of the unit before the next kind; next to the
        // bitmap of a lone group, for a whole flex group's.
        let room = u64::from(if count == 1 { self.geometry.flex_groups } else { count });
        let sizes = [1, 1, self.geometry.inode_table_blocks];
        let kinds = self.pieces(sizes, |placer, kind, left, pieces| {
            let before = kind.checked_sub(1).and_then(|before| pieces[before].runs.first());
            let hint = match pieces[kind].runs.is_empty() {
                true => before.map(|run| run.start + room),
                false => Some(pieces[kind].end),
            };
            placer.flex_place(left, u64::from(sizes[kind]), hint)
        })?;
        self.finish(kinds)
    }

    /// mke2fs looks close after the last piece first, skipping small obstacles; then for room for
    /// all pieces still to come (or a quarter group), then for one, from the start of the unit.
    fn flex_place(&self, left: u32, piece: u64, hint: Option<u64>) -> Option<u64> {
        let quarter = u64::from(self.geometry.blocks_per_group / 4);
        let all = (u64::from(left) * piece).min(quarter);
        let (first, last) = (self.first_block(self.unit.start), self.last_block());
        let near = hint.and_then(|hint| self.first_fit(hint, hint + all, piece));
        near.or_else(|| self.first_fit(first, last, all))
            .and_then(|start| self.first_fit(start, last, piece))
            .or_else(|| self.first_fit(first, last, piece))
    }

    /// A group by itself; with a stride, its bitmaps move from group to group so that they do not
    /// all lie on the same disk of a RAID.
    fn single(mut self) -> Option<Placement> {
        let group = self.unit.start;
        let (first, last) = (self.first_block(group), self.last_block());
        let table = self.geometry.inode_table_blocks;
        let mut from = first;
        if self.geometry.stride != 0 {
            from = self.first_fit(first, last, 1)? + u64::from(table);
            let shift = u64::from(self.geometry.stride.wrapping_mul(group));
            // The shift wraps in what is left of the group.
            if let Some(room) = (last + 1).checked_sub(from).filter(|room| *room != 0) {
                from += shift % room;
            }
            if from >= last {
                from = first;
            }
        }
        let kinds = self.pieces([1, 1, table], |placer, kind, _, _| {
            let (from, len) = if kind < 2 { (from, 1) } else { (first, u64::from(table)) };
            placer.first_fit(from, last, len).or_else(|| placer.first_fit(first, last, len))
        })?;
        self.finish(kinds)
    }

    /// Checks that nothing left the unit: the next unit takes its own blocks for free.
    fn finish(self, kinds: [Pieces; 3]) -> Option<Placement> {
        let [block_bitmaps, inode_bitmaps, inode_tables] = kinds;
        let blocks = self.first_block(self.unit.start)..self.last_block() + 1;
        let inside = |run: &Range<u64>| blocks.start <= run.start && run.end <= blocks.end;
        let groups = self.unit.clone();
        self.placed.iter().all(inside).then_some(Placement {
            groups,
            block_bitmaps,
            inode_bitmaps,
            inode_tables,
        })
    }
}
