//! The one error type of the file system, in three families, and its errno.
//!
//! Callers do three different things with a failure: tell the program ([`Family::Refusal`]), stop
//! trusting the image ([`Family::Damage`]), or stop trusting the device ([`Family::Device`]).
//! Damage is local: an error about one object says nothing about the others, which stay readable.

use std::error::Error as StdError;
use std::fmt;

use extant_base::{FsBlock, Ino};
use extant_block::{DeviceError, OpenError};
use extant_crypt::KeySpec;
use extant_format::error::ChecksumError;
use extant_format::jbd2::JournalFault;
use extant_iomap::CacheError;
use extant_jbd2::{
    ExternalJournalError, JournalError, JournalOpenError, JournalReadError, RecoveryError,
};

use crate::zones::Zone;

mod code;
mod grow;
mod mount;
mod path_part;

pub use code::ErrorCode;
pub use grow::GrowRefused;
pub use mount::{MountError, MountErrorKind};
pub use path_part::PathPart;

/// Result of operations of this crate.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Error of a file-system operation.
///
/// Display names the structure, inode, block and numbers involved, and leaves the cause to
/// [`source`](std::error::Error::source). The frequent refusals allocate nothing, because a lookup
/// that misses is a hot path.
///
/// ```
/// use extant::{Family, FsError, Ino};
/// let error = FsError::NotFound { dir: Ino(2), at: None };
/// assert_eq!(error.to_string(), "no such entry in directory inode 2");
/// assert_eq!((error.family(), error.errno()), (Family::Refusal, 2));
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum FsError {
    // Refusals: correct answers about the name space or the request.
    /// The directory has no entry of that name.
    NotFound {
        /// The directory that was searched.
        dir: Ino,
        /// The part of the path, from functions that take a path.
        at: Option<Box<PathPart>>,
    },
    /// The operation needs a directory, and the inode is of another kind.
    NotADirectory {
        /// The inode that is not a directory.
        ino: Ino,
        /// The part of the path, from functions that take a path.
        at: Option<Box<PathPart>>,
    },
    /// The operation needs file contents, and the inode is a directory.
    IsADirectory {
        /// The directory.
        ino: Ino,
    },
    /// The operation needs file contents, and the inode is a device, a pipe, a socket or a symbolic
    /// link.
    NotARegularFile {
        /// The inode without contents.
        ino: Ino,
    },
    /// The operation needs a symbolic link, and the inode is of another kind.
    NotASymlink {
        /// The inode that is not a symbolic link.
        ino: Ino,
    },
    /// A name is longer than the format's 255 bytes.
    NameTooLong {
        /// Length of the name in bytes.
        len: usize,
    },
    /// The target of a symbolic link is longer than the file system can store.
    TargetTooLong {
        /// Length of the target in bytes.
        len: usize,
        /// Length of the longest target of such a link, in bytes: by the size of blocks, with 4095 as the most.
        most: usize,
    },
    /// The path leads through more than [`SYMLINKS_MAX`](crate::SYMLINKS_MAX) symbolic links.
    SymlinkLoop {
        /// The link at which resolution stopped.
        ino: Ino,
        /// The part of the path, from functions that take a path.
        at: Option<Box<PathPart>>,
    },
    /// A directory lies deeper in the tree than the operation descends.
    TooDeep {
        /// The directory that was not entered.
        ino: Ino,
        /// The deepest level that the operation enters.
        depth_max: usize,
    },
    /// The inode number does not exist on this image, or the inode is not in use.
    NoSuchInode {
        /// The requested number.
        ino: Ino,
        /// Number of inodes of the image; inode numbers run from 1 to this value.
        inode_count: u32,
    },
    /// The inode has no extended attribute of that name.
    NoAttribute {
        /// The inode.
        ino: Ino,
    },
    /// Contents, a link target or names are encrypted, and their key was not given.
    Encrypted {
        /// The encrypted inode.
        ino: Ino,
        /// The part that cannot be shown: `"contents"`, `"link target"` or `"directory entry
        /// names"`.
        what: &'static str,
        /// The name of the key, if it is known.
        key: Option<KeySpec>,
    },
    /// The bytes are not UTF-8, and a string was requested.
    NotUtf8 {
        /// The file.
        ino: Ino,
        /// Number of valid bytes at the start.
        valid_up_to: usize,
    },
    /// The file is larger than a call that reads whole files accepts, or would become larger than
    /// the map of the file can reach.
    TooLarge {
        /// The file.
        ino: Ino,
        /// The size of the file in bytes, or the requested one.
        bytes: u64,
        /// The largest size, in bytes.
        limit: u64,
    },
    /// An argument is outside its documented range.
    InvalidArgument {
        /// The argument and its range.
        what: &'static str,
    },
    /// A direct I/O request is not aligned; see [`DirectFile`](crate::DirectFile).
    Misaligned {
        /// The misaligned part: `"offset"`, `"length"` or `"address of the memory"`.
        what: &'static str,
        /// Its value, in bytes.
        value: u64,
        /// The required alignment, in bytes.
        unit: u32,
    },
    /// Files of this kind do not support the operation.
    NotSupported {
        /// The file.
        ino: Ino,
        /// The operation, and the files that support it.
        what: &'static str,
    },
    /// The handle or mount does not allow the operation.
    ReadOnly,

    // Refusals of a change.
    /// The name exists already.
    Exists {
        /// The directory.
        dir: Ino,
        /// The inode that has the name.
        ino: Ino,
    },
    /// The directory has entries besides `.` and `..`.
    NotEmpty {
        /// The directory.
        ino: Ino,
    },
    /// The name is not allowed.
    InvalidName {
        /// The rule that it breaks.
        what: &'static str,
    },
    /// There is not enough free space.
    NoSpace {
        /// The resource: `"blocks"`, `"inodes"`, `"index levels of the directory"`, …
        what: &'static str,
        /// Number of units requested.
        wanted: u64,
        /// Number of units available.
        free: u64,
    },
    /// A quota is used up.
    QuotaExceeded {
        /// The kind of quota: `"user"`, `"group"` or `"project"`.
        kind: &'static str,
        /// The id of the user, group or project.
        id: u32,
        /// The resource: `"blocks"` or `"inodes"`.
        what: &'static str,
    },
    /// The inode has as many names, or the directory as many subdirectories, as the format can
    /// count.
    TooManyLinks {
        /// The inode.
        ino: Ino,
        /// The largest number of links.
        limit: u32,
    },
    /// The permissions of an inode deny the access to a user.
    AccessDenied {
        /// The inode.
        ino: Ino,
        /// The user.
        uid: u32,
    },
    /// A flag of the inode, or its kind, forbids the change.
    NotPermitted {
        /// The inode.
        ino: Ino,
        /// The reason: for example `"it is immutable"`.
        what: &'static str,
    },
    /// The directory gives its entries another project than the inode has.
    OtherProject {
        /// The inode.
        ino: Ino,
    },
    /// The directory is encrypted, and the inode is not encrypted in the same way.
    OtherPolicy {
        /// The inode.
        ino: Ino,
    },
    /// The contents of the file are sealed by fs-verity already.
    Sealed {
        /// The file.
        ino: Ino,
    },
    /// The file cannot be sealed while a program has it open for writing, or mapped so.
    OpenForWriting {
        /// The file.
        ino: Ino,
    },
    /// The inode is a handle of another mount: links, renames and rings stay within one mount.
    OtherFileSystem {
        /// The number of the inode in its own file system.
        ino: Ino,
    },
    /// A directory cannot move into itself or below.
    IntoItself {
        /// The directory.
        ino: Ino,
    },
    /// The inode already has an extended attribute of that name.
    AttributeExists {
        /// The inode.
        ino: Ino,
    },
    /// The system cannot start a thread, mostly because its limit is reached.
    NoThread {
        /// Message of the system.
        why: Box<str>,
    },
    /// The mount is frozen: [`Fs::freeze`](crate::Fs::freeze).
    Frozen,
    /// A path whose last name can be neither removed nor moved: `/`, or for a move `.` and `..`.
    NameInUse {
        /// What the path ends in: `"/"`, `"."` or `".."`.
        name: &'static str,
    },
    /// The file system cannot get the size asked for while it is mounted.
    CannotGrow(GrowRefused),
    /// An operation of a [ring](crate::ring) or the opening of an image was cancelled. A ring's
    /// operation has changed nothing.
    OperationCancelled {
        /// The cause of the cancellation.
        why: &'static str,
    },
    /// The page cache has no room, or the system no memory for it.
    PageCache(CacheError),
    /// Writeback of the file failed since it was opened or last synced; the data was kept in
    /// memory.
    WritebackFailed {
        /// The file.
        ino: Ino,
        /// Number of failures.
        failures: u64,
    },
    /// The attribute value is longer than this file system can hold.
    AttributeTooLarge {
        /// The inode.
        ino: Ino,
        /// Length of the value in bytes.
        bytes: u64,
        /// The longest possible value, in bytes.
        limit: u64,
    },
    /// Another program or host has the file system open for writing.
    InUse {
        /// The user of the file system, as far as the image records it.
        by: Box<str>,
    },
    /// The journal aborted after a failure; nothing more is written until the next mount.
    Aborted {
        /// Linux errno of the failure, positive: `EUCLEAN` or `EBADMSG` for damage of the image,
        /// another one for a failing device.
        errno: i32,
        /// Message of the failure.
        why: Box<str>,
    },

    // Refusals of a whole image.
    /// There is no ext2, ext3 or ext4 superblock at the expected place.
    NotExt {
        /// Byte offset at which the superblock was expected.
        offset: u64,
        /// The value of the magic field; `None` when the device ends before it.
        magic: Option<u16>,
    },
    /// The device holds an external journal and not a file system.
    ExternalJournal {
        /// UUID of the journal.
        uuid: [u8; 16],
    },
    /// The image needs features that this build does not support.
    Unsupported {
        /// The intended access: `"read"` or `"write"`.
        wanted: &'static str,
        /// The features by name, separated by `", "`; unknown bits as `FEATURE_I12`.
        features: Box<str>,
    },
    /// The journal is on another device, which the caller did not pass.
    JournalDeviceMissing {
        /// UUID of the journal that the superblock names.
        uuid: [u8; 16],
    },

    /// The device passed as journal is not the one that the image names.
    WrongJournalDevice {
        /// UUID of the journal that the superblock names.
        wanted: [u8; 16],
        /// UUID of the journal on the device.
        found: [u8; 16],
    },

    // Damage: the image broke a rule of the format.
    /// A structure failed its checks. Other objects of the image stay readable.
    Corrupt {
        /// Name of the structure, for example `"extent node"`.
        structure: &'static str,
        /// The inode that owns it, if one does.
        ino: Option<Ino>,
        /// The block it was read from, if it has one of its own.
        block: Option<FsBlock>,
        /// What is wrong with it.
        fault: Fault,
    },
    /// A block of a file sealed by fs-verity, or of its hash tree, has not the hash that the seal
    /// says.
    Unverified {
        /// The file.
        ino: Ino,
        /// The part with the wrong bytes: `"contents"` or `"hash tree"`.
        what: &'static str,
        /// Number of the block in this part, from 0 on.
        index: u64,
        /// Size of a block in bytes.
        block_bytes: u32,
    },
    /// The device ends before what was asked for, although the file system counts it: an image cut
    /// short by a copy that stopped. What lies before the end stays readable.
    CutShort {
        /// Bytes of the file system, by its superblock.
        file_system_bytes: u64,
        /// Bytes of the device.
        device_bytes: u64,
    },
    /// The journal cannot be read. Ignoring it would show a state that never existed.
    Journal(Box<RecoveryError>),
    /// The device passed as journal is not a journal, or is damaged.
    JournalDevice(Box<ExternalJournalError>),

    /// The file or disk cannot be opened as a device, from [`Fs::open_path`](crate::Fs::open_path) and
    /// [`MountOptions::open_path`](crate::MountOptions::open_path).
    Open(Box<OpenError>),

    // Device.
    /// The device failed; the error names the device and the bytes.
    Device(DeviceError),
    /// The host file system or pool under the device has no space left. Data that was not stored is
    /// kept in memory, and is stored when there is space.
    DeviceFull(DeviceError),
}

