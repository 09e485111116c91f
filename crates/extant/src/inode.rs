//! Inode handles: load, attributes, link targets, the root of the file's map.
//!
//! # Place
//!
//! Below: `volume` finds the record, `extant-format` decodes it. Above: `read`, `dir`, `map`,
//! `xattr` and the path layer add what can be done with a handle.
//!
//! # What loading checks
//!
//! The record decodes, its checksum fits, it is in use, its size is one that its map can reach. Whether its map or its attributes make
//! sense is looked at when they are used: a file with a damaged tree can still be listed and
//! named.

use std::fmt;
use std::sync::Arc;

use extant_base::{FsBlock, Ino};
use extant_format::checksum::inode_seed;
use extant_format::extent::{self};
use extant_format::features::Incompat;
use extant_format::inode::{
    BASE_BYTES, EXTRA_BYTES, FileKind, Inode as Record, InodeError, InodeFlags, InodeLayout,
};
use extant_jbd2::{FcDirectory, FcEntry, FcInode};

use crate::casefold::Wanted;
use crate::error::{Fault, FsError, Result};
use crate::extent_node::ExtentNode;
use crate::fs::{Fs, Mount};
use crate::node::{InodeData, Metadata, Node, NodeStats};
use crate::volume::check_stored_size;

/// One inode of an open file system: the handle that everything else hangs on. Cheap to clone.
///
/// On a writable mount a handle keeps the inode in existence, even when its last name is removed.
/// [`metadata`](Self::metadata), [`size`](Self::size) and the operations on contents, entries and
/// attributes always show the inode as it is; [`record`](Self::record) and [`flags`](Self::flags) as it
/// was when this handle was got, until [`refresh`](Self::refresh).
pub struct Inode {
    fs: Fs,
    node: Arc<Node>,
    /// Whether the node counts this handle; not so for views that the crate makes for itself.
    counted: bool,
    /// The version that this handle looks at.
    data: Arc<InodeData>,
}

/// # Inodes
impl Fs {
    /// The root directory.
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

    /// Whether the root can be used as a mount needs it: it can be loaded, is a directory, and has
    /// a size and space, as the kernel asks when it mounts. A mount for writing has been asked
    /// this when it was opened; one for reading is of use without a root, to look at inodes by number.
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

    /// An inode that the file system cannot do without; `what` is what it is. Not being in use is
    /// damage then.
    pub(crate) fn own_inode(&self, ino: Ino, what: &'static str) -> Result<Inode> {
        self.inode(ino).map_err(|error| match error {
            FsError::NoSuchInode { ino, .. } => {
                FsError::corrupt(what, ino, None, Fault::Rule("its inode is not in use"))
            }
            other => other,
        })
    }

    /// The inode with this number.
    ///
    /// # Errors
    ///
    /// - [`FsError::NoSuchInode`]: 0, past the last one, or not in use.
    /// - Damage: its group descriptor, or its record; the checksum in particular.
    ///
    /// # Cost
    ///
    /// None when cached; else up to two blocks, which hold its neighbours too.
    pub fn inode(&self, ino: Ino) -> Result<Inode> {
        let node = self.node(ino)?;
        self.handle(&node)
    }

    /// The node of an inode in use.
    pub(crate) fn node(&self, ino: Ino) -> Result<Arc<Node>> {
        let volume = self.volume();
        let node = self.node_by(ino, || self.load_inode(ino))?;
        if node.life().is_gone() {
            return Err(FsError::NoSuchInode { ino, inode_count: volume.inode_count() });
        }
        Ok(node)
    }

