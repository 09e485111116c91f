//! Direct operations that the ring gives to the device without a worker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant::ring::{Completion, Op, Request, Ring, Value};
use extant::{AlignedBuffer, Fallocate, Fs, FsError, Inode, MountOptions};
use extant_base::Prng;
use extant_block::{FileDevice, SharedDevice};
use extant_sync::threads;
use extant_testkit::oracle::{e2fsck, mke2fs};
use extant_testkit::{require, tempdir};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::runway::Runway;
use crate::support::{BLOCK, cold, file, finish, made, mount, read, submit, until, write};

const MANY: u64 = 64;

fn filled(byte: u8, blocks: usize) -> AlignedBuffer {
    let mut buffer = AlignedBuffer::zeroed(blocks * BLOCK);
    buffer.fill(byte);
    buffer
}

fn overwrite(block: u64, byte: u8) -> Op {
    Op::WriteDirect { offset: block * BLOCK as u64, buffer: filled(byte, 1), synced: false }
}

fn fetch(block: u64) -> Op {
    Op::ReadDirect { offset: block * BLOCK as u64, buffer: AlignedBuffer::zeroed(BLOCK) }
}

fn bytes_of(done: Completion) -> AlignedBuffer {
    assert_eq!(done.result.unwrap(), BLOCK as u64);
    let Value::Direct(buffer) = done.value else { panic!("no buffer: {:?}", done.value) };
    buffer
}

/// Takes all results; their tags, in order.
fn tags(ring: &Ring) -> Vec<u64> {
    let done = std::iter::from_fn(|| ring.wait());
    let mut tags: Vec<u64> = done
        .map(|done| {
            assert!(done.result.is_ok(), "{done:?}");
            done.tag
        })
        .collect();
    tags.sort_unstable();
    tags
}

/// Contents as they are on the device and in memory.
fn contents(fs: &Fs, file: &Inode) -> Vec<u8> {
    fs.sync().unwrap();
    let read = || {
        let mut out = vec![0; file.metadata().size as usize];
        assert_eq!(file.read_at(&mut out, 0).unwrap(), out.len());
        out
    };
    let cached = read();
    fs.drop_cached();
    let stored = read();
    assert!(cached == stored);
    fs.drop_cached();
    stored
}

/// Reads and overwrites at full depth: no worker, no handle, no lock held alone.
fn pure(fs: &Fs) {
    let stored = cold(fs, "stored", &[1; 4 * MANY as usize * BLOCK]);
    let mut wanted = vec![1; 4 * MANY as usize * BLOCK];
    let ring = fs.ring(MANY as usize).unwrap();
    // The map is in memory once somebody has asked.
    assert_eq!(stored.read_direct_at(&mut [0; BLOCK], 0).unwrap(), BLOCK);
    let (io, handles) = (fs.io_stats().unwrap(), fs.writer_stats().unwrap().journal.handles);
    let mut random = Prng::new(1);
    let mut count = 0;
    for round in 0..20u8 {
        let mut under_way: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
        while under_way.len() < MANY as usize {
            let block = random.below(4 * MANY);
            if under_way.contains_key(&block) {
                continue;
            }
            let part = block as usize * BLOCK..(block as usize + 1) * BLOCK;
            let op = if random.one_in(2) {
                wanted[part.clone()].fill(round);
                overwrite(block, round)
            } else {
                fetch(block)
            };
            assert!(submit(&ring, block, &stored, op).is_none());
            under_way.insert(block, wanted[part].to_vec());
            count += 1;
        }
        assert!(ring.submit(0, &stored, fetch(0)).is_err(), "the ring is full");
        while let Some(done) = ring.wait() {
            let wanted = under_way.remove(&done.tag).expect("one of those, once");
            assert!(*bytes_of(done) == *wanted, "round {round}");
        }
        assert!(under_way.is_empty());
    }
    let stats = ring.stats();
    assert_eq!((stats.lane, stats.completed, stats.punted()), (count, 0, 0), "{stats:?}");
    let after = fs.io_stats().unwrap();
    assert_eq!(after.direct_queued - io.direct_queued, count, "{after:?}");
    let alone = [
        after.direct_alone_cached - io.direct_alone_cached,
        after.direct_alone_hole - io.direct_alone_hole,
        after.direct_alone_extends - io.direct_alone_extends,
        after.direct_alone_parts - io.direct_alone_parts,
    ];
    assert_eq!((alone, after.direct_conversions), ([0; 4], io.direct_conversions));
    assert_eq!(fs.writer_stats().unwrap().journal.handles, handles, "a handle for nothing");
    drop(ring);
    assert!(contents(fs, &stored) == wanted);
}