/// The way in which a structure is damaged.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The stored checksum differs from the computed one.
    Checksum {
        /// The stored value.
        stored: u32,
        /// The value computed from the contents.
        computed: u32,
    },
    /// One field breaks the rule named in `rule`.
    Field {
        /// The rule, in words: `"block number is past the end of the file system"`.
        rule: &'static str,
        /// The offending value.
        value: u64,
        /// The limit it breaks.
        limit: u64,
    },
    /// The structure contradicts itself or another one.
    Rule(&'static str),
    /// A map or a pointer leads to metadata of the file system.
    Zone {
        /// The file block, if the pointer belongs to a file's contents.
        file_block: Option<u64>,
        /// The metadata at that place.
        zone: Zone,
    },
    /// The decoder of the structure rejected it.
    Decode(Box<dyn StdError + Send + Sync>),
}

/// Class of an error by the caller's reaction; see [`FsError::family`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Family {
    /// A correct answer about the name space, the request or what this build can do.
    Refusal,
    /// The image broke a rule of the format.
    Damage,
    /// The device failed.
    Device,
}

impl From<OpenError> for FsError {
    fn from(error: OpenError) -> FsError {
        FsError::Open(Box::new(error))
    }
}

impl From<CacheError> for FsError {
    fn from(error: CacheError) -> FsError {
        FsError::PageCache(error)
    }
}

