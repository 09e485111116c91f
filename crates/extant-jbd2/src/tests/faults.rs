//! J8: a device that fails, at every operation of a scenario.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_block::{
    BlockDevice, Completion, DeviceError, DeviceFault, Operation, OperationKind, Pending,
};

use super::*;

/// Fails the `at`th change or flush, and all later ones if `forever`.
pub(super) struct Failing {
    below: Arc<MemoryDevice>,
    done: AtomicU64,
    at: u64,
    forever: bool,
}

impl Failing {
    pub(super) fn once(below: Arc<MemoryDevice>, at: u64) -> Failing {
        Failing { below, done: AtomicU64::new(0), at, forever: false }
    }
}

impl BlockDevice for Failing {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        let run = |operation: Operation| {
            let reads = operation.kind() == OperationKind::Read;
            let n = if reads { 0 } else { self.done.fetch_add(1, Ordering::Relaxed) + 1 };
            if n == self.at || (n > self.at && self.forever) {
                let fault = DeviceFault::Io(std::io::Error::from_raw_os_error(5));
                let (offset, length) = (operation.offset(), operation.length());
                let kind = operation.kind();
                let error = DeviceError::new("failing".into(), kind, offset, length, fault);
                return Completion { operation, result: Err(error) };
            }
            self.below.submit(vec![operation]).wait().pop().unwrap()
        };
        Pending::done(batch.into_iter().map(run).collect())
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        "failing".into()
    }
}

/// Commits until something fails; the transactions that succeeded, and what then went on.
fn scenario(journal: &Journal) -> (u8, Option<JournalError>) {
    let blocks: Vec<_> = (0..5).map(TestBlock::new).collect();
    for round in 0..12u8 {
        let work = || {
            let mut handle = journal.start(5)?;
            for block in &blocks {
                handle.claim(block)?;
                block.set(round + 1);
            }
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid)
        };
        if let Err(error) = work() {
            return (round, Some(error));
        }
    }
    (12, journal.close().err())
}

#[test]
fn j8_any_failed_operation_aborts_and_leaves_what_was_committed() {
    let mut ends = 0;
    for forever in [false, true] {
        for at in 1.. {
            let below = Arc::new(formatted(JournalChecksum::V3));
            let failing = Failing { below: below.clone(), done: AtomicU64::new(0), at, forever };
            let device: SharedDevice = Arc::new(failing);
            let client = TestClient::plain();
            let journal = open(&device, client.clone());
            let (committed, error) = scenario(&journal);
            if error.is_none() && !journal.is_aborted() {
                assert!(at > 40, "{at} operations");
                ends += 1;
                break;
            }
            assert!(journal.is_aborted(), "operation {at}");
            assert!(matches!(journal.start(1), Err(JournalError::Aborted { .. })));
            assert!(matches!(journal.try_start(1), Err(JournalError::Aborted { .. })));
            assert!(journal.commit(journal.running()).is_err());
            assert!(journal.checkpoint().is_err());
            assert!(journal.close().is_err());
            assert_eq!(client.aborted.lock().len(), 1, "told once");
            let plain: SharedDevice = below;
            let errno = store(&plain).superblock().errno;
            assert_eq!(errno, if forever { 0 } else { -5 }, "operation {at}");
            let (replay, clean) = replayed(&plain).unwrap();
            assert_eq!(replay.errno, errno, "reported");
            assert_eq!(clean.superblock().errno, 0, "and cleared");
            let fills: Vec<_> = (0..5).map(|block| fill_of(&plain, block)).collect();
            assert!(fills.iter().all(|fill| *fill == fills[0]), "operation {at}: {fills:?}");
            // A commit block whose write failed may be there all the same.
            let fill = fills[0].unwrap();
            let fill = if fill == 0xee { 0 } else { fill };
            assert!(fill == committed || fill == committed + 1, "{at}: {fill} {committed}");
        }
    }
    assert_eq!(ends, 2);
}

#[test]
fn j8_an_abort_inside_a_handle_keeps_its_transaction_from_the_device() {
    let below = Arc::new(formatted(JournalChecksum::V3));
    let device: SharedDevice = below.clone();
    let client = TestClient::plain();
    let journal = open(&device, client.clone());
    let block = TestBlock::new(3);
    change(&journal, &[(&block, 1)]);
    let mut handle = journal.start(1).unwrap();
    handle.claim(&block).unwrap();
    block.set(2);
    let tid = handle.tid();
    journal.abort(117, "found damage half-way");
    journal.abort(5, "a second reason does not count");
    drop(handle);
    assert!(journal.commit(tid).is_err());
    assert_eq!(client.aborted.lock()[0].errno, 117);
    assert_eq!(store(&device).superblock().errno, -117);
    drop(journal);
    replayed(&device).unwrap();
    assert_eq!(fill_of(&device, 3), Some(1));
}

#[test]
fn a_failed_encoding_aborts() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let damaged = || EncodeError::new(117, "damaged");
    let client = TestClient::new(Box::new(move |_, _| Err(damaged())), Box::new(|_| ()));
    let journal = open(&device, client.clone());
    let mut handle = journal.start(1).unwrap();
    handle.claim(&TestBlock::new(1)).unwrap();
    let tid = handle.tid();
    drop(handle);
    assert!(journal.commit(tid).is_err());
    let reason = journal.abort_reason().unwrap();
    assert_eq!(reason.errno, 117, "what it says counts, and not that encoding failed");
    assert!(reason.why.contains("damaged"), "{}", reason.why);
    assert!(client.committed.lock().is_empty());
    assert!(!store(&device).superblock().is_dirty());
    assert_eq!(store(&device).superblock().errno, -117);
}

#[test]
fn j8_an_abort_while_a_transaction_is_written_keeps_it_from_counting() {
    let hooked = hooked(formatted(JournalChecksum::V3));
    let device: SharedDevice = hooked.clone();
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(3);
    change(&journal, &[(&block, 1)]);
    let aborted = Arc::downgrade(&journal);
    let abort = move || {
        if let Some(journal) = aborted.upgrade() {
            journal.abort(117, "found damage meanwhile");
        }
    };
    assert!(hooked.state.set(Box::new(abort)).is_ok());
    let mut handle = journal.start(1).unwrap();
    handle.claim(&block).unwrap();
    block.set(2);
    let tid = handle.tid();
    drop(handle);
    assert!(matches!(journal.commit(tid), Err(JournalError::Aborted { .. })));
    drop(journal);
    replayed(&device).unwrap();
    assert_eq!(fill_of(&*device, 3), Some(1), "as before the transaction that failed");
}

#[test]
fn k4_what_could_not_be_written_stays_in_memory() {
    // Without a log, with a log and what of the commit fails: its first write, the copies, the commit block.
    for (logged, at) in [(false, 1), (true, 1), (true, 2), (true, 3), (true, 4)] {
        let below = Arc::new(formatted(JournalChecksum::V3));
        let device: SharedDevice = Arc::new(Failing::once(below, at));
        let client = TestClient::plain();
        let journal = match logged {
            true => open(&device, client),
            false => Journal::without_log(device, size(), client, options()),
        };
        let block = TestBlock::new(3);
        let mut handle = journal.start(1).unwrap();
        handle.claim(&block).unwrap();
        block.set(1);
        let tid = handle.tid();
        drop(handle);
        assert!(journal.commit(tid).is_err(), "operation {at}");
        // The client's cache has it, and whoever counts its holders finds another.
        assert_eq!(
            Arc::strong_count(&block),
            2,
            "operation {at} of a journal, with a log: {logged}"
        );
    }
}
