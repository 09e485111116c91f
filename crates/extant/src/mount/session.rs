//! The begin and the end of a writable mount: superblock, orphans and multi-mount protection.

use extant_base::sabotage;
use extant_jbd2::{FastCommitOverlay, JournalError};

use crate::error::{FsError, Result};
use crate::fc_apply;
use crate::freeze_gate::NotEnded;
use crate::fs::Fs;
use crate::mmp::MmpGuard;
use crate::orphan::OrphanSummary;
use crate::progress::Observer;
use crate::supers::Ending;
use crate::writer::Writer;

/// Number of attempts of [`Fs::rest`].
const REST_TRIES: u32 = 10;

/// Obstacles to a rest.
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
    /// Does the first writes of a mount, after the journal was replayed and the writer was set.
    /// When this returns, transactions may go into the log.
    pub(super) fn begin_writing(
        &self,
        fast_commits: Option<&FastCommitOverlay>,
        passes_damage: bool,
        observer: &Observer,
    ) -> Result<()> {
        let writer = self.volume().writer()?;
        writer.supers().mounted(writer.now().seconds)?;
        let (orphans, supers) = (writer.orphans(), writer.supers());
        let loaded = super::orphans::load_list(self, orphans, supers)?;
        if let Some(overlay) = fast_commits {
            let passed = fc_apply::apply(self, overlay, passes_damage)?;
            writer.set_fast_commit_damage(passed);
        }
        let summary = super::orphans::recover(self, orphans, supers, loaded, observer)?;
        if let Some(mmp) = writer.mmp() {
            mmp.mounted();
        }
        writer.set_recovered_orphans(summary);
        Ok(())
    }

    /// Returns a summary of the orphans that this mount deleted or truncated; `None` on a read-only
    /// mount.
    pub fn recovered_orphans(&self) -> Option<&OrphanSummary> {
        self.volume().writer().ok()?.recovered_orphans()
    }

    /// Returns why parts of the fast commits were left out, one reason for each part; empty without
    /// [`MountOptions::pass_fast_commit_damage`](crate::MountOptions::pass_fast_commit_damage).
    pub fn fast_commit_damage(&self) -> &[FsError] {
        self.volume().writer().map_or(&[], Writer::fast_commit_damage)
    }

    /// Logs that the image is mounted, and what was recovered.
    pub(super) fn log_mounted(&self, what: &str) {
        let device = self.device().describe();
        log::info!("{device}: mounted for {what}");
        if let Some(replay) = self.replayed().filter(|replay| replay.transactions > 0) {
            let (count, blocks) = (replay.transactions, replay.blocks);
            log::info!(
                "{device}: it was not unmounted: {count} transactions, {blocks} blocks replayed"
            );
        }
        let Some(orphans) = self.recovered_orphans() else { return };
        if orphans.deleted > 0 || orphans.shortened > 0 {
            let (deleted, shortened) = (orphans.deleted, orphans.shortened);
            log::info!(
                "{device}: {deleted} files without names deleted, {shortened} cut to their size"
            );
        }
        if let Some(error) = orphans.errors.first() {
            let count = orphans.damaged;
            log::warn!(
                "{device}: {count} damaged files without names are left for repair: {error}"
            );
        }
    }

    fn ending(&self, writer: &Writer, log_is_empty: bool, kbytes_written: u64) -> Ending {
        Ending {
            totals: writer.totals(self.superblock()),
            log_is_empty,
            no_orphans: writer.orphans().len() == 0,
            kbytes_written,
        }
    }

    /// Makes every change so far durable, empties the journal, and marks the image clean like an
    /// unmount, while it stays mounted: until the next change, even a crash leaves an unmounted
    /// image. Files that were removed and are still open are orphans there. Returns false when
    /// changes came in between again and again; everything is durable then.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync). On a read-only mount there is nothing to do.
    pub fn rest(&self) -> Result<bool> {
        let Ok(writer) = self.volume().writer() else { return Ok(true) };
        // A frozen mount is at rest.
        let Some(_inside) = writer.freeze_gate().enter_to_sync(|| true) else { return Ok(true) };
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

    /// Ends a writable mount: everything is written, the journal is emptied, and the image is
    /// marked clean. Changes under way are waited for, and stored. Clones of this `Fs` and handles
    /// cannot change anything afterwards. Files without names are deleted, also those that have
    /// handles; those that are [mapped](crate::Inode::map_shared) are left to the next mount.
    ///
    /// Of several calls one ends the mount; the others wait for it, and have nothing left to do. After
    /// an error that left something undone (a device that failed), another call tries again.
    ///
    /// Dropping the last clone without this call writes nothing more: the next mount replays what
    /// was committed.
    ///
    /// # Errors
    ///
    /// [`FsError::Frozen`] while the mount is frozen, with nothing done. Otherwise as
    /// [`sync`](Self::sync). When the journal aborted or cannot be emptied, the image keeps it, and
    /// the next mount replays it. When file contents could not be stored, everything else is, the
    /// image is marked clean, and those contents are lost; to be able to try again, call
    /// [`sync`](Self::sync) first, which keeps them. [`FsError::InUse`] when another host has taken a
    /// file system with multi-mount protection meanwhile: nothing is written then, and what was not
    /// synced before is lost.
    pub fn unmount(self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        // Whoever comes second finds it ended: the device may be another mount's by then.
        let Some(turn) = writer.freeze_gate().begin_end().map_err(|NotEnded| FsError::Frozen)?
        else {
            return Ok(());
        };
        writer.stop_background();
        // What returned before this is stored; what comes later is refused, once the gate is open.
        let alone = turn.close();
        // Another host may have taken the file system while this one slept: what it has there now stays.
        // A block that cannot be read says of no other host, and does not keep data from the device: its
        // error comes at the end.
        if !sabotage("extant.unmount.protection-not-looked-at")
            && let Err(error @ FsError::InUse { .. }) = self.protected(writer, MmpGuard::look)
        {
            return Err(error);
        }
        writer.overwrites().settle();
        while self.reclaim() {}
        let flushed = self.flush_files();
        if !sabotage("extant.unmount.leaves-orphans") {
            super::orphans::delete_held(&self, writer);
        }
        writer.close();
        if let Err(error) = writer.journal().close() {
            // Nothing more will be written, so other hosts need not wait.
            let _ = writer.mmp().map(|mmp| mmp.release());
            return Err(FsError::from_journal(error));
        }
        let stats = writer.journal().stats();
        // The log is empty, so clusters that are free now stay free after a crash.
        self.discard_freed(None);
        let blocks = stats.log_blocks.saturating_add(stats.home_writes);
        let kbytes = (blocks << self.block_size().log2()) >> 10;
        self.end_writing(true, kbytes)?;
        drop(alone);
        if !sabotage("extant.unmount.ends-twice") {
            turn.done();
        }
        log::info!("{}: unmounted", self.device().describe());
        flushed
    }

    /// Does the last writes of a mount. `log_is_empty` says that all committed blocks are at their
    /// places and the journal is marked empty, or that there is none; `kbytes_written` counts this
    /// mount's writes.
    ///
    /// # Errors
    ///
    /// Device errors; [`FsError::InUse`] when the protection against other mounts was lost.
    pub(crate) fn end_writing(&self, log_is_empty: bool, kbytes_written: u64) -> Result<()> {
        let writer = self.volume().writer()?;
        let ending = self.ending(writer, log_is_empty, kbytes_written);
        writer.supers().unmounted(writer.now().seconds, ending)?;
        writer.mmp().map_or(Ok(()), |mmp| mmp.release())
    }
}
