//! One rule, one test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use extant_block::{BlockDevice, DeviceError, Operation, Pending, Record, RecordingDevice};
use extant_format::jbd2::{BlockHeader, BlockType, CommitBlock, Tid as RawTid};
use extant_sync::Clock;

use super::*;

fn recording(checksum: JournalChecksum) -> (Arc<RecordingDevice>, SharedDevice) {
    let device = Arc::new(RecordingDevice::over(formatted(checksum)));
    (device.clone(), device)
}

#[test]
fn j1_nothing_goes_home_before_a_checkpoint() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(9);
    change(&journal, &[(&block, 1)]);
    assert_eq!(fill_of(&device, 9), Some(0xee));
    journal.checkpoint().unwrap();
    assert_eq!(fill_of(&device, 9), Some(1));
}

#[test]
fn j2_the_tail_moves_after_a_flush_of_the_home_writes() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let blocks: Vec<_> = (4..8).map(TestBlock::new).collect();
    let list: Vec<_> = blocks.iter().map(|block| (block, 3)).collect();
    change(&journal, &list);
    let before = recorder.len();
    journal.checkpoint().unwrap();
    let records = recorder.records().split_off(before);
    let [home @ .., Record::Flush, Record::Write { fua: true, .. }] = &records[..] else {
        panic!("{} records", records.len());
    };
    // The device records each block of a run.
    let homes: Vec<_> = home.iter().map(Record::range).collect();
    let block = |number: u64| (number * BLOCK as u64, BLOCK as u64);
    assert_eq!(homes, (4..8).map(block).collect::<Vec<_>>());
    let superblock = store(&device).superblock().clone();
    assert!(superblock.is_dirty(), "in use, and empty");
    assert_eq!(superblock.sequence.0, journal.running());
}

#[test]
fn j3_committed_is_called_after_the_commit_block_and_in_order() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let seen = Arc::new(AtomicU32::new(0));
    let (at, watched) = (Arc::clone(&seen), Arc::clone(&recorder));
    let client = TestClient::new(
        Box::new(|_, _| Ok(())),
        Box::new(move |_| {
            let last = watched.records().pop();
            assert!(matches!(last, Some(Record::Write { fua: true, .. })), "{last:?}");
            at.fetch_add(1, Ordering::Relaxed);
        }),
    );
    let journal = open(&device, client.clone());
    let block = TestBlock::new(9);
    let tids: Vec<_> = (0..5).map(|fill| change(&journal, &[(&block, fill)])).collect();
    assert_eq!(*client.committed.lock(), tids);
    assert_eq!(seen.load(Ordering::Relaxed), 5);
}

#[test]
fn j4_j5_a_freed_block_is_revoked_with_its_transaction_and_only_if_the_log_has_it() {
    for version in VERSIONS {
        let (_, device) = recording(version);
        let journal = open(&device, TestClient::plain());
        let (old, other, young) = (TestBlock::new(5), TestBlock::new(6), TestBlock::new(7));
        change(&journal, &[(&old, 1)]);
        let mut handle = journal.start(3).unwrap();
        handle.claim(&young).unwrap();
        handle.claim(&other).unwrap();
        assert_eq!(handle.credits_left(), 1);
        other.set(2);
        handle.revoke(FsBlock(5)).unwrap();
        handle.revoke(FsBlock(7)).unwrap(); // Never was in the log.
        assert_eq!(handle.credits_left(), 1, "one for records, one back");
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
        assert_eq!(journal.stats().revokes, 1, "{version:?}");
        assert_eq!(journal.stats().blocks_logged, 2);
        journal.checkpoint().unwrap();
        assert_eq!(fill_of(&device, 5), Some(0xee), "dropped from the table");
        drop(journal);
    }
}

#[test]
fn j4_a_block_that_is_metadata_again_cancels_its_revoke() {
    for same in [true, false] {
        let (_, device) = recording(JournalChecksum::V3);
        let journal = open(&device, TestClient::plain());
        let block = TestBlock::new(5);
        change(&journal, &[(&block, 1)]);
        let mut handle = journal.start(4).unwrap();
        handle.revoke(FsBlock(5)).unwrap();
        let again = TestBlock::new(5);
        if same {
            handle.claim(&again).unwrap();
            again.set(2);
        }
        let tid = handle.tid();
        drop(handle);
        journal.commit(tid).unwrap();
        if !same {
            change(&journal, &[(&again, 2)]);
        }
        drop(journal);
        let (replay, _) = replayed(&device).unwrap();
        assert_eq!(replay.transactions, if same { 2 } else { 3 });
        assert_eq!(fill_of(&device, 5), Some(2), "same transaction: {same}");
    }
}

