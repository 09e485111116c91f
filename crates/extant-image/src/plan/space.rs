//! Free space of an image while it is planned: everything that is not fixed metadata, taken from
//! the front.
//!
//! # Why one cursor is enough
//!
//! The builder knows all files before it places the first, so nothing is ever freed and nothing
//! competes. Space is handed out in ascending order; what is used is then exactly the fixed
//! metadata plus every cluster below the cursor. Block bitmaps and group counters follow from that
//! one number, and free space is one run at the end.
//!
//! # Invariants
//!
//! - P1. `fixed` is sorted, its ranges do not touch, and lie inside the file system.
//! - P2. The cursor is on a cluster limit and not inside a fixed range, unless space ran out.
//! - P3. A cluster that holds any fixed metadata is never handed out.

use std::ops::Range;

use crate::geometry::Geometry;

/// Sorted, merged ranges of the fixed metadata of a whole file system.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct FixedRuns {
    runs: Vec<Range<u64>>,
}

impl FixedRuns {
    /// Collects the fixed metadata of all groups. Time and memory follow the number of groups
    /// (with flex groups: 16 bytes per flex group).
    pub(crate) fn of(geometry: &Geometry) -> FixedRuns {
        let boot = (geometry.first_data_block > 0).then(|| 0..u64::from(geometry.first_data_block));
        let mut runs: Vec<Range<u64>> = Vec::new();
        for run in boot.into_iter().chain(geometry.fixed_runs()) {
            match runs.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => runs.push(run),
            }
        }
        FixedRuns { runs }
    }

    /// The ranges.
    pub(crate) fn runs(&self) -> &[Range<u64>] {
        &self.runs
    }

    /// The ranges that reach into `range`, clipped to it.
    pub(crate) fn within(&self, range: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.runs.partition_point(|r| r.end <= range.start);
        self.runs[first..]
            .iter()
            .take_while(move |r| r.start < range.end)
            .map(move |r| r.start.max(range.start)..r.end.min(range.end))
    }
}

/// Hands out clusters in ascending order.
#[derive(Clone, Debug)]
pub(crate) struct Space<'a> {
    fixed: &'a [Range<u64>],
    next_fixed: usize,
    cursor: u64,
    end: u64,
    cluster_blocks: u64,
    /// Blocks that were asked for when none were left.
    missing: u64,
}

impl<'a> Space<'a> {
    /// All free space of a file system.
    pub(crate) fn new(geometry: &Geometry, fixed: &'a FixedRuns) -> Space<'a> {
        let mut space = Space {
            fixed: fixed.runs(),
            next_fixed: 0,
            cursor: 0,
            end: geometry.blocks_count,
            cluster_blocks: u64::from(geometry.cluster_blocks),
            missing: 0,
        };
        space.settle();
        space
    }

    /// Moves the cursor out of fixed metadata (P2, P3).
    fn settle(&mut self) {
        while let Some(run) = self.fixed.get(self.next_fixed) {
            let cluster_of_run = run.start - run.start % self.cluster_blocks;
            if self.cursor < cluster_of_run {
                break;
            }
            self.cursor = self.cursor.max(run.end.next_multiple_of(self.cluster_blocks));
            self.next_fixed += 1;
        }
    }

    /// First block that has not been handed out; everything below it is used.
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor
    }

    /// Blocks that were asked for and not there.
    pub(crate) fn missing(&self) -> u64 {
        self.missing
    }

    /// Takes `blocks` blocks (rounded up to whole clusters) and calls `got` with each contiguous
    /// run, `blocks` in all. When space runs out the shortage is added to
    /// [`Space::missing`] and the rest is not called.
    pub(crate) fn take(&mut self, mut blocks: u64, mut got: impl FnMut(Range<u64>)) {
        while blocks > 0 {
            let limit = match self.fixed.get(self.next_fixed) {
                Some(run) => run.start - run.start % self.cluster_blocks,
                // The last cluster may be short (its tail is past the end); it is usable.
                None => self.end,
            };
            let room = limit.min(self.end).saturating_sub(self.cursor);
            if room == 0 {
                self.missing += blocks.next_multiple_of(self.cluster_blocks);
                return;
            }
            let len = blocks.min(room);
            got(self.cursor..self.cursor + len);
            blocks -= len;
            self.cursor = (self.cursor + len).next_multiple_of(self.cluster_blocks).min(limit);
            self.settle();
        }
    }

    /// Blocks left, in whole clusters as the kernel counts free space.
    pub(crate) fn free_blocks(&self) -> u64 {
        let mut free = 0;
        let mut at = self.cursor;
        for run in &self.fixed[self.next_fixed..] {
            free += (run.start - run.start % self.cluster_blocks).saturating_sub(at);
            at = at.max(run.end.next_multiple_of(self.cluster_blocks));
        }
        free += self.end.saturating_sub(at).next_multiple_of(self.cluster_blocks);
        free
    }
}
