//! The writing side of a mount: the journal, the allocator, and the state that their transactions
//! encode.
//!
//! # Invariants
//!
//! - W1. Everything that a transaction changed is on one of its lists when it locks: nodes in
//!   [`DirtyNodes`](crate::log::DirtyNodes), groups with the allocator, the superblock with its own
//!   mark, single blocks as claims with the journal.
//! - W2. Each of them is encoded once per transaction ([`WriterStats::inodes_encoded`] counts).

mod dirty_files;
mod fast;
mod pace;
mod read_ahead;

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use extant_format::superblock::Superblock;
use extant_jbd2::{EncodeSink, Journal, JournalStats};
use extant_sync::{Background, Clock, Mutex, Rank};

use crate::alloc::{Allocator, AllocatorStats};
use crate::dentry::Dentries;
use crate::error::{FsError, Result};
use crate::fast::Refusal;
use crate::freeze_gate::{FreezeGate, Inside};
use crate::log::Log;
use crate::logged::Logged;
use crate::mmp::MmpGuard;
use crate::node::{Airspace, Node, Spans};
use crate::orphan::{OrphanSummary, Orphans};
use crate::quota::Quotas;
use crate::shared_blocks::SharedBlocks;
use crate::slot::BlockKind;
use crate::supers::{SuperState, Totals};
use crate::times::{AccessRule, TimeRules};
use crate::volume::Volume;

pub(crate) use dirty_files::{DirtyFiles, EXPIRE};
pub(crate) use fast::are_possible as fast_commits_are_possible;
pub(crate) use pace::{Load, Pace, Turn};
pub(crate) use read_ahead::ReadAhead;

/// Number of inodes deleted at the end of one operation; the rest waits for the next.
const RECLAIM_STEP: usize = 16;

/// The writing side of a volume.
pub(crate) struct Writer {
    log: Log,
    alloc: Allocator,
    dentries: Dentries,
    freeze: FreezeGate,
    /// Overwrites of lanes under way: a freeze and the end wait for them.
    overwrites: Airspace,
    /// Ranges of direct operations under way.
    spans: Spans,
    supers: SuperState,
    orphans: Orphans,
    quotas: Quotas,
    mmp: Option<MmpGuard>,
    recovered_orphans: OnceLock<OrphanSummary>,
    /// Why parts of the fast commits were left out.
    fast_commit_damage: OnceLock<Vec<FsError>>,
    /// Held while a directory moves to another parent.
    tree_shape: Mutex<()>,
    /// Inodes without links whose last handle was dropped.
    reclaim: Mutex<Vec<Arc<Node>>>,
    reclaim_waits: AtomicBool,
    shared_blocks: SharedBlocks,
    dirty_files: DirtyFiles,
    access_rule: AccessRule,
    pace: Pace,
    read_ahead: ReadAhead,
    background: OnceLock<Mutex<Option<Arc<Background>>>>,
    inodes_encoded: AtomicU64,
    /// Whether a thread makes the file system grow.
    grows: AtomicBool,
}

/// The right to make the file system grow, of one thread at a time.
pub(crate) struct Growing<'w>(&'w AtomicBool);

impl Drop for Growing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Counts of the writing side since the mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WriterStats {
    /// Number of changes of inodes.
    pub inode_updates: u64,
    /// Number of inodes encoded into their table blocks, each at most once per transaction.
    pub inodes_encoded: u64,
    /// Number of block groups encoded into bitmaps and descriptors, each at most once per
    /// transaction.
    pub groups_encoded: u64,
    /// Number of blocks of contents that went through the journal; see
    /// [`MountOptions::data_journal`](crate::MountOptions::data_journal).
    pub data_blocks_logged: u64,
    /// Number of blocks discarded after they were freed; see
    /// [`MountOptions::discard`](crate::MountOptions::discard).
    pub blocks_discarded: u64,
    /// Number of runs of freed blocks that the device failed to discard.
    pub discards_failed: u64,
    /// The allocator's counters.
    pub allocator: AllocatorStats,
    /// The journal's counters.
    pub journal: JournalStats,
    /// Syncs of which a fast commit could not be made, by the reason: names as in `extant stats`.
    pub fast_refused: [(&'static str, u64); Refusal::COUNT],
}

impl WriterStats {
    /// Returns every counter with its name, for display.
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let journal = &self.journal;
        let mut all = vec![
            ("inode_updates", self.inode_updates),
            ("inodes_encoded", self.inodes_encoded),
            ("groups_encoded", self.groups_encoded),
            ("data_blocks_logged", self.data_blocks_logged),
            ("blocks_discarded", self.blocks_discarded),
            ("discards_failed", self.discards_failed),
            ("commits", journal.commits),
            ("handles", journal.handles),
            ("blocks_logged", journal.blocks_logged),
            ("log_blocks", journal.log_blocks),
            ("revokes", journal.revokes),
            ("flushes", journal.flushes),
            ("fua_writes", journal.fua_writes),
            ("checkpoints", journal.checkpoints),
            ("home_writes", journal.home_writes),
            ("batched", journal.batched),
            ("waits", journal.waits),
            ("fast_commits", journal.fast_commits),
            ("fast_blocks", journal.fast_blocks),
        ];
        all.extend(self.fast_refused);
        all.extend(self.allocator.named());
        all
    }
}

/// The parts from which a mount makes its writer.
pub(crate) struct WriterParts {
    pub(crate) journal: Arc<Journal>,
    pub(crate) logged: Logged,
    pub(crate) alloc: Allocator,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) dentries: usize,
    pub(crate) supers: SuperState,
    pub(crate) orphans: Orphans,
    pub(crate) quotas: Quotas,
    pub(crate) mmp: Option<MmpGuard>,
    pub(crate) expire: Duration,
    pub(crate) times: TimeRules,
}

