//! Errors as stable numbers for programs, and as kinds of `std::io`.

use std::io;

use extant_base::Ino;
use extant_block::{DeviceFault, OpenError};

use super::{Family, FsError, GrowRefused};

/// Number of an error, which never changes: for bindings to other languages, for JSON, and for
/// logs.
///
/// An errno is coarser: several of these share `EINVAL`.
///
/// ```
/// use extant::{ErrorCode, FsError};
/// assert_eq!(FsError::ReadOnly.code(), ErrorCode::ReadOnly);
/// assert_eq!(ErrorCode::ReadOnly as u16, 16);
/// assert_eq!(ErrorCode::ReadOnly.name(), "ReadOnly");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u16)]
pub enum ErrorCode {
    /// [`FsError::NotFound`].
    NotFound = 1,
    /// [`FsError::NotADirectory`].
    NotADirectory = 2,
    /// [`FsError::IsADirectory`].
    IsADirectory = 3,
    /// [`FsError::NotARegularFile`].
    NotARegularFile = 4,
    /// [`FsError::NotASymlink`].
    NotASymlink = 5,
    /// [`FsError::NameTooLong`], [`FsError::TargetTooLong`].
    NameTooLong = 6,
    /// [`FsError::SymlinkLoop`].
    SymlinkLoop = 7,
    /// [`FsError::TooDeep`].
    TooDeep = 8,
    /// [`FsError::NoSuchInode`].
    NoSuchInode = 9,
    /// [`FsError::NoAttribute`].
    NoAttribute = 10,
    /// [`FsError::Encrypted`].
    Encrypted = 11,
    /// [`FsError::NotUtf8`].
    NotUtf8 = 12,
    /// [`FsError::TooLarge`].
    TooLarge = 13,
    /// [`FsError::InvalidArgument`].
    InvalidArgument = 14,
    /// [`FsError::NotSupported`].
    NotSupported = 15,
    /// [`FsError::ReadOnly`].
    ReadOnly = 16,
    /// [`FsError::Exists`].
    Exists = 17,
    /// [`FsError::NotEmpty`].
    NotEmpty = 18,
    /// [`FsError::InvalidName`].
    InvalidName = 19,
    /// [`FsError::NoSpace`].
    NoSpace = 20,
    /// [`FsError::QuotaExceeded`].
    QuotaExceeded = 21,
    /// [`FsError::TooManyLinks`].
    TooManyLinks = 22,
    /// [`FsError::AccessDenied`].
    AccessDenied = 23,
    /// [`FsError::NotPermitted`].
    NotPermitted = 24,
    /// [`FsError::OtherProject`].
    OtherProject = 25,
    /// [`FsError::IntoItself`].
    IntoItself = 26,
    /// [`FsError::AttributeExists`].
    AttributeExists = 27,
    /// [`FsError::PageCache`].
    PageCache = 28,
    /// [`FsError::WritebackFailed`].
    WritebackFailed = 29,
    /// [`FsError::AttributeTooLarge`].
    AttributeTooLarge = 30,
    /// [`FsError::InUse`].
    InUse = 31,
    /// [`FsError::Aborted`].
    Aborted = 32,
    /// [`FsError::NotExt`].
    NotExt = 33,
    /// [`FsError::ExternalJournal`].
    ExternalJournal = 34,
    /// [`FsError::Unsupported`].
    Unsupported = 35,
    /// [`FsError::JournalDeviceMissing`].
    JournalDeviceMissing = 36,
    /// [`FsError::WrongJournalDevice`].
    WrongJournalDevice = 37,
    /// [`FsError::Corrupt`].
    Corrupt = 38,
    /// [`FsError::CutShort`].
    CutShort = 39,
    /// [`FsError::Journal`].
    Journal = 40,
    /// [`FsError::JournalDevice`].
    JournalDevice = 41,
    /// [`FsError::Device`].
    Device = 42,
    /// [`FsError::DeviceFull`].
    DeviceFull = 43,
    /// [`FsError::Open`].
    Open = 44,
    /// [`FsError::Misaligned`].
    Misaligned = 45,
    /// [`FsError::OtherFileSystem`].
    OtherFileSystem = 46,
    /// [`FsError::NoThread`].
    NoThread = 47,
    /// [`FsError::Frozen`].
    Frozen = 48,
    /// [`FsError::OperationCancelled`].
    OperationCancelled = 49,
    /// [`FsError::OtherPolicy`].
    OtherPolicy = 50,
    /// [`FsError::Unverified`].
    Unverified = 51,
    /// [`FsError::Sealed`].
    Sealed = 52,
    /// [`FsError::OpenForWriting`].
    OpenForWriting = 53,
    /// [`FsError::CannotGrow`].
    CannotGrow = 54,
    /// [`FsError::NameInUse`].
    NameInUse = 55,
}

