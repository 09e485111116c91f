//! First pass over the log: finding the valid transactions.
//!
//! The log is followed from the start in its superblock, transaction by transaction. It ends at the
//! first block that is not the journal's, or belongs to another transaction than the expected one:
//! old blocks of an earlier round through the ring have smaller numbers.
//!
//! A wrong checksum is ambiguous, because a journal created over an older one without clearing it
//! holds old blocks whose numbers may fit by chance. The commit times decide: a commit block that
//! is older than the transaction before it belongs to the older journal and ends the log; else the
//! journal is damaged.

use std::ops::Range;

use extant_base::FsBlock;
use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, JournalChecksum, JournalIncompat, JournalSuperblock,
    LogFormat, Tag, TagFlags, Tags, Tid, TransactionChecksum, verify_tail,
};

use crate::error::RecoveryError;
use crate::log::JournalReader;

/// Limit of the blocks of a log that recovery reads. mke2fs makes journals of at most 10,240,000
/// blocks; a longer one is hostile.
pub const LOG_BLOCKS_MAX: u64 = 1 << 24;

/// The reason why the scan ended. The first three are the ordinary end of a log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ScanStop {
    /// The superblock says that the log is empty.
    Clean,
    /// A block that is not the journal's own, or of no known type.
    NotALogBlock,
    /// A block of another transaction than the one expected.
    OtherTransaction {
        /// The transaction found.
        found: Tid,
    },
    /// A transaction with wrong checksums that is older than its predecessor: left over from an
    /// earlier journal in the same place.
    Stale {
        /// The transaction.
        tid: Tid,
    },
    /// A commit block whose checksum is wrong, with asynchronous commits: the sign of an
    /// interrupted transaction. Without them, it is [damage](RecoveryError::CommitChecksum).
    CommitChecksum {
        /// The transaction; it and all that follow are ignored.
        tid: Tid,
    },
    /// An unfinished transaction that is longer than the ring.
    RingFull,
    /// A committed transaction that is damaged, where damage ends the log
    /// ([`DamagedBlocks::Skip`](crate::DamagedBlocks::Skip)); it and all that follow are ignored.
    Damaged {
        /// The transaction.
        tid: Tid,
    },
}

/// A copy of a block in a committed transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedCopy {
    pub(crate) fs_block: FsBlock,
    /// Checksum in its tag.
    pub(crate) checksum: u32,
    /// Block of the journal.
    pub(crate) block: u32,
    /// The transaction, counted from the first in the log.
    pub(crate) ordinal: u32,
    pub(crate) escaped: bool,
}

impl LoggedCopy {
    /// Checks the contents of the copy, as read from the log.
    pub(crate) fn matches(&self, format: &LogFormat, tid: Tid, logged: &[u8]) -> bool {
        let (fs_block, checksum) = (self.fs_block, self.checksum);
        Tag { fs_block, flags: TagFlags::empty(), checksum, uuid: None }
            .matches(format, tid, logged)
    }
}

/// A revoke block of a committed transaction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoggedRevoke {
    /// Block of the journal.
    pub(crate) block: u32,
    /// The transaction, counted from the first in the log.
    pub(crate) ordinal: u32,
}

/// The result of a scan: committed transactions only, in the order of the log.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) copies: Vec<LoggedCopy>,
    pub(crate) revokes: Vec<LoggedRevoke>,
    /// Number of complete transactions.
    pub(crate) transactions: u32,
    /// Block of the journal after the last commit block.
    pub(crate) head: u32,
    pub(crate) stop: ScanStop,
}

/// A walk round the ring that ends after one round.
struct Ring {
    log: Range<u32>,
    next: u32,
    visited: u64,
}

impl Ring {
    /// The next block; `None` after a whole round.
    fn advance(&mut self) -> Result<Option<u32>, RecoveryError> {
        if self.visited >= u64::from(self.log.end.saturating_sub(self.log.start)) {
            return Ok(None);
        }
        if self.visited >= LOG_BLOCKS_MAX {
            return Err(RecoveryError::TooManyBlocks { limit: LOG_BLOCKS_MAX });
        }
        self.visited = self.visited.saturating_add(1);
        let block = self.next;
        self.next = match block.checked_add(1) {
            Some(next) if next < self.log.end => next,
            _ => self.log.start,
        };
        Ok(Some(block))
    }
}

/// State of the transaction that is being walked through.
struct Walk<'a> {
    log: &'a dyn JournalReader,
    format: LogFormat,
    /// Whether commit blocks may be on the device before the blocks that they commit.
    is_async: bool,
    ring: Ring,
    scan: Scan,
    /// The transaction expected.
    tid: Tid,
    /// Copies and revoke blocks that belong to transactions known to be committed.
    committed: (usize, usize),
    /// First block with a wrong checksum in this transaction.
    damaged: Option<u32>,
    sum: TransactionChecksum,
    last_commit_sec: u64,
}

impl Scan {
    /// Ends the log before a transaction, which is damaged. `first` is the first of the log.
    pub(crate) fn end_before(&mut self, first: Tid, tid: Tid) {
        let ordinal = tid.0.wrapping_sub(first.0);
        self.copies.retain(|copy| copy.ordinal < ordinal);
        self.revokes.retain(|revoke| revoke.ordinal < ordinal);
        self.transactions = self.transactions.min(ordinal);
        self.stop = ScanStop::Damaged { tid };
    }
}

