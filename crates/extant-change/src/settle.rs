//! Before a change: the journal is empty, and no file waits for its end.

use std::sync::Arc;

use extant::{Family, FsError, JournalReadError, MountOptions, RecoveryError};
use extant_block::SharedDevice;
use extant_format::features::Feature;
use extant_format::superblock::Superblock;
use extant_sync::Clock;

use crate::error::{ChangeError, Result};
use crate::guard::{Tell, waits_of_mount};
use crate::image::superblock;

/// What kept the journal from being replayed. A device that fails says nothing about the image, so that it is
/// not to be repaired.
fn replay(error: impl Into<FsError>) -> ChangeError {
    match error.into() {
        FsError::InUse { by } => ChangeError::InUse { why: by.to_string() },
        error @ FsError::JournalDeviceMissing { .. } => {
            ChangeError::JournalDevice { why: error.to_string() }
        }
        FsError::Device(error) | FsError::DeviceFull(error) => ChangeError::Device(error),
        FsError::Journal(error) => match *error {
            RecoveryError::Write(error)
            | RecoveryError::Read(JournalReadError::Device { source: error, .. }) => {
                ChangeError::Device(error)
            }
            other => ChangeError::Replay(FsError::Journal(Box::new(other)).to_string()),
        },
        // The number is that of the cause: EBADMSG and EUCLEAN are damage, ENOSPC is a full disk below.
        error @ FsError::Aborted { errno: 74 | 117, .. } => ChangeError::Replay(error.to_string()),
        FsError::Aborted { errno: 28, why } => ChangeError::JournalFull(why.into()),
        FsError::Aborted { why, .. } => ChangeError::Journal(why.into()),
        error if error.family() == Family::Device => ChangeError::Journal(error.to_string()),
        other => ChangeError::Replay(other.to_string()),
    }
}

/// Returns whether the image must be opened and closed before anything else: the journal is not empty, or
/// files were deleted while they were open.
pub fn is_unsettled(sb: &Superblock) -> bool {
    sb.features.has(Feature::RECOVER)
        || sb.features.has(Feature::ORPHAN_PRESENT)
        || sb.last_orphan != 0
}

/// The image as it is after its journal was replayed; nothing is written.
///
/// # Errors
///
/// [`ChangeError`].
pub fn settled_view(device: &SharedDevice) -> Result<SharedDevice> {
    let sb = superblock(&**device)?;
    if !sb.features.has(Feature::RECOVER) {
        return Ok(Arc::clone(device));
    }
    let fs = MountOptions::new().open_shared(Arc::clone(device)).map_err(replay)?;
    Ok(Arc::clone(fs.device()))
}

/// Replays the journal and deletes orphans, as a mount does: where there is multi-mount protection, it waits
/// by `clock` to see that nobody else has it, for as many seconds as `tell` is told before.
///
/// # Errors
///
/// [`ChangeError`].
pub fn settle(device: &SharedDevice, clock: &Arc<dyn Clock>, tell: &mut Tell<'_>) -> Result {
    let sb = superblock(&**device)?;
    if !is_unsettled(&sb) {
        return Ok(());
    }
    let seconds = waits_of_mount(&**device, &sb)?;
    if seconds > 0 {
        tell(seconds);
    }
    let options = MountOptions::new().read_only(false).background(false).clock(Arc::clone(clock));
    let fs = options.open_shared(Arc::clone(device)).map_err(replay)?;
    fs.unmount().map_err(replay)
}
