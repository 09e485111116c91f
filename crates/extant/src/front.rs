//! Calls that front ends of operating systems need beyond those of programs: times kept by another
//! cache, access times by rule, and ending a mount abruptly.

use extant_format::inode::InodeFlags;
use extant_format::time::Timestamp;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::txn::Txn;

/// Credits to change the times of one inode.
const CREDITS: u32 = 4;
/// Age in seconds from which an access time is updated: a day.
const OLD: i64 = 24 * 60 * 60;

/// Rule by which reading updates the access time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessRule {
    /// Every read updates it.
    Strict,
    /// A read updates it if it is not after the last change of contents or attributes, or a day
    /// old: `relatime`.
    #[default]
    Relative,
}

/// How [`Fs::shutdown`] ends a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shutdown {
    /// All changes so far are made durable first.
    Sync,
    /// Changes of metadata so far are made durable first; dirty file contents are lost.
    LogFlush,
    /// Nothing is stored, as in a power failure.
    Now,
}

impl Inode {
    /// Updates the access time for a read now, as `rule` and the inode's flag `noatime` require.
    /// Returns whether it changed.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors.
    ///
    /// # Cost
    ///
    /// Mostly a look at the inode. For a file whose contents are in use the time is kept in memory,
    /// and stored with the next change, by a sync, or when it is due; otherwise it is a change of
    /// the inode.
    pub fn note_access(&self, rule: AccessRule) -> Result<bool> {
        let now = self.volume().writer()?.now();
        let node = self.node();
        // The time of the last write counts even if it is not stored yet.
        let file = node.file_in_use();
        let written = file.and_then(|file| file.stamp());
        let read = file.and_then(|file| file.access());
        let is_due = node.with(|data| {
            let record = &data.record;
            if record.flags.contains(InodeFlags::NOATIME) {
                return false;
            }
            let atime = read.unwrap_or(record.atime);
            match rule {
                AccessRule::Strict => atime != now,
                AccessRule::Relative => {
                    let mtime = written.unwrap_or(record.mtime);
                    let ctime = written.unwrap_or(record.ctime);
                    atime <= mtime || atime <= ctime || now.seconds - atime.seconds >= OLD
                }
            }
        });
        if !is_due {
            return Ok(false);
        }
        // A reader does not wait for a thaw.
        let Some(_inside) = self.volume().writer()?.try_enter() else { return Ok(false) };
        if let Some(file) = file {
            // The time is stored with the next change, by a sync, or when it is due, so readers
            // open no handles.
            file.note_access(now);
            self.fs().note_dirty(node, file);
            return Ok(true);
        }
        self.fs().change(|| {
            let mut txn = Txn::begin(self.volume(), CREDITS)?;
            txn.update(node, |data| data.record.atime = now)
        })?;
        Ok(true)
    }

    /// Stores the times of the last change of contents and attributes, as noted by another cache
    /// that holds back writes. An immutable inode is not changed.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors.
    pub fn store_write_times(&self, mtime: Timestamp, ctime: Timestamp) -> Result<()> {
        if self.node().gist().flags.contains(InodeFlags::IMMUTABLE) {
            return Ok(());
        }
        self.fs().change(|| {
            let node = self.node();
            let _content = node.content.write();
            let mut txn = Txn::begin(self.volume(), CREDITS)?;
            txn.update(node, |data| (data.record.mtime, data.record.ctime) = (mtime, ctime))
        })
    }
}

impl Fs {
    /// Ends the mount abruptly: no change is possible from now on, nothing more is written, and the
    /// image is left as after a crash, not marked as damaged. The next mount replays the journal.
    /// For tests of programs against power cuts, and for devices that must be released.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync) for the part made durable first; the mount has ended all the
    /// same. [`FsError::ReadOnly`] on a read-only mount, which has nothing to end.
    pub fn shutdown(&self, how: Shutdown) -> Result<()> {
        let writer = self.volume().writer()?;
        let journal = writer.journal();
        let synced = match how {
            Shutdown::Sync => self.sync(),
            Shutdown::LogFlush => journal.commit(journal.running()).map_err(FsError::from_journal),
            Shutdown::Now => Ok(()),
        };
        writer.shut_down();
        synced
    }

    /// Makes every change so far durable and writes it from the journal to its final place:
    /// programs that read the device beside this mount, without replaying the journal, see it too.
    /// The changed metadata is written once more.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync). On a read-only mount there is nothing to do.
    pub fn bring_home(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        // On a frozen mount everything is in its place.
        let Some(_inside) = writer.freeze_gate().enter_to_sync(|| true) else { return Ok(()) };
        self.sync()?;
        writer.journal().checkpoint().map_err(FsError::from_journal)
    }

    /// Reports damage that was met while reading, as changes do by themselves: reacts as `errors=`
    /// says, and records it in the superblock with the next commit. Other errors, and read-only
    /// mounts, are ignored. Returns whether changes are refused from now on.
    pub fn report_damage(&self, error: &FsError) -> bool {
        let Ok(writer) = self.volume().writer() else { return false };
        if writer.supers().report(error, writer.now().seconds) {
            writer.abort(error);
        }
        writer.supers().check_writable().is_err()
    }

    /// Returns whether [`shutdown`](Self::shutdown) has ended the mount.
    pub fn is_shut_down(&self) -> bool {
        self.volume().writer().is_ok_and(|writer| writer.is_shut_down())
    }

    /// Returns the reason why a writable mount refuses changes: damage with `errors=remount-ro`, a
    /// device that failed, a shutdown. `None` while changes are possible, and on a read-only mount.
    pub fn stopped_because(&self) -> Option<String> {
        let writer = self.volume().writer().ok()?;
        if let Some(reason) = writer.journal().abort_reason() {
            return Some(reason.why.clone());
        }
        writer.supers().check_writable().err().map(|error| error.to_string())
    }
}
