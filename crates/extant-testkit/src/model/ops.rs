//! One operation on a name space.

use std::fmt;

use extant_format::acl::Acl;

use super::tree::show;

/// Names from the root on; none for the root itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Path(pub Vec<Vec<u8>>);

impl Path {
    /// A path written with slashes.
    pub fn of(text: &str) -> Path {
        let names = text.split('/').filter(|name| !name.is_empty());
        Path(names.map(|name| name.as_bytes().to_vec()).collect())
    }

    /// This path and one more name.
    pub fn join(&self, name: &[u8]) -> Path {
        let mut names = self.0.clone();
        names.push(name.to_vec());
        Path(names)
    }

    /// The last name and the path before it; `None` for the root.
    pub fn split(&self) -> Option<(&[u8], &[Vec<u8>])> {
        self.0.split_last().map(|(name, parents)| (name.as_slice(), parents))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("/");
        }
        self.0.iter().try_for_each(|name| write!(f, "/{}", show(name)))
    }
}

impl fmt::Debug for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Attributes that a new inode is given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewNode {
    /// Permission bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group, unless the directory decides.
    pub gid: u32,
}

/// What `mknod` makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    Char(u32, u32),
    /// A block device.
    Block(u32, u32),
}

/// How `rename` treats the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails if it exists.
    NoReplace,
    /// Swaps the two.
    Exchange,
    /// Replaces it, and leaves a whiteout behind.
    Whiteout,
}

/// How `setxattr` treats what exists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum XattrWrite {
    /// Either way.
    Any,
    /// Fails if it exists.
    Create,
    /// Fails if it does not exist.
    Replace,
}

/// Which access control list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// Who may access the file.
    Access,
    /// What new entries start with.
    Default,
}

/// What `fallocate` does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Space {
    /// Gives it space; the size grows over it or stays.
    Allocate {
        /// The size stays.
        keep_size: bool,
    },
    /// Takes the space away.
    Punch,
    /// Makes it zeros that have space.
    Zero {
        /// The size stays.
        keep_size: bool,
    },
    /// Makes it zeros that are written.
    WriteZeroes,
    /// Takes it out.
    Collapse,
    /// Puts a hole there.
    Insert,
}

/// One operation.
#[derive(Clone, PartialEq, Debug)]
#[expect(missing_docs, reason = "the system call of each name, and its arguments")]
pub enum Op {
    Create {
        path: Path,
        new: NewNode,
    },
    Mkdir {
        path: Path,
        new: NewNode,
    },
    Symlink {
        path: Path,
        target: Vec<u8>,
        new: NewNode,
    },
    Mknod {
        path: Path,
        special: Special,
        new: NewNode,
    },
    Link {
        from: Path,
        to: Path,
    },
    Unlink {
        path: Path,
    },
    Rmdir {
        path: Path,
    },
    Rename {
        from: Path,
        to: Path,
        mode: RenameMode,
    },
    Chmod {
        path: Path,
        permissions: u16,
    },
    Chown {
        path: Path,
        uid: u32,
        gid: u32,
    },
    Utimes {
        path: Path,
        atime: i64,
        mtime: i64,
    },
    SetXattr {
        path: Path,
        name: Vec<u8>,
        value: Vec<u8>,
        write: XattrWrite,
    },
    RemoveXattr {
        path: Path,
        name: Vec<u8>,
    },
    SetAcl {
        path: Path,
        which: Which,
        acl: Option<Acl>,
    },
    Truncate {
        path: Path,
        size: u64,
    },
    SetFlags {
        path: Path,
        flags: u32,
    },
    SetProject {
        path: Path,
        project: u32,
    },
    Sync,
    Fsync {
        path: Path,
    },
    Fdatasync {
        path: Path,
    },
    /// Writes the [`pattern`](super::pattern) of the seed.
    Write {
        path: Path,
        offset: u64,
        len: u64,
        seed: u64,
    },
    /// The same at the end of the file.
    Append {
        path: Path,
        len: u64,
        seed: u64,
    },
    Fallocate {
        path: Path,
        space: Space,
        offset: u64,
        len: u64,
    },
    /// Brings the contents of a file together on the device. Not of Linux.
    Defrag {
        path: Path,
    },
    /// Maps whole pages of a file for writing, until the slot is released. Not of Linux: that takes
    /// unsafe code.
    Map {
        path: Path,
        slot: usize,
        offset: u64,
        len: u64,
    },
    /// Stores through the map of a slot, or through one that ends with the operation. What is behind the
    /// range in its last page is stored to as well, and what is behind the end of the file shows nowhere.
    Store {
        path: Path,
        slot: Option<usize>,
        offset: u64,
        len: u64,
        seed: u64,
    },
    /// Nobody does anything for so long, and then the file system may do what is due.
    Tick {
        seconds: u32,
    },
    /// Keeps a handle on a file, so that it outlives its names.
    Hold {
        path: Path,
        slot: usize,
    },
    /// Gives the handle or the map of a slot up.
    Release {
        slot: usize,
    },
}