/// Scans the log of a dirty journal.
pub(crate) fn scan(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
) -> Result<Scan, RecoveryError> {
    match scan_to_damage(log, superblock)? {
        (scan, None) => Ok(scan),
        (_, Some(error)) => Err(error),
    }
}

/// Scans the log of a dirty journal up to a damaged transaction; returns what is wrong with that one as well.
pub(crate) fn scan_to_damage(
    log: &dyn JournalReader,
    superblock: &JournalSuperblock,
) -> Result<(Scan, Option<RecoveryError>), RecoveryError> {
    let ring = Ring { log: superblock.log(), next: superblock.start, visited: 0 };
    let mut walk = Walk {
        log,
        format: superblock.log_format(),
        is_async: superblock.incompat.contains(JournalIncompat::ASYNC_COMMIT),
        ring,
        scan: Scan {
            copies: Vec::new(),
            revokes: Vec::new(),
            transactions: 0,
            head: superblock.start,
            stop: ScanStop::Clean,
        },
        tid: superblock.sequence,
        committed: (0, 0),
        damaged: None,
        sum: TransactionChecksum::new(),
        last_commit_sec: 0,
    };
    let mut bytes = vec![0; superblock.block_size.len()];
    loop {
        let (stop, broken) = match walk.step(&mut bytes) {
            Ok(None) => continue,
            Ok(Some(stop)) => (stop, None),
            Err(
                error @ (RecoveryError::BlockChecksum { tid, .. }
                | RecoveryError::CommitChecksum { tid }),
            ) => (ScanStop::Damaged { tid }, Some(error)),
            Err(error) => return Err(error),
        };
        let mut scan = walk.scan;
        scan.stop = stop;
        scan.copies.truncate(walk.committed.0);
        scan.revokes.truncate(walk.committed.1);
        return Ok((scan, broken));
    }
}

impl Walk<'_> {
    /// Looks at one block of the journal's own; `bytes` is room for it.
    fn step(&mut self, bytes: &mut [u8]) -> Result<Option<ScanStop>, RecoveryError> {
        let Some(block) = self.ring.advance()? else {
            return Ok(Some(ScanStop::RingFull));
        };
        self.log.read_block(block, bytes)?;
        let Ok(header) = BlockHeader::decode(bytes) else {
            return Ok(Some(ScanStop::NotALogBlock));
        };
        if header.tid != self.tid {
            return Ok(Some(ScanStop::OtherTransaction { found: header.tid }));
        }
        match header.block_type {
            BlockType::Descriptor => self.descriptor(block, bytes),
            BlockType::Revoke => {
                self.check_tail(block, bytes);
                let ordinal = self.scan.transactions;
                self.scan.revokes.push(LoggedRevoke { block, ordinal });
                Ok(None)
            }
            BlockType::Commit => self.commit(bytes),
            BlockType::SuperblockV1 | BlockType::SuperblockV2 => Ok(Some(ScanStop::NotALogBlock)),
        }
    }

    fn check_tail(&mut self, block: u32, bytes: &[u8]) {
        if self.damaged.is_none() && verify_tail(&self.format, bytes).is_err() {
            self.damaged = Some(block);
        }
    }

    fn descriptor(
        &mut self,
        block: u32,
        bytes: &mut [u8],
    ) -> Result<Option<ScanStop>, RecoveryError> {
        self.check_tail(block, bytes);
        let summed = self.format.checksum == JournalChecksum::V1;
        if summed {
            self.sum.update(bytes);
        }
        let before = self.scan.copies.len();
        for tag in Tags::new(&self.format, bytes) {
            let Some(block) = self.ring.advance()? else {
                return Ok(Some(ScanStop::RingFull));
            };
            self.scan.copies.push(LoggedCopy {
                fs_block: tag.fs_block,
                checksum: tag.checksum,
                block,
                ordinal: self.scan.transactions,
                escaped: tag.is_escaped(),
            });
        }
        if summed {
            for copy in self.scan.copies.get(before..).unwrap_or(&[]) {
                self.log.read_block(copy.block, bytes)?;
                self.sum.update(bytes);
            }
        }
        Ok(None)
    }

    fn commit(&mut self, bytes: &[u8]) -> Result<Option<ScanStop>, RecoveryError> {
        let tid = self.tid;
        let Ok(commit) = CommitBlock::decode(bytes) else {
            return Ok(Some(ScanStop::NotALogBlock)); // No block is that short.
        };
        let stale = commit.commit_sec < self.last_commit_sec;
        if let Some(block) = self.damaged {
            if stale {
                return Ok(Some(ScanStop::Stale { tid }));
            }
            return Err(RecoveryError::BlockChecksum { tid, block });
        }
        let whole = match self.format.checksum {
            JournalChecksum::V1 => commit.matches_v1(&self.sum),
            _ => CommitBlock::verify(&self.format, bytes).is_ok(),
        };
        if !whole {
            return match (stale, self.is_async) {
                (true, _) => Ok(Some(ScanStop::Stale { tid })),
                (false, true) => Ok(Some(ScanStop::CommitChecksum { tid })),
                (false, false) => Err(RecoveryError::CommitChecksum { tid }),
            };
        }
        self.sum = TransactionChecksum::new();
        self.last_commit_sec = commit.commit_sec;
        self.committed = (self.scan.copies.len(), self.scan.revokes.len());
        self.scan.transactions = self.scan.transactions.saturating_add(1);
        self.scan.head = self.ring.next;
        self.tid = self.tid.next();
        Ok(None)
    }
}
