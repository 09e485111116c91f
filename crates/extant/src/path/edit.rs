//! Changes by path: the counterpart of `std::fs` inside an image.

use extant_base::Ino;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::image_path::ImagePath;
use crate::inode::Inode;
use crate::namei::{NewInode, RenameFlags, SetAttributes, Special};
use crate::xattr::AclKind;
use crate::xattr::XattrMode;
use crate::{Acl, DEPTH_MAX};

use super::resolve::{Last, resolve};

/// Returns the directory that holds the last name of a path, and that name, which may be `.` or
/// `..`. The root directory has no name: it is in itself, as `/`.
fn parent_of<'p>(fs: &Fs, path: &'p [u8]) -> Result<(Inode, &'p [u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let (whole, path) = (path, &path[..end]);
    if whole.is_empty() {
        return Err(FsError::NotFound { dir: Ino::ROOT, at: None }.in_path(whole, b""));
    }
    if path.is_empty() {
        return Ok((fs.root()?, b"/"));
    }
    let (dir, name) = match path.iter().rposition(|byte| *byte == b'/') {
        Some(slash) => (&path[..=slash], &path[slash + 1..]),
        None => (&b"/"[..], path),
    };
    Ok((resolve(fs, dir, Last::Follow)?.inode, name))
}

/// Returns the last name of a path if it stands for a directory that another one names: `/`, `.`
/// and `..`. None of the three can be made, moved or replaced, as with Linux.
fn fixed_name(name: &[u8]) -> Option<&'static str> {
    match name {
        b"/" => Some("/"),
        b"." => Some("."),
        b".." => Some(".."),
        _ => None,
    }
}

/// Returns the directory in which a name is made, and that name.
fn parent_of_new<'p>(fs: &Fs, path: &'p [u8]) -> Result<(Inode, &'p [u8])> {
    let (dir, name) = parent_of(fs, path)?;
    match fixed_name(name) {
        Some(_) => {
            let ino = resolve(fs, path, Last::Follow)?.inode.ino();
            Err(FsError::Exists { dir: dir.ino(), ino })
        }
        None => Ok((dir, name)),
    }
}

/// Returns the directory from which a name is removed that may be a directory's, and that name.
fn parent_of_removed<'p>(fs: &Fs, path: &'p [u8]) -> Result<(Inode, &'p [u8])> {
    match parent_of(fs, path)? {
        (_, b"/") => Err(FsError::NameInUse { name: "/" }),
        found => Ok(found),
    }
}

/// Returns whether the path ends in `/`, so that it must be a directory.
fn wants_directory(path: &[u8]) -> bool {
    path.last() == Some(&b'/')
}

/// # Changes by path
///
/// Each method is one change that survives a crash as a whole or not at all, except where its
/// documentation says "one by one". Parents must exist. A symbolic link in the last place is not
/// followed, except by the methods for attributes ([`Inode`] handles of
/// [`resolve_link`](Fs::resolve_link) reach the link itself).
///
/// Errors are those of [`resolve`](Fs::resolve) for the directories of the path, and of the
/// [`Inode`] method of the same name.
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use extant::NewInode;
/// let device = extant_block::FileDevice::open_read_write("disk.img")?;
/// let fs = extant::MountOptions::new().read_only(false).open(device)?;
/// fs.create_dir_all("/srv/www", &NewInode::root(0o755))?;
/// fs.symlink("../srv/www", "/var/www", &NewInode::root(0o777))?;
/// fs.rename("/etc/motd", "/etc/motd.old")?;
/// fs.unmount()?;
/// # Ok(())
/// # }
/// ```
impl Fs {
    /// Creates an empty regular file.
    pub fn create(&self, path: impl ImagePath, new: &NewInode) -> Result<Inode> {
        let path = path.image_bytes();
        let (dir, name) = parent_of_new(self, path)?;
        if wants_directory(path) {
            return Err(FsError::IsADirectory { ino: dir.ino() });
        }
        dir.create(name, new)
    }

