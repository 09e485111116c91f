//! Holding every change back, so that the device stands still: for a snapshot of it by other means.
//!
//! # Place
//!
//! Below: `freeze_gate`, whose rules hold here, and what brings a mount to rest. Above: programs.

use std::fmt;

use crate::error::{FsError, Result};
use crate::fs::Fs;

/// A mount that stands still, from [`Fs::freeze`]. It goes on when this is dropped.
#[must_use = "the mount goes on when this is dropped"]
pub struct Frozen {
    fs: Fs,
}

impl Frozen {
    /// The mount goes on: those who wait to change something do.
    pub fn thaw(self) {}

    /// The file system, to be read.
    pub fn fs(&self) -> &Fs {
        &self.fs
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        if let Ok(writer) = self.fs.volume().writer() {
            writer.freeze_gate().open();
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
    /// Makes this mount stand still until the result is dropped: waits for the changes that are under way, makes
    /// everything durable, empties the journal and marks the image clean, as unmounting does. Until then nothing
    /// is written to the device, so that a copy of it is an image that was unmounted. Files that were removed and are
    /// still open are orphans there, which the next mount deletes.
    ///
    /// Meanwhile reads go on, and whoever changes something waits, in any thread: also in the one that has frozen it,
    /// for ever. Attempts are refused ([`WaitReason::Frozen`](crate::WaitReason::Frozen)), access times are not noted,
    /// a sync returns at once because there is nothing to write. What programs store through maps
    /// ([`MappedFile`](crate::MappedFile)) stays in memory until the thaw. What goes on writing are the beats of
    /// multi-mount protection.
    ///
    /// # Errors
    ///
    /// [`FsError::Frozen`] (`EBUSY`) while it is frozen already. Those of [`sync`](Self::sync): it goes on then as
    /// before. A mount for reading stands still anyway.
    ///
    /// # Cost
    ///
    /// That of [`rest`](Self::rest). A change that need not wait pays two atomic operations on a line of its
    /// thread.
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
        let _inside = writer.freeze_gate().try_close().ok_or(FsError::Frozen)?;
        // From here on a failure opens it again.
        let frozen = Frozen { fs: self.clone() };
        match self.rest()? {
            true => {
                log::debug!("{}: frozen", self.device().describe());
                Ok(frozen)
            }
            // Nobody is inside, so nobody can come in between.
            false => Err(FsError::Frozen),
        }
    }

    /// Whether [`freeze`](Self::freeze) holds changes back at the moment.
    pub fn is_frozen(&self) -> bool {
        self.volume().writer().is_ok_and(|writer| writer.freeze_gate().is_closed())
    }
}
