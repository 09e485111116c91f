//! Bringing dirty files to the device: on request, in time, and when too much is dirty.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use extant_sync::{Background, Mutex, Rank};

use super::{FileMapper, FileState};
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::mount::Fs;
use crate::node::Node;
use crate::txn::Txn;

/// How long data may be dirty before [`Fs::tick`] writes it.
const EXPIRE: Duration = Duration::from_secs(30);
/// What one caller writes for others at once, in bytes.
const STEP: u64 = 16 << 20;
/// How often the background thread looks what is due.
const PERIOD: Duration = Duration::from_secs(1);
/// Credits to store a size and times.
const SIZE_CREDITS: u32 = 8;

/// Files with something to store, in the order in which they became dirty.
pub(crate) struct DirtyFiles {
    queue: Mutex<VecDeque<(Arc<Node>, Duration)>>,
    /// Data was written over blocks in place and the device was not flushed since.
    unflushed: AtomicBool,
}

impl DirtyFiles {
    pub(crate) fn new() -> DirtyFiles {
        let queue = Mutex::new(Rank::Leaf, VecDeque::new());
        DirtyFiles { queue, unflushed: AtomicBool::new(false) }
    }

    /// Takes the oldest file, if it has been dirty since `before`.
    fn take(&self, before: Duration) -> Option<Arc<Node>> {
        let mut queue = self.queue.lock();
        if queue.front().is_none_or(|(_, since)| *since > before) {
            return None;
        }
        queue.pop_front().map(|(node, _)| node)
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.lock().len()
    }
}

impl Fs {
    /// The file has something to store from now on.
    pub(crate) fn note_dirty(&self, node: &Arc<Node>, file: &FileState) {
        if file.is_listed.load(Ordering::Acquire) || file.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Ok(writer) = self.volume().writer() {
            let since = writer.clock().monotonic();
            writer.dirty_files().queue.lock().push_back((Arc::clone(node), since));
        }
    }

    /// Writes back about `most` bytes of a file, and stores its size and times when that was all.
    pub(crate) fn flush_file(&self, node: &Arc<Node>, most: u64) -> Result<()> {
        let Some(file) = node.file_in_use() else { return Ok(()) };
        file.is_listed.store(false, Ordering::Release);
        let mapper = FileMapper { fs: self, node, file };
        let written = file.cache.write_back_some(&mapper, 0..u64::MAX >> 1, most);
        let stored = match written {
            Ok(_) => self.store_pending(&mapper, false).map(drop),
            Err(error) => Err(error),
        };
        if file.unflushed.load(Ordering::Acquire) {
            self.volume().writer()?.dirty_files().unflushed.store(true, Ordering::Release);
        }
        if file.cache.is_dirty() || file.stamp().is_some() || file.is_mapped_writable() {
            self.note_dirty(node, file);
        }
        stored
    }

    /// Stores the size, as far as the data in front of it is on the device, and times, unless only
    /// `data` counts. Whether there was anything.
    fn store_pending(&self, mapper: &FileMapper<'_>, data: bool) -> Result<bool> {
        let (node, file) = (mapper.node, mapper.file);
        if node.is_dead() || file.cache.is_closed() {
            return Ok(false);
        }
        let stored = node.with(|data| data.record.size);
        if file.size() == stored && (data || file.stamp().is_none()) {
            return Ok(false);
        }
        // A writer dirties before it raises the size: read in the other order.
        let _kept_out = file.cache.keep_writeback_out();
        let size = file.size();
        let size_to = if file.cache.is_dirty() { 0 } else { size };
        if size_to <= stored && (data || file.stamp().is_none()) {
            return Ok(false);
        }
        let mut txn = Txn::begin(self.volume(), SIZE_CREDITS)?;
        mapper.store_size(&mut txn, size_to)?;
        Ok(true)
    }

