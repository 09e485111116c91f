//! The reasons why a file system does not get other features.

use extant_block::DeviceError;
use extant_change::ChangeError;
use extant_check::CheckError;
use extant_repair::RepairError;

/// The reason why a file system does not get other features.
///
/// Unless the device or a temporary file failed, nothing was written, except that a journal may have been replayed.
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

impl From<CheckError> for TuneError {
    fn from(error: CheckError) -> TuneError {
        match error {
            // Nothing is known to be wrong with what cannot be read now.
            CheckError::Device(error) => TuneError::from(error),
            other => TuneError::damaged(other),
        }
    }
}

impl From<RepairError> for TuneError {
    fn from(error: RepairError) -> TuneError {
        match error {
            RepairError::Device(error) => TuneError::from(error),
            other => TuneError::damaged(other),
        }
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
