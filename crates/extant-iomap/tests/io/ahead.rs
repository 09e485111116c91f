//! What is fetched before a reader comes: how much, by whom, and that nobody else notices.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::Prng;
use extant_sync::{Clock, SystemClock, threads};

use crate::model::content;
use crate::support::{Fs, Gate, Options, Point, TestFile};

const LEN: usize = 8 << 20;
const PAGE: u64 = 4096;

fn options() -> Options {
    Options { cache_bytes: 64 << 20, ..Options::default() }
}

/// A file with contents, none of them cached.
fn stored(fs: &Arc<Fs>, len: usize) -> (Arc<TestFile>, Vec<u8>) {
    let file = fs.file();
    let bytes = content(&mut Prng::new(1), len);
    assert_eq!(file.write(0, &bytes).unwrap(), len);
    file.sync().unwrap();
    fs.cache.drop_clean();
    (file, bytes)
}

/// Reads `range` in calls of `step` bytes.
#[track_caller]
fn read(file: &TestFile, bytes: &[u8], range: std::ops::Range<usize>, step: usize) {
    for at in range.step_by(step) {
        let wanted = &bytes[at..bytes.len().min(at + step)];
        assert!(file.read(at as u64, step).unwrap() == wanted, "{step} bytes at {at}");
    }
}

/// Waits for what another thread does.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..100_000 {
        if is_so() {
            return;
        }
        SystemClock.sleep(std::time::Duration::from_micros(100));
    }
    panic!("{what} does not come to pass");
}

#[test]
fn a_reader_that_goes_on_reads_each_byte_once_with_a_thread_or_without() {
    for helper in [false, true] {
        for step in [512, 4096, 65_536, 1 << 20] {
            let fs = Fs::new(options());
            let (file, bytes) = stored(&fs, LEN);
            let before = fs.cache.stats();
            threads::scope(|s| {
                let (running, ended) = threads::channel::<()>(1);
                let (file, bytes) = (&file, &bytes);
                if helper {
                    s.spawn("ahead", move || {
                        while ended.try_recv().is_err_and(|error| !error.is_disconnected()) {
                            file.fetch_next();
                        }
                    })
                    .unwrap();
                }
                read(file, bytes, 0..LEN, step);
                drop(running);
            })
            .unwrap();
            let stats = fs.cache.stats();
            assert_eq!(stats.bytes_filled - before.bytes_filled, LEN as u64, "step {step}");
            // 64 KiB to 2 MiB in a file of 8 MiB: nine windows, each one or two reads.
            assert!(stats.device_reads - before.device_reads <= 20, "{stats:?}");
            assert!(fs.seen.asked.load(Ordering::Relaxed) > 0, "nobody asked for a thread");
        }
    }
}

#[test]
fn looking_at_bytes_in_place_reads_ahead_as_copying_them_does() {
    for step in [4096, 128 << 10, 1 << 20] {
        let fs = Fs::new(options());
        let (file, bytes) = stored(&fs, LEN);
        let before = fs.cache.stats();
        let mut at = 0;
        while at < LEN {
            at += file.look(at as u64, step, |parts| {
                let mut done = at;
                for part in parts {
                    assert!(part[..] == bytes[done..done + part.len()], "at {done}");
                    done += part.len();
                }
                done - at
            });
            while file.fetch_next() {}
        }
        let stats = fs.cache.stats();
        assert_eq!(stats.bytes_filled - before.bytes_filled, LEN as u64, "step {step}");
        assert!(stats.ahead_fetched > 0);
        assert!(stats.device_reads - before.device_reads <= 20, "{stats:?}");
    }
}

