//! What all inodes of one open file system share: the device, the geometry and the caches.
//!
//! # Place
//!
//! `mount` builds a [`Volume`]; every other module reads through it. It knows blocks, group descriptors as
//! they are stored, and keeps nodes by their numbers; nothing about files, and nothing of who writes.
//!
//! # Invariants
//!
//! - V1. Only the journal writes metadata, on a mount that was asked for writing.
//! - V2. A block in the cache is the block as the kernel would see it after mounting: the device
//!   below already shows the replayed journal.
//! - V3. Memory stays within the budget of the mount options, whatever the image holds.

mod replay;
mod sizes;
mod zones;

use std::sync::{Arc, OnceLock};

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino, sabotage};
use extant_block::{BlockDevice, DeviceError, DeviceFault, SharedDevice};
use extant_format::features::{Compat, Features, Incompat, RoCompat, SuperFlags};
use extant_format::group::{GroupChecksum, GroupDescriptor, GroupError, GroupFlags};
use extant_format::hash::{HashSeed, HashVersion, NameHash, name_hash};
use extant_format::inode::InodeLayout;
use extant_format::superblock::Superblock;
use extant_jbd2::FastCommitOverlay;
use extant_layout::Heads;

use crate::cache::{Cache, Evict};
use crate::error::{Fault, FsError, Result};
use crate::extent_node::ExtentNode;
use crate::node::{Departed, InodeData, Node};
use crate::shared_cache::SharedCache;
use crate::slot::{MetaBlock, Slot};
use crate::sparse::Sparse;
use crate::zones::{Gained, Zones};

pub use replay::ReplaySummary;
pub(crate) use sizes::{blocks_left, check_sectors, check_size, check_stored_size};

/// Bytes that one cached inode takes, about: its raw form, its decoded form, bookkeeping.
const INODE_COST: usize = 1024;

/// One open file system.
pub(crate) struct Volume {
    device: SharedDevice,
    superblock: Superblock,
    block_size: BlockSize,
    checksum_seed: u32,
    group_checksum: GroupChecksum,
    inode_layout: InodeLayout,
    /// The group whose copy of superblock and descriptors is in use.
    home_group: GroupIndex,
    verify_checksums: bool,
    /// Asked for reading only: what a writer must not trust may still be of use.
    reads_only: bool,
    minix_df: bool,
    read_limit: u64,
    fast_commit: Option<FastCommitOverlay>,
    replay: Option<ReplaySummary>,
    blocks: Cache<FsBlock, Arc<Slot>>,
    extent_nodes: Cache<(Ino, FsBlock), Arc<ExtentNode>>,
    nodes: Cache<Ino, Arc<Node>>,
    /// Inode tables of the groups of each flexible group.
    tables: Sparse<OnceLock<Box<[FsBlock]>>>,
    /// Contents of files, made when the first is used.
    page_cache: OnceLock<Arc<extant_iomap::Cache>>,
    data_cache: DataCache,
    /// Blocks of no file; none while the journal is looked through.
    zones: OnceLock<Zones>,
    gained: Gained,
}

/// What [`Volume::new`] needs besides the device and the superblock.
pub(crate) struct VolumeOptions {
    pub(crate) home_group: GroupIndex,
    pub(crate) verify_checksums: bool,
    pub(crate) reads_only: bool,
    pub(crate) minix_df: bool,
    pub(crate) cache_bytes: usize,
    /// Inodes in memory that nobody uses; `None` for what fits the budget.
    pub(crate) inodes_max: Option<usize>,
    pub(crate) read_limit: u64,
    pub(crate) data_cache: DataCache,
    pub(crate) fast_commit: Option<FastCommitOverlay>,
    pub(crate) replay: Option<ReplaySummary>,
}

/// How contents of files are cached.
#[derive(Clone, Debug)]
pub(crate) struct DataCache {
    /// A cache that others use as well; what it is like is its own affair.
    pub(crate) shared: Option<SharedCache>,
    /// Budget.
    pub(crate) bytes: u64,
    /// Largest folio, as a power of two.
    pub(crate) folio_max_log2: u32,
    /// Dirty bytes above which the background writes; 0 for the cache's choice.
    pub(crate) dirty_background: u64,
    /// Dirty bytes above which writers write; 0 for the cache's choice.
    pub(crate) dirty_max: u64,
    /// For tests: zeroing writes back first.
    pub(crate) flush_before_zero: bool,
    /// For tests: what points to data is committed before the data is written.
    pub(crate) publish_before_data: bool,
}

