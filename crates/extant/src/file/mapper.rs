//! ext4's mapper for the page cache: how a range is mapped, where delayed data is placed, and how
//! it is published in the map.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FileBlock, FsBlock, sabotage};
use extant_block::BlockDevice;
use extant_format::inode::InodeFlags;
use extant_iomap::{
    Contents, Cookie, Done, Intent, Kind, MapFlags, Mapper, Mapping, Obstacle, Placed, Placement,
};

use crate::alloc::{BlockAsk, Growth, Purpose};
use crate::error::{FsError, Result};
use crate::fs::{Fs, Mount};
use crate::map::{self, FILE_BLOCKS_END, MappingKind};
use crate::node::{Delayed, FileState, Node};
use crate::run::Run;
use crate::seal::Seal;

/// Smallest number of blocks for which a mapping is looked up.
const LOOK_AHEAD: u64 = 16384;

/// Largest distance in blocks at which one part of a file influences the place of another.
const APART_MOST: u64 = 1 << 15;
/// Size in blocks from which a file that is appended to is expected to grow further.
const GROWS_FROM: u64 = 16;
/// The blocks that writeback pinned for a placement. A ticket is never copied: it is published or
/// given back.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// The pinned blocks; `None` when the placement lies in a cluster that the file has already.
    pub(super) run: Option<Run>,
    /// First file block behind the placement.
    pub(super) end: u64,
    /// Device block of the cluster that holds the block before `end`.
    pub(super) last_cluster: u64,
}

/// One file, as the page cache sees it.
pub(crate) struct FileMapper<'a> {
    pub(crate) fs: &'a Fs,
    pub(crate) node: &'a Arc<Node>,
    pub(crate) file: &'a FileState,
}

