//! The file system on the device: superblock, descriptors, bitmaps and inode records, changed in a draft.

use std::sync::Arc;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_block::{BlockDevice, SharedDevice};
use extant_format::bitmap::Bitmap;
use extant_format::checksum::inode_seed;
use extant_format::features::{Feature, Incompat, State};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_format::inode::{Inode, InodeLayout};
use extant_format::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::Heads;
use extant_layout::support::WRITABLE;

use crate::draft::Draft;
use crate::error::{ChangeError, Result};
use extant_format::record::Record;

/// A file system and the changes to it that are not on the device yet.
pub struct Image {
    /// The device below the draft.
    pub device: SharedDevice,
    /// The changes.
    pub draft: Arc<Draft>,
    /// The superblock as it will be.
    pub sb: Superblock,
    /// The descriptors as they will be.
    pub groups: Vec<GroupDescriptor>,
}

/// Where a bitmap lies, and what vouches for it.
pub(crate) struct BitmapPlace {
    pub(crate) structure: &'static str,
    pub(crate) group: u32,
    pub(crate) block: u64,
    pub(crate) checksum: u32,
    /// Bits that the checksum covers.
    pub(crate) bits: u32,
}

/// Reads records of inodes by pieces of their tables: for who wants most of them, while nothing changes.
pub struct Records<'i> {
    image: &'i Image,
    /// Offset of the piece that was read last.
    start: u64,
    bytes: Vec<u8>,
}

/// Bytes of a table that are read at once.
const PIECE_BYTES: u64 = 64 << 10;

impl Records<'_> {
    /// The record of an inode.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn load(&mut self, ino: Ino) -> Result<Record> {
        let at = self.image.record_offset(ino)?;
        let len = usize::from(self.image.sb.inode_size).max(128);
        if let Some(bytes) = self.held(at, len) {
            return Ok(Record { ino, bytes: bytes.to_vec() });
        }
        let left = self.image.draft.size_bytes().saturating_sub(at);
        self.bytes.clear();
        self.bytes.resize(left.min(PIECE_BYTES).max(len as u64) as usize, 0);
        self.start = at;
        if self.image.draft.read_at(at, &mut self.bytes).is_err() {
            // What cannot be read may lie behind this record.
            self.bytes.clear();
            return self.image.load_any(ino);
        }
        let bytes = self.bytes.get(..len).unwrap_or_default().to_vec();
        Ok(Record { ino, bytes })
    }

    fn held(&self, at: u64, len: usize) -> Option<&[u8]> {
        let from = usize::try_from(at.checked_sub(self.start)?).ok()?;
        self.bytes.get(from..from.checked_add(len)?)
    }
}

impl Image {
    /// Opens the image on `device`. Its journal must be empty. `room`: the bytes that it may grow to.
    pub fn open(device: SharedDevice, room: u64) -> Result<Image> {
        let sb = superblock(&*device)?;
        let size = room.max(device.size_bytes());
        let draft = Arc::new(Draft::over(Arc::clone(&device), size, sb.block_size.len()));
        let mut image = Image { device, draft, sb, groups: Vec::new() };
        image.read_descriptors()?;
        Ok(image)
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> usize {
        self.sb.block_size.len()
    }

    /// Where groups have superblocks and descriptors.
    #[must_use]
    pub fn heads(&self) -> Heads {
        Heads::of(&self.sb)
    }

    /// Returns whether the file system has a feature.
    #[must_use]
    pub fn has(&self, feature: Feature) -> bool {
        self.sb.features.has(feature)
    }

    /// Returns whether numbers of blocks have 64 bits.
    #[must_use]
    pub fn is_wide(&self) -> bool {
        self.sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT)
    }

