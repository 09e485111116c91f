//! The superblock and its copies.

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino};
use extant_format::superblock::{SUPERBLOCK_OFFSET, Superblock};

use crate::options::Feature;
use crate::plan::Own;
use crate::write::image::Image;
use crate::write::{WriteError, Written};

/// Bytes before the superblock that belong to the boot loader.
const BOOT_BYTES: usize = SUPERBLOCK_OFFSET as usize;

impl Image<'_> {
    /// Removes what an earlier file system left where superblocks are looked for (W2).
    pub(super) fn wipe_old_superblocks(&self) -> Result<(), WriteError> {
        let head = self.offset(1).max(u64::from(BlockSize::MAX_BYTES) + 4096);
        self.device.write_zeroes(0, head.min(self.device.size_bytes()))?;
        Ok(())
    }

    /// Writes the backups, then the superblock itself.
    pub(super) fn write_superblocks(&self, bytes_written: u64) -> Result<Written, WriteError> {
        let geometry = &self.plan.layout.geometry;
        let superblock = self.final_superblock(bytes_written);
        let mut written = Written::default();
        for &group in self.super_groups.iter().skip(1).rev() {
            let group = GroupIndex(group);
            let Some(block) = geometry.group(group).super_block else { continue };
            let mut bytes = vec![0; self.block_bytes()];
            let copy = superblock.encode_backup(group);
            bytes[..copy.len()].copy_from_slice(&copy);
            self.write(FsBlock(block), &bytes, &mut written)?;
        }
        // The first kilobyte is the boot loader's; a block of 1 KiB holds the superblock alone.
        let bytes = superblock.encode();
        if self.block_bytes() > BOOT_BYTES {
            let mut block = vec![0; self.block_bytes()];
            block[BOOT_BYTES..BOOT_BYTES + bytes.len()].copy_from_slice(&bytes);
            self.write(FsBlock(0), &block, &mut written)?;
        } else {
            self.write(FsBlock(1), &bytes, &mut written)?;
        }
        Ok(written)
    }

    /// Returns what the template leaves to the end.
    fn final_superblock(&self, bytes_written: u64) -> Superblock {
        let plan = self.plan;
        let layout = &plan.layout;
        let mut superblock = self.superblock.clone();
        superblock.free_blocks_count = layout.free_blocks;
        superblock.free_inodes_count = superblock.inodes_count - plan.demand.inos.used();
        // The jobs, and so their bytes, are the same for any number of workers.
        superblock.kbytes_written = bytes_written / 1024;
        if let Some(piece) = layout.pieces.of(layout.own.mmp).first() {
            superblock.mmp_block = FsBlock(piece.block);
        }
        let own = |own: Own, exists: bool| if exists { self.own_ino(own) } else { Ino(0) };
        let quota =
            |kind: u8| own(Own::Quota(kind), layout.own.quota[usize::from(kind)].data.count > 0);
        superblock.user_quota_inode = quota(0);
        superblock.group_quota_inode = quota(1);
        superblock.project_quota_inode = quota(2);
        superblock.orphan_file_inode = own(Own::OrphanFile, layout.own.orphan_file.data.count > 0);
        if self.has(Feature::HAS_JOURNAL)
            && let Ok((root, _)) =
                self.map_of(layout.own.journal.data, layout.own.journal.map, None)
        {
            for (word, bytes) in superblock.journal_backup.iter_mut().zip(root.chunks_exact(4)) {
                *word = bytes.iter().rev().fold(0, |word, &byte| word << 8 | u32::from(byte));
            }
            let pieces = layout.pieces.of(layout.own.journal.data).iter();
            let size = self.offset(pieces.map(|p| u64::from(p.len)).sum());
            superblock.journal_backup[15] = (size >> 32) as u32;
            superblock.journal_backup[16] = size as u32;
        }
        superblock
    }
}
