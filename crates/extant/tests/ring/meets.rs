//! Where direct operations of a ring meet what else happens to the file, the device and the ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use extant::ring::{Completion, Op, Request, Value};
use extant::{AlignedBuffer, Fallocate, Fs, FsError, Inode, MountOptions};
use extant_block::SharedDevice;
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::require;

use crate::runway::Runway;
use crate::support::{BLOCK, cold, file, finish, made, mount, submit, until, write};

fn store(offset: u64, bytes: &[u8]) -> Op {
    Op::WriteDirect { offset, buffer: AlignedBuffer::copy_of(bytes), synced: false }
}

fn fetch(offset: u64, len: usize) -> Op {
    Op::ReadDirect { offset, buffer: AlignedBuffer::zeroed(len) }
}

fn bytes_of(done: Completion) -> Vec<u8> {
    let len = done.result.unwrap() as usize;
    let Value::Direct(buffer) = done.value else { panic!("no buffer: {:?}", done.value) };
    buffer[..len].to_vec()
}

/// A file with data, a hole, space without data, data that is in memory only, and a tail.
fn varied(fs: &Fs) -> (Inode, Vec<u8>) {
    let mut wanted = vec![0; 12 * BLOCK + 700];
    let varied = cold(fs, "varied", &[]);
    for (block, byte) in [(0, 1), (1, 2), (4, 3), (9, 4)] {
        let part = block * BLOCK..(block + 1) * BLOCK;
        wanted[part.clone()].fill(byte);
        varied.write_at(&wanted[part], (block * BLOCK) as u64).unwrap();
    }
    let space = 6 * BLOCK as u64..8 * BLOCK as u64;
    varied.fallocate(Fallocate::Allocate { keep_size: true }, space).unwrap();
    wanted[12 * BLOCK..].fill(5);
    varied.write_at(&[5; 700], 12 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    fs.drop_cached();
    wanted[10 * BLOCK..11 * BLOCK].fill(6);
    varied.write_at(&[6; BLOCK], 10 * BLOCK as u64).unwrap();
    (varied, wanted)
}

#[test]
fn every_range_reads_the_same_through_a_ring_and_ends_where_the_file_does() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    let (varied, wanted) = varied(&fs);
    let ring = fs.ring(4).unwrap();
    for first in 0..14 {
        for blocks in 1..=14 {
            let at = (first * BLOCK).min(wanted.len());
            let end = ((first + blocks) * BLOCK).min(wanted.len());
            let op = fetch((first * BLOCK) as u64, blocks * BLOCK);
            assert!(submit(&ring, 1, &varied, op).is_none());
            let got = bytes_of(ring.wait().unwrap());
            assert!(got == wanted[at..end], "{blocks} blocks from {first}: {} bytes", got.len());
        }
    }
    assert!(ring.stats().lane > 0);
    drop((ring, varied));
    finish(fs, &memory);
}

#[test]
fn every_range_is_written_through_a_ring_whatever_is_there_before() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    let mut lane = 0;
    for first in 0..14 {
        for blocks in 1..=3 {
            let (varied, mut wanted) = varied(&fs);
            let ring = fs.ring(4).unwrap();
            let part = first * BLOCK..(first + blocks) * BLOCK;
            wanted.resize(wanted.len().max(part.end), 0);
            wanted[part.clone()].fill(9);
            assert!(submit(&ring, 1, &varied, store(part.start as u64, &wanted[part])).is_none());
            assert_eq!(ring.wait().unwrap().result.unwrap() as usize, blocks * BLOCK);
            lane += ring.stats().lane;
            for stored in [false, true] {
                if stored {
                    fs.sync().unwrap();
                    fs.drop_cached();
                }
                assert!(fs.read("/varied").unwrap() == wanted, "{blocks} from {first}, {stored}");
            }
            drop((ring, varied));
            fs.root().unwrap().unlink("varied").unwrap();
        }
    }
    // The four blocks of data alone, and the first two together.
    assert_eq!(lane, 5);
    finish(fs, &memory);
}

#[test]
fn a_full_disk_is_told_to_those_who_need_room_and_to_nobody_else() {
    let memory = require!(made("16M"));
    let fs = mount(Runway::new(&memory).device());
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    let holey = file(&fs, "holey");
    holey.truncate(64 << 20).unwrap();
    fs.sync().unwrap();
    let filler = file(&fs, "filler");
    let mut end = 0;
    let mut step: u64 = 4 << 20;
    while step >= BLOCK as u64 {
        match filler.fallocate(Fallocate::Allocate { keep_size: false }, end..end + step) {
            Ok(()) => end += step,
            Err(error) => {
                assert!(matches!(error, FsError::NoSpace { .. }), "{error}");
                end = filler.metadata().size;
                step /= 2;
            }
        }
    }
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(16).unwrap();
    for block in 0..8 {
        let place = block * BLOCK as u64;
        assert!(submit(&ring, block, &stored, store(place, &[2; BLOCK])).is_none());
        let far = (block * 2 + 1) * 1024 * BLOCK as u64;
        assert!(submit(&ring, 8 + block, &holey, store(far, &[3; 256 * BLOCK])).is_none());
    }
    let mut refused = 0;
    while let Some(done) = ring.wait() {
        match done.result {
            Ok(len) if done.tag < 8 => assert_eq!(len as usize, BLOCK),
            Err(FsError::NoSpace { .. }) if done.tag >= 8 => refused += 1,
            result => panic!("{}: {result:?}", done.tag),
        }
    }
    assert_eq!((refused, ring.stats().lane), (8, 8));
    fs.sync().unwrap();
    assert_eq!(fs.read("/stored").unwrap(), [2; 8 * BLOCK]);
    drop((ring, stored, holey, filler));
    finish(fs, &memory);
}

