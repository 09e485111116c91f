//! The inodes that the kernel knows, and the files that it has open for writing.
//!
//! The kernel may know millions. For each node this module keeps its number, its generation and its
//! lookup count; the inode itself is in memory within the library's budget for inodes, and read
//! again when it is needed.
//!
//! # Invariants
//!
//! - N1. A node without a name, or open for writing, has a handle here, so that its inode is not
//!   deleted and its number not reused while the kernel knows it.
//! - N2. For other nodes, generation and kind tell whether the inode of that number is still the
//!   same.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant::{FileKind, Inode, KeyUse};
use extant_base::sabotage;
use extant_sync::{Mutex, Rank};
use rustc_hash::FxHashMap;

use crate::operations::{Errno, Handle, NodeId};

/// Parts of each table, each with a lock of its own.
const SHARDS: usize = 64;
/// Smallest number of nodes for which a shard keeps memory after nodes were forgotten.
const ROOM_MIN: usize = 64;

/// A node that the kernel knows; one of millions.
struct Known {
    /// Lookups that were answered and not forgotten.
    lookups: u64,
    generation: u32,
    kind: FileKind,
    /// Its contents, names or target go through a cipher.
    is_encrypted: bool,
}

/// The properties that few nodes have.
#[derive(Default)]
struct More {
    /// See N1.
    held: Option<Inode>,
    /// Times it is open for writing.
    writers: u32,
    /// Times it is open, if it is encrypted.
    key_users: u32,
    refused: Refusals,
}

#[derive(Default)]
struct Shard {
    known: FxHashMap<NodeId, Known>,
    /// Only of those that are known.
    more: FxHashMap<NodeId, More>,
}

impl Shard {
    /// Releases memory that is not needed any more. Each entry moves at most once for each two that
    /// left.
    fn give_room_back(&mut self) {
        let len = self.known.len().max(ROOM_MIN);
        if self.known.capacity() >= 4 * len {
            self.known.shrink_to(2 * len);
        }
        let len = self.more.len().max(ROOM_MIN);
        if self.more.capacity() >= 4 * len {
            self.more.shrink_to(2 * len);
        }
    }

    /// Takes the handle of a node that is not open for writing; the caller drops it after releasing
    /// the lock.
    fn take_held(&mut self, node: NodeId) -> Option<Inode> {
        let more = self.more.get_mut(&node).filter(|more| more.writers == 0)?;
        let held = more.held.take();
        if more.refused == Refusals::default() && more.key_users == 0 {
            self.more.remove(&node);
        }
        held
    }
}

/// Refused writes out of the kernel's cache, whose data programs were told they had written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Refusals {
    pub(super) count: u64,
    pub(super) last: Option<Refusal>,
    /// Whether some written data is missing, and the file was neither synced nor truncated since.
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

/// The place of the inode of a node that is known.
pub(super) enum Found {
    /// Here.
    Held(Inode),
    /// In the file system, if it has this generation and is of this kind.
    Stored { generation: u32, kind: FileKind },
}

/// Counts of nodes, and the memory that they take.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct NodeCount {
    pub(super) known: usize,
    /// The nodes that have a handle.
    pub(super) held: usize,
    /// Size of the tables in bytes.
    pub(super) bytes: usize,
}

/// The nodes that the kernel knows, by number.
pub(super) struct Nodes {
    shards: Vec<Mutex<Shard>>,
    /// Of all nodes, those included that are forgotten.
    refused: Mutex<Refusals>,
}

impl Nodes {
    pub(super) fn new() -> Nodes {
        Nodes { shards: shards(), refused: Mutex::new(Rank::Leaf, Refusals::default()) }
    }

    fn shard(&self, node: NodeId) -> &Mutex<Shard> {
        &self.shards[node.0 as usize % SHARDS]
    }

    /// Returns where the inode of a node is, if it is known.
    pub(super) fn get(&self, node: NodeId) -> Option<Found> {
        let shard = self.shard(node).lock();
        let known = shard.known.get(&node)?;
        let held = shard.more.get(&node).and_then(|more| more.held.clone());
        Some(match held {
            Some(inode) => Found::Held(inode),
            None => Found::Stored { generation: known.generation, kind: known.kind },
        })
    }

