//! One piece of the step through the inodes: some groups, what was found in them, and how the
//! pieces become one.
//!
//! Pieces are done on several threads, each as if no other claimed one of its blocks. Where one
//! does, the order of claims decides who is told to be wrong; so the step begins again then, on one
//! thread and in order of inode number. An image without double claims, which is nearly every
//! image, never needs that.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Deref, Range};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::{FsBlock, Ino};

use crate::base::Base;
use crate::checker::Checker;
use crate::findings::{HELD_MAX, Sink};
use crate::tables::{Bits, Detail, Info, Run};
use crate::{CheckError, Problem, crew};

/// Bytes of inode tables in one piece.
const PIECE_BYTES: u64 = 1 << 20;
/// What a group without a table to read weighs, in bytes.
const GROUP_BYTES: u64 = 4096;

/// An attribute block and its users.
#[derive(Default, Clone)]
pub(crate) struct SharedBlock {
    /// `encryption.c`.
    pub(crate) context: Option<Vec<u8>>,
    pub(crate) stored: u32,
    pub(crate) counted: u32,
    /// Values in inodes: bytes charged and how many.
    pub(crate) value_bytes: u64,
    pub(crate) value_inodes: u32,
    /// What was found in it, among the problems and values of its piece.
    pub(crate) problems: Range<usize>,
    pub(crate) values: Range<usize>,
}

/// A reference to a value in an inode.
pub(crate) struct ValueRef {
    pub(crate) owner: Ino,
    pub(crate) value: Ino,
    pub(crate) len: u32,
    pub(crate) offset: u32,
    pub(crate) stored_hash: u32,
    /// The hash of the name; that of the value is still to be mixed in.
    pub(crate) name_hash: u32,
    /// The same, with bytes of the name taken as signed.
    pub(crate) signed_hash: u32,
}

/// What is stored in the inode of a value.
#[derive(Clone, Copy)]
pub(crate) struct ValueState {
    pub(crate) references: u64,
    pub(crate) hash: u32,
    pub(crate) size: u64,
}

/// Usage by id: bytes and inodes.
pub(crate) type Usage = BTreeMap<u32, (u64, u64)>;

/// What was found in some groups.
#[derive(Default)]
pub(crate) struct Part {
    pub(crate) infos: Vec<Info>,
    pub(crate) sizes: Vec<(u64, u64)>,
    pub(crate) details: Vec<Detail>,
    pub(crate) runs: Vec<Run>,
    pub(crate) used: BTreeMap<u32, Bits>,
    pub(crate) known: BTreeMap<u32, Bits>,
    pub(crate) blocks: BTreeMap<u64, SharedBlock>,
    pub(crate) values: Vec<ValueRef>,
    pub(crate) value_states: BTreeMap<u32, ValueState>,
    /// Times of deletion of inodes in use.
    pub(crate) dtimes: BTreeMap<u32, u32>,
    /// Inodes without links whose time of deletion is a possible inode number: they may be orphans.
    pub(crate) low_dtimes: Vec<(Ino, u32, u16)>,
    pub(crate) policies: BTreeMap<u32, Vec<u8>>,
    pub(crate) usage: [Usage; 3],
    pub(crate) directories: u32,
    pub(crate) value_inodes: u32,
    /// Whether the missing `large_file` was told.
    pub(crate) lacks_large_file: bool,
    /// Bytes gone through.
    pub(crate) bytes: u64,
}

pub(crate) struct Scan<'s, 'a> {
    pub(crate) base: &'s Base<'a>,
    pub(crate) sink: Sink<'s, 'a>,
    pub(crate) part: Part,
    /// Set when this piece cannot stand beside the others.
    is_conflict: Option<&'s AtomicBool>,
}

impl<'a> Deref for Scan<'_, 'a> {
    type Target = Base<'a>;

    fn deref(&self) -> &Base<'a> {
        self.base
    }
}

impl Scan<'_, '_> {
    pub(crate) fn problem(&mut self, problem: Problem) {
        self.sink.problem(problem);
    }

    /// Whether claims are made in order of inode number.
    pub(crate) fn is_exact(&self) -> bool {
        self.is_conflict.is_none()
    }

    /// Goes on without what cannot be read, if that is wanted.
    pub(crate) fn note_unreadable(
        &mut self,
        error: CheckError,
        what: impl FnOnce() -> String,
    ) -> Result<(), CheckError> {
        let problem = self.base.unreadable(error, what)?;
        self.problem(problem);
        Ok(())
    }

