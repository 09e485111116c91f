//! A small writer of logs, in memory, for the tests of this crate.

use std::sync::atomic::{AtomicU32, Ordering};

use extant_base::{BlockSize, FsBlock};
use extant_format::jbd2::{
    CommitBlock, DescriptorWriter, JBD2_MAGIC, JournalChecksum, JournalCompat, JournalIncompat,
    JournalRoCompat, JournalSuperblock, JournalVersion, LogFormat, NewTag, RevokeWriter, Tid,
    TransactionChecksum, USERS_MAX,
};

use crate::error::JournalReadError;
use crate::log::JournalReader;

pub(crate) const BLOCK: usize = 1024;

/// A journal in memory, with a writer that goes round its ring.
pub(crate) struct TestLog {
    pub(crate) blocks: Vec<Vec<u8>>,
    pub(crate) superblock: JournalSuperblock,
    pub(crate) next: u32,
    pub(crate) tid: Tid,
    pub(crate) commit_sec: u64,
    sum: TransactionChecksum,
    /// How often each block was read.
    reads: Vec<AtomicU32>,
}

impl TestLog {
    /// A journal of `len` blocks whose first transaction starts at block `start`.
    pub(crate) fn new(checksum: JournalChecksum, len: u32, start: u32) -> TestLog {
        let mut incompat = JournalIncompat::REVOKE | JournalIncompat::BLOCKS_64BIT;
        let mut compat = JournalCompat::empty();
        match checksum {
            JournalChecksum::None => {}
            JournalChecksum::V1 => compat |= JournalCompat::CHECKSUM,
            JournalChecksum::V2 => incompat |= JournalIncompat::CSUM_V2,
            JournalChecksum::V3 => incompat |= JournalIncompat::CSUM_V3,
        }
        let superblock = JournalSuperblock {
            version: JournalVersion::V2,
            block_size: BlockSize::new(BLOCK as u64).unwrap(),
            len,
            first: 1,
            sequence: Tid(u32::MAX), // So that every test also wraps the numbers.
            start,
            errno: 0,
            compat,
            incompat,
            ro_compat: JournalRoCompat::empty(),
            uuid: [9; 16],
            user_count: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 4,
            fast_commit_blocks: 0,
            head: 0,
            users: [[0; 16]; USERS_MAX],
        };
        TestLog {
            blocks: vec![vec![0; BLOCK]; len as usize],
            next: start,
            tid: superblock.sequence,
            superblock,
            commit_sec: 1000,
            sum: TransactionChecksum::new(),
            reads: (0..len).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    pub(crate) fn format(&self) -> LogFormat {
        self.superblock.log_format()
    }

    /// Returns how often the most-read block was read.
    pub(crate) fn reads_max(&self) -> u32 {
        self.reads.iter().map(|reads| reads.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// Stores a block at the head; where.
    pub(crate) fn append(&mut self, block: Vec<u8>) -> u32 {
        let at = self.next;
        self.blocks[at as usize] = block;
        let log = self.superblock.log();
        self.next = if at + 1 == log.end { log.start } else { at + 1 };
        at
    }

    /// Logs copies of blocks: each is filled with a byte, or begins with the magic number when
    /// that byte is 0. Returns the place of the descriptor.
    pub(crate) fn data(&mut self, copies: &[(u64, u8)]) -> u32 {
        let format = self.format();
        let mut descriptor = vec![0; BLOCK];
        let mut writer = DescriptorWriter::new(&format, self.tid, &mut descriptor).unwrap();
        let mut stored = Vec::new();
        for (block, fill) in copies {
            let logged = vec![*fill; BLOCK]; // All zero: also what an escaped block looks like.
            let checksum = format.data_checksum(self.tid, &logged);
            let escaped = *fill == 0;
            assert!(writer.push(NewTag { fs_block: FsBlock(*block), escaped, checksum }));
            stored.push(logged);
        }
        writer.finish();
        self.sum.update(&descriptor);
        let at = self.append(descriptor);
        for logged in stored {
            self.sum.update(&logged);
            self.append(logged);
        }
        at
    }

    /// Logs revokes. Returns the place.
    pub(crate) fn revoke(&mut self, blocks: &[u64]) -> u32 {
        let mut block = vec![0; BLOCK];
        let format = self.format();
        let mut writer = RevokeWriter::new(&format, self.tid, &mut block).unwrap();
        for revoked in blocks {
            assert!(writer.push(FsBlock(*revoked)));
        }
        writer.finish();
        self.append(block)
    }

    /// Commits, and begins the next transaction. Returns the place of the commit block.
    pub(crate) fn commit(&mut self) -> u32 {
        let mut block = vec![0; BLOCK];
        let commit = CommitBlock {
            tid: self.tid,
            commit_sec: self.commit_sec,
            commit_nsec: 0,
            checksum_v1: (0, 0, 0),
        };
        commit.encode(&self.format(), &self.sum, &mut block).unwrap();
        self.sum = TransactionChecksum::new();
        self.tid = self.tid.next();
        self.append(block)
    }
}

impl JournalReader for TestLog {
    fn block_size(&self) -> BlockSize {
        self.superblock.block_size
    }

    fn block_count(&self) -> u64 {
        self.blocks.len() as u64
    }

    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError> {
        let bytes = self.blocks.get(block as usize);
        out.copy_from_slice(bytes.ok_or(JournalReadError::Unmapped { block })?);
        self.reads[block as usize].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Returns what a block reads as after a replay of a copy made by [`TestLog::data`].
pub(crate) fn contents(fill: u8) -> Vec<u8> {
    let mut block = vec![fill; BLOCK];
    if fill == 0 {
        block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
    }
    block
}
