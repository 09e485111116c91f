//! Names: lookups, creation, renames. Every answer with a node counts as a lookup by the kernel
//! (E1).

use extant::{
    AclKind, Family, FileKind, FsError, Ino, Inode, InodeFlags, NewInode, RenameFlags, Special,
};

use super::complaints::Kind;
use super::{Ext4, node_of};
use crate::operations::{Attributes, Caller, Entry, Errno, New, NodeId, Opened, Reply, Time};

/// File type bits of a mode.
const TYPE: u32 = 0o170_000;
const O_EXCL: u32 = 0o200;

impl Ext4<'_> {
    pub(super) fn lookup_in(&self, parent: NodeId, name: &[u8]) -> Reply<Entry> {
        if name == b"." {
            return self.look_up_again(parent);
        }
        let dir = self.inode(parent)?;
        match dir.lookup(name) {
            Ok(inode) => self.entry(&dir, inode),
            // A name that is known not to exist need not be asked for again, if nothing but this name
            // can make it exist.
            Err(FsError::NotFound { .. }) if keeps_names(&dir) => Ok(NO_ENTRY),
            Err(error) => Err(self.errno(&error)),
        }
    }

    /// Looks up a node by its number, for a file handle that a program kept after the kernel forgot
    /// the node.
    fn look_up_again(&self, node: NodeId) -> Reply<Entry> {
        if let Ok(inode) = self.inode(node) {
            return self.entry(&inode.clone(), inode);
        }
        let ino = u32::try_from(node.0).map(Ino).map_err(|_| Errno::ESTALE)?;
        if ino < self.fs().superblock().first_inode {
            return Err(Errno::ESTALE); // What the file system keeps for itself has no handles.
        }
        let inode = self.fs().inode(ino).map_err(|_| Errno::ESTALE)?;
        self.entry(&inode.clone(), inode)
    }

    /// The kernel knows `inode` once more, by a name in `dir`.
    pub(super) fn entry(&self, dir: &Inode, inode: Inode) -> Reply<Entry> {
        let ino = inode.ino();
        // Names of what the file system keeps for itself are damage.
        if ino != Ino::ROOT && ino < self.fs().superblock().first_inode {
            let text = format!(
                "directory {}: an entry names inode {}, which belongs to the file system itself",
                dir.ino().0,
                ino.0
            );
            self.complain(Kind::Damage, &text);
            return Err(Errno::EUCLEAN);
        }
        let entry = Entry {
            node: node_of(ino),
            generation: u64::from(inode.metadata().generation),
            keep_name: keeps_names(dir),
            attributes: self.attributes_of(&inode),
        };
        self.nodes.learn(entry.node, &inode);
        Ok(entry)
    }

    /// Owner and mode for something new in `dir`.
    fn new_inode(&self, dir: &Inode, caller: Caller, new: &New) -> Reply<NewInode> {
        let ids = &self.settings.ids;
        // A default ACL takes the place of the umask.
        let has_default = self.reply(dir.acl(AclKind::Default))?.is_some();
        let umask = if has_default { 0 } else { new.umask & 0o777 };
        Ok(NewInode {
            permissions: (new.mode & 0o7777 & !umask) as u16,
            uid: ids.user_inside(caller.uid).ok_or(Errno::EOVERFLOW)?,
            gid: ids.group_inside(caller.gid).ok_or(Errno::EOVERFLOW)?,
        })
    }

    pub(super) fn symlink_in(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        target: &[u8],
    ) -> Reply<Entry> {
        let dir = self.inode(parent)?;
        let new = New { mode: 0o777, umask: 0, rdev: (0, 0) };
        let new = self.new_inode(&dir, caller, &new)?;
        let inode = self.reply(self.with_room_of_removed(|| dir.symlink(name, target, &new)))?;
        self.renamed_in(&dir)?;
        self.entry(&dir, inode)
    }

    pub(super) fn mknod_in(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: &New,
    ) -> Reply<Entry> {
        let dir = self.inode(parent)?;
        let inode_of = self.new_inode(&dir, caller, new)?;
        let (major, minor) = new.rdev;
        let special = match new.mode & TYPE {
            0 | 0o100_000 => {
                let made = self.with_room_of_removed(|| dir.create(name, &inode_of));
                let inode = self.reply(made)?;
                self.renamed_in(&dir)?;
                return self.entry(&dir, inode);
            }
            0o010_000 => Special::Fifo,
            0o140_000 => Special::Socket,
            0o020_000 => Special::CharDevice { major, minor },
            0o060_000 => Special::BlockDevice { major, minor },
            _ => return Err(Errno::EINVAL),
        };
        let made = self.with_room_of_removed(|| dir.mknod(name, special, &inode_of));
        let inode = self.reply(made)?;
        self.renamed_in(&dir)?;
        self.entry(&dir, inode)
    }

    pub(super) fn mkdir_in(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: &New,
    ) -> Reply<Entry> {
        let dir = self.inode(parent)?;
        let new = self.new_inode(&dir, caller, new)?;
        let inode = self.reply(self.with_room_of_removed(|| dir.mkdir(name, &new)))?;
        self.renamed_in(&dir)?;
        self.entry(&dir, inode)
    }

    pub(super) fn create_in(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)> {
        let dir = self.inode(parent)?;
        let inode_of = self.new_inode(&dir, caller, new)?;
        let inode = match self.with_room_of_removed(|| dir.create(name, &inode_of)) {
            Ok(inode) => inode,
            // The kernel did not know of it: other spellings of a name that folds case.
            Err(FsError::Exists { .. }) if flags & O_EXCL == 0 => {
                let found = self.reply(dir.lookup(name))?;
                if found.kind() != FileKind::Regular {
                    return Err(Errno::ESTALE); // Makes the kernel look again.
                }
                let entry = self.entry(&dir, found)?;
                return match self.open_file(entry.node, flags) {
                    Ok(opened) => Ok((entry, opened)),
                    Err(error) => {
                        self.nodes.forget(entry.node, 1);
                        Err(error)
                    }
                };
            }
            Err(error) => return Err(self.errno(&error)),
        };
        self.renamed_in(&dir)?;
        let entry = self.entry(&dir, inode.clone())?;
        Ok(self.made(entry, &inode, flags))
    }

    /// Returns what was made, and is open; its attributes are those of an open file.
    fn made(&self, mut entry: Entry, inode: &Inode, flags: u32) -> (Entry, Opened) {
        let opened = self.opened(inode, entry.node, flags);
        entry.attributes = self.attributes_of(inode);
        (entry, opened)
    }

    pub(super) fn tmpfile_in(
        &self,
        caller: Caller,
        parent: NodeId,
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)> {
        let dir = self.inode(parent)?;
        let new = self.new_inode(&dir, caller, new)?;
        let inode = self.reply(self.with_room_of_removed(|| dir.tmpfile(&new)))?;
        let entry = self.entry(&dir, inode.clone())?;
        Ok(self.made(entry, &inode, flags))
    }

    /// A name was taken from an inode: if it was the last, the inode stays as long as the kernel knows it.
    pub(super) fn keep_known(&self, inode: Option<Inode>) {
        if let Some(inode) = inode {
            self.nodes.keep_nameless(node_of(inode.ino()), &inode);
            if !inode.has_name() {
                self.partings.began(self.clock.monotonic());
            }
        }
    }

    pub(super) fn rename_between(
        &self,
        caller: Caller,
        (parent, name): (NodeId, &[u8]),
        (new_parent, new_name): (NodeId, &[u8]),
        flags: u32,
    ) -> Reply<()> {
        let flags = RenameFlags::from_bits(flags).ok_or(Errno::EINVAL)?;
        let (dir, new_dir) = (self.inode(parent)?, self.inode(new_parent)?);
        let replaced = self.reply(known_to_be(&new_dir, new_name))?;
        // Who renames owns the whiteout. Of other renames the kernel may not say who that is.
        let whiteout = match flags.contains(RenameFlags::WHITEOUT) {
            true => {
                let ids = &self.settings.ids;
                NewInode {
                    permissions: 0,
                    uid: ids.user_inside(caller.uid).ok_or(Errno::EOVERFLOW)?,
                    gid: ids.group_inside(caller.gid).ok_or(Errno::EOVERFLOW)?,
                }
            }
            false => NewInode::root(0),
        };
        let renamed =
            self.with_room_of_removed(|| dir.rename_by(name, &new_dir, new_name, flags, &whiteout));
        let renamed = self.reply(renamed);
        self.keep_known(replaced);
        renamed?;
        self.room.note_freed();
        // One transaction did it; either of the two waits for that.
        self.renamed_in(&dir)?;
        self.renamed_in(&new_dir)
    }
}

