//! Past the cache, beside others: writes that add blocks, give them their first data or move the end, with the
//! content lock shared.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use extant_base::Prng;
use extant_iomap::{Alone, DirectOptions, DirectOutcome, RangeLocks};
use extant_sync::threads::{scope, workers};

use crate::model::content;
use crate::support::{Alloc, Error, Fs, Options, Point, TestFile};

const BLOCK: usize = 4096;
const SECTOR: u64 = 512;

/// Writes with the lock shared, or not at all.
fn write(file: &TestFile, at: u64, bytes: &[u8]) -> Result<DirectOutcome, Error> {
    let how = DirectOptions { unit: SECTOR, durable: false };
    file.write_direct_beside(at, bytes, how)
}

#[track_caller]
fn write_all(file: &TestFile, at: u64, bytes: &[u8]) {
    let outcome = write(file, at, bytes).unwrap();
    let all = DirectOutcome::Done { written: bytes.len(), durable: false };
    assert_eq!(outcome, all, "{} bytes at {at}", bytes.len());
}

/// Does something in a thread of its own.
fn elsewhere<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    scope(|threads| threads.spawn("other", work).unwrap().join().unwrap()).unwrap()
}

fn finish(fs: &Arc<Fs>, file: Arc<TestFile>, wanted: &[u8]) {
    assert!(file.read_all().unwrap() == wanted);
    assert!(file.after_a_crash() == wanted, "data, map and size are on the device");
    fs.cache.drop_clean();
    assert!(file.read_all().unwrap() == wanted, "as it is stored");
    assert_eq!((fs.promised(), file.delayed()), (0, 0));
    drop(file);
    fs.check_empty();
}

fn kinds() -> impl Iterator<Item = Options> {
    [Alloc::Pinned, Alloc::Unwritten].into_iter().flat_map(|alloc| {
        [10, 12].map(|block_log2| Options { alloc, block_log2, ahead: false, ..Options::default() })
    })
}

#[test]
fn sectors_anywhere_are_what_was_written_and_zeros_between_them() {
    for (options, seed) in kinds().flat_map(|options| (0..30).map(move |seed| (options, seed))) {
        let fs = Fs::new(Options { run_max: 3, ..options });
        let file = fs.file();
        let mut wanted: Vec<u8> = Vec::new();
        let mut random = Prng::new(seed);
        // So few that some of each block is never written.
        for round in 0..8 {
            let at = random.below(200) * SECTOR;
            let sectors = 1 + random.below(20) as usize;
            let bytes = content(&mut random, sectors * SECTOR as usize);
            let end = at as usize + bytes.len();
            let is_inside_block = !wanted.len().is_multiple_of(1 << options.block_log2);
            if is_inside_block && at as usize > wanted.len() {
                // What is between the end and it in the last block has to become zeros.
                let outcome = write(&file, at, &bytes).unwrap();
                assert_eq!(outcome, DirectOutcome::Alone(Alone::Extends), "{seed}, {round}");
                continue;
            }
            write_all(&file, at, &bytes);
            wanted.resize(wanted.len().max(end), 0);
            wanted[at as usize..end].copy_from_slice(&bytes);
        }
        let stats = fs.cache.stats();
        assert_eq!((stats.folios_made, stats.bytes_copied), (0, 0));
        finish(&fs, file, &wanted);
    }
}

#[test]
fn four_writers_of_one_file_keep_what_each_has_written() {
    for options in kinds() {
        let fs = Fs::new(Options { run_max: 2, ..options });
        let file = fs.file();
        const SECTORS: u64 = 400;
        // Each has every fourth sector, so all blocks are written by several of them.
        workers("writer", 4, |number| {
            let mut random = Prng::new(number as u64);
            let mut own: Vec<u64> = (0..SECTORS).filter(|at| at % 4 == number as u64).collect();
            while !own.is_empty() {
                let at = own.swap_remove(random.below(own.len() as u64) as usize) * SECTOR;
                let bytes = [number as u8 + 1; SECTOR as usize];
                // The end may lie inside a block at the moment.
                if let DirectOutcome::Alone(_) = write(&file, at, &bytes).unwrap() {
                    own.push(at / SECTOR);
                }
            }
        })
        .unwrap();
        let wanted: Vec<u8> = (0..SECTORS as usize * SECTOR as usize)
            .map(|at| (at / SECTOR as usize % 4) as u8 + 1)
            .collect();
        finish(&fs, file, &wanted);
    }
}