#[test]
fn reads_and_overwrites_at_full_depth_need_no_worker_no_handle_and_no_lock_alone() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    pure(&fs);
    finish(fs, &memory);
}

/// An image in a file, over the system's own queue.
fn on_file(test: impl FnOnce(&Fs)) -> Result<(), String> {
    let dir = tempdir().map_err(|error| error.to_string())?;
    let path = dir.path().join("image");
    mke2fs(&path, "64M", &["-t", "ext4", "-b", "4096"])?;
    let device = FileDevice::open_read_write(&path).map_err(|error| error.to_string())?;
    let fs = mount(Arc::new(device) as SharedDevice);
    if fs.ring(1).unwrap().engine().is_none() {
        return Err("the system has no io_uring".into());
    }
    test(&fs);
    fs.unmount().unwrap();
    // Nothing holds the lock of the file any more.
    drop(FileDevice::open_read_write(&path).unwrap());
    e2fsck(&path).unwrap().assert_clean();
    Ok(())
}

#[test]
fn the_same_by_the_queue_of_the_system() {
    require!(on_file(pure));
}

#[test]
fn without_such_a_queue_workers_do_it_and_the_counters_say_so() {
    let memory = require!(made("16M"));
    let fs = mount(Arc::clone(&memory) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(4).unwrap();
    assert!(ring.engine().is_none());
    for block in 0..4 {
        assert!(submit(&ring, block, &stored, overwrite(block, 2)).is_none());
    }
    assert_eq!(tags(&ring), [0, 1, 2, 3]);
    let stats = ring.stats();
    assert_eq!((stats.lane, stats.by_kind, stats.completed), (0, 4, 4), "{stats:?}");
    drop(ring);
    assert!(contents(&fs, &stored) == vec![2; 4 * BLOCK]);
    drop(stored);
    finish(fs, &memory);
}

#[test]
fn what_is_not_one_operation_on_data_goes_to_a_worker() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    let holey = file(&fs, "holey");
    holey.truncate(4 * BLOCK as u64).unwrap();
    holey.fallocate(Fallocate::Allocate { keep_size: true }, 0..BLOCK as u64).unwrap();
    let ring = fs.ring(8).unwrap();
    stored.read_at(&mut [0; 1], 7 * BLOCK as u64).unwrap();
    let at = |offset, len| Op::ReadDirect { offset, buffer: AlignedBuffer::zeroed(len) };
    let synced = Op::WriteDirect { offset: 0, buffer: filled(2, 1), synced: true };
    let ops = [
        (&stored, at(7 * BLOCK as u64, 2 * BLOCK)),
        (&stored, overwrite(8, 2)),
        (&stored, synced),
        (&stored, fetch(7)),
        (&stored, overwrite(7, 2)),
        (&holey, overwrite(0, 2)),
        (&holey, overwrite(2, 2)),
        (&holey, fetch(3)),
    ];
    for (tag, (inode, op)) in ops.into_iter().enumerate() {
        assert!(submit(&ring, tag as u64, inode, op).is_none());
        assert!(ring.wait().unwrap().result.is_ok(), "{tag}");
    }
    assert!(submit(&ring, 9, &stored, at(1, BLOCK)).is_none());
    assert!(matches!(ring.wait().unwrap().result, Err(FsError::Misaligned { .. })));
    let stats = ring.stats();
    assert_eq!((stats.lane, stats.by_kind, stats.completed), (0, 9, 9), "{stats:?}");
    drop((ring, stored, holey));
    finish(fs, &memory);
}

