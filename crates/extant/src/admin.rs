//! What administrators ask of an open file system: settings, limits, and who may have the last blocks.

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

/// Totals of a file system, as `statfs` gives them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Statfs {
    /// Bytes per block.
    pub block_bytes: u32,
    /// Blocks for files: all blocks but those that hold the file system's own tables.
    pub blocks: u64,
    /// Free blocks, from the group descriptors; those that are promised to data in the cache are not
    /// free.
    pub blocks_free: u64,
    /// Free blocks that ordinary users may fill: without what the superblock reserves, and what is kept
    /// for the metadata of files.
    pub blocks_available: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes, from the group descriptors.
    pub files_free: u64,
    /// Longest name in bytes.
    pub name_max: u32,
}

/// # Settings and space
impl Fs {
    /// Changes settings, all of them in one transaction.
    ///
    /// Backup superblocks keep the old ones, until e2fsck writes them anew.
    ///
    /// # Errors
    ///
    /// [`FsError::InvalidArgument`](crate::FsError::InvalidArgument) says which setting cannot be had and why: then nothing has
    /// changed. [`FsError::ReadOnly`](crate::FsError::ReadOnly), [`FsError::Aborted`](crate::FsError::Aborted),
    /// device errors.
    pub fn tune(&self, tune: &Tune) -> Result<()> {
        let supers = self.volume().writer()?.supers();
        // Tried on a copy first: what is refused must not open a transaction.
        tune.apply(&mut supers.with(Superblock::clone))?;
        let mut txn = Txn::begin(self.volume(), 1)?;
        let reserved = supers.change(&mut txn, |superblock| {
            tune.apply(superblock).map(|()| superblock.reserved_blocks_count)
        })??;
        txn.writer().alloc().set_reserve(self.volume(), reserved);
        Ok(())
    }

    /// Bytes that can be written into holes or behind the end of files now, by whoever may use reserved
    /// blocks or not: so much is promised without waiting for anything. What was removed lately counts when
    /// a commit has released it. 0 on a mount for reading.
    ///
    /// # Cost
    ///
    /// A few loads; the answer may be out of date when it arrives.
    pub fn room(&self, may_use_reserve: bool) -> u64 {
        let Ok(writer) = self.volume().writer() else { return 0 };
        let right = if may_use_reserve { Right::Privileged } else { Right::Ordinary };
        let superblock = self.superblock();
        let bits = superblock.cluster_bits() + superblock.block_size.log2();
        let clusters = writer.alloc().promisable(right);
        clusters.checked_shl(bits).unwrap_or(u64::MAX)
    }

    /// Whether `who` may take blocks that the superblock reserves: root, its user and its group may.
    pub fn may_use_reserve(&self, who: &Credentials) -> bool {
        let superblock = self.superblock();
        who.is_root() || who.uid == superblock.reserved_uid || who.is_in(superblock.reserved_gid)
    }

    /// What this thread does from now on, until the guard is dropped, takes space for somebody who may
    /// use reserved blocks or not, in whichever file system. Without it a program counts as the owner of
    /// the device, who may.
    pub fn take_space_for(&self, may_use_reserve: bool) -> SpaceFor {
        SpaceFor::begin(may_use_reserve)
    }

    /// Totals, from the superblock and every group descriptor. Reads all descriptors: 8 MiB on a
    /// file system of 16 TiB.
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
                    // What is free there cannot be told, and is not free for anybody.
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

    /// What the cache of file contents did and holds; `None` before the first use of a file.
    pub fn io_stats(&self) -> Option<CacheStats> {
        self.volume().page_cache_made().map(|cache| cache.stats())
    }

    /// Lets go of all contents of files that are cached and neither dirty nor in use, and returns how
    /// many bytes that was: what is read next comes from the device. The memory stays the cache's.
    pub fn drop_cached(&self) -> u64 {
        self.volume().page_cache_made().map_or(0, |cache| cache.drop_clean())
    }

    /// Lets go of all inodes and metadata blocks in memory that nobody holds and nothing waits to store,
    /// and returns how many that was: what is looked at next comes from the device.
    pub fn drop_cached_metadata(&self) -> usize {
        self.volume().drop_unused()
    }

    /// Says whether searches for blocks use the index of groups, from the next one on; as
    /// [`MountOptions::optimize_scan`](crate::MountOptions::optimize_scan). Costs a store: the index is kept in either case.
    ///
    /// # Errors
    ///
    /// [`FsError::ReadOnly`](crate::FsError::ReadOnly) on a mount for reading.
    pub fn set_optimize_scan(&self, optimize: bool) -> Result<()> {
        self.volume().writer()?.alloc().set_optimized(optimize);
        Ok(())
    }

    /// What the writing side did since the mount; `None` on a mount for reading.
    pub fn writer_stats(&self) -> Option<WriterStats> {
        self.volume().writer().ok().map(Writer::stats)
    }
}
