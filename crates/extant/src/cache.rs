//! A bounded, sharded cache, used for metadata blocks and decoded inodes.
//!
//! # Shape
//!
//! A key hashes to one of [`SHARDS`] shards, each with its own lock, table and clock hand. A hit
//! sets a "used" bit; when a shard is full, the hand looks for an evictable entry without that bit,
//! clearing bits as it passes. One pass over a large directory or inode table therefore does not
//! evict entries in frequent use: group descriptors and the upper levels of trees.
//!
//! Entries that are referenced outside the cache cannot be evicted, and there may be millions of
//! them: the inodes that a kernel knows. So the hand takes at most [`STEPS`] steps for an
//! insertion. If it met only such entries, the shard grows; later insertions evict the surplus as
//! the hand meets it.
//!
//! # Invariants
//!
//! - C1. An insertion looks at no more than [`STEPS`] entries.
//! - C2. A shard holds at most `capacity` entries, those that cannot be evicted ([`Evict`]), and
//!   one for each [`STEPS`] of these. Their number is bounded by their holders: the journal's
//!   limits, and the kernel.
//! - C3. `table` and `slots` are consistent: each position in `table` is that of the slot whose key
//!   hashes there.
//! - C4. `excess` is the number of entries that shards hold beyond their capacity.
//!
//! Values are cheap clones (`Arc`): an evicted value stays alive for those who hold it.

use std::hash::{BuildHasher, Hash};
use std::sync::atomic::{AtomicUsize, Ordering};

use extant_sync::{Mutex, MutexGuard, Rank};
use hashbrown::HashTable;
use rustc_hash::FxBuildHasher;

/// Number of shards; a power of two. More than the threads that usually run at once.
const SHARDS: usize = 64;

/// Smallest capacity of a shard: a walk from the root of a tree to its leaf must not evict its own
/// path.
const CAPACITY_MIN: usize = 4;

/// Number of entries that an insertion into a full shard examines, and the limit of those it
/// evicts.
const STEPS: usize = 8;

/// Smallest number of entries for which a shrinking shard keeps memory.
const ROOM_MIN: usize = 64;

/// Rules for a value leaving the cache.
pub(crate) trait Evict {
    /// Information that departed values leave in their shard for later ones.
    type Trace: Copy + Default + PartialEq;

    /// Returns whether the value may be evicted. Called under the lock of the value's shard, so
    /// that no thread can get it from the cache meanwhile. `by_holder` says that the caller itself
    /// holds the value.
    fn may_evict(&self, by_holder: bool) -> bool {
        let _ = by_holder;
        true
    }

    /// Decides that the value leaves, if it [may](Self::may_evict); afterwards no thread can get it
    /// by another way either.
    fn try_leave(&self, by_holder: bool) -> bool {
        self.may_evict(by_holder)
    }

    /// Records that data read for a key is outdated, under the lock of its shard.
    fn outdate(trace: &mut Self::Trace) {
        let _ = trace;
    }

    /// Records that the value leaves, under the lock of its shard.
    fn depart(&self, trace: &mut Self::Trace) {
        let _ = trace;
    }
}

/// A bounded map from `K` to cheap clones of `V`.
pub(crate) struct Cache<K, V: Evict> {
    shards: Vec<Mutex<Shard<K, V>>>,
    /// Entries per shard.
    capacity: usize,
    excess: AtomicUsize,
}

struct Shard<K, V: Evict> {
    /// Trace of the values that have left.
    trace: V::Trace,
    /// Positions in `slots`.
    table: HashTable<u32>,
    slots: Vec<Slot<K, V>>,
    hand: usize,
    /// Number of entries that the hand has examined.
    #[cfg(test)]
    steps: usize,
}

struct Slot<K, V> {
    key: K,
    value: V,
    used: bool,
}

fn hash_of<K: Hash>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
}

impl<K: Copy + Eq + Hash, V: Evict> Shard<K, V> {
    fn find(&self, hash: u64, key: &K) -> Option<usize> {
        let same = |at: &u32| self.slots.get(*at as usize).is_some_and(|slot| slot.key == *key);
        self.table.find(hash, same).map(|at| *at as usize)
    }

    /// Adds an entry for a key that has none.
    fn push(&mut self, hash: u64, slot: Slot<K, V>) {
        let at = self.slots.len() as u32;
        self.slots.push(slot);
        let Shard { table, slots, .. } = self;
        table.insert_unique(hash, at, |at| hash_of(&slots[*at as usize].key));
    }

