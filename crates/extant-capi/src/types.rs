//! Structures and constants of the header.
//!
//! Structures that begin with `size` may grow at their end: programs compiled against an older
//! header pass a smaller one. Others never change.
#![allow(non_camel_case_types, reason = "these are names of C")]

use std::ffi::{c_char, c_int, c_void};

/// A mounted file system. Made by extant_mount(), extant_mount_fd() and extant_mount_device(), ended by extant_unmount().
pub struct extant_fs;

/// An open regular file. Made by extant_open(), ended by extant_close().
pub struct extant_file;

/// An open directory. Made by extant_opendir(), ended by extant_closedir().
pub struct extant_dir;

/// A queue of operations. Made by extant_ring_open(), ended by extant_ring_close().
pub struct extant_ring;

/// Version of the interface: what was added raises it by one.
pub const EXTANT_API_VERSION: u32 = 2;

/// Mount for writing: the journal is replayed, and the mount has to be ended by extant_unmount(). Without it nothing is
/// ever written.
pub const EXTANT_MOUNT_WRITE: u64 = 1;
/// Read the image as if it had no journal: after a crash, a state between two consistent ones. Not with EXTANT_MOUNT_WRITE.
pub const EXTANT_MOUNT_IGNORE_JOURNAL: u64 = 2;
/// Do not verify checksums of metadata.
pub const EXTANT_MOUNT_NO_CHECKSUMS: u64 = 4;
/// Discard blocks on the device that were freed.
pub const EXTANT_MOUNT_DISCARD: u64 = 8;
/// Start no threads: the caller calls extant_tick() every second.
pub const EXTANT_MOUNT_NO_BACKGROUND: u64 = 16;
/// Count what quotas limit, and enforce no limit.
pub const EXTANT_MOUNT_NO_QUOTA_LIMITS: u64 = 32;

/// Stage of mounting: another host may use the image, which takes seconds to find out. Counted in seconds.
pub const EXTANT_STAGE_WAITING: u32 = 1;
/// Stage of mounting: the journal is replayed. Counted in blocks.
pub const EXTANT_STAGE_REPLAYING: u32 = 2;
/// Stage of mounting: files that a crash left without a name are deleted. Counted in files.
pub const EXTANT_STAGE_ORPHANS: u32 = 3;

/// How to mount. 0 everywhere, but for `size`, is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_mount_options {
    /// sizeof(extant_mount_options)
    pub size: usize,
    /// EXTANT_MOUNT_*
    pub flags: u64,
    /// First byte of the file system in the file or device.
    pub offset: u64,
    /// Number of the partition (GPT or MBR) that holds the file system, from 1 on; 0 for none. Not with `offset`.
    pub partition: u32,
    /// 0
    pub reserved: u32,
    /// Memory for metadata, in bytes; 0 for 64 MiB.
    pub metadata_cache_bytes: u64,
    /// Memory for contents of files on a writable mount, in bytes; 0 for 256 MiB.
    pub data_cache_bytes: u64,
    /// How much of that may wait to be written before writers are slowed down, in bytes; 0 for four fifths.
    pub dirty_bytes: u64,
    /// How much of that may wait before the background writes it whatever its age, in bytes; 0 for five eighths.
    pub dirty_background_bytes: u64,
    /// Longest time that a change stays in memory alone, in milliseconds; 0 for 5 s.
    pub commit_interval_ms: u64,
    /// Longest time that written contents stay in memory alone, in milliseconds; 0 for 30 s.
    pub write_back_after_ms: u64,
    /// File or device with the journal, if it is not inside the image; or NULL.
    pub journal_device: *const c_char,
    /// Called on the calling thread before and after steps of mounting for writing that may take long: `done` of about
    /// `total` of the stage EXTANT_STAGE_*. A result other than 0 cancels: the image is as after a crash, and the next
    /// mount continues. Must not throw, longjmp, or call extant. May be NULL. Since version 2.
    pub progress: Option<
        unsafe extern "C" fn(context: *mut c_void, stage: u32, done: u64, total: u64) -> c_int,
    >,
    /// Given to `progress`. Since version 2.
    pub context: *mut c_void,
}

