//! Merging several archives, as layers, into one tree.
//!
//! # Rules
//!
//! OCI Image Format Specification 1.1, "Image Layer Filesystem Changeset", and where that is
//! ambiguous the behaviour of container runtimes:
//!
//! - `.wh.NAME` removes the `NAME` of lower layers, with everything below it; `.wh..wh..opq`
//!   removes the contents of its directory in lower layers. Neither affects files of its own layer,
//!   before or after it.
//! - A member replaces the file of its name in lower layers. Two directories are merged, with the
//!   attributes of the upper.
//! - A hard link may refer to a file of a lower layer. Replacing one name of a file does not affect
//!   its other names.
//! - Directories on the way to a member may be symbolic links of any layer; they lead within the
//!   tree, whose root has no parent. Absolute names are names from the root.
//! - Other names that begin with `.wh.` are errors, in the place of directories too; so is `..`.
//!   `.wh..wh.` followed by anything else is metadata of AUFS and is ignored.
//!
//! # Cost
//!
//! Each entry is removed once, and each directory is cleared at most once in each layer: the cost
//! of a layer's whiteouts is bounded by its members and the entries removed.

use rustc_hash::{FxHashMap, FxHashSet};

use super::assemble::{Assembler, bad, hash, implied_dir, normal, parts, split_last};
use crate::source::SourceError;
use crate::tree::{DEPTH_MAX, Kind, NodeId, Time};

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// Most symbolic links on the way to one member, as in the kernel.
const LINKS_MAX: usize = 40;

/// End of a list of entries.
const NONE: u32 = u32::MAX;

/// State of entries beside the tree.
#[derive(Default)]
pub(super) struct Layering {
    /// Number of the layer being placed, from 1.
    layer: u16,
    /// Whether names that begin with `.wh.` are whiteouts in this layer.
    whiteouts: bool,
    /// Whether existing directories keep their attributes.
    keep_dirs: bool,
    /// By entry: the last layer that placed it, or something below it.
    touched: Vec<u16>,
    /// For each entry, the previous one in the same directory.
    before: Vec<u32>,
    /// The last entry of each directory.
    last: FxHashMap<NodeId, u32>,
    /// Directories in which this layer has left nothing of lower ones.
    cleared: FxHashSet<NodeId>,
}

impl Layering {
    /// Returns whether the entry is from a lower layer, and so is all below it.
    pub(super) fn is_lower(&self, entry: u32) -> bool {
        self.touched.get(entry as usize).is_some_and(|&layer| layer < self.layer)
    }

    /// Notes an entry that is new.
    pub(super) fn added(&mut self, parent: NodeId, entry: u32) {
        debug_assert_eq!(entry as usize, self.touched.len());
        self.touched.push(self.layer);
        self.before.push(self.last.insert(parent, entry).unwrap_or(NONE));
    }
}

/// A way through the tree, half done.
struct Way<'a> {
    /// Remaining components, the next one last.
    todo: Vec<std::borrow::Cow<'a, [u8]>>,
    /// Directories from below the root, each with its entry.
    done: Vec<(u32, NodeId)>,
    links: usize,
}

/// Why a way goes no further.
enum Stop {
    /// The end of the path.
    End,
    /// There is no such name.
    Missing(Vec<u8>),
    /// The name is that of something else than a directory.
    NoDirectory(Vec<u8>),
    /// Symbolic links without end.
    Links,
}

impl<'a> Way<'a> {
    fn new(path: &'a [u8]) -> Way<'a> {
        let mut todo: Vec<_> = parts(path).map(std::borrow::Cow::Borrowed).collect();
        todo.reverse();
        Way { todo, done: Vec::new(), links: 0 }
    }

    fn at(&self) -> NodeId {
        self.done.last().map_or(NodeId::ROOT, |&(_, node)| node)
    }
}

impl Assembler {
    /// A tree of several layers; [`Assembler::begin_layer`] begins each.
    pub(in crate::source) fn of_layers() -> Assembler {
        let mut assembler = Assembler::new("");
        assembler.layering = Some(Layering::default());
        assembler
    }

