//! What went wrong in other implementations, by the numbers of `docs/pitfalls.md`.
//!
//! Where two things must meet at one moment, a hook of the file system pauses one of them there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use extant_sync::threads;

use crate::support::{Alloc, Error, Fs, GARBAGE, Gate, Options, Point, Stored, TestFile};

const BLOCK: u64 = 4096;

fn sizes(test: impl Fn(Options)) {
    for block_log2 in [10, 12] {
        for folio_max_log2 in [12, 16, 21] {
            for alloc in [Alloc::Pinned, Alloc::Unwritten] {
                test(Options { block_log2, folio_max_log2, alloc, ..Options::default() });
            }
        }
    }
}

fn finish(fs: &Arc<Fs>, file: Arc<TestFile>) {
    file.sync().unwrap();
    let wanted = file.read_all().unwrap();
    assert_eq!(file.after_a_crash(), wanted);
    fs.cache.drop_clean();
    assert_eq!(file.read_all().unwrap(), wanted, "as it is stored");
    drop(file);
    fs.check_empty();
}

/// A file whose first 16 blocks are unwritten, and dirty where `blocks` says.
fn over_unwritten(options: Options, blocks: &[u64]) -> (Arc<Fs>, Arc<TestFile>, Vec<u8>) {
    let fs = Fs::new(options);
    let file = fs.file();
    let mut wanted = vec![0; 16 * BLOCK as usize];
    file.allocate(0..16 * BLOCK, false).unwrap();
    for &block in blocks {
        let at = (block * BLOCK) as usize;
        file.write(at as u64, &[7; BLOCK as usize]).unwrap();
        wanted[at..at + BLOCK as usize].fill(7);
    }
    (fs, file, wanted)
}

#[test]
fn p01_a_mapping_that_writeback_made_old_is_not_written_with() {
    sizes(|options| {
        // The first block is dirty over unwritten, the second is not: so the writer asks.
        let (fs, file, mut wanted) = over_unwritten(options, &[0]);
        let other = Arc::clone(&file);
        fs.hooks.once(Point::Mapped, move || {
            other.write_back(0..u64::MAX >> 1).unwrap();
            other.data.cache().drop_clean();
        });
        file.write(3000, &[9; 3000]).unwrap();
        wanted[3000..6000].fill(9);
        assert!(!fs.hooks.is_set(Point::Mapped));
        assert!(file.read_all().unwrap() == wanted);
        finish(&fs, file);
    });
}

#[test]
fn p01_the_cookie_is_compared_under_the_folio_lock() {
    let (fs, file, _) = over_unwritten(Options::default(), &[9]);
    let other = Arc::clone(&file);
    fs.hooks.once(Point::Mapped, move || {
        other.write_back(0..u64::MAX >> 1).unwrap();
    });
    let before = fs.cache.stats().stale_mappings;
    file.write(100, b"part of a block").unwrap();
    assert_eq!(fs.cache.stats().stale_mappings, before + 1);
    finish(&fs, file);
}

#[test]
fn p03_an_answer_from_before_a_punch_is_not_read_with() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 16 * BLOCK as usize]).unwrap();
        file.sync().unwrap();
        fs.cache.drop_clean();
        // The reader's answer is remembered, and about freed blocks from now on: reading them fails.
        file.read(0, 10).unwrap();
        file.punch(4 * BLOCK..12 * BLOCK).unwrap();
        let mut wanted = vec![7; 16 * BLOCK as usize];
        wanted[4 * BLOCK as usize..12 * BLOCK as usize].fill(0);
        assert!(file.read_all().unwrap() == wanted);
        finish(&fs, file);
    });
}

