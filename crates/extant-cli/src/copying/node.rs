//! What is copied: a file of the host or of an image.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use extant::{FileKind, Inode, Metadata, Timestamp, Xattr};
use rustix::fs::{OFlags, major, minor};
use rustix::io::Errno;

use super::content::Content;
use super::{FIND, Trouble, host, io, refused};
use crate::edit::join;

/// Longest list of names or value of an extended attribute that Linux returns, in bytes.
const XATTR_BYTES_MAX: usize = 64 << 10;

/// Which file it is, among all that one command meets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Id {
    /// Device and inode of the host.
    Host(u64, u64),
    /// Which image, and the inode.
    Image(usize, u32),
}

/// The attributes that all kinds of files have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct About {
    pub(crate) kind: FileKind,
    /// `0..=0o7777`.
    pub(crate) permissions: u16,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) atime: Timestamp,
    pub(crate) mtime: Timestamp,
    /// Major and minor number of a device.
    pub(crate) rdev: Option<(u32, u32)>,
    pub(crate) size: u64,
    /// Bytes that are no holes, about.
    pub(crate) stored_bytes: u64,
    pub(crate) links: u64,
    pub(crate) id: Id,
}

impl About {
    /// Attributes of a file in image number `image`.
    pub(crate) fn in_image(image: usize, meta: &Metadata) -> About {
        About {
            kind: meta.kind,
            permissions: meta.permissions,
            uid: meta.uid,
            gid: meta.gid,
            atime: meta.atime,
            mtime: meta.mtime,
            rdev: meta.rdev,
            size: meta.size,
            stored_bytes: meta.size.min(meta.blocks.saturating_mul(512)),
            links: u64::from(meta.links),
            id: Id::Image(image, meta.ino.0),
        }
    }

    /// Attributes of a file of the host.
    pub(crate) fn on_host(meta: &std::fs::Metadata) -> About {
        let kind = meta.file_type();
        let kind = match () {
            () if kind.is_dir() => FileKind::Directory,
            () if kind.is_symlink() => FileKind::Symlink,
            () if kind.is_char_device() => FileKind::CharDevice,
            () if kind.is_block_device() => FileKind::BlockDevice,
            () if kind.is_fifo() => FileKind::Fifo,
            () if kind.is_socket() => FileKind::Socket,
            () => FileKind::Regular,
        };
        let nanos = |nanos: i64| u32::try_from(nanos).unwrap_or(0);
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        About {
            kind,
            permissions: (meta.mode() & 0o7777) as u16,
            uid: meta.uid(),
            gid: meta.gid(),
            atime: Timestamp::new(meta.atime(), nanos(meta.atime_nsec())),
            mtime: Timestamp::new(meta.mtime(), nanos(meta.mtime_nsec())),
            rdev: is_device.then(|| (major(meta.rdev()), minor(meta.rdev()))),
            size: meta.size(),
            stored_bytes: meta.size().min(meta.blocks().saturating_mul(512)),
            links: meta.nlink(),
            id: Id::Host(meta.dev(), meta.ino()),
        }
    }
}

enum What {
    Host,
    /// Which image; and whether it is open for changes.
    Image(usize, bool, Inode),
}

/// A file that is copied, as it was when it was looked up.
pub(crate) struct Node {
    pub(crate) path: Vec<u8>,
    pub(crate) about: About,
    what: What,
}

impl Node {
    /// A file of the host; at the end of all links with `follow`.
    pub(crate) fn on_host(path: Vec<u8>, follow: bool) -> Result<Node, Trouble> {
        let at = Path::new(OsStr::from_bytes(&path));
        let found = if follow { at.metadata() } else { at.symlink_metadata() };
        let about = About::on_host(&found.map_err(io(FIND))?);
        Ok(Node { path, about, what: What::Host })
    }

    /// A file of image number `image`; `writable`: which is open for changes.
    pub(crate) fn in_image(path: Vec<u8>, image: usize, writable: bool, inode: Inode) -> Node {
        let about = About::in_image(image, &inode.metadata());
        Node { path, about, what: What::Image(image, writable, inode) }
    }