    /// Creates an empty directory.
    pub fn create_dir(&self, path: impl ImagePath, new: &NewInode) -> Result<Inode> {
        let (dir, name) = parent_of_new(self, path.image_bytes())?;
        dir.mkdir(name, new)
    }

    /// Creates a directory and its missing parents, one by one. An existing directory is no error.
    pub fn create_dir_all(&self, path: impl ImagePath, new: &NewInode) -> Result<Inode> {
        let path = path.image_bytes();
        let mut way = self.root()?;
        for (depth, name) in path.split(|byte| *byte == b'/').enumerate() {
            if depth > DEPTH_MAX {
                return Err(FsError::TooDeep { ino: way.ino(), depth_max: DEPTH_MAX });
            }
            if name.is_empty() || name == b"." {
                continue;
            }
            let end = name.as_ptr().addr() - path.as_ptr().addr() + name.len();
            way = match resolve(self, &path[..end], Last::Follow) {
                Ok(found) if found.inode.is_dir() => found.inode,
                Ok(found) => {
                    return Err(FsError::NotADirectory { ino: found.inode.ino(), at: None });
                }
                Err(FsError::NotFound { .. }) => match way.mkdir(name, new) {
                    // Another thread created it first.
                    Err(FsError::Exists { .. }) => way.lookup(name)?,
                    made => made?,
                },
                Err(error) => return Err(error),
            };
        }
        Ok(way)
    }

    /// Creates a symbolic link at `path` to `target`, which need not exist.
    pub fn symlink(
        &self,
        target: impl ImagePath,
        path: impl ImagePath,
        new: &NewInode,
    ) -> Result<Inode> {
        let (dir, name) = parent_of_new(self, path.image_bytes())?;
        dir.symlink(name, target, new)
    }

    /// Creates a device, a pipe or a socket.
    pub fn mknod(&self, path: impl ImagePath, special: Special, new: &NewInode) -> Result<Inode> {
        let (dir, name) = parent_of_new(self, path.image_bytes())?;
        dir.mknod(name, special, new)
    }

    /// Adds the name `path` to the inode at `original`.
    pub fn hard_link(&self, original: impl ImagePath, path: impl ImagePath) -> Result<()> {
        let original = self.resolve_link(original)?;
        let (dir, name) = parent_of_new(self, path.image_bytes())?;
        dir.link(name, &original)
    }

    /// Removes a name of anything but a directory.
    pub fn remove_file(&self, path: impl ImagePath) -> Result<()> {
        let path = path.image_bytes();
        let (dir, name) = parent_of(self, path)?;
        if fixed_name(name).is_some() {
            let ino = resolve(self, path, Last::Follow)?.inode.ino();
            return Err(FsError::IsADirectory { ino });
        }
        if wants_directory(path) {
            let ino = dir.lookup_ino(name).map_err(|error| error.in_path(path, name))?;
            return Err(FsError::NotADirectory { ino, at: None }.in_path(path, name));
        }
        dir.unlink(name).map_err(|error| error.in_path(path, name))
    }

    /// Removes an empty directory.
    pub fn remove_dir(&self, path: impl ImagePath) -> Result<()> {
        let path = path.image_bytes();
        let (dir, name) = parent_of_removed(self, path)?;
        dir.rmdir(name).map_err(|error| error.in_path(path, name))
    }

