//! The records that pass between the kernel and the server.
//!
//! Layouts and numbers are those of FUSE 7.x as Linux exports them (`linux/fuse.h`), in the byte
//! order of the machine. Only what is used is here.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The protocol's major version.
pub(crate) const MAJOR: u32 = 7;
/// The newest minor version that is spoken here: extensions behind the header, TMPFILE, STATX.
pub(crate) const MINOR: u32 = 41;
/// The oldest kernel that is spoken to: 4.20's, the first with requests above 128 KiB.
pub(crate) const OLDEST_MINOR: u32 = 28;

/// Value of `InHeader::uid` and `gid` with `ALLOW_IDMAP`, for requests that create nothing: the ids
/// are not given.
pub(crate) const ID_NOT_TOLD: u32 = u32::MAX;

/// Operations, as numbered by the kernel.
pub(crate) mod op {
    pub(crate) const LOOKUP: u32 = 1;
    pub(crate) const FORGET: u32 = 2;
    pub(crate) const GETATTR: u32 = 3;
    pub(crate) const SETATTR: u32 = 4;
    pub(crate) const READLINK: u32 = 5;
    pub(crate) const SYMLINK: u32 = 6;
    pub(crate) const MKNOD: u32 = 8;
    pub(crate) const MKDIR: u32 = 9;
    pub(crate) const UNLINK: u32 = 10;
    pub(crate) const RMDIR: u32 = 11;
    pub(crate) const RENAME: u32 = 12;
    pub(crate) const LINK: u32 = 13;
    pub(crate) const OPEN: u32 = 14;
    pub(crate) const READ: u32 = 15;
    pub(crate) const WRITE: u32 = 16;
    pub(crate) const STATFS: u32 = 17;
    pub(crate) const RELEASE: u32 = 18;
    pub(crate) const FSYNC: u32 = 20;
    pub(crate) const SETXATTR: u32 = 21;
    pub(crate) const GETXATTR: u32 = 22;
    pub(crate) const LISTXATTR: u32 = 23;
    pub(crate) const REMOVEXATTR: u32 = 24;
    pub(crate) const INIT: u32 = 26;
    pub(crate) const OPENDIR: u32 = 27;
    pub(crate) const READDIR: u32 = 28;
    pub(crate) const RELEASEDIR: u32 = 29;
    pub(crate) const FSYNCDIR: u32 = 30;
    pub(crate) const CREATE: u32 = 35;
    pub(crate) const INTERRUPT: u32 = 36;
    pub(crate) const DESTROY: u32 = 38;
    pub(crate) const IOCTL: u32 = 39;
    pub(crate) const NOTIFY_REPLY: u32 = 41;
    pub(crate) const BATCH_FORGET: u32 = 42;
    pub(crate) const FALLOCATE: u32 = 43;
    pub(crate) const READDIRPLUS: u32 = 44;
    pub(crate) const RENAME2: u32 = 45;
    pub(crate) const LSEEK: u32 = 46;
    pub(crate) const COPY_FILE_RANGE: u32 = 47;
    pub(crate) const SYNCFS: u32 = 50;
    pub(crate) const TMPFILE: u32 = 51;
    pub(crate) const STATX: u32 = 52;
    pub(crate) const COPY_FILE_RANGE_64: u32 = 53;

    /// One more than the largest that is counted by name.
    pub(crate) const COUNT: u32 = 54;
}

