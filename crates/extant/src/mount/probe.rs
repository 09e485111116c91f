//! A look at an image before it is opened.

use std::fmt;
use std::sync::Arc;

use extant_block::{BlockDevice, SharedDevice};
use extant_format::features::{Compat, Incompat, State};
use extant_format::superblock::Superblock;

use super::{MountOptions, check_features, check_size};
use crate::error::{FsError, Result};
use crate::fs::Fs;

/// What an image is, and what opening it would take: its superblock, decoded and checked. Nothing else has been read, and
/// nothing was written.
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
    /// Looks what `device` holds, without opening it.
    ///
    /// # Errors
    ///
    /// [`FsError::NotExt`], [`FsError::ExternalJournal`], damage of the superblock, device errors.
    ///
    /// # Cost
    ///
    /// One read of 1 KiB.
    pub fn probe(&self, device: impl BlockDevice + 'static) -> Result<Probe> {
        self.probe_shared(Arc::new(device))
    }

    /// [`probe`](Self::probe) of a device that others use too.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn probe_shared(&self, device: SharedDevice) -> Result<Probe> {
        let superblock = self.read_superblock(&device)?;
        Ok(Probe { options: self.clone(), device, superblock })
    }
}

impl Probe {
    /// The superblock as it is on the device: the journal may hold a later one.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Whether the image was not unmounted: reading shows what its journal holds, and opening for writing replays
    /// it first.
    pub fn needs_recovery(&self) -> bool {
        let features = &self.superblock.features;
        features.has_compat(Compat::HAS_JOURNAL) && features.has_incompat(Incompat::RECOVER)
    }

    /// Whether somebody found damage that nobody repaired since, or left it without a journal in the middle of writing.
    pub fn is_marked_damaged(&self) -> bool {
        let state = self.superblock.state;
        let is_clean = state.contains(State::VALID) || self.needs_recovery();
        state.contains(State::ERROR) || !is_clean
    }

    /// Whether its features and its size allow to read it.
    ///
    /// # Errors
    ///
    /// [`FsError::Unsupported`] with the features by name; damage when not even the first block group is there.
    pub fn check_read(&self) -> Result<()> {
        check_features(&self.superblock.features)?;
        check_size(&self.device, &self.superblock)
    }

    /// Whether its features, its size and its device allow to write it. Who has it open for writing, what its journal
    /// holds and whether that can be replayed only opening can tell.
    ///
    /// # Errors
    ///
    /// As [`check_read`](Self::check_read); [`FsError::ReadOnly`] for a device that cannot be written;
    /// [`FsError::JournalDeviceMissing`] for a journal on a device that was not
    /// [given](MountOptions::journal_device); contradictions of the superblock.
    pub fn check_write(&self) -> Result<()> {
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

    /// Opens it, with the options that it was probed with.
    ///
    /// # Errors
    ///
    /// Those of [`MountOptions::open`]. The superblock is read again: somebody may have changed it meanwhile.
    pub fn open(&self) -> Result<Fs> {
        self.options.open_shared(Arc::clone(&self.device))
    }
}

impl fmt::Debug for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Probe({}, recovery {})", self.device.describe(), self.needs_recovery())
    }
}
