//! Superblocks for unit tests that need no file system behind them.

use extant_base::BlockSize;
use extant_format::superblock::Superblock;

/// A superblock of revision 1 without features: one group of `blocks` blocks, 64 inodes of 256
/// bytes.
pub(crate) fn superblock(block_size: BlockSize, blocks: u32) -> Superblock {
    let mut bytes = [0; 1024];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let log = block_size.log2() - 10;
    put(0x00, &64u32.to_le_bytes());
    put(0x04, &blocks.to_le_bytes());
    put(0x14, &u32::from(block_size.bytes() == 1024).to_le_bytes());
    put(0x18, &log.to_le_bytes());
    put(0x1c, &log.to_le_bytes());
    put(0x20, &(block_size.bytes() * 8).to_le_bytes());
    put(0x24, &(block_size.bytes() * 8).to_le_bytes());
    put(0x28, &64u32.to_le_bytes());
    put(0x38, &0xef53u16.to_le_bytes());
    put(0x3a, &1u16.to_le_bytes());
    put(0x4c, &1u32.to_le_bytes());
    put(0x54, &11u32.to_le_bytes());
    put(0x58, &256u16.to_le_bytes());
    Superblock::decode_unverified(&bytes).expect("a sound superblock")
}
