//! Where copies go: a directory of the host or of an image.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use extant::{
    AclKind, FileKind, FsError, Ino, Inode, NewInode, SetAttributes, Special, TimeChange, XattrMode,
};
use rustix::fs::{self, AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::content::{Fault, Sink};
use super::host::{self, Made, Omitted};
use super::node::{About, Id, Node};
use super::{Trouble, host as on_host, io, refused};

/// Which attributes of a source its copy gets.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Preserve {
    /// Permissions and ACLs.
    pub(crate) mode: bool,
    pub(crate) ownership: bool,
    pub(crate) timestamps: bool,
    /// Files with several names among the sources keep them.
    pub(crate) links: bool,
    /// Extended attributes, capabilities among them.
    pub(crate) xattrs: bool,
}

/// What new files get that is not taken from the source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Defaults {
    /// Owner and group in an image.
    pub(crate) owner: (u32, u32),
    /// Permissions that are not given without `mode`.
    pub(crate) umask: u16,
    /// Whether owners, devices and privileged attributes can be given on the host.
    pub(crate) privileged: bool,
}

/// A directory that things are put into.
#[derive(Clone)]
pub(crate) enum Dir {
    Host(Arc<OwnedFd>),
    /// Which image, and the directory.
    Image(usize, Inode),
}

