//! Operations from a seed, chosen by what is there, so that most of them succeed.

use std::collections::BTreeSet;

use extant_base::Prng;
use extant_format::acl::{Acl, AclEntry, Who};
use extant_format::inode::InodeFlags;

use super::apply::{Model, pages};
use super::ops::{NewNode, Op, Path, RenameMode, Space, Special, Which, XattrWrite};
use super::tree::{FileKind, NodeId};

/// What kind of operations.
#[derive(Clone, Debug)]
pub struct Profile {
    /// One operation in this many is a sync or an fsync; 0 for none.
    pub sync_one_in: u64,
    /// Of 100 new names, how many are long.
    pub long_names: u64,
    /// Directories that are made at most.
    pub dirs_max: usize,
    /// Files in a directory at which it is emptied again.
    pub entries_max: usize,
    /// Of 100 operations, how many go on filling or emptying one directory.
    pub one_dir: u64,
    /// Of 100 operations, how many change attributes instead of names.
    pub attributes: u64,
    /// Of 100 operations, how many change contents of files.
    pub contents: u64,
    /// Largest size that contents grow to, in bytes.
    pub contents_max: u64,
    /// Bytes of a block or cluster, in which ranges are moved; 0 where `fallocate` can do nothing.
    pub unit: u64,
    /// Of 100 operations that change contents, how many go through maps.
    pub maps: u64,
    /// One operation in this many that would change contents brings them together on the device; 0 for none.
    pub defrag_one_in: u64,
    /// One operation in this many lets half a minute pass; 0 for none.
    pub tick_one_in: u64,
    /// Longest value of an attribute, in bytes.
    pub value_max: u64,
    /// Largest size that files are set to, in bytes.
    pub size_max: u64,
    /// Whether projects may be set.
    pub project: bool,
    /// Whether access control lists may be set.
    pub acls: bool,
    /// Operations happen below this directory only.
    pub below: Path,
    /// And in this one, with names that begin so.
    pub beside: Option<(Path, Vec<u8>)>,
}

impl Default for Profile {
    fn default() -> Profile {
        Profile {
            sync_one_in: 12,
            long_names: 30,
            dirs_max: 8,
            entries_max: 60,
            one_dir: 0,
            attributes: 30,
            contents: 0,
            contents_max: 160 << 10,
            unit: 0,
            maps: 0,
            defrag_one_in: 0,
            tick_one_in: 0,
            value_max: 900,
            size_max: 1 << 20,
            project: false,
            acls: true,
            below: Path::default(),
            beside: None,
        }
    }
}

impl Profile {
    /// Writes files more than anything else.
    pub fn contents() -> Profile {
        Profile {
            contents: 70,
            unit: 4096,
            tick_one_in: 30,
            sync_one_in: 10,
            attributes: 10,
            entries_max: 40,
            size_max: 1 << 16,
            ..Profile::default()
        }
    }

    /// Fills one directory with long names beyond a few blocks, and empties it.
    pub fn big_directory() -> Profile {
        Profile {
            long_names: 90,
            one_dir: 80,
            entries_max: 400,
            attributes: 4,
            ..Profile::default()
        }
    }
}

/// An endless source of operations.
#[derive(Clone, Debug)]
pub struct Generator {
    random: Prng,
    profile: Profile,
    /// Whether the one directory is being filled; else it is being emptied.
    filling: bool,
    count: u64,
    held: BTreeSet<usize>,
    mapped: Vec<usize>,
}

/// What is there.
struct Here {
    dirs: Vec<Path>,
    /// Everything but directories.
    files: Vec<(Path, NodeId)>,
    /// Of those the regular ones.
    regular: Vec<Path>,
}

impl Generator {
    /// The operations of a seed.
    pub fn new(seed: u64, profile: Profile) -> Generator {
        Generator {
            random: Prng::new(seed),
            profile,
            filling: true,
            count: 0,
            held: BTreeSet::new(),
            mapped: Vec::new(),
        }
    }

