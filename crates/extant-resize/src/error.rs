//! The reasons why a file system does not get another size.

use extant_change::ChangeError;
use extant_check::CheckError;

/// The reason why a file system does not get another size.
///
/// Unless the device failed, nothing was written, except that a journal may have been replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResizeError {
    /// What keeps any change from being made.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// The size asked for is more than this layout, or the device, can have.
    #[error("{why}; the largest size is {largest} bytes")]
    TooLarge {
        /// What is in the way.
        why: String,
        /// The largest size, in bytes.
        largest: u64,
    },
    /// The size asked for is less than what is in use needs.
    #[error("{why}; the smallest size is {smallest} bytes")]
    TooSmall {
        /// What is in the way.
        why: String,
        /// The smallest size that can be reached, in bytes.
        smallest: u64,
    },
}

impl From<extant_block::DeviceError> for ResizeError {
    fn from(error: extant_block::DeviceError) -> ResizeError {
        ResizeError::Change(error.into())
    }
}

impl From<CheckError> for ResizeError {
    fn from(error: CheckError) -> ResizeError {
        match error {
            // Nothing is known to be wrong with what cannot be read now.
            CheckError::Device(error) => ResizeError::from(error),
            CheckError::Features { names } => ChangeError::Features { names }.into(),
            CheckError::Memory { .. } => ChangeError::System(error.to_string()).into(),
            other => ResizeError::damaged(other.to_string()),
        }
    }
}

impl ResizeError {
    pub(crate) fn damaged(why: impl Into<String>) -> ResizeError {
        ResizeError::Change(ChangeError::damaged(why))
    }
}

/// Something that lies behind the new end and stays where it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Obstacle(pub(crate) String);

pub(crate) type Result<T = ()> = std::result::Result<T, ResizeError>;
