//! Errors of opening an image: the image, the kind of the reason, and advice.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::ops::Deref;

use extant_block::OpenError;

use super::{Family, FsError};

/// Error of probing or opening an image.
///
/// Display names the image and gives advice. A `MountError` dereferences to the [`FsError`] that
/// caused it, and `?` converts it to one, so programs that only report errors can use either type.
///
/// ```
/// use extant::{Fs, MountErrorKind};
/// let error = Fs::open_path("/none/disk.img").unwrap_err();
/// assert_eq!(error.kind(), MountErrorKind::CannotOpen);
/// assert_eq!(error.image(), "/none/disk.img");
/// assert!(error.to_string().contains("/none/disk.img"), "{error}");
/// assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::NotFound);
/// ```
#[derive(Debug)]
pub struct MountError {
    details: Box<Details>,
}

#[derive(Debug)]
struct Details {
    image: Box<str>,
    error: FsError,
}

/// Reason why an image cannot be opened, with a number that never changes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
#[repr(u16)]
pub enum MountErrorKind {
    /// The file or disk of the host cannot be opened: it is missing, or its permissions forbid it.
    CannotOpen = 1,
    /// The path leads to neither a regular file nor a block device.
    NotADevice = 2,
    /// Another program, host or mount uses the image.
    InUse = 3,
    /// The device holds no ext2, ext3 or ext4 file system at the expected place.
    NotExt = 4,
    /// The device is an external journal, and the file system that uses it is elsewhere.
    ExternalJournal = 5,
    /// The image, or its journal, has features that this build cannot read or write.
    Unsupported = 6,
    /// The journal is on another device, and that device was not given or is the wrong one.
    JournalDevice = 7,
    /// The journal holds changes, and they cannot be replayed.
    DamagedJournal = 8,
    /// The superblock, the group descriptors or another structure that opening needs is damaged.
    Damaged = 9,
    /// The device ends before the file system does.
    CutShort = 10,
    /// The device cannot be written to, and the image was opened for writing.
    ReadOnlyDevice = 11,
    /// An option has a value that the image, or another option, does not allow.
    InvalidOption = 12,
    /// The device failed.
    DeviceFailed = 13,
    /// There is no space for the writes that opening needs.
    NoSpace = 14,
    /// The system has no more memory or threads.
    NoResources = 15,
    /// Any other reason: see [`FsError::code`].
    Other = 16,
}

