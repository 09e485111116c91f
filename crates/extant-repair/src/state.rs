//! The image in the middle of a repair: what a round knows, and the ways to change the draft.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use extant_base::{BlockCount, FileBlock, FsBlock, GroupIndex, Ino};
use extant_block::BlockDevice;
use extant_check::{Examination, InodeView};
use extant_format::bitmap::{Bitmap, BitmapRef};
use extant_format::checksum::inode_seed;
use extant_format::dir::{DirLayout, FileType};
use extant_format::extent::{Extent, ExtentState, WRITTEN_LEN_MAX};
use extant_format::features::{Feature, Incompat, SuperFlags};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupFlags};
use extant_format::htree::IndexLayout;
use extant_format::inode::{Inode, InodeFlags, InodeLayout};
use extant_format::superblock::{OS_HURD, SUPERBLOCK_OFFSET, Superblock};
use extant_layout::{Heads, TableSearch};

use crate::draft::Draft;
use crate::error::{Fixed, Trouble};
use crate::space::{Bits, Space};
use extant_format::record::{self, Record};

/// State of one round.
pub(crate) struct State {
    pub(crate) draft: Arc<Draft>,
    pub(crate) sb: Superblock,
    pub(crate) heads: Heads,
    pub(crate) exam: Examination,
    pub(crate) inode_layout: InodeLayout,
    pub(crate) dir_layout: DirLayout,
    pub(crate) group_checksum: GroupChecksum,
    pub(crate) seed: u32,
    pub(crate) groups: Vec<GroupDescriptor>,
    pub(crate) space: Space,
    /// Inodes that this round took.
    pub(crate) new_inodes: Vec<Ino>,
    /// Groups of which this round found that inodes lie where their descriptor says that none are.
    pub(crate) revived: BTreeSet<GroupIndex>,
    /// Inodes that are not to be taken for anything new.
    pub(crate) promised: BTreeSet<Ino>,
    /// Seconds since 1970.
    pub(crate) now: u32,
    /// Remembers what the search for one group's table has read, for the next group.
    pub(crate) tables: RefCell<TableSearch>,
    /// The types that entries have for inodes of another one, where all of them say the same.
    pub(crate) said: BTreeMap<Ino, FileType>,
    /// Clusters that two have, once somebody wanted to know.
    pub(crate) shared: Option<Bits>,
}

impl State {
    /// The state of `draft`, of which the checker found `exam`. `pins` are the clusters that earlier rounds
    /// found in use; those of this one are added.
    pub(crate) fn new(
        draft: Arc<Draft>,
        sb: Superblock,
        exam: Examination,
        pins: &mut Option<Bits>,
        now: u32,
    ) -> Fixed<State> {
        let mut state = State {
            heads: Heads::of(&sb),
            inode_layout: InodeLayout::of(&sb),
            dir_layout: DirLayout {
                block_size: sb.block_size,
                filetype: sb.features.has_incompat(Incompat::FILETYPE),
                checksum: sb.features.metadata_csum(),
                stored_hash: false,
                encrypted: false,
            },
            group_checksum: GroupChecksum::of(&sb),
            seed: sb.checksum_seed(),
            groups: Vec::new(),
            space: Space::new(&sb),
            new_inodes: Vec::new(),
            revived: BTreeSet::new(),
            promised: BTreeSet::new(),
            draft,
            sb,
            exam,
            now,
            tables: RefCell::default(),
            said: BTreeMap::new(),
            shared: None,
        };
        state.read_descriptors()?;
        for group in 0..state.sb.group_count {
            if let Some(words) = state.exam.clusters_in_use(group) {
                state.space.taken.add_words(group, words);
            }
        }
        let fresh = || Bits::new(state.sb.group_count, state.sb.clusters_per_group);
        let is_first = pins.is_none();
        let mut pinned = pins.take().unwrap_or_else(fresh);
        for group in 0..state.sb.group_count {
            if let Some(words) = state.exam.clusters_in_use(group) {
                pinned.add_words(group, words);
            }
        }
        if is_first {
            state.pin_bitmaps(&mut pinned)?;
        }
        *pins = Some(pinned.clone());
        state.space.pinned = pinned;
        Ok(state)
    }

    /// Keeps what fast commits have that are brought in later: no blocks and inodes of theirs are taken.
    pub(crate) fn promise(&mut self, blocks: &[(u64, u64)], inodes: &BTreeSet<Ino>) {
        for (start, len) in blocks {
            if self.in_range(*start, *len) && *len > 0 {
                for cluster in self.cluster(*start)..=self.cluster(start + len - 1) {
                    self.space.taken.set(cluster);
                }
            }
        }
        self.promised.clone_from(inodes);
    }