impl ErrorCode {
    /// Every code, in the order of the numbers.
    pub const ALL: [ErrorCode; 55] = [
        Self::NotFound,
        Self::NotADirectory,
        Self::IsADirectory,
        Self::NotARegularFile,
        Self::NotASymlink,
        Self::NameTooLong,
        Self::SymlinkLoop,
        Self::TooDeep,
        Self::NoSuchInode,
        Self::NoAttribute,
        Self::Encrypted,
        Self::NotUtf8,
        Self::TooLarge,
        Self::InvalidArgument,
        Self::NotSupported,
        Self::ReadOnly,
        Self::Exists,
        Self::NotEmpty,
        Self::InvalidName,
        Self::NoSpace,
        Self::QuotaExceeded,
        Self::TooManyLinks,
        Self::AccessDenied,
        Self::NotPermitted,
        Self::OtherProject,
        Self::IntoItself,
        Self::AttributeExists,
        Self::PageCache,
        Self::WritebackFailed,
        Self::AttributeTooLarge,
        Self::InUse,
        Self::Aborted,
        Self::NotExt,
        Self::ExternalJournal,
        Self::Unsupported,
        Self::JournalDeviceMissing,
        Self::WrongJournalDevice,
        Self::Corrupt,
        Self::CutShort,
        Self::Journal,
        Self::JournalDevice,
        Self::Device,
        Self::DeviceFull,
        Self::Open,
        Self::Misaligned,
        Self::OtherFileSystem,
        Self::NoThread,
        Self::Frozen,
        Self::OperationCancelled,
        Self::OtherPolicy,
        Self::Unverified,
        Self::Sealed,
        Self::OpenForWriting,
        Self::CannotGrow,
        Self::NameInUse,
    ];