/// The device cannot be written.
pub const EXTANT_DEVICE_READ_ONLY: u32 = 1;

/// A device of callbacks. The structure is copied; `context` and the functions are used until
/// `release` is called.
///
/// Each function may be called from any thread, and from several at once. It must not throw,
/// longjmp, or call extant.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_device {
    /// sizeof(extant_device)
    pub size: usize,
    /// Given to each function.
    pub context: *mut c_void,
    /// Size of the device in bytes.
    pub bytes: u64,
    /// Smallest unit that the device writes without reading: 512 or 4096; 0 for 512.
    pub sector_bytes: u32,
    /// EXTANT_DEVICE_*
    pub flags: u32,
    /// Name of the device in messages, copied; or NULL.
    pub name: *const c_char,
    /// Fills `buffer` with `length` bytes from byte `offset` on. Returns `length`, or a negative errno. Anything else is an
    /// error of the device.
    pub read: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            buffer: *mut c_void,
            length: usize,
        ) -> i64,
    >,
    /// Stores `length` bytes at byte `offset`. Returns `length`, or a negative errno. NULL only if the device is read-only.
    pub write: Option<
        unsafe extern "C" fn(
            context: *mut c_void,
            offset: u64,
            buffer: *const c_void,
            length: usize,
        ) -> i64,
    >,
    /// Returns when every write that had returned before is on stable storage: 0, or a negative errno. NULL only if the
    /// device is read-only.
    pub flush: Option<unsafe extern "C" fn(context: *mut c_void) -> c_int>,
    /// `length` bytes at `offset` are not needed any more: they may read as anything. Returns 0, or a negative errno;
    /// -EOPNOTSUPP is no failure. May be NULL.
    pub discard:
        Option<unsafe extern "C" fn(context: *mut c_void, offset: u64, length: u64) -> c_int>,
    /// Nothing will be called any more. Called once, also when the mount fails; not when the structure itself is refused
    /// (EXTANT_E_BAD_STRUCT, EXTANT_E_NULL). May be NULL.
    pub release: Option<unsafe extern "C" fn(context: *mut c_void)>,
}

/// The last error of the calling thread.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_error {
    /// sizeof(extant_error)
    pub size: usize,
    /// EXTANT_E_*, or 0 if nothing ever did.
    pub code: c_int,
    /// The errno, positive. Linux's numbers.
    pub error_number: c_int,
    /// The inode that it is about; 0 if none.
    pub ino: u64,
    /// Name of the code, such as "NotFound". Lives as long as the program.
    pub name: *const c_char,
    /// The error with its causes, in English. Valid until the next call on this thread fails.
    pub message: *const c_char,
    /// The object of the error: a path, a device, an inode; "" if unknown. Valid until the next
    /// call on this thread fails.
    pub object: *const c_char,
}

/// For reading.
pub const EXTANT_O_READ: u32 = 1;
/// For writing.
pub const EXTANT_O_WRITE: u32 = 2;
/// For writing, every write at the end.
pub const EXTANT_O_APPEND: u32 = 4;
/// Make the file if there is none.
pub const EXTANT_O_CREATE: u32 = 8;
/// Make the file, and fail if there is one.
pub const EXTANT_O_EXCLUSIVE: u32 = 16;
/// Empty the file.
pub const EXTANT_O_TRUNCATE: u32 = 32;
/// Each write is durable, with all attributes, when it returns.
pub const EXTANT_O_SYNC: u32 = 64;
/// Each write is durable, with what is needed to read it back, when it returns.
pub const EXTANT_O_DSYNC: u32 = 128;
/// Past the cache, with the rules of Linux's O_DIRECT: memory, offset and length aligned to the device's sectors.
pub const EXTANT_O_DIRECT: u32 = 256;

