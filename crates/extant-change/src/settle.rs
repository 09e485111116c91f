//! Before a change: the journal is empty, and no file waits for its end.

use std::sync::Arc;

use extant::MountOptions;
use extant_block::SharedDevice;
use extant_format::features::Feature;
use extant_format::superblock::Superblock;

use crate::error::{ChangeError, Result};
use crate::image::superblock;

fn replay(error: impl ToString) -> ChangeError {
    ChangeError::Replay(error.to_string())
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

/// Replays the journal and deletes orphans.
///
/// # Errors
///
/// [`ChangeError`].
pub fn settle(device: &SharedDevice) -> Result {
    let sb = superblock(&**device)?;
    if !is_unsettled(&sb) {
        return Ok(());
    }
    let options = MountOptions::new().read_only(false).background(false);
    let fs = options.open_shared(Arc::clone(device)).map_err(replay)?;
    fs.unmount().map_err(replay)
}
