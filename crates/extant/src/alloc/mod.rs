//! Which blocks and inodes are free, and who gets them.
//!
//! # Place
//!
//! Below: `txn` and `slot`. Above: `map`, `dir` and `xattr` ask for blocks through
//! [`Txn::allocate`], `namei` for inodes.
//!
//! # Shape
//!
//! ```text
//! Allocator   totals; one cell per group, loaded when first needed
//! group       bitmaps and counters of one group; encoding them
//! blocks      finding, taking and freeing blocks
//! inodes      which group a new inode goes to; taking and freeing inodes
//! ```
//!
//! # Rules
//!
//! - B1. Blocks freed by a transaction are not given away before it is committed: until then a
//!   crash brings their old owner back.
//! - B2. One group is locked at a time. A group that is busy is passed over while there are others.
//! - B3. The total of free clusters is lowered before a bit is set and raised after one is
//!   cleared, so that it never promises what is not there for want of counting.
//! - B4. Units are clusters here and blocks outside; [`blocks`] converts.

mod blocks;
mod group;
mod inodes;

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::GroupDescriptor;
use extant_format::superblock::Superblock;
use extant_jbd2::Tid;
use extant_sync::{Mutex, MutexGuard, Rank};

use crate::error::{FsError, Result};
use crate::node::Node;
use crate::txn::Txn;
use crate::volume::Volume;

use group::GroupState;

/// Groups whose cells are made together.
const CHUNK: usize = 512;

/// Most groups with bitmaps in memory that nothing needs: 12 KiB each with blocks of 4 KiB.
const LOADED_MAX: u32 = 4096;

/// What blocks are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Blocks that go through the journal: freeing them revokes their copies in the log.
    Metadata,
    /// Contents of files.
    Data,
}

/// A wish for contiguous blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockAsk {
    /// Where the blocks would best be.
    pub(crate) goal: FsBlock,
    /// How many are wanted.
    pub(crate) len: u32,
    /// The fewest that are of use.
    pub(crate) min: u32,
    /// What for.
    pub(crate) purpose: Purpose,
}

/// Contiguous blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// The first one.
    pub(crate) start: FsBlock,
    /// How many.
    pub(crate) len: u32,
}

/// One group, as far as it was looked at.
struct Cell {
    state: Mutex<Option<Box<GroupState>>>,
    /// Free clusters, give or take; `u32::MAX` when not known. To pass over full groups without
    /// their lock.
    free_hint: AtomicU32,
    free_inodes_hint: AtomicU32,
    directories_hint: AtomicU32,
}

/// The free space and the free inodes of one writable mount.
pub(crate) struct Allocator {
    chunks: Vec<OnceLock<Box<[Cell]>>>,
    group_count: u32,
    free_clusters: AtomicI64,
    free_inodes: AtomicI64,
    directories: AtomicI64,
    /// Clusters freed by transactions that are not committed.
    pending: AtomicU64,
    /// Groups with such clusters.
    waiting: Mutex<Vec<(Tid, GroupIndex)>>,
    /// Groups that the running transaction changed.
    dirty: Mutex<Vec<GroupIndex>>,
    loaded: AtomicU32,
    evict_hand: AtomicU32,
    encoded: AtomicU64,
}

impl Allocator {
    /// Nothing but totals is looked at: those of the superblock when they can be trusted
    /// (`is_clean`), else those of all descriptors.
    pub(crate) fn open(volume: &Volume, is_clean: bool) -> Result<Allocator> {
        let superblock = volume.superblock();
        let count = superblock.group_count;
        let chunks = (count as usize).div_ceil(CHUNK);
        let bits = superblock.cluster_bits();
        let mut free_clusters = (superblock.free_blocks_count >> bits) as i64;
        let mut free_inodes = i64::from(superblock.free_inodes_count);
        let mut directories = 0;
        if !is_clean || count <= 1024 {
            (free_clusters, free_inodes) = (0, 0);
            for group in 0..count {
                let descriptor = volume.stored_group(GroupIndex(group))?;
                free_clusters += i64::from(descriptor.free_clusters);
                free_inodes += i64::from(descriptor.free_inodes);
                directories += i64::from(descriptor.directories);
            }
        }
        Ok(Allocator {
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            group_count: count,
            free_clusters: AtomicI64::new(free_clusters),
            free_inodes: AtomicI64::new(free_inodes),
            directories: AtomicI64::new(directories),
            pending: AtomicU64::new(0),
            waiting: Mutex::new(Rank::Leaf, Vec::new()),
            dirty: Mutex::new(Rank::Leaf, Vec::new()),
            loaded: AtomicU32::new(0),
            evict_hand: AtomicU32::new(0),
            encoded: AtomicU64::new(0),
        })
    }