    /// Removes a file, or a directory with everything in it, one by one from the bottom up.
    /// Symbolic links are removed, not followed.
    pub fn remove_all(&self, path: impl ImagePath) -> Result<()> {
        let path = path.image_bytes();
        let (dir, name) = parent_of_removed(self, path)?;
        // Only this first lookup can miss.
        dir.lookup_ino(name).map_err(|error| error.in_path(path, name))?;
        // Directories on the way down, each with its name in its parent.
        let mut way: Vec<(Inode, Vec<u8>)> = Vec::new();
        let mut inside = dir.clone();
        let mut name = name.to_vec();
        loop {
            match inside.unlink(&name) {
                Ok(()) => {}
                Err(FsError::IsADirectory { .. }) => match inside.rmdir(&name) {
                    Ok(()) => {}
                    Err(FsError::NotEmpty { ino }) => {
                        if way.len() >= DEPTH_MAX {
                            return Err(FsError::TooDeep { ino, depth_max: DEPTH_MAX });
                        }
                        let below = inside.lookup(&name)?;
                        way.push((
                            std::mem::replace(&mut inside, below),
                            std::mem::take(&mut name),
                        ));
                    }
                    Err(error) => return Err(error),
                },
                Err(error) => return Err(error),
            }
            // Take the next name of this directory, or remove the directory once it is empty.
            match inside_next(&inside, way.is_empty())? {
                Some(next) => name = next,
                None => match way.pop() {
                    Some((above, own)) => (inside, name) = (above, own),
                    None => return Ok(()),
                },
            }
        }
    }

    /// Moves `from` to `to`, replacing an existing target: a directory replaces an empty directory,
    /// anything else replaces anything but a directory.
    pub fn rename(&self, from: impl ImagePath, to: impl ImagePath) -> Result<()> {
        self.rename_with(from, to, RenameFlags::empty())
    }

    /// Renames like [`rename`](Self::rename), with flags.
    pub fn rename_with(
        &self,
        from: impl ImagePath,
        to: impl ImagePath,
        flags: RenameFlags,
    ) -> Result<()> {
        let (from, to) = (from.image_bytes(), to.image_bytes());
        let (old_dir, old_name) = parent_of(self, from)?;
        let (new_dir, new_name) = parent_of(self, to)?;
        if let Some(name) = fixed_name(old_name) {
            return Err(FsError::NameInUse { name });
        }
        if let Some(name) = fixed_name(new_name) {
            if flags.contains(RenameFlags::NOREPLACE) {
                let ino = resolve(self, to, Last::Follow)?.inode.ino();
                return Err(FsError::Exists { dir: new_dir.ino(), ino });
            }
            return Err(FsError::NameInUse { name });
        }
        if wants_directory(from) || wants_directory(to) {
            let moved = old_dir.lookup(old_name)?;
            if !moved.is_dir() {
                let error = FsError::NotADirectory { ino: moved.ino(), at: None };
                return Err(error.in_path(from, old_name));
            }
        }
        let renamed = old_dir.rename(old_name, &new_dir, new_name, flags);
        renamed.map_err(|error| error.in_path(from, old_name))
    }

    /// Changes attributes of the inode at `path`, following symbolic links.
    pub fn set_attributes(&self, path: impl ImagePath, changes: &SetAttributes) -> Result<()> {
        self.resolve(path)?.set_attributes(changes)
    }

    /// Sets an extended attribute of the inode at `path`, following symbolic links.
    pub fn set_xattr(
        &self,
        path: impl ImagePath,
        name: impl AsRef<[u8]>,
        value: impl AsRef<[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        self.resolve(path)?.set_xattr(name, value, mode)
    }

    /// Removes an extended attribute of the inode at `path`, following symbolic links.
    pub fn remove_xattr(&self, path: impl ImagePath, name: impl AsRef<[u8]>) -> Result<()> {
        self.resolve(path)?.remove_xattr(name)
    }

    /// Sets or removes an ACL of the inode at `path`, following symbolic links.
    pub fn set_acl(&self, path: impl ImagePath, kind: AclKind, acl: Option<&Acl>) -> Result<()> {
        self.resolve(path)?.set_acl(kind, acl)
    }
}

/// Returns a name left in a directory that is being emptied; `None` at the place where the work
/// started.
fn inside_next(dir: &Inode, at_start: bool) -> Result<Option<Vec<u8>>> {
    if at_start {
        return Ok(None);
    }
    match dir.read_dir()?.next() {
        Some(entry) => Ok(Some(entry?.name().to_vec())),
        None => Ok(None),
    }
}