    /// The kernel knows `node` once more.
    pub(super) fn learn(&self, node: NodeId, inode: &Inode) {
        let (generation, kind) = (inode.record().generation, inode.kind());
        let is_encrypted = inode.is_encrypted();
        {
            let mut shard = self.shard(node).lock();
            let new = Known { lookups: 0, generation, kind, is_encrypted };
            let known = shard.known.entry(node).or_insert(new);
            known.lookups = known.lookups.saturating_add(1);
            // The kernel uses the latest answer.
            (known.generation, known.kind) = (generation, kind);
            known.is_encrypted = is_encrypted;
        }
        // Whoever takes the last name from now on finds that it is known.
        self.keep_nameless(node, inode);
    }

    /// Keeps an inode that has no name any more, if it is known (N1). Whoever takes a name has a handle
    /// before, and comes here afterwards.
    pub(super) fn keep_nameless(&self, node: NodeId, inode: &Inode) {
        if !inode.has_name() && !sabotage("fuse.nodes.nameless-not-kept") {
            self.hold(node, inode);
        }
    }

    fn hold(&self, node: NodeId, inode: &Inode) {
        let mut inode = Some(inode.clone());
        let mut shard = self.shard(node).lock();
        if shard.known.contains_key(&node) {
            let more = shard.more.entry(node).or_default();
            if more.held.is_none() {
                more.held = inode.take();
            }
        }
        drop(shard);
        // Handles take other locks when they go.
        drop(inode);
    }

    /// Lowers the kernel's lookup count of `node` by `count`. Returns whether that was the end of an
    /// inode without a name, as far as this table knows.
    pub(super) fn forget(&self, node: NodeId, count: u64) -> bool {
        let mut shard = self.shard(node).lock();
        let Some(known) = shard.known.get_mut(&node) else { return false };
        let count = if sabotage("fuse.nodes.forget-counts-one") { 1 } else { count };
        known.lookups = known.lookups.saturating_sub(count);
        if known.lookups > 0 {
            return false;
        }
        shard.known.remove(&node);
        let gone = shard.more.remove(&node);
        shard.give_room_back();
        drop(shard);
        let held = gone.and_then(|more| more.held);
        // The last handle may go with it, which takes other locks.
        held.is_some_and(|inode| !inode.has_name())
    }

    /// The kernel knows nothing any more.
    pub(super) fn forget_all(&self) {
        for shard in &self.shards {
            let gone = std::mem::take(&mut *shard.lock());
            // Last handles take other locks.
            drop(gone);
        }
    }

    /// Replaces the handle of every node that has one by the handle that `anew` returns; without
    /// one the node is unusable until it is forgotten. The inodes of other nodes are looked up when
    /// they are needed.
    pub(super) fn renew(&self, anew: impl Fn(&Inode) -> Option<Inode>) {
        for shard in &self.shards {
            let held: Vec<(NodeId, Inode)> = {
                let shard = shard.lock();
                let held = |more: &More| more.held.clone();
                shard.more.iter().filter_map(|(node, more)| Some((*node, held(more)?))).collect()
            };
            for (node, inode) in held {
                // Reads, and takes other locks.
                let new = anew(&inode);
                let mut shard = shard.lock();
                let gone = match (new, shard.more.get_mut(&node)) {
                    (Some(new), Some(more)) => more.held.replace(new),
                    (None, Some(_)) => {
                        shard.known.remove(&node);
                        shard.more.remove(&node).and_then(|more| more.held)
                    }
                    // Forgotten meanwhile.
                    (new, None) => new,
                };
                drop(shard);
                // Last handles take other locks.
                drop((gone, inode));
            }
        }
    }

    /// Counts that a node is open for writing once more, and returns how often it is then.
    pub(super) fn add_writer(&self, node: NodeId, inode: &Inode) -> u32 {
        self.hold(node, inode);
        let mut shard = self.shard(node).lock();
        let Some(more) = shard.more.get_mut(&node) else { return 0 };
        more.writers = more.writers.saturating_add(1);
        more.writers
    }

    /// Counts that a node is open for writing once less.
    pub(super) fn remove_writer(&self, node: NodeId) {
        let held = {
            let mut shard = self.shard(node).lock();
            let Some(more) = shard.more.get_mut(&node) else { return };
            more.writers = more.writers.saturating_sub(1);
            shard.take_held(node)
        };
        // It may have lost its name just now, and the thread that removed it found the handle here.
        if let Some(inode) = held {
            self.keep_nameless(node, &inode);
        }
    }

