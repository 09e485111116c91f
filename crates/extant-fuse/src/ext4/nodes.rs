//! Which inodes the kernel knows, and which files it has open for writing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant::{FileKind, Inode};
use extant_base::sabotage;
use extant_sync::{Mutex, Rank};
use rustc_hash::FxHashMap;

use crate::operations::Errno;

/// Parts of each table, each with a lock of its own.
const SHARDS: usize = 64;

struct Known {
    inode: Inode,
    /// Lookups that were answered and not forgotten.
    lookups: u64,
    /// Times it is open for writing.
    writers: u32,
    refused: Refusals,
}

/// Writes out of the kernel's cache that were refused: what a program wrote, and was told it had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Refusals {
    pub(super) count: u64,
    pub(super) last: Option<Refusal>,
    /// Some of what was written is missing, and nobody has made durable or given up what there is since.
    pub(super) has_lost: bool,
}

/// A write that was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Refusal {
    pub(super) why: Errno,
    /// When, by the clock that counts on.
    pub(super) at: Duration,
    /// How often something had been freed by then.
    pub(super) freed: u64,
}

impl Refusals {
    fn and(self, one: Refusal) -> Refusals {
        Refusals { count: self.count.saturating_add(1), last: Some(one), has_lost: true }
    }
}

/// The nodes that the kernel knows, by number. Memory follows the kernel's cache of inodes.
pub(super) struct Nodes {
    shards: Vec<Mutex<FxHashMap<u64, Known>>>,
    /// Of all nodes, those included that are forgotten.
    refused: Mutex<Refusals>,
}

impl Nodes {
    pub(super) fn new() -> Nodes {
        Nodes { shards: shards(), refused: Mutex::new(Rank::Leaf, Refusals::default()) }
    }

    fn shard(&self, node: u64) -> &Mutex<FxHashMap<u64, Known>> {
        &self.shards[node as usize % SHARDS]
    }

    /// The inode of a node that is known.
    pub(super) fn get(&self, node: u64) -> Option<Inode> {
        self.shard(node).lock().get(&node).map(|known| known.inode.clone())
    }

    /// The kernel knows `node` once more.
    pub(super) fn learn(&self, node: u64, inode: Inode) {
        let mut shard = self.shard(node).lock();
        let known = shard.entry(node).or_insert(Known {
            inode,
            lookups: 0,
            writers: 0,
            refused: Refusals::default(),
        });
        known.lookups = known.lookups.saturating_add(1);
    }

    /// The kernel knows `node` so many times less.
    pub(super) fn forget(&self, node: u64, count: u64) {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else { return };
        let count = if sabotage("fuse.nodes.forget-counts-one") { 1 } else { count };
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups == 0 {
            let gone = shard.remove(&node);
            drop(shard);
            // The last handle may go with it, which takes other locks.
            drop(gone);
        }
    }

    /// The kernel knows nothing any more.
    pub(super) fn forget_all(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            // Last handles take other locks.
            drop(gone);
        }
    }

    /// Has every node be another handle of its inode, as `anew` gives it; without one nobody can use the node
    /// until it is forgotten.
    pub(super) fn renew(&self, anew: impl Fn(&Inode) -> Option<Inode>) {
        for shard in &self.shards {
            let known: Vec<(u64, Inode)> = {
                let shard = shard.lock();
                shard.iter().map(|(node, known)| (*node, known.inode.clone())).collect()
            };
            for (node, inode) in known {
                // Reads, and takes other locks.
                let new = anew(&inode);
                let mut shard = self.shard(node).lock();
                let gone = match (new, shard.get_mut(&node)) {
                    (Some(new), Some(known)) => Some(std::mem::replace(&mut known.inode, new)),
                    (None, Some(_)) => shard.remove(&node).map(|known| known.inode),
                    // Forgotten meanwhile.
                    (new, None) => new,
                };
                drop(shard);
                // Last handles take other locks.
                drop((gone, inode));
            }
        }
    }

    /// It is open for writing once more, or once less; how often then.
    pub(super) fn count_writer(&self, node: u64, opened: bool) -> u32 {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.get_mut(&node) else { return 0 };
        known.writers = match opened {
            true => known.writers.saturating_add(1),
            false => known.writers.saturating_sub(1),
        };
        known.writers
    }

    /// Whether somebody has it open for writing, so that the kernel may hold contents back.
    pub(super) fn has_writers(&self, node: u64) -> bool {
        self.shard(node).lock().get(&node).is_some_and(|known| known.writers > 0)
    }

    /// Those that somebody has open for writing.
    pub(super) fn written(&self) -> Vec<u64> {
        let written = |shard: &Mutex<FxHashMap<u64, Known>>| -> Vec<u64> {
            let shard = shard.lock();
            let open = shard.iter().filter(|(_, known)| known.writers > 0);
            open.map(|(node, _)| *node).collect()
        };
        self.shards.iter().flat_map(written).collect()
    }

    /// A write out of the kernel's cache was refused.
    pub(super) fn refuse(&self, node: u64, refusal: Refusal) {
        {
            let mut all = self.refused.lock();
            *all = all.and(refusal);
        }
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.refused = known.refused.and(refusal);
        }
    }

    /// Nobody who reads a node from now on takes it for something else than what is there.
    pub(super) fn settle_refusals(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            known.refused.has_lost = false;
        }
    }

    /// Nothing is wanted any more of what was written to a node.
    pub(super) fn give_up_refusals(&self, node: u64) {
        if let Some(known) = self.shard(node).lock().get_mut(&node) {
            (known.refused.last, known.refused.has_lost) = (None, false);
        }
    }

    /// What was refused of a node so far.
    pub(super) fn refused(&self, node: u64) -> Refusals {
        self.shard(node).lock().get(&node).map(|known| known.refused).unwrap_or_default()
    }

    /// What was refused of all nodes so far.
    pub(super) fn all_refused(&self) -> Refusals {
        *self.refused.lock()
    }

    /// A regular file that is known, if a few nodes of each shard have one among them.
    pub(super) fn some_file(&self) -> Option<u64> {
        let is_file = |known: &Known| known.inode.kind() == FileKind::Regular;
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            shard.iter().take(8).find(|(_, known)| is_file(known)).map(|(node, _)| *node)
        })
    }

    /// How many nodes are known.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