#[test]
fn p04_readers_do_not_outdate_the_mapping_of_a_writer() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write(0, &[7; 64 * BLOCK as usize]).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    for at in 0..64 {
        // What was known is not true any more, so that somebody asks.
        file.allocate((100 + at) * BLOCK..(101 + at) * BLOCK, true).unwrap();
        let other = Arc::clone(&file);
        fs.hooks.once(Point::Mapped, move || {
            // A look at how it is stored, without the content lock, as other readers might.
            other.data.seek_hole(&*other, 0).unwrap();
        });
        file.write(at * BLOCK + 5, b"x").unwrap();
        file.read((at ^ 1) * BLOCK, 100).unwrap();
        assert!(!fs.hooks.is_set(Point::Mapped));
    }
    assert_eq!(fs.cache.stats().stale_mappings, 0);
    finish(&fs, file);
}

#[test]
fn p05_p06_what_is_under_writeback_is_not_removed() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 8 * BLOCK as usize]).unwrap();
        let (placed, truncated) = (Gate::new(), Arc::new(AtomicBool::new(false)));
        let (opened, seen) = (Arc::clone(&placed), Arc::clone(&truncated));
        fs.hooks.once(Point::Placed, move || opened.open());
        fs.hooks.once(Point::Published, move || {
            // The file system itself refuses blocks that vanish between place and publication.
            assert!(!seen.load(Ordering::SeqCst), "truncated while under writeback");
        });
        threads::scope(|s| {
            s.spawn("flush", || file.sync().unwrap()).unwrap();
            s.spawn("truncate", || {
                placed.pass();
                file.truncate(BLOCK).unwrap();
                truncated.store(true, Ordering::SeqCst);
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(file.read_all().unwrap(), [7; BLOCK as usize]);
        finish(&fs, file);
    });
}

#[test]
fn p09_places_around_4_gib_and_far_behind_are_what_they_are() {
    for block_log2 in [10, 11, 12, 16] {
        let fs = Fs::new(Options { block_log2, ..Options::default() });
        let file = fs.file();
        let places = [(1 << 32) - 1000, (1 << 32) + 5000, 1 << 44, (1 << 48) - 3, (1 << 62) - 700];
        for (number, at) in places.into_iter().enumerate() {
            file.write(at, &[number as u8 + 1; 2000]).unwrap();
        }
        for round in 0..2 {
            for (number, at) in places.into_iter().enumerate() {
                let mut wanted = vec![0; 10];
                wanted.extend([number as u8 + 1; 2000]);
                assert!(file.read(at - 10, 2010).unwrap() == wanted, "{at:#x} round {round}");
            }
            file.sync().unwrap();
            fs.cache.drop_clean();
        }
        assert_eq!(file.read(0, 5000).unwrap(), [0; 5000]);
        drop(file);
        fs.check_empty();
    }
}

#[test]
fn p10_a_pass_that_ends_early_leaves_no_block_without_its_data() {
    sizes(|options| {
        for nth in 1..10 {
            let fs = Fs::new(options);
            let file = fs.file();
            // In one folio if it may be: data and holes in turns, over written ones.
            for at in (0..16).step_by(2) {
                file.write(at * BLOCK, &[at as u8 + 1; BLOCK as usize]).unwrap();
            }
            fs.faults.place.after(nth);
            let failed = file.sync().is_err();
            let after = file.after_a_crash();
            assert!(!after.contains(&GARBAGE));
            let whole = file.read_all().unwrap();
            assert!(after == whole[..after.len()], "size went over what was not written");
            assert_eq!(failed, after.len() < whole.len());
            fs.faults.place.after(0);
            finish(&fs, file);
        }
    });
}

#[test]
fn p11_zeroing_sees_what_is_dirty_over_unwritten_blocks() {
    sizes(|options| {
        let (fs, file, mut wanted) = over_unwritten(options, &[2, 5]);
        let before = fs.cache.stats().device_writes;
        file.zero_range(2 * BLOCK + 100..5 * BLOCK + 100, true).unwrap();
        wanted[2 * BLOCK as usize + 100..5 * BLOCK as usize + 100].fill(0);
        assert_eq!(fs.cache.stats().device_writes, before, "without a flush");
        assert!(file.read_all().unwrap() == wanted);
        finish(&fs, file);
    });
}

/// The next publication opens the gate, and goes on when somebody waits for a block that is under
/// writeback; nobody may get past it before that, which would set the flag.
fn pause_until_somebody_waits(fs: &Arc<Fs>) -> (Arc<Gate>, Arc<AtomicBool>) {
    let (gate, cache) = (Gate::new(), Arc::clone(&fs.cache));
    let passed = Arc::new(AtomicBool::new(false));
    let (opened, seen) = (Arc::clone(&gate), Arc::clone(&passed));
    let before = cache.stats().writeback_waits;
    fs.hooks.once(Point::Publish, move || {
        opened.open();
        while cache.stats().writeback_waits == before {
            assert!(!seen.load(Ordering::SeqCst), "nobody waited for what is under writeback");
            std::thread::yield_now();
        }
    });
    (gate, passed)
}

#[test]
fn p11_zeroing_waits_for_a_block_under_writeback_and_asks_again() {
    sizes(|options| {
        let (fs, file, mut wanted) = over_unwritten(options, &[5]);
        let (written, zeroed) = pause_until_somebody_waits(&fs);
        threads::scope(|s| {
            s.spawn("flush", || file.sync().unwrap()).unwrap();
            s.spawn("zero", || {
                written.pass();
                file.zero_in_cache(5 * BLOCK + 10..5 * BLOCK + 20).unwrap();
                zeroed.store(true, Ordering::SeqCst);
            })
            .unwrap();
        })
        .unwrap();
        wanted[5 * BLOCK as usize + 10..5 * BLOCK as usize + 20].fill(0);
        assert!(file.read_all().unwrap() == wanted);
        finish(&fs, file);
    });
}

#[test]
fn p05_what_is_under_writeback_is_not_written_to() {
    sizes(|options| {
        let (fs, file, mut wanted) = over_unwritten(options, &[5]);
        let (stored, written) = pause_until_somebody_waits(&fs);
        threads::scope(|s| {
            s.spawn("flush", || file.sync().unwrap()).unwrap();
            s.spawn("write", || {
                stored.pass();
                file.write(5 * BLOCK + 10, &[9; 10]).unwrap();
                written.store(true, Ordering::SeqCst);
            })
            .unwrap();
        })
        .unwrap();
        wanted[5 * BLOCK as usize + 10..5 * BLOCK as usize + 20].fill(9);
        assert!(file.read_all().unwrap() == wanted);
        finish(&fs, file);
    });
}

#[test]
fn p12_what_is_under_writeback_is_data() {
    sizes(|options| {
        let (fs, file, _) = over_unwritten(options, &[5]);
        let (other, seen) = (Arc::clone(&file), Arc::new(AtomicU64::new(0)));
        let found = Arc::clone(&seen);
        fs.hooks.once(Point::Publish, move || {
            let data = other.data.seek_data(&*other, 0).unwrap();
            found.store(data.unwrap_or(u64::MAX), Ordering::SeqCst);
        });
        file.write_back(0..u64::MAX >> 1).unwrap();
        assert_eq!(seen.load(Ordering::SeqCst) / BLOCK, 5);
        finish(&fs, file);
    });
}

/// Writes all back and empties the cache the next time that somebody has asked what is where.
fn write_out_when_asked(fs: &Arc<Fs>, file: &Arc<TestFile>) {
    let other = Arc::clone(file);
    fs.hooks.once(Point::Mapped, move || {
        other.write_back(0..u64::MAX >> 1).unwrap();
        other.data.cache().drop_clean();
    });
}

#[test]
fn p12_what_is_written_and_evicted_after_the_question_is_still_zeroed() {
    for first in [0, 100, 2 * BLOCK] {
        let options = Options { folio_max_log2: 12, ..Options::default() };
        let (fs, file, mut wanted) = over_unwritten(options, &[5, 9]);
        write_out_when_asked(&fs, &file);
        // Not whole blocks only, or they would be forgotten instead.
        file.zero_in_cache(first..12 * BLOCK).unwrap();
        wanted[first as usize..12 * BLOCK as usize].fill(0);
        assert!(!fs.hooks.is_set(Point::Mapped));
        assert!(file.read_all().unwrap() == wanted, "from {first}");
        finish(&fs, file);
    }
}

#[test]
fn p12_what_is_written_and_evicted_after_the_question_is_still_read() {
    let options = Options { folio_max_log2: 12, ..Options::default() };
    let (fs, file, wanted) = over_unwritten(options, &[5, 9]);
    write_out_when_asked(&fs, &file);
    assert!(file.read_all().unwrap() == wanted);
    assert!(!fs.hooks.is_set(Point::Mapped));
    finish(&fs, file);
}

#[test]
fn p12_what_is_written_and_evicted_after_the_question_is_still_data() {
    let options = Options { folio_max_log2: 12, ..Options::default() };
    let (fs, file, _) = over_unwritten(options, &[5]);
    write_out_when_asked(&fs, &file);
    assert_eq!(file.data.seek_data(&*file, 0).unwrap(), Some(5 * BLOCK));
    assert!(!fs.hooks.is_set(Point::Mapped));
    finish(&fs, file);
}

#[test]
fn p12_writeback_that_ends_beside_a_locked_folio_does_not_hide_its_data() {
    // One folio of 16 unwritten blocks: the sixth is dirty, the others are clean.
    let (fs, file, mut wanted) = over_unwritten(Options::default(), &[]);
    file.write(0, &[7; 16 * BLOCK as usize]).unwrap();
    file.zero_range(0..5 * BLOCK, true).unwrap();
    file.zero_range(6 * BLOCK..16 * BLOCK, true).unwrap();
    assert_eq!(file.data.folio_count(), 1);
    let (written, go_on, ended) = (Gate::new(), Gate::new(), Gate::new());
    let (opened, passed) = (Arc::clone(&written), Arc::clone(&go_on));
    fs.hooks.once(Point::Publish, move || {
        opened.open();
        passed.pass();
    });
    let (opened, passed) = (Arc::clone(&go_on), Arc::clone(&ended));
    threads::scope(|s| {
        s.spawn("flush", || {
            file.write_back(0..u64::MAX >> 1).unwrap();
            ended.open();
        })
        .unwrap();
        s.spawn("zero", || {
            written.pass();
            // Under the lock of the folio, after the answer was made.
            fs.hooks.once(Point::Mapped, move || {
                opened.open();
                passed.pass();
            });
            file.zero_in_cache(0..16 * BLOCK).unwrap();
        })
        .unwrap();
    })
    .unwrap();
    wanted.fill(0);
    assert!(!fs.hooks.is_set(Point::Mapped));
    assert!(file.read_all().unwrap() == wanted);
    finish(&fs, file);
}

/// A file of 2000 bytes whose only block has garbage behind them on the device, and 0x77 in the cache.
fn with_a_dirty_tail(options: Options) -> (Arc<Fs>, Arc<TestFile>) {
    let fs = Fs::new(options);
    let file = fs.file();
    file.write(0, &[0x77; 2000]).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let block = 1 << options.block_log2;
    let last = (2000 / block, 2000 % block);
    let Some(Stored::Written(at)) = file.stored(last.0) else { panic!("not written") };
    fs.device.poke(at * block + last.1, &vec![GARBAGE; (block - last.1) as usize]);
    (fs, file)
}

#[test]
fn p13_garbage_behind_the_end_never_becomes_contents() {
    sizes(|options| {
        for (cached, ahead) in [(false, false), (false, true), (true, false), (true, true)] {
            type Grow = fn(&TestFile) -> Result<(), Error>;
            let ways: [Grow; 4] = [
                |file| file.truncate(8192),
                |file| file.write(8191, &[0]).map(drop),
                |file| file.allocate(0..8192, false),
                |file| file.zero_range(3000..8192, false),
            ];
            for grow in ways {
                let (fs, file) = with_a_dirty_tail(Options { ahead, ..options });
                if cached {
                    file.read(0, 10).unwrap();
                }
                grow(&file).unwrap();
                let mut wanted = vec![0; 8192];
                wanted[..2000].fill(0x77);
                assert!(file.read_all().unwrap() == wanted);
                finish(&fs, file);
            }
        }
    });
}

#[test]
fn p14_the_stored_size_passes_the_old_tail_after_its_zeros() {
    sizes(|options| {
        for nth in 1..4 {
            let (fs, file) = with_a_dirty_tail(options);
            file.truncate(5000).unwrap();
            file.write(9000, &[0x77; 3000]).unwrap();
            fs.device.writes.after(nth);
            let _ = file.sync();
            let after = file.after_a_crash();
            assert!(!after.contains(&GARBAGE), "{options:?}: shown after write {nth} failed");
            fs.device.writes.after(0);
            finish(&fs, file);
        }
    });
}

#[test]
fn p16_the_stored_size_follows_the_data() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 5000]).unwrap();
        assert_eq!(file.stored_size(), 0);
        for point in [Point::Placed, Point::Written, Point::Publish] {
            let other = Arc::clone(&file);
            fs.hooks.once(point, move || assert_eq!(other.stored_size(), 0, "{point:?}"));
        }
        file.write_back(0..u64::MAX >> 1).unwrap();
        assert_eq!(file.stored_size(), 5000);
        finish(&fs, file);
    });
}

