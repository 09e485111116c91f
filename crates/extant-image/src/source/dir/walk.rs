//! The parallel walk.

use std::ffi::{CStr, CString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use extant_sync::{Mutex, Rank, threads};
use rustc_hash::FxHashMap;
use rustix::fs::{
    Access, AtFlags, CWD, FileType, Mode, OFlags, RawDir, Statx, StatxFlags, StatxTimestamp,
    accessat, fstatfs, makedev, openat, readlinkat, statx,
};
use rustix::io::Errno;

use super::ScanOptions;
use super::contents::{DirContents, Seen};
use super::flags::{FlagReader, Kept};
use super::holes::data_runs;
use super::open::open_dir_beneath;
use super::owners::{UNMAPPED, Unmapped};
use super::queue::Queue;
use super::xattrs::XattrReader;
use crate::source::{Lost, Scanned, Skipped, SourceError, go_on};
use crate::tree::{DEPTH_MAX, DataRun, Kind, Node, NodeId, Time, TreeBuilder, TreeError, XattrSet};

/// Names handed to one worker at once.
const CHUNK_NAMES: usize = 2048;

/// Bytes of directory entries read by one system call.
const GETDENTS_BYTES: usize = 64 << 10;

/// Longest path for system calls by path; longer ones go through `/proc/self/fd`.
const PATH_MAX: usize = 4095;

/// Walks `root`; see [`scan_dir`](super::scan_dir).
pub(super) fn scan(root: &Path, options: &ScanOptions<'_>) -> Result<Scanned, SourceError> {
    let root_path = root.as_os_str().as_bytes().to_vec();
    let io_error = |doing, cause: Errno| SourceError::io(doing, &root_path, cause);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root_fd = openat(CWD, root, flags, Mode::empty()).map_err(|e| io_error("open", e))?;
    let stat = stat_fd(root_fd.as_fd()).map_err(|e| io_error("examine", e))?;
    let c_root = CString::new([&root_path[..], b"/."].concat())
        .map_err(|_| io_error("open", Errno::INVAL))?;
    let mut names = Vec::new();
    let xattrs = XattrReader::new()
        .read(&c_root, &mut names)
        .map_err(|e| io_error("read the extended attributes of", e))?;

    let mut builder = TreeBuilder::new(Node::new(Kind::Dir));
    let mut node = base_node(Kind::Dir, &stat);
    node.xattrs = builder.intern_xattrs(xattrs)?;
    if let Some(fakeroot) = &options.fakeroot {
        fakeroot
            .apply(inode_of(&stat), &mut node)
            .map_err(|what| not_faked(&root_path, b"", what))?;
    }
    let unmapped = Unmapped::here();
    let mut lost = Lost::default();
    names.iter().for_each(|what| lost.add(what, b""));
    if unmapped.has(&node) {
        lost.add(UNMAPPED, b"");
    }
    *builder.node_mut(NodeId::ROOT) = node;

    let walk = Walk {
        root: root_fd,
        root_path,
        root_dev: device(&stat),
        options,
        euid: rustix::process::geteuid().as_raw(),
        unmapped,
        collected: Mutex::new(
            Rank::Leaf,
            Collected {
                builder,
                links: FxHashMap::default(),
                seen: Vec::new(),
                skipped: Skipped::default(),
                lost,
            },
        ),
    };
    let threads = options.threads.get();
    let first =
        Job::List { node: NodeId::ROOT, path: Vec::new(), depth: 0, inode: inode_of(&stat) };
    let queue = Queue::new(threads, first);
    threads::workers("scan", threads, |_| {
        let mut worker = Worker::new(&walk, &queue);
        queue.run(|job| {
            go_on(options.cancel)?;
            worker.run(job)
        });
    })?;
    if let Some(error) = queue.into_failure() {
        return Err(error);
    }
    let Collected { builder, seen, skipped, lost, .. } = walk.collected.into_inner();
    let tree = builder.finish()?;
    let contents = Box::new(DirContents::new(walk.root, walk.root_path, seen));
    Ok(Scanned { tree, contents, skipped, lost })
}

/// State shared by all workers.
struct Walk<'a> {
    root: OwnedFd,
    root_path: Vec<u8>,
    root_dev: u64,
    options: &'a ScanOptions<'a>,
    euid: u32,
    unmapped: Unmapped,
    collected: Mutex<Collected>,
}

