//! What the running transaction changed since the last commit, for fast commits.
//!
//! # Place
//!
//! Below: `node`. Above: a handle of the journal records here what it changes
//! ([`Editor`](crate::editor::Editor)); the writer makes records of it when the journal asks.
//!
//! # Invariants
//!
//! - H1. Deny by default: a transaction can be described only while every handle in it said when it
//!   was opened that what it does can be, and did nothing else. Any other handle refuses for the
//!   rest of the transaction.
//! - H2. What is described is complete: the records of all fast commits of a transaction together
//!   say everything that it changed up to the last of them. So a replay shows the state at a sync,
//!   as a full commit does, and never a part of a change.
//! - H3. It is bounded: beyond [`BYTES_MAX`] of records the transaction is committed fully.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use extant_base::{FileBlock, FsBlock, Ino, sabotage};
use extant_format::extent::{Extent, ExtentState, UNWRITTEN_LEN_MAX, WRITTEN_LEN_MAX};
use extant_jbd2::Round;
use extant_sync::{Mutex, Rank};

use crate::node::Node;

/// Shards; a power of two.
const SHARDS: usize = 16;

/// Limit of the records of one fast commit, in bytes: a full commit of as much takes no longer.
const BYTES_MAX: usize = 256 << 10;

/// Bytes of a record with an extent.
const EXTENT_BYTES: usize = 20;

/// Reason why a transaction needs a full commit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// A change of another kind.
    Other,
    /// Names, new inodes and deleted ones.
    Names,
    /// Extended attributes or access control lists.
    Attributes,
    /// Blocks that were freed, moved, or allocated beforehand.
    Blocks,
    /// The first blocks of a group that had none in use.
    NewGroup,
    /// An inode whose map is no tree of extents inside the inode, or with an attribute block, and
    /// others that a replay would not restore as they are.
    Inode,
    /// More than fits.
    Many,
}

impl Refusal {
    /// Number of reasons.
    pub(crate) const COUNT: usize = 7;

    const ALL: [(Refusal, &'static str); Refusal::COUNT] = [
        (Refusal::Other, "fast_refused_other"),
        (Refusal::Names, "fast_refused_names"),
        (Refusal::Attributes, "fast_refused_attributes"),
        (Refusal::Blocks, "fast_refused_blocks"),
        (Refusal::NewGroup, "fast_refused_new_group"),
        (Refusal::Inode, "fast_refused_inode"),
        (Refusal::Many, "fast_refused_many"),
    ];

    fn number(self) -> u8 {
        self as u8 + 1
    }
}

/// The changes of one inode.
pub(crate) struct Changed {
    pub(crate) node: Arc<Node>,
    /// Mappings that are new, each no longer than one record.
    pub(crate) extents: Vec<Extent>,
}

/// The changes since the last commit.
pub(crate) struct FastLog {
    /// Whether fast commits are made.
    is_on: bool,
    /// The number of the first reason, 0 for none.
    refused: AtomicU8,
    bytes: AtomicUsize,
    shards: Vec<Mutex<HashMap<Ino, Changed>>>,
    /// Number of syncs that needed a full commit, by reason.
    refusals: [AtomicU64; Refusal::COUNT],
}

impl FastLog {
    pub(crate) fn new(is_on: bool) -> FastLog {
        let shard = || Mutex::new(Rank::Leaf, HashMap::new());
        FastLog {
            is_on,
            refused: AtomicU8::new(0),
            bytes: AtomicUsize::new(0),
            shards: (0..SHARDS).map(|_| shard()).collect(),
            refusals: Default::default(),
        }
    }

    /// Returns whether the running transaction can still be described. Costs one load.
    pub(crate) fn describes(&self) -> bool {
        self.is_on && self.refused.load(Ordering::Acquire) == 0
    }

    /// Makes the running transaction one that is committed fully. The caller has a handle. The
    /// first reason that says something counts.
    pub(crate) fn refuse(&self, why: Refusal) {
        if !self.is_on {
            return;
        }
        let other = Refusal::Other.number();
        let now = self.refused.load(Ordering::Acquire);
        if now == 0 || (now == other && why != Refusal::Other) {
            // A race of two reasons: either will do.
            self.refused.store(why.number(), Ordering::Release);
        }
    }