#[test]
fn truncating_and_punching_wait_for_what_is_under_way_and_drive_it() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    for punches in [false, true] {
        let stored = cold(&fs, &format!("stored{punches}"), &[1; 16 * BLOCK]);
        let shrink = || match punches {
            true => stored.fallocate(Fallocate::PunchHole, 0..16 * BLOCK as u64).unwrap(),
            false => stored.truncate(0).unwrap(),
        };
        let ring = fs.ring(32).unwrap();
        stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
        let before = runway.waiters.load(Ordering::SeqCst);
        threads::scope(|s| {
            let stall = runway.stall();
            for block in 0..16 {
                assert!(submit(&ring, block, &stored, overwrite(block, 7)).is_none());
            }
            assert_eq!(ring.stats().punted(), 0);
            let ended = runway.ended.load(Ordering::SeqCst);
            let other = s.spawn("shrinks", || {
                shrink();
                runway.ended.load(Ordering::SeqCst)
            });
            until("it waits for the device", || runway.waiters.load(Ordering::SeqCst) > before);
            assert_eq!(runway.ended.load(Ordering::SeqCst), ended);
            // An attempt does not wait, and reads need not.
            assert!(stored.try_write_at(&[1], 0).is_err());
            assert!(ring.poll().is_none());
            assert!(ring.wait_for(Duration::from_millis(2)).is_none());
            drop(stall);
            assert_eq!(other.unwrap().join().unwrap(), ended + 16, "blocks were freed too early");
        })
        .unwrap();
        assert_eq!(tags(&ring), Vec::from_iter(0..16));
        // The one that has submitted them waits for itself.
        stored.truncate(0).unwrap();
        stored.write_at(&[2; 16 * BLOCK], 0).unwrap();
        fs.sync().unwrap();
        fs.drop_cached();
        stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
        for block in 0..16 {
            assert!(submit(&ring, block, &stored, overwrite(block, 8)).is_none());
        }
        shrink();
        assert_eq!(tags(&ring), Vec::from_iter(0..16));
        assert_eq!((ring.stats().lane, ring.stats().completed), (32, 0));
        drop(ring);
        assert!(contents(&fs, &stored).iter().all(|byte| *byte == 0));
        drop(stored);
    }
    finish(fs, &memory);
}

#[test]
fn what_the_device_refuses_a_worker_repeats_and_its_error_counts() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(8).unwrap();
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    // Once only: nobody hears of it.
    runway.failures.store(2, Ordering::SeqCst);
    assert!(submit(&ring, 1, &stored, overwrite(1, 5)).is_none());
    assert!(submit(&ring, 2, &stored, fetch(0)).is_none());
    assert_eq!(tags(&ring), [1, 2]);
    let stats = ring.stats();
    assert_eq!((stats.lane, stats.lane_repeated, stats.completed), (0, 2, 2), "{stats:?}");
    // For good.
    runway.failures.store(2, Ordering::SeqCst);
    runway.is_broken.store(true, Ordering::SeqCst);
    assert!(submit(&ring, 3, &stored, overwrite(2, 6)).is_none());
    assert!(submit(&ring, 4, &stored, fetch(3)).is_none());
    for _ in 0..2 {
        let done = ring.wait().unwrap();
        assert!(matches!(done.result, Err(FsError::Device(_))), "{:?}", done.result);
        let Value::Direct(buffer) = done.value else { panic!("its memory is lost") };
        assert_eq!(buffer.len(), BLOCK);
    }
    runway.is_broken.store(false, Ordering::SeqCst);
    assert!(ring.wait().is_none());
    drop(ring);
    let got = contents(&fs, &stored);
    assert!(got[..BLOCK] == [1; BLOCK] && got[BLOCK..2 * BLOCK] == [5; BLOCK]);
    assert!(got[2 * BLOCK..] == [1; 2 * BLOCK]);
    drop(stored);
    finish(fs, &memory);
}

#[test]
fn a_reader_who_caches_the_old_bytes_meanwhile_sees_the_new_ones_afterwards() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(8).unwrap();
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let stall = runway.stall();
    for block in 0..2 {
        assert!(submit(&ring, block, &stored, overwrite(block, 9)).is_none());
    }
    // Readers share the file with them, and writers do not.
    assert!(stored.try_write_at(&[1; BLOCK], 3 * BLOCK as u64).is_err());
    let mut out = [0; BLOCK];
    assert_eq!(stored.read_at(&mut out, 0).unwrap(), BLOCK);
    assert_eq!(out, [1; BLOCK]);
    drop(stall);
    assert_eq!(tags(&ring), [0, 1]);
    assert!(ring.stats().lane_repeated >= 1, "{:?}", ring.stats());
    assert_eq!(stored.read_at(&mut out, 0).unwrap(), BLOCK);
    assert_eq!(out, [9; BLOCK]);
    drop(ring);
    let got = contents(&fs, &stored);
    assert!(got[..2 * BLOCK] == [9; 2 * BLOCK] && got[2 * BLOCK..] == [1; 2 * BLOCK]);
    drop(stored);
    finish(fs, &memory);
}

