//! Limits of an inode's size and block count.

use std::sync::Arc;

use extant_format::features::{Incompat, RoCompat};
use extant_format::indirect;
use extant_format::inode::{FileKind, InodeFlags};

use super::Volume;
use crate::error::{Fault, FsError, Result};
use crate::node::{InodeData, Node};

/// Checks that the inode's block count has room for one more cluster.
pub(crate) fn check_sectors(volume: &Volume, node: &Arc<Node>) -> Result<()> {
    let more = volume.superblock().cluster_bytes() / 512;
    let limit = sectors_limit(volume);
    let wanted = node.with(|data| data.record.sectors).saturating_add(more);
    if wanted > limit {
        let (bytes, limit) = (wanted.saturating_mul(512), limit * 512);
        return Err(FsError::TooLarge { ino: node.ino(), bytes, limit });
    }
    Ok(())
}

/// Returns the limit of an inode's block count, in sectors.
fn sectors_limit(volume: &Volume) -> u64 {
    match volume.features().has_ro_compat(RoCompat::HUGE_FILE) {
        true => (1 << 48) - 1,
        false => u64::from(u32::MAX),
    }
}

/// Returns the number of further blocks that the inode's block count has room for; at least a
/// cluster.
///
/// # Errors
///
/// [`FsError::TooLarge`].
pub(crate) fn blocks_left(volume: &Volume, node: &Arc<Node>) -> Result<u64> {
    check_sectors(volume, node)?;
    let left = sectors_limit(volume).saturating_sub(node.with(|data| data.record.sectors));
    Ok(left >> (volume.block_size().log2() - 9))
}

/// Checks that a file of this kind can have `size` bytes.
///
/// # Errors
///
/// [`FsError::TooLarge`].
pub(crate) fn check_size(volume: &Volume, data: &InodeData, size: u64) -> Result<()> {
    let limit = size_limit(volume, data);
    if size > limit {
        return Err(FsError::TooLarge { ino: data.ino, bytes: size, limit });
    }
    Ok(())
}

/// Checks that the map can reach the stored size, which is damage otherwise, as in the kernel.
///
/// # Errors
///
/// Damage of the inode.
pub(crate) fn check_stored_size(volume: &Volume, data: &InodeData) -> Result<()> {
    let (value, limit) = (data.record.size, reach(volume, data));
    if value > limit {
        let fault = Fault::Field { rule: "the size is more than its map reaches", value, limit };
        return Err(FsError::corrupt("inode", data.ino, None, fault));
    }
    Ok(())
}

/// Returns the largest size that the map of an inode reaches, for any kind of file.
fn reach(volume: &Volume, data: &InodeData) -> u64 {
    let features = volume.features();
    let block_size = volume.block_size();
    let bits = block_size.log2();
    let huge = features.has_ro_compat(RoCompat::HUGE_FILE);
    let sectors: u64 = if huge { (1 << 48) - 1 } else { u64::from(u32::MAX) };
    let mut blocks = sectors >> (bits - 9);
    if data.record.flags.contains(InodeFlags::EXTENTS) {
        // The sector count of huge files is in blocks then.
        blocks = if huge { u64::from(u32::MAX) } else { blocks.min(u64::from(u32::MAX)) };
    } else {
        // Pointer blocks count as well.
        let reached = indirect::max_file_blocks(block_size);
        let own = indirect::pointer_blocks(reached.min(blocks), block_size);
        blocks = reached.min(blocks.saturating_sub(own));
    }
    blocks.checked_shl(bits).unwrap_or(u64::MAX).min((1 << 63) - 1)
}

fn size_limit(volume: &Volume, data: &InodeData) -> u64 {
    let most = reach(volume, data);
    let features = volume.features();
    let wide = match data.kind {
        FileKind::Regular => true,
        FileKind::Directory => features.has_incompat(Incompat::LARGEDIR),
        _ => false,
    };
    if wide { most } else { most.min(u64::from(u32::MAX)) }
}
