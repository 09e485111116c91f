//! The blocks of the running transaction, and the blocks with copies in the live log.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::{FsBlock, sabotage};
use extant_sync::{Mutex, Rank};

use crate::block::{JournalBlock, Tid};

/// Shards; a power of two.
const SHARDS: usize = 16;

#[derive(Default)]
struct Shard {
    /// Claimed by the running transaction.
    blocks: HashMap<FsBlock, Arc<dyn JournalBlock>>,
    /// Freed by it, with a copy in the log.
    revoked: HashSet<FsBlock>,
    /// Copied to the log since the last checkpoint. A block that was revoked since may still be
    /// here; a second revoke does no harm.
    live: HashSet<FsBlock>,
}

/// The result of a revoke.
pub(crate) struct Revoked {
    /// The block left the transaction.
    pub(crate) dropped: bool,
    /// A revoke record was added.
    pub(crate) recorded: bool,
}

/// The parts of a transaction, each in order of the block's number.
#[derive(Default)]
pub(crate) struct Taken {
    pub(crate) blocks: Vec<(FsBlock, Arc<dyn JournalBlock>)>,
    pub(crate) revoked: Vec<FsBlock>,
}

pub(crate) struct BlockSet {
    shards: Vec<Mutex<Shard>>,
}

impl BlockSet {
    pub(crate) fn new() -> BlockSet {
        let shard = || Mutex::new(Rank::Leaf, Shard::default());
        BlockSet { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    fn with<R>(&self, block: FsBlock, run: impl FnOnce(&mut Shard) -> R) -> Option<R> {
        // Runs of eight blocks share a shard: neighbours are often claimed together.
        let mask = u64::try_from(SHARDS.saturating_sub(1)).unwrap_or(0);
        let at = usize::try_from((block.0 >> 3) & mask).unwrap_or(0);
        self.shards.get(at).map(|shard| run(&mut shard.lock()))
    }

    /// Adds a block; returns true when it is new. Cancels a revoke of it: the later copy hides the
    /// older ones by itself, and a revoke in the same transaction would hide it too (J4).
    pub(crate) fn claim(&self, tid: Tid, block: Arc<dyn JournalBlock>) -> bool {
        let number = block.number();
        let added = self.with(number, |shard| {
            if !sabotage("jbd2.set.revoke-survives-reuse") {
                shard.revoked.remove(&number);
            }
            // Inside the lock, so that a revoke on another thread is before or after both.
            block.claimed().store(tid, Ordering::Relaxed);
            shard.blocks.insert(number, block)
        });
        // The one replaced, if any, is dropped out here: its owner may take locks for it.
        matches!(added, Some(None))
    }

    /// Removes a freed block, and records the revoke if the log may have a copy.
    pub(crate) fn revoke(&self, number: FsBlock) -> Revoked {
        let done = self.with(number, |shard| {
            let dropped = shard.blocks.remove(&number);
            if let Some(block) = &dropped {
                block.claimed().store(0, Ordering::Relaxed);
            }
            (dropped, shard.live.contains(&number) && shard.revoked.insert(number))
        });
        let (dropped, recorded) = done.unwrap_or((None, false));
        Revoked { dropped: dropped.is_some(), recorded }
    }

    /// Takes everything out. With a log, the blocks count as live in it from now on.
    pub(crate) fn take(&self, to_log: bool) -> Taken {
        let mut taken = Taken::default();
        for shard in &self.shards {
            let mut shard = shard.lock();
            if to_log {
                let keys: Vec<FsBlock> = shard.blocks.keys().copied().collect();
                shard.live.extend(keys);
            }
            taken.blocks.extend(shard.blocks.drain());
            taken.revoked.extend(shard.revoked.drain());
        }
        taken.blocks.sort_unstable_by_key(|(number, _)| *number);
        taken.revoked.sort_unstable();
        taken
    }

    /// Records that the log is empty: no block has a copy in it.
    pub(crate) fn forget_live(&self) {
        for shard in &self.shards {
            if sabotage("jbd2.set.live-kept") {
                continue;
            }
            shard.lock().live.clear();
        }
    }
}
