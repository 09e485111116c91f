//! What each operation does, and which error it gives.
//!
//! Errors come in the order in which Linux finds them: the path, the last name, the kinds of what is
//! there, the rules of projects, what directories hold. An error changes nothing.

use extant_format::acl::{Acl, AclEntry, Who};
use extant_format::inode::InodeFlags;

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::written;
use super::ops::{NewNode, Op, Path, RenameMode, Space, Special, Which, XattrWrite};
use super::tree::{FileKind, Node, NodeId, Tree};

/// Error numbers of Linux.
pub mod errno {
    #![expect(missing_docs, reason = "errno(3)")]
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const EIO: i32 = 5;
    pub const EEXIST: i32 = 17;
    pub const EXDEV: i32 = 18;
    pub const ENOTDIR: i32 = 20;
    pub const EISDIR: i32 = 21;
    pub const EINVAL: i32 = 22;
    pub const ENOSPC: i32 = 28;
    pub const EROFS: i32 = 30;
    pub const ENAMETOOLONG: i32 = 36;
    pub const ENOTEMPTY: i32 = 39;
    pub const ENODATA: i32 = 61;
    pub const EACCES: i32 = 13;
    pub const ESTALE: i32 = 116;
    pub const EDQUOT: i32 = 122;
}
use errno::*;

const NAME_MAX: usize = 255;
const ACL_ACCESS: &[u8] = b"system.posix_acl_access";
const ACL_DEFAULT: &[u8] = b"system.posix_acl_default";
const SET_GID: u16 = 0o2000;
/// The flags that nodes are compared in: those a user sets and sees.
pub(super) const USER_FLAGS: InodeFlags = InodeFlags::SYNC
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::PROJINHERIT);
/// Those a new node takes from its directory, by kind.
const INHERITED: InodeFlags = USER_FLAGS
    .difference(InodeFlags::IMMUTABLE)
    .difference(InodeFlags::APPEND)
    .difference(InodeFlags::TOPDIR);
const OF_FILES: InodeFlags =
    INHERITED.difference(InodeFlags::DIRSYNC).difference(InodeFlags::PROJINHERIT);
const OF_OTHERS: InodeFlags = InodeFlags::NODUMP.union(InodeFlags::NOATIME);

/// What a file system can do, and what is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Whether times are compared; else they are zero on both sides.
    pub times: bool,
    /// Whether there is room for the creation time: inodes of more than 128 bytes.
    pub crtime: bool,
    /// Whether projects are on.
    pub project: bool,
    /// Whether space may run out. Attributes may be too large for their place in any case.
    pub full: bool,
    /// Whether files are written, so that a cut leaves their contents, sizes and times as of another
    /// moment than names.
    pub contents: bool,
}

impl Rules {
    /// Returns what must be as after some number of operations: everything, or all but contents.
    pub fn print(&self, tree: &Tree) -> u64 {
        if self.contents { tree.fingerprint_of_names() } else { tree.fingerprint() }
    }

    /// The flags that nodes are compared in.
    pub fn user_flags() -> u32 {
        USER_FLAGS.bits()
    }
}

/// What the file system answered to an operation.
pub type Outcome = Result<(), i32>;

/// A tree, its clock, and what operations do to it.
#[derive(Clone, Debug)]
pub struct Model {
    /// The tree.
    pub tree: Tree,
    /// What the clock shows during the next operation, in seconds.
    pub now: i64,
    /// What is compared.
    pub rules: Rules,
    /// Number of the next operation, from 1 on.
    step: usize,
    /// Pages of files that are mapped, by slot.
    maps: BTreeMap<usize, (NodeId, Range<u64>)>,
}

/// Bytes of the pages in which a range is; maps are of whole pages.
pub fn pages(offset: u64, len: u64) -> Range<u64> {
    const PAGE_BYTES: u64 = 4096;
    offset / PAGE_BYTES * PAGE_BYTES..(offset + len).next_multiple_of(PAGE_BYTES)
}

/// Where a name is, or would be.
struct Place {
    dir: NodeId,
    name: Vec<u8>,
    there: Option<NodeId>,
}

impl Model {
    /// A model that begins with what a file system has.
    pub fn new(tree: Tree, rules: Rules) -> Model {
        Model { tree, now: 0, rules, step: 0, maps: BTreeMap::new() }
    }