#[test]
fn windows_are_fetched_before_the_reader_comes_and_not_far() {
    let fs = Fs::new(options());
    let (file, bytes) = stored(&fs, LEN);
    assert!(!file.fetch_next(), "before anybody reads");
    read(&file, &bytes, 0..4096, 4096);
    assert!(!file.fetch_next(), "one read is no stream");
    read(&file, &bytes, 4096..128 << 10, 4096);
    let before = fs.cache.stats().bytes_filled;
    assert!(before <= 192 << 10, "{before} bytes for the reader itself");
    while file.fetch_next() {}
    let ahead = fs.cache.stats().bytes_filled - before;
    // Three or four windows of at most 256 KiB each.
    assert!((128 << 10..=1 << 20).contains(&ahead), "{ahead} bytes ahead");
    let fetched = fs.cache.stats().ahead_fetched;
    assert!((1..=4).contains(&fetched), "{fetched} windows");
    let reads = fs.cache.stats().device_reads;
    read(&file, &bytes, 128 << 10..256 << 10, 4096);
    assert_eq!(fs.cache.stats().device_reads, reads, "it was there");
    assert!(file.fetch_next(), "the reader has come nearer");
}

#[test]
fn who_jumps_about_gets_what_it_asked_for_and_nothing_ahead() {
    let fs = Fs::new(options());
    let (file, bytes) = stored(&fs, LEN);
    let mut prng = Prng::new(3);
    let before = fs.cache.stats().bytes_filled;
    let mut pages = std::collections::BTreeSet::new();
    for _ in 0..300 {
        // Every third page, so that nobody goes on by chance.
        let page = (1 + prng.below(LEN as u64 / PAGE / 3 - 1)) * 3;
        let at = (page * PAGE) as usize;
        read(&file, &bytes, at..at + 1, PAGE as usize);
        pages.insert(page);
        assert!(!file.fetch_next());
    }
    let filled = fs.cache.stats().bytes_filled - before;
    assert_eq!(filled, pages.len() as u64 * PAGE);
    assert_eq!(fs.seen.asked.load(Ordering::Relaxed), 0);
}

#[test]
fn a_reader_fetches_what_it_will_want_instead_of_waiting() {
    let fs = Fs::new(options());
    let (file, bytes) = stored(&fs, LEN);
    read(&file, &bytes, 0..256 << 10, 4096);
    let (inside, go_on) = (Gate::new(), Gate::new());
    let (opened, passed) = (Arc::clone(&inside), Arc::clone(&go_on));
    fs.hooks.once(Point::Read, move || {
        opened.open();
        passed.pass();
    });
    let before = fs.cache.stats();
    threads::scope(|s| {
        let (file, bytes, fs) = (&file, &bytes, &fs);
        s.spawn("ahead", move || while file.fetch_next() {}).unwrap();
        s.spawn("reader", move || {
            inside.pass();
            read(file, bytes, 256 << 10..LEN, 4096);
        })
        .unwrap();
        s.spawn("device", move || {
            until("a reader waits", || fs.cache.stats().fill_waits > before.fill_waits);
            // It came to wait with all that is wanted begun.
            assert!(fs.cache.stats().ahead_helped > before.ahead_helped);
            go_on.open();
        })
        .unwrap();
    })
    .unwrap();
    let filled = fs.cache.stats().bytes_filled;
    assert_eq!(filled, LEN as u64, "by whomever, once");
}

#[test]
fn an_error_ahead_is_nobodys_and_the_reader_tries_again() {
    for fails in 1..4 {
        let fs = Fs::new(options());
        let (file, bytes) = stored(&fs, LEN);
        read(&file, &bytes, 0..256 << 10, 4096);
        fs.device.reads.after(fails);
        while file.fetch_next() {}
        assert_eq!(fs.device.reads.failed(), 1);
        // The device works again.
        read(&file, &bytes, 0..LEN, 4096);

        // It does not: whoever asked for the bytes is told, the others are not.
        fs.cache.drop_clean();
        let (other, bytes) = stored(&fs, LEN);
        read(&other, &bytes, 0..64 << 10, 4096);
        fs.device.reads.after(1);
        assert!(other.read(64 << 10, 4096).is_err());
        read(&other, &bytes, 0..LEN, 4096);
    }
}