    /// Marks clusters as pinned that the bitmaps on the device mark as used, so that others are
    /// taken first.
    fn pin_bitmaps(&mut self, pinned: &mut Bits) -> Fixed {
        for (number, descriptor) in self.groups.iter().enumerate() {
            let is_uninit = self.group_checksum != GroupChecksum::None
                && descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
            if is_uninit || !self.in_range(descriptor.block_bitmap.0, 1) {
                continue;
            }
            let bytes = self.read_block(descriptor.block_bitmap.0)?;
            let (words, _) = bytes.as_chunks::<8>();
            let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
            pinned.add_words(number as u32, &words);
        }
        Ok(())
    }

    pub(crate) fn block_bytes(&self) -> usize {
        self.sb.block_size.len()
    }

    pub(crate) fn has_extents(&self) -> bool {
        self.sb.features.has_incompat(Incompat::EXTENTS)
    }

    pub(crate) fn is_wide(&self) -> bool {
        self.sb.features.has_incompat(Incompat::SIXTY_FOUR_BIT)
    }

    pub(crate) fn index_layout(&self, dir: DirLayout) -> IndexLayout {
        IndexLayout {
            dir,
            large_dir: self.sb.features.has_incompat(Incompat::LARGEDIR),
            unsigned_hash: self.sb.flags.contains(SuperFlags::UNSIGNED_HASH),
        }
    }

    /// Returns whether `len` blocks from `block` on belong to groups.
    pub(crate) fn in_range(&self, block: u64, len: u64) -> bool {
        block >= u64::from(self.sb.first_data_block)
            && block != 0
            && block.checked_add(len).is_some_and(|end| end <= self.sb.blocks_count)
    }

    pub(crate) fn cluster(&self, block: u64) -> u64 {
        block.saturating_sub(u64::from(self.sb.first_data_block)) >> self.sb.cluster_bits()
    }

    fn cluster_start(&self, cluster: u64) -> u64 {
        (cluster << self.sb.cluster_bits()) + u64::from(self.sb.first_data_block)
    }

    /// Reads a block that must be in range.
    pub(crate) fn read_block(&self, block: u64) -> Fixed<Vec<u8>> {
        let mut bytes = vec![0; self.block_bytes()];
        self.draft.read_at(block.saturating_mul(bytes.len() as u64), &mut bytes)?;
        Ok(bytes)
    }

    pub(crate) fn write_block(&self, block: u64, bytes: &[u8]) -> Fixed {
        Ok(self.draft.write_at(block.saturating_mul(self.block_bytes() as u64), bytes)?)
    }

    /// A free block, the first of a cluster of its own.
    pub(crate) fn take_block(&mut self) -> Fixed<u64> {
        let cluster = self.space.take(1).ok_or(Trouble::Full("block"))?;
        Ok(self.cluster_start(cluster))
    }

    /// Blocks for the first `blocks` blocks of a file, in as few pieces as there are.
    pub(crate) fn take_file(&mut self, blocks: u32) -> Fixed<Vec<Extent>> {
        let ratio = self.sb.cluster_ratio().max(1);
        let mut left = u64::from(blocks.div_ceil(ratio));
        let mut pieces = Vec::new();
        let mut want = left.min(u64::from(WRITTEN_LEN_MAX / ratio).max(1));
        let mut at = 0u32;
        while left > 0 {
            let Some(cluster) = self.space.take(want.min(left)) else {
                if want <= 1 {
                    return Err(Trouble::Full("block"));
                }
                want = want.div_ceil(2);
                continue;
            };
            let take = want.min(left);
            let len = (take as u32).saturating_mul(ratio).min(blocks - at);
            pieces.push(Extent {
                file_start: FileBlock(at),
                device_start: FsBlock(self.cluster_start(cluster)),
                len: BlockCount(len),
                state: ExtentState::Written,
            });
            at += len;
            left -= take;
        }
        Ok(pieces)
    }

    // Superblock and descriptors.

    pub(crate) fn write_superblock(&self) -> Fixed {
        Ok(self.draft.write_at(SUPERBLOCK_OFFSET, &self.sb.encode())?)
    }

