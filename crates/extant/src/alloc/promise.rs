//! How much free space is left, and for whom: promises of space that has no place yet.
//!
//! A write into the cache is promised its clusters; which ones is decided when it goes to the
//! device. So that it finds them, everybody else leaves as many alone.
//!
//! # Accounting
//!
//! All in clusters. `stored` is the bitmap of the device, `taken` the one in memory (G1).
//!
//! | step | `stored` | `taken` | free | spare | promised | pinned | pending |
//! | --- | --- | --- | --- | --- | --- | --- | --- |
//! | allocate n | + n | + n | − n | − n | | | |
//! | free n | − n | | + n | | | | + n |
//! | commit of what freed n | | − n | | + n | | | − n |
//! | promise n | | | | − n | + n | | |
//! | give a promise of n back | | | | + n | − n | | |
//! | pin n | | + n | | | | + n | |
//! | unpin n | | − n | | | | − n | |
//! | take n pinned, p promised | + n | | − n | + p − n | − p | − n | |
//!
//! What is spare is one number and what some threads have at hand ([`spare`]); both together are
//! meant everywhere here.
//!
//! Room that is left to files that grow changes none of these: clusters in a [window](super::window) are clear
//! in `taken`, and whoever is refused for their sake looks again, at them too. So what is said below holds
//! whatever windows there are.
//!
//! # Who may take what
//!
//! Spare clusters that are left alone. *Reserve*: what the superblock reserves for root. *Pool*: a
//! fiftieth of all, at most 4096, for blocks of extent trees and block maps.
//!
//! | who | leaves |
//! | --- | --- |
//! | a promise, data or metadata of an ordinary user | reserve + pool |
//! | a promise, data or metadata of root | pool |
//! | metadata to give space back or to convert it ([`Right::Rescue`]) | half of the pool, as far as so much is promised |
//! | metadata for data that is being published | nothing, and goes into what is promised and not pinned |
//!
//! Without extents only promises leave the pool; data leaves of it as much as is promised, and
//! metadata half of that, since a block map needs no blocks to give space back.
//!
//! `df` follows: free is free − promised; available is what an ordinary user could be promised when
//! what is pending has been released, so it is never more than can be written.
//!
//! # Invariants
//!
//! - S1. At rest, spare = free − promised − pending, and the clear bits of all `taken` are spare +
//!   promised − pinned. What claims space lowers one number, spare, before it sets a bit; what
//!   gives space back raises it after: no two can have the same cluster, and nothing is held back
//!   from one who could have it.
//! - S2. No more is pinned than is promised.
//! - S3. Of what is spare, everybody leaves something alone; `who may take what` below. Nothing but
//!   what brings promised data into the map goes below zero: its own blocks would be lost otherwise.
//! - S4. Clusters come back in this order: the bits, with the group let go; the count of returns;
//!   the numbers here. A search that found nothing and sees the same count before and after has
//!   missed nothing.

mod atomic {
    pub(super) use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

    use extant_sync::{Mutex, MutexGuard, Rank};

    #[derive(Debug)]
    pub(super) struct Moving(Mutex<()>);

