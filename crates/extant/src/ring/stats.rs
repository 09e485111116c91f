//! What a ring has done, in numbers.

use std::sync::atomic::{AtomicU64, Ordering};

use extant_sync::CachePadded;

use crate::attempt::WaitReason;

/// Counts of what a ring has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct RingStats {
    /// Number of operations done on the submitter's thread.
    pub inline: u64,
    /// Number of operations sent to a worker because they would have had to wait, by
    /// [`WaitReason::ALL`].
    pub(super) refused: [u64; WaitReason::ALL.len()],
    /// Number of operations sent to a worker because an earlier one of the same file was waiting.
    pub behind: u64,
    /// Number of operations sent to a worker because their kind may always wait: syncs, direct I/O
    /// that the ring cannot give to the device itself, names, truncate, fallocate.
    pub by_kind: u64,
    /// Number of operations sent to a worker because the submitter [asked for
    /// it](super::Request::on_worker), or because they have a predecessor in their chain.
    pub by_request: u64,
    /// Number of attempts that did a part and left the rest to a worker.
    pub in_parts: u64,
    /// Number of direct operations that the ring gave to the device itself, without a worker, and
    /// that are done.
    pub lane: u64,
    /// Number of direct operations that came back from the device and had to be repeated by a
    /// worker: the device refused them, or a reader had cached their blocks meanwhile.
    pub lane_repeated: u64,
    /// Number of operations that workers have begun.
    pub begun: u64,
    /// Number of operations that workers have done.
    pub completed: u64,
    /// Number of operations cancelled before they began.
    pub cancelled: u64,
    /// Number of operations or chains returned because the ring was full.
    pub busy: u64,
}

impl RingStats {
    /// Returns the number of operations sent to a worker because an attempt was refused for this
    /// reason.
    pub fn refused(&self, reason: WaitReason) -> u64 {
        self.refused[reason as usize]
    }

    /// Returns the number of operations sent to workers, for any reason.
    pub fn punted(&self) -> u64 {
        let others = self.behind + self.by_kind + self.by_request + self.in_parts;
        self.refused.iter().sum::<u64>() + others + self.lane_repeated
    }
}

/// The counters behind [`RingStats`]. What submitters and takers count lies apart from what workers count.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) submitted: CachePadded<Submitted>,
    pub(super) worked: CachePadded<Worked>,
}

/// Counters of submitters and takers.
#[derive(Default)]
pub(super) struct Submitted {
    pub(super) inline: AtomicU64,
    pub(super) refused: [AtomicU64; WaitReason::ALL.len()],
    pub(super) behind: AtomicU64,
    pub(super) by_kind: AtomicU64,
    pub(super) by_request: AtomicU64,
    pub(super) in_parts: AtomicU64,
    pub(super) lane: AtomicU64,
    pub(super) lane_repeated: AtomicU64,
    pub(super) cancelled: AtomicU64,
    pub(super) busy: AtomicU64,
}

/// Counters of workers.
#[derive(Default)]
pub(super) struct Worked {
    pub(super) begun: AtomicU64,
    pub(super) completed: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> RingStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let Counters { submitted, worked } = self;
        RingStats {
            inline: read(&submitted.inline),
            refused: std::array::from_fn(|at| read(&submitted.refused[at])),
            behind: read(&submitted.behind),
            by_kind: read(&submitted.by_kind),
            by_request: read(&submitted.by_request),
            in_parts: read(&submitted.in_parts),
            lane: read(&submitted.lane),
            lane_repeated: read(&submitted.lane_repeated),
            begun: read(&worked.begun),
            completed: read(&worked.completed),
            cancelled: read(&submitted.cancelled),
            busy: read(&submitted.busy),
        }
    }
}
