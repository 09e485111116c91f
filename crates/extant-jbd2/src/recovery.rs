//! Recovery: the state of the file system described by the log.

use std::sync::Arc;

use extant_base::{FsBlock, sabotage};
use extant_format::jbd2::{JournalSuperblock, LogFormat, RevokeRecords, Tag, TagFlags, Tid};

use crate::behind::goes_on;
use crate::error::RecoveryError;
use crate::fast_commit::{self, FastCommitOverlay};
use crate::log::{JournalReader, check_fits};
use crate::overlay::{LogLocation, Overlay};
use crate::scan::{LoggedCopy, Scan, ScanStop, scan, scan_to_damage};

/// Treatment of a committed copy whose contents do not match its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum DamagedBlocks {
    /// Fail, as a mount does.
    #[default]
    Refuse,
    /// Leave that copy out and report it in [`Replay::damaged`], as e2fsck does before it checks
    /// the whole file system. A transaction whose own blocks are damaged ends the log
    /// ([`Replay::broken`]): those before it were promised, and are whole.
    Skip,
}

/// Options of a recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RecoveryOptions {
    /// Number of blocks of the file system; copies of blocks past them are refused.
    pub fs_blocks: u64,
    /// Treatment of damaged copies.
    pub damaged: DamagedBlocks,
}

impl RecoveryOptions {
    /// Returns the options for a file system of `fs_blocks` blocks, refusing damage.
    pub fn new(fs_blocks: u64) -> RecoveryOptions {
        RecoveryOptions { fs_blocks, damaged: DamagedBlocks::Refuse }
    }
}

/// A copy that was left out because of its checksum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DamagedBlock {
    /// The transaction of the block.
    pub tid: Tid,
    /// Block to which it belongs.
    pub fs_block: FsBlock,
    /// Block of the journal.
    pub block: u32,
    /// Checksum in its tag; `None` for a copy of a block that the file system does not have.
    pub checksum: Option<u32>,
    /// Whether its first four bytes were the journal's magic number, and are zero in the log.
    pub escaped: bool,
}

impl DamagedBlock {
    /// Returns whether contents, as they would be home, are what the copy was; they are escaped as
    /// in the log.
    pub(crate) fn is_copy_of(&self, format: &LogFormat, contents: &mut [u8]) -> bool {
        let Some(checksum) = self.checksum else { return false };
        if self.escaped
            && let Some(start) = contents.first_chunk_mut::<4>()
        {
            *start = [0; 4];
        }
        let (fs_block, flags) = (self.fs_block, TagFlags::empty());
        Tag { fs_block, flags, checksum, uuid: None }.matches(format, self.tid, contents)
    }
}

/// The changes that a journal holds for the file system.
#[derive(Clone, Debug)]
pub struct Replay {
    /// Whether the log was not empty, because the file system was not unmounted.
    pub dirty: bool,
    /// Error that the journal was aborted with, negative as in the kernel; 0 for none. The file
    /// system should be checked when it is not 0.
    pub errno: i32,
    /// The first transaction of the log.
    pub first_tid: Tid,
    /// Number of complete transactions.
    pub transactions: u32,
    /// The first incomplete transaction. A journal that continues from here starts with the one
    /// after it, so that no old block is mistaken for a new one.
    pub end_tid: Tid,
    /// Block of the journal after the last complete transaction; 0 when the log was empty.
    pub head: u32,
    /// Reason why the log ended there.
    pub stop: ScanStop,
    /// Number of copies that were hidden by a later revoke.
    pub revoked: u64,
    /// Copies that were left out, with [`DamagedBlocks::Skip`].
    pub damaged: Vec<DamagedBlock>,
    /// Number of damaged copies of which home has what they were, with
    /// [`recover_damaged`](crate::recover_damaged): they are not among the others.
    pub at_home: usize,
    /// Damage that ended the log, with [`DamagedBlocks::Skip`]: committed transactions are missing.
    pub broken: Option<Arc<RecoveryError>>,
    /// The blocks that a replay writes.
    pub blocks: Overlay,
    /// Changes of fast commits on top; `None` without any.
    pub fast_commits: Option<FastCommitOverlay>,
}

impl Replay {
    /// True when reading the device below shows the same as reading through the replay.
    pub fn changes_nothing(&self) -> bool {
        self.blocks.is_empty() && self.fast_commits.is_none()
    }
}

