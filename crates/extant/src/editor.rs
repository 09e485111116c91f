//! One open handle of the journal, and what its transaction must encode.
//!
//! # Place
//!
//! Below: `extant-jbd2` (handles, credits), `log` (what the running transaction changed), `volume`, `slot` and
//! `node` (the objects). Above: allocator, superblock, orphans and quotas change blocks and inodes through an
//! [`Editor`]; everything above the writer has a [`Txn`](crate::txn::Txn), which is one and more.
//!
//! # Rules
//!
//! - T1. An operation opens one handle, after it took the content locks and before it changes
//!   anything, with credits for every block it may change.
//! - T2. What can fail by lack of space or quota is done first. After the first change that is not
//!   undone, an error is damage or a device error, and [`Editor::fail`] aborts the journal.
//! - T3. At every point where the handle is closed or restarted, the file system is consistent.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, Ino};
use extant_format::inode::InodeFlags;
use extant_jbd2::{Handle, Tid};

use crate::error::{FsError, Result};
use crate::log::{DirtyNode, Log};
use crate::node::{InodeData, Node};
use crate::slot::{BlockKind, Slot};
use crate::volume::Volume;

/// In the superblock's `creator_os`: made for the Hurd.
const OS_HURD: u32 = 1;

/// An open handle: what is changed through it is one transaction's.
pub(crate) struct Editor<'v> {
    volume: &'v Volume,
    log: &'v Log,
    handle: Handle<'v>,
    /// All in one transaction, or nothing.
    is_single: bool,
    /// It brings promised data into a map.
    is_publishing: bool,
    /// It must not fail for want of space.
    is_rescue: bool,
}

impl<'v> Editor<'v> {
    /// Opens a handle with room for changing `credits` blocks. Waits while a transaction is being
    /// locked and for space in the log: call it before taking anything below the content locks.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`] after the end of the mount or an abort; `credits` beyond what one transaction
    /// can hold.
    pub(crate) fn begin(volume: &'v Volume, log: &'v Log, credits: u32) -> Result<Editor<'v>> {
        if log.is_closed() {
            return Err(FsError::ReadOnly);
        }
        let handle = log.journal().start(credits).map_err(FsError::from_journal)?;
        Ok(Editor { volume, log, handle, is_single: false, is_publishing: false, is_rescue: false })
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

    /// Blocks that this handle may still change.
    #[cfg(test)]
    pub(crate) fn credits_left(&self) -> u32 {
        self.handle.credits_left()
    }

    /// Room for `credits` more blocks in this transaction, if there is any.
    pub(crate) fn extend(&mut self, credits: u32) -> bool {
        self.handle.extend(credits)
    }

    /// Whether this handle has, or can still get, room for `credits` blocks.
    pub(crate) fn has_room(&mut self, credits: u32) -> bool {
        self.handle.credits_left() >= credits || self.handle.extend(credits)
    }

    /// Makes sure of `credits` blocks: extends, or closes the handle and opens another (T3).
    pub(crate) fn ensure(&mut self, credits: u32) -> Result<()> {
        if self.handle.credits_left() >= credits || self.handle.extend(credits) {
            return Ok(());
        }
        if self.is_single {
            let (wanted, free) = (u64::from(credits), u64::from(self.handle.credits_left()));
            let what = "journal blocks for one change";
            return Err(FsError::NoSpace { what, wanted, free });
        }
        self.handle.restart(credits).map_err(FsError::from_journal)
    }

    /// From now on [`ensure`](Self::ensure) fails rather than to let the transaction end.
    pub(crate) fn never_restart(&mut self) {
        self.is_single = true;
    }

    /// This handle brings promised data into a map: blocks that the map needs for that may come out
    /// of what was set aside for it. Said by `take_pinned`, too.
    pub(crate) fn publishes(&mut self) {
        self.is_publishing = true;
    }

