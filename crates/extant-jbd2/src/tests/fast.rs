//! Fast commits, written: J14 to J18, over a client whose changes are names.

use extant_base::Ino;
use extant_block::{BlockDevice, Record, RecordingDevice};
use extant_format::jbd2::{FcDentry, FcRecord, FcWriter, Tid as RawTid};

use super::faults::Failing;
use super::*;
use crate::{FastCommitOverlay, FcEntry, RecoveryOptions, recover};

/// Blocks of the area, one of which stays unused; one more is between it and the log.
const AREA_BLOCKS: u32 = 7;
/// Blocks of the journal: a shorter one has no area.
const LEN: u32 = 1024 + 1 + AREA_BLOCKS;
const AREA_START: u32 = LEN - AREA_BLOCKS;

/// A client whose changes are names of the root.
struct Names {
    new: Mutex<Vec<Vec<u8>>>,
    answer: Mutex<Description>,
    /// An inode of as many bytes is among the records.
    inode_bytes: usize,
}

impl Client for Names {
    fn encode(&self, _: Tid, _: &mut EncodeSink<'_>) -> Result<(), EncodeError> {
        self.new.lock().clear();
        Ok(())
    }

    fn is_describable(&self) -> bool {
        true
    }

    fn describe(&self, _: Tid, sink: &mut FastSink) -> Description {
        for (number, name) in self.new.lock().drain(..).enumerate() {
            let ino = Ino(100 + number as u32);
            sink.push(&FcRecord::Create(FcDentry { parent: Ino(2), ino, name: &name }));
        }
        if self.inode_bytes > 0 {
            sink.push(&FcRecord::Inode { ino: Ino(12), raw: &vec![0; self.inode_bytes] });
        }
        *self.answer.lock()
    }

    fn committed(&self, _: Tid) {}

    fn aborted(&self, _: &AbortReason) {}
}

struct Fixture {
    recorder: Arc<RecordingDevice>,
    device: SharedDevice,
    client: Arc<Names>,
    journal: Arc<Journal>,
    block: Arc<TestBlock>,
}

/// Place of a block of the journal on the device.
fn offset_of(block: u32) -> u64 {
    (HOME_BLOCKS + u64::from(block)) * BLOCK as u64
}

fn log_on(device: &SharedDevice) -> MappedJournal {
    let run = JournalRun { journal_start: 0, device_start: FsBlock(HOME_BLOCKS), len: LEN };
    MappedJournal::new(Arc::clone(device), size(), vec![run])
}

fn blank() -> MemoryDevice {
    let below = MemoryDevice::new(offset_of(LEN));
    below.write_at(0, &vec![0xee; offset_of(LEN) as usize]).unwrap();
    below
}

/// A clean journal with an area, for `below`.
fn format(below: &MemoryDevice) {
    let mut superblock = TestLog::new(JournalChecksum::V3, LEN, 0).superblock;
    superblock.sequence = RawTid(7);
    superblock.incompat |= JournalIncompat::FAST_COMMIT;
    superblock.fast_commit_blocks = AREA_BLOCKS + 1;
    assert_eq!(superblock.fast_commit_area(), AREA_START..LEN);
    let mut bytes = vec![0; JournalSuperblock::BYTES];
    superblock.encode(&mut bytes).unwrap();
    below.write_at(offset_of(0), &bytes).unwrap();
}

fn journal_on(device: &SharedDevice, inode_bytes: usize) -> (Arc<Names>, Arc<Journal>) {
    let client = Arc::new(Names {
        new: Mutex::new(Rank::Leaf, Vec::new()),
        answer: Mutex::new(Rank::Leaf, Description::Records),
        inode_bytes,
    });
    let options = JournalOptions { features: JournalIncompat::FAST_COMMIT, ..options() };
    let store = LogStore::internal(Arc::new(log_on(device))).unwrap();
    let journal = Journal::open(store, Arc::clone(device), client.clone(), options).unwrap();
    (client, journal)
}

