//! Recovery of an arbitrary journal: the input is its blocks, the first one its superblock.
//!
//! With checksums an input would hardly ever get past the superblock, so those are made right
//! before the input is used.
#![no_main]

use extant_base::BlockSize;
use extant_format::jbd2::JournalSuperblock;
use extant_jbd2::{
    DamagedBlocks, JournalReadError, JournalReader, RecoveryOptions, load_superblock, recover,
};
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 1024;

struct Log(Vec<u8>);

impl JournalReader for Log {
    fn block_size(&self) -> BlockSize {
        BlockSize::new(BLOCK as u64).expect("a block size")
    }

    fn block_count(&self) -> u64 {
        (self.0.len() / BLOCK) as u64
    }

    fn read_block(&self, block: u32, out: &mut [u8]) -> Result<(), JournalReadError> {
        let bytes = self.0.chunks_exact(BLOCK).nth(block as usize);
        out.copy_from_slice(bytes.ok_or(JournalReadError::Unmapped { block })?);
        Ok(())
    }
}

fuzz_target!(|bytes: &[u8]| {
    // Whole blocks; a last piece counts as one, so that small inputs make several blocks.
    let mut log = Log(bytes.to_vec());
    log.0.resize(bytes.len().next_multiple_of(BLOCK), 0);
    if let Ok(mut superblock) = JournalSuperblock::decode(&log.0) {
        superblock.block_size = log.block_size();
        superblock.len = superblock.len.min(log.block_count() as u32);
        if superblock.encode(&mut log.0).is_err() {
            return;
        }
    }
    let Ok(superblock) = load_superblock(&log, 0) else { return };
    for damaged in [DamagedBlocks::Refuse, DamagedBlocks::Skip] {
        let options = RecoveryOptions { fs_blocks: 1 << 20, damaged };
        if let Ok(replay) = recover(&log, &superblock, &options) {
            for (block, location) in replay.blocks.iter() {
                assert!(block.0 < options.fs_blocks);
                assert!(superblock.log().contains(&location.block));
                assert_eq!(replay.blocks.get(block), Some(location));
            }
        }
    }
});
