//! The allocator of the arena's pages, in blocks of 2^order pages.
//!
//! # Place
//!
//! Allocates pages of 4 KiB by number; `arena` manages their contents, `frames` their owners.
//!
//! # Shape
//!
//! Unused chunks of 512 pages (2 MiB) are in a pool. A shard takes whole chunks from there and
//! splits them; a freed page returns to the shard that has its chunk. A shard keeps one chunk that
//! is wholly free, and returns others to the pool. Free blocks are bits: for each chunk of a shard
//! and each order a bitmap, and for each order a bitmap of the chunks with such a block. So no
//! memory is allocated, and freeing touches one chunk's kilobyte.
//!
//! # Invariants
//!
//! - B1. A block of order n starts at a multiple of 2^n and does not leave its chunk.
//! - B2. A free page is in one block of one shard, or in a chunk of the pool.
//! - B3. Of two buddies, at most one is a free block: two are merged.
//! - B4. The owner of a chunk changes only while all of it is free, so the holder of a page may
//!   look it up without a lock.
//! - B5. A thread holds one lock of these at a time. A chunk that is moving between two places is
//!   in neither: with little memory left, an allocation may fail that would succeed a moment later.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};

use extant_sync::{Mutex, Rank};

/// The largest order: a whole chunk.
pub(crate) const ORDER_MAX: u8 = 9;
const ORDERS: usize = ORDER_MAX as usize + 1;
const CHUNK_PAGES: u32 = 1 << ORDER_MAX;
const SHARDS: usize = 16;
const BITS: u32 = u64::BITS;

/// The free pages.
pub(crate) struct Buddy {
    pages: u32,
    /// Number of free pages; during concurrent allocations it may be too large, never below 0.
    free: AtomicU32,
    /// Chunks that no shard has; the lowest first.
    pool: Mutex<BTreeSet<u32>>,
    shards: [Mutex<Shard>; SHARDS],
    /// The shard that has each chunk, and its slot there (B4): slot * [`SHARDS`] + shard.
    owners: Box<[AtomicU32]>,
}

/// Some chunks.
#[derive(Default)]
struct Shard {
    /// Chunks by slot; an unused slot has no free blocks.
    chunks: Vec<Chunk>,
    /// Slots without a chunk.
    unused: Vec<u32>,
    /// By order: a bit for each slot whose chunk has a free block of it.
    slots: [Vec<u64>; ORDERS],
    /// Number of chunks that are wholly free.
    whole: u32,
}

/// The free blocks of one chunk, by order: block n begins at page n << order.
struct Chunk {
    number: u32,
    free: [[u64; (CHUNK_PAGES / BITS) as usize]; ORDERS],
}

impl Buddy {
    /// All of `0..pages` free.
    pub(crate) fn new(pages: u32) -> Buddy {
        let chunks = pages / CHUNK_PAGES;
        let mut shards: [Shard; SHARDS] = std::array::from_fn(|_| Shard::default());
        let owners = (0..pages.div_ceil(CHUNK_PAGES)).map(|_| AtomicU32::new(0)).collect();
        // The part of a chunk at the end, if any, stays in the first slot of the first shard for
        // ever: its other half is never free, so it never becomes whole.
        if !pages.is_multiple_of(CHUNK_PAGES) {
            let slot = shards[0].adopt(chunks);
            let mut page = chunks * CHUNK_PAGES;
            while page < pages {
                let order = (pages - page).ilog2() as u8;
                shards[0].give(slot, page, order);
                page += 1 << order;
            }
        }
        Buddy {
            pages,
            free: AtomicU32::new(pages),
            pool: Mutex::new(Rank::Leaf, (0..chunks).collect()),
            shards: shards.map(|shard| Mutex::new(Rank::Leaf, shard)),
            owners,
        }
    }

