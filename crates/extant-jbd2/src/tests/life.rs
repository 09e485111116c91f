//! A log that is full, empty, at rest, or closed while others go on.

use std::sync::atomic::{AtomicBool, Ordering};

use extant_block::RecordingDevice;
use extant_sync::threads;

use super::*;

/// A journal with one transaction in its log (block 9 is 1), whose client adds `more` blocks to the next.
fn with_more(device: &SharedDevice, more: u64) -> Arc<Journal> {
    let adds = Arc::new(AtomicBool::new(false));
    let now = Arc::clone(&adds);
    let client = TestClient::new(
        Box::new(move |_, sink| {
            for number in (10..10 + more).filter(|_| now.load(Ordering::Relaxed)) {
                let block = TestBlock::new(number);
                block.set(2);
                sink.claim(block);
            }
            Ok(())
        }),
        Box::new(|_| ()),
    );
    let journal = open(device, client);
    change(&journal, &[(&TestBlock::new(9), 1)]);
    adds.store(true, Ordering::Relaxed);
    journal
}

#[test]
fn what_encoding_adds_fills_the_log_and_never_goes_over_its_tail() {
    // 47 blocks: 3 are in use, one stays free, the commit block and a descriptor come on top.
    for (more, fits) in [(40, true), (41, false), (54, false)] {
        let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
        let journal = with_more(&device, more);
        let mut handle = journal.start(1).unwrap();
        let block = TestBlock::new(9);
        handle.claim(&block).unwrap();
        block.set(3);
        let tid = handle.tid();
        drop(handle);
        let committed = journal.commit(tid);
        assert_eq!(committed.is_ok(), fits, "{more}: {committed:?}");
        assert_eq!(journal.is_aborted(), !fits);
        drop(journal);
        let (replay, _) = replayed(&device).unwrap();
        assert_eq!(replay.errno, if fits { 0 } else { -5 });
        let (old, new) = if fits { (3, 2) } else { (1, 0xee) };
        assert_eq!(fill_of(&device, 9), Some(old), "{more}");
        for number in 10..10 + more {
            assert_eq!(fill_of(&device, number), Some(new), "block {number} of {more}");
        }
    }
}

#[test]
fn a_checkpoint_of_an_empty_log_writes_nothing() {
    let device = Arc::new(RecordingDevice::over(formatted(JournalChecksum::V3)));
    let shared: SharedDevice = device.clone();
    let journal = open(&shared, TestClient::plain());
    journal.checkpoint().unwrap();
    assert!(device.is_empty(), "a log that was never used stays clean");
    change(&journal, &[(&TestBlock::new(9), 1)]);
    assert!(journal.rest::<JournalError>(|| Ok(())).unwrap());
    let before = device.len();
    journal.checkpoint().unwrap();
    assert_eq!(device.len(), before, "and one at rest too");
    assert!(!store(&shared).superblock().is_dirty());
}

#[test]
fn j11_after_a_rest_the_next_commit_marks_the_log_as_in_use() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(9);
    for round in 1..=3 {
        change(&journal, &[(&block, 2 * round)]);
        assert!(store(&device).superblock().is_dirty(), "round {round}");
        let called = AtomicBool::new(false);
        let rested = journal.rest::<JournalError>(|| {
            called.store(true, Ordering::Relaxed);
            Ok(())
        });
        assert!(rested.unwrap() && called.into_inner());
        assert!(!store(&device).superblock().is_dirty(), "round {round}");
        assert_eq!(fill_of(&device, 9), Some(2 * round));
    }
    change(&journal, &[(&block, 7)]);
    drop(journal);
    let (replay, _) = replayed(&device).unwrap();
    assert_eq!(replay.transactions, 1);
    assert_eq!(fill_of(&device, 9), Some(7));
}

