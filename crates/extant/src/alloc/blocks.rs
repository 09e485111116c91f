//! Finding, taking and freeing blocks.

use std::ops::Range;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, GroupIndex};
use extant_format::group::GroupFlags;

use super::group::{Blocks, damaged};
use super::{Allocator, BlockAsk, Purpose, Run, Touch};
use crate::error::{Fault, FsError, Result};
use crate::txn::Txn;
use crate::volume::Volume;

/// How thorough a pass over the groups is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pass {
    /// As much as was wanted, from groups that nobody is at (B2).
    Whole,
    /// At least the minimum, from any group.
    Least,
}

/// One pass's wish, in clusters.
#[derive(Clone, Copy)]
struct Wish {
    goal: GroupIndex,
    goal_bit: u32,
    len: u32,
    min: u32,
}

impl Allocator {
    /// Takes contiguous blocks near the goal: `ask.len`, or fewer but at least `ask.min`.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`]: nothing has changed. Damage and device errors of the goal's group do
    /// not count while others have room.
    pub(crate) fn allocate(
        &self,
        txn: &mut Txn<'_>,
        ask: &BlockAsk,
        may_use_reserved: bool,
    ) -> Result<Run> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        let ratio = superblock.cluster_ratio();
        let bits = superblock.cluster_bits();
        let (goal, goal_block) = superblock.group_of_block(ask.goal).unwrap_or((GroupIndex(0), 0));
        let len = ask.len.div_ceil(ratio).clamp(1, superblock.clusters_per_group);
        let min = ask.min.div_ceil(ratio).clamp(1, len);
        let wish = Wish { goal, goal_bit: goal_block >> bits, len, min };
        let reserved = match may_use_reserved {
            true => 0,
            false => superblock.reserved_blocks_count >> bits,
        };
        let no_space = || FsError::NoSpace {
            what: "blocks",
            wanted: u64::from(ask.min.max(1)),
            free: self.free_clusters().saturating_sub(reserved) << bits,
        };
        if self.free_clusters() < reserved.saturating_add(u64::from(min)) {
            return Err(no_space());
        }
        let mut first_error = None;
        for pass in [Pass::Whole, Pass::Least] {
            for step in 0..superblock.group_count {
                let group = GroupIndex((wish.goal.0 + step) % superblock.group_count);
                match self.try_group(txn, volume, group, &wish, pass) {
                    Ok(Some(range)) => return run_of(volume, group, range),
                    Ok(None) => {}
                    // Other groups may do (P56).
                    Err(error @ (FsError::Corrupt { .. } | FsError::CutShort { .. })) => {
                        first_error.get_or_insert(error);
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        Err(first_error.unwrap_or_else(no_space))
    }

    fn try_group(
        &self,
        txn: &mut Txn<'_>,
        volume: &Volume,
        group: GroupIndex,
        wish: &Wish,
        pass: Pass,
    ) -> Result<Option<Range<u32>>> {
        let cell = self.cell(group)?;
        let needed = if pass == Pass::Whole { wish.len } else { wish.min };
        if cell.free_hint.load(Ordering::Relaxed) < needed {
            return Ok(None);
        }
        let mut locked = match pass {
            Pass::Whole => match self.try_lock(volume, group)? {
                Some(locked) => locked,
                None => return Ok(None),
            },
            Pass::Least => self.lock(volume, group)?,
        };
        let state = locked.state()?;
        if state.bad {
            return Ok(None);
        }
        let start = if group == wish.goal { wish.goal_bit } else { 0 };
        let Some(range) = find(state.blocks(volume)?, start, wish, needed) else {
            return Ok(None);
        };
        self.touch(txn, state, Touch::Blocks)?;
        let blocks = state.blocks(volume)?;
        blocks.stored.set_range(range.clone());
        blocks.taken.set_range(range.clone());
        let count = range.end - range.start;
        state.descriptor.free_clusters = state.descriptor.free_clusters.saturating_sub(count);
        state.descriptor.flags.remove(GroupFlags::BLOCK_UNINIT);
        self.free_clusters.fetch_sub(i64::from(count), Ordering::Relaxed);
        Ok(Some(range))
    }

    /// Gives blocks back. Blocks that were metadata leave the transaction and the log.
    ///
    /// With clusters, only whole ones: the map knows when the last block of one goes.
    ///
    /// # Errors
    ///
    /// Damage: blocks outside the file system, in its own structures, or free already.
    pub(crate) fn free(&self, txn: &mut Txn<'_>, run: Run, was: Purpose) -> Result<()> {
        let volume = txn.volume();
        let superblock = volume.superblock();
        volume.check_blocks("freed blocks", None, run.start, u64::from(run.len))?;
        if was == Purpose::Metadata {
            for at in 0..u64::from(run.len) {
                txn.forget(FsBlock(run.start.0 + at))?;
            }
        }
        let bits = superblock.cluster_bits();
        let (mut at, end) = (run.start.0, run.start.0 + u64::from(run.len));
        while at < end {
            let outside = || damaged(GroupIndex(0), "freed blocks lie in no group");
            let (group, offset) = superblock.group_of_block(FsBlock(at)).ok_or_else(outside)?;
            let here = u64::from(superblock.group_blocks(group) - offset).min(end - at);
            // Below the size of a group: fits.
            let range = (offset >> bits)..((offset + here as u32 - 1) >> bits) + 1;
            self.free_in_group(txn, volume, group, range)?;
            at += here;
        }
        Ok(())
    }

    fn free_in_group(
        &self,
        txn: &mut Txn<'_>,
        volume: &Volume,
        group: GroupIndex,
        range: Range<u32>,
    ) -> Result<()> {
        let tid = txn.tid();
        let mut locked = self.lock(volume, group)?;
        let state = locked.state()?;
        let at = state.descriptor.block_bitmap;
        let blocks = state.blocks(volume)?;
        let fail = |rule| {
            let fault =
                Fault::Field { rule, value: u64::from(range.start), limit: u64::from(range.end) };
            FsError::corrupt("block bitmap", None, at, fault)
        };
        if blocks.stored.view().count_clear(range.clone()) > 0 {
            return Err(fail("blocks are freed that are free (first and end bit follow)"));
        }
        if blocks.own.iter().any(|own| own.start < range.end && range.start < own.end) {
            return Err(fail("blocks are freed that hold the file system's own structures"));
        }
        self.touch(txn, state, Touch::Blocks)?;
        let blocks = state.blocks(volume)?;
        let count = range.end - range.start;
        blocks.stored.clear_range(range.clone());
        match blocks.freed.last_mut() {
            // Within one transaction only (P58).
            Some((last, of)) if *of == tid && last.end == range.start => last.end = range.end,
            Some((last, of)) if *of == tid && last.start == range.end => last.start = range.start,
            _ => blocks.freed.push((range, tid)),
        }
        state.descriptor.free_clusters += count;
        self.pending.fetch_add(u64::from(count), Ordering::AcqRel);
        self.free_clusters.fetch_add(i64::from(count), Ordering::Relaxed);
        if std::mem::replace(&mut state.waits_for, tid) != tid {
            self.waiting.lock().push((tid, group));
        }
        Ok(())
    }
}

/// Free clusters from `start` on, or from the group's first one on.
fn find(blocks: &Blocks, start: u32, wish: &Wish, min: u32) -> Option<Range<u32>> {
    let from_goal = blocks.find(start, wish.len, min);
    if from_goal.is_some() || start == 0 {
        return from_goal;
    }
    blocks.find(0, wish.len, min)
}

fn run_of(volume: &Volume, group: GroupIndex, range: Range<u32>) -> Result<Run> {
    let superblock = volume.superblock();
    let bits = superblock.cluster_bits();
    let outside = || damaged(group, "the group lies outside the file system");
    let first = superblock.group_first_block(group).ok_or_else(outside)?;
    let start = first.checked_add(u64::from(range.start) << bits).ok_or_else(outside)?;
    Ok(Run { start, len: (range.end - range.start) << bits })
}
