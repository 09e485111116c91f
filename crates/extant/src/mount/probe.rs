//! Probing: a look at an image before it is opened.

use std::fmt;
use std::sync::Arc;

use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::{Compat, Incompat, State};
use extant_format::superblock::Superblock;

use super::{MountOptions, Recovered, check_features, check_size};
use crate::error::{FsError, MountError, Result};
use crate::fs::Fs;

/// An image that was probed and not opened yet: its superblock, decoded and checked. Nothing else
/// was read, and nothing was written.
///
/// # Example
///
/// ```no_run
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let device = extant::FileDevice::open_read_write("disk.img")?;
/// let probe = extant::MountOptions::new().read_only(false).probe(device)?;
/// println!("{}", String::from_utf8_lossy(probe.superblock().label()));
/// if let Err(why) = probe.check_write() {
///     println!("to be read only: {why}");
/// }
/// let fs = probe.open()?;
/// # let _ = fs;
/// # Ok(())
/// # }
/// ```
pub struct Probe {
    options: MountOptions,
    device: SharedDevice,
    superblock: Superblock,
}

impl MountOptions {
    /// Reads and checks the superblock of `device`, without opening the image.
    ///
    /// # Errors
    ///
    /// A [`MountError`] of the kinds `NotExt`, `ExternalJournal`, `Damaged` and `DeviceFailed`.
    ///
    /// # Cost
    ///
    /// One read of 1 KiB.
    pub fn probe(&self, device: impl BlockDevice + 'static) -> Result<Probe, MountError> {
        self.probe_shared(Arc::new(device))
    }

    /// Probes a device that the caller shares; otherwise as [`probe`](Self::probe).
    ///
    /// # Errors
    ///
    /// Those of [`probe`](Self::probe).
    pub fn probe_shared(&self, device: SharedDevice) -> Result<Probe, MountError> {
        let read = self.read_superblock(&device);
        let superblock = read.map_err(|error| MountError::new(&*device.describe(), error))?;
        Ok(Probe { options: self.clone(), device, superblock })
    }
}

impl Probe {
    /// Returns the superblock as it is on the device; the journal may hold a later one.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Returns whether the image was not unmounted: reading shows it with the contents of its
    /// journal, and opening for writing replays the journal first.
    pub fn needs_recovery(&self) -> bool {
        let features = &self.superblock.features;
        features.has_compat(Compat::HAS_JOURNAL) && features.has_incompat(Incompat::RECOVER)
    }

    /// Returns whether the image is marked as damaged and was not repaired since, or has no journal
    /// and was not unmounted.
    pub fn is_marked_damaged(&self) -> bool {
        let state = self.superblock.state;
        let is_clean = state.contains(State::VALID) || self.needs_recovery();
        state.contains(State::ERROR) || !is_clean
    }

    /// Checks that the features and the size of the image allow reading.
    ///
    /// # Errors
    ///
    /// A [`MountError`] of the kind `Unsupported` with the features by name; `Damaged` when not
    /// even the first block group is there.
    pub fn check_read(&self) -> Result<(), MountError> {
        let checked = check_features(&self.superblock.features);
        checked
            .and_then(|()| check_size(&self.device, &self.superblock))
            .map_err(|e| self.failed(e))
    }

    fn failed(&self, error: FsError) -> MountError {
        MountError::new(&*self.device.describe(), error)
    }

    /// Checks that the features, the size and the device of the image allow writing. Only opening
    /// can tell whether another program has it open for writing, and whether its journal can be
    /// replayed.
    ///
    /// # Errors
    ///
    /// Those of [`check_read`](Self::check_read); `ReadOnlyDevice` for a device that cannot be
    /// written to; `JournalDevice` for a journal on a device that was not
    /// [given](MountOptions::journal_device); contradictions of the superblock.
    pub fn check_write(&self) -> Result<(), MountError> {
        self.may_write().map_err(|error| self.failed(error))
    }

    fn may_write(&self) -> Result<()> {
        if self.device.is_read_only() {
            return Err(FsError::ReadOnly);
        }
        self.options.check_for_writing(&self.device, &self.superblock)?;
        let features = &self.superblock.features;
        let has_log = features.has_compat(Compat::HAS_JOURNAL);
        if has_log && self.superblock.journal_inode.0 == 0 && self.options.journal_device.is_none()
        {
            return Err(FsError::JournalDeviceMissing { uuid: self.superblock.journal_uuid });
        }
        Ok(())
    }

    /// Recovers the image with the options of the probe: reads the journal and, for writing,
    /// replays it.
    ///
    /// # Errors
    ///
    /// Those of [`MountOptions::open`]. The superblock is read again, because it may have changed
    /// meanwhile.
    ///
    /// # Cost
    ///
    /// One pass over the journal's transactions when it is dirty; for writing, as many writes as
    /// they have blocks. With multi-mount protection, a wait of 11 seconds or more.
    pub fn recover(&self) -> Result<Recovered, MountError> {
        self.options.recover_shared(Arc::clone(&self.device))
    }

    /// Opens the image with the options of the probe: [`recover`](Self::recover), followed by
    /// [`Recovered::mount`].
    ///
    /// # Errors
    ///
    /// Those of [`MountOptions::open`]. The superblock is read again, because it may have changed
    /// meanwhile.
    pub fn open(&self) -> Result<Fs, MountError> {
        self.options.open_shared(Arc::clone(&self.device))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({}, recovery {})", self.device.describe(), self.needs_recovery())
    }
}
