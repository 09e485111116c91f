//! Allocation of blocks and inodes.
//!
//! # Place
//!
//! Below: `editor` and `slot`. Above: `map`, `dir` and `xattr` ask for blocks through
//! `Txn::allocate`, `namei` for inodes.
//!
//! # Shape
//!
//! ```text
//! Allocator   totals; one cell per group, loaded when first needed
//! flex        sums over the groups of a flexible group
//! group       bitmaps and counters of one group; encoding them
//! entry       locking a group with what is needed of it in memory
//! criteria    which runs a search takes, in what order
//! ahead       reading bitmaps ahead of a search
//! blocks      finding, taking and freeing blocks      pin      taking them in memory first
//! promise     totals; space for data that has no place yet     trim  discarding free blocks
//! extend      the clusters behind a file's last      spent  freed clusters to be discarded
//! inodes      taking and freeing inodes        spread  which group an inode should go to
//! free_runs   free blocks, for queries
//! right       access to reserved blocks        window  room kept for growing files
//! stats       how blocks were found            streams goals for files that contend for a group
//! index       groups by their longest free run
//! ```
//!
//! # Rules
//!
//! - B1. Blocks freed by a transaction are not given away before it is committed: a crash before
//!   that restores their old owner.
//! - B2. One group is locked at a time. A search passes over a group whose lock is taken while
//!   there are others, unless a growing file continues there.
//! - B3. The count of available clusters is lowered before a bit is set and raised after one is
//!   cleared, so it never promises more than there is ([`promise`]).
//! - B4. Units are clusters here and blocks outside; [`blocks`] converts.
//! - B5. A group whose bitmap or descriptor is damaged is not allocated from and not freed to:
//!   clusters freed there stay lost until a repair. The other groups remain in use (P56).
//! - B6. A transaction claims the metadata blocks of a group before it changes the group; they are
//!   in memory and have space on the device before the group is locked ([`entry`], L3): two blocks for a change of blocks in one group, three (and the block of the inode table) for a new
//!   inode.

mod ahead;
mod blocks;
mod claim;
mod criteria;
mod entry;
mod extend;
mod flex;
mod free_runs;
mod group;
mod grow;
mod index;
mod inodes;
mod pin;
mod promise;
mod right;
mod spent;
mod spread;
mod stats;
mod streams;
#[cfg(test)]
mod tests;
mod trim;
mod window;

use std::collections::VecDeque;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::GroupDescriptor;
use extant_format::inode::{FileKind, InodeFlags};
use extant_jbd2::Tid;
use extant_sync::{Mutex, Rank};

use crate::error::{Family, FsError, Result};
use crate::node::{InodeData, Node};
use crate::sparse::Sparse;
use crate::volume::Volume;

pub(crate) use crate::run::Run;
use entry::Needs;
pub(crate) use extend::Extended;
use flex::Flex;
pub(crate) use free_runs::free_runs;
use group::{Dirty, GroupState};
use index::Index;
use promise::Space;
pub(crate) use promise::kept_of;
pub(crate) use right::Right;
pub use right::SpaceFor;
use spent::Spent;
pub use stats::AllocatorStats;
use stats::{Counter, Tally};
use streams::Streams;
use trim::Held;
pub(crate) use window::Growth;
use window::Look;

/// Number of groups up to which mounting reads all descriptors.
const SCAN_MAX: u32 = 1024;

/// Memory limit, in bytes, for bitmaps of groups that are clean.
const BITMAP_BYTES_MAX: usize = 32 << 20;

/// Limit of the queued damage reports; further ones are dropped.
const REPORTS_MAX: usize = 64;

/// The resource named in [`FsError::NoSpace`] errors of this module.
pub(crate) const BLOCKS: &str = "blocks";

/// The use of a block, which decides whether the journal must know of its freeing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Blocks that go through the journal: freeing them revokes their copies in the log.
    Metadata,
    /// File contents.
    Data,
}

impl Purpose {
    /// Returns the purpose of an inode's blocks.
    pub(crate) fn of(data: &InodeData) -> Purpose {
        match data.kind {
            FileKind::Regular if !data.record.flags.contains(InodeFlags::EA_INODE) => Purpose::Data,
            _ => Purpose::Metadata,
        }
    }
}

