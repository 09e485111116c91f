//! The operations of a file system, for any transport.
//!
//! # Place
//!
//! Above: a transport (`connection`, `dispatch`) turns requests of the kernel into these calls and
//! their results into replies. Below: `ext4` answers them. This module does not know the wire
//! format.
//!
//! Nodes are named by numbers: the root is 1, others have the number that the answer to a lookup
//! gave them, and are known until as many lookups are forgotten as were answered.

use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use extant::SpaceFor;
use extant_sync::RwLockReadGuard;

use crate::gate::Gate;

/// A node, by the number that the kernel uses for it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct NodeId(pub u64);

impl NodeId {
    /// No node: the answer for a name that does not exist.
    pub const NONE: NodeId = NodeId(0);
    /// The root directory.
    pub const ROOT: NodeId = NodeId(1);
}

/// An open file, by the number that was given out when it was opened.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Handle(pub u64);

impl Handle {
    /// The number of files of which nothing needs to be known while they are open.
    pub const NONE: Handle = Handle(0);
}

/// A byte of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// The file.
    pub node: NodeId,
    /// Offset in it, in bytes.
    pub offset: u64,
}

/// Bytes of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bytes {
    /// The file.
    pub node: NodeId,
    /// Which bytes of it: from the first to the one behind the last.
    pub range: Range<u64>,
}

impl Bytes {
    /// Returns how many they are.
    pub fn len(&self) -> u64 {
        self.range.end.saturating_sub(self.range.start)
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }
}

/// The thing that is looked for in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sought {
    /// The next byte that is not in a hole (`SEEK_DATA`).
    Data,
    /// The next byte that is in one; the end of the file counts as such (`SEEK_HOLE`).
    Hole,
}

/// The reason why a request failed: an error number of Linux, positive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// No answer yet: too many threads wait for work that only others can do. Internal to the
    /// server, and never sent.
    pub(crate) const LATER: Errno = Errno(i32::MIN);
    /// No such operation: the kernel does not ask again, where it can do without.
    pub const ENOSYS: Errno = Errno(38);
    /// The operation is not permitted, for any caller or for this one.
    pub const EPERM: Errno = Errno(1);
    /// Nothing has this name.
    pub const ENOENT: Errno = Errno(2);
    /// A device failed, or the file system was shut down.
    pub const EIO: Errno = Errno(5);
    /// No such address, or no more data behind an offset.
    pub const ENXIO: Errno = Errno(6);
    /// No changes here.
    pub const EROFS: Errno = Errno(30);
    /// The file system is damaged.
    pub const EUCLEAN: Errno = Errno(117);
    /// The permissions forbid it.
    pub const EACCES: Errno = Errno(13);
    /// The file would become larger than files can be.
    pub const EFBIG: Errno = Errno(27);
    /// Arguments make no sense.
    pub const EINVAL: Errno = Errno(22);
    /// No such control operation.
    pub const ENOTTY: Errno = Errno(25);
    /// The file is open for writing.
    pub const ETXTBSY: Errno = Errno(26);
    /// An argument is longer than it may be.
    pub const EMSGSIZE: Errno = Errno(90);
    /// The result does not fit.
    pub const ERANGE: Errno = Errno(34);
    /// No such attribute.
    pub const ENODATA: Errno = Errno(61);
    /// A number does not fit its field; an owner that cannot be stored.
    pub const EOVERFLOW: Errno = Errno(75);
    /// The operation is known and not for this.
    pub const EOPNOTSUPP: Errno = Errno(95);
    /// The operation is not possible now; a later try may succeed.
    pub const EAGAIN: Errno = Errno(11);
    /// No room.
    pub const ENOSPC: Errno = Errno(28);
    /// No room for this owner.
    pub const EDQUOT: Errno = Errno(122);
    /// The inode is gone.
    pub const ESTALE: Errno = Errno(116);
}

impl From<&extant::FsError> for Errno {
    fn from(error: &extant::FsError) -> Errno {
        Errno(error.errno())
    }
}

/// The result of a request.
pub type Reply<T> = Result<T, Errno>;