impl Writer {
    pub(crate) fn new(parts: WriterParts) -> Writer {
        Writer {
            log: Log::new(parts.journal, parts.logged, parts.clock, parts.seed),
            alloc: parts.alloc,
            dentries: Dentries::new(parts.dentries),
            freeze: FreezeGate::default(),
            overwrites: Airspace::new(),
            spans: Spans::new(),
            supers: parts.supers,
            orphans: parts.orphans,
            quotas: parts.quotas,
            mmp: parts.mmp,
            recovered_orphans: OnceLock::new(),
            fast_commit_damage: OnceLock::new(),
            tree_shape: Mutex::new(Rank::Rename, ()),
            reclaim: Mutex::new(Rank::Leaf, Vec::new()),
            reclaim_waits: AtomicBool::new(false),
            shared_blocks: SharedBlocks::new(),
            dirty_files: DirtyFiles::new(parts.expire, parts.times.lazy),
            access_rule: parts.times.access,
            read_ahead: ReadAhead::new(),
            pace: Pace::default(),
            background: OnceLock::new(),
            inodes_encoded: AtomicU64::new(0),
            grows: AtomicBool::new(false),
        }
    }

    /// Takes the right to make the file system grow; `None` while another thread has it.
    pub(crate) fn begin_growth(&self) -> Option<Growing<'_>> {
        let was_free = !self.grows.swap(true, Ordering::AcqRel);
        was_free.then_some(Growing(&self.grows))
    }

    pub(crate) fn shared_blocks(&self) -> &SharedBlocks {
        &self.shared_blocks
    }

    pub(crate) fn dirty_files(&self) -> &DirtyFiles {
        &self.dirty_files
    }

    /// Returns the rule for access times of what is read through the library.
    pub(crate) fn access_rule(&self) -> AccessRule {
        self.access_rule
    }

    pub(crate) fn read_ahead(&self) -> &ReadAhead {
        &self.read_ahead
    }

    /// Sets the background writeback thread, once.
    pub(crate) fn set_background(&self, background: Background) {
        let _ = self.background.set(Mutex::new(Rank::Leaf, Some(Arc::new(background))));
    }

    /// Returns whether a background thread writes back.
    pub(crate) fn has_background(&self) -> bool {
        self.background.get().is_some()
    }

    /// Returns the pacing of writers.
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// Wakes the background thread early, because much is dirty.
    pub(crate) fn wake_background(&self) {
        // The thread has a lock of its own, so the slot's is released first.
        let background = self.background.get().and_then(|slot| slot.lock().clone());
        if let Some(background) = background {
            background.wake();
        }
    }

    /// Ends the threads, after their current work. The caller holds no lock.
    pub(crate) fn stop_background(&self) {
        self.read_ahead.stop();
        let background = self.background.get().and_then(|slot| slot.lock().take());
        drop(background);
    }

    pub(crate) fn alloc(&self) -> &Allocator {
        &self.alloc
    }

    pub(crate) fn dentries(&self) -> &Dentries {
        &self.dentries
    }

    pub(crate) fn supers(&self) -> &SuperState {
        &self.supers
    }

    pub(crate) fn freeze_gate(&self) -> &FreezeGate {
        &self.freeze
    }

    /// Returns the overwrites of lanes under way, which begin inside the freeze gate.
    pub(crate) fn overwrites(&self) -> &Airspace {
        &self.overwrites
    }

    /// Returns the ranges of direct operations under way.
    pub(crate) fn spans(&self) -> &Spans {
        &self.spans
    }

    /// Enters to change something, or to write changes back: see [`FreezeGate::enter`].
    pub(crate) fn enter(&self) -> Inside<'_> {
        self.freeze.enter()
    }

    /// Enters like [`enter`](Self::enter) without waiting: `None` while the mount is frozen.
    pub(crate) fn try_enter(&self) -> Option<Inside<'_>> {
        self.freeze.try_enter()
    }

    pub(crate) fn orphans(&self) -> &Orphans {
        &self.orphans
    }

    pub(crate) fn mmp(&self) -> Option<&MmpGuard> {
        self.mmp.as_ref()
    }

    pub(crate) fn set_recovered_orphans(&self, summary: OrphanSummary) {
        let _ = self.recovered_orphans.set(summary);
    }

    pub(crate) fn recovered_orphans(&self) -> Option<&OrphanSummary> {
        self.recovered_orphans.get()
    }

    pub(crate) fn set_fast_commit_damage(&self, damage: Vec<FsError>) {
        let _ = self.fast_commit_damage.set(damage);
    }

    pub(crate) fn fast_commit_damage(&self) -> &[FsError] {
        self.fast_commit_damage.get().map_or(&[], Vec::as_slice)
    }

    pub(crate) fn quotas(&self) -> &Quotas {
        &self.quotas
    }

    /// Returns the lock of the tree's shape: which directory is below which.
    pub(crate) fn tree_shape(&self) -> &Mutex<()> {
        &self.tree_shape
    }

    /// Returns the current totals of free blocks and inodes.
    pub(crate) fn totals(&self, superblock: &Superblock) -> Totals {
        Totals {
            free_blocks: self.alloc.free_clusters() << superblock.cluster_bits(),
            free_inodes: self.alloc.free_inodes(),
        }
    }

    /// Queues a node without links for deletion after its last handle was dropped.
    pub(crate) fn reclaim_later(&self, node: Arc<Node>) {
        self.reclaim.lock().push(node);
        self.reclaim_waits.store(true, Ordering::Release);
    }

    /// Returns whether nodes are queued for deletion, which is rare. Costs one load.
    pub(crate) fn has_reclaimable(&self) -> bool {
        self.reclaim_waits.load(Ordering::Acquire)
    }

    /// Takes some of the nodes queued for deletion.
    pub(crate) fn take_reclaimable(&self) -> Vec<Arc<Node>> {
        let mut waiting = self.reclaim.lock();
        let keep = waiting.len().saturating_sub(RECLAIM_STEP);
        let taken = waiting.split_off(keep);
        self.reclaim_waits.store(!waiting.is_empty(), Ordering::Release);
        taken
    }

    pub(crate) fn stats(&self) -> WriterStats {
        WriterStats {
            inode_updates: self.log.inode_updates(),
            inodes_encoded: self.inodes_encoded.load(Ordering::Relaxed),
            groups_encoded: self.alloc.groups_encoded(),
            data_blocks_logged: self.log.logged().put(),
            blocks_discarded: self.alloc.spent().discarded(),
            discards_failed: self.alloc.spent().failed(),
            allocator: self.alloc.stats(),
            journal: self.journal().stats(),
            fast_refused: self.log.fast().named(),
        }
    }
}

