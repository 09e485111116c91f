//! The file system's own files: journal, resize inode, orphan file, quota files, and the block of
//! multiple-mount protection.

use std::ops::Range;

use extant_base::{FsBlock, GroupIndex, sabotage};
use extant_format::indirect::{DIRECT, POINTER_BYTES};
use extant_format::inode::Inode;
use extant_format::jbd2::{
    JournalCompat, JournalIncompat, JournalRoCompat, JournalSuperblock, JournalVersion, Tid,
};
use extant_format::mmp::Mmp;
use extant_format::orphan::OrphanBlock;

use crate::plan::{Own, Piece};
use crate::write::WriteError;
use crate::write::chunk::Worker;
use crate::write::image::Image;

/// Slot of the double-indirect pointer in `i_block`, after the direct and the indirect ones.
const DOUBLE_INDIRECT: usize = DIRECT as usize + 1;

impl Worker<'_> {
    /// The journal's superblock; the log behind it is empty, and zero on targets that are not.
    pub(super) fn journal(&mut self) -> Result<(), WriteError> {
        let image = self.image;
        let layout = &image.plan.layout;
        let pieces = layout.pieces.of(layout.own.journal.data);
        let Some(first) = pieces.first() else { return Ok(()) };
        let superblock = image.journal_superblock();
        let mut block = vec![0; image.block_bytes()];
        superblock
            .encode(&mut block)
            .map_err(|e| WriteError::encode("the journal's superblock", e))?;
        if !image.plan.options.lazy_journal_init {
            for piece in pieces {
                image.zero(piece.block, u64::from(piece.len))?;
            }
        }
        image.write(FsBlock(first.block), &block, &mut self.written)
    }

    /// Fills blocks of an own file, `first` being a block of that file.
    pub(super) fn fill_own(
        &mut self,
        own: Own,
        piece: &Piece,
        first: u32,
        out: &mut [u8],
    ) -> Result<(), WriteError> {
        let image = self.image;
        let size = image.block_bytes();
        out.fill(0);
        match own {
            Own::OrphanFile => {
                let ino = image.own_ino(own);
                let empty = OrphanBlock::empty(image.plan.layout.geometry.block_size);
                for (at, block) in out.chunks_exact_mut(size).enumerate() {
                    let mut device = piece.block + u64::from(first - piece.file_block) + at as u64;
                    if sabotage("image.write.orphan-block-of-the-file") {
                        device = at as u64;
                    }
                    empty
                        .encode(
                            image.plan.layout.geometry.block_size,
                            FsBlock(device),
                            image.inode_seed(ino),
                            block,
                        )
                        .map_err(|e| WriteError::encode("the orphan file", e))?;
                }
            }
            Own::Quota(kind) => {
                let bytes = &image.quota[usize::from(kind)];
                let start = (first as usize * size).min(bytes.len());
                let part = &bytes[start..bytes.len().min(start + out.len())];
                out[..part.len()].copy_from_slice(part);
            }
            Own::Mmp => {
                let mut mmp = Mmp::clean(image.superblock.mmp_interval);
                mmp.time = image.plan.ids.created.sec.max(0).unsigned_abs();
                let bytes = mmp.encode(image.seed);
                out[..bytes.len()].copy_from_slice(&bytes);
            }
            Own::ResizeMap => {
                let geometry = &image.plan.layout.geometry;
                let pointers = size / 4;
                let reserved = geometry.group(GroupIndex(0)).reserved_gdt;
                for (at, block) in reserved.enumerate() {
                    let slot = (geometry.gdt_blocks as usize + at) % pointers;
                    // Block maps have 32-bit block numbers; reserved descriptors lie in group 0.
                    out[slot * 4..slot * 4 + 4].copy_from_slice(&(block as u32).to_le_bytes());
                }
            }
            // The journal has a job of its own.
            Own::Journal => {}
        }
        Ok(())
    }

    /// Reserved descriptor block `i` of group 0 doubles as an indirect block of the resize inode
    /// that lists its copies in the groups with backups.
    pub(super) fn reserved_descriptors(&mut self, range: Range<u32>) -> Result<(), WriteError> {
        let image = self.image;
        let geometry = &image.plan.layout.geometry;
        let size = image.block_bytes();
        let home = geometry.group(GroupIndex(0)).reserved_gdt;
        let copies: Vec<(u32, u64)> = image.super_groups[1..]
            .iter()
            .map(|&group| (group, geometry.group(GroupIndex(group)).reserved_gdt))
            .filter(|(_, copy)| !copy.is_empty())
            .map(|(group, copy)| (group, copy.start))
            .collect();
        let mut bytes = vec![0; range.len() * size];
        for (block, at) in bytes.chunks_exact_mut(size).zip(range.clone()) {
            for (slot, (group, _)) in block.chunks_exact_mut(4).zip(&copies) {
                // As far behind the one in group 0 as the groups are apart, which is what Linux and e2fsck compare.
                // With clusters and blocks of 1 KiB, group 0 has the boot block as well, and this is one block
                // behind where the copy lies.
                let apart = u64::from(*group) * u64::from(geometry.blocks_per_group);
                let listed = home.start + apart + u64::from(at);
                slot.copy_from_slice(&(listed as u32).to_le_bytes());
            }
        }
        if copies.is_empty() {
            return image.zero(home.start + u64::from(range.start), range.len() as u64);
        }
        for (_, copy) in &copies {
            image.zero(copy + u64::from(range.start), range.len() as u64)?;
        }
        image.write(FsBlock(home.start + u64::from(range.start)), &bytes, &mut self.written)
    }
}

impl Image<'_> {
    fn journal_superblock(&self) -> JournalSuperblock {
        let geometry = &self.plan.layout.geometry;
        let journal = geometry.journal;
        JournalSuperblock {
            version: JournalVersion::V2,
            block_size: geometry.block_size,
            len: journal.map_or(0, |j| j.total_blocks()),
            first: 1,
            sequence: Tid(1),
            start: 0,
            errno: 0,
            compat: JournalCompat::empty(),
            incompat: JournalIncompat::empty(),
            ro_compat: JournalRoCompat::empty(),
            uuid: [0; 16],
            user_count: 1,
            dynsuper: 0,
            max_transaction: 0,
            max_trans_data: 0,
            checksum_type: 0,
            fast_commit_blocks: journal.map_or(0, |j| j.fast_commit_blocks),
            head: 0,
            users: [[0; 16]; 48],
        }
    }

    /// Size of the resize inode: all that double indirection reaches.
    pub(super) fn resize_size(&self) -> u64 {
        let pointers = (self.block_bytes() / 4) as u64;
        self.offset(pointers * pointers + pointers + u64::from(DIRECT))
    }

    /// Maps the resize inode, always by indirect blocks.
    pub(super) fn put_resize_map(&self, inode: &mut Inode) -> Result<(), WriteError> {
        let layout = &self.plan.layout;
        let Some(map) = layout.pieces.of(layout.own.resize_map).first() else { return Ok(()) };
        let at = DOUBLE_INDIRECT * POINTER_BYTES;
        inode.block[at..at + 4].copy_from_slice(&(map.block as u32).to_le_bytes());
        let geometry = &layout.geometry;
        let copies = self
            .super_groups
            .iter()
            .filter(|&&group| !geometry.group(GroupIndex(group)).reserved_gdt.is_empty())
            .count() as u64;
        // e2fsck charges each of them a whole cluster, though most share theirs.
        let blocks = (1 + u64::from(geometry.reserved_gdt_blocks) * copies)
            * u64::from(geometry.cluster_blocks);
        self.put_sectors(inode, blocks, || "the resize inode".into())
    }
}
