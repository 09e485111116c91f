//! Frames: the owners of the arena's pages, found without a lock.
//!
//! # Place
//!
//! Between the sources of a folio's number (a hint, a file's index, the hand of eviction) and the
//! users of the folio. Free pages are managed by the allocator (`buddy`).
//!
//! # Shape
//!
//! One frame for each page of the arena, for ever; the frame of its first page is the folio, the
//! others are dead. A number may be outdated or wrong: [`Frames::pin`] adds to the frame's count,
//! then checks the frame's identity, and otherwise subtracts. A pinned frame keeps its file, place
//! and size until the last pin is gone and the frame is killed. The protocol is in
//! `frames/identity.rs`, its proof by exhaustion in `frames/model.rs`.
//!
//! # Life of a folio
//!
//! To make a folio: allocate its pages, then under the index's lock [`publish`](Frames::publish)
//! and insert it: once it is live the hand of eviction can find it, and a thread that detaches a
//! folio must find it in the index. To end one: pin, lock, [`detach`](Pin::detach), take it out of
//! the index, unlock, [`kill`](Pin::kill). A kill fails while there is another pin, if only for a
//! moment: keep its number and order and try [`Frames::kill`] later. The thread whose kill succeeds
//! owns the pages.
//!
//! A pin does not keep a folio attached: a thread may have found it just before it was detached.
//! [`Pin::is_detached`], under its lock, tells.

mod atomic {
    pub(super) use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
}
mod identity;
#[cfg(all(test, not(miri)))]
mod model;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::OnceLock;

use extant_sync::{Mutex, MutexGuard, Rank};

use identity::{AHEAD, DETACHED, Identity, LISTED, ONCE, USED};

/// The number of a folio: the page of the arena where it begins.
pub(crate) type FrameId = u32;

#[cfg(test)]
/// Bytes of a page of the arena.
const PAGE: u64 = 4096;

/// Frames that are made at once: those of 2 MiB.
const PART: u32 = 512;

/// All frames.
///
/// They are made in parts, each when the first folio begins there: a mount that has little in memory pays for
/// little, whatever it may have. Frames that were not made are dead.
pub(crate) struct Frames {
    parts: Box<[OnceLock<Box<[Frame]>>]>,
    pages: u32,
}

/// A frame; 32 bytes for each 4 KiB: 0.8 percent.
///
/// None lies in two lines of a processor's cache: to look for a folio is to wait for one line that
/// is in no cache, and would be for two.
#[repr(align(32))]
struct Frame {
    identity: Identity,
    lock: Mutex<()>,
}

impl Frames {
    /// Dead frames for pages `0..pages` of the arena.
    pub(crate) fn new(pages: u32) -> Frames {
        let parts = (0..pages.div_ceil(PART)).map(|_| OnceLock::new());
        Frames { parts: parts.collect(), pages }
    }

    #[inline]
    fn get(&self, id: FrameId) -> Option<&Frame> {
        self.parts.get((id / PART) as usize)?.get()?.get((id % PART) as usize)
    }

    /// The frame, made if it was not yet.
    ///
    /// # Panics
    ///
    /// When there is none.
    #[track_caller]
    fn made(&self, id: FrameId) -> &Frame {
        let (part, within) = (id / PART, id % PART);
        let frame = |_| Frame { identity: Identity::new(), lock: Mutex::new(Rank::Folio, ()) };
        let count = PART.min(self.pages.saturating_sub(part * PART));
        &self.parts[part as usize].get_or_init(|| (0..count).map(frame).collect())[within as usize]
    }

