//! ext4's answers to the page cache: what is behind a range, where delayed data goes, and how it
//! gets into the map.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{BlockCount, FileBlock, FsBlock, sabotage};
use extant_block::BlockDevice;
use extant_format::extent::{Extent, ExtentState};
use extant_format::inode::InodeFlags;
use extant_iomap::{
    Cookie, Done, Intent, Kind, MapFlags, Mapper, Mapping, Obstacle, Placed, Placement,
};

use crate::alloc::{BlockAsk, Growth, Purpose};
use crate::error::{FsError, Result};
use crate::fs::{Fs, Mount};
use crate::map::{self, FILE_BLOCKS_END, MappingKind};
use crate::node::{Delayed, FileState, Node, Pinned};
use crate::supers::Needed;
use crate::txn::Txn;

/// Blocks that a mapping is looked up for at least.
const LOOK_AHEAD: u64 = 16384;

/// Longer files need a feature.
const SIZE_OF_OLD_FILES_MAX: u64 = (1 << 31) - 1;

/// Placements that are published in one handle at most: bounds its credits, and with them the
/// smallest journal.
const PUBLISH_MOST: usize = 16;
/// Parts of a file that are farther apart than this, in blocks, do not say where the other should be.
const APART_MOST: u64 = 1 << 15;
/// Files with so many blocks that are appended to are expected to grow further.
const GROWS_FROM: u64 = 16;
/// The inode, its quotas, the superblock.
const BASE_CREDITS: u32 = 8;
/// The bitmap and the descriptor of the group of a placement.
const PLACEMENT_CREDITS: u32 = 2;

/// One file, as the page cache sees it.
pub(crate) struct FileMapper<'a> {
    pub(crate) fs: &'a Fs,
    pub(crate) node: &'a Arc<Node>,
    pub(crate) file: &'a FileState,
}

