//! Past the cache: what it costs, what it meets in the cache, and what is left after an error.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::Prng;
use extant_iomap::Alone;

use crate::model::content;
use crate::support::{Alloc, Error, Fault, Fs, Options, Point, TestFile};

const BLOCK: usize = 4096;

/// 16 blocks: 0..4 stored, 4..8 unwritten, 8..12 dirty, 12..16 nothing.
fn mixed(file: &TestFile) -> Vec<u8> {
    let mut bytes = vec![0; 16 * BLOCK];
    file.write(0, &[1; 4 * BLOCK]).unwrap();
    file.sync().unwrap();
    file.allocate(4 * BLOCK as u64..8 * BLOCK as u64, true).unwrap();
    file.write(8 * BLOCK as u64, &[2; 4 * BLOCK]).unwrap();
    file.truncate(16 * BLOCK as u64).unwrap();
    bytes[..4 * BLOCK].fill(1);
    bytes[8 * BLOCK..12 * BLOCK].fill(2);
    bytes
}

#[test]
fn whole_blocks_make_no_folio_and_are_on_the_device_at_once() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let bytes = content(&mut Prng::new(1), 64 * BLOCK);
    assert_eq!(file.write_direct(0, &bytes).unwrap(), bytes.len());
    assert_eq!(file.after_a_crash(), bytes, "data, map and stored size");
    assert_eq!(file.write_direct(8 * BLOCK as u64, &bytes[..4 * BLOCK]).unwrap(), 4 * BLOCK);
    assert_eq!(file.read_direct(8 * BLOCK as u64 + 100, 5000).unwrap(), bytes[100..5100]);
    let stats = fs.cache.stats();
    assert_eq!((stats.folios_made, stats.bytes_copied, stats.bytes_filled), (0, 0, 0));
    assert_eq!((stats.direct_writes, stats.direct_reads), (2, 1));
    assert_eq!(stats.bytes_written_direct, 68 * BLOCK as u64);
    assert_eq!(stats.bytes_read_direct, 5000);
    assert!(!file.data.is_dirty());
    drop(file);
    fs.check_empty();
}

#[test]
fn parts_of_blocks_go_through_the_cache_and_the_blocks_between_past_it() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let mut wanted = vec![3; 8 * BLOCK];
    file.write_direct(0, &wanted).unwrap();
    let bytes = content(&mut Prng::new(2), 4 * BLOCK);
    let before = fs.cache.stats();
    assert_eq!(file.write_direct(1000, &bytes).unwrap(), bytes.len());
    wanted[1000..1000 + bytes.len()].copy_from_slice(&bytes);
    let after = fs.cache.stats();
    assert_eq!(after.bytes_written_direct - before.bytes_written_direct, 3 * BLOCK as u64);
    assert_eq!(after.bytes_copied - before.bytes_copied, BLOCK as u64, "both ends");
    assert!(file.data.is_dirty());
    assert_eq!(file.read_all().unwrap(), wanted);
    file.sync().unwrap();
    assert_eq!(file.after_a_crash(), wanted);
    drop(file);
    fs.check_empty();
}

#[test]
fn what_is_dirty_before_an_append_is_stored_first() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write(100, &[4; 1000]).unwrap();
    let bytes = content(&mut Prng::new(3), 2 * BLOCK);
    file.write_direct(BLOCK as u64, &bytes).unwrap();
    let mut wanted = vec![0; 3 * BLOCK];
    wanted[100..1100].fill(4);
    wanted[BLOCK..].copy_from_slice(&bytes);
    assert_eq!(file.after_a_crash(), wanted, "nothing is missing in front of the stored size");
    drop(file);
    fs.check_empty();
}

#[test]
fn what_is_stored_one_way_is_seen_the_other_way() {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        for (from, to) in [(0, 16), (2, 6), (6, 10), (9, 11), (10, 14), (3, 13)] {
            let fs = Fs::new(Options { alloc, ..Options::default() });
            let file = fs.file();
            let mut wanted = mixed(&file);
            assert_eq!(file.read_all().unwrap(), wanted, "so it is in the cache");
            let bytes = content(&mut Prng::new(4), (to - from) * BLOCK);
            file.write_direct((from * BLOCK) as u64, &bytes).unwrap();
            wanted[from * BLOCK..to * BLOCK].copy_from_slice(&bytes);
            assert_eq!(file.read_direct(0, wanted.len()).unwrap(), wanted);
            assert_eq!(file.read_all().unwrap(), wanted);
            file.sync().unwrap();
            assert_eq!(file.after_a_crash(), wanted);
            drop(file);
            fs.check_empty();
        }
    }
}