bitflags::bitflags! {
    /// Abilities that kernel and server agree on when they meet.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct InitFlags: u64 {
        const ASYNC_READ = 1 << 0;
        const EXPORT_SUPPORT = 1 << 4;
        const BIG_WRITES = 1 << 5;
        const DONT_MASK = 1 << 6;
        const HAS_IOCTL_DIR = 1 << 11;
        const DO_READDIRPLUS = 1 << 13;
        const READDIRPLUS_AUTO = 1 << 14;
        const ASYNC_DIO = 1 << 15;
        const WRITEBACK_CACHE = 1 << 16;
        const NO_OPEN_SUPPORT = 1 << 17;
        const PARALLEL_DIROPS = 1 << 18;
        const POSIX_ACL = 1 << 20;
        const MAX_PAGES = 1 << 22;
        const CACHE_SYMLINKS = 1 << 23;
        const NO_OPENDIR_SUPPORT = 1 << 24;
        const EXPLICIT_INVAL_DATA = 1 << 25;
        const HANDLE_KILLPRIV_V2 = 1 << 28;
        const SETXATTR_EXT = 1 << 29;
        const INIT_EXT = 1 << 30;
        const DIRECT_IO_ALLOW_MMAP = 1 << 36;
        const ALLOW_IDMAP = 1 << 40;
        const OVER_IO_URING = 1 << 41;
    }

    /// Which fields of a SETATTR count.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(crate) struct SetattrValid: u32 {
        const MODE = 1 << 0;
        const UID = 1 << 1;
        const GID = 1 << 2;
        const SIZE = 1 << 3;
        const ATIME = 1 << 4;
        const MTIME = 1 << 5;
        const ATIME_NOW = 1 << 7;
        const MTIME_NOW = 1 << 8;
        const CTIME = 1 << 10;
        const KILL_SUIDGID = 1 << 11;
    }
}

/// In `WriteIn::write_flags`: the kernel writes back what it had cached.
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
/// In `WriteIn::write_flags`: the writer may not keep set-id bits.
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
/// In `SetxattrIn::setxattr_flags`: setting the ACL takes the set-gid bit.
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
/// The `whence` of a search for data.
pub(crate) const SEEK_DATA: u32 = 3;
/// The `whence` of a search for a hole.
pub(crate) const SEEK_HOLE: u32 = 4;
/// In `FsyncIn::fsync_flags`: contents only.
pub(crate) const FSYNC_DATA: u32 = 1 << 0;
/// In `OpenOut::open_flags`: requests of this open file pass the kernel's cache.
pub(crate) const FOPEN_DIRECT_IO: u32 = 1 << 0;
/// In `OpenOut::open_flags`: what the kernel has cached stays good.
pub(crate) const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// In `OpenOut::open_flags`: the kernel may keep the listing of the directory.
pub(crate) const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// Flag of `GetattrIn::getattr_flags`: the request comes through an open file, whose handle it has.
pub(crate) const GETATTR_FH: u32 = 1 << 0;
/// Flag of `OpenOut::open_flags`: the kernel need not report closes.
pub(crate) const FOPEN_NOFLUSH: u32 = 1 << 5;
/// In `OpenOut::open_flags`, with [`FOPEN_DIRECT_IO`]: writes below the size go side by side.
pub(crate) const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

macro_rules! records {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty,)* } = $size:literal)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub(crate) struct $name { $(pub(crate) $field: $type,)* }

        const _: () = assert!(size_of::<$name>() == $size);
    )*};
}