/// A request for contiguous blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockAsk {
    /// The block where the run would best start.
    pub(crate) goal: FsBlock,
    /// Length wanted, in blocks.
    pub(crate) len: u32,
    /// Shortest useful length, in blocks.
    pub(crate) min: u32,
    /// Use of the blocks.
    pub(crate) purpose: Purpose,
    /// Whether the goal is the block behind the last one of the file.
    pub(crate) continues: bool,
}

/// The blocks or the inodes of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Blocks = 1,
    Inodes = 2,
}

/// One group, with hints that are read without its lock.
struct Cell {
    state: Mutex<Option<Box<GroupState>>>,
    /// Number of free clusters when the lock was last released, `u32::MAX` if unknown. It lets
    /// searches pass over full groups without their lock.
    free_clusters: AtomicU32,
    free_inodes: AtomicU32,
    /// Upper bound of the longest free run, `u32::MAX` if unknown. It lets searches pass over
    /// fragmented groups.
    longest: AtomicU32,
    /// Number of free clusters outside windows, as a hint.
    free_open: AtomicU32,
    longest_open: AtomicU32,
    /// The halves that are damaged (B5), a bit set of [`Half`].
    bad: AtomicU8,
    /// Whether the device has space for the descriptor and the block bitmap, however full a sparse
    /// host file system gets.
    has_room: AtomicBool,
    /// Number of times the group left memory; changes under its lock.
    departures: AtomicU32,
}

impl Cell {
    fn new(group: u32) -> Cell {
        Cell {
            state: Mutex::with_order(Rank::Group, u64::from(group), None),
            free_clusters: AtomicU32::new(u32::MAX),
            free_inodes: AtomicU32::new(u32::MAX),
            longest: AtomicU32::new(u32::MAX),
            free_open: AtomicU32::new(u32::MAX),
            longest_open: AtomicU32::new(u32::MAX),
            bad: AtomicU8::new(0),
            has_room: AtomicBool::new(false),
            departures: AtomicU32::new(0),
        }
    }

    fn is_bad(&self, half: Half) -> bool {
        self.bad.load(Ordering::Relaxed) & half as u8 != 0
    }

    fn note(&self, state: &GroupState) {
        let room = state.room();
        self.free_clusters.store(room, Ordering::Release);
        self.free_open.store(room.saturating_sub(state.in_windows()), Ordering::Release);
        self.free_inodes.store(state.descriptor.free_inodes, Ordering::Relaxed);
    }

    /// Forgets the bounds of the longest runs, after clusters of the group became free. The caller
    /// holds its lock.
    fn forget_longest(&self) {
        self.longest.store(u32::MAX, Ordering::Release);
        self.longest_open.store(u32::MAX, Ordering::Release);
    }

    /// Counts all free clusters as open, after the windows of the group went with its bitmaps. The
    /// caller holds its lock.
    fn forget_windows(&self) {
        self.free_open.store(self.free_clusters.load(Ordering::Acquire), Ordering::Release);
        self.longest_open.store(u32::MAX, Ordering::Release);
    }

    /// Records that no run of clusters visible to `look` is longer than `longest`. The caller holds
    /// the group's lock.
    fn note_longest(&self, look: Look, has_windows: bool, longest: u32) {
        self.longest_open.store(longest, Ordering::Release);
        if look == Look::All || !has_windows {
            self.longest.store(longest, Ordering::Release);
        }
    }

    /// Returns the bound that the index records: no run of clusters outside windows is longer. The
    /// caller holds the group's lock.
    fn longest_known(&self) -> u32 {
        if self.is_bad(Half::Blocks) {
            return 0;
        }
        let (free, longest) = self.hints(Look::Open);
        free.min(longest)
    }

    /// Returns the hints for the clusters visible to `look`, without the lock: their number and the
    /// longest run.
    fn hints(&self, look: Look) -> (u32, u32) {
        let (free, longest) = match look {
            Look::Open => (&self.free_open, &self.longest_open),
            Look::All => (&self.free_clusters, &self.longest),
        };
        (free.load(Ordering::Acquire), longest.load(Ordering::Acquire))
    }
}

