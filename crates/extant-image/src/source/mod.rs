//! The sources of an image's files: a directory or a tar archive.
//!
//! # Place
//!
//! A source is read in two steps. First it fills a [`Tree`] with every name and attribute; then,
//! while the image is written, [`Contents`] hands out the bytes of its files, to many threads at
//! once and in the order in which they lie in the image.
//!
//! # Invariants
//!
//! - S1. A file that is left out is counted in a [`Skipped`], or is an error.
//! - S2. A file that changed between the two steps is an error that names it: an image never
//!   silently mixes two states of one file.
//! - S3. An attribute that has no place in ext4 is counted in a [`Lost`].

mod container;
pub mod dir;
mod error;
mod fakeroot;
mod file;
mod layers;
mod lost;
mod origin;
mod store;
pub mod tar;

pub use container::{ContainerImage, container_image};
pub use dir::owners::UNMAPPED;
pub use error::SourceError;
pub use extant_oci::{Choice, Digest, Kind as ImageFault, OciError, Platform, Reference};
pub use fakeroot::{FILES_MAX as FAKEROOT_FILES_MAX, Fakeroot};
pub use layers::{Layered, PARTS_MAX, RegistryAccess, Sources};
pub use lost::{KINDS_MAX, Lost, LostKind};
pub use origin::{Addition, Origin, OriginError};

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::tree::{NodeId, Tree};

/// A source read to the end: its tree, and access to the contents of its files.
pub struct Scanned {
    /// Every name and attribute.
    pub tree: Tree,
    /// The bytes of its files.
    pub contents: Box<dyn Contents>,
    /// Files left out because the caller allowed it.
    pub skipped: Skipped,
    /// Attributes of files that the tree does not have.
    pub lost: Lost,
}

/// Counts of the files that `--ignore-unreadable` left out.
#[derive(Clone, Debug, Default)]
pub struct Skipped {
    /// How many files and directories.
    pub count: u64,
    /// The first few in order of their text, each with path and reason, for the report; bounded
    /// at 20.
    pub examples: Vec<String>,
}

/// Most examples in [`Skipped`].
const EXAMPLES_MAX: usize = 20;

impl Skipped {
    /// Counts one thing left out. Which examples are kept does not depend on the order of calls.
    fn add(&mut self, example: String) {
        self.count += 1;
        let at = self.examples.partition_point(|kept| *kept <= example);
        if at < EXAMPLES_MAX {
            self.examples.truncate(EXAMPLES_MAX - 1);
            self.examples.insert(at, example);
        }
    }
}

/// Ends a scan that was cancelled.
fn go_on(cancel: Option<&AtomicBool>) -> Result<(), SourceError> {
    match cancel {
        Some(cancel) if cancel.load(Ordering::Relaxed) => Err(SourceError::Interrupted),
        _ => Ok(()),
    }
}

/// Returns whether ext4 has a place for the extended attribute `name`: the kernel stores these name
/// spaces under prefix numbers (`Documentation/filesystems/ext4/attributes.rst`, "name index").
fn is_kept_xattr(name: &[u8]) -> bool {
    matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default" | b"system.richacl")
        || [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|space| name.starts_with(space) && name.len() > space.len())
}

/// What is said of an extended attribute that is lost.
fn lost_xattr(name: &[u8]) -> Box<str> {
    format!("extended attribute {}", name.escape_ascii()).into()
}

/// The bytes of a tree's files.
pub trait Contents: Send + Sync {
    /// A reader for one thread. Cheap; each worker of the writer makes one.
    fn reader(&self) -> Box<dyn ContentReader + '_>;
}

/// Reads contents for one thread.
pub trait ContentReader {
    /// Fills `buf` with the bytes of `node` from byte `offset` of the file.
    ///
    /// The range lies inside the file and, when the file has holes, inside one of its data runs.
    /// Calls for one node come in order of `offset` on one thread, but several threads may read
    /// different parts of a large file.
    ///
    /// # Errors
    ///
    /// [`SourceError`] naming the file: it cannot be read, is shorter than planned, or (S2) is no
    /// longer the file that was scanned.
    fn read(
        &mut self,
        tree: &Tree,
        node: NodeId,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), SourceError>;

    /// Opens `node` as [`read`](Self::read) does, and returns a file that has its bytes at the same offsets, for
    /// copies that do not go through memory; `None` where there is none.
    ///
    /// # Errors
    ///
    /// [`SourceError`] as for a read.
    fn file(&mut self, _tree: &Tree, _node: NodeId) -> Result<Option<BorrowedFd<'_>>, SourceError> {
        Ok(None)
    }

    /// Tells that this thread is done with the file it read last: the source may check S2 and
    /// close it.
    fn finish(&mut self, tree: &Tree) -> Result<(), SourceError>;
}

/// Contents of a tree that has no files, as `mkfs` needs it.
pub struct NoContents;

impl Contents for NoContents {
    fn reader(&self) -> Box<dyn ContentReader + '_> {
        Box::new(NoContents)
    }
}

impl ContentReader for NoContents {
    fn read(
        &mut self,
        tree: &Tree,
        node: NodeId,
        _offset: u64,
        _buf: &mut [u8],
    ) -> Result<(), SourceError> {
        Err(SourceError::Changed {
            path: tree.path(node).escape_ascii().to_string(),
            what: "there are no contents for it".into(),
        })
    }

    fn finish(&mut self, _tree: &Tree) -> Result<(), SourceError> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_counts_all_and_keeps_the_same_few_in_any_order() {
        let add = |numbers: &mut dyn Iterator<Item = u32>| {
            let mut skipped = Skipped::default();
            numbers.for_each(|n| skipped.add(format!("{n:03}")));
            skipped
        };
        let (up, down) = (add(&mut (0..100)), add(&mut (0..100).rev()));
        assert_eq!((up.count, down.count), (100, 100));
        assert_eq!(up.examples, down.examples);
        assert_eq!(up.examples, (0..20).map(|n| format!("{n:03}")).collect::<Vec<_>>());
    }

    #[test]
    fn attributes_without_a_place_in_ext4_are_known() {
        for name in ["user.a", "trusted.a", "security.selinux", "system.posix_acl_default"] {
            assert!(is_kept_xattr(name.as_bytes()), "{name}");
        }
        for name in ["", "user.", "user", "system.nfs4_acl", "btrfs.compression", "x"] {
            assert!(!is_kept_xattr(name.as_bytes()), "{name}");
        }
    }
}