#[test]
fn p16_a_pass_over_a_part_behind_the_stored_size_takes_what_is_dirty_before_it_along() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 100 * BLOCK as usize]).unwrap();
        file.write_back(50 * BLOCK..60 * BLOCK).unwrap();
        let after = file.after_a_crash();
        assert!(after.iter().all(|byte| *byte == 7), "holes in front of the size");
        assert!(file.stored_size() >= 60 * BLOCK, "blocks with data behind the stored size");
        finish(&fs, file);
    });
}

#[test]
fn p17_padding_is_not_published() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 3000]).unwrap();
        let (written, appended) = pause_until_somebody_waits(&fs);
        let other = Arc::clone(&file);
        fs.hooks.once(Point::Published, move || {
            let after = other.after_a_crash();
            assert!(after.iter().all(|byte| *byte == 7), "zeros that nobody wrote");
        });
        threads::scope(|s| {
            s.spawn("flush", || file.write_back(0..u64::MAX >> 1).unwrap()).unwrap();
            s.spawn("append", || {
                written.pass();
                file.append(&[7; 3000]).unwrap();
                appended.store(true, Ordering::SeqCst);
            })
            .unwrap();
        })
        .unwrap();
        assert_eq!(file.read_all().unwrap(), [7; 6000]);
        finish(&fs, file);
    });
}

