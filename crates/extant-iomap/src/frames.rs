//! Frames: what the pages of the arena are to files, without a lock to find out.
//!
//! # Place
//!
//! Between whoever finds a folio's number (a hint, a file's index, the hand of eviction) and
//! whoever uses the folio. Who has free pages is the allocator's business (`buddy`).
//!
//! # Shape
//!
//! One frame for each page of the arena, for ever; the frame of its first page is the folio, the
//! others are dead. A number may be old or invented: [`Frames::pin`] adds to the frame's count, then
//! checks that it is what was asked for, else subtracts. A pinned frame keeps its file, place and
//! size until the last pin is gone and somebody kills it. The protocol is in `frames/identity.rs`,
//! its proof by exhaustion in `frames/model.rs`.
//!
//! # Who does what
//!
//! To make a folio: allocate its pages, then under the index's lock [`publish`](Frames::publish) and
//! insert it: once it is live the hand of eviction can find it, and whoever detaches a folio must find
//! it in the index. To end one: pin, lock, [`detach`](Pin::detach), take it out of the index,
//! unlock, [`kill`](Pin::kill). A kill fails while anybody else has a pin, if only for a moment:
//! keep its number and order and try [`Frames::kill`] later. Who succeeds, and nobody else, has
//! the pages.
//!
//! A pin does not keep a folio attached: somebody may have found it just before it was detached.
//! Who needs to know asks [`Pin::is_detached`] under its lock.

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}
mod identity;
#[cfg(all(test, not(miri)))]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;

use extant_sync::{Mutex, MutexGuard, Rank};

use identity::{AHEAD, DETACHED, Identity, LISTED, USED};

/// The number of a folio: the page of the arena where it begins.
pub(crate) type FrameId = u32;

#[cfg(test)]
/// Bytes of a page of the arena.
const PAGE: u64 = 4096;

/// All frames.
pub(crate) struct Frames {
    frames: Box<[Frame]>,
}

/// 48 bytes for each 4 KiB: 1.2 percent.
struct Frame {
    identity: Identity,
    lock: Mutex<()>,
}

impl Frames {
    /// Dead frames for pages `0..pages` of the arena.
    pub(crate) fn new(pages: u32) -> Frames {
        let frame = |_| Frame { identity: Identity::new(), lock: Mutex::new(Rank::Folio, ()) };
        Frames { frames: (0..pages).map(frame).collect() }
    }

    /// Makes a folio of 2^order pages that the caller allocated: `id` is the first, and the folio
    /// holds the pages from `start` on of file `file` (any number but `u64::MAX`).
    ///
    /// # Panics
    ///
    /// When the frame is live or there is none.
    #[track_caller]
    pub(crate) fn publish(&self, id: FrameId, file: u64, start: u64, order: u8) -> Pin<'_> {
        let frame = &self.frames[id as usize];
        frame.identity.publish(file, start, order);
        Pin { frame, id }
    }

    /// The folio with that page (of 4 KiB) of that file, if `id` is its number and it was not
    /// detached.
    #[inline]
    pub(crate) fn pin(&self, id: FrameId, file: u64, page: u64) -> Option<Pin<'_>> {
        let frame = self.frames.get(id as usize)?;
        frame.identity.pin(file, page).then(|| Pin { frame, id })
    }

    /// The lock of a folio that will begin there, before it is [published](Self::publish). The caller
    /// has the pages, so nobody else holds it.
    #[track_caller]
    pub(crate) fn lock(&self, id: FrameId) -> MutexGuard<'_, ()> {
        self.frames[id as usize].lock.lock()
    }

    /// Whatever folio begins at that page of the arena, detached or not.
    pub(crate) fn pin_any(&self, id: FrameId) -> Option<Pin<'_>> {
        let frame = self.frames.get(id as usize)?;
        frame.identity.pin_any().then(|| Pin { frame, id })
    }

    /// Ends a folio that nobody has pinned: the caller has its pages then. False when somebody
    /// has, or it has ended.
    pub(crate) fn kill(&self, id: FrameId) -> bool {
        self.frames.get(id as usize).is_some_and(|frame| frame.identity.kill())
    }

    /// Gives up a pin that was [kept](Pin::keep).
    pub(crate) fn let_go(&self, id: FrameId) {
        if let Some(frame) = self.frames.get(id as usize) {
            frame.identity.unpin();
        }
    }

    #[cfg(test)]
    /// How many frames there are: pages of the arena.
    pub(crate) fn len(&self) -> u32 {
        // `new` made them from a `u32`.
        self.frames.len() as u32
    }
}

