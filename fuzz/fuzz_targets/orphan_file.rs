//! Blocks of the orphan file.
#![no_main]
use extant_base::{BlockSize, FsBlock};
use extant_format::orphan::OrphanBlock;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, u64, u32, &[u8])| {
    let (log, block, seed, bytes) = input;
    let size = BlockSize::from_log_kib(u32::from(log) % 3).expect("0..=2");
    let block = FsBlock(block);
    let _ = OrphanBlock::decode(size, block, Some(seed), bytes);
    let mut bytes = bytes.to_vec();
    bytes.resize(size.len(), 0);
    let tail = size.len() - 8;
    bytes[tail..tail + 4].copy_from_slice(&0x0b10_ca04u32.to_le_bytes());
    let first = OrphanBlock::decode(size, block, None, &bytes).expect("magic and length are right");
    let mut stored = vec![0xff; size.len()];
    first.encode(size, block, Some(seed), &mut stored).expect("same size");
    assert_eq!(OrphanBlock::decode(size, block, Some(seed), &stored), Ok(first));
    assert_eq!(stored[..tail + 4], bytes[..tail + 4]);
});
