//! The name space: create, link, unlink, rename, and the attributes of inodes.
//!
//! # Place
//!
//! Below: `dir` edits directories, `alloc` gives inodes and blocks, `xattr` attributes, `txn` the
//! journal. Above: the path layer and front ends.
//!
//! # Shape
//!
//! ```text
//! create   files, directories, symbolic links, devices; files without a name
//! link     adding and removing names
//! rename   with its three flags
//! attr     owners, modes, times, flags, sizes, extended attributes
//! lookup   finding the inode of a name
//! policy   encrypting directories
//! lock     content locks of several inodes
//! ```
//!
//! # Rules
//!
//! - A1. Every operation is one transaction, which survives a crash as a whole or not at all.
//!   Removing the contents of a large file takes several; the inode is an orphan in between.
//! - A2. Names, kinds, flags, space and quota are checked before anything is changed. A later
//!   failure is undone, or aborts the journal (`Txn::fail`).
//! - A3. The clock is read once per operation: all times that it sets are equal.
//!
//! # Source
//!
//! POSIX.1-2024 for times, links and errors; where it leaves a choice, the behaviour of Linux ext4.

mod attr;
mod create;
mod link;
mod lock;
mod lookup;
mod policy;
mod rename;

pub use attr::{SetAttributes, TimeChange};
pub use create::{NewInode, Special};
pub use rename::RenameFlags;

use std::sync::Arc;

use extant_format::features::RoCompat;
use extant_format::inode::{FileKind, InodeFlags};

use crate::crypt;
use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::limits::NAME_MAX;
use crate::node::{InodeData, Node};
use crate::volume::Volume;

/// Largest number of links of a file or directory.
pub(crate) const LINKS_MAX: u16 = 65_000;

/// Checks that a name can be stored in an entry.
fn check_name(name: &[u8]) -> Result<()> {
    match name {
        b"" => Err(FsError::InvalidName { what: "it is empty" }),
        b"." | b".." => Err(FsError::InvalidName { what: "`.` and `..` are given" }),
        _ if name.len() > NAME_MAX => Err(FsError::NameTooLong { len: name.len() }),
        _ if name.contains(&b'/') => Err(FsError::InvalidName { what: "it contains `/`" }),
        _ if name.contains(&0) => Err(FsError::InvalidName { what: "it contains a zero byte" }),
        _ => Ok(()),
    }
}

/// Checks that names can be added to a directory, or with `removing` also removed.
fn check_directory(fs: &Fs, dir: &Arc<Node>, removing: bool) -> Result<()> {
    dir.with(|data| check_directory_data(data, removing))?;
    crypt::check_names(fs, dir, removing)
}

fn check_directory_data(dir: &InodeData, removing: bool) -> Result<()> {
    if dir.kind != FileKind::Directory {
        return Err(FsError::NotADirectory { ino: dir.ino, at: None });
    }
    if dir.record.links == 0 {
        // The directory was removed: it has no names and gets none.
        return Err(FsError::NotFound { dir: dir.ino, at: None });
    }
    if dir.record.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted { ino: dir.ino, what: "the directory is immutable" });
    }
    if removing && dir.record.flags.contains(InodeFlags::APPEND) {
        let what = "the directory takes new entries only";
        return Err(FsError::NotPermitted { ino: dir.ino, what });
    }
    Ok(())
}

/// Checks that an inode can get or lose a name.
fn check_linkable(inode: &InodeData) -> Result<()> {
    let ino = inode.ino;
    if inode.record.flags.contains(InodeFlags::IMMUTABLE) {
        return Err(FsError::NotPermitted { ino, what: "it is immutable" });
    }
    if inode.record.flags.contains(InodeFlags::APPEND) {
        return Err(FsError::NotPermitted { ino, what: "it can only be appended to" });
    }
    Ok(())
}

/// Checks that a directory can have one more subdirectory.
fn check_subdirectories(volume: &Volume, dir: &InodeData) -> Result<()> {
    let many = volume.features().has_ro_compat(RoCompat::DIR_NLINK)
        && dir.record.flags.contains(InodeFlags::INDEX);
    if dir.record.links >= LINKS_MAX && !many {
        return Err(FsError::TooManyLinks { ino: dir.ino, limit: u32::from(LINKS_MAX) });
    }
    Ok(())
}

/// Counts one more subdirectory. From 65,000 links on the field has the value 1, which means
/// "many".
fn add_subdirectory(volume: &Volume, dir: &mut InodeData) {
    let links = &mut dir.record.links;
    // 1 means "many" only with the feature and an index; otherwise a wrong count of 1 increases
    // like others.
    if *links == 1 && volume.features().has_ro_compat(RoCompat::DIR_NLINK) {
        return;
    }
    *links = if *links >= LINKS_MAX { 1 } else { *links + 1 };
}

/// Counts one subdirectory less. A directory with many stays at 1.
fn drop_subdirectory(dir: &mut InodeData) {
    if dir.record.links > 2 {
        dir.record.links -= 1;
    }
}

impl Fs {
    /// Returns whether names of `dir` may be kept in the cache of names.
    fn caches_names(dir: &InodeData) -> bool {
        !dir.record.flags.intersects(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT)
    }

    fn note_name(&self, dir: &Node, name: &[u8], node: Option<&Arc<Node>>) {
        if let Ok(writer) = self.volume().writer()
            && dir.with(Fs::caches_names)
        {
            writer.dentries().set(dir.ino(), name, node);
        }
    }
}