#[test]
fn a_ring_that_is_dropped_waits_for_the_device() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 16 * BLOCK]);
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(16).unwrap();
    threads::scope(|s| {
        let stall = runway.stall();
        for block in 0..16 {
            assert!(submit(&ring, block, &stored, overwrite(block, 3)).is_none());
        }
        runway.failures.store(3, Ordering::SeqCst);
        let other = s.spawn("drops", || drop(ring));
        until("it waits", || runway.waiters.load(Ordering::SeqCst) > 0);
        drop(stall);
        other.unwrap().join().unwrap();
    })
    .unwrap();
    assert_eq!(runway.ended.load(Ordering::SeqCst), 16);
    assert!(contents(&fs, &stored) == vec![3; 16 * BLOCK]);
    drop(stored);
    finish(fs, &memory);
}

#[test]
fn a_freeze_waits_for_overwrites_and_lets_none_depart() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 16 * BLOCK]);
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(16).unwrap();
    threads::scope(|s| {
        let stall = runway.stall();
        for block in 0..4 {
            assert!(submit(&ring, block, &stored, overwrite(block, 4)).is_none());
        }
        let other = s.spawn("freezes", || {
            let frozen = fs.freeze().unwrap();
            (frozen, runway.ended.load(Ordering::SeqCst))
        });
        until("it waits", || runway.waiters.load(Ordering::SeqCst) > 0);
        drop(stall);
        let (frozen, ended) = other.unwrap().join().unwrap();
        assert_eq!(ended, 4);
        let before = ring.stats();
        assert!(submit(&ring, 4, &stored, overwrite(4, 4)).is_none());
        assert!(submit(&ring, 5, &stored, fetch(0)).is_none());
        assert_eq!(ring.stats().by_kind, before.by_kind + 1, "it waits for the thaw");
        let mut done: Vec<u64> = (0..5).map(|_| ring.wait().unwrap().tag).collect();
        done.sort_unstable();
        assert_eq!(done, [0, 1, 2, 3, 5]);
        assert!(ring.poll().is_none());
        frozen.thaw();
        assert_eq!(tags(&ring), [4]);
    })
    .unwrap();
    // The thread that has submitted them freezes.
    for block in 0..4 {
        assert!(submit(&ring, block, &stored, overwrite(block, 5)).is_none());
    }
    fs.freeze().unwrap().thaw();
    assert_eq!(tags(&ring), [0, 1, 2, 3]);
    assert_eq!(ring.stats().completed, 1);
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn changes_before_hold_the_lane_back_and_drains_wait_for_it() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let (stored, other) = (cold(&fs, "stored", &[1; 8 * BLOCK]), file(&fs, "other"));
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(16).unwrap();
    // Behind a change that waits for a thaw.
    let frozen = fs.freeze().unwrap();
    assert!(submit(&ring, 1, &stored, write(0, [2; BLOCK])).is_none());
    assert!(submit(&ring, 2, &stored, fetch(0)).is_none());
    assert_eq!((ring.stats().behind, ring.stats().lane), (1, 0));
    frozen.thaw();
    let first = ring.wait().unwrap();
    assert_eq!(first.tag, 1);
    assert!(*bytes_of(ring.wait().unwrap()) == [2; BLOCK]);
    // In front of a drain, which another file's operation could else overtake, at once or later.
    let stall = runway.stall();
    assert!(submit(&ring, 3, &stored, overwrite(5, 3)).is_none());
    runway.failures.store(1, Ordering::SeqCst);
    let drain = Request::new(4, &other, write(0, [9; 10])).drain();
    assert!(ring.submit_request(drain).unwrap().is_none());
    assert!(submit(&ring, 5, &stored, fetch(5)).is_none());
    until("the drain waits", || runway.waiters.load(Ordering::SeqCst) > 0);
    assert_eq!(other.metadata().size, 0);
    drop(stall);
    let order: Vec<u64> = (0..3).map(|_| ring.wait().unwrap().tag).collect();
    assert_eq!(order, [3, 4, 5], "results come in the order of what was done");
    assert_eq!(ring.stats().lane_repeated, 1);
    drop((ring, stored, other));
    finish(fs, &memory);
}

