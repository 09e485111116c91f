//! Every error as a number that never changes, an errno, a text and the object that it is about.

use std::error::Error as StdError;
use std::ffi::{CStr, c_int};

use extant::{ErrorCode, FsError};
use extant_block::OpenError;
use extant_check::CheckError;
use extant_image::BuildError;
use extant_image::output::OutputError;
use extant_image::plan::PlanError;
use extant_image::write::WriteError;

// The codes of the library: docs of `extant::FsError` say what each means.

/// NotFound
pub const EXTANT_E_NOT_FOUND: c_int = 1;
/// NotADirectory
pub const EXTANT_E_NOT_A_DIRECTORY: c_int = 2;
/// IsADirectory
pub const EXTANT_E_IS_A_DIRECTORY: c_int = 3;
/// NotARegularFile
pub const EXTANT_E_NOT_A_REGULAR_FILE: c_int = 4;
/// NotASymlink
pub const EXTANT_E_NOT_A_SYMLINK: c_int = 5;
/// NameTooLong
pub const EXTANT_E_NAME_TOO_LONG: c_int = 6;
/// SymlinkLoop
pub const EXTANT_E_SYMLINK_LOOP: c_int = 7;
/// TooDeep
pub const EXTANT_E_TOO_DEEP: c_int = 8;
/// NoSuchInode
pub const EXTANT_E_NO_SUCH_INODE: c_int = 9;
/// NoAttribute
pub const EXTANT_E_NO_ATTRIBUTE: c_int = 10;
/// Encrypted
pub const EXTANT_E_ENCRYPTED: c_int = 11;
/// NotUtf8
pub const EXTANT_E_NOT_UTF8: c_int = 12;
/// TooLarge
pub const EXTANT_E_TOO_LARGE: c_int = 13;
/// InvalidArgument
pub const EXTANT_E_INVALID_ARGUMENT: c_int = 14;
/// NotSupported
pub const EXTANT_E_NOT_SUPPORTED: c_int = 15;
/// ReadOnly
pub const EXTANT_E_READ_ONLY: c_int = 16;
/// Exists
pub const EXTANT_E_EXISTS: c_int = 17;
/// NotEmpty
pub const EXTANT_E_NOT_EMPTY: c_int = 18;
/// InvalidName
pub const EXTANT_E_INVALID_NAME: c_int = 19;
/// NoSpace
pub const EXTANT_E_NO_SPACE: c_int = 20;
/// QuotaExceeded
pub const EXTANT_E_QUOTA_EXCEEDED: c_int = 21;
/// TooManyLinks
pub const EXTANT_E_TOO_MANY_LINKS: c_int = 22;
/// AccessDenied
pub const EXTANT_E_ACCESS_DENIED: c_int = 23;
/// NotPermitted
pub const EXTANT_E_NOT_PERMITTED: c_int = 24;
/// OtherProject
pub const EXTANT_E_OTHER_PROJECT: c_int = 25;
/// IntoItself
pub const EXTANT_E_INTO_ITSELF: c_int = 26;
/// AttributeExists
pub const EXTANT_E_ATTRIBUTE_EXISTS: c_int = 27;
/// PageCache
pub const EXTANT_E_PAGE_CACHE: c_int = 28;
/// WritebackFailed
pub const EXTANT_E_WRITEBACK_FAILED: c_int = 29;
/// AttributeTooLarge
pub const EXTANT_E_ATTRIBUTE_TOO_LARGE: c_int = 30;
/// InUse
pub const EXTANT_E_IN_USE: c_int = 31;
/// Aborted
pub const EXTANT_E_ABORTED: c_int = 32;
/// NotExt
pub const EXTANT_E_NOT_EXT: c_int = 33;
/// ExternalJournal
pub const EXTANT_E_EXTERNAL_JOURNAL: c_int = 34;
/// Unsupported
pub const EXTANT_E_UNSUPPORTED: c_int = 35;
/// JournalDeviceMissing
pub const EXTANT_E_JOURNAL_DEVICE_MISSING: c_int = 36;
/// WrongJournalDevice
pub const EXTANT_E_WRONG_JOURNAL_DEVICE: c_int = 37;
/// Corrupt
pub const EXTANT_E_CORRUPT: c_int = 38;
/// CutShort
pub const EXTANT_E_CUT_SHORT: c_int = 39;
/// Journal
pub const EXTANT_E_JOURNAL: c_int = 40;
/// JournalDevice
pub const EXTANT_E_JOURNAL_DEVICE: c_int = 41;
/// Device
pub const EXTANT_E_DEVICE: c_int = 42;
/// DeviceFull
pub const EXTANT_E_DEVICE_FULL: c_int = 43;
/// Open
pub const EXTANT_E_OPEN: c_int = 44;
/// Misaligned
pub const EXTANT_E_MISALIGNED: c_int = 45;
/// OtherFileSystem
pub const EXTANT_E_OTHER_FILE_SYSTEM: c_int = 46;
/// NoThread
pub const EXTANT_E_NO_THREAD: c_int = 47;
/// Frozen
pub const EXTANT_E_FROZEN: c_int = 48;
/// OperationCancelled
pub const EXTANT_E_OPERATION_CANCELLED: c_int = 49;
/// OtherPolicy
pub const EXTANT_E_OTHER_POLICY: c_int = 50;
/// Unverified
pub const EXTANT_E_UNVERIFIED: c_int = 51;
/// Sealed
pub const EXTANT_E_SEALED: c_int = 52;
/// OpenForWriting
pub const EXTANT_E_OPEN_FOR_WRITING: c_int = 53;
/// CannotGrow
pub const EXTANT_E_CANNOT_GROW: c_int = 54;
/// NameInUse
pub const EXTANT_E_NAME_IN_USE: c_int = 55;
/// The handle is invalid, or was closed: EBADF.
pub const EXTANT_E_BAD_HANDLE: c_int = 1000;
/// A pointer is NULL that must not be: EFAULT.
pub const EXTANT_E_NULL: c_int = 1001;
/// The size of a structure makes no sense, or it asks for something that this version does not know: EINVAL.
pub const EXTANT_E_BAD_STRUCT: c_int = 1002;
/// An argument is outside its range: EINVAL.
pub const EXTANT_E_BAD_ARGUMENT: c_int = 1003;
/// A fault in extant: ENOTRECOVERABLE.
pub const EXTANT_E_PANIC: c_int = 1004;
/// A fault in extant happened to this file system before: ENOTRECOVERABLE.
pub const EXTANT_E_POISONED: c_int = 1005;
/// A callback called extant: EDEADLK.
pub const EXTANT_E_REENTERED: c_int = 1006;
/// Files, directories or rings are open: EBUSY.
pub const EXTANT_E_BUSY: c_int = 1007;
/// As many operations as the ring is deep are under way: EAGAIN.
pub const EXTANT_E_RING_FULL: c_int = 1008;
/// A callback cancelled: ECANCELED.
pub const EXTANT_E_CANCELLED: c_int = 1009;
/// The source of a build cannot be read: EIO.
pub const EXTANT_E_BUILD_SOURCE: c_int = 1010;
/// The options of a build contradict each other: EINVAL.
pub const EXTANT_E_BUILD_OPTIONS: c_int = 1011;
/// The contents do not fit: ENOSPC.
pub const EXTANT_E_BUILD_NO_FIT: c_int = 1012;
/// The target of a build cannot be used: EIO.
pub const EXTANT_E_BUILD_TARGET: c_int = 1013;
/// The target of a build holds data of another kind: EEXIST.
pub const EXTANT_E_BUILD_TARGET_IN_USE: c_int = 1014;
/// The image cannot be checked: EUCLEAN when it is too damaged for that, EINVAL when it has features that are not known, ENOMEM,
/// or EIO.
pub const EXTANT_E_CHECK: c_int = 1015;
/// The buffer is too small: ERANGE.
pub const EXTANT_E_RANGE: c_int = 1016;
/// Too many handles are open: ENFILE.
pub const EXTANT_E_TOO_MANY_HANDLES: c_int = 1017;

