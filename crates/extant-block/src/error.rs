//! Errors of device operations.

use std::fmt;
use std::io;
use std::sync::Arc;

/// Kind of a device operation, for messages and records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperationKind {
    /// Reads bytes.
    Read,
    /// Writes bytes.
    Write,
    /// Makes completed writes durable.
    Flush,
    /// Gives up the contents of a range.
    Discard,
    /// Makes a range read as zeros.
    WriteZeroes,
    /// Reserves space for later writes of a range.
    Allocate,
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
            Self::WriteZeroes => "write of zeros",
            Self::Allocate => "setting aside room for writing",
        })
    }
}

/// The error of a device operation, with the device, the range and the cause.
///
/// Display names the device, the range and, for faults this crate finds itself, the reason; an
/// error of the operating system is left to [`source`](std::error::Error::source).
///
/// It is one pointer in size, because every result holds one.
#[derive(Debug)]
pub struct DeviceError(Box<Inner>);

#[derive(Debug)]
struct Inner {
    device: Arc<str>,
    kind: OperationKind,
    offset: u64,
    length: u64,
    fault: DeviceFault,
}

/// Cause of a failed operation.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceFault {
    /// The range ends after the device does. Nothing was read or written.
    PastEnd {
        /// Size of the device, in bytes.
        device_bytes: u64,
    },
    /// A read stopped before the end of the device: the device shrank, or reported a wrong size.
    ShortRead {
        /// Number of bytes read.
        got_bytes: u64,
    },
    /// The file is shorter than the device: somebody else has cut it off, and what lay behind its end is
    /// gone. Found by flushes and by writes to the end of the device.
    Shorter {
        /// Size of the device, in bytes.
        was_bytes: u64,
        /// Length of the file, in bytes.
        found_bytes: u64,
    },
    /// The device was opened read-only.
    ReadOnly,
    /// The device does not support this kind of operation. Only discards fail so.
    Unsupported,
    /// An error of the operating system.
    Io(io::Error),
}

impl DeviceError {
    /// Creates an error. `offset` and `length` are bytes of `device`; both are 0 for a flush.
    pub fn new(
        device: Arc<str>,
        kind: OperationKind,
        offset: u64,
        length: u64,
        fault: DeviceFault,
    ) -> DeviceError {
        DeviceError(Box::new(Inner { device, kind, offset, length, fault }))
    }

    /// Returns the device's name, as `describe` gave it.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// Returns the kind of the operation.
    pub fn kind(&self) -> OperationKind {
        self.0.kind
    }

    /// Returns the first byte of the operation's range, from the start of the named device.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Returns the length of the operation's range, in bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Returns the cause.
    pub fn fault(&self) -> &DeviceFault {
        &self.0.fault
    }

    /// Returns true when the file system or pool under the device has no space left, or its owner's
    /// quota is used up: the same operation may succeed once there is space.
    pub fn is_full(&self) -> bool {
        let is_full =
            |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(&self.0.fault, DeviceFault::Io(error) if is_full(error.kind()))
    }

    /// Returns true when the device does not support discards, which most callers may ignore.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.0.fault, DeviceFault::Unsupported)
    }
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { device, kind, offset, length, fault } = &*self.0;
        match kind {
            OperationKind::Flush => write!(f, "{device}: {kind} failed")?,
            OperationKind::Allocate => {
                write!(f, "{device}: {kind} {length} bytes at byte {offset} failed")?;
            }
            _ => write!(f, "{device}: {kind} of {length} bytes at byte {offset} failed")?,
        }
        match fault {
            DeviceFault::PastEnd { device_bytes } => {
                write!(f, ": the device ends at byte {device_bytes}")
            }
            DeviceFault::ShortRead { got_bytes } => {
                write!(f, ": the device gave only {got_bytes} bytes")
            }
            DeviceFault::Shorter { was_bytes, found_bytes } => write!(
                f,
                ": it is {found_bytes} bytes long and was {was_bytes}: somebody made it shorter, and what lay \
                 behind is gone"
            ),
            DeviceFault::ReadOnly => f.write_str(": opened read-only"),
            DeviceFault::Unsupported => f.write_str(": not supported by this device"),
            DeviceFault::Io(_) => Ok(()),
        }
    }
}

impl std::error::Error for DeviceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match &self.0.fault {
            DeviceFault::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<DeviceError> for io::Error {
    /// Converts the error, keeping the kind of an operating-system error, and the whole message.
    fn from(error: DeviceError) -> io::Error {
        let kind = match error.fault() {
            DeviceFault::PastEnd { .. }
            | DeviceFault::ShortRead { .. }
            | DeviceFault::Shorter { .. } => io::ErrorKind::UnexpectedEof,
            DeviceFault::ReadOnly => io::ErrorKind::ReadOnlyFilesystem,
            DeviceFault::Unsupported => io::ErrorKind::Unsupported,
            DeviceFault::Io(error) => error.kind(),
        };
        io::Error::new(kind, error)
    }
}

const _: () = assert!(size_of::<DeviceError>() == size_of::<usize>());

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn error(kind: OperationKind, fault: DeviceFault) -> DeviceError {
        DeviceError::new("disk.img".into(), kind, 8192, 512, fault)
    }

    #[test]
    fn messages_name_device_range_and_reason() {
        let table = [
            (
                error(OperationKind::Read, DeviceFault::PastEnd { device_bytes: 8200 }),
                "disk.img: read of 512 bytes at byte 8192 failed: the device ends at byte 8200",
            ),
            (
                error(OperationKind::Read, DeviceFault::ShortRead { got_bytes: 7 }),
                "disk.img: read of 512 bytes at byte 8192 failed: the device gave only 7 bytes",
            ),
            (
                error(OperationKind::WriteZeroes, DeviceFault::ReadOnly),
                "disk.img: write of zeros of 512 bytes at byte 8192 failed: opened read-only",
            ),
            (
                error(OperationKind::Discard, DeviceFault::Unsupported),
                "disk.img: discard of 512 bytes at byte 8192 failed: not supported by this device",
            ),
        ];
        for (error, wanted) in table {
            assert_eq!(error.to_string(), wanted);
            assert!(error.source().is_none());
        }
    }

    #[test]
    fn an_operating_system_error_is_the_source_and_keeps_its_kind() {
        let cause = io::Error::from_raw_os_error(5);
        let error = error(OperationKind::Flush, DeviceFault::Io(cause));
        assert_eq!(error.to_string(), "disk.img: flush failed");
        assert!(error.source().is_some());
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let error = super::DeviceError::new(
            "d".into(),
            OperationKind::Write,
            0,
            1,
            DeviceFault::Io(denied),
        );
        assert_eq!(io::Error::from(error).kind(), io::ErrorKind::PermissionDenied);
    }
}
