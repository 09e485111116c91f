//! The tree to be built: every file with its attributes, every name, no file contents.
//!
//! # Place
//!
//! A source (`source`) fills a [`TreeBuilder`]; the planner (`plan`) reads the finished [`Tree`];
//! the writer (`write`) asks the source for contents by [`NodeId`]. Nothing here knows ext4.
//!
//! # Shape
//!
//! ```text
//! nodes    one per inode: kind, mode, owner, times, size, content locator   ~96 bytes each
//! entries  one per name: (parent, name, node), sorted by (parent, name)     16 bytes each
//! arena    the bytes of all names and symlink targets, once each
//! xattrs   distinct sets of extended attributes, shared by the nodes that have them
//! ```
//!
//! A million files with names of 20 bytes take about 140 MB: the builder must stay below 512 MiB
//! for that many, plan and buffers included.
//!
//! # Invariants
//!
//! - T1. Node 0 is the root directory, and no entry names it.
//! - T2. After [`TreeBuilder::finish`], entries are sorted by parent, then by name bytes; names in
//!   one directory are distinct; every node but the root has at least one entry; a directory has
//!   exactly one.
//! - T3. Nodes are numbered in the order of a depth-first walk with sorted names, whatever order
//!   the source found them in: the image does not depend on directory order or thread timing.
//!   Attribute sets and lists of runs are numbered in the order of the first node that has them,
//!   and there are no others.
mod builder;
mod node;

use std::ops::Range;

pub use builder::{DEPTH_MAX, TreeBuilder, TreeError};
pub use node::{ArenaRef, DataRun, Entry, Kind, NO_RUNS, Node, NodeId, Time, XattrSet, XattrSetId};

use crate::keys::Keys;

/// A complete tree; see the module's invariants.
#[derive(Debug)]
pub struct Tree {
    nodes: Vec<Node>,
    entries: Vec<Entry>,
    arena: Vec<u8>,
    xattr_sets: Vec<XattrSet>,
    runs: Vec<Vec<DataRun>>,
    /// Directories in walk order, each with the range of its entries.
    dirs: Vec<(u32, Range<u32>)>,
    /// Keys of what is to be encrypted.
    pub(crate) keys: Keys,
}

impl Tree {
    /// A tree of nothing but a root.
    pub fn empty(root: Node) -> Tree {
        TreeBuilder::new(root).finish().expect("a lone root breaks no rule")
    }

    /// The entry of the root directory with that name.
    pub fn find_in_root(&self, name: &[u8]) -> Option<&Entry> {
        let entries = self.children(NodeId::ROOT);
        let at = entries.binary_search_by(|entry| self.name(entry).cmp(name)).ok()?;
        entries.get(at)
    }