impl FsError {
    /// Returns the family of the error.
    pub fn family(&self) -> Family {
        match self {
            Self::NotFound { .. }
            | Self::NotADirectory { .. }
            | Self::IsADirectory { .. }
            | Self::NotARegularFile { .. }
            | Self::NotASymlink { .. }
            | Self::NameTooLong { .. }
            | Self::TargetTooLong { .. }
            | Self::SymlinkLoop { .. }
            | Self::TooDeep { .. }
            | Self::NoSuchInode { .. }
            | Self::NoAttribute { .. }
            | Self::Encrypted { .. }
            | Self::NotUtf8 { .. }
            | Self::TooLarge { .. }
            | Self::InvalidArgument { .. }
            | Self::Misaligned { .. }
            | Self::NotSupported { .. }
            | Self::ReadOnly
            | Self::Exists { .. }
            | Self::NotEmpty { .. }
            | Self::InvalidName { .. }
            | Self::NameInUse { .. }
            | Self::NoSpace { .. }
            | Self::QuotaExceeded { .. }
            | Self::TooManyLinks { .. }
            | Self::AccessDenied { .. }
            | Self::NotPermitted { .. }
            | Self::OtherProject { .. }
            | Self::OtherPolicy { .. }
            | Self::OtherFileSystem { .. }
            | Self::Sealed { .. }
            | Self::OpenForWriting { .. }
            | Self::NoThread { .. }
            | Self::Frozen
            | Self::CannotGrow(_)
            | Self::OperationCancelled { .. }
            | Self::IntoItself { .. }
            | Self::AttributeExists { .. }
            | Self::AttributeTooLarge { .. }
            | Self::PageCache(_)
            | Self::InUse { .. }
            | Self::NotExt { .. }
            | Self::ExternalJournal { .. }
            | Self::Unsupported { .. }
            | Self::JournalDeviceMissing { .. }
            | Self::WrongJournalDevice { .. } => Family::Refusal,
            Self::Open(error) => match &**error {
                OpenError::Io { .. } => Family::Device,
                _ => Family::Refusal,
            },
            Self::Journal(error) => journal_family(error),
            Self::JournalDevice(error) => match &**error {
                ExternalJournalError::Device(_) => Family::Device,
                ExternalJournalError::Journal(error) => journal_family(error),
                ExternalJournalError::Checksum(_) => Family::Damage,
                _ => Family::Refusal,
            },
            Self::Corrupt { .. } | Self::Unverified { .. } | Self::CutShort { .. } => {
                Family::Damage
            }
            Self::Device(_)
            | Self::DeviceFull(_)
            | Self::Aborted { .. }
            | Self::WritebackFailed { .. } => Family::Device,
        }
    }

