//! What can be said about an operation: chains, drains, time, cancelling; and all kinds of them.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use extant::ring::{Completion, Op, Request, Ring, Value};
use extant::{
    AlignedBuffer, FileKind, FsError, Inode, NewInode, RenameFlags, SetAttributes, WaitReason,
};
use extant_block::SharedDevice;
use extant_sync::{Clock, SystemClock};
use extant_testkit::require;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::support::{
    BLOCK, NEW, cold, drain, file, finish, made, mount, read, stall, stalling, submit, until, write,
};

fn cancelled(done: &Completion) -> bool {
    matches!(done.result, Err(FsError::OperationCancelled { .. }))
}

/// All that is with the workers: the tags of what was done, and of what was cancelled.
fn settled(ring: &Ring) -> (Vec<u64>, Vec<u64>) {
    let all: Vec<Completion> = std::iter::from_fn(|| ring.wait()).collect();
    let (gone, done): (Vec<_>, Vec<_>) = all.iter().partition(|done| cancelled(done));
    assert!(done.iter().all(|done| done.result.is_ok()), "{done:?}");
    let tags = |some: Vec<&Completion>| some.iter().map(|done| done.tag).collect();
    (tags(done), tags(gone))
}

fn accepted(ring: &Ring, request: Request) -> Option<Completion> {
    ring.submit_request(request).unwrap()
}

#[test]
fn a_chain_is_done_in_its_order_over_several_files() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let root = fs.root().unwrap();
    fs.write("/config", "old").unwrap();
    let new = cold(&fs, "new", &[1; 2 * BLOCK]);
    let ring = fs.ring(8).unwrap();
    let stall = stall(&device);
    // The first has to read a part of a block; each of the others could be done without it.
    let rename = Op::Rename {
        name: b"new".to_vec(),
        to: root.clone(),
        new_name: b"config".to_vec(),
        flags: RenameFlags::empty(),
    };
    let mark = file(&fs, "mark");
    let done = ring
        .submit_chain(vec![
            Request::new(1, &new, write(3, "contents")),
            Request::new(2, &new, Op::Sync),
            Request::new(3, &root, rename),
            Request::new(4, &mark, Op::Append { bytes: b"renamed".to_vec() }),
        ])
        .unwrap();
    assert!(done.is_empty(), "{done:?}");
    // Behind the chain, for it is a change of the same file (R1).
    assert!(submit(&ring, 5, &mark, Op::Append { bytes: b", later".to_vec() }).is_none());
    until("the device is asked", || device.state.stalled.load(Ordering::Acquire) > 0);
    assert_eq!(fs.metadata("/config").unwrap().size, 3);
    assert_eq!(mark.metadata().size, 0);
    drop(stall);
    assert_eq!(settled(&ring), (vec![1, 2, 3, 4, 5], vec![]));
    assert_eq!(&fs.read("/config").unwrap()[..12], b"\x01\x01\x01contents\x01");
    assert_eq!(fs.read("/mark").unwrap(), b"renamed, later");
    // What can be done at once is: the sync is the first that cannot.
    let done = ring
        .submit_chain(vec![
            Request::new(6, &mark, write(0, "RENAMED")),
            Request::new(7, &mark, read(0, 3)),
            Request::new(8, &mark, Op::SyncData),
            Request::new(9, &mark, write(0, "r")),
        ])
        .unwrap();
    assert_eq!(
        done.iter().map(|done| (done.tag, done.is_inline)).collect::<Vec<_>>(),
        [(6, true), (7, true)]
    );
    assert_eq!(settled(&ring), (vec![8, 9], vec![]));
    assert_eq!(fs.read("/mark").unwrap(), b"rENAMED, later");
    drop((ring, root, new, mark));
    finish(fs, &memory);
}

