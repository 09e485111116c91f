//! Writeback of dirty files: on request, periodically, and when too much is dirty.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use extant_base::{Ino, sabotage};

use super::FileMapper;
use crate::error::{FsError, Result};
use crate::fs::{Fs, Mount};
use crate::inode::Inode;
use crate::node::{FileState, Node};
use crate::shared_cache::Sharer;
use crate::times::{LAZY_EXPIRE, LAZY_MAX};
use crate::txn::Txn;
use crate::writer::{Load, Turn};

/// Bytes that a thread over the dirty limit writes back at once.
const STEP: u64 = 16 << 20;
/// Number of steps spent on one file before the next one.
const STEPS_MOST: u32 = 64;
/// Credits to store a size and times.
const SIZE_CREDITS: u32 = 8;
/// Number of files whose times a reader stores when too many are only in memory.
const EXCESS_STEP: usize = 2;

/// What is to be stored of a file when its data was written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Store {
    /// Its size, and its times.
    Times,
    /// Its size; its times alone only on a mount that does not keep them in memory.
    Contents,
}

impl Fs {
    /// Lists a file that has something to store.
    pub(crate) fn note_dirty(&self, node: &Arc<Node>, file: &FileState) {
        // This fence orders the caller's change before this check, and the thread that takes a file
        // off the list has another fence between that and its check. One of them sees the other.
        fence(Ordering::SeqCst);
        let comes_to_others = || {
            file.is_listed_lazily()
                && file.has_contents_to_store()
                && !sabotage("extant.times.data-waits-with-times")
        };
        if file.listed_since().is_some() && !comes_to_others() {
            return;
        }
        if let Ok(writer) = self.volume().writer() {
            let (files, since) = (writer.dirty_files(), writer.clock().monotonic());
            // A size that is not stored is contents, and not for the inode's lock to tell under a
            // leaf: whoever raises it has dirtied pages before.
            let has_size = || node.try_with(|data| data.record.size) == Some(file.size());
            let may_wait = files.is_lazy() && !file.has_contents_to_store() && has_size();
            files.insert(node, file, since, may_wait);
        }
    }

    /// Takes a file off the list that seems to have nothing to store; then checks again, because a
    /// writer may have come in between.
    pub(crate) fn note_clean(&self, node: &Arc<Node>, file: &FileState) {
        if let Ok(writer) = self.volume().writer() {
            writer.dirty_files().remove(node, file);
            fence(Ordering::SeqCst);
            if file.has_to_store() {
                self.note_dirty(node, file);
            }
        }
    }

    /// Writes back about `most` bytes of a file, and stores its size and, as `store` says, its times
    /// if no dirty data is left.
    pub(crate) fn flush_file(&self, node: &Arc<Node>, most: u64, store: Store) -> Result<()> {
        let Some(file) = node.file_in_use() else { return Ok(()) };
        let _inside = self.volume().writer()?.enter();
        let mapper = FileMapper { fs: self, node, file };
        let writer = self.volume().writer()?;
        let before = writer.clock().monotonic();
        let written = file.cache.write_back_some(&mapper, 0..u64::MAX >> 1, most);
        let stored = match written {
            Ok(written) => {
                let time = writer.clock().monotonic().saturating_sub(before);
                writer.pace().measure(written, time);
                let data = store == Store::Contents && writer.dirty_files().is_lazy();
                self.store_pending(&mapper, data).map(drop)
            }
            Err(error) => {
                let (device, failures) = (self.device().describe(), file.cache.error_count());
                // The log gets the failures whose count is a power of two, so that a failing device
                // does not flood it.
                if failures.max(1).is_power_of_two() {
                    let ino = node.ino();
                    log::warn!(
                        "{device}: inode {ino}: writeback failed, failure {failures}: {error}"
                    );
                }
                Err(error)
            }
        };
        // A file that is still dirty is listed anew, behind the others.
        self.note_clean(node, file);
        stored
    }

    /// Stores the size up to which data is on the device, and the times unless `data` is set.
    /// Returns whether there was anything to store.
    fn store_pending(&self, mapper: &FileMapper<'_>, data: bool) -> Result<bool> {
        let (node, file) = (mapper.node, mapper.file);
        let stored = node.with(|data| data.record.size);
        if file.size() == stored && (data || !file.has_times()) {
            return Ok(false);
        }
        // A writer dirties pages before it raises the size, so this reads them in the other order.
        let _kept_out = file.cache.keep_writeback_out();
        if file.cache.has_ended() {
            return Ok(false);
        }
        let size = file.size();
        let size_to = if file.cache.is_dirty() { 0 } else { size };
        if size_to <= stored && (data || !file.has_times()) {
            return Ok(false);
        }
        let mut txn = Txn::begin_described(self.volume(), SIZE_CREDITS)?;
        mapper.store_size(&mut txn, size_to)?;
        Ok(true)
    }

