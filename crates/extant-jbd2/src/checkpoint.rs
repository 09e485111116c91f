//! Checkpoints: writing committed blocks to their final places ("home").
//!
//! # Invariants
//!
//! - K1. The table holds the newest committed version of every block with a copy in the log that a
//!   later transaction did not revoke. Only these are written home (J1).
//! - K2. Log space is released after the home writes are flushed and the tail in the journal
//!   superblock is durable, in that order (J2).
//! - K3. An image that is not home is held together with its block, so that the client cannot
//!   forget the block and read an old version.
//! - K4. The same holds for the blocks of a transaction that could not be written: they exist only
//!   in memory, for readers after an abort.

use extant_base::sabotage;
use extant_format::jbd2::{JournalSuperblock, Tid as RawTid};

use crate::client::{JournalError, tid_next};
use crate::error::JournalReadError;
use crate::journal::{EIO, Journal, Log, Role, count};
use crate::store::write_merged;
use crate::work::Work;

impl Journal {
    /// Writes all committed blocks home; for callers outside a commit.
    pub(crate) fn checkpoint_all(&self, _role: &Role<'_>) -> Result<(), JournalError> {
        self.checkpoint_work(&mut self.work.lock())
    }

    /// Writes the table of committed blocks home, sorted and merged, and releases the log (K2).
    pub(crate) fn checkpoint_work(&self, work: &mut Work) -> Result<(), JournalError> {
        let Some(log) = &self.log else { return Ok(()) };
        if work.used == 0 {
            return Ok(());
        }
        self.check()?;
        let mutations = &self.options.mutations;
        if mutations.tail_before_home {
            self.write_tail(log, work)?;
        }
        let blocks = work.table.iter().map(|(block, pinned)| {
            // A block past the end of all devices: the device refuses the write.
            let offset = self.block_size.offset_of(*block).unwrap_or(u64::MAX);
            (offset, (*pinned.image).as_ref())
        });
        write_merged(&self.home, blocks).map_err(|error| self.failed(error))?;
        count(&self.counters.home_writes, work.table.len());
        self.check()?;
        if !mutations.skip_checkpoint_flush {
            self.flush(&self.home)?;
        }
        if !work.goes_round && !sabotage("jbd2.checkpoint.log-goes-round") {
            work.place.head = work.place.log.start;
        }
        if !mutations.tail_before_home {
            self.write_tail(log, work)?;
        }
        work.used = 0;
        work.table.clear();
        self.set.forget_live();
        count(&self.counters.checkpoints, 1);
        Ok(())
    }

    /// Moves the tail to the head: the log is in use, and empty.
    fn write_tail(&self, log: &Log, work: &Work) -> Result<(), JournalError> {
        let sequence = RawTid(work.last.map_or_else(|| self.running(), tid_next));
        let start = work.place.head;
        self.write_superblock(log, |now| JournalSuperblock { sequence, start, ..now })
    }

    /// Changes the journal superblock and writes it with FUA, under its lock; a failure aborts.
    pub(crate) fn write_superblock(
        &self,
        log: &Log,
        change: impl FnOnce(JournalSuperblock) -> JournalSuperblock,
    ) -> Result<(), JournalError> {
        count(&self.counters.fua_writes, 1);
        let written = {
            let mut store = log.store.lock();
            let changed = change(store.superblock().clone());
            store.write_superblock(changed)
        };
        match written {
            Ok(()) => Ok(()),
            Err(JournalReadError::Device { source, .. }) => Err(self.failed(source)),
            Err(error) => {
                self.abort(EIO, &error.to_string());
                self.check()
            }
        }
    }

    /// Writes everything home and marks the log clean. Returns false when a handle was opened
    /// meanwhile.
    pub(crate) fn close_clean(&self, role: &Role<'_>) -> Result<bool, JournalError> {
        self.clean(role, || {
            self.set_closed();
            Ok(())
        })
    }

    /// Writes everything home and marks the log clean, then calls `when_clean` while there is no
    /// handle. Returns false, without the call, when the running transaction has changes by then.
    pub(crate) fn clean<E: From<JournalError>>(
        &self,
        _role: &Role<'_>,
        when_clean: impl FnOnce() -> Result<(), E>,
    ) -> Result<bool, E> {
        let mut work = self.work.lock();
        self.checkpoint_work(&mut work)?;
        let shut = self.gate.shut();
        self.check()?;
        if self.is_touched() {
            return Ok(false);
        }
        match &self.log {
            Some(log) if work.active || log.store.lock().superblock().is_dirty() => {
                let (sequence, head) = (RawTid(self.running()), work.place.head);
                let clean = |now| JournalSuperblock { start: 0, sequence, head, ..now };
                self.write_superblock(log, clean)?;
                work.active = false;
            }
            Some(_) => {}
            None => self.flush(&self.home)?,
        }
        when_clean()?;
        drop(shut);
        Ok(true)
    }
}
