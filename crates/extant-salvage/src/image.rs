//! An image as far as it can be found: its numbers, its inode tables, its blocks.

use std::sync::Arc;

use extant_base::Ino;
use extant_block::SharedDevice;
use extant_format::checksum::inode_seed;
use extant_format::dir::DirLayout;
use extant_format::extent::{self, ROOT_RECORDS};
use extant_format::features::{Compat, Incompat, RoCompat};
use extant_format::inode::{FileKind, Inode, InodeFlags, InodeLayout};
use extant_format::record::{EXTRA, Record, u16_at};
use extant_format::superblock::Superblock;

use crate::tables::{Table, find_tables};

/// Why a block was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unread {
    Outside,
    Device,
}

/// An image that is read as far as it can be.
pub struct Image {
    pub(crate) device: SharedDevice,
    pub(crate) sb: Superblock,
    pub(crate) layout: InodeLayout,
    pub(crate) dirs: DirLayout,
    /// Seed of all checksums.
    pub(crate) seed: u32,
    pub(crate) tables: Vec<Table>,
    /// Blocks that there are: those of the superblock, unless the device is shorter.
    pub(crate) blocks: u64,
    pub(crate) notes: Vec<String>,
    /// The log had something, which is shown in its places.
    pub(crate) is_replayed: bool,
    /// The log, or a part of it, is not shown, although changes may wait in it.
    pub(crate) lacks_log: bool,
}

impl Image {
    pub(crate) fn of(device: SharedDevice, sb: Superblock, notes: Vec<String>) -> Image {
        let blocks = sb.blocks_count.min(device.size_bytes() / u64::from(sb.block_size.bytes()));
        let tables = find_tables(&*device, &sb, blocks);
        Image {
            layout: InodeLayout::of(&sb),
            dirs: DirLayout {
                block_size: sb.block_size,
                filetype: sb.features.has_incompat(Incompat::FILETYPE),
                checksum: sb.features.metadata_csum(),
                stored_hash: false,
                encrypted: false,
            },
            seed: sb.checksum_seed(),
            device,
            sb,
            tables,
            blocks,
            notes,
            is_replayed: false,
            lacks_log: false,
        }
    }

    /// Returns what is worth knowing about how the image was found, in sentences.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Returns whether changes may wait in the journal that are not shown: it, or a part of it, could not be brought in.
    pub fn lacks_log(&self) -> bool {
        self.lacks_log
    }

    /// Returns the superblock that was found, or that follows from the descriptors.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// Returns the device as it is read: with the journal's blocks in their places.
    pub fn device(&self) -> &SharedDevice {
        &self.device
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.sb.block_size.len()
    }

    /// Returns whether `len` blocks from `block` on belong to the image.
    pub(crate) fn in_range(&self, block: u64, len: u64) -> bool {
        block > u64::from(self.sb.first_data_block)
            && block.checked_add(len).is_some_and(|end| end <= self.blocks)
    }

    /// Reads one block.
    pub(crate) fn read_block(&self, block: u64) -> Result<Vec<u8>, Unread> {
        let mut bytes = vec![0; self.block_bytes()];
        self.read_into(block, &mut bytes)?;
        Ok(bytes)
    }

    /// Reads from the start of a block.
    pub(crate) fn read_into(&self, block: u64, out: &mut [u8]) -> Result<(), Unread> {
        let size = self.block_bytes() as u64;
        if !self.in_range(block, (out.len() as u64).div_ceil(size)) {
            return Err(Unread::Outside);
        }
        self.device.read_at(block.saturating_mul(size), out).map_err(|_| Unread::Device)
    }

    /// The byte where an inode's record begins; `None`: its table is not known, or outside.
    pub(crate) fn place_of(&self, ino: Ino) -> Option<u64> {
        let (group, at) = self.sb.group_of_inode(ino)?;
        let table = self.tables.get(group.0 as usize).filter(|table| table.start != 0)?;
        let offset = u64::from(at) * u64::from(self.sb.inode_size);
        let size = self.block_bytes() as u64;
        let block = table.start.checked_add(offset / size)?;
        self.in_range(block, 1).then(|| block * size + offset % size)
    }

    /// Reads an inode's record; `None`: it cannot be.
    pub(crate) fn load(&self, ino: Ino) -> Option<Record> {
        let at = self.place_of(ino)?;
        let mut bytes = vec![0; usize::from(self.sb.inode_size)];
        self.device.read_at(at, &mut bytes).ok()?;
        Some(Record { ino, bytes })
    }

    pub(crate) fn has_checksums(&self) -> bool {
        self.layout.checksum_seed.is_some()
    }

    pub(crate) fn is_sealed(&self, record: &Record) -> bool {
        Inode::verify_checksum(&self.layout, record.ino, &record.bytes).is_ok()
    }