fn opened_over(below: MemoryDevice, inode_bytes: usize) -> Fixture {
    format(&below);
    let recorder = Arc::new(RecordingDevice::over(below));
    let device: SharedDevice = Arc::clone(&recorder) as SharedDevice;
    let (client, journal) = journal_on(&device, inode_bytes);
    Fixture { recorder, device, client, journal, block: TestBlock::new(9) }
}

fn opened() -> Fixture {
    opened_over(blank(), 0)
}

impl Fixture {
    /// Makes names, and returns the round of the change.
    fn make(&self, names: &[&str], fill: u8) -> u32 {
        let mut handle = self.journal.start(1).unwrap();
        handle.claim(&self.block).unwrap();
        self.block.set(fill);
        self.client.new.lock().extend(names.iter().map(|name| name.as_bytes().to_vec()));
        handle.round()
    }

    fn make_and_sync(&self, names: &[&str], fill: u8) {
        let round = self.make(names, fill);
        self.journal.sync(round).unwrap();
    }

    fn found(&self) -> Option<FastCommitOverlay> {
        found_on(&self.device)
    }

    fn has(&self, name: &str) -> bool {
        self.found().is_some_and(|found| is_in(&found, name))
    }
}

/// What the next mount would find in the area.
fn found_on(device: &SharedDevice) -> Option<FastCommitOverlay> {
    let log = log_on(device);
    let superblock = LogStore::internal(Arc::new(log.clone())).unwrap().superblock().clone();
    recover(&log, &superblock, &RecoveryOptions::new(HOME_BLOCKS)).unwrap().fast_commits
}

fn is_in(found: &FastCommitOverlay, name: &str) -> bool {
    found
        .directory(Ino(2))
        .and_then(|root| root.get(name.as_bytes()))
        .is_some_and(|entry| matches!(entry, FcEntry::Present(_)))
}

#[test]
fn a_synced_change_that_records_can_say_is_in_the_area_and_not_in_the_log() {
    let t = opened();
    t.make_and_sync(&["first"], 1);
    let stats = t.journal.stats();
    assert_eq!((stats.fast_commits, stats.fast_blocks, stats.commits), (1, 2, 0), "head, tail");
    assert!(t.has("first"));
    t.make_and_sync(&["second"], 2);
    let stats = t.journal.stats();
    assert_eq!((stats.fast_commits, stats.fast_blocks, stats.commits), (2, 3, 0));
    assert!(t.has("first") && t.has("second"), "one behind the other");
    assert_eq!(t.found().unwrap().commits(), 3, "the head counts as one");
    assert_eq!(t.journal.running(), 7, "still the same transaction");
    // Who asks again for what is durable waits for nothing and writes nothing.
    let (round, before) = (t.journal.round() - 1, t.recorder.len());
    t.journal.sync(round).unwrap();
    assert_eq!(t.recorder.len(), before);
}

#[test]
fn j14_the_tail_is_written_last_behind_a_flush_and_through_the_cache() {
    let t = opened();
    t.make_and_sync(&["head"], 1);
    let before = t.recorder.len();
    let long: Vec<String> = (0..5).map(|at| format!("{at}{}", "n".repeat(240))).collect();
    let names: Vec<&str> = long.iter().map(String::as_str).collect();
    t.make_and_sync(&names, 2);
    let records = t.recorder.records().split_off(before);
    let [early @ .., Record::Flush, last @ Record::Write { fua: true, .. }] = &records[..] else {
        panic!("{records:?}");
    };
    assert!(!early.is_empty(), "more than a block");
    let goes_through = |record: &Record| matches!(record, Record::Write { fua: true, .. });
    assert!(!early.iter().any(goes_through), "the flush is enough for these");
    let places: Vec<u64> = early.iter().chain([last]).map(|record| record.range().0).collect();
    let begin = AREA_START + 2;
    let wanted: Vec<u64> = (begin..begin + places.len() as u32).map(offset_of).collect();
    assert_eq!(places, wanted, "one after the other, behind the head");
    names.iter().for_each(|name| assert!(t.has(name), "{name}"));
}

