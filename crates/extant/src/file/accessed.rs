//! Access times of what is read.

use std::sync::Arc;

use extant_format::inode::InodeFlags;
use extant_format::time::Timestamp;

use crate::error::Result;
use crate::inode::Inode;
use crate::node::{FileState, InodeData, Node};
use crate::times::AccessRule;
use crate::txn::Txn;

/// Credits to change the times of one inode.
const CREDITS: u32 = 4;

/// Returns whether a read at `now` updates the access time, given the inode and what is only in
/// memory: the times of a write or a read that are not stored yet count.
fn is_due(rule: AccessRule, file: Option<&FileState>, data: &InodeData, now: Timestamp) -> bool {
    let record = &data.record;
    if record.flags.contains(InodeFlags::NOATIME) {
        return false;
    }
    let (written, read) = (file.and_then(FileState::stamp), file.and_then(FileState::access));
    let changes = (written.unwrap_or(record.mtime), written.unwrap_or(record.ctime));
    rule.is_due(read.unwrap_or(record.atime), changes, now)
}

impl Inode {
    /// Updates the access time for a read now, as `rule` and the inode's flag `noatime` require.
    /// Returns whether it changed.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`](crate::FsError::ReadOnly),
    /// [`FsError::Aborted`](crate::FsError::Aborted); damage and device errors.
    ///
    /// # Cost
    ///
    /// Mostly a look at the inode. For a regular file that is in use, or on a mount with
    /// [`lazytime`](crate::MountOptions::lazytime), the time is kept in memory, and stored with the
    /// next change, by a sync, or when it is due; otherwise it is a change of the inode.
    pub fn note_access(&self, rule: AccessRule) -> Result<bool> {
        let writer = self.volume().writer()?;
        let now = writer.now();
        let node = self.node();
        if !node.with(|data| is_due(rule, node.file_in_use(), data, now)) {
            return Ok(false);
        }
        // A reader does not wait for a thaw.
        let Some(_inside) = writer.try_enter() else { return Ok(false) };
        let file = match node.file_in_use() {
            None if writer.dirty_files().is_lazy() && node.is_regular() => {
                Some(self.fs().file(node)?)
            }
            file => file,
        };
        if let Some(file) = file {
            // The time is stored with the next change, by a sync, or when it is due, so readers
            // open no handles.
            file.note_access(now);
            self.fs().note_dirty(node, file);
            self.fs().store_excess_times()?;
            return Ok(true);
        }
        self.fs().change(|| {
            let mut txn = Txn::begin(self.volume(), CREDITS)?;
            txn.update(node, |data| data.record.atime = now)
        })?;
        Ok(true)
    }

    /// Updates the access time after a read through the library, by the rule of the mount. Never
    /// fails a read. The caller holds no lock.
    pub(crate) fn was_read(&self) {
        let Ok(writer) = self.volume().writer() else { return };
        if writer.access_rule() != AccessRule::Never
            && let Err(error) = self.note_access(writer.access_rule())
        {
            // The journal is full or aborted; who changes something gets the error.
            log::debug!("inode {}: the access time was not stored: {error}", self.ino());
        }
    }

    /// Prepares [`was_read`](Self::was_read) for a read that may not wait. `None` if that would have
    /// to wait; nothing has changed.
    pub(crate) fn try_reading(&self, file: &FileState) -> Option<Reading<'_>> {
        let writer = self.volume().writer().ok()?;
        let rule = writer.access_rule();
        if rule == AccessRule::Never {
            return Some(Reading { inode: self, now: None });
        }
        let (node, now) = (self.node(), writer.now());
        let is_due = node.try_with(|data| is_due(rule, Some(file), data, now))?;
        Some(Reading { inode: self, now: is_due.then_some(now) })
    }
}

/// A read that may not wait, and may update the access time.
pub(crate) struct Reading<'i> {
    inode: &'i Inode,
    now: Option<Timestamp>,
}

impl Reading<'_> {
    /// Updates the access time, without waiting: the read is done.
    pub(crate) fn done(self, file: &FileState) {
        let (Some(now), node): (_, &Arc<Node>) = (self.now, self.inode.node()) else { return };
        // A reader does not wait for a thaw.
        let inside = self.inode.volume().writer().ok().and_then(|writer| writer.try_enter());
        if inside.is_some() {
            file.note_access(now);
            self.inode.fs().note_dirty(node, file);
        }
    }
}

#[cfg(test)]
mod tests {
    use extant_testkit::require;

    use crate::test_images::Image;
    use crate::times::{AccessRule, LAZY_MAX};

    #[test]
    fn times_of_too_many_files_do_not_stay_in_memory() {
        let image = require!(Image::make("16M", &["-t", "ext4"], ""));
        let options = image.options().lazytime(true);
        let fs = options.open_shared(std::sync::Arc::clone(&image.device) as _).unwrap();
        let files = fs.volume().writer().unwrap().dirty_files();
        let count = 4 * LAZY_MAX;
        for number in 0..count {
            fs.write(format!("/{number}").as_str(), "").unwrap();
            let file = fs.resolve(format!("/{number}").as_str()).unwrap();
            file.sync().unwrap();
            image.clock.advance(std::time::Duration::from_secs(1));
            assert!(file.note_access(AccessRule::Strict).unwrap(), "{number}");
            assert!(files.times_count() <= LAZY_MAX, "{number}: {}", files.times_count());
        }
        assert_eq!(files.times_count(), LAZY_MAX);
        assert_eq!(files.all().len(), LAZY_MAX);
        fs.sync().unwrap();
        assert_eq!((files.times_count(), files.all().len()), (0, 0));
        fs.unmount().unwrap();
        image.check().assert_clean();
    }
}
