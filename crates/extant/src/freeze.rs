//! Freezing a mount: changes are held back, so that the device does not change during a snapshot.
//!
//! # Place
//!
//! Below: `freeze_gate`, whose rules hold here, and [`Fs::rest`]. Above: programs.

use std::fmt;

use extant_base::sabotage;

use crate::error::{FsError, Result};
use crate::freeze_gate::NotFrozen;
use crate::fs::Fs;

/// A frozen mount, from [`Fs::freeze`]. Dropping it thaws the mount.
#[must_use = "the mount goes on when this is dropped"]
pub struct Frozen {
    fs: Fs,
}

impl Frozen {
    /// Thaws the mount: waiting changes continue.
    pub fn thaw(self) {}

    /// Returns the file system, for reading.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Ok(writer) = self.fs.volume().writer() {
            writer.freeze_gate().thaw();
            log::debug!("{}: goes on", self.fs.device().describe());
        }
    }
}

impl fmt::Debug for Frozen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Frozen({:?})", self.fs)
    }
}

impl Fs {
    /// Freezes this mount until the result is dropped: waits for the changes under way, makes
    /// everything durable, empties the journal and marks the image clean, like an unmount. While
    /// the mount is frozen nothing is written to the device, so that a copy of it is an unmounted
    /// image. Files that were removed and are still open are orphans there, which the next mount
    /// deletes.
    ///
    /// Reads continue meanwhile, and changes wait, in any thread: a change by the thread that holds
    /// the frozen mount waits for ever. Attempts are refused
    /// ([`WaitReason::Frozen`](crate::WaitReason::Frozen)), access times are not noted, a sync
    /// returns at once because there is nothing to write. Stores through maps
    /// ([`MappedFile`](crate::MappedFile)) stay in memory until the thaw. Only multi-mount
    /// protection continues to write its block.
    ///
    /// # Errors
    ///
    /// [`FsError::Frozen`] (`EBUSY`) when the mount is frozen already. [`FsError::ReadOnly`] when it
    /// was [unmounted](Self::unmount); an unmount under way is waited for. Those of
    /// [`sync`](Self::sync), after which the mount is not frozen. A read-only mount needs no
    /// freezing, and the call succeeds.
    ///
    /// # Cost
    ///
    /// That of [`rest`](Self::rest). A change that need not wait costs two atomic operations on a
    /// cache line of its thread.
    ///
    /// # Example
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fs = extant::MountOptions::new().read_only(false).open_path("disk.img")?;
    /// let frozen = fs.freeze()?;
    /// std::fs::copy("disk.img", "snapshot.img")?;
    /// frozen.thaw();
    /// # Ok(())
    /// # }
    /// ```
    pub fn freeze(&self) -> Result<Frozen> {
        let Ok(writer) = self.volume().writer() else { return Ok(Frozen { fs: self.clone() }) };
        writer.check_running()?;
        let _inside = writer.freeze_gate().freeze().map_err(|refused| match refused {
            NotFrozen::Frozen => FsError::Frozen,
            NotFrozen::Ended => FsError::ReadOnly,
        })?;
        // They began inside the gate, and no thread is there for them.
        if !sabotage("extant.direct.lane-beside-freeze") {
            writer.overwrites().settle();
        }
        // From here on an error thaws the mount, when `frozen` is dropped.
        let frozen = Frozen { fs: self.clone() };
        match self.rest()? {
            true => {
                log::debug!("{}: frozen", self.device().describe());
                Ok(frozen)
            }
            // No other thread is inside the gate, so no change can come in between.
            false => Err(FsError::Frozen),
        }
    }

    /// Returns whether [`freeze`](Self::freeze) holds changes back at the moment.
    pub fn is_frozen(&self) -> bool {
        self.volume().writer().is_ok_and(|writer| writer.freeze_gate().is_closed())
    }
}