    /// Returns the first of 2^order free pages, preferably of `shard` (any number: of a thread, of
    /// a file), and whether an unused chunk was opened for it. `None` when there is no such block,
    /// or the order is larger than [`ORDER_MAX`].
    ///
    /// Chunks are opened before blocks of other shards are taken, so the last large blocks may
    /// belong to shards.
    pub(crate) fn alloc(&self, order: u8, shard: usize) -> Option<(u32, bool)> {
        if order > ORDER_MAX {
            return None;
        }
        let home = shard % SHARDS;
        let found = self
            .take(home, order)
            .map(|page| (page, false))
            .or_else(|| self.open(home, order).map(|page| (page, true)))
            .or_else(|| {
                let others = (1..SHARDS).map(|step| (home + step) % SHARDS);
                others.filter_map(|other| self.take(other, order)).next().map(|page| (page, false))
            });
        if found.is_some() {
            self.free.fetch_sub(1 << order, Ordering::Relaxed);
        }
        found
    }

    /// Frees a block, or a part of one that is a block by itself.
    ///
    /// # Panics
    ///
    /// When it is no block, or is free already and was not merged yet: bugs of this crate.
    pub(crate) fn free(&self, page: u32, order: u8) {
        let is_block = order <= ORDER_MAX && page.is_multiple_of(1 << order);
        let inside =
            page.checked_add(1 << order.min(ORDER_MAX)).is_some_and(|end| end <= self.pages);
        assert!(is_block && inside, "page {page} of {}, order {order}", self.pages);
        // Acquire, with the release in `open`: only so that B4 does not rest on how the page
        // came to this thread.
        let owner = self.owners[(page / CHUNK_PAGES) as usize].load(Ordering::Acquire);
        let whole = {
            let mut shard = self.shards[owner as usize % SHARDS].lock();
            shard.give(owner / SHARDS as u32, page, order);
            // Under the lock: whoever takes the block counts down after this counted up.
            self.free.fetch_add(1 << order, Ordering::Relaxed);
            shard.spare()
        };
        if let Some(chunk) = whole {
            self.pool.lock().insert(chunk);
        }
    }

    /// Returns the number of free pages; during concurrent allocations it may be too large.
    pub(crate) fn free_pages(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    fn take(&self, shard: usize, order: u8) -> Option<u32> {
        self.shards[shard].lock().take(order)
    }

    /// Takes a chunk from the pool into a shard, and a block of it out.
    fn open(&self, shard: usize, order: u8) -> Option<u32> {
        let number = self.pool.lock().pop_first()?;
        let mut chunks = self.shards[shard].lock();
        let slot = chunks.adopt(number);
        // Slots are fewer than chunks, which are 2^23 at most.
        let owner = slot * SHARDS as u32 + shard as u32;
        self.owners[number as usize].store(owner, Ordering::Release);
        chunks.split(slot, 0, ORDER_MAX, order);
        Some(number * CHUNK_PAGES)
    }
}

impl Shard {
    /// A slot for a chunk, none of which is free yet.
    fn adopt(&mut self, number: u32) -> u32 {
        if let Some(slot) = self.unused.pop() {
            self.chunks[slot as usize].number = number;
            return slot;
        }
        let slot = self.chunks.len() as u32;
        self.chunks.push(Chunk { number, free: Default::default() });
        if slot.is_multiple_of(BITS) {
            self.slots.iter_mut().for_each(|slots| slots.push(0));
        }
        slot
    }

    /// A block from the smallest that is large enough, of the first chunk that has one.
    fn take(&mut self, order: u8) -> Option<u32> {
        let (larger, slot) = (order..=ORDER_MAX)
            .find_map(|larger| Some((larger, first(&self.slots[usize::from(larger)])?)))?;
        let chunk = &self.chunks[slot as usize];
        let block = first(&chunk.free[usize::from(larger)])?;
        let page = chunk.number * CHUNK_PAGES + (block << larger);
        self.remove(slot, larger, block);
        self.split(slot, block << larger, larger, order);
        Some(page)
    }

    /// Frees what is behind the first 2^order pages of a block that is not free.
    fn split(&mut self, slot: u32, page: u32, larger: u8, order: u8) {
        for half in order..larger {
            self.insert(slot, half, (page >> half) + 1);
        }
    }