#[test]
fn the_pieces_of_a_file_that_lies_in_many_places_are_asked_for_together() {
    for (at_once, fails) in [(0, 0), (8, 0), (8, 40)] {
        let fs = Fs::new(options());
        let file = fs.file();
        let bytes = content(&mut Prng::new(1), 2 << 20);
        file.truncate(bytes.len() as u64).unwrap();
        // Pieces of four blocks, the last one first on the device.
        for (piece, part) in bytes.chunks(16 << 10).enumerate().rev() {
            file.write((piece * (16 << 10)) as u64, part).unwrap();
            file.sync().unwrap();
        }
        fs.cache.drop_clean();
        fs.device.at_once.store(at_once, Ordering::SeqCst);
        fs.device.reads.after(fails);
        for at in (0..256 << 10).step_by(64 << 10) {
            // What a reader needs itself is read before what follows, and does not fail.
            assert_eq!(file.read(at, 64 << 10).unwrap().len(), 64 << 10);
        }
        while file.fetch_next() {}
        assert_eq!(fs.device.reads.failed(), u64::from(fails > 0));
        let together = std::mem::take(&mut *fs.device.together.lock());
        let pieces: usize = together.iter().sum();
        match at_once {
            0 => assert_eq!(pieces, 0),
            _ if fails == 0 => assert!(pieces == 128 && together.len() <= 10, "{together:?}"),
            _ => assert!(together.len() <= 6 && together[5] == 32, "{together:?}"),
        }
        // The one that could not be read is read block by block, by whoever wants it, and costs the
        // others nothing.
        read(&file, &bytes, 0..2 << 20, 4096);
        let (stats, reads) = (fs.cache.stats(), if fails == 0 { 128 } else { 127 + 4 });
        assert_eq!((stats.bytes_filled, stats.device_reads), (2 << 20, reads), "{at_once}");
        drop(file);
        fs.check_empty();
    }
}

#[test]
fn a_small_cache_keeps_what_was_fetched_until_it_is_read_and_what_is_dirty() {
    for (cache_bytes, folio_max_log2) in [(2 << 20, 21), (4 << 20, 16), (1 << 20, 12)] {
        let fs = Fs::new(Options { cache_bytes, folio_max_log2, ..Options::default() });
        let (file, bytes) = stored(&fs, LEN);
        let other = fs.file();
        other.write(0, &[9; 200_000]).unwrap();
        let before = fs.cache.stats();
        for at in (0..LEN).step_by(32 << 10) {
            read(&file, &bytes, at..at + (32 << 10), 4096);
            while file.fetch_next() {}
        }
        let stats = fs.cache.stats();
        assert_eq!(stats.bytes_filled - before.bytes_filled, LEN as u64, "read twice: {stats:?}");
        assert_eq!(stats.device_writes, before.device_writes, "room was made by writing");
        assert!(other.data.is_dirty());
    }
}

#[test]
fn holes_cost_nothing_ahead() {
    let fs = Fs::new(options());
    let file = fs.file();
    let mut bytes = vec![0; LEN];
    for at in (0..LEN).step_by(256 << 10) {
        let part = content(&mut Prng::new(at as u64), 64 << 10);
        file.write(at as u64, &part).unwrap();
        bytes[at..at + part.len()].copy_from_slice(&part);
    }
    file.truncate(LEN as u64).unwrap();
    file.sync().unwrap();
    fs.cache.drop_clean();
    let before = fs.cache.stats();
    for at in (0..LEN).step_by(16 << 10) {
        read(&file, &bytes, at..at + (16 << 10), 16 << 10);
        while file.fetch_next() {}
    }
    let stats = fs.cache.stats();
    assert_eq!(stats.bytes_filled - before.bytes_filled, LEN as u64 / 4);
}