/// Returns the inode that is about to lose a name, if it can be had: what the call itself says of a missing or damaged
/// one is better.
///
/// # Errors
///
/// Those of the device, before anything is changed: it may read for the call, and the inode would be gone while the
/// kernel knows it (E1).
pub(super) fn known_to_be(dir: &Inode, name: &[u8]) -> Result<Option<Inode>, FsError> {
    match dir.lookup(name) {
        Ok(inode) => Ok(Some(inode)),
        Err(error) if error.family() == Family::Device => Err(error),
        Err(_) => Ok(None),
    }
}

/// Returns whether a name in `dir` means itself only, so that the kernel may remember what it
/// stands for.
fn keeps_names(dir: &Inode) -> bool {
    !dir.metadata().flags.intersects(InodeFlags::CASEFOLD | InodeFlags::ENCRYPT)
}

const EPOCH: Time = Time { seconds: 0, nanos: 0 };

/// The answer that there is no such name.
const NO_ENTRY: Entry = Entry {
    node: NodeId::NONE,
    generation: 0,
    keep_name: true,
    attributes: Attributes {
        ino: 0,
        size: 0,
        blocks: 0,
        atime: EPOCH,
        mtime: EPOCH,
        ctime: EPOCH,
        btime: None,
        mode: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        blksize: 0,
        statx_attributes: 0,
        valid_for: None,
    },
};

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant::MountOptions;
    use extant_block::{FaultDevice, FaultPlan, SharedDevice};
    use extant_testkit::oracle::mke2fs;
    use extant_testkit::require;

    use super::*;

    #[test]
    fn a_name_goes_only_when_its_inode_is_at_hand() {
        let dir = extant_testkit::tempdir().unwrap();
        let path = dir.path().join("image");
        require!(mke2fs(&path, "16M", &["-t", "ext4"]));
        let device = Arc::new(extant_testkit::image::load(&path));
        let fs =
            MountOptions::new().read_only(false).open_shared(Arc::clone(&device) as _).unwrap();
        fs.root().unwrap().create(b"file", &NewInode::root(0o644)).unwrap();
        fs.unmount().unwrap();
        let plan = FaultPlan { read_one_in: 1, ..FaultPlan::default() };
        let faulty = Arc::new(FaultDevice::new(device, plan));
        faulty.set_enabled(false);
        let fs = MountOptions::new().open_shared(Arc::clone(&faulty) as SharedDevice).unwrap();
        let root = fs.root().unwrap();
        faulty.set_enabled(true);
        let error = known_to_be(&root, b"file").unwrap_err();
        assert_eq!(error.family(), Family::Device, "{error}");
        faulty.set_enabled(false);
        assert!(known_to_be(&root, b"file").unwrap().is_some());
        assert!(known_to_be(&root, b"none").unwrap().is_none());
    }
}
