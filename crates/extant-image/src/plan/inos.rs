//! Which inode each node of the tree becomes.
//!
//! The root is inode 2 and lost+found inode 11, as mke2fs has it and e2fsck expects; the inodes
//! that the file system keeps for itself follow, then all other nodes in walk order, then the
//! inodes of large attribute values. Used inodes are thus one run from the start of the tables.
//!
//! Over a base, files keep the inodes they had, and the others get those that are free.

use std::ops::Range;

use extant_base::Ino;
use rustc_hash::FxHashSet;

use crate::tree::NodeId;

/// Node to inode and back; without a table, unless there is a base.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct InoMap {
    lost_found: NodeId,
    /// Inode of the first node that is neither the root nor lost+found.
    first: u32,
    node_count: u32,
    /// Inodes of large attribute values, after the nodes.
    value_count: u32,
    table: Option<Table>,
}

/// Inodes in no order.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Table {
    /// Of nodes, then of values.
    inos: Vec<u32>,
    /// The same, sorted, each with its index in `inos`; the root and lost+found are not here.
    sorted: Vec<(u32, u32)>,
}

impl InoMap {
    /// `node_count` counts the root and lost+found too.
    ///
    /// `None` when the numbers pass 2^32 - 1.
    pub(crate) fn new(
        lost_found: NodeId,
        first: Ino,
        node_count: usize,
        value_count: usize,
    ) -> Option<InoMap> {
        let node_count = u32::try_from(node_count).ok()?;
        let value_count = u32::try_from(value_count).ok()?;
        first.0.checked_add(node_count)?.checked_add(value_count)?;
        Some(InoMap { lost_found, first: first.0, node_count, value_count, table: None })
    }

    /// Gives nodes the inodes that `old` says, as far as they exist up to `limit` and nobody has them; the others get
    /// the first free ones.
    pub(crate) fn onto(mut self, old: impl Fn(NodeId) -> Option<Ino>, limit: u32) -> InoMap {
        let count = self.node_count as usize + self.value_count as usize;
        let mut inos = vec![0; count];
        let mut taken = FxHashSet::default();
        let is_fixed = |at: u32| at == 0 || NodeId(at) == self.lost_found;
        for at in (0..self.node_count).filter(|at| !is_fixed(*at)) {
            let wished = old(NodeId(at)).filter(|ino| (self.first..=limit).contains(&ino.0));
            if let Some(ino) = wished.filter(|ino| taken.insert(ino.0)) {
                inos[at as usize] = ino.0;
            }
        }
        let mut next = self.first;
        let mut sorted = Vec::with_capacity(count);
        for (at, ino) in (0..).zip(&mut inos) {
            if at < self.node_count && is_fixed(at) {
                continue;
            }
            if *ino == 0 {
                // `new` has checked that there are as many numbers as files.
                while taken.contains(&next) {
                    next += 1;
                }
                *ino = next;
                next += 1;
            }
            sorted.push((*ino, at));
        }
        sorted.sort_unstable();
        self.table = Some(Table { inos, sorted });
        self
    }

    /// Inodes in use, those included that no file can have.
    pub(crate) fn used(&self) -> u32 {
        // The root and lost+found are among the first ones.
        self.first - 1 + (self.node_count + self.value_count).saturating_sub(2)
    }

    /// Returns whether an inode is in use; those that no file can have are.
    pub(crate) fn is_used(&self, ino: Ino) -> bool {
        ino.0 < self.first || self.node(ino).is_some() || self.value(ino).is_some()
    }

    /// The last one of a range of inodes that is in use.
    pub(crate) fn last_in(&self, range: Range<u32>) -> Option<Ino> {
        let mut last = None;
        self.each_run(range, |run| last = Some(Ino(run.end - 1)));
        last
    }

    /// Calls `each` with the runs of inodes in use in a range, in order.
    pub(crate) fn each_run(&self, range: Range<u32>, mut each: impl FnMut(Range<u32>)) {
        let end = match self.table {
            Some(_) => self.first,
            None => self.last().0 + 1,
        };
        let head = range.start.max(1)..range.end.min(end);
        if !head.is_empty() {
            each(head);
        }
        let Some(table) = &self.table else { return };
        let at = table.sorted.partition_point(|(ino, _)| *ino < range.start);
        let mut inos = table.sorted[at..].iter().map(|(ino, _)| *ino).peekable();
        while let Some(start) = inos.next().filter(|ino| *ino < range.end) {
            let mut end = start + 1;
            while inos.next_if(|ino| *ino == end && end < range.end).is_some() {
                end += 1;
            }
            each(start..end);
        }
    }

    /// What an inode of the table is.
    fn at(&self, ino: Ino) -> Option<u32> {
        let sorted = &self.table.as_ref()?.sorted;
        let at = sorted.binary_search_by_key(&ino.0, |(ino, _)| *ino).ok()?;
        Some(sorted[at].1)
    }

