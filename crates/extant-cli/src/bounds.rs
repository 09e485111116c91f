//! Where a file system ends at the latest that begins at a byte of a disk (`--offset`).
//!
//! Up to the end of the disk there may be partitions with other contents. What reads and changes
//! files stays within its file system; who makes one, or makes one larger, has to know where that
//! may be.

use std::sync::Arc;

use extant_block::partition::{self, Partition, TableKind};
use extant_block::{BlockDevice, SharedDevice, WindowDevice};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};

use crate::exit::Result;

/// What the second table of a GPT takes at the end of the disk: 128 entries of 128 bytes and a
/// sector for the header, of 4096 bytes at most.
const SECOND_TABLE_BYTES: u64 = (128 * 128) + 4096;

/// What a partition table says about a byte.
pub(crate) struct Bounds {
    /// The partition that has it.
    pub(crate) inside: Option<Partition>,
    /// The end of that partition, or the beginning of the next one.
    pub(crate) end: u64,
}

/// What the partition table of `disk` says about byte `offset`: nothing where there is none, or
/// none that can be read; nor about byte 0, where the table itself is.
pub(crate) fn bounds(disk: &dyn BlockDevice, offset: u64) -> Option<Bounds> {
    if offset == 0 {
        return None;
    }
    let partitions = partition::list(disk).ok()?;
    let disk_bytes = disk.size_bytes();
    let end_of = |one: &Partition| one.offset.saturating_add(one.len);
    // A logical partition lies in an extended one, which is not listed.
    let inside = partitions.iter().find(|one| (one.offset..end_of(one)).contains(&offset));
    let next = partitions.iter().map(|one| one.offset).filter(|at| *at > offset).min();
    let is_gpt = partitions.iter().any(|one| one.table == TableKind::Gpt);
    let last = disk_bytes.saturating_sub(if is_gpt { SECOND_TABLE_BYTES } else { 0 });
    let end = inside.map(end_of).or(next).unwrap_or(last.max(offset)).min(disk_bytes);
    Some(Bounds { inside: inside.cloned(), end })
}

/// Cuts `part`, which begins at `offset` of `disk` and may grow, off where something else begins;
/// but not before its file system ends, whatever a table says.
pub(crate) fn within(
    part: SharedDevice,
    disk: &dyn BlockDevice,
    offset: Option<u64>,
) -> Result<SharedDevice> {
    let Some((offset, bounds)) = offset.and_then(|at| Some((at, bounds(disk, at)?))) else {
        return Ok(part);
    };
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let read = part.read_at(SUPERBLOCK_OFFSET, &mut bytes);
    // What cannot be read is said by whoever opens it.
    let Some(superblock) = read.ok().and_then(|()| Superblock::decode_unverified(&bytes).ok())
    else {
        return Ok(part);
    };
    let has = superblock.blocks_count.saturating_mul(u64::from(superblock.block_size.bytes()));
    let len = bounds.end.saturating_sub(offset).max(has);
    if len >= part.size_bytes() {
        return Ok(part);
    }
    let name = part.describe();
    Ok(Arc::new(WindowDevice::named(part, 0, len, &name)?))
}