    pub(crate) fn is_publishing(&self) -> bool {
        self.is_publishing
    }

    /// Whether what is done now must not fail for want of space.
    pub(crate) fn is_rescue(&self) -> bool {
        self.is_rescue
    }

    /// Says whether what is done from now on must not fail for want of space; returns what was said before.
    pub(crate) fn set_rescue(&mut self, is_rescue: bool) -> bool {
        std::mem::replace(&mut self.is_rescue, is_rescue)
    }

    /// Changes metadata block `slot`, which is loaded if need be. `kind` says how it is sealed.
    pub(crate) fn edit<R>(
        &mut self,
        slot: &Arc<Slot>,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        self.claim_slot(slot)?;
        slot.change(kind, || self.volume.load_block(slot.number()), change)
    }

    /// [`edit`](Self::edit) of the block with this number.
    pub(crate) fn edit_block<R>(
        &mut self,
        block: FsBlock,
        kind: BlockKind,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R> {
        let slot = self.volume.slot(block);
        self.edit(&slot, kind, change)
    }

    /// Gives a block that was just allocated its first contents: zeroes, then `fill`. Nothing is
    /// read.
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

    /// A metadata block is no longer one: it leaves the transaction, and a copy in the log will
    /// not be replayed. Freeing it is the allocator's.
    pub(crate) fn forget(&mut self, block: FsBlock) -> Result<()> {
        self.handle.revoke(block).map_err(FsError::from_journal)
    }

    /// Takes a slot into the transaction without changing it yet. A transaction must not fail for want
    /// of room where the device lies once it has begun to be written: so its blocks get room here.
    pub(crate) fn claim_slot(&mut self, slot: &Arc<Slot>) -> Result<()> {
        slot.allocate_once(|| self.volume.allocate_on_device(slot.number(), 1))?;
        self.handle.claim(slot).map_err(FsError::from_journal)
    }

    /// Changes an inode. It is encoded when the transaction locks, however often it changes.
    pub(crate) fn update<R>(
        &mut self,
        node: &Arc<Node>,
        change: impl FnOnce(&mut InodeData) -> R,
    ) -> Result<R> {
        let tid = self.tid();
        if node.dirty_tid.load(Ordering::Acquire) != tid {
            // Loaded and claimed before it counts as dirty: afterwards nothing can fail.
            let (block, offset) = self.volume.inode_place(node.ino())?;
            let slot = self.volume.slot(block);
            slot.get(|| self.volume.load_block(block))?;
            self.claim_slot(&slot)?;
            if node.dirty_tid.swap(tid, Ordering::AcqRel) != tid {
                let node = Arc::clone(node);
                self.log.dirty_nodes().push(DirtyNode { node, slot, offset });
            }
        }
        node.unsynced().changed_by.store(tid, Ordering::Release);
        self.log.count_update(node.ino());
        // Where the Hurd keeps the number of a block, other systems count changes.
        let keeps_translator = self.volume.superblock().creator_os == OS_HURD;
        Ok(node.change(|data| {
            // Times of writes are older than those of this change.
            if let Some(file) = node.file_in_use() {
                file.store_stamp(data);
            }
            let version = data.record.version;
            let result = change(data);
            if keeps_translator && !data.record.flags.contains(InodeFlags::EA_INODE) {
                data.record.version = version;
            }
            data.record.round_times();
            result
        }))
    }

    /// The node of an inode that was just allocated: `data` is its first state.
    pub(crate) fn create_node(&mut self, ino: Ino, data: InodeData) -> Result<Arc<Node>> {
        let node = self.volume.install_node(ino, data);
        self.update(&node, |_| ())?;
        Ok(node)
    }

    /// The operation cannot be finished and cannot be undone: nothing of this transaction may reach
    /// the device (T2). Returns `error` for the caller to return.
    pub(crate) fn fail(&self, error: FsError) -> FsError {
        self.log.abort(&error);
        error
    }
}
