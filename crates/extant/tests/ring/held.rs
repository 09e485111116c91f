//! Rings on a mount that stands still, and their end there.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use extant::ring::Op;
use extant::{FsError, Inode};
use extant_block::SharedDevice;
use extant_sync::threads;
use extant_testkit::require;

use crate::support::{BLOCK, cold, drain, file, finish, made, mount, read, submit, until, write};

#[test]
fn reads_go_on_while_as_many_changes_as_there_are_workers_wait_for_a_thaw() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let stored = cold(&fs, "stored", &[7; 40 * BLOCK]);
    let files: Vec<Inode> = (0..20).map(|n| file(&fs, &format!("f{n}"))).collect();
    for depth in [64, 21] {
        let ring = fs.ring(depth).unwrap();
        let frozen = fs.freeze().unwrap();
        fs.drop_cached();
        for (tag, file) in files.iter().enumerate() {
            assert!(submit(&ring, tag as u64, file, write(0, [tag as u8; 10])).is_none());
        }
        for tag in 100..140 {
            let op = read((tag - 100) * BLOCK as u64, BLOCK);
            let done = submit(&ring, tag, &stored, op).or_else(|| ring.wait()).unwrap();
            assert_eq!((done.tag, done.result.unwrap()), (tag, BLOCK as u64));
            assert!(done.buffer == [7; BLOCK]);
        }
        assert_eq!(ring.cancel(19), 1, "it waits");
        frozen.thaw();
        let mut done: Vec<u64> = std::iter::from_fn(|| ring.wait())
            .inspect(|done| assert_eq!(done.result.is_ok(), done.tag != 19))
            .map(|done| done.tag)
            .collect();
        done.sort_unstable();
        assert!(done.into_iter().eq(0..20));
    }
    for (tag, file) in files.iter().enumerate().take(19) {
        let mut out = [0; 11];
        assert_eq!(file.read_at(&mut out, 0).unwrap(), 10);
        assert_eq!(out[..10], [tag as u8; 10]);
    }
    assert_eq!(files[19].metadata().size, 0);
    drop((stored, files));
    finish(fs, &device);
}

#[test]
fn a_ring_of_one_reads_beside_a_change_that_waits_for_a_thaw() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let (stored, warm) = (cold(&fs, "stored", &[7; BLOCK]), file(&fs, "warm"));
    let ring = fs.ring(2).unwrap();
    let frozen = fs.freeze().unwrap();
    assert!(submit(&ring, 1, &warm, write(0, "x")).is_none());
    assert!(submit(&ring, 2, &stored, read(0, 5)).is_none());
    assert_eq!(ring.wait().map(|done| done.tag), Some(2));
    frozen.thaw();
    assert_eq!(drain(&ring), [(1, 1)]);
    drop((ring, stored, warm));
    finish(fs, &device);
}

#[test]
fn a_ring_that_ends_while_the_mount_is_frozen_waits_for_the_thaw_unless_all_is_cancelled() {
    let device = require!(made("64M"));
    let fs = mount(Arc::clone(&device) as SharedDevice);
    let files: Vec<Inode> = (0..20).map(|n| file(&fs, &format!("f{n}"))).collect();
    for cancels in [false, true] {
        let ring = fs.ring(64).unwrap();
        let frozen = fs.freeze().unwrap();
        for file in &files {
            assert!(submit(&ring, 0, file, Op::Append { bytes: b"line\n".to_vec() }).is_none());
        }
        // As many as there are workers but one.
        until("they have begun", || ring.stats().begun == 8);
        let (has_cancelled, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        threads::scope(|s| {
            let end = || {
                let count = if cancels { ring.cancel_all() } else { 0 };
                has_cancelled.store(true, Ordering::Release);
                // Those that workers have taken up wait in the middle, and are done.
                assert!(!cancels || count == 12, "{count}");
                let gone = std::iter::from_fn(|| ring.poll())
                    .filter(|done| matches!(done.result, Err(FsError::OperationCancelled { .. })));
                assert_eq!(gone.count(), count);
                drop(ring);
                has_ended.store(true, Ordering::Release);
                count
            };
            let ender = s.spawn("ender", end).unwrap();
            // An end of the mount is refused meanwhile, and nothing is lost by that.
            assert!(matches!(fs.clone().unmount(), Err(FsError::Frozen)));
            until("it is cancelled", || has_cancelled.load(Ordering::Acquire));
            assert!(!has_ended.load(Ordering::Acquire), "eight have begun at least");
            frozen.thaw();
            let count = ender.join().unwrap();
            until("it ends", || has_ended.load(Ordering::Acquire));
            let lines: u64 = files.iter().map(|file| file.metadata().size / 5).sum();
            let before = if cancels { 20 } else { 0 };
            assert_eq!(lines, before + 20 - count as u64);
        })
        .unwrap();
    }
    drop(files);
    finish(fs, &device);
}