    /// Counts a sync that needs a full commit.
    pub(crate) fn count_refusal(&self) {
        let at = usize::from(self.refused.load(Ordering::Acquire)).checked_sub(1);
        if let Some(count) = at.and_then(|at| self.refusals.get(at)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Changed>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    fn add_bytes(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) > BYTES_MAX {
            self.refuse(Refusal::Many);
        }
    }

    /// Records that a handle of `round` changed the inode. `record_bytes` is the size of an inode.
    pub(crate) fn changed(&self, node: &Arc<Node>, round: Round, record_bytes: usize) {
        if !self.describes() || node.described_in.swap(round, Ordering::AcqRel) == round {
            return;
        }
        self.add_bytes(record_bytes);
        let mut shard = self.shard(node.ino()).lock();
        let node = Arc::clone(node);
        shard.entry(node.ino()).or_insert_with(|| Changed { node, extents: Vec::new() });
    }

    /// Records that blocks of a file are mapped as `run` says, of any length.
    pub(crate) fn mapped(&self, node: &Arc<Node>, run: Extent) {
        if !self.describes() || sabotage("extant.fast.range-forgotten") {
            return;
        }
        let mut shard = self.shard(node.ino()).lock();
        let changed = shard
            .entry(node.ino())
            .or_insert_with(|| Changed { node: Arc::clone(node), extents: Vec::new() });
        let before = changed.extents.len();
        add(&mut changed.extents, run);
        let added = changed.extents.len().saturating_sub(before);
        drop(shard);
        if added > 0 {
            self.add_bytes(added.saturating_mul(EXTENT_BYTES));
        }
    }

    /// Takes all changes, by the numbers of their inodes. No handle is open.
    pub(crate) fn take(&self) -> Vec<Changed> {
        self.bytes.store(0, Ordering::Relaxed);
        let take = |shard: &Mutex<HashMap<Ino, Changed>>| std::mem::take(&mut *shard.lock());
        let mut all: Vec<Changed> =
            self.shards.iter().flat_map(|shard| take(shard).into_values()).collect();
        all.sort_unstable_by_key(|changed| changed.node.ino());
        all
    }

    /// Forgets all changes, which a full commit makes durable. No handle is open.
    pub(crate) fn restart(&self) {
        if self.is_on {
            drop(self.take());
            self.refused.store(0, Ordering::Release);
        }
    }

    /// Returns the counts of refusals, with names for display.
    pub(crate) fn named(&self) -> [(&'static str, u64); Refusal::COUNT] {
        let mut named = Refusal::ALL.map(|(_, name)| (name, 0));
        for ((_, to), from) in named.iter_mut().zip(&self.refusals) {
            *to = from.load(Ordering::Relaxed);
        }
        named
    }
}

/// Adds a run to a list of extents of at most the length of a record: to the last one, if it
/// continues that.
fn add(extents: &mut Vec<Extent>, mut run: Extent) {
    let longest = match run.state {
        ExtentState::Written => WRITTEN_LEN_MAX,
        ExtentState::Unwritten => UNWRITTEN_LEN_MAX,
    };
    while run.len.0 > 0 {
        let last = extents.last_mut().filter(|last| {
            last.state == run.state
                && last.len.0 < longest
                && last.file_start.0.checked_add(last.len.0) == Some(run.file_start.0)
                && last.device_start.0.checked_add(u64::from(last.len.0))
                    == Some(run.device_start.0)
        });
        let taken = match last {
            Some(last) => {
                let taken = run.len.0.min(longest - last.len.0);
                last.len.0 += taken;
                taken
            }
            None => {
                let taken = run.len.0.min(longest);
                let mut first = run;
                first.len.0 = taken;
                extents.push(first);
                taken
            }
        };
        run.len.0 -= taken;
        run.file_start = FileBlock(run.file_start.0.saturating_add(taken));
        run.device_start = FsBlock(run.device_start.0.saturating_add(u64::from(taken)));
    }
}

#[cfg(test)]
mod tests {
    use extant_base::BlockCount;

    use super::*;

    fn run(file: u32, device: u64, len: u32, state: ExtentState) -> Extent {
        let (file_start, device_start) = (FileBlock(file), FsBlock(device));
        Extent { file_start, device_start, len: BlockCount(len), state }
    }

    #[test]
    fn runs_are_joined_and_cut_at_the_length_of_a_record() {
        use ExtentState::{Unwritten, Written};
        let mut extents = Vec::new();
        for (file, device, len) in [(0, 100, 1), (1, 101, 2), (3, 200, 1), (4, 201, 40_000)] {
            add(&mut extents, run(file, device, len, Written));
        }
        add(&mut extents, run(40_004, 40_201, 1, Unwritten));
        let expected = [
            run(0, 100, 3, Written),
            run(3, 200, 32_768, Written),
            run(32_771, 32_968, 7_233, Written),
            run(40_004, 40_201, 1, Unwritten),
        ];
        assert_eq!(extents, expected);
    }
}
