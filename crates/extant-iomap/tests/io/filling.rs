//! What is being filled: nobody waits for the device who wants something else of the folio, and whoever wants the same
//! gets it, or its error, by itself.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::Prng;
use extant_iomap::{DirectOptions, DirectOutcome};
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::Ends;

use crate::model::content;
use crate::support::{Error, Fs, Gate, Options, Point, TestFile};

const BLOCK: usize = 4096;
const BLOCKS: usize = 16;

/// A file in one folio, of which blocks 1, 3 and 9 to 11 are on the device only.
fn with_holes_in_a_folio(fs: &Arc<Fs>) -> (Arc<TestFile>, Vec<u8>) {
    let file = fs.file();
    let mut bytes = content(&mut Prng::new(1), BLOCKS * BLOCK);
    file.write(0, &bytes).unwrap();
    file.sync().unwrap();
    assert_eq!(file.data.folio_count(), 1);
    for (block, count) in [(1, 1), (3, 1), (9, 3)] {
        let part = content(&mut Prng::new(100 + block as u64), count * BLOCK);
        bytes[block * BLOCK..][..part.len()].copy_from_slice(&part);
        assert_eq!(file.write_direct((block * BLOCK) as u64, &part).unwrap(), part.len());
    }
    assert_eq!(file.data.folio_count(), 1, "it has lost blocks and stays");
    (file, bytes)
}

fn fs() -> Arc<Fs> {
    Fs::new(Options { ahead: false, ..Options::default() })
}

fn blocks(range: Range<usize>) -> Range<usize> {
    range.start * BLOCK..range.end * BLOCK
}

fn read(file: &TestFile, range: Range<usize>) -> Result<Vec<u8>, Error> {
    file.read(range.start as u64, range.len())
}

/// Returns whether something comes to pass within some seconds.
fn comes_to_pass(mut is_so: impl FnMut() -> bool) -> bool {
    (0..50_000).any(|_| {
        SystemClock.sleep(std::time::Duration::from_micros(100));
        is_so()
    })
}

/// Reads block 1, for which the device takes until `others` has ended, or for some seconds. Returns whether it has ended
/// before.
fn while_block_1_is_read(
    fs: &Arc<Fs>,
    file: &TestFile,
    wanted: &[u8],
    others: impl FnOnce() + Send,
) -> bool {
    let (inside, go_on) = (Gate::new(), Gate::new());
    let (opened, passed) = (Arc::clone(&inside), Arc::clone(&go_on));
    fs.hooks.once(Point::Read, move || {
        opened.open();
        passed.pass();
    });
    let ended = AtomicU64::new(0);
    threads::scope(|s| {
        let ended = &ended;
        s.spawn("reader", || assert!(read(file, blocks(1..2)).unwrap() == wanted[blocks(1..2)]))
            .unwrap();
        inside.pass();
        s.spawn("others", move || {
            others();
            ended.store(1, Ordering::SeqCst);
        })
        .unwrap();
        let before = comes_to_pass(|| ended.load(Ordering::SeqCst) == 1);
        go_on.open();
        before
    })
    .unwrap()
}

#[test]
fn other_blocks_of_a_folio_are_read_and_brought_to_the_device_while_one_is_being_filled() {
    let fs = fs();
    let (file, mut bytes) = with_holes_in_a_folio(&fs);
    let dirty = content(&mut Prng::new(7), BLOCK);
    bytes[blocks(5..6)].copy_from_slice(&dirty);
    file.write(5 * BLOCK as u64, &dirty).unwrap();
    let before = fs.cache.stats();
    let ended = while_block_1_is_read(&fs, &file, &bytes, || {
        // What is there, what is not, and both.
        for range in [4..8, 3..4, 8..16] {
            let range = blocks(range);
            assert!(read(&file, range.clone()).unwrap() == bytes[range]);
        }
        file.write_back(0..(BLOCKS * BLOCK) as u64).unwrap();
        assert!(!file.data.is_dirty());
    });
    assert!(ended, "somebody waited for the device who did not want what it reads");
    let stats = fs.cache.stats();
    assert_eq!(stats.bytes_filled - before.bytes_filled, 5 * BLOCK as u64, "each once");
    assert_eq!(stats.fill_waits, before.fill_waits);
    assert!(file.read_all().unwrap() == bytes);
    drop(file);
    fs.check_empty();
}

