//! Recovered images: the journal has been read or replayed, and the file system is not in use yet.

use std::fmt;
use std::sync::Arc;

use extant_block::SharedDevice;
use extant_format::features::{Incompat, State};
use extant_format::superblock::Superblock;
use extant_jbd2::{FastCommitOverlay, LogStore};

use super::MountOptions;
use crate::error::{FsError, MountError, Result};
use crate::fs::Fs;
use crate::mmp::MmpGuard;
use crate::volume::ReplaySummary;

/// A recovered image that is not mounted yet: the second of three steps of opening,
/// [`Probe`](super::Probe), `Recovered`, [`Fs`].
///
/// If opened for reading, the device is unchanged, and [`device`](Self::device) shows the journal's
/// blocks in their places. If opened for writing, the journal has been replayed onto the device,
/// and multi-mount protection keeps other hosts away until this value is dropped, or the mount made
/// of it ends.
///
/// Checkers and repairers work on this state: the [`device`](Self::device) has the contents that a
/// mount would see.
///
/// # Example
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = extant::FileDevice::open_read_write("disk.img")?;
/// let recovered = extant::MountOptions::new().read_only(false).probe(device)?.recover()?;
/// if let Some(replay) = recovered.replayed() {
///     println!("{} transactions replayed", replay.transactions);
/// }
/// let fs = recovered.mount()?;
/// fs.unmount()?;
/// # Ok(())
/// # }
/// ```
pub struct Recovered {
    pub(super) options: MountOptions,
    pub(super) device: SharedDevice,
    pub(super) superblock: Superblock,
    pub(super) replay: Option<ReplaySummary>,
    /// Fast commits that are still to be shown, or applied.
    pub(super) fast_commits: Option<FastCommitOverlay>,
    /// State for a writable mount.
    pub(super) writing: Option<Writing>,
}

/// State that a writable mount has collected so far.
pub(super) struct Writing {
    pub(super) log: Option<LogStore>,
    pub(super) seed: u64,
    pub(super) mmp: Option<MmpGuard>,
}

impl Recovered {
    pub(super) fn new(
        options: MountOptions,
        device: SharedDevice,
        superblock: Superblock,
        fast_commits: Option<FastCommitOverlay>,
    ) -> Recovered {
        Recovered { options, device, superblock, replay: None, fast_commits, writing: None }
    }

    /// Returns the superblock, including changes in the journal.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns the device as a mount would read it, without the changes in fast commits.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    /// Returns a summary of the journal's contents; `None` when there was nothing to replay, or it
    /// was ignored.
    pub fn replayed(&self) -> Option<&ReplaySummary> {
        self.replay.as_ref()
    }

    /// Opens the file system.
    ///
    /// # Errors
    ///
    /// Those of [`MountOptions::open`], except those of the superblock and the journal.
    ///
    /// # Cost
    ///
    /// One pass over the group descriptors; for writing also a few writes, and the deletion of
    /// orphans.
    pub fn mount(self) -> Result<Fs, MountError> {
        let (is_reading, image) = (self.writing.is_none(), self.device.describe());
        let opened = match is_reading {
            true => self.mount_reading(),
            false => self.mount_writing(),
        };
        let fs = opened.map_err(|error| MountError::new(&*image, error))?;
        fs.log_mounted(if is_reading { "reading" } else { "writing" });
        Ok(fs)
    }

    fn mount_reading(self) -> Result<Fs> {
        let Recovered { options, device, superblock, replay, fast_commits, .. } = self;
        let fs = Fs::build(&options, device, superblock, fast_commits, replay);
        fs.find_zones(false)?;
        Ok(fs)
    }

    fn mount_writing(self) -> Result<Fs> {
        let Recovered { options, device, superblock, replay, fast_commits, writing } = self;
        let Some(Writing { log, seed, mmp }) = writing else {
            return Err(FsError::ReadOnly);
        };
        let is_clean = superblock.state.contains(State::VALID)
            && !superblock.state.contains(State::ERROR)
            && !superblock.features.has_incompat(Incompat::RECOVER)
            && replay.is_none();
        let fs = Fs::build(&options, Arc::clone(&device), superblock, None, replay);
        fs.find_zones(true)?;
        fs.check_root()?;
        options.start_writing(&fs, &device, log, seed, mmp, is_clean)?;
        fs.begin_writing(fast_commits.as_ref(), options.passes_damage, &options.observer)?;
        fs.volume().join_cache();
        if options.background {
            fs.start_background()?;
        }
        Ok(fs)
    }
}

impl fmt::Debug for Recovered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recovered")
            .field("device", &self.device.describe())
            .field("for_writing", &self.writing.is_some())
            .field("replayed", &self.replay.is_some())
            .finish_non_exhaustive()
    }
}
