//! `fallocate` in all its modes.
//!
//! # Order
//!
//! Content lock → the edges of the range are zeroed in the cache, without a flush → writeback of
//! the file is held off → the cache drops the whole blocks, and their promises are returned → the
//! map changes, in bounded steps. While writeback is held off nothing here reads, writes or zeroes
//! through the cache, because making room there may need this file's writeback.
//!
//! # What a crash leaves
//!
//! The file system is consistent after each transaction, and no bytes of other files are exposed.
//!
//! - Allocate, zero range: the stored size covers the allocated blocks. Some blocks of the range
//!   may have been changed and others not.
//! - Punch: some blocks may have been removed, from the end of the range downwards.
//! - Collapse, insert: one transaction, so all or nothing, if the journal has room for the moved
//!   part of the tree. Otherwise a crash may leave the old size (collapse) or the new one (insert),
//!   and a hole of the range's length at the place up to which extents have been moved.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_format::extent::{Extent, ExtentState, UNWRITTEN_LEN_MAX};
use extant_format::features::Compat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_iomap::KeptOut;
use extant_sync::RwLockWriteGuard;

use super::{FileMapper, WriteBy};
use crate::alloc::{BlockAsk, Purpose, Run};
use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::fs::Mount;
use crate::inode::Inode;
use crate::map::{
    self, CONVERT_STEP_CREDITS, FILE_BLOCKS_END, MappingKind, REMOVE_STEP_CREDITS,
    SHIFT_STEP_CREDITS,
};
use crate::node::{FileState, Node};
use crate::supers::Needed;
use crate::txn::Txn;

/// Credits: the inode, its quotas and the superblock; bitmap and descriptor of one group.
pub(super) const BASE_CREDITS: u32 = 8 + 2;
/// Limit of the extents that one step of an allocation makes.
const STEP_EXTENTS: u32 = 4;
/// Size limit of files without the feature `large_file`.
const SIZE_OF_OLD_FILES_MAX: u64 = (1 << 31) - 1;
/// Linux rounds the end of a zeroed range to a page, even where blocks are smaller.
const PAGE_BYTES: u64 = 4096;
/// Exclusive limit of byte offsets in a file, 2^63 - 1.
const BYTES_END: u64 = u64::MAX >> 1;

/// The change that [`Inode::fallocate`] makes to a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fallocate {
    /// Allocates unwritten blocks for every hole of the range.
    Allocate {
        /// Whether the size stays when the range ends behind it; otherwise the size grows.
        keep_size: bool,
    },
    /// Frees the whole blocks of the range, which then reads as zeros. The size stays.
    PunchHole,
    /// Makes the range read as zeros and keeps it allocated: whole blocks become unwritten, and
    /// partly covered blocks at both ends are zeroed.
    ZeroRange {
        /// Whether the size stays when the range ends behind it; otherwise the size grows.
        keep_size: bool,
    },
    /// Makes the range read as zeros with its whole blocks allocated and written, so that later
    /// writes need no change of metadata.
    WriteZeroes,
    /// Removes the range: the contents behind it move to its start. The range consists of whole
    /// blocks (clusters) and ends before the file does.
    CollapseRange,
    /// Inserts a hole: the contents from the range's start on move up. The range consists of whole
    /// blocks (clusters) and starts before the end of the file.
    InsertRange,
    /// Gives the range blocks of its own. ext4 shares no blocks, so there is nothing to copy.
    Unshare,
}

