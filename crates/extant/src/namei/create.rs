//! Creating inodes.

use std::sync::Arc;

use extant_crypt::Context;
use extant_format::dir::FileType;
use extant_format::features::Incompat;
use extant_format::inode::{DeviceNumber, FileKind, Inode as Record, InodeFlags};
use extant_format::time::Timestamp;

use super::{add_subdirectory, check_directory, check_name, check_subdirectories};
use crate::alloc::{BlockAsk, Purpose};
use crate::crypt;
use crate::dentry::Known;
use crate::dir::edit as dir_edit;
use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::{InodeData, Node};
use crate::quota::Owners;
use crate::slot::BlockKind;
use crate::txn::Txn;
use crate::view::View;
use crate::xattr;

/// Owner and mode of a new inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NewInode {
    /// Permission, set-id and sticky bits, `0..=0o7777`. Apply the caller's umask first; a default
    /// ACL of the directory may remove more bits.
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group. A directory with the set-gid bit overrides it with its own group.
    pub gid: u32,
}

impl NewInode {
    /// Returns an inode owned by root.
    #[must_use]
    pub fn root(permissions: u16) -> NewInode {
        NewInode { permissions, uid: 0, gid: 0 }
    }
}

/// A file that is neither a regular file, a directory nor a symbolic link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Special {
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device.
    CharDevice {
        /// Major number, below 4096.
        major: u32,
        /// Minor number, below 2^20.
        minor: u32,
    },
    /// A block device.
    BlockDevice {
        /// Major number, below 4096.
        major: u32,
        /// Minor number, below 2^20.
        minor: u32,
    },
}

impl Special {
    fn kind(self) -> FileKind {
        match self {
            Special::Fifo => FileKind::Fifo,
            Special::Socket => FileKind::Socket,
            Special::CharDevice { .. } => FileKind::CharDevice,
            Special::BlockDevice { .. } => FileKind::BlockDevice,
        }
    }
}

/// The kind of a new inode, with the data for that kind.
#[derive(Clone, Copy)]
enum What<'a> {
    File,
    Directory,
    Symlink(&'a [u8]),
    Special(Special),
}

impl What<'_> {
    fn kind(self) -> FileKind {
        match self {
            What::File => FileKind::Regular,
            What::Directory => FileKind::Directory,
            What::Symlink(_) => FileKind::Symlink,
            What::Special(special) => special.kind(),
        }
    }
}

/// Returns the flags that a new inode inherits from its directory, by kind.
fn inherited_flags(parent: InodeFlags, kind: FileKind) -> InodeFlags {
    let all = InodeFlags::SECRM
        | InodeFlags::UNRM
        | InodeFlags::COMPR
        | InodeFlags::SYNC
        | InodeFlags::NODUMP
        | InodeFlags::NOATIME
        | InodeFlags::NOCOMPR
        | InodeFlags::JOURNAL_DATA
        | InodeFlags::NOTAIL
        | InodeFlags::DIRSYNC
        | InodeFlags::PROJINHERIT
        | InodeFlags::CASEFOLD
        | InodeFlags::DAX;
    let fit = match kind {
        FileKind::Directory => all,
        FileKind::Regular => {
            all.difference(InodeFlags::DIRSYNC | InodeFlags::CASEFOLD | InodeFlags::PROJINHERIT)
        }
        _ => InodeFlags::NODUMP | InodeFlags::NOATIME,
    };
    parent & fit
}

impl Inode {
    /// Creates an empty regular file in this directory.
    ///
    /// # Errors
    ///
    /// [`FsError::Exists`], [`FsError::NotADirectory`], [`FsError::NotFound`] if this directory was
    /// removed; [`FsError::InvalidName`], [`FsError::NameTooLong`]; [`FsError::NotPermitted`] by an
    /// immutable directory; [`FsError::NoSpace`], [`FsError::QuotaExceeded`];
    /// [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors. After an error
    /// nothing has changed.
    pub fn create(&self, name: impl ImagePath, new: &NewInode) -> Result<Inode> {
        self.make(name.image_bytes(), new, What::File)
    }