    /// Takes an entry out of the table; the caller fills or removes its slot.
    fn unlink(&mut self, index: usize) {
        let hash = hash_of(&self.slots[index].key);
        if let Ok(entry) = self.table.find_entry(hash, |at| *at as usize == index) {
            entry.remove();
        }
    }

    /// Takes a value out. The caller drops it after releasing the lock, because that may take other
    /// locks.
    fn take_out(&mut self, index: usize) -> V {
        self.unlink(index);
        let slot = self.slots.swap_remove(index);
        slot.value.depart(&mut self.trace);
        if let Some(moved) = self.slots.get(index) {
            let from = self.slots.len() as u32;
            let hash = hash_of(&moved.key);
            if let Some(at) = self.table.find_mut(hash, |at| *at == from) {
                *at = index as u32;
            }
        }
        self.give_room_back();
        slot.value
    }

    /// Releases memory that is no longer needed; each entry moves at most once for each two that
    /// left.
    fn give_room_back(&mut self) {
        let len = self.slots.len().max(ROOM_MIN);
        if self.slots.capacity() >= 4 * len {
            self.slots.shrink_to(2 * len);
            let Shard { table, slots, .. } = self;
            table.shrink_to(2 * len, |at| hash_of(&slots[*at as usize].key));
        }
    }

    /// Adds an entry, evicting others if there are `capacity` or more, and returns the evicted
    /// values. While the shard holds too many, all evictable entries that the hand meets are
    /// evicted.
    fn replace(&mut self, capacity: usize, slot: Slot<K, V>) -> [Option<V>; STEPS] {
        let mut out = [const { None }; STEPS];
        let (mut new, mut second_best) = (Some(slot), None);
        for place in &mut out {
            let len = self.slots.len();
            if len < capacity || (len == capacity && new.is_none()) {
                break;
            }
            let index = self.hand % len;
            self.hand = index + 1;
            #[cfg(test)]
            {
                self.steps += 1;
            }
            let was_used = std::mem::take(&mut self.slots[index].used);
            if !self.slots[index].value.may_evict(false) {
                continue;
            }
            if was_used {
                second_best.get_or_insert(index);
                continue;
            }
            *place = self.evict(index, &mut new);
        }
        // Evicting a recently used entry is better than growing. Nothing has moved if none was
        // evicted.
        if out.iter().all(Option::is_none)
            && let Some(index) = second_best
        {
            out[0] = self.evict(index, &mut new);
        }
        if let Some(slot) = new {
            self.push(hash_of(&slot.key), slot);
        }
        out
    }

    /// Evicts the entry at `index`, if that is still possible; the new one takes its place, if it
    /// has none yet.
    fn evict(&mut self, index: usize, new: &mut Option<Slot<K, V>>) -> Option<V> {
        if !self.slots[index].value.try_leave(false) {
            return None;
        }
        let Some(slot) = new.take() else { return Some(self.take_out(index)) };
        self.unlink(index);
        let hash = hash_of(&slot.key);
        let old = std::mem::replace(&mut self.slots[index], slot);
        old.value.depart(&mut self.trace);
        let Shard { table, slots, .. } = self;
        table.insert_unique(hash, index as u32, |at| hash_of(&slots[*at as usize].key));
        Some(old.value)
    }
}

impl<K: Copy + Eq + Hash, V: Clone + Evict> Cache<K, V> {
    /// Creates a cache for about `entries` values. Memory is allocated as it fills.
    pub(crate) fn new(entries: usize) -> Cache<K, V> {
        let shard = || Shard {
            trace: V::Trace::default(),
            table: HashTable::new(),
            slots: Vec::new(),
            hand: 0,
            #[cfg(test)]
            steps: 0,
        };
        Cache {
            shards: (0..SHARDS).map(|_| Mutex::new(Rank::Leaf, shard())).collect(),
            capacity: (entries / SHARDS).max(CAPACITY_MIN),
            excess: AtomicUsize::new(0),
        }
    }

    fn shard(&self, hash: u64) -> &Mutex<Shard<K, V>> {
        // These bits choose no bucket inside the shard, which uses the low ones and the top seven.
        &self.shards[(hash >> 32) as usize % SHARDS]
    }

    /// Updates `excess` (C4), under the lock of a shard that had `before` entries.
    fn count_excess(&self, before: usize, after: usize) {
        let over = |len: usize| len.saturating_sub(self.capacity);
        match (over(before), over(after)) {
            (less, more) if less < more => {
                self.excess.fetch_add(more - less, Ordering::Relaxed);
            }
            (more, less) if less < more => {
                self.excess.fetch_sub(more - less, Ordering::Relaxed);
            }
            _ => {}
        }
    }