    /// Adds an empty directory to the root, which must not have that name yet. The new node is
    /// the last one, whatever its name: the one exception to T3, for `lost+found`.
    pub fn add_root_dir(&mut self, name: &[u8], node: Node) -> Result<NodeId, TreeError> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|&id| id < u32::MAX - 16)
            .ok_or(TreeError::TooLarge { what: "files" })?;
        let at = match self
            .children(NodeId::ROOT)
            .binary_search_by(|entry| self.name(entry).cmp(name))
        {
            Err(at) => at as u32,
            Ok(_) => {
                let path = name.escape_ascii().to_string();
                return Err(TreeError::DuplicateName { path });
            }
        };
        let start = self.arena.len() as u64;
        let start_hi = u16::try_from(start >> 32)
            .map_err(|_| TreeError::TooLarge { what: "bytes of names" })?;
        self.arena.extend_from_slice(name);
        let name = ArenaRef { start: start as u32, start_hi, len: name.len() as u16 };
        // The root's entries come first (it is the first directory), so `at` is also the place
        // in the list of all entries, and everything from there on moves up by one.
        for node in &mut self.nodes {
            if node.first_entry != u32::MAX && node.first_entry >= at {
                node.first_entry += 1;
            }
        }
        let mut ranges = self.dirs.iter_mut();
        if let Some((_, root)) = ranges.next() {
            root.end += 1;
        }
        for (_, range) in ranges {
            *range = range.start + 1..range.end + 1;
        }
        self.nodes.push(Node { name_count: 1, first_entry: at, ..node });
        let entry = Entry { parent: NodeId::ROOT, node: NodeId(id), name };
        self.entries.insert(at as usize, entry);
        let end = self.entries.len() as u32;
        self.dirs.push((id, end..end));
        Ok(NodeId(id))
    }

    /// All nodes, in walk order; the root first.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Changes attributes of every node: owner maps, time clamps.
    pub fn for_each_node_mut(&mut self, mut change: impl FnMut(&mut Node)) {
        self.nodes.iter_mut().for_each(&mut change);
    }

    /// The directory `path`; slashes at the beginning and end do not count.
    pub(crate) fn find_dir(&self, path: &[u8]) -> Option<NodeId> {
        let mut at = NodeId::ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let children = self.children(at);
            let found = children.binary_search_by(|entry| self.name(entry).cmp(name)).ok()?;
            at = children.get(found)?.node;
        }
        (self.node(at).kind == Kind::Dir).then_some(at)
    }

    /// One node, to be changed.
    pub(crate) fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// Returns whether something is to be encrypted.
    pub fn is_encrypted(&self) -> bool {
        !self.keys.list.is_empty()
    }

    /// Gives a node a set of attributes of its own.
    pub(crate) fn set_xattrs(&mut self, id: NodeId, set: XattrSet) {
        self.nodes[id.index()].xattrs = XattrSetId(self.xattr_sets.len() as u32);
        self.xattr_sets.push(set);
    }

    /// Marks every regular file as sealed by fs-verity.
    pub fn seal_all(&mut self) {
        for node in self.nodes.iter_mut().filter(|node| node.kind == Kind::File) {
            node.sealed = true;
        }
    }

    /// Marks the regular file at `path` as sealed by fs-verity, under all of its names; slashes at
    /// the beginning do not count. Returns false if there is none.
    pub fn seal(&mut self, path: &[u8]) -> bool {
        let mut id = NodeId::ROOT;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            let children = self.children(id);
            match children.binary_search_by(|entry| self.name(entry).cmp(name)) {
                Ok(at) => id = children[at].node,
                Err(_) => return false,
            }
        }
        let node = &mut self.nodes[id.index()];
        node.sealed = node.kind == Kind::File;
        node.sealed
    }

    /// The root directory.
    pub fn root_mut(&mut self) -> &mut Node {
        &mut self.nodes[NodeId::ROOT.index()]
    }

    /// All entries; a directory's are adjacent and sorted by name.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Directories in walk order with the range of their entries in [`Tree::entries`].
    pub fn dirs(&self) -> impl ExactSizeIterator<Item = (NodeId, &[Entry])> {
        self.dirs.iter().map(|(id, range)| {
            (NodeId(*id), &self.entries[range.start as usize..range.end as usize])
        })
    }

    /// Position of directory `id` among [`Tree::dirs`].
    pub fn dir_index(&self, id: NodeId) -> Option<usize> {
        self.dirs.binary_search_by_key(&id.0, |(dir, _)| *dir).ok()
    }

    /// The entries of directory `id`, sorted by name; empty for other kinds.
    pub fn children(&self, id: NodeId) -> &[Entry] {
        self.dir_index(id).map_or(&[], |at| {
            let range = &self.dirs[at].1;
            &self.entries[range.start as usize..range.end as usize]
        })
    }

    /// The name of an entry.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        &self.arena[entry.name.range()]
    }

    /// The target of a symlink.
    pub fn target(&self, node: &Node) -> &[u8] {
        &self.arena[node.target.range()]
    }

    /// The extended attributes of a node.
    pub fn xattrs(&self, node: &Node) -> &XattrSet {
        &self.xattr_sets[node.xattrs.0 as usize]
    }

    /// Changes values of attributes: owners named inside them.
    pub fn for_each_xattr_set_mut(&mut self, mut change: impl FnMut(&mut XattrSet)) {
        self.xattr_sets.iter_mut().for_each(&mut change);
    }

    /// All distinct attribute sets; index 0 is the empty one.
    pub fn xattr_sets(&self) -> &[XattrSet] {
        &self.xattr_sets
    }

    /// The stored runs of a file with holes; `None` when all of it is stored.
    pub fn runs(&self, node: &Node) -> Option<&[DataRun]> {
        self.runs.get(node.runs as usize).map(Vec::as_slice)
    }

    /// Path of an entry from the root, without a leading slash.
    pub fn entry_path(&self, entry: u32) -> Vec<u8> {
        let mut parts = Vec::new();
        let mut at = self.entries.get(entry as usize);
        while let Some(entry) = at {
            parts.push(self.name(entry));
            // The root has no entry (T1), so the loop ends there; depth is bounded by DEPTH_MAX.
            at = self.entries.get(self.node(entry.parent).first_entry as usize);
        }
        parts.reverse();
        parts.join(&b'/')
    }

    /// One path of a node from the root, without a leading slash; empty for the root.
    pub fn path(&self, id: NodeId) -> Vec<u8> {
        self.entry_path(self.node(id).first_entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dir() -> Node {
        Node::new(Kind::Dir)
    }

    fn file() -> Node {
        Node::new(Kind::File)
    }

    #[test]
    fn order_of_calls_does_not_show() {
        let build = |swap: bool| {
            let mut b = TreeBuilder::new(dir());
            let mut add = |name: &[u8], node| {
                let id = b.add(node).unwrap();
                b.link(NodeId::ROOT, name, id).unwrap();
                id
            };
            let (d, f) = if swap {
                let f = add(b"a", file());
                (add(b"d", dir()), f)
            } else {
                let d = add(b"d", dir());
                (d, add(b"a", file()))
            };
            b.link(d, b"hard", f).unwrap();
            b.finish().unwrap()
        };
        for tree in [build(false), build(true)] {
            assert_eq!(tree.path(NodeId(1)), b"a");
            assert_eq!(tree.node(NodeId(1)).name_count, 2);
            assert_eq!(tree.path(NodeId(2)), b"d");
            assert_eq!(tree.name(&tree.children(NodeId(2))[0]), b"hard");
            assert_eq!(tree.entry_path(2), b"d/hard");
        }
    }

    #[test]
    fn attribute_sets_and_runs_are_numbered_in_walk_order_and_only_if_used() {
        let mut b = TreeBuilder::new(dir());
        let set = |v: &[u8]| -> XattrSet { vec![(b"user.a"[..].into(), v.into())] };
        let run = |offset| vec![DataRun { offset, len: 1, locator: 0 }];
        for (name, value) in [(b"z", b"1"), (b"y", b"2"), (b"x", b"1"), (b"w", b"3")] {
            let mut node = file();
            node.xattrs = b.intern_xattrs(set(value)).unwrap();
            node.runs = b.store_runs(run(u64::from(name[0]))).unwrap();
            let id = b.add(node).unwrap();
            b.link(NodeId::ROOT, name, id).unwrap();
        }
        // "w" gets another meaning: its node, set and runs go away.
        let other = b.add(file()).unwrap();
        b.relink(3, other);
        let tree = b.finish().unwrap();
        assert_eq!(tree.xattr_sets(), [Vec::new(), set(b"1"), set(b"2")]);
        let ids: Vec<u32> = tree.nodes().iter().map(|node| node.xattrs.0).collect();
        assert_eq!(ids, [0, 0, 1, 2, 1]);
        let runs: Vec<_> =
            tree.nodes().iter().map(|node| tree.runs(node).map(|runs| runs[0].offset)).collect();
        assert_eq!(runs, [None, None, Some(120), Some(121), Some(122)]);
    }

    #[test]
    fn impossible_names_and_links_are_refused() {
        let mut b = TreeBuilder::new(dir());
        let f = b.add(file()).unwrap();
        for name in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert!(matches!(b.link(NodeId::ROOT, name, f), Err(TreeError::BadName { .. })));
        }
        assert!(matches!(
            b.link(NodeId::ROOT, &[b'x'; 256], f),
            Err(TreeError::NameTooLong { .. })
        ));
        b.link(NodeId::ROOT, &[b'x'; 255], f).unwrap();
        b.link(NodeId::ROOT, &[b'x'; 255], f).unwrap();
        assert!(matches!(b.finish(), Err(TreeError::DuplicateName { .. })));

        let mut b = TreeBuilder::new(dir());
        let d = b.add(dir()).unwrap();
        b.link(NodeId::ROOT, b"one", d).unwrap();
        b.link(NodeId::ROOT, b"two", d).unwrap();
        assert!(matches!(b.finish(), Err(TreeError::DirectoryLinks { .. })));
    }

    #[test]
    fn a_root_directory_added_later_is_found_and_moves_nothing_else() {
        for name in [&b"!first"[..], b"lost+found", b"zz"] {
            let mut b = TreeBuilder::new(dir());
            for n in [&b"a"[..], b"m", b"x"] {
                let d = b.add(dir()).unwrap();
                b.link(NodeId::ROOT, n, d).unwrap();
                let f = b.add(file()).unwrap();
                b.link(d, b"f", f).unwrap();
            }
            let mut tree = b.finish().unwrap();
            let before: Vec<_> = (0..7).map(|i| tree.path(NodeId(i))).collect();
            let id = tree.add_root_dir(name, dir()).unwrap();
            assert_eq!(tree.path(id), name);
            assert_eq!(tree.find_in_root(name).unwrap().node, id);
            assert!(tree.children(id).is_empty());
            let after: Vec<_> = (0..7).map(|i| tree.path(NodeId(i))).collect();
            assert_eq!(before, after);
            assert!(tree.add_root_dir(name, dir()).is_err());
        }
    }

    #[test]
    fn equal_attribute_sets_are_stored_once() {
        let mut b = TreeBuilder::new(dir());
        let set = |v: &[u8]| -> XattrSet {
            vec![(b"user.b"[..].into(), v.into()), (b"user.a"[..].into(), b"1"[..].into())]
        };
        let one = b.intern_xattrs(set(b"x")).unwrap();
        assert_eq!(one, b.intern_xattrs(set(b"x")).unwrap());
        assert_ne!(one, b.intern_xattrs(set(b"y")).unwrap());
        assert_eq!(&*b.xattrs(one)[0].0, b"user.a");
        assert_eq!(b.intern_xattrs(Vec::new()).unwrap(), XattrSetId(0));
    }
}
