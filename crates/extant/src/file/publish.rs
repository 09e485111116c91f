//! Publishing in the map of a file what writeback has written: extents of new blocks, conversions of
//! unwritten ones, the stored size.

use std::ops::Range;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_format::extent::{Extent, ExtentState};
use extant_format::features::Compat;
use extant_iomap::{Done, Placed, Placement};

use super::data_journal::LOGGED_MOST;
use super::mapper::{FileMapper, Ticket};
use crate::error::Result;
use crate::inline;
use crate::map::{self, MappingKind};
use crate::node::Delayed;
use crate::supers::Needed;
use crate::txn::Txn;

/// Size limit of files without the feature `large_file`.
const SIZE_OF_OLD_FILES_MAX: u64 = (1 << 31) - 1;

/// Gives bytes at an offset of the file.
pub(super) type ReadBytes<'a> = &'a dyn Fn(u64, &mut [u8]);

/// Limit of the placements published in one handle. It bounds the credits of the handle, and with
/// them the size of the smallest journal.
const PUBLISH_MOST: usize = 16;
/// Credits for the inode, its quotas and the superblock.
const BASE_CREDITS: u32 = 8;
/// Credits for the bitmap and the descriptor of the group of a placement.
const PLACEMENT_CREDITS: u32 = 2;