#[test]
fn p41_nobody_sees_the_new_end_before_the_data_in_front_of_it() {
    for options in kinds() {
        let fs = Fs::new(options);
        let file = fs.file();
        write_all(&file, 0, &[1; BLOCK]);
        for point in [Point::Placed, Point::Publish] {
            let old = vec![1; file.size() as usize];
            let other = Arc::clone(&file);
            fs.hooks.once(point, move || {
                elsewhere(|| assert!(other.read_direct(0, 9 * BLOCK).unwrap() == old));
            });
            write_all(&file, file.size(), &[1; BLOCK]);
            assert!(!fs.hooks.is_set(point));
        }
        finish(&fs, file, &[1; 3 * BLOCK]);
    }
}

#[test]
fn zeros_that_a_reader_caches_of_a_hole_are_noticed() {
    // A page of several blocks: the reader caches the hole with the data in front of it.
    for options in kinds().filter(|options| options.block_log2 == 10) {
        let fs = Fs::new(options);
        let file = fs.file();
        write_all(&file, 0, &[5; 1024]);
        file.truncate(4096).unwrap();
        let mut wanted = vec![0; 4096];
        wanted[..1024].fill(5);
        let (other, old) = (Arc::clone(&file), wanted.clone());
        fs.hooks.once(Point::Publish, move || {
            elsewhere(|| assert!(other.read(0, 4096).unwrap() == old));
        });
        let outcome = write(&file, 1024, &[6; 1024]).unwrap();
        assert_eq!(outcome, DirectOutcome::Alone(Alone::Cached));
        file.write_direct(1024, &[6; 1024]).unwrap();
        wanted[1024..2048].fill(6);
        assert!(file.read_all().unwrap() == wanted);
        file.sync().unwrap();
        finish(&fs, file, &wanted);
    }
}

#[test]
fn writers_of_one_block_take_turns_and_others_pass() {
    for options in kinds() {
        let fs = Fs::new(options);
        let file = fs.file();
        file.truncate(8 * BLOCK as u64).unwrap();
        let other = Arc::clone(&file);
        let order = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&order);
        scope(|threads| {
            let file = &file;
            let order = &order;
            // Once its first block has a place, but no data.
            fs.hooks.once(Point::Placed, move || {
                elsewhere(|| {
                    write_all(&other, 4 * BLOCK as u64, &[7; BLOCK]);
                    other.held(|data| {
                        let mut ranges = RangeLocks::new();
                        assert!(!data.try_lock_range(SECTOR..2 * SECTOR, &mut ranges));
                        assert!(data.try_lock_range(BLOCK as u64..BLOCK as u64 + 1, &mut ranges));
                    });
                });
                seen.store(1, Ordering::SeqCst);
            });
            let first = threads.spawn("first", || write_all(file, 0, &[5; SECTOR as usize]));
            let first = first.unwrap();
            while order.load(Ordering::SeqCst) == 0 {
                std::thread::yield_now();
            }
            write_all(file, SECTOR, &[6; SECTOR as usize]);
            first.join().unwrap();
        })
        .unwrap();
        let mut wanted = vec![0; 8 * BLOCK];
        wanted[..SECTOR as usize].fill(5);
        wanted[SECTOR as usize..2 * SECTOR as usize].fill(6);
        wanted[4 * BLOCK..5 * BLOCK].fill(7);
        file.sync().unwrap();
        finish(&fs, file, &wanted);
    }
}

#[test]
fn what_the_file_system_refuses_is_taken_back_as_a_whole() {
    for options in kinds() {
        let bytes = content(&mut Prng::new(3), 8 * BLOCK);
        let fs = Fs::new(Options { run_max: 1, device_bytes: 1 << 20, ..options });
        let file = fs.file();
        // Space for some of it.
        let filler = fs.file();
        filler.allocate(0..(1 << 20) - 4 * BLOCK as u64, false).unwrap();
        let outcome = write(&file, 0, &bytes).unwrap();
        assert!(matches!(outcome, DirectOutcome::Alone(_)), "{outcome:?}");
        assert_eq!((file.size(), file.stored_size()), (0, 0));
        assert_eq!((fs.promised(), file.delayed()), (0, 0));
        // With the file alone: as much as there is space for.
        let written = file.write_direct(0, &bytes).unwrap();
        assert!(0 < written && written < bytes.len());
        drop(filler);
        finish(&fs, file, &bytes[..written]);
    }
}
