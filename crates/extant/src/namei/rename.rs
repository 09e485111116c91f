//! Renames.

use std::sync::Arc;

use bitflags::bitflags;
use extant_base::{Ino, sabotage};
use extant_format::dir::FileType;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::time::Timestamp;

use super::create::touch;
use super::lock::lock_all;
use super::{
    NewInode, Special, add_subdirectory, check_directory, check_linkable, check_name,
    check_subdirectories, drop_subdirectory,
};
use crate::crypt;
use crate::dir::edit as dir_edit;
use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::file::Store;
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::node::{Node, Settled};
use crate::txn::Txn;
use crate::view::View;

bitflags! {
    /// Treatment of the new name by a rename, as in `renameat2` of Linux.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct RenameFlags: u32 {
        /// The new name must not exist.
        const NOREPLACE = 1;
        /// Both names exist, and change places.
        const EXCHANGE = 2;
        /// A whiteout (a character device 0:0) stays at the old name.
        const WHITEOUT = 4;
    }
}

/// Credits for a rename: two insertions, two removals or replacements, `..` of two directories, a
/// whiteout, an inode that is deleted.
const CREDITS: u32 = 2 * dir_edit::INSERT_CREDITS
    + 2 * dir_edit::REMOVE_CREDITS
    + super::create::CREDITS
    + crate::delete::CREDITS
    + 16;

/// Number of levels from a directory to the root after which the tree is taken to be circular.
const DEPTH_MAX: usize = 1 << 16;

/// The directories, names and inodes of a rename.
struct Move<'a> {
    fs: &'a Fs,
    old_dir: &'a Arc<Node>,
    old_name: &'a [u8],
    new_dir: &'a Arc<Node>,
    new_name: &'a [u8],
    flags: RenameFlags,
    /// Who owns the whiteout.
    whiteout: &'a NewInode,
    moved: &'a Arc<Node>,
    /// The inode at the new name.
    target: Option<&'a Arc<Node>>,
}

impl Inode {
    /// Moves `name` of this directory to `new_name` in `new_dir`, replacing an existing target as
    /// far as `flags` allow: a directory replaces an empty directory, anything else replaces
    /// anything but a directory. If both names belong to one inode, nothing changes.
    ///
    /// # Errors
    ///
    /// [`FsError::NotFound`], [`FsError::Exists`] (with `NOREPLACE`), [`FsError::NotEmpty`],
    /// [`FsError::IsADirectory`], [`FsError::NotADirectory`], [`FsError::IntoItself`],
    /// [`FsError::TooManyLinks`], [`FsError::OtherProject`], [`FsError::OtherPolicy`],
    /// [`FsError::OtherFileSystem`],
    /// [`FsError::NotPermitted`], [`FsError::InvalidArgument`] for flags that exclude each other;
    /// otherwise as [`create`](Self::create). After an error nothing has changed.
    ///
    /// # Locks
    ///
    /// Both directories, and the inodes that move if they are directories. Only moving a directory
    /// to another parent takes the lock on the shape of the tree.
    pub fn rename(
        &self,
        name: impl ImagePath,
        new_dir: &Inode,
        new_name: impl ImagePath,
        flags: RenameFlags,
    ) -> Result<()> {
        self.rename_by(name, new_dir, new_name, flags, &NewInode::root(0))
    }

    /// Renames like [`rename`](Self::rename); with `WHITEOUT`, the owner of `whiteout` owns what
    /// stays at the old name, as if that user had made it (its permissions are none).
    ///
    /// # Errors
    ///
    /// Those of [`rename`](Self::rename).
    pub fn rename_by(
        &self,
        name: impl ImagePath,
        new_dir: &Inode,
        new_name: impl ImagePath,
        flags: RenameFlags,
        whiteout: &NewInode,
    ) -> Result<()> {
        let whiteout = &NewInode { permissions: 0, ..*whiteout };
        let (name, new_name) = (name.image_bytes(), new_name.image_bytes());
        check_name(name)?;
        check_name(new_name)?;
        new_dir.check_of(self.fs())?;
        if flags.contains(RenameFlags::EXCHANGE)
            && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT)
        {
            let what = "rename flags: EXCHANGE goes with no other";
            return Err(FsError::InvalidArgument { what });
        }
        self.fs().change(|| self.rename_once(name, new_dir.node(), new_name, flags, whiteout))
    }

    fn rename_once(
        &self,
        old_name: &[u8],
        new_dir: &Arc<Node>,
        new_name: &[u8],
        flags: RenameFlags,
        whiteout: &NewInode,
    ) -> Result<()> {
        let (fs, old_dir) = (self.fs(), self.node());
        loop {
            for dir in [old_dir, new_dir] {
                check_directory(fs, dir, false)?;
            }
            let moved = fs.lookup_in(old_dir, old_name)?;
            let target = match fs.lookup_in(new_dir, new_name) {
                Ok(node) => Some(node),
                Err(FsError::NotFound { dir, .. }) if dir == new_dir.ino() => None,
                Err(error) => return Err(error),
            };
            let job = Move {
                fs,
                old_dir,
                old_name,
                new_dir,
                new_name,
                flags,
                whiteout,
                moved: &moved,
                target: target.as_ref(),
            };
            // A program that replaces a file by a new one expects one of the two after a crash, and
            // often does not sync the new one.
            if let Some(target) = &target
                && target.ino() != moved.ino()
                && !flags.contains(RenameFlags::EXCHANGE)
            {
                fs.flush_file(&moved, u64::MAX, Store::Contents)?;
            }
            // A round fails only if another thread changed a name meanwhile.
            if job.run()? {
                return Ok(());
            }
        }
    }
}

