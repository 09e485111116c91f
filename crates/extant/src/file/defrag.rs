//! Files in fewer pieces: contents are copied to a place where they lie together, and then the map says so.
//!
//! # Order
//!
//! Pieces that follow each other in the file and are short are chosen without a lock, and so many free clusters in one
//! run are pinned: taken in memory only. Then, a few MiB or extents at a time:
//!
//! content lock, exclusively → writeback is kept out → what is mapped now is looked up → its contents are copied on the
//! device → one handle gives the blocks their new places in the map, takes the pinned clusters and frees the old ones.
//!
//! # Invariants
//!
//! - K1. The contents are at the new place before a handle is opened that says so, and durable before its transaction is:
//!   the flush of the commit comes after them. Without a log they are flushed first.
//! - K2. A crash finds each block at its old place or at its new one, with the same contents: old clusters are given
//!   away only when the transaction that freed them is durable (B1).
//! - K3. A sync of the file waits for the transaction of its last move, also when only data was written since: else a
//!   crash would bring back the old place, which has not what the sync made durable.
//! - K4. What is chosen without a lock is a wish. Under the lock only what is mapped now is moved, so truncated and
//!   punched blocks stay so, and new ones where they are.
//! - K5. Sizes, times, quotas and the page cache know nothing of it: folios have bytes of the file, not of the device.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use extant_base::{FsBlock, sabotage};
use extant_format::features::Compat;
use extant_format::inode::{FileKind, InodeFlags};
use rustc_hash::FxHashSet;

use super::flush::Store;
use super::pieces::{Part, Parts, Piece};
use crate::alloc::{BlockAsk, Growth, Purpose, Right, Run};
use crate::error::{Fault, FsError, Result};
use crate::fast::Refusal;
use crate::fs::Mount;
use crate::inline;
use crate::inode::Inode;
use crate::map::{self, MappingKind, PACK_STEP_CREDITS, Packed, Relocation};
use crate::node::{FileState, Node};
use crate::txn::Txn;

/// Pieces of so many bytes stay where they are: a jump now and then costs next to nothing.
const LONG: u64 = 16 << 20;
/// Copied under one hold of the file's lock.
const STEP_BYTES: u64 = 4 << 20;
/// Extents that one handle moves, about.
const STEP_RUNS: usize = 16;
/// Parts that are remembered of one piece.
const PARTS_MAX: usize = 4096;
/// Searches for room that find none before the rest of a file is left as it is.
const FAILURES_MAX: u32 = 64;
/// The inode and its quotas; bitmap and descriptor of the new place's group.
const BASE_CREDITS: u32 = 8 + 2;

/// What became of a file, from [`Inode::defragment`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Defragmented {
    /// Its pieces before: see [`Pieces`](super::Pieces).
    pub pieces_before: u64,
    /// And now.
    pub pieces_after: u64,
    /// Blocks that it has.
    pub blocks: u64,
    /// Bytes that were copied.
    pub bytes_moved: u64,
    /// Nodes of its extent tree that were given back.
    pub nodes_freed: u64,
    /// Pieces stay apart because no free run is long enough.
    pub lacks_room: bool,
    /// It was stopped by who watched; another call goes on.
    pub is_stopped: bool,
}

impl Inode {
    /// Brings the contents of a regular file together on the device, and gives back nodes of its extent tree that are
    /// not needed. Bytes, size and times stay; others may read, write, map and truncate the file meanwhile.
    ///
    /// Runs of short pieces are joined, up to a block group together, where there is a free run for at least two of
    /// them. Pieces of 16 MiB (or an eighth of a block group) stay. A crash leaves each block at its old place or its
    /// new one; [`sync`](Self::sync) makes the new ones durable. `watch` is told how many bytes were moved so far, after
    /// each few MiB, and may end it.
    ///
    /// # Errors
    ///
    /// - [`FsError::IsADirectory`], [`FsError::NotARegularFile`]: only contents of files are moved.
    /// - [`FsError::NotSupported`]: contents that go through the journal ([`is_logged`](Self::is_logged)), as in Linux.
    /// - [`FsError::NotPermitted`]: an immutable file, which boot loaders may know by its place.
    /// - [`FsError::ReadOnly`], [`FsError::Aborted`]. Damage of the map and device errors; what was moved before stays so.
    ///
    /// That there is no room is none: [`Defragmented::lacks_room`].
    ///
    /// # Cost
    ///
    /// Reads and writes what it moves once, outside of the page cache. The file is locked for 4 MiB or 16 extents at a
    /// time. Memory: those 4 MiB, and at most 4096 runs for each piece of a block group.
    pub fn defragment(
        &self,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Defragmented> {
        match self.kind() {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FsError::IsADirectory { ino: self.ino() }),
            _ => return Err(FsError::NotARegularFile { ino: self.ino() }),
        }
        check_movable(self)?;
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        if self.check_key().is_ok() {
            // What has no place yet gets one.
            fs.absorb_maps(node)?;
            fs.flush_file(node, u64::MAX, Store::Times)?;
        }
        let before = self.pieces()?;
        let mut mover = Mover::new(self, file, watch)?;
        if before.count > 1 {
            mover.all()?;
        }
        if !mover.done.is_stopped {
            mover.pack()?;
        }
        let after = self.pieces()?;
        Ok(Defragmented {
            pieces_before: before.count,
            pieces_after: after.count,
            blocks: after.blocks,
            ..mover.done
        })
    }
}

