//! Periodic work and syncs of a mount.

use std::sync::Arc;
use std::time::Duration;

use extant_sync::Background;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::mmp::MmpGuard;
use crate::writer::Writer;

/// Longest time that one [`Fs::tick`] discards: its other duties must not wait.
const DISCARD_STEP: Duration = Duration::from_millis(250);

/// Period of the background thread.
const PERIOD: Duration = Duration::from_secs(1);

impl Fs {
    /// Makes every change so far durable. Concurrent callers share one commit.
    ///
    /// # Errors
    ///
    /// [`FsError::Aborted`] when the journal aborted, device errors: then changes since the last
    /// sync may be lost, all or some of them, in whole operations. On a read-only mount there is
    /// nothing to do.
    pub fn sync(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let Some(_inside) = writer.freeze_gate().enter_to_sync(|| writer.dirty_files().is_empty())
        else {
            return writer.check_running();
        };
        self.reclaim();
        let flushed = self.flush_files();
        let journal = writer.journal();
        journal.commit(journal.running()).map_err(FsError::from_journal)?;
        self.flush_device()?;
        self.discard_freed(None);
        flushed
    }

    /// Does periodic work: writes back old dirty data, commits an old transaction, deletes inodes.
    /// For the main loop of a program that embeds the file system without [background
    /// threads](crate::MountOptions::background); without calls, changes become durable by
    /// [`sync`](Self::sync) and as the log fills.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn tick(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        self.tick_protection(writer)?;
        // Nothing is due on a frozen mount.
        let Some(_inside) = writer.try_enter() else { return Ok(()) };
        self.reclaim();
        writer.check_running()?;
        let flushed = self.flush_due();
        writer.journal().commit_if_due().map_err(FsError::from_journal)?;
        self.discard_freed(Some(DISCARD_STEP));
        flushed
    }

    /// Starts the thread that calls [`tick`](Fs::tick), and allows the read-ahead thread.
    ///
    /// # Errors
    ///
    /// [`FsError::NoThread`].
    pub(crate) fn start_background(&self) -> Result<()> {
        let volume = Arc::downgrade(self.volume());
        let work = move || {
            let Some(volume) = volume.upgrade() else { return false };
            if volume.writer().is_ok_and(|writer| writer.is_closed()) {
                return false;
            }
            // Data that failed stays dirty, is counted for syncs of its file, and is tried again.
            let _ = Fs::of(volume).tick();
            true
        };
        let started = Background::start("extant-flush", PERIOD, work);
        let background =
            started.map_err(|error| FsError::NoThread { why: error.to_string().into() })?;
        let writer = self.volume().writer()?;
        writer.set_background(background);
        writer.read_ahead().allow();
        Ok(())
    }

    /// Renews the mark of multi-mount protection when it is due.
    pub(crate) fn tick_protection(&self, writer: &Writer) -> Result<()> {
        self.protected(writer, MmpGuard::tick)
    }

    /// Does something with the block of multi-mount protection, if there is one. A mount that lost the
    /// file system to another host writes nothing more.
    pub(crate) fn protected(
        &self,
        writer: &Writer,
        work: impl FnOnce(&MmpGuard) -> Result<()>,
    ) -> Result<()> {
        let Some(mmp) = writer.mmp() else { return Ok(()) };
        work(mmp).inspect_err(|error| {
            if matches!(error, FsError::InUse { .. }) && !writer.is_shut_down() {
                log::error!("{}: writes nothing more: {error}", self.device().describe());
                writer.leave_to_other(error);
            }
        })
    }
}
