//! Which blocks and inodes are free, and who gets them.
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
//! flex        what the groups of a flexible group have together
//! group       bitmaps and counters of one group; encoding them
//! blocks      finding, taking and freeing blocks      pin      taking them in memory first
//! promise     totals; space for data that has no place yet     trim  telling the device what is free
//! extend      the clusters behind a file's last      spent  what was freed, to be discarded
//! inodes      taking and freeing inodes        spread  which group an inode should go to
//! free_runs   what is free, for who only looks
//! right       who may have the last blocks     window  room that is left to files that grow
//! stats       how blocks were found            streams where files go that meet others
//! index       which groups may have enough
//! ```
//!
//! # Rules
//!
//! - B1. Blocks freed by a transaction are not given away before it is committed: until then a
//!   crash brings their old owner back.
//! - B2. One group is locked at a time. A group that is busy is passed over while there are others, unless a
//!   file that grows goes on there.
//! - B3. What can be had is counted down before a bit is set and up after one is cleared, so that
//!   nothing is given away that is not there, for want of counting ([`promise`]).
//! - B4. Units are clusters here and blocks outside; [`blocks`] converts.
//! - B5. A group whose bitmap or descriptor is damaged gives nothing any more, and takes nothing
//!   back: what is freed there stays lost until a repair. Everything else goes on (P56).
//! - B6. What a transaction changes in a group it has claimed before: two blocks for a change of
//!   blocks in one group, three (and the block of the inode table) for a new inode.

mod blocks;
mod claim;
mod extend;
mod flex;
mod free_runs;
mod group;
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
use extant_sync::{Mutex, MutexGuard, Rank};

use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::node::{InodeData, Node};
use crate::sparse::Sparse;
use crate::volume::Volume;

pub(crate) use crate::run::Run;
pub(crate) use extend::Extended;
use flex::Flex;
pub(crate) use free_runs::free_runs;
use group::{Blocks, GroupState, Inodes};
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

/// Up to this many groups, all descriptors are looked at when mounting.
const SCAN_MAX: u32 = 1024;

/// Memory for bitmaps of groups that nothing needs at the moment.
const BITMAP_BYTES_MAX: usize = 32 << 20;

/// Damage that nobody has asked about yet; more than that is forgotten.
const REPORTS_MAX: usize = 64;

/// What there is no space for, of errors of this module.
pub(crate) const BLOCKS: &str = "blocks";

/// What blocks are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Blocks that go through the journal: freeing them revokes their copies in the log.
    Metadata,
    /// Contents of files.
    Data,
}

impl Purpose {
    /// What the blocks of an inode are for.
    pub(crate) fn of(data: &InodeData) -> Purpose {
        match data.kind {
            FileKind::Regular if !data.record.flags.contains(InodeFlags::EA_INODE) => Purpose::Data,
            _ => Purpose::Metadata,
        }
    }
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

/// A half of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Half {
    Blocks = 1,
    Inodes = 2,
}

/// One group, as far as it was looked at.
struct Cell {
    state: Mutex<Option<Box<GroupState>>>,
    /// Clusters to be had when the lock was last let go; `u32::MAX` when not known. To pass over full
    /// groups without their lock.
    free_clusters: AtomicU32,
    free_inodes: AtomicU32,
    /// No free run is longer; `u32::MAX` when not known. To pass over groups that have only crumbs.
    longest: AtomicU32,
    /// The same two of clusters in nobody's window.
    free_open: AtomicU32,
    longest_open: AtomicU32,
    /// Damaged halves (B5).
    bad: AtomicU8,
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

    /// Clusters of the group have become free. Its lock is held.
    fn forget_longest(&self) {
        self.longest.store(u32::MAX, Ordering::Release);
        self.longest_open.store(u32::MAX, Ordering::Release);
    }

    /// The windows of the group have gone with its bitmaps. Its lock is held.
    fn forget_windows(&self) {
        self.free_open.store(self.free_clusters.load(Ordering::Acquire), Ordering::Release);
        self.longest_open.store(u32::MAX, Ordering::Release);
    }

    /// What a look at the bitmap has told: no run of these clusters is longer. The group's lock is held.
    fn note_longest(&self, look: Look, has_windows: bool, longest: u32) {
        self.longest_open.store(longest, Ordering::Release);
        if look == Look::All || !has_windows {
            self.longest.store(longest, Ordering::Release);
        }
    }