/// A symbolic link in the last place is meant itself.
pub const EXTANT_NOFOLLOW: u32 = 1;

/// Positions for extant_seek(): from the start, from where it is, from the end; the next data or hole from there on.
pub const EXTANT_SEEK_SET: c_int = 0;
/// See EXTANT_SEEK_SET.
pub const EXTANT_SEEK_CUR: c_int = 1;
/// See EXTANT_SEEK_SET.
pub const EXTANT_SEEK_END: c_int = 2;
/// See EXTANT_SEEK_SET.
pub const EXTANT_SEEK_DATA: c_int = 3;
/// See EXTANT_SEEK_SET.
pub const EXTANT_SEEK_HOLE: c_int = 4;

/// Gives every hole of the range space that reads as zeros. With EXTANT_FALLOCATE_KEEP_SIZE the size stays.
pub const EXTANT_FALLOCATE_ALLOCATE: u32 = 0;
/// Takes the space of whole blocks away; the range reads as zeros.
pub const EXTANT_FALLOCATE_PUNCH_HOLE: u32 = 1;
/// The range reads as zeros and has space. With EXTANT_FALLOCATE_KEEP_SIZE the size stays.
pub const EXTANT_FALLOCATE_ZERO_RANGE: u32 = 2;
/// Takes the range out: what is behind it moves to its start.
pub const EXTANT_FALLOCATE_COLLAPSE: u32 = 3;
/// Puts a hole there: what was there and behind moves up.
pub const EXTANT_FALLOCATE_INSERT: u32 = 4;
/// The range reads as zeros, and has space that is written.
pub const EXTANT_FALLOCATE_WRITE_ZEROES: u32 = 5;
/// Added to a mode: the size stays, even if the range ends behind it.
pub const EXTANT_FALLOCATE_KEEP_SIZE: u32 = 256;

/// The new name must not exist.
pub const EXTANT_RENAME_NOREPLACE: u32 = 1;
/// Both names exist, and change places.
pub const EXTANT_RENAME_EXCHANGE: u32 = 2;

/// The attribute must not exist.
pub const EXTANT_XATTR_CREATE: u32 = 1;
/// The attribute must exist.
pub const EXTANT_XATTR_REPLACE: u32 = 2;

/// The image is marked clean and its handles are closed, whatever is open.
pub const EXTANT_UNMOUNT_FORCE: u32 = 1;

/// A moment.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_time {
    /// Seconds since 1970-01-01T00:00:00Z, negative before.
    pub seconds: i64,
    /// Nanoseconds after that, below 10^9; or EXTANT_TIME_NOW, EXTANT_TIME_OMIT where a time is set.
    pub nanoseconds: u32,
    /// 0
    pub reserved: u32,
}

/// In `nanoseconds`: the time of the call.
pub const EXTANT_TIME_NOW: u32 = 0x3fff_ffff;
/// In `nanoseconds`: the time stays.
pub const EXTANT_TIME_OMIT: u32 = 0x3fff_fffe;
/// For an owner: it stays.
pub const EXTANT_ID_OMIT: u32 = 0xffff_ffff;

/// Attributes of a file.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_stat {
    /// sizeof(extant_stat)
    pub size: usize,
    /// Inode number.
    pub ino: u64,
    /// Kind and permissions, as st_mode.
    pub mode: u32,
    /// Number of names.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub bytes: u64,
    /// Space taken, in units of 512 bytes.
    pub blocks: u64,
    /// Size of a block of the file system, in bytes.
    pub block_bytes: u32,
    /// Flags, as lsattr(1) shows them.
    pub flags: u32,
    /// Of a device, its major number.
    pub device_major: u32,
    /// Of a device, its minor number.
    pub device_minor: u32,
    /// Last access.
    pub atime: extant_time,
    /// Last change of contents.
    pub mtime: extant_time,
    /// Last change of attributes.
    pub ctime: extant_time,
    /// Creation; 0.0 where the inode has no room for it.
    pub crtime: extant_time,
    /// Tells inodes apart that had the number one after the other.
    pub generation: u32,
    /// Project.
    pub project: u32,
    /// Counts changes of the inode.
    pub version: u64,
}

