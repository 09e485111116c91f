//! One piece of the step through the inodes: some groups, what was found in them, and how the
//! pieces become one.
//!
//! Pieces are done on several threads, each as if no other claimed one of its blocks. Where one
//! does, the order of claims decides who is told to be wrong; so the step begins again then, on one
//! thread and in order of inode number. An image without double claims, which is nearly every
//! image, never needs that.

use std::ops::{ControlFlow, Deref};
use std::sync::atomic::{AtomicBool, Ordering};

use extant_base::{FsBlock, Ino};

use crate::base::Base;
use crate::checker::Checker;
use crate::claims::Gathered;
use crate::findings::{HELD_MAX, Sink};
use crate::found::Found;
use crate::part::Part;
use crate::piece::Piece;
use crate::{CheckError, Problem, crew};

/// Bytes of inode tables in one piece.
const PIECE_BYTES: u64 = 1 << 20;
/// How much less time a byte of an inode table takes than one of a directory.
const CHEAPER: u64 = 8;
/// What a group without a table to read weighs, in bytes.
const GROUP_BYTES: u64 = 4096;

pub(crate) struct Scan<'s, 'a> {
    pub(crate) base: &'s Base<'a>,
    pub(crate) sink: Sink<'s, 'a>,
    pub(crate) part: Part,
    /// Set when this piece cannot stand beside the others.
    is_conflict: Option<&'s AtomicBool>,
    /// Not claimed yet, in a piece beside others.
    gathered: Gathered,
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

    /// Returns whether claims are made in order of inode number.
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
        if let Some(conflict) = self.is_conflict {
            let len = last - first + 1;
            if self.gathered.has_any(first, len) {
                conflict.store(true, Ordering::Relaxed);
            } else if let Some(run) = self.gathered.add(first, len) {
                self.claim_beside_others(run);
            }
            // Nothing is followed any further then: it may lead round and round.
            return !conflict.load(Ordering::Relaxed);
        }
        let Some(twice) = self.claims.claim(first, last - first + 1) else { return true };
        let block = (twice << self.sb.cluster_bits()) + u64::from(self.sb.first_data_block);
        self.problem(Problem::ClaimedTwice { ino, block: FsBlock(block) });
        false
    }

    /// Claims clusters that were gathered; where another has one of them, all pieces are for nothing.
    fn claim_beside_others(&self, (first, len): (u64, u64)) {
        if let (Some(_), Some(conflict)) = (self.claims.claim(first, len), self.is_conflict) {
            conflict.store(true, Ordering::Relaxed);
        }
    }

    /// Claims all that was gathered.
    fn claim_gathered(&mut self) {
        let gathered: Vec<_> = self.gathered.take().collect();
        gathered.into_iter().for_each(|run| self.claim_beside_others(run));
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

    /// Returns whether the work of this piece is for nothing.
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
        let bytes = (0..groups).map(weight).fold(0, u64::saturating_add);
        let threads = self.base.threads(bytes / CHEAPER);
        let ranges = crew::share(threads, groups, PIECE_BYTES, weight);
        let all = (0..groups).map(|group| base.table_bytes(group)).fold(0, u64::saturating_add);
        let pieces = base.pieces(&ranges, crew::weight_of_piece(threads, all, PIECE_BYTES));
        self.base.mark_reserved();
        if threads > 1 {
            if self.read_inodes_at_once(threads, &pieces)? {
                return Ok(());
            }
            self.forget_inodes();
            self.base.mark_reserved();
        }
        let mut scan = Scan {
            base: &self.base,
            sink: Sink::Tell(&mut self.findings),
            part: Part::default(),
            is_conflict: None,
            gathered: Gathered::default(),
        };
        for piece in pieces {
            scan.read_tables(&piece)?;
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
        pieces: &[Piece],
    ) -> Result<bool, CheckError> {
        let is_conflict = AtomicBool::new(false);
        let base = &self.base;
        let work = |number: usize| -> Result<(Part, Vec<Problem>), CheckError> {
            let mut scan = Scan {
                base,
                sink: Sink::Hold(Vec::new()),
                part: Part::default(),
                is_conflict: Some(&is_conflict),
                gathered: Gathered::default(),
            };
            if !is_conflict.load(Ordering::Relaxed)
                && let Some(piece) = pieces.get(number)
            {
                scan.read_tables(piece)?;
                scan.claim_gathered();
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
        crew::in_order((threads, crew::PIECES_AHEAD), pieces.len(), work, take)?;
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

impl Checker<'_> {
    /// Adds what was found in order of inode number.
    pub(crate) fn add_part(&mut self, mut part: Part) {
        self.found.blocks.append(&mut part.blocks);
        self.found.join(part);
    }

    /// Goes back to where only fixed metadata had claimed blocks.
    pub(crate) fn forget_inodes(&mut self) {
        self.found = Found::default();
        self.base.states.forget();
        self.claim_fixed_again();
    }
}
