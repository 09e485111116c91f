//! The fast-commit area of a journal, from arbitrary records: the input is cut into records whose
//! tags and lengths are valid often enough, and their checksums are made right.
#![no_main]

use extant_base::{BlockSize, FileBlock, Ino};
use extant_format::jbd2::{
    BlockHeader, BlockType, CommitBlock, FcRecord, FcRecords, FcWriter, JournalChecksum,
    JournalCompat, JournalIncompat, JournalRoCompat, JournalSuperblock, JournalVersion, LogFormat,
    Tid, TransactionChecksum, USERS_MAX,
};
use extant_jbd2::{FcMapping, JournalReadError, JournalReader, RecoveryOptions, recover};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 1024;
const LEN: u32 = 1100;
const AREA: u32 = 64;

/// A log with one empty transaction, and an area.
struct Log {
    commit: Vec<u8>,
    area: Vec<u8>,
    start: u32,
}

impl JournalReader for Log {
    fn block_size(&self) -> BlockSize {
        BlockSize::new(BLOCK as u64).expect("a block size")
    }

    fn block_count(&self) -> u64 {
        u64::from(LEN)
    }

    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError> {
        out.fill(0);
        let bytes = match block {
            1 => Some(&self.commit[..]),
            _ => {
                let at = block.checked_sub(self.start);
                at.and_then(|at| self.area.chunks(BLOCK).nth(at as usize))
            }
        };
        if let Some(bytes) = bytes {
            out[..bytes.len()].copy_from_slice(bytes);
        }
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let block_size = BlockSize::new(BLOCK as u64).expect("a block size");
    let format = LogFormat {
        block_size,
        checksum: JournalChecksum::None,
        blocks_64bit: false,
        seed: 0,
        uuid: [0; 16],
    };
    let superblock = JournalSuperblock {
        version: JournalVersion::V2,
        block_size,
        len: LEN,
        first: 1,
        sequence: Tid(1),
        start: 1,
        errno: 0,
        compat: JournalCompat::empty(),
        incompat: JournalIncompat::FAST_COMMIT,
        ro_compat: JournalRoCompat::empty(),
        uuid: [0; 16],
        user_count: 1,
        dynsuper: 0,
        max_transaction: 0,
        max_trans_data: 0,
        checksum_type: 0,
        fast_commit_blocks: AREA,
        head: 0,
        users: [[0; 16]; USERS_MAX],
    };
    let mut commit = vec![0; BLOCK];
    let block = CommitBlock { tid: Tid(1), commit_sec: 1, commit_nsec: 0, checksum_v1: (0, 0, 0) };
    block.encode(&format, &TransactionChecksum::new(), &mut commit).expect("a whole block");
    assert_eq!(
        BlockHeader::decode(&commit),
        Ok(BlockHeader { block_type: BlockType::Commit, tid: Tid(1) })
    );
    // First as it is, then with the valid records of the input laid out anew.
    let mut writer = FcWriter::new(block_size);
    assert!(writer.push(&FcRecord::Head { features: 0, tid: Tid(2) }));
    for block in bytes.chunks(BLOCK) {
        for (record, _) in FcRecords::new(block).flatten() {
            let _ = writer.push(&record);
        }
    }
    let start = superblock.fast_commit_area().start;
    for area in [bytes.to_vec(), writer.finish(Tid(2))] {
        let log = Log { commit: commit.clone(), area, start };
        let Ok(replay) = recover(&log, &superblock, &RecoveryOptions::new(1 << 20)) else {
            continue;
        };
        let Some(overlay) = replay.fast_commits else { continue };
        for (_, inode) in overlay.inodes() {
            assert_eq!(inode.merge(&[0; 256]).len(), 256);
            let mut at = 0u64;
            for _ in 0..10_000 {
                let Ok(block) = u32::try_from(at) else { break };
                at += u64::from(match inode.map(FileBlock(block)) {
                    FcMapping::Unchanged { len } | FcMapping::Hole { len } => len.0,
                    FcMapping::Mapped(extent) => extent.len.0,
                });
                assert!(at > u64::from(block), "no progress");
            }
        }
        for (ino, directory) in overlay.directories() {
            for (name, entry) in directory.entries() {
                assert_eq!(overlay.directory(ino).and_then(|it| it.get(name)), Some(entry));
                directory.keeps(name, Ino(2));
            }
        }
    }
});
