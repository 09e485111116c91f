//! The bytes of a file, as far as they can be read.

use std::ops::Range;

use extant_format::extent::{Extent, ExtentState};
use extant_format::inline::{self, BLOCK_BYTES};
use extant_format::inode::InodeFlags;
use extant_format::record::Record;

use crate::image::{Image, Unread};
use crate::limits::{Budget, CHUNK_BYTES};
use crate::map::Piece;
use crate::report::{Reasons, Why};

/// Who takes bytes.
pub(crate) trait Sink {
    /// Why it takes no more.
    type Stop;

    /// Takes bytes of the file at an offset.
    fn data(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Self::Stop>;
}

/// A file that is read: its record, how many bytes it has, and how many sectors the inode counts, if that is to be
/// believed.
pub(crate) struct Source<'a> {
    pub(crate) record: &'a Record,
    pub(crate) size: u64,
    pub(crate) sectors: Option<u64>,
}

/// What was not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Missing {
    pub(crate) bytes: u64,
    /// Bytes that were handed on.
    pub(crate) read: u64,
}

impl Image {
    /// Hands on the bytes of a file. What is not handed on is a hole, or counted as missing.
    pub(crate) fn read_content<S: Sink>(
        &self,
        source: &Source<'_>,
        budget: &mut Budget,
        reasons: &mut Reasons,
        sink: &mut S,
    ) -> Result<Missing, S::Stop> {
        if self.is_inline(source.record) {
            return self.read_inline(source, reasons, sink);
        }
        let mut missing = Missing::default();
        // The map is walked piece by piece; reading takes from the budget of contents meanwhile.
        let mut nodes = *budget;
        let mut stop = None;
        let mut buffer = Vec::new();
        let block = self.block_bytes() as u64;
        let blocks = source.size.div_ceil(block);
        let is_sealed = source.record.has(InodeFlags::VERITY);
        let mut used = Used::of(self);
        let mut is_whole = true;
        self.walk_map(source.record, &mut nodes, &mut |piece| {
            // What lies behind the end is no contents: where the file has holes, these are its blocks. The hash
            // tree of a sealed file is there.
            let is_behind =
                |extent: &Extent| !is_sealed && u64::from(extent.file_start.0) >= blocks;
            match &piece {
                Piece::Data { extent } if is_behind(extent) => used.take_behind(extent),
                _ => used.take(&piece),
            }
            let (from, to) = match piece {
                Piece::Node { .. } | Piece::Unwritten { .. } => return true,
                Piece::Doubt { why } => {
                    *reasons.entry(why).or_default() += 1;
                    return true;
                }
                Piece::Lost { from, to, why } => {
                    is_whole = false;
                    let lost = cut(from..to, block, source.size);
                    if lost.start < lost.end {
                        let count = match why {
                            Why::Outside => (lost.end - lost.start).div_ceil(block),
                            _ => 1,
                        };
                        *reasons.entry(why).or_default() += count;
                        missing.bytes = missing.bytes.saturating_add(lost.end - lost.start);
                    }
                    return true;
                }
                Piece::Data { extent } if extent.state != ExtentState::Written => return true,
                Piece::Data { extent } => {
                    let from = u64::from(extent.file_start.0);
                    let bytes = cut(from..from + u64::from(extent.len.0), block, source.size);
                    if bytes.start >= bytes.end {
                        return true;
                    }
                    (bytes, extent.device_start.0)
                }
            };
            let blocks = (from.end - from.start).div_ceil(block);
            if !budget.data(blocks) {
                *reasons.entry(Why::TooMuch).or_default() += 1;
                missing.bytes = missing.bytes.saturating_add(from.end - from.start);
                return false;
            }
            let mut at = Run { file: from, device: to, block };
            while stop.is_none() && !at.is_empty() {
                let part = at.take(CHUNK_BYTES as u64);
                if let Err(why) = self.copy(&part, &mut buffer, reasons, &mut missing, sink) {
                    stop = Some(why);
                }
            }
            stop.is_none()
        });
        budget.take_nodes_of(&nodes);
        missing.bytes = missing.bytes.min(source.size);
        if let Some(sectors) = source.sectors.filter(|_| is_whole && stop.is_none()) {
            // A block of the map that was overwritten with zeros says nothing else than that there are holes.
            let counted = sectors.saturating_mul(512) / block;
            let acl = u64::from(source.record.file_acl(self.is_wide()).0 != 0);
            let short = counted.saturating_sub(used.blocks(acl));
            let holes = source.size.saturating_sub(missing.read).saturating_sub(missing.bytes);
            let lost = short.saturating_mul(block).min(holes);
            if lost > 0 {
                *reasons.entry(Why::Blocks).or_default() += lost.div_ceil(block);
                missing.bytes = missing.bytes.saturating_add(lost);
            }
        }
        let twice = used.twice();
        if twice > 0 {
            *reasons.entry(Why::Twice).or_default() += twice;
        }
        match stop {
            Some(stop) => Err(stop),
            None => Ok(missing),
        }
    }

