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

/// Where the block for multi-mount protection is, in bytes, and the seed of its checksum.
fn place(sb: &Superblock) -> Option<(u64, Option<u32>)> {
    if !sb.features.has(Feature::MMP) || sb.mmp_block.0 == 0 {
        return None;
    }
    let seed = sb.features.metadata_csum().then(|| sb.checksum_seed());
    Some((sb.mmp_block.0.saturating_mul(u64::from(sb.block_size.bytes())), seed))
}

/// Who has the file system, for people.
fn holder(mmp: &Mmp) -> Option<String> {
    let what = match mmp.state {
        MmpState::Clean => return None,
        MmpState::Active(_) => "a mount",
        MmpState::Fsck => "a check or a conversion",
        MmpState::Unsafe(_) => "something unknown",
    };
    let node = match String::from_utf8_lossy(mmp.node()).trim() {
        "" => String::new(),
        node => format!(" on {node}"),
    };
    Some(format!("{what}{node}, or one that was cut off"))
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
        let Some((offset, seed)) = place(sb) else { return Ok(guard) };
        let mmp = guard.read(offset, seed)?;
        if let Some(why) = holder(&mmp) {
            return Err(ChangeError::InUse { why });
        }
        guard.write(offset, seed, mmp, MmpState::Fsck)?;
        guard.place = Some(offset);
        Ok(guard)
    }

    /// Returns who has the file system, by what the block says; `None`: nobody. Whoever was cut off is in
    /// it still.
    ///
    /// # Errors
    ///
    /// A damaged block, the device's.
    pub fn left(device: &SharedDevice) -> Result<Option<String>> {
        let sb = superblock(&**device)?;
        let Some((offset, seed)) = place(&sb) else { return Ok(None) };
        let guard = Guard { device: Arc::clone(device), place: None };
        Ok(holder(&guard.read(offset, seed)?))
    }

    /// Takes the file system away from whoever has it by what the block says. Only the caller knows that
    /// nobody does, on any host.
    ///
    /// # Errors
    ///
    /// A damaged block, the device's.
    pub fn clear(device: &SharedDevice) -> Result {
        let sb = superblock(&**device)?;
        let Some((offset, seed)) = place(&sb) else { return Ok(()) };
        let guard = Guard { device: Arc::clone(device), place: None };
        let mmp = guard.read(offset, seed)?;
        guard.write(offset, seed, mmp, MmpState::Clean)
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
