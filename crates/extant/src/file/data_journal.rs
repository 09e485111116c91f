//! Contents that go through the journal: of files with the flag `j`, and of all files of a mount with
//! `data=journal`.
//!
//! # Place
//!
//! Below: `logged` has the blocks until they are home, `editor` puts them into transactions. Beside:
//! writeback asks `mapper` to publish data and places in one step. Design note 45 has the whole
//! picture.
//!
//! # Rules
//!
//! - D1. The data of a placement is in a transaction that is not younger than the one that publishes
//!   it: the same, but for long conversions.
//! - D2. Blocks of such a file are written to the device by checkpoints alone. Whoever else wants to,
//!   or reads the device itself, first [brings home](FileMapper::bring_home) what is in the log,
//!   with the content lock held exclusively and writeback kept out.
//! - D3. A freed block is revoked, whoever has it (`Allocator::free`).

use extant_base::{FsBlock, sabotage};
use extant_iomap::{Mapper as _, Placed, Placement};

use super::mapper::{FileMapper, Ticket};
use super::publish::ReadBytes;
use crate::error::{FsError, Result};
use crate::inode::Inode;
use crate::txn::Txn;

/// A byte behind all files.
const BYTES_END: u64 = u64::MAX >> 1;

/// Limit of the blocks of contents in one handle.
pub(super) const LOGGED_MOST: u64 = 256;

impl FileMapper<'_> {
    /// Returns whether the contents go through the journal.
    pub(super) fn goes_through_journal(&self) -> bool {
        let takes = |writer: &crate::writer::Writer| writer.logged().takes(self.node.gist().flags);
        self.node.is_regular() && self.volume().writer().is_ok_and(takes)
    }

    /// Returns the limit of the blocks of one placement: as many as one handle takes with their
    /// contents.
    pub(super) fn placed_most(&self) -> u64 {
        if !self.is_logged() {
            return u64::MAX;
        }
        let credits = self.volume().writer().map_or(0, |writer| writer.journal().credits_max());
        u64::from(credits / 4).clamp(1, LOGGED_MOST)
    }

    /// Returns the number of blocks of placements.
    pub(super) fn blocks_in(&self, placements: &[Placement<Ticket>]) -> u64 {
        placements.iter().map(|placement| placement.len >> self.bits()).sum()
    }

    /// Puts the contents of placements into the transaction.
    pub(super) fn log_contents(
        &self,
        txn: &mut Txn<'_>,
        placements: &[Placement<Ticket>],
        read: ReadBytes<'_>,
    ) -> Result<()> {
        let bits = self.bits();
        for placement in placements {
            let has_place = !matches!(placement.placed, Placed::Nowhere);
            for block in 0..if has_place { placement.len >> bits } else { 0 } {
                let mut bytes = vec![0; 1 << bits];
                read(placement.offset + (block << bits), &mut bytes);
                txn.log_contents(FsBlock((placement.address >> bits) + block), bytes)?;
            }
        }
        Ok(())
    }

    /// Takes the contents of new blocks, which are about to be given back, out of the journal, and
    /// commits that: they may soon be another file's, and a checkpoint must not write there.
    pub(super) fn unlog(&self, placements: &[Placement<Ticket>]) -> Result<()> {
        let bits = self.bits();
        let mut txn = Txn::begin(self.volume(), 1)?;
        let tid = txn.tid();
        for placement in placements {
            if matches!(placement.placed, Placed::Pinned(_)) {
                for block in 0..placement.len >> bits {
                    txn.forget(FsBlock((placement.address >> bits) + block))?;
                }
            }
        }
        drop(txn);
        self.volume().writer()?.journal().commit(tid).map_err(FsError::from_journal)
    }

    /// Brings contents that are in the log to their places, if there can be any. Without that, what
    /// is written there otherwise would be undone by the next checkpoint, or by a replay.
    pub(super) fn bring_home(&self) -> Result<()> {
        let writer = self.volume().writer()?;
        if !writer.logged().has_any() || sabotage("extant.file.logged-stays") {
            return Ok(());
        }
        let journal = writer.journal();
        journal.commit(journal.running()).map_err(FsError::from_journal)?;
        journal.checkpoint().map_err(FsError::from_journal)
    }
}

impl Inode {
    /// Returns whether the contents go through the journal: the file has the flag `j`, or the mount
    /// `data=journal`.
    pub fn is_logged(&self) -> bool {
        let takes =
            |writer: &crate::writer::Writer| writer.logged().takes(self.node().gist().flags);
        self.node().is_regular() && self.volume().writer().is_ok_and(takes)
    }

    /// Stores everything that is dirty, the old way, and keeps writeback out while `change` changes
    /// the flag `j`. The caller holds the content lock exclusively.
    pub(crate) fn change_data_mode(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        let (fs, node) = (self.fs(), self.node());
        let file = fs.file(node)?;
        let mapper = FileMapper { fs, node, file };
        mapper.absorb()?;
        let kept_out = file.cache.keep_writeback_out();
        file.cache.write_back_kept_out(&mapper, 0..BYTES_END, &kept_out)?;
        mapper.bring_home()?;
        change()
    }
}