    /// What the index is told: no run of clusters in nobody's window is longer. The group's lock is held.
    fn longest_known(&self) -> u32 {
        if self.is_bad(Half::Blocks) {
            return 0;
        }
        let (free, longest) = self.hints(Look::Open);
        free.min(longest)
    }

    /// What is known of the clusters that a look sees, without the lock: how many, and the longest run.
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
    group_count: u32,
    groups_per_flex: u32,
    cluster_bits: u32,
    space: Space,
    /// Counts up whenever clusters become available in a group.
    returns: AtomicU64,
    held: Held,
    spent: Spent,
    /// Clusters in windows: a hint, for what new ones may have (W4).
    in_windows: AtomicI64,
    free_inodes: AtomicI64,
    /// On a large file system that was clean: those made since the mount.
    directories: AtomicI64,
    /// Groups with clusters that were freed by transactions that are not committed.
    waiting: Mutex<Vec<(Tid, GroupIndex)>>,
    /// Groups that the running transaction changed.
    dirty: Mutex<Vec<GroupIndex>>,
    /// Groups in memory, the one loaded first in front.
    loaded: Mutex<VecDeque<GroupIndex>>,
    loaded_count: AtomicU32,
    loaded_max: u32,
    reports: Mutex<Vec<FsError>>,
    encoded: AtomicU64,
    tally: Tally,
    streams: Streams,
    index: Index,
    /// Searches use the index.
    optimized: AtomicBool,
}

