//! Before a change: nobody uses the file system, its journal is empty, no file waits for its end.

use std::sync::Arc;

use extant::MountOptions;
use extant_block::SharedDevice;
use extant_format::features::Feature;
use extant_format::mmp::{MMP_BYTES, Mmp, MmpState};
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

/// Multi-mount protection for the time of a change.
pub struct Guard {
    device: SharedDevice,
    /// Where the block is, in bytes.
    place: Option<u64>,
}

impl Guard {
    /// Takes it for a file system that has it; others need nothing.
    ///
    /// # Errors
    ///
    /// [`ChangeError::InUse`], a damaged block, the device's.
    pub fn take(device: &SharedDevice, sb: &Superblock) -> Result<Guard> {
        let mut guard = Guard { device: Arc::clone(device), place: None };
        if !sb.features.has(Feature::MMP) || sb.mmp_block.0 == 0 {
            return Ok(guard);
        }
        let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
        let offset = sb.mmp_block.0.saturating_mul(u64::from(sb.block_size.bytes()));
        let mmp = guard.read(offset, seed)?;
        if mmp.state != MmpState::Clean {
            let node = String::from_utf8_lossy(mmp.node()).into_owned();
            return Err(ChangeError::InUse { why: format!("{:?} by {node:?}", mmp.state) });
        }
        guard.write(offset, seed, mmp, MmpState::Fsck)?;
        guard.place = Some(offset);
        Ok(guard)
    }

    fn read(&self, offset: u64, seed: Option<u32>) -> Result<Mmp> {
        let mut bytes = [0; MMP_BYTES];
        self.device.read_at(offset, &mut bytes)?;
        Mmp::decode(seed, &bytes).map_err(|error| ChangeError::damaged(error.to_string()))
    }

    fn write(&self, offset: u64, seed: Option<u32>, mut mmp: Mmp, state: MmpState) -> Result {
        mmp.state = state;
        self.device.write_at(offset, &mmp.encode(seed))?;
        Ok(self.device.flush()?)
    }

    /// Gives it back.
    ///
    /// # Errors
    ///
    /// The device's.
    pub fn end(self) -> Result {
        let Some(offset) = self.place else { return Ok(()) };
        // The change may have been one of checksums.
        let sb = superblock(&*self.device)?;
        let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
        let mmp = self.read(offset, None)?;
        self.write(offset, seed, mmp, MmpState::Clean)
    }
}