    /// The next operation, for a name space that is as `model` says.
    pub fn next_op(&mut self, model: &Model) -> Op {
        self.count += 1;
        let here = self.survey(model);
        if self.profile.sync_one_in > 0 && self.random.one_in(self.profile.sync_one_in) {
            if self.profile.contents > 0 && !self.random.one_in(4) {
                return self.sync_of_one(&here);
            }
            return match (self.random.one_in(2), self.any(model, &here)) {
                (true, Some((path, FileKind::Regular | FileKind::Directory))) => Op::Fsync { path },
                _ => Op::Sync,
            };
        }
        if self.profile.tick_one_in > 0 && self.random.one_in(self.profile.tick_one_in) {
            return Op::Tick { seconds: 31 };
        }
        if self.profile.contents > 0
            && self.random.below(100) < self.profile.contents
            && let Some(op) = self.contents(model, &here)
        {
            return op;
        }
        if self.random.below(100) < self.profile.one_dir {
            return self.one_directory(model);
        }
        if self.random.below(100) < self.profile.attributes
            && let Some(op) = self.attribute(model, &here)
        {
            return op;
        }
        self.name(model, &here)
    }

    /// A regular file, the same few more often than others, so that they are written again and again.
    fn favourite(&mut self, here: &Here) -> Option<Path> {
        let count = here.regular.len();
        let at = self.below(count).min(self.below(count)).min(self.below(count));
        here.regular.get(at).cloned()
    }

    fn sync_of_one(&mut self, here: &Here) -> Op {
        match self.favourite(here) {
            Some(path) if self.random.one_in(2) => Op::Fsync { path },
            Some(path) => Op::Fdatasync { path },
            None => Op::Sync,
        }
    }

    /// Writes and truncates: inside, over the end, behind it; whole blocks and parts.
    fn contents(&mut self, model: &Model, here: &Here) -> Option<Op> {
        let path = self.favourite(here)?;
        if self.profile.defrag_one_in > 0 && self.random.one_in(self.profile.defrag_one_in) {
            return Some(Op::Defrag { path });
        }
        let size = model.tree.node(model.find(&path).ok()?).size;
        let most = self.profile.contents_max;
        let len = match self.random.below(8) {
            0..3 => 1 + self.random.below(300),
            3 => 1024 << self.random.below(5),
            4..7 => 1 + self.random.below(12 << 10),
            _ => 1 + self.random.below(most / 3),
        };
        let edge = |random: &mut Prng, at: u64| match random.below(3) {
            0 => at,
            1 => at / 4096 * 4096,
            _ => at / 1024 * 1024,
        };
        if self.profile.maps > 0 && self.random.below(100) < self.profile.maps {
            return self.through_a_map(model, path, size.min(most), len);
        }
        if self.profile.unit > 0 && self.random.one_in(5) {
            return Some(self.space(path, size));
        }
        let seed = self.count << 32 | self.random.below(1 << 32);
        let op = match self.random.below(20) {
            0..6 if size + len <= most => Op::Append { path, len, seed },
            0..15 => {
                let at = self.random.below(size.min(most) + 1);
                let offset = edge(&mut self.random, at);
                Op::Write { path, offset, len, seed }
            }
            15 | 16 => {
                let at = size + self.random.below(30_000);
                let offset = edge(&mut self.random, at.min(most));
                Op::Write { path, offset, len, seed }
            }
            17 => {
                let to = size + 1 + self.random.below(20_000);
                Op::Truncate { path, size: to }
            }
            _ => {
                let at = self.random.below(size + 1);
                let to = edge(&mut self.random, at);
                if to == size {
                    return None;
                }
                Op::Truncate { path, size: to }
            }
        };
        Some(op)
    }

    fn through_a_map(&mut self, model: &Model, path: Path, size: u64, len: u64) -> Option<Op> {
        if self.random.one_in(4) {
            if self.mapped.len() > self.below(3) {
                let at = self.below(self.mapped.len());
                return Some(Op::Release { slot: self.mapped.swap_remove(at) });
            }
            // Clients of one model do not share numbers.
            let slot = 16 + self.random.below(1 << 48) as usize;
            self.mapped.push(slot);
            let offset = self.random.below(size + 1) / 4096 * 4096;
            let len = 1 + self.random.below(60_000);
            return Some(Op::Map { path, slot, offset, len });
        }
        // Behind the end there is nothing to store to.
        let offset = self.random.below(size.max(1));
        let seed = self.count << 32 | self.random.below(1 << 32);
        let id = model.find(&path).ok()?;
        let pages = pages(offset, len);
        let slot = self.mapped.iter().find(|slot| model.is_mapped(**slot, id, &pages)).copied();
        (size > 0).then_some(Op::Store { path, slot, offset, len, seed })
    }