/// The files found so far.
struct Collected {
    builder: TreeBuilder,
    /// Nodes that may get another name: those with more than one link.
    links: FxHashMap<(u64, u64), NodeId>,
    seen: Vec<Seen>,
    skipped: Skipped,
    lost: Lost,
}

enum Job {
    /// List a directory that has a node already.
    List { node: NodeId, path: Vec<u8>, depth: usize, inode: (u64, u64) },
    /// Examine some names of an open directory.
    Examine { dir: Arc<Dir>, names: Names },
}

/// An open directory of the source.
struct Dir {
    fd: OwnedFd,
    node: NodeId,
    /// From the root, without a leading slash.
    path: Vec<u8>,
    depth: usize,
    inode: (u64, u64),
}

/// Names of one directory, each with its NUL, in one allocation.
#[derive(Default)]
struct Names {
    bytes: Vec<u8>,
    /// Inode number, and where the name starts and ends (past its NUL).
    list: Vec<(u64, u32, u32)>,
}

impl Names {
    fn push(&mut self, inode: u64, name: &CStr) {
        let start = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name.to_bytes_with_nul());
        self.list.push((inode, start, self.bytes.len() as u32));
    }

    fn iter(&self) -> impl Iterator<Item = &CStr> {
        self.list.iter().filter_map(|&(_, start, end)| {
            CStr::from_bytes_with_nul(self.bytes.get(start as usize..end as usize)?).ok()
        })
    }
}

/// One name, examined.
struct Found<'n> {
    name: &'n CStr,
    node: Node,
    /// Device and inode number, with the number of links.
    inode: (u64, u64),
    links: u32,
    xattrs: XattrSet,
    target: Option<CString>,
    runs: Option<Vec<DataRun>>,
    lost: Vec<Box<str>>,
}

/// Why a name is not in the tree.
enum Miss {
    /// The name is the one to leave out.
    Excluded,
    /// A call was refused.
    Refused { doing: &'static str, cause: Errno },
    /// What fakeroot saved is about another file.
    NotFaked(String),
    /// The file has contents, and its file system says that it has none.
    SizeUnknown,
}

struct Worker<'w> {
    walk: &'w Walk<'w>,
    queue: &'w Queue<Job, SourceError>,
    xattrs: XattrReader,
    flags: FlagReader,
    getdents: Box<[MaybeUninit<u8>]>,
    target: Vec<u8>,
}

