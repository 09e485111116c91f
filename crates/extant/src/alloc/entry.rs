//! Entering a group: its lock, with everything in memory that is needed under it.
//!
//! # Shape
//!
//! A thread locks the group and looks what is missing of what it needs ([`Needs`]). If anything is,
//! it lets the lock go, reads and reserves it, and locks again. Usually nothing is missing.
//!
//! # Rules
//!
//! - L1. Under the lock of a group a thread waits for neither the device nor the journal, nor for a
//!   lock that is held over such a wait. So whoever waits for a group waits for memory operations
//!   only. Debug builds check it: a [`Guard`] opens a scope of [`no_waiting`].
//! - L2. What was read without the lock is used only if the group was not loaded and dropped again
//!   meanwhile ([`Cell::departures`]): the stored bitmap may be another one then (P60). Damage that
//!   was found without the lock counts on the same condition.
//! - L3. The blocks that a change claims are in memory and have space on the device before the lock
//!   is taken. Claiming them under it costs a leaf lock, and only what is changed is claimed.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::{GroupDescriptor, GroupFlags};
use extant_sync::{MutexGuard, NoWaiting, no_waiting};

use super::flex::{self, Flex};
use super::group::{self, Blocks, Dirty, GroupState, Inodes};
use super::index::Index;
use super::stats::Counter;
use super::{Allocator, Cell, Half, REPORTS_MAX};
use crate::editor::Editor;
use crate::error::{Family, Fault, FsError, Result};
use crate::slot::Slot;
use crate::volume::Volume;

/// What a thread needs of a group under its lock, besides the descriptor.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Needs {
    blocks: bool,
    /// The block bitmap is not needed if fewer clusters are free.
    room: u32,
    inodes: bool,
    /// The halves that a transaction will change, a bit set of [`Half`].
    changes: u8,
    /// Space on the device for the blocks that taking clusters changes later.
    keeps: bool,
    /// An inode will be made, if there is one.
    makes_inode: bool,
}

impl Needs {
    /// The descriptor only.
    pub(super) const DESCRIPTOR: Needs = Needs {
        blocks: false,
        room: 0,
        inodes: false,
        changes: 0,
        keeps: false,
        makes_inode: false,
    };
    /// The clusters.
    pub(super) const BLOCKS: Needs = Needs { blocks: true, ..Needs::DESCRIPTOR };
    /// The clusters, to be changed by a transaction.
    pub(super) const CHANGED_BLOCKS: Needs = Needs { changes: Half::Blocks as u8, ..Needs::BLOCKS };
    /// The clusters, to be taken in memory.
    pub(super) const PINNED_BLOCKS: Needs = Needs { keeps: true, ..Needs::BLOCKS };
    /// The inodes.
    pub(super) const INODES: Needs = Needs { inodes: true, ..Needs::DESCRIPTOR };
    /// The inodes, to be changed by a transaction.
    pub(super) const CHANGED_INODES: Needs = Needs { changes: Half::Inodes as u8, ..Needs::INODES };
    /// What taking an inode changes, if one is free: also the clusters, if nothing of the group was
    /// used before.
    pub(super) const NEW_INODE: Needs = Needs { makes_inode: true, ..Needs::DESCRIPTOR };

    /// Both bitmaps.
    #[cfg(test)]
    pub(super) const ALL: Needs = Needs { inodes: true, ..Needs::BLOCKS };

    /// Leaves the block bitmap where it is if fewer than `room` clusters are free.
    pub(super) fn with_room(self, room: u32) -> Needs {
        Needs { room, ..self }
    }