    /// Writes back some of the file that has been dirty longest; if no file is dirty, some of
    /// another mount that shares the cache. Returns false if there is nothing.
    pub(crate) fn relieve(&self) -> Result<bool> {
        let Ok(writer) = self.volume().writer() else { return Ok(false) };
        let Some(node) = writer.dirty_files().oldest(Duration::MAX) else {
            return Ok(self.volume().relieve_sharers());
        };
        self.flush_file(&node, writer.pace().duty(STEP), Store::Contents)?;
        Ok(true)
    }

    /// Called before `bytes` are written to file `ino`, without locks. Over the dirty limit the
    /// caller writes back some data first; below it, a writer that is ahead of others waits for
    /// them. Others wait for a writer that wrote back while the returned [`Turn`] exists.
    pub(crate) fn balance_dirty(&self, ino: Ino, bytes: u64) -> Result<Option<Turn<'_>>> {
        let Some(cache) = self.volume().page_cache_made() else { return Ok(None) };
        let writer = self.volume().writer()?;
        let load = self.load(cache);
        if load == Load::Light && !cache.wants_writeback() {
            return Ok(None);
        }
        writer.wake_background();
        if load != Load::Light {
            let is_much = || self.load(cache) == Load::Paced && !cache.is_over_limit();
            writer.pace().pause(ino, bytes, (cache.options(), writer.clock()), is_much);
        }
        // Each round writes back one step, so this ends; other writers that dirty as fast wait as
        // well. A file that cannot be written goes to the end of the list, and does not make this
        // write fail as long as other files make room.
        let (mut turn, mut failed) = (None, None);
        for _ in 0..64 {
            if !cache.is_over_limit() {
                return Ok(turn);
            }
            if turn.is_none() && load != Load::Light {
                turn = Some(writer.pace().begin(ino, cache.options(), writer.clock()));
            }
            match self.relieve() {
                Ok(true) => failed = None,
                Ok(false) => return Ok(turn),
                Err(error) if failed.is_some() => return Err(error),
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(turn), Err)
    }

    /// Returns how much is dirty. Without a background writer a pause would gain nothing.
    pub(crate) fn load(&self, cache: &extant_iomap::Cache) -> Load {
        match self.volume().writer() {
            Ok(writer) if writer.has_background() => {
                writer.pace().load(cache.dirty_bytes(), cache.options(), writer.clock())
            }
            _ => Load::Light,
        }
    }

