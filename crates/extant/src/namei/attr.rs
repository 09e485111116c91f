//! Attributes of inodes: owners, modes, times, flags, projects, sizes, extended attributes.

use std::sync::Arc;

use extant_base::sabotage;
use extant_format::acl::Acl;
use extant_format::features::RoCompat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::time::Timestamp;
use extant_format::xattr as format;
use extant_sync::RwLockWriteGuard;

use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::file::{Store, WriteBy};
use crate::inode::Inode;
use crate::map;
use crate::node::{InodeData, Node};
use crate::quota::Owners;
use crate::txn::Txn;
use crate::xattr::{self, AclKind, XattrMode};

/// Credits for a change of attributes: the inode's block, an attribute block or a value's inode
/// with their bitmaps and descriptors, quotas of two owners of each kind.
const CREDITS: u32 = 64;

/// Extra bytes of an inode that has room for the nanoseconds of its last access, the last of the
/// three fields of that kind (`i_atime_extra`, at 0x8c).
const TIMES_EXTRA_BYTES: u16 = 0x90 - 0x80;

/// A new value for a time stamp.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimeChange {
    /// The time of the operation.
    Now,
    /// A given time; inodes of 128 bytes store whole seconds from 1901 to 2038, larger ones reach
    /// 2446. Another time becomes the nearest that can be stored; the first and the last second
    /// have no nanoseconds, as with Linux.
    To(Timestamp),
}

/// Changes of an inode's attributes, made together. `None` leaves an attribute as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SetAttributes {
    /// Permission, set-id and sticky bits.
    pub permissions: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Time of the last access.
    pub atime: Option<TimeChange>,
    /// Time of the last change of the contents.
    pub mtime: Option<TimeChange>,
    /// Time of the last change of attributes; `None` sets it to the time of the operation. Linux
    /// has no call to set it: it is for copies and for caches in front of this one.
    pub ctime: Option<Timestamp>,
    /// On whose behalf the change is made: decides which privileges a new size or a new owner
    /// removes.
    pub by: WriteBy,
    /// Creation time; Linux has no call to set it.
    pub crtime: Option<Timestamp>,
    /// Inode flags, as `chattr` sets them: only flags that users can change may differ.
    pub flags: Option<InodeFlags>,
    /// Project; needs the `project` feature.
    pub project: Option<u32>,
    /// Size in bytes, of a regular file.
    pub size: Option<u64>,
}

impl SetAttributes {
    /// Returns an empty set of changes.
    pub fn new() -> SetAttributes {
        SetAttributes::default()
    }

    /// Sets the permissions.
    #[must_use]
    pub fn permissions(mut self, permissions: u16) -> SetAttributes {
        self.permissions = Some(permissions);
        self
    }

    /// Sets the owner and the group.
    #[must_use]
    pub fn owner(mut self, uid: Option<u32>, gid: Option<u32>) -> SetAttributes {
        (self.uid, self.gid) = (uid, gid);
        self
    }

    /// Sets the times of access and of the last change of the contents.
    #[must_use]
    pub fn times(mut self, atime: Option<TimeChange>, mtime: Option<TimeChange>) -> SetAttributes {
        (self.atime, self.mtime) = (atime, mtime);
        self
    }

    /// Sets the flags.
    #[must_use]
    pub fn flags(mut self, flags: InodeFlags) -> SetAttributes {
        self.flags = Some(flags);
        self
    }

    /// Sets the project.
    #[must_use]
    pub fn project(mut self, project: u32) -> SetAttributes {
        self.project = Some(project);
        self
    }

    /// Sets the size.
    #[must_use]
    pub fn size(mut self, size: u64) -> SetAttributes {
        self.size = Some(size);
        self
    }

    fn is_only_flags(&self) -> bool {
        SetAttributes { flags: None, by: WriteBy::default(), ..*self } == SetAttributes::default()
    }

