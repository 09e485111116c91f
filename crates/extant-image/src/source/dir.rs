//! A directory as source: a parallel walk, then reads that detect changed files.
//!
//! # Place
//!
//! Fills a [`TreeBuilder`](crate::tree::TreeBuilder) and hands out file contents. This module does
//! not know ext4 and writes nothing.
//!
//! # Shape
//!
//! ```text
//! queue of directories ──> N workers: getdents, statx, xattrs ──> one locked collector
//!        ^                                                             │
//!        └────────────── sub-directories, once they have a node ───────┘
//! ```
//!
//! A directory of more than `CHUNK_NAMES` names is cut into chunks, so that several workers share
//! it. Order is restored by `TreeBuilder::finish`: the tree does not depend on thread timing.
//!
//! # What is kept
//!
//! Modes, numeric owners, nanosecond times, hard links, symlinks, devices, fifos, sockets, holes,
//! flags (`chattr`) and project ids of files and directories, and extended attributes in the name
//! spaces ext4 can store: `user.`, `trusted.` (visible to root only), `security.`,
//! `system.posix_acl_access`, `system.posix_acl_default` and `system.richacl`. Other `system.`
//! attributes are views that a file system computes (`system.nfs4_acl`, `system.cifs_acl`), and
//! other name spaces (`btrfs.`, `ceph.`) are settings of the source's own file system: neither has
//! a place in ext4, and neither is copied. They are counted in [`Lost`](crate::source::Lost), as
//! are flags that ext4 does not have.
//!
//! # Trust
//!
//! No name below the root is ever followed through a symlink, even if a directory is replaced by
//! one during the walk. One exception is detected rather than prevented: extended attributes are
//! asked for by path (there is no system call relative to a directory before Linux 6.13), and the
//! directory is compared with the open one afterwards.

mod contents;
pub(super) mod flags;
mod holes;
mod open;
pub(in crate::source) mod owners;
mod project;
mod queue;
mod walk;
mod xattrs;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::source::{Fakeroot, Scanned, SourceError};
use crate::tree::Kind;

/// How to walk a source directory.
#[derive(Clone, Debug)]
pub struct ScanOptions<'a> {
    /// Number of threads that walk.
    pub threads: NonZeroUsize,
    /// Count what cannot be read in [`Skipped`](crate::source::Skipped) instead of ending with an
    /// error. A directory that cannot be listed stays, empty; a file that cannot be opened is left
    /// out.
    pub ignore_unreadable: bool,
    /// Do not descend into other file systems: the directories they are mounted on stay, with the
    /// attributes of the mounted root, and are empty.
    pub one_file_system: bool,
    /// `(st_dev, st_ino)` of a file to leave out: the image being written, when it lies inside
    /// the source.
    pub exclude_inode: Option<(u64, u64)>,
    /// Owners, modes and devices that fakeroot showed instead of those that the files have.
    pub fakeroot: Option<Fakeroot>,
    /// Ends the scan with [`SourceError::Interrupted`] once it is set. It is looked at before each
    /// directory, and before each 2048 names of a large one.
    pub cancel: Option<&'a AtomicBool>,
}

impl Default for ScanOptions<'_> {
    /// One thread, everything included, everything must be readable.
    fn default() -> Self {
        ScanOptions {
            threads: NonZeroUsize::MIN,
            ignore_unreadable: false,
            one_file_system: false,
            exclude_inode: None,
            fakeroot: None,
            cancel: None,
        }
    }
}

/// Walks the directory `root` (itself followed if it is a symlink) and everything below it.
///
/// The attributes of `root` become those of the tree's root.
///
/// # Errors
///
/// - [`SourceError::Io`]: something cannot be listed, examined or, as far as permissions tell
///   without opening it, read, or a file of `/proc` or the like gives its size as 0 and has
///   contents; not with [`ScanOptions::ignore_unreadable`], except for `root`
///   itself and for lack of memory or descriptors.
/// - [`SourceError::Changed`]: a name vanished or became something else during the walk.
/// - [`SourceError::Tree`]: more names or deeper directories than a tree can hold.
/// - [`SourceError::Threads`]: the system gave no thread.
/// - [`SourceError::Interrupted`]: by [`ScanOptions::cancel`].
///
/// # Cost
///
/// About six system calls per directory, six per file (two where the file system has no flags), one more for a symlink
/// or an extended attribute. 40 bytes per regular file stay allocated, beside the tree, to notice changes.
pub fn scan_dir(root: &Path, options: &ScanOptions<'_>) -> Result<Scanned, SourceError> {
    walk::scan(root, options)
}

/// The extended attributes of one file that ext4 has a place for; `path` is not followed. Those without are named in `lost`.
pub(super) fn read_xattrs(
    path: &std::ffi::CStr,
    lost: &mut Vec<Box<str>>,
) -> Result<crate::tree::XattrSet, rustix::io::Errno> {
    xattrs::XattrReader::new().read(path, lost)
}

/// Flags and project of an open regular file.
pub(super) fn read_flags(file: std::os::fd::BorrowedFd<'_>) -> flags::Kept {
    flags::FlagReader::default().read(file, Kind::File, 0)
}