impl<'w> Worker<'w> {
    fn new(walk: &'w Walk<'w>, queue: &'w Queue<Job, SourceError>) -> Worker<'w> {
        Worker {
            walk,
            queue,
            xattrs: XattrReader::new(),
            flags: FlagReader::default(),
            getdents: Box::new_uninit_slice(GETDENTS_BYTES),
            target: Vec::new(),
        }
    }

    fn run(&mut self, job: Job) -> Result<(), SourceError> {
        match job {
            Job::List { node, path, depth, inode } => self.list(node, path, depth, inode),
            Job::Examine { dir, names } => self.examine_all(&dir, &names),
        }
    }

    fn list(
        &mut self,
        node: NodeId,
        path: Vec<u8>,
        depth: usize,
        inode: (u64, u64),
    ) -> Result<(), SourceError> {
        if depth > DEPTH_MAX {
            return Err(TreeError::TooDeep { path: path.escape_ascii().to_string() }.into());
        }
        let fd = match open_dir_beneath(self.walk.root.as_fd(), &path) {
            Ok(fd) => fd,
            Err(cause) => return self.walk.refused("open", &path, cause),
        };
        match stat_fd(fd.as_fd()) {
            Ok(stat) if inode_of(&stat) == inode => {}
            Ok(_) => return Err(self.walk.changed(&path, "another directory has its name now")),
            Err(cause) => return self.walk.refused("examine", &path, cause),
        }
        if self.flags.is_worth_asking(inode.0) {
            let kept = self.flags.read(fd.as_fd(), Kind::Dir, inode.0);
            self.walk.keep_flags(node, &path, &kept);
        }
        let dir = Arc::new(Dir { fd, node, path, depth, inode });
        let mut names = Names::default();
        let mut buffer = std::mem::take(&mut self.getdents);
        let mut listing = RawDir::new(&dir.fd, &mut buffer);
        let mut outcome = Ok(());
        while let Some(entry) = listing.next() {
            let entry = match entry {
                Ok(entry) => entry,
                Err(cause) => {
                    outcome = self.walk.refused("list", &dir.path, cause);
                    break;
                }
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            names.push(entry.ino(), name);
            if names.list.len() == CHUNK_NAMES {
                let names = std::mem::take(&mut names);
                self.queue.push([Job::Examine { dir: Arc::clone(&dir), names }].into_iter());
            }
        }
        self.getdents = buffer;
        outcome?;
        // In order of inode numbers, where on-disk file systems keep neighbours together: far
        // fewer reads when nothing is cached.
        names.list.sort_unstable();
        self.examine_all(&dir, &names)
    }

    fn examine_all(&mut self, dir: &Dir, names: &Names) -> Result<(), SourceError> {
        let mut path = PathPrefix::new(self.walk, dir);
        let mut found = Vec::with_capacity(names.list.len());
        for name in names.iter() {
            match self.examine(dir, name, &mut path) {
                Ok(one) => found.push(one),
                Err(Miss::Excluded) => {}
                Err(Miss::Refused { doing, cause }) => {
                    self.walk.refused(doing, &join(&dir.path, name.to_bytes()), cause)?;
                }
                Err(Miss::NotFaked(what)) => {
                    let path = join(&dir.path, name.to_bytes());
                    return Err(not_faked(&self.walk.root_path, &path, what));
                }
                Err(Miss::SizeUnknown) => {
                    let path = join(&dir.path, name.to_bytes());
                    let cause = io::Error::other("it has contents, but gives its size as 0");
                    self.walk.left_out("copy", &path, cause)?;
                }
            }
        }
        self.check_by_path(dir, &path)?;
        let below = self.walk.collect(dir, found)?;
        self.queue.push(below.into_iter());
        Ok(())
    }

    /// Makes sure that the path which the extended attributes were asked by still leads to the
    /// open directory.
    fn check_by_path(&self, dir: &Dir, path: &PathPrefix) -> Result<(), SourceError> {
        let stat = match path.dir() {
            Some(by_path) => statx(CWD, by_path, AtFlags::empty(), StatxFlags::BASIC_STATS),
            None => return Ok(()),
        };
        match stat {
            Ok(stat) if inode_of(&stat) == dir.inode => Ok(()),
            _ => Err(self.walk.changed(&dir.path, "another directory has its name now")),
        }
    }

    fn examine<'n>(
        &mut self,
        dir: &Dir,
        name: &'n CStr,
        path: &mut PathPrefix,
    ) -> Result<Found<'n>, Miss> {
        let refused = |doing| move |cause| Miss::Refused { doing, cause };
        let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
        let stat =
            statx(&dir.fd, name, flags, StatxFlags::BASIC_STATS).map_err(refused("examine"))?;
        let inode = inode_of(&stat);
        let kind = kind_of(&stat).ok_or(Errno::INVAL).map_err(refused("tell the kind of"))?;
        if self.walk.options.exclude_inode == Some(inode) && kind != Kind::Dir {
            return Err(Miss::Excluded);
        }
        let mut node = base_node(kind, &stat);
        let mut target = None;
        let mut runs = None;
        let mut lost = Vec::new();
        if let Some(fakeroot) = &self.walk.options.fakeroot {
            fakeroot.apply(inode, &mut node).map_err(Miss::NotFaked)?;
        }
        if self.walk.unmapped.has(&node) {
            lost.push(UNMAPPED.into());
        }
        let xattrs = self
            .xattrs
            .read(path.with(name), &mut lost)
            .map_err(refused("read the extended attributes of"))?;
        match node.kind {
            Kind::File => {
                if self.is_doubtful(&stat, &xattrs) {
                    accessat(&dir.fd, name, Access::READ_OK, AtFlags::EACCESS)
                        .map_err(refused("read"))?;
                }
                if stat.stx_size == 0 && !sizes_are_true(dir, &stat) {
                    let some = starts_with_a_byte(dir.fd.as_fd(), name).map_err(refused("read"))?;
                    if some {
                        return Err(Miss::SizeUnknown);
                    }
                }
                let has_holes = stat.stx_blocks.saturating_mul(512) < stat.stx_size;
                let mut may_have_flags = self.flags.is_worth_asking(inode.0);
                // A file may be a mount of its own, of another file system than its directory's.
                if may_have_flags
                    && inode.0 == dir.inode.0
                    && let Some(kept) = self.flags.read_by_name(dir.fd.as_fd(), name, inode.0)
                {
                    (node.flags, node.project) = (kept.flags, kept.project);
                    lost.extend(kept.lost);
                    may_have_flags = false;
                }
                if has_holes || may_have_flags {
                    let flags = OFlags::RDONLY
                        | OFlags::NOFOLLOW
                        | OFlags::NONBLOCK
                        | OFlags::NOCTTY
                        | OFlags::CLOEXEC;
                    let file =
                        openat(&dir.fd, name, flags, Mode::empty()).map_err(refused("open"))?;
                    if may_have_flags {
                        let kept = self.flags.read(file.as_fd(), Kind::File, inode.0);
                        (node.flags, node.project) = (kept.flags, kept.project);
                        lost.extend(kept.lost);
                    }
                    if has_holes {
                        runs = data_runs(file.as_fd(), stat.stx_size)
                            .map_err(refused("find the holes of"))?;
                    }
                }
            }
            Kind::Symlink => {
                let text = readlinkat(&dir.fd, name, std::mem::take(&mut self.target))
                    .map_err(refused("read the link"))?;
                node.size = text.as_bytes().len() as u64;
                target = Some(text);
            }
            _ => {}
        }
        Ok(Found { name, node, inode, links: stat.stx_nlink, xattrs, target, runs, lost })
    }