    /// Does an operation which the file system answered with `answer`.
    ///
    /// Errors that no model can foresee (no space, no quota, a device that fails, a file system
    /// that gave up) mean that nothing changed. `Err` is the answer that should have been given.
    pub fn follow(&mut self, op: &Op, answer: Outcome) -> Result<(), Outcome> {
        let attribute = matches!(op, Op::SetXattr { .. } | Op::SetAcl { .. });
        // What was taken has its space.
        let stores =
            matches!(op, Op::Sync | Op::Fsync { .. } | Op::Fdatasync { .. } | Op::Tick { .. });
        let unforeseen = match answer {
            Err(ENOSPC) => (self.rules.full && !stores) || attribute,
            Err(EDQUOT) => self.rules.full && !stores,
            Err(EIO | EROFS) => true,
            _ => false,
        };
        if unforeseen {
            self.step += 1;
            return Ok(());
        }
        let wanted = self.apply(op);
        // Of two errors either is right: Linux notices that a file would replace a directory that
        // it is in before it notices that it would replace a directory, and that there is no
        // directory before it notices that a name is too long.
        let either = match (wanted, answer) {
            (Err(ENOTEMPTY), Err(EISDIR)) => {
                matches!(op, Op::Rename { from, to, .. } if from.0.starts_with(&to.0))
            }
            (Err(ENOENT | ENOTDIR), Err(ENAMETOOLONG)) => true,
            _ => false,
        };
        if wanted == answer || either { Ok(()) } else { Err(wanted) }
    }

    /// Returns how many operations were done, failed ones included.
    pub fn step(&self) -> usize {
        self.step
    }

    /// Returns what an fsync of the node at `path` covers, after `done` operations: those up to the
    /// last one that changed it if it is a regular file, and all of them if it is anything else.
    pub fn synced_by(&self, path: &Path, done: usize) -> Option<usize> {
        let node = self.tree.node(self.find(path).ok()?);
        Some(if node.kind == FileKind::Regular { node.changed_by } else { done })
    }

    /// Returns what an fdatasync of the node at `path` covers of names: what it takes to find it.
    pub fn named_by(&self, path: &Path) -> Option<usize> {
        self.find(path).ok().map(|id| self.tree.node(id).named_by)
    }

    /// The node at `path`.
    pub fn find(&self, path: &Path) -> Result<NodeId, i32> {
        self.walk(&path.0)
    }

    fn walk(&self, names: &[Vec<u8>]) -> Result<NodeId, i32> {
        let mut at = self.tree.root();
        for name in names {
            let node = self.tree.node(at);
            if !node.is_dir() {
                return Err(ENOTDIR);
            }
            if name.len() > NAME_MAX {
                return Err(ENAMETOOLONG);
            }
            at = *node.entries.get(name).ok_or(ENOENT)?;
        }
        Ok(at)
    }

    fn place(&self, path: &Path) -> Result<Place, i32> {
        // The root has no name: whoever makes operations keeps from it.
        let (name, parents) = path.split().ok_or(EINVAL)?;
        let dir = self.walk(parents)?;
        let node = self.tree.node(dir);
        if !node.is_dir() {
            return Err(ENOTDIR);
        }
        if name.len() > NAME_MAX {
            return Err(ENAMETOOLONG);
        }
        Ok(Place { dir, name: name.to_vec(), there: node.entries.get(name).copied() })
    }