    /// The Linux errno that a system call returns for this error; always positive.
    ///
    /// The numbers are those of the generic Linux table (x86-64, arm64, riscv), whatever the host
    /// is: the answer is part of the file system's behaviour, not of the machine it runs on.
    pub fn errno(&self) -> i32 {
        match self {
            Self::NotFound { .. } => errno::ENOENT,
            Self::NotADirectory { .. } => errno::ENOTDIR,
            Self::IsADirectory { .. } => errno::EISDIR,
            Self::NotARegularFile { .. } => errno::EINVAL,
            Self::NotASymlink { .. } => errno::EINVAL, // What readlink(2) says.
            Self::NameTooLong { .. } | Self::TargetTooLong { .. } => errno::ENAMETOOLONG,
            Self::SymlinkLoop { .. } => errno::ELOOP,
            Self::TooDeep { .. } => errno::ENAMETOOLONG, // Its path would be.
            // Linux gives this answer for a file handle whose inode is gone.
            Self::NoSuchInode { .. } => errno::ESTALE,
            Self::NoAttribute { .. } => errno::ENODATA,
            Self::Encrypted { .. } => errno::ENOKEY,
            Self::NotUtf8 { .. } => errno::EILSEQ,
            Self::TooLarge { .. } => errno::EFBIG,
            Self::InvalidArgument { .. } | Self::Misaligned { .. } => errno::EINVAL,
            Self::NotSupported { .. } => errno::EOPNOTSUPP,
            Self::ReadOnly | Self::Aborted { .. } => errno::EROFS,
            Self::Exists { .. } | Self::AttributeExists { .. } | Self::Sealed { .. } => {
                errno::EEXIST
            }
            Self::OpenForWriting { .. } => errno::ETXTBSY,
            Self::NotEmpty { .. } => errno::ENOTEMPTY,
            Self::InvalidName { .. } | Self::IntoItself { .. } => errno::EINVAL,
            Self::NoSpace { .. } | Self::AttributeTooLarge { .. } | Self::DeviceFull(_) => {
                errno::ENOSPC
            }
            Self::QuotaExceeded { .. } => errno::EDQUOT,
            Self::PageCache(_) => errno::ENOMEM,
            Self::WritebackFailed { .. } => errno::EIO,
            Self::TooManyLinks { .. } => errno::EMLINK,
            Self::AccessDenied { .. } => errno::EACCES,
            Self::NotPermitted { .. } => errno::EPERM,
            Self::InUse { .. } | Self::NameInUse { .. } | Self::Frozen => errno::EBUSY,
            Self::CannotGrow(why) => why.errno(),
            Self::OtherProject { .. } | Self::OtherPolicy { .. } | Self::OtherFileSystem { .. } => {
                errno::EXDEV
            }
            Self::NoThread { .. } => errno::EAGAIN,
            Self::OperationCancelled { .. } => errno::ECANCELED,
            // The next five, and a journal with unknown features, have the numbers of mount(2) on
            // Linux.
            Self::NotExt { .. } => errno::EINVAL,
            Self::ExternalJournal { .. } => errno::EINVAL,
            Self::Unsupported { .. } => errno::EINVAL,
            Self::JournalDeviceMissing { .. } => errno::EINVAL,
            Self::WrongJournalDevice { .. } => errno::EINVAL,
            Self::Open(error) => match &**error {
                OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
                OpenError::Locked { .. } | OpenError::Busy { .. } => errno::EBUSY,
                OpenError::NoEngine { .. } => errno::EOPNOTSUPP,
                _ => errno::EINVAL,
            },
            Self::Journal(_) | Self::JournalDevice(_) => match self.family() {
                Family::Refusal => errno::EINVAL,
                Family::Damage => errno::EUCLEAN,
                Family::Device => errno::EIO,
            },
            // Linux ext4 reports a bad checksum as EBADMSG (EFSBADCRC) and other damage as
            // EUCLEAN (EFSCORRUPTED).
            Self::Corrupt { fault: Fault::Checksum { .. }, .. } => errno::EBADMSG,
            Self::Corrupt { .. } | Self::CutShort { .. } => errno::EUCLEAN,
            Self::Unverified { .. } => errno::EIO, // As in Linux.
            Self::Device(_) => errno::EIO,         // The device's own number stays in `source`.
        }
    }

