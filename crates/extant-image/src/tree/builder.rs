//! A tree being collected, in whatever order its source finds it.

use std::fmt;
use std::ops::Range;

use rustc_hash::FxHashMap;

use super::Tree;
use super::node::{ArenaRef, DataRun, Entry, Kind, NO_RUNS, Node, NodeId, XattrSet, XattrSetId};
use crate::keys::Keys;

/// Why a tree cannot be built.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum TreeError {
    /// A name that no file system can hold: empty, `.`, `..`, with a slash or a NUL.
    BadName {
        /// The name.
        name: Vec<u8>,
    },
    /// A name longer than 255 bytes.
    NameTooLong {
        /// The name.
        name: Vec<u8>,
    },
    /// A symlink target of 0 or more than 4095 bytes.
    BadTarget {
        /// Length in bytes.
        len: usize,
    },
    /// A symlink target with a zero byte, which ends it for everybody who reads it.
    ZeroInTarget,
    /// Two entries of one directory have the same name.
    DuplicateName {
        /// Path of the second one.
        path: String,
    },
    /// A directory has a second name, or none.
    DirectoryLinks {
        /// One of its paths.
        path: String,
    },
    /// More than 2^32 - 16 nodes, entries or attribute sets, or 2^48 bytes of names.
    TooLarge {
        /// The resource that exceeds its limit.
        what: &'static str,
    },
    /// Directories nest deeper than the bound.
    TooDeep {
        /// Path where the bound was met.
        path: String,
    },
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TreeError::BadName { name } => {
                write!(f, "\"{}\" cannot be a file name", name.escape_ascii())
            }
            TreeError::NameTooLong { name } => write!(
                f,
                "name of {} bytes is longer than ext4's 255: \"{}\"",
                name.len(),
                name.escape_ascii()
            ),
            TreeError::BadTarget { len } => {
                write!(f, "symbolic link target of {len} bytes; it must have 1 to 4095")
            }
            TreeError::ZeroInTarget => f.write_str("symbolic link target with a zero byte in it"),
            TreeError::DuplicateName { path } => write!(f, "\"{path}\" appears twice"),
            TreeError::DirectoryLinks { path } => {
                write!(f, "directory \"{path}\" is linked more than once or not at all")
            }
            TreeError::TooLarge { what } => write!(f, "too many {what} for one image"),
            TreeError::TooDeep { path } => {
                write!(f, "directories nest deeper than {DEPTH_MAX} at \"{path}\"")
            }
        }
    }
}

impl std::error::Error for TreeError {}

/// The parent of an entry that was taken away. There are fewer nodes.
const NOWHERE: NodeId = NodeId(u32::MAX);

/// Deepest nesting of directories that is accepted.
pub const DEPTH_MAX: usize = 4096;

/// A tree being collected. Order of calls does not matter.
#[derive(Debug)]
pub struct TreeBuilder {
    nodes: Vec<Node>,
    entries: Vec<Entry>,
    arena: Vec<u8>,
    xattr_sets: Vec<XattrSet>,
    xattr_index: FxHashMap<XattrSet, XattrSetId>,
    runs: Vec<Vec<DataRun>>,
}

impl TreeBuilder {
    /// Starts with a root directory.
    pub fn new(root: Node) -> TreeBuilder {
        TreeBuilder {
            nodes: vec![root],
            entries: Vec::new(),
            arena: Vec::new(),
            xattr_sets: vec![Vec::new()],
            xattr_index: FxHashMap::default(),
            runs: Vec::new(),
        }
    }

    /// Adds a node; it needs a name by [`TreeBuilder::link`] before the end.
    pub fn add(&mut self, node: Node) -> Result<NodeId, TreeError> {
        let id = u32::try_from(self.nodes.len())
            .ok()
            .filter(|&id| id < u32::MAX - 16)
            .ok_or(TreeError::TooLarge { what: "files" })?;
        self.nodes.push(node);
        Ok(NodeId(id))
    }

