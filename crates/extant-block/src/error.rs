//! What can go wrong with one device operation.

use std::fmt;
use std::io;
use std::sync::Arc;

/// The kind of a device operation, for messages and records.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum OperationKind {
    /// Bytes from the device.
    Read,
    /// Bytes to the device.
    Write,
    /// Everything written so far to stable storage.
    Flush,
    /// The range is no longer needed.
    Discard,
    /// The range shall read as zeros.
    WriteZeroes,
    /// There shall be room below for writing the range.
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

/// An operation that failed: which device, which bytes, why.
///
/// Display names the device, the range and, for faults this crate finds itself, the reason;
/// an error of the operating system is left to [`source`](std::error::Error::source).
///
/// One pointer in size, because it travels in every result.
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

/// Why an operation failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum DeviceFault {
    /// The range ends after the device does. Nothing was read or written.
    PastEnd {
        /// Size of the device, in bytes.
        device_bytes: u64,
    },
    /// The device says it is long enough, but a read stopped early: it shrank, or it lies.
    ShortRead {
        /// Bytes that did arrive.
        got_bytes: u64,
    },
    /// The device was opened read-only.
    ReadOnly,
    /// The device cannot do this kind of operation. Only a discard answers this.
    Unsupported,
    /// The operating system said no.
    Io(io::Error),
}

impl DeviceError {
    /// Puts the facts together. `offset` and `length` are bytes of `device`; both 0 for a flush.
    pub fn new(
        device: Arc<str>,
        kind: OperationKind,
        offset: u64,
        length: u64,
        fault: DeviceFault,
    ) -> DeviceError {
        DeviceError(Box::new(Inner { device, kind, offset, length, fault }))
    }

    /// The device's name, as its `describe` gave it.
    pub fn device(&self) -> &str {
        &self.0.device
    }

    /// What was asked for.
    pub fn kind(&self) -> OperationKind {
        self.0.kind
    }

    /// First byte of the range asked for, from the start of the named device.
    pub fn offset(&self) -> u64 {
        self.0.offset
    }

    /// Length of the range asked for, in bytes.
    pub fn length(&self) -> u64 {
        self.0.length
    }

    /// Why it failed.
    pub fn fault(&self) -> &DeviceFault {
        &self.0.fault
    }

    /// True when what the device lies on has no room left, or its owner's quota is used up: the same
    /// operation may succeed once there is room.
    pub fn is_full(&self) -> bool {
        let is_full =
            |kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        matches!(&self.0.fault, DeviceFault::Io(error) if is_full(error.kind()))
    }

    /// True when the device cannot discard at all, which most callers may ignore.
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
    /// Keeps the kind of an operating-system error, and the whole message.
    fn from(error: DeviceError) -> io::Error {
        let kind = match error.fault() {
            DeviceFault::PastEnd { .. } | DeviceFault::ShortRead { .. } => {
                io::ErrorKind::UnexpectedEof
            }
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