#[test]
fn what_the_device_has_is_not_cancelled_and_no_timeout_ends_it() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(8).unwrap();
    let stall = runway.stall();
    assert!(submit(&ring, 1, &stored, store(0, &[2; BLOCK])).is_none());
    let request = Request::new(2, &stored, store(BLOCK as u64, &[2; BLOCK]));
    assert!(ring.submit_request(request.timeout(Duration::from_millis(1))).unwrap().is_none());
    assert_eq!((ring.cancel(1), ring.cancel_all()), (0, 0));
    SystemClock.sleep(Duration::from_millis(20));
    assert!(ring.poll().is_none());
    drop(stall);
    for _ in 0..2 {
        assert_eq!(bytes_of(ring.wait().unwrap()), [2; BLOCK]);
    }
    assert_eq!((ring.stats().lane, ring.stats().cancelled), (2, 0));
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn two_handles_and_two_rings_are_one_file() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let one = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let other = fs.resolve("/stored").unwrap();
    one.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let (ring, beside) = (fs.ring(8).unwrap(), fs.ring(8).unwrap());
    threads::scope(|s| {
        let stall = runway.stall();
        assert!(submit(&ring, 1, &one, store(0, &[2; BLOCK])).is_none());
        assert!(submit(&beside, 2, &other, store(BLOCK as u64, &[3; BLOCK])).is_none());
        let shrinks = s.spawn("shrinks", || {
            // What both write goes, if only in part.
            other.truncate(BLOCK as u64 / 2).unwrap();
            runway.ended.load(Ordering::SeqCst)
        });
        until("it waits", || runway.waiters.load(Ordering::SeqCst) > 0);
        drop(stall);
        assert_eq!(shrinks.unwrap().join().unwrap(), 2, "it waits for both rings");
    })
    .unwrap();
    // Each result is with its own ring.
    assert_eq!((ring.wait().unwrap().tag, beside.wait().unwrap().tag), (1, 2));
    assert!(ring.wait().is_none() && beside.wait().is_none());
    assert!(fs.read("/stored").unwrap() == [2; BLOCK / 2]);
    drop((ring, beside, one, other));
    finish(fs, &memory);
}

#[test]
fn who_waits_for_one_file_may_end_the_last_use_of_another() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let removed = cold(&fs, "removed", &[1; 4 * BLOCK]);
    for file in [&stored, &removed] {
        file.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    }
    let ring = fs.ring(16).unwrap();
    let stall = runway.stall();
    for block in 0..4 {
        let place = block * BLOCK as u64;
        assert!(submit(&ring, block, &removed, store(place, &[2; BLOCK])).is_none());
        assert!(submit(&ring, block, &stored, store(place, &[2; BLOCK])).is_none());
    }
    fs.root().unwrap().unlink("removed").unwrap();
    drop(removed);
    let free = fs.statfs().unwrap().blocks_free;
    drop(stall);
    stored.truncate(0).unwrap();
    assert_eq!(std::iter::from_fn(|| ring.wait()).count(), 8);
    assert_eq!(ring.stats().lane, 8);
    fs.tick().unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.statfs().unwrap().blocks_free, free + 8);
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn results_of_the_lane_are_taken_while_a_worker_is_held_up() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let other = file(&fs, "other");
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(8).unwrap();
    let frozen = fs.freeze().unwrap();
    assert!(submit(&ring, 1, &other, write(0, [2; BLOCK])).is_none());
    let first = AtomicU64::new(0);
    threads::scope(|s| {
        // It waits for the worker, which waits for the thaw.
        let takes = s.spawn("takes", || {
            first.store(ring.wait().map_or(u64::MAX, |done| done.tag), Ordering::SeqCst);
        });
        SystemClock.sleep(Duration::from_millis(50));
        assert!(submit(&ring, 2, &stored, fetch(0, BLOCK)).is_none());
        let start = SystemClock.monotonic();
        while first.load(Ordering::SeqCst) == 0
            && SystemClock.monotonic() - start < Duration::from_secs(5)
        {
            SystemClock.sleep(Duration::from_millis(1));
        }
        frozen.thaw();
        takes.unwrap().join().unwrap();
    })
    .unwrap();
    assert_eq!(first.into_inner(), 2, "the read was done long before the thaw");
    assert_eq!(ring.wait().unwrap().tag, 1);
    drop((ring, stored, other));
    finish(fs, &memory);
}

#[test]
fn a_mount_for_reading_has_no_lane_and_reads_all_the_same() {
    let memory = require!(made("64M"));
    let fs = mount(Arc::clone(&memory) as SharedDevice);
    drop(cold(&fs, "stored", &[1; 4 * BLOCK]));
    fs.unmount().unwrap();
    let device = Runway::new(&memory).device();
    let fs = MountOptions::new().open_shared(device as SharedDevice).unwrap();
    let (ring, stored) = (fs.ring(8).unwrap(), fs.resolve("/stored").unwrap());
    assert!(ring.engine().is_none());
    assert!(submit(&ring, 1, &stored, fetch(BLOCK as u64, BLOCK)).is_none());
    assert_eq!(bytes_of(ring.wait().unwrap()), [1; BLOCK]);
    assert!(submit(&ring, 2, &stored, store(0, &[2; BLOCK])).is_none());
    assert!(matches!(ring.wait().unwrap().result, Err(FsError::ReadOnly)));
    assert_eq!(ring.stats().lane, 0);
}
