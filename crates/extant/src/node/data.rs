//! One version of an inode, and the attributes that callers see.

use std::sync::{Arc, OnceLock};

use extant_base::{BlockCount, Ino};
use extant_format::extent::{self, ExtentFault};
use extant_format::inode::{BASE_BYTES, FileKind, Inode as Record, InodeFlags, InodeLayout};
use extant_format::time::Timestamp;

use crate::error::{Fault, FsError, Result};
use crate::extent_node::ExtentNode;

/// Attributes of an inode, those of `stat` and more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Metadata {
    /// The inode's number.
    pub ino: Ino,
    /// Kind of file.
    pub kind: FileKind,
    /// Permission, set-id and sticky bits: `0..=0o7777`.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes: of a directory, that of its blocks; of a symbolic link, that of its target.
    pub size: u64,
    /// Allocated space, in units of 512 bytes, whatever the block size. A file with inline data
    /// counts its size, as in `stat` on Linux, so that it is not taken for a hole.
    pub blocks: u64,
    /// Number of names. A directory with 1 has more subdirectories than fit the field.
    pub links: u32,
    /// Time of the last access.
    pub atime: Timestamp,
    /// Time of the last change of the contents.
    pub mtime: Timestamp,
    /// Time of the last change of attributes.
    pub ctime: Timestamp,
    /// Creation time; `None` where the inode has no room for it.
    pub crtime: Option<Timestamp>,
    /// Device numbers `(major, minor)` of a device; `None` for everything else.
    pub rdev: Option<(u32, u32)>,
    /// Inode flags, including those that `lsattr` does not show.
    pub flags: InodeFlags,
    /// Project id; 0 where the inode has no room for it.
    pub project: u32,
    /// Generation number: distinguishes successive inodes with the same number.
    pub generation: u32,
    /// Counter of changes of the inode.
    pub version: u64,
}

impl Metadata {
    pub(crate) fn of(data: &InodeData) -> Metadata {
        let record = &data.record;
        let inline =
            data.kind == FileKind::Regular && record.flags.contains(InodeFlags::INLINE_DATA);
        let in_inode = if inline { record.size.div_ceil(512) } else { 0 };
        Metadata {
            ino: data.ino,
            kind: data.kind,
            permissions: record.permissions(),
            uid: record.uid,
            gid: record.gid,
            size: record.size,
            blocks: record.sectors.saturating_add(in_inode),
            links: u32::from(record.links),
            atime: record.atime,
            mtime: record.mtime,
            ctime: record.ctime,
            crtime: record.crtime,
            rdev: record.device().map(|device| (device.major, device.minor)),
            flags: record.flags,
            project: record.project,
            generation: record.generation,
            version: record.version,
        }
    }

    /// Returns the mode as in `st_mode`: kind and permissions.
    pub fn mode(&self) -> u16 {
        self.kind.mode_bits() | self.permissions
    }

    /// Returns whether the inode is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Returns whether the inode is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::Regular
    }

    /// Returns whether the inode is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }
}

/// One version of an inode, decoded.
#[derive(Clone, Debug)]
pub(crate) struct InodeData {
    pub(crate) ino: Ino,
    pub(crate) kind: FileKind,
    pub(crate) record: Record,
    /// The record as stored, for the attribute space behind the fields. Its fields are those of the
    /// last encoding.
    pub(crate) raw: Box<[u8]>,
    /// The root of the extent tree, decoded when first needed. Changes of `record.block` reset it:
    /// [`set_block_area`](InodeData::set_block_area).
    extent_root: OnceLock<Arc<ExtentNode>>,
}

impl InodeData {
    /// Creates a new inode: `record` with an empty attribute space.
    pub(crate) fn fresh(ino: Ino, kind: FileKind, record: Record, inode_bytes: usize) -> InodeData {
        let raw = vec![0; inode_bytes].into_boxed_slice();
        InodeData { ino, kind, record, raw, extent_root: OnceLock::new() }
    }

    /// Creates the version of a stored inode: `raw` is the record that was decoded.
    pub(crate) fn stored(ino: Ino, kind: FileKind, record: Record, raw: Box<[u8]>) -> InodeData {
        InodeData { ino, kind, record, raw, extent_root: OnceLock::new() }
    }

    /// Changes the 60 bytes of the map's root.
    pub(crate) fn set_block_area(&mut self, area: [u8; extent::ROOT_BYTES]) {
        self.record.block = area;
        self.extent_root = OnceLock::new();
    }

    /// Makes the last extent in the root longer.
    pub(crate) fn lengthen_root(&mut self, by: BlockCount) -> Result<(), ExtentFault> {
        extent::lengthen_last(&mut self.record.block, by)?;
        if self.extent_root.get().is_some() {
            self.extent_root = OnceLock::new();
        }
        Ok(())
    }

    /// Returns the root of the extent tree, decoded once.
    pub(crate) fn extent_root(&self) -> Result<&Arc<ExtentNode>> {
        if let Some(root) = self.extent_root.get() {
            return Ok(root);
        }
        let root = ExtentNode::decode_root(&self.record.block).map_err(|fault| {
            FsError::corrupt("extent root", self.ino, None, Fault::Decode(Box::new(fault)))
        })?;
        Ok(self.extent_root.get_or_init(|| Arc::new(root)))
    }

    /// Returns the attribute space behind the fields; empty in inodes of 128 bytes.
    pub(crate) fn xattr_space(&self) -> &[u8] {
        let fields = BASE_BYTES + usize::from(self.record.extra_isize);
        // An inode without extra fields has no attribute space.
        match self.record.extra_isize {
            0 => &[],
            _ => self.raw.get(fields..).unwrap_or(&[]),
        }
    }

    /// Returns whether there may be extended attributes, in the inode or in a block.
    pub(crate) fn may_have_xattrs(&self) -> bool {
        self.record.file_acl.0 != 0
            || !matches!(extant_format::xattr::decode_inode(self.xattr_space()), Ok(None))
    }

    /// Returns the attribute space behind the fields, for changing it; empty in inodes of 128
    /// bytes.
    pub(crate) fn xattr_space_mut(&mut self) -> &mut [u8] {
        let fields = BASE_BYTES + usize::from(self.record.extra_isize);
        match self.record.extra_isize {
            0 => &mut [],
            _ => self.raw.get_mut(fields..).unwrap_or(&mut []),
        }
    }

    /// Encodes the inode at byte `offset` of its table block, with its checksum.
    pub(crate) fn encode(
        &self,
        layout: &InodeLayout,
        block: &mut [u8],
        offset: usize,
    ) -> Result<()> {
        let fail = |fault| FsError::corrupt("inode", self.ino, None, fault);
        let end = offset.saturating_add(self.raw.len());
        let place = block
            .get_mut(offset..end)
            .ok_or_else(|| fail(Fault::Rule("the record ends after its block")))?;
        place.copy_from_slice(&self.raw);
        let encoded = self.record.encode(layout, self.ino, place);
        encoded.map_err(|error| fail(Fault::Decode(Box::new(error))))
    }
}
