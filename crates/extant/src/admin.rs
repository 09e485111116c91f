//! Administration of an open file system: settings, limits, totals, and access to reserved blocks.

use extant_base::GroupIndex;
use extant_format::superblock::Superblock;
use extant_iomap::CacheStats;

use crate::access::Credentials;
use crate::alloc::{Right, SpaceFor};
use crate::error::{Family, Result};
use crate::fs::Fs;
use crate::supers::Tune;
use crate::txn::Txn;
use crate::writer::{Writer, WriterStats};

/// Totals of a file system, as in `statfs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statfs {
    /// Size of a block in bytes.
    pub block_bytes: u32,
    /// Number of blocks for files: all blocks but those of the file system's own metadata.
    pub blocks: u64,
    /// Number of free blocks, from the group descriptors; blocks promised to data in the cache are
    /// not free.
    pub blocks_free: u64,
    /// Number of free blocks that ordinary users may fill: without those that the superblock
    /// reserves, and those kept for the metadata of files.
    pub blocks_available: u64,
    /// Number of inodes.
    pub files: u64,
    /// Number of free inodes, from the group descriptors.
    pub files_free: u64,
    /// Length of the longest name in bytes.
    pub name_max: u32,
}

/// # Settings and space
impl Fs {
    /// Changes settings, all in one transaction.
    ///
    /// Backup superblocks keep the old settings until e2fsck rewrites them.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`](crate::FsError::InvalidArgument) names a setting that is not
    /// possible and why; nothing has changed then. [`FsError::ReadOnly`](crate::FsError::ReadOnly),
    /// [`FsError::Aborted`](crate::FsError::Aborted), device errors.
    pub fn tune(&self, tune: &Tune) -> Result<()> {
        let supers = self.volume().writer()?.supers();
        // Settings are tried on a copy first, so that a refusal opens no transaction.
        tune.apply(&mut supers.with(Superblock::clone))?;
        let mut txn = Txn::begin(self.volume(), 1)?;
        let reserved = supers.change(&mut txn, |superblock| {
            tune.apply(superblock).map(|()| superblock.reserved_blocks_count)
        })??;
        txn.writer().alloc().set_reserve(self.volume(), reserved);
        Ok(())
    }

    /// Returns the number of bytes that can be written into holes or behind the end of files now,
    /// with or without reserved blocks: this much can be promised without waiting. Removed files
    /// count after the commit that releases their blocks. 0 on a read-only mount.
    ///
    /// # Cost
    ///
    /// A few loads; the answer may be outdated at once.
    pub fn room(&self, may_use_reserve: bool) -> u64 {
        let Ok(writer) = self.volume().writer() else { return 0 };
        let right = if may_use_reserve { Right::Privileged } else { Right::Ordinary };
        let superblock = self.superblock();
        let bits = superblock.cluster_bits() + superblock.block_size.log2();
        let clusters = writer.alloc().promisable(right);
        clusters.checked_shl(bits).unwrap_or(u64::MAX)
    }

    /// Returns whether `who` may take blocks that the superblock reserves: root, and the user and
    /// group in the superblock may.
    pub fn may_use_reserve(&self, who: &Credentials) -> bool {
        let superblock = self.superblock();
        who.is_root() || who.uid == superblock.reserved_uid || who.is_in(superblock.reserved_gid)
    }

    /// Makes this thread allocate on behalf of a user who may use reserved blocks, or may not, in
    /// any file system, until the guard is dropped. Without a guard, threads may use the reserved
    /// blocks. Limits of quotas bind in either case; [`SpaceFor::beyond_limits`] is for whom they do not.
    pub fn take_space_for(&self, may_use_reserve: bool) -> SpaceFor {
        SpaceFor::begin(may_use_reserve)
    }

    /// Returns totals, from the superblock and every group descriptor. Reads all descriptors: 8 MiB
    /// on a file system of 16 TiB.
    ///
    /// # Errors
    ///
    /// Device errors.
    pub fn statfs(&self) -> Result<Statfs> {
        let superblock = self.superblock();
        let ratio = u64::from(superblock.cluster_ratio());
        let (mut free_clusters, mut files_free) = (0u64, 0u64);
        let available;
        if let Ok(writer) = self.volume().writer() {
            let alloc = writer.alloc();
            free_clusters = alloc.free_clusters().saturating_sub(alloc.promised());
            files_free = u64::from(writer.alloc().free_inodes());
            available = alloc.available();
        } else {
            for group in 0..superblock.group_count {
                let descriptor = match self.group(GroupIndex(group)) {
                    // The free space of a damaged group is unknown, and not available.
                    Err(error) if error.family() == Family::Damage => continue,
                    other => other?,
                };
                free_clusters += u64::from(descriptor.free_clusters);
                files_free += u64::from(descriptor.free_inodes);
            }
            available = free_clusters.saturating_sub(crate::alloc::kept_of(superblock));
        }
        let blocks_free = free_clusters.saturating_mul(ratio);
        let overhead = match self.volume().counts_overhead() {
            true => 0,
            false => u64::from(superblock.overhead_clusters).saturating_mul(ratio),
        };
        Ok(Statfs {
            block_bytes: superblock.block_size.bytes(),
            blocks: superblock.blocks_count.saturating_sub(overhead),
            blocks_free,
            blocks_available: available.saturating_mul(ratio).min(blocks_free),
            files: u64::from(superblock.inodes_count),
            files_free,
            name_max: crate::limits::NAME_MAX as u32, // 255.
        })
    }

    /// Returns the counters of the cache of file contents; `None` before the first use of a file.
    pub fn io_stats(&self) -> Option<CacheStats> {
        self.volume().page_cache_made().map(|cache| cache.stats())
    }

    /// Drops all cached file contents that are neither dirty nor in use, and returns their size in
    /// bytes: later reads go to the device. The memory stays with the cache.
    pub fn drop_cached(&self) -> u64 {
        self.volume().page_cache_made().map_or(0, |cache| cache.drop_clean())
    }

    /// Drops all inodes and metadata blocks in memory that are unused and have nothing to store,
    /// and returns their number: later lookups go to the device.
    pub fn drop_cached_metadata(&self) -> usize {
        self.volume().drop_unused()
    }

    /// Sets whether searches for blocks use the index of groups, from the next search on, like
    /// [`MountOptions::optimize_scan`](crate::MountOptions::optimize_scan). Costs one store: the
    /// index is maintained in either case.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`](crate::FsError::ReadOnly) on a read-only mount.
    pub fn set_optimize_scan(&self, optimize: bool) -> Result<()> {
        self.volume().writer()?.alloc().set_optimized(optimize);
        Ok(())
    }

    /// Returns whether searches for blocks use the index of groups; `None` on a mount for reading.
    pub fn optimize_scan(&self) -> Option<bool> {
        self.volume().writer().ok().map(|writer| writer.alloc().is_optimized())
    }

    /// Returns the counters of the writing side; `None` on a read-only mount.
    pub fn writer_stats(&self) -> Option<WriterStats> {
        self.volume().writer().ok().map(Writer::stats)
    }
}