impl Evict for Arc<Slot> {
    type Trace = ();

    fn may_evict(&self, by_holder: bool) -> bool {
        Arc::strong_count(self) == 1 + usize::from(by_holder)
    }
}

impl Evict for Arc<Node> {
    type Trace = Departed;

    fn try_leave(&self, by_holder: bool) -> bool {
        Node::try_leave(self, 1 + usize::from(by_holder))
    }

    fn depart(&self, trace: &mut Departed) {
        Node::depart(self, trace);
    }

    fn may_evict(&self, by_holder: bool) -> bool {
        Arc::strong_count(self) == 1 + usize::from(by_holder)
    }
}

impl Evict for Arc<ExtentNode> {
    /// How many blocks have changed.
    type Trace = u64;

    fn outdate(trace: &mut u64) {
        *trace += 1;
    }
}

impl Volume {
    pub(crate) fn new(
        device: SharedDevice,
        superblock: Superblock,
        options: VolumeOptions,
    ) -> Volume {
        let block_size = superblock.block_size;
        // Half of the budget for raw blocks, a quarter each for decoded extent nodes (at most
        // twice the size of their block) and inodes.
        let half = options.cache_bytes / 2;
        let flex_count = superblock.group_count.div_ceil(superblock.groups_per_flex().max(1));
        Volume {
            device,
            block_size,
            checksum_seed: superblock.checksum_seed(),
            group_checksum: GroupChecksum::of(&superblock),
            inode_layout: InodeLayout::of(&superblock),
            home_group: options.home_group,
            verify_checksums: options.verify_checksums,
            reads_only: options.reads_only,
            minix_df: options.minix_df,
            read_limit: options.read_limit,
            fast_commit: options.fast_commit,
            replay: options.replay,
            blocks: Cache::new(half / block_size.len()),
            extent_nodes: Cache::new(half / 4 / block_size.len()),
            nodes: Cache::new(options.inodes_max.unwrap_or(half / 2 / INODE_COST)),
            tables: Sparse::new(flex_count, |_| OnceLock::new()),
            page_cache: OnceLock::new(),
            data_cache: options.data_cache,
            zones: OnceLock::new(),
            gained: Gained::new(),
            superblock,
        }
    }

    /// Which blocks are the file system's own; `None` while the journal is looked through.
    pub(crate) fn zones(&self) -> Option<&Zones> {
        self.zones.get()
    }

    /// Blocks that became the file system's own since.
    pub(crate) fn gained(&self) -> &Gained {
        &self.gained
    }

    /// Once, before anybody else has the volume.
    pub(crate) fn set_zones(&self, zones: Zones) {
        let _ = self.zones.set(zones);
    }

    /// Whether totals count the file system's own tables.
    pub(crate) fn counts_overhead(&self) -> bool {
        self.minix_df
    }

    pub(crate) fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    pub(crate) fn device(&self) -> &SharedDevice {
        &self.device
    }

    pub(crate) fn features(&self) -> &Features {
        &self.superblock.features
    }

    pub(crate) fn block_size(&self) -> BlockSize {
        self.block_size
    }

    pub(crate) fn block_count(&self) -> u64 {
        self.superblock.blocks_count
    }

    pub(crate) fn inode_count(&self) -> u32 {
        self.superblock.inodes_count
    }

    pub(crate) fn first_data_block(&self) -> FsBlock {
        FsBlock(u64::from(self.superblock.first_data_block))
    }

    pub(crate) fn inode_layout(&self) -> &InodeLayout {
        &self.inode_layout
    }

    /// Whether the caller wants checksums verified, of whatever has one.
    pub(crate) fn verifies_checksums(&self) -> bool {
        self.verify_checksums
    }

    /// Whether metadata blocks have checksums (`metadata_csum`) and they are verified.
    pub(crate) fn verifies_metadata(&self) -> bool {
        self.verify_checksums && self.has_metadata_csum()
    }

    pub(crate) fn read_limit(&self) -> u64 {
        self.read_limit
    }

    pub(crate) fn fast_commit(&self) -> Option<&FastCommitOverlay> {
        self.fast_commit.as_ref()
    }

    pub(crate) fn replay(&self) -> Option<&ReplaySummary> {
        self.replay.as_ref()
    }

    pub(crate) fn has_filetype(&self) -> bool {
        self.features().has_incompat(Incompat::FILETYPE)
    }