    fn space(&mut self, path: Path, size: u64) -> Op {
        let unit = self.profile.unit;
        let most = self.profile.contents_max;
        let offset = self.random.below(size.min(most) + 1);
        let len = 1 + self.random.below(20_000);
        let keep_size = self.random.one_in(2);
        let blocks = size / unit;
        let kind = self.random.below(8);
        if kind < 2 && blocks > 2 && size <= most {
            let offset = self.random.below(blocks - 1) * unit;
            let len = (1 + self.random.below(2)) * unit;
            if kind == 0 {
                return Op::Fallocate { path, space: Space::Insert, offset, len };
            }
            if offset + len < size {
                return Op::Fallocate { path, space: Space::Collapse, offset, len };
            }
        }
        let space = match kind {
            2 => Space::Allocate { keep_size },
            3 => Space::Zero { keep_size },
            4 => Space::WriteZeroes,
            _ => Space::Punch,
        };
        let (offset, len) = match self.random.below(2) {
            0 => (offset, len),
            _ => (offset / unit * unit, len.next_multiple_of(unit)),
        };
        Op::Fallocate { path, space, offset, len }
    }

    fn survey(&self, model: &Model) -> Here {
        let mut here = Here { dirs: Vec::new(), files: Vec::new(), regular: Vec::new() };
        let Ok(top) = model.find(&self.profile.below) else { return here };
        let mut pending = vec![(self.profile.below.clone(), top)];
        while let Some((path, id)) = pending.pop() {
            let node = model.tree.node(id);
            if !node.is_dir() {
                if node.kind == FileKind::Regular {
                    here.regular.push(path.clone());
                }
                here.files.push((path, id));
                continue;
            }
            for (name, child) in &node.entries {
                // Of mke2fs, and not ours to move.
                if name != b"lost+found" {
                    pending.push((path.join(name), *child));
                }
            }
            here.dirs.push(path);
        }
        if let Some((path, start)) = &self.profile.beside
            && let Ok(dir) = model.find(path)
        {
            let entries = &model.tree.node(dir).entries;
            let own = entries.iter().filter(|(name, _)| name.starts_with(start));
            // Directories there are left alone: they would have to be looked into.
            let own = own.filter(|(_, child)| !model.tree.node(**child).is_dir());
            here.files.extend(own.map(|(name, child)| (path.join(name), *child)));
        }
        here
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below(from.len());
        from.get(at).cloned()
    }

    /// A name that may well exist, or a new one.
    fn new_name(&mut self) -> Vec<u8> {
        if self.random.below(100) < self.profile.long_names {
            let len = 30 + self.below(226);
            let mut name = format!("{:x}-", self.random.next_u64()).into_bytes();
            while name.len() < len {
                name.push(b'a' + (name.len() % 26) as u8);
            }
            name.truncate(len.max(20));
            return name;
        }
        match self.random.below(20) {
            // The longest, and one longer.
            0 => vec![b'n'; 255],
            1 if self.random.one_in(8) => vec![b'x'; 256],
            2 => vec![0xff, 0x80, b' ', b'\n', self.random.below(4) as u8 + b'0'],
            _ => format!("n{}", self.random.below(40)).into_bytes(),
        }
    }

    fn new_path(&mut self, here: &Here) -> Path {
        if let Some((path, start)) = self.profile.beside.clone()
            && self.random.one_in(2)
        {
            let mut name = start;
            name.extend(self.new_name());
            name.truncate(255);
            return path.join(&name);
        }
        let dir = self.pick(&here.dirs).unwrap_or_default();
        let name = self.new_name();
        // Now and then below something that is not a directory, or not there.
        if self.random.one_in(60)
            && let Some(path) = self.pick(&here.regular)
        {
            return path.join(&name);
        }
        if self.random.one_in(60) {
            return dir.join(b"missing").join(&name);
        }
        dir.join(&name)
    }

    fn new_node(&mut self) -> NewNode {
        const MODES: [u16; 5] = [0o644, 0o600, 0o755, 0o777, 0o640];
        NewNode {
            permissions: MODES[self.below(MODES.len())],
            uid: [0, 1000, 70_000][self.below(3)],
            gid: [0, 100, 70_001][self.below(3)],
        }
    }

    fn any(&mut self, model: &Model, here: &Here) -> Option<(Path, FileKind)> {
        let all = here.dirs.len() + here.files.len();
        let at = self.below(all);
        let path = match here.dirs.get(at) {
            Some(path) => path.clone(),
            None => here.files.get(at - here.dirs.len())?.0.clone(),
        };
        let id = model.find(&path).ok()?;
        Some((path, model.tree.node(id).kind))
    }