    /// Makes a folio of 2^order pages that the caller allocated: `id` is the first, and the folio
    /// holds the pages from `start` on of file `file` (any number but `u64::MAX`).
    ///
    /// # Panics
    ///
    /// When the frame is live or there is none.
    #[track_caller]
    pub(crate) fn publish(&self, id: FrameId, file: u64, start: u64, order: u8) -> Pin<'_> {
        let frame = self.made(id);
        frame.identity.publish(file, start, order);
        Pin { frame, id }
    }

    /// Pins the folio with that page (of 4 KiB) of that file, if `id` is its number and it was not
    /// detached.
    #[inline]
    pub(crate) fn pin(&self, id: FrameId, file: u64, page: u64) -> Option<Pin<'_>> {
        let frame = self.get(id)?;
        frame.identity.pin(file, page).then(|| Pin { frame, id })
    }

    /// Locks a folio that will begin there, before it is [published](Self::publish). The caller
    /// owns the pages, so the lock is free.
    #[track_caller]
    pub(crate) fn lock(&self, id: FrameId) -> MutexGuard<'_, ()> {
        self.made(id).lock.lock()
    }

    /// Pins the folio that begins at that page of the arena, detached or not.
    pub(crate) fn pin_any(&self, id: FrameId) -> Option<Pin<'_>> {
        let frame = self.get(id)?;
        frame.identity.pin_any().then(|| Pin { frame, id })
    }

    /// Ends a folio without pins: the caller owns its pages then. Returns false when there is a
    /// pin, or it has ended.
    pub(crate) fn kill(&self, id: FrameId) -> bool {
        self.get(id).is_some_and(|frame| frame.identity.kill())
    }

    /// Gives up a pin that was [kept](Pin::keep).
    pub(crate) fn let_go(&self, id: FrameId) {
        if let Some(frame) = self.get(id) {
            frame.identity.unpin();
        }
    }

    #[cfg(test)]
    /// Returns how many frames there are: pages of the arena.
    pub(crate) fn len(&self) -> u32 {
        self.pages
    }
}

/// A pin of a folio: the folio's identity does not change, and its pages are not reused.
///
/// Dropping it never frees anything; see the module's documentation.
pub(crate) struct Pin<'a> {
    frame: &'a Frame,
    id: FrameId,
}

impl<'a> Pin<'a> {
    /// Returns the number of the folio's first frame.
    pub(crate) fn id(&self) -> FrameId {
        self.id
    }

    #[cfg(test)]
    /// Returns the offset of its bytes in the arena.
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

    /// Returns the order of the folio: it has 2^order pages.
    pub(crate) fn order(&self) -> u8 {
        self.frame.identity.order()
    }

    /// Returns how many pages it has.
    pub(crate) fn pages(&self) -> u32 {
        1 << self.order()
    }

    #[cfg(test)]
    /// Returns how many bytes it has.
    pub(crate) fn len(&self) -> u64 {
        PAGE << self.order()
    }

    /// Turns the pin into one without a borrow: the caller gives it up by [`Frames::let_go`], once.
    pub(crate) fn keep(self) -> FrameId {
        let id = self.id;
        std::mem::forget(self);
        id
    }

    /// Takes the folio's lock. The guard does not borrow the pin, which must outlive it all the
    /// same: otherwise the lock could belong to the frame's next folio.
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'a, ()> {
        self.frame.lock.lock()
    }

    /// Takes the folio's lock if it is free.
    #[track_caller]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'a, ()>> {
        self.frame.lock.try_lock()
    }

    /// Records that the folio was used: the hand of eviction will pass once more.
    #[inline]
    pub(crate) fn mark_used(&self) {
        self.frame.identity.set(USED);
    }

    /// Returns whether the folio was used since the last call.
    pub(crate) fn take_used(&self) -> bool {
        self.frame.identity.take(USED)
    }

    /// Detaches the folio from its file, so that it is not found there any more. Returns false when
    /// it was detached already.
    pub(crate) fn detach(&self) -> bool {
        self.frame.identity.set(DETACHED)
    }

    /// Returns whether the folio was detached from its file.
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

    /// Returns whether the folio was read ahead and no reader has come yet.
    #[inline]
    pub(crate) fn is_ahead(&self) -> bool {
        self.frame.identity.has(AHEAD)
    }

    /// Clears the mark of a folio that was read ahead; returns whether it was set.
    pub(crate) fn take_ahead(&self) -> bool {
        self.frame.identity.take(AHEAD)
    }

    /// Marks the folio as one that leaves the cache after its first use (`drop_behind`).
    pub(crate) fn set_once(&self) {
        self.frame.identity.set(ONCE);
    }

    /// Returns whether the folio leaves the cache after its first use.
    #[inline]
    pub(crate) fn is_once(&self) -> bool {
        self.frame.identity.has(ONCE)
    }

    /// Takes that mark away.
    pub(crate) fn clear_once(&self) {
        self.frame.identity.take(ONCE);
    }

    /// Returns the number of pins, including this one and momentary ones.
    pub(crate) fn pins(&self) -> u32 {
        self.frame.identity.pins()
    }

    /// Ends the folio if this is its only pin: the caller owns its pages then.
    ///
    /// # Errors
    ///
    /// The pin, when there is another one.
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