/// A hold on a folio: it stays what it is, and its pages stay its.
///
/// Dropping it never frees anything; see the head of this module.
pub(crate) struct Pin<'a> {
    frame: &'a Frame,
    id: FrameId,
}

impl<'a> Pin<'a> {
    /// Its number.
    pub(crate) fn id(&self) -> FrameId {
        self.id
    }

    #[cfg(test)]
    /// Where its bytes begin in the arena.
    pub(crate) fn at(&self) -> u64 {
        u64::from(self.id) * PAGE
    }

    /// The file it was made for.
    pub(crate) fn file(&self) -> u64 {
        self.frame.identity.file()
    }

    /// The first page of the file that it holds.
    pub(crate) fn start(&self) -> u64 {
        self.frame.identity.start()
    }

    /// It has 2^order pages.
    pub(crate) fn order(&self) -> u8 {
        self.frame.identity.order()
    }

    /// How many pages it has.
    pub(crate) fn pages(&self) -> u32 {
        1 << self.order()
    }

    #[cfg(test)]
    /// How many bytes it has.
    pub(crate) fn len(&self) -> u64 {
        PAGE << self.order()
    }

    /// Makes it a pin that no borrow limits: the caller gives it up by [`Frames::let_go`], once.
    pub(crate) fn keep(self) -> FrameId {
        let id = self.id;
        std::mem::forget(self);
        id
    }

    /// Takes the folio's lock. The guard does not borrow the pin, which must outlive it all the same:
    /// the lock is the frame's, and would be the next folio's.
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'a, ()> {
        self.frame.lock.lock()
    }

    /// Takes the folio's lock if nobody has it.
    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'a, ()>> {
        self.frame.lock.try_lock()
    }

    /// Notes that somebody looked: the hand of eviction will pass once more.
    #[inline]
    pub(crate) fn mark_used(&self) {
        self.frame.identity.set(USED);
    }

    /// Whether somebody looked since this was last asked.
    pub(crate) fn take_used(&self) -> bool {
        self.frame.identity.take(USED)
    }

    /// Takes the folio from its file, where it is found no more. False when it was taken already.
    pub(crate) fn detach(&self) -> bool {
        self.frame.identity.set(DETACHED)
    }

    /// Whether the folio was taken from its file.
    pub(crate) fn is_detached(&self) -> bool {
        self.frame.identity.has(DETACHED)
    }

    /// Notes whether the folio is on its file's list of dirty folios; returns what was noted before.
    pub(crate) fn set_listed(&self, listed: bool) -> bool {
        match listed {
            true => !self.frame.identity.set(LISTED),
            false => self.frame.identity.take(LISTED),
        }
    }

    /// Marks the folio as read ahead: the reader for whom it was made has not come yet.
    pub(crate) fn set_ahead(&self) {
        self.frame.identity.set(AHEAD);
    }

    /// Whether the folio was read ahead and no reader has come yet.
    #[inline]
    pub(crate) fn is_ahead(&self) -> bool {
        self.frame.identity.has(AHEAD)
    }

    /// Clears the mark of a folio that was read ahead; returns whether it was set.
    pub(crate) fn take_ahead(&self) -> bool {
        self.frame.identity.take(AHEAD)
    }

    /// How many pins the folio has, this one and those of passing lookers included.
    pub(crate) fn pins(&self) -> u32 {
        self.frame.identity.pins()
    }

    /// Ends the folio if this is its only pin: the caller has its pages then.
    ///
    /// # Errors
    ///
    /// The pin, when somebody else has one.
    pub(crate) fn kill(self) -> Result<(), Pin<'a>> {
        if !self.frame.identity.kill_pinned() {
            return Err(self);
        }
        // The pin went with the folio.
        std::mem::forget(self);
        Ok(())
    }
}

impl Clone for Pin<'_> {
    fn clone(&self) -> Self {
        self.frame.identity.pin_again();
        Pin { frame: self.frame, id: self.id }
    }
}

impl Drop for Pin<'_> {
    #[inline]
    fn drop(&mut self) {
        self.frame.identity.unpin();
    }
}

impl fmt::Debug for Pin<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (file, start, pages) = (self.file(), self.start(), self.pages());
        write!(f, "Pin({} = file {file} page {start}+{pages})", self.id)
    }
}
