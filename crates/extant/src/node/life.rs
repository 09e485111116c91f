//! The life cycle of an inode in memory: one atomic word, and its transitions.
//!
//! # States
//!
//! Handles are counted beside the state. An inode that is *named* has links, or is about to get its
//! first; without links it is *nameless* (made so, and may get a name) or an *orphan* (lost its
//! last).
//!
//! ```text
//! state      handles   step                  then       by
//! named      n         hold                  n + 1      any thread that finds it
//! named      n         let go                n - 1      handles
//! named      n         make nameless         nameless   creating a file without a name
//! named      n         lose names            orphan     removing the last link, once it is listed
//! named      0         die nameless          dying      removing the last link, instead of listing it
//! nameless   n         name                  named      adding the first link, in its transaction
//! orphan     0         name                  named      fast commits applied by a mount
//! nameless,  n         hold, let go          n ± 1      handles; the last one queues it
//!   orphan   0         queue                 "queued"   once, until it is taken from the queue
//!            0         die                   dying      a thread that holds writeback off; or no change, if
//!                                                       there is other writeback
//!            n         die held              dying      the end of a mount, when nothing changes any more
//! dying      n         end                   dead       the thread that freed the inode
//!            n         fail                  stuck      an error during the deletion
//! dead       n                                          for good: its number gets another node
//! stuck      n                                          for good: an orphan for the next mount
//! ```
//!
//! Compiled twice: over the atomics of the machine, and in tests over those of a model checker that
//! tries every order (`model.rs`).
//!
//! # Invariants
//!
//! - Z1. No new handle is made of a dying, dead or stuck inode.
//! - Z2. One thread at a time is deleting, only without links and, but for the end of a mount,
//!   without handles.
//! - Z3. A nameless inode or orphan without handles is queued, dying, or held by the thread that
//!   has just taken it from the queue: it is neither forgotten nor deleted twice.
//! - Z4. A dead inode stays dead. Holders of its node cannot mistake it for its successor.
//! - Z5. An inode is listed as an orphan before it becomes one here: the thread that deletes it
//!   takes it off the list, and no dead inode is listed.

use super::atomic::{AtomicU64, Ordering};

/// State of an inode, besides its handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Named,
    Nameless,
    Orphan,
    Dying,
    Dead,
    Stuck,
}

/// Mask of the handles, in the low half of the word.
const HANDLES: u64 = u32::MAX as u64;
/// Bit of inodes in the queue for deletion.
const QUEUED: u64 = 1 << 32;
/// First bit of the state.
const STAGE: u32 = 33;

impl Stage {
    fn of(word: u64) -> Stage {
        match word >> STAGE {
            0 => Stage::Named,
            1 => Stage::Nameless,
            2 => Stage::Orphan,
            3 => Stage::Dying,
            4 => Stage::Dead,
            _ => Stage::Stuck,
        }
    }

    fn put(self, word: u64) -> u64 {
        ((self as u64) << STAGE) | (word & (HANDLES | QUEUED))
    }

    /// Returns whether handles can be made.
    fn is_usable(self) -> bool {
        matches!(self, Stage::Named | Stage::Nameless | Stage::Orphan)
    }

    /// Returns whether the inode is deleted with its last handle.
    fn is_linkless(self) -> bool {
        matches!(self, Stage::Nameless | Stage::Orphan)
    }
}

/// State and handles of one inode in memory.
pub(crate) struct Life {
    word: AtomicU64,
}

impl Life {
    /// Creates the state without handles.
    pub(crate) fn new(stage: Stage) -> Life {
        Life { word: AtomicU64::new(stage.put(0)) }
    }

    /// Changes the word by `step`, or not at all if that returns `None`. Returns the earlier word,
    /// and whether it changed.
    fn change(&self, step: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
    }

    fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Returns whether the inode is dying, dead or stuck.
    pub(crate) fn is_gone(&self) -> bool {
        !Stage::of(self.word()).is_usable()
    }

    pub(crate) fn is_nameless(&self) -> bool {
        Stage::of(self.word()) == Stage::Nameless
    }

    /// Returns whether there are no handles.
    pub(crate) fn is_unheld(&self) -> bool {
        self.word() & HANDLES == 0
    }