#[test]
fn j6_log_then_flush_then_commit_block_with_fua() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(9);
    change(&journal, &[(&block, 1)]);
    let before = recorder.len();
    change(&journal, &[(&block, 2)]);
    let records = recorder.records().split_off(before);
    let [Record::Write { data, fua: false, .. }, Record::Flush, Record::Write { fua: true, .. }] =
        &records[..]
    else {
        panic!("{records:?}");
    };
    assert_eq!(data.len(), 2 * BLOCK, "descriptor and copy in one write");
}

#[test]
fn j7_an_external_journal_flushes_the_home_device_before_it_commits() {
    let home = Arc::new(RecordingDevice::new(HOME_BLOCKS * BLOCK as u64));
    // There would be room for fast commits.
    let log_len = 1300;
    let image = MemoryDevice::new(u64::from(log_len) * BLOCK as u64);
    let mut ext4 = vec![0u8; 1024];
    ext4[0x38..0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
    ext4[0x60] = 8;
    image.write_at(1024, &ext4).unwrap();
    let mut superblock = TestLog::new(JournalChecksum::V3, log_len, 0).superblock;
    superblock.first = 3;
    let mut bytes = vec![0; BLOCK];
    superblock.encode(&mut bytes).unwrap();
    image.write_at(2 * BLOCK as u64, &bytes).unwrap();
    let log: SharedDevice = Arc::new(image);
    let store = LogStore::external(ExternalJournal::open(Arc::clone(&log)).unwrap());
    let fast = JournalOptions { features: JournalIncompat::FAST_COMMIT, ..options() };
    let journal = Journal::open(store, home.clone(), TestClient::plain(), fast).unwrap();
    let block = TestBlock::new(9);
    home.write_at(0, &[1; 512]).unwrap();
    change(&journal, &[(&block, 4)]);
    assert_eq!(home.records().last(), Some(&Record::Flush));
    drop(journal);
    let store = LogStore::external(ExternalJournal::open(Arc::clone(&log)).unwrap());
    assert!(store.superblock().is_dirty());
    let no_area = !store.superblock().incompat.contains(JournalIncompat::FAST_COMMIT);
    assert!(no_area, "fast commits are made inside the file system alone");
    let shared: SharedDevice = home.clone();
    let options = RecoveryOptions::new(HOME_BLOCKS);
    recover_to_device(store, &shared, &options, unchecked, &unwatched).unwrap().finish().unwrap();
    assert_eq!(fill_of(&*home, 9), Some(4));
    assert!(!ExternalJournal::open(log).unwrap().superblock.is_dirty());
}

#[test]
fn j9_numbers_go_on_beyond_the_transaction_that_was_cut_off() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(9);
    let last = change(&journal, &[(&block, 1)]);
    drop(journal);
    let (replay, clean) = replayed(&device).unwrap();
    assert_eq!(replay.end_tid, RawTid(last + 1));
    assert_eq!(clean.superblock().sequence, RawTid(last + 2));
    assert_eq!(clean.superblock().head, replay.head, "and the log goes on where it ended");
    assert_ne!(replay.head, clean.superblock().first);
    let journal =
        Journal::open(clean, Arc::clone(&device), TestClient::plain(), options()).unwrap();
    assert_eq!(journal.running(), last + 2);
    change(&journal, &[(&block, 2)]);
    journal.close().unwrap();
    assert_eq!(fill_of(&device, 9), Some(2));
}

#[test]
fn j9_a_log_in_use_is_not_opened() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    change(&journal, &[(&TestBlock::new(9), 1)]);
    drop(journal);
    let opened = Journal::open(store(&device), Arc::clone(&device), TestClient::plain(), options());
    assert!(matches!(opened, Err(JournalOpenError::NotClean { .. })));
}

