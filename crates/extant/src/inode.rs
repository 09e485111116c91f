//! Inodes: loading them, and the handles that callers have.
//!
//! # Place
//!
//! Below: `view`, one version of an inode; `volume` finds the record, `extant-format` decodes it.
//! Above: `read`, `dir`, `map`, `xattr` and the path layer add operations on handles.
//!
//! # Checks on loading
//!
//! The record decodes, its checksum matches, the inode is in use, and its map can reach its size.
//! The map and the attributes are checked when they are used: a file with a damaged tree can still
//! be listed and named.

use std::fmt;
use std::sync::Arc;

use extant_base::Ino;
use extant_format::features::Incompat;
use extant_format::inode::{
    BASE_BYTES, EXTRA_BYTES, FileKind, Inode as Record, InodeError, InodeFlags, InodeLayout,
};

use crate::error::{Fault, FsError, Result};
use crate::fs::{Fs, Mount};
use crate::node::{InodeData, Metadata, Node, NodeStats};
use crate::view::View;
use crate::volume::check_stored_size;

/// A handle of an inode of an open file system. It is cheap to clone.
///
/// On a writable mount a handle keeps the inode in existence, even when its last name is removed.
/// Its methods show the inode's current state; [`record`](Self::record) and
/// [`metadata`](Self::metadata) return copies that do not change.
pub struct Inode {
    fs: Fs,
    node: Arc<Node>,
    /// Whether the node counts this handle; false for a clone beyond the largest count.
    counted: bool,
}

/// # Inodes
impl Fs {
    /// Returns the root directory.
    ///
    /// # Errors
    ///
    /// Those of [`inode`](Self::inode); damage when inode 2 is not a directory.
    pub fn root(&self) -> Result<Inode> {
        let root = self.own_inode(Ino::ROOT, "root directory")?;
        if root.is_dir() {
            return Ok(root);
        }
        let fault = Fault::Rule("the root inode is not a directory");
        Err(FsError::corrupt("inode", Ino::ROOT, None, fault))
    }

    /// Checks that the root directory fulfils what the kernel requires for a mount: it can be
    /// loaded, is a directory, and has a size and blocks. Opening for writing has checked this
    /// already; a file system opened for reading is usable without a root, to look at inodes by
    /// number.
    ///
    /// # Errors
    ///
    /// Damage of the root, its group descriptor, or its inode table; device errors.
    pub fn check_root(&self) -> Result<()> {
        let root = self.root()?;
        let record = root.record();
        if record.size != 0 && (record.sectors != 0 || root.is_inline()) {
            return Ok(());
        }
        let fault = Fault::Rule("the root directory has no contents");
        Err(FsError::corrupt("inode", Ino::ROOT, None, fault))
    }

    /// Returns an inode that the file system cannot do without; `what` names it in errors. An inode
    /// that is not in use is damage here.
    pub(crate) fn own_inode(&self, ino: Ino, what: &'static str) -> Result<Inode> {
        self.inode(ino).map_err(|error| match error {
            FsError::NoSuchInode { ino, .. } => {
                FsError::corrupt(what, ino, None, Fault::Rule("its inode is not in use"))
            }
            other => other,
        })
    }