#[test]
fn whoever_wants_the_same_block_waits_for_it_and_it_is_read_once() {
    let fs = fs();
    let (file, bytes) = with_holes_in_a_folio(&fs);
    let before = fs.cache.stats();
    let (inside, go_on) = (Gate::new(), Gate::new());
    let (opened, passed) = (Arc::clone(&inside), Arc::clone(&go_on));
    fs.hooks.once(Point::Read, move || {
        opened.open();
        passed.pass();
    });
    threads::scope(|s| {
        let (file, bytes) = (&file, &bytes);
        s.spawn("first", || assert!(read(file, blocks(1..2)).unwrap() == bytes[blocks(1..2)]))
            .unwrap();
        inside.pass();
        for _ in 0..3 {
            // Also what lies around it, which they fill themselves before they wait.
            s.spawn("another", || {
                assert!(read(file, blocks(0..4)).unwrap() == bytes[blocks(0..4)])
            })
            .unwrap();
        }
        let waits = comes_to_pass(|| fs.cache.stats().fill_waits - before.fill_waits >= 3);
        go_on.open();
        assert!(waits, "{:?}", fs.cache.stats());
    })
    .unwrap();
    let stats = fs.cache.stats();
    assert_eq!(stats.bytes_filled - before.bytes_filled, 2 * BLOCK as u64);
    drop(file);
    fs.check_empty();
}

#[test]
fn a_fill_that_fails_is_the_error_of_its_reader_and_the_next_one_tries_itself() {
    for panics in [false, true] {
        let fs = fs();
        let (file, bytes) = with_holes_in_a_folio(&fs);
        let before = fs.cache.stats();
        let (inside, go_on) = (Gate::new(), Gate::new());
        let (opened, passed) = (Arc::clone(&inside), Arc::clone(&go_on));
        let device = Arc::clone(&fs);
        fs.hooks.once(Point::Read, move || {
            opened.open();
            passed.pass();
            assert!(!panics, "as the test wants it");
            device.device.reads.after(1);
        });
        let outcome = threads::scope(|s| {
            let (file, bytes, fs) = (&file, &bytes, &fs);
            let first = s.spawn("first", || read(file, blocks(1..2)).is_err()).unwrap();
            inside.pass();
            let next = s
                .spawn("next", || {
                    assert!(read(file, blocks(1..2)).unwrap() == bytes[blocks(1..2)]);
                })
                .unwrap();
            let waits = comes_to_pass(|| fs.cache.stats().fill_waits > before.fill_waits);
            go_on.open();
            let failed = first.join();
            (failed, next.join().is_ok(), waits)
        });
        match outcome {
            Ok((failed, next, waits)) => {
                assert!(!panics && waits && next);
                assert!(failed.unwrap(), "the device's error is told");
            }
            Err(panic) => assert!(panics && panic.to_string().contains("as the test wants it")),
        }
        assert!(file.read_all().unwrap() == bytes, "nothing is left marked");
        drop(file);
        fs.check_empty();
    }
}

