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

use std::fmt;
use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::keys::Keys;

/// Index of a node of one [`Tree`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);

    /// As an index of [`Tree::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; its target is in the arena.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Seconds since 1970 (negative before) and nanoseconds, 0..1_000_000_000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

/// Place of a byte string in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaRef {
    start: u32,
    /// High 16 bits of the start, so that the arena may pass 4 GiB.
    start_hi: u16,
    len: u16,
}

impl ArenaRef {
    fn range(self) -> Range<usize> {
        let start = (usize::from(self.start_hi) << 32) | self.start as usize;
        start..start + usize::from(self.len)
    }
}

/// Index of a set of extended attributes; 0 is the empty set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct XattrSetId(pub u32);

/// Extended attributes of one file, sorted by name: full names ("user.comment",
/// "security.capability", "system.posix_acl_access") and values as the kernel's xattr calls
/// return them.
pub type XattrSet = Vec<(Box<[u8]>, Box<[u8]>)>;

/// A run of bytes of a file that is stored; what lies between runs is a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRun {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Place of these bytes in the source, in its own terms (a tar offset, or `offset` again).
    pub locator: u64,
}

/// One file of any kind.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Kind of the file.
    pub kind: Kind,
    /// Permission, set-id and sticky bits, `0o7777`.
    pub mode: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Last change of contents.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Bytes of a regular file; length of a symlink's target; 0 for the rest.
    pub size: u64,
    /// `(major, minor)` of a device.
    pub rdev: (u32, u32),
    /// Extended attributes of the file.
    pub xattrs: XattrSetId,
    /// Place of the contents in the source, in its own terms.
    pub locator: u64,
    /// Flags as `chattr` has them, in the numbers of `FS_IOC_GETFLAGS`; files and directories only.
    pub flags: u32,
    /// Project id, for quotas of directory trees; 0 for none.
    pub project: u32,
    /// Number of the key that the node is encrypted with; 0 for none. See [`encrypt`](crate::encrypt).
    pub key: u16,
    /// Which of several sources has the contents.
    pub source: u16,
    /// Whether the contents of a regular file are sealed by fs-verity.
    pub sealed: bool,
    /// Target of a symlink.
    pub target: ArenaRef,
    /// Index of the list of data runs, when the file has holes; `NO_RUNS` when it has none.
    pub runs: u32,
    /// How many names it has; a directory has 1. Set by [`TreeBuilder::finish`].
    pub name_count: u32,
    /// The first entry (in walk order) that names it. Set by [`TreeBuilder::finish`].
    pub first_entry: u32,
}

/// [`Node::runs`] of a file without holes.
pub const NO_RUNS: u32 = u32::MAX;

impl Node {
    /// A node of `kind` with nothing set.
    pub fn new(kind: Kind) -> Node {
        Node {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: Time::default(),
            ctime: Time::default(),
            size: 0,
            rdev: (0, 0),
            xattrs: XattrSetId::default(),
            locator: 0,
            flags: 0,
            project: 0,
            key: 0,
            source: 0,
            sealed: false,
            target: ArenaRef::default(),
            runs: NO_RUNS,
            name_count: 0,
            first_entry: u32::MAX,
        }
    }
}

/// One name in one directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The directory.
    pub parent: NodeId,
    /// The node of the name.
    pub node: NodeId,
    name: ArenaRef,
}

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