#[test]
fn j17_the_head_of_an_older_transaction_is_gone_before_the_log_is_in_use() {
    for is_fast in [false, true] {
        let below = blank();
        let mut head = FcWriter::new(size());
        assert!(head.push(&FcRecord::Head { features: 0, tid: RawTid(6) }));
        below.write_at(offset_of(AREA_START), &head.finish(RawTid(6))).unwrap();
        let t = opened_over(below, 0);
        match is_fast {
            true => t.make_and_sync(&["name"], 1),
            false => drop(change(&t.journal, &[(&t.block, 1)])),
        }
        let records = t.recorder.records();
        let Some(Record::Write { fua: true, data, .. }) = records.first() else {
            panic!("{is_fast}: {records:?}")
        };
        assert_eq!(records[0].range(), (offset_of(AREA_START), BLOCK as u64), "{is_fast}");
        assert!(data.iter().all(|byte| *byte == 0), "{is_fast}");
        if !is_fast {
            change(&t.journal, &[(&t.block, 2)]);
            let again = t.recorder.records().split_off(1);
            let in_area = |record: &Record| record.range().0 >= offset_of(AREA_START);
            assert!(!again.iter().any(in_area), "an empty area is left alone");
        }
    }
}

#[test]
fn j17_a_full_commit_empties_the_area_and_counts_alone() {
    let t = opened();
    t.make_and_sync(&["name"], 1);
    assert!(t.has("name"));
    let mut handle = t.journal.start(1).unwrap();
    handle.claim(&t.block).unwrap();
    t.block.set(3);
    let tid = handle.tid();
    drop(handle);
    t.journal.commit(tid).unwrap();
    assert_eq!((t.journal.stats().commits, t.journal.stats().fast_commits), (1, 1));
    assert_eq!(t.found(), None);
    let mut bytes = vec![1; BLOCK];
    t.device.read_at(offset_of(AREA_START), &mut bytes).unwrap();
    assert_eq!(bytes, vec![0; BLOCK], "no head is left");
    // The next transaction begins the area again.
    t.make_and_sync(&["later"], 4);
    assert!(t.has("later") && !t.has("name"));
}

#[test]
fn j18_what_the_log_holds_goes_home_before_the_first_fast_commit() {
    let t = opened();
    let other = TestBlock::new(11);
    change(&t.journal, &[(&other, 6)]);
    assert_eq!(fill_of(&t.device, 11), Some(0xee), "in the log alone");
    t.make_and_sync(&["name"], 1);
    assert_eq!(fill_of(&t.device, 11), Some(6));
    assert!(t.has("name"));
}

#[test]
fn what_no_record_can_say_is_committed_fully() {
    // A record that no block holds, a client that cannot say it, and records that find no room.
    let t = opened_over(blank(), 2 * BLOCK);
    t.make_and_sync(&["name"], 1);
    assert_eq!((t.journal.stats().commits, t.journal.stats().fast_commits), (1, 0));

    let t = opened();
    *t.client.answer.lock() = Description::Full;
    t.make_and_sync(&["name"], 1);
    assert_eq!((t.journal.stats().commits, t.journal.stats().fast_commits), (1, 0));
    *t.client.answer.lock() = Description::Records;
    t.make_and_sync(&["name"], 2);
    assert_eq!((t.journal.stats().commits, t.journal.stats().fast_commits), (1, 1), "once");

    let t = opened();
    for at in 0..AREA_BLOCKS - 2 {
        t.make_and_sync(&[&format!("name{at}")], at as u8 + 1);
    }
    let stats = t.journal.stats();
    assert_eq!((stats.commits, stats.fast_blocks), (0, u64::from(AREA_BLOCKS) - 1));
    t.make_and_sync(&["one too many"], 100);
    assert_eq!(t.journal.stats().commits, 1, "the last block of the area stays unused");
    assert_eq!(t.found(), None);
}

