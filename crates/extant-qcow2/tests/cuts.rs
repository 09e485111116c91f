//! The power is cut at every write below an overlay: the image stays consistent, and what was flushed is
//! there.

mod support;

use std::sync::Arc;

use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_qcow2::Qcow2;
use support::{Done, MemoryStore, apply, check, empty_image};

const SIZE: u64 = 1 << 20;
const SECTOR: usize = 512;

/// What a sector of the disk may hold: one of these.
type Allowed = Vec<Vec<u8>>;

/// Disk states after each flush, and what was written since.
struct History {
    store: MemoryStore,
    start: Vec<u8>,
    below: SharedDevice,
    /// At each mark: the disk as flushed, and as it is in memory.
    flushed: Vec<Vec<u8>>,
    since: Vec<Vec<(usize, Vec<u8>)>>,
}

fn work(seed: u64, cluster_bits: u32) -> History {
    let mut prng = Prng::new(seed);
    let below = MemoryDevice::new(SIZE / 2);
    let bytes: Vec<u8> = (0..SIZE / 16).flat_map(|_| prng.next_u64().to_le_bytes()).collect();
    below.write_at(0, &bytes).unwrap();
    let below: SharedDevice = Arc::new(below);
    let start = empty_image(cluster_bits, SIZE, Some("base"));
    let store = MemoryStore::new(start.clone());
    let image = Qcow2::open(Box::new(store.clone()), "cut", Some(below.clone()), 1, false).unwrap();
    let mut model = vec![0; SIZE as usize];
    model[..bytes.len()].copy_from_slice(&bytes);
    let mut history = History {
        store: store.clone(),
        start,
        below,
        flushed: vec![model.clone()],
        since: vec![vec![]],
    };
    // A part of the disk, so that clusters are given back and used again; it reaches over the end of the base.
    let (first, sectors) = (SIZE / 2 - (96 << 10), (128 << 10) / SECTOR as u64);
    for _ in 0..60 {
        let at = first + prng.below(sectors) * SECTOR as u64;
        let len = ((1 + prng.below(24)) * SECTOR as u64).min(SIZE - at);
        let range = at as usize..(at + len) as usize;
        let zeros = vec![0; len as usize];
        match prng.below(8) {
            0 => {
                // First noted, then done: a cut may show any part of what was begun.
                history.since.last_mut().unwrap().push((at as usize, zeros));
                image.write_zeroes(at, len).unwrap();
                model[range].fill(0);
            }
            1 => {
                history.since.last_mut().unwrap().push((at as usize, zeros));
                image.discard(at, len).unwrap();
                image.read_at(at, &mut model[range]).unwrap();
            }
            2 | 3 => {
                image.flush().unwrap();
                store.mark(history.flushed.len() as u64);
                history.flushed.push(model.clone());
                history.since.push(vec![]);
            }
            _ => {
                let fill: Vec<u8> = (0..len).map(|_| prng.next_u64() as u8 | 1).collect();
                history.since.last_mut().unwrap().push((at as usize, fill.clone()));
                image.write_at(at, &fill).unwrap();
                model[range].copy_from_slice(&fill);
            }
        }
    }
    image.flush().unwrap();
    store.mark(history.flushed.len() as u64);
    history.flushed.push(model);
    history.since.push(vec![]);
    history
}

/// The file after a cut at `cut`: everything up to the last sync before it, and of what follows some,
/// whole or some of its sectors.
fn survivor(history: &History, log: &[Done], cut: usize, prng: &mut Prng) -> Vec<u8> {
    let mut bytes = history.start.clone();
    let synced = log[..cut].iter().rposition(|done| matches!(done, Done::Sync)).unwrap_or(0);
    for done in &log[..synced] {
        apply(&mut bytes, done);
    }
    let mut rest: Vec<&Done> = log[synced..cut].iter().collect();
    // Any order, as far as the device is concerned.
    for at in (1..rest.len()).rev() {
        let same = |a: &Done, b: &Done| match (a, b) {
            (Done::Write { offset: a, .. }, Done::Write { offset: b, .. }) => {
                a / 65536 == b / 65536
            }
            _ => true,
        };
        let other = prng.below(at as u64 + 1) as usize;
        if rest[other..=at].windows(2).all(|pair| !same(pair[0], pair[1])) {
            rest.swap(at, other);
        }
    }
    for done in rest {
        match (done, prng.below(3)) {
            (_, 0) => {}
            (Done::Write { offset, bytes: new }, 1) => {
                for (number, sector) in new.chunks(SECTOR).enumerate() {
                    if prng.below(2) == 0 {
                        let offset = offset + (number * SECTOR) as u64;
                        apply(&mut bytes, &Done::Write { offset, bytes: sector.to_vec() });
                    }
                }
            }
            (done, _) => apply(&mut bytes, done),
        }
    }
    bytes
}