    /// Creates an empty directory in this directory. Errors as [`create`](Self::create), and
    /// [`FsError::TooManyLinks`].
    pub fn mkdir(&self, name: impl ImagePath, new: &NewInode) -> Result<Inode> {
        self.make(name.image_bytes(), new, What::Directory)
    }

    /// Creates a symbolic link to `target`, which is 1 byte to one block less 1 byte long, 4095 at most. Its
    /// permissions are `0o777` whatever `new` says. In an encrypted directory it is 2 bytes shorter at most.
    ///
    /// # Errors
    ///
    /// As of [`create`](Self::create); [`FsError::TargetTooLong`].
    pub fn symlink(
        &self,
        name: impl ImagePath,
        target: impl ImagePath,
        new: &NewInode,
    ) -> Result<Inode> {
        let target = target.image_bytes();
        let longest = self.volume().block_size().len().min(4096) - 1;
        if target.is_empty() || target.contains(&0) {
            let what = "the target of a link is empty or contains a zero byte";
            return Err(FsError::InvalidArgument { what });
        }
        if target.len() > longest {
            return Err(FsError::TargetTooLong { len: target.len(), most: longest });
        }
        let new = NewInode { permissions: 0o777, ..*new };
        self.make(name.image_bytes(), &new, What::Symlink(target))
    }

    /// Creates a device, a pipe or a socket in this directory. Errors as [`create`](Self::create).
    pub fn mknod(&self, name: impl ImagePath, special: Special, new: &NewInode) -> Result<Inode> {
        self.make(name.image_bytes(), new, What::Special(special))
    }

    /// Creates a regular file without a name, as in this directory: it is deleted with its last
    /// handle, unless [`link`](Self::link) gives it a name.
    ///
    /// Errors as [`create`](Self::create).
    pub fn tmpfile(&self, new: &NewInode) -> Result<Inode> {
        let fs = self.fs();
        fs.change(|| {
            let dir = self.node();
            let _content = dir.content.write();
            let parent = fs.view(dir);
            check_directory(fs, dir, false)?;
            let owners = parent.owners_of_new(new);
            Txn::prepare_quotas(self.volume(), owners)?;
            let mut txn = Txn::begin_refused(self.volume(), CREDITS, Refusal::Names)?;
            let node = parent.new_node(&mut txn, b"", new, What::File)?;
            txn.update(&node, |data| data.record.links = 0)?;
            node.life().make_nameless();
            let handle = fs.handle(&node);
            fs.add_orphan(&mut txn, &node).map_err(|error| txn.fail(error))?;
            handle
        })
    }

    fn make(&self, name: &[u8], new: &NewInode, what: What<'_>) -> Result<Inode> {
        check_name(name)?;
        self.fs().change(|| self.make_once(name, new, what))
    }

