//! Operations through a ring: done by the submitter when nothing has to be waited for, by a worker when something has,
//! in order, each once, whatever becomes of the ring.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant::ring::Op;
use extant::{Fallocate, FsError, Inode, MountOptions, WaitReason};
use extant_base::Prng;
use extant_block::SharedDevice;
use extant_sync::{Clock, SystemClock, threads};
use extant_testkit::require;

use crate::support::{
    BLOCK, cold, drain, file, finish, made, mount, read, stall, stalling, submit, until, write,
};

#[test]
fn nearly_every_small_write_is_done_by_the_thread_that_submits_it() {
    let device = require!(made("128M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let (dirty, prepared) = (file(&fs, "dirty"), file(&fs, "prepared"));
    const COUNT: u64 = 5000;
    let all = 0..COUNT * BLOCK as u64;
    prepared.fallocate(Fallocate::Allocate { keep_size: false }, all).unwrap();
    let ring = fs.ring(1).unwrap();
    let mut random = Prng::new(3);
    let mut buffer = vec![7; BLOCK];
    let mut run = |inode: &Inode, tag: u64, offset: u64| {
        let op = Op::Write { offset, bytes: std::mem::take(&mut buffer) };
        let done = submit(&ring, tag, inode, op).or_else(|| ring.wait()).unwrap();
        assert_eq!((done.tag, done.result.unwrap()), (tag, BLOCK as u64));
        buffer = done.buffer;
    };
    for inode in [&dirty, &prepared] {
        (0..COUNT).for_each(|at| run(inode, at, at * BLOCK as u64));
        (0..COUNT).for_each(|tag| run(inode, tag, random.below(COUNT) * BLOCK as u64));
    }
    let stats = ring.stats();
    assert_eq!(stats.inline + stats.completed, 4 * COUNT);
    assert!(stats.inline * 1000 >= 999 * 4 * COUNT, "{stats:?}");
    drop(ring);
    for name in ["/dirty", "/prepared"] {
        assert!(fs.read(name).unwrap() == vec![7; COUNT as usize * BLOCK], "{name}");
    }
    drop((dirty, prepared));
    finish(fs, &device);
}

#[test]
fn a_device_that_stalls_stops_no_submitter() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 16 * BLOCK]);
    let (warm, other) = (file(&fs, "warm"), file(&fs, "other"));
    warm.write_at(&[2; 4 * BLOCK], 0).unwrap();
    let ring = fs.ring(32).unwrap();
    let stall = stall(&device);
    let start = SystemClock.monotonic();
    // In debug builds each of these panics if it waits for anything at all.
    assert!(submit(&ring, 1, &stored, read(0, BLOCK)).is_none());
    assert!(submit(&ring, 2, &stored, write(5, "in part")).is_none());
    assert!(submit(&ring, 3, &warm, Op::Sync).is_none());
    until("the device is asked", || device.state.stalled.load(Ordering::Acquire) > 0);
    // Beside all that, what is in memory goes on.
    let mut inline = 0;
    while SystemClock.monotonic() - start < Duration::from_millis(500) {
        let tag = 100 + inline;
        let done = submit(&ring, tag, &other, write(tag * 8, *b"whatever"));
        inline += u64::from(done.is_some_and(|done| done.is_inline));
        assert!(ring.poll().is_none(), "nobody gets past the device");
    }
    assert!(inline > 100, "{inline}");
    // The second may have met the first, which holds the contents while it waits for the device.
    let stats = ring.stats();
    assert_eq!(stats.refused(WaitReason::Device) + stats.refused(WaitReason::Contents), 2);
    drop(stall);
    let mut tags: Vec<u64> = drain(&ring).into_iter().map(|(tag, _)| tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, [1, 2, 3]);
    assert_eq!(&fs.read("/stored").unwrap()[..14], b"\x01\x01\x01\x01\x01in part\x01\x01");
    drop((ring, stored, warm, other));
    finish(fs, &memory);
}

