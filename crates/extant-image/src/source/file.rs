//! One file of the host as source.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::dir::{read_flags, read_xattrs};
use crate::source::{ContentReader, Contents, Lost, Scanned, Skipped, SourceError};
use crate::tree::{Kind, Node, NodeId, Time, Tree, TreeBuilder};

/// A tree of a root directory and in it the regular file `path` of the host, called `name`. A symbolic link is followed.
///
/// # Errors
///
/// [`SourceError::Io`] when it cannot be opened or is of another kind, [`SourceError::Tree`] when its name is none.
pub(super) fn scan_file(path: &Path, name: &[u8]) -> Result<Scanned, SourceError> {
    let bytes = path.as_os_str().as_bytes();
    let failed = |doing, cause: io::Error| SourceError::io(doing, bytes, cause);
    // NONBLOCK: opening a fifo does not wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file: File =
        openat(CWD, path, flags, Mode::empty()).map_err(|e| failed("open", e.into()))?.into();
    let metadata = file.metadata().map_err(|e| failed("examine", e))?;
    if !metadata.is_file() {
        return Err(failed("add", io::Error::other("it is no regular file and no directory")));
    }
    // By its descriptor: what the name means may change.
    let link =
        CString::new(path.canonicalize().map_err(|e| failed("examine", e))?.as_os_str().as_bytes())
            .map_err(|e| failed("examine", e.into()))?;
    let mut names = Vec::new();
    let xattrs = read_xattrs(&link, &mut names)
        .map_err(|e| failed("read the extended attributes of", e.into()))?;
    let kept = read_flags(file.as_fd());
    let mut lost = Lost::default();
    names.iter().chain(&kept.lost).for_each(|what| lost.add(what, bytes));
    let time = |sec, nsec: i64| Time { sec, nsec: u32::try_from(nsec).unwrap_or(0) };
    let mut node = Node::new(Kind::File);
    node.mode = (metadata.permissions().mode() & 0o7777) as u16;
    node.uid = metadata.uid();
    node.gid = metadata.gid();
    node.mtime = time(metadata.mtime(), metadata.mtime_nsec());
    node.atime = time(metadata.atime(), metadata.atime_nsec());
    node.ctime = time(metadata.ctime(), metadata.ctime_nsec());
    node.size = metadata.len();
    (node.flags, node.project) = (kept.flags, kept.project);
    let mut root = Node::new(Kind::Dir);
    root.mode = 0o755;
    (root.mtime, root.atime, root.ctime) = (node.mtime, node.mtime, node.mtime);
    let mut builder = TreeBuilder::new(root);
    node.xattrs = builder.intern_xattrs(xattrs)?;
    let stamp = Stamp::of(&metadata);
    let id = builder.add(node)?;
    builder.link(NodeId::ROOT, name, id)?;
    let contents = FileContents { file, path: bytes.to_vec(), stamp };
    let tree = builder.finish()?;
    Ok(Scanned { tree, contents: Box::new(contents), skipped: Skipped::default(), lost })
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    size: u64,
    mtime: (i64, i64),
    ctime: (i64, i64),
}

impl Stamp {
    fn of(metadata: &std::fs::Metadata) -> Stamp {
        Stamp {
            size: metadata.len(),
            mtime: (metadata.mtime(), metadata.mtime_nsec()),
            ctime: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

struct FileContents {
    file: File,
    path: Vec<u8>,
    stamp: Stamp,
}

impl Contents for FileContents {
    fn reader(&self) -> Box<dyn ContentReader + '_> {
        Box::new(FileReader(self))
    }
}

struct FileReader<'a>(&'a FileContents);

impl ContentReader for FileReader<'_> {
    fn read(
        &mut self,
        _tree: &Tree,
        _node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), SourceError> {
        match self.0.file.read_exact_at(buf, offset) {
            Ok(()) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Err(SourceError::Changed {
                path: self.0.path.escape_ascii().to_string(),
                what: format!("it had {} bytes, now it has fewer", self.0.stamp.size),
            }),
            Err(e) => Err(SourceError::io("read", &self.0.path, e)),
        }
    }

    fn finish(&mut self, _tree: &Tree) -> Result<(), SourceError> {
        let metadata = self.0.file.metadata();
        let metadata = metadata.map_err(|e| SourceError::io("examine", &self.0.path, e))?;
        if Stamp::of(&metadata) == self.0.stamp {
            return Ok(());
        }
        Err(SourceError::Changed {
            path: self.0.path.escape_ascii().to_string(),
            what: "its size or times are others now".into(),
        })
    }
}
