//! Members put together to a tree.
//!
//! # Rules
//!
//! - A later member with the name of an earlier one takes its place, as when both are extracted.
//!   Two directories of one name are one, with the attributes of the later member. Something else
//!   takes the place of a directory only while that is empty.
//! - A directory that is only named in the paths of others has mode 0755, owner 0:0 and the times
//!   of the first member below it; so has the root, unless there is a member `./`.
//! - A hard link may come before its target.
//! - Nothing is placed outside the tree or through a symlink: absolute names, `..` and symlinks
//!   as parents are errors. Layers of one tree have other rules; see `layering`.

use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use rustc_hash::FxHashMap;

use super::layering::Layering;
use super::member::{Attributes, Member, What};
use crate::source::{Lost, SourceError};
use crate::tree::{DEPTH_MAX, Kind, Node, NodeId, Time, Tree, TreeBuilder, TreeError};

/// A tree that grows by members.
pub(in crate::source) struct Assembler {
    pub(super) archive: String,
    pub(super) builder: TreeBuilder,
    /// Entries by parent and name. The hasher is seeded: names come from strangers.
    pub(super) index: HashTable<u32>,
    pub(super) hasher: RandomState,
    /// Names of hard links that came before their targets, by the node that stands for them.
    pub(super) pending: FxHashMap<NodeId, PendingLink>,
    /// Placed so far: the directory of the last member, and its path.
    pub(super) last_parent: (Vec<u8>, NodeId),
    has_members: bool,
    /// Which source the members are from.
    pub(super) source: u16,
    /// Attributes of members that the tree does not have.
    lost: Lost,
    /// State kept for several layers.
    pub(super) layering: Option<Layering>,
}

pub(super) struct PendingLink {
    entry: u32,
    offset: u64,
    name: Vec<u8>,
    target: Vec<u8>,
}

impl Assembler {
    /// A tree of the members of one archive.
    pub(super) fn new(archive: &str) -> Assembler {
        Assembler {
            archive: archive.into(),
            builder: TreeBuilder::new(implied_dir(Time::default())),
            index: HashTable::new(),
            hasher: RandomState::new(),
            pending: FxHashMap::default(),
            last_parent: (Vec::new(), NodeId::ROOT),
            has_members: false,
            source: 0,
            lost: Lost::default(),
            layering: None,
        }
    }

    /// Places one member.
    pub(in crate::source) fn add(&mut self, member: Member) -> Result<(), SourceError> {
        let Member { offset, name, mtime, what } = member;
        if let What::File(attributes) = &what {
            attributes.lost.iter().for_each(|what| self.lost.add(what, &name));
        }
        let path = self.normal(&name).map_err(|what| bad(&self.archive, offset, &name, what))?;
        if !self.has_members {
            self.has_members = true;
            *self.builder.node_mut(NodeId::ROOT) = implied_dir(mtime);
        }
        let Some((parent_path, last)) = split_last(&path) else {
            return match what {
                What::File(attributes) if attributes.kind == Kind::Dir && self.keeps_dirs() => {
                    Ok(())
                }
                What::File(attributes) if attributes.kind == Kind::Dir => {
                    self.fill(NodeId::ROOT, attributes).map_err(|e| self.place(e, offset, &name))
                }
                _ => Err(bad(&self.archive, offset, &name, "only a directory can be the root")),
            };
        };
        if self.layering.is_some() && self.whiteout(parent_path, last, offset, &name)? {
            return Ok(());
        }
        let parent = self.parent(parent_path, mtime, offset, &name)?;
        match what {
            What::File(attributes) => self.add_file(parent, last, attributes, offset, &name),
            What::HardLink { target } => self.add_link(parent, last, target, offset, &name),
        }
    }

    /// Resolves the remaining links and builds the tree; with what members had that it has not.
    pub(in crate::source) fn finish(mut self) -> Result<(Tree, Lost), SourceError> {
        self.resolve_links()?;
        // Directories counted their entries there.
        for node in self.builder.nodes_mut() {
            if node.kind == Kind::Dir {
                node.locator = 0;
            }
        }
        Ok((self.builder.finish()?, self.lost))
    }

