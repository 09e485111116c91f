//! One rule, one test, each over all checksum versions where it applies.

use std::sync::Arc;

use extant_block::{BlockDevice as _, MemoryDevice};
use extant_format::jbd2::{JournalChecksum, JournalIncompat};

use super::*;
use crate::device::ReplayedDevice;
use crate::test_log::{BLOCK, TestLog, contents};

const VERSIONS: [JournalChecksum; 4] =
    [JournalChecksum::None, JournalChecksum::V1, JournalChecksum::V2, JournalChecksum::V3];

fn try_recover(log: &TestLog) -> Result<Replay, RecoveryError> {
    recover(log, &log.superblock, &RecoveryOptions::new(1000))
}

/// Recovers, and reads the blocks 0..30 through the replay: the fill byte of each, or `None`
/// where the device below shows through.
fn blocks_after(log: TestLog) -> Vec<Option<u8>> {
    let replay = try_recover(&log).unwrap();
    let below = MemoryDevice::new(30 * BLOCK as u64);
    below.write_at(0, &vec![0xdd; 30 * BLOCK]).unwrap();
    let seen = ReplayedDevice::new(Arc::new(below), Arc::new(log), Arc::new(replay.blocks));
    (0..30)
        .map(|block| {
            let mut bytes = vec![0; BLOCK];
            seen.read_at(block * BLOCK as u64, &mut bytes).unwrap();
            let fill = bytes[BLOCK - 1];
            if fill == 0xdd {
                assert_eq!(bytes, vec![0xdd; BLOCK]);
                return None;
            }
            assert_eq!(bytes, contents(fill), "block {block}");
            Some(fill)
        })
        .collect()
}

fn expect(log: TestLog, wanted: &[(usize, u8)]) {
    let mut all = vec![None; 30];
    for (block, fill) in wanted {
        all[*block] = Some(*fill);
    }
    assert_eq!(blocks_after(log), all);
}

#[test]
fn an_empty_log_changes_nothing_and_is_not_read() {
    let mut log = TestLog::new(JournalChecksum::V3, 64, 1);
    log.data(&[(5, 1)]);
    log.commit();
    log.superblock.start = 0;
    log.superblock.errno = -5;
    let replay = try_recover(&log).unwrap();
    assert!(!replay.dirty && replay.changes_nothing());
    assert_eq!((replay.errno, replay.stop), (-5, ScanStop::Clean));
    assert_eq!(log.reads_max(), 0);
}

#[test]
fn the_latest_committed_copy_wins() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 1), (6, 1), (7, 1), (7, 2)]);
        log.data(&[(9, 9)]);
        log.commit();
        log.data(&[(6, 3)]);
        log.commit();
        log.data(&[(5, 4)]); // Not committed.
        expect(log, &[(5, 1), (6, 3), (7, 2), (9, 9)]);
    }
}

#[test]
fn the_replay_tells_where_the_log_ended() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 3);
        log.data(&[(5, 1)]);
        log.commit();
        log.data(&[(6, 1)]);
        let commit = log.commit();
        log.data(&[(7, 1)]);
        let replay = try_recover(&log).unwrap();
        assert_eq!(replay.transactions, 2);
        assert_eq!((replay.first_tid, replay.end_tid), (Tid(u32::MAX), Tid(1)));
        assert_eq!(replay.head, commit + 1);
        assert_eq!(replay.stop, ScanStop::NotALogBlock);
    }
}

#[test]
fn j4_a_revoke_hides_copies_up_to_its_own_transaction() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 1), (6, 1), (7, 1), (8, 1)]);
        log.commit();
        log.data(&[(6, 2)]);
        log.revoke(&[5, 6, 999, 1 << 40]);
        log.commit();
        log.data(&[(5, 3)]); // A new life as metadata.
        log.revoke(&[7]);
        log.commit();
        log.revoke(&[8]); // Not committed.
        let replay = try_recover(&log).unwrap();
        assert_eq!(replay.revoked, 4);
        expect(log, &[(5, 3), (8, 1)]);
    }
}

#[test]
fn escaped_blocks_get_their_magic_number_back() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 0), (6, 1)]);
        log.commit();
        expect(log, &[(5, 0), (6, 1)]);
    }
}