    /// The node of `ino`; if there is none, one of what `load` reads.
    pub(crate) fn node_by(
        &self,
        ino: Ino,
        mut load: impl FnMut() -> Result<InodeData>,
    ) -> Result<Arc<Node>> {
        let nodes = self.volume().nodes();
        // What was read is old if somebody else read it too, changed it, and let it leave memory again
        // meanwhile. Each round but the last saw others do that much.
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

    /// Inodes in memory: those in use, and those that were. Costs a lock for each part of their cache, not
    /// for each inode.
    pub fn node_stats(&self) -> NodeStats {
        let volume = self.volume();
        NodeStats::new(volume.nodes().len_and_capacity(), volume.inode_layout().inode_size)
    }

    /// The node that an entry of directory `dir` names: not being in use is damage then.
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

    /// A handle on `node` as it is now.
    pub(crate) fn handle(&self, node: &Arc<Node>) -> Result<Inode> {
        if !node.life().hold() {
            let inode_count = self.volume().inode_count();
            return Err(FsError::NoSuchInode { ino: node.ino(), inode_count });
        }
        let (fs, node, data) = (self.near(node.ino()), Arc::clone(node), node.seen());
        Ok(Inode { fs, node, counted: true, data })
    }

    /// Looks at `node` as it is now, for a moment: does not keep it in existence.
    pub(crate) fn view(&self, node: &Arc<Node>) -> Inode {
        let (fs, node, data) = (self.near(node.ino()), Arc::clone(node), node.data());
        Inode { fs, node, counted: false, data }
    }

    fn load_inode(&self, ino: Ino) -> Result<InodeData> {
        let data = self.load_inode_or_orphan(ino)?;
        if data.record.links == 0 {
            return Err(FsError::NoSuchInode { ino, inode_count: self.volume().inode_count() });
        }
        Ok(data)
    }

    /// As the record says, also without links.
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
        // A place that was never used may be all zero, which no checksum fits.
        if raw.iter().all(|byte| *byte == 0) {
            return Err(none);
        }
        // What a fast commit recorded has no valid checksum of its own; the commit had one.
        if volume.verifies_checksums() && !is_recorded {
            Record::verify_checksum(layout, ino, &raw).map_err(broken)?;
        }
        let mut record = Record::decode(layout, &raw).map_err(broken)?;
        if !volume.features().has_incompat(Incompat::INLINE_DATA) {
            // Without the feature no inode has its data in itself, whatever it says: as for Linux, the map counts.
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

/// Gives a record the extra fields that it says it has not, from what lies there, and empty space for attributes behind
/// them: so does Linux. `false` where records have no room.
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
        // It is held already, so it cannot be dead; 2^32 - 2 handles would be 250 GiB of them.
        let counted = self.counted && self.node.life().hold();
        let (fs, node, data) = (self.fs.clone(), Arc::clone(&self.node), Arc::clone(&self.data));
        Inode { fs, node, counted, data }
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
    /// The file system it belongs to.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }

    /// Its number.
    pub fn ino(&self) -> Ino {
        self.data.ino
    }

    /// What it is.
    pub fn kind(&self) -> FileKind {
        self.data.kind
    }

    /// Whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == FileKind::Regular
    }

    /// Whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind() == FileKind::Symlink
    }

    /// Size in bytes as it is now, as [`Metadata::size`]. No I/O.
    pub fn size(&self) -> u64 {
        // A view stays what it was.
        if self.counted { self.node.size() } else { self.data.record.size }
    }

    /// The inode's flags.
    pub fn flags(&self) -> InodeFlags {
        self.data.record.flags
    }

    /// The record as stored, decoded: every field of the format.
    pub fn record(&self) -> &Record {
        &self.data.record
    }

    /// All attributes, as they are now. No I/O.
    pub fn metadata(&self) -> Metadata {
        self.node.metadata(self.volume().block_size())
    }

    /// Whether it has a name now. What has none is deleted when its last handle is dropped.
    pub fn has_name(&self) -> bool {
        self.node.with(|data| data.record.links > 0)
    }

    /// Lets this handle look at the inode as it is now.
    pub fn refresh(&mut self) {
        self.data = self.node.seen();
    }

    /// Runs `look` on the inode as it is, while nobody changes its contents, entries or attributes.
    /// Not for callers that hold its content lock: they look at a [`view`](Fs::view).
    pub(crate) fn locked<R>(&self, look: impl FnOnce(&Inode) -> R) -> R {
        if !self.volume().is_writable() {
            return look(self);
        }
        let _content = self.node.content.read();
        look(&self.fs.view(&self.node))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// How many blocks the size covers, the last perhaps in part.
    pub fn block_len(&self) -> u64 {
        self.volume().block_size().blocks_for(self.size())
    }

    /// Whether the contents, or the names in the directory, are encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.flags().contains(InodeFlags::ENCRYPT)
    }

    /// Whether the directory ignores case.
    pub fn is_casefold(&self) -> bool {
        self.is_dir() && self.flags().contains(InodeFlags::CASEFOLD)
    }

    /// Whether fs-verity protects the contents. They read like any other; the hashes behind their
    /// end are neither shown nor checked.
    pub fn is_verity(&self) -> bool {
        self.flags().contains(InodeFlags::VERITY)
    }

    /// Whether the data, or the entries, are in the inode itself.
    pub fn is_inline(&self) -> bool {
        self.flags().contains(InodeFlags::INLINE_DATA)
    }

