//! Bringing dirty files to the device: on request, in time, and when too much is dirty.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use super::FileMapper;
use crate::error::{FsError, Result};
use crate::fs::{Fs, Mount};
use crate::inode::Inode;
use crate::node::{FileState, Node};
use crate::shared_cache::Sharer;
use crate::txn::Txn;

/// What one caller writes for others at once, in bytes.
const STEP: u64 = 16 << 20;
/// Steps for one file before others have their turn.
const STEPS_MOST: u32 = 64;
/// Credits to store a size and times.
const SIZE_CREDITS: u32 = 8;

impl Fs {
    /// The file has something to store from now on.
    pub(crate) fn note_dirty(&self, node: &Arc<Node>, file: &FileState) {
        // Between what the caller has left to store and this look: whoever takes the file off the list has
        // another between that and its look at what there is to store. One of them sees the other.
        fence(Ordering::SeqCst);
        if file.listed_since().is_some() {
            return;
        }
        if let Ok(writer) = self.volume().writer() {
            let since = writer.clock().monotonic();
            writer.dirty_files().insert(node, file, since);
        }
    }

    /// The file has nothing to store any more, or so it seems: looks again after taking it off the
    /// list, because a writer may have come in between.
    pub(crate) fn note_clean(&self, node: &Arc<Node>, file: &FileState) {
        if let Ok(writer) = self.volume().writer() {
            writer.dirty_files().remove(node, file);
            fence(Ordering::SeqCst);
            if file.has_to_store() {
                self.note_dirty(node, file);
            }
        }
    }

    /// Writes back about `most` bytes of a file, and stores its size and times when that was all.
    pub(crate) fn flush_file(&self, node: &Arc<Node>, most: u64) -> Result<()> {
        let Some(file) = node.file_in_use() else { return Ok(()) };
        let _inside = self.volume().writer()?.enter();
        let mapper = FileMapper { fs: self, node, file };
        let written = file.cache.write_back_some(&mapper, 0..u64::MAX >> 1, most);
        let stored = match written {
            Ok(_) => self.store_pending(&mapper, false).map(drop),
            Err(error) => {
                let (device, failures) = (self.device().describe(), file.cache.error_count());
                // A device that fails all the time has more to say than anybody wants to hear.
                if failures.max(1).is_power_of_two() {
                    let ino = node.ino();
                    log::warn!(
                        "{device}: inode {ino}: writeback failed, failure {failures}: {error}"
                    );
                }
                Err(error)
            }
        };
        // Listed anew when it is still dirty: others have their turn first.
        self.note_clean(node, file);
        stored
    }

    /// Stores the size, as far as the data in front of it is on the device, and times, unless only
    /// `data` counts. Whether there was anything.
    fn store_pending(&self, mapper: &FileMapper<'_>, data: bool) -> Result<bool> {
        let (node, file) = (mapper.node, mapper.file);
        let stored = node.with(|data| data.record.size);
        if file.size() == stored && (data || file.stamp().is_none()) {
            return Ok(false);
        }
        // A writer dirties before it raises the size: read in the other order.
        let _kept_out = file.cache.keep_writeback_out();
        if file.cache.has_ended() {
            return Ok(false);
        }
        let size = file.size();
        let size_to = if file.cache.is_dirty() { 0 } else { size };
        if size_to <= stored && (data || file.stamp().is_none()) {
            return Ok(false);
        }
        let mut txn = Txn::begin(self.volume(), SIZE_CREDITS)?;
        mapper.store_size(&mut txn, size_to)?;
        Ok(true)
    }

    /// Writes back something of the file that has been dirty longest; where none is, something of another mount with
    /// the same cache. `false` when there is nothing.
    pub(crate) fn relieve(&self) -> Result<bool> {
        let Ok(writer) = self.volume().writer() else { return Ok(false) };
        let Some(node) = writer.dirty_files().oldest(Duration::MAX) else {
            return Ok(self.volume().relieve_sharers());
        };
        self.flush_file(&node, STEP)?;
        Ok(true)
    }