/// Determines the result of replaying the journal, without writing.
///
/// `superblock` comes from [`load_superblock`](crate::load_superblock). An empty log gives a replay
/// that changes nothing.
///
/// # Errors
///
/// [`RecoveryError`] where a mount would fail: unreadable blocks, damage inside complete
/// transactions, blocks outside the file system, fast commits with unknown features. An incomplete
/// transaction is not an error, nor is a wrong checksum in the commit block of a log with
/// asynchronous commits: the log ends before it, and [`Replay::stop`] tells.
pub fn recover(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    options: &RecoveryOptions,
) -> Result<Replay, RecoveryError> {
    check_fits(log, superblock)?;
    let mut replay = Replay {
        dirty: superblock.is_dirty(),
        errno: superblock.errno,
        first_tid: superblock.sequence,
        transactions: 0,
        end_tid: superblock.sequence,
        head: 0,
        stop: ScanStop::Clean,
        revoked: 0,
        damaged: Vec::new(),
        at_home: 0,
        broken: None,
        blocks: Overlay::default(),
        fast_commits: None,
    };
    if !superblock.is_dirty() {
        return Ok(replay);
    }
    let (scan, revokes) = match options.damaged {
        DamagedBlocks::Refuse => {
            let scan = scan(log, superblock)?;
            let revokes = Revokes::load(log, superblock, &scan)?;
            (scan, revokes)
        }
        DamagedBlocks::Skip => {
            let (mut scan, broken) = scan_to_damage(log, superblock)?;
            replay.broken = broken.map(Arc::new);
            let revokes = loop {
                match Revokes::load(log, superblock, &scan) {
                    Ok(revokes) => break revokes,
                    Err(error @ RecoveryError::Revoke { tid, .. }) => {
                        scan.end_before(superblock.sequence, tid);
                        replay.broken = Some(Arc::new(error));
                    }
                    Err(error) => return Err(error),
                }
            };
            let end = Tid(superblock.sequence.0.wrapping_add(scan.transactions));
            if replay.broken.is_none()
                && let Some(found) = goes_on(log, superblock, (scan.head, end))?
            {
                replay.broken = Some(Arc::new(RecoveryError::Gap { tid: end, found }));
            }
            (scan, revokes)
        }
    };
    replay.transactions = scan.transactions;
    replay.end_tid = Tid(superblock.sequence.0.wrapping_add(scan.transactions));
    replay.head = scan.head;
    replay.stop = scan.stop;
    replay_blocks(log, superblock, options, &scan.copies, &revokes, &mut replay)?;
    drop(scan);
    replay.fast_commits = fast_commit::load(log, superblock, replay.end_tid)?;
    Ok(replay)
}

/// Second pass: for each block in the log, the last transaction that revoked it.
///
/// Revoked blocks without a copy in the log are not kept, so this grows with the log's copies and
/// not with what revoke blocks can name.
struct Revokes {
    /// In order of the block, each block once; with the transaction's ordinal.
    blocks: Vec<(FsBlock, Option<u32>)>,
}

impl Revokes {
    fn load(
        log: &dyn JournalReader,
        superblock: &JournalSuperblock,
        scan: &Scan,
    ) -> Result<Revokes, RecoveryError> {
        if scan.revokes.is_empty() {
            return Ok(Revokes { blocks: Vec::new() });
        }
        let format = superblock.log_format();
        let mut blocks: Vec<_> = scan.copies.iter().map(|copy| (copy.fs_block, None)).collect();
        blocks.sort_unstable();
        blocks.dedup();
        let mut bytes = vec![0; superblock.block_size.len()];
        for revoke in &scan.revokes {
            log.read_block(revoke.block, &mut bytes)?;
            let records =
                RevokeRecords::new(&format, &bytes).map_err(|fault| RecoveryError::Revoke {
                    tid: Tid(superblock.sequence.0.wrapping_add(revoke.ordinal)),
                    block: revoke.block,
                    fault,
                })?;
            for block in records {
                let found = blocks.binary_search_by_key(&block, |(block, _)| *block);
                if let Some((_, last)) = found.ok().and_then(|at| blocks.get_mut(at)) {
                    // Revoke blocks come in the order of the log: the last one is the latest.
                    *last = Some(revoke.ordinal);
                }
            }
        }
        Ok(Revokes { blocks })
    }

    /// J4: hidden by a revoke of the same or a later transaction.
    fn hides(&self, copy: &LoggedCopy) -> bool {
        let found = self.blocks.binary_search_by_key(&copy.fs_block, |(block, _)| *block);
        let last = found.ok().and_then(|at| self.blocks.get(at)).and_then(|(_, last)| *last);
        if sabotage("jbd2.recovery.revoke-hides-older-only") {
            return last.is_some_and(|revoked| copy.ordinal < revoked);
        }
        last.is_some_and(|revoked| copy.ordinal <= revoked)
    }
}

/// Does the third pass: returns the valid copies, in the order of the log.
fn replay_blocks(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
    options: &RecoveryOptions,
    copies: &[LoggedCopy],
    revokes: &Revokes,
    replay: &mut Replay,
) -> Result<(), RecoveryError> {
    let format = superblock.log_format();
    let mut bytes = vec![0; superblock.block_size.len()];
    let mut kept = Vec::with_capacity(copies.len());
    for copy in copies {
        let LoggedCopy { fs_block, block, escaped, .. } = *copy;
        if revokes.hides(copy) {
            replay.revoked = replay.revoked.saturating_add(1);
            continue;
        }
        let tid = Tid(superblock.sequence.0.wrapping_add(copy.ordinal));
        if fs_block.0 >= options.fs_blocks {
            if options.damaged == DamagedBlocks::Skip {
                let checksum = None;
                replay.damaged.push(DamagedBlock { tid, fs_block, block, checksum, escaped });
                continue;
            }
            let fs_blocks = options.fs_blocks;
            return Err(RecoveryError::OutsideFs { tid, fs_block, fs_blocks });
        }
        if format.checksum.covers_blocks() {
            log.read_block(block, &mut bytes)?;
            if !copy.matches(&format, tid, &bytes) {
                match options.damaged {
                    DamagedBlocks::Refuse => {
                        return Err(RecoveryError::DataChecksum { tid, fs_block, block });
                    }
                    DamagedBlocks::Skip => {
                        let checksum = Some(copy.checksum);
                        let damaged = DamagedBlock { tid, fs_block, block, checksum, escaped };
                        replay.damaged.push(damaged);
                        continue;
                    }
                }
            }
        }
        kept.push((fs_block, LogLocation { block, escaped }));
    }
    replay.blocks = Overlay::from_log_order(kept);
    Ok(())
}

#[cfg(test)]
mod tests;