impl FileMapper<'_> {
    pub(super) fn volume(&self) -> &Mount {
        self.fs.volume()
    }

    pub(super) fn bits(&self) -> u32 {
        self.volume().block_size().log2()
    }

    pub(super) fn answer(
        &self,
        blocks: Range<u64>,
        kind: Kind,
        cookie: Cookie,
        is_new: bool,
    ) -> Mapping {
        let bits = self.bits();
        let offset = blocks.start << bits;
        let flags = MapFlags { is_new };
        Mapping { offset, len: (blocks.end - blocks.start) << bits, kind, flags, cookie }
    }

    /// Returns the device address of a block, in bytes.
    pub(super) fn address(&self, block: FsBlock) -> Result<u64> {
        let what = "block past the largest device";
        self.volume().block_size().offset_of(block).ok_or(FsError::InvalidArgument { what })
    }

    /// Makes the first blocks of a hole delayed: as many as space can be promised for.
    pub(super) fn delay(&self, blocks: Range<u64>) -> Result<Mapping> {
        let mut delayed = self.file.map.write();
        let blocks = self.promise(&delayed, blocks)?;
        delayed.insert(blocks.clone());
        self.file.mapping_changed();
        let cookie = self.file.cookie();
        Ok(self.answer(blocks, Kind::Delayed, cookie, true))
    }

    /// Promises space for the first of these blocks, which are a hole, and returns them: at least
    /// those of one cluster.
    fn promise(&self, delayed: &Delayed, mut blocks: Range<u64>) -> Result<Range<u64>> {
        let writer = self.volume().writer()?;
        let superblock = self.volume().superblock();
        let ratio = u64::from(superblock.cluster_ratio().max(1));
        let sectors = |clusters: u64| clusters << (superblock.cluster_bits() + self.bits() - 9);
        loop {
            // Blocks in a cluster that the file has already need no space.
            let own = self.own_clusters(delayed, &blocks)?;
            let new = delayed.new_clusters(&blocks) - own;
            let promised = match new {
                0 => Ok(()),
                _ => writer
                    .quotas()
                    .promise(self.volume(), writer, self.node, sectors(new))
                    .and_then(|_tentative| {
                        let promised = writer.alloc().promise(self.volume(), new);
                        promised.inspect_err(|_| writer.quotas().unpromise(self.node, sectors(new)))
                    }),
            };
            match promised {
                Ok(()) => {
                    if own > 0 {
                        writer.quotas().promise_anyway(self.volume(), self.node, sectors(own))?;
                        writer.alloc().promise_anyway(own);
                    }
                    return Ok(blocks);
                }
                Err(error) if error.is_no_room() => {
                    let (first, end) = (blocks.start / ratio, blocks.end.div_ceil(ratio));
                    if end - first <= 1 {
                        return Err(error);
                    }
                    // Try half as many; the rest is a later request.
                    blocks.end = (first + (end - first) / 2) * ratio;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Returns the number of clusters of a hole that the file has already because of other mapped
    /// blocks in them, and that have no delayed block: only the first and the last cluster can be
    /// such.
    fn own_clusters(&self, delayed: &Delayed, blocks: &Range<u64>) -> Result<u64> {
        let ratio = u64::from(self.volume().superblock().cluster_ratio().max(1));
        if ratio == 1 {
            return Ok(0);
        }
        let (first, last) = (blocks.start / ratio, (blocks.end - 1) / ratio);
        let mut count = 0;
        for cluster in [Some(first), Some(last).filter(|last| *last != first)].into_iter().flatten()
        {
            let start = cluster * ratio;
            if delayed.next(start).is_some_and(|next| next < start + ratio) {
                continue;
            }
            let block = FileBlock(u32::try_from(start).unwrap_or(u32::MAX));
            count += u64::from(map::implied_block(self.fs, self.node, block)?.is_some());
        }
        Ok(count)
    }

    /// Pins blocks for the delayed blocks `at..end`; `before` is the ticket of the placement in
    /// front of them.
    fn pin(&self, at: u64, mut end: u64, before: Option<&Ticket>) -> Result<Placement<Ticket>> {
        let volume = self.volume();
        let alloc = volume.writer()?.alloc();
        let _placing = self.file.placing.lock();
        let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
        let into = at % ratio;
        if ratio > 1 {
            // Blocks of one cluster of the file lie in one cluster of the device.
            let own = before.filter(|before| (before.end - 1) / ratio == at / ratio);
            let own = match own.map(|before| before.last_cluster) {
                Some(cluster) => Some(cluster),
                None => {
                    let block = FileBlock(u32::try_from(at).unwrap_or(u32::MAX));
                    let implied = self.implied_block(block)?;
                    implied.map(|block| block.0 - into)
                }
            };
            if let Some(cluster) = own {
                let end = end.min((at / ratio + 1) * ratio);
                let address = self.address(FsBlock(cluster + into))?;
                let ticket = Ticket { run: None, end, last_cluster: cluster };
                return Ok(self.placement(at..end, address, Placed::Pinned(ticket)));
            }
            // The last cluster may have other blocks of the file behind the range.
            let last = end - end % ratio;
            if last > at && last < end {
                let block = FileBlock(u32::try_from(last).unwrap_or(u32::MAX));
                if self.implied_block(block)?.is_some() {
                    end = last;
                }
            }
        }
        let (goal, continues) = match before.filter(|before| before.end == at && ratio == 1) {
            Some(before) => (FsBlock(before.last_cluster + 1), true),
            None => self.goal(at)?,
        };
        let most = u64::from(u32::MAX >> 1);
        let len = (end - at + into).min(most) as u32;
        let ask = BlockAsk { goal, len, min: 1, purpose: Purpose::Data, continues };
        let growth = self.growth(at, end, continues);
        let run = match alloc.pin(volume, self.node, &ask, growth) {
            Err(FsError::NoSpace { .. }) if alloc.worth_a_commit() => {
                let journal = volume.writer()?.journal();
                journal.commit(journal.running()).map_err(FsError::from_journal)?;
                alloc.pin(volume, self.node, &ask, growth)?
            }
            other => other?,
        };
        let end = end.min(at + u64::from(run.len).saturating_sub(into));
        let last_cluster = run.start.0 + (end - 1 - at + into) / ratio * ratio;
        self.file.note_placed(at, end << self.bits(), run.start.0 + into);
        // The address is inside the device, as that of every block of a group.
        let address = self.address(FsBlock(run.start.0 + into)).inspect_err(|_| self.unpin(run))?;
        let ticket = Ticket { run: Some(run), end, last_cluster };
        Ok(self.placement(at..end, address, Placed::Pinned(ticket)))
    }

    /// Returns the block that [`map::implied_block`] gives, for callers that do not hold the lock
    /// of the map.
    fn implied_block(&self, block: FileBlock) -> Result<Option<FsBlock>> {
        let _map = self.file.map.read();
        map::implied_block(self.fs, self.node, block)
    }

    /// Returns how the file is expected to grow behind blocks `at..end`, which have no place yet.
    fn growth(&self, at: u64, end: u64, continues: bool) -> Growth {
        // Of writers that add to the file at once, the one in front may come last: there is no room
        // to be kept behind its blocks, and only they fit in front of the others'.
        let offset = at << self.bits();
        let is_end = offset >= self.stored_size() && offset >= self.file.placed_end();
        // Smaller files stay close together, and only a file with an open handle can grow.
        let ahead = match is_end && end >= GROWS_FROM && !self.node.life().is_unheld() {
            true => Growth::ahead_of(end, self.volume().superblock().blocks_per_group),
            false => 0,
        };
        Growth { grows: at >= GROWS_FROM && is_end, continues, ahead }
    }

    /// Returns the best place for block `at`, and whether that is directly behind the block before
    /// it. Otherwise the place is as far from the last placement as the block is in the file,
    /// because the parts of a file may come in any order.
    pub(super) fn goal(&self, at: u64) -> Result<(FsBlock, bool)> {
        if let Some(before) = at.checked_sub(1) {
            let _map = self.file.map.read();
            let piece = map::lookup(self.fs, self.node, before, at)?;
            if let MappingKind::Mapped(block) | MappingKind::Unwritten(block) = piece.kind {
                return Ok((FsBlock(block.0 + 1), true));
            }
        }
        let first = self.volume().writer()?.alloc().first_goal(self.volume(), self.node.ino())?;
        let (file, device) = match self.file.placed_last() {
            Some(last) => last,
            None => (0, first.0),
        };
        let goal = match at.checked_sub(file) {
            Some(distance) if distance <= APART_MOST => device.checked_add(distance),
            None if file - at <= APART_MOST => device.checked_sub(file - at),
            _ => None,
        };
        let goal = goal.map(FsBlock).filter(|goal| {
            let superblock = self.volume().superblock();
            superblock.group_of_block(*goal).is_some()
        });
        Ok((goal.unwrap_or(first), false))
    }

    fn placement<T>(&self, blocks: Range<u64>, address: u64, placed: Placed<T>) -> Placement<T> {
        let bits = self.bits();
        Placement {
            offset: blocks.start << bits,
            len: (blocks.end - blocks.start) << bits,
            address,
            placed,
        }
    }

    pub(super) fn blocks_of(&self, placement: &Placement<Ticket>) -> Range<u64> {
        let start = placement.offset >> self.bits();
        start..start + (placement.len >> self.bits())
    }

    /// Commits moves of blocks before the blocks are overwritten: the new data would otherwise show
    /// at their old place after a crash.
    fn settle_moves(&self) -> Result<()> {
        let tid = self.node.unsynced().moved_by.load(Ordering::Acquire);
        if tid != 0 {
            self.volume().writer()?.journal().commit(tid).map_err(FsError::from_journal)?;
            // Writeback is held off while blocks are moved, so no move comes in between.
            self.node.unsynced().moved_by.store(0, Ordering::Release);
        }
        Ok(())
    }

    pub(super) fn unpin(&self, run: Run) {
        if let Ok(writer) = self.volume().writer() {
            writer.alloc().unpin(self.volume(), run);
        }
    }
}

impl Mapper for FileMapper<'_> {
    type Error = FsError;
    type Ticket = Ticket;

    fn contents(&self) -> Result<Contents<'_>> {
        let device: &dyn BlockDevice = &**self.volume().device();
        if self.is_logged() {
            return Ok(Contents::logged(device, self.volume().writer()?.logged()));
        }
        if !self.is_staged() {
            return Ok(Contents::plain(device));
        }
        Ok(match self.fs.view(self.node).stage()? {
            Some(stage) => Contents::staged(device, stage),
            None => Contents::plain(device),
        })
    }

    fn is_staged(&self) -> bool {
        let is_changed = InodeFlags::ENCRYPT | InodeFlags::VERITY;
        self.node.gist().flags.intersects(is_changed) || self.is_logged()
    }

    fn is_logged(&self) -> bool {
        self.goes_through_journal()
    }

    fn publish_logged(&self, mut done: Done<Ticket>, read: &dyn Fn(u64, &mut [u8])) -> Result<()> {
        let published = self.publish_all(&mut done, Some(read));
        if published.is_err() {
            // Where that fails the journal has stopped, and brings nothing home.
            let _ = self.unlog(&done.placements);
            done.placements.into_iter().for_each(|placement| self.give_back(placement));
        }
        published
    }

    fn checked_unit(&self) -> Option<u64> {
        let is_sealed = self.node.gist().flags.contains(InodeFlags::VERITY);
        // Where the seal cannot be read `check` says so.
        let unit = |seal: Option<Arc<Seal>>| seal.map_or(1, |seal| seal.shape.block_bytes() as u64);
        is_sealed.then(|| self.fs.view(self.node).seal().map_or(1, unit))
    }

    fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.fs.view(self.node).check_sealed(offset, bytes)
    }

    fn block_log2(&self) -> u32 {
        self.bits()
    }

    fn size(&self) -> u64 {
        self.file.size()
    }

    fn stored_size(&self) -> u64 {
        self.node.with(|data| data.record.size)
    }

    fn set_size(&self, size: u64) {
        self.file.set_size(size);
    }

    fn adds_alone(&self) -> bool {
        // Blocks in different ranges may share a cluster.
        self.volume().superblock().cluster_ratio() > 1
    }

    fn relieve(&self) -> Result<bool> {
        // A reader holds locks, so it does not wait for a thaw.
        let Some(_inside) = self.volume().writer()?.try_enter() else { return Ok(false) };
        self.fs.relieve()
    }

    fn read_ahead(&self) {
        self.queue_read_ahead();
    }

    fn map(&self, range: Range<u64>, intent: Intent) -> Result<Mapping> {
        let bits = self.bits();
        let at = range.start >> bits;
        let end = (range.end.div_ceil(1 << bits)).clamp(at + 1, FILE_BLOCKS_END.max(at + 1));
        // A mapping is returned for more than was asked; holes are filled only as far as asked.
        let far = end.max(at.saturating_add(LOOK_AHEAD).min(FILE_BLOCKS_END));
        let found = {
            let delayed = self.file.map.read();
            let cookie = self.file.cookie();
            if let Some(run) = delayed.at(at) {
                return Ok(self.answer(at..run.end, Kind::Delayed, cookie, false));
            }
            let far = delayed.next(at).map_or(far, |next| far.min(next));
            let end = end.min(far);
            let is_inline =
                self.node.with(|data| data.record.flags.contains(InodeFlags::INLINE_DATA));
            if is_inline {
                let bytes = self.fs.view(self.node).inline_data()?.into();
                return Ok(self.answer(0..end, Kind::Inline(bytes), cookie, false));
            }
            if at >= FILE_BLOCKS_END {
                return Ok(self.answer(at..at + 1, Kind::Hole, cookie, false));
            }
            let piece = map::lookup(self.fs, self.node, at, far)?;
            let kind = match piece.kind {
                MappingKind::Mapped(block) => Kind::Mapped(self.address(block)?),
                MappingKind::Unwritten(block) => Kind::Unwritten(self.address(block)?),
                MappingKind::Hole | MappingKind::Inline => Kind::Hole,
            };
            let fills = kind == Kind::Hole && intent == Intent::Write;
            let limit = if fills { end } else { far };
            let blocks = at..piece.file_end().min(limit).max(at + 1);
            if kind != Kind::Hole || intent != Intent::Write {
                return Ok(self.answer(blocks, kind, cookie, false));
            }
            blocks
        };
        // No other thread fills the hole: the content lock is held exclusively, or the range.
        self.delay(found)
    }

    fn try_map(&self, range: Range<u64>, intent: Intent) -> std::result::Result<Mapping, Obstacle> {
        self.map_now(range, intent)
    }

    fn is_current(&self, cookie: Cookie) -> bool {
        self.file.cookie() == cookie
    }

    fn end(&self, mapping: &Mapping, used: u64, _: Intent) {
        if !mapping.flags.is_new || used >= mapping.len {
            return;
        }
        let bits = self.bits();
        let unused = (mapping.offset + used).div_ceil(1 << bits)..mapping.end() >> bits;
        self.file.drop_delayed(self.volume(), self.node, unused);
    }

    fn place(&self, range: Range<u64>, before: Option<&Ticket>) -> Result<Placement<Ticket>> {
        // Memory may be ahead of what is ever committed: a file that was being truncated when the
        // journal aborted has its old size on the device, and zeros must not be written there.
        self.volume().writer()?.check_running()?;
        let bits = self.bits();
        let at = range.start >> bits;
        let end = (range.end >> bits).min(at.saturating_add(self.placed_most()));
        let piece = {
            let delayed = self.file.map.read();
            match delayed.at(at) {
                Some(run) => Err(end.min(run.end)),
                None => {
                    let end = delayed.next(at).map_or(end, |next| end.min(next));
                    Ok((map::lookup(self.fs, self.node, at, end)?, end))
                }
            }
        };
        let (piece, end) = match piece {
            Err(end) => return self.pin(at, end, before),
            Ok(found) => found,
        };
        let blocks = at..piece.file_end().min(end);
        Ok(match piece.kind {
            MappingKind::Mapped(block) => {
                // Contents in the journal do not show before the moves are committed.
                if !self.is_logged() && !sabotage("extant.file.moves-not-settled") {
                    self.settle_moves()?;
                }
                self.placement(blocks, self.address(block)?, Placed::Over)
            }
            MappingKind::Unwritten(block) => {
                self.placement(blocks, self.address(block)?, Placed::Convert)
            }
            MappingKind::Hole | MappingKind::Inline => self.placement(blocks, 0, Placed::Nowhere),
        })
    }

    fn publish(&self, mut done: Done<Ticket>) -> Result<()> {
        let published = self.publish_all(&mut done, None);
        if self.volume().publishes_before_data() && published.is_ok() {
            // This commits as another thread's sync could at this moment.
            let journal = self.volume().writer()?.journal();
            journal.commit(journal.running()).map_err(FsError::from_journal)?;
        }
        if published.is_err() {
            done.placements.into_iter().for_each(|placement| self.give_back(placement));
        }
        published
    }

    fn begin_overwrite(&self) -> Result<()> {
        let writer = self.volume().writer()?;
        writer.check_running()?;
        writer.check_open()?;
        self.settle_moves()
    }

    fn end_overwrite(&self, durable: bool) {
        if durable {
            return;
        }
        if let Ok(writer) = self.volume().writer() {
            writer.dirty_files().wrote_in_place(self.node);
        }
    }

    fn give_back(&self, placement: Placement<Ticket>) {
        if let Placed::Pinned(Ticket { run: Some(run), .. }) = placement.placed {
            self.unpin(run);
        }
    }
}