#[test]
fn a_chain_ends_with_the_first_that_does_not_do_all_it_was_asked() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let (short, other) = (cold(&fs, "short", &[1; 100]), file(&fs, "other"));
    let ring = fs.ring(4).unwrap();
    let chain = |len: usize| {
        vec![
            Request::new(1, &short, read(0, len)),
            Request::new(2, &other, write(0, "x")),
            Request::new(3, &short, write(0, "x")),
        ]
    };
    let busy = ring.submit_chain([chain(1), chain(1)].concat()).unwrap_err();
    assert_eq!((busy.requests.len(), busy.depth), (6, 4));
    assert!(busy.to_string().contains("never fits a ring of depth 4"), "{busy}");
    // By workers: the read finds the end of the file.
    let stall = stall(&device);
    assert!(ring.submit_chain(chain(101)).unwrap().is_empty());
    let busy = ring.submit_chain(chain(1)).unwrap_err();
    assert_eq!(busy.requests, chain(1));
    assert!(busy.to_string().contains("no room for 3 more"), "{busy}");
    drop(stall);
    assert_eq!(settled(&ring), (vec![1], vec![2, 3]));
    // At once: the same. Nobody is left waiting for what was cancelled.
    let done = ring.submit_chain(chain(101)).unwrap();
    let gone: Vec<bool> = done.iter().map(cancelled).collect();
    assert_eq!((gone, done[0].result.as_ref().ok()), (vec![false, true, true], Some(&100)));
    let error = done[1].result.as_ref().unwrap_err();
    assert_eq!((error.errno(), &done[1].buffer[..]), (125, &b"x"[..])); // ECANCELED
    assert_eq!(ring.submit_chain(chain(100)).unwrap().len(), 3);
    assert_eq!(ring.stats().cancelled, 4);
    assert_eq!(&fs.read("/short").unwrap()[..2], b"x\x01");
    assert!(submit(&ring, 9, &other, write(0, "y")).is_some());
    drop((ring, short, other));
    finish(fs, &memory);
}

#[test]
fn a_drain_comes_after_all_before_it_and_before_all_after_it() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let files: Vec<Inode> = (0..3).map(|n| cold(&fs, &format!("f{n}"), &[1; BLOCK])).collect();
    fs.drop_cached();
    let warm = file(&fs, "warm");
    let ring = fs.ring(16).unwrap();
    // Nothing is before it: at once, as anything else.
    assert!(accepted(&ring, Request::new(0, &warm, write(0, "a")).drain()).is_some());
    let stall = stall(&device);
    for (tag, file) in files.iter().enumerate() {
        assert!(submit(&ring, tag as u64, file, read(0, 10)).is_none());
    }
    assert!(accepted(&ring, Request::new(3, &warm, write(0, "b")).drain()).is_none());
    assert!(submit(&ring, 4, &warm, read(0, 1)).is_none());
    assert!(submit(&ring, 5, &file(&fs, "unconcerned"), write(0, "c")).is_none());
    assert_eq!(ring.stats().behind, 3);
    assert!(ring.wait_for(Duration::from_millis(20)).is_none(), "nobody gets past the device");
    drop(stall);
    let mut order = drain(&ring);
    order[..3].sort_unstable();
    order[4..].sort_unstable();
    assert_eq!(order, [(0, 10), (1, 10), (2, 10), (3, 1), (4, 1), (5, 1)]);
    assert!(submit(&ring, 6, &warm, write(0, "d")).is_some(), "nothing is left in front");
    drop((ring, warm, files));
    finish(fs, &memory);
}

#[test]
fn what_is_cancelled_never_happens_and_what_has_begun_ends() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(16).unwrap();
    let stall = stall(&device);
    assert!(submit(&ring, 1, &stored, write(0, "1")).is_none());
    until("it has begun", || device.state.stalled.load(Ordering::Acquire) > 0);
    assert!(submit(&ring, 2, &stored, write(1, "2")).is_none());
    assert!(submit(&ring, 3, &stored, write(2, "3")).is_none());
    let chain = vec![
        Request::new(4, &stored, write(3, "4")),
        Request::new(5, &stored, write(4, "5")),
        Request::new(6, &stored, write(5, "6")),
    ];
    assert!(ring.submit_chain(chain).unwrap().is_empty());
    assert!(submit(&ring, 7, &stored, write(6, "7")).is_none());
    assert_eq!((ring.cancel(1), ring.cancel(99), ring.cancel(2), ring.cancel(2)), (0, 0, 1, 0));
    // With what is behind it in its chain.
    assert_eq!(ring.cancel(5), 2);
    // Their results are there at once, and their memory.
    let gone: Vec<_> = std::iter::from_fn(|| ring.poll()).collect();
    assert!(gone.iter().all(cancelled));
    let came: Vec<_> = gone.iter().map(|done| (done.tag, done.buffer.as_slice())).collect();
    assert_eq!(came, [(2, &b"2"[..]), (5, b"5"), (6, b"6")]);
    drop(stall);
    assert_eq!(settled(&ring), (vec![1, 3, 4, 7], vec![]));
    assert_eq!(&fs.read("/stored").unwrap()[..8], b"1\x0134\x01\x017\x01");
    let stats = ring.stats();
    assert_eq!((stats.cancelled, stats.completed), (3, 4), "{stats:?}");
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn what_was_begun_at_once_cannot_be_cancelled() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let others: Vec<Inode> = (0..8).map(|n| cold(&fs, &format!("f{n}"), &[1; BLOCK])).collect();
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(16).unwrap();
    let stall = stall(&device);
    // Nobody is left who could go on with the next one, of which two blocks are written at once.
    for (tag, other) in others.iter().enumerate() {
        assert!(submit(&ring, tag as u64, other, write(0, "x")).is_none());
    }
    until("all are stuck", || device.state.stalled.load(Ordering::Acquire) >= 8);
    let bytes = vec![2; 2 * BLOCK + 100];
    let soon = Duration::from_millis(1);
    assert!(accepted(&ring, Request::new(8, &stored, write(0, bytes)).timeout(soon)).is_none());
    assert_eq!(ring.stats().in_parts, 1);
    SystemClock.sleep(Duration::from_millis(20));
    assert_eq!((ring.cancel(8), ring.stats().cancelled), (0, 0));
    drop(stall);
    let mut done = drain(&ring);
    done.sort_unstable();
    assert_eq!((done.len(), done[8]), (9, (8, 2 * BLOCK as u64 + 100)));
    let contents = fs.read("/stored").unwrap();
    assert!(contents[..2 * BLOCK + 100].iter().all(|byte| *byte == 2));
    drop((ring, stored, others));
    finish(fs, &memory);
}

