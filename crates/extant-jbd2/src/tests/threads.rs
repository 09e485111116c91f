//! T1: many threads at once, and every image of one consistent state.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use extant_block::{BlockDevice, Operation, OperationKind, Pending};
use extant_sync::{Clock as _, SystemClock, threads};
use extant_testkit::Ends;

use super::*;

const THREADS: usize = 4;
const ROUNDS: u64 = 3000;

fn counter(block: &TestBlock) -> u64 {
    u64::from_le_bytes(block.bytes.lock()[8..16].try_into().unwrap())
}

fn add_one(block: &TestBlock) {
    let mut bytes = block.bytes.lock();
    let bytes = Arc::make_mut(&mut bytes);
    let next = u64::from_le_bytes(bytes[8..16].try_into().unwrap()) + 1;
    bytes[8..16].copy_from_slice(&next.to_le_bytes());
}

#[test]
fn t1_no_handle_is_open_while_a_transaction_is_encoded() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    // A pair of blocks per thread: every handle counts both up, one after the other.
    let pairs: Arc<Vec<_>> = Arc::new(
        (0..THREADS as u64).map(|t| (TestBlock::new(2 * t), TestBlock::new(2 * t + 17))).collect(),
    );
    let total = TestBlock::new(50);
    let (open_handles, encodes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen, inside, encoded) =
        (Arc::clone(&pairs), Arc::clone(&open_handles), Arc::clone(&encodes));
    let encode_total = Arc::clone(&total);
    let client = TestClient::new(
        Box::new(move |_, sink| {
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            let mut sum = 0;
            for (left, right) in seen.iter() {
                assert_eq!(counter(left), counter(right));
                sum += counter(left);
            }
            // The sum is made here only, as state that is encoded once.
            let mut bytes = encode_total.bytes.lock();
            Arc::make_mut(&mut bytes)[8..16].copy_from_slice(&sum.to_le_bytes());
            drop(bytes);
            sink.claim(Arc::clone(&encode_total) as Arc<dyn JournalBlock>);
            encoded.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }),
        Box::new(|_| ()),
    );
    let journal = open(&device, client.clone());
    let done = AtomicBool::new(false);
    threads::scope(|scope| {
        let workers: Vec<_> = (0..THREADS)
            .map(|thread| {
                let (journal, pairs, open_handles) = (&journal, &pairs, &open_handles);
                scope.spawn(&format!("worker {thread}"), move || {
                    let (left, right) = &pairs[thread];
                    for round in 0..ROUNDS {
                        let mut handle = journal.start(2).unwrap();
                        open_handles.fetch_add(1, Ordering::SeqCst);
                        handle.claim(left).unwrap();
                        add_one(left);
                        handle.claim(right).unwrap();
                        add_one(right);
                        let tid = handle.tid();
                        open_handles.fetch_sub(1, Ordering::SeqCst);
                        drop(handle);
                        if round % 50 == thread as u64 {
                            journal.commit(tid).unwrap();
                        }
                    }
                })
            })
            .collect();
        let (journal, done) = (&journal, &done);
        let other = scope.spawn("checkpoints", move || {
            while !done.load(Ordering::Relaxed) {
                journal.checkpoint().unwrap();
                std::hint::spin_loop();
            }
        });
        let ends = Ends(done);
        for worker in workers {
            worker.unwrap().join().unwrap();
        }
        drop(ends);
        other.unwrap().join().unwrap();
    })
    .unwrap();
    journal.close().unwrap();
    let stats = journal.stats();
    assert_eq!(stats.commits, encodes.load(Ordering::Relaxed));
    assert!(stats.handles >= THREADS as u64 * ROUNDS);
    let value = |block: u64| {
        let mut bytes = [0; 8];
        device.read_at(block * BLOCK as u64 + 8, &mut bytes).unwrap();
        u64::from_le_bytes(bytes)
    };
    assert_eq!(value(50), THREADS as u64 * ROUNDS);
    for thread in 0..THREADS as u64 {
        assert_eq!((value(2 * thread), value(2 * thread + 17)), (ROUNDS, ROUNDS));
    }
    let tids = client.committed.lock();
    assert!(tids.windows(2).all(|pair| pair[1] == tid_next(pair[0])));
}