    pub(crate) fn has_metadata_csum(&self) -> bool {
        self.features().has_ro_compat(RoCompat::METADATA_CSUM)
    }

    pub(crate) fn has_dir_index(&self) -> bool {
        self.features().has_compat(Compat::DIR_INDEX)
    }

    pub(crate) fn has_large_dir(&self) -> bool {
        self.features().has_incompat(Incompat::LARGEDIR)
    }

    /// Whether directory hashes take bytes as unsigned.
    pub(crate) fn unsigned_hash(&self) -> bool {
        self.superblock.flags.contains(SuperFlags::UNSIGNED_HASH)
    }

    pub(crate) fn hash_seed(&self) -> HashSeed {
        HashSeed::from_words(self.superblock.hash_seed)
    }

    /// The seed of checksums that belong to no inode.
    pub(crate) fn checksum_seed(&self) -> u32 {
        self.checksum_seed
    }

    /// The hash of a stored name by the file system's default function, for display; zero where
    /// the default needs a key.
    pub(crate) fn default_hash(&self, name: &[u8]) -> NameHash {
        HashVersion::from_disk(self.superblock.default_hash.to_raw(), self.unsigned_hash())
            .and_then(|version| name_hash(version, &self.hash_seed(), name))
            .unwrap_or_default()
    }

    /// How names hash in an index made from now on.
    pub(crate) fn new_index_hash(&self) -> HashVersion {
        let unsigned = self.unsigned_hash() != sabotage("extant.dir.first-split-other-sign");
        let default = HashVersion::from_disk(self.superblock.default_hash.to_raw(), unsigned);
        let usual = if unsigned { HashVersion::HalfMd4Unsigned } else { HashVersion::HalfMd4 };
        default.filter(|version| *version != HashVersion::SipHash).unwrap_or(usual)
    }

    pub(crate) fn extent_nodes(&self) -> &Cache<(Ino, FsBlock), Arc<ExtentNode>> {
        &self.extent_nodes
    }

    /// The cache of file contents, made now if this is the first use of it.
    ///
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn page_cache(&self) -> Result<&Arc<extant_iomap::Cache>> {
        if let Some(cache) = self.page_cache.get() {
            return Ok(cache);
        }
        let DataCache {
            ref shared,
            bytes,
            folio_max_log2,
            dirty_background,
            dirty_max,
            flush_before_zero,
            publish_before_data,
        } = self.data_cache;
        if let Some(shared) = shared {
            let cache = shared.cache(self.block_size)?;
            return Ok(self.page_cache.get_or_init(|| cache));
        }
        let mut options = extant_iomap::CacheOptions::new(bytes, self.block_size.log2());
        options.folio_max_log2 = folio_max_log2;
        options.dirty_background = dirty_background;
        options.dirty_max = dirty_max;
        options.flush_before_zero = flush_before_zero;
        options.publish_before_data = publish_before_data;
        let cache = extant_iomap::Cache::new(options)?;
        Ok(self.page_cache.get_or_init(|| cache))
    }

    /// The cache that others use as well.
    pub(crate) fn shared_cache(&self) -> Option<&SharedCache> {
        self.data_cache.shared.as_ref()
    }

    /// For tests: whether writeback does its steps in the wrong order.
    pub(crate) fn publishes_before_data(&self) -> bool {
        self.data_cache.publish_before_data
    }

    /// The cache of file contents, if a file has been used.
    pub(crate) fn page_cache_made(&self) -> Option<&Arc<extant_iomap::Cache>> {
        self.page_cache.get()
    }

    /// The node of an inode number that was just given out. A dead node of an earlier inode of that
    /// number stays with those who have it; nobody finds it any more.
    pub(crate) fn install_node(&self, ino: Ino, data: InodeData) -> Arc<Node> {
        let node = Arc::new(Node::new(data));
        let earlier = self.nodes.replace(ino, Arc::clone(&node));
        debug_assert!(earlier.is_none_or(|earlier| earlier.life().is_gone()), "in use: {ino}");
        node
    }

    /// Where an inode with this number has its home: blocks near it are good for it.
    pub(crate) fn goal_of(&self, ino: Ino) -> Result<FsBlock> {
        let missing = || FsError::NoSuchInode { ino, inode_count: self.inode_count() };
        let (group, _) = self.superblock.group_of_inode(ino).ok_or_else(missing)?;
        Ok(self.superblock.group_first_block(group).unwrap_or(self.first_data_block()))
    }

