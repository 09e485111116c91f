//! Space for ranges of files: fallocate in all its modes.
//!
//! # Order
//!
//! Content lock → edges of the range are zeroed through the cache, which flushes nothing → writeback
//! is kept out → what the cache has of the whole blocks is forgotten, and their promises are given back → the map
//! changes, in bounded steps. While writeback is kept out nothing here reads, writes or zeroes through the cache:
//! making room there may need this file's writeback.
//!
//! # What a crash leaves
//!
//! The file system is consistent after each transaction, and no byte shows that was not the file's.
//!
//! - Allocate, zero range: the stored size covers what has space. Some blocks of the range may have been treated
//!   and others not.
//! - Punch: as above, from the end of the range on down.
//! - Collapse, insert: one transaction, so all or nothing, as long as the journal has room for the
//!   moved part of the tree. Beyond that a crash may leave the old size (collapse) or the new one
//!   (insert), and a hole of the range's length at the place up to which extents have been moved.

use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_format::extent::{Extent, ExtentState, UNWRITTEN_LEN_MAX};
use extant_format::features::Compat;
use extant_format::inode::{FileKind, InodeFlags};
use extant_iomap::KeptOut;

use super::{FileMapper, WriteBy};
use crate::alloc::{BlockAsk, Purpose, Run};
use crate::error::{FsError, Result};
use crate::fs::Mount;
use crate::inode::Inode;
use crate::map::{
    self, CONVERT_STEP_CREDITS, FILE_BLOCKS_END, MappingKind, REMOVE_STEP_CREDITS,
    SHIFT_STEP_CREDITS,
};
use crate::node::{FileState, Node};
use crate::size;
use crate::supers::Needed;
use crate::txn::Txn;

/// The inode, its quotas and the superblock; bitmap and descriptor of one group.
const BASE_CREDITS: u32 = 8 + 2;
/// Extents that one step of an allocation makes at most.
const STEP_EXTENTS: u32 = 4;
/// Longer files need a feature.
const SIZE_OF_OLD_FILES_MAX: u64 = (1 << 31) - 1;
/// The end of the range clamps to a page, as with Linux, where blocks may be smaller.
const PAGE_BYTES: u64 = 4096;
/// What one request zeroes on the device.
const ZERO_STEP: u64 = 64 << 20;
/// What is written at once where the device cannot zero.
const ZERO_BUFFER: usize = 1 << 20;
/// No byte of a file is at or behind this.
const BYTES_END: u64 = u64::MAX >> 1;

/// What [`Inode::fallocate`] does with a range.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fallocate {
    /// Gives every hole space that reads as zeros.
    Allocate {
        /// The size stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// Takes the space of whole blocks away; the range reads as zeros. The size stays.
    PunchHole,
    /// The range reads as zeros and has space: unwritten, but for the blocks at both ends that are
    /// in it in part.
    ZeroRange {
        /// The size stays, even if the range ends behind it.
        keep_size: bool,
    },
    /// The range reads as zeros, and its whole blocks have space that is written, so that later writes
    /// change data only.
    WriteZeroes,
    /// Takes the range out: what is behind it moves to its start. Whole blocks (clusters), and it
    /// ends before the file does.
    CollapseRange,
    /// Puts a hole there: what was there and behind moves up. Whole blocks (clusters), and it starts
    /// before the end of the file.
    InsertRange,
    /// Gives the range space of its own; nothing is ever shared, so all there is to do is done.
    Unshare,
}