/// Space of a file system.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_statfs {
    /// sizeof(extant_statfs)
    pub size: usize,
    /// Bytes of a block: the unit of the next three.
    pub block_bytes: u64,
    /// Blocks for files.
    pub blocks: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Free blocks without the reserve.
    pub blocks_available: u64,
    /// Inodes.
    pub files: u64,
    /// Free inodes.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u64,
    /// The UUID of the file system.
    pub uuid: [u8; 16],
    /// The label, ended by a zero byte.
    pub label: [u8; 24],
}

/// An entry of a directory.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct extant_dirent {
    /// Inode number.
    pub ino: u64,
    /// Position behind this entry, at which a listing can continue.
    pub cookie: u64,
    /// Kind, as in st_mode (S_IFREG, …); 0 where the directory does not say.
    pub kind: u32,
    /// Length of the name in bytes.
    pub name_length: u32,
    /// The name, ended by a zero byte.
    pub name: [c_char; 256],
}

/// A piece of memory, as struct iovec.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_iovec {
    /// First byte.
    pub base: *mut c_void,
    /// Length in bytes.
    pub length: usize,
}

/// Read `length` bytes at `offset` into `data`. The result is how many.
pub const EXTANT_OP_READ: u32 = 0;
/// Write `length` bytes of `data` at `offset`. The result is how many.
pub const EXTANT_OP_WRITE: u32 = 1;
/// Write `length` bytes of `data` at the end. The result is the offset.
pub const EXTANT_OP_APPEND: u32 = 2;
/// Make contents and attributes durable, with every change of the file that was submitted before.
pub const EXTANT_OP_SYNC: u32 = 3;
/// Make contents durable, and what is needed to read them back.
pub const EXTANT_OP_DATASYNC: u32 = 4;
/// Make `length` the size of the file.
pub const EXTANT_OP_TRUNCATE: u32 = 5;
/// fallocate of `length` bytes at `offset`; `mode` is EXTANT_FALLOCATE_*.
pub const EXTANT_OP_FALLOCATE: u32 = 6;

/// An operation for a ring.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_op {
    /// sizeof(extant_op)
    pub size: usize,
    /// Comes back with the result.
    pub tag: u64,
    /// The file.
    pub file: *mut extant_file,
    /// EXTANT_OP_*
    pub kind: u32,
    /// Of EXTANT_OP_FALLOCATE.
    pub mode: u32,
    /// First byte.
    pub offset: u64,
    /// In bytes.
    pub length: u64,
    /// Memory to read into, which has to stay until the result is taken or the ring is closed; or to write from, which is
    /// not used after the call.
    pub data: *mut c_void,
}

/// In `flags` of a completion: the thread that submitted it has done it.
pub const EXTANT_DONE_INLINE: u32 = 1;

/// Outcome of an operation.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_completion {
    /// The tag given at submission.
    pub tag: u64,
    /// As the kind of the operation says, or a negative errno.
    pub result: i64,
    /// EXTANT_E_* if the result is negative, else 0.
    pub code: c_int,
    /// EXTANT_DONE_*
    pub flags: u32,
}

/// Overwrite a target that seems to hold data.
pub const EXTANT_BUILD_OVERWRITE: u64 = 1;
/// The source is a tar archive (plain, gzip, zstd) and not a directory.
pub const EXTANT_BUILD_TAR: u64 = 2;
/// Leave out and count files that cannot be read.
pub const EXTANT_BUILD_IGNORE_UNREADABLE: u64 = 4;
/// Other file systems that are mounted inside the source are left out.
pub const EXTANT_BUILD_ONE_FILE_SYSTEM: u64 = 8;
/// Every file belongs to `uid` and `gid`.
pub const EXTANT_BUILD_OWNER: u64 = 16;
/// Equal sources make equal bytes: later times become `epoch`.
pub const EXTANT_BUILD_REPRODUCIBLE: u64 = 32;

