//! Which inode each node of the tree becomes.
//!
//! The root is inode 2 and lost+found inode 11, as mke2fs has it and e2fsck expects; the inodes
//! that the file system keeps for itself follow, then all other nodes in walk order, then the
//! inodes of large attribute values. Used inodes are thus one run from the start of the tables.

use extant_base::Ino;

use crate::tree::NodeId;

/// Node to inode and back, without a table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InoMap {
    lost_found: NodeId,
    /// Inode of the first node that is neither the root nor lost+found.
    first: u32,
    node_count: u32,
    /// Inodes of large attribute values, after the nodes.
    value_count: u32,
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
        Some(InoMap { lost_found, first: first.0, node_count, value_count })
    }

    /// The inode of a node.
    pub(crate) fn ino(&self, node: NodeId) -> Ino {
        if node == NodeId::ROOT {
            Ino::ROOT
        } else if node == self.lost_found {
            Ino::FIRST_ORDINARY
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
        let at = ino.0.checked_sub(self.first)? + 1;
        let node = at + u32::from(at >= self.lost_found.0);
        (node < self.node_count).then_some(NodeId(node))
    }

    /// Inode of the attribute value with index `value`.
    pub(crate) fn value_ino(&self, value: u32) -> Ino {
        Ino(self.first + self.node_count - 2 + value)
    }

    /// The attribute value that an inode holds.
    pub(crate) fn value(&self, ino: Ino) -> Option<u32> {
        let value = ino.0.checked_sub(self.first + self.node_count - 2)?;
        (value < self.value_count).then_some(value)
    }

    /// The last inode in use.
    pub(crate) fn last(&self) -> Ino {
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
    fn an_empty_tree_ends_with_the_own_inodes() {
        let map = InoMap::new(NodeId(1), Ino(13), 2, 0).unwrap();
        assert_eq!(map.last(), Ino(12));
        assert_eq!(map.node(Ino(13)), None);
        assert!(InoMap::new(NodeId(1), Ino(13), u32::MAX as usize, 0).is_none());
    }
}
