//! What the journal and its client, the file system, say to each other.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use extant_block::DeviceError;
use extant_format::jbd2::JournalIncompat;
use extant_sync::{Clock, SystemClock};

pub use crate::block::{Image, JournalBlock, Tid, tid_geq, tid_next};
use crate::set::BlockSet;

/// What the file system does for its journal.
pub trait Client: Send + Sync {
    /// Brings what changed in memory into blocks. All handles are closed and none opens until this
    /// returns, so it must take no lock that a thread holds while it waits for a handle. Blocks
    /// that no handle claimed are claimed through `sink`.
    ///
    /// # Errors
    ///
    /// An error aborts the journal: nothing of the transaction reaches the device.
    fn encode(&self, tid: Tid, sink: &mut EncodeSink<'_>) -> Result<(), EncodeError>;

    /// The transaction is durable, and no write to a block that it revoked or forgot is in flight:
    /// what it freed may be given away. Called in the order of the transactions.
    fn committed(&self, tid: Tid);

    /// The journal stopped for good. Called once, from any thread, perhaps out of a call that the
    /// client itself made.
    fn aborted(&self, why: &AbortReason);
}

/// Takes the blocks that encoding changed.
pub struct EncodeSink<'a> {
    pub(crate) set: &'a BlockSet,
    pub(crate) tid: Tid,
}

impl EncodeSink<'_> {
    /// Adds a block to the transaction, unless it is there. Its image is taken after `encode`.
    pub fn claim(&mut self, block: Arc<dyn JournalBlock>) {
        self.set.claim(self.tid, block);
    }
}

impl fmt::Debug for EncodeSink<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncodeSink(transaction {})", self.tid)
    }
}

/// Why encoding failed.
#[derive(Debug, thiserror::Error)]
#[error("encoding a transaction failed: {why}")]
pub struct EncodeError {
    errno: i32,
    why: String,
}

impl EncodeError {
    /// The client's error in words, and as the number that the journal stores: Linux errno, positive.
    pub fn new(errno: i32, why: impl Into<String>) -> EncodeError {
        EncodeError { errno, why: why.into() }
    }

    pub(crate) fn errno(&self) -> i32 {
        self.errno
    }
}

/// Why the journal stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AbortReason {
    /// Linux errno, positive; stored negated in the journal superblock.
    pub errno: i32,
    /// In words.
    pub why: String,
}

/// Switches that break one rule each, for testing the tests of crash safety. All off by default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mutations {
    /// J6: the commit block is not preceded by a flush.
    pub skip_flush_before_commit: bool,
    /// J2: log space is released although the home writes were not flushed.
    pub skip_checkpoint_flush: bool,
    /// J4: freed metadata blocks are not revoked.
    pub skip_revokes: bool,
    /// The first tag of each transaction has a wrong checksum (in journals that have them).
    pub bad_checksum: bool,
    /// J6: the commit block is written before the blocks that it commits.
    pub commit_block_first: bool,
    /// J2: the tail moves before the blocks are home.
    pub tail_before_home: bool,
    /// J3: [`Client::committed`] is called before the transaction is written.
    pub release_freed_early: bool,
}

/// How a journal works.
#[derive(Clone)]
pub struct JournalOptions {
    /// Longest age of a running transaction, as [`Journal::commit_if_due`](crate::Journal::commit_if_due) sees it.
    pub commit_interval: Duration,
    /// How long a commit waits for others that are expected to want one: about as long as the last one
    /// took, within these limits. Ends at once when all have come.
    pub batch_time: RangeInclusive<Duration>,
    /// Most images held in memory until they are home: a quarter for the running transaction, a
    /// quarter for the one being written, half for those that are committed. At least 64.
    pub pinned_blocks_max: usize,
    /// Time of commit blocks and of the interval.
    pub clock: Arc<dyn Clock>,
    /// Features to switch on in the journal superblock before the first commit: `BLOCKS_64BIT` for
    /// a file system with 64-bit block numbers, `CSUM_V3` for one with metadata checksums (it
    /// replaces older checksum versions). `REVOKE` is always switched on.
    pub features: JournalIncompat,
    /// Test switches.
    pub mutations: Mutations,
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions {
            commit_interval: Duration::from_secs(5),
            batch_time: Duration::from_micros(100)..=Duration::from_millis(10),
            pinned_blocks_max: 1 << 14,
            clock: Arc::new(SystemClock),
            features: JournalIncompat::empty(),
            mutations: Mutations::default(),
        }
    }
}

impl fmt::Debug for JournalOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalOptions")
            .field("commit_interval", &self.commit_interval)
            .field("batch_time", &self.batch_time)
            .field("pinned_blocks_max", &self.pinned_blocks_max)
            .field("features", &self.features)
            .field("mutations", &self.mutations)
            .finish_non_exhaustive()
    }
}

/// What can go wrong with a journal that is in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed; the journal is aborted.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More blocks than one transaction can hold.
    #[error("{wanted} blocks in one change, one transaction of this journal takes {limit}")]
    TooManyCredits {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks that one transaction takes.
        limit: u32,
    },
    /// The journal stopped for good.
    #[error("the journal stopped: {why}")]
    Aborted {
        /// Linux errno of what stopped it, positive.
        errno: i32,
        /// Why.
        why: String,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// Why a journal cannot be opened for writing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalOpenError {
    /// The log holds transactions; [`recover_to_device`](crate::recover_to_device) comes first.
    #[error("the journal holds transactions from block {start} on and must be recovered first")]
    NotClean {
        /// `s_start`.
        start: u32,
    },
    /// A journal of the first version, which has no room for features.
    #[error("the journal has the format of version 1, which cannot be written")]
    Version1,
    /// The log has no room for transactions.
    #[error("the journal has {found} blocks for its log, fewer than {needed}")]
    TooSmall {
        /// Blocks of the log.
        found: u32,
        /// Fewest that are of use.
        needed: u32,
    },
    /// The journal has no place for one of its blocks.
    #[error("journal block {block} is not mapped to any block of the device")]
    Unmapped {
        /// The block of the journal.
        block: u32,
    },
}

/// What a journal did since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Transactions committed.
    pub commits: u64,
    /// Handles opened.
    pub handles: u64,
    /// Copies of metadata blocks written to the log (without a log: home).
    pub blocks_logged: u64,
    /// Blocks written to the log in all: copies, descriptors, revoke and commit blocks.
    pub log_blocks: u64,
    /// Revoke records written.
    pub revokes: u64,
    /// Flushes of either device.
    pub flushes: u64,
    /// Writes with FUA: commit blocks and journal superblocks.
    pub fua_writes: u64,
    /// Checkpoints that released log space.
    pub checkpoints: u64,
    /// Blocks written home.
    pub home_writes: u64,
    /// Calls of [`Journal::commit`](crate::Journal::commit) that found somebody else committing their transaction.
    pub batched: u64,
    /// Times that a handle waited for a transaction to be locked or for room.
    pub waits: u64,
}