    /// Copies a run; where it cannot be read as a whole, block by block.
    fn copy<S: Sink>(
        &self,
        run: &Run,
        buffer: &mut Vec<u8>,
        reasons: &mut Reasons,
        missing: &mut Missing,
        sink: &mut S,
    ) -> Result<(), S::Stop> {
        let len = run.file.end - run.file.start;
        buffer.resize(len as usize, 0);
        if self.read_into(run.device, buffer).is_ok() {
            missing.read = missing.read.saturating_add(len);
            return sink.data(run.file.start, buffer);
        }
        let mut rest = Run { file: run.file.clone(), ..*run };
        while !rest.is_empty() {
            let one = rest.take(run.block);
            let len = one.file.end - one.file.start;
            buffer.resize(len as usize, 0);
            match self.read_into(one.device, buffer) {
                Ok(()) => {
                    missing.read = missing.read.saturating_add(len);
                    sink.data(one.file.start, buffer)?;
                }
                Err(why) => {
                    let why = match why {
                        Unread::Outside => Why::Outside,
                        Unread::Device => Why::Unreadable,
                    };
                    *reasons.entry(why).or_default() += 1;
                    missing.bytes = missing.bytes.saturating_add(len);
                }
            }
        }
        Ok(())
    }

    fn read_inline<S: Sink>(
        &self,
        source: &Source<'_>,
        reasons: &mut Reasons,
        sink: &mut S,
    ) -> Result<Missing, S::Stop> {
        let area = source.record.block_area();
        let value = self.inline_value(source.record);
        let stored = BLOCK_BYTES as u64 + value.map_or(0, |value| value.len() as u64);
        let there = source.size.min(stored);
        let missing = Missing { bytes: source.size - there, read: there };
        if missing.bytes > 0 {
            *reasons.entry(Why::Inline).or_default() += 1;
        }
        if let Ok((head, tail)) = inline::parts(&area, value.unwrap_or(&[]), there) {
            if !head.is_empty() {
                sink.data(0, head)?;
            }
            if !tail.is_empty() {
                sink.data(BLOCK_BYTES as u64, tail)?;
            }
        }
        Ok(missing)
    }

    /// Returns where the last block of a file ends that is mapped, in bytes.
    pub(crate) fn mapped_end(&self, record: &Record, budget: &mut Budget) -> u64 {
        let mut end = 0;
        if self.is_inline(record) {
            let value = self.inline_value(record).map_or(0, <[u8]>::len);
            return (BLOCK_BYTES + value) as u64;
        }
        self.walk_map(record, budget, &mut |piece| {
            if let Piece::Data { extent } = piece {
                end = end.max(u64::from(extent.file_start.0) + u64::from(extent.len.0));
            }
            true
        });
        end.saturating_mul(self.block_bytes() as u64)
    }
}

