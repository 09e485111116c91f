//! The one error type of the file system, in three families, and its errno.
//!
//! Callers do three different things with a failure: tell the program ([`Family::Refusal`]), stop
//! trusting the image ([`Family::Damage`]), or stop trusting the device ([`Family::Device`]).
//! Damage is local: an error about one object says nothing about the others, which stay readable.

use std::error::Error as StdError;
use std::fmt;

use extant_base::{FsBlock, Ino};
use extant_block::{DeviceError, OpenError};
use extant_format::error::ChecksumError;
use extant_format::jbd2::JournalFault;
use extant_iomap::CacheError;
use extant_jbd2::{
    ExternalJournalError, JournalError, JournalOpenError, JournalReadError, RecoveryError,
};

use crate::zones::Zone;

mod code;
mod path_part;

pub use code::ErrorCode;
pub use path_part::PathPart;

/// Shorthand for results of this crate.
pub type Result<T, E = FsError> = std::result::Result<T, E>;

/// Why a file-system operation did not succeed.
///
/// Display names the structure, inode, block and numbers involved, and leaves the cause to
/// [`source`](std::error::Error::source). The frequent refusals allocate nothing: a lookup that
/// misses is a hot path.
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
        /// Where in a path, from functions that take one.
        at: Option<Box<PathPart>>,
    },
    /// A directory was needed and this is something else.
    NotADirectory {
        /// The inode that is not a directory.
        ino: Ino,
        /// Where in a path, from functions that take one.
        at: Option<Box<PathPart>>,
    },
    /// File contents were asked for and this is a directory.
    IsADirectory {
        /// The directory.
        ino: Ino,
    },
    /// File contents were asked for and this is a device, a pipe, a socket or a symlink.
    NotARegularFile {
        /// The inode that has no contents.
        ino: Ino,
    },
    /// A symbolic link was needed and this is something else.
    NotASymlink {
        /// The inode that is not a symbolic link.
        ino: Ino,
    },
    /// One name of a path is longer than the format's 255 bytes.
    NameTooLong {
        /// Length of the name in bytes.
        len: usize,
    },
    /// More than [`SYMLINKS_MAX`](crate::SYMLINKS_MAX) symbolic links in one path.
    SymlinkLoop {
        /// The link at which resolution stopped.
        ino: Ino,
        /// Where in a path, from functions that take one.
        at: Option<Box<PathPart>>,
    },
    /// A directory lies deeper in the tree than the operation goes.
    TooDeep {
        /// The directory that was not entered.
        ino: Ino,
        /// The deepest level that is.
        depth_max: usize,
    },
    /// The inode number does not exist on this image, or the inode is not in use.
    NoSuchInode {
        /// The number asked for.
        ino: Ino,
        /// How many inodes the image has; numbers run from 1 to this one.
        inode_count: u32,
    },
    /// The inode has no extended attribute of that name.
    NoAttribute {
        /// The inode.
        ino: Ino,
    },
    /// Contents or link target are encrypted and no key can be given.
    Encrypted {
        /// The encrypted inode.
        ino: Ino,
        /// What cannot be shown: `"contents"`, `"link target"` or `"directory entry names"`.
        what: &'static str,
    },
    /// The bytes are not UTF-8 and a string was asked for.
    NotUtf8 {
        /// The file.
        ino: Ino,
        /// How many bytes at the start are valid.
        valid_up_to: usize,
    },
    /// The file is larger than a call that reads it whole takes, or would become larger than a file
    /// of this file system can be.
    TooLarge {
        /// The file.
        ino: Ino,
        /// Its size in bytes, or the one that was asked for.
        bytes: u64,
        /// The most there can be, in bytes.
        limit: u64,
    },
    /// An argument is outside its documented range.
    InvalidArgument {
        /// Which argument, and what its range is.
        what: &'static str,
    },
    /// Direct I/O is aligned, or refused: [`DirectFile`](crate::DirectFile).
    Misaligned {
        /// Of what: `"offset"`, `"length"` or `"address of the memory"`.
        what: &'static str,
        /// What was given, in bytes.
        value: u64,
        /// What it has to be a multiple of, in bytes.
        unit: u32,
    },
    /// Files of this kind cannot do that.
    NotSupported {
        /// The file.
        ino: Ino,
        /// What, and which files can.
        what: &'static str,
    },
    /// The handle or mount does not allow the operation.
    ReadOnly,

    // Refusals of a change.
    /// The name is taken.
    Exists {
        /// The directory.
        dir: Ino,
        /// What the name stands for.
        ino: Ino,
    },
    /// The directory has entries besides `.` and `..`.
    NotEmpty {
        /// The directory.
        ino: Ino,
    },
    /// The name cannot be given to anything.
    InvalidName {
        /// What is wrong with it.
        what: &'static str,
    },
    /// There is no room.
    NoSpace {
        /// What there is none of: `"blocks"`, `"inodes"`, `"index levels of the directory"`, …
        what: &'static str,
        /// How many were wanted.
        wanted: u64,
        /// How many are free.
        free: u64,
    },
    /// A quota is used up.
    QuotaExceeded {
        /// Whose: `"user"`, `"group"` or `"project"`.
        kind: &'static str,
        /// Which one.
        id: u32,
        /// Of what: `"blocks"` or `"inodes"`.
        what: &'static str,
    },
    /// The inode has as many names, or the directory as many subdirectories, as the format counts.
    TooManyLinks {
        /// The inode.
        ino: Ino,
        /// The most there can be.
        limit: u32,
    },
    /// Its permissions do not let a user do that.
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
        /// Why: for example `"it is immutable"`.
        what: &'static str,
    },
    /// The inode belongs to another project than the directory gives to all that is in it.
    OtherProject {
        /// The inode.
        ino: Ino,
    },
    /// The inode is a handle of another mount: names, links and rings stay within one.
    OtherFileSystem {
        /// Its number there.
        ino: Ino,
    },
    /// A directory cannot move into itself or below.
    IntoItself {
        /// The directory.
        ino: Ino,
    },
    /// The inode has an extended attribute of that name already.
    AttributeExists {
        /// The inode.
        ino: Ino,
    },
    /// The system starts no thread: as many as it allows are running.
    NoThread {
        /// What it says.
        why: Box<str>,
    },
    /// The mount is frozen: [`Fs::freeze`](crate::Fs::freeze).
    Frozen,
    /// The page cache has no room, or no memory.
    PageCache(CacheError),
    /// Writeback of the file failed since it was opened or last synced; the data was kept.
    WritebackFailed {
        /// The file.
        ino: Ino,
        /// How often.
        failures: u64,
    },
    /// The attribute value is longer than this file system can hold.
    AttributeTooLarge {
        /// The inode.
        ino: Ino,
        /// Length of the value in bytes.
        bytes: u64,
        /// The longest value there can be.
        limit: u64,
    },
    /// Somebody else has the file system open for writing.
    InUse {
        /// Who, as far as the image says.
        by: Box<str>,
    },
    /// The journal stopped after a failure; nothing more is written until the next mount.
    Aborted {
        /// Linux errno of the failure, positive: `EUCLEAN` or `EBADMSG` when it was damage of the
        /// image, and not the device.
        errno: i32,
        /// The failure, in words.
        why: Box<str>,
    },

    // Refusals of a whole image.
    /// There is no ext2, ext3 or ext4 superblock where one was looked for.
    NotExt {
        /// Byte offset of the superblock that was looked at.
        offset: u64,
        /// What stands in the magic field; `None` when the device ends before it.
        magic: Option<u16>,
    },
    /// The device holds an external journal and not a file system.
    ExternalJournal {
        /// UUID of the journal.
        uuid: [u8; 16],
    },
    /// The image needs features that this build does not know.
    Unsupported {
        /// What was tried: `"read"` or `"write"`.
        wanted: &'static str,
        /// The features by name, separated by `", "`; unknown bits as `FEATURE_I12`.
        features: Box<str>,
    },
    /// The journal lives on another device which the caller did not pass.
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
    /// The device ends before what was asked for, although the file system counts it: an image cut
    /// short by a copy that stopped. What lies before the end stays readable.
    CutShort {
        /// Bytes of the file system, by its superblock.
        file_system_bytes: u64,
        /// Bytes of the device.
        device_bytes: u64,
    },
    /// The journal cannot be looked through. Ignoring it shows a state that never was.
    Journal(Box<RecoveryError>),
    /// The device passed as journal is none, or is damaged.
    JournalDevice(Box<ExternalJournalError>),

    /// The file or disk cannot be opened as a device, from [`Fs::open_path`](crate::Fs::open_path) and
    /// [`MountOptions::open_path`](crate::MountOptions::open_path).
    Open(Box<OpenError>),

    // Device.
    /// The device failed; the error names the device and the bytes.
    Device(DeviceError),
    /// There is no room where the device lies: the disk that holds an image file is full. What was not
    /// stored is kept, and is stored when there is room.
    DeviceFull(DeviceError),
}