    /// Ends the previous layer, and begins one whose members are from `archive` and have their
    /// contents in `source`. Without `whiteouts`, names that begin with `.wh.` are ordinary names.
    pub(in crate::source) fn begin_layer(
        &mut self,
        archive: &str,
        source: u16,
        whiteouts: bool,
    ) -> Result<(), SourceError> {
        self.resolve_links()?;
        self.pending.clear();
        self.archive = archive.into();
        self.source = source;
        self.last_parent = (Vec::new(), NodeId::ROOT);
        if let Some(layers) = &mut self.layering {
            layers.layer = layers.layer.saturating_add(1);
            layers.whiteouts = whiteouts;
            layers.keep_dirs = false;
            layers.cleared.clear();
        }
        Ok(())
    }

    /// Lets directories that are there keep their attributes, in the rest of this layer.
    pub(in crate::source) fn keep_dirs(&mut self) {
        if let Some(layers) = &mut self.layering {
            layers.keep_dirs = true;
        }
    }

    /// Returns whether a directory that is there keeps its attributes.
    pub(super) fn keeps_dirs(&self) -> bool {
        self.layering.as_ref().is_some_and(|layers| layers.keep_dirs)
    }

    /// The parts of a name that count; see [`normal`].
    pub(super) fn normal(&self, name: &[u8]) -> Result<Vec<u8>, &'static str> {
        let from_root = name.iter().take_while(|&&b| b == b'/').count();
        match (&self.layering, name.get(from_root..)) {
            (Some(_), Some([])) if from_root > 0 => Ok(Vec::new()),
            (Some(_), Some(rest)) => normal(rest),
            _ => normal(name),
        }
    }

    /// Notes that this layer placed the entry, or something below it.
    pub(super) fn touch(&mut self, entry: u32) {
        if let Some(layers) = &mut self.layering
            && let Some(touched) = layers.touched.get_mut(entry as usize)
        {
            *touched = layers.layer;
        }
    }

    /// Does what a whiteout says; whether `last` is one.
    pub(super) fn whiteout(
        &mut self,
        parent: &[u8],
        last: &[u8],
        offset: u64,
        name: &[u8],
    ) -> Result<bool, SourceError> {
        if !self.layering.as_ref().is_some_and(|layers| layers.whiteouts) {
            return Ok(false);
        }
        if parts(parent).any(|part| part.starts_with(WHITEOUT)) {
            let what = "lies below a name that begins with .wh., which only a whiteout may have";
            return Err(bad(&self.archive, offset, name, what));
        }
        let Some(hidden) = last.strip_prefix(WHITEOUT) else { return Ok(false) };
        let is_opaque = last == OPAQUE;
        if matches!(hidden, b"" | b"." | b"..") {
            return Err(bad(&self.archive, offset, name, "a whiteout that names nothing"));
        }
        if hidden.starts_with(WHITEOUT) && !is_opaque {
            return Ok(true);
        }
        let mut way = Way::new(parent);
        if !matches!(self.go(&mut way), Stop::End) {
            // Nothing to hide.
            return Ok(true);
        }
        if is_opaque {
            self.clear(way.at());
        } else if let Some(entry) = self.lookup(way.at(), hidden) {
            let is_lower = self.layering.as_ref().is_some_and(|layers| layers.is_lower(entry));
            if is_lower {
                self.remove(entry);
            } else if let Some(node) = self.node_of(entry) {
                self.clear(node);
            }
        }
        self.last_parent = (Vec::new(), NodeId::ROOT);
        Ok(true)
    }

    /// Takes away all that lower layers have below the directory `dir`.
    fn clear(&mut self, dir: NodeId) {
        let mut stack = vec![dir];
        while let Some(dir) = stack.pop() {
            let Some(layers) = &mut self.layering else { return };
            if self.builder.node(dir).kind != Kind::Dir || !layers.cleared.insert(dir) {
                continue;
            }
            let mut lower = Vec::new();
            let mut kept = NONE;
            let mut at = layers.last.remove(&dir).unwrap_or(NONE);
            while at != NONE {
                let before = layers.before.get(at as usize).copied().unwrap_or(NONE);
                // Entries that were taken away stay in the list until here.
                let is_here = (self.builder.entries().get(at as usize))
                    .is_some_and(|entry| entry.parent == dir);
                if is_here && layers.is_lower(at) {
                    lower.push(at);
                } else if is_here {
                    if let Some(before) = layers.before.get_mut(at as usize) {
                        *before = kept;
                    }
                    kept = at;
                    stack.extend(self.builder.entries().get(at as usize).map(|entry| entry.node));
                }
                at = before;
            }
            if kept != NONE {
                layers.last.insert(dir, kept);
            }
            for entry in lower {
                self.remove(entry);
            }
        }
    }