#[test]
fn a_block_that_was_freed_and_is_claimed_again_is_in_the_transaction() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(5);
    let mut handle = journal.start(2).unwrap();
    handle.claim(&block).unwrap();
    block.set(1);
    handle.revoke(FsBlock(5)).unwrap();
    assert_eq!(handle.credits_left(), 2, "it left the transaction");
    handle.revoke(FsBlock(6)).unwrap();
    assert_eq!(handle.credits_left(), 2, "this one never was in it");
    handle.claim(&block).unwrap();
    assert_eq!(handle.credits_left(), 1);
    block.set(2);
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid).unwrap();
    drop(journal);
    replayed(&device).unwrap();
    assert_eq!(fill_of(&device, 5), Some(2));
}

#[test]
fn many_revokes_take_few_blocks_and_hide_every_copy() {
    let (home, len, count) = (320u64, 1300u32, 300u64);
    for version in VERSIONS {
        let device: SharedDevice =
            Arc::new(MemoryDevice::new((home + u64::from(len)) * BLOCK as u64));
        let mut superblock = TestLog::new(version, len, 0).superblock;
        superblock.sequence = extant_format::jbd2::Tid(7);
        let mut bytes = vec![0; JournalSuperblock::BYTES];
        superblock.encode(&mut bytes).unwrap();
        device.write_at(home * BLOCK as u64, &bytes).unwrap();
        let log = || {
            let run = JournalRun { journal_start: 0, device_start: FsBlock(home), len };
            let log = MappedJournal::new(Arc::clone(&device), size(), vec![run]);
            LogStore::internal(Arc::new(log)).unwrap()
        };
        let client = TestClient::plain();
        let journal = Journal::open(log(), Arc::clone(&device), client, options()).unwrap();
        let blocks: Vec<_> = (0..count).map(TestBlock::new).collect();
        change(&journal, &blocks.iter().map(|block| (block, 1)).collect::<Vec<_>>());
        let before = journal.stats().log_blocks;
        let mut handle = journal.start(4).unwrap();
        for number in 0..count {
            handle.revoke(FsBlock(number)).unwrap();
        }
        let (left, tid) = (handle.credits_left(), handle.tid());
        drop(handle);
        journal.commit(tid).unwrap();
        // A block holds 125 numbers, or 126 without a checksum.
        assert_eq!((left, journal.stats().log_blocks - before), (1, 3 + 1), "{version:?}");
        drop(journal);
        let options = RecoveryOptions::new(home);
        let recovered = recover_to_device(log(), &device, &options, unchecked, &unwatched).unwrap();
        assert_eq!(recovered.replay().revoked, count, "{version:?}");
        assert!(recovered.replay().changes_nothing());
        recovered.finish().unwrap();
        assert!((0..count).all(|block| fill_of(&device, block) == Some(0)));
    }
}

#[test]
fn a_change_made_while_committed_blocks_go_home_ends_a_rest_and_is_committed_by_a_close() {
    for closes in [false, true] {
        let hooked = hooked(formatted(JournalChecksum::V3));
        let called = Arc::new(AtomicBool::new(false));
        let before = Arc::clone(&called);
        let device: SharedDevice = hooked.clone();
        let journal = open(&device, TestClient::plain());
        change(&journal, &[(&TestBlock::new(9), 1)]);
        let other = Arc::downgrade(&journal);
        let late = move || {
            if before.swap(true, Ordering::Relaxed) {
                return;
            }
            let journal = other.upgrade().unwrap();
            let run = move || {
                let mut handle = journal.start(1).unwrap();
                let block = TestBlock::new(10);
                handle.claim(&block).unwrap();
                block.set(2);
            };
            threads::scope(|scope| drop(scope.spawn("a late change", run).unwrap())).unwrap();
        };
        // The transaction is in the log: the next flush is that of the blocks that went home.
        assert!(hooked.state.set(Box::new(late)).is_ok());
        match closes {
            true => journal.close().unwrap(),
            false => {
                let rested = journal.rest::<JournalError>(|| panic!("it is not at rest"));
                assert!(!rested.unwrap(), "there is a change since");
                assert!(store(&device).superblock().is_dirty());
                journal.commit(journal.running()).unwrap();
            }
        }
        assert!(called.load(Ordering::Relaxed));
        drop(journal);
        let (replay, _) = replayed(&device).unwrap();
        assert_eq!(replay.dirty, !closes);
        assert_eq!((fill_of(&device, 9), fill_of(&device, 10)), (Some(1), Some(2)));
    }
}