    /// Takes a block back and merges it with its free neighbours.
    #[track_caller]
    fn give(&mut self, slot: u32, page: u32, mut order: u8) {
        let chunk = &self.chunks[slot as usize];
        let inside = page % CHUNK_PAGES;
        for larger in order..=ORDER_MAX {
            assert!(!chunk.has(larger, inside >> larger), "page {page}, order {order}, is free");
        }
        let mut block = inside >> order;
        while order < ORDER_MAX && self.chunks[slot as usize].has(order, block ^ 1) {
            self.remove(slot, order, block ^ 1);
            block /= 2;
            order += 1;
        }
        self.insert(slot, order, block);
    }

    /// Removes a wholly free chunk beyond the one that this shard keeps.
    fn spare(&mut self) -> Option<u32> {
        if self.whole < 2 {
            return None;
        }
        let slot = first(&self.slots[usize::from(ORDER_MAX)])?;
        self.remove(slot, ORDER_MAX, 0);
        self.unused.push(slot);
        Some(self.chunks[slot as usize].number)
    }

    fn insert(&mut self, slot: u32, order: u8, block: u32) {
        let (word, bit) = place(block);
        self.chunks[slot as usize].free[usize::from(order)][word] |= bit;
        let (word, bit) = place(slot);
        self.slots[usize::from(order)][word] |= bit;
        self.whole += u32::from(order == ORDER_MAX);
    }