    /// Returns whether the node is open for writing, so that the kernel may have dirty data of it.
    pub(super) fn has_writers(&self, node: NodeId) -> bool {
        self.shard(node).lock().more.get(&node).is_some_and(|more| more.writers > 0)
    }

    /// A directory that is known was given a policy.
    pub(super) fn becomes_encrypted(&self, node: NodeId) {
        if let Some(known) = self.shard(node).lock().known.get_mut(&node) {
            known.is_encrypted = true;
        }
    }

    /// Counts that an encrypted node is open once more.
    pub(super) fn add_key_user(&self, node: NodeId) {
        let mut shard = self.shard(node).lock();
        if shard.known.contains_key(&node) {
            let more = shard.more.entry(node).or_default();
            more.key_users = more.key_users.saturating_add(1);
        }
    }

    /// Counts that an encrypted node is open once less.
    pub(super) fn remove_key_user(&self, node: NodeId) {
        let mut shard = self.shard(node).lock();
        let Some(more) = shard.more.get_mut(&node) else { return };
        more.key_users = more.key_users.saturating_sub(1);
        let is_idle = more.key_users == 0 && more.writers == 0 && more.held.is_none();
        if is_idle && more.refused == Refusals::default() {
            shard.more.remove(&node);
        }
    }

    /// Returns the encrypted nodes that are not open.
    pub(super) fn encrypted(&self) -> Vec<NodeId> {
        let encrypted = |shard: &Mutex<Shard>| -> Vec<NodeId> {
            let shard = shard.lock();
            let is_open = |node| shard.more.get(node).is_some_and(|more| more.key_users > 0);
            let known =
                shard.known.iter().filter(|(node, known)| known.is_encrypted && !is_open(node));
            known.map(|(node, _)| *node).collect()
        };
        self.shards.iter().flat_map(encrypted).collect()
    }

    /// Returns the nodes that are open for writing.
    pub(super) fn written(&self) -> Vec<NodeId> {
        let written = |shard: &Mutex<Shard>| -> Vec<NodeId> {
            let shard = shard.lock();
            let open = shard.more.iter().filter(|(_, more)| more.writers > 0);
            open.map(|(node, _)| *node).collect()
        };
        self.shards.iter().flat_map(written).collect()
    }

    /// A write out of the kernel's cache was refused.
    pub(super) fn refuse(&self, node: NodeId, refusal: Refusal) {
        {
            let mut all = self.refused.lock();
            *all = all.and(refusal);
        }
        let mut shard = self.shard(node).lock();
        if shard.known.contains_key(&node) {
            let more = shard.more.entry(node).or_default();
            more.refused = more.refused.and(refusal);
        }
    }

    /// Settles refusals: readers of the node from now on see its actual contents.
    pub(super) fn settle_refusals(&self, node: NodeId) {
        if let Some(more) = self.shard(node).lock().more.get_mut(&node) {
            more.refused.has_lost = false;
        }
    }

    /// Forgets the refusals of a node whose written data is not needed any more.
    pub(super) fn give_up_refusals(&self, node: NodeId) {
        if let Some(more) = self.shard(node).lock().more.get_mut(&node) {
            (more.refused.last, more.refused.has_lost) = (None, false);
        }
    }

    /// Returns what was refused of a node so far.
    pub(super) fn refused(&self, node: NodeId) -> Refusals {
        self.shard(node).lock().more.get(&node).map(|more| more.refused).unwrap_or_default()
    }

    /// Returns what was refused of all nodes so far.
    pub(super) fn all_refused(&self) -> Refusals {
        *self.refused.lock()
    }

    /// A regular file that is known, if a few nodes of each shard have one among them.
    pub(super) fn some_file(&self) -> Option<NodeId> {
        self.shards.iter().find_map(|shard| {
            let shard = shard.lock();
            let is_file = |known: &Known| known.kind == FileKind::Regular;
            shard.known.iter().take(8).find(|(_, known)| is_file(known)).map(|(node, _)| *node)
        })
    }

    /// Returns how many nodes are known, and what they take here. Costs a lock for each part.
    pub(super) fn count(&self) -> NodeCount {
        let mut count = NodeCount::default();
        for shard in &self.shards {
            let shard = shard.lock();
            count.known += shard.known.len();
            count.held += shard.more.len();
            count.bytes += table_bytes::<Known>(shard.known.capacity());
            count.bytes += table_bytes::<More>(shard.more.capacity());
        }
        count
    }
}

