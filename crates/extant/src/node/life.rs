//! The life of an inode in memory: one word, and every step that changes it.
//!
//! # States
//!
//! Handles are counted beside the state. An inode that is *named* has links, or is about to get its
//! first; without links it is *nameless* (made so, and may get a name) or an *orphan* (lost its last).
//!
//! ```text
//! state      handles   step                  then       who
//! named      n         hold                  n + 1      whoever finds it
//! named      n         let go                n - 1      handles
//! named      n         make nameless         nameless   making a file without a name
//! named      n         lose names            orphan     what takes the last link, once it is listed
//! named      0         die nameless          dying      what takes the last link, instead of listing it
//! nameless   n         name                  named      what gives the first link, in its transaction
//! orphan     0         name                  named      fast commits that a mount applies
//! nameless,  n         hold, let go          n ± 1      handles; the last that goes queues it
//!   orphan   0         queue                 "queued"   once, until it is taken from the queue
//!            0         die                   dying      who keeps writeback out; or as before, if
//!                                                       there is something that nobody keeps out
//! dying      0         end                   dead       who has freed the inode
//!            0         fail                  stuck      whom an error stopped in the middle
//! dead       0                                          for good: its number gets another node
//! stuck      0                                          for good: an orphan for the next mount
//! ```
//!
//! Compiled twice: over the atomics of the machine, and in tests over those of a model checker that
//! tries every order (`model.rs`).
//!
//! # Invariants
//!
//! - Z1. No handle is given out of what is dying, dead or stuck.
//! - Z2. One thread at a time is deleting, only without links and without handles.
//! - Z3. What is nameless or an orphan and has no handle is queued, dying, or with whoever has just
//!   taken it from the queue: nobody forgets it, and nobody deletes it twice.
//! - Z4. A dead inode stays dead. Whoever still has the node cannot take it for its successor.
//! - Z5. What is an orphan is listed as one before it is one here: who deletes it takes it off the list, and
//!   nobody lists what is dead.

use super::atomic::{AtomicU64, Ordering};

/// What an inode is, besides its handles.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Named,
    Nameless,
    Orphan,
    Dying,
    Dead,
    Stuck,
}

/// Handles, in the low half of the word.
const HANDLES: u64 = u32::MAX as u64;
/// In the queue of what is to be deleted.
const QUEUED: u64 = 1 << 32;
/// First bit of the stage.
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

    /// Whether handles can be had of it.
    fn is_usable(self) -> bool {
        matches!(self, Stage::Named | Stage::Nameless | Stage::Orphan)
    }

    /// Whether it goes with its last handle.
    fn is_linkless(self) -> bool {
        matches!(self, Stage::Nameless | Stage::Orphan)
    }
}

/// State and handles of one inode in memory.
pub(crate) struct Life {
    word: AtomicU64,
}

impl Life {
    /// Without handles.
    pub(crate) fn new(stage: Stage) -> Life {
        Life { word: AtomicU64::new(stage.put(0)) }
    }

    /// The one way in which the word changes: by `step`, or not at all if that says `None`. Returns
    /// the word of before, and whether it changed.
    fn change(&self, step: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, step)
    }

    fn word(&self) -> u64 {
        self.word.load(Ordering::Acquire)
    }

    /// Whether the inode is dying, dead or stuck: of no use to anybody.
    pub(crate) fn is_gone(&self) -> bool {
        !Stage::of(self.word()).is_usable()
    }

    pub(crate) fn is_nameless(&self) -> bool {
        Stage::of(self.word()) == Stage::Nameless
    }

    /// Whether nobody has a handle.
    pub(crate) fn is_unheld(&self) -> bool {
        self.word() & HANDLES == 0
    }

    /// One more handle; `false` when there is none to be had (Z1).
    pub(crate) fn hold(&self) -> bool {
        let more = |word| {
            let has_room = word & HANDLES < HANDLES;
            (has_room && Stage::of(word).is_usable()).then(|| word + 1)
        };
        self.change(more).is_ok()
    }

    /// One handle less. `true` when it was the last of an inode without links, which is queued now:
    /// the caller puts it into the queue.
    #[must_use = "what is queued has to go into the queue"]
    pub(crate) fn let_go(&self) -> bool {
        let less = |word: u64| match word & HANDLES {
            0 => None,
            1 if Stage::of(word).is_linkless() => Some((word - 1) | QUEUED),
            _ => Some(word - 1),
        };
        // Queued already, and held again before its turn came: once is enough (Z3).
        let before = self.change(less);
        before.is_ok_and(|word| less(word).is_some_and(|now| now & !word & QUEUED != 0))
    }

    /// Notes that the inode was made without a name.
    pub(crate) fn make_nameless(&self) {
        self.turn(Stage::Named, Stage::Nameless);
    }

    /// What was made without a name got one. Or the log of a crash gave one to an orphan.
    pub(crate) fn name(&self) {
        self.turn(Stage::Nameless, Stage::Named);
        self.turn(Stage::Orphan, Stage::Named);
    }

    /// Its last link was taken, and it is on the list of orphans (Z5).
    pub(crate) fn lose_names(&self) {
        self.turn(Stage::Named, Stage::Orphan);
    }

    fn turn(&self, from: Stage, to: Stage) {
        let _ = self.change(|word| (Stage::of(word) == from).then(|| to.put(word)));
    }

    /// Queues what has neither links nor handles; `true` when the caller has to put it into the queue.
    #[must_use = "what is queued has to go into the queue"]
    pub(crate) fn queue(&self) -> bool {
        let queued = |word| {
            let is_due = Stage::of(word).is_linkless() && word & (HANDLES | QUEUED) == 0;
            is_due.then_some(word | QUEUED)
        };
        self.change(queued).is_ok()
    }

    /// Notes that the inode was taken from the queue, before anything else is done with it: whoever holds
    /// it from now on and lets go queues it again.
    pub(crate) fn unqueue(&self) {
        let _ = self.change(|word| Some(word & !QUEUED));
    }

    /// Takes the right to delete (Z2), if `is_quiet` says, once nobody can come any more, that nothing
    /// of the inode is under writeback or comes there. When it says no, nothing has changed: the
    /// caller [queues](Self::queue) the inode.
    pub(crate) fn die(&self, is_quiet: impl FnOnce() -> bool) -> bool {
        self.die_from(Stage::is_linkless, is_quiet)
    }

    /// [`die`](Self::die) of what loses its last link in this very transaction and was never listed.
    pub(crate) fn die_nameless(&self, is_quiet: impl FnOnce() -> bool) -> bool {
        self.die_from(|stage| stage == Stage::Named, is_quiet)
    }

    fn die_from(&self, may_die: fn(Stage) -> bool, is_quiet: impl FnOnce() -> bool) -> bool {
        let dying = |word| {
            let dies = may_die(Stage::of(word)) && word & HANDLES == 0;
            dies.then(|| Stage::Dying.put(word))
        };
        let Ok(before) = self.change(dying) else { return false };
        // Asked only now: a handle may have brought contents until this moment.
        let quiet = is_quiet();
        if !quiet {
            self.turn(Stage::Dying, Stage::of(before));
        }
        quiet
    }

    /// The inode is free.
    pub(crate) fn end(&self) {
        self.turn(Stage::Dying, Stage::Dead);
    }

    /// Deleting it failed half-way.
    pub(crate) fn fail(&self) {
        self.turn(Stage::Dying, Stage::Stuck);
    }
}
