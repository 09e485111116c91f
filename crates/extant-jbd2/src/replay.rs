//! Replay onto the device.
//!
//! # Invariants
//!
//! - Y1. The log does not change before all its contents are durable at home, fast commits
//!   included: a crash at any write leaves a log that replays to the same.
//! - Y2. The clean log continues after the first incomplete transaction, so that no block of that
//!   one is ever mistaken for a new one (J9). Where damage is skipped, it continues after all that the
//!   log has room for.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use extant_base::{FsBlock, sabotage};
use extant_block::{AlignedBuffer, BlockDevice, DeviceError, Operation, SharedDevice};
use extant_format::jbd2::{JournalSuperblock, Tid as RawTid};

use crate::client::tid_next;
use crate::device::ReplayedDevice;
use crate::error::RecoveryError;
use crate::home::recover_damaged;
use crate::overlay::read_copy;
use crate::recovery::{DamagedBlocks, RecoveryOptions, Replay, recover};
use crate::store::{LogStore, WRITE_BYTES_MAX};

/// A log whose blocks were written home, and which is still marked as dirty until
/// [`finish`](Self::finish).
#[must_use = "the log stays in use until `finish`"]
pub struct RecoveredLog {
    store: LogStore,
    home: SharedDevice,
    replay: Replay,
    /// Damage is skipped, so that the end of the log may be damage that looks like one.
    skips: bool,
}

/// Writes the blocks of the log home, in ascending order, and flushes. The log itself is unchanged:
/// the client now applies [`Replay::fast_commits`], records [`Replay::errno`] in its own superblock
/// if it is not 0, and calls [`RecoveredLog::finish`]. Repeating all of it after a crash gives the
/// same result. With a clean log nothing is written.
///
/// `check` sees the device as it will be, and may refuse: then nothing was written. It is not
/// called when there is nothing to write. `watch` is called with the number of blocks written and
/// their total, and can stop the replay.
///
/// # Errors
///
/// As [`recover`], and those of `check`: then nothing was written. [`RecoveryError::Write`] when
/// the device refused a write; [`RecoveryError::Stopped`] when `watch` stopped it.
pub fn recover_to_device<E: From<RecoveryError>>(
    store: LogStore,
    home: &SharedDevice,
    options: &RecoveryOptions,
    check: impl FnOnce(SharedDevice, &Replay) -> Result<(), E>,
    watch: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<RecoveredLog, E> {
    let replay = match options.damaged {
        DamagedBlocks::Refuse => recover(store.reader(), store.superblock(), options)?,
        DamagedBlocks::Skip => {
            recover_damaged(store.reader(), store.superblock(), options.fs_blocks, &**home)?
        }
    };
    if replay.dirty || replay.errno != 0 {
        let log = Arc::clone(store.reader());
        let blocks = Arc::new(replay.blocks.clone());
        check(Arc::new(ReplayedDevice::new(SharedDevice::clone(home), log, blocks)), &replay)?;
    }
    if !replay.blocks.is_empty() {
        write_blocks(&store, home, &replay, watch)?;
        home.flush().map_err(RecoveryError::Write)?;
    }
    let skips = options.damaged == DamagedBlocks::Skip;
    Ok(RecoveredLog { store, home: SharedDevice::clone(home), replay, skips })
}

/// Large writes of neighbouring blocks, each read from the log just before.
fn write_blocks(
    store: &LogStore,
    home: &SharedDevice,
    replay: &Replay,
    watch: &dyn Fn(u64, u64) -> ControlFlow<()>,
) -> Result<(), RecoveryError> {
    let count = |blocks: usize| u64::try_from(blocks).unwrap_or(u64::MAX);
    let (mut done, total) = (0u64, count(replay.blocks.len()));
    let block_size = store.block_size();
    let bytes = block_size.len();
    let run_max = WRITE_BYTES_MAX.checked_div(bytes).unwrap_or(1).max(1);
    let mut entries = replay.blocks.iter().peekable();
    while let Some((first, location)) = entries.next() {
        let mut run = vec![location];
        while run.len() < run_max
            && let next = u64::try_from(run.len()).ok().and_then(|len| first.checked_add(len))
            && let Some((_, location)) = entries.next_if(|(block, _)| Some(*block) == next)
        {
            run.push(location);
        }
        let mut buffer = AlignedBuffer::zeroed(run.len().saturating_mul(bytes));
        for (location, out) in run.iter().zip(buffer.chunks_exact_mut(bytes)) {
            read_copy(store.reader(), *location, out)?;
        }
        write_run(home, block_size.offset_of(first), first, buffer)?;
        done = done.saturating_add(count(run.len()));
        // The log is unchanged: the next recovery replays all of it again.
        if watch(done, total).is_break() {
            return Err(RecoveryError::Stopped);
        }
    }
    Ok(())
}

fn write_run(
    home: &SharedDevice,
    offset: Option<u64>,
    first: FsBlock,
    buffer: AlignedBuffer,
) -> Result<(), RecoveryError> {
    // `recover` has refused blocks outside the file system; `MAX` is past every device.
    debug_assert!(offset.is_some(), "block {first} of a replay");
    let offset = offset.unwrap_or(u64::MAX);
    let done: Result<_, DeviceError> =
        home.submit(vec![Operation::Write { offset, buffer, fua: false }]).wait_all();
    done.map(drop).map_err(RecoveryError::Write)
}

impl fmt::Debug for RecoveredLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecoveredLog").field("replay", &self.replay).finish_non_exhaustive()
    }
}

