//! Errors at each point: nothing is lost, each is counted once, and all is given back.

use extant_base::Prng;

use crate::model::content;
use crate::support::{Alloc, Error, Fault, Fs, Options, TestFile};

const SIZE: usize = 300_000;

fn both(test: impl Fn(Options)) {
    for alloc in [Alloc::Pinned, Alloc::Unwritten] {
        for block_log2 in [10, 12, 16] {
            test(Options { alloc, block_log2, run_max: 7, ..Options::default() });
        }
    }
}

/// Writes with holes between, so that a pass has many placements.
fn fill(file: &TestFile) -> Vec<u8> {
    let mut prng = Prng::new(7);
    let mut bytes = vec![0; SIZE];
    for at in (0..SIZE - 9000).step_by(50_000) {
        let part = content(&mut prng, 9000);
        assert_eq!(file.write(at as u64, &part).unwrap(), 9000);
        bytes[at..at + 9000].copy_from_slice(&part);
    }
    file.truncate(SIZE as u64).unwrap();
    bytes
}

fn fails_at_each_call(options: Options, fault: impl Fn(&Fs) -> &Fault) {
    let mut fired = 0;
    for nth in 1.. {
        let fs = Fs::new(options);
        let file = fs.file();
        let bytes = fill(&file);
        fault(&fs).after(nth);
        let before = (file.data.error_count(), fs.cache.stats().writeback_errors);
        let failed = file.sync().is_err();
        assert_eq!(failed, fault(&fs).failed() == 1, "{options:?} nth {nth}");
        let errors = u64::from(failed);
        let after = (before.0 + errors, before.1 + errors);
        assert_eq!((file.data.error_count(), fs.cache.stats().writeback_errors), after);
        fired += errors;
        assert_eq!(file.data.is_dirty(), failed, "what was not written stays dirty");
        fs.cache.drop_clean();
        assert_eq!(file.read_all().unwrap(), bytes, "{options:?} nth {nth}");
        // What is stored is what was written, or not there.
        let part = file.after_a_crash();
        let wrong = part.iter().zip(&bytes).position(|(got, wanted)| got != wanted && *got != 0);
        assert_eq!(wrong, None);
        file.sync().unwrap();
        fs.cache.drop_clean();
        assert_eq!((file.read_all().unwrap(), file.after_a_crash()), (bytes.clone(), bytes));
        drop(file);
        fs.check_empty();
        if !failed {
            break;
        }
    }
    assert!(fired > 0, "the fault never happened");
}

#[test]
fn a_failed_device_write_leaves_the_data_dirty_and_the_next_pass_writes_it() {
    both(|options| fails_at_each_call(options, |fs| &fs.device.writes));
}

#[test]
fn a_failed_placement_leaves_the_data_dirty_and_the_next_pass_writes_it() {
    both(|options| fails_at_each_call(options, |fs| &fs.faults.place));
}

#[test]
fn a_failed_publication_leaves_the_data_dirty_and_the_next_pass_writes_it() {
    both(|options| fails_at_each_call(options, |fs| &fs.faults.publish));
}

#[test]
fn a_failed_lookup_writes_exactly_what_was_answered() {
    both(|options| {
        for nth in 1..6 {
            let fs = Fs::new(Options { ahead: false, ..options });
            let file = fs.file();
            let first = vec![7; 10_000];
            file.write(0, &first).unwrap();
            file.sync().unwrap();
            fs.faults.map.after(nth);
            let done = file.write(5_000, &vec![9; SIZE]).unwrap_or(0);
            if fs.faults.map.failed() == 1 {
                assert!(done < SIZE);
            }
            fs.faults.map.after(0);
            let mut wanted = first;
            wanted.resize(10_000.max(5_000 + done), 0);
            wanted[5_000..5_000 + done].fill(9);
            if done == 0 {
                wanted.truncate(10_000);
            }
            assert_eq!(file.read_all().unwrap(), wanted, "{options:?} nth {nth}");
            file.trim();
            file.sync().unwrap();
            assert_eq!(fs.promised(), 0, "what was promised and not used went back");
            drop(file);
            fs.check_empty();
        }
    });
}

#[test]
fn a_failed_read_is_the_readers_error_and_nothing_is_kept_of_it() {
    both(|options| {
        let fs = Fs::new(options);
        let file = fs.file();
        let bytes = fill(&file);
        file.sync().unwrap();
        fs.cache.drop_clean();
        fs.device.reads.after(1);
        assert!(matches!(file.read(0, 5000), Err(Error::Device(_))));
        assert_eq!(file.read_all().unwrap(), bytes);
        fs.cache.drop_clean();
        // Read-ahead that nobody asked for fails nobody.
        fs.device.reads.after(2);
        assert_eq!(file.read(0, 100).unwrap(), bytes[..100]);
        fs.device.reads.after(0);
        assert_eq!(file.read_all().unwrap(), bytes);
        assert_eq!(file.data.error_count(), 0, "not an error of writeback");
        // A write of a part of a block that cannot be read changes nothing.
        fs.cache.drop_clean();
        fs.device.reads.after(1);
        assert!(matches!(file.write(50, b"new"), Err(Error::Device(_))));
        assert!(!file.data.is_dirty());
        assert_eq!(file.read_all().unwrap(), bytes);
        drop(file);
        fs.check_empty();
    });
}

#[test]
fn what_was_accepted_fits_when_the_device_is_full() {
    both(|options| {
        let fs = Fs::new(Options { device_bytes: 2 << 20, ..options });
        let files = [fs.file(), fs.file(), fs.file()];
        let mut wanted: Vec<Vec<u8>> = vec![Vec::new(); 3];
        let mut prng = Prng::new(3);
        let mut full = 0;
        for round in 0..600 {
            let which = prng.below(3) as usize;
            let part = content(&mut prng, 12_345);
            match files[which].append(&part) {
                Ok(done) => wanted[which].extend(&part[..done]),
                Err(Error::NoSpace) => full += 1,
                Err(error) => panic!("{error}"),
            }
            if round % 20 == 0 {
                files[which].sync().unwrap();
            }
            if full % 50 == 49 {
                files[which].trim();
            }
        }
        assert!(full > 0);
        for (file, wanted) in files.iter().zip(&wanted) {
            file.sync().unwrap();
            fs.cache.drop_clean();
            assert_eq!(file.read_all().unwrap(), *wanted);
            assert_eq!(file.after_a_crash(), *wanted);
            assert_eq!(file.data.error_count(), 0);
        }
        drop(files);
        fs.check_empty();
    });
}

#[test]
fn a_cache_full_of_dirty_data_that_cannot_be_written_says_so() {
    let fs = Fs::new(Options { cache_bytes: 1 << 20, ..Options::default() });
    let file = fs.file();
    let mut error = None;
    for at in (0..8u64 << 20).step_by(64 << 10) {
        fs.faults.place.after(1);
        if let Err(found) = file.write(at, &[3; 64 << 10]) {
            error = Some(found);
            break;
        }
    }
    assert!(matches!(error, Some(Error::Injected("place"))), "{error:?}");
    fs.faults.place.after(0);
    let size = file.size();
    assert_eq!(file.read_all().unwrap(), vec![3; size as usize]);
    // With nothing else in the cache, it goes on.
    file.write(size, &vec![4; 4 << 20]).unwrap();
    assert_eq!(file.read(size, 4 << 20).unwrap(), vec![4; 4 << 20]);
    drop(file);
    fs.check_empty();
}
