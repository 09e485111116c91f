//! Why an image could not be written.

use std::fmt;

use extant_block::DeviceError;
use extant_sync::threads::ThreadError;

use crate::source::SourceError;

/// Error of writing an image. The part written before is not a file system: its superblock comes
/// last.
#[derive(Debug)]
pub enum WriteError {
    /// The target.
    Device(DeviceError),
    /// The source.
    Source(SourceError),
    /// Something of the plan has no form on disk; a file or structure is named.
    Encode {
        /// The structure to be encoded.
        what: String,
        /// Why it cannot be.
        why: String,
    },
    /// The caller asked to stop.
    Interrupted,
    /// A worker could not be started, or panicked.
    Thread(ThreadError),
}

impl WriteError {
    pub(super) fn encode(what: impl fmt::Display, why: impl fmt::Display) -> WriteError {
        WriteError::Encode { what: what.to_string(), why: why.to_string() }
    }
}

impl fmt::Display for WriteError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WriteError::Device(e) => e.fmt(f),
            WriteError::Source(e) => e.fmt(f),
            WriteError::Encode { what, why } => write!(f, "cannot encode {what}: {why}"),
            WriteError::Interrupted => f.write_str("interrupted"),
            WriteError::Thread(e) => e.fmt(f),
        }
    }
}

impl std::error::Error for WriteError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WriteError::Device(e) => e.source(),
            WriteError::Source(e) => e.source(),
            WriteError::Thread(e) => e.source(),
            WriteError::Encode { .. } | WriteError::Interrupted => None,
        }
    }
}

impl From<DeviceError> for WriteError {
    fn from(e: DeviceError) -> WriteError {
        WriteError::Device(e)
    }
}

impl From<SourceError> for WriteError {
    fn from(e: SourceError) -> WriteError {
        WriteError::Source(e)
    }
}

impl From<ThreadError> for WriteError {
    fn from(e: ThreadError) -> WriteError {
        WriteError::Thread(e)
    }
}