    /// Of `from`, one that is not the top.
    fn movable_dir(&mut self, here: &Here) -> Option<Path> {
        let dir = self.pick(&here.dirs)?;
        (dir != self.profile.below).then_some(dir)
    }

    fn one_directory(&mut self, model: &Model) -> Op {
        let dir = self.profile.below.join(b"big");
        let Ok(id) = model.find(&dir) else {
            return Op::Mkdir { path: dir, new: self.new_node() };
        };
        let entries = &model.tree.node(id).entries;
        if entries.len() >= self.profile.entries_max {
            self.filling = false;
        } else if entries.is_empty() {
            self.filling = true;
        }
        if self.filling || entries.is_empty() {
            let path = dir.join(&self.new_name());
            let new = self.new_node();
            return match self.random.below(8) {
                0 => Op::Symlink { path, target: self.target(), new },
                1 => Op::Mknod { path, special: Special::Fifo, new },
                _ => Op::Create { path, new },
            };
        }
        let at = self.below(entries.len());
        let (name, child) = entries.iter().nth(at).expect("one of so many");
        let path = dir.join(name);
        if model.tree.node(*child).is_dir() { Op::Rmdir { path } } else { Op::Unlink { path } }
    }

    fn target(&mut self) -> Vec<u8> {
        // Within the inode up to 59 bytes, else in a block.
        let len = [1, 20, 59, 60, 61, 500, 900][self.below(7)];
        (0..len).map(|at| b'a' + (at % 26) as u8).collect()
    }

    fn name(&mut self, model: &Model, here: &Here) -> Op {
        let full = here.files.len() >= self.profile.entries_max;
        let kind = if full { 40 + self.random.below(60) } else { self.random.below(100) };
        let new = self.new_node();
        match kind {
            0..22 => Op::Create { path: self.new_path(here), new },
            22..30 if here.dirs.len() < self.profile.dirs_max => {
                let new = NewNode { permissions: 0o755, ..new };
                Op::Mkdir { path: self.new_path(here), new }
            }
            30..35 => Op::Symlink { path: self.new_path(here), target: self.target(), new },
            35..40 => {
                let numbers = [(1, 3), (8, 300), (300, 70_000)][self.below(3)];
                let special = match self.random.below(4) {
                    0 => Special::Fifo,
                    1 => Special::Socket,
                    2 => Special::Char(numbers.0, numbers.1),
                    _ => Special::Block(numbers.0, numbers.1),
                };
                Op::Mknod { path: self.new_path(here), special, new }
            }
            40..50 => {
                let from = match self.any(model, here) {
                    Some((path, _)) => path,
                    None => self.new_path(here),
                };
                Op::Link { from, to: self.new_path(here) }
            }
            50..66 => match self.pick(&here.files) {
                Some((path, _)) => Op::Unlink { path },
                None => Op::Unlink { path: self.new_path(here) },
            },
            66..72 => match self.movable_dir(here) {
                Some(path) => Op::Rmdir { path },
                None => Op::Rmdir { path: self.new_path(here) },
            },
            72..76 => self.hold(here),
            _ => self.rename(model, here),
        }
    }

    fn hold(&mut self, here: &Here) -> Op {
        let slot = self.below(4);
        if self.held.remove(&slot) {
            return Op::Release { slot };
        }
        match self.pick(&here.files) {
            Some((path, _)) => {
                self.held.insert(slot);
                Op::Hold { path, slot }
            }
            None => Op::Sync,
        }
    }