#[test]
fn the_log_goes_round_between_any_two_blocks() {
    for version in VERSIONS {
        for start in 1..20 {
            let mut log = TestLog::new(version, 20, start);
            log.data(&[(5, 1), (6, 1), (7, 1)]);
            log.revoke(&[5]);
            log.commit();
            log.data(&[(8, 2), (9, 2)]);
            log.commit();
            expect(log, &[(6, 1), (7, 1), (8, 2), (9, 2)]);
        }
    }
}

#[test]
fn the_log_ends_before_the_fast_commit_area() {
    let mut log = TestLog::new(JournalChecksum::V3, 1290, 1020);
    log.superblock.incompat |= JournalIncompat::FAST_COMMIT;
    log.superblock.fast_commit_blocks = 260;
    assert_eq!(log.superblock.log(), 1..1030);
    for round in 1..=20 {
        log.data(&[(round, round as u8)]);
        log.commit();
    }
    assert!(log.blocks[1030..].iter().all(|block| block.iter().all(|byte| *byte == 0)));
    let wanted: Vec<_> = (1..=20).map(|round| (round as usize, round as u8)).collect();
    expect(log, &wanted);
}

#[test]
fn another_transaction_number_ends_the_log() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 1)]);
        log.commit();
        log.tid = Tid(17);
        log.data(&[(5, 2)]);
        log.commit();
        let replay = try_recover(&log).unwrap();
        assert_eq!(replay.stop, ScanStop::OtherTransaction { found: Tid(17) });
        expect(log, &[(5, 1)]);
    }
}

#[test]
fn a_damaged_commit_block_is_damage_unless_commits_are_asynchronous() {
    for version in [JournalChecksum::V2, JournalChecksum::V3] {
        for (byte, is_async) in [(50, false), (50, true), (60, false), (1023, false)] {
            let mut log = TestLog::new(version, 64, 1);
            if is_async {
                log.superblock.incompat |= JournalIncompat::ASYNC_COMMIT;
            }
            log.data(&[(5, 1)]);
            log.commit();
            log.data(&[(5, 2)]);
            let commit = log.commit();
            log.data(&[(5, 3)]);
            log.commit();
            log.blocks[commit as usize][byte] ^= 1;
            match (try_recover(&log), byte, is_async) {
                (Ok(replay), 50, true) => {
                    assert_eq!(replay.stop, ScanStop::CommitChecksum { tid: Tid(0) });
                    expect(log, &[(5, 1)]);
                }
                (Err(RecoveryError::CommitChecksum { tid: Tid(0) }), 50, false) => {}
                // Behind what a commit block has: its first sector alone is new.
                (Ok(_), 60.., false) => expect(log, &[(5, 3)]),
                (other, ..) => panic!("byte {byte}, {is_async}: {other:?}"),
            }
        }
    }
}

#[test]
fn version_1_sees_damage_anywhere_in_the_transaction() {
    for (offset, byte) in [(0, 900), (1, 0), (2, 1023)] {
        let mut log = TestLog::new(JournalChecksum::V1, 64, 1);
        log.data(&[(5, 1)]);
        log.commit();
        let descriptor = log.data(&[(5, 2), (6, 2)]);
        log.commit();
        log.blocks[descriptor as usize + offset][byte] ^= 1;
        let damaged = try_recover(&log);
        let found = matches!(damaged, Err(RecoveryError::CommitChecksum { tid: Tid(0) }));
        assert!(found, "{offset} {byte}: {damaged:?}");
        log.superblock.incompat |= JournalIncompat::ASYNC_COMMIT;
        let replay = try_recover(&log).unwrap();
        assert_eq!(replay.stop, ScanStop::CommitChecksum { tid: Tid(0) }, "{offset} {byte}");
        expect(log, &[(5, 1)]);
    }
}

