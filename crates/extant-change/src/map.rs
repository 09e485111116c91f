//! Maps of files: read whole, and built anew.

use extant_base::FsBlock;
use extant_format::extent::{self, Extent};
use extant_format::features::RoCompat;
use extant_format::indirect;
use extant_format::inode::{FileKind, InodeFlags};
use extant_format::superblock::Superblock;

use crate::error::{ChangeError, Result};
use crate::image::Image;
use crate::walk::{FileMap, joined, walk};
use extant_format::record::{self, Record};

fn broken(record: &Record) -> ChangeError {
    ChangeError::damaged(format!("the map of inode {} cannot be read", record.ino))
}

impl Image {
    /// Returns whether the inode has a map.
    pub fn has_map(&self, record: &Record) -> bool {
        if record.has(InodeFlags::INLINE_DATA) {
            return false;
        }
        match record.kind() {
            Some(FileKind::Symlink) => {
                let is_short = record.size() < 60 && !record.has(InodeFlags::EXTENTS);
                let acl = record.file_acl(self.is_wide()).0 != 0;
                let own = if acl { self.sectors_of(1) } else { 0 };
                !(is_short && u64::from(record.u32(record::BLOCKS_LO)) <= own)
            }
            Some(FileKind::Directory | FileKind::Regular) => true,
            // The reserved inodes have no mode when they are empty.
            None => record.ino.0 < self.sb.first_inode.0,
            Some(_) => false,
        }
    }

    /// Units of 512 bytes in clusters.
    fn sectors_of(&self, clusters: u64) -> u64 {
        (clusters << self.sb.cluster_bits()) * (self.block_bytes() as u64 / 512)
    }

    /// Reads the map of an inode of a file system that is in order.
    pub fn read_map(&self, record: &Record) -> Result<FileMap> {
        if !self.has_map(record) {
            return Ok(FileMap::default());
        }
        let map = walk(&self.sb, record, |block| self.read_block(block))?;
        if map.is_damaged || map.has_odd_levels {
            return Err(broken(record));
        }
        Ok(map)
    }

    /// Builds the map of an inode anew, its nodes on unused blocks that `take` gives, which are written at
    /// once. The record is not stored.
    pub fn build_map(
        &self,
        record: &mut Record,
        extents: &[Extent],
        mut take: impl FnMut() -> Result<u64>,
    ) -> Result<Vec<u64>> {
        let size = self.sb.block_size;
        let extents = joined(extents);
        let (root, blocks) = if record.has(InodeFlags::EXTENTS) {
            let seed = self.seed_of(record);
            let built = extent::build::<Fault>(&extents, size, seed, || Ok(FsBlock(take()?)))?;
            (built.root, built.blocks)
        } else {
            let built = indirect::build::<Fault>(&extents, size, || Ok(FsBlock(take()?)))?;
            (built.root, built.blocks)
        };
        let nodes = blocks.iter().map(|(block, _)| block.0).collect();
        for (block, bytes) in &blocks {
            self.write_fresh(block.0, bytes)?;
        }
        record.set_block_area(&root);
        Ok(nodes)
    }

    /// Adds clusters to `i_blocks`, or takes them away.
    pub fn add_clusters(&self, record: &mut Record, more: i64) {
        let has_huge = self.sb.features.has_ro_compat(RoCompat::HUGE_FILE);
        let per_block = self.block_bytes() as u64 / 512;
        let mut stored = u64::from(record.u32(record::BLOCKS_LO));
        if has_huge {
            stored |= u64::from(record.u16(record::BLOCKS_HIGH)) << 32;
        }
        let is_huge = has_huge && record.has(InodeFlags::HUGE_FILE);
        let sectors = if is_huge { stored.saturating_mul(per_block) } else { stored };
        let change = self.sectors_of(more.unsigned_abs());
        let sectors = match more {
            ..0 => sectors.saturating_sub(change),
            0.. => sectors.saturating_add(change),
        };
        self.set_sectors(record, sectors);
    }

    /// Sets `i_blocks` in clusters.
    pub fn set_clusters(&self, record: &mut Record, clusters: u64) {
        self.set_sectors(record, self.sectors_of(clusters));
    }

    fn set_sectors(&self, record: &mut Record, sectors: u64) {
        set_sectors(&self.sb, record, sectors);
    }
}

/// Sets `i_blocks`, in units of 512 bytes. The record is not stored.
pub fn set_sectors(sb: &Superblock, record: &mut Record, sectors: u64) {
    let has_huge = sb.features.has_ro_compat(RoCompat::HUGE_FILE);
    let is_huge = has_huge && sectors >= 1 << 48;
    let per_block = sb.block_size.len() as u64 / 512;
    let stored = if is_huge { sectors / per_block } else { sectors };
    record.set_flag(InodeFlags::HUGE_FILE, is_huge);
    record.put32(record::BLOCKS_LO, stored as u32);
    if has_huge {
        record.put16(record::BLOCKS_HIGH, (stored >> 32) as u16);
    }
}

/// Why a map cannot be built.
struct Fault(ChangeError);

impl From<ChangeError> for Fault {
    fn from(error: ChangeError) -> Fault {
        Fault(error)
    }
}

impl From<Fault> for ChangeError {
    fn from(fault: Fault) -> ChangeError {
        fault.0
    }
}

impl From<extent::ExtentFault> for Fault {
    fn from(fault: extent::ExtentFault) -> Fault {
        Fault(ChangeError::damaged(fault.to_string()))
    }
}

impl From<indirect::IndirectFault> for Fault {
    fn from(fault: indirect::IndirectFault) -> Fault {
        Fault(ChangeError::damaged(fault.to_string()))
    }
}