impl Inode {
    /// Changes how the bytes of a range are stored, as [`Fallocate`] describes for each mode.
    /// Set-id bits and capabilities are removed from the file, and its times change. Data in the
    /// inode moves to a block first.
    ///
    /// # Errors
    ///
    /// - [`FsError::InvalidArgument`]: an empty range; for collapse and insert also one that does
    ///   not consist of whole blocks (clusters), or that reaches or starts at the end of the file.
    /// - [`FsError::NotSupported`]: a file without an extent tree, except for punching holes, and
    ///   moving the blocks of encrypted files.
    /// - [`FsError::TooLarge`]: the range, or the size afterwards, ends behind the largest size.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`]: blocks that were allocated before stay,
    ///   and the size has grown to cover them. A range to be zeroed or punched reads as zeros all
    ///   the same.
    /// - [`FsError::NotPermitted`] by the inode's flags; [`FsError::ReadOnly`],
    ///   [`FsError::Aborted`].
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`]; damage,
    ///   device errors.
    ///
    /// # Cost
    ///
    /// Proportional to the extents of the range, or behind it when they move; not to bytes, except
    /// for [`Fallocate::WriteZeroes`] on devices without a zeroing command. Collapse and insert
    /// write back the file first; the other modes write nothing back.
    pub fn fallocate(&self, mode: Fallocate, range: Range<u64>) -> Result<()> {
        self.fallocate_by(WriteBy::Program, mode, range)
    }

    /// Changes a range like [`fallocate`](Self::fallocate), for front ends that say with `by` on
    /// whose behalf.
    ///
    /// # Errors
    ///
    /// As [`fallocate`](Self::fallocate).
    pub fn fallocate_by(&self, by: WriteBy, mode: Fallocate, range: Range<u64>) -> Result<()> {
        let moves = matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange);
        if moves && self.kind() == FileKind::Regular && self.is_encrypted() {
            let what = "moving the blocks of an encrypted file";
            return Err(FsError::NotSupported { ino: self.ino(), what });
        }
        self.check_contents()?;
        if range.start >= range.end || range.end > BYTES_END {
            let what = "range: not empty, and below byte 2^63";
            return Err(FsError::InvalidArgument { what });
        }
        let fs = self.fs();
        let _turn = fs.balance_dirty(self.ino(), 0)?;
        fs.change(|| {
            let _content = self.keep_out_of(moves, &range)?;
            fs.with_mapper(self.node(), |mapper| {
                Change { inode: self, mapper, is_crowded: Cell::new(false) }.run(by, mode, &range)
            })
        })
    }

    /// Takes the content lock exclusively, for a change of a range. Direct I/O outside of the range
    /// goes on, unless the blocks behind it move.
    fn keep_out_of(&self, moves: bool, range: &Range<u64>) -> Result<RwLockWriteGuard<'_, ()>> {
        let (content, volume) = (&self.node().content, self.volume());
        if moves {
            return Ok(content.write());
        }
        let (spans, block) = (volume.writer()?.spans(), volume.block_size().bytes().into());
        Ok(content.write_part(spans, block, || {
            // Who may move the end, or zero what is behind it in its block, meets nobody who does so.
            let size = self.node().size();
            match range.end > size {
                true => range.start.min(size)..u64::MAX,
                false => range.clone(),
            }
        }))
    }
}

/// A change of one file's map; its content lock is held exclusively and no handle is open.
pub(super) struct Change<'a> {
    pub(super) inode: &'a Inode,
    pub(super) mapper: &'a FileMapper<'a>,
    /// Whether other threads hold the group where the file would continue.
    pub(super) is_crowded: Cell<bool>,
}

impl Change<'_> {
    pub(super) fn file(&self) -> &FileState {
        self.mapper.file
    }

    pub(super) fn node(&self) -> &Arc<Node> {
        self.mapper.node
    }

    pub(super) fn volume(&self) -> &Mount {
        self.mapper.fs.volume()
    }

    pub(super) fn bits(&self) -> u32 {
        self.volume().block_size().log2()
    }

    pub(super) fn ratio(&self) -> u64 {
        u64::from(self.volume().superblock().cluster_ratio().max(1))
    }

    fn run(&self, by: WriteBy, mode: Fallocate, range: &Range<u64>) -> Result<()> {
        let ino = self.node().ino();
        let flags = self.node().gist().flags;
        super::check_changeable(ino, flags)?;
        let is_plain = matches!(mode, Fallocate::Allocate { .. });
        if flags.contains(InodeFlags::APPEND) && !is_plain {
            return Err(FsError::NotPermitted { ino, what: "it can only be appended to" });
        }
        self.mapper.move_out()?;
        // A range beyond the largest size of any file is too large, whatever the mode and the file.
        let limit = u64::from(u32::MAX) << self.bits();
        if mode != Fallocate::PunchHole && range.end > limit {
            return Err(FsError::TooLarge { ino, bytes: range.end, limit });
        }
        let is_tree = self.node().with(|data| data.record.flags.contains(InodeFlags::EXTENTS));
        if !is_tree && mode != Fallocate::PunchHole {
            let what = "space for ranges of a file without an extent tree";
            return Err(FsError::NotSupported { ino, what });
        }
        self.check_range(mode, range)?;
        if mode == Fallocate::Unshare {
            return Ok(());
        }
        self.inode.take_privileges(by)?;
        self.mapper.absorb()?;
        let changed = match mode {
            Fallocate::Allocate { keep_size } => self.allocate(range, keep_size),
            Fallocate::PunchHole => self.punch(range),
            Fallocate::ZeroRange { keep_size } => self.zero_range(range, keep_size),
            Fallocate::WriteZeroes => self.write_zeroes(range),
            Fallocate::CollapseRange => self.collapse(range),
            Fallocate::InsertRange => self.insert(range),
            Fallocate::Unshare => Ok(()),
        };
        // The size, the times or zeroed edges are still to be stored.
        self.mapper.fs.note_dirty(self.node(), self.file());
        let shown = self.mapper.refresh();
        changed.and(shown)
    }

    fn check_range(&self, mode: Fallocate, range: &Range<u64>) -> Result<()> {
        let size = self.file().size();
        let invalid = |what| Err(FsError::InvalidArgument { what });
        let end = match mode {
            // There is nothing to remove behind the end.
            Fallocate::PunchHole => return Ok(()),
            Fallocate::CollapseRange => size,
            Fallocate::InsertRange => size.saturating_add(range.end - range.start),
            _ => range.end,
        };
        if matches!(mode, Fallocate::CollapseRange | Fallocate::InsertRange) {
            let unit = self.volume().superblock().cluster_bytes().max(1);
            if !range.start.is_multiple_of(unit) || !range.end.is_multiple_of(unit) {
                return invalid("range: whole blocks, or clusters, to be taken out or put in");
            }
            if mode == Fallocate::CollapseRange && range.end >= size {
                return invalid("range: a part that is taken out ends before the file does");
            }
            if mode == Fallocate::InsertRange && range.start >= size {
                return invalid("range: a part that is put in starts before the end of the file");
            }
        }
        self.node().with(|data| crate::volume::check_size(self.volume(), data, end))
    }

    /// Returns the blocks that hold bytes of the range.
    fn outer(&self, range: &Range<u64>) -> Range<u64> {
        range.start >> self.bits()..range.end.div_ceil(1 << self.bits())
    }

    /// Returns the blocks that lie in the range as a whole; an empty range at its start if there
    /// are none.
    fn inner(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.div_ceil(1 << self.bits());
        start..(range.end >> self.bits()).max(start)
    }

    fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start << self.bits()..blocks.end << self.bits()
    }

    /// Zeroes the parts of the range that are not whole blocks.
    fn zero_edges(&self, range: &Range<u64>) -> Result<()> {
        let inner = self.bytes(&self.inner(range));
        let first = range.start..inner.start.min(range.end);
        let last = inner.end.max(first.end)..range.end;
        for part in [first, last] {
            if part.start < part.end {
                self.file().cache.zero(self.mapper, part)?;
            }
        }
        Ok(())
    }

    /// Drops these blocks from the cache and returns their promises.
    fn forget(&self, blocks: &Range<u64>, kept_out: &KeptOut<'_>) {
        let bytes = self.bytes(&(blocks.start..blocks.end.min(FILE_BLOCKS_END)));
        let end = if blocks.end > FILE_BLOCKS_END { BYTES_END } else { bytes.end };
        self.file().cache.forget(bytes.start..end, kept_out);
        self.file().drop_delayed(self.volume(), self.node(), blocks.clone());
        self.file().mapping_changed();
    }

    /// Stores the times, and the size up to which data is on the device.
    pub(super) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.mapper.store_size(txn, self.storable_size())
    }

    /// Returns the size up to which data is on the device.
    pub(super) fn storable_size(&self) -> u64 {
        let file = self.file();
        let waits = file.cache.is_dirty() && !sabotage("extant.file.fallocate-passes-dirty");
        if waits { 0 } else { file.size() }
    }

    /// Opens a handle for a first step, which changes the times.
    pub(super) fn begin(&self, credits: u32) -> Result<Txn<'_>> {
        let txn = Txn::begin_refused(self.volume(), BASE_CREDITS + credits, Refusal::Blocks)?;
        self.file().touch(txn.writer().now());
        Ok(txn)
    }

    fn allocate(&self, range: &Range<u64>, keep_size: bool) -> Result<()> {
        let grow_to = self.growth(range, keep_size)?;
        let kept_out = self.file().cache.keep_writeback_out();
        let blocks = self.outer(range);
        if self.append(&blocks, grow_to)? {
            return Ok(());
        }
        self.fill_holes(blocks, grow_to, &kept_out)
    }

    /// Returns the size to grow to, after zeroing the bytes behind the end in the last block.
    fn growth(&self, range: &Range<u64>, keep_size: bool) -> Result<Option<u64>> {
        let size = self.file().size();
        if keep_size || range.end <= size {
            return Ok(None);
        }
        self.file().cache.zero_tail(self.mapper, size)?;
        Ok(Some(range.end))
    }

    /// Allocates unwritten blocks for the holes of a range. Delayed blocks stay delayed: space is
    /// promised for them. The size grows with the allocated blocks.
    fn fill_holes(
        &self,
        blocks: Range<u64>,
        grow_to: Option<u64>,
        _kept_out: &KeptOut<'_>,
    ) -> Result<()> {
        let mut txn = self.begin(0)?;
        let mut at = blocks.start;
        while at < blocks.end {
            let filled = self.fill_step(&mut txn, at..blocks.end);
            if let Ok(end) = filled {
                at = end;
            }
            // This is the same transaction, so the size never ends behind the allocated blocks.
            let reached = (at << self.bits()).min(grow_to.unwrap_or(0));
            if reached > self.file().size() && at > blocks.start {
                self.file().set_size(reached);
            }
            let stored = self.store(&mut txn);
            filled?;
            stored?;
        }
        self.store(&mut txn)
    }

    /// Allocates a part of the next hole; returns the end of the allocated blocks.
    pub(super) fn fill_step(&self, txn: &mut Txn<'_>, blocks: Range<u64>) -> Result<u64> {
        let (fs, node) = (self.mapper.fs, self.node());
        let mut at = blocks.start;
        while at < blocks.end {
            let end = {
                let delayed = self.file().map.read();
                if let Some(run) = delayed.at(at) {
                    at = run.end;
                    continue;
                }
                delayed.next(at).map_or(blocks.end, |next| next.min(blocks.end))
            };
            let piece = map::lookup(fs, node, at, end)?;
            let end = piece.file_end().min(end);
            if piece.kind == MappingKind::Hole {
                return self.fill_hole(txn, at..end);
            }
            at = end;
        }
        Ok(blocks.end)
    }

    /// Allocates the first blocks of a hole; returns where they end.
    fn fill_hole(&self, txn: &mut Txn<'_>, hole: Range<u64>) -> Result<u64> {
        let (fs, node, volume) = (self.mapper.fs, self.node(), self.volume());
        let (at, ratio) = (hole.start, self.ratio());
        let into = at % ratio;
        let most = u64::from(STEP_EXTENTS * UNWRITTEN_LEN_MAX);
        let mut end = hole.end.min(at.saturating_add(most));
        let credits = map::publish_credits(volume, node, STEP_EXTENTS as usize, end - at);
        txn.ensure(BASE_CREDITS + credits)?;
        if ratio > 1 {
            // Blocks of one cluster of the file lie in one cluster of the device.
            if let Some(block) = map::implied_block(fs, node, file_block(at)?)? {
                end = end.min((at / ratio + 1) * ratio);
                self.insert_unwritten(txn, at..end, block)?;
                return Ok(end);
            }
            let last = end - end % ratio;
            if last > at && last < end && map::implied_block(fs, node, file_block(last)?)?.is_some()
            {
                end = last;
            }
        }
        let left = crate::volume::blocks_left(volume, node)?.max(ratio);
        let wanted = (end - at + into).min(left);
        let len = u32::try_from(wanted).unwrap_or(u32::MAX >> 1);
        let (goal, continues) = self.goal(at)?;
        let run =
            txn.allocate(node, &BlockAsk { goal, len, min: 1, purpose: Purpose::Data, continues })?;
        let end = end.min(at.saturating_add(u64::from(run.len).saturating_sub(into)));
        let start = FsBlock(run.start.0.saturating_add(into));
        if let Err(error) = self.insert_unwritten(txn, at..end, start) {
            txn.release(node, run, Purpose::Data).map_err(|broken| txn.fail(broken))?;
            return Err(error);
        }
        self.note_placed(at, start)?;
        self.give_back(txn, run, into + (end - at))?;
        Ok(end)
    }

    /// Frees the blocks allocated behind the first `used` blocks of a run, in whole clusters.
    fn give_back(&self, txn: &mut Txn<'_>, run: Run, used: u64) -> Result<()> {
        let used = used.next_multiple_of(self.ratio());
        let Some(over) = u64::from(run.len).checked_sub(used).filter(|over| *over > 0) else {
            return Ok(());
        };
        let start = FsBlock(run.start.0.saturating_add(used));
        let over = Run { start, len: u32::try_from(over).unwrap_or(0) };
        txn.release(self.node(), over, Purpose::Data).map_err(|error| txn.fail(error))
    }

    fn insert_unwritten(&self, txn: &mut Txn<'_>, blocks: Range<u64>, to: FsBlock) -> Result<()> {
        let run = Extent {
            file_start: file_block(blocks.start)?,
            device_start: to,
            len: BlockCount(u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX)),
            state: ExtentState::Unwritten,
        };
        self.node().change_map(|| map::insert_run(txn, self.node(), run))
    }

    /// Returns the best place for block `at`, and whether the file has the block before it.
    fn goal(&self, at: u64) -> Result<(FsBlock, bool)> {
        let volume = self.volume();
        if self.is_crowded.get()
            && let Some(goal) = volume.writer()?.alloc().stream_goal(volume, self.node().ino())
        {
            return Ok((goal, false));
        }
        self.mapper.goal(at)
    }

    /// Records the place that block `at` was given.
    fn note_placed(&self, at: u64, place: FsBlock) -> Result<()> {
        self.file().note_placed(at, 0, place.0);
        if self.is_crowded.get() {
            let volume = self.volume();
            volume.writer()?.alloc().note_stream(volume, self.node().ino(), place);
        }
        Ok(())
    }

    fn punch(&self, range: &Range<u64>) -> Result<()> {
        let size = self.file().size();
        if range.start >= size {
            // The punched range was a hole, but the times change all the same.
            self.file().touch(self.volume().writer()?.now());
            return Ok(());
        }
        let page = PAGE_BYTES.max(1 << self.bits());
        let end = if range.end > size { size.next_multiple_of(page) } else { range.end };
        let range = range.start..end;
        self.zero_edges(&range)?;
        let blocks = self.inner(&range);
        let removed = {
            let kept_out = self.file().cache.keep_writeback_out();
            self.forget(&blocks, &kept_out);
            self.remove(&blocks)
        };
        if removed.as_ref().is_err_and(FsError::is_no_room)
            && !sabotage("extant.file.punched-comes-back")
        {
            // An extent could not be split. The cache has dropped the range, so it is zeroed: the
            // old contents must not reappear.
            self.file().cache.zero(self.mapper, self.bytes(&blocks))?;
        }
        removed
    }

    fn remove(&self, blocks: &Range<u64>) -> Result<()> {
        let mut txn = self.begin(REMOVE_STEP_CREDITS)?;
        // The end of the file may have been delayed and dropped: then only this raises the stored
        // size.
        self.store(&mut txn)?;
        if blocks.start < blocks.end {
            let removed =
                map::remove(&mut txn, self.mapper.fs, self.node(), blocks.clone(), Purpose::Data);
            self.file().mapping_changed();
            removed?;
        }
        Ok(())
    }

    fn zero_range(&self, range: &Range<u64>, keep_size: bool) -> Result<()> {
        let grow_to = self.growth(range, keep_size)?;
        self.zero_edges(range)?;
        let inner = self.inner(range);
        if inner.start < inner.end {
            let unzeroed = {
                let kept_out = self.file().cache.keep_writeback_out();
                self.forget(&inner, &kept_out);
                self.convert(&inner, ExtentState::Unwritten)
            };
            match unzeroed {
                Ok(()) => {}
                // An extent could not be split: its blocks are zeroed like data.
                Err((at, error)) if error.is_no_room() => {
                    self.file().cache.zero(self.mapper, self.bytes(&(at..inner.end)))?;
                }
                Err((_, error)) => return Err(error),
            }
        }
        let kept_out = self.file().cache.keep_writeback_out();
        self.fill_holes(self.outer(range), grow_to, &kept_out)
    }

    /// Changes the state of the mapped blocks of a range. An error comes with the block up to which
    /// the conversion was done.
    fn convert(&self, blocks: &Range<u64>, to: ExtentState) -> Result<(), (u64, FsError)> {
        let mut at = blocks.start;
        let mut txn = self.begin(CONVERT_STEP_CREDITS).map_err(|error| (at, error))?;
        loop {
            self.store(&mut txn).map_err(|error| (at, error))?;
            let convert = || map::convert_range(&mut txn, self.node(), at..blocks.end, to);
            let progress = self.node().change_map(convert).map_err(|error| (at, error))?;
            if progress.done || progress.end >= blocks.end {
                return Ok(());
            }
            at = progress.end.max(at);
            txn.ensure(BASE_CREDITS + CONVERT_STEP_CREDITS).map_err(|error| (at, error))?;
        }
    }

    fn write_zeroes(&self, range: &Range<u64>) -> Result<()> {
        let grow_to = self.growth(range, false)?;
        self.zero_edges(range)?;
        if range.end > self.node().with(|data| data.record.size) {
            // Written blocks must not lie behind the stored size (P20), which cannot pass dirty
            // data.
            self.file().cache.write_back(self.mapper, 0..BYTES_END)?;
        }
        let inner = self.inner(range);
        let kept_out = self.file().cache.keep_writeback_out();
        if inner.start < inner.end {
            self.forget(&inner, &kept_out);
        }
        let filled = self.fill_holes(self.outer(range), grow_to, &kept_out);
        // Allocated blocks are zeroed even if the allocation failed half-way: the cache has dropped
        // the range.
        self.zero_on_device(&inner, &kept_out)?;
        filled?;
        self.convert(&inner, ExtentState::Written).map_err(|(_, error)| error)
    }

    /// Zeroes the allocated blocks of a range on the device. A commit flushes the device before it
    /// writes its commit block; without a journal this function flushes.
    fn zero_on_device(&self, blocks: &Range<u64>, kept_out: &KeptOut<'_>) -> Result<()> {
        let volume = self.volume();
        if self.mapper.goes_through_journal() {
            // What the log has would be replayed over the zeros.
            self.mapper.bring_home()?;
        }
        self.file().cache.write_zeroes(self.mapper, self.bytes(blocks), kept_out)?;
        volume.writer()?.dirty_files().wrote_in_place(self.node());
        if !volume.features().has_compat(Compat::HAS_JOURNAL) {
            volume.flush_in_place(self.node().unsynced().in_place.load(Ordering::Acquire))?;
        }
        Ok(())
    }

    /// Returns the distance by which extents move, in blocks.
    fn distance(&self, range: &Range<u64>) -> Result<BlockCount> {
        let len = (range.end - range.start) >> self.bits();
        let limit = u64::from(u32::MAX) << self.bits();
        let bytes = range.end - range.start;
        let too_large = FsError::TooLarge { ino: self.node().ino(), bytes, limit };
        u32::try_from(len).map(BlockCount).map_err(|_| too_large)
    }

    /// Writes back the whole file and drops its cached pages from block `from` on: pages behind a
    /// moved range would have wrong offsets (P24).
    fn empty_cache(&self, from: u64) -> Result<KeptOut<'_>> {
        let cache = &self.file().cache;
        cache.zero_tail(self.mapper, self.file().size())?;
        cache.write_back(self.mapper, 0..BYTES_END)?;
        let kept_out = cache.keep_writeback_out();
        self.forget(&(from..u64::MAX), &kept_out);
        Ok(kept_out)
    }

    fn set_size(&self, txn: &mut Txn<'_>, size: u64) -> Result<()> {
        if size > SIZE_OF_OLD_FILES_MAX {
            txn.writer().supers().require_feature(txn, Needed::LargeFile)?;
        }
        txn.update(self.node(), |data| {
            data.record.size = size;
            self.file().store_stamp(data);
        })?;
        self.file().set_size(size);
        Ok(())
    }

    /// Records that blocks moved within the file in this transaction.
    fn moved(&self, txn: &Txn<'_>) {
        self.file().mapping_changed();
        self.node().unsynced().moved_by.store(txn.tid(), Ordering::Release);
    }

    fn collapse(&self, range: &Range<u64>) -> Result<()> {
        let (by, blocks) = (self.distance(range)?, self.outer(range));
        let _kept_out = self.empty_cache(blocks.start)?;
        let size = self.file().size().saturating_sub(range.end - range.start);
        let mut txn = self.begin(REMOVE_STEP_CREDITS)?;
        let removed =
            map::remove(&mut txn, self.mapper.fs, self.node(), blocks.clone(), Purpose::Data);
        self.moved(&txn);
        removed?;
        let mut at = blocks.end;
        loop {
            txn.ensure(BASE_CREDITS + SHIFT_STEP_CREDITS)?;
            let moved = map::shift_down(&mut txn, self.node(), at, by);
            self.moved(&txn);
            let progress = moved?;
            if progress.done {
                break;
            }
            at = progress.end;
        }
        txn.ensure(BASE_CREDITS)?;
        self.set_size(&mut txn, size)
    }

    fn insert(&self, range: &Range<u64>) -> Result<()> {
        let (by, from) = (self.distance(range)?, range.start >> self.bits());
        self.check_last(by)?;
        let _kept_out = self.empty_cache(from)?;
        let size = self.file().size().saturating_add(range.end - range.start);
        let mut txn = self.begin(CONVERT_STEP_CREDITS + SHIFT_STEP_CREDITS)?;
        // The inode and the superblock join the transaction here, so that storing the size costs no
        // credits after the first step.
        if size > SIZE_OF_OLD_FILES_MAX {
            txn.writer().supers().require_feature(&mut txn, Needed::LargeFile)?;
        }
        self.store(&mut txn)?;
        // This is the only step that allocates blocks.
        map::split_at(&mut txn, self.node(), file_block(from)?)?;
        let mut end = FILE_BLOCKS_END;
        loop {
            let moved = map::shift_up(&mut txn, self.node(), (from, end), by);
            self.moved(&txn);
            let progress = moved?;
            if end == FILE_BLOCKS_END {
                self.set_size(&mut txn, size)?;
            }
            if progress.done {
                return Ok(());
            }
            end = progress.end;
            txn.ensure(BASE_CREDITS + SHIFT_STEP_CREDITS)?;
        }
    }

    /// Fails if a move would push allocated blocks behind the end of the file past the last file
    /// block.
    fn check_last(&self, by: BlockCount) -> Result<()> {
        // Writeback may change the map concurrently.
        let _map = self.file().map.read();
        let mut at = self.file().size() >> self.bits();
        let limit = u64::from(u32::MAX).saturating_sub(u64::from(by.0));
        while at < FILE_BLOCKS_END {
            let piece = map::lookup(self.mapper.fs, self.node(), at, FILE_BLOCKS_END)?;
            at = piece.file_end();
            if piece.kind != MappingKind::Hole && at > limit {
                let what = "range: blocks behind it would move past the last one of any file";
                return Err(FsError::InvalidArgument { what });
            }
        }
        Ok(())
    }
}

fn file_block(at: u64) -> Result<FileBlock> {
    let what = "a file has no block from 2^32 on";
    u32::try_from(at).map(FileBlock).map_err(|_| FsError::InvalidArgument { what })
}