#[test]
fn p18_a_punched_tail_does_not_keep_the_size_back() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 10_000]).unwrap();
        file.punch(4096..10_000).unwrap();
        file.sync().unwrap();
        assert_eq!((file.size(), file.stored_size()), (10_000, 10_000));
        finish(&fs, file);
    });
}

#[test]
fn p19_ranges_behind_the_end_and_empty_ones_are_no_work() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write(0, &[7; 5000]).unwrap();
    let before = fs.cache.stats();
    for range in [5000..6000, 1 << 40..u64::MAX >> 1, 5000..u64::MAX, 100..100] {
        file.punch(range.clone()).unwrap();
        file.zero_range(range, true).unwrap();
    }
    #[expect(clippy::reversed_empty_ranges, reason = "that is the case")]
    file.punch(200..100).unwrap();
    let after = fs.cache.stats();
    assert_eq!((after.zero_calls, after.mappings), (before.zero_calls, before.mappings));
    file.punch(4999..u64::MAX).unwrap();
    assert_eq!(file.read(4998, 10).unwrap(), [7, 0]);
    finish(&fs, file);
}

#[test]
fn p21_truncated_down_and_up_shows_no_old_bytes_after_a_crash() {
    sizes(|options| {
        for nth in 1..5 {
            let fs = Fs::new(options);
            let file = fs.file();
            file.write(0, &[7; 8192]).unwrap();
            file.sync().unwrap();
            fs.device.writes.after(nth);
            let down = file.truncate(5000).is_ok();
            let up = down && file.truncate(8192).is_ok() && file.sync().is_ok();
            fs.device.writes.after(0);
            let after = file.after_a_crash();
            let old = after.iter().skip(5000).any(|byte| *byte == 7);
            assert!(!(down && old), "{options:?}: write {nth}, up {up}");
            finish(&fs, file);
        }
    });
}