impl Op {
    /// Returns how many seconds it takes on the clock of a scenario.
    pub fn seconds(&self) -> u32 {
        match self {
            Op::Tick { seconds } => *seconds,
            _ => 1,
        }
    }

    /// Returns whether it may change which names there are and whose.
    pub fn changes_names(&self) -> bool {
        matches!(
            self,
            Op::Create { .. }
                | Op::Mkdir { .. }
                | Op::Symlink { .. }
                | Op::Mknod { .. }
                | Op::Link { .. }
                | Op::Unlink { .. }
                | Op::Rmdir { .. }
                | Op::Rename { .. }
        )
    }

    /// The file whose contents it changes.
    pub fn changes_contents_of(&self) -> Option<&Path> {
        match self {
            Op::Write { path, .. }
            | Op::Store { path, .. }
            | Op::Append { path, .. }
            | Op::Truncate { path, .. }
            | Op::Fallocate { path, .. } => Some(path),
            _ => None,
        }
    }

    /// Its name, for counters.
    pub fn name(&self) -> &'static str {
        match self {
            Op::Create { .. } => "create",
            Op::Mkdir { .. } => "mkdir",
            Op::Symlink { .. } => "symlink",
            Op::Mknod { .. } => "mknod",
            Op::Link { .. } => "link",
            Op::Unlink { .. } => "unlink",
            Op::Rmdir { .. } => "rmdir",
            Op::Rename { .. } => "rename",
            Op::Chmod { .. } => "chmod",
            Op::Chown { .. } => "chown",
            Op::Utimes { .. } => "utimes",
            Op::SetXattr { .. } => "setxattr",
            Op::RemoveXattr { .. } => "removexattr",
            Op::SetAcl { .. } => "setacl",
            Op::Truncate { .. } => "truncate",
            Op::SetFlags { .. } => "setflags",
            Op::SetProject { .. } => "setproject",
            Op::Sync => "sync",
            Op::Fsync { .. } => "fsync",
            Op::Fdatasync { .. } => "fdatasync",
            Op::Write { .. } => "write",
            Op::Append { .. } => "append",
            Op::Fallocate { .. } => "fallocate",
            Op::Defrag { .. } => "defrag",
            Op::Map { .. } => "map",
            Op::Store { .. } => "store",
            Op::Tick { .. } => "tick",
            Op::Hold { .. } => "hold",
            Op::Release { .. } => "release",
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name();
        match self {
            Op::Create { path, new } | Op::Mkdir { path, new } => {
                write!(f, "{name} {path} {:o} {}:{}", new.permissions, new.uid, new.gid)
            }
            Op::Symlink { path, target, .. } => write!(f, "{name} {path} -> {}", show(target)),
            Op::Mknod { path, special, .. } => write!(f, "{name} {path} {special:?}"),
            Op::Link { from, to } => write!(f, "{name} {from} {to}"),
            Op::Rename { from, to, mode } => write!(f, "{name} {from} {to} {mode:?}"),
            Op::Unlink { path }
            | Op::Rmdir { path }
            | Op::Defrag { path }
            | Op::Fsync { path }
            | Op::Fdatasync { path } => write!(f, "{name} {path}"),
            Op::Map { path, slot, offset, len } => {
                write!(f, "{name} {path} {offset}+{len} in slot {slot}")
            }
            Op::Store { path, slot, offset, len, seed } => {
                write!(f, "{name} {path} {offset}+{len} seed {seed} ({slot:?})")
            }
            Op::Write { path, offset, len, seed } => {
                write!(f, "{name} {path} {offset}+{len} seed {seed}")
            }
            Op::Append { path, len, seed } => write!(f, "{name} {path} {len} seed {seed}"),
            Op::Fallocate { path, space, offset, len } => {
                write!(f, "{name} {path} {offset}+{len} {space:?}")
            }
            Op::Tick { seconds } => write!(f, "{name} {seconds}"),
            Op::Chmod { path, permissions } => write!(f, "{name} {path} {permissions:o}"),
            Op::Chown { path, uid, gid } => write!(f, "{name} {path} {uid}:{gid}"),
            Op::Utimes { path, atime, mtime } => write!(f, "{name} {path} {atime} {mtime}"),
            Op::SetXattr { path, name: xattr, value, write } => {
                write!(f, "{name} {path} {} ({} bytes) {write:?}", show(xattr), value.len())
            }
            Op::RemoveXattr { path, name: xattr } => write!(f, "{name} {path} {}", show(xattr)),
            Op::SetAcl { path, which, acl } => {
                let entries = acl.as_ref().map_or(0, |acl| acl.entries().len());
                write!(f, "{name} {path} {which:?} ({entries} entries)")
            }
            Op::Truncate { path, size } => write!(f, "{name} {path} {size}"),
            Op::SetFlags { path, flags } => write!(f, "{name} {path} {flags:#x}"),
            Op::SetProject { path, project } => write!(f, "{name} {path} {project}"),
            Op::Sync => f.write_str(name),
            Op::Hold { path, slot } => write!(f, "{name} {path} in slot {slot}"),
            Op::Release { slot } => write!(f, "{name} slot {slot}"),
        }
    }
}