    /// Whether an extent tree maps the file, and not block pointers.
    pub fn uses_extents(&self) -> bool {
        self.flags().contains(InodeFlags::EXTENTS)
    }

    /// Whether the directory has an index.
    pub fn is_indexed(&self) -> bool {
        self.flags().contains(InodeFlags::INDEX)
    }

    pub(crate) fn is_ea_inode(&self) -> bool {
        self.flags().contains(InodeFlags::EA_INODE)
    }

    pub(crate) fn volume(&self) -> &Mount {
        self.fs.volume()
    }

    /// Refuses to be used as one of `fs` if it is of another mount: its number stands for another file there.
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

    /// Seed of the checksums of everything that belongs to this inode.
    pub(crate) fn checksum_seed(&self) -> u32 {
        inode_seed(self.volume().checksum_seed(), self.ino(), self.data.record.generation)
    }

    /// The 60 bytes that hold the root of the map, or what is there instead.
    pub(crate) fn i_block(&self) -> &[u8; extent::ROOT_BYTES] {
        &self.data.record.block
    }

    /// Whether there is a map: devices, pipes and sockets have none, nor have links whose target
    /// stands in its place.
    pub(crate) fn has_block_map(&self) -> bool {
        match self.kind() {
            FileKind::Regular | FileKind::Directory => true,
            FileKind::Symlink => !self.is_fast_symlink(),
            FileKind::CharDevice | FileKind::BlockDevice | FileKind::Fifo | FileKind::Socket => {
                false
            }
        }
    }

    /// A link whose target is in `i_block`: too short for a block of its own. Old kernels left
    /// other short links in blocks; then there are blocks besides that of the attributes.
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

    /// The root of the extent tree, decoded once.
    pub(crate) fn extent_root(&self) -> Result<Arc<ExtentNode>> {
        self.data.extent_root().map(Arc::clone)
    }

    /// The attribute space behind the fields; empty in inodes of 128 bytes.
    pub(crate) fn xattr_space(&self) -> &[u8] {
        self.data.xattr_space()
    }

    /// The attribute block.
    pub(crate) fn xattr_block(&self) -> Option<FsBlock> {
        Some(self.data.record.file_acl).filter(|block| block.0 != 0)
    }

    /// For an inode that holds an attribute value: the value's hash.
    pub(crate) fn ea_value_hash(&self) -> u32 {
        // The field is unsigned here; the low half of the time as stored.
        self.data.record.atime.seconds as u32
    }

    /// For an inode that holds an attribute value: whether Lustre made it for `owner`. Such values
    /// have no hash; the inode points back at its only owner instead.
    pub(crate) fn is_lustre_value_of(&self, owner: &Inode) -> bool {
        self.data.record.mtime.seconds as u32 == owner.ino().0
            && self.data.record.generation == owner.data.record.generation
    }
}

/// What fast commits say.
impl Inode {
    /// What fast commits say of the inode and its map.
    pub(crate) fn recorded(&self) -> Option<&FcInode> {
        self.volume().fast_commit()?.inode(self.ino())
    }

    fn recorded_dir(&self) -> Option<&FcDirectory> {
        self.volume().fast_commit()?.directory(self.ino())
    }

    /// Whether a fast commit made this directory: its blocks mean nothing then. The answer is its
    /// parent.
    pub(crate) fn made_by_overlay(&self) -> Option<Ino> {
        self.recorded_dir()?.made_in()
    }

    /// Names that fast commits say this directory has.
    pub(crate) fn overlay_added(&self) -> Vec<(Box<[u8]>, Ino)> {
        let Some(recorded) = self.recorded_dir() else { return Vec::new() };
        let entries = recorded.entries().filter_map(|(name, entry)| match entry {
            FcEntry::Present(ino) => Some((name.into(), ino)),
            FcEntry::Removed(_) => None,
        });
        entries.collect()
    }

    /// Whether a stored entry is not shown where it stands: it is gone, or it is listed among
    /// those that fast commits added.
    pub(crate) fn overlay_hides(&self, name: &[u8], ino: Ino) -> bool {
        match self.recorded_dir().and_then(|recorded| recorded.get(name)) {
            None => false,
            Some(FcEntry::Present(_)) => true,
            Some(FcEntry::Removed(gone)) => gone == ino,
        }
    }

    /// The inode that fast commits say a name stands for.
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
    /// The same inode of the same open file system.
    fn eq(&self, other: &Inode) -> bool {
        self.ino() == other.ino() && Arc::ptr_eq(self.fs.volume(), other.fs.volume())
    }
}

impl Eq for Inode {}