/// What an open file has heard of: passes of writeback that failed, writes that were refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Heard {
    pub(super) failures: u64,
    pub(super) refusals: u64,
    /// Not of what was heard, but who hears: whoever opened it may take reserved blocks.
    pub(super) may_use_reserve: bool,
}

/// Files that are open for writing, and what each has heard of.
pub(super) struct Opens {
    next: AtomicU64,
    shards: Vec<Mutex<FxHashMap<u64, Heard>>>,
}

impl Opens {
    pub(super) fn new() -> Opens {
        Opens { next: AtomicU64::new(1), shards: shards() }
    }

    /// A new open file; never 0.
    pub(super) fn add(&self, heard: Heard) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shards[handle as usize % SHARDS].lock().insert(handle, heard);
        handle
    }

    pub(super) fn remove(&self, handle: u64) {
        self.shards[handle as usize % SHARDS].lock().remove(&handle);
    }

    /// Whether passes of writeback failed since this open file last asked.
    pub(super) fn has_new_failures(&self, handle: u64, failures: u64) -> bool {
        if sabotage("fuse.nodes.failure-told-again") {
            return self.hears(handle, |heard| heard.failures != failures);
        }
        self.hears(handle, |heard| std::mem::replace(&mut heard.failures, failures) != failures)
    }

    /// Whether writes were refused since this open file last asked.
    pub(super) fn has_new_refusals(&self, handle: u64, refusals: u64) -> bool {
        self.hears(handle, |heard| std::mem::replace(&mut heard.refusals, refusals) != refusals)
    }

    /// Whether the open file is somebody's who may take reserved blocks.
    pub(super) fn may_use_reserve(&self, handle: u64) -> bool {
        self.hears(handle, |heard| heard.may_use_reserve)
    }

    fn hears(&self, handle: u64, news: impl FnOnce(&mut Heard) -> bool) -> bool {
        self.shards[handle as usize % SHARDS].lock().get_mut(&handle).is_some_and(news)
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().len()).sum()
    }
}

fn shards<V>() -> Vec<Mutex<FxHashMap<u64, V>>> {
    (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, FxHashMap::default())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant::MountOptions;
    use extant_testkit::oracle::mke2fs;
    use extant_testkit::{image, require, tempdir};

    use super::*;

    #[test]
    fn a_node_is_known_until_all_its_lookups_are_forgotten_however_many_at_a_time() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        require!(mke2fs(&path, "8M", &["-t", "ext4"]));
        let fs = MountOptions::new().open_shared(Arc::new(image::load(&path))).unwrap();
        let (nodes, root) = (Nodes::new(), fs.root().unwrap());
        for _ in 0..5 {
            nodes.learn(1, root.clone());
        }
        nodes.learn(65, root.clone()); // In the same shard.
        nodes.forget(1, 3);
        nodes.forget(7, 1); // Nobody knows it.
        assert!(nodes.get(1).is_some() && nodes.get(65).is_some());
        nodes.forget(1, 1);
        assert!(nodes.get(1).is_some());
        nodes.forget(1, 1);
        assert!(nodes.get(1).is_none(), "five were counted, and five forgotten");
        assert_eq!(nodes.len(), 1);
        // More than were counted, as only a kernel with a mistake would say.
        nodes.forget(65, u64::MAX);
        assert_eq!(nodes.len(), 0);
    }

    #[test]
    fn an_open_file_hears_of_each_failure_once() {
        let opens = Opens::new();
        let at = |failures| Heard { failures, refusals: 7, may_use_reserve: failures == 1 };
        let (a, b) = (opens.add(at(0)), opens.add(at(1)));
        assert!(a != 0 && a != b);
        assert!(opens.has_new_failures(a, 1) && !opens.has_new_failures(a, 1));
        assert!(!opens.has_new_failures(b, 1) && opens.has_new_failures(b, 2));
        assert!(!opens.has_new_refusals(b, 7) && opens.has_new_refusals(b, 8));
        assert!(opens.has_new_refusals(a, 8) && !opens.has_new_refusals(a, 8));
        opens.remove(b);
        assert_eq!(opens.len(), 1);
        assert!(!opens.has_new_failures(b, 3) && !opens.has_new_failures(0, 3));
    }
}