    /// Sets a feature, which is written with the superblock. The first of all revisions had none.
    pub(crate) fn add_feature(&mut self, feature: Feature) {
        self.sb.features.insert(feature);
        self.sb.revision = self.sb.revision.max(1);
    }

    fn read_descriptors(&mut self) -> Fixed {
        let size = usize::from(self.sb.desc_size).max(32);
        let per_block = self.sb.descriptors_per_block();
        self.groups.clear();
        for index in 0..self.sb.descriptor_blocks() {
            let bytes = match self.heads.descriptor_block(index) {
                Some(block) if block.0 < self.sb.blocks_count => self.read_block(block.0)?,
                _ => vec![0; self.block_bytes()],
            };
            for raw in bytes.chunks_exact(size).take(per_block as usize) {
                if self.groups.len() >= self.sb.group_count as usize {
                    break;
                }
                self.groups.push(GroupDescriptor::decode(raw).unwrap_or_default());
            }
        }
        Ok(())
    }

    pub(crate) fn group(&self, group: u32) -> Fixed<GroupDescriptor> {
        let found = self.groups.get(group as usize).copied();
        found.ok_or_else(|| Trouble::cannot(format!("group {group} has no descriptor")))
    }

    /// Sets the descriptor of a group, here and in the draft.
    pub(crate) fn set_group(&mut self, group: u32, descriptor: GroupDescriptor) -> Fixed {
        let per_block = self.sb.descriptors_per_block().max(1);
        let size = usize::from(self.sb.desc_size).max(32);
        let Some(block) = self.heads.descriptor_block(group / per_block) else {
            return Err(Trouble::cannot(format!("group {group} has no descriptor block")));
        };
        let mut bytes = self.read_block(block.0)?;
        let at = (group % per_block) as usize * size;
        if let Some(raw) = bytes.get_mut(at..at + size) {
            descriptor
                .encode(GroupIndex(group), &self.group_checksum, raw)
                .map_err(|error| Trouble::cannot(error.to_string()))?;
        }
        self.write_block(block.0, &bytes)?;
        if let Some(slot) = self.groups.get_mut(group as usize) {
            *slot = descriptor;
        }
        Ok(())
    }

    // Inodes.

    fn place(&self, ino: Ino) -> Option<(u32, u32, u64)> {
        let (group, at) = self.sb.group_of_inode(ino)?;
        let descriptor = self.groups.get(group.0 as usize)?;
        let table = descriptor.inode_table.0;
        let blocks = u64::from(self.sb.inode_table_blocks());
        if !self.in_range(table, blocks) {
            return None;
        }
        let offset = table * self.block_bytes() as u64 + u64::from(at) * self.record_bytes() as u64;
        Some((group.0, at, offset))
    }

    pub(crate) fn record_bytes(&self) -> usize {
        usize::from(self.sb.inode_size).max(128)
    }

    pub(crate) fn load(&self, ino: Ino) -> Fixed<Record> {
        let no_place = || Trouble::cannot(format!("inode {ino} has no place in a table"));
        let (_, _, offset) = self.place(ino).ok_or_else(no_place)?;
        let mut bytes = vec![0; self.record_bytes()];
        self.draft.read_at(offset, &mut bytes)?;
        Ok(Record { ino, bytes })
    }

    /// Stores a record, with its checksum.
    pub(crate) fn store(&self, record: &Record) -> Fixed {
        let no_place = || Trouble::cannot(format!("inode {} has no place", record.ino));
        let (_, _, offset) = self.place(record.ino).ok_or_else(no_place)?;
        let mut bytes = record.bytes.clone();
        Inode::seal(&self.inode_layout, record.ino, &mut bytes)
            .map_err(|error| Trouble::cannot(error.to_string()))?;
        Ok(self.draft.write_at(offset, &bytes)?)
    }

    pub(crate) fn seed_of(&self, record: &Record) -> u32 {
        inode_seed(self.seed, record.ino, record.generation())
    }

    pub(crate) fn csum_seed_of(&self, record: &Record) -> Option<u32> {
        self.dir_layout.checksum.then(|| self.seed_of(record))
    }

    pub(crate) fn view(&self, ino: Ino) -> Option<InodeView> {
        self.exam.inode(ino)
    }

    /// Returns the block of a file's translator, which those of the Hurd may have; else 0.
    pub(crate) fn translator(&self, record: &Record) -> u64 {
        match self.sb.creator_os {
            OS_HURD if !record.has(InodeFlags::EA_INODE) => {
                u64::from(record.u32(record::TRANSLATOR))
            }
            _ => 0,
        }
    }

