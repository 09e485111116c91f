//! The reasons why a file system does not get other features.

use extant_block::DeviceError;
use extant_change::ChangeError;

/// The reason why a file system does not get other features.
///
/// Unless the device failed, nothing was written, except that a journal may have been replayed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TuneError {
    /// What keeps any change from being made.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A condition is not met.
    #[error("{what}: {why}")]
    Refused {
        /// The feature or setting.
        what: String,
        /// The condition.
        why: String,
    },
    /// There is no room for what is new.
    #[error("{what}: no room for {wanted}")]
    Full {
        /// The feature or setting.
        what: String,
        /// What is to be put somewhere.
        wanted: String,
    },
}

impl From<DeviceError> for TuneError {
    fn from(error: DeviceError) -> TuneError {
        TuneError::Change(error.into())
    }
}

impl TuneError {
    pub(crate) fn damaged(why: impl ToString) -> TuneError {
        TuneError::Change(ChangeError::damaged(why.to_string()))
    }
}

pub(crate) type Result<T = ()> = std::result::Result<T, TuneError>;

/// A condition that is not met.
pub(crate) fn refuse<T>(what: impl ToString, why: impl Into<String>) -> Result<T> {
    Err(TuneError::Refused { what: what.to_string(), why: why.into() })
}
