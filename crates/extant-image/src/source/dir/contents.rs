//! Reading the files of a scanned directory.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxFlags, makedev, openat, statx};
use rustix::io::{Errno, pread};

use super::open::open_dir_beneath;
use super::walk::time_of;
use crate::source::{ContentReader, Contents, SourceError};
use crate::tree::{Kind, NodeId, Time, Tree};

/// State of a file when it was scanned. It is kept beside the tree, whose times and owners may have
/// been changed on request since; 40 bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    inode: u64,
    mtime_sec: i64,
    ctime_sec: i64,
    mtime_nsec: u32,
    ctime_nsec: u32,
    /// Linux has 32-bit device numbers in the kernel.
    device: u32,
}

const _: () = assert!(size_of::<Seen>() == 40);

impl Seen {
    pub(super) fn new((device, inode): (u64, u64), mtime: Time, ctime: Time) -> Seen {
        Seen {
            inode,
            mtime_sec: mtime.sec,
            ctime_sec: ctime.sec,
            mtime_nsec: mtime.nsec,
            ctime_nsec: ctime.nsec,
            device: device as u32,
        }
    }

    /// Returns how the file `now` differs from what was seen.
    fn difference(&self, size: u64, now: &Statx) -> Option<String> {
        let device = makedev(now.stx_dev_major, now.stx_dev_minor) as u32;
        if (self.device, self.inode) != (device, now.stx_ino) {
            return Some(format!("it was inode {}, now it is inode {}", self.inode, now.stx_ino));
        }
        if size != now.stx_size {
            return Some(format!("it had {size} bytes, now it has {}", now.stx_size));
        }
        let times = [
            ("contents", self.mtime_sec, self.mtime_nsec, time_of(now.stx_mtime)),
            ("attributes", self.ctime_sec, self.ctime_nsec, time_of(now.stx_ctime)),
        ];
        let (what, sec, nsec, now) =
            times.into_iter().find(|&(_, sec, nsec, now)| now != Time { sec, nsec })?;
        Some(format!("its {what} were of {sec}.{nsec:09}, now of {}.{:09}", now.sec, now.nsec))
    }
}

/// Contents of the files below an open directory.
pub(super) struct DirContents {
    root: OwnedFd,
    /// For messages.
    root_path: Vec<u8>,
    /// By [`Node::locator`](crate::tree::Node::locator).
    seen: Vec<Seen>,
}

impl DirContents {
    pub(super) fn new(root: OwnedFd, root_path: Vec<u8>, mut seen: Vec<Seen>) -> DirContents {
        seen.shrink_to_fit();
        DirContents { root, root_path, seen }
    }

    fn path(&self, tree: &Tree, node: NodeId) -> Vec<u8> {
        let mut path = self.root_path.clone();
        if !path.ends_with(b"/") {
            path.push(b'/');
        }
        path.extend_from_slice(&tree.path(node));
        path
    }

    fn error(&self, tree: &Tree, node: NodeId, doing: &'static str, cause: Errno) -> SourceError {
        match cause {
            // All but the first two: something that is no file has taken its place.
            Errno::NOENT
            | Errno::STALE
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NXIO
            | Errno::SPIPE
            | Errno::ISDIR => self.changed(tree, node, format!("cannot {doing} it: {cause}")),
            _ => SourceError::io(doing, &self.path(tree, node), cause),
        }
    }

    fn changed(&self, tree: &Tree, node: NodeId, what: String) -> SourceError {
        SourceError::Changed { path: self.path(tree, node).escape_ascii().to_string(), what }
    }
}

impl Contents for DirContents {
    fn reader(&self) -> Box<dyn ContentReader + '_> {
        Box::new(DirReader { source: self, dir: None, file: None, keep_atime: true })
    }
}

/// Reads for one thread: keeps one directory and one file open.
struct DirReader<'a> {
    source: &'a DirContents,
    dir: Option<(NodeId, OwnedFd)>,
    file: Option<(NodeId, OwnedFd)>,
    /// Whether opening with `O_NOATIME` has been allowed in this directory.
    keep_atime: bool,
}

impl ContentReader for DirReader<'_> {
    fn read(
        &mut self,
        tree: &Tree,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), SourceError> {
        self.open_once(tree, node)?;
        let Some((_, file)) = &self.file else { return Ok(()) };
        let mut done = 0;
        while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let at = offset.saturating_add(done as u64);
            match pread(file, rest, at) {
                Ok(0) => {
                    let size = tree.node(node).size;
                    let what = format!("it had {size} bytes, now it ends at {at}");
                    return Err(self.source.changed(tree, node, what));
                }
                Ok(count) => done += count,
                Err(Errno::INTR) => {}
                Err(cause) => return Err(self.source.error(tree, node, "read", cause)),
            }
        }
        Ok(())
    }

    fn file(&mut self, tree: &Tree, node: NodeId) -> Result<Option<BorrowedFd<'_>>, SourceError> {
        self.open_once(tree, node)?;
        Ok(self.file.as_ref().map(|(_, file)| file.as_fd()))
    }

    fn finish(&mut self, tree: &Tree) -> Result<(), SourceError> {
        let Some((node, file)) = self.file.take() else { return Ok(()) };
        let now = statx(&file, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)
            .map_err(|cause| self.source.error(tree, node, "examine", cause))?;
        let scanned = tree.node(node);
        let seen = usize::try_from(scanned.locator).ok().and_then(|at| self.source.seen.get(at));
        let Some(seen) = seen else {
            return Err(self.source.changed(tree, node, "it was never scanned".into()));
        };
        match seen.difference(scanned.size, &now) {
            None => Ok(()),
            Some(what) => Err(self.source.changed(tree, node, what)),
        }
    }
}

impl DirReader<'_> {
    /// Has `node` open, and no other file.
    fn open_once(&mut self, tree: &Tree, node: NodeId) -> Result<(), SourceError> {
        if self.file.as_ref().is_none_or(|(open, _)| *open != node) {
            self.finish(tree)?;
            let file = self.open(tree, node)?;
            self.file = Some((node, file));
        }
        Ok(())
    }

    fn open(&mut self, tree: &Tree, node: NodeId) -> Result<OwnedFd, SourceError> {
        let failed = |cause| self.source.error(tree, node, "open", cause);
        let scanned = tree.node(node);
        let entry = tree.entries().get(scanned.first_entry as usize);
        let Some(entry) = entry.filter(|_| scanned.kind == Kind::File) else {
            return Err(failed(Errno::INVAL));
        };
        let dir = match self.dir.take() {
            Some((open, dir)) if open == entry.parent => dir,
            _ => {
                self.keep_atime = true;
                open_dir_beneath(self.source.root.as_fd(), &tree.path(entry.parent))
                    .map_err(failed)?
            }
        };
        // NONBLOCK and NOCTTY: harmless for a file, and if a fifo or terminal has taken its
        // place, opening does not wait or attach.
        let flags =
            OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let name = tree.name(entry);
        let mut file = Err(Errno::PERM);
        if self.keep_atime {
            file = openat(&dir, name, flags | OFlags::NOATIME, Mode::empty());
            // Only the owner and root may ask for it.
            self.keep_atime = !matches!(file, Err(Errno::PERM));
        }
        if !self.keep_atime {
            file = openat(&dir, name, flags, Mode::empty());
        }
        let file = file.map_err(failed)?;
        self.dir = Some((entry.parent, dir));
        Ok(file)
    }
}