    /// Converts an error of the writing half of the journal.
    pub(crate) fn from_journal(error: JournalError) -> FsError {
        match error {
            JournalError::Device(error) => FsError::from(error),
            JournalError::TooManyCredits { wanted, limit } => {
                let (wanted, free) = (u64::from(wanted), u64::from(limit));
                FsError::NoSpace { what: "journal blocks for one change", wanted, free }
            }
            JournalError::Aborted { errno, .. } => {
                FsError::Aborted { errno, why: error.to_string().into() }
            }
            other => FsError::Aborted { errno: errno::EIO, why: other.to_string().into() },
        }
    }

    /// Returns whether the cause is a lack of space, in the file system or under the device, or an
    /// exceeded quota.
    pub(crate) fn is_no_room(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::QuotaExceeded { .. } | Self::DeviceFull(_))
    }

    /// Returns the message followed by those of the causes, for places that keep only text.
    pub(crate) fn with_causes(&self) -> String {
        let mut text = self.to_string();
        let mut cause = self.source();
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }

    /// Converts an error of opening the journal for writing.
    pub(crate) fn journal_open(error: JournalOpenError) -> FsError {
        match error {
            JournalOpenError::Unmapped { .. } => {
                FsError::corrupt("journal", None, None, Fault::Decode(Box::new(error)))
            }
            _ => FsError::Unsupported { wanted: "write", features: error.to_string().into() },
        }
    }

    /// Converts an error of the replay. The lack of space for what it writes is one of the device, as with
    /// every other write.
    pub(crate) fn journal(error: RecoveryError) -> FsError {
        match error {
            RecoveryError::Write(error) if error.is_full() => FsError::DeviceFull(error),
            other => FsError::Journal(Box::new(other)),
        }
    }

    pub(crate) fn journal_device(error: ExternalJournalError) -> FsError {
        FsError::JournalDevice(Box::new(error))
    }

    /// Creates an error for damage of `structure`, owned by `ino`, read from `block`.
    pub(crate) fn corrupt(
        structure: &'static str,
        ino: impl Into<Option<Ino>>,
        block: impl Into<Option<FsBlock>>,
        fault: Fault,
    ) -> FsError {
        FsError::Corrupt { structure, ino: ino.into(), block: block.into(), fault }
    }
}

