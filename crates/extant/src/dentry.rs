//! The cache of names: recent lookups, successful or not.
//!
//! # Place
//!
//! Above: the path layer and the name space look here before they search a directory. Entries are
//! added and removed under the content lock of their directory, shared for a lookup's result and
//! exclusive for a change, so that entries are never outdated. A hit needs no lock of the
//! directory.
//!
//! Directories that ignore case are not cached: one entry there has many spellings.
//!
//! # Invariants
//!
//! - E1. An entry equals the result of a search of the directory.
//! - E2. At most `capacity` entries per shard, each with a name of at most 255 bytes. An entry does
//!   not keep its node in memory, and is void when the node is gone.

use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use extant_base::Ino;
use extant_sync::{Rank, RwLock};
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

use crate::node::Node;

/// Number of shards; a power of two.
const SHARDS: usize = 64;

/// Approximate size of an entry in bytes, with a short name and the rest of a freed node.
pub(crate) const ENTRY_COST: usize = 320;

/// The cache of names.
pub(crate) struct Dentries {
    shards: Vec<RwLock<Shard>>,
    capacity: usize,
}

struct Shard {
    /// Positions in `slots`.
    table: HashTable<u32>,
    slots: Vec<Slot>,
    hand: usize,
}

struct Slot {
    hash: u64,
    dir: Ino,
    name: Box<[u8]>,
    /// The node; `None` if the directory has no such name.
    node: Option<Weak<Node>>,
    used: AtomicBool,
}

/// Result of a lookup in the cache.
#[derive(Debug)]
pub(crate) enum Known {
    /// The name belongs to this inode.
    Is(Arc<Node>),
    /// There is no such name.
    Missing,
    /// Nothing is known of the name.
    Unknown,
}

impl Dentries {
    /// Creates a cache for about `entries` names.
    pub(crate) fn new(entries: usize) -> Dentries {
        let shard = || Shard { table: HashTable::new(), slots: Vec::new(), hand: 0 };
        Dentries {
            shards: (0..SHARDS).map(|_| RwLock::new(Rank::Leaf, shard())).collect(),
            capacity: (entries / SHARDS).max(16),
        }
    }

    fn hash(dir: Ino, name: &[u8]) -> u64 {
        let mut hasher = FxBuildHasher.build_hasher();
        hasher.write(name);
        hasher.write_u32(dir.0);
        hasher.finish()
    }

    fn shard(&self, hash: u64) -> &RwLock<Shard> {
        // The table uses the low bits and the top seven.
        &self.shards[(hash >> 40) as usize % SHARDS]
    }

    /// Returns the cached result for `name` in `dir`.
    pub(crate) fn get(&self, dir: Ino, name: &[u8]) -> Known {
        let hash = Dentries::hash(dir, name);
        let shard = self.shard(hash).read();
        let Some(index) = shard.find(hash, dir, name) else { return Known::Unknown };
        let Some(slot) = shard.slots.get(index) else { return Known::Unknown };
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        match &slot.node {
            None => Known::Missing,
            Some(node) => Node::upgrade(node).map_or(Known::Unknown, Known::Is),
        }
    }

    /// Records the result for `name` in `dir`; the caller holds the directory's content lock.
    pub(crate) fn set(&self, dir: Ino, name: &[u8], node: Option<&Arc<Node>>) {
        let node = node.map(Arc::downgrade);
        let hash = Dentries::hash(dir, name);
        let old;
        {
            let mut guard = self.shard(hash).write();
            let shard = &mut *guard;
            if let Some(index) = shard.find(hash, dir, name) {
                old = std::mem::replace(&mut shard.slots[index].node, node);
            } else {
                let slot =
                    Slot { hash, dir, name: name.into(), node, used: AtomicBool::new(false) };
                old = shard.insert(slot, self.capacity);
            }
        }
        drop(old); // Not under the lock: it may be the last reference.
    }
}

impl Shard {
    fn find(&self, hash: u64, dir: Ino, name: &[u8]) -> Option<usize> {
        let same = |index: &u32| {
            let slot = self.slots.get(*index as usize);
            slot.is_some_and(|slot| slot.hash == hash && slot.dir == dir && *slot.name == *name)
        };
        self.table.find(hash, same).map(|index| *index as usize)
    }

    fn insert(&mut self, slot: Slot, capacity: usize) -> Option<Weak<Node>> {
        let mut old = None;
        if self.slots.len() >= capacity {
            // Two rounds at most: the first clears every bit.
            for _ in 0..2 * capacity {
                let index = self.hand % self.slots.len();
                self.hand = index + 1;
                if !std::mem::take(self.slots[index].used.get_mut()) {
                    old = self.take_out(index).node;
                    break;
                }
            }
        }
        let (hash, index) = (slot.hash, self.slots.len() as u32);
        self.slots.push(slot);
        let Shard { table, slots, .. } = self;
        table.insert_unique(hash, index, |index| slots[*index as usize].hash);
        old
    }

    fn take_out(&mut self, index: usize) -> Slot {
        let Shard { table, slots, .. } = self;
        let slot = slots.swap_remove(index);
        if let Ok(entry) = table.find_entry(slot.hash, |at| *at as usize == index) {
            entry.remove();
        }
        if let Some(moved) = slots.get(index) {
            let from = slots.len() as u32;
            if let Some(at) = table.find_mut(moved.hash, |at| *at == from) {
                *at = index as u32;
            }
        }
        slot
    }
}