impl Inode {
    /// Changes how the bytes of a range are stored; what each mode does is with [`Fallocate`].
    /// Set-id bits and capabilities are taken from the file, and the times change. Data that is in the inode moves to
    /// a block first.
    ///
    /// # Errors
    ///
    /// - [`FsError::InvalidArgument`]: an empty range; for collapse and insert also one that is not
    ///   of whole blocks (clusters), or that reaches or starts at the end of the file.
    /// - [`FsError::NotSupported`] for files without an extent tree, which can only be punched, and for moving
    ///   the blocks of encrypted files.
    /// - [`FsError::TooLarge`]: the range, or the size afterwards, ends behind the largest size.
    /// - [`FsError::NoSpace`], [`FsError::QuotaExceeded`]: what was allocated before stays, and the size
    ///   has grown as far. A range to be zeroed or punched reads as zeros all the same.
    /// - [`FsError::NotPermitted`] by the inode's flags; [`FsError::ReadOnly`], [`FsError::Aborted`].
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`], [`FsError::Encrypted`]; damage, device
    ///   errors.
    ///
    /// # Cost
    ///
    /// In extents of the range, or behind it when they move; not in bytes, except for
    /// [`Fallocate::WriteZeroes`] on devices that cannot zero by themselves. Collapse and insert write back the file
    /// first, others write nothing back.
    pub fn fallocate(&self, mode: Fallocate, range: Range<u64>) -> Result<()> {
        self.fallocate_by(WriteBy::Program, mode, range)
    }

    /// [`fallocate`](Self::fallocate) for a front end that knows on whose behalf.
    ///
    /// # Errors
    ///
    /// As there.
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
        fs.balance_dirty()?;
        fs.change(|| {
            let _content = self.node().content.write();
            fs.with_mapper(self.node(), |mapper| {
                Change { inode: self, mapper, is_crowded: Cell::new(false) }.run(by, mode, &range)
            })
        })
    }
}

/// One file, its content lock held exclusively and no handle open.
pub(super) struct Change<'a> {
    inode: &'a Inode,
    pub(super) mapper: &'a FileMapper<'a>,
    /// Others are at the group where the file would go on.
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
        if flags.contains(InodeFlags::INLINE_DATA) {
            size::uninline(self.mapper.fs, self.node())?;
            self.file().mapping_changed();
        }
        // What no file can have is too large whatever the mode and the file.
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
        // A size or times that are not stored, or zeroed edges.
        self.mapper.fs.note_dirty(self.node(), self.file());
        let shown = self.mapper.refresh();
        changed.and(shown)
    }

    fn check_range(&self, mode: Fallocate, range: &Range<u64>) -> Result<()> {
        let size = self.file().size();
        let invalid = |what| Err(FsError::InvalidArgument { what });
        let end = match mode {
            // Behind the end is nothing to take.
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

    /// The blocks that have bytes of the range.
    fn outer(&self, range: &Range<u64>) -> Range<u64> {
        range.start >> self.bits()..range.end.div_ceil(1 << self.bits())
    }

    /// The blocks that are in the range as a whole; empty, at its start, when there is none.
    fn inner(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.div_ceil(1 << self.bits());
        start..(range.end >> self.bits()).max(start)
    }

    fn bytes(&self, blocks: &Range<u64>) -> Range<u64> {
        blocks.start << self.bits()..blocks.end << self.bits()
    }

    /// Zeroes what of the range is not in whole blocks.
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

    /// The cache knows nothing of these blocks any more, and nothing is promised for them.
    fn forget(&self, blocks: &Range<u64>, kept_out: &KeptOut<'_>) {
        let bytes = self.bytes(&(blocks.start..blocks.end.min(FILE_BLOCKS_END)));
        let end = if blocks.end > FILE_BLOCKS_END { BYTES_END } else { bytes.end };
        self.file().cache.forget(bytes.start..end, kept_out);
        self.file().drop_delayed(self.volume(), self.node(), blocks.clone());
        self.file().mapping_changed();
    }

    /// Stores times, and the size as far as the data in front of it is on the device.
    pub(super) fn store(&self, txn: &mut Txn<'_>) -> Result<()> {
        self.mapper.store_size(txn, self.storable_size())
    }

    /// The size as far as the data in front of it is on the device.
    pub(super) fn storable_size(&self) -> u64 {
        let file = self.file();
        let waits = file.cache.is_dirty() && !sabotage("extant.file.fallocate-passes-dirty");
        if waits { 0 } else { file.size() }
    }

    /// A handle for a first step, which changes the times.
    pub(super) fn begin(&self, credits: u32) -> Result<Txn<'_>> {
        let txn = Txn::begin(self.volume(), BASE_CREDITS + credits)?;
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

    /// The size to grow to; what is behind the end in its block is zero then.
    fn growth(&self, range: &Range<u64>, keep_size: bool) -> Result<Option<u64>> {
        let size = self.file().size();
        if keep_size || range.end <= size {
            return Ok(None);
        }
        self.file().cache.zero_tail(self.mapper, size)?;
        Ok(Some(range.end))
    }

    /// Gives the holes of a range unwritten blocks. Delayed blocks stay: space is promised for
    /// them. The size grows with what has space.
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
            // In the same transaction: the size never ends behind what has space.
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

    /// Goes on to the next hole and allocates some of it; returns the end of what has space.
    fn fill_step(&self, txn: &mut Txn<'_>, blocks: Range<u64>) -> Result<u64> {
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
        let goal = self.goal(at)?;
        let run = txn.allocate(node, &BlockAsk { goal, len, min: 1, purpose: Purpose::Data })?;
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

    /// Gives back what was allocated behind the first `used` blocks of a run, in whole clusters.
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

    /// Where block `at` would best be.
    fn goal(&self, at: u64) -> Result<FsBlock> {
        let volume = self.volume();
        if self.is_crowded.get()
            && let Some(goal) = volume.writer()?.alloc().stream_goal(volume, self.node().ino())
        {
            return Ok(goal);
        }
        self.mapper.goal(at).map(|(goal, _)| goal)
    }

    /// Block `at` was given its place.
    fn note_placed(&self, at: u64, place: FsBlock) -> Result<()> {
        self.file().note_placed(at, place.0);
        if self.is_crowded.get() {
            let volume = self.volume();
            volume.writer()?.alloc().note_stream(volume, self.node().ino(), place);
        }
        Ok(())
    }

    fn punch(&self, range: &Range<u64>) -> Result<()> {
        let size = self.file().size();
        if range.start >= size {
            // Nothing is there, but it was asked for.
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
            // An extent could not be cut in two. What the cache had is gone: the old contents must not
            // come back.
            self.file().cache.zero(self.mapper, self.bytes(&blocks))?;
        }
        removed
    }

    fn remove(&self, blocks: &Range<u64>) -> Result<()> {
        let mut txn = self.begin(REMOVE_STEP_CREDITS)?;
        // A delayed end of the file may be gone: then nothing raises the stored size any more but
        // this.
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
                // An extent could not be cut: its blocks become zeros like any data.
                Err((at, error)) if error.is_no_room() => {
                    self.file().cache.zero(self.mapper, self.bytes(&(at..inner.end)))?;
                }
                Err((_, error)) => return Err(error),
            }
        }
        let kept_out = self.file().cache.keep_writeback_out();
        self.fill_holes(self.outer(range), grow_to, &kept_out)
    }

    /// Gives the mapped blocks of a range another state. With an error comes the block up to which
    /// that was done.
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
            // Written blocks must not be behind the stored size (P20), which cannot pass dirty data.
            self.file().cache.write_back(self.mapper, 0..BYTES_END)?;
        }
        let inner = self.inner(range);
        let kept_out = self.file().cache.keep_writeback_out();
        if inner.start < inner.end {
            self.forget(&inner, &kept_out);
        }
        let filled = self.fill_holes(self.outer(range), grow_to, &kept_out);
        // What has space is zeroed even if not all has: the cache has forgotten it.
        self.zero_on_device(&inner)?;
        filled?;
        self.convert(&inner, ExtentState::Written).map_err(|(_, error)| error)
    }

    /// Zeroes the blocks of a range that have space. A commit flushes them before itself; without a
    /// log they are flushed here.
    fn zero_on_device(&self, blocks: &Range<u64>) -> Result<()> {
        let volume = self.volume();
        let mut at = blocks.start;
        while at < blocks.end {
            let piece = map::lookup(self.mapper.fs, self.node(), at, blocks.end)?;
            let end = piece.file_end().min(blocks.end);
            if let MappingKind::Mapped(block) | MappingKind::Unwritten(block) = piece.kind {
                let what = "block past the largest device";
                let start = volume.block_size().offset_of(block);
                let start = start.ok_or(FsError::InvalidArgument { what })?;
                zero_device(volume, start, (end - at) << self.bits())?;
            }
            at = end;
        }
        volume.writer()?.dirty_files().wrote_in_place(self.node());
        if !volume.features().has_compat(Compat::HAS_JOURNAL) {
            volume.flush_in_place(self.node().unsynced().in_place.load(Ordering::Acquire))?;
        }
        Ok(())
    }

    /// How far extents move, in blocks.
    fn distance(&self, range: &Range<u64>) -> Result<BlockCount> {
        let len = (range.end - range.start) >> self.bits();
        let limit = u64::from(u32::MAX) << self.bits();
        let bytes = range.end - range.start;
        let too_large = FsError::TooLarge { ino: self.node().ino(), bytes, limit };
        u32::try_from(len).map(BlockCount).map_err(|_| too_large)
    }

    /// Everything dirty is on the device and in the map; then the cache has nothing from block
    /// `from` on. Pages behind a moved range would have wrong places (P24).
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

    /// Blocks have another place in the file, as of this transaction.
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
        // The inode and the superblock are in the transaction from here on, so that the size costs
        // nothing behind the first step.
        if size > SIZE_OF_OLD_FILES_MAX {
            txn.writer().supers().require_feature(&mut txn, Needed::LargeFile)?;
        }
        self.store(&mut txn)?;
        // The only step that takes space.
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

    /// Refuses a move of what has space behind the end of the file past the last file block.
    fn check_last(&self, by: BlockCount) -> Result<()> {
        // Writeback may publish at the same time.
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

/// Zeroes a range of the device, by writing where it cannot otherwise.
fn zero_device(volume: &Mount, start: u64, len: u64) -> Result<()> {
    let device = volume.device();
    let mut done = 0;
    let mut buffer = Vec::new();
    while done < len {
        let step = if buffer.is_empty() {
            let step = (len - done).min(ZERO_STEP);
            match device.write_zeroes(start + done, step) {
                Err(error) if error.is_unsupported() => {
                    buffer.resize(ZERO_BUFFER, 0);
                    continue;
                }
                other => other.map_err(|error| volume.read_error(error))?,
            }
            step
        } else {
            let step = (len - done).min(ZERO_BUFFER as u64);
            let bytes = buffer.get(..step as usize).unwrap_or(&buffer);
            device.write_at(start + done, bytes).map_err(|error| volume.read_error(error))?;
            step
        };
        done += step;
    }
    Ok(())
}
