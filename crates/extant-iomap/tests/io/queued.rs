//! Reads and writes past the cache that the caller gives to the device itself.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use extant_base::Prng;
use extant_iomap::{OverwritePart, Queued};

use crate::model::content;
use crate::support::{Fs, Options, Stored, TestFile};

const BLOCK: usize = 4096;

/// A file of four blocks, the last two of which are elsewhere on the device, and what is in it.
fn in_two_runs(fs: &Arc<Fs>) -> (Arc<TestFile>, Vec<u8>) {
    let (file, other) = (fs.file(), fs.file());
    let bytes = content(&mut Prng::new(11), 4 * BLOCK);
    file.write_direct(0, &bytes[..2 * BLOCK]).unwrap();
    other.write_direct(0, &[9; BLOCK]).unwrap();
    file.write_direct(2 * BLOCK as u64, &bytes[2 * BLOCK..]).unwrap();
    (file, bytes)
}

fn alone() -> Arc<Fs> {
    Fs::new(Options { ahead: false, ..Options::default() })
}

#[test]
fn the_places_of_what_is_stored_lead_to_its_bytes() {
    let fs = alone();
    let (file, bytes) = in_two_runs(&fs);
    for range in [0..4 * BLOCK, 100..4 * BLOCK - 50, 2 * BLOCK - 1..2 * BLOCK + 1] {
        let asked = range.start as u64..range.end as u64;
        let runs = file.held(|data| data.stored_at(&*file, asked.clone(), 2)).unwrap().unwrap();
        assert_eq!(runs.len(), 2, "{range:?}");
        let mut found = Vec::new();
        for (address, len) in &runs {
            let at = found.len();
            found.resize(at + *len as usize, 0);
            fs.device.peek(*address, &mut found[at..]);
        }
        assert_eq!(found, bytes[range.clone()], "{range:?}");
        assert_eq!(file.held(|data| data.stored_at(&*file, asked, 1)).unwrap(), None, "two runs");
        let before = fs.cache.stats();
        file.held(|data| data.count_read(&runs));
        let after = fs.cache.stats();
        assert_eq!(after.direct_reads - before.direct_reads, 2);
        assert_eq!(after.bytes_read_direct - before.bytes_read_direct, range.len() as u64);
    }
}

#[test]
fn what_is_cached_or_stored_nowhere_has_no_place_to_read_from() {
    let fs = alone();
    let (file, _) = in_two_runs(&fs);
    file.truncate(8 * BLOCK as u64).unwrap();
    file.allocate(6 * BLOCK as u64..7 * BLOCK as u64, true).unwrap();
    let ask = |blocks: std::ops::Range<usize>| {
        let range = (blocks.start * BLOCK) as u64..(blocks.end * BLOCK) as u64;
        file.held(|data| data.stored_at(&*file, range, 9)).unwrap()
    };
    assert!(ask(0..4).is_some());
    assert_eq!(ask(0..5), None, "a hole");
    assert_eq!(ask(6..7), None, "unwritten");
    file.write(BLOCK as u64, &[1]).unwrap();
    assert_eq!(ask(0..2), None, "dirty in the cache");
    assert!(ask(2..4).is_some());
}

#[test]
fn a_queued_write_that_a_reader_met_has_to_be_repeated() {
    let fs = alone();
    let (file, _) = in_two_runs(&fs);
    let range = 0..2 * BLOCK as u64;
    let plan = file.held(|data| data.plan_overwrite(&*file, range.clone(), BLOCK as u64));
    let plan = plan.unwrap().unwrap();
    assert_eq!(plan.parts().len(), 1);
    let counts = || {
        let stats = fs.cache.stats();
        (stats.direct_queued, stats.direct_overwrites, stats.direct_conversions)
    };
    let before = counts();
    assert!(file.held(|data| data.end_queued(range.clone(), Queued::Over)));
    assert!(file.held(|data| data.end_queued_now(range.clone(), Queued::First)));
    assert_eq!(counts(), (before.0 + 2, before.1 + 1, before.2 + 1));
    // A reader fetches the block while the write is under way: it may have the old bytes.
    file.read(BLOCK as u64, 1).unwrap();
    assert!(!file.held(|data| data.end_queued(range.clone(), Queued::Over)));
    assert!(!file.held(|data| data.end_queued_now(range.clone(), Queued::Over)));
    assert_eq!(counts(), (before.0 + 2, before.1 + 1, before.2 + 1));
    assert!(file.held(|data| data.end_queued(range, Queued::Read)), "reads may meet");
    let other = 2 * BLOCK as u64..4 * BLOCK as u64;
    assert!(file.held(|data| data.end_queued(other, Queued::Over)), "elsewhere");
}

#[test]
fn first_data_of_several_queued_writes_is_published_once_in_order() {
    let fs = alone();
    let file = fs.file();
    let size = 12 * BLOCK as u64;
    // The stored size is behind them all, as direct writes that extend are never queued.
    file.write_direct(size, &[1; BLOCK]).unwrap();
    file.allocate(0..size, true).unwrap();
    let bytes = content(&mut Prng::new(12), size as usize);
    let mut parts: Vec<OverwritePart> = Vec::new();
    // Out of order, one inside another, overlapping, next to one another, and one apart.
    for (from, to) in [(6, 8), (0, 4), (2, 6), (1, 2), (10, 12)] {
        let range = from * BLOCK as u64..to * BLOCK as u64;
        let plan = file.held(|data| data.plan_overwrite(&*file, range, BLOCK as u64));
        for part in plan.unwrap().unwrap().parts() {
            assert!(part.is_new);
            fs.device.poke(part.address, &bytes[part.offset as usize..][..part.len as usize]);
            parts.push(*part);
        }
    }
    let before = fs.seen.published.load(Ordering::Relaxed);
    file.held(|data| data.publish_queued(&*file, parts)).unwrap();
    assert_eq!(fs.seen.published.load(Ordering::Relaxed) - before, 2, "0..8 and 10..12");
    for block in 0..12 {
        let is_written = matches!(file.stored(block), Some(Stored::Written(_)));
        assert_eq!(is_written, !(8..10).contains(&block), "block {block}");
    }
    let mut wanted = bytes;
    wanted[8 * BLOCK..10 * BLOCK].fill(0);
    assert_eq!(file.read(0, size as usize).unwrap(), wanted);
}