fn prove(seed: u64, cluster_bits: u32, tries: u64) {
    let history = work(seed, cluster_bits);
    let log = history.store.log();
    let mut prng = Prng::new(seed ^ 0xc07);
    for cut in 0..=log.len() {
        let mark = log[..cut].iter().rev().find_map(|done| match done {
            Done::Mark(number) => Some(*number as usize),
            _ => None,
        });
        let mark = mark.unwrap_or(0);
        for _ in 0..tries {
            let bytes = survivor(&history, &log, cut, &mut prng);
            let what =
                || format!("seed {seed} clusters 2^{cluster_bits} cut {cut} of {}", log.len());
            check(&bytes).unwrap_or_else(|error| panic!("{}: {error}", what()));
            let store = MemoryStore::new(bytes);
            let below = Some(history.below.clone());
            let image = Qcow2::open(Box::new(store.clone()), "cut", below, 1, false).unwrap();
            let mut disk = vec![0; SIZE as usize];
            image.read_at(0, &mut disk).unwrap();
            let flushed = &history.flushed[mark];
            for (number, sector) in disk.chunks(SECTOR).enumerate() {
                let at = number * SECTOR;
                let kept = &flushed[at..at + SECTOR];
                let mut allowed: Allowed = vec![kept.to_vec()];
                for (start, new) in &history.since[mark] {
                    if *start <= at && at < start + new.len() {
                        allowed.push(new[at - start..][..SECTOR].to_vec());
                    }
                }
                assert!(allowed.iter().any(|one| one == sector), "{}: sector {number}", what());
            }
            // It goes on from there.
            image.write_at(prng.below(SIZE - 512), &[5; 512]).unwrap();
            image.flush().unwrap();
            drop(image);
            check(&store.bytes()).unwrap_or_else(|error| panic!("{} and on: {error}", what()));
        }
    }
}

#[test]
fn a_cut_at_any_write_leaves_what_was_flushed() {
    for seed in 0..6 {
        prove(seed, [9, 12, 16][seed as usize % 3], 1);
    }
}

/// An image with small clusters, and what is written to it: more than one block of counts counts.
fn with_blocks_of_counts(image: &[u8]) -> (MemoryStore, Qcow2, Vec<u8>) {
    let store = MemoryStore::new(image.to_vec());
    let open = Qcow2::open(Box::new(store.clone()), "counts", None, 1, false).unwrap();
    let bytes: Vec<u8> = (0..300u32 << 10).map(|at| (at / 512 % 251) as u8 + 1).collect();
    open.write_at(0, &bytes).unwrap();
    (store, open, bytes)
}

#[test]
fn of_what_is_not_synced_any_one_write_may_be_all_there_is() {
    let start = empty_image(9, SIZE, None);
    let (store, image, _) = with_blocks_of_counts(&start);
    image.flush().unwrap();
    let log = store.log();
    for (at, done) in log.iter().enumerate() {
        let synced = log[..at].iter().rposition(|done| matches!(done, Done::Sync)).unwrap_or(0);
        let mut bytes = start.clone();
        log[..synced].iter().for_each(|done| apply(&mut bytes, done));
        apply(&mut bytes, done);
        check(&bytes).unwrap_or_else(|error| panic!("after {synced}, {at} alone: {error}"));
    }
}

#[test]
fn a_write_that_failed_in_a_flush_is_made_by_the_next() {
    let start = empty_image(9, SIZE, None);
    for count in 0.. {
        let (store, image, bytes) = with_blocks_of_counts(&start);
        store.fail_write(Some(count));
        let flushed = image.flush();
        if store.fail_write(None) {
            assert!(count > 5, "{count} writes make a flush");
            break;
        }
        assert!(flushed.is_err(), "{count}");
        image.flush().unwrap();
        drop(image);
        check(&store.bytes()).unwrap_or_else(|error| panic!("{count}: {error}"));
        let again = Qcow2::open(Box::new(store), "counts", None, 1, true).unwrap();
        let mut found = vec![0; bytes.len()];
        again.read_at(0, &mut found).unwrap();
        assert!(found == bytes, "{count}");
    }
}

#[test]
#[ignore = "takes minutes"]
fn a_cut_at_any_write_leaves_what_was_flushed_many_times() {
    for seed in 100..300 {
        prove(seed, [9, 12, 14, 16][seed as usize % 4], 3);
    }
}
