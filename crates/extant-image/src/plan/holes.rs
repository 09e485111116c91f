//! Free space of an image that is laid out over an older one: wishes first, then what is left.
//!
//! Everything is in clusters. [`Claims`] gives each cluster once to whoever wishes for it first; [`Holes`] has the
//! rest, and finds room in a time that follows from the logarithm of their number.
//!
//! # Invariants
//!
//! - H1. No cluster is given out twice, and none that holds fixed metadata.
//! - H2. What is given depends on the order of calls alone.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::geometry::Geometry;
use crate::plan::space::FixedRuns;

/// Clusters in use while wishes are fulfilled.
pub(crate) struct Claims {
    /// Ranges in use, start to end; they do not overlap.
    used: BTreeMap<u64, u64>,
    end: u64,
}

impl Claims {
    /// Everything is free but the fixed metadata.
    pub(crate) fn new(geometry: &Geometry, fixed: &FixedRuns) -> Claims {
        let ratio = u64::from(geometry.cluster_blocks);
        let end = geometry.blocks_count.div_ceil(ratio);
        let mut claims = Claims { used: BTreeMap::new(), end };
        for run in fixed.runs() {
            claims.claim(run.start / ratio..run.end.div_ceil(ratio), |_| {});
        }
        claims
    }

    /// Takes what is free of a range, and calls `got` with each piece of that.
    pub(crate) fn claim(&mut self, range: Range<u64>, mut got: impl FnMut(Range<u64>)) {
        let (mut at, end) = (range.start, range.end.min(self.end));
        while at < end {
            let before = self.used.range(..=at).next_back().map(|(start, end)| (*start, *end));
            if let Some((_, used_end)) = before
                && used_end > at
            {
                at = used_end;
                continue;
            }
            let next = self.used.range(at..).next().map_or(end, |(start, _)| (*start).min(end));
            match before {
                Some((start, used_end)) if used_end == at => self.used.insert(start, next),
                _ => self.used.insert(at, next),
            };
            got(at..next);
            at = next;
        }
    }

    /// What nobody wished for.
    pub(crate) fn into_holes(self) -> Holes {
        let mut runs = Vec::new();
        let mut at = 0;
        for (start, end) in self.used {
            if start > at {
                runs.push(at..start);
            }
            at = end;
        }
        if self.end > at {
            runs.push(at..self.end);
        }
        Holes::new(runs)
    }
}

/// Runs of free clusters, from which room is taken at their beginnings.
pub(crate) struct Holes {
    runs: Vec<Range<u64>>,
    /// A tree of lengths: node `i` has the larger one of `2i` and `2i + 1`; leaves are the runs.
    longest: Vec<u64>,
    leaves: usize,
    free: u64,
}

impl Holes {
    fn new(runs: Vec<Range<u64>>) -> Holes {
        let leaves = runs.len().next_power_of_two();
        let mut longest = vec![0; leaves * 2];
        let mut free = 0;
        for (at, run) in runs.iter().enumerate() {
            longest[leaves + at] = run.end - run.start;
            free += run.end - run.start;
        }
        for at in (1..leaves).rev() {
            longest[at] = longest[2 * at].max(longest[2 * at + 1]);
        }
        Holes { runs, longest, leaves, free }
    }

    /// Free clusters.
    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    /// Takes up to `want` clusters that follow each other: at `at` if that is where a run begins, else from the first
    /// run that has all of them, else the longest there is. `None` when nothing is left.
    pub(crate) fn take(&mut self, want: u64, at: Option<u64>) -> Option<Range<u64>> {
        let near = at.and_then(|at| {
            let index = self.runs.partition_point(|run| run.start < at);
            let run = self.runs.get(index)?;
            (run.start == at && !run.is_empty()).then_some(index)
        });
        let index = match near {
            Some(index) => index,
            None => self.first_with(want.min(self.longest[1]))?,
        };
        let run = &mut self.runs[index];
        let taken = run.start..run.start + want.min(run.end - run.start);
        run.start = taken.end;
        self.free -= taken.end - taken.start;
        let mut node = self.leaves + index;
        self.longest[node] = run.end - run.start;
        while node > 1 {
            node /= 2;
            self.longest[node] = self.longest[2 * node].max(self.longest[2 * node + 1]);
        }
        Some(taken)
    }

    /// The first run of at least `len` clusters; none for 0.
    fn first_with(&self, len: u64) -> Option<usize> {
        if len == 0 || self.longest[1] < len {
            return None;
        }
        let mut node = 1;
        while node < self.leaves {
            node *= 2;
            if self.longest[node] < len {
                node += 1;
            }
        }
        Some(node - self.leaves)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(end: u64, used: &[Range<u64>]) -> Claims {
        let mut claims = Claims { used: BTreeMap::new(), end };
        used.iter().for_each(|range| claims.claim(range.clone(), |_| {}));
        claims
    }

    fn claimed(claims: &mut Claims, range: Range<u64>) -> Vec<(u64, u64)> {
        let mut got = Vec::new();
        claims.claim(range, |piece| got.push((piece.start, piece.end)));
        got
    }

    #[test]
    fn every_cluster_is_claimed_once_and_none_past_the_end() {
        let mut claims = claims(100, &[0..10, 50..60]);
        assert_eq!(claimed(&mut claims, 5..20), [(10, 20)]);
        assert_eq!(claimed(&mut claims, 5..20), []);
        assert_eq!(claimed(&mut claims, 15..70), [(20, 50), (60, 70)]);
        assert_eq!(claimed(&mut claims, 95..u64::MAX), [(95, 100)]);
        assert_eq!(claimed(&mut claims, 1 << 60..u64::MAX), []);
        let mut holes = claims.into_holes();
        assert_eq!(holes.free(), 25);
        assert_eq!(holes.take(100, None), Some(70..95));
        assert_eq!(holes.take(1, None), None);
    }

    #[test]
    fn room_is_where_it_was_wished_for_or_the_first_that_is_long_enough() {
        let mut holes = claims(100, &[4..10, 13..20, 50..100]).into_holes();
        assert_eq!(holes.take(3, Some(10)), Some(10..13));
        // Nothing begins there: the first that fits.
        assert_eq!(holes.take(5, Some(10)), Some(20..25));
        assert_eq!(holes.take(4, None), Some(0..4));
        // None fits: the longest.
        assert_eq!(holes.take(40, None), Some(25..50));
        assert_eq!((holes.take(1, None), holes.free()), (None, 0));
    }

    #[test]
    fn a_full_or_empty_file_system_has_no_holes() {
        let full = claims(10, std::slice::from_ref(&(0..10)));
        assert_eq!(full.into_holes().take(1, Some(3)), None);
        assert_eq!(claims(0, &[]).into_holes().take(1, None), None);
    }
}
