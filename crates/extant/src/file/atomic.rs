//! Atomic writes: after a crash all of one write is there, or nothing of it.
//!
//! # Order
//!
//! content lock, exclusively → writeback is kept out → what of the range is in the cache goes to the
//! device and leaves the cache → holes of the range get unwritten blocks, which read as before →
//! new clusters are pinned → the new bytes go there → one handle gives the range its new places,
//! marks them written, raises the size, takes the pinned clusters and frees the old ones.
//!
//! # Invariants
//!
//! - T1. The old blocks of the range are not written. Their clusters are given away only when the
//!   transaction is durable, so a crash finds the old bytes at the old places or the new ones at
//!   the new places.
//! - T2. One handle has all of the range: [`BLOCKS_MAX`] bounds what it changes.
//! - T3. Blocks of the range's clusters that are outside of the range move with their contents.
//! - T4. A crash before that handle's commit may leave unwritten blocks where holes were.

use std::ops::Range;

use extant_base::{BlockSize, FsBlock, sabotage};
use extant_block::AlignedBuffer;
use extant_format::extent::ExtentState;
use extant_format::features::Compat;
use extant_format::inode::InodeFlags;
use rustc_hash::FxHashSet;

use super::direct_file::DirectFile;
use super::io::check_changeable;
use super::{Fallocate, FileMapper};
use crate::alloc::{BlockAsk, Growth, Purpose, Run};
use crate::error::{FsError, Result};
use crate::inline;
use crate::map::{self, MappingKind, Relocation};
use crate::node::FileState;
use crate::txn::Txn;

/// Limit of an atomic write, in blocks.
const BLOCKS_MAX: u64 = 16;
/// Number of times that holes are filled which others punch meanwhile.
const ATTEMPTS: u32 = 8;
/// The inode, its quotas and the superblock.
const BASE_CREDITS: u32 = 8;

/// Lengths of atomic writes, in bytes: powers of two, which `statx` reports as
/// `stx_atomic_write_unit_min` and `stx_atomic_write_unit_max`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AtomicUnits {
    /// Smallest length: a block of the file system.
    pub min: u32,
    /// Largest length: 16 blocks, or a cluster where that is more blocks.
    pub max: u32,
}

impl AtomicUnits {
    fn of(block: BlockSize, cluster_ratio: u64) -> AtomicUnits {
        let min = block.bytes();
        let most = BLOCKS_MAX.max(cluster_ratio.min(256));
        AtomicUnits { min, max: min.saturating_mul(u32::try_from(most).unwrap_or(1)) }
    }
}

/// Mapped blocks that follow each other on the device, in one state.
struct Piece {
    file: Range<u64>,
    from: FsBlock,
    is_written: bool,
}

/// Old and new places of the clusters of a write.
struct Places {
    moves: Vec<Relocation>,
    clusters: Vec<(Run, Run)>,
}

impl DirectFile {
    /// Returns the lengths that [`write_atomic_at`](Self::write_atomic_at) takes. `None` where Linux
    /// reports 0: for encrypted contents, those that go through the journal, and without an extent
    /// tree.
    pub fn atomic_units(&self) -> Option<AtomicUnits> {
        let inode = self.inode();
        let flags = inode.node().gist().flags;
        let fits = flags.contains(InodeFlags::EXTENTS) || flags.contains(InodeFlags::INLINE_DATA);
        let without = InodeFlags::ENCRYPT | InodeFlags::VERITY;
        let superblock = inode.volume().superblock();
        let ratio = u64::from(superblock.cluster_ratio().max(1));
        let is_logged = inode.is_logged();
        (fits && !is_logged && !flags.intersects(without))
            .then(|| AtomicUnits::of(inode.volume().block_size(), ratio))
    }