#[test]
fn a_damaged_descriptor_or_revoke_is_an_error_unless_it_is_stale() {
    for version in [JournalChecksum::V2, JournalChecksum::V3] {
        for in_revoke in [false, true] {
            for age in [0, 1] {
                let mut log = TestLog::new(version, 64, 1);
                log.data(&[(5, 1)]);
                log.commit();
                let descriptor = log.data(&[(5, 2)]);
                let revoke = log.revoke(&[3]);
                log.commit_sec -= age;
                log.commit();
                let block = if in_revoke { revoke } else { descriptor };
                log.blocks[block as usize][700] ^= 1;
                if age == 0 {
                    match try_recover(&log) {
                        Err(RecoveryError::BlockChecksum { tid: Tid(0), block: found }) => {
                            assert_eq!(found, block);
                        }
                        other => panic!("{other:?}"),
                    }
                } else {
                    let stop = try_recover(&log).unwrap().stop;
                    assert_eq!(stop, ScanStop::Stale { tid: Tid(0) });
                    expect(log, &[(5, 1)]);
                }
            }
        }
    }
    // Without a commit block it was simply not finished.
    let mut log = TestLog::new(JournalChecksum::V3, 64, 1);
    log.data(&[(5, 1)]);
    log.commit();
    let descriptor = log.data(&[(5, 2)]);
    log.blocks[descriptor as usize][700] ^= 1;
    expect(log, &[(5, 1)]);
}

#[test]
fn a_damaged_transaction_ends_the_log_where_damage_is_skipped() {
    for (version, part) in [
        (JournalChecksum::V2, 0),
        (JournalChecksum::V3, 0),
        (JournalChecksum::V3, 1),
        (JournalChecksum::V3, 2),
        (JournalChecksum::None, 3),
    ] {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 1), (6, 1)]);
        log.commit();
        let descriptor = log.data(&[(5, 2)]);
        let revoke = log.revoke(&[6]);
        let commit = log.commit();
        log.data(&[(7, 3)]);
        log.commit();
        let (block, byte) = [(commit, 50), (descriptor, 700), (revoke, 700), (revoke, 12)][part];
        log.blocks[block as usize][byte] ^= 0x40;
        assert!(try_recover(&log).is_err(), "{version:?} {part}");
        let options = RecoveryOptions { fs_blocks: 1000, damaged: DamagedBlocks::Skip };
        let replay = recover(&log, &log.superblock, &options).unwrap();
        assert_eq!((replay.transactions, replay.end_tid), (1, Tid(0)), "{version:?} {part}");
        assert_eq!(replay.stop, ScanStop::Damaged { tid: Tid(0) });
        assert!(replay.broken.is_some());
        let blocks: Vec<u64> = replay.blocks.iter().map(|(block, _)| block.0).collect();
        assert_eq!(blocks, [5, 6], "what was revoked in vain, and nothing of later transactions");
        assert_eq!(replay.blocks.get(FsBlock(5)).unwrap().block, 2);
    }
}

#[test]
fn a_damaged_data_block_is_refused_or_skipped() {
    for version in [JournalChecksum::V2, JournalChecksum::V3] {
        let mut log = TestLog::new(version, 64, 1);
        log.data(&[(5, 1)]);
        log.commit();
        let descriptor = log.data(&[(5, 2), (6, 2)]);
        log.commit();
        log.blocks[descriptor as usize + 1][3] ^= 1;
        let error = try_recover(&log).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "journal transaction 0 is damaged: wrong checksum of the copy of block 5 in \
                 journal block {}",
                descriptor + 1
            )
        );
        let options = RecoveryOptions { fs_blocks: 1000, damaged: DamagedBlocks::Skip };
        let replay = recover(&log, &log.superblock, &options).unwrap();
        let block = descriptor + 1;
        let [found] = replay.damaged[..] else { panic!("{:?}", replay.damaged) };
        assert_eq!((found.tid, found.fs_block, found.block), (Tid(0), FsBlock(5), block));
        // The older copy stands.
        assert_eq!(replay.blocks.get(FsBlock(5)).unwrap().block, 2);
        assert_eq!(replay.blocks.len(), 2);
        // A revoked copy is not looked at.
        log.revoke(&[5]);
        log.commit();
        assert_eq!(try_recover(&log).unwrap().blocks.len(), 1);
    }
}

#[test]
fn blocks_outside_the_file_system_are_refused_or_skipped() {
    let mut log = TestLog::new(JournalChecksum::None, 64, 1);
    log.data(&[(999, 1)]);
    log.commit();
    assert_eq!(try_recover(&log).unwrap().blocks.len(), 1);
    log.data(&[(1000, 1)]);
    log.commit();
    assert_eq!(
        try_recover(&log).unwrap_err().to_string(),
        "journal transaction 0 holds block 1000, the file system has 1000 blocks"
    );
    let options = RecoveryOptions { fs_blocks: 1000, damaged: DamagedBlocks::Skip };
    let replay = recover(&log, &log.superblock, &options).unwrap();
    let left_out: Vec<u64> = replay.damaged.iter().map(|one| one.fs_block.0).collect();
    assert_eq!((left_out, replay.blocks.len()), (vec![1000], 1));
}

