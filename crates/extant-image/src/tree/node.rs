//! What a tree consists of: files with their attributes, and names.

use std::ops::Range;

/// Index of a node of one [`Tree`](super::Tree).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The root directory.
    pub const ROOT: NodeId = NodeId(0);

    /// As an index of [`Tree::nodes`](super::Tree::nodes).
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// Kind of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link; its target is in the arena.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

/// Seconds since 1970 (negative before) and nanoseconds, 0..1_000_000_000.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub sec: i64,
    /// Nanoseconds after `sec`.
    pub nsec: u32,
}

/// Place of a byte string in the arena.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ArenaRef {
    pub(super) start: u32,
    /// High 16 bits of the start, so that the arena may pass 4 GiB.
    pub(super) start_hi: u16,
    pub(super) len: u16,
}

impl ArenaRef {
    pub(super) fn range(self) -> Range<usize> {
        let start = (usize::from(self.start_hi) << 32) | self.start as usize;
        start..start + usize::from(self.len)
    }
}

/// Index of a set of extended attributes; 0 is the empty set.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct XattrSetId(pub u32);

/// Extended attributes of one file, sorted by name: full names ("user.comment",
/// "security.capability", "system.posix_acl_access") and values as the kernel's xattr calls
/// return them.
pub type XattrSet = Vec<(Box<[u8]>, Box<[u8]>)>;

/// A run of bytes of a file that is stored; what lies between runs is a hole.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DataRun {
    /// First byte in the file.
    pub offset: u64,
    /// Length in bytes, at least 1.
    pub len: u64,
    /// Place of these bytes in the source, in its own terms (a tar offset, or `offset` again).
    pub locator: u64,
}

/// One file of any kind.
#[derive(Clone, Copy, Debug)]
pub struct Node {
    /// Kind of the file.
    pub kind: Kind,
    /// Permission, set-id and sticky bits, `0o7777`.
    pub mode: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Last change of contents.
    pub mtime: Time,
    /// Last access.
    pub atime: Time,
    /// Last change of attributes.
    pub ctime: Time,
    /// Bytes of a regular file; length of a symlink's target; 0 for the rest.
    pub size: u64,
    /// `(major, minor)` of a device.
    pub rdev: (u32, u32),
    /// Extended attributes of the file.
    pub xattrs: XattrSetId,
    /// Place of the contents in the source, in its own terms.
    pub locator: u64,
    /// Flags as `chattr` has them, in the numbers of `FS_IOC_GETFLAGS`; files and directories only.
    pub flags: u32,
    /// Project id, for quotas of directory trees; 0 for none.
    pub project: u32,
    /// Number of the key that the node is encrypted with; 0 for none. See [`encrypt`](crate::encrypt).
    pub key: u16,
    /// Which of several sources has the contents.
    pub source: u16,
    /// Whether the contents of a regular file are sealed by fs-verity.
    pub sealed: bool,
    /// Target of a symlink.
    pub target: ArenaRef,
    /// Index of the list of data runs, when the file has holes; `NO_RUNS` when it has none.
    pub runs: u32,
    /// How many names it has; a directory has 1. Set by [`TreeBuilder::finish`](super::TreeBuilder::finish).
    pub name_count: u32,
    /// The first entry (in walk order) that names it. Set by [`TreeBuilder::finish`](super::TreeBuilder::finish).
    pub first_entry: u32,
}

/// [`Node::runs`] of a file without holes.
pub const NO_RUNS: u32 = u32::MAX;

impl Node {
    /// A node of `kind` with nothing set.
    pub fn new(kind: Kind) -> Node {
        Node {
            kind,
            mode: 0,
            uid: 0,
            gid: 0,
            mtime: Time::default(),
            atime: Time::default(),
            ctime: Time::default(),
            size: 0,
            rdev: (0, 0),
            xattrs: XattrSetId::default(),
            locator: 0,
            flags: 0,
            project: 0,
            key: 0,
            source: 0,
            sealed: false,
            target: ArenaRef::default(),
            runs: NO_RUNS,
            name_count: 0,
            first_entry: u32::MAX,
        }
    }
}

/// One name in one directory.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The directory.
    pub parent: NodeId,
    /// The node of the name.
    pub node: NodeId,
    pub(super) name: ArenaRef,
}