/// The free space and the free inodes of one writable mount.
pub(crate) struct Allocator {
    cells: Sparse<Cell>,
    flexes: Sparse<OnceLock<Flex>>,
    groups_per_flex: u32,
    cluster_bits: u32,
    /// Length of a RAID stripe in clusters; 0 for none.
    stripe: u32,
    space: Space,
    /// Incremented whenever clusters become available in a group (S4).
    returns: AtomicU64,
    held: Held,
    spent: Spent,
    /// Number of clusters in windows, a hint that limits new ones (W4).
    in_windows: AtomicI64,
    free_inodes: AtomicI64,
    /// Number of directories; on a large file system that was clean, only those made since the
    /// mount.
    directories: AtomicI64,
    /// Groups with clusters that were freed by transactions that are not committed.
    waiting: Mutex<Vec<(Tid, GroupIndex)>>,
    /// Groups that the running transaction changed.
    dirty: Mutex<Vec<GroupIndex>>,
    /// Groups in memory, oldest first.
    loaded: Mutex<VecDeque<GroupIndex>>,
    loaded_count: AtomicU32,
    loaded_max: u32,
    reports: Mutex<Vec<FsError>>,
    encoded: AtomicU64,
    tally: Tally,
    streams: Streams,
    index: Index,
    /// Whether searches use the index.
    optimized: AtomicBool,
}

