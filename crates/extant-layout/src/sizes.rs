//! Sizes of the files that a file system keeps for itself, by its own size.

use extant_base::BlockSize;

/// Fewest blocks of a journal (`JBD2_MIN_JOURNAL_BLOCKS`).
pub const JOURNAL_BLOCKS_MIN: u32 = 1024;
/// Most blocks of a journal that mke2fs makes.
pub const JOURNAL_BLOCKS_MAX: u32 = 10_240_000;
/// Fewest blocks of an orphan file.
const ORPHAN_FILE_BLOCKS_MIN: u64 = 32;
/// Most blocks of an orphan file that Linux opens, from 6.18 on.
pub const ORPHAN_FILE_BLOCKS_MAX: u64 = 512;
/// Largest orphan file by default, in bytes; only blocks over 4 KiB get there.
const ORPHAN_FILE_BYTES_DEFAULT_MAX: u64 = 2 << 20;

/// Blocks of the journal of a file system of `blocks` blocks, by mke2fs's table; `None`: too small for one.
#[must_use]
pub fn default_journal_blocks(blocks: u64) -> Option<u32> {
    const K: u64 = 1024;
    Some(match blocks {
        0..2048 => return None,
        2048..32_768 => 1024,
        32_768.. if blocks < 256 * K => 4096,
        _ if blocks < 512 * K => 8192,
        _ if blocks < 4096 * K => 16_384,
        _ if blocks < 8192 * K => 32_768,
        _ if blocks < 16_384 * K => 65_536,
        _ if blocks < 32_768 * K => 131_072,
        _ => 262_144,
    })
}

/// Blocks for fast commits that mke2fs puts behind a log of `log` blocks.
///
/// A journal that names no number of them has 256, and Linux mounts none whose log has fewer than
/// [`JOURNAL_BLOCKS_MIN`] blocks without them.
#[must_use]
pub fn default_fast_commit_blocks(log: u32) -> u32 {
    const LOG_PER_FAST_COMMIT: u32 = 64;
    log / LOG_PER_FAST_COMMIT
}

/// Blocks of the orphan file of a file system of `blocks` blocks, by default.
#[must_use]
pub fn default_orphan_file_blocks(blocks: u64, block_size: BlockSize) -> u64 {
    let by_size = (blocks / 4096).clamp(ORPHAN_FILE_BLOCKS_MIN, ORPHAN_FILE_BLOCKS_MAX);
    by_size.min(ORPHAN_FILE_BYTES_DEFAULT_MAX >> block_size.log2())
}
