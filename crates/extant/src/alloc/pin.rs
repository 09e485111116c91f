//! Pins: blocks that are taken in memory and free on the device.
//!
//! Writeback chooses the place of data before it writes the data, and changes the stored bitmap
//! afterwards, so a crash in between leaks nothing. The accounting is in
//! [`promise`](super::promise).
//!
//! # Rules
//!
//! - N1. Pins are made under promises: pinned blocks were promised before, and stay promised until
//!   they are taken.
//! - N2. A pinned cluster is set in `taken` and clear in `stored`, so that no search finds it; its
//!   group stays in memory.
//! - N3. Each pinned run is taken or unpinned, once, by the writeback that pinned it: at once or in
//!   parts of whole clusters.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex, Ino};
use extant_format::group::GroupFlags;

use super::blocks::{Pinning, Taker, check_clusters, each_group};
use super::entry::Needs;
use super::{Allocator, BlockAsk, Growth, Half, Run};
use crate::editor::Editor;
use crate::error::{Fault, FsError, Result};
use crate::fast::Refusal;
use crate::node::Node;
use crate::volume::Volume;

/// Number of parts of a group where files may begin.
const COLOURS: u32 = 16;

/// Shortest request, in clusters, that avoids starting directly behind another file's end, where
/// both would compete for the same space; shorter requests fill gaps.
const SPREAD_MIN: u32 = 16;

impl Allocator {
    /// Takes contiguous blocks in memory for promised data of `node`, near `ask.goal`: `ask.len`,
    /// up to a whole group, in one run if there is one near, or else the longest run found of at
    /// least `ask.min`. With `bigalloc`, whole clusters are taken. No transaction is opened; one
    /// group is locked at a time.
    ///
    /// `ask.len` is the length of the whole range to be written, not of one run, so that files that
    /// grow side by side stay apart. `growth` says how the file is expected to continue: the end of
    /// a growing file stays apart from other files however short the range is, and gets a
    /// [window](super::window). Otherwise files that are appended to in turns would be interleaved.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: more than is promised, or no run of `ask.min` blocks; see
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
            // The search did not reach the window's group.
            self.close_window(node.ino(), &own);
        }
        self.keep_window(node, window);
        run
    }

    /// Unpins blocks; their promise stays.
    pub(crate) fn unpin(&self, volume: &Volume, run: Run) {
        // Groups with pins are loaded, so loading cannot fail.
        let done = check_clusters(volume, run).and_then(|()| {
            each_group(volume, run, |group, range| {
                let mut locked = self.enter(volume, group, Needs::BLOCKS)?;
                let (place, state) = locked.parts()?;
                let blocks = state.blocks_mut()?;
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

    /// Gives pinned blocks back that nobody will need, and the promise for them.
    pub(crate) fn unpromise_pinned(&self, volume: &Volume, blocks: Range<u64>) {
        if blocks.start >= blocks.end {
            return;
        }
        let len = u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX);
        self.unpin(volume, Run { start: FsBlock(blocks.start), len });
        let ratio = volume.superblock().cluster_ratio().max(1);
        self.unpromise(u64::from(len.div_ceil(ratio)));
    }

    /// Returns the best place for the first block of an inode: one of a few places in its group, so
    /// that files that grow at the same time do not grow into each other.
    pub(crate) fn first_goal(&self, volume: &Volume, ino: Ino) -> Result<FsBlock> {
        let first = volume.goal_of(ino)?;
        let superblock = volume.superblock();
        let Some((group, _)) = superblock.group_of_block(first) else { return Ok(first) };
        Ok(coloured(volume, ino, first, group))
    }
}

/// Returns the starting place of an inode, one of [`COLOURS`] parts of the group behind block
/// `first`.
pub(super) fn coloured(volume: &Volume, ino: Ino, first: FsBlock, group: GroupIndex) -> FsBlock {
    let superblock = volume.superblock();
    let step = superblock.group_blocks(group) / COLOURS;
    let ratio = superblock.cluster_ratio().max(1);
    let into = mixed(ino.0) % COLOURS * step;
    FsBlock(first.0.saturating_add(u64::from(into - into % ratio)))
}

/// Returns a well-mixed hash of the seed.
fn mixed(seed: u32) -> u32 {
    let hash = (seed ^ (seed >> 16)).wrapping_mul(0x9e37_79b1);
    (hash ^ (hash >> 15)).wrapping_mul(0x85eb_ca6b) >> 8
}

impl Allocator {
    /// Checks that all blocks of a run are pinned.
    ///
    /// # Errors
    ///
    /// An error that names the run if a block is not pinned; device errors and damage.
    pub(crate) fn check_pinned(&self, volume: &Volume, run: Run) -> Result<()> {
        check_clusters(volume, run)?;
        each_group(volume, run, |group, range| {
            let mut locked = self.enter(volume, group, Needs::BLOCKS)?;
            let blocks = locked.state()?.blocks_mut()?;
            blocks.check_pinned(&range).map_err(|rule| not_pinned(rule, run))
        })
    }

    /// Takes pinned blocks in the stored bitmap and ends `promised_clusters` promises. From then on
    /// this handle may take blocks for metadata out of the pool.
    ///
    /// # Errors
    ///
    /// Device errors and damage; part of the run may have been taken.
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
            let mut locked = self.enter(volume, group, Needs::CHANGED_BLOCKS)?;
            let (place, state) = locked.parts()?;
            self.touch(txn, state, Half::Blocks)?;
            state.blocks_mut()?.take_pinned(range.clone());
            let count = range.end - range.start;
            let descriptor = &mut state.descriptor;
            descriptor.free_clusters = descriptor.free_clusters.saturating_sub(count);
            if descriptor.flags.contains(GroupFlags::BLOCK_UNINIT) && volume.has_uninit_groups() {
                // e2fsck would not write the bitmap that its replay makes.
                txn.refuse(Refusal::NewGroup);
            }
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
    /// Returns where to search for `len` clusters whose goal is `goal`.
    pub(super) fn start_of(&self, (ino, grows): (Ino, bool), goal: u32, len: u32) -> u32 {
        if (len < SPREAD_MIN && !grows) || self.is_open(goal) {
            return goal;
        }
        // A random part of the group that has at least its share of the free clusters; there is
        // always one.
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

    /// Checks that these clusters are pinned.
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