impl Allocator {
    /// Creates the allocator of a volume. Only totals are read: those of the superblock when they
    /// can be trusted (`is_clean`) and there are many groups, else those of all descriptors.
    /// Invalid descriptors count as full.
    ///
    /// # Errors
    ///
    /// Device errors.
    pub(crate) fn open(volume: &Volume, is_clean: bool) -> Result<Allocator> {
        let superblock = volume.superblock();
        let count = superblock.group_count;
        let groups_per_flex = superblock.groups_per_flex().max(1);
        let mut free_clusters = (superblock.free_blocks_count >> superblock.cluster_bits()) as i64;
        let mut free_inodes = i64::from(superblock.free_inodes_count);
        let (mut directories, mut reports) = (0, Vec::new());
        if !is_clean || count <= SCAN_MAX {
            (free_clusters, free_inodes) = (0, 0);
            for group in (0..count).map(GroupIndex) {
                match volume.believed_group(group) {
                    Ok(descriptor) => {
                        free_clusters += i64::from(descriptor.free_clusters);
                        free_inodes += i64::from(descriptor.free_inodes);
                        directories += i64::from(descriptor.directories);
                    }
                    Err(error) if error.family() == Family::Damage => {
                        if reports.len() < REPORTS_MAX {
                            reports.push(error);
                        }
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        // A group has three bitmaps. A few groups are kept whatever their size.
        let loaded_max = (BITMAP_BYTES_MAX / volume.block_size().len() / 3).max(64);
        Ok(Allocator {
            cells: Sparse::new(count, Cell::new),
            flexes: Sparse::new(count.div_ceil(groups_per_flex), |_| OnceLock::new()),
            groups_per_flex,
            cluster_bits: superblock.cluster_bits(),
            stripe: criteria::stripe_of(
                superblock.raid_stripe_width,
                u32::from(superblock.raid_stride),
                superblock.blocks_per_group,
                superblock.cluster_ratio(),
            ),
            space: Space::new(superblock, free_clusters),
            returns: AtomicU64::new(0),
            held: Held::new(),
            spent: Spent::new(),
            in_windows: AtomicI64::new(0),
            free_inodes: AtomicI64::new(free_inodes),
            directories: AtomicI64::new(directories),
            waiting: Mutex::new(Rank::Leaf, Vec::new()),
            dirty: Mutex::new(Rank::Leaf, Vec::new()),
            loaded: Mutex::new(Rank::Leaf, VecDeque::new()),
            loaded_count: AtomicU32::new(0),
            loaded_max: u32::try_from(loaded_max).unwrap_or(u32::MAX),
            reports: Mutex::new(Rank::Leaf, reports),
            encoded: AtomicU64::new(0),
            tally: Tally::default(),
            streams: Streams::new(count),
            index: Index::new(count),
            optimized: AtomicBool::new(true),
        })
    }

    /// Sets whether freed clusters are queued for discard. Called before the first change.
    pub(crate) fn discard(&mut self, discard: bool) {
        self.spent.keep(discard);
    }

    /// Returns the queue of freed clusters to be discarded.
    pub(crate) fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Number of free clusters on the device, including those that wait for a commit, are promised
    /// or pinned.
    pub(crate) fn free_clusters(&self) -> u64 {
        self.space.free()
    }

    /// Number of free inodes.
    pub(crate) fn free_inodes(&self) -> u32 {
        u32::try_from(self.free_inodes.load(Ordering::Relaxed).max(0)).unwrap_or(u32::MAX)
    }

    /// Number of clusters freed by transactions that are not committed yet: an operation that found
    /// no room may find some after a commit.
    pub(crate) fn free_pending(&self) -> u64 {
        self.space.pending()
    }

    /// Returns how many times a group was encoded.
    pub(crate) fn groups_encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Sets whether searches for the full length use the index instead of looking at each group.
    pub(crate) fn set_optimized(&self, optimized: bool) {
        self.optimized.store(optimized, Ordering::Relaxed);
    }

    /// Returns whether searches use the index of groups.
    pub(crate) fn is_optimized(&self) -> bool {
        self.optimized.load(Ordering::Relaxed)
    }

    /// Returns how blocks were found.
    pub(crate) fn stats(&self) -> AllocatorStats {
        self.tally.stats()
    }

    /// Queues damage that was found and worked around; the next transaction records it. Beyond 64
    /// reports the rest is dropped.
    pub(crate) fn note_damage(&self, error: FsError) {
        let mut reports = self.reports.lock();
        if reports.len() < REPORTS_MAX {
            reports.push(error);
        }
    }

    /// Takes the damage reports queued since the last call (B5).
    pub(crate) fn take_reports(&self) -> Vec<FsError> {
        std::mem::take(&mut *self.reports.lock())
    }

    /// Returns the current descriptor of a group; its checksums are those of the last encoding.
    pub(crate) fn group(&self, volume: &Volume, group: GroupIndex) -> Result<GroupDescriptor> {
        Ok(self.enter(volume, group, Needs::DESCRIPTOR)?.state()?.descriptor)
    }

    /// Encodes every changed group into its metadata blocks. No handle is open.
    ///
    /// # Errors
    ///
    /// Device errors and damage: the transaction must not be committed.
    pub(crate) fn encode(&self, volume: &Volume) -> Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for group in dirty {
            self.encoded.fetch_add(1, Ordering::Relaxed);
            let encoded = self.enter(volume, group, Needs::DESCRIPTOR)?.state()?.encode(volume)?;
            // The blocks are filled without the group's lock, whose holder may not wait for theirs.
            // No handle is open, so nobody changes the group meanwhile; it stays in memory, because
            // it counts as changed until its blocks are what it is.
            encoded.store(volume)?;
            self.enter(volume, group, Needs::DESCRIPTOR)?.state()?.dirty = Dirty::default();
        }
        Ok(())
    }

    /// Releases the clusters that transaction `tid` and earlier ones freed; `tid` is durable (B1).
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
            // The group is loaded, because it is not clean; otherwise it has nothing to release.
            let Ok(mut locked) = self.enter(volume, group, Needs::DESCRIPTOR) else { continue };
            let Ok(state) = locked.state() else { continue };
            let Some(blocks) = &mut state.blocks else { continue };
            let ranges = blocks.release(is_due);
            let freed = ranges.iter().map(|range| range.end - range.start).sum();
            locked.cell.forget_longest();
            drop(locked);
            self.spent.add(group, ranges);
            self.returns.fetch_add(1, Ordering::AcqRel); // S4
            self.space.released(freed);
        }
    }
}

/// Returns the block before which all blocks of an inode must lie: pointers outside extents have 32
/// bits (P61).
pub(crate) fn blocks_end(node: &Node) -> u64 {
    let extents = node.with(|data| data.record.flags.contains(InodeFlags::EXTENTS));
    if extents { u64::MAX } else { 1 << 32 }
}