    /// Returns the name of the variant.
    pub fn name(self) -> &'static str {
        match self {
            Self::NotFound => "NotFound",
            Self::NotADirectory => "NotADirectory",
            Self::IsADirectory => "IsADirectory",
            Self::NotARegularFile => "NotARegularFile",
            Self::NotASymlink => "NotASymlink",
            Self::NameTooLong => "NameTooLong",
            Self::SymlinkLoop => "SymlinkLoop",
            Self::TooDeep => "TooDeep",
            Self::NoSuchInode => "NoSuchInode",
            Self::NoAttribute => "NoAttribute",
            Self::Encrypted => "Encrypted",
            Self::NotUtf8 => "NotUtf8",
            Self::TooLarge => "TooLarge",
            Self::InvalidArgument => "InvalidArgument",
            Self::NotSupported => "NotSupported",
            Self::ReadOnly => "ReadOnly",
            Self::Exists => "Exists",
            Self::NotEmpty => "NotEmpty",
            Self::InvalidName => "InvalidName",
            Self::NoSpace => "NoSpace",
            Self::QuotaExceeded => "QuotaExceeded",
            Self::TooManyLinks => "TooManyLinks",
            Self::AccessDenied => "AccessDenied",
            Self::NotPermitted => "NotPermitted",
            Self::OtherProject => "OtherProject",
            Self::IntoItself => "IntoItself",
            Self::AttributeExists => "AttributeExists",
            Self::PageCache => "PageCache",
            Self::WritebackFailed => "WritebackFailed",
            Self::AttributeTooLarge => "AttributeTooLarge",
            Self::InUse => "InUse",
            Self::Aborted => "Aborted",
            Self::NotExt => "NotExt",
            Self::ExternalJournal => "ExternalJournal",
            Self::Unsupported => "Unsupported",
            Self::JournalDeviceMissing => "JournalDeviceMissing",
            Self::WrongJournalDevice => "WrongJournalDevice",
            Self::Corrupt => "Corrupt",
            Self::CutShort => "CutShort",
            Self::Journal => "Journal",
            Self::JournalDevice => "JournalDevice",
            Self::Device => "Device",
            Self::DeviceFull => "DeviceFull",
            Self::Open => "Open",
            Self::Misaligned => "Misaligned",
            Self::OtherFileSystem => "OtherFileSystem",
            Self::NoThread => "NoThread",
            Self::Frozen => "Frozen",
            Self::OperationCancelled => "OperationCancelled",
            Self::OtherPolicy => "OtherPolicy",
            Self::Unverified => "Unverified",
            Self::Sealed => "Sealed",
            Self::OpenForWriting => "OpenForWriting",
            Self::CannotGrow => "CannotGrow",
            Self::NameInUse => "NameInUse",
        }
    }
}

impl FsError {
    /// Returns the code of the error.
    pub fn code(&self) -> ErrorCode {
        match self {
            Self::NotFound { .. } => ErrorCode::NotFound,
            Self::NotADirectory { .. } => ErrorCode::NotADirectory,
            Self::IsADirectory { .. } => ErrorCode::IsADirectory,
            Self::NotARegularFile { .. } => ErrorCode::NotARegularFile,
            Self::NotASymlink { .. } => ErrorCode::NotASymlink,
            Self::NameTooLong { .. } | Self::TargetTooLong { .. } => ErrorCode::NameTooLong,
            Self::SymlinkLoop { .. } => ErrorCode::SymlinkLoop,
            Self::TooDeep { .. } => ErrorCode::TooDeep,
            Self::NoSuchInode { .. } => ErrorCode::NoSuchInode,
            Self::NoAttribute { .. } => ErrorCode::NoAttribute,
            Self::Encrypted { .. } => ErrorCode::Encrypted,
            Self::NotUtf8 { .. } => ErrorCode::NotUtf8,
            Self::TooLarge { .. } => ErrorCode::TooLarge,
            Self::InvalidArgument { .. } => ErrorCode::InvalidArgument,
            Self::Misaligned { .. } => ErrorCode::Misaligned,
            Self::NotSupported { .. } => ErrorCode::NotSupported,
            Self::ReadOnly => ErrorCode::ReadOnly,
            Self::Exists { .. } => ErrorCode::Exists,
            Self::NotEmpty { .. } => ErrorCode::NotEmpty,
            Self::InvalidName { .. } => ErrorCode::InvalidName,
            Self::NoSpace { .. } => ErrorCode::NoSpace,
            Self::QuotaExceeded { .. } => ErrorCode::QuotaExceeded,
            Self::TooManyLinks { .. } => ErrorCode::TooManyLinks,
            Self::AccessDenied { .. } => ErrorCode::AccessDenied,
            Self::NotPermitted { .. } => ErrorCode::NotPermitted,
            Self::OtherProject { .. } => ErrorCode::OtherProject,
            Self::OtherFileSystem { .. } => ErrorCode::OtherFileSystem,
            Self::NoThread { .. } => ErrorCode::NoThread,
            Self::Frozen => ErrorCode::Frozen,
            Self::OperationCancelled { .. } => ErrorCode::OperationCancelled,
            Self::OtherPolicy { .. } => ErrorCode::OtherPolicy,
            Self::Unverified { .. } => ErrorCode::Unverified,
            Self::Sealed { .. } => ErrorCode::Sealed,
            Self::OpenForWriting { .. } => ErrorCode::OpenForWriting,
            Self::CannotGrow(_) => ErrorCode::CannotGrow,
            Self::NameInUse { .. } => ErrorCode::NameInUse,
            Self::IntoItself { .. } => ErrorCode::IntoItself,
            Self::AttributeExists { .. } => ErrorCode::AttributeExists,
            Self::PageCache(_) => ErrorCode::PageCache,
            Self::WritebackFailed { .. } => ErrorCode::WritebackFailed,
            Self::AttributeTooLarge { .. } => ErrorCode::AttributeTooLarge,
            Self::InUse { .. } => ErrorCode::InUse,
            Self::Aborted { .. } => ErrorCode::Aborted,
            Self::NotExt { .. } => ErrorCode::NotExt,
            Self::ExternalJournal { .. } => ErrorCode::ExternalJournal,
            Self::Unsupported { .. } => ErrorCode::Unsupported,
            Self::JournalDeviceMissing { .. } => ErrorCode::JournalDeviceMissing,
            Self::WrongJournalDevice { .. } => ErrorCode::WrongJournalDevice,
            Self::Corrupt { .. } => ErrorCode::Corrupt,
            Self::CutShort { .. } => ErrorCode::CutShort,
            Self::Journal(_) => ErrorCode::Journal,
            Self::JournalDevice(_) => ErrorCode::JournalDevice,
            Self::Device(_) => ErrorCode::Device,
            Self::DeviceFull(_) => ErrorCode::DeviceFull,
            Self::Open(_) => ErrorCode::Open,
        }
    }