impl MountErrorKind {
    /// Returns the name of the variant, for logs and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::CannotOpen => "CannotOpen",
            Self::NotADevice => "NotADevice",
            Self::InUse => "InUse",
            Self::NotExt => "NotExt",
            Self::ExternalJournal => "ExternalJournal",
            Self::Unsupported => "Unsupported",
            Self::JournalDevice => "JournalDevice",
            Self::DamagedJournal => "DamagedJournal",
            Self::Damaged => "Damaged",
            Self::CutShort => "CutShort",
            Self::ReadOnlyDevice => "ReadOnlyDevice",
            Self::InvalidOption => "InvalidOption",
            Self::DeviceFailed => "DeviceFailed",
            Self::NoSpace => "NoSpace",
            Self::NoResources => "NoResources",
            Self::Other => "Other",
        }
    }

    /// Returns advice for the user; `None` where the message contains it, or no remedy is known.
    fn hint(self) -> Option<&'static str> {
        match self {
            Self::CannotOpen => Some("check the path and its permissions"),
            Self::NotADevice => Some("give the path of an image file or of a block device"),
            Self::InUse => Some("end the other use first, or open the image read-only"),
            Self::NotExt => {
                Some("if it holds partitions, open one of them with `extant::partition::open`")
            }
            Self::Unsupported => Some("a newer version of extant may know what it needs"),
            Self::DamagedJournal => Some(
                "repair the image (`extant repair`, `e2fsck`), or read it without its journal: `MountOptions::ignore_journal`",
            ),
            Self::Damaged => Some(
                "repair the image (`extant repair`, `e2fsck`), or try a backup of its superblock: `MountOptions::superblock`",
            ),
            Self::CutShort => Some("the image was not copied whole: copy it again"),
            Self::ReadOnlyDevice => Some("open it read-only: `MountOptions::read_only`"),
            Self::NoSpace => Some("free some space, or open the image read-only"),
            Self::ExternalJournal
            | Self::JournalDevice
            | Self::InvalidOption
            | Self::DeviceFailed
            | Self::NoResources
            | Self::Other => None,
        }
    }

    fn of(error: &FsError) -> MountErrorKind {
        match error {
            FsError::Open(error) => match &**error {
                OpenError::NotADevice { .. } => Self::NotADevice,
                OpenError::Locked { .. } | OpenError::Busy { .. } => Self::InUse,
                _ => Self::CannotOpen,
            },
            FsError::InUse { .. } | FsError::Frozen => Self::InUse,
            FsError::NotExt { .. } => Self::NotExt,
            FsError::ExternalJournal { .. } => Self::ExternalJournal,
            FsError::Unsupported { .. } => Self::Unsupported,
            FsError::JournalDeviceMissing { .. } | FsError::WrongJournalDevice { .. } => {
                Self::JournalDevice
            }
            FsError::Journal(_) => match error.family() {
                Family::Refusal => Self::Unsupported,
                Family::Damage => Self::DamagedJournal,
                Family::Device => Self::DeviceFailed,
            },
            FsError::JournalDevice(_) => match error.family() {
                Family::Refusal => Self::JournalDevice,
                Family::Damage => Self::DamagedJournal,
                Family::Device => Self::DeviceFailed,
            },
            FsError::Corrupt { .. } | FsError::Unverified { .. } => Self::Damaged,
            FsError::CutShort { .. } => Self::CutShort,
            FsError::ReadOnly => Self::ReadOnlyDevice,
            FsError::InvalidArgument { .. } => Self::InvalidOption,
            FsError::Device(_) | FsError::Aborted { .. } | FsError::WritebackFailed { .. } => {
                Self::DeviceFailed
            }
            FsError::NoSpace { .. } | FsError::QuotaExceeded { .. } | FsError::DeviceFull(_) => {
                Self::NoSpace
            }
            FsError::NoThread { .. } | FsError::PageCache(_) => Self::NoResources,
            FsError::NotFound { .. }
            | FsError::NotADirectory { .. }
            | FsError::IsADirectory { .. }
            | FsError::NotARegularFile { .. }
            | FsError::NotASymlink { .. }
            | FsError::NameTooLong { .. }
            | FsError::TargetTooLong { .. }
            | FsError::SymlinkLoop { .. }
            | FsError::TooDeep { .. }
            | FsError::NoSuchInode { .. }
            | FsError::NoAttribute { .. }
            | FsError::Encrypted { .. }
            | FsError::NotUtf8 { .. }
            | FsError::TooLarge { .. }
            | FsError::Misaligned { .. }
            | FsError::NotSupported { .. }
            | FsError::Exists { .. }
            | FsError::NotEmpty { .. }
            | FsError::InvalidName { .. }
            | FsError::TooManyLinks { .. }
            | FsError::AccessDenied { .. }
            | FsError::NotPermitted { .. }
            | FsError::OtherProject { .. }
            | FsError::OtherPolicy { .. }
            | FsError::OtherFileSystem { .. }
            | FsError::Sealed { .. }
            | FsError::OpenForWriting { .. }
            | FsError::IntoItself { .. }
            | FsError::AttributeExists { .. }
            | FsError::OperationCancelled { .. }
            | FsError::CannotGrow(_)
            | FsError::NameInUse { .. }
            | FsError::AttributeTooLarge { .. } => Self::Other,
        }
    }
}

impl MountError {
    pub(crate) fn new(image: impl Into<Box<str>>, error: FsError) -> MountError {
        MountError { details: Box::new(Details { image: image.into(), error }) }
    }

    /// Returns the kind of the reason.
    pub fn kind(&self) -> MountErrorKind {
        MountErrorKind::of(&self.details.error)
    }

    /// Returns the name of the image: its path, or the [description](crate::BlockDevice::describe)
    /// of its device.
    pub fn image(&self) -> &str {
        &self.details.image
    }

    /// Returns advice for the user; `None` where the message contains it, or no remedy is known.
    pub fn hint(&self) -> Option<&'static str> {
        match &self.details.error {
            // The image was found to be readable before this error.
            FsError::Unsupported { wanted: "write", .. } => MountErrorKind::ReadOnlyDevice.hint(),
            _ => self.kind().hint(),
        }
    }

    /// Returns the detailed error.
    pub fn into_fs_error(self) -> FsError {
        self.details.error
    }
}

impl Deref for MountError {
    type Target = FsError;

    fn deref(&self) -> &FsError {
        &self.details.error
    }
}

impl fmt::Display for MountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.details.error.to_string();
        // Errors of the device contain its name already.
        if !text.contains(&*self.details.image) {
            write!(f, "{}: ", self.details.image)?;
        }
        f.write_str(&text)?;
        match self.hint() {
            Some(hint) => write!(f, "; {hint}"),
            None => Ok(()),
        }
    }
}

impl StdError for MountError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        // Display shows the inner error itself, so the source is its cause.
        self.details.error.source()
    }
}

impl From<MountError> for FsError {
    fn from(error: MountError) -> FsError {
        error.into_fs_error()
    }
}

impl From<MountError> for io::Error {
    /// Wraps the error; the kind is that of the [`FsError`].
    fn from(error: MountError) -> io::Error {
        io::Error::new(error.details.error.io_kind(), error)
    }
}