#[test]
fn t3_credits_kept_by_lanes_neither_overfill_a_transaction_nor_block_the_next_handle() {
    // A limit large enough for lanes to keep credits.
    let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let (claimed, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (in_transaction, largest) = (Arc::clone(&claimed), Arc::clone(&most));
    let client = TestClient::new(
        Box::new(move |_, _| {
            largest.fetch_max(in_transaction.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            Ok(())
        }),
        Box::new(|_| ()),
    );
    let options = JournalOptions { pinned_blocks_max: 2048, ..options() };
    let journal = Journal::without_log(device, size(), client, options);
    let limit = journal.credits_max();
    assert_eq!(limit, 512);
    threads::workers("worker", THREADS, |thread| {
        for round in 0..1000u64 {
            let mut handle = journal.start(4).unwrap();
            for at in 0..1 + round % 4 {
                let number = (thread as u64 * 1000 + round * 4 + at) % 1024;
                let before = handle.credits_left();
                handle.claim(&TestBlock::new(number)).unwrap();
                claimed.fetch_add(u64::from(before - handle.credits_left()), Ordering::Relaxed);
            }
        }
    })
    .unwrap();
    assert!(journal.stats().commits >= 5, "{:?}", journal.stats());
    let most = most.load(Ordering::Relaxed);
    assert!((u64::from(limit) / 2..=u64::from(limit)).contains(&most), "{most}");
    // Nothing is claimed; what lanes keep must not make this wait for ever.
    journal.commit(journal.running()).unwrap();
    threads::workers("idle", THREADS, |_| drop(journal.start(1).unwrap())).unwrap();
    drop(journal.start(limit).unwrap());
    let commits = journal.stats().commits;
    journal.commit(journal.running()).unwrap();
    assert_eq!(journal.stats().commits, commits, "empty transactions are not written");
}

#[test]
fn handles_of_one_thread_share_their_credits_and_write_nothing_that_others_read() {
    let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let client = TestClient::new(Box::new(|_, _| Ok(())), Box::new(|_| ()));
    let options = JournalOptions { pinned_blocks_max: 8192, ..options() };
    let journal = Journal::without_log(device, size(), client, options);
    assert_eq!(journal.credits_max(), 2048);
    // A lane keeps at most 32: for larger handles there is no way around the common number.
    for (credits, most) in [(1, 1), (16, 1), (17, 1), (32, 1), (33, 200)] {
        journal.commit(journal.running()).unwrap();
        let charged = || journal.charged.load(Ordering::Relaxed);
        let (mut last, mut changes) = (charged(), 0);
        let mut look = || {
            changes += u32::from(charged() != last);
            last = charged();
            last
        };
        for _ in 0..100 {
            let handle = journal.start(credits).unwrap();
            assert!(look() >= credits, "a handle of {credits} is open");
            drop(handle);
            assert!(look() <= 32, "a lane keeps at most 32");
        }
        assert!(changes <= most, "{credits} credits: the common number changed {changes} times");
    }
}

/// A device whose first flush takes until as many as wanted have come.
struct Slow {
    inner: SharedDevice,
    came: Arc<AtomicU64>,
    wanted: u64,
}

impl BlockDevice for Slow {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        if batch.iter().any(|operation| operation.kind() == OperationKind::Flush) {
            while self.came.load(Ordering::SeqCst) < self.wanted {
                threads::give_way();
            }
        }
        self.inner.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn describe(&self) -> Arc<str> {
        self.inner.describe()
    }
}

/// Changes a block, in a transaction that is not committed.
fn set(journal: &Journal, block: &Arc<TestBlock>, fill: u8) -> Tid {
    let mut handle = journal.start(1).unwrap();
    handle.claim(block).unwrap();
    block.set(fill);
    handle.tid()
}

#[test]
fn all_who_come_during_a_commit_share_the_next_one_and_are_woken_once() {
    // So many that their handles fit into one transaction of this log.
    const OTHERS: u64 = 6;
    let came = Arc::new(AtomicU64::new(0));
    let inner: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let device: SharedDevice = Arc::new(Slow { inner, came: Arc::clone(&came), wanted: OTHERS });
    let journal = open(&device, TestClient::plain());
    let (first, block) = (set(&journal, &TestBlock::new(0), 1), TestBlock::new(1));
    assert!(u64::from(journal.credits_max()) >= OTHERS, "{}", journal.credits_max());
    threads::workers("committer", OTHERS as usize + 1, |thread| {
        if thread == 0 {
            return journal.commit(first).unwrap();
        }
        // The first transaction is locked: it waits for these.
        while journal.running() == first {
            threads::give_way();
        }
        let tid = set(&journal, &block, thread as u8);
        // First: if anything is wrong, the device must not wait for ever.
        came.fetch_add(1, Ordering::SeqCst);
        assert_eq!(tid, tid_next(first));
        journal.commit(tid).unwrap();
    })
    .unwrap();
    assert_eq!(journal.stats().commits, 2, "{:?}", journal.stats());
    let woken = journal.waiting.woken.load(Ordering::Relaxed);
    assert!(woken <= OTHERS, "{woken} wakes of {OTHERS} who waited");
    journal.close().unwrap();
}

/// A journal whose commits wait for whoever is expected, however slow the machine is.
fn patient(device: SharedDevice) -> Arc<Journal> {
    let time = Duration::from_millis(500);
    let options = JournalOptions { batch_time: time..=time, ..options() };
    Journal::without_log(device, size(), TestClient::plain(), options)
}

#[test]
fn threads_that_sync_again_and_again_share_their_commits() {
    const THREADS: usize = 16;
    const ROUNDS: u64 = 60;
    // The first commit takes until all have come.
    let came = Arc::new(AtomicU64::new(0));
    let inner: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let wanted = THREADS as u64;
    let journal = patient(Arc::new(Slow { inner, came: Arc::clone(&came), wanted }));
    threads::workers("syncer", THREADS, |thread| {
        let block = TestBlock::new(thread as u64);
        for round in 0..ROUNDS {
            let tid = set(&journal, &block, round as u8);
            came.fetch_add(1, Ordering::SeqCst);
            journal.commit(tid).unwrap();
            assert!(journal.running() > tid, "it came back before its commit");
        }
    })
    .unwrap();
    let stats = journal.stats();
    // Each round is one commit from the moment on when all have met; nobody can have part in two at once.
    assert!((ROUNDS..=ROUNDS * THREADS as u64 / 4).contains(&stats.commits), "{stats:?}");
    assert_eq!(stats.handles, ROUNDS * THREADS as u64);
}

#[test]
fn a_thread_that_syncs_alone_waits_for_nobody() {
    let journal = patient(Arc::new(MemoryDevice::new(1 << 20)));
    for round in 0..20 {
        let tid = set(&journal, &TestBlock::new(round), 1);
        journal.commit(tid).unwrap();
        // There is nothing in it; who came for nothing is not waited for.
        journal.commit(journal.running()).unwrap();
        journal.commit(journal.running()).unwrap();
    }
    assert_eq!((journal.stats().commits, journal.stats().batched), (20, 0));
    assert_eq!(journal.waiting.slept.load(Ordering::Relaxed), 0);
}

#[test]
fn all_who_wait_for_others_hear_that_the_journal_stopped() {
    const THREADS: usize = 4;
    let time = Duration::from_secs(3600);
    let options = JournalOptions { batch_time: time..=time, ..options() };
    let device: SharedDevice = Arc::new(MemoryDevice::new(1 << 20));
    let journal = Journal::without_log(device, size(), TestClient::plain(), options);
    // More are expected than come.
    journal.expect_committers(THREADS as u32 + 1);
    let block = TestBlock::new(1);
    let tid = set(&journal, &block, 1);
    threads::workers("waiter", THREADS + 1, |thread| {
        if thread < THREADS {
            let result = journal.commit(tid);
            assert!(matches!(result, Err(JournalError::Aborted { errno: 5, .. })), "{result:?}");
            return;
        }
        while journal.waiting.slept.load(Ordering::Relaxed) < THREADS as u64 {
            threads::give_way();
        }
        journal.abort(5, "a test");
    })
    .unwrap();
    assert_eq!(journal.stats().commits, 0);
}

#[test]
fn all_who_wait_while_the_journal_is_closed_come_back() {
    const OTHERS: u64 = 4;
    let (came, back) = (Arc::new(AtomicU64::new(0)), AtomicU64::new(0));
    let inner: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let device: SharedDevice = Arc::new(Slow { inner, came: Arc::clone(&came), wanted: 1 });
    let journal = open(&device, TestClient::plain());
    let first = set(&journal, &TestBlock::new(0), 1);
    let until = |what: &dyn Fn() -> bool| {
        let start = SystemClock.monotonic();
        while !what() && SystemClock.monotonic() - start < Duration::from_secs(20) {
            threads::give_way();
        }
        what()
    };
    threads::workers("committer", OTHERS as usize + 2, |thread| match thread {
        0 => journal.close().unwrap(),
        1 => {
            // The first transaction is written when those who wait for the next one sleep.
            assert!(until(&|| journal.waiting.slept.load(Ordering::Relaxed) == OTHERS));
            came.store(1, Ordering::SeqCst);
            let all_back = until(&|| back.load(Ordering::SeqCst) == OTHERS);
            journal.waiting.wake_all();
            assert!(all_back, "{} of {OTHERS} came back", back.load(Ordering::SeqCst));
        }
        _ => {
            assert!(until(&|| journal.running() != first));
            let result = journal.commit(tid_next(first));
            assert!(matches!(result, Err(JournalError::Closed)), "{result:?}");
            back.fetch_add(1, Ordering::SeqCst);
        }
    })
    .unwrap();
}

#[test]
fn many_who_commit_and_some_who_checkpoint_all_come_back() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let journal = open(&device, TestClient::plain());
    threads::workers("committer", 8, |thread| {
        let block = TestBlock::new(thread as u64);
        for round in 0..400 {
            let tid = set(&journal, &block, round as u8);
            match round % 50 {
                // Nothing is in it any more, or not yet.
                49 => journal.commit(journal.running()).unwrap(),
                7 if thread == 0 => journal.checkpoint().unwrap(),
                _ => journal.commit(tid).unwrap(),
            }
        }
    })
    .unwrap();
    let stats = journal.stats();
    assert!(stats.commits <= stats.handles, "{stats:?}");
    journal.close().unwrap();
}