    /// Returns the inode of the error, or the directory in which a name was looked up; `None` for
    /// errors about arguments, the device or the whole file system.
    pub fn ino(&self) -> Option<Ino> {
        match self {
            Self::NotFound { dir: ino, .. }
            | Self::NotADirectory { ino, .. }
            | Self::IsADirectory { ino }
            | Self::NotARegularFile { ino }
            | Self::NotASymlink { ino }
            | Self::SymlinkLoop { ino, .. }
            | Self::TooDeep { ino, .. }
            | Self::NoSuchInode { ino, .. }
            | Self::NoAttribute { ino }
            | Self::Encrypted { ino, .. }
            | Self::NotUtf8 { ino, .. }
            | Self::TooLarge { ino, .. }
            | Self::NotSupported { ino, .. }
            | Self::Exists { ino, .. }
            | Self::NotEmpty { ino }
            | Self::TooManyLinks { ino, .. }
            | Self::AccessDenied { ino, .. }
            | Self::NotPermitted { ino, .. }
            | Self::OtherProject { ino }
            | Self::OtherPolicy { ino }
            | Self::OtherFileSystem { ino }
            | Self::Unverified { ino, .. }
            | Self::Sealed { ino }
            | Self::OpenForWriting { ino }
            | Self::IntoItself { ino }
            | Self::AttributeExists { ino }
            | Self::WritebackFailed { ino, .. }
            | Self::AttributeTooLarge { ino, .. } => Some(*ino),
            Self::Corrupt { ino, .. } => *ino,
            _ => None,
        }
    }

