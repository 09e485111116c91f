//! Random work on an image, compared with plain memory; and the work of many threads at once.

mod support;

use std::sync::Arc;

use extant_base::Prng;
use extant_block::{BlockDevice, MemoryDevice, SharedDevice};
use extant_qcow2::Qcow2;
use support::{MemoryStore, check, empty_image};

const SIZE: u64 = 3 * 1024 * 1024 + 512;

fn base(prng: &mut Prng, size: u64) -> (SharedDevice, Vec<u8>) {
    let device = MemoryDevice::new(size);
    let bytes: Vec<u8> = (0..size / 8).flat_map(|_| prng.next_u64().to_le_bytes()).collect();
    device.write_at(0, &bytes).unwrap();
    (Arc::new(device), bytes)
}

fn open(store: &MemoryStore, below: Option<&SharedDevice>) -> Qcow2 {
    Qcow2::open(Box::new(store.clone()), "memory", below.cloned(), 1, false).unwrap()
}

#[test]
fn random_work_gives_what_memory_gives_and_counts_are_right() {
    for seed in 0..12 {
        let mut prng = Prng::new(seed);
        let cluster_bits = [9, 12, 16][seed as usize % 3];
        let below = (seed % 2 == 0).then(|| base(&mut prng, 2 * 1024 * 1024));
        let mut model = vec![0; SIZE as usize];
        if let Some((_, bytes)) = &below {
            model[..bytes.len()].copy_from_slice(bytes);
        }
        let device = below.as_ref().map(|(device, _)| device);
        let name = device.map(|_| "base");
        let store = MemoryStore::new(empty_image(cluster_bits, SIZE, name));
        let mut image = open(&store, device);
        for step in 0..400 {
            let at = prng.below(SIZE);
            let longest = [700, 9000, 300_000][prng.below(3) as usize];
            let len = (1 + prng.below(longest)).min(SIZE - at);
            let range = at as usize..(at + len) as usize;
            match prng.below(10) {
                0..=4 => {
                    let byte = prng.next_u64() as u8;
                    image.write_at(at, &vec![byte; len as usize]).unwrap();
                    model[range].fill(byte);
                }
                5 => {
                    image.write_zeroes(at, len).unwrap();
                    model[range].fill(0);
                }
                6 => {
                    image.discard(at, len).unwrap();
                    // Old bytes or zeros: whichever it is is so from now on.
                    let mut now = vec![0; len as usize];
                    image.read_at(at, &mut now).unwrap();
                    for (old, now) in model[range].iter_mut().zip(now) {
                        assert!(now == *old || now == 0, "seed {seed} step {step}");
                        *old = now;
                    }
                }
                7 => image.allocate(at, len).unwrap(),
                8 => image.flush().unwrap(),
                _ => {
                    let mut now = vec![1; len as usize];
                    image.read_at(at, &mut now).unwrap();
                    assert!(now == model[range], "seed {seed} step {step}: {len} bytes at {at}");
                }
            }
            if prng.below(60) == 0 {
                drop(image);
                assert_eq!(check(&store.bytes()), Ok(0), "seed {seed} step {step}");
                image = open(&store, device);
            }
        }
        let mut now = vec![1; SIZE as usize];
        image.read_at(0, &mut now).unwrap();
        assert!(now == model, "seed {seed}");
        drop(image);
        assert_eq!(check(&store.bytes()), Ok(0), "seed {seed}");
        let image = open(&store, device);
        image.read_at(0, &mut now).unwrap();
        assert!(now == model, "seed {seed} after opening again");
    }
}