    /// Returns whether mode and owner leave open that this process may read the file: the kernel is
    /// asked only then.
    fn is_doubtful(&self, stat: &Statx, xattrs: &XattrSet) -> bool {
        if self.walk.euid == stat.stx_uid && stat.stx_mode & 0o400 != 0 {
            return false;
        }
        let acl = xattrs.iter().any(|(name, _)| &**name == b"system.posix_acl_access");
        acl || stat.stx_mode & 0o444 != 0o444
    }
}

impl Walk<'_> {
    /// Adds what was found in `dir`; returns the directories among it.
    fn collect(&self, dir: &Dir, found: Vec<Found<'_>>) -> Result<Vec<Job>, SourceError> {
        let mut below = Vec::new();
        let mut collected = self.collected.lock();
        let Collected { builder, links, seen, lost, .. } = &mut *collected;
        for one in found {
            let name = one.name.to_bytes();
            let is_dir = one.node.kind == Kind::Dir;
            let linked = !is_dir && one.links > 1;
            if linked && let Some(&node) = links.get(&one.inode) {
                builder.link(dir.node, name, node)?;
                continue;
            }
            if !one.lost.is_empty() {
                let path = join(&dir.path, name);
                one.lost.iter().for_each(|what| lost.add(what, &path));
            }
            let mut node = one.node;
            node.xattrs = builder.intern_xattrs(one.xattrs)?;
            if let Some(target) = &one.target {
                node.target = builder.store_target(target.as_bytes())?;
            }
            if let Some(runs) = one.runs {
                node.runs = builder.store_runs(runs)?;
            }
            if node.kind == Kind::File {
                node.locator = seen.len() as u64;
                seen.push(Seen::new(one.inode, node.mtime, node.ctime));
            }
            let id = builder.add(node)?;
            builder.link(dir.node, name, id)?;
            if linked {
                links.insert(one.inode, id);
            }
            let descend = !self.options.one_file_system || one.inode.0 == self.root_dev;
            if is_dir && descend {
                below.push(Job::List {
                    node: id,
                    path: join(&dir.path, name),
                    depth: dir.depth + 1,
                    inode: one.inode,
                });
            }
        }
        Ok(below)
    }

    /// Gives a directory its flags.
    fn keep_flags(&self, dir: NodeId, path: &[u8], kept: &Kept) {
        if kept.flags == 0 && kept.project == 0 && kept.lost.is_empty() {
            return;
        }
        let mut collected = self.collected.lock();
        let node = collected.builder.node_mut(dir);
        (node.flags, node.project) = (kept.flags, kept.project);
        kept.lost.iter().for_each(|what| collected.lost.add(what, path));
    }

    /// Counts what cannot be read, or makes it an error.
    fn refused(&self, doing: &'static str, path: &[u8], cause: Errno) -> Result<(), SourceError> {
        match cause {
            Errno::NOMEM | Errno::MFILE | Errno::NFILE => {
                Err(SourceError::io(doing, &join(&self.root_path, path), cause))
            }
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE | Errno::NODATA
                if !self.options.ignore_unreadable =>
            {
                Err(self.changed(path, &format!("cannot {doing} it: {cause}")))
            }
            _ => self.left_out(doing, path, cause.into()),
        }
    }

    /// Counts a file that is left out, or makes it an error.
    fn left_out(
        &self,
        doing: &'static str,
        path: &[u8],
        reason: io::Error,
    ) -> Result<(), SourceError> {
        let full = join(&self.root_path, path);
        if !self.options.ignore_unreadable {
            return Err(SourceError::io(doing, &full, reason));
        }
        let line = format!("cannot {doing} \"{}\": {reason}", full.escape_ascii());
        self.collected.lock().skipped.add(line);
        Ok(())
    }

    fn changed(&self, path: &[u8], what: &str) -> SourceError {
        SourceError::Changed {
            path: join(&self.root_path, path).escape_ascii().to_string(),
            what: what.into(),
        }
    }
}