    /// The names in a directory, sorted, and what could not be read of it.
    pub(crate) fn names(&self) -> (Vec<Vec<u8>>, Vec<Trouble>) {
        let (mut names, mut troubles) = (Vec::new(), Vec::new());
        match &self.what {
            What::Host => match std::fs::read_dir(OsStr::from_bytes(&self.path)) {
                Ok(entries) => {
                    for entry in entries {
                        match entry {
                            Ok(entry) => names.push(entry.file_name().as_bytes().to_vec()),
                            Err(error) => {
                                troubles.push(io("list the directory")(error));
                                break;
                            }
                        }
                    }
                }
                Err(error) => troubles.push(io("list the directory")(error)),
            },
            What::Image(_, _, inode) => match inode.read_dir() {
                Ok(entries) => {
                    for entry in entries {
                        match entry {
                            Ok(entry) => names.push(entry.name().to_vec()),
                            Err(error) => troubles.push(error.into()),
                        }
                    }
                }
                Err(error) => troubles.push(error.into()),
            },
        }
        names.sort_unstable();
        (names, troubles)
    }

    /// Returns what has a name in this directory.
    pub(crate) fn child(&self, name: &[u8], follow: bool) -> Result<Node, Trouble> {
        let path = join(&self.path, name);
        match &self.what {
            What::Host => Node::on_host(path, follow),
            What::Image(image, writable, dir) => {
                let mut inode = dir.lookup(name)?;
                if follow && inode.is_symlink() {
                    inode = inode.fs().resolve(&path)?;
                }
                Ok(Node::in_image(path, *image, *writable, inode))
            }
        }
    }

    /// The target of a symbolic link.
    pub(crate) fn target(&self) -> Result<Vec<u8>, Trouble> {
        match &self.what {
            What::Host => {
                let target = std::fs::read_link(OsStr::from_bytes(&self.path));
                let target = target.map_err(io("read the link"))?;
                Ok(target.into_os_string().as_bytes().to_vec())
            }
            What::Image(_, _, inode) => Ok(inode.read_link()?),
        }
    }

    /// Opens a file for reading.
    pub(crate) fn content(&self) -> Result<Content, Trouble> {
        match &self.what {
            What::Host => {
                let mut options = File::options();
                // A pipe is not waited for here: nothing ends that wait, and reading waits so that a signal does.
                options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
                let file = options.open(OsStr::from_bytes(&self.path)).map_err(io("open"))?;
                let meta = file.metadata().map_err(io("open"))?;
                let found = About::on_host(&meta);
                if (found.id, found.kind) != (self.about.id, self.about.kind) {
                    return Err(refused("it became another file meanwhile", None));
                }
                // Files of /proc say that they are empty.
                let is_stream = !meta.is_file() || meta.len() == 0;
                Ok(Content::Host { file, len: meta.len(), is_stream })
            }
            What::Image(_, writable, inode) => {
                if self.about.kind != FileKind::Regular {
                    let hint = "-r copies what it is, not what is read from it";
                    return Err(refused("it is no regular file", Some(hint)));
                }
                Ok(Content::Image { inode: inode.clone(), writable: *writable })
            }
        }
    }

    /// The extended attributes, ACLs among them in the form that programs use.
    pub(crate) fn xattrs(&self) -> Result<Vec<Xattr>, Trouble> {
        let What::Image(_, _, inode) = &self.what else { return self.host_xattrs() };
        Ok(inode.xattrs()?)
    }

    fn host_xattrs(&self) -> Result<Vec<Xattr>, Trouble> {
        let path = OsStr::from_bytes(&self.path);
        let mut list = vec![0; XATTR_BYTES_MAX];
        // A link that was followed has the attributes of its target.
        let follow = self.about.kind != FileKind::Symlink;
        let len = match follow {
            true => rustix::fs::listxattr(path, &mut list[..]),
            false => rustix::fs::llistxattr(path, &mut list[..]),
        };
        let len = match len {
            Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
            len => len.map_err(host("list extended attributes"))?,
        };
        let mut xattrs = Vec::new();
        for name in list[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
            let mut value = vec![0; XATTR_BYTES_MAX];
            let len = match follow {
                true => rustix::fs::getxattr(path, name, &mut value[..]),
                false => rustix::fs::lgetxattr(path, name, &mut value[..]),
            };
            match len {
                Ok(len) => value.truncate(len),
                // Removed meanwhile.
                Err(Errno::NODATA) => continue,
                Err(errno) => return Err(Trouble::Host("read extended attributes", errno)),
            }
            xattrs.push(Xattr { name: name.to_vec(), value });
        }
        Ok(xattrs)
    }
}
