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
        let node = self.node();
        let writer = self.volume().writer()?;
        if mtime == ctime && writer.dirty_files().is_lazy() {
            writer.supers().check_writable()?;
            writer.check_running()?;
            let _inside = writer.enter();
            let _content = node.content.write();
            if let Some(file) = node.file_in_use() {
                file.touch(mtime);
                self.fs().note_dirty(node, file);
                return Ok(());
            }
        }
        self.fs().change(|| {
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