    impl Moving {
        pub(super) fn new() -> Moving {
            Moving(Mutex::new(Rank::Leaf, ()))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, ()> {
            self.0.lock()
        }

        pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, ()>> {
            self.0.try_lock()
        }
    }
}
mod counts;
mod lanes;
#[cfg(all(test, not(miri)))]
mod model;
mod spare;

use std::sync::atomic::{AtomicU64, Ordering};

use extant_format::superblock::Superblock;

use extant_format::features::Incompat;
use extant_sync::threads;

use self::counts::Counts;
use self::lanes::Sum;
use self::spare::Spare;
use super::{Allocator, BLOCKS, Purpose, Right};
use crate::error::{FsError, Result};
use crate::volume::Volume;

/// The pool is this part of all clusters, but at most [`POOL_MAX`].
const POOL_PART: u64 = 50;

/// Clusters in the pool at most.
const POOL_MAX: u64 = 4096;

/// Lanes of what is spare.
const LANES: usize = 16;

/// What a lane gets at once, in clusters.
const HANDFUL: i64 = 64;

/// Lanes are filled while so much is spare: four times what all of them hold.
const RICH: i64 = 4 * LANES as i64 * HANDFUL;

/// Totals of a writable mount, in clusters.
#[derive(Debug)]
pub(super) struct Space {
    /// Clear bits of all stored bitmaps.
    free: Sum,
    /// What can be had now (S1). Below zero when metadata had to have what was promised.
    spare: Spare,
    promises: Counts,
    /// Freed by transactions that are not committed.
    pending: AtomicU64,
    /// What the superblock reserves.
    reserve: AtomicU64,
    /// Changes when the file system grows.
    pool: AtomicU64,
    /// The pool is kept from all data, promised or not.
    has_extents: bool,
}

/// Clusters that the superblock reserves.
pub(super) fn reserve_of(superblock: &Superblock) -> u64 {
    superblock.reserved_blocks_count >> superblock.cluster_bits()
}

/// Clusters that ordinary users cannot fill, as Linux tells of a file system that is mounted for reading.
pub(crate) fn kept_of(superblock: &Superblock) -> u64 {
    let has_extents = superblock.features.has_incompat(Incompat::EXTENTS);
    reserve_of(superblock).saturating_add(if has_extents { pool_of(superblock) } else { 0 })
}

/// Clusters of the pool.
pub(super) fn pool_of(superblock: &Superblock) -> u64 {
    let clusters = superblock.blocks_count >> superblock.cluster_bits();
    (clusters / POOL_PART).min(POOL_MAX)
}

/// A claimant of clusters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Claimant {
    /// A claimant without a promise.
    Purpose(Purpose, Right),
    /// Metadata that promised data needs to get into its file's map.
    Publisher,
}

impl Claimant {
    /// Returns whether the clusters are for what transactions write.
    pub(super) fn is_metadata(self) -> bool {
        !matches!(self, Claimant::Purpose(Purpose::Data, _))
    }
}

impl Space {
    pub(super) fn new(superblock: &Superblock, free: i64) -> Space {
        Space {
            free: Sum::new(free),
            spare: Spare::new(free, LANES, (HANDFUL, RICH)),
            promises: Counts::new(),
            pending: AtomicU64::new(0),
            reserve: AtomicU64::new(reserve_of(superblock)),
            pool: AtomicU64::new(pool_of(superblock)),
            has_extents: superblock.features.has_incompat(Incompat::EXTENTS),
        }
    }

    fn pool(&self) -> u64 {
        self.pool.load(Ordering::Relaxed)
    }

    /// The file system became larger, and `count` clusters came with that; their bits are clear
    /// (S4).
    pub(super) fn grow(&self, superblock: &Superblock, count: u64) {
        self.pool.store(pool_of(superblock), Ordering::Relaxed);
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        self.free.add(count);
        self.spare.add(count);
    }

    /// The superblock reserves so many from now on.
    pub(super) fn set_reserve(&self, clusters: u64) {
        self.reserve.store(clusters, Ordering::Relaxed);
    }

    /// Returns what an ordinary user could be promised once what is pending is released.
    pub(super) fn available(&self) -> u64 {
        let released = i64::try_from(self.pending()).unwrap_or(i64::MAX);
        let spare = self.spare.total().saturating_add(released);
        spare.saturating_sub(self.kept_from_promises(Right::Ordinary)).max(0) as u64
    }

    /// Returns what could be promised now.
    pub(super) fn promisable(&self, right: Right) -> u64 {
        let spare = self.spare.total();
        spare.saturating_sub(self.kept_from_promises(right)).max(0) as u64
    }

    fn kept_from_promises(&self, right: Right) -> i64 {
        let kept = self.pool().saturating_add(self.reserved_from(right));
        i64::try_from(kept).unwrap_or(i64::MAX)
    }