    /// Writes back something of the file that has been dirty longest. `false` when none is.
    pub(crate) fn relieve(&self) -> Result<bool> {
        let Ok(writer) = self.volume().writer() else { return Ok(false) };
        let Some(node) = writer.dirty_files().take(Duration::MAX) else { return Ok(false) };
        self.flush_file(&node, STEP)?;
        Ok(true)
    }

    /// Starts the thread that calls [`tick`](Fs::tick).
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`] when the system starts no thread.
    pub(crate) fn start_background(&self) -> Result<()> {
        let volume = Arc::downgrade(self.volume());
        let work = move || {
            let Some(volume) = volume.upgrade() else { return false };
            if volume.writer().is_ok_and(|writer| writer.is_closed()) {
                return false;
            }
            // What failed stays dirty, is counted for whoever syncs the file, and is tried again.
            let _ = Fs::of(volume).tick();
            true
        };
        let started = Background::start("extant-flush", PERIOD, work);
        let what = "background: the system starts no thread; set it to false and call `tick`";
        let background = started.map_err(|_| FsError::InvalidArgument { what })?;
        self.volume().writer()?.set_background(background);
        Ok(())
    }

    /// Called before a write, without locks: when too much is dirty, whoever makes more writes some of
    /// it first.
    pub(crate) fn balance_dirty(&self) -> Result<()> {
        let Some(cache) = self.volume().page_cache_made() else { return Ok(()) };
        if !cache.wants_writeback() {
            return Ok(());
        }
        self.volume().writer()?.wake_background();
        // Each round writes a step, so this ends; when others dirty as fast, they wait as well.
        for _ in 0..64 {
            if !cache.is_over_limit() || !self.relieve()? {
                break;
            }
        }
        Ok(())
    }

    /// Writes back every file that is dirty now.
    pub(crate) fn flush_files(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let mut first = None;
        for _ in 0..writer.dirty_files().len() {
            let Some(node) = writer.dirty_files().take(Duration::MAX) else { break };
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
        let now = writer.clock().monotonic();
        for _ in 0..writer.dirty_files().len() {
            let wants =
                self.volume().page_cache_made().is_some_and(|cache| cache.wants_writeback());
            let before = if wants { Some(Duration::MAX) } else { now.checked_sub(EXPIRE) };
            let Some(node) = before.and_then(|before| writer.dirty_files().take(before)) else {
                break;
            };
            let absorbed = self.absorb_maps(&node);
            self.flush_file(&node, u64::MAX).and(absorbed)?;
        }
        Ok(())
    }

    /// Makes data durable that was written in place and that no commit has covered since.
    pub(crate) fn flush_device(&self) -> Result<()> {
        let Ok(writer) = self.volume().writer() else { return Ok(()) };
        let unflushed = &writer.dirty_files().unflushed;
        if unflushed.swap(false, Ordering::AcqRel)
            && let Err(error) = self.volume().device().flush()
        {
            unflushed.store(true, Ordering::Release);
            return Err(FsError::Device(error));
        }
        Ok(())
    }
}

impl Inode {
    /// Makes the contents durable, and what is needed to read them back: not times alone.
    ///
    /// # Errors
    ///
    /// As [`sync`](Self::sync).
    pub fn sync_data(&self) -> Result<()> {
        self.sync_contents(true)
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
        let mut flushes = false;
        if let Some(file) = node.file_in_use() {
            let mapper = FileMapper { fs: self.fs(), node, file };
            file.cache.write_back(&mapper, 0..u64::MAX >> 1)?;
            // A transaction that is opened after the data was written flushes it with its commit.
            let covered = self.fs().store_pending(&mapper, data)?;
            flushes = file.unflushed.swap(false, Ordering::AcqRel) && !covered;
        }
        let tid = node.changed_tid.load(Ordering::Acquire);
        if tid != 0 {
            writer.journal().commit(tid).map_err(FsError::from_journal)?;
        }
        if flushes && let Err(error) = self.volume().device().flush() {
            if let Some(file) = node.file_in_use() {
                file.unflushed.store(true, Ordering::Release);
            }
            return Err(FsError::Device(error));
        }
        Ok(())
    }
}