#[test]
fn what_has_not_begun_in_time_is_cancelled_even_when_every_worker_is_stuck() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let files: Vec<Inode> = (0..12).map(|n| cold(&fs, &format!("f{n}"), &[1; BLOCK])).collect();
    fs.drop_cached();
    let ring = fs.ring(32).unwrap();
    let stall = stall(&device);
    for (tag, file) in files.iter().enumerate() {
        assert!(submit(&ring, tag as u64, file, read(0, 10)).is_none());
    }
    until("all workers are stuck", || device.state.stalled.load(Ordering::Acquire) >= 9);
    let start = SystemClock.monotonic();
    for (tag, time) in [(20, 40), (21, 20), (22, 3_600_000)] {
        let request = Request::new(tag, &files[0], write(0, "late"));
        let time = Duration::from_millis(time);
        assert!(accepted(&ring, request.timeout(time)).is_none_or(|done| done.is_inline));
    }
    let request = Request::new(23, &files[11], Op::SyncData);
    assert!(accepted(&ring, request.timeout(Duration::from_millis(30))).is_none());
    let mut gone = Vec::new();
    while gone.len() < 3 {
        let done = ring.wait().unwrap();
        assert!(cancelled(&done), "{done:?}");
        gone.push(done.tag);
    }
    assert_eq!(gone, [21, 23, 20]);
    assert!(SystemClock.monotonic() - start >= Duration::from_millis(40));
    drop(stall);
    let (mut done, gone) = settled(&ring);
    done.sort_unstable();
    assert_eq!((done, gone), ((0..12).chain([22]).collect(), vec![]));
    drop((ring, files));
    finish(fs, &memory);
}

