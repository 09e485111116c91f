//! The area of fast commits, and the records of one on their way into it.

use std::ops::Range;

use extant_base::{BlockSize, sabotage};
use extant_format::jbd2::{FcRecord, FcWriter};

use crate::block::Tid;

/// Receives the records of a fast commit.
pub struct FastSink {
    pub(crate) writer: FcWriter,
    /// Whether all records were taken.
    pub(crate) is_whole: bool,
}

impl FastSink {
    pub(crate) fn new(block_size: BlockSize) -> FastSink {
        FastSink { writer: FcWriter::new(block_size), is_whole: true }
    }

    /// Adds a record. One that no block can hold makes the fast commit a full one.
    pub fn push(&mut self, record: &FcRecord<'_>) {
        self.is_whole &= self.writer.push(record);
    }
}

impl std::fmt::Debug for FastSink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FastSink").field("is_whole", &self.is_whole).finish_non_exhaustive()
    }
}

/// The fast-commit area of a journal that makes fast commits.
#[derive(Debug)]
pub(crate) struct FastArea {
    pub(crate) blocks: Range<u32>,
    /// The transaction whose fast commits are in the area; `None` before the first.
    pub(crate) of: Option<Tid>,
    /// Number of blocks that they take.
    pub(crate) used: u32,
    /// The transaction that can only be committed fully.
    pub(crate) closed: Option<Tid>,
    /// Whether fast commits are made; otherwise the area is only kept empty.
    is_used: bool,
    /// Whether its first block may be the head of a fast commit.
    pub(crate) is_headed: bool,
}

impl FastArea {
    pub(crate) fn new(blocks: Range<u32>, closed: Option<Tid>, is_used: bool) -> FastArea {
        FastArea { blocks, of: None, used: 0, closed, is_used, is_headed: true }
    }

    /// Returns whether fast commits are made in it.
    pub(crate) fn is_used(&self) -> bool {
        self.is_used
    }

    /// Returns the number of blocks that fast commits may still take. The last block of the area
    /// stays unused: after a good fast commit there, e2fsck up to 1.47.0 looks for the next one in
    /// the block behind the journal, and drops the whole log when there is none.
    pub(crate) fn left(&self) -> u32 {
        let unused = if sabotage("jbd2.fast.area-used-whole") { 0 } else { 1 };
        let usable = self.blocks.end.saturating_sub(self.blocks.start).saturating_sub(unused);
        usable.saturating_sub(self.used)
    }
}
