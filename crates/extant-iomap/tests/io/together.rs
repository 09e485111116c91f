//! Threads: readers see whole writes, whatever writeback and eviction do meanwhile.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_base::Prng;
use extant_sync::threads;
use extant_testkit::Ends;

use crate::support::{Alloc, Fs, Options};

const RECORD: u64 = 64 << 10;
const RECORDS: u64 = 24;
const FILES: usize = 3;

/// Every write fills a record with one number, so a mix of two shows.
fn storm(options: Options, rounds: u64) {
    let fs = Fs::new(options);
    let files: Vec<_> = (0..FILES).map(|_| fs.file()).collect();
    for file in &files {
        file.truncate(RECORD * RECORDS).unwrap();
    }
    let ended = AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    let (fs, files, ended_ref, reads_ref) = (&fs, &files, &ended, &reads);
    threads::scope(|s| {
        for writer in 0..2 {
            s.spawn("writer", move || {
                let _ends = Ends(ended_ref);
                let mut prng = Prng::new(writer);
                // Until the readers have had their share as well.
                let mut round = 0;
                while (round < rounds || reads_ref.load(Ordering::Relaxed) < rounds / 4)
                    && !ended_ref.load(Ordering::Relaxed)
                {
                    round += 1;
                    let file = &files[prng.below(FILES as u64) as usize];
                    let at = prng.below(RECORDS) * RECORD;
                    match prng.below(12) {
                        0 => file.punch(at..at + RECORD).unwrap(),
                        1 => file.zero_range(at..at + RECORD, true).unwrap(),
                        2 => file.zero_in_cache(at..at + RECORD).unwrap(),
                        _ => {
                            let bytes = vec![prng.below(150) as u8 + 1; RECORD as usize];
                            let done = file.write(at, &bytes).unwrap();
                            assert_eq!(done, bytes.len());
                        }
                    }
                }
            })
            .unwrap();
        }
        for reader in 0..2 {
            s.spawn("reader", move || {
                let ends = Ends(ended_ref);
                let mut prng = Prng::new(100 + reader);
                while !ended_ref.load(Ordering::Relaxed) {
                    let file = &files[prng.below(FILES as u64) as usize];
                    let at = prng.below(RECORDS) * RECORD;
                    let skip = prng.below(RECORD - 1);
                    let got = file.read(at + skip, (RECORD - skip) as usize).unwrap();
                    assert_eq!(got.len() as u64, RECORD - skip);
                    let mixed = got.iter().position(|byte| *byte != got[0]);
                    assert_eq!(mixed, None, "half a write in the record at {at}");
                    reads_ref.fetch_add(1, Ordering::Relaxed);
                }
                drop(ends);
            })
            .unwrap();
        }
        s.spawn("flusher", move || {
            let mut prng = Prng::new(200);
            while !ended_ref.load(Ordering::Relaxed) {
                let file = &files[prng.below(FILES as u64) as usize];
                let at = prng.below(RECORDS) * RECORD;
                match prng.below(4) {
                    0 => file.sync().unwrap(),
                    _ => {
                        file.write_back(at..at + 4 * RECORD).unwrap();
                    }
                }
                std::thread::yield_now();
            }
        })
        .unwrap();
        s.spawn("evictor", move || {
            while !ended_ref.load(Ordering::Relaxed) {
                fs.cache.drop_clean();
                std::thread::yield_now();
            }
        })
        .unwrap();
    })
    .unwrap();
    assert!(reads.load(Ordering::Relaxed) >= rounds / 4);
    for file in files {
        file.sync().unwrap();
        let wanted = file.read_all().unwrap();
        assert!(wanted.chunks(RECORD as usize).all(|it| it.iter().all(|byte| *byte == it[0])));
        assert!(file.after_a_crash() == wanted);
        assert!(!file.data.is_dirty());
        assert_eq!(file.data.error_count(), 0);
    }
    assert_eq!((fs.cache.dirty_bytes(), fs.cache.stats().zero_flushes), (0, 0));
}

fn storms(change: impl Fn(&mut Options)) {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        let mut options =
            Options { alloc, cache_bytes: 1 << 20, run_max: 40, ..Options::default() };
        change(&mut options);
        storm(options, 2500);
    }
}

#[test]
fn readers_see_whole_writes_in_the_smallest_cache() {
    storms(|_| ());
}

#[test]
fn readers_see_whole_writes_with_small_blocks() {
    storms(|options| options.block_log2 = 10);
}

#[test]
fn readers_see_whole_writes_with_large_blocks() {
    storms(|options| options.block_log2 = 16);
}

#[test]
fn readers_see_whole_writes_with_folios_of_one_page() {
    storms(|options| options.folio_max_log2 = 12);
}

#[test]
fn readers_that_fill_one_file_together_all_succeed() {
    for round in 0..20 {
        let fs = Fs::new(Options { cache_bytes: 1 << 20, ..Options::default() });
        let file = fs.file();
        let bytes: Vec<u8> = (0..1 << 20).map(|at| (at >> 10) as u8 | 1).collect();
        file.write(0, &bytes).unwrap();
        file.sync().unwrap();
        fs.cache.drop_clean();
        threads::workers("reader", 4, |number| {
            let mut prng = Prng::new(round * 10 + number as u64);
            for _ in 0..40 {
                let at = prng.below(1 << 20) as usize;
                let end = (at + prng.below(200_000) as usize).min(1 << 20);
                assert!(file.read(at as u64, end - at).unwrap() == bytes[at..end]);
            }
        })
        .unwrap();
        drop(file);
        fs.check_empty();
    }
}
