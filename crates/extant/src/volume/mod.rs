//! The state shared by all inodes of an open file system: the device, the geometry and the caches.
//!
//! # Place
//!
//! `mount` builds a [`Volume`]; every other module reads through it. It knows blocks and stored
//! group descriptors, and keeps nodes by their numbers; it does not know files or the writing side.
//!
//! # Invariants
//!
//! - V1. Only the journal writes metadata, on a writable mount.
//! - V2. A block in the cache is as the kernel would see it after mounting: the device below shows
//!   the replayed journal.
//! - V3. Memory stays within the budget of the mount options for every image.

mod grown;
mod replay;
mod sizes;
mod zones;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use extant_base::{BlockSize, FsBlock, GroupIndex, Ino, sabotage};
use extant_block::{AlignedBuffer, BlockDevice, DeviceError, DeviceFault, Operation, SharedDevice};
use extant_crypt::KeyRing;
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
use crate::keyring::Keys;
use crate::node::{Departed, InodeData, Node};
use crate::seal::TreeBlocks;
use crate::shared_cache::SharedCache;
use crate::slot::{MetaBlock, Slot};
use crate::sparse::Sparse;
use crate::zones::{Gained, Zones};

use self::grown::Grown;

pub use replay::ReplaySummary;
pub(crate) use sizes::{blocks_left, check_sectors, check_size, check_stored_size};

/// Approximate size of a cached inode in bytes: its raw form, its decoded form, bookkeeping.
const INODE_COST: usize = 1024;

/// One open file system.
pub(crate) struct Volume {
    device: SharedDevice,
    /// As it was when the file system was mounted; [`Volume::superblock`] is the current one.
    superblock: Superblock,
    grown: Grown,
    block_size: BlockSize,
    checksum_seed: u32,
    group_checksum: GroupChecksum,
    inode_layout: InodeLayout,
    /// The group whose copy of superblock and descriptors is in use.
    home_group: GroupIndex,
    verify_checksums: bool,
    /// Whether the file system was opened read-only, so that structures that a writer must not
    /// trust may be used.
    reads_only: bool,
    minix_df: bool,
    read_limit: u64,
    fast_commit: Option<FastCommitOverlay>,
    replay: Option<ReplaySummary>,
    blocks: Cache<FsBlock, Arc<Slot>>,
    extent_nodes: Cache<(Ino, FsBlock), Arc<ExtentNode>>,
    nodes: Cache<Ino, Arc<Node>>,
    /// First blocks of the inode tables, for each group; 0 until it was looked up.
    tables: Sparse<AtomicU64>,
    /// The page cache, created when a file is first used.
    page_cache: OnceLock<Arc<extant_iomap::Cache>>,
    data_cache: DataCache,
    /// Blocks of no file; unset until the journal was read.
    zones: OnceLock<Zones>,
    gained: Gained,
    keys: Keys,
    tree_blocks: TreeBlocks,
}

/// Parameters of [`Volume::new`] besides the device and the superblock.
pub(crate) struct VolumeOptions {
    pub(crate) home_group: GroupIndex,
    pub(crate) verify_checksums: bool,
    pub(crate) reads_only: bool,
    pub(crate) minix_df: bool,
    pub(crate) cache_bytes: usize,
    /// Limit of the unused inodes in memory; `None` for the default of the budget.
    pub(crate) inodes_max: Option<usize>,
    pub(crate) read_limit: u64,
    pub(crate) data_cache: DataCache,
    pub(crate) fast_commit: Option<FastCommitOverlay>,
    pub(crate) replay: Option<ReplaySummary>,
    pub(crate) keys: KeyRing,
}

