//! The delayed blocks of a file: written in memory, without an address yet.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint runs of file blocks that do not touch.
#[derive(Debug, Default)]
pub(crate) struct Delayed {
    /// Exclusive ends by first block.
    runs: BTreeMap<u64, u64>,
    /// Blocks of a cluster, as a power of two.
    cluster_bits: u32,
}

impl Delayed {
    pub(crate) fn new(cluster_bits: u32) -> Delayed {
        Delayed { runs: BTreeMap::new(), cluster_bits }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Returns the run that contains `block`.
    pub(crate) fn at(&self, block: u64) -> Option<Range<u64>> {
        let (&start, &end) = self.runs.range(..=block).next_back()?;
        (block < end).then_some(start..end)
    }

    /// Returns the first delayed block at or behind `block`.
    pub(crate) fn next(&self, block: u64) -> Option<u64> {
        if self.at(block).is_some() {
            return Some(block);
        }
        self.runs.range(block..).next().map(|(&start, _)| start)
    }

    /// Returns the number of delayed blocks.
    pub(crate) fn blocks(&self) -> u64 {
        self.runs.iter().map(|(start, end)| end - start).sum()
    }

    /// Returns the number of clusters of `range` without a delayed block: they must be promised
    /// before [`insert`](Self::insert) of a range without delayed blocks.
    pub(crate) fn new_clusters(&self, range: &Range<u64>) -> u64 {
        let clusters = self.clusters(range);
        let mut count = clusters.end - clusters.start;
        // Only the first and the last cluster can have others.
        for edge in [clusters.start, clusters.end - 1] {
            if self.touches(edge) {
                count -= 1;
            }
            if clusters.end - clusters.start == 1 {
                break;
            }
        }
        count
    }

    fn clusters(&self, range: &Range<u64>) -> Range<u64> {
        let ratio = 1u64 << self.cluster_bits;
        range.start >> self.cluster_bits..range.end.div_ceil(ratio)
    }

    fn touches(&self, cluster: u64) -> bool {
        let start = cluster << self.cluster_bits;
        self.next(start).is_some_and(|next| next < start + (1 << self.cluster_bits))
    }

    /// Adds a range that has no delayed blocks.
    pub(crate) fn insert(&mut self, range: Range<u64>) {
        let mut whole = range;
        if let Some((&start, &end)) = self.runs.range(..whole.start).next_back()
            && end == whole.start
        {
            whole.start = start;
        }
        if let Some(end) = self.runs.remove(&whole.end) {
            whole.end = end;
        }
        self.runs.insert(whole.start, whole.end);
    }

    /// Removes the delayed blocks of `range`; returns the number of clusters that lost their last
    /// delayed block.
    pub(crate) fn remove(&mut self, range: Range<u64>) -> u64 {
        let mut parts = Vec::new();
        let mut at = range.start;
        while let Some(next) = self.next(at).filter(|next| *next < range.end) {
            let Some(run) = self.at(next) else { break };
            let part = next..run.end.min(range.end);
            self.runs.remove(&run.start);
            if run.start < part.start {
                self.runs.insert(run.start, part.start);
            }
            if part.end < run.end {
                self.runs.insert(part.end, run.end);
            }
            at = part.end;
            parts.push(part);
        }
        let mut freed = 0;
        let mut last = None;
        for part in parts {
            let clusters = self.clusters(&part);
            // Inner clusters held nothing else; the edges may.
            let first = clusters.start + u64::from(last == Some(clusters.start));
            let count = clusters.end.saturating_sub(first);
            freed += count;
            if count > 0 {
                freed -= u64::from(self.touches(first));
                if count > 1 {
                    freed -= u64::from(self.touches(clusters.end - 1));
                }
            }
            last = Some(clusters.end - 1);
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use extant_base::Prng;

    use super::*;

    #[test]
    fn a_random_history_matches_a_set_of_blocks_and_clusters() {
        for bits in [0, 2, 4] {
            let mut random = Prng::new(u64::from(bits));
            let mut delayed = Delayed::new(bits);
            let mut blocks = BTreeSet::new();
            let clusters =
                |blocks: &BTreeSet<u64>| blocks.iter().map(|b| b >> bits).collect::<BTreeSet<_>>();
            for _ in 0..5000 {
                let start = random.below(200);
                let range = start..start + 1 + random.below(40);
                if random.one_in(2) {
                    let at = delayed.next(range.start);
                    let end = at.unwrap_or(u64::MAX).min(range.end);
                    if end <= range.start {
                        continue;
                    }
                    let range = range.start..end;
                    let before = clusters(&blocks).len() as u64;
                    let new = delayed.new_clusters(&range);
                    delayed.insert(range.clone());
                    blocks.extend(range);
                    assert_eq!(before + new, clusters(&blocks).len() as u64);
                } else {
                    let before = clusters(&blocks).len() as u64;
                    let freed = delayed.remove(range.clone());
                    blocks.retain(|block| !range.contains(block));
                    assert_eq!(before - freed, clusters(&blocks).len() as u64, "{range:?}");
                }
                assert_eq!(delayed.blocks(), blocks.len() as u64);
                for block in 0..250 {
                    assert_eq!(delayed.at(block).is_some(), blocks.contains(&block));
                    assert_eq!(delayed.next(block), blocks.range(block..).next().copied());
                }
                // Runs that touch are one.
                let ends: BTreeSet<u64> = delayed.runs.values().copied().collect();
                assert!(delayed.runs.keys().all(|start| !ends.contains(start)));
            }
        }
    }
}