#[test]
fn names_are_made_found_moved_and_removed_in_their_order() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let root = fs.root().unwrap();
    let ring = fs.ring(64).unwrap();
    let one = |tag, inode: &Inode, op| {
        let done = submit(&ring, tag, inode, op).or_else(|| ring.wait()).unwrap();
        assert_eq!(done.tag, tag);
        done
    };
    let inode = |done: Completion| match (done.result, done.value) {
        (Ok(0), Value::Inode(inode)) => inode,
        other => panic!("{other:?}"),
    };
    let name = |name: &str| name.as_bytes().to_vec();
    let new = NewInode { permissions: 0o755, ..NEW };
    let dir = inode(one(1, &root, Op::Mkdir { name: name("dir"), new }));
    let made = inode(one(2, &dir, Op::Create { name: name("file"), new: NEW }));
    let link = Op::Symlink { name: name("symlink"), target: name("file"), new: NEW };
    assert_eq!(inode(one(3, &dir, link)).kind(), FileKind::Symlink);
    one(4, &dir, Op::Link { name: name("second"), target: made.clone() }).result.unwrap();
    // Found: at once where memory knows, also what there is not.
    let found = one(5, &dir, Op::Lookup { name: name("second") });
    assert!(found.is_inline);
    assert_eq!(inode(found), made);
    assert!(matches!(
        one(6, &dir, Op::Lookup { name: name("none") }).result,
        Err(FsError::NotFound { .. })
    ));
    assert_eq!(inode(one(7, &root, Op::Open { path: name("/dir/symlink") })), made);
    let changes = Box::new(SetAttributes::new().permissions(0o600));
    one(8, &made, Op::SetAttributes { changes }).result.unwrap();
    let done = one(9, &made, Op::Stat);
    let Value::Metadata(metadata) = done.value else { panic!("{done:?}") };
    assert_eq!((metadata.permissions, metadata.links, done.is_inline), (0o600, 2, true));
    assert_eq!(*metadata, made.metadata());
    // Not waited for in between: each comes after those before it on its directory, and what removes the other directory
    // after all before it.
    let later = [
        (&dir, Op::Unlink { name: name("symlink") }),
        (
            &dir,
            Op::Rename {
                name: name("second"),
                to: root.clone(),
                new_name: name("moved"),
                flags: RenameFlags::NOREPLACE,
            },
        ),
        (&dir, Op::Unlink { name: name("file") }),
        (&root, Op::Rmdir { name: name("dir") }),
        (&root, Op::Create { name: name("dir"), new: NEW }),
        (&root, Op::Unlink { name: name("moved") }),
    ];
    for (tag, (inode, op)) in (10..).zip(later) {
        let drains = matches!(op, Op::Rmdir { .. });
        let request = Request::new(tag, inode, op);
        let request = if drains { request.drain() } else { request };
        assert!(ring.submit_request(request).unwrap().is_none());
    }
    assert!(drain(&ring).into_iter().map(|(tag, _)| tag).eq(10..16));
    // The file is without a name, and deleted with its last handle.
    assert_eq!(made.metadata().links, 0);
    made.write_at(&[7; 64 * BLOCK], 0).unwrap();
    made.sync().unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    one(20, &root, Op::Close { handle: made }).result.unwrap();
    fs.sync().unwrap();
    assert!(fs.statfs().unwrap().blocks_free >= free + 64);
    assert!(fs.read("/dir").unwrap().is_empty());
    drop((ring, dir, root));
    finish(fs, &device);
}

#[test]
fn several_buffers_are_one_after_the_other_also_when_a_worker_goes_on_in_the_middle() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let warm = file(&fs, "warm");
    let ring = fs.ring(4).unwrap();
    let buffers = |lens: &[usize]| -> Vec<Vec<u8>> {
        lens.iter().zip(10..).map(|(len, byte)| vec![byte; *len]).collect()
    };
    let write = |offset, buffers| Op::WriteVectored { offset, buffers };
    let done = submit(&ring, 1, &warm, write(0, buffers(&[3, 0, 5000, 1]))).unwrap();
    assert_eq!(done.result.unwrap(), 5004);
    assert_eq!(done.value, Value::Buffers(buffers(&[3, 0, 5000, 1])));
    assert!(fs.read("/warm").unwrap() == buffers(&[3, 0, 5000, 1]).concat());
    // A block, the rest of it in the next buffer, and then a part of one that has to be read.
    let lens = [BLOCK, 100, 0, BLOCK - 100, 50, 60];
    assert!(submit(&ring, 2, &stored, write(0, buffers(&lens))).is_none());
    let done = ring.wait().unwrap();
    assert_eq!(done.result.unwrap(), 2 * BLOCK as u64 + 110);
    let read = |offset, lens: &[usize]| Op::ReadVectored {
        offset,
        buffers: lens.iter().map(|len| vec![0; *len]).collect(),
    };
    let done = submit(&ring, 3, &stored, read(0, &lens)).or_else(|| ring.wait()).unwrap();
    assert_eq!(done.value, Value::Buffers(buffers(&lens)));
    fs.sync().unwrap();
    fs.drop_cached();
    assert!(submit(&ring, 4, &stored, read(4 * BLOCK as u64 - 10, &[4, 4, 4, 4])).is_none());
    let done = ring.wait().unwrap();
    assert_eq!(done.result.unwrap(), 10);
    let Value::Buffers(read) = done.value else { panic!() };
    assert_eq!(read.concat(), [&[1; 10][..], &[0; 6]].concat());
    let stats = ring.stats();
    assert_eq!(stats.inline + stats.completed, 4);
    drop((ring, stored, warm));
    finish(fs, &device);
}