#[test]
fn p24_what_a_large_folio_holds_before_a_removed_range_stays() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let mut wanted: Vec<u8> = (0..512 << 10).map(|at| (at >> 10) as u8 | 1).collect();
    file.write(0, &wanted).unwrap();
    // All from the middle of a folio on, dirty on both sides.
    file.truncate(300 << 10).unwrap();
    wanted.truncate(300 << 10);
    assert!(file.read_all().unwrap() == wanted);
    finish(&fs, file);
}

#[test]
fn p25_forgetting_a_range_keeps_the_dirty_blocks_at_its_edges() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 64 << 10]).unwrap();
        file.punch(1000..3 * BLOCK + 100).unwrap();
        let mut wanted = vec![7; 64 << 10];
        wanted[1000..3 * BLOCK as usize + 100].fill(0);
        finish(&fs, file.same(&wanted));
    });
}

#[test]
fn p26_what_was_punched_is_not_written_into_the_hole() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 64 << 10]).unwrap();
        file.punch(4 * BLOCK..8 * BLOCK).unwrap();
        file.sync().unwrap();
        for block in (4 * BLOCK) >> options.block_log2..(8 * BLOCK) >> options.block_log2 {
            assert_eq!(file.stored(block), None, "block {block}");
        }
        assert_eq!(fs.seen.nowhere.load(Ordering::Relaxed), 0);
        finish(&fs, file);
    });
}