#[test]
fn a_direct_write_beside_a_fill_leaves_no_old_block_in_the_cache() {
    for (at, point) in [(1, Point::WasRead), (1, Point::Read), (2, Point::WasRead)] {
        let fs = fs();
        let (file, mut bytes) = with_holes_in_a_folio(&fs);
        let fresh = content(&mut Prng::new(50), BLOCK);
        bytes[blocks(at..at + 1)].copy_from_slice(&fresh);
        let how = DirectOptions { unit: 512, durable: false };
        let (offset, before) = ((at * BLOCK) as u64, fs.cache.stats().bytes_written_direct);
        let (inside, go_on) = (Gate::new(), Gate::new());
        let (opened, passed) = (Arc::clone(&inside), Arc::clone(&go_on));
        fs.hooks.once(point, move || {
            opened.open();
            passed.pass();
        });
        let outcome = threads::scope(|s| {
            let (file, fresh, fs) = (&file, &fresh, &fs);
            s.spawn("reader", || drop(read(file, blocks(1..2)).unwrap())).unwrap();
            inside.pass();
            let writer = s.spawn("writer", move || file.write_direct_beside(offset, fresh, how));
            let writer = writer.unwrap();
            // Where the folio has the block, nothing is written beside others.
            let written = || fs.cache.stats().bytes_written_direct > before;
            assert!(at != 1 || comes_to_pass(written));
            // Long enough for the writer to look at the cache again.
            SystemClock.sleep(std::time::Duration::from_millis(20));
            go_on.open();
            writer.join().unwrap().unwrap()
        })
        .unwrap();
        match outcome {
            DirectOutcome::Done { written, .. } => assert_eq!((written, at), (BLOCK, 1)),
            DirectOutcome::Alone(_) => {
                assert_eq!(file.write_direct(offset, &fresh).unwrap(), BLOCK);
            }
            DirectOutcome::Taken => unreachable!("it has waited for the range"),
        }
        assert!(file.read_all().unwrap() == bytes, "block {at}");
        fs.cache.drop_clean();
        assert!(file.read_all().unwrap() == bytes, "block {at} as it is stored");
        drop(file);
        fs.check_empty();
    }
}

#[test]
fn many_readers_of_folios_with_holes_see_what_was_written_last() {
    const WRITERS: usize = 2;
    let fs = Fs::new(Options { cache_bytes: 2 << 20, ..Options::default() });
    let file = fs.file();
    let len = 64 * BLOCK;
    file.write(0, &vec![1; len]).unwrap();
    file.sync().unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    let reads = AtomicU64::new(0);
    threads::scope(|s| {
        let (file, ended, reads, fs) = (&file, &ended, &reads, &fs);
        for writer in 0..WRITERS {
            s.spawn("writer", move || {
                let _ends = Ends(ended);
                let mut random = Prng::new(writer as u64);
                let mut round = 0;
                while (round < 3000 || reads.load(Ordering::Relaxed) < 300)
                    && !ended.load(Ordering::Relaxed)
                {
                    round += 1;
                    // Every block is filled with one number, so that a mix shows.
                    let at = random.below(64) * BLOCK as u64;
                    let part = [random.below(250) as u8 + 1; BLOCK];
                    match random.below(3) {
                        0 => assert_eq!(file.write(at, &part).unwrap(), BLOCK),
                        _ => assert_eq!(file.write_direct(at, &part).unwrap(), BLOCK),
                    }
                    if round % 50 == 0 {
                        fs.cache.drop_clean();
                    }
                }
            })
            .unwrap();
        }
        for reader in 0..3 {
            s.spawn("reader", move || {
                let mut random = Prng::new(100 + reader);
                while !ended.load(Ordering::Relaxed) {
                    let at = random.below(60) * BLOCK as u64;
                    let count = 1 + random.below(4) as usize;
                    let got = file.read(at, count * BLOCK).unwrap();
                    for block in got.chunks(BLOCK) {
                        assert!(block.iter().all(|byte| *byte == block[0] && *byte != 0));
                    }
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
            .unwrap();
        }
        s.spawn("flusher", move || {
            while !ended.load(Ordering::Relaxed) {
                file.sync().unwrap();
            }
        })
        .unwrap();
    })
    .unwrap();
    assert!(reads.load(Ordering::Relaxed) > 0);
    let seen = file.read_all().unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    assert!(file.read_all().unwrap() == seen);
    drop(file);
    fs.check_empty();
}