    /// Takes one entry away, and with it all that only it leads to.
    fn remove(&mut self, entry: u32) {
        let Some(found) = self.builder.entries().get(entry as usize) else { return };
        let parent = found.parent;
        let hash = hash(&self.hasher, parent, self.builder.name(found));
        if let Ok(slot) = self.index.find_entry(hash, |&other| other == entry) {
            slot.remove();
        }
        self.builder.unlink(entry as usize);
        let parent = self.builder.node_mut(parent);
        parent.locator = parent.locator.saturating_sub(1);
    }

    /// The node at `path`; the last part is not followed if it is a link.
    pub(super) fn find_through_links(&self, path: &[u8]) -> Option<NodeId> {
        let Some((parent, last)) = split_last(path) else { return Some(NodeId::ROOT) };
        let mut way = Way::new(parent);
        match self.go(&mut way) {
            Stop::End => self.lookup(way.at(), last).and_then(|entry| self.node_of(entry)),
            _ => None,
        }
    }

    /// The directory at `path`, made where it is not there.
    pub(super) fn dir_through_links(
        &mut self,
        path: &[u8],
        mtime: Time,
        offset: u64,
        name: &[u8],
    ) -> Result<NodeId, SourceError> {
        let mut way = Way::new(path);
        let refuse = |this: &Assembler, what: &str| Err(bad(&this.archive, offset, name, what));
        loop {
            let missing = match self.go(&mut way) {
                Stop::End => break,
                Stop::Missing(part) => part,
                Stop::NoDirectory(part) => {
                    let what =
                        format!("lies below \"{}\", which is not a directory", part.escape_ascii());
                    return refuse(self, &what);
                }
                Stop::Links => {
                    let what =
                        format!("more than {LINKS_MAX} symbolic links lead to its directory");
                    return refuse(self, &what);
                }
            };
            if way.done.len() >= DEPTH_MAX {
                return refuse(self, &format!("directories nest deeper than {DEPTH_MAX}"));
            }
            let new = self
                .builder
                .add(implied_dir(mtime))
                .map_err(|error| self.place(error, offset, name))?;
            let entry = self.put(way.at(), &missing, new, offset, name)?;
            way.done.push((entry, new));
        }
        for &(entry, _) in &way.done {
            self.touch(entry);
        }
        Ok(way.at())
    }

    /// Follows the path until it ends or is blocked.
    fn go(&self, way: &mut Way<'_>) -> Stop {
        while let Some(part) = way.todo.pop() {
            match &*part {
                b"" | b"." => continue,
                // Only links have it. The root is its own parent.
                b".." => {
                    way.done.pop();
                    continue;
                }
                _ => {}
            }
            let Some(entry) = self.lookup(way.at(), &part) else {
                return Stop::Missing(part.into_owned());
            };
            let Some(id) = self.node_of(entry) else { return Stop::Missing(part.into_owned()) };
            let node = self.builder.node(id);
            match node.kind {
                Kind::Dir => way.done.push((entry, id)),
                Kind::Symlink => {
                    way.links += 1;
                    if way.links > LINKS_MAX {
                        return Stop::Links;
                    }
                    let target = self.builder.stored(node.target).to_vec();
                    if target.starts_with(b"/") {
                        way.done.clear();
                    }
                    let parts = target.split(|&b| b == b'/').rev();
                    way.todo.extend(parts.map(|part| std::borrow::Cow::Owned(part.to_vec())));
                }
                _ => return Stop::NoDirectory(part.into_owned()),
            }
        }
        Stop::End
    }
}
