use super::*;
use extant_sync::threads;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MIB: u64 = 1 << 20;

/// Both kinds of memory, as far as this system has them.
fn arenas(bytes: u64) -> Vec<Arena> {
    vec![Arena::new(bytes).unwrap(), Arena::anonymous(bytes).unwrap()]
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31) ^ (i >> 8) as u8 ^ seed).collect()
}

fn read(arena: &Arena, at: u64, len: usize) -> Vec<u8> {
    let mut out = vec![0xEE; len];
    arena.copy_out(at, &mut out);
    out
}

#[test]
fn sizes_are_rounded_up_to_chunks_and_addresses_are_aligned() {
    for (asked, got) in [(0, CHUNK), (1, CHUNK), (CHUNK, CHUNK), (CHUNK + 1, 2 * CHUNK)] {
        for arena in arenas(asked) {
            assert_eq!(arena.len(), got, "{asked}");
            assert_eq!(arena.region.base.addr().get() % CHUNK as usize, 0);
        }
    }
    for bytes in [u64::MAX, u64::MAX - CHUNK, i64::MAX as u64] {
        assert!(Arena::new(bytes).is_err(), "{bytes}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "no mappings")]
fn addresses_cost_no_memory() {
    // Far more than the machine has.
    let arena = Arena::new(1 << 40).unwrap();
    arena.copy_in((1 << 40) - 5, b"hello");
    assert_eq!(read(&arena, (1 << 40) - 6, 6), b"\0hello");
    if let Some(file) = &arena.memfd {
        assert!(rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512 <= 2 * CHUNK);
    }
}

#[test]
fn what_is_copied_in_comes_out() {
    for arena in arenas(4 * MIB) {
        assert_eq!(read(&arena, MIB, 100), [0; 100], "fresh memory is zero");
        let bytes = pattern(70_001, 1);
        // Over the border of two chunks, at an odd place.
        let at = CHUNK - 35_003;
        arena.copy_in(at, &bytes);
        assert_eq!(read(&arena, at, bytes.len()), bytes);
        assert_eq!(read(&arena, at - 1, 1), [0]);
        assert_eq!(read(&arena, at + 70_001, 1), [0]);

        arena.zero(at + 10, 60_000);
        let mut model = bytes.clone();
        model[10..60_010].fill(0);
        assert_eq!(arena.view(at, 70_001, <[u8]>::to_vec), model);

        arena.copy_within(at, at + 3, 65_000);
        model.copy_within(0..65_000, 3);
        assert_eq!(read(&arena, at, model.len()), model);

        let sum = arena.fill(at + 60_000, 1000, |bytes| {
            bytes.fill(9);
            bytes.len()
        });
        assert_eq!(sum, 1000);
        model[60_000..61_000].fill(9);
        assert_eq!(read(&arena, at, model.len()), model);

        let joined: Vec<u8> =
            arena.slices(&[(at, 5), (at + 59_990, 20), (0, 0), (0, 3)], |parts| {
                assert_eq!(parts.len(), 4);
                parts.iter().flat_map(|part| part.iter().copied()).collect()
            });
        assert_eq!(joined, [&model[..5], &model[59_990..60_010], &[0; 3]].concat());
    }
}

#[test]
fn nothing_outside_is_touched() {
    for arena in arenas(CHUNK) {
        let end = arena.len();
        // The borders themselves are inside.
        arena.copy_in(end, &[]);
        arena.zero(end, 0);
        arena.copy_in(end - 1, &[1]);
        let bad: [&dyn Fn(); 9] = [
            &|| arena.copy_in(end, &[1]),
            &|| arena.copy_in(end - 1, &[1, 2]),
            &|| arena.copy_out(end - 3, &mut [0; 4]),
            &|| arena.zero(1, u64::MAX),
            &|| arena.zero(u64::MAX, 1),
            &|| arena.copy_within(0, 1, end),
            &|| arena.view(0, end + 1, |_| ()),
            &|| arena.fill(end, 1, |_| ()),
            &|| arena.slices(&[(0, 1), (end, 1)], |_| ()),
        ];
        for (i, case) in bad.iter().enumerate() {
            assert!(catch_unwind(AssertUnwindSafe(case)).is_err(), "case {i}");
        }
        assert!(catch_unwind(AssertUnwindSafe(|| arena.release(1))).is_err());
        arena.prepare(1);
        assert_eq!(arena.prepared(), Prepared { collapsed: 0, failures: 0 });
    }
}

#[test]
fn preparing_keeps_the_bytes_and_releasing_drops_them() {
    for arena in arenas(6 * MIB) {
        let bytes = pattern(3000, 2);
        arena.copy_in(CHUNK + 5000, &bytes);
        arena.copy_in(2 * CHUNK - 3000, &bytes);
        arena.prepare(1);
        arena.prepare(1);
        let prepared = arena.prepared();
        assert_eq!(prepared.collapsed + prepared.failures, 1, "the second call does nothing");
        assert_eq!(read(&arena, CHUNK + 5000, 3000), bytes);
        assert_eq!(read(&arena, 2 * CHUNK - 3000, 3000), bytes);
        arena.copy_in(CHUNK - 1, &[7]);
        arena.copy_in(2 * CHUNK, &[7]);

        arena.release(1).unwrap();
        assert!(arena.view(CHUNK, CHUNK, |bytes| bytes.iter().all(|b| *b == 0)));
        assert_eq!((read(&arena, CHUNK - 1, 1), read(&arena, 2 * CHUNK, 1)), (vec![7], vec![7]));
        arena.prepare(1);
        let prepared = arena.prepared();
        assert_eq!(prepared.collapsed + prepared.failures, 2, "a released chunk is empty again");
        arena.copy_in(CHUNK, &bytes);
        assert_eq!(read(&arena, CHUNK, 3001), [&bytes[..], &[0]].concat());
    }
}

#[test]
#[cfg_attr(miri, ignore = "no mappings")]
fn released_memory_goes_back_to_the_system() {
    let arena = Arena::new(8 * MIB).unwrap();
    let Some(file) = &arena.memfd else { return };
    let used = || rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
    for chunk in 0..4 {
        arena.prepare(chunk);
        arena.fill(u64::from(chunk) * CHUNK, CHUNK, |bytes| bytes.fill(1));
    }
    assert_eq!(used(), 8 * MIB);
    arena.release(1).unwrap();
    arena.release(3).unwrap();
    assert_eq!(used(), 4 * MIB);
}

#[test]
#[cfg_attr(miri, ignore = "no mappings")]
fn a_map_shows_its_pieces_one_behind_the_other_and_both_ways() {
    let arena = Arena::new(8 * MIB).unwrap();
    if !arena.is_shared() {
        return;
    }
    for (at, byte) in [(0, 1), (4096, 2), (3 * MIB, 3), (8 * MIB - 4096, 4)] {
        arena.fill(at, 4096, |bytes| bytes.fill(byte));
    }
    let pieces = [(8 * MIB - 4096, 4096), (3 * MIB, 8192), (0, 8192), (3 * MIB, 4096)];
    let map = arena.map_range(&pieces).unwrap();
    assert_eq!(map.len(), 6 * 4096);
    assert!(!map.as_ptr().is_null());
    let mut all = vec![0; 6 * 4096];
    map.read(0, &mut all);
    let firsts: Vec<u8> = all.chunks(4096).map(|page| page[4095]).collect();
    assert_eq!(firsts, [4, 3, 0, 1, 2, 3]);

    map.write(4095, &[8, 9]);
    assert_eq!(read(&arena, 8 * MIB - 1, 1), [8]);
    assert_eq!(read(&arena, 3 * MIB, 2), [9, 3]);
    arena.copy_in(3 * MIB + 1, &[10]);
    let mut two = [0; 2];
    map.read(5 * 4096, &mut two);
    assert_eq!(two, [9, 10], "a piece that is there twice is one memory");

    // It stays when the arena goes, and after another map of the same has gone.
    drop(arena.map_range(&pieces).unwrap());
    drop(arena);
    map.read(5 * 4096, &mut two);
    assert_eq!(two, [9, 10]);
    assert!(catch_unwind(AssertUnwindSafe(|| map.write(6 * 4096, &[0]))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| map.read(6 * 4096 - 1, &mut [0; 2]))).is_err());
}

#[test]
#[cfg_attr(miri, ignore = "no mappings")]
fn a_large_map_is_aligned_for_huge_pages() {
    let arena = Arena::new(8 * MIB).unwrap();
    if !arena.is_shared() {
        return;
    }
    let map = arena.map_range(&[(CHUNK, 2 * CHUNK)]).unwrap();
    assert_eq!(map.as_ptr().addr() % CHUNK as usize, 0);
    assert_eq!(map.len(), 2 * CHUNK);
}

#[test]
#[cfg_attr(miri, ignore = "no mappings")]
fn maps_of_nothing_or_of_parts_of_pages_are_refused() {
    let arena = Arena::new(CHUNK).unwrap();
    if !arena.is_shared() {
        return;
    }
    for pieces in [&[][..], &[(0, 0)], &[(1, 4096)], &[(0, 100)], &[(0, 4096), (4096, 1)]] {
        let error = arena.map_range(pieces).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{pieces:?}");
    }
    let outside = AssertUnwindSafe(|| arena.map_range(&[(CHUNK, 4096)]).is_ok());
    assert!(catch_unwind(outside).is_err());
    let error = Arena::anonymous(CHUNK).unwrap().map_range(&[(0, 4096)]).err().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::Unsupported);
}

#[test]
fn threads_may_use_different_bytes_at_once() {
    for arena in arenas(4 * MIB) {
        threads::workers("user", 4, |thread| {
            let thread = thread as u64;
            let bytes = pattern(100, thread as u8);
            for round in 0..if cfg!(miri) { 3 } else { 300 } {
                // Interleaved in one page, so neighbours are always somebody else's.
                let at = 100 * thread + 13 * 4096 * (round % 9);
                arena.copy_in(at, &bytes);
                if round % 7 == thread {
                    arena.prepare((thread % 2) as u32);
                }
                assert_eq!(arena.view(at, 100, <[u8]>::to_vec), bytes);
            }
        })
        .unwrap();
    }
}