#[test]
fn a_folio_that_a_reader_makes_during_an_overwrite_is_noticed() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write_direct(0, &[5; 4 * BLOCK]).unwrap();
    let other = Arc::clone(&file);
    fs.hooks.once(Point::Placed, move || {
        // The writer holds the content lock, shared, as a reader does.
        let mut out = [0; BLOCK];
        other.data.read(&*other, BLOCK as u64, &mut out).unwrap();
        assert_eq!(out, [5; BLOCK]);
    });
    let before = fs.cache.stats().direct_writes;
    file.write_direct(BLOCK as u64, &[6; BLOCK]).unwrap();
    assert!(!fs.hooks.is_set(Point::Placed));
    assert_eq!(fs.cache.stats().direct_writes - before, 2, "once more with the lock");
    assert_eq!(file.read(BLOCK as u64, BLOCK).unwrap(), [6; BLOCK]);
    drop(file);
    fs.check_empty();
}

#[test]
fn zeros_that_a_reader_keeps_while_unwritten_blocks_get_data_are_noticed() {
    let fs = Fs::new(Options { block_log2: 10, ..Options::default() });
    let file = fs.file();
    file.write_direct(0, &[5; 1024]).unwrap();
    file.allocate(1024..4096, true).unwrap();
    file.truncate(4096).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let other = Arc::clone(&file);
    // The data is there, the map does not say so yet.
    fs.hooks.once(Point::Publish, move || {
        let mut out = [9; 4096];
        other.data.read(&*other, 0, &mut out).unwrap();
        assert_eq!((out[1023], out[1024], out[4095]), (5, 0, 0));
    });
    let before = fs.cache.stats();
    file.write_direct(1024, &[6; 1024]).unwrap();
    assert!(!fs.hooks.is_set(Point::Publish));
    let mut wanted = vec![0; 4096];
    wanted[..1024].fill(5);
    wanted[1024..2048].fill(7);
    let stats = fs.cache.stats();
    assert_eq!(stats.direct_alone_cached - before.direct_alone_cached, 1);
    assert_eq!(file.read_direct(1024, 1024).unwrap(), [6; 1024]);
    fs.cache.drop_clean();
    file.data.read(&*file, 0, &mut [0; 1024]).unwrap();
    file.write_direct(1024, &[6; 1024]).unwrap();
    // A folio that has contents of other blocks only is in nobody's way.
    let before = fs.cache.stats();
    file.write_direct(1024, &[7; 1024]).unwrap();
    let stats = fs.cache.stats();
    assert_eq!(stats.direct_overwrites - before.direct_overwrites, 1);
    assert_eq!((file.read_all().unwrap(), file.after_a_crash()), (wanted.clone(), wanted));
    drop(file);
    fs.check_empty();
}

/// Lets each call that can fail do so, in a write over everything that a file can have.
fn fails_at_each_call(fault: impl Fn(&Fs) -> &Fault) {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        let mut fired = 0;
        for nth in 1.. {
            let fs = Fs::new(Options { alloc, run_max: 3, ..Options::default() });
            let file = fs.file();
            let mut wanted = mixed(&file);
            let bytes = content(&mut Prng::new(5), 14 * BLOCK);
            fault(&fs).after(nth);
            let written = match file.write_direct(2 * BLOCK as u64, &bytes) {
                Ok(written) => written,
                Err(Error::NoSpace) => panic!("there is space"),
                Err(_) => 0,
            };
            let failed = fault(&fs).failed() == 1;
            assert_eq!(written < bytes.len(), failed, "nth {nth}");
            fault(&fs).after(0);
            wanted[2 * BLOCK..2 * BLOCK + written].copy_from_slice(&bytes[..written]);
            let got = file.read_all().unwrap();
            // Blocks with data that were written over before the error may be new.
            for (at, (got, wanted)) in got.iter().zip(&wanted).enumerate() {
                let new = bytes.get(at.wrapping_sub(2 * BLOCK));
                assert!(
                    got == wanted || at < 4 * BLOCK && Some(got) == new,
                    "nth {nth}, byte {at}"
                );
            }
            let rest = &bytes[written..];
            file.write_direct((2 * BLOCK + written) as u64, rest).unwrap();
            wanted[2 * BLOCK..].copy_from_slice(&bytes);
            file.sync().unwrap();
            fs.cache.drop_clean();
            assert_eq!((file.read_all().unwrap(), file.after_a_crash()), (wanted.clone(), wanted));
            drop(file);
            fs.check_empty();
            fired += u32::from(failed);
            if !failed {
                break;
            }
        }
        assert!(fired > 0, "the fault never happened");
    }
}

#[test]
fn after_a_failed_device_write_everything_is_old_or_new_and_nothing_is_promised() {
    fails_at_each_call(|fs| &fs.device.writes);
}

#[test]
fn after_a_failed_question_everything_is_old_or_new_and_nothing_is_promised() {
    fails_at_each_call(|fs| &fs.faults.map);
}

#[test]
fn after_a_failed_placement_everything_is_old_or_new_and_nothing_is_promised() {
    fails_at_each_call(|fs| &fs.faults.place);
}

#[test]
fn after_a_failed_publication_everything_is_old_or_new_and_nothing_is_promised() {
    fails_at_each_call(|fs| &fs.faults.publish);
}