/// The thread of a program that asks, or the kernel itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Caller {
    /// The user for file-system access.
    pub uid: u32,
    /// The group for file-system access.
    pub gid: u32,
    /// The thread that called; 0 when the kernel asks on its own account, or the caller lives in a PID
    /// name space that is not visible here.
    pub pid: u32,
}

/// A moment: seconds since 1970 and nanoseconds below 10^9 after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub seconds: i64,
    /// Nanoseconds.
    pub nanos: u32,
}

/// Attributes of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Inode number to show.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Space in units of 512 bytes.
    pub blocks: u64,
    /// Last access.
    pub atime: Time,
    /// Last change of contents.
    pub mtime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Creation, where it is known.
    pub btime: Option<Time>,
    /// Type and permissions, as `st_mode`.
    pub mode: u32,
    /// Names.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device numbers, of a device.
    pub rdev: (u32, u32),
    /// Preferred size of I/O.
    pub blksize: u32,
    /// `STATX_ATTR_*`: compressed, immutable, append-only, no dump, encrypted, verity.
    pub statx_attributes: u64,
    /// How long the kernel may take them for good; `None` for ever.
    pub valid_for: Option<Duration>,
}

/// The answer to a lookup: the kernel knows the node once more.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The node; [`NodeId::NONE`] for a name that is known not to exist.
    pub node: NodeId,
    /// Tells nodes apart that had the number one after the other.
    pub generation: u64,
    /// Whether the kernel may cache the name: not in directories where several spellings mean one
    /// name.
    pub keep_name: bool,
    /// The attributes of the node.
    pub attributes: Attributes,
}

/// An open file or directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Opened {
    /// Comes back with each request about it.
    pub handle: Handle,
    /// The kernel keeps what it has cached of the contents (or of the listing).
    pub keep_cache: bool,
    /// The kernel caches nothing: each read and write through this file is a request.
    pub direct: bool,
}

/// A new value for a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The time of the request.
    Now,
    /// This time.
    To(Time),
}

/// Changes of attributes that come together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SetAttr {
    /// Permissions, with or without the type.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Size in bytes.
    pub size: Option<u64>,
    /// Last access.
    pub atime: Option<SetTime>,
    /// Last change of contents.
    pub mtime: Option<SetTime>,
    /// Last change of attributes, when the kernel keeps it.
    pub ctime: Option<Time>,
    /// Set-id bits go with a new size: the caller may not keep them.
    pub take_set_id: bool,
}

/// The properties of a new node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct New {
    /// Type and permissions.
    pub mode: u32,
    /// The caller's umask, which an ACL may override.
    pub umask: u32,
    /// Device numbers, of a device.
    pub rdev: (u32, u32),
}

/// The manner of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct WriteHow {
    /// The kernel's cache brings what was written before.
    pub from_cache: bool,
    /// Set-id bits go.
    pub take_set_id: bool,
    /// The program asked for no cache in between.
    pub direct: bool,
    /// The write is durable before it returns: the file was opened so. The kernel leaves that to us when the
    /// file is open past its cache.
    pub durable: Option<DurableWrite>,
}

/// The part of a write that is to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DurableWrite {
    /// The bytes, and what is needed to read them (`O_DSYNC`).
    Data,
    /// Attributes as well (`O_SYNC`).
    All,
}

impl DurableWrite {
    /// Returns what a file opened with these flags asks for.
    pub(crate) fn asked_by(flags: u32) -> Option<DurableWrite> {
        const O_DSYNC: u32 = 0o1_0000;
        const O_SYNC: u32 = 0o401_0000;
        match flags & O_SYNC {
            O_SYNC => Some(DurableWrite::All),
            O_DSYNC => Some(DurableWrite::Data),
            _ => None,
        }
    }
}