/// What a map takes of an image, as an inode counts it: whole clusters, blocks of the map included.
struct Used {
    /// Blocks of a cluster, as a power of 2.
    bits: u32,
    clusters: u64,
    /// The last cluster of contents: where extents meet in it, it is one.
    last: Option<u64>,
    /// Blocks of contents in runs, from the first to behind the last, in the order of the map; at most
    /// [`RUNS_MAX`] of them.
    runs: Vec<Range<u64>>,
}

/// Runs of a file that are compared with each other: 1 MiB.
const RUNS_MAX: usize = 1 << 16;

impl Used {
    fn of(image: &Image) -> Used {
        Used { bits: image.sb.cluster_bits(), clusters: 0, last: None, runs: Vec::new() }
    }

    fn take(&mut self, piece: &Piece) {
        let (first, len) = match piece {
            Piece::Data { extent } => (extent.device_start.0, u64::from(extent.len.0)),
            Piece::Unwritten { first, len } => (*first, u64::from(*len)),
            Piece::Node { .. } => {
                self.clusters = self.clusters.saturating_add(1);
                return;
            }
            Piece::Lost { .. } | Piece::Doubt { .. } => return,
        };
        if matches!(piece, Piece::Data { .. }) {
            self.run(first..first.saturating_add(len));
        }
        let last = first.saturating_add(len.saturating_sub(1)) >> self.bits;
        let first = first >> self.bits;
        let is_shared = u64::from(self.last == Some(first));
        let clusters = last.saturating_sub(first).saturating_add(1).saturating_sub(is_shared);
        self.clusters = self.clusters.saturating_add(clusters);
        self.last = Some(last);
    }

    /// Takes a run behind the end of the file, which only shows that a block is in two places.
    fn take_behind(&mut self, extent: &Extent) {
        let first = extent.device_start.0;
        self.run(first..first.saturating_add(u64::from(extent.len.0)));
    }

    fn run(&mut self, blocks: Range<u64>) {
        let runs = self.runs.len();
        match self.runs.last_mut() {
            Some(last) if last.end == blocks.start => last.end = blocks.end,
            _ if runs < RUNS_MAX => self.runs.push(blocks),
            _ => {}
        }
    }

    /// How many blocks the map has in two places at least: one of them is wrong, and nobody knows which. So it is
    /// where a block of pointers is a copy of another, which has no checksum.
    fn twice(&mut self) -> u64 {
        self.runs.sort_unstable_by_key(|run| run.start);
        let (mut end, mut twice) = (0, 0u64);
        for run in &self.runs {
            twice = twice.saturating_add(end.min(run.end).saturating_sub(run.start));
            end = end.max(run.end);
        }
        twice
    }

    /// Blocks, with as many more clusters.
    fn blocks(&self, more: u64) -> u64 {
        self.clusters.saturating_add(more).checked_shl(self.bits).unwrap_or(u64::MAX)
    }
}

/// Bytes of a file on blocks in a row.
struct Run {
    file: Range<u64>,
    device: u64,
    block: u64,
}

impl Run {
    fn is_empty(&self) -> bool {
        self.file.start >= self.file.end
    }

    /// Takes up to `bytes`, whole blocks unless the run ends.
    fn take(&mut self, bytes: u64) -> Run {
        let start = self.file.start;
        let end = self.file.end.min(start.saturating_add(bytes.max(self.block)));
        let part = Run { file: start..end, device: self.device, block: self.block };
        self.file.start = end;
        self.device = self.device.saturating_add((end - start).div_ceil(self.block));
        part
    }
}

/// File blocks as bytes, up to the file's end.
fn cut(blocks: Range<u64>, block: u64, size: u64) -> Range<u64> {
    blocks.start.saturating_mul(block).min(size)..blocks.end.saturating_mul(block).min(size)
}