/// What was made.
pub(crate) enum Copy<'a> {
    Sink(&'a Sink),
    Dir(&'a Dir),
    /// What is not opened, by its name.
    Named(&'a Dir, &'a [u8]),
}

/// A file with several names, as its first copy is found again.
#[derive(Clone, Debug)]
pub(crate) enum First {
    /// Names below the destination.
    Host(Vec<Vec<u8>>),
    Image(Ino),
}

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DEFAULT_ACL: &[u8] = b"system.posix_acl_default";

impl Dir {
    /// Returns what has the name, links not followed.
    pub(crate) fn look(&self, name: &[u8]) -> Result<Option<About>, Trouble> {
        match self {
            Dir::Host(dir) => {
                let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let found = match fs::openat(dir, name, flags, Mode::empty()) {
                    Ok(found) => std::fs::File::from(found),
                    Err(Errno::NOENT) => return Ok(None),
                    Err(errno) => return Err(Trouble::Host("look at what is there", errno)),
                };
                let meta = found.metadata().map_err(io("look at what is there"))?;
                Ok(Some(About::on_host(&meta)))
            }
            Dir::Image(image, dir) => match dir.stat(name) {
                Ok(meta) => Ok(Some(About::in_image(*image, &meta))),
                Err(FsError::NotFound { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            },
        }
    }

    /// The identity of the directory itself.
    pub(crate) fn id(&self) -> Result<Id, Trouble> {
        match self {
            Dir::Host(dir) => {
                let found = fs::fstat(dir).map_err(on_host("look at it"))?;
                Ok(Id::Host(found.st_dev, found.st_ino))
            }
            Dir::Image(image, dir) => Ok(Id::Image(*image, dir.ino().0)),
        }
    }

    /// The directory of that name.
    pub(crate) fn enter(&self, name: &[u8]) -> Result<Dir, Trouble> {
        match self {
            Dir::Host(dir) => {
                let dir = host::open_below(dir, name).map_err(on_host("open the directory"))?;
                Ok(Dir::Host(Arc::new(dir)))
            }
            Dir::Image(image, dir) => {
                let found = dir.lookup(name)?;
                if !found.is_dir() {
                    return Err(FsError::NotADirectory { ino: found.ino(), at: None }.into());
                }
                Ok(Dir::Image(*image, found))
            }
        }
    }

    /// Owner and permissions of the copy of a file in an image.
    fn new_inode(&self, about: &About, what: &Preserve, defaults: &Defaults) -> NewInode {
        let mut new = NewInode::root(0);
        new.permissions = match what.mode {
            true => about.permissions,
            // A default ACL takes the place of the umask.
            false if self.has_default_acl() => about.permissions & 0o777,
            false => about.permissions & 0o777 & !defaults.umask,
        };
        (new.uid, new.gid) = match what.ownership {
            true => (about.uid, about.gid),
            false => defaults.owner,
        };
        new
    }

    /// One that cannot be read is not asked; making something in the directory will say why.
    fn has_default_acl(&self) -> bool {
        let Dir::Image(_, dir) = self else { return false };
        dir.acl(AclKind::Default).ok().flatten().is_some()
    }

    /// The mode with which something is made on the host. What gets its owner or mode later is
    /// nobody else's until then, and may be written, for the sake of its attributes.
    fn first_mode(about: &About, what: &Preserve) -> Mode {
        let permissions = about.permissions & 0o777;
        let private = what.mode || what.ownership;
        Mode::from(u32::from(if private { permissions & 0o700 | 0o200 } else { permissions }))
    }

    /// Makes a directory, which can be filled.
    pub(crate) fn make_dir(
        &self,
        name: &[u8],
        about: &About,
        what: &Preserve,
        defaults: &Defaults,
    ) -> Result<Dir, Trouble> {
        match self {
            Dir::Host(dir) => {
                let mode = Dir::first_mode(about, what) | Mode::RWXU;
                fs::mkdirat(dir, name, mode).map_err(on_host("create"))?;
                self.enter(name)
            }
            Dir::Image(image, dir) => {
                Ok(Dir::Image(*image, dir.mkdir(name, &self.new_inode(about, what, defaults))?))
            }
        }
    }

    /// Makes a file that was not there.
    pub(crate) fn create(
        &self,
        name: &[u8],
        about: &About,
        what: &Preserve,
        defaults: &Defaults,
    ) -> Result<Sink, Trouble> {
        match self {
            Dir::Host(dir) => {
                Ok(Sink::Host(host::create(dir, name, Dir::first_mode(about, what))?))
            }
            Dir::Image(_, dir) => {
                Ok(Sink::Image(dir.create(name, &self.new_inode(about, what, defaults))?))
            }
        }
    }

    /// Opens a file that is there, and empties it.
    pub(crate) fn overwrite(&self, name: &[u8]) -> Result<Sink, Trouble> {
        match self {
            Dir::Host(dir) => {
                let flags = OFlags::WRONLY | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let flags = flags | OFlags::NONBLOCK;
                let file = fs::openat(dir, name, flags, Mode::empty());
                Ok(Sink::Host(file.map_err(on_host("open it for writing"))?))
            }
            Dir::Image(_, dir) => {
                let inode = dir.lookup(name)?;
                inode.truncate(0)?;
                Ok(Sink::Image(inode))
            }
        }
    }

    /// Makes a symbolic link.
    pub(crate) fn symlink(
        &self,
        name: &[u8],
        target: &[u8],
        about: &About,
        what: &Preserve,
        defaults: &Defaults,
    ) -> Result<(), Trouble> {
        match self {
            Dir::Host(dir) => fs::symlinkat(target, dir, name).map_err(on_host("create")),
            Dir::Image(_, dir) => {
                dir.symlink(name, target, &self.new_inode(about, what, defaults))?;
                Ok(())
            }
        }
    }

    /// Makes a device, a pipe or a socket.
    pub(crate) fn special(
        &self,
        name: &[u8],
        about: &About,
        what: &Preserve,
        defaults: &Defaults,
    ) -> Result<(), Trouble> {
        let (major, minor) = about.rdev.unwrap_or((0, 0));
        match self {
            Dir::Host(dir) => {
                host::make_special(dir, name, about.kind, about.rdev, Dir::first_mode(about, what))
            }
            Dir::Image(_, dir) => {
                let special = match about.kind {
                    FileKind::CharDevice => Special::CharDevice { major, minor },
                    FileKind::BlockDevice => Special::BlockDevice { major, minor },
                    FileKind::Socket => Special::Socket,
                    _ => Special::Fifo,
                };
                dir.mknod(name, special, &self.new_inode(about, what, defaults))?;
                Ok(())
            }
        }
    }

    /// Another name for a copy made before; `root` is the directory that `first` counts from.
    pub(crate) fn link(&self, root: &Dir, first: &First, name: &[u8]) -> Result<(), Trouble> {
        match (self, root, first) {
            (Dir::Host(dir), Dir::Host(root), First::Host(first)) => {
                host::link(root, first, dir, name)
            }
            (Dir::Image(_, dir), _, First::Image(ino)) => {
                Ok(dir.link(name, &dir.fs().inode(*ino)?)?)
            }
            _ => Err(refused("its first name is not in the same file system", None)),
        }
    }

    /// Removes what is no directory.
    pub(crate) fn remove(&self, name: &[u8]) -> Result<(), Trouble> {
        match self {
            Dir::Host(dir) => {
                fs::unlinkat(dir, name, AtFlags::empty()).map_err(on_host("remove what is there"))
            }
            Dir::Image(_, dir) => Ok(dir.unlink(name)?),
        }
    }
}

impl Copy<'_> {
    /// The inode of an image that it is; `None` on the host.
    fn inode(&self) -> Result<Option<Inode>, Trouble> {
        match self {
            Copy::Sink(Sink::Image(inode)) | Copy::Dir(Dir::Image(_, inode)) => {
                Ok(Some(inode.clone()))
            }
            Copy::Named(Dir::Image(_, dir), name) => Ok(Some(dir.lookup(name)?)),
            _ => Ok(None),
        }
    }

    fn made(&self, kind: FileKind) -> Option<Made<'_>> {
        match self {
            Copy::Sink(Sink::Host(file)) => Some(Made::Open(file.as_fd())),
            Copy::Dir(Dir::Host(dir)) => Some(Made::Open(dir.as_fd())),
            Copy::Named(Dir::Host(dir), name) => Some(Made::Named(dir, name, kind)),
            _ => None,
        }
    }

    /// Gives the copy its attributes, in the order in which none undoes another: a change of owner
    /// drops capabilities, and both change the mode. `is_new`: it was made just now.
    pub(crate) fn finish(
        &self,
        from: &Node,
        is_new: bool,
        what: &Preserve,
        defaults: &Defaults,
        omitted: &mut Omitted,
    ) -> Result<(), Fault> {
        let xattrs = match what.mode || what.xattrs {
            true => from.xattrs().map_err(Fault::From)?,
            false => Vec::new(),
        };
        let wanted = |name: &[u8]| match name == ACCESS_ACL || name == DEFAULT_ACL {
            true => what.mode,
            false => what.xattrs,
        };
        let xattrs: Vec<_> = xattrs.into_iter().filter(|xattr| wanted(&xattr.name)).collect();
        let has = |name: &[u8]| xattrs.iter().any(|xattr| xattr.name == name);
        // One that came from the directory is not the source's.
        let mut stale = Vec::new();
        if what.mode && from.about.kind != FileKind::Symlink {
            stale.extend([ACCESS_ACL].into_iter().filter(|name| !has(name)));
            let is_dir = from.about.kind == FileKind::Directory;
            stale.extend([DEFAULT_ACL].into_iter().filter(|name| is_dir && !has(name)));
        }
        let given = (&xattrs[..], &stale[..]);
        match self.inode().map_err(Fault::To)? {
            Some(inode) => finish_inode(&inode, &from.about, what, given).map_err(Fault::To),
            None => match self.made(from.about.kind) {
                Some(made) => {
                    finish_host(&made, &from.about, is_new, what, defaults, given, omitted)
                        .map_err(Fault::To)
                }
                None => Ok(()),
            },
        }
    }
}

/// Attributes to be set, and names of those to be removed.
type Given<'a> = (&'a [extant::Xattr], &'a [&'a [u8]]);

