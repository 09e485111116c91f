//! What went wrong elsewhere with requests that do not wait, by the numbers of `docs/pitfalls.md`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::ring::{Completion, Op, Ring, Value};
use extant::{AlignedBuffer, Fallocate, Fs, FsError, Inode, SetAttributes, WaitReason, XattrMode};
use extant_base::Prng;
use extant_block::SharedDevice;
use extant_sync::threads;
use extant_testkit::{Ends, require};

use crate::support::{
    BLOCK, cold, drain, file, finish, made, mount, read, stall, stalling, submit, write,
};

fn one(ring: &Ring, inode: &Inode, op: Op) -> Completion {
    submit(ring, 1, inode, op).or_else(|| ring.wait()).unwrap()
}

/// A file system with some blocks left, and who has them.
fn nearly_full(fs: &Fs, blocks: u64) -> Inode {
    let filler = file(fs, "filler");
    while filler.append(&[3; BLOCK]).is_ok() {}
    filler.truncate(filler.metadata().size - blocks * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    filler
}

#[test]
fn p31_an_append_that_goes_on_with_a_worker_is_there_once() {
    let device = require!(made("16M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let log = file(&fs, "log");
    let filler = nearly_full(&fs, 24);
    let ring = fs.ring(4).unwrap();
    // Each begins somewhere else in a block, and one of them meets the end of the space.
    let mut wanted = Vec::new();
    for n in 0..40u8 {
        let line: Vec<u8> = (0..3000 + usize::from(n)).map(|at| (at as u8) ^ n).collect();
        let done = one(&ring, &log, Op::Append { bytes: line.clone() });
        let contents = fs.read("/log").unwrap();
        match done.result {
            Ok(at) => {
                assert_eq!(at, wanted.len() as u64);
                wanted.extend(&line);
                assert!(contents == wanted, "line {n}");
            }
            Err(_) => {
                // A part, once.
                assert!(
                    contents.starts_with(&wanted) && line.starts_with(&contents[wanted.len()..])
                );
                wanted = contents;
            }
        }
    }
    assert!(wanted.len() > 16 * BLOCK);
    drop((ring, log, filler));
    finish(fs, &device);
}

#[test]
fn p32_the_fast_path_is_taken() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let warm = file(&fs, "warm");
    let ring = fs.ring(1).unwrap();
    let mut random = Prng::new(32);
    for n in 0..2000u64 {
        let op = match n % 3 {
            0 => write(random.below(1 << 20), vec![n as u8; 1 + random.below(9000) as usize]),
            1 => Op::Append { bytes: vec![n as u8; 1 + random.below(9000) as usize] },
            _ => read(random.below(1 << 20), 4096),
        };
        one(&ring, &warm, op).result.unwrap();
        if n % 500 == 499 {
            // Times change with each write; that they are stored in between is no obstacle.
            warm.sync().unwrap();
        }
    }
    let stats = ring.stats();
    assert!(stats.inline * 1000 >= 2000 * 999, "{stats:?}");
    drop((ring, warm));
    finish(fs, &device);
}

#[test]
fn p33_a_direct_write_over_two_extents_is_issued_once() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    // Every second block of each is in another place.
    let (pieces, other) = (file(&fs, "pieces"), file(&fs, "other"));
    for block in 0..16 {
        for inode in [&pieces, &other] {
            inode.write_at(&[1; BLOCK], block * BLOCK as u64).unwrap();
            inode.sync().unwrap();
        }
    }
    pieces.fallocate(Fallocate::PunchHole, 4 * BLOCK as u64..5 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    fs.drop_cached();
    let ring = fs.ring(8).unwrap();
    let before = fs.io_stats().unwrap();
    let mut buffer = AlignedBuffer::zeroed(12 * BLOCK);
    buffer.iter_mut().zip(0..).for_each(|(byte, at): (_, usize)| *byte = (at / 99) as u8);
    let wanted = buffer.to_vec();
    // Over data, a hole and data again.
    let op = Op::WriteDirect { offset: 2 * BLOCK as u64, buffer, synced: false };
    let done = one(&ring, &pieces, op);
    assert_eq!(done.result.unwrap(), 12 * BLOCK as u64);
    assert!(matches!(done.value, Value::Direct(buffer) if *buffer == *wanted));
    // Not as a part of a batch that could end in the middle: as one call, which is alone because of the hole.
    assert_eq!(fs.io_stats().unwrap().direct_queued, before.direct_queued);
    let op = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(16 * BLOCK) };
    let Value::Direct(found) = one(&ring, &pieces, op).value else { panic!() };
    assert!(found[..2 * BLOCK] == [1; 2 * BLOCK] && found[14 * BLOCK..] == [1; 2 * BLOCK]);
    assert!(found[2 * BLOCK..14 * BLOCK] == wanted);
    drop((ring, pieces, other));
    finish(fs, &device);
}

#[test]
fn p34_a_write_does_not_overtake_one_that_was_punted() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let ring = fs.ring(8).unwrap();
    for round in 0..20 {
        let stored = cold(&fs, &format!("f{round}"), &[1; 2 * BLOCK]);
        let stall = stall(&device);
        assert!(submit(&ring, 1, &stored, write(10, "first ")).is_none());
        // A whole block needs nothing of the device.
        assert!(submit(&ring, 2, &stored, write(0, vec![2; BLOCK])).is_none());
        assert!(submit(&ring, 3, &stored, write(13, "last")).is_none());
        drop(stall);
        assert_eq!(drain(&ring), [(1, 6), (2, BLOCK as u64), (3, 4)]);
        let mut out = [0; 20];
        stored.read_at(&mut out, 0).unwrap();
        assert_eq!(&out[8..20], b"\x02\x02\x02\x02\x02last\x02\x02\x02");
    }
    drop(ring);
    finish(fs, &memory);
}