#[test]
fn a_change_that_describes_nothing_needs_no_write() {
    let t = opened();
    t.make_and_sync(&["name"], 1);
    *t.client.answer.lock() = Description::Nothing;
    let round = t.make(&[], 2);
    let before = t.recorder.len();
    t.journal.sync(round).unwrap();
    assert_eq!(t.recorder.len(), before);
    assert_eq!(t.journal.stats().fast_commits, 1);
}

#[test]
fn j8_j14_a_fast_commit_of_which_anything_fails_is_not_promised() {
    for at in 1.. {
        let below = Arc::new(blank());
        format(&below);
        let failing: SharedDevice = Arc::new(Failing::once(below.clone(), at));
        let (client, journal) = journal_on(&failing, 0);
        let block = TestBlock::new(9);
        let mut promised: Vec<String> = Vec::new();
        // The head and a tail, several blocks and a tail, and then the full commit that replaces them.
        let mut work = || {
            for (first, count) in [(0, 1), (10, 5)] {
                let names: Vec<_> =
                    (first..first + count).map(|n| format!("{n}{}", "n".repeat(240))).collect();
                let mut handle = journal.start(1)?;
                handle.claim(&block)?;
                client.new.lock().extend(names.iter().map(|name| name.as_bytes().to_vec()));
                let round = handle.round();
                drop(handle);
                journal.sync(round)?;
                promised.extend(names);
            }
            let mut handle = journal.start(1)?;
            handle.claim(&block)?;
            block.set(2);
            let tid = handle.tid();
            drop(handle);
            journal.commit(tid)
        };
        let failed = work().err();
        let is_whole = failed.is_none() && !journal.is_aborted();
        assert_eq!(failed.is_some(), journal.is_aborted(), "operation {at}");
        drop(journal);
        if is_whole {
            assert!(at > 10, "{at} operations");
            break;
        }
        let below: SharedDevice = below;
        // The full commit took its place when only the emptying of the area failed.
        if let Some(found) = found_on(&below) {
            for name in &promised {
                assert!(is_in(&found, name), "operation {at}: {name}");
            }
        } else if !promised.is_empty() {
            let (replay, _) = replay_of(&below);
            assert_eq!(replay, 1, "operation {at}: neither fast nor full");
        }
    }
}

/// Number of full transactions that the next mount would find, and where they end.
fn replay_of(device: &SharedDevice) -> (u64, RawTid) {
    let log = log_on(device);
    let superblock = LogStore::internal(Arc::new(log.clone())).unwrap().superblock().clone();
    let replay = recover(&log, &superblock, &RecoveryOptions::new(HOME_BLOCKS)).unwrap();
    (replay.transactions as u64, replay.end_tid)
}

#[test]
fn fast_commits_count_until_the_transaction_that_applies_them_replaces_them() {
    let t = opened();
    change(&t.journal, &[(&t.block, 1)]);
    t.make_and_sync(&["name"], 2);
    let tid = t.journal.running();
    let Fixture { device, journal, recorder, .. } = t;
    drop(journal);
    let log = LogStore::internal(Arc::new(log_on(&device))).unwrap();
    let options = RecoveryOptions::new(HOME_BLOCKS);
    let recovered = recover_to_device(log, &device, &options, unchecked, &unwatched).unwrap();
    let before = recorder.len();
    let store = recovered.resume().unwrap();
    let [Record::Flush, Record::Write { fua: true, .. }] = &recorder.records()[before..] else {
        panic!("{:?}", recorder.records());
    };
    assert!(found_on(&device).is_some_and(|found| is_in(&found, "name")), "not applied yet");
    let options = JournalOptions { features: JournalIncompat::FAST_COMMIT, ..super::options() };
    let journal = Journal::open(store, Arc::clone(&device), TestClient::plain(), options).unwrap();
    assert_eq!(journal.running(), tid);
    change(&journal, &[(&TestBlock::new(9), 3)]);
    assert_eq!(found_on(&device), None);
    assert_eq!(replay_of(&device), (1, RawTid(tid + 1)));
}