/// What is wrong with a damaged structure.
#[derive(Debug)]
#[non_exhaustive]
pub enum Fault {
    /// The stored checksum is not the computed one.
    Checksum {
        /// As stored on the device.
        stored: u32,
        /// As computed from the contents.
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
    /// What is mapped, or pointed to, belongs to the file system itself.
    Zone {
        /// The block of the file, where it is one of its contents.
        file_block: Option<u64>,
        /// What is there.
        zone: Zone,
    },
    /// The decoder of the structure rejected it.
    Decode(Box<dyn StdError + Send + Sync>),
}

/// What kind of answer an error is; see [`FsError::family`].
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
    /// Which family the error belongs to.
    pub fn family(&self) -> Family {
        match self {
            Self::NotFound { .. }
            | Self::NotADirectory { .. }
            | Self::IsADirectory { .. }
            | Self::NotARegularFile { .. }
            | Self::NotASymlink { .. }
            | Self::NameTooLong { .. }
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
            | Self::NoSpace { .. }
            | Self::QuotaExceeded { .. }
            | Self::TooManyLinks { .. }
            | Self::AccessDenied { .. }
            | Self::NotPermitted { .. }
            | Self::OtherProject { .. }
            | Self::OtherFileSystem { .. }
            | Self::NoThread { .. }
            | Self::Frozen
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
            Self::Corrupt { .. } | Self::CutShort { .. } => Family::Damage,
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
            Self::NameTooLong { .. } => errno::ENAMETOOLONG,
            Self::SymlinkLoop { .. } => errno::ELOOP,
            Self::TooDeep { .. } => errno::ENAMETOOLONG, // Its path would be.
            // What Linux answers for a file handle whose inode is gone.
            Self::NoSuchInode { .. } => errno::ESTALE,
            Self::NoAttribute { .. } => errno::ENODATA,
            Self::Encrypted { .. } => errno::ENOKEY,
            Self::NotUtf8 { .. } => errno::EILSEQ,
            Self::TooLarge { .. } => errno::EFBIG,
            Self::InvalidArgument { .. } | Self::Misaligned { .. } => errno::EINVAL,
            Self::NotSupported { .. } => errno::EOPNOTSUPP,
            Self::ReadOnly | Self::Aborted { .. } => errno::EROFS,
            Self::Exists { .. } | Self::AttributeExists { .. } => errno::EEXIST,
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
            Self::InUse { .. } | Self::Frozen => errno::EBUSY,
            Self::OtherProject { .. } | Self::OtherFileSystem { .. } => errno::EXDEV,
            Self::NoThread { .. } => errno::EAGAIN,
            // What mount(2) says on Linux for the next five, and for a journal it does not know.
            Self::NotExt { .. } => errno::EINVAL,
            Self::ExternalJournal { .. } => errno::EINVAL,
            Self::Unsupported { .. } => errno::EINVAL,
            Self::JournalDeviceMissing { .. } => errno::EINVAL,
            Self::WrongJournalDevice { .. } => errno::EINVAL,
            Self::Open(error) => match &**error {
                OpenError::Io { source, .. } => source.raw_os_error().unwrap_or(errno::EIO),
                OpenError::Locked { .. } | OpenError::Busy { .. } => errno::EBUSY,
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
            Self::Device(_) => errno::EIO, // The device's own number stays in `source`.
        }
    }

    /// What the writing half of the journal answered.
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

    /// Whether there was no room for a change, here or where the device lies, or none within a quota.
    pub(crate) fn is_no_room(&self) -> bool {
        matches!(self, Self::NoSpace { .. } | Self::QuotaExceeded { .. } | Self::DeviceFull(_))
    }

    /// The message with those of the causes, for where only words are kept.
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

    /// The journal cannot be written to.
    pub(crate) fn journal_open(error: JournalOpenError) -> FsError {
        match error {
            JournalOpenError::Unmapped { .. } => {
                FsError::corrupt("journal", None, None, Fault::Decode(Box::new(error)))
            }
            _ => FsError::Unsupported { wanted: "write", features: error.to_string().into() },
        }
    }

    pub(crate) fn journal(error: RecoveryError) -> FsError {
        FsError::Journal(Box::new(error))
    }

    pub(crate) fn journal_device(error: ExternalJournalError) -> FsError {
        FsError::JournalDevice(Box::new(error))
    }

    /// Damage of `structure`, owned by `ino`, read from `block`.
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
            Self::Encrypted { ino, what } => write!(
                f,
                "{what} of inode {ino} cannot be read: encrypted, and reading with a key is not \
                 supported"
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
            Self::NoThread { why } => write!(f, "no thread could be started: {why}"),
            Self::OtherProject { ino } => {
                write!(f, "inode {ino} belongs to another project than the directory")
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
                "the journal (UUID {}) is on another device and must be replayed first; pass \
                 that device, or ignore the journal to see the tree as of its last checkpoint",
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
                write!(f, ": {fault}")
            }
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
            // Display shows the error itself.
            Self::Open(error) => error.source(),
            Self::Journal(error) => error.source(),
            Self::JournalDevice(error) => error.source(),
            _ => None,
        }
    }
}

/// An unreadable log is the device's fault; one of unknown features is nobody's.
fn journal_family(error: &RecoveryError) -> Family {
    match error {
        RecoveryError::Read(JournalReadError::Device { .. }) => Family::Device,
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
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const ENOKEY: i32 = 126;
}

// Errors travel in every Result: a large one makes every successful call copy more.
const _: () = assert!(std::mem::size_of::<FsError>() <= 80);

#[cfg(test)]
mod tests;
