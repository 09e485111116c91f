//! Tests of the writing half, over a client that knows nothing but blocks.
//!
//! J1, J2, J4, J6, J9: `crash` (every cut of recorded scenarios; its switches show that each rule
//! is needed). J3: `crash` and `rules`. J5, J8: `rules`, `faults`. J7: `rules` for the external
//! journal; within one device the flush of J6 covers data. J10 (orphans), J11 (the flag) and J12
//! (checksums of the client's own blocks) are the client's; `rules` tests what the journal offers for
//! J11 and J12. `threads`: T1. J14 to J18: `fast`. `life`: a log that is full,
//! empty or at rest. `oracle`: e2fsprogs reads and replays what we wrote.

mod crash;
mod fast;
mod faults;
mod life;
mod oracle;
mod rules;
mod threads;

use std::ops::ControlFlow;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, OnceLock};

use extant_base::{BlockSize, FsBlock};
use extant_block::{BlockDevice, MemoryDevice, OperationKind, SharedDevice};
use extant_format::jbd2::{
    JBD2_MAGIC, JournalChecksum, JournalCompat, JournalIncompat, JournalSuperblock,
};
use extant_sync::{FixedClock, Mutex, Rank};
use extant_testkit::Hooked;

use super::*;
use crate::test_log::TestLog;

pub(super) const BLOCK: usize = 1024;
/// Blocks of the file system, the log behind them.
pub(super) const HOME_BLOCKS: u64 = 64;
/// Blocks of the journal: a small log, so that it goes round and checkpoints often.
pub(super) const LOG_BLOCKS: u32 = 48;

pub(super) fn size() -> BlockSize {
    BlockSize::new(BLOCK as u64).unwrap()
}

/// The journal is in three pieces and out of order, as an old file system may have it.
pub(super) fn runs() -> Vec<JournalRun> {
    let run = |journal_start, place: u64, len| JournalRun {
        journal_start,
        device_start: FsBlock(HOME_BLOCKS + place),
        len,
    };
    vec![run(0, 28, 20), run(20, 0, 10), run(30, 10, 18)]
}

type Hook = OnceLock<Box<dyn Fn() + Send + Sync>>;

/// A device that calls what its state becomes before each flush.
fn hooked(below: MemoryDevice) -> Arc<Hooked<MemoryDevice, Hook>> {
    Hooked::over(below, OnceLock::new(), |hook, batch| {
        let is_flush = batch.iter().any(|operation| operation.kind() == OperationKind::Flush);
        if let Some(hook) = hook.get().filter(|_| is_flush) {
            hook();
        }
    })
}

/// A device with a clean journal, every other byte 0xee.
pub(super) fn formatted(checksum: JournalChecksum) -> MemoryDevice {
    let device = MemoryDevice::new((HOME_BLOCKS + u64::from(LOG_BLOCKS)) * BLOCK as u64);
    device.write_at(0, &vec![0xee; device.size_bytes() as usize]).unwrap();
    let mut superblock = TestLog::new(checksum, LOG_BLOCKS, 0).superblock;
    superblock.sequence = extant_format::jbd2::Tid(7);
    superblock.incompat.remove(JournalIncompat::REVOKE);
    write_superblock(&device, &superblock);
    device
}

pub(super) fn write_superblock(device: &MemoryDevice, superblock: &JournalSuperblock) {
    let mut bytes = vec![0; JournalSuperblock::BYTES];
    superblock.encode(&mut bytes).unwrap();
    device.write_at((HOME_BLOCKS + 28) * BLOCK as u64, &bytes).unwrap();
}

pub(super) fn store(device: &SharedDevice) -> LogStore {
    let log = Arc::new(MappedJournal::new(Arc::clone(device), size(), runs()));
    LogStore::internal(log).unwrap()
}