    fn cell(&self, group: GroupIndex) -> Result<&Cell> {
        let missing = FsError::InvalidArgument { what: "group: past the last group" };
        let chunk = self.chunks.get(group.0 as usize / CHUNK);
        let chunk = chunk.filter(|_| group.0 < self.group_count).ok_or(missing)?;
        let cells = chunk.get_or_init(|| {
            let first = group.0 / CHUNK as u32 * CHUNK as u32;
            let cell = |at: u32| Cell {
                state: Mutex::with_order(Rank::Group, u64::from(first + at), None),
                free_hint: AtomicU32::new(u32::MAX),
                free_inodes_hint: AtomicU32::new(u32::MAX),
                directories_hint: AtomicU32::new(0),
            };
            (0..CHUNK as u32).map(cell).collect()
        });
        Ok(&cells[group.0 as usize % CHUNK])
    }

    /// The state of a group, locked and loaded.
    fn lock<'a>(&'a self, volume: &Volume, group: GroupIndex) -> Result<Locked<'a>> {
        let cell = self.cell(group)?;
        // Before the lock: making room looks at other groups.
        self.make_room();
        self.load_locked(volume, group, cell, cell.state.lock())
    }

    /// The same, unless somebody else is at it.
    fn try_lock<'a>(&'a self, volume: &Volume, group: GroupIndex) -> Result<Option<Locked<'a>>> {
        let cell = self.cell(group)?;
        self.make_room();
        match cell.state.try_lock() {
            Some(guard) => self.load_locked(volume, group, cell, guard).map(Some),
            None => Ok(None),
        }
    }

    fn load_locked<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        cell: &'a Cell,
        mut guard: MutexGuard<'a, Option<Box<GroupState>>>,
    ) -> Result<Locked<'a>> {
        if guard.is_none() {
            let state = GroupState::load(volume, group)?;
            cell.note(&state.descriptor);
            *guard = Some(Box::new(state));
            self.loaded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Locked { cell, guard })
    }

    /// Drops a few clean groups while too many are loaded. Takes no lock that anybody holds.
    fn make_room(&self) {
        for _ in 0..4 {
            if self.loaded.load(Ordering::Relaxed) <= LOADED_MAX {
                return;
            }
            let at = self.evict_hand.fetch_add(1, Ordering::Relaxed) % self.group_count.max(1);
            let Ok(cell) = self.cell(GroupIndex(at)) else { return };
            if let Some(mut guard) = cell.state.try_lock()
                && guard.as_ref().is_some_and(|state| state.is_clean())
            {
                *guard = None;
                self.loaded.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// The descriptor of a group as it is now; its checksums are those of the last encoding.
    pub(crate) fn group(&self, volume: &Volume, group: GroupIndex) -> Result<GroupDescriptor> {
        Ok(self.lock(volume, group)?.state()?.descriptor)
    }

    /// Free clusters, those that wait for a commit included.
    pub(crate) fn free_clusters(&self) -> u64 {
        self.free_clusters.load(Ordering::Relaxed).max(0) as u64
    }

    /// Free inodes.
    pub(crate) fn free_inodes(&self) -> u32 {
        u32::try_from(self.free_inodes.load(Ordering::Relaxed).max(0)).unwrap_or(u32::MAX)
    }

    /// Clusters that were freed by transactions not yet committed.
    pub(crate) fn free_pending(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    /// How many times a group was encoded.
    pub(crate) fn groups_encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Puts totals into a superblock that is about to be stored.
    pub(crate) fn fill_totals(&self, superblock: &mut Superblock) {
        superblock.free_blocks_count = self.free_clusters() << superblock.cluster_bits();
        superblock.free_inodes_count = self.free_inodes();
    }

    /// Brings every changed group into its blocks. No handle is open.
    pub(crate) fn encode(&self, volume: &Volume) -> Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for group in dirty {
            self.encoded.fetch_add(1, Ordering::Relaxed);
            self.lock(volume, group)?.state()?.encode(volume)?;
        }
        Ok(())
    }

    /// Transaction `tid` is durable: what it freed can be given away (B1).
    pub(crate) fn committed(&self, volume: &Volume, tid: Tid) {
        let is_due = |due: Tid| tid.wrapping_sub(due) as i32 >= 0;
        let mut due = Vec::new();
        self.waiting.lock().retain(|(at, group)| {
            if is_due(*at) {
                due.push(*group);
            }
            !is_due(*at)
        });
        due.sort_unstable();
        due.dedup();
        for group in due {
            // A group that cannot be locked any more gives nothing back, which is safe.
            let Ok(mut locked) = self.lock(volume, group) else { continue };
            let Ok(state) = locked.state() else { continue };
            let Some(blocks) = &mut state.blocks else { continue };
            let taken = &mut blocks.taken;
            let mut freed = 0;
            blocks.freed.retain(|(range, at)| {
                if is_due(*at) {
                    taken.clear_range(range.clone());
                    freed += u64::from(range.end - range.start);
                }
                !is_due(*at)
            });
            self.pending.fetch_sub(freed, Ordering::AcqRel);
        }
    }
}

impl Cell {
    fn note(&self, descriptor: &GroupDescriptor) {
        self.free_hint.store(descriptor.free_clusters, Ordering::Relaxed);
        self.free_inodes_hint.store(descriptor.free_inodes, Ordering::Relaxed);
        self.directories_hint.store(descriptor.directories, Ordering::Relaxed);
    }
}

/// A locked group that is loaded.
struct Locked<'a> {
    cell: &'a Cell,
    guard: MutexGuard<'a, Option<Box<GroupState>>>,
}

impl Locked<'_> {
    fn state(&mut self) -> Result<&mut GroupState> {
        let gone = FsError::InvalidArgument { what: "group: not loaded" };
        self.guard.as_deref_mut().ok_or(gone)
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.guard.as_deref() {
            self.cell.note(&state.descriptor);
        }
    }
}

