//! An open journal handle, and the changes made through it.
//!
//! # Place
//!
//! Below: `extant-jbd2` (handles, credits), `log` (the changes of the running transaction),
//! `volume`, `slot` and `node` (the objects). Above: allocator, superblock, orphans and quotas
//! change blocks and inodes through an [`Editor`]; code above the writer uses a
//! [`Txn`](crate::txn::Txn), which extends it.
//!
//! # Rules
//!
//! - T1. An operation opens one handle, after it took the content locks and before it changes
//!   anything, with credits for every block it may change.
//! - T2. Steps that can fail for want of space or quota come first. After the first change that is
//!   not undone, an error is damage or a device error, and [`Editor::fail`] aborts the journal.
//! - T3. At every point where the handle is closed or restarted, the file system is consistent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, Ino};
use extant_format::inode::InodeFlags;
use extant_jbd2::{Handle, Tid};

use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::log::{DirtyNode, Log};
use crate::node::{InodeData, Node};
use crate::slot::{BlockKind, Slot};
use crate::volume::Volume;

/// An open handle: all changes made through it belong to one transaction, unless it is restarted.
pub(crate) struct Editor<'v> {
    volume: &'v Volume,
    log: &'v Log,
    handle: Handle<'v>,
    /// Whether the handle must not be restarted.
    is_single: bool,
    /// Whether the handle publishes promised data.
    is_publishing: bool,
    /// Whether the handle must not fail for want of space.
    is_rescue: bool,
    /// Whether a fast commit can describe what the handle changes.
    is_described: bool,
}