/// Every code with its name.
const NAMES: [(c_int, &CStr); 73] = [
    (EXTANT_E_NOT_FOUND, c"NotFound"),
    (EXTANT_E_NOT_A_DIRECTORY, c"NotADirectory"),
    (EXTANT_E_IS_A_DIRECTORY, c"IsADirectory"),
    (EXTANT_E_NOT_A_REGULAR_FILE, c"NotARegularFile"),
    (EXTANT_E_NOT_A_SYMLINK, c"NotASymlink"),
    (EXTANT_E_NAME_TOO_LONG, c"NameTooLong"),
    (EXTANT_E_SYMLINK_LOOP, c"SymlinkLoop"),
    (EXTANT_E_TOO_DEEP, c"TooDeep"),
    (EXTANT_E_NO_SUCH_INODE, c"NoSuchInode"),
    (EXTANT_E_NO_ATTRIBUTE, c"NoAttribute"),
    (EXTANT_E_ENCRYPTED, c"Encrypted"),
    (EXTANT_E_NOT_UTF8, c"NotUtf8"),
    (EXTANT_E_TOO_LARGE, c"TooLarge"),
    (EXTANT_E_INVALID_ARGUMENT, c"InvalidArgument"),
    (EXTANT_E_NOT_SUPPORTED, c"NotSupported"),
    (EXTANT_E_READ_ONLY, c"ReadOnly"),
    (EXTANT_E_EXISTS, c"Exists"),
    (EXTANT_E_NOT_EMPTY, c"NotEmpty"),
    (EXTANT_E_INVALID_NAME, c"InvalidName"),
    (EXTANT_E_NO_SPACE, c"NoSpace"),
    (EXTANT_E_QUOTA_EXCEEDED, c"QuotaExceeded"),
    (EXTANT_E_TOO_MANY_LINKS, c"TooManyLinks"),
    (EXTANT_E_ACCESS_DENIED, c"AccessDenied"),
    (EXTANT_E_NOT_PERMITTED, c"NotPermitted"),
    (EXTANT_E_OTHER_PROJECT, c"OtherProject"),
    (EXTANT_E_INTO_ITSELF, c"IntoItself"),
    (EXTANT_E_ATTRIBUTE_EXISTS, c"AttributeExists"),
    (EXTANT_E_PAGE_CACHE, c"PageCache"),
    (EXTANT_E_WRITEBACK_FAILED, c"WritebackFailed"),
    (EXTANT_E_ATTRIBUTE_TOO_LARGE, c"AttributeTooLarge"),
    (EXTANT_E_IN_USE, c"InUse"),
    (EXTANT_E_ABORTED, c"Aborted"),
    (EXTANT_E_NOT_EXT, c"NotExt"),
    (EXTANT_E_EXTERNAL_JOURNAL, c"ExternalJournal"),
    (EXTANT_E_UNSUPPORTED, c"Unsupported"),
    (EXTANT_E_JOURNAL_DEVICE_MISSING, c"JournalDeviceMissing"),
    (EXTANT_E_WRONG_JOURNAL_DEVICE, c"WrongJournalDevice"),
    (EXTANT_E_CORRUPT, c"Corrupt"),
    (EXTANT_E_CUT_SHORT, c"CutShort"),
    (EXTANT_E_JOURNAL, c"Journal"),
    (EXTANT_E_JOURNAL_DEVICE, c"JournalDevice"),
    (EXTANT_E_DEVICE, c"Device"),
    (EXTANT_E_DEVICE_FULL, c"DeviceFull"),
    (EXTANT_E_OPEN, c"Open"),
    (EXTANT_E_MISALIGNED, c"Misaligned"),
    (EXTANT_E_OTHER_FILE_SYSTEM, c"OtherFileSystem"),
    (EXTANT_E_NO_THREAD, c"NoThread"),
    (EXTANT_E_FROZEN, c"Frozen"),
    (EXTANT_E_OPERATION_CANCELLED, c"OperationCancelled"),
    (EXTANT_E_OTHER_POLICY, c"OtherPolicy"),
    (EXTANT_E_UNVERIFIED, c"Unverified"),
    (EXTANT_E_SEALED, c"Sealed"),
    (EXTANT_E_OPEN_FOR_WRITING, c"OpenForWriting"),
    (EXTANT_E_CANNOT_GROW, c"CannotGrow"),
    (EXTANT_E_NAME_IN_USE, c"NameInUse"),
    (EXTANT_E_BAD_HANDLE, c"BadHandle"),
    (EXTANT_E_NULL, c"Null"),
    (EXTANT_E_BAD_STRUCT, c"BadStruct"),
    (EXTANT_E_BAD_ARGUMENT, c"BadArgument"),
    (EXTANT_E_PANIC, c"Panic"),
    (EXTANT_E_POISONED, c"Poisoned"),
    (EXTANT_E_REENTERED, c"Reentered"),
    (EXTANT_E_BUSY, c"Busy"),
    (EXTANT_E_RING_FULL, c"RingFull"),
    (EXTANT_E_CANCELLED, c"Cancelled"),
    (EXTANT_E_BUILD_SOURCE, c"BuildSource"),
    (EXTANT_E_BUILD_OPTIONS, c"BuildOptions"),
    (EXTANT_E_BUILD_NO_FIT, c"BuildNoFit"),
    (EXTANT_E_BUILD_TARGET, c"BuildTarget"),
    (EXTANT_E_BUILD_TARGET_IN_USE, c"BuildTargetInUse"),
    (EXTANT_E_CHECK, c"Check"),
    (EXTANT_E_RANGE, c"Range"),
    (EXTANT_E_TOO_MANY_HANDLES, c"TooManyHandles"),
];