#[test]
fn j11_the_log_is_clean_until_the_first_commit_and_after_close() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    drop(journal.start(3).unwrap());
    journal.commit(journal.running()).unwrap();
    assert!(recorder.is_empty(), "an empty transaction is not written");
    change(&journal, &[(&TestBlock::new(9), 1)]);
    assert!(store(&device).superblock().is_dirty());
    assert!(store(&device).superblock().incompat.contains(JournalIncompat::REVOKE));
    journal.close().unwrap();
    journal.close().unwrap();
    let superblock = store(&device).superblock().clone();
    assert!(!superblock.is_dirty());
    assert_eq!(superblock.sequence.0, journal.running());
    assert!(matches!(journal.start(1), Err(JournalError::Closed)));
    assert!(!journal.is_aborted());
    assert_eq!(fill_of(&device, 9), Some(1));
}

#[test]
fn j12_images_are_taken_once_per_transaction_and_after_encoding() {
    let (_, device) = recording(JournalChecksum::V3);
    let (block, extra) = (TestBlock::new(9), TestBlock::new(10));
    let (sealed, added) = (Arc::clone(&block), Arc::clone(&extra));
    let client = TestClient::new(
        Box::new(move |_, sink| {
            sealed.set(42);
            added.set(43);
            sink.claim(Arc::clone(&added) as Arc<dyn JournalBlock>);
            Ok(())
        }),
        Box::new(|_| ()),
    );
    let journal = open(&device, client);
    let mut last = 0;
    for fill in 0..100 {
        let mut handle = journal.start(1).unwrap();
        handle.claim(&block).unwrap();
        block.set(fill);
        last = handle.tid();
    }
    journal.commit(last).unwrap();
    assert_eq!(block.images.load(Ordering::Relaxed), 1);
    journal.checkpoint().unwrap();
    assert_eq!((fill_of(&device, 9), fill_of(&device, 10)), (Some(42), Some(43)));
}

#[test]
fn a_transaction_takes_a_third_of_the_log_and_more_is_refused_or_waits_for_a_commit() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let max = journal.credits_max();
    assert!((8..=(LOG_BLOCKS - 1) / 3).contains(&max), "{max}");
    let refused = journal.start(max + 1).map(drop);
    assert!(matches!(refused, Err(JournalError::TooManyCredits { .. })));
    // Far more than the log holds, without asking for a commit.
    for round in 0..40u8 {
        let mut handle = journal.start(max - 1).unwrap();
        for number in 0..u64::from(max) - 1 {
            let block = TestBlock::new(number);
            handle.claim(&block).unwrap();
            block.set(round);
        }
        assert!(!handle.extend(2));
        assert!(handle.extend(1));
        assert!(journal.try_start(1).unwrap().is_none());
        let tid = handle.tid();
        handle.restart(2).unwrap();
        assert_ne!(handle.tid(), tid, "the next transaction");
    }
    let stats = journal.stats();
    assert!(stats.commits >= 40 && stats.checkpoints >= 10, "{stats:?}");
    journal.close().unwrap();
    assert_eq!(fill_of(&device, 0), Some(39));
}

#[test]
fn unused_credits_go_back_and_overdrawn_ones_are_taken_from_the_transaction() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let max = journal.credits_max();
    for _ in 0..100 {
        drop(journal.try_start(max).unwrap().expect("room"));
    }
    let mut handle = journal.start(0).unwrap();
    for number in 0..u64::from(max) {
        handle.claim(&TestBlock::new(number)).unwrap();
    }
    let full = handle.claim(&TestBlock::new(63));
    assert!(matches!(full, Err(JournalError::TooManyCredits { .. })));
}

#[test]
fn a_handle_takes_more_credits_while_the_transaction_has_room() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let max = journal.credits_max();
    let mut handle = journal.start(1).unwrap();
    assert!(handle.extend(2));
    assert_eq!(handle.credits_left(), 3);
    assert!(!handle.extend(max));
    assert_eq!(handle.credits_left(), 3);
}

