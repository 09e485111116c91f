//! What the front end of an operating system needs beyond the calls of programs: times that another
//! cache has kept, access times by rule, and an end without warning.

use extant_format::inode::InodeFlags;
use extant_format::time::Timestamp;

use crate::error::{FsError, Result};
use crate::fs::Fs;
use crate::inode::Inode;
use crate::txn::Txn;

/// Credits to change the times of one inode.
const CREDITS: u32 = 4;
/// Seconds after which an access time counts as old: a day.
const OLD: i64 = 24 * 60 * 60;

/// When reading changes the access time.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum AccessRule {
    /// Each time.
    Strict,
    /// When it is not after the last change of contents or attributes, or is a day old: `relatime`.
    #[default]
    Relative,
}

/// How [`Fs::shutdown`] ends a file system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Shutdown {
    /// Everything so far is made durable first.
    Sync,
    /// Changes of metadata so far are made durable first; contents that wait are lost.
    LogFlush,
    /// Nothing: as if the power failed.
    Now,
}

impl Inode {
    /// Notes that the inode was read now, if `rule` and its flag `noatime` say so. Whether that
    /// changed anything.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`], [`FsError::Aborted`]; damage and device errors.
    ///
    /// # Cost
    ///
    /// A look at the inode, mostly; else a change of it.
    pub fn note_access(&self, rule: AccessRule) -> Result<bool> {
        let now = self.volume().writer()?.now();
        let node = self.node();
        // What is not stored yet of the last write counts as well.
        let written = node.file_in_use().and_then(|file| file.stamp());
        let is_due = node.with(|data| {
            let record = &data.record;
            if record.flags.contains(InodeFlags::NOATIME) {
                return false;
            }
            let atime = record.atime;
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
        self.fs().change(|| {
            let mut txn = Txn::begin(self.volume(), CREDITS)?;
            txn.update(node, |data| data.record.atime = now)
        })?;
        Ok(true)
    }

    /// Stores when the contents and the attributes changed last, as another cache has noted it that
    /// holds writes back. An immutable inode is not changed.
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
    /// Ends the mount where it stands: no change is possible from now on, nothing more is written,
    /// and the image is left as a crash leaves it, not marked as damaged. The next mount replays the
    /// journal. For tests of programs against power cuts, and for devices that must be let go.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync), for what is made durable first; it has ended all the same.
    /// [`FsError::ReadOnly`] on a mount for reading, which has nothing to end.
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

    /// Makes every change so far durable and brings it home from the journal: whoever looks at the device beside
    /// this mount, and does not replay the journal, sees it too. The metadata that changed is written once more.
    ///
    /// # Errors
    ///
    /// Those of [`sync`](Self::sync). A mount for reading has nothing to do.
    pub fn bring_home(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        // While it is frozen all of it is home.
        let Some(_inside) = writer.freeze_gate().enter_to_sync(|| true) else { return Ok(()) };
        self.sync()?;
        writer.journal().checkpoint().map_err(FsError::from_journal)
    }

    /// Notes damage that was met while reading, which changes notice by themselves: does what
    /// `errors=` asks for, and records it in the superblock with the next commit. Errors that are no
    /// damage, and mounts for reading, are left alone. Whether changes are refused now.
    pub fn report_damage(&self, error: &FsError) -> bool {
        let Ok(writer) = self.volume().writer() else { return false };
        if writer.supers().report(error, writer.now().seconds) {
            writer.abort(error);
        }
        writer.supers().check_writable().is_err()
    }

    /// Whether [`shutdown`](Self::shutdown) has ended it.
    pub fn is_shut_down(&self) -> bool {
        self.volume().writer().is_ok_and(|writer| writer.is_shut_down())
    }

    /// Why nothing can be changed any more although the mount is writable: damage with
    /// `errors=remount-ro`, a device that failed, a shutdown. `None` while all is well, and on a
    /// mount for reading.
    pub fn stopped_because(&self) -> Option<String> {
        let writer = self.volume().writer().ok()?;
        if let Some(reason) = writer.journal().abort_reason() {
            return Some(reason.why.clone());
        }
        writer.supers().check_writable().err().map(|error| error.to_string())
    }
}
