//! The interface between the journal and its client, the file system.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use extant_block::DeviceError;
use extant_format::jbd2::JournalIncompat;
use extant_sync::{Clock, SystemClock};

pub use crate::block::{Image, JournalBlock, Tid, tid_geq, tid_next};
pub use crate::fast_area::FastSink;
use crate::set::BlockSet;

/// The client's side: the callbacks of the file system.
pub trait Client: Send + Sync {
    /// Encodes the changes in memory into blocks. All handles are closed and none opens until this
    /// returns, so it must take no lock that a thread holds while it waits for a handle. Blocks
    /// that no handle claimed are claimed through `sink`.
    ///
    /// # Errors
    ///
    /// An error aborts the journal: nothing of the transaction reaches the device.
    fn encode(&self, tid: Tid, sink: &mut EncodeSink<'_>) -> Result<(), EncodeError>;

    /// Returns whether everything that the running transaction changed so far can be described by
    /// records of a fast commit. Called without any lock, from any thread; the answer may be out of
    /// date when [`describe`](Self::describe) is called. By default nothing can.
    fn is_describable(&self) -> bool {
        false
    }

    /// Describes what changed since the last call for `tid`, or since the transaction began, by
    /// records. All handles are closed and none opens until this returns, as in
    /// [`encode`](Self::encode), whose rules for locks hold.
    ///
    /// After [`Description::Full`] it is not called for `tid` again.
    fn describe(&self, tid: Tid, sink: &mut FastSink) -> Description {
        let _ = (tid, sink);
        Description::Full
    }

    /// Called when the transaction is durable, and no write to a block that it revoked or forgot is
    /// in flight: blocks that it freed may be reused. Calls are in the order of the transactions.
    fn committed(&self, tid: Tid);

    /// Called once when the journal aborts, from any thread, perhaps inside a call by the client.
    fn aborted(&self, why: &AbortReason);
}

/// Receives the blocks that encoding changed.
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

/// The answer of [`Client::describe`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Description {
    /// Nothing changed since the last time.
    Nothing,
    /// The records in the sink say all that changed.
    Records,
    /// Records cannot say it: a full commit is needed.
    Full,
}

/// The reason why encoding failed.
#[derive(Debug, thiserror::Error)]
#[error("encoding a transaction failed: {why}")]
pub struct EncodeError {
    errno: i32,
    why: String,
}

impl EncodeError {
    /// Creates an error from the Linux errno that the journal stores, positive, and a message.
    pub fn new(errno: i32, why: impl Into<String>) -> EncodeError {
        EncodeError { errno, why: why.into() }
    }

    pub(crate) fn errno(&self) -> i32 {
        self.errno
    }
}

/// Reason why the journal aborted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AbortReason {
    /// Linux errno, positive; stored negated in the journal superblock.
    pub errno: i32,
    /// Message of the failure.
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
    /// J14: a fast commit is not preceded by a flush of the data that it refers to.
    pub skip_flush_before_tail: bool,
    /// J14: the last block of a fast commit has the number of the transaction before.
    pub stale_tail: bool,
}

/// Options of a journal.
#[derive(Clone)]
pub struct JournalOptions {
    /// Longest age of a running transaction, for
    /// [`Journal::commit_if_due`](crate::Journal::commit_if_due).
    pub commit_interval: Duration,
    /// Time that a commit waits for other threads that are expected to want one: about the duration
    /// of the last commit, within these limits. The wait ends when all have come.
    pub batch_time: RangeInclusive<Duration>,
    /// Limit of the images held in memory until they are home: a quarter for the running
    /// transaction, a quarter for the one being written, half for committed ones. At least 64.
    pub pinned_blocks_max: usize,
    /// Clock for commit blocks and for the interval.
    pub clock: Arc<dyn Clock>,
    /// Features to switch on in the journal superblock before the first commit: `BLOCKS_64BIT` for
    /// a file system with 64-bit block numbers, `CSUM_V3` for one with metadata checksums (it
    /// replaces older checksum versions), `FAST_COMMIT` to make fast commits. `REVOKE` is always
    /// switched on. An external journal gets no fast commits.
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

/// An error of a journal that is in use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum JournalError {
    /// The device failed; the journal is aborted.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A change asks for more blocks than one transaction can hold.
    #[error("{wanted} blocks in one change, one transaction of this journal takes {limit}")]
    TooManyCredits {
        /// Blocks asked for.
        wanted: u32,
        /// Blocks that one transaction takes.
        limit: u32,
    },
    /// The journal is aborted.
    #[error("the journal stopped: {why}")]
    Aborted {
        /// Linux errno of the failure, positive.
        errno: i32,
        /// Message of the failure.
        why: String,
    },
    /// The journal was closed.
    #[error("the journal is closed")]
    Closed,
}

/// The reason why a journal cannot be opened for writing.
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
        /// Number of blocks of the log.
        found: u32,
        /// Smallest number of blocks.
        needed: u32,
    },
    /// A block of the journal has no place on the device.
    #[error("journal block {block} is not mapped to any block of the device")]
    Unmapped {
        /// The block of the journal.
        block: u32,
    },
}

/// Counts of a journal's work since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct JournalStats {
    /// Number of transactions committed.
    pub commits: u64,
    /// Number of handles opened.
    pub handles: u64,
    /// Number of copies of metadata blocks written to the log (without a log: home).
    pub blocks_logged: u64,
    /// Number of blocks written to the log: copies, descriptors, revoke and commit blocks.
    pub log_blocks: u64,
    /// Number of revoke records written.
    pub revokes: u64,
    /// Number of flushes of either device.
    pub flushes: u64,
    /// Number of writes with FUA: commit blocks and journal superblocks.
    pub fua_writes: u64,
    /// Number of checkpoints that released log space.
    pub checkpoints: u64,
    /// Number of blocks written home.
    pub home_writes: u64,
    /// Number of calls of [`Journal::commit`](crate::Journal::commit) whose transaction another
    /// thread committed.
    pub batched: u64,
    /// Number of times that a handle waited for a transaction to be locked or for room.
    pub waits: u64,
    /// Number of fast commits.
    pub fast_commits: u64,
    /// Number of blocks written to the area of fast commits.
    pub fast_blocks: u64,
}