const _: () = {
    assert!(EXTANT_E_NOT_FOUND == ErrorCode::NotFound as c_int);
    assert!(EXTANT_E_NOT_A_DIRECTORY == ErrorCode::NotADirectory as c_int);
    assert!(EXTANT_E_IS_A_DIRECTORY == ErrorCode::IsADirectory as c_int);
    assert!(EXTANT_E_NOT_A_REGULAR_FILE == ErrorCode::NotARegularFile as c_int);
    assert!(EXTANT_E_NOT_A_SYMLINK == ErrorCode::NotASymlink as c_int);
    assert!(EXTANT_E_NAME_TOO_LONG == ErrorCode::NameTooLong as c_int);
    assert!(EXTANT_E_SYMLINK_LOOP == ErrorCode::SymlinkLoop as c_int);
    assert!(EXTANT_E_TOO_DEEP == ErrorCode::TooDeep as c_int);
    assert!(EXTANT_E_NO_SUCH_INODE == ErrorCode::NoSuchInode as c_int);
    assert!(EXTANT_E_NO_ATTRIBUTE == ErrorCode::NoAttribute as c_int);
    assert!(EXTANT_E_ENCRYPTED == ErrorCode::Encrypted as c_int);
    assert!(EXTANT_E_NOT_UTF8 == ErrorCode::NotUtf8 as c_int);
    assert!(EXTANT_E_TOO_LARGE == ErrorCode::TooLarge as c_int);
    assert!(EXTANT_E_INVALID_ARGUMENT == ErrorCode::InvalidArgument as c_int);
    assert!(EXTANT_E_NOT_SUPPORTED == ErrorCode::NotSupported as c_int);
    assert!(EXTANT_E_READ_ONLY == ErrorCode::ReadOnly as c_int);
    assert!(EXTANT_E_EXISTS == ErrorCode::Exists as c_int);
    assert!(EXTANT_E_NOT_EMPTY == ErrorCode::NotEmpty as c_int);
    assert!(EXTANT_E_INVALID_NAME == ErrorCode::InvalidName as c_int);
    assert!(EXTANT_E_NO_SPACE == ErrorCode::NoSpace as c_int);
    assert!(EXTANT_E_QUOTA_EXCEEDED == ErrorCode::QuotaExceeded as c_int);
    assert!(EXTANT_E_TOO_MANY_LINKS == ErrorCode::TooManyLinks as c_int);
    assert!(EXTANT_E_ACCESS_DENIED == ErrorCode::AccessDenied as c_int);
    assert!(EXTANT_E_NOT_PERMITTED == ErrorCode::NotPermitted as c_int);
    assert!(EXTANT_E_OTHER_PROJECT == ErrorCode::OtherProject as c_int);
    assert!(EXTANT_E_INTO_ITSELF == ErrorCode::IntoItself as c_int);
    assert!(EXTANT_E_ATTRIBUTE_EXISTS == ErrorCode::AttributeExists as c_int);
    assert!(EXTANT_E_PAGE_CACHE == ErrorCode::PageCache as c_int);
    assert!(EXTANT_E_WRITEBACK_FAILED == ErrorCode::WritebackFailed as c_int);
    assert!(EXTANT_E_ATTRIBUTE_TOO_LARGE == ErrorCode::AttributeTooLarge as c_int);
    assert!(EXTANT_E_IN_USE == ErrorCode::InUse as c_int);
    assert!(EXTANT_E_ABORTED == ErrorCode::Aborted as c_int);
    assert!(EXTANT_E_NOT_EXT == ErrorCode::NotExt as c_int);
    assert!(EXTANT_E_EXTERNAL_JOURNAL == ErrorCode::ExternalJournal as c_int);
    assert!(EXTANT_E_UNSUPPORTED == ErrorCode::Unsupported as c_int);
    assert!(EXTANT_E_JOURNAL_DEVICE_MISSING == ErrorCode::JournalDeviceMissing as c_int);
    assert!(EXTANT_E_WRONG_JOURNAL_DEVICE == ErrorCode::WrongJournalDevice as c_int);
    assert!(EXTANT_E_CORRUPT == ErrorCode::Corrupt as c_int);
    assert!(EXTANT_E_CUT_SHORT == ErrorCode::CutShort as c_int);
    assert!(EXTANT_E_JOURNAL == ErrorCode::Journal as c_int);
    assert!(EXTANT_E_JOURNAL_DEVICE == ErrorCode::JournalDevice as c_int);
    assert!(EXTANT_E_DEVICE == ErrorCode::Device as c_int);
    assert!(EXTANT_E_DEVICE_FULL == ErrorCode::DeviceFull as c_int);
    assert!(EXTANT_E_OPEN == ErrorCode::Open as c_int);
    assert!(EXTANT_E_MISALIGNED == ErrorCode::Misaligned as c_int);
    assert!(EXTANT_E_OTHER_FILE_SYSTEM == ErrorCode::OtherFileSystem as c_int);
    assert!(EXTANT_E_NO_THREAD == ErrorCode::NoThread as c_int);
    assert!(EXTANT_E_FROZEN == ErrorCode::Frozen as c_int);
    assert!(EXTANT_E_OPERATION_CANCELLED == ErrorCode::OperationCancelled as c_int);
    assert!(EXTANT_E_OTHER_POLICY == ErrorCode::OtherPolicy as c_int);
    assert!(EXTANT_E_UNVERIFIED == ErrorCode::Unverified as c_int);
    assert!(EXTANT_E_SEALED == ErrorCode::Sealed as c_int);
    assert!(EXTANT_E_OPEN_FOR_WRITING == ErrorCode::OpenForWriting as c_int);
    assert!(EXTANT_E_CANNOT_GROW == ErrorCode::CannotGrow as c_int);
    assert!(EXTANT_E_NAME_IN_USE == ErrorCode::NameInUse as c_int);
};