    /// Claims whole clusters for an inode. False, and a problem, when a block does not exist or was
    /// claimed before.
    pub(crate) fn claim(&mut self, ino: Ino, block: u64, len: u64) -> bool {
        if !self.in_range(block, len) {
            self.problem(Problem::BlockRange { ino, block: FsBlock(block), len });
            return false;
        }
        let first = self.cluster(block);
        let last = self.cluster(block.saturating_add(len.saturating_sub(1)));
        let Some(twice) = self.claims.claim(first, last - first + 1) else { return true };
        if let Some(conflict) = self.is_conflict {
            conflict.store(true, Ordering::Relaxed);
            return false;
        }
        let block = (twice << self.sb.cluster_bits()) + u64::from(self.sb.first_data_block);
        self.problem(Problem::ClaimedTwice { ino, block: FsBlock(block) });
        false
    }

    /// Notes a wrong checksum of a block of an inode.
    pub(crate) fn block_checksum(
        &mut self,
        ino: Ino,
        block: u64,
        result: Result<(), extant_format::error::ChecksumError>,
    ) {
        if let Err(source) = result {
            self.problem(Problem::BlockChecksum { ino, block: FsBlock(block), source });
        }
    }

    /// Whether the work of this piece is for nothing.
    pub(crate) fn is_over(&self) -> bool {
        match self.is_conflict {
            Some(conflict) => {
                if self.sink.held() > HELD_MAX {
                    conflict.store(true, Ordering::Relaxed);
                }
                conflict.load(Ordering::Relaxed)
            }
            None => self.sink.is_stopped(),
        }
    }
}

impl Checker<'_> {
    /// Reads all inode tables as far as they are used.
    pub(crate) fn read_inodes(&mut self) -> Result<(), CheckError> {
        let base = &self.base;
        let weight = |group| GROUP_BYTES.saturating_add(base.table_bytes(group));
        let groups = self.base.groups.len();
        let threads = self.base.threads((0..groups).map(weight).fold(0, u64::saturating_add));
        let pieces = crew::share(threads, groups, PIECE_BYTES, weight);
        if threads > 1 {
            if self.read_inodes_at_once(threads, &pieces)? {
                return Ok(());
            }
            self.forget_inodes();
        }
        let mut scan = Scan {
            base: &self.base,
            sink: Sink::Tell(&mut self.findings),
            part: Part::default(),
            is_conflict: None,
        };
        for piece in pieces {
            scan.read_tables(piece)?;
            if let Sink::Tell(findings) = &mut scan.sink {
                findings.did(std::mem::take(&mut scan.part.bytes));
            }
        }
        let part = scan.part;
        self.add_part(part);
        Ok(())
    }

    /// On several threads. False when the claims of two of them meet, or there is too much to hold:
    /// nothing was told then.
    fn read_inodes_at_once(
        &mut self,
        threads: usize,
        pieces: &[Range<usize>],
    ) -> Result<bool, CheckError> {
        let is_conflict = AtomicBool::new(false);
        let base = &self.base;
        let work = |number: usize| -> Result<(Part, Vec<Problem>), CheckError> {
            let mut scan = Scan {
                base,
                sink: Sink::Hold(Vec::new()),
                part: Part::default(),
                is_conflict: Some(&is_conflict),
            };
            if !is_conflict.load(Ordering::Relaxed)
                && let Some(piece) = pieces.get(number)
            {
                scan.read_tables(piece.clone())?;
            }
            Ok((scan.part, scan.sink.into_held()))
        };
        let (mut held, mut failed) = (Vec::new(), None);
        let (found, findings) = (&mut self.found, &mut self.findings);
        let take = |result: Result<(Part, Vec<Problem>), CheckError>| {
            let (mut part, mut problems) = match result {
                Ok(found) => found,
                Err(error) => {
                    failed = Some(error);
                    return ControlFlow::Break(());
                }
            };
            found.join_blocks(base, &mut part, &mut problems, &is_conflict);
            held.append(&mut problems);
            if held.len() > HELD_MAX || is_conflict.load(Ordering::Relaxed) {
                is_conflict.store(true, Ordering::Relaxed);
                return ControlFlow::Break(());
            }
            findings.did(part.bytes);
            found.join(part);
            if findings.is_stopped { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        crew::in_order(threads, pieces.len(), work, take)?;
        if let Some(error) = failed {
            return Err(error);
        }
        if is_conflict.load(Ordering::Relaxed) {
            return Ok(false);
        }
        for problem in held {
            self.findings.problem(problem);
        }
        Ok(true)
    }
}
