//! A tree of nodes with everything that a user can see of them.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

pub(super) use extant_format::inode::FileKind;

use super::content::Content;
use super::ops::Path;

/// Lines of difference that are worth reading.
const DIFFERENCES_MAX: usize = 20;

/// Which node of a [`Tree`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub usize);

/// What a user can see of one inode.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// What it is.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Size in bytes; 0 for directories, whose size is the file system's business.
    pub size: u64,
    /// Last access, contents change, attribute change, creation: seconds and nanoseconds. Zero where
    /// times are not compared.
    pub times: [(i64, u32); 4],
    /// Project.
    pub project: u32,
    /// The flags that users set.
    pub flags: u32,
    /// Numbers of a device.
    pub rdev: Option<(u32, u32)>,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Attributes with the names and values that programs see.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Contents of a regular file.
    pub content: Content,
    /// Entries of a directory.
    pub entries: BTreeMap<Vec<u8>, NodeId>,
    /// Last operation that changed it; not compared.
    pub changed_by: usize,
    /// Last operation that changed more of it than its contents; not compared.
    pub named_by: usize,
}

impl Node {
    /// A node without anything but a kind.
    pub fn new(kind: FileKind) -> Node {
        Node {
            kind,
            permissions: 0,
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            times: [(0, 0); 4],
            project: 0,
            flags: 0,
            rdev: None,
            target: None,
            xattrs: BTreeMap::new(),
            content: Content::new(),
            entries: BTreeMap::new(),
            changed_by: 0,
            named_by: 0,
        }
    }

    /// Returns whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    fn hash_own(&self, contents: bool, hasher: &mut DefaultHasher) {
        (self.kind, self.permissions, self.uid, self.gid, self.links).hash(hasher);
        (self.project, self.flags, self.rdev, &self.target, &self.xattrs).hash(hasher);
        if contents || self.kind != FileKind::Regular {
            (self.size, self.times, &self.content).hash(hasher);
        }
    }

    /// Lists in which of its own fields it differs.
    fn differences(&self, other: &Node, out: &mut Vec<String>) {
        macro_rules! field {
            ($($name:ident)*) => {$(
                if self.$name != other.$name {
                    out.push(format!(
                        "{}: {:?} | {:?}", stringify!($name), self.$name, other.$name
                    ));
                }
            )*};
        }
        field!(kind permissions uid gid links size times project flags rdev);
        if self.target != other.target {
            let show = |target: &Option<Vec<u8>>| target.as_deref().map(show);
            out.push(format!("target: {:?} | {:?}", show(&self.target), show(&other.target)));
        }
        if let Some(at) = self.content.first_difference(&other.content) {
            let (a, b) = (self.content.byte(at), other.content.byte(at));
            out.push(format!("contents differ, first at byte {at}: {a:#04x} | {b:#04x}"));
        }
        for name in self.xattrs.keys().chain(other.xattrs.keys()) {
            let (a, b) = (self.xattrs.get(name), other.xattrs.get(name));
            let line = format!("xattr {}: {} | {}", show(name), value(a), value(b));
            if a != b && !out.contains(&line) {
                out.push(line);
            }
        }
    }
}

fn value(value: Option<&Vec<u8>>) -> String {
    let Some(value) = value else { return "absent".to_owned() };
    let mut text = format!("{} bytes", value.len());
    for byte in value.iter().take(8) {
        let _ = write!(text, " {byte:02x}");
    }
    text
}

/// A name for people: escaped, and its middle left out when it is long.
pub(super) fn show(name: &[u8]) -> String {
    let text = name.escape_ascii().to_string();
    if text.len() <= 48 {
        return text;
    }
    format!("{}…{} ({} bytes)", &text[..24], &text[text.len() - 12..], name.len())
}

/// A whole name space.
#[derive(Clone, Debug)]
pub struct Tree {
    nodes: Vec<Option<Node>>,
    root: NodeId,
}

impl Tree {
    /// A tree of a root directory alone.
    pub fn new(root: Node) -> Tree {
        Tree { nodes: vec![Some(root)], root: NodeId(0) }
    }

    /// The root.
    pub fn root(&self) -> NodeId {
        self.root
    }