#[test]
fn a_write_waits_behind_those_before_it_and_a_sync_behind_them_all() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(16).unwrap();
    let stall = stall(&device);
    // A part of a block that is not in memory; the next covers a whole one, which alone would be done at once.
    assert!(submit(&ring, 0, &stored, write(0, vec![2; 100])).is_none());
    assert!(submit(&ring, 1, &stored, write(0, vec![3; BLOCK])).is_none());
    assert!(submit(&ring, 2, &stored, read(0, 200)).is_none());
    assert!(submit(&ring, 3, &stored, write(50, vec![4; 100])).is_none());
    assert!(submit(&ring, 4, &stored, Op::Append { bytes: b"end".to_vec() }).is_none());
    assert!(submit(&ring, 5, &stored, Op::SyncData).is_none());
    assert!(submit(&ring, 6, &stored, Op::Truncate { size: BLOCK as u64 + 7 }).is_none());
    assert!(submit(&ring, 7, &stored, Op::Append { bytes: b"END".to_vec() }).is_none());
    let stats = ring.stats();
    assert_eq!((stats.refused(WaitReason::Device), stats.behind, stats.by_kind), (1, 5, 2));
    drop(stall);
    let mut seen = None;
    let mut order = Vec::new();
    while let Some(done) = ring.wait() {
        let result = done.result.unwrap();
        match done.tag {
            2 => seen = Some(done.buffer),
            tag => order.push((tag, result)),
        }
    }
    order.retain(|(tag, _)| *tag != 5);
    let end = 4 * BLOCK as u64;
    let at = BLOCK as u64 + 7;
    assert_eq!(order, [(0, 100), (1, BLOCK as u64), (3, 100), (4, end), (6, 0), (7, at)]);
    // What was submitted before it, and perhaps what came right behind.
    let seen = seen.unwrap();
    assert!(seen[..50] == [3; 50] && seen[150..] == [3; 50], "{seen:?}");
    let mut wanted = [vec![3; BLOCK], vec![1; 7], b"END".to_vec()].concat();
    wanted[50..150].fill(4);
    assert!(fs.read("/stored").unwrap() == wanted);
    // Nothing is left in front: at once again.
    assert!(submit(&ring, 8, &stored, write(0, vec![5; 8])).is_some());
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn memory_that_stays_the_callers_is_copied_for_workers_only_and_keeps_the_order() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let (stored, warm) = (cold(&fs, "stored", &[1; 4 * BLOCK]), file(&fs, "warm"));
    let ring = fs.ring(4).unwrap();
    let mut out = [0; 8];
    assert_eq!(ring.submit_write(0, &warm, b"warm", 3).unwrap().unwrap().unwrap(), 4);
    assert_eq!(ring.submit_read(1, &warm, &mut out, 0).unwrap().unwrap().unwrap(), 7);
    assert_eq!(&out, b"\0\0\0warm\0");
    let stall = stall(&device);
    // The first waits for the device, the second for the first, though a whole block would not have to.
    let mut bytes = b"stored".to_vec();
    assert!(ring.submit_write(2, &stored, &bytes, 1).unwrap().is_none());
    bytes.fill(b'x');
    assert!(ring.submit_write(3, &stored, &[7; BLOCK], 0).unwrap().is_none());
    assert!(ring.submit_read(4, &stored, &mut out, 0).unwrap().is_none());
    assert!(ring.submit_read(5, &stored, &mut out, 2 * BLOCK as u64).unwrap().is_none());
    let busy = ring.submit_write(6, &stored, b"full", 9).unwrap_err();
    assert_eq!(busy.op, write(9, *b"full"));
    let busy = ring.submit_read(7, &stored, &mut out, 9).unwrap_err();
    assert_eq!(busy.op, read(9, 8));
    drop(stall);
    let mut done: Vec<_> = std::iter::from_fn(|| ring.wait())
        .map(|done| (done.tag, done.result.unwrap(), done.buffer))
        .collect();
    done.sort_by_key(|done| done.0);
    let wanted = [
        (2, 6, b"stored".to_vec()),
        (3, BLOCK as u64, vec![7; BLOCK]),
        (4, 8, vec![7; 8]),
        (5, 8, vec![1; 8]),
    ];
    assert!(done == wanted, "{done:?}");
    let stats = ring.stats();
    assert_eq!((stats.inline, stats.busy, stats.completed), (2, 2, 4));
    drop((ring, stored, warm));
    finish(fs, &memory);
}