impl Allocator {
    /// The allocator of a volume. Nothing but totals is looked at: those of the superblock when
    /// they can be trusted (`is_clean`) and there are many groups, else those of all descriptors.
    /// Descriptors that make no sense count as full.
    ///
    /// # Errors
    ///
    /// Device errors.
    pub(crate) fn open(volume: &Volume, is_clean: bool) -> Result<Allocator> {
        let superblock = volume.superblock();
        let count = superblock.group_count;
        let groups_per_flex = superblock.groups_per_flex().clamp(1, count.max(1));
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
        // Three bitmaps for a group. At least a few groups, whatever their size.
        let loaded_max = (BITMAP_BYTES_MAX / volume.block_size().len() / 3).max(64);
        Ok(Allocator {
            cells: Sparse::new(count, Cell::new),
            flexes: Sparse::new(count.div_ceil(groups_per_flex), |_| OnceLock::new()),
            group_count: count,
            groups_per_flex,
            cluster_bits: superblock.cluster_bits(),
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

    /// What was freed is to be discarded. Before the first change.
    pub(crate) fn discard(&mut self, discard: bool) {
        self.spent.keep(discard);
    }

    /// What was freed and is to be discarded.
    pub(crate) fn spent(&self) -> &Spent {
        &self.spent
    }

    /// Free clusters on the device: those that wait for a commit, are promised or pinned included.
    pub(crate) fn free_clusters(&self) -> u64 {
        self.space.free()
    }

    /// Free inodes.
    pub(crate) fn free_inodes(&self) -> u32 {
        u32::try_from(self.free_inodes.load(Ordering::Relaxed).max(0)).unwrap_or(u32::MAX)
    }

    /// Clusters that were freed by transactions not yet committed: an operation that found no room
    /// may find some after a commit.
    pub(crate) fn free_pending(&self) -> u64 {
        self.space.pending()
    }

    /// How many times a group was encoded.
    pub(crate) fn groups_encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Whether searches for as much as is wanted pass over groups that do not have it without a look at each.
    pub(crate) fn set_optimized(&self, optimized: bool) {
        self.optimized.store(optimized, Ordering::Relaxed);
    }

    /// How blocks were found.
    pub(crate) fn stats(&self) -> AllocatorStats {
        self.tally.stats()
    }

    /// Damage that was found and worked around, to be recorded with the next transaction.
    pub(crate) fn note_damage(&self, error: FsError) {
        let mut reports = self.reports.lock();
        if reports.len() < REPORTS_MAX {
            reports.push(error);
        }
    }

    /// Damage that was found and worked around since the last call (B5).
    pub(crate) fn take_reports(&self) -> Vec<FsError> {
        std::mem::take(&mut *self.reports.lock())
    }

    /// The descriptor of a group as it is now; its checksums are those of the last encoding.
    pub(crate) fn group(&self, volume: &Volume, group: GroupIndex) -> Result<GroupDescriptor> {
        Ok(self.lock(volume, group)?.state()?.descriptor)
    }

    /// Brings every changed group into its blocks. No handle is open.
    ///
    /// # Errors
    ///
    /// Device errors and damage: the transaction must not be committed.
    pub(crate) fn encode(&self, volume: &Volume) -> Result<()> {
        let dirty = std::mem::take(&mut *self.dirty.lock());
        for group in dirty {
            self.encoded.fetch_add(1, Ordering::Relaxed);
            self.lock(volume, group)?.state()?.encode(volume)?;
        }
        Ok(())
    }

    /// Transaction `tid` is durable: what it and those before it freed can be given away (B1).
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
            // Loaded, because it is not clean; else it has nothing to give back.
            let Ok(mut locked) = self.lock(volume, group) else { continue };
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

/// Groups in memory.
impl Allocator {
    fn cell(&self, group: GroupIndex) -> Result<&Cell> {
        self.cells.get(group.0).ok_or_else(no_group)
    }

    /// The flexible group with number `at`.
    fn flex_at(&self, volume: &Volume, at: u32) -> Result<&Flex> {
        let cell = self.flexes.get(at).ok_or_else(no_group)?;
        let (first, len) = (at.saturating_mul(self.groups_per_flex), self.groups_per_flex);
        Ok(cell.get_or_init(|| Flex::load(volume, first, len)))
    }

    /// The flexible group of `group`.
    fn flex(&self, volume: &Volume, group: GroupIndex) -> Result<&Flex> {
        self.flex_at(volume, group.0 / self.groups_per_flex)
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
            None => {
                self.tally.add(Counter::Busy, 1);
                Ok(None)
            }
        }
    }

    fn load_locked<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        cell: &'a Cell,
        mut guard: MutexGuard<'a, Option<Box<GroupState>>>,
    ) -> Result<Locked<'a>> {
        let flex = self.flex(volume, group)?; // F1
        if guard.is_none() {
            let both = Half::Blocks as u8 | Half::Inodes as u8;
            let loaded = GroupState::load(volume, group);
            let state = loaded.map_err(|error| self.report(cell, both, error))?;
            cell.note(&state);
            *guard = Some(Box::new(state));
            self.loaded.lock().push_back(group);
            self.loaded_count.fetch_add(1, Ordering::Relaxed);
        }
        Ok(self.locked(cell, flex, guard))
    }

    fn locked<'a>(
        &'a self,
        cell: &'a Cell,
        flex: &'a Flex,
        guard: MutexGuard<'a, Option<Box<GroupState>>>,
    ) -> Locked<'a> {
        let before = guard.as_ref().map_or(0, |state| state.in_windows());
        Locked { cell, flex, index: &self.index, in_windows: (&self.in_windows, before), guard }
    }

    /// Drops a few clean groups while too many are loaded: those loaded first, unless they are
    /// needed. Waits for nobody.
    fn make_room(&self) {
        for _ in 0..8 {
            if self.loaded_count.load(Ordering::Relaxed) <= self.loaded_max {
                return;
            }
            let Some(group) = self.loaded.lock().pop_front() else { return };
            let Ok(cell) = self.cell(group) else { return };
            if let Some(mut guard) = cell.state.try_lock()
                && guard.as_ref().is_none_or(|state| state.is_clean())
            {
                let in_windows = guard.as_ref().map_or(0, |state| state.in_windows());
                *guard = None;
                if in_windows > 0 {
                    cell.forget_windows();
                    self.index.record(group.0, cell.longest_known());
                    self.in_windows.fetch_sub(i64::from(in_windows), Ordering::Relaxed);
                }
                self.loaded_count.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            self.loaded.lock().push_back(group);
        }
    }

    /// The clusters of a locked group, loaded if need be.
    fn blocks_of<'s>(
        &self,
        volume: &Volume,
        cell: &Cell,
        state: &'s mut GroupState,
    ) -> Result<&'s mut Blocks> {
        if state.blocks.is_none() {
            let own = flex::own_clusters(volume, state.index);
            let loaded = state.load_blocks(volume, own);
            state.blocks =
                Some(loaded.map_err(|error| self.report(cell, Half::Blocks as u8, error))?);
        }
        let missing = || group::damaged(state.index, "the block bitmap is not loaded");
        state.blocks.as_mut().ok_or_else(missing)
    }

    /// The inodes of a locked group, loaded if need be.
    fn inodes_of<'s>(
        &self,
        volume: &Volume,
        cell: &Cell,
        state: &'s mut GroupState,
    ) -> Result<&'s mut Inodes> {
        if state.inodes.is_none() {
            let loaded = state.load_inodes(volume);
            state.inodes =
                Some(loaded.map_err(|error| self.report(cell, Half::Inodes as u8, error))?);
        }
        let missing = || group::damaged(state.index, "the inode bitmap is not loaded");
        state.inodes.as_mut().ok_or_else(missing)
    }

    /// Closes `halves` of a group if `error`, met in loading them, is damage; returns `error`.
    fn report(&self, cell: &Cell, halves: u8, error: FsError) -> FsError {
        if error.family() == Family::Damage {
            let before = cell.bad.fetch_or(halves, Ordering::Relaxed);
            if halves & !before & Half::Blocks as u8 != 0 {
                let lost = cell.free_clusters.load(Ordering::Relaxed);
                self.space.lose(if lost == u32::MAX { 0 } else { lost });
            }
            let mut reports = self.reports.lock();
            if before & halves == 0 && reports.len() < REPORTS_MAX {
                reports.push(copy_of(&error));
            }
        }
        error
    }

    /// Notes that the transaction will change half of a locked group: claims the blocks that
    /// encoding it will fill, once per transaction (B6).
    fn touch(&self, txn: &mut Editor<'_>, state: &mut GroupState, half: Half) -> Result<()> {
        let volume = txn.volume();
        if state.dirty.descriptor.is_none() {
            let at = volume.descriptor_place(state.index)?;
            let slot = volume.slot(at);
            slot.get(|| volume.load_block(at))?;
            txn.claim_slot(&slot)?;
            state.dirty.descriptor = Some(slot);
            self.dirty.lock().push(state.index);
        }
        let (place, at) = match half {
            Half::Blocks => (&mut state.dirty.blocks, state.descriptor.block_bitmap),
            Half::Inodes => (&mut state.dirty.inodes, state.descriptor.inode_bitmap),
        };
        if place.is_none() {
            let slot = volume.slot(at);
            txn.claim_slot(&slot)?;
            *place = Some(slot);
        }
        Ok(())
    }
}