    /// Does an operation.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.step += 1;
        match op {
            Op::Create { path, new } => self.make(path, FileKind::Regular, *new, |_| {}),
            Op::Mkdir { path, new } => self.make(path, FileKind::Directory, *new, |_| {}),
            Op::Symlink { path, target, new } => {
                let new = NewNode { permissions: 0o777, ..*new };
                self.make(path, FileKind::Symlink, new, |node| {
                    node.size = target.len() as u64;
                    node.target = Some(target.clone());
                })
            }
            Op::Mknod { path, special, new } => {
                let (kind, rdev) = match special {
                    Special::Fifo => (FileKind::Fifo, None),
                    Special::Socket => (FileKind::Socket, None),
                    Special::Char(major, minor) => (FileKind::CharDevice, Some((*major, *minor))),
                    Special::Block(major, minor) => (FileKind::BlockDevice, Some((*major, *minor))),
                };
                self.make(path, kind, *new, |node| node.rdev = rdev)
            }
            Op::Link { from, to } => self.link(from, to),
            Op::Unlink { path } => self.unlink(path),
            Op::Rmdir { path } => self.rmdir(path),
            Op::Rename { from, to, mode } => self.rename(from, to, *mode),
            Op::Chmod { path, permissions } => {
                let id = self.find(path)?;
                self.set_mode(id, *permissions);
                self.changed(id);
                Ok(())
            }
            Op::Chown { path, uid, gid } => self.change(path, |node| {
                node.uid = *uid;
                node.gid = *gid;
            }),
            Op::Utimes { path, atime, mtime } => {
                let Rules { times, crtime, .. } = self.rules;
                // Inodes of 128 bytes have 32 bits for a time.
                let limit = |time: i64| if crtime { time } else { time.min(i64::from(i32::MAX)) };
                self.change(path, |node| {
                    if times {
                        node.times[0] = (limit(*atime), 0);
                        node.times[1] = (limit(*mtime), 0);
                    }
                })
            }
            Op::SetXattr { path, name, value, write } => {
                let id = self.find(path)?;
                let exists = self.tree.node(id).xattrs.contains_key(name);
                match write {
                    XattrWrite::Create if exists => return Err(EEXIST),
                    XattrWrite::Replace if !exists => return Err(ENODATA),
                    _ => {}
                }
                let before = self.tree.node_mut(id).xattrs.insert(name.clone(), value.clone());
                // The same value again is no change.
                if before.as_ref() != Some(value) {
                    self.changed(id);
                }
                Ok(())
            }
            Op::RemoveXattr { path, name } => {
                let id = self.find(path)?;
                self.tree.node_mut(id).xattrs.remove(name).ok_or(ENODATA)?;
                self.changed(id);
                Ok(())
            }
            Op::SetAcl { path, which, acl } => self.set_acl(path, *which, acl.as_ref()),
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::SetFlags { path, flags } => self.change(path, |node| {
                node.flags = flags & USER_FLAGS.bits();
            }),
            Op::SetProject { path, project } => self.change(path, |node| node.project = *project),
            Op::Write { path, offset, len, seed } => self.write(path, Some(*offset), *len, *seed),
            Op::Append { path, len, seed } => self.write(path, None, *len, *seed),
            Op::Fallocate { path, space, offset, len } => {
                self.fallocate(path, *space, *offset, *len)
            }
            Op::Defrag { path } => match self.tree.node(self.find(path)?).kind {
                FileKind::Regular => Ok(()),
                FileKind::Directory => Err(EISDIR),
                _ => Err(EINVAL),
            },
            Op::Map { path, slot, offset, len } => {
                let id = self.find(path)?;
                self.maps.insert(*slot, (id, pages(*offset, *len)));
                Ok(())
            }
            Op::Store { path, slot, offset, len, seed } => {
                let id = self.find(path)?;
                let node = self.tree.node_mut(id);
                let end = pages(*offset, *len).end.min(node.size);
                if *offset < end {
                    node.content.write(*offset, &written(*seed, *offset, end - offset));
                }
                // Of a map that stays, times change when it is released.
                if slot.is_none() {
                    self.stored(id);
                }
                Ok(())
            }
            Op::Release { slot } => {
                // Whether anything was stored is not known then.
                if let Some((id, _)) = self.maps.remove(slot)
                    && self.tree.has(id)
                {
                    self.stored(id);
                }
                Ok(())
            }
            Op::Sync | Op::Tick { .. } => Ok(()),
            Op::Fsync { path } | Op::Fdatasync { path } | Op::Hold { path, .. } => {
                self.find(path).map(drop)
            }
        }
    }

    fn time(&self) -> (i64, u32) {
        if self.rules.times { (self.now, 0) } else { (0, 0) }
    }

    /// Notes that a node's attributes changed.
    fn changed(&mut self, id: NodeId) {
        let (now, step) = (self.time(), self.step);
        let node = self.tree.node_mut(id);
        node.times[2] = now;
        node.changed_by = step;
        node.named_by = step;
    }

    /// Notes that a node's contents or entries changed.
    fn modified(&mut self, id: NodeId) {
        self.tree.node_mut(id).times[1] = self.time();
        self.changed(id);
    }

    fn change(&mut self, path: &Path, change: impl FnOnce(&mut Node)) -> Outcome {
        let id = self.find(path)?;
        change(self.tree.node_mut(id));
        self.changed(id);
        Ok(())
    }

    fn make(
        &mut self,
        path: &Path,
        kind: FileKind,
        new: NewNode,
        finish: impl FnOnce(&mut Node),
    ) -> Outcome {
        let place = self.place(path)?;
        if place.there.is_some() {
            return Err(EEXIST);
        }
        self.make_at(place.dir, place.name, kind, new, finish);
        Ok(())
    }

    fn make_at(
        &mut self,
        dir: NodeId,
        name: Vec<u8>,
        kind: FileKind,
        new: NewNode,
        finish: impl FnOnce(&mut Node),
    ) {
        let parent = self.tree.node(dir);
        let mut node = Node::new(kind);
        node.permissions = new.permissions;
        (node.uid, node.gid) = (new.uid, new.gid);
        if parent.permissions & SET_GID != 0 {
            node.gid = parent.gid;
            if kind == FileKind::Directory {
                node.permissions |= SET_GID;
            }
        }
        let inherited = match kind {
            FileKind::Directory => INHERITED,
            FileKind::Regular => OF_FILES,
            _ => OF_OTHERS,
        };
        node.flags = parent.flags & inherited.bits();
        if self.rules.project && parent.flags & InodeFlags::PROJINHERIT.bits() != 0 {
            node.project = parent.project;
        }
        if kind != FileKind::Symlink
            && let Some(stored) = parent.xattrs.get(ACL_DEFAULT)
        {
            inherit(&mut node, stored);
        }
        let now = self.time();
        node.times = [now; 4];
        if !self.rules.crtime {
            node.times[3] = (0, 0);
        }
        node.changed_by = self.step;
        node.named_by = self.step;
        node.links = if kind == FileKind::Directory { 2 } else { 1 };
        finish(&mut node);
        let id = self.tree.add(node);
        let parent = self.tree.node_mut(dir);
        parent.entries.insert(name, id);
        parent.links += u32::from(kind == FileKind::Directory);
        self.modified(dir);
    }

    fn link(&mut self, from: &Path, to: &Path) -> Outcome {
        let id = self.find(from)?;
        let place = self.place(to)?;
        if place.there.is_some() {
            return Err(EEXIST);
        }
        if self.tree.node(id).is_dir() {
            return Err(EPERM);
        }
        self.check_project(place.dir, id)?;
        self.tree.node_mut(place.dir).entries.insert(place.name, id);
        self.tree.node_mut(id).links += 1;
        self.changed(id);
        self.modified(place.dir);
        Ok(())
    }

    /// A directory whose entries inherit its project takes nothing of another project.
    fn check_project(&self, dir: NodeId, id: NodeId) -> Outcome {
        let (dir, node) = (self.tree.node(dir), self.tree.node(id));
        let inherits = dir.flags & InodeFlags::PROJINHERIT.bits() != 0;
        if inherits && dir.project != node.project { Err(EXDEV) } else { Ok(()) }
    }

    fn unlink(&mut self, path: &Path) -> Outcome {
        let place = self.place(path)?;
        let id = place.there.ok_or(ENOENT)?;
        if self.tree.node(id).is_dir() {
            return Err(EISDIR);
        }
        self.tree.node_mut(place.dir).entries.remove(&place.name);
        self.modified(place.dir);
        self.drop_name(id);
        Ok(())
    }

    /// One name less; without any the node is gone.
    fn drop_name(&mut self, id: NodeId) {
        self.changed(id);
        let node = self.tree.node_mut(id);
        node.links -= 1;
        if node.links == 0 {
            self.tree.remove(id);
        }
    }

    fn rmdir(&mut self, path: &Path) -> Outcome {
        let place = self.place(path)?;
        let id = place.there.ok_or(ENOENT)?;
        let node = self.tree.node(id);
        if !node.is_dir() {
            return Err(ENOTDIR);
        }
        if !node.entries.is_empty() {
            return Err(ENOTEMPTY);
        }
        let parent = self.tree.node_mut(place.dir);
        parent.entries.remove(&place.name);
        parent.links -= 1;
        self.modified(place.dir);
        self.tree.remove(id);
        Ok(())
    }

    fn rename(&mut self, from: &Path, to: &Path, mode: RenameMode) -> Outcome {
        let old = self.place(from);
        let new = self.place(to);
        if let (Err(ENAMETOOLONG), Err(errno @ (ENOENT | ENOTDIR))) = (&old, &new) {
            return Err(*errno);
        }
        let old = old?;
        // Both directories are found first, then the one name, then the other.
        if !matches!(new, Err(ENAMETOOLONG)) {
            new.as_ref().map_err(|errno| *errno)?;
        }
        let moved = old.there.ok_or(ENOENT)?;
        let new = new?;
        match (mode, new.there) {
            (RenameMode::NoReplace, Some(_)) => return Err(EEXIST),
            (RenameMode::Exchange, None) => return Err(ENOENT),
            _ => {}
        }
        let exchange = mode == RenameMode::Exchange;
        // What is moved must not contain the place it goes to; what is replaced must not contain the
        // place it comes from.
        if to.0.len() > from.0.len() && to.0.starts_with(&from.0) {
            return Err(EINVAL);
        }
        if from.0.len() > to.0.len() && from.0.starts_with(&to.0) {
            return Err(if exchange { EINVAL } else { ENOTEMPTY });
        }
        if new.there == Some(moved) {
            return Ok(());
        }
        let moved_is_dir = self.tree.node(moved).is_dir();
        if let Some(target) = new.there
            && !exchange
        {
            match (moved_is_dir, self.tree.node(target).is_dir()) {
                (true, false) => return Err(ENOTDIR),
                (false, true) => return Err(EISDIR),
                _ => {}
            }
        }
        self.check_project(new.dir, moved)?;
        if let (true, Some(target)) = (exchange, new.there) {
            self.check_project(old.dir, target)?;
            self.exchange(&old, moved, &new, target);
            return Ok(());
        }
        if let Some(target) = new.there
            && !self.tree.node(target).entries.is_empty()
        {
            return Err(ENOTEMPTY);
        }
        self.tree.node_mut(old.dir).entries.remove(&old.name);
        self.tree.node_mut(new.dir).entries.insert(new.name, moved);
        if moved_is_dir {
            self.tree.node_mut(old.dir).links -= 1;
            self.tree.node_mut(new.dir).links += 1;
        }
        match new.there {
            Some(target) if self.tree.node(target).is_dir() => {
                self.tree.node_mut(new.dir).links -= 1;
                self.tree.remove(target);
            }
            Some(target) => self.drop_name(target),
            None => {}
        }
        self.changed(moved);
        self.modified(new.dir);
        self.modified(old.dir);
        if mode == RenameMode::Whiteout {
            let new = NewNode { permissions: 0, uid: 0, gid: 0 };
            self.make_at(old.dir, old.name, FileKind::CharDevice, new, |node| {
                node.rdev = Some((0, 0));
            });
        }
        Ok(())
    }

    fn exchange(&mut self, old: &Place, moved: NodeId, new: &Place, target: NodeId) {
        self.tree.node_mut(old.dir).entries.insert(old.name.clone(), target);
        self.tree.node_mut(new.dir).entries.insert(new.name.clone(), moved);
        for (id, from, to) in [(moved, old.dir, new.dir), (target, new.dir, old.dir)] {
            if self.tree.node(id).is_dir() {
                self.tree.node_mut(from).links -= 1;
                self.tree.node_mut(to).links += 1;
            }
            self.changed(id);
        }
        self.modified(old.dir);
        self.modified(new.dir);
    }

    /// Sets permissions; an access control list follows them.
    fn set_mode(&mut self, id: NodeId, permissions: u16) {
        let node = self.tree.node_mut(id);
        node.permissions = permissions & 0o7777;
        if let Some(stored) = node.xattrs.get(ACL_ACCESS) {
            let acl = decode(stored);
            let has_mask = acl.entries().iter().any(|entry| entry.who == Who::Mask);
            let entries = acl.entries().iter().map(|entry| {
                let perm = match entry.who {
                    Who::Owner => permissions >> 6,
                    Who::Mask => permissions >> 3,
                    Who::OwningGroup if !has_mask => permissions >> 3,
                    Who::Others => permissions,
                    _ => return *entry,
                };
                AclEntry { who: entry.who, perm: (perm & 7) as u8 }
            });
            let acl = Acl::new(entries.collect()).expect("the same entries");
            node.xattrs.insert(ACL_ACCESS.to_vec(), acl.encode_xattr());
        }
    }

    fn set_acl(&mut self, path: &Path, which: Which, acl: Option<&Acl>) -> Outcome {
        let id = self.find(path)?;
        let node = self.tree.node_mut(id);
        let before = (node.permissions, node.xattrs.clone());
        match which {
            Which::Default if !node.is_dir() => {
                return if acl.is_some() { Err(EACCES) } else { Ok(()) };
            }
            Which::Default => {
                store(node, ACL_DEFAULT, acl);
            }
            Which::Access => {
                let mut acl = acl;
                if let Some(list) = acl {
                    let (mode, same) = list.equivalent_mode();
                    node.permissions = (node.permissions & !0o777) | mode;
                    acl = acl.filter(|_| !same);
                }
                store(node, ACL_ACCESS, acl);
            }
        }
        if (node.permissions, &node.xattrs) != (before.0, &before.1) {
            self.changed(id);
        }
        Ok(())
    }

    /// Changes contents of a regular file.
    fn change_contents(&mut self, path: &Path, change: impl FnOnce(&mut Node)) -> Outcome {
        let id = self.find(path)?;
        let node = self.tree.node_mut(id);
        match node.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(EISDIR),
            _ => return Err(EINVAL),
        }
        change(node);
        self.stored(id);
        Ok(())
    }

    /// Notes that contents of a regular file changed.
    fn stored(&mut self, id: NodeId) {
        let named_by = self.tree.node(id).named_by;
        self.modified(id);
        self.tree.node_mut(id).named_by = named_by;
    }

    /// Returns whether the map of a slot is of this file and has these pages.
    pub fn is_mapped(&self, slot: usize, id: NodeId, pages: &Range<u64>) -> bool {
        let has = |map: &Range<u64>| map.start <= pages.start && pages.end <= map.end;
        self.maps.get(&slot).is_some_and(|(of, map)| *of == id && has(map))
    }

    fn truncate(&mut self, path: &Path, size: u64) -> Outcome {
        self.change_contents(path, |node| {
            node.content.cut(size);
            node.size = size;
        })
    }

    /// What is asked for fits: whole blocks where they have to be, and a map that can do it.
    fn fallocate(&mut self, path: &Path, space: Space, offset: u64, len: u64) -> Outcome {
        self.change_contents(path, |node| {
            let end = offset + len;
            match space {
                Space::Allocate { .. } => {}
                // Of what is behind the end nothing shows, but it reads as zeros later.
                Space::Punch | Space::Zero { .. } | Space::WriteZeroes => {
                    node.content.zero(offset..end);
                }
                Space::Collapse => {
                    node.content.shift(end, offset);
                    node.size -= len;
                }
                Space::Insert => {
                    node.content.shift(offset, end);
                    node.size += len;
                }
            }
            let grows = matches!(
                space,
                Space::Allocate { keep_size: false }
                    | Space::Zero { keep_size: false }
                    | Space::WriteZeroes
            );
            if grows {
                node.size = node.size.max(end);
            }
        })
    }

    fn write(&mut self, path: &Path, offset: Option<u64>, len: u64, seed: u64) -> Outcome {
        self.change_contents(path, |node| {
            let offset = offset.unwrap_or(node.size);
            node.content.write(offset, &written(seed, offset, len));
            node.size = node.size.max(offset + len);
        })
    }
}