fn check_movable(inode: &Inode) -> Result<()> {
    if inode.is_logged() {
        let what = "moving contents that go through the journal";
        return Err(FsError::NotSupported { ino: inode.ino(), what });
    }
    match inode.node().gist().flags.contains(InodeFlags::IMMUTABLE) {
        true => Err(FsError::NotPermitted { ino: inode.ino(), what: "it is immutable" }),
        false => Ok(()),
    }
}

/// A run of pinned clusters that the file is moved to, in blocks of the device.
struct Target {
    start: u64,
    end: u64,
}

/// Blocks that are moved together, all of them mapped and in one state.
struct Sub {
    to: Relocation,
    from: FsBlock,
    is_written: bool,
}

/// The outcome of one step.
struct Swapped {
    /// Blocks of the target, from its start on, that are done with.
    reached: u64,
    /// Those of them that the file has now.
    taken: Vec<Run>,
    bytes: u64,
}

/// The defragmentation of one file.
struct Mover<'a> {
    inode: &'a Inode,
    file: &'a FileState,
    volume: &'a Mount,
    watch: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
    ratio: u64,
    /// Clusters of a long piece, and the most that are joined.
    long: u64,
    most: u64,
    /// Where the next piece would best be.
    goal: FsBlock,
    failures: u32,
    done: Defragmented,
}