records! {
    /// In front of each request.
    InHeader {
        len: u32, opcode: u32, unique: u64, nodeid: u64, uid: u32, gid: u32, pid: u32,
        total_extlen: u16, padding: u16,
    } = 40
    /// In front of each reply; `error` is 0 or negative.
    OutHeader { len: u32, error: i32, unique: u64, } = 16
    InitIn { major: u32, minor: u32, max_readahead: u32, flags: u32, } = 16
    /// Fields that newer kernels add to `InitIn`.
    InitInExt { flags2: u32, unused: [u32; 11], } = 48
    InitOut {
        major: u32, minor: u32, max_readahead: u32, flags: u32, max_background: u16,
        congestion_threshold: u16, max_write: u32, time_gran: u32, max_pages: u16,
        map_alignment: u16, flags2: u32, max_stack_depth: u32, request_timeout: u16,
        unused: [u16; 11],
    } = 64
    Attr {
        ino: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64, atimensec: u32,
        mtimensec: u32, ctimensec: u32, mode: u32, nlink: u32, uid: u32, gid: u32, rdev: u32,
        blksize: u32, flags: u32,
    } = 88
    EntryOut {
        nodeid: u64, generation: u64, entry_valid: u64, attr_valid: u64, entry_valid_nsec: u32,
        attr_valid_nsec: u32, attr: Attr,
    } = 128
    GetattrIn { getattr_flags: u32, dummy: u32, fh: u64, } = 16
    AttrOut { attr_valid: u64, attr_valid_nsec: u32, dummy: u32, attr: Attr, } = 104
    ForgetIn { nlookup: u64, } = 8
    ForgetOne { nodeid: u64, nlookup: u64, } = 16
    BatchForgetIn { count: u32, dummy: u32, } = 8
    MknodIn { mode: u32, rdev: u32, umask: u32, padding: u32, } = 16
    MkdirIn { mode: u32, umask: u32, } = 8
    RenameIn { newdir: u64, } = 8
    Rename2In { newdir: u64, flags: u32, padding: u32, } = 16
    LinkIn { oldnodeid: u64, } = 8
    SetattrIn {
        valid: u32, padding: u32, fh: u64, size: u64, lock_owner: u64, atime: u64, mtime: u64,
        ctime: u64, atimensec: u32, mtimensec: u32, ctimensec: u32, mode: u32, unused4: u32,
        uid: u32, gid: u32, unused5: u32,
    } = 88
    OpenIn { flags: u32, open_flags: u32, } = 8
    CreateIn { flags: u32, mode: u32, umask: u32, open_flags: u32, } = 16
    OpenOut { fh: u64, open_flags: u32, backing_id: i32, } = 16
    ReadIn {
        fh: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    } = 40
    WriteIn {
        fh: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    } = 40
    WriteOut { size: u32, padding: u32, } = 8
    StatfsOut {
        blocks: u64, bfree: u64, bavail: u64, files: u64, ffree: u64, bsize: u32, namelen: u32,
        frsize: u32, padding: u32, spare: [u32; 6],
    } = 80
    FsyncIn { fh: u64, fsync_flags: u32, padding: u32, } = 16
    SetxattrIn { size: u32, flags: u32, setxattr_flags: u32, padding: u32, } = 16
    GetxattrIn { size: u32, padding: u32, } = 8
    GetxattrOut { size: u32, padding: u32, } = 8
    IoctlIn { fh: u64, flags: u32, cmd: u32, arg: u64, in_size: u32, out_size: u32, } = 32
    IoctlOut { result: i32, flags: u32, in_iovs: u32, out_iovs: u32, } = 16
    FallocateIn { fh: u64, offset: u64, length: u64, mode: u32, padding: u32, } = 32
    LseekIn { fh: u64, offset: u64, whence: u32, padding: u32, } = 24
    LseekOut { offset: u64, } = 8
    CopyFileRangeIn {
        fh_in: u64, off_in: u64, nodeid_out: u64, fh_out: u64, off_out: u64, len: u64, flags: u64,
    } = 56
    CopyFileRangeOut { bytes_copied: u64, } = 8
    Dirent { ino: u64, off: u64, namelen: u32, kind: u32, } = 24
    StatxIn {
        getattr_flags: u32, reserved: u32, fh: u64, sx_flags: u32, sx_mask: u32,
    } = 24
    SxTime { tv_sec: i64, tv_nsec: u32, reserved: i32, } = 16
    Statx {
        mask: u32, blksize: u32, attributes: u64, nlink: u32, uid: u32, gid: u32, mode: u16,
        spare0: u16, ino: u64, size: u64, blocks: u64, attributes_mask: u64, atime: SxTime,
        btime: SxTime, ctime: SxTime, mtime: SxTime, rdev_major: u32, rdev_minor: u32,
        dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    } = 256
    StatxOut {
        attr_valid: u64, attr_valid_nsec: u32, flags: u32, spare: [u64; 2], stat: Statx,
    } = 288
    InvalInodeOut { ino: u64, off: i64, len: i64, } = 24
    RetrieveOut { notify_unique: u64, nodeid: u64, offset: u64, size: u32, padding: u32, } = 32
}
