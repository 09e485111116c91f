//! An older image that a new one is to resemble: what did not change keeps its place.
//!
//! # Place
//!
//! Above: [`crate::plan`] asks where things were. Below: whoever can read images implements [`BaseImage`];
//! this crate does not. Only names, attributes and places of blocks are read, no contents.
//!
//! # Trust
//!
//! Everything here is a wish. A place counts if it lies in the new file system, on a limit of clusters, and nobody has
//! it yet; an inode number, if it is free. So whatever an image says, the new one is in order, and holds what its
//! sources hold.

use std::error::Error;
use std::fmt;

use extant_base::{FsBlock, Ino};
use extant_format::superblock::Superblock;
use rustc_hash::FxHashMap;

use crate::tree::{Kind, Node, NodeId, Time, Tree};

/// Most runs of blocks that are asked for of one file; what is behind them is placed anew.
const RUNS_MAX: usize = 1 << 16;
/// Most runs of all files together, beside four for each file. Inodes of a hostile image can share what lists them.
const RUNS_MORE: usize = 1 << 20;
/// Names that are looked at for files that moved, beside one for each file of the new tree.
const GONE_MORE: usize = 1024;
/// Slot of the double-indirect pointer of an inode's block area, in bytes.
const DOUBLE_INDIRECT: usize = 13 * 4;

/// Why an image cannot be read.
pub type BaseFault = Box<dyn Error + Send + Sync>;

/// An image that is there already, for its reader to implement.
pub trait BaseImage: Sync {
    /// Returns the superblock.
    fn superblock(&self) -> &Superblock;

    /// Calls `each` with the names in a directory and their inodes, without `.` and `..`, until it returns false.
    ///
    /// # Errors
    ///
    /// Damage, or a device that cannot be read.
    fn list(&self, dir: Ino, each: &mut dyn FnMut(&[u8], Ino) -> bool) -> Result<(), BaseFault>;

    /// Returns an inode with at most `runs_max` runs, the first ones; those that are allocated and not written count as
    /// well.
    ///
    /// # Errors
    ///
    /// As [`list`](Self::list).
    fn inode(&self, ino: Ino, runs_max: usize) -> Result<BaseInode, BaseFault>;
}

/// An inode of a base.
#[derive(Clone, Debug)]
pub struct BaseInode {
    /// Kind of file.
    pub kind: Kind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes, as stored.
    pub size: u64,
    /// Last change of contents.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// When it was made, if the inode says so.
    pub crtime: Option<Time>,
    /// Its block of attributes.
    pub xattr_block: Option<FsBlock>,
    /// The 60 bytes with its map.
    pub block_area: [u8; 60],
    /// Where its blocks are, in order.
    pub runs: Vec<BaseRun>,
}

/// Blocks that follow each other in a file and in the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BaseRun {
    /// First block of the file.
    pub file_block: u32,
    /// First block of the image.
    pub block: u64,
    /// How many, at least 1.
    pub len: u32,
}

/// Why an image cannot be a base.
#[derive(Debug)]
pub struct BaseError {
    /// Path in the base, or what of it.
    pub what: String,
    /// The reader's error.
    pub cause: BaseFault,
}

impl fmt::Display for BaseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of the base cannot be read: {}", self.what, self.cause)
    }
}

impl Error for BaseError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.cause)
    }
}

/// What a base has of the files of one tree.
#[derive(Debug)]
pub struct Base {
    pub(crate) superblock: Superblock,
    /// By node; the last may be missing, which is a lost+found that the plan adds.
    nodes: Vec<Option<Old>>,
    lost_found: Option<Old>,
    runs: Vec<BaseRun>,
    runs_max: usize,
    /// Blocks of inodes that the file system keeps for itself.
    own: FxHashMap<Ino, Vec<BaseRun>>,
    resize_map: Option<u64>,
}

/// A file of the base.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    pub(crate) ino: Ino,
    pub(crate) crtime: Option<Time>,
    pub(crate) xattr_block: Option<u64>,
    /// Times, if nothing that a program sets differs: last access, change of attributes.
    same: Option<(Time, Time)>,
    runs: (u32, u32),
}