    fn remove(&mut self, slot: u32, order: u8, block: u32) {
        let (word, bit) = place(block);
        let free = &mut self.chunks[slot as usize].free[usize::from(order)];
        free[word] &= !bit;
        if first(free).is_none() {
            let (word, bit) = place(slot);
            self.slots[usize::from(order)][word] &= !bit;
        }
        self.whole -= u32::from(order == ORDER_MAX);
    }
}

impl Chunk {
    fn has(&self, order: u8, block: u32) -> bool {
        let (word, bit) = place(block);
        self.free[usize::from(order)][word] & bit != 0
    }
}

/// The word of a bit, and the bit in it.
fn place(number: u32) -> (usize, u64) {
    ((number / BITS) as usize, 1 << (number % BITS))
}

/// The first bit that is set.
fn first(words: &[u64]) -> Option<u32> {
    let (word, bits) = (0..).zip(words).find(|(_, bits)| **bits != 0)?;
    Some(word * BITS + bits.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use extant_base::Prng;
    use extant_sync::threads;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::AtomicBool;

    /// The invariants, when nobody allocates. Returns how many chunks are in the pool.
    fn check(buddy: &Buddy) -> usize {
        let mut seen = vec![false; buddy.pages as usize];
        let mut claim = |page: u32, order: u8| {
            for page in page..page + (1 << order) {
                let seen = &mut seen[page as usize];
                assert!(!std::mem::replace(seen, true), "page {page} is free in two places (B2)");
            }
        };
        for (number, shard) in buddy.shards.iter().enumerate() {
            let shard = shard.lock();
            let mut whole = 0;
            for (slot, chunk) in (0u32..).zip(&shard.chunks) {
                let used = !shard.unused.contains(&slot);
                for order in 0..=ORDER_MAX {
                    let mut any = false;
                    for block in (0..CHUNK_PAGES >> order).filter(|block| chunk.has(order, *block))
                    {
                        any = true;
                        claim(chunk.number * CHUNK_PAGES + (block << order), order);
                        let merges = order < ORDER_MAX && chunk.has(order, block ^ 1);
                        assert!(!merges, "chunk {} order {order} block {block} (B3)", chunk.number);
                    }
                    let (word, bit) = place(slot);
                    assert_eq!(shard.slots[usize::from(order)][word] & bit != 0, any);
                    assert!(used || !any, "a slot without a chunk has free blocks");
                    whole += u32::from(any && order == ORDER_MAX);
                    let beyond = &chunk.free[usize::from(order)];
                    let bits: u32 = beyond.iter().map(|bits| bits.count_ones()).sum();
                    let inside = (0..CHUNK_PAGES >> order).filter(|block| chunk.has(order, *block));
                    assert_eq!(bits, inside.count() as u32, "blocks beyond the chunk (B1)");
                }
                if used {
                    let owner = buddy.owners[chunk.number as usize].load(Ordering::Relaxed);
                    assert_eq!((owner as usize % SHARDS, owner / SHARDS as u32), (number, slot));
                }
            }
            assert_eq!(shard.whole, whole);
            assert!(whole <= 1, "shard {number} keeps too much");
        }
        let pool = buddy.pool.lock();
        pool.iter().for_each(|chunk| claim(chunk * CHUNK_PAGES, ORDER_MAX));
        assert_eq!(seen.iter().filter(|seen| **seen).count() as u32, buddy.free_pages());
        pool.len()
    }

    #[test]
    fn a_chunk_is_fresh_once_and_is_split_from_below() {
        let buddy = Buddy::new(4 * CHUNK_PAGES);
        assert_eq!(buddy.alloc(0, 7), Some((0, true)));
        assert_eq!(buddy.alloc(0, 7), Some((1, false)));
        assert_eq!(buddy.alloc(4, 7), Some((16, false)));
        assert_eq!(buddy.alloc(1, 7 + 16), Some((2, false)), "numbers of shards wrap");
        assert_eq!(buddy.alloc(9, 7), Some((512, true)));
        assert_eq!(buddy.alloc(0, 8), Some((1024, true)), "another shard opens its own chunk");
        assert_eq!(buddy.alloc(10, 7), None);
        assert_eq!(buddy.free_pages(), 2048 - 1 - 1 - 16 - 2 - 512 - 1);
        assert_eq!(check(&buddy), 1);
        buddy.free(1, 0);
        buddy.free(512, 9);
        assert_eq!(buddy.alloc(9, 7), Some((512, false)), "one whole chunk is kept");
        check(&buddy);
    }

    #[test]
    fn the_last_page_is_found_wherever_it_is() {
        let buddy = Buddy::new(3 * CHUNK_PAGES + 77);
        let mut pages: Vec<u32> = Vec::new();
        // The first allocations spread the chunks over three shards.
        for shard in [5, 9, 13].into_iter().chain(std::iter::repeat(2)) {
            match buddy.alloc(0, shard) {
                Some((page, _)) => pages.push(page),
                None => break,
            }
        }
        pages.sort_unstable();
        assert_eq!(pages, (0..3 * CHUNK_PAGES + 77).collect::<Vec<u32>>());
        assert_eq!((buddy.free_pages(), check(&buddy)), (0, 0));
        for order in 0..=ORDER_MAX {
            assert_eq!(buddy.alloc(order, 0), None);
        }
        // A whole block may be given back page by page, and the other way round.
        pages.into_iter().rev().for_each(|page| buddy.free(page, 0));
        check(&buddy);
        for shard in 0..3 {
            assert!(buddy.alloc(9, shard).is_some(), "all chunks are whole again");
        }
        assert_eq!(buddy.alloc(9, 0), None);
        assert_eq!(buddy.alloc(6, 3), Some((3 * CHUNK_PAGES, false)), "the part at the end");
        assert_eq!(buddy.free_pages(), 13);
    }

    #[test]
    fn sizes_below_a_chunk_work() {
        for pages in [0, 1, 511] {
            let buddy = Buddy::new(pages);
            assert_eq!((buddy.free_pages(), check(&buddy)), (pages, 0));
            assert_eq!(buddy.alloc(9, 0), None);
            for _ in 0..pages {
                assert!(buddy.alloc(0, 3).is_some());
            }
            assert_eq!(buddy.alloc(0, 3), None);
        }
    }

    #[test]
    fn wrong_blocks_are_refused() {
        let buddy = Buddy::new(1024);
        let (page, _) = buddy.alloc(3, 0).unwrap();
        for (page, order) in [(1024, 0), (1, 1), (0, 10), (u32::MAX, 0), (512 + 256, 9)] {
            let wrong = AssertUnwindSafe(|| buddy.free(page, order));
            assert!(catch_unwind(wrong).is_err(), "{page} {order}");
        }
        let (other, _) = buddy.alloc(3, 0).unwrap();
        buddy.free(page, 3);
        for order in 0..=3 {
            let twice = AssertUnwindSafe(|| buddy.free(page, order));
            assert!(catch_unwind(twice).is_err(), "twice, and merged since: order {order}");
        }
        buddy.free(other, 3);
        assert_eq!((buddy.free_pages(), check(&buddy)), (1024, 1));
    }

    /// Allocates and frees at random; `used` has a flag for each page that somebody holds.
    fn history(buddy: &Buddy, used: &[AtomicBool], seed: u64, rounds: u64) -> Vec<(u32, u8)> {
        let mut prng = Prng::new(seed);
        let mut held: Vec<(u32, u8)> = Vec::new();
        let flags = |page: u32, order: u8, value: bool| {
            for page in page..page + (1 << order) {
                let was = used[page as usize].swap(value, Ordering::Relaxed);
                assert_eq!(was, !value, "page {page}, order {order}, seed {seed}");
            }
        };
        for round in 0..rounds {
            // Fills and empties in turns.
            let grow = if round / 500 % 2 == 0 { 3 } else { 1 };
            if prng.below(4) < grow {
                let order = prng.below(10).min(prng.below(10)) as u8;
                if let Some((page, _)) = buddy.alloc(order, prng.below(40) as usize) {
                    assert!(page.is_multiple_of(1 << order), "page {page}, order {order}");
                    flags(page, order, true);
                    held.push((page, order));
                }
            } else if !held.is_empty() {
                let (page, order) = held.swap_remove(prng.below(held.len() as u64) as usize);
                flags(page, order, false);
                // Sometimes in two halves.
                if order > 0 && prng.one_in(4) {
                    buddy.free(page + (1 << (order - 1)), order - 1);
                    buddy.free(page, order - 1);
                } else {
                    buddy.free(page, order);
                }
            }
        }
        held
    }

    #[test]
    fn any_history_hands_out_no_page_twice_and_ends_whole() {
        for seed in 0..4 {
            let buddy = Buddy::new(24 * CHUNK_PAGES);
            let used: Vec<_> = (0..buddy.pages).map(|_| AtomicBool::new(false)).collect();
            let rounds = if cfg!(miri) { 300 } else { 20_000 };
            let held = history(&buddy, &used, seed, rounds);
            check(&buddy);
            let count: u32 = held.iter().map(|(_, order)| 1 << order).sum();
            assert_eq!(buddy.free_pages(), buddy.pages - count);
            held.into_iter().for_each(|(page, order)| buddy.free(page, order));
            assert!(check(&buddy) >= 24 - SHARDS);
            for chunk in 0..24 {
                assert!(buddy.alloc(9, 0).is_some(), "chunk {chunk} of 24 is not whole");
            }
        }
    }

    #[test]
    fn threads_never_hold_the_same_page() {
        let buddy = Buddy::new(12 * CHUNK_PAGES + 100);
        let used: Vec<_> = (0..buddy.pages).map(|_| AtomicBool::new(false)).collect();
        let rounds = if cfg!(miri) { 100 } else { 15_000 };
        let held = threads::workers("pages", 4, |thread| {
            history(&buddy, &used, 100 + thread as u64, rounds)
        })
        .unwrap();
        check(&buddy);
        // Given back by another thread than took them.
        held.into_iter().flatten().for_each(|(page, order)| buddy.free(page, order));
        check(&buddy);
        assert_eq!(buddy.free_pages(), buddy.pages);
        for _ in 0..12 {
            assert!(buddy.alloc(9, 1).is_some());
        }
    }
}