    /// Returns whether a field of the superblock names the inode, or it is reserved.
    pub(crate) fn is_special(&self, ino: Ino) -> bool {
        (ino.0 < self.sb.first_inode.0 && ino != Ino::ROOT)
            || [
                self.sb.user_quota_inode,
                self.sb.group_quota_inode,
                self.sb.project_quota_inode,
                self.sb.orphan_file_inode,
            ]
            .contains(&ino)
    }

    /// Sets the bit of an inode in its bitmap, which is otherwise as it was.
    pub(crate) fn mark_inode(&mut self, ino: Ino, used: bool) -> Fixed {
        let Some((group, at)) = self.sb.group_of_inode(ino) else { return Ok(()) };
        let mut descriptor = self.group(group.0)?;
        let is_uninit = self.group_checksum != GroupChecksum::None
            && descriptor.flags.contains(GroupFlags::INODE_UNINIT);
        if !self.in_range(descriptor.inode_bitmap.0, 1) {
            return Ok(());
        }
        let bytes = match is_uninit {
            true if !used => return Ok(()),
            true => {
                descriptor.flags.remove(GroupFlags::INODE_UNINIT);
                let bits = self.sb.inodes_per_group;
                Bitmap::of_uninit_group(self.block_bytes(), bits, []).into_bytes()
            }
            false => self.read_block(descriptor.inode_bitmap.0)?,
        };
        let mut bitmap = Bitmap::decode(&bytes, bytes.len())
            .map_err(|error| Trouble::cannot(error.to_string()))?;
        if used {
            bitmap.set(at);
            let unused_from = self.sb.inodes_per_group.saturating_sub(descriptor.itable_unused);
            if at >= unused_from {
                descriptor.itable_unused = self.sb.inodes_per_group - at - 1;
            }
        } else {
            bitmap.clear(at);
        }
        let bytes = bitmap.into_bytes();
        if self.sb.features.metadata_csum() {
            let sum = BitmapRef::new(&bytes).checksum(self.seed, self.sb.inodes_per_group);
            descriptor.inode_bitmap_checksum = sum;
        }
        self.write_block(descriptor.inode_bitmap.0, &bytes)?;
        self.set_group(group.0, descriptor)
    }

    /// A free inode with an empty record; 0 links. The lowest from `from` on.
    pub(crate) fn take_inode(&mut self, from: Ino) -> Fixed<Ino> {
        let first = from.0.max(self.sb.first_inode.0);
        for number in first..=self.sb.inodes_count {
            let ino = Ino(number);
            let Some((group, at)) = self.sb.group_of_inode(ino) else { break };
            let words = self.exam.inodes_in_use(group.0);
            let used = words
                .and_then(|words| words.get(at as usize / 64))
                .is_some_and(|word| word >> (at % 64) & 1 == 1);
            let is_promised = self.promised.contains(&ino);
            if used || is_promised || self.new_inodes.contains(&ino) || self.is_special(ino) {
                continue;
            }
            let Ok(mut record) = self.load(ino) else { continue };
            if record.links() != 0 {
                continue;
            }
            record.clear();
            self.new_inodes.push(ino);
            self.fill_new(&mut record);
            self.mark_inode(ino, true)?;
            return Ok(ino);
        }
        Err(Trouble::Full("inode"))
    }

    /// The fields of a new inode that do not depend on what it is.
    pub(crate) fn fill_new(&self, record: &mut Record) {
        record.clear();
        for at in [8, record::CTIME, 0x10] {
            record.put32(at, self.now);
        }
        if record.bytes.len() > 128 {
            let extra = self.sb.new_extra_isize();
            record.put16(record::EXTRA, extra);
        }
        if self.has_extents() {
            record.set_flag(InodeFlags::EXTENTS, true);
            record.set_block_area(&extant_format::extent::empty_root());
        }
    }

    /// Deletes an inode: its blocks and its place are free with the bitmaps of a later round.
    pub(crate) fn delete_inode(&mut self, record: &mut Record) -> Fixed {
        record.put16(record::LINKS, 0);
        record.put32(record::DTIME, self.now.max(1));
        self.store(record)?;
        self.mark_inode(record.ino, false)
    }

    /// Clears an inode that cannot be believed.
    pub(crate) fn clear_inode(&mut self, record: &mut Record) -> Fixed {
        record.clear();
        self.store(record)?;
        self.mark_inode(record.ino, false)
    }
}
