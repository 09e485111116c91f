//! The operations of the model, done by Linux to a mounted file system.
//!
//! The model is compared with it, and it makes the images that a cut leaves under the kernel.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path as OsPath, PathBuf};

use crate::model::{
    Content, FileKind, NewNode, Node, NodeId, Op, Outcome, Path, RenameMode, Rules, Space, Special,
    Tree, Which, XattrWrite, written,
};
use nix::sched::{CloneFlags, unshare};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, XattrFlags,
};

/// A mounted directory in which operations are done, as root and with an umask of 0.
///
/// It stays on the thread that made it, whose umask is its own.
#[derive(Debug)]
pub struct Kernel {
    root: PathBuf,
    slots: HashMap<usize, rustix::fd::OwnedFd>,
    of_thread: PhantomData<*const ()>,
}

fn errno(error: io::Error) -> rustix::io::Errno {
    rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::IO)
}

fn acl_name(which: Which) -> &'static str {
    match which {
        Which::Access => "system.posix_acl_access",
        Which::Default => "system.posix_acl_default",
    }
}

impl Kernel {
    /// Everything happens below `root`. Sets the umask of this thread to 0; tests beside it, on
    /// other threads of the process, keep theirs.
    pub fn new(root: PathBuf) -> Kernel {
        unshare(CloneFlags::CLONE_FS).expect("a thread may have an umask of its own");
        rustix::process::umask(Mode::empty());
        Kernel { root, slots: HashMap::new(), of_thread: PhantomData }
    }

    fn at(&self, path: &Path) -> PathBuf {
        path.0.iter().fold(self.root.clone(), |at, name| at.join(OsStr::from_bytes(name)))
    }

    /// Gives a new file its owner; the kernel chose the group where the directory says so.
    fn own(&self, path: &OsPath, new: &NewNode) -> rustix::io::Result<()> {
        let parent = fs::metadata(path.parent().unwrap()).unwrap();
        let keep = parent.mode() & 0o2000 != 0;
        let gid = (!keep).then(|| rustix::fs::Gid::from_raw(new.gid));
        let uid = Some(rustix::fs::Uid::from_raw(new.uid));
        rustix::fs::chownat(CWD, path, uid, gid, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Does one operation. A project cannot be set, and nothing mapped.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.run(op).map_err(|errno| errno.raw_os_error())
    }

    fn run(&mut self, op: &Op) -> rustix::io::Result<()> {
        match op {
            Op::Create { path, new } => {
                let path = self.at(path);
                let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
                let mode = Mode::from_raw_mode(u32::from(new.permissions));
                drop(rustix::fs::open(&path, flags, mode)?);
                self.own(&path, new)
            }
            Op::Mkdir { path, new } => {
                let path = self.at(path);
                rustix::fs::mkdir(&path, Mode::from_raw_mode(u32::from(new.permissions)))?;
                self.own(&path, new)
            }
            Op::Symlink { path, target, new } => {
                let path = self.at(path);
                rustix::fs::symlink(OsStr::from_bytes(target), &path)?;
                self.own(&path, new)
            }
            Op::Mknod { path, special, new } => {
                let path = self.at(path);
                let (kind, dev) = match *special {
                    Special::Fifo => (FileType::Fifo, 0),
                    Special::Socket => (FileType::Socket, 0),
                    Special::Char(a, b) => (FileType::CharacterDevice, rustix::fs::makedev(a, b)),
                    Special::Block(a, b) => (FileType::BlockDevice, rustix::fs::makedev(a, b)),
                };
                let mode = Mode::from_raw_mode(u32::from(new.permissions));
                rustix::fs::mknodat(CWD, &path, kind, mode, dev)?;
                self.own(&path, new)
            }
            Op::Link { from, to } => {
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())
            }
            Op::Unlink { path } => rustix::fs::unlink(self.at(path)),
            Op::Rmdir { path } => rustix::fs::rmdir(self.at(path)),
            Op::Rename { from, to, mode } => {
                let flags = match mode {
                    RenameMode::Replace => RenameFlags::empty(),
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    RenameMode::Whiteout => RenameFlags::WHITEOUT,
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)
            }
            Op::Chmod { path, permissions } => {
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(u32::from(*permissions)))
            }
            Op::Chown { path, uid, gid } => {
                let uid = Some(rustix::fs::Uid::from_raw(*uid));
                let gid = Some(rustix::fs::Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, self.at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::Utimes { path, atime, mtime } => {
                let time = |seconds| Timespec { tv_sec: seconds, tv_nsec: 0 };
                let times =
                    Timestamps { last_access: time(*atime), last_modification: time(*mtime) };
                rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetXattr { path, name, value, write } => {
                let flags = match write {
                    XattrWrite::Any => XattrFlags::empty(),
                    XattrWrite::Create => XattrFlags::CREATE,
                    XattrWrite::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(self.at(path), OsStr::from_bytes(name), value, flags)
            }
            Op::RemoveXattr { path, name } => {
                rustix::fs::lremovexattr(self.at(path), OsStr::from_bytes(name))
            }
            Op::SetAcl { path, which, acl } => {
                let (path, name) = (self.at(path), acl_name(*which));
                match acl {
                    Some(acl) => {
                        rustix::fs::lsetxattr(path, name, &acl.encode_xattr(), XattrFlags::empty())
                    }
                    None => match rustix::fs::lremovexattr(path, name) {
                        Err(rustix::io::Errno::NODATA) => Ok(()),
                        other => other,
                    },
                }
            }
            Op::Truncate { path, size } => {
                let file = rustix::fs::open(self.at(path), OFlags::WRONLY, Mode::empty())?;
                rustix::fs::ftruncate(file, *size)
            }
            Op::SetFlags { path, flags } => {
                let flags_on = OFlags::RDONLY | OFlags::NONBLOCK;
                let file = rustix::fs::open(self.at(path), flags_on, Mode::empty())?;
                let own = IFlags::from_bits_retain(Rules::user_flags());
                let others = rustix::fs::ioctl_getflags(&file)?.difference(own);
                rustix::fs::ioctl_setflags(&file, others | IFlags::from_bits_retain(*flags))
            }
            Op::SetProject { .. } | Op::Map { .. } | Op::Store { .. } => {
                Err(rustix::io::Errno::OPNOTSUPP)
            }
            Op::Write { path, offset, len, seed } => {
                let file =
                    File::from(rustix::fs::open(self.at(path), OFlags::WRONLY, Mode::empty())?);
                file.write_all_at(&written(*seed, *offset, *len), *offset).map_err(errno)
            }
            Op::Append { path, len, seed } => {
                let flags = OFlags::WRONLY | OFlags::APPEND;
                let mut file = File::from(rustix::fs::open(self.at(path), flags, Mode::empty())?);
                let at = file.metadata().map_err(errno)?.len();
                file.write_all(&written(*seed, at, *len)).map_err(errno)
            }
            Op::Fallocate { path, space, offset, len } => {
                let keep = |keep| {
                    if keep { FallocateFlags::KEEP_SIZE } else { FallocateFlags::empty() }
                };
                let flags = match space {
                    Space::Allocate { keep_size } => keep(*keep_size),
                    Space::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Space::Zero { keep_size } => FallocateFlags::ZERO_RANGE | keep(*keep_size),
                    // Newer than the library; it reads as the same.
                    Space::WriteZeroes => FallocateFlags::ZERO_RANGE,
                    Space::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    Space::Insert => FallocateFlags::INSERT_RANGE,
                };
                let file = rustix::fs::open(self.at(path), OFlags::RDWR, Mode::empty())?;
                rustix::fs::fallocate(file, flags, *offset, *len)
            }
            Op::Tick { .. } | Op::Defrag { .. } => Ok(()),
            Op::Fdatasync { path } => {
                let file = rustix::fs::open(self.at(path), OFlags::RDONLY, Mode::empty())?;
                rustix::fs::fdatasync(file)
            }
            Op::Sync => {
                rustix::fs::sync();
                Ok(())
            }
            Op::Fsync { path } => {
                let file = rustix::fs::open(self.at(path), OFlags::RDONLY, Mode::empty())?;
                rustix::fs::fsync(file)
            }
            Op::Hold { path, slot } => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW;
                let file = rustix::fs::open(self.at(path), flags, Mode::empty())?;
                self.slots.insert(*slot, file);
                Ok(())
            }
            Op::Release { slot } => {
                self.slots.remove(slot);
                Ok(())
            }
        }
    }
}

fn xattrs(path: &OsPath) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut names[..]).unwrap();
    let each = |name: &[u8]| {
        let mut value = vec![0; 65536];
        let len = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value[..]).unwrap();
        value.truncate(len);
        (name.to_vec(), value)
    };
    names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()).map(each).collect()
}

