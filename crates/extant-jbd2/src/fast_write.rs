//! Fast commits, written: a few records at the end of the journal instead of whole blocks in the
//! log.
//!
//! # Order
//!
//! Shut the gate; let the client describe what changed; begin the next round; open the gate. Then
//! all blocks of the fast commit but the last into the area, and wait; flush, for the data that the
//! records refer to; the last block with FUA, and wait.
//!
//! # Invariants
//!
//! - J14. A fast commit counts when its tail is durable, and by then everything that its records
//!   refer to is durable: data was written before its transaction was described.
//! - J15. The area holds fast commits of one transaction, from its first block on, and is written to
//!   only while all transactions before that one are durable: the committing thread makes both
//!   kinds of commits (T2). A full commit of the transaction replaces them.
//! - J16. The first block of the area has a head and a tail and nothing else, within one sector.
//!   Linux and e2fsck refuse a journal with a good head and no good tail behind it, which is what
//!   a power cut can leave of a longer first fast commit; every later one they leave out.
//!
//! - J17. While the log is in use, the area begins with a head only if that is of the running
//!   transaction: a full commit is followed by a write that makes the area empty, before it counts
//!   for those who wait. Linux takes an older head for an empty area; e2fsck 1.47 fails, and drops
//!   the whole log. A cut between the two writes is the one moment at which it still does.
//!
//! - J18. While the area holds fast commits, the log holds no full ones: they are brought home first.
//!   e2fsck 1.47 applies records to the inodes that it read before it replayed the log.
//!
//! # Source
//!
//! Linux `Documentation/filesystems/ext4/journal.rst`, "Fast commits".

use extant_base::sabotage;
use extant_block::{AlignedBuffer, BlockDevice, Operation};
use extant_format::jbd2::{FcRecord, FcWriter, Tid as RawTid};

use crate::client::{Description, JournalError, Tid};
use crate::fast_area::{FastArea, FastSink};
use crate::journal::{EIO, Journal, Log, Role, count};
use crate::work::Work;

/// The blocks of one fast commit, and their place.
struct Planned {
    /// First block in the journal.
    start: u32,
    bytes: Vec<u8>,
}

impl Journal {
    /// Closes the current round by a fast commit. `None` when a full commit is needed; false when
    /// there was nothing to commit.
    pub(crate) fn commit_fast(&self, _role: &Role<'_>) -> Result<Option<bool>, JournalError> {
        let Some(log) = self.log.as_ref().filter(|_| self.makes_fast_commits) else {
            return Ok(None);
        };
        if self.is_full_wanted() || !self.client.is_describable() {
            return Ok(None);
        }
        let mut work = self.work.lock();
        self.check()?;
        if !self.is_touched() {
            return Ok(Some(false));
        }
        if !work.active {
            self.clear_old_head(log, &mut work)?;
        }
        let tid = self.running();
        let is_first = work.fast.as_ref().is_some_and(|area| area.of != Some(tid));
        if is_first {
            self.checkpoint_work(&mut work)?;
        }
        let (round, planned) = {
            let shut = self.gate.shut();
            self.check()?;
            let Some(area) = work.fast.as_mut() else { return Ok(None) };
            if area.closed == Some(tid) || self.is_full_wanted() {
                return Ok(None);
            }
            let mut sink = FastSink::new(self.block_size);
            let described = self.client.describe(tid, &mut sink);
            match described {
                Description::Nothing => return Ok(Some(false)),
                Description::Records if sink.is_whole => {}
                // What was described is lost to later fast commits of this transaction.
                Description::Records | Description::Full => {
                    area.closed = Some(tid);
                    return Ok(None);
                }
            }
            let Some(planned) = self.plan(area, tid, sink) else {
                area.closed = Some(tid);
                return Ok(None);
            };
            let round = self.round();
            self.next_round();
            drop(shut);
            (round, planned)
        };
        self.activate(log, &mut work, tid)?;
        let blocks = self.write_fast(log, &planned)?;
        count(&self.counters.fast_commits, 1);
        count(&self.counters.fast_blocks, blocks);
        self.publish(round, None);
        Ok(Some(true))
    }