    fn reserved_from(&self, right: Right) -> u64 {
        match right {
            Right::Ordinary => self.reserve.load(Ordering::Relaxed),
            Right::Privileged | Right::Rescue => 0,
        }
    }

    pub(super) fn free(&self) -> u64 {
        self.free.total().max(0) as u64
    }

    pub(super) fn promised(&self) -> u64 {
        self.promises.promised()
    }

    /// Returns what can be pinned now: never less than what is promised to the caller and not
    /// pinned.
    pub(super) fn unpinned(&self) -> u64 {
        self.promises.unpinned()
    }

    #[cfg(test)]
    pub(super) fn pinned(&self) -> u64 {
        self.promised().saturating_sub(self.unpinned())
    }

    pub(super) fn pending(&self) -> u64 {
        self.pending.load(Ordering::Acquire)
    }

    /// Returns what can be had now: at most what nobody was promised.
    pub(super) fn spare(&self) -> i64 {
        self.spare.total()
    }

    /// Returns what a claimant leaves alone (S3); below zero: what it may take of others' promises.
    fn kept(&self, who: Claimant) -> i64 {
        let promised = self.promised();
        let pool = self.pool().min(promised);
        let kept = match who {
            Claimant::Purpose(_, right) if self.has_extents && right != Right::Rescue => {
                self.pool().saturating_add(self.reserved_from(right))
            }
            Claimant::Purpose(Purpose::Data, right) => {
                pool.saturating_add(self.reserved_from(right))
            }
            Claimant::Purpose(Purpose::Metadata, right) => {
                (pool / 2).saturating_add(self.reserved_from(right))
            }
            Claimant::Publisher => {
                // The bits that are clear and not pinned.
                return i64::try_from(self.unpinned()).map_or(i64::MIN, |unpinned| -unpinned);
            }
        };
        i64::try_from(kept).unwrap_or(i64::MAX)
    }

    /// Clusters that this claimant could have now.
    pub(super) fn left_for(&self, who: Claimant) -> u64 {
        let spare = self.spare.total();
        spare.saturating_sub(self.kept(who)).max(0) as u64
    }

    /// Claims `most` clusters, or as many as there are, but at least `least`. The caller takes or
    /// gives back what it got, which is told; `None` changes nothing.
    pub(super) fn claim(&self, who: Claimant, least: u32, most: u32) -> Option<u32> {
        self.spare.claim(threads::number(), self.kept(who), least, most)
    }

    /// What was claimed is not taken after all.
    pub(super) fn unclaim(&self, count: u32) {
        self.spare.add(i64::from(count));
    }

    /// What was claimed is taken on the device.
    pub(super) fn take(&self, count: u32) {
        self.free.add(-i64::from(count));
    }

    /// Taken on the device, whether it was to be had or not; `waiting` of them were freed and not
    /// committed.
    pub(super) fn seize(&self, count: u32, waiting: u32) {
        self.free.add(-i64::from(count));
        self.spare.sub(i64::from(count) - i64::from(waiting));
        self.pending.fetch_sub(u64::from(waiting), Ordering::AcqRel);
    }

    /// Freed on the device, to be given away later.
    pub(super) fn free_later(&self, count: u32) {
        self.pending.fetch_add(u64::from(count), Ordering::AcqRel);
        self.free.add(i64::from(count));
    }

    /// What was freed can be given away: its bits are clear.
    pub(super) fn released(&self, count: u32) {
        self.spare.add(i64::from(count));
        self.pending.fetch_sub(u64::from(count), Ordering::AcqRel);
    }

    /// Clusters that count as free cannot be had: their group is damaged.
    pub(super) fn lose(&self, count: u32) {
        self.spare.sub(i64::from(count));
    }

    /// Pins of `most` clusters, or as many as are promised and not pinned, but at least `least`.
    pub(super) fn pin(&self, least: u32, most: u32) -> Option<u32> {
        self.promises.pin(least, most)
    }

    pub(super) fn unpin(&self, count: u32) {
        self.promises.unpin(count);
    }