    /// The inode of a node.
    pub(crate) fn ino(&self, node: NodeId) -> Ino {
        if node == NodeId::ROOT {
            Ino::ROOT
        } else if node == self.lost_found {
            Ino::FIRST_ORDINARY
        } else if let Some(table) = &self.table {
            Ino(table.inos[node.index()])
        } else {
            Ino(self.first + node.0 - 1 - u32::from(node > self.lost_found))
        }
    }

    /// The node of an inode; `None` for the file system's own and for those not in use.
    pub(crate) fn node(&self, ino: Ino) -> Option<NodeId> {
        if ino == Ino::ROOT {
            return Some(NodeId::ROOT);
        }
        if ino == Ino::FIRST_ORDINARY {
            return Some(self.lost_found);
        }
        if self.table.is_some() {
            return self.at(ino).filter(|at| *at < self.node_count).map(NodeId);
        }
        let at = ino.0.checked_sub(self.first)? + 1;
        let node = at + u32::from(at >= self.lost_found.0);
        (node < self.node_count).then_some(NodeId(node))
    }

    /// Inode of the attribute value with index `value`.
    pub(crate) fn value_ino(&self, value: u32) -> Ino {
        if let Some(table) = &self.table {
            return Ino(table.inos[self.node_count as usize + value as usize]);
        }
        Ino(self.first + self.node_count - 2 + value)
    }

    /// The attribute value that an inode holds.
    pub(crate) fn value(&self, ino: Ino) -> Option<u32> {
        if self.table.is_some() {
            return self.at(ino)?.checked_sub(self.node_count);
        }
        let value = ino.0.checked_sub(self.first + self.node_count - 2)?;
        (value < self.value_count).then_some(value)
    }

    /// The last inode in use.
    pub(crate) fn last(&self) -> Ino {
        if let Some(table) = &self.table {
            return Ino(table.sorted.last().map_or(self.first - 1, |(ino, _)| *ino));
        }
        Ino((self.first + self.node_count + self.value_count - 3).max(self.first - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn nodes_and_inodes_map_both_ways_wherever_lost_found_is() {
        for lost_found in 1..6 {
            let map = InoMap::new(NodeId(lost_found), Ino(13), 6, 3).unwrap();
            let mut seen = HashSet::new();
            for node in (0..6).map(NodeId) {
                let ino = map.ino(node);
                assert!(seen.insert(ino));
                assert_eq!(map.node(ino), Some(node), "{ino}");
                assert_eq!(map.value(ino), None);
            }
            for value in 0..3 {
                let ino = map.value_ino(value);
                assert!(seen.insert(ino));
                assert_eq!(map.value(ino), Some(value));
                assert_eq!(map.node(ino), None);
            }
            assert_eq!(map.last(), Ino(13 + 4 + 3 - 1));
            for ino in [0, 1, 3, 7, 8, 12, 20, 21].map(Ino) {
                assert_eq!((map.node(ino), map.value(ino)), (None, None), "{ino}");
            }
        }
    }

    #[test]
    fn over_a_base_files_keep_their_inodes_if_they_can() {
        let old = [0, 2, 40, 40, 1000, 7, 13].map(Ino);
        let map = InoMap::new(NodeId(1), Ino(13), 8, 2).unwrap();
        let map = map.onto(|node| old.get(node.index()).copied(), 100);
        let inos: Vec<u32> = (0..8).map(|node| map.ino(NodeId(node)).0).collect();
        // Wanted twice, past the limit, and reserved: the first free ones.
        assert_eq!(inos, [2, 11, 40, 14, 15, 16, 13, 17]);
        assert_eq!([map.value_ino(0), map.value_ino(1)], [18, 19].map(Ino));
        for node in (0..8).map(NodeId) {
            assert_eq!(map.node(map.ino(node)), Some(node));
            assert_eq!(map.value(map.ino(node)), None);
        }
        assert_eq!((map.value(Ino(19)), map.node(Ino(19))), (Some(1), None));
        assert_eq!((map.last(), map.used()), (Ino(40), 20));
        let mut runs = Vec::new();
        map.each_run(1..40, |run| runs.push(run));
        map.each_run(40..100, |run| runs.push(run));
        assert_eq!(runs, [1..13, 13..20, 40..41]);
        assert_eq!((map.last_in(1..40), map.last_in(20..40)), (Some(Ino(19)), None));
        assert!(map.is_used(Ino(1)) && map.is_used(Ino(40)) && !map.is_used(Ino(20)));
    }

    #[test]
    fn an_empty_tree_ends_with_the_own_inodes() {
        let map = InoMap::new(NodeId(1), Ino(13), 2, 0).unwrap();
        assert_eq!(map.last(), Ino(12));
        assert_eq!(map.node(Ino(13)), None);
        assert!(InoMap::new(NodeId(1), Ino(13), u32::MAX as usize, 0).is_none());
    }
}