#[test]
fn revokes_of_a_handle_without_credits_count_in_its_transaction() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let max = journal.credits_max();
    change(&journal, &[(&TestBlock::new(5), 1)]);
    let mut handle = journal.start(0).unwrap();
    handle.revoke(FsBlock(5)).unwrap();
    drop(handle);
    assert!(journal.try_start(max).unwrap().is_none(), "a block of records is one too many");
    assert!(journal.try_start(max - 1).unwrap().is_some());
}

#[test]
fn a_handle_whose_restart_failed_changes_nothing_more() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let max = journal.credits_max();
    let mut handle = journal.start(1).unwrap();
    assert!(handle.restart(max + 1).is_err());
    let block = TestBlock::new(5);
    assert!(matches!(handle.claim(&block), Err(JournalError::Closed)));
    assert!(matches!(handle.revoke(FsBlock(5)), Err(JournalError::Closed)));
    assert!(!handle.extend(1));
    drop(handle);
    assert_eq!(Arc::strong_count(&block), 1);
}

/// A device with `home` blocks of a file system and a clean journal of `len` blocks behind them, and what opens its log.
fn with_long_log(home: u64, len: u32) -> (SharedDevice, impl Fn() -> LogStore) {
    let device: SharedDevice = Arc::new(MemoryDevice::new((home + u64::from(len)) * BLOCK as u64));
    let superblock = TestLog::new(JournalChecksum::V3, len, 0).superblock;
    let mut bytes = vec![0; JournalSuperblock::BYTES];
    superblock.encode(&mut bytes).unwrap();
    device.write_at(home * BLOCK as u64, &bytes).unwrap();
    let below = Arc::clone(&device);
    let log = move || {
        let place = vec![JournalRun { journal_start: 0, device_start: FsBlock(home), len }];
        LogStore::internal(Arc::new(MappedJournal::new(Arc::clone(&below), size(), place))).unwrap()
    };
    (device, log)
}

#[test]
fn what_is_pinned_is_bounded_however_long_the_log_is() {
    // Four times what may be pinned: without the bound nothing would go home for hundreds of blocks. Less than the
    // least is asked for, which is 64.
    let (device, log) = with_long_log(512, 1300);
    let options = JournalOptions { pinned_blocks_max: 0, ..options() };
    let journal = Journal::open(log(), Arc::clone(&device), TestClient::plain(), options).unwrap();
    for round in 0..50u64 {
        let blocks: Vec<_> = (0..8).map(|at| TestBlock::new(round * 8 + at)).collect();
        let list: Vec<_> = blocks.iter().map(|block| (block, 1)).collect();
        change(&journal, &list);
        let work = journal.work.lock();
        assert!(work.table.len() <= 32, "{} of 64 blocks after a commit", work.table.len());
        assert!(work.used < work.len() / 3, "the log has room");
    }
    assert!((8..=20).contains(&journal.stats().checkpoints), "{:?}", journal.stats());
}

#[test]
fn transaction_0_is_left_out_when_numbers_wrap() {
    let image = formatted(JournalChecksum::V3);
    let mut superblock = TestLog::new(JournalChecksum::V3, LOG_BLOCKS, 0).superblock;
    superblock.sequence = RawTid(u32::MAX - 1);
    write_superblock(&image, &superblock);
    let device: SharedDevice = Arc::new(image);
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(9);
    let tids: Vec<_> = (0..4).map(|fill| change(&journal, &[(&block, fill)])).collect();
    assert_eq!(tids, [u32::MAX - 1, u32::MAX, 1, 2]);
    assert!(tid_geq(1, u32::MAX) && !tid_geq(u32::MAX, 1));
    assert!(!tid_geq(7 + (1 << 31), 7), "as far away one way as the other");
    assert_eq!(block.claimed().load(Ordering::Relaxed), 2, "the last that claimed it");
    drop(journal);
    replayed(&device).unwrap();
    assert_eq!(fill_of(&device, 9), Some(3));
}