    /// Makes the area empty, durably, before the log is in use for the first time (J17). Not when
    /// it holds fast commits that are still to be applied.
    pub(crate) fn clear_old_head(&self, log: &Log, work: &mut Work) -> Result<(), JournalError> {
        match &work.fast {
            Some(area) if area.closed.is_none() && area.of.is_none() => self.clear_head(log, work),
            _ => Ok(()),
        }
    }

    /// Makes the area empty, durably, if it is not: after a full commit, which replaces all fast
    /// commits in it (J17).
    pub(crate) fn clear_head(&self, log: &Log, work: &mut Work) -> Result<(), JournalError> {
        let Some(area) = work.fast.as_mut().filter(|area| area.is_headed) else { return Ok(()) };
        let offset = log.store.lock().offset_of(area.blocks.start);
        if let Some(offset) = offset
            && !sabotage("jbd2.fast.old-head-stays")
        {
            count(&self.counters.fua_writes, 1);
            let buffer = AlignedBuffer::zeroed(self.block_size.len());
            let done = log.device.submit(vec![Operation::Write { offset, buffer, fua: true }]);
            done.wait_all().map_err(|error| self.failed(error))?;
        }
        area.is_headed = false;
        area.of = None;
        area.used = 0;
        Ok(())
    }

    /// Takes room in the area for the records in `sink`; `None` when there is too little.
    fn plan(&self, area: &mut FastArea, tid: Tid, sink: FastSink) -> Option<Planned> {
        let mut bytes = Vec::new();
        if area.of != Some(tid) {
            area.of = Some(tid);
            area.used = 0;
            area.is_headed = true;
            let mut head = FcWriter::new(self.block_size);
            if !head.push(&FcRecord::Head { features: 0, tid: RawTid(tid) }) {
                return None;
            }
            bytes = head.finish(RawTid(tid));
        }
        let stale = self.options.mutations.stale_tail;
        let tail = if stale { tid.wrapping_sub(1) } else { tid };
        bytes.extend(sink.writer.finish(RawTid(tail)));
        let blocks = u32::try_from(bytes.len().checked_div(self.block_size.len())?).ok()?;
        if blocks > area.left() {
            return None;
        }
        let start = area.blocks.start.checked_add(area.used)?;
        area.used = area.used.saturating_add(blocks);
        Some(Planned { start, bytes })
    }

    /// Writes a fast commit. Returns its number of blocks.
    fn write_fast(&self, log: &Log, planned: &Planned) -> Result<usize, JournalError> {
        let block_bytes = self.block_size.len();
        let mut writes = Vec::new();
        for (block, bytes) in (planned.start..).zip(planned.bytes.chunks(block_bytes)) {
            let Some(offset) = log.store.lock().offset_of(block) else {
                // The journal's map was checked when it was opened.
                let why = format!("journal block {block} is not mapped");
                self.abort(EIO, &why);
                return Err(self.stop_error());
            };
            let mut buffer = AlignedBuffer::zeroed(block_bytes);
            for (to, from) in buffer.iter_mut().zip(bytes) {
                *to = *from;
            }
            writes.push(Operation::Write { offset, buffer, fua: false });
        }
        let count_all = writes.len();
        let last = writes.pop().map(|write| match write {
            Operation::Write { offset, buffer, .. } => {
                Operation::Write { offset, buffer, fua: !sabotage("jbd2.fast.tail-without-fua") }
            }
            other => other,
        });
        if !writes.is_empty() {
            let done = log.device.submit(writes).wait_all();
            done.map_err(|error| self.failed(error))?;
        }
        if !self.options.mutations.skip_flush_before_tail {
            self.flush(&log.device)?;
        }
        // An abort that came meanwhile keeps the fast commit from counting.
        self.check()?;
        count(&self.counters.fua_writes, 1);
        let done = log.device.submit(last.into_iter().collect()).wait_all();
        done.map(drop).map_err(|error| self.failed(error))?;
        Ok(count_all)
    }
}