impl fmt::Display for FsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotFound { dir, at: None } => {
                write!(f, "no such entry in directory inode {dir}")
            }
            Self::NotFound { dir, at: Some(at) } => {
                write!(f, "{at}: there is no such entry in directory inode {dir}")
            }
            Self::NotADirectory { ino, at: None } => write!(f, "inode {ino} is not a directory"),
            Self::NotADirectory { ino, at: Some(at) } => {
                write!(f, "{at}: inode {ino} is not a directory")
            }
            Self::IsADirectory { ino } => write!(f, "inode {ino} is a directory"),
            Self::NotARegularFile { ino } => write!(f, "inode {ino} is not a regular file"),
            Self::NotASymlink { ino } => write!(f, "inode {ino} is not a symbolic link"),
            Self::NameTooLong { len } => {
                write!(f, "a name of {len} bytes is longer than the 255 that ext4 allows")
            }
            Self::TargetTooLong { len, most } => write!(
                f,
                "a link target of {len} bytes is longer than the {most} that fit, with blocks of this size"
            ),
            Self::SymlinkLoop { ino, at } => {
                if let Some(at) = at {
                    write!(f, "{at}: ")?;
                }
                write!(
                    f,
                    "more than {} symbolic links in one path, stopped at inode {ino}",
                    crate::limits::SYMLINKS_MAX
                )
            }
            Self::TooDeep { ino, depth_max } => {
                write!(f, "directory inode {ino} lies more than {depth_max} levels deep")
            }
            Self::NoSuchInode { ino, inode_count } => {
                write!(f, "inode {ino} is not in use (the image has inodes 1 to {inode_count})")
            }
            Self::NoAttribute { ino } => {
                write!(f, "inode {ino} has no extended attribute of that name")
            }
            Self::Encrypted { ino, what, key: Some(key) } => write!(
                f,
                "{what} of inode {ino} cannot be read: encrypted with the key {key}, which has to \
                 be given (--key-file)"
            ),
            Self::Encrypted { ino, what, key: None } => write!(
                f,
                "{what} of inode {ino} cannot be read: encrypted, and the key has to be given \
                 (--key-file)"
            ),
            Self::NotUtf8 { ino, valid_up_to } => {
                write!(f, "contents of inode {ino} are not UTF-8 from byte {valid_up_to} on")
            }
            Self::TooLarge { ino, bytes, limit } => {
                write!(f, "inode {ino}: {bytes} bytes are more than the {limit} there can be here")
            }
            Self::InvalidArgument { what } => write!(f, "invalid argument: {what}"),
            Self::Misaligned { what, value, unit } => {
                write!(f, "direct I/O: the {what} is {value}, and has to be a multiple of {unit}")
            }
            Self::NotSupported { ino, what } => write!(f, "inode {ino}: not supported: {what}"),
            Self::ReadOnly => f.write_str("the file system is open read-only"),
            Self::Exists { dir, ino } => {
                write!(f, "the name is taken in directory inode {dir}, by inode {ino}")
            }
            Self::NotEmpty { ino } => write!(f, "directory inode {ino} is not empty"),
            Self::InvalidName { what } => write!(f, "invalid name: {what}"),
            Self::NameInUse { name } => {
                write!(f, "`{name}` can be neither removed nor moved, nor anything moved to it")
            }
            Self::NoSpace { what, wanted, free } => {
                write!(f, "no room: {wanted} {what} wanted, {free} free")
            }
            Self::QuotaExceeded { kind, id, what } => {
                write!(f, "the quota of {kind} {id} for {what} is used up")
            }
            Self::TooManyLinks { ino, limit } => {
                write!(f, "inode {ino} has {limit} links, and there can be no more")
            }
            Self::AccessDenied { ino, uid } => {
                write!(f, "the permissions of inode {ino} do not let user {uid} do that")
            }
            Self::NotPermitted { ino, what } => {
                write!(f, "inode {ino} cannot be changed so: {what}")
            }
            Self::OtherFileSystem { ino } => {
                write!(f, "inode {ino} is of another mounted file system: copy it instead")
            }
            Self::Frozen => f.write_str("the file system is frozen: thaw it first"),
            Self::CannotGrow(why) => why.fmt(f),
            Self::OperationCancelled { why } => {
                write!(f, "the operation was cancelled before it began: {why}")
            }
            Self::NoThread { why } => write!(f, "no thread could be started: {why}"),
            Self::OtherProject { ino } => {
                write!(f, "inode {ino} belongs to another project than the directory")
            }
            Self::OtherPolicy { ino } => {
                write!(f, "inode {ino} is not encrypted as the directory is")
            }
            Self::Sealed { ino } => write!(f, "inode {ino} is sealed by fs-verity already"),
            Self::OpenForWriting { ino } => {
                write!(f, "inode {ino} is open for writing, so it cannot be sealed")
            }
            Self::IntoItself { ino } => {
                write!(f, "directory inode {ino} cannot move to a place inside itself")
            }
            Self::AttributeExists { ino } => {
                write!(f, "inode {ino} has an extended attribute of that name already")
            }
            Self::AttributeTooLarge { ino, bytes, limit } => write!(
                f,
                "an attribute value of {bytes} bytes does not fit inode {ino}: at most {limit} \
                 bytes on this file system"
            ),
            Self::PageCache(error) => error.fmt(f),
            Self::WritebackFailed { ino, failures } => write!(
                f,
                "writeback of inode {ino} failed {failures} times since it was last synced; nothing \
                 was lost, and what failed was written again"
            ),
            Self::InUse { by } => write!(f, "the file system is in use by {by}"),
            Self::Aborted { why, .. } => {
                write!(f, "the journal stopped, mount again to go on: {why}")
            }
            Self::NotExt { offset, magic: Some(magic) } => write!(
                f,
                "no ext2, ext3 or ext4 superblock at byte {offset}: magic {magic:#06x}, expected \
                 0xef53"
            ),
            Self::NotExt { offset, magic: None } => write!(
                f,
                "no ext2, ext3 or ext4 superblock at byte {offset}: the device ends before it"
            ),
            Self::ExternalJournal { uuid } => write!(
                f,
                "this is an external journal (UUID {}), not a file system; open the file system \
                 that uses it and pass this device as its journal",
                Uuid(uuid)
            ),
            Self::Unsupported { wanted, features } => {
                write!(f, "cannot {wanted} this image: it uses features unknown here: {features}")
            }
            Self::JournalDeviceMissing { uuid } => write!(
                f,
                "the journal (UUID {}) is on another device, which has to be given; or ignore the \
                 journal to see the tree as of its last checkpoint",
                Uuid(uuid)
            ),
            Self::Corrupt { structure, ino, block, fault } => {
                f.write_str(structure)?;
                if let Some(ino) = ino {
                    write!(f, " of inode {ino}")?;
                }
                if let Some(block) = block {
                    write!(f, " at block {block}")?;
                }
                // Some decoders begin with the structure themselves.
                let fault = fault.to_string();
                let named = fault.strip_prefix(structure).and_then(|rest| rest.strip_prefix(": "));
                write!(f, ": {}", named.unwrap_or(&fault))
            }
            Self::Unverified { ino, what, index, block_bytes } => write!(
                f,
                "block {index} (of {block_bytes} bytes) of the {what} of inode {ino} has not the \
                 hash that its fs-verity seal says"
            ),
            Self::WrongJournalDevice { wanted, found } => write!(
                f,
                "the device passed as journal has UUID {}, the image's journal has UUID {}",
                Uuid(found),
                Uuid(wanted)
            ),
            Self::CutShort { file_system_bytes, device_bytes } => write!(
                f,
                "the image is cut short: the file system has {file_system_bytes} bytes, the file \
                 has {device_bytes}"
            ),
            Self::Journal(error) => write!(f, "journal cannot be replayed: {error}"),
            Self::JournalDevice(error) => write!(f, "journal device cannot be used: {error}"),
            Self::Open(error) => fmt::Display::fmt(error, f),
            Self::Device(error) => fmt::Display::fmt(error, f),
            Self::DeviceFull(error) => {
                write!(f, "the disk that holds {} is full: {error}", error.device())
            }
        }
    }
}

