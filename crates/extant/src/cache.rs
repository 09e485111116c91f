//! A bounded cache in shards: the same code keeps metadata blocks and decoded inodes.
//!
//! # Shape
//!
//! A key hashes to one of [`SHARDS`] shards, each with its own lock, map and clock hand. A hit sets
//! a "used" bit; when a shard is full, the hand clears bits until it finds an entry without one and
//! replaces it. One pass over a large directory or inode table therefore leaves alone what is
//! used again and again: the group descriptors and the upper levels of trees.
//!
//! # Invariants
//!
//! - C1. A shard never holds more than `capacity` entries.
//! - C2. `map` and `slots` name each other: `slots[map[k]].key == k` for every key.
//!
//! Values are cheap clones (`Arc`): an evicted value stays alive for those who hold it.

use std::hash::{BuildHasher, Hash};

use extant_sync::{Mutex, Rank};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// Number of shards; a power of two. More than the threads that usually run at once.
const SHARDS: usize = 16;

/// Fewest entries per shard, whatever the budget: a walk from the root of a tree to its leaf must
/// not evict its own path.
const CAPACITY_MIN: usize = 8;

/// A bounded map from `K` to cheap clones of `V`.
pub(crate) struct Cache<K, V> {
    shards: Vec<Mutex<Shard<K, V>>>,
    /// Entries per shard.
    capacity: usize,
}

struct Shard<K, V> {
    map: FxHashMap<K, usize>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

impl<K: Copy + Eq + Hash, V: Clone> Cache<K, V> {
    /// Room for about `entries` values. Allocates as it fills, not before.
    pub(crate) fn new(entries: usize) -> Cache<K, V> {
        let shard = || Shard { map: FxHashMap::default(), slots: Vec::new(), hand: 0 };
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, shard())).collect(),
            capacity: (entries / SHARDS).max(CAPACITY_MIN),
        }
    }

    fn shard(&self, key: &K) -> &Mutex<Shard<K, V>> {
        // The hash's high bits: the low ones choose the bucket inside the shard.
        let hash = FxBuildHasher.hash_one(key);
        let index = (hash >> 32) as usize % SHARDS;
        &self.shards[index]
    }

    /// The value of `key`, if it is there.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let mut shard = self.shard(key).lock();
        let index = *shard.map.get(key)?;
        let slot = shard.slots.get_mut(index)?;
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Stores `value` and returns what the cache now holds: the value another thread stored
    /// first, if one did, so that all threads share one copy.
    pub(crate) fn insert(&self, key: K, value: V) -> V {
        let mut guard = self.shard(&key).lock();
        let shard = &mut *guard;
        if let Some(present) = shard.map.get(&key).and_then(|index| shard.slots.get(*index)) {
            return present.value.clone();
        }
        let slot = Slot { key, value: value.clone(), used: false };
        if shard.slots.len() < self.capacity {
            shard.map.insert(key, shard.slots.len());
            shard.slots.push(slot);
            return value;
        }
        // Two rounds at most: the first clears every bit.
        for _ in 0..2 * self.capacity {
            let index = shard.hand;
            shard.hand = (shard.hand + 1) % self.capacity;
            let victim = &mut shard.slots[index];
            if std::mem::take(&mut victim.used) {
                continue;
            }
            shard.map.remove(&victim.key);
            shard.map.insert(key, index);
            *victim = slot;
            break;
        }
        value
    }

    /// Panics if C1 or C2 is broken.
    #[cfg(test)]
    fn check(&self) {
        for shard in &self.shards {
            let shard = shard.lock();
            assert!(shard.slots.len() <= self.capacity, "C1: {} entries", shard.slots.len());
            assert_eq!(shard.map.len(), shard.slots.len(), "C2: map and slots differ in size");
            for (key, index) in &shard.map {
                assert!(shard.slots[*index].key == *key, "C2: slot {index} has another key");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;

    #[test]
    fn stays_within_its_budget_and_answers_only_what_was_stored() {
        let cache: Cache<u64, u64> = Cache::new(256);
        let mut random = Prng::new(3);
        let mut hits = 0;
        for _ in 0..20_000 {
            let key = random.below(1000);
            match cache.get(&key) {
                Some(value) => {
                    assert_eq!(value, key * 3);
                    hits += 1;
                }
                None => assert_eq!(cache.insert(key, key * 3), key * 3),
            }
        }
        cache.check();
        assert!(hits > 2000, "only {hits} hits: nothing is kept");
    }

    #[test]
    fn a_used_entry_survives_one_pass_over_many_others() {
        let cache: Cache<u64, u64> = Cache::new(256);
        cache.insert(7, 70);
        for key in 1000..3000 {
            cache.insert(key, 0);
            assert_eq!(cache.get(&7), Some(70), "evicted while in use, after {key}");
        }
        cache.check();
    }

    #[test]
    fn the_first_of_two_inserts_wins() {
        let cache: Cache<u64, u64> = Cache::new(256);
        assert_eq!(cache.insert(1, 10), 10);
        assert_eq!(cache.insert(1, 11), 10);
        cache.check();
    }
}