impl Deref for Writer {
    type Target = Log;

    fn deref(&self) -> &Log {
        &self.log
    }
}

impl Writer {
    /// Encodes the changes of the running transaction into blocks. No handle is open.
    pub(crate) fn encode(&self, volume: &Volume, sink: &mut EncodeSink<'_>) -> Result<()> {
        self.supers.wake()?;
        self.log.fast().restart();
        let mut dirty_nodes = self.log.dirty_nodes().take();
        while let Some(dirty) = dirty_nodes.next() {
            self.inodes_encoded.fetch_add(1, Ordering::Relaxed);
            let load = || volume.load_block(dirty.slot.number());
            let data = dirty.node.data();
            let encoded = dirty.slot.change(BlockKind::Plain, load, |block| {
                data.encode(volume.inode_layout(), block, dirty.offset)
            });
            if let Err(error) = encoded.and_then(|encoded| encoded) {
                // The journal aborts. Readers continue to see what they have seen before.
                let kept: Vec<_> = std::iter::once(dirty).chain(dirty_nodes).collect();
                kept.into_iter().for_each(|dirty| self.log.dirty_nodes().push(dirty));
                return Err(error);
            }
            // This may be the last reference, and too many nodes may be kept.
            volume.nodes().let_go(&dirty.node.ino(), |node| Arc::ptr_eq(node, &dirty.node));
        }
        self.quotas.encode(volume)?;
        self.alloc.encode(volume)?;
        for damage in self.alloc.take_reports() {
            if self.supers.report(&damage, self.now().seconds) {
                return Err(damage);
            }
        }
        self.supers.encode(volume, self.totals(volume.superblock()), sink)
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("stats", &self.stats()).finish_non_exhaustive()
    }
}