    /// The node, to look at or change.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        &mut self.nodes[id.index()]
    }

    /// The node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Every node collected so far, the root first.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// Gives `node` a name in `parent`. Called again for each hard link.
    pub fn link(&mut self, parent: NodeId, name: &[u8], node: NodeId) -> Result<(), TreeError> {
        if name.is_empty()
            || name == b"."
            || name == b".."
            || name.iter().any(|&b| b == b'/' || b == 0)
        {
            return Err(TreeError::BadName { name: name.to_vec() });
        }
        if name.len() > 255 {
            return Err(TreeError::NameTooLong { name: name.to_vec() });
        }
        if self.entries.len() >= (u32::MAX - 16) as usize {
            return Err(TreeError::TooLarge { what: "names" });
        }
        let name = self.store(name)?;
        self.entries.push(Entry { parent, node, name });
        Ok(())
    }

    /// The names given so far, in order of [`TreeBuilder::link`].
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The name of an entry.
    pub fn name(&self, entry: &Entry) -> &[u8] {
        self.stored(entry.name)
    }

    /// Lets entry number `index` of [`TreeBuilder::entries`] mean another node. The node it meant
    /// is dropped by [`TreeBuilder::finish`] if this was its last name.
    pub fn relink(&mut self, index: usize, node: NodeId) {
        self.entries[index].node = node;
    }

    /// Removes entry number `index` of [`TreeBuilder::entries`]: it keeps its number, and nothing
    /// else. Nodes that only it led to are dropped by [`TreeBuilder::finish`], with everything
    /// below them.
    pub fn unlink(&mut self, index: usize) {
        self.entries[index].parent = NOWHERE;
    }

    /// Stores a symlink target for [`Node::target`].
    pub fn store_target(&mut self, target: &[u8]) -> Result<ArenaRef, TreeError> {
        if target.is_empty() || target.len() > 4095 {
            return Err(TreeError::BadTarget { len: target.len() });
        }
        if target.contains(&0) {
            return Err(TreeError::ZeroInTarget);
        }
        self.store(target)
    }

    /// Bytes of a stored name or target.
    pub fn stored(&self, what: ArenaRef) -> &[u8] {
        &self.arena[what.range()]
    }

    fn store(&mut self, bytes: &[u8]) -> Result<ArenaRef, TreeError> {
        let start = self.arena.len() as u64;
        let too_large = TreeError::TooLarge { what: "bytes of names" };
        let start_hi = u16::try_from(start >> 32).map_err(|_| too_large.clone())?;
        let len = u16::try_from(bytes.len()).map_err(|_| too_large)?;
        self.arena.extend_from_slice(bytes);
        Ok(ArenaRef { start: start as u32, start_hi, len })
    }

    /// Interns a set of extended attributes, sorted here; equal sets share one copy.
    pub fn intern_xattrs(&mut self, mut set: XattrSet) -> Result<XattrSetId, TreeError> {
        if set.is_empty() {
            return Ok(XattrSetId(0));
        }
        set.sort();
        if let Some(&id) = self.xattr_index.get(&set) {
            return Ok(id);
        }
        let id = u32::try_from(self.xattr_sets.len())
            .map_err(|_| TreeError::TooLarge { what: "sets of extended attributes" })?;
        self.xattr_sets.push(set.clone());
        self.xattr_index.insert(set, XattrSetId(id));
        Ok(XattrSetId(id))
    }

    /// The attributes of set `id`.
    pub fn xattrs(&self, id: XattrSetId) -> &XattrSet {
        &self.xattr_sets[id.0 as usize]
    }

    /// Stores the data runs of a file with holes for [`Node::runs`]: sorted, not overlapping,
    /// within the size. An empty list is a file that is one hole.
    pub fn store_runs(&mut self, runs: Vec<DataRun>) -> Result<u32, TreeError> {
        debug_assert!(runs.windows(2).all(|w| w[0].offset.saturating_add(w[0].len) <= w[1].offset));
        let id = u32::try_from(self.runs.len())
            .ok()
            .filter(|&id| id != NO_RUNS)
            .ok_or(TreeError::TooLarge { what: "sparse files" })?;
        self.runs.push(runs);
        Ok(id)
    }

    /// Sorts, checks T2 and renumbers by T3. Nodes that no name reaches are dropped.
    pub fn finish(mut self) -> Result<Tree, TreeError> {
        self.entries.retain(|entry| entry.parent != NOWHERE);
        self.xattr_index = FxHashMap::default();
        self.sort_entries()?;
        let starts = self.starts();
        let order = self.walk_order(&starts)?;

        // Renumber nodes in walk order, then rebuild the entries in that order too, so that a
        // directory's entries are adjacent and later ones lie later.
        let mut new_id = vec![u32::MAX; self.nodes.len()];
        let mut nodes = Vec::with_capacity(order.len());
        for &old in &order {
            new_id[old as usize] = nodes.len() as u32;
            let mut node = self.nodes[old as usize];
            node.name_count = 0;
            node.first_entry = u32::MAX;
            nodes.push(node);
        }
        self.renumber_lists(&mut nodes);
        let mut entries = Vec::with_capacity(self.entries.len());
        let mut ranges = Vec::new();
        for &old in &order {
            if self.nodes[old as usize].kind != Kind::Dir {
                continue;
            }
            let start = entries.len() as u32;
            for entry in &self.entries[starts.of(old)] {
                let node = NodeId(new_id[entry.node.index()]);
                let target = &mut nodes[node.index()];
                if target.first_entry == u32::MAX {
                    target.first_entry = entries.len() as u32;
                }
                target.name_count += 1;
                entries.push(Entry {
                    parent: NodeId(new_id[old as usize]),
                    node,
                    name: entry.name,
                });
            }
            ranges.push((new_id[old as usize], start..entries.len() as u32));
        }
        let tree = Tree {
            nodes,
            entries,
            arena: self.arena,
            xattr_sets: self.xattr_sets,
            runs: self.runs,
            dirs: ranges,
            keys: Keys::default(),
        };
        for node in &tree.nodes[1..] {
            if node.kind == Kind::Dir && node.name_count != 1 {
                return Err(TreeError::DirectoryLinks {
                    path: tree.entry_path(node.first_entry).escape_ascii().to_string(),
                });
            }
        }
        Ok(tree)
    }

    /// Numbers attribute sets and lists of runs in the order in which `nodes` use them (T3).
    fn renumber_lists(&mut self, nodes: &mut [Node]) {
        let mut old_sets = std::mem::take(&mut self.xattr_sets);
        let mut new_ids = vec![0u32; old_sets.len()];
        let mut sets = vec![Vec::new()];
        let mut old_runs = std::mem::take(&mut self.runs);
        let mut runs = Vec::with_capacity(old_runs.len());
        for node in nodes {
            let old = node.xattrs.0 as usize;
            if old != 0 {
                if new_ids[old] == 0 {
                    new_ids[old] = sets.len() as u32;
                    sets.push(std::mem::take(&mut old_sets[old]));
                }
                node.xattrs = XattrSetId(new_ids[old]);
            }
            if node.runs != NO_RUNS {
                // Each list belongs to one node.
                let list = std::mem::take(&mut old_runs[node.runs as usize]);
                node.runs = runs.len() as u32;
                runs.push(list);
            }
        }
        self.xattr_sets = sets;
        self.runs = runs;
    }

    fn sort_entries(&mut self) -> Result<(), TreeError> {
        let arena = &self.arena;
        self.entries.sort_unstable_by(|a, b| {
            (a.parent, &arena[a.name.range()]).cmp(&(b.parent, &arena[b.name.range()]))
        });
        for pair in self.entries.windows(2) {
            if pair[0].parent == pair[1].parent
                && arena[pair[0].name.range()] == arena[pair[1].name.range()]
            {
                let name = arena[pair[1].name.range()].escape_ascii().to_string();
                return Err(TreeError::DuplicateName { path: name });
            }
        }
        Ok(())
    }

    fn starts(&self) -> Starts {
        let mut at = vec![0u32; self.nodes.len() + 1];
        for entry in &self.entries {
            at[entry.parent.index() + 1] += 1;
        }
        for i in 1..at.len() {
            at[i] += at[i - 1];
        }
        Starts { at }
    }

    /// Old node numbers in walk order: a directory, then its entries by name, each directory's
    /// files before its sub-directories' contents, so that the files of one directory are
    /// neighbours in the image.
    fn walk_order(&self, starts: &Starts) -> Result<Vec<u32>, TreeError> {
        let mut seen = vec![false; self.nodes.len()];
        let mut order = Vec::with_capacity(self.nodes.len());
        let mut stack = vec![(0u32, 0usize)];
        seen[0] = true;
        order.push(0);
        while let Some((dir, depth)) = stack.pop() {
            let children = &self.entries[starts.of(dir)];
            for entry in children {
                let id = entry.node.index();
                if self.nodes[id].kind != Kind::Dir && !seen[id] {
                    seen[id] = true;
                    order.push(entry.node.0);
                }
            }
            // Sub-directories get their numbers here, next to each other; their contents follow
            // in name order (the stack is last-in-first-out, hence the reversal).
            let first = stack.len();
            for entry in children {
                let id = entry.node.index();
                if self.nodes[id].kind == Kind::Dir {
                    if seen[id] {
                        let path = self.stored(entry.name).escape_ascii().to_string();
                        return Err(TreeError::DirectoryLinks { path });
                    }
                    if depth + 1 > DEPTH_MAX {
                        let path = self.stored(entry.name).escape_ascii().to_string();
                        return Err(TreeError::TooDeep { path });
                    }
                    seen[id] = true;
                    order.push(entry.node.0);
                    stack.push((entry.node.0, depth + 1));
                }
            }
            stack[first..].reverse();
        }
        Ok(order)
    }
}

/// Start of each node's entries in the sorted list.
struct Starts {
    at: Vec<u32>,
}

impl Starts {
    fn of(&self, node: u32) -> Range<usize> {
        self.at[node as usize] as usize..self.at[node as usize + 1] as usize
    }
}
