//! All that the step through the inodes found, for the steps behind it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::Ino;

use crate::Problem;
use crate::base::Base;
use crate::part::{Part, SharedBlock, Usage, ValueRef, ValueState};
use crate::tables::Tables;

#[derive(Default)]
pub(crate) struct Found {
    pub(crate) tables: Tables,
    pub(crate) blocks: BTreeMap<u64, SharedBlock>,
    pub(crate) values: Vec<ValueRef>,
    pub(crate) value_states: BTreeMap<u32, ValueState>,
    /// References to each inode of a value, when they were counted.
    pub(crate) value_counts: BTreeMap<u32, u64>,
    /// Times of deletion of inodes in use.
    pub(crate) dtimes: BTreeMap<u32, u32>,
    pub(crate) low_dtimes: Vec<(Ino, u32, u16)>,
    /// Files, and their sizes, with written blocks behind their end.
    pub(crate) short_sizes: Vec<(Ino, u64)>,
    /// Inodes known as orphans.
    pub(crate) orphans: BTreeSet<u32>,
    pub(crate) usage: [Usage; 3],
    pub(crate) directories: u32,
    pub(crate) value_inodes: u32,
    lacks_large_file: bool,
}

/// Takes out the elements at `ranges`, which are in any order and do not overlap.
fn remove<T>(list: &mut Vec<T>, mut ranges: Vec<Range<usize>>) {
    ranges.retain(|range| !range.is_empty());
    if ranges.is_empty() {
        return;
    }
    ranges.sort_unstable_by_key(|range| range.start);
    let mut ranges = ranges.into_iter().peekable();
    let mut at = 0;
    list.retain(|_| {
        while ranges.next_if(|range| range.end <= at).is_some() {}
        let is_out = ranges.peek().is_some_and(|range| range.contains(&at));
        at += 1;
        !is_out
    });
}

/// Adds a list behind another. What one thread found alone is not there twice for a moment.
fn append<T>(list: &mut Vec<T>, mut more: Vec<T>) {
    if list.is_empty() {
        *list = more;
    } else {
        list.append(&mut more);
    }
}

impl Found {
    /// Joins what pieces share: attribute blocks, of which the first user is told what is wrong
    /// with them, and the feature that one file is enough to need.
    pub(crate) fn join_blocks(
        &mut self,
        base: &Base<'_>,
        part: &mut Part,
        problems: &mut Vec<Problem>,
        is_conflict: &AtomicBool,
    ) {
        let (mut told, mut counted) = (Vec::new(), Vec::new());
        for (number, block) in std::mem::take(&mut part.blocks) {
            if let Some(first) = self.blocks.get_mut(&number) {
                first.counted = first.counted.saturating_add(block.counted);
                told.push(block.problems);
                counted.push(block.values);
                continue;
            }
            if base.claims.claim(base.cluster(number), 1).is_some() {
                is_conflict.store(true, Ordering::Relaxed);
            }
            self.blocks.insert(number, block);
        }
        if part.lacks_large_file && self.lacks_large_file {
            let is_told =
                |problem: &Problem| matches!(problem, Problem::Feature { name: "large_file", .. });
            let at = problems.iter().position(is_told);
            told.extend(at.map(|at| at..at + 1));
        }
        remove(problems, told);
        remove(&mut part.values, counted);
    }

    /// Adds a piece behind those before it.
    pub(crate) fn join(&mut self, mut part: Part) {
        let tables = &mut self.tables;
        let runs = tables.runs.len() as u32;
        for detail in &mut part.details {
            detail.runs = (detail.runs.0 + runs, detail.runs.1 + runs);
        }
        append(&mut tables.all, part.all);
        append(&mut tables.details, part.details);
        append(&mut tables.runs, part.runs);
        append(&mut tables.links, part.links);
        append(&mut tables.unlinked, part.unlinked);
        tables.policies.append(&mut part.policies);
        self.values.append(&mut part.values);
        self.value_states.append(&mut part.value_states);
        self.dtimes.append(&mut part.dtimes);
        self.low_dtimes.append(&mut part.low_dtimes);
        self.short_sizes.append(&mut part.short_sizes);
        for (all, some) in self.usage.iter_mut().zip(part.usage) {
            for (id, (bytes, inodes)) in some {
                let sum = all.entry(id).or_default();
                *sum = (sum.0.saturating_add(bytes), sum.1.saturating_add(inodes));
            }
        }
        self.directories = self.directories.saturating_add(part.directories);
        self.value_inodes = self.value_inodes.saturating_add(part.value_inodes);
        self.lacks_large_file |= part.lacks_large_file;
    }
}

impl Found {
    pub(crate) fn counted_directories(&self, base: &Base<'_>) -> Vec<u32> {
        let mut counts = vec![0u32; base.groups.len()];
        for detail in self.tables.details.iter().filter(|detail| detail.is_dir()) {
            let group = base.sb.group_of_inode(detail.ino).map_or(0, |(group, _)| group.0);
            if let Some(count) = counts.get_mut(group as usize) {
                *count += 1;
            }
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_a_range_is_taken_out() {
        let mut list: Vec<usize> = (0..10).collect();
        remove(&mut list, vec![7..9, 3..3, 0..2, 2..3]);
        assert_eq!(list, [3, 4, 5, 6, 9]);
        remove(&mut list, vec![4..5, 0..0]);
        assert_eq!(list, [3, 4, 5, 6]);
    }
}
