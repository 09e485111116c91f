//! How much of the free space somebody may have: not everybody gets the last block.
//!
//! As in Linux: the superblock reserves blocks for root, a user and a group; and of a file system
//! with extents a fiftieth, at most 4096 clusters, is for nobody's data. It is for the blocks of extent
//! trees that are needed to give space back, or to bring promised data into a file.

use std::cell::Cell;
use std::marker::PhantomData;

/// How far down somebody may go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Right {
    /// Not into what the superblock reserves.
    Ordinary,
    /// Into that.
    Privileged,
    /// And into what is kept for extent trees: changes that must not fail for want of space.
    Rescue,
}

thread_local! {
    /// The thread works for somebody who must leave the reserved blocks alone.
    static IS_ORDINARY: Cell<bool> = const { Cell::new(false) };
}

impl Right {
    /// That of whoever this thread works for. Who has the library and says nothing owns the device.
    pub(crate) fn of_this_thread() -> Right {
        if IS_ORDINARY.get() { Right::Ordinary } else { Right::Privileged }
    }
}

/// The thread that made it takes space for somebody, until it is dropped; see [`Fs::take_space_for`](crate::Fs::take_space_for).
#[derive(Debug)]
#[must_use = "it counts only while it lives"]
pub struct SpaceFor {
    before: bool,
    /// It belongs to its thread.
    _here: PhantomData<*const ()>,
}

impl Drop for SpaceFor {
    fn drop(&mut self) {
        IS_ORDINARY.set(self.before);
    }
}

impl SpaceFor {
    /// From now on, for somebody who may use reserved blocks or not.
    pub(crate) fn begin(may_use_reserve: bool) -> SpaceFor {
        SpaceFor { before: IS_ORDINARY.replace(!may_use_reserve), _here: PhantomData }
    }

    /// Whether this thread takes space for somebody who may use reserved blocks.
    pub fn may_use_reserve() -> bool {
        Right::of_this_thread() == Right::Privileged
    }
}
