//! Memory, free pages, frames, hints and states together, used the way the cache uses them: what a
//! reader sees through a pin are the bytes of the page it asked for, whoever reuses memory meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::Prng;
use extant_sync::{Mutex, Rank, threads};

use crate::arena::Arena;
use crate::buddy::Buddy;
use crate::frames::{FrameId, Frames, Pin};
use crate::hints::{Hints, Home};
use crate::states::{State, States};

const PAGE: u64 = 4096;
const FILES: u64 = 6;
const FILE_PAGES: u64 = 320;

/// Twice as many pages are asked for as there is memory.
const ARENA: u64 = 4 << 20;

struct Memory {
    arena: Arena,
    buddy: Buddy,
    frames: Frames,
    hints: Hints,
    states: States,
    /// All files' indexes.
    index: Mutex<BTreeMap<(u64, u64), FrameId>>,
    /// Detached folios that somebody still had pinned, with their orders.
    limbo: Mutex<Vec<(FrameId, u8)>>,
    reused: AtomicU64,
    by_hint: AtomicU64,
}

/// The folios of one file have one size, so that they do not overlap.
fn order(file: u64) -> u8 {
    (file * 2 % 7) as u8
}

fn contents(file: u64, page: u64) -> Vec<u8> {
    let mut bytes = vec![0; PAGE as usize];
    Prng::new(file * FILE_PAGES + page).fill(&mut bytes);
    bytes
}

impl Memory {
    fn new() -> Memory {
        let pages = (ARENA / PAGE) as u32;
        Memory {
            arena: Arena::new(ARENA).unwrap(),
            buddy: Buddy::new(pages),
            frames: Frames::new(pages),
            hints: Hints::new(pages),
            states: States::new(ARENA / PAGE),
            index: Mutex::new(Rank::Leaf, BTreeMap::new()),
            limbo: Mutex::new(Rank::Leaf, Vec::new()),
            reused: AtomicU64::new(0),
            by_hint: AtomicU64::new(0),
        }
    }

    /// The folio of a page: by a hint, by the index, or a new one. `None` without memory for it.
    fn folio(&self, file: u64, page: u64, thread: usize) -> Option<Pin<'_>> {
        let order = order(file);
        let start = page >> order << order;
        if let Some(pin) = self.frames.pin(self.hints.get(Home::of(file), start, order), file, page)
        {
            self.by_hint.fetch_add(1, Ordering::Relaxed);
            return Some(pin);
        }
        let known = self.index.lock().get(&(file, start)).copied();
        if let Some(pin) = known.and_then(|id| self.frames.pin(id, file, page)) {
            self.hints.set(Home::of(file), start, order, pin.id());
            return Some(pin);
        }
        let (id, fresh) = self.buddy.alloc(order, thread)?;
        if fresh {
            self.arena.prepare(id / 512);
        }
        // Published under the index's lock: as soon as it is live it can be evicted, and whoever
        // does that finds it in the index.
        let mut index = self.index.lock();
        let known = index.get(&(file, start)).copied();
        if let Some(known) = known {
            // Another thread was first.
            drop(index);
            self.buddy.free(id, order);
            return self.frames.pin(known, file, page);
        }
        let pin = self.frames.publish(id, file, start, order);
        index.insert((file, start), id);
        drop(index);
        self.hints.set(Home::of(file), start, order, id);
        Some(pin)
    }

    /// Reads a page, filling it first where needed. False when there was no memory.
    fn read(&self, file: u64, page: u64, thread: usize, expected: &[u8]) -> bool {
        for _ in 0..100 {
            let Some(pin) = self.folio(file, page, thread) else { return false };
            let behind = page - pin.start();
            let unit = u64::from(pin.id()) + behind;
            let at = pin.at() + behind * PAGE;
            if !self.states.all(State::Uptodate, unit..unit + 1) {
                let _guard = pin.lock();
                if pin.is_detached() {
                    continue;
                }
                if !self.states.all(State::Uptodate, unit..unit + 1) {
                    self.arena.copy_in(at, expected);
                    assert_eq!(self.states.set(State::Uptodate, unit..unit + 1), 1);
                }
            }
            self.arena.view(at, PAGE, |bytes| {
                assert!(bytes == expected, "file {file} page {page} in {pin:?}");
            });
            pin.mark_used();
            return true;
        }
        false
    }

    /// Takes a folio out of its file, like the hand of eviction.
    fn evict(&self, id: FrameId) {
        let Some(pin) = self.frames.pin_any(id) else { return };
        if pin.take_used() {
            return;
        }
        let guard = pin.lock();
        if !pin.detach() {
            return;
        }
        let mut index = self.index.lock();
        let key = (pin.file(), pin.start());
        assert_eq!(index.remove(&key), Some(id), "attached folios are in the index");
        drop(index);
        drop(guard);
        self.end(pin);
    }

    fn end(&self, pin: Pin<'_>) {
        let (id, order) = (pin.id(), pin.order());
        match pin.kill() {
            Ok(()) => self.give_back(id, order),
            Err(pin) => {
                self.limbo.lock().push((id, order));
                drop(pin);
            }
        }
    }

    fn give_back(&self, id: FrameId, order: u8) {
        let first = u64::from(id);
        self.states.clear(State::Uptodate, first..first + (1 << order));
        self.buddy.free(id, order);
        self.reused.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends what could not be ended before.
    fn sweep(&self) {
        let waiting = std::mem::take(&mut *self.limbo.lock());
        for (id, order) in waiting {
            if self.frames.kill(id) {
                self.give_back(id, order);
            } else {
                self.limbo.lock().push((id, order));
            }
        }
    }
}

#[test]
fn a_reader_sees_the_page_it_asked_for_while_memory_is_reused() {
    let rounds = if cfg!(miri) { 100 } else { 12_000 };
    let files = if cfg!(miri) { 2 } else { FILES };
    let memory = Memory::new();
    let model: Vec<Vec<Vec<u8>>> =
        (0..files).map(|file| (0..FILE_PAGES).map(|page| contents(file, page)).collect()).collect();
    let reads = threads::workers("protocol", 4, |thread| {
        let mut prng = Prng::new(thread as u64);
        let mut reads = 0;
        for _ in 0..rounds {
            // Mostly the same few pages, so that threads meet.
            let file = prng.below(files);
            let page = if prng.one_in(3) { prng.below(FILE_PAGES) } else { prng.below(9) * 31 };
            let expected = &model[file as usize][page as usize];
            if memory.read(file, page, thread, expected) {
                reads += 1;
            } else {
                for _ in 0..200 {
                    memory.evict(prng.below(ARENA / PAGE) as FrameId);
                }
            }
            for _ in 0..prng.below(4) {
                memory.evict(prng.below(ARENA / PAGE) as FrameId);
            }
            memory.sweep();
        }
        reads
    })
    .unwrap();
    if !cfg!(miri) {
        assert!(reads.iter().sum::<i32>() > rounds, "{reads:?}");
        assert!(memory.reused.load(Ordering::Relaxed) > 1000);
        assert!(memory.by_hint.load(Ordering::Relaxed) > 1000);
    }

    // Nothing is lost: all folios end, and all pages are free and in no state.
    for id in 0..memory.frames.len() {
        memory.evict(id);
        memory.evict(id);
    }
    memory.sweep();
    assert!(memory.limbo.lock().is_empty() && memory.index.lock().is_empty());
    assert_eq!(u64::from(memory.buddy.free_pages()), ARENA / PAGE);
    assert!(!memory.states.any(State::Uptodate, 0..ARENA / PAGE));
}