    /// The node at `path`.
    pub fn find(&self, path: &Path) -> Option<&Node> {
        let next = |at: NodeId, name: &Vec<u8>| self.node(at).entries.get(name).copied();
        path.0.iter().try_fold(self.root, next).map(|id| self.node(id))
    }

    /// Adds a node that has no name yet.
    pub fn add(&mut self, node: Node) -> NodeId {
        self.nodes.push(Some(node));
        NodeId(self.nodes.len() - 1)
    }

    /// The node. Panics if it was removed: that would be a bug of the model.
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id.0].as_ref().expect("a node that is there")
    }

    /// Returns whether the node was not removed.
    pub fn has(&self, id: NodeId) -> bool {
        self.nodes.get(id.0).is_some_and(Option::is_some)
    }

    /// The node, to be changed.
    pub fn node_mut(&mut self, id: NodeId) -> &mut Node {
        self.nodes[id.0].as_mut().expect("a node that is there")
    }

    /// Forgets a node.
    pub fn remove(&mut self, id: NodeId) {
        self.nodes[id.0] = None;
    }

    /// Every name with its path, in order; the root is first, with an empty path.
    pub fn paths(&self) -> Vec<(Vec<Vec<u8>>, NodeId)> {
        let mut found = Vec::new();
        let mut pending = vec![(Vec::new(), self.root)];
        while let Some((path, id)) = pending.pop() {
            for (name, child) in self.node(id).entries.iter().rev() {
                let mut below: Vec<Vec<u8>> = path.clone();
                below.push(name.clone());
                pending.push((below, *child));
            }
            found.push((path, id));
        }
        found
    }

    /// A number that equal trees share, and different ones almost surely do not. Which names are one
    /// node counts; in which order nodes were added does not.
    pub fn fingerprint(&self) -> u64 {
        self.print(true)
    }

    /// [`fingerprint`](Self::fingerprint) without what follows late when files are written: the
    /// contents, sizes and times of regular files.
    pub fn fingerprint_of_names(&self) -> u64 {
        self.print(false)
    }

    fn print(&self, contents: bool) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut met: HashMap<NodeId, usize> = HashMap::new();
        let mut pending = vec![self.root];
        while let Some(id) = pending.pop() {
            let number = met.len();
            if let Some(number) = met.get(&id) {
                ("again", number).hash(&mut hasher);
                continue;
            }
            met.insert(id, number);
            let node = self.node(id);
            node.hash_own(contents, &mut hasher);
            node.entries.len().hash(&mut hasher);
            for (name, child) in &node.entries {
                name.hash(&mut hasher);
                pending.push(*child);
            }
        }
        hasher.finish()
    }

    /// Makes times of regular files zero.
    pub fn forget_times_of_files(&mut self) {
        for node in self.nodes.iter_mut().flatten() {
            if node.kind == FileKind::Regular {
                node.times = [(0, 0); 4];
            }
        }
    }

    /// Lists how `self` differs from `other`, path by path: an empty list means equal.
    pub fn differences(&self, other: &Tree) -> Vec<String> {
        let mut found = Vec::new();
        let mut pairs: HashMap<NodeId, NodeId> = HashMap::new();
        let mut back: HashMap<NodeId, NodeId> = HashMap::new();
        let mut pending = vec![(String::new(), self.root, other.root)];
        while let Some((path, a, b)) = pending.pop() {
            if found.len() >= DIFFERENCES_MAX {
                found.push("… and more".to_owned());
                return found;
            }
            let at = if path.is_empty() { "/" } else { &path };
            match (pairs.insert(a, b), back.insert(b, a)) {
                (None, None) => {}
                (Some(before), _) if before == b => continue,
                _ => found.push(format!("{at}: is one file with another name on one side only")),
            }
            let (a, b) = (self.node(a), other.node(b));
            let mut fields = Vec::new();
            a.differences(b, &mut fields);
            found.extend(fields.into_iter().map(|field| format!("{at}: {field}")));
            for (name, child) in a.entries.iter().rev() {
                let below = format!("{path}/{}", show(name));
                match b.entries.get(name) {
                    Some(twin) => pending.push((below, *child, *twin)),
                    None => found.push(format!("{below}: only in the first")),
                }
            }
            for name in b.entries.keys().filter(|name| !a.entries.contains_key(*name)) {
                found.push(format!("{path}/{}: only in the second", show(name)));
            }
        }
        found
    }
}
