//! Committing the running transaction.
//!
//! The order, on which crash safety depends: room in the log; shut the gate; encode; take the
//! images; open the gate for the next transaction; revoke blocks, descriptors and copies into the
//! log, and wait; flush; the commit block with FUA, and wait. Then the images count as committed,
//! and what the transaction freed may be reused.

use std::sync::atomic::Ordering;

use extant_base::{FsBlock, sabotage};
use extant_format::jbd2::{JournalSuperblock, Tid as RawTid};

use crate::client::{EncodeSink, Image, JournalError, Tid};
use crate::journal::{EIO, Journal, Log, Role, count};
use crate::set::Taken;
use crate::store::write_merged;
use crate::work::{Pinned, Work};
use crate::write::{Contents, WriteError, encode};

/// A locked transaction, which takes no more changes.
struct Locked {
    taken: Taken,
    /// Its images, in order of their blocks.
    images: Vec<(FsBlock, Image)>,
}

impl Journal {
    /// Commits the running transaction, unless it is empty.
    pub(crate) fn commit_running(&self, _role: &Role<'_>) -> Result<(), JournalError> {
        let mut work = self.work.lock();
        self.check()?;
        if !self.is_touched() {
            return Ok(());
        }
        let tid = self.running();
        self.make_room(&mut work, tid)?;
        let round = self.round();
        let Some(Locked { taken, images }) = self.lock_transaction(tid)? else { return Ok(()) };
        let early = self.options.mutations.release_freed_early;
        if early {
            self.client.committed(tid);
        }
        let written = match &self.log {
            Some(log) => self.write_transaction(log, &mut work, tid, &taken, &images),
            None => self.write_home(&images),
        };
        if let Err(error) = written {
            work.lost.extend(taken.blocks.into_iter().map(|(_, block)| block)); // K4
            return Err(error);
        }
        if self.log.is_some() {
            for block in &taken.revoked {
                if !sabotage("jbd2.commit.revoked-goes-home") {
                    work.table.remove(block);
                }
            }
            for ((number, image), (_, block)) in images.into_iter().zip(taken.blocks) {
                work.table.insert(number, Pinned { image, _block: block });
            }
        }
        count(&self.counters.commits, 1);
        if !early {
            // No home write is in flight: this thread makes them all.
            self.client.committed(tid);
        }
        self.publish(round, Some(tid));
        let half = work.len() / 2;
        if work.used > half || work.table.len() > self.options.pinned_blocks_max / 2 {
            // The transaction is durable whatever happens here; a failure aborts the journal.
            let _ = self.checkpoint_work(&mut work);
        }
        Ok(())
    }

    /// Makes room in the log (T3), bounds the memory, and restarts numbers when they wrap: 1 does
    /// not follow the largest number inside one log, since 0 is left out.
    fn make_room(&self, work: &mut Work, tid: Tid) -> Result<(), JournalError> {
        let third = work.len() / 3;
        let wraps = tid == 1 && work.last == Some(Tid::MAX);
        if work.used > third || wraps || work.table.len() > self.options.pinned_blocks_max / 2 {
            self.checkpoint_work(work)?;
        }
        Ok(())
    }

    /// Shuts the gate, lets the client encode, takes the images and begins the next transaction.
    /// `None` when nothing changed; the transaction stays open then.
    fn lock_transaction(&self, tid: Tid) -> Result<Option<Locked>, JournalError> {
        let shut = self.gate.shut();
        self.check()?;
        let mut sink = EncodeSink { set: &self.set, tid };
        if let Err(error) = self.client.encode(tid, &mut sink) {
            self.abort(error.errno(), &error.to_string());
        }
        self.check()?;
        let taken = self.set.take(self.log.is_some());
        self.reset_charges();
        if taken.blocks.is_empty() && taken.revoked.is_empty() {
            return Ok(None);
        }
        let images = taken.blocks.iter().map(|(number, block)| (*number, block.image())).collect();
        self.switch(tid);
        drop(shut);
        Ok(Some(Locked { taken, images }))
    }