    fn rename(&mut self, model: &Model, here: &Here) -> Op {
        let from = match self.random.below(10) {
            0..7 => self.pick(&here.files).map(|(path, _)| path),
            7..9 => self.movable_dir(here),
            _ => None,
        };
        let from = from.unwrap_or_else(|| self.new_path(here));
        let to = match self.random.below(10) {
            0..4 => self.pick(&here.files).map(|(path, _)| path),
            4 => self.movable_dir(here),
            _ => None,
        };
        let to = to.unwrap_or_else(|| self.new_path(here));
        let mode = match self.random.below(10) {
            0 => RenameMode::NoReplace,
            1 | 2 => RenameMode::Exchange,
            3 if !self.inherits(model, &from) => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        Op::Rename { from, to, mode }
    }

    /// Returns whether new entries beside `path` get an access control list.
    fn inherits(&self, model: &Model, path: &Path) -> bool {
        let parents = path.0.len().saturating_sub(1);
        let parent = Path(path.0.iter().take(parents).cloned().collect());
        model.find(&parent).is_ok_and(|id| {
            model.tree.node(id).xattrs.contains_key(b"system.posix_acl_default".as_slice())
        })
    }

    fn attribute(&mut self, model: &Model, here: &Here) -> Option<Op> {
        let (path, kind) = self.any(model, here)?;
        let is_file = kind == FileKind::Regular;
        let is_dir = kind == FileKind::Directory;
        let op = match self.random.below(13) {
            0 | 1 if kind != FileKind::Symlink => {
                let set_gid = if is_dir && self.random.one_in(4) { 0o2000 } else { 0 };
                let permissions = self.new_node().permissions | set_gid;
                Op::Chmod { path, permissions }
            }
            2 => {
                let NewNode { uid, gid, .. } = self.new_node();
                Op::Chown { path, uid, gid }
            }
            3 => {
                let atime = self.random.below(4_000_000_000) as i64;
                Op::Utimes { path, atime, mtime: atime - 1_000 }
            }
            4..8 => self.xattr(path, is_file || is_dir),
            8 => {
                let id = model.find(&path).ok()?;
                let names: Vec<&Vec<u8>> = model.tree.node(id).xattrs.keys().collect();
                let name = self.pick(&names).filter(|name| !name.starts_with(b"system."));
                let name = name.cloned().unwrap_or_else(|| b"trusted.none".to_vec());
                Op::RemoveXattr { path, name }
            }
            9 | 10 if is_file => {
                let size = self.random.below(self.profile.size_max / 4096 + 1) * 4096;
                let id = model.find(&path).ok()?;
                if model.tree.node(id).size == size {
                    return None;
                }
                Op::Truncate { path, size }
            }
            11 if (is_file || is_dir) && self.profile.acls => self.acl(path, is_dir),
            12 if is_file || is_dir => {
                if self.profile.project && self.random.one_in(2) {
                    let project = self.random.below(3) as u32 * 1000;
                    return Some(Op::SetProject { path, project });
                }
                let inherit = is_dir && self.profile.project && self.random.one_in(2);
                let mut flags = InodeFlags::empty();
                flags.set(InodeFlags::NODUMP, self.random.one_in(2));
                flags.set(InodeFlags::NOATIME, self.random.one_in(2));
                flags.set(InodeFlags::PROJINHERIT, inherit);
                Op::SetFlags { path, flags: flags.bits() }
            }
            _ => return None,
        };
        Some(op)
    }

    fn xattr(&mut self, path: Path, user: bool) -> Op {
        const USER: [&[u8]; 3] = [b"user.a", b"user.mime_type", b"user.a-rather-long-name-of-it"];
        const OTHER: [&[u8]; 2] = [b"trusted.t", b"security.s"];
        let at = self.below(5);
        let name = match USER.get(at) {
            Some(name) if user => *name,
            _ => OTHER[at % 2],
        };
        let len = match self.random.below(6) {
            0 => 0,
            1..4 => self.random.below(60),
            _ => self.random.below(self.profile.value_max + 1),
        };
        // The few equal ones share a block; the first bytes make the others differ.
        let shared = self.random.one_in(3);
        let start = if shared { 7 } else { self.random.next_u64() };
        let len = if shared { 300.min(self.profile.value_max) } else { len };
        let mut value: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        for (byte, own) in value.iter_mut().zip((start ^ self.count).to_le_bytes()) {
            if !shared {
                *byte = own;
            }
        }
        let write = match self.random.below(6) {
            0 => XattrWrite::Create,
            1 => XattrWrite::Replace,
            _ => XattrWrite::Any,
        };
        Op::SetXattr { path, name: name.to_vec(), value, write }
    }

    fn acl(&mut self, path: Path, is_dir: bool) -> Op {
        let which = if is_dir && self.random.one_in(2) { Which::Default } else { Which::Access };
        if self.random.one_in(4) {
            return Op::SetAcl { path, which, acl: None };
        }
        let mut perm = || self.random.below(8) as u8;
        let mut entries = vec![AclEntry { who: Who::Owner, perm: perm() | 4 }];
        let named = perm() % 3;
        for user in 0..named {
            entries.push(AclEntry { who: Who::User(1000 + u32::from(user)), perm: perm() });
        }
        entries.push(AclEntry { who: Who::OwningGroup, perm: perm() });
        if named > 0 {
            entries.push(AclEntry { who: Who::Mask, perm: perm() });
        }
        entries.push(AclEntry { who: Who::Others, perm: perm() });
        let acl = Acl::new(entries).expect("entries in order");
        Op::SetAcl { path, which, acl: Some(acl) }
    }
}