    fn add_file(
        &mut self,
        parent: NodeId,
        last: &[u8],
        attributes: Attributes,
        offset: u64,
        name: &[u8],
    ) -> Result<(), SourceError> {
        if attributes.kind == Kind::Dir
            && let Some(entry) = self.lookup(parent, last)
            && let Some(node) = self.node_of(entry)
            && self.builder.node(node).kind == Kind::Dir
        {
            self.touch(entry);
            if self.keeps_dirs() {
                return Ok(());
            }
            return self.fill(node, attributes).map_err(|e| self.place(e, offset, name));
        }
        let new = self
            .builder
            .add(Node::new(attributes.kind))
            .and_then(|id| self.fill(id, attributes).map(|()| id))
            .map_err(|e| self.place(e, offset, name))?;
        self.put(parent, last, new, offset, name).map(drop)
    }

    fn add_link(
        &mut self,
        parent: NodeId,
        last: &[u8],
        target: Vec<u8>,
        offset: u64,
        name: &[u8],
    ) -> Result<(), SourceError> {
        let path = self.normal(&target).map_err(|what| {
            let target = target.escape_ascii();
            bad(&self.archive, offset, name, &format!("its link target \"{target}\" {what}"))
        })?;
        if let Some(node) = self.find(&path) {
            self.check_target(node, offset, name, &target)?;
            return self.put(parent, last, node, offset, name).map(drop);
        }
        let stand_in =
            self.builder.add(Node::new(Kind::File)).map_err(|e| self.place(e, offset, name))?;
        let entry = self.put(parent, last, stand_in, offset, name)?;
        let link = PendingLink { entry, offset, name: name.to_vec(), target };
        self.pending.insert(stand_in, link);
        Ok(())
    }

    fn check_target(
        &self,
        node: NodeId,
        offset: u64,
        name: &[u8],
        target: &[u8],
    ) -> Result<(), SourceError> {
        if self.builder.node(node).kind != Kind::Dir {
            return Ok(());
        }
        let what = format!("a hard link to \"{}\", which is a directory", target.escape_ascii());
        Err(bad(&self.archive, offset, name, &what))
    }

    /// Lets `last` in `parent` mean `node`, in place of what it meant. Returns the entry.
    pub(super) fn put(
        &mut self,
        parent: NodeId,
        last: &[u8],
        node: NodeId,
        offset: u64,
        name: &[u8],
    ) -> Result<u32, SourceError> {
        if let Some(entry) = self.lookup(parent, last) {
            let old = self.node_of(entry).map(|old| *self.builder.node(old));
            let is_lower = self.layering.as_ref().is_some_and(|layers| layers.is_lower(entry));
            if !is_lower && old.is_some_and(|old| old.kind == Kind::Dir && old.locator != 0) {
                let what = "takes the name of a directory that is not empty";
                return Err(bad(&self.archive, offset, name, what));
            }
            if self.keeps_dirs() {
                let is_dir = |kind| if kind == Kind::Dir { "a directory" } else { "none" };
                let (new, old) =
                    (self.builder.node(node).kind, old.map_or(Kind::Dir, |old| old.kind));
                if (new == Kind::Dir) != (old == Kind::Dir) {
                    let what = format!("is {}, and what is there is {}", is_dir(new), is_dir(old));
                    return Err(bad(&self.archive, offset, name, &what));
                }
            }
            self.builder.relink(entry as usize, node);
            // This may have been the remembered directory.
            self.last_parent = (Vec::new(), NodeId::ROOT);
            self.touch(entry);
            return Ok(entry);
        }
        let entry = self.builder.entries().len() as u32;
        self.builder.link(parent, last, node).map_err(|e| self.place(e, offset, name))?;
        // A directory's locator counts its entries until the end.
        self.builder.node_mut(parent).locator += 1;
        let (builder, hasher) = (&self.builder, &self.hasher);
        let hash_entry = |&entry: &u32| {
            let entry = builder.entries().get(entry as usize);
            entry.map_or(0, |entry| hash(hasher, entry.parent, builder.name(entry)))
        };
        self.index.insert_unique(hash(hasher, parent, last), entry, hash_entry);
        if let Some(layers) = &mut self.layering {
            layers.added(parent, entry);
        }
        Ok(entry)
    }