    /// Returns the value of `key`, if it is in the cache.
    pub(crate) fn get(&self, key: &K) -> Option<V> {
        let hash = hash_of(key);
        let mut shard = self.shard(hash).lock();
        let index = shard.find(hash, key)?;
        let slot = shard.slots.get_mut(index)?;
        slot.used = true;
        Some(slot.value.clone())
    }

    /// Calls `look` with the value of `key`, if it is in the cache, under the lock of its shard.
    pub(crate) fn look<R>(&self, key: &K, look: impl FnOnce(&V) -> R) -> Option<R> {
        let hash = hash_of(key);
        let shard = self.shard(hash).lock();
        let index = shard.find(hash, key)?;
        shard.slots.get(index).map(|slot| look(&slot.value))
    }

    /// Stores `value` and returns the value now in the cache: another thread may have stored one
    /// first, so that all threads share one copy.
    #[cfg(test)]
    pub(crate) fn insert(&self, key: K, value: V) -> V {
        self.get_or_insert_with(key, || value)
    }

    /// Returns the value of `key`, made by `make` under the lock of the shard if there is none.
    pub(crate) fn get_or_insert_with(&self, key: K, make: impl FnOnce() -> V) -> V {
        let hash = hash_of(&key);
        let mut shard = self.shard(hash).lock();
        if let Some(index) = shard.find(hash, &key)
            && let Some(slot) = shard.slots.get_mut(index)
        {
            slot.used = true;
            return slot.value.clone();
        }
        let value = make();
        self.insert_missing(shard, Slot { key, value: value.clone(), used: false });
        value
    }

    /// Returns the value of `key`, or else the trace of its shard, for
    /// [`insert_since`](Self::insert_since) once the value has been made.
    pub(crate) fn get_or_trace(&self, key: &K) -> Result<V, V::Trace> {
        let hash = hash_of(key);
        let mut guard = self.shard(hash).lock();
        let shard = &mut *guard;
        let Some(slot) = shard.find(hash, key).and_then(|index| shard.slots.get_mut(index)) else {
            return Err(shard.trace);
        };
        slot.used = true;
        Ok(slot.value.clone())
    }

    /// Stores `value` and returns the value now in the cache; `None` when there is none and `value`
    /// may be outdated, because a value with a trace has left the shard since `trace`.
    pub(crate) fn insert_since(&self, key: K, trace: &V::Trace, value: V) -> Option<V> {
        let hash = hash_of(&key);
        let mut guard = self.shard(hash).lock();
        let shard = &mut *guard;
        if let Some(slot) = shard.find(hash, &key).and_then(|index| shard.slots.get_mut(index)) {
            slot.used = true;
            return Some(slot.value.clone());
        }
        if shard.trace != *trace {
            return None;
        }
        self.insert_missing(guard, Slot { key, value: value.clone(), used: false });
        Some(value)
    }

    /// Stores `value`, replacing an existing one, which is returned.
    pub(crate) fn replace(&self, key: K, value: V) -> Option<V> {
        let hash = hash_of(&key);
        let mut guard = self.shard(hash).lock();
        let shard = &mut *guard;
        if let Some(slot) = shard.find(hash, &key).and_then(|index| shard.slots.get_mut(index)) {
            slot.used = true;
            let earlier = std::mem::replace(&mut slot.value, value);
            earlier.depart(&mut shard.trace);
            return Some(earlier);
        }
        self.insert_missing(guard, Slot { key, value, used: false });
        None
    }

    /// Stores the value of a key that has none, in a locked shard.
    fn insert_missing(&self, mut shard: MutexGuard<'_, Shard<K, V>>, slot: Slot<K, V>) {
        let before = shard.slots.len();
        let evicted = shard.replace(self.capacity, slot);
        self.count_excess(before, shard.slots.len());
        drop(shard);
        drop(evicted);
    }

    /// Takes out all evictable values; returns their number.
    pub(crate) fn drop_unused(&self) -> usize {
        self.drop_unused_if(|_| true)
    }

    /// Takes out the evictable values that `is_one` accepts; returns their number.
    pub(crate) fn drop_unused_if(&self, is_one: impl Fn(&V) -> bool) -> usize {
        let mut count = 0;
        for shard in &self.shards {
            let mut shard = shard.lock();
            let before = shard.slots.len();
            let mut out = Vec::new();
            // The loop goes from the end, because the last entry moves to the place of a removed
            // one.
            for index in (0..before).rev() {
                let value = &shard.slots[index].value;
                if is_one(value) && value.try_leave(false) {
                    out.push(shard.take_out(index));
                }
            }
            self.count_excess(before, shard.slots.len());
            drop(shard);
            count += out.len();
        }
        count
    }

