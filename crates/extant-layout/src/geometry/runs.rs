//! Walks over groups and over the blocks that fixed metadata takes.

use alloc::vec::Vec;
use core::ops::Range;

use extant_base::GroupIndex;

use super::placement::{self, Placement};
use super::{Geometry, GroupLayout};
use crate::heads::Heads;

/// All groups in order; see [`Geometry::groups`].
#[derive(Clone, Debug)]
pub struct Groups<'g> {
    geometry: &'g Geometry,
    next: u32,
    placement: Option<Placement>,
}

impl<'g> Groups<'g> {
    pub(super) fn new(geometry: &'g Geometry) -> Groups<'g> {
        Groups { geometry, next: 0, placement: None }
    }
}

impl Iterator for Groups<'_> {
    type Item = GroupLayout;

    fn next(&mut self) -> Option<GroupLayout> {
        if self.next >= self.geometry.group_count {
            return None;
        }
        let group = GroupIndex(self.next);
        self.next += 1;
        let usable = self.placement.take().filter(|placed| placed.groups.contains(&group.0));
        let placement = usable.unwrap_or_else(|| self.geometry.placement(group));
        let layout = self.geometry.group_in(group, &placement);
        self.placement = Some(placement);
        Some(layout)
    }

    /// Costs no time for the groups that are passed over.
    fn nth(&mut self, skipped: usize) -> Option<GroupLayout> {
        let skipped = u32::try_from(skipped).unwrap_or(u32::MAX);
        self.next = self.next.saturating_add(skipped).min(self.geometry.group_count);
        self.next()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = (self.geometry.group_count - self.next) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for Groups<'_> {}

/// Sorted, merged runs of blocks that fixed metadata takes; see [`Geometry::fixed_runs`].
#[derive(Clone, Debug)]
pub struct FixedRuns<'g> {
    geometry: &'g Geometry,
    starts: Heads,
    /// First group of the next unit.
    next_unit: u32,
    /// Placed blocks of the present unit, sorted, from `placed_at` on.
    placed: Vec<Range<u64>>,
    placed_at: usize,
    /// Groups of the present unit whose heads are still to come.
    heads: Range<u32>,
    /// The run that may still grow.
    pending: Option<Range<u64>>,
}

impl<'g> FixedRuns<'g> {
    pub(super) fn new(geometry: &'g Geometry) -> FixedRuns<'g> {
        let (placed, heads) = (Vec::new(), 0..0);
        FixedRuns {
            geometry,
            starts: geometry.heads(),
            next_unit: 0,
            placed,
            placed_at: 0,
            heads,
            pending: None,
        }
    }

    fn next_head(&mut self) -> Option<Range<u64>> {
        let group = self.starts.next(GroupIndex(self.heads.start))?;
        (group.0 < self.heads.end).then(|| self.starts.head(group).blocks())
    }

    /// The next piece in block order, not merged.
    fn next_piece(&mut self) -> Option<Range<u64>> {
        loop {
            let placed = self.placed.get(self.placed_at).cloned();
            let head = self.next_head();
            match (placed, head) {
                (Some(placed), Some(head)) if placed.start < head.start => {
                    self.placed_at += 1;
                    return Some(placed);
                }
                (_, Some(head)) => {
                    self.heads.start = self.geometry.group_of(head.start).0 + 1;
                    return Some(head);
                }
                (Some(placed), None) => {
                    self.placed_at += 1;
                    return Some(placed);
                }
                (None, None) => {}
            }
            if self.next_unit >= self.geometry.group_count {
                return None;
            }
            let placement = self.geometry.placement(GroupIndex(self.next_unit));
            self.next_unit = placement.groups.end;
            self.placed = placement.sorted_blocks();
            self.placed_at = 0;
            self.heads = placement.groups;
        }
    }
}

impl Iterator for FixedRuns<'_> {
    type Item = Range<u64>;

    fn next(&mut self) -> Option<Range<u64>> {
        loop {
            let Some(piece) = self.next_piece() else { return self.pending.take() };
            match self.pending.as_mut() {
                Some(run) if run.end >= piece.start => run.end = run.end.max(piece.end),
                _ => {
                    if let Some(done) = self.pending.replace(piece) {
                        return Some(done);
                    }
                }
            }
        }
    }
}

/// The runs of one group's blocks; see [`Geometry::fixed_runs_in`].
pub(super) fn in_group(geometry: &Geometry, group: GroupIndex) -> Vec<Range<u64>> {
    let blocks = geometry.group_first_block(group)..geometry.group_end(group);
    let unit = placement::unit_of(geometry, group);
    let placed = geometry.placement(GroupIndex(unit.start)).sorted_blocks();
    let head = geometry.heads().head(group).blocks();
    let mut runs: Vec<_> = placed
        .into_iter()
        .chain([head])
        .map(|run| run.start.max(blocks.start)..run.end.min(blocks.end))
        .filter(|run| run.start < run.end)
        .collect();
    runs.sort_unstable_by_key(|run| run.start);
    let mut merged: Vec<Range<u64>> = Vec::with_capacity(runs.len());
    for run in runs {
        match merged.last_mut() {
            Some(last) if last.end >= run.start => last.end = last.end.max(run.end),
            _ => merged.push(run),
        }
    }
    merged
}
