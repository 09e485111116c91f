//! One piece of the step through the directories.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::{FsBlock, Ino};
use extant_format::error::ChecksumError;

use crate::Problem;
use crate::base::Base;
use crate::findings::{HELD_MAX, Sink};
use crate::names::Names;
use crate::tables::Tables;

/// Some directories, one after the other.
pub(crate) struct DirScan<'s, 'a> {
    pub(crate) base: &'s Base<'a>,
    pub(crate) tables: &'s Tables,
    pub(crate) sink: Sink<'s, 'a>,
    pub(crate) names: Names,
    pub(crate) bytes: Vec<u8>,
    /// Hashes of the names of the block at hand.
    pub(crate) hashes: Vec<u32>,
    /// Set when this piece cannot stand beside the others.
    pub(crate) is_conflict: Option<&'s AtomicBool>,
}

impl<'a> Deref for DirScan<'_, 'a> {
    type Target = Base<'a>;

    fn deref(&self) -> &Base<'a> {
        self.base
    }
}

impl<'s, 'a> DirScan<'s, 'a> {
    pub(crate) fn new(
        base: &'s Base<'a>,
        tables: &'s Tables,
        sink: Sink<'s, 'a>,
        is_conflict: Option<&'s AtomicBool>,
    ) -> DirScan<'s, 'a> {
        let (names, bytes, hashes) = (Names::new(), Vec::new(), Vec::new());
        DirScan { base, tables, sink, names, bytes, hashes, is_conflict }
    }

    pub(crate) fn problem(&mut self, problem: Problem) {
        self.sink.problem(problem);
    }

    /// Notes a wrong checksum of a block of an inode.
    pub(crate) fn block_checksum(
        &mut self,
        ino: Ino,
        block: u64,
        result: Result<(), ChecksumError>,
    ) {
        if let Err(source) = result {
            self.problem(Problem::BlockChecksum { ino, block: FsBlock(block), source });
        }
    }

    /// Returns whether the work of this piece is for nothing.
    pub(crate) fn is_over(&self) -> bool {
        let Some(conflict) = self.is_conflict else { return self.sink.is_stopped() };
        if self.sink.held() > HELD_MAX {
            conflict.store(true, Ordering::Relaxed);
        }
        conflict.load(Ordering::Relaxed)
    }
}