impl StdError for FsError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            Self::Device(error) | Self::DeviceFull(error) => error.source(),
            // Display shows the inner error itself, so the source is its cause.
            Self::Open(error) => error.source(),
            Self::Journal(error) => error.source(),
            Self::JournalDevice(error) => error.source(),
            _ => None,
        }
    }
}

/// Returns the family of a journal error: an unreadable log is a device error, an unknown feature a
/// refusal.
fn journal_family(error: &RecoveryError) -> Family {
    match error {
        RecoveryError::Read(JournalReadError::Device { .. }) | RecoveryError::Write(_) => {
            Family::Device
        }
        RecoveryError::Superblock(JournalFault::UnknownFeatures { .. })
        | RecoveryError::FastCommitFeatures { .. } => Family::Refusal,
        _ => Family::Damage,
    }
}

impl From<ChecksumError> for Fault {
    fn from(error: ChecksumError) -> Fault {
        Fault::Checksum { stored: error.stored, computed: error.computed }
    }
}

impl From<DeviceError> for FsError {
    fn from(error: DeviceError) -> FsError {
        if error.is_full() { FsError::DeviceFull(error) } else { FsError::Device(error) }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checksum { stored, computed } => {
                write!(f, "checksum {stored:#010x} stored, {computed:#010x} computed")
            }
            Self::Field { rule, value, limit } => write!(f, "{rule} ({value}, limit {limit})"),
            Self::Rule(rule) => f.write_str(rule),
            Self::Zone { file_block: Some(at), zone } => {
                write!(f, "file block {at} lies in {zone}, which no file may use")
            }
            Self::Zone { file_block: None, zone } => {
                write!(f, "it lies in {zone}, which no file may use")
            }
            Self::Decode(fault) => fmt::Display::fmt(fault, f),
        }
    }
}