#[test]
fn threads_beside_each_other_lose_nothing() {
    let store = MemoryStore::new(empty_image(12, 16 << 20, None));
    let image = open(&store, None);
    // Each thread has every fourth sector of 512 bytes: they share clusters.
    extant_sync::threads::scope(|scope| {
        for thread in 0..4u64 {
            let image = &image;
            scope
                .spawn("writer", move || {
                    let mut prng = Prng::new(thread);
                    for _ in 0..400 {
                        let sector = prng.below(8192) * 4 + thread;
                        image.write_at(sector * 512, &[thread as u8 + 1; 512]).unwrap();
                        match prng.below(20) {
                            0 => image.flush().unwrap(),
                            1 => {
                                let mut now = [0; 512];
                                image.read_at(sector * 512, &mut now).unwrap();
                                assert_eq!(now, [thread as u8 + 1; 512]);
                            }
                            _ => {}
                        }
                    }
                })
                .unwrap();
        }
    })
    .unwrap();
    for thread in 0..4u64 {
        let mut prng = Prng::new(thread);
        for _ in 0..400 {
            let sector = prng.below(8192) * 4 + thread;
            let mut now = [0; 512];
            image.read_at(sector * 512, &mut now).unwrap();
            assert_eq!(now, [thread as u8 + 1; 512], "sector {sector}");
            prng.below(20);
        }
    }
    drop(image);
    assert_eq!(check(&store.bytes()), Ok(0));
}

#[test]
fn a_full_disk_below_is_an_error_and_no_damage_and_passes() {
    let store = MemoryStore::new(empty_image(12, 4 << 20, None));
    let image = open(&store, None);
    image.write_at(0, &[1; 4096]).unwrap();
    image.flush().unwrap();
    store.limit(Some(64 * 1024));
    let mut failed = None;
    for at in 1..64u64 {
        if let Err(error) = image.write_at(at * 4096, &[2; 4096]) {
            assert!(error.is_full(), "{error}");
            failed = Some(at);
            break;
        }
    }
    let failed = failed.expect("there is room for 16 clusters");
    // What was accepted is kept, and a flush of it needs no more room.
    image.flush().unwrap();
    let mut now = [0; 4096];
    image.read_at((failed - 1) * 4096, &mut now).unwrap();
    assert_eq!(now, [2; 4096]);
    store.limit(None);
    image.write_at(failed * 4096, &[3; 4096]).unwrap();
    drop(image);
    assert_eq!(check(&store.bytes()), Ok(0));
}

#[test]
fn room_that_was_set_aside_is_there_when_the_disk_is_full() {
    let store = MemoryStore::new(empty_image(12, 64 << 20, None));
    let image = open(&store, None);
    image.allocate(8 << 20, 1 << 20).unwrap();
    store.limit(Some(store.bytes().len() as u64));
    image.write_at(8 << 20, &[7; 1 << 20]).unwrap();
    image.flush().unwrap();
    assert!(image.write_at(40 << 20, &[7; 4096]).unwrap_err().is_full());
}

#[test]
fn after_a_failed_sync_nothing_is_promised_any_more() {
    let store = MemoryStore::new(empty_image(12, 4 << 20, None));
    let image = open(&store, None);
    image.write_at(0, &[1; 4096]).unwrap();
    store.fail_syncs(true);
    image.flush().unwrap_err();
    store.fail_syncs(false);
    image.flush().unwrap_err();
    image.write_at(0, &[1; 4096]).unwrap_err();
    // What is there can still be read.
    image.read_at(0, &mut [0; 4096]).unwrap();
}

#[test]
fn a_base_is_never_written() {
    let mut prng = Prng::new(5);
    let (below, bytes) = base(&mut prng, 1 << 20);
    let store = MemoryStore::new(empty_image(12, 1 << 20, Some("base")));
    let image = open(&store, Some(&below));
    for at in (0..1 << 20).step_by(8192) {
        image.write_at(at, &[9; 100]).unwrap();
    }
    image.write_zeroes(0, 1 << 19).unwrap();
    image.discard(1 << 19, 1 << 19).unwrap();
    image.flush().unwrap();
    let mut now = vec![0; 1 << 20];
    below.read_at(0, &mut now).unwrap();
    assert!(now == bytes);
    // A discard does not let the base show through.
    image.read_at(0, &mut now).unwrap();
    assert!(now.iter().all(|byte| *byte == 0));
}