#[test]
fn a_client_may_refuse_a_replay_before_anything_of_it_is_written() {
    // What the log says, and the error that it was aborted with.
    for (dirty, errno) in [(true, 0), (false, -5), (true, -5), (false, 0)] {
        let device = Arc::new(RecordingDevice::over(formatted(JournalChecksum::V3)));
        let shared: SharedDevice = device.clone();
        let journal = open(&shared, TestClient::plain());
        change(&journal, &[(&TestBlock::new(9), 1)]);
        if !dirty {
            journal.close().unwrap();
        }
        let mut log = store(&shared);
        let superblock = JournalSuperblock { errno, ..log.superblock().clone() };
        log.write_superblock(superblock).unwrap();
        let (before, asked) = (device.len(), AtomicBool::new(false));
        let refuse = |seen: SharedDevice, replay: &Replay| {
            asked.store(true, Ordering::Relaxed);
            assert_eq!((replay.dirty, replay.errno), (dirty, errno));
            assert_eq!(fill_of(&*seen, 9), Some(1), "the device as it will be");
            assert_eq!(replay.changes_nothing(), !dirty);
            Err(RecoveryError::Stopped)
        };
        let options = RecoveryOptions::new(HOME_BLOCKS);
        let recovered = recover_to_device(log, &shared, &options, refuse, &unwatched);
        let is_asked = dirty || errno != 0;
        assert_eq!((asked.into_inner(), recovered.is_err()), (is_asked, is_asked));
        drop(recovered);
        assert_eq!(device.len(), before, "dirty {dirty}, error {errno}");
        assert_eq!(fill_of(&*device, 9), Some(if dirty { 0xee } else { 1 }));
    }
}

#[test]
fn a_journal_with_a_hole_has_no_block_there_and_is_not_opened() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    // Without the last block of each run, one after the other.
    for (at, missing) in [(0, 19), (1, 29), (2, 47)] {
        let mut runs = runs();
        runs[at].len -= 1;
        let log = Arc::new(MappedJournal::new(Arc::clone(&device), size(), runs));
        assert_eq!(log.locate(missing), None);
        assert!(log.locate(missing - 1).is_some());
        let opened = LogStore::internal(log);
        if missing == 47 {
            let too_short = RecoveryError::TooShort { claimed: 48, available: 47 };
            assert_eq!(opened.unwrap_err().to_string(), too_short.to_string());
            continue;
        }
        let store = opened.unwrap();
        let opened = Journal::open(store, Arc::clone(&device), TestClient::plain(), options());
        assert!(
            matches!(opened, Err(JournalOpenError::Unmapped { block }) if block == missing),
            "{missing}: {opened:?}"
        );
    }
}

#[test]
fn the_blocks_of_a_journal_are_where_its_runs_say_in_whatever_order_those_come() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let in_order = MappedJournal::new(Arc::clone(&device), size(), runs());
    let mut backwards = runs();
    backwards.reverse();
    let backwards = MappedJournal::new(device, size(), backwards);
    for block in 0..LOG_BLOCKS + 1 {
        assert_eq!(backwards.locate(block), in_order.locate(block), "{block}");
    }
    assert_eq!(backwards.block_count(), u64::from(LOG_BLOCKS));
}

#[test]
fn a_journal_superblock_that_was_changed_behind_its_checksum_is_refused() {
    let device = formatted(JournalChecksum::V3);
    let at = (HOME_BLOCKS + 28) * BLOCK as u64 + 0x18; // s_sequence
    device.write_at(at, &[0, 0, 0, 99]).unwrap();
    let log = Arc::new(MappedJournal::new(Arc::new(device), size(), runs()));
    assert!(matches!(LogStore::internal(log), Err(RecoveryError::SuperblockChecksum(_))));
}