#[test]
fn checksums_are_switched_on_with_the_first_commit_in_place_of_older_ones() {
    for before in [JournalChecksum::None, JournalChecksum::V1, JournalChecksum::V2] {
        let device: SharedDevice = Arc::new(formatted(before));
        let options = JournalOptions { features: JournalIncompat::CSUM_V3, ..options() };
        let journal =
            Journal::open(store(&device), Arc::clone(&device), TestClient::plain(), options)
                .unwrap();
        assert_eq!(store(&device).superblock().checksum(), before, "not yet");
        change(&journal, &[(&TestBlock::new(5), 5)]);
        let superblock = store(&device).superblock().clone();
        assert_eq!(superblock.checksum(), JournalChecksum::V3);
        // Linux does not mount a journal that says it has both kinds.
        assert!(!superblock.compat.contains(JournalCompat::CHECKSUM), "{superblock:?}");
        assert!(!superblock.incompat.contains(JournalIncompat::CSUM_V2), "{superblock:?}");
        replayed(&device).unwrap();
        assert_eq!(fill_of(&device, 5), Some(5), "escaped, and put back");
    }
}

#[test]
fn fast_commits_are_switched_on_with_the_first_commit_where_they_are_wanted() {
    for wanted in [JournalIncompat::FAST_COMMIT, JournalIncompat::empty()] {
        let (device, log) = with_long_log(64, 1300);
        let options = JournalOptions { features: wanted, ..options() };
        let journal =
            Journal::open(log(), Arc::clone(&device), TestClient::plain(), options).unwrap();
        change(&journal, &[(&TestBlock::new(5), 4)]);
        let has = log().superblock().incompat & JournalIncompat::FAST_COMMIT;
        assert_eq!(has, wanted);
    }
}

#[test]
fn the_interval_commits_what_changed_and_nothing_else() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let clock = Arc::new(FixedClock::at(5000, 0));
    let options = JournalOptions { clock: clock.clone(), ..options() };
    let journal =
        Journal::open(store(&device), Arc::clone(&device), TestClient::plain(), options).unwrap();
    clock.advance(Duration::from_secs(60));
    assert!(!journal.commit_if_due().unwrap());
    let mut handle = journal.start(1).unwrap();
    handle.claim(&TestBlock::new(1)).unwrap();
    drop(handle);
    clock.advance(Duration::from_secs(4));
    assert!(!journal.commit_if_due().unwrap());
    assert!(recorder.is_empty());
    clock.advance(Duration::from_secs(1));
    assert!(journal.commit_if_due().unwrap());
    assert_eq!(journal.stats().commits, 1);
}

#[test]
fn without_a_log_a_commit_writes_home_and_flushes() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let client = TestClient::plain();
    let journal = Journal::without_log(Arc::clone(&device), size(), client.clone(), options());
    let tid = change(&journal, &[(&TestBlock::new(1), 6), (&TestBlock::new(2), 6)]);
    let records = recorder.records();
    use Record::{Flush, Write};
    assert!(matches!(&records[..], [Write { .. }, Write { .. }, Flush]), "{}", records.len());
    assert_eq!(fill_of(&device, 2), Some(6));
    assert_eq!(*client.committed.lock(), [tid]);
    let before = recorder.len();
    let blocks = [47, 42, 45, 40, 3].map(TestBlock::new);
    change(&journal, &blocks.each_ref().map(|block| (block, 7)));
    let records = recorder.records().split_off(before);
    let places: Vec<u64> =
        records[..5].iter().map(|record| record.range().0 / BLOCK as u64).collect();
    assert_eq!(places, [3, 40, 42, 45, 47], "in the order of the device");
    assert_eq!(journal.work.lock().table.len(), 0, "what is home needs no copy in memory");
    journal.close().unwrap();
}

#[test]
fn an_image_of_the_wrong_length_aborts() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let block = TestBlock::new(1);
    let mut handle = journal.start(1).unwrap();
    handle.claim(&block).unwrap();
    *block.bytes.lock() = Arc::new(vec![1; 7]);
    let tid = handle.tid();
    drop(handle);
    assert!(matches!(journal.commit(tid), Err(JournalError::Aborted { .. })));
    // Not only this commit: what the transaction changed is lost, and nothing may be built on it.
    assert!(matches!(journal.start(1).map(drop), Err(JournalError::Aborted { .. })));
    assert_eq!(store(&device).superblock().errno, -5);
}

/// A clock that a test sets, back as well as forward.
struct SetClock(Mutex<i64>);

impl Clock for SetClock {
    fn now(&self) -> (i64, u32) {
        (*self.0.lock(), 0)
    }