    /// Called before a write, without locks: when too much is dirty, whoever makes more writes some of
    /// it first.
    pub(crate) fn balance_dirty(&self) -> Result<()> {
        let Some(cache) = self.volume().page_cache_made() else { return Ok(()) };
        if !cache.wants_writeback() {
            return Ok(());
        }
        self.volume().writer()?.wake_background();
        // Each round writes a step, so this ends; when others dirty as fast, they wait as well. A file
        // that cannot be written goes to the end of the list, and is no reason to refuse this write as
        // long as another one makes room.
        let mut failed = None;
        for _ in 0..64 {
            if !cache.is_over_limit() {
                return Ok(());
            }
            match self.relieve() {
                Ok(true) => failed = None,
                Ok(false) => return Ok(()),
                Err(error) if failed.is_some() => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Writes back every file that is dirty now.
    pub(crate) fn flush_files(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let mut first = None;
        for node in writer.dirty_files().all() {
            // One file's error does not keep the others from the device.
            let absorbed = self.absorb_maps(&node);
            if let Err(error) = self.flush_file(&node, u64::MAX).and(absorbed) {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Writes what has been dirty for long, or some when much is.
    pub(crate) fn flush_due(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let (now, expire) = (writer.clock().monotonic(), writer.dirty_files().expire());
        let Some(cache) = self.volume().page_cache_made() else { return Ok(()) };
        let mut much = cache.wants_writeback();
        let mut first = None;
        // Those that were written are younger then, and the next are the oldest.
        loop {
            let before = if much { Some(now) } else { now.checked_sub(expire) };
            let some = before.map_or(Vec::new(), |before| writer.dirty_files().oldest_some(before));
            let dirty = cache.dirty_bytes();
            let flushed = self.flush_some(cache, &some, (now, expire), &mut much);
            if let Err(error) = flushed {
                first.get_or_insert(error);
            }
            // What cannot be written is young again as well, and tried in the next tick.
            let may_be_again = much || expire.is_zero();
            if some.is_empty() || (may_be_again && cache.dirty_bytes() >= dirty) {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Writes those of some files that are due, and the others as long as `much` is dirty.
    fn flush_some(
        &self,
        cache: &extant_iomap::Cache,
        some: &[Arc<Node>],
        (now, expire): (Duration, Duration),
        much: &mut bool,
    ) -> Result<()> {
        let mut first = None;
        for node in some {
            let since = node.file_in_use().and_then(FileState::listed_since);
            let is_due = since.is_some_and(|since| now.saturating_sub(since) >= expire);
            if !is_due && !*much {
                break; // Those that follow are younger.
            }
            let mut flushed = self.absorb_maps(node);
            if is_due {
                flushed = self.flush_file(node, u64::MAX).and(flushed);
            }
            // In large pieces: to be on the heels of somebody who writes is slow for both.
            for _ in 0..STEPS_MOST {
                *much = *much && cache.wants_more_writeback();
                let is_dirty = node.file_in_use().is_some_and(|file| file.cache.is_dirty());
                if !*much || !is_dirty || flushed.is_err() {
                    break;
                }
                flushed = self.flush_file(node, STEP).and(flushed);
            }
            if let Err(error) = flushed {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Makes data durable that was written in place.
    pub(crate) fn flush_device(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        self.volume().flush_in_place(writer.dirty_files().last_in_place())
    }
}

impl Sharer for Mount {
    fn relieve_others(&self) -> bool {
        let (Ok(writer), Some(fs)) = (self.writer(), self.fs()) else { return false };
        // Who asks may have locks of another mount, so he does not wait for a thaw of this one.
        let Some(_inside) = writer.try_enter() else { return false };
        let oldest = writer.dirty_files().oldest(Duration::MAX);
        // What fails is counted for whoever syncs the file, and is tried again.
        oldest.is_some_and(|node| fs.flush_file(&node, STEP).is_ok())
    }
}

impl Inode {
    /// Makes every change of this inode so far durable, with all else that was changed before.
    ///
    /// # Errors
    ///
    /// As [`Fs::sync`].
    pub fn sync(&self) -> Result<()> {
        self.sync_contents(false)
    }

    /// Makes the contents durable, and what is needed to read them back: not times alone.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_contents(true)
    }

    /// Brings the contents to the device, where a sync would find them: not durable yet. For whoever
    /// wants to hear now whether they can be stored, and makes many files durable at once later.
    ///
    /// # Errors
    ///
    /// Those of the device, above all [`FsError::DeviceFull`]; what was not written stays in memory,
    /// dirty, and is tried again.
    ///
    /// # Cost
    ///
    /// What background writeback would do later. No commit, no flush.
    pub fn write_back(&self) -> Result<()> {
        self.fs().flush_file(self.node(), u64::MAX)
    }

    /// The contents of a regular file and, unless only `data` counts, its attributes.
    pub(crate) fn sync_contents(&self, data: bool) -> Result<()> {
        self.fs().absorb_maps(self.node())?;
        self.sync_stored(data)
    }

    /// [`sync_contents`](Self::sync_contents) without what maps may have been stored to.
    pub(super) fn sync_stored(&self, data: bool) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let node = self.node();
        let is_clean = || {
            let to_store = |file: &FileState| file.has_to_store() || file.is_mapped_writable();
            !node.file_in_use().is_some_and(to_store)
        };
        let Some(_inside) = writer.freeze_gate().enter_to_sync(is_clean) else {
            return writer.check_running();
        };
        let mut covered = false;
        let mut in_place = node.unsynced().in_place.load(Ordering::Acquire);
        if let Some(file) = node.file_in_use() {
            let mapper = FileMapper { fs: self.fs(), node, file };
            file.cache.write_back(&mapper, 0..u64::MAX >> 1)?;
            in_place = node.unsynced().in_place.load(Ordering::Acquire);
            // A transaction that is opened after the data was written flushes it with its commit.
            covered = self.fs().store_pending(&mapper, data)?;
        }
        // As Linux: whoever syncs a directory means the names that are in it, and those that its files
        // have elsewhere. Of a regular file what changed it counts.
        let tid = match node.is_regular() {
            true => node.unsynced().changed_by.load(Ordering::Acquire),
            false => writer.journal().running(),
        };
        if tid != 0 {
            writer.journal().commit(tid).map_err(FsError::from_journal)?;
        }
        if in_place > 0 {
            if covered && tid != 0 {
                writer.dirty_files().note_flushed(in_place);
            }
            self.volume().flush_in_place(in_place)?;
        }
        // Nothing of this file may have been left to write; that a mount stopped is said all the same.
        writer.check_running()?;
        if let Some(file) = node.file_in_use()
            && !file.has_to_store()
        {
            self.fs().note_clean(node, file);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use extant_testkit::require;

    use super::*;
    use crate::test_images::Image;

    #[test]
    fn a_file_that_two_find_dirty_at_once_is_listed_and_written_once() {
        let image = require!(Image::make("8M", &["-t", "ext4"], ""));
        let fs = image.open();
        fs.write("/file", "contents").unwrap();
        let node = Arc::clone(fs.resolve("/file").unwrap().node());
        let file = node.file_in_use().expect("it was written to");
        let files = fs.volume().writer().unwrap().dirty_files();
        assert_eq!(files.all().len(), 1);
        // The second has seen it unlisted as well, a little later.
        let since = file.listed_since().expect("it is dirty") + Duration::from_secs(1);
        files.insert(&node, file, since);
        assert_eq!(files.all().len(), 1);
        fs.flush_files().unwrap();
        assert!(files.all().is_empty(), "listed though it is clean");
        assert!(file.listed_since().is_none() && !file.has_to_store());
        // Nothing is left to do for a background that took the list before.
        let before = fs.writer_stats().unwrap();
        fs.flush_file(&node, u64::MAX).unwrap();
        assert!(files.all().is_empty());
        assert_eq!(fs.writer_stats().unwrap().journal.handles, before.journal.handles);
        drop(node);
        fs.unmount().unwrap();
    }
}