#[test]
fn a_full_ring_gives_the_operation_back_and_loses_none() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 64 * BLOCK]);
    assert!(matches!(fs.ring(0), Err(FsError::InvalidArgument { .. })));
    assert!(matches!(fs.ring(1 << 20), Err(FsError::InvalidArgument { .. })));
    let ring = fs.ring(4).unwrap();
    let stall = stall(&device);
    for tag in 0..4 {
        assert!(submit(&ring, tag, &stored, write(tag * BLOCK as u64 + 1, vec![9; 5])).is_none());
    }
    for _ in 0..3 {
        let busy = ring.submit(4, &stored, write(4 * BLOCK as u64 + 1, vec![9; 5])).unwrap_err();
        assert_eq!(busy.op, write(4 * BLOCK as u64 + 1, vec![9; 5]));
    }
    assert_eq!(ring.stats().busy, 3);
    drop(stall);
    // Room comes with each result that is taken, not before.
    assert_eq!(ring.wait().unwrap().tag, 0);
    until("the others are done", || ring.stats().completed == 4);
    assert!(
        submit(&ring, 4, &stored, write(4 * BLOCK as u64 + 1, vec![9; 5]))
            .is_none_or(|done| done.is_inline)
    );
    let tags: Vec<u64> = drain(&ring).into_iter().map(|(tag, _)| tag).collect();
    assert!(tags.starts_with(&[1, 2, 3]), "{tags:?}");
    let contents = fs.read("/stored").unwrap();
    for at in 0..5 {
        assert_eq!(contents[at * BLOCK..at * BLOCK + 8], [1, 9, 9, 9, 9, 9, 1, 1]);
    }
    assert!(ring.wait().is_none() && ring.poll().is_none());
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn a_ring_that_is_dropped_has_done_all_that_it_accepted() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let files: Vec<Inode> = (0..6).map(|n| cold(&fs, &format!("f{n}"), &[1; 2 * BLOCK])).collect();
    fs.drop_cached();
    let ring = fs.ring(64).unwrap();
    let stall = stall(&device);
    for round in 0..8u8 {
        for (at, file) in files.iter().enumerate() {
            let op = write(u64::from(round) * 10, vec![100 + round + at as u8; 15]);
            assert!(submit(&ring, 0, file, op).is_none());
        }
    }
    threads::scope(|s| {
        s.spawn("ender", || drop(ring)).unwrap();
        until("a worker is at it", || device.state.stalled.load(Ordering::Acquire) > 0);
        drop(stall);
    })
    .unwrap();
    for at in 0..6u8 {
        let contents = fs.read(format!("/f{at}")).unwrap();
        let mut wanted = vec![1; 2 * BLOCK];
        for round in 0..8u8 {
            wanted[usize::from(round) * 10..][..15].fill(100 + round + at);
        }
        assert!(contents == wanted, "file {at}");
    }
    drop(files);
    finish(fs, &memory);
}