    /// The seed of the checksums of an inode's blocks.
    pub(crate) fn seed_of(&self, record: &Record) -> u32 {
        inode_seed(self.seed, record.ino, record.generation())
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT)
    }

    /// Returns whether an inode belongs to the file system and is nobody's file.
    pub(crate) fn is_system(&self, ino: Ino) -> bool {
        let sb = &self.sb;
        let with = |ro: RoCompat| sb.features.has_ro_compat(ro);
        (ino.0 < sb.first_inode.0 && ino != Ino::ROOT)
            || ino == sb.journal_inode
            || (with(RoCompat::QUOTA)
                && [sb.user_quota_inode, sb.group_quota_inode, sb.project_quota_inode]
                    .contains(&ino))
            || (sb.features.has_compat(Compat::ORPHAN_FILE) && ino == sb.orphan_file_inode)
    }

    /// Returns whether the map of an inode is a tree of extents: it says so, or it has one all the same. Read as numbers of
    /// blocks, a tree would lead into the file system itself.
    pub(crate) fn has_tree(&self, record: &Record) -> bool {
        record.has(InodeFlags::EXTENTS) || !self.is_inline(record) && self.is_tree(record)
    }

    /// Returns whether an inode has its contents inside: it says so, and has them, or no tree in their place.
    pub(crate) fn is_inline(&self, record: &Record) -> bool {
        record.has(InodeFlags::INLINE_DATA)
            && (self.inline_value(record).is_some() || !self.is_tree(record))
    }

    /// Returns whether what lies in the place of a map is the root of a tree.
    fn is_tree(&self, record: &Record) -> bool {
        let may_be = match record.kind() {
            Some(FileKind::Regular | FileKind::Directory) => true,
            Some(FileKind::Symlink) => record.size() > 59,
            _ => false,
        };
        let area = record.block_area();
        let Ok(root) = extent::Node::decode_root(&area) else { return false };
        may_be
            && self.sb.features.has_incompat(Incompat::EXTENTS)
            && root.header().max == ROOT_RECORDS
            && root.header().entries > 0
            && root.extents().all(|one| self.in_range(one.device_start.0, u64::from(one.len.0)))
            && root.children().all(|(index, _)| self.in_range(index.child.0, 1))
    }

    /// Returns whether an inode is marked as the value of an attribute, where there are such.
    pub(crate) fn is_marked_as_value(&self, record: &Record) -> bool {
        record.has(InodeFlags::EA_INODE) && self.sb.features.has_incompat(Incompat::EA_INODE)
    }

    /// Returns whether a record is that of a file with names: not deleted, no part of an attribute, and without a
    /// checksum not against all likelihood.
    pub(crate) fn is_file(&self, record: &Record) -> bool {
        if record.kind().is_none() || record.links() == 0 || self.is_marked_as_value(record) {
            return false;
        }
        (self.has_checksums() && self.is_sealed(record)) || self.is_likely(record)
    }

    /// Returns whether the fields of a record fit each other.
    pub(crate) fn is_likely(&self, record: &Record) -> bool {
        let area = record.block_area();
        let extra = record.bytes.len() <= 128
            || (record.u16(EXTRA) <= self.layout.extra_max()
                && record.u16(EXTRA).is_multiple_of(4));
        let is_map = match record.kind() {
            None => return false,
            _ if self.is_inline(record) => true,
            Some(FileKind::Directory | FileKind::Regular) if self.has_tree(record) => {
                u16_at(&area, 0) == extant_format::extent::MAGIC
            }
            Some(FileKind::Directory | FileKind::Regular) => {
                let mut blocks = extant_format::indirect::blocks(&area);
                blocks.all(|block| block.is_none_or(|block| self.in_range(block.0, 1)))
            }
            Some(_) => true,
        };
        extra && is_map && record.links() <= 65_000
    }

    /// Reads the records of a group's table in order, as far as they can be, and hands on those that are not empty.
    /// Returns whether all of them could be read.
    pub(crate) fn each_record(&self, group: u32, each: &mut dyn FnMut(Record)) -> bool {
        let Some(table) = self.tables.get(group as usize).copied() else { return false };
        if table.start == 0 {
            return table.inodes == 0;
        }
        let size = usize::from(self.sb.inode_size);
        let per_block = (self.block_bytes() / size).max(1) as u32;
        let mut is_whole = true;
        let mut at = 0;
        while at < table.inodes {
            let block = table.start.saturating_add(u64::from(at / per_block));
            match self.read_block(block) {
                Ok(bytes) => {
                    for (slot, raw) in bytes.chunks_exact(size).enumerate() {
                        let number = at.saturating_add(slot as u32);
                        if number < table.inodes && raw.iter().any(|byte| *byte != 0) {
                            let before = group.wrapping_mul(self.sb.inodes_per_group);
                            let ino = Ino(before.wrapping_add(number).wrapping_add(1));
                            each(Record { ino, bytes: raw.to_vec() });
                        }
                    }
                }
                Err(_) => is_whole = false,
            }
            at = at.saturating_add(per_block);
        }
        is_whole
    }

    /// Returns the device for another owner.
    pub(crate) fn shared(&self) -> SharedDevice {
        Arc::clone(&self.device)
    }
}