#[test]
fn an_absurd_revoke_count_is_an_error() {
    let mut log = TestLog::new(JournalChecksum::None, 64, 1);
    log.data(&[(5, 1)]);
    let revoke = log.revoke(&[5]);
    log.commit();
    log.blocks[revoke as usize][12] = 0xff;
    assert!(matches!(try_recover(&log), Err(RecoveryError::Revoke { .. })));
}

#[test]
fn a_ring_of_descriptors_ends() {
    // Every block is a descriptor of the expected transaction, without tags or full of them.
    for tags in [0, 3] {
        let mut log = TestLog::new(JournalChecksum::None, 64, 7);
        let copies: Vec<_> = (0..tags).map(|block| (block, 1)).collect();
        let descriptor = log.data(&copies) as usize;
        let descriptor = log.blocks[descriptor].clone();
        log.blocks[1..].fill(descriptor);
        let replay = try_recover(&log).unwrap();
        assert_eq!((replay.transactions, replay.stop), (0, ScanStop::RingFull), "{tags}");
        assert!(log.reads_max() <= 1, "J13");
    }
    // Revoke blocks alone: the walk looks at each of them.
    let mut log = TestLog::new(JournalChecksum::None, 64, 7);
    let revoke = log.revoke(&[5]) as usize;
    let revoke = log.blocks[revoke].clone();
    log.blocks[1..].fill(revoke);
    let replay = try_recover(&log).unwrap();
    assert_eq!((replay.transactions, replay.stop), (0, ScanStop::RingFull));
    assert_eq!(log.reads_max(), 1, "J13");
}

#[test]
fn each_block_is_read_once_per_pass() {
    for version in VERSIONS {
        let mut log = TestLog::new(version, 64, 1);
        for round in 0..8 {
            log.data(&[(round, 1), (round + 1, 2)]);
            log.revoke(&[round]);
            log.commit();
        }
        try_recover(&log).unwrap();
        assert!(log.reads_max() <= 2, "{version:?}");
    }
}

#[test]
fn a_journal_longer_than_its_reader_is_refused() {
    let mut log = TestLog::new(JournalChecksum::None, 64, 1);
    log.superblock.len = 65;
    assert_eq!(
        try_recover(&log).unwrap_err().to_string(),
        "journal claims 65 blocks, only 64 exist"
    );
}

#[test]
fn reads_of_any_range_see_both_layers() {
    let mut log = TestLog::new(JournalChecksum::V3, 64, 1);
    log.data(&[(2, 0), (3, 7), (6, 9)]);
    log.commit();
    let replay = try_recover(&log).unwrap();
    let bytes = 10 * BLOCK;
    let below = MemoryDevice::new(bytes as u64);
    let mut wanted: Vec<u8> = (0..bytes).map(|at| (at % 251) as u8).collect();
    below.write_at(0, &wanted).unwrap();
    for (block, fill) in [(2, 0), (3, 7), (6, 9)] {
        wanted[block * BLOCK..][..BLOCK].copy_from_slice(&contents(fill));
    }
    let seen = ReplayedDevice::new(Arc::new(below), Arc::new(log), Arc::new(replay.blocks));
    assert!(seen.is_read_only());
    for start in (0..bytes).step_by(97) {
        for len in [0, 1, 3, 1023, 1024, 1025, 3000, bytes - start] {
            let len = len.min(bytes - start);
            let mut out = vec![0; len];
            seen.read_at(start as u64, &mut out).unwrap();
            assert_eq!(out, wanted[start..start + len], "{start} {len}");
        }
    }
    assert!(seen.read_at(bytes as u64 - 1, &mut [0; 2]).is_err());
    assert!(seen.write_at(0, &[1]).is_err());
    assert!(seen.write_zeroes(0, 1).is_err());
    assert!(seen.discard(0, 1).is_err());
    seen.flush().unwrap();
}