fn finish_inode(
    inode: &Inode,
    about: &About,
    what: &Preserve,
    (xattrs, stale): Given<'_>,
) -> Result<(), Trouble> {
    let mut changes = SetAttributes::new();
    if what.ownership {
        changes = changes.owner(Some(about.uid), Some(about.gid));
    }
    if what.mode && about.kind != FileKind::Symlink {
        changes = changes.permissions(about.permissions);
    }
    if what.timestamps {
        let (atime, mtime) = (TimeChange::To(about.atime), TimeChange::To(about.mtime));
        changes = changes.times(Some(atime), Some(mtime));
    }
    for name in stale {
        match inode.remove_xattr(name) {
            Ok(()) | Err(FsError::NoAttribute { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if changes != SetAttributes::new() {
        inode.set_attributes(&changes)?;
    }
    let mut result = Ok(());
    for xattr in xattrs {
        let set = inode.set_xattr(&xattr.name, &xattr.value, XattrMode::default());
        result = result.and(set.map_err(Trouble::from));
    }
    result
}

fn finish_host(
    made: &Made<'_>,
    about: &About,
    is_new: bool,
    what: &Preserve,
    defaults: &Defaults,
    (xattrs, stale): Given<'_>,
    omitted: &mut Omitted,
) -> Result<(), Trouble> {
    if what.ownership && defaults.privileged {
        made.set_owner(about)?;
    } else if what.ownership {
        omitted.owner(about);
    }
    for name in stale {
        match made.remove_xattr(name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(Trouble::Host("remove an ACL that came by itself", errno)),
        }
    }
    let mut result = Ok(());
    let mut set = |xattr: &extant::Xattr| {
        if !defaults.privileged && !host::is_open_to_all(&xattr.name) {
            omitted.xattrs += 1;
            return;
        }
        let set = made.set_xattr(&xattr.name, &xattr.value);
        let set = set.map_err(on_host("set an extended attribute"));
        result = std::mem::replace(&mut result, Ok(())).and(set);
    };
    xattrs.iter().filter(|xattr| host::wants_write(&xattr.name)).for_each(&mut set);
    if what.mode {
        made.set_mode(host::allowed_mode(about.permissions, defaults.privileged))?;
    } else if is_new && (what.ownership || about.permissions & 0o700 != 0o700) {
        // Made private, or, a directory, so that it could be filled.
        let is_dir = about.kind == FileKind::Directory;
        if what.ownership || is_dir {
            made.set_mode(about.permissions & 0o777 & !defaults.umask)?;
        }
    }
    xattrs.iter().filter(|xattr| !host::wants_write(&xattr.name)).for_each(&mut set);
    if what.timestamps {
        made.set_times(about)?;
    }
    result
}