    fn monotonic(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep(&self, _: Duration) {}
}

/// Blocks of the journal's own in the log: number in the file system and contents.
fn log_blocks(device: &dyn BlockDevice) -> Vec<(u64, Vec<u8>)> {
    let read = |place| {
        let mut bytes = vec![0; BLOCK];
        let block = HOME_BLOCKS + place;
        device.read_at(block * BLOCK as u64, &mut bytes).unwrap();
        (block, bytes)
    };
    let blocks = (0..u64::from(LOG_BLOCKS)).map(read);
    blocks.filter(|(_, bytes)| bytes[..4] == JBD2_MAGIC.to_be_bytes()).collect()
}

fn of_type(blocks: &[(u64, Vec<u8>)], wanted: BlockType) -> Vec<&(u64, Vec<u8>)> {
    let is_wanted =
        |bytes: &[u8]| BlockHeader::decode(bytes).is_ok_and(|header| header.block_type == wanted);
    blocks.iter().filter(|(_, bytes)| is_wanted(bytes)).collect()
}

#[test]
fn the_time_of_commits_does_not_go_back_with_the_clock() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let clock = Arc::new(SetClock(Mutex::new(Rank::Leaf, 5000)));
    let options = JournalOptions { clock: clock.clone(), ..options() };
    let journal =
        Journal::open(store(&device), Arc::clone(&device), TestClient::plain(), options).unwrap();
    change(&journal, &[(&TestBlock::new(1), 1)]);
    *clock.0.lock() = 4000;
    change(&journal, &[(&TestBlock::new(2), 2)]);
    drop(journal);
    let blocks = log_blocks(&*device);
    let commits = of_type(&blocks, BlockType::Commit);
    let mut times: Vec<_> = commits
        .iter()
        .map(|(_, bytes)| CommitBlock::decode(bytes).unwrap())
        .map(|commit| (commit.tid.0, commit.commit_sec))
        .collect();
    times.sort_unstable();
    assert_eq!(times.iter().map(|(_, time)| *time).collect::<Vec<_>>(), [5000, 5000]);
    // An older time would make damage in the second one look like a leftover: the log would end
    // before it, and a sync that had returned be lost in silence.
    let damaged = Arc::new(formatted(JournalChecksum::V3));
    let mut all = vec![0; device.size_bytes() as usize];
    device.read_at(0, &mut all).unwrap();
    let second = times[1].0;
    let descriptors = of_type(&blocks, BlockType::Descriptor);
    let descriptor = descriptors.iter().find(|(_, bytes)| {
        BlockHeader::decode(bytes).is_ok_and(|header| header.tid == RawTid(second))
    });
    all[(descriptor.unwrap().0 as usize + 1) * BLOCK - 1] ^= 1;
    damaged.write_at(0, &all).unwrap();
    let damaged: SharedDevice = damaged;
    assert!(matches!(replayed(&damaged), Err(RecoveryError::BlockChecksum { .. })));
    let (replay, _) = replayed(&device).unwrap();
    assert_eq!(replay.transactions, 2);
    assert_eq!((fill_of(&*device, 1), fill_of(&*device, 2)), (Some(1), Some(2)));
}

#[test]
fn the_interval_is_the_age_of_the_transaction_and_not_of_the_journal() {
    let device: SharedDevice = Arc::new(formatted(JournalChecksum::V3));
    let clock = Arc::new(FixedClock::at(5000, 0));
    let options = JournalOptions { clock: clock.clone(), ..options() };
    let journal =
        Journal::open(store(&device), Arc::clone(&device), TestClient::plain(), options).unwrap();
    change(&journal, &[(&TestBlock::new(1), 1)]);
    clock.advance(Duration::from_secs(4));
    change(&journal, &[(&TestBlock::new(1), 2)]);
    let mut handle = journal.start(1).unwrap();
    handle.claim(&TestBlock::new(1)).unwrap();
    drop(handle);
    clock.advance(Duration::from_secs(4));
    assert!(!journal.commit_if_due().unwrap(), "4 of 5 seconds old");
    clock.advance(Duration::from_secs(1));
    assert!(journal.commit_if_due().unwrap());
}

