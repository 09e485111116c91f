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
//! - C1. A shard holds at most `capacity` entries, and besides those only such as cannot be evicted
//!   ([`Evict`]): what the journal still needs. Its limits bound them.
//! - C2. `map` and `slots` name each other: `slots[map[k]].key == k` for every key.
//!
//! Values are cheap clones (`Arc`): an evicted value stays alive for those who hold it.

use std::hash::{BuildHasher, Hash};

use extant_sync::{Mutex, MutexGuard, Rank};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// Number of shards; a power of two. More than the threads that usually run at once.
const SHARDS: usize = 64;

/// Fewest entries per shard, whatever the budget: a walk from the root of a tree to its leaf must
/// not evict its own path.
const CAPACITY_MIN: usize = 4;

/// Whether a value may leave the cache now.
pub(crate) trait Evict {
    /// Asked under the lock of the value's shard, so that nobody can get it from the cache at the
    /// same time.
    fn may_evict(&self) -> bool {
        true
    }
}

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

impl<K: Copy + Eq + Hash, V: Evict> Shard<K, V> {
    /// Takes a value out, for the caller to drop when the lock is let go: that may take other locks.
    fn take_out(&mut self, index: usize) -> V {
        let slot = self.slots.swap_remove(index);
        self.map.remove(&slot.key);
        if let Some(moved) = self.slots.get(index) {
            self.map.insert(moved.key, index);
        }
        slot.value
    }

    /// Gives back what was held beyond the budget while it could not be evicted: a few entries for
    /// each insertion, so that no caller pays for all.
    fn shrink(&mut self, capacity: usize) -> [Option<V>; 2] {
        let mut out = [None, None];
        for place in &mut out {
            let Some(last) = self.slots.len().checked_sub(1).filter(|last| *last >= capacity)
            else {
                break;
            };
            if self.slots[last].value.may_evict() {
                *place = Some(self.take_out(last));
            } else {
                // Its turn comes: the others move to the end in time.
                let other = self.hand % capacity;
                self.slots.swap(last, other);
                for index in [last, other] {
                    self.map.insert(self.slots[index].key, index);
                }
            }
        }
        out
    }
}

impl<K: Copy + Eq + Hash, V: Clone + Evict> Cache<K, V> {
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
        self.get_or_insert_with(key, || value)
    }

    /// The value of `key`; made by `make`, under the lock of the shard, if there is none.
    pub(crate) fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> V {
        let mut guard = self.shard(&key).lock();
        let shard = &mut *guard;
        if let Some(slot) = shard.map.get(&key).and_then(|index| shard.slots.get_mut(*index)) {
            slot.used = true;
            return slot.value.clone();
        }
        let value = make();
        self.insert_missing(guard, key, value.clone());
        value
    }

    /// Stores `value`, whatever is there, and returns that.
    pub(crate) fn replace(&self, key: K, value: V) -> Option<V> {
        let mut guard = self.shard(&key).lock();
        let shard = &mut *guard;
        if let Some(slot) = shard.map.get(&key).and_then(|index| shard.slots.get_mut(*index)) {
            slot.used = true;
            return Some(std::mem::replace(&mut slot.value, value));
        }
        self.insert_missing(guard, key, value);
        None
    }

    /// Stores the value of a key that has none, in a shard that is locked.
    fn insert_missing(&self, mut guard: MutexGuard<'_, Shard<K, V>>, key: K, value: V) {
        let shard = &mut *guard;
        let slot = Slot { key, value, used: false };
        let len = shard.slots.len();
        if len >= self.capacity {
            // Two rounds at most: the first clears every bit.
            for _ in 0..2 * len {
                let index = shard.hand % len;
                shard.hand = (index + 1) % len;
                let victim = &mut shard.slots[index];
                if std::mem::take(&mut victim.used) || !victim.value.may_evict() {
                    continue;
                }
                shard.map.remove(&victim.key);
                shard.map.insert(key, index);
                let victim = std::mem::replace(victim, slot);
                let others = shard.shrink(self.capacity);
                drop(guard);
                drop((victim, others));
                return;
            }
        }
        shard.map.insert(key, len);
        shard.slots.push(slot);
    }

    /// Takes a value out.
    pub(crate) fn remove(&self, key: &K) {
        let mut shard = self.shard(key).lock();
        let value = shard.map.get(key).copied().map(|index| shard.take_out(index));
        drop(shard);
        drop(value);
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
    use std::sync::Arc;

    use super::*;
    use extant_base::Prng;

    impl Evict for u64 {}

    impl Evict for Arc<u64> {
        fn may_evict(&self) -> bool {
            Arc::strong_count(self) == 1
        }
    }

    #[test]
    fn what_is_held_stays_and_the_cache_shrinks_when_it_is_let_go() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(256);
        let held: Vec<_> = (0..1000).map(|key| cache.insert(key, Arc::new(key))).collect();
        for key in 1000..3000 {
            cache.insert(key, Arc::new(key));
        }
        for value in &held {
            let found = cache.get(value).expect("evicted though held");
            assert!(Arc::ptr_eq(&found, value), "another copy of {value}");
        }
        drop(held);
        for key in 3000..6000 {
            cache.insert(key, Arc::new(key));
        }
        cache.check();
        cache.remove(&5999);
        assert!(cache.get(&5999).is_none());
        cache.check();
    }

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
