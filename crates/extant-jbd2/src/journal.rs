//! The writing half: handles and transactions. (First shape; the log is not written yet.)

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use extant_base::{BlockSize, FsBlock};
use extant_block::{BlockDevice, DeviceError, SharedDevice};
use extant_sync::{Clock, Mutex, Rank, SystemClock};

/// A transaction's number; wraps.
pub type Tid = u32;

/// One version of a block.
pub type Image = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A metadata block of the client.
pub trait JournalBlock: Send + Sync {
    /// Its number.
    fn number(&self) -> FsBlock;
    /// The current version, immutable from then on.
    fn image(&self) -> Image;
    /// The journal's: the last transaction that claimed it.
    fn claimed(&self) -> &AtomicU32;
}

/// What the file system does for its journal.
pub trait Client: Send + Sync {
    /// Brings in-core state into claimed blocks; no handle is open.
    fn encode(&self, tid: Tid, sink: &mut EncodeSink<'_>) -> Result<(), EncodeError>;
    /// The transaction is durable.
    fn committed(&self, tid: Tid);
    /// The journal stopped.
    fn aborted(&self, why: &AbortReason);
}

/// Takes blocks that encoding changed.
pub struct EncodeSink<'a> {
    blocks: &'a mut BTreeMap<FsBlock, Arc<dyn JournalBlock>>,
}

impl EncodeSink<'_> {
    /// Adds a block.
    pub fn claim(&mut self, block: Arc<dyn JournalBlock>) {
        self.blocks.insert(block.number(), block);
    }
}

/// Why encoding failed.
#[derive(Debug, thiserror::Error)]
#[error("encoding a transaction failed: {0}")]
pub struct EncodeError(Box<dyn std::error::Error + Send + Sync>);

impl EncodeError {
    /// Wraps the client's error.
    pub fn new(error: impl std::error::Error + Send + Sync + 'static) -> EncodeError {
        EncodeError(Box::new(error))
    }
}

/// Why the journal stopped.
#[derive(Clone, Debug)]
pub struct AbortReason {
    /// Linux errno, positive.
    pub errno: i32,
    /// In words.
    pub why: String,
}

/// Test switches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Mutations {}

/// How a journal works.
#[derive(Clone)]
pub struct JournalOptions {
    /// Longest age of a running transaction.
    pub commit_interval: Duration,
    /// Most blocks held in memory until they are home.
    pub pinned_blocks_max: usize,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Test switches.
    pub mutations: Mutations,
}

impl Default for JournalOptions {
    fn default() -> JournalOptions {
        JournalOptions {
            commit_interval: Duration::from_secs(5),
            pinned_blocks_max: 1 << 14,
            clock: Arc::new(SystemClock),
            mutations: Mutations {},
        }
    }
}

/// What can go wrong.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A device error.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// More blocks than a transaction can hold.
    #[error("{wanted} blocks in one change, the log takes {limit}")]
    TooManyCredits {
        /// Wanted.
        wanted: u32,
        /// Limit.
        limit: u32,
    },
    /// Stopped.
    #[error("the journal stopped: {why}")]
    Aborted {
        /// Why.
        why: String,
    },
}

/// Counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalStats {
    /// Commits.
    pub commits: u64,
    /// Blocks logged.
    pub blocks_logged: u64,
}

impl JournalStats {
    /// Blocks written, to the log and home.
    pub fn blocks_written(&self) -> u64 {
        self.blocks_logged
    }
}

/// The journal of one file system.
pub struct Journal {
    home: SharedDevice,
    block_size: BlockSize,
    client: Arc<dyn Client>,
    running: AtomicU32,
    blocks: Mutex<BTreeMap<FsBlock, Arc<dyn JournalBlock>>>,
    aborted: Mutex<Option<AbortReason>>,
    commits: AtomicU64,
}

