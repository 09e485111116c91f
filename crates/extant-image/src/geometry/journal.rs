//! Sizes of the journal and the orphan file.

use extant_layout::{
    ORPHAN_FILE_BLOCKS_MAX, default_fast_commit_blocks, default_journal_blocks,
    default_orphan_file_blocks,
};

use super::{Geometry, GeometryError, JournalGeometry};
use crate::options::{FastCommitSize, Feature, JournalOption, MkfsOptions, SizeOption};

/// Fewest blocks of a journal (`JBD2_MIN_JOURNAL_BLOCKS`).
const JOURNAL_BLOCKS_MIN: u64 = 1024;
/// Most blocks of a journal that mke2fs makes.
const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;

/// Largest orphan file the kernel opens, in bytes.
const ORPHAN_FILE_BYTES_MAX: u64 = 8 << 20;
/// Fills in the journal and the orphan file. Drops both features when the file system is too
/// small for a journal by default.
pub(super) fn size_journal(
    options: &MkfsOptions,
    geometry: &mut Geometry,
) -> Result<(), GeometryError> {
    if !geometry.has(Feature::HAS_JOURNAL) {
        return Ok(());
    }
    let Some(default) = default_journal_blocks(geometry.blocks_count) else {
        if options.journal != JournalOption::Auto {
            let free = free_before_tables(geometry);
            return Err(GeometryError::JournalTooBig { blocks: JOURNAL_BLOCKS_MIN, free });
        }
        for feature in [Feature::HAS_JOURNAL, Feature::ORPHAN_FILE] {
            geometry.features.remove(feature);
        }
        return Ok(());
    };
    let bits = geometry.block_size.log2();
    let log_blocks = match options.journal {
        JournalOption::Auto | JournalOption::None => u64::from(default),
        JournalOption::Bytes(bytes) => bytes >> bits,
        JournalOption::Blocks(blocks) => u64::from(blocks),
    };
    let fast_commit_blocks = match options.fast_commit {
        _ if !geometry.has(Feature::FAST_COMMIT) => 0,
        FastCommitSize::Auto => u64::from(default_fast_commit_blocks(default)),
        FastCommitSize::Bytes(bytes) => bytes >> bits,
        FastCommitSize::Blocks(blocks) => u64::from(blocks),
    };
    let total = log_blocks.saturating_add(fast_commit_blocks);
    let (min, max) = (JOURNAL_BLOCKS_MIN, JOURNAL_BLOCKS_MAX);
    if !(min..=max).contains(&total) || log_blocks < min {
        return Err(GeometryError::JournalSize { blocks: total, min, max });
    }
    let asked = !matches!(options.journal, JournalOption::Auto)
        || options.fast_commit != FastCommitSize::Auto;
    let free = free_before_tables(geometry);
    if asked && total > free / 2 {
        return Err(GeometryError::JournalTooBig { blocks: total, free });
    }
    geometry.journal = Some(JournalGeometry {
        // Both are at most JOURNAL_BLOCKS_MAX.
        log_blocks: log_blocks as u32,
        fast_commit_blocks: fast_commit_blocks as u32,
    });
    if geometry.has(Feature::ORPHAN_FILE) {
        geometry.orphan_file_blocks = orphan_file_blocks(options, geometry)?;
    }
    Ok(())
}

fn orphan_file_blocks(options: &MkfsOptions, geometry: &Geometry) -> Result<u32, GeometryError> {
    let size = geometry.block_size;
    let max = (ORPHAN_FILE_BYTES_MAX >> size.log2()).min(ORPHAN_FILE_BLOCKS_MAX);
    let blocks = match options.orphan_file_size {
        None => default_orphan_file_blocks(geometry.blocks_count, size),
        Some(asked) => SizeOption::blocks(asked, size),
    };
    if blocks == 0 || blocks > max {
        return Err(GeometryError::OrphanFileSize { blocks, min: 1, max });
    }
    // At most 8 MiB of blocks.
    Ok(blocks as u32)
}

/// Free blocks as mke2fs counts them when it sizes the journal: with `flex_bg` before bitmaps and
/// tables are taken off.
fn free_before_tables(geometry: &Geometry) -> u64 {
    let heads = geometry.head_blocks();
    let tables = u64::from(geometry.group_count) * (2 + u64::from(geometry.inode_table_blocks));
    let data = geometry.blocks_count - u64::from(geometry.first_data_block);
    data.saturating_sub(heads + if geometry.flex_groups > 1 { 0 } else { tables })
}

#[cfg(test)]
mod tests {
    use extant_base::BlockSize;

    use super::*;

    #[test]
    fn orphan_file_grows_with_the_device_and_stays_small_in_bytes() {
        let blocks =
            |count, bytes| default_orphan_file_blocks(count, BlockSize::new(bytes).unwrap());
        assert_eq!(blocks(1000, 4096), 32);
        assert_eq!(blocks(131_072, 4096), 32);
        assert_eq!(blocks(262_144, 4096), 64);
        assert_eq!(blocks(1 << 30, 4096), 512);
        assert_eq!(blocks(1 << 30, 65536), 32);
        assert_eq!(blocks(1000, 65536), 32);
    }
}