    /// The directory `path`, made if it is not there.
    fn parent(
        &mut self,
        path: &[u8],
        mtime: Time,
        offset: u64,
        name: &[u8],
    ) -> Result<NodeId, SourceError> {
        if self.last_parent.0 == path {
            return Ok(self.last_parent.1);
        }
        if self.layering.is_some() {
            let dir = self.dir_through_links(path, mtime, offset, name)?;
            self.last_parent = (path.to_vec(), dir);
            return Ok(dir);
        }
        let mut at = NodeId::ROOT;
        for (depth, part) in parts(path).enumerate() {
            if depth >= DEPTH_MAX {
                let what = format!("directories nest deeper than {DEPTH_MAX}");
                return Err(bad(&self.archive, offset, name, &what));
            }
            at = match self.lookup(at, part).and_then(|entry| self.node_of(entry)) {
                None => {
                    let new = self
                        .builder
                        .add(implied_dir(mtime))
                        .map_err(|e| self.place(e, offset, name))?;
                    self.put(at, part, new, offset, name)?;
                    new
                }
                Some(node) => {
                    let part = part.escape_ascii();
                    let what = match self.builder.node(node).kind {
                        Kind::Dir => {
                            at = node;
                            continue;
                        }
                        Kind::Symlink => format!("lies below \"{part}\", a symbolic link"),
                        _ => format!("lies below \"{part}\", which is not a directory"),
                    };
                    return Err(bad(&self.archive, offset, name, &what));
                }
            };
        }
        self.last_parent = (path.to_vec(), at);
        Ok(at)
    }

    /// The node at `path`, through directories only; in layers, also through links.
    fn find(&self, path: &[u8]) -> Option<NodeId> {
        if self.layering.is_some() {
            return self.find_through_links(path);
        }
        parts(path).try_fold(NodeId::ROOT, |at, part| {
            self.lookup(at, part).and_then(|entry| self.node_of(entry))
        })
    }

    /// The kind of what is at `path`.
    pub(in crate::source) fn kind_at(&self, path: &[u8]) -> Option<Kind> {
        self.find(path).map(|node| self.builder.node(node).kind)
    }

    pub(super) fn lookup(&self, parent: NodeId, name: &[u8]) -> Option<u32> {
        let is_it = |&entry: &u32| {
            let entry = self.builder.entries().get(entry as usize);
            entry.is_some_and(|entry| entry.parent == parent && self.builder.name(entry) == name)
        };
        self.index.find(hash(&self.hasher, parent, name), is_it).copied()
    }

    pub(super) fn node_of(&self, entry: u32) -> Option<NodeId> {
        self.builder.entries().get(entry as usize).map(|entry| entry.node)
    }

    /// Gives `id` attributes and kind; a directory keeps its entries.
    fn fill(&mut self, id: NodeId, from: Attributes) -> Result<(), TreeError> {
        let xattrs = self.builder.intern_xattrs(from.xattrs)?;
        let target = match from.kind {
            Kind::Symlink => self.builder.store_target(&from.target)?,
            _ => Default::default(),
        };
        let runs = from.runs.map(|runs| self.builder.store_runs(runs)).transpose()?;
        let node = self.builder.node_mut(id);
        // Links have all rights on Linux, whatever an archive says: so they are when it is extracted.
        node.mode = if from.kind == Kind::Symlink { 0o777 } else { from.mode };
        node.uid = from.uid;
        node.gid = from.gid;
        node.mtime = from.mtime;
        node.atime = from.atime;
        node.ctime = from.ctime;
        node.size = from.size;
        node.rdev = from.rdev;
        (node.flags, node.project) = (from.flags, from.project);
        node.xattrs = xattrs;
        node.target = target;
        if from.kind != Kind::Dir {
            node.locator = from.locator;
            node.source = self.source;
        }
        if let Some(runs) = runs {
            node.runs = runs;
        }
        Ok(())
    }