/// Returns the size in bytes of a table with room for `capacity` nodes: at most seven eighths of
/// its places are taken, and each has a byte beside it.
fn table_bytes<V>(capacity: usize) -> usize {
    match capacity {
        0 => 0,
        _ => (capacity * 8 / 7).next_power_of_two() * (size_of::<(NodeId, V)>() + 1),
    }
}

/// The failures that an open file has heard of: passes of writeback that failed, writes that were refused.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// Whether it is open for writing.
    pub(super) writes: bool,
    /// Of an encrypted file: it goes on when its key is removed.
    pub(super) key: Option<KeyUse>,
    pub(super) failures: u64,
    pub(super) refusals: u64,
    pub(super) rights: Rights,
}

/// What the user who opened a file may take, when the kernel writes back in its own name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rights {
    /// Reserved blocks.
    pub(super) may_use_reserve: bool,
    /// More than limits of quotas allow.
    pub(super) is_beyond_limits: bool,
}

/// Files that are open for writing, or encrypted, and what each has heard of.
pub(super) struct Opens {
    next: AtomicU64,
    shards: Vec<Mutex<FxHashMap<Handle, Heard>>>,
}

impl Opens {
    pub(super) fn new() -> Opens {
        Opens { next: AtomicU64::new(1), shards: shards() }
    }

    /// A new open file; never [`Handle::NONE`].
    pub(super) fn add(&self, heard: Heard) -> Handle {
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.shards[handle.0 as usize % SHARDS].lock().insert(handle, heard);
        handle
    }

    /// Removes an open file; whoever drops what is returned holds no lock.
    pub(super) fn remove(&self, handle: Handle) -> Option<Heard> {
        self.shards[handle.0 as usize % SHARDS].lock().remove(&handle)
    }

    /// No open file is left.
    pub(super) fn forget_all(&self) {
        self.shards.iter().for_each(|shard| shard.lock().clear());
    }

    /// Returns whether passes of writeback failed since this open file last asked.
    pub(super) fn has_new_failures(&self, handle: Handle, failures: u64) -> bool {
        if sabotage("fuse.nodes.failure-told-again") {
            return self.hears(handle, |heard| heard.failures != failures);
        }
        self.hears(handle, |heard| std::mem::replace(&mut heard.failures, failures) != failures)
    }

    /// Returns whether writes were refused since this open file last asked.
    pub(super) fn has_new_refusals(&self, handle: Handle, refusals: u64) -> bool {
        self.hears(handle, |heard| std::mem::replace(&mut heard.refusals, refusals) != refusals)
    }

    /// Returns the rights of the user who opened the file; none for a file that is not open.
    pub(super) fn rights(&self, handle: Handle) -> Rights {
        let shard = self.shards[handle.0 as usize % SHARDS].lock();
        shard.get(&handle).map_or_else(Rights::default, |heard| heard.rights)
    }

    fn hears(&self, handle: Handle, news: impl FnOnce(&mut Heard) -> bool) -> bool {
        self.shards[handle.0 as usize % SHARDS].lock().get_mut(&handle).is_some_and(news)
    }

    /// Returns how many are open for writing.
    pub(super) fn writers(&self) -> usize {
        let writers = |shard: &Mutex<FxHashMap<Handle, Heard>>| {
            shard.lock().values().filter(|heard| heard.writes).count()
        };
        self.shards.iter().map(writers).sum()
    }
}

