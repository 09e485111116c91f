//! Beginning and ending a writable mount, as far as it is about the superblock, orphans and
//! multi-mount protection.

use extant_jbd2::{FastCommitOverlay, JournalError};

use super::Fs;
use crate::error::{FsError, Result};
use crate::fc_apply;
use crate::orphan::OrphanSummary;
use crate::supers::Ending;
use crate::writer::Writer;

/// How often [`Fs::rest`] tries.
const REST_TRIES: u32 = 10;

/// What keeps a file system from resting.
enum Resting {
    Journal(JournalError),
    File(FsError),
}

impl From<JournalError> for Resting {
    fn from(error: JournalError) -> Resting {
        Resting::Journal(error)
    }
}

impl Fs {
    /// The first writes of a mount: the journal was replayed, and the writer is in place. When this
    /// returns, transactions may go into the log.
    pub(crate) fn begin_writing(&self, fast_commits: Option<&FastCommitOverlay>) -> Result<()> {
        let writer = self.volume().writer()?;
        writer.supers().mounted(writer.now().seconds)?;
        let (orphans, supers) = (writer.orphans(), writer.supers());
        let loaded = orphans.load_list(self, supers)?;
        if let Some(overlay) = fast_commits {
            fc_apply::apply(self, overlay)?;
        }
        let summary = orphans.recover(self, supers, loaded)?;
        if let Some(mmp) = writer.mmp() {
            mmp.mounted();
        }
        writer.set_recovered_orphans(summary);
        Ok(())
    }

    /// What the mount did about inodes that a crash left without names or half shortened; `None` on
    /// a mount for reading.
    pub fn recovered_orphans(&self) -> Option<&OrphanSummary> {
        self.volume().writer().ok()?.recovered_orphans()
    }

    /// Tells other hosts that we are still here, when it is time to. Whoever lost the file system to
    /// another host writes nothing more.
    pub(crate) fn tick_protection(&self, writer: &Writer) -> Result<()> {
        let Some(mmp) = writer.mmp() else { return Ok(()) };
        mmp.tick().inspect_err(|error| {
            if matches!(error, FsError::InUse { .. }) {
                writer.abort(error);
            }
        })
    }

    fn ending(&self, writer: &Writer, log_is_empty: bool, kbytes_written: u64) -> Ending {
        Ending {
            totals: writer.totals(self.superblock()),
            log_is_empty,
            no_orphans: writer.orphans().len() == 0,
            kbytes_written,
        }
    }

    /// Makes every change so far durable, empties the journal, and marks the image clean as unmounting does, while
    /// it stays mounted: until the next change, the image is one that was unmounted, also after a crash. What was removed
    /// and is still open is an orphan there. `false` when changes came in between again and again; all is durable then.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync). A mount for reading has nothing to do.
    pub fn rest(&self) -> Result<bool> {
        let Ok(writer) = self.volume().writer() else { return Ok(true) };
        for _ in 0..REST_TRIES {
            self.sync()?;
            let mark = || {
                let ending = self.ending(writer, true, 0);
                writer.supers().rest(writer.now().seconds, ending).map_err(Resting::File)
            };
            match writer.journal().rest(mark) {
                Ok(false) => {}
                Ok(true) => return Ok(true),
                Err(Resting::File(error)) => return Err(error),
                Err(Resting::Journal(error)) => return Err(FsError::from_journal(error)),
            }
        }
        Ok(false)
    }

    /// The last writes of a mount. `log_is_empty` when everything that was committed is at its place
    /// and the journal says that it is empty, or there is none; `kbytes_written` of this mount.
    ///
    /// # Errors
    ///
    /// Device errors; [`FsError::InUse`] when the protection against other
    /// mounts was lost.
    pub(crate) fn end_writing(&self, log_is_empty: bool, kbytes_written: u64) -> Result<()> {
        let writer = self.volume().writer()?;
        let ending = self.ending(writer, log_is_empty, kbytes_written);
        writer.supers().unmounted(writer.now().seconds, ending)?;
        writer.mmp().map_or(Ok(()), |mmp| mmp.release())
    }
}