    /// Returns whether only the times of access and modification change, to the current time. A
    /// cache that keeps the times of writes sets modification and change to its own current time.
    fn is_touch(&self) -> bool {
        let by = WriteBy::default();
        let times = SetAttributes { atime: None, mtime: None, ctime: None, by, ..*self };
        let is_now = match self.mtime {
            Some(TimeChange::Now) => true,
            Some(TimeChange::To(time)) => self.ctime == Some(time),
            None => false,
        };
        times == SetAttributes::default() && self.atime == Some(TimeChange::Now) && is_now
    }
}

/// Flags that `chattr` may change.
const CHANGEABLE: InodeFlags = InodeFlags::SECRM
    .union(InodeFlags::UNRM)
    .union(InodeFlags::COMPR)
    .union(InodeFlags::SYNC)
    .union(InodeFlags::IMMUTABLE)
    .union(InodeFlags::APPEND)
    .union(InodeFlags::NODUMP)
    .union(InodeFlags::NOATIME)
    .union(InodeFlags::NOCOMPR)
    .union(InodeFlags::JOURNAL_DATA)
    .union(InodeFlags::NOTAIL)
    .union(InodeFlags::DIRSYNC)
    .union(InodeFlags::TOPDIR)
    .union(InodeFlags::DAX)
    .union(InodeFlags::PROJINHERIT)
    .union(InodeFlags::CASEFOLD);

impl Inode {
    /// Changes attributes, all or none of those asked for. The change time becomes now.
    ///
    /// A size is a change of its own, made before the others: when those are refused (a quota of
    /// the new owner), the new size stays.
    ///
    /// A new mode changes an access ACL with it. A new owner or group removes capabilities and
    /// set-id bits of everything but directories, unless the same call sets permissions; so does a
    /// new size, depending on [`by`](SetAttributes::by).
    ///
    /// # Errors
    ///
    /// - [`FsError::NotPermitted`]: the inode is immutable or append-only and more than its flags
    ///   would change, except that both times of an append-only inode may be set to the current
    ///   time; a flag that cannot be changed.
    /// - [`FsError::InvalidArgument`]: permissions above `0o7777`, a project without the feature,
    ///   case folding on anything but an empty directory or without the feature, a size of anything
    ///   but a regular file.
    /// - [`FsError::QuotaExceeded`], [`FsError::TooLarge`] for a size that the map cannot reach.
    /// - [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors.
    ///
    /// # Cost
    ///
    /// No I/O, except for a size: it frees the blocks behind it, in several transactions when there
    /// are many; and for the flag `JOURNAL_DATA` of a file, whose contents are stored first.
    pub fn set_attributes(&self, changes: &SetAttributes) -> Result<()> {
        self.fs().change(|| {
            let node = self.node();
            let _content = self.keep_out_for(changes)?;
            self.check_changes(changes)?;
            if changes.size.is_some() {
                self.check_key()?;
            }
            if let Some(size) = changes.size {
                self.take_privileges(changes.by)?;
                self.resize(size)?;
            }
            let has_new_owner = changes.uid.is_some() || changes.gid.is_some();
            if has_new_owner && self.kind() != FileKind::Directory {
                self.take_capability()?;
            }
            let owners = node.with(|data| {
                let (uid, gid) = (changes.uid, changes.gid);
                Owners::new(
                    uid.unwrap_or(data.record.uid),
                    gid.unwrap_or(data.record.gid),
                    changes.project.unwrap_or(data.record.project),
                )
            });
            let quotas = self.volume().writer()?.quotas();
            Txn::prepare_quotas(self.volume(), owners)?;
            if quotas.is_on() && node.with(|data| owners != Owners::of(&data.record)) {
                // Promises charged to the old owner become charges of blocks, which can be moved.
                self.fs().flush_file(node, u64::MAX, Store::Contents)?;
            }
            let apply = || {
                let mut txn = Txn::begin(self.volume(), CREDITS)?;
                self.apply(&mut txn, changes)
            };
            let flags = node.gist().flags;
            let differ = changes.flags.map_or(InodeFlags::empty(), |new| new ^ flags);
            match self.kind() == FileKind::Regular && differ.contains(InodeFlags::JOURNAL_DATA) {
                true => self.change_data_mode(apply),
                false => apply(),
            }
        })
    }