#[test]
fn the_descriptor_tells_of_the_lane_and_waiting_has_an_end() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(16).unwrap();
    let stall = runway.stall();
    for block in 0..3 {
        assert!(submit(&ring, block, &stored, overwrite(block, 3)).is_none());
    }
    let fd = ring.event_fd().unwrap();
    let readable = |time: i64| {
        let time = Timespec { tv_sec: time, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&time)).unwrap() == 1
    };
    assert!(ring.poll().is_none());
    assert!(ring.wait_for(Duration::from_millis(3)).is_none());
    // A worker's result comes past the ones that stall.
    assert!(submit(&ring, 9, &stored, Op::SyncData).is_none());
    assert_eq!(ring.wait().unwrap().tag, 9);
    while ring.poll().is_some() {}
    assert!(!readable(0));
    drop(stall);
    assert!(readable(30));
    let mut seen = Vec::new();
    while seen.len() < 3 {
        assert!(readable(30), "{seen:?}");
        seen.extend(std::iter::from_fn(|| ring.poll()).map(|done| done.tag));
    }
    assert_eq!(seen, [0, 1, 2]);
    assert!(!readable(0) && ring.wait().is_none());
    drop((ring, stored));
    finish(fs, &memory);
}

/// Buffered, direct and mapped on one file, by one who knows what must be there, and others who take his results.
fn mixed(fs: &Fs, seed: u64) {
    const BLOCKS: u64 = 32;
    let stored = cold(fs, &format!("mixed{seed}"), &[0; BLOCKS as usize * BLOCK]);
    let ring = fs.ring(16).unwrap();
    let mut random = Prng::new(seed);
    let mut wanted = vec![0u8; BLOCKS as usize * BLOCK];
    let mut under_way = Vec::new();
    let mut punted = 0;
    let all = || while ring.wait().is_some_and(|done| done.result.is_ok()) {};
    for step in 0..400u64 {
        let byte = step as u8;
        let block = random.below(BLOCKS);
        let part = block as usize * BLOCK..(block as usize + 1) * BLOCK;
        let kind = random.below(16);
        // Nothing orders direct writes among each other, those that workers have, or those that a reader gets ahead of.
        // Changes wait for those of the lane.
        let is_ordered = matches!(kind, 6..=9 | 13) && ring.stats().punted() == punted;
        if (under_way.contains(&block) && !is_ordered) || (kind == 12 && !under_way.is_empty()) {
            all();
            under_way.clear();
            punted = ring.stats().punted();
        }
        match kind {
            0..=5 => {
                wanted[part].fill(byte);
                assert!(submit(&ring, step, &stored, overwrite(block, byte)).is_none());
                under_way.push(block);
                if random.one_in(2) {
                    continue;
                }
            }
            6 | 7 => {
                wanted[part].fill(byte);
                _ = submit(&ring, step, &stored, write(block * BLOCK as u64, [byte; BLOCK]));
            }
            8 => {
                wanted[part].fill(byte);
                stored.write_at(&[byte; BLOCK], block * BLOCK as u64).unwrap();
            }
            9 => {
                let at = block * BLOCK as u64;
                let map = stored.map_shared(at..at + BLOCK as u64, true).unwrap();
                wanted[part].fill(byte);
                map.write(0, &[byte; BLOCK]).unwrap();
            }
            10 => fs.sync().unwrap(),
            11 => _ = fs.drop_cached(),
            12 => {
                let mut out = vec![0; BLOCK];
                stored.read_at(&mut out, block * BLOCK as u64).unwrap();
            }
            13 if random.one_in(4) => {
                wanted[part].fill(0);
                let at = block * BLOCK as u64;
                stored.fallocate(Fallocate::PunchHole, at..at + BLOCK as u64).unwrap();
            }
            _ => {
                assert!(submit(&ring, step, &stored, fetch(block)).is_none());
            }
        }
        all();
        under_way.clear();
        punted = ring.stats().punted();
        assert!(ring.wait().is_none(), "an operation failed");
        let mut out = vec![0; BLOCK];
        let look = random.below(BLOCKS) as usize * BLOCK;
        match random.one_in(2) {
            true => stored.read_at(&mut out, look as u64).unwrap(),
            false => stored.read_direct_at(&mut out, look as u64).unwrap(),
        };
        assert!(out == wanted[look..look + BLOCK], "seed {seed}, step {step}, byte {look}");
    }
    while let Some(done) = ring.wait() {
        done.result.unwrap();
    }
    let stats = ring.stats();
    assert!(stats.lane > 0 && stats.completed > 0, "{stats:?}");
    drop(ring);
    assert!(contents(fs, &stored) == wanted);
}

#[test]
fn buffered_direct_and_mapped_on_one_file_agree() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    (0..8).for_each(|seed| mixed(&fs, seed));
    finish(fs, &memory);
    require!(on_file(|fs| (0..4).for_each(|seed| mixed(fs, seed))));
}

