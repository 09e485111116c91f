//! One open handle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::FsBlock;

use extant_sync::{Hold, Lane, Rank, check_may_wait};

use crate::client::{JournalBlock, JournalError, Tid};
use crate::journal::{Journal, count};
use crate::waiting::Round;

/// A change in progress, all of it in one transaction. Dropping it ends the change; unused credits
/// are returned.
#[must_use = "the handle is closed when it is dropped"]
pub struct Handle<'j> {
    journal: &'j Journal,
    /// The lane in which it is counted; `None` after a restart that failed.
    lane: Option<(Lane, Hold)>,
    tid: Tid,
    round: Round,
    credits: u32,
}

impl Journal {
    /// Opens a handle that may change `credits` blocks. Waits while a transaction is being locked,
    /// and commits when the running one has no room. A thread opens one handle at a time and calls
    /// neither this nor [`commit`](Self::commit) while it holds one.
    ///
    /// # Errors
    ///
    /// [`JournalError::TooManyCredits`], [`JournalError::Aborted`], [`JournalError::Closed`].
    #[track_caller]
    pub fn start(&self, credits: u32) -> Result<Handle<'_>, JournalError> {
        check_may_wait("a journal handle");
        if cfg!(debug_assertions) {
            drop(self.probe.try_lock());
        }
        loop {
            let full = match self.enter(credits)? {
                Entry::Open(handle) => return Ok(handle),
                Entry::Shut => None,
                Entry::Full(tid) => Some(tid),
            };
            count(&self.counters.waits, 1);
            match full {
                // Other threads would find no room either.
                Some(tid) => self.commit_soon(tid, false)?,
                None => self.gate.wait_open(),
            }
        }
    }

    /// Opens a handle like [`start`](Self::start) without waiting: `None` when it would have to.
    ///
    /// # Errors
    ///
    /// As [`start`](Self::start).
    pub fn try_start(&self, credits: u32) -> Result<Option<Handle<'_>>, JournalError> {
        match self.enter(credits)? {
            Entry::Open(handle) => Ok(Some(handle)),
            Entry::Shut | Entry::Full(_) => Ok(None),
        }
    }

    fn enter(&self, credits: u32) -> Result<Entry<'_>, JournalError> {
        let limit = self.limit;
        if credits > limit {
            return Err(JournalError::TooManyCredits { wanted: credits, limit });
        }
        let Some(lane) = self.gate.try_enter() else { return Ok(Entry::Shut) };
        // Inside the gate, so that an abort before the transaction locks is seen by the committer
        // or here.
        if self.stopped.load(Ordering::Acquire) {
            self.gate.leave(lane);
            return Err(self.stop_error());
        }
        let tid = self.running();
        if self.reserve(lane, credits) {
            if !self.is_touched() {
                self.touched.store(true, Ordering::Relaxed);
            }
            return Ok(Entry::Open(Handle::new(self, lane, tid, credits)));
        }
        self.gate.leave(lane);
        Ok(Entry::Full(tid))
    }
}

enum Entry<'j> {
    Open(Handle<'j>),
    Shut,
    Full(Tid),
}

impl<'j> Handle<'j> {
    pub(crate) fn new(journal: &'j Journal, lane: Lane, tid: Tid, credits: u32) -> Handle<'j> {
        let lane = Some((lane, Hold::new(Rank::JournalHandle)));
        // Neither changes while a handle is open.
        let round = journal.round();
        Handle { journal, lane, tid, round, credits }
    }

    /// Returns the transaction of the change.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns the round of the change, for [`Journal::sync`].
    pub fn round(&self) -> Round {
        self.round
    }

    /// Returns the number of blocks that may still be claimed.
    pub fn credits_left(&self) -> u32 {
        self.credits
    }

    /// Adds a block to the transaction, before the client changes it. Costs a load and a comparison
    /// when the block was added already; otherwise one credit. Without credits left, it takes one
    /// from the transaction, if that has any.
    ///
    /// # Errors
    ///
    /// [`JournalError::TooManyCredits`] when the transaction is full too; the block was not
    /// claimed.
    pub fn claim<B: JournalBlock + 'static>(&mut self, block: &Arc<B>) -> Result<(), JournalError> {
        // The thread that stored this number adds the block to the set before it closes its own
        // handle.
        if block.claimed().load(Ordering::Relaxed) == self.tid {
            return Ok(());
        }
        let block: Arc<B> = Arc::clone(block);
        self.claim_new(block)
    }

    #[cold]
    fn claim_new(&mut self, block: Arc<dyn JournalBlock>) -> Result<(), JournalError> {
        self.usable()?;
        if self.credits == 0 && !self.extend(1) {
            let (wanted, limit) = (1, self.journal.credits_max());
            return Err(JournalError::TooManyCredits { wanted, limit });
        }
        if self.journal.set.claim(self.tid, block) {
            self.credits = self.credits.saturating_sub(1);
        }
        Ok(())
    }

    /// Adds credits. Returns false if the transaction has no room.
    pub fn extend(&mut self, credits: u32) -> bool {
        if self.lane.is_none() || !self.journal.charge(credits) {
            return false;
        }
        self.credits = self.credits.saturating_add(credits);
        true
    }

    /// Closes the handle and opens it again with `credits`, perhaps in a later transaction: the
    /// changes so far must be consistent. May wait, as [`Journal::start`].
    ///
    /// # Errors
    ///
    /// As [`Journal::start`]; the handle is closed then, and claims and revokes fail.
    pub fn restart(&mut self, credits: u32) -> Result<(), JournalError> {
        self.stop();
        *self = self.journal.start(credits)?;
        Ok(())
    }

    /// Removes a freed metadata block from the transaction; if the log may hold a copy of it, a
    /// revoke record keeps the copy from being replayed (J4). Each block of records takes a credit.
    ///
    /// # Errors
    ///
    /// After a restart that failed.
    pub fn revoke(&mut self, block: FsBlock) -> Result<(), JournalError> {
        self.usable()?;
        let done = self.journal.set.revoke(block);
        if done.dropped {
            self.credits = self.credits.saturating_add(1);
        }
        // A record must be written, room or not: there is a third of the log for such excess.
        if done.recorded && self.journal.charge_revoke() {
            if self.credits > 0 {
                self.credits = self.credits.saturating_sub(1);
            } else {
                self.journal.charged.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    fn usable(&self) -> Result<(), JournalError> {
        match self.lane {
            Some(_) => Ok(()),
            None => Err(self.journal.check().err().unwrap_or(JournalError::Closed)),
        }
    }

    fn stop(&mut self) {
        if let Some((lane, _hold)) = self.lane.take() {
            let credits = std::mem::take(&mut self.credits);
            self.journal.give_back(lane, credits);
            self.journal.gate.leave(lane);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl fmt::Debug for Handle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Handle(transaction {}, {} credits)", self.tid, self.credits)
    }
}