#[test]
fn direct_operations_go_to_the_device_together_and_their_memory_comes_back() {
    let memory = require!(made("64M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 80 * BLOCK]);
    let ring = fs.ring(256).unwrap();
    let before = fs.io_stats().unwrap();
    // One holds the workers' way up; those that come meanwhile are done as one batch.
    let filled = |byte: u8| {
        let mut buffer = AlignedBuffer::zeroed(BLOCK);
        buffer.fill(byte);
        buffer
    };
    for block in 0..64 {
        let (offset, buffer) = (block * BLOCK as u64, filled(block as u8));
        let op = Op::WriteDirect { offset, buffer, synced: block == 63 };
        assert!(submit(&ring, block, &stored, op).is_none());
    }
    for _ in 0..64 {
        let done = ring.wait().unwrap();
        assert_eq!(done.result.unwrap(), BLOCK as u64);
        assert_eq!(done.value, Value::Direct(filled(done.tag as u8)));
    }
    for block in 0..64 {
        let (offset, buffer) = (block * BLOCK as u64, AlignedBuffer::zeroed(BLOCK));
        assert!(submit(&ring, block, &stored, Op::ReadDirect { offset, buffer }).is_none());
    }
    for _ in 0..64 {
        let done = ring.wait().unwrap();
        assert_eq!(done.value, Value::Direct(filled(done.tag as u8)));
    }
    let after = fs.io_stats().unwrap();
    assert_eq!(after.direct_queued - before.direct_queued, 128, "{after:?}");
    // The library's errors, and memory all the same.
    let op = Op::ReadDirect { offset: 1, buffer: AlignedBuffer::zeroed(BLOCK) };
    assert!(submit(&ring, 1, &stored, op).is_none());
    let done = ring.wait().unwrap();
    assert!(matches!(done.result, Err(FsError::Misaligned { .. })), "{done:?}");
    let op = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(BLOCK) };
    assert!(submit(&ring, 2, &fs.root().unwrap(), op).is_none());
    let done = ring.wait().unwrap();
    assert!(matches!(done.result, Err(FsError::IsADirectory { .. })), "{done:?}");
    // After buffered changes that were submitted before.
    assert!(accepted(&ring, Request::new(3, &stored, write(0, "buffered")).on_worker()).is_none());
    let op = Op::ReadDirect { offset: 0, buffer: AlignedBuffer::zeroed(BLOCK) };
    assert!(submit(&ring, 4, &stored, op).is_none());
    let found = std::iter::from_fn(|| ring.wait()).find(|done| done.tag == 4).unwrap();
    let Value::Direct(found) = found.value else { panic!() };
    assert_eq!(&found[..8], b"buffered");
    assert_eq!(drain(&ring).len(), 0);
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn a_descriptor_tells_of_results_until_they_are_taken() {
    let memory = require!(made("16M"));
    let device = stalling(&memory);
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[1; 4 * BLOCK]);
    let ring = fs.ring(8).unwrap();
    let fd = ring.event_fd().unwrap();
    let is_readable = |milliseconds: i64| {
        let mut fds = [PollFd::new(&fd, PollFlags::IN)];
        let time =
            Timespec { tv_sec: milliseconds / 1000, tv_nsec: milliseconds % 1000 * 1_000_000 };
        poll(&mut fds, Some(&time)).unwrap() == 1
    };
    // Who took a result may have been faster than the word of it, which comes for nothing then: once for each result.
    let falls_silent = |results: usize| {
        (0..=results).any(|_| {
            let silent = !is_readable(10);
            assert!(silent || ring.poll().is_none());
            silent
        })
    };
    assert!(ring.poll().is_none() && !is_readable(0));
    for _ in 0..3 {
        fs.drop_cached();
        let stall = stall(&device);
        assert!(submit(&ring, 1, &stored, read(0, 5)).is_none());
        assert!(submit(&ring, 2, &stored, read(BLOCK as u64, 5)).is_none());
        assert!(falls_silent(2));
        drop(stall);
        let mut taken = 0;
        while taken < 2 {
            assert!(is_readable(30_000), "nobody is told");
            taken += std::iter::from_fn(|| ring.poll()).count();
        }
        assert!(falls_silent(2));
    }
    drop((ring, stored));
    finish(fs, &memory);
}

#[test]
fn who_does_not_want_to_work_hands_it_over() {
    let device = require!(made("16M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let warm = file(&fs, "warm");
    let ring = fs.ring(64).unwrap();
    for tag in 0..50 {
        let request = Request::new(tag, &warm, Op::Append { bytes: vec![tag as u8; 100] });
        assert!(accepted(&ring, request.on_worker()).is_none());
    }
    assert!(drain(&ring).into_iter().eq((0..50).map(|tag| (tag, tag * 100))));
    let stats = ring.stats();
    assert_eq!((stats.inline, stats.by_request, stats.completed), (0, 50, 50));
    assert_eq!(stats.refused(WaitReason::Contents), 0);
    drop((ring, warm));
    finish(fs, &device);
}
