//! Damaged and made-up images: an error or other bytes, and never a panic or memory without end.

mod support;

use std::io;

use extant_base::Prng;
use extant_block::BlockDevice;
use extant_qcow2::{Qcow2, Qcow2Error};
use support::{MemoryStore, empty_image};

const SIZE: u64 = 2 << 20;

/// An image in use: clusters, zeros, freed clusters.
fn used() -> Vec<u8> {
    let store = MemoryStore::new(empty_image(12, SIZE, None));
    let image = Qcow2::open(Box::new(store.clone()), "used", None, 0, false).unwrap();
    for at in (0..SIZE).step_by(20_000) {
        image.write_at(at, &vec![at as u8; 5000.min((SIZE - at) as usize)]).unwrap();
    }
    image.write_zeroes(300_000, 100_000).unwrap();
    image.discard(600_000, 100_000).unwrap();
    drop(image);
    store.bytes()
}

fn try_everything(bytes: Vec<u8>, prng: &mut Prng) {
    for is_read_only in [true, false] {
        let store = Box::new(MemoryStore::new(bytes.clone()));
        let Ok(image) = Qcow2::open(store, "hostile", None, 0, is_read_only) else { continue };
        let _ = image.facts();
        let size = image.size_bytes().min(SIZE);
        for _ in 0..20 {
            let at = prng.below(size.max(1));
            let mut out = vec![0; prng.below(10_000).min(size - at) as usize];
            let _: Result<(), _> = image.read_at(at, &mut out);
            if !is_read_only {
                let _: Result<(), _> = image.write_at(at, &out);
                let _: Result<(), _> = image.discard(at, out.len() as u64);
                let _: Result<(), _> = image.write_zeroes(at, out.len() as u64 / 2);
                let _: Result<(), _> = image.allocate(at, out.len() as u64 / 2);
                let _: Result<(), _> = image.flush();
            }
        }
    }
}

fn mutate(rounds: u64, seed: u64) {
    let whole = used();
    let mut prng = Prng::new(seed);
    for _ in 0..rounds {
        let mut bytes = whole.clone();
        for _ in 0..=prng.below(4) {
            // Mostly where the header and the tables are.
            let reach = [112, 4 * 4096, bytes.len() as u64][prng.below(3) as usize];
            let at = prng.below(reach) as usize;
            let len = (1 << prng.below(4)).min(bytes.len() - at);
            let value = [0, u64::MAX, 1, prng.next_u64(), prng.below(1 << 22) & !511]
                [prng.below(5) as usize];
            bytes[at..at + len].copy_from_slice(&value.to_be_bytes()[8 - len..]);
        }
        if prng.below(8) == 0 {
            bytes.truncate(prng.below(bytes.len() as u64) as usize);
        }
        try_everything(bytes, &mut prng);
    }
}

#[test]
fn mutated_images_are_errors_or_other_bytes() {
    mutate(400, 1);
}

#[test]
#[ignore = "takes minutes"]
fn many_mutated_images_are_errors_or_other_bytes() {
    mutate(60_000, 2);
}

fn with(at: usize, value: &[u8]) -> Result<Qcow2, Qcow2Error> {
    let mut bytes = empty_image(12, SIZE, None);
    bytes[at..at + value.len()].copy_from_slice(value);
    Qcow2::open(Box::new(MemoryStore::new(bytes)), "image", None, 0, false)
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let table: [(usize, &[u8], &str); 11] = [
        (0, b"KDMV", "no qcow2 image"),
        (4, &[0, 0, 0, 9], "version 9"),
        (20, &[0, 0, 0, 30], "clusters of 2^30"),
        (24, &[0xff; 8], "a disk of 18446744073709551615 bytes"),
        (32, &[0, 0, 0, 2], "encrypted"),
        (36, &[0xff; 4], "entries of its first table"),
        (48, &[0, 0, 0, 0, 0, 0, 2, 1], "not at a cluster"),
        (56, &[0, 0, 0xff, 0], "reference counts"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 4], "external data file"),
        (72, &[0, 0, 0, 0, 0, 0, 0, 16], "subclusters"),
        (72, &[0x80, 0, 0, 0, 0, 0, 0, 0], "incompatible bits 0x8000000000000000"),
    ];
    for (at, value, wanted) in table {
        let error = with(at, value).unwrap_err().to_string();
        assert!(error.contains(wanted), "{wanted}: {error}");
    }
    for (bit, what) in [(1, "dirty"), (2, "corrupt")] {
        let error = with(79, &[bit]).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
    // A table that would take memory, in a file that is short.
    let mut bytes = empty_image(12, SIZE, None);
    bytes[24..32].copy_from_slice(&(1u64 << 40).to_be_bytes());
    bytes[36..40].copy_from_slice(&(4u32 << 20).to_be_bytes());
    let error = Qcow2::open(Box::new(MemoryStore::new(bytes)), "image", None, 0, true).unwrap_err();
    assert!(error.to_string().contains("tables end at byte"), "{error}");
}

#[test]
fn metadata_that_counts_as_unused_is_not_overwritten() {
    let mut bytes = used();
    // All counts of the first block but the header's are zero.
    bytes[2 * 4096 + 2..3 * 4096].fill(0);
    let image =
        Qcow2::open(Box::new(MemoryStore::new(bytes.clone())), "image", None, 0, false).unwrap();
    let error = image.write_at(10_000, &[1; 100]).map_err(io::Error::from);
    let error = error.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    drop(image);
}
