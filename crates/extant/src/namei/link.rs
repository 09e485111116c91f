//! Adding names to existing inodes, and removing names.

use std::sync::Arc;

use extant_base::sabotage;
use extant_format::dir::FileType;
use extant_format::inode::{FileKind, InodeFlags};

use super::create::touch;
use super::lock::lock_all;
use super::{LINKS_MAX, check_directory, check_linkable, check_name, drop_subdirectory};
use crate::crypt;
use crate::dir::edit as dir_edit;
use crate::error::{Fault, FsError, Result};
use crate::fast::Refusal;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::{Node, Settled};
use crate::txn::Txn;

/// Credits for adding a name to an inode.
const LINK_CREDITS: u32 = dir_edit::INSERT_CREDITS + 8;

/// Credits for removing a name, including an inode that is deleted at once.
const UNLINK_CREDITS: u32 = dir_edit::REMOVE_CREDITS + crate::delete::CREDITS;

impl Inode {
    /// Adds the name `name` in this directory to `target`, which may be a file without a name made
    /// by [`tmpfile`](Self::tmpfile).
    ///
    /// # Errors
    ///
    /// As [`create`](Self::create), and: [`FsError::NotPermitted`] for directories and for files
    /// that are immutable or append-only; [`FsError::TooManyLinks`]; [`FsError::NotFound`] when the
    /// last name of `target` was removed; [`FsError::OtherProject`], [`FsError::OtherPolicy`],
    /// [`FsError::OtherFileSystem`].
    pub fn link(&self, name: impl ImagePath, target: &Inode) -> Result<()> {
        let name = name.image_bytes();
        check_name(name)?;
        target.check_of(self.fs())?;
        self.fs().change(|| self.link_once(name, target.node()))
    }

    fn link_once(&self, name: &[u8], target: &Arc<Node>) -> Result<()> {
        let (fs, volume, dir) = (self.fs(), self.volume(), self.node());
        let writer = volume.writer()?;
        let _content = dir.content.write();
        let parent = dir.data();
        check_directory(fs, dir, false)?;
        if let Some(node) = fs.find_in(dir, name)? {
            return Err(FsError::Exists { dir: dir.ino(), ino: node.ino() });
        }
        if target.with(|data| data.kind == FileKind::Directory) {
            let what = "directories have one name only";
            return Err(FsError::NotPermitted { ino: target.ino(), what });
        }
        crypt::check_policy(fs, dir, target)?;
        let nameless = target.life().is_nameless();
        let kind = target.with(|data| {
            check_linkable(data)?;
            if data.record.links == 0 && !nameless {
                return Err(FsError::NotFound { dir: dir.ino(), at: None });
            }
            if data.record.links >= LINKS_MAX {
                let limit = u32::from(LINKS_MAX);
                return Err(FsError::TooManyLinks { ino: data.ino, limit });
            }
            if parent.record.flags.contains(InodeFlags::PROJINHERIT)
                && parent.record.project != data.record.project
            {
                return Err(FsError::OtherProject { ino: data.ino });
            }
            Ok(data.kind)
        })?;
        drop(parent);
        let mut txn = Txn::begin_refused(volume, LINK_CREDITS, Refusal::Names)?;
        let place = dir_edit::prepare_insert(&mut txn, fs, dir, name, true)?;
        let now = writer.now();
        // Another thread may link or unlink the target at the same time, so its count is checked
        // under its own lock.
        let (before, gone) = txn.update(target, |data| {
            let before = data.record.links;
            // The target may have got its first name meanwhile, and lost it again.
            let gone = before == 0 && !target.life().is_nameless();
            if !gone && before < LINKS_MAX {
                data.record.links += 1;
                data.record.ctime = now;
            }
            (before, gone)
        })?;
        if gone {
            return Err(FsError::NotFound { dir: dir.ino(), at: None });
        }
        if before >= LINKS_MAX {
            let limit = u32::from(LINKS_MAX);
            return Err(FsError::TooManyLinks { ino: target.ino(), limit });
        }
        let finish = |txn: &mut Txn<'_>| {
            // Only the thread that gives it its first name takes it off the orphans.
            if before == 0 {
                fs.end_namelessness(txn, target)?;
                target.life().name();
            }
            let file_type = FileType::from_mode(kind.mode_bits());
            dir_edit::insert(txn, fs, dir, place, name, target.ino(), file_type)?;
            txn.update(dir, |data| touch(data, now))
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        fs.note_name(dir, name, Some(target));
        Ok(())
    }