fn shards<S: Default>() -> Vec<Mutex<S>> {
    (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, S::default())).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use extant::{Fs, Ino, MountOptions, NewInode};
    use extant_testkit::oracle::mke2fs;
    use extant_testkit::{image, require, tempdir};

    use super::*;

    fn mounted() -> Result<Fs, String> {
        let dir = tempdir().unwrap();
        let path = dir.path().join("image");
        mke2fs(&path, "8M", &["-t", "ext4"])?;
        let options = MountOptions::new().read_only(false).background(false);
        Ok(options.open_shared(Arc::new(image::load(&path))).unwrap())
    }

    #[test]
    fn a_node_is_known_until_all_its_lookups_are_forgotten_however_many_at_a_time() {
        let fs = require!(mounted());
        let (nodes, root) = (Nodes::new(), fs.root().unwrap());
        for _ in 0..5 {
            nodes.learn(NodeId(1), &root);
        }
        nodes.learn(NodeId(65), &root); // In the same shard.
        nodes.forget(NodeId(1), 3);
        nodes.forget(NodeId(7), 1); // Nobody knows it.
        assert!(nodes.get(NodeId(1)).is_some() && nodes.get(NodeId(65)).is_some());
        nodes.forget(NodeId(1), 1);
        assert!(nodes.get(NodeId(1)).is_some());
        nodes.forget(NodeId(1), 1);
        assert!(nodes.get(NodeId(1)).is_none(), "five were counted, and five forgotten");
        assert_eq!(nodes.count().known, 1);
        // More than were counted, as only a kernel with a mistake would say.
        nodes.forget(NodeId(65), u64::MAX);
        assert_eq!(nodes.count().known, 0);
    }

    #[test]
    fn what_is_open_for_writing_or_has_no_name_is_held_and_nothing_else() {
        let fs = require!(mounted());
        let (nodes, root) = (Nodes::new(), fs.root().unwrap());
        let new = NewInode { permissions: 0o644, uid: 0, gid: 0 };
        let file = root.create("file", &new).unwrap();
        let node = NodeId(u64::from(file.ino().0));
        let is_held = || matches!(nodes.get(node), Some(Found::Held(_)));
        assert_eq!(nodes.add_writer(node, &file), 0, "nobody knows it");
        nodes.learn(node, &file);
        assert!(!is_held());
        assert_eq!((nodes.add_writer(node, &file), nodes.add_writer(node, &file)), (1, 2));
        assert!(is_held() && nodes.written() == [node]);
        nodes.remove_writer(node);
        assert!(is_held() && nodes.has_writers(node));
        nodes.remove_writer(node);
        assert!(!is_held() && nodes.count().held == 0 && nodes.written().is_empty());
        // Its last name goes while it is open: it is held when it is closed, too.
        nodes.add_writer(node, &file);
        root.unlink("file").unwrap();
        nodes.keep_nameless(node, &file);
        nodes.remove_writer(node);
        drop(file);
        fs.finish_removals();
        assert!(is_held(), "deleted though the kernel knows it");
        assert!(fs.inode(Ino(node.0 as u32)).is_ok());
        nodes.forget(node, 1);
        fs.finish_removals();
        assert!(fs.inode(Ino(node.0 as u32)).is_err(), "nobody knows it and it is there");
        // Without a name from the start.
        let nameless = root.tmpfile(&new).unwrap();
        let node = NodeId(u64::from(nameless.ino().0));
        nodes.learn(node, &nameless);
        assert!(matches!(nodes.get(node), Some(Found::Held(_))));
        assert_eq!((nodes.count().known, nodes.count().held), (1, 1));
        drop(nameless);
        nodes.forget_all();
        fs.unmount().unwrap();
    }

    #[test]
    fn a_node_that_is_only_known_takes_tens_of_bytes() {
        let fs = require!(mounted());
        let (nodes, root) = (Nodes::new(), fs.root().unwrap());
        for node in (0..100_000).map(NodeId) {
            nodes.learn(node, &root);
        }
        let many = nodes.count();
        assert!(many.known == 100_000 && many.held == 0);
        assert!(many.bytes <= many.known * 64, "{} bytes", many.bytes);
        for node in (0..100_000).map(NodeId) {
            nodes.forget(node, 1);
        }
        let none = nodes.count();
        assert!(none.known == 0 && none.bytes < many.bytes / 4, "{none:?} after {many:?}");
    }

    #[test]
    fn an_open_file_hears_of_each_failure_once() {
        let opens = Opens::new();
        let at = |failures| Heard {
            writes: true,
            key: None,
            failures,
            refusals: 7,
            rights: Rights { may_use_reserve: failures == 1, is_beyond_limits: false },
        };
        let (a, b) = (opens.add(at(0)), opens.add(at(1)));
        assert!(a != Handle::NONE && a != b);
        assert!(opens.has_new_failures(a, 1) && !opens.has_new_failures(a, 1));
        assert!(!opens.has_new_failures(b, 1) && opens.has_new_failures(b, 2));
        assert!(!opens.has_new_refusals(b, 7) && opens.has_new_refusals(b, 8));
        assert!(opens.has_new_refusals(a, 8) && !opens.has_new_refusals(a, 8));
        opens.remove(b);
        assert_eq!(opens.writers(), 1);
        assert!(!opens.has_new_failures(b, 3) && !opens.has_new_failures(Handle::NONE, 3));
    }
}