#[test]
fn p28_nothing_is_listed_as_dirty_when_nothing_is() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.write(0, &[7; 64 << 10]).unwrap();
        file.punch(0..64 << 10).unwrap();
        assert!(!file.data.is_dirty(), "all that was dirty is gone");
        file.write(0, &[7; 64 << 10]).unwrap();
        file.truncate(0).unwrap();
        assert!(!file.data.is_dirty());
        let writes = fs.cache.stats().device_writes;
        file.sync().unwrap();
        assert_eq!(fs.cache.stats().device_writes, writes, "nothing is left to write");
        finish(&fs, file);
    });
}

#[test]
fn p29_a_promise_that_was_not_used_goes_back() {
    sizes(|options| {
        let fs = Fs::new(Options { ahead: false, ..options });
        let file = fs.file();
        file.write(64 << 10, &[7; 4096]).unwrap();
        // The answer to the next write is old at once, so its promise is not used.
        let other = Arc::clone(&file);
        fs.hooks.once(Point::Mapped, move || {
            other.write_back(0..u64::MAX >> 1).unwrap();
        });
        file.write(0, &[9; 10]).unwrap();
        assert!(fs.cache.stats().stale_mappings > 0);
        assert_eq!(fs.promised(), 1, "one block is dirty");
        file.punch(0..4096).unwrap();
        assert_eq!((fs.promised(), file.delayed()), (0, 0));
        finish(&fs, file);
    });
}

#[test]
fn p30_the_rest_of_an_unwritten_block_is_zeros() {
    sizes(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        file.allocate(0..64 << 10, false).unwrap();
        file.write(1500, &[7; 100]).unwrap();
        let mut wanted = vec![0; 64 << 10];
        wanted[1500..1600].fill(7);
        finish(&fs, file.same(&wanted));
    });
}