#[test]
fn y1_what_the_client_applied_is_durable_before_the_log_is_clean() {
    let (recorder, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    let blocks = [9, 10, 11, 20].map(TestBlock::new);
    change(&journal, &blocks.each_ref().map(|block| (block, 1)));
    drop(journal);
    let log = Arc::new(MappedJournal::new(Arc::clone(&device), size(), runs()));
    let log = LogStore::internal(log).unwrap();
    let before = recorder.len();
    let seen = Mutex::new(Rank::Leaf, Vec::new());
    let watch = |done: u64, total: u64| {
        seen.lock().push((done, total));
        ControlFlow::Continue(())
    };
    let options = RecoveryOptions::new(HOME_BLOCKS);
    let recovered = recover_to_device(log, &device, &options, unchecked, &watch).unwrap();
    assert_eq!(*seen.lock(), [(3, 4), (4, 4)], "neighbours at once");
    let [Record::Write { data, .. }, Record::Write { .. }, Record::Flush] =
        &recorder.records()[before..]
    else {
        panic!("{:?}", recorder.records());
    };
    assert_eq!(data.len(), 3 * BLOCK);
    let before = recorder.len();
    device.write_at(0, &contents(3)).unwrap(); // As it applies fast commits.
    recovered.finish().unwrap();
    let records = recorder.records().split_off(before);
    let [Record::Write { fua: false, .. }, Record::Flush, Record::Write { fua: true, .. }] =
        &records[..]
    else {
        panic!("{records:?}");
    };
}

#[test]
fn j5_after_a_checkpoint_no_block_needs_a_revoke() {
    let (_, device) = recording(JournalChecksum::V3);
    let journal = open(&device, TestClient::plain());
    change(&journal, &[(&TestBlock::new(5), 1)]);
    journal.checkpoint().unwrap();
    let mut handle = journal.start(2).unwrap();
    handle.revoke(FsBlock(5)).unwrap();
    handle.claim(&TestBlock::new(6)).unwrap();
    let tid = handle.tid();
    drop(handle);
    journal.commit(tid).unwrap();
    assert_eq!(journal.stats().revokes, 0);
}

#[test]
fn copies_in_the_log_do_not_look_like_blocks_of_the_journal() {
    for version in VERSIONS {
        let device: SharedDevice = Arc::new(formatted(version));
        let journal = open(&device, TestClient::plain());
        change(&journal, &[(&TestBlock::new(5), 5), (&TestBlock::new(6), 10)]);
        drop(journal);
        let own = [BlockType::SuperblockV2, BlockType::Descriptor, BlockType::Commit];
        let blocks = log_blocks(&*device);
        let known: usize = own.iter().map(|own| of_type(&blocks, *own).len()).sum();
        assert_eq!((blocks.len(), known), (3, 3), "{version:?}");
        replayed(&device).unwrap();
        assert_eq!((fill_of(&*device, 5), fill_of(&*device, 6)), (Some(5), Some(10)));
    }
}

#[test]
fn a_transaction_of_many_descriptors_goes_round_and_comes_back_whole() {
    // 300 copies: five descriptors in each transaction, in a log of 1300 blocks.
    let home = 320;
    let (device, log) = with_long_log(home, 1300);
    let journal =
        Journal::open(log(), Arc::clone(&device), TestClient::plain(), options()).unwrap();
    let blocks: Vec<_> = (0..300).map(TestBlock::new).collect();
    for round in 1..=7u8 {
        let list: Vec<_> = blocks.iter().map(|block| (block, round)).collect();
        change(&journal, &list);
    }
    let stats = journal.stats();
    assert!(stats.checkpoints >= 2, "{stats:?}");
    drop(journal);
    let recovered =
        recover_to_device(log(), &device, &RecoveryOptions::new(home), unchecked, &unwatched);
    recovered.unwrap().finish().unwrap();
    for block in 0..300 {
        assert_eq!(fill_of(&*device, block), Some(7), "block {block}");
    }
}

#[test]
fn a_journal_without_room_for_fast_commits_does_not_get_them() {
    let memory = Arc::new(formatted(JournalChecksum::V3));
    let device: SharedDevice = memory.clone();
    let options = JournalOptions { features: JournalIncompat::FAST_COMMIT, ..super::options() };
    let client = TestClient::plain();
    let journal = Journal::open(store(&device), Arc::clone(&device), client, options).unwrap();
    change(&journal, &[(&TestBlock::new(1), 3)]);
    let now = store(&device).superblock().clone();
    assert!(now.is_dirty() && now.fast_commits_fit(), "{now:?}");
    assert!(!now.incompat.contains(JournalIncompat::FAST_COMMIT), "{now:?}");
}

#[test]
fn j19_with_fast_commits_the_log_begins_again_at_its_first_block() {
    let memory = Arc::new(formatted(JournalChecksum::V3));
    let device: SharedDevice = memory.clone();
    let mut superblock = store(&device).superblock().clone();
    // As another implementation may have left it.
    superblock.head = 30;
    superblock.incompat |= JournalIncompat::FAST_COMMIT;
    superblock.fast_commit_blocks = 8;
    write_superblock(&memory, &superblock);
    let options = JournalOptions { features: JournalIncompat::FAST_COMMIT, ..super::options() };
    let client = TestClient::plain();
    let journal = Journal::open(store(&device), Arc::clone(&device), client, options).unwrap();
    let blocks: Vec<_> = (0..5).map(TestBlock::new).collect();
    for round in 1..=40u8 {
        let list: Vec<_> = blocks.iter().map(|block| (block, round)).collect();
        change(&journal, &list);
        let now = store(&device);
        assert_eq!(now.superblock().start, 1, "round {round}");
    }
    assert!(journal.stats().checkpoints > 5);
    drop(journal);
    replayed(&device).unwrap();
    for block in 0..5 {
        assert_eq!(fill_of(&*device, block), Some(40), "block {block}");
    }
}

/// Remembers what was allocated.
struct Allocating {
    below: MemoryDevice,
    allocated: Mutex<Vec<(u64, u64)>>,
}

impl BlockDevice for Allocating {
    fn submit(&self, batch: Vec<Operation>) -> Pending {
        self.below.submit(batch)
    }

    fn size_bytes(&self) -> u64 {
        self.below.size_bytes()
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn allocate(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.allocated.lock().push((offset, length));
        Ok(())
    }

    fn describe(&self) -> Arc<str> {
        "allocating".into()
    }
}

#[test]
fn room_is_made_for_each_block_of_the_journal_in_as_few_pieces_as_it_has() {
    let allocated = Mutex::new(Rank::Leaf, Vec::new());
    let device = Arc::new(Allocating { below: formatted(JournalChecksum::V3), allocated });
    store(&(Arc::clone(&device) as SharedDevice)).allocate().unwrap();
    // The superblock, the rest of its run, and two runs that follow one another on the device.
    let wanted = [(28, 1), (29, 19), (0, 28)]
        .map(|(block, len)| ((HOME_BLOCKS + block) * BLOCK as u64, len * BLOCK as u64));
    assert_eq!(*device.allocated.lock(), wanted);
}

#[test]
fn what_is_no_journal_device_is_not_opened_as_one() {
    let image = |incompat: u8, checked: bool| {
        let device = MemoryDevice::new(u64::from(LOG_BLOCKS) * BLOCK as u64);
        let mut ext4 = vec![0u8; 1024];
        ext4[0x38..0x3a].copy_from_slice(&0xef53u16.to_le_bytes());
        ext4[0x60] = incompat;
        if checked {
            ext4[0x65] = 4; // metadata_csum; the checksum stays 0
        }
        device.write_at(1024, &ext4).unwrap();
        let superblock = TestLog::new(JournalChecksum::V3, LOG_BLOCKS, 0).superblock;
        let mut bytes = vec![0; BLOCK];
        superblock.encode(&mut bytes).unwrap();
        device.write_at(2 * BLOCK as u64, &bytes).unwrap();
        ExternalJournal::open(Arc::new(device))
    };
    let opened = image(8, false).unwrap();
    assert_eq!(opened.log.block_count(), u64::from(LOG_BLOCKS), "all of the device");
    let file_system = image(2, false);
    assert!(matches!(file_system, Err(ExternalJournalError::NotAJournal { incompat: 2 })));
    assert!(matches!(image(8, true), Err(ExternalJournalError::Checksum(_))));
}