    fn write_transaction(
        &self,
        log: &Log,
        work: &mut Work,
        tid: Tid,
        taken: &Taken,
        images: &[(FsBlock, Image)],
    ) -> Result<(), JournalError> {
        self.activate(log, work, tid)?;
        let mutations = &self.options.mutations;
        let (sec, nsec) = self.options.clock.now();
        let now = (u64::try_from(sec).unwrap_or(0), nsec);
        let time =
            if sabotage("jbd2.commit.time-goes-back") { now } else { now.max(work.last_commit) };
        let revoked = if mutations.skip_revokes { &[] } else { &*taken.revoked };
        let contents = Contents { tid, images, revoked, time };
        let room = work.len().saturating_sub(work.used).saturating_sub(1);
        let encoded = encode(&log.store.lock(), &work.place, room, &contents, mutations);
        let encoded = encoded.map_err(|error| self.write_failed(error))?;
        let (mut commit, mut done_first) = (Some(encoded.commit), false);
        let mut write_commit = || -> Result<(), JournalError> {
            let Some(commit) = commit.take() else { return Ok(()) };
            count(&self.counters.fua_writes, 1);
            let done = log.device.submit(vec![commit]).wait_all();
            done.map(drop).map_err(|error| self.failed(error))
        };
        if mutations.commit_block_first {
            write_commit()?;
            done_first = true;
        }
        let done = log.device.submit(encoded.body).wait_all();
        done.map_err(|error| self.failed(error))?;
        if !mutations.skip_flush_before_commit {
            if log.external && !sabotage("jbd2.commit.home-not-flushed") {
                // New data that this transaction makes reachable is on the other device.
                self.flush(&self.home)?;
            }
            self.flush(&log.device)?;
        }
        if !done_first {
            // An abort that came meanwhile keeps the transaction from counting as committed.
            if !sabotage("jbd2.commit.abort-not-seen") {
                self.check()?;
            }
            write_commit()?;
        }
        count(&self.counters.blocks_logged, images.len());
        count(&self.counters.revokes, revoked.len());
        count(&self.counters.log_blocks, usize::try_from(encoded.blocks).unwrap_or(usize::MAX));
        work.place.head = work.place.at(encoded.blocks);
        work.used = work.used.saturating_add(encoded.blocks);
        work.last = Some(tid);
        work.last_commit = time;
        self.clear_head(log, work)?;
        Ok(())
    }

    /// Before the first transaction, the superblock must say that there is something to replay.
    pub(crate) fn activate(
        &self,
        log: &Log,
        work: &mut Work,
        tid: Tid,
    ) -> Result<(), JournalError> {
        if work.active {
            return Ok(());
        }
        self.clear_old_head(log, work)?;
        let (sequence, start) = (RawTid(tid), work.place.head);
        let template = work.template.take();
        self.write_superblock(log, |now| {
            let errno = now.errno;
            JournalSuperblock { sequence, start, errno, ..template.unwrap_or(now) }
        })?;
        work.active = true;
        Ok(())
    }

    fn write_failed(&self, error: WriteError) -> JournalError {
        match error {
            WriteError::Device(error) => self.failed(error),
            other => {
                let why = other.to_string();
                self.abort(EIO, &why);
                JournalError::Aborted { errno: EIO, why }
            }
        }
    }

    /// Without a log: images go home, and a flush makes them durable.
    fn write_home(&self, images: &[(FsBlock, Image)]) -> Result<(), JournalError> {
        let blocks = images.iter().map(|(block, image)| {
            (self.block_size.offset_of(*block).unwrap_or(u64::MAX), (**image).as_ref())
        });
        write_merged(&self.home, blocks).map_err(|error| self.failed(error))?;
        count(&self.counters.blocks_logged, images.len());
        count(&self.counters.home_writes, images.len());
        self.flush(&self.home)
    }

    pub(crate) fn is_touched(&self) -> bool {
        self.touched.load(Ordering::Relaxed)
    }
}