    /// The first block of the inode table of `group`. Tables do not move during a mount: no lock once its
    /// flexible group was asked for.
    fn inode_table(&self, group: GroupIndex) -> Result<FsBlock> {
        let groups = self.superblock.groups_per_flex().clamp(1, self.superblock.group_count.max(1));
        let load = || {
            let first = group.0 - group.0 % groups;
            let end = first.saturating_add(groups).min(self.superblock.group_count);
            let table = |group| self.believed_group(GroupIndex(group)).ok();
            // Block 0 where the descriptor is not to be believed.
            (first..end).map(|at| table(at).map_or(FsBlock(0), |group| group.inode_table)).collect()
        };
        let tables: Option<&Box<[FsBlock]>> =
            self.tables.get(group.0 / groups).map(|tables| tables.get_or_init(load));
        let known = tables.and_then(|tables| tables.get((group.0 % groups) as usize));
        match known.filter(|table| table.0 != 0) {
            Some(table) => Ok(*table),
            None => Ok(self.believed_group(group)?.inode_table),
        }
    }

    /// Where the stored form of an inode is: its table block, and the byte in it.
    pub(crate) fn inode_place(&self, ino: Ino) -> Result<(FsBlock, usize)> {
        let missing = || FsError::NoSuchInode { ino, inode_count: self.inode_count() };
        let (group, index) = self.superblock.group_of_inode(ino).ok_or_else(missing)?;
        let table = match self.reads_only {
            true => self.stored_group(group)?.inode_table,
            false => self.inode_table(group)?,
        };
        // The index is below 2^19, a record at most 64 KiB.
        let offset = u64::from(index) * u64::from(self.superblock.inode_size);
        let at = table.checked_add(offset >> self.block_size.log2()).unwrap_or(table);
        self.check_blocks("inode table", None, at, 1)?;
        Ok((at, (offset & u64::from(self.block_size.bytes() - 1)) as usize))
    }

    /// Empties the caches as far as nobody holds what is in them; how much it was.
    pub(crate) fn drop_unused(&self) -> usize {
        self.nodes.drop_unused() + self.extent_nodes.drop_unused() + self.blocks.drop_unused()
    }

    pub(crate) fn nodes(&self) -> &Cache<Ino, Arc<Node>> {
        &self.nodes
    }

    /// Reads straight into `out`, from byte `offset` after the start of `block`. The caller has
    /// checked the blocks.
    pub(crate) fn read_bytes(&self, block: FsBlock, offset: u64, out: &mut [u8]) -> Result<()> {
        let start = self.block_size.offset_of(block).and_then(|at| at.checked_add(offset));
        let Some(start) = start else {
            let rule = "block number past the largest device";
            let fault = Fault::Field { rule, value: block.0, limit: self.block_count() };
            return Err(FsError::corrupt("block pointer", None, block, fault));
        };
        self.device.read_at(start, out).map_err(|error| self.read_error(error))
    }

    /// Makes sure that blocks can be written, however full the disk is that the device lies on. They
    /// hold nothing that is on its way to the device.
    pub(crate) fn allocate_on_device(&self, first: FsBlock, len: u64) -> Result<()> {
        let what = "block past the largest device";
        let offset = self.block_size.offset_of(first);
        let offset = offset.ok_or(FsError::InvalidArgument { what })?;
        let bytes = len.saturating_mul(u64::from(self.block_size.bytes()));
        self.device.allocate(offset, bytes).map_err(FsError::from)
    }

    /// Tells a device that is shorter than the superblock says from one that fails.
    pub(crate) fn read_error(&self, error: DeviceError) -> FsError {
        let end = self.block_size.offset_of(FsBlock(self.block_count()));
        let file_system_bytes = end.unwrap_or(u64::MAX);
        match error.fault() {
            DeviceFault::PastEnd { device_bytes } if *device_bytes < file_system_bytes => {
                FsError::CutShort { file_system_bytes, device_bytes: *device_bytes }
            }
            _ => FsError::from(error),
        }
    }