    /// Writes all of `bytes` at byte `offset`, or nothing, whatever happens: after a crash the range
    /// has the old bytes or the new ones, never some of both (`RWF_ATOMIC` on Linux). Concurrent
    /// readers see the old bytes or the new ones. Nothing stays in the page cache. Not durable
    /// before [`sync_data`](crate::Inode::sync_data).
    ///
    /// The length is a power of two in the limits of [`atomic_units`](Self::atomic_units), and the
    /// offset is a multiple of it.
    ///
    /// # Errors
    ///
    /// - [`FsError::Misaligned`] for such a length, offset or address;
    ///   [`FsError::NotSupported`] where there are no atomic writes.
    /// - [`FsError::NoSpace`]: the new bytes need space beside the old ones until the next commit.
    /// - Those of [`write_at`](Self::write_at). The contents are the old ones then.
    ///
    /// # Cost
    ///
    /// One device write and one journal handle; one more handle where a hole is filled. The file is
    /// locked exclusively.
    pub fn write_atomic_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.check(offset, bytes)?;
        let inode = self.inode();
        let ino = inode.ino();
        let what =
            "atomic writes of contents that are encrypted, sealed, logged, or mapped by pointers";
        let units = self.atomic_units().ok_or(FsError::NotSupported { ino, what })?;
        let len = bytes.len() as u64;
        let misaligned = |what, value, unit| Err(FsError::Misaligned { what, value, unit });
        let limits = u64::from(units.min)..=u64::from(units.max);
        if !len.is_power_of_two() || !limits.contains(&len) {
            return misaligned("length of an atomic write", len, units.max);
        }
        if !offset.is_multiple_of(len) {
            return misaligned("offset", offset, u32::try_from(len).unwrap_or(u32::MAX));
        }
        let (fs, node) = (inode.fs(), inode.node());
        let file = fs.file(node)?;
        if inode.metadata().flags.contains(InodeFlags::APPEND) {
            let what = "it can only be appended to";
            return Err(FsError::NotPermitted { ino: node.ino(), what });
        }
        if file.is_mapped() {
            let what = "atomic writes to a file that is mapped";
            return Err(FsError::NotSupported { ino, what });
        }
        if file.size() < offset {
            inode.truncate(offset)?;
        }
        let end = offset.checked_add(len).ok_or(FsError::InvalidArgument { what: "offset" })?;
        for _ in 0..ATTEMPTS {
            // Holes get blocks, which read as zeros; privileges go, as with every write.
            inode.fallocate(Fallocate::Allocate { keep_size: true }, offset..end)?;
            if fs.change(|| self.replace(file, bytes, offset))? {
                return Ok(());
            }
        }
        let what = "atomic writes to a range in which others punch holes";
        Err(FsError::NotSupported { ino, what })
    }

    /// Writes the bytes elsewhere and gives the range these blocks. Returns false when a part of the
    /// range has no blocks.
    fn replace(&self, file: &FileState, bytes: &[u8], offset: u64) -> Result<bool> {
        let inode = self.inode();
        let (fs, node, volume) = (inode.fs(), inode.node(), inode.volume());
        let mapper = FileMapper { fs, node, file };
        let _content = node.content.write();
        check_changeable(node.ino(), node.gist().flags)?;
        let kept_out = file.cache.keep_writeback_out();
        let bits = volume.block_size().log2();
        let end = offset + bytes.len() as u64;
        let writer = volume.writer()?;
        let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
        let blocks = offset >> bits..end >> bits;
        let whole = blocks.start / ratio * ratio..blocks.end.div_ceil(ratio) * ratio;
        // What is dirty in these clusters needs its place before they move. A range that raises the
        // stored size has all that is dirty in front of it written.
        file.cache.write_back_kept_out(
            &mapper,
            whole.start << bits..whole.end << bits,
            &kept_out,
        )?;
        file.cache.forget(offset..end, &kept_out);
        if inline::is_inline(node) || file.cache.has_ended() {
            return Ok(false);
        }
        // The clusters' old contents, with the new bytes among them.
        let pieces = self.pieces(&whole)?;
        let mapped: u64 = pieces
            .iter()
            .map(|piece| {
                let file = &piece.file;
                file.end.min(blocks.end).saturating_sub(file.start.max(blocks.start))
            })
            .sum();
        if mapped != blocks.end - blocks.start {
            return Ok(false);
        }
        let pinned = self.pin(whole.end - whole.start)?;
        let done = self.store(&pieces, &pinned, bytes, offset).and_then(|places| {
            writer.dirty_files().wrote_in_place(node);
            if !volume.features().has_compat(Compat::HAS_JOURNAL) {
                volume.flush_in_place(u64::MAX)?;
            }
            self.swap(&mapper, &places, &blocks, end)
        });
        if done.is_err() && writer.check_running().is_ok() {
            for run in &pinned {
                let blocks = run.start.0..run.start.0 + u64::from(run.len);
                writer.alloc().unpromise_pinned(volume, blocks);
            }
        }
        done.map(|()| true)
    }

    /// The mapped pieces of file blocks, with their places, and whether they are written.
    fn pieces(&self, blocks: &Range<u64>) -> Result<Vec<Piece>> {
        let inode = self.inode();
        let mut pieces = Vec::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let piece = map::lookup(inode.fs(), inode.node(), at, blocks.end)?;
            let end = piece.file_end().min(blocks.end).max(at + 1);
            match piece.kind {
                MappingKind::Mapped(from) => {
                    pieces.push(Piece { file: at..end, from, is_written: true });
                }
                MappingKind::Unwritten(from) => {
                    pieces.push(Piece { file: at..end, from, is_written: false });
                }
                MappingKind::Hole | MappingKind::Inline => {}
            }
            at = end;
        }
        Ok(pieces)
    }

    /// Pins clusters for so many blocks, in few runs.
    fn pin(&self, blocks: u64) -> Result<Vec<Run>> {
        let inode = self.inode();
        let (volume, node) = (inode.volume(), inode.node());
        let alloc = volume.writer()?.alloc();
        let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
        let goal = alloc.first_goal(volume, node.ino())?;
        alloc.promise(volume, blocks / ratio)?;
        let mut runs: Vec<Run> = Vec::new();
        let mut left = blocks;
        while left > 0 {
            let len = u32::try_from(left).unwrap_or(u32::MAX);
            let min = u32::try_from(ratio).unwrap_or(1);
            let ask = BlockAsk { goal, len, min, purpose: Purpose::Data, continues: false };
            match alloc.pin(volume, node, &ask, Growth::default()) {
                Ok(run) => {
                    left = left.saturating_sub(u64::from(run.len));
                    runs.push(run);
                }
                Err(error) => {
                    for run in runs {
                        let start = run.start.0;
                        alloc.unpromise_pinned(volume, start..start + u64::from(run.len));
                    }
                    alloc.unpromise(left / ratio);
                    return Err(error);
                }
            }
        }
        Ok(runs)
    }

    /// Writes the clusters to their new places: the new bytes, and around them the old ones.
    fn store(&self, pieces: &[Piece], pinned: &[Run], bytes: &[u8], offset: u64) -> Result<Places> {
        let inode = self.inode();
        let volume = inode.volume();
        let (device, block_size) = (volume.device(), volume.block_size());
        let bits = block_size.log2();
        let ratio = u64::from(volume.superblock().cluster_ratio().max(1));
        let address = |block: u64| {
            let what = "block past the largest device";
            block_size.offset_of(FsBlock(block)).ok_or(FsError::InvalidArgument { what })
        };
        let new = offset >> bits..(offset + bytes.len() as u64) >> bits;
        let mut places = Places { moves: Vec::new(), clusters: Vec::new() };
        // New places in the order of the file, cluster by cluster.
        let fresh = |cluster: u64| {
            let mut skip = cluster * ratio;
            pinned.iter().find_map(|run| {
                let len = u64::from(run.len);
                let here = (skip < len).then(|| run.start.0 + skip);
                skip = skip.saturating_sub(len);
                here
            })
        };
        let first_cluster = (offset >> bits) / ratio;
        for Piece { file, from, is_written } in pieces {
            let mut at = file.start;
            while at < file.end {
                let cluster = at / ratio;
                let stop = file.end.min((cluster + 1) * ratio);
                let into = at % ratio;
                let what = "fewer clusters than were pinned";
                let start = fresh(cluster - first_cluster);
                let start = start.ok_or(FsError::InvalidArgument { what })?;
                let (to, old) = (start + into, from.0 + (at - file.start));
                let len = stop - at;
                let mut buffer = AlignedBuffer::zeroed((len << bits) as usize);
                let is_whole = new.start <= at && stop <= new.end;
                if *is_written && !is_whole {
                    device.read_at(address(old)?, &mut buffer)?; // T3.
                }
                let part = at.max(new.start)..stop.min(new.end);
                let has_new = part.start < part.end;
                if has_new {
                    let put = ((part.start - at) << bits) as usize;
                    let take = ((part.start - new.start) << bits) as usize;
                    let count = ((part.end - part.start) << bits) as usize;
                    buffer[put..put + count].copy_from_slice(&bytes[take..take + count]);
                }
                if *is_written || has_new {
                    let to = if sabotage("extant.file.atomic-in-place") { old } else { to };
                    device.write_at(address(to)?, &buffer)?;
                }
                let moved = Relocation { file: at..stop, to: FsBlock(to) };
                match places.moves.last_mut() {
                    Some(last)
                        if last.file.end == at
                            && last.to.0 + (last.file.end - last.file.start) == to
                            && is_same_piece(&last.file, file) =>
                    {
                        last.file.end = stop;
                    }
                    _ => places.moves.push(moved),
                }
                let len = u32::try_from(ratio).unwrap_or(1);
                let run = |start| Run { start: FsBlock(start), len };
                let pair = (run(old - into), run(start));
                if places.clusters.last().is_none_or(|(_, new)| new.start.0 != start) {
                    places.clusters.push(pair);
                }
                at = stop;
            }
        }
        Ok(places)
    }

    /// Gives the range its new places, in one handle.
    fn swap(
        &self,
        mapper: &FileMapper<'_>,
        places: &Places,
        blocks: &Range<u64>,
        size_to: u64,
    ) -> Result<()> {
        let inode = self.inode();
        let (node, volume) = (inode.node(), inode.volume());
        let alloc = volume.writer()?.alloc();
        let superblock = volume.superblock();
        let groups: FxHashSet<_> = places
            .clusters
            .iter()
            .flat_map(|(old, new)| [old.start, new.start])
            .filter_map(|block| superblock.group_of_block(block))
            .map(|(group, _)| group)
            .collect();
        let count: u64 = places.moves.iter().map(|sub| sub.file.end - sub.file.start).sum();
        let credits = BASE_CREDITS
            + map::remap_credits(volume, places.moves.len(), count)
            + map::publish_credits(volume, node, places.moves.len(), count)
            + 2 * u32::try_from(groups.len()).unwrap_or(u32::MAX >> 2);
        let mut txn = Txn::begin(volume, credits)?;
        txn.publishes();
        node.change_map(|| map::remap(&mut txn, node, &places.moves))?;
        let ratio = u64::from(superblock.cluster_ratio().max(1));
        let taken = places.clusters.iter().try_for_each(|(old, new)| {
            alloc.take_pinned(&mut txn, *new, u64::from(new.len) / ratio)?;
            alloc.free(&mut txn, *old, Purpose::Data)
        });
        taken.map_err(|error| txn.fail(error))?;
        let written = ExtentState::Written;
        let mut at = blocks.start;
        while at < blocks.end {
            let rest = at..blocks.end;
            let progress = node.change_map(|| map::convert_range(&mut txn, node, rest, written));
            let progress = progress.map_err(|error| txn.fail(error))?;
            if progress.end <= at {
                let what = "an atomic write that does not fit one transaction";
                return Err(txn.fail(FsError::InvalidArgument { what }));
            }
            at = progress.end;
        }
        let file = mapper.file;
        file.set_size(file.size().max(size_to));
        file.touch(volume.writer()?.now());
        mapper.store_size(&mut txn, size_to).map_err(|error| txn.fail(error))?;
        Ok(())
    }
}

/// Returns whether a piece that was moved so far belongs to this piece of the map: pieces of two
/// states are moved apart.
fn is_same_piece(moved: &Range<u64>, piece: &Range<u64>) -> bool {
    moved.start >= piece.start
}
