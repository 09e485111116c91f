//! Pins: blocks that are taken in memory and free on the device.
//!
//! Writeback knows where data goes before the data is written, and tells the device's bitmap
//! afterwards: a crash in between leaves nothing behind. The table of what counts when is in
//! [`promise`](super::promise).
//!
//! # Rules
//!
//! - N1. Pins are made under promises: pinned blocks were promised before, and stay so until they
//!   are taken.
//! - N2. A pinned cluster is set in `taken` and clear in `stored`, so that nobody finds it; its
//!   group stays in memory.
//! - N3. Each pinned run is taken or unpinned, once, by whoever pinned it: at once or in parts of
//!   whole clusters.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupFlags;

use super::blocks::{Pinning, Taker, check_clusters, each_group};
use super::{Allocator, BlockAsk, Growth, Half, Run};
use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};
use crate::node::Node;
use crate::volume::Volume;

/// Parts of a group where files may begin.
const COLOURS: u32 = 16;

/// Requests of so many clusters do not settle behind another file's end, where both would be in
/// each other's way; shorter ones fill gaps.
const SPREAD_MIN: u32 = 16;

impl Allocator {
    /// Takes contiguous blocks in memory for promised data of `node`, near `ask.goal`: `ask.len`,
    /// up to a whole group, in one piece if there is one near; else the longest piece found, of at
    /// least `ask.min`. With clusters, whole ones. No transaction, no journal; one group is locked
    /// at a time.
    ///
    /// The length is that of the whole range to be written, not of one piece: files that grow side
    /// by side stay apart by it. `growth` says how the file will likely go on: the end of one that has more
    /// stays apart from others however short the range is, and gets a [window](super::window), or files that
    /// are appended to in turns would get one piece each, in turns.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: more than is promised, or nothing of `ask.min` in one piece; see
    /// [`Self::worth_a_commit`]. Damage and device errors of groups, when no other group has room.
    pub(crate) fn pin(
        &self,
        volume: &Volume,
        node: &Node,
        ask: &BlockAsk,
        growth: Growth,
    ) -> Result<Run> {
        let file = node.file_in_use().filter(|_| growth.ahead > 0);
        let own = file.and_then(|file| file.window.lock().take());
        let mut taker = Taker::Pin(Pinning { ino: node.ino(), growth, own, window: None });
        let run = self.hunt(volume, ask, super::blocks_end(node), &mut taker);
        let Taker::Pin(Pinning { own, window, .. }) = taker else { return run };
        if let Some(own) = own {
            // Its group was not looked at.
            self.close_window(node.ino(), &own);
        }
        self.keep_window(node, window);
        run
    }

    /// Gives pinned blocks back; the promise stays.
    pub(crate) fn unpin(&self, volume: &Volume, run: Run) {
        // Groups with pins are loaded, so there is nothing to fail.
        let done = check_clusters(volume, run).and_then(|()| {
            each_group(volume, run, |group, range| {
                let mut locked = self.lock(volume, group)?;
                let (place, state) = locked.parts()?;
                let blocks = self.blocks_of(volume, place.0, state)?;
                blocks.check_pinned(&range).map_err(|rule| not_pinned(rule, run))?;
                blocks.unpin(range.clone());
                place.0.forget_longest();
                drop(locked);
                self.returns.fetch_add(1, Ordering::AcqRel); // S4
                self.space.unpin(range.end - range.start);
                Ok(())
            })
        });
        debug_assert!(done.is_ok(), "{done:?}");
    }

    /// Where the first block of an inode would best be: one of a few places in its group, so that
    /// files that grow at the same time do not grow into each other.
    pub(crate) fn first_goal(&self, volume: &Volume, ino: Ino) -> Result<FsBlock> {
        let first = volume.goal_of(ino)?;
        let superblock = volume.superblock();
        let Some((group, _)) = superblock.group_of_block(first) else { return Ok(first) };
        Ok(coloured(volume, ino, first, group))
    }
}

/// The place of an inode among a few behind block `first` of a group.
pub(super) fn coloured(volume: &Volume, ino: Ino, first: FsBlock, group: GroupIndex) -> FsBlock {
    let superblock = volume.superblock();
    let step = superblock.group_blocks(group) / COLOURS;
    let ratio = superblock.cluster_ratio().max(1);
    let into = mixed(ino.0) % COLOURS * step;
    FsBlock(first.0.saturating_add(u64::from(into - into % ratio)))
}

