//! Views: one version of an inode, for code that keeps it from changing.
//!
//! # Place
//!
//! Below: `node`. Above: `map`, `read`, `dir` and `xattr`, which look things up in a view; and
//! `inode`, whose handles callers have.
//!
//! # A rule as a type
//!
//! Methods of a handle ([`Inode`](crate::Inode)) take the content lock; methods of a [`View`] must
//! not, because the holder of a view has that lock, or another reason why the inode does not
//! change. So they are two types: a function with a view cannot call a method that would lock
//! again. A view borrows its node, so it cannot be kept in a handle; it does not keep the inode in
//! existence.

use std::fmt;
use std::sync::Arc;

use extant_base::{FsBlock, Ino};
use extant_format::checksum::inode_seed;
use extant_format::extent;
use extant_format::features::Incompat;
use extant_format::inode::{FileKind, Inode as Record, InodeFlags};
use extant_jbd2::{FcDirectory, FcEntry, FcInode};

use crate::casefold::Wanted;
use crate::error::Result;
use crate::extent_node::ExtentNode;
use crate::fs::{Fs, Mount};
use crate::node::{InodeData, Node};

/// An inode as it was at one moment.
pub(crate) struct View<'g> {
    fs: &'g Fs,
    node: &'g Arc<Node>,
    data: Arc<InodeData>,
}

impl Fs {
    /// Returns a view of the current version of `node`. On a writable mount the caller holds its
    /// content lock, or keeps the part that it reads from changing in another way.
    pub(crate) fn view<'g>(&'g self, node: &'g Arc<Node>) -> View<'g> {
        View { fs: self, node, data: node.data() }
    }
}

impl<'g> View<'g> {
    /// Returns a view of a version that the caller has kept. On a writable mount it may be
    /// outdated.
    pub(crate) fn of(fs: &'g Fs, node: &'g Arc<Node>, data: Arc<InodeData>) -> View<'g> {
        View { fs, node, data }
    }

    pub(crate) fn fs(&self) -> &'g Fs {
        self.fs
    }

    pub(crate) fn node(&self) -> &'g Arc<Node> {
        self.node
    }

    pub(crate) fn volume(&self) -> &'g Mount {
        self.fs.volume()
    }

    pub(crate) fn data(&self) -> &InodeData {
        &self.data
    }

    /// Returns the number of blocks that the size covers, counting a partly covered last block.
    pub(crate) fn block_len(&self) -> u64 {
        self.volume().block_size().blocks_for(self.size())
    }

    pub(crate) fn ino(&self) -> Ino {
        self.data.ino
    }

    pub(crate) fn kind(&self) -> FileKind {
        self.data.kind
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.kind() == FileKind::Symlink
    }

    /// Returns the stored size.
    pub(crate) fn size(&self) -> u64 {
        self.data.record.size
    }

    pub(crate) fn flags(&self) -> InodeFlags {
        self.data.record.flags
    }

    pub(crate) fn record(&self) -> &Record {
        &self.data.record
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.flags().contains(InodeFlags::ENCRYPT)
    }

    pub(crate) fn is_casefold(&self) -> bool {
        self.is_dir() && self.flags().contains(InodeFlags::CASEFOLD)
    }

    pub(crate) fn is_inline(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    pub(crate) fn uses_extents(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }

    pub(crate) fn is_indexed(&self) -> bool {
        self.flags().contains(InodeFlags::INDEX)
    }

    pub(crate) fn is_ea_inode(&self) -> bool {
        self.flags().contains(InodeFlags::EA_INODE)
    }

    /// Returns the seed of the checksums of everything that belongs to this inode.
    pub(crate) fn checksum_seed(&self) -> u32 {
        inode_seed(self.volume().checksum_seed(), self.ino(), self.data.record.generation)
    }

    /// Returns the 60 bytes that hold the root of the map, or other data in its place.
    pub(crate) fn i_block(&self) -> &[u8; extent::ROOT_BYTES] {
        &self.data.record.block
    }

    /// Returns whether the inode has a map: devices, pipes, sockets and links with an inline target
    /// have none.
    pub(crate) fn has_block_map(&self) -> bool {
        match self.kind() {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => !self.is_fast_symlink(),
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                false
            }
        }
    }

    /// Returns whether a symbolic link has its target in `i_block`, because it is too short for a
    /// block. Old kernels stored some short targets in blocks; such inodes have blocks besides that
    /// of the attributes.
    pub(crate) fn is_fast_symlink(&self) -> bool {
        if !self.is_symlink() || self.is_inline() || self.uses_extents() {
            return false;
        }
        if self.size() >= extant_format::inode::BLOCK_AREA_BYTES as u64 {
            return false;
        }
        let volume = self.volume();
        if volume.features().has_incompat(Incompat::EA_INODE) {
            return true; // The count of blocks includes values in other inodes.
        }
        let own =
            if self.xattr_block().is_some() { volume.superblock().cluster_bytes() } else { 0 };
        self.data.record.sectors <= own / 512
    }

    /// Returns the root of the extent tree, decoded once.
    pub(crate) fn extent_root(&self) -> Result<Arc<ExtentNode>> {
        self.data.extent_root().map(Arc::clone)
    }

    /// Returns the attribute space behind the fields; empty in inodes of 128 bytes.
    pub(crate) fn xattr_space(&self) -> &[u8] {
        self.data.xattr_space()
    }

    /// Returns the attribute block.
    pub(crate) fn xattr_block(&self) -> Option<FsBlock> {
        Some(self.data.record.file_acl).filter(|block| block.0 != 0)
    }

    /// Returns the hash of the value, for an inode that holds an attribute value.
    pub(crate) fn ea_value_hash(&self) -> u32 {
        // The hash is the low half of the stored time, as an unsigned number.
        self.data.record.atime.seconds as u32
    }

    /// Returns whether an inode with an attribute value was made by Lustre for `owner`. Such values
    /// have no hash; the inode points back at its only owner instead.
    pub(crate) fn is_lustre_value_of(&self, owner: &View<'_>) -> bool {
        self.data.record.mtime.seconds as u32 == owner.ino().0
            && self.data.record.generation == owner.data.record.generation
    }
}