#[test]
fn errors_come_with_the_result() {
    let device = require!(made("16M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let ring = fs.ring(8).unwrap();
    let root = fs.root().unwrap();
    let done = submit(&ring, 1, &root, write(0, "x")).unwrap();
    assert!(matches!(done.result, Err(FsError::IsADirectory { .. })));
    assert_eq!((done.tag, done.buffer), (1, b"x".to_vec()));
    let full = file(&fs, "full");
    let range = 0..1 << 40;
    assert!(
        submit(&ring, 2, &full, Op::Fallocate { mode: Fallocate::PunchHole, range: 5..5 })
            .is_none()
    );
    assert!(
        submit(
            &ring,
            3,
            &full,
            Op::Fallocate { mode: Fallocate::Allocate { keep_size: true }, range }
        )
        .is_none()
    );
    let results = [ring.wait().unwrap(), ring.wait().unwrap()];
    assert!(matches!(results[0].result, Err(FsError::InvalidArgument { .. })), "{results:?}");
    assert!(matches!(results[1].result, Err(FsError::NoSpace { .. })), "{results:?}");
    // More than there is room for: as much as there is, then the error.
    let bytes = vec![7; 32 << 20];
    let done = submit(&ring, 4, &full, write(0, bytes)).or_else(|| ring.wait()).unwrap();
    let written = done.result.unwrap();
    assert!((1..32 << 20).contains(&written), "{written}");
    let done = submit(&ring, 5, &full, write(written, vec![7; BLOCK])).or_else(|| ring.wait());
    assert!(matches!(done.unwrap().result, Err(FsError::NoSpace { .. })));
    assert_eq!(full.metadata().size, written);
    drop((ring, full, root));
    finish(fs, &device);
}

#[test]
fn a_panic_is_for_who_takes_the_result_and_the_ring_goes_on() {
    let memory = require!(made("16M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 8 * BLOCK]);
    let ring = fs.ring(4).unwrap();
    device.state.panics.store(true, Ordering::Release);
    assert!(submit(&ring, 1, &stored, read(0, 10)).is_none());
    let panic = catch_unwind(AssertUnwindSafe(|| ring.wait())).unwrap_err();
    assert_eq!(panic.downcast_ref(), Some(&"the driver is broken"));
    // Its place is free, and no worker is missing.
    for tag in 2..12 {
        let done = submit(&ring, tag, &stored, write(5, "in part")).or_else(|| ring.wait());
        assert_eq!(done.unwrap().result.unwrap(), 7);
    }
    assert!(ring.wait().is_none());
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn what_is_done_in_parts_is_there_once() {
    let device = require!(made("16M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(4).unwrap();
    // Two whole blocks at once, then a part of one that has to be read.
    let bytes: Vec<u8> = (0..2 * BLOCK + 100).map(|at| (at / 7) as u8).collect();
    assert!(submit(&ring, 1, &stored, write(0, bytes.clone())).is_none());
    assert_eq!(ring.stats().in_parts, 1);
    let done = ring.wait().unwrap();
    assert_eq!((done.result.unwrap(), &done.buffer), (bytes.len() as u64, &bytes));
    let mut wanted = vec![1; 4 * BLOCK];
    wanted[..bytes.len()].copy_from_slice(&bytes);
    assert!(fs.read("/stored").unwrap() == wanted);
    // An append for which the last space goes: as much as there is, once, and the error.
    let (log, filler) = (file(&fs, "log"), file(&fs, "filler"));
    log.append(&[2; 3 * BLOCK]).unwrap();
    while filler.append(&[3; BLOCK]).is_ok() {}
    filler.truncate(filler.metadata().size - 40 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    let room = 3 * BLOCK as u64;
    let line: Vec<u8> = (0..64 * BLOCK).map(|at| (at / 11) as u8).collect();
    let done = submit(&ring, 2, &log, Op::Append { bytes: line.clone() }).or_else(|| ring.wait());
    assert!(matches!(done.unwrap().result, Err(FsError::NoSpace { .. })));
    let contents = fs.read("/log").unwrap();
    let got = &contents[room as usize..];
    assert!(got.len() >= 32 * BLOCK && got.len() < line.len(), "{}", got.len());
    assert!(contents[..room as usize] == vec![2; 3 * BLOCK] && *got == line[..got.len()]);
    drop((ring, stored, log, filler));
    finish(fs, &device);
}

/// Threads with rings of their own and one that they share, on files of their own and one log: contents as without.
#[test]
fn what_many_threads_submit_is_there_as_if_each_had_waited() {
    let device = require!(made("128M"));
    let options = MountOptions::new().read_only(false).seed(1).data_cache_bytes(4 << 20);
    let fs = options.open_shared(Arc::clone(&device) as SharedDevice).unwrap();
    let log = file(&fs, "log");
    let ring = fs.ring(8).unwrap();
    const LINES: u64 = 300;
    threads::workers("writer", 3, |thread| {
        let own = file(&fs, &format!("own{thread}"));
        let mut wanted: Vec<u8> = Vec::new();
        let mut random = Prng::new(thread as u64);
        for step in 0..LINES {
            let line = format!("{thread} {step} {}\n", "y".repeat(random.below(500) as usize));
            let at = random.below(wanted.len() as u64 + 1);
            let bytes = vec![step as u8; 1 + random.below(40_000) as usize];
            let end = at as usize + bytes.len();
            wanted.resize(wanted.len().max(end), 0);
            wanted[at as usize..end].copy_from_slice(&bytes);
            let mut ops =
                vec![(&log, Op::Append { bytes: line.into_bytes() }), (&own, write(at, bytes))];
            if random.one_in(10) {
                ops.push((&own, Op::SyncData));
            }
            for (inode, mut op) in ops {
                // Whoever finds the ring full takes a result, its own or another's.
                while let Err(busy) = ring
                    .submit(step, inode, op)
                    .map(|done| assert!(done.is_none_or(|done| done.result.is_ok())))
                {
                    op = busy.op;
                    if let Some(done) = ring.poll() {
                        done.result.unwrap();
                    } else {
                        threads::give_way();
                    }
                }
            }
        }
        (own, wanted)
    })
    .unwrap()
    .into_iter()
    .for_each(|(own, wanted)| {
        // Everything that was submitted is in front of this.
        while ring.wait().is_some_and(|done| done.result.is_ok()) {}
        let mut out = vec![0; wanted.len() + 1];
        assert_eq!(own.read_at(&mut out, 0).unwrap(), wanted.len());
        assert!(out[..wanted.len()] == wanted);
    });
    let stats = ring.stats();
    assert!(stats.inline > 0 && stats.completed > 0, "{stats:?}");
    assert_eq!(stats.completed, stats.punted());
    let text = fs.read_to_string("/log").unwrap();
    let mut next = [0; 3];
    for line in text.lines() {
        let mut words = line.split(' ');
        let mut number = || words.next().unwrap().parse::<u64>().unwrap();
        let (thread, step) = (number() as usize, number());
        assert_eq!(step, next[thread], "{line}");
        assert!(words.next().unwrap().bytes().all(|byte| byte == b'y'));
        next[thread] += 1;
    }
    assert_eq!(next, [LINES; 3]);
    drop((ring, log));
    finish(fs, &device);
}
