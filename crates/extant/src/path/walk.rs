//! Walks over all files below a directory.

use std::fmt;

use rustc_hash::FxHashSet;

use crate::dir::{DirEntry, ReadDir};
use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;

/// Deepest level that a walk enters. A single path on Linux can name about half as many levels.
pub const DEPTH_MAX: usize = 4096;

/// A file met on a walk.
#[derive(Clone, Debug)]
pub struct WalkEntry {
    path: Vec<u8>,
    depth: usize,
    inode: Inode,
}

impl WalkEntry {
    /// Returns the path: that with which the walk was started, followed by the names from there on.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns the last name of the path; the whole path for the start of the walk.
    pub fn name(&self) -> &[u8] {
        match self.path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) if self.depth > 0 => &self.path[slash + 1..],
            _ => &self.path,
        }
    }

    /// Returns the depth: 0 for the start, 1 for its entries, and so on.
    pub fn depth(&self) -> usize {
        self.depth
    }

    /// Returns the file's inode.
    pub fn inode(&self) -> &Inode {
        &self.inode
    }
}

/// An entry or a directory that a walk could not read. The walk continues after it.
#[derive(Debug)]
pub struct WalkError {
    /// Path of the entry, or of the directory with unreadable entries.
    pub path: Vec<u8>,
    /// The error.
    pub error: FsError,
}

impl fmt::Display for WalkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", String::from_utf8_lossy(&self.path), self.error)
    }
}

impl std::error::Error for WalkError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// A walk in progress; see [`Fs::walk`](crate::Fs::walk).
///
/// # Bounds
///
/// Each directory is entered at most once, even in a damaged image, and none deeper than
/// [`DEPTH_MAX`]; a directory met again or too deep is an error item. Memory: one bit per
/// directory, a few hundred bytes per level, one directory block at a time, or with
/// [`sorted`](Self::sorted) the names of the directories on the current path.
#[derive(Debug)]
pub struct Walk {
    start: Option<Inode>,
    /// The error of listing the directory that was reported last.
    failed: Option<WalkError>,
    path: Vec<u8>,
    levels: Vec<Level>,
    entered: FxHashSet<u32>,
    sorted: bool,
    depth_max: usize,
}

#[derive(Debug)]
struct Level {
    entries: Entries,
    /// Length of the directory's own path.
    path_len: usize,
}

#[derive(Debug)]
enum Entries {
    Stored(ReadDir),
    Sorted(std::vec::IntoIter<Result<DirEntry>>),
}

impl Walk {
    pub(super) fn new(path: &[u8], start: Inode) -> Walk {
        Walk {
            start: Some(start),
            failed: None,
            path: path.to_vec(),
            levels: Vec::new(),
            entered: FxHashSet::default(),
            sorted: false,
            depth_max: usize::MAX,
        }
    }

    /// Sets whether the entries of each directory are visited in the order of their bytes instead
    /// of stored order. Needs memory for the names of one directory per level.
    pub fn sorted(mut self, sorted: bool) -> Walk {
        self.sorted = sorted;
        self
    }

    /// Sets the depth below which the walk does not descend; 0 reports only the start.
    pub fn max_depth(mut self, depth: usize) -> Walk {
        self.depth_max = depth;
        self
    }

    /// Prepares to list `inode`, which the walk just reported at `depth`.
    fn enter(&mut self, inode: &Inode, depth: usize) -> Result<()> {
        if !inode.is_dir() || depth >= self.depth_max {
            return Ok(());
        }
        if depth >= DEPTH_MAX {
            return Err(FsError::TooDeep { ino: inode.ino(), depth_max: DEPTH_MAX });
        }
        if !self.entered.insert(inode.ino().0) {
            let fault = Fault::Rule("it has a second name in the tree");
            return Err(FsError::corrupt("directory", inode.ino(), None, fault));
        }
        // The parent keeps its position but not its buffer, so that a deep tree needs one buffer
        // only.
        if let Some(Level { entries: Entries::Stored(parent), .. }) = self.levels.last_mut() {
            parent.release_buffer();
        }
        let entries = inode.read_dir()?;
        let entries = if self.sorted {
            let mut all: Vec<Result<DirEntry>> = entries.collect();
            // Errors come first, in the order met, then names.
            all.sort_by(|a, b| match (a, b) {
                (Ok(a), Ok(b)) => a.name().cmp(b.name()),
                (a, b) => a.is_ok().cmp(&b.is_ok()),
            });
            Entries::Sorted(all.into_iter())
        } else {
            Entries::Stored(entries)
        };
        self.levels.push(Level { entries, path_len: self.path.len() });
        Ok(())
    }

    fn error(&self, error: FsError) -> WalkError {
        WalkError { path: self.path.clone(), error }
    }

    /// Reports `inode` at the current path, and remembers to list it if it is a directory. A
    /// failure of that is the next item.
    fn report(&mut self, inode: Inode) -> WalkEntry {
        let depth = self.levels.len();
        if let Err(error) = self.enter(&inode, depth) {
            self.failed = Some(self.error(error));
        }
        WalkEntry { path: self.path.clone(), depth, inode }
    }
}

impl Iterator for Walk {
    type Item = Result<WalkEntry, WalkError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(start) = self.start.take() {
            return Some(Ok(self.report(start)));
        }
        if let Some(failed) = self.failed.take() {
            return Some(Err(failed));
        }
        loop {
            let level = self.levels.last_mut()?;
            self.path.truncate(level.path_len);
            let next = match &mut level.entries {
                Entries::Stored(entries) => entries.next(),
                Entries::Sorted(entries) => entries.next(),
            };
            match next {
                None => {
                    self.levels.pop();
                }
                Some(Err(error)) => return Some(Err(self.error(error))),
                Some(Ok(entry)) => {
                    if self.path.last() != Some(&b'/') {
                        self.path.push(b'/');
                    }
                    self.path.extend_from_slice(entry.name());
                    return Some(match entry.inode() {
                        Ok(inode) => Ok(self.report(inode)),
                        Err(error) => Err(self.error(error)),
                    });
                }
            }
        }
    }
}