    /// Returns a handle of the inode with this number.
    ///
    /// # Errors
    ///
    /// - [`FsError::NoSuchInode`]: 0, past the last one, or not in use.
    /// - Damage: its group descriptor, or its record; the checksum in particular.
    ///
    /// # Cost
    ///
    /// None when cached; otherwise up to two block reads, which cache neighbouring inodes too.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let node = self.node(ino)?;
        self.handle(&node)
    }

    /// Returns the node of an inode in use.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let volume = self.volume();
        let node = self.node_by(ino, || self.load_inode(ino))?;
        if node.life().is_gone() {
            return Err(FsError::NoSuchInode { ino, inode_count: volume.inode_count() });
        }
        Ok(node)
    }

    /// Returns the node of `ino`; if there is none, creates it with the data that `load` reads.
    pub(crate) fn node_by(
        &self,
        ino: Ino,
        mut load: impl FnMut() -> Result<InodeData>,
    ) -> Result<Arc<Node>> {
        let nodes = self.volume().nodes();
        // The data read is outdated if another thread read it too, changed it, and let the node
        // leave memory again meanwhile. Then it is read again; each repetition means that others
        // made progress.
        loop {
            let departed = match nodes.get_or_trace(&ino) {
                Ok(node) => return Ok(node),
                Err(departed) => departed,
            };
            let node = Arc::new(Node::after(&departed, load()?));
            if let Some(node) = nodes.insert_since(ino, &departed, node) {
                return Ok(node);
            }
        }
    }

    /// Returns counts of the inodes in memory. Costs a lock for each shard of their cache, not for
    /// each inode.
    pub fn node_stats(&self) -> NodeStats {
        let volume = self.volume();
        NodeStats::new(volume.nodes().len_and_capacity(), volume.inode_layout().inode_size)
    }

    /// Returns the node that an entry of directory `dir` names; an inode that is not in use is
    /// damage here.
    pub(crate) fn entry_node(&self, dir: Ino, ino: Ino) -> Result<Arc<Node>> {
        self.node(ino).map_err(|error| match error {
            FsError::NoSuchInode { ino, .. } => {
                let rule = "an entry names an inode that is not in use";
                let limit = u64::from(self.volume().inode_count());
                let fault = Fault::Field { rule, value: u64::from(ino.0), limit };
                FsError::corrupt("directory", dir, None, fault)
            }
            other => other,
        })
    }

    /// Returns a handle of `node`.
    pub(crate) fn handle(&self, node: &Arc<Node>) -> Result<Inode> {
        if !node.life().hold() {
            let inode_count = self.volume().inode_count();
            return Err(FsError::NoSuchInode { ino: node.ino(), inode_count });
        }
        Ok(Inode { fs: self.near(node.ino()), node: Arc::clone(node), counted: true })
    }

    /// Returns a [`handle`](Self::handle) without waiting: `None` when the node is gone.
    pub(crate) fn try_handle(&self, node: &Arc<Node>) -> Option<Inode> {
        node.life().hold().then(|| {
            let (fs, node) = (self.near(node.ino()), Arc::clone(node));
            Inode { fs, node, counted: true }
        })
    }

    fn load_inode(&self, ino: Ino) -> Result<InodeData> {
        let data = self.load_inode_or_orphan(ino)?;
        if data.record.links == 0 {
            return Err(FsError::NoSuchInode { ino, inode_count: self.volume().inode_count() });
        }
        Ok(data)
    }

    /// Loads an inode by its record, also one without links.
    pub(crate) fn load_inode_or_orphan(&self, ino: Ino) -> Result<InodeData> {
        let volume = self.volume();
        let none = FsError::NoSuchInode { ino, inode_count: volume.inode_count() };
        let Some((mut raw, is_recorded)) = volume.raw_inode(ino)? else { return Err(none) };
        let fail = |fault| FsError::corrupt("inode", ino, None, fault);
        let layout = volume.inode_layout();
        let broken = |error| match error {
            InodeError::Checksum(error) => fail(Fault::from(error)),
            other => fail(Fault::Decode(Box::new(other))),
        };
        // A record that was never used may be all zero, which matches no checksum.
        if raw.iter().all(|byte| *byte == 0) {
            return Err(none);
        }
        // A record from a fast commit has no valid checksum of its own; the commit had one.
        if volume.verifies_checksums() && !is_recorded {
            Record::verify_checksum(layout, ino, &raw).map_err(broken)?;
        }
        let mut record = Record::decode(layout, &raw).map_err(broken)?;
        if !volume.features().has_incompat(Incompat::INLINE_DATA) {
            // Without the feature inodes have no inline data, whatever their flags say: as on
            // Linux, the map counts.
            record.flags -= InodeFlags::INLINE_DATA;
        }
        if record.links == 0 && record.mode == 0 {
            return Err(none);
        }
        if record.extra_isize == 0 && use_extra_space(layout, &mut raw) {
            let flags = record.flags;
            record = Record::decode(layout, &raw).map_err(broken)?;
            record.flags = flags;
        }
        let kind = record.kind().ok_or_else(|| {
            let rule = "the mode has no file type";
            fail(Fault::Field { rule, value: u64::from(record.mode), limit: 0xffff })
        })?;
        let raw = raw.into_boxed_slice();
        let data = InodeData::stored(ino, kind, record, raw);
        check_stored_size(volume, &data)?;
        Ok(data)
    }
}

/// Adds the extra fields that a record does not have yet, from the bytes in their place, and an
/// empty attribute space behind them, as Linux does. Returns false where records have no space for
/// them.
fn use_extra_space(layout: &InodeLayout, raw: &mut [u8]) -> bool {
    let bytes = layout.extra_max().min(EXTRA_BYTES);
    if bytes == 0 {
        return false;
    }
    let end = BASE_BYTES + usize::from(bytes);
    if let Some(word) = raw.get_mut(BASE_BYTES..BASE_BYTES + 2) {
        word.copy_from_slice(&bytes.to_le_bytes());
    }
    if let Some(space) = raw.get_mut(end..) {
        space.fill(0);
    }
    true
}