impl Base {
    /// Looks up the files of `tree`: by their paths, and files that are nowhere by name and size.
    ///
    /// # Errors
    ///
    /// [`BaseError`]: the base is damaged, or not all there.
    ///
    /// # Cost
    ///
    /// Reads directories and inodes of the base. Memory for as many files as `tree` has, and for their runs.
    pub fn read(image: &dyn BaseImage, tree: &Tree) -> Result<Base, BaseError> {
        let superblock = image.superblock().clone();
        let mut base = Base {
            superblock,
            nodes: vec![None; tree.nodes().len()],
            lost_found: None,
            runs: Vec::new(),
            runs_max: tree.nodes().len().saturating_mul(4).saturating_add(RUNS_MORE).min(1 << 31),
            own: FxHashMap::default(),
            resize_map: None,
        };
        base.read_own(image)?;
        let mut gone = Vec::new();
        let gone_max = tree.nodes().len().saturating_add(GONE_MORE);
        let root = base.load(image, Ino::ROOT, || "the root directory".into())?;
        base.nodes[0] = Some(base.keep(Ino::ROOT, &root, tree.node(NodeId::ROOT)));
        let mut found = Vec::new();
        for (dir, entries) in tree.dirs() {
            let Some(old) = base.nodes[dir.index()] else { continue };
            found.clear();
            found.resize(entries.len(), None);
            let mut lost_found = None;
            let list = image.list(old.ino, &mut |name, ino| {
                if dir == NodeId::ROOT && name == b"lost+found" {
                    lost_found = Some(ino);
                }
                match entries.binary_search_by(|entry| tree.name(entry).cmp(name)) {
                    Ok(at) => found[at] = Some(ino),
                    Err(_) if gone.len() < gone_max => gone.push((name.to_vec(), ino)),
                    Err(_) => {}
                }
                true
            });
            list.map_err(|cause| BaseError { what: shown(tree, dir), cause })?;
            if let Some(ino) = lost_found {
                let mut node = Node::new(Kind::Dir);
                node.mode = 0o700;
                let inode = base.load(image, ino, || "\"/lost+found\"".into())?;
                // Nobody gave it times: those it had are as good.
                node.mtime = inode.mtime;
                base.lost_found = (inode.kind == Kind::Dir).then(|| base.keep(ino, &inode, &node));
            }
            for (entry, ino) in entries.iter().zip(&found) {
                let (Some(ino), None) = (*ino, base.nodes[entry.node.index()]) else { continue };
                let inode = base.load(image, ino, || shown(tree, entry.node))?;
                let node = tree.node(entry.node);
                if inode.kind == node.kind {
                    base.nodes[entry.node.index()] = Some(base.keep(ino, &inode, node));
                }
            }
        }
        base.find_moved(image, tree, gone, gone_max)?;
        Ok(base)
    }

    /// Files that have no counterpart get the blocks of one that is gone, with the same name and size.
    fn find_moved(
        &mut self,
        image: &dyn BaseImage,
        tree: &Tree,
        mut gone: Vec<(Vec<u8>, Ino)>,
        gone_max: usize,
    ) -> Result<(), BaseError> {
        let is_new = |at: usize, node: &Node| {
            node.kind == Kind::File && node.size > 0 && self.nodes[at].is_none()
        };
        let nodes = tree.nodes().iter().enumerate();
        let new: Vec<usize> =
            nodes.filter(|(at, node)| is_new(*at, node)).map(|(at, _)| at).collect();
        if new.is_empty() {
            return Ok(());
        }
        let mut files: FxHashMap<(Vec<u8>, u64), Vec<Ino>> = FxHashMap::default();
        let mut at = 0;
        while let Some((name, ino)) = gone.get(at).cloned() {
            at += 1;
            let what = || format!("\"{}\"", name.escape_ascii());
            let inode = image.inode(ino, 0).map_err(|cause| BaseError { what: what(), cause })?;
            match inode.kind {
                Kind::Dir => {
                    let list = image.list(ino, &mut |name, ino| {
                        let more = gone.len() < gone_max;
                        if more {
                            gone.push((name.to_vec(), ino));
                        }
                        more
                    });
                    list.map_err(|cause| BaseError { what: what(), cause })?;
                }
                Kind::File => files.entry((name, inode.size)).or_default().push(ino),
                _ => {}
            }
        }
        // The first one in the new tree gets the first one of the old.
        files.values_mut().for_each(|list| list.reverse());
        for at in new {
            let node = &tree.nodes()[at];
            let Some(entry) = tree.entries().get(node.first_entry as usize) else { continue };
            let key = (tree.name(entry).to_vec(), node.size);
            if let Some(ino) = files.get_mut(&key).and_then(Vec::pop) {
                let inode = self.load(image, ino, || shown(tree, NodeId(at as u32)))?;
                self.nodes[at] = Some(self.keep(ino, &inode, node));
            }
        }
        Ok(())
    }