/// Takes the bytes of a read, once.
pub trait ReadAnswer {
    /// Sends the bytes.
    ///
    /// # Errors
    ///
    /// The kernel refused them, because no caller waits any more.
    fn send(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<()>;

    /// Sends parts of an open file, places and lengths, without a copy in between. `false` when that is not
    /// to be done or was not done: nothing is sent then.
    fn send_parts_of(&mut self, file: BorrowedFd<'_>, parts: &[(u64, u64)]) -> bool {
        let _ = (file, parts);
        false
    }

    /// `len` bytes of memory that is sent without another copy, by [`send_filled`](ReadAnswer::send_filled); what is
    /// in them is left from before. `None` where there is none of that size: then nothing is better than
    /// [`send`](ReadAnswer::send).
    fn buffer(&mut self, len: usize) -> Option<&mut [u8]> {
        let _ = len;
        None
    }

    /// Sends the first `len` bytes of [`buffer`](ReadAnswer::buffer).
    ///
    /// # Errors
    ///
    /// There is no such memory, or as [`send`](ReadAnswer::send).
    fn send_filled(&mut self, len: usize) -> io::Result<()> {
        let _ = len;
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// Takes the entries of a directory until it is full.
pub trait DirAnswer {
    /// Returns whether attributes are wanted with the names.
    fn wants_attributes(&self) -> bool;

    /// Adds an entry; `cookie` is the position behind it, `kind` as in `d_type`. With an `entry`
    /// the kernel's lookup count of the node increases. Returns false if the buffer is full and the
    /// entry was not added.
    fn add(&mut self, name: &[u8], ino: u64, kind: u8, cookie: u64, entry: Option<&Entry>) -> bool;

    /// Returns whether an entry with such a name would fit.
    fn has_room_for(&self, name: &[u8]) -> bool;
}

/// Totals of a file system.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Totals {
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Blocks.
    pub blocks: u64,
    /// Free ones.
    pub blocks_free: u64,
    /// Free ones for ordinary users.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free ones.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// A control operation.
#[derive(Clone, Copy, Debug)]
pub struct Ioctl<'a> {
    /// The number of the operation.
    pub command: u32,
    /// The caller's argument, often an address in its memory.
    pub argument: u64,
    /// The bytes that the kernel copied from the caller.
    pub input: &'a [u8],
    /// Most bytes that it copies back.
    pub output_max: u32,
    /// The caller is a 32-bit program.
    pub is_compat: bool,
}

/// The operations of a file system. Each method may be called by several threads at once.
///
/// The kernel has checked permissions before (`default_permissions`), except where noted.
pub trait Operations: Send + Sync {
    /// Makes the work for a request allocate on behalf of its caller, until the guard is dropped.
    fn takes_space_for(&self, _caller: Caller) -> Option<SpaceFor> {
        None
    }
    /// The node of `name` in directory `parent`.
    fn lookup(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<Entry>;
    /// The kernel forgets `count` lookups of a node.
    fn forget(&self, node: NodeId, count: u64);
    /// Attributes of a node.
    ///
    /// `through` is the handle of the open file that asks. Linux names it only on behalf of a program
    /// that is about to write through the cache (or to read behind the end, or to seek to it), and only when its
    /// attributes are not good any more; the program is given the error.
    fn attributes(&self, node: NodeId, through: Option<Handle>) -> Reply<Attributes>;
    /// Changes attributes; the new ones.
    fn set_attributes(&self, caller: Caller, node: NodeId, changes: &SetAttr) -> Reply<Attributes>;
    /// The target of a symbolic link.
    fn read_link(&self, node: NodeId) -> Reply<Vec<u8>>;
    /// Makes a symbolic link.
    fn symlink(&self, caller: Caller, parent: NodeId, name: &[u8], target: &[u8]) -> Reply<Entry>;
    /// Makes a file that is no directory and no link.
    fn mknod(&self, caller: Caller, parent: NodeId, name: &[u8], new: &New) -> Reply<Entry>;
    /// Makes a directory.
    fn mkdir(&self, caller: Caller, parent: NodeId, name: &[u8], new: &New) -> Reply<Entry>;
    /// Removes a name of what is no directory.
    fn unlink(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()>;
    /// Removes an empty directory.
    fn rmdir(&self, caller: Caller, parent: NodeId, name: &[u8]) -> Reply<()>;
    /// Moves a name; `flags` as `renameat2`.
    fn rename(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new_parent: NodeId,
        new_name: &[u8],
        flags: u32,
    ) -> Reply<()>;
    /// Another name for a node.
    fn link(&self, caller: Caller, node: NodeId, parent: NodeId, name: &[u8]) -> Reply<Entry>;
    /// Opens a file; `flags` as `open`. [`Errno::ENOSYS`]: opening needs no request.
    fn open(&self, caller: Caller, node: NodeId, flags: u32) -> Reply<Opened>;
    /// Makes a file and opens it.
    fn create(
        &self,
        caller: Caller,
        parent: NodeId,
        name: &[u8],
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)>;
    /// Makes a file without a name and opens it.
    fn tmpfile(
        &self,
        caller: Caller,
        parent: NodeId,
        new: &New,
        flags: u32,
    ) -> Reply<(Entry, Opened)>;
    /// The last use of an open file ended.
    fn release(&self, node: NodeId, handle: Handle);
    /// Reads `wanted` as far as the file goes; sends the bytes and returns `Ok`, or returns an error without sending.
    /// A transport asks for a few MiB at most.
    fn read(&self, wanted: Bytes, handle: Handle, answer: &mut dyn ReadAnswer) -> Reply<()>;
    /// Writes `bytes`, and returns how many were written.
    fn write(
        &self,
        caller: Caller,
        to: Position,
        handle: Handle,
        bytes: &[u8],
        how: WriteHow,
    ) -> Reply<u32>;
    /// Makes a file or directory durable; contents alone with `data_only`.
    fn sync(&self, node: NodeId, handle: Handle, data_only: bool) -> Reply<()>;
    /// Makes everything durable.
    fn sync_all(&self) -> Reply<()>;
    /// The mount is gone, and the kernel waits for whatever is to happen then. Not every mount says so.
    fn end(&self) {}
    /// Totals.
    fn totals(&self) -> Reply<Totals>;
    /// Sets an extended attribute; `flags` as `setxattr`. `take_set_gid`: the caller may not keep
    /// the set-gid bit.
    fn set_xattr(
        &self,
        caller: Caller,
        node: NodeId,
        name: &[u8],
        value: &[u8],
        flags: u32,
        take_set_gid: bool,
    ) -> Reply<()>;
    /// An extended attribute.
    fn xattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> Reply<Vec<u8>>;
    /// Names of extended attributes, each with a zero byte behind it.
    fn xattr_names(&self, caller: Caller, node: NodeId) -> Reply<Vec<u8>>;
    /// Removes an extended attribute.
    fn remove_xattr(&self, caller: Caller, node: NodeId, name: &[u8]) -> Reply<()>;
    /// Opens a directory.
    fn open_dir(&self, caller: Caller, node: NodeId) -> Reply<Opened>;
    /// Lists a directory behind `cookie`, 0 for the start.
    fn read_dir(&self, node: NodeId, cookie: u64, answer: &mut dyn DirAnswer) -> Reply<()>;
    /// Changes the space for `bytes`; `mode` as `fallocate`.
    fn fallocate(&self, caller: Caller, bytes: Bytes, mode: u32) -> Reply<()>;
    /// Looks for data or a hole, and returns its offset: `from` itself, or behind it.
    fn seek(&self, from: Position, sought: Sought) -> Reply<u64>;
    /// Copies inside the file system, and returns how many bytes were copied.
    fn copy_range(&self, caller: Caller, from: Bytes, to: Position) -> Reply<u64>;
    /// A control operation: its output, and what the call returns.
    fn ioctl(&self, caller: Caller, node: NodeId, request: &Ioctl<'_>) -> Reply<Vec<u8>>;
    /// A regular file that the kernel knows, if one is found quickly: for a question that has no other purpose
    /// than to be answered.
    fn some_file(&self) -> Option<NodeId> {
        None
    }
    /// Returns whether what was put off (`Errno::LATER`) can be tried again now.
    fn may_try_again(&self) -> bool {
        true
    }
    /// Returns the gate of changes.
    fn gate(&self) -> &Gate;
    /// Kept until a request is answered: what answers stays the same file system meanwhile. `None` where it
    /// always does.
    fn stays(&self) -> Option<RwLockReadGuard<'_, ()>> {
        None
    }
}