impl RecoveredLog {
    /// Returns the result of the replay, with the fast commits that the client must apply.
    pub fn replay(&self) -> &Replay {
        &self.replay
    }

    /// Prepares a log with fast commits that the client has not applied yet: the blocks of full
    /// commits are home, and the log begins where they ended, or at its first block (J19). The first transaction of
    /// [`Journal::open`](crate::Journal::open) then has the number of the fast commits, and
    /// replaces them: the client applies all of them in that one transaction. Until it is durable
    /// the fast commits stay valid.
    ///
    /// # Errors
    ///
    /// As [`finish`](Self::finish).
    pub fn resume(self) -> Result<LogStore, RecoveryError> {
        let RecoveredLog { mut store, home, replay, .. } = self;
        home.flush().map_err(RecoveryError::Write)?;
        let log = store.superblock().log();
        let goes_on = store.superblock().goes_round() && log.contains(&replay.head);
        let mut start = if goes_on { replay.head } else { log.start };
        if replay.broken.is_some() {
            // There begins the transaction that is damaged, which has the number of the next one. Behind
            // its first block lies the copy of a block, which never looks like the log's own.
            let behind = start.saturating_add(1);
            start = if log.contains(&behind) { behind } else { log.start };
        }
        let sequence = replay.end_tid;
        let resumed = JournalSuperblock {
            errno: 0,
            start,
            head: start,
            sequence,
            ..store.superblock().clone()
        };
        write_superblock(&mut store, resumed)?;
        store.resumed = true;
        Ok(store)
    }

    /// Makes the client's own writes durable, marks the log clean and its error as seen. Returns
    /// the log for [`Journal::open`](crate::Journal::open). Writes nothing when the log was clean
    /// and without an error.
    ///
    /// # Errors
    ///
    /// [`RecoveryError::Write`]; the log is unchanged then.
    pub fn finish(self) -> Result<LogStore, RecoveryError> {
        let RecoveredLog { mut store, home, replay, skips } = self;
        if !replay.dirty && replay.errno == 0 {
            return Ok(store);
        }
        if !sabotage("jbd2.replay.home-not-flushed") {
            home.flush().map_err(RecoveryError::Write)?;
        }
        let mut clean = JournalSuperblock { errno: 0, ..store.superblock().clone() };
        if replay.dirty {
            clean.start = 0;
            clean.head = replay.head;
            clean.sequence = RawTid(tid_next(replay.end_tid.0));
            if skips {
                // Behind damage may lie whole transactions, numbered on from the one that is
                // damaged: no later one of this log may lead to them.
                let ahead = store.superblock().log().len();
                clean.sequence = RawTid(tid_next(
                    replay.end_tid.0.wrapping_add(u32::try_from(ahead).unwrap_or(u32::MAX)),
                ));
            }
            if sabotage("jbd2.replay.number-used-again") {
                clean.sequence = replay.end_tid;
            }
        }
        write_superblock(&mut store, clean)?;
        Ok(store)
    }
}

fn write_superblock(
    store: &mut LogStore,
    superblock: JournalSuperblock,
) -> Result<(), RecoveryError> {
    store.write_superblock(superblock).map_err(|error| match error {
        crate::JournalReadError::Device { source, .. } => RecoveryError::Write(source),
        other => RecoveryError::Read(other),
    })
}