fn is_dir(node: &Node) -> bool {
    node.with(|data| data.kind == FileKind::Directory)
}

impl Move<'_> {
    /// Does the rename; returns false when a name stood for another inode once the locks were held.
    fn run(&self) -> Result<bool> {
        let writer = self.fs.volume().writer()?;
        let crosses = self.old_dir.ino() != self.new_dir.ino();
        let exchange = self.flags.contains(RenameFlags::EXCHANGE);
        // Linux checks these before the places of the directories.
        match self.target {
            Some(target) if self.flags.contains(RenameFlags::NOREPLACE) => {
                return Err(FsError::Exists { dir: self.new_dir.ino(), ino: target.ino() });
            }
            None if exchange => {
                return Err(FsError::NotFound { dir: self.new_dir.ino(), at: None });
            }
            _ => {}
        }
        let dir_moves = is_dir(self.moved) || exchange && self.target.is_some_and(|t| is_dir(t));
        // While this lock is held no directory gets another parent, so the answer to "is it below?"
        // stays valid.
        let _shape = (crosses && dir_moves).then(|| writer.tree_shape().lock());
        if crosses && dir_moves {
            self.check_not_below()?;
        }
        let _locks = self.lock();
        let old_now = self.fs.find_in(self.old_dir, self.old_name)?;
        if !old_now.is_some_and(|now| Arc::ptr_eq(&now, self.moved)) {
            return Ok(false);
        }
        let new_now = self.fs.find_in(self.new_dir, self.new_name)?;
        let same = match (&new_now, self.target) {
            (Some(now), Some(target)) => Arc::ptr_eq(now, target),
            (None, None) => true,
            _ => false,
        };
        if !same {
            return Ok(false);
        }
        self.check()?;
        match self.target {
            Some(target) if exchange => self.exchange(target)?,
            // Both names belong to one inode: POSIX requires that both stay.
            Some(target) if target.ino() == self.moved.ino() => {}
            _ => self.replace()?,
        }
        Ok(true)
    }

    fn lock(&self) -> impl Sized + '_ {
        let moved = is_dir(self.moved).then_some(self.moved);
        let target = self.target.filter(|target| is_dir(target));
        lock_all([Some(self.old_dir), Some(self.new_dir), moved, target])
    }

    /// Checks that no directory moves into itself or below.
    fn check_not_below(&self) -> Result<()> {
        let mut movers = vec![(self.moved, self.new_dir)];
        if self.flags.contains(RenameFlags::EXCHANGE)
            && !sabotage("extant.rename.exchange-below-itself")
        {
            movers.extend(self.target.map(|target| (target, self.old_dir)));
        }
        for (mover, to) in movers {
            if !is_dir(mover) {
                continue;
            }
            let mut at = to.ino();
            for _ in 0..DEPTH_MAX {
                if at == mover.ino() {
                    return Err(FsError::IntoItself { ino: mover.ino() });
                }
                if at == Ino::ROOT {
                    break;
                }
                let node = self.fs.node(at)?;
                let _content = node.content.read();
                at = self.fs.view(&node).search(b"..")?;
            }
        }
        // A target that holds the moved directory cannot be empty.
        if let Some(target) = self.target
            && target.ino() == self.old_dir.ino()
            && !self.flags.contains(RenameFlags::EXCHANGE)
        {
            return Err(FsError::NotEmpty { ino: target.ino() });
        }
        Ok(())
    }

    fn check(&self) -> Result<()> {
        let volume = self.fs.volume();
        let exchange = self.flags.contains(RenameFlags::EXCHANGE);
        check_directory(self.fs, self.old_dir, true)?;
        crypt::check_names(self.fs, self.old_dir, false)?;
        crypt::check_names(self.fs, self.new_dir, false)?;
        check_directory(self.fs, self.new_dir, self.target.is_some())?;
        self.moved.with(check_linkable)?;
        let circular =
            |node: &Arc<Node>| [self.old_dir, self.new_dir].iter().any(|d| d.ino() == node.ino());
        if circular(self.moved) {
            return Err(FsError::IntoItself { ino: self.moved.ino() });
        }
        let Some(target) = self.target else {
            if exchange {
                return Err(FsError::NotFound { dir: self.new_dir.ino(), at: None });
            }
            return self.check_arrival(self.moved, self.new_dir).and_then(|()| {
                if is_dir(self.moved) && self.old_dir.ino() != self.new_dir.ino() {
                    self.new_dir.with(|dir| check_subdirectories(volume, dir))?;
                }
                Ok(())
            });
        };
        if self.flags.contains(RenameFlags::NOREPLACE) {
            return Err(FsError::Exists { dir: self.new_dir.ino(), ino: target.ino() });
        }
        target.with(check_linkable)?;
        if exchange {
            if circular(target) {
                return Err(FsError::IntoItself { ino: target.ino() });
            }
            self.check_arrival(self.moved, self.new_dir)?;
            self.check_arrival(target, self.old_dir)?;
            for (arrives, leaves, dir) in
                [(self.moved, target, self.new_dir), (target, self.moved, self.old_dir)]
            {
                if is_dir(arrives) && !is_dir(leaves) && self.old_dir.ino() != self.new_dir.ino() {
                    dir.with(|dir| check_subdirectories(volume, dir))?;
                }
            }
            return Ok(());
        }
        if target.ino() == self.moved.ino() {
            return Ok(());
        }
        match (is_dir(self.moved), is_dir(target)) {
            (true, false) => return Err(FsError::NotADirectory { ino: target.ino(), at: None }),
            (false, true) => return Err(FsError::IsADirectory { ino: target.ino() }),
            (true, true) => {
                // This includes a target that is the old directory, which holds the moved entry.
                if !dir_edit::is_empty(self.fs, target)? {
                    return Err(FsError::NotEmpty { ino: target.ino() });
                }
            }
            (false, false) => {}
        }
        self.check_arrival(self.moved, self.new_dir)
    }

    /// Checks that the node belongs to the directory's project, if the directory has one to
    /// inherit, and is encrypted as the directory is.
    fn check_arrival(&self, node: &Arc<Node>, dir: &Arc<Node>) -> Result<()> {
        if self.old_dir.ino() != self.new_dir.ino() {
            crypt::check_policy(self.fs, dir, node)?;
        }
        let project = dir.with(|dir| {
            let inherits = dir.record.flags.contains(InodeFlags::PROJINHERIT);
            inherits.then_some(dir.record.project)
        });
        match project {
            Some(project) if node.with(|data| data.record.project) != project => {
                Err(FsError::OtherProject { ino: node.ino() })
            }
            _ => Ok(()),
        }
    }

    fn file_type(node: &Node) -> FileType {
        FileType::from_mode(node.with(|data| data.kind.mode_bits()))
    }

    fn replace(&self) -> Result<()> {
        let (fs, volume) = (self.fs, self.fs.volume());
        let writer = volume.writer()?;
        let settled = self.target.map(|target| target.settle());
        let mut txn = Txn::begin_refused(volume, CREDITS, Refusal::Names)?;
        // Steps that can fail for want of space come first. The whiteout can be undone, growth of a
        // directory cannot.
        let whiteout = match self.flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let view = fs.view(self.old_dir);
                Some(view.new_whiteout(&mut txn, self.old_name, self.whiteout)?)
            }
            false => None,
        };
        let place = match self.target {
            None => match dir_edit::prepare_insert(&mut txn, fs, self.new_dir, self.new_name, true)
            {
                Ok(place) => Some(place),
                Err(error) => {
                    if let Some(node) = &whiteout {
                        fs.undo_new(&mut txn, node).map_err(|broken| txn.fail(broken))?;
                    }
                    return Err(error);
                }
            },
            Some(_) => None,
        };
        let now = writer.now();
        let finish = |txn: &mut Txn<'_>| {
            let moved_type = Move::file_type(self.moved);
            match place {
                Some(place) => {
                    let (to, name, ino) = (self.new_dir, self.new_name, self.moved.ino());
                    dir_edit::insert(txn, fs, to, place, name, ino, moved_type)?;
                }
                None => {
                    let (to, name, ino) = (self.new_dir, self.new_name, self.moved.ino());
                    dir_edit::replace(txn, fs, to, name, ino, moved_type)?;
                }
            }
            match &whiteout {
                Some(node) => {
                    let (from, name) = (self.old_dir, self.old_name);
                    let file_type = Move::file_type(node);
                    dir_edit::replace(txn, fs, from, name, node.ino(), file_type)?;
                }
                None => {
                    dir_edit::remove(txn, fs, self.old_dir, self.old_name)?;
                }
            }
            self.settle(txn, now, settled)
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        fs.note_name(self.old_dir, self.old_name, whiteout.as_ref());
        fs.note_name(self.new_dir, self.new_name, Some(self.moved));
        Ok(())
    }

    /// Updates times, link counts and `..`, and deletes the replaced inode.
    fn settle(
        &self,
        txn: &mut Txn<'_>,
        now: Timestamp,
        settled: Option<Settled<'_>>,
    ) -> Result<()> {
        let (fs, volume) = (self.fs, self.fs.volume());
        let crosses = self.old_dir.ino() != self.new_dir.ino();
        let moved_is_dir = is_dir(self.moved);
        txn.update(self.moved, |data| data.record.ctime = now)?;
        txn.update(self.old_dir, |data| {
            touch(data, now);
            let replaces = self.target.is_some() && !sabotage("extant.rename.links-beside");
            if moved_is_dir && (crosses || replaces) {
                drop_subdirectory(data);
            }
        })?;
        if crosses {
            txn.update(self.new_dir, |data| {
                touch(data, now);
                if moved_is_dir && self.target.is_none() {
                    add_subdirectory(volume, data);
                }
            })?;
            if moved_is_dir && !sabotage("extant.rename.parent-kept") {
                dir_edit::set_parent(txn, fs, self.moved, self.new_dir.ino())?;
            }
        }
        let (Some(target), Some(settled)) = (self.target, settled) else { return Ok(()) };
        let left = txn.update(target, |data| {
            data.record.links = match data.kind {
                FileKind::Directory => 0,
                _ => data.record.links.saturating_sub(1),
            };
            data.record.ctime = now;
            data.record.links
        })?;
        if left == 0 { fs.bury(txn, target, settled) } else { Ok(()) }
    }

    fn exchange(&self, target: &Arc<Node>) -> Result<()> {
        let (fs, volume) = (self.fs, self.fs.volume());
        if target.ino() == self.moved.ino() {
            return Ok(());
        }
        let writer = volume.writer()?;
        let mut txn = Txn::begin_refused(volume, CREDITS, Refusal::Names)?;
        let now = writer.now();
        let crosses = self.old_dir.ino() != self.new_dir.ino();
        let finish = |txn: &mut Txn<'_>| {
            let (moved, target_type) = (Move::file_type(self.moved), Move::file_type(target));
            dir_edit::replace(txn, fs, self.new_dir, self.new_name, self.moved.ino(), moved)?;
            dir_edit::replace(txn, fs, self.old_dir, self.old_name, target.ino(), target_type)?;
            for node in [self.moved, target] {
                txn.update(node, |data| data.record.ctime = now)?;
            }
            txn.update(self.old_dir, |data| touch(data, now))?;
            txn.update(self.new_dir, |data| touch(data, now))?;
            if !crosses {
                return Ok(());
            }
            for (node, from, to) in
                [(self.moved, self.old_dir, self.new_dir), (target, self.new_dir, self.old_dir)]
            {
                if is_dir(node) {
                    dir_edit::set_parent(txn, fs, node, to.ino())?;
                    txn.update(from, drop_subdirectory)?;
                    txn.update(to, |data| add_subdirectory(volume, data))?;
                }
            }
            Ok(())
        };
        finish(&mut txn).map_err(|error| txn.fail(error))?;
        fs.note_name(self.new_dir, self.new_name, Some(self.moved));
        fs.note_name(self.old_dir, self.old_name, Some(target));
        Ok(())
    }
}

impl View<'_> {
    /// Creates the whiteout that stays at the old name of a rename with `WHITEOUT`.
    fn new_whiteout(&self, txn: &mut Txn<'_>, name: &[u8], new: &NewInode) -> Result<Arc<Node>> {
        self.make_special(txn, name, new, Special::CharDevice { major: 0, minor: 0 })
    }
}