fn decode(stored: &[u8]) -> Acl {
    Acl::decode_xattr(stored).unwrap_or_else(|error| panic!("{error}"))
}

fn store(node: &mut Node, name: &[u8], acl: Option<&Acl>) {
    match acl {
        Some(acl) => node.xattrs.insert(name.to_vec(), acl.encode_xattr()),
        None => node.xattrs.remove(name),
    };
}

/// Gives a new node what its directory's default list says: the list limits the permissions, and
/// the permissions limit the list.
fn inherit(node: &mut Node, stored: &[u8]) {
    let default = decode(stored);
    let has_mask = default.entries().iter().any(|entry| entry.who == Who::Mask);
    let permissions = node.permissions;
    let limited = default.entries().iter().map(|entry| {
        let limit = match entry.who {
            Who::Owner => permissions >> 6,
            Who::Mask => permissions >> 3,
            Who::OwningGroup if !has_mask => permissions >> 3,
            Who::Others => permissions,
            _ => 7,
        };
        AclEntry { who: entry.who, perm: entry.perm & (limit & 7) as u8 }
    });
    let acl = Acl::new(limited.collect()).expect("the same entries");
    let (mode, same) = acl.equivalent_mode();
    node.permissions = (permissions & !0o777) | mode;
    if !same {
        store(node, ACL_ACCESS, Some(&acl));
    }
    if node.is_dir() {
        store(node, ACL_DEFAULT, Some(&default));
    }
}