fn no_group() -> FsError {
    FsError::InvalidArgument { what: "group: past the last group" }
}

/// The same damage once more: one for the caller, one for the record.
fn copy_of(error: &FsError) -> FsError {
    let FsError::Corrupt { structure, ino, block, fault } = error else {
        return FsError::corrupt(
            "block group",
            None,
            None,
            Fault::Decode(error.to_string().into()),
        );
    };
    let fault = match fault {
        Fault::Checksum { stored, computed } => {
            Fault::Checksum { stored: *stored, computed: *computed }
        }
        Fault::Field { rule, value, limit } => Fault::Field { rule, value: *value, limit: *limit },
        Fault::Rule(rule) => Fault::Rule(rule),
        Fault::Zone { file_block, zone } => Fault::Zone { file_block: *file_block, zone: *zone },
        Fault::Decode(source) => Fault::Decode(source.to_string().into()),
    };
    FsError::corrupt(structure, *ino, *block, fault)
}

/// A locked group that is loaded.
struct Locked<'a> {
    cell: &'a Cell,
    flex: &'a Flex,
    index: &'a Index,
    /// Clusters in windows of all groups, and how many were in this one's when it was locked.
    in_windows: (&'a AtomicI64, u32),
    guard: MutexGuard<'a, Option<Box<GroupState>>>,
}

impl<'a> Locked<'a> {
    fn state(&mut self) -> Result<&mut GroupState> {
        Ok(self.parts()?.1)
    }

    /// What belongs to the group besides its state, and the state.
    fn parts(&mut self) -> Result<((&'a Cell, &'a Flex), &mut GroupState)> {
        let gone = || FsError::InvalidArgument { what: "group: not loaded" };
        Ok(((self.cell, self.flex), self.guard.as_deref_mut().ok_or_else(gone)?))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.guard.as_deref() {
            self.cell.note(state);
            self.index.record(state.index.0, self.cell.longest_known());
            let (all, before) = self.in_windows;
            let change = i64::from(state.in_windows()) - i64::from(before);
            if change != 0 {
                all.fetch_add(change, Ordering::Relaxed);
            }
        }
    }
}

/// The block before which all blocks of an inode lie: pointers outside extents have 32 bits (P61).
pub(crate) fn blocks_end(node: &Node) -> u64 {
    let extents = node.with(|data| data.record.flags.contains(InodeFlags::EXTENTS));
    if extents { u64::MAX } else { 1 << 32 }
}
