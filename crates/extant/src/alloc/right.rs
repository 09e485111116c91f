//! Access to the reserved part of the free space.
//!
//! As in Linux, the superblock reserves blocks for root, a user and a group. A file system with
//! extents also keeps a fiftieth of its clusters, at most 4096, from all data: they are for blocks
//! of extent trees that are needed to free space or to map promised data.
//!
//! Who is bound by limits of quotas goes with it: in Linux root is not.

use std::cell::Cell;
use std::marker::PhantomData;

/// How much of the reserved space a thread may use; each level includes those before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    /// No reserved space.
    Ordinary,
    /// The blocks that the superblock reserves.
    Privileged,
    /// The blocks kept for extent trees too, for changes that must not fail for want of space.
    Rescue,
}

thread_local! {
    /// Whether the thread works for a user without access to the reserved blocks.
    static IS_ORDINARY: Cell<bool> = const { Cell::new(false) };
    /// Whether the thread works for somebody whom no limit of a quota binds.
    static IS_BEYOND_LIMITS: Cell<bool> = const { Cell::new(false) };
}

impl Right {
    /// Returns the right of the calling thread. A program that embeds the library and never calls
    /// [`Fs::take_space_for`](crate::Fs::take_space_for) is privileged.
    pub(crate) fn of_this_thread() -> Right {
        if IS_ORDINARY.get() { Right::Ordinary } else { Right::Privileged }
    }
}

/// Guard made by [`Fs::take_space_for`](crate::Fs::take_space_for): until it is dropped, the
/// calling thread allocates on behalf of a given user.
#[derive(Debug)]
#[must_use = "it counts only while it lives"]
pub struct SpaceFor {
    was_ordinary: bool,
    was_beyond_limits: bool,
    /// Keeps the guard on its thread.
    _here: PhantomData<*const ()>,
}

impl Drop for SpaceFor {
    fn drop(&mut self) {
        IS_ORDINARY.set(self.was_ordinary);
        IS_BEYOND_LIMITS.set(self.was_beyond_limits);
    }
}

impl SpaceFor {
    /// Begins a scope in which this thread allocates for a user who may use reserved blocks, or may
    /// not.
    pub(crate) fn begin(may_use_reserve: bool) -> SpaceFor {
        SpaceFor {
            was_ordinary: IS_ORDINARY.replace(!may_use_reserve),
            was_beyond_limits: IS_BEYOND_LIMITS.replace(false),
            _here: PhantomData,
        }
    }

    /// Until the guard is dropped, no limit of a quota refuses what this thread does, if `is_beyond`; usage is counted
    /// all the same. For root, as in Linux (`CAP_SYS_RESOURCE`).
    pub fn beyond_limits(self, is_beyond: bool) -> SpaceFor {
        IS_BEYOND_LIMITS.set(is_beyond);
        self
    }

    /// Returns whether no limit of a quota binds this thread.
    pub fn is_beyond_limits() -> bool {
        IS_BEYOND_LIMITS.get()
    }

    /// Returns whether this thread may use the reserved blocks.
    pub fn may_use_reserve() -> bool {
        Right::of_this_thread() == Right::Privileged
    }
}