    /// Resolves hard links whose targets came later, including links to such links.
    pub(super) fn resolve_links(&mut self) -> Result<(), SourceError> {
        let mut order: Vec<(u32, NodeId)> =
            self.pending.iter().map(|(&node, link)| (link.entry, node)).collect();
        order.sort_unstable_by_key(|&(entry, node)| (entry, node.0));
        let mut resolved: FxHashMap<NodeId, NodeId> = FxHashMap::default();
        for (_, first) in order {
            // Follow the chain to its end, then remember the end for each of its links: every
            // link is followed once.
            let mut chain = Vec::new();
            let mut at = first;
            let end = loop {
                if let Some(&end) = resolved.get(&at) {
                    break end;
                }
                let Some(link) = self.pending.get(&at) else { break at };
                // A later member may have taken the name of the link.
                if chain.is_empty() && self.node_of(link.entry) != Some(at) {
                    break at;
                }
                chain.push(at);
                let path = self.normal(&link.target).unwrap_or_default();
                let target = self.find(&path);
                let shown = link.target.escape_ascii();
                match target {
                    None => {
                        let what = format!("a hard link to \"{shown}\", which does not exist");
                        return Err(bad(&self.archive, link.offset, &link.name, &what));
                    }
                    Some(node) => {
                        self.check_target(node, link.offset, &link.name, &link.target)?;
                        let unresolved = self.pending.contains_key(&node);
                        // A chain longer than there are links goes round in a circle.
                        if unresolved && chain.len() > self.pending.len() {
                            let what =
                                format!("a hard link to \"{shown}\", which leads back to it");
                            return Err(bad(&self.archive, link.offset, &link.name, &what));
                        }
                        at = node;
                    }
                }
            };
            for node in chain {
                resolved.insert(node, end);
                if let Some(link) = self.pending.get(&node)
                    && self.node_of(link.entry) == Some(node)
                {
                    self.builder.relink(link.entry as usize, end);
                }
            }
        }
        Ok(())
    }

    pub(super) fn place(&self, error: TreeError, offset: u64, name: &[u8]) -> SourceError {
        match error {
            TreeError::TooLarge { .. } => error.into(),
            error => bad(&self.archive, offset, name, &error.to_string()),
        }
    }
}

pub(super) fn hash(hasher: &RandomState, parent: NodeId, name: &[u8]) -> u64 {
    hasher.hash_one((parent, name))
}

pub(super) fn bad(archive: &str, offset: u64, name: &[u8], what: &str) -> SourceError {
    // A name may have a megabyte; the start of it is enough to find it.
    let shown = name.get(..name.len().min(300)).unwrap_or_default().escape_ascii();
    SourceError::Archive { archive: archive.into(), offset, what: format!("\"{shown}\": {what}") }
}

pub(super) fn implied_dir(time: Time) -> Node {
    let mut node = Node::new(Kind::Dir);
    node.mode = 0o755;
    node.mtime = time;
    node.atime = time;
    node.ctime = time;
    node
}

/// A name without `.`, doubled slashes and slashes at the end; empty for the root.
pub(super) fn normal(name: &[u8]) -> Result<Vec<u8>, &'static str> {
    if name.is_empty() {
        return Err("is a name of 0 bytes");
    }
    if name.starts_with(b"/") {
        return Err("is an absolute name; make the archive with names relative to its root");
    }
    let mut out = Vec::with_capacity(name.len());
    for part in name.split(|&b| b == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err("has \"..\" in its name"),
            part => {
                if !out.is_empty() {
                    out.push(b'/');
                }
                out.extend_from_slice(part);
            }
        }
    }
    Ok(out)
}

pub(super) fn split_last(path: &[u8]) -> Option<(&[u8], &[u8])> {
    if path.is_empty() {
        return None;
    }
    match path.iter().rposition(|&b| b == b'/') {
        Some(at) => Some((path.get(..at)?, path.get(at + 1..)?)),
        None => Some((&[], path)),
    }
}

pub(super) fn parts(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|part| !part.is_empty())
}