    /// Takes a value out.
    #[cfg(test)]
    pub(crate) fn remove(&self, key: &K) {
        self.remove_if(key, |_, _| true);
    }

    /// Takes out the value of a key that gets another meaning. A thread that is making a value from
    /// earlier data does not [store](Self::insert_since) it afterwards.
    pub(crate) fn outdate(&self, key: &K) {
        let hash = hash_of(key);
        let mut shard = self.shard(hash).lock();
        V::outdate(&mut shard.trace);
        let before = shard.slots.len();
        let value = shard.find(hash, key).map(|index| shard.take_out(index));
        self.count_excess(before, shard.slots.len());
        drop(shard);
        drop(value);
    }

    /// Lets a value leave a cache that exceeds its budget, if the caller is its last holder: the
    /// value stored for `key` is the one that `is_it` accepts, and the caller is about to drop it.
    /// Costs one load if the budget is not exceeded.
    pub(crate) fn let_go(&self, key: &K, is_it: impl FnOnce(&V) -> bool) {
        if self.excess.load(Ordering::Relaxed) > 0 {
            let may = |len, value: &V| len > self.capacity && is_it(value) && value.try_leave(true);
            self.remove_if(key, may);
        }
    }

    fn remove_if(&self, key: &K, may: impl FnOnce(usize, &V) -> bool) {
        let hash = hash_of(key);
        let mut shard = self.shard(hash).lock();
        let before = shard.slots.len();
        let index = shard.find(hash, key).filter(|at| may(before, &shard.slots[*at].value));
        let value = index.map(|index| shard.take_out(index));
        self.count_excess(before, shard.slots.len());
        drop(shard);
        drop(value);
    }

    /// Returns the number of entries, and the limit of those that are not referenced outside the
    /// cache.
    pub(crate) fn len_and_capacity(&self) -> (usize, usize) {
        let len = self.shards.iter().map(|shard| shard.lock().slots.len()).sum();
        (len, self.capacity * SHARDS)
    }

    /// Panics if an invariant is broken; `held` is how many values somebody holds.
    #[cfg(test)]
    fn check(&self, held: usize) {
        let (mut entries, mut excess) = (0, 0);
        for shard in &self.shards {
            let shard = shard.lock();
            assert_eq!(shard.table.len(), shard.slots.len(), "C3: table and slots differ in size");
            for (index, slot) in shard.slots.iter().enumerate() {
                let found = shard.find(hash_of(&slot.key), &slot.key);
                assert_eq!(found, Some(index), "C3: the table has another place");
            }
            entries += shard.slots.len();
            excess += shard.slots.len().saturating_sub(self.capacity);
        }
        let most = self.capacity * SHARDS + held + held / STEPS;
        assert!(entries <= most, "C2: {entries} entries, at most {most}");
        assert_eq!(self.excess.load(Ordering::Relaxed), excess, "C4");
    }

    #[cfg(test)]
    fn steps(&self) -> usize {
        self.shards.iter().map(|shard| shard.lock().steps).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use extant_base::Prng;

    impl Evict for u64 {
        type Trace = ();
    }

    impl Evict for Arc<u64> {
        /// How many have left.
        type Trace = u64;

        fn depart(&self, trace: &mut u64) {
            *trace += 1;
        }

        fn outdate(trace: &mut u64) {
            *trace += 1;
        }

        fn may_evict(&self, by_holder: bool) -> bool {
            Arc::strong_count(self) == 1 + usize::from(by_holder)
        }
    }

    #[test]
    fn what_is_held_stays_and_the_cache_shrinks_when_it_is_let_go() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(256);
        let held: Vec<_> = (0..1000).map(|key| cache.insert(key, Arc::new(key))).collect();
        for key in 1000..3000 {
            cache.insert(key, Arc::new(key));
        }
        cache.check(1000);
        for value in &held {
            let found = cache.get(value).expect("evicted though held");
            assert!(Arc::ptr_eq(&found, value), "another copy of {value}");
        }
        assert!(cache.drop_unused() > 0);
        cache.check(1000);
        assert_eq!(cache.drop_unused(), 0, "all that is left is held");
        for value in &held {
            assert!(cache.get(value).is_some(), "taken out though held");
        }
        drop(held);
        assert_eq!(cache.drop_unused(), 1000);
        for key in 3000..6000 {
            cache.insert(key, Arc::new(key));
        }
        cache.check(0);
        cache.remove(&5999);
        assert!(cache.get(&5999).is_none());
        cache.check(0);
    }

