//! Resolving a path to an inode.

use crate::error::{Fault, FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::limits::SYMLINKS_MAX;

/// Treatment of a symbolic link in the last place.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    Follow,
    Keep,
}

/// The result of resolving a path.
pub(super) struct Resolved {
    pub(super) inode: Inode,
    /// Names from the root to the inode; the root itself has none.
    names: Vec<Vec<u8>>,
}

impl Resolved {
    /// Returns the absolute path.
    pub(super) fn path(&self) -> Vec<u8> {
        if self.names.is_empty() {
            return b"/".to_vec();
        }
        let mut path = Vec::new();
        for name in &self.names {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        path
    }
}

/// Resolves `path` from the root of `fs`.
///
/// The work is bounded by the length of the path and of at most [`SYMLINKS_MAX`] link targets, each
/// at most one block.
pub(super) fn resolve(fs: &Fs, path: &[u8], last: Last) -> Result<Resolved> {
    resolve_checked(fs, path, last, |_| Ok(()))
}

/// Resolves a path like [`resolve`], calling `may_search` before each lookup in a directory.
pub(super) fn resolve_checked(
    fs: &Fs,
    path: &[u8],
    last: Last,
    may_search: impl Fn(&Inode) -> Result<()>,
) -> Result<Resolved> {
    let root = fs.root()?;
    if path.is_empty() {
        return Err(FsError::NotFound { dir: root.ino(), at: None }.in_path(path, b""));
    }
    // `..` goes back along the directories that were visited, never by the stored entry, which a
    // hostile image may set to anything.
    let mut way: Vec<(Vec<u8>, Inode)> = Vec::new();
    let mut rest = path.to_vec();
    let mut at = 0;
    let mut links = 0;
    loop {
        at += rest.iter().skip(at).take_while(|byte| **byte == b'/').count();
        if at >= rest.len() {
            break;
        }
        let len = rest.iter().skip(at).take_while(|byte| **byte != b'/').count();
        let end = at + len;
        let name = &rest[at..end];
        let dir = way.last().map_or(&root, |(_, inode)| inode);
        match name {
            b"." | b".." if !dir.is_dir() => {
                let above = way.last().map_or(&b"/"[..], |(name, _)| name);
                return Err(
                    FsError::NotADirectory { ino: dir.ino(), at: None }.in_path(path, above)
                );
            }
            b"." => may_search(dir)?,
            b".." => {
                may_search(dir)?;
                way.pop();
            }
            _ => {
                if dir.is_dir() {
                    may_search(dir)?;
                }
                let child = dir.lookup(name).map_err(|error| match error {
                    FsError::NotADirectory { .. } => {
                        error.in_path(path, way.last().map_or(b"/", |(name, _)| name))
                    }
                    _ => error.in_path(path, name),
                })?;
                let is_last = end == rest.len();
                if child.is_symlink() && (!is_last || last == Last::Follow) {
                    links += 1;
                    if links > SYMLINKS_MAX {
                        let error = FsError::SymlinkLoop { ino: child.ino(), at: None };
                        return Err(error.in_path(path, name));
                    }
                    let mut target = child.read_link()?;
                    match target.first() {
                        None => {
                            let fault = Fault::Rule("the target is empty");
                            return Err(FsError::corrupt("symlink", child.ino(), None, fault));
                        }
                        Some(b'/') => way.clear(),
                        Some(_) => {}
                    }
                    target.extend_from_slice(&rest[end..]);
                    rest = target;
                    at = 0;
                    continue;
                }
                way.push((name.to_vec(), child));
            }
        }
        at = end;
    }
    let inode = way.last().map_or(&root, |(_, inode)| inode).clone();
    if rest.last() == Some(&b'/') && !inode.is_dir() {
        let last = way.last().map_or(&b"/"[..], |(name, _)| name);
        return Err(FsError::NotADirectory { ino: inode.ino(), at: None }.in_path(path, last));
    }
    Ok(Resolved { inode, names: way.into_iter().map(|(name, _)| name).collect() })
}