    /// Takes the content lock exclusively, for changes of attributes. Direct I/O in parts of the file
    /// that stay goes on, unless flags say how data is written, or another owner pays for its blocks.
    fn keep_out_for(&self, changes: &SetAttributes) -> Result<RwLockWriteGuard<'_, ()>> {
        let (node, volume) = (self.node(), self.volume());
        let has_new_owner =
            changes.uid.is_some() || changes.gid.is_some() || changes.project.is_some();
        if changes.flags.is_some() || has_new_owner {
            return Ok(node.content.write());
        }
        let (spans, block) = (volume.writer()?.spans(), volume.block_size().bytes().into());
        Ok(node.content.write_part(spans, block, || match changes.size {
            Some(size) => size.min(node.size())..u64::MAX,
            None => 0..0,
        }))
    }

    /// Sets the size of a regular file; bytes behind the old end read as zeros. Errors and cost as
    /// of [`set_attributes`](Self::set_attributes).
    pub fn truncate(&self, size: u64) -> Result<()> {
        self.set_attributes(&SetAttributes::new().size(size))
    }

    fn check_changes(&self, changes: &SetAttributes) -> Result<()> {
        let invalid = |what| Err(FsError::InvalidArgument { what });
        if changes.permissions.is_some_and(|bits| bits > 0o7777) {
            return invalid("permissions: 0 to 0o7777");
        }
        // What stands for "as it is" in calls of Linux is no owner there.
        if changes.uid == Some(u32::MAX) || changes.gid == Some(u32::MAX) {
            return invalid("owner and group: 0 to 2^32 - 2");
        }
        let data = self.node().data();
        let ino = data.ino;
        let features = self.volume().features();
        if let Some(flags) = changes.flags {
            let differ = flags ^ data.record.flags;
            if !CHANGEABLE.contains(differ) {
                let what = "one of the flags cannot be changed by users";
                return Err(FsError::NotPermitted { ino, what });
            }
            if differ.contains(InodeFlags::CASEFOLD) {
                use extant_format::features::Incompat;
                if !features.has_incompat(Incompat::CASEFOLD) {
                    return invalid("flags: the file system has no `casefold` feature");
                }
                if data.kind != FileKind::Directory {
                    return Err(FsError::NotADirectory { ino, at: None });
                }
                if !crate::dir::edit::is_empty(self.fs(), self.node())? {
                    return Err(FsError::NotEmpty { ino });
                }
                if data.record.flags.contains(InodeFlags::ENCRYPT) {
                    let view = self.fs().view(self.node());
                    let key = view.require("directory entry names")?.policy.key;
                    let is_v1 = matches!(key, extant_crypt::KeySpec::Descriptor(_));
                    if let Some(what) = super::policy::no_stored_hashes(&view, is_v1) {
                        return Err(FsError::NotSupported { ino, what });
                    }
                }
            }
            let dirs_only = InodeFlags::DIRSYNC | InodeFlags::TOPDIR;
            if data.kind != FileKind::Directory && (differ & flags).intersects(dirs_only) {
                return invalid("flags: `dirsync` and `topdir` are for directories");
            }
        }
        if changes.project.is_some_and(|project| project != data.record.project)
            && !(features.has_ro_compat(RoCompat::PROJECT) && data.record.crtime.is_some())
        {
            return invalid("project: the file system has no `project` feature");
        }
        let frozen = InodeFlags::IMMUTABLE | InodeFlags::APPEND;
        let is_immutable = data.record.flags.contains(InodeFlags::IMMUTABLE);
        let may = changes.is_only_flags() || (!is_immutable && changes.is_touch());
        if data.record.flags.intersects(frozen) && !may {
            let what = match is_immutable {
                true => "it is immutable",
                false => "it can only be appended to",
            };
            return Err(FsError::NotPermitted { ino, what });
        }
        if changes.size.is_some() {
            crate::file::check_changeable(ino, data.record.flags)?;
            match data.kind {
                FileKind::Regular => {}
                FileKind::Directory => return Err(FsError::IsADirectory { ino }),
                _ => return Err(FsError::NotARegularFile { ino }),
            }
        }
        Ok(())
    }

    fn apply(&self, txn: &mut Txn<'_>, changes: &SetAttributes) -> Result<()> {
        let (fs, node) = (self.fs(), self.node());
        let now = txn.writer().now();
        let old = node.data();
        let mut record = old.record.clone();
        record.uid = changes.uid.unwrap_or(record.uid);
        record.gid = changes.gid.unwrap_or(record.gid);
        record.project = changes.project.unwrap_or(record.project);
        let has_new_owner = changes.uid.is_some() || changes.gid.is_some();
        if let Some(bits) = changes.permissions {
            record.mode = (record.mode & !0o7777) | bits;
        } else if has_new_owner && old.kind != FileKind::Directory {
            record.mode &= !changes.by.taken_with_owner(record.mode);
        }
        // Steps that can be refused come first: quotas of the new owner, room for a longer ACL.
        xattr::transfer_quota(txn, fs, node, &record)?;
        if changes.permissions.is_some()
            && !sabotage("extant.attr.list-kept-by-chmod")
            && let Err(error) = xattr::chmod_acl(txn, fs, node, record.mode)
        {
            xattr::transfer_quota_back(txn, fs, node, &record);
            return Err(error);
        }
        drop(old);
        let at = |change: TimeChange, has_extra| match change {
            TimeChange::Now => now,
            TimeChange::To(time) => time.nearest(has_extra),
        };
        txn.update(node, |data: &mut InodeData| {
            let target = &mut data.record;
            (target.uid, target.gid, target.project) = (record.uid, record.gid, record.project);
            target.mode = record.mode;
            let has_extra = target.extra_isize >= TIMES_EXTRA_BYTES;
            target.atime = changes.atime.map_or(target.atime, |change| at(change, has_extra));
            target.mtime = changes.mtime.map_or(target.mtime, |change| at(change, has_extra));
            if let (Some(_), Some(time)) = (target.crtime, changes.crtime) {
                target.crtime = Some(time);
            }
            target.flags = changes.flags.unwrap_or(target.flags);
            target.ctime = changes.ctime.unwrap_or(now);
            target.version = target.version.wrapping_add(1);
        })
    }

    /// Does the part of a size change that concerns the map. The caller holds the content lock.
    fn resize(&self, size: u64) -> Result<()> {
        let (fs, node) = (self.fs(), self.node());
        if size == node.size() && !self.has_blocks_behind(size)? {
            let mut txn = Txn::begin_refused(self.volume(), CREDITS, Refusal::Attributes)?;
            return self.stamp(&mut txn, node);
        }
        crate::volume::check_size(self.volume(), &node.data(), size)?;
        crate::file::resize(fs, node, size)
    }

    /// Returns whether there may be blocks behind `size`, kept by `fallocate`: setting the same size frees them.
    fn has_blocks_behind(&self, size: u64) -> Result<bool> {
        let (fs, node) = (self.fs(), self.node());
        let first = self.volume().block_size().blocks_for(size);
        if first >= map::FILE_BLOCKS_END
            || node.data().record.flags.contains(InodeFlags::INLINE_DATA)
        {
            return Ok(false);
        }
        let file = fs.file_of(node)?;
        // Writeback may change the map concurrently.
        let _map = file.map(|file| file.map.read());
        let behind = map::lookup(fs, node, first, map::FILE_BLOCKS_END)?;
        Ok(behind.kind != map::MappingKind::Hole || behind.file_end() < map::FILE_BLOCKS_END)
    }

    fn stamp(&self, txn: &mut Txn<'_>, node: &Arc<Node>) -> Result<()> {
        let now = txn.writer().now();
        txn.update(node, |data| {
            data.record.mtime = now;
            data.record.ctime = now;
        })
    }

    /// Sets extended attribute `name`, with its namespace (`user.comment`), to `value`.
    ///
    /// ACLs are set with [`set_acl`](Self::set_acl), or here in the form that Linux programs use.
    ///
    /// # Errors
    ///
    /// - [`FsError::InvalidName`]: no known namespace, nothing after it, more than 255 bytes.
    /// - [`FsError::NoAttribute`], [`FsError::AttributeExists`] by `mode`.
    /// - [`FsError::AttributeTooLarge`], [`FsError::NoSpace`], [`FsError::QuotaExceeded`].
    /// - [`FsError::NotPermitted`]: `user.` attributes of inodes that are neither a regular file
    ///   nor a directory; inode flags.
    /// - [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors. After an error
    ///   nothing has changed.
    pub fn set_xattr(
        &self,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.change_xattr(name.as_ref(), Some(value.as_ref()), mode)
    }

    /// Removes an extended attribute. Errors as [`set_xattr`](Self::set_xattr).
    pub fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        self.change_xattr(name.as_ref(), None, XattrMode::Replace)
    }

    fn change_xattr(&self, full: &[u8], value: Option<&[u8]>, mode: XattrMode) -> Result<()> {
        let Some((index, name)) = format::split(full) else {
            let what = "an attribute needs a namespace: user., trusted., security. or system.";
            return Err(FsError::InvalidName { what });
        };
        self.check_attributable(Some(index))?;
        self.fs().change(|| {
            let node = self.node();
            let _content = node.content.write();
            self.check_attributable(Some(index))?;
            let before = self.fs().view(node).stored_xattr(full).ok();
            let mut txn = Txn::begin_refused(self.volume(), CREDITS, Refusal::Attributes)?;
            xattr::set(&mut txn, self.fs(), node, index, name, value, mode)?;
            // Setting the same value again is no change, as on Linux.
            if before.as_deref() == value { Ok(()) } else { self.stamp_change(&mut txn) }
        })
    }

    /// Sets or removes an ACL. An access ACL changes the permission bits with it, and one that is
    /// equivalent to them is not stored.
    ///
    /// # Errors
    ///
    /// [`FsError::NotPermitted`] for symbolic links, and for default ACLs of anything but a
    /// directory; otherwise as [`set_xattr`](Self::set_xattr).
    pub fn set_acl(&self, kind: AclKind, acl: Option<&Acl>) -> Result<()> {
        self.fs().change(|| {
            let node = self.node();
            let _content = node.content.write();
            self.check_attributable(None)?;
            let state = || {
                let view = self.fs().view(node);
                Ok::<_, FsError>((view.record().mode, view.stored_acl(kind)?))
            };
            let before = state()?;
            let mut txn = Txn::begin_refused(self.volume(), CREDITS, Refusal::Attributes)?;
            xattr::set_acl(&mut txn, self.fs(), node, kind, acl)?;
            // Setting the same list again is no change, as on Linux.
            if state()? == before { Ok(()) } else { self.stamp_change(&mut txn) }
        })
    }

    fn check_attributable(&self, index: Option<format::NameIndex>) -> Result<()> {
        let data = self.node().data();
        let ino = data.ino;
        if data.record.flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::APPEND) {
            let what = "it is immutable or append-only";
            return Err(FsError::NotPermitted { ino, what });
        }
        let plain = matches!(data.kind, FileKind::Regular | FileKind::Directory);
        if index == Some(format::NameIndex::USER) && !plain {
            let what = "only files and directories have user attributes";
            return Err(FsError::NotPermitted { ino, what });
        }
        Ok(())
    }

    fn stamp_change(&self, txn: &mut Txn<'_>) -> Result<()> {
        let now = txn.writer().now();
        txn.update(self.node(), |data| {
            data.record.ctime = now;
            data.record.version = data.record.version.wrapping_add(1);
        })
    }
}