    #[test]
    fn an_insertion_takes_few_steps_however_many_entries_are_held() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(256);
        let mut held = Vec::new();
        for key in 0..200_000 {
            let before = if key % 10_000 == 0 { Some(cache.steps()) } else { None };
            held.push(cache.insert(key, Arc::new(key)));
            if let Some(before) = before {
                let steps = cache.steps() - before;
                assert!(steps <= STEPS, "{steps} steps with {key} entries held");
            }
        }
        let steps = cache.steps();
        assert!(steps <= STEPS * 200_000, "C1: {steps} steps");
        cache.check(200_000);
    }

    #[test]
    fn the_last_holder_takes_its_entry_along_when_there_are_too_many() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(256);
        let held: Vec<_> = (0..10_000).map(|key| cache.insert(key, Arc::new(key))).collect();
        let twice = Arc::clone(&held[17]);
        for value in held {
            cache.let_go(&value, |there| Arc::ptr_eq(there, &value));
        }
        cache.check(1);
        assert!(Arc::ptr_eq(&cache.get(&17).expect("let go though held"), &twice));
        // Within the budget entries stay for the next who asks.
        let last = cache.insert(70_000, Arc::new(7));
        while cache.excess.load(Ordering::Relaxed) > 0 {
            cache.insert(80_000 + cache.steps() as u64, Arc::new(8));
        }
        cache.let_go(&70_000, |there| Arc::ptr_eq(there, &last));
        drop(last);
        cache.check(1);
        let room: usize = cache.shards.iter().map(|shard| shard.lock().slots.capacity()).sum();
        assert!(room <= SHARDS * 4 * ROOM_MIN, "room for {room} entries is kept");
    }

    #[test]
    fn what_is_used_all_the_time_does_not_make_the_cache_grow() {
        let cache: Cache<u64, u64> = Cache::new(256);
        for round in 0..3000 {
            for key in 0..256 {
                cache.get(&key);
            }
            cache.insert(round, 0);
            cache.check(0);
        }
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
        cache.check(0);
        assert!(hits > 2000, "only {hits} hits: nothing is kept");
    }

    #[test]
    fn what_was_made_before_another_value_left_is_not_stored() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(1);
        let ways: [&dyn Fn(u64); 4] = [
            &|key| cache.remove(&key),
            &|key| drop(cache.replace(key, Arc::new(1))),
            // As many as evict it.
            &|key| {
                (1000..2000).for_each(|other| drop(cache.insert(key * 10_000 + other, Arc::new(2))))
            },
            &|key| {
                let held: Vec<_> =
                    (3000..4000).map(|other| cache.insert(other, Arc::new(3))).collect();
                let value = cache.get(&key).unwrap_or_default();
                cache.let_go(&key, |_| true);
                drop((held, value));
            },
        ];
        for (key, leave) in (1..).zip(ways) {
            let trace = cache.get_or_trace(&key).expect_err("nobody has stored it");
            let old = Arc::new(0);
            drop(cache.insert(key, Arc::new(1)));
            let found = cache.insert_since(key, &trace, Arc::clone(&old)).expect("what is there");
            assert_eq!(*found, 1);
            drop(found);
            leave(key);
            cache.remove(&key);
            assert!(cache.insert_since(key, &trace, Arc::clone(&old)).is_none(), "way {key}");
            let trace = cache.get_or_trace(&key).expect_err("it has left");
            assert!(cache.insert_since(key, &trace, old).is_some());
        }
    }

    #[test]
    fn what_was_made_before_its_key_was_outdated_is_not_stored() {
        let cache: Cache<u64, Arc<u64>> = Cache::new(64);
        let trace = cache.get_or_trace(&1).expect_err("nobody has stored it");
        cache.outdate(&1);
        assert!(cache.insert_since(1, &trace, Arc::new(0)).is_none(), "it is old");
        let trace = cache.get_or_trace(&1).expect_err("it was not stored");
        assert!(cache.insert_since(1, &trace, Arc::new(1)).is_some());
        cache.outdate(&1);
        assert!(cache.get(&1).is_none());
        cache.check(0);
    }

    #[test]
    fn a_used_entry_survives_one_pass_over_many_others() {
        let cache: Cache<u64, u64> = Cache::new(256);
        cache.insert(7, 70);
        for key in 1000..3000 {
            cache.insert(key, 0);
            assert_eq!(cache.get(&7), Some(70), "evicted while in use, after {key}");
        }
        cache.check(0);
    }

    #[test]
    fn the_first_of_two_inserts_wins() {
        let cache: Cache<u64, u64> = Cache::new(256);
        assert_eq!(cache.insert(1, 10), 10);
        assert_eq!(cache.insert(1, 11), 10);
        cache.check(0);
    }
}
