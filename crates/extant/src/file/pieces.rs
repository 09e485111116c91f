//! In how many pieces a file lies on the device.

use std::ops::Range;

use extant_base::FsBlock;

use crate::error::{Fault, FsError, Result};
use crate::inode::Inode;
use crate::map::{FILE_BLOCKS_END, MapIter, MappingKind};

/// How a file lies on the device, from [`Inode::pieces`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub struct Pieces {
    /// Runs of blocks that lie together on the device and follow each other in the file; holes do not end one.
    pub count: u64,
    /// Blocks that the file has for its contents.
    pub blocks: u64,
}

/// Clusters of a file that follow each other there and on the device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Part {
    /// In clusters of the file; each has a block that is mapped.
    pub(super) file: Range<u64>,
    /// The device's block with which the first of them begins.
    pub(super) place: FsBlock,
}

impl Part {
    pub(super) fn clusters(&self) -> u64 {
        self.file.end - self.file.start
    }
}

/// A piece: parts behind one another on the device.
#[derive(Clone, Debug, Default)]
pub(super) struct Piece {
    pub(super) parts: Vec<Part>,
    pub(super) clusters: u64,
}

/// The parts of a file, in order.
pub(super) struct Parts {
    runs: MapIter,
    inode: Inode,
    ratio: u64,
    /// First cluster of the file that was not told.
    next: u64,
}

impl Parts {
    /// The parts of all that a file has blocks for.
    pub(super) fn of(inode: &Inode) -> Parts {
        let ratio = u64::from(inode.volume().superblock().cluster_ratio().max(1));
        Parts { runs: inode.map(blocks_of(inode)), inode: inode.clone(), ratio, next: 0 }
    }
}

impl Iterator for Parts {
    type Item = Result<Part>;

    fn next(&mut self) -> Option<Result<Part>> {
        loop {
            let run = match self.runs.next()? {
                Ok(run) => run,
                Err(error) => return Some(Err(error)),
            };
            let (MappingKind::Mapped(start) | MappingKind::Unwritten(start)) = run.kind else {
                continue;
            };
            let first = u64::from(run.file_start.0);
            if start.0 % self.ratio != first % self.ratio {
                let rule = "offset in its cluster differs from the file block's";
                let fault = Fault::Field { rule, value: start.0, limit: first };
                return Some(Err(FsError::corrupt("file mapping", self.inode.ino(), None, fault)));
            }
            let clusters = first / self.ratio..run.file_end().div_ceil(self.ratio);
            // The part before may end in the cluster in which this run begins.
            let from = clusters.start.max(self.next);
            if from >= clusters.end {
                continue;
            }
            self.next = clusters.end;
            let behind = (from - clusters.start) * self.ratio;
            let place = FsBlock((start.0 - first % self.ratio).saturating_add(behind));
            return Some(Ok(Part { file: from..clusters.end, place }));
        }
    }
}

/// File blocks that may be mapped. Blocks past the end of the file can be reserved only by extents.
fn blocks_of(inode: &Inode) -> Range<u64> {
    0..if inode.uses_extents() { FILE_BLOCKS_END } else { inode.block_len().max(1) }
}

impl Inode {
    /// Returns in how many pieces the contents of a file lie, what is not yet on the device left out.
    ///
    /// # Errors
    ///
    /// Damage of the map, device errors.
    ///
    /// # Cost
    ///
    /// In extents.
    pub fn pieces(&self) -> Result<Pieces> {
        let (mut pieces, mut next) = (Pieces::default(), None);
        for run in self.map(blocks_of(self)) {
            let run = run?;
            let (MappingKind::Mapped(start) | MappingKind::Unwritten(start)) = run.kind else {
                continue;
            };
            pieces.count += u64::from(next != Some(start.0));
            pieces.blocks = pieces.blocks.saturating_add(run.len);
            next = Some(start.0.saturating_add(run.len));
        }
        Ok(pieces)
    }
}