/// How to build an image, or to make an empty file system. 0 everywhere, but for `size`, is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_build_options {
    /// sizeof(extant_build_options)
    pub size: usize,
    /// EXTANT_BUILD_*
    pub flags: u64,
    /// Size of the image in bytes; 0 for as small as its contents allow, which extant_mkfs() does not know.
    pub image_bytes: u64,
    /// Free space of an image of automatic size, in bytes.
    pub free_bytes: u64,
    /// The same in percent of what the contents take. Not with the two above.
    pub free_percent: u32,
    /// Threads; 0 for one for each processor.
    pub threads: u32,
    /// With EXTANT_BUILD_OWNER.
    pub uid: u32,
    /// With EXTANT_BUILD_OWNER.
    pub gid: u32,
    /// With EXTANT_BUILD_REPRODUCIBLE: seconds since 1970.
    pub epoch: i64,
    /// Volume label, at most 16 bytes; or NULL.
    pub label: *const c_char,
    /// Features as mke2fs -O takes them, such as "^has_journal,casefold"; or NULL.
    pub features: *const c_char,
    /// Bytes of a block: 1024, 2048, 4096, …; 0 for what mke2fs would choose.
    pub block_bytes: u32,
    /// 0
    pub reserved: u32,
    /// Called on the calling thread, at the beginning, some times a second, and at the end: `done`
    /// bytes of about `total` are written; `total` is 0 until it is known. A result other than 0
    /// cancels, unless all is written by then. Must not throw, longjmp, or call extant. May be
    /// NULL.
    pub progress:
        Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64) -> c_int>,
    /// Given to `progress`.
    pub context: *mut c_void,
}

/// Result of a build.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_build_result {
    /// sizeof(extant_build_result)
    pub size: usize,
    /// Size of the image in bytes.
    pub image_bytes: u64,
    /// Files, directories and the rest.
    pub files: u64,
    /// Bytes of regular files that are stored.
    pub data_bytes: u64,
    /// Free blocks.
    pub blocks_free: u64,
    /// Number of files left out with EXTANT_BUILD_IGNORE_UNREADABLE.
    pub skipped: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// 0
    pub reserved: u32,
    /// UUID of the file system.
    pub uuid: [u8; 16],
}

/// Check the image as it lies there, without looking through its journal.
pub const EXTANT_CHECK_NO_REPLAY: u64 = 1;

/// Options of a check. 0 everywhere, but for `size`, is the default.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct extant_check_options {
    /// sizeof(extant_check_options)
    pub size: usize,
    /// EXTANT_CHECK_*
    pub flags: u64,
    /// First byte of the file system in the file or device.
    pub offset: u64,
    /// Number of the partition that holds the file system; 0 for none.
    pub partition: u32,
    /// 0
    pub reserved: u32,
    /// Limit of the problems passed to `problem`; 0 for 100.
    pub max_problems: u64,
    /// Called on the calling thread for each problem: its code, such as "block-bitmap", and what is wrong, in English. Must
    /// not throw, longjmp, or call extant. May be NULL.
    pub problem: Option<
        unsafe extern "C" fn(context: *mut c_void, code: *const c_char, message: *const c_char),
    >,
    /// Given to `problem`.
    pub context: *mut c_void,
}

/// Result of a check.
#[repr(C)]
#[derive(Clone, Copy, Default, Debug)]
pub struct extant_check_report {
    /// sizeof(extant_check_report)
    pub size: usize,
    /// Problems in all.
    pub problems: u64,
    /// Inodes in use.
    pub inodes: u64,
    /// Directories among them.
    pub directories: u64,
    /// Blocks in use.
    pub blocks: u64,
    /// Transactions of the journal that were replayed in memory.
    pub replayed: u64,
}