/// Numbers of the generic Linux table.
pub(crate) mod errno {
    pub(crate) const EIO: i32 = 5;
    pub(crate) const EBADF: i32 = 9;
    pub(crate) const EAGAIN: i32 = 11;
    pub(crate) const ENOMEM: i32 = 12;
    pub(crate) const EFAULT: i32 = 14;
    pub(crate) const EBUSY: i32 = 16;
    pub(crate) const EEXIST: i32 = 17;
    pub(crate) const EINVAL: i32 = 22;
    pub(crate) const ENFILE: i32 = 23;
    pub(crate) const ENOSPC: i32 = 28;
    pub(crate) const ERANGE: i32 = 34;
    pub(crate) const EDEADLK: i32 = 35;
    pub(crate) const ENOTRECOVERABLE: i32 = 131;
    pub(crate) const EUCLEAN: i32 = 117;
    pub(crate) const ECANCELED: i32 = 125;
}

/// The error of a call.
#[derive(Clone, Debug)]
pub(crate) struct Error {
    pub(crate) code: c_int,
    /// Positive.
    pub(crate) errno: i32,
    /// 0 for none.
    pub(crate) ino: u64,
    /// Empty if unknown.
    pub(crate) object: String,
    pub(crate) message: String,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(code: c_int, message: impl Into<String>) -> Error {
        let errno = match code {
            EXTANT_E_BAD_HANDLE => errno::EBADF,
            EXTANT_E_NULL => errno::EFAULT,
            EXTANT_E_BAD_STRUCT | EXTANT_E_BAD_ARGUMENT | EXTANT_E_BUILD_OPTIONS => errno::EINVAL,
            EXTANT_E_PANIC | EXTANT_E_POISONED => errno::ENOTRECOVERABLE,
            EXTANT_E_REENTERED => errno::EDEADLK,
            EXTANT_E_BUSY => errno::EBUSY,
            EXTANT_E_RING_FULL => errno::EAGAIN,
            EXTANT_E_CANCELLED => errno::ECANCELED,
            EXTANT_E_BUILD_NO_FIT => errno::ENOSPC,
            EXTANT_E_BUILD_TARGET_IN_USE => errno::EEXIST,
            EXTANT_E_RANGE => errno::ERANGE,
            EXTANT_E_TOO_MANY_HANDLES => errno::ENFILE,
            _ => errno::EIO,
        };
        Error { code, errno, ino: 0, object: String::new(), message: message.into() }
    }

