//! Walks over all files below a directory.

use std::collections::VecDeque;
use std::fmt;
use std::ops::Range;

use rustc_hash::FxHashSet;

use crate::dir::{DirEntry, ReadDir};
use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::near::Scout;

/// Deepest level that a walk enters. A single path on Linux can name about half as many levels.
pub const DEPTH_MAX: usize = 4096;

/// Files that a walk is ahead of its caller at most.
const AHEAD_MAX: usize = 512;

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
/// [`sorted`](Self::sorted) the names of the directories on the current path; in an image behind
/// a server also four bytes for each of some directories ahead.
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
    /// Goes ahead in images that are far away.
    scout: Option<Scout>,
    /// Whether contents are fetched ahead, too, and the items whose contents are here.
    contents: bool,
    fetched: VecDeque<Result<WalkEntry, WalkError>>,
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
            scout: Scout::of(start.fs()),
            contents: false,
            fetched: VecDeque::new(),
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

    /// Sets whether the contents of files are read as they are met. In an image behind a server, the walk then goes
    /// ahead by a few hundred files, and fetches what they consist of together.
    pub fn contents(mut self, contents: bool) -> Walk {
        self.contents = contents && self.scout.is_some();
        self
    }

    /// Goes ahead, and fetches contents.
    fn fetch(&mut self) {
        let mut parts: Vec<(Inode, Range<u64>)> = Vec::new();
        let mut left = 0;
        while self.fetched.len() < AHEAD_MAX
            && let Some(item) = self.step()
        {
            let inode = item.as_ref().ok().map(|entry| entry.inode.clone());
            self.fetched.push_back(item);
            let Some(inode) = inode else { continue };
            if parts.is_empty() {
                left = inode.fs().near_bytes() / 2;
            }
            let size = if inode.is_dir() { 0 } else { inode.size() };
            let fits = size.min(left);
            parts.push((inode, 0..fits));
            if fits < size {
                break;
            }
            left -= fits;
        }
        if let Some((inode, _)) = parts.first() {
            inode.fs().bring_near(&parts);
        }
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
        if let Some(scout) = &mut self.scout {
            scout.enter(inode, self.depth_max.min(DEPTH_MAX) - depth);
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
        if !self.contents {
            return self.step();
        }
        if self.fetched.is_empty() {
            self.fetch();
        }
        self.fetched.pop_front()
    }
}

impl Walk {
    fn step(&mut self) -> Option<Result<WalkEntry, WalkError>> {
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