/// Several threads share a ring over the system's queue while others change the file's size and freeze the mount.
#[test]
fn many_threads_on_one_ring_lose_nothing() {
    let dir = require!(tempdir().map_err(|error| error.to_string()));
    let path = dir.path().join("image");
    require!(mke2fs(&path, "64M", &["-t", "ext4", "-b", "4096"]).map(drop));
    let fs = MountOptions::new().read_only(false).open_path(&path).unwrap();
    let stored = cold(&fs, "stored", &[1; 64 * BLOCK]);
    let ring = fs.ring(16).unwrap();
    const EACH: u64 = 300;
    threads::workers("thread", 4, |thread| {
        let mut random = Prng::new(thread as u64);
        for step in 0..EACH {
            if thread == 3 {
                match random.below(16) {
                    0 => fs.freeze().unwrap().thaw(),
                    1 => stored.truncate(48 * BLOCK as u64).unwrap(),
                    2 => _ = stored.write_at(&[1; 64 * BLOCK], 0).unwrap(),
                    3 => fs.sync().unwrap(),
                    _ => _ = fs.drop_cached(),
                }
                continue;
            }
            let block = random.below(16) + 16 * thread as u64;
            let mut op = if random.one_in(2) { overwrite(block, 1) } else { fetch(block) };
            loop {
                match ring.submit(step, &stored, op) {
                    Ok(done) => break assert!(done.is_none()),
                    Err(busy) => op = busy.op,
                }
                match random.below(3) {
                    0 => _ = ring.poll().map(|done| done.result.unwrap()),
                    1 => _ = ring.wait().map(|done| done.result.unwrap()),
                    _ => {
                        let done = ring.wait_for(Duration::from_millis(1));
                        _ = done.map(|done| done.result.unwrap());
                    }
                }
            }
        }
    })
    .unwrap();
    while let Some(done) = ring.wait() {
        done.result.unwrap();
    }
    let stats = ring.stats();
    assert_eq!(stats.lane + stats.completed, 3 * EACH, "each once: {stats:?}");
    drop(ring);
    // Whatever came last, every byte is one that was written, or zero behind a former end.
    assert!(contents(&fs, &stored).iter().all(|byte| *byte <= 1));
    drop(stored);
    fs.unmount().unwrap();
    e2fsck(&path).unwrap().assert_clean();
}

#[test]
fn reads_of_files_that_were_removed_and_the_end_of_a_mount() {
    let memory = require!(made("64M"));
    let runway = Runway::new(&memory);
    let fs = mount(runway.device());
    let stored = cold(&fs, "stored", &[6; 4 * BLOCK]);
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    let ring = fs.ring(8).unwrap();
    let stall = runway.stall();
    for block in 0..4 {
        assert!(submit(&ring, block, &stored, fetch(block)).is_none());
    }
    // The last handle is the ring's.
    fs.root().unwrap().unlink("stored").unwrap();
    drop(stored);
    drop(stall);
    for _ in 0..4 {
        assert!(*bytes_of(ring.wait().unwrap()) == [6; BLOCK]);
    }
    let last = cold(&fs, "last", &[1; 4 * BLOCK]);
    last.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    for block in 0..4 {
        assert!(submit(&ring, block, &last, overwrite(block, 2)).is_none());
    }
    let ended = runway.ended.load(Ordering::SeqCst);
    fs.clone().unmount().unwrap();
    assert_eq!(runway.ended.load(Ordering::SeqCst), ended + 4);
    assert_eq!(tags(&ring), [0, 1, 2, 3]);
    assert!(submit(&ring, 9, &last, overwrite(0, 3)).is_none());
    assert!(ring.wait().unwrap().result.is_err(), "the mount has ended");
    assert_eq!(ring.stats().lane, 8);
    drop((ring, last, fs));
    let fs = mount(Arc::clone(&memory) as SharedDevice);
    assert_eq!(fs.read("/last").unwrap(), [2; 4 * BLOCK]);
    finish(fs, &memory);
}

#[test]
fn a_plain_read_goes_on_beside_the_lane() {
    let memory = require!(made("64M"));
    let fs = mount(Runway::new(&memory).device());
    let stored = cold(&fs, "stored", &[6; 4 * BLOCK]);
    let ring = fs.ring(8).unwrap();
    stored.read_direct_at(&mut [0; BLOCK], 0).unwrap();
    assert!(submit(&ring, 1, &stored, fetch(0)).is_none());
    assert!(submit(&ring, 2, &stored, read(3 * BLOCK as u64, 5)).is_none());
    assert_eq!(tags(&ring), [1, 2]);
    drop((ring, stored));
    finish(fs, &memory);
}