    /// Adds a handle; returns false if that is not possible (Z1).
    pub(crate) fn hold(&self) -> bool {
        let more = |word| {
            let has_room = word & HANDLES < HANDLES;
            (has_room && Stage::of(word).is_usable()).then(|| word + 1)
        };
        self.change(more).is_ok()
    }

    /// Removes a handle. Returns true when it was the last one of an inode without links, which
    /// counts as queued now: the caller puts it into the queue.
    #[must_use = "what is queued has to go into the queue"]
    pub(crate) fn let_go(&self) -> bool {
        let less = |word: u64| match word & HANDLES {
            0 => None,
            1 if Stage::of(word).is_linkless() => Some((word - 1) | QUEUED),
            _ => Some(word - 1),
        };
        // The inode was queued already, and held again before its turn came: once is enough (Z3).
        let before = self.change(less);
        before.is_ok_and(|word| less(word).is_some_and(|now| now & !word & QUEUED != 0))
    }

    /// Records that the inode was created without a name.
    pub(crate) fn make_nameless(&self) {
        self.turn(Stage::Named, Stage::Nameless);
    }

    /// Records that a nameless inode got a name, or that fast commits gave one to an orphan.
    pub(crate) fn name(&self) {
        self.turn(Stage::Nameless, Stage::Named);
        self.turn(Stage::Orphan, Stage::Named);
    }

    /// Records that the last link was removed, and the inode is on the list of orphans (Z5).
    pub(crate) fn lose_names(&self) {
        self.turn(Stage::Named, Stage::Orphan);
    }

    fn turn(&self, from: Stage, to: Stage) {
        let _ = self.change(|word| (Stage::of(word) == from).then(|| to.put(word)));
    }

    /// Queues an inode without links and handles; returns true when the caller has to put it into
    /// the queue.
    #[must_use = "what is queued has to go into the queue"]
    pub(crate) fn queue(&self) -> bool {
        let queued = |word| {
            let is_due = Stage::of(word).is_linkless() && word & (HANDLES | QUEUED) == 0;
            is_due.then_some(word | QUEUED)
        };
        self.change(queued).is_ok()
    }

    /// Records that the inode was taken from the queue, before anything else is done with it: a
    /// later handle queues it again when dropped.
    pub(crate) fn unqueue(&self) {
        let _ = self.change(|word| Some(word & !QUEUED));
    }

    /// Takes the right to delete (Z2), if `is_quiet` confirms, once no new handle is possible, that
    /// nothing of the inode is or comes under writeback. Otherwise nothing has changed: the caller
    /// [queues](Self::queue) the inode.
    pub(crate) fn die(&self, is_quiet: impl FnOnce() -> bool) -> bool {
        self.die_from(Stage::is_linkless, 0, is_quiet)
    }

    /// Takes the right to delete like [`die`](Self::die), also from handles: they stay, and their
    /// inode is gone. For the end of a mount, when no other thread changes anything.
    pub(crate) fn die_held(&self, is_quiet: impl FnOnce() -> bool) -> bool {
        self.die_from(Stage::is_linkless, HANDLES, is_quiet)
    }

    /// Takes the right to delete like [`die`](Self::die), for an inode that loses its last link in
    /// the same transaction and was never listed.
    pub(crate) fn die_nameless(&self, is_quiet: impl FnOnce() -> bool) -> bool {
        self.die_from(|stage| stage == Stage::Named, 0, is_quiet)
    }

    fn die_from(
        &self,
        may_die: fn(Stage) -> bool,
        handles_max: u64,
        is_quiet: impl FnOnce() -> bool,
    ) -> bool {
        let dying = |word| {
            let dies = may_die(Stage::of(word)) && word & HANDLES <= handles_max;
            dies.then(|| Stage::Dying.put(word))
        };
        let Ok(before) = self.change(dying) else { return false };
        // This is asked last: a handle may have brought contents until this moment.
        let quiet = is_quiet();
        if !quiet {
            self.turn(Stage::Dying, Stage::of(before));
        }
        quiet
    }

    /// Records that the inode is free.
    pub(crate) fn end(&self) {
        self.turn(Stage::Dying, Stage::Dead);
    }

    /// Records that the deletion failed half-way.
    pub(crate) fn fail(&self) {
        self.turn(Stage::Dying, Stage::Stuck);
    }
}