    /// Removes a name of anything but a directory. The inode is deleted with its last name, or with
    /// the last handle on it.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotADirectory`], [`FsError::IsADirectory`];
    /// [`FsError::NotPermitted`] by flags of the directory or the file; [`FsError::ReadOnly`],
    /// [`FsError::Aborted`]; damage and device errors. After an error nothing has changed.
    pub fn unlink(&self, name: impl ImagePath) -> Result<()> {
        let name = name.image_bytes();
        check_name(name)?;
        self.fs().change(|| self.unlink_once(name))
    }

    fn unlink_once(&self, name: &[u8]) -> Result<()> {
        let (fs, volume, dir) = (self.fs(), self.volume(), self.node());
        let writer = volume.writer()?;
        let _content = dir.content.write();
        check_directory(fs, dir, true)?;
        let found = fs.find_in(dir, name)?;
        let node = found.ok_or(FsError::NotFound { dir: dir.ino(), at: None })?;
        node.with(|data| {
            if data.kind == FileKind::Directory {
                return Err(FsError::IsADirectory { ino: data.ino });
            }
            check_linkable(data)
        })?;
        let settled = node.settle();
        let mut txn = Txn::begin_refused(volume, UNLINK_CREDITS, Refusal::Names)?;
        dir_edit::remove(&mut txn, fs, dir, name)?;
        let now = writer.now();
        let finish = |txn: &mut Txn<'_>| {
            txn.update(dir, |data| touch(data, now))?;
            let left = txn.update(&node, |data| {
                data.record.links = data.record.links.saturating_sub(1);
                if !sabotage("extant.unlink.ctime-kept") {
                    data.record.ctime = now;
                }
                data.record.links
            })?;
            if left == 0 { fs.bury(txn, &node, settled) } else { Ok(()) }
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        fs.note_name(dir, name, None);
        Ok(())
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::NotADirectory`], [`FsError::NotEmpty`]; otherwise as
    /// [`unlink`](Self::unlink).
    pub fn rmdir(&self, name: impl ImagePath) -> Result<()> {
        let name = name.image_bytes();
        match name {
            b"." => return Err(FsError::InvalidName { what: "`.` cannot be removed" }),
            b".." => return Err(FsError::NotEmpty { ino: self.ino() }),
            _ => check_name(name)?,
        }
        self.fs().change(|| self.rmdir_once(name))
    }

    fn rmdir_once(&self, name: &[u8]) -> Result<()> {
        check_directory(self.fs(), self.node(), true)?;
        // A round fails only if another thread changed the name meanwhile.
        loop {
            let node = self.fs().lookup_in(self.node(), name)?;
            if self.rmdir_locked(name, &node)? {
                return Ok(());
            }
        }
    }

    /// Removes the directory; returns false when the name stood for another inode once the locks
    /// were held.
    fn rmdir_locked(&self, name: &[u8], node: &Arc<Node>) -> Result<bool> {
        let (fs, volume, dir) = (self.fs(), self.volume(), self.node());
        let writer = volume.writer()?;
        if node.ino() == dir.ino() {
            let fault = Fault::Rule("an entry names its own directory");
            return Err(FsError::corrupt("directory", dir.ino(), None, fault));
        }
        let _locks = lock_all([Some(dir), Some(node), None, None]);
        if !fs.find_in(dir, name)?.is_some_and(|again| Arc::ptr_eq(&again, node)) {
            return Ok(false);
        }
        check_directory(fs, dir, true)?;
        node.with(|data| {
            if data.kind != FileKind::Directory {
                return Err(FsError::NotADirectory { ino: data.ino, at: None });
            }
            check_linkable(data)
        })?;
        if !dir_edit::is_empty(fs, node)? {
            return Err(FsError::NotEmpty { ino: node.ino() });
        }
        let mut txn = Txn::begin_refused(volume, UNLINK_CREDITS, Refusal::Names)?;
        dir_edit::remove(&mut txn, fs, dir, name)?;
        let now = writer.now();
        let finish = |txn: &mut Txn<'_>| {
            txn.update(dir, |data| {
                touch(data, now);
                drop_subdirectory(data);
            })?;
            txn.update(node, |data| {
                data.record.links = 0;
                data.record.ctime = now;
            })?;
            fs.bury(txn, node, Settled::without_contents(node))
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        fs.note_name(dir, name, None);
        Ok(true)
    }
}