/// What fakeroot saved is about something else than the file `path` below `root`.
fn not_faked(root: &[u8], path: &[u8], what: String) -> SourceError {
    SourceError::Fakeroot { path: join(root, path).escape_ascii().to_string(), what }
}

/// A buffer that holds the path of one directory, to which names are added.
struct PathPrefix {
    buffer: Vec<u8>,
    /// Length of the directory's path with its slash.
    len: usize,
    /// The path was too long and leads through `/proc/self/fd` instead.
    through_proc: bool,
}

impl PathPrefix {
    fn new(walk: &Walk<'_>, dir: &Dir) -> PathPrefix {
        let mut buffer = join(&walk.root_path, &dir.path);
        buffer.push(b'/');
        // Room for one name of 255 bytes.
        let through_proc = buffer.len() + 255 > PATH_MAX;
        if through_proc {
            buffer = format!("/proc/self/fd/{}/", dir.fd.as_raw_fd()).into_bytes();
        }
        let len = buffer.len();
        PathPrefix { buffer, len, through_proc }
    }

    /// The path of `name`.
    fn with(&mut self, name: &CStr) -> &CStr {
        self.buffer.truncate(self.len);
        self.buffer.extend_from_slice(name.to_bytes_with_nul());
        CStr::from_bytes_with_nul(&self.buffer).unwrap_or(c"")
    }