impl FileMapper<'_> {
    /// Publishes one placement from block `from` on. Returns the block up to which it is in the
    /// map; a conversion of a long range stops early when the transaction is full. The caller holds
    /// `FileMap` exclusively.
    fn publish_one(
        &self,
        txn: &mut Txn<'_>,
        delayed: &mut Delayed,
        placement: &Placement<Ticket>,
        from: u64,
    ) -> Result<u64> {
        let blocks = self.blocks_of(placement);
        match &placement.placed {
            Placed::Over | Placed::Nowhere => Ok(blocks.end),
            Placed::Convert => {
                let start = blocks.start.max(from);
                let written = ExtentState::Written;
                let end = map::convert_range(txn, self.node, start..blocks.end, written)?.end;
                self.describe(txn, start..end)?;
                Ok(end)
            }
            Placed::Pinned(ticket) => {
                // Both values fit: file blocks have 32 bits, and a placement is at most a group.
                let extent = Extent {
                    file_start: FileBlock(u32::try_from(blocks.start).unwrap_or(u32::MAX)),
                    device_start: FsBlock(placement.address >> self.bits()),
                    len: BlockCount(u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX)),
                    state: ExtentState::Written,
                };
                map::insert_run(txn, self.node, extent)?;
                txn.log().fast().mapped(self.node, extent);
                let settled = delayed.remove(blocks.clone());
                match ticket.run {
                    Some(run) => txn.take_pinned(self.node, run, settled)?,
                    None => self.file.unpromise(self.volume(), self.node, settled),
                }
                Ok(blocks.end)
            }
        }
    }

    /// Tells fast commits how blocks are mapped now. The caller holds `FileMap`.
    fn describe(&self, txn: &Txn<'_>, blocks: Range<u64>) -> Result<()> {
        let fast = txn.log().fast();
        let mut at = blocks.start;
        while at < blocks.end && fast.describes() {
            let piece = map::lookup(self.fs, self.node, at, blocks.end)?;
            let end = piece.file_end().min(blocks.end);
            // File blocks have 32 bits.
            let extent = |device_start, state| Extent {
                file_start: FileBlock(u32::try_from(at).unwrap_or(u32::MAX)),
                device_start,
                len: BlockCount(u32::try_from(end - at).unwrap_or(u32::MAX)),
                state,
            };
            match piece.kind {
                MappingKind::Mapped(start) => {
                    fast.mapped(self.node, extent(start, ExtentState::Written));
                }
                MappingKind::Unwritten(start) => {
                    fast.mapped(self.node, extent(start, ExtentState::Unwritten));
                }
                MappingKind::Hole | MappingKind::Inline => {}
            }
            at = end;
        }
        Ok(())
    }

    /// Raises the stored size up to `size_to`, and stores times.
    pub(crate) fn store_size(&self, txn: &mut Txn<'_>, size_to: u64) -> Result<()> {
        let size = size_to.min(self.file.size());
        self.prepare_size(txn, size)?;
        // Times that are not stored yet go with every change of the inode.
        txn.update(self.node, |data| data.record.size = data.record.size.max(size))
    }

    /// Makes sure that the file system has the feature that a size needs. Credits: the superblock.
    pub(super) fn prepare_size(&self, txn: &mut Txn<'_>, size: u64) -> Result<()> {
        if size > SIZE_OF_OLD_FILES_MAX {
            txn.writer().supers().require_feature(txn, Needed::LargeFile)?;
        }
        Ok(())
    }

    /// Returns the credits for publishing placements in one handle.
    fn publish_credits(&self, placements: &[Placement<Ticket>]) -> u32 {
        let blocks = placements.iter().map(|placement| placement.len >> self.bits()).sum();
        map::publish_credits(self.volume(), self.node, placements.len(), blocks)
            + PLACEMENT_CREDITS * PUBLISH_MOST as u32
            + BASE_CREDITS
            + if inline::is_inline(self.node) { inline::LEAVE_CREDITS } else { 0 }
    }

    /// Publishes the placements in `done` and removes them from its front; those that remain after
    /// an error are not published.
    pub(super) fn publish_all(
        &self,
        done: &mut Done<Ticket>,
        read: Option<ReadBytes<'_>>,
    ) -> Result<()> {
        let stored = self.node.with(|data| data.record.size);
        let is_quiet = done.placements.iter().all(|placement| match placement.placed {
            Placed::Over => read.is_none(),
            Placed::Nowhere => true,
            Placed::Convert | Placed::Pinned(_) => false,
        }) && !done.grows
            && done.size_to.min(self.file.size()) <= stored;
        if is_quiet {
            if read.is_none() {
                self.volume().writer()?.dirty_files().wrote_in_place(self.node);
            }
            return Ok(());
        }
        let rest = &mut done.placements;
        rest.retain(|placement| match placement.placed {
            Placed::Over => read.is_some(),
            Placed::Nowhere => false,
            Placed::Convert | Placed::Pinned(_) => true,
        });
        let leaves = inline::is_inline(self.node);
        if leaves && !self.volume().features().has_compat(Compat::HAS_JOURNAL) {
            // The device is flushed here, as a commit does: otherwise the inode could lose its
            // inline data before the block has it.
            self.volume().flush_in_place(u64::MAX)?;
        }
        // The block up to which the first remaining placement is published already.
        let mut from = 0;
        loop {
            let credits_max = self.volume().writer()?.journal().credits_max();
            let data = |now: &[Placement<Ticket>]| match read {
                Some(_) => self.blocks_in(now),
                None => 0,
            };
            let mut now = &rest[..rest.len().min(PUBLISH_MOST)];
            while now.len() > 1 && data(now) > LOGGED_MOST {
                now = &now[..now.len() / 2];
            }
            let needed = |now: &[Placement<Ticket>]| {
                // The blocks of one placement are few.
                self.publish_credits(now) + u32::try_from(data(now)).unwrap_or(u32::MAX >> 1)
            };
            let mut credits = needed(now);
            // A block map may need a block for each run of a few hundred blocks, and a small
            // journal has few.
            while credits > credits_max && now.len() > 1 {
                now = &now[..now.len() / 2];
                credits = needed(now);
            }
            let mut txn = match leaves || read.is_some() {
                true => Txn::begin(self.volume(), credits)?,
                false => Txn::begin_described(self.volume(), credits)?,
            };
            // From the first placement on, blocks for the map are taken from what is kept for
            // stored data.
            txn.publishes();
            if leaves && inline::is_inline(self.node) {
                let left = inline::leave(&mut txn, self.fs, self.node);
                left.map_err(|error| txn.fail(error))?;
            }
            if let Some(read) = read {
                // All of a placement that is published in several steps is in the first one.
                let new = if from > 0 { &now[1..] } else { now };
                self.log_contents(&mut txn, new, read).map_err(|error| txn.fail(error))?;
            }
            let (count, part) = self.publish_some(&mut txn, now, from);
            rest.drain(..count);
            let good_to;
            (from, good_to) = match part {
                Err(error) if leaves => return Err(txn.fail(error)),
                other => other?,
            };
            // Placements are in ascending order, so the data before the end of this part is on the
            // device.
            let is_whole = rest.is_empty() || sabotage("extant.file.size-before-extents");
            let size_to = if is_whole { done.size_to } else { good_to.min(done.size_to) };
            if rest.is_empty() && done.grows {
                self.file.set_size(self.file.size().max(size_to));
            }
            self.store_size(&mut txn, size_to)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Publishes these placements, the first from block `from` on. Returns the number of those
    /// published as a whole, the block up to which the next one is published (0 for none), and the
    /// byte of the file up to which everything is.
    fn publish_some(
        &self,
        txn: &mut Txn<'_>,
        placements: &[Placement<Ticket>],
        mut from: u64,
    ) -> (usize, Result<(u64, u64)>) {
        let mut delayed = self.file.map.write();
        let (mut count, mut good_to) = (0, u64::MAX);
        let part = loop {
            let Some(placement) = placements.get(count) else { break Ok((0, good_to)) };
            let got = match self.publish_one(txn, &mut delayed, placement, from) {
                Err(error) => break Err(error),
                Ok(got) => got,
            };
            good_to = got << self.bits();
            if got < self.blocks_of(placement).end {
                break Ok((got, good_to));
            }
            (count, from) = (count + 1, 0);
        };
        self.file.mapping_changed();
        (count, part)
    }
}