    fn read_own(&mut self, image: &dyn BaseImage) -> Result<(), BaseError> {
        let superblock = self.superblock.clone();
        let own = [
            superblock.journal_inode,
            superblock.orphan_file_inode,
            superblock.user_quota_inode,
            superblock.group_quota_inode,
            superblock.project_quota_inode,
        ];
        for ino in own.into_iter().filter(|ino| ino.0 != 0) {
            let inode = self.load(image, ino, || format!("inode {ino}"))?;
            self.own.insert(ino, inode.runs);
        }
        // A file system that cannot grow has none.
        if let Ok(inode) = image.inode(Ino::RESIZE, 0) {
            let bytes: [u8; 4] = std::array::from_fn(|at| inode.block_area[DOUBLE_INDIRECT + at]);
            self.resize_map = Some(u64::from(u32::from_le_bytes(bytes))).filter(|at| *at != 0);
        }
        Ok(())
    }

    fn keep(&mut self, ino: Ino, inode: &BaseInode, node: &Node) -> Old {
        let start = self.runs.len();
        let room = RUNS_MAX.min(self.runs_max - start);
        self.runs.extend(inode.runs.iter().take(room));
        let has_size = node.kind == Kind::File || node.kind == Kind::Symlink;
        let is_same = (inode.mode, inode.uid, inode.gid, inode.mtime)
            == (node.mode, node.uid, node.gid, node.mtime)
            && (!has_size || inode.size == node.size);
        Old {
            ino,
            crtime: inode.crtime,
            xattr_block: inode.xattr_block.map(|block| block.0),
            same: is_same.then_some((inode.atime, inode.ctime)),
            runs: (start as u32, (self.runs.len() - start) as u32),
        }
    }

    fn load(
        &self,
        image: &dyn BaseImage,
        ino: Ino,
        what: impl FnOnce() -> String,
    ) -> Result<BaseInode, BaseError> {
        let runs_max = RUNS_MAX.min(self.runs_max - self.runs.len());
        image.inode(ino, runs_max).map_err(|cause| BaseError { what: what(), cause })
    }

    /// Returns the old file of a node, if there was one.
    pub(crate) fn old(&self, id: NodeId) -> Option<&Old> {
        match self.nodes.get(id.index()) {
            Some(old) => old.as_ref(),
            None if id.index() == self.nodes.len() => self.lost_found.as_ref(),
            None => None,
        }
    }

    /// Returns the runs of blocks of a node's old file.
    pub(crate) fn runs(&self, id: NodeId) -> &[BaseRun] {
        let (start, count) = self.old(id).map_or((0, 0), |old| old.runs);
        &self.runs[start as usize..start as usize + count as usize]
    }

    /// Returns the old runs of blocks of one of the file system's own files.
    pub(crate) fn own_runs(&self, ino: Ino) -> &[BaseRun] {
        self.own.get(&ino).map_or(&[], Vec::as_slice)
    }

    /// Returns the number of blocks of one of the file system's own files, if all of its runs are known.
    pub(crate) fn own_blocks(&self, ino: Ino) -> Option<u32> {
        let runs = self.own_runs(ino);
        let last = runs.last().filter(|_| runs.len() < RUNS_MAX)?;
        last.file_block.checked_add(last.len)
    }

    /// Returns the old block of the resize inode's map.
    pub(crate) fn resize_map(&self) -> Option<u64> {
        self.resize_map
    }

    /// Gives files that did not change the times that no program sets: equal files are equal inodes.
    pub(crate) fn keep_times(&self, tree: &mut Tree) {
        let mut at = 0;
        tree.for_each_node_mut(|node| {
            if let Some((atime, ctime)) = self.old(NodeId(at)).and_then(|old| old.same) {
                (node.atime, node.ctime) = (atime, ctime);
            }
            at += 1;
        });
    }
}

fn shown(tree: &Tree, id: NodeId) -> String {
    format!("\"/{}\"", tree.path(id).escape_ascii())
}