    fn make_once(&self, name: &[u8], new: &NewInode, what: What<'_>) -> Result<Inode> {
        let (fs, volume, dir) = (self.fs(), self.volume(), self.node());
        let writer = volume.writer()?;
        let _content = dir.content.write();
        let parent = fs.view(dir);
        check_directory(fs, dir, false)?;
        let known = writer.dentries().get(dir.ino(), name);
        if let Known::Is(node) = &known {
            return Err(FsError::Exists { dir: dir.ino(), ino: node.ino() });
        }
        let is_missing = matches!(known, Known::Missing);
        let is_dir = what.kind() == FileKind::Directory;
        if is_dir {
            check_subdirectories(volume, parent.data())?;
        }
        Txn::prepare_quotas(volume, parent.owners_of_new(new))?;
        let mut txn = Txn::begin_refused(volume, CREDITS, Refusal::Names)?;
        // A new inode can be undone, growth of a directory cannot: that comes last.
        let room = dir_edit::find_room(&mut txn, fs, dir, name, is_missing)?;
        let node = parent.new_node(&mut txn, name, new, what)?;
        let place = match room
            .map_or_else(|| dir_edit::prepare_insert(&mut txn, fs, dir, name, true), Ok)
        {
            Ok(place) => place,
            Err(error) => {
                fs.undo_new(&mut txn, &node).map_err(|broken| txn.fail(broken))?;
                return Err(error);
            }
        };
        // `parent` must be dropped here: `update` would otherwise copy the inode. Nothing below
        // fails for want of space.
        drop(parent);
        let now = node.with(|data| data.record.ctime); // A3.
        let finish = |txn: &mut Txn<'_>| {
            let file_type = FileType::from_mode(what.kind().mode_bits());
            dir_edit::insert(txn, fs, dir, place, name, node.ino(), file_type)?;
            txn.update(dir, |data| {
                touch(data, now);
                if is_dir {
                    add_subdirectory(volume, data);
                }
            })
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        let handle = fs.handle(&node)?;
        fs.note_name(dir, name, Some(&node));
        Ok(handle)
    }
}

/// New inodes in a directory whose content lock is held exclusively.
impl View<'_> {
    /// Creates a device, pipe or socket without a name, as part of a larger change.
    pub(super) fn make_special(
        &self,
        txn: &mut Txn<'_>,
        name: &[u8],
        new: &NewInode,
        special: Special,
    ) -> Result<Arc<Node>> {
        self.new_node(txn, name, new, What::Special(special))
    }

    /// Creates an inode with its first contents, not yet in any directory. Undone when it fails.
    fn new_node(
        &self,
        txn: &mut Txn<'_>,
        name: &[u8],
        new: &NewInode,
        what: What<'_>,
    ) -> Result<Arc<Node>> {
        let (fs, writer, parent) = (self.fs(), self.volume().writer()?, self.data());
        let kind = what.kind();
        let context = crypt::inherited_context(self, kind)?;
        let mut record = self.new_record(new, what, context.as_ref())?;
        let inherited = xattr::inherited(self, kind, &mut record)?;
        txn.charge_inode(&record)?;
        let ino = match writer.alloc().allocate_inode(txn, parent, kind, name) {
            Ok(ino) => ino,
            Err(error) => {
                txn.uncharge_inode(&record);
                return Err(error);
            }
        };
        let inode_bytes = usize::from(self.volume().superblock().inode_size);
        let data = InodeData::fresh(ino, kind, record, inode_bytes);
        let node = txn.create_node(ino, data).map_err(|error| txn.fail(error))?;
        let fill = |txn: &mut Txn<'_>| -> Result<()> {
            if let Some(context) = &context {
                crypt::set_context(txn, fs, &node, context)?;
            }
            match what {
                What::Directory => dir_edit::create(txn, fs, &node, parent.ino)?,
                What::Symlink(target) if context.is_some() => {
                    fill_symlink(txn, &node, &crypt::stored_target(fs, &node, target)?)?;
                }
                What::Symlink(target) => fill_symlink(txn, &node, target)?,
                What::File | What::Special(_) => {}
            }
            inherited.store(txn, fs, &node)
        };
        match fill(txn) {
            Ok(()) => Ok(node),
            Err(error) => {
                fs.undo_new(txn, &node).map_err(|broken| txn.fail(broken))?;
                Err(error)
            }
        }
    }

    /// Returns the owners charged for a new inode in this directory.
    fn owners_of_new(&self, new: &NewInode) -> Owners {
        let parent = self.record();
        let gid = if parent.mode & 0o2000 != 0 { parent.gid } else { new.gid };
        let inherits = parent.flags.contains(InodeFlags::PROJINHERIT);
        Owners::new(new.uid, gid, if inherits { parent.project } else { 0 })
    }

    fn new_record(
        &self,
        new: &NewInode,
        what: What<'_>,
        context: Option<&Context>,
    ) -> Result<Record> {
        let (volume, parent) = (self.volume(), self.data());
        let writer = volume.writer()?;
        let kind = what.kind();
        let now = writer.now();
        let layout = volume.inode_layout();
        let mut record = Record::empty(layout);
        record.extra_isize = volume.superblock().new_extra_isize();
        let mut permissions = new.permissions & 0o7777;
        record.gid = new.gid;
        // A set-gid directory passes on its group, and to directories the bit itself.
        if parent.record.mode & 0o2000 != 0 {
            record.gid = parent.record.gid;
            if kind == FileKind::Directory {
                permissions |= 0o2000;
            }
        }
        record.mode = kind.mode_bits() | permissions;
        record.uid = new.uid;
        (record.atime, record.mtime, record.ctime) = (now, now, now);
        record.crtime = record.crtime.map(|_| now);
        record.links = if kind == FileKind::Directory { 2 } else { 1 };
        record.generation = (writer.random() >> 32) as u32;
        record.flags = inherited_flags(parent.record.flags, kind);
        if parent.record.flags.contains(InodeFlags::PROJINHERIT) {
            record.project = parent.record.project;
        }
        let mapped = match what {
            What::File | What::Directory => true,
            What::Symlink(target) => {
                let len = context.map_or(target.len(), |context| {
                    crypt::stored_target_len(self, &context.policy, target)
                });
                len >= record.block.len()
            }
            What::Special(_) => false,
        };
        if mapped && volume.features().has_incompat(Incompat::EXTENTS) {
            record.flags |= InodeFlags::EXTENTS;
            record.block = extant_format::extent::empty_root();
        }
        if let What::Special(special) = what
            && let Special::CharDevice { major, minor } | Special::BlockDevice { major, minor } =
                special
        {
            let device = DeviceNumber::new(major, minor).map_err(|_| {
                let what = "device numbers: major below 4096, minor below 1048576";
                FsError::InvalidArgument { what }
            })?;
            record.block = device.encode();
        }
        Ok(record)
    }
}