    /// A block, changed or not.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn read_block(&self, block: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes()];
        self.draft.read_at(block.saturating_mul(bytes.len() as u64), &mut bytes)?;
        Ok(bytes)
    }

    /// Writes a block of the draft.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn write_block(&self, block: u64, bytes: &[u8]) -> Result {
        Ok(self.draft.write_at(block.saturating_mul(self.block_bytes() as u64), bytes)?)
    }

    /// Writes a block that nothing refers to yet, past the draft.
    pub fn write_fresh(&self, block: u64, bytes: &[u8]) -> Result {
        Ok(self.device.write_at(block.saturating_mul(self.block_bytes() as u64), bytes)?)
    }

    /// Writes the superblock of the draft.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn write_superblock(&self) -> Result {
        Ok(self.draft.write_at(SUPERBLOCK_OFFSET, &self.sb.encode())?)
    }

    /// Reads superblock and descriptors again, from the draft.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn reload(&mut self) -> Result {
        self.sb = superblock(&*self.draft)?;
        self.groups.clear();
        self.read_descriptors()
    }

    fn read_descriptors(&mut self) -> Result {
        let size = usize::from(self.sb.desc_size).max(32);
        let (heads, kind) = (self.heads(), GroupChecksum::of(&self.sb));
        for index in 0..self.sb.descriptor_blocks() {
            let place = heads.descriptor_block(index);
            let Some(block) = place.filter(|block| block.0 < self.sb.blocks_count) else {
                return Err(ChangeError::damaged("descriptors lie behind the end"));
            };
            let bytes = self.read_block(block.0)?;
            for raw in bytes.chunks_exact(size) {
                if self.groups.len() >= self.sb.group_count as usize {
                    break;
                }
                let group = GroupIndex(self.groups.len() as u32);
                let wrong = |error: String| ChangeError::Damaged { why: error };
                GroupDescriptor::verify_checksum(group, &kind, raw)
                    .map_err(|error| wrong(error.to_string()))?;
                let descriptor =
                    GroupDescriptor::decode(raw).map_err(|error| wrong(error.to_string()))?;
                descriptor.check(group, &self.sb).map_err(|error| wrong(error.to_string()))?;
                self.groups.push(descriptor);
            }
        }
        Ok(())
    }

    /// Encodes the descriptors of groups into the blocks of the table.
    pub fn write_descriptors(&self, groups: std::ops::Range<u32>) -> Result {
        let per_block = self.sb.descriptors_per_block();
        let mut from = groups.start;
        while from < groups.end {
            let index = from / per_block;
            let block = self.heads().descriptor_block(index);
            let block = block.ok_or_else(|| ChangeError::damaged("a group has no descriptor"))?;
            self.write_block(block.0, &self.descriptor_block(index)?)?;
            from = (index + 1).saturating_mul(per_block);
        }
        Ok(())
    }

    /// The bytes of a block of the descriptor table.
    pub fn descriptor_block(&self, index: u32) -> Result<Vec<u8>> {
        let size = usize::from(self.sb.desc_size).max(32);
        let per_block = self.sb.descriptors_per_block();
        let kind = GroupChecksum::of(&self.sb);
        let mut bytes = vec![0; self.block_bytes()];
        let first = index.saturating_mul(per_block);
        for (raw, group) in bytes.chunks_exact_mut(size).zip(first..self.sb.group_count) {
            let Some(descriptor) = self.groups.get(group as usize) else { break };
            descriptor
                .encode(GroupIndex(group), &kind, raw)
                .map_err(|error| ChangeError::damaged(error.to_string()))?;
        }
        Ok(bytes)
    }

    /// The descriptor of a group.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn group(&self, group: u32) -> Result<GroupDescriptor> {
        let found = self.groups.get(group as usize).copied();
        found.ok_or_else(|| ChangeError::damaged(format!("there is no group {group}")))
    }

    /// Returns whether flags say that parts of groups were never written.
    pub fn has_flags(&self) -> bool {
        GroupChecksum::of(&self.sb) != GroupChecksum::None
    }

    /// Returns whether a group has a flag that says that a part of it was never written.
    ///
    /// # Errors
    ///
    /// [`ChangeError`].
    pub fn is_uninit(&self, group: u32, flag: GroupFlags) -> Result<bool> {
        Ok(self.has_flags() && self.group(group)?.flags.contains(flag))
    }

    /// The block bitmap of a group, as it is or as its flag says.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: its checksum is wrong, too, since what it calls free may be in use.
    pub fn block_bitmap(&self, group: u32) -> Result<Bitmap> {
        let clusters = self.sb.group_clusters(GroupIndex(group));
        if self.is_uninit(group, GroupFlags::BLOCK_UNINIT)? {
            return Ok(Bitmap::of_uninit_group(
                self.block_bytes(),
                clusters,
                self.own_metadata(group)?,
            ));
        }
        let descriptor = self.group(group)?;
        self.read_bitmap(&BitmapPlace {
            structure: "block bitmap",
            group,
            block: descriptor.block_bitmap.0,
            checksum: descriptor.block_bitmap_checksum,
            bits: self.sb.clusters_per_group,
        })
    }

    /// A bitmap as it is on the device.
    pub(crate) fn read_bitmap(&self, place: &BitmapPlace) -> Result<Bitmap> {
        let in_group = |error: &dyn std::fmt::Display| {
            ChangeError::damaged(format!("group {}: {error}", place.group))
        };
        let bytes = self.read_block(place.block)?;
        let bitmap = Bitmap::decode(&bytes, bytes.len()).map_err(|error| in_group(&error))?;
        if self.sb.features.metadata_csum() {
            let is_wide = self.sb.desc_size >= 64;
            let (structure, seed) = (place.structure, self.sb.checksum_seed());
            bitmap
                .view()
                .verify_checksum(structure, seed, place.bits, place.checksum, is_wide)
                .map_err(|error| in_group(&error))?;
        }
        Ok(bitmap)
    }

    /// Stores the block bitmap of a group, with its count and checksum in the descriptor, which is not
    /// encoded yet.
    pub fn set_block_bitmap(&mut self, group: u32, mut bitmap: Bitmap) -> Result {
        let clusters = self.sb.group_clusters(GroupIndex(group));
        bitmap.pad(clusters);
        let mut descriptor = self.group(group)?;
        descriptor.free_clusters = bitmap.view().count_clear(0..clusters);
        if self.has_flags() {
            descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        }
        if self.sb.features.metadata_csum() {
            descriptor.block_bitmap_checksum =
                bitmap.view().checksum(self.sb.checksum_seed(), self.sb.clusters_per_group);
        }
        self.write_block(descriptor.block_bitmap.0, bitmap.as_bytes())?;
        self.groups[group as usize] = descriptor;
        Ok(())
    }

    /// The clusters of a group that its own fixed metadata takes, as far as it lies inside the group.
    pub fn own_metadata(&self, group: u32) -> Result<Vec<std::ops::Range<u32>>> {
        let descriptor = self.group(group)?;
        let table = descriptor.inode_table.0;
        let pieces = [
            self.heads().head(GroupIndex(group)).blocks(),
            descriptor.block_bitmap.0..descriptor.block_bitmap.0 + 1,
            descriptor.inode_bitmap.0..descriptor.inode_bitmap.0 + 1,
            table..table + u64::from(self.sb.inode_table_blocks()),
        ];
        Ok(pieces.into_iter().filter_map(|piece| self.clusters_in(group, piece)).collect())
    }

    /// The part of a run of blocks that lies in a group, in clusters from its start.
    pub fn clusters_in(
        &self,
        group: u32,
        run: std::ops::Range<u64>,
    ) -> Option<std::ops::Range<u32>> {
        let first = self.sb.group_first_block(GroupIndex(group))?.0;
        let end = first + u64::from(self.sb.group_blocks(GroupIndex(group)));
        let (from, to) = (run.start.max(first), run.end.min(end));
        let bits = self.sb.cluster_bits();
        (from < to).then(|| {
            let ratio = u64::from(self.sb.cluster_ratio());
            ((from - first) >> bits) as u32..(to - first).div_ceil(ratio) as u32
        })
    }

    /// Sets the counts of the superblock by those of the groups.
    pub fn count(&mut self) {
        let clusters: u64 = self.groups.iter().map(|group| u64::from(group.free_clusters)).sum();
        self.sb.free_blocks_count = clusters << self.sb.cluster_bits();
        let inodes: u64 = self.groups.iter().map(|group| u64::from(group.free_inodes)).sum();
        self.sb.free_inodes_count = u32::try_from(inodes).unwrap_or(u32::MAX);
    }

    // Inodes.

    fn record_offset(&self, ino: Ino) -> Result<u64> {
        let none = || ChangeError::damaged(format!("there is no inode {ino}"));
        let (group, at) = self.sb.group_of_inode(ino).ok_or_else(none)?;
        let table = self.group(group.0)?.inode_table.0;
        let size = u64::from(self.sb.inode_size).max(128);
        Ok(table * self.block_bytes() as u64 + u64::from(at) * size)
    }

    /// The record of an inode that is in use.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]: its checksum is wrong, too, since what it maps may be another file's.
    pub fn load(&self, ino: Ino) -> Result<Record> {
        let record = self.load_any(ino)?;
        if self.sb.features.metadata_csum() {
            Inode::verify_checksum(&InodeLayout::of(&self.sb), ino, &record.bytes)
                .map_err(|error| ChangeError::damaged(format!("inode {ino}: {error}")))?;
        }
        Ok(record)
    }

    /// The record of an inode, whatever is in it: zeros if it was never used.
    ///
    /// # Errors
    ///
    /// [`ChangeError`]; a wrong checksum is none.
    pub fn load_any(&self, ino: Ino) -> Result<Record> {
        let mut bytes = vec![0; usize::from(self.sb.inode_size).max(128)];
        self.draft.read_at(self.record_offset(ino)?, &mut bytes)?;
        Ok(Record { ino, bytes })
    }

    /// Records of many inodes, in order of their numbers.
    #[must_use]
    pub fn records(&self) -> Records<'_> {
        Records { image: self, start: 0, bytes: Vec::new() }
    }

    /// Stores a record, with its checksum.
    pub fn store(&self, record: &Record) -> Result {
        let mut bytes = record.bytes.clone();
        Inode::seal(&InodeLayout::of(&self.sb), record.ino, &mut bytes)
            .map_err(|error| ChangeError::damaged(error.to_string()))?;
        Ok(self.draft.write_at(self.record_offset(record.ino)?, &bytes)?)
    }

    /// The seed of what belongs to an inode, with `metadata_csum`.
    pub fn seed_of(&self, record: &Record) -> Option<u32> {
        let has = self.sb.features.metadata_csum();
        has.then(|| inode_seed(self.sb.checksum_seed(), record.ino, record.generation()))
    }

    /// Returns whether blocks belong to groups.
    pub fn in_range(&self, block: u64, len: u64) -> bool {
        block != 0
            && block >= u64::from(self.sb.first_data_block)
            && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count)
    }

    /// All copies of the superblock but the first, and of the descriptors, as writes of bytes.
    pub fn backups(&self) -> Result<Vec<(u64, Vec<u8>)>> {
        let heads = self.heads();
        let size = self.block_bytes() as u64;
        let mut writes = Vec::new();
        for group in heads.superblock_groups().skip(1) {
            if let Some(block) = heads.head(group).super_block {
                writes.push((block * size, self.sb.encode_backup(group).to_vec()));
            }
        }
        let per_block = self.sb.descriptors_per_block();
        for index in 0..self.sb.descriptor_blocks() {
            let bytes = self.descriptor_block(index)?;
            let is_spread = self.has(Feature::META_BG) && index >= self.sb.first_meta_bg;
            let mut places: Vec<FsBlock> = Vec::new();
            if is_spread {
                places.extend(heads.descriptor_block_copy(index, GroupIndex(1)));
                let last = u64::from(index) * u64::from(per_block) + u64::from(per_block) - 1;
                if let Ok(last) = u32::try_from(last)
                    && per_block > 2
                    && last < self.sb.group_count
                {
                    let gdt = heads.head(GroupIndex(last)).gdt;
                    places.extend((!gdt.is_empty()).then_some(FsBlock(gdt.start)));
                }
            } else {
                let groups = heads.superblock_groups().skip(1);
                places.extend(groups.filter_map(|group| heads.descriptor_block_copy(index, group)));
            }
            writes.extend(places.into_iter().map(|place| (place.0 * size, bytes.clone())));
        }
        Ok(writes)
    }
}