/// Which bitmap of a group a change touches.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Touch {
    Blocks,
    Inodes,
}

impl Allocator {
    /// Notes that the transaction will change a locked group: claims the blocks that encoding it
    /// will fill, once per transaction.
    fn touch(&self, txn: &mut Txn<'_>, state: &mut GroupState, touch: Touch) -> Result<()> {
        let volume = txn.volume();
        if state.dirty.descriptor.is_none() {
            let at = volume.descriptor_place(state.index)?;
            let slot = volume.slot(at);
            slot.get(|| volume.load_block(at))?;
            txn.claim_slot(&slot)?;
            state.dirty.descriptor = Some(slot);
            self.dirty.lock().push(state.index);
        }
        let (place, at) = match touch {
            Touch::Blocks => (&mut state.dirty.blocks, state.descriptor.block_bitmap),
            Touch::Inodes => (&mut state.dirty.inodes, state.descriptor.inode_bitmap),
        };
        if place.is_none() {
            let slot = volume.slot(at);
            txn.claim_slot(&slot)?;
            *place = Some(slot);
        }
        Ok(())
    }
}

impl Txn<'_> {
    /// Allocates blocks for an inode: its quotas are charged and its block count raised.
    pub(crate) fn allocate(&mut self, node: &Arc<Node>, ask: &BlockAsk) -> Result<Run> {
        let run = self.writer().alloc().allocate(self, ask, true)?;
        let bytes = self.volume().block_size().bytes();
        let sectors = u64::from(run.len) * u64::from(bytes / 512);
        if let Err(error) = self.charge_blocks(node, sectors) {
            // Not committed yet, but given back all the same.
            self.writer().alloc().free(self, run, ask.purpose)?;
            return Err(error);
        }
        self.update(node, |data| data.record.sectors += sectors)?;
        Ok(run)
    }

    /// Gives blocks of an inode back.
    pub(crate) fn release(&mut self, node: &Arc<Node>, run: Run, was: Purpose) -> Result<()> {
        self.writer().alloc().free(self, run, was)?;
        let bytes = self.volume().block_size().bytes();
        let sectors = u64::from(run.len) * u64::from(bytes / 512);
        self.uncharge_blocks(node, sectors);
        self.update(node, |data| {
            data.record.sectors = data.record.sectors.saturating_sub(sectors);
        })
    }
}