/// Credits for creating an inode, besides those of the directory: bitmap and descriptor of the
/// inode, its table block, the block of a directory or link target with its bitmap and descriptor,
/// an attribute block likewise, an orphan's place, quotas, the superblock.
pub(super) const CREDITS: u32 = dir_edit::INSERT_CREDITS + 32;

/// Updates the times and the version of a directory after a change of its entries.
pub(super) fn touch(dir: &mut InodeData, now: Timestamp) {
    dir.record.mtime = now;
    dir.record.ctime = now;
    dir.record.version = dir.record.version.wrapping_add(1);
}

/// Stores the target of a symbolic link in the inode, or in a block of its own.
fn fill_symlink(txn: &mut Txn<'_>, node: &Arc<Node>, target: &[u8]) -> Result<()> {
    let area_bytes = node.with(|data| data.record.block.len());
    if target.len() < area_bytes {
        return txn.update(node, |data| {
            let mut area = [0; extant_format::inode::BLOCK_AREA_BYTES];
            area[..target.len()].copy_from_slice(target);
            data.set_block_area(area);
            data.record.size = target.len() as u64;
        });
    }
    let goal = txn.volume().goal_of(node.ino())?;
    let ask = BlockAsk { goal, len: 1, min: 1, purpose: Purpose::Metadata, continues: false };
    let run = txn.allocate(node, &ask)?;
    let fill = |block: &mut [u8]| block[..target.len()].copy_from_slice(target);
    txn.create_block(run.start, BlockKind::Plain, fill).map_err(|error| txn.fail(error))?;
    crate::map::insert_first(txn, node, run.start).map_err(|error| txn.fail(error))?;
    txn.update(node, |data| data.record.size = target.len() as u64)
}