/// Contents that say what they are; multiples of 5 begin like a block of the journal's own.
pub(super) fn contents(fill: u8) -> Vec<u8> {
    let mut bytes = vec![fill; BLOCK];
    if fill.is_multiple_of(5) {
        bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    bytes
}

/// The fill of a block on a device; `None` when the block is a mixture.
pub(super) fn fill_of(device: &dyn extant_block::BlockDevice, block: u64) -> Option<u8> {
    let mut bytes = vec![0; BLOCK];
    device.read_at(block * BLOCK as u64, &mut bytes).unwrap();
    let fill = bytes[BLOCK - 1];
    (bytes == contents(fill) || bytes == vec![fill; BLOCK]).then_some(fill)
}

pub(super) struct TestBlock {
    number: FsBlock,
    claimed: AtomicU32,
    pub(super) bytes: Mutex<Arc<Vec<u8>>>,
    pub(super) images: AtomicU32,
}

impl TestBlock {
    pub(super) fn new(number: u64) -> Arc<TestBlock> {
        Arc::new(TestBlock {
            number: FsBlock(number),
            claimed: AtomicU32::new(0),
            bytes: Mutex::new(Rank::Leaf, Arc::new(vec![0; BLOCK])),
            images: AtomicU32::new(0),
        })
    }

    pub(super) fn set(&self, fill: u8) {
        *self.bytes.lock() = Arc::new(contents(fill));
    }
}

impl JournalBlock for TestBlock {
    fn number(&self) -> FsBlock {
        self.number
    }

    fn image(&self) -> Image {
        self.images.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        Arc::clone(&*self.bytes.lock()) as Image
    }

    fn claimed(&self) -> &AtomicU32 {
        &self.claimed
    }
}

/// A client that remembers what it was told, and runs what the test wants.
type OnCommitted = Box<dyn Fn(Tid) + Send + Sync>;
type OnEncode = Box<dyn Fn(Tid, &mut EncodeSink<'_>) -> Result<(), EncodeError> + Send + Sync>;

pub(super) struct TestClient {
    pub(super) committed: Mutex<Vec<Tid>>,
    pub(super) aborted: Mutex<Vec<AbortReason>>,
    on_committed: OnCommitted,
    on_encode: OnEncode,
}

impl TestClient {
    pub(super) fn new(on_encode: OnEncode, on_committed: OnCommitted) -> Arc<TestClient> {
        let list = || Mutex::new(Rank::Leaf, Vec::new());
        let aborted = Mutex::new(Rank::Leaf, Vec::new());
        Arc::new(TestClient { committed: list(), aborted, on_committed, on_encode })
    }

    pub(super) fn plain() -> Arc<TestClient> {
        TestClient::new(Box::new(|_, _| Ok(())), Box::new(|_| ()))
    }
}

impl Client for TestClient {
    fn encode(&self, tid: Tid, sink: &mut EncodeSink<'_>) -> Result<(), EncodeError> {
        (self.on_encode)(tid, sink)
    }

    fn committed(&self, tid: Tid) {
        (self.on_committed)(tid);
        self.committed.lock().push(tid);
    }

    fn aborted(&self, why: &AbortReason) {
        self.aborted.lock().push(why.clone());
    }
}

pub(super) fn options() -> JournalOptions {
    JournalOptions { clock: Arc::new(FixedClock::at(5000, 0)), ..JournalOptions::default() }
}

pub(super) fn open(device: &SharedDevice, client: Arc<TestClient>) -> Arc<Journal> {
    Journal::open(store(device), Arc::clone(device), client, options()).unwrap()
}

/// One transaction that sets blocks, committed.
pub(super) fn change(journal: &Journal, blocks: &[(&Arc<TestBlock>, u8)]) -> Tid {
    let mut handle = journal.start(blocks.len() as u32).unwrap();
    for (block, fill) in blocks {
        handle.claim(block).unwrap();
        block.set(*fill);
    }
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid).unwrap();
    tid
}

/// Goes on.
fn unwatched(_done: u64, _total: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A client that takes whatever a replay makes of the file system.
pub(super) fn unchecked(_: SharedDevice, _: &Replay) -> Result<(), RecoveryError> {
    Ok(())
}

/// Replays what the log on `device` says onto it, and opens the log again.
pub(super) fn replayed(device: &SharedDevice) -> Result<(Replay, LogStore), RecoveryError> {
    let options = RecoveryOptions::new(HOME_BLOCKS);
    let log = Arc::new(MappedJournal::new(Arc::clone(device), size(), runs()));
    let recovered =
        recover_to_device(LogStore::internal(log)?, device, &options, unchecked, &unwatched)?;
    let replay = recovered.replay().clone();
    Ok((replay, recovered.finish()?))
}

pub(super) const VERSIONS: [JournalChecksum; 4] =
    [JournalChecksum::None, JournalChecksum::V1, JournalChecksum::V2, JournalChecksum::V3];

#[test]
fn the_test_superblock_is_one_without_checksum_compat_unless_v1() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    assert_eq!(store(&device).superblock().compat, JournalCompat::empty());
}