/// The state recorded in fast commits.
impl View<'_> {
    /// Returns the record of fast commits for the inode and its map.
    pub(crate) fn recorded(&self) -> Option<&FcInode> {
        self.volume().fast_commit()?.inode(self.ino())
    }

    fn recorded_dir(&self) -> Option<&FcDirectory> {
        self.volume().fast_commit()?.directory(self.ino())
    }

    /// Returns the parent of a directory that a fast commit created, whose blocks are invalid;
    /// `None` for others.
    pub(crate) fn made_by_overlay(&self) -> Option<Ino> {
        self.recorded_dir()?.made_in()
    }

    /// Returns the names that fast commits added to this directory.
    pub(crate) fn overlay_added(&self) -> Vec<(Box<[u8]>, Ino)> {
        let Some(recorded) = self.recorded_dir() else { return Vec::new() };
        let entries = recorded.entries().filter_map(|(name, entry)| match entry {
            FcEntry::Present(ino) => Some((name.into(), ino)),
            FcEntry::Removed(_) => None,
        });
        entries.collect()
    }

    /// Returns whether a stored entry must not be shown in its place: fast commits removed it, or
    /// it is listed among the names that they added.
    pub(crate) fn overlay_hides(&self, name: &[u8], ino: Ino) -> bool {
        match self.recorded_dir().and_then(|recorded| recorded.get(name)) {
            None => false,
            Some(FcEntry::Present(_)) => true,
            Some(FcEntry::Removed(gone)) => gone == ino,
        }
    }

    /// Returns the inode that fast commits gave a name.
    pub(crate) fn overlay_lookup(&self, wanted: &Wanted<'_>) -> Option<Ino> {
        let recorded = self.recorded_dir()?;
        if let Some(FcEntry::Present(ino)) = recorded.get(wanted.name) {
            return Some(ino);
        }
        let mut entries = recorded.entries().filter(|_| self.is_casefold());
        entries.find_map(|(name, entry)| match entry {
            FcEntry::Present(ino) if wanted.matches(name) => Some(ino),
            _ => None,
        })
    }
}

impl fmt::Debug for View<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({})", self.ino())
    }
}