/// A number that looks like chance.
fn mixed(seed: u32) -> u32 {
    let hash = (seed ^ (seed >> 16)).wrapping_mul(0x9e37_79b1);
    (hash ^ (hash >> 15)).wrapping_mul(0x85eb_ca6b) >> 8
}

impl Allocator {
    /// Whether the blocks of a run are all pinned.
    ///
    /// # Errors
    ///
    /// One that names the run, if they are not; device errors and damage.
    pub(crate) fn check_pinned(&self, volume: &Volume, run: Run) -> Result<()> {
        check_clusters(volume, run)?;
        each_group(volume, run, |group, range| {
            let mut locked = self.lock(volume, group)?;
            let (place, state) = locked.parts()?;
            let blocks = self.blocks_of(volume, place.0, state)?;
            blocks.check_pinned(&range).map_err(|rule| not_pinned(rule, run))
        })
    }

    /// Takes pinned blocks on the device, instead of so many promised clusters. From then on blocks for metadata
    /// may come out of the pool, in this handle.
    ///
    /// # Errors
    ///
    /// Device errors and damage, half-way.
    pub(crate) fn take_pinned(
        &self,
        txn: &mut Editor<'_>,
        run: Run,
        promised_clusters: u64,
    ) -> Result<()> {
        let volume = txn.volume();
        txn.publishes();
        let mut taken = 0;
        each_group(volume, run, |group, range| {
            let mut locked = self.lock(volume, group)?;
            let (place, state) = locked.parts()?;
            self.touch(txn, state, Half::Blocks)?;
            self.blocks_of(volume, place.0, state)?.take_pinned(range.clone());
            let count = range.end - range.start;
            let descriptor = &mut state.descriptor;
            descriptor.free_clusters = descriptor.free_clusters.saturating_sub(count);
            descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
            place.1.clusters.fetch_sub(i64::from(count), Ordering::Relaxed);
            self.space.take_pinned(count);
            taken += count;
            Ok(())
        })?;
        self.settle_promises(promised_clusters, taken);
        Ok(())
    }
}

fn not_pinned(rule: &'static str, run: Run) -> FsError {
    let (value, limit) = (run.start.0, u64::from(run.len));
    FsError::corrupt("pinned blocks", None, run.start, Fault::Field { rule, value, limit })
}

impl super::group::Blocks {
    /// Where to look for `len` clusters that would best be at `goal`.
    pub(super) fn start_of(&self, (ino, grows): (Ino, bool), goal: u32, len: u32) -> u32 {
        if (len < SPREAD_MIN && !grows) || self.is_open(goal) {
            return goal;
        }
        // A part of the group with at least its share of what is free; there is one.
        let (group, room) = (self.len(), self.room_for(super::window::Look::Open));
        let chance = mixed(ino.0 ^ goal.rotate_left(16));
        let (first, step) = (chance % COLOURS, (chance / COLOURS) | 1);
        let part = |at: u32| group / COLOURS * at..group / COLOURS * (at + 1);
        let parts =
            (0..COLOURS).map(|at| part(first.wrapping_add(at.wrapping_mul(step)) % COLOURS));
        let mut roomy = parts.filter(|part| self.count_open(part.clone()) >= room / COLOURS);
        roomy.next().map_or(goal, |part| part.start)
    }

    /// Pins clusters that [`find`](Self::find) found.
    pub(super) fn pin(&mut self, range: Range<u32>) {
        self.pinned += range.end - range.start;
        self.hide(range);
    }

    /// What is wrong with the claim that these clusters are pinned.
    pub(super) fn check_pinned(&self, range: &Range<u32>) -> Result<(), &'static str> {
        match self.count_pinned(range.clone()) == range.end.saturating_sub(range.start) {
            true => Ok(()),
            false => Err("blocks that are not pinned (first one and length follow)"),
        }
    }

    pub(super) fn unpin(&mut self, range: Range<u32>) {
        self.pinned = self.pinned.saturating_sub(range.end - range.start);
        self.show(range);
    }

    pub(super) fn take_pinned(&mut self, range: Range<u32>) {
        self.pinned = self.pinned.saturating_sub(range.end - range.start);
        self.store(range);
    }
}