    /// Refuses what a reserved field asks for: this version knows no meaning of it.
    pub(crate) fn check_reserved(what: &str, value: u32) -> Result<()> {
        match value {
            0 => Ok(()),
            _ => {
                let message = format!("{what}: `reserved` is {value}, and has to be 0");
                Err(Error::new(EXTANT_E_BAD_STRUCT, message))
            }
        }
    }

    pub(crate) fn argument(message: impl Into<String>) -> Error {
        Error::new(EXTANT_E_BAD_ARGUMENT, message)
    }

    pub(crate) fn null(what: &str) -> Error {
        Error::new(EXTANT_E_NULL, format!("{what} is NULL"))
    }

    pub(crate) fn with_errno(self, errno: i32) -> Error {
        Error { errno, ..self }
    }

    /// Sets the object of the error, if it has none yet.
    pub(crate) fn about(mut self, object: impl Into<String>) -> Error {
        if self.object.is_empty() {
            self.object = object.into();
        }
        self
    }
}

/// The name of a code; `None` for a number that is none.
pub(crate) fn name(code: c_int) -> Option<&'static CStr> {
    NAMES.iter().find(|(number, _)| *number == code).map(|(_, name)| *name)
}

/// The text of an error with those of its causes, as far as they say something new.
fn told(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

impl From<FsError> for Error {
    fn from(error: FsError) -> Error {
        let object = match &error {
            FsError::Device(device) | FsError::DeviceFull(device) => device.device().to_owned(),
            FsError::Open(open) => open_object(open),
            _ => String::new(),
        };
        Error {
            code: c_int::from(error.code() as u16),
            errno: error.errno(),
            ino: error.ino().map_or(0, |ino| u64::from(ino.0)),
            object,
            message: told(&error),
        }
    }
}

fn open_object(error: &OpenError) -> String {
    match error {
        OpenError::Io { path, .. }
        | OpenError::NotADevice { path, .. }
        | OpenError::Locked { path, .. }
        | OpenError::Busy { path, .. } => path.display().to_string(),
        _ => String::new(),
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Error {
        Error::from(FsError::from(error))
    }
}

impl From<extant_block::DeviceError> for Error {
    fn from(error: extant_block::DeviceError) -> Error {
        Error::from(FsError::Device(error))
    }
}

/// The errno of the first cause that has one.
fn system_errno(error: &(dyn StdError + 'static)) -> Option<i32> {
    let mut cause = Some(error);
    while let Some(error) = cause {
        if let Some(number) =
            error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error)
        {
            return Some(number);
        }
        cause = error.source();
    }
    None
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Error {
        let code = match &error {
            BuildError::Source(_) | BuildError::Container(_) => EXTANT_E_BUILD_SOURCE,
            BuildError::Transform(_) => EXTANT_E_BUILD_OPTIONS,
            BuildError::Plan(PlanError::DoesNotFit { .. })
            | BuildError::TooSmall { .. }
            | BuildError::Output(OutputError::TooSmall { .. }) => EXTANT_E_BUILD_NO_FIT,
            BuildError::Plan(_) => EXTANT_E_BUILD_OPTIONS,
            BuildError::Output(OutputError::InUse { .. }) => EXTANT_E_BUILD_TARGET_IN_USE,
            BuildError::Output(_) => EXTANT_E_BUILD_TARGET,
            BuildError::Write(WriteError::Interrupted) => EXTANT_E_CANCELLED,
            BuildError::Write(_) => EXTANT_E_BUILD_TARGET,
            _ => EXTANT_E_BUILD_TARGET,
        };
        let made = Error::new(code, told(&error));
        let number = match &error {
            BuildError::Output(OutputError::Open(
                OpenError::Locked { .. } | OpenError::Busy { .. },
            )) => {
                Some(16) // EBUSY
            }
            error => system_errno(error),
        };
        match (code, number) {
            (EXTANT_E_BUILD_SOURCE | EXTANT_E_BUILD_TARGET, Some(number)) => {
                made.with_errno(number)
            }
            _ => made,
        }
    }
}

impl From<CheckError> for Error {
    /// A device that fails is not damage.
    fn from(error: CheckError) -> Error {
        let text = told(&error);
        let made = Error::new(EXTANT_E_CHECK, text);
        match error {
            CheckError::Device(error) => Error::from(FsError::from(error)),
            CheckError::Superblock(_) => made.with_errno(errno::EUCLEAN),
            CheckError::Features { .. } => made.with_errno(errno::EINVAL),
            CheckError::Memory { .. } => made.with_errno(errno::ENOMEM),
            _ => made,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_has_one_name_and_that_of_the_library() {
        for (code, name) in NAMES {
            assert_eq!(NAMES.iter().filter(|(other, _)| *other == code).count(), 1, "{name:?}");
        }
        for code in ErrorCode::ALL {
            let known = name(code as c_int).map(|name| name.to_str().unwrap());
            assert_eq!(known, Some(code.name()), "the header has every code of the library");
        }
        let library = Error::from(FsError::IsADirectory { ino: extant::Ino(12) });
        assert_eq!((library.code, library.errno, library.ino), (3, 21, 12));
        assert_eq!(name(library.code).unwrap().to_str().unwrap(), ErrorCode::IsADirectory.name());
        assert_eq!(name(12345), None);
    }
}
