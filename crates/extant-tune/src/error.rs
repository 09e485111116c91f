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
            CheckError::Features { names } => ChangeError::Features { names }.into(),
            CheckError::Memory { .. } => ChangeError::System(error.to_string()).into(),
            other => TuneError::damaged(other),
        }
    }
}

impl From<RepairError> for TuneError {
    fn from(error: RepairError) -> TuneError {
        match error {
            RepairError::Device(error) => TuneError::from(error),
            RepairError::Features { names } => ChangeError::Features { names }.into(),
            RepairError::InUse { why } => ChangeError::InUse { why }.into(),
            RepairError::JournalDevice { why } => ChangeError::JournalDevice { why }.into(),
            RepairError::DeviceTooSmall { wanted, found } => {
                ChangeError::DeviceTooSmall { wanted, found }.into()
            }
            RepairError::System(why) => ChangeError::System(why).into(),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_about_the_image_does_not_call_it_damaged() {
        let is_damage =
            |error: &TuneError| matches!(error, TuneError::Change(ChangeError::Damaged { .. }));
        let names = String::from("FEATURE_I31");
        let checked = [CheckError::Memory { inodes: 7 }, CheckError::Features { names }];
        for error in checked.map(TuneError::from) {
            assert!(!is_damage(&error), "{error}");
        }
        let why = || String::from("why");
        let repaired = [
            RepairError::System(why()),
            RepairError::InUse { why: why() },
            RepairError::JournalDevice { why: why() },
            RepairError::from(CheckError::Memory { inodes: 7 }),
            RepairError::from(ChangeError::Scratch(std::io::Error::other("full"))),
        ];
        for error in repaired.map(TuneError::from) {
            assert!(!is_damage(&error), "{error}");
        }
        assert!(is_damage(&RepairError::NoSuperblock.into()));
    }
}
