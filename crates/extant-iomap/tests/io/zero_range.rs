//! Strided writes that extend files, and what zeroing costs them.
//!
//! A file server hands on the writes of its clients in almost their order, so many land a little
//! behind the end of the file: what is between is zeroed, in blocks that earlier writes have had
//! promised ahead and that zeroing has made unwritten. A kernel that flushed before each of these
//! lost 98 percent of its speed.

use std::sync::atomic::Ordering;

use extant_base::Prng;
use extant_iomap::CacheStats;

use crate::support::{Alloc, Fs, Options};

const FILES: u64 = 16;
const WRITES: u64 = 256;
const LARGEST: u64 = 1 << 20;

/// Small writes at growing places, now and then at the start of a page, now and then synced; then all
/// is read back and compared. Returns the counters, and how often the device was written before the last
/// sync of each file.
fn metamix(options: Options, syncs: bool, reorders: bool) -> (CacheStats, u64) {
    let fs = Fs::new(options);
    let mut prng = Prng::new(11);
    let mut device_writes = 0;
    for number in 0..FILES {
        let before = fs.cache.stats().device_writes;
        let file = fs.file();
        let mut wanted: Vec<u8> = Vec::new();
        let mut writes: Vec<(u64, usize)> = Vec::new();
        let mut at = 0;
        while (writes.len() as u64) < WRITES && at < LARGEST {
            writes.push((at, prng.below(257) as usize + 4));
            at += prng.below(2 * LARGEST / WRITES) + 261;
            if prng.one_in(8) {
                at = at.next_multiple_of(4096);
            }
        }
        if reorders {
            writes.chunks_mut(2).for_each(|pair| pair.reverse());
        }
        for (at, len) in writes {
            let bytes = vec![number as u8 + 1; len];
            assert_eq!(file.write(at, &bytes).unwrap(), len);
            let end = at as usize + len;
            wanted.resize(wanted.len().max(end), 0);
            wanted[at as usize..end].copy_from_slice(&bytes);
            if syncs && prng.one_in(32) {
                file.sync().unwrap();
            }
        }
        device_writes += fs.cache.stats().device_writes - before;
        let size = wanted.len();
        for _ in 0..64 {
            let from = prng.below(size as u64) as usize;
            let to = (from + 3000).min(size);
            assert!(file.read(from as u64, to - from).unwrap() == wanted[from..to]);
        }
        assert!(file.read_all().unwrap() == wanted);
        if number % 4 == 0 {
            file.sync().unwrap();
            fs.cache.drop_clean();
            assert!(file.read_all().unwrap() == wanted);
            assert!(file.after_a_crash() == wanted);
        }
    }
    // The state that the regression needs: unwritten blocks behind the end. With flushes they come
    // from writeback.
    let ahead = fs.seen.zeroed_ahead.load(Ordering::Relaxed);
    assert!(ahead > FILES || options.flush_before_zero, "{options:?}: {ahead}");
    let stats = fs.cache.stats();
    fs.check_empty();
    (stats, device_writes)
}

fn options(block_log2: u32, flush_before_zero: bool) -> Options {
    let cache_bytes = 64 << 20;
    Options { block_log2, flush_before_zero, cache_bytes, ..Options::default() }
}

#[test]
fn strided_extending_writes_never_flush_and_with_the_old_flush_they_do() {
    for block_log2 in [10, 12] {
        for reorders in [false, true] {
            let (without, few) = metamix(options(block_log2, false), false, reorders);
            assert_eq!((without.zero_flushes, few), (0, 0), "nobody asked for a write");
            assert!(without.zero_calls > FILES * WRITES / 4, "zeroing is what this is about");
            let (with, many) = metamix(options(block_log2, true), false, reorders);
            assert_eq!(with.zero_flushes, many);
            assert!(many > FILES * WRITES / 4, "block 2^{block_log2}: only {many} flushes");
        }
    }
}

#[test]
fn with_syncs_between_only_the_syncs_write() {
    for alloc in [Alloc::Unwritten, Alloc::Pinned] {
        let (without, few) = metamix(Options { alloc, ..options(12, false) }, true, true);
        assert_eq!(without.zero_flushes, 0);
        let (with, many) = metamix(Options { alloc, ..options(12, true) }, true, true);
        assert!(many > 3 * few, "{alloc:?}: {many} writes with flushes, {few} without");
        assert!(with.zero_flushes > 0);
    }
}

#[test]
fn zeroing_costs_what_is_cached_and_mapped_not_what_is_between() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write(0, b"first").unwrap();
    let before = fs.cache.stats();
    file.write(1 << 40, b"far").unwrap();
    let after = fs.cache.stats();
    assert!(after.mappings - before.mappings < 8, "{} questions", after.mappings - before.mappings);
    assert_eq!(after.folios_made - before.folios_made, 1);
    assert_eq!(after.device_writes, 0);
    assert_eq!(file.read((1 << 40) - 3, 6).unwrap(), b"\0\0\0far");
    file.sync().unwrap();
    drop(file);
    fs.check_empty();
}