/// Parameters of the cache of file contents.
#[derive(Clone, Debug)]
pub(crate) struct DataCache {
    /// A cache shared with other mounts, which has its own parameters.
    pub(crate) shared: Option<SharedCache>,
    /// Size in bytes.
    pub(crate) bytes: u64,
    /// Largest folio, as a power of two.
    pub(crate) folio_max_log2: u32,
    /// Number of dirty bytes above which background writeback starts; 0 for the default.
    pub(crate) dirty_background: u64,
    /// Number of dirty bytes above which writers write back; 0 for the default.
    pub(crate) dirty_max: u64,
    /// Whether zeroing writes back first, for tests.
    pub(crate) flush_before_zero: bool,
    /// Whether metadata is committed before the data that it points to is written, for tests.
    pub(crate) publish_before_data: bool,
    /// Number of threads that encrypt and write a batch of writeback.
    pub(crate) stage_threads: usize,
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
    /// Number of blocks that have changed.
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
        // Half of the budget is for raw blocks, a quarter each for decoded extent nodes (at most
        // twice the size of their block) and inodes.
        let half = options.cache_bytes / 2;
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
            tables: Sparse::new(superblock.group_count, |_| AtomicU64::new(0)),
            grown: Grown::new(),
            page_cache: OnceLock::new(),
            data_cache: options.data_cache,
            zones: OnceLock::new(),
            gained: Gained::new(),
            keys: Keys::new(options.keys),
            tree_blocks: TreeBlocks::new(half / 8 / block_size.len()),
            superblock,
        }
    }

    /// Returns the group whose copy of superblock and descriptors is in use.
    pub(crate) fn home_group(&self) -> GroupIndex {
        self.home_group
    }

    /// Returns the blocks that are the file system's own; `None` until the journal was read.
    pub(crate) fn zones(&self) -> Option<&Zones> {
        self.zones.get()
    }

    /// Returns the blocks that became the file system's own since the mount.
    pub(crate) fn gained(&self) -> &Gained {
        &self.gained
    }

    /// Returns the master keys.
    pub(crate) fn keys(&self) -> &Keys {
        &self.keys
    }

    /// Returns the blocks of hash trees that were checked.
    pub(crate) fn tree_blocks(&self) -> &TreeBlocks {
        &self.tree_blocks
    }

    /// Sets the zones, once, before the volume is shared.
    pub(crate) fn set_zones(&self, zones: Zones) {
        let _ = self.zones.set(zones);
    }

    /// Returns whether totals count the file system's own metadata.
    pub(crate) fn counts_overhead(&self) -> bool {
        self.minix_df
    }

    /// Returns the superblock as it was when the file system was mounted, with the numbers of its
    /// current size. Whoever keeps the reference sees no later growth, which makes nothing invalid.
    pub(crate) fn superblock(&self) -> &Superblock {
        self.grown.superblock().unwrap_or(&self.superblock)
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
        self.superblock().blocks_count
    }

    pub(crate) fn inode_count(&self) -> u32 {
        self.superblock().inodes_count
    }

    pub(crate) fn first_data_block(&self) -> FsBlock {
        FsBlock(u64::from(self.superblock.first_data_block))
    }

    pub(crate) fn inode_layout(&self) -> &InodeLayout {
        &self.inode_layout
    }

    /// Returns whether checksums are to be verified.
    pub(crate) fn verifies_checksums(&self) -> bool {
        self.verify_checksums
    }

    /// Returns whether metadata blocks have checksums (`metadata_csum`) that are to be verified.
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

    /// Returns whether directory hashes treat bytes as unsigned.
    pub(crate) fn unsigned_hash(&self) -> bool {
        self.superblock.flags.contains(SuperFlags::UNSIGNED_HASH)
    }

    pub(crate) fn hash_seed(&self) -> HashSeed {
        HashSeed::from_words(self.superblock.hash_seed)
    }

    /// Returns the seed of checksums that belong to no inode.
    pub(crate) fn checksum_seed(&self) -> u32 {
        self.checksum_seed
    }

    /// Returns the hash of a stored name by the file system's default function, for display; zero
    /// where the default needs a key.
    pub(crate) fn default_hash(&self, name: &[u8]) -> NameHash {
        HashVersion::from_disk(self.superblock.default_hash.to_raw(), self.unsigned_hash())
            .and_then(|version| name_hash(version, &self.hash_seed(), name))
            .unwrap_or_default()
    }

    /// Returns the hash function of new indexes.
    pub(crate) fn new_index_hash(&self) -> HashVersion {
        let unsigned = self.unsigned_hash() != sabotage("extant.dir.first-split-other-sign");
        let default = HashVersion::from_disk(self.superblock.default_hash.to_raw(), unsigned);
        let usual = if unsigned { HashVersion::HalfMd4Unsigned } else { HashVersion::HalfMd4 };
        default.filter(|version| *version != HashVersion::SipHash).unwrap_or(usual)
    }

    pub(crate) fn extent_nodes(&self) -> &Cache<(Ino, FsBlock), Arc<ExtentNode>> {
        &self.extent_nodes
    }

    /// Returns the cache of file contents, created at its first use.
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
            stage_threads,
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
        options.stage_threads = stage_threads;
        let cache = extant_iomap::Cache::new(options)?;
        Ok(self.page_cache.get_or_init(|| cache))
    }

    /// Returns the shared cache, if there is one.
    pub(crate) fn shared_cache(&self) -> Option<&SharedCache> {
        self.data_cache.shared.as_ref()
    }

    /// Returns whether writeback does its steps in the wrong order, for tests.
    pub(crate) fn publishes_before_data(&self) -> bool {
        self.data_cache.publish_before_data
    }

    /// Returns the cache of file contents, if a file has been used.
    pub(crate) fn page_cache_made(&self) -> Option<&Arc<extant_iomap::Cache>> {
        self.page_cache.get()
    }

    /// Creates the node of a newly allocated inode number, and returns it with the dead node of an
    /// earlier inode of that number, if there is one. Its holders keep that; it can no longer be
    /// found.
    pub(crate) fn install_node(&self, ino: Ino, data: InodeData) -> (Arc<Node>, Option<Arc<Node>>) {
        let node = Arc::new(Node::new(data));
        let earlier = self.nodes.replace(ino, Arc::clone(&node));
        let is_dead = |earlier: &Arc<Node>| earlier.life().is_gone();
        debug_assert!(earlier.as_ref().is_none_or(is_dead), "in use: {ino}");
        (node, earlier)
    }

    /// Returns the goal for blocks of an inode with this number.
    pub(crate) fn goal_of(&self, ino: Ino) -> Result<FsBlock> {
        let missing = || FsError::NoSuchInode { ino, inode_count: self.inode_count() };
        let (group, _) = self.superblock().group_of_inode(ino).ok_or_else(missing)?;
        Ok(self.superblock().group_first_block(group).unwrap_or(self.first_data_block()))
    }

    /// Returns the first block of the inode table of `group`. Tables do not move during a mount, so
    /// no lock is needed once the group was looked up.
    fn inode_table(&self, group: GroupIndex) -> Result<FsBlock> {
        let known = self.tables.get(group.0);
        // Block 0 holds no table.
        if let Some(table) = known.map(|table| table.load(Ordering::Relaxed)).filter(|at| *at != 0)
        {
            return Ok(FsBlock(table));
        }
        let table = self.believed_group(group)?.inode_table;
        if let Some(known) = known {
            known.store(table.0, Ordering::Relaxed);
        }
        Ok(table)
    }

    /// Returns the place of an inode's record: its table block, and the offset in it.
    pub(crate) fn inode_place(&self, ino: Ino) -> Result<(FsBlock, usize)> {
        let missing = || FsError::NoSuchInode { ino, inode_count: self.inode_count() };
        let (group, index) = self.superblock().group_of_inode(ino).ok_or_else(missing)?;
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

    /// Drops the unused contents of the caches; returns the number of entries dropped.
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

    /// Allocates device space for blocks, so that they can be written even if the disk under the
    /// device is full. They have no write under way.
    pub(crate) fn allocate_on_device(&self, first: FsBlock, len: u64) -> Result<()> {
        let what = "block past the largest device";
        let offset = self.block_size.offset_of(first);
        let offset = offset.ok_or(FsError::InvalidArgument { what })?;
        let bytes = len.saturating_mul(u64::from(self.block_size.bytes()));
        self.device.allocate(offset, bytes).map_err(FsError::from)
    }

    /// Distinguishes a truncated device from one that fails.
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

    /// Reads the whole of `block`, bypassing the cache.
    pub(crate) fn read_block_uncached(&self, block: FsBlock) -> Result<Vec<u8>> {
        let mut bytes = vec![0; self.block_size.len()];
        self.read_bytes(block, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Returns the current version of a metadata block, through the cache.
    pub(crate) fn read_block(&self, block: FsBlock) -> Result<Arc<MetaBlock>> {
        self.slot(block).get(|| self.load_block(block))
    }

    /// Returns the current version of a metadata block, or `None` if another thread is reading or
    /// changing it.
    pub(crate) fn try_read_block(&self, block: FsBlock) -> Result<Option<Arc<MetaBlock>>> {
        self.slot(block).try_get(|| self.load_block(block))
    }

    /// Reads those of the blocks that are not in memory, in one batch, neighbours as one operation;
    /// returns how many blocks were asked for. Errors are left to whoever needs the block.
    pub(crate) fn read_ahead(&self, mut blocks: Vec<FsBlock>) -> u64 {
        blocks.sort_unstable();
        blocks.dedup();
        // The slots are held until they are filled: whoever changes the block meanwhile changes the
        // same slot, and what was read before is not taken for the block.
        let slots = blocks.into_iter().map(|block| self.slot(block));
        let slots: Vec<Arc<Slot>> = slots.filter(|slot| slot.is_unread()).collect();
        let block_bytes = self.block_size.len();
        let runs = slots.chunk_by(|a, b| a.number().checked_add(1) == Some(b.number()));
        let runs: Vec<&[Arc<Slot>]> = runs.collect();
        let reads = runs.iter().filter_map(|run| {
            let offset = self.block_size.offset_of(run.first()?.number())?;
            let buffer = AlignedBuffer::zeroed(block_bytes.saturating_mul(run.len()));
            Some(Operation::Read { offset, buffer })
        });
        let reads: Vec<Operation> = reads.collect();
        if reads.is_empty() || reads.len() != runs.len() {
            return 0;
        }
        for (run, done) in runs.iter().zip(self.device.submit(reads).wait()) {
            let Ok(bytes) = done.into_buffer() else { continue };
            for (slot, bytes) in run.iter().zip(bytes.chunks_exact(block_bytes)) {
                slot.fill(bytes);
            }
        }
        slots.len() as u64
    }

    /// Returns the slot of a metadata block; nothing is read yet.
    pub(crate) fn slot(&self, block: FsBlock) -> Arc<Slot> {
        self.blocks.get_or_insert_with(block, || Arc::new(Slot::empty(block)))
    }

    /// Returns the slot of a block that is in memory and has space on the device, unless a thread
    /// is changing it.
    pub(crate) fn slot_at_hand(&self, block: FsBlock) -> Option<Arc<Slot>> {
        self.blocks.get(&block).filter(|slot| slot.is_at_hand())
    }

    /// Returns the current version of a block, if it is in memory and no thread is changing it.
    pub(crate) fn block_in_memory(&self, block: FsBlock) -> Option<Arc<MetaBlock>> {
        self.blocks.get(&block)?.get_now()
    }

    /// Reads the contents of a slot from the device.
    pub(crate) fn load_block(&self, block: FsBlock) -> Result<Box<[u8]>> {
        Ok(self.read_block_uncached(block)?.into_boxed_slice())
    }

    /// Returns the block that holds the descriptor of `group`.
    pub(crate) fn descriptor_place(&self, group: GroupIndex) -> Result<FsBlock> {
        let table_block = group.0 / self.superblock.descriptors_per_block();
        let heads = Heads::of(self.superblock());
        heads
            .descriptor_block_copy(table_block, self.home_group)
            .or_else(|| heads.descriptor_block(table_block))
            .ok_or(FsError::InvalidArgument { what: "group: past the last group" })
    }

    /// Returns the descriptor of `group` as last encoded, with its checksum verified.
    pub(crate) fn stored_group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        const NAME: &str = "group descriptor";
        let superblock = self.superblock();
        let per_block = superblock.descriptors_per_block();
        let (table_block, slot) = (group.0 / per_block, group.0 % per_block);
        let missing = || FsError::InvalidArgument { what: "group: past the last group" };
        if group.0 >= superblock.group_count {
            return Err(missing());
        }
        // If the home group has no copy of the block, the primary one is used.
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
            // As in the kernel, which mounts such an image read-only: the table may be right, and
            // the inodes in it have checksums of their own. Flags that mark parts as unused are
            // ignored.
            descriptor.flags.remove(GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT);
            descriptor.itable_unused = 0;
        }
        Ok(descriptor)
    }

    /// Returns the stored descriptor of a group, if its values are possible.
    pub(crate) fn believed_group(&self, group: GroupIndex) -> Result<GroupDescriptor> {
        let descriptor = self.stored_group(group)?;
        descriptor.check(group, self.superblock()).map_err(|error| {
            let at = self.descriptor_place(group).ok();
            FsError::corrupt("group descriptor", None, at, Fault::Decode(Box::new(error)))
        })?;
        Ok(descriptor)
    }

    /// Checks that `len` blocks from `start` on lie in the file system and behind its first data
    /// block. `structure` names the structure that points there. For blocks of a file use
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

    /// Returns whether flags of descriptors mark uninitialised parts. Without descriptor checksums
    /// the flags have no meaning.
    pub(crate) fn has_uninit_groups(&self) -> bool {
        self.group_checksum != GroupChecksum::None
    }
}