/// Reads the superblock, and refuses what cannot be resized.
pub fn superblock(device: &dyn BlockDevice) -> Result<Superblock> {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    device.read_at(SUPERBLOCK_OFFSET, &mut bytes)?;
    let sb = Superblock::decode(&bytes)?;
    let mut unknown = sb.features.without(&WRITABLE);
    if sb.features.has(Feature::SHARED_BLOCKS) {
        unknown.insert(Feature::SHARED_BLOCKS);
    }
    if !unknown.is_empty() {
        return Err(ChangeError::Features { names: unknown.names().join(", ") });
    }
    if !sb.state.contains(State::VALID) || sb.state.contains(State::ERROR) {
        return Err(ChangeError::damaged("it was not unmounted cleanly, or errors were seen"));
    }
    let wanted = sb.blocks_count.saturating_mul(u64::from(sb.block_size.bytes()));
    let found = device.size_bytes();
    if wanted > found {
        return Err(ChangeError::DeviceTooSmall { wanted, found });
    }
    Ok(sb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_block::MemoryDevice;
    use extant_testkit::{image as images, oracle, require, tempdir};

    #[test]
    fn records_read_by_pieces_are_those_read_alone() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        // Tables that are longer and shorter than a piece, with inodes of two sizes, one at the end of the image.
        for options in [&["-b1024", "-I128", "-N8192"][..], &["-b4096", "-I256", "-N64", "-g256"]] {
            let _removed = std::fs::remove_file(&path);
            require!(oracle::mke2fs(&path, "16M", options));
            let device: SharedDevice = Arc::new(images::load(&path));
            let image = Image::open(Arc::clone(&device), device.size_bytes()).unwrap();
            let mut record = image.load(Ino::ROOT).unwrap();
            record.put16(extant_format::record::LINKS, 77);
            image.store(&record).unwrap();
            let mut records = image.records();
            let count = image.sb.inodes_per_group * image.sb.group_count;
            for number in (1..=count).chain([2, count, 1]) {
                let (alone, one) =
                    (image.load(Ino(number)).unwrap(), records.load(Ino(number)).unwrap());
                assert!(
                    (one.ino, &one.bytes) == (alone.ino, &alone.bytes),
                    "{options:?}: {number}"
                );
            }
            assert!(records.load(Ino(count + 1)).is_err() && records.load(Ino(0)).is_err());
        }
    }

    #[test]
    fn what_cannot_be_read_keeps_no_other_record_back() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        require!(oracle::mke2fs(&path, "16M", &["-b1024", "-I128", "-N8192"]));
        let whole = images::load(&path);
        let image = Image::open(Arc::new(whole.snapshot()), whole.size_bytes()).unwrap();
        let table = image.groups[0].inode_table.0 * 1024;
        // The device ends behind the first two blocks of the table.
        let short = MemoryDevice::new(table + 2048);
        let mut bytes = vec![0; table as usize + 2048];
        whole.read_at(0, &mut bytes).unwrap();
        short.write_at(0, &bytes).unwrap();
        let image =
            Image { draft: Arc::new(Draft::over(Arc::new(short), table + 2048, 1024)), ..image };
        let mut records = image.records();
        assert_eq!(records.load(Ino::ROOT).unwrap().bytes, image.load(Ino::ROOT).unwrap().bytes);
        assert!(records.load(Ino(17)).is_err());
        assert!(records.load(Ino(16)).is_ok());
    }
}