fn node(path: &OsPath) -> io::Result<(u64, Node)> {
    let meta = fs::symlink_metadata(path)?;
    let kind = FileKind::from_mode((meta.mode() & 0xf000) as u16).unwrap();
    let mut node = Node::new(kind);
    node.permissions = (meta.mode() & 0o7777) as u16;
    (node.uid, node.gid, node.links) = (meta.uid(), meta.gid(), meta.nlink() as u32);
    node.xattrs = xattrs(path);
    node.times[1] = (meta.mtime(), meta.mtime_nsec() as u32);
    node.times[2] = (meta.ctime(), meta.ctime_nsec() as u32);
    match kind {
        FileKind::Directory => {}
        FileKind::Symlink => {
            node.target = Some(fs::read_link(path)?.as_os_str().as_bytes().to_vec());
            node.size = meta.size();
        }
        FileKind::CharDevice | FileKind::BlockDevice => {
            let dev = meta.rdev();
            node.rdev = Some((rustix::fs::major(dev), rustix::fs::minor(dev)));
        }
        _ => node.size = meta.size(),
    }
    if matches!(kind, FileKind::Regular | FileKind::Directory) {
        let file = File::open(path)?;
        let flags = rustix::fs::ioctl_getflags(&file)?;
        node.flags = flags.bits() & Rules::user_flags();
        if kind == FileKind::Regular {
            let mut bytes = vec![0; meta.size() as usize];
            file.read_exact_at(&mut bytes, 0)?;
            let mut content = Content::new();
            content.add(0, &bytes);
            node.content = content;
        }
    }
    Ok((meta.ino(), node))
}

/// Everything below `root` that users can see, but times and projects, which stay zero.
pub fn snapshot(root: &OsPath) -> Tree {
    let mut tree = snapshot_with_times(root);
    for (_, id) in tree.paths() {
        tree.node_mut(id).times = [(0, 0); 4];
    }
    tree
}

/// [`snapshot`] with the times of the last change of contents and of attributes.
pub fn snapshot_with_times(root: &OsPath) -> Tree {
    let (_, top) = node(root).unwrap();
    let mut tree = Tree::new(top);
    let mut met: HashMap<u64, NodeId> = HashMap::new();
    let mut pending = vec![(root.to_owned(), tree.root())];
    while let Some((dir, id)) = pending.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let entry = entry.unwrap();
            let (ino, node) = node(&entry.path()).unwrap();
            let is_dir = node.is_dir();
            let child = *met.entry(ino).or_insert_with(|| tree.add(node));
            if is_dir {
                pending.push((entry.path(), child));
            }
            tree.node_mut(id).entries.insert(entry.file_name().as_bytes().to_vec(), child);
        }
    }
    tree
}