impl Journal {
    /// No log: commits write home.
    pub fn without_log(
        home: SharedDevice,
        block_size: BlockSize,
        client: Arc<dyn Client>,
        _options: JournalOptions,
    ) -> Arc<Journal> {
        Arc::new(Journal {
            home,
            block_size,
            client,
            running: AtomicU32::new(1),
            blocks: Mutex::new(Rank::JournalState, BTreeMap::new()),
            aborted: Mutex::new(Rank::Leaf, None),
            commits: AtomicU64::new(0),
        })
    }

    /// Opens a handle.
    pub fn start(&self, _credits: u32) -> Result<Handle<'_>, JournalError> {
        if let Some(reason) = &*self.aborted.lock() {
            return Err(JournalError::Aborted { why: reason.why.clone() });
        }
        Ok(Handle { journal: self })
    }

    /// The running transaction.
    pub fn running(&self) -> Tid {
        self.running.load(Ordering::Acquire)
    }

    /// Waits until `tid` is durable.
    pub fn commit(&self, tid: Tid) -> Result<(), JournalError> {
        if tid < self.running() {
            return Ok(());
        }
        let mut blocks = std::mem::take(&mut *self.blocks.lock());
        let tid = self.running();
        let mut sink = EncodeSink { blocks: &mut blocks };
        let encoded = self.client.encode(tid, &mut sink);
        encoded.map_err(|e| JournalError::Aborted { why: e.to_string() })?;
        self.running.fetch_add(1, Ordering::AcqRel);
        for (number, block) in blocks {
            let at = self.block_size.offset_of(number).unwrap_or(u64::MAX);
            self.home.write_at(at, (*block.image()).as_ref())?;
        }
        self.home.flush()?;
        self.commits.fetch_add(1, Ordering::Relaxed);
        self.client.committed(tid);
        Ok(())
    }

    /// Commits when due.
    pub fn commit_if_due(&self) -> Result<bool, JournalError> {
        Ok(false)
    }

    /// Writes home.
    pub fn checkpoint(&self) -> Result<(), JournalError> {
        Ok(())
    }

    /// Stops.
    pub fn abort(&self, errno: i32, why: &str) {
        let reason = AbortReason { errno, why: why.into() };
        self.aborted.lock().get_or_insert(reason.clone());
        self.client.aborted(&reason);
    }

    /// Whether it stopped.
    pub fn is_aborted(&self) -> bool {
        self.aborted.lock().is_some()
    }

    /// Commits and cleans.
    pub fn close(&self) -> Result<(), JournalError> {
        self.commit(self.running())
    }

    /// Counters.
    pub fn stats(&self) -> JournalStats {
        JournalStats { commits: self.commits.load(Ordering::Relaxed), blocks_logged: 0 }
    }
}

/// An open handle.
pub struct Handle<'j> {
    journal: &'j Journal,
}

impl Handle<'_> {
    /// Its transaction.
    pub fn tid(&self) -> Tid {
        self.journal.running()
    }

    /// Takes a block into the transaction.
    pub fn claim<B: JournalBlock + 'static>(&mut self, block: &Arc<B>) -> Result<(), JournalError> {
        if block.claimed().swap(self.tid(), Ordering::AcqRel) != self.tid() {
            let block: Arc<dyn JournalBlock> = Arc::clone(block) as _;
            self.journal.blocks.lock().insert(block.number(), block);
        }
        Ok(())
    }

    /// More credits.
    pub fn extend(&mut self, _credits: u32) -> bool {
        true
    }

    /// Closes and opens.
    pub fn restart(&mut self, _credits: u32) -> Result<(), JournalError> {
        Ok(())
    }

    /// A metadata block was freed.
    pub fn revoke(&mut self, block: FsBlock) -> Result<(), JournalError> {
        if let Some(block) = self.journal.blocks.lock().remove(&block) {
            block.claimed().store(0, Ordering::Release);
        }
        Ok(())
    }

    /// Credits left.
    pub fn credits_left(&self) -> u32 {
        u32::MAX
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("running", &self.running()).finish_non_exhaustive()
    }
}