/// Prints 16 bytes in the usual 8-4-4-4-12 form.
struct Uuid<'a>(&'a [u8; 16]);

impl fmt::Display for Uuid<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, byte) in self.0.iter().enumerate() {
            if matches!(at, 4 | 6 | 8 | 10) {
                f.write_str("-")?;
            }
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// Numbers of the generic Linux errno table.
mod errno {
    pub(super) const ENOENT: i32 = 2;
    pub(super) const EPERM: i32 = 1;
    pub(super) const EACCES: i32 = 13;
    pub(super) const EIO: i32 = 5;
    pub(super) const EAGAIN: i32 = 11;
    pub(super) const EBUSY: i32 = 16;
    pub(super) const EEXIST: i32 = 17;
    pub(super) const EXDEV: i32 = 18;
    pub(super) const ENOTDIR: i32 = 20;
    pub(super) const EISDIR: i32 = 21;
    pub(super) const EINVAL: i32 = 22;
    pub(super) const ETXTBSY: i32 = 26;
    pub(super) const EFBIG: i32 = 27;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const EROFS: i32 = 30;
    pub(super) const EMLINK: i32 = 31;
    pub(super) const ENAMETOOLONG: i32 = 36;
    pub(super) const ENOTEMPTY: i32 = 39;
    pub(super) const ELOOP: i32 = 40;
    pub(super) const ENODATA: i32 = 61;
    pub(super) const EBADMSG: i32 = 74;
    pub(super) const EILSEQ: i32 = 84;
    pub(super) const EOPNOTSUPP: i32 = 95;
    pub(super) const ESTALE: i32 = 116;
    pub(super) const EUCLEAN: i32 = 117;
    pub(super) const EDQUOT: i32 = 122;
    pub(super) const ECANCELED: i32 = 125;
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const ENOKEY: i32 = 126;
}

// Every Result holds an error: a large one would slow every successful call.
const _: () = assert!(std::mem::size_of::<FsError>() <= 80);

#[cfg(test)]
mod tests;