impl<'v> Editor<'v> {
    /// Opens a handle with room for changing `credits` blocks. Waits while a transaction is being
    /// locked and for space in the log: call it before taking any lock below the content locks.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] after the end of the mount or an abort; `credits` beyond the limit of
    /// one transaction.
    pub(crate) fn begin(volume: &'v Volume, log: &'v Log, credits: u32) -> Result<Editor<'v>> {
        let editor = Editor::begin_described(volume, log, credits)?;
        Ok(Editor { is_described: false, ..editor }.opaque())
    }

    /// Opens a handle like [`begin`](Self::begin) for changes that fast commits can describe: of
    /// the fields of regular files, and new mappings, which the caller tells
    /// [`FastLog::mapped`](crate::fast::FastLog::mapped). All else must [`refuse`](Self::refuse).
    ///
    /// # Errors
    ///
    /// As [`begin`](Self::begin).
    pub(crate) fn begin_described(
        volume: &'v Volume,
        log: &'v Log,
        credits: u32,
    ) -> Result<Editor<'v>> {
        if log.is_closed() {
            return Err(FsError::ReadOnly);
        }
        let handle = log.journal().start(credits).map_err(FsError::from_journal)?;
        let (is_single, is_publishing, is_rescue, is_described) = (false, false, false, true);
        Ok(Editor { volume, log, handle, is_single, is_publishing, is_rescue, is_described })
    }

    /// Makes the transaction one that no fast commit describes.
    fn opaque(self) -> Editor<'v> {
        self.refuse(Refusal::Other);
        self
    }

    /// Makes the transaction one that no fast commit describes, and says why (H1).
    pub(crate) fn refuse(&self, why: Refusal) {
        self.log.fast().refuse(why);
    }

    pub(crate) fn volume(&self) -> &'v Volume {
        self.volume
    }

    pub(crate) fn log(&self) -> &'v Log {
        self.log
    }

    pub(crate) fn tid(&self) -> Tid {
        self.handle.tid()
    }

    /// Returns the number of blocks that this handle may still change.
    #[cfg(test)]
    pub(crate) fn credits_left(&self) -> u32 {
        self.handle.credits_left()
    }

    /// Adds `credits` to this handle if the transaction has room. Returns whether it has.
    pub(crate) fn extend(&mut self, credits: u32) -> bool {
        self.handle.extend(credits)
    }

    /// Returns whether this handle has, or can still get, room for `credits` blocks.
    pub(crate) fn has_room(&mut self, credits: u32) -> bool {
        self.handle.credits_left() >= credits || self.handle.extend(credits)
    }

    /// Makes sure of `credits` blocks: extends the handle, or closes it and opens another (T3).
    pub(crate) fn ensure(&mut self, credits: u32) -> Result<()> {
        if self.handle.credits_left() >= credits || self.handle.extend(credits) {
            return Ok(());
        }
        if self.is_single {
            let (wanted, free) = (u64::from(credits), u64::from(self.handle.credits_left()));
            let what = "journal blocks for one change";
            return Err(FsError::NoSpace { what, wanted, free });
        }
        self.handle.restart(credits).map_err(FsError::from_journal)?;
        if !self.is_described {
            // It may be another transaction now.
            self.refuse(Refusal::Other);
        }
        Ok(())
    }

    /// Makes [`ensure`](Self::ensure) fail from now on rather than restart the handle.
    pub(crate) fn never_restart(&mut self) {
        self.is_single = true;
    }

    /// Marks the handle as publishing promised data: blocks that the map needs for that may come
    /// out of the space kept for it. `take_pinned` does so as well.
    pub(crate) fn publishes(&mut self) {
        self.is_publishing = true;
    }

    pub(crate) fn is_publishing(&self) -> bool {
        self.is_publishing
    }

    /// Returns whether changes through the handle must not fail for want of space.
    pub(crate) fn is_rescue(&self) -> bool {
        self.is_rescue
    }

    /// Sets whether changes through the handle must not fail for want of space; returns the earlier
    /// value.
    pub(crate) fn set_rescue(&mut self, is_rescue: bool) -> bool {
        std::mem::replace(&mut self.is_rescue, is_rescue)
    }

    /// Changes metadata block `slot`, loading it if needed. `kind` tells how its checksum is made.
    pub(crate) fn edit<R>(
        &mut self,
        slot: &Arc<Slot>,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.claim_slot(slot)?;
        slot.change(kind, || self.volume.load_block(slot.number()), change)
    }

    /// Changes the block with this number like [`edit`](Self::edit).
    pub(crate) fn edit_block<R>(
        &mut self,
        block: FsBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let slot = self.volume.slot(block);
        self.edit(&slot, kind, change)
    }

    /// Gives a newly allocated block its first contents: zeros, then `fill`. Nothing is read.
    pub(crate) fn create_block<R>(
        &mut self,
        block: FsBlock,
        kind: BlockKind,
        fill: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let slot = self.volume.slot(block);
        self.claim_slot(&slot)?;
        Ok(slot.replace(kind, self.volume.block_size().len(), fill))
    }

    /// Removes a block that is no metadata block any more from the transaction; its copies in the
    /// log will not be replayed. The allocator frees it separately.
    pub(crate) fn forget(&mut self, block: FsBlock) -> Result<()> {
        self.refuse(Refusal::Blocks);
        self.handle.revoke(block).map_err(FsError::from_journal)
    }

    /// Puts the contents of a block of a file into the transaction. Costs one credit, and a copy.
    pub(crate) fn log_contents(&mut self, number: FsBlock, bytes: Vec<u8>) -> Result<()> {
        self.volume.allocate_on_device(number, 1)?;
        let block = self.log.logged().block(number);
        self.handle.claim(&block).map_err(FsError::from_journal)?;
        block.set(bytes);
        Ok(())
    }

    /// Adds a slot to the transaction without changing it yet. Its space on the device is allocated
    /// here, because a transaction that is being written must not fail for want of space.
    pub(crate) fn claim_slot(&mut self, slot: &Arc<Slot>) -> Result<()> {
        slot.allocate_once(|| self.volume.allocate_on_device(slot.number(), 1))?;
        self.handle.claim(slot).map_err(FsError::from_journal)
    }

    /// Changes an inode. It is encoded once, when the transaction locks.
    pub(crate) fn update<R>(
        &mut self,
        node: &Arc<Node>,
        change: impl FnOnce(&mut InodeData) -> R,
    ) -> Result<R> {
        let tid = self.tid();
        if node.dirty_tid.load(Ordering::Acquire) != tid {
            // The block is loaded and claimed before the inode counts as dirty, because nothing may
            // fail afterwards.
            let (block, offset) = self.volume.inode_place(node.ino())?;
            let slot = self.volume.slot(block);
            slot.get(|| self.volume.load_block(block))?;
            self.claim_slot(&slot)?;
            if node.dirty_tid.swap(tid, Ordering::AcqRel) != tid {
                let node = Arc::clone(node);
                self.log.dirty_nodes().push(DirtyNode { node, slot, offset });
            }
        }
        let round = self.handle.round();
        node.unsynced().changed_by.store(round, Ordering::Release);
        if self.is_described {
            let bytes = usize::from(self.volume.superblock().inode_size);
            self.log.fast().changed(node, round, bytes);
        }
        self.log.count_update(node.ino());
        // The Hurd keeps a block number in the field where other systems count changes.
        let keeps_translator =
            self.volume.superblock().creator_os == extant_format::superblock::OS_HURD;
        Ok(node.change(|data| {
            let stored = data.record.version;
            // Pending times of writes are older than those of this change.
            if let Some(file) = node.file_in_use() {
                file.store_stamp(data);
            }
            let record = &data.record;
            let (version, ctime, links) = (record.version, record.ctime, record.links);
            let result = change(data);
            let record = &mut data.record;
            if !record.flags.contains(InodeFlags::EA_INODE) {
                // On such file systems the field is not a counter.
                if keeps_translator {
                    record.version = stored;
                } else if record.version == version
                    && (record.ctime, record.links) != (ctime, links)
                {
                    record.version = version.wrapping_add(1);
                }
            }
            data.record.round_times();
            result
        }))
    }

    /// Creates the node of a newly allocated inode: `data` is its first state.
    pub(crate) fn create_node(&mut self, ino: Ino, data: InodeData) -> Result<Arc<Node>> {
        self.refuse(Refusal::Names);
        let (node, earlier) = self.volume.install_node(ino, data);
        let tid = self.tid();
        // A number that is given out again many times in one transaction has one record to be
        // written, and keeps the memory of one node.
        if let Some(earlier) = earlier
            && earlier.dirty_tid.load(Ordering::Acquire) == tid
            && self.log.dirty_nodes().replace(&earlier, &node)
        {
            node.dirty_tid.store(tid, Ordering::Release);
        }
        self.update(&node, |_| ())?;
        Ok(node)
    }

    /// Aborts the journal after an operation that can neither be finished nor undone: nothing of
    /// this transaction may reach the device (T2). Returns `error` for the caller to return.
    pub(crate) fn fail(&self, error: FsError) -> FsError {
        self.log.abort(&error);
        error
    }
}