    /// The directory's own path, when it can differ from the open directory.
    fn dir(&self) -> Option<&[u8]> {
        if self.through_proc { None } else { self.buffer.get(..self.len) }
    }
}

fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(dir.len() + 1 + name.len());
    path.extend_from_slice(dir);
    if !dir.is_empty() && !name.is_empty() && !dir.ends_with(b"/") {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

fn stat_fd(fd: BorrowedFd<'_>) -> Result<Statx, Errno> {
    statx(fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
}

fn device(stat: &Statx) -> u64 {
    makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

fn inode_of(stat: &Statx) -> (u64, u64) {
    (device(stat), stat.stx_ino)
}

pub(super) fn time_of(time: StatxTimestamp) -> Time {
    Time { sec: time.tv_sec, nsec: time.tv_nsec }
}

fn kind_of(stat: &Statx) -> Option<Kind> {
    match FileType::from_raw_mode(stat.stx_mode.into()) {
        FileType::RegularFile => Some(Kind::File),
        FileType::Directory => Some(Kind::Dir),
        FileType::Symlink => Some(Kind::Symlink),
        FileType::CharacterDevice => Some(Kind::Char),
        FileType::BlockDevice => Some(Kind::Block),
        FileType::Fifo => Some(Kind::Fifo),
        FileType::Socket => Some(Kind::Socket),
        FileType::Unknown => None,
    }
}

/// Returns whether a size of 0 is reliable. It is not in `/proc` and its like, whose files are
/// generated when they are read; some FUSE file systems do the same. Those have no block device,
/// and neither have a few that keep true sizes and may hold many empty files.
fn sizes_are_true(dir: &Dir, stat: &Statx) -> bool {
    const TMPFS: u64 = 0x0102_1994;
    const BTRFS: u64 = 0x9123_683e;
    const OVERLAY: u64 = 0x794c_7630;
    if stat.stx_dev_major != 0 {
        return true;
    }
    // A file may be a mount of its own, of another kind than its directory.
    device(stat) == dir.inode.0
        && fstatfs(&dir.fd).is_ok_and(|fs| [TMPFS, BTRFS, OVERLAY].contains(&(fs.f_type as u64)))
}

/// Returns whether the file `name` in `dir` has a first byte to read.
fn starts_with_a_byte(dir: BorrowedFd<'_>, name: &CStr) -> Result<bool, Errno> {
    let flags = OFlags::RDONLY
        | OFlags::NOFOLLOW
        | OFlags::NONBLOCK
        | OFlags::NOCTTY
        | OFlags::CLOEXEC
        | OFlags::NOATIME;
    let file = match openat(dir, name, flags, Mode::empty()) {
        // Only the owner and root may ask for it.
        Err(Errno::PERM) => openat(dir, name, flags - OFlags::NOATIME, Mode::empty()),
        result => result,
    }?;
    // Not positional: some such files cannot seek.
    rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut [0u8; 1])).map(|count| count > 0)
}

/// The node that `stat` describes, without what other calls find out.
fn base_node(kind: Kind, stat: &Statx) -> Node {
    let mut node = Node::new(kind);
    node.mode = stat.stx_mode & 0o7777;
    node.uid = stat.stx_uid;
    node.gid = stat.stx_gid;
    node.mtime = time_of(stat.stx_mtime);
    node.atime = time_of(stat.stx_atime);
    node.ctime = time_of(stat.stx_ctime);
    match kind {
        Kind::File => node.size = stat.stx_size,
        Kind::Char | Kind::Block => node.rdev = (stat.stx_rdev_major, stat.stx_rdev_minor),
        _ => {}
    }
    node
}