#[test]
fn what_a_failed_write_left_on_the_device_is_what_readers_see() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    file.write(0, &[1; 4 * BLOCK]).unwrap();
    file.sync().unwrap();
    assert_eq!(file.read_all().unwrap(), [1; 4 * BLOCK], "in the cache");
    fs.device.tears.store(true, Ordering::SeqCst);
    fs.device.writes.after(1);
    assert!(file.write_direct(0, &[7; 4 * BLOCK]).is_err());
    let shown = file.read_all().unwrap();
    assert_eq!(shown, [[7; 2 * BLOCK], [1; 2 * BLOCK]].concat());
    // Nobody saw what was gone after that.
    fs.cache.drop_clean();
    assert_eq!((file.read_all().unwrap(), file.after_a_crash()), (shown.clone(), shown));
    drop(file);
    fs.check_empty();
}

#[test]
fn what_was_reserved_for_a_write_that_failed_is_given_back() {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        for nth in 1..4 {
            let options = Options { alloc, run_max: 1, ahead: false, ..Options::default() };
            let fs = Fs::new(options);
            let file = fs.file();
            fs.device.writes.after(nth);
            let stored = file.write_direct(0, &[7; 4 * BLOCK]).unwrap_or(0);
            assert_eq!(stored as i64, (nth - 1) * BLOCK as i64);
            assert_eq!((fs.promised(), file.delayed()), (0, 0), "{alloc:?}, {nth}");
            assert_eq!(file.after_a_crash(), vec![7; stored]);
            drop(file);
            fs.check_empty();
        }
    }
}

#[test]
fn an_overwrite_that_has_to_be_alone_says_why() {
    let fs = Fs::new(Options { ahead: false, ..Options::default() });
    let file = fs.file();
    // Blocks 0..4 stored, 4..6 nothing, 6 unwritten, 7 nothing.
    file.write_direct(0, &[1; 4 * BLOCK]).unwrap();
    file.truncate(8 * BLOCK as u64).unwrap();
    file.allocate(6 * BLOCK as u64..7 * BLOCK as u64, true).unwrap();
    let ask = |range: std::ops::Range<usize>, unit: u64| {
        let range = range.start as u64..range.end as u64;
        file.held(|data| data.plan_overwrite(&*file, range, unit)).unwrap()
    };
    let alone = |range, unit| ask(range, unit).map(|plan| plan.parts().len());
    let block = BLOCK as u64;
    assert_eq!(alone(0..4 * BLOCK, block), Ok(1));
    assert_eq!(alone(512..1024, 512), Ok(1), "a device of smaller sectors");
    for range in [512..BLOCK, 0..BLOCK - 512, BLOCK..BLOCK] {
        assert_eq!(alone(range.clone(), block), Err(Alone::Parts), "{range:?}");
    }
    assert_eq!(alone(3 * BLOCK..5 * BLOCK, block), Err(Alone::Hole));
    assert_eq!(alone(6 * BLOCK..6 * BLOCK + 512, 512), Err(Alone::Parts), "of no data");
    assert_eq!(alone(7 * BLOCK..8 * BLOCK, block), Err(Alone::Hole), "up to the end");
    assert_eq!(alone(7 * BLOCK..9 * BLOCK, block), Err(Alone::Extends));
    file.write(BLOCK as u64, &[2; BLOCK]).unwrap();
    assert_eq!(alone(0..2 * BLOCK, block), Err(Alone::Cached));
    assert_eq!(alone(2 * BLOCK..4 * BLOCK, block), Ok(1));
}

#[test]
fn bytes_are_lent_if_all_of_them_are_cached_and_they_are_not_too_many() {
    let fs = Fs::new(Options::default());
    let file = fs.file();
    let quarter = fs.cache.options().bytes / 4;
    let bytes = content(&mut Prng::new(7), quarter as usize + 2 * BLOCK);
    file.write_direct(0, &bytes).unwrap();
    let lent = |range: std::ops::Range<u64>| {
        let join = |parts: &[std::io::IoSlice<'_>]| -> Vec<u8> {
            parts.iter().flat_map(|part| part.iter().copied()).collect()
        };
        file.held(|data| data.with_resident(range, join))
    };
    let block = BLOCK as u64;
    assert_eq!(lent(0..block), None, "past the cache");
    file.write(2 * block, &bytes[2 * BLOCK..3 * BLOCK]).unwrap();
    assert_eq!(lent(2 * block + 5..3 * block).as_deref(), Some(&bytes[2 * BLOCK + 5..3 * BLOCK]));
    assert_eq!((lent(block..3 * block), lent(2 * block..4 * block)), (None, None), "in part");
    assert_eq!(file.read_all().unwrap(), bytes);
    assert!(lent(7..quarter + 7).is_some_and(|lent| lent == bytes[7..quarter as usize + 7]));
    assert_eq!(lent(7..quarter + 8), None, "a reader has no right to all of the cache");
}