    /// Writes back every file that is dirty now.
    pub(crate) fn flush_files(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let mut first = None;
        for node in writer.dirty_files().all() {
            // An error of one file does not keep the others from the device.
            let absorbed = self.absorb_maps(&node);
            if let Err(error) = self.flush_file(&node, u64::MAX, Store::Times).and(absorbed) {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Writes back files that have been dirty for long, and more if much is dirty.
    pub(crate) fn flush_due(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let (now, expire) = (writer.clock().monotonic(), writer.dirty_files().expire());
        let Some(cache) = self.volume().page_cache_made() else { return Ok(()) };
        // While writers pause, background writeback continues.
        let pauses = writer.pace().is_contended() && cache.wants_more_writeback();
        let mut much = cache.wants_writeback() || pauses;
        let mut first = self.store_old_times(now).err();
        // Files that were written get a new age, so the next ones are the oldest.
        loop {
            let before = if much { Some(now) } else { now.checked_sub(expire) };
            let some = before.map_or(Vec::new(), |before| writer.dirty_files().oldest_some(before));
            let dirty = cache.dirty_bytes();
            let flushed = self.flush_some(cache, &some, (now, expire), &mut much);
            if let Err(error) = flushed {
                first.get_or_insert(error);
            }
            // A file that could not be written gets a new age as well, and is tried in the next
            // tick.
            let may_be_again = much || expire.is_zero();
            if some.is_empty() || (may_be_again && cache.dirty_bytes() >= dirty) {
                break;
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Writes back those of some files that are due, and the others while `much` data is dirty.
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
                flushed = self.flush_file(node, u64::MAX, Store::Contents).and(flushed);
            }
            // Large pieces: following a writer closely would slow both down.
            for _ in 0..STEPS_MOST {
                *much = *much && cache.wants_more_writeback();
                let is_dirty = node.file_in_use().is_some_and(|file| file.cache.is_dirty());
                if !*much || !is_dirty || flushed.is_err() {
                    break;
                }
                flushed = self.flush_file(node, STEP, Store::Contents).and(flushed);
            }
            if let Err(error) = flushed {
                first.get_or_insert(error);
            }
        }
        first.map_or(Ok(()), Err)
    }

    /// Stores times that were only in memory for long enough, and those of the oldest files if
    /// there are too many.
    fn store_old_times(&self, now: Duration) -> Result<()> {
        let files = self.volume().writer()?.dirty_files();
        if !files.is_lazy() {
            return Ok(());
        }
        let due = now.checked_sub(LAZY_EXPIRE).map_or(Vec::new(), |before| files.times_of(before));
        let mut first = None;
        for node in due {
            if let Err(error) = self.flush_file(&node, 0, Store::Times) {
                first.get_or_insert(error);
            }
        }
        // Bounded, for readers may note more meanwhile.
        for _ in 0..LAZY_MAX / EXCESS_STEP {
            if first.is_some() || files.times_count() <= LAZY_MAX {
                break;
            }
            first = self.store_excess_times().err();
        }
        first.map_or(Ok(()), Err)
    }

    /// Stores the times of a few files if those of too many are only in memory. The caller holds no
    /// lock.
    pub(crate) fn store_excess_times(&self) -> Result<()> {
        let files = self.volume().writer()?.dirty_files();
        if files.times_count() <= LAZY_MAX {
            return Ok(());
        }
        for node in files.times_of(Duration::MAX).iter().take(EXCESS_STEP) {
            self.flush_file(node, 0, Store::Times)?;
        }
        Ok(())
    }

    /// Flushes the device, for data that was overwritten in place.
    pub(crate) fn flush_device(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        self.volume().flush_in_place(writer.dirty_files().last_in_place())
    }
}

impl Sharer for Mount {
    fn relieve_others(&self) -> bool {
        let (Ok(writer), Some(fs)) = (self.writer(), self.fs()) else { return false };
        // The caller may hold locks of another mount, so it must not wait for a thaw of this one.
        let Some(_inside) = writer.try_enter() else { return false };
        let oldest = writer.dirty_files().oldest(Duration::MAX);
        // An error is counted for the next sync of the file, and the write is tried again.
        oldest.is_some_and(|node| fs.flush_file(&node, STEP, Store::Contents).is_ok())
    }
}

impl Inode {
    /// Makes every change of this inode so far durable, together with all earlier changes of the
    /// file system.
    ///
    /// # Errors
    ///
    /// As [`Fs::sync`].
    pub fn sync(&self) -> Result<()> {
        self.sync_contents(false)
    }

    /// Makes the contents durable, with the metadata needed to read them back, but not mere changes
    /// of times.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_contents(true)
    }

    /// Writes the dirty contents to the device without making them durable. For programs that want
    /// to learn early whether the contents can be stored, and make many files durable at once
    /// later.
    ///
    /// # Errors
    ///
    /// Those of the device, above all [`FsError::DeviceFull`]; data that was not written stays
    /// dirty in memory and is tried again.
    ///
    /// # Cost
    ///
    /// That of the background writeback that the call replaces. No commit, no flush.
    pub fn write_back(&self) -> Result<()> {
        self.fs().flush_file(self.node(), u64::MAX, Store::Contents)
    }

    /// Syncs the contents of a regular file and, unless `data` is set, its attributes.
    pub(crate) fn sync_contents(&self, data: bool) -> Result<()> {
        self.fs().absorb_maps(self.node())?;
        self.sync_stored(data)
    }

    /// Syncs like [`sync_contents`](Self::sync_contents), without collecting stores through memory
    /// maps first.
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
            // A transaction opened after the data was written makes the data durable with its
            // commit.
            covered = self.fs().store_pending(&mapper, data)?;
        }
        // As in Linux, a sync of a directory covers the names in it, and other names of its files.
        // For a regular file the changes of its own inode count.
        let round = match node.is_regular() {
            true => node.unsynced().changed_by.load(Ordering::Acquire),
            false => writer.journal().round(),
        };
        if round != 0 {
            writer.journal().sync(round).map_err(FsError::from_journal)?;
        }
        if in_place > 0 {
            if covered && round != 0 {
                writer.dirty_files().note_flushed(in_place);
            }
            self.volume().flush_in_place(in_place)?;
        }
        // The file may have nothing left to write, but an aborted mount is reported all the same.
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
        files.insert(&node, file, since, false);
        assert_eq!(files.all().len(), 1);
        fs.flush_files().unwrap();
        assert!(files.all().is_empty(), "listed though it is clean");
        assert!(file.listed_since().is_none() && !file.has_to_store());
        // Nothing is left to do for a background that took the list before.
        let before = fs.writer_stats().unwrap();
        fs.flush_file(&node, u64::MAX, Store::Times).unwrap();
        assert!(files.all().is_empty());
        assert_eq!(fs.writer_stats().unwrap().journal.handles, before.journal.handles);
        drop(node);
        fs.unmount().unwrap();
    }
}