impl<'a> Mover<'a> {
    fn new(
        inode: &'a Inode,
        file: &'a FileState,
        watch: &'a mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Mover<'a>> {
        let volume: &Mount = inode.volume();
        let superblock = volume.superblock();
        let most = u64::from(superblock.clusters_per_group.max(2));
        let long = (LONG / superblock.cluster_bytes().max(1)).min(most / 8).max(1);
        let ratio = u64::from(superblock.cluster_ratio().max(1));
        let goal = volume.writer()?.alloc().first_goal(volume, inode.ino())?;
        let done = Defragmented::default();
        Ok(Mover { inode, file, volume, watch, ratio, long, most, goal, failures: 0, done })
    }

    fn node(&self) -> &Arc<Node> {
        self.inode.node()
    }

    fn bits(&self) -> u32 {
        self.volume.block_size().log2()
    }

    fn ends(&self) -> bool {
        self.done.is_stopped || self.failures >= FAILURES_MAX
    }

    /// Joins short pieces between long ones.
    fn all(&mut self) -> Result<()> {
        let (mut window, mut piece) = (Vec::new(), Piece::default());
        for part in Parts::of(self.inode) {
            let part = part?;
            let continues = piece.parts.last().is_some_and(|last| {
                last.place.0.saturating_add(last.clusters() * self.ratio) == part.place.0
            });
            if !continues {
                self.end_piece(&mut window, std::mem::take(&mut piece))?;
            }
            if self.ends() {
                return Ok(());
            }
            piece.clusters += part.clusters();
            // Of a piece that stays only its end counts.
            if piece.clusters >= self.long || piece.parts.len() >= PARTS_MAX {
                piece.parts.clear();
                piece.clusters = piece.clusters.max(self.long);
            }
            piece.parts.push(part);
        }
        self.end_piece(&mut window, piece)?;
        self.join(&mut window)
    }

    fn end_piece(&mut self, window: &mut Vec<Piece>, piece: Piece) -> Result<()> {
        let Some(last) = piece.parts.last() else { return Ok(()) };
        if piece.clusters >= self.long {
            let end = last.place.0.saturating_add(last.clusters() * self.ratio);
            self.join(window)?;
            self.goal = FsBlock(end);
            return Ok(());
        }
        let clusters: u64 = window.iter().map(|piece| piece.clusters).sum();
        if clusters + piece.clusters > self.most || window.len() >= PARTS_MAX {
            self.join(window)?;
        }
        window.push(piece);
        Ok(())
    }

    /// Joins neighbours among these pieces as far as there is room, and forgets them.
    fn join(&mut self, window: &mut Vec<Piece>) -> Result<()> {
        while window.len() > 1 && !self.ends() {
            let count = self.join_first(window)?.clamp(1, window.len());
            window.drain(..count);
        }
        window.clear();
        Ok(())
    }

    /// Joins as many of the first pieces as there is room for: behind the first one, or all of them elsewhere. Returns
    /// how many are done with: one when there is no room for two.
    fn join_first(&mut self, window: &[Piece]) -> Result<usize> {
        let alloc = self.volume.writer()?.alloc();
        // Once more after a commit: what was moved before is free then.
        for is_last in [false, true] {
            let found = match self.pin_behind(window)? {
                None => self.pin(window, 2, self.goal)?.map(|(count, target)| (0, count, target)),
                Some((count, target)) => Some((1, count + 1, target)),
            };
            if let Some((stay, count, target)) = found {
                self.done.lacks_room |= count < window.len();
                self.carry(window.get(stay..count).unwrap_or(&[]), target)?;
                return Ok(count);
            }
            if is_last || !alloc.worth_a_commit() {
                break;
            }
            let journal = self.volume.writer()?.journal();
            journal.commit(journal.running()).map_err(FsError::from_journal)?;
        }
        self.failures += 1;
        self.done.lacks_room = true;
        Ok(1)
    }

    /// Pins what is right behind the first piece for those that follow it; for how many. So who was stopped goes on, and
    /// a file that lies well but for its end is not copied.
    fn pin_behind(&mut self, window: &[Piece]) -> Result<Option<(usize, Target)>> {
        let last = window.first().and_then(|piece| piece.parts.last());
        let Some(last) = last else { return Ok(None) };
        let end = FsBlock(last.place.0.saturating_add(last.clusters() * self.ratio));
        let pinned = self.pin(window.get(1..).unwrap_or(&[]), 1, end)?;
        let Some((count, target)) = pinned else { return Ok(None) };
        if target.start == end.0 {
            return Ok(Some((count, target)));
        }
        self.give_back(target.start..target.end);
        Ok(None)
    }

    /// Pins a run near `goal` for as many of the first pieces as fit, but at least `least` of them; for how many.
    fn pin(
        &self,
        window: &[Piece],
        least: usize,
        goal: FsBlock,
    ) -> Result<Option<(usize, Target)>> {
        let alloc = self.volume.writer()?.alloc();
        let fewest: u64 = window.iter().take(least).map(|piece| piece.clusters).sum();
        let (count, want) = whole(window, alloc.promisable(Right::of_this_thread()));
        if count < least {
            return Ok(None);
        }
        match alloc.promise(self.volume, want) {
            Err(FsError::NoSpace { .. }) => return Ok(None),
            other => other?,
        }
        // Below the size of a group, each.
        let blocks = |clusters: u64| u32::try_from(clusters * self.ratio).unwrap_or(u32::MAX);
        let (len, min) = (blocks(want), blocks(fewest));
        let ask = BlockAsk { goal, len, min, purpose: Purpose::Data, continues: false };
        let run = match alloc.pin(self.volume, self.node(), &ask, Growth::default()) {
            Ok(run) => run,
            Err(error) => {
                alloc.unpromise(want);
                return if error.is_no_room() { Ok(None) } else { Err(error) };
            }
        };
        // The last cluster of the file system may be cut short.
        let (count, keep) = whole(window, (u64::from(run.len) / self.ratio).min(want));
        let start = run.start.0;
        let target = Target { start, end: start + keep * self.ratio };
        alloc.unpromise_pinned(self.volume, target.end..start + u64::from(run.len));
        alloc.unpromise(want - u64::from(run.len).div_ceil(self.ratio));
        if count < least {
            self.give_back(target.start..target.end);
            return Ok(None);
        }
        Ok(Some((count, target)))
    }

    /// Moves pieces to what is pinned for them. What is not needed in the end is given back.
    fn carry(&mut self, pieces: &[Piece], mut target: Target) -> Result<()> {
        self.volume.writer()?.alloc().give_back_window(self.node());
        let mut parts = pieces.iter().flat_map(|piece| &piece.parts).cloned().collect::<Vec<_>>();
        parts.reverse();
        let mut buffer = Vec::new();
        while let (Some(chunk), false) = (self.chunk(&mut parts), self.done.is_stopped) {
            let swapped = self.inode.fs().change(|| self.swap(&chunk, target.start, &mut buffer));
            let swapped = match swapped {
                Ok(Ok(swapped)) => swapped,
                Ok(Err(error)) | Err(error) => {
                    self.give_back(target.start..target.end);
                    self.done.lacks_room |= error.is_no_room();
                    self.failures += 1;
                    return if error.is_no_room() { Ok(()) } else { Err(error) };
                }
            };
            let reached = target.start + swapped.reached;
            let mut at = target.start;
            for run in &swapped.taken {
                self.give_back(at..run.start.0);
                at = run.start.0 + u64::from(run.len);
            }
            self.give_back(at..reached);
            target.start = reached;
            self.goal = FsBlock(reached);
            put_back(&mut parts, chunk, swapped.reached / self.ratio);
            self.done.bytes_moved += swapped.bytes;
            if (self.watch)(self.done.bytes_moved).is_break() {
                self.done.is_stopped = true;
            }
        }
        self.give_back(target.start..target.end);
        Ok(())
    }

    /// Unpins blocks of the device, and ends the promise for them.
    fn give_back(&self, blocks: Range<u64>) {
        let Ok(writer) = self.volume.writer() else { return };
        // After a failure in the middle of a change nobody takes anything any more.
        if writer.check_running().is_ok() {
            writer.alloc().unpromise_pinned(self.volume, blocks);
        }
    }

    /// The next parts to move, as far as one step goes.
    fn chunk(&self, parts: &mut Vec<Part>) -> Option<Vec<Part>> {
        let most = (STEP_BYTES >> self.bits()).div_ceil(self.ratio).max(1);
        let (mut chunk, mut clusters) = (Vec::new(), 0);
        while clusters < most && chunk.len() < STEP_RUNS {
            let Some(mut part) = parts.pop() else { break };
            let here = part.clusters().min(most - clusters);
            if here < part.clusters() {
                let rest = part.file.start + here..part.file.end;
                let place = FsBlock(part.place.0 + here * self.ratio);
                part.file.end = rest.start;
                parts.push(Part { file: rest, place });
            }
            clusters += here;
            chunk.push(part);
        }
        (!chunk.is_empty()).then_some(chunk)
    }

    /// Moves what these parts have now to the clusters from block `target` on, or the first of it. Contents that cannot be
    /// read or written are the inner error: no damage of the file system.
    fn swap(&self, chunk: &[Part], target: u64, buffer: &mut Vec<u8>) -> Result<Result<Swapped>> {
        let _content = self.node().content.write();
        check_movable(self.inode)?;
        let _kept_out = self.file.cache.keep_writeback_out();
        if inline::is_inline(self.node()) || self.file.cache.has_ended() {
            let reached = chunk.iter().map(|part| part.clusters() * self.ratio).sum();
            return Ok(Ok(Swapped { reached, taken: Vec::new(), bytes: 0 }));
        }
        let (subs, reached) = self.mapped_now(chunk, target)?;
        let clusters = self.clusters_of(&subs)?;
        let blocks: u64 = subs.iter().map(|sub| sub.to.file.end - sub.to.file.start).sum();
        let mut swapped = Swapped { reached, taken: Vec::new(), bytes: blocks << self.bits() };
        if subs.is_empty() {
            return Ok(Ok(swapped));
        }
        let is_late = sabotage("extant.file.defrag-maps-before-data");
        if !is_late && let Err(error) = self.copy(&subs, buffer) {
            return Ok(Err(error));
        }
        let writer = self.volume.writer()?;
        writer.dirty_files().wrote_in_place(self.node());
        if !self.volume.features().has_compat(Compat::HAS_JOURNAL) {
            self.volume.flush_in_place(u64::MAX)?; // K1
        }
        let superblock = self.volume.superblock();
        let groups: FxHashSet<_> = clusters
            .iter()
            .flat_map(|(old, _)| [old.start.0, old.start.0 + u64::from(old.len) - 1])
            .filter_map(|block| superblock.group_of_block(FsBlock(block)))
            .map(|(group, _)| group)
            .collect();
        let moves: Vec<Relocation> = subs.iter().map(|sub| sub.to.clone()).collect();
        let credits = BASE_CREDITS
            + map::remap_credits(self.volume, moves.len(), blocks)
            + 2 * u32::try_from(groups.len()).unwrap_or(u32::MAX >> 2);
        let mut txn = Txn::begin_refused(self.volume, credits, Refusal::Blocks)?;
        self.node().change_map(|| map::remap(&mut txn, self.node(), &moves))?;
        let exchanged = self.exchange(&mut txn, &clusters);
        exchanged.map_err(|error| txn.fail(error))?;
        if is_late {
            drop(txn);
            writer.journal().commit(writer.journal().running()).map_err(FsError::from_journal)?;
            self.copy(&subs, buffer)?;
        }
        swapped.taken = clusters.into_iter().map(|(_, new)| new).collect();
        Ok(Ok(swapped))
    }

    /// What of these parts is mapped now, and how many blocks of the target that is about.
    fn mapped_now(&self, chunk: &[Part], target: u64) -> Result<(Vec<Sub>, u64)> {
        let (mut subs, mut reached) = (Vec::new(), 0);
        for part in chunk {
            let blocks = part.file.start * self.ratio..part.file.end * self.ratio;
            let mut at = blocks.start;
            while at < blocks.end {
                // Whole clusters only.
                if subs.len() >= STEP_RUNS && at.is_multiple_of(self.ratio) {
                    return Ok((subs, reached + (at - blocks.start)));
                }
                let piece = map::lookup(self.inode.fs(), self.node(), at, blocks.end)?;
                let end = piece.file_end().min(blocks.end);
                let is_written = matches!(piece.kind, MappingKind::Mapped(_));
                if let MappingKind::Mapped(from) | MappingKind::Unwritten(from) = piece.kind {
                    let to = FsBlock(target + reached + (at - blocks.start));
                    let to = Relocation { file: at..end, to };
                    subs.push(Sub { to, from, is_written });
                }
                at = end;
            }
            reached += blocks.end - blocks.start;
        }
        Ok((subs, reached))
    }

    /// The clusters in which these blocks are, and those in which they will be.
    fn clusters_of(&self, subs: &[Sub]) -> Result<Vec<(Run, Run)>> {
        let mut runs: Vec<(Run, Run)> = Vec::with_capacity(subs.len());
        let mut last = None;
        for sub in subs {
            let file = &sub.to.file;
            let into = file.start % self.ratio;
            let (first, end) = (file.start / self.ratio, file.end.div_ceil(self.ratio));
            let (old, new) = (sub.from.0 - into.min(sub.from.0), sub.to.to.0 - into);
            let wrong = sub.from.0 % self.ratio != into
                || last.is_some_and(|(cluster, place)| cluster == first && place != old);
            if wrong {
                let rule = "blocks of one cluster of the file lie in two";
                let fault = Fault::Field { rule, value: sub.from.0, limit: file.start };
                return Err(FsError::corrupt("file mapping", self.inode.ino(), None, fault));
            }
            // The blocks before may be in its first cluster, too.
            let done = u64::from(last.is_some_and(|(cluster, _)| cluster == first));
            let count = end - first;
            last = Some((end - 1, old + (count - 1) * self.ratio));
            let (skip, len) = (done * self.ratio, (count - done) * self.ratio);
            let Ok(len) = u32::try_from(len) else { continue };
            if len > 0 {
                let run = |start: u64| Run { start: FsBlock(start + skip), len };
                runs.push((run(old), run(new)));
            }
        }
        Ok(runs)
    }

    /// Copies contents to their new places, on the device.
    fn copy(&self, subs: &[Sub], buffer: &mut Vec<u8>) -> Result<()> {
        let device = self.volume.device();
        let address = |block: FsBlock| {
            let what = "block past the largest device";
            let at = self.volume.block_size().offset_of(block);
            at.ok_or(FsError::InvalidArgument { what })
        };
        let mut written = subs.iter().filter(|sub| sub.is_written).peekable();
        while let Some(first) = written.next() {
            buffer.clear();
            let mut end = first.to.to.0;
            let mut next = Some(first);
            while let Some(sub) = next {
                let blocks = sub.to.file.end - sub.to.file.start;
                let (at, len) = (buffer.len(), (blocks << self.bits()) as usize);
                buffer.resize(at + len, 0);
                let room = buffer.get_mut(at..).unwrap_or(&mut []);
                device.read_at(address(sub.from)?, room)?;
                end += blocks;
                next = written.next_if(|sub| sub.to.to.0 == end);
            }
            device.write_at(address(first.to.to)?, buffer)?;
        }
        Ok(())
    }

    /// Takes the new clusters and frees the old ones; what the inode counts stays.
    fn exchange(&self, txn: &mut Txn<'_>, clusters: &[(Run, Run)]) -> Result<()> {
        let alloc = txn.writer().alloc();
        for (old, new) in clusters {
            alloc.take_pinned(txn, *new, u64::from(new.len) / self.ratio)?;
            alloc.free(txn, *old, Purpose::Data)?;
        }
        if sabotage("extant.file.defrag-not-synced") {
            return Ok(());
        }
        txn.update(self.node(), |_| ()) // K3
    }

    /// Gives back nodes that the tree does not need.
    fn pack(&mut self) -> Result<()> {
        let mut from = Packed::start();
        while !from.done {
            let fs = self.inode.fs();
            from = fs.change(|| {
                let _content = self.node().content.write();
                let _kept_out = self.file.cache.keep_writeback_out();
                if inline::is_inline(self.node()) || self.file.cache.has_ended() {
                    return Ok(Packed { done: true, freed: 0, ..from });
                }
                let mut txn = Txn::begin_refused(
                    self.volume,
                    BASE_CREDITS + PACK_STEP_CREDITS,
                    Refusal::Blocks,
                )?;
                let packed = self.node().change_map(|| map::pack(&mut txn, self.node(), from))?;
                if packed.freed > 0 {
                    txn.update(self.node(), |_| ())?;
                }
                Ok(packed)
            })?;
            self.done.nodes_freed += u64::from(from.freed);
            if (self.watch)(self.done.bytes_moved).is_break() {
                self.done.is_stopped = true;
                break;
            }
        }
        Ok(())
    }
}

/// As many of the first pieces as have at most so many clusters together, and how many clusters those have.
fn whole(window: &[Piece], most: u64) -> (usize, u64) {
    let (mut count, mut clusters) = (0, 0);
    for piece in window {
        if clusters + piece.clusters > most {
            break;
        }
        (count, clusters) = (count + 1, clusters + piece.clusters);
    }
    (count, clusters)
}

/// Puts back what of a chunk was not reached, in clusters.
fn put_back(parts: &mut Vec<Part>, chunk: Vec<Part>, reached: u64) {
    let mut left: u64 = chunk.iter().map(Part::clusters).sum::<u64>().saturating_sub(reached);
    for mut part in chunk.into_iter().rev() {
        let here = part.clusters().min(left);
        if here == 0 {
            return;
        }
        left -= here;
        part.file.start = part.file.end - here;
        parts.push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(file: Range<u64>) -> Part {
        Part { file, place: FsBlock(0) }
    }

    #[test]
    fn what_a_step_has_not_reached_comes_next() {
        let chunk = vec![part(0..4), part(10..13), part(20..25)];
        for reached in 0..=12 {
            let mut parts = vec![part(99..100)];
            put_back(&mut parts, chunk.clone(), reached);
            let mut left: Vec<u64> =
                chunk.iter().flat_map(|part| part.file.clone()).skip(reached as usize).collect();
            left.push(99);
            let next: Vec<u64> = parts.iter().rev().flat_map(|part| part.file.clone()).collect();
            assert_eq!(next, left);
        }
    }

    #[test]
    fn only_whole_pieces_are_joined() {
        let piece = |clusters| Piece { parts: Vec::new(), clusters };
        let window = [piece(3), piece(4), piece(10)];
        let expected = [(0, 0), (0, 0), (1, 3), (1, 3), (2, 7), (2, 7), (3, 17), (3, 17)];
        for (most, expected) in [0, 2, 3, 6, 7, 16, 17, 99].into_iter().zip(expected) {
            assert_eq!(whole(&window, most), expected, "{most}");
        }
    }
}