    /// The whole of `block`, past the cache.
    pub(crate) fn read_block_uncached(&self, block: FsBlock) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_size.len()];
        self.read_bytes(block, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// The current version of a metadata block, through the cache.
    pub(crate) fn read_block(&self, block: FsBlock) -> Result<Arc<MetaBlock>> {
        self.slot(block).get(|| self.load_block(block))
    }

    /// The slot of a metadata block; nothing is read yet.
    pub(crate) fn slot(&self, block: FsBlock) -> Arc<Slot> {
        self.blocks.get_or_insert_with(block, || Arc::new(Slot::empty(block)))
    }

    /// The current version of a block, if it is in memory and nobody changes it at this moment.
    pub(crate) fn block_in_memory(&self, block: FsBlock) -> Option<Arc<MetaBlock>> {
        self.blocks.get(&block)?.get_now()
    }

    /// What a slot is filled with.
    pub(crate) fn load_block(&self, block: FsBlock) -> Result<Box<[u8]>> {
        Ok(self.read_block_uncached(block)?.into_boxed_slice())
    }

    /// The block that holds the descriptor of `group`.
    pub(crate) fn descriptor_place(&self, group: GroupIndex) -> Result<FsBlock> {
        let table_block = group.0 / self.superblock.descriptors_per_block();
        let heads = Heads::of(&self.superblock);
        heads
            .descriptor_block_copy(table_block, self.home_group)
            .or_else(|| heads.descriptor_block(table_block))
            .ok_or(FsError::InvalidArgument { what: "group: past the last group" })
    }

    /// The descriptor of `group` as it was encoded last, its checksum checked.
    pub(crate) fn stored_group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        const NAME: &str = "group descriptor";
        let superblock = &self.superblock;
        let per_block = superblock.descriptors_per_block();
        let (table_block, slot) = (group.0 / per_block, group.0 % per_block);
        let missing = || FsError::InvalidArgument { what: "group: past the last group" };
        if group.0 >= superblock.group_count {
            return Err(missing());
        }
        // A copy that the group in use does not have is looked for where the primary one is.
        let heads = Heads::of(superblock);
        let at = heads
            .descriptor_block_copy(table_block, self.home_group)
            .or_else(|| heads.descriptor_block(table_block))
            .ok_or_else(missing)?;
        self.check_blocks(NAME, None, at, 1)?;
        let block = self.read_block(at)?;
        let desc_bytes = usize::from(superblock.desc_size);
        let start = slot as usize * desc_bytes; // At most a block.
        let fail = |fault| FsError::corrupt(NAME, None, at, fault);
        let bytes = block
            .bytes()
            .get(start..start + desc_bytes)
            .ok_or_else(|| fail(Fault::Rule("the descriptor ends after its block")))?;
        let decoded = GroupDescriptor::decode(bytes);
        let mut descriptor = decoded.map_err(|error| fail(Fault::Decode(Box::new(error))))?;
        if self.verify_checksums
            && let Err(error) = GroupDescriptor::verify_checksum(group, &self.group_checksum, bytes)
        {
            if !self.reads_only {
                return Err(match error {
                    GroupError::Checksum { source, .. } => fail(Fault::from(source)),
                    other => fail(Fault::Decode(Box::new(other))),
                });
            }
            // As for the kernel, which mounts that for reading: its table may be right, and whatever
            // is in it has checksums of its own. What it says was never used is not believed.
            descriptor.flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
            descriptor.itable_unused = 0;
        }
        Ok(descriptor)
    }

    /// The stored descriptor of a group, if what it says is possible.
    pub(crate) fn believed_group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        let descriptor = self.stored_group(group)?;
        descriptor.check(group, &self.superblock).map_err(|error| {
            let at = self.descriptor_place(group).ok();
            FsError::corrupt("group descriptor", None, at, Fault::Decode(Box::new(error)))
        })?;
        Ok(descriptor)
    }

    /// `len` blocks from `start` on are blocks of the file system that can hold anything at all.
    /// `structure` names who pointed there. For what belongs to a file,
    /// [`check_file_blocks`](Self::check_file_blocks).
    pub(crate) fn check_blocks(
        &self,
        structure: &'static str,
        ino: impl Into<Option<extant_base::Ino>>,
        start: FsBlock,
        len: u64,
    ) -> Result<()> {
        let first = self.first_data_block();
        let limit = self.block_count();
        match start.checked_add(len) {
            Some(end) if start >= first && end.0 <= limit => Ok(()),
            _ => {
                let rule = "block number outside the file system";
                let fault = Fault::Field { rule, value: start.0, limit };
                Err(FsError::corrupt(structure, ino, None, fault))
            }
        }
    }

    /// Whether descriptors say what was never written. Without descriptor checksums the flags mean
    /// nothing.
    pub(crate) fn has_uninit_groups(&self) -> bool {
        self.group_checksum != GroupChecksum::None
    }
}