impl Clone for Inode {
    fn clone(&self) -> Inode {
        // The node is held already, so it cannot be dead; 2^32 - 2 handles would take 250 GiB.
        let counted = self.counted && self.node.life().hold();
        Inode { fs: self.fs.clone(), node: Arc::clone(&self.node), counted }
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        if !self.counted {
            return;
        }
        let volume = self.fs.volume();
        if self.node.life().let_go()
            && let Ok(writer) = volume.writer()
        {
            writer.reclaim_later(Arc::clone(&self.node));
        }
        if self.node.life().is_unheld()
            && let Ok(writer) = volume.writer()
        {
            writer.alloc().give_back_window(&self.node);
        }
        volume.nodes().let_go(&self.node.ino(), |node| Arc::ptr_eq(node, &self.node));
    }
}

impl Inode {
    /// Returns the file system of the inode.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Returns the number of the inode.
    pub fn ino(&self) -> Ino {
        self.node.ino()
    }

    /// Returns the kind of file that the inode is.
    pub fn kind(&self) -> FileKind {
        self.node.kind()
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Returns whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::Regular
    }

    /// Returns whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == FileKind::Symlink
    }

    /// Returns the current size in bytes, as in [`Metadata::size`]. No I/O.
    pub fn size(&self) -> u64 {
        self.node.size()
    }

    /// Returns the current inode flags. No I/O.
    pub fn flags(&self) -> InodeFlags {
        self.node.gist().flags
    }

    /// Returns a copy of the current record, decoded: every field of the format. No I/O.
    pub fn record(&self) -> Record {
        self.node.seen().record.clone()
    }

    /// Returns a copy of the current attributes. No I/O.
    pub fn metadata(&self) -> Metadata {
        self.node.metadata(self.volume().block_size())
    }

    /// Returns whether the inode has a name. An inode without one is deleted when its last handle
    /// is dropped.
    pub fn has_name(&self) -> bool {
        self.node.with(|data| data.record.links > 0)
    }

    /// Runs `look` on the current version of the inode, while its contents, entries and attributes
    /// do not change. A [`View`] offers no methods that lock, because its holder has the content
    /// lock already.
    pub(crate) fn locked<R>(&self, look: impl FnOnce(&View<'_>) -> R) -> R {
        let _content = self.volume().is_writable().then(|| self.node.content.read());
        look(&self.fs.view(&self.node))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Returns the number of blocks that the size covers, counting a partly covered last block.
    pub fn block_len(&self) -> u64 {
        self.volume().block_size().blocks_for(self.size())
    }

    /// Returns whether the contents, or the names in the directory, are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.flags().contains(InodeFlags::ENCRYPT)
    }

    /// Returns whether the directory ignores case.
    pub fn is_casefold(&self) -> bool {
        self.is_dir() && self.flags().contains(InodeFlags::CASEFOLD)
    }

    /// Returns whether the contents are sealed by fs-verity: they do not change any more, and every
    /// read of them is checked. [`verity_digest`](Self::verity_digest) stands for them all.
    pub fn is_verity(&self) -> bool {
        self.flags().contains(InodeFlags::VERITY)
    }

    /// Returns whether the data, or the entries, are in the inode itself.
    pub fn is_inline(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Returns whether an extent tree maps the file, and not block pointers.
    pub fn uses_extents(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }

    /// Returns whether the directory has an index.
    pub fn is_indexed(&self) -> bool {
        self.flags().contains(InodeFlags::INDEX)
    }

    pub(crate) fn volume(&self) -> &Mount {
        self.fs.volume()
    }

    /// Checks that the inode belongs to `fs`: in another mount, its number stands for another file.
    ///
    /// # Errors
    ///
    /// [`FsError::OtherFileSystem`].
    pub(crate) fn check_of(&self, fs: &Fs) -> Result<()> {
        match Arc::ptr_eq(self.fs.volume(), fs.volume()) {
            true => Ok(()),
            false => Err(FsError::OtherFileSystem { ino: self.ino() }),
        }
    }
}

impl fmt::Debug for Inode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inode")
            .field("ino", &self.ino().0)
            .field("kind", &self.kind())
            .field("size", &self.size())
            .finish_non_exhaustive()
    }
}

impl PartialEq for Inode {
    /// Compares the file system and the number: equal handles are of the same inode.
    fn eq(&self, other: &Inode) -> bool {
        self.ino() == other.ino() && Arc::ptr_eq(self.fs.volume(), other.fs.volume())
    }
}

impl Eq for Inode {}