    /// Returns what is missing in a group. The caller holds its lock, or owns the state.
    fn missing(self, volume: &Volume, cell: &Cell, state: &GroupState) -> Missing {
        let mut needs = self;
        if needs.makes_inode && state.descriptor.free_inodes > 0 {
            needs = Needs { makes_inode: true, ..Needs::CHANGED_INODES };
            let is_new = state.descriptor.flags.contains(GroupFlags::BLOCK_UNINIT);
            if is_new && volume.has_uninit_groups() {
                needs.blocks = true;
                needs.changes |= Half::Blocks as u8;
            }
        }
        let is_ready = |half: Half| state.is_claimed(half) || state.ready.has(half);
        let halves = [Half::Blocks, Half::Inodes].into_iter();
        let changes = halves.filter(|half| needs.changes & *half as u8 != 0 && !is_ready(*half));
        Missing {
            blocks: needs.blocks && state.blocks.is_none() && state.room() >= needs.room,
            inodes: needs.inodes && state.inodes.is_none(),
            changes: changes.fold(0, |all, half| all | half as u8),
            keeps: needs.keeps && !cell.has_room.load(Ordering::Acquire),
        }
    }
}

/// What has to be read or reserved before a group is locked again.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Missing {
    blocks: bool,
    inodes: bool,
    changes: u8,
    keeps: bool,
}

/// What was read of a group without its lock.
#[derive(Default)]
pub(super) struct Brought {
    /// [`Cell::departures`] before it was read.
    departures: u32,
    state: Option<GroupState>,
    blocks: Option<Blocks>,
    inodes: Option<Inodes>,
    ready: Dirty,
}

/// An error met in reading, and the halves that are damaged if it is damage.
pub(super) type Failure = (u8, FsError);

/// The lock of a group. While it is held, the thread may not wait (L1).
pub(super) struct Guard<'a> {
    state: MutexGuard<'a, Option<Box<GroupState>>>,
    _scope: NoWaiting,
}

impl Deref for Guard<'_> {
    type Target = Option<Box<GroupState>>;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl DerefMut for Guard<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.state
    }
}

impl Cell {
    pub(super) fn lock(&self) -> Guard<'_> {
        let state = self.state.lock();
        Guard { state, _scope: no_waiting() }
    }

    pub(super) fn try_lock(&self) -> Option<Guard<'_>> {
        let state = self.state.try_lock()?;
        Some(Guard { state, _scope: no_waiting() })
    }

    /// Drops a clean group from memory.
    pub(super) fn unload(&self, guard: &mut Guard<'_>) {
        **guard = None;
        self.departures.fetch_add(1, Ordering::Relaxed); // L2
    }
}

/// A locked group that is loaded.
pub(super) struct Locked<'a> {
    pub(super) cell: &'a Cell,
    pub(super) flex: &'a Flex,
    index: &'a Index,
    /// Total of the clusters in windows, and this group's share when it was locked.
    in_windows: (&'a AtomicI64, u32),
    pub(super) guard: Guard<'a>,
}

impl<'a> Locked<'a> {
    pub(super) fn state(&mut self) -> Result<&mut GroupState> {
        Ok(self.parts()?.1)
    }