impl FileMapper<'_> {
    fn volume(&self) -> &Mount {
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

    /// Byte of the device where a block begins.
    pub(super) fn address(&self, block: FsBlock) -> Result<u64> {
        let what = "block past the largest device";
        self.volume().block_size().offset_of(block).ok_or(FsError::InvalidArgument { what })
    }

    /// Makes the first blocks of a hole delayed: as many as there is room for.
    fn delay(&self, blocks: Range<u64>) -> Result<Mapping> {
        let mut delayed = self.file.map.write();
        let blocks = self.promise(&delayed, blocks)?;
        delayed.insert(blocks.clone());
        self.file.mapping_changed();
        let cookie = self.file.cookie();
        Ok(self.answer(blocks, Kind::Delayed, cookie, true))
    }

    /// Promises space for the first of these blocks, which are a hole, and says for which: at least those
    /// of one cluster.
    fn promise(&self, delayed: &Delayed, mut blocks: Range<u64>) -> Result<Range<u64>> {
        let writer = self.volume().writer()?;
        let superblock = self.volume().superblock();
        let ratio = u64::from(superblock.cluster_ratio().max(1));
        let sectors = |clusters: u64| clusters << (superblock.cluster_bits() + self.bits() - 9);
        loop {
            // Blocks in a cluster that the file has already take no space.
            let own = self.own_clusters(delayed, &blocks)?;
            let new = delayed.new_clusters(&blocks) - own;
            let promised = match new {
                0 => Ok(()),
                _ => writer
                    .quotas()
                    .promise(self.volume(), writer, self.node, sectors(new))
                    .and_then(|()| {
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
                    // Half as much, perhaps; what is left of it is asked for next.
                    blocks.end = (first + (end - first) / 2) * ratio;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// How many clusters of a hole belong to the file by other blocks that are in them, and have no delayed
    /// block: only the first and the last can.
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

    /// Takes blocks in memory for the delayed blocks `at..end`.
    fn pin(&self, at: u64, mut end: u64) -> Result<Placement> {
        let volume = self.volume();
        let alloc = volume.writer()?.alloc();
        let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
        let into = at % ratio;
        let before = self.file.pins.lock().range(..at).next_back().map(|(_, pin)| pin.last);
        if ratio > 1 {
            // Blocks of one cluster of the file lie in one cluster of the device.
            let own = before.filter(|(last, _)| (last - 1) / ratio == at / ratio).map(|(_, c)| c);
            let own = match own {
                Some(cluster) => Some(cluster),
                None => {
                    let block = FileBlock(u32::try_from(at).unwrap_or(u32::MAX));
                    let implied = self.implied_block(block)?;
                    implied.map(|block| block.0 - into)
                }
            };
            if let Some(cluster) = own {
                let end = end.min((at / ratio + 1) * ratio);
                let pinned = Pinned { run: None, last: (end, cluster) };
                self.file.pins.lock().insert(at, pinned);
                let address = self.address(FsBlock(cluster + into))?;
                return Ok(self.placement(at..end, address, Placed::Pinned));
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
        let (goal, continues) = match before.filter(|(last, _)| *last == at && ratio == 1) {
            Some((_, cluster)) => (FsBlock(cluster + 1), true),
            None => self.goal(at)?,
        };
        let most = u64::from(u32::MAX >> 1);
        let len = (end - at + into).min(most) as u32;
        let ask = BlockAsk { goal, len, min: 1, purpose: Purpose::Data };
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
        let pinned = Pinned { run: Some(run), last: (end, last_cluster) };
        self.file.pins.lock().insert(at, pinned);
        self.file.note_placed(at, run.start.0 + into);
        let address = self.address(FsBlock(run.start.0 + into))?;
        Ok(self.placement(at..end, address, Placed::Pinned))
    }

    /// As [`map::implied_block`], for who holds no lock of the map.
    fn implied_block(&self, block: FileBlock) -> Result<Option<FsBlock>> {
        let _map = self.file.map.read();
        map::implied_block(self.fs, self.node, block)
    }

    /// How the file will likely go on behind blocks `at..end`, which have no place yet.
    fn growth(&self, at: u64, end: u64, continues: bool) -> Growth {
        let is_end = at << self.bits() >= self.stored_size();
        // Smaller ones stay close together; and somebody must have it open, who could write more.
        let ahead = match is_end && end >= GROWS_FROM && !self.node.life().is_unheld() {
            true => Growth::ahead_of(end, self.volume().superblock().blocks_per_group),
            false => 0,
        };
        Growth { grows: at >= GROWS_FROM && is_end, continues, ahead }
    }

    /// Where block `at` would best be, and whether that is behind the block before it. Else it is as far from
    /// what was placed last as it is in the file, because the parts of a file may come in any order.
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

    fn placement(&self, blocks: Range<u64>, address: u64, placed: Placed) -> Placement {
        let bits = self.bits();
        Placement {
            offset: blocks.start << bits,
            len: (blocks.end - blocks.start) << bits,
            address,
            placed,
        }
    }

    fn blocks_of(&self, placement: &Placement) -> Range<u64> {
        let start = placement.offset >> self.bits();
        start..start + (placement.len >> self.bits())
    }

    /// Puts one placement into the map, from block `from` on; returns how far it got, which is less
    /// than all of a long range to convert when the transaction is full. `FileMap` is held
    /// exclusively.
    fn publish_one(
        &self,
        txn: &mut Txn<'_>,
        delayed: &mut Delayed,
        placement: &Placement,
        from: u64,
    ) -> Result<u64> {
        let blocks = self.blocks_of(placement);
        match placement.placed {
            Placed::Over | Placed::Nowhere => Ok(blocks.end),
            Placed::Convert => {
                let start = blocks.start.max(from);
                let written = ExtentState::Written;
                map::convert_range(txn, self.node, start..blocks.end, written)
                    .map(|progress| progress.end)
            }
            Placed::Pinned => {
                let pinned = self.file.pins.lock().get(&blocks.start).copied();
                let run = pinned.and_then(|pinned| pinned.run);
                // Both fit: file blocks are 32 bits, a placement is at most a group.
                let extent = Extent {
                    file_start: FileBlock(u32::try_from(blocks.start).unwrap_or(u32::MAX)),
                    device_start: FsBlock(placement.address >> self.bits()),
                    len: BlockCount(u32::try_from(blocks.end - blocks.start).unwrap_or(u32::MAX)),
                    state: ExtentState::Written,
                };
                map::insert_run(txn, self.node, extent)?;
                let settled = delayed.remove(blocks.clone());
                match run {
                    Some(run) => txn.take_pinned(self.node, run, settled)?,
                    None => self.file.unpromise(self.volume(), self.node, settled),
                }
                self.file.pins.lock().remove(&blocks.start);
                Ok(blocks.end)
            }
        }
    }

    /// Raises the stored size up to `size_to`, and stores times.
    pub(crate) fn store_size(&self, txn: &mut Txn<'_>, size_to: u64) -> Result<()> {
        let size = size_to.min(self.file.size());
        self.prepare_size(txn, size)?;
        // Times not stored yet go with every change of the inode.
        txn.update(self.node, |data| data.record.size = data.record.size.max(size))
    }

    /// Makes sure that a size can be stored. Credits: the superblock.
    pub(super) fn prepare_size(&self, txn: &mut Txn<'_>, size: u64) -> Result<()> {
        if size > SIZE_OF_OLD_FILES_MAX {
            txn.writer().supers().require_feature(txn, Needed::LargeFile)?;
        }
        Ok(())
    }

    /// Makes it durable that blocks were moved, before something is written over them: it would show at
    /// their old place after a crash.
    fn settle_moves(&self) -> Result<()> {
        let tid = self.node.unsynced().moved_by.load(Ordering::Acquire);
        if tid != 0 {
            self.volume().writer()?.journal().commit(tid).map_err(FsError::from_journal)?;
            // Writeback is kept out while blocks are moved.
            self.node.unsynced().moved_by.store(0, Ordering::Release);
        }
        Ok(())
    }

    fn unpin(&self, placements: &[Placement]) {
        let Ok(writer) = self.volume().writer() else { return };
        for placement in placements {
            if placement.placed != Placed::Pinned {
                continue;
            }
            let start = placement.offset >> self.bits();
            let pinned = self.file.pins.lock().remove(&start);
            if let Some(Pinned { run: Some(run), .. }) = pinned {
                writer.alloc().unpin(self.volume(), run);
            }
        }
    }

    /// Credits to put placements into the map in one handle.
    fn publish_credits(&self, placements: &[&Placement]) -> u32 {
        let blocks = placements.iter().map(|placement| placement.len >> self.bits()).sum();
        map::publish_credits(self.volume(), self.node, placements.len(), blocks)
            + PLACEMENT_CREDITS * PUBLISH_MOST as u32
            + BASE_CREDITS
    }

    fn publish_all(&self, done: &Done) -> Result<()> {
        let stored = self.node.with(|data| data.record.size);
        let is_quiet = done
            .placements
            .iter()
            .all(|placement| matches!(placement.placed, Placed::Over | Placed::Nowhere))
            && done.size_to.min(self.file.size()) <= stored;
        if is_quiet {
            self.volume().writer()?.dirty_files().wrote_in_place(self.node);
            return Ok(());
        }
        let changes =
            |placement: &&Placement| matches!(placement.placed, Placed::Pinned | Placed::Convert);
        let all: Vec<&Placement> = done.placements.iter().filter(changes).collect();
        let mut rest = &all[..];
        // Block up to which the first of the rest is published already.
        let mut from = 0;
        loop {
            let credits_max = self.volume().writer()?.journal().credits_max();
            let mut now = &rest[..rest.len().min(PUBLISH_MOST)];
            let mut credits = self.publish_credits(now);
            // A block map may need a block for each run of a few hundred; a small journal has fewer.
            while credits > credits_max && now.len() > 1 {
                now = &now[..now.len() / 2];
                credits = self.publish_credits(now);
            }
            let mut txn = Txn::begin(self.volume(), credits)?;
            // From the first placement on: what the map needs for data that is stored.
            txn.publishes();
            let mut good_to = u64::MAX;
            {
                let mut delayed = self.file.map.write();
                for placement in now {
                    let end = self.blocks_of(placement).end;
                    let got = self.publish_one(&mut txn, &mut delayed, placement, from)?;
                    good_to = got << self.bits();
                    if got < end {
                        from = got;
                        break;
                    }
                    (rest, from) = (&rest[1..], 0);
                }
                self.file.mapping_changed();
            }
            // Ascending: what is before the end of this part is on the device.
            let is_whole = rest.is_empty() || sabotage("extant.file.size-before-extents");
            let size_to = if is_whole { done.size_to } else { good_to.min(done.size_to) };
            self.store_size(&mut txn, size_to)?;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }
}

impl Mapper for FileMapper<'_> {
    type Error = FsError;

    fn device(&self) -> &dyn BlockDevice {
        &**self.volume().device()
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

    fn relieve(&self) -> Result<bool> {
        // A reader, who holds locks, does not wait for a thaw.
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
        // What is there already is worth telling at once; holes are filled only as far as asked.
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
        // Nobody else fills holes: the content lock is held exclusively.
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

    fn place(&self, range: Range<u64>) -> Result<Placement> {
        // Memory may be ahead of what is ever committed: a file that was being cut off when the journal
        // stopped has its old size on the device, and zeros must not get there.
        self.volume().writer()?.check_running()?;
        let bits = self.bits();
        let (at, end) = (range.start >> bits, range.end >> bits);
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
            Err(end) => return self.pin(at, end),
            Ok(found) => found,
        };
        let blocks = at..piece.file_end().min(end);
        Ok(match piece.kind {
            MappingKind::Mapped(block) => {
                if !sabotage("extant.file.moves-not-settled") {
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

    fn publish(&self, done: &Done) -> Result<()> {
        let published = self.publish_all(done);
        if self.volume().publishes_before_data() && published.is_ok() {
            // As another thread's sync could at this moment.
            let journal = self.volume().writer()?.journal();
            journal.commit(journal.running()).map_err(FsError::from_journal)?;
        }
        // Those that are in the map have no pin any more.
        self.unpin(&done.placements);
        published
    }

    fn begin_overwrite(&self) -> Result<()> {
        self.volume().writer()?.check_running()?;
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

    fn give_back(&self, placements: &[Placement]) {
        self.unpin(placements);
    }
}