#[test]
fn p35_who_may_wait_is_never_refused() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let shared = cold(&fs, "shared", &[1; 64 * BLOCK]);
    let ends = AtomicBool::new(false);
    threads::scope(|s| {
        // Somebody changes the map, the cache and the size all the time.
        let disturb = || {
            let mut random = Prng::new(35);
            while !ends.load(Ordering::Acquire) {
                let at = random.below(64) * BLOCK as u64;
                match random.below(4) {
                    0 => shared.fallocate(Fallocate::PunchHole, at..at + BLOCK as u64).unwrap(),
                    1 => _ = fs.drop_cached(),
                    2 => shared.sync_data().unwrap(),
                    _ => shared.truncate(at + 1).unwrap(),
                }
            }
        };
        s.spawn("disturber", disturb).unwrap();
        let work = || {
            let _ends = Ends(&ends);
            let ring = fs.ring(16).unwrap();
            let mut random = Prng::new(53);
            for n in 0..1500 {
                let offset = random.below(64) * BLOCK as u64;
                let buffer = AlignedBuffer::zeroed(BLOCK);
                let op = match random.below(4) {
                    0 => read(offset, BLOCK),
                    1 => write(offset + random.below(100), vec![n as u8; 500]),
                    2 => Op::WriteDirect { offset, buffer, synced: random.one_in(8) },
                    _ => Op::ReadDirect { offset, buffer },
                };
                // An error of any kind would be a refusal that came through.
                one(&ring, &shared, op).result.unwrap();
            }
            ring.stats()
        };
        let stats = s.spawn("worker", work).unwrap().join().unwrap();
        assert!(stats.inline > 0 && stats.completed > 0, "{stats:?}");
    })
    .unwrap();
    drop(shared);
    finish(fs, &device);
}

#[test]
fn p36_set_id_bits_and_capabilities_go_with_the_first_write() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let ring = fs.ring(4).unwrap();
    for (n, through_ring) in [true, false].into_iter().enumerate() {
        let program = file(&fs, &format!("program{n}"));
        program.write_at(&[1; BLOCK], 0).unwrap();
        program.set_xattr("security.capability", [1; 20], XattrMode::Create).unwrap();
        program.set_attributes(&SetAttributes::new().permissions(0o6755)).unwrap();
        // What may not wait changes nothing, and does not go around it.
        let refused = program.try_write_at(b"x", 0).unwrap_err();
        assert_eq!(refused.reason, WaitReason::Privileges);
        assert_eq!(program.metadata().permissions, 0o6755);
        let op = if through_ring { write(0, "x") } else { Op::Append { bytes: b"x".to_vec() } };
        let done = one(&ring, &program, op);
        assert!(done.result.is_ok() && !done.is_inline);
        assert_eq!(program.metadata().permissions, 0o755);
        assert!(matches!(program.xattr("security.capability"), Err(FsError::NoAttribute { .. })));
        assert!(one(&ring, &program, write(0, "y")).is_inline);
    }
    drop(ring);
    finish(fs, &device);
}

#[test]
fn p37_direct_reads_leave_what_others_have_cached() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 16 * BLOCK]);
    let ring = fs.ring(4).unwrap();
    // Half of it is cached by somebody, a part of that dirty.
    let mut out = vec![0; 8 * BLOCK];
    stored.read_at(&mut out, 0).unwrap();
    stored.write_at(b"dirty", 10).unwrap();
    for _ in 0..3 {
        let op = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(16 * BLOCK) };
        let Value::Direct(found) = one(&ring, &stored, op).value else { panic!() };
        assert_eq!(&found[8..17], b"\x01\x01dirty\x01\x01");
        // It is there still, without a look at the device, and dirty.
        let mut out = vec![0; 8 * BLOCK];
        assert_eq!(stored.try_read_at(&mut out, 0).unwrap().unwrap(), 8 * BLOCK);
        assert_eq!(&out[8..17], b"\x01\x01dirty\x01\x01");
        assert!(fs.io_stats().unwrap().dirty_bytes > 0);
    }
    drop((ring, stored));
    finish(fs, &device);
}
