//! How many clusters can be had, so that threads that take a few at a time do not all write the same number.
//!
//! Most of it is one number, the common one. While it is large, those who take a few take a handful more and keep
//! it at hand in a lane that few threads share.
//!
//! # Invariants
//!
//! - L1. What can be had is the common number and all lanes together. A handful is taken from one before it is put
//!   into the other, so nobody has it twice.
//! - L2. A lane is filled only while far more is left in common than all lanes can hold and everybody leaves alone.
//! - L3. Who finds less than he wants in common empties all lanes into it and looks again: nothing is
//!   refused for what lies in a lane, nor for what is on its way there or back, because both ways
//!   are gone under `moving`.
//! - L4. Nothing is taken from a lane that the common number alone would not leave alone (S3).
//!
//! Compiled twice, as [`counts`](super::counts).

use extant_base::sabotage;
use extant_sync::CachePadded;

use super::atomic::{AtomicI64, Moving, Ordering};

type Lane = CachePadded<AtomicI64>;

#[derive(Debug)]
pub(super) struct Spare {
    /// Below zero when metadata had to have what was promised.
    common: AtomicI64,
    lanes: Vec<Lane>,
    /// Held while clusters are on their way between the common number and a lane.
    moving: Moving,
    handful: i64,
    rich: i64,
}

impl Spare {
    /// With so many lanes, which are given a handful at once while there is more than `rich`.
    pub(super) fn new(clusters: i64, lanes: usize, (handful, rich): (i64, i64)) -> Spare {
        let lanes = (0..lanes).map(|_| CachePadded::new(AtomicI64::new(0))).collect();
        let (common, moving) = (AtomicI64::new(clusters), Moving::new());
        Spare { common, lanes, moving, handful, rich }
    }

    /// All that can be had.
    pub(super) fn total(&self) -> i64 {
        let at_hand = |lane: &Lane| lane.load(Ordering::Acquire);
        let lanes: i64 = self.lanes.iter().map(at_hand).sum();
        self.common.load(Ordering::Acquire).saturating_add(lanes)
    }

    pub(super) fn add(&self, clusters: i64) {
        self.common.fetch_add(clusters, Ordering::AcqRel);
    }

    /// Takes so many, whether they are there or not.
    pub(super) fn sub(&self, clusters: i64) {
        self.common.fetch_sub(clusters, Ordering::AcqRel);
    }

    /// Takes `most` clusters, or as many as there are beyond `kept`, but at least `least`: a few of them through
    /// the lane with number `thread`.
    pub(super) fn claim(&self, thread: usize, kept: i64, least: u32, most: u32) -> Option<u32> {
        let wanted = i64::from(most);
        let lane = self.lanes.get(thread % self.lanes.len().max(1));
        let lane = lane.filter(|_| wanted < self.handful);
        if let Some(lane) = lane
            && self.common.load(Ordering::Acquire) >= kept
            && take(lane, 0, wanted)
        {
            return Some(most);
        }
        if take(&self.common, kept, wanted) {
            if let Some(lane) = lane {
                self.fill(lane, kept);
            }
            return Some(most);
        }
        let _moving = self.moving.lock();
        self.empty_lanes();
        let size = |common: i64| {
            let left = common.saturating_sub(kept).min(wanted);
            u32::try_from(left).ok().filter(|size| *size >= least)
        };
        let claim = |common: i64| size(common).map(|size| common - i64::from(size));
        let before = self.common.fetch_update(Ordering::AcqRel, Ordering::Acquire, claim).ok()?;
        size(before)
    }

    /// Takes `clusters` of what there is beyond `kept`, or nothing.
    ///
    /// # Errors
    ///
    /// How much there is.
    pub(super) fn claim_all(&self, kept: i64, clusters: u64) -> Result<(), u64> {
        let wanted = i64::try_from(clusters).unwrap_or(i64::MAX);
        if take(&self.common, kept, wanted) {
            return Ok(());
        }
        let _moving = self.moving.lock();
        self.empty_lanes();
        match take(&self.common, kept, wanted) {
            true => Ok(()),
            false => Err(self.common.load(Ordering::Acquire).saturating_sub(kept).max(0) as u64),
        }
    }

    /// Gives a lane a handful, unless there is too little (L2) or somebody else is at it.
    fn fill(&self, lane: &Lane, kept: i64) {
        if self.common.load(Ordering::Relaxed) < self.rich {
            return;
        }
        let Some(_moving) = self.moving.try_lock() else { return };
        if take(&self.common, kept.max(0).saturating_add(self.rich), self.handful) {
            lane.fetch_add(self.handful, Ordering::AcqRel);
        }
    }

    /// Puts what lanes have into the common number. `moving` is held.
    fn empty_lanes(&self) {
        if sabotage("extant.alloc.lanes-kept") {
            return;
        }
        for lane in &self.lanes {
            if lane.load(Ordering::Acquire) > 0 {
                let had = lane.swap(0, Ordering::AcqRel);
                self.common.fetch_add(had, Ordering::AcqRel);
            }
        }
    }
}

/// Takes `wanted` of what `from` has beyond `kept`, or nothing: whether it did.
fn take(from: &AtomicI64, kept: i64, wanted: i64) -> bool {
    let take = |have: i64| (have.saturating_sub(kept) >= wanted).then(|| have - wanted);
    from.fetch_update(Ordering::AcqRel, Ordering::Acquire, take).is_ok()
}