    /// Returns the kind that `std` gives to the same failure of a system call, where there is one.
    pub(super) fn io_kind(&self) -> io::ErrorKind {
        use io::ErrorKind as Kind;
        match self {
            Self::NotFound { .. } | Self::NoAttribute { .. } => Kind::NotFound,
            Self::NotADirectory { .. } => Kind::NotADirectory,
            Self::IsADirectory { .. } => Kind::IsADirectory,
            Self::NotARegularFile { .. }
            | Self::NotASymlink { .. }
            | Self::InvalidArgument { .. }
            | Self::Misaligned { .. }
            | Self::InvalidName { .. }
            | Self::IntoItself { .. }
            | Self::JournalDeviceMissing { .. }
            | Self::WrongJournalDevice { .. } => Kind::InvalidInput,
            Self::NameTooLong { .. } | Self::TargetTooLong { .. } | Self::TooDeep { .. } => {
                Kind::InvalidFilename
            }
            Self::NoSuchInode { .. } => Kind::StaleNetworkFileHandle,
            Self::Encrypted { .. } | Self::AccessDenied { .. } | Self::NotPermitted { .. } => {
                Kind::PermissionDenied
            }
            Self::NotUtf8 { .. }
            | Self::NotExt { .. }
            | Self::ExternalJournal { .. }
            | Self::Corrupt { .. }
            | Self::Unverified { .. }
            | Self::CutShort { .. } => Kind::InvalidData,
            Self::TooLarge { .. } => Kind::FileTooLarge,
            Self::NotSupported { .. } | Self::Unsupported { .. } => Kind::Unsupported,
            Self::ReadOnly | Self::Aborted { .. } => Kind::ReadOnlyFilesystem,
            Self::Exists { .. } | Self::AttributeExists { .. } | Self::Sealed { .. } => {
                Kind::AlreadyExists
            }
            Self::OpenForWriting { .. } => Kind::ExecutableFileBusy,
            Self::NotEmpty { .. } => Kind::DirectoryNotEmpty,
            Self::NoSpace { .. } | Self::AttributeTooLarge { .. } | Self::DeviceFull(_) => {
                Kind::StorageFull
            }
            Self::QuotaExceeded { .. } => Kind::QuotaExceeded,
            Self::TooManyLinks { .. } => Kind::TooManyLinks,
            Self::OtherProject { .. } | Self::OtherPolicy { .. } | Self::OtherFileSystem { .. } => {
                Kind::CrossesDevices
            }
            Self::NoThread { .. } => Kind::WouldBlock,
            Self::Frozen | Self::CannotGrow(GrowRefused::Busy) => Kind::ResourceBusy,
            Self::CannotGrow(why) => match why {
                GrowRefused::PastDevice { .. } | GrowRefused::JournalTooSmall { .. } => {
                    Kind::StorageFull
                }
                GrowRefused::Layout { .. } => Kind::Unsupported,
                GrowRefused::NoNumbers { .. } => Kind::FileTooLarge,
                _ => Kind::InvalidInput,
            },
            Self::OperationCancelled { .. } => Kind::Other,
            Self::PageCache(_) => Kind::OutOfMemory,
            Self::WritebackFailed { .. } => Kind::Other,
            Self::InUse { .. } | Self::NameInUse { .. } => Kind::ResourceBusy,
            // The kind of `std` for this error (`FilesystemLoop`) is not stable.
            Self::SymlinkLoop { .. } => Kind::Other,
            Self::Open(error) => match &**error {
                OpenError::Io { source, .. } => source.kind(),
                OpenError::Locked { .. } | OpenError::Busy { .. } => Kind::ResourceBusy,
                _ => Kind::InvalidInput,
            },
            Self::Device(error) => match error.fault() {
                DeviceFault::Io(error) => error.kind(),
                _ => Kind::Other,
            },
            Self::Journal(_) | Self::JournalDevice(_) => match self.family() {
                Family::Refusal => Kind::Unsupported,
                Family::Damage => Kind::InvalidData,
                Family::Device => Kind::Other,
            },
        }
    }
}

impl From<FsError> for io::Error {
    /// Wraps the error. The kind is the one that `std` gives to the same failure of a system call;
    /// damage is [`InvalidData`](io::ErrorKind::InvalidData).
    fn from(error: FsError) -> io::Error {
        io::Error::new(error.io_kind(), error)
    }
}