    /// Pinned clusters are taken on the device, instead of so many promised ones: whose promises end
    /// next.
    pub(super) fn take_pinned(&self, count: u32) {
        self.free.add(-i64::from(count));
        self.promises.unpin(count);
    }

    fn promise(&self, clusters: u64, right: Right) -> Result<(), u64> {
        let kept = self.kept_from_promises(right);
        self.spare.claim_all(kept, clusters)?;
        self.promises.promise(clusters);
        Ok(())
    }

    /// Promises whatever there is: for blocks that will need no cluster in the end, or in tests.
    pub(super) fn promise_anyway(&self, clusters: u64) {
        self.spare.sub(clusters as i64);
        self.promises.promise(clusters);
    }

    /// Ends `promises` promises, `taken` of whose clusters are in use.
    fn settle(&self, promises: u64, taken: u64) {
        let ended = i64::try_from(self.promises.end(promises)).unwrap_or(i64::MAX);
        let change = ended.saturating_sub(i64::try_from(taken).unwrap_or(i64::MAX));
        if change != 0 {
            self.spare.add(change);
        }
    }
}

impl Allocator {
    /// Promises so many clusters to data that has no place yet. They are free until they are
    /// [taken](crate::txn::Txn::take_pinned), and nobody else gets them; what is not needed is
    /// [given back](Self::unpromise). No lock, no journal.
    ///
    /// # Errors
    ///
    /// [`FsError::NoSpace`], in blocks, and nothing is promised: less is free than this, what is
    /// promised already, the pool, and what is reserved from whoever this thread works for (S3). See
    /// [`Self::worth_a_commit`].
    pub(crate) fn promise(&self, volume: &Volume, clusters: u64) -> Result<()> {
        let bits = volume.superblock().cluster_bits();
        let promised = self.space.promise(clusters, Right::of_this_thread());
        promised.map_err(|left| FsError::NoSpace {
            what: BLOCKS,
            wanted: clusters << bits,
            free: left << bits,
        })
    }

    /// Promises clusters to delayed blocks whose clusters the file has already: they count like
    /// others, are never pinned, and are given back. So there need not be any.
    pub(crate) fn promise_anyway(&self, clusters: u64) {
        if clusters > 0 {
            self.space.promise_anyway(clusters);
        }
    }

    /// The superblock reserves so many blocks from now on.
    pub(crate) fn set_reserve(&self, volume: &Volume, blocks: u64) {
        self.space.set_reserve(blocks >> volume.superblock().cluster_bits());
    }

    /// Clusters that an ordinary user can have: see the module's documentation.
    pub(crate) fn available(&self) -> u64 {
        self.space.available()
    }

    /// Gives promises back that were not used. What was pinned for them has been
    /// [unpinned](Self::unpin) before.
    pub(crate) fn unpromise(&self, clusters: u64) {
        self.space.settle(clusters, 0);
    }

    /// Promises end with the taking of what was pinned for them.
    pub(super) fn settle_promises(&self, promised: u64, taken: u32) {
        self.space.settle(promised, u64::from(taken));
    }

    /// Clusters that are promised, pinned ones included.
    pub(crate) fn promised(&self) -> u64 {
        self.space.promised()
    }

    /// Returns whether a commit would make room: blocks that were freed wait for one. To be asked
    /// when there was no space, outside of any transaction; `Writer::with_commits` does.
    pub(crate) fn worth_a_commit(&self) -> bool {
        self.free_pending() > 0
    }

    /// Blocks that whoever this thread works for could have if everything that was freed were released.
    pub(crate) fn within_reach(&self) -> u64 {
        let clusters = self.promisable(Right::of_this_thread()).saturating_add(self.free_pending());
        clusters << self.cluster_bits
    }

    /// Clusters that somebody with this right could be promised now.
    pub(crate) fn promisable(&self, right: Right) -> u64 {
        self.space.promisable(right)
    }

    /// Returns how often clusters came back (S4): who found none, and sees that there were returns since, looks
    /// again.
    pub(crate) fn returns(&self) -> u64 {
        self.returns.load(Ordering::Acquire)
    }
}