    /// Returns the group's cell and flexible group, and its state.
    pub(super) fn parts(&mut self) -> Result<((&'a Cell, &'a Flex), &mut GroupState)> {
        let gone = || FsError::InvalidArgument { what: "group: not loaded" };
        Ok(((self.cell, self.flex), self.guard.as_deref_mut().ok_or_else(gone)?))
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if let Some(state) = self.guard.as_deref_mut() {
            if state.ready.descriptor.is_some() {
                state.ready = Dirty::default();
            }
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

impl Allocator {
    pub(super) fn cell(&self, group: GroupIndex) -> Result<&Cell> {
        self.cells.get(group.0).ok_or_else(no_group)
    }

    /// Returns the flexible group with number `at`.
    pub(super) fn flex_at(&self, volume: &Volume, at: u32) -> Result<&Flex> {
        let cell = self.flexes.get(at).ok_or_else(no_group)?;
        let (first, len) = (at.saturating_mul(self.groups_per_flex), self.groups_per_flex);
        Ok(cell.get_or_init(|| Flex::load(volume, first, len)))
    }

    /// Returns the flexible group of `group`.
    pub(super) fn flex(&self, volume: &Volume, group: GroupIndex) -> Result<&Flex> {
        self.flex_at(volume, group.0 / self.groups_per_flex)
    }

    /// Waits for the lock of a group, and returns the group with what `needs` names in memory.
    ///
    /// # Errors
    ///
    /// Damage, which is reported, and device errors; the group stays as it is.
    pub(super) fn enter<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
    ) -> Result<Locked<'a>> {
        let entered = self.enter_if(volume, group, needs, true)?;
        entered.ok_or_else(|| group::damaged(group, "a group that was waited for is busy"))
    }

    /// Enters a group like [`enter`](Self::enter). Without `waits`, returns `None` if another
    /// thread has its lock or reads its bitmap.
    pub(super) fn enter_if<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
        waits: bool,
    ) -> Result<Option<Locked<'a>>> {
        self.enter_with_brought(volume, group, needs, waits, None)
    }

    fn enter_with_brought<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
        waits: bool,
        mut brought: Option<Box<Brought>>,
    ) -> Result<Option<Locked<'a>>> {
        let cell = self.cell(group)?;
        // This comes before the lock, because it looks at other groups.
        self.make_room();
        let flex = self.flex(volume, group)?; // F1
        // A repetition means that other threads loaded the group and dropped it meanwhile.
        loop {
            let Some(guard) = self.guard(cell, waits) else { return Ok(None) };
            let mut locked = self.locked(cell, flex, guard);
            let missing = self.install(volume, group, needs, &mut locked, brought);
            if missing == Some(Missing::default()) {
                return Ok(Some(locked));
            }
            let departures = cell.departures.load(Ordering::Relaxed);
            let known = locked.guard.as_deref().map(|state| state.descriptor).zip(missing);
            drop(locked);
            brought = match self.bring(volume, group, cell, needs, known, waits) {
                Ok(Some(brought)) => Some(Box::new(Brought { departures, ..brought })),
                Ok(None) => {
                    self.tally.add(Counter::Busy, 1);
                    return Ok(None);
                }
                Err(failure) => {
                    let Some(guard) = self.guard(cell, waits) else { return Ok(None) };
                    match self.blame(cell, &guard, departures, failure) {
                        Some(error) => return Err(error),
                        None => None,
                    }
                }
            };
        }
    }

    /// Returns the error that was met in reading a group without its lock, and reports damage;
    /// `None` if others have or had the group meanwhile, so that the damage may be none (L2). The
    /// caller holds the group's lock.
    pub(super) fn blame(
        &self,
        cell: &Cell,
        guard: &Guard<'_>,
        departures: u32,
        (halves, error): Failure,
    ) -> Option<FsError> {
        if error.family() != Family::Damage || halves == 0 {
            return Some(error);
        }
        let is_there = guard.as_deref().is_some_and(|state| {
            (halves & Half::Blocks as u8 != 0 && state.blocks.is_some())
                || (halves & Half::Inodes as u8 != 0 && state.inodes.is_some())
        });
        if is_there || cell.departures.load(Ordering::Relaxed) != departures {
            return None;
        }
        Some(self.report(cell, halves, error))
    }

    /// Reads what is missing of a group, as [`enter`](Self::enter) does before it locks the group.
    #[cfg(test)]
    pub(super) fn bring_early(
        &self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
    ) -> Result<Brought> {
        let cell = self.cell(group)?;
        let departures = cell.departures.load(Ordering::Relaxed);
        let brought =
            self.bring(volume, group, cell, needs, None, true).map_err(|failure| failure.1)?;
        Ok(Brought { departures, ..brought.unwrap_or_default() })
    }

    /// Reads the clusters of a group whose descriptor was read earlier.
    #[cfg(test)]
    pub(super) fn bring_blocks(
        &self,
        volume: &Volume,
        group: GroupIndex,
        descriptor: GroupDescriptor,
    ) -> Result<Option<Brought>, Failure> {
        let cell = self.cell(group).map_err(|error| (0, error))?;
        let missing = Missing { blocks: true, ..Missing::default() };
        self.bring(volume, group, cell, Needs::BLOCKS, Some((descriptor, missing)), true)
    }

    /// Enters a group with what was read earlier.
    #[cfg(test)]
    pub(super) fn enter_with<'a>(
        &'a self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
        brought: Brought,
    ) -> Result<Locked<'a>> {
        let entered =
            self.enter_with_brought(volume, group, needs, true, Some(Box::new(brought)))?;
        entered.ok_or_else(|| group::damaged(group, "busy"))
    }

    fn guard<'a>(&self, cell: &'a Cell, waits: bool) -> Option<Guard<'a>> {
        if waits {
            return Some(cell.lock());
        }
        let guard = cell.try_lock();
        if guard.is_none() {
            self.tally.add(Counter::Busy, 1);
        }
        guard
    }

    /// Puts what was brought into a locked group, if it is still good (L2). Returns what is missing
    /// then, `None` if the group is not loaded.
    fn install(
        &self,
        volume: &Volume,
        group: GroupIndex,
        needs: Needs,
        locked: &mut Locked<'_>,
        brought: Option<Box<Brought>>,
    ) -> Option<Missing> {
        let cell = locked.cell;
        if let Some(brought) = brought {
            let Brought { departures, state, blocks, inodes, ready } = *brought;
            let is_good = departures == cell.departures.load(Ordering::Relaxed);
            if locked.guard.is_none()
                && let Some(state) = state.filter(|_| is_good)
            {
                cell.note(&state);
                *locked.guard = Some(Box::new(state));
                self.loaded.lock().push_back(group);
                self.loaded_count.fetch_add(1, Ordering::Relaxed);
            }
            let state = locked.guard.as_deref_mut()?;
            if is_good {
                state.blocks = state.blocks.take().or(blocks);
                state.inodes = state.inodes.take().or(inodes);
            }
            state.ready = ready;
        }
        let state = locked.guard.as_deref()?;
        Some(needs.missing(volume, cell, state))
    }

    /// Reads and reserves what is missing of a group. `known` is its descriptor, and what is missing,
    /// if it is loaded. Returns `None` if `waits` is not set and another thread reads the same.
    fn bring(
        &self,
        volume: &Volume,
        group: GroupIndex,
        cell: &Cell,
        needs: Needs,
        known: Option<(GroupDescriptor, Missing)>,
        waits: bool,
    ) -> Result<Option<Brought>, Failure> {
        const BOTH: u8 = Half::Blocks as u8 | Half::Inodes as u8;
        let mut brought = Brought::default();
        let (loaded, missing) = match known {
            Some((descriptor, missing)) => (GroupState::of(group, descriptor), missing),
            None => {
                let loaded = GroupState::load(volume, group).map_err(|error| (BOTH, error))?;
                let missing = needs.missing(volume, cell, &loaded);
                (loaded, missing)
            }
        };
        if missing.blocks {
            let own = flex::own_clusters(volume, group);
            let blocks = loaded.load_blocks(volume, own, waits);
            match blocks.map_err(|error| (Half::Blocks as u8, error))? {
                Some(blocks) => brought.blocks = Some(blocks),
                None => return Ok(None),
            }
        }
        if missing.inodes {
            let inodes = loaded.load_inodes(volume);
            brought.inodes = Some(inodes.map_err(|error| (Half::Inodes as u8, error))?);
        }
        let ready = self.make_ready(volume, cell, &loaded.descriptor, group, missing);
        brought.ready = ready.map_err(|error| (0, error))?;
        brought.state = known.is_none().then_some(loaded);
        Ok(Some(brought))
    }

    fn make_ready(
        &self,
        volume: &Volume,
        cell: &Cell,
        descriptor: &GroupDescriptor,
        group: GroupIndex,
        missing: Missing,
    ) -> Result<Dirty> {
        let mut ready = Dirty::default();
        if missing.keeps {
            volume.allocate_on_device(volume.descriptor_place(group)?, 1)?;
            volume.allocate_on_device(descriptor.block_bitmap, 1)?;
            cell.has_room.store(true, Ordering::Release);
        }
        if missing.changes != 0 {
            ready.descriptor = Some(described(volume, group)?);
        }
        if missing.changes & Half::Blocks as u8 != 0 {
            ready.blocks = Some(with_space(volume, descriptor.block_bitmap)?);
            cell.has_room.store(true, Ordering::Release);
        }
        if missing.changes & Half::Inodes as u8 != 0 {
            ready.inodes = Some(with_space(volume, descriptor.inode_bitmap)?);
        }
        Ok(ready)
    }

    /// Prepares the change of clusters of a group whose block bitmap is `bitmap`, without its lock.
    pub(super) fn ready_blocks(
        &self,
        volume: &Volume,
        group: GroupIndex,
        bitmap: FsBlock,
    ) -> Result<Dirty> {
        let (descriptor, blocks) = (described(volume, group)?, with_space(volume, bitmap)?);
        Ok(Dirty { descriptor: Some(descriptor), blocks: Some(blocks), inodes: None })
    }

    pub(super) fn locked<'a>(
        &'a self,
        cell: &'a Cell,
        flex: &'a Flex,
        guard: Guard<'a>,
    ) -> Locked<'a> {
        let before = guard.as_ref().map_or(0, |state| state.in_windows());
        Locked { cell, flex, index: &self.index, in_windows: (&self.in_windows, before), guard }
    }

    /// Drops up to eight clean groups while too many are loaded, oldest first. Never waits for a
    /// lock.
    fn make_room(&self) {
        for _ in 0..8 {
            if self.loaded_count.load(Ordering::Relaxed) <= self.loaded_max {
                return;
            }
            let Some(group) = self.loaded.lock().pop_front() else { return };
            let Ok(cell) = self.cell(group) else { return };
            if let Some(mut guard) = cell.try_lock()
                && guard.as_ref().is_none_or(|state| state.is_clean())
            {
                let in_windows = guard.as_ref().map_or(0, |state| state.in_windows());
                cell.unload(&mut guard);
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

    /// Marks `halves` of a group as bad if `error`, met in loading them, is damage; returns
    /// `error`.
    pub(super) fn report(&self, cell: &Cell, halves: u8, error: FsError) -> FsError {
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

    /// Notes that the transaction will change half of a group that was entered for that: claims the
    /// blocks that encoding it will fill, once per transaction (B6).
    pub(super) fn touch(
        &self,
        txn: &mut Editor<'_>,
        state: &mut GroupState,
        half: Half,
    ) -> Result<()> {
        let at = state.index;
        let unready = || group::damaged(at, "its blocks were not prepared for a change");
        let GroupState { ready, dirty, index, .. } = state;
        if dirty.descriptor.is_none() {
            let Some(slot) = &ready.descriptor else { return Err(unready()) };
            txn.claim_slot(slot)?;
            dirty.descriptor = Some(Arc::clone(slot));
            self.dirty.lock().push(*index);
        }
        let (place, slot) = match half {
            Half::Blocks => (&mut dirty.blocks, &ready.blocks),
            Half::Inodes => (&mut dirty.inodes, &ready.inodes),
        };
        if place.is_none() {
            let Some(slot) = slot else { return Err(unready()) };
            txn.claim_slot(slot)?;
            *place = Some(Arc::clone(slot));
        }
        Ok(())
    }
}

/// Returns the block with the descriptor of a group, in memory and with space on the device.
fn described(volume: &Volume, group: GroupIndex) -> Result<Arc<Slot>> {
    let at = volume.descriptor_place(group)?;
    let slot = with_space(volume, at)?;
    slot.get(|| volume.load_block(at))?;
    Ok(slot)
}

/// Returns the slot of a block, with space on the device.
pub(super) fn with_space(volume: &Volume, at: FsBlock) -> Result<Arc<Slot>> {
    let slot = volume.slot(at);
    slot.allocate_once(|| volume.allocate_on_device(at, 1))?;
    Ok(slot)
}

fn no_group() -> FsError {
    FsError::InvalidArgument { what: "group: past the last group" }
}

/// Copies a damage error: one for the caller, one for the record.
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
